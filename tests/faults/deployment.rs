//! The proxies, the store that they share, and the network links between, each of which can fail.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::checker::Policy;
use crate::history::{Attempt, TargetRoute};
use crate::vendor_orders;
use harness::citus::CitusCluster;
use harness::operator::Operator;
use harness::patroni::{PatroniCluster, Replication, STEP_MAX};
use harness::postgres::{Cluster, TestDatabase};
use harness::rabbitmq::{self, Queue};
use harness::relay::Relay;
use harness::{Proxy, Setup, Store, eventually};

/// The lease of `Setup::short_leases`.
pub const LEASE: Duration = Duration::from_secs(1);
pub const SWEEP: Duration = Duration::from_millis(200);
/// The store's `timeout`.
pub const STORE_TIMEOUT: Duration = Duration::from_millis(500);
/// The time limit of an attempt.
pub const UPSTREAM_TIMEOUT: Duration = Duration::from_millis(2_500);
/// The time that an unused connection to the service is kept.
pub const UPSTREAM_IDLE: Duration = Duration::from_millis(500);

/// The store's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Sqlite,
    /// A database of the cluster that all tests share.
    Postgres,
    /// A cluster of the run's own, with few connections available.
    OwnPostgres,
    /// Three servers under Patroni with synchronous replication. The last proxy is behind HAProxy; the others have all
    /// hosts in their URLs.
    Patroni,
    /// A coordinator and two workers, which share the keys.
    Citus,
}

impl StoreKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres | Self::OwnPostgres => "PostgreSQL",
            Self::Patroni => "Patroni",
            Self::Citus => "Citus",
        }
    }
}

pub struct Deployment {
    pub slots: Vec<ProxySlot>,
    /// Each proxy's current address.
    pub addresses: Arc<RwLock<Vec<SocketAddr>>>,
    /// The PostgreSQL cluster, if the run has its own.
    pub cluster: Option<Mutex<Cluster>>,
    /// The cluster under Patroni, if the run has one.
    pub patroni: Option<Mutex<PatroniCluster>>,
    /// The Citus cluster, if the run has one.
    pub citus: Option<Mutex<CitusCluster>>,
    pub store: Store,
    /// The attempts that killed proxies had logged as unknown.
    unknown: Mutex<UnknownAttempts>,
}

/// A proxy's place in the deployment: when the proxy dies, the next one takes it.
pub struct ProxySlot {
    setup: Setup,
    pub proxy: Mutex<Proxy>,
    /// The links to the store: one for each of its hosts.
    pub to_store: Mutex<Vec<Relay>>,
    pub to_service: Mutex<Relay>,
}

impl Deployment {
    pub async fn start(
        on: StoreKind,
        proxies: usize,
        policy: Policy,
        routes: &[TargetRoute],
        queue: Option<&MessageQueue>,
        vendor: Option<SocketAddr>,
        service: SocketAddr,
    ) -> Self {
        let cluster =
            (on == StoreKind::OwnPostgres).then(|| block_in_place(|| Cluster::start("-c max_connections=48")));
        let (mut patroni, mut citus) = (None, None);
        let (store, all_hosts) = match (on, &cluster) {
            (StoreKind::Sqlite, _) => (Store::sqlite(), None),
            (StoreKind::Patroni, _) => {
                let cluster = patroni.insert(PatroniCluster::start(Replication::Synchronous).await);
                let [all_hosts, url] = cluster.create_database().await;
                (Store::Postgres(TestDatabase { url, name: "oncegate".to_owned() }), Some(all_hosts))
            }
            (StoreKind::Citus, _) => {
                let cluster = citus.insert(CitusCluster::start().await);
                let TestDatabase { url, name } = &cluster.database;
                (Store::Postgres(TestDatabase { url: url.clone(), name: name.clone() }), None)
            }
            (_, Some(cluster)) => (Store::Postgres(cluster.empty_database().await), None),
            (_, None) => (Store::postgres().await, None),
        };
        let mut slots = Vec::new();
        for number in 0..proxies {
            let url = all_hosts.clone().filter(|_| number + 1 < proxies).unwrap_or_else(|| store.url());
            slots.push(ProxySlot::take(&url, on, policy, routes, queue, vendor, service).await);
        }
        let mut addresses = Vec::new();
        for slot in &slots {
            addresses.push(slot.proxy.lock().await.listen);
        }
        let addresses = Arc::new(RwLock::new(addresses));
        let (cluster, patroni, citus) = (cluster.map(Mutex::new), patroni.map(Mutex::new), citus.map(Mutex::new));
        Self { slots, addresses, cluster, patroni, citus, store, unknown: Mutex::default() }
    }

    /// Kills a proxy as a power cut does, and starts the next one as soon as the store accepts it.
    pub async fn kill(&self, slot: usize) {
        let mut proxy = self.slots[slot].proxy.lock().await;
        proxy.kill9().await;
        self.follow(slot, &mut proxy).await;
    }

