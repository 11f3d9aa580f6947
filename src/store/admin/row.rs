//! Decoding the rows of listings and of the audit log, for both stores.

use std::time::Duration;

use serde::Deserialize;

use super::{AuditEntry, CurrentRow, EarlierAttempt, KeyEntry};
use crate::domain::ids::{InstanceId, RecordId, Token};
use crate::domain::kept_path;
use crate::domain::response::CorruptRow;
use crate::domain::scope::Scope;
use crate::domain::space::SpaceHash;
use crate::domain::state::StateKind;
use crate::domain::unknown_cause::UnknownCause;
use crate::store::row::{attempts, time};

/// A row of a listing. Times are milliseconds since 1970; nothing of it is validated yet.
pub struct RawKeyEntry {
    /// The record's id. All fields are described at [`KeyEntry`].
    pub id: Vec<u8>,
    /// The newest attempt's token.
    pub token: Vec<u8>,
    /// The state's name.
    pub state: String,
    /// The newest attempt's number.
    pub attempt: i64,
    /// The newest attempt's instance.
    pub instance: i64,
    /// The caller's scope.
    pub scope: Vec<u8>,
    /// The space within which the key is unique.
    pub space: Vec<u8>,
    /// The key.
    pub key: Vec<u8>,
    /// The route's name.
    pub route: String,
    /// The kept path.
    pub path: Option<Vec<u8>>,
    /// When the first attempt was reserved.
    pub created_ms: i64,
    /// When the newest attempt was reserved.
    pub reserved_ms: i64,
    /// When the newest attempt's time limit ends.
    pub deadline_ms: i64,
    /// When the key was settled.
    pub settled_ms: Option<i64>,
    /// When the record lapses.
    pub expires_ms: Option<i64>,
    /// The time past its TTL for which the key is remembered.
    pub remember_ms: Option<i64>,
    /// Whether it is due for a delivery.
    pub is_due: bool,
    /// The response's status.
    pub status: Option<i64>,
    /// The length of the stored body in bytes.
    pub body_bytes: Option<i64>,
    /// The number of probes.
    pub probes: Option<i64>,
    /// The number of times in a row that the service knew of no such request.
    pub absences: Option<i64>,
    /// The time of the next probe.
    pub probe_ms: Option<i64>,
    /// When the request was accepted for asynchronous delivery.
    pub accepted_ms: Option<i64>,
    /// The cause of an unknown outcome.
    pub cause: Option<String>,
    /// The earlier attempts, as JSON.
    pub earlier: Option<String>,
    /// The store's time.
    pub now_ms: i64,
    /// When the key was settled, in the store's own ticks.
    pub ticks: Option<i64>,
}

impl RawKeyEntry {
    /// Decodes the row.
    ///
    /// # Errors
    /// [`CorruptRow`] names the part that does not decode.
    pub fn decode(self) -> Result<KeyEntry, CorruptRow> {
        let count = |number: Option<i64>| u32::try_from(number.unwrap_or(0)).map_err(|_| CorruptRow("probes"));
        Ok(KeyEntry {
            id: RecordId::from_stored(&self.id).ok_or(CorruptRow("id"))?,
            token: Token::from_stored(&self.token).ok_or(CorruptRow("token"))?,
            state: StateKind::parse(&self.state).ok_or(CorruptRow("state"))?,
            attempts: attempts(self.attempt)?,
            instance: InstanceId::from_stored(self.instance),
            scope: Scope::from_stored(&self.scope).ok_or(CorruptRow("scope"))?,
            space: SpaceHash::from_stored(&self.space),
            key: self.key,
            route: self.route,
            path: self.path.as_deref().map(kept_path::shown_path),
            created_at: time(self.created_ms)?,
            reserved_at: time(self.reserved_ms)?,
            deadline: time(self.deadline_ms)?,
            settled_at: self.settled_ms.map(time).transpose()?,
            expires_at: self.expires_ms.map(time).transpose()?,
            remembered_for: self.remember_ms.map(|ms| Duration::from_millis(ms.max(0).cast_unsigned())),
            is_due: self.is_due,
            status: self.status.map(u16::try_from).transpose().map_err(|_| CorruptRow("status"))?,
            body_bytes: self.body_bytes.map(u64::try_from).transpose().map_err(|_| CorruptRow("the body's length"))?,
            probes: count(self.probes)?,
            absences: count(self.absences)?,
            probe_at: self.probe_ms.map(time).transpose()?,
            accepted_at: self.accepted_ms.map(time).transpose()?,
            cause: self.cause.as_deref().and_then(UnknownCause::parse),
            earlier: self.earlier.as_deref().map(earlier_attempts).transpose()?.unwrap_or_default(),
            now: time(self.now_ms)?,
            ticks: self.ticks.unwrap_or(0),
        })
    }
}

