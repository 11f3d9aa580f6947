//! Configuration changes while the proxy runs.

use rustix::process::Signal;

use harness::reload::{REFUSED, RELOADED, reload, requires_a_key, settles, with, write};
use harness::{Answer, Hold, Store, Upstream, World, on_both_stores, route, service};

on_both_stores!(sighup_reloads_routes_and_forgets_nothing);
async fn sighup_reloads_routes_and_forgets_nothing(store: Store) {
    let world = World::guarding(store, "").await;
    let first = world.pay("k-1").send().await;
    assert!(!requires_a_key(&world).await);
    reload(&world, &with(&world, "", "key = { required = true }").text(), RELOADED, 1).await;
    settles(async || requires_a_key(&world).await).await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    let own = Upstream::start().await;
    let more = with(&world, "", "service = \"default\"").service(&service("new", own.address));
    let more = more.route(&route("new", "service = \"new\""));
    reload(&world, &more.text(), RELOADED, 2).await;
    settles(async || !requires_a_key(&world).await).await;
    let new = || world.post("/new").host("new.example").key("k-1").body("x");
    settles(async || new().send().await.oncegate_status() == Some("replayed")).await;
    assert_eq!(own.calls(), 1);
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
}

#[tokio::test]
async fn a_changed_file_is_reloaded_without_a_signal() {
    let world = World::guarding(Store::sqlite(), "").await;
    write(&world, &with(&world, "", "key = { required = true }").text());
    world.proxy.wait_for_log(RELOADED).await;
    settles(async || requires_a_key(&world).await).await;
}

#[tokio::test]
async fn a_swapped_symlink_counts_as_a_changed_file() {
    let world = World::guarding(Store::sqlite(), "").await;
    let folder = tempfile::tempdir().unwrap();
    // As with mounted configurations: the file is a link into a folder that is a link itself.
    for (version, lines) in [("1", ""), ("2", "key = { required = true }")] {
        std::fs::create_dir(folder.path().join(version)).unwrap();
        std::fs::write(folder.path().join(version).join("oncegate.toml"), with(&world, "", lines).text()).unwrap();
    }
    let swap = |target: &str, link: &std::path::Path| {
        let new = folder.path().join("new");
        std::os::unix::fs::symlink(folder.path().join(target), &new).unwrap();
        std::fs::rename(new, link).unwrap();
    };
    swap("1", &folder.path().join("data"));
    swap("data/oncegate.toml", &world.proxy.file());
    swap("2", &folder.path().join("data"));
    world.proxy.wait_for_log(RELOADED).await;
    settles(async || requires_a_key(&world).await).await;
}

#[tokio::test]
async fn a_broken_file_is_logged_and_the_running_configuration_stays() {
    let world = World::guarding(Store::sqlite(), "key = { required = true }").await;
    for (times, broken) in [
        with(&world, "", "key = { required = false }\nttl = \"soon\"").text(),
        with(&world, "", "key = { required = false }\ntll = \"1h\"").text(),
        "[[routes".to_owned(),
        String::new(),
    ]
    .iter()
    .enumerate()
    {
        reload(&world, broken, "the running one stays", times + 1).await;
        settles(async || requires_a_key(&world).await).await;
    }
    let problems: Vec<_> =
        world.proxy.logged().into_iter().filter_map(|line| Some(line["problem"].as_str()?.to_owned())).collect();
    let file = world.proxy.file().display().to_string();
    let text = with(&world, "", "key = { required = false }\nttl = \"soon\"").text();
    let line = 1 + text.lines().position(|line| line.starts_with("ttl")).unwrap();
    assert!(
        problems[0].starts_with(&format!("{file}:{line}:")) && problems[0].contains("routes[0].ttl"),
        "{problems:?}"
    );
    assert!(problems[1].starts_with(&format!("{file}:{line}:")) && problems[1].contains("ttl"), "{problems:?}");
    assert!(problems[2].starts_with(&format!("{file}:1:")), "{problems:?}");
    assert_eq!(world.proxy.readyz().await.0, 200);
    reload(&world, &with(&world, "", "key = { required = false }").text(), RELOADED, 1).await;
    settles(async || !requires_a_key(&world).await).await;
}

