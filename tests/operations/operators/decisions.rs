//! Operators' decisions about keys.

use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{dead, unknown};
use harness::operator::{Operator, completed, not_executed};
use harness::{Answer, Hold, Proxy, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores};
use oncegate_domain::rfc3339;

on_both_stores!(a_retry_gets_the_response_that_an_operator_has_entered);
async fn a_retry_gets_the_response_that_an_operator_has_entered(store: Store) {
    let world = World::start(store).await;
    let id = unknown(&world, "k-1").await;
    let operator = Operator::of(&world.proxy);
    let (status, reply) = operator.resolve(&id, completed(201, "charge 77")).await;
    assert_eq!((status, &reply["before"], &reply["after"]), (200, &json!("unknown"), &json!("completed")), "{reply}");
    let replay = world.pay("k-1").send().await;
    assert_eq!(
        (replay.status, replay.text(), replay.oncegate_status()),
        (201, "charge 77".to_owned(), Some("replayed"))
    );
    assert!(replay.is_replay());
    assert_eq!(replay.field("content-type"), Some("text/plain"));
    assert!(replay.field("idempotency-key-expires").is_some());
    assert_eq!(world.pay("k-1").body("else").send().await.outcome(), (422, "key-reused".to_owned()));
    assert_eq!(world.upstream.calls(), 1);
    let line = ["alice (claimed) at 127.0.0.1", "resolve", "unknown", "completed"].map(str::to_owned);
    assert_eq!(operator.audit().await, [line]);
    // A stored response does not change.
    let (status, reply) = operator.resolve(&id, completed(200, "other")).await;
    assert_eq!((status, &reply["code"]), (409, &json!("wrong-state")));
}

/// Two instances, whose memories have the response that is replaced. With `secret`, the store has it encrypted.
#[tokio::test]
async fn a_response_written_by_hand_is_replaced_on_every_instance() {
    for more in ["", "encrypt = true"] {
        let (store, upstream) = (Store::postgres().await, Upstream::start().await);
        let mut setup = Proxy::on(&store.url()).upstream(upstream.address).short_leases().store(more);
        if !more.is_empty() {
            setup = setup.top("secret = \"the only secret of these instances\"");
        }
        let (one, other) = tokio::join!(setup.start(), setup.start());
        upstream.then(Answer::close());
        assert_eq!(one.post("/pay").key("k-1").body("x").send().await.status, 502);
        let operator = Operator::of(&one);
        let id = operator.id_when("k-1", "unknown").await;
        assert_eq!(operator.resolve(&id, completed(201, "chrage 77")).await.0, 200);
        for proxy in [&one, &other] {
            assert_eq!(proxy.post("/pay").key("k-1").body("x").send().await.text(), "chrage 77");
        }
        assert_eq!(operator.get(&format!("/api/v1/keys/{id}")).await.1["by_hand"], true);
        // A second resolve names the way, and changes nothing.
        let (status, reply) = operator.resolve(&id, completed(201, "charge 77")).await;
        assert_eq!((status, &reply["code"]), (409, &json!("wrong-state")));
        assert!(reply["detail"].as_str().unwrap().contains("use replace"), "{reply}");
        let mut corrected = completed(200, "charge 77");
        corrected["replace"] = true.into();
        let (status, reply) = operator.resolve(&id, corrected.clone()).await;
        let changed = json!(["replace", "completed", "completed", 0]);
        let found = json!([reply["action"], reply["before"], reply["after"], reply["instances_behind"]]);
        assert_eq!((status, found), (200, changed), "{reply}");
        for proxy in [&one, &other] {
            let replay = proxy.post("/pay").key("k-1").body("x").send().await;
            let told = (replay.status, replay.text(), replay.oncegate_status().map(str::to_owned));
            assert_eq!(told, (200, "charge 77".to_owned(), Some("replayed".to_owned())));
        }
        let lines = [["resolve", "unknown", "completed"], ["replace", "completed", "completed"]];
        let tail = |line: &[String; 4]| [line[1].clone(), line[2].clone(), line[3].clone()];
        assert_eq!(
            operator.audit().await.iter().map(tail).collect::<Vec<_>>(),
            lines.map(|line| line.map(str::to_owned))
        );
        // What the service has said stays, also where it is asked for with the risk accepted.
        let first = one.post("/pay").key("k-2").body("x").send().await;
        let of_service = operator.id("k-2").await;
        corrected["accept_risk"] = true.into();
        for path in [format!("/api/v1/keys/{of_service}/resolve"), "/api/v1/keys/actions".to_owned()] {
            let mut body = corrected.clone();
            if path.ends_with("actions") {
                body["action"] = "resolve".into();
                body["ids"] = json!([of_service]);
                body["expect"] = 1.into();
            }
            let reply = operator.post(&path, body).await.1;
            let refused = if path.ends_with("actions") { &reply["refused"][0] } else { &reply };
            assert_eq!(refused["code"], "wrong-state", "{reply}");
            assert!(refused["detail"].as_str().unwrap().contains("its response is never replaced"), "{reply}");
        }
        assert_eq!(other.post("/pay").key("k-2").body("x").send().await.comparable(), first.replayed());
        assert_eq!(upstream.calls(), 2);
    }
}

