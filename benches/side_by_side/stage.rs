//! What all parts stand on: the service, the PostgreSQL server, and who is compared.

use std::net::SocketAddr;
use std::time::Duration;

use crate::contestants::{haproxy, nginx, oncegate};
use crate::load::{self, Round};
use crate::options::Options;
use crate::pgbench::Pair;
use crate::postgres::{Cluster, Database, settings};
use crate::process::Process;
use crate::request::Load;
use crate::sheet::{Column, Sheet};
use crate::{machine, service};

/// Everything is up and knows its keys.
pub struct Stage {
    pub options: Options,
    pub upstream: SocketAddr,
    pub database: Database,
    /// The server's version.
    pub version: String,
    /// Oncegate on PostgreSQL.
    pub shared: Process,
    /// Oncegate on its embedded store.
    pub embedded: Process,
    pub haproxy: Option<Process>,
    pub nginx: Option<Process>,
    pub pair: Option<Pair>,
    pub idle: Vec<(&'static str, u64)>,
    /// The server's first process.
    server: u32,
    /// Last, because it goes last.
    pub cluster: Cluster,
}

/// PostgreSQL as it comes, its durability above all, with room for all clients, the part of the memory that its manual
/// advises, and checkpoints by time rather than by how much we write. `$ONCEGATE_BENCH_POSTGRES` has the last word.
const SERVER: &str = "-c max_connections=500 -c max_wal_size=16GB";

impl Stage {
    pub async fn set(options: Options, sheet: &mut Sheet) -> Self {
        let upstream = service::start();
        let quarter = machine::memory_of_all() / 4 / (1 << 20);
        let more = std::env::var("ONCEGATE_BENCH_POSTGRES").unwrap_or_default();
        let cluster = Cluster::start(&format!("{SERVER} -c shared_buffers={quarter}MB {more}"));
        let database = migrated(&cluster).await;
        let (version, folder) = {
            let client = database.client().await;
            let shown = async |what: &str| client.query_one(what, &[]).await.unwrap().get::<_, String>(0);
            (shown("show server_version").await, shown("show data_directory").await)
        };
        let file = std::fs::read_to_string(format!("{folder}/postmaster.pid")).unwrap();
        let server = file.lines().next().unwrap().parse().unwrap();
        let shared = oncegate(upstream, |_| database.url.clone());
        let embedded = oncegate(upstream, |home| format!("sqlite:{}", home.join("bench.db").display()));
        let (haproxy, nginx) = (haproxy(upstream), nginx(upstream));
        let pair = Pair::prepare(&database).await;
        for (program, there) in
            [("haproxy", haproxy.is_some()), ("nginx", nginx.is_some()), ("pgbench", pair.is_some())]
        {
            if !there {
                sheet.missing.push(format!("{program} is not installed, its rows"));
            }
        }
        let mut stage = Self {
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
        // Until everybody has come to rest.
        tokio::time::sleep(Duration::from_secs(2)).await;
        stage.idle = stage.memory();
        stage
    }

    /// What each program takes now, in bytes.
    pub fn memory(&self) -> Vec<(&'static str, u64)> {
        let ours = [("Oncegate on PostgreSQL", &self.shared), ("Oncegate on SQLite", &self.embedded)];
        let haproxy = self.haproxy.as_ref().map(|process| ("HAProxy", process));
        let nginx = self.nginx.as_ref().map(|process| ("nginx", process));
        let all = ours.into_iter().chain(haproxy).chain(nginx);
        all.map(|(name, process)| (name, machine::memory(process.pid))).collect()
    }

    /// Whatever is done, and how much of the processor PostgreSQL took meanwhile, in seconds.
    pub fn metered<T>(&self, work: impl FnOnce() -> Result<T, String>) -> Result<(T, f64), String> {
        let before = machine::processor_time(self.server);
        let done = work()?;
        Ok((done, machine::processor_time(self.server) - before))
    }

    /// A round of first attempts, with PostgreSQL's part.
    pub fn first_attempts(
        &self,
        targets: &[SocketAddr],
        connections: usize,
        sheet: &mut Sheet,
        name: &str,
    ) -> Result<Round, String> {
        let length = self.options.length();
        let (round, server) = self.metered(|| load::closed(targets, Load::First, connections, length))?;
        sheet.add_round(name, connections, &round);
        sheet.add(name, connections, &[(Column::Server, server / round.answers as f64)]);
        Ok(round)
    }
}

/// A database with our schema, and nothing in it.
pub async fn migrated(cluster: &Cluster) -> Database {
    let database = cluster.empty_database().await;
    oncegate::store::migrate(&settings(&database.url)).await.unwrap();
    database
}
