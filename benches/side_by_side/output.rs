//! The output of a run: its results as JSON, and from these a page with the tables in Markdown and a picture in SVG.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::bar_chart::{Bar, BarChart, BarGroup, thousands};
use crate::report::{RoundsSummary, Target};
use crate::results::{BenchmarkResults, CheckResult, RowResult};

/// The connections of the rows in the picture.
const PICTURE_CONNECTIONS: usize = 64;

/// The groups of the picture: a title, and bars with the names of their rows.
const PICTURE: [(&str, &[(&str, &str)]); 5] = [
    (
        "Requests without a key",
        &[("Oncegate", "pass-through"), ("HAProxy", "pass-through, HAProxy"), ("nginx", "pass-through, nginx")],
    ),
    (
        "First attempts: executed, with two durable commits",
        &[
            ("Oncegate on PostgreSQL", "first attempts, PostgreSQL"),
            ("Oncegate on SQLite", "first attempts, SQLite"),
            ("its two commits alone (pgbench)", "pgbench's pair"),
        ],
    ),
    (
        "First attempts, service in Node.js",
        &[
            ("Oncegate on PostgreSQL", "first attempts, PostgreSQL, service in Node.js"),
            ("Oncegate on SQLite", "first attempts, SQLite, service in Node.js"),
            ("Restate", "first attempts, Restate"),
        ],
    ),
    (
        "First attempts, service in fastify",
        &[
            ("Oncegate on PostgreSQL", "first attempts, PostgreSQL, fastify"),
            ("Oncegate on SQLite", "first attempts, SQLite, fastify"),
            ("middleware in the service, Redis", "first attempts, fastify with middleware and Redis"),
        ],
    ),
    (
        "Replays of stored responses",
        &[
            ("Oncegate on PostgreSQL", "replays, PostgreSQL"),
            ("Oncegate on SQLite", "replays, SQLite"),
            ("nginx's cache, files kept open", "cache hits, nginx"),
            ("nginx's cache as it comes", "cache hits, nginx as it comes"),
        ],
    ),
];