/// A body that was forgotten, by the status, the type and the body of the route's other response.
#[tokio::test]
async fn a_body_that_was_left_out_is_asked_about_where_the_routes_responses_have_one() {
    for (others, typed, is_asked) in [
        (None, json!({ "status": 201 }), false),
        (Some("paid"), json!({ "status": 201 }), true),
        (Some("paid"), json!({ "status": 201, "body": null }), true),
        (Some("paid"), json!({ "status": 204 }), false),
        (Some("paid"), json!({ "status": 201, "body": "" }), false),
        (Some("paid"), json!({ "status": 201, "body_base64": "" }), false),
        (Some("paid"), json!({ "status": 201, "body": "charge 7" }), false),
        (Some("paid"), json!({ "status": 201, "accept_risk": true }), false),
        (Some(""), json!({ "status": 201 }), false),
    ] {
        let world = World::start(Store::sqlite()).await;
        if let Some(body) = others {
            world.upstream.then(Answer::status(201).field("Content-Type", "text/plain").body(body));
            assert_eq!(world.pay("other").send().await.status, 201);
        }
        let id = unknown(&world, "k-1").await;
        let operator = Operator::of(&world.proxy);
        let mut body = typed.clone();
        body["outcome"] = "completed".into();
        let (status, reply) = operator.resolve(&id, body).await;
        let expected = if is_asked { (409, json!("empty-body")) } else { (200, json!(null)) };
        assert_eq!((status, reply["code"].clone()), expected, "{others:?} {typed}: {reply}");
        if is_asked {
            let detail = reply["detail"].as_str().unwrap();
            assert!(detail.contains("has 4 bytes of text/plain") && !detail.contains("paid"), "{reply}");
            assert_eq!(operator.keys("state=unknown").await.len(), 1, "nothing was stored");
        }
    }
}

#[tokio::test]
async fn a_response_that_nobody_may_mean_needs_the_risk_accepted() {
    let world = World::start(Store::sqlite()).await;
    let operator = Operator::of(&world.proxy);
    let json_type = json!({ "Content-Type": "application/json" });
    for (number, (status, headers, body)) in
        [(200, &json_type, ""), (201, &json_type, "{"), (500, &json!({}), "failed"), (504, &json_type, "{}")]
            .into_iter()
            .enumerate()
    {
        let id = unknown(&world, &format!("k-{number}")).await;
        let typed = json!({ "outcome": "completed", "status": status, "headers": headers, "body": body });
        let (answered, reply) = operator.resolve(&id, typed.clone()).await;
        assert_eq!((answered, &reply["code"]), (409, &json!("doubtful-response")), "{typed}: {reply}");
        // A change of several keys has the same rule, when they are counted and when they are changed.
        for expect in [json!(null), json!(1)] {
            let mut several = typed.clone();
            several["action"] = "resolve".into();
            several["ids"] = json!([id]);
            several["expect"] = expect;
            let (answered, reply) = operator.post("/api/v1/keys/actions", several).await;
            assert_eq!((answered, &reply["code"]), (409, &json!("doubtful-response")), "{typed}: {reply}");
        }
        assert_eq!(operator.keys("state=unknown").await.len(), 1, "nothing was stored");
        let mut meant = typed.clone();
        meant["accept_risk"] = true.into();
        let (answered, reply) = operator.resolve(&id, meant).await;
        assert_eq!((answered, &reply["after"]), (200, &json!("completed")), "{typed}: {reply}");
    }
    for (key, status, headers, body) in
        [("empty", 204, json!({}), ""), ("text", 200, json!({}), ""), ("json", 404, json_type, "{\"error\":\"no\"}")]
    {
        let id = unknown(&world, key).await;
        let typed = json!({ "outcome": "completed", "status": status, "headers": headers, "body": body });
        assert_eq!(operator.resolve(&id, typed.clone()).await.0, 200, "{typed}");
    }
}

