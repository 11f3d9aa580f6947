//! Who comes most often, in bounded memory, however many there are.

use std::array::from_fn;
use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Threads that count without waiting for one another: more than most machines have workers, few enough to be added up.
const TABLES: usize = 8;

/// The most frequent of an unbounded number of things (Metwally, Agrawal, El Abbadi: "Space-Saving", 2005).
///
/// Each thread counts in a table of its own, as far as there are enough. A thing that is not there when all places of a
/// table are taken gets the place of the rarest, and its count, so that a count is never too low; by how much it may be
/// too high stands beside it. What comes more often than one in `places` times is always there. Where a half-life is
/// given, counts are halved that often: what was long ago is forgotten.
#[derive(Debug)]
pub struct Heavy<K, const KINDS: usize> {
    /// Of each table.
    places: usize,
    half_life: Option<Duration>,
    tables: [Mutex<Table<K, KINDS>>; TABLES],
}

#[derive(Debug)]
struct Table<K, const KINDS: usize> {
    counts: HashMap<K, Count<KINDS>>,
    /// Since when nothing was halved.
    since: Instant,
}

/// How often something came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count<const KINDS: usize> {
    /// Of each kind.
    pub of: [u64; KINDS],
    /// Of all kinds together: by how many this may be too much, and was somebody else's.
    pub at_most_less: u64,
}

impl<const KINDS: usize> Count<KINDS> {
    const NONE: Self = Self { of: [0; KINDS], at_most_less: 0 };

    fn all(&self) -> u64 {
        self.of.iter().sum::<u64>() + self.at_most_less
    }

    fn and(self, other: Self) -> Self {
        Self {
            of: from_fn(|kind| self.of[kind] + other.of[kind]),
            at_most_less: self.at_most_less + other.at_most_less,
        }
    }
}

/// Which table this thread counts in.
fn own_table() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = THREADS.fetch_add(1, Ordering::Relaxed) % TABLES;
    }
    OWN.with(|own| *own)
}

impl<K: Clone + Eq + Hash + Ord, const KINDS: usize> Heavy<K, KINDS> {
    /// With room for so many, which are never forgotten while there is room.
    pub fn new(places: usize) -> Self {
        let table = |_| Mutex::new(Table { counts: HashMap::new(), since: Instant::now() });
        Self { places, half_life: None, tables: from_fn(table) }
    }

    /// With counts that are halved so often.
    pub fn lately(places: usize, half_life: Duration) -> Self {
        Self { half_life: Some(half_life), ..Self::new(places) }
    }

