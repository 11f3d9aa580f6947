//! Routes: their values from `[defaults]`, and their names and paths.

use std::time::Duration;

use http::StatusCode;

use super::{config, one_problem, problems, route};
use crate::{Overrides, describe, load};
use oncegate_domain::response_policy::ResponseVerdict;
use oncegate_settings::*;

#[test]
fn a_wrong_default_is_said_once_even_if_every_route_overwrites_it() {
    let routes = "[[routes]]\nname = 'a'\npath = '/a'\n[[routes]]\nname = 'b'\npath = '/b'\n";
    one_problem(&format!("[defaults]\nttl = 'x'\n{routes}"), "3:7: defaults.ttl: ");
    one_problem(&format!("[defaults]\nttl = 'x'\n{}", route("ttl = '1h'")), "3:7: defaults.ttl: ");
}

#[test]
fn tables_in_defaults_are_taken_key_by_key() {
    let config = config(&format!(
        "[defaults]\nttl = '2h'\nkey = {{ from = 'header:X-Key', max_length = 64 }}\nfingerprint.query = false\n{}ttl = '3h'\n\
         key = {{ required = true, max_length = 32 }}\n[[routes]]\nname = 'b'\npath = '/b'",
        route("fingerprint.body = 'raw'\n")
    ));
    let [a, b] = config.live.routes.as_slice() else { panic!("two routes") };
    let key = |route: &Route| {
        let KeyRule { required, limits, .. } = &route.options.key;
        (route.options.key.headers().next().unwrap().to_string(), *required, limits.length_max)
    };
    assert_eq!((key(a), key(b)), (("x-key".into(), true, 32), ("x-key".into(), false, 64)));
    assert_eq!((a.recipe.to_stored(), b.recipe.to_stored()), ("1 body=raw query=no", "1 query=no"));
    assert_eq!((a.options.ttl, b.options.ttl), (Duration::from_secs(3 * 3600), Duration::from_secs(2 * 3600)));
}

#[test]
fn a_problem_between_a_default_and_a_routes_own_value_is_the_routes() {
    let text = format!("{}[defaults]\nkey.max_length = 8", route("key.min_length = 9\n"));
    one_problem(&text, "5:18: routes[0].key.min_length: `min_length` (9) must not be over");
}

#[test]
fn status_lists_that_are_written_beat_default_ones_also_from_defaults() {
    let judge = |text: &str, code| {
        let config = config(text);
        config.live.routes[0].statuses.verdict_on(StatusCode::from_u16(code).expect("in range"), false)
    };
    assert_eq!(judge("", 500), ResponseVerdict::Release);
    assert_eq!(judge("", 504), ResponseVerdict::Unknown);
    assert_eq!(judge("", 422), ResponseVerdict::Store);
    assert_eq!(judge("", 401), ResponseVerdict::Release);
    let defaults = "[defaults]\nstore_statuses = ['2xx', '5xx']\n";
    assert_eq!(judge(defaults, 504), ResponseVerdict::Store);
    assert_eq!(judge(defaults, 422), ResponseVerdict::Unknown);
    assert_eq!(judge(&format!("{defaults}{}", route("store_statuses = ['2xx']")), 504), ResponseVerdict::Unknown);
    assert_eq!(judge(&format!("{defaults}{}", route("unknown_statuses = ['500']")), 500), ResponseVerdict::Unknown);
}

#[test]
fn a_status_in_two_written_lists_is_a_problem_at_the_second() {
    let two = "release_statuses = ['5xx', '409']\nstore_statuses = ['2xx', '409']";
    one_problem(&route(two), "6:26: routes[0].store_statuses[1]: 409 is in `release_statuses` too");
    let text = format!("{}[defaults]\nunknown_statuses = ['5xx']", route("release_statuses = ['5xx']\n"));
    one_problem(&text, "5:21: routes[0].release_statuses[0]: 5xx is in `unknown_statuses` too");
    let two = "release_statuses = ['grpc:ABORTED']\nstore_statuses = ['grpc:ABORTED']";
    one_problem(&route(two), "6:19: routes[0].store_statuses[0]: grpc:ABORTED is in `release_statuses` too");
}

