//! The output of a run: its results as JSON, and from these a page with the tables in Markdown and pictures in SVG.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::charts;
use crate::report::{RoundsSummary, Target, short};
use crate::results::{BenchmarkResults, CheckResult, RowResult};

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
pub fn page(name: &str, results: &BenchmarkResults) -> String {
    let BenchmarkResults { run, note, machine, rounds, seconds, minutes, .. } = results;
    let machine = machine.as_object().into_iter().flatten();
    let machine = machine.filter(|(_, value)| !value.is_null()).map(|(name, value)| match value.as_str() {
        Some(text) => format!("{name} {text}"),
        None => format!("{name} {value}"),
    });
    let pictures =
        charts::draw(results).into_iter().map(|(chart, _)| format!("![{}]({}.svg)\n\n", chart.title, chart.file));
    let note = note.as_ref().map_or_else(String::new, |note| format!("{note}\n\n"));
    format!(
        "# The run of {}\n\n`make bench` writes this page and its pictures from `{name}.json`. \
         [method.md](method.md) explains the rows.\n\n\
         Commit {}. Machine: {}. {rounds} rounds of {seconds} s each, {minutes} minutes in all.\n\n{note}\
         {}## Ratios\n\nA ratio is the first row of its name divided by the second: the median of the rounds, with the least and the \
         most.\nProcessor time is that of one request.\n\n{}\n\
         ## Rows\n\n\"Program\" is the processor time of the row's program for a request: the proxy, cache, engine or \
         service, or Oncegate\nand its service where the row names both. \"PostgreSQL\" is that of its server.\n\n{}{}",
        run.date,
        run.commit,
        machine.collect::<Vec<_>>().join(", "),
        pictures.collect::<String>(),
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

/// Writes the results into a folder under a name, with their documents.
pub fn save(folder: &Path, name: &str, results: &BenchmarkResults) {
    let json = serde_json::to_string_pretty(results).unwrap() + "\n";
    for (file, text) in [(format!("{name}.json"), json)].into_iter().chain(documents(name, results)) {
        fs::write(folder.join(file), text).unwrap();
    }
}

/// Returns the page and the pictures of results, each with the name of its file.
pub fn documents(name: &str, results: &BenchmarkResults) -> Vec<(String, String)> {
    let mut documents = vec![(format!("{name}.md"), page(name, results))];
    documents
        .extend(charts::draw(results).into_iter().map(|(chart, picture)| (format!("{}.svg", chart.file), picture)));
    documents
}

/// Creates and returns the benchmark's folder below the target folder.
pub fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("bench");
    fs::create_dir_all(&folder).unwrap();
    folder
}
