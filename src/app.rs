//! Builds every part, starts it, and stops it in reverse.

use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use assembly::Assembly;
use hand_over::{CLOSE_KEPT_WITHIN, FIRST_REQUEST_WITHIN, HandOverRequests, ListeningSockets};
use joining::Joining;
use listeners::{CLIENTS, HandedSocketError, HandedSockets, ListenKey, OPERATORS};
use oncegate_admin::tokens::{AdminTokens, TokenFileError};
use oncegate_admin::{self as admin, AdminListener};
use oncegate_brokers::consumers;
use oncegate_config::{self as config, StartExposure};
use oncegate_domain::stored_salt::SaltError;
use oncegate_engine::gate::Gate;
use oncegate_engine::instance::Instance;
use oncegate_engine::tasks::issuer_keys::IssuerKeysReader;
use oncegate_http::downstream;
use oncegate_http::downstream::balancer::ConnectionBalancer;
use oncegate_http::downstream::connection_limits::ConnectionLimits;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_settings::{Config, LoadedConfig, StoreLocation};
use oncegate_store::encryption::Encryption;
use oncegate_store::salts::OpenSaltError;
use oncegate_store::{self as store, OpenError, StoreSettings};
use oncegate_telemetry::logs::error_causes;
use oncegate_telemetry::traces::export::{self, SpanExporter};
use reload::ConfigSource;

pub mod assembly;
mod file_descriptors;
pub mod hand_over;
mod joining;
pub mod key_changes;
mod keyed_route;
pub mod listeners;
pub mod reload;
mod retention;
mod route_guard;
pub mod route_identities;

/// Why the program could not start, or had to stop.
#[derive(Debug, derive_more::Display)]
pub enum StartError {
    /// The process cannot listen on the address of this key of the configuration.
    #[display("cannot listen on {_0}, the address of {_1}")]
    Listen(SocketAddr, ListenKey, std::io::Error),
    /// A socket that was handed over cannot be used.
    HandedSocket(HandedSocketError),
    /// The operating system refuses what its text says.
    #[display("the operating system refuses a thread, a timer or a signal handler")]
    Machine(std::io::Error),
    /// The store is missing or unusable.
    #[display("{_0}: {_1}")]
    Store(StoreLocation, OpenError),
    /// The admin listener has no token.
    AdminToken(TokenFileError),
    /// The settlements of this process would have no events.
    #[display("the store has not taken which routes have events")]
    Events(store::StoreError),
    /// This process may start no attempt.
    #[display("the store gave no lease")]
    Lease(store::StoreError),
    /// Whether the routes would find stored keys is not known.
    #[display("the store has not said how the routes found keys at the last start")]
    RouteIdentities(store::StoreError),
    /// The routes would not find stored keys any more. The change with this digest was not accepted.
    #[display(
        "the routes would not find their earlier keys any more, and retries would be executed again. If no instance with the \
         earlier routes runs, and this is meant, start with --accept-route-changes {_0}, or write \
         accept_route_changes = \"{_0}\" into [store]"
    )]
    RouteChanges(String),
    /// The salt of the service's scopes cannot be used.
    Salt(OpenSaltError),
    /// The sockets of a hand-over have no successor.
    #[display("the successor cannot be started")]
    HandOver(std::io::Error),
    /// Only a new process can open the store's file again.
    #[display("the store's file failed, as the log says; the attempts that ran are unknown at the next start with it")]
    StoreFailed,
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listen(_, _, source) | Self::Machine(source) | Self::HandOver(source) => Some(source),
            Self::HandedSocket(error) => error.source(),
            Self::Store(_, error) => error.source(),
            Self::AdminToken(error) => error.source(),
            Self::Events(source) | Self::Lease(source) | Self::RouteIdentities(source) => Some(source),
            Self::Salt(error) => error.source(),
            Self::RouteChanges(_) | Self::StoreFailed => None,
        }
    }
}

impl StartError {
    /// Whether the store was away, and may be there later.
    fn is_outage(&self) -> bool {
        match self {
            Self::Store(_, error) => matches!(error, OpenError::Away(_)),
            Self::Events(error)
            | Self::Lease(error)
            | Self::RouteIdentities(error)
            | Self::Salt(OpenSaltError::Store(error)) => {
                matches!(error, store::StoreError::TimedOut | store::StoreError::Unavailable(_))
            }
            _ => false,
        }
    }
}

/// The signals that stop the parts, in the order in which they are sent.
#[derive(Clone, Default)]
struct ShutdownSignals {
    /// Asks clients to disconnect, and then closes the listener.
    downstream: downstream::DrainSignals,
    /// Stops the tasks but the heartbeat.
    tasks: CancellationToken,
    /// Stops the heartbeat and the admin listener, which are needed as long as anything runs.
    last: CancellationToken,
}

