//! Decoding and encoding rows of the table `keys`, for both stores.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::domain::attempt::{AttemptLease, AttemptOutcome};
use crate::domain::fingerprint::{Fingerprint, Recipe};
use crate::domain::ids::{RecordId, Token};
use crate::domain::kept_path;
use crate::domain::probe::{ProbeSubject, ProbeVerdict, SettledKey};
use crate::domain::record::{Record, RecordReading};
use crate::domain::recovery::RecoveryPoint;
use crate::domain::response::{CorruptRow, StoredResponse};
use crate::domain::scope::Scope;
use crate::domain::state::{CompletedResponse, KeyState, StateKind};

/// The columns that `find.sql` selects, in its order; nothing of them is validated yet.
pub struct RawRecord<'a> {
    /// The 32 bytes of the id.
    pub id: &'a [u8],
    /// The newest attempt's number.
    pub attempt: i64,
    /// The newest attempt's token.
    pub token: &'a [u8],
    /// The fingerprint's recipe.
    pub recipe: &'a str,
    /// The fingerprint of the key's request.
    pub fingerprint: &'a [u8],
    /// The state's name.
    pub state: &'a str,
    /// The time since the reservation, in milliseconds.
    pub running_ms: i64,
    /// The time until the attempt's time limit, in milliseconds.
    pub deadline_in_ms: i64,
    /// Whether it is past its TTL.
    pub past_ttl: bool,
    /// Whether it is past its TTL and remembered to refuse late retries.
    pub late: bool,
    /// The time of the reading, in milliseconds since 1970, rounded up: what had ended by then has ended at it.
    pub now_ms: i64,
    /// The time since the state last changed, in milliseconds.
    pub settled_ms: Option<i64>,
    /// The recovery point of the key's attempts.
    pub recovery_point: Option<&'a str>,
    /// When the record lapses, in milliseconds since 1970.
    pub expires_at_ms: Option<i64>,
    /// When the key was accepted for asynchronous delivery, in milliseconds since 1970.
    pub accepted_at_ms: Option<i64>,
    /// The response's status.
    pub status: Option<i64>,
    /// The response's fields.
    pub fields: Option<&'a [u8]>,
    /// The response's body.
    pub body: Option<Bytes>,
}

/// A record, and when it lapses.
#[derive(Clone, Debug)]
pub struct FoundRecord {
    /// The record.
    pub record: Record,
    /// When the record lapses, where it has a TTL.
    pub expires_at: Option<SystemTime>,
}

/// The part of a row that does not decode where a later version has made its fingerprint in a new way.
pub const UNKNOWN_RECIPE: &str = "a recipe that this version does not know";

impl RawRecord<'_> {
    /// Decodes the row.
    ///
    /// # Errors
    /// [`CorruptRow`] names the part that does not decode.
    pub fn decode(self) -> Result<FoundRecord, CorruptRow> {
        let expires_at = self.expires_at_ms.map(time).transpose()?;
        let state =
            match (StateKind::parse(self.state).ok_or(CorruptRow("state"))?, self.status, self.fields, expires_at) {
                (StateKind::Completed, Some(status), Some(fields), expires_at @ Some(_)) => {
                    let status = i16::try_from(status).map_err(|_| CorruptRow("status"))?;
                    let fields = Bytes::copy_from_slice(fields);
                    KeyState::Completed(CompletedResponse {
                        response: Arc::new(StoredResponse::decode(status, &fields, self.body)?),
                        expires_at,
                    })
                }
                (StateKind::Completed, ..) => return Err(CorruptRow("a completed record without its response")),
                (StateKind::Dead, ..) => KeyState::Dead,
                (StateKind::Expired, ..) => KeyState::Expired,
                (StateKind::InFlight, ..) => KeyState::InFlight,
                (StateKind::Queued, ..) => KeyState::Queued,
                (StateKind::Retryable, ..) => KeyState::Retryable,
                (StateKind::Unknown, ..) => KeyState::Unknown,
            };
        let record = Record {
            id: RecordId::from_stored(self.id).ok_or(CorruptRow("id"))?,
            attempt: attempts(self.attempt)?,
            token: Token::from_stored(self.token).ok_or(CorruptRow("token"))?,
            recipe: Recipe::from_stored(self.recipe).ok_or(CorruptRow(UNKNOWN_RECIPE))?,
            fingerprint: Fingerprint::from_stored(self.fingerprint).ok_or(CorruptRow("fingerprint"))?,
            running_for: Duration::from_millis(self.running_ms.max(0).cast_unsigned()),
            deadline_in_ms: self.deadline_in_ms,
            past_ttl: self.past_ttl,
            late: self.late,
            recovery_point: recovery_point(self.recovery_point)?,
            accepted_at: self.accepted_at_ms.map(time).transpose()?,
            state,
            reading: Some(RecordReading {
                at: time(self.now_ms)?,
                settled_for: Duration::from_millis(self.settled_ms.unwrap_or_default().max(0).cast_unsigned()),
            }),
        };
        Ok(FoundRecord { record, expires_at })
    }
}

