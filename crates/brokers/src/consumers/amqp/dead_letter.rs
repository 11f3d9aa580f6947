//! Dead letters: a message that can never succeed is published to the dead-letter exchange, and acknowledged only then.

use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel};

use crate::amqp::{PERSISTENT, publish};
use crate::publish_error::PublishError;
use oncegate_engine::gate::message::OutcomeReason;

pub(super) struct DeadLetterExchange {
    pub(super) channel: Channel,
    pub(super) name: ShortString,
}

impl DeadLetterExchange {
    /// Publishes the message with its origin (the queue and the route) and its reason, and waits for the broker's
    /// confirmation.
    pub(super) async fn publish(
        &self,
        origin: (&str, &str),
        delivery: &Delivery,
        body: &[u8],
        reason: &OutcomeReason,
    ) -> Result<(), PublishError> {
        let properties = properties(origin, delivery, reason);
        publish(&self.channel, self.name.clone(), delivery.routing_key.clone(), body, properties).await
    }
}

/// Returns the message's properties with the reason added. Left out are those that would keep us from publishing it
/// (the user ID, which the broker compares) or let it expire (its time to live).
fn properties((queue, route): (&str, &str), delivery: &Delivery, reason: &OutcomeReason) -> BasicProperties {
    let sent = &delivery.properties;
    let mut headers = sent.headers().clone().unwrap_or_default();
    let mut add = |name: &str, value: &str| {
        headers.insert(name.into(), AMQPValue::LongString(value.as_bytes().into()));
    };
    add("x-oncegate-reason", reason.slug);
    add("x-oncegate-detail", &reason.detail);
    add("x-oncegate-queue", queue);
    add("x-oncegate-route", route);
    if let Some(user) = sent.user_id() {
        add("x-oncegate-user-id", user.as_str());
    }
    if let Some(status) = reason.status {
        headers.insert("x-oncegate-status".into(), AMQPValue::LongInt(status.as_u16().into()));
    }
    copy_properties(sent, headers)
}

fn copy_properties(sent: &BasicProperties, headers: FieldTable) -> BasicProperties {
    let mut copied = BasicProperties::default().with_headers(headers).with_delivery_mode(PERSISTENT);
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
            copied = with(copied, value);
        }
    }
    if let Some(priority) = *sent.priority() {
        copied = copied.with_priority(priority);
    }
    match *sent.timestamp() {
        Some(timestamp) => copied.with_timestamp(timestamp),
        None => copied,
    }
}
