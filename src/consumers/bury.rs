//! Arm: a message that will never do is put where people find it, and only then acknowledged.

use std::time::Duration;

use lapin::message::Delivery;
use lapin::options::{BasicPublishOptions, BasicRejectOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::time::timeout;

use super::session::told;
use crate::config::Consumer;
use crate::gate::message::Reason;

/// A broker writes a message to its disks in milliseconds. One that takes so long has other troubles.
const CONFIRM_MAX: Duration = Duration::from_secs(10);
/// So that it survives the broker (AMQP 0-9-1, basic's `delivery-mode`).
const PERSISTENT: u8 = 2;

/// Where dead letters go.
pub(super) struct Exchange {
    pub(super) channel: Channel,
    pub(super) name: ShortString,
}

/// Why it was not taken.
pub(super) enum NotTaken {
    /// The exchange is there, and said no: it routes the message nowhere, or could not keep it.
    Refused(String),
    /// The channel is of no use any more.
    Broken(String),
}

impl Exchange {
    /// Publishes the message with its reason, and waits until the broker has it.
    pub(super) async fn take(
        &self,
        consumer: &Consumer,
        delivery: &Delivery,
        body: &[u8],
        why: &Reason,
    ) -> Result<(), NotTaken> {
        // Without a queue behind the exchange it would be gone.
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let (exchange, key) = (self.name.clone(), delivery.routing_key.clone());
        let published = async {
            let properties = properties(consumer, delivery, why);
            self.channel.basic_publish(exchange, key, options, body, properties).await?.await
        };
        match timeout(CONFIRM_MAX, published).await {
            Ok(Ok(Confirmation::Ack(None))) => Ok(()),
            Ok(Ok(Confirmation::Ack(Some(_)))) => {
                Err(NotTaken::Refused("no queue is bound to it for this message".into()))
            }
            Ok(Ok(Confirmation::Nack(_))) => Err(NotTaken::Refused("the broker could not keep the message".into())),
            Ok(Ok(Confirmation::NotRequested)) => Err(NotTaken::Broken("the channel does not confirm".into())),
            Ok(Err(error)) => Err(NotTaken::Broken(told(&error))),
            Err(_) => Err(NotTaken::Broken(format!("no confirmation in {} s", CONFIRM_MAX.as_secs()))),
        }
    }
}

/// Without an exchange: the queue's own one takes it, where the broker has one for it, else it is gone.
pub(super) async fn reject(delivery: &Delivery) -> Result<bool, lapin::Error> {
    delivery.acker.reject(BasicRejectOptions { requeue: false }).await
}

/// The message's own, with the reason, and without what would keep it from being published by us (its user's name, which
/// the broker compares) or let it vanish (its time to live).
fn properties(consumer: &Consumer, delivery: &Delivery, why: &Reason) -> BasicProperties {
    let sent = &delivery.properties;
    let mut headers = sent.headers().clone().unwrap_or_default();
    let mut put = |name: &str, value: &str| {
        headers.insert(name.into(), AMQPValue::LongString(value.as_bytes().into()));
    };
    put("x-oncegate-reason", why.slug);
    put("x-oncegate-detail", why.detail);
    put("x-oncegate-queue", &consumer.queue);
    put("x-oncegate-route", &consumer.route);
    if let Some(user) = sent.user_id() {
        put("x-oncegate-user-id", user.as_str());
    }
    if let Some(status) = why.status {
        headers.insert("x-oncegate-status".into(), AMQPValue::LongInt(status.as_u16().into()));
    }
    keep(sent, headers)
}

fn keep(sent: &BasicProperties, headers: FieldTable) -> BasicProperties {
    let mut kept = BasicProperties::default().with_headers(headers).with_delivery_mode(PERSISTENT);
    let text = |text: &Option<ShortString>| text.clone();
    for (value, with) in [
        (text(sent.content_type()), BasicProperties::with_content_type as fn(BasicProperties, ShortString) -> _),
        (text(sent.content_encoding()), BasicProperties::with_content_encoding),
        (text(sent.correlation_id()), BasicProperties::with_correlation_id),
        (text(sent.reply_to()), BasicProperties::with_reply_to),
        (text(sent.message_id()), BasicProperties::with_message_id),
        (text(sent.kind()), BasicProperties::with_type),
        (text(sent.app_id()), BasicProperties::with_app_id),
    ] {
        if let Some(value) = value {
            kept = with(kept, value);
        }
    }
    if let Some(priority) = *sent.priority() {
        kept = kept.with_priority(priority);
    }
    match *sent.timestamp() {
        Some(timestamp) => kept.with_timestamp(timestamp),
        None => kept,
    }
}
