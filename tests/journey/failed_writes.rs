//! Services that answer and reset the connection before they have read the request: a write
//! fails, and the answer is there.

use std::ffi::OsString;
use std::net::{Ipv4Addr, Shutdown};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use harness::syscall_fault::Tracer;
use harness::tls::Authority;
use harness::{Proxy, Request, Setup, Store, TEST_TIMEOUT, eventually, find_program, route, skip};

/// The way to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    Tls,
    Unix,
    H2c,
    H2OverTls,
}

const TRANSPORTS: [Transport; 5] =
    [Transport::Tcp, Transport::Tls, Transport::Unix, Transport::H2c, Transport::H2OverTls];

/// The service's answer before it ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// 401 with a body of two bytes.
    Short,
    /// 401 with a body of several frames.
    Long,
    /// Half of a body.
    Half,
    /// A body that ends with its connection.
    Undelimited,
    None,
}

/// It fits into a receive buffer: a reset discards what has not arrived.
const LONG: usize = 30_000;

impl Answer {
    fn body(self) -> Vec<u8> {
        match self {
            Self::Short | Self::Half | Self::Undelimited => b"no".to_vec(),
            Self::Long => vec![b'n'; LONG],
            Self::None => Vec::new(),
        }
    }

    fn http1(self) -> Vec<u8> {
        let head = match self {
            Self::None => return Vec::new(),
            Self::Undelimited => "HTTP/1.1 401 No\r\n\r\n".to_owned(),
            Self::Half => "HTTP/1.1 401 No\r\nContent-Length: 4\r\n\r\n".to_owned(),
            Self::Short | Self::Long => {
                format!("HTTP/1.1 401 No\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", self.body().len())
            }
        };
        [head.into_bytes(), self.body()].concat()
    }

    /// The answer on the first stream.
    fn http2(self) -> Vec<u8> {
        const END_STREAM: u8 = 1;
        // `:status` is entry 8 of the static table (RFC 7541 appendix A).
        let head = frame(1, 4, 1, b"\x08\x03401");
        let body = self.body();
        let mut pieces: Vec<_> = body.chunks(16_384).map(|piece| (0, piece)).collect();
        match (self, pieces.last_mut()) {
            (Self::None, _) => return Vec::new(),
            (Self::Short | Self::Long, Some(last)) => last.0 = END_STREAM,
            _ => {}
        }
        let frames = pieces.into_iter().flat_map(|(flags, piece)| frame(0, flags, 1, piece));
        head.into_iter().chain(frames).collect()
    }
}

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[length[1], length[2], length[3], kind, flags][..], &stream.to_be_bytes(), payload].concat()
}

/// Reads the head of a request and no more than comes with it, and answers.
async fn answer_over_http1(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), answer: Answer) {
    let mut seen: Vec<u8> = Vec::new();
    while !seen.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut some = [0; 512];
        let read = stream.read(&mut some).await.unwrap();
        assert!(read > 0, "the head breaks off");
        seen.extend(&some[..read]);
    }
    stream.write_all(&answer.http1()).await.unwrap();
    stream.flush().await.unwrap();
}

async fn answer_over_http2(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), answer: Answer) {
    const HEADERS: u8 = 1;
    stream.write_all(&frame(4, 0, 0, &[])).await.unwrap();
    stream.read_exact(&mut [0; 24]).await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.unwrap();
        if head[3] == HEADERS {
            break;
        }
    }
    stream.write_all(&answer.http2()).await.unwrap();
    stream.flush().await.unwrap();
}

/// The end of a connection whose request was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Reset,
    /// The service closes its side first, so its answer is whole without a length.
    CloseAndReset,
}

impl End {
    async fn apply(self, mut stream: TcpStream) {
        match self {
            Self::Reset => stream.set_zero_linger().unwrap(),
            // The kernel resets a connection that is closed with bytes unread.
            Self::CloseAndReset => stream.shutdown().await.unwrap(),
        }
    }
}

/// A service of which each connection answers once.
struct Service {
    url: String,
    authority: Authority,
    answered: Arc<AtomicUsize>,
    _folder: TempDir,
}

