//! Assembles an instance and starts its background tasks, as `run` does and the simulation in `tests/simulation`.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::StartError;
use oncegate_cache::Cache;
use oncegate_cache::shared::{SharedCache, SharedCacheTask};
use oncegate_domain::ids::InstanceId;
use oncegate_engine::gate::Gate;
use oncegate_engine::instance::boot_time::BootInstant;
use oncegate_engine::instance::event_routes;
use oncegate_engine::instance::instance_salt::InstanceSalts;
use oncegate_engine::instance::key_limits::NewKeyLimits;
use oncegate_engine::instance::last_seen::LastSeenRecords;
use oncegate_engine::instance::latency::RouteLatencies;
use oncegate_engine::instance::lease::InstanceLease;
use oncegate_engine::instance::live_keys::LiveKeyLimits;
use oncegate_engine::instance::metrics::Metrics;
use oncegate_engine::instance::observability::Observability;
use oncegate_engine::instance::recent_parts::RecentParts;
use oncegate_engine::instance::reload_state::ReloadState;
use oncegate_engine::instance::store_clock::{ClockReading, StoreClock};
use oncegate_engine::instance::token_verifier::TokenVerifiers;
use oncegate_engine::instance::{self, Instance};
use oncegate_engine::tasks;
use oncegate_engine::tasks::deferred_reports::DeferredReports;
use oncegate_engine::tasks::deliverer::Deliverer;
use oncegate_engine::tasks::gone_routes::GoneRoutes;
use oncegate_engine::tasks::heartbeat::Heartbeat;
use oncegate_engine::tasks::orphans::OrphanedAttempts;
use oncegate_engine::tasks::reaper::Reaper;
use oncegate_engine::tasks::reconciler::Reconciler;
use oncegate_engine::tasks::sweeper::Sweeper;
use oncegate_engine::tasks::weekly_counts::WeeklyCounter;
use oncegate_http::body::body_budget::BodyBudget;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_machine::fill_random;
use oncegate_settings::{Config, StartConfig, StoreLocation};
use oncegate_store::{LeaseRenewal, Store, salts};
use oncegate_telemetry::traces::{self, SpanReceiver};

/// An instance, and what is still to be started for it.
pub struct Assembly {
    /// The instance.
    pub instance: Arc<Instance>,
    /// The spans of its requests; `None` where no collector is configured.
    pub spans: Option<SpanReceiver>,
}

/// Assembles an instance on a store that it has not [joined](join) yet: it has a provisional salt and no lease.
pub fn assemble(
    config: &Arc<StartConfig>,
    live: &Config,
    store: Arc<Store>,
    upstream_slots: UpstreamSlots,
) -> Result<Assembly, StartError> {
    let (mut random, mut provisional) = ([0; 8], [0; 32]);
    fill_random(&mut random).map_err(|error| StartError::Machine(error.into()))?;
    fill_random(&mut provisional).map_err(|error| StartError::Machine(error.into()))?;
    let instance_lease = InstanceLease::new(
        InstanceId::from_random(u64::from_ne_bytes(random)),
        config.store.lease.heartbeat,
        config.store.lease.expiry,
    );
    let metrics = Metrics::new(store.metrics(), &config.service);
    let collector = config.telemetry.otlp.as_ref();
    let (tracer, spans) = collector.map(|to| traces::span_queue(&metrics.spans, to.sampler)).unzip();
    let database = if matches!(config.store.url, StoreLocation::Postgres(_)) { "postgresql" } else { "sqlite" };
    let now = BootInstant::now();
    // This machine's clock, until the store's is known.
    let reading = ClockReading { started: now, ended: now, store_time: SystemTime::now() };
    let instance = Arc::new(Instance {
        salts: InstanceSalts::provisional(provisional),
        joined: CancellationToken::new(),
        instance_lease,
        store_clock: Arc::new(StoreClock::new(instance::clock_limits(&config.store, &live.routes), &reading)),
        delivery_due: Notify::new(),
        unsent_deliveries: Default::default(),
        delivered: Default::default(),
        in_flight: Arc::default(),
        wait_groups: Arc::default(),
        cache: Cache::new(config.cache.memory),
        last_seen: LastSeenRecords::default(),
        recent_parts: RecentParts::default(),
        shared_cache: OnceLock::new(),
        key_limits: NewKeyLimits::default(),
        live_keys: LiveKeyLimits::default(),
        replay_permissions: Arc::default(),
        token_verifiers: TokenVerifiers::default(),
        upstream_slots,
        bodies: BodyBudget::new(config.limits.held_bodies),
        response_bodies: BodyBudget::new(config.limits.held_bodies),
        tracker: TaskTracker::new(),
        draining: CancellationToken::new(),
        drain_expired: CancellationToken::new(),
        salt_replaced: CancellationToken::new(),
        is_salt_doubtful: AtomicBool::new(false),
        latencies: RouteLatencies::default(),
        config: Arc::clone(config),
        store,
        observability: Arc::new(Observability::new(metrics, tracer, database)),
        reload_state: ReloadState::default(),
        bypassed: AtomicU64::new(0),
    });
    Ok(Assembly { instance, spans })
}

