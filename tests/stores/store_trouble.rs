//! A missing store, a foreign one, and store failures during operation.

use std::time::Duration;

use futures_util::future::join;
use tokio_postgres::Client;

use harness::metrics::Metrics;
use harness::postgres::Cluster;
use harness::proxy::fails;
use harness::relay::{Relay, remote};
use harness::{Answer, Hold, Proxy, Response, Setup, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores};

pub fn is_unavailable(refusal: &Response) {
    assert_eq!(refusal.outcome(), (503, "store-unavailable".to_owned()));
    assert_eq!((refusal.oncegate_status(), refusal.problem()["retry"].as_str()), (Some("rejected"), Some("same_key")));
    assert!(refusal.field("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    for detail in ["sql", "postgres", "127.0.0.1"] {
        assert!(!refusal.text().to_lowercase().contains(detail), "no internal detail is revealed");
    }
}

/// Sends until the store answers again.
async fn once_it_is_back(world: &World, key: &str) -> Response {
    eventually(TEST_TIMEOUT, async || Some(world.pay(key).send().await).filter(|answer| answer.status != 503)).await
}

/// Sends the request of `k-1` to another proxy until that one repeats the lapsed attempt, and returns its answer.
async fn is_repeated_at(other: &Proxy) -> Response {
    let same = other.post("/pay").key("k-1").field("Prefer", "wait=0").json(r#"{"amount":10,"currency":"EUR"}"#);
    eventually(TEST_TIMEOUT, async || Some(same.send().await).filter(|answer| answer.status != 409)).await
}

#[tokio::test]
async fn a_proxy_without_its_store_does_not_start() {
    let nowhere = Upstream::unused_address().await;
    let ended = Proxy::on(&format!("postgres://postgres@{nowhere}/test")).upstream(nowhere).fails().await;
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(ended.stderr.contains("the store cannot be reached"), "{ended:?}");
}

#[tokio::test]
async fn a_proxy_without_its_database_does_not_start_and_logs_why() {
    let store = Store::postgres().await;
    let ended =
        Proxy::on(&format!("{}_that_is_not", store.url())).upstream(Upstream::unused_address().await).fails().await;
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(ended.stderr.contains("does not exist"), "{ended:?}");
}

#[tokio::test]
async fn a_proxy_on_an_old_schema_without_migrations_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("oncegate.db").display());
    let setup = Proxy::on(&url).upstream(Upstream::unused_address().await).store("migrate = false");
    let ended = setup.fails().await;
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(ended.stderr.contains("oncegate migrate"), "{ended:?}");
}

#[tokio::test]
async fn the_embedded_store_serves_one_process_at_a_time() {
    let world = World::start(Store::sqlite()).await;
    let ended = world.setup.fails().await;
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(ended.stderr.contains("in use by another process") && ended.stderr.contains("oncegate.db"), "{ended:?}");
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"), "the first one is not disturbed");
}

#[tokio::test]
async fn a_file_that_is_no_store_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("letter.txt");
    let text = "Dear Sir or Madam, ".repeat(1_000);
    std::fs::write(&file, &text).unwrap();
    let ended =
        Proxy::on(&format!("sqlite:{}", file.display())).upstream(Upstream::unused_address().await).fails().await;
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(ended.stderr.contains("letter.txt"), "{ended:?}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), text);
}

#[tokio::test]
async fn an_invalid_configuration_names_each_error() {
    let text = "listen = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:3000\"\n\n[store]\n  timout = \"2s\"\n\n\
                [[routes]]\nname = \"pay\"\npath = \"/pay\"\nttl = \"soon\"\n";
    let ended = fails(text).await;
    assert_eq!(ended.code, 78, "{ended:?}");
    let file = ended.file.display();
    let line = |start: String| ended.stderr.lines().find(|line| line.starts_with(&start)).map(str::to_owned);
    let unknown = line(format!("{file}:5:3: ")).unwrap_or_else(|| panic!("{ended:?}"));
    assert!(
        unknown.contains("timout") && unknown.contains("timeout"),
        "the nearest known name is suggested: {unknown}"
    );
    let wrong = line(format!("{file}:10:")).unwrap_or_else(|| panic!("{ended:?}"));
    assert!(wrong.contains("ttl") && wrong.contains("24h"), "a valid value is suggested: {wrong}");
}

