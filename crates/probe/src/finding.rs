//! Findings about idempotency: for each check the observation, and its meaning.

use std::borrow::Cow;
use std::collections::BTreeSet;

use http::StatusCode;
use oncegate_domain::macros::named;

use Conclusion::{Broken, CannotTell, Holds, Info};

/// A check, in words.
#[derive(Clone, Copy)]
pub struct IdempotencyCheck {
    /// The stable name in JSON.
    pub name: &'static str,
    /// The words in the table.
    pub title: &'static str,
    /// The draft's expectation, with the strength that the draft gives it.
    pub expected: &'static str,
    /// Whether the draft leaves it to the server, so that nothing can be broken.
    pub is_optional: bool,
}

impl IdempotencyCheck {
    pub(crate) const FIRST: Self = Self::new("first", "first request, fresh key", "executed (SHOULD)");
    /// It is sent before the retry, so that a body that changes with the time changes for a repeated execution too.
    pub(crate) const OTHER_KEY: Self = Self::new("other-key", "same body, another fresh key", "executed anew (SHOULD)");
    pub(crate) const RETRY: Self = Self::new("retry", "first request again", "the first result (SHOULD)");
    pub(crate) const DUPLICATES: Self =
        Self::new("duplicates", "duplicates at once, fresh key", "executed once; 409 while it runs (MUST)");
    pub(crate) const OTHER_BODY: Self = Self::new("other-body", "first key, another body", "422 (SHOULD)");
    pub(crate) const NO_KEY: Self =
        Self { is_optional: true, ..Self::new("no-key", "no key", "400 where a key is required (SHOULD)") };
    pub(crate) const POLICY: Self =
        Self { is_optional: true, ..Self::new("policy", "documentation", "published (MUST)") };

    /// A check whose expectation can be broken.
    pub const fn new(name: &'static str, title: &'static str, expected: &'static str) -> Self {
        Self { name, title, expected, is_optional: false }
    }
}

named! {
    /// The meaning of a finding, the worst last: one broken expectation breaks the whole, and one doubt leaves it in
    /// doubt. The names are those in JSON.
    #[derive(PartialOrd, Ord)]
    pub enum Conclusion {
        /// A fact that no expectation depends on.
        Info => "info",
        Holds => "holds",
        /// Seen from outside, the server that holds and the one that does not would look the same.
        CannotTell => "cannot-tell",
        Broken => "broken",
    }
}

/// A part in which two responses differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub enum Difference {
    Status,
    Field(&'static str),
    /// The value at this JSON Pointer of both bodies.
    Json(String),
    Body,
}

/// The parts in which a response differs from the first one.
pub type Differences = BTreeSet<Difference>;

