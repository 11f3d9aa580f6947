//! The Kafka client of the crate krafka.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64URL_NOPAD;
use krafka::KrafkaError;
use krafka::admin::{AdminClient, DescribeTopicsOptions};
use krafka::consumer::{
    AutoOffsetReset, Consumer, ConsumerRebalanceListener, IsolationLevel, OffsetAndMetadata,
    PartitionAssignmentStrategy, TopicPartition,
};
use parking_lot::Mutex as SyncMutex;
use tokio::net::lookup_host;
use tokio::sync::{Mutex, Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::client::{ClientEvent, ClientFuture, KafkaClient, KafkaRecord, PartitionId, PartitionOffsets};
use crate::kafka::connection::{connect, describe};
use crate::kafka::{KafkaError, KafkaProducer, NewRecord};
use oncegate_settings::{FirstOffset, KafkaSource};

/// The wait of one poll. It is so short that a partition that was paused is soon read again.
const POLL: Duration = Duration::from_millis(250);
/// The bytes of a record that most brokers take, without its headers: a dead letter is one.
const DEAD_LETTER_BYTES: usize = 900_000;
/// The bytes of headers, as many as a request may have.
const HEADERS_BYTES_MAX: usize = 64 * 1024;
/// The room in a batch beside the largest body that the route takes, for its other records.
const BATCH_MARGIN: usize = 8 * 1024 * 1024;
/// The bytes that the client unpacks for one poll at most, each record in a batch of its own.
const UNPACKED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The most bytes of one fetch from a broker, and of one partition in it; Kafka's own default. A batch may be larger.
const FETCH_BYTES_MAX: i32 = 8 * 1024 * 1024;
const PARTITION_BYTES_MAX: i32 = 1024 * 1024;
/// The time limit of a question about a topic: other brokers are asked again and again until then.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two of these questions: as long as an operator may believe a state that is old.
const ASK_INTERVAL: Duration = Duration::from_secs(5);
/// The pause after which a batch that could not be decoded is read again: it may have been garbled on its way.
const STUCK_PAUSE: Duration = Duration::from_secs(10);
/// The pause after an error that the client tries again by itself.
const TROUBLE_PAUSE: Duration = Duration::from_millis(500);
/// The shortest time for which the group waits for a member that settles its records in a rebalance; Kafka's own default.
const REBALANCE_TIMEOUT_MIN: Duration = Duration::from_secs(5 * 60);
/// The time for a commit and a round trip beside the drain.
const REBALANCE_MARGIN: Duration = Duration::from_secs(60);

/// A member of a group.
pub(super) struct KrafkaClient {
    consumer: Arc<Consumer>,
    producer: KafkaProducer,
    events: Mutex<mpsc::Receiver<ClientEvent>>,
    pauses: Arc<Pauses>,
    broker: IpAddr,
}

/// The partitions that are to be paused.
#[derive(Default)]
struct Pauses {
    partitions: SyncMutex<BTreeSet<PartitionId>>,
    /// Some are to be read again.
    changed: Notify,
}

/// Passes rebalances on, and holds each until the session has settled what it had to.
struct RebalancePasser(mpsc::Sender<ClientEvent>);

impl ConsumerRebalanceListener for RebalancePasser {
    async fn on_partitions_assigned(&self, partitions: &[TopicPartition]) {
        let _ = self.0.send(ClientEvent::Assigned(ids(partitions))).await;
    }

    async fn on_partitions_revoked(&self, partitions: &[TopicPartition]) {
        let (released, wait) = oneshot::channel();
        let event = ClientEvent::Revoked { partitions: ids(partitions), released };
        // A session that has ended has committed what it could.
        if self.0.send(event).await.is_ok() {
            let _ = wait.await;
        }
    }

    async fn on_partitions_lost(&self, partitions: &[TopicPartition]) {
        let _ = self.0.send(ClientEvent::Lost(ids(partitions))).await;
    }
}

fn ids(partitions: &[TopicPartition]) -> Vec<PartitionId> {
    partitions.iter().map(|one| PartitionId { topic: one.topic().into(), number: one.partition() }).collect()
}

impl KrafkaClient {
    /// Joins the group. `at_once` is the number of records that are executed at once, `body_bytes_max` the largest body that the route
    /// takes, and `drain` the longest time for which a rebalance is held.
    ///
    /// # Errors
    /// The cause, without the user and the password.
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
            // No limit over all partitions: what one that is paused has left in the client would stop the others. Each has at most one
            // fetch there.
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
        let reader = RecordReader {
            consumer: Arc::clone(&consumer),
            pauses: Arc::clone(&pauses),
            events: sender,
            topic_ids,
            next: BTreeMap::new(),
            stuck: BTreeMap::new(),
            brokers,
            asked_at: Instant::now(),
            record_bytes_max: body_bytes_max.max(DEAD_LETTER_BYTES) + HEADERS_BYTES_MAX,
        };
        tokio::spawn(reader.run());
        Ok(Self { consumer, producer, events: Mutex::new(events), pauses, broker })
    }
}