#[test]
fn two_routes_do_not_share_a_name_or_a_path_and_method() {
    let two = |second: &str| format!("{}[[routes]]\n{second}", route(""));
    one_problem(&two("name = 'a'\npath = '/b'"), "6:8: routes[1].name: is another route's name too: `a`");
    one_problem(&two("name = 'b'\npath = '/a'"), "7:8: routes[1].path: `a` and `b` both match POST at this path");
    config(&two("name = 'b'\npath = '/a'\nmethods = ['PUT']"));
    config(&two("name = 'b'\npath = '/{a}'"));
    config(&two("name = 'b'\npath = '/{*rest}'"));
    let shapes = "[[routes]]\nname = 'a'\npath = '/v1/{id}'\nttl = 'x'\n[[routes]]\nname = 'b'\npath = '/v1/{name}'";
    let problems = problems(shapes);
    assert!(problems.len() == 2 && problems[1].contains("`a` and `b` both match POST"), "{problems:?}");
}

#[test]
fn no_service_is_the_proxy_itself() {
    one_problem("listen = '0.0.0.0:3000'", "1:12: upstream: leads back to this proxy's own `listen`, 0.0.0.0:3000");
    one_problem(
        "admin = { listen = '127.0.0.1:3000' }",
        "1:12: upstream: leads back to this proxy's own `admin.listen`",
    );
    one_problem(
        "[[services]]\nname = 's'\nhost = 'h'\nupstream = 'http://localhost:8080'\n[[routes]]\nname = 'r'\npath = '/'",
        "5:12: services[0].upstream: leads back to this proxy's own",
    );
    config("listen = '10.0.0.1:3000'");
}

#[test]
fn an_earlier_name_belongs_to_one_route_alone() {
    let two = |first: &str, second: &str| {
        format!("[[routes]]\nname = 'a'\npath = '/a'\n{first}\n[[routes]]\nname = 'b'\npath = '/b'\n{second}")
    };
    let config = config(&two("was = ['c', 'd']", "was = []"));
    assert_eq!(config.live.routes[0].names().map(|name| &**name).collect::<Vec<_>>(), ["a", "c", "d"]);
    assert_eq!((config.live.routes[0].space_name(), config.live.routes[1].space_name()), ("c", "b"));
    assert!(describe(&config).contains("  was           c, d\n"), "{}", describe(&config));
    one_problem(&two("", "was = ['a']"), "9:8: routes[1].was[0]: is another route's name too: `a`");
    one_problem(&two("was = ['b']", ""), "7:8: routes[1].name: is another route's name too: `b`");
    one_problem(&two("was = ['c']", "was = ['c']"), "9:8: routes[1].was[0]: is another route's name too: `c`");
    one_problem(&two("was = ['a']", ""), "5:8: routes[0].was[0]: is this route's name already: `a`");
    one_problem(&two("was = ['c', 'c']", ""), "5:13: routes[0].was[1]: is this route's name already: `c`");
    one_problem(&two("was = ['c d']", ""), "5:8: routes[0].was[0]: `c d` is no name");
    one_problem("[defaults]\nwas = ['c']", "3:1: defaults.was: unknown key");
}

#[test]
fn a_scope_of_none_and_a_store_in_memory_are_warned_about() {
    let config = config(&format!("store.url = 'memory:'\n{}", route("scope = ['none']")));
    assert!(config.live.routes[0].scope.parts.is_empty());
    assert_eq!(config.live.warnings.len(), 2);
    assert!(config.live.warnings[0].contains("after a restart every retry is executed again"));
    assert!(config.live.warnings[1].starts_with("route `a`: scope is `none`: any caller who knows a key"));
}

#[test]
fn a_shared_cache_is_shown_without_its_password_and_warned_about_where_it_can_be_forged_or_read() {
    let shared = |top: &str, url: &str| config(&format!("{top}\n[cache]\nredis = '{url}'"));
    let (secret, forged, exposed) =
        ("secret = 'the only secret of ours'", "can forge replays", "its password crosses the network in cleartext");
    for (top, url, shown, warnings) in [
        ("", "redis://u:hunter2@127.0.0.1", "shared through redis://127.0.0.1:6379/0 without a secret", &[forged][..]),
        (secret, "redis://:hunter2@cache", "shared through redis://cache:6379/0, encrypted", &[exposed]),
        ("", "redis://:hunter2@cache", "without a secret", &[forged, exposed]),
        (secret, "rediss://:hunter2@cache/1", "shared through rediss://cache:6379/1, encrypted", &[]),
        ("", "", "64MiB of memory\n", &[]),
    ] {
        let config = shared(top, url);
        assert!(describe(&config).contains(shown), "{}", describe(&config));
        assert!(!format!("{config:?}{}", describe(&config)).contains("hunter2"));
        let found: Vec<_> = config.live.warnings.iter().filter(|warning| warning.starts_with("cache.redis")).collect();
        assert_eq!(found.len(), warnings.len(), "{found:?}");
        for (warning, expected) in found.iter().zip(warnings) {
            assert!(warning.contains(expected), "{warning}");
        }
    }
    one_problem("[cache]\nredis = 'redis://:hunter2@cache/x'", "3:9: cache.redis: has a database that is no number");
}

