//! Changes of the configuration by which a request would have another fingerprint, and the retries of keys made before.

use harness::proxy::Setup;
use harness::reload::{RELOADED, reload, settles};
use harness::{Answer, Proxy, Request, Store, World, on_both_stores};

/// Routes before and after a change, and the path that a client sends each time.
struct RouteChange {
    before: &'static [&'static str],
    after: &'static [&'static str],
    target: &'static str,
}

const fn change(before: &'static [&'static str], after: &'static [&'static str], target: &'static str) -> RouteChange {
    RouteChange { before, after, target }
}

/// The changes of a route by which a path would count in another form.
const CHANGES: [RouteChange; 9] = [
    // The route takes more spellings, or fewer.
    change(&["/v1/Pay/ refuse"], &["/v1/Pay/ same"], "/v1/Pay/"),
    change(&["/v1/Pay/ pass"], &["/v1/Pay/ same"], "/v1/Pay/"),
    change(&["/{*rest} refuse"], &["/{*rest} same"], "/v1/a%2Fb"),
    change(&["/v1/Pay/ same"], &["/v1/Pay/ refuse"], "/v1/Pay/"),
    change(&["/{*rest} same"], &["/{*rest} pass"], "/v1/a%2Fb"),
    // A more specific route is added, or removed.
    change(&["/{*rest} same"], &["/{*rest} same", "/v1/pay same"], "/V1/Pay"),
    change(&["/v1/{id}/pay same", "/v1/X/pay same"], &["/v1/{id}/pay same"], "/v1/X/Pay"),
    // A literal's letters are corrected.
    change(&["/V1/pay same"], &["/v1/Pay same"], "/v1/pay"),
    change(&["/v1/{id}/PAY same"], &["/v1/{id}/pay same"], "/V1/aB/Pay"),
];

/// A setup with these routes, each as its path and spelling, and a marker for this number of changes.
fn with_routes(setup: Setup, routes: &[&str], changes: usize) -> Setup {
    let marker = format!("name = \"marker\"\npath = \"/marker{changes}\"\nkey = {{ required = true }}");
    let routes = routes.iter().enumerate().map(|(number, route)| {
        let (path, spelling) = route.split_once(' ').unwrap();
        format!("name = \"r{number}\"\npath = \"{path}\"\nmethods = [\"POST\"]\nspelling = \"{spelling}\"")
    });
    routes.chain([marker]).fold(setup, |setup, lines| setup.route(&lines))
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Reload,
    Restart,
}

async fn apply(world: &mut World, way: Way, change: impl Fn(Setup) -> Setup, marker: &str) {
    match way {
        Way::Reload => {
            let setup = change(Proxy::on(&world.store.url()).upstream(world.upstream.address));
            reload(world, &setup.text(), RELOADED, 1).await;
            let target = marker.to_owned();
            settles(async || world.post(&target).body("x").send().await.status == 400).await;
        }
        Way::Restart => world.restart_as(change).await,
    }
}

