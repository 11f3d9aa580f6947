//! The forms of refusals: what a route, or the preset of its dialect, says about Oncegate's own errors.

use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::Value;

use super::template::Template;

/// All refusals: the code, the client's next step and the status of each. A test of `oncegate-http`, which has the
/// rest about them, compares them.
pub const REFUSALS: &[(&str, &str, u16)] = &[
    ("authorize-unavailable", "same_key", 503),
    ("bad-request", "fix", 400),
    ("draining", "same_key", 503),
    ("duplicate-suspected", "fix", 409),
    ("in-flight", "same_key", 409),
    ("issuer-unavailable", "same_key", 503),
    ("key-expired", "new_key", 410),
    ("key-invalid", "fix", 400),
    ("key-missing", "fix", 400),
    ("key-reused", "new_key", 422),
    ("loop-detected", "fix", 508),
    ("outcome-unknown", "reconcile", 409),
    ("overloaded", "same_key", 503),
    ("path-ambiguous", "fix", 400),
    ("request-from-future", "fix", 412),
    ("request-timeout", "fix", 408),
    ("request-too-large", "fix", 413),
    ("request-too-old", "fix", 400),
    ("response-corrupt", "fix", 500),
    ("response-not-kept", "reconcile", 409),
    ("scope-missing", "fix", 400),
    ("signature-invalid", "fix", 401),
    ("store-unavailable", "same_key", 503),
    ("token-invalid", "fix", 401),
    ("too-many-keys", "same_key", 429),
    ("unguarded", "fix", 403),
    ("upstream-broken", "reconcile", 502),
    ("upstream-timeout", "reconcile", 504),
    ("upstream-unreachable", "same_key", 502),
];

/// The refusals that a form is for, the fewest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
pub enum RefusalMatch {
    /// One refusal.
    Code(&'static str),
    /// Those that advise this next step.
    #[display("retry:{_0}")]
    Retry(&'static str),
    /// Those of this status, before a form gives them another one.
    Status(u16),
    /// Those of such a status: 4 or 5.
    #[display("{_0}xx")]
    StatusClass(u16),
    /// Every refusal.
    #[display("*")]
    All,
}

impl RefusalMatch {
    /// Parses the name that a form has in the file.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            "is no refusal: write a code such as `in-flight`, `retry:` and a next step such as `retry:reconcile`, a status, \
             `4xx`, `5xx` or `*`"
                .to_owned()
        };
        let known = |wanted: &str, part: fn(&(&'static str, &'static str, u16)) -> &'static str| {
            REFUSALS.iter().map(part).find(|part| *part == wanted)
        };
        match text {
            "*" => Ok(Self::All),
            "4xx" => Ok(Self::StatusClass(4)),
            "5xx" => Ok(Self::StatusClass(5)),
            _ if text.len() == 3 && text.as_bytes()[0].is_ascii_digit() => match text.parse() {
                Ok(status @ 400..600) => Ok(Self::Status(status)),
                _ => Err(wrong()),
            },
            _ => match text.strip_prefix("retry:") {
                Some(step) => known(step, |refusal| refusal.1).map(Self::Retry),
                None => known(text, |refusal| refusal.0).map(Self::Code),
            }
            .ok_or_else(wrong),
        }
    }

    /// Whether it is for a refusal of this code, next step and status.
    pub fn covers(self, (code, retry, status): (&str, &str, u16)) -> bool {
        match self {
            Self::Code(own) => own == code,
            Self::Retry(own) => own == retry,
            Self::Status(own) => own == status,
            Self::StatusClass(own) => own == status / 100,
            Self::All => true,
        }
    }
}

/// The form of the refusals of one name. A value that it lacks is taken from a form for more of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalForm {
    /// The refusals of this name.
    pub covers: RefusalMatch,
    /// The status of the answer.
    pub status: Option<StatusCode>,
    /// The status towards a JSON-RPC call that was read.
    pub call_status: Option<StatusCode>,
    /// The value of `{error_type}`.
    pub error_type: Option<Value>,
    /// The value of `{error_code}`.
    pub error_code: Option<Value>,
    /// Fields of the answer.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The document of the answer.
    pub document: Option<DocumentForm>,
    /// The document towards a JSON-RPC call that was read.
    pub call_document: Option<DocumentForm>,
}

/// A document and its media type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentForm {
    /// Its `Content-Type`.
    pub media_type: HeaderValue,
    /// Its content.
    pub template: Template,
}

/// The forms of a route, in the order in which they are looked through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusalForms(Vec<RefusalForm>);

impl RefusalForms {
    /// Puts forms into the order in which they are given.
    pub fn new(forms: Vec<RefusalForm>) -> Self {
        Self(forms)
    }

    /// Whether the route and its dialect say nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names of the forms.
    pub fn names(&self) -> impl Iterator<Item = RefusalMatch> {
        self.0.iter().map(|form| form.covers)
    }

    /// The value of the first form that covers a refusal of this code, next step and status, and has one.
    pub fn find<'a, T>(
        &'a self,
        refusal: (&'a str, &'a str, u16),
        said: impl Fn(&'a RefusalForm) -> Option<T>,
    ) -> Option<T> {
        self.0.iter().filter(|form| form.covers.covers(refusal)).find_map(said)
    }
}
