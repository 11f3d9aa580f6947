//! A member of a consumer group, with an idempotent producer: the client of the crate krafka.
// See docs/decisions/0030-choose-dependencies.md.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use krafka::consumer::{
    AutoOffsetReset, Consumer, ConsumerRebalanceListener, IsolationLevel, OffsetAndMetadata,
    PartitionAssignmentStrategy, TopicPartition,
};
use tokio::net::lookup_host;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::member_event::{MemberEvent, PartitionOffsets};
use super::record::PartitionId;
use super::record_reader::{Pauses, RecordReader, TopicReader};
use crate::kafka::KafkaProducer;
use crate::kafka::connection::{connect, describe};
use oncegate_settings::{FirstOffset, KafkaSource};

/// The room in a batch beside the largest body that the route takes, for its other records.
const BATCH_MARGIN: usize = 8 * 1024 * 1024;
/// The bytes that the client unpacks for one poll at most, each record in a batch of its own.
const UNPACKED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The most bytes of one fetch from a broker, and of one partition in it; Kafka's own default. A batch may be larger.
const FETCH_BYTES_MAX: i32 = 8 * 1024 * 1024;
const PARTITION_BYTES_MAX: i32 = 1024 * 1024;
/// The shortest time for which the group waits for a member that settles its records in a rebalance; Kafka's own
/// default.
const REBALANCE_TIMEOUT_MIN: Duration = Duration::from_secs(5 * 60);
/// The time for a commit and a round trip beside the drain.
const REBALANCE_MARGIN: Duration = Duration::from_secs(60);

pub(super) struct GroupMember {
    consumer: Arc<Consumer>,
    pub(super) producer: KafkaProducer,
    events: Mutex<mpsc::Receiver<MemberEvent>>,
    pauses: Arc<Pauses>,
    pub(super) broker: IpAddr,
}

/// Passes rebalances on, and holds each until the session has settled what it had to.
struct RebalancePasser(mpsc::Sender<MemberEvent>);

impl ConsumerRebalanceListener for RebalancePasser {
    async fn on_partitions_assigned(&self, partitions: &[TopicPartition]) {
        let _ = self.0.send(MemberEvent::Assigned(ids(partitions))).await;
    }

    async fn on_partitions_revoked(&self, partitions: &[TopicPartition]) {
        let (released, wait) = oneshot::channel();
        let event = MemberEvent::Revoked { partitions: ids(partitions), released };
        // A session that has ended has committed what it could.
        if self.0.send(event).await.is_ok() {
            let _ = wait.await;
        }
    }

    async fn on_partitions_lost(&self, partitions: &[TopicPartition]) {
        let _ = self.0.send(MemberEvent::Lost(ids(partitions))).await;
    }
}

fn ids(partitions: &[TopicPartition]) -> Vec<PartitionId> {
    partitions.iter().map(id).collect()
}

fn id(partition: &TopicPartition) -> PartitionId {
    PartitionId { topic: partition.topic().into(), number: partition.partition() }
}

