//! Jumps of the store's clock: nothing is executed twice, and no lease and no TTL ends early without notice.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use harness::fake_clock::{ClockedStore, ClockedWorld, on_both_clocks};
use harness::metrics::Metrics;
use harness::operator::Operator;
use harness::proxy::Setup;
use harness::{Answer, Hold, Proxy, Request, TEST_TIMEOUT, Upstream, eventually, route};

const HOUR: Duration = Duration::from_secs(60 * 60);

/// The words of the log line about a jump.
const NOTICE: &str = "the store's clock has jumped";

/// The time from its reservation until an attempt is quiet in [`hasty`]: the store's time and a second to send it, the
/// service's time, and a lease.
const QUIET: Duration = Duration::from_millis(1_000 + 1_000 + 500 + 1_000);

/// Each second attempt of a key, as soon as the first must be over.
const RETRYING: &str = "on_unknown = \"retry-when-quiet\"\nreconcile = { after = \"0s\" }";

/// No second attempt of a key whose outcome is unknown.
const HOLDING: &str = "reconcile = { after = \"0s\" }";

/// Short leases and passes, and attempts that must soon be over.
fn hasty(setup: Setup) -> Setup {
    passes(setup).short_leases().defaults("upstream_timeout = \"500ms\"")
}

fn passes(setup: Setup) -> Setup {
    setup.store("timeout = \"1s\"\nreap_every = \"100ms\"")
}

/// Heartbeats so far apart that none comes during a test: nobody notices the jump.
fn without_heartbeats(setup: Setup) -> Setup {
    passes(setup).store("lease = { heartbeat = \"10m\", expiry = \"20m\" }\nsweep_every = \"100ms\"")
}

/// Repeats a check for that long.
async fn throughout(time: Duration, mut check: impl AsyncFnMut()) {
    let begun = Instant::now();
    eventually(TEST_TIMEOUT, async || {
        check().await;
        (begun.elapsed() >= time).then_some(())
    })
    .await;
}

/// Sends the request until its answer is another one, and returns the time when it was.
async fn answers_until_changed(request: &Request, refused: &str) -> Instant {
    eventually(TEST_TIMEOUT, async || {
        let answer = request.send().await;
        (answer.outcome().1 != refused).then(Instant::now)
    })
    .await
}

/// The store's clock as `/readyz` shows it.
async fn clock_status(proxy: &Proxy) -> Value {
    let (status, ready) = proxy.readyz().await;
    assert_eq!(status, 200, "a jump is no reason to send requests elsewhere: {ready}");
    ready["store"]["clock"].clone()
}

async fn jumps(proxy: &Proxy, direction: &str) -> f64 {
    Metrics::of(proxy).await.get(&format!("oncegate_store_clock_jumps_total{{direction=\"{direction}\"}}"))
}

/// The key's state in the store: an instance does not ask it about attempts of its own.
async fn stored_state(proxy: &Proxy, key: &str) -> String {
    let keys = Operator::of(proxy).keys(&format!("key={key}")).await;
    keys[0]["state"].as_str().unwrap().to_owned()
}

fn pay(proxy: &Proxy, key: &str) -> Request {
    proxy.post("/pay").key(key).json(r#"{"amount":10,"currency":"EUR"}"#)
}

on_both_clocks!(a_running_attempt_stays_in_flight_when_the_clock_jumps_an_hour_forward);
async fn a_running_attempt_stays_in_flight_when_the_clock_jumps_an_hour_forward(store: ClockedStore) {
    let lines = format!("{RETRYING}\nupstream_timeout = \"10s\"");
    let ClockedWorld { world, clock, .. } = &store.world(|setup| hasty(setup).route(&route("pay", &lines))).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    clock.set_forward(HOUR);
    world.proxy.wait_for_log(NOTICE).await;
    // Many passes of the sweeper.
    throughout(Duration::from_secs(2), async || {
        assert_eq!(world.pay("k-1").send().await.outcome(), (409, "in-flight".to_owned()));
        assert_eq!(stored_state(&world.proxy, "k-1").await, "in_flight");
    })
    .await;
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.status, first.oncegate_status()), (201, Some("executed")));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

