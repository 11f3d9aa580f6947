//! The findings of the probe: for each check the observation, and its meaning.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::response::Difference;
use ProbeConclusion::{Broken, CannotTell, Holds, Info};

/// A check, in words.
#[derive(Clone, Copy)]
pub(super) struct ProbeCheck {
    /// The stable name in JSON.
    pub(super) name: &'static str,
    /// The words in the table.
    pub(super) title: &'static str,
    /// The draft's expectation, with the strength that the draft gives it.
    pub(super) expected: &'static str,
    /// Whether the draft leaves it to the server, so that nothing can be broken.
    pub(super) is_optional: bool,
}

impl ProbeCheck {
    pub(super) const FIRST: Self = Self::new("first", "first request, fresh key", "executed (SHOULD)");
    /// It is sent before the retry, so that a body that changes with the time changes for a repeated execution too.
    pub(super) const OTHER_KEY: Self = Self::new("other-key", "same body, another fresh key", "executed anew (SHOULD)");
    pub(super) const RETRY: Self = Self::new("retry", "first request again", "the first result (SHOULD)");
    pub(super) const DUPLICATES: Self =
        Self::new("duplicates", "duplicates at once, fresh key", "executed once; 409 while it runs (MUST)");
    pub(super) const OTHER_BODY: Self = Self::new("other-body", "first key, another body", "422 (SHOULD)");
    pub(super) const NO_KEY: Self =
        Self { is_optional: true, ..Self::new("no-key", "no key", "400 where a key is required (SHOULD)") };
    pub(super) const POLICY: Self =
        Self { is_optional: true, ..Self::new("policy", "documentation", "published (MUST)") };

    const fn new(name: &'static str, title: &'static str, expected: &'static str) -> Self {
        Self { name, title, expected, is_optional: false }
    }
}

/// The meaning of a finding, the worst last: one broken expectation breaks the whole, and one doubt leaves it in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProbeConclusion {
    /// A fact that no expectation depends on.
    Info,
    Holds,
    /// Seen from outside, the server that holds and the one that does not would look the same.
    CannotTell,
    Broken,
}

impl ProbeConclusion {
    /// Returns the stable name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Holds => "holds",
            Self::CannotTell => "cannot-tell",
            Self::Broken => "broken",
        }
    }
}

/// The parts in which a response differs from the first one.
pub(super) type Differences = BTreeSet<Difference>;

/// The observation of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) conclusion: ProbeConclusion,
    /// The stable name in JSON.
    pub(super) name: &'static str,
    pub(super) text: Cow<'static, str>,
    /// None where nothing was compared.
    pub(super) differences: Differences,
}

impl Finding {
    pub(super) const EXECUTED: Self = Self::new(Holds, "executed", "executed");
    pub(super) const NOT_EXECUTED: Self =
        Self::new(CannotTell, "not-executed", "not executed, so nothing else was sent");

    // Another key.
    pub(super) const EXECUTED_ANEW: Self = Self::new(Holds, "executed-anew", "executed anew");
    /// The response is the same, but the server marks replays.
    pub(super) const EXECUTED_ANEW_UNMARKED: Self =
        Self::new(Holds, "executed-anew", "executed anew, as it is not marked as a replay");
    pub(super) const REPLAYED_FOR_OTHER_KEY: Self =
        Self::new(Broken, "replayed-for-other-key", "marked as a replay, although the key is new");
    pub(super) const LOOKS_THE_SAME: Self = Self::new(
        CannotTell,
        "looks-the-same",
        "the same response: two executions look the same, so an equal retry proves nothing",
    );
    pub(super) const REFUSED_FOR_OTHER_KEY: Self =
        Self::new(CannotTell, "refused-for-other-key", "refused: the API may not take the same body twice");

    // The retry, and the duplicates.
    /// A second execution would have another response, or the server marks the replay.
    pub(super) const REPLAYED: Self = Self::new(Holds, "replayed", "the first response");
    pub(super) const REPLAYED_OR_EXECUTED: Self =
        Self::new(CannotTell, "replayed-or-executed", "the first response, but a second execution would look the same");
    /// They differ, but not in all parts in which executions differ, or one is marked as a replay.
    pub(super) const CHANGED: Self = Self::new(
        CannotTell,
        "changed",
        "responses differ, but perhaps not the result: leave values that change by themselves out with --ignore",
    );
    pub(super) const EXECUTED_AGAIN: Self = Self::new(Broken, "executed-again", "another result: executed again");
    pub(super) const RETRY_REFUSED: Self =
        Self::new(Broken, "retry-refused", "refused: not executed again, but the first result is not given");
    pub(super) const EXECUTED_ONCE: Self = Self::new(Holds, "executed-once", "executed once");
    pub(super) const EXECUTED_ONCE_OR_MORE: Self =
        Self::new(CannotTell, "executed-once-or-more", "one result, but several executions would look the same");
    pub(super) const NEVER_EXECUTED: Self = Self::new(Broken, "never-executed", "all refused, none executed");

    // Another body.
    pub(super) const REUSE_REFUSED: Self = Self::new(Holds, "reuse-refused", "refused; accepted with a key of its own");
    pub(super) const BODY_REFUSED: Self = Self::new(
        CannotTell,
        "body-refused",
        "refused, but with a key of its own too: name a valid one with --other-body",
    );
    pub(super) const REUSE_REPLAYED: Self =
        Self::new(Broken, "reuse-replayed", "the first response: a mistaken reuse is not noticed");
    pub(super) const REUSE_ACCEPTED: Self = Self::new(Broken, "reuse-accepted", "accepted: executed or not");
    pub(super) const REUSE_EXECUTED: Self =
        Self::new(Broken, "reuse-accepted", "another result: executed under a used key");
    pub(super) const NO_OTHER_BODY: Self =
        Self::new(CannotTell, "no-other-body", "not sent: name a valid body with --other-body");
    pub(super) const NO_BODY: Self = Self::new(Info, "no-body", "not sent: the operation has no body");

    // No key, and the documentation.
    pub(super) const KEY_REQUIRED: Self = Self::new(Info, "key-required", "refused: a key is required");
    pub(super) const KEY_OPTIONAL: Self = Self::new(Info, "key-optional", "executed: a key is not required");
    pub(super) const UNDOCUMENTED: Self = Self::new(Info, "undocumented", "no refusal names a page");

    pub(super) const UNCLEAR: Self = Self::new(CannotTell, "unclear", "this status says nothing about the key");

    const fn new(conclusion: ProbeConclusion, name: &'static str, text: &'static str) -> Self {
        Self { conclusion, name, text: Cow::Borrowed(text), differences: BTreeSet::new() }
    }

    pub(super) fn executed_many_times(count: usize) -> Self {
        let text = format!("{count} different results: executed {count} times");
        Self { text: text.into(), ..Self::new(Broken, "executed-many-times", "") }
    }

    pub(super) fn documented(urls: &BTreeSet<String>) -> Self {
        let urls: Vec<_> = urls.iter().map(String::as_str).collect();
        Self { text: format!("refusals name {}", urls.join(", ")).into(), ..Self::new(Info, "documented", "") }
    }

    pub(super) fn no_response(reason: &str) -> Self {
        Self { text: reason.to_owned().into(), ..Self::new(CannotTell, "no-response", "") }
    }

    pub(super) fn with_differences(self, differences: Differences) -> Self {
        Self { differences, ..self }
    }
}
