//! `store_down = "bypass"`: what is forwarded unguarded, and what becomes of a reservation that was made all the same.

use std::time::Duration;

use tokio::time::Instant;

use crate::harness::relay::{Relay, remote};
use crate::harness::{Answer, Hold, PATIENCE, Response, Setup, Store, World, eventually, route};
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
        is_bypassed(&world.pay("a-key-that-is-long").send().await, number);
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
    assert_eq!(world.pay("k-1").send().await.told(), Some("executed"), "nothing of it was ever reserved");
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
    let replay =
        eventually(PATIENCE, async || Some(world.pay("k-1").send().await).filter(|answer| answer.status != 409));
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
        is_bypassed(&world.pay("k-1").send().await, number);
    }
    is_unavailable(&world.post("/reject").key("k-1").send().await);
    world.crash_and_restart().await;
    assert_eq!(world.pay("before").send().await.comparable(), before.replayed());
    assert_eq!(world.pay("k-1").send().await.told(), Some("executed"), "nothing of it was reserved");
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
