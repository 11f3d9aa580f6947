//! Admin requests that change nothing and reveal no secrets.

use oncegate_domain::space::SpaceHash;
use serde_json::{Value, json};

use super::unknown;
use harness::operator::{Operator, completed, not_executed};
use harness::{Answer, Proxy, Store, Upstream, World, on_both_stores};

on_both_stores!(a_key_is_listed_and_shown_without_the_callers_data);
async fn a_key_is_listed_and_shown_without_the_callers_data(store: Store) {
    let world = World::guarding(store, "reconcile = { after = \"5m\" }").await;
    world.upstream.then(Answer::status(201).field("X-Receipt", "r-1").body("paid"));
    assert_eq!(world.pay("k-1").send().await.status, 201);
    unknown(&world, "k-2").await;
    let operator = Operator::of(&world.proxy);
    let keys = operator.keys("route=pay").await;
    assert_eq!(keys.len(), 2);
    let one = keys.iter().find(|key| key["key"] == "k-1").unwrap();
    for (name, value) in [
        ("state", json!("completed")),
        ("route", json!("pay")),
        ("space", json!(SpaceHash::from_text("POST /pay").to_string())),
        ("attempts", json!(1)),
        ("status", json!(201)),
        ("body_bytes", json!(4)),
        ("lapsed", json!(false)),
    ] {
        assert_eq!(one[name], value, "{name}");
    }
    for name in ["id", "scope"] {
        assert_eq!(one[name].as_str().unwrap().len(), 64, "{name}");
    }
    for name in ["created_at", "deadline", "settled_at", "expires_at"] {
        let text = one[name].as_str().unwrap();
        assert!(text.starts_with("20") && text.ends_with('Z') && text.len() == 24, "{name}: {text}");
    }
    let id = one["id"].as_str().unwrap();
    let (status, shown) = operator.get(&format!("/api/v1/keys/{id}")).await;
    assert_eq!(status, 200);
    assert_eq!((&shown["response"]["status"], &shown["response"]["body_bytes"]), (&json!(201), &json!(4)));
    assert!(shown["response"]["headers"].as_array().unwrap().contains(&json!("x-receipt")), "{shown}");
    assert!(!shown.to_string().contains("r-1") && !shown.to_string().contains("paid"), "{shown}");
    assert_eq!((&shown["quiet"], &shown["audit"]), (&json!(false), &json!([])));

    for (query, count) in [
        ("state=unknown", 1),
        ("state=dead", 0),
        ("key=k-1", 1),
        ("key=k", 0),
        (&*format!("scope={}", &one["scope"].as_str().unwrap()[..10]), 2),
        ("route=other", 0),
        ("older_than=1h", 0),
        ("older_than=0s&state=completed", 1),
    ] {
        assert_eq!(operator.keys(query).await.len(), count, "{query}");
    }
    let stats = operator.get("/api/v1/stats").await.1;
    let expected = json!([
        { "route": "pay", "state": "completed", "keys": 1, "exact": true },
        { "route": "pay", "state": "unknown", "keys": 1, "exact": true },
    ]);
    assert_eq!((&stats["counts"], &stats["service"]), (&expected, &json!("default")));
}

on_both_stores!(pages_continue_at_their_cursor);
async fn pages_continue_at_their_cursor(store: Store) {
    let world = World::start(store).await;
    for number in 0..7 {
        unknown(&world, &format!("k-{number}")).await;
    }
    let operator = Operator::of(&world.proxy);
    for state in ["", "&state=unknown"] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let (_, page) = operator.get(&format!("/api/v1/keys?limit=3{state}&cursor={cursor}")).await;
            seen.extend(page["keys"].as_array().unwrap().iter().map(|key| key["key"].as_str().unwrap().to_owned()));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => break,
            }
        }
        if !state.is_empty() {
            assert!(seen.is_sorted(), "the oldest first: {seen:?}");
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 7);
    }
    for number in 0..3 {
        let id = operator.id(&format!("k-{number}")).await;
        assert_eq!(operator.resolve(&id, not_executed(true)).await.0, 200);
    }
    let (_, log) = operator.get("/api/v1/audit?limit=2").await;
    let (_, rest) =
        operator.get(&format!("/api/v1/audit?limit=2&cursor={}", log["next_cursor"].as_str().unwrap())).await;
    assert_eq!((log["entries"].as_array().unwrap().len(), rest["entries"].as_array().unwrap().len()), (2, 1));
    assert_eq!(rest["next_cursor"], Value::Null);
}

