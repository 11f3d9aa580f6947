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
use oncegate_settings::{EventType, Word};

/// A route, and a sink that is told about its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRoute {
    pub route: Arc<str>,
    pub sink: Arc<str>,
    pub types: Vec<&'static str>,
    /// Whether they have the response's body.
    pub body: bool,
}

impl EventRoute {
    /// The outcomes of the types, as the triggers look for them.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = String> {
        outcomes().filter(|outcome| event_type(outcome).is_some_and(|kind| self.types.contains(&kind.word())))
    }
}

/// Returns the type of the event about an outcome; `None` where nobody is told about it.
///
/// An outcome is what a trigger writes. That of a completed key is `completed 2xx`, for gRPC with `grpc-status 0` or
/// `grpc-status not 0` behind it. Any other is `STATE after STATE`, with `none` for a key without a record.
///
/// Each response is told, however late it was known. A refusal has a type of its own: the next step must not take it
/// for success.
fn event_type(outcome: &str) -> Option<EventType> {
    match outcome.split_once(' ')? {
        ("completed", response) if response.starts_with(['4', '5']) || response.ends_with("not 0") => {
            Some(EventType::Refused)
        }
        ("completed", _) => Some(EventType::Completed),
        ("dead", _) => Some(EventType::GivenUp),
        ("unknown", _) => Some(EventType::Unknown),
        ("none" | "queued" | "retryable", "after dead" | "after unknown") => Some(EventType::Resolved),
        _ => None,
    }
}

/// All outcomes that the triggers tell apart.
fn outcomes() -> impl Iterator<Item = String> {
    let grpc = ["", " grpc-status 0", " grpc-status not 0"];
    let response = move |status| grpc.map(|grpc| format!("completed {status}xx{grpc}"));
    let states = || StateKind::ALL.into_iter().map(StateKind::name).chain(["none"]);
    let others = states().filter(|state| *state != "completed");
    let others = others.flat_map(move |after| states().map(move |before| format!("{after} after {before}")));
    (2..=5).flat_map(response).chain(others)
}

/// The type of each outcome in JSON, for the statement that names the types of discarded events.
pub(crate) fn types_of_outcomes() -> String {
    let named = outcomes().filter_map(|outcome| Some((event_type(&outcome)?.word(), outcome)));
    Value::from_iter(named.map(|(kind, outcome)| (outcome, kind))).to_string()
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
        /// The facts that the type follows from, see [`KeyEvent::kind`].
        pub outcome: String,
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

/// The name of a claimed event. The number alone is none: after a failover that has lost commits, another event may get
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Returns the type of the event.
    ///
    /// # Errors
    /// The outcome is one of a later version.
    pub fn kind(&self) -> Result<&'static str, CorruptRow> {
        event_type(&self.outcome).map(EventType::word).ok_or(CorruptRow("an outcome that this version does not know"))
    }

    /// What names it when it ends.
    pub fn handle(&self) -> EventHandle {
        EventHandle { seq: self.seq, at: self.at }
    }
}

/// A claimed event that was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostponedEvent {
    pub event: EventHandle,
    /// The try that has failed: it ends no later claim.
    pub tries: u32,
    /// The time after which it is tried again; `None` where it is dead.
    pub retry_in: Option<Duration>,
    pub note: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_type_of_its_outcome() {
        let expected = |outcome: &str| match outcome {
            "completed 2xx" | "completed 3xx" | "completed 2xx grpc-status 0" | "completed 3xx grpc-status 0" => {
                Some(EventType::Completed)
            }
            refused if refused.starts_with("completed ") => Some(EventType::Refused),
            given_up if given_up.starts_with("dead after ") => Some(EventType::GivenUp),
            unknown if unknown.starts_with("unknown after ") => Some(EventType::Unknown),
            "queued after unknown" | "retryable after unknown" | "none after unknown" => Some(EventType::Resolved),
            "queued after dead" | "retryable after dead" | "none after dead" => Some(EventType::Resolved),
            _ => None,
        };
        for outcome in outcomes() {
            assert_eq!(event_type(&outcome), expected(&outcome), "{outcome}");
        }
        assert_eq!(outcomes().count(), 4 * 3 + 7 * 8);
    }

    #[test]
    fn a_route_has_the_outcomes_of_its_types() {
        let of = |types: &[EventType]| -> Vec<String> {
            let types = types.iter().map(|kind| kind.word()).collect();
            EventRoute { route: "pay".into(), sink: "bus".into(), types, body: false }.outcomes().collect()
        };
        assert_eq!(
            of(&[EventType::Completed]),
            ["completed 2xx", "completed 2xx grpc-status 0", "completed 3xx", "completed 3xx grpc-status 0"]
        );
        assert_eq!(of(EventType::VALUES).len(), 12 + 8 + 8 + 6);
    }
}
