//! What Oncegate tells of its part in an answer.

use http::HeaderValue;

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
