//! Clients that hold what they can: bodies in memory, connections, the service's workers, file descriptors. Each limit
//! refuses new work, nothing that runs, and lets other clients through.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

use harness::metrics::Metrics;
use harness::{
    Answer, Client, Exchange, Hold, Request, Response, Store, TEST_TIMEOUT, World, eventually, h2, route, service,
};

fn admin(world: &World) -> Client {
    Client { address: world.proxy.admin }
}

/// The number of times that a limit was reached.
async fn reached(world: &World, limit: &str) -> u64 {
    Metrics::of(&world.proxy).await.get(&format!("oncegate_overloaded_total{{limit=\"{limit}\"}}")) as u64
}

async fn gauge(world: &World, name: &str) -> u64 {
    Metrics::of(&world.proxy).await.get(name) as u64
}

/// The bytes of bodies in the proxy's memory.
async fn held_bytes(world: &World) -> u64 {
    gauge(world, "oncegate_held_body_bytes").await
}

/// Sends all of a request but its last byte.
async fn open_unfinished(world: &World, request: &Request) -> Exchange {
    let bytes = request.bytes();
    world.proxy.client().raw(&bytes[..bytes.len() - 1]).await
}

fn is_overloaded(response: &Response) -> bool {
    response.outcome() == (503, "overloaded".to_owned()) && response.field("retry-after") == Some("1")
}

#[tokio::test]
async fn a_body_that_trickles_is_refused_within_seconds() {
    const PACE: Duration = Duration::from_secs(1);
    let world = World::with(Store::sqlite(), |setup| setup.top("limits = { body_rate = \"512B\" }")).await;
    let begun = Instant::now();
    let trickle = |request: Request| {
        let client = world.proxy.client();
        async move {
            let mut exchange = client.raw(&request.head()).await;
            let refusal = timeout(Duration::from_secs(25), async {
                loop {
                    tokio::select! {
                        response = exchange.response() => break response,
                        // Time and not an event: the pace of the client.
                        () = sleep(PACE) => {}
                    }
                    exchange.write(b"x").await;
                }
            });
            (refusal.await.expect("it is refused"), begun.elapsed())
        }
    };
    let body = "x".repeat(1000);
    let guarded = trickle(world.post("/pay").key("k-1").body(&*body));
    let streamed = trickle(world.post("/upload").body(&*body));
    for (refusal, took) in [tokio::join!(guarded, streamed)].into_iter().flat_map(<[_; 2]>::from) {
        assert_eq!(refusal.outcome(), (408, "request-timeout".to_owned()));
        assert!(took >= Duration::from_secs(9), "{took:?}");
    }
    assert_eq!(world.upstream.executed().len(), 0);
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn an_http_2_stream_that_is_silent_is_reset_and_frees_its_connection_to_the_service() {
    let world = World::start(Store::sqlite()).await;
    let mut client = h2::connect(&world).await;
    let first = stream::once(async { Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x"))) });
    let endless = StreamBody::new(Box::pin(first.chain(stream::pending())));
    let request = http::Request::post("http://oncegate/upload").body(endless).unwrap();
    let answer = timeout(Duration::from_secs(25), client.send_request(request)).await.expect("it ends");
    assert!(answer.is_err() || answer.is_ok_and(|response| response.status() == 408));
    world.upstream.wait_until(|seen| seen.closed >= 1).await;
}

#[tokio::test]
async fn an_upload_that_its_service_does_not_read_blocks_no_other_stream_of_its_connection() {
    const WITHOUT_PROGRESS: Duration = Duration::from_millis(500);
    // The system accepts its connections, and takes what fits into their buffers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upload = service("upload", silent.local_addr().unwrap());
    let world =
        World::with(Store::sqlite(), |setup| setup.service(&upload).route(&route("pay", "service = \"default\"")));
    let world = world.await;
    let mut client = h2::connect(&world).await;
    let sent = Arc::new(AtomicUsize::new(0));
    for _ in 0..2 {
        let sent = Arc::clone(&sent);
        let endless = stream::repeat_with(move || {
            sent.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b'x'; 16 * 1024])))
        });
        let upload = http::Request::post("http://upload.example/").body(StreamBody::new(endless).boxed_unsync());
        tokio::spawn(client.send_request(upload.unwrap()));
    }
    eventually(TEST_TIMEOUT, async || {
        let before = sent.load(Ordering::Relaxed);
        // Time and not an event: all buffers on the way are full once nothing more is sent.
        sleep(WITHOUT_PROGRESS).await;
        (before > 0 && sent.load(Ordering::Relaxed) == before).then_some(())
    })
    .await;
    let payment =
        http::Request::post("http://oncegate/pay").header("Idempotency-Key", "\"k-1\"").header("Authorization", "a");
    let payment = payment.body(Full::new(Bytes::from_static(b"x")).boxed_unsync()).unwrap();
    let answer = timeout(TEST_TIMEOUT, client.send_request(payment)).await.expect("it is not blocked").unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["oncegate-status"]), (201, &"executed".parse().unwrap()));
}

