//! First attempts and replays beside the same thing written in the service: on PostgreSQL with reservation and
//! response in two commits, or all in one transaction, and on SQLite in two commits. Oncegate stands in front of the
//! same service without it.
//!
//! The service has a process for each core, as Oncegate has a worker for each, so that no row has more of the machine
//! than another. On SQLite, which has one writer, it has one.

use store_contract::postgres::TestDatabase;

use crate::process::{Endpoint, Process};
use crate::programs::{start_node, start_oncegate};
use crate::report::{BenchmarkReport, Column};
use crate::request::Load;
use crate::testbed::Testbed;
use crate::{load, peers};

const CONNECTIONS: [usize; 4] = [1, 16, 64, 256];

/// The connections of replays, and of the service without keys.
const REPLAY_CONNECTIONS: usize = 64;

const ALONE: &str = "fastify alone, a process for each core";
const ONCEGATE: Rows = Rows { first: "first attempts, Oncegate and fastify", replays: "replays, Oncegate and fastify" };
const TWO_COMMITS: Rows =
    Rows { first: "first attempts, two commits in fastify", replays: "replays, two commits in fastify" };
const ONE_TRANSACTION: Rows =
    Rows { first: "first attempts, one transaction in fastify", replays: "replays, one transaction in fastify" };
const ONCEGATE_SQLITE: Rows = Rows {
    first: "first attempts, Oncegate on SQLite and fastify",
    replays: "replays, Oncegate on SQLite and fastify",
};
const SQLITE: Rows =
    Rows { first: "first attempts, better-sqlite3 in fastify", replays: "replays, better-sqlite3 in fastify" };

/// The pairs that are compared.
const PAIRS: [(Rows, Rows); 3] = [(ONCEGATE, TWO_COMMITS), (ONCEGATE, ONE_TRANSACTION), (ONCEGATE_SQLITE, SQLITE)];

/// The names of the rows of one way to execute each key once.
#[derive(Clone, Copy)]
struct Rows {
    first: &'static str,
    replays: &'static str,
}

/// A way to execute each key once, as it runs.
struct Subject {
    rows: Rows,
    /// First attempts and replays.
    loads: [Load; 2],
    endpoint: Endpoint,
}

/// The running programs. They stop before their databases.
struct Programs {
    oncegate: Process,
    plain: Process,
    two_commits: Process,
    one_transaction: Process,
    oncegate_sqlite: Process,
    sqlite: Process,
    _databases: [TestDatabase; 3],
}

pub async fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let programs = match Programs::start(testbed).await {
        Ok(programs) => programs,
        Err(reason) => {
            report.missing.push(format!("the rows of a key table in the service: {reason}"));
            return Ok(());
        }
    };
    let subjects = programs.subjects(testbed.server);
    for subject in &subjects {
        load::seed_known_keys(subject.endpoint.addresses[0])?;
    }
    for peer in [&programs.two_commits, &programs.one_transaction, &programs.sqlite] {
        peers::check_deduplication(peer.address)?;
    }
    // Not measured: Node.js compiles what runs often.
    measure_round(testbed, &mut BenchmarkReport::default(), &programs, &subjects)?;
    for round in 0..testbed.options.rounds() {
        eprintln!("in the service: round {} of {}", round + 1, testbed.options.rounds());
        measure_round(testbed, report, &programs, &subjects)?;
    }
    compare(report);
    Ok(())
}

fn measure_round(
    testbed: &Testbed,
    report: &mut BenchmarkReport,
    programs: &Programs,
    subjects: &[Subject],
) -> Result<(), String> {
    testbed.run_load(&programs.plain.endpoint(), Load::PassThrough, REPLAY_CONNECTIONS, report, ALONE)?;
    for connections in CONNECTIONS {
        for subject in subjects {
            testbed.run_load(&subject.endpoint, subject.loads[0], connections, report, subject.rows.first)?;
        }
    }
    for subject in subjects {
        testbed.run_load(&subject.endpoint, subject.loads[1], REPLAY_CONNECTIONS, report, subject.rows.replays)?;
    }
    Ok(())
}

fn compare(report: &mut BenchmarkReport) {
    for (ours, theirs) in PAIRS {
        for connections in CONNECTIONS {
            report.compare((ours.first, theirs.first), connections, Column::Rate, None);
        }
        report.compare((ours.replays, theirs.replays), REPLAY_CONNECTIONS, Column::Rate, None);
        report.compare((ours.first, theirs.first), 64, Column::Program, None);
        if ours.first == ONCEGATE.first {
            report.compare((ours.first, theirs.first), 64, Column::Server, None);
        }
    }
}

impl Programs {
    async fn start(testbed: &Testbed) -> Result<Self, String> {
        let script = peers::install("in_service")?.join("service.mjs");
        let cluster = &testbed.cluster;
        let databases =
            [cluster.empty_database().await, cluster.empty_database().await, cluster.empty_database().await];
        let plain = start_node(&script, &[])?;
        Ok(Self {
            oncegate: start_oncegate(plain.address, &databases[0].url)?,
            two_commits: start_node(&script, &["two-commits", &databases[1].url])?,
            one_transaction: start_node(&script, &["one-transaction", &databases[2].url])?,
            oncegate_sqlite: start_oncegate(plain.address, "sqlite:oncegate.db")?,
            sqlite: start_node(&script, &["sqlite", "keys.db"])?,
            plain,
            _databases: databases,
        })
    }

    fn subjects(&self, server: u32) -> [Subject; 5] {
        let ours = [Load::First, Load::Replay];
        let theirs = [Load::PeerFirst, Load::PeerReplay];
        let subject = |rows: Rows, loads, server, processes: &[&Process]| Subject {
            rows,
            loads,
            endpoint: Endpoint {
                addresses: vec![processes[0].address],
                pids: processes.iter().map(|process| process.pid).collect(),
                server,
            },
        };
        [
            subject(ONCEGATE, ours, Some(server), &[&self.oncegate, &self.plain]),
            subject(TWO_COMMITS, theirs, Some(server), &[&self.two_commits]),
            subject(ONE_TRANSACTION, theirs, Some(server), &[&self.one_transaction]),
            subject(ONCEGATE_SQLITE, ours, None, &[&self.oncegate_sqlite, &self.plain]),
            subject(SQLITE, theirs, None, &[&self.sqlite]),
        ]
    }
}