#[tokio::test]
async fn invalid_toml_is_reported_with_its_position() {
    let ended = fails("listen = \"127.0.0.1:0\"\nupstream http\n").await;
    assert_eq!(ended.code, 78, "{ended:?}");
    assert!(ended.stderr.contains(&format!("{}:2:", ended.file.display())), "{ended:?}");
}

#[tokio::test]
async fn an_address_in_use_is_reported() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let ended =
        fails(&format!("listen = \"{address}\"\nupstream = \"http://upstream\"\n[store]\nurl = \"memory:\"\n")).await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains(&address.to_string()), "{ended:?}");
}

#[tokio::test]
async fn without_the_store_nothing_is_forwarded() {
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
    wire.restore();
    assert_eq!(once_it_is_back(&world, "before").await.comparable(), first.replayed());
    assert_eq!(once_it_is_back(&world, "k-1").await.oncegate_status(), Some("executed"));
    eventually(TEST_TIMEOUT, async || (world.proxy.readyz().await.0 == 200).then_some(())).await;
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn a_silent_store_delays_requests_only_up_to_its_timeout() {
    let (world, wire) = remote(|setup| setup).await;
    world.pay("before").send().await;
    wire.silence();
    let begun = tokio::time::Instant::now();
    is_unavailable(&world.pay("k-1").send().await);
    assert!(begun.elapsed().as_millis() < 2_000, "{:?}", begun.elapsed());
    assert_eq!(world.upstream.calls(), 1);
    wire.restore();
    let after = eventually(TEST_TIMEOUT, async || {
        // The proxy itself releases its reservation that was executed too late.
        Some(world.pay("k-1").send().await).filter(|answer| !matches!(answer.status, 503 | 409))
    });
    assert_eq!(after.await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 2);
}

/// The response to the request of `k-1`, which the service answers with this status once the link to the store is cut.
async fn answered_without_store(world: &World, wire: &Relay, status: u16) -> Response {
    let hold = Hold::new();
    world.upstream.then(Answer::status(status).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    wire.cut();
    hold.release();
    first.await.unwrap().unwrap()
}

#[tokio::test]
async fn an_unstorable_response_is_sent_with_a_mark_and_stored_later() {
    for silent in [false, true] {
        let (world, wire) = remote(|setup| setup).await;
        let hold = Hold::new();
        world.upstream.then(Answer::status(201).field("X-A", "1").hold(&hold));
        let first = world.pay("k-1").spawn();
        world.upstream.wait_for_executed(1).await;
        if silent {
            wire.silence()
        } else {
            wire.cut()
        }
        hold.release();
        let first = first.await.unwrap().unwrap();
        assert_eq!((first.status, &*first.text(), first.oncegate_status()), (201, "effect 1", Some("unstored")));
        assert_eq!((first.field("x-a"), first.field("idempotency-key-expires")), (Some("1"), None));
        let known = world.pay("k-1").send().await;
        assert_eq!((known.oncegate_status(), known.is_replay(), &known.body), (Some("unstored"), true, &first.body));
        is_unavailable(&world.pay("k-2").send().await);
        wire.restore();
        let again = eventually(TEST_TIMEOUT, async || {
            let answer = world.pay("k-1").send().await;
            answer.field("idempotency-key-expires").is_some().then_some(answer)
        })
        .await;
        assert_eq!((again.status, again.oncegate_status(), again.field("x-a")), (201, Some("replayed"), Some("1")));
        assert_eq!(again.body, first.body);
        assert_eq!(world.upstream.calls(), 1);
    }
}

/// Long enough to read a replay before its end.
const TTL: Duration = Duration::from_secs(3);

#[tokio::test]
async fn an_outage_that_lasts_longer_than_the_ttl_loses_no_outcome() {
    let (world, wire) = remote(|setup| setup.defaults(&format!("ttl = \"{}s\"", TTL.as_secs()))).await;
    assert_eq!(answered_without_store(&world, &wire, 201).await.oncegate_status(), Some("unstored"));
    // Time and not an event: without its store the proxy notices no end of a TTL.
    tokio::time::sleep(TTL + Duration::from_millis(500)).await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("unstored"));
    wire.restore();
    let replayed =
        async || Some(world.pay("k-1").send().await).filter(|again| again.oncegate_status() != Some("unstored"));
    let again = eventually(TEST_TIMEOUT, replayed).await;
    // The TTL begins when the outcome is stored.
    assert_eq!((again.oncegate_status(), &*again.text()), (Some("replayed"), "effect 1"));
    assert_eq!(world.upstream.calls(), 1);
}

/// A world in PostgreSQL that guards `/pay` with these lines, and its database's client. The database refuses these
/// writes of keys.
async fn world_whose_store_refuses(writes: &str, lines: &str) -> (World, Client) {
    let store = Store::postgres().await;
    let Store::Postgres(database) = &store else { unreachable!("it is PostgreSQL") };
    let client = database.client().await;
    let world = World::guarding(store, lines).await;
    let refuse = format!(
        "create function refuse() returns trigger language plpgsql as 'begin raise exception ''no''; end';
         create trigger refuse before {writes} execute function refuse()"
    );
    client.batch_execute(&refuse).await.unwrap();
    (world, client)
}

#[tokio::test]
async fn a_request_whose_reservation_the_store_refuses_is_not_sent() {
    let (world, client) = world_whose_store_refuses("insert on oncegate.keys for each row", "").await;
    is_unavailable(&world.pay("k-1").send().await);
    client.batch_execute("drop trigger refuse on oncegate.keys").await.unwrap();
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_store_that_takes_reservations_and_no_outcomes_stops_new_attempts() {
    let outcomes = "update on oncegate.keys for each row when (new.state = 'completed')";
    let (world, client) = world_whose_store_refuses(outcomes, "max_response_body = \"32MiB\"").await;
    // Three of them are more than 64 MiB.
    world.upstream.answer_all(Answer::status(201).body(vec![b'x'; 25 << 20]));
    for key in ["k-1", "k-2", "k-3"] {
        assert_eq!(world.pay(key).send().await.oncegate_status(), Some("unstored"));
    }
    assert_eq!(world.pay("k-4").send().await.outcome(), (503, "overloaded".to_owned()));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("unstored"), "its outcome is known");
    assert_eq!(world.upstream.calls(), 3);
    client.batch_execute("drop trigger refuse on oncegate.keys").await.unwrap();
    let executed = async || Some(world.pay("k-4").send().await).filter(|answer| answer.status == 201);
    assert_eq!(eventually(TEST_TIMEOUT, executed).await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 4);
}

#[tokio::test]
async fn a_released_response_is_called_released_although_its_release_cannot_be_stored() {
    let (world, wire) = remote(|setup| setup).await;
    let first = answered_without_store(&world, &wire, 503).await;
    assert_eq!((first.status, first.oncegate_status()), (503, Some("released")));
    wire.restore();
    let executed = async || Some(world.pay("k-1").send().await).filter(|again| again.status == 201);
    assert_eq!(eventually(TEST_TIMEOUT, executed).await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn after_a_long_outage_a_response_is_stored_within_one_lease() {
    let (world, wire) = remote(Setup::short_leases).await;
    assert_eq!(answered_without_store(&world, &wire, 201).await.oncegate_status(), Some("unstored"));
    // The pauses between tries grow up to half a lease. Without that limit, the one after the seventh try would be 6.4
    // s long. Heartbeats measure it: they are as late as the tries on a busy machine.
    let heartbeats = async |tries: f64| {
        eventually(2 * TEST_TIMEOUT, async || {
            let metrics = Metrics::of(&world.proxy).await;
            let failed = |op: &str| metrics.get(&format!("oncegate_store_errors_total{{op=\"{op}\"}}"));
            (failed("settle") >= tries).then(|| failed("renew"))
        })
        .await
    };
    let before = heartbeats(7.0).await;
    let passed = heartbeats(8.0).await - before;
    assert!(passed < 6.0, "{passed} heartbeats between two tries");
    wire.restore();
    let again = eventually(TEST_TIMEOUT, async || {
        Some(world.pay("k-1").send().await).filter(|answer| answer.oncegate_status() == Some("replayed"))
    });
    assert_eq!(again.await.oncegate_status(), Some("replayed"));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_response_during_an_expired_lease_is_stored_after_the_outage() {
    let (world, wire) = remote(Setup::short_leases).await;
    let other = world.setup.clone().through(&world.store.url()).start().await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    wire.cut();
    let same = other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#);
    eventually(TEST_TIMEOUT, async || (same.send().await.outcome().1 == "outcome-unknown").then_some(())).await;
    is_unavailable(&world.pay("k-2").send().await);
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("unstored"));
    assert_eq!(same.send().await.outcome().1, "outcome-unknown");
    wire.restore();
    let replay = eventually(TEST_TIMEOUT, async || Some(same.send().await).filter(|answer| answer.status != 409)).await;
    assert_eq!((replay.oncegate_status(), &*replay.text()), (Some("replayed"), "effect 1"));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn an_unstored_response_is_not_repeated_where_another_attempt_may_have_followed() {
    let (world, wire) = remote(|setup| setup.short_leases().defaults("on_unknown = \"retry\"")).await;
    let other = world.setup.clone().through(&world.store.url()).start().await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    wire.cut();
    let second = is_repeated_at(&other).await;
    assert_eq!((second.oncegate_status(), &*second.text()), (Some("executed"), "effect 2"));
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.oncegate_status(), &*first.text()), (Some("unstored"), "effect 1"), "its own response");
    is_unavailable(&world.pay("k-1").send().await);
    wire.restore();
    assert_eq!(once_it_is_back(&world, "k-1").await.comparable(), second.replayed());
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn an_unstored_response_of_the_newest_attempt_is_kept_where_the_route_repeats_what_is_unknown() {
    let (world, wire) = remote(|setup| setup.short_leases().defaults("on_unknown = \"retry\"")).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    wire.cut();
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.oncegate_status(), &*first.text()), (Some("unstored"), "effect 1"));
    // The lease has ended when the store is no longer trusted to be the same.
    eventually(TEST_TIMEOUT, async || (world.pay("k-1").send().await.outcome().1 == "store-unavailable").then_some(()))
        .await;
    wire.restore();
    let again = once_it_is_back(&world, "k-1").await;
    assert_eq!((again.status, again.is_replay(), &*again.text()), (201, true, "effect 1"));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn an_unstored_response_is_not_repeated_while_another_attempt_runs() {
    let (world, wire) = remote(|setup| setup.short_leases().defaults("on_unknown = \"retry\"")).await;
    let other = world.setup.clone().through(&world.store.url()).start().await;
    let holds = [Hold::new(), Hold::new()];
    for hold in &holds {
        world.upstream.then(Answer::status(201).hold(hold));
    }
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    wire.cut();
    let second = is_repeated_at(&other);
    let meanwhile = async {
        world.upstream.wait_for_executed(2).await;
        holds[0].release();
        assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("unstored"));
        wire.restore();
        assert_eq!(once_it_is_back(&world, "k-1").await.outcome(), (409, "in-flight".to_owned()));
        holds[1].release();
    };
    let (second, ()) = join(second, meanwhile).await;
    assert_eq!((second.oncegate_status(), &*second.text()), (Some("executed"), "effect 2"));
    let replay =
        eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|answer| answer.status != 409));
    assert_eq!(replay.await.comparable(), second.replayed());
}