/// A column of the table of rows: the heading, the figure, and its decimal places.
type RowColumn = (&'static str, fn(&RowResult) -> Option<f64>, usize);

/// The columns after the rate.
const ROW_COLUMNS: [RowColumn; 4] = [
    ("p50, ms", |row| row.p50_ms, 2),
    ("p99, ms", |row| row.p99_ms, 2),
    ("program, µs", |row| row.program_us, 1),
    ("PostgreSQL, µs", |row| row.postgresql_us, 0),
];

/// Formats the page: the run, the ratios, and the measured rows.
pub fn page(results: &BenchmarkResults) -> String {
    let BenchmarkResults { run, note, machine, rounds, seconds, minutes, .. } = results;
    let machine = machine.as_object().into_iter().flatten();
    let machine = machine.filter(|(_, value)| !value.is_null()).map(|(name, value)| match value.as_str() {
        Some(text) => format!("{name} {text}"),
        None => format!("{name} {value}"),
    });
    let note = note.as_ref().map_or_else(String::new, |note| format!("{note}\n\n"));
    format!(
        "# The run of {}\n\n`make bench` writes this page and its picture from `side_by_side.json`. \
         [method.md](method.md) explains the rows.\n\n\
         Commit {}. Machine: {}. {rounds} rounds of {seconds} s each, {minutes} minutes in all.\n\n{note}\
         ![Requests a second of Oncegate and other programs](side_by_side.svg)\n\n\
         ## Ratios\n\nA ratio is the first row of its name divided by the second: the median of the rounds, with the least and the \
         most.\nProcessor time is that of one request.\n\n{}\n\
         ## Rows\n\n\"Program\" is the processor time of the proxy, cache or engine for a request, \"PostgreSQL\" that of its \
         server.\n\n{}{}",
        run.date,
        run.commit,
        machine.collect::<Vec<_>>().join(", "),
        check_table(results),
        row_table(results),
        notes(results),
    )
}

fn check_table(results: &BenchmarkResults) -> String {
    let mut text = "| row | aim | result | meaning |\n|---|---|---|---|\n".to_owned();
    for check in &results.checks {
        let CheckResult { name, target, meaning, .. } = check;
        writeln!(text, "| {name} | {} | {} | {meaning} |", format_target(*target), format_result(check)).unwrap();
    }
    text
}

fn format_result(check: &CheckResult) -> String {
    let Some(RoundsSummary { median, least, most }) = check.result else { return "not measured".to_owned() };
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
pub fn short(value: f64) -> String {
    let digits = match value.abs() {
        0.0 | 100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

fn row_table(results: &BenchmarkResults) -> String {
    let headings = ROW_COLUMNS.map(|(heading, ..)| heading).join(" | ");
    let marks = "---|".repeat(ROW_COLUMNS.len() + 3);
    let mut text = format!("| row | connections | a second (range) | {headings} |\n|{marks}\n");
    for row in &results.rows {
        let rate = row.per_second.map_or_else(String::new, |RoundsSummary { median, least, most }| {
            format!("{median:.0} ({least:.0} - {most:.0})")
        });
        let cell = |(_, figure, digits): RowColumn| {
            figure(row).map_or_else(String::new, |figure| format!("{figure:.digits$}"))
        };
        let cells = ROW_COLUMNS.map(cell).join(" | ");
        writeln!(text, "| {} | {} | {rate} | {cells} |", row.name, row.connections).unwrap();
    }
    text
}

/// Formats the memory of the programs and the rows that were left out.
fn notes(results: &BenchmarkResults) -> String {
    let memory = results.memory.iter().map(|memory| {
        let [idle, after] = [memory.idle_mib, memory.after_load_mib].map(short);
        format!("- Memory of {}: {idle} MiB idle, {after} MiB after load.\n", memory.name)
    });
    let left_out = results.left_out.iter().map(|missing| format!("- Left out: {missing}.\n"));
    let notes: String = memory.chain(left_out).collect();
    if notes.is_empty() { notes } else { format!("\n{notes}") }
}

/// Draws the rates beside those of the other programs. Rows that were not measured are left out.
pub fn picture(results: &BenchmarkResults) -> String {
    let bar = |(label, name): &(&str, &str)| {
        let is_row = |row: &&RowResult| row.name == *name && row.connections == PICTURE_CONNECTIONS;
        let RoundsSummary { median, least, most } = results.rows.iter().find(is_row)?.per_second?;
        Some(Bar {
            label: (*label).to_owned(),
            value: median,
            range: Some((least, most)),
            text: thousands(median.round() as usize),
            is_ours: label.starts_with("Oncegate"),
        })
    };
    let group = |(title, bars): &(&str, &[_])| BarGroup {
        title: (*title).to_owned(),
        bars: bars.iter().filter_map(bar).collect(),
    };
    let run = format!(
        "{}, commit {}, one machine for all programs, {PICTURE_CONNECTIONS} connections. Each group has its own scale.",
        results.run.date, results.run.commit
    );
    let reading = format!("A bar is the median of the rounds ({}), a line their range.", results.rounds);
    let chart = BarChart {
        title: "Requests a second: Oncegate (blue) beside other programs (grey)".to_owned(),
        notes: vec![run, reading],
        groups: PICTURE.iter().map(group).filter(|group| group.bars.len() > 1).collect(),
    };
    chart.to_svg()
}

/// Writes the results into a folder, with their page and their picture.
pub fn save(folder: &Path, results: &BenchmarkResults) {
    let json = serde_json::to_string_pretty(results).unwrap() + "\n";
    for (name, text) in
        [("side_by_side.json", json), ("side_by_side.md", page(results)), ("side_by_side.svg", picture(results))]
    {
        fs::write(folder.join(name), text).unwrap();
    }
}

/// Creates and returns the benchmark's folder below the target folder.
pub fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("bench");
    fs::create_dir_all(&folder).unwrap();
    folder
}
