//! A row of the table `keys`, understood: the one decoder of both stores.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::domain::attempt::{Ending, Lease, Token};
use crate::domain::fingerprint::{Fingerprint, Recipe};
use crate::domain::probe::{Kept, Subject, Verdict};
use crate::domain::record::{Completed, Record, RecordId, State};
use crate::domain::recovery::RecoveryPoint;
use crate::domain::response::{Corrupt, StoredResponse};
use crate::domain::scope::Scope;

/// What `find` selects, in its order, as it comes from the store: nothing of it is believed yet.
pub struct Row<'a> {
    /// The 32 bytes of the id.
    pub id: &'a [u8],
    /// The newest attempt's number.
    pub attempt: i64,
    /// The newest attempt's token.
    pub token: &'a [u8],
    /// How the fingerprint was made.
    pub recipe: &'a str,
    /// What the key was first used for.
    pub fingerprint: &'a [u8],
    /// The state's name.
    pub state: &'a str,
    /// Since its reservation.
    pub running_ms: i64,
    /// Until its time limit.
    pub deadline_in_ms: i64,
    /// Whether it is past its TTL.
    pub past_ttl: bool,
    /// Whether it is past its TTL and remembered to refuse late retries.
    pub late: bool,
    /// How far its attempts have come.
    pub recovery_point: Option<&'a str>,
    /// When it will be forgotten, since 1970.
    pub expires_at_ms: Option<i64>,
    /// When it was accepted for asynchronous delivery, since 1970.
    pub accepted_at_ms: Option<i64>,
    /// The response's status.
    pub status: Option<i64>,
    /// The response's fields.
    pub fields: Option<&'a [u8]>,
    /// The response's body.
    pub body: Option<Bytes>,
}

/// A record, and when it will be forgotten.
#[derive(Clone, Debug)]
pub struct Found {
    /// The record.
    pub record: Record,
    /// Where it has a TTL.
    pub expires_at: Option<SystemTime>,
}

impl Row<'_> {
    /// The record that the row stands for.
    ///
    /// # Errors
    /// [`Corrupt`] says which part does not decode.
    pub fn decode(self) -> Result<Found, Corrupt> {
        let expires_at = self.expires_at_ms.map(time).transpose()?;
        let state = match (self.state, self.status, self.fields, expires_at) {
            ("completed", Some(status), Some(fields), expires_at @ Some(_)) => {
                let status = i16::try_from(status).map_err(|_| Corrupt("status"))?;
                let fields = Bytes::copy_from_slice(fields);
                State::Completed(Completed {
                    response: StoredResponse::decode(status, &fields, self.body)?,
                    expires_at,
                })
            }
            ("completed", ..) => return Err(Corrupt("a completed record without its response")),
            ("dead", ..) => State::Dead,
            ("expired", ..) => State::Expired,
            ("in_flight", ..) => State::InFlight,
            ("queued", ..) => State::Queued,
            ("retryable", ..) => State::Retryable,
            ("unknown", ..) => State::Unknown,
            _ => return Err(Corrupt("state")),
        };
        let record = Record {
            id: RecordId::from_stored(self.id).ok_or(Corrupt("id"))?,
            attempt: attempts(self.attempt)?,
            token: Token::from_stored(self.token).ok_or(Corrupt("token"))?,
            recipe: Recipe::from_stored(self.recipe).ok_or(Corrupt("recipe"))?,
            fingerprint: Fingerprint::from_stored(self.fingerprint).ok_or(Corrupt("fingerprint"))?,
            running_for: Duration::from_millis(self.running_ms.max(0).cast_unsigned()),
            deadline_in_ms: self.deadline_in_ms,
            past_ttl: self.past_ttl,
            late: self.late,
            recovery_point: recovery_point(self.recovery_point)?,
            accepted_at: self.accepted_at_ms.map(time).transpose()?,
            state,
        };
        Ok(Found { record, expires_at })
    }
}

/// An attempt's number as it stands in the store.
///
/// # Errors
/// [`Corrupt`] where it is none.
pub fn attempt(number: i64) -> Result<u32, Corrupt> {
    u32::try_from(number).ok().filter(|number| *number >= 1).ok_or(Corrupt("attempt"))
}

/// A recovery point as it stands in the store.
///
/// # Errors
/// [`Corrupt`] where it is none.
pub fn recovery_point(name: Option<&str>) -> Result<Option<RecoveryPoint>, Corrupt> {
    name.map(|name| RecoveryPoint::parse(name).ok_or(Corrupt("a recovery point"))).transpose()
}

