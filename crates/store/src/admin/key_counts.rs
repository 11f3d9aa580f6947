//! The numbers of keys, by route and state.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::SCAN_ROWS_MAX;
use crate::row::RowReader;
use oncegate_domain::ids::RecordId;
use oncegate_domain::response::CorruptRow;
use oncegate_domain::state::StateKind;

/// The numbers of keys, by route and state.
///
/// Keys in flight, queued, unknown or dead are counted by their indexes, up to [`COUNTED_MAX`] rows of each state. For
/// the other states the first [`SCAN_ROWS_MAX`] rows in the order of ids are counted: ids are hashes, so these rows are
/// a fair sample, and the last id gives the sample's share of the table. A table with no more rows is counted exactly.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct KeyCounts {
    pub counts: Vec<KeyCount>,
    pub sample: CountSample,
}

/// A sample of the table.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct CountSample {
    /// The number of rows in it, of all services.
    pub rows: u64,
    /// Its share of the table, from 0 to 1; 1 where it is the whole table.
    pub share: f64,
}

/// The number of keys of a route in a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KeyCount {
    pub route: String,
    pub state: StateKind,
    pub keys: u64,
    /// Whether the number was counted, and not estimated or cut off.
    pub exact: bool,
}

/// The most unsettled keys of one state that are counted.
// See docs/decisions/0014-index-what-upkeep-asks.md.
pub const COUNTED_MAX: u32 = 100_000;

#[derive(Default)]
pub(crate) struct RowCounts {
    unsettled: Vec<KeyCount>,
    settled: Vec<KeyCount>,
    /// The rows that were read for the settled ones, and the id of the last.
    sampled: u64,
    last: Option<RecordId>,
}

fn read_count(row: &impl RowReader) -> Result<KeyCount, CorruptRow> {
    Ok(KeyCount { route: row.read("route")?, state: row.read("state")?, keys: row.read("rows")?, exact: true })
}

impl RowCounts {
    pub(crate) fn add_unsettled(&mut self, row: &impl RowReader) -> Result<(), CorruptRow> {
        self.unsettled.push(read_count(row)?);
        Ok(())
    }

    pub(crate) fn add_settled(&mut self, row: &impl RowReader) -> Result<(), CorruptRow> {
        (self.sampled, self.last) = (row.read("scanned")?, row.read("last")?);
        // A sample without settled keys has a row for its end.
        if row.read::<Option<String>>("route")?.is_some() {
            self.settled.push(read_count(row)?);
        }
        Ok(())
    }
}

impl From<RowCounts> for KeyCounts {
    fn from(RowCounts { mut unsettled, settled, sampled, last }: RowCounts) -> Self {
        let is_complete = sampled < u64::from(SCAN_ROWS_MAX);
        let share = match last {
            Some(last) if !is_complete => {
                let head = u64::from_be_bytes(last.as_bytes()[..8].try_into().unwrap_or([0xff; 8]));
                (head as f64 + 1.0) / (u64::MAX as f64)
            }
            _ => 1.0,
        };
        let mut keys_of_state = BTreeMap::<StateKind, u64>::new();
        unsettled.iter().for_each(|count| *keys_of_state.entry(count.state).or_default() += count.keys);
        unsettled.iter_mut().for_each(|count| count.exact = keys_of_state[&count.state] < u64::from(COUNTED_MAX));
        let estimated = settled.into_iter().map(|count| {
            let keys = (count.keys as f64 / share).round() as u64;
            KeyCount { keys, exact: is_complete, ..count }
        });
        let mut counts: Vec<_> = unsettled.into_iter().chain(estimated).collect();
        counts.sort_by(|one, other| (&one.route, one.state).cmp(&(&other.route, other.state)));
        Self { counts, sample: CountSample { rows: sampled, share } }
    }
}

/// Keys that wait for something, of a route that is not configured any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KeysWithoutRoute {
    pub route: String,
    pub keys: BTreeMap<StateKind, u64>,
}

impl KeyCounts {
    /// The unsettled keys of each route for which `is_configured` is false, in the order of the names.
    pub fn list_without_route(&self, is_configured: impl Fn(&str) -> bool) -> Vec<KeysWithoutRoute> {
        let mut found = BTreeMap::<&str, BTreeMap<StateKind, u64>>::new();
        for KeyCount { route, state, keys, .. } in &self.counts {
            let waits = match state {
                StateKind::Dead | StateKind::InFlight | StateKind::Queued | StateKind::Unknown => true,
                StateKind::Completed | StateKind::Expired | StateKind::Retryable => false,
            };
            if waits && !is_configured(route) {
                found.entry(route).or_default().insert(*state, *keys);
            }
        }
        found.into_iter().map(|(route, keys)| KeysWithoutRoute { route: route.to_owned(), keys }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(route: &str, state: StateKind, keys: u64) -> KeyCount {
        KeyCount { route: route.into(), state, keys, exact: true }
    }

    #[test]
    fn a_samples_last_id_gives_its_share_of_the_table() {
        let last = |first: u8| {
            let mut id = [0xff; 32];
            id[0] = first;
            RecordId::from_stored(&id)
        };
        let scanned = u64::from(SCAN_ROWS_MAX);
        // The sample ends after a sixteenth of all hashes.
        let counts = |sampled| {
            let settled = vec![count("pay", StateKind::Completed, 5_000)];
            KeyCounts::from(RowCounts { unsettled: Vec::new(), settled, sampled, last: last(0x0f) })
        };
        let (counts, of_all) = (counts(scanned), counts(scanned - 1));
        assert_eq!((counts.counts[0].keys, counts.counts[0].exact), (80_000, false));
        assert_eq!((of_all.counts[0].keys, of_all.counts[0].exact, of_all.sample.share as u64), (5_000, true, 1));
    }

    #[test]
    fn only_unsettled_keys_of_routes_that_are_gone_are_listed() {
        let counts = vec![
            count("gone", StateKind::Completed, 9),
            count("gone", StateKind::Queued, 2),
            count("gone", StateKind::Unknown, 1),
            count("here", StateKind::Dead, 1),
            count("settled", StateKind::Retryable, 1),
        ];
        let counts = KeyCounts { counts, sample: CountSample { rows: 0, share: 1.0 } };
        let found = counts.list_without_route(|route| route == "here");
        let keys = BTreeMap::from([(StateKind::Queued, 2), (StateKind::Unknown, 1)]);
        assert_eq!(found, [KeysWithoutRoute { route: "gone".into(), keys }]);
    }
}