/// Decodes an attempt's number.
///
/// # Errors
/// [`CorruptRow`] where it is not a number from 1 on.
pub fn attempt(number: i64) -> Result<u32, CorruptRow> {
    u32::try_from(number).ok().filter(|number| *number >= 1).ok_or(CorruptRow("attempt"))
}

/// Decodes a recovery point.
///
/// # Errors
/// [`CorruptRow`] where it is not a valid one.
pub fn recovery_point(name: Option<&str>) -> Result<Option<RecoveryPoint>, CorruptRow> {
    name.map(|name| RecoveryPoint::parse(name).ok_or(CorruptRow("a recovery point"))).transpose()
}

/// Decodes the number of attempts; 0 where a key was accepted and waits.
///
/// # Errors
/// [`CorruptRow`] where the number is out of range.
pub fn attempts(number: i64) -> Result<u32, CorruptRow> {
    u32::try_from(number).map_err(|_| CorruptRow("attempt"))
}

/// Decodes a time: milliseconds since 1970.
///
/// # Errors
/// [`CorruptRow`] where the number is out of range.
pub fn time(since_1970_ms: i64) -> Result<SystemTime, CorruptRow> {
    u64::try_from(since_1970_ms)
        .ok()
        .and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)))
        .ok_or(CorruptRow("a time"))
}

/// The time when an attempt's key was accepted for asynchronous delivery, if it was, in milliseconds since 1970.
pub fn accepted_ms(lease: &AttemptLease) -> Option<i64> {
    lease.delivery.map(|delivery| since_1970_ms(delivery.accepted_at))
}

/// A time in milliseconds since 1970.
pub fn since_1970_ms(time: SystemTime) -> i64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A duration in milliseconds, at most a thousand years: adding more to a time overflows in PostgreSQL, and an overflow
/// would look like a fault.
pub fn millis(duration: Duration) -> i64 {
    const MAX: i64 = 1000 * 365 * 24 * 60 * 60 * 1000;
    i64::try_from(duration.as_millis()).unwrap_or(MAX).min(MAX)
}

/// The name of the state that an outcome leads to.
pub fn state_after(outcome: &AttemptOutcome) -> &'static str {
    match outcome {
        AttemptOutcome::Completed { .. } => StateKind::Completed.name(),
        AttemptOutcome::Retryable { .. } => StateKind::Retryable.name(),
        AttemptOutcome::Unknown(_) => StateKind::Unknown.name(),
    }
}

/// The columns of an attempt's outcome.
pub struct OutcomeColumns<'a> {
    /// The TTL in milliseconds, where the state has one.
    pub ttl_ms: Option<i64>,
    /// The time past its TTL for which the key is remembered, in milliseconds.
    pub remember_ms: Option<i64>,
    /// The response's status.
    pub status: Option<i16>,
    /// The response's fields.
    pub fields: Option<Vec<u8>>,
    /// The response's body.
    pub body: Option<&'a [u8]>,
    /// The cause of an unknown outcome.
    pub cause: Option<String>,
}

