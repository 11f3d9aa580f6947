//! Places: of a route's key, in its scope and its fingerprint, and of a message's key.

use super::*;
use oncegate_domain::place::Place;

#[test]
fn a_key_is_at_places_and_each_is_named_once() {
    let key = |value: &str| config(&route(&format!("key = {{ {value} }}"))).live.routes[0].options.key.clone();
    for (from, places) in [
        ("'header:K'", &["header:k"][..]),
        ("['header:Idempotency-Key', 'query:k']", &["header:idempotency-key", "query:k"]),
        ("'header:X-Pay#/a/b'", &["header:x-pay#/a/b"]),
        ("'cookie:sid'", &["cookie:sid"]),
        ("'form:request#/idempotency_key'", &["form:request#/idempotency_key"]),
        ("'json:/a~1b'", &["json:/a~1b"]),
        ("'cbor:/clientToken'", &["cbor:/clientToken"]),
        ("'xml:/Envelope/Header/MessageID'", &["xml:/Envelope/Header/MessageID"]),
        ("'protobuf:1.3'", &["protobuf:1.3"]),
        ("'graphql:@idempotent(key)'", &["graphql:@idempotent(key)"]),
        // A `+` before another kind joins two places, and any other one is of a name.
        ("'header:ce-source+header:ce-id'", &["header:ce-source+header:ce-id"]),
        ("'query:a+b+json:/id'", &["query:a+b+json:/id"]),
    ] {
        let found: Vec<_> = key(&format!("from = {from}")).from.iter().map(ToString::to_string).collect();
        assert_eq!(found, places, "{from}");
    }
    assert_eq!(key("from = 'header:ce-source+header:ce-id'").from[0].parts.len(), 2);
    assert_eq!(key("from = 'query:a+b'").from[0].parts.len(), 1);
    let secret = key("from = 'form:refresh_token', hash = true");
    assert_eq!((secret.hash, secret.limits.length_max), (true, 16_384));
    assert_eq!(key("hash = true, min_length = 300").limits.length_min, 300);
    assert_eq!(key("hash = true, max_length = 64").limits.length_max, 64);
    let defaults = "[defaults]\nkey.from = 'header:D'\n";
    let of_defaults = |own: &str| config(&format!("{defaults}{}", route(own))).live.routes[0].options.key.from.clone();
    assert_eq!(of_defaults("")[0].to_string(), "header:d");
    assert_eq!(of_defaults("key.from = 'query:q'").len(), 1, "the route's own places are all of its places");
    for (value, problem) in [
        ("from = []", "routes[0].key.from: is empty"),
        ("from = ''", "routes[0].key.from: `` is no place"),
        ("from = ['header:a', 'header:A']", "routes[0].key.from[1]: is listed a second time"),
        ("from = ['header:a', 'header:cookie']", "routes[0].key.from[1]: `header:cookie` carries something else"),
        ("from = 'Idempotency-Key'", "`Idempotency-Key` is no place of a request"),
        ("from = 'json:'", "`json:` lacks the name"),
        ("from = 'json:id'", "has no JSON Pointer"),
        ("from = 'json:/*/id'", "has a `*`"),
        ("from = 'path:txn'", "key.from: has a `path:NAME` that is no `{NAME}` segment of the route's `path`"),
        ("from = 'protobuf:0'", "`protobuf:0` "),
        ("from = 'graphql:idempotent'", "`graphql:idempotent` "),
        ("from = 1", "routes[0].key.from: must be "),
        ("hash = true, syntax = 'uuid'", "has no use beside `hash`"),
        ("max_length = 1025", "a longer key needs `hash = true`"),
        ("from = 'header:a+header:A'", "`header:a+header:A` has one place twice"),
        ("from = 'path:*rest'", "has a `path:NAME` that is no `{NAME}` segment"),
        ("hash = true, max_length = 16385", "must be 1 to 16384"),
    ] {
        let problems = problems(&route(&format!("key = {{ {value} }}")));
        assert!(problems.len() == 1 && problems[0].contains(problem), "{value}: {problems:?}");
    }
    let derived = problems(&route("key = { hash = true }\nforward_key = 'derive:pay'"));
    assert!(derived.len() == 1 && derived[0].contains("forward_key: makes a key of the client's"), "{derived:?}");
}