impl GroupMember {
    /// Joins the group. `at_once` is the number of records that are executed at once, `body_bytes_max` the largest body
    /// that the route takes, and `drain` the longest time for which a rebalance is held. An error has neither user nor
    /// password.
    pub(super) async fn open(
        source: &KafkaSource,
        at_once: u16,
        body_bytes_max: usize,
        drain: Duration,
    ) -> Result<Self, String> {
        let batch_bytes_max = body_bytes_max + BATCH_MARGIN;
        // The client unpacks whole batches, for twice as many records as a poll returns.
        let at_most = i32::try_from(UNPACKED_BYTES_MAX / (2 * batch_bytes_max)).unwrap_or(i32::MAX).max(1);
        let broker = resolve(&source.cluster.brokers).await?;
        let kafka = connect(&source.cluster).await?;
        let producer = KafkaProducer::on(kafka.clone()).await?;
        let (sender, events) = mpsc::channel(1);
        let first_offset = match source.first_offset {
            FirstOffset::Earliest => AutoOffsetReset::Earliest,
            FirstOffset::Latest => AutoOffsetReset::Latest,
        };
        let consumer = kafka
            .consumer(&*source.group)
            .enable_auto_commit(false)
            .auto_offset_reset(first_offset)
            // A record of an aborted transaction must not be executed.
            .isolation_level(IsolationLevel::ReadCommitted)
            // Only the partitions that move are taken, so the others go on in a rebalance.
            .partition_assignment_strategy(PartitionAssignmentStrategy::CooperativeSticky)
            .session_timeout(source.session_timeout)
            .heartbeat_interval(source.session_timeout / 3)
            .max_poll_interval(REBALANCE_TIMEOUT_MIN.max(drain + REBALANCE_MARGIN))
            .max_poll_records(at_most.min(at_once.into()))
            .max_decompressed_size(batch_bytes_max)
            // No limit over all partitions: what one that is paused has left in the client would stop the others. Each
            // has at most one fetch there.
            .max_buffered_records(0)
            .max_partition_fetch_bytes(PARTITION_BYTES_MAX)
            .fetch_max_bytes(FETCH_BYTES_MAX)
            .metrics_push(false)
            .rebalance_listener(RebalancePasser(sender.clone()))
            .build()
            .await
            .map_err(describe)?;
        let brokers = TopicReader(kafka.admin());
        brokers.read_topic_id(&source.dead_letter_topic).await?;
        let mut topic_ids = BTreeMap::new();
        for topic in &source.topics {
            topic_ids.insert(Arc::from(&**topic), brokers.read_topic_id(topic).await?);
        }
        consumer.subscribe(source.topics.iter().map(|topic| &**topic)).await.map_err(describe)?;
        let (consumer, pauses) = (Arc::new(consumer), Arc::default());
        let reader = RecordReader::new(&consumer, &pauses, sender, brokers, topic_ids, body_bytes_max);
        tokio::spawn(reader.run());
        Ok(Self { consumer, producer, events: Mutex::new(events), pauses, broker })
    }

    /// Waits for the next event. `None` once the client is closed. Cancelling it loses no event.
    pub(super) async fn next(&self) -> Option<MemberEvent> {
        self.events.lock().await.recv().await
    }

    /// Reads nothing more of these partitions, and of all others again, without leaving the group.
    pub(super) fn pause(&self, partitions: BTreeSet<PartitionId>) {
        let mut paused = self.pauses.partitions.lock();
        let resumes = !paused.is_subset(&partitions);
        *paused = partitions;
        drop(paused);
        if resumes {
            self.pauses.changed.notify_one();
            self.consumer.wakeup();
        }
    }

    /// Commits offsets: the group continues with them.
    pub(super) async fn commit(&self, offsets: &[(PartitionId, i64)]) -> Result<(), String> {
        let offsets = offsets.iter().map(|(partition, offset)| {
            (TopicPartition::new(&*partition.topic, partition.number), OffsetAndMetadata::new(*offset))
        });
        self.consumer.commit_offsets(offsets.collect::<Vec<_>>()).await.map_err(describe)
    }

    /// Returns the offsets of the assigned partitions, as far as they are known.
    pub(super) async fn offsets(&self) -> Vec<PartitionOffsets> {
        let known = self.consumer.lag().await.into_iter().map(|(partition, lag)| PartitionOffsets {
            partition: id(&partition),
            position: lag.position,
            end: lag.last_stable_offset.or(lag.high_watermark),
        });
        known.collect()
    }

    /// Leaves the group. Offsets are committed before.
    pub(super) async fn close(&self) {
        // The listener waits for no session that has ended.
        let mut events = self.events.lock().await;
        events.close();
        while events.try_recv().is_ok() {}
        self.consumer.wakeup();
        let _ = self.consumer.close().await;
        self.producer.close().await;
    }
}

/// The address of the first broker that has one: the peer of its records' requests.
async fn resolve(brokers: &[Box<str>]) -> Result<IpAddr, String> {
    let mut last = "no broker has an address".to_owned();
    for broker in brokers {
        match lookup_host(&**broker).await.map(|mut found| found.next()) {
            Ok(Some(address)) => return Ok(address.ip()),
            Ok(None) => {}
            Err(error) => last = format!("the broker {broker} cannot be looked up: {error}"),
        }
    }
    Err(last)
}
