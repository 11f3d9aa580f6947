//! What a customer means is found, compared with what was sent, and erased without a second execution.

use serde_json::{Value, json};

use harness::issuer::{KeyServer, SigningKey, claims, jwt};
use harness::operator::{CommandOutput, Operator, oncegate};
use harness::{Answer, Response, Store, World, on_both_stores, route};
use jsonwebtoken::Algorithm;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const INDEX: &str = "index = [\"json:/order_id\", \"json:/customer/email\"]\nkeep_client_address = true";

async fn pay(world: &World, caller: &str, key: &str, order: &str) -> Response {
    let body = json!({ "order_id": order, "customer": { "email": format!("{caller}@example.com") }, "amount": 5 });
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-00");
    let request = world.post("/pay").key(key).field("Authorization", &format!("Bearer {caller}"));
    request.field("Traceparent", &parent).json(&body.to_string()).send().await
}

/// Runs a command through the running instance.
async fn here(world: &World, command: &str, arguments: &[&str]) -> CommandOutput {
    let admin = world.proxy.admin.to_string();
    oncegate(command, &world.proxy.file(), &[arguments, &["--admin", &admin]].concat()).await
}

async fn found(world: &World, filter: &[&str]) -> Vec<String> {
    let listed = here(world, "keys", &[&["list", "--json"], filter].concat()).await;
    assert_eq!(listed.code, 0, "{listed:?}");
    let keys: Vec<Value> = serde_json::from_str(&listed.out).unwrap();
    keys.iter().map(|key| key["key"].as_str().unwrap().to_owned()).collect()
}

on_both_stores!(a_payment_is_found_by_its_order_its_caller_its_path_and_its_time);
async fn a_payment_is_found_by_its_order_its_caller_its_path_and_its_time(store: Store) {
    let world = World::guarding(store, INDEX).await;
    for (caller, key, order) in [("alice", "k-1", "o-8"), ("alice", "k-2", "o-9"), ("bob", "k-3", "o-9")] {
        assert_eq!(pay(&world, caller, key, order).await.status, 201);
    }
    for (filter, keys) in [
        (&[][..], &["k-3", "k-2", "k-1"][..]),
        (&["--where", "json:/order_id=o-9"], &["k-3", "k-2"]),
        (&["--where", "json:/customer/email=alice@example.com"], &["k-2", "k-1"]),
        (&["--where", "json:/order_id=o-9", "--caller", "authorization=bearer bob"], &["k-3"]),
        (&["--where", "json:/order_id=alice@example.com"], &[]),
        (&["--caller", "authorization=Bearer alice"], &["k-2", "k-1"]),
        (&["--caller", "authorization=Bearer carol"], &[]),
        (&["--path", "/pa", "--from", "1h"], &["k-3", "k-2", "k-1"]),
        (&["--path", "/refund"], &[]),
        (&["--until", "2020-01-01"], &[]),
        (&["--limit", "1"], &["k-3"]),
    ] {
        assert_eq!(found(&world, filter).await, keys, "{filter:?}");
    }
    for (filter, why) in [
        (["--where", "json:/amount=5"], "`--where` names `json:/amount`, which no route has in its `index`"),
        (["--where", "order"], "`--where` is not PLACE=VALUE"),
        (["--caller", "jwt:sub=42"], "`--caller` fits the `scope` of no route"),
        (["--from", "12:03"], "`--from` is no time"),
    ] {
        let refused = here(&world, "keys", &["list", filter[0], filter[1]]).await;
        assert!(refused.code == 2 && refused.err.contains(why), "{refused:?}");
    }
    let id = Operator::of(&world.proxy).id("k-2").await;
    let shown = here(&world, "keys", &["show", &id]).await;
    assert!(shown.out.contains(TRACE) && shown.out.contains("client_address  127.0.0.1"), "{shown:?}");
}

