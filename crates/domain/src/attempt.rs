//! One attempt: the request to reserve it, the lease that it runs under, and its settlement.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::fingerprint::{Fingerprint, Recipe};
use super::ids::{InstanceId, RecordId, Token};
use super::key::Key;
use super::key_holder::KeyHolder;
use super::lookup::LookupHashes;
use super::part_bits::PartBits;
use super::record::{ExpectedRecord, Record};
use super::recovery::RecoveryPoint;
use super::response::StoredResponse;
use super::retry::DeliveryAttempt;
use super::scope::Scope;
use super::space::SpaceHash;
use super::state::{KeyState, StateKind};
use super::unknown_cause::UnknownCause;

/// A request to the store: reserve this key for this attempt, unless the key is taken.
#[derive(Clone, Debug)]
pub struct ReserveRequest {
    /// The hash of `service`, `scope`, `space` and `key`.
    pub id: RecordId,
    /// The service's name, which keeps services that share a store apart.
    pub service: Arc<str>,
    pub scope: Scope,
    /// The space in which the key is unique.
    pub space: SpaceHash,
    /// The client's name for the operation.
    pub key: Key,
    /// The part of the target that the record keeps, as [`kept_path`](super::kept_path) stores it.
    pub path: Option<Bytes>,
    /// The route's name, for operators and metrics.
    pub route: Arc<str>,
    pub recipe: Recipe,
    /// The request's fingerprint, by which retries are compared.
    pub fingerprint: Fingerprint,
    /// The bits of the parts that count in it, by which a refused retry is told where it differs.
    pub parts: Option<PartBits>,
    pub trace_id: Option<[u8; 16]>,
    /// The address that it comes from, where its route keeps that for operators.
    pub client_address: Option<IpAddr>,
    /// The values by which operators look the key up.
    pub lookups: Option<LookupHashes>,
    /// The instance whose lease the attempt would run under.
    pub instance: InstanceId,
    /// The attempt's token, if the reservation succeeds.
    pub token: Token,
    /// The attempt's time limit, from its reservation by the store's clock.
    pub time_limit: Duration,
    /// The party that the key counts for, where its route limits live keys. It never changes.
    pub holder: Option<KeyHolder>,
}

/// The store's answer to a [`ReserveRequest`].
#[derive(Debug)]
pub enum ReserveResult {
    /// The key was free and is now reserved, durably, for this attempt.
    Fresh(AttemptLease),
    Taken(Record),
}

impl ReserveResult {
    /// The result of a takeover from this record.
    pub fn taken_over_from(mut self, replaced: ReplacedRecord) -> Self {
        if let Self::Fresh(lease) = &mut self {
            lease.taken_from = Some(replaced);
        }
        self
    }
}

/// The record that a takeover or pick-up has replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplacedRecord {
    pub token: Token,
    /// Whether it was completed. A new life of the key began then, after the record's TTL.
    pub was_completed: bool,
}

impl From<&ExpectedRecord> for ReplacedRecord {
    fn from(expected: &ExpectedRecord) -> Self {
        let was_completed = matches!(expected.state, StateKind::Completed | StateKind::Expired);
        Self { token: expected.token, was_completed }
    }
}

/// The right to run one attempt. Not `Clone`, and ending the attempt consumes it: an attempt cannot be settled in two
/// ways.
#[derive(Debug)]
pub struct AttemptLease {
    /// The request that was granted; its token identifies the attempt.
    pub reserve_request: Arc<ReserveRequest>,
    /// The attempt's number, for people and for the upstream: 1 for the first.
    pub attempt: u32,
    /// The record that this attempt has replaced, which a store that loses the takeover has again; `None` for a key
    /// that had no record.
    pub taken_from: Option<ReplacedRecord>,
    /// The last recovery point that the service has reported for an earlier attempt.
    pub recovery_point: Option<RecoveryPoint>,
    /// The delivery that this attempt is, where the request was accepted for asynchronous delivery and no client waits.
    pub delivery: Option<DeliveryAttempt>,
}

impl AttemptLease {
    /// Settles with the whole response, which is replayed for `ttl`.
    pub fn complete(self, response: impl Into<Arc<StoredResponse>>, ttl: Duration) -> Settlement {
        self.end(AttemptOutcome::Completed { response: response.into(), ttl, remember: None })
    }

    /// Settles an attempt that is known not to have executed, or whose status is one to release; forgotten after `ttl`,
    /// at once if it is zero.
    pub fn release(self, ttl: Duration) -> Settlement {
        self.end(AttemptOutcome::Retryable { ttl })
    }

