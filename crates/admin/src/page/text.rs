//! The texts about states and decisions, in plain words: an operator who was woken up reads them.

use std::collections::BTreeSet;

use crate::key_admin::problem::ProblemCode;
use oncegate_domain::execution_risk::{ActionKind, ActionRisk};
use oncegate_domain::state::StateKind;
use oncegate_domain::unknown_cause::{BodyStop, UnknownCause};

/// The risk of a response that nobody may mean.
pub const DOUBTFUL_RESPONSE_RISK: &str = "I have looked again: every retry is to get exactly this response.";

/// The risk of one response for several keys.
pub const SHARED_RESPONSE_RISK: &str =
    "I accept that the retries of all these keys get this one response, whoever their callers are.";

pub struct ActionText {
    /// The name in addresses and forms.
    pub name: &'static str,
    /// The text of the link to its page.
    pub label: &'static str,
    /// The command of `oncegate keys` that does the same.
    pub command: &'static str,
    pub button: &'static str,
    /// The statement that the operator makes by it.
    pub meaning: &'static str,
    pub consequences: &'static str,
    /// The key's new situation, for the notice afterwards.
    pub done: &'static str,
}

pub(super) trait ActionTexts: Into<ActionKind> {
    fn text(self) -> &'static ActionText {
        match self.into() {
            ActionKind::Completed => &ActionText {
                name: "completed",
                label: "It was executed",
                command: "resolve --completed",
                button: "Store this response",
                meaning: "You know from the service's own records, not by guessing, that it carried the operation out, and what it answered.",
                consequences: "Every retry gets the response that you write below, from now until the route's TTL has passed. Nothing is executed. A late answer of the service no longer counts.",
                done: "completed by hand: retries get the response that was written",
            },
            ActionKind::Replace => &ActionText {
                name: "replace",
                label: "Correct its response",
                command: "resolve --completed --replace",
                button: "Store this response instead",
                meaning: "An operator has written the stored response, not the service, and it is wrong: you know from the service's own records what it answered.",
                consequences: "Every retry from now on gets the response that you write below, until the route's TTL has passed. Nothing is executed. Callers that have the wrong response keep it. When this is done, every running instance has forgotten it.",
                done: "completed by hand: retries get the new response",
            },
            ActionKind::NotExecuted => &ActionText {
                name: "not-executed",
                label: "It was not executed",
                command: "resolve --not-executed",
                button: "Let the next retry execute it",
                meaning: "You know that the service did no part of the operation: you have looked in its own records, and there is nothing.",
                consequences: "The next retry with this key is sent to the service; a request that was accepted for later delivery is delivered at once. If the operation was carried out after all, it is then carried out twice. Until that retry comes, a late answer of the service still counts.",
                done: "retryable: the next retry or delivery is executed",
            },
            ActionKind::Redact => &ActionText {
                name: "redact",
                label: "Redact it",
                command: "redact",
                button: "Redact it",
                meaning: "Its caller is to be erased: the response, the path, the key as it was sent, the indexed values, and what waiting events say of them.",
                consequences: "Nothing is executed because of it: every retry gets 409 response-not-kept where the request was executed, and 410 key-expired where it was not, until the TTL ends. The record stays, with its hashes. When this is done, every running instance has forgotten the response. It cannot be undone.",
                done: "redacted: the record stays, and its retries are refused",
            },
            ActionKind::Purge => &ActionText {
                name: "purge",
                label: "Forget it",
                command: "purge",
                button: "Forget it",
                meaning: "Oncegate is to forget the key, as if it had never been seen.",
                consequences: "The next request with this key is a first one, and is executed. When this is done, every running instance has forgotten the key. It cannot be undone.",
                done: "forgotten",
            },
            ActionKind::Release => &ActionText {
                name: "release",
                label: "Drop its response",
                command: "release",
                button: "Drop the stored response",
                meaning: "The stored response should not have been kept, and the operation is to be executed once more.",
                consequences: "The stored response is gone, and the next retry with this key is executed: a second time, if the first one did anything. It cannot be undone.",
                done: "retryable: the stored response is gone, and the next retry is executed",
            },
            ActionKind::Requeue => &ActionText {
                name: "requeue",
                label: "Requeue it",
                command: "requeue",
                button: "Requeue it",
                meaning: "It was given up too early: the service was away while Oncegate asked it, or tried to deliver to it.",
                consequences: "A request that was accepted for later delivery, and is known not to have executed, is delivered again. Any other key is unknown again, and if its route has a reconcile.url, Oncegate asks the service how it ended: that executes nothing, and retries still get 409.",
                done: "requeued",
            },
        }
    }

    /// Whether the operator writes a response.
    fn has_response(self) -> bool {
        matches!(self.into(), ActionKind::Completed | ActionKind::Replace)
    }
}

impl ActionTexts for ActionKind {}

pub fn parse_action(name: &str) -> Option<ActionKind> {
    ActionKind::ALL.into_iter().find(|action| action.text().name == name)
}

/// Returns the decisions for several keys in that state, or in any; those that need the risk accepted among them.
pub fn actions_on_many(state: Option<StateKind>) -> Vec<ActionKind> {
    // Each key has its own response to correct.
    let actions = ActionKind::ALL.into_iter().filter(|action| *action != ActionKind::Replace);
    actions.filter(|action| state.is_none_or(|state| action.is_for(state))).collect()
}

