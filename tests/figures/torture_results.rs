//! The results of `make torture`: the format of `torture.json`, from which its table and its picture are written.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::bar_chart::{Bar, BarChart, BarGroup, thousands};
use crate::run_stamp::RunStamp;

/// The stores, in the order of the table.
const STORES: [&str; 4] = ["SQLite", "PostgreSQL", "Patroni", "Citus"];

/// The figures of a run on one store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TortureResult {
    pub store: String,
    pub run: RunStamp,
    pub seed: String,
    /// The time under faults.
    pub seconds: u64,
    /// Requests and messages under faults.
    pub operations: usize,
    pub kills: usize,
    pub pauses: usize,
    pub crashes_and_failovers: usize,
    /// Connections that a fault of their link has struck.
    pub connection_faults: usize,
    /// The number of injections of each fault.
    pub injected: BTreeMap<String, usize>,
    pub keys: usize,
    pub effects: usize,
    /// Keys with a broken promise.
    pub broken: BrokenKeys,
}

/// The numbers of keys with each kind of broken promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokenKeys {
    /// An acknowledged answer was lost.
    pub lost: usize,
    pub executed_twice: usize,
    /// Two answers differ.
    pub differing: usize,
    /// An answer went to another caller.
    pub across_scopes: usize,
    /// The key is in no definite state at the end.
    pub indefinite: usize,
}

/// Adds a result to those in the folder, in the place of an earlier one on the same store, and
/// writes the table and the picture.
pub fn record(folder: &Path, result: TortureResult) {
    let mut results = read(folder).unwrap_or_default();
    results.retain(|earlier| earlier.store != result.store);
    results.push(result);
    results.sort_by_key(|result| STORES.iter().position(|store| *store == result.store));
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("torture.json"), serde_json::to_string_pretty(&results).unwrap() + "\n").unwrap();
    write_documents(folder);
}

/// Returns the results in a folder; `None` where there are none.
pub fn read(folder: &Path) -> Option<Vec<TortureResult>> {
    let text = fs::read_to_string(folder.join("torture.json")).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

/// Writes the table and the picture of the results in a folder beside them.
pub fn write_documents(folder: &Path) {
    let results = read(folder).unwrap();
    fs::write(folder.join("torture-table.md"), page(&results)).unwrap();
    fs::write(folder.join("torture.svg"), picture(&results)).unwrap();
}

/// Formats the page of the table.
pub fn page(results: &[TortureResult]) -> String {
    let runs: String = results
        .iter()
        .map(|TortureResult { store, run, seed, injected, .. }| {
            let injected = injected.iter().map(|(fault, count)| format!("{fault} {count}")).collect::<Vec<_>>();
            format!("| {store} | {} | {} | `{seed}` | {} |\n", run.date, run.commit, injected.join(", "))
        })
        .collect();
    format!(
        "# Figures of the last runs of make torture\n\n`make torture` writes this page from `torture.json`. [RELIABILITY.md](../../RELIABILITY.md#torture) \
         explains the faults and the columns.\n\n{}\n| store | day | commit | seed | injections of each fault |\n|---|---|---|---|---|\n{runs}",
        table(results)
    )
}

/// Formats the results as a table with a row for each store, and one for all.
pub fn table(results: &[TortureResult]) -> String {
    let head = "| store | duration | operations | kills | pauses | database crashes and failovers | connection faults | keys | effects \
                | lost | twice | differing | across scopes | indefinite |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
    let row = |result: &TortureResult| (result.store.clone(), result.seconds, counts(result));
    let mut rows: Vec<_> = results.iter().map(row).collect();
    if rows.len() > 1 {
        let total = |at: usize| rows.iter().map(|(_, _, counts)| counts[at]).sum();
        rows.push(("all".to_owned(), rows.iter().map(|row| row.1).sum(), std::array::from_fn(total)));
    }
    let row = |(store, seconds, counts): &(String, u64, [usize; 12])| {
        format!("| {store} | {} min {} s | {} |\n", seconds / 60, seconds % 60, counts.map(thousands).join(" | "))
    };
    rows.iter().fold(head.to_owned(), |table, columns| table + &row(columns))
}

/// The columns of the table after the duration.
fn counts(result: &TortureResult) -> [usize; 12] {
    let BrokenKeys { lost, executed_twice, differing, across_scopes, indefinite } = result.broken;
    let TortureResult { operations, kills, pauses, crashes_and_failovers, connection_faults, keys, effects, .. } =
        *result;
    let injected = [operations, kills, pauses, crashes_and_failovers, connection_faults];
    let [operations, kills, pauses, crashes, connections] = injected;
    [
        operations,
        kills,
        pauses,
        crashes,
        connections,
        keys,
        effects,
        lost,
        executed_twice,
        differing,
        across_scopes,
        indefinite,
    ]
}

/// Draws the faults and the keys with a broken promise, as SVG.
pub fn picture(results: &[TortureResult]) -> String {
    let group = |title: &str, count: fn(&TortureResult) -> usize, text: fn(&TortureResult, usize) -> String| {
        let bar = |result: &TortureResult| {
            let (value, label) = (count(result), result.store.replace("Patroni", "PostgreSQL under Patroni"));
            Bar { label, value: value as f64, range: None, text: text(result, value), is_ours: true }
        };
        BarGroup { title: title.to_owned(), bars: results.iter().map(bar).collect() }
    };
    let plain = |_: &TortureResult, value| thousands(value);
    let broken = |result: &TortureResult| {
        let BrokenKeys { lost, executed_twice, differing, across_scopes, indefinite } = result.broken;
        lost + executed_twice + differing + across_scopes + indefinite
    };
    let run = |TortureResult { store, run, seconds, .. }: &TortureResult| {
        format!("{store}: {} minutes on {}, commit {}.", seconds / 60, run.date, run.commit)
    };
    let chart = BarChart {
        title: "Faults injected at random under load, and keys with a broken promise".to_owned(),
        notes: results.iter().map(run).chain(["Each group has its own scale.".to_owned()]).collect(),
        groups: vec![
            group("Requests and messages under faults", |result| result.operations, plain),
            group("Oncegate processes killed", |result| result.kills, plain),
            group("Oncegate processes paused for longer than their lease", |result| result.pauses, plain),
            group("Crashes and failovers of PostgreSQL", |result| result.crashes_and_failovers, plain),
            group("Connections cut, silent or unevenly slow", |result| result.connection_faults, plain),
            group(
                "Keys executed twice, lost, answered differently or to another caller, or without a definite state",
                broken,
                |result, value| format!("{} of {} keys", thousands(value), thousands(result.keys)),
            ),
        ],
    };
    chart.to_svg()
}
