//! Responses over the route's limit: the first caller gets them complete, and no retry executes again.

use std::time::Duration;

use tokio::time::sleep;

use harness::metrics::more_store_calls;
use harness::{Answer, Client, Exchange, Hold, Store, TEST_TIMEOUT, World, eventually, on_both_stores, route};

const LIMIT: &str = "max_response_body = \"64KiB\"";

/// More bytes than all buffers on the way hold.
const HUGE: usize = 40 << 20;

fn large() -> Vec<u8> {
    (0..300_000_u32).map(|number| u8::try_from(number % 251).unwrap()).collect()
}

async fn is_not_kept(world: &World, key: &str) {
    let retry = world.pay(key).send().await;
    assert_eq!((retry.outcome(), retry.oncegate_status()), ((409, "response-not-kept".to_owned()), Some("replayed")));
    assert_eq!(retry.problem()["retry"], "reconcile");
    assert_eq!(world.pay(key).body("else").send().await.outcome(), (422, "key-reused".to_owned()));
}

on_both_stores!(a_response_too_large_to_keep_goes_to_the_first_caller_whole);
async fn a_response_too_large_to_keep_goes_to_the_first_caller_whole(store: Store) {
    let world = World::guarding(store, LIMIT).await;
    world.upstream.then(Answer::status(200).field("X-A", "1").body(large()));
    let first = world.pay("k-1").send().await;
    assert_eq!((first.status, first.oncegate_status(), first.field("x-a")), (200, Some("executed"), Some("1")));
    assert!(first.body == large(), "every byte of it");
    is_not_kept(&world, "k-1").await;
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_large_chunked_response_is_passed_on_with_its_trailers() {
    let world = World::guarding(Store::sqlite(), LIMIT).await;
    let chunk = "x".repeat(40_000);
    let answer = Answer::status(200).chunks(&[&chunk, &chunk, &chunk]);
    // A streamed response announces only the trailers that its sender announced.
    world.upstream.then(answer.field("Trailer", "X-Checksum").trailer("X-Checksum", "7"));
    let first = world.pay("k-1").field("TE", "trailers").send().await;
    assert_eq!((first.body.len(), first.oncegate_status()), (120_000, Some("executed")));
    assert_eq!(first.trailers, [("x-checksum".to_owned(), "7".to_owned())]);
    is_not_kept(&world, "k-1").await;
}

#[tokio::test]
async fn a_response_at_the_limit_is_kept() {
    let world = World::guarding(Store::sqlite(), LIMIT).await;
    world.upstream.then(Answer::status(200).body("x".repeat(64 * 1024)));
    let first = world.pay("k-1").send().await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
}

on_both_stores!(while_a_large_response_streams_its_key_is_in_flight);
async fn while_a_large_response_streams_its_key_is_in_flight(store: Store) {
    let world = World::guarding(store, LIMIT).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(200).body(large()).hold_midway(&hold));
    let mut first = world.pay("k-1").open().await.unwrap();
    first.any_head().await.unwrap();
    let mut came = first.piece().await.unwrap().unwrap();
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "in-flight".to_owned()));
    hold.release();
    while let Some(piece) = first.piece().await.unwrap() {
        came.extend(piece);
    }
    assert!(came == large());
    is_not_kept(&world, "k-1").await;
}

on_both_stores!(a_large_response_that_breaks_off_is_cut_for_the_client_too);
async fn a_large_response_that_breaks_off_is_cut_for_the_client_too(store: Store) {
    let world = World::guarding(store, LIMIT).await;
    world.upstream.then(Answer::status(200).body(large()).cut_after(200_000));
    world.pay("k-1").try_send().await.expect_err("an incomplete body is an error");
    let chunk = "x".repeat(40_000);
    world.upstream.then(Answer::status(200).chunks(&[&chunk, &chunk, &chunk]).cut_after(100_000));
    world.pay("k-2").try_send().await.expect_err("an incomplete body is an error");
    for key in ["k-1", "k-2"] {
        assert_eq!(world.pay(key).send().await.outcome(), (409, "outcome-unknown".to_owned()));
    }
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_large_response_is_released_or_unknown_by_its_status() {
    let world = World::guarding(Store::sqlite(), LIMIT).await;
    for (status, oncegate_status, then) in [(500, "released", (201, "")), (502, "unknown", (409, "outcome-unknown"))] {
        let key = format!("k-{status}");
        world.upstream.then(Answer::status(status).body(large()));
        let first = world.pay(&key).send().await;
        assert_eq!(
            (first.status, first.oncegate_status(), first.body.len()),
            (status, Some(oncegate_status), large().len())
        );
        assert_eq!(world.pay(&key).send().await.outcome(), (then.0, then.1.to_owned()));
    }
}

on_both_stores!(a_client_that_leaves_a_large_response_changes_nothing);
async fn a_client_that_leaves_a_large_response_changes_nothing(store: Store) {
    let world = World::guarding(store, LIMIT).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(200).body(large()).hold_midway(&hold));
    let mut first = world.pay("k-1").open().await.unwrap();
    first.any_head().await.unwrap();
    drop(first);
    hold.release();
    eventually(TEST_TIMEOUT, async || {
        let (status, slug) = world.pay("k-1").send().await.outcome();
        assert_eq!(status, 409);
        (slug != "in-flight").then(|| assert_eq!(slug, "response-not-kept"))
    })
    .await;
    assert_eq!(world.upstream.calls(), 1);
}