    /// Settles an attempt that may have executed.
    pub fn unknown(self, cause: UnknownCause) -> Settlement {
        self.end(AttemptOutcome::Unknown(cause))
    }

    pub fn end(self, outcome: AttemptOutcome) -> Settlement {
        Settlement {
            id: self.reserve_request.id,
            token: self.reserve_request.token,
            outcome,
            retry_in: None,
            lease: Some(Arc::new(self)),
        }
    }
}

/// The outcome of an attempt, to be written to the store. It may be written any number of times: the token makes it
/// idempotent.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub id: RecordId,
    pub token: Token,
    pub outcome: AttemptOutcome,
    /// The pause before the next delivery, where there is one: an accepted key is queued again where others are
    /// retryable.
    pub retry_in: Option<Duration>,
    /// The lease that the attempt ran under, from which a lost row is restored; `None` where only id and token are
    /// known.
    lease: Option<Arc<AttemptLease>>,
}

impl Settlement {
    /// Releases an orphaned reservation: it was stored after its request had given up, and nothing was sent.
    pub fn for_orphan(id: RecordId, token: Token, ttl: Duration) -> Self {
        Self { id, token, outcome: AttemptOutcome::Retryable { ttl }, retry_in: None, lease: None }
    }

    /// Marks an attempt unknown whose stored outcome a failover has lost: its row is in flight again, and the service
    /// may have acted.
    pub fn for_lost_outcome(id: RecordId, token: Token) -> Self {
        Self { id, token, outcome: AttemptOutcome::Unknown(UnknownCause::Store), retry_in: None, lease: None }
    }

    /// Settles an attempt by its service's own report.
    pub fn from_service(id: RecordId, token: Token, outcome: AttemptOutcome) -> Self {
        Self { id, token, outcome, retry_in: None, lease: None }
    }

    /// The request of an attempt that was not executed; `None` for any other, and where only id and token are known.
    pub fn unexecuted_request(&self) -> Option<&ReserveRequest> {
        match self.outcome {
            AttemptOutcome::Completed { .. } | AttemptOutcome::Unknown(_) => None,
            AttemptOutcome::Retryable { .. } => self.lease.as_deref().map(|lease| &*lease.reserve_request),
        }
    }

    /// The attempt whose row is to be written anew if the store has none. Either it had one before the first byte was
    /// sent, and a store without it has lost what it acknowledged; or there was no store to reserve in. `None` for a
    /// retryable outcome: such a key is as good as one that was never used, so nothing is lost with its row.
    pub fn lease_to_restore(&self) -> Option<&AttemptLease> {
        match self.outcome {
            AttemptOutcome::Completed { .. } | AttemptOutcome::Unknown(_) => self.lease.as_deref(),
            AttemptOutcome::Retryable { .. } => None,
        }
    }

    /// Whether the store has lost this attempt: it has no record of the key, or the one before the attempt's takeover.
    pub fn is_lost_from(&self, found: Option<&Record>) -> bool {
        self.lease_to_restore().is_some() && found.is_none_or(|found| self.repairs_lost_takeover(found))
    }

    /// Whether the record found is the one that this attempt's takeover had replaced: the store has lost the takeover,
    /// and no other attempt has begun since, because each replaces the token. The outcome then replaces the record
    /// again, where it would be restored without one. The end of the earlier attempt may be lost too.
    fn repairs_lost_takeover(&self, found: &Record) -> bool {
        // See docs/decisions/0002-repair-lost-rows.md.
        let Some(replaced) = self.lease_to_restore().and_then(|lease| lease.taken_from) else { return false };
        replaced.token == found.token
            && match found.state {
                KeyState::InFlight | KeyState::Queued | KeyState::Retryable | KeyState::Unknown => true,
                // A record that was completed only since the failover keeps its response.
                KeyState::Completed(_) | KeyState::Expired => replaced.was_completed,
                // Given up since the failover. As elsewhere, a response counts whatever the key has become.
                KeyState::Dead => matches!(self.outcome, AttemptOutcome::Completed { .. }),
            }
    }

    /// Whether the record has this outcome of this attempt. The service or an operator may have settled it otherwise.
    pub fn is_outcome_of(&self, record: &Record) -> bool {
        record.token == self.token
            && match (&self.outcome, &record.state) {
                (AttemptOutcome::Completed { response, .. }, KeyState::Completed(stored)) => {
                    stored.response == *response
                }
                (AttemptOutcome::Retryable { .. }, KeyState::Queued | KeyState::Retryable) => true,
                (AttemptOutcome::Unknown(_), KeyState::Unknown) => true,
                (
                    AttemptOutcome::Completed { .. } | AttemptOutcome::Retryable { .. } | AttemptOutcome::Unknown(_),
                    _,
                ) => false,
            }
    }

