//! Reads the records of a group's member.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64URL_NOPAD;
use krafka::KrafkaError;
use krafka::admin::{AdminClient, DescribeTopicsOptions};
use krafka::consumer::Consumer;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until};

use super::member_event::MemberEvent;
use super::record::{KafkaRecord, PartitionId};
use crate::kafka::connection::describe;

/// The wait of one poll. It is so short that a partition that was paused is soon read again.
const POLL: Duration = Duration::from_millis(250);
/// The bytes of a record that most brokers take, without its headers: a dead letter is one.
const DEAD_LETTER_BYTES: usize = 900_000;
/// The bytes of headers, as many as a request may have.
const HEADERS_BYTES_MAX: usize = 64 * 1024;
/// The time limit of a question about a topic: other brokers are asked again and again until then.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two of these questions: as long as an operator may believe a state that is old.
const ASK_INTERVAL: Duration = Duration::from_secs(5);
/// The pause after which a batch that could not be decoded is read again: it may have been garbled on its way.
const STUCK_PAUSE: Duration = Duration::from_secs(10);
/// The pause after an error that the client tries again by itself.
const TROUBLE_PAUSE: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(super) struct Pauses {
    pub(super) partitions: Mutex<BTreeSet<PartitionId>>,
    /// Some are to be read again.
    pub(super) changed: Notify,
}

/// Asks the brokers about topics. The client keeps what it has once heard for minutes.
pub(super) struct TopicReader(pub(super) AdminClient);

impl TopicReader {
    /// The id of a topic; empty where the brokers know none.
    pub(super) async fn read_topic_id(&self, topic: &str) -> Result<Arc<str>, String> {
        let options = DescribeTopicsOptions::default().timeout(ASK_TIMEOUT);
        let found = self.0.describe_topics([topic], options).await.map_err(describe)?.remove(topic);
        let found = found.unwrap_or_else(|| Err(KrafkaError::unknown_topic(topic)));
        let id = found.map_err(|error| format!("the topic `{topic}`: {}", describe(error)))?.topic_id;
        Ok(if id == [0; 16] { Arc::from("") } else { BASE64URL_NOPAD.encode(&id).into() })
    }
}

/// Reads records until the client is closed. In a task of its own, because a poll that is dropped in a rebalance would
/// drop the rebalance's listener with it.
pub(super) struct RecordReader {
    consumer: Arc<Consumer>,
    pauses: Arc<Pauses>,
    events: mpsc::Sender<MemberEvent>,
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
    /// Reads the topics with these ids for a route that takes bodies of so many bytes.
    pub(super) fn new(
        consumer: &Arc<Consumer>,
        pauses: &Arc<Pauses>,
        events: mpsc::Sender<MemberEvent>,
        brokers: TopicReader,
        topic_ids: BTreeMap<Arc<str>, Arc<str>>,
        body_bytes_max: usize,
    ) -> Self {
        Self {
            consumer: Arc::clone(consumer),
            pauses: Arc::clone(pauses),
            events,
            topic_ids,
            next: BTreeMap::new(),
            stuck: BTreeMap::new(),
            brokers,
            asked_at: Instant::now(),
            record_bytes_max: body_bytes_max.max(DEAD_LETTER_BYTES) + HEADERS_BYTES_MAX,
        }
    }

    pub(super) async fn run(mut self) {
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
                let _ = self.events.send(MemberEvent::Recovered).await;
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
                Ok(records) => self.convert(records).await.map_or_else(MemberEvent::Failed, MemberEvent::Records),
                Err(KrafkaError::Wakeup) => continue,
                Err(KrafkaError::Closed { .. }) => return,
                Err(error) => match (self.undecodable(&error).await, is_passing(&error)) {
                    (Some((partition, offset)), _) if is_too_large(&error) => {
                        let passed = self.pass(partition, offset).await;
                        passed.map_or_else(MemberEvent::Failed, |record| MemberEvent::Records(vec![record]))
                    }
                    // The others are read on without it, and at once.
                    (Some((partition, _)), _) => {
                        self.stuck.insert(partition.clone(), Instant::now() + STUCK_PAUSE);
                        MemberEvent::Stuck { partition, cause: describe(error) }
                    }
                    (None, true) => MemberEvent::Trouble(describe(error)),
                    (None, false) => MemberEvent::Failed(describe(error)),
                },
            };
            let is_trouble = matches!(event, MemberEvent::Trouble(_));
            if self.events.send(event).await.is_err() {
                return;
            }
            if is_trouble {
                is_troubled = true;
                sleep(TROUBLE_PAUSE).await;
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

    /// The partition and the offset whose batch cannot be decoded, if the error is that one. The client says it in the
    /// text alone.
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

    /// Passes the record at this offset, whose batch is too large to be unpacked. Nothing tells where the batch ends,
    /// so that its records are passed one by one: each has a dead letter.
    async fn pass(&mut self, partition: PartitionId, offset: i64) -> Result<KafkaRecord, String> {
        self.consumer.seek(&partition.topic, partition.number, offset + 1).await.map_err(describe)?;
        let topic_id = self.topic_id(&partition, offset).await?;
        Ok(KafkaRecord::unread(partition, topic_id, offset))
    }

    async fn topic_id(&mut self, PartitionId { topic, number }: &PartitionId, offset: i64) -> Result<Arc<str>, String> {
        // Offsets that begin again may be those of a topic that was created anew, and so may the first ones of a
        // partition.
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

    /// Asks the brokers for the topics. A poll says neither that they are away, nor that a topic was created anew,
    /// whose records the client does not read before it has forgotten the old one.
    async fn ask_brokers(&self) -> Result<(), MemberEvent> {
        for (topic, known) in &self.topic_ids {
            let id = self.brokers.read_topic_id(topic).await.map_err(MemberEvent::Trouble)?;
            if id != *known {
                return Err(MemberEvent::Failed(format!("the topic `{topic}` was created anew")));
            }
        }
        Ok(())
    }
}

/// Whether the client goes on by itself: a broker is away, or has answered what the client does not understand.
fn is_passing(error: &KrafkaError) -> bool {
    error.is_retriable() || error.protocol_error_kind().is_some()
}

/// Whether a batch is larger, unpacked, than the client may unpack. The client says it in the text alone.
fn is_too_large(error: &KrafkaError) -> bool {
    error.to_string().contains("exceeds maximum")
}
