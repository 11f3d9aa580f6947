//! The findings of the probe: for each check the observation, and its meaning.

use std::collections::BTreeSet;

use super::response::Difference;

/// The checks, in the order of their requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeCheck {
    /// The first request, with a fresh key.
    First,
    /// The same body with another fresh key. It is sent before the retry, so that a body that changes with the time changes
    /// for a repeated execution too.
    OtherKey,
    /// The first key and body again, after the first response.
    Retry,
    /// Requests with one fresh key at once.
    Duplicates,
    /// The first key with another body.
    OtherBody,
    /// The same body without a key.
    NoKey,
    /// The documentation that refusals name.
    Policy,
}

/// The words for a check.
pub(super) struct CheckText {
    /// The stable name in JSON.
    pub(super) name: &'static str,
    /// The words in the table.
    pub(super) title: &'static str,
    /// The draft's expectation, with the strength that the draft gives it.
    pub(super) expected: &'static str,
}

impl ProbeCheck {
    /// Returns the words for the check.
    pub(super) fn text(self) -> CheckText {
        let (name, title, expected) = match self {
            Self::First => ("first", "first request, fresh key", "executed (SHOULD)"),
            Self::OtherKey => ("other-key", "same body, another fresh key", "executed anew (SHOULD)"),
            Self::Retry => ("retry", "first request again", "the first result (SHOULD)"),
            Self::Duplicates => {
                ("duplicates", "duplicates at once, fresh key", "executed once; 409 while it runs (MUST)")
            }
            Self::OtherBody => ("other-body", "first key, another body", "422 (SHOULD)"),
            Self::NoKey => ("no-key", "no key", "400 where a key is required (SHOULD)"),
            Self::Policy => ("policy", "documentation", "published (MUST)"),
        };
        CheckText { name, title, expected }
    }
}

/// The meaning of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeConclusion {
    Holds,
    Broken,
    /// Seen from outside, the server that holds and the one that does not would look the same.
    CannotTell,
    /// A fact that no expectation depends on.
    Info,
}

impl ProbeConclusion {
    /// Returns the stable name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Broken => "broken",
            Self::CannotTell => "cannot-tell",
            Self::Info => "info",
        }
    }

    /// Returns the conclusion from several: one broken expectation breaks the whole, and one doubt leaves it in doubt.
    pub(super) fn from_all(mut all: impl Iterator<Item = Self> + Clone) -> Self {
        match all.clone().any(|one| one == Self::Broken) {
            true => Self::Broken,
            false if all.any(|one| one == Self::CannotTell) => Self::CannotTell,
            false => Self::Holds,
        }
    }
}

/// The parts in which a response differs from the first one.
pub(super) type Differences = BTreeSet<Difference>;

/// The observation of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The first request was executed.
    Executed,
    /// The first request was not executed, so the others are not sent.
    NotExecuted,
    /// Another key: another result.
    ExecutedAnew(Differences),
    /// Another key: the same response, but the server marks replays and has not marked this one.
    ExecutedAnewUnmarked,
    /// Another key: the server marks the response as a replay.
    ReplayedForOtherKey,
    /// Another key: the same response. Two executions look the same, or the server does not look at the key.
    LooksTheSame,
    /// Another key: the API refuses to execute the same body twice, whatever the key.
    RefusedForOtherKey,
    /// The retry has the first response, and a second execution would have another one, or the server marks the replay.
    Replayed,
    /// The retry has the first response, as a second execution would have it.
    ReplayedOrExecuted,
    /// Responses differ, but not in all parts in which executions differ, or one is marked as a replay.
    Changed(Differences),
    /// The retry's response differs as a second execution's does.
    ExecutedAgain(Differences),
    /// The retry was refused: not executed, and without its result.
    RetryRefused,
    /// One result in all responses, and refusals.
    ExecutedOnce,
    /// The responses are of this many executions.
    ExecutedManyTimes(usize),
    /// Several responses with one result, as several executions would have it.
    ExecutedOnceOrMore,
    /// All duplicates were refused.
    NeverExecuted,
    /// The reuse of the key was refused, and the same body is accepted with a key of its own.
    ReuseRefused,
    /// The other body is refused with a key of its own too, so its refusal says nothing about the key.
    BodyRefused,
    /// The reuse got the first response.
    ReuseReplayed,
    /// The reuse was accepted; whether it was executed is open where no difference is named.
    ReuseAccepted(Differences),
    /// There is no other body to send.
    NoOtherBody,
    /// The operation has no body.
    NoBody,
    /// A request without a key is refused.
    KeyRequired,
    /// A request without a key is executed.
    KeyOptional,
    /// Refusals name these URLs.
    Documented(BTreeSet<String>),
    /// No refusal names its documentation.
    Undocumented,
    /// The status says nothing about the key.
    Unclear,
    /// A request has no response.
    NoResponse(String),
}

