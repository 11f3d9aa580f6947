//! Arm: everything that Oncegate answers in its own name, in one table.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use super::status::Told;
use crate::body::Body;
use crate::domain::key::KeyError;

/// An answer in our own name. None is ever stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request breaks HTTP, or is ambiguous about where it ends or whom it is for.
    BadRequest(StatusCode, &'static str),
    /// This instance is being stopped.
    Draining,
    /// The first attempt is still running.
    InFlight(RetryAfter),
    /// The key is past its TTL, and the route refuses late retries.
    KeyExpired,
    /// The key, or the caller, cannot be told for sure.
    KeyInvalid(&'static str),
    /// The route requires a key.
    KeyMissing,
    /// The key was used for another request.
    KeyReused,
    /// The attempt may have executed, and nobody knows.
    OutcomeUnknown(RetryAfter),
    /// The request stalled on its way in.
    RequestTimeout,
    /// The request is older, by its own word, than the route allows.
    RequestTooOld,
    /// The body is over the route's limit.
    RequestTooLarge,
    /// The stored row does not decode.
    ResponseCorrupt,
    /// Executed, but the response was too large to keep.
    ResponseNotKept,
    /// The store cannot say whether the key is free.
    StoreUnavailable,
    /// No route guards it, and it changes something.
    Unguarded,
    /// The upstream broke off after the request was sent.
    UpstreamBroken,
    /// No whole response within the route's time.
    UpstreamTimeout,
    /// Nothing of the request was sent.
    UpstreamUnreachable,
}

/// Whole seconds, at least 1 (RFC 9110 section 10.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter(u64);

impl RetryAfter {
    /// Rounded up: a client that comes a little late finds its answer, one that comes early asks twice.
    pub fn new(wait: Duration) -> Self {
        Self(wait.as_millis().div_ceil(1_000).clamp(1, 86_400) as u64)
    }

    /// The number.
    pub fn seconds(self) -> u64 {
        self.0
    }
}

/// What the client should do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Correct the request: as it is it will never work.
    Fix,
    /// This key is taken: a new operation needs a new one.
    NewKey,
    /// Find out what happened before doing anything.
    Reconcile,
    /// Send the same request with the same key again.
    SameKey,
}

impl Next {
    fn name(self) -> &'static str {
        match self {
            Self::Fix => "fix",
            Self::NewKey => "new_key",
            Self::Reconcile => "reconcile",
            Self::SameKey => "same_key",
        }
    }
}

/// A problem document, in the order in which people read it.
#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    retry: &'a str,
}

struct Row {
    status: u16,
    slug: &'static str,
    title: &'static str,
    detail: &'static str,
    next: Next,
    told: Told,
}

impl Refusal {
    /// One of each, in the order of their names; what they carry is an example.
    pub const ALL: [Self; 18] = [
        Self::BadRequest(StatusCode::BAD_REQUEST, ""),
        Self::Draining,
        Self::InFlight(RetryAfter(1)),
        Self::KeyExpired,
        Self::KeyInvalid(""),
        Self::KeyMissing,
        Self::KeyReused,
        Self::OutcomeUnknown(RetryAfter(1)),
        Self::RequestTimeout,
        Self::RequestTooLarge,
        Self::RequestTooOld,
        Self::ResponseCorrupt,
        Self::ResponseNotKept,
        Self::StoreUnavailable,
        Self::Unguarded,
        Self::UpstreamBroken,
        Self::UpstreamTimeout,
        Self::UpstreamUnreachable,
    ];

    /// The whole error contract on one screen. A new refusal must choose its row.
    #[rustfmt::skip]
    fn row(self) -> Row {
        use Next::{Fix, NewKey, Reconcile, SameKey};
        let (status, slug, next, told, title, detail) = match self {
            Self::BadRequest(status, detail) => (status.as_u16(), "bad-request", Fix, Told::Rejected,
                "The request cannot be forwarded", detail),
            Self::Draining => (503, "draining", SameKey, Told::Rejected,
                "This instance is stopping", "Nothing was executed. Send the same request with the same key again; another instance will take it."),
            Self::InFlight(_) => (409, "in-flight", SameKey, Told::InFlight,
                "The first attempt is still running", "A request with this key is being executed. Ask again with the same key after Retry-After."),
            Self::KeyExpired => (410, "key-expired", NewKey, Told::Rejected,
                "The key has expired", "A request with this key was executed long ago, and its response is no longer kept. Nothing was executed now. A new operation needs a new key."),
            Self::KeyInvalid(detail) => (400, "key-invalid", Fix, Told::Rejected,
                "The idempotency key cannot be used", detail),
            Self::KeyMissing => (400, "key-missing", Fix, Told::Rejected,
                "An idempotency key is required", "This operation must carry an idempotency key: one fresh value for each operation, the same for each of its retries."),
            Self::KeyReused => (422, "key-reused", NewKey, Told::Mismatch,
                "The key was used for another request", "This key belongs to a request that differs from this one. A new operation needs a new key; a retry must repeat the request unchanged."),
            Self::OutcomeUnknown(_) => (409, "outcome-unknown", Reconcile, Told::Unknown,
                "Nobody knows how the first attempt ended", "The request may have been executed. It will not be executed again until its outcome is known. Find out at the service before doing anything else."),
            Self::RequestTimeout => (408, "request-timeout", Fix, Told::Rejected,
                "The request did not arrive in time", "The request stalled on its way in, and the service never got the whole of it."),
            Self::RequestTooOld => (400, "request-too-old", Fix, Told::Rejected,
                "The request is too old", "By its own word it was first sent longer ago than this route allows. Nothing was executed now; an earlier attempt may have been."),
            Self::RequestTooLarge => (413, "request-too-large", Fix, Told::Rejected,
                "The request is too large", "The request's body is over this route's limit. Nothing was executed."),
            Self::ResponseCorrupt => (500, "response-corrupt", Fix, Told::Rejected,
                "The stored response is damaged", "The operation was executed and its stored response cannot be read. It will not be executed again; an operator must look at it."),
            Self::ResponseNotKept => (409, "response-not-kept", Reconcile, Told::Replayed,
                "Executed, but the response was not kept", "The operation was executed. Its response was too large to keep and went to the first caller only. Ask the service for the result."),
            Self::StoreUnavailable => (503, "store-unavailable", SameKey, Told::Rejected,
                "The key cannot be reserved at the moment", "Nothing was executed. Send the same request with the same key again after Retry-After."),
            Self::Unguarded => (403, "unguarded", Fix, Told::Rejected,
                "This operation is not guarded", "It would change something, and no route makes it safe to retry. Nothing was executed."),
            Self::UpstreamBroken => (502, "upstream-broken", Reconcile, Told::Unknown,
                "The connection to the service broke", "The request may have been executed: the service broke off after it was sent. It will not be executed again until its outcome is known."),
            Self::UpstreamTimeout => (504, "upstream-timeout", Reconcile, Told::Unknown,
                "The service did not answer in time", "The request may have been executed: no whole response came in time. It will not be executed again until its outcome is known."),
            Self::UpstreamUnreachable => (502, "upstream-unreachable", SameKey, Told::Released,
                "The service cannot be reached", "Nothing of the request was sent. It may be sent again, under the same key if it has one."),
        };
        Row { status, slug, title, detail, next, told }
    }