#[test]
fn a_written_scope_that_is_the_default_is_the_default() {
    let is_default = |scope: &str| config(&route(&format!("scope = {scope}"))).live.routes[0].scope.is_default;
    assert!(is_default("['authorization?', 'header:X-API-Key?']"));
    assert!(!is_default("['authorization?']"));
}

#[test]
fn check_prints_the_resolved_routes() {
    let config = config(
        "[store]\nurl = 'postgres://u:hunter2@h/d?sslmode=disable'\n[[routes]]\nname = 'create-payment'\npath = '/v1/payments'\nkey = { \
         required = true }\nscope = ['none']\non_unknown = 'retry-when-quiet'",
    );
    let expected = "\
listen          127.0.0.1:8080, admin on 127.0.0.1:8081, without a place for its token
upstream        http://127.0.0.1:3000
store           postgres://h:5432/d
cache           64MiB of memory
service         default
secret          none
in the database keys, routes, states and times in clear; and
  requests      bodies: hashed; short ones can be found by brute force, as there is no `secret`
  responses     in clear, fields and bodies, without `secret` and `store.encrypt`
  paths         in clear, without queries

route           create-payment
  matches       POST PATCH /v1/payments
  spelling      refuse
  mode          enforce
  upstream      http://127.0.0.1:3000
  dialect       ietf
  key           header:idempotency-key, required, 1 to 255 characters
  forwarded as  it came
  scope         none
  space         path
  fingerprint   recipe 1
  ttl           1d, then forgotten
  in flight     409 (behind a proxy that hedges: `wait`), or with `Prefer: wait=N` wait up to 10s
  same body     logged within 10m
  timeouts      connect 2s, upstream 30s, idle 2s
  stream        auto, idle 1m, whole 1h, continued without its client
  stored        2xx, 3xx but 307 308, 4xx but 401 403 407 408 412 417 421 423 424 425 426 428 429 431 451 499
  released      307 308, 401 403 407 408 412 417 421 423 425 426 428 429 431 451, 5xx but 502 504 520 522 524
  unknown       424 499, 502 504 520 522 524
  on unknown    retry, 70s past the attempt's deadline
  bodies        request 1MiB, response 1MiB
  not replayed  set-cookie
";
    assert_eq!(describe(&config), expected);
}

#[test]
fn check_says_that_a_scope_refuses_some_schemes() {
    for (lines, listed) in [("", true), ("scope = ['cookie:sid']", false), ("mode = 'off'", false)] {
        let described = describe(&config(&route(lines)));
        assert_eq!(
            described.contains("\ncredentials     400 scope-missing for those that differ"),
            listed,
            "{described}"
        );
    }
}

#[test]
fn a_general_and_a_specific_path_may_stand_beside_each_other() {
    for (first, second) in [("/v1/{*rest}", "/v1/{id}"), ("/v1/{id}/pay", "/v1/{*rest}"), ("/{a}/pay", "/{*rest}")] {
        config(&format!("[[routes]]\nname = 'a'\npath = '{first}'\n[[routes]]\nname = 'b'\npath = '{second}'"));
    }
}

#[test]
fn unguarded_requests_have_the_timeouts_of_defaults() {
    let services = config("[defaults]\nconnect_timeout = '1s'\nupstream_idle_timeout = '9s'").live.services;
    let pass = &services[0];
    assert_eq!((pass.connect_timeout, pass.upstream_idle_timeout), (Duration::from_secs(1), Duration::from_secs(9)));
    assert_eq!(pass.upstream.to_string(), "http://127.0.0.1:3000");
}

