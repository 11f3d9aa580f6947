//! Joins the instance to its store: at start, or later where a route forwards requests while the store is away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use super::{ShutdownSignals, StartError, assembly, retention, route_identities};
use crate::events;
use crate::instance::Instance;
use oncegate_config::Config;
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
    /// Whether the store has taken how the routes find their keys and what they keep.
    pub is_written: AtomicBool,
}

impl Joining {
    /// Joins the store, and returns whether it is there. Where it is away and a route bypasses it, the start goes on without it.
    ///
    /// # Errors
    /// [`StartError`]: any other, or that the store is away and every route needs it.
    pub async fn join_or_bypass(&self) -> Result<bool, StartError> {
        let Err(error) = self.join().await else { return Ok(true) };
        if !error.is_outage() || !self.live.borrow().routes.iter().any(|route| route.bypasses()) {
            return Err(error);
        }
        tracing::warn!(
            cause = error_causes(&error),
            "{error}: this process starts without its store. Routes with store_down = \"bypass\" forward requests unguarded, and all \
             others refuse them, until the store is reached"
        );
        Ok(false)
    }

    /// Starts what works on the store. Where it was away, this tries until it is reached. Then it waits for ever.
    ///
    /// # Errors
    /// [`StartError`]: the store is there, and this process cannot use it.
    pub async fn start_tasks(&self, mut is_joined: bool) -> Result<(), StartError> {
        while !is_joined {
            sleep(RETRY_PAUSE).await;
            match self.join().await {
                Ok(()) => {
                    tracing::warn!("the store is reached: from now on requests are guarded");
                    is_joined = true;
                }
                Err(error) if error.is_outage() => tracing::debug!(cause = error_causes(&error), "{error}"),
                Err(error) => return Err(error),
            }
        }
        let Self { instance, live, stops, background, .. } = self;
        assembly::start_tasks(instance, live, &stops.tasks, &stops.last, background);
        background.spawn(events::serve(Arc::clone(instance), live.clone(), stops.tasks.clone()));
        let is_written = self.is_written.load(Ordering::Relaxed);
        let changes = retention::publish_changes(Arc::clone(instance), live.clone(), is_written, stops.tasks.clone());
        background.spawn(changes);
        std::future::pending().await
    }

    async fn join(&self) -> Result<(), StartError> {
        let instance = &self.instance;
        let (store, start) = (&*instance.store, &*instance.config);
        self.preparation.run().await.map_err(|error| StartError::Store(start.store.url.clone(), error))?;
        let config = Arc::clone(&self.live.borrow());
        // Before this process can guard a request: it must not look for keys elsewhere than the instances beside it.
        let accepted = start.store.accept_route_changes.as_deref();
        route_identities::check_changes(store, &start.service, accepted, &config).await?;
        let shared_cache_task = assembly::join(instance, &config).await?;
        if let Some(task) = shared_cache_task {
            self.background.spawn(task.run(self.stops.last.clone()));
        }
        let written = retention::write_at_start(store, start, &config).await.inspect_err(retention::warn_of_retry);
        self.is_written.store(written.is_ok(), Ordering::Relaxed);
        route_identities::publish(instance, &config);
        Ok(())
    }
}
