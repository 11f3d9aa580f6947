//! Routes that a reload or a restart changes, and the keys that were made before.

use harness::operator::oncegate;
use harness::proxy::Setup;
use harness::reload::{REFUSED, RELOADED, reload, settles, with};
use harness::{Client, Proxy, Store, World, accept_route_changes, on_both_stores, route};

const ACCEPTED: &str = "as store.accept_route_changes accepts";
const UNGUARDED: &str = "these requests are not guarded any more";
const UNGUARDED_AT_START: &str = "were guarded at the last start and are not any more";

/// The log lines with that message, each as `POST /pay: pay -> new, space: path -> service` or
/// `POST /pay: pay, key: required -> optional`.
fn logged(proxy: &Proxy, message: &str) -> Vec<String> {
    let lines = proxy.logged().into_iter().filter(|line| line["message"].as_str().unwrap().contains(message));
    let text = |line: serde_json::Value| {
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        let new = text("new_route").map(|new| format!(" -> {new}")).unwrap_or_default();
        format!("{}: {}{new}, {}", text("requests").unwrap(), text("route").unwrap(), text("changed").unwrap())
    };
    lines.map(text).collect()
}

/// A setup with these routes, each as its lines in the file.
fn routes(world: &World, routes: &[&str]) -> String {
    let setup = Proxy::on(&world.store.url()).upstream(world.upstream.address);
    routes.iter().fold(setup, |setup, lines| setup.route(lines)).text()
}

#[tokio::test]
async fn a_reload_is_refused_where_another_route_would_look_for_keys_of_guarded_requests_elsewhere() {
    let world = World::with(Store::sqlite(), |setup| setup.route("name = \"all\"\npath = \"/{*rest}\"")).await;
    let first = world.pay("k-1").send().await;
    let all = "name = \"all\"\npath = \"/{*rest}\"";
    for (times, (lines, refused)) in [
        (
            vec![all, "name = \"pay\"\npath = \"/pay\"\nspace = \"service\""],
            vec!["PATCH /pay: all -> pay, space: path -> service", "POST /pay: all -> pay, space: path -> service"],
        ),
        (
            vec![all, "name = \"any\"\npath = \"/{any}\"\nmethods = [\"POST\"]\nkey = { from = \"header:K\" }"],
            vec!["POST /{any}: all -> any, key's place: \"header:idempotency-key\" -> \"header:k\""],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let before = logged(&world.proxy, REFUSED).len();
        reload(&world, &routes(&world, &lines), REFUSED, before + refused.len()).await;
        assert_eq!(logged(&world.proxy, REFUSED)[before..], refused, "{times}");
        assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    }
    // Routes that find the same keys may share and rename what they like.
    let lines = ["name = \"every\"\npath = \"/{*path}\"", "name = \"pay\"\npath = \"/pay\"\nttl = \"1h\""];
    reload(&world, &routes(&world, &lines), RELOADED, 1).await;
    assert_eq!(logged(&world.proxy, UNGUARDED), [""; 0]);
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
}

#[tokio::test]
async fn a_reload_that_guards_less_warns() {
    let world = World::guarding(Store::sqlite(), "").await;
    world.pay("k-1").send().await;
    reload(&world, &with(&world, "", "mode = \"observe\"").text(), RELOADED, 1).await;
    assert_eq!(logged(&world.proxy, UNGUARDED), ["POST /pay: pay, guarded by: pay -> no route"]);
    reload(&world, &with(&world, "", "space = \"service\"").text(), RELOADED, 2).await;
    assert_eq!(logged(&world.proxy, UNGUARDED).len(), 1, "it was not guarded, so it had no keys");
}

#[tokio::test]
async fn a_reload_and_a_restart_that_guard_fewer_operations_of_a_route_warn() {
    let lines = |operations: &str| format!("dialect = \"mcp\"\noperations = [\"{operations}\"]");
    let mut world = World::guarding(Store::sqlite(), &lines("tools/call")).await;
    let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"pay"}}"#;
    let pay = async |world: &World| world.post("/pay").key("k-1").json(call).send().await.oncegate_status().is_some();
    assert!(pay(&world).await);
    reload(&world, &with(&world, "", &lines("tools/call refund")).text(), RELOADED, 1).await;
    let by = "by JSON-RPC method and name";
    let warned = format!("POST /pay: pay, operations: tools/call {by} -> tools/call refund {by}");
    assert_eq!(logged(&world.proxy, UNGUARDED), [warned]);
    settles(async || !pay(&world).await).await;
    world.restart_as(|setup| setup.route(&route("pay", &lines("tools/call pay")))).await;
    let warned = format!("POST /pay: pay, operations: tools/call refund {by} -> tools/call pay {by}");
    assert_eq!(logged(&world.proxy, UNGUARDED_AT_START), [warned]);
}

