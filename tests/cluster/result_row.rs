//! The figures of a run.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::checker::{Breach, Rule, keys_of};
use crate::decisions::DecisionCounts;
use crate::history::{AnswerKind, History, Op, ScopedKey};
use crate::node_failure::NodeFailure;
use crate::steady_keys::{NodeShare, SteadyCounts};

/// The number of keys whose timeline is printed.
const STORIES_MAX: usize = 4;

pub struct ResultRow {
    failure: NodeFailure,
    keys: usize,
    executed: usize,
    /// Answered with the service's response before the load ended.
    answered: usize,
    /// Answered with it once more at the end.
    replayed: usize,
    /// Unknown at the end.
    unknown: usize,
    /// Requests that got 503.
    refused: usize,
    /// The longest time between two first answers, of all instances together.
    pause: Duration,
    /// On each node.
    left_prepared: [usize; 3],
    decisions: DecisionCounts,
    steady: SteadyCounts,
    twice: usize,
    lost: usize,
}

impl ResultRow {
    /// `during` is the time from the failure to the end of the load.
    pub fn new(
        failure: NodeFailure,
        history: &History,
        breaches: &[Breach],
        left_prepared: [usize; 3],
        decisions: DecisionCounts,
        steady: SteadyCounts,
        during: &Range<Duration>,
    ) -> Self {
        let keys = |filter: &dyn Fn(&Op) -> bool| {
            let ops = history.ops.iter().filter(|op| filter(op));
            ops.map(|op| &op.name).collect::<BTreeSet<&ScopedKey>>().len()
        };
        let is_unknown = |op: &Op| {
            let operation = op.answer.as_ref().and_then(|answer| answer.operation.as_deref());
            op.kind() == Some(AnswerKind::Unknown) || operation == Some("unknown")
        };
        Self {
            failure,
            keys: keys(&|_| true),
            executed: history.effects.iter().map(|effect| &effect.name).collect::<BTreeSet<_>>().len(),
            answered: keys(&|op| !op.last && op.acknowledges()),
            replayed: keys(&|op| op.last && op.kind() == Some(AnswerKind::Replay)),
            unknown: keys(&|op| op.last && is_unknown(op)),
            refused: history.ops.iter().filter(|op| !op.last && op.kind() == Some(AnswerKind::Rejected)).count(),
            pause: longest_pause(history, during),
            left_prepared,
            decisions,
            twice: keys_of(breaches, &[Rule::OneEffect, Rule::OneEffectForAnAttempt]).len() + steady.twice,
            lost: keys_of(breaches, &[Rule::NothingAcknowledgedIsLost, Rule::AnswersAreAlike]).len() + steady.lost,
            steady,
        }
    }

    /// The breaches, with the timelines of some keys.
    pub fn breaches(&self, history: &History, breaches: &[Breach]) -> Option<String> {
        let mut lines: Vec<String> = breaches.iter().map(|breach| format!("{breach}\n")).collect();
        let DecisionCounts { halves, lost, .. } = &self.decisions;
        if halves + lost > 0 {
            lines.push(format!("{halves} decisions are half done, {lost} that were acknowledged are lost\n"));
        }
        let SteadyCounts { twice, lost, .. } = &self.steady;
        if twice + lost > 0 {
            lines.push(format!("of the keys at a fixed rate, {twice} were executed twice and {lost} are lost\n"));
        }
        let names: BTreeSet<_> = breaches.iter().filter_map(|breach| breach.name.as_ref()).collect();
        let stories = names.into_iter().take(STORIES_MAX).map(|name| format!("{name}\n{}", history.timeline(name)));
        (!lines.is_empty()).then(|| lines.iter().cloned().chain(stories).collect())
    }
}

/// The longest time between two first answers from the failure to the end of the load.
fn longest_pause(history: &History, during: &Range<Duration>) -> Duration {
    let first = history.ops.iter().filter(|op| op.kind() == Some(AnswerKind::First)).map(|op| op.returned);
    let mut times: Vec<_> = first.filter(|at| during.contains(at)).collect();
    times.extend([during.start, during.end]);
    times.sort();
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

impl fmt::Display for ResultRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failure, keys, executed, answered, replayed, unknown, refused, pause, twice, lost, .. } = self;
        let (failure, pause) = (failure.name(), pause.as_secs_f64());
        let [of_killed, of_others] = [self.steady.of_killed_nodes, self.steady.of_other_nodes]
            .map(|NodeShare { sent, executed }| format!("{executed} of {sent}"));
        let [coordinator, first, second] = self.left_prepared;
        let DecisionCounts { acknowledged, open, purged: [purged, left], halves, lost: lost_decisions } =
            self.decisions;
        let (decided, to_purge, broken) = (acknowledged + open, purged + left, halves + lost_decisions);
        write!(
            f,
            "| {failure} | {keys} | {executed} | {answered} | {replayed} | {unknown} | {refused} | {pause:.1} s | \
             {of_killed} | {of_others} | {acknowledged} of {decided} | {purged} of {to_purge} | \
             {coordinator}, {first}, {second} | {twice} | {lost} | {broken} |"
        )
    }
}

/// The columns of the table.
const COLUMNS: [&str; 16] = [
    "killed",
    "keys",
    "executed",
    "answered",
    "replayed at the end",
    "unknown at the end",
    "refused (503)",
    "longest time without a first answer",
    "while nodes were away, executed of the keys of killed nodes",
    "of the keys of the others",
    "decisions acknowledged",
    "purged by the interrupted purge",
    "prepared transactions left on the coordinator and on each worker",
    "executed twice",
    "lost",
    "decisions half done or lost",
];

/// Formats the table of all runs.
pub fn table(rows: &[ResultRow]) -> String {
    let head = format!("| {} |\n|{}\n", COLUMNS.join(" | "), "---|".repeat(COLUMNS.len()));
    let rows: String = rows.iter().map(|row| format!("{row}\n")).collect();
    format!("{head}{rows}")
}
