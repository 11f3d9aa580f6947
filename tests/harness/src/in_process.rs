//! A proxy within the test's process: its listener, its gate and its store, without background tasks.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use framing_guard::FramingTimeouts;
use oncegate_cache::Cache;
use oncegate_config::{self as config, Overrides};
use oncegate_domain::ids::InstanceId;
use oncegate_engine::gate::Gate;
use oncegate_engine::instance::boot_time::BootInstant;
use oncegate_engine::instance::instance_salt::InstanceSalts;
use oncegate_engine::instance::lease::InstanceLease;
use oncegate_engine::instance::metrics::Metrics;
use oncegate_engine::instance::observability::Observability;
use oncegate_engine::instance::store_clock::{ClockReading, StoreClock};
use oncegate_engine::instance::{Instance, clock_limits};
use oncegate_http::body::body_budget::BodyBudget;
use oncegate_http::downstream;
use oncegate_http::downstream::balancer::ConnectionBalancer;
use oncegate_http::downstream::connection_limits::ConnectionLimits;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_settings::Config;
use oncegate_store::metrics::StoreMetrics;
use oncegate_store::{self as store, salts};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::client::Client;
use super::{Setup, Store};

/// A proxy that serves until it is dropped.
pub struct InProcess {
    pub client: Client,
    _store: Store,
    _closing: DropGuard,
}

impl InProcess {
    pub async fn serve(
        store: Store,
        (instance, config): (Arc<Instance>, Arc<Config>),
        timeouts: FramingTimeouts,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let client = Client { address: listener.local_addr().unwrap() };
        let signals = downstream::DrainSignals::default();
        let closing = signals.closing.clone();
        let inbox = ConnectionBalancer::create_inboxes(1).remove(0);
        let connections = ConnectionLimits::new(10, 0, Default::default());
        let gate = Arc::new(Gate::new(instance, config));
        tokio::spawn(downstream::serve(listener, inbox, gate, connections, timeouts, signals));
        Self { client, _store: store, _closing: closing.drop_guard() }
    }
}

/// The instance of a configuration, and what a reload could replace of that. It holds no lease.
pub async fn instance(
    setup: &Setup,
    upstream_slots: impl FnOnce(usize) -> UpstreamSlots,
) -> (Arc<Instance>, Arc<Config>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("oncegate.toml");
    std::fs::write(&file, setup.text()).unwrap();
    let config = config::load(Some(&file), &Overrides::default(), &config::ProcessEnvironment).unwrap();
    let store = store::open(&(&config).into()).await.unwrap();
    let (start, config) = (config.start, config.live);
    let salt = salts::open(&store, &start.service, &config.secrets, None).await.unwrap();
    let salts_in_use = InstanceSalts::provisional([0; 32]);
    salts_in_use.of(&start.service).set_stored(salt);
    let (started, ended) = (BootInstant::now(), BootInstant::now());
    let reading = ClockReading { started, ended, store_time: SystemTime::now() };
    let metrics = Metrics::new(&StoreMetrics::default(), &start.service);
    let instance = Arc::new(Instance {
        delivery_due: tokio::sync::Notify::new(),
        unsent_deliveries: Default::default(),
        delivered: Default::default(),
        salts: salts_in_use,
        joined: CancellationToken::new(),
        salt_replaced: CancellationToken::new(),
        is_salt_doubtful: AtomicBool::new(false),
        instance_lease: InstanceLease::new(
            InstanceId::from_random(1),
            start.store.lease.heartbeat,
            start.store.lease.expiry,
        ),
        store_clock: Arc::new(StoreClock::new(clock_limits(&start.store, &config.routes), &reading)),
        in_flight: Arc::default(),
        wait_groups: Arc::default(),
        cache: Cache::new(start.cache.memory),
        last_seen: Default::default(),
        recent_parts: Default::default(),
        shared_cache: Default::default(),
        bodies: BodyBudget::new(start.limits.held_bodies),
        response_bodies: BodyBudget::new(start.limits.held_bodies),
        key_limits: Default::default(),
        live_keys: Default::default(),
        replay_permissions: Default::default(),
        token_verifiers: Default::default(),
        upstream_slots: upstream_slots(start.limits.upstream_connections),
        tracker: TaskTracker::new(),
        draining: CancellationToken::new(),
        drain_expired: CancellationToken::new(),
        latencies: Default::default(),
        config: Arc::new(start),
        observability: Arc::new(Observability::new(metrics, None, "sqlite")),
        reload_state: Default::default(),
        bypassed: Default::default(),
        store,
    });
    (instance, Arc::new(config))
}