    pub fn with_retry_in(self, pause: Option<Duration>) -> Self {
        Self { retry_in: pause, ..self }
    }

    /// Sets how long a completed key is remembered past its TTL; other outcomes are left as they are.
    pub fn with_remember(mut self, time: Option<Duration>) -> Self {
        if let AttemptOutcome::Completed { remember, .. } = &mut self.outcome {
            *remember = time;
        }
        self
    }
}

#[derive(Clone, Debug)]
pub enum AttemptOutcome {
    /// Executed: replay `response` until `ttl` after the store has it.
    Completed {
        /// The upstream's response, shared with the store's call and the cache.
        response: Arc<StoredResponse>,
        /// From completion, by the store's clock.
        ttl: Duration,
        /// The time past the TTL for which the key is remembered, to refuse late retries; `None` to forget it.
        remember: Option<Duration>,
    },
    /// Not executed, or to be treated so: the next request becomes the next attempt.
    Retryable {
        /// From settlement, by the store's clock. Zero: the key is deleted at once, unless it has had earlier attempts,
        /// has a recovery point or was accepted for asynchronous delivery.
        ttl: Duration,
    },
    Unknown(UnknownCause),
}

impl AttemptOutcome {
    pub fn response_bytes(&self) -> usize {
        let Self::Completed { response, .. } = self else { return 0 };
        let fields = response.headers.iter().chain(&response.trailers);
        response.body.as_ref().map_or(0, Bytes::len)
            + fields.map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>()
    }

    /// Whether the key is forgotten at once, unless it was accepted for asynchronous delivery.
    pub fn forgets_key(&self) -> bool {
        matches!(self, Self::Retryable { ttl } if ttl.is_zero())
    }

