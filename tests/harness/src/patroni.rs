//! Three PostgreSQL servers under Patroni, one etcd, and HAProxy in front, all on 127.0.0.1.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Pid;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::NoTls;

use super::client::Client;
use super::guarded_process::{GuardedProcess, new_home};
use super::postgres::{binaries, postmaster, restartable_port};
use super::relay::Relay;

/// Patroni's times in seconds, as the table in docs/backup-and-failover.md names them. `ttl` must be at least
/// `loop_wait` and twice `retry_timeout`.
const TTL: u32 = 20;
const LOOP_WAIT: u32 = 5;
const RETRY_TIMEOUT: u32 = 5;

/// HAProxy's checks, as in Patroni's documentation.
const CHECKS: &str = "inter 3s fall 3 rise 2 on-marked-down shutdown-sessions";

/// Longer than any step of a cluster takes: an election takes up to `ttl` and some loops.
pub const STEP_MAX: Duration = Duration::from_secs(90);

/// Whether a commit waits for a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// `synchronous_mode: off`.
    Asynchronous,
    /// `synchronous_mode: on`, with one synchronous standby that Patroni chooses.
    Synchronous,
}

impl Replication {
    pub fn name(self) -> &'static str {
        match self {
            Self::Asynchronous => "asynchronous",
            Self::Synchronous => "synchronous",
        }
    }
}

pub struct PatroniCluster {
    pub nodes: Vec<PatroniNode>,
    balancer: u16,
    _balancer: GuardedProcess,
    _etcd: GuardedProcess,
}

/// A server and its agent.
pub struct PatroniNode {
    name: String,
    home: PathBuf,
    /// The server's port for clients.
    port: u16,
    /// The agent's port for HAProxy.
    api: u16,
    pub agent: GuardedProcess,
    /// The links of the node to etcd and to its peers.
    links: [Relay; 3],
}

impl PatroniCluster {
    /// Starts all, and waits until the standbys follow.
    pub async fn start(replication: Replication) -> Self {
        let etcd = restartable_port();
        let _etcd = start_etcd(etcd);
        eventually("etcd answers", async || api(etcd, "/health").await).await;
        let mut nodes = Vec::new();
        for number in 1..=3 {
            nodes.push(PatroniNode::start(number, etcd, replication).await);
        }
        let balancer = restartable_port();
        let _balancer = start_balancer(balancer, &nodes);
        let cluster = Self { nodes, balancer, _balancer, _etcd };
        cluster.wait_until_whole(replication).await;
        cluster
    }

    /// Creates a database whose owner is an ordinary role. Returns the URLs with all hosts, and through HAProxy.
    pub async fn create_database(&self) -> [String; 2] {
        let leader = eventually("there is a primary", async || self.primary(None).await).await;
        let client = self.nodes[leader].connect().await.unwrap();
        client.batch_execute("create role oncegate login").await.unwrap();
        client.batch_execute("create database oncegate owner oncegate").await.unwrap();
        let hosts: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let url = |hosts: &str| format!("postgres://oncegate@{hosts}/oncegate");
        let balanced = url(&format!("127.0.0.1:{}", self.balancer));
        let connect = async || tokio_postgres::connect(&balanced, NoTls).await.ok();
        drop(eventually("HAProxy knows the primary", connect).await);
        [url(&hosts.join(",")), balanced]
    }

    /// A server that takes writes, and is not this one.
    pub async fn primary(&self, but: Option<usize>) -> Option<usize> {
        for (number, node) in self.nodes.iter().enumerate() {
            if Some(number) != but && node.takes_writes().await == Some(true) {
                return Some(number);
            }
        }
        None
    }

    /// Asks for a planned switchover to any standby, until Patroni agrees or has done so.
    pub async fn switch_over(&self, leader: usize) {
        let node = &self.nodes[leader];
        let body = json!({ "leader": node.name }).to_string();
        let address = format!("127.0.0.1:{}", node.api).parse().unwrap();
        let request = Client { address }.post("/switchover").json(&body);
        eventually("the switchover is accepted", async || {
            let is_accepted = request.try_send().await.is_ok_and(|answer| answer.status == 200);
            (is_accepted || self.primary(Some(leader)).await.is_some()).then_some(())
        })
        .await;
    }

    /// Waits until there is one primary, and all standbys follow it.
    pub async fn wait_until_whole(&self, replication: Replication) {
        eventually("both standbys follow", async || self.follows(replication).await.then_some(())).await;
    }

    async fn follows(&self, replication: Replication) -> bool {
        let Some(state) = api(self.nodes[0].api, "/cluster").await else { return false };
        let Some(members) = state["members"].as_array() else { return false };
        let has_role = |role: &str| members.iter().filter(|member| member["role"] == role).count();
        let running = members.iter().filter(|member| member["state"] == "running" && member["timeline"].is_u64());
        let synchronous = if replication == Replication::Synchronous { 1 } else { 0 };
        running.count() == self.nodes.len() && has_role("leader") == 1 && has_role("sync_standby") == synchronous
    }
}