/// Asks the brokers about topics. The client keeps what it has once heard for minutes.
struct TopicReader(AdminClient);

impl TopicReader {
    /// The id of a topic; empty where the brokers know none.
    async fn read_topic_id(&self, topic: &str) -> Result<Arc<str>, String> {
        let options = DescribeTopicsOptions::default().timeout(ASK_TIMEOUT);
        let found = self.0.describe_topics([topic], options).await.map_err(describe)?.remove(topic);
        let found = found.unwrap_or_else(|| Err(KrafkaError::unknown_topic(topic)));
        let id = found.map_err(|error| format!("the topic `{topic}`: {}", describe(error)))?.topic_id;
        Ok(if id == [0; 16] { Arc::from("") } else { BASE64URL_NOPAD.encode(&id).into() })
    }
}

/// Reads records until the client is closed. In a task of its own, because a poll that is dropped in a rebalance would drop the
/// rebalance's listener with it.
struct RecordReader {
    consumer: Arc<Consumer>,
    pauses: Arc<Pauses>,
    events: mpsc::Sender<ClientEvent>,
    topic_ids: BTreeMap<Arc<str>, Arc<str>>,
    /// The offset behind the last record of each partition.
    next: BTreeMap<(Arc<str>, i32), i64>,
    /// The partitions whose next batch cannot be decoded, each with the time at which it is read again.
    stuck: BTreeMap<PartitionId, Instant>,
    brokers: TopicReader,
    asked_at: Instant,
    /// A larger record is not held: no route takes it, and hardly a topic of dead letters.
    record_bytes_max: usize,
}

impl RecordReader {
    async fn run(mut self) {
        let (mut is_troubled, mut is_answered) = (false, true);
        while !self.events.is_closed() {
            self.apply_pauses().await;
            if self.asked_at.elapsed() >= ASK_INTERVAL {
                let answer = self.ask_brokers().await;
                (self.asked_at, is_answered) = (Instant::now(), answer.is_ok());
                if let Err(event) = answer {
                    is_troubled = true;
                    let _ = self.events.send(event).await;
                }
            }
            let begun = Instant::now();
            let polled = self.consumer.poll(POLL).await;
            if is_troubled && is_answered && polled.is_ok() {
                is_troubled = false;
                let _ = self.events.send(ClientEvent::Recovered).await;
            }
            let event = match polled {
                // A poll that finds everything paused may return at once.
                Ok(records) if records.is_empty() => {
                    let rest = sleep_until(begun + POLL);
                    tokio::select! {
                        () = rest => {}
                        () = self.pauses.changed.notified() => {}
                    }
                    continue;
                }
                Ok(records) => match self.convert(records).await {
                    Ok(records) => ClientEvent::Records(records),
                    Err(cause) => ClientEvent::Failed(cause),
                },
                Err(KrafkaError::Wakeup) => continue,
                Err(KrafkaError::Closed { .. }) => return,
                Err(error) => match (self.undecodable(&error).await, is_passing(&error)) {
                    (Some((partition, offset)), _) if is_too_large(&error) => {
                        match self.pass(partition, offset).await {
                            Ok(record) => ClientEvent::Records(vec![record]),
                            Err(cause) => ClientEvent::Failed(cause),
                        }
                    }
                    // The others are read on without it, and at once.
                    (Some((partition, _)), _) => {
                        self.stuck.insert(partition.clone(), Instant::now() + STUCK_PAUSE);
                        ClientEvent::Stuck { partition, cause: describe(error) }
                    }
                    (None, true) => ClientEvent::Trouble(describe(error)),
                    (None, false) => ClientEvent::Failed(describe(error)),
                },
            };
            let is_trouble = matches!(event, ClientEvent::Trouble(_));
            if self.events.send(event).await.is_err() {
                return;
            }
            if is_trouble {
                is_troubled = true;
                tokio::time::sleep(TROUBLE_PAUSE).await;
            }
        }
    }

