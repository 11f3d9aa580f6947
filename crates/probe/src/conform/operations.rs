//! The operations that a client means, and their requests: which request belongs to which operation.
//!
//! A retry with its key needs no guess. A client that changes its key is told apart by a marker that the developer
//! declares, by the run of a command, or by the likeness of requests in time.

use std::time::Duration;

use bytes::Bytes;
use canonical_json::{Pointer, ReferencedValue, canonicalize, value_at};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, Method, StatusCode};

use super::plan::{KeyUse, LinkRefusal, LinkStep, PlannedFault};
use crate::plan::ProbeKeyPlace;

/// The operations that are judged, at most. All others pass. The link keeps the first body of each, of at most 1 MiB.
const OPERATIONS_MAX: usize = 1_000;

/// The way in which operations are told apart.
#[derive(derive_more::Display)]
pub enum OperationIdentity {
    #[display("the field {_0}")]
    Field(HeaderName),
    /// The JSON body has the operation's name at this pointer.
    #[display("the body at {_0}")]
    Body(Pointer),
    #[display("the run of the command")]
    Run,
    /// The key; and, after an answer that invites a retry, the same caller, method, target and body within this time.
    #[display(
        "their keys, and after an answer that invites a retry by an equal caller, method, target and body within {} s",
        _0.as_secs()
    )]
    Likeness(Duration),
}

/// The part of a request that a retry repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestContent {
    pub(crate) method: Method,
    /// The path and the query.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// The part in which a request differs from the first one of its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ContentDifference {
    /// The same bytes.
    None,
    /// The same value of JSON in other bytes.
    Spelling,
    /// The part of this name.
    Part(&'static str),
}

/// The answer that the client got, displayed in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub(crate) enum LinkAnswer {
    Pending,
    /// Nothing: the client has gone.
    Abandoned,
    /// Nothing: the connection was closed.
    Lost,
    Cut,
    /// The service's answer.
    #[display("{}", _0.as_u16())]
    Given(StatusCode),
    #[display("{} {_0}", _1.as_u16())]
    Refused(LinkRefusal, StatusCode),
}

pub(crate) struct ObservedRequest {
    /// The time since the link has started.
    pub(crate) at: Duration,
    pub(crate) answered: Duration,
    pub(crate) key: Option<String>,
    pub(crate) difference: ContentDifference,
    pub(crate) answer: LinkAnswer,
    /// The service's answers that it does not mark as replays.
    pub(crate) executions: usize,
}

/// The end of an operation, as the client's exit code tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientEnd {
    /// Nobody tells.
    Unseen,
    Succeeded,
    Failed,
}

pub(crate) struct ObservedOperation {
    pub(crate) name: String,
    pub(crate) plan: PlannedFault,
    first: Option<RequestContent>,
    pub(crate) requests: Vec<ObservedRequest>,
    pub(crate) end: ClientEnd,
}

/// A request's place in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestId {
    operation: usize,
    request: usize,
}

/// All operations, in the order of their first requests.
pub(crate) struct OperationLog {
    pub(crate) identity: OperationIdentity,
    key_place: ProbeKeyPlace,
    seed: u64,
    pub(crate) operations: Vec<ObservedOperation>,
    /// The number of requests that change state and do not have the declared marker.
    pub(crate) unmarked: usize,
    run: Option<usize>,
}

impl OperationLog {
    pub(crate) fn new(identity: OperationIdentity, key_place: ProbeKeyPlace, seed: u64) -> Self {
        Self { identity, key_place, seed, operations: Vec::new(), unmarked: 0, run: None }
    }

    /// Begins a run of the command. All requests until its end are one operation, unless a marker tells them apart.
    pub(crate) fn begin_run(&mut self) {
        if matches!(self.identity, OperationIdentity::Run) {
            let name = format!("run {}", self.operations.len() + 1);
            self.run = Some(self.begin_operation(name));
        }
    }

    pub(crate) fn end_run(&mut self, end: ClientEnd) {
        if let Some(operation) = self.run.take() {
            self.operations[operation].end = end;
        }
    }

    fn begin_operation(&mut self, name: String) -> usize {
        let plan = PlannedFault::draw(self.seed, self.operations.len());
        self.operations.push(ObservedOperation {
            name,
            plan,
            first: None,
            requests: Vec::new(),
            end: ClientEnd::Unseen,
        });
        self.operations.len() - 1
    }

    /// Writes a request down, and returns what the link does with it; `None` for a request that is not judged: it
    /// changes no state, or lacks the declared marker.
    pub(crate) fn begin(&mut self, content: &RequestContent, at: Duration) -> Option<(RequestId, LinkStep)> {
        let key = self.read_key(content);
        if key.is_none() && ![Method::POST, Method::PATCH].contains(&content.method) {
            return None;
        }
        let Some(operation) = self.find_operation(content, key.as_ref(), at) else {
            self.unmarked += 1;
            return None;
        };
        let ObservedOperation { plan, first, requests, .. } = &mut self.operations[operation];
        let key_use = match (&key, requests.first()) {
            (None, _) => KeyUse::Missing,
            (Some(_), Some(first)) if key != first.key => KeyUse::Other,
            (Some(_), _) => KeyUse::Same,
        };
        let step = plan.step(requests.len(), key_use);
        let difference = first.get_or_insert_with(|| content.clone()).difference(content);
        requests.push(ObservedRequest {
            at,
            answered: at,
            key,
            difference,
            answer: LinkAnswer::Pending,
            executions: 0,
        });
        Some((RequestId { operation, request: requests.len() - 1 }, step))
    }

