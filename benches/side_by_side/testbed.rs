//! The test bed of all parts: the service, the PostgreSQL server, and Oncegate on it.

use std::net::SocketAddr;

use crate::load;
use crate::options::Options;
use crate::process::{Endpoint, Process};
use crate::programs::start_oncegate;
use crate::report::{BenchmarkReport, Column};
use crate::request::Load;
use crate::{machine, service};
use store_contract::postgres::{Cluster, TestDatabase};

pub struct Testbed {
    pub options: Options,
    pub upstream: SocketAddr,
    /// The server's version.
    pub version: String,
    pub oncegate: Process,
    pub database: TestDatabase,
    /// The server's first process.
    pub server: u32,
    /// Last, because fields are dropped in order and the server must stop last.
    pub cluster: Cluster,
}

/// PostgreSQL's settings: the defaults, in particular for durability, with room for all clients, the part of the memory
/// that its manual recommends, and checkpoints by time, not by the amount of writes. `$ONCEGATE_BENCH_POSTGRES`
/// overrides them.
const SERVER_SETTINGS: &str = "-c max_connections=500 -c max_wal_size=16GB";

impl Testbed {
    /// Starts everything.
    pub async fn start(options: Options) -> Result<Self, String> {
        let upstream = service::start();
        let quarter = machine::memory_of_all() / 4 / (1 << 20);
        let more = std::env::var("ONCEGATE_BENCH_POSTGRES").unwrap_or_default();
        let cluster = Cluster::start(&format!("{SERVER_SETTINGS} -c shared_buffers={quarter}MB {more}"));
        let database = cluster.empty_database().await;
        let version = show(&database, "server_version").await;
        let server = first_process(&database).await;
        let oncegate = start_oncegate(upstream, &database.url)?;
        Ok(Self { options, upstream, version, oncegate, database, server, cluster })
    }

    /// Runs a round of a load, and measures the processor time of the endpoint's programs, and of its PostgreSQL, for
    /// each answer.
    pub fn run_load(
        &self,
        endpoint: &Endpoint,
        load: Load,
        connections: usize,
        report: &mut BenchmarkReport,
        name: &str,
    ) -> Result<(), String> {
        let run = || load::run_closed(&endpoint.addresses, load, connections, self.options.length());
        let run = || machine::measure_processor_time(&endpoint.pids, run);
        let ((round, programs), server) = machine::measure_processor_time(endpoint.server.as_slice(), run)?;
        let answers = round.answers as f64;
        report.add_round(name, connections, &round);
        report.add(name, connections, &[(Column::Program, programs / answers)]);
        if endpoint.server.is_some() {
            report.add(name, connections, &[(Column::Server, server / answers)]);
        }
        Ok(())
    }
}

/// Returns the first process of a database's server.
pub async fn first_process(database: &TestDatabase) -> u32 {
    let file = std::fs::read_to_string(format!("{}/postmaster.pid", show(database, "data_directory").await)).unwrap();
    file.lines().next().unwrap().parse().unwrap()
}

async fn show(database: &TestDatabase, setting: &str) -> String {
    database.client().await.query_one(&format!("show {setting}"), &[]).await.unwrap().get(0)
}
