//! The consumers: requests from queues of RabbitMQ and topics of Kafka.
//!
//! A message is one request, posted to its route's path under its key. It is acknowledged, or its offset committed,
//! once its outcome is stored, so that a delivery that is lost, duplicated or sent to another consumer finds the stored
//! outcome and executes nothing. A message that can never succeed becomes a dead letter; every other one is held and
//! tried again. While its outcome is unknown, it leaves its place to the next one.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::supervisor::supervise;
use oncegate_engine::gate::Gate;
use oncegate_settings::{Config, Consumer};

mod amqp;
pub mod decode;
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "records of Kafka need the rest"))]
mod disposition;
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "records of Kafka need the rest"))]
mod hold;
#[cfg(feature = "kafka")]
mod kafka;
mod reconnect;
mod session_start;

/// Runs the configured consumers until `closing`. Returns once every running message is acknowledged and every other
/// one is returned to its queue.
pub fn serve(
    gate: Arc<Gate>,
    live: watch::Receiver<Arc<Config>>,
    closing: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(consume_all(gate, live, closing))
}

async fn consume_all(gate: Arc<Gate>, live: watch::Receiver<Arc<Config>>, closing: CancellationToken) {
    let consumers = |config: &Arc<Config>| {
        // Before the consumers change, so that a new one finds its route. Also before the first ones: a reload may have
        // come since the gate was made.
        gate.reload(Arc::clone(config));
        config.consumers.clone()
    };
    let run = |consumer, trust, stop| reconnect::run(consumer, Arc::clone(&gate), trust, stop);
    supervise(live, closing, consumers, Consumer::needs_authorities, run).await;
}
