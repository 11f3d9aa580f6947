//! The output of a report: the summary that opens BENCHMARKS.md and the measured rows, both in Markdown, and JSON.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::report::{BenchmarkReport, Column, ReportCheck, RoundsSummary, Row, Target, summarize};

/// The columns of the table of rows: heading, figure, factor from the base unit, and decimal places.
const ROW_COLUMNS: [(&str, Column, f64, usize); 5] = [
    ("a second (range)", Column::Rate, 1.0, 0),
    ("p50, ms", Column::P50, 1e3, 2),
    ("p99, ms", Column::P99, 1e3, 2),
    ("program, µs", Column::Program, 1e6, 1),
    ("PostgreSQL, µs", Column::Server, 1e6, 0),
];

/// Formats the summary: each ratio or figure with its aim, its result, and its meaning.
pub fn summary_table(report: &BenchmarkReport) -> String {
    let mut text = "| row | aim | last run | what it means |\n|---|---|---|---|\n".to_owned();
    for check in &report.checks {
        let (name, aim, meaning) = (&check.name, format_target(check.target), check.meaning);
        writeln!(text, "| {name} | {aim} | {} | {meaning} |", format_result(check)).unwrap();
    }
    text
}

fn format_result(check: &ReportCheck) -> String {
    let Some(summary) = summarize(&check.rounds) else { return "not measured".to_owned() };
    let RoundsSummary { median, least, most } = summary;
    let range = if least < most { format!(" ({} - {})", short(least), short(most)) } else { String::new() };
    let verdict = match check.target.is_reached(median) {
        Some(true) => ", reached",
        Some(false) => ", **not reached**",
        None => "",
    };
    format!("{}{range}{verdict}", short(median))
}

fn format_target(target: Target) -> String {
    match target {
        Target::AtLeast(least) => format!("at least {least}"),
        Target::AtMost(most) => format!("at most {most}"),
        Target::None => "none".to_owned(),
    }
}

/// Formats a ratio or figure with three significant digits.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        0.0 | 100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// Formats all measured rows as medians, the rate with its range.
pub fn row_table(report: &BenchmarkReport) -> String {
    let headings = ROW_COLUMNS.map(|(heading, ..)| heading).join(" | ");
    let mut text = format!("| row | connections | {headings} |\n|{}\n", "---|".repeat(ROW_COLUMNS.len() + 2));
    for row in &report.rows {
        let cells = ROW_COLUMNS.map(|(_, column, factor, digits)| format_cell(row, column, factor, digits)).join(" | ");
        writeln!(text, "| {} | {} | {cells} |", row.name, row.connections).unwrap();
    }
    text
}

fn format_cell(row: &Row, column: Column, factor: f64, digits: usize) -> String {
    let Some(RoundsSummary { median, least, most }) = summarize(row.rounds(column)) else { return String::new() };
    let [median, least, most] = [median, least, most].map(|value| format!("{:.digits$}", value * factor));
    if column == Column::Rate { format!("{median} ({least} - {most})") } else { median }
}

/// Formats the memory of the programs and the rows that were left out, a line each.
pub fn notes(report: &BenchmarkReport) -> String {
    let mut text = String::new();
    for (name, idle, after) in &report.memory {
        let mebi = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
        writeln!(text, "memory of {name}: {:.1} MiB idle, {:.1} MiB after load", mebi(idle), mebi(after)).unwrap();
    }
    for missing in &report.missing {
        writeln!(text, "left out: {missing}").unwrap();
    }
    text
}

/// Converts a report to JSON, for comparing two runs.
pub fn to_json(report: &BenchmarkReport, machine: Value, rounds: usize, seconds: u64) -> Value {
    let rows = report.rows.iter().map(|row| {
        let of = |column| summarize(row.rounds(column)).map(|summary| summary.median);
        json!({
            "name": row.name, "connections": row.connections, "per_second": of(Column::Rate), "p50_s": of(Column::P50),
            "p99_s": of(Column::P99), "program_s": of(Column::Program), "server_s": of(Column::Server),
        })
    });
    let checks = report.checks.iter().map(|check| {
        let summary = summarize(&check.rounds);
        let reached = summary.and_then(|summary| check.target.is_reached(summary.median));
        json!({
            "what": check.name, "value": summary.map(|summary| summary.median), "least": summary.map(|summary| summary.least),
            "most": summary.map(|summary| summary.most), "target": format_target(check.target), "reached": reached,
        })
    });
    let memory = report.memory.iter().map(|(name, idle, after)| json!({"name": name, "idle": idle, "after": after}));
    json!({
        "machine": machine, "rounds": rounds, "seconds": seconds, "rows": rows.collect::<Vec<_>>(),
        "ratios": checks.collect::<Vec<_>>(), "memory_bytes": memory.collect::<Vec<_>>(), "left_out": report.missing,
    })
}

/// Writes the report below the target folder and returns the file's path.
pub fn save(json: &Value) -> PathBuf {
    let file = folder().join("side_by_side.json");
    fs::write(&file, serde_json::to_string_pretty(json).unwrap() + "\n").unwrap();
    file
}

/// Creates and returns the benchmark's folder below the target folder.
pub fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("bench");
    fs::create_dir_all(&folder).unwrap();
    folder
}
