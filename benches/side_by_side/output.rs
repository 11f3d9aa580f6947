//! The output of a run: a page with its tables in Markdown, and pictures in SVG.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::charts;
use crate::report::{BenchmarkReport, Column, Ratio, RoundsSummary, Row, short};
use crate::run_stamp::RunStamp;

/// The columns of the table of rows after the rate: the heading, the figure, its unit in
/// seconds, and its decimal places.
const ROW_COLUMNS: [(&str, Column, f64, usize); 4] = [
    ("p50, ms", Column::P50, 1e-3, 2),
    ("p99, ms", Column::P99, 1e-3, 2),
    ("program, µs", Column::Program, 1e-6, 1),
    ("PostgreSQL, µs", Column::Server, 1e-6, 0),
];

/// The conditions of a run.
pub struct RunConditions {
    pub run: RunStamp,
    pub machine: String,
    pub rounds: usize,
    /// The length of a round.
    pub seconds: u64,
}

/// Formats the page: the run, the ratios, and the measured rows.
fn page(conditions: &RunConditions, report: &BenchmarkReport) -> String {
    let RunConditions { run, machine, rounds, seconds } = conditions;
    let left_out = report.missing.iter().map(|missing| format!("\n- Left out: {missing}.\n"));
    format!(
        "# The run of {}\n\nCommit {}. Machine: {machine}. {rounds} rounds of {seconds} s each. \
         [method.md](method.md) explains the rows.\n\n\
         ## Ratios\n\nThe first row of the name divided by the second: the median of the rounds, with the least and the \
         most. The processor\ntime is that of a request.\n\n{}\n\
         ## Rows\n\n\"Program\" is the processor time of the row's programs for a request: the proxy, the service, or \
         Oncegate and its service.\n\n{}{}",
        run.date,
        run.commit,
        ratio_table(report),
        row_table(report),
        left_out.collect::<String>(),
    )
}

fn ratio_table(report: &BenchmarkReport) -> String {
    let mut text = "| ratio | aim | result |\n|---|---|---|\n".to_owned();
    for ratio in &report.ratios {
        let aim = ratio.aim.map_or_else(String::new, |aim| format!("at least {aim}"));
        writeln!(text, "| {} | {aim} | {} |", ratio.name, format_result(ratio)).unwrap();
    }
    text
}

fn format_result(ratio: &Ratio) -> String {
    let Some(RoundsSummary { median, least, most }) = ratio.summary else { return "not measured".to_owned() };
    let range = if least < most { format!(" ({} - {})", short(least), short(most)) } else { String::new() };
    let verdict = match ratio.aim {
        Some(aim) if median >= aim => ", reached",
        Some(_) => ", **not reached**",
        None => "",
    };
    format!("{}{range}{verdict}", short(median))
}

fn row_table(report: &BenchmarkReport) -> String {
    let headings = ROW_COLUMNS.map(|(heading, ..)| heading).join(" | ");
    let marks = "---|".repeat(ROW_COLUMNS.len() + 3);
    let mut text = format!("| row | connections | a second (range) | {headings} |\n|{marks}\n");
    for row in &report.rows {
        let rate = row.summary(Column::Rate).map_or_else(String::new, |RoundsSummary { median, least, most }| {
            format!("{median:.0} ({least:.0} - {most:.0})")
        });
        let cell = |(_, column, unit, digits): (_, _, f64, usize)| {
            let figure = row.summary(column);
            figure.map_or_else(String::new, |RoundsSummary { median, .. }| format!("{:.digits$}", median / unit))
        };
        let Row { name, connections, .. } = row;
        writeln!(text, "| {name} | {connections} | {rate} | {} |", ROW_COLUMNS.map(cell).join(" | ")).unwrap();
    }
    text
}

/// Writes the page `side_by_side.md` and the pictures into a folder. Returns the page.
pub fn save(folder: &Path, conditions: &RunConditions, report: &BenchmarkReport) -> String {
    let page = page(conditions, report);
    fs::write(folder.join("side_by_side.md"), &page).unwrap();
    for (file, picture) in charts::draw(&conditions.run, report) {
        fs::write(folder.join(file), picture).unwrap();
    }
    page
}

/// Creates and returns the benchmark's folder below the target folder.
pub fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("bench");
    fs::create_dir_all(&folder).unwrap();
    folder
}
