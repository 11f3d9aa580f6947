//! The meaning of the service's status for an attempt.

use harness::operator::Operator;
use harness::{Answer, Store, World, on_both_stores};

/// Sends the same request twice; the service answers the first with this answer, and the second with 201.
async fn twice(world: &World, key: &str, answer: Answer) -> [(u16, String); 2] {
    world.upstream.then(answer);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let response = world.pay(key).send().await;
        seen.push((response.status, response.oncegate_status().unwrap().to_owned()));
    }
    seen.try_into().unwrap()
}

fn outcomes(first: (u16, &str), second: (u16, &str)) -> [(u16, String); 2] {
    [(first.0, first.1.to_owned()), (second.0, second.1.to_owned())]
}

on_both_stores!(a_status_is_stored_released_or_leaves_the_outcome_unknown);
async fn a_status_is_stored_released_or_leaves_the_outcome_unknown(store: Store) {
    let world = World::start(store).await;
    for status in [200, 202, 301, 303, 400, 404, 409, 422] {
        let seen = twice(&world, &format!("stored-{status}"), Answer::status(status)).await;
        assert_eq!(seen, outcomes((status, "executed"), (status, "replayed")));
    }
    for status in [307, 308, 401, 403, 408, 412, 417, 423, 425, 429, 500, 501, 503, 599] {
        let seen = twice(&world, &format!("released-{status}"), Answer::status(status)).await;
        assert_eq!(seen, outcomes((status, "released"), (201, "executed")));
    }
    world.upstream.answer_all(Answer::status(201));
    for status in [424, 499, 502, 504, 520, 522, 524] {
        let key = format!("unknown-{status}");
        world.upstream.then(Answer::status(status).body("from a gateway"));
        let first = world.pay(&key).send().await;
        assert_eq!(
            (first.status, first.oncegate_status(), &*first.text()),
            (status, Some("unknown"), "from a gateway")
        );
        assert_eq!(first.field("idempotency-key-expires"), None);
        let again = world.pay(&key).send().await;
        assert_eq!((again.outcome(), again.oncegate_status()), ((409, "outcome-unknown".to_owned()), Some("unknown")));
        assert_eq!(again.field("retry-after"), None);
        assert_eq!(again.problem()["retry"], "reconcile");
    }
    assert_eq!(world.upstream.calls(), 8 + 2 * 14 + 7);
}

on_both_stores!(a_key_that_the_service_refuses_to_its_caller_is_forgotten_at_once);
async fn a_key_that_the_service_refuses_to_its_caller_is_forgotten_at_once(store: Store) {
    let world = World::start(store).await;
    let operator = Operator::of(&world.proxy);
    for status in [401, 403] {
        world.upstream.then(Answer::status(status).body("no"));
        let refused = world.pay("k-1").body("a first guess").send().await;
        assert_eq!((refused.status, refused.oncegate_status(), &*refused.text()), (status, Some("released"), "no"));
        assert_eq!(operator.keys("").await.len(), 0, "{status}");
    }
    // A released key is bound to its request, a forgotten one is not.
    let other = world.pay("k-1").body("another request").send().await;
    assert_eq!((other.status, other.oncegate_status()), (201, Some("executed")));
    assert_eq!(world.upstream.last().field("oncegate-attempt"), Some("1"));
    world.upstream.then(Answer::status(429));
    assert_eq!(world.pay("k-2").send().await.oncegate_status(), Some("released"));
    assert_eq!(operator.keys("").await.len(), 2, "other released keys are remembered");
}

#[tokio::test]
async fn a_released_response_is_the_services_own_and_has_no_expiry() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.then(Answer::status(503).field("Retry-After", "7").field("X-Reason", "busy").body("busy"));
    let first = world.pay("k-1").send().await;
    assert_eq!((first.status, &*first.text(), first.oncegate_status()), (503, "busy", Some("released")));
    assert_eq!((first.field("retry-after"), first.field("x-reason")), (Some("7"), Some("busy")));
    assert_eq!(first.field("idempotency-key-expires"), None);
    assert_eq!(first.field("idempotency-key"), Some("k-1"));
}

#[tokio::test]
async fn a_4xx_with_retry_after_is_released() {
    let world = World::start(Store::sqlite()).await;
    let seen = twice(&world, "k-1", Answer::status(409).field("Retry-After", "1")).await;
    assert_eq!(seen, outcomes((409, "released"), (201, "executed")));
    let seen = twice(&world, "k-2", Answer::status(202).field("Retry-After", "1")).await;
    assert_eq!(seen, outcomes((202, "executed"), (202, "replayed")));
}

#[tokio::test]
async fn a_routes_status_list_overrides_the_default_ones() {
    let lists =
        "store_statuses = [\"2xx\", \"500\", \"409\"]\nrelease_statuses = [\"404\"]\nunknown_statuses = [\"5xx\"]";
    let world = World::guarding(Store::sqlite(), lists).await;
    let answer = |status| Answer::status(status).field("Retry-After", "1");
    for (status, oncegate_status, then) in [
        (500, "executed", "replayed"),
        (409, "executed", "replayed"),
        (404, "released", "executed"),
        (503, "unknown", "unknown"),
        (502, "unknown", "unknown"),
    ] {
        let seen = twice(&world, &format!("k-{status}"), answer(status)).await;
        assert_eq!(seen.map(|(_, oncegate_status)| oncegate_status), [oncegate_status, then], "{status}");
        world.upstream.answer_all(Answer::default());
    }
}

on_both_stores!(the_attempt_after_a_released_one_has_a_number_and_a_token_of_its_own);
async fn the_attempt_after_a_released_one_has_a_number_and_a_token_of_its_own(store: Store) {
    let world = World::start(store).await;
    world.upstream.then(Answer::status(500)).then(Answer::status(503));
    for oncegate_status in ["released", "released", "executed", "replayed"] {
        assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some(oncegate_status));
    }
    let calls = world.upstream.executed();
    let attempts: Vec<_> = calls.iter().map(|call| call.field("oncegate-attempt").unwrap()).collect();
    assert_eq!(attempts, ["1", "2", "3"]);
    let mut tokens: Vec<_> = calls.iter().map(|call| call.field("oncegate-reservation").unwrap()).collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 3);
}
