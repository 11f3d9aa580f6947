//! The events of a group's member, and the offsets that it knows.

use tokio::sync::oneshot;

use super::record::{KafkaRecord, PartitionId};

#[derive(Clone, Debug)]
pub(super) struct PartitionOffsets {
    pub(super) partition: PartitionId,
    /// The next record that is read.
    pub(super) position: Option<i64>,
    /// The offset behind the newest record.
    pub(super) end: Option<i64>,
}

/// A message of the member to its session.
pub(super) enum MemberEvent {
    /// Records, in the order of each partition.
    Records(Vec<KafkaRecord>),
    /// The group gives this member these partitions too.
    Assigned(Vec<PartitionId>),
    /// The group takes these partitions. The client holds the rebalance until `released` is sent or dropped: offsets
    /// can be committed until then.
    Revoked { partitions: Vec<PartitionId>, released: oneshot::Sender<()> },
    /// The group has taken these partitions, and may have given them to another member: no offset of them may be
    /// committed.
    Lost(Vec<PartitionId>),
    /// A batch of a partition cannot be decoded. The client reads the others on, and this one again after a while: it
    /// never skips it.
    Stuck { partition: PartitionId, cause: String },
    /// Something failed that the client tries again by itself.
    Trouble(String),
    /// That has gone well again.
    Recovered,
    /// The client cannot go on.
    Failed(String),
}