/// Runs the proxy until a signal or the admin listener stops it, and drains. Returns its sockets where a successor is
/// to have them.
///
/// # Errors
/// [`StartError`], before the first request is accepted, or when the store has failed for good.
pub async fn run(
    config: LoadedConfig,
    source: ConfigSource,
    handed: HandedSockets,
) -> Result<Option<ListeningSockets>, StartError> {
    log_warnings(&config);
    // Before all that takes time, so that a signal during the start is not lost.
    let mut signals = TerminationSignals::new().map_err(StartError::Machine)?;
    let mut hand_overs = HandOverRequests::new(source.loader()).map_err(StartError::Machine)?;
    // It asks for a reload, and from here on no longer ends the process.
    let hangups = signal(SignalKind::hangup()).map_err(StartError::Machine)?;
    hand_over::release_signals().map_err(StartError::Machine)?;
    let settings = StoreSettings::from(&config);
    let (start, config) = (config.start, config.live);
    let (start, config) = (Arc::new(start), Arc::new(config));
    let has_kept_sockets = !handed.is_empty();
    let wanted = [(start.listen, CLIENTS), (start.admin.listen, OPERATORS)];
    let [handed, admin_handed] = handed.divide(wanted).map_err(StartError::HandedSocket)?;
    let shares = file_descriptors::divide(&start.limits, start.store.max_connections, config.upstreams().len());
    let (store, preparation) =
        store::open_unprepared(&settings).await.map_err(|error| StartError::Store(start.store.url.clone(), error))?;
    // After the store: the token's file may be in the store's folder.
    let admin_tokens = AdminTokens::load(&start.admin, &config.admin).map_err(StartError::AdminToken)?;
    let slots = UpstreamSlots::new(shares.each_upstream);
    let Assembly { instance, spans } = assembly::assemble(&start, &config, store, slots)?;
    let (sender, live) = watch::channel(Arc::clone(&config));
    let (stopped, mut stops) = (CancellationToken::new(), ShutdownSignals::default());
    // A hand-over cancels the child alone and leaves the instance ready: connections wait for the successor.
    stops.downstream.leaving = stopped.child_token();
    let background = TaskTracker::new();
    let joining = Joining {
        instance: Arc::clone(&instance),
        preparation,
        live: live.clone(),
        stops: stops.clone(),
        background: background.clone(),
    };
    let compared = joining.compare_or_bypass().await?;
    let listener = listeners::open(wanted[0], handed).await?;
    let admin_listener = listeners::open(wanted[1], admin_handed).await?;
    // After all that can fail: the store takes the routes of this instance for those that guard.
    let joined = joining.join_or_bypass(compared).await?;
    let mut store_tasks = pin!(joining.start_tasks(joined));
    let mut issuer_keys = IssuerKeysReader::new(Arc::clone(&instance), live.clone());
    // Before the first request is accepted, so that its token can be verified.
    tokio::select! {
        biased;
        Err(error) = &mut store_tasks => return Err(error),
        () = issuer_keys.read() => {}
    }
    background.spawn(issuer_keys.run(stops.tasks.clone()));
    background.spawn(reload_encryption(live.clone(), Arc::clone(&instance), stops.last.clone()));
    let source_shown = source.show();
    let mut sockets = Some(ListeningSockets::new(&listener.1, &admin_listener.1).map_err(StartError::Machine)?);
    let admin = AdminListener::new(Arc::clone(&instance), admin_tokens, live.clone(), stopped.clone());
    background.spawn(admin::serve(admin_listener.1, admin, stops.last.clone()));
    background.spawn(reload::reload_on_changes(source, hangups, sender, Arc::clone(&instance), stops.tasks.clone()));
    let traces = TaskTracker::new();
    if let (Some(collector), Some(spans)) = (start.telemetry.otlp.clone(), spans) {
        let id = instance.instance_lease.id().to_string();
        let exporter = SpanExporter::new(collector, config.trust.clone(), &start.service, &id);
        traces.spawn(export::run(exporter, spans, stops.last.clone()));
    }
    let connections = ConnectionLimits::new(
        shares.clients,
        start.limits.connections_per_peer,
        instance.observability.metrics.connections.clone(),
    );
    let mut workers =
        start_workers(listener.1, &instance, &live, &connections, &stops.downstream).map_err(StartError::Machine)?;
    workers
        .push(start_consumers(&instance, live.clone(), stops.downstream.closing.clone()).map_err(StartError::Machine)?);
    tracing::info!(
        listen = %listener.0,
        tls = config.tls.is_some(),
        admin = %admin_listener.0,
        config = source_shown,
        services = config.services.iter().map(|service| service.upstream.to_string()).collect::<Vec<_>>().join(", "),
        store = start.store.url.show_whole(),
        instance = %instance.instance_lease.id(),
        routes = config.routes.len(),
        consumers = config.consumers.len(),
        "ready"
    );

    let mut store_error = None;
    let (by, is_by_signal, mut successors) = tokio::select! {
        () = signals.wait() => ("a signal", true, None),
        () = stopped.cancelled() => ("the admin listener", false, None),
        () = hand_overs.wait(&instance) => ("a hand-over", false, sockets.take()),
        () = instance.salt_replaced.cancelled() => ("another salt in the store", false, None),
        () = instance.store.failed() => return Err(end_without_store(&instance).await),
        // Requests that bypass the store are running.
        Err(error) = &mut store_tasks => {
            tracing::error!(cause = error_causes(&error), "{error}: this process cannot use its store, and ends");
            store_error = Some(error);
            ("a store that cannot be used", false, None)
        }
    };
    // Without a successor the next connection must be refused, and not wait.
    drop(sockets);
    match &successors {
        Some(_) => stops.downstream.leaving.cancel(),
        None => stopped.cancel(),
    }
    tracing::info!(by, "draining");
    let mut drain = pin!(drain(&instance, &stops, workers, has_kept_sockets || successors.is_some()));
    // A supervisor sends its first signal after a hook that has begun the drain, or during a hand-over: that one must
    // not cut short the running attempts.
    let mut is_last_signal = is_by_signal;
    loop {
        tokio::select! {
            () = &mut drain => break,
            () = instance.store.failed() => return Err(end_without_store(&instance).await),
            () = signals.wait() => {
                if is_last_signal {
                    tracing::warn!(attempts = instance.in_flight.count(), "stopped at once by a second signal");
                    return store_error.map_or(Ok(None), Err);
                }
                is_last_signal = true;
                stopped.cancel();
            }
            // By a signal, or by the admin listener.
            () = stopped.cancelled(), if successors.is_some() => successors = None,
        }
    }
    stops.last.cancel();
    end_tasks(&instance, &background, &traces).await;
    if stopped.is_cancelled() || signals.has_come() {
        successors = None;
    }
    tracing::info!(hand_over = successors.is_some(), "stopped");
    match store_error {
        Some(error) => Err(error),
        None if instance.salt_replaced.is_cancelled() => Err(StartError::Salt(SaltError::Changed.into())),
        None => Ok(successors),
    }
}