/// An attempt in the column `earlier`.
#[derive(Deserialize)]
struct RawEarlierAttempt {
    attempt: u32,
    instance: i64,
    state: String,
    cause: Option<String>,
    reserved_ms: i64,
    settled_ms: Option<i64>,
}

fn earlier_attempts(json: &str) -> Result<Vec<EarlierAttempt>, CorruptRow> {
    let raw: Vec<RawEarlierAttempt> = serde_json::from_str(json).map_err(|_| CorruptRow("the earlier attempts"))?;
    let decode = |raw: RawEarlierAttempt| {
        Ok(EarlierAttempt {
            number: raw.attempt,
            instance: InstanceId::from_stored(raw.instance),
            reserved_at: time(raw.reserved_ms)?,
            settled_at: raw.settled_ms.map(time).transpose()?,
            state: StateKind::parse(&raw.state).ok_or(CorruptRow("state"))?,
            cause: raw.cause.as_deref().and_then(UnknownCause::parse),
        })
    };
    raw.into_iter().map(decode).collect()
}

/// A row of the audit log.
pub struct RawAuditEntry {
    /// The entry's number. All fields are described at [`AuditEntry`].
    pub seq: i64,
    /// The time, in milliseconds since 1970.
    pub at_ms: i64,
    /// The actor.
    pub actor: String,
    /// The action's name.
    pub action: String,
    /// The record's id.
    pub id: Vec<u8>,
    /// The state before.
    pub before: String,
    /// The state after.
    pub after: String,
    /// The reason.
    pub note: Option<String>,
}

impl RawAuditEntry {
    /// Decodes the row.
    ///
    /// # Errors
    /// [`CorruptRow`] names the part that does not decode.
    pub fn decode(self) -> Result<AuditEntry, CorruptRow> {
        let Self { seq, at_ms, actor, action, id, before, after, note } = self;
        let id = RecordId::from_stored(&id).ok_or(CorruptRow("id"))?;
        Ok(AuditEntry { seq, at: time(at_ms)?, actor, action, id, before, after, note })
    }
}

/// The row of a key that a decision left unchanged.
pub struct RawCurrentRow {
    /// The record's id.
    pub id: Vec<u8>,
    /// The newest attempt's token; `None` where the key is gone, as for the two fields below.
    pub token: Option<Vec<u8>>,
    /// The state's name.
    pub state: Option<String>,
    /// The time until the newest attempt's time limit ends, in milliseconds.
    pub deadline_in_ms: Option<i64>,
    /// The actor of the key's last audit entry; `None` where there is none, as for the two fields below.
    pub actor: Option<String>,
    /// The entry's action.
    pub action: Option<String>,
    /// The resulting state.
    pub after: Option<String>,
}

impl RawCurrentRow {
    /// Decodes the row.
    ///
    /// # Errors
    /// [`CorruptRow`] names the part that does not decode.
    pub fn decode(self) -> Result<CurrentRow, CorruptRow> {
        let current = match (self.token, self.state) {
            (Some(token), Some(state)) => Some((
                Token::from_stored(&token).ok_or(CorruptRow("token"))?,
                StateKind::parse(&state).ok_or(CorruptRow("state"))?,
            )),
            _ => None,
        };
        let last = match (self.actor, self.action, self.after) {
            (Some(actor), Some(action), Some(after)) => Some((actor, action, after)),
            _ => None,
        };
        Ok(CurrentRow {
            id: RecordId::from_stored(&self.id).ok_or(CorruptRow("id"))?,
            current,
            deadline_in_ms: self.deadline_in_ms.unwrap_or(0),
            last,
        })
    }
}
