//! `Oncegate-Status`: Oncegate's part in an answer.

use http::HeaderValue;

use oncegate_domain::decision::AcceptedProgress;
use oncegate_telemetry::metrics::label;

label!(
    OncegateStatus, "status", {
        /// This is the response of another request with the key, which is still running. It streams from its beginning.
        Attached => "attached",
        /// The request was forwarded unguarded, because the store could not reserve its key.
        Bypassed => "bypassed",
        /// This request was the first attempt or the next one, and its response is stored.
        Executed => "executed",
        InFlight => "in-flight",
        KeyReused => "key-reused",
        Observed => "observed",
        /// The request was accepted, and is not delivered yet: the client asks for its response.
        Queued => "queued",
        /// The request was refused, and was not executed.
        Rejected => "rejected",
        /// The attempt counts as not executed: the same key may be sent again.
        Released => "released",
        /// Nothing was executed now: this is the stored response, or the statement that it was not kept.
        Replayed => "replayed",
        /// This attempt's response streams. It is stored before its end, whose trailer has the status.
        Streaming => "streaming",
        /// The attempt may have executed.
        Unknown => "unknown",
        /// This is the service's response, and it could not be stored yet.
        Unstored => "unstored",
    }
);

impl From<AcceptedProgress> for OncegateStatus {
    fn from(progress: AcceptedProgress) -> Self {
        match progress {
            AcceptedProgress::Pending(_) => Self::Queued,
            AcceptedProgress::Unknown(_) | AcceptedProgress::Dead => Self::Unknown,
        }
    }
}

impl OncegateStatus {
    pub fn value(self) -> HeaderValue {
        HeaderValue::from_static(self.name())
    }
}