/// How many attempts there were; none where a key was accepted and waits.
///
/// # Errors
/// [`Corrupt`] where it is no such number.
pub fn attempts(number: i64) -> Result<u32, Corrupt> {
    u32::try_from(number).map_err(|_| Corrupt("attempt"))
}

/// A time as it stands in the store: milliseconds since 1970.
///
/// # Errors
/// [`Corrupt`] where it is none.
pub fn time(since_1970_ms: i64) -> Result<SystemTime, Corrupt> {
    u64::try_from(since_1970_ms)
        .ok()
        .and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)))
        .ok_or(Corrupt("a time"))
}

/// When the key of an attempt was accepted for asynchronous delivery, where it was, in milliseconds since 1970.
pub fn accepted_ms(lease: &Lease) -> Option<i64> {
    let accepted_at = lease.delivery?.accepted_at;
    Some(millis(accepted_at.duration_since(UNIX_EPOCH).unwrap_or_default()))
}

/// A duration as the stores take it. A thousand years stand for anything longer: adding more to a time overflows in
/// PostgreSQL, and an overflow would look like a fault.
pub fn millis(duration: Duration) -> i64 {
    const MAX: i64 = 1000 * 365 * 24 * 60 * 60 * 1000;
    i64::try_from(duration.as_millis()).unwrap_or(MAX).min(MAX)
}

/// The name of the state that an ending leads to.
pub fn state_after(ending: &Ending) -> &'static str {
    match ending {
        Ending::Completed { .. } => "completed",
        Ending::Retryable { .. } => "retryable",
        Ending::Unknown => "unknown",
    }
}

/// An ending as its columns have it.
pub struct Terms<'a> {
    /// Until it is forgotten, where it ever is.
    pub ttl_ms: Option<i64>,
    /// For how long past that it is remembered.
    pub remember_ms: Option<i64>,
    /// The response's status.
    pub status: Option<i16>,
    /// The response's fields.
    pub fields: Option<Vec<u8>>,
    /// The response's body.
    pub body: Option<&'a [u8]>,
}

impl<'a> Terms<'a> {
    /// What becomes of a row that ends so.
    pub fn of(ending: &'a Ending) -> Self {
        let nothing = Self { ttl_ms: None, remember_ms: None, status: None, fields: None, body: None };
        match ending {
            Ending::Completed { response, ttl, remember } => Self {
                ttl_ms: Some(millis(*ttl)),
                remember_ms: remember.map(millis),
                status: Some(response.status.as_u16().cast_signed()),
                fields: Some(response.encode_fields()),
                body: response.body.as_deref(),
            },
            Ending::Retryable { ttl } => Self { ttl_ms: Some(millis(*ttl)), ..nothing },
            Ending::Unknown => nothing,
        }
    }
}

/// The name of the state that an ending leads a record to: what was accepted is queued again.
pub fn state_of(record: &Record, ending: &Ending) -> &'static str {
    match ending {
        Ending::Retryable { .. } if record.accepted_at.is_some() => "queued",
        ending => state_after(ending),
    }
}

/// What an ending weighs: its response's body. The fields are small beside a body that is worth counting.
pub fn body_bytes(ending: &Ending) -> usize {
    match ending {
        Ending::Completed { response, .. } => response.body.as_ref().map_or(0, Bytes::len),
        Ending::Retryable { .. } | Ending::Unknown => 0,
    }
}

/// The same of a reconciler's verdict.
pub fn verdict_bytes(verdict: &Verdict) -> usize {
    match verdict {
        Verdict::Completed { response, .. } => response.body.as_ref().map_or(0, Bytes::len),
        Verdict::Dead | Verdict::Open { .. } | Verdict::Retryable { .. } => 0,
    }
}

/// A verdict as both stores write it.
pub struct Resolved<'a> {
    /// The new state's name.
    pub state: &'static str,
    /// The audit's word for it.
    pub action: &'static str,
    /// How often in a row the service knew of nothing; `None` to leave it as it is.
    pub absences: Option<i32>,
    /// From now on.
    pub ttl_ms: Option<i64>,
    /// From then on.
    pub remember_ms: Option<i64>,
    /// Where there is one.
    pub response: Option<&'a StoredResponse>,
}