/// An attempt is quiet some seconds after its start.
const SOON_QUIET: &str = "upstream_timeout = \"1s\"\nreconcile = { after = \"1s\" }";

on_both_stores!(not_executed_is_not_believed_before_the_attempt_is_quiet);
async fn not_executed_is_not_believed_before_the_attempt_is_quiet(store: Store) {
    let world = World::with(store, |setup| setup.short_leases().defaults(SOON_QUIET)).await;
    let id = unknown(&world, "k-1").await;
    let operator = Operator::of(&world.proxy);
    let (status, reply) = operator.resolve(&id, not_executed(false)).await;
    assert_eq!((status, &reply["code"]), (409, &json!("not-quiet")), "{reply}");
    assert!((1..=10_000).contains(&reply["quiet_in_ms"].as_u64().unwrap()), "{reply}");
    assert_eq!(operator.get(&format!("/api/v1/keys/{id}")).await.1["quiet"], json!(false));
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    let quiet = async || (operator.get(&format!("/api/v1/keys/{id}")).await.1["quiet"] == true).then_some(());
    eventually(TEST_TIMEOUT, quiet).await;
    let (status, reply) = operator.resolve(&id, not_executed(false)).await;
    assert_eq!((status, &reply["after"]), (200, &json!("retryable")), "{reply}");
    let next = world.pay("k-1").send().await;
    assert_eq!(next.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.last().field("oncegate-attempt"), Some("2"));
    assert_eq!(world.pay("k-1").send().await.comparable(), next.replayed());
}

on_both_stores!(after_a_restart_the_shown_quiet_time_is_the_one_of_the_refusal);
async fn after_a_restart_the_shown_quiet_time_is_the_one_of_the_refusal(store: Store) {
    let mut world = World::with(store, |setup| setup.short_leases().defaults(SOON_QUIET)).await;
    let path = format!("/api/v1/keys/{}", unknown(&world, "k-1").await);
    let operator = Operator::of(&world.proxy);
    eventually(TEST_TIMEOUT, async || (operator.get(&path).await.1["quiet"] == true).then_some(())).await;
    world.crash_and_restart().await;
    let operator = Operator::of(&world.proxy);
    let shown = operator.get(&path).await.1;
    let (status, reply) = operator.resolve(shown["id"].as_str().unwrap(), not_executed(false)).await;
    assert_eq!((status, &shown["quiet"]), (409, &json!(false)), "{reply} {shown}");
    assert!(reply["detail"].as_str().unwrap().contains("this instance started"), "{reply}");
    let left = Duration::from_millis(reply["quiet_in_ms"].as_u64().unwrap());
    let shown_at = rfc3339::parse(shown["quiet_at"].as_str().unwrap()).unwrap();
    let difference = (SystemTime::now() + left).duration_since(shown_at).unwrap_or_else(|error| error.duration());
    assert!(difference < Duration::from_secs(2), "{difference:?}: {reply} {shown}");
}

on_both_stores!(with_the_risk_accepted_not_executed_is_believed_at_once_and_noted);
async fn with_the_risk_accepted_not_executed_is_believed_at_once_and_noted(store: Store) {
    let world = World::start(store).await;
    let id = unknown(&world, "k-1").await;
    let operator = Operator::of(&world.proxy);
    assert_eq!(operator.resolve(&id, not_executed(false)).await.0, 409);
    let body = json!({ "outcome": "not_executed", "accept_risk": true, "note": "the ledger has no charge" });
    assert_eq!(operator.resolve(&id, body).await.0, 200);
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.last().field("oncegate-attempt"), Some("2"));
    let shown = operator.get(&format!("/api/v1/keys/{id}")).await.1;
    assert_eq!(shown["audit"][0]["note"], "accept_risk; the ledger has no charge");
    assert_eq!((&shown["state"], &shown["attempts"]), (&json!("completed"), &json!(2)));
}

