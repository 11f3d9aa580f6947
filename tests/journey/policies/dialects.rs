//! Dialects: the presets of routes, and the form of Oncegate's own answers.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use harness::reload::{REFUSED, RELOADED, reload, settles, with};
use harness::{Answer, Hold, Request, Response, Store, Upstream, World, on_both_stores};

const ID: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

/// A world with one route for `POST /pay` in this dialect, and these lines in it.
async fn speaking(store: Store, dialect: &str, lines: &str) -> World {
    World::guarding(store, &format!("dialect = \"{dialect}\"\n{lines}")).await
}

fn document(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap_or_else(|error| panic!("{error}: {response:?}"))
}

/// The status, and the type and the code of a Stripe error with its `Stripe-Should-Retry`.
fn stripe_error(response: &Response) -> (u16, String, String, String) {
    let error = document(response)["error"].take();
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    assert!(!text("message").is_empty(), "{response:?}");
    let should_retry = response.field("stripe-should-retry").unwrap_or_default();
    (response.status, text("type"), text("code"), should_retry.to_owned())
}

fn error(status: u16, kind: &str, code: &str, should_retry: &str) -> (u16, String, String, String) {
    (status, kind.to_owned(), code.to_owned(), should_retry.to_owned())
}

on_both_stores!(a_stripe_route_refuses_as_stripe_does);
async fn a_stripe_route_refuses_as_stripe_does(store: Store) {
    let world = speaking(store, "stripe", "upstream_timeout = \"300ms\"\nconnect_timeout = \"100ms\"").await;
    let first = world.pay("k-1").send().await;
    assert_eq!(first.field("stripe-should-retry"), None);
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    let reused = world.post("/pay").key("k-1").json("{}").send().await;
    assert_eq!(stripe_error(&reused), error(400, "idempotency_error", "key_reused", "false"));
    assert_eq!(
        (reused.oncegate_status(), reused.field("content-type")),
        (Some("key-reused"), Some("application/json"))
    );

    world.upstream.then(Answer::never());
    let lost = world.pay("k-2").send().await;
    assert_eq!(stripe_error(&lost), error(504, "api_error", "upstream_timeout", "false"));
    let unknown = world.pay("k-2").send().await;
    assert_eq!(stripe_error(&unknown), error(409, "api_error", "outcome_unknown", "false"));
    assert_eq!(world.upstream.executed_for("k-2"), 1);

    world.upstream.then(Answer::status(500).body("charged, then failed"));
    let failed = world.pay("k-3").send().await;
    let replayed = world.pay("k-3").send().await;
    assert_eq!((failed.status, failed.field("stripe-should-retry")), (500, None));
    assert_eq!((replayed.status, replayed.field("stripe-should-retry")), (500, Some("false")));
    assert_eq!(replayed.oncegate_status(), Some("replayed"));

    world.upstream.then(Answer::status(502));
    let left_open = world.pay("k-4").send().await;
    assert_eq!((left_open.oncegate_status(), left_open.field("stripe-should-retry")), (Some("unknown"), Some("false")));
    world.upstream.then(Answer::status(503));
    assert_eq!(world.pay("k-5").send().await.oncegate_status(), Some("released"));
    assert_eq!(world.pay("k-5").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn a_key_of_the_route_overrules_the_preset_of_its_dialect() {
    let lines = "in_flight = \"conflict\"\nkey = { required = true }\nrelease_statuses = [\"500\"]";
    let world = speaking(Store::sqlite(), "stripe", lines).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let duplicate = world.pay("k-1").send().await;
    assert_eq!(stripe_error(&duplicate), error(409, "invalid_request_error", "idempotency_key_in_use", "true"));
    assert!(duplicate.field("retry-after").is_some());
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    let missing = world.post("/pay").json("{}").send().await;
    assert_eq!(stripe_error(&missing), error(400, "invalid_request_error", "key_missing", "false"));
    world.upstream.then(Answer::status(500));
    assert_eq!(world.pay("k-2").send().await.oncegate_status(), Some("released"));
    // The rest of the preset holds: opaque keys, and one space for the whole service.
    assert_eq!(world.pay("\"k-2\"").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("k-2").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn a_duplicate_waits_under_the_stripe_dialect_and_a_page_may_read_whether_to_retry() {
    let world = speaking(Store::sqlite(), "stripe", "cors = { origins = [\"https://shop.example\"] }").await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let duplicate = world.pay("k-1").field("Origin", "https://shop.example").spawn();
    hold.release();
    let first = first.await.unwrap().unwrap();
    let duplicate = duplicate.await.unwrap().unwrap();
    assert_eq!((duplicate.status, duplicate.oncegate_status(), &duplicate.body), (201, Some("replayed"), &first.body));
    assert!(duplicate.all("access-control-expose-headers").iter().any(|names| names.contains("Stripe-Should-Retry")));
}

#[tokio::test]
async fn errors_of_the_service_side_have_the_dialects_form_without_a_key_too() {
    let nobody = Upstream::unused_address().await;
    let lines = harness::route("pay", "dialect = \"stripe\"");
    let world = World::with(Store::sqlite(), |setup| setup.upstream(nobody).route(&lines)).await;
    let unreachable = error(502, "api_error", "upstream_unreachable", "true");
    assert_eq!(stripe_error(&world.pay("k-1").send().await), unreachable);
    assert_eq!(stripe_error(&world.post("/pay").json("{}").send().await), unreachable);
    let elsewhere = world.post("/el\\sewhere").key("k-1").json("{}").send().await;
    assert_eq!(elsewhere.outcome(), (400, "bad-request".to_owned()), "no route, no dialect");
}

on_both_stores!(an_acp_route_has_flat_errors_and_compares_bodies_alone);
async fn an_acp_route_has_flat_errors_and_compares_bodies_alone(store: Store) {
    let world = speaking(store, "acp", "upstream_timeout = \"300ms\"\nconnect_timeout = \"100ms\"").await;
    let flat = |response: &Response| {
        let document = document(response);
        let names: Vec<_> = document.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, ["code", "message", "type"], "{response:?}");
        (response.status, document["type"].as_str().unwrap().to_owned(), document["code"].as_str().unwrap().to_owned())
    };
    let is = |response: &Response, status: u16, kind: &str, code: &str| {
        assert_eq!(flat(response), (status, kind.to_owned(), code.to_owned()));
    };
    is(&world.post("/pay").json("{}").send().await, 400, "invalid_request", "idempotency_key_required");
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let duplicate = world.pay("k-1").send().await;
    is(&duplicate, 409, "invalid_request", "idempotency_in_flight");
    assert!(duplicate.field("retry-after").is_some());
    hold.release();
    let first = first.await.unwrap().unwrap();
    // The same values in the body, whatever its type and the query are.
    let retry = world.post("/pay?utm=1").key("k-1").field("Content-Type", "text/plain");
    let retry = retry.body(r#"{"currency":"EUR", "amount":10.0}"#).send().await;
    assert_eq!((retry.oncegate_status(), &retry.body), (Some("replayed"), &first.body));
    is(&world.post("/pay").key("k-1").json("{}").send().await, 422, "invalid_request", "idempotency_conflict");
    world.upstream.then(Answer::never());
    is(&world.pay("k-2").send().await, 504, "processing_error", "upstream_timeout");
    is(&world.pay("k-2").send().await, 409, "processing_error", "outcome_unknown");
}

fn date(seconds_ago: i64) -> String {
    let now = SystemTime::now();
    let age = Duration::from_secs(seconds_ago.unsigned_abs());
    httpdate::fmt_http_date(if seconds_ago < 0 { now + age } else { now - age })
}

fn repeatable(world: &World, id: &str, sent: &str, body: &str) -> Request {
    world.post("/pay").field("Repeatability-Request-ID", id).field("Repeatability-First-Sent", sent).json(body)
}

fn result(response: &Response) -> (u16, &str) {
    (response.status, response.field("repeatability-result").unwrap_or("none"))
}

on_both_stores!(repeatable_requests_are_accepted_once_and_rejected_when_they_differ);
async fn repeatable_requests_are_accepted_once_and_rejected_when_they_differ(store: Store) {
    let world = speaking(store, "repeatability", "ttl = \"1h\"").await;
    let sent = date(0);
    let first = repeatable(&world, ID, &sent, "{}").send().await;
    assert_eq!((result(&first), first.oncegate_status()), ((201, "accepted"), Some("executed")));
    assert_eq!(first.field("repeatability-request-id"), Some(ID));
    let retry = repeatable(&world, &ID.to_uppercase(), &sent, "{}").send().await;
    assert_eq!((result(&retry), retry.oncegate_status()), ((201, "accepted"), Some("replayed")));
    for (sent, body) in [(&sent, r#"{"amount":1}"#), (&date(60), "{}")] {
        let other = repeatable(&world, ID, sent, body).send().await;
        assert_eq!((result(&other), other.oncegate_status()), ((400, "rejected"), Some("key-reused")), "{body}");
        assert_eq!(document(&other)["error"]["code"], "key-reused");
    }
    let new = "2f8c2a4e-2f0b-4b43-9d8e-0d8a3a9f7b11";
    for (id, sent, status, code) in [
        (new, date(3_700), 412, "request-too-old"),
        (new, date(-400), 412, "request-from-future"),
        (new, "yesterday".to_owned(), 400, "bad-request"),
        ("no-uuid", date(0), 400, "key-invalid"),
    ] {
        let refused = repeatable(&world, id, &sent, "{}").send().await;
        assert_eq!((result(&refused), document(&refused)["code"].as_str()), ((status, "rejected"), Some(code)));
    }
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn one_field_of_a_repeatable_request_without_the_other_is_refused() {
    let world = speaking(Store::sqlite(), "repeatability", "").await;
    let lonely = world.post("/pay").field("Repeatability-Request-ID", ID).json("{}").send().await;
    assert_eq!((result(&lonely), document(&lonely)["code"].as_str()), ((400, "rejected"), Some("bad-request")));
    let lonely = world.post("/pay").field("Repeatability-First-Sent", &date(0)).json("{}").send().await;
    assert_eq!((result(&lonely), document(&lonely)["code"].as_str()), ((400, "rejected"), Some("key-missing")));
    assert_eq!(world.upstream.calls(), 0);
    let neither = world.post("/pay").json("{}").send().await;
    assert_eq!((neither.oncegate_status(), result(&neither)), (None, (201, "none")), "no repeatable request");
}

#[tokio::test]
async fn a_repeatable_request_in_flight_or_of_unknown_outcome_was_accepted() {
    let lines = "upstream_timeout = \"300ms\"\nconnect_timeout = \"100ms\"";
    let world = speaking(Store::sqlite(), "repeatability", lines).await;
    let sent = date(0);
    world.upstream.then(Answer::never());
    let first = repeatable(&world, ID, &sent, "{}").spawn();
    world.upstream.wait_for_executed(1).await;
    assert_eq!(result(&repeatable(&world, ID, &sent, "{}").send().await), (409, "accepted"));
    assert_eq!(result(&first.await.unwrap().unwrap()), (504, "accepted"));
    let unknown = repeatable(&world, ID, &sent, "{}").send().await;
    assert_eq!((result(&unknown), document(&unknown)["code"].as_str()), ((409, "accepted"), Some("outcome-unknown")));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_dialect_that_finds_keys_elsewhere_is_no_reload_and_must_be_accepted_at_a_restart() {
    let mut world = World::guarding(Store::sqlite(), "").await;
    let first = world.pay("k-1").send().await;
    for (times, dialect) in ["stripe", "repeatability"].into_iter().enumerate() {
        let text = with(&world, "", &format!("dialect = \"{dialect}\"")).text();
        reload(&world, &text, REFUSED, times + 1).await;
        assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    }
    // The third finds them where they were.
    reload(&world, &with(&world, "", "dialect = \"acp\"").text(), RELOADED, 1).await;
    settles(async || {
        let keyless = world.post("/pay").json("{}").send().await;
        keyless.status == 400 && document(&keyless)["code"] == "idempotency_key_required"
    })
    .await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    world.restart_accepting(|setup| setup.route(&harness::route("pay", "dialect = \"stripe\""))).await;
    let warned = world.proxy.wait_for_log("in another way than at the last start").await;
    let changed = warned["changed"].as_str().unwrap();
    assert!(changed.ends_with("space: path -> service; key's syntax: ietf -> opaque"), "{changed}");
}

#[tokio::test]
async fn the_dialect_of_the_defaults_gives_way_to_the_routes_own() {
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .defaults("dialect = \"stripe\"\nkey = { required = true }")
            .route(&harness::route("pay", ""))
            .route(&harness::route("checkout", "dialect = \"acp\""))
            .route(&harness::route("plain", "dialect = \"ietf\""))
    })
    .await;
    let missing = async |path: &str| document(&world.post(path).json("{}").send().await);
    assert_eq!(missing("/pay").await["error"]["code"], "key_missing");
    assert_eq!(missing("/checkout").await["code"], json!("idempotency_key_required"));
    assert_eq!(missing("/plain").await["code"], json!("key-missing"));
}
