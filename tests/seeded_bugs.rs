//! Runs the table of seeded bugs in RELIABILITY.md. Each test that the table names passes without the bug, and fails with
//! it within two minutes. `make seeded-bugs` runs this; it prints each bug with the failed test, the time and the message.

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

use oncegate::seeded_bug::{ALL, VARIABLE};
use regex::Regex;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

/// The longest run of one test.
const LIMIT: Duration = Duration::from_secs(120);

/// The length of a run with all faults, in seconds.
const TORTURE_SECONDS: &str = "15";

/// The word of [`VARIABLE`] for a process that only says that it has a bug.
const CONTROL: &str = "Nothing";

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

/// The table: the tests that must fail with each bug.
fn table() -> BTreeMap<String, Vec<TestName>> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("RELIABILITY.md")).unwrap();
    let row = Regex::new(r"(?m)^\| `([A-Z]\w+)` \|.*\| ([^|]+) \|$").unwrap();
    let name = Regex::new(r"`tests/(\w+)/[\w/]+\.rs::(\w+)`").unwrap();
    let tests = |cell: &str| {
        name.captures_iter(cell)
            .map(|test| TestName { program: test[1].to_owned(), name: test[2].to_owned() })
            .collect()
    };
    row.captures_iter(&text).map(|row| (row[1].to_owned(), tests(&row[2]))).collect()
}

/// Builds the test programs, and returns them by their names.
fn programs() -> BTreeMap<String, PathBuf> {
    let mut build = Command::new(env!("CARGO"));
    build.args(["test", "--locked", "--no-run", "--features", "seeded-bugs", "--test", "faults", "--test", "it"]);
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

/// Runs a test with the bug active.
fn run(programs: &BTreeMap<String, PathBuf>, test: &TestName, bug: &str) -> TestResult {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(&programs[&test.program]);
    command.args([&*test.name, "--test-threads=2"]).env(VARIABLE, bug).env("RUST_BACKTRACE", "0");
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
fn each_seeded_bug_is_caught_by_the_tests_that_the_table_names() {
    let table = table();
    let names: BTreeSet<_> = ALL.iter().map(|bug| format!("{bug:?}")).collect();
    assert_eq!(table.keys().cloned().collect::<BTreeSet<_>>(), names, "the table has a row for each bug");
    let wanted = std::env::var("ONCEGATE_SEEDED_BUGS").unwrap_or_default();
    let rows: Vec<_> = table.iter().filter(|(bug, _)| wanted.is_empty() || wanted.contains(bug.as_str())).collect();
    let (programs, mut wrong) = (programs(), String::new());
    for test in rows.iter().flat_map(|(_, tests)| *tests).collect::<BTreeSet<_>>() {
        match run(&programs, test, CONTROL) {
            TestResult::Passed => println!("{CONTROL}: passes {}", test.name),
            TestResult::Failed(words) => writeln!(wrong, "{} fails without a bug: {words}", test.name).unwrap(),
            TestResult::NoBreach(words) => writeln!(wrong, "{} has too few faults: {words}", test.name).unwrap(),
            TestResult::TooLong => writeln!(wrong, "{} does not end without a bug", test.name).unwrap(),
        }
    }
    for (bug, tests) in rows {
        assert!(!tests.is_empty(), "{bug} is caught by no test");
        for test in tests {
            let started = Instant::now();
            let result = run(&programs, test, bug);
            let (name, seconds) = (&test.name, started.elapsed().as_secs());
            match result {
                TestResult::Failed(words) => println!("{bug}: fails {name} after {seconds} s: {words}"),
                TestResult::Passed => writeln!(wrong, "{bug} is not caught by {name}").unwrap(),
                TestResult::NoBreach(words) => writeln!(wrong, "{name} finds no breach with {bug}: {words}").unwrap(),
                TestResult::TooLong => writeln!(wrong, "{name} does not end with {bug}").unwrap(),
            }
        }
    }
    let version = Command::new(env!("CARGO_BIN_EXE_oncegate")).arg("--version").output().unwrap().stdout;
    assert!(version.ends_with(b"only for tests\n"), "another build has replaced the program meanwhile");
    assert!(wrong.is_empty(), "\n{wrong}");
}