/// Logs the warnings of the configuration, and who can reach this process.
fn log_warnings(config: &LoadedConfig) {
    for warning in &config.live.warnings {
        tracing::warn!("{warning}");
    }
    match config::start_exposure(config) {
        Some(StartExposure { is_warning: true, text }) => tracing::warn!("{text}"),
        Some(StartExposure { is_warning: false, text }) => tracing::info!("{text}"),
        None => {}
    }
}

/// Waits for the tasks, gives the lease back, and waits for the last spans.
async fn end_tasks(instance: &Instance, background: &TaskTracker, traces: &TaskTracker) {
    traces.close();
    background.close();
    let _ = tokio::time::timeout(instance.config.store.timeout, background.wait()).await;
    if instance.joined.is_cancelled() {
        if let Err(error) = instance.store.release_lease(instance.instance_lease.id()).await {
            tracing::warn!(%error, "the lease could not be released; it expires by itself");
        }
        // Last, because nothing waits for it.
        if let Err(error) = instance.write_weekly_counts().await {
            tracing::warn!(%error, "the last counts of this week could not be stored");
        }
    }
    // The exporter has a time limit of its own.
    traces.wait().await;
}

/// Starts one thread for each core, so that a request stays on one core. All accept from one socket, and share the
/// accepted connections evenly.
fn start_workers(
    listener: std::net::TcpListener,
    instance: &Arc<Instance>,
    live: &watch::Receiver<Arc<Config>>,
    connections: &Arc<ConnectionLimits>,
    drain_signals: &downstream::DrainSignals,
) -> std::io::Result<Vec<thread::JoinHandle<()>>> {
    let count = thread::available_parallelism()?.get();
    let inboxes = ConnectionBalancer::create_inboxes(count).into_iter().enumerate();
    inboxes
        .map(|(number, inbox)| {
            let (listener, drain_signals) = (listener.try_clone()?, drain_signals.for_worker());
            let (live, connections) = (live.clone(), Arc::clone(connections));
            start_worker(format!("worker-{number}"), instance, async move |instance| {
                store::reply::open_reply_queue(number);
                let listener = match TcpListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(error) => return tracing::error!(%error, "a worker cannot accept connections"),
                };
                let gate = Arc::new(Gate::new(instance, Arc::clone(&live.borrow())));
                tokio::spawn(assembly::reload_gate(live, Arc::clone(&gate)));
                gate.serve(listener, inbox, connections, drain_signals).await;
            })
        })
        .collect()
}