impl Finding {
    /// Returns the finding's meaning, and its stable name in JSON.
    pub(super) fn meaning(&self) -> (ProbeConclusion, &'static str) {
        use ProbeConclusion::{Broken, CannotTell, Holds, Info};
        match self {
            Self::Executed => (Holds, "executed"),
            Self::NotExecuted => (CannotTell, "not-executed"),
            Self::ExecutedAnew(_) | Self::ExecutedAnewUnmarked => (Holds, "executed-anew"),
            Self::ReplayedForOtherKey => (Broken, "replayed-for-other-key"),
            Self::LooksTheSame => (CannotTell, "looks-the-same"),
            Self::RefusedForOtherKey => (CannotTell, "refused-for-other-key"),
            Self::Replayed => (Holds, "replayed"),
            Self::ReplayedOrExecuted => (CannotTell, "replayed-or-executed"),
            Self::Changed(_) => (CannotTell, "changed"),
            Self::ExecutedAgain(_) => (Broken, "executed-again"),
            Self::RetryRefused => (Broken, "retry-refused"),
            Self::ExecutedOnce => (Holds, "executed-once"),
            Self::ExecutedManyTimes(_) => (Broken, "executed-many-times"),
            Self::ExecutedOnceOrMore => (CannotTell, "executed-once-or-more"),
            Self::NeverExecuted => (Broken, "never-executed"),
            Self::ReuseRefused => (Holds, "reuse-refused"),
            Self::BodyRefused => (CannotTell, "body-refused"),
            Self::ReuseReplayed => (Broken, "reuse-replayed"),
            Self::ReuseAccepted(_) => (Broken, "reuse-accepted"),
            Self::NoOtherBody => (CannotTell, "no-other-body"),
            Self::NoBody => (Info, "no-body"),
            Self::KeyRequired => (Info, "key-required"),
            Self::KeyOptional => (Info, "key-optional"),
            Self::Documented(_) => (Info, "documented"),
            Self::Undocumented => (Info, "undocumented"),
            Self::Unclear => (CannotTell, "unclear"),
            Self::NoResponse(_) => (CannotTell, "no-response"),
        }
    }

    /// Returns the parts that differ from the first response; none where nothing was compared.
    pub(super) fn differences(&self) -> Vec<String> {
        match self {
            Self::ExecutedAnew(parts)
            | Self::Changed(parts)
            | Self::ExecutedAgain(parts)
            | Self::ReuseAccepted(parts) => parts.iter().map(ToString::to_string).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the finding in words.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Executed => "executed".to_owned(),
            Self::NotExecuted => "not executed, so nothing else was sent".to_owned(),
            Self::ExecutedAnew(_) => "executed anew".to_owned(),
            Self::ExecutedAnewUnmarked => "executed anew, as it is not marked as a replay".to_owned(),
            Self::ReplayedForOtherKey => "marked as a replay, although the key is new".to_owned(),
            Self::LooksTheSame => {
                "the same response: two executions look the same, so an equal retry proves nothing".to_owned()
            }
            Self::RefusedForOtherKey => "refused: the API may not take the same body twice".to_owned(),
            Self::Replayed => "the first response".to_owned(),
            Self::ReplayedOrExecuted => "the first response, but a second execution would look the same".to_owned(),
            Self::Changed(_) => "responses differ, but perhaps not the result: leave values that change by themselves \
                                 out with --ignore"
                .to_owned(),
            Self::ExecutedAgain(_) => "another result: executed again".to_owned(),
            Self::RetryRefused => "refused: not executed again, but the first result is not given".to_owned(),
            Self::ExecutedOnce => "executed once".to_owned(),
            Self::ExecutedManyTimes(count) => format!("{count} different results: executed {count} times"),
            Self::ExecutedOnceOrMore => "one result, but several executions would look the same".to_owned(),
            Self::NeverExecuted => "all refused, none executed".to_owned(),
            Self::ReuseRefused => "refused; accepted with a key of its own".to_owned(),
            Self::BodyRefused => {
                "refused, but with a key of its own too: name a valid one with --other-body".to_owned()
            }
            Self::ReuseReplayed => "the first response: a mistaken reuse is not noticed".to_owned(),
            Self::ReuseAccepted(parts) if parts.is_empty() => "accepted: executed or not".to_owned(),
            Self::ReuseAccepted(_) => "another result: executed under a used key".to_owned(),
            Self::NoOtherBody => "not sent: name a valid body with --other-body".to_owned(),
            Self::NoBody => "not sent: the operation has no body".to_owned(),
            Self::KeyRequired => "refused: a key is required".to_owned(),
            Self::KeyOptional => "executed: a key is not required".to_owned(),
            Self::Documented(urls) => {
                format!("refusals name {}", urls.iter().cloned().collect::<Vec<_>>().join(", "))
            }
            Self::Undocumented => "no refusal names a page".to_owned(),
            Self::Unclear => "this status says nothing about the key".to_owned(),
            Self::NoResponse(reason) => reason.clone(),
        }
    }
}