on_both_stores!(a_renamed_route_finds_its_keys_by_its_earlier_name);
async fn a_renamed_route_finds_its_keys_by_its_earlier_name(store: Store) {
    let named = |names: &str| format!("{names}\npath = \"/pay\"\nspace = \"route\"");
    let mut world = World::with(store, |setup| setup.route(&named("name = \"pay\""))).await;
    let first = world.pay("k-1").send().await;
    reload(&world, &routes(&world, &[&named("name = \"payments\"")]), REFUSED, 2).await;
    let refused = "POST /pay: pay -> payments, space: route pay -> route payments".to_owned();
    assert!(logged(&world.proxy, REFUSED).contains(&refused));
    let renamed = named("name = \"payments\"\nwas = [\"pay\"]");
    reload(&world, &routes(&world, &[&renamed]), RELOADED, 1).await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    // The oldest name stays the one that keys are found by.
    let again = named("name = \"money\"\nwas = [\"pay\", \"payments\"]");
    world.restart_as(|setup| setup.route(&again)).await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    world.restart_accepting(|setup| setup.route(&named("name = \"money\""))).await;
    let warned = "POST /pay: money -> money, space: route pay -> route money".to_owned();
    assert!(logged(&world.proxy, ACCEPTED).contains(&warned));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
}

on_both_stores!(a_start_that_changes_how_keys_are_found_is_refused_until_exactly_this_change_is_accepted);
async fn a_start_that_changes_how_keys_are_found_is_refused_until_exactly_this_change_is_accepted(store: Store) {
    let guards = |lines: &str| {
        let lines = lines.to_owned();
        move |setup: Setup| setup.route(&route("pay", &lines)).route(&route("look", "mode = \"observe\""))
    };
    let mut world = World::with(store, guards("")).await;
    world.pay("k-1").send().await;
    world.restart_as(guards("ttl = \"1h\"\nkey = { required = true }")).await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("replayed"), "nothing of that finds a key");
    let changed = "space = \"service\"\nkey = { from = \"header:X-Key\" }";
    world.restart_accepting(guards(changed)).await;
    let place = "key's place: \"header:idempotency-key\" -> \"header:x-key\"";
    let accepted = format!("POST /pay: pay -> pay, space: path -> service; {place}");
    assert_eq!(logged(&world.proxy, ACCEPTED), [accepted]);
    let first = world.post("/pay").field("X-Key", "k-1").body("x").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    // The digest may stay in the file, and accepts nothing else.
    world.restart_as(guards(changed)).await;
    assert_eq!(logged(&world.proxy, ACCEPTED), [""; 0], "the change was made");
    assert_eq!(world.proxy.stop().await, Some(0));
    let on_store = || Proxy::on(&world.store.url()).upstream(world.upstream.address);
    let back = guards("")(on_store()).fails().await;
    let digest = accept_route_changes(&back.stderr);
    let other = guards("scope = [\"none\"]")(on_store()).store(&digest).fails().await;
    assert_eq!((back.code, other.code), (78, 78), "{}", other.stderr);
    world.proxy = guards("")(on_store()).store(&digest).start().await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("replayed"), "the way back");
    // Another route takes the path over.
    world.restart_accepting(guards(changed)).await;
    let general = "name = \"all\"\npath = \"/{*rest}\"\nmethods = [\"POST\"]\nspace = \"service\"";
    world.restart_accepting(|setup| setup.route(general)).await;
    world.restart_as(|setup| setup.route("name = \"all\"\npath = \"/v1\"\nspace = \"service\"")).await;
    assert_eq!(logged(&world.proxy, UNGUARDED_AT_START), ["POST /{*rest}: all, guarded by: all -> no route"]);
}

