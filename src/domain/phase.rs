//! The states' names.

use std::fmt;

/// A state of a key by its name alone, without what comes with it: what lists show and filters ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The response is stored.
    Completed,
    /// An operator must decide.
    Dead,
    /// Completed once, and past its TTL.
    Expired,
    /// An attempt is running.
    InFlight,
    /// Accepted, and waiting for its next delivery.
    Queued,
    /// The next request becomes the next attempt.
    Retryable,
    /// The attempt may have executed.
    Unknown,
}

impl Phase {
    /// Each of them, in the order of their names.
    pub const ALL: [Self; 7] =
        [Self::Completed, Self::Dead, Self::Expired, Self::InFlight, Self::Queued, Self::Retryable, Self::Unknown];

    /// As it stands in the store and in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Dead => "dead",
            Self::Expired => "expired",
            Self::InFlight => "in_flight",
            Self::Queued => "queued",
            Self::Retryable => "retryable",
            Self::Unknown => "unknown",
        }
    }

    /// The one of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.name() == name)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
