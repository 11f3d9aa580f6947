//! Runs a task for each entry of a list in the configuration: a consumer, or a sink of events.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use oncegate_settings::Config;
use oncegate_trust::tls::Trust;

/// An entry whose task runs, and the token that stops it.
struct RunningEntry<T> {
    entry: Arc<T>,
    /// The authorities that its broker is verified with.
    trust: Trust,
    stop: CancellationToken,
}

/// Runs `run` for each of the `entries` of the configuration until `stop`, and returns once all have ended. A reload
/// stops entries that were removed or changed, and starts new ones. It also starts those anew that verify a broker with
/// other authorities: a connection keeps those that it began with.
pub(super) async fn supervise<T: PartialEq, R: Future<Output = ()> + Send + 'static>(
    mut live: watch::Receiver<Arc<Config>>,
    stop: CancellationToken,
    entries: impl Fn(&Arc<Config>) -> Vec<Arc<T>>,
    needs_authorities: impl Fn(&T) -> bool,
    run: impl Fn(Arc<T>, Trust, CancellationToken) -> R,
) {
    let tasks = TaskTracker::new();
    let mut running: Vec<RunningEntry<T>> = Vec::new();
    loop {
        let config = Arc::clone(&live.borrow_and_update());
        let entries = entries(&config);
        running.retain(|started| {
            let is_trusting = !needs_authorities(&started.entry) || config.trust == started.trust;
            let is_current = entries.contains(&started.entry) && is_trusting;
            if !is_current {
                started.stop.cancel();
            }
            is_current
        });
        for entry in entries {
            if running.iter().all(|started| started.entry != entry) {
                let (stop, trust) = (stop.child_token(), config.trust.clone());
                tasks.spawn(run(Arc::clone(&entry), trust.clone(), stop.clone()));
                running.push(RunningEntry { entry, trust, stop });
            }
        }
        if !matches!(stop.run_until_cancelled(live.changed()).await, Some(Ok(()))) {
            break;
        }
    }
    stop.cancelled().await;
    tasks.close();
    tasks.wait().await;
}
