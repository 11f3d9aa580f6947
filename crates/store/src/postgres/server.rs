//! The server that the store's URL names now. The URL, its files and its hosts may change while the process runs.
//!
//! New settings are used only after a connection with them has reached the same store: another one would have none of
//! the keys that were reserved. Until then, and if they do not work, the earlier ones stay.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::RwLock;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::Client;

use super::horizons::Horizons;
use super::hosts::HostList;
use super::identity::StoreIdentity;
use super::primaries::KnownPrimary;
use super::tls::{BoxError, PgTls};
use crate::{OpenError, PrimaryCheck, RelocateError};
use oncegate_settings::{PostgresUrl, SourceFiles, postgres_client_tls};
use oncegate_trust::tls::Authorities;

/// The shortest time between two reads of the URL's files while connections can be made.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The same after a connection could not be made: the password may have changed a moment ago.
const READ_AFTER_FAILURE: Duration = Duration::from_millis(50);

/// A server, or several of which one is the primary, with the connection's settings. Clones share all of it.
#[derive(Clone)]
pub(crate) struct PgServer(Arc<PgServerState>);

struct PgServerState {
    timeout: Duration,
    current: RwLock<Arc<PgSettings>>,
    /// The store's identity, once its schema is there.
    identity: OnceLock<StoreIdentity>,
    is_distributed: watch::Sender<bool>,
    horizons: Horizons,
    /// Whether the connections lead to another server since the last look at the primaries.
    has_moved: AtomicBool,
    refresh: Mutex<RefreshState>,
}

struct RefreshState {
    read_at: Instant,
    /// The last problem with them, which is logged once.
    logged: Option<String>,
}

/// The settings of connections. Connections with earlier ones of the same place may go on.
struct PgSettings {
    source: SettingsSource,
    hosts: HostList,
    place: ServerPlace,
}

/// The number of a place to which connections lead: hosts, user, database and settings, without the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerPlace(u64);

struct SettingsSource {
    url: PostgresUrl,
    files: SourceFiles,
    system: Arc<RootCertStore>,
    client: Option<Arc<ClientConfig>>,
}

impl SettingsSource {
    /// Reads the URL's files, on a thread that may block. The system's authorities are read once, as they are hundreds
    /// of kilobytes.
    ///
    /// # Errors
    /// The problem, with `store.url`.
    async fn read(url: &PostgresUrl, system: Option<Arc<RootCertStore>>) -> Result<Self, String> {
        let url = url.clone();
        let read = move || {
            let url = url.read_again()?;
            let system = match url.tls().needs_system_authorities() {
                true => system.filter(|known| !known.is_empty()).unwrap_or_else(|| Authorities::from_system().roots),
                false => system.unwrap_or_else(|| Authorities::empty().roots),
            };
            let mut files = SourceFiles::default();
            let client = postgres_client_tls(&url, &system, &mut |path| {
                let content = std::fs::read(path)?;
                files.add(path, &content);
                Ok(content)
            })?;
            Ok(Self { url, files, system, client })
        };
        let failed = |_| Err("cannot be read: the thread that reads its files has failed".into());
        spawn_blocking(read).await.unwrap_or_else(failed).map_err(|why: String| format!("store.url {why}"))
    }

    /// Whether the file of authorities alone has changed, for the same URL.
    fn changes_trust(&self, other: &Self) -> bool {
        let is_changed = |path| !self.files.is_same_at(&other.files, path);
        self.url == other.url && self.url.tls().authorities().is_some_and(is_changed)
    }
}

impl PgSettings {
    fn new(
        source: SettingsSource,
        call_timeout: Duration,
        known: Option<Arc<KnownPrimary>>,
        place: ServerPlace,
    ) -> Self {
        let tls = PgTls::new(source.url.tls(), source.client.as_deref());
        let hosts = HostList::new(source.url.hosts(), tls, call_timeout, known);
        Self { source, hosts, place }
    }

    async fn connect(&self, budget: Duration) -> Result<(Client, JoinHandle<()>, ServerPlace), BoxError> {
        let (client, driver) = self.hosts.connect(budget).await?;
        Ok((client, driver, self.place))
    }
}

impl PgServer {
    /// Reads the URL's files. `timeout` is the time limit of one call.
    pub async fn open(url: &PostgresUrl, timeout: Duration) -> Result<Self, OpenError> {
        let source = SettingsSource::read(url, None).await.map_err(|why| OpenError::Missing(why.into()))?;
        Ok(Self(Arc::new(PgServerState {
            timeout,
            current: RwLock::new(Arc::new(PgSettings::new(source, timeout, None, ServerPlace(0)))),
            identity: OnceLock::new(),
            is_distributed: watch::Sender::new(false),
            horizons: Horizons::default(),
            has_moved: AtomicBool::new(false),
            refresh: Mutex::new(RefreshState { read_at: Instant::now(), logged: None }),
        })))
    }

    /// Connects, within `budget` for all hosts together, and drives the connection in a task of its own. Reads the
    /// URL's files before, and after a failure, and uses them if they have changed and work.
    pub async fn connect(&self, budget: Duration) -> Result<(Client, JoinHandle<()>, ServerPlace), BoxError> {
        let deadline = Instant::now() + budget;
        self.refresh(deadline, READ_EVERY).await;
        let left = || deadline.saturating_duration_since(Instant::now());
        let settings = self.current();
        let failure = match settings.connect(left()).await {
            Ok(connected) => return Ok(connected),
            Err(failure) => failure,
        };
        self.refresh(deadline, READ_AFTER_FAILURE).await;
        let changed = self.current();
        if Arc::ptr_eq(&settings, &changed) {
            return Err(failure);
        }
        changed.connect(left()).await
    }

    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    pub fn set_distributed(&self) {
        self.0.is_distributed.send_replace(true);
    }

