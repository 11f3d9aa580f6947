//! First attempts where there is much of something, in turn with an empty store, one route and one instance: many keys,
//! routes, open connections, instances.

use std::net::{SocketAddr, TcpStream};

use store_contract::postgres::{Cluster, TestDatabase};

use crate::process::{Endpoint, Process};
use crate::programs::{other_routes, services, start_uncached_oncegate, this_program};
use crate::report::{BenchmarkReport, Column};
use crate::request::Load;
use crate::testbed::{Testbed, first_process};

const CONNECTIONS: usize = 64;

const KEYS: u64 = 10_000_000;
const ROUTES: usize = 1000;
const SERVICES: usize = 40;
const IDLE: usize = 10_000;
const INSTANCES: usize = 64;

const EMPTY: &str = "first attempts, an empty store";

/// The settings of a server for so many instances, each of which has its own connections.
const SERVER_SETTINGS: &str = "-c max_connections=2000 -c max_wal_size=16GB -c shared_buffers=2GB";

/// Rows as they are after a day: all completed, each by a caller of its own, over the last day.
const FILL: &str = "
insert into oncegate.keys (created_at, reserved_at, deadline, settled_at, expires_at, instance, attempt, status, id, token,
                           state, fingerprint, recipe, service, route, scope, space, key, fields, body)
select moment, moment, moment + 30000, moment + 5, moment + 86400000, 1, 1, 201, sha256('id' || n::text::bytea),
       substr(sha256('token' || n::text::bytea), 1, 16), 'completed', sha256('body' || n::text::bytea), recipe, 'default',
       'guarded', sha256('caller' || n::text::bytea), space, ('key-' || n)::bytea, fields, body
  from generate_series($1::bigint, $2::bigint) as n,
       lateral (select created_at - 86400000 + n * 86400000 / 10000000 as moment, recipe, space, fields, body
                  from oncegate.keys order by id limit 1) as sample";

/// The running programs, and what they share. Fields are dropped in order.
struct Crowds {
    one: Process,
    many_keys: Process,
    many_routes: Process,
    many_services: Process,
    many_connections: Process,
    /// Open until the end.
    _idle: Vec<TcpStream>,
    many: Vec<Process>,
    _databases: Vec<TestDatabase>,
    server: u32,
    _cluster: Cluster,
}

impl Crowds {
    async fn start(testbed: &Testbed) -> Result<Self, String> {
        let cluster = Cluster::start(SERVER_SETTINGS);
        let mut databases = Vec::new();
        for _ in 0..6 {
            databases.push(cluster.empty_database().await);
        }
        let server = first_process(&databases[0]).await;
        let start = |database: usize, others| {
            start_uncached_oncegate(&this_program(), testbed.upstream, &databases[database].url, others)
        };
        let alone = ("", "");
        let (one, many_keys, many_connections) = (start(0, alone)?, start(1, alone)?, start(3, alone)?);
        let (routes, fleet) = (other_routes(ROUTES), services(SERVICES, testbed.upstream));
        let of_last = format!("service = \"s{SERVICES}\"");
        let (many_routes, many_services) = (start(2, (&*routes, ""))?, start(5, (&*fleet, &*of_last))?);
        let many = (0..INSTANCES).map(|_| start(4, alone)).collect::<Result<_, _>>()?;
        testbed.run_load(&many_keys.endpoint(), Load::First, 1, &mut BenchmarkReport::default(), "a sample")?;
        fill(&databases[1]).await;
        let idle = open_idle(many_connections.address)?;
        let (_databases, _idle, _cluster) = (databases, idle, cluster);
        Ok(Self {
            one,
            many_keys,
            many_routes,
            many_services,
            many_connections,
            _idle,
            many,
            _databases,
            server,
            _cluster,
        })
    }

    fn rows(&self) -> [(String, Endpoint); 6] {
        let on = |process: &Process| process.endpoint_on(self.server);
        let many = Endpoint {
            addresses: self.many.iter().map(|process| process.address).collect(),
            pids: self.many.iter().map(|process| process.pid).collect(),
            server: Some(self.server),
        };
        [
            (EMPTY.to_owned(), on(&self.one)),
            (format!("first attempts, {KEYS} keys"), on(&self.many_keys)),
            (format!("first attempts, {ROUTES} routes"), on(&self.many_routes)),
            (format!("first attempts, {SERVICES} services"), on(&self.many_services)),
            (format!("first attempts, {IDLE} idle connections"), on(&self.many_connections)),
            (format!("first attempts, {INSTANCES} instances"), many),
        ]
    }
}

/// Adds the keys, like one that is there, and lets the server's upkeep see them.
async fn fill(database: &TestDatabase) {
    /// The keys of one statement.
    const STEP: u64 = 500_000;
    let client = database.client().await;
    client.batch_execute("set synchronous_commit = off").await.unwrap();
    for first in (1..=KEYS).step_by(STEP as usize) {
        let (from, until) = (first as i64, (first + STEP - 1).min(KEYS) as i64);
        client.execute(FILL, &[&from, &until]).await.unwrap();
        eprintln!("scale: {until} keys");
    }
    // One by one: several in one go are a transaction, in which there is no vacuum.
    for statement in ["vacuum analyze oncegate.keys", "checkpoint"] {
        client.batch_execute(statement).await.unwrap();
    }
}

/// Opens the connections that send nothing.
fn open_idle(address: SocketAddr) -> Result<Vec<TcpStream>, String> {
    (0..IDLE).map(|_| TcpStream::connect(address).map_err(|error| format!("{address}: {error}"))).collect()
}

pub async fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let crowds = Crowds::start(testbed).await?;
    let rows = crowds.rows();
    for round in 0..testbed.options.rounds() {
        eprintln!("scale: round {} of {}", round + 1, testbed.options.rounds());
        for (name, endpoint) in &rows {
            testbed.run_load(endpoint, Load::First, CONNECTIONS, report, name)?;
        }
    }
    for (name, _) in &rows[1..] {
        for column in [Column::Rate, Column::P99, Column::Program, Column::Server] {
            report.compare((name, EMPTY), CONNECTIONS, column, None);
        }
    }
    Ok(())
}
