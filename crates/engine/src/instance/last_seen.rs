//! The records of keys without a cached response, as this instance has last seen them: during an outage of the store, a
//! bypass must not execute what they forbid.
//!
//! They are answers for the time without a store alone. With a store they decide nothing, so that an old one does no
//! harm.

use std::sync::Arc;

use http::HeaderMap;
use quick_cache::sync::Cache as Table;

use super::boot_time::BootInstant;
use oncegate_domain::ids::RecordId;
use oncegate_domain::record::{Record, RecordReading};
use oncegate_domain::response::StoredResponse;
use oncegate_domain::state::{CompletedResponse, KeyState};

/// The number of records that are kept, the most used and the latest ones: 12 to 20 MiB. Unknown, dead and expired keys
/// are rare. Keys in flight, queued or reused come with the traffic of duplicates.
const RECORDS_MAX: usize = 32 * 1024;

/// The records, by key.
#[derive(Debug)]
pub struct LastSeenRecords(Table<RecordId, Arc<SeenRecord>>);

#[derive(Debug)]
struct SeenRecord {
    record: Record,
    seen_at: BootInstant,
}

impl Default for LastSeenRecords {
    fn default() -> Self {
        Self(Table::new(RECORDS_MAX))
    }
}

impl LastSeenRecords {
    /// Notes a record that the store has at this moment. A retryable one forbids nothing, and is forgotten. Of a
    /// completed one the response is left out.
    pub fn note(&self, record: &Record) {
        let state = match &record.state {
            KeyState::Retryable => return self.forget(&record.id),
            KeyState::Completed(completed) => KeyState::Completed(CompletedResponse {
                response: Arc::new(StoredResponse {
                    status: completed.response.status,
                    headers: HeaderMap::new(),
                    body: None,
                    trailers: HeaderMap::new(),
                }),
                expires_at: completed.expires_at,
            }),
            other => other.clone(),
        };
        let record = Record { state, ..record.clone() };
        self.0.insert(record.id, Arc::new(SeenRecord { record, seen_at: BootInstant::now() }));
    }

    /// Forgets the key's record.
    pub fn forget(&self, id: &RecordId) {
        self.0.remove(id);
    }

    /// The key's record with its times as they are now, by this instance's own clock; a completed one has no response.
    pub fn find(&self, id: &RecordId) -> Option<Record> {
        let seen = self.0.get(id)?;
        let (record, passed) = (seen.record.clone(), seen.seen_at.elapsed());
        Some(Record {
            running_for: record.running_for + passed,
            deadline_in_ms: record.deadline_in_ms.saturating_sub(i64::try_from(passed.as_millis()).unwrap_or(i64::MAX)),
            reading: record.reading.map(|reading| RecordReading {
                at: reading.at + passed,
                settled_for: reading.settled_for + passed,
                ..reading
            }),
            ..record
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use bytes::Bytes;
    use http::StatusCode;

    use super::*;
    use oncegate_domain::fingerprint::{Fingerprint, FingerprintRules, Recipe};
    use oncegate_domain::ids::Token;

    fn record(state: KeyState) -> Record {
        Record {
            id: RecordId::from_stored(&[1; 32]).unwrap(),
            attempt: 1,
            token: Token::from_random([2; 16]),
            recipe: Recipe::new(FingerprintRules::default(), None),
            fingerprint: Fingerprint::from_stored(&[3; 32]).unwrap(),
            running_for: Duration::from_secs(7),
            deadline_in_ms: 1_000_000,
            past_ttl: false,
            late: false,
            recovery_point: None,
            accepted_at: None,
            state,
            reading: None,
        }
    }

    #[test]
    fn the_state_that_was_seen_last_is_found_until_the_key_may_be_executed() {
        let seen = LastSeenRecords::default();
        let id = record(KeyState::Unknown).id;
        let kind = || seen.find(&id).map(|record| record.state.name());
        assert_eq!(kind(), None);
        for state in [KeyState::InFlight, KeyState::Unknown, KeyState::Dead, KeyState::Expired, KeyState::Queued] {
            seen.note(&record(state.clone()));
            assert_eq!(kind(), Some(state.name()));
        }
        seen.note(&record(KeyState::Retryable));
        assert_eq!(kind(), None);
    }

    #[test]
    fn a_completed_key_is_remembered_without_its_response_and_times_pass() {
        let seen = LastSeenRecords::default();
        let response = Arc::new(StoredResponse {
            status: StatusCode::CREATED,
            headers: HeaderMap::new(),
            body: Some(Bytes::from_static(b"paid")),
            trailers: HeaderMap::new(),
        });
        let expires_at = Some(SystemTime::UNIX_EPOCH);
        let noted = record(KeyState::Completed(CompletedResponse { response, expires_at }));
        seen.note(&noted);
        let found = seen.find(&noted.id).unwrap();
        let KeyState::Completed(completed) = &found.state else { panic!("{found:?}") };
        assert_eq!((completed.response.body.as_ref(), completed.response.status), (None, StatusCode::CREATED));
        let passed = found.running_for - noted.running_for;
        assert_eq!(found.deadline_in_ms, noted.deadline_in_ms - passed.as_millis() as i64);
    }
}
