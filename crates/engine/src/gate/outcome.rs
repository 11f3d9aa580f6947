//! The outcome of a guarded request, independent of how it is reported: HTTP, delivery or message.

use std::time::SystemTime;

use bytes::Bytes;
use http::header::HeaderValue;
use http::{StatusCode, response};

use oncegate_domain::decision::AcceptedProgress;
use oncegate_domain::operation::OperationId;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::response_policy::ResponseVerdict;
use oncegate_domain::state::CompletedResponse;
use oncegate_http::body::stream::StreamReader;
use oncegate_http::body::{ConnectionGuard, ConnectionGuards};
use oncegate_http::protocol::refusal::{Refusal, RetryAfter};
use oncegate_http::protocol::status::OncegateStatus;

/// The outcome of a guarded request.
pub enum Outcome {
    /// The request is stored for asynchronous delivery, or was before.
    Accepted { operation: OperationId, progress: AcceptedProgress },
    /// The whole response of the request's own attempt, as the service sent it.
    Answered {
        response: StoredResponse,
        /// The meaning of the response for the key.
        verdict: ResponseVerdict,
        /// Whether the store has the end of the attempt.
        is_stored: bool,
        /// When the key expires; `None` if the store has not said so.
        expires_at: Option<SystemTime>,
    },
    /// The store could not reserve, so the request was forwarded unguarded. The inner outcome is the attempt's.
    Bypassed(Box<Outcome>),
    /// This request was executed, and something else has stored its response: its delivery, or its service while the
    /// attempt ran.
    ExecutedElsewhere(CompletedResponse),
    /// Another attempt is running, and the route answers 202 rather than 409.
    InFlight(RetryAfter),
    /// Oncegate refuses in its own name.
    Refused(Refusal),
    /// The response of an earlier attempt.
    Replayed(CompletedResponse),
    /// The response of an attempt, this request's own or the one that it joined, whose body is still on its way.
    Streamed(StreamedResponse),
}

pub struct StreamedResponse {
    pub(super) head: response::Parts,
    pub(super) announced_trailers: Option<HeaderValue>,
    /// The body's length, if the service gave one.
    pub(super) length: Option<u64>,
    pub(super) status: StreamStatus,
    /// The body. It ends after the attempt is settled.
    pub(super) body: StreamReader,
    /// Ends the response with its client's connection, where somebody waits to learn that the client has left.
    pub(super) tie: Option<ConnectionGuard>,
}

/// The part of Oncegate in a response that is handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamStatus {
    /// The response of another request with the key, which is still running.
    Attached,
    /// The meaning of the response if its body comes to its end.
    InHead(ResponseVerdict),
    /// The end tells.
    Open,
}

impl StreamedResponse {
    /// Reads the body to its end and drops it. `None` if it broke off, or if its end could not be stored.
    pub async fn drain(self) -> Option<ResponseVerdict> {
        let is_whole = self.body.drain().await;
        match self.status {
            StreamStatus::InHead(verdict) => is_whole.then_some(verdict),
            // Only a client gets such a response.
            StreamStatus::Attached | StreamStatus::Open => None,
        }
    }

    pub fn status(&self) -> StatusCode {
        self.head.status
    }
}

impl Outcome {
    pub fn oncegate_status(&self) -> OncegateStatus {
        match self {
            Self::Accepted { progress, .. } => (*progress).into(),
            // Only a response that is to be replayed can lack its storage.
            Self::Answered { verdict: ResponseVerdict::Store, is_stored: false, .. } => OncegateStatus::Unstored,
            Self::Answered { verdict, .. } => status_by_verdict(*verdict),
            Self::Bypassed(_) => OncegateStatus::Bypassed,
            // A response that is not stored yet is not durable: it is lost if this instance stops now.
            Self::ExecutedElsewhere(completed) | Self::Replayed(completed) if completed.expires_at.is_none() => {
                OncegateStatus::Unstored
            }
            Self::ExecutedElsewhere(_) => OncegateStatus::Executed,
            Self::InFlight(_) => OncegateStatus::InFlight,
            Self::Refused(refusal) => refusal.oncegate_status(),
            Self::Replayed(_) => OncegateStatus::Replayed,
            Self::Streamed(streamed) => match streamed.status {
                StreamStatus::Attached => OncegateStatus::Attached,
                StreamStatus::InHead(verdict) => status_by_verdict(verdict),
                StreamStatus::Open => OncegateStatus::Streaming,
            },
        }
    }

    /// Lets a response that is handed on end as soon as its client's connection does, and not at the next bytes.
    pub(super) fn tie_to(&mut self, ties: &ConnectionGuards) {
        match self {
            Self::Bypassed(outcome) => outcome.tie_to(ties),
            Self::Streamed(streamed) => streamed.tie = Some(ties.attach()),
            _ => {}
        }
    }

    /// Whether it is the response of an earlier request, which this request's caller must be allowed to read.
    pub(super) fn is_of_earlier_request(&self) -> bool {
        match self {
            Self::Replayed(_) => true,
            Self::Streamed(streamed) => streamed.status == StreamStatus::Attached,
            _ => false,
        }
    }

    /// The body of a response that comes from the store.
    pub(super) fn stored_body(&self) -> Option<&Bytes> {
        match self {
            Self::Bypassed(outcome) => outcome.stored_body(),
            Self::ExecutedElsewhere(completed) | Self::Replayed(completed) => completed.response.body.as_ref(),
            Self::Accepted { .. }
            | Self::Answered { .. }
            | Self::InFlight(_)
            | Self::Refused(_)
            | Self::Streamed(_) => None,
        }
    }

    pub fn http_status(&self) -> StatusCode {
        match self {
            Self::Accepted { .. } | Self::InFlight(_) => StatusCode::ACCEPTED,
            Self::Bypassed(outcome) => outcome.http_status(),
            Self::ExecutedElsewhere(completed) | Self::Replayed(completed) => completed.response.status,
            Self::Answered { response, .. } => response.status,
            Self::Refused(refusal) => refusal.status(),
            Self::Streamed(streamed) => streamed.status(),
        }
    }
}

/// The status of a response whose meaning for the key is stored.
pub(super) fn status_by_verdict(verdict: ResponseVerdict) -> OncegateStatus {
    match verdict {
        ResponseVerdict::Release => OncegateStatus::Released,
        ResponseVerdict::Store => OncegateStatus::Executed,
        ResponseVerdict::Unknown => OncegateStatus::Unknown,
    }
}
