//! Keeps a consumer connected: a session that ends is followed by another one.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::amqp;
use super::disposition::doubled_pause;
#[cfg(feature = "kafka")]
use super::kafka;
use super::session_start::SessionError;
use oncegate_engine::gate::Gate;
use oncegate_machine::jitter::jittered;
use oncegate_settings::{Consumer, MessageSource};
use oncegate_trust::tls::Trust;

/// Consumes until `stop`, over as many connections as that takes.
pub(super) async fn run(consumer: Arc<Consumer>, gate: Arc<Gate>, trust: Trust, stop: CancellationToken) {
    let mut failures: u32 = 0;
    let state = gate.instance().observability.metrics.consumers.add(&consumer);
    loop {
        let ended = match &consumer.source {
            MessageSource::Amqp(source) => {
                amqp::session::run_session(&consumer, source, &gate, &trust, &state, &stop).await
            }
            #[cfg(feature = "kafka")]
            MessageSource::Kafka(source) => kafka::session::run_session(&consumer, source, &gate, &state, &stop).await,
            #[cfg(not(feature = "kafka"))]
            MessageSource::Kafka(_) => unreachable!("such a configuration is refused"),
        };
        let Err(SessionError { cause, was_consuming }) = ended else { return };
        failures = if was_consuming { 1 } else { failures.saturating_add(1) };
        let pause = jittered(doubled_pause(failures));
        tracing::warn!(broker = consumer.source.broker(), queue = %consumer.source, failures,
            again_in_ms = pause.as_millis(), cause,
            "messages are not consumed at the moment: the connection to the broker failed and is tried again");
        state.set_disconnected(cause);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}
