//! Runs the table of seeded bugs in tests/long-runs/seeded-bugs.md. Each test that the table names passes without the
//! bug, and fails with it within two minutes. `make seeded-bugs` runs this; it prints each bug with the failed test,
//! the time and the message.
//!
//! `mutants/seeded_bugs.toml` has the bugs, as rewrites of the sources. All are written into one copy of these, each
//! behind the switch of the mutants, so that one build serves for all of them.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use regex::Regex;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::Value;

/// The longest run of one test.
const LIMIT: Duration = Duration::from_secs(120);

/// The length of a run with all faults, in seconds.
const TORTURE_SECONDS: &str = "15";

/// A bug, or a part of one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rewrite {
    file: PathBuf,
    /// The text that the file has exactly once.
    text: String,
    /// The text that takes its place; `BUG` is true while the bug is active.
    becomes: String,
}

/// A test, or the same one on both stores.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TestName {
    /// The folder of its program in `tests`.
    program: String,
    name: String,
}

/// The end of a test.
enum TestResult {
    Passed,
    /// With the first words of its message.
    Failed(String),
    /// A run with faults has failed without a broken promise.
    NoBreach(String),
    TooLong,
}

fn read(file: &Path) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file))
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The bugs. A bug's number is its place among them.
fn bugs() -> BTreeMap<String, Vec<Rewrite>> {
    toml::from_str(&read(Path::new("mutants/seeded_bugs.toml"))).unwrap()
}

/// The files of a tree of sources with all bugs in them, by their paths.
fn rewritten(bugs: &BTreeMap<String, Vec<Rewrite>>, tree: &Path) -> BTreeMap<PathBuf, String> {
    let (mut files, mut wrong) = (BTreeMap::new(), String::new());
    for (number, (bug, rewrites)) in bugs.iter().enumerate() {
        for Rewrite { file, text, becomes } in rewrites {
            let is_sql = file.extension().is_some_and(|extension| extension == "sql");
            let path = if is_sql { file.with_extension(format!("{bug}.sql")) } else { file.clone() };
            let source = files.entry(path).or_insert_with(|| read(&tree.join(file)));
            let found = source.matches(text).count();
            if found != 1 {
                writeln!(wrong, "{bug}: {} has this text {found} times, not once:\n{text}", file.display()).unwrap();
            }
            *source = source.replace(text, &becomes.replace("BUG", &format!("crate::mutant_switch::on({number})")));
        }
    }
    assert!(wrong.is_empty(), "mutants/seeded_bugs.toml does not fit the sources:\n{wrong}");
    files
}

/// The table: the tests that must fail with each bug.
fn table() -> BTreeMap<String, Vec<TestName>> {
    let text = read(Path::new("tests/long-runs/seeded-bugs.md"));
    let row = Regex::new(r"(?m)^\| `([A-Z]\w+)` \|.*\| ([^|]+) \|$").unwrap();
    let name = Regex::new(r"`tests/(\w+)/[\w/]+\.rs::(\w+)`").unwrap();
    let tests = |cell: &str| {
        name.captures_iter(cell)
            .map(|test| TestName { program: test[1].to_owned(), name: test[2].to_owned() })
            .collect()
    };
    row.captures_iter(&text).map(|row| (row[1].to_owned(), tests(&row[2]))).collect()
}

/// A folder beside the other builds.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("seeded-bugs").join(name)
}

/// Builds the test programs from a copy of the sources with all bugs, and returns them by their names.
fn programs(bugs: &BTreeMap<String, Vec<Rewrite>>) -> BTreeMap<String, PathBuf> {
    let source = folder("source");
    let copy = Path::new(env!("CARGO_MANIFEST_DIR")).join("mutants/copy-sources");
    assert!(Command::new(copy).arg(&source).status().unwrap().success());
    // Of the copy: the switch's module is declared in it.
    for (path, text) in rewritten(bugs, &source) {
        fs::write(source.join(path), text).unwrap();
    }
    let mut build = Command::new(env!("CARGO"));
    build.args([
        "test",
        "--locked",
        "--no-run",
        "--test",
        "faults",
        "--test",
        "journey",
        "--test",
        "stores",
        "--test",
        "operations",
    ]);
    build.current_dir(source).env("CARGO_TARGET_DIR", folder("target"));
    let built = build.args(["--message-format", "json"]).stderr(Stdio::inherit()).output().unwrap();
    assert!(built.status.success());
    let lines = String::from_utf8(built.stdout).unwrap();
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let program = |message: Value| {
        let executable = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
        Some((message["target"]["name"].as_str()?.to_owned(), executable.into()))
    };
    messages.filter_map(program).collect()
}