on_both_stores!(a_released_key_is_executed_again);
async fn a_released_key_is_executed_again(store: Store) {
    let world = World::start(store).await;
    let first = world.pay("k-1").send().await;
    let operator = Operator::of(&world.proxy);
    let id = operator.id("k-1").await;
    // The first digits of an id are enough.
    let path = format!("/api/v1/keys/{}/release", &id[..8]);
    let (status, reply) = operator.post(&path, json!({})).await;
    assert_eq!((status, &reply["code"], &reply["state"]), (409, &json!("wrong-state"), &json!("completed")), "{reply}");
    let detail = reply["detail"].as_str().unwrap();
    assert!(detail.contains("its next retry is executed") && detail.contains("use accept_risk"), "{reply}");
    assert!(world.pay("k-1").send().await.is_replay());
    let (status, reply) = operator.post(&path, json!({ "accept_risk": true })).await;
    assert_eq!((status, &reply["before"], &reply["after"]), (200, &json!("completed"), &json!("retryable")), "{reply}");
    let second = world.pay("k-1").send().await;
    assert_eq!((first.text(), second.text()), ("effect 1".to_owned(), "effect 2".to_owned()));
    assert_eq!(world.upstream.last().field("oncegate-attempt"), Some("2"));
    let shown = operator.get(&format!("/api/v1/keys/{id}")).await.1;
    assert_eq!(shown["audit"].as_array().unwrap().len(), 1);
    assert_eq!(operator.post(&format!("/api/v1/keys/{id}/requeue"), json!({})).await.0, 409);
}

on_both_stores!(a_key_that_refuses_late_retries_is_released_only_at_a_risk);
async fn a_key_that_refuses_late_retries_is_released_only_at_a_risk(store: Store) {
    let world = World::with(store, |setup| setup.defaults("ttl = \"1s\"\nafter_ttl = \"refuse\"")).await;
    world.pay("k-1").send().await;
    eventually(TEST_TIMEOUT, async || (world.pay("k-1").send().await.status == 410).then_some(())).await;
    let operator = Operator::of(&world.proxy);
    let id = operator.id("k-1").await;
    // The reaper has not come yet, and the next retry would be executed.
    let (status, reply) = operator.post(&format!("/api/v1/keys/{id}/release"), json!({})).await;
    assert_eq!((status, &reply["code"]), (409, &json!("wrong-state")), "{reply}");
    assert_eq!((world.pay("k-1").send().await.status, world.upstream.calls()), (410, 1));
}

on_both_stores!(a_dead_key_is_settled_or_requeued);
async fn a_dead_key_is_settled_or_requeued(store: Store) {
    let mut world = World::start(store).await;
    let id = dead(&mut world, "k-1").await;
    let operator = Operator::of(&world.proxy);
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(operator.post(&format!("/api/v1/keys/{id}/release"), json!({})).await.1["code"], "wrong-state");
    let (status, reply) = operator.post(&format!("/api/v1/keys/{id}/requeue"), json!({})).await;
    assert_eq!((status, &reply["before"], &reply["after"]), (200, &json!("dead"), &json!("unknown")));
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    let id = dead(&mut world, "k-2").await;
    let operator = Operator::of(&world.proxy);
    assert_eq!(operator.resolve(&id, completed(200, "known")).await.0, 200);
    assert_eq!(world.pay("k-2").send().await.text(), "known");
    let tail = |line: &[String; 4]| [line[1].clone(), line[2].clone(), line[3].clone()];
    let log: Vec<_> = operator.audit().await.iter().map(tail).collect();
    let expected = [["requeue", "dead", "unknown"], ["resolve", "dead", "completed"]];
    assert_eq!(log, expected.map(|line| line.map(str::to_owned)));
}

