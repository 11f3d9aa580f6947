//! The counts of a week, by route and caller: `GET /api/v1/saved`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Metrics;
use harness::operator::{Operator, completed, keys};
use harness::{Answer, Hold, Proxy, Store, TEST_TIMEOUT, World, eventually, on_both_stores, route};

async fn saved(proxy: &Proxy) -> Value {
    let (status, saved) = Operator::of(proxy).get("/api/v1/saved").await;
    assert_eq!(status, 200, "{saved}");
    saved
}

/// The sums of a list's counts by route and kind.
fn sums(counts: &Value) -> BTreeMap<(String, String), f64> {
    let mut sums = BTreeMap::new();
    for count in counts.as_array().unwrap() {
        let name = |name: &str| count[name].as_str().unwrap().to_owned();
        *sums.entry((name("route"), name("kind"))).or_insert(0.0) += count["count"].as_f64().unwrap();
    }
    sums
}

/// Sends requests of all kinds to an instance, and has an unknown outcome resolved by another one.
async fn use_all_kinds(world: &World, proxy: &Proxy, resolving: &Proxy, name: &str) {
    let pay =
        |key: &str| proxy.post("/pay").key(&format!("{key}-{name}")).field("Authorization", "Bearer alice").body("x");
    for _ in 0..3 {
        assert_eq!(pay("done").send().await.status, 201);
    }
    assert_eq!(pay("done").body("else").send().await.status, 422);
    let hold = Hold::new();
    world.upstream.answer_for(&format!("held-{name}"), Answer::status(200).hold(&hold));
    let before = world.upstream.calls();
    let first = pay("held").spawn();
    eventually(TEST_TIMEOUT, async || (world.upstream.calls() > before).then_some(())).await;
    assert_eq!(pay("held").send().await.status, 409);
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().status, 200);
    world.upstream.answer_for(&format!("lost-{name}"), Answer::close());
    assert_eq!(pay("lost").send().await.status, 502);
    assert_eq!(pay("lost").send().await.status, 409);
    let operator = Operator::of(resolving);
    let id = operator.id_when(&format!("lost-{name}"), "unknown").await;
    assert_eq!(operator.resolve(&id, completed(201, "by hand")).await.0, 200);
    for (path, key) in [("/pay", None), ("/pay", None), ("/elsewhere", None), ("/elsewhere", Some("k"))] {
        let request = proxy.post(path).field("Authorization", "Bearer bob").body("x");
        assert_eq!(key.map_or(request.clone(), |key| request.key(key)).send().await.status, 201);
    }
    for _ in 0..2 {
        assert_eq!(proxy.post("/seen").key(&format!("seen-{name}")).body("x").send().await.status, 201);
    }
    // The comparison of an observed request runs beside it.
    let observed = async || Metrics::of(proxy).await.sum("oncegate_reservations_total{route=\"seen\"");
    eventually(TEST_TIMEOUT, async || (observed().await == 2.0).then_some(())).await;
}

