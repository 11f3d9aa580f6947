//! First attempts and replays beside the same thing written in the service on PostgreSQL: reservation and response in two commits,
//! or all in one transaction. Oncegate stands in front of the same service without it.
//!
//! The service has a process for each core, as Oncegate has a worker for each, so that no row has more of the machine than another.

use std::net::SocketAddr;

use store_contract::postgres::TestDatabase;

use crate::process::Process;
use crate::programs::{start_node, start_oncegate};
use crate::report::{BenchmarkReport, Column, Target};
use crate::request::{Load, SERVICE_PATH};
use crate::testbed::{Testbed, create_database};
use crate::{load, machine, peers};

const CONNECTIONS: [usize; 4] = [1, 16, 64, 256];

/// The connections of replays, and of the service without keys.
const REPLAY_CONNECTIONS: usize = 64;

const ALONE: &str = "fastify alone, a process for each core";
const ONCEGATE: Rows = Rows { first: "first attempts, Oncegate and fastify", replays: "replays, Oncegate and fastify" };
const TWO_COMMITS: Rows =
    Rows { first: "first attempts, two commits in fastify", replays: "replays, two commits in fastify" };
const ONE_TRANSACTION: Rows =
    Rows { first: "first attempts, one transaction in fastify", replays: "replays, one transaction in fastify" };

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
    address: SocketAddr,
    /// The processes that do its work, without PostgreSQL's.
    pids: Vec<u32>,
}

/// The running programs. They stop before their databases.
struct Programs {
    oncegate: Process,
    plain: Process,
    two_commits: Process,
    one_transaction: Process,
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
    let subjects = programs.subjects();
    for subject in &subjects {
        load::seed_known_keys(subject.address)?;
    }
    for peer in [&programs.two_commits, &programs.one_transaction] {
        peers::check_deduplication(peer.addresses[0], SERVICE_PATH)?;
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
    let plain = &programs.plain;
    testbed.run_load(&[plain.endpoint(0)], Load::PassThrough, REPLAY_CONNECTIONS, report, ALONE)?;
    for connections in CONNECTIONS {
        for subject in subjects {
            subject.measure(testbed, report, subject.rows.first, subject.loads[0], connections)?;
        }
    }
    for subject in subjects {
        subject.measure(testbed, report, subject.rows.replays, subject.loads[1], REPLAY_CONNECTIONS)?;
    }
    Ok(())
}

impl Subject {
    /// Measures one row, with the processor time of all its programs and of PostgreSQL.
    fn measure(
        &self,
        testbed: &Testbed,
        report: &mut BenchmarkReport,
        name: &str,
        load: Load,
        connections: usize,
    ) -> Result<(), String> {
        let run = || load::run_closed(&[self.address], load, connections, testbed.options.length());
        let measured = testbed.measure_server(|| machine::measure_processor_time(&self.pids, run))?;
        report.add_costs(name, connections, measured);
        Ok(())
    }
}

fn compare(report: &mut BenchmarkReport) {
    let others = [TWO_COMMITS, ONE_TRANSACTION];
    for connections in CONNECTIONS {
        let meaning = "First attempts a second, beside the same thing written in the service.";
        for other in others {
            report.compare((ONCEGATE.first, other.first), connections, Column::Rate, Target::None, meaning);
        }
    }
    let meaning = "Stored responses a second, beside the same thing written in the service.";
    for other in others {
        report.compare((ONCEGATE.replays, other.replays), REPLAY_CONNECTIONS, Column::Rate, Target::None, meaning);
    }
    let meaning = "The processor time of Oncegate and its service for a first attempt, in units of that of the service that does all.";
    for other in others {
        report.compare((ONCEGATE.first, other.first), 64, Column::Program, Target::None, meaning);
    }
    let meaning = "The processor time that a first attempt costs the database, in units of what the service's own statements cost it.";
    for other in others {
        report.compare((ONCEGATE.first, other.first), 64, Column::Server, Target::None, meaning);
    }
}

impl Programs {
    async fn start(testbed: &Testbed) -> Result<Self, String> {
        let script = peers::install("in_service")?.join("service.mjs");
        let cluster = &testbed.cluster;
        let databases =
            [create_database(cluster).await, cluster.empty_database().await, cluster.empty_database().await];
        let plain = start_node(&script, &[])?;
        Ok(Self {
            oncegate: start_oncegate(plain.addresses[0], |_| databases[0].url.clone()),
            plain,
            two_commits: start_node(&script, &["two-commits", &databases[1].url])?,
            one_transaction: start_node(&script, &["one-transaction", &databases[2].url])?,
            _databases: databases,
        })
    }

    fn subjects(&self) -> [Subject; 3] {
        let ours = [Load::First, Load::Replay];
        let theirs = [Load::PeerFirst, Load::PeerReplay];
        let subject = |rows, loads, processes: &[&Process]| Subject {
            rows,
            loads,
            address: processes[0].addresses[0],
            pids: processes.iter().map(|process| process.pid).collect(),
        };
        [
            subject(ONCEGATE, ours, &[&self.oncegate, &self.plain]),
            subject(TWO_COMMITS, theirs, &[&self.two_commits]),
            subject(ONE_TRANSACTION, theirs, &[&self.one_transaction]),
        ]
    }
}
