//! A route's requests and how their keys are found, in the form in which configurations are compared and remembered.

use std::sync::Arc;

use http::Method;

use oncegate_config::{Config, KeySource, KeySpace, Route, RouteMode, ScopePart, ScopeSource};
use oncegate_domain::path_pattern::PathPattern;

/// A route as far as it decides which record a request has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyedRoute {
    pub(super) name: Arc<str>,
    /// The requests that it matches. `None` where the store remembers a route of an earlier program, which did not
    /// write them.
    pub(super) requests: Option<RouteRequests>,
    pub(super) lookup: KeyLookup,
}

/// The requests that a route matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RouteRequests {
    /// `None` for every host.
    pub(super) host: Option<Box<str>>,
    pub(super) path: PathPattern,
    pub(super) methods: Vec<Method>,
    /// Whether the route guards them.
    pub(super) is_guarded: bool,
}

/// The values that enter the id of a record, each as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyLookup {
    scope: String,
    /// `path` and what else is a part of it, `service`, or `route` and the name that the keys are made under.
    space: String,
    place: String,
    syntax: String,
}

/// The routes of a configuration.
pub(super) fn keyed_routes(config: &Config) -> Vec<KeyedRoute> {
    config.routes.iter().map(|route| (&**route).into()).collect()
}