    /// Has a proxy hand over. Where its successor misses the store, the next one is started as after a kill.
    pub async fn hand_over(&self, slot: usize) {
        let mut proxy = self.slots[slot].proxy.lock().await;
        proxy.hand_over().await;
        if !proxy.is_alive() {
            assert_eq!(proxy.ended().await, Some(69), "only its store can keep a successor from starting");
            self.follow(slot, &mut proxy).await;
        }
    }

    /// Starts the proxy that follows one that has ended.
    async fn follow(&self, slot: usize, proxy: &mut Proxy) {
        self.unknown.lock().await.add(proxy);
        *proxy = loop {
            match self.slots[slot].setup.try_start().await {
                Ok(next) => break next,
                Err(code) => assert_eq!(code, Some(69), "only its store can keep it from starting"),
            }
            sleep(Duration::from_millis(50)).await;
        };
        self.addresses.write().unwrap()[slot] = proxy.listen;
    }

    /// Waits until a store of several servers is whole again, and every proxy is ready.
    pub async fn wait_until_whole(&self) {
        let Some(patroni) = &self.patroni else { return };
        patroni.lock().await.wait_until_whole(Replication::Synchronous).await;
        for slot in &self.slots {
            let proxy = slot.proxy.lock().await;
            eventually(STEP_MAX, async || (proxy.readyz().await.0 == 200).then_some(())).await;
        }
    }

    /// The keys with an unknown outcome.
    pub async fn unknown_keys(&self) -> BTreeSet<String> {
        let operator = Operator::of(&*self.slots[0].proxy.lock().await).of_service("default");
        let (mut keys, mut cursor) = (BTreeSet::new(), Some(String::new()));
        while let Some(from) = cursor {
            let path = format!("/api/v1/keys?state=unknown&limit=1000&cursor={from}");
            // The store may just have come back.
            let answered = async || Some(operator.get(&path).await).filter(|(status, _)| *status == 200);
            let (_, page) = eventually(STEP_MAX, answered).await;
            keys.extend(page["keys"].as_array().unwrap().iter().map(|key| key["key"].as_str().unwrap().to_owned()));
            cursor = page["next_cursor"].as_str().map(str::to_owned);
        }
        keys
    }

    /// Drains every proxy, and returns the attempts that the proxies logged as unknown.
    pub async fn close(&self) -> UnknownAttempts {
        let mut unknown = self.unknown.lock().await.clone();
        for slot in &self.slots {
            let proxy = slot.proxy.lock().await;
            assert_eq!(proxy.stop().await, Some(0), "a proxy that has been through all that ends as it should");
            unknown.add(&proxy);
        }
        unknown
    }

    /// The number of connections that faults of the links have struck, as [`Relay::connections_struck`] counts them.
    pub async fn connections_struck(&self) -> usize {
        let mut struck = 0;
        for slot in &self.slots {
            struck += slot.to_service.lock().await.connections_struck();
            struck += slot.to_store.lock().await.iter().map(Relay::connections_struck).sum::<usize>();
        }
        struck
    }
}

impl ProxySlot {
    async fn take(
        store_url: &str,
        on: StoreKind,
        policy: Policy,
        routes: &[TargetRoute],
        queue: Option<&MessageQueue>,
        vendor: Option<SocketAddr>,
        service: SocketAddr,
    ) -> Self {
        let to_service = Relay::to(service).await;
        let (mut url, mut to_store) = (store_url.to_owned(), Vec::new());
        // Only a server has hosts.
        let hosts = store_url.split_once('@').map_or("", |(_, place)| place.split('/').next().unwrap());
        for host in hosts.split(',').filter(|host| !host.is_empty()) {
            let relay = Relay::to(host.parse().unwrap()).await;
            url = url.replace(host, &relay.address.to_string());
            to_store.push(relay);
        }
        let on_unknown = match policy {
            Policy::Hold => "on_unknown = \"hold\"",
            Policy::Retry => "on_unknown = \"retry\"",
            Policy::RetryWhenQuiet(_) => "on_unknown = \"retry-when-quiet\"\nreconcile = { after = \"200ms\" }",
        };
        let setup = Proxy::on(&url)
            .upstream(to_service.address)
            .short_leases()
            .store(&format!("timeout = \"{}ms\"", STORE_TIMEOUT.as_millis()))
            // Nothing is past its TTL: whatever the reaper takes is lost.
            .store("reap_every = \"500ms\"")
            .defaults(&format!("upstream_timeout = \"{}ms\"", UPSTREAM_TIMEOUT.as_millis()))
            .defaults(&format!("stream_idle_timeout = \"{}ms\"", UPSTREAM_TIMEOUT.as_millis()))
            .defaults(&format!("upstream_idle_timeout = \"{}ms\"", UPSTREAM_IDLE.as_millis()))
            .defaults("in_flight = \"wait\"\nwait_timeout = \"300ms\"")
            .defaults(on_unknown);
        let of_messages = queue.map(|_| TargetRoute::Messages);
        let routes: BTreeSet<_> = routes.iter().copied().chain(of_messages).collect();
        let names: Vec<_> = routes.iter().map(|target| &target.path()[1..]).collect();
        // On the same ways as the requests, with their faults.
        let url = format!("http://{}/events", to_service.address);
        let events = format!("name = \"bus\"\nroutes = {names:?}\nurl = {url:?}");
        let setup = routes.iter().fold(setup.top(SECRET), |setup, target| setup.route(&route_lines(*target)));
        let setup = match vendor {
            Some(vendor) => setup.service(&vendor_orders::service_lines(vendor)).route(vendor_orders::ROUTE_LINES),
            None => setup,
        };
        let setup = match routes.contains(&TargetRoute::Refreshed) {
            true => setup.store("encrypt = true"),
            false => setup,
        };
        // A cluster distributes its keys, and can then have no events.
        let setup = match on {
            StoreKind::Citus => setup.store("distribute = true\nmax_connections = 24"),
            _ => setup.events(&events),
        };
        let setup = queue.map(MessageQueue::consumer_lines).iter().fold(setup, |setup, lines| setup.consumer(lines));
        let proxy = Mutex::new(setup.start().await);
        Self { setup, proxy, to_store: Mutex::new(to_store), to_service: Mutex::new(to_service) }
    }
}

