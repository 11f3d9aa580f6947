//! What states and decisions are in plain words: for somebody who was woken up.

use crate::admin::desk::Verb;

/// What can be decided about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Completed,
    NotExecuted,
    Purge,
    Release,
    Requeue,
}

impl Step {
    /// In the order in which they are offered: what settles a key first, what forgets it last.
    pub const ALL: [Self; 5] = [Self::Completed, Self::NotExecuted, Self::Requeue, Self::Release, Self::Purge];

    /// In addresses and forms.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::NotExecuted => "not-executed",
            Self::Purge => "purge",
            Self::Release => "release",
            Self::Requeue => "requeue",
        }
    }

    /// The one of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.name() == name)
    }

    /// What is asked of the desk about one key, and the `action` and `outcome` that say the same about several.
    pub fn asks(self) -> (Verb, &'static str, Option<&'static str>) {
        match self {
            Self::Completed => (Verb::Resolve, "resolve", Some("completed")),
            Self::NotExecuted => (Verb::Resolve, "resolve", Some("not_executed")),
            Self::Purge => (Verb::Purge, "purge", None),
            Self::Release => (Verb::Release, "release", None),
            Self::Requeue => (Verb::Requeue, "requeue", None),
        }
    }

    /// On the link that leads to it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Completed => "It was executed",
            Self::NotExecuted => "It was not executed",
            Self::Purge => "Forget it",
            Self::Release => "Drop its response",
            Self::Requeue => "Take it up again",
        }
    }

    /// What the command line and the API call it.
    pub fn command(self) -> &'static str {
        match self {
            Self::Completed => "resolve --completed",
            Self::NotExecuted => "resolve --not-executed",
            Self::Purge => "purge",
            Self::Release => "release",
            Self::Requeue => "requeue",
        }
    }

    /// On the button that does it.
    pub fn button(self) -> &'static str {
        match self {
            Self::Completed => "Store this response",
            Self::NotExecuted => "Let the next retry execute it",
            Self::Purge => "Forget it",
            Self::Release => "Drop the stored response",
            Self::Requeue => "Take it up again",
        }
    }

    /// What whoever does it says.
    pub fn means(self) -> &'static str {
        match self {
            Self::Completed => {
                "You know that the service carried the operation out, and what it answered: from its own records, not by guessing."
            }
            Self::NotExecuted => {
                "You know that the service did nothing of the operation: you have looked in its own records, and there is nothing."
            }
            Self::Purge => "Nothing of the key shall be remembered, as if it had never been seen.",
            Self::Release => {
                "The response that is stored was wrong to keep, and the operation shall be executed once more."
            }
            Self::Requeue => {
                "It was given up too early: because the service was away while it was asked, or while this was to be delivered."
            }
        }
    }

    /// What comes of it.
    pub fn follows(self) -> &'static str {
        match self {
            Self::Completed => {
                "Every retry gets the response that you write below, from now until the route's TTL has passed. Nothing is executed. A late answer of the service no longer counts."
            }
            Self::NotExecuted => {
                "The next retry with this key is sent to the service; what was accepted for a later delivery is delivered at once. If the operation was carried out after all, it is then carried out twice. Until that retry comes, a late answer of the service still counts."
            }
            Self::Purge => {
                "The next request with this key is a first one, and is executed. Every running instance has forgotten the key when this is done. It cannot be undone."
            }
            Self::Release => {
                "The stored response is gone, and the next retry with this key is executed: a second time, if the first one did anything. It cannot be undone."
            }
            Self::Requeue => {
                "What was accepted for a later delivery, and is known not to have executed, is delivered anew. Anything else is unknown again, and the service is asked how it ended if its route has a reconcile.url: nothing is executed by that, and retries still get 409."
            }
        }
    }

    /// What is done, for the notice after it.
    pub fn done(self) -> &'static str {
        match self {
            Self::Completed => "completed by hand: retries get the response that was written",
            Self::NotExecuted => "retryable: the next retry is executed, or the delivery",
            Self::Purge => "forgotten",
            Self::Release => "retryable: the stored response is gone, and the next retry is executed",
            Self::Requeue => "taken up again",
        }
    }

    /// What is taken upon oneself where it is done although it may not be; of states in which that can be.
    pub fn risk(self, state: &str) -> Option<&'static str> {
        match (self, state) {
            (Self::NotExecuted, _) => Some(
                "I do not wait. Its last attempt may still be running, or arrive yet: it may be executed, and the next retry too.",
            ),
            (Self::Purge, "dead" | "unknown") => Some(
                "I accept that it may be executed twice: nobody knows whether its last attempt was executed, and the next request with this key will be.",
            ),
            (Self::Purge, "queued") => Some(
                "I accept that it is not delivered: its caller was told that it was accepted, and nobody sends it any more.",
            ),
            _ => None,
        }
    }

    /// Those that there are for a key in that state; with a risk, where that is what they take.
    pub fn of(state: &str) -> &'static [Self] {
        match state {
            "completed" => &[Self::Release, Self::Purge],
            "dead" => &[Self::Completed, Self::NotExecuted, Self::Requeue, Self::Purge],
            "unknown" => &[Self::Completed, Self::NotExecuted, Self::Purge],
            "expired" | "queued" | "retryable" => &[Self::Purge],
            _ => &[],
        }
    }
}

