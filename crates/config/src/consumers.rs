//! Reads and checks `[[consumers]]`.

use std::sync::Arc;

use http::{HeaderName, Method};

use super::kafka::{self, KafkaOptions};
use super::key::parse_step;
use super::options::options;
use super::reader::{Section, SourcePosition};
use super::routes::check_team;
use super::scope;
use oncegate_domain::message_path::MessagePathTemplate;
use oncegate_domain::path_template::PathTemplate;
use oncegate_domain::place::Place;
use oncegate_settings::{
    AmqpSource, BROKER_NAME_BYTES_MAX, Broker, Consumer, MessageKey, MessageKeyPlace, MessageSource, Route, RouteMode,
    ScopePart, ScopeRule, ScopeSource,
};

options! {
    struct ConsumerOptions {
        /// a RabbitMQ broker, as `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS
        amqp: Concealed = "" => Option<Broker>, optional(Broker::parse);
        /// the queue of RabbitMQ whose messages are requests; it must exist
        queue: Text = "" => Option<Box<str>>, parsed(parse_name);
        /// topics of Kafka whose records are requests
        kafka: Table(KafkaOptions::KEYS) = {};
        /// the name of the route whose policy the messages have; they are posted to its path
        route: Text;
        /// the place of a message's key: `header:NAME`, a place of the body such as `json:/id`, `message-id`, or with
        /// Kafka `kafka-key`; empty for `header:x-idempotency-key`, and with Kafka for `message-id`: the topic, the
        /// partition and the offset
        key: Place(&["kafka-key", "message-id"]) = "" => Option<MessageKeyPlace>, optional(parse_key);
        /// a step of a saga, which is appended to the key's value behind a colon
        step: Text = "" => Option<Box<str>>, optional(parse_step);
        /// how many messages are unacknowledged (Kafka: executed) at once, beside those of unknown outcome
        prefetch: Integer = 64
            => u16, integer(1..=u16::MAX.into(), "the broker has 16 bits for it, and takes 0 for no limit");
        /// for a route with `{name}` segments: `/orders/{x-order-id}`, by message headers
        path: Path = "" => Option<MessagePathTemplate>, optional(MessagePathTemplate::parse);
        /// the parts that tell callers apart: header:NAME of the message, a place of the body, or none
        scope: Places(&["none"]) = ["header:x-tenant?"];
        /// the exchange of RabbitMQ for messages that will never succeed; empty: they are rejected
        dead_letter_exchange: Text = "" => Option<Box<str>>, parsed(parse_name);
    }
}

/// Reads all consumers but those that have problems. `routes` are those without problems; `all_known` tells whether
/// that is all of them.
pub(super) fn read(top: &Section<'_>, routes: &[Route], all_known: bool) -> Vec<Consumer> {
    let mut consumers: Vec<Consumer> = Vec::new();
    for section in top.tables("consumers") {
        let Some((consumer, position)) = read_consumer(&section, routes, all_known) else { continue };
        check_team(top, &section, "route", std::slice::from_ref(&consumer.route));
        if consumers.iter().any(|other| other.shares_messages_with(&consumer)) {
            let message = match &consumer.source {
                MessageSource::Amqp(_) => "is another consumer's queue too: one is enough, with a larger `prefetch`",
                MessageSource::Kafka(_) => "has a topic that another consumer of its group has too",
            };
            section.reader().problem(&position, message);
        }
        consumers.push(consumer);
    }
    consumers
}

fn read_consumer(section: &Section<'_>, routes: &[Route], all_known: bool) -> Option<(Consumer, SourcePosition)> {
    let reader = section.reader();
    let options = ConsumerOptions::read(section);
    let source = read_source(section, &options);
    let scope = read_scope(section);
    let route = section.text("route").and_then(|text| {
        let found = routes.iter().find(|route| *route.name == *text.value);
        if found.is_none() && all_known {
            reader.problem(&text.position, format!("`{}` is no route's name: write the `name` of one", text.shown));
        }
        Some((found?, text.position))
    });
    let (route, position) = route?;
    if let Some(message) = refusal_of_route(route) {
        reader.problem(&position, message);
        return None;
    }
    let path = resolve_path(section, route, options.path)?;
    let (source, place, position) = match source? {
        (source @ MessageSource::Amqp(_), position) => {
            let place = || MessageKeyPlace::Place(Place::Header(HeaderName::from_static("x-idempotency-key"), None));
            let place = options.key.unwrap_or_else(place);
            if place == MessageKeyPlace::KafkaKey {
                section.problem("key", "is of Kafka's records, and this is a queue of RabbitMQ");
            }
            (source, place, position)
        }
        (MessageSource::Kafka(source), position) => {
            kafka::check_route(section, &source, route)?;
            (MessageSource::Kafka(source), options.key.unwrap_or(MessageKeyPlace::MessageId), position)
        }
    };
    let route = Arc::clone(&route.name);
    let key = MessageKey { place, step: options.step };
    Some((Consumer { source, route, key, prefetch: options.prefetch, path, scope: scope? }, position))
}

