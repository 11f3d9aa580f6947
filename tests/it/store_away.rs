//! A store that is away: who waits for it, who is told at once, and what probes hear.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::harness::postgres::Cluster;
use crate::harness::relay::remote;
use crate::harness::{Answer, Hold, PATIENCE, Setup, Store, World, eventually};
use crate::store_trouble::is_unavailable;

/// Asks `/readyz`, which must not keep a probe waiting whatever the store does, and returns its status and reasons.
async fn readyz(world: &World) -> (u16, Vec<String>) {
    let asked = timeout(Duration::from_secs(1), world.proxy.readyz()).await;
    let (status, told) = asked.expect("a probe is answered within a second");
    let reasons = told["reasons"].as_array().unwrap().iter().map(|reason| reason.as_str().unwrap().to_owned());
    assert_eq!(told["ready"], status == 200, "{told}");
    (status, reasons.collect())
}

/// Waits until one of the reasons begins with this.
async fn is_not_ready_for(world: &World, what: &str) -> Vec<String> {
    let told = eventually(PATIENCE, async || {
        let (_, reasons) = readyz(world).await;
        reasons.iter().any(|reason| reason.starts_with(what)).then_some(reasons)
    });
    told.await
}

async fn is_ready(world: &World) {
    eventually(PATIENCE, async || (readyz(world).await.0 == 200).then_some(())).await;
}

/// Six at once find the store away: as many as it takes before nobody is kept waiting any more.
async fn find_out(world: &World) {
    let asked: Vec<_> = (0..6).map(|number| world.pay(&format!("found-out-{number}")).spawn()).collect();
    for refusal in asked {
        is_unavailable(&refusal.await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_server_that_stands_still_keeps_only_the_first_requests_waiting() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start("")).await.unwrap();
    let store = Store::Postgres(cluster.empty_database().await);
    let world = World::with(store, |setup| setup.store("timeout = \"1s\"")).await;
    let before = world.pay("before").send().await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let running = world.pay("running").spawn();
    world.upstream.has_executed(2).await;

    cluster.freeze();
    let begun = Instant::now();
    find_out(&world).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "they waited for the store: {:?}", begun.elapsed());
    let begun = Instant::now();
    for number in 0..20 {
        is_unavailable(&world.pay(&format!("k-{number}")).send().await);
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "twenty together, one after the other: {:?}", begun.elapsed());
    let (status, reasons) = readyz(&world).await;
    let begins = |what: &str| reasons.iter().any(|reason| reason.starts_with(what));
    assert!(status == 503 && begins("store: ") && begins("breaker: open"), "{reasons:?}");
    hold.release();
    let running = running.await.unwrap().unwrap();
    assert_eq!((running.status, running.told()), (201, Some("unstored")));
    assert_eq!(world.upstream.calls(), 2, "nothing was forwarded");

    cluster.thaw();
    let begun = Instant::now();
    let after =
        eventually(PATIENCE, async || Some(world.pay("after").send().await).filter(|answer| answer.status != 503));
    assert_eq!(after.await.told(), Some("executed"));
    // A pause between two probes, and some time for a busy machine.
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    is_ready(&world).await;
    let back = world.proxy.logs("the store answers again").await;
    assert!(back["away_ms"].as_u64().unwrap() >= 1_000, "{back}");
    let opened = world.proxy.logged().iter().filter(|line| line.to_string().contains("time and again")).count();
    assert_eq!(opened, 1);
    assert_eq!(world.pay("before").send().await.comparable(), before.replayed());
    let again = eventually(PATIENCE, async || {
        Some(world.pay("running").send().await).filter(|answer| answer.told() == Some("replayed"))
    });
    let again = again.await;
    assert_eq!((again.told(), &again.body), (Some("replayed"), &running.body));
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn probes_are_told_of_a_store_that_is_gone_and_of_one_that_is_silent() {
    let (world, wire) = remote(|setup| setup).await;
    let (status, told) = world.proxy.readyz().await;
    assert_eq!((status, &told["reasons"]), (200, &serde_json::json!([])));
    assert_eq!((&told["store"]["reachable"], &told["breaker"]["open"]), (&true.into(), &false.into()));
    assert_eq!((&told["lease"]["held"], &told["draining"]), (&true.into(), &false.into()));
    assert!(told["store"]["schema"].as_str().unwrap().starts_with("000"), "{told}");
    wire.cut();
    assert!(is_not_ready_for(&world, "store: ").await.len() == 1);
    let silent = async || world.proxy.readyz().await.1["store"]["unreachable_for_ms"].as_u64();
    eventually(PATIENCE, async || silent().await.filter(|silent| *silent > 100)).await;
    wire.mend();
    is_ready(&world).await;
    assert_eq!(silent().await, None);
    wire.silence();
    is_not_ready_for(&world, "store: ").await;
    wire.mend();
    is_ready(&world).await;
}

#[tokio::test]
async fn probes_are_told_of_a_lease_that_has_run_out() {
    let (world, wire) = remote(Setup::short_leases).await;
    wire.cut();
    is_not_ready_for(&world, "lease: ").await;
    assert_eq!(world.proxy.readyz().await.1["lease"]["starts_attempts"], false);
    wire.mend();
    is_ready(&world).await;
}

#[tokio::test]
async fn answers_that_were_given_up_do_not_shut_out_a_store_that_is_back() {
    let (world, wire) = remote(|setup| setup).await;
    for _ in 0..3 {
        wire.cut();
        find_out(&world).await;
        is_not_ready_for(&world, "breaker: ").await;
        wire.mend();
        is_ready(&world).await;
    }
    assert_eq!(world.pay("k-1").send().await.told(), Some("executed"));
    assert_eq!(world.upstream.calls(), 1);
}