/// What it is to be in that state, and what a retry gets.
pub fn state(name: &str) -> &'static str {
    match name {
        "completed" => "The response is stored, and every retry gets it.",
        "dead" => "Asking has been given up: only you, or a late answer, can say how it ended. Retries get 409.",
        "expired" => "Past its TTL, and remembered only to refuse late retries with 410.",
        "in_flight" => "An attempt is running. Nothing is decided about it until it ends.",
        "queued" => "Accepted, and waiting to be delivered to the service.",
        "retryable" => "Known not to have executed: the next retry is sent to the service.",
        "unknown" => "It may have been executed, and nobody knows. Retries get 409 until somebody does.",
        _ => "",
    }
}

/// Why a key was not changed, by the problem's code.
pub fn refusal(code: &str) -> &'static str {
    match code {
        "key-changed" => "it has changed since it was looked at",
        "key-held" => "an open transaction in the database holds it",
        "no-such-key" => "it is gone",
        "not-quiet" => "its last attempt may still be running",
        "route-unknown" => "its route is not in this instance's configuration",
        "wrong-state" => "its state does not allow it, or not without accepting the risk",
        _ => "for another reason",
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;
    use crate::domain::phase::Phase;
    use crate::domain::response::StoredResponse;
    use crate::store::books::{Change, Decision};

    #[test]
    fn what_is_offered_is_what_the_store_does() {
        for phase in Phase::ALL {
            assert!(!state(phase.name()).is_empty(), "{phase}");
            for step in Step::ALL {
                let response = StoredResponse {
                    status: StatusCode::OK,
                    headers: HeaderMap::new(),
                    body: None,
                    trailers: HeaderMap::new(),
                };
                let change = match step {
                    Step::Completed => Change::Complete(response),
                    Step::NotExecuted => Change::NotExecuted,
                    Step::Purge => Change::Purge,
                    Step::Release => Change::Release,
                    Step::Requeue => Change::Requeue,
                };
                let decision =
                    |accept_risk| Decision { change: change.clone(), actor: String::new(), note: None, accept_risk };
                let offered = Step::of(phase.name()).contains(&step);
                assert_eq!(offered, decision(true).is_for(phase), "{step:?} of {phase}");
                let wants_risk = decision(true).is_for(phase) && !decision(false).is_for(phase);
                assert!(!wants_risk || step.risk(phase.name()).is_some(), "{step:?} of {phase}");
            }
        }
    }

    #[test]
    fn a_step_is_found_by_its_name() {
        for step in Step::ALL {
            assert_eq!(Step::parse(step.name()), Some(step));
        }
        assert_eq!(Step::parse("resolve"), None);
    }
}