on_both_clocks!(a_jump_is_logged_counted_and_shown_once);
async fn a_jump_is_logged_counted_and_shown_once(store: ClockedStore) {
    let ClockedWorld { world, clock, .. } = &store.world(|setup| hasty(setup).route(&route("pay", RETRYING))).await;
    let status = clock_status(&world.proxy).await;
    assert_eq!((&status["last_jump_ms"], &status["tasks_suspended"]), (&Value::Null, &json!(false)));
    assert_eq!((jumps(&world.proxy, "forward").await, jumps(&world.proxy, "backward").await), (0.0, 0.0));
    clock.set_forward(HOUR);
    let line = world.proxy.wait_for_log(NOTICE).await;
    assert_eq!((&line["level"], &line["direction"]), (&json!("WARN"), &json!("forward")));
    let by_ms = line["by_ms"].as_i64().unwrap();
    assert!((by_ms - 3_600_000).abs() < 1_000, "{line}");
    let status = clock_status(&world.proxy).await;
    assert_eq!((&status["last_jump_ms"], &status["tasks_suspended"]), (&json!(by_ms), &json!(true)));
    eventually(TEST_TIMEOUT, async || {
        let status = clock_status(&world.proxy).await;
        (status["tasks_suspended"] == false).then_some(status["watched_for_ms"].as_u64().unwrap())
    })
    .await;
    assert_eq!(world.proxy.logged().iter().filter(|line| line.to_string().contains(NOTICE)).count(), 1);
    clock.set_back(HOUR);
    world.proxy.wait_for_logs(NOTICE, 2).await;
    assert_eq!((jumps(&world.proxy, "forward").await, jumps(&world.proxy, "backward").await), (1.0, 1.0));
    assert!(clock_status(&world.proxy).await["last_jump_ms"].as_i64().unwrap() < -3_590_000);
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"), "requests go on");
}

on_both_clocks!(a_jump_makes_no_unknown_attempt_quiet);
async fn a_jump_makes_no_unknown_attempt_quiet(store: ClockedStore) {
    let ClockedWorld { world, clock, .. } = &store.world(|setup| hasty(setup).route(&route("pay", RETRYING))).await;
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("k-1").send().await.outcome(), (502, "upstream-broken".to_owned()));
    clock.set_forward(HOUR);
    world.proxy.wait_for_log(NOTICE).await;
    let noticed = Instant::now();
    let retried = answers_until_changed(&world.pay("k-1"), "outcome-unknown").await;
    assert!(retried - noticed >= QUIET - Duration::from_millis(500), "{:?}", retried - noticed);
    assert_eq!(world.upstream.calls(), 2);
}

on_both_clocks!(an_instance_that_starts_after_a_jump_watches_the_clock_before_it_believes_it);
async fn an_instance_that_starts_after_a_jump_watches_the_clock_before_it_believes_it(store: ClockedStore) {
    let mut clocked = store.world(|setup| hasty(setup).route(&route("pay", RETRYING))).await;
    clocked.world.upstream.then(Answer::never());
    let _first = clocked.world.pay("k-1").spawn();
    clocked.world.upstream.wait_for_executed(1).await;
    clocked.world.proxy.kill9().await;
    clocked.clock.set_forward(HOUR);
    clocked.world.proxy = clocked.world.setup.start().await;
    let started = Instant::now();
    let ClockedWorld { world, .. } = &clocked;
    answers_until_changed(&world.pay("k-1"), "in-flight").await;
    let retried = answers_until_changed(&world.pay("k-1"), "outcome-unknown").await;
    assert!(retried - started >= QUIET - Duration::from_millis(500), "{:?}", retried - started);
    assert_eq!(world.upstream.calls(), 2);
    assert!(world.proxy.logged().iter().all(|line| !line.to_string().contains(NOTICE)), "it has seen none");
}

