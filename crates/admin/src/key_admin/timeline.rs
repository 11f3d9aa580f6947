//! The history of a key: its attempts and the decisions about it, in the order of time.

use std::time::SystemTime;

use schemars::JsonSchema;
use serde::Serialize;

use oncegate_domain::execution_risk::FourEyesAction;
use oncegate_domain::ids::InstanceId;
use oncegate_domain::rfc3339;
use oncegate_domain::state::StateKind;
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_store::admin::{AuditEntry, KeyEntry};

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum TimelineEvent {
    Attempt(TimelineAttempt),
    /// Somebody decided about the key: an operator, the service, a reconciler or the delivery.
    Decision(AuditEntry),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TimelineAttempt {
    #[serde(rename = "attempt")]
    pub number: u32,
    pub instance: InstanceId,
    #[serde(rename = "at", serialize_with = "rfc3339::serialize")]
    #[schemars(with = "rfc3339::Written")]
    pub began_at: SystemTime,
    /// When its outcome was stored; null if it is running, or if a decision has changed the key since.
    #[serde(serialize_with = "rfc3339::serialize")]
    #[schemars(with = "Option<rfc3339::Written>")]
    pub ended_at: Option<SystemTime>,
    /// The time from its reservation until then.
    pub duration_ms: Option<u64>,
    /// The key's state after it; null if a decision has changed the key since.
    pub state: Option<StateKind>,
    /// The cause for which its outcome is or was unknown.
    pub cause: Option<UnknownCause>,
}

impl TimelineEvent {
    pub fn at(&self) -> SystemTime {
        match self {
            Self::Attempt(attempt) => attempt.began_at,
            Self::Decision(entry) => entry.at,
        }
    }
}

/// The history of a key, the oldest event first. The store keeps the last 20 attempts before the newest; `audit` has
/// the newest entries about the key, in any order.
pub fn timeline(entry: &KeyEntry, audit: &[AuditEntry]) -> Vec<TimelineEvent> {
    // The store notes the last change of a key. It is the end of an attempt unless somebody decided after the attempt
    // began.
    let attempt = |number, instance, began_at, changed_at: Option<SystemTime>, state, cause| {
        // A proposal changes nothing, and neither does a discarded event.
        let is_proposal = |entry: &AuditEntry| FourEyesAction::ALL.iter().any(|of| of.proposal() == entry.action);
        let mut decisions = audit.iter().filter(|entry| !is_proposal(entry) && entry.action != "discard event");
        let decided = decisions.any(|decision| decision.at >= began_at && Some(decision.at) <= changed_at);
        let ended_at = changed_at.filter(|_| !decided);
        let took = ended_at.and_then(|end| end.duration_since(began_at).ok());
        let duration_ms = took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        // The reaper has dropped its response later, and left the time alone.
        let is_reaped = state == StateKind::Expired && !entry.is_redacted();
        let state = (!decided).then_some(if is_reaped { StateKind::Completed } else { state });
        TimelineEvent::Attempt(TimelineAttempt { number, instance, began_at, ended_at, duration_ms, state, cause })
    };
    let earlier = entry.earlier.iter().map(|earlier| {
        let (began_at, changed_at) = (earlier.reserved_at, earlier.settled_at);
        attempt(earlier.number, earlier.instance, began_at, changed_at, earlier.state, earlier.cause)
    });
    // An accepted request that was not tried yet has no attempt.
    let tried = entry.attempts > 0 && entry.earlier.last().is_none_or(|last| last.number < entry.attempts);
    let newest = tried.then(|| {
        attempt(entry.attempts, entry.instance, entry.reserved_at, entry.settled_at, entry.state, entry.cause)
    });
    let decisions = audit.iter().cloned().map(TimelineEvent::Decision);
    let mut events: Vec<_> = earlier.chain(newest).chain(decisions).collect();
    events.sort_by_key(TimelineEvent::at);
    events
}
