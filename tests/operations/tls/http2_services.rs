//! Services that speak HTTP/2: by ALPN over TLS, and with prior knowledge in cleartext.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use harness::h2::H2Upstream;
use harness::tls::{Authority, FrontMode, TlsFront};
use harness::{Answer, Proxy, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores, route};

const BOTH: &[&str] = &["h2", "http/1.1"];

/// A TLS front that picks HTTP/2 where it is offered.
async fn front(service: SocketAddr, authority: &Authority) -> TlsFront {
    TlsFront::before(service, FrontMode::Tls(authority.issue(&["localhost"]).server_speaking(BOTH))).await
}

fn address_of(front: &TlsFront) -> String {
    format!("https://localhost:{}", front.address.port())
}

/// A proxy in front of a service.
async fn world(store: Store, authority: &Authority, service: &str, lines: &str) -> World {
    let upstream = Upstream::start().await;
    let setup = Proxy::on(&store.url())
        .top(&format!("upstream = \"{service}\""))
        .top(&format!("upstream_tls = {{ ca = {:?} }}", authority.file()))
        .top(lines)
        .route(&route("pay", ""));
    let proxy = setup.start().await;
    World { upstream, proxy, setup, store }
}

on_both_stores!(http_2_that_a_service_picks_is_used_and_replayed_with_its_trailers);
async fn http_2_that_a_service_picks_is_used_and_replayed_with_its_trailers(store: Store) {
    let (authority, service) = (Authority::new(), H2Upstream::start().await);
    let front = front(service.address, &authority).await;
    let world = world(store, &authority, &address_of(&front), "").await;
    let first = world.pay("k-1").field("TE", "trailers").send().await;
    assert_eq!((first.status, first.oncegate_status(), &*first.text()), (201, Some("executed"), "effect 1"));
    assert_eq!(first.trailers, [("x-checksum".to_owned(), "1".to_owned())]);
    assert_eq!(world.pay("k-1").field("TE", "trailers").send().await.comparable(), first.replayed());
    assert_eq!(world.post("/pay").body("keyless").send().await.text(), "effect 2");
    let seen = service.seen();
    assert_eq!(seen.len(), 2);
    for call in seen {
        // The service sees the host that it would see over HTTP/1.1.
        assert_eq!((call.version, &*call.target), (Version::HTTP_2, "https://shop.example/pay"));
    }
}

