//! Protocols on both sides: HTTP/2, Unix sockets, server-sent events, and real clients.

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use harness::h2::{H2Upstream, connect};
use harness::wire::{Framing, Wire};
use harness::{Answer, Hold, Proxy, Store, Upstream, World, on_both_stores, route, service};

fn post(target: &str, key: Option<&str>) -> Request<Full<Bytes>> {
    let request = Request::post(format!("http://shop.example{target}")).header("content-type", "application/json");
    let request = key
        .into_iter()
        .fold(request, |request, key| request.header("idempotency-key", key).header("authorization", "Bearer test"));
    request.body(Full::from("{\"amount\":1}")).unwrap()
}

on_both_stores!(a_hundred_streams_on_one_connection_execute_each_key_once);
async fn a_hundred_streams_on_one_connection_execute_each_key_once(store: Store) {
    let world = World::guarding(store, "in_flight = \"wait\"").await;
    let client = connect(&world).await;
    let mut streams = JoinSet::new();
    for number in 0..100 {
        let mut client = client.clone();
        streams.spawn(async move {
            client.ready().await.unwrap();
            let response = client.send_request(post("/pay", Some(&format!("k-{}", number % 10)))).await.unwrap();
            assert_eq!((response.version(), response.status()), (Version::HTTP_2, StatusCode::CREATED));
            let oncegate_status = response.headers()["oncegate-status"].to_str().unwrap().to_owned();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            (number % 10, oncegate_status, body)
        });
    }
    let mut answers = vec![Vec::new(); 10];
    let mut executed = 0;
    while let Some(stream) = streams.join_next().await {
        let (key, oncegate_status, body) = stream.unwrap();
        executed += usize::from(oncegate_status == "executed");
        answers[key].push(body);
    }
    assert_eq!((executed, world.upstream.calls()), (10, 10));
    assert!(answers.iter().all(|bodies| bodies.len() == 10 && bodies.iter().all(|body| *body == bodies[0])));
}

/// Sends the head and the beginning of a body, and then resets the stream as Node's `close()` does.
async fn send_half(world: &World, request: Request<()>) {
    let stream = world.proxy.client().connect().await;
    let (client, connection) = ::h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let (response, mut body) = client.send_request(request, false).unwrap();
    body.send_data(Bytes::from_static(b"amount=10"), false).unwrap();
    body.send_reset(::h2::Reason::NO_ERROR);
    assert!(response.await.is_err(), "a stream that is reset has no response");
    // The proxy has handled the reset when it answers a request that came after it.
    let next = client.send_request(Request::get("http://shop.example/else").body(()).unwrap(), true).unwrap().0;
    assert_eq!(next.await.unwrap().status(), StatusCode::CREATED);
    connection.abort();
}

#[tokio::test]
async fn half_a_body_whose_stream_is_reset_without_an_error_is_not_executed() {
    let world = World::guarding(Store::sqlite(), "").await;
    for (number, length) in [Some("11"), None].into_iter().enumerate() {
        let calls = world.upstream.calls();
        let key = format!("k-{number}");
        let request = Request::post("http://shop.example/pay").header("idempotency-key", &key);
        let request = request.header("authorization", "Bearer test");
        let request = length.into_iter().fold(request, |request, length| request.header("content-length", length));
        send_half(&world, request.body(()).unwrap()).await;
        // The whole request is neither another one nor a retry.
        let whole = world.pay(&key).body("amount=1000").send().await;
        assert_eq!((whole.status, whole.oncegate_status()), (201, Some("executed")), "{length:?}");
        assert_eq!(world.upstream.last().body, b"amount=1000", "{length:?}");
        assert_eq!(world.upstream.calls(), calls + 2, "{length:?}");
    }
}

#[tokio::test]
async fn half_a_body_of_an_unguarded_stream_is_never_ended_towards_the_service() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let service = listener.local_addr().unwrap();
    let store = Store::sqlite();
    let proxy = Proxy::on(&store.url()).upstream(service).route(&route("pay", "")).start().await;
    let (client, connection) = ::h2::client::handshake(proxy.client().connect().await).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("http://shop.example/else").body(()).unwrap();
    let (_, mut body) = client.ready().await.unwrap().send_request(request, false).unwrap();
    body.send_data(Bytes::from_static(b"amount=10"), false).unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut seen = Vec::new();
    while !seen.windows(9).any(|bytes| bytes == b"amount=10") {
        assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0, "half of the body passes");
    }
    body.send_reset(::h2::Reason::NO_ERROR);
    drop(stream.read_to_end(&mut seen).await);
    let seen = String::from_utf8(seen).unwrap();
    assert!(!seen.contains("0\r\n\r\n"), "the body's end is not the client's: {seen:?}");
}

