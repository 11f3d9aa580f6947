//! A process of Oncegate: the real instance, gate and background tasks on a host of the simulation.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use oncegate::app::assembly::{assemble, join, start_tasks};
use oncegate_brokers::events;
use oncegate_config::{self as config, Environment, Overrides};
use oncegate_engine::gate::Gate;
use oncegate_engine::instance::Instance;
use oncegate_http::body::checked_body::CheckedBody;
use oncegate_http::body::request_body::RequestBody;
use oncegate_http::downstream::client::{ClientConnection, RequestHandler};
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_settings::LoadedConfig;
use oncegate_store::encryption::Encryption;
use oncegate_store::{Backend, Store};
use oncegate_trust::tls::Authorities;
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::checker::Policy;
use crate::network::{Network, Place, ProcessNetwork};
use crate::trace;

pub const LEASE: Duration = Duration::from_millis(600);
pub const SWEEP: Duration = Duration::from_millis(300);
/// The store's `timeout`.
pub const STORE_TIMEOUT: Duration = Duration::from_millis(300);
/// The time limit of an attempt whose response streams.
pub const STREAM_TIMEOUT: Duration = Duration::from_millis(1_500);
/// The time past an attempt's limit after which it counts as over.
pub const QUIET_AFTER: Duration = Duration::from_secs(1);

/// The text of the configuration; `ROUTE` stands for what differs between the runs. Several jumps of the clock, each of
/// more than a day, must not use up the time in which an accepted request is tried: its key would be dead.
const CONFIG: &str = r#"
listen = "127.0.0.1:0"
upstream = "http://service:80"
secret = "a secret of some length"
[admin]
listen = "127.0.0.1:0"
open = true
[store]
url = "memory:"
timeout = "300ms"
lease = { heartbeat = "200ms", expiry = "600ms" }
sweep_every = "300ms"
reap_every = "2s"
[cache]
memory = "1MiB"
[defaults]
methods = ["POST"]
scope = ["authorization"]
connect_timeout = "400ms"
upstream_timeout = "1s"
upstream_idle_timeout = "500ms"
stream_idle_timeout = "500ms"
stream_timeout = "1500ms"
in_flight = "wait"
wait_timeout = "300ms"
ROUTE
[[routes]]
name = "pay"
path = "/pay"
key = { required = true }
[[routes]]
name = "batched"
path = "/batched"
delivery = "async"
split = "json:/*"
key = { from = "json:/0/key" }
fingerprint = { exclude = ["json:/*/op"] }
retry = { max_attempts = 10000, base = "50ms", cap = "200ms", give_up_after = "30d" }
[[events]]
name = "bus"
routes = ["pay", "batched"]
url = "http://service/events"
"#;

/// The configurations of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// `on_unknown = "hold"`.
    Hold,
    /// The same, and the service is asked for unknown outcomes.
    Reconciled,
    /// `on_unknown = "retry"`.
    Retry,
    /// `on_unknown = "retry-when-quiet"`.
    RetryWhenQuiet,
}

impl RouteKind {
    /// The rules that the checker applies.
    pub fn policy(self) -> Policy {
        match self {
            Self::Hold | Self::Reconciled => Policy::Hold,
            Self::Retry => Policy::Retry,
            // Between an effect and the end of its attempt's quiet time lies at least this.
            Self::RetryWhenQuiet => Policy::RetryWhenQuiet(QUIET_AFTER),
        }
    }

    /// The configuration. Each is read once.
    pub fn config(self) -> Arc<LoadedConfig> {
        static CONFIGS: [OnceLock<Arc<LoadedConfig>>; 4] = [const { OnceLock::new() }; 4];
        let route = match self {
            Self::Hold => "on_unknown = \"hold\"\nreconcile = { after = \"1s\" }",
            Self::Reconciled => {
                "reconcile = { url = \"http://service/outcomes/{id}\", after = \"1s\", every = \"300ms\", max_attempts = 20 }"
            }
            Self::Retry => "on_unknown = \"retry\"\nreconcile = { after = \"1s\" }",
            Self::RetryWhenQuiet => "on_unknown = \"retry-when-quiet\"\nreconcile = { after = \"1s\" }",
        };
        let read = || {
            let environment = ConfigText(CONFIG.replace("ROUTE", route));
            let config = config::load(Some(Path::new("oncegate.toml")), &Overrides::default(), &environment);
            Arc::new(config.unwrap_or_else(|problems| panic!("{problems}")))
        };
        Arc::clone(CONFIGS[self as usize].get_or_init(read))
    }
}

/// A configuration file, in an environment without anything else.
struct ConfigText(String);

impl Environment for ConfigText {
    fn variable(&self, _: &str) -> Option<String> {
        None
    }

    fn read(&self, _: &Path) -> io::Result<String> {
        Ok(self.0.clone())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }

    fn is_readable_by_all(&self, _: &Path) -> bool {
        false
    }

    fn is_database(&self, _: &Path) -> bool {
        true
    }

    fn authorities(&self) -> Authorities {
        Authorities::empty()
    }
}

/// The instance of a running process, for the checks at the end.
pub type RunningInstance = Arc<Mutex<Option<Arc<Instance>>>>;

/// The process of one proxy: it starts, and serves until it is killed.
pub async fn run(
    number: usize,
    place: Place,
    config: Arc<LoadedConfig>,
    backend: Backend,
    network: Network,
    running: RunningInstance,
) {
    let (start, live) = (config.start.clone(), config.live.clone());
    let (start, live) = (Arc::new(start), Arc::new(live));
    let instance = loop {
        let store = Store::new(backend.clone(), Encryption::new(&start.store, &live.secrets));
        let network = Arc::new(ProcessNetwork { network: network.clone(), process: number });
        let instance = assemble(&start, &live, store, UpstreamSlots::new(64).in_network(network)).unwrap().instance;
        match join(&instance, &live, async || Ok(())).await {
            Ok(_) => break instance,
            Err(error) => trace::record(format_args!("process {number} does not start: {error}")),
        }
        // A supervisor starts it again.
        sleep(Duration::from_millis(100)).await;
    };
    *running.lock().unwrap() = Some(Arc::clone(&instance));
    let (_reloads, reloaded) = watch::channel(Arc::clone(&live));
    let tasks = TaskTracker::new();
    start_tasks(&instance, &reloaded, &CancellationToken::new(), &CancellationToken::new(), &tasks);
    tasks.spawn(events::serve(Arc::clone(&instance), reloaded, CancellationToken::new()));
    let gate = Arc::new(Gate::new(instance, live));
    let mut accepted = network.listen(place);
    trace::record(format_args!("process {number} is ready"));
    while let Some(stream) = accepted.recv().await {
        tokio::spawn(serve(Arc::clone(&gate), stream));
    }
}

/// Serves a client's connection with hyper, which drops the future of a request when its client goes.
async fn serve(gate: Arc<Gate>, stream: DuplexStream) {
    let client = Arc::new(ClientConnection::new([127, 0, 0, 1].into(), false));
    let answer = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let (gate, client) = (Arc::clone(&gate), Arc::clone(&client));
        let body = |incoming| RequestBody::new(CheckedBody::of_message(incoming));
        async move { Ok::<_, std::convert::Infallible>(gate.handle(Box::new(request.map(body)), &client).await) }
    });
    drop(http1::Builder::new().auto_date_header(false).serve_connection(TokioIo::new(stream), answer).await);
}
