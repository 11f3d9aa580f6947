//! Equal requests of one caller under different keys: a client that makes a new key for each retry has executed twice.
//!
//! An instance remembers the requests that it has started itself, in bounded memory. It sees nothing of other
//! instances, and nothing from before its start.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;

use super::boot_time::BootInstant;
use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::ids::RecordId;

/// The requests that are remembered, about 130 bytes each: 4 MiB, and as much for observed ones. At 54 new keys a
/// second that is ten minutes.
const REQUESTS_MAX: usize = 32_768;

/// The pairs that are kept for the page.
const PAIRS_MAX: usize = 20;

/// The requests with new keys that this instance has started lately.
#[derive(Debug, Default)]
pub struct SameBodies {
    /// By service. Observed requests have a service of their own: none of them is an earlier one of a guarded request,
    /// and none takes the place of one.
    tables: Mutex<HashMap<Arc<str>, RequestTable>>,
    pairs: Mutex<VecDeque<SameBodyPair>>,
}

/// Two records of one caller for the same request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SameBodyPair {
    /// The route.
    pub route: Arc<str>,
    /// The earlier record.
    pub first: RecordId,
    /// The later one.
    pub second: RecordId,
}

/// The last record of each request, by caller and fingerprint, and the order in which they came.
#[derive(Debug, Default)]
struct RequestTable {
    records: HashMap<u128, RequestUse>,
    order: VecDeque<(u128, RecordId)>,
}

#[derive(Clone, Copy, Debug)]
struct RequestUse {
    record: RecordId,
    at: BootInstant,
}

/// A request, as its equals under other keys are found by it.
#[derive(Clone, Debug)]
pub struct SameRequest {
    service: Arc<str>,
    /// The caller and the request in one number. Both are hashes; nobody can choose the caller's.
    subject: u128,
    record: RecordId,
}

impl From<&ReserveRequest> for SameRequest {
    fn from(request: &ReserveRequest) -> Self {
        let half = |bytes: &[u8; 32]| bytes.first_chunk().map_or(0, |half| u128::from_le_bytes(*half));
        let (scope, fingerprint) = (half(request.scope.as_bytes()), half(request.fingerprint.as_bytes()));
        let subject = scope ^ fingerprint.rotate_left(1);
        Self { service: Arc::clone(&request.service), subject, record: request.id }
    }
}

/// The result of noting a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierUse {
    /// This request is remembered: no other key had the same one within the window.
    None,
    /// It was remembered before, under the same key.
    Own,
    /// Another key of the caller has it, whose record this is.
    Other(RecordId),
}

impl SameBodies {
    /// Finds the record of another key that the caller has used for the same request within the window; else remembers
    /// this one.
    pub fn find_or_note(&self, request: &SameRequest, window: Duration) -> EarlierUse {
        let now = BootInstant::now();
        let mut tables = self.tables.lock();
        let table = tables.entry(Arc::clone(&request.service)).or_default();
        match table.records.get(&request.subject) {
            Some(earlier) if earlier.record == request.record => EarlierUse::Own,
            Some(earlier) if now.since(earlier.at) <= window => EarlierUse::Other(earlier.record),
            Some(_) | None => {
                table.insert(request.subject, RequestUse { record: request.record, at: now }, REQUESTS_MAX);
                EarlierUse::None
            }
        }
    }

    /// Remembers this request in place of the one of another key.
    pub fn replace(&self, request: &SameRequest) {
        let used = RequestUse { record: request.record, at: BootInstant::now() };
        self.tables.lock().entry(Arc::clone(&request.service)).or_default().insert(request.subject, used, REQUESTS_MAX);
    }

    /// Forgets a request: it was not executed.
    pub fn forget(&self, request: &SameRequest) {
        let mut tables = self.tables.lock();
        let Some(table) = tables.get_mut(&request.service) else { return };
        if table.records.get(&request.subject).is_some_and(|known| known.record == request.record) {
            table.records.remove(&request.subject);
        }
    }

    /// Keeps a pair for the page.
    pub fn keep(&self, pair: SameBodyPair) {
        let mut pairs = self.pairs.lock();
        if pairs.len() == PAIRS_MAX {
            pairs.pop_back();
        }
        pairs.push_front(pair);
    }

    /// The last pairs, the newest first.
    pub fn pairs(&self) -> Vec<SameBodyPair> {
        self.pairs.lock().iter().cloned().collect()
    }
}

impl RequestTable {
    /// Adds a request. If the table is full, the oldest ones leave.
    fn insert(&mut self, subject: u128, used: RequestUse, requests_max: usize) {
        self.records.insert(subject, used);
        self.order.push_back((subject, used.record));
        while self.order.len() > requests_max {
            let Some((oldest, record)) = self.order.pop_front() else { break };
            // It may have been replaced since.
            if self.records.get(&oldest).is_some_and(|known| known.record == record) {
                self.records.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn record(number: u64) -> RecordId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        RecordId::from_stored(&bytes).unwrap()
    }

    #[test]
    fn a_full_table_loses_its_oldest_requests_and_no_newer_one_in_their_place() {
        let mut table = RequestTable::default();
        let used = |number| RequestUse { record: record(number), at: BootInstant::now() };
        for (subject, number) in [(1, 1), (2, 2), (1, 3)] {
            table.insert(subject, used(number), 3);
        }
        table.insert(3, used(4), 3);
        assert_eq!(
            (table.records.len(), table.records[&1].record),
            (3, record(3)),
            "its first use has left, and not its last"
        );
        table.insert(4, used(5), 3);
        let mut kept: Vec<_> = table.records.keys().copied().collect();
        kept.sort_unstable();
        assert_eq!((kept, table.order.len()), (vec![1, 3, 4], 3));
    }

    /// The time of a lookup in a full table, with a new request for each. `cargo test --release -- --ignored
    /// --nocapture` prints it.
    #[test]
    #[ignore = "a measurement: it prints its figure"]
    fn measure_the_cost_of_a_lookup() {
        const LOOKUPS: u64 = 1_000_000;
        let mut table = RequestTable::default();
        let mut subject = 0x9e37_79b9_7f4a_7c15_u128;
        let began = Instant::now();
        for number in 0..LOOKUPS {
            subject =
                subject.wrapping_mul(0x2545_f491_4f6c_dd1d_2545_f491_4f6c_dd1d).rotate_left(17) ^ u128::from(number);
            let now = BootInstant::now();
            assert!(!table.records.contains_key(&subject));
            table.insert(subject, RequestUse { record: record(number), at: now }, REQUESTS_MAX);
        }
        println!("{:?} for each lookup", began.elapsed() / u32::try_from(LOOKUPS).unwrap());
    }
}
