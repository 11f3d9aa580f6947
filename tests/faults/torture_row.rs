//! The figures of a run, as a row of the table in RELIABILITY.md.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::checker::{Breach, Rule, keys_of};
use crate::history::{History, ScopedKey};

/// The row's head.
pub const HEAD: &str = "\
| store | duration | operations | kills | pauses | database crashes and failovers | connection faults | keys | effects | lost \
| twice | differing | across scopes | indefinite |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// The faults that end or replace the database's server.
const CRASHES: [&str; 4] = ["CrashStore", "Switchover", "KilledServer", "CutNode"];

pub struct TortureRow<'a> {
    pub store: &'static str,
    /// The time under faults.
    pub duration: Duration,
    pub history: &'a History,
    pub breaches: &'a [Breach],
}

impl fmt::Display for TortureRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, duration, history, breaches } = self;
        let injected = |fault: &str| history.faults.get(fault).copied().unwrap_or(0);
        let keys: BTreeSet<&ScopedKey> = history.ops.iter().map(|op| &op.name).collect();
        let broken = |rules: &[Rule]| keys_of(breaches, rules).len();
        write!(
            f,
            "| {store} | {} min {} s | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            duration.as_secs() / 60,
            duration.as_secs() % 60,
            injected(crate::fault_run::OPERATIONS),
            injected("Kill"),
            injected("Pause"),
            CRASHES.iter().map(|fault| injected(fault)).sum::<usize>(),
            injected(crate::fault_run::CONNECTION_FAULTS),
            keys.len(),
            history.effects.len(),
            broken(&[Rule::NothingAcknowledgedIsLost]),
            broken(&[Rule::OneEffect, Rule::OneEffectForAnAttempt, Rule::NothingAfterAnAnswer]),
            broken(&[Rule::AnswersAreAlike, Rule::OneFirstAnswer]),
            broken(&[Rule::CallersAreApart]),
            broken(&[Rule::EveryKeyIsDefinite]),
        )
    }
}
