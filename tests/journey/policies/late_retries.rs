//! Retries after the TTL.

use std::time::{Duration, SystemTime};

use harness::operator::Operator;
use harness::{Store, TEST_TIMEOUT, World, eventually, on_both_stores};

/// A world that refuses late retries and reaps at this interval.
async fn refusing(store: Store, remember: &str, reap_every: &str) -> World {
    World::with(store, |setup| {
        let setup = setup.store(&format!("reap_every = \"{reap_every}\""));
        setup.defaults(&format!("ttl = \"1s\"\nafter_ttl = \"refuse\"\nremember = \"{remember}\""))
    })
    .await
}

async fn expires(world: &World, key: &str) {
    let late =
        eventually(TEST_TIMEOUT, async || Some(world.pay(key).send().await).filter(|late| !late.is_replay())).await;
    assert_eq!((late.outcome(), late.oncegate_status()), ((410, "key-expired".to_owned()), Some("rejected")));
    assert_eq!((late.problem()["retry"].as_str(), late.field("idempotency-key")), (Some("new_key"), Some(key)));
    let other = world.pay(key).body("something else").send().await;
    assert_eq!(other.outcome(), (410, "key-expired".to_owned()), "whatever it asks for");
}

on_both_stores!(a_late_retry_is_refused_before_the_reaper_has_come);
async fn a_late_retry_is_refused_before_the_reaper_has_come(store: Store) {
    let world = refusing(store, "30d", "1h").await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    expires(&world, "k-1").await;
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(a_late_retry_is_refused_after_the_reaper_has_come);
async fn a_late_retry_is_refused_after_the_reaper_has_come(store: Store) {
    let mut world = refusing(store, "30d", "100ms").await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    expires(&world, "k-1").await;
    let id = Operator::of(&world.proxy).id_when("k-1", "expired").await;
    let shown = Operator::of(&world.proxy).get(&format!("/api/v1/keys/{id}")).await.1;
    assert_eq!(shown["timeline"][0]["state"], "completed", "its attempt was: {shown}");
    expires(&world, "k-1").await;
    world.crash_and_restart().await;
    expires(&world, "k-1").await;
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(an_expired_key_is_forgotten_in_the_end);
async fn an_expired_key_is_forgotten_in_the_end(store: Store) {
    let world = refusing(store, "2s", "100ms").await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    expires(&world, "k-1").await;
    let new =
        eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|new| new.status != 410)).await;
    assert_eq!((new.oncegate_status(), &*new.text()), (Some("executed"), "effect 2"));
    assert_eq!(world.upstream.last().field("oncegate-attempt"), Some("1"), "a new life begins");
}

on_both_stores!(an_expired_key_is_forgotten_in_the_end_without_a_reaper);
async fn an_expired_key_is_forgotten_in_the_end_without_a_reaper(store: Store) {
    let world = refusing(store, "1s", "1h").await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    expires(&world, "k-1").await;
    let new =
        eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|new| new.status != 410)).await;
    assert_eq!(new.oncegate_status(), Some("executed"));
}

fn ago(seconds: u64) -> String {
    httpdate::fmt_http_date(SystemTime::now() - Duration::from_secs(seconds))
}

#[tokio::test]
async fn a_request_past_the_age_limit_is_refused() {
    let world = World::guarding(Store::sqlite(), "max_age = \"1h\"").await;
    for name in ["Repeatability-First-Sent", "Date"] {
        let old = world.pay("k-1").field(name, &ago(3_700)).send().await;
        assert_eq!((old.outcome(), old.oncegate_status()), ((400, "request-too-old".to_owned()), Some("rejected")));
        assert_eq!(old.problem()["retry"], "fix");
        for nonsense in ["yesterday", "", "2026-01-01T00:00:00Z", "\u{e9}"] {
            let refusal = world.pay("k-1").field(name, nonsense).send().await;
            assert_eq!(refusal.outcome(), (400, "bad-request".to_owned()), "{name}: {nonsense}");
        }
        assert_eq!(world.upstream.calls(), 0);
    }
    let sent = |name: &str, when: String| world.pay("k-1").field(name, &when);
    assert_eq!(sent("Repeatability-First-Sent", ago(3_000)).send().await.oncegate_status(), Some("executed"));
    assert_eq!(sent("Date", ago(3_000)).send().await.oncegate_status(), Some("replayed"));
    assert_eq!(
        sent("Date", ago(4_000)).field("Repeatability-First-Sent", &ago(0)).send().await.oncegate_status(),
        Some("replayed")
    );
    // A stored key is answered whatever its retry says.
    let late = || sent("Date", ago(0)).field("Repeatability-First-Sent", &ago(4_000));
    assert_eq!(late().send().await.oncegate_status(), Some("replayed"));
    assert_eq!(late().body("else").send().await.outcome(), (422, "key-reused".to_owned()));
    let new = world.pay("k-2").field("Date", &ago(0)).field("Repeatability-First-Sent", &ago(4_000));
    assert_eq!(new.send().await.status, 400);
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("replayed"), "who says nothing is not asked");
}

#[tokio::test]
async fn without_an_age_limit_any_age_is_accepted() {
    let world = World::start(Store::sqlite()).await;
    assert_eq!(world.pay("k-1").field("Date", &ago(1_000_000)).send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("k-1").field("Date", "yesterday").send().await.oncegate_status(), Some("replayed"));
}