#[tokio::test]
async fn a_deleted_file_changes_nothing() {
    let world = World::guarding(Store::sqlite(), "key = { required = true }").await;
    std::fs::remove_file(world.proxy.file()).unwrap();
    world.proxy.signal(Signal::HUP);
    let line = world.proxy.wait_for_log("the running one stays").await;
    assert_eq!(line["level"], "ERROR");
    assert!(requires_a_key(&world).await);
}

on_both_stores!(a_reload_cannot_change_how_a_live_routes_keys_are_found);
async fn a_reload_cannot_change_how_a_live_routes_keys_are_found(store: Store) {
    let mut world = World::guarding(store, "").await;
    let first = world.pay("k-1").send().await;
    for (times, (lines, what)) in [
        ("scope = [\"none\"]", "scope"),
        ("space = \"service\"", "space"),
        ("key = { from = \"header:X-Key\" }", "key's place"),
        ("key = { from = \"query:k\" }", "key's place"),
    ]
    .into_iter()
    .enumerate()
    {
        // The file also has a change that a reload may apply: a reload applies everything or nothing.
        let text = with(&world, "", lines).route(&route("new", "")).text();
        reload(&world, &text, REFUSED, times + 1).await;
        let refusals: Vec<_> = world.proxy.logged().into_iter().filter(|line| line["route"] == "pay").collect();
        let changed = refusals.iter().filter_map(|line| line["changed"].as_str()).next_back().unwrap();
        assert!(changed.starts_with(&format!("{what}: ")), "{changed:?}");
        assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
        assert_eq!(world.post("/new").key("k-1").body("x").send().await.oncegate_status(), None);
    }
    let text = with(&world, "", "").route(&route("new", "space = \"route\"")).text();
    reload(&world, &text, RELOADED, 1).await;
    world.restart_accepting(|setup| setup.route(&route("pay", "space = \"service\""))).await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"), "a restart can apply the change");
}