on_both_stores!(a_purged_key_starts_anew_and_a_running_one_cannot_be_purged);
async fn a_purged_key_starts_anew_and_a_running_one_cannot_be_purged(store: Store) {
    let mut world = World::with(store, |setup| setup.short_leases()).await;
    let dead = dead(&mut world, "dead").await;
    let unknown = unknown(&world, "unknown").await;
    let operator = Operator::of(&world.proxy);
    assert_eq!(world.pay("completed").send().await.status, 201);
    world.upstream.then(Answer::status(500));
    assert_eq!(world.pay("retryable").send().await.oncegate_status(), Some("released"));
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let running = world.pay("running").spawn();
    world.upstream.wait_for_executed(5).await;

    let (status, reply) =
        operator.delete(&format!("/api/v1/keys/{}?accept_risk=true", operator.id("running").await)).await;
    assert_eq!((status, &reply["code"], &reply["state"]), (409, &json!("wrong-state"), &json!("in_flight")));
    let completed = operator.id("completed").await;
    for (id, key) in [(dead, "dead"), (unknown, "unknown"), (completed, "completed")] {
        let (status, reply) = operator.delete(&format!("/api/v1/keys/{id}")).await;
        assert_eq!((status, &reply["code"]), (409, &json!("wrong-state")), "{key}");
        assert!(reply["detail"].as_str().unwrap().contains("accept_risk"), "{reply}");
        let (status, reply) = operator.delete(&format!("/api/v1/keys/{id}?accept_risk=true")).await;
        assert_eq!((status, &reply["after"], &reply["instances_behind"]), (200, &json!("none"), &json!(0)), "{reply}");
    }
    let id = operator.id("retryable").await;
    assert_eq!(operator.delete(&format!("/api/v1/keys/{id}")).await.0, 200);
    assert_eq!(operator.get(&format!("/api/v1/keys/{id}")).await.1["code"], "no-such-key");
    assert_eq!(operator.delete(&format!("/api/v1/keys/{id}")).await.0, 404);
    hold.release();
    assert_eq!(running.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    for key in ["dead", "unknown", "completed", "retryable"] {
        assert_eq!(world.pay(key).send().await.oncegate_status(), Some("executed"), "{key}");
        assert_eq!(world.upstream.last().field("oncegate-attempt"), Some("1"), "{key} starts anew");
    }
    assert_eq!(operator.audit().await.len(), 4);
}

on_both_stores!(a_bulk_change_counts_its_keys_first);
async fn a_bulk_change_counts_its_keys_first(store: Store) {
    let world = World::start(store).await;
    for number in 0..7 {
        unknown(&world, &format!("k-{number}")).await;
    }
    assert_eq!(world.pay("other").send().await.status, 201);
    let operator = Operator::of(&world.proxy);
    let path = "/api/v1/keys/actions";
    let mut body = completed(200, "as the ledger has it");
    body["action"] = "resolve".into();
    body["filter"] = json!({ "state": "unknown" });
    // One response for keys of several requests is a risk of its own, counted or not.
    for expect in [json!(null), json!(7)] {
        body["expect"] = expect;
        let (status, reply) = operator.post(path, body.clone()).await;
        assert_eq!((status, &reply["code"], &reply["count"]), (409, &json!("shared-response"), &json!(7)), "{reply}");
    }
    body["expect"] = json!(null);
    body["accept_risk"] = true.into();
    let (status, reply) = operator.post(path, body.clone()).await;
    assert_eq!((status, &reply["count"], &reply["changed"]), (200, &json!(7), &json!(0)), "{reply}");
    assert_eq!((&reply["by_state"], &reply["dry_run"]), (&json!({ "unknown": 7 }), &json!(true)));
    assert_eq!(operator.keys("state=unknown").await.len(), 7, "they were only counted");
    body["expect"] = 6.into();
    let (status, reply) = operator.post(path, body.clone()).await;
    assert_eq!((status, &reply["code"], &reply["count"]), (409, &json!("more-than-expected"), &json!(7)));
    assert_eq!(operator.audit().await.len(), 0);
    body["expect"] = 7.into();
    let (status, reply) = operator.post(path, body).await;
    assert_eq!((status, &reply["changed"], &reply["refused"]), (200, &json!(7), &json!([])), "{reply}");
    assert_eq!(operator.audit().await.len(), 7);
    assert_eq!(world.pay("k-3").send().await.text(), "as the ledger has it");

    // One of these ids does not exist, and one key is in the wrong state.
    let unknown = unknown(&world, "left").await;
    let ids = json!([operator.id("other").await, unknown, "00".repeat(32)]);
    let body = json!({ "action": "release", "ids": ids, "expect": 2, "accept_risk": true });
    let (status, reply) = operator.post(path, body).await;
    assert_eq!((status, &reply["changed"], &reply["refused_count"]), (200, &json!(1), &json!(2)), "{reply}");
    let codes: Vec<_> = reply["refused"].as_array().unwrap().iter().map(|why| why["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["wrong-state", "no-such-key"]);
    // Keys that may be purged only at a risk are counted, and refused.
    let mut body = json!({ "action": "purge", "all": true, "expect": 9 });
    let reply = operator.post(path, body.clone()).await.1;
    let by_state = json!({ "completed": 7, "retryable": 1, "unknown": 1 });
    assert_eq!((&reply["by_state"], &reply["changed"]), (&by_state, &json!(1)), "{reply}");
    assert_eq!((&reply["refused_count"], &reply["refused"][0]["code"]), (&json!(8), &json!("wrong-state")), "{reply}");
    assert!(reply["refused"][0]["detail"].as_str().unwrap().contains("use accept_risk"), "{reply}");
    assert_eq!(operator.keys("").await.len(), 8);
    body["accept_risk"] = true.into();
    assert_eq!(operator.post(path, body).await.1["changed"], 8);
    assert_eq!(operator.keys("").await.len(), 0);
}

on_both_stores!(an_empty_condition_changes_nothing);
async fn an_empty_condition_changes_nothing(store: Store) {
    let world = World::start(store).await;
    for key in ["k-1", "k-2"] {
        assert_eq!(world.pay(key).send().await.status, 201);
    }
    let operator = Operator::of(&world.proxy);
    for (filter, field) in [
        (json!({}), "filter"),
        (json!({ "key": "" }), "key"),
        (json!({ "route": "" }), "route"),
        (json!({ "scope": "" }), "scope"),
        (json!({ "older_than": "", "state": "completed" }), "older_than"),
        (json!({ "state": "" }), "state"),
    ] {
        for action in ["release", "purge"] {
            let body = json!({ "action": action, "filter": filter, "expect": 9 });
            let (status, reply) = operator.post("/api/v1/keys/actions", body).await;
            assert_eq!((status, &reply["field"]), (400, &json!(field)), "{reply}");
        }
    }
    assert_eq!(operator.audit().await.len(), 0);
    assert_eq!(operator.keys("key=&state=completed").await.len(), 2, "looking may say nothing");
    let body = json!({ "action": "release", "filter": {}, "all": true, "expect": 2, "accept_risk": true });
    assert_eq!(operator.post("/api/v1/keys/actions", body).await.1["changed"], 2);
}

on_both_stores!(one_of_two_simultaneous_operators_decides_and_the_other_is_refused);
async fn one_of_two_simultaneous_operators_decides_and_the_other_is_refused(store: Store) {
    let world = World::start(store).await;
    let operator = Operator::of(&world.proxy);
    for round in 0..5 {
        let key = format!("k-{round}");
        let id = unknown(&world, &key).await;
        let replies: [(u16, Value); 2] =
            tokio::join!(operator.resolve(&id, completed(200, "by hand")), operator.resolve(&id, not_executed(true)),)
                .into();
        let done: Vec<_> = replies.iter().filter(|(status, _)| *status == 200).collect();
        assert_eq!(done.len(), 1, "{replies:?}");
        let (_, lost) = replies.iter().find(|(status, _)| *status == 409).unwrap();
        assert!(["key-changed", "wrong-state", "key-held"].contains(&lost["code"].as_str().unwrap()), "{lost}");
        let shown = operator.get(&format!("/api/v1/keys/{id}")).await.1;
        assert_eq!(shown["state"], done[0].1["after"]);
        assert_eq!(shown["audit"].as_array().unwrap().len(), 1);
    }
}

/// Two proxies in front of one service, on one PostgreSQL.
async fn pair() -> (Upstream, Proxy, Proxy, Store) {
    let store = Store::postgres().await;
    let upstream = Upstream::start().await;
    let setup = Proxy::on(&store.url()).upstream(upstream.address).short_leases();
    let (one, other) = tokio::join!(setup.start(), setup.start());
    (upstream, one, other, store)
}

/// Waits until a proxy that was paused serves again: before that it starts no attempt.
async fn has_its_lease_back(proxy: &Proxy) {
    eventually(TEST_TIMEOUT, async || (proxy.readyz().await.0 == 200).then_some(())).await;
}

#[tokio::test]
async fn a_late_answer_yields_to_a_stored_decision_and_completes_a_released_key() {
    let (upstream, one, other, _store) = pair().await;
    let operator = Operator::of(&other);
    for (key, decision, late) in
        [("stored", Some(completed(200, "by hand")), "by hand"), ("released", Some(not_executed(true)), "effect 2")]
    {
        let hold = Hold::new();
        upstream.then(Answer::status(201).hold(&hold));
        let executed = upstream.executed().len();
        let first = one.post("/pay").key(key).body("x").spawn();
        upstream.wait_for_executed(executed + 1).await;
        one.signal(Signal::STOP);
        let id = operator.id_when(key, "unknown").await;
        assert_eq!(operator.resolve(&id, decision.unwrap()).await.0, 200);
        hold.release();
        one.signal(Signal::CONT);
        let first = first.await.unwrap().unwrap();
        assert_eq!(first.text(), late, "{first:?}");
        let replay = other.post("/pay").key(key).body("x").send().await;
        assert_eq!((replay.text(), replay.oncegate_status()), (late.to_owned(), Some("replayed")));
        has_its_lease_back(&one).await;
    }
    assert_eq!(upstream.calls(), 2, "nothing was executed twice");
    assert!(!one.output().contains("another attempt has the key"), "there was one attempt of each key");
}

#[tokio::test]
async fn an_old_attempts_late_answer_is_dropped_after_a_new_attempt() {
    let (upstream, one, other, _store) = pair().await;
    let operator = Operator::of(&other);
    let hold = Hold::new();
    upstream.then(Answer::status(201).hold(&hold));
    let first = one.post("/pay").key("k").body("x").spawn();
    upstream.wait_for_executed(1).await;
    one.signal(Signal::STOP);
    let id = operator.id_when("k", "unknown").await;
    assert_eq!(operator.resolve(&id, not_executed(true)).await.0, 200);
    let second = other.post("/pay").key("k").body("x").send().await;
    assert_eq!(second.oncegate_status(), Some("executed"));
    hold.release();
    one.signal(Signal::CONT);
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.text(), second.text(), "the stored response is sent");
    assert_eq!(other.post("/pay").key("k").body("x").send().await.text(), second.text());
}

#[tokio::test]
async fn an_old_attempts_late_answer_settles_nothing_while_the_new_attempt_runs() {
    let (upstream, one, other, _store) = pair().await;
    let operator = Operator::of(&other);
    let (old, new) = (Hold::new(), Hold::new());
    upstream.then(Answer::status(201).hold(&old));
    upstream.then(Answer::status(201).hold(&new));
    let first = one.post("/pay").key("k").body("x").spawn();
    upstream.wait_for_executed(1).await;
    one.signal(Signal::STOP);
    let id = operator.id_when("k", "unknown").await;
    assert_eq!(operator.resolve(&id, not_executed(true)).await.0, 200);
    let second = other.post("/pay").key("k").body("x").spawn();
    upstream.wait_for_executed(2).await;
    old.release();
    one.signal(Signal::CONT);
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.oncegate_status(), Some("unstored"), "the key belongs to the new attempt");
    one.wait_for_log("another attempt has the key").await;
    assert_eq!(other.post("/pay").key("k").body("x").send().await.oncegate_status(), Some("in-flight"));
    new.release();
    let second = second.await.unwrap().unwrap();
    assert_eq!(second.oncegate_status(), Some("executed"));
    assert_ne!(second.text(), first.text());
    has_its_lease_back(&one).await;
    assert_eq!(one.post("/pay").key("k").body("x").send().await.text(), second.text());
}

#[tokio::test]
async fn a_late_answer_after_a_purge_never_gets_the_response_of_the_new_request() {
    let (upstream, one, other, _store) = pair().await;
    let operator = Operator::of(&other);
    let hold = Hold::new();
    upstream.then(Answer::status(201).hold(&hold));
    let first = one.post("/pay").key("k").body("x").spawn();
    upstream.wait_for_executed(1).await;
    one.signal(Signal::STOP);
    let id = operator.id_when("k", "unknown").await;
    let purge = json!({ "accept_risk": true });
    assert_eq!(
        operator.request("DELETE", &format!("/api/v1/keys/{id}")).json(&purge.to_string()).send().await.status,
        200
    );
    let second = other.post("/pay").key("k").body("y").send().await;
    assert_eq!((second.oncegate_status(), second.text()), (Some("executed"), "effect 2".to_owned()));
    hold.release();
    one.signal(Signal::CONT);
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.oncegate_status(), first.text()), (Some("unstored"), "effect 1".to_owned()), "its own answer");
    assert!(!first.is_replay());
}