/// The secret that asynchronous routes need.
const SECRET: &str = "secret = \"a secret of some length\"";

/// The scope of messages, in the same words for the route and for its consumer: so requests
/// find the outcomes of messages.
const SCOPE_OF_MESSAGES: &str = "scope = [\"header:x-tenant\"]";

/// A queue whose messages every proxy consumes.
pub struct MessageQueue {
    broker_url: String,
    pub queue: Arc<Queue>,
}

impl MessageQueue {
    /// `None` where RabbitMQ is not installed.
    pub async fn create() -> Option<Self> {
        let broker = rabbitmq::shared().await?;
        Some(Self { broker_url: broker.url(), queue: Arc::new(broker.queue().await) })
    }

    fn consumer_lines(&self) -> String {
        let Self { broker_url, queue } = self;
        let queue = &queue.name;
        format!(
            "amqp = \"{broker_url}\"\nqueue = \"{queue}\"\nroute = \"messages\"\nprefetch = 16\n{SCOPE_OF_MESSAGES}"
        )
    }
}

/// The lines of a route's configuration.
fn route_lines(target: TargetRoute) -> String {
    let delivery = match target {
        TargetRoute::Pay | TargetRoute::Messages | TargetRoute::Placed | TargetRoute::Refreshed => "sync",
        TargetRoute::Later | TargetRoute::Batched => "async",
        TargetRoute::Preferred => "prefer",
    };
    // Nothing is given up: whatever was accepted is delivered, or its outcome is unknown.
    let retry = match delivery {
        "sync" => "",
        _ => "retry = { max_attempts = 10000, base = \"100ms\", cap = \"500ms\", give_up_after = \"24h\" }",
    };
    let (path, name) = (target.path(), &target.path()[1..]);
    let more = match target {
        TargetRoute::Messages => SCOPE_OF_MESSAGES,
        // The number of the operation is another one in each retry.
        TargetRoute::Batched => {
            "split = \"json:/*\"\nkey = { from = \"json:/0/key\" }\nfingerprint = { exclude = [\"json:/*/op\"] }"
        }
        TargetRoute::Placed => {
            "key = { from = \"json:/key\" }\nscope = [\"json:/caller\"]\nfingerprint = { exclude = [\"json:/op\"] }"
        }
        // The rules of these runs do not let the service see a token again: not the preset's time, and not its
        // `on_unknown`.
        TargetRoute::Refreshed => "kind = \"token\"\nttl = \"24h\"\non_unknown = \"hold\"",
        TargetRoute::Pay | TargetRoute::Later | TargetRoute::Preferred => "",
    };
    format!("name = \"{name}\"\npath = \"{path}\"\nmethods = [\"POST\"]\ndelivery = \"{delivery}\"\n{retry}\n{more}")
}

/// The attempts that proxies have logged as unknown.
#[derive(Clone, Default)]
pub struct UnknownAttempts {
    pub all: Vec<Attempt>,
    /// Those that were logged by the proxy that ran them.
    pub own: Vec<Attempt>,
}

impl UnknownAttempts {
    fn add(&mut self, proxy: &Proxy) {
        for line in proxy.logged() {
            let Some((attempt, message)) = unknown_attempt(&line) else { continue };
            // The other message is about a lease that has run out, which another proxy may have had.
            if ["the outcome is unknown", "the service's response leaves the outcome unknown"].contains(&message) {
                self.own.push(attempt.clone());
            }
            self.all.push(attempt);
        }
    }
}

fn unknown_attempt(line: &Value) -> Option<(Attempt, &str)> {
    let message = line["message"].as_str()?;
    let is_unknown = ["outcome is unknown", "leaves the outcome unknown"].iter().any(|words| message.contains(words));
    let attempt = || Some(Attempt { record: line["record"].as_str()?.to_owned(), number: line["attempt"].as_u64()? });
    Some((is_unknown.then(attempt).flatten()?, message))
}
