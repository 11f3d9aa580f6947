//! Retries that come too late.

use std::time::{Duration, SystemTime};

use crate::harness::{PATIENCE, Store, World, eventually, on_both_stores};

/// A world that refuses late retries, and reaps as often as this.
async fn refusing(store: Store, remember: &str, reap_every: &str) -> World {
    World::with(store, |setup| {
        let setup = setup.store(&format!("reap_every = \"{reap_every}\""));
        setup.defaults(&format!("ttl = \"1s\"\nafter_ttl = \"refuse\"\nremember = \"{remember}\""))
    })
    .await
}

async fn expires(world: &World, key: &str) {
    let late = eventually(PATIENCE, async || Some(world.pay(key).send().await).filter(|late| !late.is_replay())).await;
    assert_eq!((late.outcome(), late.told()), ((410, "key-expired".to_owned()), Some("rejected")));
    assert_eq!((late.problem()["retry"].as_str(), late.field("idempotency-key")), (Some("new_key"), Some(key)));
    let other = world.pay(key).body("something else").send().await;
    assert_eq!(other.outcome(), (410, "key-expired".to_owned()), "whatever it asks for");
}

on_both_stores!(a_late_retry_is_refused_before_the_reaper_has_come);
async fn a_late_retry_is_refused_before_the_reaper_has_come(store: Store) {
    let world = refusing(store, "30d", "1h").await;
    assert_eq!(world.pay("k-1").send().await.told(), Some("executed"));
    expires(&world, "k-1").await;
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(a_late_retry_is_refused_after_the_reaper_has_come);
async fn a_late_retry_is_refused_after_the_reaper_has_come(store: Store) {
    let mut world = refusing(store, "30d", "100ms").await;
    assert_eq!(world.pay("k-1").send().await.told(), Some("executed"));
    expires(&world, "k-1").await;
    loop {
        // Nobody else may look into the embedded store while a proxy has it.
        world.proxy.kill9().await;
        let reaped = world.store.states().await == ["expired"];
        world.proxy = world.setup.start().await;
        expires(&world, "k-1").await;
        if reaped {
            break;
        }
    }
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(in_the_end_it_is_forgotten);
async fn in_the_end_it_is_forgotten(store: Store) {
    let world = refusing(store, "2s", "100ms").await;
    assert_eq!(world.pay("k-1").send().await.told(), Some("executed"));
    expires(&world, "k-1").await;
    let new = eventually(PATIENCE, async || Some(world.pay("k-1").send().await).filter(|new| new.status != 410)).await;
    assert_eq!((new.told(), &*new.text()), (Some("executed"), "effect 2"));
    assert_eq!(world.upstream.last().field("oncegate-attempt"), Some("1"), "a new life begins");
}

on_both_stores!(in_the_end_it_is_forgotten_though_nobody_reaps_it);
async fn in_the_end_it_is_forgotten_though_nobody_reaps_it(store: Store) {
    let world = refusing(store, "1s", "1h").await;
    assert_eq!(world.pay("k-1").send().await.told(), Some("executed"));
    expires(&world, "k-1").await;
    let new = eventually(PATIENCE, async || Some(world.pay("k-1").send().await).filter(|new| new.status != 410)).await;
    assert_eq!(new.told(), Some("executed"));
}

fn ago(seconds: u64) -> String {
    httpdate::fmt_http_date(SystemTime::now() - Duration::from_secs(seconds))
}

#[tokio::test]
async fn a_request_that_says_it_is_old_is_refused() {
    let world = World::guarding(Store::sqlite(), "max_age = \"1h\"").await;
    for name in ["Repeatability-First-Sent", "Date"] {
        let old = world.pay("k-1").field(name, &ago(3_700)).send().await;
        assert_eq!((old.outcome(), old.told()), ((400, "request-too-old".to_owned()), Some("rejected")));
        assert_eq!(old.problem()["retry"], "fix");
        for nonsense in ["yesterday", "", "2026-01-01T00:00:00Z", "\u{e9}"] {
            let refusal = world.pay("k-1").field(name, nonsense).send().await;
            assert_eq!(refusal.outcome(), (400, "bad-request".to_owned()), "{name}: {nonsense}");
        }
        assert_eq!(world.upstream.calls(), 0);
    }
    let sent = |name: &str, when: String| world.pay("k-1").field(name, &when);
    assert_eq!(sent("Repeatability-First-Sent", ago(3_000)).send().await.told(), Some("executed"));
    assert_eq!(sent("Date", ago(3_000)).send().await.told(), Some("replayed"));
    assert_eq!(
        sent("Date", ago(4_000)).field("Repeatability-First-Sent", &ago(0)).send().await.told(),
        Some("replayed")
    );
    assert_eq!(sent("Date", ago(0)).field("Repeatability-First-Sent", &ago(4_000)).send().await.status, 400);
    assert_eq!(world.pay("k-1").send().await.told(), Some("replayed"), "who says nothing is not asked");
}

#[tokio::test]
async fn without_a_limit_any_age_will_do() {
    let world = World::start(Store::sqlite()).await;
    assert_eq!(world.pay("k-1").field("Date", &ago(1_000_000)).send().await.told(), Some("executed"));
    assert_eq!(world.pay("k-1").field("Date", "yesterday").send().await.told(), Some("replayed"));
}
