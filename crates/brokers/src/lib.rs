//! Message brokers: the connections to RabbitMQ and to Kafka, the consumers of their messages, and the publishers of
//! events.

mod amqp;
pub mod consumers;
pub mod events;
pub mod kafka;
pub mod publish_error;
mod retry;
mod supervisor;
