//! The report of a benchmark: the measured rows, and the comparisons with their aims.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A figure that is measured in each round of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// Requests or pairs per second.
    Rate,
    /// The median latency in seconds.
    P50,
    /// The 99th percentile of the latency in seconds.
    P99,
    /// The processor time of the row's own program for each request, in seconds.
    Program,
    /// PostgreSQL's processor time for each request, in seconds.
    Server,
}

impl Column {
    /// Returns the words before the names of two rows whose ratio this column gives.
    fn prefix(self) -> &'static str {
        match self {
            Self::Rate => "",
            Self::P50 => "p50: ",
            Self::P99 => "p99: ",
            Self::Program => "processor time: ",
            Self::Server => "PostgreSQL's processor time: ",
        }
    }
}

/// All rows and all checks.
#[derive(Default)]
pub struct BenchmarkReport {
    pub rows: Vec<Row>,
    pub checks: Vec<ReportCheck>,
    /// The memory of each program in bytes: idle after its start, and after load.
    pub memory: Vec<(&'static str, u64, u64)>,
    /// The rows that were left out, each with the reason.
    pub missing: Vec<String>,
}

pub struct Row {
    pub name: String,
    pub connections: usize,
    rounds: BTreeMap<Column, Vec<f64>>,
}

impl Row {
    /// Returns a figure's values in the rounds.
    pub fn rounds(&self, column: Column) -> &[f64] {
        self.rounds.get(&column).map_or(&[], Vec::as_slice)
    }
}

/// A ratio or figure with its aim, as measured in each round.
pub struct ReportCheck {
    pub name: String,
    pub target: Target,
    /// The meaning of the figure, in one sentence.
    pub meaning: &'static str,
    pub rounds: Vec<f64>,
}

/// The aim of a ratio or figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Without an aim.
    None,
}

impl Target {
    pub fn is_reached(self, value: f64) -> Option<bool> {
        match self {
            Self::AtLeast(least) => Some(value >= least),
            Self::AtMost(most) => Some(value <= most),
            Self::None => None,
        }
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

    /// Returns a figure's values in the rounds of a row; none if the row was left out.
    pub fn rounds(&self, name: &str, connections: usize, column: Column) -> Vec<f64> {
        let row = self.rows.iter().find(|row| row.name == name && row.connections == connections);
        row.map_or(Vec::new(), |row| row.rounds(column).to_vec())
    }

    /// Adds the ratio of two rows, the first divided by the second, round by round: a machine that is busy for some seconds
    /// disturbs both alike.
    pub fn compare(
        &mut self,
        (above, below): (&str, &str),
        connections: usize,
        column: Column,
        target: Target,
        meaning: &'static str,
    ) {
        let [values, divisors] = [above, below].map(|name| self.rounds(name, connections, column));
        let ratios = values.iter().zip(&divisors).map(|(value, divisor)| value / divisor).collect();
        let plural = if connections == 1 { "" } else { "s" };
        let name = format!("{}{above} / {below}, {connections} connection{plural}", column.prefix());
        self.add_check(name, ratios, target, meaning);
    }

    /// Adds a ratio, or a figure with an aim.
    pub fn add_check(&mut self, name: String, rounds: Vec<f64>, target: Target, meaning: &'static str) {
        self.checks.push(ReportCheck { name, target, meaning, rounds });
    }
}

/// Returns the median, the least and the most of a figure's rounds; `None` without a round.
pub fn summarize(rounds: &[f64]) -> Option<RoundsSummary> {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (least, most) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
    Some(RoundsSummary { median, least, most })
}

/// The rounds of a figure in short.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundsSummary {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

/// Formats a ratio or figure with three significant digits.
pub fn short(value: f64) -> String {
    let digits = match value.abs() {
        0.0 | 100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}