/// Each way to name a caller finds the keys that the gate has made for it.
#[tokio::test]
async fn a_caller_is_named_as_the_gate_names_it() {
    let signer = SigningKey::new("k1", Algorithm::ES256);
    let issuer = KeyServer::start(&[signer.jwk()]).await;
    let world = World::with(Store::sqlite(), |setup| {
        let claims = "scope = [\"jwt:sub\", \"jwt:uid?\"]";
        let fields = "scope = [\"header:x-tenant\", \"header:x-user?\"]";
        setup
            .top(&jwt(&issuer.url(), ""))
            .route(&route("token", claims))
            .route(&route("field", fields))
            .route(&route("none", "scope = [\"none\"]"))
    })
    .await;
    let token = |more: Value| {
        let mut claims = claims("42");
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format!("Bearer {}", signer.sign(&claims))
    };
    let sent = async |path: &str, key: &str, fields: &[(&str, &str)]| {
        let request = world.post(path).key(key);
        let request = fields.iter().fold(request, |request, (name, value)| request.field(name, value));
        assert_eq!(request.json("{}").send().await.status, 201, "{key}");
    };
    sent("/token", "k-1", &[("Authorization", &token(json!({})))]).await;
    sent("/token", "k-2", &[("Authorization", &token(json!({ "uid": 7 })))]).await;
    sent("/token", "k-3", &[("Authorization", &token(json!({ "uid": "7" })))]).await;
    sent("/field", "k-4", &[("X-Tenant", "acme")]).await;
    sent("/field", "k-5", &[("X-Tenant", "acme"), ("X-User", "ann")]).await;
    sent("/none", "k-6", &[]).await;
    for (parts, key) in [
        (&["jwt:sub=42"][..], "k-1"),
        (&["jwt:sub=42", "jwt:uid:=7"], "k-2"),
        (&["jwt:sub=42", "jwt:uid=7"], "k-3"),
        (&["header:x-tenant=acme "], "k-4"),
        (&["header:x-tenant=acme", "header:x-user=ann"], "k-5"),
        (&["none"], "k-6"),
    ] {
        let filter: Vec<&str> = parts.iter().flat_map(|part| ["--caller", part]).collect();
        assert_eq!(found(&world, &filter).await, [key], "{parts:?}");
    }
    for (parts, why) in [
        (&["header:x-tenant=acme", "header:x-user="][..], "has a part with an empty value"),
        (&["header:x-tenant=a", "header:x-tenant=b"], "has a part twice"),
    ] {
        let filter: Vec<&str> = parts.iter().flat_map(|part| ["--caller", part]).collect();
        let refused = here(&world, "keys", &[&["purge", "--yes", "--accept-risk"], &*filter].concat()).await;
        assert!(refused.code == 2 && refused.err.contains(why), "{refused:?}");
    }
}

on_both_stores!(a_request_is_compared_with_that_of_a_record);
async fn a_request_is_compared_with_that_of_a_record(store: Store) {
    let lines = "secret = \"a secret of some length\"";
    let world = World::with(store, |setup| setup.top(lines).route(&route("pay", INDEX))).await;
    assert_eq!(pay(&world, "alice", "k-1", "o-9").await.status, 201);
    let id = Operator::of(&world.proxy).id("k-1").await;
    let body = |amount: u32| {
        json!({ "order_id": "o-9", "customer": { "email": "alice@example.com" }, "amount": amount }).to_string()
    };
    let other = ["POST", "/pay", "-H", "Content-Type: application/json", "-H", "Authorization: Bearer bob"];
    let rest = ["-H", "Idempotency-Key: k-1", "-d", &body(5), "--against", &id[..8]];
    let explained = here(&world, "explain", &[&other[..], &rest].concat()).await;
    assert!(explained.out.contains("under another record"), "{explained:?}");
    for (body, said) in [(body(5), "is the same request\n"), (body(6), "differs: json:/amount")] {
        let request = ["POST", "/pay", "-H", "Content-Type: application/json", "-H", "Authorization: Bearer alice"];
        let rest = ["-H", "Idempotency-Key: k-1", "-d", &body, "--against", &id[..8]];
        let explained = here(&world, "explain", &[&request[..], &rest].concat()).await;
        assert!(explained.code == 0 && explained.out.contains(said), "{explained:?}");
        assert!(explained.out.contains(&format!("record          {id}")), "{explained:?}");
        let scope = Operator::of(&world.proxy).keys("key=k-1").await[0]["scope"].as_str().unwrap().to_owned();
        assert!(explained.out.contains(&format!("caller          {scope}")), "{explained:?}");
    }
}

