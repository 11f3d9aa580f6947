//! A record of Kafka, also as any broker's message and as a dead letter.

use std::sync::Arc;

use bytes::Bytes;

use crate::consumers::decode::{KAFKA_KEY, SentMessage};
use crate::kafka::NewRecord;
use oncegate_engine::gate::message::OutcomeReason;
use oncegate_settings::{Consumer, KafkaSource, RecordOrder};

#[derive(Clone, Debug, derive_more::Display, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[display("{topic}/{number}")]
pub(super) struct PartitionId {
    pub(super) topic: Arc<str>,
    pub(super) number: i32,
}

#[derive(Clone, Debug)]
pub(super) struct KafkaRecord {
    pub(super) partition: PartitionId,
    /// The topic's own id; empty where the brokers know none. A topic that is created anew has another id, and offsets
    /// that begin again.
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

/// The records of a partition that wait for each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum LaneId {
    Key(Bytes),
    Partition,
    Alone(i64),
}

impl From<&KafkaRecord> for SentMessage {
    fn from(record: &KafkaRecord) -> Self {
        let headers = record.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_deref()));
        let key = (KAFKA_KEY.to_owned(), record.key.as_deref());
        let headers = headers.filter(|(name, _)| name != KAFKA_KEY).chain(record.key.is_some().then_some(key));
        Self {
            headers: headers.map(|(name, value)| (name, value.map(<[u8]>::to_vec))).collect(),
            id: Some(record.id()),
            content: [None, None],
            timestamp: u64::try_from(record.timestamp).ok().map(|millis| millis / 1000),
            topic: Some(Arc::clone(&record.partition.topic)),
        }
    }
}

/// The bytes that a record takes beside its key, its value and its headers: the structures that hold it.
const RECORD_OVERHEAD: usize = 512;

impl KafkaRecord {
    /// A record of which nothing but its place is held, because it or its batch is too large.
    pub(super) fn unread(partition: PartitionId, topic_id: Arc<str>, offset: i64) -> Self {
        let (key, value, headers) = (None, Bytes::new(), Vec::new());
        Self { partition, topic_id, offset, timestamp: -1, key, value, headers, is_unread: true }
    }

    /// Returns the records that it waits for.
    pub(super) fn lane(&self, order: RecordOrder) -> LaneId {
        match (order, &self.key) {
            (RecordOrder::Key, Some(key)) => LaneId::Key(key.clone()),
            (RecordOrder::Partition, _) => LaneId::Partition,
            (RecordOrder::Key, None) | (RecordOrder::None, _) => LaneId::Alone(self.offset),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let length = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + length(value)).sum();
        self.value.len() + length(&self.key) + headers + RECORD_OVERHEAD
    }

    /// The name of the record that no other record has: topic, partition, offset, and the topic's id where it is known.
    pub(super) fn id(&self) -> String {
        let Self { partition, offset, topic_id, .. } = self;
        match &**topic_id {
            "" => format!("{partition}/{offset}"),
            id => format!("{partition}/{offset}/{id}"),
        }
    }

    /// The record as a dead letter, with the reason, its origin, and the number of attempts.
    pub(super) fn dead_letter(
        &self,
        consumer: &Consumer,
        source: &KafkaSource,
        reason: &OutcomeReason,
        attempts: u32,
    ) -> NewRecord {
        // An earlier dead letter's headers are not this one's.
        let mut headers = self.headers.clone();
        headers.retain(|(name, _)| !name.to_ascii_lowercase().starts_with("x-oncegate-"));
        let mut add =
            |name: &str, value: String| headers.push((format!("x-oncegate-{name}"), Some(Bytes::from(value))));
        add("reason", reason.slug.into());
        add("detail", reason.detail.to_string());
        if let Some(status) = reason.status {
            add("status", status.as_u16().to_string());
        }
        add("route", consumer.route.to_string());
        add("group", source.group.to_string());
        add("topic", self.partition.topic.to_string());
        add("partition", self.partition.number.to_string());
        add("offset", self.offset.to_string());
        add("timestamp", self.timestamp.to_string());
        add("attempts", attempts.to_string());
        let topic = Arc::from(&*source.dead_letter_topic);
        NewRecord { topic, key: self.key.clone(), value: self.value.clone(), headers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_key_is_a_header_that_no_publisher_can_replace() {
        let record = KafkaRecord {
            partition: PartitionId { topic: "orders".into(), number: 3 },
            topic_id: "id".into(),
            offset: 42,
            timestamp: 784_111_777_123,
            key: Some(Bytes::from_static(b"order-1")),
            value: Bytes::new(),
            headers: vec![("Kafka-Key".into(), Some(Bytes::from_static(b"other"))), ("X-Null".into(), None)],
            is_unread: false,
        };
        let sent = SentMessage::from(&record);
        assert_eq!(sent.headers, [("x-null".into(), None), ("kafka-key".into(), Some(b"order-1".to_vec()))]);
        assert_eq!((sent.id.as_deref(), sent.timestamp), (Some("orders/3/42/id"), Some(784_111_777)));
        assert_eq!(KafkaRecord { topic_id: "".into(), ..record }.id(), "orders/3/42");
    }
}