    /// Partitions are paused anew after each rebalance, since the client forgets those that it does not have.
    async fn apply_pauses(&mut self) {
        let now = Instant::now();
        self.stuck.retain(|_, until| *until > now);
        let wanted: BTreeSet<_> = {
            let paused = self.pauses.partitions.lock();
            paused.iter().chain(self.stuck.keys()).map(|one| (one.topic.to_string(), one.number)).collect()
        };
        let current: BTreeSet<_> = self.consumer.paused_partitions().await.into_iter().collect();
        for (topic, partition) in current.difference(&wanted) {
            self.consumer.resume(topic, &[*partition]).await;
        }
        let assigned = self.consumer.assignment().await;
        for (topic, partition) in wanted.difference(&current) {
            if assigned.get(topic).is_some_and(|partitions| partitions.contains(partition)) {
                self.consumer.pause(topic, &[*partition]).await;
            }
        }
    }

    /// The partition and the offset whose batch cannot be decoded, if the error is that one. The client says it in the text alone.
    async fn undecodable(&self, error: &KrafkaError) -> Option<(PartitionId, i64)> {
        error.protocol_error_kind()?;
        let text = error.to_string();
        let assigned = self.consumer.assignment().await;
        let mut all = assigned.iter().flat_map(|(topic, numbers)| numbers.iter().map(move |number| (topic, *number)));
        all.find_map(|(topic, number)| {
            let (_, behind) = text.split_once(&format!("undecodable record batch at {topic}-{number} offset "))?;
            let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
            Some((PartitionId { topic: (&**topic).into(), number }, behind[..digits].parse().ok()?))
        })
    }

    /// Passes the record at this offset, whose batch is too large to be unpacked. Nothing tells where the batch ends, so that its records
    /// are passed one by one: each has a dead letter.
    async fn pass(&mut self, partition: PartitionId, offset: i64) -> Result<KafkaRecord, String> {
        self.consumer.seek(&partition.topic, partition.number, offset + 1).await.map_err(describe)?;
        let topic_id = self.topic_id(&partition, offset).await?;
        Ok(KafkaRecord::unread(partition, topic_id, offset))
    }

    /// The id of the topic of a record that was read.
    async fn topic_id(&mut self, PartitionId { topic, number }: &PartitionId, offset: i64) -> Result<Arc<str>, String> {
        // Offsets that begin again may be those of a topic that was created anew, and so may the first ones of a partition.
        let is_anew = self.next.insert((Arc::clone(topic), *number), offset + 1).is_none_or(|next| offset < next);
        match self.topic_ids.get(topic) {
            Some(id) if !is_anew => Ok(Arc::clone(id)),
            _ => {
                let id = self.brokers.read_topic_id(topic).await?;
                self.topic_ids.insert(Arc::clone(topic), Arc::clone(&id));
                Ok(id)
            }
        }
    }

