//! Reads and checks `kafka` of `[[consumers]]`: topics whose records are requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::delivery::DeliveryMode;
use super::options::options;
use super::reader::Section;
use super::route::Route;
use super::server_url::{bare_host, is_local, parse_authority};
use super::tls::read_pair;
use super::words::{Word, words};
use oncegate_trust::tls;

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

/// Topics of Kafka, read by a consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaSource {
    /// The brokers that are asked for the others, as `host:port`; at least one.
    pub brokers: Vec<Box<str>>,
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
    /// The longest time for which one record holds back the committed offset while others pass it, or blocks those behind it with an
    /// unknown outcome.
    pub give_up_after: Duration,
    /// The time after which the group takes a silent member's partitions away.
    pub session_timeout: Duration,
    /// The login; `None` for no login.
    pub login: Option<KafkaLogin>,
    /// TLS; `None` for cleartext.
    pub tls: Option<KafkaTls>,
}

/// A login at the brokers.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaLogin {
    /// The mechanism; not [`SaslMechanism::None`].
    pub mechanism: SaslMechanism,
    /// The user.
    pub user: Box<str>,
    /// The password; never shown.
    pub password: Box<str>,
}

impl fmt::Debug for KafkaLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KafkaLogin")
    }
}

/// TLS towards brokers, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaTls {
    /// The authorities of the brokers' certificates; `None` for those of the system.
    pub authorities: Option<Arc<str>>,
    /// The certificate that is shown to brokers, and its key.
    pub identity: Option<[Arc<str>; 2]>,
}

impl fmt::Debug for KafkaTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KafkaTls")
    }
}

impl KafkaSource {
    /// Whether both read the same records: one group shares them out.
    pub(super) fn shares_records_with(&self, other: &Self) -> bool {
        self.group == other.group
            && self.brokers.iter().any(|broker| other.brokers.contains(broker))
            && self.topics.iter().any(|topic| other.topics.contains(topic))
    }

    /// Whether its password crosses a network in cleartext.
    pub(super) fn exposes_password(&self) -> bool {
        let is_plain = self.login.as_ref().is_some_and(|login| login.mechanism == SaslMechanism::Plain);
        let is_far = |broker: &str| broker.parse().is_ok_and(|authority| !is_local(bare_host(&authority)));
        is_plain && self.tls.is_none() && self.brokers.iter().any(|broker| is_far(broker))
    }
}

/// The longest name of a topic; Kafka's own limit.
const TOPIC_BYTES_MAX: usize = 249;
/// The longest name of a group.
const GROUP_BYTES_MAX: usize = 255;

options! {
    /// The options of `kafka` in `[[consumers]]`.
    pub(super) struct KafkaOptions {
        /// brokers of the cluster, as `host:9092`; the others are found through them
        brokers: Texts = [] => Vec<Box<str>>, values(parse_broker);
        /// the topics whose records are requests; they must exist
        topics: TextOrTexts = [] => Vec<Box<str>>, values(parse_topic);
        /// the consumer group
        group: Text = "" => Box<str>, parsed(parse_group);
        /// the topic for records that will never succeed; it must exist
        dead_letter_topic: Text = "" => Option<Box<str>>, optional(parse_topic);
        /// the records that are executed one at a time: those with one record key, those of a partition, or none
        order: Choice(RecordOrder::WORDS) = "key" => RecordOrder, choice();
        /// where a group begins that has committed no offset
        first_offset: Choice(FirstOffset::WORDS) = "earliest" => FirstOffset, choice();
        /// how long one record may hold back the committed offset while others pass it, or stay unknown, until it is a dead letter
        give_up_after: Duration = "10m" => Duration, duration_above_zero();
        /// how long a member may be silent before its partitions go to others
        session_timeout: Duration = "45s" => Duration, duration_above_zero();
        /// the login at the brokers
        sasl: Choice(SaslMechanism::WORDS) = "none" => SaslMechanism, choice();
        /// the user of the login
        user: Text = "" => String, string();
        /// the password of the login
        password: Text = "" => String, concealed(|text| Ok(text.to_owned()));
        /// whether TLS is spoken
        tls: Boolean = false => bool, boolean();
        /// a PEM file: the authorities of the brokers' certificates; empty for the system's
        ca: Text = "" => String, string();
        /// a PEM file: the certificate that is shown to brokers, and its chain
        certificate: Text = "" => String, string();
        /// a PEM file: that certificate's private key
        key: Text = "" => String, string();
    }
}