#[tokio::test]
async fn a_reload_cannot_give_the_host_of_a_route_of_any_dialect_to_another_service() {
    let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"pay"}}"#;
    for dialect in ["ietf", "jsonrpc", "mcp", "ucp"] {
        let lines = format!("dialect = \"{dialect}\"");
        let world = World::guarding(Store::sqlite(), &lines).await;
        let answer = Answer::status(201).field("Content-Type", "application/json");
        world.upstream.answer_all(answer.body(r#"{"jsonrpc":"2.0","id":7,"result":1}"#));
        let pay = || world.post("/pay").key("k-1").field("Content-Type", "application/json").body(call);
        let first = pay().send().await;
        assert_eq!(first.oncegate_status(), Some("executed"), "{dialect}");
        let moved = with(&world, "", &format!("service = \"shop\"\n{lines}"));
        reload(&world, &moved.service(&service("shop", world.upstream.address)).text(), REFUSED, 1).await;
        let refused = world.proxy.wait_for_log(REFUSED).await;
        assert_eq!(refused["changed"], "service: default -> shop", "{dialect}");
        assert_eq!(pay().send().await.comparable(), first.replayed(), "{dialect}");
    }
}

#[tokio::test]
async fn settings_that_need_a_restart_are_logged() {
    let world = World::guarding(Store::sqlite(), "").await;
    for (times, (top, what)) in
        [("drain_timeout = \"7s\"", "drain_timeout"), ("drain_delay = \"1ms\"", "drain_delay")].into_iter().enumerate()
    {
        let text = with(&world, top, "key = { required = true }").text();
        reload(&world, &text, "takes effect with a restart", times + 1).await;
        world.proxy.wait_for_log(&format!("{what} has changed")).await;
        settles(async || requires_a_key(&world).await).await;
    }
    let text = with(&world, "", "").store("sweep_every = \"9s\"").text();
    reload(&world, &text, "store has changed", 1).await;
    let text = with(&world, "", "").text().replace("log = \"debug\"", "log = \"info\"");
    reload(&world, &text, "telemetry has changed", 1).await;
    let text = with(&world, "", "").text().replacen("127.0.0.1:0", "127.0.0.1:1", 1);
    reload(&world, &text, "listen has changed", 1).await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn a_reload_that_leads_to_another_store_is_refused() {
    let world = World::start(Store::sqlite()).await;
    let text = std::fs::read_to_string(world.proxy.file()).unwrap();
    for (times, other) in ["sqlite:other.db", "postgres://nobody@127.0.0.1:1/other"].into_iter().enumerate() {
        let text = text.replace(&world.store.url(), other);
        reload(&world, &text, "store.url has changed, and the running configuration stays", times + 1).await;
    }
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
}

on_both_stores!(a_reload_does_not_disturb_running_requests);
async fn a_reload_does_not_disturb_running_requests(store: Store) {
    let world = World::guarding(store, "in_flight = \"wait\"").await;
    let (hold, midway) = (Hold::new(), Hold::new());
    world.upstream.then(Answer::status(201).hold(&hold));
    world.upstream.then(Answer::status(200).chunks(&["first", "second"]).hold_midway(&midway));
    let guarded = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let waiter = world.pay("k-1").spawn();
    let mut streaming = world.get("/events").open().await.unwrap();
    streaming.any_head().await.unwrap();
    assert_eq!(streaming.piece().await.unwrap().unwrap(), b"first");
    let own = Upstream::start().await;
    let elsewhere = with(&world, "", "key = { required = true }").upstream(own.address);
    reload(&world, &elsewhere.text(), RELOADED, 1).await;
    settles(async || requires_a_key(&world).await).await;
    hold.release();
    midway.release();
    let first = guarded.await.unwrap().unwrap();
    assert_eq!((first.oncegate_status(), &*first.text()), (Some("executed"), "effect 1"));
    assert_eq!(waiter.await.unwrap().unwrap().comparable(), first.replayed());
    assert_eq!(streaming.piece().await.unwrap().unwrap(), b"second");
    assert_eq!(streaming.piece().await.unwrap(), None);
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(own.calls(), 0);
}

#[tokio::test]
async fn secrets_and_trusted_proxies_are_reloaded_with_the_routes() {
    let secret = |name: &str| format!("secret = \"the {name} secret, long enough\"");
    let world = World::with(Store::sqlite(), |setup| setup.top(&secret("first")).route(&route("pay", ""))).await;
    let first = world.pay("k-1").send().await;
    let top =
        format!("{}\nprevious_secrets = [\"the first secret, long enough\"]\ntrusted_proxies = []", secret("second"));
    reload(&world, &with(&world, &top, "").text(), RELOADED, 1).await;
    settles(async || world.pay("k-2").anonymous().field("X-Api-Key", "a").send().await.status == 400).await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(world.pay("k-3").send().await.oncegate_status(), Some("executed"));
    reload(&world, &with(&world, &secret("second"), "").text(), RELOADED, 2).await;
    settles(async || world.pay("k-1").send().await.outcome() == (409, "outcome-unknown".to_owned())).await;
    assert_eq!(world.pay("k-3").send().await.oncegate_status(), Some("replayed"));
}

#[tokio::test]
async fn sighup_right_after_the_start_is_not_lost() {
    for _ in 0..10 {
        let proxy = harness::Proxy::on("memory:").top("upstream = \"http://localhost:1\"").start().await;
        std::fs::write(proxy.file(), "[[routes").unwrap();
        proxy.signal(Signal::HUP);
        proxy.wait_for_log("the running one stays").await;
    }
}

#[tokio::test]
async fn a_reload_says_what_has_changed_or_that_nothing_has() {
    let world = World::guarding(Store::sqlite(), "").await;
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("token");
    std::fs::write(&secret, "the-first-token-of-readers").unwrap();
    let base = with(&world, "", "ttl = \"1h\"")
        .admin(&format!("read_token = \"${{file:{}}}\"\nopen = true", secret.display()));
    let changes = |at: usize| {
        let lines: Vec<_> =
            world.proxy.logged().into_iter().filter(|line| line.to_string().contains(RELOADED)).collect();
        (lines[at]["message"].as_str().unwrap().to_owned(), lines[at]["changed"].as_str().map(str::to_owned))
    };
    reload(&world, &base.text(), RELOADED, 1).await;
    assert_eq!(changes(0).1.as_deref(), Some("admin.read_token, routes.pay.ttl"));
    world.proxy.signal(Signal::HUP);
    world.proxy.wait_for_logs(RELOADED, 2).await;
    assert_eq!(changes(1), (format!("{RELOADED}, and nothing in it has changed"), None));
    std::fs::write(&secret, "the-next-token-of-readers").unwrap();
    world.proxy.wait_for_logs(RELOADED, 3).await;
    assert_eq!(changes(2).1.as_deref(), secret.to_str());
    reload(&world, &base.route(&route("more", "")).text(), RELOADED, 4).await;
    assert_eq!(changes(3).1.as_deref(), Some("routes.more"));
}
