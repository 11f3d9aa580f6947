//! The history as seen from outside: the clients' requests and answers, and the service's effects.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A key with its caller. The same key of two callers is two of these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopedKey {
    pub caller: String,
    pub key: String,
}

/// The route that a key belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TargetRoute {
    /// The service's answer comes with the request.
    Pay,
    /// `delivery = "async"`.
    Later,
    /// `delivery = "prefer"`, and the client prefers to be answered before the delivery.
    Preferred,
    /// `split`: a request has several keys, and each of them is delivered alone.
    Batched,
    /// The key and the caller are in the body.
    Placed,
    /// `kind = "token"`: the key is a secret in a form, and its caller is in it.
    Refreshed,
    /// A queue of RabbitMQ leads to it.
    Messages,
}

/// One request of a client and its answer. All times are since the start of the run, by one clock.
#[derive(Clone, Debug)]
pub struct Op {
    /// Sent with the request in a field of the client's own, so that the service can name the request that caused an
    /// effect.
    pub id: u64,
    pub name: ScopedKey,
    pub route: TargetRoute,
    /// The request's body.
    pub body: String,
    /// The proxy that received it.
    pub proxy: usize,
    pub invoked: Duration,
    pub returned: Duration,
    /// Whether it was sent when all faults were over and a lease and two sweeps had passed.
    pub last: bool,
    /// `None` without an answer or with half of one. The request may have been executed or not.
    pub answer: Option<Answer>,
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// `Oncegate-Status`.
    pub oncegate_status: String,
    /// The problem's code where Oncegate answers in its own name, else empty.
    pub slug: String,
    /// Whether `Idempotent-Replayed` is there.
    pub replayed: bool,
    /// The effect that the body names.
    pub effect: Option<u64>,
    /// The state of an accepted request's operation, if the client has waited for the end of its delivery.
    pub operation: Option<String>,
    pub body: String,
    /// The end-to-end fields that every answer to this key must have alike, in a comparable order.
    pub fields: Vec<(String, String)>,
}

/// An effect, as the service logged it before it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    pub id: u64,
    /// The id of the request that caused it.
    pub op: u64,
    pub name: ScopedKey,
    pub body: String,
    /// The time at which it was on the disk.
    pub at: Duration,
    pub attempt: Attempt,
}

/// A request that the service received, also one that it refused and that had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCall {
    /// The id of the request that caused it.
    pub op: u64,
    pub name: ScopedKey,
    pub attempt: Attempt,
    /// The time at which the service had all of it.
    pub began: Duration,
    /// The time just before the service answered or closed the connection.
    pub ended: Duration,
    pub was_refused: bool,
}

/// An attempt, identified as the proxy identifies it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt {
    pub record: String,
    pub number: u64,
}

/// A complete run.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub ops: Vec<Op>,
    pub effects: Vec<Effect>,
    pub service_calls: Vec<ServiceCall>,
    /// The attempts that a proxy logged as unknown.
    pub unknown: Vec<Attempt>,
    /// Those of them that their own proxy logged so. Of others, that proxy may know more: that
    /// nothing was sent, for example.
    pub unknown_to_their_proxy: Vec<Attempt>,
    /// The number of injections of each fault, and other counts that a run needs.
    pub faults: BTreeMap<String, usize>,
}

/// An answer's kind, by status, `Oncegate-Status`, slug and replay mark together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnswerKind {
    /// This request was executed, and its outcome is stored.
    First,
    /// The stored answer was replayed.
    Replay,
    /// This request was executed, and its outcome is not stored yet.
    Unstored,
    /// This request, or an earlier one, is accepted and will be delivered.
    Accepted,
    /// The service reported that it did not act, or was never called.
    Released,
    /// The request was sent, and no answer came, or one that leaves the outcome open.
    Broken,
    /// Not executed: an earlier attempt's outcome is unknown.
    Unknown,
    /// Not executed: another is running.
    InFlight,
    /// Not executed: the key belongs to a different request.
    Misuse,
    /// Not executed: the store is unreachable.
    Rejected,
    /// An undocumented answer.
    Nonsense,
}

impl Answer {
    /// The broker's confirmation that it has a message.
    pub fn accepted() -> Self {
        Self {
            status: 202,
            oncegate_status: "queued".to_owned(),
            slug: String::new(),
            replayed: false,
            effect: None,
            operation: None,
            body: String::new(),
            fields: Vec::new(),
        }
    }

