//! What nothing guards: it streams through both ways, and nothing of ours is on it.

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::harness::wire::Wire;
use crate::harness::{Answer, Hold, PATIENCE, Request, Response, Store, World};

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
async fn what_has_no_key_or_no_route_passes_every_time() {
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
async fn a_response_is_seen_piece_by_piece_before_it_ends() {
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
async fn a_large_upload_reaches_the_service_as_it_comes() {
    const PIECE: usize = 256 * 1024;
    let world = World::start(Store::sqlite()).await;
    let upload = world.proxy.client().request("PUT", "/file").body(vec![7; 4 * PIECE]);
    let mut exchange = upload.open_head().await;
    for pieces in 1..=4 {
        exchange.write(&[7; PIECE]).await;
        // Before the next one is even written. What hyper and the kernel keep in hand is less than a piece.
        world.upstream.saw(|seen| seen.body_bytes > (pieces - 1) * PIECE).await;
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
    world.upstream.answers(Answer::status(200).body(large.clone()));
    let response = passes(&world, world.post("/file").body(large.clone()).chunked()).await;
    assert!(response.text() == large && world.upstream.last().body == large.as_bytes());
}

#[tokio::test]
async fn a_response_to_head_keeps_its_length() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.answers(Answer::status(200).body("12345"));
    let response = passes(&world, world.proxy.client().request("HEAD", "/file")).await;
    assert_eq!((response.field("content-length"), response.body.len()), (Some("5"), 0));
}

#[tokio::test]
async fn a_304_keeps_what_it_says() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.answers(Answer::status(304).field("ETag", "\"1\"").field("Content-Length", "5"));
    let response = passes(&world, world.get("/file").field("If-None-Match", "\"1\"")).await;
    assert_eq!((response.status, response.field("etag"), response.body.len()), (304, Some("\"1\""), 0));
}

#[tokio::test]
async fn a_response_that_breaks_off_is_cut_for_the_client_too() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.then(Answer::status(200).body("a body of some length").cut_after(10));
    world.get("/file").try_send().await.expect_err("nobody takes a part for the whole");
    world.upstream.then(Answer::status(200).chunks(&["one", "two"]).cut_after(10));
    world.get("/file").try_send().await.expect_err("nobody takes a part for the whole");
}

#[tokio::test]
async fn trailers_of_a_response_pass_to_those_who_want_them() {
    let world = World::start(Store::sqlite()).await;
    let answer = || Answer::status(200).field("Trailer", "X-Checksum").chunks(&["a", "b"]).trailer("X-Checksum", "7");
    world.upstream.then(answer()).then(answer());
    let wanted = world.get("/file").field("TE", "trailers").send().await;
    assert_eq!((&*wanted.text(), wanted.trailers), ("ab", vec![("x-checksum".to_owned(), "7".to_owned())]));
    let unwanted = world.get("/file").send().await;
    assert_eq!((&*unwanted.text(), unwanted.trailers.len()), ("ab", 0));
}

#[tokio::test]
async fn a_service_that_cannot_be_reached_is_told_as_a_problem() {
    let (world, _) = World::before_nobody(Store::sqlite()).await;
    let refusal = world.get("/").send().await;
    assert_eq!(refusal.outcome(), (502, "upstream-unreachable".to_owned()));
    has_nothing_of_ours(&refusal);
}

#[tokio::test]
async fn a_get_with_a_body_is_framed_anew() {
    let world = World::start(Store::sqlite()).await;
    passes(&world, world.get("/search").body("query").chunked()).await;
    assert_eq!(world.upstream.last().body, b"query");
}

#[tokio::test]
async fn an_upload_that_breaks_off_is_never_passed_for_a_whole_one() {
    let world = World::start(Store::sqlite()).await;
    for request in [world.post("/file").body("a whole body"), world.post("/file").body("a whole body").chunked()] {
        let bytes = request.bytes();
        let seen = world.upstream.calls();
        let exchange = world.proxy.client().raw(&bytes[..bytes.len() - 7]).await;
        world.upstream.saw(|all| all.begun > seen).await;
        drop(exchange);
        world.upstream.saw(|all| all.closed > seen).await;
    }
    assert!(world.upstream.executed().is_empty());
}

#[tokio::test]
async fn a_client_that_leaves_ends_what_nothing_guards() {
    let world = World::start(Store::sqlite()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(200).chunks(&["first", "second"]).hold_midway(&hold));
    let mut exchange = world.get("/events").open().await.unwrap();
    exchange.any_head().await.unwrap();
    exchange.piece().await.unwrap();
    drop(exchange);
    // The service writes on, and learns that nobody listens.
    hold.release();
    world.upstream.saw(|seen| seen.closed == 1).await;
}

/// Requests that nothing guards: no route, a route that is off, and one that looks on.
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
async fn a_client_that_leaves_a_silent_service_frees_its_connection() {
    let (world, requests) = before_a_silent_service().await;
    for (number, request) in requests.into_iter().enumerate() {
        let [closes, half_closes, resets] = [1, 2, 3].map(|step| 3 * number + step);
        for step in [closes, half_closes, resets] {
            world.upstream.then(Answer::status(200).hold(&Hold::new()));
            let mut wire = Wire::new(world.proxy.client().connect().await);
            wire.write(&request.bytes()).await.unwrap();
            world.upstream.has_executed(step).await;
            if step == half_closes {
                wire.stream.shutdown().await.unwrap();
                // It is not kept waiting for what nobody will say.
                assert_eq!(timeout(PATIENCE, wire.rest()).await.expect("the connection stays open"), b"");
            } else if step == resets {
                wire.stream.set_zero_linger().unwrap();
            }
            drop(wire);
            world.upstream.saw(|seen| seen.closed == step).await;
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_a_silent_stream_frees_its_connection() {
    let (world, requests) = before_a_silent_service().await;
    for (number, request) in requests.into_iter().enumerate() {
        world.upstream.then(Answer::status(200).chunks(&["first", "second"]).hold_midway(&Hold::new()));
        let mut exchange = request.open().await.unwrap();
        exchange.any_head().await.unwrap();
        assert_eq!(exchange.piece().await.unwrap().unwrap(), b"first");
        drop(exchange);
        world.upstream.saw(|seen| seen.closed == number + 1).await;
    }
}

#[tokio::test]
async fn requests_that_nothing_guards_may_be_pipelined() {
    let world = World::start(Store::sqlite()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(200).hold(&hold));
    let mut exchange = world.get("/first").open().await.unwrap();
    world.upstream.has_executed(1).await;
    // They come one by one while the first still waits.
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
async fn a_connection_lives_on_after_a_request_that_would_have_ended_with_it() {
    let world = World::start(Store::sqlite()).await;
    let mut exchange = world.get("/").open().await.unwrap();
    assert_eq!(exchange.response().await.text(), "effect 1");
    // A guarded one after it does not end with the client.
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    exchange.write(&world.pay("k-1").bytes()).await;
    world.upstream.has_executed(2).await;
    exchange.finish().await;
    hold.release();
    assert_eq!(exchange.response().await.told(), Some("executed"));
    assert_eq!(world.pay("k-1").send().await.told(), Some("replayed"));
}