    /// Whether the newest attempt's outcome may settle a key in this state. `is_accepted`: for asynchronous delivery.
    ///
    /// A response counts whatever the key has become meanwhile. Any other outcome undoes nothing that was decided
    /// since, by the service, a reconciler or an operator. The stores' statements have the same condition; the contract
    /// suite holds them to this table.
    // See docs/decisions/0001-settle-by-token.md.
    pub fn may_settle(&self, state: StateKind, is_accepted: bool) -> bool {
        match (self, state) {
            (_, StateKind::Completed | StateKind::Expired) => false,
            (Self::Completed { .. }, _) | (_, StateKind::InFlight) => true,
            (Self::Retryable { .. }, StateKind::Unknown) => true,
            (Self::Retryable { .. }, StateKind::Dead) => !is_accepted,
            (Self::Retryable { .. }, StateKind::Queued | StateKind::Retryable) | (Self::Unknown(_), _) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use http::header::{ETAG, TE};
    use http::{HeaderMap, HeaderValue, StatusCode};

    use super::super::fingerprint::FingerprintRules;
    use super::super::key::{KeyLimits, KeySyntax};
    use super::super::state::CompletedResponse;
    use super::*;

    /// A request to reserve the key `k`, with the token of `[3; 16]`.
    fn reserve_request() -> ReserveRequest {
        let scope = Scope::from_stored(&[1; 32]).unwrap();
        let space = SpaceHash::from_text("POST /payments");
        let key = Key::parse(b"k", KeySyntax::Ietf, KeyLimits { length_min: 1, length_max: 9 }).unwrap();
        ReserveRequest {
            id: RecordId::derive("shop", &scope, &space, &key),
            service: "shop".into(),
            scope,
            space,
            key,
            path: None,
            route: "pay".into(),
            recipe: Recipe::new(FingerprintRules::default(), None),
            fingerprint: Fingerprint::from_stored(&[2; 32]).unwrap(),
            trace_id: None,
            client_address: None,
            lookups: None,
            parts: None,
            instance: InstanceId::from_stored(1),
            token: Token::from_random([3; 16]),
            time_limit: Duration::from_millis(500),
            holder: None,
        }
    }

    fn lease(attempt: u32, taken_from: Option<ReplacedRecord>) -> AttemptLease {
        let reserve_request = Arc::new(reserve_request());
        AttemptLease { reserve_request, attempt, taken_from, recovery_point: None, delivery: None }
    }

    fn token(byte: u8) -> Token {
        Token::from_random([byte; 16])
    }

    fn response(body: &'static str) -> Arc<StoredResponse> {
        let (headers, trailers) = (HeaderMap::new(), HeaderMap::new());
        Arc::new(StoredResponse { status: StatusCode::CREATED, headers, body: Some(Bytes::from(body)), trailers })
    }

    fn completed(body: &'static str) -> KeyState {
        KeyState::Completed(CompletedResponse { response: response(body), expires_at: Some(SystemTime::UNIX_EPOCH) })
    }

    fn record(state: KeyState, token: Token) -> Record {
        Record {
            id: RecordId::from_stored(&[1; 32]).unwrap(),
            attempt: 1,
            token,
            recipe: Recipe::new(FingerprintRules::default(), None),
            fingerprint: Fingerprint::from_stored(&[3; 32]).unwrap(),
            running_for: Duration::ZERO,
            deadline_in_ms: 0,
            past_ttl: false,
            late: false,
            recovery_point: None,
            accepted_at: None,
            state,
            reading: None,
        }
    }

    #[test]
    fn a_record_has_an_outcome_only_of_its_own_attempt_and_with_its_own_response() {
        let end = |outcome| Settlement::from_service(RecordId::from_stored(&[1; 32]).unwrap(), token(2), outcome);
        let ttl = Duration::from_secs(60);
        let stored = || end(AttemptOutcome::Completed { response: response("a"), ttl, remember: None });
        let released = || end(AttemptOutcome::Retryable { ttl });
        let unknown = || end(AttemptOutcome::Unknown(UnknownCause::Broken));
        for (settlement, state, expected) in [
            (stored(), completed("a"), true),
            (stored(), completed("b"), false),
            (stored(), KeyState::Unknown, false),
            (stored(), KeyState::InFlight, false),
            (released(), KeyState::Retryable, true),
            // An accepted key is queued again.
            (released(), KeyState::Queued, true),
            (released(), completed("a"), false),
            (released(), KeyState::Unknown, false),
            (unknown(), KeyState::Unknown, true),
            (unknown(), KeyState::Retryable, false),
            (unknown(), KeyState::Dead, false),
            (unknown(), completed("a"), false),
        ] {
            let named = format!("{:?} and {:?}", settlement.outcome, state.name());
            assert_eq!(settlement.is_outcome_of(&record(state.clone(), token(2))), expected, "{named}");
            assert!(!settlement.is_outcome_of(&record(state, token(9))), "{named}, another attempt");
        }
    }

    #[test]
    fn a_response_counts_with_its_fields_and_trailers() {
        let mut response = Arc::unwrap_or_clone(response("abc"));
        response.headers.insert(ETAG, HeaderValue::from_static("\"1\""));
        response.trailers.insert(TE, HeaderValue::from_static("x"));
        let ttl = Duration::ZERO;
        let completed = |response| AttemptOutcome::Completed { response: Arc::new(response), ttl, remember: None };
        assert_eq!(completed(response.clone()).response_bytes(), 3 + (4 + 3) + (2 + 1));
        assert_eq!(completed(StoredResponse { body: None, ..response }).response_bytes(), 10);
        assert_eq!(AttemptOutcome::Retryable { ttl }.response_bytes(), 0);
        assert_eq!(AttemptOutcome::Unknown(UnknownCause::Broken).response_bytes(), 0);
    }

    #[test]
    fn a_lost_takeover_is_the_one_from_the_record_that_is_found_again() {
        let ttl = Duration::from_secs(1);
        let after = |was_completed| lease(2, Some(ReplacedRecord { token: token(7), was_completed }));
        let is_lost = |settlement: Settlement, found: &Record| settlement.is_lost_from(Some(found));
        for (state, from_incomplete) in [
            (KeyState::InFlight, true),
            (KeyState::Queued, true),
            (KeyState::Retryable, true),
            (KeyState::Unknown, true),
            (KeyState::Dead, true),
            (completed("b"), false),
            (KeyState::Expired, false),
        ] {
            let is_dead = matches!(state, KeyState::Dead);
            let found = record(state, token(7));
            for (was_completed, expected) in [(false, from_incomplete), (true, true)] {
                let completes = after(was_completed).complete(response("a"), ttl);
                assert_eq!(is_lost(completes, &found), expected, "{found:?}");
                let unknown = after(was_completed).unknown(UnknownCause::Broken);
                assert_eq!(is_lost(unknown, &found), expected && !is_dead, "{found:?}");
            }
            let later = Record { token: token(8), ..found };
            assert!(!is_lost(after(false).complete(response("a"), ttl), &later), "another attempt has begun since");
        }
        assert!(after(false).complete(response("a"), ttl).is_lost_from(None));
        let found = record(KeyState::Retryable, token(7));
        assert!(!after(false).release(ttl).is_lost_from(None), "nothing is lost with a retryable key");
        assert!(!lease(2, None).complete(response("a"), ttl).is_lost_from(Some(&found)), "nothing was taken over");
    }
}