impl<'a> OutcomeColumns<'a> {
    /// The columns for this outcome.
    pub fn from_outcome(outcome: &'a AttemptOutcome) -> Self {
        let nothing = Self { ttl_ms: None, remember_ms: None, status: None, fields: None, body: None, cause: None };
        match outcome {
            AttemptOutcome::Completed { response, ttl, remember } => Self {
                ttl_ms: Some(millis(*ttl)),
                remember_ms: remember.map(millis),
                status: Some(response.status.as_u16().cast_signed()),
                fields: Some(response.encode_fields()),
                body: response.body.as_deref(),
                cause: None,
            },
            AttemptOutcome::Retryable { ttl } => Self { ttl_ms: Some(millis(*ttl)), ..nothing },
            AttemptOutcome::Unknown(cause) => Self { cause: Some(cause.to_string()), ..nothing },
        }
    }
}

/// The size of an outcome: its response's body. The fields are small beside a body that is worth counting.
pub fn body_bytes(outcome: &AttemptOutcome) -> usize {
    match outcome {
        AttemptOutcome::Completed { response, .. } => response.body.as_ref().map_or(0, Bytes::len),
        AttemptOutcome::Retryable { .. } | AttemptOutcome::Unknown(_) => 0,
    }
}

/// The size of a reconciler's verdict: its response's body.
pub fn verdict_bytes(verdict: &ProbeVerdict) -> usize {
    match verdict {
        ProbeVerdict::Completed { response, .. } => response.body.as_ref().map_or(0, Bytes::len),
        ProbeVerdict::Dead | ProbeVerdict::Open { .. } | ProbeVerdict::Retryable { .. } => 0,
    }
}

/// The columns of a reconciler's verdict.
pub struct VerdictColumns<'a> {
    /// The new state's name.
    pub state: &'static str,
    /// The action's name in the audit log.
    pub action: &'static str,
    /// The number of times in a row that the service knew of no such request; `None` leaves the column unchanged.
    pub absences: Option<i32>,
    /// The TTL from now on, in milliseconds.
    pub ttl_ms: Option<i64>,
    /// The time past its TTL for which the key is remembered, in milliseconds.
    pub remember_ms: Option<i64>,
    /// The response, where the verdict has one.
    pub response: Option<&'a StoredResponse>,
}

impl<'a> From<&'a ProbeVerdict> for VerdictColumns<'a> {
    fn from(verdict: &'a ProbeVerdict) -> Self {
        let state = verdict.state().name();
        let plain = Self { state, action: "resolve", absences: None, ttl_ms: None, remember_ms: None, response: None };
        match verdict {
            ProbeVerdict::Completed { response, ttl, remember } => Self {
                ttl_ms: Some(millis(*ttl)),
                remember_ms: remember.map(millis),
                response: Some(response),
                ..plain
            },
            ProbeVerdict::Dead => Self { action: "give_up", ..plain },
            ProbeVerdict::Open { absences } => {
                Self { absences: Some(i32::try_from(*absences).unwrap_or(i32::MAX)), ..plain }
            }
            ProbeVerdict::Retryable { ttl } => Self { ttl_ms: Some(millis(*ttl)), ..plain },
        }
    }
}

/// The columns of a probe's subject; nothing of them is validated yet.
pub struct SubjectColumns<'a> {
    /// The 32 bytes of the id.
    pub id: &'a [u8],
    /// The newest attempt's token.
    pub token: &'a [u8],
    /// The caller's scope.
    pub scope: &'a [u8],
    /// The key.
    pub key: &'a [u8],
    /// The route's name.
    pub route: &'a str,
    /// The kept path, where one is stored.
    pub path: Option<&'a [u8]>,
}

impl SubjectColumns<'_> {
    /// Decodes the subject.
    ///
    /// # Errors
    /// [`CorruptRow`] names the part that does not decode.
    pub fn decode(self) -> Result<ProbeSubject, CorruptRow> {
        Ok(ProbeSubject {
            id: RecordId::from_stored(self.id).ok_or(CorruptRow("id"))?,
            token: Token::from_stored(self.token).ok_or(CorruptRow("token"))?,
            scope: Scope::from_stored(self.scope).ok_or(CorruptRow("scope"))?,
            key: Bytes::copy_from_slice(self.key),
            route: self.route.into(),
            path: self.path.and_then(kept_path::whole_target).map(Bytes::copy_from_slice),
        })
    }

    /// Decodes the key with its settled state.
    ///
    /// # Errors
    /// [`CorruptRow`] names the part that does not decode.
    pub fn settled(self, state: &str, status: Option<i64>) -> Result<SettledKey, CorruptRow> {
        let state = StateKind::parse(state);
        let status = status.map(|status| u16::try_from(status).map_err(|_| CorruptRow("status"))).transpose()?;
        Ok(SettledKey { subject: self.decode()?, state: state.ok_or(CorruptRow("state"))?, status })
    }
}

