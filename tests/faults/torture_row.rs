//! The figures of a run, as `make torture` records and prints them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::checker::{Breach, Rule, keys_of};
use crate::history::{History, ScopedKey};
use crate::run_stamp::RunStamp;
use crate::torture_results::{BrokenKeys, TortureResult};

/// The faults that end or replace the database's server.
const CRASHES: [&str; 5] = ["CrashStore", "Switchover", "KilledServer", "CutNode", "KilledNode"];

/// Returns the figures of a run; `duration` is the time under faults.
pub fn measure(store: &str, seed: u64, duration: Duration, history: &History, breaches: &[Breach]) -> TortureResult {
    let injected = |fault: &str| history.faults.get(fault).copied().unwrap_or(0);
    let (operations, connection_faults) = (crate::fault_run::OPERATIONS, crate::fault_run::CONNECTION_FAULTS);
    let is_injection = |(fault, _): &(&String, &usize)| ![operations, connection_faults].contains(&fault.as_str());
    let keys: BTreeSet<&ScopedKey> = history.ops.iter().map(|op| &op.name).collect();
    let broken = |rules: &[Rule]| keys_of(breaches, rules).len();
    TortureResult {
        store: store.to_owned(),
        run: RunStamp::now(),
        seed: format!("{seed:#x}"),
        seconds: duration.as_secs(),
        operations: injected(operations),
        kills: injected("Kill"),
        pauses: injected("Pause"),
        crashes_and_failovers: CRASHES.iter().map(|fault| injected(fault)).sum(),
        connection_faults: injected(connection_faults),
        injected: history.faults.iter().filter(is_injection).map(|(fault, count)| (fault.clone(), *count)).collect(),
        keys: keys.len(),
        effects: history.effects.len(),
        broken: BrokenKeys {
            lost: broken(&[Rule::NothingAcknowledgedIsLost]),
            executed_twice: broken(&[Rule::OneEffect, Rule::OneEffectForAnAttempt, Rule::NothingAfterAnAnswer]),
            differing: broken(&[Rule::AnswersAreAlike, Rule::OneFirstAnswer]),
            across_scopes: broken(&[Rule::CallersAreApart]),
            indefinite: broken(&[Rule::EveryKeyIsDefinite]),
        },
    }
}