#[test]
fn a_service_is_asked_only_where_its_url_is_written() {
    let reconcile = |text: &str| config(&route(&format!("reconcile = {{ {text} }}"))).live.routes[0].reconcile.clone();
    assert_eq!(reconcile("every = '1s', max_attempts = 3, confirmations = 3"), None);
    let reconciled = reconcile("url = 'http://b:1/k?k={key}', max_attempts = 3").expect("there is a url");
    assert_eq!(reconciled.lookup.to_string(), "http://b:1/…?k={key}");
    let secret = config("[defaults]\nreconcile.url = 'https://b/k?token=s3cret&k={key}'");
    let described = describe(&secret);
    assert!(described.contains("by https://b/…?token=…&k={key} every") && !described.contains("s3cret"), "{described}");
    assert_eq!((reconciled.every, reconciled.max_attempts, reconciled.confirmations), (Duration::from_secs(30), 3, 2));
}

#[test]
fn a_question_that_cannot_be_asked_or_never_answered_is_a_problem() {
    for (text, begins) in [
        ("url = 'ftp://b/{key}'", "5:21: routes[0].reconcile.url: has an unknown scheme"),
        ("url = 'http://b/{kee}'", "5:21: routes[0].reconcile.url: has a placeholder that is not known"),
        ("url = 'http://{key}/'", "5:21: routes[0].reconcile.url: has a placeholder before its path"),
        ("every = '0s'", "5:23: routes[0].reconcile.every: `0s` is too short"),
        ("max_attempts = 0", "5:30: routes[0].reconcile.max_attempts: must be 1 to"),
        ("confirmations = 0", "5:31: routes[0].reconcile.confirmations: must be 1 to"),
        ("max_attempts = 1", "5:30: routes[0].reconcile.max_attempts: `confirmations` (2) must not be over"),
    ] {
        one_problem(&route(&format!("reconcile = {{ {text} }}")), begins);
    }
}

#[test]
fn a_reconcile_url_by_the_key_alone_is_warned_about() {
    let warned = |scope: &str, url: &str| {
        let config = config(&route(&format!("scope = [{scope}]\nreconcile.url = 'http://b/{url}'")));
        config
            .live
            .warnings
            .iter()
            .filter(|warning| warning.starts_with("route `a`: reconcile.url has `{key}`"))
            .count()
    };
    assert_eq!(warned("'authorization'", "{key}"), 1);
    assert_eq!(warned("'authorization'", "{id}"), 0);
    assert_eq!(warned("'authorization'", "{key}?scope={scope}"), 0);
    assert_eq!(warned("'none'", "{key}"), 0, "the callers share their keys");
}

#[test]
fn a_route_that_bypasses_is_not_asked_about_by_an_id_that_the_service_never_had() {
    let bypassing = |url: &str| route(&format!("store_down = 'bypass'\nreconcile.url = 'http://b/{url}'"));
    one_problem(&bypassing("{id}"), "6:17: routes[0].reconcile.url: asks by `{id}` alone");
    config(&bypassing("{id}?key={key}"));
}

#[test]
fn the_flag_for_the_scope_is_the_default_of_all_routes() {
    let load_with = |scope: &str, file: &str| {
        let overrides =
            Overrides { scope: Some(scope.into()), upstream: Some("http://a".into()), ..Overrides::default() };
        let environment = super::FakeEnvironment::default().with_file("f", file);
        load((!file.is_empty()).then(|| "f".as_ref()), &overrides, &environment)
    };
    let names = |scope: &str, file: &str| -> Vec<String> {
        let config = load_with(scope, file).expect("it is valid");
        config.live.routes.iter().map(|route| route.scope.parts.iter().map(|part| &*part.name).collect()).collect()
    };
    assert_eq!(names("none", ""), [""]);
    assert_eq!(names("authorization, header:X-Tenant?", ""), ["authorizationheader:x-tenant"]);
    let file = format!(
        "[defaults]\nscope = ['query:d']\n{}[[routes]]\nname = 'b'\npath = '/b'",
        route("scope = ['query:r']\n")
    );
    assert_eq!(names("none", &file), ["query:r", ""], "a route's own scope counts");
    for (scope, problem) in [
        ("authorization,", "--scope[1]: `` is no part of a request"),
        ("ip", "--scope[0]: `ip` is no part of a request"),
        ("none,authorization", "--scope: has `none` beside others"),
        ("authorization,authorization", "--scope[1]: is listed a second time"),
    ] {
        let problems = load_with(scope, "").expect_err(scope).to_string();
        assert!(problems.starts_with(problem), "{scope}: {problems}");
    }
}

