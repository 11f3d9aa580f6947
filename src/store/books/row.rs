//! Rows as they come from the stores, understood.

use super::{Entry, Look, Note};
use crate::domain::attempt::{InstanceId, Token};
use crate::domain::phase::Phase;
use crate::domain::record::RecordId;
use crate::domain::response::Corrupt;
use crate::domain::scope::Scope;
use crate::store::row::{attempts, time};

/// A row of a listing. Times are milliseconds since 1970; nothing of it is believed yet.
pub struct RawEntry {
    /// See [`Entry`]; so are all below.
    pub id: Vec<u8>,
    /// The newest attempt's token.
    pub token: Vec<u8>,
    /// The state's name.
    pub state: String,
    /// The newest attempt's number.
    pub attempt: i64,
    /// Under whose name it stands.
    pub instance: i64,
    /// Whose key.
    pub scope: Vec<u8>,
    /// Within what it is unique.
    pub space: Vec<u8>,
    /// The key.
    pub key: Vec<u8>,
    /// The route's name.
    pub route: String,
    /// When the first attempt was reserved.
    pub created_ms: i64,
    /// When the newest was.
    pub reserved_ms: i64,
    /// When its time limit ends.
    pub deadline_ms: i64,
    /// When it was settled.
    pub settled_ms: Option<i64>,
    /// When it is forgotten.
    pub expires_ms: Option<i64>,
    /// The response's status.
    pub status: Option<i64>,
    /// How long its body is.
    pub body_bytes: Option<i64>,
    /// How often the service was asked.
    pub probes: Option<i64>,
    /// How often in a row it knew of nothing.
    pub absences: Option<i64>,
    /// When it is asked next.
    pub probe_ms: Option<i64>,
    /// The store's time.
    pub now_ms: i64,
    /// When it was settled, in the store's own ticks.
    pub ticks: Option<i64>,
}

impl RawEntry {
    /// The entry that the row stands for.
    ///
    /// # Errors
    /// [`Corrupt`] says which part does not decode.
    pub fn decode(self) -> Result<Entry, Corrupt> {
        let count = |number: Option<i64>| u32::try_from(number.unwrap_or(0)).map_err(|_| Corrupt("probes"));
        Ok(Entry {
            id: RecordId::from_stored(&self.id).ok_or(Corrupt("id"))?,
            token: Token::from_stored(&self.token).ok_or(Corrupt("token"))?,
            state: Phase::parse(&self.state).ok_or(Corrupt("state"))?,
            attempts: attempts(self.attempt)?,
            instance: InstanceId::from_stored(self.instance),
            scope: Scope::from_stored(&self.scope).ok_or(Corrupt("scope"))?,
            space: self.space,
            key: self.key,
            route: self.route,
            created_at: time(self.created_ms)?,
            reserved_at: time(self.reserved_ms)?,
            deadline: time(self.deadline_ms)?,
            settled_at: self.settled_ms.map(time).transpose()?,
            expires_at: self.expires_ms.map(time).transpose()?,
            status: self.status.map(u16::try_from).transpose().map_err(|_| Corrupt("status"))?,
            body_bytes: self.body_bytes.map(u64::try_from).transpose().map_err(|_| Corrupt("the body's length"))?,
            probes: count(self.probes)?,
            absences: count(self.absences)?,
            probe_at: self.probe_ms.map(time).transpose()?,
            now: time(self.now_ms)?,
            ticks: self.ticks.unwrap_or(0),
        })
    }
}

/// A row of the audit log.
pub struct RawNote {
    /// See [`Note`]; so are all below.
    pub seq: i64,
    /// Since 1970.
    pub at_ms: i64,
    /// Who.
    pub actor: String,
    /// What.
    pub action: String,
    /// The record's id.
    pub id: Vec<u8>,
    /// The state before.
    pub before: String,
    /// And after.
    pub after: String,
    /// On what grounds.
    pub note: Option<String>,
}

impl RawNote {
    /// The line that the row stands for.
    ///
    /// # Errors
    /// [`Corrupt`] says which part does not decode.
    pub fn decode(self) -> Result<Note, Corrupt> {
        let Self { seq, at_ms, actor, action, id, before, after, note } = self;
        let id = RecordId::from_stored(&id).ok_or(Corrupt("id"))?;
        Ok(Note { seq, at: time(at_ms)?, actor, action, id, before, after, note })
    }
}

/// What is found of a key after a decision did not take.
pub struct RawLook {
    /// The record's id.
    pub id: Vec<u8>,
    /// Its token; `None` where it is gone, and so are the two below.
    pub token: Option<Vec<u8>>,
    /// The state's name.
    pub state: Option<String>,
    /// Until its attempt's time limit ends.
    pub deadline_in_ms: Option<i64>,
    /// Of the last line about it in the audit log, `None` where there is none; so are the two below.
    pub actor: Option<String>,
    /// What was done.
    pub action: Option<String>,
    /// What it led to.
    pub after: Option<String>,
}

impl RawLook {
    /// The look that the row stands for.
    ///
    /// # Errors
    /// [`Corrupt`] says which part does not decode.
    pub fn decode(self) -> Result<Look, Corrupt> {
        let stands = match (self.token, self.state) {
            (Some(token), Some(state)) => Some((
                Token::from_stored(&token).ok_or(Corrupt("token"))?,
                Phase::parse(&state).ok_or(Corrupt("state"))?,
            )),
            _ => None,
        };
        let last = match (self.actor, self.action, self.after) {
            (Some(actor), Some(action), Some(after)) => Some((actor, action, after)),
            _ => None,
        };
        Ok(Look {
            id: RecordId::from_stored(&self.id).ok_or(Corrupt("id"))?,
            stands,
            deadline_in_ms: self.deadline_in_ms.unwrap_or(0),
            last,
        })
    }
}
