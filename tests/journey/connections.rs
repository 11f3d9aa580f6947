//! Connections to the service: reused where that is safe, and never so that one request gets another's answer.

use std::net::Ipv4Addr;
use std::thread::available_parallelism;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::timeout;

use harness::{Answer, Store, TEST_TIMEOUT, World};

/// Each of the proxy's threads has its own connections, for the route and for unrouted requests; the thread that serves
/// a request is random.
fn workers() -> usize {
    available_parallelism().map_or(1, usize::from)
}

#[tokio::test]
async fn one_connection_serves_requests_with_all_kinds_of_answers() {
    let world = World::start(Store::sqlite()).await;
    let rounds = 10 * workers();
    let opened = || world.upstream.seen(|seen| seen.opened);
    for answer in [
        Answer::status(201),
        Answer::status(200).body(""),
        Answer::status(200).body(vec![7; 100_000]),
        Answer::status(200).chunks(&["first", "second"]),
        Answer::status(200).chunks(&["first", "second"]).trailer("X-Sum", "1"),
        Answer::status(204),
        Answer::status(304),
        Answer::status(500),
    ] {
        world.upstream.answer_all(answer.clone());
        for number in 0..rounds {
            world.get("/page").send().await;
            world.post("/pay").body("x").send().await;
            world.pay(&format!("k-{number}")).send().await;
            world.proxy.client().request("HEAD", "/page").send().await;
        }
        assert!(opened() <= 2 * workers(), "{} connections after {answer:?}", opened());
    }
}

#[tokio::test]
async fn bytes_after_a_response_answer_no_request() {
    let stolen = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen";
    let world = World::start(Store::sqlite()).await;
    for (number, first) in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        for _ in 0..4 * workers() {
            world.upstream.then(Answer::raw(format!("{first}{stolen}")).then_stay());
            let response = world.post("/pay").body("x").send().await;
            assert!(matches!(response.status, 200 | 204) && response.text() != "stolen", "{response:?}");
            let key = format!("k-{number}-{}", world.upstream.calls());
            let own = world.pay(&key).send().await;
            assert_eq!(own.text(), format!("effect {}", world.upstream.number_of(&key)));
        }
    }
}

#[tokio::test]
async fn an_unread_response_closes_its_connection() {
    let world = World::start(Store::sqlite()).await;
    let body = "first ".repeat(1_000_000);
    for number in 0..2 * workers() {
        world.upstream.then(Answer::status(200).body(body.clone()));
        let mut exchange = world.get("/large").open().await.unwrap();
        exchange.any_head().await.unwrap();
        drop(exchange);
        let own = world.pay(&format!("k-{number}")).send().await;
        assert!(own.text().starts_with("effect "), "{own:?}");
    }
}

/// A service that answers each request as soon as it has read the head, and reads the body afterwards.
async fn answer_early(listener: TcpListener, body_came: oneshot::Sender<()>) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let (mut seen, mut answered, mut body_came) = (Vec::new(), 0, Some(body_came));
    while answered < 2 {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).await.unwrap();
        assert!(read > 0, "the connection has ended");
        seen.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&seen);
        let heads = text.matches("PUT /early").count();
        for _ in answered..heads {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly").await.unwrap();
        }
        answered = heads;
        if text.contains("\r\n0\r\n\r\n")
            && let Some(told) = body_came.take()
        {
            told.send(()).unwrap();
        }
    }
}

#[tokio::test]
async fn an_early_answer_is_passed_on_at_once_and_its_connection_is_reused() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (told, body_came) = oneshot::channel();
    let service = tokio::spawn(answer_early(listener, told));
    let route = "name = \"early\"\npath = \"/early\"\nmethods = [\"PUT\"]\nmode = \"off\"";
    let world = World::with(Store::sqlite(), |setup| setup.upstream(address).route(route)).await;
    // Both requests use one connection, and so one of the proxy's threads.
    let upload = world.proxy.client().request("PUT", "/early").body(vec![b'x'; 20]).chunked();
    let mut exchange = upload.open_head().await;
    exchange.write(b"5\r\nhello\r\n").await;
    let head = timeout(TEST_TIMEOUT, exchange.any_head())
        .await
        .expect("the answer comes before the body is complete")
        .unwrap();
    assert!(head.start.contains(" 200 "), "{}", head.start);
    assert_eq!(exchange.piece().await.unwrap().unwrap(), b"early");
    exchange.write(b"0\r\n\r\n").await;
    timeout(TEST_TIMEOUT, body_came).await.expect("the rest goes though the answer has come").unwrap();
    exchange.write(&world.proxy.client().request("PUT", "/early").body("again").bytes()).await;
    assert_eq!(exchange.response().await.text(), "early");
    timeout(TEST_TIMEOUT, service).await.expect("both have come over one connection").unwrap();
}

#[tokio::test]
async fn an_upload_continues_while_its_answer_is_unread() {
    const LARGE: usize = 32 * 1024 * 1024;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    // After the head, the service sends more than all buffers on the way hold, before it reads the body.
    let service = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut reading, mut writing) = stream.into_split();
        let mut piece = vec![0; 64 * 1024];
        let mut came = reading.read(&mut piece).await.unwrap();
        let saying = tokio::spawn(async move {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n");
            writing.write_all(head.as_bytes()).await.unwrap();
            writing.write_all(&vec![b'a'; LARGE]).await.unwrap();
            writing
        });
        while came < LARGE {
            came += reading.read(&mut piece).await.unwrap();
        }
        saying.await.unwrap()
    });
    let route = "name = \"both\"\npath = \"/both\"\nmethods = [\"PUT\"]\nmode = \"off\"";
    let world = World::with(Store::sqlite(), |setup| setup.upstream(address).route(route)).await;
    let upload = world.proxy.client().request("PUT", "/both").body(vec![b'x'; LARGE]);
    // The upload is sent completely before a byte of the answer is read.
    let mut exchange = timeout(TEST_TIMEOUT, upload.open()).await.expect("the upload stalls").unwrap();
    let response = timeout(TEST_TIMEOUT, exchange.response()).await.expect("the answer comes whole");
    assert_eq!(response.body.len(), LARGE);
    timeout(TEST_TIMEOUT, service).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_unusual_content_length_is_normalized_both_ways() {
    let world = World::start(Store::sqlite()).await;
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello";
    world.upstream.then(Answer::raw(text));
    let response = world.get("/page").send().await;
    assert_eq!((response.field("content-length"), &*response.text()), (Some("5"), "hello"));
    world.upstream.then(Answer::raw("HTTP/1.1 200 OK\r\nContent-Length: 07\r\nContent-Length: 07\r\n\r\n"));
    let response = world.proxy.client().request("HEAD", "/page").send().await;
    assert_eq!((response.status, response.field("content-length")), (200, Some("7")));
    let mut exchange =
        world.proxy.client().raw(b"POST /page HTTP/1.1\r\nHost: x\r\nContent-Length: 0010\r\n\r\n0123456789").await;
    assert_eq!(exchange.response().await.status, 201);
    assert_eq!((world.upstream.last().field("content-length"), world.upstream.last().body.len()), (Some("10"), 10));
}
