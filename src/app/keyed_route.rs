//! A route's requests and how their keys are found, in the form in which configurations are compared and remembered.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::route_guard::RouteGuard;
use oncegate_domain::path_pattern::PathPattern;
use oncegate_domain::space::SpaceParts;
use oncegate_settings::{Config, KeyPlace, Route, ScopePart, ScopeSource};

/// A route as far as it decides which record a request has. The store keeps it as JSON, all but the name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct KeyedRoute<'a> {
    #[serde(skip)]
    pub(super) name: Arc<str>,
    pub(super) requests: RouteRequests,
    pub(super) lookup: KeyLookup<'a>,
}

/// The requests that a route matches.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct RouteRequests {
    /// Those of its service; none for every host that no other service has.
    pub(super) hosts: Vec<Box<str>>,
    pub(super) path: PathPattern,
    pub(super) methods: Vec<String>,
    /// The ones that the route guards; `None` for none.
    pub(super) guard: Option<RouteGuard>,
}

/// The values that enter the id of a record.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct KeyLookup<'a> {
    service: String,
    scope: String,
    space: SpaceParts<'a>,
    place: String,
    syntax: String,
}

/// The routes of a configuration.
pub(super) fn keyed_routes(config: &Config) -> Vec<KeyedRoute<'_>> {
    config.routes.iter().map(|route| (&**route).into()).collect()
}

/// The routes of one of its services.
pub(super) fn keyed_routes_of<'a>(config: &'a Config, service: &str) -> Vec<KeyedRoute<'a>> {
    config.routes_of(service).map(|route| (&**route).into()).collect()
}

/// The text that the store keeps: the routes by their names.
pub(super) fn to_stored(routes: &[KeyedRoute<'_>]) -> String {
    let by_name: BTreeMap<_, _> = routes.iter().map(|route| (&route.name, route)).collect();
    serde_json::to_string(&by_name).expect("it is JSON")
}

/// Reads [`to_stored`]; `None` for any other text.
pub(super) fn from_stored(text: &str) -> Option<Vec<KeyedRoute<'static>>> {
    let by_name: BTreeMap<Arc<str>, KeyedRoute<'static>> = serde_json::from_str(text).ok()?;
    Some(by_name.into_iter().map(|(name, route)| KeyedRoute { name, ..route }).collect())
}

impl<'a> From<&'a Route> for KeyedRoute<'a> {
    fn from(route: &'a Route) -> Self {
        let requests = RouteRequests {
            hosts: route.service.hosts.clone(),
            path: route.path.clone(),
            methods: route.options.methods.iter().map(ToString::to_string).collect(),
            guard: RouteGuard::of_route(route),
        };
        let scope: Vec<_> = route.scope.parts.iter().map(describe_part).collect();
        let places: Vec<_> = route.options.key.from.iter().map(describe_place).collect();
        let (scope, place, syntax) = (scope.join(" "), places.join(" "), key_syntax(route));
        let service = route.service.name.to_string();
        let lookup = KeyLookup { service, scope, space: route.space_parts(), place, syntax };
        Self { name: Arc::clone(&route.name), requests, lookup }
    }
}

/// A part of a scope. The issuer of a token is part of the hash.
fn describe_part(part: &ScopePart) -> String {
    let issuer = match &part.source {
        ScopeSource::Jwt { issuer, .. } => format!(" of {issuer:?}"),
        _ => String::new(),
    };
    format!("{:?}{}{issuer}", part.name, if part.optional { "?" } else { "" })
}

/// The syntax of a key, or that its hash stands for it.
fn key_syntax(route: &Route) -> String {
    if route.options.key.hash { "hash".to_owned() } else { route.options.key.syntax.name().to_owned() }
}

/// The place of a key, in quotes: a name may have any character.
fn describe_place(place: &KeyPlace) -> String {
    format!("{:?}", place.to_string())
}

