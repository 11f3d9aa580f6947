//! RabbitMQ's brokers, for consumers and for publishers: the connection, and publishing with its confirmation.

mod broker_error;
mod connector;
mod publish;

pub(super) use broker_error::broker_message;
pub(super) use connector::connect;
pub(super) use publish::{AmqpPublisher, PERSISTENT, open_confirming_channel, publish};