/// Returns the statement by which the operator accepts a risk.
pub fn risk_acceptance(risk: ActionRisk) -> &'static str {
    match risk {
        ActionRisk::AttemptRunning => {
            "I do not wait. Its last attempt may still be running, or may still arrive: it may be executed, and the next retry too."
        }
        ActionRisk::DeliveryLost => {
            "I accept that it is never delivered, although its caller was told that it was accepted."
        }
        ActionRisk::LateRetries => {
            "I accept that it is executed twice: it was executed, and a late retry, which would be refused, is executed too."
        }
        ActionRisk::OutcomeUnknown => {
            "I accept that it may be executed twice: nobody knows whether its last attempt was executed, and the next request with this key will be."
        }
        ActionRisk::ResponseWithdrawn => {
            "I accept that it is executed twice: it was executed, and the next retry, which would get its response, is executed too."
        }
        ActionRisk::TtlInDoubt => {
            "I accept that it is executed twice: it was executed, and its TTL has ended by the store's clock alone, which has jumped or was not watched for long enough."
        }
        ActionRisk::UnknownRetried => {
            "I accept that it may be executed twice: nobody knows whether its last attempt was executed, and this route executes retries of unknown keys."
        }
    }
}

/// Explains a state, and what a retry gets in it.
pub fn explain_state(state: StateKind, accepted: bool) -> &'static str {
    match state {
        StateKind::Dead if accepted => {
            "Oncegate accepted it for delivery and has given it up: nothing delivers it until you decide. Retries are told that it is accepted, as its caller was."
        }
        StateKind::Unknown if accepted => {
            "The delivery may have been executed. Retries are told that it is accepted, and the operation shows the state, until the outcome is known."
        }
        StateKind::Completed => "The response is stored, and every retry gets it.",
        StateKind::Dead => {
            "Oncegate no longer asks the service: only you, or a late answer, can say how it ended. Retries get 409, or the first answer again where the request was accepted for delivery."
        }
        StateKind::Expired => {
            "Past its TTL, and remembered. Late retries get 410; on a route with replay.until they are executed anew."
        }
        StateKind::InFlight => "An attempt is running. You cannot decide about the key until it ends.",
        StateKind::Queued => "Accepted, and waiting to be delivered to the service.",
        StateKind::Retryable => "Known not to have executed: the next retry is sent to the service.",
        StateKind::Unknown => {
            "The request may have been executed. Retries get 409, or the first answer again where it was accepted for delivery, until the outcome is known."
        }
    }
}

pub(super) trait CauseText: Into<UnknownCause> {
    fn explanation(self) -> String {
        match self.into() {
            UnknownCause::Body => {
                "a rule of the route's `outcome` takes the response's body for unknown, or cannot read it".into()
            }
            UnknownCause::Broken => "the connection to the service broke after the request may have reached it".into(),
            UnknownCause::Cancelled => "its client left, and the route's on_client_gone stops the service then".into(),
            UnknownCause::Crashed => "its instance stopped, or lost its lease, while the attempt ran".into(),
            UnknownCause::Grpc(status) => {
                format!(
                    "the service answered the call with {}, and the route takes this status for unknown",
                    status.name()
                )
            }
            UnknownCause::Service => "the service said so by Oncegate-Decision, or sent one that cannot be read".into(),
            UnknownCause::Status(status) => {
                format!("the service answered {}, and the route takes this status for unknown", status.as_u16())
            }
            UnknownCause::Stopped(stop, bytes) => {
                let why = match stop {
                    BodyStop::Broken => "the connection to the service broke",
                    BodyStop::Cancelled => "its clients left, and the route's on_client_gone stops the service then",
                    BodyStop::Timeout => "the service was silent or busy for longer than the route's stream timeouts",
                };
                format!("{why}, after {bytes} bytes of the response's body")
            }
            UnknownCause::Store => "the store lost the stored outcome in a failover".into(),
            UnknownCause::Timeout => "the service did not answer within the route's upstream_timeout".into(),
        }
    }
}

impl CauseText for UnknownCause {}

/// Explains why keys were not changed, each reason once.
pub fn explain_refusals(codes: impl Iterator<Item = ProblemCode>) -> String {
    let codes: BTreeSet<_> = codes.collect();
    codes.into_iter().map(explain_refusal).collect::<Vec<_>>().join("; or ")
}

pub fn explain_refusal(code: ProblemCode) -> &'static str {
    match code {
        ProblemCode::FourEyes => "two persons are needed for it, who look at each key",
        ProblemCode::KeyChanged => "it has changed since it was looked at",
        ProblemCode::KeyHeld => "an open transaction in the database holds it",
        ProblemCode::NoSuchKey => "it is gone",
        ProblemCode::NotQuiet => "its last attempt may still be running at the service",
        ProblemCode::RouteUnknown => "its route is not in this instance's configuration",
        ProblemCode::WrongState => "its state does not allow it, or not without accepting the risk",
        _ => "for another reason",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_is_found_by_its_name() {
        for action in ActionKind::ALL {
            assert_eq!(parse_action(action.text().name), Some(action));
        }
        assert_eq!(parse_action("resolve"), None);
    }
}
