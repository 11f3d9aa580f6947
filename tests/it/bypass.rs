//! `store_down = "bypass"`: what is forwarded unguarded, and what becomes of a reservation that was made all the same.

use std::time::Duration;

use tokio::time::Instant;

use crate::harness::relay::{Relay, remote};
use crate::harness::{Answer, Hold, PATIENCE, Proxy, Response, Setup, Store, World, eventually, route};
use crate::store_trouble::is_unavailable;

async fn away(more: impl FnOnce(Setup) -> Setup) -> (World, Relay) {
    let bypass = route("pay", "store_down = \"bypass\"");
    remote(|setup| more(setup.route(&bypass).route(&route("reject", "")))).await
}

fn often_swept(setup: Setup) -> Setup {
    setup.store("sweep_every = \"100ms\"")
}

async fn is_ready(world: &World) {
    eventually(PATIENCE, async || (world.proxy.readyz().await.0 == 200).then_some(())).await;
}

/// The store goes silent, with a connection open over which a reservation gets as far as the wire. One key is completed
/// by then.
async fn goes_silent(world: &World, wire: &Relay) {
    assert!(matches!(world.pay("a").send().await.told(), Some("executed" | "replayed")));
    wire.silence();
}

/// Waits until the key's states, in their order, are these, behind the one that was completed before.
async fn has_states(world: &World, states: &[&str]) {
    let are = async || (world.store.states().await[1..] == *states).then_some(());
    eventually(PATIENCE, are).await;
}

/// The same, but for the order of those that were stored together.
async fn has_kept(world: &World, states: &[&str]) {
    let are = async || {
        let (mut kept, mut wanted) = (world.store.states().await, states.to_vec());
        kept.sort();
        wanted.sort();
        (kept == wanted).then_some(())
    };
    eventually(PATIENCE, are).await;
}

/// Waits until a key's response is kept by the store, and is this one.
async fn is_stored(world: &World, key: &str, text: &str) {
    let kept =
        async || Some(world.pay(key).send().await).filter(|answer| answer.field("idempotency-key-expires").is_some());
    let replay = eventually(PATIENCE, kept).await;
    assert_eq!((replay.status, replay.told(), &*replay.text()), (201, Some("replayed"), text));
}

fn is_bypassed(answer: &Response, effect: usize) {
    assert_eq!((answer.status, answer.told()), (201, Some("bypassed")));
    assert_eq!((answer.text(), answer.field("idempotency-key-expires")), (format!("effect {effect}"), None));
    assert!(!answer.is_replay());
}

#[tokio::test]
async fn while_the_store_is_away_requests_are_forwarded_unguarded() {
    let (world, wire) = away(|setup| setup).await;
    world.upstream.answers(Answer::status(201));
    let before = world.pay("before").send().await;
    wire.cut();
    // Before and after the breaker opens.
    for number in 2..10 {
        is_bypassed(&world.pay(&format!("a-key-that-is-long-{number}")).send().await, number);
        assert_eq!(world.upstream.last().field("oncegate-reservation"), None, "there is none to complete");
        assert_eq!(world.upstream.last().field("oncegate-attempt"), None);
    }
    assert_eq!(world.proxy.readyz().await.1["bypassed"], 8);
    let line = world.proxy.logs("forwarded unguarded").await;
    assert_eq!((&line["level"], &line["route"], &line["key"]), (&"WARN".into(), &"pay".into(), &"a-key-th".into()));
    is_unavailable(&world.post("/reject").key("k-1").send().await);
    let invalid = world.pay("a,b").send().await;
    assert_eq!((invalid.outcome().1, invalid.told()), ("key-invalid".to_owned(), Some("rejected")));
    assert_eq!(world.upstream.calls(), 9);
    wire.mend();
    is_ready(&world).await;
    assert_eq!(world.pay("before").send().await.comparable(), before.replayed());
    let first = world.pay("k-1").send().await;
    assert_eq!(first.told(), Some("executed"));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
}

#[tokio::test]
async fn what_becomes_of_a_bypassed_request_is_told_as_such() {
    let (world, wire) = away(|setup| setup).await;
    wire.cut();
    world.upstream.then(Answer::close());
    let broken = world.pay("k-1").send().await;
    assert_eq!((broken.outcome(), broken.told()), ((502, "upstream-broken".to_owned()), Some("bypassed")));
    world.upstream.then(Answer::status(200).body("x".repeat(3 << 20)));
    let large = world.pay("k-2").send().await;
    assert_eq!((large.status, large.told(), large.body.len()), (200, Some("bypassed"), 3 << 20));
}

