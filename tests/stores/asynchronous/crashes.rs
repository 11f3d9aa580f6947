//! Instances that die, drain, and share the deliveries.

use super::*;
use harness::database_link::DatabaseLink;
use harness::metrics::more_store_calls;
use harness::reload::{RELOADED, reload};
use harness::{Hold, on_both_stores};

on_both_stores!(a_dead_instances_queued_requests_are_delivered_and_its_sent_ones_held);
async fn a_dead_instances_queued_requests_are_delivered_and_its_sent_ones_held(store: Store) {
    let mut world = hasty(store, "retry = { base = \"1s\", cap = \"1s\" }").await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold)).then(trouble());
    let sent = world.accepts("sent").await;
    world.upstream.wait_for_executed(1).await;
    let queued = world.accepts("queued").await;
    world.upstream.wait_for_executed(2).await;
    operation_when(&world.proxy, &queued, "queued").await;
    world.crash_and_restart().await;
    world.operation_when(&queued, "completed").await;
    world.operation_when(&sent, "unknown").await;
    assert_eq!(operation_of(&world.pay("sent").send().await, "unknown"), sent);
    assert_eq!((world.upstream.executed_for("sent"), world.upstream.executed_for("queued")), (1, 2));
}

#[tokio::test]
async fn another_instance_delivers_requests_accepted_by_a_dead_one() {
    const KEYS: usize = 20;
    let retry = "retry = { max_attempts = 1000, base = \"4s\", cap = \"4s\" }";
    // This instance reaches no service, so it delivers nothing itself.
    let nowhere = harness::Upstream::unused_address().await;
    let store = Store::postgres().await;
    let one = later(in_haste(Proxy::on(&store.url()).upstream(nowhere)), retry).start().await;
    let mut operation_paths = Vec::new();
    for number in 0..KEYS {
        let pay = one.post("/pay").key(&format!("k-{number}")).json("{}");
        operation_paths.push(operation_path(&pay.send().await));
    }
    for operation_path in &operation_paths {
        let tried = |reply: &Value| reply["state"] == "queued" && reply["attempts"] == 1;
        eventually(TEST_TIMEOUT, async || Some(operation(&one, operation_path).await).filter(tried)).await;
    }
    one.kill9().await;
    let upstream = harness::Upstream::start().await;
    let other = later(in_haste(Proxy::on(&store.url()).upstream(upstream.address)), retry).start().await;
    for operation_path in &operation_paths {
        assert_eq!(operation_when(&other, operation_path, "completed").await["attempts"], 2);
    }
    assert!((0..KEYS).all(|number| upstream.executed_for(&format!("k-{number}")) == 1));
    assert_eq!(upstream.calls(), KEYS);
}

