//! The same requests over HTTP/2, in cleartext with prior knowledge.

use std::future::poll_fn;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::mpsc;
use tokio::time::timeout;

use harness::{Answer, Hold, Store, TEST_TIMEOUT, World, eventually, on_both_stores};

const BODY: &str = r#"{"amount":10,"currency":"EUR"}"#;

/// A connection that many requests share.
async fn connect<B>(world: &World) -> SendRequest<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
{
    let stream = world.proxy.client().connect().await;
    let (mut sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender.ready().await.unwrap();
    sender
}

/// The request of [`World::pay`] over HTTP/2.
fn pay<B>(key: &str, body: B) -> Request<B> {
    Request::post("http://shop.example/pay")
        .header("idempotency-key", key)
        .header("authorization", "Bearer test")
        .header("content-type", "application/json")
        .header("te", "trailers")
        .body(body)
        .unwrap()
}

fn oncegate_status(response: &Response<Incoming>) -> &str {
    response.headers()["oncegate-status"].to_str().unwrap()
}

async fn read(response: Response<Incoming>) -> (Bytes, HeaderMap) {
    let body = timeout(TEST_TIMEOUT, response.into_body().collect()).await.unwrap().unwrap();
    let trailers = body.trailers().cloned().unwrap_or_default();
    (body.to_bytes(), trailers)
}

on_both_stores!(a_retry_is_replayed_whichever_protocol_either_came_in);
async fn a_retry_is_replayed_whichever_protocol_either_came_in(store: Store) {
    let world = World::start(store).await;
    world.upstream.answer_all(Answer::status(201).chunks(&["pa", "id"]).trailer("X-Checksum", "7"));
    let mut client = connect(&world).await;
    for expected in ["executed", "replayed"] {
        let response = client.send_request(pay("k-1", Full::from(BODY))).await.unwrap();
        assert_eq!(
            (response.version(), response.status(), oncegate_status(&response)),
            (Version::HTTP_2, StatusCode::CREATED, expected)
        );
        let (body, trailers) = read(response).await;
        assert_eq!((&*body, trailers["x-checksum"].as_bytes()), (&b"paid"[..], &b"7"[..]));
    }
    let other = world.pay("k-1").field("TE", "trailers").send().await;
    assert_eq!((other.oncegate_status(), &*other.text(), other.trailers.len()), (Some("replayed"), "paid", 1));
    let call = world.upstream.last();
    assert_eq!((call.field("host"), call.field("x-forwarded-host")), (Some("shop.example"), Some("shop.example")));
    assert!(call.field("via").unwrap().starts_with("2"), "{:?}", call.field("via"));
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(a_stream_that_is_reset_changes_nothing_for_its_attempt);
async fn a_stream_that_is_reset_changes_nothing_for_its_attempt(store: Store) {
    let world = World::start(store).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let mut client = connect(&world).await;
    let abandoned = client.send_request(pay("k-1", Full::from(BODY)));
    tokio::select! {
        _ = abandoned => panic!("the service has not answered yet"),
        () = world.upstream.wait_for_executed(1) => {}
    }
    // The connection's next request is sent after the reset, so the reset has been seen when it is answered.
    let duplicate = client.send_request(pay("k-1", Full::from(BODY))).await.unwrap();
    assert_eq!((duplicate.status(), oncegate_status(&duplicate)), (StatusCode::CONFLICT, "in-flight"));
    hold.release();
    let replay = eventually(TEST_TIMEOUT, async || {
        Some(client.send_request(pay("k-1", Full::from(BODY))).await.unwrap())
            .filter(|answer| answer.status() != StatusCode::CONFLICT)
    });
    let replay = replay.await;
    assert_eq!(oncegate_status(&replay), "replayed");
    assert_eq!(read(replay).await.0, "effect 1");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_stream_reset_within_its_body_reserves_nothing() {
    let world = World::start(Store::sqlite()).await;
    let (pieces, mut body) = mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(1);
    let body = StreamBody::new(futures_util::stream::poll_fn(move |context| body.poll_recv(context)));
    let mut client = connect(&world).await;
    let cut = client.send_request(pay("k-1", body));
    pieces.send(Ok(Frame::data(Bytes::from_static(b"{")))).await.unwrap();
    pieces.send(Err(std::io::Error::other("cut"))).await.unwrap();
    cut.await.expect_err("the stream is reset");
    assert_eq!(world.upstream.calls(), 0);
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn requests_on_one_connection_run_concurrently() {
    let world = World::start(Store::sqlite()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let mut client = connect(&world).await;
    let slow = client.send_request(pay("slow", Full::from(BODY)));
    let slow = tokio::spawn(slow);
    world.upstream.wait_for_executed(1).await;
    for number in 0..10 {
        poll_fn(|context| client.poll_ready(context)).await.unwrap();
        let response = client.send_request(pay(&format!("k-{number}"), Full::from(BODY))).await.unwrap();
        assert_eq!(oncegate_status(&response), "executed");
    }
    hold.release();
    assert_eq!(oncegate_status(&slow.await.unwrap().unwrap()), "executed");
}

#[tokio::test]
async fn http_1_hop_by_hop_fields_are_not_passed_on() {
    let world = World::start(Store::sqlite()).await;
    world
        .upstream
        .answer_all(Answer::status(200).field("Connection", "X-Named").field("X-Named", "1").field("Keep-Alive", "5"));
    let mut client = connect(&world).await;
    for expected in ["executed", "replayed"] {
        let response = client.send_request(pay("k-1", Full::from(BODY))).await.unwrap();
        assert_eq!(oncegate_status(&response), expected);
        for name in ["connection", "x-named", "keep-alive", "transfer-encoding"] {
            assert!(!response.headers().contains_key(name), "{name}");
        }
    }
}

/// A body that arrives in these pieces.
fn pieces(count: usize) -> StreamBody<impl futures_util::Stream<Item = Result<Frame<Bytes>, std::io::Error>>> {
    let piece = || Ok(Frame::data(Bytes::from(vec![b'x'; 10_000])));
    StreamBody::new(futures_util::stream::iter(std::iter::repeat_with(piece).take(count)))
}

#[tokio::test]
async fn an_early_response_comes_whole_and_its_connection_lives() {
    let world = World::guarding(Store::sqlite(), "key = { required = true }").await;
    let mut client = connect(&world).await;
    for count in [1, 2, 20, 200] {
        let request = Request::post("http://shop.example/pay").body(pieces(count)).unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        let (body, _) = read(response).await;
        assert!(str::from_utf8(&body).unwrap().contains("key-missing"), "{body:?}");
        poll_fn(|context| client.poll_ready(context)).await.expect("the connection lives");
    }
    let response =
        client.send_request(Request::get("http://shop.example/page").body(pieces(0)).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_body_that_differs_from_its_content_length_resets_its_stream() {
    let world = World::start(Store::sqlite()).await;
    let mut client = connect(&world).await;
    for key in [Some("k-1"), None] {
        for (announced, sent) in [(30_000, 2), (10_000, 3), (20_000, 3), (1, 1), (10_000, 0)] {
            let request = Request::post("http://shop.example/pay").header("content-length", announced);
            let request = key.iter().fold(request.header("authorization", "Bearer test"), |request, key| {
                request.header("idempotency-key", *key)
            });
            let failed = client.send_request(request.body(pieces(sent)).unwrap()).await;
            failed.expect_err(&format!("{key:?}: {announced} and not {sent} pieces"));
            poll_fn(|context| client.poll_ready(context)).await.expect("the connection lives");
        }
    }
    let mut whole = pay("k-1", pieces(2));
    whole.headers_mut().insert("content-length", 20_000.into());
    let response = client.send_request(whole).await.unwrap();
    assert_eq!(oncegate_status(&response), "executed", "the key is still free");
    let executed = world.upstream.executed();
    assert_eq!(executed.iter().filter(|call| call.field("idempotency-key").is_some()).count(), 1);
    // Of a longer body that streams, the service has got as much as was announced before the rest comes. Of a shorter
    // one it never gets the end.
    let streamed = executed.iter().filter(|call| call.field("idempotency-key").is_none());
    assert!(streamed.map(|call| call.body.len()).all(|length| length < 30_000));
}

#[tokio::test]
async fn several_cookie_fields_go_on_as_one() {
    let world = World::guarding(Store::sqlite(), "scope = [\"cookie:session\"]").await;
    let mut client = connect(&world).await;
    let with = |cookies: &[&str]| {
        let mut request = pay("k-1", Full::from(BODY));
        for cookie in cookies {
            request.headers_mut().append("cookie", cookie.parse().unwrap());
        }
        request
    };
    let split = client.send_request(with(&["a=1; b=2", "session=ann", "c=3"])).await.unwrap();
    assert_eq!(oncegate_status(&split), "executed");
    assert_eq!(world.upstream.last().field("cookie"), Some("a=1; b=2; session=ann; c=3"));
    let joined = client.send_request(with(&["session=ann"])).await.unwrap();
    assert_eq!(oncegate_status(&joined), "replayed", "it is the same caller");
    let crumbs: Vec<_> = (0..150).map(|number| format!("c{number}=1")).chain(["session=ben".to_owned()]).collect();
    let crumbs: Vec<_> = crumbs.iter().map(String::as_str).collect();
    let other = client.send_request(with(&crumbs)).await.unwrap();
    assert_eq!(oncegate_status(&other), "executed", "another caller, and one field");
    let mut unguarded = with(&["a=1", "b=2"]);
    *unguarded.uri_mut() = "http://shop.example/page".parse().unwrap();
    assert_eq!(client.send_request(unguarded).await.unwrap().status(), StatusCode::CREATED);
    assert_eq!(world.upstream.last().field("cookie"), Some("a=1; b=2"));
}

#[tokio::test]
async fn requests_refused_over_http_1_are_refused_over_http_2() {
    let world = World::start(Store::sqlite()).await;
    let mut client = connect(&world).await;
    let with = |method: &str, field: (&'static str, &str)| {
        let mut request = pay("k-1", Full::from(BODY));
        *request.method_mut() = method.parse().unwrap();
        request.headers_mut().insert(field.0, field.1.parse().unwrap());
        request
    };
    for request in [
        with("post", ("x-a", "1")),
        with("POST", ("content_length", "5")),
        with("POST", ("transfer_encoding", "chunked")),
    ] {
        let shown = format!("{request:?}");
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{shown}");
    }
    assert_eq!(world.upstream.calls(), 0);
}
