//! The counts of each week, for the owner of an API: duplicates that were answered without an execution, requests
//! without a key, and unknown outcomes. No decision rests on them.
//!
//! An instance counts in memory, and adds to the store what it has counted: each minute, when an operator looks, and at
//! its end. A crash loses what it has counted since. A batch has a number, so that one whose answer was lost is not
//! added twice. The week is that of the store's clock when the batch is added.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use oncegate_domain::ids::InstanceId;
use oncegate_domain::named;
use oncegate_domain::scope::Scope;
use oncegate_store::{AddWeeklyCountsParams, AddedCount, Store, StoreError, TendWeeklyCountsParams};
use oncegate_telemetry::metrics::{PerRoute, ServiceRoute};
use oncegate_telemetry::per_thread::PerThread;

/// The pairs of a caller and a kind that a thread counts apart for a route until the next batch. A caller with many
/// requests is among the first of each minute, and eight threads fill a batch with 100 KiB at most.
const PAIRS_MAX: usize = 100;

/// The callers of a route and week that are counted apart: more than anybody looks through, and few enough that a year
/// of a route takes some megabytes. An instance names as many from one tending to the next, so that callers who make up
/// credentials cost the store no more than this.
const CALLERS_MAX: usize = 100;

/// The most counts that are added at once: SQLite has one writer, and other jobs wait for it meanwhile.
const BATCH_MAX: usize = 1_000;

named! {
    /// The kind of what is counted.
    #[derive(Hash)]
    pub enum WeeklyKind {
        /// A late retry that was refused.
        Expired => "expired",
        /// A duplicate while the attempt ran: it was refused, or waited.
        InFlight => "in_flight",
        /// A key that was used for another request.
        KeyReused => "key_misuse",
        /// A key that became unknown.
        MadeUnknown => "made_unknown",
        /// A duplicate on a route that only observes: the service has got it.
        Observed => "observed",
        /// A duplicate that got the stored response.
        Replay => "replay",
        /// An unknown outcome that was resolved.
        Resolved => "resolved",
        /// The seconds for which the resolved outcomes were unknown.
        ResolvedSeconds => "resolved_seconds",
        /// A duplicate of a request with an unknown outcome.
        Unknown => "unknown",
        /// A state-changing request without a key that was forwarded unguarded.
        Unkeyed => "unkeyed",
    }
}

impl WeeklyKind {
    /// The second executions that were stopped.
    pub const STOPPED: [Self; 4] = [Self::Replay, Self::InFlight, Self::Unknown, Self::Expired];
}

/// A caller, by the first digits of its scope: enough to tell the callers of a route apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CountedCaller {
    /// Those past the limit.
    Others,
    /// Nobody is named.
    Nobody,
    Scope(u64),
}

impl fmt::Display for CountedCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Others => f.write_str("others"),
            Self::Nobody => f.write_str("none"),
            Self::Scope(digits) => write!(f, "{digits:016x}"),
        }
    }
}

/// The counts of one route since the last batch.
#[derive(Debug, Default)]
pub struct RouteCounts {
    counts: PerThread<HashMap<(CountedCaller, WeeklyKind), u64>>,
    /// The callers that were named since the last tending.
    named: parking_lot::Mutex<HashSet<u64>>,
}

impl RouteCounts {
    /// Counts one.
    pub fn count(&self, caller: Option<&Scope>, kind: WeeklyKind) {
        let digits =
            |scope: &Scope| scope.as_bytes()[..8].iter().fold(0, |digits, byte| digits << 8 | u64::from(*byte));
        self.add(caller.map_or(CountedCaller::Nobody, |scope| CountedCaller::Scope(digits(scope))), kind, 1);
    }

    /// Counts an unknown outcome that was resolved after this time.
    pub fn count_resolved(&self, unknown_for: Duration) {
        self.add(CountedCaller::Nobody, WeeklyKind::Resolved, 1);
        self.add(CountedCaller::Nobody, WeeklyKind::ResolvedSeconds, unknown_for.as_secs());
    }

    fn add(&self, caller: CountedCaller, kind: WeeklyKind, number: u64) {
        let mut counts = self.counts.own();
        let is_counted = counts.len() < PAIRS_MAX || counts.contains_key(&(caller, kind));
        *counts.entry((if is_counted { caller } else { CountedCaller::Others }, kind)).or_default() += number;
    }

    /// Takes what all threads have counted. Where there are too many callers, those with the highest counts are named.
    fn take(&self) -> HashMap<(CountedCaller, WeeklyKind), u64> {
        let mut counts = Vec::new();
        self.counts.each().for_each(|mut own| counts.extend(take(&mut *own)));
        counts.sort_unstable_by_key(|(_, count)| Reverse(*count));
        let (mut named, mut sums) = (self.named.lock(), HashMap::new());
        for ((caller, kind), count) in counts {
            let is_named = match caller {
                CountedCaller::Scope(digits) => {
                    named.contains(&digits) || named.len() < CALLERS_MAX && named.insert(digits)
                }
                CountedCaller::Nobody | CountedCaller::Others => true,
            };
            *sums.entry((if is_named { caller } else { CountedCaller::Others }, kind)).or_default() += count;
        }
        sums
    }
}