/// Starts one thread for all consumers, also where none is configured, because a reload may add some.
fn start_consumers(
    instance: &Arc<Instance>,
    live: watch::Receiver<Arc<Config>>,
    closing: CancellationToken,
) -> std::io::Result<thread::JoinHandle<()>> {
    start_worker("consumers".into(), instance, async move |instance| {
        let gate = Arc::new(Gate::new(Arc::clone(&instance), Arc::clone(&live.borrow())));
        let consuming = async {
            // Messages wait for the store.
            if closing.clone().run_until_cancelled(instance.joined.cancelled()).await.is_some() {
                consumers::serve(gate, live, closing).await;
            }
        };
        instance.drain_expired.run_until_cancelled(consuming).await;
    })
}

/// Starts a thread with a runtime of its own, and there a gate and upstream connections of its own. It ends when its
/// work and all attempts have ended, or the drain's time is up.
fn start_worker(
    name: String,
    instance: &Arc<Instance>,
    work: impl AsyncFnOnce(Arc<Instance>) + Send + 'static,
) -> std::io::Result<thread::JoinHandle<()>> {
    let instance = Arc::clone(instance);
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name(name).spawn(move || {
        runtime.block_on(async move {
            work(Arc::clone(&instance)).await;
            // Attempts whose clients have disconnected continue here.
            instance.tracker.close();
            instance.drain_expired.run_until_cancelled(instance.tracker.wait()).await;
        });
    })
}

/// Passes the secrets of each new configuration to the store, and with its server to the shared cache, until `stop`.
async fn reload_encryption(mut live: watch::Receiver<Arc<Config>>, instance: Arc<Instance>, stop: CancellationToken) {
    while let Some(Ok(())) = stop.run_until_cancelled(live.changed()).await {
        let config = Arc::clone(&live.borrow_and_update());
        instance.store.reload_encryption(Encryption::new(&instance.config.store, &config.secrets));
        if let Some(shared_cache) = instance.shared_cache.get() {
            shared_cache.reload(config.secrets.clone(), config.redis.as_ref(), &config.trust);
        }
    }
}

/// Drains: clients are asked to reconnect. Waits for load balancers to notice, closes the listener, and waits for the
/// running attempts. Where the sockets stay open, no request is refused: there is time for one on each connection that
/// was accepted.
async fn drain(
    instance: &Arc<Instance>,
    stops: &ShutdownSignals,
    workers: Vec<thread::JoinHandle<()>>,
    are_sockets_kept: bool,
) {
    let (drain_delay, drain_timeout) = (instance.config.drain_delay, instance.config.drain_timeout);
    tokio::time::sleep(if are_sockets_kept { drain_delay.max(CLOSE_KEPT_WITHIN) } else { drain_delay }).await;
    stops.downstream.accepted_last.cancel();
    let wait_for_first_requests = async || {
        if are_sockets_kept {
            tokio::time::sleep(FIRST_REQUEST_WITHIN).await;
        }
    };
    wait_for_first_requests().await;
    stops.tasks.cancel();
    stops.downstream.closing.cancel();
    let ended = tokio::task::spawn_blocking(move || workers.into_iter().for_each(|worker| drop(worker.join())));
    let end_of_attempts = async {
        // Clients of HTTP/2 open streams until they know that the connection closes.
        wait_for_first_requests().await;
        instance.draining.cancel();
        pending::<()>().await;
    };
    let is_late = tokio::select! {
        biased;
        () = end_of_attempts => false,
        ended = tokio::time::timeout(drain_timeout, ended) => ended.is_err(),
    };
    instance.draining.cancel();
    if is_late {
        for record in instance.in_flight.running() {
            tracing::warn!(%record, "the drain's time is up while the key's attempt runs; the key becomes unknown");
        }
        tracing::warn!(
            attempts = instance.in_flight.count(),
            "the drain's time is up; attempts that still run become unknown"
        );
        instance.drain_expired.cancel();
        // Time for the attempts to end, before the process does.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The time for the last answers after the store has failed: refusals, and responses that could not be stored.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Starts nothing more, bypassed requests neither, and leaves the time for the last answers.
async fn end_without_store(instance: &Instance) -> StartError {
    instance.draining.cancel();
    tokio::time::sleep(LAST_ANSWERS).await;
    StartError::StoreFailed
}

/// SIGTERM and SIGINT.
struct TerminationSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl TerminationSignals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Whether one has come that nobody has waited for.
    fn has_come(&mut self) -> bool {
        self.wait().now_or_never().is_some()
    }
}
