//! The comparison against the gate: each dialect, with each option that may be a part of a request's identity.

use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{Request, request};

use super::super::keyed_route::keyed_routes;
use super::*;
use crate::gate::admit::explain::{ExplainedCaller, explain};
use crate::gate::admit::token::CallerToken;
use oncegate_config::{self as config, Config, Dialect, Overrides, ProcessEnvironment, Word};

const KEY: &str = "8e03978e-40d5-43dd-bc93-6894a57f9324";
const OTHER_KEY: &str = "0b7c6f0e-6a5b-4a0e-9f0a-6c7f1c1f8d11";

/// A configuration of one route with these lines.
fn config(lines: &[&str]) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncegate.toml");
    let named = |name: &str| lines.iter().any(|lines| lines.starts_with(name));
    let built_in = ["name = 'r'", "path = '/pay'", "methods = ['POST', 'PUT']"];
    let built_in = built_in.iter().filter(|line| !named(line.split(' ').next().unwrap()));
    let lines: Vec<_> = built_in.chain(lines).copied().collect();
    std::fs::write(&path, format!("upstream = 'http://a'\n[[routes]]\n{}", lines.join("\n"))).unwrap();
    config::load(Some(&path), &Overrides::default(), &ProcessEnvironment).expect("it loads")
}

/// Requests with a key in each dialect's place, and another one in the places that the changes name.
fn requests() -> Vec<(request::Parts, &'static str)> {
    let payment = format!(r#"{{"extensions":{{"payment-identifier":{{"info":{{"id":"{KEY}"}}}}}}}}"#);
    let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"pay"}}"#;
    let undeclared = r#"{"id":7,"method":"tools/call","params":{"name":"pay"}}"#;
    let send = r#"{"jsonrpc":"2.0","id":7,"method":"message/send","params":{}}"#;
    let mut requests = Vec::new();
    for (method, target, body) in [
        ("POST", "/pay", "x"),
        ("PUT", "/pay", "x"),
        ("POST", "/pay", call),
        ("POST", "/pay", undeclared),
        ("POST", "/pay", send),
        ("POST", "/pay", r#"{"query":"{ a }"}"#),
        ("POST", "/pay", r#"{"query":"mutation { a }"}"#),
    ] {
        for (host, quote) in [("a.example", ""), ("b.example", "\"")] {
            let request = Request::builder()
                .method(method)
                .uri(target)
                .header("Host", host)
                .header("Content-Type", "application/json")
                .header("Authorization", "Bearer a")
                .header("X-User", "u")
                .header("Idempotency-Key", format!("{quote}{KEY}{quote}"))
                .header("Repeatability-Request-ID", KEY)
                .header("Repeatability-First-Sent", httpdate::fmt_http_date(SystemTime::now()))
                .header("PAYMENT-SIGNATURE", BASE64_STANDARD.encode(&payment))
                .header("X-Key", OTHER_KEY);
            requests.push((request.body(()).unwrap().into_parts().0, body));
        }
    }
    requests
}

/// The parts of a record's id.
type Identity = (Vec<(String, Option<String>)>, String, String);

/// The identity of each guarded request, as the gate finds it; an error for one that is refused.
fn identify(config: &Config) -> Vec<Result<Option<Identity>, ()>> {
    let identity = |(head, body): (request::Parts, &str)| {
        let caller = ExplainedCaller { token: Ok(CallerToken::Absent), certificate: None };
        let explained = explain(config, &head, body.as_bytes(), caller).map_err(drop)?;
        Ok(explained.key.filter(|_| explained.mode == "enforce").map(|key| (explained.scope, explained.space, key)))
    };
    requests().into_iter().map(identity).collect()
}

/// The changes that a reload finds. A start finds the same in what the store remembers.
fn compare(before: &Config, now: &Config) -> KeyChanges {
    let (before, now) = (keyed_routes(before), keyed_routes(now));
    let remembered: Vec<_> =
        before.iter().filter_map(|route| KeyedRoute::from_stored(&route.name, &route.to_stored())).collect();
    let changes = compare_routes(&before, &now);
    assert_eq!(compare_routes(&remembered, &now), changes, "a start finds the same");
    changes
}

#[test]
fn each_part_of_an_identity_is_compared_in_each_dialect() {
    let mut identified = [0; 2];
    for dialect in Dialect::VALUES {
        let dialect_line = format!("dialect = '{}'", dialect.word());
        for space in ["path", "route", "service"] {
            let base = [&*dialect_line, &format!("space = '{space}'")];
            let before = config(&base);
            let ids_before = identify(&before);
            let is_path = space == "path";
            let other_dialects = Dialect::VALUES.iter().map(|other| format!("dialect = '{}'", other.word()));
            let changes = [
                // The part of the identity, and whether its change is one of how keys are found.
                ("host = 'a.example'", "host", is_path),
                ("methods = ['PUT']", "method", false),
                ("path = '/pay/{id}'", "path", false),
                ("key = { header = 'X-Key' }", "key's place", true),
                ("key = { header = ['Idempotency-Key', 'X-Key'], syntax = 'sf-string' }", "key's syntax", true),
                ("scope = ['header:x-user']", "scope", true),
                ("name = 'other'", "space", space == "route"),
                ("name = 'other'\nwas = ['r']", "name", false),
                ("ttl = '1h'", "nothing", false),
            ];
            let changes = changes.map(|(lines, part, found)| (lines.to_owned(), part, Some(found)));
            let changes = changes.into_iter().chain(other_dialects.map(|lines| (lines, "dialect", None)));
            for (lines, part, expected) in changes {
                let now = match part {
                    "dialect" => config(&[&lines, base[1]]),
                    _ => config(&[base[0], base[1], &lines]),
                };
                let KeyChanges { lookups, unguarded } = compare(&before, &now);
                let shown = format!("{base:?} {lines:?}: {lookups:?} {unguarded:?}");
                if let Some(expected) = expected {
                    assert_eq!(lookups.iter().any(|change| change.changed.contains(part)), expected, "{shown}");
                    assert!(expected || lookups.is_empty(), "{shown}");
                }
                for (before, now) in ids_before.iter().zip(identify(&now)) {
                    if let (Ok(Some(before)), Ok(Some(now))) = (before, now) {
                        identified[usize::from(*before == now)] += 1;
                        assert!(*before == now || !lookups.is_empty(), "{before:?} {now:?} {shown}");
                    }
                }
            }
        }
    }
    assert!(identified.iter().all(|count| *count > 500), "{identified:?}");
}