impl<'a> From<&'a Verdict> for Resolved<'a> {
    fn from(verdict: &'a Verdict) -> Self {
        let state = verdict.state();
        let plain = Self { state, action: "resolve", absences: None, ttl_ms: None, remember_ms: None, response: None };
        match verdict {
            Verdict::Completed { response, ttl, remember } => Self {
                ttl_ms: Some(millis(*ttl)),
                remember_ms: remember.map(millis),
                response: Some(response),
                ..plain
            },
            Verdict::Dead => Self { action: "give_up", ..plain },
            Verdict::Open { absences } => {
                Self { absences: Some(i32::try_from(*absences).unwrap_or(i32::MAX)), ..plain }
            }
            Verdict::Retryable { ttl } => Self { ttl_ms: Some(millis(*ttl)), ..plain },
        }
    }
}

/// What stands of a subject in a row, as it comes from the store.
pub struct About<'a> {
    /// The 32 bytes of the id.
    pub id: &'a [u8],
    /// The newest attempt's token.
    pub token: &'a [u8],
    /// Who called.
    pub scope: &'a [u8],
    /// The key.
    pub key: &'a [u8],
    /// The route's name.
    pub route: &'a str,
    /// The path, where it was kept.
    pub path: Option<&'a [u8]>,
}

impl About<'_> {
    /// The subject that it stands for.
    ///
    /// # Errors
    /// [`Corrupt`] says which part does not decode.
    pub fn decode(self) -> Result<Subject, Corrupt> {
        Ok(Subject {
            id: RecordId::from_stored(self.id).ok_or(Corrupt("id"))?,
            token: Token::from_stored(self.token).ok_or(Corrupt("token"))?,
            scope: Scope::from_stored(self.scope).ok_or(Corrupt("scope"))?,
            key: Bytes::copy_from_slice(self.key),
            route: self.route.into(),
            path: self.path.map(Bytes::copy_from_slice),
        })
    }

    /// The key as it was settled.
    ///
    /// # Errors
    /// [`Corrupt`] says which part does not decode.
    pub fn settled(self, state: &str, status: Option<i64>) -> Result<Kept, Corrupt> {
        let state = ["completed", "dead", "retryable", "unknown"].into_iter().find(|known| *known == state);
        let status = status.map(|status| u16::try_from(status).map_err(|_| Corrupt("status"))).transpose()?;
        Ok(Kept { subject: self.decode()?, state: state.ok_or(Corrupt("state"))?, status })
    }
}

/// A count as it stands in the store.
///
/// # Errors
/// [`Corrupt`] where it is none.
pub fn count(number: i64) -> Result<u32, Corrupt> {
    u32::try_from(number).map_err(|_| Corrupt("a count"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed() -> Row<'static> {
        Row {
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
            recovery_point: None,
            expires_at_ms: Some(7),
            accepted_at_ms: None,
            status: Some(201),
            fields: Some(b"\r\n"),
            body: None,
        }
    }

    #[test]
    fn a_row_decodes_or_says_what_is_wrong_with_it() {
        let found = completed().decode().unwrap();
        assert_eq!(found.expires_at, Some(UNIX_EPOCH + Duration::from_millis(7)));
        assert!(matches!(found.record.state, State::Completed(stored) if stored.response.status == 201));
        for (row, why) in [
            (Row { id: &[1; 31], ..completed() }, "id"),
            (Row { attempt: -1, ..completed() }, "attempt"),
            (Row { attempt: 1 << 32, ..completed() }, "attempt"),
            (Row { token: &[], ..completed() }, "token"),
            (Row { recipe: "2", ..completed() }, "recipe"),
            (Row { fingerprint: &[3; 33], ..completed() }, "fingerprint"),
            (Row { state: "done", ..completed() }, "state"),
            (Row { recovery_point: Some("a\nb"), ..completed() }, "a recovery point"),
            (Row { status: Some(1 << 20), ..completed() }, "status"),
            (Row { status: Some(100), ..completed() }, "status"),
            (Row { status: None, ..completed() }, "a completed record without its response"),
            (Row { fields: None, ..completed() }, "a completed record without its response"),
            (Row { expires_at_ms: None, ..completed() }, "a completed record without its response"),
            (Row { expires_at_ms: Some(-1), ..completed() }, "a time"),
            (Row { fields: Some(b"x"), ..completed() }, "a field line without an end"),
        ] {
            assert_eq!(row.decode().unwrap_err(), Corrupt(why));
        }
    }

    #[test]
    fn the_longest_duration_is_a_thousand_years() {
        assert_eq!(millis(Duration::from_millis(1)), 1);
        assert_eq!(millis(Duration::MAX), millis(Duration::from_secs(1000 * 365 * 24 * 60 * 60)));
    }
}
