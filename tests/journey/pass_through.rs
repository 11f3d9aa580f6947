//! Unguarded requests: they stream both ways, and Oncegate adds nothing to them.

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use harness::wire::Wire;
use harness::{Answer, Hold, Request, Response, Store, TEST_TIMEOUT, World};

fn has_nothing_of_ours(response: &Response) {
    let ours: Vec<_> = response
        .fields
        .iter()
        .filter(|(name, _)| {
            name.starts_with("oncegate-") || name.starts_with("idempotency-key") || name == "idempotent-replayed"
        })
        .collect();
    assert!(ours.is_empty(), "{ours:?}");
}

async fn passes(world: &World, request: Request) -> Response {
    let calls = world.upstream.calls();
    let response = request.send().await;
    has_nothing_of_ours(&response);
    assert_eq!(world.upstream.calls(), calls + 1);
    response
}

#[tokio::test]
async fn a_request_without_a_key_or_route_passes_every_time() {
    let world = World::guarding(Store::sqlite(), "").await;
    for _ in 0..2 {
        passes(&world, world.get("/pay")).await;
        passes(&world, world.get("/pay").key("k-1")).await;
        passes(&world, world.post("/pay").body("x")).await;
        passes(&world, world.post("/elsewhere").key("k-1").body("x")).await;
        passes(&world, world.proxy.client().request("DELETE", "/pay").key("k-1")).await;
        passes(&world, world.proxy.client().request("OPTIONS", "/pay")).await;
    }
}

#[tokio::test]
async fn a_response_streams_before_it_ends() {
    let world = World::start(Store::sqlite()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(200).chunks(&["first", "second"]).hold_midway(&hold));
    let mut exchange = world.get("/events").open().await.unwrap();
    exchange.any_head().await.unwrap();
    assert_eq!(exchange.piece().await.unwrap().unwrap(), b"first");
    hold.release();
    assert_eq!(exchange.piece().await.unwrap().unwrap(), b"second");
    assert_eq!(exchange.piece().await.unwrap(), None);
}

#[tokio::test]
async fn a_large_upload_streams_to_the_service() {
    const PIECE: usize = 256 * 1024;
    let world = World::start(Store::sqlite()).await;
    let upload = world.proxy.client().request("PUT", "/file").body(vec![7; 4 * PIECE]);
    let mut exchange = upload.open_head().await;
    for pieces in 1..=4 {
        exchange.write(&[7; PIECE]).await;
        // The service has this piece before the next one is written. The buffers of hyper and the kernel are smaller
        // than a piece.
        world.upstream.wait_until(|seen| seen.body_bytes > (pieces - 1) * PIECE).await;
    }
    assert_eq!(exchange.response().await.status, 201);
    let call = world.upstream.last();
    assert!(call.body == vec![7; 4 * PIECE]);
    assert_eq!((call.field("content-length"), call.field("transfer-encoding")), (Some("1048576"), None));
}

#[tokio::test]
async fn a_body_over_any_routes_limit_passes() {
    let world = World::with(Store::sqlite(), |setup| {
        setup.defaults("max_request_body = \"1KiB\"\nmax_response_body = \"1KiB\"")
    })
    .await;
    let large = "x".repeat(2_000_000);
    world.upstream.answer_all(Answer::status(200).body(large.clone()));
    let response = passes(&world, world.post("/file").body(large.clone()).chunked()).await;
    assert!(response.text() == large && world.upstream.last().body == large.as_bytes());
}

#[tokio::test]
async fn a_response_to_head_keeps_its_length() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.answer_all(Answer::status(200).body("12345"));
    let response = passes(&world, world.proxy.client().request("HEAD", "/file")).await;
    assert_eq!((response.field("content-length"), response.body.len()), (Some("5"), 0));
}

#[tokio::test]
async fn a_304_keeps_its_fields() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.answer_all(Answer::status(304).field("ETag", "\"1\"").field("Content-Length", "5"));
    let response = passes(&world, world.get("/file").field("If-None-Match", "\"1\"")).await;
    assert_eq!((response.status, response.field("etag"), response.body.len()), (304, Some("\"1\""), 0));
}

#[tokio::test]
async fn a_response_that_breaks_off_is_cut_for_the_client_too() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.then(Answer::status(200).body("a body of some length").cut_after(10));
    world.get("/file").try_send().await.expect_err("an incomplete body is an error");
    world.upstream.then(Answer::status(200).chunks(&["one", "two"]).cut_after(10));
    world.get("/file").try_send().await.expect_err("an incomplete body is an error");
}

#[tokio::test]
async fn response_trailers_pass_to_clients_that_accept_them() {
    let world = World::start(Store::sqlite()).await;
    let answer = || Answer::status(200).field("Trailer", "X-Checksum").chunks(&["a", "b"]).trailer("X-Checksum", "7");
    world.upstream.then(answer()).then(answer());
    let wanted = world.get("/file").field("TE", "trailers").send().await;
    assert_eq!((&*wanted.text(), wanted.trailers), ("ab", vec![("x-checksum".to_owned(), "7".to_owned())]));
    let unwanted = world.get("/file").send().await;
    assert_eq!((&*unwanted.text(), unwanted.trailers.len()), ("ab", 0));
}

