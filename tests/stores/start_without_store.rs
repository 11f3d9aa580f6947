//! A route with `store_down = "bypass"` makes an instance ready while PostgreSQL is away, and lets it start without it.
//! It joins the store when that is there.

use serde_json::json;

use crate::store_trouble::is_unavailable;
use harness::operator::{Operator, oncegate};
use harness::postgres::Cluster;
use harness::relay::remote;
use harness::{Answer, Hold, Proxy, Setup, Store, TEST_TIMEOUT, Upstream, World, eventually, route};

async fn on_cluster<T: Send + 'static>(
    cluster: Cluster,
    work: impl FnOnce(&Cluster) -> T + Send + 'static,
) -> (Cluster, T) {
    let done = move || {
        let result = work(&cluster);
        (cluster, result)
    };
    tokio::task::spawn_blocking(done).await.unwrap()
}

fn mixed(setup: Setup) -> Setup {
    let later = "delivery = \"async\"\nstore_down = \"bypass\"";
    setup
        .top("secret = \"a secret of some length\"")
        .route(&route("pay", "store_down = \"bypass\""))
        .route(&route("reject", ""))
        .route(&route("later", later))
}

/// A world on a server of its own that is away by now, with a proxy that was started without it. The key `early` was
/// completed before.
async fn started_without() -> (World, Cluster) {
    let (cluster, ()) = on_cluster(Cluster::start(""), |_| ()).await;
    let store = Store::Postgres(cluster.empty_database().await);
    let mut world = World::with(store, mixed).await;
    assert_eq!(world.pay("early").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.proxy.stop().await, Some(0));
    let (cluster, ()) = on_cluster(cluster, Cluster::crash).await;
    world.proxy = world.setup.start().await;
    (world, cluster)
}

async fn is_joined(world: &World) {
    eventually(TEST_TIMEOUT, async || (world.proxy.readyz().await.1["status"] == "ready").then_some(())).await;
}

