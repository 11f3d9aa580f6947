//! The time for which a key is remembered.

use harness::{Answer, Store, TEST_TIMEOUT, World, eventually, on_both_stores};

/// A world with a TTL of one second and no reaper.
async fn brief(store: Store) -> World {
    World::with(store, |setup| setup.defaults("ttl = \"1s\"").store("reap_every = \"1h\"")).await
}

on_both_stores!(a_key_past_its_ttl_is_executed_again);
async fn a_key_past_its_ttl_is_executed_again(store: Store) {
    let world = brief(store).await;
    let first = world.pay("k-1").send().await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    let second =
        eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|answer| !answer.is_replay()))
            .await;
    assert_eq!((second.oncegate_status(), &*second.text()), (Some("executed"), "effect 2"));
    assert_eq!(world.upstream.last().field("oncegate-attempt"), Some("1"), "a new life begins");
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(a_key_past_its_ttl_is_free_for_a_different_request);
async fn a_key_past_its_ttl_is_free_for_a_different_request(store: Store) {
    let world = brief(store).await;
    world.pay("k-1").send().await;
    let other = world.pay("k-1").body("something else");
    assert_eq!(other.send().await.status, 422);
    let second =
        eventually(TEST_TIMEOUT, async || Some(other.send().await).filter(|answer| answer.status != 422)).await;
    assert_eq!(second.oncegate_status(), Some("executed"));
}

on_both_stores!(reaping_forgets_completed_keys_and_keeps_unknown_ones);
async fn reaping_forgets_completed_keys_and_keeps_unknown_ones(store: Store) {
    let world = World::with(store, |setup| setup.defaults("ttl = \"1s\"").store("reap_every = \"200ms\"")).await;
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("unknown").send().await.oncegate_status(), Some("unknown"));
    assert_eq!(world.pay("completed").send().await.oncegate_status(), Some("executed"));
    let again = eventually(TEST_TIMEOUT, async || {
        Some(world.pay("completed").send().await).filter(|answer| !answer.is_replay())
    })
    .await;
    assert_eq!(again.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("unknown").send().await.outcome(), (409, "outcome-unknown".to_owned()));
}

on_both_stores!(a_restart_forgets_nothing);
async fn a_restart_forgets_nothing(store: Store) {
    let mut world = World::start(store).await;
    world.upstream.answer_all(Answer::status(201).field("X-A", "caf\u{e9}").body([0, 255, 10]));
    let first = world.pay("k-1").field("Authorization", "Bearer a").send().await;
    world.crash_and_restart().await;
    let again = world.pay("k-1").field("Authorization", "Bearer a").send().await;
    assert_eq!(again.comparable(), first.replayed());
    assert_eq!(again.field("idempotency-key-expires"), first.field("idempotency-key-expires"));
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(a_released_key_is_forgotten_after_its_ttl);
async fn a_released_key_is_forgotten_after_its_ttl(store: Store) {
    let world = brief(store).await;
    world.upstream.then(Answer::status(500));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("released"));
    let other = world.pay("k-1").body("something else");
    assert_eq!(other.send().await.status, 422);
    let second =
        eventually(TEST_TIMEOUT, async || Some(other.send().await).filter(|answer| answer.status != 422)).await;
    assert_eq!(second.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.last().field("oncegate-attempt"), Some("1"), "a new life begins");
}
