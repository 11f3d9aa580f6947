//! Reading rows, of either database, into the domain's types. A [`CorruptRow`] names what does not decode.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use oncegate_domain::attempt::{AttemptLease, ReserveRequest, ReserveResult};
use oncegate_domain::fingerprint::{Fingerprint, Recipe};
use oncegate_domain::ids::{InstanceId, RecordId, Token};
use oncegate_domain::inquiry::{Inquiry, InquirySubject, InquiryVerdict, SettledKey, SettledKeyPage};
use oncegate_domain::kept_path;
use oncegate_domain::key::Key;
use oncegate_domain::part_bits::PartBits;
use oncegate_domain::record::{Record, RecordReading};
use oncegate_domain::recovery::RecoveryPoint;
use oncegate_domain::response::{CorruptRow, StoredResponse};
use oncegate_domain::scope::Scope;
use oncegate_domain::service_report::{ReportResult, ReservedKey};
use oncegate_domain::space::SpaceHash;
use oncegate_domain::state::{CompletedResponse, KeyState, StateKind};
use oncegate_domain::unknown_cause::UnknownCause;

/// A value in a column, as each database returns it.
#[derive(Clone, Copy, Debug)]
pub enum StoredValue<'a> {
    Bytes(&'a [u8]),
    /// A number, or a boolean as 0 or 1.
    Number(i64),
    Text(&'a str),
}

pub trait RowReader {
    /// Returns the value of a column; `None` where it is null.
    fn value(&self, column: &'static str) -> Result<Option<StoredValue<'_>>, CorruptRow>;

    fn read<T: FromStored>(&self, column: &'static str) -> Result<T, CorruptRow> {
        T::from_stored(self.value(column)?).ok_or(CorruptRow(column))
    }
}

/// A type that can be read from a column.
pub trait FromStored: Sized {
    /// Decodes a value; `None` where it is none of this type.
    fn from_stored(value: Option<StoredValue<'_>>) -> Option<Self>;
}

impl<T: FromStored> FromStored for Option<T> {
    fn from_stored(value: Option<StoredValue<'_>>) -> Option<Self> {
        match value {
            None => Some(None),
            value => T::from_stored(value).map(Some),
        }
    }
}

/// A struct that is read from a row.
pub(crate) trait FromRow: Sized {
    fn read(row: &impl RowReader) -> Result<Self, CorruptRow>;
}

/// Defines structs that are read from rows: a field from the column of its name or of another one, or by a function of
/// the row. A field without a comment is what its name and type say.
macro_rules! from_row {
    ($($(#[$about:meta])* pub struct $name:ident {
        $($(#[$field_about:meta])* pub $field:ident: $type:ty $(as $column:literal)? $(= $read:path)?,)+
    })+) => {$(
        $(#[$about])*
        pub struct $name { $($(#[$field_about])* pub $field: $type,)+ }

        impl FromRow for $name {
            fn read(row: &impl RowReader) -> Result<Self, CorruptRow> {
                Ok(Self { $($field: from_row!(@ row $field $(as $column)? $(= $read)?)),+ })
            }
        }
    )+};
    (@ $row:ident $field:ident) => { $row.read(stringify!($field))? };
    (@ $row:ident $field:ident as $column:literal) => { $row.read($column)? };
    (@ $row:ident $field:ident = $read:path) => { $read($row)? };
}
pub(super) use from_row;

macro_rules! from_stored {
    ($($type:ty: $kind:ident => $decode:expr),* $(,)?) => {$(
        impl FromStored for $type {
            fn from_stored(value: Option<StoredValue<'_>>) -> Option<Self> {
                match value? {
                    StoredValue::$kind(value) => $decode(value),
                    _ => None,
                }
            }
        }
    )*};
}

from_stored! {
    i64: Number => Some,
    u64: Number => |number| u64::try_from(number).ok(),
    u32: Number => |number| u32::try_from(number).ok(),
    u16: Number => |number| u16::try_from(number).ok(),
    bool: Number => |number| Some(number != 0),
    SystemTime: Number => |number| time(number).ok(),
    InstanceId: Number => |number| Some(InstanceId::from_stored(number)),
    // A length of time. What was less than nothing by a clock that was set back is nothing.
    Duration: Number => |ms: i64| Some(Duration::from_millis(ms.max(0).cast_unsigned())),
    Bytes: Bytes => |bytes| Some(Bytes::copy_from_slice(bytes)),
    Vec<u8>: Bytes => |bytes: &[u8]| Some(bytes.to_vec()),
    RecordId: Bytes => RecordId::from_stored,
    Token: Bytes => Token::from_stored,
    Scope: Bytes => Scope::from_stored,
    SpaceHash: Bytes => |bytes| Some(SpaceHash::from_stored_or_text(bytes)),
    Key: Bytes => Key::from_stored,
    Fingerprint: Bytes => Fingerprint::from_stored,
    PartBits: Bytes => PartBits::from_stored,
    String: Text => |text: &str| Some(text.to_owned()),
    Box<str>: Text => |text: &str| Some(text.into()),
    Arc<str>: Text => |text: &str| Some(text.into()),
    StateKind: Text => StateKind::parse,
    RecoveryPoint: Text => RecoveryPoint::parse,
}

/// A record, and when it lapses.
#[derive(Clone, Debug)]
pub struct FoundRecord {
    pub record: Record,
    /// When the record lapses, where it has a TTL.
    pub expires_at: Option<SystemTime>,
}

/// Reads a recipe. A later version may have made a fingerprint in a new way.
pub fn recipe(row: &impl RowReader) -> Result<Recipe, CorruptRow> {
    let unknown = CorruptRow("a recipe that this version does not know");
    Recipe::from_stored(&row.read::<String>("recipe")?).ok_or(unknown)
}

impl FoundRecord {
    /// Reads a record, at the store's time `now`.
    pub fn read(row: &impl RowReader, now: i64) -> Result<Self, CorruptRow> {
        let (kind, expires_at) = (row.read::<StateKind>("state")?, row.read::<Option<SystemTime>>("expires_at")?);
        let expires_ms: Option<i64> = row.read("expires_at")?;
        let remember_ms: Option<i64> = row.read("remember_ms")?;
        let state = match kind {
            StateKind::Completed => {
                let response = (row.read::<Option<i64>>("status")?, row.read::<Option<Bytes>>("fields")?, expires_at);
                let (Some(status), Some(fields), Some(expires_at)) = response else {
                    return Err(CorruptRow("a completed record without its response"));
                };
                let status = i16::try_from(status).map_err(|_| CorruptRow("status"))?;
                let response = Arc::new(StoredResponse::decode(status, &fields, row.read("body")?)?);
                KeyState::Completed(CompletedResponse { response, expires_at: Some(expires_at) })
            }
            StateKind::Dead => KeyState::Dead,
            StateKind::Expired => KeyState::Expired,
            StateKind::InFlight => KeyState::InFlight,
            StateKind::Queued => KeyState::Queued,
            StateKind::Retryable => KeyState::Retryable,
            StateKind::Unknown => KeyState::Unknown,
        };
        let settled_at: Option<i64> = row.read("settled_at")?;
        let since = |then: i64| Duration::from_millis((now.saturating_sub(then)).max(0).cast_unsigned());
        let record = Record {
            id: row.read("id")?,
            attempt: row.read("attempt")?,
            token: row.read("token")?,
            recipe: recipe(row)?,
            fingerprint: row.read("fingerprint")?,
            running_for: since(row.read("reserved_at")?),
            deadline_in_ms: row.read::<i64>("deadline")?.saturating_sub(now),
            // Past its TTL and forgotten, or past it and remembered to refuse late retries.
            past_ttl: expires_ms.is_some_and(|at| at.saturating_add(remember_ms.unwrap_or(0)) <= now),
            late: kind == StateKind::Expired || (remember_ms.is_some() && expires_ms.is_some_and(|at| at <= now)),
            recovery_point: row.read("recovery_point")?,
            accepted_at: row.read("accepted_at")?,
            state,
            reading: Some(RecordReading {
                at: time(now)?,
                settled_for: settled_at.map_or(Duration::ZERO, since),
                cause: cause(row)?,
                inquire_at: row.read("inquire_at")?,
            }),
        };
        Ok(Self { record, expires_at })
    }
}

/// The result for a request whose attempt has begun.
pub fn fresh(
    reserve_request: Arc<ReserveRequest>,
    attempt: u32,
    recovery_point: Option<RecoveryPoint>,
) -> ReserveResult {
    ReserveResult::Fresh(AttemptLease { reserve_request, attempt, taken_from: None, recovery_point, delivery: None })
}

pub fn inquiry_subject(row: &impl RowReader) -> Result<InquirySubject, CorruptRow> {
    let path: Option<Bytes> = row.read("path")?;
    Ok(InquirySubject {
        id: row.read("id")?,
        token: row.read("token")?,
        scope: row.read("scope")?,
        key: row.read("key")?,
        route: row.read("route")?,
        path: path.as_deref().and_then(kept_path::whole_target).map(Bytes::copy_from_slice),
    })
}

/// Reads an inquiry that was claimed.
pub fn inquiry(row: &impl RowReader) -> Result<Inquiry, CorruptRow> {
    let (subject, number) = (inquiry_subject(row)?, row.read("inquiries")?);
    Ok(Inquiry { subject, number, absences: row.read("absences")?, unknown_since: row.read("settled_at")? })
}

/// Adds a row to the page, if the key fits and is of one of the routes. `read` is the number of rows so far, with it.
pub(crate) fn add_to_page(
    page: &mut SettledKeyPage,
    row: &impl RowReader,
    read: usize,
    routes: &[Arc<str>],
    limit: u32,
) -> Result<(), CorruptRow> {
    if row.read("fits")? {
        let subject = inquiry_subject(row)?;
        if routes.iter().any(|route| **route == *subject.route) {
            page.keys.push(SettledKey { subject, state: row.read("state")?, status: row.read("status")? });
        }
    }
    if read == limit as usize {
        page.next = Some(row.read("id")?);
    }
    Ok(())
}

/// Reads the key of a reservation; `None` where it is another attempt's, or none of these services has it.
pub(super) fn read_reserved_key(
    row: &impl RowReader,
    services: &[Arc<str>],
    token: &Token,
) -> Result<Option<ReservedKey>, CorruptRow> {
    let (found, newest): (String, Token) = (row.read("service")?, row.read("token")?);
    let Some(service) = services.iter().find(|service| ***service == *found) else { return Ok(None) };
    Ok(match newest.is_same(token) {
        true => {
            let service = Arc::clone(service);
            let (route, state) = (row.read("route")?, row.read("state")?);
            Some(ReservedKey { service, route, state, settled_at: row.read("settled_at")? })
        }
        false => None,
    })
}

pub(super) fn report_result(state: StateKind) -> ReportResult {
    match state {
        StateKind::Completed => ReportResult::Completed,
        StateKind::Expired => ReportResult::Gone,
        StateKind::InFlight => ReportResult::Noted,
        StateKind::Dead | StateKind::Queued | StateKind::Retryable | StateKind::Unknown => ReportResult::Taken,
    }
}

/// Reads the cause of an unknown outcome. A cause of a later version counts as none.
pub fn cause(row: &impl RowReader) -> Result<Option<UnknownCause>, CorruptRow> {
    Ok(row.read::<Option<String>>("cause")?.as_deref().and_then(UnknownCause::parse))
}

pub fn time(since_1970_ms: i64) -> Result<SystemTime, CorruptRow> {
    u64::try_from(since_1970_ms)
        .ok()
        .and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)))
        .ok_or(CorruptRow("a time"))
}

pub fn since_1970_ms(time: SystemTime) -> i64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A duration in milliseconds, at most a thousand years: a sum with it never overflows.
pub fn millis(duration: Duration) -> i64 {
    const MAX: i64 = 1000 * 365 * 24 * 60 * 60 * 1000;
    i64::try_from(duration.as_millis()).unwrap_or(MAX).min(MAX)
}

/// The size of a reconciler's verdict: its response's body.
pub fn verdict_bytes(verdict: &InquiryVerdict) -> usize {
    match verdict {
        InquiryVerdict::Completed { response, .. } => response.body.as_ref().map_or(0, Bytes::len),
        InquiryVerdict::Dead | InquiryVerdict::Open { .. } | InquiryVerdict::Retryable { .. } => 0,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;

    use super::*;

    pub(crate) struct TestRow(pub HashMap<&'static str, Option<StoredValue<'static>>>);

    impl RowReader for TestRow {
        fn value(&self, column: &'static str) -> Result<Option<StoredValue<'_>>, CorruptRow> {
            self.0.get(column).copied().ok_or(CorruptRow(column))
        }
    }

    fn completed(change: Option<(&'static str, Option<StoredValue<'static>>)>) -> TestRow {
        use StoredValue::{Bytes, Number, Text};
        let mut row = HashMap::from([
            ("id", Some(Bytes(&[1; 32]))),
            ("attempt", Some(Number(1))),
            ("token", Some(Bytes(&[2; 16]))),
            ("recipe", Some(Text("1"))),
            ("fingerprint", Some(Bytes(&[3; 32]))),
            ("state", Some(Text("completed"))),
            ("reserved_at", Some(Number(1))),
            ("deadline", Some(Number(1))),
            ("settled_at", Some(Number(4))),
            ("expires_at", Some(Number(7))),
            ("remember_ms", None),
            ("accepted_at", None),
            ("recovery_point", None),
            ("cause", None),
            ("inquire_at", None),
            ("status", Some(Number(201))),
            ("fields", Some(Bytes(b"\r\n"))),
            ("body", None),
        ]);
        row.extend(change);
        TestRow(row)
    }

    #[test]
    fn a_row_decodes_or_names_its_corrupt_part() {
        use StoredValue::{Bytes, Number, Text};
        let found = FoundRecord::read(&completed(None), 6).unwrap();
        assert_eq!(found.expires_at, Some(UNIX_EPOCH + Duration::from_millis(7)));
        let reading = found.record.reading.unwrap();
        assert_eq!((reading.at, reading.settled_for.as_millis()), (UNIX_EPOCH + Duration::from_millis(6), 2));
        assert_eq!((found.record.running_for.as_millis(), found.record.deadline_in_ms), (5, -5));
        assert!(matches!(found.record.state, KeyState::Completed(stored) if stored.response.status == 201));
        let without_response = "a completed record without its response";
        for (column, value, why) in [
            ("id", Some(Bytes(&[1; 31])), "id"),
            ("id", None, "id"),
            ("attempt", Some(Number(-1)), "attempt"),
            ("attempt", Some(Number(1 << 32)), "attempt"),
            ("token", Some(Bytes(&[])), "token"),
            ("recipe", Some(Text("2")), "a recipe that this version does not know"),
            ("fingerprint", Some(Bytes(&[3; 33])), "fingerprint"),
            ("state", Some(Text("done")), "state"),
            ("state", Some(Number(1)), "state"),
            ("recovery_point", Some(Text("a\nb")), "recovery_point"),
            ("status", Some(Number(1 << 20)), "status"),
            ("status", Some(Number(100)), "status"),
            ("status", None, without_response),
            ("fields", None, without_response),
            ("expires_at", None, without_response),
            ("expires_at", Some(Number(-1)), "expires_at"),
            ("fields", Some(Bytes(b"x")), "a field line without an end"),
        ] {
            let corrupt = FoundRecord::read(&completed(Some((column, value))), 6).unwrap_err();
            assert_eq!(corrupt, CorruptRow(why), "{column}: {value:?}");
        }
    }

    #[test]
    fn a_record_is_past_its_ttl_from_its_end_on() {
        let read = |remember: Option<i64>, now| {
            let row = completed(Some(("remember_ms", remember.map(StoredValue::Number))));
            let record = FoundRecord::read(&row, now).unwrap().record;
            (record.past_ttl, record.late)
        };
        assert_eq!([6, 7].map(|now| read(None, now)), [(false, false), (true, false)]);
        assert_eq!(
            [6, 7, 9, 10].map(|now| read(Some(3), now)),
            [(false, false), (false, true), (false, true), (true, true)]
        );
    }

    #[test]
    fn a_verdict_is_as_large_as_its_body() {
        let (headers, trailers) = (http::HeaderMap::new(), http::HeaderMap::new());
        let body = Some(Bytes::from_static(b"abc"));
        let response = Arc::new(StoredResponse { status: http::StatusCode::OK, headers, body, trailers });
        let ttl = Duration::ZERO;
        let of_verdict = InquiryVerdict::Completed { response, ttl, remember: None };
        assert_eq!(verdict_bytes(&of_verdict), 3);
        assert_eq!(verdict_bytes(&InquiryVerdict::Dead), 0);
    }
}
