//! The results of a run: the format of `side_by_side.json`, from which its tables and its picture are written.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::report::{BenchmarkReport, Column, RoundsSummary, Row, Target, summarize};
use crate::run_stamp::RunStamp;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchmarkResults {
    pub run: RunStamp,
    /// A remark of whoever stored the results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    pub machine: Value,
    /// The measurements of each row.
    pub rounds: usize,
    /// The length of a measurement.
    pub seconds: u64,
    /// The length of the whole run.
    pub minutes: u64,
    pub checks: Vec<CheckResult>,
    pub rows: Vec<RowResult>,
    pub memory: Vec<MemoryResult>,
    /// The rows that were left out, each with the reason.
    pub left_out: Vec<String>,
}

/// A ratio or figure with its aim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckResult {
    pub name: String,
    pub target: Target,
    pub meaning: String,
    /// `None` if it was not measured.
    pub result: Option<RoundsSummary>,
}

/// The figures of a row: medians, the rate with its range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowResult {
    pub name: String,
    pub connections: usize,
    pub per_second: Option<RoundsSummary>,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    /// The processor time of the row's own program for each request.
    pub program_us: Option<f64>,
    /// PostgreSQL's processor time for each request.
    pub postgresql_us: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryResult {
    pub name: String,
    pub idle_mib: f64,
    pub after_load_mib: f64,
}

impl BenchmarkResults {
    pub fn new(report: &BenchmarkReport, machine: Value, rounds: usize, seconds: u64, minutes: u64) -> Self {
        let check = |check: &crate::report::ReportCheck| CheckResult {
            name: check.name.clone(),
            target: check.target,
            meaning: check.meaning.to_owned(),
            result: summarize(&check.rounds),
        };
        let mebi = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let memory = report.memory.iter().map(|(name, idle, after)| MemoryResult {
            name: (*name).to_owned(),
            idle_mib: mebi(*idle),
            after_load_mib: mebi(*after),
        });
        Self {
            run: RunStamp::now(),
            note: None,
            machine,
            rounds,
            seconds,
            minutes,
            checks: report.checks.iter().map(check).collect(),
            rows: report.rows.iter().map(RowResult::new).collect(),
            memory: memory.collect(),
            left_out: report.missing.clone(),
        }
    }
}

impl RowResult {
    fn new(row: &Row) -> Self {
        let median = |column, factor| summarize(row.rounds(column)).map(|RoundsSummary { median, .. }| median * factor);
        Self {
            name: row.name.clone(),
            connections: row.connections,
            per_second: summarize(row.rounds(Column::Rate)),
            p50_ms: median(Column::P50, 1e3),
            p99_ms: median(Column::P99, 1e3),
            program_us: median(Column::Program, 1e6),
            postgresql_us: median(Column::Server, 1e6),
        }
    }
}