    fn read_key(&self, RequestContent { headers, body, .. }: &RequestContent) -> Option<String> {
        match &self.key_place {
            ProbeKeyPlace::Field { name, .. } => {
                // The draft writes keys in quotes.
                let key = headers.get(name)?.as_bytes();
                Some(String::from_utf8_lossy(key).trim_matches('"').to_owned())
            }
            ProbeKeyPlace::Body(pointer) => read_text(body, &Pointer::parse(pointer).ok()?),
        }
    }

    /// Finds or begins the operation of a request; `None` if it lacks the marker, or there are too many operations.
    fn find_operation(&mut self, content: &RequestContent, key: Option<&String>, at: Duration) -> Option<usize> {
        let marker = match &self.identity {
            OperationIdentity::Field(name) => {
                let value = content.headers.get(name)?;
                String::from_utf8_lossy(value.as_bytes()).into_owned()
            }
            OperationIdentity::Body(pointer) => read_text(&content.body, pointer)?,
            OperationIdentity::Run => return self.run,
            OperationIdentity::Likeness(window) => match self.find_likely(content, key, at, *window) {
                Some(found) => return Some(found),
                None => format!("operation {}", self.operations.len() + 1),
            },
        };
        let found = self.operations.iter().position(|operation| operation.name == marker);
        found.or_else(|| (self.operations.len() < OPERATIONS_MAX).then(|| self.begin_operation(marker)))
    }

    /// The operation with this key; otherwise the newest one that is alike and whose last answer invites a retry.
    fn find_likely(
        &self,
        content: &RequestContent,
        key: Option<&String>,
        at: Duration,
        window: Duration,
    ) -> Option<usize> {
        let has_key = |known: &ObservedRequest| key.is_some() && known.key.as_ref() == key;
        let is_recent = |last: &ObservedRequest| at.saturating_sub(last.at) <= window && last.answer.invites_retry();
        let is_retried = |operation: &ObservedOperation| {
            let is_like = |first: &RequestContent| first.is_like(content);
            operation.requests.last().is_some_and(is_recent) && operation.first.as_ref().is_some_and(is_like)
        };
        let with_key = self.operations.iter().rposition(|operation| operation.requests.iter().any(has_key));
        with_key.or_else(|| self.operations.iter().rposition(is_retried))
    }

    pub(crate) fn request_mut(&mut self, id: RequestId) -> &mut ObservedRequest {
        &mut self.operations[id.operation].requests[id.request]
    }
}

fn read_text(body: &Bytes, pointer: &Pointer) -> Option<String> {
    match value_at(body, pointer).ok()?? {
        ReferencedValue::String(text) | ReferencedValue::Number(text) => Some(text),
        _ => None,
    }
}

impl LinkAnswer {
    /// Whether a client that sends the operation again has a reason: it does not have its result.
    fn invites_retry(self) -> bool {
        match self {
            Self::Pending => false,
            Self::Abandoned | Self::Lost | Self::Cut | Self::Refused(..) => true,
            Self::Given(status) => !is_result(status),
        }
    }
}

/// Whether a status is the operation's result, and not one that asks for a retry.
pub(crate) fn is_result(status: StatusCode) -> bool {
    !status.is_server_error() && !matches!(status.as_u16(), 408 | 409 | 425 | 429)
}

impl RequestContent {
    /// Returns the first part in which another request differs from this one.
    fn difference(&self, other: &Self) -> ContentDifference {
        match () {
            () if self.method != other.method => ContentDifference::Part("method"),
            () if self.target != other.target => ContentDifference::Part("target"),
            () if self.headers.get(CONTENT_TYPE) != other.headers.get(CONTENT_TYPE) => {
                ContentDifference::Part("Content-Type")
            }
            () if self.body == other.body => ContentDifference::None,
            () if self.has_value_of(other) => ContentDifference::Spelling,
            () => ContentDifference::Part("body"),
        }
    }

    /// Whether the bodies are the same value of JSON.
    fn has_value_of(&self, other: &Self) -> bool {
        matches!((canonicalize(&self.body), canonicalize(&other.body)), (Ok(value), Ok(other)) if value == other)
    }

    /// Whether a request under another key may be a retry of this one.
    fn is_like(&self, other: &Self) -> bool {
        let caller = |content: &Self| {
            [AUTHORIZATION, HeaderName::from_static("x-api-key")].map(|name| content.headers.get(name).cloned())
        };
        caller(self) == caller(other)
            && matches!(self.difference(other), ContentDifference::None | ContentDifference::Spelling)
    }
}
