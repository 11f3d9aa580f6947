//! 103 Early Hints: they pass to HTTP/1.1 clients where nothing is guarded, and never come into another response.

use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use harness::wire::{Fields, Wire};
use harness::{Answer, Exchange, Hold, Store, TEST_TIMEOUT, World, route};

const STYLE: &str = "</style.css>; rel=preload; as=style";

fn link(value: &str) -> String {
    format!("Link: {value}")
}

/// Returns the next head, which is that of a 103 response, without its start line.
async fn hint(exchange: &mut Exchange) -> Fields {
    let head = exchange.any_head().await.unwrap();
    assert_eq!(head.start, "HTTP/1.1 103 Early Hints");
    head.fields
}

#[tokio::test]
async fn a_103_response_passes_before_the_final_one_is_there() {
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("off", "mode = \"off\""))).await;
    for request in [world.get("/page"), world.post("/off").key("k-1").body("x"), world.post("/else").body("x")] {
        let hold = Hold::new();
        let lines = format!("{}\r\nSet-Cookie: a=1\r\nContent-Length: 9\r\nX-Other: 1", link(STYLE));
        world.upstream.then(Answer::status(200).field("X-Final", "1").body("final").early_hints(&lines).hold(&hold));
        let mut exchange = request.open().await.unwrap();
        assert_eq!(hint(&mut exchange).await, [("link".to_owned(), STYLE.to_owned())]);
        hold.release();
        let response = exchange.response().await;
        assert_eq!((response.status, response.field("x-final"), response.field("link")), (200, Some("1"), None));
        assert_eq!((&*response.text(), response.interim), ("final", vec![]));
        exchange.write(&request.bytes()).await;
        assert_eq!(exchange.response().await.status, 201);
    }
}

#[tokio::test]
async fn several_103_responses_that_come_with_the_final_one_keep_their_order() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.then(Answer::raw(
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\nLink: </b>\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\nX-Other: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </c>\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    ));
    let mut exchange = world.get("/page").open().await.unwrap();
    for expected in ["</a>", "</c>"] {
        assert_eq!(hint(&mut exchange).await, [("link".to_owned(), expected.to_owned())]);
    }
    let response = exchange.response().await;
    assert_eq!((response.status, &*response.text(), response.interim), (200, "hi", vec![]));
}

#[tokio::test]
async fn each_of_several_pipelined_requests_gets_its_own_103_response() {
    let world = World::start(Store::sqlite()).await;
    let requests: Vec<_> = (0..5).flat_map(|number| world.get(&format!("/{number}")).bytes()).collect();
    for number in 0..5 {
        world.upstream.then(
            Answer::status(200).body(format!("body {number}")).early_hints(&link(&format!("</{number}>; rel=preload"))),
        );
    }
    let mut exchange = world.proxy.client().raw(&requests).await;
    for number in 0..5 {
        assert_eq!(hint(&mut exchange).await, [("link".to_owned(), format!("</{number}>; rel=preload"))]);
        assert_eq!(exchange.response().await.text(), format!("body {number}"));
    }
}

#[tokio::test]
async fn a_guarded_or_observed_request_gets_no_103_response() {
    let observed = route("seen", "mode = \"observe\"");
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("pay", "")).route(&observed)).await;
    world.upstream.answer_all(Answer::status(201).early_hints(&link(STYLE)));
    for request in [world.pay("k-1"), world.pay("k-1"), world.post("/seen").key("k-1").body("x")] {
        let response = request.send().await;
        assert_eq!((response.status, response.interim.len()), (201, 0));
    }
    assert_eq!(world.get("/page").send().await.interim, [103], "the service does send it");
}

#[tokio::test]
async fn a_client_that_takes_a_103_for_the_final_response_gets_none() {
    let world = World::start(Store::sqlite()).await;
    for (agent, hints) in [("python-requests/2.34.2", 0), ("Python-urllib/3.11", 0), ("curl/8 (python)", 1)] {
        world.upstream.then(Answer::status(200).early_hints(&link(STYLE)));
        let response = world.get("/page").field("User-Agent", agent).send().await;
        assert_eq!((response.status, response.interim.len()), (200, hints), "{agent}");
    }
}

#[tokio::test]
async fn a_client_over_http_1_0_gets_no_103_response() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.answer_all(Answer::status(200).early_hints(&link(STYLE)));
    let mut exchange = world.proxy.client().raw(b"GET /page HTTP/1.0\r\nHost: x\r\n\r\n").await;
    let response = exchange.response().await;
    assert_eq!((response.status, response.interim.len()), (200, 0));
    assert_eq!(world.get("/page").send().await.interim, [103], "the service does send it");
}

#[tokio::test]
async fn a_flood_of_103_responses_is_cut_to_eight() {
    let world = World::start(Store::sqlite()).await;
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(20_000);
    world.upstream.then(Answer::raw(format!("{hints}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")));
    let response = world.get("/page").send().await;
    assert_eq!((response.status, &*response.text(), response.interim), (200, "hi", vec![103; 8]));
}

#[tokio::test]
async fn a_large_body_after_a_103_response_is_intact() {
    let world = World::start(Store::sqlite()).await;
    let body: Vec<u8> = (0..8_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let expected = Sha256::digest(&body);
    world.upstream.answer_all(Answer::status(200).body(body).early_hints(&link(STYLE)));
    let mut exchange = world.get("/large").open().await.unwrap();
    for _ in 0..2 {
        let response = exchange.response().await;
        assert_eq!((response.status, response.interim), (200, vec![103]));
        assert_eq!(Sha256::digest(&response.body), expected);
        exchange.write(&world.get("/large").bytes()).await;
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_gets_all_responses_whole_when_it_reads() {
    const REQUESTS: usize = 6;
    let world = World::start(Store::sqlite()).await;
    let body: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    world.upstream.answer_all(Answer::status(200).body(body.clone()).early_hints(&link(STYLE)));
    let mut exchange = world.proxy.client().raw(&world.get("/large").bytes().repeat(REQUESTS)).await;
    // The second one is asked for when the first has been written but for its end, which no buffer can take.
    world.upstream.wait_for_executed(1).await;
    for _ in 0..REQUESTS {
        let response = exchange.response().await;
        assert_eq!(response.status, 200);
        assert!(response.interim.iter().all(|status| *status == 103));
        assert!(response.body == body, "a response is broken");
    }
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_gets_103_as_well() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.then(Answer::status(200).early_hints(&link(STYLE)));
    let upload = world.proxy.client().request("PUT", "/file").field("Expect", "100-continue").body("body");
    let mut exchange = upload.open_head().await;
    assert_eq!(exchange.any_head().await.unwrap().start, "HTTP/1.1 100 Continue");
    exchange.write(b"body").await;
    assert_eq!(hint(&mut exchange).await, [("link".to_owned(), STYLE.to_owned())]);
    assert_eq!(exchange.response().await.status, 200);
    assert_eq!(world.upstream.last().body, b"body");
}

#[tokio::test]
async fn an_upgrade_gets_no_103_response_and_its_bytes_stay_its_own() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.then(Answer::raw(
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
         HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nframes",
    ));
    let mut wire = Wire::new(world.proxy.client().connect().await);
    wire.write(b"GET /chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").await.unwrap();
    assert_eq!(wire.head().await.unwrap().unwrap().start, "HTTP/1.1 101 Switching Protocols");
    wire.stream.shutdown().await.unwrap();
    assert_eq!(timeout(TEST_TIMEOUT, wire.rest()).await.unwrap(), b"frames");
}
