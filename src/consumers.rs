//! The consumers: requests from queues of RabbitMQ and topics of Kafka.
//!
//! A message is one request, posted to its route's path under its key. It is acknowledged, or its offset committed, once its outcome is stored, so
//! that a delivery that is lost, duplicated or sent to another consumer finds the stored outcome and executes nothing. A
//! message that can never succeed becomes a dead letter; every other one is held and tried again. While its outcome is unknown, it
//! leaves its place to the next one.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::gate::Gate;
use oncegate_settings::{Config, Consumer};
use oncegate_trust::tls::Trust;

mod amqp;
pub mod decode;
mod disposition;
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "there is no client that calls it"))]
mod kafka;
mod reconnect;
mod session_error;

pub use amqp::publish;

/// A running consumer, and the token that stops it.
struct RunningConsumer {
    consumer: Arc<Consumer>,
    /// The authorities that its broker is verified with.
    trust: Trust,
    stop: CancellationToken,
}

/// Runs the configured consumers until `closing`. Returns once every running message is acknowledged and every other one is
/// returned to its queue. A reload stops consumers that were removed or changed, and starts new ones; with other
/// authorities, those with TLS too.
pub async fn serve(gate: Arc<Gate>, mut live: watch::Receiver<Arc<Config>>, closing: CancellationToken) {
    let sessions = TaskTracker::new();
    let mut running: Vec<RunningConsumer> = Vec::new();
    loop {
        let config = Arc::clone(&live.borrow_and_update());
        // Before the consumers change, so that a new one finds its route. Also before the first ones: a reload may have come since
        // the gate was made.
        gate.reload(Arc::clone(&config));
        running.retain(|started| {
            // A connection verifies its broker with the authorities that it began with.
            let is_trusting = !started.consumer.needs_authorities() || config.trust == started.trust;
            let is_current = config.consumers.contains(&started.consumer) && is_trusting;
            if !is_current {
                started.stop.cancel();
            }
            is_current
        });
        for consumer in &config.consumers {
            if running.iter().all(|started| started.consumer != *consumer) {
                let stop = closing.child_token();
                let (consumer, trust) = (Arc::clone(consumer), config.trust.clone());
                sessions.spawn(reconnect::run(Arc::clone(&consumer), Arc::clone(&gate), trust.clone(), stop.clone()));
                running.push(RunningConsumer { consumer, trust, stop });
            }
        }
        tokio::select! {
            () = closing.cancelled() => break,
            changed = live.changed() => match changed {
                Ok(()) => {}
                Err(_) => break,
            },
        }
    }
    closing.cancelled().await;
    sessions.close();
    sessions.wait().await;
}
