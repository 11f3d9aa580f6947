//! Who comes most often, in bounded memory, however many there are.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The most frequent of an unbounded number of things (Metwally, Agrawal, El Abbadi: "Space-Saving", 2005).
///
/// A thing that is not there when all places are taken gets the place of the rarest, and its count, so that a count is
/// never too low; by how much it may be too high stands beside it. What comes more often than one in `places` times is
/// always there. Where a half-life is given, counts are halved that often: what was long ago is forgotten.
#[derive(Debug)]
pub struct Heavy<K, const KINDS: usize> {
    places: usize,
    half_life: Option<Duration>,
    table: Mutex<Table<K, KINDS>>,
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
    fn all(&self) -> u64 {
        self.of.iter().sum::<u64>() + self.at_most_less
    }
}

impl<K: Clone + Eq + Hash + Ord, const KINDS: usize> Heavy<K, KINDS> {
    /// With room for so many, which are never forgotten while there is room.
    pub fn new(places: usize) -> Self {
        let table = Table { counts: HashMap::new(), since: Instant::now() };
        Self { places, half_life: None, table: Mutex::new(table) }
    }

    /// With counts that are halved so often.
    pub fn lately(places: usize, half_life: Duration) -> Self {
        Self { half_life: Some(half_life), ..Self::new(places) }
    }

    /// It came once more, and this is of which kind.
    pub fn count(&self, key: K, kind: usize) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        self.fade(&mut table);
        let counts = &mut table.counts;
        if let Some(count) = counts.get_mut(&key) {
            count.of[kind] += 1;
            return;
        }
        let mut count = Count { of: [0; KINDS], at_most_less: 0 };
        count.of[kind] = 1;
        if counts.len() >= self.places {
            // A look at all of them, which are few: some microseconds, and only for what is not among them.
            let rarest =
                counts.iter().min_by_key(|(_, count)| count.all()).map(|(key, count)| (key.clone(), count.all()));
            if let Some((rarest, all)) = rarest {
                counts.remove(&rarest);
                count.at_most_less = all;
            }
        }
        counts.insert(key, count);
    }

    /// The most frequent, the first first; those of which there were as many in the order of their names.
    pub fn top(&self, at_most: usize) -> Vec<(K, Count<KINDS>)> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        self.fade(&mut table);
        let mut all: Vec<_> = table.counts.iter().map(|(key, count)| (key.clone(), *count)).collect();
        drop(table);
        all.sort_by(|(one, a), (other, b)| b.all().cmp(&a.all()).then_with(|| one.cmp(other)));
        all.truncate(at_most);
        all
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
            heavy.count(1_000_000 + number, 0);
            if number % 5 == 0 {
                heavy.count(7, 0);
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
            heavy.count(key, kind);
        }
        let exact = |of| Count { of, at_most_less: 0 };
        assert_eq!(heavy.top(9), [(2, exact([1, 2])), (1, exact([1, 0]))]);
        heavy.count(3, 1);
        assert_eq!(heavy.top(9)[1], (3, Count { of: [0, 1], at_most_less: 1 }));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_long_ago_is_forgotten() {
        let heavy = Heavy::<u32, 1>::lately(10, Duration::from_secs(60));
        (0..4).for_each(|_| heavy.count(1, 0));
        heavy.count(2, 0);
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(heavy.top(9), [(1, Count { of: [2], at_most_less: 0 })]);
        tokio::time::advance(Duration::from_secs(600)).await;
        assert!(keys(&heavy).is_empty());
    }
}
