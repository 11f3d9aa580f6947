//! Events about settled keys: what is to be told, written in the settlement's own transaction.
//!
//! Triggers of the database write them, so that no way of settling a key can leave one out, the service's own
//! transaction included. The triggers are made when a proxy with events first starts: without events nothing runs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::{Value, json};

use super::row::{FromRow, RowReader, from_row, since_1970_ms};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::key::Key;
use oncegate_domain::response::{CorruptRow, StoredResponse};
use oncegate_domain::state::StateKind;

/// A route, and a sink that is told about its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct EventRoute {
    pub route: Arc<str>,
    pub sink: Arc<str>,
    pub types: Vec<&'static str>,
    /// Whether they have the response's body.
    pub body: bool,
}

from_row! {
    /// An event that a publisher has claimed.
    #[derive(Clone, Debug)]
    pub struct KeyEvent {
        /// Grows with the events of a key.
        pub seq: i64,
        pub at: SystemTime,
        pub created_at: SystemTime,
        pub reserved_at: SystemTime,
        pub settled_at: Option<SystemTime>,
        /// From here on the time of tries is counted.
        pub since: SystemTime,
        pub attempt: u32,
        /// The number of tries to publish it, with this one.
        pub tries: u32,
        pub status: Option<u16>,
        pub id: RecordId,
        pub token: Token,
        pub kind: String as "type",
        /// The state of the key then; `None` where its record was deleted.
        pub state: Option<StateKind>,
        pub route: String,
        /// `None` where the key has been purged since.
        pub key: Option<Key>,
        pub cause: Option<String>,
        /// The response, where the sink has bodies; an error where it does not decode, or its secret is gone.
        pub response: Result<Option<Arc<StoredResponse>>, CorruptRow> = response,
    }

    /// The events of a sink that are not published.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct EventCounts {
        /// At most 10,000.
        pub waiting: u64,
        /// At most 10,000.
        pub dead: u64,
        pub oldest_at: Option<SystemTime>,
        /// Why the last try of one of those that wait has failed.
        pub waiting_note: Option<String>,
        /// Why the newest dead one is dead.
        pub note: Option<String>,
    }
}

/// One row that does not decode must not keep others back.
fn response(row: &impl RowReader) -> Result<Result<Option<Arc<StoredResponse>>, CorruptRow>, CorruptRow> {
    Ok(read_response(row))
}

fn read_response(row: &impl RowReader) -> Result<Option<Arc<StoredResponse>>, CorruptRow> {
    let (Some(status), Some(fields)) = (row.read::<Option<i64>>("status")?, row.read::<Option<Bytes>>("fields")?)
    else {
        return Ok(None);
    };
    let status = i16::try_from(status).map_err(|_| CorruptRow("status"))?;
    Ok(Some(Arc::new(StoredResponse::decode(status, &fields, row.read("body")?)?)))
}

/// What names a claimed event. The number alone does not: after a failover that has lost commits, another event may get
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct EventHandle {
    pub seq: i64,
    pub at: SystemTime,
}

impl EventHandle {
    /// A list of them, as the statement that deletes events reads it.
    pub(crate) fn to_json(all: &[Self]) -> String {
        let one = |event: &Self| json!({ "seq": event.seq, "at": since_1970_ms(event.at) });
        Value::from_iter(all.iter().map(one)).to_string()
    }
}

impl KeyEvent {
    /// What names it when it ends.
    pub fn handle(&self) -> EventHandle {
        EventHandle { seq: self.seq, at: self.at }
    }
}

/// A claimed event that was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PostponedEvent {
    pub event: EventHandle,
    /// The try that has failed: it ends no later claim.
    pub tries: u32,
    /// The time after which it is tried again; `None` where it is dead.
    pub retry_in: Option<Duration>,
    pub note: String,
}
