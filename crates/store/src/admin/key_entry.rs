//! A key as operators see it.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use data_encoding::HEXLOWER;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::row::{FromRow, RowReader, StoredValue, cause, from_row, millis};
use oncegate_domain::execution_risk::{ActionKind, RecordSummary};
use oncegate_domain::ids::{InstanceId, RecordId, Token};
use oncegate_domain::kept_path;
use oncegate_domain::record::RecordReading;
use oncegate_domain::response::CorruptRow;
use oncegate_domain::rfc3339;
use oncegate_domain::scope::Scope;
use oncegate_domain::space::SpaceHash;
use oncegate_domain::state::StateKind;
use oncegate_domain::unknown_cause::UnknownCause;

from_row! {
    /// A key, without its caller's data: of its response, only the status and the body's length.
    // The columns of `key_columns.sql`. What its JSON leaves out, `KeyDetails` has, or nobody may see.
    #[derive(Clone, Debug, Serialize, JsonSchema)]
    pub struct KeyEntry {
        pub id: RecordId,
        /// The newest attempt's token, for [`Target`](super::Target). Never shown to anybody.
        #[serde(skip)]
        pub token: Token,
        pub state: StateKind,
        /// The number of attempts.
        pub attempts: u32 as "attempt",
        pub instance: InstanceId,
        pub scope: Scope,
        pub space: SpaceHash,
        /// The key as text. It is empty if the record was redacted.
        #[serde(serialize_with = "serialize_lossy")]
        #[schemars(with = "String")]
        pub key: Vec<u8>,
        /// The key in base64, where it is no UTF-8.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub key_base64: Option<String> = key_base64,
        pub route: String,
        /// The path of the newest request as sent, without its query, cut where it is long; `None` where it was not
        /// kept.
        #[serde(skip)]
        pub path: Option<String> = path,
        /// When the key was first seen.
        #[serde(serialize_with = "rfc3339::serialize")]
        #[schemars(with = "rfc3339::Written")]
        pub created_at: SystemTime,
        /// When the newest attempt was reserved.
        #[serde(serialize_with = "rfc3339::serialize")]
        #[schemars(with = "rfc3339::Written")]
        pub reserved_at: SystemTime,
        /// When the newest attempt's time limit ends or ended.
        #[serde(serialize_with = "rfc3339::serialize")]
        #[schemars(with = "rfc3339::Written")]
        pub deadline: SystemTime,
        /// When the state last changed; null while in flight.
        #[serde(serialize_with = "rfc3339::serialize")]
        #[schemars(with = "Option<rfc3339::Written>")]
        pub settled_at: Option<SystemTime>,
        /// When the record lapses, where it has a TTL.
        #[serde(serialize_with = "rfc3339::serialize")]
        #[schemars(with = "Option<rfc3339::Written>")]
        pub expires_at: Option<SystemTime>,
        /// Whether the record is past its TTL, and counts as never seen (or as expired) although its row still exists.
        pub lapsed: bool = lapsed,
        /// The time past its TTL for which the key is remembered, to refuse late retries; `None` where it is not, or
        /// where its response is gone already.
        #[serde(skip)]
        pub remembered_for: Option<Duration> as "remember_ms",
        /// When its kept request is due for its next delivery or repetition.
        #[serde(skip)]
        pub due_at: Option<SystemTime>,
        /// Whether an operator has written the response.
        #[serde(rename = "by_hand")]
        pub is_by_hand: bool as "by_hand",
        /// The status of the stored response.
        pub status: Option<u16>,
        /// The length of the stored body; null where there is none, or it was too large to keep.
        pub body_bytes: Option<u64>,
        /// The number of questions to the service.
        pub inquiries: u32,
        /// The number of times in a row that the service knew of no such request.
        pub absences: u32,
        /// When the service is asked next.
        #[serde(serialize_with = "rfc3339::serialize")]
        #[schemars(with = "Option<rfc3339::Written>")]
        pub inquire_at: Option<SystemTime>,
        /// When the request was accepted for asynchronous delivery; null if a client waits for each attempt.
        #[serde(serialize_with = "rfc3339::serialize")]
        #[schemars(with = "Option<rfc3339::Written>")]
        pub accepted_at: Option<SystemTime>,
        /// The cause for which the newest attempt's outcome is unknown, or was before it was decided; null if it never
        /// was.
        pub cause: Option<UnknownCause> = cause,
        /// The trace of the newest attempt's request: the id of W3C Trace Context.
        pub trace_id: Option<String> = trace_id,
        /// The address that the newest attempt's request came from, where its route keeps it.
        #[serde(skip)]
        pub client_address: Option<String>,
        /// The attempts before the newest one, the oldest first: the last 20.
        // In the key's own row: a table would cost each first attempt, which most keys never leave, a second row.
        #[serde(skip)]
        pub earlier: Vec<EarlierAttempt> = earlier_attempts,
        /// The store's time when the row was read.
        #[serde(skip)]
        pub now: SystemTime,
    }

    /// An attempt before the newest one, as the column `earlier` has it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EarlierAttempt {
        pub number: u32 as "attempt",
        pub instance: InstanceId,
        pub reserved_at: SystemTime as "reserved_ms",
        /// When the key's state last changed before the next attempt: when the attempt ended, or when somebody decided
        /// about it.
        pub settled_at: Option<SystemTime> as "settled_ms",
        /// The key's state before the next attempt.
        pub state: StateKind,
        /// The cause for which its outcome was unknown; `None` if it never was.
        pub cause: Option<UnknownCause> = cause,
    }
}

