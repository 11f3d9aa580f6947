//! Places: the key is read anywhere in a request, and never counts as a part of it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use harness::{Request, Store, World, on_both_stores, route};

/// The options of a route, and its request with a key for an amount.
type Case = (&'static str, fn(&World, &str, &str) -> Request);

const CASES: &[Case] = &[
    ("from = \"header:X-Key\"", |world, key, amount| world.post("/pay").field("X-Key", key).body(amount)),
    ("from = \"header:X-Pay#/id\"", |world, key, amount| {
        world.post("/pay").field("X-Pay", &STANDARD.encode(format!("{{\"id\":\"{key}\"}}"))).body(amount)
    }),
    ("from = \"query:k\"", |world, key, amount| world.post(&format!("/pay?a=1&k={key}")).body(amount)),
    ("from = \"cookie:sid\"", |world, key, amount| {
        world.post("/pay").field("Cookie", &format!("x=y; sid={key}")).body(amount)
    }),
    ("from = \"form:k\"", |world, key, amount| form(world, &format!("k={key}&amount={amount}"))),
    ("from = \"form:k\"", |world, key, amount| {
        // Each try has another boundary.
        multipart(world, &format!("b{key}"), &[("k", key), ("amount", amount)])
    }),
    ("from = \"form:payload#/id\"", |world, key, amount| {
        form(world, &format!("payload=%7B%22id%22%3A%22{key}%22%2C%22n%22%3A{amount}%7D"))
    }),
    ("from = \"form:request#/idempotency_key\"", |world, key, amount| {
        let request = format!("{{\"idempotency_key\":\"{key}\",\"n\":{amount}}}");
        multipart(world, "b", &[("image_file", "\u{0}\r\n"), ("request", &request)])
    }),
    ("from = \"json:/order/id\"", |world, key, amount| {
        world.post("/pay").json(&format!("{{\"order\":{{\"id\":\"{key}\"}},\"amount\":{amount}}}"))
    }),
    ("from = \"cbor:/clientToken\"", |world, key, amount| {
        let body = [b"\xa2\x6bclientToken\x63", key.as_bytes(), b"\x66amount\x61", amount.as_bytes()].concat();
        world.post("/pay").field("Content-Type", "application/cbor").body(body)
    }),
    ("from = \"xml:/Envelope/Header/MessageID\"", |world, key, amount| {
        let envelope = format!(
            "<s:Envelope xmlns:s='http://www.w3.org/2003/05/soap-envelope'><s:Header><a:MessageID \
             xmlns:a='http://www.w3.org/2005/08/addressing'>{key}</a:MessageID></s:Header><s:Body>{amount}</s:Body></s:Envelope>"
        );
        world.post("/pay").field("Content-Type", "application/soap+xml").body(envelope)
    }),
    ("from = \"protobuf:1.5\"", |world, key, amount| {
        let body = [b"\x0a\x05\x2a\x03", key.as_bytes(), b"\x12\x01", amount.as_bytes()].concat();
        world.post("/pay").field("Content-Type", "application/proto").body(body)
    }),
    ("from = \"graphql:@idempotent(key)\"", |world, key, amount| {
        graphql(world, &format!("mutation {{ pay(n: {amount}) @idempotent(key: \\\"{key}\\\") {{ id }} }}"), "{}")
    }),
    ("from = \"graphql:@idempotent(key)\"", |world, key, amount| {
        let document = "mutation($k: String!, $n: Int!) { pay(n: $n) @idempotent(key: $k) { id } }";
        graphql(world, document, &format!("{{\"k\":\"{key}\",\"n\":{amount}}}"))
    }),
    ("from = \"header:ce-source+header:ce-id\"", |world, key, amount| {
        world.post("/pay").field("ce-source", "/shop").field("ce-id", key).body(amount)
    }),
    ("from = \"header:mcp-session-id+json:/id\"", |world, key, amount| {
        let body = format!("{{\"id\":\"{key}\",\"amount\":{amount}}}");
        world.post("/pay").field("Mcp-Session-Id", "s-1").json(&body)
    }),
    ("from = \"path:txn\"", |world, key, amount| {
        world.proxy.client().request("PUT", &format!("/rooms/r/send/{key}")).key("another").body(amount)
    }),
];

fn form(world: &World, body: &str) -> Request {
    world.post("/pay").field("Content-Type", "application/x-www-form-urlencoded").body(body)
}

fn multipart(world: &World, boundary: &str, fields: &[(&str, &str)]) -> Request {
    let parts: String = fields
        .iter()
        .map(|(name, value)| {
            format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        })
        .collect();
    let content_type = format!("multipart/form-data; boundary={boundary}");
    world.post("/pay").field("Content-Type", &content_type).body(format!("{parts}--{boundary}--\r\n"))
}

fn graphql(world: &World, document: &str, variables: &str) -> Request {
    world.post("/pay").json(&format!("{{\"query\":\"{document}\",\"variables\":{variables}}}"))
}

/// A world with a route whose key is at this place, and which refuses an equal request under another key.
async fn keyed(store: Store, key: &str) -> World {
    let lines = format!("key = {{ {key}, required = true }}\nsame_body = \"refuse\"");
    let lines =
        if key.contains("graphql") { format!("fingerprint = {{ body = \"graphql\" }}\n{lines}") } else { lines };
    World::with(store, |setup| match key.contains("path:") {
        true => setup
            .route(&format!("name = \"pay\"\npath = \"/rooms/{{room}}/send/{{txn}}\"\nmethods = [\"PUT\"]\n{lines}")),
        false => setup.route(&route("pay", &lines)),
    })
    .await
}

#[tokio::test]
async fn a_key_at_any_place_guards_and_does_not_count_itself() {
    for (key, request) in CASES {
        let world = keyed(Store::sqlite(), key).await;
        for (id, amount, status) in [
            ("k-1", "1", "executed"),
            ("k-1", "1", "replayed"),
            ("k-1", "2", "key-reused"),
            // Under another key it is the same order: its key is no part of it.
            ("k-2", "1", "rejected"),
            ("k-2", "2", "executed"),
        ] {
            let response = request(&world, id, amount).send().await;
            assert_eq!(response.oncegate_status(), Some(status), "{key} {id} {amount}: {response:?}");
        }
        assert_eq!(world.upstream.calls(), 2, "{key}");
    }
}

#[tokio::test]
async fn a_request_without_its_key_at_the_place_is_refused_and_told_the_place() {
    for (key, missing) in [
        ("from = \"header:X-Key\"", "in the field `x-key`"),
        ("from = \"cookie:sid\"", "in the cookie `sid`"),
        ("from = \"json:/id\"", "at `/id` in its JSON body"),
        ("from = \"header:ce-source+header:ce-id\"", "in the field `ce-source` and in the field `ce-id`"),
    ] {
        let world = keyed(Store::sqlite(), key).await;
        let refusal = world.post("/pay").field("ce-id", "1").json("{}").send().await;
        assert_eq!(refusal.outcome(), (400, "key-missing".to_owned()), "{key}");
        assert!(refusal.problem()["detail"].as_str().unwrap().contains(missing), "{refusal:?}");
    }
}

#[tokio::test]
async fn a_body_that_cannot_be_read_for_its_key_is_refused() {
    for (key, content_type, body) in [
        ("from = \"xml:/a\"", "application/xml", "<a>k"),
        ("from = \"xml:/a\"", "application/xml", "<!DOCTYPE a><a>k</a>"),
        ("from = \"cbor:/a\"", "application/cbor", "k"),
        ("from = \"protobuf:1\"", "application/proto", "\u{3}"),
        ("from = \"form:a\"", "multipart/form-data; boundary=b", "a=k"),
        ("from = [\"json:/a\", \"form:a\"]", "application/json", r#"{"a":"k","a":"k"}"#),
        ("from = [\"json:/a\", \"form:a\"]", "", r#"{"a":"k","a":"k"}"#),
        ("from = \"form:a#/b\"", "application/x-www-form-urlencoded", "a={"),
        ("from = \"header:X-Pay#/id\"", "text/plain", "k"),
        ("from = \"graphql:@idempotent(key)\"", "application/json", r#"{"query":"mutation @idempotent(key: {"}"#),
    ] {
        let world = keyed(Store::sqlite(), key).await;
        let request = world.post("/pay").field("X-Pay", "!").body(body);
        let request = if content_type.is_empty() { request } else { request.field("Content-Type", content_type) };
        let refusal = request.send().await;
        assert_eq!(refusal.outcome(), (400, "key-invalid".to_owned()), "{key} {body}: {refusal:?}");
        assert_eq!(world.upstream.calls(), 0);
    }
}

#[tokio::test]
async fn of_places_with_different_keys_none_counts() {
    let world = keyed(Store::sqlite(), "from = [\"header:X-Key\", \"query:k\", \"json:/id\"]").await;
    let send = |target: &str, field: Option<&str>, body: &str| {
        let request = world.post(target).json(body);
        match field {
            Some(key) => request.field("X-Key", key),
            None => request,
        }
    };
    for (target, field, body, status) in [
        ("/pay?k=a", Some("b"), "{}", "rejected"),
        ("/pay", Some("a"), r#"{"id":"b"}"#, "rejected"),
        ("/pay?k=a", None, r#"{"id":"b"}"#, "rejected"),
        ("/pay?k=a", Some("a"), r#"{"id":"a"}"#, "executed"),
        ("/pay?k=a", None, r#"{"id":"a"}"#, "replayed"),
        ("/pay", Some("c"), r#"{"n":1}"#, "executed"),
    ] {
        let response = send(target, field, body).send().await;
        assert_eq!(response.oncegate_status(), Some(status), "{target} {field:?} {body}: {response:?}");
    }
    let encoded = send("/pay", Some("d"), "{}").field("Content-Encoding", "gzip").send().await;
    assert_eq!(encoded.outcome(), (400, "key-invalid".to_owned()), "it could have another key");
    // The field does not count in the comparison, whatever it has.
    let world = keyed(Store::sqlite(), "from = [\"header:X-Key\", \"header:X-Pay#/id\"]").await;
    let unreadable = world.post("/pay").field("X-Key", "e").field("X-Pay", "!").json("{}").send().await;
    assert_eq!(unreadable.outcome(), (400, "key-invalid".to_owned()), "it could be of another key");
}

#[tokio::test]
async fn outside_of_a_field_another_spelling_of_a_key_is_another_key_or_none() {
    for (key, is_path, requests) in [
        ("from = \"path:txn\"", true, &["s1", "%22s1%22", "%20s1", "s1%20"][..]),
        ("from = \"query:k\"", false, &["s1", "%22s1%22", "+s1", "s1+"]),
        ("from = \"form:k\"", false, &["s1", "%22s1%22", "+s1", "s1+"]),
        ("from = \"form:k\", syntax = \"opaque\"", false, &["s1", "%22s1%22", "+s1", "s1+"]),
        ("from = \"form:k\", hash = true", false, &["s1", "%22s1%22", "+s1", "s1+"]),
        ("from = \"json:/k\"", false, &["s1", "\\\"s1\\\"", " s1", "s1 "]),
    ] {
        let world = keyed(Store::sqlite(), key).await;
        for (number, spelling) in requests.iter().enumerate() {
            // Else it would be refused as an equal request under another key.
            let amount = number.to_string();
            let response = match () {
                () if is_path => {
                    world.proxy.client().request("PUT", &format!("/rooms/r/send/{spelling}")).key("x").body(amount)
                }
                () if key.contains("query") => world.post(&format!("/pay?k={spelling}")).body(amount),
                () if key.contains("form") => form(&world, &format!("k={spelling}&n={amount}")),
                () => world.post("/pay").json(&format!("{{\"k\":\"{spelling}\",\"n\":{amount}}}")),
            };
            let response = response.send().await;
            let is_apart =
                response.oncegate_status() == Some("executed") || response.problem()["code"] == "key-invalid";
            assert!(is_apart, "{key} {spelling}: {response:?}");
        }
    }
}

#[tokio::test]
async fn a_call_in_a_batch_has_a_key_of_several_places_too() {
    let options = "dialect = \"jsonrpc\"\nkey = { from = \"header:mcp-session-id+json:/id\" }";
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("pay", options))).await;
    let send = |body: &str| world.post("/pay").json(body);
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"pay"}]"#;
    assert_eq!(send(batch).field("Mcp-Session-Id", "s-1").send().await.status, 400);
    let notifications = r#"[{"jsonrpc":"2.0","method":"pay"}]"#;
    assert_eq!(send(notifications).field("Mcp-Session-Id", "s-1").send().await.oncegate_status(), None);
    assert_eq!(send(batch).send().await.oncegate_status(), None, "without a session there is no key");
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(a_secret_key_is_kept_as_its_hash_alone);
async fn a_secret_key_is_kept_as_its_hash_alone(store: Store) {
    let token = format!("eyJ{}", "a".repeat(8_000));
    let world =
        World::guarding(store, "key = { from = \"form:refresh_token\", hash = true }\nscope = [\"none\"]").await;
    let refresh = |token: &str| form(&world, &format!("grant_type=refresh_token&refresh_token={token}"));
    let first = refresh(&token).send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(refresh(&token).send().await.comparable(), first.replayed());
    assert_eq!(refresh("another").send().await.oncegate_status(), Some("executed"));
    assert!(world.upstream.last().body.ends_with(b"refresh_token=another"), "the service gets it as it came");
    let keys = harness::operator::Operator::of(&world.proxy).keys("state=completed").await;
    assert_eq!(keys.len(), 2);
    for key in keys {
        let text = key["key"].as_str().unwrap();
        assert!(text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
    }
    let long = refresh(&"a".repeat(16 * 1024 + 1)).send().await;
    assert_eq!(long.outcome(), (400, "key-invalid".to_owned()));
}

#[tokio::test]
async fn an_account_that_a_caller_acts_for_is_never_given_anothers_response() {
    for (lines, second, status) in [
        // A part of the scope: another key.
        ("dialect = \"stripe\"", ("Stripe-Account", "acct_B"), "executed"),
        ("dialect = \"stripe\"", ("Stripe-Context", "acct_B"), "executed"),
        // A part of the fingerprint: another request.
        ("", ("Stripe-Account", "acct_B"), "key-reused"),
        ("", ("OpenAI-Project", "p"), "key-reused"),
        ("", ("X-Tenant-Id", "t"), "key-reused"),
        ("dialect = \"stripe\"", ("X-Goog-User-Project", "p"), "key-reused"),
    ] {
        let world = World::guarding(Store::sqlite(), lines).await;
        let pay = || world.post("/pay").key("invoice-42").body("amount=1");
        assert_eq!(pay().send().await.oncegate_status(), Some("executed"));
        let (name, value) = second;
        for status in [status, if status == "executed" { "replayed" } else { status }] {
            let response = pay().field(name, value).send().await;
            assert_eq!(response.oncegate_status(), Some(status), "{lines} {name}: {response:?}");
        }
    }
}

#[tokio::test]
async fn a_field_beside_a_proof_of_the_caller_counts_from_anybody() {
    let lines = "scope = [\"authorization?\", \"header:x-team?\"]";
    let world = World::with(Store::sqlite(), |setup| {
        setup.top("trusted_proxies = [\"192.0.2.0/24\"]").route(&route("pay", lines))
    })
    .await;
    let pay = |team: &str| world.post("/pay").key("k-1").field("X-Team", team).body("x");
    for (team, status) in [("a", "executed"), ("a", "replayed"), ("b", "executed")] {
        assert_eq!(pay(team).send().await.oncegate_status(), Some(status));
    }
    let alone = pay("a").anonymous().send().await;
    assert_eq!(alone.outcome().1, "scope-missing", "{alone:?}");
}

#[tokio::test]
async fn fields_that_change_with_each_try_can_be_left_out() {
    let lines = "fingerprint = { exclude = [\"form:timestamp\", \"form:signature\", \"query:signature\"] }";
    let world = World::guarding(Store::sqlite(), lines).await;
    let order = |target: &str, body: &str| {
        let request = world.post(target).key("k-1").body(body);
        request.field("Content-Type", "application/x-www-form-urlencoded")
    };
    for (target, body, status) in [
        ("/pay?a=1&signature=x", "symbol=B&side=buy&timestamp=1&signature=x", "executed"),
        ("/pay?signature=y&a=1", "side=buy&symbol=B&timestamp=2&signature=y", "replayed"),
        ("/pay?a=1", "symbol=B&side=buy", "replayed"),
        ("/pay?a=2", "symbol=B&side=buy", "key-reused"),
        ("/pay?a=1", "symbol=B&side=sell&timestamp=1", "key-reused"),
    ] {
        let response = order(target, body).send().await;
        assert_eq!(response.oncegate_status(), Some(status), "{target} {body}: {response:?}");
    }
}
