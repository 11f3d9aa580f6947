//! Responses that are ready before their request's body has been read: the connection stays, or the response says that
//! it closes.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use harness::{Exchange, Store, TEST_TIMEOUT, World, route, service};

/// A world whose route refuses a request without a key and a body over 1 KiB.
async fn strict() -> World {
    World::guarding(Store::sqlite(), "key = { required = true }\nmax_request_body = \"1KiB\"").await
}

/// Checks that the connection serves another request.
async fn serves_another(world: &World, exchange: &mut Exchange, key: &str) {
    exchange.write(&world.pay(key).bytes()).await;
    assert_eq!(exchange.response().await.oncegate_status(), Some("executed"), "{key}");
}

#[tokio::test]
async fn a_refusal_before_a_short_body_keeps_the_connection() {
    let world = strict().await;
    let body = "x".repeat(20_000);
    for (name, request, outcome) in [
        ("missing", world.post("/pay").body(&*body), (400, "key-missing")),
        ("invalid", world.pay("").body(&*body), (400, "key-invalid")),
        ("large", world.pay("k-large").body(&*body), (413, "request-too-large")),
        ("nominated", world.pay("k-1").field("Connection", "authorization").body(&*body), (400, "bad-request")),
    ] {
        for (framing, request) in [("sized", request.clone()), ("chunked", request.chunked())] {
            let mut exchange = request.open().await.unwrap();
            let refusal = exchange.response().await;
            let expected = (outcome.0, outcome.1.to_owned());
            assert_eq!((refusal.outcome(), refusal.field("connection")), (expected, None), "{name}, {framing}");
            serves_another(&world, &mut exchange, &format!("{name}-{framing}")).await;
        }
    }
}

#[tokio::test]
async fn an_unreachable_service_keeps_the_connection_of_a_streamed_body() {
    let (world, _) = World::before_unreachable_service(Store::sqlite()).await;
    let mut exchange = world.post("/pay").body("x".repeat(20_000)).open().await.unwrap();
    for _ in 0..2 {
        let refusal = exchange.response().await;
        assert_eq!((refusal.outcome().1.as_str(), refusal.field("connection")), ("upstream-unreachable", None));
        exchange.write(&world.post("/pay").body("x".repeat(20_000)).bytes()).await;
    }
}

#[tokio::test]
async fn a_refusal_before_a_long_body_announces_the_close_at_once() {
    let world = strict().await;
    let unsent = world.post("/pay").body("x".repeat(200_000));
    let mut exchange = unsent.open_head().await;
    let refusal = exchange.response().await;
    assert_eq!((refusal.outcome().1.as_str(), refusal.field("connection")), ("key-missing", Some("close")));
    exchange.finish().await;
    exchange.wait_until_closed().await;
    let mut exchange = unsent.chunked().open().await.unwrap();
    let refusal = exchange.response().await;
    assert_eq!((refusal.outcome().1.as_str(), refusal.field("connection")), ("key-missing", Some("close")));
    exchange.finish().await;
    exchange.wait_until_closed().await;
}

#[tokio::test]
async fn a_refusal_waits_for_a_slow_body_for_a_second_and_then_announces_the_close() {
    let world = strict().await;
    let mut exchange = world.post("/pay").body("x".repeat(1_000)).open_head().await;
    let begun = Instant::now();
    exchange.write(b"xxx").await;
    let refusal = exchange.response().await;
    assert_eq!((refusal.outcome().1.as_str(), refusal.field("connection")), ("key-missing", Some("close")));
    assert!(begun.elapsed().as_secs_f32() < 5.0, "{:?}", begun.elapsed());
    exchange.finish().await;
    exchange.wait_until_closed().await;
}

#[tokio::test]
async fn a_refused_client_that_awaits_100_continue_is_told_that_the_connection_closes() {
    let world = strict().await;
    let request = world.pay("").field("Expect", "100-continue").body("10 EUR");
    let mut exchange = request.open_head().await;
    let refusal = exchange.response().await;
    assert_eq!((refusal.outcome().1.as_str(), refusal.interim.len()), ("key-invalid", 0));
    assert_eq!(refusal.field("connection"), Some("close"));
    exchange.finish().await;
    exchange.wait_until_closed().await;
}