on_both_stores!(a_customer_is_erased_and_their_retries_are_not_executed);
async fn a_customer_is_erased_and_their_retries_are_not_executed(store: Store) {
    let world = World::guarding(store, INDEX).await;
    assert_eq!(pay(&world, "alice", "k-1", "o-8").await.status, 201);
    world.upstream.then(Answer::status(503));
    assert_eq!(pay(&world, "alice", "k-2", "o-9").await.oncegate_status(), Some("released"));
    assert_eq!(pay(&world, "bob", "k-1", "o-9").await.status, 201);
    let open = world.post("/pay").key("k-3").field("Authorization", "Bearer alice").json("{}");
    world.upstream.then(Answer::close());
    assert_eq!(open.send().await.status, 502);
    let requests = world.upstream.calls();
    let alice = ["--caller", "authorization=Bearer alice"];
    let asked = here(&world, "keys", &["redact", alice[0], alice[1]]).await;
    assert!(asked.code == 2 && asked.err.contains("2 keys (1 completed, 1 retryable)"), "{asked:?}");
    assert!(asked.err.contains("retries get 409 response-not-kept"), "{asked:?}");
    let done = here(&world, "keys", &["redact", alice[0], alice[1], "--yes", "--note", "ticket 42"]).await;
    // An open outcome is decided first.
    assert!(done.code == 1 && done.out.contains("changed 2 of 2"), "{done:?}");
    assert!(done.err.contains("1 key was not changed"), "{done:?}");
    let retry = pay(&world, "alice", "k-1", "o-8").await;
    assert_eq!(retry.outcome(), (409, "response-not-kept".to_owned()));
    assert_eq!(pay(&world, "alice", "k-2", "o-9").await.outcome(), (410, "key-expired".to_owned()));
    assert!(pay(&world, "bob", "k-1", "o-9").await.is_replay());
    assert_eq!(world.upstream.calls(), requests, "nothing was executed");
    assert_eq!(found(&world, &["--where", "json:/customer/email=alice@example.com"]).await, [""; 0]);
    assert_eq!(found(&world, &alice).await, ["k-3", "", ""], "the hashes stay");
    let again = here(&world, "keys", &["redact", alice[0], alice[1], "--yes"]).await;
    assert!(again.code == 1 && again.err.contains("3 keys were not changed"), "{again:?}");
    let audited = here(&world, "audit", &["--limit", "9"]).await;
    assert_eq!((audited.code, audited.out.matches("  redact  ").count()), (0, 2), "{audited:?}");
    assert!(audited.out.contains("completed -> completed") && audited.out.contains("ticket 42"), "{audited:?}");
}

#[tokio::test]
async fn a_key_whose_redelivery_would_be_executed_is_not_redacted() {
    let world = World::guarding(Store::sqlite(), "ttl = \"1h\"\nreplay = { until = \"1m\" }").await;
    world.upstream.then(Answer::status(503));
    assert_eq!(pay(&world, "alice", "k-1", "o-8").await.oncegate_status(), Some("released"));
    let id = Operator::of(&world.proxy).id("k-1").await;
    let refused = here(&world, "keys", &["redact", &id]).await;
    assert!(refused.code == 1 && refused.err.contains("purge it"), "{refused:?}");
}