#[tokio::test]
async fn userinfo_in_the_authority_does_not_bypass_the_hosts_route() {
    let own = Upstream::start().await;
    let lines = route("pay", "service = \"api\"\nkey = { required = true }");
    let world = World::with(Store::sqlite(), |setup| setup.service(&service("api", own.address)).route(&lines)).await;
    let mut client = connect(&world).await;
    for target in ["http://api.example/pay", "http://x@api.example/pay", "http://x:y@API.example:80/pay"] {
        let request = Request::post(target).body(Full::from("x")).unwrap();
        // Refused as malformed, or as a request on that route.
        let refused =
            client.send_request(request).await.map_or(true, |response| response.status() == StatusCode::BAD_REQUEST);
        assert!(refused, "{target}");
        assert_eq!(world.post(target).body("x").send().await.status, 400, "{target}");
    }
    assert_eq!((own.calls(), world.upstream.calls()), (0, 0));
}

#[tokio::test]
async fn a_hundred_unguarded_streams_pass_concurrently() {
    let world = World::guarding(Store::sqlite(), "").await;
    let hold = Hold::new();
    world.upstream.answer_all(Answer::status(200).hold(&hold));
    let client = connect(&world).await;
    let mut streams = JoinSet::new();
    for _ in 0..100 {
        let mut client = client.clone();
        streams.spawn(async move {
            client.ready().await.unwrap();
            client.send_request(post("/else", None)).await.unwrap()
        });
    }
    // The service answers none before all of them have arrived.
    world.upstream.wait_for_executed(100).await;
    hold.release();
    while let Some(stream) = streams.join_next().await {
        let response = stream.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key("oncegate-status"));
    }
}

on_both_stores!(a_service_may_be_reached_over_http_2);
async fn a_service_may_be_reached_over_http_2(store: Store) {
    let service = H2Upstream::start().await;
    let url = format!("h2c://{}", service.address);
    let world = World::with(store, |setup| setup.upstream_url(&url).route(&route("pay", ""))).await;
    let first = world.pay("k-1").field("TE", "trailers").send().await;
    assert_eq!((first.status, first.oncegate_status(), &*first.text()), (201, Some("executed"), "effect 1"));
    assert_eq!(first.trailers, [("x-checksum".to_owned(), "1".to_owned())]);
    assert_eq!(world.pay("k-1").field("TE", "trailers").send().await.comparable(), first.replayed());
    assert_eq!(world.post("/pay").body("keyless").send().await.text(), "effect 2");
    let many: Vec<_> = (0..50).map(|number| world.pay(&format!("n-{number}")).spawn()).collect();
    for one in many {
        assert_eq!(one.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    }
    let seen = service.seen();
    assert_eq!(seen.len(), 52);
    assert!(seen.iter().all(|call| call.version == Version::HTTP_2 && call.target.ends_with("/pay")));
    assert_eq!(seen[0].headers["idempotency-key"], "k-1");
    assert_eq!(seen[0].headers["x-forwarded-host"], "shop.example");
    assert_eq!((seen[0].headers["oncegate-attempt"].as_bytes(), &*seen[1].body), (&b"1"[..], &b"keyless"[..]));
    assert_eq!(world.upstream.calls(), 0);
}

#[tokio::test]
async fn both_sides_may_speak_http_2() {
    let service = H2Upstream::start().await;
    let url = format!("h2c://{}", service.address);
    let world = World::with(Store::sqlite(), |setup| setup.upstream_url(&url).route(&route("pay", ""))).await;
    let mut client = connect(&world).await;
    for expected in ["executed", "replayed"] {
        let response = client.send_request(post("/pay", Some("k-1"))).await.unwrap();
        assert_eq!(response.headers()["oncegate-status"], expected);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "effect 1");
    }
}

/// The ways in which an HTTP/2 service goes away after it has received a complete request.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Silently,
    WithSettings,
    WithReset,
    WithGoaway,
}

