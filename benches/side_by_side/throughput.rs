//! Requests per second: pass-through, first attempts, replays; PostgreSQL's processor time; memory.

use std::net::SocketAddr;

use crate::load;
use crate::pgbench::PgbenchPair;
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{BenchmarkReport, Column, Target};
use crate::request::Load;
use crate::testbed::Testbed;

const CONNECTIONS: [usize; 2] = [64, 256];

pub const ALONE: &str = "the service alone";
pub const PASS: &str = "pass-through";
pub const FIRST: &str = "first attempts, PostgreSQL";
pub const PAIR: &str = "pgbench's pair";

const PASS_HAPROXY: &str = "pass-through, HAProxy";
const PASS_NGINX: &str = "pass-through, nginx";
const FIRST_SQLITE: &str = "first attempts, SQLite";
const REPLAYS: &str = "replays, PostgreSQL";
const REPLAYS_SQLITE: &str = "replays, SQLite";
const CACHE_HITS: &str = "cache hits, nginx";
const CACHE_HITS_AS_IT_COMES: &str = "cache hits, nginx as it comes";

/// The way in which a row is measured.
enum Measurement<'s> {
    Requests(SocketAddr, Load),
    /// First attempts, with PostgreSQL's processor time.
    FirstAttempts(SocketAddr),
    Pairs(&'s PgbenchPair),
}

pub fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let (shared, embedded) = (testbed.shared.addresses[0], testbed.embedded.addresses[0]);
    load::seed_known_keys(shared)?;
    load::seed_known_keys(embedded)?;
    let mut subjects = vec![
        (ALONE, Measurement::Requests(testbed.upstream, Load::PassThrough)),
        (PASS, Measurement::Requests(shared, Load::PassThrough)),
    ];
    if let Some(haproxy) = &testbed.haproxy {
        subjects.push((PASS_HAPROXY, Measurement::Requests(haproxy.addresses[0], Load::PassThrough)));
    }
    if let Some(nginx) = &testbed.nginx {
        subjects.push((PASS_NGINX, Measurement::Requests(nginx.addresses[0], Load::PassThrough)));
    }
    subjects.push((FIRST, Measurement::FirstAttempts(shared)));
    if let Some(pair) = &testbed.pair {
        subjects.push((PAIR, Measurement::Pairs(pair)));
    }
    subjects.push((FIRST_SQLITE, Measurement::Requests(embedded, Load::First)));
    subjects.push((REPLAYS, Measurement::Requests(shared, Load::Replay)));
    subjects.push((REPLAYS_SQLITE, Measurement::Requests(embedded, Load::Replay)));
    if let Some(nginx) = &testbed.nginx {
        load::seed_known_keys(nginx.addresses[1])?;
        subjects.push((CACHE_HITS, Measurement::Requests(nginx.addresses[1], Load::CacheHit)));
        // Both use the same cache, so it is filled already.
        subjects.push((CACHE_HITS_AS_IT_COMES, Measurement::Requests(nginx.addresses[2], Load::CacheHit)));
    }
    // The table is sorted by rows, but the measurement goes round by round.
    for round in 0..testbed.options.rounds() {
        eprintln!("throughput: round {} of {}", round + 1, testbed.options.rounds());
        for connections in CONNECTIONS {
            for (name, how) in &subjects {
                measure(testbed, report, name, how, connections)?;
            }
        }
    }
    for connections in CONNECTIONS {
        report.compare((PASS, PASS_HAPROXY), connections, Column::Rate, AtLeast(1.0));
        report.compare((PASS, PASS_NGINX), connections, Column::Rate, Target::None);
    }
    report.compare((FIRST, PAIR), 64, Column::Rate, AtLeast(2.0));
    report.compare((FIRST, PAIR), 256, Column::Rate, AtLeast(3.0));
    for connections in CONNECTIONS {
        report.compare((FIRST, PAIR), connections, Column::Server, AtMost(0.2));
    }
    for connections in CONNECTIONS {
        report.compare((REPLAYS, CACHE_HITS), connections, Column::Rate, AtLeast(1.3));
        report.compare((REPLAYS, CACHE_HITS_AS_IT_COMES), connections, Column::Rate, Target::None);
    }
    Ok(())
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
        Measurement::Requests(target, load) => {
            let round = load::run_closed(&[*target], *load, connections, length)?;
            report.add_round(name, connections, &round);
        }
        Measurement::FirstAttempts(target) => {
            testbed.run_first_attempts(&[*target], connections, report, name)?;
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

/// Adds the programs' memory before and after all measurements so far.
pub fn add_memory(testbed: &Testbed, report: &mut BenchmarkReport) {
    let mebi = |bytes: u64| vec![bytes as f64 / f64::from(1 << 20)];
    let all = testbed.idle.iter().zip(testbed.memory()).map(|((name, idle), (_, after))| (*name, *idle, after));
    for (name, idle, after) in all.collect::<Vec<_>>() {
        report.add_memory(name, idle, after);
        if name.starts_with("Oncegate") {
            report.add_check(format!("{name}: MiB idle"), mebi(idle), AtMost(15.0));
            report.add_check(format!("{name}: MiB after load"), mebi(after), AtMost(100.0));
        }
    }
}