/// A key as a list shows it, which is text for nearly all of them.
fn serialize_lossy<S: Serializer>(key: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&String::from_utf8_lossy(key))
}

fn key_base64(row: &impl RowReader) -> Result<Option<String>, CorruptRow> {
    let key: Vec<u8> = row.read("key")?;
    Ok(str::from_utf8(&key).is_err().then(|| BASE64_STANDARD.encode(&key)))
}

fn lapsed(row: &impl RowReader) -> Result<bool, CorruptRow> {
    let now: SystemTime = row.read("now")?;
    Ok(row.read::<Option<SystemTime>>("expires_at")?.is_some_and(|at| at <= now))
}

fn path(row: &impl RowReader) -> Result<Option<String>, CorruptRow> {
    Ok(row.read::<Option<Vec<u8>>>("path")?.as_deref().map(kept_path::shown_path))
}

fn trace_id(row: &impl RowReader) -> Result<Option<String>, CorruptRow> {
    Ok(row.read::<Option<Vec<u8>>>("trace_id")?.map(|trace| HEXLOWER.encode(&trace)))
}

fn earlier_attempts(row: &impl RowReader) -> Result<Vec<EarlierAttempt>, CorruptRow> {
    let Some(json) = row.read::<Option<String>>("earlier")? else { return Ok(Vec::new()) };
    let attempts: Vec<Map<String, Value>> =
        serde_json::from_str(&json).map_err(|_| CorruptRow("the earlier attempts"))?;
    attempts.iter().map(EarlierAttempt::read).collect()
}

impl RowReader for Map<String, Value> {
    fn value(&self, column: &'static str) -> Result<Option<StoredValue<'_>>, CorruptRow> {
        match self.get(column) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Number(number)) => Ok(Some(StoredValue::Number(number.as_i64().ok_or(CorruptRow(column))?))),
            Some(Value::String(text)) => Ok(Some(StoredValue::Text(text))),
            Some(_) => Err(CorruptRow(column)),
        }
    }
}

impl KeyEntry {
    /// Whether what belongs to its caller was erased. No request has an empty key.
    pub fn is_redacted(&self) -> bool {
        self.key.is_empty()
    }

    pub fn permits(&self, action: ActionKind) -> bool {
        match action {
            ActionKind::Replace => self.is_by_hand && action.is_for(self.state),
            ActionKind::Redact => !self.is_redacted() && action.is_for(self.state),
            _ => action.is_for(self.state),
        }
    }

    /// The part of the record that decides whether the key may be executed again, by the store's clock.
    pub fn summary(&self) -> RecordSummary {
        let forgotten_at = self.expires_at.map(|at| at + self.remembered_for.unwrap_or_default());
        let settled_for = self.settled_at.and_then(|at| self.now.duration_since(at).ok());
        RecordSummary {
            state: self.state,
            is_accepted: self.accepted_at.is_some(),
            is_unexecuted: is_unexecuted(self.state, self.due_at.is_some()),
            past_ttl: forgotten_at.is_some_and(|at| at <= self.now),
            late: self.state == StateKind::Expired || (self.remembered_for.is_some() && self.lapsed),
            running_for: self.now.duration_since(self.reserved_at).unwrap_or_default(),
            deadline_in_ms: match self.deadline.duration_since(self.now) {
                Ok(left) => millis(left),
                Err(passed) => -millis(passed.duration()),
            },
            reading: Some(RecordReading {
                at: self.now,
                settled_for: settled_for.unwrap_or_default(),
                cause: self.cause,
                inquire_at: self.inquire_at,
            }),
        }
    }

    pub fn time_limit(&self) -> Duration {
        self.deadline.duration_since(self.reserved_at).unwrap_or_default()
    }
}

/// Whether none of a key's attempts has executed, for all that is known. A dead key with a time for its next delivery
/// was queued when it was given up. An unknown key has such a time too where its route retries, and may have executed.
fn is_unexecuted(state: StateKind, is_due: bool) -> bool {
    match state {
        StateKind::Queued | StateKind::Retryable => true,
        StateKind::Dead => is_due,
        StateKind::Completed | StateKind::Expired | StateKind::InFlight | StateKind::Unknown => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_dead_key_is_known_not_to_have_executed_by_the_time_of_its_next_delivery() {
        let known = |is_due| StateKind::ALL.into_iter().filter(move |state| is_unexecuted(*state, is_due));
        assert!(known(false).eq([StateKind::Queued, StateKind::Retryable]));
        assert!(known(true).eq([StateKind::Dead, StateKind::Queued, StateKind::Retryable]));
    }
}