/// A service that reads the request's body and goes away; it counts its connections.
async fn leaving(leaves: Leaves) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, came) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&came);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            if !matches!(leaves, Leaves::Silently) {
                stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            }
            let mut read = Vec::new();
            while !read.windows(8).any(|eight| eight == b"\"amount\"") {
                assert!(stream.read_buf(&mut read).await.unwrap() > 0);
            }
            match leaves {
                // Stream 1 is the last one that it may have processed.
                Leaves::WithGoaway => {
                    stream.write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]).await.unwrap();
                }
                Leaves::WithReset => stream.set_zero_linger().unwrap(),
                Leaves::Silently | Leaves::WithSettings => {}
            }
        }
    });
    (address, came)
}

#[tokio::test]
async fn an_http_2_service_that_closes_during_a_request_leaves_it_unknown() {
    for leaves in [Leaves::Silently, Leaves::WithSettings, Leaves::WithReset, Leaves::WithGoaway] {
        let (address, came) = leaving(leaves).await;
        let url = format!("h2c://{address}");
        let world = World::with(Store::sqlite(), |setup| setup.upstream_url(&url).route(&route("pay", ""))).await;
        let answer = world.pay("k-1").send().await;
        assert_eq!(
            (answer.outcome(), answer.oncegate_status()),
            ((502, "upstream-broken".to_owned()), Some("unknown")),
            "{leaves:?}"
        );
        assert_eq!(world.pay("k-1").send().await.outcome(), (409, "outcome-unknown".to_owned()), "{leaves:?}");
        assert_eq!(came.load(Ordering::SeqCst), 1, "{leaves:?}: it is not sent a second time");
    }
}

on_both_stores!(a_service_may_be_reached_over_a_unix_socket);
async fn a_service_may_be_reached_over_a_unix_socket(store: Store) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let url = format!("unix:{}", path.display());
    let world = World::with(store, |setup| setup.upstream_url(&url).route(&route("pay", ""))).await;
    let nobody = world.pay("k-1").send().await;
    assert_eq!(
        (nobody.outcome(), nobody.oncegate_status()),
        ((502, "upstream-unreachable".to_owned()), Some("released"))
    );
    let listener = UnixListener::bind(&path).unwrap();
    let behind = world.upstream.address;
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut far = TcpStream::connect(behind).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    let first = world.pay("k-1").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(world.post("/pay").body("keyless").send().await.text(), "effect 2");
    assert_eq!(world.upstream.last().field("host"), Some("shop.example"));
}

#[tokio::test]
async fn server_sent_events_pass_one_by_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (events, mut next) = mpsc::channel::<&str>(1);
    tokio::spawn(async move {
        let mut wire = Wire::new(listener.accept().await.unwrap().0);
        wire.head().await.unwrap().unwrap();
        wire.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await
            .unwrap();
        while let Some(event) = next.recv().await {
            wire.write(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await.unwrap();
        }
        wire.write(b"0\r\n\r\n").await.unwrap();
    });
    let off = route("events", "mode = \"off\"");
    let world = World::with(Store::sqlite(), |setup| setup.upstream(address).route(&off)).await;
    let mut exchange = world.post("/events").field("Accept", "text/event-stream").open().await.unwrap();
    let head = exchange.any_head().await.unwrap();
    assert_eq!(head.all("content-type").collect::<Vec<_>>(), ["text/event-stream"]);
    for event in ["data: 1\n\n", ": still here\n\n", "event: done\ndata: 2\n\n"] {
        // The service has sent no more by then than this read returns.
        events.send(event).await.unwrap();
        assert_eq!(exchange.piece().await.unwrap().unwrap(), event.as_bytes());
    }
    drop(events);
    assert_eq!(exchange.piece().await.unwrap(), None);
}