impl From<&Route> for KeyedRoute {
    fn from(route: &Route) -> Self {
        let requests = RouteRequests {
            host: route.host.clone(),
            path: route.path.clone(),
            methods: route.methods.clone(),
            is_guarded: route.mode == RouteMode::Enforce,
        };
        let scope: Vec<_> = route.scope.parts.iter().map(describe_part).collect();
        let sources: Vec<_> = route.key.sources.iter().map(describe_source).collect();
        let space = match route.space {
            KeySpace::Path if route.dialect.names_tools() => "path, JSON-RPC method and name".into(),
            KeySpace::Path if route.dialect.is_jsonrpc() => "path, JSON-RPC method".into(),
            KeySpace::Path => "path".into(),
            KeySpace::Route => format!("route {}", route.space_name()),
            KeySpace::Service => "service".into(),
        };
        let (scope, place, syntax) = (scope.join(" "), sources.join(" "), route.key.syntax.name().into());
        let lookup = KeyLookup { scope, space, place, syntax };
        Self { name: Arc::clone(&route.name), requests: Some(requests), lookup }
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

/// The place of a key, with texts from the file in quotes: PostgreSQL's texts cannot have every character.
fn describe_source(source: &KeySource) -> String {
    match source {
        KeySource::Body(pointer) => format!("body:{:?}", pointer.to_string()),
        KeySource::Form(name) => format!("form:{name:?}"),
        KeySource::Header(name) => format!("header:{:?}", name.as_str()),
        KeySource::Payload(name, pointer) => format!("payload:{:?}", format!("{name}#{pointer}")),
        KeySource::Query(name) => format!("query:{name:?}"),
    }
}

impl KeyedRoute {
    /// The text that the store keeps beside the route's name: one line for each part. A change of this form would be
    /// taken for a change of the route.
    pub(super) fn to_stored(&self) -> String {
        let KeyLookup { scope, space, place, syntax } = &self.lookup;
        let mut text = format!("scope: {scope}\nspace: {space}\nkey's place: {place}\nkey's syntax: {syntax}");
        if let Some(RouteRequests { host, path, methods, is_guarded }) = &self.requests {
            let methods: Vec<_> = methods.iter().map(Method::as_str).collect();
            let (host, methods) = (host.as_deref().unwrap_or_default(), methods.join(" "));
            text += &format!("\nhost: {host}\npath: {path}\nmethods: {methods}\nguarded: {is_guarded}");
        }
        text
    }

    /// Reads [`Self::to_stored`], also of an earlier program; `None` for any other text.
    pub(super) fn from_stored(name: &Arc<str>, text: &str) -> Option<Self> {
        let line = |label: &str| text.lines().find_map(|line| line.strip_prefix(label)?.strip_prefix(": "));
        let space = match line("space")? {
            // Earlier programs wrote no name, and had no other than the route's own.
            "route" => format!("route {name}"),
            space => space.into(),
        };
        let lookup = KeyLookup {
            scope: line("scope")?.into(),
            space,
            place: line("key's place")?.into(),
            syntax: line("key's syntax")?.into(),
        };
        let requests = || {
            let methods: Result<_, _> = line("methods")?.split(' ').map(str::parse).collect();
            Some(RouteRequests {
                host: line("host").map(|host| (!host.is_empty()).then(|| host.into()))?,
                path: PathPattern::parse(line("path")?).ok()?,
                methods: methods.ok()?,
                is_guarded: line("guarded")?.parse().ok()?,
            })
        };
        Some(Self { name: Arc::clone(name), requests: requests(), lookup })
    }

    /// The parts by which `now` finds other records for the requests that both match, as `space: path -> service`;
    /// `None` if it finds the same.
    pub(super) fn describe_changes(&self, now: &Self) -> Option<String> {
        let (before, after) = (&self.lookup, &now.lookup);
        // Only in the space of a path is the route's host part of the id.
        let hosts = (self.requests.as_ref().zip(now.requests.as_ref()))
            .filter(|_| before.space == "path" && after.space == "path")
            .map(|(before, after)| (show_host(before), show_host(after)));
        let parts = [
            ("scope", &*before.scope, &*after.scope),
            ("space", &*before.space, &*after.space),
            ("host", hosts.map_or("", |(before, _)| before), hosts.map_or("", |(_, after)| after)),
            ("key's place", &*before.place, &*after.place),
            ("key's syntax", &*before.syntax, &*after.syntax),
        ];
        let changed = parts.into_iter().filter(|(_, before, after)| before != after);
        let changes: Vec<_> =
            changed.map(|(part, before, after)| format!("{part}: {} -> {}", or_none(before), or_none(after))).collect();
        (!changes.is_empty()).then(|| changes.join("; "))
    }

    /// The same for messages, whose scope and key's place are their consumer's.
    pub(super) fn describe_message_changes(&self, now: &Self) -> Option<String> {
        let lookup =
            KeyLookup { scope: self.lookup.scope.clone(), place: self.lookup.place.clone(), ..now.lookup.clone() };
        self.describe_changes(&Self { lookup, ..now.clone() })
    }
}

fn or_none(setting: &str) -> &str {
    if setting.is_empty() { "none" } else { setting }
}

fn show_host(requests: &RouteRequests) -> &str {
    requests.host.as_deref().unwrap_or("any")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A guarded route, with `space` as it is remembered.
    pub(in crate::app) fn keyed_route(name: &str, host: &str, path: &str, methods: &str, space: &str) -> KeyedRoute {
        let text = format!(
            "scope: \nspace: {space}\nkey's place: header:\"a\"\nkey's syntax: ietf\nhost: {host}\npath: {path}\n\
             methods: {methods}\nguarded: true"
        );
        KeyedRoute::from_stored(&name.into(), &text).expect("it is one")
    }

    #[test]
    fn a_remembered_route_is_the_route_that_was_stored() {
        for route in [
            keyed_route("a", "", "/{*rest}", "POST PATCH", "path"),
            keyed_route("a", "api.example", "/v1/{id}", "POST", "route b"),
            KeyedRoute { requests: None, ..keyed_route("a", "", "/", "POST", "service") },
        ] {
            assert_eq!(KeyedRoute::from_stored(&route.name, &route.to_stored()), Some(route));
        }
    }

    #[test]
    fn a_text_of_an_earlier_program_has_no_requests_and_any_other_text_is_no_route() {
        let earlier = "scope: \"authorization\"?\nspace: route\nkey's place: header:\"a\"\nkey's syntax: ietf";
        let read = KeyedRoute::from_stored(&"pay".into(), earlier).expect("it is one");
        assert_eq!((read.requests.is_none(), &*read.lookup.space), (true, "route pay"));
        for text in ["", "scope", "scope: \nspace: path", "\u{0}\n\n: "] {
            assert_eq!(KeyedRoute::from_stored(&"pay".into(), text), None, "{text}");
        }
        let unreadable = format!("{earlier}\nhost: \npath: no path\nmethods: POST\nguarded: true");
        let read = KeyedRoute::from_stored(&"pay".into(), &unreadable);
        assert!(read.expect("it is one").requests.is_none());
    }

    #[test]
    fn changes_are_described_with_the_earlier_value() {
        let route = |host, space| keyed_route("a", host, "/a", "POST", space);
        for (before, now, changes) in [
            (route("", "path"), route("", "path"), None),
            (route("", "path"), route("", "service"), Some("space: path -> service")),
            (route("", "path"), route("a.example", "path"), Some("host: any -> a.example")),
            (route("", "service"), route("a.example", "service"), None),
            (route("", "route a"), route("", "route b"), Some("space: route a -> route b")),
        ] {
            assert_eq!(before.describe_changes(&now).as_deref(), changes);
        }
    }
}
