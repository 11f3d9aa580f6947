//! The report of a benchmark: the measured rows, and the comparisons with their aims.

use std::collections::BTreeMap;

/// A figure that is measured in each round of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// Requests per second.
    Rate,
    /// The median latency in seconds.
    P50,
    /// The 99th percentile of the latency in seconds.
    P99,
    /// The processor time of the row's own programs for each request, in seconds.
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

#[derive(Default)]
pub struct BenchmarkReport {
    pub rows: Vec<Row>,
    pub ratios: Vec<Ratio>,
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
    fn rounds(&self, column: Column) -> &[f64] {
        self.rounds.get(&column).map_or(&[], Vec::as_slice)
    }

    pub fn summary(&self, column: Column) -> Option<RoundsSummary> {
        summarize(self.rounds(column))
    }
}

/// The ratio of two rows.
pub struct Ratio {
    pub name: String,
    /// The least ratio that is aimed at.
    pub aim: Option<f64>,
    /// `None` if one of the rows was not measured.
    pub summary: Option<RoundsSummary>,
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

    pub fn row(&self, name: &str, connections: usize) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name && row.connections == connections)
    }

    /// Adds the ratio of two rows, the first divided by the second, round by round: a machine that is busy for some
    /// seconds disturbs both alike.
    pub fn compare(&mut self, (above, below): (&str, &str), connections: usize, column: Column, aim: Option<f64>) {
        let [values, divisors] =
            [above, below].map(|name| self.row(name, connections).map_or(&[][..], |row| row.rounds(column)));
        let ratios: Vec<_> = values.iter().zip(divisors).map(|(value, divisor)| value / divisor).collect();
        let plural = if connections == 1 { "" } else { "s" };
        let name = format!("{}{above} / {below}, {connections} connection{plural}", column.prefix());
        self.ratios.push(Ratio { name, aim, summary: summarize(&ratios) });
    }
}

/// The rounds of a figure in short.
#[derive(Clone, Copy)]
pub struct RoundsSummary {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

/// Returns the median, the least and the most of a figure's rounds; `None` without a round.
fn summarize(rounds: &[f64]) -> Option<RoundsSummary> {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (least, most) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
    Some(RoundsSummary { median, least, most })
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
