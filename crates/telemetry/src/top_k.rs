//! Finds the most frequent keys of a stream in bounded memory.

use std::array::from_fn;
use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use super::per_thread::PerThread;

/// The most frequent of an unbounded number of keys (Metwally, Agrawal, El Abbadi: "Space-Saving", 2005).
///
/// Each thread counts in a table of its own, as long as there are enough tables. A new key in a full table replaces the
/// rarest one and takes over its count. So a count is never too low; its greatest possible excess is kept beside it. A
/// key with more than one in `places` of all occurrences is always in the table.
#[derive(Debug)]
pub struct TopK<K, const KINDS: usize> {
    /// The number of keys in each table.
    places: usize,
    tables: PerThread<HashMap<K, TopKCount<KINDS>>>,
}

/// The count of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopKCount<const KINDS: usize> {
    pub counts: [u64; KINDS],
    /// The greatest possible excess over all kinds together: occurrences that may have been another key's.
    pub excess_max: u64,
}

impl<const KINDS: usize> TopKCount<KINDS> {
    const NONE: Self = Self { counts: [0; KINDS], excess_max: 0 };

    fn total(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.excess_max
    }

    fn add(self, other: Self) -> Self {
        Self {
            counts: from_fn(|kind| self.counts[kind] + other.counts[kind]),
            excess_max: self.excess_max + other.excess_max,
        }
    }
}

impl<K: Clone + Eq + Hash + Ord, const KINDS: usize> TopK<K, KINDS> {
    /// Creates a counter with room for `places` keys in each table. Keys are never dropped while there is room.
    pub fn new(places: usize) -> Self {
        Self { places, tables: PerThread::default() }
    }

    pub fn count<Q>(&self, key: &Q, kind: usize)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let mut table = self.tables.own();
        if let Some(count) = table.get_mut(key) {
            count.counts[kind] += 1;
            return;
        }
        let mut count = TopKCount::NONE;
        count.counts[kind] = 1;
        if table.len() >= self.places {
            // A scan of the few keys takes some microseconds, and only new keys need it.
            let rarest = table.iter().min_by_key(|(_, count)| count.total());
            if let Some((rarest, total)) = rarest.map(|(key, count)| (key.clone(), count.total())) {
                table.remove(rarest.borrow());
                count.excess_max = total;
            }
        }
        table.insert(key.to_owned(), count);
    }

    /// Returns the `limit` most frequent keys, the most frequent first; equally frequent ones in the order of the keys.
    pub fn top(&self, limit: usize) -> Vec<(K, TopKCount<KINDS>)> {
        let tables: Vec<_> = self.tables.each().map(|table| table.clone()).collect();
        // A key that is missing in a full table may have been there, as often as the table's rarest.
        let missed = |counts: &HashMap<K, _>| match counts.values().map(TopKCount::total).min() {
            Some(rarest) if counts.len() >= self.places => TopKCount { excess_max: rarest, ..TopKCount::NONE },
            _ => TopKCount::NONE,
        };
        let missed: Vec<_> = tables.iter().map(missed).collect();
        let keys: BTreeSet<&K> = tables.iter().flat_map(HashMap::keys).collect();
        let sum = |key: &K| {
            let counts = tables.iter().zip(&missed).map(|(counts, missed)| *counts.get(key).unwrap_or(missed));
            counts.fold(TopKCount::NONE, TopKCount::add)
        };
        let mut all: Vec<_> = keys.into_iter().map(|key| (key.clone(), sum(key))).collect();
        all.sort_by(|(one, a), (other, b)| b.total().cmp(&a.total()).then_with(|| one.cmp(other)));
        all.truncate(limit);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys<const KINDS: usize>(counter: &TopK<u32, KINDS>) -> Vec<u32> {
        counter.top(usize::MAX).into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn a_frequent_key_is_found_among_any_number_of_rare_ones() {
        let counter = TopK::<u32, 1>::new(10);
        for number in 0..10_000 {
            counter.count(&(1_000_000 + number), 0);
            if number % 5 == 0 {
                counter.count(&7, 0);
            }
        }
        let top = counter.top(1);
        assert_eq!(top[0].0, 7);
        assert!(top[0].1.total() >= 2_000, "{top:?}");
        assert_eq!(keys(&counter).len(), 10, "never more keys than places");
    }

    #[test]
    fn kinds_are_counted_separately_and_exactly_while_there_is_room() {
        let counter = TopK::<u32, 2>::new(2);
        for (key, kind) in [(1, 0), (2, 1), (2, 1), (2, 0)] {
            counter.count(&key, kind);
        }
        let exact = |of| TopKCount { counts: of, excess_max: 0 };
        assert_eq!(counter.top(9), [(2, exact([1, 2])), (1, exact([1, 0]))]);
        counter.count(&3, 1);
        assert_eq!(counter.top(9)[1], (3, TopKCount { counts: [0, 1], excess_max: 1 }));
    }

    #[test]
    fn counts_of_several_threads_are_added_and_never_too_low() {
        let counter = TopK::<u32, 1>::new(2);
        let come = [&[1, 1, 2][..], &[1, 1, 2], &[1, 3]];
        std::thread::scope(|scope| {
            for keys in come {
                scope.spawn(|| keys.iter().for_each(|key| counter.count(key, 0)));
            }
        });
        let top = counter.top(9);
        assert_eq!((top[0].0, top[0].1.counts), (1, [5]));
        for key in [1, 2, 3] {
            let often = come.concat().iter().filter(|other| **other == key).count() as u64;
            let (_, count) = top.iter().find(|(other, _)| *other == key).unwrap();
            assert!(count.counts[0] <= often && often <= count.total(), "{key}: {count:?}");
        }
    }
}
