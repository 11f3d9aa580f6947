//! Reads and checks `[[events]]`: where events go that say how keys were settled.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::uri::PathAndQuery;

use super::consumers::parse_name;
use super::kafka_cluster::{parse_topic, read_cluster};
use super::options::options;
use super::reader::Section;
use super::routes::check_team;
use super::value_parsers::{is_of_lower_name, name};
use oncegate_settings::{
    Broker, EventKey, EventSink, EventTarget, EventType, KafkaTopic, Route, SaslMechanism, UpstreamTarget,
    WebhookSecret, Word, parse_service_url,
};

options! {
    /// The options of `[[events]]`.
    struct EventOptions {
        /// the name under which the store keeps waiting events
        name: Text;
        /// the routes whose keys are told about, by their names
        routes: TextOrTexts = [] => Vec<Box<str>>, values(|text| Ok(text.into()));
        /// what is told: `completed`, `refused`, `unknown`, `resolved`, `given-up`
        types: Texts = ["completed", "refused", "unknown", "resolved", "given-up"] => Vec<EventType>, values(parse_type);
        /// how an event names the key: as it was sent, or by its SHA-256
        key: Choice(EventKey::WORDS) = "plain" => EventKey, choice();
        /// whether an event has the stored response's body
        body: Boolean = false => bool, boolean();
        /// how long it is tried to publish an event, until it is dead and an operator decides
        give_up_after: Duration = "24h" => Duration, duration_above_zero();
        /// a URL that gets each event as a POST
        url: Concealed = "" => Option<(UpstreamTarget, PathAndQuery)>, optional(parse_url);
        /// the secret that signs these, as `whsec_` and base64 (Standard Webhooks)
        secret: Concealed = "" => Option<WebhookSecret>, optional(parse_secret);
        /// a RabbitMQ broker, as `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS
        amqp: Concealed = "" => Option<Broker>, optional(Broker::parse);
        /// the exchange of RabbitMQ; empty for the default exchange, whose routing key is a queue's name
        exchange: Text = "" => Option<Box<str>>, parsed(parse_name);
        /// the routing key; empty for the event's type, such as `oncegate.key.completed`
        routing_key: Text = "" => Option<Box<str>>, parsed(parse_name);
        /// a topic of Kafka
        kafka: Table(EventKafkaOptions::KEYS) = {};
    }
}

