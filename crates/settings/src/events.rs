//! The places that events about settled keys go to.

use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;

use super::{Broker, KafkaCluster, UpstreamTarget};
use crate::words;
use oncegate_domain::macros::debug_as_display;

words! {
    /// The type of an event: the change of a key.
    pub enum EventType {
        /// It has a response, which is stored: the service has done what was asked.
        Completed = "completed",
        /// It has a response, which is stored, and by its status the service has refused the request.
        Refused = "refused",
        /// Nobody knows whether its attempt was executed.
        Unknown = "unknown",
        /// It was unknown or dead, and is not any more, without a response: it was not executed, or its record is
        /// deleted.
        Resolved = "resolved",
        /// Its delivery was given up: it is dead until an operator decides.
        GivenUp = "given-up",
    }
}

words! {
    /// The form of the key in an event.
    pub enum EventKey {
        /// As the client sent it.
        Plain = "plain",
        /// By its SHA-256.
        Hash = "hash",
    }
}

/// The events of some routes, and the place that they go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSink {
    /// The name; no other sink has it. Waiting events belong to it.
    pub name: Arc<str>,
    /// The service of its routes.
    pub service: Arc<str>,
    /// The names of the routes, earlier ones too.
    pub routes: Vec<Arc<str>>,
    /// The events; one type at least.
    pub types: Vec<EventType>,
    /// The form of the key in them.
    pub key: EventKey,
    /// Whether they have the stored response's body.
    pub body: bool,
    /// The time after which an event that cannot be published is dead.
    pub give_up_after: Duration,
    /// The place that they go to.
    pub target: EventTarget,
}

/// The place that events go to. It is shown without credentials: a URL's path may have a secret.
#[derive(Clone, PartialEq, Eq, derive_more::Display)]
pub enum EventTarget {
    /// A URL that gets a POST for each, signed by the Standard Webhooks.
    #[display("{upstream}/…")]
    Http {
        /// The service.
        upstream: Arc<UpstreamTarget>,
        /// The path and query.
        target: PathAndQuery,
        /// The secret that signs; `None` for no signature.
        secret: Option<WebhookSecret>,
    },
    /// An exchange of RabbitMQ.
    #[display("exchange `{exchange}` of {broker}")]
    Amqp {
        /// The broker.
        broker: Broker,
        /// The exchange; the default exchange where it is empty.
        exchange: Box<str>,
        /// The routing key; `None` for the event's type.
        routing_key: Option<Box<str>>,
    },
    /// A topic of Kafka.
    #[display("topic {} of {}", _0.topic, _0.cluster.brokers.join(", "))]
    Kafka(KafkaTopic),
}

debug_as_display!(EventTarget);

/// A topic that is written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaTopic {
    /// The cluster.
    pub cluster: KafkaCluster,
    /// The topic.
    pub topic: Box<str>,
}

/// The secret of the Standard Webhooks: 24 to 64 bytes.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("WebhookSecret")]
pub struct WebhookSecret(pub Box<[u8]>);

impl EventTarget {
    /// The service of a URL.
    pub fn upstream(&self) -> Option<&UpstreamTarget> {
        match self {
            Self::Http { upstream, .. } => Some(upstream),
            Self::Amqp { .. } | Self::Kafka(_) => None,
        }
    }

    /// Whether its certificate is verified with the authorities of the system.
    pub fn needs_authorities(&self) -> bool {
        match self {
            Self::Http { upstream, .. } => matches!(**upstream, UpstreamTarget::Https(..)),
            Self::Amqp { broker, .. } => broker.tls,
            Self::Kafka(topic) => topic.cluster.needs_authorities(),
        }
    }
}
