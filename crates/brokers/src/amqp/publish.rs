//! Publishing to RabbitMQ with its confirmation: dead letters, and events about keys.

use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ExchangeKind};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::broker_error::broker_message;
use super::connector::connect;
use crate::publish_error::PublishError;
use oncegate_settings::Broker;
use oncegate_trust::tls::Trust;

/// The time limit for the broker's confirmation. A healthy broker writes a message to its disks in milliseconds.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// The delivery mode with which a message survives a restart of the broker (AMQP 0-9-1, basic's `delivery-mode`).
pub const PERSISTENT: u8 = 2;

/// A connection to a broker for publishing. It is closed when this is dropped.
pub struct AmqpPublisher {
    exchange: ShortString,
    channel: Channel,
    _connection: Connection,
    _cut: DropGuard,
}

impl AmqpPublisher {
    /// Connects, and checks that the exchange is there.
    pub async fn connect(broker: &Broker, exchange: &str, trust: &Trust) -> Result<Self, String> {
        let cut = CancellationToken::new();
        let guard = cut.clone().drop_guard();
        let (connection, _) = connect(broker, trust, &cut).await?;
        let channel = open_confirming_channel(&connection, exchange).await?;
        Ok(Self { exchange: exchange.into(), channel, _connection: connection, _cut: guard })
    }

    /// Publishes a message that survives a restart of the broker, and waits for its confirmation.
    pub async fn publish(
        &self,
        routing_key: &str,
        id: &str,
        kind: &str,
        content_type: &str,
        body: &[u8],
    ) -> Result<(), PublishError> {
        let properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_message_id(id.into())
            .with_type(kind.into())
            .with_content_type(content_type.into());
        publish(&self.channel, self.exchange.clone(), routing_key.into(), body, properties).await
    }
}

/// Publishes a message, and waits for the broker's confirmation. [`PublishError::Away`]: the channel is unusable.
pub async fn publish(
    channel: &Channel,
    exchange: ShortString,
    routing_key: ShortString,
    body: &[u8],
    properties: BasicProperties,
) -> Result<(), PublishError> {
    // `mandatory`: without a queue behind the exchange the broker would drop the message.
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let published = async { channel.basic_publish(exchange, routing_key, options, body, properties).await?.await };
    match timeout(CONFIRM_TIMEOUT, published).await {
        Ok(Ok(Confirmation::Ack(None))) => Ok(()),
        Ok(Ok(Confirmation::Ack(Some(_)))) => {
            Err(PublishError::Refused("no queue is bound to the exchange for this message".into()))
        }
        Ok(Ok(Confirmation::Nack(_))) => Err(PublishError::Refused("the broker could not keep the message".into())),
        Ok(Ok(Confirmation::NotRequested)) => Err(PublishError::Away("the channel does not confirm messages".into())),
        Ok(Err(error)) => Err(PublishError::Away(broker_message(error))),
        Err(_) => Err(PublishError::Away(format!("no confirmation in {} s", CONFIRM_TIMEOUT.as_secs()))),
    }
}

/// Opens a channel with publisher confirms, after checking that the exchange exists.
pub async fn open_confirming_channel(connection: &Connection, exchange: &str) -> Result<Channel, String> {
    let open = async {
        let channel = connection.create_channel().await?;
        // The default exchange is always there, and nobody may declare it.
        if !exchange.is_empty() {
            let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
            channel.exchange_declare(exchange.into(), ExchangeKind::Direct, options, FieldTable::default()).await?;
        }
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    };
    open.await.map_err(broker_message)
}
