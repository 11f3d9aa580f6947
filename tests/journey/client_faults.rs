//! Clients that disconnect, send incomplete requests, or expect `100 Continue`.

use harness::wire::{self, Wire};
use harness::{Answer, Hold, Store, TEST_TIMEOUT, World, eventually, on_both_stores};

on_both_stores!(a_client_that_leaves_changes_nothing_for_its_attempt);
async fn a_client_that_leaves_changes_nothing_for_its_attempt(store: Store) {
    let world = World::start(store).await;
    let hold = Hold::new();
    world.upstream.answer_all(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").open().await.unwrap();
    world.upstream.wait_for_executed(1).await;
    drop(first);
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "in-flight".to_owned()));
    hold.release();
    let replay =
        eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|answer| answer.status != 409))
            .await;
    assert_eq!((replay.oncegate_status(), &*replay.text()), (Some("replayed"), "effect 1"));
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(a_client_that_resets_changes_nothing_for_its_attempt);
async fn a_client_that_resets_changes_nothing_for_its_attempt(store: Store) {
    let world = World::start(store).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let mut wire = Wire::new(world.proxy.client().connect().await);
    wire.write(&world.pay("k-1").bytes()).await.unwrap();
    world.upstream.wait_for_executed(1).await;
    wire.stream.set_zero_linger().unwrap();
    drop(wire);
    // Each of the proxy's threads has had work since, and so has seen the reset.
    for number in 0..8 {
        world.pay(&format!("other-{number}")).send().await;
    }
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "in-flight".to_owned()));
    hold.release();
    let replay =
        eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|answer| answer.status != 409))
            .await;
    assert_eq!((replay.oncegate_status(), &*replay.text()), (Some("replayed"), "effect 1"));
    assert_eq!(world.upstream.calls(), 9);
}

on_both_stores!(a_client_that_resets_right_after_sending_has_its_request_executed_once_at_most);
async fn a_client_that_resets_right_after_sending_has_its_request_executed_once_at_most(store: Store) {
    let world = World::start(store).await;
    for number in 0..10 {
        let key = format!("k-{number}");
        let stream = world.proxy.client().connect().await;
        let mut wire = Wire::new(stream);
        wire.write(&world.pay(&key).bytes()).await.unwrap();
        wire.stream.set_zero_linger().unwrap();
        drop(wire);
    }
    for number in 0..10 {
        let key = format!("k-{number}");
        let answer =
            eventually(TEST_TIMEOUT, async || Some(world.pay(&key).send().await).filter(|answer| answer.status != 409))
                .await;
        assert_eq!(answer.status, 201);
    }
    assert_eq!(world.upstream.calls(), 10);
}

on_both_stores!(a_body_that_breaks_off_reserves_nothing);
async fn a_body_that_breaks_off_reserves_nothing(store: Store) {
    let world = World::start(store).await;
    for request in [world.pay("k-1"), world.pay("k-1").chunked()] {
        let bytes = request.bytes();
        let mut cut = world.proxy.client().raw(&bytes[..bytes.len() - 6]).await;
        cut.finish().await;
        if let Ok(answer) = cut.try_response().await {
            assert_eq!(answer.outcome(), (400, "bad-request".to_owned()));
        }
    }
    let mut left = world.pay("k-1").open_head().await;
    left.write(b"{").await;
    drop(left);
    assert_eq!(world.upstream.calls(), 0);
    assert_eq!(
        world.pay("k-1").body("another").send().await.oncegate_status(),
        Some("executed"),
        "the key is still free"
    );
}

on_both_stores!(a_client_that_closes_its_half_still_gets_its_answer);
async fn a_client_that_closes_its_half_still_gets_its_answer(store: Store) {
    let world = World::start(store).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let mut first = world.pay("k-1").open().await.unwrap();
    first.finish().await;
    world.upstream.wait_for_executed(1).await;
    hold.release();
    assert_eq!(first.response().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn a_client_with_expect_100_continue_gets_100() {
    let world = World::start(Store::sqlite()).await;
    let request = world.pay("k-1").field("Expect", "100-continue").body("10 EUR");
    for oncegate_status in ["executed", "replayed"] {
        let mut exchange = request.open_head().await;
        assert_eq!(exchange.any_head().await.unwrap().start, "HTTP/1.1 100 Continue");
        exchange.write(b"10 EUR").await;
        assert_eq!(exchange.response().await.oncegate_status(), Some(oncegate_status));
    }
    assert_eq!(world.upstream.last().body, b"10 EUR");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_client_with_expect_100_continue_and_an_invalid_key_is_refused_at_once() {
    let world = World::start(Store::sqlite()).await;
    let request = world.pay("").field("Expect", "100-continue").body("10 EUR");
    let refusal = request.open_head().await.response().await;
    assert_eq!((refusal.outcome(), refusal.interim.len()), ((400, "key-invalid".to_owned()), 0));
}

#[tokio::test]
async fn a_body_sent_in_pieces_is_read_as_one() {
    let world = World::start(Store::sqlite()).await;
    let request = world.pay("k-1").body("10 EUR");
    let mut exchange = request.open_head().await;
    for piece in ["1", "0 E", "UR"] {
        tokio::task::yield_now().await;
        exchange.write(piece.as_bytes()).await;
    }
    assert_eq!(exchange.response().await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.last().body, b"10 EUR");
    assert_eq!(request.send().await.oncegate_status(), Some("replayed"));
}

#[tokio::test]
async fn an_http_1_0_client_gets_an_http_1_0_response() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.answer_all(Answer::status(200).chunks(&["pa", "id"]));
    for oncegate_status in ["executed", "replayed"] {
        let request = b"POST /pay HTTP/1.0\r\nHost: h\r\nAuthorization: Bearer a\r\nIdempotency-Key: k-1\r\nContent-Length: 2\r\n\r\nhi";
        let mut connection = Wire::new(world.proxy.client().connect().await);
        connection.write(request).await.unwrap();
        let answer = wire::text(&connection.rest().await);
        assert!(answer.contains(&format!("oncegate-status: {oncegate_status}\r\n")), "{answer}");
        assert!(answer.ends_with("\r\n\r\npaid") && !answer.contains("chunked"), "{answer}");
    }
}
