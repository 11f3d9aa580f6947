//! Kafka's brokers, for consumers and for publishers: the connection, and a producer of records.

use std::sync::Arc;

use bytes::Bytes;

#[cfg(not(feature = "kafka"))]
mod absent;
#[cfg(feature = "kafka")]
pub(super) mod connection;
#[cfg(feature = "kafka")]
mod producer;

#[cfg(not(feature = "kafka"))]
pub use absent::AbsentProducer as KafkaProducer;
#[cfg(feature = "kafka")]
pub use producer::KafkaProducer;

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