#[test]
fn a_path_that_another_routes_spelling_decides_about_is_warned_of() {
    let both = |lines: &str| {
        config(&format!("[[routes]]\nname = 'a'\npath = '/pay'\n{lines}\n[[routes]]\nname = 'b'\npath = '/pay/'"))
            .live
            .warnings
    };
    let warnings = both("methods = ['POST']");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("route `b`: POST `/pay/` is refused (path-ambiguous)"), "{warnings:?}");
    assert!(both("spelling = 'pass'").is_empty());
    let usual = "[[routes]]\nname = 'a'\npath = '/v1/orders/{id}/pay'\n[[routes]]\nname = 'b'\npath = '/{*rest}'";
    assert!(config(usual).live.warnings.is_empty(), "{:?}", config(usual).live.warnings);
}

/// The settings of the only route of a file that come from its dialect, as `label: keys`.
fn preset_settings(config: &LoadedConfig, route: usize) -> Vec<String> {
    let settings = config.live.routes[route].settings().into_iter().flat_map(|setting| {
        let preset = setting.origins.into_iter().filter(|(origin, _)| matches!(origin, ValueOrigin::Preset(_)));
        preset.map(move |(_, keys)| format!("{}: {}", setting.label, keys.join(", "))).collect::<Vec<_>>()
    });
    settings.collect()
}

#[test]
fn each_dialect_is_a_preset_whose_values_say_where_they_come_from() {
    let with_syntax = describe(&config(&route("dialect = 'stripe'")));
    assert!(with_syntax.contains("idempotency-key, opaque, optional, 1 to 255 characters  (dialect: key.syntax)\n"));
    for (dialect, expected) in [
        ("ietf", &[][..]),
        ("acp", &["key: key.required", "fingerprint: fingerprint.body, fingerprint.query"]),
        (
            "graphql",
            &[
                "fingerprint: fingerprint.body",
                "stored: store_statuses",
                "released: release_statuses",
                "outcome: outcome",
            ],
        ),
        ("jsonrpc", &["key: key.from", "fingerprint: fingerprint.body", "outcome: outcome"]),
        ("mcp", &["operations: operations", "key: key.from", "fingerprint: fingerprint.body", "outcome: outcome"]),
        ("a2a", &["operations: operations", "key: key.from", "fingerprint: fingerprint.body", "outcome: outcome"]),
        (
            "ucp",
            &[
                "matches: methods",
                "operations: operations",
                "key: key.from",
                "fingerprint: fingerprint.body, fingerprint.exclude",
                "ttl: ttl",
                "in flight: in_flight",
            ],
        ),
        (
            "x402",
            &[
                "matches: methods",
                "key: key.from, key.max_length, key.min_length, key.syntax",
                "scope: scope",
                "fingerprint: fingerprint.headers",
                "in flight: in_flight",
                "released: release_statuses",
            ],
        ),
        ("iceberg", &["key: key.syntax", "unknown: unknown_statuses"]),
        ("repeatability", &["key: key.from, key.syntax", "fingerprint: fingerprint.headers"]),
        (
            "stripe",
            &[
                "key: key.syntax",
                "scope: scope",
                "space: space",
                "in flight: in_flight, wait_timeout",
                "stored: store_statuses",
                "released: release_statuses",
                "unknown: unknown_statuses",
            ],
        ),
    ] {
        let config = config(&route(&format!("dialect = '{dialect}'")));
        let (refusals, others): (Vec<_>, Vec<_>) =
            preset_settings(&config, 0).into_iter().partition(|text| text.starts_with("refusals: refusals."));
        assert_eq!(refusals.len(), usize::from(dialect != "ietf"), "{dialect}");
        assert_eq!(others, expected, "{dialect}");
        assert_eq!(describe(&config).contains("(dialect: "), !expected.is_empty(), "{dialect}");
    }
}