#[tokio::test]
async fn an_invalid_request_is_refused_with_the_name_of_the_field() {
    let world = World::start(Store::sqlite()).await;
    assert_eq!(world.pay("k-1").send().await.status, 201);
    let operator = Operator::of(&world.proxy);
    let id = operator.id("k-1").await;
    for (path, field) in [
        ("/api/v1/keys?status=unknown", "status"),
        ("/api/v1/keys?state=lost", "state"),
        ("/api/v1/keys?limit=1001", "limit"),
        ("/api/v1/keys?cursor=zz", "cursor"),
        ("/api/v1/keys/abcdefg", "id"),
        ("/api/v1/keys/abcdefgh", "id"),
        ("/api/v1/keys/actions", "id"),
        ("/api/v1/audit?cursor=x", "cursor"),
        ("/api/v1/stats?x=1", "x"),
        (&*format!("/api/v1/keys/{id}?body=1"), "body"),
    ] {
        let (status, reply) = operator.get(path).await;
        assert_eq!((status, &reply["field"], &reply["code"]), (400, &json!(field), &json!("bad-request")), "{path}");
    }
    let path = format!("/api/v1/keys/{id}/release");
    for (body, why) in [("{", "not JSON"), ("[]", "not an object"), (r#"{"force":true}"#, "`force` is not a field")] {
        let refused = operator.request("POST", &path).json(body).send().await;
        let reply: Value = serde_json::from_slice(&refused.body).unwrap();
        assert_eq!(refused.status, 400);
        assert!(reply["detail"].as_str().unwrap().contains(why), "{reply}");
    }
    let large = json!({ "note": "x".repeat(70_000) }).to_string();
    assert_eq!(operator.request("POST", &path).json(&large).send().await.status, 413);
    assert_eq!(operator.get(&format!("/api/v1/keys/{}", "0".repeat(64))).await.1["code"], "no-such-key");
    for (method, path) in [("PUT", "/api/v1/keys"), ("GET", "/api/v1/keys/actions/x"), ("POST", "/api/v1/keys")] {
        assert!([404, 405].contains(&operator.request(method, path).send().await.status), "{method} {path}");
    }
    assert_eq!(operator.keys("state=completed").await.len(), 1);
}

#[tokio::test]
async fn pages_of_other_sites_cannot_send_requests_about_keys() {
    let world = World::start(Store::sqlite()).await;
    let id = unknown(&world, "k-1").await;
    let operator = Operator::of(&world.proxy);
    let one = |verb: &str| format!("/api/v1/keys/{id}{verb}");
    for (method, path) in [
        ("GET", "/api/v1/keys".to_owned()),
        ("GET", one("")),
        ("DELETE", one("?accept_risk=true")),
        ("POST", one("/resolve")),
        ("POST", one("/release")),
        ("POST", one("/requeue")),
        ("POST", "/api/v1/keys/actions".to_owned()),
        ("GET", "/api/v1/stats".to_owned()),
        ("GET", "/api/v1/audit".to_owned()),
    ] {
        let request = operator.request(method, &path).json(&not_executed(true).to_string());
        for refused in [
            request.clone().host("evil.example"),
            request.clone().field("Origin", "https://evil.example"),
            request.field("Origin", "null"),
        ] {
            assert_eq!(refused.send().await.status, 403, "{method} {path}");
        }
    }
    assert_eq!(operator.keys("state=unknown").await.len(), 1);
    assert_eq!(operator.audit().await.len(), 0);
}

#[tokio::test]
async fn services_on_one_database_do_not_see_each_others_keys() {
    let store = Store::postgres().await;
    let upstream = Upstream::start().await;
    let of = |service: &str| Proxy::on(&store.url()).upstream(upstream.address).top(&format!("service = {service:?}"));
    let (shop, bank) = (of("shop").start().await, of("bank").start().await);
    assert_eq!(shop.post("/pay").key("k-1").body("x").send().await.status, 201);
    upstream.then(Answer::close());
    assert_eq!(shop.post("/pay").key("k-2").body("x").send().await.status, 502);
    let (ours, theirs) = (Operator::of(&shop), Operator::of(&bank));
    assert_eq!((ours.keys("").await.len(), theirs.keys("").await.len()), (2, 0));
    for state in ["completed", "unknown"] {
        assert_eq!(theirs.keys(&format!("state={state}")).await.len(), 0);
    }
    let (done, unknown) = (ours.id("k-1").await, ours.id("k-2").await);
    for (status, reply) in [
        theirs.get(&format!("/api/v1/keys/{done}")).await,
        theirs.get(&format!("/api/v1/keys/{}", &done[..8])).await,
        theirs.delete(&format!("/api/v1/keys/{done}")).await,
        theirs.delete(&format!("/api/v1/keys/{unknown}?accept_risk=true")).await,
        theirs.resolve(&unknown, completed(200, "x")).await,
        theirs.post(&format!("/api/v1/keys/{done}/release"), json!({})).await,
    ] {
        assert_eq!((status, &reply["code"]), (404, &json!("no-such-key")));
    }
    let purge = json!({ "action": "purge", "all": true, "accept_risk": true, "expect": 100 });
    assert_eq!(theirs.post("/api/v1/keys/actions", purge).await.1["changed"], 0);
    assert_eq!(ours.resolve(&unknown, completed(200, "x")).await.0, 200);
    assert_eq!((ours.audit().await.len(), theirs.audit().await.len()), (1, 0));
    assert_eq!(theirs.get(&format!("/api/v1/audit?id={unknown}")).await.1["entries"], json!([]));
    assert_eq!(theirs.get("/api/v1/stats").await.1["counts"], json!([]));
}

on_both_stores!(no_response_and_no_log_line_has_a_body_a_credential_or_a_token);
async fn no_response_and_no_log_line_has_a_body_a_credential_or_a_token(store: Store) {
    const CANARY: &str = "canary-4111111111111111";
    let world = World::start(store).await;
    let pay = |key: &str| world.pay(key).field("Authorization", &format!("Bearer {CANARY}")).body(CANARY);
    world.upstream.then(Answer::status(201).field("Set-Cookie", CANARY).field("X-Card", CANARY).body(CANARY));
    assert_eq!(pay("k-1").send().await.status, 201);
    let token = world.upstream.last().field("oncegate-reservation").unwrap().to_owned();
    world.upstream.then(Answer::close());
    assert_eq!(pay("k-2").send().await.status, 502);
    let operator = Operator::of(&world.proxy);
    let (done, unknown) = (operator.id("k-1").await, operator.id("k-2").await);
    let mut texts = Vec::new();
    for path in ["/api/v1/keys", "/api/v1/stats", &format!("/api/v1/keys/{done}"), &format!("/api/v1/keys/{unknown}")] {
        texts.push(operator.get(path).await.1);
    }
    texts.push(operator.resolve(&unknown, completed(200, CANARY)).await.1);
    texts.push(operator.resolve(&unknown, completed(200, CANARY)).await.1);
    texts.push(operator.get(&format!("/api/v1/keys/{unknown}")).await.1);
    texts.push(operator.get("/api/v1/audit").await.1);
    texts.push(operator.post(&format!("/api/v1/keys/{done}/release"), json!({ "outcome": CANARY })).await.1);
    texts.push(operator.post(&format!("/api/v1/keys/{done}/release"), json!({})).await.1);
    texts.push(operator.delete(&format!("/api/v1/keys/{done}?accept_risk=true")).await.1);
    texts.extend(world.proxy.logged());
    // The id is the first half of the reservation, and no secret; the token is the second half.
    let secret = &token[token.len() - 32..];
    for text in texts {
        let text = text.to_string();
        assert!(!text.contains(CANARY) && !text.contains(secret), "{text}");
    }
}
