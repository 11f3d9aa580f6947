//! The report of a benchmark: measured rows, comparisons, and their output as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::load::Round;

/// A figure that is measured in each round of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// Requests or pairs per second.
    Rate,
    /// The median latency in seconds.
    P50,
    /// The 99th percentile of the latency in seconds.
    P99,
    /// PostgreSQL's processor time for each request, in seconds.
    Server,
}

/// All rows and all checks.
#[derive(Default)]
pub struct BenchmarkReport {
    rows: Vec<Row>,
    checks: Vec<ReportCheck>,
    memory: Vec<(&'static str, u64, u64)>,
    /// The rows that were left out, each with the reason.
    pub missing: Vec<String>,
}

struct Row {
    name: String,
    connections: usize,
    rounds: BTreeMap<Column, Vec<f64>>,
}

/// A ratio or figure with its target, as measured in each round.
struct ReportCheck {
    name: String,
    target: Target,
    rounds: Vec<f64>,
}

/// The target of a ratio or figure.
#[derive(Clone, Copy)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Without a target.
    None,
}

impl Target {
    fn is_reached(self, value: f64) -> Option<bool> {
        match self {
            Self::AtLeast(least) => Some(value >= least),
            Self::AtMost(most) => Some(value <= most),
            Self::None => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {least}"),
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::None => Ok(()),
        }
    }
}

pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

impl BenchmarkReport {
    /// Adds one round of a row.
    pub fn add(&mut self, name: &str, connections: usize, figures: &[(Column, f64)]) {
        let known = self.rows.iter().position(|row| row.name == name && row.connections == connections);
        let at = known.unwrap_or_else(|| {
            self.rows.push(Row { name: name.to_owned(), connections, rounds: BTreeMap::new() });
            self.rows.len() - 1
        });
        for (column, value) in figures {
            self.rows[at].rounds.entry(*column).or_default().push(*value);
        }
    }

    /// Adds one round of a load.
    pub fn add_round(&mut self, name: &str, connections: usize, round: &Round) {
        let figures = [(Column::Rate, round.rate), (Column::P50, round.p50), (Column::P99, round.p99)];
        self.add(name, connections, &figures);
    }

    /// Returns a figure's values in the rounds of a row; none if the row was left out.
    pub fn rounds(&self, name: &str, connections: usize, column: Column) -> Vec<f64> {
        let row = self.rows.iter().find(|row| row.name == name && row.connections == connections);
        row.and_then(|row| row.rounds.get(&column)).cloned().unwrap_or_default()
    }

    /// Compares two rows round by round: a machine that is busy for some seconds disturbs both alike.
    pub fn compare(&mut self, (ours, theirs): (&str, &str), connections: usize, column: Column, target: Target) {
        let [our, their] = [ours, theirs].map(|name| self.rounds(name, connections, column));
        let ratios = our.iter().zip(&their).map(|(our, their)| our / their).collect();
        let prefix = if column == Column::Server { "PostgreSQL's processor time: " } else { "" };
        self.add_check(format!("{prefix}{ours} / {theirs}, {connections} connections"), ratios, target);
    }

    /// Adds a ratio, or a figure with a target.
    pub fn add_check(&mut self, name: String, rounds: Vec<f64>, target: Target) {
        self.checks.push(ReportCheck { name, target, rounds });
    }

    /// Adds a program's memory in bytes: idle after its start, and after load.
    pub fn add_memory(&mut self, name: &'static str, idle: u64, after: u64) {
        self.memory.push((name, idle, after));
    }

    /// Formats the report as a table for the terminal.
    pub fn to_table(&self) -> String {
        let mut text = String::new();
        let column = |row: &Row, column, factor: f64, digits: usize| {
            let value = row.rounds.get(&column).and_then(|rounds| median(rounds));
            value.map_or(String::new(), |value| format!("{:.digits$}", value * factor))
        };
        writeln!(text, "{:<44} {:>5} {:>9} {:>8} {:>8} {:>10}", "", "conns", "/s", "p50 ms", "p99 ms", "server us")
            .unwrap();
        for row in &self.rows {
            let (rate, server) = (column(row, Column::Rate, 1.0, 0), column(row, Column::Server, 1e6, 0));
            let (p50, p99) = (column(row, Column::P50, 1e3, 2), column(row, Column::P99, 1e3, 2));
            writeln!(text, "{:<44} {:>5} {rate:>9} {p50:>8} {p99:>8} {server:>10}", row.name, row.connections).unwrap();
        }
        for (name, idle, after) in &self.memory {
            let mebi = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
            writeln!(text, "memory of {name}: {:.1} MiB idle, {:.1} MiB after load", mebi(idle), mebi(after)).unwrap();
        }
        writeln!(text).unwrap();
        for check in &self.checks {
            let ReportCheck { name, target, rounds } = check;
            let Some(value) = median(rounds) else {
                writeln!(text, "{name:<92} not measured").unwrap();
                continue;
            };
            let (least, most) = range(rounds);
            let word = target.is_reached(value).map_or("", |reached| if reached { "reached" } else { "NOT REACHED" });
            let between = format!("({least:.2} - {most:.2})");
            writeln!(text, "{name:<92} {value:>7.2} {between:>17} {:>8} {word}", target.to_string()).unwrap();
        }
        for missing in &self.missing {
            writeln!(text, "left out: {missing}").unwrap();
        }
        text
    }

    /// Converts the report to JSON, for comparing two runs.
    pub fn to_json(&self, machine: Value, rounds: usize, seconds: u64) -> Value {
        let rows = self.rows.iter().map(|row| {
            let of = |column| row.rounds.get(&column).and_then(|rounds| median(rounds));
            json!({
                "name": row.name, "connections": row.connections, "per_second": of(Column::Rate),
                "p50_s": of(Column::P50), "p99_s": of(Column::P99), "server_s": of(Column::Server),
            })
        });
        let checks = self.checks.iter().map(|check| {
            let value = median(&check.rounds);
            let (least, most) = range(&check.rounds);
            json!({
                "what": check.name, "value": value, "least": least, "most": most,
                "target": check.target.to_string(), "reached": value.and_then(|value| check.target.is_reached(value)),
            })
        });
        let memory = self.memory.iter().map(|(name, idle, after)| json!({"name": name, "idle": idle, "after": after}));
        json!({
            "machine": machine, "rounds": rounds, "seconds": seconds, "rows": rows.collect::<Vec<_>>(),
            "ratios": checks.collect::<Vec<_>>(), "memory_bytes": memory.collect::<Vec<_>>(), "left_out": self.missing,
        })
    }
}

fn range(rounds: &[f64]) -> (f64, f64) {
    let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
    (least, rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

/// Writes the report below the target folder and returns the file's path.
pub fn save(json: &Value) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("bench");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("side_by_side.json");
    fs::write(&file, serde_json::to_string_pretty(json).unwrap() + "\n").unwrap();
    file
}
