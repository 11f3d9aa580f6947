//! The test bed of all parts: the service, the PostgreSQL server, and the compared programs.

use std::net::SocketAddr;
use std::time::Duration;

use crate::load::{self, Round};
use crate::options::Options;
use crate::pgbench::PgbenchPair;
use crate::process::{Endpoint, Process};
use crate::programs::{start_haproxy, start_nginx, start_oncegate};
use crate::report::{BenchmarkReport, Column};
use crate::request::Load;
use crate::{machine, service};
use store_contract::postgres::{Cluster, TestDatabase, settings};

/// The running programs, with the memory of each before any load.
pub struct Testbed {
    pub options: Options,
    pub upstream: SocketAddr,
    pub database: TestDatabase,
    /// The server's version.
    pub version: String,
    /// Oncegate on PostgreSQL.
    pub shared: Process,
    /// Oncegate on its embedded store.
    pub embedded: Process,
    pub haproxy: Option<Process>,
    pub nginx: Option<Process>,
    pub pair: Option<PgbenchPair>,
    pub idle: Vec<(&'static str, u64)>,
    /// The server's first process.
    server: u32,
    /// Last, because fields are dropped in order and the server must stop last.
    pub cluster: Cluster,
}

/// PostgreSQL's settings: the defaults, in particular for durability, with room for all clients, the part of the memory that
/// its manual recommends, and checkpoints by time, not by the amount of writes. `$ONCEGATE_BENCH_POSTGRES` overrides them.
const SERVER_SETTINGS: &str = "-c max_connections=500 -c max_wal_size=16GB";

impl Testbed {
    /// Starts everything.
    pub async fn start(options: Options, report: &mut BenchmarkReport) -> Self {
        let upstream = service::start();
        let quarter = machine::memory_of_all() / 4 / (1 << 20);
        let more = std::env::var("ONCEGATE_BENCH_POSTGRES").unwrap_or_default();
        let cluster = Cluster::start(&format!("{SERVER_SETTINGS} -c shared_buffers={quarter}MB {more}"));
        let database = create_database(&cluster).await;
        let (version, folder) = {
            let client = database.client().await;
            let shown = async |what: &str| client.query_one(what, &[]).await.unwrap().get::<_, String>(0);
            (shown("show server_version").await, shown("show data_directory").await)
        };
        let file = std::fs::read_to_string(format!("{folder}/postmaster.pid")).unwrap();
        let server = file.lines().next().unwrap().parse().unwrap();
        let shared = start_oncegate(upstream, |_| database.url.clone());
        let embedded = start_oncegate(upstream, |home| format!("sqlite:{}", home.join("bench.db").display()));
        let (haproxy, nginx) = (start_haproxy(upstream), start_nginx(upstream));
        let pair = PgbenchPair::prepare(&database).await;
        for (program, is_installed) in
            [("haproxy", haproxy.is_some()), ("nginx", nginx.is_some()), ("pgbench", pair.is_some())]
        {
            if !is_installed {
                report.missing.push(format!("{program} is not installed, its rows"));
            }
        }
        let mut testbed = Self {
            options,
            upstream,
            cluster,
            database,
            version,
            shared,
            embedded,
            haproxy,
            nginx,
            pair,
            idle: Vec::new(),
            server,
        };
        // Until all programs are idle.
        tokio::time::sleep(Duration::from_secs(2)).await;
        testbed.idle = testbed.memory();
        testbed
    }

    /// Returns the memory of each program now, in bytes.
    pub fn memory(&self) -> Vec<(&'static str, u64)> {
        let ours = [("Oncegate on PostgreSQL", &self.shared), ("Oncegate on SQLite", &self.embedded)];
        let haproxy = self.haproxy.as_ref().map(|process| ("HAProxy", process));
        let nginx = self.nginx.as_ref().map(|process| ("nginx", process));
        let all = ours.into_iter().chain(haproxy).chain(nginx);
        all.map(|(name, process)| (name, machine::memory(process.pid))).collect()
    }

    /// Runs `work`. Returns its result, and PostgreSQL's processor time meanwhile in seconds.
    pub fn measure_server<T>(&self, work: impl FnOnce() -> Result<T, String>) -> Result<(T, f64), String> {
        machine::measure_processor_time(&[self.server], work)
    }

    /// Runs a round of a load, and measures the processor time of the endpoints' programs for each answer.
    pub fn run_load(
        &self,
        endpoints: &[Endpoint],
        load: Load,
        connections: usize,
        report: &mut BenchmarkReport,
        name: &str,
    ) -> Result<Round, String> {
        let addresses: Vec<_> = endpoints.iter().map(|endpoint| endpoint.address).collect();
        let pids: Vec<_> = endpoints.iter().map(|endpoint| endpoint.pid).collect();
        let length = self.options.length();
        let (round, proxy) =
            machine::measure_processor_time(&pids, || load::run_closed(&addresses, load, connections, length))?;
        report.add_round(name, connections, &round);
        report.add(name, connections, &[(Column::Program, proxy / round.answers as f64)]);
        Ok(round)
    }

    /// Runs a round of first attempts, and measures PostgreSQL's processor time for each as well.
    pub fn run_first_attempts(
        &self,
        proxies: &[Endpoint],
        connections: usize,
        report: &mut BenchmarkReport,
        name: &str,
    ) -> Result<(), String> {
        let (round, server) = self.measure_server(|| self.run_load(proxies, Load::First, connections, report, name))?;
        report.add(name, connections, &[(Column::Server, server / round.answers as f64)]);
        Ok(())
    }
}

/// Creates an empty database with our schema.
pub async fn create_database(cluster: &Cluster) -> TestDatabase {
    let database = cluster.empty_database().await;
    oncegate_store::migrate(&settings(&database.url)).await.unwrap();
    database
}