options! {
    /// The options of `kafka` in `[[events]]`.
    struct EventKafkaOptions {
        /// brokers of the cluster, as `host:9092`; the others are found through them
        brokers: Texts = [];
        /// the topic; it must exist
        topic: Text = "" => Option<Box<str>>, optional(parse_topic);
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

/// Reads all sinks but those that have problems. `routes` are those without problems; `all_known` tells whether that is
/// all of them.
pub(super) fn read(top: &Section<'_>, routes: &[Route], all_known: bool) -> Vec<EventSink> {
    let mut sinks: Vec<EventSink> = Vec::new();
    for section in top.tables("events") {
        let Some(sink) = read_sink(&section, routes, all_known) else { continue };
        check_team(top, &section, "routes", &sink.routes);
        if sinks.iter().any(|other| other.name == sink.name) {
            section.problem("name", format!("`{}` is another table's name too", sink.name));
        }
        sinks.push(sink);
    }
    sinks
}

fn read_sink(section: &Section<'_>, routes: &[Route], all_known: bool) -> Option<EventSink> {
    let options = EventOptions::read(section);
    let name = section.required("name", parse_sink_name);
    if options.routes.is_empty() && section.is_right(&["routes"]) {
        section.missing("routes", "is missing: write the names of the routes whose keys are told about");
        return None;
    }
    let found: Option<Vec<&Route>> = options
        .routes
        .iter()
        .map(|name| {
            let found = routes.iter().find(|route| *route.name == **name);
            if found.is_none() && all_known && section.is_right(&["routes"]) {
                section.problem("routes", format!("has `{name}`, which is no route's name: write the `name` of one"));
            }
            found
        })
        .collect();
    let target = read_target(section, &options);
    if options.types.is_empty() && section.is_right(&["types"]) {
        section.problem("types", "is empty: write what is told, or leave the table out");
        return None;
    }
    let found = found?;
    let service = Arc::clone(&found.first()?.service.name);
    if let Some(other) = found.iter().find(|route| route.service.name != service) {
        let other = &other.service.name;
        section.problem("routes", format!("are of two services, `{service}` and `{other}`: write a table for each"));
    }
    Some(EventSink {
        name: name?,
        service,
        routes: found.into_iter().flat_map(Route::names).cloned().collect(),
        types: options.types,
        key: options.key,
        body: options.body,
        give_up_after: options.give_up_after,
        target: target?,
    })
}

fn read_target(section: &Section<'_>, options: &EventOptions) -> Option<EventTarget> {
    let is_written = |name: &str| section.first_layer(name).is_some();
    let written: Vec<_> = ["url", "amqp", "kafka"].into_iter().filter(|name| is_written(name)).collect();
    let [target] = written[..] else {
        match written.first() {
            None => section.missing("url", "is missing: write `url`, `amqp` or `kafka`, the place that events go to"),
            Some(first) => section.problem(first, "is not the only place: events of one table go to one place"),
        }
        return None;
    };
    for (name, of) in [("secret", "url"), ("exchange", "amqp"), ("routing_key", "amqp")] {
        if is_written(name) && of != target {
            section.problem(name, format!("needs `{of}` beside it"));
            return None;
        }
    }
    if !section.is_right(&["url", "amqp", "secret", "exchange", "routing_key"]) {
        return None;
    }
    let is_empty = |message: &str| {
        section.problem(target, message);
        None
    };
    match target {
        "url" => match &options.url {
            None => is_empty(URL_EXAMPLE),
            Some((upstream, target)) => Some(EventTarget::Http {
                upstream: Arc::new(upstream.clone()),
                target: target.clone(),
                secret: options.secret.clone(),
            }),
        },
        "amqp" => {
            let Some(broker) = options.amqp.clone() else {
                return is_empty("is no URL of a broker: write `amqp://user:password@host:5672/vhost`");
            };
            let (exchange, routing_key) = (options.exchange.clone(), options.routing_key.clone());
            if exchange.is_none() && routing_key.is_none() {
                section.missing("exchange", "is missing: write `exchange`, or the name of a queue as `routing_key`");
                return None;
            }
            Some(EventTarget::Amqp { broker, exchange: exchange.unwrap_or_default(), routing_key })
        }
        _ => read_topic(&section.table("kafka")).map(EventTarget::Kafka),
    }
}

fn read_topic(section: &Section<'_>) -> Option<KafkaTopic> {
    let EventKafkaOptions { topic } = EventKafkaOptions::read(section);
    let _ = section.need("topic", topic.is_none(), "write the topic that gets the events");
    Some(KafkaTopic { cluster: read_cluster(section)?, topic: topic? })
}

/// Parses the name of a sink.
pub fn parse_sink_name(text: &str) -> Result<Arc<str>, String> {
    name(text, 63, is_of_lower_name, "is no name: write 1 to 63 small letters, digits, `_`, `.` and `-`")
}

fn parse_type(text: &str) -> Result<EventType, String> {
    EventType::parse(text).ok_or_else(|| format!("is no type: write {}", EventType::WORDS.join(", ")))
}

const URL_EXAMPLE: &str = "write it like `https://hooks.example/oncegate`";

fn parse_url(text: &str) -> Result<(UpstreamTarget, PathAndQuery), String> {
    parse_service_url(text, URL_EXAMPLE)
}

/// Parses a secret by the Standard Webhooks, "Signature scheme": the prefix `whsec_`, and 24 to 64 bytes in base64.
fn parse_secret(text: &str) -> Result<WebhookSecret, String> {
    let bytes = text.strip_prefix("whsec_").and_then(|text| STANDARD.decode(text).ok());
    match bytes {
        Some(bytes) if (24..=64).contains(&bytes.len()) => Ok(WebhookSecret(bytes.into())),
        _ => Err("is no secret of the Standard Webhooks: `whsec_` and 24 to 64 bytes in base64; `echo whsec_$(openssl rand -base64 32)` \
                  makes one"
            .into()),
    }
}