#[tokio::test]
async fn a_waiting_duplicate_does_not_get_a_response_that_another_attempt_may_have_followed() {
    let lines = "on_unknown = \"retry\"\nin_flight = \"wait\"";
    let (world, wire) = remote(|setup| setup.short_leases().defaults(lines)).await;
    let other = world.setup.clone().through(&world.store.url()).start().await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let waiting = world.pay("k-1").spawn();
    // Sent after it, and answered after a second.
    assert_eq!(world.pay("k-1").field("Prefer", "wait=1").send().await.status, 409);
    wire.cut();
    let second = is_repeated_at(&other).await;
    assert_eq!((second.oncegate_status(), &*second.text()), (Some("executed"), "effect 2"));
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("unstored"));
    is_unavailable(&waiting.await.unwrap().unwrap());
    wire.restore();
    assert_eq!(once_it_is_back(&world, "k-1").await.comparable(), second.replayed());
}

#[tokio::test]
async fn lost_connections_fail_only_the_waiting_requests() {
    let (world, wire) = remote(|setup| setup).await;
    for number in 0..5 {
        let key = format!("k-{number}");
        let first = once_it_is_back(&world, &key).await;
        assert_eq!((first.status, &*first.text()), (201, &*format!("effect {}", number + 1)));
        wire.cut();
        wire.restore();
        let again = once_it_is_back(&world, &key).await;
        assert_eq!((&again.body, again.oncegate_status()), (&first.body, Some("replayed")));
    }
    assert_eq!(world.upstream.calls(), 5);
}

