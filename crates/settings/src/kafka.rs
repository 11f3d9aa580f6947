//! Clusters of Kafka, and the topics whose records are requests.

use std::sync::Arc;
use std::time::Duration;

use super::{bare_host, is_local};
use crate::words;

words! {
    /// The way to log in at the brokers (SASL).
    pub enum SaslMechanism {
        /// No login.
        None = "none",
        /// RFC 4616: the password as it is.
        Plain = "plain",
        /// RFC 7677.
        ScramSha256 = "scram-sha-256",
        /// The same with SHA-512.
        ScramSha512 = "scram-sha-512",
    }
}

words! {
    /// The records that wait for each other.
    pub enum RecordOrder {
        /// Those with the same record key: one at a time, in their order.
        Key = "key",
        /// All of a partition.
        Partition = "partition",
        /// None.
        None = "none",
    }
}

words! {
    /// The place where a group begins that has committed no offset.
    pub enum FirstOffset {
        /// The oldest record.
        Earliest = "earliest",
        /// The next new record.
        Latest = "latest",
    }
}

/// The brokers of a cluster, and how they are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaCluster {
    /// The brokers that are asked for the others, as `host:port`; at least one.
    pub brokers: Vec<Box<str>>,
    /// The login; `None` for no login.
    pub login: Option<KafkaLogin>,
    /// TLS; `None` for cleartext.
    pub tls: Option<KafkaTls>,
}

/// A login at the brokers.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("KafkaLogin")]
pub struct KafkaLogin {
    /// The mechanism; not [`SaslMechanism::None`].
    pub mechanism: SaslMechanism,
    /// The user.
    pub user: Box<str>,
    /// The password; never shown.
    pub password: Box<str>,
}

/// TLS towards brokers, as PEM.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("KafkaTls")]
pub struct KafkaTls {
    /// The authorities of the brokers' certificates; `None` for those of the system.
    pub authorities: Option<Arc<str>>,
    /// The certificate that is shown to brokers, and its key.
    pub identity: Option<[Arc<str>; 2]>,
}

impl KafkaCluster {
    /// Whether its password crosses a network in cleartext.
    pub fn exposes_password(&self) -> bool {
        let is_plain = self.login.as_ref().is_some_and(|login| login.mechanism == SaslMechanism::Plain);
        let is_far = |broker: &str| broker.parse().is_ok_and(|authority| !is_local(bare_host(&authority)));
        is_plain && self.tls.is_none() && self.brokers.iter().any(|broker| is_far(broker))
    }

    /// Whether the brokers' certificates are verified with the authorities of the system.
    pub(super) fn needs_authorities(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.authorities.is_none())
    }
}

/// Topics of Kafka, read by a consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaSource {
    /// The brokers.
    pub cluster: KafkaCluster,
    /// The topics; at least one.
    pub topics: Vec<Box<str>>,
    /// The consumer group.
    pub group: Box<str>,
    /// The records that wait for each other.
    pub order: RecordOrder,
    /// The place where a group begins that has committed no offset.
    pub first_offset: FirstOffset,
    /// The topic for records that will never succeed.
    pub dead_letter_topic: Box<str>,
    /// The longest time for which one record holds back the committed offset while others pass it, or blocks those
    /// behind it with an unknown outcome.
    pub give_up_after: Duration,
    /// The time after which the group takes a silent member's partitions away.
    pub session_timeout: Duration,
}

impl KafkaSource {
    /// Whether both read the same records: one group shares them out.
    pub(super) fn shares_records_with(&self, other: &Self) -> bool {
        self.group == other.group
            && self.cluster.brokers.iter().any(|broker| other.cluster.brokers.contains(broker))
            && self.topics.iter().any(|topic| other.topics.contains(topic))
    }
}
