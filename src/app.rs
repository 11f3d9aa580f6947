//! Builds every part, starts it, and stops it in reverse.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{self, Admin};
use crate::cache::Cache;
use crate::config::{Config, Location};
use crate::consumers;
use crate::domain::attempt::InstanceId;
use crate::downstream::{self, deal::Deal, framing::Limits};
use crate::gate::meters::Meters;
use crate::gate::pace::Paces;
use crate::gate::tenure::{Moment, Tenure};
use crate::gate::watch::Watch;
use crate::gate::{Gate, Shared};
use crate::store::{self, Breaker, OpenError, Renewal, Store};
use crate::tasks::{
    self, deliverer::Deliverer, heartbeat::Heartbeat, reaper::Reaper, reconciler::Reconciler, strays::Strays,
    sweeper::Sweeper,
};
use crate::telemetry::traces;
use crate::telemetry::traces::export::{self, Exporter};
use reload::Source;

pub mod reload;
mod rules;
mod terms;

/// Why the program could not start, or had to stop.
#[derive(Debug)]
pub enum Failure {
    /// A listener's address cannot be had.
    Listen(SocketAddr, std::io::Error),
    /// The machine refuses what every program needs.
    Machine(std::io::Error),
    /// The store is not there, or not usable.
    Store(Location, OpenError),
    /// The store is there and did not give a lease.
    Tenure(store::StoreError),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, _) => write!(f, "cannot listen on {address}"),
            Self::Machine(_) => f.write_str("the operating system refuses a thread, a timer or a signal"),
            Self::Store(location, error) => write!(f, "{location}: {error}"),
            Self::Tenure(_) => f.write_str("the store gave no lease"),
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listen(_, source) | Self::Machine(source) => Some(source),
            Self::Store(_, error) => error.source(),
            Self::Tenure(source) => Some(source),
        }
    }
}

/// What stops the parts, in the order in which they are stopped.
#[derive(Clone, Default)]
struct Stops {
    /// Clients are shown out, and then the door closes.
    door: downstream::Door,
    /// The tasks that judge and delete.
    tasks: CancellationToken,
    /// The heartbeat and the admin listener: needed as long as anything runs.
    last: CancellationToken,
}

