//! The pages of the routes and of the instances.

use std::time::Duration;

use super::Visitor;
use harness::reload::{RELOADED, reload};
use harness::{Answer, Hold, Proxy, Store, TEST_TIMEOUT, World, eventually, on_both_stores, route};

/// The text between the first `before` after `start` and the next `after`.
fn between<'a>(page: &'a str, start: &str, before: &str, after: &str) -> &'a str {
    let rest = page.split_once(start).unwrap_or_else(|| panic!("{start}: {page}")).1;
    let rest = rest.split_once(before).unwrap_or_else(|| panic!("{before}: {rest}")).1;
    rest.split_once(after).unwrap_or_else(|| panic!("{after}: {rest}")).0
}

/// The value and the place of a setting, as the page shows them.
fn setting<'a>(page: &'a str, route: &str, label: &str) -> (&'a str, &'a str) {
    let policy = page.split_once(&format!("<summary>Policy of {route}</summary>")).unwrap().1;
    let row = between(policy, &format!("<span role=\"cell\">{label}</span>"), "", "</div>");
    let value = between(row, "<span role=\"cell\">", "", "</span>");
    (value, between(row, "class=\"why\">", "", "</span>"))
}

on_both_stores!(the_routes_page_shows_each_policy_and_where_its_values_come_from);
async fn the_routes_page_shows_each_policy_and_where_its_values_come_from(store: Store) {
    let routes = |setup: harness::Setup| {
        setup
            .top("cors = { origins = [\"https://shop.example\"] }")
            .defaults("ttl = \"48h\"\nin_flight = \"wait\"\nkey = { required = true }")
            .route(&route("pay", "ttl = \"2h\"\nafter_ttl = \"refuse\"\nkey = { min_length = 8 }"))
            .route(&route("refund", "scope = [\"none\"]\nwait_timeout = \"3s\""))
    };
    let world = World::with(store, routes).await;
    let visitor = Visitor::of(&world);
    let page = visitor.page("/routes").await;
    for (route, label, value, from) in [
        ("pay", "matches", "POST /pay", "route: methods, path"),
        ("pay", "ttl", "2h, then refused for 30d", "route: after_ttl, ttl"),
        (
            "pay",
            "key",
            "header:idempotency-key, required, 8 to 255 characters",
            "route: key.min_length; [defaults]: key.required",
        ),
        ("pay", "space", "path", "built-in"),
        ("refund", "ttl", "2d, then forgotten", "[defaults]: ttl"),
        ("refund", "in flight", "wait up to 3s", "route: wait_timeout; [defaults]: in_flight"),
        ("refund", "scope", "none", "route: scope"),
    ] {
        assert_eq!(setting(&page, route, label), (value, from), "{route} {label}");
    }
    assert_eq!(setting(&page, "pay", "upstream").1, "top of the file: upstream");
    assert_eq!(setting(&page, "pay", "cors").1, "top of the file: cors.origins");
    assert!(
        page.contains("Warnings of the configuration") && page.contains("route `refund`: scope is `none`"),
        "{page}"
    );
    assert!(page.contains("No requests in the last hour.") && page.contains("no attempt yet"), "{page}");
    assert!(page.contains("<a href=\"/routes\" aria-current=\"page\">"), "{page}");

    let new = Proxy::on(&world.store.url()).upstream(world.upstream.address);
    let new = new.route(&route("pay", "ttl = \"2h\"\nmode = \"observe\"")).text();
    reload(&world, &new, RELOADED, 1).await;
    let page =
        eventually(TEST_TIMEOUT, async || Some(visitor.page("/routes").await).filter(|page| page.contains("observe")))
            .await;
    assert!(!page.contains("refund") && !page.contains("Warnings of the configuration"), "{page}");
}