on_both_stores!(the_store_has_the_sums_of_the_metrics_of_all_instances);
async fn the_store_has_the_sums_of_the_metrics_of_all_instances(store: Store) {
    let routes = |setup: harness::Setup| setup.route(&route("pay", "")).route(&route("seen", "mode = \"observe\""));
    let mut world = World::with(store, routes).await;
    let other = match &world.store {
        Store::Postgres(_) => Some(world.setup.start().await),
        Store::Sqlite(_) => None,
    };
    let proxies: Vec<&Proxy> = std::iter::once(&world.proxy).chain(&other).collect();
    for (number, proxy) in proxies.iter().enumerate() {
        use_all_kinds(&world, proxy, proxies[0], &number.to_string()).await;
    }
    let mut metrics = Vec::new();
    for proxy in &proxies {
        metrics.push(Metrics::of(proxy).await);
    }
    let all = |prefix: &str| metrics.iter().map(|metrics| metrics.sum(prefix)).sum::<f64>();
    let reserved = |route: &str, result: &str| {
        all(&format!("oncegate_reservations_total{{route=\"{route}\",result=\"{result}\"}}"))
    };
    let of = |route: &str, kind: &str, count: f64| ((route.to_owned(), kind.to_owned()), count);
    let unkeyed = all("oncegate_unguarded_total") - all("oncegate_unguarded_keys_total");
    let instances = proxies.len() as f64;
    let mut expected = BTreeMap::from([
        of("seen", "observed", reserved("seen", "replay") + reserved("seen", "in_flight")),
        of("pay", "made_unknown", all("oncegate_unknown_total")),
        of("pay", "resolved", all("oncegate_unknown_resolved_seconds_count")),
        of("pay", "unkeyed", 2.0 * instances),
        of("", "unkeyed", unkeyed - 2.0 * instances),
    ]);
    expected
        .extend(["replay", "in_flight", "unknown", "key_misuse"].map(|kind| of("pay", kind, reserved("pay", kind))));
    assert_eq!(expected[&("pay".to_owned(), "replay".to_owned())], 2.0 * instances);
    assert!(expected.values().all(|count| *count >= instances), "{expected:?}");

    // A drain adds the last counts.
    if let Some(other) = &other {
        assert_eq!(other.stop().await, Some(0));
    }
    assert_eq!(world.proxy.stop().await, Some(0));
    world.proxy = world.setup.start().await;
    let found = saved(&world.proxy).await;
    for list in ["weeks", "callers"] {
        let mut sums = sums(&found[list]);
        // Whole seconds, of which a quick test has none or some.
        sums.retain(|(_, kind), _| kind != "resolved_seconds");
        assert_eq!(sums, expected, "{list}");
    }
    let of_kind = |kind: &str, route: &str| {
        let callers = found["callers"].as_array().unwrap().iter();
        let names =
            callers.filter(|it| it["kind"] == kind && it["route"] == route).map(|it| it["caller"].as_str().unwrap());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let ([alice], [bob]) = (&*of_kind("replay", "pay"), &*of_kind("unkeyed", "pay")) else { panic!("{found}") };
    assert_ne!(alice, bob, "the caller of a request without a key is known by the route's scope");
    assert_eq!(of_kind("unkeyed", ""), ["none"]);
    let of_alice = Operator::of(&world.proxy).keys(&format!("scope={alice}")).await;
    assert_eq!(of_alice.len() as f64, 3.0 * instances, "the digits find the caller's keys");
    assert!(!found.to_string().contains("Bearer"));
    for no_monday in ["lost", "2026-01-06", "2026-01-05T12:00"] {
        assert_eq!(Operator::of(&world.proxy).get(&format!("/api/v1/saved?week={no_monday}")).await.0, 400);
    }
    assert_eq!(
        Operator::of(&world.proxy).get("/api/v1/saved?week=2026-01-05").await.1["callers"],
        serde_json::json!([])
    );
}

on_both_stores!(the_counts_of_a_caller_who_is_erased_name_nobody);
async fn the_counts_of_a_caller_who_is_erased_name_nobody(store: Store) {
    let world = World::guarding(store, "scope = [\"authorization\"]").await;
    for caller in ["Bearer alice", "Bearer bob"] {
        for _ in 0..2 {
            world.pay("k").field("Authorization", caller).send().await;
        }
    }
    let before = saved(&world.proxy).await;
    assert_eq!(before["callers"].as_array().unwrap().len(), 2, "{before}");
    let (file, admin) = (world.proxy.file(), world.proxy.admin.to_string());
    // The caller's keys may be gone before.
    let purged = keys(&file, &["purge", "--all", "--yes", "--accept-risk", "--admin", &admin]).await;
    assert_eq!(purged.code, 0, "{purged:?}");
    let redacted = keys(&file, &["redact", "--caller", "authorization=Bearer alice", "--yes", "--admin", &admin]).await;
    assert_eq!(redacted.code, 0, "{redacted:?}");
    let after = saved(&world.proxy).await;
    assert_eq!(after["weeks"], before["weeks"], "no count is lost");
    let names = |saved: &Value| {
        let callers = saved["callers"].as_array().unwrap().iter();
        callers.map(|it| it["caller"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (before, after) = (names(&before), names(&after));
    assert_eq!(after.iter().filter(|name| before.contains(name)).count(), 1, "{after:?}");
    assert_eq!(after.iter().filter(|name| name.starts_with("erased-")).count(), 1, "{after:?}");
}