#[tokio::test]
async fn requests_over_http_2_share_a_connection_beyond_the_limit_of_connections() {
    let (authority, service) = (Authority::new(), H2Upstream::start().await);
    let front = front(service.address, &authority).await;
    let world = world(Store::sqlite(), &authority, &address_of(&front), "limits = { upstream_connections = 1 }").await;
    let many: Vec<_> = (0..50).map(|number| world.pay(&format!("n-{number}")).spawn()).collect();
    for one in many {
        assert_eq!(one.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    }
    assert_eq!(service.seen().len(), 50);
    let workers = std::thread::available_parallelism().unwrap().get();
    assert!(front.opened() as usize <= 2 * workers, "{} connections for {workers} workers", front.opened());
}

#[tokio::test]
async fn an_upgrade_goes_over_http_1_1_although_the_service_prefers_http_2() {
    let (authority, service) = (Authority::new(), Upstream::start().await);
    let front = front(service.address, &authority).await;
    let world = world(Store::sqlite(), &authority, &address_of(&front), "").await;
    service.answer_all(Answer::status(200).body("no such socket"));
    let request = world.get("/socket").field("Connection", "Upgrade").field("Upgrade", "websocket");
    let response = request.field("Sec-WebSocket-Version", "13").field("Sec-WebSocket-Key", "x").send().await;
    assert_eq!((response.status, &*response.text()), (200, "no such socket"));
    assert_eq!(service.last().field("upgrade"), Some("websocket"));
}

/// The end of a service's first request; it answers all others.
#[derive(Clone, Copy, Debug)]
enum FirstEnd {
    Close,
    /// GOAWAY, and the connection stays. The last stream that the service may have processed is an earlier one.
    GoawayBefore,
    GoawayBeforeAndClose,
    /// The last stream is the request's own.
    GoawayAt,
    Refused,
    ResetCancelled,
    ResetInternal,
    /// The head of a response, and then NO_ERROR, which hyper takes for the end.
    HeadAndReset,
    /// Half a response before that, of which the head tells the length.
    HalfAndReset,
    /// All bytes of the announced length before that, and not the stream's end: trailers may be missing.
    LengthAndReset,
    /// Half a response before that, of which the head does not tell the length.
    PartAndReset,
    /// A whole response before that, as a service may answer that wants no more of the request.
    WholeAndReset,
}

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

/// Serves one connection; `None` when it ends.
async fn serve(mut stream: TcpStream, end: FirstEnd, requests: Arc<AtomicUsize>) -> Option<()> {
    const DATA: u8 = 0;
    stream.write_all(&frame(4, 0, 0, &[])).await.ok()?;
    stream.read_exact(&mut [0; 24]).await.ok()?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.ok()?;
        if (head[3], head[4] & 1) != (DATA, 1) {
            continue;
        }
        let number = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let goaway = |last: u32| frame(7, 0, 0, &[last.to_be_bytes(), [0; 4]].concat());
        let reset = |reason: u32| frame(3, 0, number, &reason.to_be_bytes());
        // `:status: 200`, and the stream's end.
        let answer = frame(1, 5, number, &[0x88]);
        let (bytes, closes) = match (requests.fetch_add(1, Ordering::SeqCst), end) {
            (0, FirstEnd::Close) => (Vec::new(), true),
            (0, FirstEnd::GoawayBefore) => (goaway(number - 1), false),
            (0, FirstEnd::GoawayBeforeAndClose) => (goaway(number - 1), true),
            (0, FirstEnd::GoawayAt) => (goaway(number), true),
            (0, FirstEnd::Refused) => (reset(7), false),
            (0, FirstEnd::ResetCancelled) => (reset(8), false),
            (0, FirstEnd::ResetInternal) => (reset(2), false),
            (0, FirstEnd::HeadAndReset) => ([frame(1, 4, number, &[0x88]), reset(0)].concat(), false),
            (0, FirstEnd::HalfAndReset) => {
                // `content-length` is entry 28 of the static table (RFC 7541 appendix A).
                let head = frame(1, 4, number, b"\x88\x0f\x0d\x0299");
                ([head, frame(DATA, 0, number, b"n=1"), reset(0)].concat(), false)
            }
            (0, FirstEnd::LengthAndReset) => {
                let head = frame(1, 4, number, b"\x88\x0f\x0d\x013");
                ([head, frame(DATA, 0, number, b"n=1"), reset(0)].concat(), false)
            }
            (0, FirstEnd::WholeAndReset) => {
                ([frame(1, 4, number, &[0x88]), frame(DATA, 1, number, b"n=1"), reset(0)].concat(), false)
            }
            (0, FirstEnd::PartAndReset) => {
                ([frame(1, 4, number, &[0x88]), frame(DATA, 0, number, b"n=1"), reset(0)].concat(), false)
            }
            _ => (answer, false),
        };
        stream.write_all(&bytes).await.ok()?;
        if closes {
            return None;
        }
    }
}

async fn service_ending(end: FirstEnd) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, requests) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, end, Arc::clone(&count)));
        }
    });
    (address, requests)
}

