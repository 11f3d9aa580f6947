//! A route's `key`: its places, and what is written otherwise now.

use super::*;

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
    for (value, problem) in [
        ("from = []", "routes[0].key.from: is empty"),
        ("from = ''", "routes[0].key.from: `` is no place"),
        ("from = ['header:a', 'header:A']", "routes[0].key.from[1]: is listed a second time"),
        ("from = ['header:a', 'header:cookie']", "routes[0].key.from[1]: `header:cookie` carries something else"),
        ("from = 'Idempotency-Key'", "`Idempotency-Key` is no place of a request"),
        ("from = 'json:'", "`json:` lacks the name"),
        ("from = 'json:id'", "has no JSON Pointer"),
        ("from = 'json:/*/id'", "has a `*`"),
        ("from = 'path:txn'", "the route's `path` has no such segment"),
        ("from = 'protobuf:0'", "`protobuf:0` "),
        ("from = 'graphql:idempotent'", "`graphql:idempotent` "),
        ("from = 1", "routes[0].key.from: must be "),
        ("hash = true, syntax = 'uuid'", "has no use beside `hash`"),
        ("max_length = 1025", "a longer key needs `hash = true`"),
        ("header = 'X-Key'", "routes[0].key.header: is written `key.from = \"header:NAME\"` now"),
        ("query = 'k'", "`key.from = \"query:NAME\"` now"),
        ("form = 'k'", "`key.from = \"form:NAME\"` now"),
        ("body = '/k'", "`key.from = \"json:/POINTER\"` now"),
        ("payload = 'X#/k'", "`key.from = \"header:NAME#/POINTER\"` now"),
    ] {
        let problems = problems(&route(&format!("key = {{ {value} }}")));
        assert!(problems.len() == 1 && problems[0].contains(problem), "{value}: {problems:?}");
    }
    let derived = problems(&route("key = { hash = true }\nforward_key = 'derive:pay'"));
    assert!(derived.len() == 1 && derived[0].contains("forward_key: makes a key of the client's"), "{derived:?}");
}
