//! The states of a key.

use std::sync::Arc;
use std::time::SystemTime;

use super::macros::named;
use super::response::StoredResponse;

/// The state of a key, with the response where there is one: the known outcome of the newest attempt.
#[derive(Clone, Debug)]
pub enum KeyState {
    /// The response is stored.
    Completed(CompletedResponse),
    /// The outcome is not known, and reconciliation or delivery has been given up: an operator must decide.
    Dead,
    /// Completed once, and past its TTL: the response is gone, and late retries are refused.
    Expired,
    /// An attempt is running, or its instance has died and the sweeper has not run since.
    InFlight,
    /// Accepted for asynchronous delivery: waiting, or between tries.
    Queued,
    /// The last attempt is known not to have executed, or its status is one to release.
    Retryable,
    /// The attempt may have executed.
    Unknown,
}

impl KeyState {
    /// The state without its response.
    pub fn kind(&self) -> StateKind {
        match self {
            Self::Completed(_) => StateKind::Completed,
            Self::Dead => StateKind::Dead,
            Self::Expired => StateKind::Expired,
            Self::InFlight => StateKind::InFlight,
            Self::Queued => StateKind::Queued,
            Self::Retryable => StateKind::Retryable,
            Self::Unknown => StateKind::Unknown,
        }
    }

    pub fn name(&self) -> &'static str {
        self.kind().name()
    }
}

/// A stored response with the time at which it expires.
#[derive(Clone, Debug)]
pub struct CompletedResponse {
    pub response: Arc<StoredResponse>,
    /// When it expires, by the store's clock; `None` as long as no store has it.
    pub expires_at: Option<SystemTime>,
}

named! {
    /// The name of a key's state: the form in which stores, lists and filters have it.
    #[derive(Hash, PartialOrd, Ord, derive_more::Display)]
    #[display("{}", self.name())]
    pub enum StateKind {
        Completed => "completed",
        Dead => "dead",
        Expired => "expired",
        InFlight => "in_flight",
        Queued => "queued",
        Retryable => "retryable",
        Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_and_they_are_in_order() {
        for state in StateKind::ALL {
            assert_eq!(StateKind::parse(state.name()), Some(state));
        }
        assert!(StateKind::ALL.is_sorted_by_key(|state| state.name()) && StateKind::ALL.is_sorted());
        assert_eq!(StateKind::parse("Dead"), None);
    }
}
