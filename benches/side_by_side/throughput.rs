//! Requests per second: first attempts, replays; processor time for each; memory.

use crate::load;
use crate::pgbench::PgbenchPair;
use crate::process::Endpoint;
use crate::report::Target::{self, AtLeast, AtMost};
use crate::report::{BenchmarkReport, Column};
use crate::request::Load;
use crate::testbed::Testbed;

/// The connections of every row.
const CONNECTIONS: [usize; 2] = [64, 256];

/// The connections of the rows whose cost is the commits, which few connections cannot share.
const FEW_CONNECTIONS: [usize; 2] = [1, 16];

pub const FIRST: &str = "first attempts, PostgreSQL";
pub const PAIR: &str = "pgbench's pair";

const FIRST_SQLITE: &str = "first attempts, SQLite";
const REPLAYS: &str = "replays, PostgreSQL";
const REPLAYS_SQLITE: &str = "replays, SQLite";
const CACHE_HITS: &str = "cache hits, nginx";
const CACHE_HITS_AS_IT_COMES: &str = "cache hits, nginx as it comes";

/// The way in which a row is measured.
enum Measurement<'s> {
    Requests(Endpoint, Load),
    /// First attempts, with PostgreSQL's processor time.
    FirstAttempts(Endpoint),
    Pairs(&'s PgbenchPair),
}

impl Measurement<'_> {
    /// Whether the row makes two commits for each request.
    fn commits(&self) -> bool {
        matches!(self, Self::FirstAttempts(_) | Self::Pairs(_) | Self::Requests(_, Load::First))
    }
}

pub fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let subjects = subjects(testbed)?;
    // The table is sorted by rows, but the measurement goes round by round.
    for round in 0..testbed.options.rounds() {
        eprintln!("throughput: round {} of {}", round + 1, testbed.options.rounds());
        for connections in FEW_CONNECTIONS {
            for (name, how) in subjects.iter().filter(|(_, how)| how.commits()) {
                measure(testbed, report, name, how, connections)?;
            }
        }
        for connections in CONNECTIONS {
            for (name, how) in &subjects {
                measure(testbed, report, name, how, connections)?;
            }
        }
    }
    compare(report);
    add_memory(testbed, report);
    Ok(())
}

/// Returns all rows. The keys that replays and cache hits ask for are known afterwards.
fn subjects(testbed: &Testbed) -> Result<Vec<(&'static str, Measurement<'_>)>, String> {
    let (shared, embedded) = (testbed.shared.endpoint(0), testbed.embedded.endpoint(0));
    load::seed_known_keys(shared.address)?;
    load::seed_known_keys(embedded.address)?;
    let mut subjects = vec![(FIRST, Measurement::FirstAttempts(shared))];
    if let Some(pair) = &testbed.pair {
        subjects.push((PAIR, Measurement::Pairs(pair)));
    }
    subjects.push((FIRST_SQLITE, Measurement::Requests(embedded, Load::First)));
    subjects.push((REPLAYS, Measurement::Requests(shared, Load::Replay)));
    subjects.push((REPLAYS_SQLITE, Measurement::Requests(embedded, Load::Replay)));
    if let Some(nginx) = &testbed.nginx {
        load::seed_known_keys(nginx.addresses[1])?;
        subjects.push((CACHE_HITS, Measurement::Requests(nginx.endpoint(1), Load::CacheHit)));
        // Both use the same cache, so it is filled already.
        subjects.push((CACHE_HITS_AS_IT_COMES, Measurement::Requests(nginx.endpoint(2), Load::CacheHit)));
    }
    Ok(subjects)
}

fn compare(report: &mut BenchmarkReport) {
    let targets = [(1, Target::None), (16, Target::None), (64, AtLeast(2.0)), (256, AtLeast(3.0))];
    for (connections, target) in targets {
        let meaning = "First attempts a second, beside the same two commits written by the service itself.";
        report.compare((FIRST, PAIR), connections, Column::Rate, target, meaning);
    }
    let targets = [(1, Target::None), (16, Target::None), (64, AtMost(0.2)), (256, AtMost(0.2))];
    for (connections, target) in targets {
        let meaning =
            "The processor time that a first attempt costs the database, in units of the two statements' own.";
        report.compare((FIRST, PAIR), connections, Column::Server, target, meaning);
    }
    for connections in CONNECTIONS {
        let meaning = "Stored responses a second, beside a cache that answers the same requests.";
        report.compare((REPLAYS, CACHE_HITS), connections, Column::Rate, AtLeast(1.3), meaning);
        report.compare((REPLAYS, CACHE_HITS_AS_IT_COMES), connections, Column::Rate, Target::None, meaning);
        let meaning = "The processor time of a cache hit in nginx, in units of Oncegate's for a replay.";
        report.compare((CACHE_HITS, REPLAYS), connections, Column::Program, AtLeast(1.0), meaning);
        report.compare((CACHE_HITS_AS_IT_COMES, REPLAYS), connections, Column::Program, Target::None, meaning);
    }
}

/// Runs one load for a while, and prints the processes to profile.
pub fn hold_load(testbed: &Testbed, load: Load) -> Result<(), String> {
    load::seed_known_keys(testbed.shared.addresses[0])?;
    println!("Oncegate is process {}, its database {}", testbed.shared.pid, testbed.database.url);
    let round = load::run_closed(&testbed.shared.addresses, load, 64, testbed.options.length())?;
    println!("{:.0} requests/s", round.rate);
    Ok(())
}

fn measure(
    testbed: &Testbed,
    report: &mut BenchmarkReport,
    name: &str,
    how: &Measurement<'_>,
    connections: usize,
) -> Result<(), String> {
    let length = testbed.options.length();
    match how {
        Measurement::Requests(endpoint, load) => {
            testbed.run_load(&[*endpoint], *load, connections, report, name)?;
        }
        Measurement::FirstAttempts(endpoint) => {
            testbed.run_first_attempts(&[*endpoint], connections, report, name)?;
        }
        Measurement::Pairs(pair) => {
            let (took, connecting) = testbed.measure_server(|| pair.connect(connections))?;
            let ((rate, pairs), server) = testbed.measure_server(|| pair.rate(connections, length, took))?;
            let more = pairs.checked_sub(connections as u64).filter(|more| *more > 0);
            let each = (server - connecting).max(0.0) / more.ok_or("pgbench had no time for its pairs")? as f64;
            report.add(name, connections, &[(Column::Rate, rate), (Column::Server, each)]);
        }
    }
    Ok(())
}

/// Adds the programs' memory before and after the measurements.
fn add_memory(testbed: &Testbed, report: &mut BenchmarkReport) {
    let mebi = |bytes: u64| vec![bytes as f64 / f64::from(1 << 20)];
    let all = testbed.idle.iter().zip(testbed.memory()).map(|((name, idle), (_, after))| (*name, *idle, after));
    for (name, idle, after) in all.collect::<Vec<_>>() {
        report.memory.push((name, idle, after));
        if name.starts_with("Oncegate") {
            let meaning = "Memory of its own and its share of what it shares with others (PSS).";
            report.add_check(format!("{name}: MiB idle"), mebi(idle), AtMost(15.0), meaning);
            report.add_check(format!("{name}: MiB after load"), mebi(after), AtMost(100.0), meaning);
        }
    }
}