/// Runs a test with the bug of this number active, or with none.
fn run(programs: &BTreeMap<String, PathBuf>, test: &TestName, bug: Option<usize>) -> TestResult {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(&programs[&test.program]);
    command.args([&*test.name, "--test-threads=2"]).current_dir(folder("source")).env("RUST_BACKTRACE", "0");
    command.envs(bug.map(|number| ("ONCEGATE_MUTANT", number.to_string())));
    command.env("ONCEGATE_TORTURE_SECONDS", TORTURE_SECONDS).env("ONCEGATE_SOAK_SECONDS", TORTURE_SECONDS);
    command.stdout(log.reopen().unwrap()).stderr(log.reopen().unwrap()).stdin(Stdio::null()).process_group(0);
    let ended = wait(command.spawn().unwrap());
    let text = fs::read_to_string(log.path()).unwrap();
    assert!(!text.contains("running 0 tests"), "there is no test {test:?}");
    assert!(!text.contains("SKIPPED"), "{test:?} needs what is not here:\n{text}");
    match ended {
        None => TestResult::TooLong,
        Some(true) => TestResult::Passed,
        // A run with faults may also fail because the machine is slow.
        Some(false) if test.program == "faults" && !has_breach(&text) => TestResult::NoBreach(first_words(&text)),
        Some(false) => TestResult::Failed(first_words(&text)),
    }
}

/// Whether a run with faults has found a breach of a promise, and not only that it had too few faults or a slow store.
fn has_breach(text: &str) -> bool {
    let breaches = text.lines().skip_while(|line| !line.ends_with(" breaches")).skip(1);
    let rules = breaches.take_while(|line| !line.starts_with(' ')).filter_map(|line| line.split_once(": "));
    rules.into_iter().any(|(rule, _)| !["NotVacuous", "TheStoreIsBack"].contains(&rule))
}

/// Waits for the end, and returns whether it is a success; `None` if that takes too long.
fn wait(mut child: Child) -> Option<bool> {
    let (group, (sender, ended)) = (Pid::from_child(&child), mpsc::channel());
    let waiting = thread::spawn(move || sender.send(child.wait().unwrap().success()));
    let is_success = ended.recv_timeout(LIMIT).ok();
    if is_success.is_none() {
        kill_process_group(group, Signal::KILL).unwrap();
    }
    let _ = waiting.join().unwrap();
    is_success
}

/// The message of the first test that failed, in one short line.
fn first_words(text: &str) -> String {
    let message = text.split_once("panicked at ").map_or(text, |(_, rest)| rest);
    let lines = message.lines().skip(1).take_while(|line| !line.starts_with("note: ")).map(str::trim);
    let words: String = lines.filter(|line| !line.is_empty()).take(3).collect::<Vec<_>>().join(" ");
    words.chars().take(160).collect()
}

#[test]
fn every_seeded_bug_fits_the_sources() {
    rewritten(&bugs(), Path::new(""));
}

#[test]
#[ignore = "builds a copy of the program with 42 bugs, and takes a quarter of an hour: make seeded-bugs"]
fn each_seeded_bug_is_caught_by_the_tests_that_the_table_names() {
    let (bugs, table) = (bugs(), table());
    let (with_rewrites, with_tests): (BTreeSet<_>, BTreeSet<_>) = (bugs.keys().collect(), table.keys().collect());
    let in_one_only: Vec<_> = with_rewrites.symmetric_difference(&with_tests).collect();
    assert!(
        in_one_only.is_empty(),
        "in tests/long-runs/seeded-bugs.md or mutants/seeded_bugs.toml only: {in_one_only:?}"
    );
    let wanted = std::env::var("ONCEGATE_SEEDED_BUGS").unwrap_or_default();
    let rows = table.iter().enumerate();
    let rows: Vec<_> = rows.filter(|(_, (bug, _))| wanted.is_empty() || wanted.contains(bug.as_str())).collect();
    assert!(!rows.is_empty(), "ONCEGATE_SEEDED_BUGS={wanted} names no bug");
    let (programs, mut wrong) = (programs(&bugs), String::new());
    for test in rows.iter().flat_map(|(_, (_, tests))| *tests).collect::<BTreeSet<_>>() {
        match run(&programs, test, None) {
            TestResult::Passed => println!("no bug: passes {}", test.name),
            TestResult::Failed(words) => writeln!(wrong, "{} fails without a bug: {words}", test.name).unwrap(),
            TestResult::NoBreach(words) => writeln!(wrong, "{} has too few faults: {words}", test.name).unwrap(),
            TestResult::TooLong => writeln!(wrong, "{} does not end without a bug", test.name).unwrap(),
        }
    }
    for (number, (bug, tests)) in rows {
        assert!(!tests.is_empty(), "{bug} is caught by no test");
        for test in tests {
            let started = Instant::now();
            let result = run(&programs, test, Some(number));
            let (name, seconds) = (&test.name, started.elapsed().as_secs());
            match result {
                TestResult::Failed(words) => println!("{bug}: fails {name} after {seconds} s: {words}"),
                TestResult::Passed => writeln!(wrong, "{bug} is not caught by {name}").unwrap(),
                TestResult::NoBreach(words) => writeln!(wrong, "{name} finds no breach with {bug}: {words}").unwrap(),
                TestResult::TooLong => writeln!(wrong, "{name} does not end with {bug}").unwrap(),
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
