//! Instances that die, stop and share the work.

use super::*;
use crate::harness::{Hold, on_both_stores};

on_both_stores!(what_was_queued_when_an_instance_died_is_delivered_and_what_was_sent_is_held);
async fn what_was_queued_when_an_instance_died_is_delivered_and_what_was_sent_is_held(store: Store) {
    let mut world = hasty(store, "retry = { base = \"1s\", cap = \"1s\" }").await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold)).then(trouble());
    let sent = world.accepts("sent").await;
    world.upstream.has_executed(1).await;
    let queued = world.accepts("queued").await;
    world.upstream.has_executed(2).await;
    operation_when(&world.proxy, &queued, "queued").await;
    world.crash_and_restart().await;
    world.operation_when(&queued, "completed").await;
    world.operation_when(&sent, "unknown").await;
    assert_eq!(place(&world.pay("sent").send().await), sent);
    assert_eq!((world.upstream.executed_for("sent"), world.upstream.executed_for("queued")), (1, 2));
}

#[tokio::test]
async fn another_instance_delivers_what_one_that_died_has_accepted() {
    const KEYS: usize = 20;
    let retry = "retry = { max_attempts = 1000, base = \"4s\", cap = \"4s\" }";
    // It reaches nobody, so that it delivers nothing itself.
    let nowhere = crate::harness::Upstream::nowhere().await;
    let store = Store::postgres().await;
    let one = later(in_haste(Proxy::on(&store.url()).upstream(nowhere)), retry).start().await;
    let mut places = Vec::new();
    for number in 0..KEYS {
        let pay = one.post("/pay").key(&format!("k-{number}")).json("{}");
        places.push(place(&pay.send().await));
    }
    for place in &places {
        let tried = |told: &Value| told["state"] == "queued" && told["attempts"] == 1;
        eventually(PATIENCE, async || Some(operation(&one, place).await).filter(tried)).await;
    }
    one.kill9().await;
    let upstream = crate::harness::Upstream::start().await;
    let other = later(in_haste(Proxy::on(&store.url()).upstream(upstream.address)), retry).start().await;
    for place in &places {
        assert_eq!(operation_when(&other, place, "completed").await["attempts"], 2);
    }
    assert!((0..KEYS).all(|number| upstream.executed_for(&format!("k-{number}")) == 1));
    assert_eq!(upstream.calls(), KEYS);
}

on_both_stores!(told_to_stop_an_instance_finishes_what_it_delivers_and_begins_nothing);
async fn told_to_stop_an_instance_finishes_what_it_delivers_and_begins_nothing(store: Store) {
    let mut world = world(store, "retry = { base = \"300ms\", cap = \"300ms\" }").await;
    let hold = Hold::new();
    world.upstream.then(trouble()).then(Answer::status(201).hold(&hold));
    let waits = world.accepts("waits").await;
    world.upstream.has_executed(1).await;
    let running = world.accepts("runs").await;
    world.upstream.has_executed(2).await;
    operation_when(&world.proxy, &waits, "queued").await;
    world.proxy.signal(rustix::process::Signal::TERM);
    world.proxy.logs("draining").await;
    tokio::time::sleep(LOOKS).await;
    assert_eq!(world.upstream.calls(), 2, "what was due is not begun");
    hold.release();
    assert_eq!(world.proxy.ended().await, Some(0));
    world.proxy = world.setup.start().await;
    assert_eq!(operation(&world.proxy, &running).await["state"], "completed");
    world.operation_when(&waits, "completed").await;
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn two_instances_share_the_work_and_never_a_request() {
    let retry = "retry = { max_attempts = 1000, base = \"50ms\", cap = \"200ms\" }";
    let world = world(Store::postgres().await, retry).await;
    let beside = world.setup.start().await;
    world.upstream.answers(trouble());
    let mut places = Vec::new();
    for number in 0..60 {
        let proxy = if number % 2 == 0 { &world.proxy } else { &beside };
        let pay = proxy.post("/pay").key(&format!("k-{number}")).json("{}");
        places.push(place(&pay.send().await));
    }
    world.upstream.has_executed(60).await;
    world.upstream.answers(Answer::status(201));
    for place in &places {
        operation_when(&world.proxy, place, "completed").await;
    }
    let mut seen = std::collections::HashSet::new();
    for call in world.upstream.executed() {
        let attempt =
            (call.field("idempotency-key").unwrap().to_owned(), call.field("oncegate-attempt").unwrap().to_owned());
        assert!(seen.insert(attempt.clone()), "{attempt:?} was made twice");
    }
    for proxy in [&world.proxy, &beside] {
        let takes_part = |line: &Value| line["message"].as_str().is_some_and(|said| said.contains("delivered"));
        assert!(proxy.logged().iter().any(takes_part), "both have tried");
    }
}

on_both_stores!(what_a_route_accepted_is_delivered_after_it_is_asynchronous_no_more);
async fn what_a_route_accepted_is_delivered_after_it_is_asynchronous_no_more(store: Store) {
    let mut world = world(store, "retry = { base = \"1s\", cap = \"1s\" }").await;
    world.upstream.then(trouble());
    let place = world.accepts("k-1").await;
    world.upstream.has_executed(1).await;
    operation_when(&world.proxy, &place, "queued").await;
    world.restart_as(|setup| setup.top(&format!("secret = \"{SECRET}\"")).route(&route("pay", ""))).await;
    world.operation_when(&place, "completed").await;
    assert_eq!(world.pay("k-1").send().await.told(), Some("replayed"));
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(a_service_that_hangs_does_not_keep_what_was_accepted_for_another);
async fn a_service_that_hangs_does_not_keep_what_was_accepted_for_another(store: Store) {
    let world = World::with(store, |setup| later(setup, "").route(&route("slow", "delivery = \"async\""))).await;
    let hold = Hold::new();
    world.upstream.answers(Answer::status(201).hold(&hold));
    let mut slow = Vec::new();
    for number in 0..70 {
        let accepted = world.post("/slow").field("Idempotency-Key", &format!("s-{number}")).send().await;
        slow.push(place(&accepted));
    }
    world.upstream.has_executed(32).await;
    world.upstream.answers(Answer::status(201));
    let quick = world.accepts("k-1").await;
    world.operation_when(&quick, "completed").await;
    assert_eq!(world.upstream.calls(), 33, "half of what runs at once is the other's");
    hold.release();
    for place in &slow {
        world.operation_when(place, "completed").await;
    }
}
