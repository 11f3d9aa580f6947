//! A WebSocket through the proxy, its handshake (RFC 6455 section 4) and its frames (section 5) by hand.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use harness::wire::{Head, Wire};
use harness::{Answer, Proxy, Store, TEST_TIMEOUT, World, route};

/// The handshake of the RFC's own example.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A frame with a complete short text; a client masks its own.
fn frame(text: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    assert!(length < 126);
    let mut frame = vec![0x81, length | if mask.is_some() { 0x80 } else { 0 }];
    frame.extend(mask.unwrap_or_default().iter().filter(|_| mask.is_some()));
    let mask = mask.unwrap_or_default();
    frame.extend(text.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
    frame
}

async fn read_frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[0], 0x81, "a whole text");
    let mut mask = [0; 4];
    if head[1] & 0x80 != 0 {
        stream.read_exact(&mut mask).await.unwrap();
    }
    let mut text = vec![0; usize::from(head[1] & 0x7F)];
    stream.read_exact(&mut text).await.unwrap();
    text.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]).collect()
}

/// A service that speaks one WebSocket; returns the head of its request and the last message, the closing one included.
async fn service(listener: TcpListener) -> (Head, Vec<u8>) {
    let mut wire = Wire::new(listener.accept().await.unwrap().0);
    let head = wire.head().await.unwrap().unwrap();
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {ACCEPT}\r\nSec-WebSocket-Protocol: chat\r\n\r\n"
    );
    // The first frame comes with the handshake, in one write.
    wire.write(&[answer.into_bytes(), frame(b"welcome", None)].concat()).await.unwrap();
    let mut stream = wire.stream;
    for _ in 0..3 {
        let payload = read_frame(&mut stream).await;
        stream.write_all(&frame(&[b"you said ", &payload[..]].concat(), None)).await.unwrap();
    }
    // From here on, bytes in no parsable protocol.
    let mut raw = vec![0; 70_000];
    stream.read_exact(&mut raw).await.unwrap();
    stream.write_all(&raw).await.unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    (head, rest)
}

/// A conversation from the handshake to the closing frame, with a request of this method on a route for POST.
async fn speaks(method: &str, lines: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let setup = Proxy::on("memory:").upstream(listener.local_addr().unwrap()).route(&route("chat", lines));
    let proxy = setup.start().await;
    let service = tokio::spawn(service(listener));
    let request = proxy.client().request(method, "/chat").field("Connection", "keep-alive, Upgrade");
    let request = request.field("Upgrade", "websocket").field("Sec-WebSocket-Key", KEY);
    let request = request.field("Sec-WebSocket-Version", "13").field("Sec-WebSocket-Protocol", "chat");
    let mut stream = proxy.client().connect().await;
    stream.write_all(&request.bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert!(head.contains(&format!("sec-websocket-accept: {}", ACCEPT.to_ascii_lowercase())), "{head}");
    assert!(head.contains("upgrade: websocket") && head.contains("connection: upgrade"), "{head}");
    assert!(head.contains("sec-websocket-protocol: chat"), "{head}");
    let talk = async {
        assert_eq!(read_frame(&mut stream).await, b"welcome");
        for text in [&b"one"[..], b"two", b""] {
            stream.write_all(&frame(text, Some([1, 2, 3, 4]))).await.unwrap();
            assert_eq!(read_frame(&mut stream).await, [b"you said ", text].concat());
        }
        let raw: Vec<u8> = (0..70_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        stream.write_all(&raw).await.unwrap();
        let mut back = vec![0; raw.len()];
        stream.read_exact(&mut back).await.unwrap();
        assert!(back == raw);
        stream.write_all(b"last words").await.unwrap();
        stream.shutdown().await.unwrap();
        let (head, rest) = service.await.unwrap();
        assert_eq!(rest, b"last words");
        assert_eq!(head.all("sec-websocket-key").collect::<Vec<_>>(), [KEY]);
        assert_eq!(head.all("upgrade").collect::<Vec<_>>(), ["websocket"]);
        let mut end = Vec::new();
        stream.read_to_end(&mut end).await.unwrap();
        assert!(end.is_empty());
    };
    timeout(TEST_TIMEOUT, talk).await.expect("one side has nothing more to say");
}

#[tokio::test]
async fn a_websocket_passes_without_a_route() {
    speaks("GET", "").await;
}

#[tokio::test]
async fn a_websocket_passes_on_a_route_that_is_off_or_observes() {
    speaks("POST", "mode = \"off\"").await;
    speaks("POST", "mode = \"observe\"").await;
}

#[tokio::test]
async fn a_refused_upgrade_is_answered_as_any_request() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.answer_all(Answer::status(426).field("Upgrade", "websocket").body("no"));
    let request = world.get("/chat").field("Connection", "Upgrade").field("Upgrade", "websocket");
    let response = request.send().await;
    assert_eq!((response.status, &*response.text()), (426, "no"));
    assert_eq!(world.upstream.last().field("upgrade"), Some("websocket"));
}

#[tokio::test]
async fn a_guarded_request_is_never_upgraded() {
    let world = World::start(Store::sqlite()).await;
    let request = world.pay("k-1").field("Connection", "Upgrade").field("Upgrade", "websocket");
    assert_eq!(request.send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.last().field("upgrade"), None, "the service is not even asked");
    world
        .upstream
        .then(Answer::raw("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"));
    let unasked = world.pay("k-2").send().await;
    assert_eq!(unasked.outcome(), (502, "upstream-broken".to_owned()));
}
