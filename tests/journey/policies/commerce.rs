//! The dialects of UCP and of x402: the places of their keys, and what their specifications have a retry get.

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use harness::operator::Operator;
use harness::{Answer, Hold, Request, Response, Store, World, on_both_stores, route};

const SHORT: &str = "upstream_timeout = \"300ms\"\nconnect_timeout = \"100ms\"\nwait_timeout = \"200ms\"";
const ID: &str = "pay_7d5d747be160e280504c099d984bcfe0";

fn document(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap_or_else(|error| panic!("{error}: {response:?}"))
}

/// A payment of x402 with this id and signature.
fn payment(id: Option<&str>, signature: &str) -> String {
    let info = id.map_or(json!({ "required": false }), |id| json!({ "required": false, "id": id }));
    let payload = json!({ "x402Version": 2, "payload": { "signature": signature },
        "extensions": { "payment-identifier": { "info": info } } });
    BASE64_STANDARD.encode(payload.to_string())
}

fn paid(world: &World, method: &str, payment: &str) -> Request {
    world.proxy.client().request(method, "/paid").anonymous().field("PAYMENT-SIGNATURE", payment)
}

async fn paid_world(store: Store, lines: &str) -> World {
    let lines = format!("dialect = \"x402\"\n{lines}");
    // Without the methods of the other tests' routes.
    let table = route("paid", &lines).replace("methods = [\"POST\"]\n", "");
    World::with(store, |setup| setup.route(&table)).await
}

on_both_stores!(a_lost_answer_to_a_payment_is_replayed_to_whoever_has_the_payment);
async fn a_lost_answer_to_a_payment_is_replayed_to_whoever_has_the_payment(store: Store) {
    let world = paid_world(store, "").await;
    for method in ["GET", "POST"] {
        world.upstream.then(Answer::status(402).field("PAYMENT-REQUIRED", "e30="));
        let unpaid = world.proxy.client().request(method, "/paid").anonymous().send().await;
        assert_eq!((unpaid.status, unpaid.oncegate_status()), (402, None), "a request without a payment passes");
        let (one, other) = (payment(Some(ID), "a"), payment(Some(ID), "b"));
        // A service whose facilitator is away: the payment was not taken.
        world.upstream.then(Answer::status(402));
        assert_eq!(paid(&world, method, &one).send().await.oncegate_status(), Some("released"));
        world.upstream.then(Answer::status(200).field("PAYMENT-RESPONSE", "eyJzdWNjZXNzIjp0cnVlfQ=="));
        let first = paid(&world, method, &one).send().await;
        assert_eq!((first.status, first.oncegate_status()), (200, Some("executed")));
        let again = paid(&world, method, &one).send().await;
        assert_eq!(again.comparable(), first.replayed());
        assert_eq!(again.field("payment-response"), Some("eyJzdWNjZXNzIjp0cnVlfQ=="));
        let stranger = paid(&world, method, &other).send().await;
        assert_eq!((stranger.status, &document(&stranger)["code"]), (409, &json!("key-reused")));
        let recoded = BASE64_URL_SAFE_NO_PAD.encode([&BASE64_STANDARD.decode(&one).unwrap()[..], b"\n"].concat());
        assert_eq!(paid(&world, method, &recoded).send().await.status, 409, "it is not the identical payment");
    }
    assert_eq!(world.upstream.calls(), 6);
}

