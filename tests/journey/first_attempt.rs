//! First attempts: the request is executed, and its response stored.

use harness::{Answer, Store, World, on_both_stores};

on_both_stores!(a_first_attempt_is_executed_and_stored);
async fn a_first_attempt_is_executed_and_stored(store: Store) {
    let world = World::start(store).await;
    world.upstream.answer_all(Answer::status(201).field("Location", "/payments/1").body("paid"));
    let first = world.pay("k-1").send().await;
    assert_eq!((first.status, &*first.text(), first.oncegate_status()), (201, "paid", Some("executed")));
    assert_eq!(first.field("location"), Some("/payments/1"));
    assert!(!first.is_replay());
    let again = world.pay("k-1").send().await;
    assert_eq!(again.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn the_service_gets_the_request_as_it_was_sent() {
    let world = World::start(Store::sqlite()).await;
    let request = world
        .post("/pay/%7Ea?b=c&b=d%20e")
        .key("\"k-1\"; a=1")
        .field("Content-Type", "text/plain; charset=latin1")
        .field("X-Order", "1")
        .field("X-Order", "2")
        .body("10 \u{e9}\0");
    request.send().await;
    let call = world.upstream.last();
    assert_eq!((&*call.method, &*call.target), ("POST", "/pay/%7Ea?b=c&b=d%20e"));
    assert_eq!(call.body, "10 \u{e9}\0".as_bytes());
    assert_eq!(call.all("idempotency-key"), ["\"k-1\"; a=1"], "the key goes on unchanged");
    assert_eq!(call.all("x-order"), ["1", "2"]);
    assert_eq!(call.field("content-type"), Some("text/plain; charset=latin1"));
    assert_eq!(call.field("content-length"), Some("6"));
}

#[tokio::test]
async fn the_service_gets_the_attempts_number_and_token() {
    let world = World::start(Store::sqlite()).await;
    world.pay("k-1").send().await;
    world.pay("k-2").send().await;
    let calls = world.upstream.executed();
    let tokens: Vec<_> = calls.iter().map(|call| call.field("oncegate-reservation").unwrap()).collect();
    assert!(tokens.iter().all(|token| token.len() >= 32), "128 bits at least: {tokens:?}");
    assert_ne!(tokens[0], tokens[1]);
    assert!(calls.iter().all(|call| call.field("oncegate-attempt") == Some("1")));
}

#[tokio::test]
async fn a_clients_oncegate_fields_are_removed() {
    let world = World::start(Store::sqlite()).await;
    let forged = |request: harness::Request| {
        request
            .field("Oncegate-Reservation", "forged")
            .field("Oncegate-Attempt", "9")
            .field("Oncegate-Recovery-Point", "forged")
    };
    forged(world.pay("k-1")).send().await;
    let guarded = world.upstream.last();
    assert_ne!(guarded.field("oncegate-reservation"), Some("forged"));
    assert_eq!(guarded.field("oncegate-attempt"), Some("1"));
    assert_eq!(guarded.field("oncegate-recovery-point"), None);
    forged(world.get("/payments")).send().await;
    let unguarded = world.upstream.last();
    for name in ["oncegate-reservation", "oncegate-attempt", "oncegate-recovery-point"] {
        assert_eq!(unguarded.field(name), None, "{name}");
    }
}

#[tokio::test]
async fn a_guarded_request_asks_for_an_unencoded_response() {
    let world = World::start(Store::sqlite()).await;
    world.pay("k-1").field("Accept-Encoding", "gzip, br").send().await;
    assert_eq!(world.upstream.last().all("accept-encoding"), ["identity"]);
    world.get("/payments").field("Accept-Encoding", "gzip, br").send().await;
    assert_eq!(world.upstream.last().all("accept-encoding"), ["gzip, br"], "an unguarded response is not replayed");
}

#[tokio::test]
async fn a_patch_is_guarded_too_and_a_put_is_not() {
    let world = World::start(Store::sqlite()).await;
    let send = |method: &'static str| world.proxy.client().request(method, "/pay").key("k-1").body("x");
    assert_eq!(send("PATCH").send().await.oncegate_status(), Some("executed"));
    assert_eq!(send("PATCH").send().await.oncegate_status(), Some("replayed"));
    assert_eq!(send("PUT").send().await.oncegate_status(), None);
    assert_eq!(send("PUT").send().await.oncegate_status(), None);
    assert_eq!(world.upstream.calls(), 3);
}
