//! The store that is not there, not ours, or gone in the middle.

use std::time::Duration;

use crate::harness::postgres::Cluster;
use crate::harness::proxy::fails;
use crate::harness::relay::remote;
use crate::harness::{
    Answer, Hold, PATIENCE, Proxy, Response, Setup, Store, Upstream, World, eventually, on_both_stores,
};

pub fn is_unavailable(refusal: &Response) {
    assert_eq!(refusal.outcome(), (503, "store-unavailable".to_owned()));
    assert_eq!((refusal.told(), refusal.problem()["retry"].as_str()), (Some("rejected"), Some("same_key")));
    assert!(refusal.field("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    for told in ["sql", "postgres", "127.0.0.1"] {
        assert!(!refusal.text().to_lowercase().contains(told), "nothing of the inside is told");
    }
}

/// Sends until the store answers again.
async fn once_it_is_back(world: &World, key: &str) -> Response {
    eventually(PATIENCE, async || Some(world.pay(key).send().await).filter(|answer| answer.status != 503)).await
}

#[tokio::test]
async fn without_its_store_a_proxy_does_not_start() {
    let nowhere = Upstream::nowhere().await;
    let ended = Proxy::on(&format!("postgres://postgres@{nowhere}/test")).upstream(nowhere).fails().await;
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(ended.said.contains("the store cannot be reached"), "{ended:?}");
}

#[tokio::test]
async fn without_its_database_a_proxy_does_not_start_and_says_why() {
    let store = Store::postgres().await;
    let ended = Proxy::on(&format!("{}_that_is_not", store.url())).upstream(Upstream::nowhere().await).fails().await;
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(ended.said.contains("does not exist"), "{ended:?}");
}

#[tokio::test]
async fn on_an_old_schema_that_it_may_not_migrate_a_proxy_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("oncegate.db").display());
    let setup = Proxy::on(&url).upstream(Upstream::nowhere().await).store("migrate = false");
    let ended = setup.fails().await;
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(ended.said.contains("oncegate migrate"), "{ended:?}");
}

#[tokio::test]
async fn the_embedded_store_serves_one_process_at_a_time() {
    let world = World::start(Store::sqlite()).await;
    let ended = world.setup.fails().await;
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(ended.said.contains("in use by another process") && ended.said.contains("oncegate.db"), "{ended:?}");
    assert_eq!(world.pay("k-1").send().await.told(), Some("executed"), "the first one is not disturbed");
}

#[tokio::test]
async fn a_file_that_is_no_store_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("letter.txt");
    let text = "Dear Sir or Madam, ".repeat(1_000);
    std::fs::write(&file, &text).unwrap();
    let ended = Proxy::on(&format!("sqlite:{}", file.display())).upstream(Upstream::nowhere().await).fails().await;
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(ended.said.contains("letter.txt"), "{ended:?}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), text);
}

#[tokio::test]
async fn a_wrong_configuration_names_each_place() {
    let text = "listen = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:3000\"\n\n[store]\n  timout = \"2s\"\n\n\
                [[routes]]\nname = \"pay\"\npath = \"/pay\"\nttl = \"soon\"\n";
    let ended = fails(text).await;
    assert_eq!(ended.code, 78, "{ended:?}");
    let file = ended.file.display();
    let line = |start: String| ended.said.lines().find(|line| line.starts_with(&start)).map(str::to_owned);
    let unknown = line(format!("{file}:5:3: ")).unwrap_or_else(|| panic!("{ended:?}"));
    assert!(unknown.contains("timout") && unknown.contains("timeout"), "the nearest known name is told: {unknown}");
    let wrong = line(format!("{file}:10:")).unwrap_or_else(|| panic!("{ended:?}"));
    assert!(wrong.contains("ttl") && wrong.contains("24h"), "what would be right is told: {wrong}");
}

#[tokio::test]
async fn what_is_no_toml_is_told_with_its_place() {
    let ended = fails("listen = \"127.0.0.1:0\"\nupstream http\n").await;
    assert_eq!(ended.code, 78, "{ended:?}");
    assert!(ended.said.contains(&format!("{}:2:", ended.file.display())), "{ended:?}");
}

#[tokio::test]
async fn an_address_that_is_taken_is_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let ended =
        fails(&format!("listen = \"{address}\"\nupstream = \"http://{address}\"\n[store]\nurl = \"memory:\"\n")).await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.said.contains(&address.to_string()), "{ended:?}");
}

