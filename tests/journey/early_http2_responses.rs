//! Responses over HTTP/2 that are ready before their request's body has been read: the reset of the stream does not
//! come with them.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use harness::{Store, TEST_TIMEOUT, Upstream, World, route, service};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[length[1], length[2], length[3], kind, flags][..], &stream.to_be_bytes(), payload].concat()
}

async fn read_frame(stream: &mut TcpStream) -> (u8, u8, Vec<u8>) {
    let mut head = [0; 9];
    timeout(TEST_TIMEOUT, stream.read_exact(&mut head)).await.expect("no frame comes").unwrap();
    let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
    stream.read_exact(&mut payload).await.unwrap();
    (head[3], head[4], payload)
}

/// A client that has sent the beginning of a body on its only stream.
struct Uploading(TcpStream);

impl Uploading {
    async fn begin(world: &World, path: &str, fields: &[(&str, &str)]) -> Self {
        let mut stream = world.proxy.client().connect().await;
        let host = format!("{}.example", path.trim_start_matches('/'));
        let pseudo = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", &*host)];
        let mut block = Vec::new();
        for (name, value) in pseudo.iter().chain(fields) {
            // A literal without indexing (RFC 7541 section 6.2.2), and lengths that fit into seven bits.
            block.push(0);
            for text in [name, value] {
                assert!(text.len() < 127);
                block.push(u8::try_from(text.len()).unwrap());
                block.extend(text.as_bytes());
            }
        }
        let bytes = [
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
            &frame(SETTINGS, 0, 0, &[]),
            &frame(HEADERS, END_HEADERS, 1, &block),
            &frame(DATA, 0, 1, &[b'x'; 2_000]),
        ]
        .concat();
        stream.write_all(&bytes).await.unwrap();
        Self(stream)
    }

    /// Returns the response's body. A reset must not come before a client can have seen the response.
    async fn response(&mut self, case: &str) -> String {
        let mut body = Vec::new();
        loop {
            let (kind, flags, payload) = read_frame(&mut self.0).await;
            assert_ne!(kind, RST_STREAM, "{case}");
            if kind == DATA {
                body.extend(&payload);
            }
            if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                break;
            }
        }
        // A reset that came with the response would be before the answer to this.
        self.0.write_all(&frame(PING, 0, 0, &[7; 8])).await.unwrap();
        loop {
            match read_frame(&mut self.0).await {
                (PING, flags, _) if flags & ACK != 0 => return String::from_utf8(body).unwrap(),
                (kind, ..) => assert_ne!(kind, RST_STREAM, "{case}: the reset comes with the response"),
            }
        }
    }

    /// Waits for the reset of the stream, and returns its reason.
    async fn reset(&mut self) -> u32 {
        loop {
            if let (RST_STREAM, _, reason) = read_frame(&mut self.0).await {
                return u32::from_be_bytes(reason.try_into().unwrap());
            }
        }
    }

    /// Ends the body; the stream must end without a reset.
    async fn finish(mut self, case: &str) {
        self.0.write_all(&frame(DATA, END_STREAM, 1, b"end")).await.unwrap();
        self.0.write_all(&frame(PING, 0, 0, &[8; 8])).await.unwrap();
        loop {
            match read_frame(&mut self.0).await {
                (PING, flags, payload) if flags & ACK != 0 && payload == [8; 8] => return,
                (kind, ..) => assert_ne!(kind, RST_STREAM, "{case}"),
            }
        }
    }
}

/// A service that answers after the head of a request, and closes the connection or reads nothing more.
async fn answering_early(listener: TcpListener, closes: bool) {
    let mut kept = Vec::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut seen: Vec<u8> = Vec::new();
        while !seen.windows(4).any(|window| window == b"\r\n\r\n") {
            assert!(stream.read_buf(&mut seen).await.unwrap() > 0);
        }
        stream.write_all(b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
        if !closes {
            kept.push(stream);
        }
    }
}

#[tokio::test]
async fn the_reset_of_an_upload_never_comes_with_its_response() {
    let mut early = Vec::new();
    for closes in [true, false] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        early.push(listener.local_addr().unwrap());
        tokio::spawn(answering_early(listener, closes));
    }
    let unreachable = Upstream::unused_address().await;
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .top("unguarded = \"refuse\"\nlimits = { body_rate = \"2KiB\" }")
            .route(&route("strict", "key = { required = true }\nmax_request_body = \"1KiB\""))
            .route(&route("pay", ""))
            .service(&service("closing", early[0]))
            .service(&service("staying", early[1]))
            .service(&service("gone", unreachable))
            .route(&route("closing", "service = \"closing\""))
            .route(&route("staying", "service = \"staying\""))
            .route(&route("gone", "service = \"gone\""))
    })
    .await;
    world.post("/pay").key("k-0").body("x").send().await;
    let via = world.upstream.last().field("via").unwrap().to_owned();
    let key = ("idempotency-key", "k-1");
    let caller = ("authorization", "Bearer test");
    for (path, fields, words) in [
        ("/strict", vec![caller, key], "request-too-large"),
        ("/strict", vec![caller, key, ("content-length", "5000000")], "request-too-large"),
        ("/strict", vec![caller], "key-missing"),
        ("/strict", vec![caller, ("idempotency-key", "")], "key-invalid"),
        ("/strict", vec![key], "scope-missing"),
        ("/pay", vec![caller, ("via", &*via)], "loop-detected"),
        ("/elsewhere", vec![caller], "unguarded"),
        ("/closing", vec![caller], "no"),
        ("/staying", vec![caller], "no"),
        ("/gone", vec![caller], "upstream-unreachable"),
        ("/pay", vec![caller, key], "request-timeout"),
        ("/pay", vec![caller], "request-timeout"),
    ] {
        let case = format!("{path} {fields:?}");
        let mut refused = Uploading::begin(&world, path, &fields).await;
        let body = refused.response(&case).await;
        assert!(body.contains(words), "{case}: {body}");
        if path == "/staying" {
            continue;
        }
        assert_eq!(refused.reset().await, 0, "{case}: NO_ERROR");
        if words != "request-timeout" && !fields.iter().any(|(name, _)| *name == "content-length") {
            let mut finished = Uploading::begin(&world, path, &fields).await;
            finished.response(&case).await;
            finished.finish(&case).await;
        }
    }
}