/// Joins an instance to its store: finds the salt, takes the lease, and reads the store's clock. Returns the task of
/// the shared cache, if there is one, and what `last` returns, which is called once nothing else can fail any more. Can
/// be called again after an error. `live` is the configuration as of the last reload.
///
/// # Errors
/// [`StartError::Salt`], [`StartError::Events`], [`StartError::Lease`], and those of `last`.
pub async fn join<T>(
    instance: &Instance,
    live: &Config,
    last: impl AsyncFnOnce() -> Result<T, StartError>,
) -> Result<(Option<SharedCacheTask>, T), StartError> {
    let Instance { config, store, instance_lease, store_clock, observability, .. } = instance;
    let mut found = Vec::new();
    for service in live.service_names() {
        let salt = salts::open(store, service, &live.secrets, None).await.map_err(StartError::Salt)?;
        found.push((service, salt));
    }
    // Before the first attempt: its settlement must have its events.
    event_routes::store_routes(store, &[live]).await.map_err(StartError::Events)?;
    let begun = BootInstant::now();
    let (services, expiry) = (live.joined_service_names(), config.store.lease.expiry);
    let renewal =
        LeaseRenewal { instance: instance_lease.id(), services, expiry, purges_seen: None, hold_ttls_until: None };
    let renewed = store.renew_lease(renewal).await.map_err(StartError::Lease)?;
    instance.cache.observe_purge_count(renewed.purges);
    store_clock.restart(&ClockReading { started: begun, ended: BootInstant::now(), store_time: renewed.now });
    store_clock.note_stored_hold(renewed.ttls_held_until);
    let last = last().await?;
    let shared_cache_task = live.redis.clone().filter(|_| config.cache.is_shared).map(|server| {
        let metrics = observability.metrics.shared_cache.clone();
        let secrets = live.secrets.clone();
        // The instances of one file share their entries: the first service's salt stands for all.
        let (service, salt) = &found[0];
        let (cache, task) = SharedCache::new(server, service, salt, secrets, &live.trust, metrics);
        instance.shared_cache.get_or_init(|| cache);
        task
    });
    // The lease first: a request with the store's salt is guarded at once. One with the provisional salt never uses the
    // lease.
    instance_lease.record_renewal(begun);
    for (service, salt) in found {
        instance.salts.of(service).set_stored(salt);
    }
    instance.joined.cancel();
    Ok((shared_cache_task, last))
}

/// Starts the background tasks of an instance that has joined its store. `stop` ends them, but for the heartbeat, which
/// runs until `stop_last`.
pub fn start_tasks(
    instance: &Arc<Instance>,
    live: &watch::Receiver<Arc<Config>>,
    stop: &CancellationToken,
    stop_last: &CancellationToken,
    background: &TaskTracker,
) {
    let store = &instance.config.store;
    background.spawn(tasks::run(
        Heartbeat::new(Arc::clone(instance), live.clone()),
        store.lease.heartbeat,
        stop_last.clone(),
    ));
    background.spawn(tasks::run(Sweeper(Arc::clone(instance)), store.sweep_every, stop.clone()));
    background.spawn(tasks::run(DeferredReports(Arc::clone(instance)), store.sweep_every, stop.clone()));
    background.spawn(tasks::run(OrphanedAttempts::new(Arc::clone(instance)), store.sweep_every, stop.clone()));
    background.spawn(tasks::run(Reaper(Arc::clone(instance)), store.reap_every, stop.clone()));
    background.spawn(tasks::run(WeeklyCounter::new(Arc::clone(instance)), tasks::weekly_counts::PERIOD, stop.clone()));
    let reconciler = Reconciler::new(Arc::clone(instance), live.clone());
    let first = reconciler.period();
    background.spawn(tasks::run(reconciler, first, stop.clone()));
    let (gone_routes, reap_every, stop_gone) =
        (GoneRoutes::new(Arc::clone(instance), live.clone()), store.reap_every, stop.clone());
    background.spawn(async move {
        if let Err(error) = gone_routes.warn().await {
            tracing::warn!(%error, "the keys of routes that are not configured could not be counted");
        }
        tasks::run(gone_routes, reap_every, stop_gone).await;
    });
    let gate = Arc::new(Gate::new(Arc::clone(instance), Arc::clone(&live.borrow())));
    background.spawn(reload_gate(live.clone(), Arc::clone(&gate)));
    // Tracked with the attempts: a drain waits for the deliveries that it has begun.
    let deliverer = Deliverer::new(Arc::clone(instance), gate, live.clone());
    instance.tracker.spawn(deliverer.run(stop.clone()));
}

/// Passes each new configuration to one worker's gate.
pub(super) async fn reload_gate(mut live: watch::Receiver<Arc<Config>>, gate: Arc<Gate>) {
    while live.changed().await.is_ok() {
        let config = Arc::clone(&live.borrow_and_update());
        gate.reload(config);
    }
}