on_both_clocks!(before_the_next_heartbeat_a_jump_ends_nothing_either);
async fn before_the_next_heartbeat_a_jump_ends_nothing_either(store: ClockedStore) {
    let quick = format!("{RETRYING}\nupstream_timeout = \"500ms\"\nttl = \"30m\"");
    let slow = "upstream_timeout = \"10s\"";
    let ClockedWorld { world, clock, .. } =
        &store.world(|setup| without_heartbeats(setup).route(&route("pay", &quick)).route(&route("slow", slow))).await;
    let completed = world.pay("completed").send().await;
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("unknown").send().await.outcome(), (502, "upstream-broken".to_owned()));
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let running = world.post("/slow").key("running");
    let first = running.spawn();
    world.upstream.wait_for_executed(3).await;
    let operator = Operator::of(&world.proxy);
    let unknown = operator.id_when("unknown", "unknown").await;
    clock.set_forward(HOUR);
    let (status, refused) = operator.resolve(&unknown, json!({ "outcome": "not_executed" })).await;
    assert_eq!((status, &refused["code"]), (409, &json!("not-quiet")), "{refused}");
    throughout(Duration::from_secs(1), async || {
        assert_eq!(world.pay("completed").send().await.comparable(), completed.replayed());
        assert_eq!(world.pay("unknown").send().await.outcome(), (409, "outcome-unknown".to_owned()));
        assert_eq!(running.send().await.outcome(), (409, "in-flight".to_owned()));
        assert_eq!(stored_state(&world.proxy, "running").await, "in_flight");
    })
    .await;
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 3);
    assert!(world.proxy.logged().iter().all(|line| !line.to_string().contains(NOTICE)), "no heartbeat has come");
}

on_both_clocks!(a_ttl_that_a_jump_has_ended_gets_the_skipped_time_back_after_a_restart_too);
async fn a_ttl_that_a_jump_has_ended_gets_the_skipped_time_back_after_a_restart_too(store: ClockedStore) {
    let lines = format!("{RETRYING}\nttl = \"30m\"");
    // The cache would answer for the store.
    let mut clocked =
        store.world(|setup| hasty(setup).top("cache = { memory = \"0B\" }").route(&route("pay", &lines))).await;
    let first = clocked.world.pay("k-1").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    clocked.clock.set_forward(HOUR);
    clocked.world.proxy.wait_for_log(NOTICE).await;
    for _ in 0..2 {
        // Longer than the tasks are suspended.
        throughout(QUIET + Duration::from_secs(1), async || {
            assert_eq!(clocked.world.pay("k-1").send().await.comparable(), first.replayed());
        })
        .await;
        clocked.world.crash_and_restart().await;
    }
    assert_eq!(clocked.world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(clocked.world.upstream.calls(), 1);
}

on_both_clocks!(a_ttl_that_begins_and_ends_after_a_jump_ends_in_time);
async fn a_ttl_that_begins_and_ends_after_a_jump_ends_in_time(store: ClockedStore) {
    let ClockedWorld { world, clock, .. } = &store.world(|setup| hasty(setup).defaults("ttl = \"1s\"")).await;
    clock.set_forward(HOUR);
    world.proxy.wait_for_log(NOTICE).await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    eventually(TEST_TIMEOUT, async || {
        (world.pay("k-1").send().await.oncegate_status() == Some("executed")).then_some(())
    })
    .await;
    assert!(clock_status(&world.proxy).await["tasks_suspended"] == true);
}

on_both_clocks!(no_service_is_asked_about_an_attempt_that_is_quiet_by_a_jump_alone);
async fn no_service_is_asked_about_an_attempt_that_is_quiet_by_a_jump_alone(store: ClockedStore) {
    let lookup = Upstream::start().await;
    lookup.answer_all(Answer::status(404));
    let url = format!("http://{}/lookup?key={{key}}", lookup.address);
    let lines = format!("reconcile = {{ url = \"{url}\", after = \"0s\", every = \"200ms\" }}");
    let ClockedWorld { world, clock, .. } = &store.world(|setup| hasty(setup).route(&route("pay", &lines))).await;
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("k-1").send().await.outcome(), (502, "upstream-broken".to_owned()));
    clock.set_forward(HOUR);
    world.proxy.wait_for_log(NOTICE).await;
    let noticed = Instant::now();
    let operator = Operator::of(&world.proxy);
    let id = operator.id_when("k-1", "unknown").await;
    let (status, refused) = operator.resolve(&id, json!({ "outcome": "not_executed" })).await;
    assert_eq!((status, &refused["code"]), (409, &json!("not-quiet")), "{refused}");
    lookup.wait_for_executed(1).await;
    let asked = lookup.executed()[0].at - noticed;
    assert!(asked >= QUIET - Duration::from_millis(500), "{asked:?}");
    answers_until_changed(&world.pay("k-1"), "outcome-unknown").await;
    assert_eq!(world.upstream.calls(), 2, "it was not executed, and its retry is");
}