#[tokio::test]
async fn a_payment_that_is_refused_leaves_no_key_and_two_payments_of_one_request_must_agree() {
    let world = paid_world(Store::sqlite(), "").await;
    world.upstream.then(Answer::status(402).field("PAYMENT-REQUIRED", "e30="));
    assert_eq!(paid(&world, "GET", &payment(Some(ID), "a")).send().await.oncegate_status(), Some("released"));
    assert!(
        Operator::of(&world.proxy).keys("").await.is_empty(),
        "anybody could fill the store with worthless payments"
    );
    let both = paid(&world, "GET", &payment(Some(ID), "a"));
    let both = both.field("X-PAYMENT", &payment(Some("another-payment-of-16-characters"), "a"));
    assert_eq!(both.send().await.status, 400);
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_payment_without_an_id_passes_and_one_that_cannot_be_read_does_not() {
    let world = paid_world(Store::sqlite(), "").await;
    let long = "a".repeat(129);
    let twice = BASE64_STANDARD.encode(r#"{"extensions":{},"extensions":{}}"#);
    for (payment, status, code) in [
        (payment(None, "a"), 201, None),
        (BASE64_STANDARD.encode("{}"), 201, None),
        ("not base64!".to_owned(), 400, Some("key-invalid")),
        (BASE64_STANDARD.encode("not JSON"), 400, Some("key-invalid")),
        (twice, 400, Some("key-invalid")),
        (payment(Some("short"), "a"), 400, Some("key-invalid")),
        (payment(Some(&long), "a"), 400, Some("key-invalid")),
    ] {
        let response = paid(&world, "POST", &payment).send().await;
        assert_eq!(response.status, status, "{payment}");
        assert_eq!(code.map(|_| document(&response)["code"].clone()), code.map(Value::from), "{payment}");
    }
    let required = paid_world(Store::sqlite(), "key = { required = true }").await;
    let missing = paid(&required, "GET", &payment(None, "a")).send().await;
    assert_eq!((missing.status, &document(&missing)["code"]), (400, &json!("key-missing")));
    let detail = document(&missing)["detail"].as_str().unwrap().to_owned();
    assert!(
        detail.contains("`/extensions/payment-identifier/info/id` in the JSON of the field `payment-signature`"),
        "{detail}"
    );
    let nominated =
        paid(&required, "GET", &payment(Some(ID), "a")).field("Connection", "payment-signature").send().await;
    assert_eq!(nominated.status, 400, "a field that has the key does not disappear on the way");
    assert_eq!(required.upstream.calls(), 0);
}

#[tokio::test]
async fn a_key_may_be_in_the_json_of_any_field() {
    let world =
        World::guarding(Store::sqlite(), "key = { from = [\"header:Idempotency-Key\", \"header:X-Order#/order/id\"] }")
            .await;
    let order = |document: &str| world.post("/pay").body("x").field("X-Order", &BASE64_STANDARD.encode(document));
    for (request, status) in [
        (order(r#"{"order":{"id":"k-1"}}"#), Some("executed")),
        (order(r#"{"at":7,"order":{"id":"k-1"}}"#), Some("replayed")),
        (world.post("/pay").body("x").key("k-1"), Some("replayed")),
        (order("{}"), None),
        (order(r#"{"order":{"id":{}}}"#), Some("rejected")),
    ] {
        assert_eq!(request.send().await.oncegate_status(), status);
    }
}

on_both_stores!(a_payment_that_is_still_processed_or_of_unknown_outcome_may_be_sent_again);
async fn a_payment_that_is_still_processed_or_of_unknown_outcome_may_be_sent_again(store: Store) {
    let world = paid_world(store, SHORT).await;
    let (one, other) = (payment(Some(ID), "a"), payment(Some("pay_another_0123456789"), "a"));
    let hold = Hold::new();
    world.upstream.then(Answer::status(200).hold(&hold));
    let first = paid(&world, "GET", &one).spawn();
    world.upstream.wait_for_executed(1).await;
    let waiting = paid(&world, "GET", &one).send().await;
    assert_eq!((waiting.status, &document(&waiting)["code"]), (503, &json!("in-flight")));
    assert!(waiting.field("retry-after").is_some());
    hold.release();
    first.await.unwrap().unwrap();
    world.upstream.then(Answer::never());
    paid(&world, "GET", &other).send().await;
    let unknown = paid(&world, "GET", &other).send().await;
    assert_eq!((unknown.status, &document(&unknown)["code"]), (503, &json!("outcome-unknown")));
    assert_eq!(world.upstream.executed().len(), 2);
}

fn checkout(id: u32, key: Option<&str>, quantity: u32) -> Value {
    let mut meta = json!({ "ucp-agent": { "profile": format!("https://platform.example/{id}") } });
    if let Some(key) = key {
        meta["idempotency-key"] = key.into();
    }
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "create_checkout",
        "arguments": { "meta": meta, "checkout": { "line_items": [{ "quantity": quantity }] } } } })
}

on_both_stores!(a_ucp_checkout_over_mcp_has_its_key_in_the_field_or_in_meta);
async fn a_ucp_checkout_over_mcp_has_its_key_in_the_field_or_in_meta(store: Store) {
    let world = World::guarding(store, &format!("dialect = \"ucp\"\n{SHORT}")).await;
    let post = |body: &Value| world.post("/pay").json(&body.to_string());
    let executed = r#"{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"id":"c-1","total":10.50}}}"#;
    let answer = Answer::status(200).field("Content-Type", "application/json").field("Signature", "sig1=:x:");
    world.upstream.then(answer.body(executed));
    assert_eq!(post(&checkout(1, Some("k-1"), 2)).send().await.oncegate_status(), Some("executed"));
    for request in [
        post(&checkout(2, Some("k-1"), 2)),
        post(&checkout(2, None, 2)).key("k-1"),
        post(&checkout(2, Some("k-1"), 2)).key("k-1"),
    ] {
        let replay = request.send().await;
        assert_eq!(replay.text(), executed.replace("\"id\":1", "\"id\":2"));
        assert_eq!((replay.oncegate_status(), replay.field("signature")), (Some("replayed"), None));
    }
    for (request, status, code, slug) in [
        (post(&checkout(3, Some("k-1"), 5)), 409, -32_000, "key-reused"),
        (post(&checkout(3, Some("k-2"), 2)).key("k-1"), 400, -32_602, "key-invalid"),
    ] {
        let refusal = request.send().await;
        let error = document(&refusal)["error"].take();
        assert_eq!((refusal.status, &error["code"], &error["data"]["code"]), (status, &json!(code), &json!(slug)));
        assert_eq!(document(&refusal)["id"], 3);
    }
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_ucp_checkout_over_rest_is_compared_by_its_whole_body() {
    let world = World::guarding(Store::sqlite(), &format!("dialect = \"ucp\"\n{SHORT}")).await;
    let post = |id: u32, quantity: u32| {
        world.post("/pay").key("k-1").json(&json!({ "id": id, "line_items": [{ "quantity": quantity }] }).to_string())
    };
    assert_eq!(post(1, 2).send().await.oncegate_status(), Some("executed"));
    assert_eq!(post(1, 2).send().await.oncegate_status(), Some("replayed"));
    for other in [post(1, 3), post(2, 2)] {
        let refusal = other.send().await;
        assert_eq!((refusal.status, &document(&refusal)["code"]), (409, &json!("key_reused")));
        assert!(document(&refusal)["content"].is_string());
    }
    // Documents whose members JSON-RPC has too, and which do not say that they are of it.
    for (number, body) in
        [r#"{"id":"x","method":"express"}"#, r#"{"error":"none"}"#, r#"{"method":"express"}"#].into_iter().enumerate()
    {
        let request = world.post("/pay").key(&format!("rest-{number}")).json(body);
        assert_eq!(request.send().await.oncegate_status(), Some("executed"), "{body}");
        assert_eq!(request.send().await.oncegate_status(), Some("replayed"), "{body}");
        let other = body.replace('}', ",\"quantity\":2}");
        let other = world.post("/pay").key(&format!("rest-{number}")).json(&other).send().await;
        assert_eq!(other.status, 409, "its whole document counts: {body}");
    }
    world.upstream.then(Answer::never());
    let lost = |id: &str| world.post("/pay").key(id).json("{}");
    assert_eq!(lost("k-2").send().await.status, 504);
    let unknown = lost("k-2").send().await;
    assert_eq!((unknown.status, unknown.oncegate_status()), (503, Some("unknown")));
    assert_eq!(unknown.field("retry-after"), None, "a lost answer is lost");
}