#[tokio::test]
async fn a_body_with_broken_framing_closes_the_connection() {
    let world = World::start(Store::sqlite()).await;
    for key in ["Authorization: Bearer a\r\nIdempotency-Key: k-1\r\n", ""] {
        let head = format!("POST /pay HTTP/1.1\r\nHost: h\r\n{key}Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n");
        let mut exchange = world.proxy.client().raw(head.as_bytes()).await;
        if key.is_empty() {
            world.upstream.wait_until(|seen| seen.body_bytes > 0).await;
        }
        exchange.write(b"xyz\r\n").await;
        let refusal = exchange.response().await;
        assert_eq!((refusal.status, refusal.field("connection")), (400, Some("close")), "{key:?}");
        exchange.wait_until_closed().await;
    }
}

/// A service that answers its only request after the beginning of its body, and closes once it is told to.
async fn answer_and_close(listener: TcpListener, response: &'static [u8], answered: oneshot::Receiver<()>) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"first") {
        assert!(stream.read_buf(&mut seen).await.unwrap() > 0);
    }
    stream.write_all(response).await.unwrap();
    answered.await.unwrap();
}

#[tokio::test]
async fn an_early_answer_of_a_service_that_closes_is_never_followed_by_a_silent_close() {
    for (response, connection) in [
        (&b"HTTP/1.1 401 No\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"[..], Some("close")),
        (b"HTTP/1.0 401 No\r\nContent-Length: 2\r\n\r\nno", Some("close")),
        // It has not said that it reads no further.
        (b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno", None),
    ] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (close, answered) = oneshot::channel();
        let closing = tokio::spawn(answer_and_close(listener, response, answered));
        let (early, off) = (service("early", address), route("early", "mode = \"off\""));
        let world = World::with(Store::sqlite(), |setup| setup.service(&early).route(&off)).await;
        let upload = world.post("/early").host("early.example").body("x".repeat(300_005));
        let mut exchange = upload.open_head().await;
        exchange.write(b"first").await;
        let answer = exchange.response().await;
        assert_eq!((answer.status, &*answer.text(), answer.field("connection")), (401, "no", connection));
        close.send(()).unwrap();
        timeout(TEST_TIMEOUT, closing).await.unwrap().unwrap();
        if connection.is_none() {
            exchange.write("x".repeat(300_000).as_bytes()).await;
            exchange.write(&world.pay("k-1").bytes()).await;
            assert_eq!(exchange.response().await.status, 201);
        }
    }
}

/// Runs a client's program with the proxy's port as its argument; skips if the interpreter is missing.
fn run_client(interpreter: &str, program: &str, world: &World) {
    if !Path::new(interpreter).exists() {
        harness::skip(format_args!("no {interpreter}"));
        return;
    }
    let option = if interpreter.ends_with("node") { "-e" } else { "-c" };
    let mut client = Command::new(interpreter);
    let ended = client.args([option, program, &world.proxy.listen.port().to_string()]).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn pythons_client_sends_its_next_request_after_a_refused_upload() {
    let world = strict().await;
    let program = r#"
import http.client, sys
client = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=20)
for length in [100, 20_000, 60_000, 200_000] * 3:
    for fields in [{}, {"Authorization": "Bearer a", "Idempotency-Key": f"k-{length}"}]:
        client.request("POST", "/pay", b"x" * length, fields)
        response = client.getresponse()
        assert response.status == (400 if not fields else 201 if length == 100 else 413), (length, response.status)
        response.read()
        client.request("GET", "/page")
        response = client.getresponse()
        assert response.status == 201, response.status
        response.read()
"#;
    run_client("/usr/bin/python3", program, &world);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_client_sends_its_next_request_after_a_refused_upload() {
    let world = strict().await;
    let program = r#"
const http = require('http');
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
const send = (method, path, body) => new Promise((done, failed) => {
  const options = { host: '127.0.0.1', port: process.argv[1], method, path, agent, headers: { 'Content-Length': body.length } };
  const request = http.request(options, response => {
    response.resume();
    response.on('end', () => done(response.statusCode));
  });
  request.on('error', failed);
  request.end(body);
});
(async () => {
  for (let round = 0; round < 3; round++) {
    for (const length of [100, 20000, 60000, 200000]) {
      const refused = await send('POST', '/pay', 'x'.repeat(length));
      const answered = await send('GET', '/page', '');
      if (refused !== 400 || answered !== 201) throw new Error(`${length}: ${refused}, ${answered}`);
    }
  }
  agent.destroy();
})().catch(error => { console.error(error); process.exit(1); });
"#;
    run_client("/usr/bin/node", program, &world);
}
