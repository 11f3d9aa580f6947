//! Compares the identity of each route, by which it finds its keys, with that of the service's last start.
//!
//! A reload refuses to change it. A restart may, because only the operator knows whether keys are still needed: so a
//! changed identity is logged with its consequence.

use std::sync::Arc;

use crate::config::{Config, KeySource, KeySpace, Route, RouteMode};
use crate::domain::key::KeySyntax;
use crate::store::{RouteIdentity, Store, StoreError};

/// Stores the identities of the routes that guard, and logs a warning for each that has changed.
///
/// # Errors
/// The store's.
pub(super) async fn warn_of_changes(store: &dyn Store, config: &Config) -> Result<(), StoreError> {
    let guarding = config.routes.iter().filter(|route| route.mode == RouteMode::Enforce);
    let identities: Vec<_> = guarding
        .map(|route| RouteIdentity { route: Arc::clone(&route.name), finds: describe_identity(route) })
        .collect();
    for before in store.remember_route_identities(Arc::clone(&config.service), identities.clone()).await? {
        let Some(identity) = identities.iter().find(|identity| identity.route == before.route) else { continue };
        let changed = describe_changes(&before.finds, &identity.finds);
        tracing::warn!(
            route = %before.route,
            changed,
            "this route finds its keys in another way than at its last start: earlier keys, also those in flight, protect \
             nothing any more, and their retries are executed again"
        );
    }
    Ok(())
}

/// The identity of a route, one line for each part, beginning with its name. It is stored: a change of this form would
/// be taken for a change of the identity.
fn describe_identity(route: &Route) -> String {
    let scope: Vec<_> = route
        .scope
        .parts
        .iter()
        .map(|part| format!("{:?}{}", part.name, if part.optional { "?" } else { "" }))
        .collect();
    let sources: Vec<_> = route.key.sources.iter().map(describe_source).collect();
    let space = match route.space {
        KeySpace::Path => "path",
        KeySpace::Route => "route",
        KeySpace::Service => "service",
    };
    let syntax = match route.key.syntax {
        KeySyntax::Ietf => "ietf",
        KeySyntax::Opaque => "opaque",
        KeySyntax::SfString => "sf-string",
        KeySyntax::Uuid => "uuid",
    };
    format!("scope: {}\nspace: {space}\nkey's place: {}\nkey's syntax: {syntax}", scope.join(" "), sources.join(" "))
}

/// The place of a key, with texts from the file in quotes: PostgreSQL's texts cannot have every character.
fn describe_source(source: &KeySource) -> String {
    match source {
        KeySource::Body(pointer) => format!("body:{:?}", pointer.to_string()),
        KeySource::Form(name) => format!("form:{name:?}"),
        KeySource::Header(name) => format!("header:{:?}", name.as_str()),
        KeySource::Query(name) => format!("query:{name:?}"),
    }
}

/// The lines that differ, as `space: path -> service`.
fn describe_changes(before: &str, now: &str) -> String {
    let pairs = before.lines().zip(now.lines()).filter(|(before, now)| before != now);
    let changes: Vec<_> = pairs
        .map(|(before, now)| format!("{before} -> {}", now.split_once(": ").map_or(now, |(_, value)| value)))
        .collect();
    changes.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_described_with_the_earlier_value() {
        let before = "scope: \"authorization\"?\nspace: path\nkey's place: header:\"a\"";
        let now = "scope: \"authorization\"? \"cookie:s\"\nspace: service\nkey's place: header:\"a\"";
        assert_eq!(describe_changes(before, before), "");
        assert_eq!(
            describe_changes(before, now),
            "scope: \"authorization\"? -> \"authorization\"? \"cookie:s\"; space: path -> service"
        );
    }
}
