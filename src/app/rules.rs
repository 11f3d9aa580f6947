//! How each route finds its keys, compared with how it did when this service was last started.
//!
//! A reload refuses to change that. A restart may: nobody but the operator can tell whether keys are still needed, and so
//! it says what it means.

use std::sync::Arc;

use crate::config::{Config, KeySource, Mode, Route, Space};
use crate::domain::key::Syntax;
use crate::store::{Rule, Store, StoreError};

/// Remembers the rules of the routes that guard, and warns of those that have changed: one line for each route.
///
/// # Errors
/// The store's.
pub(super) async fn compare(store: &dyn Store, config: &Config) -> Result<(), StoreError> {
    let guarding = config.routes.iter().filter(|route| route.mode == Mode::Enforce);
    let now: Vec<_> = guarding.map(|route| Rule { route: Arc::clone(&route.name), finds: finds(route) }).collect();
    for before in store.rules(Arc::clone(&config.service), now.clone()).await? {
        let Some(rule) = now.iter().find(|rule| rule.route == before.route) else { continue };
        let changed = changed(&before.finds, &rule.finds);
        tracing::warn!(
            route = %before.route,
            changed,
            "this route finds its keys in another way than when it was last started: keys from before, those in flight \
             too, protect nothing any more, and their retries are executed again"
        );
    }
    Ok(())
}

/// What finds a key, in lines that begin with a name each. It stands in the store: a change of how it is written would be
/// taken for a change of the rules.
fn finds(route: &Route) -> String {
    let scope: Vec<_> = route
        .scope
        .parts
        .iter()
        .map(|part| format!("{:?}{}", part.name, if part.optional { "?" } else { "" }))
        .collect();
    let places: Vec<_> = route.key.sources.iter().map(place).collect();
    let space = match route.space {
        Space::Path => "path",
        Space::Route => "route",
        Space::Service => "service",
    };
    let syntax = match route.key.syntax {
        Syntax::Ietf => "ietf",
        Syntax::Opaque => "opaque",
        Syntax::SfString => "sf-string",
        Syntax::Uuid => "uuid",
    };
    format!("scope: {}\nspace: {space}\nkey's place: {}\nkey's syntax: {syntax}", scope.join(" "), places.join(" "))
}

/// With what is from the file in quotes: PostgreSQL's texts do not hold every character.
fn place(source: &KeySource) -> String {
    match source {
        KeySource::Body(pointer) => format!("body:{:?}", pointer.to_string()),
        KeySource::Form(name) => format!("form:{name:?}"),
        KeySource::Header(name) => format!("header:{:?}", name.as_str()),
        KeySource::Query(name) => format!("query:{name:?}"),
    }
}

/// The lines that differ, as `space: path -> service`.
fn changed(before: &str, now: &str) -> String {
    let pairs = before.lines().zip(now.lines()).filter(|(before, now)| before != now);
    let told: Vec<_> = pairs
        .map(|(before, now)| format!("{before} -> {}", now.split_once(": ").map_or(now, |(_, value)| value)))
        .collect();
    told.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_is_told_with_what_it_was() {
        let before = "scope: \"authorization\"?\nspace: path\nkey's place: header:\"a\"";
        let now = "scope: \"authorization\"? \"cookie:s\"\nspace: service\nkey's place: header:\"a\"";
        assert_eq!(changed(before, before), "");
        assert_eq!(
            changed(before, now),
            "scope: \"authorization\"? -> \"authorization\"? \"cookie:s\"; space: path -> service"
        );
    }
}