/// Starts a request whose large response the client does not read on.
async fn stalled(world: &World) -> Exchange {
    world.upstream.then(Answer::status(200).body(vec![7; HUGE]));
    let mut first = world.pay("k-1").open().await.unwrap();
    first.any_head().await.unwrap();
    first
}

#[tokio::test]
async fn a_slow_client_of_a_large_response_lets_no_other_instance_execute_again() {
    let lines = "on_unknown = \"retry-when-quiet\"\nreconcile = { after = \"0s\" }\nupstream_timeout = \"500ms\"";
    let world = World::with(Store::postgres().await, |setup| {
        setup.short_leases().store("timeout = \"500ms\"").route(&route("pay", &format!("{LIMIT}\n{lines}")))
    })
    .await;
    let other = world.setup.start().await;
    let mut first = stalled(&world).await;
    let is_in_flight = async || {
        let duplicate = other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#).send().await;
        assert_eq!(duplicate.outcome(), (409, "in-flight".to_owned()));
    };
    // The reserved time limit is 2 s, and a lease of 1 s later the sweeper would take the attempt for ended.
    eventually(TEST_TIMEOUT, async || {
        is_in_flight().await;
        world.store.reserved_longer_ago_than(Duration::from_secs(3)).await.then_some(())
    })
    .await;
    more_store_calls(&other, "sweep", 2).await;
    is_in_flight().await;
    let mut came = 0;
    while let Some(piece) = first.piece().await.unwrap() {
        came += piece.len();
    }
    assert_eq!(came, HUGE);
    is_not_kept(&world, "k-1").await;
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(a_large_response_is_cut_if_its_key_is_settled_otherwise_before_its_end);
async fn a_large_response_is_cut_if_its_key_is_settled_otherwise_before_its_end(store: Store) {
    let world = World::guarding(store, LIMIT).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(200).body(large()).hold_midway(&hold));
    let mut first = world.pay("k-1").open().await.unwrap();
    first.any_head().await.unwrap();
    let reservation = world.upstream.last().field("oncegate-reservation").unwrap().to_owned();
    let admin = Client { address: world.proxy.admin };
    let report = admin.post(&format!("/app/v1/reservations/{reservation}/complete"));
    let report = report.host(&world.proxy.admin.to_string()).json(r#"{"status":201,"body":"reported"}"#);
    assert_eq!(report.send().await.status, 200);
    hold.release();
    let cut = async {
        while first.piece().await?.is_some() {}
        Ok::<_, std::io::Error>(())
    };
    cut.await.expect_err("the stored response is another one");
    assert_eq!(world.pay("k-1").send().await.text(), "reported");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_client_that_reads_slower_than_the_upstream_timeout_makes_nothing_unknown() {
    const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(1);
    let timeout = format!("upstream_timeout = \"{}s\"", UPSTREAM_TIMEOUT.as_secs());
    let world = World::guarding(Store::sqlite(), &format!("{LIMIT}\n{timeout}")).await;
    let mut first = stalled(&world).await;
    // Time and not an event: the client is slow.
    sleep(2 * UPSTREAM_TIMEOUT + Duration::from_millis(500)).await;
    let mut came = 0;
    while let Some(piece) = first.piece().await.unwrap() {
        came += piece.len();
    }
    assert_eq!(came, HUGE);
    is_not_kept(&world, "k-1").await;
    assert_eq!(world.upstream.calls(), 1);
}
