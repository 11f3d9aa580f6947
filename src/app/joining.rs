//! Joins the instance to its store: at start, or later where a route forwards requests while the store is away.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use super::route_identities::{ComparedRoutes, RememberedRoutes};
use super::{ShutdownSignals, StartError, assembly, retention, route_identities};
use oncegate_brokers::events;
use oncegate_engine::instance::Instance;
use oncegate_settings::Config;
use oncegate_store::StorePreparation;
use oncegate_telemetry::logs::error_causes;

/// The pause between two tries to reach the store.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The parts of a start that need the store.
pub(super) struct Joining {
    pub instance: Arc<Instance>,
    pub preparation: StorePreparation,
    /// The configuration as of the last reload.
    pub live: watch::Receiver<Arc<Config>>,
    pub stops: ShutdownSignals,
    pub background: TaskTracker,
}

/// The parts of the configuration that the store has taken since the instance joined it.
pub(super) struct Joined {
    identities: RememberedRoutes,
    is_retention_written: bool,
}

impl Joining {
    /// Compares the routes with those that the store remembers. `None` where the store is away and a route bypasses it.
    ///
    /// # Errors
    /// [`StartError`]: any other, or that the store is away and every route needs it.
    pub async fn compare_or_bypass(&self) -> Result<Option<ComparedRoutes>, StartError> {
        self.or_bypass(self.compare().await)
    }

    /// Joins the store, unless it is away, likewise.
    pub async fn join_or_bypass(&self, compared: Option<ComparedRoutes>) -> Result<Option<Joined>, StartError> {
        match compared {
            Some(compared) => self.or_bypass(self.join(compared).await),
            None => Ok(None),
        }
    }

    fn or_bypass<T>(&self, result: Result<T, StartError>) -> Result<Option<T>, StartError> {
        let error = match result {
            Ok(done) => return Ok(Some(done)),
            Err(error) => error,
        };
        if !error.is_outage() || !self.live.borrow().routes.iter().any(|route| route.bypasses()) {
            return Err(error);
        }
        tracing::warn!(
            cause = error_causes(&error),
            "{error}: this process starts without its store. Routes with store_down = \"bypass\" forward requests unguarded, and all \
             others refuse them, until the store is reached"
        );
        Ok(None)
    }

    /// Starts what works on the store. Where it was away, this tries until it is reached. Then it waits for ever.
    ///
    /// # Errors
    /// [`StartError`]: the store is there, and this process cannot use it.
    pub async fn start_tasks(&self, mut joined: Option<Joined>) -> Result<(), StartError> {
        let Joined { identities, is_retention_written } = loop {
            if let Some(joined) = joined {
                break joined;
            }
            sleep(RETRY_PAUSE).await;
            joined = match async { self.join(self.compare().await?).await }.await {
                Ok(joined) => {
                    tracing::warn!("the store is reached: from now on requests are guarded");
                    Some(joined)
                }
                Err(error) if error.is_outage() => {
                    tracing::debug!(cause = error_causes(&error), "{error}");
                    None
                }
                Err(error) => return Err(error),
            };
        };
        let Self { instance, live, stops, background, .. } = self;
        assembly::start_tasks(instance, live, &stops.tasks, &stops.last, background);
        background.spawn(events::serve(Arc::clone(instance), live.clone(), stops.tasks.clone()));
        let (instance, live, stop) = (Arc::clone(instance), live.clone(), stops.tasks.clone());
        background.spawn(retention::publish_changes(instance, live, identities, is_retention_written, stop));
        std::future::pending().await
    }

    async fn compare(&self) -> Result<ComparedRoutes, StartError> {
        let start = &*self.instance.config;
        self.preparation.run().await.map_err(|error| StartError::Store(start.store.url.clone(), error))?;
        let config = Arc::clone(&self.live.borrow());
        route_identities::compare(&self.instance.store, start, config).await
    }

    async fn join(&self, compared: ComparedRoutes) -> Result<Joined, StartError> {
        let instance = &self.instance;
        let (store, start) = (&*instance.store, &*instance.config);
        let config = Arc::clone(&compared.config);
        // Before this process guards a request: it must not look for keys elsewhere than the instances beside it.
        let remember = async || route_identities::remember_at_start(store, start, compared).await;
        let (shared_cache_task, identities) = assembly::join(instance, &config, remember).await?;
        if let Some(task) = shared_cache_task {
            self.background.spawn(task.run(self.stops.last.clone()));
        }
        let written = retention::publish(store, start, &config).await.inspect_err(retention::warn_of_retry);
        route_identities::publish(instance, &config);
        Ok(Joined { identities, is_retention_written: written.is_ok() })
    }
}