    /// The problem's name: its type, its label in metrics, its page.
    pub fn slug(self) -> &'static str {
        self.row().slug
    }

    /// In a few words.
    pub fn title(self) -> &'static str {
        self.row().title
    }

    /// The answer's status.
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().status).expect("the table has valid statuses only")
    }

    /// What is wrong, in a sentence or two.
    pub fn detail(self) -> &'static str {
        self.row().detail
    }

    /// What the client should do now, in one word.
    pub fn next(self) -> &'static str {
        self.row().next.name()
    }

    /// What `Oncegate-Status` says with it, on a route that is guarded.
    pub fn told(self) -> Told {
        self.row().told
    }

    fn retry_after(self) -> Option<RetryAfter> {
        match self {
            Self::InFlight(wait) | Self::OutcomeUnknown(wait) => Some(wait),
            Self::Draining | Self::StoreUnavailable => Some(RetryAfter(1)),
            Self::BadRequest(..)
            | Self::KeyExpired
            | Self::KeyInvalid(_)
            | Self::KeyMissing
            | Self::KeyReused
            | Self::RequestTimeout
            | Self::RequestTooLarge
            | Self::RequestTooOld
            | Self::ResponseCorrupt
            | Self::ResponseNotKept
            | Self::Unguarded
            | Self::UpstreamBroken
            | Self::UpstreamTimeout
            | Self::UpstreamUnreachable => None,
        }
    }

    /// Whether the connection must end with this answer: what else is on it cannot be trusted, or is not wanted.
    fn closes(self) -> bool {
        matches!(self, Self::BadRequest(..) | Self::Draining | Self::RequestTimeout | Self::RequestTooLarge)
    }

    /// The answer: a problem document (RFC 9457) whose type is `problem_base` and the slug.
    pub fn response(self, problem_base: &str) -> Response<Body> {
        let row = self.row();
        let document = Problem {
            kind: &format!("{problem_base}{}", row.slug),
            title: row.title,
            status: row.status,
            detail: row.detail,
            code: row.slug,
            retry: row.next.name(),
        };
        let document = serde_json::to_vec(&document).expect("texts and a number are JSON");
        let mut response = Response::new(Body::whole(document));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(wait.seconds()));
        }
        if self.closes() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl From<KeyError> for Refusal {
    fn from(error: KeyError) -> Self {
        Self::KeyInvalid(match error {
            KeyError::BadCharacter => {
                "The key has a character that is not allowed: it may be visible ASCII without comma, or anything printable in quotes."
            }
            KeyError::BadString => {
                "The key begins with a quote but is no structured-field String (RFC 9651, section 3.3.3)."
            }
            KeyError::Empty => "The key is empty.",
            KeyError::NotUuid => "This route takes UUIDs as keys, and this is none.",
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
        // No `_` arm: who adds a refusal comes by here, and adds it to `ALL` too.
        let place = |refusal: Refusal| match refusal {
            Refusal::BadRequest(..) => 0,
            Refusal::Draining => 1,
            Refusal::InFlight(_) => 2,
            Refusal::KeyExpired => 3,
            Refusal::KeyInvalid(_) => 4,
            Refusal::KeyMissing => 5,
            Refusal::KeyReused => 6,
            Refusal::OutcomeUnknown(_) => 7,
            Refusal::RequestTimeout => 8,
            Refusal::RequestTooLarge => 9,
            Refusal::RequestTooOld => 10,
            Refusal::ResponseCorrupt => 11,
            Refusal::ResponseNotKept => 12,
            Refusal::StoreUnavailable => 13,
            Refusal::Unguarded => 14,
            Refusal::UpstreamBroken => 15,
            Refusal::UpstreamTimeout => 16,
            Refusal::UpstreamUnreachable => 17,
        };
        assert!(Refusal::ALL.into_iter().map(place).eq(0..Refusal::ALL.len()));
    }

    #[test]
    fn retry_after_is_whole_seconds_and_at_least_one() {
        for (millis, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (30_000, 30)] {
            assert_eq!(RetryAfter::new(Duration::from_millis(millis)).seconds(), seconds, "{millis} ms");
        }
    }
}
