//! The figures of a run.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::checker::{Breach, Rule, keys_of};
use crate::history::{AnswerKind, History};
use harness::failover::FailoverEvent;
use harness::patroni::Replication;

/// The instances: with all hosts in the URL, and behind HAProxy.
const INSTANCES: usize = 2;

/// The breaches that show a key whose commits a failover has lost.
const OF_LOSS: [Rule; 5] = [
    Rule::OneEffect,
    Rule::OneCallForAnAttempt,
    Rule::OneAttemptAtATime,
    Rule::NothingFollowsAnExecution,
    Rule::NothingAcknowledgedIsLost,
];

/// The rules that hold for lost keys too. Such a key is new again, so that any other rule about one key may be broken.
const ALWAYS: [Rule; 3] = [Rule::CallersAreApart, Rule::AnswersMakeSense, Rule::EffectsHaveACause];

/// The number of keys whose timeline is printed.
const STORIES_MAX: usize = 4;

pub struct ResultRow {
    event: FailoverEvent,
    replication: Replication,
    /// The time after which a primary was there again.
    elected: Duration,
    /// For each instance, the longest time during the event in which it executed nothing.
    refused: [Duration; INSTANCES],
    keys: usize,
    lost: usize,
    twice: usize,
    differing: usize,
    stuck: usize,
}

impl ResultRow {
    /// `during` is the time from the event to the end of the load.
    pub fn new(
        event: FailoverEvent,
        replication: Replication,
        elected: Duration,
        history: &History,
        breaches: &[Breach],
        during: Range<Duration>,
    ) -> Self {
        let keys: BTreeSet<_> = history.ops.iter().map(|op| &op.name).collect();
        let count = |rules: &[Rule]| keys_of(breaches, rules).len();
        let lost = keys_of(breaches, &OF_LOSS);
        Self {
            event,
            replication,
            elected,
            refused: std::array::from_fn(|instance| longest_gap(history, instance, &during)),
            keys: keys.len(),
            lost: count(&[Rule::NothingAcknowledgedIsLost]),
            twice: count(&[Rule::OneEffect, Rule::OneEffectForAnAttempt]),
            differing: count(&[Rule::AnswersAreAlike, Rule::OneFirstAnswer]),
            stuck: keys_of(breaches, &[Rule::EveryKeyIsDefinite]).difference(&lost).count(),
        }
    }
}

/// The longest time between two first executions of an instance.
fn longest_gap(history: &History, instance: usize, during: &Range<Duration>) -> Duration {
    let executed = history.ops.iter().filter(|op| op.proxy == instance && op.kind() == Some(AnswerKind::First));
    let mut times: Vec<_> = executed.map(|op| op.returned).filter(|returned| during.contains(returned)).collect();
    times.extend([during.start, during.end]);
    times.sort();
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

/// The breaches that the replication does not allow, with the timelines of some keys.
pub fn forbidden(replication: Replication, history: &History, breaches: &[Breach]) -> Option<String> {
    let lost = match replication {
        Replication::Asynchronous => keys_of(breaches, &OF_LOSS),
        Replication::Synchronous => BTreeSet::new(),
    };
    let is_of_loss = |breach: &&Breach| {
        breach.name.as_ref().is_some_and(|name| lost.contains(name)) && !ALWAYS.contains(&breach.rule)
    };
    let forbidden: Vec<&Breach> = breaches.iter().filter(|breach| !is_of_loss(breach)).collect();
    let names: BTreeSet<_> = forbidden.iter().filter_map(|breach| breach.name.as_ref()).collect();
    let lines = forbidden.iter().map(|breach| format!("{breach}\n"));
    let stories = names.into_iter().take(STORIES_MAX).map(|name| format!("{name}\n{}", history.timeline(name)));
    (!forbidden.is_empty()).then(|| lines.chain(stories).collect())
}

impl fmt::Display for ResultRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { event, replication, elected, refused, keys, lost, twice, differing, stuck } = self;
        let (event, replication) = (event.name(), replication.name());
        let [elected, listed, balanced] = [*elected, refused[0], refused[1]].map(|time| time.as_secs_f64());
        write!(
            f,
            "| {event} | {replication} | {elected:.1} s | {listed:.1} s | {balanced:.1} s | {keys} | {lost} | {twice} | {differing} | {stuck} |"
        )
    }
}

/// Formats the table of all runs.
pub fn table(rows: &[ResultRow]) -> String {
    let head = "| event | replication | primary after | refused, all hosts in the URL | refused, behind HAProxy | keys | lost | \
                executed twice | differing | stuck |\n|---|---|---|---|---|---|---|---|---|---|\n";
    let rows: String = rows.iter().map(|row| format!("{row}\n")).collect();
    format!("{head}{rows}")
}