#[test]
fn the_stripe_preset_stores_what_an_execution_came_to() {
    let config = config(&route("dialect = 'stripe'"));
    let table = &config.live.routes[0].statuses;
    for (code, verdict) in [
        (200, ResponseVerdict::Store),
        (402, ResponseVerdict::Store),
        (409, ResponseVerdict::Store),
        (500, ResponseVerdict::Store),
        (501, ResponseVerdict::Store),
        (401, ResponseVerdict::Release),
        (429, ResponseVerdict::Release),
        (503, ResponseVerdict::Release),
        (502, ResponseVerdict::Unknown),
        (504, ResponseVerdict::Unknown),
    ] {
        assert_eq!(table.verdict_on(StatusCode::from_u16(code).unwrap(), false), verdict, "{code}");
    }
}

#[test]
fn a_written_key_overrules_the_preset_of_the_dialect_beside_it_and_of_those_behind() {
    let routes = |defaults: &str, own: &str| config(&format!("[defaults]\n{defaults}\n{}", route(own)));
    let space = |config: &LoadedConfig| (config.live.routes[0].options.space, config.live.routes[0].options.dialect);
    for (defaults, own, expected) in [
        ("", "dialect = 'stripe'\nspace = 'route'", (KeySpace::Route, Dialect::Stripe)),
        ("space = 'route'", "dialect = 'stripe'", (KeySpace::Service, Dialect::Stripe)),
        ("space = 'route'\ndialect = 'stripe'", "", (KeySpace::Route, Dialect::Stripe)),
        ("dialect = 'stripe'", "space = 'path'", (KeySpace::Path, Dialect::Stripe)),
        ("dialect = 'stripe'", "dialect = 'ietf'", (KeySpace::Path, Dialect::Ietf)),
        ("dialect = 'acp'", "dialect = 'stripe'", (KeySpace::Service, Dialect::Stripe)),
    ] {
        assert_eq!(space(&routes(defaults, own)), expected, "{defaults}; {own}");
    }
    // A list that is written beats those of the preset, as it beats the built-in ones.
    let config = config(&route("dialect = 'stripe'\nrelease_statuses = ['5xx']"));
    let verdict = |code| config.live.routes[0].statuses.verdict_on(StatusCode::from_u16(code).unwrap(), false);
    assert_eq!((verdict(500), verdict(502)), (ResponseVerdict::Release, ResponseVerdict::Release));
    one_problem(&route("dialect = 'strip'"), "5:11: routes[0].dialect: `strip` is not known");
}

#[test]
fn a_repeatable_request_is_too_old_before_its_key_is_forgotten_also_if_the_clients_clock_was_ahead() {
    for (own, limits) in [
        ("ttl = '1h'", (55 * 60, 5 * 60)),
        ("ttl = '10s'", (5, 5)),
        ("ttl = '1h'\nmax_age = '1m'", (60, 5 * 60)),
        ("ttl = '1h'\nmax_age = '2h'", (55 * 60, 5 * 60)),
    ] {
        let config = config(&route(&format!("dialect = 'repeatability'\n{own}")));
        let route = &config.live.routes[0];
        assert_eq!((route.age_limit().unwrap().as_secs(), route.ahead_limit().as_secs()), limits, "{own}");
    }
}

#[test]
fn a_reload_reckons_with_the_lease_of_the_start() {
    let lease =
        |expiry: &str| config(&format!("[store]\nlease.expiry = '{expiry}'\n{}", route("reconcile.after = '7s'")));
    let running = lease("20s").start;
    for (expiry, loaded) in [("9s", 16), ("20s", 27), ("40s", 47)] {
        let loaded_config = lease(expiry);
        assert_eq!(loaded_config.live.routes[0].quiet_after, Duration::from_secs(loaded));
        let reloaded = loaded_config.into_reload(&running);
        assert_eq!(reloaded.routes[0].quiet_after, Duration::from_secs(27), "{expiry}");
    }
}

#[test]
fn asynchronous_delivery_is_described() {
    let described =
        |lines: &str| describe(&config(&format!("secret = 'a secret of some length'\n[defaults]\n{lines}")));
    let later = described("delivery = 'async'\nretry = { max_attempts = 3, give_up_after = '1h' }");
    assert!(later.contains("later, after 202; pauses from 1s to 10m, dead after 3 attempts or 1h"), "{later}");
    assert!(described("delivery = 'prefer'").contains("later, if the client prefers that, after 202; pauses"));
    assert!(!described("").contains("later"));
}