/// Reads the whole table.
pub(super) fn read(section: &Section<'_>) -> Option<KafkaSource> {
    let options = KafkaOptions::read(section);
    if !cfg!(feature = "kafka") {
        section.problem("brokers", "needs a program that was built with the feature `kafka`");
        return None;
    }
    let is_empty = |name: &str, is_empty: bool, what: &str| {
        if is_empty && section.is_right(&[name]) {
            section.missing(name, format!("is missing: write {what}"));
        }
        is_empty
    };
    let dead_letter_topic = options.dead_letter_topic.unwrap_or_default();
    let missing = [
        is_empty("brokers", options.brokers.is_empty(), "one broker or more, as `host:9092`"),
        is_empty("topics", options.topics.is_empty(), "the topics whose records are requests"),
        is_empty("group", options.group.is_empty(), "the name of the consumer group"),
        is_empty(
            "dead_letter_topic",
            dead_letter_topic.is_empty(),
            "the topic for records that can never succeed: Kafka has none of its own, and they would be lost",
        ),
    ];
    if missing.contains(&true) {
        return None;
    }
    if options.topics.contains(&dead_letter_topic) {
        section.conflict(&["topics", "dead_letter_topic"], "a dead letter would be read again as a record");
    }
    if options.session_timeout < SESSION_TIMEOUT_MIN {
        section.problem("session_timeout", "is too short: three heartbeats, a second apart, must fit in it");
    }
    let login = match (options.sasl, options.user.is_empty() || options.password.is_empty()) {
        (SaslMechanism::None, _) if options.user.is_empty() && options.password.is_empty() => None,
        (SaslMechanism::None, _) => {
            section.problem("sasl", "must be written beside `user` and `password`");
            return None;
        }
        (_, true) => {
            section.problem("sasl", "needs `user` and `password` beside it");
            return None;
        }
        (mechanism, false) => {
            Some(KafkaLogin { mechanism, user: options.user.into(), password: options.password.into() })
        }
    };
    let tls = read_tls(section, options.tls, [&options.ca, &options.certificate, &options.key])?;
    Some(KafkaSource {
        brokers: options.brokers,
        topics: options.topics,
        group: options.group,
        order: options.order,
        first_offset: options.first_offset,
        dead_letter_topic,
        give_up_after: options.give_up_after,
        session_timeout: options.session_timeout,
        login,
        tls,
    })
}

/// A heartbeat is sent three times in a session.
const SESSION_TIMEOUT_MIN: Duration = Duration::from_secs(3);

/// Checks what a consumer and its route say together.
pub(super) fn check_route(section: &Section<'_>, source: &KafkaSource, route: &Route) -> Option<()> {
    let section = section.table("kafka");
    // A record that is settled behind another one is read again after a crash. Its key must still be stored then.
    if source.give_up_after > route.ttl / 2 {
        let ttl = route.ttl.as_secs();
        let message = format!(
            "must be at most half of the route's `ttl`, which is {ttl} s: after a crash, records that passed this one are read again, \
             and their keys must still be stored"
        );
        section.problem("give_up_after", message);
        return None;
    }
    if route.delivery == DeliveryMode::Async && source.order != RecordOrder::None {
        section.problem("order", "must be `none` on a route with `delivery = \"async\"`: deliveries keep no order");
        return None;
    }
    Some(())
}

/// Reads the files of TLS: `Some(None)` for cleartext.
fn read_tls(section: &Section<'_>, tls: bool, [ca, certificate, key]: [&str; 3]) -> Option<Option<KafkaTls>> {
    if !tls {
        for (name, path) in [("ca", ca), ("certificate", certificate), ("key", key)] {
            if !path.is_empty() {
                section.problem(name, "needs `tls = true` beside it");
                return None;
            }
        }
        return Some(None);
    }
    let check = |name: &str, path: &str, checked: Result<(), String>| {
        checked.map_err(|message| section.problem(name, format!("`{path}` {message}"))).ok()
    };
    let authorities = match ca {
        "" => None,
        path => {
            let text = section.file("ca", path)?;
            check("ca", path, tls::parse_certificates(text.as_bytes()).map(drop))?;
            Some(text.into())
        }
    };
    let identity = match read_pair(section, certificate, key)? {
        None => None,
        Some([chain, secret]) => {
            check("certificate", certificate, tls::parse_certificates(chain.as_bytes()).map(drop))?;
            check("key", key, tls::parse_private_key(secret.as_bytes()).map(drop))?;
            Some([chain.into(), secret.into()])
        }
    };
    Some(Some(KafkaTls { authorities, identity }))
}

fn parse_broker(text: &str) -> Result<Box<str>, String> {
    const EXAMPLE: &str = "write `host:9092`";
    let authority = parse_authority(text, EXAMPLE, "")?;
    if text.contains('@') {
        return Err(format!("has a user, whose place is `user`: {EXAMPLE}"));
    }
    match authority.port_u16() {
        Some(_) => Ok(text.to_ascii_lowercase().into()),
        None => Ok(format!("{}:9092", text.to_ascii_lowercase()).into()),
    }
}

fn parse_topic(text: &str) -> Result<Box<str>, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match (1..=TOPIC_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_part) && !matches!(text, "." | "..") {
        true => Ok(text.into()),
        false => Err("is no name of a topic: 1 to 249 letters, digits, `.`, `_` and `-`".into()),
    }
}

fn parse_group(text: &str) -> Result<Box<str>, String> {
    match text.len() {
        0..=GROUP_BYTES_MAX => Ok(text.into()),
        _ => Err("is longer than 255 bytes".into()),
    }
}
