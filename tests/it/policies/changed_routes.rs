//! Routes that a reload or a restart changes, and the keys that were made before.

use super::reload::{REFUSED, RELOADED, reload, settles, with};
use crate::harness::proxy::Setup;
use crate::harness::{Proxy, Store, World, on_both_stores, route};

const CHANGED_AT_START: &str = "in another way than at the last start";
const UNGUARDED: &str = "these requests are not guarded any more";
const UNGUARDED_AT_START: &str = "were guarded at the last start and are not any more";

/// The log lines with that message, each as `POST /pay: pay -> new, space: path -> service` or `POST /pay: pay`.
fn logged(proxy: &Proxy, message: &str) -> Vec<String> {
    let lines = proxy.logged().into_iter().filter(|line| line["message"].as_str().unwrap().contains(message));
    let text = |line: serde_json::Value| {
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        let change = text("new_route").map(|new| format!(" -> {new}, {}", text("changed").unwrap()));
        format!("{}: {}{}", text("requests").unwrap(), text("route").unwrap(), change.unwrap_or_default())
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
            vec![all, "name = \"any\"\npath = \"/{any}\"\nmethods = [\"POST\"]\nkey = { header = \"K\" }"],
            vec!["POST /{any}: all -> any, key's place: header:\"idempotency-key\" -> header:\"k\""],
        ),
        (
            vec![all, "name = \"one\"\npath = \"/pay\"\nmethods = [\"POST\"]\nhost = \"a.example\""],
            vec!["POST a.example/pay: all -> one, host: any -> a.example"],
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
    assert_eq!(logged(&world.proxy, UNGUARDED), ["POST /pay: pay"]);
    reload(&world, &with(&world, "", "space = \"service\"").text(), RELOADED, 2).await;
    assert_eq!(logged(&world.proxy, UNGUARDED).len(), 1, "it was not guarded, so it had no keys");
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
    assert_eq!(logged(&world.proxy, CHANGED_AT_START), [""; 0]);
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    world.restart_as(|setup| setup.route(&named("name = \"money\""))).await;
    let warned = "POST /pay: money -> money, space: route pay -> route money".to_owned();
    assert!(logged(&world.proxy, CHANGED_AT_START).contains(&warned));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
}

on_both_stores!(a_restart_that_changes_how_keys_are_found_warns);
async fn a_restart_that_changes_how_keys_are_found_warns(store: Store) {
    let guards = |lines: &'static str| {
        move |setup: Setup| setup.route(&route("pay", lines)).route(&route("look", "mode = \"observe\""))
    };
    let mut world = World::with(store, guards("")).await;
    world.pay("k-1").send().await;
    world.restart_as(guards("ttl = \"1h\"\nkey = { required = true }")).await;
    assert_eq!(logged(&world.proxy, CHANGED_AT_START), [""; 0], "nothing of that finds a key");
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("replayed"));
    let changed = "space = \"service\"\nkey = { header = \"X-Key\" }";
    world.restart_as(guards(changed)).await;
    let place = "key's place: header:\"idempotency-key\" -> header:\"x-key\"";
    let warned = format!("POST /pay: pay -> pay, space: path -> service; {place}");
    assert_eq!(logged(&world.proxy, CHANGED_AT_START), [warned]);
    world.restart_as(guards(changed)).await;
    assert_eq!(logged(&world.proxy, CHANGED_AT_START), [""; 0], "it is logged once");
    let general = "name = \"all\"\npath = \"/{*rest}\"\nmethods = [\"POST\"]\nspace = \"service\"";
    world.restart_as(|setup| setup.route(general)).await;
    assert_eq!(logged(&world.proxy, CHANGED_AT_START).len(), 1, "another route has the path");
    world.restart_as(|setup| setup.route("name = \"all\"\npath = \"/v1\"\nspace = \"service\"")).await;
    assert_eq!(logged(&world.proxy, UNGUARDED_AT_START), ["POST /{*rest}: all"]);
}

#[tokio::test]
async fn a_restart_compares_with_the_last_reload() {
    let mut world = World::guarding(Store::sqlite(), "").await;
    let more = with(&world, "", "").route(&route("new", "")).text();
    reload(&world, &more, RELOADED, 1).await;
    settles(async || world.post("/new").key("k-1").body("x").send().await.oncegate_status().is_some()).await;
    let pay = route("pay", "");
    world.restart_as(|setup| setup.route(&pay).route(&route("new", "space = \"service\""))).await;
    assert_eq!(logged(&world.proxy, CHANGED_AT_START), ["POST /new: new -> new, space: path -> service"]);
}
