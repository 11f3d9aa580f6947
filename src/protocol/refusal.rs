//! Refusals: all the error answers of Oncegate itself, in one table.
//!
//! Their documents are built in [`answer_shape`](super::answer_shape), in the form of the route's dialect.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::status::OncegateStatus;
use crate::domain::decision::KeyRefusal;
use crate::domain::key::KeyError;
use crate::domain::macros::named;
use crate::jwt::TokenFault;
use crate::telemetry::metrics::label;

/// An error answer of Oncegate itself. It is never stored as the response of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The service that authorizes replays gave no usable answer.
    AuthorizeUnavailable,
    /// The request violates HTTP, or is ambiguous about its end or its target.
    BadRequest(StatusCode, &'static str),
    /// This instance is stopping.
    Draining,
    /// The first attempt is still running.
    InFlight(RetryAfter),
    /// The keys of the issuer of callers' tokens have not been read yet.
    IssuerUnavailable,
    /// The key is past its TTL, and the route refuses late retries.
    KeyExpired,
    /// The key is invalid.
    KeyInvalid(&'static str),
    /// The route requires a key. The text says where it was looked for.
    KeyMissing(Cow<'static, str>),
    /// The key was used for another request.
    KeyReused(KeyReuse),
    /// The request has been through this instance before.
    LoopDetected,
    /// The attempt may have executed; its outcome is unknown, or cannot be told to this request.
    OutcomeUnknown(RetryAfter),
    /// A limit of this instance is reached.
    Overloaded(ReachedLimit),
    /// The service may read the path as one that a route guards, and the path is not spelled as that route's. The text names
    /// the route's path.
    PathAmbiguous(Cow<'static, str>),
    /// The request says that it was first sent in the future, by more than clocks differ.
    RequestFromFuture,
    /// The request did not arrive in time.
    RequestTimeout,
    /// The request's own time is older than the route allows.
    RequestTooOld,
    /// The body is larger than this limit of the route, in bytes.
    RequestTooLarge(usize),
    /// The key's record or its stored response cannot be decoded.
    ResponseCorrupt,
    /// The operation was executed, but its response was too large to store.
    ResponseNotKept,
    /// Nothing in the request identifies its caller. The text says what was looked for. With a value for `WWW-Authenticate`, the
    /// answer asks for credentials.
    ScopeMissing(Cow<'static, str>, Option<Arc<HeaderValue>>),
    /// The store cannot reserve the key.
    StoreUnavailable,
    /// The token that identifies the caller does not verify.
    TokenInvalid(TokenFault),
    /// The caller, or the address it comes from, uses more new keys than the route allows.
    TooManyKeys(RetryAfter),
    /// The operation may change state, and no route guards it.
    Unguarded,
    /// The upstream closed the connection after the request was sent.
    UpstreamBroken,
    /// No complete response came within the route's time limit.
    UpstreamTimeout,
    /// The service got nothing of the request, or processed nothing of it. The text says why.
    UpstreamUnreachable(Cow<'static, str>),
}

/// The kind of request that came with the key of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyReuse {
    /// A request with a body, which is another operation.
    OtherRequest,
    /// A request without a body, which may be the beginning of a retry.
    WithoutBody,
}

label!(
    /// A limit of an instance that was reached.
    ReachedLimit, "limit", {
        /// `limits.connections`, or the file descriptors.
        Connections => "connections",
        /// `limits.connections_per_peer`.
        ConnectionsPerPeer => "connections_per_peer",
        /// `limits.held_bodies`.
        HeldBodies => "held_bodies",
        /// `limits.upstream_connections`.
        UpstreamConnections => "upstream_connections",
    }
);

/// The value of `Retry-After`: whole seconds, from 1 to 86 400 (RFC 9110 section 10.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter(u64);

impl RetryAfter {
    /// Rounds up: a client that comes a little late finds its answer, one that comes early has to ask twice.
    pub fn new(wait: Duration) -> Self {
        Self(wait.as_millis().div_ceil(1_000).clamp(1, 86_400) as u64)
    }

    /// Returns the seconds.
    pub fn seconds(self) -> u64 {
        self.0
    }
}

impl From<KeyRefusal> for Refusal {
    fn from(refusal: KeyRefusal) -> Self {
        match refusal {
            KeyRefusal::Expired => Self::KeyExpired,
            KeyRefusal::InFlight(wait) => Self::InFlight(RetryAfter::new(wait)),
            KeyRefusal::OtherRequest => Self::KeyReused(KeyReuse::OtherRequest),
            KeyRefusal::OutcomeUnknown(wait) => Self::OutcomeUnknown(RetryAfter::new(wait)),
            KeyRefusal::ResponseNotKept => Self::ResponseNotKept,
            KeyRefusal::WithoutBody => Self::KeyReused(KeyReuse::WithoutBody),
        }
    }
}

named! {
    /// The client's next step.
    enum ClientAction {
        /// Correct the request: it can never succeed unchanged.
        Fix => "fix",
        /// This key is taken: a new operation needs a new one.
        NewKey => "new_key",
        /// Find out what happened before doing anything else.
        Reconcile => "reconcile",
        /// Send the same request with the same key again.
        SameKey => "same_key",
    }
}

struct RefusalRow<'a> {
    status: u16,
    slug: &'static str,
    title: &'static str,
    detail: Cow<'a, str>,
    action: ClientAction,
    oncegate_status: OncegateStatus,
}

impl Refusal {
    /// All refusals, each once, in the order of their names. The values that they carry are examples.
    pub const ALL: [Self; 27] = [
        Self::AuthorizeUnavailable,
        Self::BadRequest(StatusCode::BAD_REQUEST, ""),
        Self::Draining,
        Self::InFlight(RetryAfter(1)),
        Self::IssuerUnavailable,
        Self::KeyExpired,
        Self::KeyInvalid(""),
        Self::KeyMissing(Cow::Borrowed("")),
        Self::KeyReused(KeyReuse::OtherRequest),
        Self::LoopDetected,
        Self::OutcomeUnknown(RetryAfter(1)),
        Self::Overloaded(ReachedLimit::HeldBodies),
        Self::PathAmbiguous(Cow::Borrowed("")),
        Self::RequestFromFuture,
        Self::RequestTimeout,
        Self::RequestTooLarge(0),
        Self::RequestTooOld,
        Self::ResponseCorrupt,
        Self::ResponseNotKept,
        Self::ScopeMissing(Cow::Borrowed(""), None),
        Self::StoreUnavailable,
        Self::TokenInvalid(TokenFault::Malformed),
        Self::TooManyKeys(RetryAfter(1)),
        Self::Unguarded,
        Self::UpstreamBroken,
        Self::UpstreamTimeout,
        Self::UpstreamUnreachable(Cow::Borrowed("")),
    ];

    /// The whole error contract in one table.
    #[rustfmt::skip]
    fn row(&self) -> RefusalRow<'_> {
        use ClientAction::{Fix, NewKey, Reconcile, SameKey};
        let (status, slug, action, oncegate_status, title, detail): (_, _, _, _, _, Cow<'_, str>) = match self {
            Self::AuthorizeUnavailable => (503, "authorize-unavailable", SameKey, OncegateStatus::Rejected,
                "The response cannot be replayed at the moment", "Whether you may read the stored response could not be checked. This request was not executed; an earlier one with this key was. Send the same request with the same key again after Retry-After.".into()),
            Self::BadRequest(status, detail) => (status.as_u16(), "bad-request", Fix, OncegateStatus::Rejected,
                "The request cannot be forwarded", (*detail).into()),
            Self::Draining => (503, "draining", SameKey, OncegateStatus::Rejected,
                "This instance is stopping", "This request was not executed; an earlier one with this key may have been. Send the same request with the same key again; another instance will handle it.".into()),
            Self::InFlight(_) => (409, "in-flight", SameKey, OncegateStatus::InFlight,
                "The first attempt is still running", "A request with this key is being executed. Send the same request with the same key again after Retry-After.".into()),
            Self::IssuerUnavailable => (503, "issuer-unavailable", SameKey, OncegateStatus::Rejected,
                "The token cannot be verified at the moment", "The keys of the token\'s issuer have not been read yet. This request was not executed; an earlier one with this key may have been. Send the same request with the same key again after Retry-After.".into()),
            Self::KeyExpired => (410, "key-expired", NewKey, OncegateStatus::Rejected,
                "The key has expired", "An earlier request with this key may have been executed. Oncegate no longer has its outcome: the TTL of the key has ended, or an operator has removed it. This request was not executed. A new operation needs a new key.".into()),
            Self::KeyInvalid(detail) => (400, "key-invalid", Fix, OncegateStatus::Rejected,
                "The idempotency key cannot be used", (*detail).into()),
            Self::KeyMissing(detail) => (400, "key-missing", Fix, OncegateStatus::Rejected,
                "An idempotency key is required", (&**detail).into()),
            Self::KeyReused(KeyReuse::OtherRequest) => (422, "key-reused", NewKey, OncegateStatus::KeyReused,
                "The key was used for another request", "This key belongs to a request that differs from this one. A new operation needs a new key; a retry must repeat the first request unchanged.".into()),
            Self::KeyReused(KeyReuse::WithoutBody) => (422, "key-reused", Fix, OncegateStatus::KeyReused,
                "The key was used for another request", "This request has no body, and the request that the key belongs to is another one, which may have been executed. If this is a retry of it, send it as it was sent first, with its body and the same key: some clients send no body until they are asked for credentials.".into()),
            Self::LoopDetected => (508, "loop-detected", Fix, OncegateStatus::Rejected,
                "The request has come back", "The request has been through this instance before: its upstream leads back to it. It was not forwarded again.".into()),
            Self::OutcomeUnknown(_) => (409, "outcome-unknown", Reconcile, OncegateStatus::Unknown,
                "The outcome of the first attempt is unknown", "The request may have been executed. While that is unknown, it is not executed again unless the route allows it. Ask the service what happened before you do anything else.".into()),
            Self::Overloaded(_) => (503, "overloaded", SameKey, OncegateStatus::Rejected,
                "This instance has too much work", "This request was not executed; an earlier one with this key may have been. Send the same request with the same key again after Retry-After.".into()),
            Self::PathAmbiguous(detail) => (400, "path-ambiguous", Fix, OncegateStatus::Rejected,
                "The path is not spelled in the one way that is guarded", (&**detail).into()),
            Self::RequestFromFuture => (412, "request-from-future", Fix, OncegateStatus::Rejected,
                "The request says that it comes from the future", "The time at which the request was first sent lies ahead of this instance's clock. This request was not executed. Correct the clock of the client.".into()),
            Self::RequestTimeout => (408, "request-timeout", Fix, OncegateStatus::Rejected,
                "The request did not arrive in time", "The request stopped arriving, and the service did not get all of it.".into()),
            Self::RequestTooOld => (400, "request-too-old", Fix, OncegateStatus::Rejected,
                "The request is too old", "The request says that it was first sent longer ago than this route allows. This request was not executed; an earlier one with this key may have been.".into()),
            Self::RequestTooLarge(bytes) => (413, "request-too-large", Fix, OncegateStatus::Rejected,
                "The request is too large", format!("The request\'s body is larger than the {bytes} bytes that this route allows. This request was not executed.").into()),
            Self::ResponseCorrupt => (500, "response-corrupt", Fix, OncegateStatus::Rejected,
                "The record of the key cannot be read", "An earlier request with this key may have been executed, and the record of it cannot be read. It is not executed again. Ask the service what happened before you do anything else; an operator must look at the record.".into()),
            Self::ResponseNotKept => (409, "response-not-kept", Reconcile, OncegateStatus::Replayed,
                "Executed, but the response was not stored", "The operation was executed. Its response was too large to store and went to the first caller only. Ask the service for the result.".into()),
            Self::ScopeMissing(detail, challenge) => (if challenge.is_some() { 401 } else { 400 }, "scope-missing", Fix, OncegateStatus::Rejected,
                "The caller cannot be identified", (&**detail).into()),
            Self::StoreUnavailable => (503, "store-unavailable", SameKey, OncegateStatus::Rejected,
                "The key cannot be reserved at the moment", "This request was not forwarded; an earlier one with this key may have been executed. A route that delivers later may have accepted this one. Send the same request with the same key again after Retry-After.".into()),
            Self::TokenInvalid(fault) => (401, "token-invalid", Fix, OncegateStatus::Rejected,
                "The token is not valid", format!("{} This request was not executed; an earlier one with this key may have been. Get a new token, and send the same request with the same key again.", fault.detail()).into()),
            Self::TooManyKeys(_) => (429, "too-many-keys", SameKey, OncegateStatus::Rejected,
                "Too many new keys", "This caller, or the address it comes from, uses or holds more keys than this route allows. The store has no record of this key, and this request was not executed. Send the same request with the same key again after Retry-After.".into()),
            Self::Unguarded => (403, "unguarded", Fix, OncegateStatus::Rejected,
                "This operation is not guarded", "The operation may change state, and no route makes it safe to retry. This request was not executed.".into()),
            Self::UpstreamBroken => (502, "upstream-broken", Reconcile, OncegateStatus::Unknown,
                "The connection to the service failed", "The request may have been executed: the service closed the connection after it was sent. Ask the service what happened before you do anything else.".into()),
            Self::UpstreamTimeout => (504, "upstream-timeout", Reconcile, OncegateStatus::Unknown,
                "The service did not answer in time", "The request may have been executed: no complete response came in time. Ask the service what happened before you do anything else.".into()),
            Self::UpstreamUnreachable(reason) => (502, "upstream-unreachable", SameKey, OncegateStatus::Released,
                "The service cannot be reached", format!("{reason} Send it again, with the same key if it has one.").into()),
        };
        RefusalRow { status, slug, title, detail, action, oncegate_status }
    }

    /// Returns the name for the problem's type, its label in metrics and its page.
    pub fn slug(&self) -> &'static str {
        self.row().slug
    }

    /// Returns the problem's title.
    pub fn title(&self) -> &'static str {
        self.row().title
    }

    /// Returns the answer's status.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.row().status).expect("the table has valid statuses only")
    }

    /// Returns the problem's detail: what is wrong, in one to three sentences.
    pub fn detail(&self) -> Cow<'_, str> {
        self.row().detail
    }

    /// Returns the client's next step, the document's `retry`: `fix`, `new_key`, `reconcile` or `same_key`.
    pub fn client_action(&self) -> &'static str {
        self.row().action.name()
    }

    /// Returns the `Oncegate-Status` of the answer on a guarded route.
    pub fn oncegate_status(&self) -> OncegateStatus {
        self.row().oncegate_status
    }

    /// Whether the client may send the same request with the same key again: this one was not executed, or the
    /// first attempt runs.
    pub fn invites_retry(&self) -> bool {
        self.row().action == ClientAction::SameKey
    }

    /// Returns the time after which the client may ask again; `None` where the answer names none.
    pub fn retry_after(&self) -> Option<RetryAfter> {
        match self {
            Self::InFlight(wait) | Self::OutcomeUnknown(wait) | Self::TooManyKeys(wait) => Some(*wait),
            Self::AuthorizeUnavailable
            | Self::Draining
            | Self::IssuerUnavailable
            | Self::Overloaded(_)
            | Self::StoreUnavailable => Some(RetryAfter(1)),
            Self::BadRequest(..)
            | Self::KeyExpired
            | Self::KeyInvalid(_)
            | Self::KeyMissing(_)
            | Self::KeyReused(_)
            | Self::LoopDetected
            | Self::PathAmbiguous(_)
            | Self::RequestFromFuture
            | Self::RequestTimeout
            | Self::RequestTooLarge(_)
            | Self::RequestTooOld
            | Self::ResponseCorrupt
            | Self::ResponseNotKept
            | Self::ScopeMissing(..)
            | Self::TokenInvalid(_)
            | Self::Unguarded
            | Self::UpstreamBroken
            | Self::UpstreamTimeout
            | Self::UpstreamUnreachable(_) => None,
        }
    }

    /// Whether the connection closes after this answer: the client should leave, or its bytes have stopped.
    fn closes(&self) -> bool {
        matches!(self, Self::Draining | Self::RequestTimeout)
    }

    /// Adds the fields that the answer has, whatever the form of its document.
    pub fn add_fields(&self, headers: &mut HeaderMap) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(wait.seconds()));
        }
        if matches!(self, Self::TokenInvalid(_)) {
            // RFC 6750 section 3.
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer error=\"invalid_token\""));
        }
        if let Self::ScopeMissing(_, Some(challenge)) = self {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::clone(challenge));
        }
        if self.closes() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