impl PatroniNode {
    async fn start(number: usize, etcd: u16, replication: Replication) -> Self {
        let (name, home) = (format!("n{number}"), new_home("node"));
        let (port, api) = (restartable_port(), restartable_port());
        let link = async |port: u16| Relay::to(format!("127.0.0.1:{port}").parse().unwrap()).await;
        let [to_etcd, to_server, to_agent] = [link(etcd).await, link(port).await, link(api).await];
        let role = json!({ "username": "postgres", "password": "trusted" });
        let settings = json!({
            "scope": "ha",
            "name": name,
            "restapi": { "listen": format!("127.0.0.1:{api}"), "connect_address": to_agent.address.to_string() },
            // By the v2 API, because Debian 12 has Patroni 3.0.2: by the v3 API, an agent that was held up overwrites
            // the key of its elected successor (fixed in 3.0.3). Without `use_proxies` it asks etcd for its addresses,
            // and goes past the link.
            "etcd": { "hosts": [to_etcd.address.to_string()], "use_proxies": true },
            "bootstrap": {
                "dcs": {
                    "ttl": TTL,
                    "loop_wait": LOOP_WAIT,
                    "retry_timeout": RETRY_TIMEOUT,
                    "synchronous_mode": replication == Replication::Synchronous,
                    "postgresql": {
                        "use_pg_rewind": true,
                        "parameters": { "max_connections": 100, "shared_buffers": "32MB" },
                    },
                },
                "initdb": [{ "encoding": "UTF8" }, { "locale": "C" }, "no-sync"],
                "pg_hba": ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
            },
            "postgresql": {
                "listen": format!("127.0.0.1:{port}"),
                "connect_address": to_server.address.to_string(),
                "bin_dir": binaries(),
                "data_dir": home.join("data"),
                "pgpass": home.join("pgpass"),
                "authentication": { "superuser": role, "replication": role },
                "parameters": { "unix_socket_directories": home },
            },
            "watchdog": { "mode": "off" },
        });
        // YAML contains JSON.
        std::fs::write(home.join("patroni.yml"), settings.to_string()).unwrap();
        let stop = format!(
            "kill -CONT $(head -n 1 data/postmaster.pid); {}/pg_ctl stop -D data -m immediate",
            binaries().display()
        );
        let agent = GuardedProcess::start(&home, &["patroni", "patroni.yml"], &stop);
        Self { name, home, port, api, agent, links: [to_etcd, to_server, to_agent] }
    }

    /// The server's first process.
    pub fn postmaster(&self) -> Option<Pid> {
        postmaster(&self.home.join("data"))
    }

    /// Whether the server takes writes; `None` if it does not answer.
    pub async fn takes_writes(&self) -> Option<bool> {
        let ask = async { self.connect().await?.query_one("select not pg_is_in_recovery()", &[]).await };
        timeout(Duration::from_secs(1), ask).await.ok()?.ok().map(|row| row.get(0))
    }

    /// Cancels each commit's wait for a standby for so long.
    pub async fn cancel_waits(&self, length: Duration) {
        let client = self.connect().await.unwrap();
        let until = Instant::now() + length;
        while Instant::now() < until {
            let cancel = "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'";
            client.batch_execute(cancel).await.unwrap();
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Cuts the node off from etcd and its peers. Clients and HAProxy still reach it.
    pub fn cut(&self) {
        self.links.iter().for_each(Relay::silence);
    }

    /// Cuts the node's standbys off from its server. Its agent reaches etcd and the others.
    pub fn cut_replication(&self) {
        self.links[1].silence();
    }

    pub fn restore(&self) {
        self.links.iter().for_each(Relay::restore);
    }

    async fn connect(&self) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", self.port);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }
}

fn start_etcd(port: u16) -> GuardedProcess {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let (clients, peers) = (url(port), url(restartable_port()));
    let (advertised, members) = (clients.clone(), format!("default={peers}"));
    let command = [
        ["--listen-client-urls", &clients],
        ["--advertise-client-urls", &advertised],
        ["--listen-peer-urls", &peers],
        ["--initial-advertise-peer-urls", &peers],
        ["--initial-cluster", &members],
        ["--enable-v2", "--logger=zap"],
    ];
    let command: Vec<&str> = ["etcd", "--data-dir", "data"].into_iter().chain(command.into_iter().flatten()).collect();
    GuardedProcess::start(&new_home("etcd"), &command, "")
}

fn start_balancer(port: u16, nodes: &[PatroniNode]) -> GuardedProcess {
    let home = new_home("haproxy");
    let mut settings = format!(
        "defaults\n  mode tcp\n  timeout connect 2s\n  timeout client 30m\n  timeout server 30m\n  timeout check 2s\n\
         listen primary\n  bind 127.0.0.1:{port}\n  option httpchk OPTIONS /primary\n  http-check expect status 200\n  \
         default-server {CHECKS}\n"
    );
    for PatroniNode { name, port, api, .. } in nodes {
        settings.push_str(&format!("  server {name} 127.0.0.1:{port} check port {api}\n"));
    }
    std::fs::write(home.join("haproxy.cfg"), settings).unwrap();
    let program = if std::path::Path::new("/usr/sbin/haproxy").exists() { "/usr/sbin/haproxy" } else { "haproxy" };
    GuardedProcess::start(&home, &[program, "-db", "-f", "haproxy.cfg"], "")
}

/// Reads a JSON document of an HTTP API.
async fn api(port: u16, path: &str) -> Option<Value> {
    let address = format!("127.0.0.1:{port}").parse().unwrap();
    let answer = timeout(Duration::from_secs(2), Client { address }.get(path).try_send()).await;
    serde_json::from_slice(&answer.ok()?.ok()?.body).ok()
}

/// Repeats a look until it returns a value.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(begun.elapsed() < STEP_MAX, "not within {STEP_MAX:?}: {what}");
        sleep(Duration::from_millis(100)).await;
    }
}
