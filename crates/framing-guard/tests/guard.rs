//! The framing guard in front of a real hyper server: the requests that pass, those that are refused, and the promise
//! that guard and hyper see the same requests.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use proptest::prelude::*;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use framing_guard::{FramingError, FramingTimeouts, GuardedStream, Verdicts};

const PAY: &str = "POST /pay HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\n10 EUR";
const PAY_CHUNKED: &str = "POST /pay HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\n10 \r\n3\r\nEUR\r\n0\r\nX-T: v\r\n\r\n";
const TWO_HOSTS: &str = "GET / HTTP/1.1\r\nHost: h\r\nHost: g\r\n\r\n";

// ---- Requests that pass ----

#[tokio::test]
async fn every_byte_may_arrive_alone() {
    let conversation = format!("\r\n{PAY}{PAY_CHUNKED}GET / HTTP/1.1\r\nHost: h\r\n\r\n\r\n{PAY}");
    let pieces = conversation.bytes().map(|byte| vec![byte]).collect();
    let received = exchange(pieces).await;
    assert_eq!(received.bodies(), ["10 EUR", "10 EUR", "", "10 EUR"]);
    assert!(received.saw_every_request());
}

#[tokio::test]
async fn requests_may_be_cut_anywhere() {
    let conversation = format!("{PAY_CHUNKED}{PAY}{PAY_CHUNKED}");
    for cut in 1..conversation.len() {
        let (before, after) = conversation.as_bytes().split_at(cut);
        let received = exchange(vec![before.to_vec(), after.to_vec()]).await;
        assert_eq!(received.bodies(), ["10 EUR"; 3], "cut at {cut}");
        assert!(received.saw_every_request(), "cut at {cut}");
    }
}

#[tokio::test]
async fn a_hundred_requests_may_be_pipelined() {
    let received = exchange(vec![[PAY, PAY_CHUNKED].concat().repeat(50).into_bytes()]).await;
    assert_eq!(received.bodies(), ["10 EUR"; 100]);
    assert!(received.saw_every_request());
}

#[tokio::test]
async fn the_last_answer_is_not_lost_where_requests_stand_behind_it() {
    for last in ["GET / HTTP/1.0\r\nHost: h\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"] {
        let received = exchange(vec![[PAY, last, PAY, TWO_HOSTS].concat().into_bytes()]).await;
        assert_eq!(received.bodies(), ["10 EUR", ""]);
    }
}

#[tokio::test]
async fn a_head_of_nearly_64_kib_comes_through() {
    let fill = format!("X: {}\r\n", "x".repeat(6000)).repeat(10);
    let conversation = format!("POST / HTTP/1.1\r\nHost: h\r\n{fill}Content-Length: 2\r\n\r\nhi{PAY}");
    let received = exchange(conversation.as_bytes().chunks(1400).map(<[u8]>::to_vec).collect()).await;
    assert_eq!(received.bodies(), ["hi", "10 EUR"]);
}

#[tokio::test]
async fn large_bodies_come_through_whole() {
    let body: Vec<u8> = (0..10 * 1024 * 1024_u32).map(|number| (number % 251) as u8).collect();
    let chunked: Vec<u8> = body
        .chunks(70_001)
        .flat_map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat())
        .chain(*b"0\r\n\r\n")
        .collect();
    let sized = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
    let head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let conversation = [sized.as_bytes(), &body, head, &chunked].concat();

    let mut client = TestServer::tcp(FramingTimeouts::default()).await;
    let (mut reader, mut writer) = client.split();
    let mut received = Vec::new();
    let (written, read) = tokio::join!(
        async {
            writer.write_all(&conversation).await?;
            writer.shutdown().await
        },
        reader.read_to_end(&mut received)
    );
    written.and(read).expect("the connection holds");
    let answers = answers(&received);
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|answer| answer.body == body));
}

#[tokio::test]
async fn http_2_passes_by_its_preface() {
    let stream = TestServer::tcp(FramingTimeouts::default()).await;
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .expect("HTTP/2 is spoken");
    tokio::spawn(connection);
    for body in ["one", "two"] {
        let request = Request::post("http://h/").body(Full::new(Bytes::from(body))).expect("a request");
        let response = sender.send_request(request).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["x-http2"], "true");
        assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), body);
    }
}