#[tokio::test]
async fn only_a_request_that_the_service_declares_unprocessed_may_be_sent_again() {
    let authority = Authority::new();
    for (end, is_unprocessed) in [
        (FirstEnd::Close, false),
        (FirstEnd::GoawayBefore, true),
        (FirstEnd::GoawayBeforeAndClose, true),
        (FirstEnd::GoawayAt, false),
        (FirstEnd::Refused, true),
        (FirstEnd::ResetCancelled, false),
        (FirstEnd::ResetInternal, false),
        (FirstEnd::HeadAndReset, false),
        (FirstEnd::HalfAndReset, false),
        (FirstEnd::LengthAndReset, false),
        (FirstEnd::PartAndReset, false),
    ] {
        for over_tls in [true, false] {
            let (address, requests) = service_ending(end).await;
            let front = front(address, &authority).await;
            let at = if over_tls { address_of(&front) } else { format!("h2c://{address}") };
            let world = world(Store::sqlite(), &authority, &at, "").await;
            let pay = world.pay("k-1");
            let case = format!("{end:?} at {at}");
            let first = pay.send().await;
            // Oncegate itself sends nothing a second time.
            assert_eq!(requests.load(Ordering::SeqCst), 1, "{case}");
            let retry = pay.send().await;
            if is_unprocessed {
                assert_eq!(first.outcome(), (502, "upstream-unreachable".to_owned()), "{case}");
                assert!(first.problem()["detail"].as_str().unwrap().contains("refused the request before"), "{case}");
                assert_eq!(first.oncegate_status(), Some("released"), "{case}");
                assert_eq!((retry.status, retry.oncegate_status()), (200, Some("executed")), "{case}");
                assert_eq!(requests.load(Ordering::SeqCst), 2, "{case}");
            } else {
                assert_eq!(first.outcome(), (502, "upstream-broken".to_owned()), "{case}");
                assert_eq!(retry.outcome(), (409, "outcome-unknown".to_owned()), "{case}");
                assert_eq!(requests.load(Ordering::SeqCst), 1, "{case}");
            }
        }
    }
}

#[tokio::test]
async fn a_whole_response_stays_whole_if_its_stream_is_reset_after_it() {
    let (address, requests) = service_ending(FirstEnd::WholeAndReset).await;
    let world = world(Store::sqlite(), &Authority::new(), &format!("h2c://{address}"), "").await;
    let first = world.pay("k-1").send().await;
    assert_eq!((first.status, first.oncegate_status(), &*first.text()), (200, Some("executed"), "n=1"));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_request_beyond_the_services_streams_is_not_sent_and_not_left_in_a_queue() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, requests, hold) =
        (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (count, held) = (Arc::clone(&requests), Arc::clone(&hold));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (count, held) = (Arc::clone(&count), Arc::clone(&held));
            let answer = service_fn(move |_: Request<Incoming>| {
                let (count, held) = (Arc::clone(&count), Arc::clone(&held));
                async move {
                    count.fetch_add(1, Ordering::SeqCst);
                    drop(held.acquire().await);
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
                }
            });
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.max_concurrent_streams(1).serve_connection(TokioIo::new(stream), answer));
        }
    });
    let world = world(Store::sqlite(), &Authority::new(), &format!("h2c://{address}"), "").await;
    // Each worker of the proxy has a connection of its own.
    let paying: Vec<_> = (0..8).map(|number| world.pay(&format!("k-{number}")).spawn()).collect();
    let refused = async || world.proxy.logged().iter().filter(|line| line["status"] == 503).count();
    let sent = async || requests.load(Ordering::SeqCst);
    eventually(TEST_TIMEOUT, async || (refused().await + sent().await == 8).then_some(())).await;
    let executed = sent().await;
    assert!((1..8).contains(&executed), "{executed}");
    hold.add_permits(Semaphore::MAX_PERMITS / 2);
    let mut answers = Vec::new();
    for (number, answer) in paying.into_iter().enumerate() {
        answers.push((number, answer.await.unwrap().unwrap()));
    }
    let overloaded: Vec<_> = answers.iter().filter(|(_, answer)| answer.status == 503).collect();
    assert_eq!((answers.len() - overloaded.len(), sent().await), (executed, executed));
    for (number, answer) in overloaded {
        assert_eq!(answer.outcome(), (503, "overloaded".to_owned()));
        assert_eq!(world.pay(&format!("k-{number}")).send().await.oncegate_status(), Some("executed"));
    }
    assert_eq!(sent().await, 8, "nothing was queued for the time when a stream is free");
}
