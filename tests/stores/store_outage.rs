//! Store outages: the requests that wait, those refused at once, and the answers of health probes.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::store_trouble::is_unavailable;
use harness::postgres::Cluster;
use harness::relay::remote;
use harness::{Answer, Hold, Setup, Store, TEST_TIMEOUT, World, eventually, on_both_stores};

/// The longest wait for what takes a second at most on a machine without other load.
const PROMPT: Duration = Duration::from_secs(10);

/// Reads `/readyz`, which must answer promptly whatever the store does, and returns its status and reasons.
async fn readyz(world: &World) -> (u16, Vec<String>) {
    let asked = timeout(PROMPT, world.proxy.readyz()).await;
    let (status, reply) = asked.expect("a probe is answered promptly");
    let reasons = reply["reasons"].as_array().unwrap().iter().map(|reason| reason.as_str().unwrap().to_owned());
    assert_eq!(reply["ready"], status == 200, "{reply}");
    (status, reasons.collect())
}

/// Waits until a reason has this prefix.
async fn is_not_ready_for(world: &World, what: &str) -> Vec<String> {
    eventually(TEST_TIMEOUT, async || {
        let (_, reasons) = readyz(world).await;
        reasons.iter().any(|reason| reason.starts_with(what)).then_some(reasons)
    })
    .await
}

async fn is_ready(world: &World) {
    eventually(TEST_TIMEOUT, async || (readyz(world).await.0 == 200).then_some(())).await;
}

/// Sends six requests at once during a store outage: enough failures to open the breaker.
async fn find_out(world: &World) {
    let asked: Vec<_> = (0..6).map(|number| world.pay(&format!("found-out-{number}")).spawn()).collect();
    for refusal in asked {
        is_unavailable(&refusal.await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_frozen_server_delays_only_the_first_requests() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start("")).await.unwrap();
    let store = Store::Postgres(cluster.empty_database().await);
    let world = World::with(store, |setup| setup.store("timeout = \"1s\"")).await;
    let before = world.pay("before").send().await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let running = world.pay("running").spawn();
    world.upstream.wait_for_executed(2).await;

    cluster.freeze();
    let begun = Instant::now();
    find_out(&world).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "they waited for the store: {:?}", begun.elapsed());
    let begun = Instant::now();
    for number in 0..20 {
        is_unavailable(&world.pay(&format!("k-{number}")).send().await);
    }
    // One after the other. If each waited for the store, they would take twenty seconds.
    assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
    let (status, reasons) = readyz(&world).await;
    let begins = |what: &str| reasons.iter().any(|reason| reason.starts_with(what));
    assert!(status == 503 && begins("store: ") && begins("breaker: open"), "{reasons:?}");
    hold.release();
    let running = running.await.unwrap().unwrap();
    assert_eq!((running.status, running.oncegate_status()), (201, Some("unstored")));
    assert_eq!(world.upstream.calls(), 2, "nothing was forwarded");

    cluster.thaw();
    let after =
        eventually(PROMPT, async || Some(world.pay("after").send().await).filter(|answer| answer.status != 503));
    assert_eq!(after.await.oncegate_status(), Some("executed"));
    is_ready(&world).await;
    let back = world.proxy.wait_for_log("the store answers again").await;
    assert!(back["away_ms"].as_u64().unwrap() >= 1_000, "{back}");
    let opened = world
        .proxy
        .logged()
        .iter()
        .filter(|line| line.to_string().contains("are refused at once until it answers"))
        .count();
    assert_eq!(opened, 1);
    assert_eq!(world.pay("before").send().await.comparable(), before.replayed());
    let again = eventually(TEST_TIMEOUT, async || {
        Some(world.pay("running").send().await).filter(|answer| answer.oncegate_status() == Some("replayed"))
    });
    let again = again.await;
    assert_eq!((again.oncegate_status(), &again.body), (Some("replayed"), &running.body));
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn readiness_reports_an_unreachable_and_a_silent_store() {
    let (world, wire) = remote(|setup| setup).await;
    let (status, reply) = world.proxy.readyz().await;
    assert_eq!((status, &reply["reasons"]), (200, &serde_json::json!([])));
    assert_eq!((&reply["store"]["reachable"], &reply["breaker"]["open"]), (&true.into(), &false.into()));
    assert_eq!((&reply["lease"]["held"], &reply["draining"]), (&true.into(), &false.into()));
    assert!(reply["store"]["schema"].as_str().unwrap().starts_with("00"), "{reply}");
    wire.cut();
    assert!(is_not_ready_for(&world, "store: ").await.len() == 1);
    let silent = async || world.proxy.readyz().await.1["store"]["unreachable_for_ms"].as_u64();
    eventually(TEST_TIMEOUT, async || silent().await.filter(|silent| *silent > 100)).await;
    wire.restore();
    is_ready(&world).await;
    assert_eq!(silent().await, None);
    wire.silence();
    is_not_ready_for(&world, "store: ").await;
    wire.restore();
    is_ready(&world).await;
}

on_both_stores!(readiness_names_the_newest_migration_of_the_store);
async fn readiness_names_the_newest_migration_of_the_store(store: Store) {
    let folder = match &store {
        Store::Postgres(_) => "migrations/postgres",
        Store::Sqlite(_) => "migrations/sqlite",
    };
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let newest = files.filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned())).max().unwrap();
    let world = World::start(store).await;
    assert_eq!(world.proxy.readyz().await.1["store"]["schema"], newest);
}

#[tokio::test]
async fn readiness_reports_an_expired_lease() {
    let (world, wire) = remote(Setup::short_leases).await;
    wire.cut();
    is_not_ready_for(&world, "lease: ").await;
    assert_eq!(world.proxy.readyz().await.1["lease"]["starts_attempts"], false);
    wire.restore();
    is_ready(&world).await;
}

#[tokio::test]
async fn abandoned_calls_do_not_block_a_recovered_store() {
    let (world, wire) = remote(|setup| setup).await;
    for _ in 0..3 {
        wire.cut();
        find_out(&world).await;
        is_not_ready_for(&world, "breaker: ").await;
        wire.restore();
        is_ready(&world).await;
    }
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 1);
}