#[tokio::test]
async fn what_follows_an_upgrade_is_not_judged() {
    let not_http = b"\0\n\n\rGET\n\nTransfer-Encoding: what\r\n\r\n";
    for (early, late) in [(&b""[..], &not_http[..]), (&not_http[..7], &not_http[7..])] {
        let mut client = TestServer::tcp(FramingTimeouts::default()).await;
        let reserve_request = b"GET /upgrade HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
        client.write_all(&[reserve_request, early].concat()).await.expect("written");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.expect("the head of an answer"));
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", head.escape_ascii());
        client.write_all(late).await.expect("written");
        client.shutdown().await.expect("shut down");
        let mut echo = Vec::new();
        client.read_to_end(&mut echo).await.expect("the echo");
        assert_eq!(echo, not_http);
    }
}

#[tokio::test]
async fn an_upgrade_that_is_declined_leaves_the_guard_in_place() {
    let declined = "POST / HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi";
    let received = exchange(vec![format!("{declined}{declined}{TWO_HOSTS}").into_bytes()]).await;
    assert_eq!(received.statuses(), [200, 200, 400]);
    let received = exchange(vec![declined.into(), PAY.into(), TWO_HOSTS.into()]).await;
    assert_eq!(received.statuses(), [200, 200, 400]);
}

// ---- Requests that are refused ----

#[tokio::test]
async fn a_refusal_is_sent_in_order_and_is_the_last_answer() {
    for pieces in [vec![[PAY, TWO_HOSTS, PAY].concat()], vec![PAY.into(), TWO_HOSTS.into(), PAY.into()]] {
        let received = exchange(pieces.into_iter().map(String::into_bytes).collect()).await;
        assert_eq!(received.statuses(), [200, 400]);
        assert_eq!(received.answers[1].body, FramingError::SeveralHosts.detail().as_bytes());
        assert!(received.answers[1].closes);
        assert!(received.saw_every_request());
    }
}

#[tokio::test]
async fn a_refused_request_does_not_reach_the_service() {
    let received = exchange(vec![b"DELETE /secret HTTP/1.1\r\nContent-Length: 2\r\nX: y\r\n\r\nhi".to_vec()]).await;
    assert_eq!(received.statuses(), [400]);
    assert_eq!(received.served, Vec::<String>::new());
}

#[tokio::test]
async fn a_bad_chunk_beside_its_head_refuses_the_request() {
    let bad = PAY_CHUNKED.replace("3\r\nEUR", "3\nEUR");
    let received = exchange(vec![format!("{PAY_CHUNKED}{bad}").into_bytes()]).await;
    assert_eq!(received.statuses(), [200, 400]);
    assert_eq!(received.served, ["POST /pay"], "the first only");
    assert!(received.saw_every_request());
}

#[tokio::test]
async fn a_bad_chunk_behind_its_head_breaks_the_body() {
    let bad = PAY_CHUNKED.replace("3\r\nEUR", "3\nEUR");
    let head = bad.find("\r\n\r\n").expect("a head") + 4;
    for cut in head..bad.find("3\nEUR").expect("the bad chunk") {
        let (before, after) = bad.as_bytes().split_at(cut);
        let received = exchange(vec![before.to_vec(), after.to_vec(), PAY.into()]).await;
        assert_eq!(received.statuses(), [400], "cut at {cut}");
        assert_eq!(received.answers[0].body, b"body: BadChunk", "cut at {cut}");
    }
}

#[tokio::test]
async fn a_body_that_ends_early_is_not_a_request() {
    for whole in [PAY, PAY_CHUNKED] {
        let head = whole.find("\r\n\r\n").expect("a head") + 4;
        for end in head..whole.len() {
            let received = exchange(vec![whole[..end].into()]).await;
            assert_eq!(received.statuses(), [400], "{end} bytes of {whole:?}");
        }
        for end in 0..head {
            assert!(exchange(vec![whole[..end].into()]).await.answers.is_empty(), "{end} bytes of {whole:?}");
        }
    }
}

