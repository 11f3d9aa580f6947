//! Requests that are refused before anything is executed.

use harness::{Answer, Hold, Request, Response, Store, World, on_both_stores};

async fn refused(request: Request, status: u16, slug: &str) -> Response {
    let refusal = request.send().await;
    assert_eq!(refusal.outcome(), (status, slug.to_owned()));
    assert_eq!(refusal.field("cache-control"), Some("no-store"));
    assert!(!refusal.is_replay());
    refusal
}

on_both_stores!(a_used_key_is_refused_to_another_request_in_every_state);
async fn a_used_key_is_refused_to_another_request_in_every_state(store: Store) {
    let world = World::start(store).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201)).then(Answer::status(500)).then(Answer::close());
    world.upstream.then(Answer::status(201).hold(&hold));
    assert_eq!(world.pay("completed").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("retryable").send().await.oncegate_status(), Some("released"));
    assert_eq!(world.pay("unknown").send().await.oncegate_status(), Some("unknown"));
    let running = world.pay("in-flight").spawn();
    world.upstream.wait_for_executed(4).await;
    for key in ["completed", "retryable", "unknown", "in-flight"] {
        let refusal =
            refused(world.post("/pay").key(key).json(r#"{"amount":11,"currency":"EUR"}"#), 422, "key-reused").await;
        assert_eq!(
            (refusal.oncegate_status(), refusal.problem()["retry"].as_str()),
            (Some("key-reused"), Some("new_key")),
            "{key}"
        );
        assert_eq!(refusal.field("retry-after"), None);
        assert!(!refusal.text().contains("EUR"), "nothing of the other request is revealed");
    }
    assert_eq!(world.upstream.calls(), 4, "the service never sees it");
    hold.release();
    assert_eq!(running.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    assert_eq!(world.pay("completed").send().await.oncegate_status(), Some("replayed"), "nothing was changed");
    assert_eq!(world.pay("unknown").send().await.outcome().1, "outcome-unknown");
    assert_eq!(world.pay("retryable").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn a_route_that_requires_a_key_refuses_a_request_without_one() {
    let world = World::guarding(Store::sqlite(), "key = { required = true }").await;
    let refusal = refused(world.post("/pay").body("x"), 400, "key-missing").await;
    assert_eq!((refusal.oncegate_status(), refusal.problem()["retry"].as_str()), (Some("rejected"), Some("fix")));
    assert_eq!(world.upstream.calls(), 0);
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn an_invalid_key_is_refused() {
    let world = World::start(Store::sqlite()).await;
    let too_long = "k".repeat(256);
    for key in ["", "a b", "a,b", "a\tb", "caf\u{e9}", "\"open", "\"a\" b", "\"a\\n\"", "\"\"", &too_long] {
        let refusal = refused(world.pay(key), 400, "key-invalid").await;
        assert_eq!(refusal.oncegate_status(), Some("rejected"), "{key:?}");
        assert_eq!(refusal.field("idempotency-key"), None, "what is no key is not echoed");
        assert_eq!(refusal.problem()["retry"], "fix");
    }
    assert_eq!(world.upstream.calls(), 0);
    assert_eq!(world.pay(&"k".repeat(255)).send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn two_key_lines_are_refused_even_with_equal_values() {
    let world = World::start(Store::sqlite()).await;
    refused(world.pay("a").key("b"), 400, "key-invalid").await;
    refused(world.pay("a").key("a"), 400, "key-invalid").await;
    refused(world.pay("\"a").key("b\""), 400, "key-invalid").await;
    assert_eq!(world.upstream.calls(), 0);
}

#[tokio::test]
async fn other_syntaxes_have_other_keys() {
    let route = |name: &str, syntax: &str| {
        format!("name = \"{name}\"\npath = \"/{name}\"\nmethods = [\"POST\"]\nkey = {{ syntax = \"{syntax}\" }}")
    };
    let world = World::with(Store::sqlite(), |setup| {
        setup.route(&route("sf", "sf-string")).route(&route("opaque", "opaque")).route(&route("uuid", "uuid"))
    })
    .await;
    let uuid = "8e03978e-40d5-43dd-bc93-6894a57f9324";
    for (path, key, oncegate_status) in [
        ("/sf", "bare", "rejected"),
        ("/sf", "\"quoted\"", "executed"),
        ("/opaque", "with space", "executed"),
        ("/opaque", "with,comma", "rejected"),
        ("/opaque", "\"k\"", "executed"),
        ("/opaque", "k", "executed"),
        ("/uuid", uuid, "executed"),
        ("/uuid", "k-1", "rejected"),
    ] {
        let answer = world.post(path).key(key).body("x").send().await;
        assert_eq!(answer.oncegate_status(), Some(oncegate_status), "{path} {key}");
    }
}

#[tokio::test]
async fn a_key_with_only_a_cookie_to_identify_the_caller_is_refused() {
    let world = World::start(Store::sqlite()).await;
    refused(world.pay("k-1").anonymous().field("Cookie", "session=1"), 400, "scope-missing").await;
    assert_eq!(world.upstream.calls(), 0);
    let named = world.pay("k-1").field("Cookie", "session=1").field("Authorization", "Bearer a");
    assert_eq!(named.send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn a_request_without_a_required_scope_part_is_refused() {
    let world = World::guarding(Store::sqlite(), "scope = [\"header:X-Tenant\"]").await;
    refused(world.pay("k-1"), 400, "scope-missing").await;
    assert_eq!(world.upstream.calls(), 0);
    assert_eq!(world.pay("k-1").field("X-Tenant", "a").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("k-1").field("X-Tenant", "b").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn a_connection_field_cannot_remove_the_key_or_scope() {
    let world = World::guarding(Store::sqlite(), "scope = [\"authorization?\", \"header:X-Tenant?\"]").await;
    for named in [
        "Idempotency-Key",
        "close, idempotency-key",
        "Authorization",
        "x-tenant",
        "Host",
        "Content-Length",
        "Transfer-Encoding",
    ] {
        let refusal = world.pay("k-1").field("Connection", named).send().await;
        assert_eq!(refusal.status, 400, "{named}");
        refusal.problem();
    }
    let refusal = world.get("/").field("Connection", "Content-Length").send().await;
    assert_eq!(refusal.outcome(), (400, "bad-request".to_owned()), "nor on requests that nothing guards");
    assert_eq!(world.upstream.calls(), 0);
}

on_both_stores!(a_body_over_the_limit_is_refused_and_takes_no_key);
async fn a_body_over_the_limit_is_refused_and_takes_no_key(store: Store) {
    let world = World::guarding(store, "max_request_body = \"1KiB\"").await;
    let large = world.pay("k-1").body("x".repeat(1025));
    refused(large.clone(), 413, "request-too-large").await;
    refused(large.chunked(), 413, "request-too-large").await;
    assert_eq!(world.upstream.calls(), 0);
    assert_eq!(
        world.pay("k-1").body("x".repeat(1024)).send().await.oncegate_status(),
        Some("executed"),
        "the limit itself is allowed"
    );
}

#[tokio::test]
async fn a_body_announced_over_the_limit_is_refused_before_it_is_sent() {
    let world = World::guarding(Store::sqlite(), "max_request_body = \"1KiB\"").await;
    let large = world.pay("k-1").field("Expect", "100-continue").body("x".repeat(1025));
    let refusal = large.open_head().await.response().await;
    assert_eq!(refusal.outcome(), (413, "request-too-large".to_owned()));
    assert!(refusal.interim.is_empty(), "no 100 Continue is sent");
}

#[tokio::test]
async fn nothing_of_a_refusal_is_stored() {
    let world = World::guarding(Store::sqlite(), "key = { required = true, max_length = 8 }").await;
    refused(world.pay("123456789"), 400, "key-invalid").await;
    assert_eq!(world.pay("12345678").send().await.oncegate_status(), Some("executed"));
    refused(world.pay("12345678").body("else"), 422, "key-reused").await;
    assert_eq!(world.pay("12345678").send().await.oncegate_status(), Some("replayed"));
}

#[tokio::test]
async fn a_problems_type_has_the_configured_prefix() {
    let world = World::with(Store::sqlite(), |setup| setup.top("problem_base = \"https://errors.example/\"")).await;
    let refusal = refused(world.pay(""), 400, "key-invalid").await;
    assert_eq!(refusal.problem()["type"], "https://errors.example/key-invalid");
}