impl Service {
    async fn start(transport: Transport, answer: Answer, end: End) -> Self {
        let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
        let answered = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&answered);
        let url = match transport {
            Transport::Unix => {
                let path = folder.path().join("service.sock");
                let listener = UnixListener::bind(&path).unwrap();
                tokio::spawn(async move {
                    while let Ok((mut stream, _)) = listener.accept().await {
                        count.fetch_add(1, Ordering::SeqCst);
                        tokio::spawn(async move { answer_over_http1(&mut stream, answer).await });
                    }
                });
                format!("unix:{}", path.display())
            }
            _ => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                let address = listener.local_addr().unwrap();
                let protocols: &[&str] = if transport == Transport::H2OverTls { &["h2"] } else { &["http/1.1"] };
                let tls = TlsAcceptor::from(authority.issue(&["localhost"]).server_speaking(protocols));
                tokio::spawn(async move {
                    while let Ok((stream, _)) = listener.accept().await {
                        count.fetch_add(1, Ordering::SeqCst);
                        tokio::spawn(serve(stream, transport, answer, end, tls.clone()));
                    }
                });
                match transport {
                    Transport::Tcp => format!("http://{address}"),
                    Transport::H2c => format!("h2c://{address}"),
                    _ => format!("https://localhost:{}", address.port()),
                }
            }
        };
        Self { url, authority, answered, _folder: folder }
    }

    fn setup(&self, store: &Store) -> Setup {
        before(&self.url, store).top(&format!("upstream_tls = {{ ca = {:?} }}", self.authority.file()))
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }
}

/// A proxy that takes long bodies in front of a service.
fn before(url: &str, store: &Store) -> Setup {
    // A stream would be cut instead of refused.
    let long = route("pay", "max_request_body = \"16MiB\"\nstream = \"never\"");
    Proxy::on(&store.url()).top(&format!("upstream = \"{url}\"")).route(&long)
}

async fn serve(mut stream: TcpStream, transport: Transport, answer: Answer, end: End, tls: TlsAcceptor) {
    match transport {
        Transport::Tcp => answer_over_http1(&mut stream, answer).await,
        Transport::H2c => answer_over_http2(&mut stream, answer).await,
        _ => {
            let mut secured = tls.accept(stream).await.unwrap();
            match transport {
                Transport::Tls => answer_over_http1(&mut secured, answer).await,
                _ => answer_over_http2(&mut secured, answer).await,
            }
            stream = secured.into_inner().0;
        }
    }
    end.apply(stream).await;
}

/// The words that start a proxy each of whose writes to a socket takes a moment. So a connection on which it has
/// written the beginning of a request is reset before it writes the rest, and before it reads again.
fn slow_writer(folder: &TempDir) -> Vec<OsString> {
    let trace = folder.path().join("trace").into_os_string();
    let calls = "sendto,sendmsg,writev";
    let filters = [format!("trace={calls}"), format!("inject={calls}:delay_enter=40000")];
    let mut words: Vec<OsString> = ["strace", "-D", "-f", "-o"].map(Into::into).into();
    words.push(trace);
    words.extend(filters.into_iter().flat_map(|filter| ["-e".into(), filter.into()]));
    words
}

/// The requests with a long body: guarded and unguarded, with a length and chunked.
fn uploads(proxy: &Proxy, name: &str) -> [(String, Request); 4] {
    let body = vec![b'x'; 6 << 20];
    let unguarded = proxy.post("/pay").body(body);
    let guarded = unguarded.clone().key(&format!("{name}-sized"));
    let chunked = unguarded.clone().key(&format!("{name}-chunked")).chunked();
    [
        (format!("{name}, guarded, sized"), guarded),
        (format!("{name}, guarded, chunked"), chunked),
        (format!("{name}, unguarded, sized"), unguarded.clone()),
        (format!("{name}, unguarded, chunked"), unguarded.chunked()),
    ]
}