/// Runs the proxy until it is told to stop, and drains.
///
/// # Errors
/// [`Failure`], before the first request was accepted.
pub async fn run(config: Config, source: Source) -> Result<(), Failure> {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    // First of all: a signal that comes while the parts are being started is not lost.
    let mut signals = Signals::new().map_err(Failure::Machine)?;
    let hangups = reload::hangups().map_err(Failure::Machine)?;
    let config = Arc::new(config);
    let store = store::open(&(&config.store).into())
        .await
        .map_err(|error| Failure::Store(config.store.location.clone(), error))?;
    let breaker = Breaker::around(store);
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| Failure::Machine(error.into()))?;
    let tenure =
        Tenure::new(InstanceId::from_random(u64::from_ne_bytes(random)), config.store.heartbeat, config.store.expiry);
    let begun = Moment::now();
    let (service, expiry) = (Arc::clone(&config.service), config.store.expiry);
    let renewal = Renewal { instance: tenure.id(), service, expiry, purges_seen: None };
    let renewed = breaker.renew(renewal).await.map_err(Failure::Tenure)?;
    let meters = Meters::new(breaker.meters());
    let (tracer, waiting) = config.otlp.as_ref().map(|_| traces::queue(&meters.spans)).unzip();
    let watch = Arc::new(Watch::new(meters, tracer));
    let cache = Cache::new(config.cache_memory);
    cache.purged(renewed.purges);
    tenure.renewed(begun, renewed.now);
    let shared = Arc::new(Shared {
        salt: breaker.salt(),
        tenure,
        due: Notify::new(),
        unsent: Default::default(),
        underway: Arc::default(),
        waiters: Arc::default(),
        cache,
        tracker: TaskTracker::new(),
        draining: CancellationToken::new(),
        giving_up: CancellationToken::new(),
        paces: Paces::default(),
        config: Arc::clone(&config),
        store: breaker.clone(),
        breaker,
        watch,
        bypassed: AtomicU64::new(0),
    });
    if let Err(error) = rules::compare(&*shared.store, &config).await {
        tracing::warn!(%error, "whether routes find their keys as they last did could not be looked up");
    }
    if let Err(error) = terms::leave(&*shared.store, &config).await {
        tracing::warn!(%error, "what the routes keep could not be left for services that complete their keys in SQL");
    }

    let listener = listen(config.listen).await?;
    let admin_listener = listen(config.admin.listen).await?;
    let stops = Stops::default();
    let (taken, live) = watch::channel(Arc::clone(&config));
    let beside = start_tasks(&shared, &live, &stops);
    let leaving = stops.door.leaving.clone();
    let admin = Admin::new(Arc::clone(&shared), live.clone(), leaving.clone());
    beside.spawn(admin::serve(admin_listener.1, admin, stops.last.clone()));
    beside.spawn(terms::follow(Arc::clone(&shared), live.clone(), stops.tasks.clone()));
    beside.spawn(reload::watch(source, hangups, taken, Arc::clone(&shared.watch), stops.tasks.clone()));
    let traces = TaskTracker::new();
    if let (Some(collector), Some(waiting)) = (config.otlp.clone(), waiting) {
        let (trust, service) = (config.trust.clone(), Arc::clone(&config.service));
        let exporter = Exporter { collector, trust, service, instance: shared.tenure.id().to_string() };
        traces.spawn(export::run(exporter, waiting, stops.last.clone()));
    }
    let mut workers = start_workers(listener.1, &shared, &live, &stops.door).map_err(Failure::Machine)?;
    workers.push(start_consumers(&shared, live.clone(), stops.door.closing.clone()).map_err(Failure::Machine)?);
    tracing::info!(
        listen = %listener.0,
        tls = config.tls.is_some(),
        admin = %admin_listener.0,
        upstream = %config.pass.upstream,
        store = %config.store.location,
        instance = %shared.tenure.id(),
        routes = config.routes.len(),
        consumers = config.consumers.len(),
        "ready"
    );

    let by_signal = tokio::select! {
        () = signals.wait() => true,
        () = leaving.cancelled() => false,
    };
    leaving.cancel();
    tracing::info!(by = if by_signal { "a signal" } else { "the admin listener" }, "draining");
    tokio::select! {
        () = drain(&shared, &stops, workers) => {}
        () = signals.second(by_signal) => {
            tracing::warn!(attempts = shared.underway.count(), "stopped at once by a second signal");
            return Ok(());
        }
    }
    stops.last.cancel();
    traces.close();
    beside.close();
    let _ = tokio::time::timeout(config.store.timeout, beside.wait()).await;
    if let Err(error) = shared.store.retire(shared.tenure.id()).await {
        tracing::warn!(%error, "the lease could not be given back; it runs out by itself");
    }
    // It has a time limit of its own.
    traces.wait().await;
    tracing::info!("stopped");
    Ok(())
}

async fn listen(address: SocketAddr) -> Result<(SocketAddr, std::net::TcpListener), Failure> {
    let fail = |error| Failure::Listen(address, error);
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    Ok((listener.local_addr().map_err(fail)?, listener.into_std().map_err(fail)?))
}

fn start_tasks(shared: &Arc<Shared>, live: &watch::Receiver<Arc<Config>>, stops: &Stops) -> TaskTracker {
    let store = &shared.config.store;
    let beside = TaskTracker::new();
    beside.spawn(tasks::run(Heartbeat(Arc::clone(shared)), store.heartbeat, stops.last.clone()));
    beside.spawn(tasks::run(Sweeper(Arc::clone(shared)), store.sweep_every, stops.tasks.clone()));
    beside.spawn(tasks::run(Strays::new(Arc::clone(shared)), store.sweep_every, stops.tasks.clone()));
    beside.spawn(tasks::run(Reaper(Arc::clone(shared)), store.reap_every, stops.tasks.clone()));
    let reconciler = Reconciler::new(Arc::clone(shared), live.clone());
    let first = reconciler.period();
    beside.spawn(tasks::run(reconciler, first, stops.tasks.clone()));
    let gate = Arc::new(Gate::new(Arc::clone(shared)));
    beside.spawn(follow(live.clone(), Arc::clone(&gate)));
    // Among the attempts: a drain waits for what it has begun.
    let deliverer = Deliverer::new(Arc::clone(shared), gate, live.clone());
    shared.tracker.spawn(deliverer.run(stops.tasks.clone()));
    beside
}