#[tokio::test]
async fn a_restart_compares_with_the_last_reload() {
    let mut world = World::guarding(Store::sqlite(), "").await;
    let more = with(&world, "", "").route(&route("new", "")).text();
    reload(&world, &more, RELOADED, 1).await;
    settles(async || world.post("/new").key("k-1").body("x").send().await.oncegate_status().is_some()).await;
    let pay = route("pay", "");
    world.restart_accepting(|setup| setup.route(&pay).route(&route("new", "space = \"service\""))).await;
    assert_eq!(logged(&world.proxy, ACCEPTED), ["POST /new: new -> new, space: path -> service"]);
}

/// The digests of routes in the metrics of these instances.
async fn identities(proxies: [&Proxy; 2]) -> [String; 2] {
    let line = async |proxy: &Proxy| {
        let metrics = Client { address: proxy.admin }.get("/metrics").send().await.text();
        let line = metrics.lines().find(|line| line.starts_with("oncegate_route_identities_info{")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{metrics}"))
    };
    [line(proxies[0]).await, line(proxies[1]).await]
}

#[tokio::test]
async fn a_rollout_that_changes_how_keys_are_found_stops_at_its_first_new_instance() {
    let world = World::guarding(Store::postgres().await, "").await;
    let first = world.pay("k-77").send().await;
    let rolled = with(&world, "", "space = \"service\"");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("roll.toml");
    std::fs::write(&file, rolled.text()).unwrap();
    let refused = oncegate("check", &file, &["--connect"]).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    let change = "route `pay`: POST /pay would not find their earlier keys any more (space: path -> service, now by route `pay`)";
    assert!(refused.err.contains(change), "{refused:?}");
    let digest = accept_route_changes(&refused.err);
    let ended = rolled.fails().await;
    assert_eq!((ended.code, accept_route_changes(&ended.stderr)), (78, digest.clone()), "{}", ended.stderr);
    assert_eq!(world.pay("k-77").send().await.comparable(), first.replayed());
    let same = world.setup.start().await;
    let [one, other] = identities([&world.proxy, &same]).await;
    assert_eq!(one, other, "the instances find the same keys");
    assert_eq!(same.stop().await, Some(0));

    // A reload is refused for the same change.
    reload(&world, &rolled.text(), REFUSED, 1).await;
    assert_eq!(logged(&world.proxy, REFUSED), ["POST /pay: pay -> pay, space: path -> service"]);

    let accepted = rolled.clone().store(&digest);
    std::fs::write(&file, accepted.text()).unwrap();
    let checked = oncegate("check", &file, &["--connect"]).await;
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(checked.err.contains(&format!("accepted: {change}")), "{checked:?}");
    let new = accepted.start().await;
    let [old, newer] = identities([&world.proxy, &new]).await;
    assert_ne!(old, newer, "an alert sees that they differ");
    // An instance of the old kind that starts again is refused, and so is the way back until it is accepted.
    let rolled_back = world.setup.fails().await;
    assert_eq!(rolled_back.code, 78, "{}", rolled_back.stderr);
    let stays = oncegate("check", &file, &["--connect"]).await;
    assert_eq!(
        (stays.code, stays.err.contains("accepted")),
        (0, false),
        "the digest has no effect any more: {stays:?}"
    );
}

#[tokio::test]
async fn check_names_what_a_configuration_guards_no_more_and_what_it_cannot_compare() {
    let world = World::guarding(Store::postgres().await, "key = { required = true }").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("oncegate.toml");
    std::fs::write(&file, with(&world, "", "").text()).unwrap();
    let less = oncegate("check", &file, &["--connect"]).await;
    assert_eq!(less.code, 0, "{less:?}");
    let warned = "warning: route `pay`: POST /pay are not guarded any more as they were (key: required -> optional)";
    assert!(less.err.contains(warned), "{less:?}");
    world.store.tamper("update oncegate.route_identities set finds = 'scope: '").await;
    let unknown = oncegate("check", &file, &["--connect"]).await;
    assert_eq!(unknown.code, 1, "{unknown:?}");
    assert!(unknown.err.contains("another version of this program"), "{unknown:?}");
    // A start is refused likewise, until somebody says that it may go on.
    let setup = with(&world, "", "");
    let refused = setup.fails().await;
    let digest = accept_route_changes(&unknown.err);
    assert_eq!((refused.code, accept_route_changes(&refused.stderr)), (78, digest.clone()), "{}", refused.stderr);
    let accepted = setup.store(&digest).start().await;
    accepted.wait_for_log("which are not compared, as store.accept_route_changes accepts").await;
    // The routes can be compared again.
    let checked = oncegate("check", &file, &["--connect"]).await;
    assert_eq!((checked.code, checked.err.contains("another version")), (0, false), "{checked:?}");
}

/// A setup that finds the keys elsewhere and is refused for it, and the same with the line that accepts this.
async fn accept(other: Setup) -> [Setup; 2] {
    let refused = other.fails().await;
    assert_eq!(refused.code, 78, "{}", refused.stderr);
    [other.clone(), other.store(&accept_route_changes(&refused.stderr))]
}

#[tokio::test]
async fn a_reload_of_an_instance_with_the_earlier_routes_does_not_bring_them_back() {
    let world = World::guarding(Store::postgres().await, "").await;
    let [changed, accepted] = accept(with(&world, "", "space = \"service\"")).await;
    let new = accepted.start().await;
    // First nothing has changed, or what only a start reads; then a route is added.
    reload(&world, &world.setup.text(), "nothing in it has changed", 1).await;
    let digest = "accept_route_changes = \"3f9a62c1d07be845\"";
    reload(&world, &world.setup.clone().store(digest).text(), RELOADED, 2).await;
    assert!(!world.proxy.output().contains("store has changed, which takes effect"));
    let more = with(&world, "", "").route(&route("new", ""));
    reload(&world, &more.text(), "another instance of this service has stored other routes", 1).await;
    for old in [&world.setup, &more] {
        assert_eq!(old.fails().await.code, 78);
    }
    let other = changed.start().await;
    assert_eq!((other.stop().await, new.stop().await), (Some(0), Some(0)), "the new routes need no digest any more");
}

on_both_stores!(a_start_that_fails_after_the_comparison_has_stored_nothing);
async fn a_start_that_fails_after_the_comparison_has_stored_nothing(store: Store) {
    let mut world = World::guarding(store, "").await;
    assert_eq!(world.proxy.stop().await, Some(0));
    let [_, accepted] = accept(with(&world, "", "space = \"service\"")).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for name in ["ONCEGATE_LISTEN", "ONCEGATE_ADMIN_LISTEN"] {
        let failed = accepted.clone().environment(name, &taken.local_addr().unwrap().to_string()).fails().await;
        assert!(failed.stderr.contains("cannot listen on"), "{}", failed.stderr);
    }
    world.proxy = world.setup.start().await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
}

on_both_stores!(an_accepted_change_is_not_accepted_again_after_the_way_back);
async fn an_accepted_change_is_not_accepted_again_after_the_way_back(store: Store) {
    let world = World::guarding(store, "").await;
    assert_eq!(world.proxy.stop().await, Some(0));
    let starts = async |setup: &Setup| assert_eq!(setup.start().await.stop().await, Some(0));
    // The second one takes the path over with another route, and the way back only removes that.
    let general = "name = \"all\"\npath = \"/{*rest}\"";
    let before = with(&world, "", "").route(general);
    starts(&before).await;
    let more = before.clone().route("name = \"one\"\npath = \"/one\"\nspace = \"service\"");
    for other in [with(&world, "", "space = \"service\"").route(general), more] {
        let [_, accepted] = accept(other).await;
        starts(&accepted).await;
        let [_, back] = accept(before.clone()).await;
        starts(&back).await;
        assert_eq!(accepted.fails().await.code, 78, "{}", accepted.text());
    }
}