#[tokio::test]
async fn a_crashed_server_loses_no_sent_answer() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start("")).await.unwrap();
    let store = Store::Postgres(cluster.empty_database().await);
    let world = World::with(store, |setup| setup.store("timeout = \"500ms\"")).await;
    let before = world.pay("before").send().await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let running = world.pay("running").spawn();
    world.upstream.wait_for_executed(2).await;
    let cluster = tokio::task::spawn_blocking(move || {
        cluster.crash();
        cluster
    });
    let cluster = cluster.await.unwrap();
    is_unavailable(&world.pay("other").send().await);
    hold.release();
    let running = running.await.unwrap().unwrap();
    assert_eq!((running.oncegate_status(), &*running.text()), (Some("unstored"), "effect 2"));
    let _cluster = tokio::task::spawn_blocking(move || {
        cluster.restart();
        cluster
    })
    .await
    .unwrap();
    assert_eq!(once_it_is_back(&world, "before").await.comparable(), before.replayed());
    // Until the response is stored, it is served from memory.
    let again = eventually(TEST_TIMEOUT, async || {
        let answer = world.pay("running").send().await;
        Some(answer)
            .filter(|answer| !matches!(answer.status, 409 | 503) && answer.oncegate_status() != Some("unstored"))
    });
    let again = again.await;
    assert_eq!((again.oncegate_status(), &again.body), (Some("replayed"), &running.body));
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(an_undecodable_row_is_reported_and_never_executed_again);
async fn an_undecodable_row_is_reported_and_never_executed_again(store: Store) {
    let mut world = World::start(store).await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    for damage in ["X-A: 1\nSet-Cookie: stolen=1", "no colon\r\n\r\n", "X-A: 1", ""] {
        world.proxy.kill9().await;
        let bytes: String = damage.bytes().map(|byte| format!("{byte:02x}")).collect();
        let literal =
            if let Store::Postgres(_) = world.store { format!("'\\x{bytes}'") } else { format!("x'{bytes}'") };
        world.store.tamper(&format!("update keys set fields = {literal}")).await;
        world.crash_and_restart().await;
        let refusal = world.pay("k-1").send().await;
        assert_eq!(refusal.outcome(), (500, "response-corrupt".to_owned()), "{damage:?}");
        assert_eq!((refusal.oncegate_status(), refusal.problem()["retry"].as_str()), (Some("rejected"), Some("fix")));
        assert!(!refusal.is_replay() && refusal.all("set-cookie").is_empty());
    }
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn secrets_are_neither_in_the_store_nor_in_the_logs() {
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