on_both_stores!(a_draining_instance_finishes_its_deliveries_and_starts_none);
async fn a_draining_instance_finishes_its_deliveries_and_starts_none(store: Store) {
    let renews_often = |setup: Setup| setup.store("lease = { heartbeat = \"200ms\", expiry = \"10s\" }");
    let retry = "retry = { base = \"300ms\", cap = \"300ms\" }";
    let mut world = World::with(store, |setup| later(renews_often(setup), retry)).await;
    let hold = Hold::new();
    world.upstream.then(trouble()).then(Answer::status(201).hold(&hold));
    let waits = world.accepts("waits").await;
    world.upstream.wait_for_executed(1).await;
    let running = world.accepts("runs").await;
    world.upstream.wait_for_executed(2).await;
    operation_when(&world.proxy, &waits, "queued").await;
    world.proxy.signal(rustix::process::Signal::TERM);
    world.proxy.wait_for_log("draining").await;
    // The lease is renewed during the drain, and so many times in more than the interval
    // between two looks into the queue.
    more_store_calls(&world.proxy, "renew", 7).await;
    assert_eq!(world.upstream.calls(), 2, "what was due is not begun");
    hold.release();
    assert_eq!(world.proxy.ended().await, Some(0));
    world.proxy = world.setup.start().await;
    assert_eq!(operation(&world.proxy, &running).await["state"], "completed");
    world.operation_when(&waits, "completed").await;
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn two_instances_share_deliveries_and_never_deliver_the_same_one() {
    let retry = "retry = { max_attempts = 1000, base = \"50ms\", cap = \"200ms\" }";
    let world = world(Store::postgres().await, retry).await;
    let beside = world.setup.start().await;
    world.upstream.answer_all(trouble());
    let mut operation_paths = Vec::new();
    for number in 0..60 {
        let proxy = if number % 2 == 0 { &world.proxy } else { &beside };
        let pay = proxy.post("/pay").key(&format!("k-{number}")).json("{}");
        operation_paths.push(operation_path(&pay.send().await));
    }
    world.upstream.wait_for_executed(60).await;
    world.upstream.answer_all(Answer::status(201));
    for operation_path in &operation_paths {
        operation_when(&world.proxy, operation_path, "completed").await;
    }
    let mut seen = std::collections::HashSet::new();
    for call in world.upstream.executed() {
        let attempt =
            (call.field("idempotency-key").unwrap().to_owned(), call.field("oncegate-attempt").unwrap().to_owned());
        assert!(seen.insert(attempt.clone()), "{attempt:?} was made twice");
    }
    for proxy in [&world.proxy, &beside] {
        let takes_part = |line: &Value| line["message"].as_str().is_some_and(|message| message.contains("delivered"));
        assert!(proxy.logged().iter().any(takes_part), "both have tried");
    }
}

#[tokio::test]
async fn a_running_delivery_is_not_picked_up_by_another_instance() {
    let world = world(Store::postgres().await, "").await;
    let beside = world.setup.start().await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let running = world.accepts("k-0").await;
    world.upstream.wait_for_executed(1).await;
    // Each completed delivery is a pass of one of them over all that is due.
    for number in 1..=6 {
        let proxy = if number % 2 == 0 { &world.proxy } else { &beside };
        let accepted = proxy.post("/pay").key(&format!("k-{number}")).json("{}").send().await;
        operation_when(proxy, &operation_path(&accepted), "completed").await;
    }
    hold.release();
    world.operation_when(&running, "completed").await;
    assert!((0..=6).all(|number| world.upstream.executed_for(&format!("k-{number}")) == 1));
}

on_both_stores!(accepted_requests_are_delivered_after_their_route_became_synchronous);
async fn accepted_requests_are_delivered_after_their_route_became_synchronous(store: Store) {
    let mut world = world(store, "retry = { base = \"1s\", cap = \"1s\" }").await;
    world.upstream.then(trouble());
    let operation_path = world.accepts("k-1").await;
    world.upstream.wait_for_executed(1).await;
    operation_when(&world.proxy, &operation_path, "queued").await;
    world.restart_as(|setup| setup.top(&format!("secret = \"{SECRET}\"")).route(&route("pay", ""))).await;
    world.operation_when(&operation_path, "completed").await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("replayed"));
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(a_hanging_service_does_not_delay_deliveries_to_another_service);
async fn a_hanging_service_does_not_delay_deliveries_to_another_service(store: Store) {
    let world = World::with(store, |setup| later(setup, "").route(&route("slow", "delivery = \"async\""))).await;
    let hold = Hold::new();
    world.upstream.answer_all(Answer::status(201).hold(&hold));
    let mut slow = Vec::new();
    for number in 0..70 {
        let accepted = world.post("/slow").field("Idempotency-Key", &format!("s-{number}")).send().await;
        slow.push(operation_path(&accepted));
    }
    world.upstream.wait_for_executed(48).await;
    world.upstream.answer_all(Answer::status(201));
    let quick = world.accepts("k-1").await;
    world.operation_when(&quick, "completed").await;
    assert_eq!(world.upstream.calls(), 49, "the other's share stays free");
    hold.release();
    for operation_path in &slow {
        world.operation_when(operation_path, "completed").await;
    }
}

on_both_stores!(two_hanging_services_do_not_delay_deliveries_to_a_third);
async fn two_hanging_services_do_not_delay_deliveries_to_a_third(store: Store) {
    let slow_routes = ["slow-1", "slow-2"];
    let world = World::with(store, |setup| {
        slow_routes.iter().fold(later(setup, ""), |setup, name| setup.route(&route(name, "delivery = \"async\"")))
    })
    .await;
    let hold = Hold::new();
    world.upstream.answer_all(Answer::status(201).hold(&hold));
    let mut slow = Vec::new();
    for number in 0..140 {
        let name = slow_routes[number % 2];
        let key = format!("{name}-{number}");
        let accepted = world.post(&format!("/{name}")).field("Idempotency-Key", &key).send().await;
        slow.push(operation_path(&accepted));
    }
    world.upstream.wait_for_executed(54).await;
    world.upstream.answer_all(Answer::status(201));
    for number in 0..3 {
        let quick = world.accepts(&format!("k-{number}")).await;
        world.operation_when(&quick, "completed").await;
    }
    hold.release();
    for operation_path in &slow {
        world.operation_when(operation_path, "completed").await;
    }
}

#[tokio::test]
async fn an_attempt_reserved_before_a_reload_ends_within_the_time_that_the_store_waits_for_it() {
    let store = Store::postgres().await;
    let Store::Postgres(database) = &store else { unreachable!("this test is about PostgreSQL") };
    let link = DatabaseLink::to(database).await;
    let with = |setup: Setup, timeout: &str| {
        let setup = setup.through(&link.url).store("timeout = \"10s\"");
        later(setup.defaults(&format!("upstream_timeout = \"{timeout}\"")), "")
    };
    let world = World::with(store, |setup| with(setup, "500ms")).await;
    world.upstream.answer_all(Answer::never());
    link.hold_statements("-- start_delivery");
    let operation_path = world.accepts("k-1").await;
    link.statement_held().await;
    let setup = with(Proxy::on(&world.store.url()).upstream(world.upstream.address), "10m");
    reload(&world, &setup.text(), RELOADED, 1).await;
    link.release_statements();
    let unknown = world.operation_when(&operation_path, "unknown").await;
    assert_eq!((&unknown["attempts"], world.upstream.calls()), (&serde_json::json!(1), 1));
}