impl From<KeyError> for Refusal {
    fn from(error: KeyError) -> Self {
        Self::KeyInvalid(match error {
            KeyError::BadCharacter => {
                "The key has a character that this route's syntax does not allow. By default, visible ASCII without comma is allowed, or printable characters in quotes."
            }
            KeyError::BadString => {
                "The key is not a structured-field String, which is in quotes (RFC 9651 section 3.3.3)."
            }
            KeyError::Empty => "The key is empty.",
            KeyError::NotUuid => "This route requires UUIDs as keys, and this key is not a UUID.",
            KeyError::Several => "The key was sent more than once.",
            KeyError::TooLong => "The key is longer than this route allows.",
            KeyError::TooShort => "The key is shorter than this route allows.",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_every_refusal_once() {
        // No `_` arm: a new refusal does not compile until it is added here. Add it to `ALL` too.
        let index = |refusal: Refusal| match refusal {
            Refusal::AuthorizeUnavailable => 0,
            Refusal::BadRequest(..) => 1,
            Refusal::Draining => 2,
            Refusal::InFlight(_) => 3,
            Refusal::IssuerUnavailable => 4,
            Refusal::KeyExpired => 5,
            Refusal::KeyInvalid(_) => 6,
            Refusal::KeyMissing(_) => 7,
            Refusal::KeyReused(_) => 8,
            Refusal::LoopDetected => 9,
            Refusal::OutcomeUnknown(_) => 10,
            Refusal::Overloaded(_) => 11,
            Refusal::PathAmbiguous(_) => 12,
            Refusal::RequestFromFuture => 13,
            Refusal::RequestTimeout => 14,
            Refusal::RequestTooLarge(_) => 15,
            Refusal::RequestTooOld => 16,
            Refusal::ResponseCorrupt => 17,
            Refusal::ResponseNotKept => 18,
            Refusal::ScopeMissing(..) => 19,
            Refusal::StoreUnavailable => 20,
            Refusal::TokenInvalid(_) => 21,
            Refusal::TooManyKeys(_) => 22,
            Refusal::Unguarded => 23,
            Refusal::UpstreamBroken => 24,
            Refusal::UpstreamTimeout => 25,
            Refusal::UpstreamUnreachable(_) => 26,
        };
        assert!(Refusal::ALL.into_iter().map(index).eq(0..Refusal::ALL.len()));
    }

    #[test]
    fn a_request_without_a_body_is_never_advised_to_take_a_new_key() {
        let wait = Duration::from_secs(1);
        for (refusal, slug, advice) in [
            (KeyRefusal::Expired, "key-expired", "new_key"),
            (KeyRefusal::InFlight(wait), "in-flight", "same_key"),
            (KeyRefusal::OtherRequest, "key-reused", "new_key"),
            (KeyRefusal::OutcomeUnknown(wait), "outcome-unknown", "reconcile"),
            (KeyRefusal::ResponseNotKept, "response-not-kept", "reconcile"),
            (KeyRefusal::WithoutBody, "key-reused", "fix"),
        ] {
            let refusal = Refusal::from(refusal);
            assert_eq!((refusal.slug(), refusal.client_action()), (slug, advice));
        }
    }

    #[test]
    fn retry_after_is_whole_seconds_and_at_least_one() {
        for (millis, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (30_000, 30)] {
            assert_eq!(RetryAfter::new(Duration::from_millis(millis)).seconds(), seconds, "{millis} ms");
        }
    }
}