fn pay(world: &World, target: &str, key: &str, amount: u32) -> Request {
    world.post(target).key(key).json(&format!(r#"{{"amount":{amount}}}"#))
}

async fn retries_are_compared_in_the_form_of_their_first_attempt(way: Way) {
    for RouteChange { before, after, target } in CHANGES {
        let mut world = World::with(Store::sqlite(), |setup| with_routes(setup, before, 0)).await;
        world.upstream.then(Answer::status(201)).then(Answer::close());
        let first = pay(&world, target, "stored", 1).send().await;
        assert_eq!(first.oncegate_status(), Some("executed"), "{target}");
        assert_eq!(pay(&world, target, "unknown", 1).send().await.outcome(), (502, "upstream-broken".to_owned()));
        apply(&mut world, way, |setup| with_routes(setup, after, 1), "/marker1").await;
        let text = format!("{before:?} {after:?} {target} {way:?}");
        assert_eq!(pay(&world, target, "stored", 1).send().await.comparable(), first.replayed(), "{text}");
        let unknown = pay(&world, target, "unknown", 1).send().await;
        assert_eq!(unknown.outcome(), (409, "outcome-unknown".to_owned()), "{text}");
        assert_eq!(unknown.problem()["retry"], "reconcile", "{text}");
        for key in ["stored", "unknown"] {
            let other = pay(&world, target, key, 2).send().await;
            assert_eq!(other.outcome(), (422, "key-reused".to_owned()), "{text}");
            assert_eq!(world.upstream.executed_for(key), 1, "{text}");
        }
    }
}

#[tokio::test]
async fn a_reload_changes_no_fingerprint_of_an_earlier_key() {
    retries_are_compared_in_the_form_of_their_first_attempt(Way::Reload).await;
}

#[tokio::test]
async fn a_restart_changes_no_fingerprint_of_an_earlier_key() {
    retries_are_compared_in_the_form_of_their_first_attempt(Way::Restart).await;
}

const OLD: &str = "an old secret of 32 bytes, or so";
const NEW: &str = "the new secret that comes after";
const DROPPED: &str = "these secrets are not configured any more";
const LOST: &str = "cannot be compared with the first ones of their keys";

/// A route `/pay`, a marker for this number of changes, and these secrets, the current one first.
fn with_secrets(setup: Setup, secrets: &[&str], changes: usize) -> Setup {
    let setup = setup.top(&format!("secret = {:?}\nprevious_secrets = {:?}", secrets[0], &secrets[1..]));
    with_routes(setup, &["/pay refuse"], changes)
}

async fn a_retry_without_its_secret_is_told_to_reconcile(store: Store, way: Way) {
    let mut world = World::with(store, |setup| with_secrets(setup, &[OLD], 0)).await;
    world.upstream.then(Answer::status(201)).then(Answer::close());
    let first = pay(&world, "/pay", "stored", 1).send().await;
    assert_eq!(pay(&world, "/pay", "unknown", 1).send().await.status, 502);
    world.restart_as(|setup| with_secrets(setup, &[NEW, OLD], 0)).await;
    assert_eq!(pay(&world, "/pay", "stored", 1).send().await.comparable(), first.replayed());
    apply(&mut world, way, |setup| with_secrets(setup, &[NEW], 1), "/marker1").await;
    world.proxy.wait_for_logs(DROPPED, 1).await;
    for key in ["stored", "unknown"] {
        for amount in [1, 2] {
            let refused = pay(&world, "/pay", key, amount).send().await;
            assert_eq!(refused.outcome(), (409, "outcome-unknown".to_owned()), "{key} {amount}");
            assert_eq!(refused.problem()["retry"], "reconcile", "{key} {amount}");
        }
    }
    let lost: Vec<_> =
        world.proxy.logged().into_iter().filter(|line| line["message"].as_str().unwrap().contains(LOST)).collect();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(lost[0]["level"], "ERROR");
    world.restart_as(|setup| with_secrets(setup, &[NEW, OLD], 2)).await;
    assert_eq!(pay(&world, "/pay", "stored", 1).send().await.comparable(), first.replayed(), "the secret is back");
    assert_eq!(pay(&world, "/pay", "stored", 2).send().await.outcome(), (422, "key-reused".to_owned()));
    assert_eq!(pay(&world, "/pay", "new", 1).send().await.oncegate_status(), Some("executed"));
    for key in ["stored", "unknown", "new"] {
        assert_eq!(world.upstream.executed_for(key), 1, "{key}");
    }
}

on_both_stores!(a_reload_that_drops_a_secret_warns_and_asks_no_client_for_a_new_key);
async fn a_reload_that_drops_a_secret_warns_and_asks_no_client_for_a_new_key(store: Store) {
    a_retry_without_its_secret_is_told_to_reconcile(store, Way::Reload).await;
}

on_both_stores!(a_start_without_an_earlier_secret_warns_and_asks_no_client_for_a_new_key);
async fn a_start_without_an_earlier_secret_warns_and_asks_no_client_for_a_new_key(store: Store) {
    a_retry_without_its_secret_is_told_to_reconcile(store, Way::Restart).await;
}