on_both_clocks!(a_jump_makes_no_delivery_quiet_and_none_too_old);
async fn a_jump_makes_no_delivery_quiet_and_none_too_old(store: ClockedStore) {
    let retry = "delivery = \"async\"\nretry = { base = \"50ms\", give_up_after = \"30m\" }";
    let lines = format!("{retry}\n{RETRYING}");
    let ClockedWorld { world, clock, .. } = &store
        .world(|setup| hasty(setup).top("secret = \"a secret of some length\"").route(&route("pay", &lines)))
        .await;
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("k-1").send().await.status, 202);
    let operator = Operator::of(&world.proxy);
    operator.id_when("k-1", "unknown").await;
    clock.set_forward(HOUR);
    world.proxy.wait_for_log(NOTICE).await;
    let noticed = Instant::now();
    operator.id_when("k-1", "completed").await;
    let calls = world.upstream.executed();
    let delivered = calls[1].at - noticed;
    assert!(delivered >= QUIET - Duration::from_millis(500), "{delivered:?}");
    assert_eq!(calls.len(), 2);
}

#[tokio::test]
async fn after_a_jump_the_attempts_of_a_dead_instance_are_swept_once_they_must_be_over() {
    let Some(store) = ClockedStore::postgres().await else { return };
    let ClockedWorld { world, clock, .. } = &store.world(|setup| hasty(setup).route(&route("pay", RETRYING))).await;
    let other = world.setup.start().await;
    world.upstream.then(Answer::never());
    let _first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    world.proxy.kill9().await;
    clock.set_forward(HOUR);
    other.wait_for_log(NOTICE).await;
    let noticed = Instant::now();
    let swept = answers_until_changed(&pay(&other, "k-1"), "in-flight").await;
    assert!(swept - noticed >= QUIET - Duration::from_millis(500), "{:?}", swept - noticed);
    other.wait_for_log("its outcome is unknown").await;
    answers_until_changed(&pay(&other, "k-1"), "outcome-unknown").await;
    assert_eq!((world.upstream.calls(), stored_state(&other, "k-1").await), (2, "completed".to_owned()));
}

#[tokio::test]
async fn after_a_jump_backward_the_attempts_of_a_dead_instance_are_swept_within_seconds_and_no_others() {
    let Some(store) = ClockedStore::postgres().await else { return };
    let slow = format!("{RETRYING}\nupstream_timeout = \"5s\"");
    let ClockedWorld { world, clock, .. } =
        &store.world(|setup| hasty(setup).route(&route("pay", HOLDING)).route(&route("slow", &slow))).await;
    let other = world.setup.start().await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let alive = other.post("/slow").key("alive");
    let alive_first = alive.spawn();
    world.upstream.wait_for_executed(1).await;
    world.upstream.then(Answer::never());
    let _first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(2).await;
    world.proxy.kill9().await;
    clock.set_back(HOUR);
    let line = other.wait_for_log(NOTICE).await;
    assert_eq!(line["direction"], "backward", "{line}");
    throughout(Duration::from_secs(2), async || {
        assert_eq!(alive.send().await.outcome(), (409, "in-flight".to_owned()));
        assert_eq!(stored_state(&other, "alive").await, "in_flight");
    })
    .await;
    hold.release();
    assert_eq!(alive_first.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    // Its lease ends in an hour by the store's clock.
    answers_until_changed(&pay(&other, "k-1"), "in-flight").await;
    assert_eq!(pay(&other, "k-1").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(world.upstream.calls(), 2);
}
