//! `Oncegate-Status`: Oncegate's part in an answer.

use http::HeaderValue;

use crate::domain::decision::AcceptedProgress;

/// The values of `Oncegate-Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OncegateStatus {
    /// The request was forwarded unguarded, because the store could not reserve its key.
    Bypassed,
    /// This request was the first attempt or the next one, and its response is stored.
    Executed,
    /// Another request with this key is running.
    InFlight,
    /// The key was used for another request.
    KeyReused,
    /// The route only observes.
    Observed,
    /// The request was accepted for delivery, and waits for it or is being delivered; the client has to ask for its response.
    Queued,
    /// The attempt counts as not executed: the same key may be sent again.
    Released,
    /// Nothing was executed now: this is the stored response, or the statement that it was not kept.
    Replayed,
    /// The request was refused, and was not executed.
    Rejected,
    /// The attempt may have executed.
    Unknown,
    /// This is the service's response, and it could not be stored yet.
    Unstored,
}

impl From<AcceptedProgress> for OncegateStatus {
    fn from(progress: AcceptedProgress) -> Self {
        match progress {
            AcceptedProgress::Pending(_) => Self::Queued,
            AcceptedProgress::Unknown(_) | AcceptedProgress::Dead => Self::Unknown,
        }
    }
}

impl OncegateStatus {
    /// All statuses, each once, in the order of their names.
    pub const ALL: [Self; 11] = [
        Self::Bypassed,
        Self::Executed,
        Self::InFlight,
        Self::KeyReused,
        Self::Observed,
        Self::Queued,
        Self::Rejected,
        Self::Released,
        Self::Replayed,
        Self::Unknown,
        Self::Unstored,
    ];

    /// Returns the field's value as text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bypassed => "bypassed",
            Self::Executed => "executed",
            Self::InFlight => "in-flight",
            Self::KeyReused => "key-reused",
            Self::Observed => "observed",
            Self::Queued => "queued",
            Self::Rejected => "rejected",
            Self::Released => "released",
            Self::Replayed => "replayed",
            Self::Unknown => "unknown",
            Self::Unstored => "unstored",
        }
    }

    /// Returns the field's value.
    pub fn value(self) -> HeaderValue {
        HeaderValue::from_static(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_every_status_once() {
        // No `_` arm: a new status does not compile until it is added here. Add it to `ALL` too, or it is not counted.
        let index = |status: OncegateStatus| match status {
            OncegateStatus::Bypassed => 0,
            OncegateStatus::Executed => 1,
            OncegateStatus::InFlight => 2,
            OncegateStatus::KeyReused => 3,
            OncegateStatus::Observed => 4,
            OncegateStatus::Queued => 5,
            OncegateStatus::Rejected => 6,
            OncegateStatus::Released => 7,
            OncegateStatus::Replayed => 8,
            OncegateStatus::Unknown => 9,
            OncegateStatus::Unstored => 10,
        };
        assert!(OncegateStatus::ALL.into_iter().map(index).eq(0..OncegateStatus::ALL.len()));
    }
}
