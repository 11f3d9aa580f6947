//! What Oncegate tells of its part in an answer.

use http::{HeaderMap, HeaderValue};

use super::fields::ONCEGATE_STATUS;

/// The values of `Oncegate-Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Forwarded unguarded, because the store could not reserve.
    Bypassed,
    /// This request was the first attempt, or the next one; the response is stored.
    Executed,
    /// Another request with this key is running.
    InFlight,
    /// The key belongs to another request.
    Mismatch,
    /// The route only looks on.
    Observed,
    /// Accepted: it will be delivered, or was, and its answer is to be asked for.
    Queued,
    /// The attempt counts as not executed: the same key may be sent again.
    Released,
    /// Nothing was executed now: the stored response, or word that there is none.
    Replayed,
    /// Refused before anything was done.
    Rejected,
    /// The attempt may have executed.
    Unknown,
    /// The true response, which could not be stored yet.
    Unstored,
}

impl Told {
    /// Each of them once, in the order of their names.
    pub const ALL: [Self; 11] = [
        Self::Bypassed,
        Self::Executed,
        Self::InFlight,
        Self::Mismatch,
        Self::Observed,
        Self::Queued,
        Self::Rejected,
        Self::Released,
        Self::Replayed,
        Self::Unknown,
        Self::Unstored,
    ];

    /// What an answer of ours tells; `None` for one that tells nothing.
    pub fn on(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get(ONCEGATE_STATUS)?;
        Self::ALL.into_iter().find(|told| value == told.name())
    }

    /// The field's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bypassed => "bypassed",
            Self::Executed => "executed",
            Self::InFlight => "in-flight",
            Self::Mismatch => "mismatch",
            Self::Observed => "observed",
            Self::Queued => "queued",
            Self::Rejected => "rejected",
            Self::Released => "released",
            Self::Replayed => "replayed",
            Self::Unknown => "unknown",
            Self::Unstored => "unstored",
        }
    }

    /// The field's value.
    pub fn value(self) -> HeaderValue {
        HeaderValue::from_static(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_every_status_once() {
        // No `_` arm: who adds one comes by here, and adds it to `ALL` too; what is not in there is not counted.
        let place = |told: Told| match told {
            Told::Bypassed => 0,
            Told::Executed => 1,
            Told::InFlight => 2,
            Told::Mismatch => 3,
            Told::Observed => 4,
            Told::Queued => 5,
            Told::Rejected => 6,
            Told::Released => 7,
            Told::Replayed => 8,
            Told::Unknown => 9,
            Told::Unstored => 10,
        };
        assert!(Told::ALL.into_iter().map(place).eq(0..Told::ALL.len()));
    }
}