/// Defines findings without differences: the conclusion, the name in JSON, and the words in the table.
macro_rules! findings {
    ($($(#[$about:meta])* $finding:ident = $conclusion:ident, $name:literal, $text:literal;)+) => { $(
        $(#[$about])*
        pub(crate) const $finding: Finding = Finding::new($conclusion, $name, $text);
    )+ };
}
pub(crate) use findings;

/// The observation of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub conclusion: Conclusion,
    /// The stable name in JSON.
    pub name: &'static str,
    /// The words in the table.
    pub text: Cow<'static, str>,
    /// None where nothing was compared.
    pub differences: Differences,
}

impl Finding {
    findings! {
        EXECUTED = Holds, "executed", "executed";
        NOT_EXECUTED = CannotTell, "not-executed", "not executed, so nothing else was sent";

        // Another key.
        EXECUTED_ANEW = Holds, "executed-anew", "executed anew";
        /// The response is the same, but the server marks replays.
        EXECUTED_ANEW_UNMARKED = Holds, "executed-anew", "executed anew, as it is not marked as a replay";
        REPLAYED_FOR_OTHER_KEY = Broken, "replayed-for-other-key", "marked as a replay, although the key is new";
        LOOKS_THE_SAME =
            CannotTell, "looks-the-same", "the same response: two executions look the same, so an equal retry proves nothing";
        REFUSED_FOR_OTHER_KEY =
            CannotTell, "refused-for-other-key", "refused: the API may not take the same body twice";

        // The retry, and the duplicates.
        /// A second execution would have another response, or the server marks the replay.
        REPLAYED = Holds, "replayed", "the first response";
        REPLAYED_OR_EXECUTED =
            CannotTell, "replayed-or-executed", "the first response, but a second execution would look the same";
        /// They differ, but not in all parts in which executions differ, or one is marked as a replay.
        CHANGED =
            CannotTell, "changed", "responses differ, but perhaps not the result: leave values that change by themselves out with --ignore";
        EXECUTED_AGAIN = Broken, "executed-again", "another result: executed again";
        RETRY_REFUSED = Broken, "retry-refused", "refused: not executed again, but the first result is not given";
        EXECUTED_ONCE = Holds, "executed-once", "executed once";
        EXECUTED_ONCE_OR_MORE =
            CannotTell, "executed-once-or-more", "one result, but several executions would look the same";
        NEVER_EXECUTED = Broken, "never-executed", "all refused, none executed";

        // Another body.
        REUSE_REFUSED = Holds, "reuse-refused", "refused; accepted with a key of its own";
        BODY_REFUSED =
            CannotTell, "body-refused", "refused, but with a key of its own too: name a valid one with --other-body";
        REUSE_REPLAYED = Broken, "reuse-replayed", "the first response: a mistaken reuse is not noticed";
        REUSE_ACCEPTED = Broken, "reuse-accepted", "accepted: executed or not";
        REUSE_EXECUTED = Broken, "reuse-accepted", "another result: executed under a used key";
        NO_OTHER_BODY = CannotTell, "no-other-body", "not sent: name a valid body with --other-body";
        NO_BODY = Info, "no-body", "not sent: the operation has no body";

        // No key, and the documentation.
        KEY_REQUIRED = Info, "key-required", "refused: a key is required";
        KEY_OPTIONAL = Info, "key-optional", "executed: a key is not required";
        UNDOCUMENTED = Info, "undocumented", "no refusal names a page";

        UNCLEAR = CannotTell, "unclear", "this status says nothing about the key";
    }

    /// A finding without differences.
    pub const fn new(conclusion: Conclusion, name: &'static str, text: &'static str) -> Self {
        Self { conclusion, name, text: Cow::Borrowed(text), differences: BTreeSet::new() }
    }

    pub(crate) fn executed_many_times(count: usize) -> Self {
        let text = format!("{count} different results: executed {count} times");
        Self { text: text.into(), ..Self::new(Broken, "executed-many-times", "") }
    }

    pub(crate) fn documented(urls: &BTreeSet<String>) -> Self {
        let urls: Vec<_> = urls.iter().map(String::as_str).collect();
        Self { text: format!("refusals name {}", urls.join(", ")).into(), ..Self::new(Info, "documented", "") }
    }

    pub(crate) fn no_response(reason: &str) -> Self {
        Self { text: reason.to_owned().into(), ..Self::new(CannotTell, "no-response", "") }
    }

    pub(crate) fn with_differences(self, differences: Differences) -> Self {
        Self { differences, ..self }
    }

    /// Returns the note about a status other than the draft's, where the finding holds.
    pub(crate) fn status_note(&self, statuses: &[StatusCode]) -> Option<&'static str> {
        const OTHER_STATUS: Option<&str> = Some("not the draft's status");
        let has = |status: StatusCode| statuses.contains(&status);
        match self.name {
            "reuse-refused" if !has(StatusCode::UNPROCESSABLE_ENTITY) => OTHER_STATUS,
            "key-required" if !has(StatusCode::BAD_REQUEST) => OTHER_STATUS,
            "executed-once" if has(StatusCode::CONFLICT) => None,
            "executed-once" if statuses.iter().any(StatusCode::is_client_error) => OTHER_STATUS,
            "executed-once" => Some("without 409: the others waited for the first, or came after its end"),
            _ => None,
        }
    }
}
