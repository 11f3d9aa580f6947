//! Stalled bodies. A guarded request is read completely before anything is forwarded; these tests are about streamed
//! ones.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use framing_guard::FramingTimeouts;
use oncegate::body::body_budget::BodyBudget;
use oncegate::cache::Cache;
use oncegate::config::{self, Overrides};
use oncegate::domain::ids::InstanceId;
use oncegate::downstream::balancer::ConnectionBalancer;
use oncegate::downstream::connection_limits::ConnectionLimits;
use oncegate::downstream::{self};
use oncegate::gate::Gate;
use oncegate::instance::boot_time::BootInstant;
use oncegate::instance::lease::InstanceLease;
use oncegate::instance::metrics::Metrics;
use oncegate::instance::observability::Observability;
use oncegate::instance::store_clock::{ClockReading, StoreClock};
use oncegate::instance::{Instance, clock_limits};
use oncegate::store::metrics::StoreMetrics;
use oncegate::store::{self, Breaker, salts};
use oncegate::upstream::connection_slots::UpstreamSlots;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::harness::client::Client;
use crate::harness::h2::H2Upstream;
use crate::harness::wire::Wire;
use crate::harness::{Answer, Exchange, Hold, Proxy, Request, Setup, Store, Upstream};

const SOON: Duration = Duration::from_millis(200);

/// A proxy within this process, with shorter timeouts than any setting allows.
struct Impatient {
    client: Client,
    _store: Store,
    _closing: DropGuard,
}

impl Impatient {
    async fn before(upstream: &str) -> Self {
        let store = Store::sqlite();
        let route = |name: &str, mode: &str| format!("name = \"{name}\"\npath = \"/{name}\"\nmode = \"{mode}\"");
        let setup = Proxy::on(&store.url()).top(&format!("upstream = {upstream:?}"));
        let gate = gate(&setup.route(&route("off", "off")).route(&route("seen", "observe"))).await;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let client = Client { address: listener.local_addr().unwrap() };
        let door = downstream::DrainSignals::default();
        let closing = door.closing.clone();
        let limits = FramingTimeouts { body: SOON, ..FramingTimeouts::default() };
        let inbox = ConnectionBalancer::create_inboxes(1).remove(0);
        let connections = ConnectionLimits::new(10, 0, Default::default());
        tokio::spawn(downstream::serve(listener, inbox, Arc::new(gate), connections, limits, door));
        Self { client, _store: store, _closing: closing.drop_guard() }
    }

    /// Unguarded requests; the last is observed.
    fn requests(&self) -> [Request; 4] {
        let client = self.client;
        [
            client.post("/upload").body("all of it"),
            client.post("/upload").body("all of it").chunked(),
            client.post("/off").key("k-1").body("all of it"),
            client.post("/seen").key("k-1").body("all of it"),
        ]
    }

    /// Sends all but the last bytes of a request.
    async fn stall(&self, request: &Request) -> Exchange {
        let bytes = request.bytes();
        self.client.raw(&bytes[..bytes.len() - 7]).await
    }
}

async fn gate(setup: &Setup) -> Gate {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("oncegate.toml");
    std::fs::write(&file, setup.text()).unwrap();
    let config = config::load(Some(&file), &Overrides::default(), &config::ProcessEnvironment).unwrap();
    let store = Breaker::new(store::open(&(&config.store).into()).await.unwrap());
    let salt = salts::open(&*store, &config.service, &config.secrets, None).await.unwrap();
    let (started, ended) = (BootInstant::now(), BootInstant::now());
    let reading = ClockReading { started, ended, store_time: SystemTime::now() };
    Gate::new(Arc::new(Instance {
        delivery_due: tokio::sync::Notify::new(),
        unsent_deliveries: Default::default(),
        salt,
        salt_replaced: CancellationToken::new(),
        is_salt_doubtful: AtomicBool::new(false),
        instance_lease: InstanceLease::new(InstanceId::from_random(1), config.store.heartbeat, config.store.expiry),
        store_clock: Arc::new(StoreClock::new(clock_limits(&config.store, &config.routes), &reading)),
        in_flight: Arc::default(),
        wait_groups: Arc::default(),
        cache: Cache::new(config.cache_memory),
        shared_cache: None,
        bodies: BodyBudget::new(config.limits.held_bodies),
        response_bodies: BodyBudget::new(config.limits.held_bodies),
        key_limits: Default::default(),
        live_keys: Default::default(),
        replay_permissions: Default::default(),
        token_verifiers: Default::default(),
        upstream_slots: UpstreamSlots::new(config.limits.upstream_connections),
        tracker: TaskTracker::new(),
        draining: CancellationToken::new(),
        drain_expired: CancellationToken::new(),
        latencies: Default::default(),
        config: Arc::new(config),
        breaker: store.clone(),
        observability: Arc::new(Observability::new(Metrics::new(&StoreMetrics::default()), None)),
        reload_state: Default::default(),
        bypassed: Default::default(),
        store,
    }))
}

#[tokio::test]
async fn a_stalled_body_is_refused_and_never_forwarded_as_complete() {
    let upstream = Upstream::start().await;
    let proxy = Impatient::before(&format!("http://{}", upstream.address)).await;
    for (number, request) in proxy.requests().iter().enumerate() {
        let mut exchange = proxy.stall(request).await;
        let refusal = exchange.response().await;
        assert_eq!(refusal.outcome(), (408, "request-timeout".to_owned()));
        assert_eq!(refusal.field("connection"), Some("close"));
        assert_eq!(refusal.oncegate_status(), [None, None, None, Some("observed")][number]);
        exchange.wait_until_closed().await;
        upstream.wait_until(|seen| seen.closed == number + 1).await;
    }
    assert_eq!((upstream.calls(), upstream.executed().len()), (4, 0));
}

#[tokio::test]
async fn a_stalled_body_to_an_http_2_service_is_refused() {
    let upstream = H2Upstream::start().await;
    let proxy = Impatient::before(&format!("h2c://{}", upstream.address)).await;
    for request in proxy.requests() {
        let refusal = proxy.stall(&request).await.response().await;
        assert_eq!(refusal.outcome(), (408, "request-timeout".to_owned()));
    }
    assert!(upstream.seen().is_empty());
}

#[tokio::test]
async fn a_body_that_stalls_after_its_answer_began_closes_the_connection() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let proxy = Impatient::before(&format!("http://{}", listener.local_addr().unwrap())).await;
    let mut exchange = proxy.stall(&proxy.client.post("/both-ways").body("all of it").chunked()).await;
    let mut service = Wire::new(listener.accept().await.unwrap().0);
    service.head().await.unwrap().unwrap();
    service.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n").await.unwrap();
    assert!(exchange.any_head().await.unwrap().start.contains(" 200 "));
    assert_eq!(exchange.piece().await.unwrap().unwrap(), b"first");
    exchange.piece().await.expect_err("an incomplete body is an error");
    let rest = service.rest().await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "a part has been passed for the whole");
}

#[tokio::test]
async fn a_slow_body_and_a_slow_service_are_waited_for() {
    let upstream = Upstream::start().await;
    let proxy = Impatient::before(&format!("http://{}", upstream.address)).await;
    let hold = Hold::new();
    upstream.then(Answer::status(200).hold(&hold));
    let mut exchange = proxy.client.post("/upload").body("12345678").open_head().await;
    for byte in b"12345678" {
        tokio::time::sleep(SOON / 3).await;
        exchange.write(&[*byte]).await;
    }
    upstream.wait_for_executed(1).await;
    tokio::time::sleep(2 * SOON).await;
    hold.release();
    assert_eq!(exchange.response().await.status, 200);
}
