//! `store_down = "bypass"`: requests forwarded unguarded, and the reservations that were made for them all the same.

use std::time::Duration;

use tokio::time::Instant;

use crate::store_trouble::is_unavailable;
use harness::metrics::Metrics;
use harness::relay::{Relay, remote};
use harness::{Answer, Hold, Proxy, Response, Setup, Store, TEST_TIMEOUT, World, eventually, route};

async fn away(more: impl FnOnce(Setup) -> Setup) -> (World, Relay) {
    let bypass = route("pay", "store_down = \"bypass\"");
    remote(|setup| more(setup.route(&bypass).route(&route("reject", "")))).await
}

fn often_swept(setup: Setup) -> Setup {
    setup.store("sweep_every = \"100ms\"")
}

/// Waits until the instance guards all requests.
async fn is_ready(world: &World) {
    eventually(TEST_TIMEOUT, async || (world.proxy.readyz().await.1["status"] == "ready").then_some(())).await;
}

/// Silences the store while a connection is open over which a reservation can still be sent. One key is completed
/// before.
async fn goes_silent(world: &World, wire: &Relay) {
    assert!(matches!(world.pay("a").send().await.oncegate_status(), Some("executed" | "replayed")));
    wire.silence();
}

/// Waits until the keys have these states in this order, after the one that was completed before.
async fn has_states(world: &World, states: &[&str]) {
    let are = async || (world.store.states().await[1..] == *states).then_some(());
    eventually(TEST_TIMEOUT, are).await;
}

/// The same, in any order.
async fn has_kept(world: &World, states: &[&str]) {
    let are = async || {
        let (mut kept, mut wanted) = (world.store.states().await, states.to_vec());
        kept.sort();
        wanted.sort();
        (kept == wanted).then_some(())
    };
    eventually(TEST_TIMEOUT, are).await;
}

/// Waits until the store has this response for the key.
async fn is_stored(world: &World, key: &str, text: &str) {
    let kept =
        async || Some(world.pay(key).send().await).filter(|answer| answer.field("idempotency-key-expires").is_some());
    let replay = eventually(TEST_TIMEOUT, kept).await;
    assert_eq!((replay.status, replay.oncegate_status(), &*replay.text()), (201, Some("replayed"), text));
}

fn is_bypassed(answer: &Response, effect: usize) {
    assert_eq!((answer.status, answer.oncegate_status()), (201, Some("bypassed")));
    assert_eq!((answer.text(), answer.field("idempotency-key-expires")), (format!("effect {effect}"), None));
    assert!(!answer.is_replay());
}

#[tokio::test]
async fn without_the_store_requests_are_forwarded_unguarded() {
    let (world, wire) = away(|setup| setup).await;
    world.upstream.answer_all(Answer::status(201));
    let before = world.pay("before").send().await;
    wire.cut();
    // Before and after the breaker opens.
    for number in 2..10 {
        is_bypassed(&world.pay(&format!("a-key-that-is-long-{number}")).send().await, number);
        assert_eq!(world.upstream.last().field("oncegate-reservation"), None, "there is none to complete");
        assert_eq!(world.upstream.last().field("oncegate-attempt"), None);
    }
    assert_eq!(world.proxy.readyz().await.1["bypassed"], 8);
    let line = world.proxy.wait_for_log("forwarded unguarded").await;
    assert_eq!((&line["level"], &line["route"], &line["key"]), (&"WARN".into(), &"pay".into(), &"a-key-th…".into()));
    is_unavailable(&world.post("/reject").key("k-1").send().await);
    let invalid = world.pay("a,b").send().await;
    assert_eq!((invalid.outcome().1, invalid.oncegate_status()), ("key-invalid".to_owned(), Some("rejected")));
    assert_eq!(world.upstream.calls(), 9);
    wire.restore();
    is_ready(&world).await;
    assert_eq!(world.pay("before").send().await.comparable(), before.replayed());
    let first = world.pay("k-1").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
}

