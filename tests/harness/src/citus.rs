//! A Citus cluster: a coordinator and two workers, each a server of its own with its default durability.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::NoTls;

use super::eventually;
use super::postgres::{Cluster, TestDatabase, binaries};

/// By default, the recovery comes once in a minute, and a table has 32 shards, which take long to create. Without TLS
/// between the nodes, a server needs no home for its certificates.
const OPTIONS: &str = "-c shared_preload_libraries=citus -c citus.recover_2pc_interval=3s -c citus.node_conninfo=sslmode=disable \
     -c citus.shard_count=8";

/// A prepared transaction that is there for longer was left behind: its two-phase commit has ended otherwise, and the
/// recovery of the cluster has to end it.
const PREPARED_MAX: Duration = Duration::from_secs(1);

/// Longer than the processes of a killed server live, and its successor needs to start.
const RESTART_MAX: Duration = Duration::from_secs(30);

/// Longer than the recovery of prepared transactions takes, once all nodes are there.
const RECOVERY_MAX: Duration = Duration::from_secs(30);

/// A node of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CitusNode {
    Coordinator,
    FirstWorker,
    SecondWorker,
}

impl CitusNode {
    pub const ALL: [Self; 3] = [Self::Coordinator, Self::FirstWorker, Self::SecondWorker];
}

/// The cluster. Its servers end when this value is dropped.
pub struct CitusCluster {
    /// In the order of [`CitusNode::ALL`].
    servers: Vec<Arc<Cluster>>,
    /// On the coordinator.
    pub database: TestDatabase,
}

impl CitusCluster {
    /// Whether this machine's PostgreSQL has the extension.
    pub fn is_installed() -> bool {
        let asked = Command::new(binaries().join("pg_config")).arg("--sharedir").output();
        let shared = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        shared.is_ok_and(|folder| Path::new(&folder).join("extension/citus.control").exists())
    }

    /// Starts all, and makes both workers known to the coordinator. The database has no schema.
    pub async fn start() -> Self {
        let starting = CitusNode::ALL.map(|_| spawn_blocking(|| Cluster::start(OPTIONS)));
        let (mut servers, mut databases) = (Vec::new(), Vec::new());
        for server in starting {
            let server = server.await.unwrap();
            let database = server.create_named("oncegate".to_owned(), "template0").await;
            database.client().await.batch_execute("create extension citus").await.unwrap();
            servers.push(Arc::new(server));
            databases.push(database);
        }
        let database = databases.swap_remove(0);
        let coordinator = database.client().await;
        let mut call = "citus_set_coordinator_host";
        for server in &servers {
            let sql = format!("select {call}('127.0.0.1', {})", server.port());
            coordinator.batch_execute(&sql).await.unwrap();
            call = "citus_add_node";
        }
        Self { servers, database }
    }

    /// Kills a node's first process with signal 9, which ends all of them.
    pub fn kill9(&self, node: CitusNode) {
        self.servers[node as usize].kill9();
    }

    /// Starts a killed node again, and waits until it has recovered.
    pub async fn restart(&self, node: CitusNode) {
        let server = &self.servers[node as usize];
        eventually(RESTART_MAX, async || {
            let server = Arc::clone(server);
            spawn_blocking(move || server.try_restart()).await.unwrap().then_some(())
        })
        .await;
    }

    /// The node of each key of a route, by the key.
    pub async fn nodes_of_keys(&self, route: &str) -> BTreeMap<String, CitusNode> {
        let client = self.database.client().await;
        let rows = client.query("select id, key from oncegate.keys where route = $1", &[&route]).await.unwrap();
        let ids: Vec<&[u8]> = rows.iter().map(|row| row.get("id")).collect();
        let sql = "select i.id, s.nodeport from unnest($1::bytea[]) as i(id)
                     join citus_shards as s
                       on s.shardid = get_shard_id_for_distribution_column('oncegate.keys', i.id)";
        let places = client.query(sql, &[&ids]).await.unwrap();
        let ports: BTreeMap<&[u8], i32> = places.iter().map(|row| (row.get("id"), row.get("nodeport"))).collect();
        let node = |id: &[u8]| {
            let place = self.servers.iter().position(|server| i32::from(server.port()) == ports[id]);
            CitusNode::ALL[place.expect("a node has the shard")]
        };
        let key = |row: &tokio_postgres::Row| String::from_utf8(row.get("key")).unwrap();
        rows.iter().map(|row| (key(row), node(row.get("id")))).collect()
    }

    /// Begins to look for prepared transactions.
    pub fn watch_prepared(&self) -> PreparedWatch {
        let databases = self.servers.iter().map(|server| server.same(&self.database)).collect();
        let seen = Arc::default();
        PreparedWatch { task: tokio::spawn(look(databases, Arc::clone(&seen))), seen }
    }
}

/// The prepared transactions of each node, as they are seen several times a second.
pub struct PreparedWatch {
    seen: Arc<std::sync::Mutex<[SeenPrepared; 3]>>,
    task: JoinHandle<()>,
}

/// The observations of one node.
#[derive(Default)]
struct SeenPrepared {
    /// The times at which each transaction was seen first and last, by its name.
    times: BTreeMap<String, (Instant, Instant)>,
    /// The time of the last look that found none.
    none: Option<Instant>,
}

impl PreparedWatch {
    /// Waits until no node has any, and returns the number that was left behind on each.
    pub async fn wait_for_none(self) -> [usize; 3] {
        let begun = Instant::now();
        let is_over = |seen: &SeenPrepared| seen.none.is_some_and(|none| none > begun);
        while !self.seen.lock().unwrap().iter().all(is_over) {
            assert!(begun.elapsed() < RECOVERY_MAX, "a prepared transaction is not recovered within {RECOVERY_MAX:?}");
            sleep(Duration::from_millis(100)).await;
        }
        self.task.abort();
        let was_left = |(first, last): &&(Instant, Instant)| *last - *first > PREPARED_MAX;
        let seen = self.seen.lock().unwrap();
        std::array::from_fn(|node| seen[node].times.values().filter(was_left).count())
    }
}

async fn look(databases: Vec<TestDatabase>, seen: Arc<std::sync::Mutex<[SeenPrepared; 3]>>) {
    loop {
        for (node, database) in databases.iter().enumerate() {
            // A node that is away has to say it once it is back.
            let Ok(Some(there)) = timeout(Duration::from_secs(1), prepared(database)).await else { continue };
            let (now, mut seen) = (Instant::now(), seen.lock().unwrap());
            seen[node].none = there.is_empty().then_some(now);
            for name in there {
                seen[node].times.entry(name).or_insert((now, now)).1 = now;
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// The names of a node's prepared transactions; `None` if it does not answer.
async fn prepared(database: &TestDatabase) -> Option<BTreeSet<String>> {
    let (client, connection) = tokio_postgres::connect(&database.url, NoTls).await.ok()?;
    tokio::spawn(connection);
    let rows = client.query("select gid from pg_prepared_xacts", &[]).await.ok()?;
    Some(rows.iter().map(|row| row.get(0)).collect())
}
