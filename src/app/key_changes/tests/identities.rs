//! The comparison against the gate: each dialect, with each option that decides about a request's identity or guard.

use std::collections::BTreeMap;
use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{Request, request};

use super::super::super::keyed_route::{keyed_routes_of, to_stored};
use super::super::super::route_identities::{compare_with_remembered, select_remembered};
use super::*;
use oncegate_config::{self as config, Overrides, ProcessEnvironment};
use oncegate_engine::gate::admit::caller_token::CallerToken;
use oncegate_engine::gate::admit::explain::{ExplainedCaller, explain};
use oncegate_settings::{Dialect, LoadedConfig, Word};
use oncegate_store::RouteIdentities;

const KEY: &str = "8e03978e-40d5-43dd-bc93-6894a57f9324";
const OTHER_KEY: &str = "0b7c6f0e-6a5b-4a0e-9f0a-6c7f1c1f8d11";

/// A configuration of one route with these lines. The service `s` has `a.example`.
fn config(lines: &[&str]) -> LoadedConfig {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncegate.toml");
    let named = |name: &str| lines.iter().any(|lines| lines.starts_with(name));
    let built_in = ["name = 'r'", "path = '/pay'", "methods = ['POST', 'PUT']"];
    let built_in = built_in.iter().filter(|line| !named(line.split(' ').next().unwrap()));
    let lines: Vec<_> = built_in.chain(lines).copied().collect();
    let service =
        if named("service") { "[[services]]\nname = 's'\nhost = 'a.example'\nupstream = 'http://s'\n" } else { "" };
    std::fs::write(&path, format!("upstream = 'http://a'\n{service}[[routes]]\n{}", lines.join("\n"))).unwrap();
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
        ("POST", "/PAY/", "x"),
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
type FoundIdentity = (Arc<str>, Vec<(String, Option<String>)>, String, String);

/// The identity of each guarded request, as the gate finds it; an error for one that is refused.
fn identify(config: &LoadedConfig) -> Vec<Result<Option<FoundIdentity>, ()>> {
    let identity = |(head, body): (request::Parts, &str)| {
        let caller = ExplainedCaller { token: Ok(CallerToken::Absent), certificate: None };
        let live = &config.live;
        let explained = explain((None, live), &head, body.as_bytes(), caller, (None, None)).map_err(drop)?;
        let route = live.routes.iter().find(|route| explained.route.as_deref() == Some(&*route.name));
        let key = explained.key.filter(|_| explained.mode == "enforce").zip(route);
        Ok(key.map(|(key, route)| (Arc::clone(&route.service.name), explained.scope, explained.space, key)))
    };
    requests().into_iter().map(identity).collect()
}

/// The changes that a reload finds. A start finds the same in what the store remembers; a service that is gone may be
/// another gate's by then.
fn compare(before: &LoadedConfig, now: &LoadedConfig) -> KeyChanges {
    let changes = compare_services(&before.live, &now.live);
    let remembered = before.live.service_names().map(|service| RouteIdentities {
        service: service.to_string(),
        generation: 1,
        finds: to_stored(&keyed_routes_of(&before.live, service)),
    });
    let remembered = select_remembered(remembered.collect(), &now.live);
    if before.live.service_names().all(|service| now.live.service(service).is_some()) {
        assert_eq!(compare_with_remembered(&remembered, &now.live).changes, changes, "a start finds the same");
    }
    changes
}

#[test]
fn each_change_of_an_identity_or_of_what_is_guarded_is_found_in_each_dialect() {
    let (mut counts, mut seen) = (BTreeMap::new(), BTreeMap::new());
    // The name of a route is a part of one space, whatever the dialect.
    let spaces = Dialect::VALUES.iter().flat_map(|dialect| ["path", "service"].map(|space| (dialect, space)));
    for (dialect, space) in spaces.chain([(&Dialect::Ietf, "route")]) {
        let (dialect_line, space_line) = (format!("dialect = '{}'", dialect.word()), format!("space = '{space}'"));
        // The lines before and after, the part that changes, and whether keys are found elsewhere, and less is guarded.
        let changes = [
            ("", "service = 's'", "service", true, true),
            ("service = 's'", "", "service", true, false),
            ("", "methods = ['PUT']", "guarded by", false, true),
            ("", "path = '/pay/{id}'", "guarded by", false, true),
            ("", "key = { from = 'header:X-Key' }", "key's place", true, false),
            (
                "",
                "key = { from = ['header:Idempotency-Key', 'header:X-Key'], syntax = 'sf-string' }",
                "key's syntax",
                true,
                false,
            ),
            ("", "scope = ['header:x-user']", "scope", true, false),
            ("", "name = 'other'", "space", space == "route", false),
            ("", "name = 'other'\nwas = ['r']", "name", false, false),
            ("", "ttl = '1h'", "ttl", false, false),
            ("", "mode = 'off'", "guarded by", false, true),
            ("", "mode = 'observe'", "guarded by", false, true),
            ("mode = 'observe'", "", "guarded by", false, false),
            ("key.required = true", "key.required = false", "key", false, true),
            ("key.required = false", "key.required = true", "key", false, false),
            ("", "spelling = 'same'", "spelling", false, false),
            ("spelling = 'same'", "spelling = 'pass'", "spelling", false, true),
            ("spelling = 'pass'", "", "spelling", false, false),
            ("", "store_down = 'bypass'", "store_down", false, true),
            ("operations = ['tools/call pay', 'a']", "operations = ['a']", "operations", false, true),
            ("operations = ['tools/call', 'a']", "operations = ['tools/call pay']", "operations", false, true),
            ("operations = ['a']", "operations = ['a', 'tools/call']", "operations", false, false),
        ];
        let mut configs = BTreeMap::new();
        let changes = changes.into_iter().filter(|change| change.2 != "operations" || dialect.is_jsonrpc());
        for (before, now, part, elsewhere, less) in changes {
            for lines in [before, now] {
                configs.entry(lines).or_insert_with(|| {
                    let config = config(&[&dialect_line, &space_line, lines]);
                    let identities = identify(&config);
                    (config, identities)
                });
            }
            let ((before, identities), (now, identities_now)) = (&configs[before], &configs[now]);
            let changes = compare(before, now);
            let names_part = |changed: &String| changed.contains(part);
            assert_eq!(
                changes.lookups.iter().any(|change| names_part(&change.changed)),
                elsewhere,
                "{part}: {changes:?}"
            );
            assert_eq!(changes.lookups.is_empty(), !elsewhere, "{part}: {changes:?}");
            assert_eq!(changes.unguarded.is_empty(), !less, "{dialect_line} {part}: {changes:?}");
            assert!(!less || part == "service" || names_part(&changes.unguarded[0].changed), "{part}: {changes:?}");
            check(identities, identities_now, &changes, &mut counts);
        }
        seen.insert((space, dialect.word()), configs.remove("").unwrap());
    }
    // Each dialect in place of each other.
    for ((space, _), (before, identities)) in &seen {
        for ((_, _), (now, identities_now)) in seen.iter().filter(|((other, _), _)| other == space) {
            check(identities, identities_now, &compare(before, now), &mut counts);
        }
    }
    assert!(counts.len() == 4 && counts.values().all(|count| *count > 100), "{counts:?}");
}

/// Checks that each request whose key the gate finds elsewhere, or that passes it now, is among the changes. Counts
/// what it has seen.
fn check(
    before: &[Result<Option<FoundIdentity>, ()>],
    now: &[Result<Option<FoundIdentity>, ()>],
    changes: &KeyChanges,
    counts: &mut BTreeMap<&'static str, u32>,
) {
    let has_changes = || !changes.lookups.is_empty() || !changes.unguarded.is_empty();
    for (before, now) in before.iter().zip(now) {
        let (seen, is_found) = match (before, now) {
            (Ok(Some(before)), Ok(Some(now))) if before == now => ("found again", true),
            (Ok(Some(_)), Ok(Some(_))) => ("found elsewhere", !changes.lookups.is_empty()),
            (Ok(Some(_)), Ok(None)) => ("passes", has_changes()),
            (Err(()), Ok(None)) => ("was refused and passes", has_changes()),
            (Ok(None), _) | (_, Err(())) | (Err(()), Ok(Some(_))) => continue,
        };
        *counts.entry(seen).or_default() += 1;
        assert!(is_found, "{seen}: {before:?} -> {now:?}, {changes:?}");
    }
}
