//! Queues and topics whose messages are requests.

use std::sync::Arc;

use super::{Broker, KafkaSource, ScopeRule};
use oncegate_domain::message_path::MessagePathTemplate;
use oncegate_domain::place::Place;

/// A queue or topics whose messages are requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// The messages; no other consumer has them.
    pub source: MessageSource,
    /// The name of the route whose policy its messages have. The route enforces, and guards POST.
    pub route: Arc<str>,
    /// The place of a message's key.
    pub key: MessageKey,
    /// The most messages of RabbitMQ that are unacknowledged at once, or records of Kafka that are executed at once,
    /// beside those of unknown outcome; at least one.
    pub prefetch: u16,
    /// The path that they are posted to: one of the route's own, whatever the values.
    pub path: MessagePathTemplate,
    /// The headers of a message that tell callers apart.
    pub scope: ScopeRule,
}

/// The broker and the place there that messages come from. It is shown as the queue, or the topics.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub enum MessageSource {
    /// A queue of RabbitMQ.
    #[display("{}", _0.queue)]
    Amqp(AmqpSource),
    /// Topics of Kafka, read by a consumer group.
    #[display("{}", _0.topics.join(", "))]
    Kafka(KafkaSource),
}

/// A queue of RabbitMQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmqpSource {
    /// The broker that has the queue.
    pub broker: Broker,
    /// The queue's name.
    pub queue: Box<str>,
    /// The exchange for messages that will never succeed.
    pub dead_letter_exchange: Option<Box<str>>,
}

/// The place of a message's key, and its step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageKey {
    /// The place of the value.
    pub place: MessageKeyPlace,
    /// Appended to the value, behind a colon.
    pub step: Option<Box<str>>,
}

/// Where in a message a value is. Displayed as it is written.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub enum MessageKeyPlace {
    /// The key of a record of Kafka.
    #[display("kafka-key")]
    KafkaKey,
    /// The id that the broker's message has: the property `message-id` of RabbitMQ; of Kafka the topic, the partition
    /// and the offset.
    #[display("message-id")]
    MessageId,
    /// In a header or in the body.
    #[display("{_0}")]
    Place(Place),
}

impl Consumer {
    /// Whether a message header of this name, in lower case, is read for the key or the scope.
    pub fn reads_header(&self, name: &str) -> bool {
        let key = match &self.key.place {
            MessageKeyPlace::Place(place) => place.field(),
            MessageKeyPlace::KafkaKey | MessageKeyPlace::MessageId => None,
        };
        key.is_some_and(|key| *key == *name) || self.scope.header_names().any(|header| *header == *name)
    }

    /// Whether both consume the same messages.
    pub fn shares_messages_with(&self, other: &Self) -> bool {
        match (&self.source, &other.source) {
            (MessageSource::Amqp(one), MessageSource::Amqp(other)) => {
                let identity = |source: &AmqpSource| {
                    let Broker { host, port, vhost, .. } = &source.broker;
                    (host.to_ascii_lowercase(), *port, vhost.clone(), source.queue.clone())
                };
                identity(one) == identity(other)
            }
            (MessageSource::Kafka(one), MessageSource::Kafka(other)) => one.shares_records_with(other),
            (MessageSource::Amqp(_), MessageSource::Kafka(_)) | (MessageSource::Kafka(_), MessageSource::Amqp(_)) => {
                false
            }
        }
    }

    /// Whether the broker's certificate is verified with the authorities of the system.
    pub fn needs_authorities(&self) -> bool {
        match &self.source {
            MessageSource::Amqp(source) => source.broker.tls,
            MessageSource::Kafka(source) => source.cluster.needs_authorities(),
        }
    }

    /// Whether the connection to the broker has TLS.
    pub fn has_tls(&self) -> bool {
        match &self.source {
            MessageSource::Amqp(source) => source.broker.tls,
            MessageSource::Kafka(source) => source.cluster.tls.is_some(),
        }
    }
}

impl MessageSource {
    /// The broker, or several, without credentials.
    pub fn broker(&self) -> String {
        match self {
            Self::Amqp(source) => source.broker.to_string(),
            Self::Kafka(source) => source.cluster.brokers.join(", "),
        }
    }

    /// The topics of Kafka, if it is those.
    pub fn kafka(&self) -> Option<&KafkaSource> {
        match self {
            Self::Amqp(_) => None,
            Self::Kafka(source) => Some(source),
        }
    }
}

impl MessageKey {
    /// The place, and the step behind a colon.
    pub fn to_text(&self) -> String {
        self.step.as_ref().map_or_else(|| self.place.to_string(), |step| format!("{}, then `:{step}`", self.place))
    }
}
