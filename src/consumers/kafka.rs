//! Records of Kafka: topics that a consumer group shares out.
//!
//! `session` is one membership of the group. `assignment` says which record may start and which offset may be committed, and
//! `attempt` executes one record. `client` is what they need of a library.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::session_error::SessionError;
use crate::gate::Gate;
use crate::instance::consumer_states::ConsumerState;
use oncegate_settings::{Consumer, KafkaSource};

mod assignment;
mod attempt;
mod client;
#[cfg(feature = "kafka")]
mod krafka_client;
mod record;
mod session;

/// Runs one session: from joining the group to losing the brokers, or to the end of the drain.
pub(super) async fn run_session(
    consumer: &Arc<Consumer>,
    source: &KafkaSource,
    gate: &Arc<Gate>,
    state: &Arc<ConsumerState>,
    stop: &CancellationToken,
) -> Result<(), SessionError> {
    let drain = gate.instance().config.drain_timeout;
    #[cfg(feature = "kafka")]
    let client = async {
        let body_bytes_max = gate.max_request_body(&consumer.route).ok_or("its route is gone")?;
        let client = krafka_client::KrafkaClient::open(source, consumer.prefetch, body_bytes_max, drain).await;
        client.map(|client| Arc::new(client) as Arc<dyn client::KafkaClient>)
    };
    // Such a configuration is refused.
    #[cfg(not(feature = "kafka"))]
    let client = async { Err("this program was built without the feature `kafka`".to_owned()) };
    session::run(consumer, source, gate, state, stop, client, drain).await
}
