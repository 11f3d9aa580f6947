//! Refusals: all the error answers of Oncegate itself, in one table.
//!
//! Their documents are built in [`answer_shape`](super::answer_shape), in the form of the route's dialect.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONNECTION, LINK, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::fields;
use super::status::OncegateStatus;
use oncegate_domain::decision::KeyRefusal;
pub use oncegate_domain::differing_parts::DifferingParts;
use oncegate_domain::ids::RecordId;
use oncegate_domain::key::KeyError;
use oncegate_domain::macros::named;
use oncegate_domain::operation::OperationId;
use oncegate_telemetry::metrics::label;
use oncegate_trust::jwt::TokenFault;
use oncegate_trust::webhook::SignatureFault;

pub mod rows;

/// The path of operations on the clients' listener.
pub const OPERATIONS: &str = "/.oncegate/operations/";

/// An error answer of Oncegate itself. It is never stored as the response of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The service that authorizes replays gave no usable answer.
    AuthorizeUnavailable,
    /// The request violates HTTP, or is ambiguous about its end or its target.
    BadRequest(StatusCode, &'static str),
    Draining,
    /// The caller has sent an equal request under another key: its record, and its operation if it is surely the
    /// caller's own.
    DuplicateSuspected(Option<Box<(RecordId, Option<OperationId>)>>),
    InFlight(RetryAfter),
    /// The keys of the issuer of callers' tokens have not been read yet.
    IssuerUnavailable,
    /// The key is past its TTL, and the route refuses late retries.
    KeyExpired,
    KeyInvalid(&'static str),
    /// The route requires a key. The text says where it was looked for.
    KeyMissing(Cow<'static, str>),
    /// The key belongs to a request that differs from this one in these parts.
    KeyReused(DifferingParts),
    /// The request has been through this instance before.
    LoopDetected,
    /// The attempt may have executed; its outcome is unknown, or not for this request. `None` where no time brings it.
    OutcomeUnknown(Option<RetryAfter>),
    Overloaded(ReachedLimit),
    /// The service may read the path as one that a route guards, and the path is not spelled as that route's. The text
    /// names the route's path.
    PathAmbiguous(Cow<'static, str>),
    /// The request says that it was first sent in the future, by more than clocks differ.
    RequestFromFuture,
    RequestTimeout,
    /// The request's own time is older than the route allows.
    RequestTooOld,
    /// The body is larger than this limit of the route, in bytes.
    RequestTooLarge(usize),
    /// The key's record or its stored response cannot be decoded.
    ResponseCorrupt,
    /// The operation was executed, but its response was too large to store.
    ResponseNotKept,
    /// Nothing in the request identifies its caller. The text says what was looked for. With a value for
    /// `WWW-Authenticate`, the answer asks for credentials.
    ScopeMissing(Cow<'static, str>, Option<Arc<HeaderValue>>),
    /// The request is not from the sender of the route's webhooks.
    SignatureInvalid(SignatureFault),
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

label!(
    /// A limit of an instance that was reached.
    ReachedLimit, "limit", {
        /// `limits.connections`, or the file descriptors.
        Connections => "connections",
        ConnectionsPerPeer => "connections_per_peer",
        HeldBodies => "held_bodies",
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

    pub fn seconds(self) -> u64 {
        self.0
    }
}

impl From<KeyRefusal> for Refusal {
    fn from(refusal: KeyRefusal) -> Self {
        match refusal {
            KeyRefusal::Expired => Self::KeyExpired,
            KeyRefusal::InFlight(wait) => Self::InFlight(RetryAfter::new(wait)),
            KeyRefusal::KeyReused(differing) => Self::KeyReused(differing),
            KeyRefusal::OutcomeUnknown(wait) => Self::OutcomeUnknown(wait.map(RetryAfter::new)),
            KeyRefusal::ResponseNotKept => Self::ResponseNotKept,
        }
    }
}

named! {
    pub enum ClientAction {
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

impl Refusal {
    /// All refusals, each once, in the order of their names. The values that they carry are examples.
    pub const ALL: [Self; 29] = [
        Self::AuthorizeUnavailable,
        Self::BadRequest(StatusCode::BAD_REQUEST, ""),
        Self::Draining,
        Self::DuplicateSuspected(None),
        Self::InFlight(RetryAfter(1)),
        Self::IssuerUnavailable,
        Self::KeyExpired,
        Self::KeyInvalid(""),
        Self::KeyMissing(Cow::Borrowed("")),
        Self::KeyReused(DifferingParts::ANOTHER_OPERATION),
        Self::LoopDetected,
        Self::OutcomeUnknown(Some(RetryAfter(1))),
        Self::Overloaded(ReachedLimit::HeldBodies),
        Self::PathAmbiguous(Cow::Borrowed("")),
        Self::RequestFromFuture,
        Self::RequestTimeout,
        Self::RequestTooLarge(0),
        Self::RequestTooOld,
        Self::ResponseCorrupt,
        Self::ResponseNotKept,
        Self::ScopeMissing(Cow::Borrowed(""), None),
        Self::SignatureInvalid(SignatureFault::Missing),
        Self::StoreUnavailable,
        Self::TokenInvalid(TokenFault::Malformed),
        Self::TooManyKeys(RetryAfter(1)),
        Self::Unguarded,
        Self::UpstreamBroken,
        Self::UpstreamTimeout,
        Self::UpstreamUnreachable(Cow::Borrowed("")),
    ];

    /// Returns the name for the problem's type, its label in metrics and its page.
    pub fn slug(&self) -> &'static str {
        self.row().slug
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.row().status).expect("the table has valid statuses only")
    }

    pub fn detail(&self) -> Cow<'_, str> {
        self.row().detail
    }

    /// Returns the client's next step, the document's `retry`: `fix`, `new_key`, `reconcile` or `same_key`.
    pub fn client_action(&self) -> &'static str {
        self.row().action.name()
    }

    /// Returns the places in which the request differs from the one that its key belongs to, as far as they are known.
    pub fn differs(&self) -> &[String] {
        match self {
            Self::KeyReused(differing) => differing.names(),
            _ => &[],
        }
    }

    /// Returns the reason for which the request's signature or token is not valid.
    pub fn fault(&self) -> Option<&'static str> {
        match self {
            Self::SignatureInvalid(fault) => Some(fault.name()),
            Self::TokenInvalid(fault) => Some(fault.name()),
            _ => None,
        }
    }

    pub fn oncegate_status(&self) -> OncegateStatus {
        self.row().oncegate_status
    }

    /// Whether the client may send the same request with the same key again: this one was not executed, or the
    /// first attempt runs.
    pub fn invites_retry(&self) -> bool {
        self.row().action == ClientAction::SameKey
    }

    /// Whether Oncegate or its store is the cause, and neither the request nor the service.
    pub fn is_own_failure(&self) -> bool {
        matches!(
            self,
            Self::Draining
                | Self::IssuerUnavailable
                | Self::Overloaded(_)
                | Self::ResponseCorrupt
                | Self::StoreUnavailable
        )
    }

    /// Adds the fields that the answer has, whatever the form of its document.
    pub fn add_fields(&self, headers: &mut HeaderMap) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = self.row().retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(wait.seconds()));
        }
        if matches!(self, Self::TokenInvalid(_)) {
            // RFC 6750 section 3.
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer error=\"invalid_token\""));
        }
        if matches!(self, Self::SignatureInvalid(_)) {
            // A 401 names a scheme (RFC 9110 section 11.6.1). None is registered for webhooks.
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Signature"));
        }
        if let Self::DuplicateSuspected(Some(earlier)) = self {
            let (record, operation) = &**earlier;
            headers.insert(fields::DUPLICATE_OF, visible(record));
            if let Some(operation) = operation {
                // An equal request is no part of a series: no relation that is registered says more.
                headers.insert(LINK, visible(&format!("<{OPERATIONS}{operation}>; rel=\"related\"")));
            }
        }
        if let Self::ScopeMissing(_, Some(challenge)) = self {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::clone(challenge));
        }
        // The client should leave, or its bytes have stopped.
        if matches!(self, Self::Draining | Self::RequestTimeout) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// A text of visible ASCII as a field's value.
