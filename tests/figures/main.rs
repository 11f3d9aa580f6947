//! The results that `make bench` and `make torture` write: their format, and the tables and pictures of the stored ones.
//!
//! `make docs-write` writes the tables and pictures of `benches/results` and `tests/long-runs` anew from the results there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod bar_chart;
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
#[path = "../../benches/side_by_side/results.rs"]
mod results;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;
use serde_json::json;

use report::{BenchmarkReport, Column, Target};
use results::BenchmarkResults;
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

fn read_benchmark(folder: &Path, name: &str) -> BenchmarkResults {
    serde_json::from_str(&read(&folder.join(format!("{name}.json")))).unwrap()
}

/// The stored runs of the benchmark with their names: `side_by_side` has all parts but those that ran again later.
fn stored_benchmarks() -> BTreeMap<String, BenchmarkResults> {
    let files = fs::read_dir(benchmark_folder()).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|file| file.extension().is_some_and(|ending| ending == "json"));
    let names = files.map(|file| file.file_stem().unwrap().to_string_lossy().into_owned());
    names.map(|name| (name.clone(), read_benchmark(&benchmark_folder(), &name))).collect()
}

/// Three rounds of two rows and their ratio.
fn small_report() -> BenchmarkReport {
    let mut report = BenchmarkReport::default();
    let (ours, theirs) = ("first attempts, PostgreSQL", "pgbench's pair");
    for (ours_rate, theirs_rate) in [(11_000.0, 4_800.0), (11_214.0, 4_900.0), (12_000.0, 4_700.0)] {
        report.add(ours, 64, &[(Column::Rate, ours_rate), (Column::P50, 0.00552), (Column::Program, 54.6e-6)]);
        report.add(theirs, 64, &[(Column::Rate, theirs_rate), (Column::Server, 322e-6)]);
    }
    report.compare((ours, theirs), 64, Column::Rate, Target::AtLeast(2.0), "First attempts beside the same commits.");
    report.add_check("deadlocks, in all parts".to_owned(), Vec::new(), Target::AtMost(0.0), "Deadlocks.");
    report.memory.push(("Oncegate on SQLite", 9 << 20, 78 << 20));
    report.missing.push("pass-through, HAProxy: it is not installed".to_owned());
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
    let results = BenchmarkResults::new(&small_report(), json!({ "cores": 2 }), 3, 2, 1);
    output::save(folder.path(), "side_by_side", &results);
    assert_eq!(read_benchmark(folder.path(), "side_by_side"), results);
    let json: serde_json::Value = serde_json::from_str(&read(&folder.path().join("side_by_side.json"))).unwrap();
    assert_eq!(json["checks"][0]["target"], json!({ "at_least": 2.0 }));
    assert_eq!(json["checks"][1]["result"], json!(null));
    let page = read(&folder.path().join("side_by_side.md"));
    for line in [
        "| first attempts, PostgreSQL / pgbench's pair, 64 connections | at least 2 | 2.29 (2.29 - 2.55), reached | First \
         attempts beside the same commits. |",
        "| deadlocks, in all parts | at most 0 | not measured | Deadlocks. |",
        "| first attempts, PostgreSQL | 64 | 11214 (11000 - 12000) | 5.52 |  | 54.6 |  |",
        "| pgbench's pair | 64 | 4800 (4700 - 4900) |  |  |  | 322 |",
        "- Memory of Oncegate on SQLite: 9.00 MiB idle, 78.0 MiB after load.",
        "- Left out: pass-through, HAProxy: it is not installed.",
    ] {
        assert!(page.lines().any(|written| written == line), "{line}\n{page}");
    }
    // The group of two rows that were measured, and none of the others.
    let picture = read(&folder.path().join("side_by_side.svg"));
    assert_eq!((picture.matches("class=\"ours\"").count(), picture.matches("class=\"other\"").count()), (1, 1));
    assert!(picture.contains(">11,214</text>") && picture.contains("prefers-color-scheme: dark"), "{picture}");
    assert!(page.contains("(side_by_side.svg)") && !page.contains("(proxies.svg)"), "{page}");
    assert!(!folder.path().join("proxies.svg").exists(), "a picture without a bar");
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
    for (name, results) in stored_benchmarks() {
        output::save(&benchmark_folder(), &name, &results);
    }
    torture_results::write_documents(&long_runs_folder());
}

#[test]
fn the_stored_tables_and_pictures_are_those_of_the_stored_results() {
    let torture = torture_results::read(&long_runs_folder()).unwrap();
    let mut expected = vec![
        (long_runs_folder().join("torture-table.md"), torture_results::page(&torture)),
        (long_runs_folder().join("torture.svg"), torture_results::picture(&torture)),
    ];
    for (name, results) in stored_benchmarks() {
        let documents = output::documents(&name, &results).into_iter();
        expected.extend(documents.map(|(file, text)| (benchmark_folder().join(file), text)));
    }
    let mut bars = BTreeMap::new();
    for (file, text) in expected {
        assert!(read(&file) == text, "{} is not of its results: make docs-write", file.display());
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        if file.extension().is_some_and(|ending| ending == "svg") && !name.starts_with("torture") {
            assert_eq!(
                bars.insert(name, text.matches("class=\"value\"").count()),
                None,
                "two runs have {}",
                file.display()
            );
        }
    }
    let all = [("in_service", 15), ("proxies", 8), ("side_by_side", 13), ("steady", 11)];
    assert_eq!(bars, all.map(|(name, count)| (name.to_owned(), count)).into(), "the stored runs have not all bars");
}

#[test]
fn the_stored_results_are_of_the_commits_that_are_listed() {
    let commits = read(&long_runs_folder().join("commits"));
    let is_listed = |target: &str, RunStamp { date, commit }: &RunStamp| {
        let line = format!("{target} {date} {commit}");
        assert!(commits.lines().any(|listed| listed == line), "tests/long-runs/commits has not {line}");
    };
    for (name, results) in stored_benchmarks() {
        let target = if name == "side_by_side" { "bench".to_owned() } else { format!("bench-{name}") };
        is_listed(&target, &results.run);
    }
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
fn every_figure_of_the_tables_of_figures_is_a_figure_of_a_stored_run() {
    let pages = stored_benchmarks().into_keys().map(|name| read(&benchmark_folder().join(format!("{name}.md"))));
    let measured: BTreeSet<_> = pages.flat_map(|page| numbers(&page)).collect();
    let tables = [
        ("BENCHMARKS.md", "| question | "),
        ("docs/comparison.md", "| connections | "),
        ("docs/comparison.md", "| 1,000 a second | "),
    ];
    for row in tables.iter().flat_map(|(document, heading)| table(document, heading)) {
        let (question, cells) = row.split_first().unwrap();
        let figures: Vec<_> = cells.iter().flat_map(|cell| numbers(cell)).collect();
        assert!(!figures.is_empty(), "{question}");
        for figure in figures {
            assert!(measured.contains(&figure), "{question}: {figure} is in no page of benches/results");
        }
    }
}

#[test]
fn every_figure_of_the_comparison_is_a_figure_of_the_stored_run() {
    let checks: Vec<_> = stored_benchmarks().into_values().flat_map(|results| results.checks).collect();
    for row in table("docs/comparison.md", "| ratio | last run |") {
        let check = checks.iter().find(|check| check.name == row[0]).unwrap_or_else(|| panic!("{row:?}"));
        assert_eq!(row[1], report::short(check.result.unwrap().median), "{row:?}");
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
