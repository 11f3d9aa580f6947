//! Responses over the route's limit: the first caller gets them complete, and no retry executes again.

use crate::harness::{Answer, Hold, Store, World, on_both_stores};

const LIMIT: &str = "max_response_body = \"64KiB\"";

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
    crate::harness::eventually(crate::harness::TEST_TIMEOUT, async || {
        let (status, slug) = world.pay("k-1").send().await.outcome();
        assert_eq!(status, 409);
        (slug != "in-flight").then(|| assert_eq!(slug, "response-not-kept"))
    })
    .await;
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_client_that_reads_slower_than_the_upstream_timeout_makes_nothing_unknown() {
    let world = World::guarding(Store::sqlite(), &format!("{LIMIT}\nupstream_timeout = \"1s\"")).await;
    // More than all buffers on the way hold.
    let huge = vec![7; 40 << 20];
    world.upstream.then(Answer::status(200).body(huge.clone()));
    let mut first = world.pay("k-1").open().await.unwrap();
    first.any_head().await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(2_500)).await;
    let mut came = 0;
    while let Some(piece) = first.piece().await.unwrap() {
        came += piece.len();
    }
    assert_eq!(came, huge.len());
    is_not_kept(&world, "k-1").await;
    assert_eq!(world.upstream.calls(), 1);
}