#[tokio::test]
async fn without_a_lease_too_requests_are_forwarded_unguarded() {
    let (world, wire) = away(Setup::short_leases).await;
    wire.cut();
    eventually(PATIENCE, async || {
        let (_, told) = world.proxy.readyz().await;
        (told["lease"]["held"] == false).then_some(())
    })
    .await;
    is_bypassed(&world.pay("k-1").send().await, 1);
    is_unavailable(&world.post("/reject").key("k-1").send().await);
    wire.mend();
    is_ready(&world).await;
    is_stored(&world, "k-1", "effect 1").await;
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn without_a_lease_nothing_is_bypassed_as_long_as_the_store_answers() {
    let (world, _wire) = away(Setup::short_leases).await;
    // No lease is renewed any more, and all else is as it was.
    world.store.tamper("alter table oncegate.instances add constraint full_up check (false) not valid").await;
    eventually(PATIENCE, async || {
        let (_, told) = world.proxy.readyz().await;
        (told["lease"]["held"] == false).then_some(())
    })
    .await;
    is_unavailable(&world.pay("k-1").send().await);
    assert_eq!(world.upstream.calls(), 0);
    world.store.tamper("alter table oncegate.instances drop constraint full_up").await;
    is_ready(&world).await;
    assert_eq!(world.pay("k-1").send().await.told(), Some("executed"));
}

#[tokio::test]
async fn somebody_who_is_known_to_have_the_key_is_never_bypassed() {
    let (world, _wire) = away(|setup| setup).await;
    let other = world.setup.start().await;
    let first = world.pay("k-1").send().await;
    let request = || other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#);
    // Who has the key is seen without this column, and what became of it is not.
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
async fn an_end_that_cannot_be_stored_yet_is_told_from_here() {
    let (world, wire) = away(|setup| setup).await;
    let mut firsts = Vec::new();
    for path in ["/pay", "/reject"] {
        for (key, answer) in [("completed", Answer::status(201)), ("unknown", Answer::close())] {
            let hold = Hold::new();
            world.upstream.then(answer.hold(&hold));
            let request = world.post(path).key(key).json(r#"{"amount":10}"#);
            let first = request.spawn();
            world.upstream.has_executed(firsts.len() + 1).await;
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
            assert_eq!((first.status, first.told()), (201, Some("unstored")));
            assert_eq!((again.told(), again.is_replay(), &again.body), (Some("unstored"), true, &first.body));
            assert_eq!(again.field("idempotency-key-expires"), None, "nobody keeps it yet");
        } else {
            assert_eq!(first.outcome(), (502, "upstream-broken".to_owned()));
            assert_eq!(again.outcome(), (409, "outcome-unknown".to_owned()));
        }
    }
    wire.mend();
    has_kept(&world, &["completed", "unknown", "completed", "unknown"]).await;
    is_ready(&world).await;
    assert_eq!(told[1].0.send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(told[0].0.send().await.text(), told[0].1.text());
    assert_eq!(world.upstream.calls(), 4);
}

#[tokio::test]
async fn what_was_bypassed_is_told_from_here_and_stored_when_the_store_is_back() {
    let (world, wire) = away(|setup| setup).await;
    wire.cut();
    world.upstream.answers(Answer::status(201));
    is_bypassed(&world.pay("completed").send().await, 1);
    let again = world.pay("completed").send().await;
    assert_eq!((again.told(), again.text(), again.is_replay()), (Some("unstored"), "effect 1".to_owned(), true));
    assert_eq!(again.field("idempotency-key-expires"), None, "nobody keeps it yet");
    let other = world.post("/pay").key("completed").json(r#"{"amount":11}"#).send().await;
    assert_eq!(other.outcome(), (422, "key-reused".to_owned()));
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("unknown").send().await.outcome().1, "upstream-broken");
    assert_eq!(world.pay("unknown").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    world.upstream.then(Answer::status(503));
    assert_eq!(world.pay("released").send().await.told(), Some("bypassed"));
    is_bypassed(&world.pay("released").send().await, 4);
    wire.mend();
    has_kept(&world, &["completed", "completed", "unknown"]).await;
    is_ready(&world).await;
    // Another instance knows it from the store.
    let other = world.setup.start().await;
    for (key, outcome) in [("completed", "effect 1"), ("released", "effect 4")] {
        is_stored(&world, key, outcome).await;
        let replay = other.post("/pay").key(key).json(r#"{"amount":10,"currency":"EUR"}"#).send().await;
        assert_eq!((replay.told(), &*replay.text()), (Some("replayed"), outcome));
    }
    assert_eq!(world.pay("unknown").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(world.upstream.calls(), 4);
}

#[tokio::test]
async fn memory_is_asked_before_anything_is_bypassed_even_when_no_heartbeat_comes() {
    let beats = "lease = { heartbeat = \"200ms\", expiry = \"60s\" }";
    let (world, wire) = away(|setup| setup.store(beats)).await;
    let first = world.pay("k-1").send().await;
    world.post("/reject").key("k-1").send().await;
    wire.cut();
    let is_silent = async || (world.post("/reject").key("k-1").send().await.status == 503).then_some(());
    eventually(PATIENCE, is_silent).await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_duplicate_of_what_runs_unguarded_here_is_not_forwarded() {
    let (world, wire) = away(|setup| setup).await;
    wire.silence();
    let hold = Hold::new();
    world.upstream.answers(Answer::status(201).hold(&hold));
    // They ask the store together, and give it up together.
    let together: Vec<_> = (0..5).map(|_| world.pay("k-1").spawn()).collect();
    world.upstream.has_executed(1).await;
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
async fn whoever_waits_for_what_runs_unguarded_gets_its_answer() {
    let waits = route("wait", "store_down = \"bypass\"\nin_flight = \"wait\"");
    let (world, wire) = away(|setup| setup.route(&waits)).await;
    wire.cut();
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let request = world.post("/wait").key("k-1");
    let first = request.spawn();
    world.upstream.has_executed(1).await;
    let second = request.spawn();
    hold.release();
    is_bypassed(&first.await.unwrap().unwrap(), 1);
    let second = second.await.unwrap().unwrap();
    assert_eq!((second.told(), &*second.text()), (Some("unstored"), "effect 1"));
}

#[tokio::test]
async fn what_was_bypassed_while_another_executed_it_is_told_as_a_discrepancy() {
    let (world, wire) = away(|setup| setup).await;
    wire.cut();
    is_bypassed(&world.pay("k-1").send().await, 1);
    let bypass = route("pay", "store_down = \"bypass\"");
    let other = Proxy::on(&world.store.url()).upstream(world.upstream.address).route(&bypass).start().await;
    let request = other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#);
    assert_eq!(request.send().await.told(), Some("executed"));
    wire.mend();
    let line = world.proxy.logs("differs from what the store has of its key").await;
    assert_eq!(line["level"], "WARN");
    is_ready(&world).await;
    is_stored(&world, "k-1", "effect 2").await;
}

#[tokio::test]
async fn a_reservation_that_commits_while_its_request_runs_unguarded_is_no_stray() {
    let (world, wire) = away(often_swept).await;
    world.upstream.answers(Answer::status(201));
    goes_silent(&world, &wire).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.has_executed(2).await;
    wire.mend();
    has_states(&world, &["in_flight"]).await;
    is_ready(&world).await;
    // Longer than it takes to find a stray: the store's timeout, and two looks.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1_500) {
        assert_eq!(world.pay("k-1").send().await.outcome(), (409, "in-flight".to_owned()));
    }
    hold.release();
    is_bypassed(&first.await.unwrap().unwrap(), 2);
    let replay = eventually(PATIENCE, async || {
        Some(world.pay("k-1").send().await).filter(|answer| answer.told() == Some("replayed"))
    });
    let replay = replay.await;
    assert_eq!((replay.told(), &*replay.text()), (Some("replayed"), "effect 2"));
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_reservation_that_commits_after_its_request_was_answered_unguarded_is_completed() {
    let (world, wire) = away(often_swept).await;
    for (number, key) in ["k-1", "k-2", "k-3"].into_iter().enumerate() {
        goes_silent(&world, &wire).await;
        is_bypassed(&world.pay(key).send().await, number + 2);
        wire.mend();
        has_states(&world, &vec!["completed"; number + 1]).await;
        is_ready(&world).await;
        let replay = world.pay(key).send().await;
        assert_eq!((replay.told(), replay.text()), (Some("replayed"), format!("effect {}", number + 2)));
    }
    assert_eq!(world.upstream.calls(), 4);
}

#[tokio::test]
async fn a_reservation_that_commits_after_its_outcome_was_lost_is_unknown() {
    let (world, wire) = away(often_swept).await;
    goes_silent(&world, &wire).await;
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("k-1").send().await.told(), Some("bypassed"));
    wire.mend();
    has_states(&world, &["unknown"]).await;
    is_ready(&world).await;
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn an_embedded_store_whose_disk_fails_is_bypassed_until_the_restart() {
    let bypass = route("pay", "store_down = \"bypass\"");
    let mut world = World::with(Store::sqlite(), |setup| setup.route(&bypass).route(&route("reject", ""))).await;
    let before = world.pay("before").send().await;
    world.proxy.loses_its_disk();
    for number in 2..10 {
        is_bypassed(&world.pay(&format!("k-{number}")).send().await, number);
    }
    assert_eq!(world.pay("k-2").send().await.told(), Some("unstored"));
    is_unavailable(&world.post("/reject").key("k-1").send().await);
    world.crash_and_restart().await;
    assert_eq!(world.pay("before").send().await.comparable(), before.replayed());
    assert_eq!(world.pay("k-2").send().await.told(), Some("executed"), "nothing of it was reserved");
}

#[tokio::test]
async fn who_is_leaving_bypasses_nothing() {
    let (world, wire) = away(|setup| setup.top("drain_timeout = \"10s\"")).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.has_executed(1).await;
    wire.silence();
    // It waits for the store when the drain begins.
    let second = world.pay("k-2").spawn();
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.proxy.signal(rustix::process::Signal::TERM);
    world.proxy.logs("draining").await;
    is_unavailable(&second.await.unwrap().unwrap());
    wire.mend();
    hold.release();
    first.await.unwrap().unwrap();
    assert_eq!(world.proxy.ended().await, Some(0));
    assert_eq!(world.upstream.calls(), 1);
}