#[tokio::test]
async fn large_bodies_are_compared_as_small_ones() {
    let world = World::start(Store::sqlite()).await;
    let members: Vec<_> = (0..10_000).map(|number| format!("\"member-{number}\":{number}")).collect();
    let reversed: Vec<_> = members.iter().rev().cloned().collect();
    let (first, same) = (format!("{{{}}}", members.join(",")), format!("{{ {} }}", reversed.join(" , ")));
    let pay = |body: &str| world.post("/pay").key("k-1").json(body);
    let answers = join_all([pay(&first).send(), pay(&same).send(), pay(&first).send()]).await;
    let executed = answers.iter().filter(|answer| answer.oncegate_status() == Some("executed")).count();
    assert_eq!((executed, world.upstream.calls()), (1, 1));
    assert!(pay(&first).send().await.is_replay() && pay(&same).send().await.is_replay());
    assert_eq!(pay(&first.replace(":9999", ":9998")).send().await.status, 422);
}

/// A client that sends nothing for ten seconds is refused.
const LONGER_THAN_A_CLIENT_MAY_BE_SILENT: Duration = Duration::from_secs(12);

#[tokio::test]
async fn a_slow_service_does_not_make_its_client_slow() {
    let world = World::start(Store::sqlite()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    // More than all buffers on the way, so that the client has to wait for the service.
    let upload = world.post("/upload").body("x".repeat(8 << 20)).spawn();
    // Time and not an event: the service is slow.
    sleep(LONGER_THAN_A_CLIENT_MAY_BE_SILENT).await;
    hold.release();
    assert_eq!(upload.await.unwrap().unwrap().status, 201);
}

#[tokio::test]
async fn bodies_that_fill_the_memory_are_refused_and_small_requests_are_served() {
    let world = World::with(Store::sqlite(), |setup| setup.top("limits = { held_bodies = \"4MiB\" }")).await;
    let large = |key: &str| world.post("/pay").key(key).body("x".repeat(1 << 20));
    let mut unfinished = Vec::new();
    for number in 0..3 {
        unfinished.push(open_unfinished(&world, &large(&format!("held-{number}"))).await);
    }
    eventually(TEST_TIMEOUT, async || (held_bytes(&world).await >= 3 * 1_048_575).then_some(())).await;
    let refusal = large("k-large").send().await;
    assert!(is_overloaded(&refusal), "{refusal:?}");
    assert_eq!(reached(&world, "held_bodies").await, 1);
    let payment = world.pay("k-small").send().await;
    assert_eq!(payment.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("k-small").send().await.comparable(), payment.replayed());
    for exchange in &mut unfinished {
        exchange.write(b"x").await;
        assert_eq!(exchange.response().await.oncegate_status(), Some("executed"));
    }
    assert_eq!(large("k-large").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn bodies_that_have_begun_leave_room_for_one_that_is_nearly_complete() {
    let world = World::with(Store::sqlite(), |setup| setup.top("limits = { held_bodies = \"4MiB\" }")).await;
    let large = |key: &str| world.post("/pay").key(key).body("x".repeat(1 << 20));
    let begin = |request: Request| {
        let client = world.proxy.client();
        async move { client.raw(&request.bytes()[..request.head().len() + (200 << 10)]).await }
    };
    let mut exchange = begin(large("k-1")).await;
    eventually(TEST_TIMEOUT, async || (held_bytes(&world).await >= 200 << 10).then_some(())).await;
    let mut begun = Vec::new();
    for number in 0..20 {
        begun.push(begin(large(&format!("begun-{number}"))).await);
    }
    eventually(TEST_TIMEOUT, async || {
        (reached(&world, "held_bodies").await >= 7 && held_bytes(&world).await >= 3 << 19).then_some(())
    })
    .await;
    exchange.write(&"x".repeat((1 << 20) - (200 << 10)).into_bytes()).await;
    assert_eq!(exchange.response().await.oncegate_status(), Some("executed"));
}

/// A connection whose client takes no more than the head and the first KiB of a response.
async fn connect_reluctantly(world: &World) -> SendRequest<Full<Bytes>> {
    let stream = TokioIo::new(world.proxy.client().connect().await);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = builder.initial_stream_window_size(1024).handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn try_pay_over_http2(client: &mut SendRequest<Full<Bytes>>, key: &str) -> Option<http::Response<Incoming>> {
    let request =
        http::Request::post("http://oncegate/pay").header("Authorization", "a").header("Idempotency-Key", key);
    timeout(TEST_TIMEOUT, client.send_request(request.body(Full::default()).unwrap())).await.unwrap().ok()
}

async fn pay_over_http2(client: &mut SendRequest<Full<Bytes>>, key: &str) -> http::Response<Incoming> {
    try_pay_over_http2(client, key).await.expect("the connection is open")
}

#[tokio::test]
async fn a_client_that_does_not_read_loses_its_connection_once_responses_fill_the_memory() {
    let world = World::with(Store::sqlite(), |setup| setup.top("limits = { held_bodies = \"4MiB\" }")).await;
    let small = world.pay("k-small").send().await;
    // On a slow machine the connection may end before the payment comes.
    for round in 0..20 {
        let (mut client, mut unread) = (connect_reluctantly(&world).await, Vec::new());
        for number in 0..65 {
            world.upstream.then(Answer::status(201).body("x".repeat(64 << 10)));
            unread.push(try_pay_over_http2(&mut client, &format!("unread-{round}-{number}")).await);
        }
        let payment = world.pay(&format!("k-{round}")).body("x");
        let refused = is_overloaded(&payment.send().await);
        assert_eq!(world.pay("k-small").send().await.comparable(), small.replayed());
        // The client has left nothing, and is cut.
        eventually(TEST_TIMEOUT, async || (held_bytes(&world).await == 0).then_some(())).await;
        if refused {
            assert_eq!(payment.send().await.oncegate_status(), Some("executed"));
            return;
        }
    }
    panic!("no payment was refused");
}

/// Sends requests whose responses nobody takes, all at once, and measures the greatest memory until they are gone.
async fn fill_with_unread_responses(world: &World, requests: usize, answer: Answer) -> u64 {
    let client = connect_reluctantly(world).await;
    for _ in 0..requests {
        world.upstream.then(answer.clone());
    }
    let unread = join_all(
        (0..requests).map(async |number| try_pay_over_http2(&mut client.clone(), &format!("unread-{number}")).await),
    );
    let mut unread = pin!(unread);
    let mut held_max = 0;
    // They are taken by nobody as long as this is not dropped.
    let mut responses = None;
    loop {
        let held = tokio::select! {
            biased;
            heads = &mut unread, if responses.is_none() => {
                responses = Some(heads);
                continue;
            }
            held = held_bytes(world) => held,
        };
        held_max = held_max.max(held);
        if held == 0 && responses.is_some() {
            return held_max;
        }
    }
}

#[tokio::test]
async fn requests_that_run_at_once_hold_no_more_than_the_memory_for_responses() {
    let world = World::with(Store::sqlite(), |setup| setup.top("limits = { held_bodies = \"4MiB\" }")).await;
    let hold = Hold::new();
    let flood =
        fill_with_unread_responses(&world, 24, Answer::status(201).body("x".repeat(1_000_000)).hold_midway(&hold));
    let payments = async {
        // Its answer comes after those of the flood.
        eventually(TEST_TIMEOUT, async || (world.upstream.calls() >= 24).then_some(())).await;
        // The halves of three: each has room for the whole.
        eventually(TEST_TIMEOUT, async || (held_bytes(&world).await >= 1_500_000).then_some(())).await;
        let payment = world.pay("k-small").body("x").send().await;
        assert_eq!(payment.oncegate_status(), Some("executed"), "a short response waits for nothing");
        hold.release();
        payment
    };
    let (held_max, payment) = tokio::join!(flood, payments);
    assert!((1_500_000..=4 << 20).contains(&held_max), "{held_max}");
    assert_eq!(world.pay("k-small").body("x").send().await.comparable(), payment.replayed());
    let mut client = connect_reluctantly(&world).await;
    for number in 0..24 {
        // The last of them may still be stored.
        let retry = eventually(TEST_TIMEOUT, async || {
            let retry = pay_over_http2(&mut client, &format!("unread-{number}")).await;
            (retry.status() == 201).then_some(retry)
        })
        .await;
        assert_eq!(retry.headers()["idempotent-replayed"], "true");
        assert_eq!(retry.into_body().collect().await.unwrap().to_bytes().len(), 1_000_000);
    }
    assert_eq!(world.upstream.calls(), 25);
}

#[tokio::test]
async fn responses_too_large_to_store_wait_for_room_too() {
    let world = World::with(Store::sqlite(), |setup| setup.top("limits = { held_bodies = \"4MiB\" }")).await;
    let held_max = fill_with_unread_responses(&world, 12, Answer::status(201).body("x".repeat(1_200_000))).await;
    // Each holds its first MiB, and the frame in which that ends.
    assert!((2_000_000..5_000_000).contains(&held_max), "{held_max}");
}

#[tokio::test]
async fn replays_that_their_client_does_not_read_have_a_limit_and_keep_nobody_from_executing() {
    let world = World::with(Store::sqlite(), |setup| setup.top("limits = { held_bodies = \"4MiB\" }")).await;
    let (mut client, mut unread) = (connect_reluctantly(&world).await, Vec::new());
    world.upstream.then(Answer::status(201).body("x".repeat(1 << 20)));
    unread.push(pay_over_http2(&mut client, "k-large").await);
    let mut statuses = Vec::new();
    for _ in 0..5 {
        unread.push(pay_over_http2(&mut client, "k-large").await);
        statuses.push(unread.last().unwrap().status().as_u16());
    }
    // With the response to the first attempt, three: seven eighths of the limit are for large bodies.
    assert_eq!(statuses, [201, 201, 503, 503, 503]);
    let payment = world.pay("k-new").body("x").send().await;
    assert_eq!(payment.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("k-new").body("x").send().await.comparable(), payment.replayed());
    drop((client, unread));
    let mut client = connect_reluctantly(&world).await;
    let replayed = async || (pay_over_http2(&mut client, "k-large").await.status() == 201).then_some(());
    eventually(TEST_TIMEOUT, replayed).await;
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_connection_beyond_the_limit_is_refused_and_others_are_served() {
    let world = World::with(Store::sqlite(), |setup| setup.top("limits = { connections = 3 }")).await;
    let mut served = world.pay("k-1").open().await.unwrap();
    assert_eq!(served.response().await.status, 201);
    let idle = [world.proxy.client().connect().await, world.proxy.client().connect().await];
    // Only once both count: a request that overtakes one of them would take its place.
    eventually(TEST_TIMEOUT, async || (gauge(&world, "oncegate_connections").await == 3).then_some(())).await;
    eventually(TEST_TIMEOUT, async || {
        let refusal = world.pay("k-2").try_send().await.ok()?;
        is_overloaded(&refusal).then_some(())
    })
    .await;
    assert!(reached(&world, "connections").await >= 1);
    served.write(&world.pay("k-3").bytes()).await;
    assert_eq!(served.response().await.status, 201, "an open connection is served");
    drop(idle);
    eventually(TEST_TIMEOUT, async || world.pay("k-4").try_send().await.ok().filter(|response| response.status == 201))
        .await;
}

#[tokio::test]
async fn a_peer_has_a_limit_of_its_own() {
    let world = World::with(Store::sqlite(), |setup| setup.top("limits = { connections_per_peer = 2 }")).await;
    let _idle = [world.proxy.client().connect().await, world.proxy.client().connect().await];
    // As above: a request that overtakes one of them would take its place.
    eventually(TEST_TIMEOUT, async || (gauge(&world, "oncegate_connections").await == 2).then_some(())).await;
    // The refusing end of a connection does not wait for the request, so a reset may overtake its answer.
    let refused = async || Some(world.pay("k-1").try_send().await.ok()?).filter(is_overloaded);
    let problem = eventually(TEST_TIMEOUT, refused).await.problem();
    assert!(reached(&world, "connections_per_peer").await >= 1);
    assert_eq!(problem["type"], "/.oncegate/problems/overloaded");
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("same key")), "{problem}");
    assert_eq!(world.upstream.calls(), 0);
}

#[tokio::test]
async fn requests_beyond_the_services_connections_wait_and_are_then_refused() {
    let lines = "connect_timeout = \"500ms\"";
    let world = World::with(Store::sqlite(), |setup| {
        setup.top("limits = { upstream_connections = 2 }").route(&route("pay", lines))
    })
    .await;
    let hold = Hold::new();
    let held = || Answer::status(201).hold(&hold);
    world.upstream.then(held()).then(held());
    let running = [world.pay("k-1").spawn(), world.pay("k-2").spawn()];
    world.upstream.wait_for_executed(2).await;
    for request in [world.pay("k-3"), world.post("/upload").body("x")] {
        let refusal = request.send().await;
        assert!(is_overloaded(&refusal), "{refusal:?}");
    }
    assert_eq!(reached(&world, "upstream_connections").await, 2);
    let reserved = Metrics::of(&world.proxy).await.store_calls("reserve");
    let waiting = world.pay("k-4").spawn();
    // It waits for a connection once its key is reserved.
    let is_reserved = async || (Metrics::of(&world.proxy).await.store_calls("reserve") > reserved).then_some(());
    eventually(TEST_TIMEOUT, is_reserved).await;
    hold.release();
    for answer in running.into_iter().chain([waiting]) {
        assert_eq!(answer.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    }
    assert_eq!(world.pay("k-3").send().await.oncegate_status(), Some("executed"), "nothing was sent before");
    assert_eq!(world.upstream.calls(), 4);
}

#[tokio::test]
async fn unguarded_requests_leave_an_eighth_of_the_services_connections_to_payments() {
    let lines = "connect_timeout = \"500ms\"";
    let world = World::with(Store::sqlite(), |setup| {
        setup.top("limits = { upstream_connections = 8 }").route(&route("pay", lines))
    })
    .await;
    let hold = Hold::new();
    for _ in 0..7 {
        world.upstream.then(Answer::status(200).hold(&hold));
    }
    let running: Vec<_> = (0..7).map(|_| world.get("/events").spawn()).collect();
    world.upstream.wait_for_executed(7).await;
    assert!(is_overloaded(&world.get("/events").send().await));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    hold.release();
    for answer in running {
        assert_eq!(answer.await.unwrap().unwrap().status, 200);
    }
    assert_eq!(world.get("/events").send().await.status, 201, "their places are free again");
    // A short response that its client does not take has left its connection to the service.
    let (mut client, mut unread) = (connect_reluctantly(&world).await, Vec::new());
    for _ in 0..9 {
        world.upstream.then(Answer::status(200).body("x".repeat(2_000)));
        let request = http::Request::get("http://oncegate/short").body(Full::default()).unwrap();
        let response = timeout(TEST_TIMEOUT, client.send_request(request)).await.unwrap().unwrap();
        assert_eq!(response.status(), 200);
        unread.push(response);
    }
}

#[tokio::test]
async fn probes_and_payments_are_served_while_idle_sockets_take_all_file_descriptors_of_clients() {
    let prlimit = ["prlimit", "--nofile=300:300"].map(Into::into).to_vec();
    let mut world = World::with(Store::sqlite(), |setup| setup.under(prlimit)).await;
    let mut served = world.pay("k-1").open().await.unwrap();
    assert_eq!(served.response().await.status, 201);
    let mut idle = Vec::new();
    for _ in 0..320 {
        idle.push(world.proxy.client().connect().await);
    }
    eventually(TEST_TIMEOUT, async || (reached(&world, "connections").await > 0).then_some(())).await;
    for path in ["/healthz", "/readyz"] {
        let answer = timeout(Duration::from_secs(5), admin(&world).get(path).send()).await.unwrap();
        assert_eq!(answer.status, 200, "{path}");
    }
    served.write(&world.pay("k-2").bytes()).await;
    assert_eq!(served.response().await.oncegate_status(), Some("executed"));
    // The ends of the idle sockets are seen before the next test's proxy starts.
    for socket in &mut idle {
        let _ = socket.shutdown().await;
    }
    world.crash_and_restart().await;
}