#[tokio::test]
async fn a_100_continue_is_sent_when_the_body_is_needed() {
    let world = World::guarding(Store::sqlite(), "key = { required = true }").await;
    for expected in ["executed", "replayed"] {
        let request = world.pay("k-1").field("Expect", "100-continue");
        let mut exchange = request.open_head().await;
        assert!(exchange.any_head().await.unwrap().start.contains(" 100 "));
        exchange.write(br#"{"amount":10,"currency":"EUR"}"#).await;
        let response = exchange.response().await;
        assert_eq!((response.oncegate_status(), &*response.text()), (Some(expected), "effect 1"));
    }
    let mut unguarded = world.post("/else").field("Expect", "100-continue").body("some").open_head().await;
    assert!(unguarded.any_head().await.unwrap().start.contains(" 100 "));
    unguarded.write(b"some").await;
    assert_eq!(unguarded.response().await.text(), "effect 2");
    let mut keyless = world.post("/pay").field("Expect", "100-continue").body("some").open_head().await;
    let head = keyless.any_head().await.unwrap();
    assert!(head.start.contains(" 400 "), "{}", head.start);
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn unsupported_upgrades_are_not_forwarded() {
    // An unguarded request for an upgrade to HTTP/2 is answered over HTTP/1.1.
    let world = World::start(Store::sqlite()).await;
    for protocols in ["h2c", "h2c, websocket", "websocket, h2c", "x"] {
        let request = world.get("/").field("Connection", "Upgrade, HTTP2-Settings").field("Upgrade", protocols);
        let response = request.field("HTTP2-Settings", "AAMAAABkAAQCAAAAAAIAAAAA").send().await;
        assert_eq!((response.status, response.interim.len()), (201, 0), "{protocols}");
        let seen = world.upstream.last();
        assert_eq!((seen.field("upgrade"), seen.field("http2-settings")), (None, None), "{protocols}");
    }
    let mut wire = Wire::new(world.proxy.client().connect().await);
    wire.write(&world.get("/").bytes()).await.unwrap();
    let head = wire.head().await.unwrap().unwrap();
    assert_eq!(head.framing(Framing::UntilClose), Framing::Length(8));
}

/// Runs a client if it is installed.
async fn client(program: &str, arguments: Vec<String>) -> Option<Output> {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    if !found.status.success() {
        harness::skip(format_args!("{program} is not installed"));
        return None;
    }
    let mut command = Command::new(program);
    command.args(arguments);
    Some(tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[tokio::test]
async fn curl_gets_a_replay_over_http_1_and_http_2() {
    let world = World::start(Store::sqlite()).await;
    let url = format!("http://{}/pay", world.proxy.listen);
    for (protocol, version, expected) in [
        ("--http2-prior-knowledge", "HTTP/2 ", "executed"),
        ("--http1.1", "HTTP/1.1 ", "replayed"),
        ("--http2-prior-knowledge", "HTTP/2 ", "replayed"),
        ("--http2", "HTTP/1.1 ", "replayed"),
    ] {
        let arguments = words(&[
            "--silent",
            "--include",
            protocol,
            "-H",
            "Authorization: Bearer test",
            "-H",
            "Idempotency-Key: k-1",
            "--json",
            "{\"a\":1}",
            &url,
        ]);
        let Some(output) = client("curl", arguments).await else { return };
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.starts_with(&format!("{version}201")), "{protocol}: {said}");
        assert!(said.to_ascii_lowercase().contains(&format!("oncegate-status: {expected}")), "{protocol}: {said}");
        assert!(said.ends_with("effect 1"), "{protocol}: {said}");
    }
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn curl_gets_the_refusal_of_an_upload_over_http_2() {
    let world = World::guarding(Store::sqlite(), "key = { required = true }\nmax_request_body = \"1KiB\"").await;
    let folder = tempfile::tempdir().unwrap();
    let upload = folder.path().join("upload");
    std::fs::write(&upload, vec![0; 5_000_000]).unwrap();
    let (url, upload) = (format!("http://{}/pay", world.proxy.listen), format!("@{}", upload.display()));
    for round in 0..10 {
        for (field, expected) in [("Idempotency-Key: k-1", "413"), ("X-Other: 1", "400")] {
            let mut arguments = words(&["--silent", "--http2-prior-knowledge", "--output", "/dev/null"]);
            arguments.extend(words(&["--write-out", "%{http_code}", "-H", "Authorization: Bearer test", "-H", field]));
            arguments.extend(words(&["--data-binary", &upload, &url]));
            let Some(output) = client("curl", arguments).await else { return };
            assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "round {round}");
        }
    }
}

#[tokio::test]
async fn nghttp_gets_a_replay() {
    let world = World::start(Store::sqlite()).await;
    let folder = tempfile::tempdir().unwrap();
    let body = folder.path().join("body");
    std::fs::write(&body, "{\"a\":1}").unwrap();
    let url = format!("http://{}/pay", world.proxy.listen);
    for expected in ["executed", "replayed"] {
        let body = body.display().to_string();
        let arguments = words(&[
            "-v",
            "-H",
            "authorization: Bearer test",
            "-H",
            "idempotency-key: k-1",
            "-H",
            ":method: POST",
            "-d",
            &body,
            &url,
        ]);
        let Some(output) = client("nghttp", arguments).await else { return };
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(&format!("oncegate-status: {expected}")), "{said}");
    }
    assert_eq!(world.upstream.calls(), 1);
}
