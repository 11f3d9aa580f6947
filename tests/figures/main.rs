//! The results that `make bench` and `make torture` write, and the figures that documents quote from the stored ones.
//!
//! `make docs-write` writes the tables and the picture of `tests/long-runs` anew from the results there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod bar_chart;
#[allow(dead_code, reason = "those that run need more of it")]
mod run_stamp;
mod torture_results;

#[path = "../../benches/side_by_side/charts.rs"]
mod charts;
#[path = "../../benches/side_by_side/output.rs"]
#[allow(dead_code, reason = "the benchmark needs more of it")]
mod output;
#[path = "../../benches/side_by_side/report.rs"]
#[allow(dead_code, reason = "the benchmark needs more of it")]
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use output::RunConditions;
use report::{BenchmarkReport, Column};
use run_stamp::RunStamp;
use torture_results::{BrokenKeys, TortureResult};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn benchmark_folder() -> PathBuf {
    root().join("benches/results")
}

fn long_runs_folder() -> PathBuf {
    root().join("tests/long-runs")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The stored page of the benchmark's last run.
fn benchmark_page() -> String {
    read(&benchmark_folder().join("side_by_side.md"))
}

/// Three rounds of two rows and their ratio.
fn small_report() -> BenchmarkReport {
    let mut report = BenchmarkReport::default();
    let (ours, theirs) = ("pass-through", "pass-through, HAProxy");
    for (ours_rate, theirs_rate) in [(11_000.0, 4_800.0), (11_214.0, 4_900.0), (12_000.0, 4_700.0)] {
        report.add(ours, 64, &[(Column::Rate, ours_rate), (Column::P50, 0.00552), (Column::Program, 54.6e-6)]);
        report.add(theirs, 64, &[(Column::Rate, theirs_rate), (Column::Server, 322e-6)]);
    }
    report.compare((ours, theirs), 64, Column::Rate, Some(2.0));
    report.compare((theirs, ours), 64, Column::Program, None);
    report.missing.push("pass-through, nginx: it is not installed".to_owned());
    report
}

fn torture_result(store: &str, kills: usize) -> TortureResult {
    TortureResult {
        store: store.to_owned(),
        run: RunStamp { date: "2026-11-25".to_owned(), commit: "e29675b".to_owned() },
        seed: "0x2a".to_owned(),
        seconds: 125,
        operations: 12_345,
        kills,
        pauses: 20,
        crashes_and_failovers: 0,
        connection_faults: 600,
        injected: BTreeMap::from([("Kill".to_owned(), kills)]),
        keys: 5_000,
        effects: 4_900,
        broken: BrokenKeys { lost: 1, ..BrokenKeys::default() },
    }
}

#[test]
fn a_small_benchmark_is_written_in_the_format_of_the_stored_one() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunStamp { date: "2026-11-25".to_owned(), commit: "e29675b".to_owned() };
    let conditions = RunConditions { run, machine: "2 cores".to_owned(), rounds: 3, seconds: 2 };
    let page = output::save(folder.path(), &conditions, &small_report());
    assert_eq!(page, read(&folder.path().join("side_by_side.md")));
    let stored = read(&benchmark_folder().join("side_by_side.md"));
    for line in [
        "## Ratios",
        "| ratio | aim | result |",
        "## Rows",
        "| row | connections | a second (range) | p50, ms | p99, ms | program, µs | PostgreSQL, µs |",
    ] {
        assert!([&page, &stored].iter().all(|page| page.lines().any(|written| written == line)), "{line}\n{page}");
    }
    for line in [
        "| pass-through / pass-through, HAProxy, 64 connections | at least 2 | 2.29 (2.29 - 2.55), reached |",
        "| processor time: pass-through, HAProxy / pass-through, 64 connections |  | not measured |",
        "| pass-through | 64 | 11214 (11000 - 12000) | 5.52 |  | 54.6 |  |",
        "| pass-through, HAProxy | 64 | 4800 (4700 - 4900) |  |  |  | 322 |",
        "- Left out: pass-through, nginx: it is not installed.",
    ] {
        assert!(page.lines().any(|written| written == line), "{line}\n{page}");
    }
    // The group of two rows that were measured, and none of the others.
    let picture = read(&folder.path().join("proxies.svg"));
    assert_eq!((picture.matches("class=\"ours\"").count(), picture.matches("class=\"other\"").count()), (1, 1));
    assert!(picture.contains(">11,214</text>") && picture.contains("prefers-color-scheme: dark"), "{picture}");
    assert!(!folder.path().join("in_service.svg").exists(), "a picture without a bar");
}

