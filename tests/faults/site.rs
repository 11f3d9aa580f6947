//! The proxies, the store that they share, and the wires between, each of which can break.

use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::checker::Policy;
use crate::harness::postgres::Cluster;
use crate::harness::relay::Relay;
use crate::harness::{Proxy, Setup, Store};
use crate::history::Attempt;

/// As `Setup::short_leases` has it.
pub const LEASE: Duration = Duration::from_secs(1);
pub const SWEEP: Duration = Duration::from_millis(200);
/// The store's `timeout`.
pub const STORE_TIMEOUT: Duration = Duration::from_millis(500);
/// The longest that an attempt may run.
pub const UPSTREAM_TIMEOUT: Duration = Duration::from_millis(2_500);
/// How long an unused connection to the service is kept.
pub const UPSTREAM_IDLE: Duration = Duration::from_millis(500);

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Sqlite,
    /// A database of the cluster that all tests share.
    Postgres,
    /// A cluster of one's own, with few connections to have.
    OwnPostgres,
}

pub struct Site {
    pub seats: Vec<Seat>,
    /// Where each proxy listens at the moment.
    pub addresses: Arc<RwLock<Vec<SocketAddr>>>,
    /// Where the store is a server of our own.
    pub cluster: Option<Mutex<Cluster>>,
    pub store: Store,
    /// What ended proxies have logged.
    said: Mutex<Vec<Value>>,
}

/// A proxy's place: when it dies, the next one takes it.
pub struct Seat {
    setup: Setup,
    pub proxy: Mutex<Proxy>,
    pub to_store: Option<Mutex<Relay>>,
    pub to_service: Mutex<Relay>,
}

impl Site {
    pub async fn start(on: On, proxies: usize, policy: Policy, service: SocketAddr) -> Self {
        let cluster = (on == On::OwnPostgres).then(|| block_in_place(|| Cluster::start("-c max_connections=48")));
        let store = match (on, &cluster) {
            (On::Sqlite, _) => Store::sqlite(),
            (_, Some(cluster)) => Store::Postgres(cluster.empty_database().await),
            (_, None) => Store::postgres().await,
        };
        let mut seats = Vec::new();
        for _ in 0..proxies {
            seats.push(Seat::take(&store, policy, service).await);
        }
        let mut addresses = Vec::new();
        for seat in &seats {
            addresses.push(seat.proxy.lock().await.listen);
        }
        let (addresses, cluster) = (Arc::new(RwLock::new(addresses)), cluster.map(Mutex::new));
        Self { seats, addresses, cluster, store, said: Mutex::default() }
    }

    /// Ends a proxy as a power cut does, and starts the next one as soon as its store lets it.
    pub async fn kill(&self, seat: usize) {
        let mut proxy = self.seats[seat].proxy.lock().await;
        proxy.kill9().await;
        self.said.lock().await.extend(proxy.logged());
        *proxy = loop {
            match self.seats[seat].setup.try_start().await {
                Ok(next) => break next,
                Err(code) => assert_eq!(code, Some(69), "only its store can keep it from starting"),
            }
            sleep(Duration::from_millis(50)).await;
        };
        self.addresses.write().unwrap()[seat] = proxy.listen;
    }

    /// Drains every proxy, and tells of which attempts they have said that nobody knows how they ended.
    pub async fn close(&self) -> Vec<Attempt> {
        let mut said = self.said.lock().await.clone();
        for seat in &self.seats {
            let proxy = seat.proxy.lock().await;
            assert_eq!(proxy.stop().await, Some(0), "a proxy that has been through all that ends as it should");
            said.extend(proxy.logged());
        }
        said.iter().filter_map(unknown).collect()
    }
}

impl Seat {
    async fn take(store: &Store, policy: Policy, service: SocketAddr) -> Self {
        let to_service = Relay::to(service).await;
        let (url, to_store) = match store {
            Store::Sqlite(_) => (store.url(), None),
            Store::Postgres(database) => {
                let place = database.url.split(['@', '/']).nth(3).unwrap();
                let relay = Relay::to(place.parse().unwrap()).await;
                (database.url.replace(place, &relay.address.to_string()), Some(Mutex::new(relay)))
            }
        };
        let on_unknown = match policy {
            Policy::Hold => "on_unknown = \"hold\"",
            Policy::Retry => "on_unknown = \"retry\"",
            Policy::RetryWhenQuiet(_) => "on_unknown = \"retry-when-quiet\"\nreconcile = { after = \"200ms\" }",
        };
        let setup = Proxy::on(&url)
            .upstream(to_service.address)
            .short_leases()
            .store(&format!("timeout = \"{}ms\"", STORE_TIMEOUT.as_millis()))
            .defaults(&format!("upstream_timeout = \"{}ms\"", UPSTREAM_TIMEOUT.as_millis()))
            .defaults(&format!("upstream_idle_timeout = \"{}ms\"", UPSTREAM_IDLE.as_millis()))
            .defaults("in_flight = \"wait\"\nwait_timeout = \"300ms\"")
            .defaults(on_unknown);
        let proxy = Mutex::new(setup.start().await);
        Self { setup, proxy, to_store, to_service: Mutex::new(to_service) }
    }
}

/// The attempt of which a line says that nobody knows how it ended.
fn unknown(line: &Value) -> Option<Attempt> {
    let message = line["message"].as_str()?;
    let says_so = ["outcome is unknown", "leaves the outcome unknown"].iter().any(|words| message.contains(words));
    let attempt = || Some(Attempt { record: line["record"].as_str()?.to_owned(), number: line["attempt"].as_u64()? });
    says_so.then(attempt).flatten()
}