/// Reads the messages' place, with its position: RabbitMQ's queue, or Kafka's topics.
fn read_source(section: &Section<'_>, options: &ConsumerOptions) -> Option<(MessageSource, SourcePosition)> {
    let is_written = |name: &str| section.first_layer(name).is_some();
    if is_written("kafka") {
        if let Some(other) = ["amqp", "queue", "dead_letter_exchange"].into_iter().find(|name| is_written(name)) {
            section.problem(other, "stands beside `kafka`: a consumer has one broker");
            return None;
        }
        return Some((MessageSource::Kafka(kafka::read(&section.table("kafka"))?), section.position("kafka")));
    }
    for name in ["amqp", "queue"] {
        if !is_written(name) {
            section.missing(name, "is missing: write `amqp` and `queue`, or `kafka`");
        }
    }
    for (name, is_empty, message) in [
        ("amqp", options.amqp.is_none(), "is no URL of a broker: write `amqp://user:password@host:5672/vhost`"),
        ("queue", options.queue.is_none(), "is no name of a queue: write the name of the queue that has the messages"),
    ] {
        if is_empty && is_written(name) && section.is_right(&[name]) {
            section.problem(name, message);
        }
    }
    let (broker, queue) = (options.amqp.clone()?, options.queue.clone()?);
    let dead_letter_exchange = options.dead_letter_exchange.clone();
    Some((MessageSource::Amqp(AmqpSource { broker, queue, dead_letter_exchange }), section.position("queue")))
}

/// The reason why a route cannot execute messages once, where there is one.
fn refusal_of_route(route: &Route) -> Option<String> {
    let name = &route.name;
    if !route.options.methods.contains(&Method::POST) {
        return Some(format!("`{name}` does not guard POST, the method of messages"));
    }
    match route.options.mode {
        RouteMode::Enforce => None,
        RouteMode::Observe | RouteMode::Off => Some(format!(
            "`{name}` does not enforce: a message would be executed as often as it is delivered; write \
             `mode = \"enforce\"` there"
        )),
    }
}

/// The path of messages: the template, or the route's only path.
fn resolve_path(
    section: &Section<'_>,
    route: &Route,
    path: Option<MessagePathTemplate>,
) -> Option<MessagePathTemplate> {
    let pattern = route.path.as_str();
    // Neither path is shown: they may be filled in from the environment.
    let problem = |message: &str| {
        section.problem("path", format!("{message}: write the route's path with names of message headers"));
        None
    };
    if !section.is_right(&["path"]) {
        return None;
    }
    let Some(template) = &path else {
        return match pattern.contains('{') {
            true => problem("is needed, because the route has many paths"),
            false => MessagePathTemplate::parse(pattern).ok(),
        };
    };
    match PathTemplate::parse(template.as_str()) {
        Ok(shape) if shape.is_covered_by(&route.path) => path,
        _ => problem("leads to other paths than those of the route"),
    }
}

/// Parses a name of the broker's; `None` for an empty text.
pub(super) fn parse_name(text: &str) -> Result<Option<Box<str>>, String> {
    match text.len() {
        0 => Ok(None),
        1..=BROKER_NAME_BYTES_MAX => Ok(Some(text.into())),
        _ => Err("is longer than any name that a broker has: 255 bytes".into()),
    }
}

fn parse_key(text: &str) -> Result<MessageKeyPlace, String> {
    match text {
        "message-id" => return Ok(MessageKeyPlace::MessageId),
        "kafka-key" => return Ok(MessageKeyPlace::KafkaKey),
        _ => {}
    }
    // The text is not shown: it may be filled in from the environment.
    if text.starts_with("body:") {
        return Err("is written with `json:` for `body:` now, and a step behind another colon with `step`".into());
    }
    if text.strip_prefix("header:").is_some_and(|name| name.contains(':') && !name.contains('#')) {
        return Err("has a step behind the name, which is written with `step` now".into());
    }
    match Place::parse(text) {
        Ok(place) if place.is_pattern() => Err("has a `*`: a key is one value, in one place".into()),
        Ok(place @ Place::Header(..)) => Ok(MessageKeyPlace::Place(place)),
        Ok(place) if place.is_in_body() => Ok(MessageKeyPlace::Place(place)),
        Ok(_) => Err(NO_MESSAGE_PLACE.into()),
        Err(_) if !Place::has_kind(text) => Err(NO_MESSAGE_PLACE.into()),
        Err(problem) => Err(problem),
    }
}

const NO_MESSAGE_PLACE: &str = "is no place in a message: write `header:NAME`, a place of the body such as `json:/id`, `message-id`, or \
                                `kafka-key`";

fn read_scope(section: &Section<'_>) -> Option<ScopeRule> {
    let rule = scope::read(section, None)?;
    let is_in_messages = |part: &ScopePart| match &part.source {
        ScopeSource::Place(place) => matches!(place, Place::Header(..)) || place.is_in_body(),
        ScopeSource::Authorization | ScopeSource::ClientCertificate | ScopeSource::Jwt { .. } => false,
    };
    if rule.parts.iter().all(is_in_messages) {
        return Some(rule);
    }
    section.problem(
        "scope",
        "has a part that a message does not have: write `header:NAME`, a place of the body or `none`",
    );
    None
}