#[tokio::test]
async fn an_answer_that_came_before_a_write_failed_is_the_answer() {
    if !Tracer::is_permitted().await {
        return;
    }
    let mut failed = Vec::new();
    for transport in TRANSPORTS {
        for answer in [Answer::Short, Answer::Long] {
            let service = Service::start(transport, answer, End::Reset).await;
            let (store, folder) = (Store::sqlite(), tempfile::tempdir().unwrap());
            let proxy = service.setup(&store).under(slow_writer(&folder)).start().await;
            for (name, request) in uploads(&proxy, &format!("{transport:?}-{answer:?}")) {
                match request.upload().await {
                    Ok(response) if (response.status, &response.body) == (401, &answer.body()) => {}
                    Ok(response) => failed.push(format!("{name}: {} {}", response.status, response.text())),
                    Err(error) => failed.push(format!("{name}: {error}")),
                }
            }
            assert_eq!(service.answered(), 4, "a connection for each request, and no request twice");
        }
    }
    assert!(failed.is_empty(), "{} were lost: {failed:#?}", failed.len());
}

#[tokio::test]
async fn a_failed_write_without_a_whole_answer_leaves_the_outcome_unknown() {
    if !Tracer::is_permitted().await {
        return;
    }
    for transport in TRANSPORTS {
        for answer in [Answer::None, Answer::Half, Answer::Undelimited] {
            let service = Service::start(transport, answer, End::Reset).await;
            let (store, folder) = (Store::sqlite(), tempfile::tempdir().unwrap());
            let proxy = service.setup(&store).under(slow_writer(&folder)).start().await;
            let case = format!("{transport:?}-{answer:?}");
            let [(_, guarded), _, (_, unguarded), _] = uploads(&proxy, &case);
            let first = guarded.upload().await.unwrap();
            assert_eq!(first.outcome(), (502, "upstream-broken".to_owned()), "{case}");
            assert_eq!(first.oncegate_status(), Some("unknown"), "{case}");
            let retry = guarded.upload().await.unwrap();
            assert_eq!(retry.outcome(), (409, "outcome-unknown".to_owned()), "{case}");
            assert_eq!(service.answered(), 1, "{case}: nothing is sent a second time");
            if answer == Answer::None {
                assert_eq!(unguarded.upload().await.unwrap().outcome(), (502, "upstream-broken".to_owned()), "{case}");
                assert_eq!(service.answered(), 2, "{case}");
            }
        }
    }
}

#[tokio::test]
async fn an_answer_that_ends_with_its_connection_is_whole_if_the_service_closed_it_in_order() {
    if !Tracer::is_permitted().await {
        return;
    }
    let service = Service::start(Transport::Tcp, Answer::Undelimited, End::CloseAndReset).await;
    let (store, folder) = (Store::sqlite(), tempfile::tempdir().unwrap());
    let proxy = service.setup(&store).under(slow_writer(&folder)).start().await;
    for (name, request) in uploads(&proxy, "in-order") {
        let response = request.upload().await.unwrap();
        assert_eq!((response.status, &*response.text()), (401, "no"), "{name}");
    }
}

/// A service at a Unix socket that takes no more bytes after the head of a request, and
/// then answers once it is told to.
async fn half_closed_service(listener: UnixListener, answers: Arc<tokio::sync::Semaphore>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let answers = Arc::clone(&answers);
        tokio::spawn(async move {
            let mut head = [0; 64];
            stream.read_exact(&mut head).await.unwrap();
            let stream = stream.into_std().unwrap();
            stream.shutdown(Shutdown::Read).unwrap();
            let mut stream = tokio::net::UnixStream::from_std(stream).unwrap();
            // A writer that waits for room learns only now that nothing is taken any more.
            stream.read_to_end(&mut Vec::new()).await.unwrap();
            answers.acquire().await.unwrap().forget();
            stream.write_all(&Answer::Short.http1()).await.unwrap();
            std::future::pending::<()>().await;
        });
    }
}

