//! What the consumer and the publisher of dead letters need of a Kafka client, whichever it is.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::brokers::kafka::{KafkaError, NewRecord};

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PartitionId {
    pub(super) topic: Arc<str>,
    pub(super) number: i32,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.number)
    }
}

/// A record that was read.
#[derive(Clone, Debug)]
pub(super) struct KafkaRecord {
    pub(super) partition: PartitionId,
    /// The topic's own id; empty where the brokers know none. A topic that is created anew has another id, and offsets that begin again.
    pub(super) topic_id: Arc<str>,
    pub(super) offset: i64,
    /// Milliseconds of Unix time.
    pub(super) timestamp: i64,
    pub(super) key: Option<Bytes>,
    pub(super) value: Bytes,
    pub(super) headers: Vec<(String, Option<Bytes>)>,
    /// Whether it or its batch is too large to be held, so that it has nothing but its place.
    pub(super) is_unread: bool,
}

/// The offsets of a partition.
#[derive(Clone, Debug)]
pub(super) struct PartitionOffsets {
    pub(super) partition: PartitionId,
    /// The next record that is read.
    pub(super) position: Option<i64>,
    /// The offset behind the newest record.
    pub(super) end: Option<i64>,
}

/// What a client tells the session.
#[derive(Debug)]
pub(super) enum ClientEvent {
    /// Records, in the order of each partition.
    Records(Vec<KafkaRecord>),
    /// The group gives this member these partitions too.
    Assigned(Vec<PartitionId>),
    /// The group takes these partitions. The client holds the rebalance until `released` is sent or dropped: offsets can be committed
    /// until then.
    Revoked { partitions: Vec<PartitionId>, released: oneshot::Sender<()> },
    /// The group has taken these partitions, and may have given them to another member: no offset of them may be committed.
    Lost(Vec<PartitionId>),
    /// A batch of a partition cannot be decoded. The client reads the others on, and this one again after a while: it never skips it.
    Stuck { partition: PartitionId, cause: String },
    /// Something failed that the client tries again by itself.
    Trouble(String),
    /// That has gone well again.
    Recovered,
    /// The client cannot go on.
    Failed(String),
}

/// The future of a client's call.
pub(super) type ClientFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A member of a consumer group, with an idempotent producer.
// See docs/decisions/0030-choose-dependencies.md.
pub(super) trait KafkaClient: Send + Sync {
    /// Waits for the next event. `None` once the client is closed. Cancelling it loses no event.
    fn next(&self) -> ClientFuture<'_, Option<ClientEvent>>;
    /// Reads nothing more of these partitions, and of all others again, without leaving the group.
    fn pause(&self, partitions: BTreeSet<PartitionId>);
    /// Commits offsets: the group continues with them.
    fn commit(&self, offsets: Vec<(PartitionId, i64)>) -> ClientFuture<'_, Result<(), String>>;
    /// Writes a record, and waits until all replicas that must have it have it.
    fn produce(&self, record: NewRecord) -> ClientFuture<'_, Result<(), KafkaError>>;
    /// The offsets of the assigned partitions, as far as they are known.
    fn offsets(&self) -> ClientFuture<'_, Vec<PartitionOffsets>>;
    /// The address of a broker.
    fn broker(&self) -> IpAddr;
    /// Leaves the group. Offsets are committed before.
    fn close(&self) -> ClientFuture<'_, ()>;
}