#[tokio::test]
async fn a_bypassed_requests_outcome_is_reported_as_bypassed() {
    let (world, wire) = away(|setup| setup).await;
    wire.cut();
    world.upstream.then(Answer::close());
    let broken = world.pay("k-1").send().await;
    assert_eq!((broken.outcome(), broken.oncegate_status()), ((502, "upstream-broken".to_owned()), Some("bypassed")));
    world.upstream.then(Answer::status(200).body("x".repeat(3 << 20)));
    let large = world.pay("k-2").send().await;
    assert_eq!((large.status, large.oncegate_status(), large.body.len()), (200, Some("bypassed"), 3 << 20));
}

#[tokio::test]
async fn without_a_lease_requests_are_forwarded_unguarded() {
    let (world, wire) = away(Setup::short_leases).await;
    wire.cut();
    eventually(TEST_TIMEOUT, async || {
        let (_, told) = world.proxy.readyz().await;
        (told["lease"]["held"] == false).then_some(())
    })
    .await;
    is_bypassed(&world.pay("k-1").send().await, 1);
    is_unavailable(&world.post("/reject").key("k-1").send().await);
    wire.restore();
    is_ready(&world).await;
    is_stored(&world, "k-1", "effect 1").await;
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_retry_of_a_bypassed_request_is_answered_without_a_lease_also_where_the_route_repeats_what_is_unknown() {
    let (world, wire) = away(|setup| setup.short_leases().defaults("on_unknown = \"retry\"")).await;
    wire.cut();
    eventually(TEST_TIMEOUT, async || (world.proxy.readyz().await.1["lease"]["held"] == false).then_some(())).await;
    is_bypassed(&world.pay("k-1").send().await, 1);
    let again = world.pay("k-1").send().await;
    assert_eq!((again.status, again.oncegate_status(), &*again.text()), (201, Some("unstored"), "effect 1"));
    wire.restore();
    is_ready(&world).await;
    is_stored(&world, "k-1", "effect 1").await;
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn without_a_lease_nothing_is_bypassed_while_the_store_answers() {
    let (world, _wire) = away(Setup::short_leases).await;
    // No lease can be renewed any more; everything else works.
    world.store.tamper("alter table oncegate.instances add constraint full_up check (false) not valid").await;
    eventually(TEST_TIMEOUT, async || {
        let (_, told) = world.proxy.readyz().await;
        (told["lease"]["held"] == false).then_some(())
    })
    .await;
    is_unavailable(&world.pay("k-1").send().await);
    assert_eq!(world.upstream.calls(), 0);
    world.store.tamper("alter table oncegate.instances drop constraint full_up").await;
    is_ready(&world).await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn a_key_with_a_known_owner_is_never_bypassed() {
    let (world, _wire) = away(|setup| setup).await;
    let other = world.setup.start().await;
    let first = world.pay("k-1").send().await;
    let request = || other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#);
    // Without this column the key's owner can still be read, and its outcome cannot.
    world.store.tamper("alter table keys rename column body to body_away").await;
    // Before and after the breaker opens.
    for _ in 0..4 {
        is_unavailable(&request().send().await);
    }
    world.store.tamper("alter table keys rename column body_away to body").await;
    assert_eq!(request().send().await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn an_outcome_that_is_not_stored_yet_is_served_from_memory() {
    let (world, wire) = away(|setup| setup).await;
    let mut firsts = Vec::new();
    for path in ["/pay", "/reject"] {
        for (key, answer) in [("completed", Answer::status(201)), ("unknown", Answer::close())] {
            let hold = Hold::new();
            world.upstream.then(answer.hold(&hold));
            let request = world.post(path).key(key).json(r#"{"amount":10}"#);
            let first = request.spawn();
            world.upstream.wait_for_executed(firsts.len() + 1).await;
            firsts.push((request, first, hold));
        }
    }
    wire.cut();
    let mut told = Vec::new();
    for (request, first, hold) in firsts {
        hold.release();
        told.push((request, first.await.unwrap().unwrap()));
    }
    for (number, (request, first)) in told.iter().enumerate() {
        let again = request.send().await;
        let other = request.clone().json(r#"{"amount":11}"#).send().await;
        assert_eq!(other.outcome(), (422, "key-reused".to_owned()));
        if number % 2 == 0 {
            assert_eq!((first.status, first.oncegate_status()), (201, Some("unstored")));
            assert_eq!(
                (again.oncegate_status(), again.is_replay(), &again.body),
                (Some("unstored"), true, &first.body)
            );
            assert_eq!(again.field("idempotency-key-expires"), None, "it is not stored yet");
        } else {
            assert_eq!(first.outcome(), (502, "upstream-broken".to_owned()));
            assert_eq!(again.outcome(), (409, "outcome-unknown".to_owned()));
        }
    }
    wire.restore();
    has_kept(&world, &["completed", "unknown", "completed", "unknown"]).await;
    is_ready(&world).await;
    assert_eq!(told[1].0.send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(told[0].0.send().await.text(), told[0].1.text());
    assert_eq!(world.upstream.calls(), 4);
}

#[tokio::test]
async fn a_bypassed_outcome_is_served_from_memory_and_stored_after_the_outage() {
    let (world, wire) = away(|setup| setup).await;
    wire.cut();
    world.upstream.answer_all(Answer::status(201));
    is_bypassed(&world.pay("completed").send().await, 1);
    let again = world.pay("completed").send().await;
    assert_eq!(
        (again.oncegate_status(), again.text(), again.is_replay()),
        (Some("unstored"), "effect 1".to_owned(), true)
    );
    assert_eq!(again.field("idempotency-key-expires"), None, "it is not stored yet");
    let other = world.post("/pay").key("completed").json(r#"{"amount":11}"#).send().await;
    assert_eq!(other.outcome(), (422, "key-reused".to_owned()));
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("unknown").send().await.outcome().1, "upstream-broken");
    assert_eq!(world.pay("unknown").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    world.upstream.then(Answer::status(503));
    assert_eq!(world.pay("released").send().await.oncegate_status(), Some("bypassed"));
    is_bypassed(&world.pay("released").send().await, 4);
    wire.restore();
    has_kept(&world, &["completed", "completed", "unknown"]).await;
    is_ready(&world).await;
    // Another instance reads it from the store.
    let other = world.setup.start().await;
    for (key, outcome) in [("completed", "effect 1"), ("released", "effect 4")] {
        is_stored(&world, key, outcome).await;
        let replay = other.post("/pay").key(key).json(r#"{"amount":10,"currency":"EUR"}"#).send().await;
        assert_eq!((replay.oncegate_status(), &*replay.text()), (Some("replayed"), outcome));
    }
    assert_eq!(world.pay("unknown").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(world.upstream.calls(), 4);
}

#[tokio::test]
async fn a_bypass_checks_memory_first_even_without_heartbeats() {
    let beats = "lease = { heartbeat = \"200ms\", expiry = \"60s\" }";
    let (world, wire) = away(|setup| setup.store(beats)).await;
    let first = world.pay("k-1").send().await;
    world.post("/reject").key("k-1").send().await;
    wire.cut();
    let is_silent = async || (world.post("/reject").key("k-1").send().await.status == 503).then_some(());
    eventually(TEST_TIMEOUT, is_silent).await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_duplicate_of_a_running_bypassed_request_is_not_forwarded() {
    let (world, wire) = away(|setup| setup).await;
    wire.silence();
    let hold = Hold::new();
    world.upstream.answer_all(Answer::status(201).hold(&hold));
    // They ask the store at the same time, and give up at the same time.
    let together: Vec<_> = (0..5).map(|_| world.pay("k-1").spawn()).collect();
    world.upstream.wait_for_executed(1).await;
    for _ in 0..3 {
        assert_eq!(world.pay("k-1").send().await.outcome(), (409, "in-flight".to_owned()));
    }
    let other = world.post("/pay").key("k-1").json(r#"{"amount":11}"#).send().await;
    assert_eq!(other.outcome(), (422, "key-reused".to_owned()));
    hold.release();
    let mut bypassed = 0;
    for answer in together {
        let answer = answer.await.unwrap().unwrap();
        match answer.status {
            409 => assert_eq!(answer.outcome().1, "in-flight"),
            _ if answer.is_replay() => {}
            _ => bypassed += 1,
        }
    }
    assert_eq!((bypassed, world.upstream.calls()), (1, 1));
}

#[tokio::test]
async fn a_duplicate_that_waits_for_a_bypassed_request_gets_its_answer() {
    let waits = route("wait", "store_down = \"bypass\"\nin_flight = \"wait\"");
    let (world, wire) = away(|setup| setup.route(&waits)).await;
    wire.cut();
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let request = world.post("/wait").key("k-1");
    let first = request.spawn();
    world.upstream.wait_for_executed(1).await;
    let second = request.spawn();
    hold.release();
    is_bypassed(&first.await.unwrap().unwrap(), 1);
    let second = second.await.unwrap().unwrap();
    assert_eq!((second.oncegate_status(), &*second.text()), (Some("unstored"), "effect 1"));
}

#[tokio::test]
async fn a_bypass_beside_another_execution_is_reported_as_a_discrepancy() {
    let (world, wire) = away(|setup| setup).await;
    wire.cut();
    is_bypassed(&world.pay("k-1").send().await, 1);
    let bypass = route("pay", "store_down = \"bypass\"");
    let other = Proxy::on(&world.store.url()).upstream(world.upstream.address).route(&bypass).start().await;
    let request = other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#);
    assert_eq!(request.send().await.oncegate_status(), Some("executed"));
    wire.restore();
    let line = world.proxy.wait_for_log("differs from the stored state of its key").await;
    assert_eq!(line["level"], "WARN");
    is_ready(&world).await;
    is_stored(&world, "k-1", "effect 2").await;
}

#[tokio::test]
async fn a_bypassed_outcome_takes_over_a_key_that_another_instance_may_retry() {
    let (world, wire) = away(|setup| setup).await;
    let other = Proxy::on(&world.store.url()).upstream(world.upstream.address).route(&route("pay", "")).start().await;
    let request = other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#);
    wire.cut();
    is_bypassed(&world.pay("k-1").send().await, 1);
    world.upstream.then(Answer::status(503));
    assert_eq!(request.send().await.status, 503);
    assert_eq!(world.store.states().await, ["retryable"]);
    wire.restore();
    has_kept(&world, &["completed"]).await;
    let replay = request.send().await;
    assert_eq!((replay.oncegate_status(), &*replay.text()), (Some("replayed"), "effect 1"));
    assert_eq!(world.upstream.calls(), 2, "it is not executed again");
}

/// Waits until no attempt is left whose outcome is to be stored, and counts those that were dropped.
async fn dropped_outcomes(world: &World) -> f64 {
    eventually(TEST_TIMEOUT, async || {
        let metrics = Metrics::of(&world.proxy).await;
        (metrics.get("oncegate_in_flight") == 0.0)
            .then(|| metrics.get("oncegate_late_completions_total{result=\"dropped\"}"))
    })
    .await
}

#[tokio::test]
async fn a_bypassed_request_that_was_not_executed_leaves_nothing_to_store() {
    let (world, wire) = away(|setup| setup).await;
    wire.cut();
    world.upstream.then(Answer::status(503));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("bypassed"));
    wire.restore();
    assert_eq!(dropped_outcomes(&world).await, 0.0);
    assert!(world.store.states().await.is_empty());
    assert!(!world.proxy.output().contains("is stored after all"), "there is nothing to store");
    is_ready(&world).await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn an_outcome_whose_key_has_gone_meanwhile_counts_as_dropped() {
    let (world, wire) = away(|setup| setup).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(503).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    wire.cut();
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().status, 503);
    world.store.tamper("delete from keys").await;
    wire.restore();
    assert_eq!(dropped_outcomes(&world).await, 1.0);
    assert!(world.store.states().await.is_empty());
}

#[tokio::test]
async fn a_reservation_that_commits_during_its_bypass_is_no_orphan() {
    let (world, wire) = away(often_swept).await;
    world.upstream.answer_all(Answer::status(201));
    goes_silent(&world, &wire).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(2).await;
    wire.restore();
    has_states(&world, &["in_flight"]).await;
    is_ready(&world).await;
    // Longer than it takes to find an orphan: the store's timeout, and two passes.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1_500) {
        assert_eq!(world.pay("k-1").send().await.outcome(), (409, "in-flight".to_owned()));
    }
    hold.release();
    is_bypassed(&first.await.unwrap().unwrap(), 2);
    let replay = eventually(TEST_TIMEOUT, async || {
        Some(world.pay("k-1").send().await).filter(|answer| answer.oncegate_status() == Some("replayed"))
    });
    let replay = replay.await;
    assert_eq!((replay.oncegate_status(), &*replay.text()), (Some("replayed"), "effect 2"));
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_reservation_that_commits_after_its_bypassed_answer_is_completed() {
    let (world, wire) = away(often_swept).await;
    for (number, key) in ["k-1", "k-2", "k-3"].into_iter().enumerate() {
        goes_silent(&world, &wire).await;
        is_bypassed(&world.pay(key).send().await, number + 2);
        wire.restore();
        has_states(&world, &vec!["completed"; number + 1]).await;
        is_ready(&world).await;
        // The row is read here before the proxy reads the store's reply: until then it answers from its memory.
        is_stored(&world, key, &format!("effect {}", number + 2)).await;
    }
    assert_eq!(world.upstream.calls(), 4);
}

#[tokio::test]
async fn a_reservation_that_commits_after_a_lost_bypassed_outcome_is_unknown() {
    let (world, wire) = away(often_swept).await;
    goes_silent(&world, &wire).await;
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("bypassed"));
    wire.restore();
    has_states(&world, &["unknown"]).await;
    is_ready(&world).await;
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn an_embedded_store_with_a_failed_disk_ends_the_process_and_is_not_bypassed() {
    let bypass = route("pay", "store_down = \"bypass\"");
    let mut world = World::with(Store::sqlite(), |setup| setup.route(&bypass)).await;
    let before = world.pay("before").send().await;
    world.proxy.fail_file_writes();
    is_unavailable(&world.pay("k-1").send().await);
    assert_eq!(world.proxy.ended().await, Some(74));
    world.crash_and_restart().await;
    assert_eq!(world.pay("before").send().await.comparable(), before.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn outcomes_that_wait_for_the_store_are_limited_and_then_requests_are_refused() {
    let (world, wire) = away(|setup| setup).await;
    world.upstream.answer_all(Answer::status(201).body("x".repeat(1 << 20)));
    wire.cut();
    let mut bypassed = 0;
    let refused = loop {
        let answer = world.pay(&format!("k-{bypassed}")).send().await;
        match answer.oncegate_status() {
            Some("bypassed") => bypassed += 1,
            _ => break answer,
        }
        assert!(bypassed <= 64, "64 MiB are full");
    };
    is_unavailable(&refused);
    assert_eq!((bypassed, world.upstream.calls()), (64, 64));
    assert_eq!(world.pay("k-0").send().await.oncegate_status(), Some("unstored"), "what is held is still answered");
    wire.restore();
    is_ready(&world).await;
    has_kept(&world, &["completed"; 64]).await;
    assert_eq!(world.pay("k-64").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 65);
}

#[tokio::test]
async fn a_draining_proxy_bypasses_nothing() {
    let (world, wire) = away(|setup| setup.top("drain_timeout = \"10s\"")).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let in_flight = async || Metrics::of(&world.proxy).await.get("oncegate_in_flight");
    assert_eq!(in_flight().await, 1.0);
    wire.silence();
    // This request waits for the store when the drain begins.
    let second = world.pay("k-2").spawn();
    eventually(TEST_TIMEOUT, async || (in_flight().await == 2.0).then_some(())).await;
    world.proxy.signal(rustix::process::Signal::TERM);
    world.proxy.wait_for_log("draining").await;
    is_unavailable(&second.await.unwrap().unwrap());
    wire.restore();
    hold.release();
    first.await.unwrap().unwrap();
    assert_eq!(world.proxy.ended().await, Some(0));
    assert_eq!(world.upstream.calls(), 1);
}

/// A state that this instance has seen, and the outcome of the same retry before and during the outage.
struct SeenState {
    key: &'static str,
    path: &'static str,
    /// The assignments that bring the key into a state that takes long otherwise.
    made_by: Option<&'static str>,
    before: (u16, &'static str),
    during: (u16, &'static str),
}

#[tokio::test]
async fn a_bypass_executes_nothing_that_the_last_seen_state_of_the_key_forbids() {
    let seen = |key, path, made_by, before| SeenState { key, path, made_by, before, during: before };
    let expire = "state = 'expired', remember_ms = null, status = null, fields = null, body = null";
    let states = [
        seen("unknown", "/pay", None, (409, "outcome-unknown")),
        seen("dead", "/pay", Some("state = 'dead'"), (409, "outcome-unknown")),
        seen("expired", "/pay", Some(expire), (410, "key-expired")),
        seen("late", "/late", None, (410, "key-expired")),
        seen("queued", "/prefer", None, (202, "")),
        seen("running-elsewhere", "/pay", None, (409, "in-flight")),
        seen("reused", "/pay", None, (422, "key-reused")),
        // Not cached. The store has the response, and nobody else.
        SeenState { during: (503, "store-unavailable"), ..seen("completed", "/pay", None, (201, "")) },
    ];
    let pay = |wait: &str| format!("store_down = \"bypass\"\n{wait}");
    let (world, wire) = remote(|setup| {
        setup
            .top("secret = \"a secret of some length\"\ncache = { memory = \"0B\" }")
            .store("reap_every = \"10m\"")
            .route(&route("pay", &pay("after_ttl = \"refuse\"")))
            .route(&route("late", &pay("ttl = \"1s\"\nafter_ttl = \"refuse\"")))
            .route(&route("prefer", &pay("delivery = \"prefer\"\nretry = { base = \"1h\", cap = \"1h\" }")))
    })
    .await;
    let other = world.setup.start().await;
    let request = |proxy: &Proxy, state: &SeenState| proxy.post(state.path).key(state.key).body("x");
    let hold = Hold::new();
    for state in &states {
        let calls = world.upstream.calls();
        match state.key {
            // Unknown by an attempt of this instance, and never read from the store.
            "unknown" => {
                world.upstream.then(Answer::close());
                assert_eq!(request(&world.proxy, state).send().await.status, 502);
            }
            "queued" => {
                world.upstream.then(Answer::status(503).field("Oncegate-Decision", "release"));
                let accepted = request(&world.proxy, state).field("Prefer", "respond-async").send().await;
                assert_eq!(accepted.status, 202);
            }
            "running-elsewhere" => {
                world.upstream.then(Answer::status(201).hold(&hold));
                let first = request(&other, state);
                tokio::spawn(async move { first.send().await });
            }
            "dead" => {
                world.upstream.then(Answer::close());
                assert_eq!(request(&other, state).send().await.status, 502);
            }
            "reused" => assert_eq!(other.post("/pay").key("reused").body("y").send().await.status, 201),
            _ => assert_eq!(request(&other, state).send().await.status, 201),
        }
        world.upstream.wait_for_executed(calls + 1).await;
        if let Some(made_by) = state.made_by {
            world.store.tamper(&format!("update keys set {made_by} where key = '{}'::bytea", state.key)).await;
        }
    }
    for state in states.iter().filter(|state| state.key != "unknown") {
        eventually(TEST_TIMEOUT, async || {
            let answer = request(&world.proxy, state).send().await;
            let slug = if answer.status < 400 { String::new() } else { answer.outcome().1 };
            ((answer.status, &*slug) == state.before).then_some(())
        })
        .await;
    }
    wire.cut();
    let calls = world.upstream.calls();
    // Before and after the breaker opens.
    for _ in 0..4 {
        for state in &states {
            let answer = request(&world.proxy, state).send().await;
            let slug = if answer.status < 400 { String::new() } else { answer.outcome().1 };
            assert_eq!((answer.status, &*slug), state.during, "{}: {}", state.key, answer.text());
        }
    }
    assert_eq!(world.upstream.calls(), calls, "nothing was forwarded");
    // A key that this instance has never seen is.
    world.upstream.answer_all(Answer::status(201));
    assert_eq!(world.pay("new").send().await.oncegate_status(), Some("bypassed"));
    hold.release();
}
