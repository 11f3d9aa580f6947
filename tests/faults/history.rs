//! What happened, as it can be seen from outside: what clients asked and heard, and what the service did.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Whose key. The same key of two callers is two of these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    pub caller: String,
    pub key: String,
}

/// One request of a client and what came of it. All times are since the run began, by one clock.
#[derive(Clone, Debug)]
pub struct Op {
    /// Goes with the request as a field of the client's own, so that the service can say who caused an effect.
    pub id: u64,
    pub name: Name,
    /// What was asked for.
    pub body: String,
    /// Which proxy was asked.
    pub proxy: usize,
    pub invoked: Duration,
    pub returned: Duration,
    /// Asked when all faults were over and a lease and two sweeps had passed.
    pub last: bool,
    /// `None`: no answer, or half of one. It may have been executed or not.
    pub answer: Option<Answer>,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// `Oncegate-Status`.
    pub told: String,
    /// The problem's code where Oncegate answers in its own name, else empty.
    pub slug: String,
    /// Whether `Idempotent-Replayed` is there.
    pub replayed: bool,
    /// The effect that the body names.
    pub effect: Option<u64>,
    pub body: String,
    /// The end-to-end fields that every answer to this key must have alike, in a comparable order.
    pub fields: Vec<(String, String)>,
}

/// What the service did, as it wrote it down before it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    pub id: u64,
    /// Whose request caused it.
    pub op: u64,
    pub name: Name,
    pub body: String,
    /// When it was on the disk.
    pub at: Duration,
    pub attempt: Attempt,
}

/// An attempt by the names that the proxy gives it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt {
    pub record: String,
    pub number: u64,
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub ops: Vec<Op>,
    pub effects: Vec<Effect>,
    /// Attempts of which a proxy has logged that nobody knows how they ended.
    pub unknown: Vec<Attempt>,
    /// How often each fault struck.
    pub faults: BTreeMap<String, usize>,
}

/// What an answer means, by status, word, slug and label together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Meaning {
    /// This request was executed, and that is stored.
    First,
    /// The stored answer again.
    Replay,
    /// This request was executed, and that is not stored yet.
    Unstored,
    /// The service has said itself that it did not act; or it was never asked.
    Released,
    /// It was sent, and no answer came.
    Broken,
    /// Not executed: nobody knows how an earlier attempt ended.
    Unknown,
    /// Not executed: another is running.
    InFlight,
    /// Not executed: the key is another request's.
    Misuse,
    /// Not executed: the store cannot be asked.
    Rejected,
    /// Nothing that Oncegate promises to say.
    Nonsense,
}

impl Answer {
    pub fn meaning(&self) -> Meaning {
        match (self.status, &*self.told, &*self.slug, self.replayed) {
            (201, "executed", "", false) => Meaning::First,
            (201, "replayed", "", true) => Meaning::Replay,
            (201, "unstored", "", _) => Meaning::Unstored,
            (503, "released" | "unstored", "", false) | (502, "released", "upstream-unreachable", false) => {
                Meaning::Released
            }
            (502, "unknown", "upstream-broken", false) | (504, "unknown", "upstream-timeout", false) => Meaning::Broken,
            (409, "unknown", "outcome-unknown", false) => Meaning::Unknown,
            (409, "in-flight", "in-flight", false) => Meaning::InFlight,
            (422, "mismatch", "key-reused", false) => Meaning::Misuse,
            (503, "rejected", "store-unavailable" | "draining", false) => Meaning::Rejected,
            _ => Meaning::Nonsense,
        }
    }
}

impl Op {
    /// `None` where there was no answer.
    pub fn meaning(&self) -> Option<Meaning> {
        self.answer.as_ref().map(Answer::meaning)
    }

    /// Whether the client was told, without reservation, that its request is done.
    pub fn acknowledges(&self) -> bool {
        matches!(self.meaning(), Some(Meaning::First | Meaning::Replay))
    }

    /// The effect that the answer tells of.
    pub fn effect(&self) -> Option<u64> {
        self.answer.as_ref().and_then(|answer| answer.effect)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.caller, self.key)
    }
}

/// A line of a key's story.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, body, proxy, invoked, returned, last, .. } = self;
        write!(f, "{invoked:>9.3?} to {returned:>9.3?}  op {id} at proxy {proxy}, {body}: ")?;
        match &self.answer {
            None => f.write_str("no answer")?,
            Some(answer) => {
                let Answer { status, told, slug, effect, .. } = answer;
                write!(f, "{status} {told} {slug} {:?}, effect {effect:?}", answer.meaning())?;
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

impl History {
    /// Everything about one key, in the order in which it came to be known.
    pub fn story(&self, name: &Name) -> String {
        let ops = self.ops.iter().filter(|op| op.name == *name).map(|op| (op.returned, op.to_string()));
        let effects = self.effects.iter().filter(|effect| effect.name == *name).map(|one| (one.at, one.to_string()));
        let mut lines: Vec<_> = ops.chain(effects).collect();
        lines.sort();
        lines.into_iter().map(|(_, line)| format!("    {line}\n")).collect()
    }
}