impl KeyedRoute<'_> {
    pub(super) fn is_of_service(&self, name: &str) -> bool {
        self.lookup.service == name
    }

    #[cfg(test)]
    pub(super) fn service(&self) -> &str {
        &self.lookup.service
    }

    /// The parts by which `now` finds other records for the requests that both match, as `space: path -> service`;
    /// `None` if it finds the same.
    pub(super) fn describe_changes(&self, now: &KeyedRoute<'_>) -> Option<String> {
        // The values decide, and not the words about them.
        if self.lookup == now.lookup {
            return None;
        }
        let after = now.lookup.describe_parts();
        let changes = self.lookup.describe_parts().into_iter().filter_map(|(part, before)| {
            let (_, after) = after.iter().find(|(other, after)| *other == part && *after != before)?;
            Some(format!("{part}: {before} -> {after}"))
        });
        Some(changes.collect::<Vec<_>>().join("; "))
    }

    /// Whether `now` finds the same records for messages, whose scope and key's place are their consumer's.
    pub(super) fn finds_same_messages(&self, now: &KeyedRoute<'_>) -> bool {
        let KeyLookup { service, scope: _, space, place: _, syntax } = &self.lookup;
        let is_same_space = (service, space, syntax) == (&now.lookup.service, &now.lookup.space, &now.lookup.syntax);
        // An operation that the route does not guard is no part of its message's space.
        let has_operations = matches!(space, SpaceParts::Path { operation: Some(_), .. });
        let mut guards = self.requests.guard.iter().zip(&now.requests.guard);
        is_same_space && !(has_operations && guards.any(|(before, now)| before.bodies != now.bodies))
    }
}

impl KeyLookup<'_> {
    /// Each part's name and value. Spaces of different kinds have no part in common but the kind.
    fn describe_parts(&self) -> Vec<(&'static str, String)> {
        let Self { service, scope, space, place, syntax } = self;
        let mut parts = vec![("service", service.clone()), ("scope", or_none(scope))];
        match space {
            SpaceParts::Path { operation } => parts.extend([
                ("space", "path".to_owned()),
                ("operation", operation.map_or("none".to_owned(), |naming| naming.to_string())),
            ]),
            SpaceParts::Route(name) => parts.push(("space", format!("route {name}"))),
            SpaceParts::Service => parts.push(("space", "service".to_owned())),
        }
        parts.extend([("key's place", or_none(place)), ("key's syntax", syntax.clone())]);
        parts
    }
}

fn or_none(setting: &str) -> String {
    if setting.is_empty() { "none".to_owned() } else { setting.to_owned() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::route_guard::GuardedBodies;
    use super::*;

    /// A guarded route of the service at the top, or of that of a host; `NAME@` before the host names it. `space` is
    /// `path`, `service`, or `route` and a name.
    pub(in crate::app) fn keyed_route(
        name: &str,
        host: &str,
        path: &str,
        methods: &str,
        space: &str,
    ) -> KeyedRoute<'static> {
        let (service, host) = host.split_once('@').unwrap_or((host, host));
        let hosts: Vec<Box<str>> = Some(host).filter(|host| !host.is_empty()).into_iter().map(Into::into).collect();
        let requests = RouteRequests {
            hosts,
            path: PathPattern::parse(path).expect("it is one"),
            methods: methods.split(' ').map(Into::into).collect(),
            guard: Some(RouteGuard {
                bodies: GuardedBodies::All,
                requires_key: false,
                covers_spellings: true,
                bypasses: false,
            }),
        };
        let space = match space.split_once(' ') {
            Some((_, name)) => SpaceParts::Route(name.to_owned().into()),
            None if space == "path" => SpaceParts::Path { operation: None },
            None => SpaceParts::Service,
        };
        let (scope, place, syntax) = (String::new(), "\"header:a\"".into(), "ietf".into());
        let service = service.to_owned();
        KeyedRoute { name: name.into(), requests, lookup: KeyLookup { service, scope, space, place, syntax } }
    }

    #[test]
    fn remembered_routes_are_the_routes_that_were_stored() {
        let routes = vec![
            keyed_route("a", "", "/{*rest}", "POST PATCH", "path"),
            keyed_route("b", "api.example", "/v1/{id}", "POST", "route b"),
            keyed_route("c", "", "/", "POST", "service"),
        ];
        assert_eq!(from_stored(&to_stored(&routes)), Some(routes));
        for text in ["", "[]", r#"{"a":{}}"#, "scope: \nspace: path", "\u{0}\n\n: "] {
            assert_eq!(from_stored(text), None, "{text}");
        }
    }

    #[test]
    fn changes_are_described_with_the_earlier_value() {
        let route = |host, space| keyed_route("a", host, "/a", "POST", space);
        for (before, now, changes) in [
            (route("", "path"), route("", "path"), None),
            (route("", "path"), route("", "service"), Some("space: path -> service")),
            (route("a.example", "path"), route("b.example", "path"), Some("service: a.example -> b.example")),
            (route("", "route a"), route("", "route b"), Some("space: route a -> route b")),
        ] {
            assert_eq!(before.describe_changes(&now).as_deref(), changes);
        }
    }
}
