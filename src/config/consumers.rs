//! `[[consumers]]`, read and checked.

use std::sync::Arc;

use http::{HeaderName, Method};

use super::broker::{Broker, NAME_BYTES_MAX};
use super::reader::{Found, Place, Section};
use super::route::{Mode, Route};
use super::scope::{self, ScopeRule, ScopeSource};
use crate::domain::filled_path::FilledPath;
use crate::domain::template::Template;

/// A queue whose messages are requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// Where the queue is.
    pub broker: Broker,
    /// Its name; no other consumer has it.
    pub queue: Box<str>,
    /// The name of the route whose policy its messages take. It enforces, and guards POST.
    pub route: Arc<str>,
    /// Where a message's key is.
    pub key: MessageKey,
    /// So many of its messages are in hand at once, at most; at least one.
    pub prefetch: u16,
    /// Where they are posted to: one of the route's own paths, whatever is filled in.
    pub path: FilledPath,
    /// Whose key it is, by fields of the message.
    pub scope: ScopeRule,
    /// Where messages go that will never do.
    pub dead_letter_exchange: Option<Box<str>>,
}

/// Where a message's key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageKey {
    /// In one of its headers.
    Header(HeaderName),
    /// It is the message's id.
    MessageId,
}

impl Consumer {
    /// Whether it is about the same queue.
    pub fn is_of_same_queue(&self, other: &Self) -> bool {
        let place = |consumer: &Self| {
            let Broker { host, port, vhost, .. } = &consumer.broker;
            (host.to_ascii_lowercase(), *port, vhost.clone(), consumer.queue.clone())
        };
        place(self) == place(other)
    }
}

impl MessageKey {
    /// As it would be written.
    pub fn shown(&self) -> String {
        match self {
            Self::Header(name) => format!("header:{name}"),
            Self::MessageId => "message-id".into(),
        }
    }
}

/// All consumers; those in which something is wrong are missing. Of the routes, those that are right are known;
/// `all_known` says whether that is all of them.
pub(super) fn read(top: &Section<'_>, routes: &[Route], all_known: bool) -> Vec<Consumer> {
    let mut consumers: Vec<Consumer> = Vec::new();
    for section in top.tables("consumers", &top.nothing()) {
        let Some((consumer, place)) = consumer(&section, routes, all_known) else { continue };
        if consumers.iter().any(|other| other.is_of_same_queue(&consumer)) {
            section
                .reader()
                .problem(&place, "is another consumer's queue too: one is enough, with a larger `prefetch`");
        }
        consumers.push(consumer);
    }
    consumers
}

fn consumer(section: &Section<'_>, routes: &[Route], all_known: bool) -> Option<(Consumer, Place)> {
    let reader = section.reader();
    let broker = section.text("amqp").and_then(|text| match Broker::parse(&text.value) {
        Ok(broker) => Some(broker),
        // Without the text, which may hold a password.
        Err(message) => {
            reader.problem(&text.place, message);
            None
        }
    });
    let queue = section.parsed("queue", |text| match name(text)? {
        Some(queue) => Ok(queue),
        None => Err("is no name of a queue: write the one that messages wait in".into()),
    });
    let key = section.parsed("key", key);
    let why = "the broker counts so, and to it 0 would be no limit";
    let prefetch = section.integer("prefetch", 1..=usize::from(u16::MAX), why);
    let scope = scope(section);
    let dead_letter_exchange = section.parsed("dead_letter_exchange", name);
    let route = section.text("route").and_then(|text| {
        let found = routes.iter().find(|route| *route.name == *text.value);
        if found.is_none() && all_known {
            reader.problem(&text.place, format!("`{}` is no route's name: write the `name` of one", text.shown));
        }
        Some((found?, text.place))
    });
    // By its own line, whether there is such a route or not.
    let path = section.parsed("path", |text| match text {
        "" => Ok(None),
        text => FilledPath::parse(text).map(Some),
    });
    let (route, place) = route?;
    if let Some(message) = cannot_take(route) {
        reader.problem(&place, message);
        return None;
    }
    let path = posted_to(section, route, path?)?;
    let queue = queue?;
    let consumer = Consumer {
        broker: broker?,
        queue: queue.value,
        route: Arc::clone(&route.name),
        key: key?.value,
        prefetch: u16::try_from(prefetch?.value).expect("its bound is that"),
        path,
        scope: scope?,
        dead_letter_exchange: dead_letter_exchange?.value,
    };
    Some((consumer, queue.place))
}

/// Why no message can be executed once by a route.
fn cannot_take(route: &Route) -> Option<String> {
    let name = &route.name;
    if !route.methods.contains(&Method::POST) {
        return Some(format!("`{name}` does not guard POST, which messages are"));
    }
    match route.mode {
        Mode::Enforce => None,
        Mode::Observe | Mode::Off => Some(format!(
            "`{name}` does not enforce: a message would be executed as often as it is delivered; write \
             `mode = \"enforce\"` there"
        )),
    }
}

/// Where messages go: by the template, or to the one path that the route has.
fn posted_to(section: &Section<'_>, route: &Route, path: Found<Option<FilledPath>>) -> Option<FilledPath> {
    let pattern = route.path.as_str();
    let problem = |message: String| {
        section.reader().problem(&path.place, message);
        None
    };
    let Some(template) = &path.value else {
        return match pattern.contains('{') {
            true => problem(format!(
                "is needed, as `{}` has many paths: write one like `{pattern}` with names of message headers",
                route.name
            )),
            false => FilledPath::parse(pattern).ok(),
        };
    };
    match Template::parse(template.as_str()) {
        Ok(shape) if shape.is_covered_by(&route.path) => path.value,
        _ => problem(format!("`{template}` leads to other paths than those of `{}`: `{pattern}`", route.name)),
    }
}

/// A short name; `None` for an empty text.
fn name(text: &str) -> Result<Option<Box<str>>, String> {
    match text.len() {
        0 => Ok(None),
        1..=NAME_BYTES_MAX => Ok(Some(text.into())),
        _ => Err("is longer than any name that a broker has: 255 bytes".into()),
    }
}

fn key(text: &str) -> Result<MessageKey, String> {
    match text.split_once(':') {
        None if text == "message-id" => Ok(MessageKey::MessageId),
        Some(("header", name)) => super::routes::header_name(name).map(MessageKey::Header),
        _ => Err("is no place in a message that is known here: write `header:NAME` or `message-id`".into()),
    }
}

fn scope(section: &Section<'_>) -> Option<ScopeRule> {
    let rule = scope::read(section)?;
    if rule.parts.iter().all(|part| matches!(part.source, ScopeSource::Header(_))) {
        return Some(rule);
    }
    let written = section.list("scope", |text| Ok::<_, String>(text.to_owned()))?;
    section.reader().problem(&written.place, "has a part that a message does not have: write `header:NAME` or `none`");
    None
}