#[tokio::test]
async fn an_instance_that_starts_without_its_store_bypasses_it_and_becomes_whole_by_itself() {
    let (world, cluster) = started_without().await;
    let line = world.proxy.wait_for_log("starts without its store").await;
    assert_eq!(line["level"], "WARN");
    let (status, ready) = world.proxy.readyz().await;
    assert_eq!((status, &ready["ready"], &ready["status"]), (200, &json!(true), &json!("bypassing")), "{ready}");
    assert_eq!(ready["without_store"], json!({ "bypassing": ["pay"], "refusing": ["reject", "later"] }));
    assert!(ready["reasons"][0].as_str().unwrap().starts_with("store: "), "{ready}");
    let admin = world.proxy.admin.to_string();
    let health = oncegate("healthcheck", &world.proxy.file(), &["--admin", &admin]).await;
    assert_eq!(health.code, 0, "{health:?}");
    assert!(health.out.starts_with("ready for some routes: store: "), "{health:?}");

    // A retry to the same instance is answered from memory.
    let bypassed = world.pay("k-1").send().await;
    assert_eq!((bypassed.status, bypassed.oncegate_status(), &*bypassed.text()), (201, Some("bypassed"), "effect 2"));
    let retry = world.pay("k-1").send().await;
    assert_eq!((retry.oncegate_status(), &*retry.text()), (Some("unstored"), "effect 2"));
    let line = world.proxy.wait_for_log("forwarded unguarded").await;
    assert_eq!(line.get("record"), None, "its record's id is not the store's");
    assert_eq!(world.post("/later").key("k-1").send().await.status, 503);
    is_unavailable(&world.post("/reject").key("k-1").send().await);
    // Nothing is known of earlier keys.
    assert_eq!(world.pay("early").send().await.oncegate_status(), Some("bypassed"));
    assert_eq!(world.get("/pay").send().await.status, 201, "unguarded requests pass");
    let calls = world.upstream.calls();
    assert_eq!(Operator::of(&world.proxy).get("/api/v1/keys").await.0, 503);

    // Attempts and bodies that are under way when the store comes back.
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let running = world.pay("running").spawn();
    world.upstream.wait_for_executed(calls + 1).await;
    let duplicate = world.pay("running").spawn();
    let mut slow = world.pay("slow").open_head().await;
    let (_cluster, ()) = on_cluster(cluster, Cluster::restart).await;
    is_joined(&world).await;
    assert_eq!(world.proxy.readyz().await.1["without_store"], json!(null));
    hold.release();
    assert_eq!(running.await.unwrap().unwrap().oncegate_status(), Some("bypassed"));
    // Answered from memory, or refused: the attempt leaves the memory when it ends.
    let duplicate = duplicate.await.unwrap().unwrap();
    assert!([201, 409, 503].contains(&duplicate.status), "{duplicate:?}");
    assert_eq!(world.upstream.executed_for("running"), 1);
    slow.write(br#"{"amount":10,"currency":"EUR"}"#).await;
    assert_eq!(slow.response().await.oncegate_status(), Some("bypassed"));
    assert_eq!(world.store.states().await, ["completed"], "nothing is stored under another id");

    let early = world.pay("early").send().await;
    assert_eq!((early.oncegate_status(), &*early.text()), (Some("replayed"), "effect 1"));
    for key in ["k-1", "running", "slow", "new"] {
        let first = world.pay(key).send().await;
        assert_eq!(first.oncegate_status(), Some("executed"), "{key}");
        assert_eq!(world.pay(key).send().await.comparable(), first.replayed(), "{key}");
    }
    assert_eq!(world.post("/reject").key("k-1").send().await.oncegate_status(), Some("executed"));
    assert_eq!(Operator::of(&world.proxy).get("/api/v1/keys").await.0, 200);
    // Its keys are those that every instance finds.
    let other = world.setup.start().await;
    let replay = other.post("/pay").key("new").json(r#"{"amount":10,"currency":"EUR"}"#).send().await;
    assert_eq!(replay.oncegate_status(), Some("replayed"));
    assert_eq!(world.proxy.stop().await, Some(0));
}

#[tokio::test]
async fn an_instance_without_its_store_drains() {
    let (world, _cluster) = started_without().await;
    // No store can take its outcome.
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("bypassed"));
    assert_eq!(world.proxy.stop().await, Some(0));
}

#[tokio::test]
async fn a_store_that_the_program_cannot_use_ends_an_instance_that_has_started_without_it() {
    let locked = "secret = \"another secret of some length\"";
    let (cluster, ()) = on_cluster(Cluster::start(""), |_| ()).await;
    let (empty, newer, sealed) =
        (cluster.empty_database().await, cluster.empty_database().await, cluster.empty_database().await);
    let upstream = Upstream::start().await;
    let bypass = |url: &str| Proxy::on(url).upstream(upstream.address).route(&route("pay", "store_down = \"bypass\""));
    for database in [&newer, &sealed] {
        let setup = bypass(&database.url).top("secret = \"a secret of some length\"");
        assert_eq!(setup.start().await.stop().await, Some(0));
    }
    let newer_step = "insert into oncegate.migrations (version, name, oldest_program, sha256) values (9999, '9999_later', 9999, sha256('later'))";
    newer.client().await.batch_execute(newer_step).await.unwrap();
    let elsewhere = Proxy::on(&sealed.url)
        .upstream(upstream.address)
        .top("secret = \"a secret of some length\"")
        .route(&route("pay", "store_down = \"bypass\"\nspace = \"service\""));
    let setups = [
        ("not migrated", bypass(&empty.url).store("migrate = false"), 69, "run `oncegate migrate`"),
        ("newer", bypass(&newer.url), 69, "not one this version knows"),
        ("another secret", bypass(&sealed.url).top(locked), 69, "is encrypted under the secret"),
        ("keys elsewhere", elsewhere, 78, "--accept-route-changes"),
    ];
    for (what, setup, code, _) in &setups {
        assert_eq!(setup.fails().await.code, *code, "{what}: with its store");
    }
    let (cluster, ()) = on_cluster(cluster, Cluster::crash).await;
    let mut started = Vec::new();
    for (what, setup, code, says) in setups {
        started.push((what, setup.start().await, code, says));
    }
    let hold = Hold::new();
    let mut running = Vec::new();
    for (_, proxy, _, _) in &started {
        let calls = upstream.calls();
        upstream.then(Answer::status(201).hold(&hold));
        running.push(proxy.post("/pay").key("running").body("x").spawn());
        upstream.wait_for_executed(calls + 1).await;
    }
    let (_cluster, ()) = on_cluster(cluster, Cluster::restart).await;
    for (_, proxy, _, _) in &started {
        proxy.wait_for_log("draining").await;
    }
    hold.release();
    for (running, (what, proxy, code, says)) in running.into_iter().zip(started) {
        assert_eq!(running.await.unwrap().unwrap().oncegate_status(), Some("bypassed"), "{what}");
        assert_eq!(proxy.ended().await, Some(code), "{what}");
        assert!(proxy.output().contains(says), "{what}: {}", proxy.output());
    }
}

#[tokio::test]
async fn only_a_route_that_bypasses_and_a_store_that_is_away_let_an_instance_start_without_it() {
    let nowhere = Upstream::unused_address().await;
    let away = format!("postgres://postgres@{nowhere}/test");
    let secret = "secret = \"a secret of some length\"";
    let start = async |url: &str, lines: &str| {
        let setup = Proxy::on(url).upstream(nowhere).top(secret).route(&route("pay", lines));
        setup.try_start().await.map(drop)
    };
    for (lines, result) in [
        ("", Err(Some(69))),
        ("store_down = \"reject\"", Err(Some(69))),
        ("store_down = \"bypass\"\ndelivery = \"async\"", Err(Some(69))),
        ("store_down = \"bypass\"\nmode = \"observe\"", Err(Some(69))),
        ("store_down = \"bypass\"\nmode = \"off\"", Err(Some(69))),
        ("store_down = \"bypass\"\ndelivery = \"prefer\"", Ok(())),
        ("store_down = \"bypass\"", Ok(())),
    ] {
        assert_eq!(start(&away, lines).await, result, "{lines}");
    }
    // A server that is there, and refuses.
    let Store::Postgres(database) = Store::postgres().await else { unreachable!() };
    let absent = format!("{}_that_does_not_exist", database.url);
    assert_eq!(start(&absent, "store_down = \"bypass\"").await, Err(Some(69)));
}

#[tokio::test]
async fn readiness_says_which_routes_the_instance_serves_without_its_store() {
    let bypass = &route("pay", "store_down = \"bypass\"");
    let reject = &route("reject", "");
    for (routes, status, name, without_store) in [
        (vec![reject], 503, "not ready", json!({ "bypassing": [], "refusing": ["reject"] })),
        (vec![bypass], 200, "bypassing", json!({ "bypassing": ["pay"], "refusing": [] })),
        (vec![bypass, reject], 200, "bypassing", json!({ "bypassing": ["pay"], "refusing": ["reject"] })),
    ] {
        let (world, wire) = remote(|setup| routes.iter().fold(setup, |setup, route| setup.route(route))).await;
        let (ready, told) = world.proxy.readyz().await;
        assert_eq!((ready, &told["status"], &told["without_store"]), (200, &json!("ready"), &json!(null)));
        wire.cut();
        let (ready, told) = world.proxy.readyz().await;
        assert_eq!((ready, &told["status"], &told["without_store"]), (status, &json!(name), &without_store), "{told}");
        assert_eq!(told["ready"], status == 200);
        wire.restore();
        is_joined(&world).await;
    }
}

#[tokio::test]
async fn a_draining_instance_is_not_ready_although_it_bypasses() {
    let drain = "drain_delay = \"20s\"";
    let (world, wire) = remote(|setup| setup.top(drain).route(&route("pay", "store_down = \"bypass\""))).await;
    wire.cut();
    assert_eq!(world.proxy.readyz().await.0, 200);
    world.proxy.signal(rustix::process::Signal::TERM);
    eventually(TEST_TIMEOUT, async || (world.proxy.readyz().await.1["status"] == "not ready").then_some(())).await;
    assert_eq!(world.proxy.readyz().await.0, 503);
}

#[tokio::test]
async fn what_a_start_could_not_write_of_its_routes_is_written_once_the_store_takes_it() {
    // Without the identities the instance guards nothing yet, as one with other routes may run.
    for (table, logged) in [
        ("route_identities", "this process starts without its store"),
        ("route_retention", "the store has not taken how the routes find their keys"),
    ] {
        let store = Store::postgres().await;
        let Store::Postgres(database) = &store else { unreachable!() };
        let client = database.client().await;
        let first = |setup: Setup| setup.route(&route("pay", "store_down = \"bypass\""));
        let mut world = World::with(store, first).await;
        assert_eq!(world.proxy.stop().await, Some(0));
        // The start can read the table, and not write.
        client.batch_execute(&format!("begin; lock table oncegate.{table} in exclusive mode")).await.unwrap();
        world.setup = world.setup.clone().route(&route("next", "space = \"service\""));
        world.setup =
            world.setup.top("secret = \"a secret of some length\"").store("encrypt = true\ntimeout = \"500ms\"");
        world.proxy = world.setup.start().await;
        world.proxy.wait_for_log(logged).await;
        client.batch_execute("rollback").await.unwrap();
        // With `encrypted`, the functions that store a response in clear refuse.
        let sql = "select bool_and(encrypted) and count(*) = 2 and bool_and(finds like '%\"next\"%') \
                   from oncegate.route_retention join oncegate.route_identities using (service)";
        let is_written = async || client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0);
        eventually(TEST_TIMEOUT, async || is_written().await.then_some(())).await;
    }
}
