//! First attempts and replays beside the same thing written in the service on PostgreSQL: reservation and response in
//! two commits, or all in one transaction. Oncegate stands in front of the same service without it.
//!
//! The service has a process for each core, as Oncegate has a worker for each, so that no row has more of the machine
//! than another.

use store_contract::postgres::TestDatabase;

use crate::process::{Endpoint, Process};
use crate::programs::{start_node, start_oncegate};
use crate::report::{BenchmarkReport, Column};
use crate::request::Load;
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
    /// Without PostgreSQL's processes.
    endpoint: Endpoint,
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
        load::seed_known_keys(subject.endpoint.address)?;
    }
    for peer in [&programs.two_commits, &programs.one_transaction] {
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
        let run = || testbed.run_load(&self.endpoint, load, connections, report, name);
        let (round, server) = machine::measure_processor_time(&[testbed.server], run)?;
        report.add(name, connections, &[(Column::Server, server / round.answers as f64)]);
        Ok(())
    }
}

fn compare(report: &mut BenchmarkReport) {
    for other in [TWO_COMMITS, ONE_TRANSACTION] {
        for connections in CONNECTIONS {
            report.compare((ONCEGATE.first, other.first), connections, Column::Rate, None);
        }
        report.compare((ONCEGATE.replays, other.replays), REPLAY_CONNECTIONS, Column::Rate, None);
        report.compare((ONCEGATE.first, other.first), 64, Column::Program, None);
        report.compare((ONCEGATE.first, other.first), 64, Column::Server, None);
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
            oncegate: start_oncegate(plain.address, &databases[0].url)?,
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
            endpoint: Endpoint {
                pids: processes.iter().map(|process| process.pid).collect(),
                address: processes[0].address,
            },
        };
        [
            subject(ONCEGATE, ours, &[&self.oncegate, &self.plain]),
            subject(TWO_COMMITS, theirs, &[&self.two_commits]),
            subject(ONE_TRANSACTION, theirs, &[&self.one_transaction]),
        ]
    }
}