/// Decodes a count.
///
/// # Errors
/// [`CorruptRow`] where the number is out of range.
pub fn count(number: i64) -> Result<u32, CorruptRow> {
    u32::try_from(number).map_err(|_| CorruptRow("a count"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed() -> RawRecord<'static> {
        RawRecord {
            id: &[1; 32],
            attempt: 1,
            token: &[2; 16],
            recipe: "1",
            fingerprint: &[3; 32],
            state: "completed",
            running_ms: 5,
            deadline_in_ms: -5,
            past_ttl: false,
            late: false,
            now_ms: 6,
            settled_ms: Some(2),
            recovery_point: None,
            expires_at_ms: Some(7),
            accepted_at_ms: None,
            status: Some(201),
            fields: Some(b"\r\n"),
            body: None,
        }
    }

    #[test]
    fn a_row_decodes_or_names_its_corrupt_part() {
        let found = completed().decode().unwrap();
        assert_eq!(found.expires_at, Some(UNIX_EPOCH + Duration::from_millis(7)));
        let reading = found.record.reading.unwrap();
        assert_eq!((reading.at, reading.settled_for.as_millis()), (UNIX_EPOCH + Duration::from_millis(6), 2));
        assert!(matches!(found.record.state, KeyState::Completed(stored) if stored.response.status == 201));
        for (row, why) in [
            (RawRecord { id: &[1; 31], ..completed() }, "id"),
            (RawRecord { attempt: -1, ..completed() }, "attempt"),
            (RawRecord { attempt: 1 << 32, ..completed() }, "attempt"),
            (RawRecord { token: &[], ..completed() }, "token"),
            (RawRecord { recipe: "2", ..completed() }, UNKNOWN_RECIPE),
            (RawRecord { fingerprint: &[3; 33], ..completed() }, "fingerprint"),
            (RawRecord { state: "done", ..completed() }, "state"),
            (RawRecord { recovery_point: Some("a\nb"), ..completed() }, "a recovery point"),
            (RawRecord { now_ms: -1, ..completed() }, "a time"),
            (RawRecord { status: Some(1 << 20), ..completed() }, "status"),
            (RawRecord { status: Some(100), ..completed() }, "status"),
            (RawRecord { status: None, ..completed() }, "a completed record without its response"),
            (RawRecord { fields: None, ..completed() }, "a completed record without its response"),
            (RawRecord { expires_at_ms: None, ..completed() }, "a completed record without its response"),
            (RawRecord { expires_at_ms: Some(-1), ..completed() }, "a time"),
            (RawRecord { fields: Some(b"x"), ..completed() }, "a field line without an end"),
        ] {
            assert_eq!(row.decode().unwrap_err(), CorruptRow(why));
        }
    }

    #[test]
    fn the_longest_duration_is_a_thousand_years() {
        assert_eq!(millis(Duration::from_millis(1)), 1);
        assert_eq!(millis(Duration::MAX), millis(Duration::from_secs(1000 * 365 * 24 * 60 * 60)));
    }

    #[test]
    fn an_outcome_and_a_verdict_are_as_large_as_their_bodies() {
        let (headers, trailers) = (http::HeaderMap::new(), http::HeaderMap::new());
        let body = Some(Bytes::from_static(b"abc"));
        let response = Arc::new(StoredResponse { status: http::StatusCode::OK, headers, body, trailers });
        let ttl = Duration::ZERO;
        let of_verdict = ProbeVerdict::Completed { response: Arc::clone(&response), ttl, remember: None };
        assert_eq!(verdict_bytes(&of_verdict), 3);
        assert_eq!(verdict_bytes(&ProbeVerdict::Dead), 0);
        assert_eq!(body_bytes(&AttemptOutcome::Completed { response, ttl, remember: None }), 3);
        assert_eq!(body_bytes(&AttemptOutcome::Retryable { ttl }), 0);
    }
}