#[test]
fn an_earlier_option_of_a_key_is_told_with_its_values_how_it_is_written_now() {
    for (value, from) in [
        ("header = 'X-Key'", "\"header:X-Key\""),
        ("header = ['A', 'B']", "[\"header:A\", \"header:B\"]"),
        ("query = 'k'", "\"query:k\""),
        ("form = 'k'", "\"form:k\""),
        ("body = '/a/k'", "\"json:/a/k\""),
        ("payload = 'X-PAYMENT#/id'", "\"header:X-PAYMENT#/id\""),
        ("header = '${FIELD:-X-Key}'", "\"header:${FIELD:-X-Key}\""),
    ] {
        let name = value.split(' ').next().unwrap();
        let problem = format!("5:9: routes[0].key.{name}: is a place of `key.from` now: `{from}`");
        one_problem(&route(&format!("key = {{ {value} }}")), &problem);
    }
    let both = problems(&route("key = { body = ['/a', '/b'], header = 'A' }"));
    let from = "is a place of `key.from` now: `[\"header:A\", \"json:/a\", \"json:/b\"]`";
    assert!(both.len() == 2 && both.iter().all(|problem| problem.contains(from)), "in the order of before: {both:?}");
    one_problem("[tls]\nheader = 'x'", "3:1: tls.header: unknown key");
}

#[test]
fn a_fingerprint_selects_places_of_the_body_and_of_the_query() {
    let own = |lines: &str| config(&route(lines)).live.routes[0].recipe.to_stored().to_owned();
    let selected =
        own("fingerprint = { include = ['json:/a/*', 'cbor:/b'], exclude = ['form:sign', 'query:ts', 'xml:/E/@id'] }");
    for place in ["json:/a/*", "cbor:/b", "form:sign", "query:ts", "xml:/E/@id"] {
        let escaped = place.replace(':', "%3A").replace('*', "%2A").replace('@', "%40");
        assert!(selected.contains(&escaped), "{place}: {selected}");
    }
    config(&route("fingerprint.exclude = ['protobuf:1.2', 'form:request#/sent_at']"));
    config(&route("fingerprint = { body = 'form', exclude = ['form:sign', 'query:ts'] }"));
    config(&route("fingerprint = { body = 'none', exclude = ['query:ts'] }"));
    for (lines, problem) in [
        ("exclude = ['/sent_at']", "fingerprint.exclude[0]: `/sent_at` is written with `json:` before it now"),
        ("include = ['header:x']", "fingerprint.include[0]: `header:x` is a field: name it in `headers`"),
        ("exclude = ['cookie:x']", "`cookie:x` is a field"),
        ("exclude = ['path:x']", "`path:x` takes part as a whole"),
        ("exclude = ['graphql:@a(b)']", "`graphql:@a(b)` takes part as a whole"),
        ("exclude = ['sent_at']", "`sent_at` is no place of a request"),
        ("body = 'raw', exclude = ['json:/a']", "selects values of a body, and by `body` it is not read so"),
        ("body = 'none', include = ['form:a']", "by `body` it is not read so"),
        ("body = 'form', exclude = ['json:/a']", "by `body` it is not read so"),
        ("body = 'json', exclude = ['xml:/a']", "by `body` it is not read so"),
    ] {
        let problems = problems(&route(&format!("fingerprint = {{ {lines} }}")));
        assert!(problems.len() == 1 && problems[0].contains(problem), "{lines}: {problems:?}");
    }
}

#[test]
fn the_places_of_a_key_are_no_part_of_the_fingerprint() {
    let recipe = |key: &str| config(&route(&format!("key.from = {key}"))).live.routes[0].recipe.clone();
    let usual = recipe("'header:Idempotency-Key'");
    for key in ["'json:/order+json:/step'", "['header:A', 'form:request#/key']"] {
        assert_ne!(recipe(key), usual, "{key}");
    }
}

#[test]
fn each_kind_of_place_tells_callers_apart() {
    let parts = |scope: &str| {
        let text = format!("[[routes]]\nname = 'a'\npath = '/{{tenant}}/a'\nscope = [{scope}]");
        config(&text).live.routes[0].scope.parts.clone()
    };
    for place in [
        "header:x-tenant",
        "header:x-user#/sub",
        "query:Tenant",
        "path:tenant",
        "cookie:SID",
        "form:account",
        "json:/account/id",
        "cbor:/account",
        "xml:/Envelope/Header/From",
        "protobuf:1.2",
        "graphql:@tenant(id)",
    ] {
        let found = parts(&format!("'{place}?'"));
        assert_eq!((&*found[0].name, found[0].optional), (place, true));
        assert_eq!(found[0].source, ScopeSource::Place(Place::parse(place).unwrap()));
    }
    for (scope, problem) in [
        ("'path:tenant'", "routes[0].scope: has a `path:NAME` that is no `{NAME}` segment"),
        ("'json:/*/id'", "routes[0].scope[0]: `json:/*/id` has a `*`"),
        ("'form:timestamp'", "differs with each try"),
        ("'header:authorization#/a'", "must be written as `authorization`"),
        ("'json:'", "lacks the name"),
    ] {
        let problems = problems(&route(&format!("scope = [{scope}]")));
        assert!(problems.len() == 1 && problems[0].contains(problem), "{scope}: {problems:?}");
    }
}