#[tokio::test]
async fn each_reason_has_its_status() {
    let field = |line: &str| format!("GET / HTTP/1.1\r\nHost: h\r\n{line}\r\n\r\n");
    let table = [
        (field("Transfer-Encoding: gzip, chunked"), 501, FramingError::TransferCoding),
        (field(&"X: y\r\n".repeat(100)), 431, FramingError::TooManyFields),
        (field(&format!("X: {}", "y".repeat(64 * 1024))), 431, FramingError::HeadTooLarge),
        (format!("GET /{} HTTP/1.1\r\n", "a".repeat(70_000)), 414, FramingError::TargetTooLong),
        ("GET / HTTP/1.2\r\nHost: h\r\n\r\n".into(), 505, FramingError::Version),
        (field("X : y"), 400, FramingError::BadHeader),
        ("GET / HTTP/1.1\nHost: h\n\n".into(), 400, FramingError::BareLineFeed),
        ("\u{16}\u{3}\u{1}".into(), 400, FramingError::BadRequestLine),
    ];
    for (request, status, reason) in table {
        let received = exchange(vec![request.into_bytes()]).await;
        assert_eq!(received.statuses(), [status], "{reason:?}");
        assert_eq!(received.answers[0].body, reason.detail().as_bytes());
    }
}