    /// It came once more, and this is of which kind.
    pub fn count<Q>(&self, key: &Q, kind: usize)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let mut table = self.table(own_table());
        if let Some(count) = table.counts.get_mut(key) {
            count.of[kind] += 1;
            return;
        }
        let mut count = Count::NONE;
        count.of[kind] = 1;
        if table.counts.len() >= self.places {
            // A look at all of them, which are few: some microseconds, and only for what is not among them.
            let rarest = table.counts.iter().min_by_key(|(_, count)| count.all());
            if let Some((rarest, all)) = rarest.map(|(key, count)| (key.clone(), count.all())) {
                table.counts.remove(rarest.borrow());
                count.at_most_less = all;
            }
        }
        table.counts.insert(key.to_owned(), count);
    }

    /// The most frequent, the first first; those of which there were as many in the order of their names.
    pub fn top(&self, at_most: usize) -> Vec<(K, Count<KINDS>)> {
        let tables: [_; TABLES] = from_fn(|number| self.table(number).counts.clone());
        // What is not in a full table may have been there, as often as the rarest of those that are.
        let missed = tables.each_ref().map(|counts| match counts.values().map(Count::all).min() {
            Some(rarest) if counts.len() >= self.places => Count { at_most_less: rarest, ..Count::NONE },
            _ => Count::NONE,
        });
        let keys: BTreeSet<&K> = tables.iter().flat_map(HashMap::keys).collect();
        let sum = |key: &K| {
            let counts = tables.iter().zip(missed).map(|(counts, missed)| *counts.get(key).unwrap_or(&missed));
            counts.fold(Count::NONE, Count::and)
        };
        let mut all: Vec<_> = keys.into_iter().map(|key| (key.clone(), sum(key))).collect();
        all.sort_by(|(one, a), (other, b)| b.all().cmp(&a.all()).then_with(|| one.cmp(other)));
        all.truncate(at_most);
        all
    }

    fn table(&self, number: usize) -> MutexGuard<'_, Table<K, KINDS>> {
        let mut table = self.tables[number].lock().unwrap_or_else(PoisonError::into_inner);
        self.fade(&mut table);
        table
    }

    fn fade(&self, table: &mut Table<K, KINDS>) {
        let Some(half_life) = self.half_life else { return };
        let halvings = table.since.elapsed().as_nanos() / half_life.as_nanos().max(1);
        if halvings == 0 {
            return;
        }
        table.since = Instant::now();
        let shift = u32::try_from(halvings).unwrap_or(u32::MAX);
        let halved = |count: u64| count.checked_shr(shift).unwrap_or(0);
        table.counts.retain(|_, count| {
            count.of = count.of.map(halved);
            count.at_most_less = halved(count.at_most_less);
            count.of.iter().any(|count| *count > 0)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys<const KINDS: usize>(heavy: &Heavy<u32, KINDS>) -> Vec<u32> {
        heavy.top(usize::MAX).into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn what_comes_often_is_found_among_any_number_that_come_once() {
        let heavy = Heavy::<u32, 1>::new(10);
        for number in 0..10_000 {
            heavy.count(&(1_000_000 + number), 0);
            if number % 5 == 0 {
                heavy.count(&7, 0);
            }
        }
        let top = heavy.top(1);
        assert_eq!(top[0].0, 7);
        assert!(top[0].1.all() >= 2_000, "{top:?}");
        assert_eq!(keys(&heavy).len(), 10, "never more than there is room for");
    }

    #[test]
    fn kinds_are_counted_apart_and_exactly_as_long_as_there_is_room() {
        let heavy = Heavy::<u32, 2>::new(2);
        for (key, kind) in [(1, 0), (2, 1), (2, 1), (2, 0)] {
            heavy.count(&key, kind);
        }
        let exact = |of| Count { of, at_most_less: 0 };
        assert_eq!(heavy.top(9), [(2, exact([1, 2])), (1, exact([1, 0]))]);
        heavy.count(&3, 1);
        assert_eq!(heavy.top(9)[1], (3, Count { of: [0, 1], at_most_less: 1 }));
    }

    #[test]
    fn what_several_threads_have_counted_is_added_up_and_never_too_low() {
        let heavy = Heavy::<u32, 1>::new(2);
        let come = [&[1, 1, 2][..], &[1, 1, 2], &[1, 3]];
        std::thread::scope(|scope| {
            for keys in come {
                scope.spawn(|| keys.iter().for_each(|key| heavy.count(key, 0)));
            }
        });
        let top = heavy.top(9);
        assert_eq!((top[0].0, top[0].1.of), (1, [5]));
        for key in [1, 2, 3] {
            let often = come.concat().iter().filter(|other| **other == key).count() as u64;
            let (_, count) = top.iter().find(|(other, _)| *other == key).unwrap();
            assert!(count.of[0] <= often && often <= count.all(), "{key}: {count:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_long_ago_is_forgotten() {
        let heavy = Heavy::<u32, 1>::lately(10, Duration::from_secs(60));
        (0..4).for_each(|_| heavy.count(&1, 0));
        heavy.count(&2, 0);
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(heavy.top(9), [(1, Count { of: [2], at_most_less: 0 })]);
        tokio::time::advance(Duration::from_secs(600)).await;
        assert!(keys(&heavy).is_empty());
    }
}