    pub fn kind(&self) -> AnswerKind {
        match (self.status, &*self.oncegate_status, &*self.slug, self.replayed) {
            (201, "executed", "", false) => AnswerKind::First,
            (201, "replayed", "", true) => AnswerKind::Replay,
            (201, "unstored", "", _) => AnswerKind::Unstored,
            (202, "queued" | "unknown", "", false) => AnswerKind::Accepted,
            (503, "released" | "unstored", "", false) | (502, "released", "upstream-unreachable", false) => {
                AnswerKind::Released
            }
            (502, "unknown" | "unstored", "", false)
            | (502, "unknown", "upstream-broken", false)
            | (504, "unknown", "upstream-timeout", false) => AnswerKind::Broken,
            (409, "unknown", "outcome-unknown", false) => AnswerKind::Unknown,
            (409, "in-flight", "in-flight", false) => AnswerKind::InFlight,
            (422, "key-reused", "key-reused", false) => AnswerKind::Misuse,
            (503, "rejected", "store-unavailable" | "draining", false) => AnswerKind::Rejected,
            _ => AnswerKind::Nonsense,
        }
    }
}

impl TargetRoute {
    pub fn path(self) -> &'static str {
        match self {
            Self::Pay => "/pay",
            Self::Later => "/later",
            Self::Preferred => "/preferred",
            Self::Batched => "/batched",
            Self::Placed => "/placed",
            Self::Refreshed => "/refreshed",
            Self::Messages => "/messages",
        }
    }

    /// Whether an accepted request is executed by another one than the client's.
    pub fn is_asynchronous(self) -> bool {
        !matches!(self, Self::Pay | Self::Placed | Self::Refreshed)
    }
}

impl Op {
    /// `None` where there was no answer.
    pub fn kind(&self) -> Option<AnswerKind> {
        self.answer.as_ref().map(Answer::kind)
    }

    /// Whether the answer confirms without reservation that the request is done.
    pub fn acknowledges(&self) -> bool {
        matches!(self.kind(), Some(AnswerKind::First | AnswerKind::Replay))
    }

    /// Whether the client has what it wanted: its response, or the promise of one.
    pub fn succeeded(&self) -> bool {
        self.acknowledges() || self.kind() == Some(AnswerKind::Accepted)
    }

    /// The effect that the answer names.
    pub fn effect(&self) -> Option<u64> {
        self.answer.as_ref().and_then(|answer| answer.effect)
    }
}

impl fmt::Display for ScopedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.caller, self.key)
    }
}

/// A line of a key's timeline.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, route, body, proxy, invoked, returned, last, .. } = self;
        write!(f, "{invoked:>9.3?} to {returned:>9.3?}  op {id} at proxy {proxy}, {}, {body}: ", route.path())?;
        match &self.answer {
            None => f.write_str("no answer")?,
            Some(answer) => {
                let Answer { status, oncegate_status, slug, effect, operation, .. } = answer;
                write!(f, "{status} {oncegate_status} {slug} {:?}, effect {effect:?}", answer.kind())?;
                operation.iter().try_for_each(|state| write!(f, ", operation {state}"))?;
            }
        }
        f.write_str(if *last { " (at the end)" } else { "" })
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, op, body, at, attempt, .. } = self;
        write!(f, "{at:>9.3?}  EFFECT {id} of op {op}, {body}, attempt {} of {:.8}", attempt.number, attempt.record)
    }
}

impl fmt::Display for ServiceCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, attempt, began, ended, was_refused, .. } = self;
        let end = if *was_refused { "refused" } else { "executed" };
        write!(f, "{began:>9.3?} to {ended:>9.3?}  {end} at the service: op {op}, attempt {}", attempt.number)
    }
}

impl History {
    /// All that is known of one key, in order of time.
    pub fn timeline(&self, name: &ScopedKey) -> String {
        let ops = self.ops.iter().filter(|op| op.name == *name).map(|op| (op.returned, op.to_string()));
        let effects = self.effects.iter().filter(|effect| effect.name == *name).map(|one| (one.at, one.to_string()));
        let calls = self.service_calls.iter().filter(|call| call.name == *name);
        let calls = calls.map(|call| (call.ended, call.to_string()));
        let mut lines: Vec<_> = ops.chain(effects).chain(calls).collect();
        lines.sort();
        lines.into_iter().map(|(_, line)| format!("    {line}\n")).collect()
    }
}
