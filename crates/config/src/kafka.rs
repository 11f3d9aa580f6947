//! Reads and checks `kafka` of `[[consumers]]`: topics whose records are requests.

use std::time::Duration;

use super::kafka_cluster::{parse_topic, read_cluster};
use super::options::options;
use super::reader::Section;
use oncegate_settings::{DeliveryMode, FirstOffset, KafkaSource, RecordOrder, Route, SaslMechanism, Word};

/// The longest name of a group.
const GROUP_BYTES_MAX: usize = 255;

options! {
    struct KafkaOptions {
        /// brokers of the cluster, as `host:9092`; the others are found through them
        brokers: Texts = [];
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
        /// how long one record may hold back the committed offset while others pass it, or stay unknown, until it is a
        /// dead letter
        give_up_after: Duration = "10m" => Duration, duration_above_zero();
        /// how long a member may be silent before its partitions go to others
        session_timeout: Duration = "45s" => Duration, duration_above_zero();
        /// the login at the brokers
        sasl: Choice(SaslMechanism::WORDS) = "none";
        /// the user of the login
        user: Text = "";
        /// the password of the login
        password: Concealed = "";
        /// whether TLS is spoken
        tls: Boolean = false;
        /// a PEM file: the authorities of the brokers' certificates; empty for the system's
        ca: Text = "";
        /// a PEM file: the certificate that is shown to brokers, and its chain
        certificate: Text = "";
        /// a PEM file: that certificate's private key
        key: Text = "";
    }
}

pub(super) fn read(section: &Section<'_>) -> Option<KafkaSource> {
    let options = KafkaOptions::read(section);
    let dead_letter_topic = options.dead_letter_topic.unwrap_or_default();
    const DEAD_LETTERS: &str =
        "write the topic for records that can never succeed: Kafka has none of its own, and they would be lost";
    let needed = [
        section.need("topics", options.topics.is_empty(), "write the topics whose records are requests"),
        section.need("group", options.group.is_empty(), "write the name of the consumer group"),
        section.need("dead_letter_topic", dead_letter_topic.is_empty(), DEAD_LETTERS),
    ];
    let cluster = read_cluster(section)?;
    if needed.contains(&None) {
        return None;
    }
    if options.topics.contains(&dead_letter_topic) {
        section.conflict(&["topics", "dead_letter_topic"], "a dead letter would be read again as a record");
    }
    if options.session_timeout < SESSION_TIMEOUT_MIN {
        section.problem("session_timeout", "is too short: three heartbeats, a second apart, must fit in it");
    }
    Some(KafkaSource {
        cluster,
        topics: options.topics,
        group: options.group,
        order: options.order,
        first_offset: options.first_offset,
        dead_letter_topic,
        give_up_after: options.give_up_after,
        session_timeout: options.session_timeout,
    })
}

/// A heartbeat is sent three times in a session.
const SESSION_TIMEOUT_MIN: Duration = Duration::from_secs(3);

/// Checks what a consumer and its route say together.
pub(super) fn check_route(section: &Section<'_>, source: &KafkaSource, route: &Route) -> Option<()> {
    let section = section.table("kafka");
    // A record that is settled behind another one is read again after a crash. Its key must still be stored then.
    if source.give_up_after > route.options.ttl / 2 {
        let ttl = route.options.ttl.as_secs();
        let message = format!(
            "must be at most half of the route's `ttl`, which is {ttl} s: after a crash, records that passed this one are read again, \
             and their keys must still be stored"
        );
        section.problem("give_up_after", message);
        return None;
    }
    if route.options.delivery == DeliveryMode::Async && source.order != RecordOrder::None {
        section.problem("order", "must be `none` on a route with `delivery = \"async\"`: deliveries keep no order");
        return None;
    }
    Some(())
}

fn parse_group(text: &str) -> Result<Box<str>, String> {
    match text.len() {
        0..=GROUP_BYTES_MAX => Ok(text.into()),
        _ => Err("is longer than 255 bytes".into()),
    }
}