/// One thread for each core, each with a runtime, a gate and connections of its own: what a request needs stays on one
/// core. They accept from one socket, and deal out evenly what they accept.
fn start_workers(
    listener: std::net::TcpListener,
    shared: &Arc<Shared>,
    live: &watch::Receiver<Arc<Config>>,
    door: &downstream::Door,
) -> std::io::Result<Vec<thread::JoinHandle<()>>> {
    let count = thread::available_parallelism()?.get();
    Deal::among(count)
        .into_iter()
        .enumerate()
        .map(|(number, hand)| {
            let (listener, shared, door) = (listener.try_clone()?, Arc::clone(shared), door.of_worker());
            let live = live.clone();
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                runtime.block_on(async move {
                    store::back::open_door();
                    match TcpListener::from_std(listener) {
                        Ok(listener) => {
                            let gate = Arc::new(Gate::new(Arc::clone(&shared)));
                            tokio::spawn(follow(live, Arc::clone(&gate)));
                            downstream::serve(listener, hand, gate, Limits::default(), door).await;
                            // Attempts whose clients have gone run on here.
                            shared.tracker.close();
                            tokio::select! {
                                () = shared.tracker.wait() => {}
                                () = shared.giving_up.cancelled() => {}
                            }
                        }
                        Err(error) => tracing::error!(%error, "a worker cannot accept connections"),
                    }
                });
            })
        })
        .collect()
}

/// One more thread for what queues bring, with a gate and connections of its own, also where there are none: a reload may
/// bring some. It ends like a worker.
fn start_consumers(
    shared: &Arc<Shared>,
    live: watch::Receiver<Arc<Config>>,
    closing: CancellationToken,
) -> std::io::Result<thread::JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("consumers".into()).spawn(move || {
        runtime.block_on(async move {
            let gate = Arc::new(Gate::new(Arc::clone(&shared)));
            tokio::select! {
                () = consumers::serve(gate, live, closing) => {}
                () = shared.giving_up.cancelled() => {}
            }
            shared.tracker.close();
            tokio::select! {
                () = shared.tracker.wait() => {}
                () = shared.giving_up.cancelled() => {}
            }
        });
    })
}

/// Hands each new configuration to one worker's gate.
async fn follow(mut live: watch::Receiver<Arc<Config>>, gate: Arc<Gate>) {
    while live.changed().await.is_ok() {
        let config = Arc::clone(&live.borrow_and_update());
        gate.reload(config);
    }
}

/// Readiness is off already, and clients are told to connect elsewhere. Waits for the balancers to notice, closes the door, and lets what runs come to its end.
async fn drain(shared: &Arc<Shared>, stops: &Stops, workers: Vec<thread::JoinHandle<()>>) {
    tokio::time::sleep(shared.config.drain_delay).await;
    stops.tasks.cancel();
    stops.door.closing.cancel();
    shared.draining.cancel();
    let ended = tokio::task::spawn_blocking(move || workers.into_iter().for_each(|worker| drop(worker.join())));
    if tokio::time::timeout(shared.config.drain_timeout, ended).await.is_err() {
        tracing::warn!(attempts = shared.underway.count(), "the drain's time is up; what still runs becomes unknown");
        shared.giving_up.cancel();
        // A moment for those who heed it, before the process ends.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The second one, where the first may have been heard already. A supervisor sends its first signal after the hook
    /// that has asked for the drain: that one says nothing new, and must not cut short what runs.
    async fn second(&mut self, first_was_heard: bool) {
        if !first_was_heard {
            self.wait().await;
        }
        self.wait().await;
    }
}