on_both_stores!(the_routes_page_shows_the_outcomes_of_the_last_hour_as_a_chart_and_in_words);
async fn the_routes_page_shows_the_outcomes_of_the_last_hour_as_a_chart_and_in_words(store: Store) {
    let world = World::guarding(store, "").await;
    for key in ["k-1", "k-2", "k-2"] {
        assert_eq!(world.pay(key).send().await.status, 201);
    }
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("k-3").send().await.oncegate_status(), Some("unknown"));
    let visitor = Visitor::of(&world);
    // A request is counted when its trace ends, which may be after its response.
    let page = eventually(TEST_TIMEOUT, async || {
        let page = visitor.page("/routes").await;
        let words = "Outcomes of the last hour by minute: 2 executed, 1 replayed, 1 unknown or unstored; at most ";
        page.contains(words).then_some(page)
    })
    .await;
    for (status, count) in [("executed", 2), ("replayed", 1), ("unknown", 1)] {
        let row = between(&page, &format!("<code>{status}</code>"), "", "</div>");
        let cell = format!("<span role=\"cell\">{count}</span>");
        assert_eq!(row.matches(&cell).count(), 2, "in the last hour and since the start: {row}");
    }
    for part in ["<svg role=\"img\" aria-label=", "<rect class=\"executed\"", "<rect class=\"unknown\""] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("style="), "the policy of the page forbids style attributes");
}

/// Longer than the least `Retry-After`, which is a second.
const LATENCY: Duration = Duration::from_millis(1_100);

#[tokio::test]
async fn the_routes_page_tells_the_retry_after_that_duplicates_get() {
    let world = World::guarding(Store::sqlite(), "").await;
    let visitor = Visitor::of(&world);
    let retry_after = |page: &str| {
        between(page, "<code>Retry-After</code>", "<span class=\"figure\">", " s</span>").parse::<u64>().unwrap()
    };
    assert_eq!(retry_after(&visitor.page("/routes").await), 1, "the least");
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let slow = world.pay("slow").spawn();
    world.upstream.wait_for_executed(1).await;
    // Time and not an event: the latency of the attempt is what this test is about.
    tokio::time::sleep(LATENCY).await;
    hold.release();
    assert_eq!(slow.await.unwrap().unwrap().status, 201);
    let page = visitor.page("/routes").await;
    let average = between(&page, "Average latency", "<span class=\"figure\">", " ms</span>").parse::<u64>().unwrap();
    assert!(u128::from(average) >= LATENCY.as_millis(), "{average}");
    assert_eq!(retry_after(&page), average.div_ceil(1_000));
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(2).await;
    let told: u64 = world.pay("k-1").send().await.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=retry_after(&page)).contains(&told), "{told}");
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().status, 201);
}

on_both_stores!(the_instances_page_shows_the_load_of_this_instance_and_its_lease);
async fn the_instances_page_shows_the_load_of_this_instance_and_its_lease(store: Store) {
    let world = World::guarding(store, "").await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let running = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let page = Visitor::of(&world).page("/instances").await;
    let value = |label: &str| between(&page, &format!("<dt>{label}</dt>"), "<dd>", "</dd>");
    let id = between(value("Id"), "<code>", "", "</code>");
    assert!(value("Version").contains(env!("CARGO_PKG_VERSION")), "{page}");
    assert_eq!((value("Connections of clients"), value("Lease")), ("1", "held"));
    assert!(
        value("Attempts in flight").starts_with('1') && value("Breaker of the store").starts_with("closed"),
        "{page}"
    );
    assert!(page.contains(&format!("<code>{id}</code> <strong>this one</strong>")), "{page}");
    assert_eq!(page.matches("this one").count(), 1, "{page}");
    assert!(!page.contains("lease has run out"), "{page}");
    hold.release();
    assert_eq!(running.await.unwrap().unwrap().status, 201);
}

#[tokio::test]
async fn the_instances_page_shows_the_leases_of_other_instances_of_the_service_alone() {
    let world = World::guarding(Store::postgres().await, "").await;
    let start = async |service: &str| {
        let setup = Proxy::on(&world.store.url()).upstream(world.upstream.address).route(&route("pay", ""));
        setup.top(&format!("service = \"{service}\"")).start().await
    };
    let _bank = start("bank").await;
    let killed = start("default").await;
    let visitor = Visitor::of(&world);
    let leases = async || visitor.page("/instances").await.matches("Lease until").count() - 1;
    assert_eq!(leases().await, 2);
    killed.kill9().await;
    assert_eq!(leases().await, 2, "its lease is there until somebody deletes it");
}