/// The counts of all routes since the last batch, and those that the store has not acknowledged.
#[derive(Debug, Default)]
pub struct WeeklyCounts {
    routes: PerRoute<Arc<RouteCounts>>,
    waiting: Mutex<WaitingCounts>,
}

/// The counts that the store has not acknowledged, after so many batches that it has.
#[derive(Debug, Default)]
struct WaitingCounts {
    added: i64,
    counts: Vec<AddedCount>,
}

impl WeeklyCounts {
    /// Returns the counts of a route, for the code that counts to hold. Those of no route have an empty name.
    pub fn of(&self, route: &ServiceRoute) -> Arc<RouteCounts> {
        self.routes.of(route)
    }

    /// Adds to the store what was counted.
    ///
    /// # Errors
    /// The store's. The next call adds the same batch again.
    pub async fn write(&self, store: &Store, instance: InstanceId) -> Result<(), StoreError> {
        let mut waiting = self.waiting.lock().await;
        // The second time, what was counted since the store has failed.
        for _ in 0..2 {
            if waiting.counts.is_empty() {
                waiting.counts = self.take();
            }
            while !waiting.counts.is_empty() {
                let counts: Vec<_> = waiting.counts.iter().take(BATCH_MAX).cloned().collect();
                let (batch, added) = (waiting.added + 1, counts.len());
                store.add_weekly_counts(AddWeeklyCountsParams { instance, batch, counts }).await?;
                waiting.added = batch;
                waiting.counts.drain(..added);
            }
        }
        Ok(())
    }

    /// Keeps the counts of each route in the store few, one route after another.
    ///
    /// # Errors
    /// The store's. The routes that are left wait for the next tending.
    pub async fn tend(&self, store: &Store) -> Result<(), StoreError> {
        for ((service, route), counts) in self.routes.list() {
            counts.named.lock().clear();
            store.tend_weekly_counts(TendWeeklyCountsParams { service, route, callers_max: CALLERS_MAX }).await?;
        }
        Ok(())
    }

    fn take(&self) -> Vec<AddedCount> {
        let mut taken = Vec::new();
        for ((service, route), counts) in self.routes.list() {
            taken.extend(counts.take().into_iter().filter(|(_, count)| *count > 0).map(|((caller, kind), count)| {
                AddedCount {
                    service: Arc::clone(&service),
                    route: Arc::clone(&route),
                    caller: caller.to_string(),
                    kind: kind.name(),
                    count,
                }
            }));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_past_the_limit_are_counted_together_and_no_count_is_lost() {
        let weekly = WeeklyCounts::default();
        let counts = weekly.of(&("shop".into(), "pay".into()));
        for number in 0..1_000_u32 {
            let scope = Scope::from_stored(&[&number.to_be_bytes()[..], &[0; 28]].concat()).unwrap();
            counts.count(Some(&scope), WeeklyKind::Replay);
            counts.count(None, WeeklyKind::Unkeyed);
        }
        let taken = weekly.take();
        let of = |caller: &str, kind: &str| {
            taken
                .iter()
                .filter(|count| count.caller == caller && count.kind == kind)
                .map(|count| count.count)
                .sum::<u64>()
        };
        assert_eq!(of("0000000000000000", "replay"), 1);
        assert_eq!(of("none", "unkeyed"), 1_000);
        assert_eq!(of("others", "replay"), 1_000 - (PAIRS_MAX as u64 - 1));
        assert_eq!(taken.iter().map(|count| count.count).sum::<u64>(), 2_000);
        assert!(weekly.take().is_empty(), "what was taken is not there any more");
    }

    #[test]
    fn an_instance_names_no_more_callers_than_are_kept_and_those_with_the_highest_counts() {
        let weekly = WeeklyCounts::default();
        let counts = weekly.of(&("shop".into(), "pay".into()));
        let count = |numbers: std::ops::Range<u32>, times| {
            for number in numbers {
                let scope = Scope::from_stored(&[&number.to_be_bytes()[..], &[0; 28]].concat()).unwrap();
                (0..times).for_each(|_| counts.count(Some(&scope), WeeklyKind::Replay));
            }
            weekly.take().into_iter().map(|count| (count.caller, count.count)).collect::<HashMap<_, _>>()
        };
        assert_eq!(count(0..60, 1).len(), 60);
        let (later, others) = (count(1_000..1_090, 2), "others");
        assert_eq!((later.len(), later[others]), (41, 100), "40 more have a name");
        assert_eq!(count(0..60, 1).len(), 60, "who has a name keeps it");
        counts.named.lock().clear();
        assert_eq!(count(1_000..1_090, 1).len(), 90);
    }
}