    async fn convert(&mut self, records: Vec<krafka::ConsumerRecord>) -> Result<Vec<KafkaRecord>, String> {
        let mut converted = Vec::with_capacity(records.len());
        for record in records {
            let partition = PartitionId { topic: record.topic, number: record.partition };
            let topic_id = self.topic_id(&partition, record.offset).await?;
            let record = KafkaRecord {
                topic_id,
                partition,
                offset: record.offset,
                timestamp: record.timestamp,
                // Copied: a slice of its batch would keep the whole batch in memory for as long as the record is held.
                key: record.key.as_deref().map(Bytes::copy_from_slice),
                value: record.value.as_deref().map(Bytes::copy_from_slice).unwrap_or_default(),
                headers: record.headers,
                is_unread: false,
            };
            converted.push(match record.bytes() > self.record_bytes_max {
                true => KafkaRecord::unread(record.partition, record.topic_id, record.offset),
                false => record,
            });
        }
        Ok(converted)
    }

    /// Asks the brokers for the topics. A poll says neither that they are away, nor that a topic was created anew, whose records the
    /// client does not read before it has forgotten the old one.
    async fn ask_brokers(&self) -> Result<(), ClientEvent> {
        for (topic, known) in &self.topic_ids {
            let id = self.brokers.read_topic_id(topic).await.map_err(ClientEvent::Trouble)?;
            if id != *known {
                return Err(ClientEvent::Failed(format!("the topic `{topic}` was created anew")));
            }
        }
        Ok(())
    }
}

impl KafkaClient for KrafkaClient {
    fn next(&self) -> ClientFuture<'_, Option<ClientEvent>> {
        Box::pin(async { self.events.lock().await.recv().await })
    }

    fn pause(&self, partitions: BTreeSet<PartitionId>) {
        let mut paused = self.pauses.partitions.lock();
        let resumes = !paused.is_subset(&partitions);
        *paused = partitions;
        drop(paused);
        if resumes {
            self.pauses.changed.notify_one();
            self.consumer.wakeup();
        }
    }

    fn commit(&self, offsets: Vec<(PartitionId, i64)>) -> ClientFuture<'_, Result<(), String>> {
        let offsets = offsets.into_iter().map(|(partition, offset)| {
            (TopicPartition::new(&*partition.topic, partition.number), OffsetAndMetadata::new(offset))
        });
        let offsets: Vec<_> = offsets.collect();
        Box::pin(async { self.consumer.commit_offsets(offsets).await.map_err(describe) })
    }

    fn produce(&self, record: NewRecord) -> ClientFuture<'_, Result<(), KafkaError>> {
        Box::pin(self.producer.produce(record))
    }

    fn offsets(&self) -> ClientFuture<'_, Vec<PartitionOffsets>> {
        Box::pin(async {
            let known = self.consumer.lag().await.into_iter().map(|(partition, lag)| PartitionOffsets {
                partition: PartitionId { topic: partition.topic().into(), number: partition.partition() },
                position: lag.position,
                end: lag.last_stable_offset.or(lag.high_watermark),
            });
            known.collect()
        })
    }

    fn broker(&self) -> IpAddr {
        self.broker
    }

    fn close(&self) -> ClientFuture<'_, ()> {
        Box::pin(async {
            // The listener waits for no session that has ended.
            let mut events = self.events.lock().await;
            events.close();
            while events.try_recv().is_ok() {}
            self.consumer.wakeup();
            let _ = self.consumer.close().await;
            self.producer.close().await;
        })
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

/// Whether the client goes on by itself: a broker is away, or has answered what the client does not understand.
fn is_passing(error: &KrafkaError) -> bool {
    error.is_retriable() || error.protocol_error_kind().is_some()
}

/// Whether a batch is larger, unpacked, than the client may unpack. The client says it in the text alone.
fn is_too_large(error: &KrafkaError) -> bool {
    error.to_string().contains("exceeds maximum")
}
