//! A service that does not answer, or not correctly: the proxy never calls it a second time without certainty.

use std::io::ErrorKind;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use harness::{Answer, Hold, Response, Store, Upstream, World, on_both_stores, route};

/// Checks that the retry of an attempt that may have executed is refused.
async fn is_held(world: &World, key: &str) {
    let calls = world.upstream.calls();
    let retry = world.pay(key).send().await;
    assert_eq!(
        (retry.outcome(), retry.oncegate_status()),
        ((409, "outcome-unknown".to_owned()), Some("unknown")),
        "{key}"
    );
    assert_eq!(retry.field("retry-after"), None, "{key}: nobody listens for its answer any more, and nobody asks");
    assert_eq!(world.upstream.calls(), calls, "{key}: nothing is sent a second time");
}

fn is_broken(response: &Response, what: &str) {
    assert_eq!(response.outcome(), (502, "upstream-broken".to_owned()), "{what}");
    assert_eq!(
        (response.oncegate_status(), response.problem()["retry"].as_str()),
        (Some("unknown"), Some("reconcile")),
        "{what}"
    );
    assert_eq!(response.field("idempotency-key-expires"), None, "{what}");
}

on_both_stores!(a_service_that_cannot_be_reached_has_executed_nothing);
async fn a_service_that_cannot_be_reached_has_executed_nothing(store: Store) {
    let (mut world, address) = World::before_unreachable_service(store).await;
    for _ in 0..2 {
        let refusal = world.pay("k-1").send().await;
        assert_eq!(refusal.outcome(), (502, "upstream-unreachable".to_owned()));
        assert_eq!(
            (refusal.oncegate_status(), refusal.problem()["retry"].as_str()),
            (Some("released"), Some("same_key"))
        );
    }
    world.upstream = Upstream::start_at(address).await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("replayed"));
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(an_attempt_with_a_lost_answer_is_never_repeated);
async fn an_attempt_with_a_lost_answer_is_never_repeated(store: Store) {
    let world = World::start(store).await;
    let half = Answer::status(200).body("a body of some length");
    let breaks = [
        ("closed before it read", Answer::end_unread()),
        ("closed after it read", Answer::close()),
        ("reset after it read", Answer::reset()),
        ("half a head", Answer::raw("HTTP/1.1 200 OK\r\nContent-Le")),
        ("a head and no body", half.clone().cut_after(0)),
        ("half a body", half.clone().cut_after(10)),
        ("half a body, then reset", Answer::status(200).body("x").cut_after(0).then_reset()),
        ("half a chunked body", Answer::status(200).chunks(&["one", "two"]).cut_after(10)),
        ("chunks without an end", Answer::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")),
        ("no body until a reset", Answer::raw("HTTP/1.1 200 OK\r\n\r\nhello").then_reset()),
    ];
    for (what, answer) in breaks {
        world.upstream.then(answer);
        is_broken(&world.pay(what.replace([' ', ','], "-").as_str()).send().await, what);
        is_held(&world, &what.replace([' ', ','], "-")).await;
    }
}

#[tokio::test]
async fn an_invalid_answer_leaves_the_outcome_unknown() {
    let world = World::start(Store::sqlite()).await;
    let answers = [
        ("garbage", "lol\r\n\r\n"),
        ("another-protocol", "SSH-2.0-OpenSSH_9.2\r\n"),
        ("gzip-chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
        ("chunked-gzip", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\nhi"),
        ("unasked-101", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
        ("status-600", "HTTP/1.1 600 Huh\r\nContent-Length: 0\r\n\r\n"),
        ("status-999", "HTTP/1.1 999 Huh\r\nContent-Length: 0\r\n\r\n"),
        ("status-99", "HTTP/1.1 99 Huh\r\nContent-Length: 0\r\n\r\n"),
        ("two-lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi!"),
        ("no-length", "HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nhi"),
        ("bad-chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nhi\r\n0\r\n\r\n"),
        ("obs-fold", "HTTP/1.1 200 OK\r\nX-A: one\r\n two\r\nContent-Length: 2\r\n\r\nhi"),
    ];
    for (key, answer) in answers {
        world.upstream.then(Answer::raw(answer));
        is_broken(&world.pay(key).send().await, key);
        is_held(&world, key).await;
    }
}

on_both_stores!(an_attempt_past_its_timeout_is_abandoned_and_never_repeated);
async fn an_attempt_past_its_timeout_is_abandoned_and_never_repeated(store: Store) {
    let world = World::guarding(store, "connect_timeout = \"200ms\"\nupstream_timeout = \"300ms\"").await;
    let midway = Hold::new();
    for (key, answer) in
        [("no-head", Answer::never()), ("half-a-body", Answer::status(200).body("paid").hold_midway(&midway))]
    {
        world.upstream.then(answer);
        let refusal = world.pay(key).send().await;
        assert_eq!(refusal.outcome(), (504, "upstream-timeout".to_owned()), "{key}");
        assert_eq!(
            (refusal.oncegate_status(), refusal.problem()["retry"].as_str()),
            (Some("unknown"), Some("reconcile"))
        );
        is_held(&world, key).await;
    }
}

#[tokio::test]
async fn a_request_on_a_broken_pooled_connection_is_not_sent_twice() {
    let world = World::start(Store::sqlite()).await;
    // The thread that serves a request is random: after several requests, each has an idle connection.
    for number in 0..8 {
        world.pay(&format!("warm-{number}")).send().await;
    }
    let reused = world.upstream.executed().len();
    for number in 0..8 {
        let key = format!("k-{number}");
        world.upstream.then(Answer::end_unread());
        is_broken(&world.pay(&key).send().await, &key);
        is_held(&world, &key).await;
        assert_eq!(world.upstream.calls(), reused + number + 1);
    }
}

on_both_stores!(a_connection_that_the_service_has_closed_is_not_used_again);
async fn a_connection_that_the_service_has_closed_is_not_used_again(store: Store) {
    let world = World::start(store).await;
    world.upstream.answer_all(Answer::status(201).then_close());
    for number in 1..=10 {
        assert_eq!(world.pay(&format!("k-{number}")).send().await.oncegate_status(), Some("executed"), "{number}");
        // The proxy has seen the end and has closed its side as well.
        world.upstream.wait_until(|seen| seen.closed == number).await;
    }
    assert_eq!(world.upstream.calls(), 10);
}

on_both_stores!(with_on_unknown_retry_an_unknown_outcome_is_retried_at_once);
async fn with_on_unknown_retry_an_unknown_outcome_is_retried_at_once(store: Store) {
    let world = World::guarding(store, "on_unknown = \"retry\"").await;
    world.upstream.then(Answer::close());
    is_broken(&world.pay("k-1").send().await, "the first attempt");
    assert_eq!(world.pay("k-1").body("else").send().await.outcome(), (422, "key-reused".to_owned()));
    let second = world.pay("k-1").send().await;
    assert_eq!((second.oncegate_status(), &*second.text()), (Some("executed"), "effect 2"));
    assert_eq!(world.pay("k-1").send().await.comparable(), second.replayed());
    let calls = world.upstream.executed();
    let attempts: Vec<_> = calls.iter().map(|call| call.field("oncegate-attempt").unwrap()).collect();
    assert_eq!(attempts, ["1", "2"]);
    assert_ne!(calls[0].field("oncegate-reservation"), calls[1].field("oncegate-reservation"));
}

#[tokio::test]
async fn interim_responses_to_a_guarded_request_are_not_passed_on() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.then(Answer::raw(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
         HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nhi",
    ));
    let first = world.pay("k-1").send().await;
    assert_eq!((first.status, &*first.text(), first.interim.len(), first.field("link")), (201, "hi", 0, None));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
}

#[tokio::test]
async fn over_http_1_0_a_response_that_breaks_off_ends_with_a_reset() {
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("pay", "max_response_body = \"1KiB\""))).await;
    let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1000));
    for path in ["/pay", "/unguarded"] {
        let beginning = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}", chunk.repeat(3));
        world.upstream.then(Answer::raw(beginning));
        let mut client = world.proxy.client().connect().await;
        let fields = "Host: h\r\nAuthorization: Bearer a\r\nIdempotency-Key: k-1\r\nContent-Length: 0\r\n\r\n";
        client.write_all(format!("POST {path} HTTP/1.0\r\n{fields}").as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        let ended = client.read_to_end(&mut bytes).await;
        assert_eq!(ended.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset), "{path}");
    }
    let retry = world.post("/pay").anonymous().key("k-1").field("Authorization", "Bearer a").send().await;
    assert_eq!(retry.outcome(), (409, "outcome-unknown".to_owned()));
}

#[tokio::test]
async fn a_response_delimited_by_connection_close_is_complete() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.then(Answer::raw("HTTP/1.0 200 OK\r\nX-A: 1\r\n\r\nhi there"));
    let first = world.pay("k-1").send().await;
    assert_eq!((first.status, &*first.text(), first.oncegate_status()), (200, "hi there", Some("executed")));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
}
