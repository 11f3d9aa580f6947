//! Key locations and key syntaxes.

use harness::{Request, Response, Store, World, on_both_stores};

/// A world with one route for `POST /pay` whose `key` is this.
async fn keyed(store: Store, key: &str) -> World {
    World::guarding(store, key).await
}

async fn oncegate_status(request: Request) -> String {
    request.send().await.oncegate_status().unwrap_or("nothing").to_owned()
}

fn is(response: &Response, status: u16, slug: &str) {
    assert_eq!(response.outcome(), (status, slug.to_owned()), "{response:?}");
}

on_both_stores!(a_key_in_the_query_guards);
async fn a_key_in_the_query_guards(store: Store) {
    let world = keyed(store, r#"key = { from = "query:k", required = true }"#).await;
    let first = world.post("/pay?a=1&k=k-1").body("x").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(world.post("/pay?a=1&k=k-1").body("x").send().await.comparable(), first.replayed());
    assert_eq!(oncegate_status(world.post("/pay?a=2&k=k-1").body("x")).await, "key-reused");
    assert_eq!(oncegate_status(world.post("/pay?a=1&k=k-2").body("x")).await, "executed");
    assert_eq!(world.upstream.last().target, "/pay?a=1&k=k-2");
    assert_eq!(oncegate_status(world.post("/pay?a=1&k=k%2D3").body("x")).await, "executed");
    assert_eq!(
        oncegate_status(world.post("/pay?a=1&k=k-3").body("x")).await,
        "replayed",
        "one key, which does not count itself"
    );
    is(&world.post("/pay?k=k-1&k=k-1").body("x").send().await, 400, "key-invalid");
    is(&world.post("/pay?k=").body("x").send().await, 400, "key-invalid");
    is(&world.post("/pay?kk=1").body("x").send().await, 400, "key-missing");
}

on_both_stores!(sql_in_a_key_a_path_and_a_scope_is_only_text);
async fn sql_in_a_key_a_path_and_a_scope_is_only_text(store: Store) {
    let world = World::start(store).await;
    let attack = r#"'; drop table keys; drop schema oncegate cascade; --"#;
    let request = || world.post("/pay?q='%3Bdrop%20table%20keys--").anonymous().field("Authorization", attack);
    let pay = || request().key(&format!("\"{attack}\"")).body(attack);
    let first = pay().send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(pay().send().await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
    assert_eq!(oncegate_status(world.post("/pay").key("k-2").body("x")).await, "executed");
}

#[tokio::test]
async fn a_configured_key_location_replaces_the_header() {
    for (place, body) in [("from = \"query:k\"", "{}"), ("from = \"form:k\"", ""), ("from = \"json:/k\"", "{}")] {
        let world = keyed(Store::sqlite(), &format!("key = {{ {place}, required = true }}")).await;
        is(&world.post("/pay").key("k-1").json(body).send().await, 400, "key-missing");
        assert_eq!(world.upstream.calls(), 0);
    }
    let world = keyed(Store::sqlite(), r#"key = { from = "query:k" }"#).await;
    assert_eq!(oncegate_status(world.pay("k-1")).await, "nothing", "to this route it is no key");
    assert_eq!(world.upstream.last().field("idempotency-key"), Some("k-1"));
}

on_both_stores!(a_key_in_a_form_guards);
async fn a_key_in_a_form_guards(store: Store) {
    let world = keyed(store, r#"key = { from = "form:the key", required = true }"#).await;
    let form = |body: &str| world.post("/pay").field("Content-Type", "application/x-www-form-urlencoded").body(body);
    let first = form("amount=1&the+key=k%2D1").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.last().body, b"amount=1&the+key=k%2D1");
    assert_eq!(form("amount=1&the%20key=k-1").send().await.comparable(), first.replayed());
    assert_eq!(oncegate_status(form("amount=2&the+key=k-1")).await, "key-reused");
    is(&form("the+key=a&the+key=b").send().await, 400, "key-invalid");
    is(&form("amount=1").send().await, 400, "key-missing");
    is(&form("").send().await, 400, "key-missing");
    is(&world.post("/pay").json(r#"{"the key":"k-1"}"#).send().await, 400, "key-invalid");
}

on_both_stores!(a_key_in_a_json_body_guards);
async fn a_key_in_a_json_body_guards(store: Store) {
    let world = keyed(store, r#"key = { from = "json:/order/ids/0", required = true }"#).await;
    let send = |body: &str| world.post("/pay").json(body);
    let first = send(r#"{"order":{"ids":["k-1","x"]},"amount":1}"#).send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    let again = send(r#"{ "amount": 1.0, "order": { "ids": ["k\u002d1", "x"] } }"#).send().await;
    assert_eq!(again.comparable(), first.replayed());
    assert_eq!(oncegate_status(send(r#"{"order":{"ids":["k-1","x"]},"amount":2}"#)).await, "key-reused");
    assert_eq!(oncegate_status(send(r#"{"order":{"ids":[17]}}"#)).await, "executed");
    assert_eq!(oncegate_status(send(r#"{"order":{"ids":[17]}}"#)).await, "replayed");
    assert_eq!(
        oncegate_status(send(r#"{"order":{"ids":["17"]}}"#)).await,
        "replayed",
        "the key 17, which does not count itself"
    );
    for no_key in ["{}", "[]", "true", "null", "\"\"", "\"a b\"", "\"a,b\"", "\"\\u00e9\""] {
        is(&send(&format!("{{\"order\":{{\"ids\":[{no_key}]}}}}")).send().await, 400, "key-invalid");
    }
    for no_key in [r#"{"order":{"ids":[]}}"#, r#"{"order":{"ids":{}}}"#, "{}", "7", ""] {
        is(&send(no_key).send().await, 400, "key-missing");
    }
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_body_that_cannot_be_searched_for_its_key_is_never_forwarded_unguarded() {
    let lines = "unguarded = \"refuse\"";
    let world = World::with(Store::sqlite(), |setup| {
        setup.top(lines).route(&harness::route("pay", r#"key = { from = "json:/id" }"#))
    })
    .await;
    let deep = format!("{{\"id\":\"a\",\"x\":{}1{}}}", "[".repeat(129), "]".repeat(129));
    for body in [
        &b"{\"id\":\"a\",\"id\":\"b\"}"[..],
        b"{\"id\":\"a\",\"x\":\"\\ud800\"}",
        b"{\"id\":\"a\",\"x\":\"\xff\"}",
        deep.as_bytes(),
        b"id=a",
    ] {
        is(&world.post("/pay").json("").body(body).send().await, 400, "key-invalid");
    }
    is(&world.post("/pay").field("Content-Encoding", "gzip").json("{}").send().await, 400, "key-invalid");
    assert_eq!(world.upstream.calls(), 0);

    let with_mark = world.post("/pay").json("").body(&b"\xef\xbb\xbf{\"id\":\"mark\"}"[..]);
    let labelled_as_form =
        |body: &str| world.post("/pay").field("Content-Type", "application/x-www-form-urlencoded").body(body);
    let identity = world.post("/pay").field("Content-Encoding", "identity").json(r#"{"id":"identity"}"#);
    for request in [with_mark, labelled_as_form(r#"{"id":"form"}"#), identity] {
        assert_eq!(oncegate_status(request.clone()).await, "executed");
        assert_eq!(oncegate_status(request).await, "replayed");
    }
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn a_body_without_a_key_passes_complete_and_unguarded() {
    let world = keyed(Store::sqlite(), r#"key = { from = "json:/k", required = false }"#).await;
    let bodies = [format!("{{\"a\": \"{}\" }}", "x".repeat(300_000)).into_bytes(), b"[ 0 ]\r\n".to_vec(), Vec::new()];
    for body in bodies {
        for request in [world.post("/pay").json("").body(body.clone()), world.post("/pay").body(body.clone()).chunked()]
        {
            let calls = world.upstream.calls();
            let response = request.send().await;
            assert_eq!(
                (response.status, response.oncegate_status(), response.field("idempotency-key")),
                (201, None, None)
            );
            assert!(world.upstream.last().body == body && world.upstream.calls() == calls + 1);
            assert_eq!(world.upstream.last().field("oncegate-reservation"), None);
        }
    }
}

on_both_stores!(the_key_field_may_have_another_name);
async fn the_key_field_may_have_another_name(store: Store) {
    let world = keyed(store, r#"key = { from = "header:X-Request-Id", required = true }"#).await;
    let request = || world.post("/pay").field("x-request-id", "k-1").body("x");
    let first = request().send().await;
    assert_eq!((first.oncegate_status(), first.field("x-request-id")), (Some("executed"), Some("k-1")));
    assert_eq!(first.field("idempotency-key"), None);
    assert_eq!(world.upstream.last().field("x-request-id"), Some("k-1"));
    assert_eq!(request().send().await.comparable(), first.replayed());
    is(&world.pay("k-1").send().await, 400, "key-missing");
    is(&request().field("Connection", "close, X-Request-Id").send().await, 400, "bad-request");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn quoted_and_bare_keys_are_equal_where_both_are_allowed() {
    let world = keyed(Store::sqlite(), r#"key = { syntax = "ietf" }"#).await;
    let first = world.pay("k-1").send().await;
    assert_eq!(first.field("idempotency-key"), Some("k-1"));
    let quoted = world.pay("\"k-1\";v=1").send().await;
    assert_eq!((quoted.oncegate_status(), quoted.field("idempotency-key")), (Some("replayed"), Some("\"k-1\";v=1")));
    is(&world.pay("a b").send().await, 400, "key-invalid");
    is(&world.pay("\"k-1").send().await, 400, "key-invalid");
}

#[tokio::test]
async fn a_route_may_require_quoted_keys() {
    let world = keyed(Store::sqlite(), r#"key = { syntax = "sf-string" }"#).await;
    assert_eq!(oncegate_status(world.pay("\"a b\"")).await, "executed");
    assert_eq!(oncegate_status(world.pay("\"a b\"; x")).await, "replayed");
    for key in ["a", "?1", "17", "\"\"", "\"a\", \"b\"", "\"a\"b", ":YQ==:"] {
        is(&world.pay(key).send().await, 400, "key-invalid");
    }
}

#[tokio::test]
async fn an_opaque_key_is_used_unchanged() {
    let world = keyed(Store::sqlite(), r#"key = { syntax = "opaque" }"#).await;
    assert_eq!(oncegate_status(world.pay("k 1")).await, "executed");
    assert_eq!(oncegate_status(world.pay("k 1")).await, "replayed");
    assert_eq!(oncegate_status(world.pay("\"k 1\"")).await, "executed", "its quotes count");
    assert_eq!(oncegate_status(world.pay("\"k 1")).await, "executed");
    assert_eq!(world.pay("\"k 1").send().await.field("idempotency-key"), Some("\"k 1"));
    for key in ["", "a,b", "a\tb", "k\u{e9}y"] {
        is(&world.pay(key).send().await, 400, "key-invalid");
    }
}

#[tokio::test]
async fn a_uuid_key_is_case_insensitive() {
    let world = keyed(Store::sqlite(), r#"key = { syntax = "uuid" }"#).await;
    assert_eq!(oncegate_status(world.pay("8e03978e-40d5-43e8-bc93-6894a57f9324")).await, "executed");
    assert_eq!(oncegate_status(world.pay("8E03978E-40D5-43E8-BC93-6894A57F9324")).await, "replayed");
    assert_eq!(oncegate_status(world.pay("\"8e03978E-40d5-43e8-bc93-6894a57f9324\"")).await, "replayed");
    for key in ["k-1", "8e03978e40d543e8bc936894a57f9324", "{8e03978e-40d5-43e8-bc93-6894a57f9324}"] {
        is(&world.pay(key).send().await, 400, "key-invalid");
    }
}

#[tokio::test]
async fn a_keys_length_limit_excludes_its_quotes() {
    let world = keyed(Store::sqlite(), "key = { min_length = 4, max_length = 6 }").await;
    for (key, long_enough) in
        [("abc", false), ("\"abc\"", false), ("abcd", true), ("\"abcdef\"", true), ("abcdefg", false)]
    {
        let response = world.pay(key).send().await;
        assert_eq!(response.status, if long_enough { 201 } else { 400 }, "{key}");
    }
    let world = World::start(Store::sqlite()).await;
    assert_eq!(oncegate_status(world.pay(&"k".repeat(255))).await, "executed");
    is(&world.pay(&"k".repeat(256)).send().await, 400, "key-invalid");
    let world = keyed(Store::sqlite(), "key = { max_length = 1024 }").await;
    assert_eq!(oncegate_status(world.pay(&"k".repeat(1024))).await, "executed");
    assert_eq!(oncegate_status(world.pay(&"k".repeat(1024))).await, "replayed");
}

on_both_stores!(of_several_fields_for_the_key_the_first_that_is_present_counts);
async fn of_several_fields_for_the_key_the_first_that_is_present_counts(store: Store) {
    let world =
        keyed(store, r#"key = { from = ["header:Idempotency-Key", "header:X-Idempotency-Key"], required = true }"#)
            .await;
    let second = |key: &str| world.post("/pay").field("X-Idempotency-Key", key).body("x");
    let first = second("k-1").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!((first.field("x-idempotency-key"), first.field("idempotency-key")), (Some("k-1"), None));
    let other_field = world.post("/pay").key("k-1").body("x").send().await;
    assert_eq!(other_field.oncegate_status(), Some("replayed"), "one key in either field");
    assert_eq!((other_field.field("x-idempotency-key"), other_field.field("idempotency-key")), (None, Some("k-1")));
    // The same key in another spelling.
    assert_eq!(oncegate_status(second("k-1").key("\"k-1\"")).await, "replayed");
    is(&second("k-1").key("k-2").send().await, 400, "key-invalid");
    is(&second("").key("k-1").send().await, 400, "key-invalid");
    is(&second("k-1").field("X-Idempotency-Key", "k-1").send().await, 400, "key-invalid");
    is(&second("k-1").field("X-Idempotency-Key", "k-1").key("k-1").send().await, 400, "key-invalid");
    is(&second("k-1").field("Connection", "x-idempotency-key").send().await, 400, "bad-request");
    let missing = world.post("/pay").body("x").send().await;
    is(&missing, 400, "key-missing");
    let detail = missing.problem()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("`idempotency-key` or in the field `x-idempotency-key`"), "{detail}");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn another_spelling_of_a_key_is_a_retry_or_at_least_not_answered_with_the_advice_to_take_a_new_key() {
    let (upper, lower) = ("6F1D2A30-0000-4000-8000-00000000000A", "6f1d2a30-0000-4000-8000-00000000000a");
    let in_json = |key: &str| format!("{{\"id\":{key},\"amount\":5}}");
    let text = |key: &str| in_json(&format!("\"{key}\""));
    let form = |key: &str| format!("id={key}&amount=5");
    let target = |key: &str| format!("/pay?id={key}");
    let payload = |key: &str| data_encoding::BASE64.encode(text(key).as_bytes());
    let (json, form_type) = ("application/json", "application/x-www-form-urlencoded");
    // Each: the route, and of two requests the target, the field `X-Key`, the media type and the body.
    type Sent = (String, String, &'static str, String);
    let body = |media_type, body: String| -> Sent { ("/pay".into(), String::new(), media_type, body) };
    let field =
        |value: String, amount: u32| -> Sent { ("/pay".into(), value, json, format!("{{\"amount\":{amount}}}")) };
    let in_query = |key: &str| -> Sent { (target(key), String::new(), json, "{}".into()) };
    let uuid = |place: &str| format!("key = {{ {place}, syntax = \"uuid\" }}");
    let compared = "fingerprint = { headers = [\"X-Key\"] }";
    for (lines, first, second, advice) in [
        (uuid("from = \"json:/id\""), body(json, text(upper)), body(json, text(lower)), ""),
        ("key = { from = \"json:/id\" }".into(), body(json, in_json("17")), body(json, text("17")), ""),
        (uuid("from = \"form:id\""), body(form_type, form(upper)), body(form_type, form(lower)), ""),
        (uuid("from = \"query:id\""), in_query(upper), in_query(lower), ""),
        (
            format!("{}\n{compared}", uuid("from = \"header:X-Key\"")),
            field(upper.into(), 5),
            field(lower.into(), 5),
            "",
        ),
        (
            format!("{}\n{compared}", uuid("from = \"header:X-Key#/id\"")),
            field(payload(upper), 5),
            field(payload(lower), 5),
            "fix",
        ),
        // The difference is elsewhere.
        (uuid("from = \"header:X-Key\""), field(upper.into(), 5), field(lower.into(), 6), "new_key"),
        (uuid("from = \"header:X-Key#/id\""), field(payload(upper), 5), field(payload(lower), 6), "new_key"),
        (
            format!("{}\nfingerprint = {{ exclude = [\"json:/id\"] }}", uuid("from = \"json:/id\"")),
            body(json, text(upper)),
            body(json, text(lower).replace('5', "6")),
            "new_key",
        ),
        (
            format!("{}\nfingerprint = {{ include = [\"json:/amount\"] }}", uuid("from = \"json:/id\"")),
            body(json, text(upper)),
            body(json, text(lower).replace("amount\":5", "amount\":6")),
            "new_key",
        ),
    ] {
        let world = keyed(Store::sqlite(), &lines).await;
        let send = async |(target, field, media_type, body): &Sent| {
            let request = world.post(target).field("Content-Type", media_type).body(body.as_bytes());
            let request = if field.is_empty() { request } else { request.field("X-Key", field) };
            request.send().await
        };
        assert_eq!(send(&first).await.oncegate_status(), Some("executed"), "{lines}");
        let reused = send(&second).await;
        if advice.is_empty() {
            assert_eq!(reused.oncegate_status(), Some("replayed"), "{lines}");
            continue;
        }
        is(&reused, 422, "key-reused");
        assert_eq!(reused.problem()["retry"], advice, "{lines}");
        if advice == "fix" {
            let detail = reused.problem()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains("spelled as it was first"), "{lines}: {detail}");
        }
        assert_eq!(send(&first).await.oncegate_status(), Some("replayed"), "{lines}");
    }
}
