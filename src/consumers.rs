//! Messages come in: queues of RabbitMQ as callers.
//!
//! A message is one request, posted to its route's path under its key. It is acknowledged once its outcome is stored, so
//! that a delivery that is lost, doubled or dealt to somebody else finds the stored outcome and executes nothing. What
//! will never do goes where people find it; everything else is held and tried again.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Config, Consumer};
use crate::gate::Gate;

mod bury;
mod delivery;
mod patience;
mod read;
mod session;
mod wire;

/// A consumer at work, and what stops it.
struct Running {
    consumer: Arc<Consumer>,
    stop: CancellationToken,
}

/// Consumes what the configuration names until `closing`, and returns once every running message is acknowledged and
/// every other one given back. A reload stops consumers that are gone or changed, and starts those that are new.
pub async fn serve(gate: Arc<Gate>, mut live: watch::Receiver<Arc<Config>>, closing: CancellationToken) {
    let sessions = TaskTracker::new();
    let mut running: Vec<Running> = Vec::new();
    loop {
        let config = Arc::clone(&live.borrow_and_update());
        running.retain(|one| {
            let stays = config.consumers.contains(&one.consumer);
            if !stays {
                one.stop.cancel();
            }
            stays
        });
        for consumer in &config.consumers {
            if running.iter().all(|one| one.consumer != *consumer) {
                let stop = closing.child_token();
                let trust = config.trust.clone();
                sessions.spawn(session::run(Arc::clone(consumer), Arc::clone(&gate), trust, stop.clone()));
                running.push(Running { consumer: Arc::clone(consumer), stop });
            }
        }
        tokio::select! {
            () = closing.cancelled() => break,
            changed = live.changed() => match changed {
                // First of all, so that a consumer that is new finds its route.
                Ok(()) => gate.reload(Arc::clone(&live.borrow())),
                Err(_) => break,
            },
        }
    }
    closing.cancelled().await;
    sessions.close();
    sessions.wait().await;
}
