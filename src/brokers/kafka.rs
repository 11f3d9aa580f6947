//! Kafka's brokers, for consumers and for publishers: one connection and one producer.

use std::sync::Arc;

use bytes::Bytes;

#[cfg(not(feature = "kafka"))]
mod absent;
#[cfg(feature = "kafka")]
pub mod connection;
#[cfg(feature = "kafka")]
mod producer;

#[cfg(not(feature = "kafka"))]
pub use absent::AbsentProducer as KafkaProducer;
#[cfg(feature = "kafka")]
pub use producer::KrafkaProducer as KafkaProducer;

/// A record to be written.
#[derive(Clone, Debug)]
pub struct NewRecord {
    /// The topic, which must exist.
    pub topic: Arc<str>,
    /// The record key: records with the same one get into one partition.
    pub key: Option<Bytes>,
    /// The body.
    pub value: Bytes,
    /// The headers; a value may be null.
    pub headers: Vec<(String, Option<Bytes>)>,
}

/// The reason why a record is not known to be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KafkaError {
    /// The brokers refuse this record, and will refuse it again: it is larger than they allow, or not what the topic is for.
    #[error("{0}")]
    Refused(String),
    /// The brokers have not acknowledged it in time, or may do so later: one is away, or the topic does not exist or may not be
    /// written. It may have been written: a record that is produced again may be there twice.
    #[error("{0}")]
    Unacknowledged(String),
}