#[test]
fn an_account_beside_the_default_parts_leaves_the_scope_the_default_one() {
    let is_default = |lines: &str| config(&route(lines)).live.routes[0].scope.is_default;
    assert!(is_default("dialect = 'stripe'"));
    assert!(is_default("scope = ['authorization?', 'header:x-api-key?', 'header:Stripe-Account?']"));
    assert!(!is_default("scope = ['authorization?', 'header:Stripe-Account?']"));
    assert!(!is_default("scope = ['authorization?', 'header:x-api-key?', 'header:x-user?']"));
    assert!(!is_default("scope = ['authorization?', 'header:x-api-key?', 'header:x-tenant-id#/a?']"));
    let own = "dialect = 'stripe'\nscope = ['authorization']";
    assert_eq!(config(&route(own)).live.routes[0].scope.parts.len(), 1, "a written scope counts");
}

#[test]
fn a_message_has_its_key_and_its_caller_at_places_too() {
    let consumer = |lines: &str| {
        let broker = "amqp = 'amqp://b'\nqueue = 'q'\nroute = 'a'\n";
        format!("{}\n[[consumers]]\n{broker}{lines}", route(""))
    };
    for (place, lines) in [
        ("header:x-order", "key = 'header:X-Order'"),
        ("header:x-order#/id", "key = 'header:X-Order#/id'"),
        ("json:/a", "key = 'json:/a'"),
        ("form:a", "key = 'form:a'"),
        ("cbor:/a", "key = 'cbor:/a'"),
        ("xml:/a", "key = 'xml:/a'"),
        ("protobuf:1", "key = 'protobuf:1'"),
        ("message-id", "key = 'message-id'"),
    ] {
        assert_eq!(config(&consumer(lines)).live.consumers[0].key.to_text(), place);
    }
    let stepped = config(&consumer("key = 'json:/a:b'\nstep = 'pay'")).live.consumers[0].key.to_text();
    assert_eq!(stepped, "json:/a:b, then `:pay`", "a colon is a part of the pointer");
    let scoped = config(&consumer("scope = ['header:x-tenant', 'json:/tenant?']"));
    assert_eq!(scoped.live.consumers[0].scope.parts.len(), 2);
    for (lines, problem) in [
        ("key = 'kafka-key'", "consumers[0].key: is of Kafka's records"),
        ("key = 'path:a'", "`path:a` is no place in a message"),
        ("key = 'json:/*'", "`json:/*` has a `*`"),
        ("key = 'body:/a:pay'", "is written with `json:` for `body:` now, and a step behind another colon with `step`"),
        ("key = 'header:a:pay'", "`header:a:pay` has a step behind the name, which is written with `step` now"),
        ("step = 'b c'", "consumers[0].step: `b c` has no proper step"),
        ("step = 'a:b'", "consumers[0].step: `a:b` has no proper step"),
        ("scope = ['path:a']", "consumers[0].scope: has a part that a message does not have"),
        ("scope = ['cookie:a']", "consumers[0].scope: has a part that a message does not have"),
    ] {
        let problems = problems(&consumer(lines));
        assert!(problems.len() == 1 && problems[0].contains(problem), "{lines}: {problems:?}");
    }
}

#[test]
fn a_problem_of_a_place_shows_no_value_of_the_environment() {
    let consumer = "[[consumers]]\namqp = 'amqp://b'\nqueue = 'q'\nroute = 'a'\nkey =";
    let key = |value: &str| route(&format!("key = {{ {value} }}"));
    for text in [
        key("from = 'path:${SECRET}'"),
        key("from = '${SECRET}'"),
        key("from = 'xml:${SECRET}'"),
        key("from = 'protobuf:${SECRET}'"),
        key("from = 'graphql:${SECRET}'"),
        key("header = '${SECRET}'"),
        route("scope = ['path:${SECRET}']"),
        route("fingerprint.exclude = ['/${SECRET}']"),
        format!("{}\n{consumer} 'body:/${{SECRET}}'", route("")),
        format!("{}\n{consumer} 'header:${{SECRET}}:pay'", route("")),
    ] {
        let environment = FakeEnvironment::default().with_variable("SECRET", "hunter2");
        let problems = problems_in(environment, &format!("{UPSTREAM}{text}"));
        assert!(problems.len() == 1 && !problems[0].contains("hunter2"), "{text}: {problems:?}");
    }
}
