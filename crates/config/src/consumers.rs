//! Reads and checks `[[consumers]]`.

use std::sync::Arc;

use http::{HeaderName, Method};

use super::broker::{Broker, NAME_BYTES_MAX};
use super::options::options;
use super::reader::{Section, SourcePosition};
use super::route::Route;
use super::route_options::RouteMode;
use super::scope::{self, ScopeRule, ScopeSource};
use super::value_parsers::header_name;
use oncegate_domain::message_path::MessagePathTemplate;
use oncegate_domain::path_template::PathTemplate;

/// A queue whose messages are requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// The broker that has the queue.
    pub broker: Broker,
    /// The queue's name; no other consumer has it.
    pub queue: Box<str>,
    /// The name of the route whose policy its messages have. The route enforces, and guards POST.
    pub route: Arc<str>,
    /// The place of a message's key.
    pub key: MessageKey,
    /// The most messages that are unacknowledged at once, beside those of unknown outcome; at least one.
    pub prefetch: u16,
    /// The path that they are posted to: one of the route's own, whatever the values.
    pub path: MessagePathTemplate,
    /// The headers of a message that tell callers apart.
    pub scope: ScopeRule,
    /// The exchange for messages that will never succeed.
    pub dead_letter_exchange: Option<Box<str>>,
}

/// The place of a message's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageKey {
    /// In one of its headers.
    Header(HeaderName),
    /// The message's id.
    MessageId,
}

impl Consumer {
    /// Whether a message header of this name, in lower case, is read for the key or the scope.
    pub fn reads_header(&self, name: &str) -> bool {
        let key = match &self.key {
            MessageKey::Header(key) => *key == *name,
            MessageKey::MessageId => false,
        };
        key || self.scope.header_names().any(|header| *header == *name)
    }

    /// Whether both consume the same queue.
    pub fn is_of_same_queue(&self, other: &Self) -> bool {
        let identity = |consumer: &Self| {
            let Broker { host, port, vhost, .. } = &consumer.broker;
            (host.to_ascii_lowercase(), *port, vhost.clone(), consumer.queue.clone())
        };
        identity(self) == identity(other)
    }
}

impl MessageKey {
    /// The text in the configuration.
    pub fn to_text(&self) -> String {
        match self {
            Self::Header(name) => format!("header:{name}"),
            Self::MessageId => "message-id".into(),
        }
    }
}

options! {
    /// The options of `[[consumers]]`.
    pub(super) struct ConsumerOptions {
        /// the broker, as `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS
        amqp: Text => Option<Broker>, required_concealed(Broker::parse);
        /// the queue whose messages are requests; it must exist
        queue: Text => Option<Box<str>>, required(parse_queue);
        /// the name of the route whose policy the messages have; they are posted to its path
        route: Text;
        /// the place of a message's key: `header:NAME` or `message-id`
        key: Text = "header:x-idempotency-key" => MessageKey, parsed(parse_key);
        /// how many messages are unacknowledged at once, beside those of unknown outcome
        prefetch: Integer = 64
            => u16, integer(1..=u16::MAX.into(), "the broker has 16 bits for it, and takes 0 for no limit");
        /// for a route with `{name}` segments: `/orders/{x-order-id}`, by message headers
        path: Text = "" => Option<MessagePathTemplate>, optional(MessagePathTemplate::parse);
        /// the headers that tell callers apart: header:NAME of the message, or none
        scope: Texts = ["header:x-tenant?"];
        /// the exchange for messages that will never succeed; empty: they are rejected
        dead_letter_exchange: Text = "" => Option<Box<str>>, parsed(parse_name);
    }
}

/// Reads all consumers but those that have problems. `routes` are those without problems; `all_known` tells whether
/// that is all of them.
pub(super) fn read(top: &Section<'_>, routes: &[Route], all_known: bool) -> Vec<Consumer> {
    let mut consumers: Vec<Consumer> = Vec::new();
    for section in top.tables("consumers") {
        let Some((consumer, position)) = read_consumer(&section, routes, all_known) else { continue };
        if consumers.iter().any(|other| other.is_of_same_queue(&consumer)) {
            section
                .reader()
                .problem(&position, "is another consumer's queue too: one is enough, with a larger `prefetch`");
        }
        consumers.push(consumer);
    }
    consumers
}

fn read_consumer(section: &Section<'_>, routes: &[Route], all_known: bool) -> Option<(Consumer, SourcePosition)> {
    let reader = section.reader();
    let options = ConsumerOptions::read(section);
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
    let consumer = Consumer {
        broker: options.amqp?,
        queue: options.queue?,
        route: Arc::clone(&route.name),
        key: options.key,
        prefetch: options.prefetch,
        path,
        scope: scope?,
        dead_letter_exchange: options.dead_letter_exchange,
    };
    Some((consumer, section.position("queue")))
}

/// The reason why a route cannot execute messages once, where there is one.
fn refusal_of_route(route: &Route) -> Option<String> {
    let name = &route.name;
    if !route.methods.contains(&Method::POST) {
        return Some(format!("`{name}` does not guard POST, the method of messages"));
    }
    match route.mode {
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
fn parse_name(text: &str) -> Result<Option<Box<str>>, String> {
    match text.len() {
        0 => Ok(None),
        1..=NAME_BYTES_MAX => Ok(Some(text.into())),
        _ => Err("is longer than any name that a broker has: 255 bytes".into()),
    }
}

fn parse_queue(text: &str) -> Result<Box<str>, String> {
    parse_name(text)?.ok_or_else(|| "is no name of a queue: write the name of the queue that has the messages".into())
}

fn parse_key(text: &str) -> Result<MessageKey, String> {
    match text.split_once(':') {
        None if text == "message-id" => Ok(MessageKey::MessageId),
        Some(("header", name)) => header_name(name).map(MessageKey::Header),
        _ => Err("is no known place in a message: write `header:NAME` or `message-id`".into()),
    }
}

fn read_scope(section: &Section<'_>) -> Option<ScopeRule> {
    let rule = scope::read(section, None)?;
    if rule.parts.iter().all(|part| matches!(part.source, ScopeSource::Header(_))) {
        return Some(rule);
    }
    section.problem("scope", "has a part that a message does not have: write `header:NAME` or `none`");
    None
}