#[tokio::test]
async fn a_purge_waits_for_live_instances_and_not_for_dead_ones() {
    let (_upstream, one, other, _store) = pair().await;
    let operator = Operator::of(&other);
    for (key, kill) in [("k-1", false), ("k-2", true)] {
        assert_eq!(other.post("/pay").key(key).body("x").send().await.status, 201);
        let id = operator.id(key).await;
        if kill {
            one.kill9().await;
        }
        let begun = Instant::now();
        let (status, reply) = operator.delete(&format!("/api/v1/keys/{id}?accept_risk=true")).await;
        assert_eq!((status, &reply["instances_behind"]), (200, &json!(0)), "{reply}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}

on_both_stores!(a_route_that_refuses_late_retries_remembers_a_key_settled_by_an_operator);
async fn a_route_that_refuses_late_retries_remembers_a_key_settled_by_an_operator(store: Store) {
    let lines = "ttl = \"1s\"\nafter_ttl = \"refuse\"\nremember = \"1h\"";
    let world = World::with(store, |setup| setup.defaults(lines).store("reap_every = \"200ms\"")).await;
    let id = unknown(&world, "k-1").await;
    let operator = Operator::of(&world.proxy);
    assert_eq!(operator.resolve(&id, completed(200, "known")).await.0, 200);
    operator.id_when("k-1", "expired").await;
    assert_eq!(world.pay("k-1").send().await.outcome(), (410, "key-expired".to_owned()));
    let (status, refused) = operator.delete(&format!("/api/v1/keys/{id}")).await;
    assert_eq!((status, &refused["code"]), (409, &json!("wrong-state")), "{refused}");
    assert_eq!(operator.delete(&format!("/api/v1/keys/{id}?accept_risk=true")).await.0, 200);
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
}

on_both_stores!(a_completed_key_past_its_ttl_is_purged_or_released_without_a_risk);
async fn a_completed_key_past_its_ttl_is_purged_or_released_without_a_risk(store: Store) {
    let lines = "name = \"short\"\npath = \"/short\"\nttl = \"1s\"";
    let world = World::with(store, |setup| {
        setup.route(lines).route("name = \"pay\"\npath = \"/pay\"").store("reap_every = \"1h\"")
    })
    .await;
    for key in ["k-1", "k-2", "k-3"] {
        assert_eq!(world.post("/short").key(key).body("x").send().await.status, 201);
    }
    assert_eq!(world.pay("live").send().await.status, 201);
    let operator = Operator::of(&world.proxy);
    let (purged, released) = (operator.id("k-1").await, operator.id("k-2").await);
    let has_ended = async || (operator.keys("key=k-3").await[0]["lapsed"] == true).then_some(());
    eventually(TEST_TIMEOUT, has_ended).await;
    // The estimate of the store's clock may be some milliseconds behind it.
    let done = async || (operator.delete(&format!("/api/v1/keys/{purged}")).await.0 == 200).then_some(());
    eventually(TEST_TIMEOUT, done).await;
    let (status, reply) = operator.post(&format!("/api/v1/keys/{released}/release"), json!({})).await;
    assert_eq!((status, &reply["after"]), (200, &json!("retryable")), "{reply}");
    let body = json!({ "action": "purge", "filter": { "state": "completed" }, "expect": 2 });
    let (status, reply) = operator.post("/api/v1/keys/actions", body).await;
    assert_eq!((status, &reply["changed"], &reply["refused_count"]), (200, &json!(1), &json!(1)), "{reply}");
    let left = operator.keys("state=completed").await;
    assert_eq!((left.len(), &left[0]["route"]), (1, &json!("pay")), "{left:?}");
}