#[test]
fn a_run_with_faults_takes_the_place_of_the_earlier_one_on_its_store() {
    let folder = tempfile::tempdir().unwrap();
    for (store, kills) in [("PostgreSQL", 40), ("SQLite", 50), ("PostgreSQL", 60)] {
        torture_results::record(folder.path(), torture_result(store, kills));
    }
    let expected = vec![torture_result("SQLite", 50), torture_result("PostgreSQL", 60)];
    assert_eq!(torture_results::read(folder.path()).unwrap(), expected);
    let page = read(&folder.path().join("torture-table.md"));
    for line in [
        "| SQLite | 2 min 5 s | 12,345 | 50 | 20 | 0 | 600 | 5,000 | 4,900 | 1 | 0 | 0 | 0 | 0 |",
        "| all | 4 min 10 s | 24,690 | 110 | 40 | 0 | 1,200 | 10,000 | 9,800 | 2 | 0 | 0 | 0 | 0 |",
        "| PostgreSQL | 2026-11-25 | e29675b | `0x2a` | Kill 60 |",
    ] {
        assert!(page.lines().any(|written| written == line), "{line}\n{page}");
    }
    let picture = read(&folder.path().join("torture.svg"));
    assert!(picture.contains(">1 of 5,000 keys</text>"), "{picture}");
}

#[test]
#[ignore = "writes files of the tree: make docs-write"]
fn write_the_documents_of_the_stored_results() {
    torture_results::write_documents(&long_runs_folder());
}

#[test]
fn the_stored_tables_and_pictures_are_those_of_the_stored_results() {
    let torture = torture_results::read(&long_runs_folder()).unwrap();
    for (file, text) in
        [("torture-table.md", torture_results::page(&torture)), ("torture.svg", torture_results::picture(&torture))]
    {
        assert!(read(&long_runs_folder().join(file)) == text, "{file} is not of its results: make docs-write");
    }
    let run = benchmark_run();
    for (picture, bars) in [("proxies.svg", 8), ("in_service.svg", 15)] {
        let text = read(&benchmark_folder().join(picture));
        assert!(text.contains(&format!(">{}, commit {}, ", run.date, run.commit)), "{picture} is of another run");
        assert_eq!(text.matches("class=\"value\"").count(), bars, "{picture}");
    }
}

/// The run of the stored page of the benchmark.
fn benchmark_run() -> RunStamp {
    let page = benchmark_page();
    let run = Regex::new(r"^# The run of (\S+)\n\nCommit (\w+)\. ").unwrap().captures(&page).unwrap();
    RunStamp { date: run[1].to_owned(), commit: run[2].to_owned() }
}

#[test]
fn the_stored_results_are_of_the_commits_that_are_listed() {
    let commits = read(&long_runs_folder().join("commits"));
    let is_listed = |target: &str, RunStamp { date, commit }: &RunStamp| {
        let line = format!("{target} {date} {commit}");
        assert!(commits.lines().any(|listed| listed == line), "tests/long-runs/commits has not {line}");
    };
    is_listed("bench", &benchmark_run());
    for result in torture_results::read(&long_runs_folder()).unwrap() {
        is_listed(&format!("torture-{}", result.store.to_lowercase().replace("postgresql", "postgres")), &result.run);
    }
}

/// The numbers of a text, without the commas between thousands.
fn numbers(text: &str) -> BTreeSet<String> {
    let number = Regex::new(r"\d[\d,]*(?:\.\d+)?").unwrap();
    number.find_iter(text).map(|found| found.as_str().replace(',', "")).collect()
}

/// The cells of the first table of a document that has the heading.
fn table(document: &str, heading: &str) -> Vec<Vec<String>> {
    let text = read(&root().join(document));
    let rows = text.lines().skip_while(|line| !line.starts_with(heading)).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells = |row: &str| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    let rows: Vec<Vec<String>> = rows.map(cells).collect();
    assert!(rows.len() >= 4, "{document} has no table {heading}");
    rows
}

#[test]
fn every_figure_of_the_tables_of_figures_is_a_figure_of_the_stored_run() {
    let measured = numbers(&benchmark_page());
    let tables = [("BENCHMARKS.md", "| question | "), ("docs/comparison.md", "| connections | ")];
    for row in tables.iter().flat_map(|(document, heading)| table(document, heading)) {
        let (question, cells) = row.split_first().unwrap();
        let figures: Vec<_> = cells.iter().flat_map(|cell| numbers(cell)).collect();
        assert!(!figures.is_empty(), "{question}");
        for figure in figures {
            assert!(measured.contains(&figure), "{question}: {figure} is not in benches/results/side_by_side.md");
        }
    }
}

#[test]
fn every_figure_of_the_comparison_is_a_figure_of_the_stored_run() {
    let page = benchmark_page();
    for row in table("docs/comparison.md", "| ratio | last run |") {
        let measured = page.lines().find(|line| line.starts_with(&format!("| {} |", row[0])));
        let result = measured.and_then(|line| line.split(" | ").nth(2)).unwrap_or_else(|| panic!("{row:?}"));
        assert_eq!(result.split([' ', ',']).next(), Some(&*row[1]), "{row:?}");
    }
}

#[test]
fn the_runs_with_faults_in_the_reliability_page_are_the_stored_ones() {
    let text = read(&long_runs_folder().join("torture-table.md"));
    let measured = numbers(&text);
    let row = table("RELIABILITY.md", "| run | ").into_iter().find(|row| row[0].contains("make torture")).unwrap();
    for figure in numbers(&row[1]) {
        assert!(measured.contains(&figure), "{figure} is not in tests/long-runs/torture-table.md");
    }
}