#[tokio::test]
async fn a_peer_that_only_reads_no_more_may_still_answer_for_five_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("service.sock");
    let (store, answers) = (Store::sqlite(), Arc::new(tokio::sync::Semaphore::new(0)));
    tokio::spawn(half_closed_service(UnixListener::bind(&path).unwrap(), Arc::clone(&answers)));
    let proxy = before(&format!("unix:{}", path.display()), &store).start().await;
    for (number, (name, request)) in uploads(&proxy, "half-closed").into_iter().enumerate() {
        let answer = tokio::spawn(async move { request.upload().await });
        proxy.wait_for_logs("a write failed", number + 1).await;
        answers.add_permits(1);
        let answer = answer.await.unwrap().unwrap();
        assert_eq!((answer.status, &*answer.text()), (401, "no"), "{name}");
    }
    for (name, request) in uploads(&proxy, "silent") {
        let answer = timeout(TEST_TIMEOUT, request.upload()).await.expect("it waits for ever").unwrap();
        assert_eq!(answer.outcome(), (502, "upstream-broken".to_owned()), "{name}");
    }
}

/// Runs a program of Node until it is dropped; `None` where Node is not installed.
struct Node(Child);

impl Node {
    fn run(program: &str, arguments: &[String]) -> Option<Self> {
        let Some(node) = find_program(&["node"]) else {
            skip("no Node");
            return None;
        };
        let mut command = Command::new(node);
        command.args(["-e", program]).args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        Some(Self(command.spawn().unwrap()))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn nodes_refusal_of_an_upload_whose_socket_it_destroys_is_the_answer() {
    const REFUSES: &str = "require('http').createServer((request, response) => { \
        response.writeHead(401, { 'Content-Length': 2 }); \
        response.end('no', () => request.socket.destroy()); \
    }).listen(Number(process.argv[1]), '127.0.0.1')";
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap().port();
    let Some(_node) = Node::run(REFUSES, &[port.to_string()]) else { return };
    let address = (Ipv4Addr::LOCALHOST, port);
    eventually(TEST_TIMEOUT, async || TcpStream::connect(address).await.ok()).await;
    let store = Store::sqlite();
    let proxy = before(&format!("http://127.0.0.1:{port}"), &store).start().await;
    for round in 0..12 {
        for (name, request) in uploads(&proxy, &format!("round-{round}")) {
            let response = request.upload().await.unwrap();
            assert_eq!((response.status, &*response.text()), (401, "no"), "{name}");
        }
    }
}

/// A service that switches to WebSocket, and then does what it is told.
async fn switching<T>(after: impl AsyncFnOnce(TcpStream) -> T, listener: TcpListener) -> T {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut seen: Vec<u8> = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        assert!(stream.read_buf(&mut seen).await.unwrap() > 0);
    }
    stream.write_all(b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n").await.unwrap();
    after(stream).await
}

/// A connection that was switched to WebSocket.
async fn switched(proxy: &Proxy) -> TcpStream {
    let mut stream = proxy.client().connect().await;
    let request = "GET /socket HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    stream
}

/// Says goodbye after the first bytes, while more are coming in, and resets the connection.
async fn say_goodbye(mut stream: TcpStream) {
    stream.read_exact(&mut [0; 1024]).await.unwrap();
    stream.write_all(b"bye").await.unwrap();
    stream.set_zero_linger().unwrap();
}

/// Sends much, and returns what comes back meanwhile.
async fn send_much(stream: TcpStream) -> Vec<u8> {
    let (mut reading, mut writing) = stream.into_split();
    let sender = tokio::spawn(async move { writing.write_all(&vec![b'x'; 6 << 20]).await });
    let mut seen = Vec::new();
    // It ends in some way.
    let _ = timeout(TEST_TIMEOUT, reading.read_to_end(&mut seen)).await.expect("the tunnel stays open");
    sender.abort();
    seen
}

#[tokio::test]
async fn the_last_message_of_a_tunnels_side_that_resets_reaches_the_other_side() {
    if !Tracer::is_permitted().await {
        return;
    }
    for service_resets in [true, false] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (store, folder) = (Store::sqlite(), tempfile::tempdir().unwrap());
        let setup = before(&format!("http://{}", listener.local_addr().unwrap()), &store);
        let proxy = setup.under(slow_writer(&folder)).start().await;
        let seen = if service_resets {
            tokio::spawn(switching(say_goodbye, listener));
            send_much(switched(&proxy).await).await
        } else {
            let service = tokio::spawn(switching(send_much, listener));
            say_goodbye(switched(&proxy).await).await;
            service.await.unwrap()
        };
        assert_eq!(String::from_utf8_lossy(&seen), "bye", "{service_resets}");
    }
}