#[tokio::test]
async fn an_unreachable_service_gives_a_problem_document() {
    let (world, _) = World::before_unreachable_service(Store::sqlite()).await;
    let refusal = world.get("/").send().await;
    assert_eq!(refusal.outcome(), (502, "upstream-unreachable".to_owned()));
    has_nothing_of_ours(&refusal);
}

#[tokio::test]
async fn a_get_with_a_body_is_forwarded_with_its_body() {
    let world = World::start(Store::sqlite()).await;
    passes(&world, world.get("/search").body("query").chunked()).await;
    assert_eq!(world.upstream.last().body, b"query");
}

#[tokio::test]
async fn a_broken_upload_is_never_forwarded_as_complete() {
    let world = World::start(Store::sqlite()).await;
    for request in [world.post("/file").body("a whole body"), world.post("/file").body("a whole body").chunked()] {
        let bytes = request.bytes();
        let seen = world.upstream.calls();
        let exchange = world.proxy.client().raw(&bytes[..bytes.len() - 7]).await;
        world.upstream.wait_until(|all| all.begun > seen).await;
        drop(exchange);
        world.upstream.wait_until(|all| all.closed > seen).await;
    }
    assert!(world.upstream.executed().is_empty());
}

#[tokio::test]
async fn a_client_that_disconnects_ends_its_unguarded_request() {
    let world = World::start(Store::sqlite()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(200).chunks(&["first", "second"]).hold_midway(&hold));
    let mut exchange = world.get("/events").open().await.unwrap();
    exchange.any_head().await.unwrap();
    exchange.piece().await.unwrap();
    drop(exchange);
    // The service continues to write, and learns that its client is gone.
    hold.release();
    world.upstream.wait_until(|seen| seen.closed == 1).await;
}

/// Unguarded requests: without a route, on a route that is off, and on one that observes.
async fn before_a_silent_service() -> (World, Vec<Request>) {
    let route = |name: &str, mode: &str| format!("name = \"{name}\"\npath = \"/{name}\"\nmode = \"{mode}\"");
    let world =
        World::with(Store::sqlite(), |setup| setup.route(&route("off", "off")).route(&route("seen", "observe")));
    let world = world.await;
    let requests = vec![
        world.get("/poll"),
        world.post("/upload").body("all of it"),
        world.post("/upload").body("all of it").chunked(),
        world.post("/off").key("k-1").body("all of it"),
        world.post("/seen").key("k-1").body("all of it"),
    ];
    (world, requests)
}

#[tokio::test]
async fn a_client_that_disconnects_from_a_silent_service_frees_the_connection() {
    let (world, requests) = before_a_silent_service().await;
    for (number, request) in requests.into_iter().enumerate() {
        let [closes, half_closes, resets] = [1, 2, 3].map(|step| 3 * number + step);
        for step in [closes, half_closes, resets] {
            world.upstream.then(Answer::status(200).hold(&Hold::new()));
            let mut wire = Wire::new(world.proxy.client().connect().await);
            wire.write(&request.bytes()).await.unwrap();
            world.upstream.wait_for_executed(step).await;
            if step == half_closes {
                wire.stream.shutdown().await.unwrap();
                // The service's connection is closed too.
                assert_eq!(timeout(TEST_TIMEOUT, wire.rest()).await.expect("the connection stays open"), b"");
            } else if step == resets {
                wire.stream.set_zero_linger().unwrap();
            }
            drop(wire);
            world.upstream.wait_until(|seen| seen.closed == step).await;
        }
    }
}

#[tokio::test]
async fn a_client_that_disconnects_from_a_silent_stream_frees_the_connection() {
    let (world, requests) = before_a_silent_service().await;
    for (number, request) in requests.into_iter().enumerate() {
        world.upstream.then(Answer::status(200).chunks(&["first", "second"]).hold_midway(&Hold::new()));
        let mut exchange = request.open().await.unwrap();
        exchange.any_head().await.unwrap();
        assert_eq!(exchange.piece().await.unwrap().unwrap(), b"first");
        drop(exchange);
        world.upstream.wait_until(|seen| seen.closed == number + 1).await;
    }
}

#[tokio::test]
async fn unguarded_requests_may_be_pipelined() {
    let world = World::start(Store::sqlite()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(200).hold(&hold));
    let mut exchange = world.get("/first").open().await.unwrap();
    world.upstream.wait_for_executed(1).await;
    // They arrive one by one while the first still waits.
    for path in ["/second", "/third"] {
        exchange.write(&world.get(path).bytes()).await;
    }
    exchange.write(&world.pay("k-1").bytes()).await;
    hold.release();
    for effect in ["effect 1", "effect 2", "effect 3", "effect 4"] {
        assert_eq!(exchange.response().await.text(), effect);
    }
    assert_eq!(world.upstream.calls(), 4);
}

#[tokio::test]
async fn a_connection_is_reused_after_an_unguarded_request() {
    let world = World::start(Store::sqlite()).await;
    let mut exchange = world.get("/").open().await.unwrap();
    assert_eq!(exchange.response().await.text(), "effect 1");
    // A guarded request after it does not end with the client.
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    exchange.write(&world.pay("k-1").bytes()).await;
    world.upstream.wait_for_executed(2).await;
    exchange.finish().await;
    hold.release();
    assert_eq!(exchange.response().await.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("replayed"));
}