    pub(super) fn horizons(&self) -> &Horizons {
        &self.0.horizons
    }

    /// Whether the keys are distributed over a cluster, as far as that is known.
    pub fn is_distributed(&self) -> bool {
        *self.0.is_distributed.borrow()
    }

    /// Waits until the keys are known to be distributed: true. False once all clones of this are gone.
    pub fn distributed(&self) -> impl Future<Output = bool> + Send + use<> {
        let mut known = self.0.is_distributed.subscribe();
        async move { known.wait_for(|is_distributed| *is_distributed).await.is_ok() }
    }

    pub fn place(&self) -> ServerPlace {
        self.current().place
    }

    /// Remembers which store this is, so that a change of the URL can be compared with it.
    pub async fn remember_identity(&self, client: &Client) {
        match StoreIdentity::read(client).await {
            Ok(Some(identity)) => {
                let _ = self.0.identity.set(identity);
            }
            Ok(None) => tracing::warn!("the store does not say which one it is: a change of store.url needs a restart"),
            Err(error) => {
                tracing::warn!(%error, "the store's identity could not be read: a change of store.url needs a restart")
            }
        }
    }

    /// See [`crate::Store::has_changed_primary`].
    pub fn has_changed_primary(&self) -> bool {
        let is_refused = self.current().hosts.known_primary().is_some_and(|known_primary| known_primary.has_change());
        is_refused || self.0.has_moved.load(Ordering::Acquire)
    }

    /// See [`crate::Store::check_primaries`].
    pub async fn check_primaries(&self) -> PrimaryCheck {
        let mut check = self.current().hosts.look().await;
        check.has_changed |= self.0.has_moved.swap(false, Ordering::AcqRel);
        check
    }

    /// See [`crate::Store::relocate`].
    pub async fn relocate(&self, url: &PostgresUrl) -> Result<(), RelocateError> {
        let mut state = self.0.refresh.lock().await;
        state.read_at = Instant::now();
        let system = Some(Arc::clone(&self.current().source.system));
        let source = SettingsSource::read(url, system).await.map_err(|why| RelocateError::Unusable(why.into()))?;
        self.switch(source, self.0.timeout).await?;
        state.logged = None;
        Ok(())
    }

    /// Reads the URL's files again, unless they were read within `every`, and uses them if they have changed and lead
    /// to the same store. Waits for half of the caller's time at most: the earlier settings need the rest.
    async fn refresh(&self, deadline: Instant, every: Duration) {
        let current = self.current();
        if self.0.identity.get().is_none() || !current.source.url.has_files() {
            return;
        }
        let limit = deadline.saturating_duration_since(Instant::now()).min(self.0.timeout) / 2;
        let half = Instant::now() + limit;
        let Ok(mut state) = timeout_at(half, self.0.refresh.lock()).await else { return };
        if state.read_at.elapsed() < every {
            return;
        }
        state.read_at = Instant::now();
        let current = self.current();
        let read = SettingsSource::read(&current.source.url, Some(Arc::clone(&current.source.system)));
        let problem = match timeout_at(half, read).await {
            Ok(Ok(source)) => match self.switch(source, half.saturating_duration_since(Instant::now())).await {
                Ok(()) => None,
                Err(refusal) => Some(refusal.describe()),
            },
            Ok(Err(why)) => Some(why),
            Err(_) => Some("the files of store.url could not be read in time".into()),
        };
        if let Some(problem) = problem.as_ref().filter(|problem| state.logged.as_ref() != Some(*problem)) {
            tracing::warn!(%problem, "the changed files of store.url are not used; the earlier connections stay");
        }
        state.logged = problem;
    }

    /// Uses other settings from now on, if they lead to the same store within this time.
    async fn switch(&self, source: SettingsSource, limit: Duration) -> Result<(), RelocateError> {
        let current = self.current();
        if (&source.url, &source.files) == (&current.source.url, &current.source.files) {
            return Ok(());
        }
        let known = self.0.identity.get().ok_or(RelocateError::NeedsRestart)?;
        // With a memory of its own: until it is known to be the same store, its primary says nothing about ours.
        let trial = PgSettings::new(source, self.0.timeout, None, current.place);
        let tried = timeout(limit, async {
            let (client, ..) = trial.connect(limit).await?;
            StoreIdentity::read(&client).await
        });
        let is_same_server = match tried.await.unwrap_or_else(|_| Err("no answer in time".into())) {
            Ok(Some(found)) if found.is_same(known) => found.is_of_same_server(known),
            Ok(_) => return Err(RelocateError::OtherStore),
            // Authorities that were taken away must not be trusted until somebody restarts.
            Err(error) if trial.source.changes_trust(&current.source) => {
                tracing::warn!(%error, "the changed sslrootcert of store.url is used, and new connections with it fail");
                false
            }
            Err(error) => return Err(RelocateError::Unusable(error)),
        };
        let source = trial.source;
        let is_same_place = source.url.differs_in_password_alone(&current.source.url);
        let place = if is_same_place { current.place } else { ServerPlace(current.place.0 + 1) };
        let url = source.url.clone();
        let known = current.hosts.known_primary().cloned();
        let settings = PgSettings::new(source, self.0.timeout, known, place);
        let mut current = self.0.current.write();
        if is_same_place {
            tracing::info!("new connections to the store use the changed password or certificates");
        } else {
            if !is_same_server {
                // As after a failover: another server may lack what was written last.
                self.0.has_moved.store(true, Ordering::Release);
            }
            tracing::info!(store = %url, "the store's connections lead to another address of the same store from now on");
        }
        *current = Arc::new(settings);
        Ok(())
    }

    fn current(&self) -> Arc<PgSettings> {
        Arc::clone(&self.0.current.read())
    }
}