#[tokio::test]
async fn a_client_that_keeps_sending_can_read_its_refusal() {
    for request in [TWO_HOSTS, "POST /early HTTP/1.1\r\nHost: h\r\nContent-Length: 999999\r\n\r\n"] {
        let mut client = TestServer::tcp(FramingTimeouts::default()).await;
        client.write_all(request.as_bytes()).await.expect("written");
        // Until the answer is there, and then some more: without lingering these bytes would draw a reset, and that
        // would take the answer away from under the client.
        client.readable().await.expect("an answer");
        for _ in 0..20 {
            client.write_all(&[b'x'; 10_000]).await.expect("no reset");
            tokio::task::yield_now().await;
        }
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.expect("no reset");
        assert_eq!(answers(&received).iter().map(|answer| answer.status).collect::<Vec<_>>(), [400]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_client_that_keeps_its_connection_is_closed_after_a_second() {
    let (mut client, verdicts, server) = TestServer::memory(FramingTimeouts::default());
    client.write_all(TWO_HOSTS.as_bytes()).await.expect("written");
    let since = tokio::time::Instant::now();
    server.await.expect("no panic");
    assert_eq!(since.elapsed().as_secs(), 1);
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.expect("the refusal");
    assert_eq!(answers(&received)[0].status, 400);
    assert_eq!(verdicts.next(), Err(FramingError::Unjudged), "none is left");
}

// ---- Time limits ----

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_without_an_answer() {
    let (mut client, _, _) = TestServer::memory(FramingTimeouts::default());
    let start = tokio::time::Instant::now();
    client.write_all(PAY.as_bytes()).await.expect("written");
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.expect("an end");
    assert_eq!(answers(&received).len(), 1);
    assert_eq!(start.elapsed().as_secs(), 75);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_any_bytes_is_closed() {
    let (mut client, _, _) = TestServer::memory(FramingTimeouts::default());
    let start = tokio::time::Instant::now();
    assert_eq!(client.read_to_end(&mut Vec::new()).await.expect("an end"), 0);
    assert_eq!(start.elapsed().as_secs(), 75);
}

#[tokio::test(start_paused = true)]
async fn the_longest_duration_is_no_time_limit() {
    let never = Duration::MAX;
    let (mut client, _, _) = TestServer::memory(FramingTimeouts { head: never, body: never, idle: never });
    for byte in PAY.bytes() {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        client.write_all(&[byte]).await.expect("written");
    }
    assert_eq!(read_answer(&mut client).await.body, b"10 EUR");
}

#[tokio::test(start_paused = true)]
async fn a_head_that_drips_in_too_slowly_is_refused() {
    let (client, _, _) = TestServer::memory(FramingTimeouts::default());
    let start = tokio::time::Instant::now();
    let (mut reader, mut writer) = tokio::io::split(client);
    // The first request is not counted in.
    writer.write_all(PAY.as_bytes()).await.expect("written");
    let drip = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(50)).await;
        for byte in PAY.bytes() {
            if writer.write_all(&[byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let mut received = Vec::new();
    reader.read_to_end(&mut received).await.expect("an end");
    assert_eq!(answers(&received).iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 408]);
    assert_eq!(start.elapsed().as_secs(), 80);
    drip.abort();
}

#[tokio::test(start_paused = true)]
async fn the_time_a_service_takes_is_not_idle_time() {
    let (mut client, _, _) = TestServer::memory(FramingTimeouts::default());
    let slow = "GET /slow HTTP/1.1\r\nHost: h\r\n\r\n";
    // Also with the begin of a head already there, and a second time: the timer is an old one by then.
    for next in ["", "", "POST "] {
        client.write_all([slow, next].concat().as_bytes()).await.expect("written");
        assert_eq!(read_answer(&mut client).await.status, 200);
        tokio::time::sleep(Duration::from_secs(29)).await;
    }
    client.write_all(&PAY.as_bytes()[5..]).await.expect("written");
    assert_eq!(read_answer(&mut client).await.body, b"10 EUR");
    let since = tokio::time::Instant::now();
    assert_eq!(client.read_to_end(&mut Vec::new()).await.expect("an end"), 0);
    assert_eq!(since.elapsed().as_secs(), 75);
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_that_keeps_coming_has_no_time_limit() {
    for request in [PAY, PAY_CHUNKED] {
        let (mut client, _, _) = TestServer::memory(FramingTimeouts::default());
        let (head, body) = request.split_at(request.find("\r\n\r\n").expect("a head") + 4);
        client.write_all(head.as_bytes()).await.expect("written");
        for byte in body.bytes() {
            tokio::time::sleep(Duration::from_secs(59)).await;
            client.write_all(&[byte]).await.expect("written");
        }
        assert_eq!(read_answer(&mut client).await.body, b"10 EUR");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_body_times_out() {
    for request in [PAY, PAY_CHUNKED] {
        let (mut client, verdicts, _) = TestServer::memory(FramingTimeouts::default());
        let start = tokio::time::Instant::now();
        client.write_all(&request.as_bytes()[..request.len() - 5]).await.expect("written");
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!((verdicts.is_request_complete(), verdicts.body_error()), (false, None));
        assert_eq!(read_answer(&mut client).await.body, b"body: BodyTimeout");
        assert_eq!((start.elapsed().as_secs(), verdicts.body_error()), (60, Some(FramingError::BodyTimeout)));
    }
}

// ---- Vectors and random requests ----

#[tokio::test]
async fn framing_vectors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors/oncegate/framing.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("skipped: no {}", path.display());
        return;
    };
    let vectors: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let cases = vectors["requests"].as_array().expect("a list of requests");
    for case in cases {
        let [name, raw, required] = ["name", "raw", "required"].map(|key| case[key].as_str().expect(key));
        // The vectors are latin-1.
        let raw: Vec<u8> = raw.chars().map(|char| u8::try_from(u32::from(char)).expect("latin-1")).collect();
        let mut client = TestServer::tcp(FramingTimeouts::default()).await;
        client.write_all(&raw).await.expect("written");
        client.shutdown().await.expect("shut down");
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.expect("an end");
        let continued = received.starts_with(b"HTTP/1.1 100 ");
        let answers = answers(&received);
        let last = answers.last().unwrap_or_else(|| panic!("{name}: no answer"));
        let refused_with = |status: u16| last.status == status && last.closes && answers.len() == 1;
        let accepted_as = |body: &[u8]| last.status == 200 && last.body == body && answers.len() == 1;
        let met = match required {
            "400_close" | "400_or_unfold" | "accept_and_close_or_400" | "accept_or_400" => refused_with(400),
            // A repeated key is not a matter of framing.
            "400" if name.contains("Idempotency-Key") => accepted_as(b""),
            "400" => refused_with(400),
            "400_or_501" | "501" => refused_with(501),
            "431" => refused_with(431),
            "200_no_100" | "417_allowed" | "accept_drop_trailers" | "forward_reframed" => {
                accepted_as(b"hi") && !continued
            }
            "forward_opaque" | "use_target_authority" => accepted_as(b""),
            // Its body never comes.
            "final_status_or_100" => continued && refused_with(400),
            "400_or_drop_never_forward" => refused_with(400),
            _ => panic!("{name}: {required} is new"),
        };
        assert!(met, "{name}: {required}, got {answers:?}");
    }
    assert!(cases.len() >= 32, "some vectors are gone");
}

/// A request as text, and its intended body.
fn request() -> impl Strategy<Value = (String, String)> {
    let body = "[a-z0-9\r\n ]{0,40}";
    let padding = prop::sample::select(vec!["", "X-A: \t b c\r\n", "Expect: 100-continue\r\n", "X-\u{2a}: \u{e9}\r\n"]);
    let target = prop::sample::select(vec!["/", "/pay?a=b", "http://other/x"]);
    let before = prop::sample::select(vec!["", "", "\r\n", "\r\n\r\n"]);
    prop_oneof![
        (before.clone(), target.clone(), padding.clone()).prop_map(|(before, target, field)| {
            (format!("{before}GET {target} HTTP/1.1\r\nHost: h\r\n{field}\r\n"), String::new())
        }),
        (before.clone(), target.clone(), padding.clone(), body).prop_map(|(before, target, field, body)| {
            let length = body.len();
            let head = format!("{before}POST {target} HTTP/1.1\r\n{field}content-length:{length}\r\nhost: h\r\n\r\n");
            (head + &body, body)
        }),
        (before, target, padding, prop::collection::vec(body, 0..4), any::<bool>()).prop_map(
            |(before, target, field, chunks, rich)| {
                let (extension, trailer) = if rich { (";a=\"b\"", "X-T: v\r\n") } else { ("", "") };
                let mut text =
                    format!("{before}PUT {target} HTTP/1.1\r\nTransfer-Encoding: Chunked\r\nHost: h:80\r\n{field}\r\n");
                for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
                    text += &format!("{:04X}{extension}\r\n{chunk}\r\n", chunk.len());
                }
                (text + &format!("0{extension}\r\n{trailer}\r\n"), chunks.concat())
            }
        ),
    ]
}

/// Cuts `bytes` at the chosen places.
fn cut(bytes: &[u8], cuts: &[prop::sample::Index]) -> Vec<Vec<u8>> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let starts = std::iter::once(0).chain(ends.clone());
    starts.zip(ends).map(|(start, end)| bytes[start..end].to_vec()).filter(|piece| !piece.is_empty()).collect()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn valid_requests_pass_unchanged(
        requests in prop::collection::vec(request(), 1..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let bytes: Vec<u8> = requests.iter().flat_map(|(text, _)| text.bytes()).collect();
        let received = block_on(exchange(cut(&bytes, &cuts)));
        let meant: Vec<&str> = requests.iter().map(|(_, body)| body.as_str()).collect();
        prop_assert_eq!(received.bodies(), meant);
        prop_assert!(received.saw_every_request());
    }

    #[test]
    fn hyper_and_the_guard_see_the_same_requests_whatever_arrives(
        requests in prop::collection::vec(request(), 1..5),
        damages in prop::collection::vec((any::<prop::sample::Index>(), 0..4_u8, prop::sample::select(
            vec![b'\r', b'\n', b' ', b'\t', b':', b';', b',', 0, b'0', b'1', b'9', b'a', b'F', b'/', b'#', b'"', 0x7F, 0xE9]
        )), 1..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let mut bytes: Vec<u8> = requests.iter().flat_map(|(text, _)| text.bytes()).collect();
        for (place, kind, byte) in damages {
            let place = place.index(bytes.len());
            match kind {
                0 => bytes[place] = byte,
                1 => bytes.insert(place, byte),
                2 => drop(bytes.remove(place)),
                // A line, or the like of it, that stands twice.
                _ => {
                    let end = bytes[place..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| place + end + 1);
                    let twice = bytes[place..end].to_vec();
                    bytes.splice(place..place, twice);
                }
            }
        }
        let pieces = cut(&bytes, &cuts);
        let received = block_on(exchange(pieces.clone()));
        let bare = block_on(exchange_unguarded(pieces));

        // Whatever hyper would refuse is refused by us before.
        prop_assert!(received.answers.iter().all(|answer| answer.ours), "{:?} to {}", received.answers, bytes.escape_ascii());
        let unjudged = FramingError::Unjudged.detail().as_bytes();
        prop_assert!(received.answers.iter().all(|answer| answer.body != unjudged), "{}", bytes.escape_ascii());
        // A head too many for the guard would be a verdict too many.
        let cut_short = received.answers.last().is_some_and(|answer| answer.closes);
        prop_assert!(cut_short || received.saw_every_request(), "{}", bytes.escape_ascii());
        // And what is let through arrives as if there were no guard.
        for (guarded, bare) in received.answers.iter().zip(&bare.answers).take_while(|(guarded, _)| guarded.status == 200) {
            prop_assert_eq!((bare.status, &bare.body), (200, &guarded.body), "{}", bytes.escape_ascii());
        }
    }
}

// ---- The server, and the client's reader ----

/// Answers according to the verdict, and echoes the body. `/upgrade` switches to an echo of bytes, `/slow` takes 200 s,
/// `/early` answers without reading the body.
async fn answer(
    request: Request<Incoming>,
    verdicts: Option<Verdicts>,
    served: Arc<Mutex<Vec<String>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if let Some(verdicts) = &verdicts
        && let Err(error) = verdicts.next()
    {
        return Ok(closing(error.status().as_u16(), error.detail().into()));
    }
    served.lock().expect("no panic").push(format!("{} {}", request.method(), request.uri().path()));
    let mut response = Response::new(Full::default());
    response.headers_mut().insert("x-ours", "true".parse().expect("a value"));
    match request.uri().path() {
        "/upgrade" if request.headers().contains_key(UPGRADE) => {
            verdicts.expect("only with a guard").mark_upgraded();
            tokio::spawn(async move {
                let mut upgraded = TokioIo::new(hyper::upgrade::on(request).await.expect("the client requested it"));
                let mut bytes = Vec::new();
                upgraded.read_to_end(&mut bytes).await.expect("bytes");
                upgraded.write_all(&bytes).await.expect("written");
                upgraded.shutdown().await.expect("shut down");
            });
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert(UPGRADE, "echo".parse().expect("a value"));
            response.headers_mut().insert(CONNECTION, "upgrade".parse().expect("a value"));
            return Ok(response);
        }
        "/slow" => tokio::time::sleep(Duration::from_secs(200)).await,
        "/early" => return Ok(closing(400, "early".into())),
        _ => {}
    }
    if let Some(verdicts) = verdicts {
        response.headers_mut().insert("x-http2", verdicts.is_http2().to_string().parse().expect("a value"));
    }
    match request.into_body().collect().await {
        Ok(body) => *response.body_mut() = Full::new(body.to_bytes()),
        Err(error) => {
            let reason =
                FramingError::found_in(&error).map_or_else(|| "incomplete".into(), |reason| format!("{reason:?}"));
            return Ok(closing(400, format!("body: {reason}")));
        }
    }
    Ok(response)
}

fn closing(status: u16, body: String) -> Response<Full<Bytes>> {
    Response::builder()
        .status(status)
        .header(CONNECTION, "close")
        .header("x-ours", "true")
        .body(Full::new(body.into()))
        .expect("a response")
}

struct TestServer;

impl TestServer {
    /// The client's end of a TCP connection to a guarded server.
    async fn tcp(limits: FramingTimeouts) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = TcpStream::connect(address).await.expect("a connection");
        let (stream, _) = listener.accept().await.expect("a connection");
        let (guarded, verdicts) = GuardedStream::new(stream, limits);
        tokio::spawn(serve(guarded, Some(verdicts), Arc::default()));
        client
    }

    /// The same in memory, where the test controls the time.
    fn memory(limits: FramingTimeouts) -> (tokio::io::DuplexStream, Verdicts, tokio::task::JoinHandle<()>) {
        let (client, stream) = tokio::io::duplex(64 * 1024);
        let (guarded, verdicts) = GuardedStream::new(stream, limits);
        let server = tokio::spawn(serve(guarded, Some(verdicts.clone()), Arc::default()));
        (client, verdicts, server)
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    stream: S,
    verdicts: Option<Verdicts>,
    served: Arc<Mutex<Vec<String>>>,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().keep_alive(true).half_close(true);
    let service = service_fn(|request| answer(request, verdicts.clone(), served.clone()));
    // The result is ignored: the tests look at the client's side of the connection.
    let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
}

/// The answers that a client got, and the requests that the service got.
#[derive(Debug)]
struct Exchange {
    answers: Vec<Answer>,
    served: Vec<String>,
    verdicts: Option<Verdicts>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    body: Vec<u8>,
    closes: bool,
    /// Whether the answer came from the service, not from hyper itself.
    ours: bool,
}

impl Exchange {
    fn statuses(&self) -> Vec<u16> {
        self.answers.iter().map(|answer| answer.status).collect()
    }

    /// Returns the echoed bodies of answers with status 200.
    fn bodies(&self) -> Vec<&str> {
        assert!(self.statuses().iter().all(|&status| status == 200), "{:?}", self.answers);
        self.answers.iter().map(|answer| str::from_utf8(&answer.body).expect("text")).collect()
    }

    /// Whether hyper saw every request that the guard saw.
    fn saw_every_request(&self) -> bool {
        self.verdicts.as_ref().is_none_or(|verdicts| verdicts.next() == Err(FramingError::Unjudged))
    }
}

/// Sends `pieces` to a guarded server, each in a read of its own, then the end of the stream.
async fn exchange(pieces: Vec<Vec<u8>>) -> Exchange {
    let (stream, received) = PiecewiseStream::new(pieces);
    let (guarded, verdicts) = GuardedStream::new(stream, FramingTimeouts::default());
    let served = Arc::default();
    serve(guarded, Some(verdicts.clone()), Arc::clone(&served)).await;
    let answers = answers(&received.lock().expect("no panic"));
    Exchange { answers, served: std::mem::take(&mut served.lock().expect("no panic")), verdicts: Some(verdicts) }
}

async fn exchange_unguarded(pieces: Vec<Vec<u8>>) -> Exchange {
    let (stream, received) = PiecewiseStream::new(pieces);
    let served = Arc::default();
    serve(stream, None, Arc::clone(&served)).await;
    let answers = answers(&received.lock().expect("no panic"));
    Exchange { answers, served: std::mem::take(&mut served.lock().expect("no panic")), verdicts: None }
}

/// A stream of which every read returns one piece, with a pause before it.
struct PiecewiseStream {
    left: std::vec::IntoIter<Vec<u8>>,
    current: Vec<u8>,
    paused: bool,
    received: Arc<Mutex<Vec<u8>>>,
}

impl PiecewiseStream {
    fn new(pieces: Vec<Vec<u8>>) -> (Self, Arc<Mutex<Vec<u8>>>) {
        let received = Arc::default();
        (
            Self { left: pieces.into_iter(), current: Vec::new(), paused: false, received: Arc::clone(&received) },
            received,
        )
    }
}

impl AsyncRead for PiecewiseStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.current.is_empty() {
            self.paused = !self.paused;
            if self.paused {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.current = self.left.next().unwrap_or_default();
        }
        let fits = buffer.remaining().min(self.current.len());
        buffer.put_slice(&self.current[..fits]);
        self.current.drain(..fits);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PiecewiseStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.received.lock().expect("no panic").extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

async fn read_answer(client: &mut (impl AsyncRead + Unpin)) -> Answer {
    let mut received = Vec::new();
    loop {
        if let Some((answer, _)) = first_answer(&received) {
            return answer;
        }
        received.push(client.read_u8().await.expect("more of an answer"));
    }
}

/// Parses all final answers in `received`.
fn answers(mut received: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while !received.is_empty() {
        let (answer, length) =
            first_answer(received).unwrap_or_else(|| panic!("no answer: {}", received.escape_ascii()));
        received = &received[length..];
        if answer.status != 100 {
            answers.push(answer);
        }
    }
    answers
}

fn first_answer(received: &[u8]) -> Option<(Answer, usize)> {
    let end = received.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = str::from_utf8(&received[..end]).expect("text").to_ascii_lowercase();
    let (version, rest) = head.split_once(' ').expect("a status line");
    let status = rest[..3].parse().expect("a status");
    let length = head
        .split_once("content-length: ")
        .map_or(0, |(_, rest)| rest.split("\r\n").next().and_then(|length| length.parse().ok()).expect("a length"));
    let body = received.get(end..end + length)?.to_vec();
    let closes = head.contains("connection: close") || version == "http/1.0";
    Some((Answer { status, body, closes, ours: head.contains("x-ours") || status == 100 }, end + length))
}