fn visible(text: &impl ToString) -> HeaderValue {
    HeaderValue::try_from(text.to_string()).expect("hex and punctuation are visible ASCII")
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
            Refusal::DuplicateSuspected(_) => 3,
            Refusal::InFlight(_) => 4,
            Refusal::IssuerUnavailable => 5,
            Refusal::KeyExpired => 6,
            Refusal::KeyInvalid(_) => 7,
            Refusal::KeyMissing(_) => 8,
            Refusal::KeyReused(_) => 9,
            Refusal::LoopDetected => 10,
            Refusal::OutcomeUnknown(_) => 11,
            Refusal::Overloaded(_) => 12,
            Refusal::PathAmbiguous(_) => 13,
            Refusal::RequestFromFuture => 14,
            Refusal::RequestTimeout => 15,
            Refusal::RequestTooLarge(_) => 16,
            Refusal::RequestTooOld => 17,
            Refusal::ResponseCorrupt => 18,
            Refusal::ResponseNotKept => 19,
            Refusal::ScopeMissing(..) => 20,
            Refusal::SignatureInvalid(_) => 21,
            Refusal::StoreUnavailable => 22,
            Refusal::TokenInvalid(_) => 23,
            Refusal::TooManyKeys(_) => 24,
            Refusal::Unguarded => 25,
            Refusal::UpstreamBroken => 26,
            Refusal::UpstreamTimeout => 27,
            Refusal::UpstreamUnreachable(_) => 28,
        };
        assert!(Refusal::ALL.into_iter().map(index).eq(0..Refusal::ALL.len()));
    }

    #[test]
    fn each_refusal_is_in_the_promises() {
        let page = include_str!("../../../../docs/promises.md");
        for refusal in Refusal::ALL {
            assert!(page.contains(refusal.slug()), "docs/promises.md does not say what `{}` promises", refusal.slug());
        }
    }

    #[test]
    fn a_new_key_is_advised_only_for_another_operation() {
        let wait = Duration::from_secs(1);
        for (refusal, slug, advice) in [
            (KeyRefusal::Expired, "key-expired", "new_key"),
            (KeyRefusal::InFlight(wait), "in-flight", "same_key"),
            (KeyRefusal::KeyReused(DifferingParts::ANOTHER_OPERATION), "key-reused", "new_key"),
            (KeyRefusal::KeyReused(DifferingParts::default()), "key-reused", "fix"),
            (KeyRefusal::OutcomeUnknown(Some(wait)), "outcome-unknown", "reconcile"),
            (KeyRefusal::ResponseNotKept, "response-not-kept", "reconcile"),
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