#[tokio::test]
async fn while_the_store_is_gone_nothing_is_forwarded() {
    let (world, wire) = remote(|setup| setup).await;
    let first = world.pay("before").send().await;
    wire.cut();
    for key in ["k-0", "k-1"] {
        is_unavailable(&world.pay(key).send().await);
    }
    assert_eq!(world.get("/").send().await.status, 201, "what nothing guards passes");
    let (status, reasons) = world.proxy.readyz().await;
    assert!(status == 503 && reasons["reasons"][0].as_str().unwrap().starts_with("store"), "{reasons}");
    assert_eq!(world.upstream.calls(), 2);
    wire.mend();
    assert_eq!(once_it_is_back(&world, "before").await.comparable(), first.replayed());
    assert_eq!(once_it_is_back(&world, "k-1").await.told(), Some("executed"));
    eventually(PATIENCE, async || (world.proxy.readyz().await.0 == 200).then_some(())).await;
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn a_store_that_goes_silent_is_not_waited_for_longer_than_it_may_take() {
    let (world, wire) = remote(|setup| setup).await;
    world.pay("before").send().await;
    wire.silence();
    let begun = tokio::time::Instant::now();
    is_unavailable(&world.pay("k-1").send().await);
    assert!(begun.elapsed().as_millis() < 2_000, "{:?}", begun.elapsed());
    assert_eq!(world.upstream.calls(), 1);
    wire.mend();
    let after = eventually(PATIENCE, async || {
        // The reservation that came too late is released by its own proxy.
        Some(world.pay("k-1").send().await).filter(|answer| !matches!(answer.status, 503 | 409))
    });
    assert_eq!(after.await.told(), Some("executed"));
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_response_that_cannot_be_stored_goes_out_marked_and_is_stored_later() {
    for silent in [false, true] {
        let (world, wire) = remote(|setup| setup).await;
        let hold = Hold::new();
        world.upstream.then(Answer::status(201).field("X-A", "1").hold(&hold));
        let first = world.pay("k-1").spawn();
        world.upstream.has_executed(1).await;
        if silent {
            wire.silence()
        } else {
            wire.cut()
        }
        hold.release();
        let first = first.await.unwrap().unwrap();
        assert_eq!((first.status, &*first.text(), first.told()), (201, "effect 1", Some("unstored")));
        assert_eq!((first.field("x-a"), first.field("idempotency-key-expires")), (Some("1"), None));
        let known = world.pay("k-1").send().await;
        assert_eq!((known.told(), known.is_replay(), &known.body), (Some("unstored"), true, &first.body));
        is_unavailable(&world.pay("k-2").send().await);
        wire.mend();
        let again = eventually(PATIENCE, async || {
            let answer = world.pay("k-1").send().await;
            answer.field("idempotency-key-expires").is_some().then_some(answer)
        })
        .await;
        assert_eq!((again.status, again.told(), again.field("x-a")), (201, Some("replayed"), Some("1")));
        assert_eq!(again.body, first.body);
        assert_eq!(world.upstream.calls(), 1);
    }
}

#[tokio::test]
async fn after_an_outage_of_many_leases_a_response_is_stored_within_one() {
    let (world, wire) = remote(Setup::short_leases).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.has_executed(1).await;
    wire.cut();
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().told(), Some("unstored"));
    // The longer it has been tried, the longer the pauses are.
    tokio::time::sleep(Duration::from_millis(5_300)).await;
    wire.mend();
    let mended = tokio::time::Instant::now();
    let again = eventually(PATIENCE, async || {
        Some(world.pay("k-1").send().await).filter(|answer| answer.told() == Some("replayed"))
    });
    assert_eq!(again.await.told(), Some("replayed"));
    // A lease, and two sweeps, and what a busy machine takes.
    assert!(mended.elapsed() < Duration::from_millis(2_000), "{:?}", mended.elapsed());
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_response_that_comes_while_the_lease_runs_out_is_stored_when_the_store_is_back() {
    let (world, wire) = remote(Setup::short_leases).await;
    let other = world.setup.clone().through(&world.store.url()).start().await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.has_executed(1).await;
    wire.cut();
    let same = other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#);
    eventually(PATIENCE, async || (same.send().await.outcome().1 == "outcome-unknown").then_some(())).await;
    is_unavailable(&world.pay("k-2").send().await);
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().told(), Some("unstored"));
    assert_eq!(same.send().await.outcome().1, "outcome-unknown");
    wire.mend();
    let replay = eventually(PATIENCE, async || Some(same.send().await).filter(|answer| answer.status != 409)).await;
    assert_eq!((replay.told(), &*replay.text()), (Some("replayed"), "effect 1"));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn lost_connections_cost_no_more_than_the_requests_then_waiting() {
    let (world, wire) = remote(|setup| setup).await;
    for number in 0..5 {
        let key = format!("k-{number}");
        let first = once_it_is_back(&world, &key).await;
        assert_eq!((first.status, &*first.text()), (201, &*format!("effect {}", number + 1)));
        wire.cut();
        wire.mend();
        let again = once_it_is_back(&world, &key).await;
        assert_eq!((&again.body, again.told()), (&first.body, Some("replayed")));
    }
    assert_eq!(world.upstream.calls(), 5);
}

#[tokio::test]
async fn a_server_that_crashes_loses_nothing_that_was_told() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start("")).await.unwrap();
    let store = Store::Postgres(cluster.empty_database().await);
    let world = World::with(store, |setup| setup.store("timeout = \"500ms\"")).await;
    let before = world.pay("before").send().await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let running = world.pay("running").spawn();
    world.upstream.has_executed(2).await;
    let cluster = tokio::task::spawn_blocking(move || {
        cluster.crash();
        cluster
    });
    let cluster = cluster.await.unwrap();
    is_unavailable(&world.pay("other").send().await);
    hold.release();
    let running = running.await.unwrap().unwrap();
    assert_eq!((running.told(), &*running.text()), (Some("unstored"), "effect 2"));
    let _cluster = tokio::task::spawn_blocking(move || {
        cluster.restart();
        cluster
    })
    .await
    .unwrap();
    assert_eq!(once_it_is_back(&world, "before").await.comparable(), before.replayed());
    // Until it is stored after all, it is told from memory.
    let again = eventually(PATIENCE, async || {
        let answer = world.pay("running").send().await;
        Some(answer).filter(|answer| !matches!(answer.status, 409 | 503) && answer.told() != Some("unstored"))
    });
    let again = again.await;
    assert_eq!((again.told(), &again.body), (Some("replayed"), &running.body));
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(a_row_that_does_not_decode_is_told_and_never_executed_again);
async fn a_row_that_does_not_decode_is_told_and_never_executed_again(store: Store) {
    let mut world = World::start(store).await;
    assert_eq!(world.pay("k-1").send().await.told(), Some("executed"));
    for damage in ["X-A: 1\nSet-Cookie: stolen=1", "no colon\r\n\r\n", "X-A: 1", ""] {
        world.proxy.kill9().await;
        let bytes: String = damage.bytes().map(|byte| format!("{byte:02x}")).collect();
        let literal =
            if let Store::Postgres(_) = world.store { format!("'\\x{bytes}'") } else { format!("x'{bytes}'") };
        world.store.tamper(&format!("update keys set fields = {literal}")).await;
        world.crash_and_restart().await;
        let refusal = world.pay("k-1").send().await;
        assert_eq!(refusal.outcome(), (500, "response-corrupt".to_owned()), "{damage:?}");
        assert_eq!((refusal.told(), refusal.problem()["retry"].as_str()), (Some("rejected"), Some("fix")));
        assert!(!refusal.is_replay() && refusal.all("set-cookie").is_empty());
    }
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn what_is_secret_stands_neither_in_the_store_nor_in_the_logs() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.then(Answer::status(201)).then(Answer::close()).then(Answer::status(500));
    for number in 0..4 {
        let request = world.post("/pay").key(&format!("long-secret-key-{number}")).body("card 4111111111111111");
        request.field("Authorization", "Bearer canary").field("X-Api-Key", "canary").send().await;
    }
    assert_eq!(world.proxy.stop().await, Some(0));
    let Store::Sqlite(folder) = &world.store else { unreachable!() };
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        for secret in ["canary", "4111111111111111"] {
            assert!(memchr::memmem::find(&bytes, secret.as_bytes()).is_none(), "{secret} is in the store");
        }
    }
    for line in world.proxy.logged() {
        for secret in ["canary", "4111111111111111", "long-secret-key"] {
            assert!(!line.to_string().contains(secret), "{secret} is in the logs: {line}");
        }
    }
}
