//! Why an outcome is unknown, and what happened to a key before.

use serde_json::{Value, json};

use harness::metrics::Metrics;
use harness::operator::{Operator, keys, not_executed};
use harness::{Answer, Hold, Store, TEST_TIMEOUT, World, eventually, on_both_stores, route};

/// Waits for the log line of the request with this key.
async fn request_line(world: &World, key: &str) -> Value {
    let line =
        async || world.proxy.logged().into_iter().find(|line| line["message"] == "request" && line["key"] == key);
    eventually(TEST_TIMEOUT, line).await
}

on_both_stores!(the_cause_of_an_unknown_outcome_is_told_by_the_api_the_log_the_metrics_and_the_command);
async fn the_cause_of_an_unknown_outcome_is_told_by_the_api_the_log_the_metrics_and_the_command(store: Store) {
    let lines = "unknown_statuses = [\"500\"]\nrelease_statuses = [\"503\"]\nupstream_timeout = \"700ms\"";
    let world = World::with(store, |setup| setup.route(&route("pay", lines))).await;
    let operator = Operator::of(&world.proxy);
    let directed = || Answer::status(201).field("Oncegate-Decision", "unknown");
    for (key, answer, cause) in [
        ("k-1", Answer::close(), "broken"),
        ("k-2", Answer::never(), "timeout"),
        ("k-3", Answer::status(500), "status:500"),
        ("k-4", directed(), "service"),
        ("k-5", Answer::status(201).body("cut").cut_after(1), "broken"),
    ] {
        world.upstream.then(answer);
        world.pay(key).send().await;
        let id = operator.id_when(key, "unknown").await;
        let (_, shown) = operator.get(&format!("/api/v1/keys/{id}")).await;
        assert_eq!(shown["cause"], cause, "{key}");
        let [attempt] = shown["timeline"].as_array().unwrap().as_slice() else { panic!("{shown}") };
        assert_eq!((&attempt["event"], &attempt["attempt"]), (&json!("attempt"), &json!(1)));
        assert_eq!((&attempt["state"], &attempt["cause"]), (&json!("unknown"), &json!(cause)));
        assert!(attempt["duration_ms"].is_u64() && attempt["instance"] == shown["instance"], "{attempt}");
        let line = request_line(&world, key).await;
        assert_eq!((&line["record"], &line["cause"]), (&json!(id), &json!(cause)), "{line}");
        assert_eq!(line["path"], "/pay");
    }
    let metrics = Metrics::of(&world.proxy).await;
    for (cause, count) in [("broken", 2.0), ("service", 1.0), ("status:500", 1.0), ("timeout", 1.0)] {
        let series = format!("oncegate_unknown_total{{route=\"pay\",cause=\"{cause}\"}}");
        assert_eq!(metrics.get(&series), count, "{cause}");
    }
    // The record's id in the log finds the key.
    let record = request_line(&world, "k-1").await["record"].as_str().unwrap().to_owned();
    let admin = world.proxy.admin.to_string();
    let shown = keys(&world.proxy.file(), &["show", &record, "--admin", &admin]).await;
    for words in ["cause           broken", "attempt 1 by instance", ": unknown after", "cause broken"] {
        assert!(shown.code == 0 && shown.out.contains(words), "{words}: {shown:?}");
    }
}

on_both_stores!(the_cause_of_an_attempt_whose_instance_died_is_crashed);
async fn the_cause_of_an_attempt_whose_instance_died_is_crashed(store: Store) {
    let mut world = World::with(store, |setup| setup.short_leases()).await;
    world.upstream.then(Answer::never());
    let _first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    world.crash_and_restart().await;
    let operator = Operator::of(&world.proxy);
    let id = operator.id_when("k-1", "unknown").await;
    assert_eq!(operator.get(&format!("/api/v1/keys/{id}")).await.1["cause"], "crashed");
}

on_both_stores!(a_keys_history_has_its_attempts_and_decisions_in_the_order_of_time);
async fn a_keys_history_has_its_attempts_and_decisions_in_the_order_of_time(store: Store) {
    let world = World::with(store, |setup| setup.route(&route("pay", "release_statuses = [\"503\"]"))).await;
    let operator = Operator::of(&world.proxy);
    world.upstream.then(Answer::status(503)).then(Answer::close());
    for _ in 0..2 {
        world.pay("k-1").send().await;
    }
    let id = operator.id_when("k-1", "unknown").await;
    assert_eq!(operator.resolve(&id, not_executed(true)).await.0, 200);
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let third = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(3).await;
    let history = async || {
        let (_, shown) = operator.get(&format!("/api/v1/keys/{id}")).await;
        assert_eq!(shown["cause"], Value::Null);
        shown["timeline"].as_array().unwrap().clone()
    };
    let running = history().await;
    let told = |event: &Value| match event["event"].as_str() {
        Some("attempt") => json!([event["attempt"], event["state"], event["cause"]]),
        _ => json!([event["action"], event["before"], event["after"]]),
    };
    let expected = |last: Value| {
        vec![
            json!([1, "retryable", null]),
            // It ended as unknown, and its record has the time of the decision since.
            json!([2, null, "broken"]),
            json!(["resolve", "unknown", "retryable"]),
            json!([3, last, null]),
        ]
    };
    assert_eq!(running.iter().map(told).collect::<Vec<_>>(), expected(json!("in_flight")));
    hold.release();
    assert_eq!(third.await.unwrap().unwrap().status, 201);
    assert_eq!(history().await.iter().map(told).collect::<Vec<_>>(), expected(json!("completed")));
}
