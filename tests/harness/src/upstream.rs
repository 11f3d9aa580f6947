//! A service that answers as a test tells it, records each request, and counts.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::TEST_TIMEOUT;
use super::client::Client;
use super::wire::{self, Fields, Framing, Wire};

/// A real HTTP/1.1 server.
pub struct Upstream {
    pub address: SocketAddr,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    script: Mutex<Script>,
    seen: watch::Sender<Seen>,
}

#[derive(Default)]
struct Script {
    next: VecDeque<Answer>,
    usual: Answer,
    /// The answers to all requests with a key.
    by_key: BTreeMap<String, Answer>,
}

/// The service's record of connections and requests.
#[derive(Debug, Default)]
pub struct Seen {
    /// The number of accepted connections.
    pub opened: usize,
    /// The number of requests with at least one byte received.
    pub begun: usize,
    /// The number of body bytes received, of complete requests or not.
    pub body_bytes: usize,
    /// The complete requests: each is an execution.
    pub executed: Vec<Call>,
    /// The number of ended connections.
    pub closed: usize,
}

/// A request as the service got it.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: String,
    pub target: String,
    pub fields: Fields,
    pub body: Vec<u8>,
    pub trailers: Fields,
    /// The time at which it was complete.
    pub at: Instant,
}

impl Call {
    /// The value of a field that may occur once.
    pub fn field(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() < 2, "{name} occurs more than once: {all:?}");
        all.first().copied()
    }

    pub fn all(&self, name: &str) -> Vec<&str> {
        self.fields.iter().filter(|(found, _)| found == name).map(|(_, value)| &**value).collect()
    }
}

impl Upstream {
    pub async fn start() -> Self {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
    }

    pub async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let upstream = Self { address: listener.local_addr().unwrap(), inner: Arc::default() };
        let inner = Arc::clone(&upstream.inner);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                inner.seen.send_modify(|seen| seen.opened += 1);
                tokio::spawn(serve(Arc::clone(&inner), stream));
            }
        });
        upstream
    }

    /// An address on which nothing listens, now or later.
    pub async fn unused_address() -> SocketAddr {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let address = Ipv4Addr::from(0x7F_40_00_00 + NUMBER.fetch_add(1, Ordering::Relaxed));
        // Listens once, to learn that the port is free.
        TcpListener::bind((address, 0)).await.unwrap().local_addr().unwrap()
    }

    /// Sets the answer to all requests from now on.
    pub fn answer_all(&self, answer: Answer) {
        self.inner.script.lock().unwrap().usual = answer;
    }

    /// Sets the answer to all requests with a key, whatever the others get.
    pub fn answer_for(&self, key: &str, answer: Answer) {
        self.inner.script.lock().unwrap().by_key.insert(key.to_owned(), answer);
    }

    /// Sets the answer to the next request that has none yet.
    pub fn then(&self, answer: Answer) -> &Self {
        self.inner.script.lock().unwrap().next.push_back(answer);
        self
    }

    /// The number of requests with at least one byte received.
    pub fn calls(&self) -> usize {
        self.inner.seen.borrow().begun
    }

    /// The complete requests.
    pub fn executed(&self) -> Vec<Call> {
        self.inner.seen.borrow().executed.clone()
    }

    /// The last complete request.
    pub fn last(&self) -> Call {
        self.executed().pop().expect("the service has got nothing")
    }

    /// Waits until this many requests are complete.
    pub async fn wait_for_executed(&self, count: usize) {
        self.wait_until(|seen| seen.executed.len() >= count).await;
    }

    /// The number of complete requests with this key.
    pub fn executed_for(&self, key: &str) -> usize {
        let seen = self.inner.seen.borrow();
        seen.executed.iter().filter(|call| call.field("idempotency-key") == Some(key)).count()
    }

    /// The position of the only request with this key among all complete ones: the number in its answer.
    pub fn number_of(&self, key: &str) -> usize {
        let executed = self.executed();
        let place = executed.iter().position(|call| call.field("idempotency-key") == Some(key));
        place.expect("it has come") + 1
    }

    /// Waits until everything that disconnected clients have sent is read. This counts as a request of its own.
    pub async fn wait_until_all_read(&self) {
        // Connections are accepted in order: when this one is answered, all earlier ones have been read.
        Client { address: self.address }.get("/quiet").send().await;
        self.wait_until(|seen| seen.opened == seen.closed).await;
    }

    /// Reads the record so far.
    pub fn seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.inner.seen.borrow())
    }

    /// Waits until the record meets a condition.
    pub async fn wait_until(&self, what: impl FnMut(&Seen) -> bool) {
        let mut seen = self.inner.seen.subscribe();
        let waited = timeout(TEST_TIMEOUT, seen.wait_for(what)).await;
        assert!(waited.is_ok(), "it does not come to the service: {:?}", self.inner.seen.borrow());
    }
}

/// Holds an answer until it is released.
#[derive(Clone, Debug, Default)]
pub struct Hold(Arc<watch::Sender<bool>>);

impl Hold {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn release(&self) {
        self.0.send_replace(true);
    }

    pub async fn wait(&self) {
        let _ = self.0.subscribe().wait_for(|released| *released).await;
    }

    /// Waits as long as the client stays connected.
    async fn wait_for(&self, wire: &Wire) -> std::io::Result<()> {
        let mut byte = [0];
        tokio::select! {
            () = self.wait() => Ok(()),
            left = wire.stream.peek(&mut byte) => match left? {
                0 => Err(std::io::ErrorKind::ConnectionReset.into()),
                _ => {
                    self.wait().await;
                    Ok(())
                }
            },
        }
    }
}

/// The body of one answer, which a test sends piece by piece.
#[derive(Clone, Debug)]
pub struct Feed {
    sender: mpsc::UnboundedSender<Fed>,
    receiver: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Fed>>>,
}

#[derive(Debug)]
enum Fed {
    Piece(Vec<u8>),
    End,
    Cut,
}

impl Feed {
    pub fn new() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { sender, receiver: Arc::new(tokio::sync::Mutex::new(receiver)) }
    }

    /// Sends the next piece.
    pub fn send(&self, piece: impl Into<Vec<u8>>) {
        self.sender.send(Fed::Piece(piece.into())).unwrap();
    }

    /// Ends the body.
    pub fn end(&self) {
        self.sender.send(Fed::End).unwrap();
    }

    /// Closes the connection within the body.
    pub fn cut(&self) {
        self.sender.send(Fed::Cut).unwrap();
    }

    /// Sends the pieces as they are fed. `None` if the connection ends within the body.
    async fn serve(&self, wire: &mut Wire, trailers: &[u8]) -> std::io::Result<Option<()>> {
        let mut receiver = self.receiver.lock().await;
        let mut byte = [0];
        loop {
            let fed = tokio::select! {
                fed = receiver.recv() => fed,
                _ = wire.stream.peek(&mut byte) => return Ok(None),
            };
            match fed {
                Some(Fed::Piece(data)) => wire.write(&chunk(&data)).await?,
                Some(Fed::End) => return wire.write(trailers).await.map(Some),
                Some(Fed::Cut) | None => return Ok(None),
            }
        }
    }
}

fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

/// The service's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    fields: Fields,
    content: Content,
    /// The minimum length of a body that names its execution.
    padding: usize,
    trailers: Fields,
    before: Vec<AnswerTiming>,
    midway: Option<Hold>,
    cut_after: Option<usize>,
    outcome: Ending,
}

/// An event before or instead of the answer.
#[derive(Clone, Debug)]
enum AnswerTiming {
    /// The connection ends before the request is read.
    EndUnread,
    /// The answer waits for a release.
    Hold(Hold),
    /// The service takes this time.
    Pause(Duration),
    /// These bytes are sent.
    Interim(Vec<u8>),
}

#[derive(Clone, Debug)]
enum Content {
    /// Names its execution by number, so that a second one shows.
    Effect,
    Whole(Vec<u8>),
    Chunks(Vec<Vec<u8>>),
    Fed(Feed),
    /// The complete answer, as bytes.
    Raw(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    KeepAlive,
    Close,
    Reset,
}

impl Default for Answer {
    fn default() -> Self {
        Self::status(201)
    }
}

impl Answer {
    /// An answer whose body is `effect 1` for the first execution, and so on.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            fields: Fields::new(),
            content: Content::Effect,
            padding: 0,
            trailers: Fields::new(),
            before: Vec::new(),
            midway: None,
            cut_after: None,
            outcome: Ending::KeepAlive,
        }
    }

    /// Sends these bytes and closes the connection.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self { content: Content::Raw(bytes.into()), outcome: Ending::Close, ..Self::status(200) }
    }

    /// Closes the connection without a byte once the request is complete.
    pub fn close() -> Self {
        Self::raw("")
    }

    /// Resets the connection once the request is complete.
    pub fn reset() -> Self {
        Self { outcome: Ending::Reset, ..Self::raw("") }
    }

    /// Closes the connection at the first byte of the request.
    pub fn end_unread() -> Self {
        Self { before: vec![AnswerTiming::EndUnread], ..Self::raw("") }
    }

    /// Never answers.
    pub fn never() -> Self {
        Self::default().hold(&Hold::new())
    }

    pub fn field(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Pads the body after `effect 1` with dots up to this many bytes.
    pub fn padded(self, bytes: usize) -> Self {
        Self { padding: bytes, ..self }
    }

    pub fn body(self, body: impl Into<Vec<u8>>) -> Self {
        Self { content: Content::Whole(body.into()), ..self }
    }

    pub fn chunks(self, chunks: &[&str]) -> Self {
        Self { content: Content::Chunks(chunks.iter().map(|chunk| chunk.as_bytes().to_vec()).collect()), ..self }
    }

    /// An answer of this media type without a length, whose body the test sends.
    pub fn fed(status: u16, media_type: &str, feed: &Feed) -> Self {
        Self { content: Content::Fed(feed.clone()), ..Self::status(status).field("Content-Type", media_type) }
    }

    pub fn trailer(mut self, name: &str, value: &str) -> Self {
        self.trailers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Executes, and waits for the release before it answers.
    pub fn hold(mut self, hold: &Hold) -> Self {
        self.before.push(AnswerTiming::Hold(hold.clone()));
        self
    }

    /// Sends a 103 response with these field lines before the answer.
    /// The service takes this time before it answers.
    pub fn takes(mut self, time: Duration) -> Self {
        self.before.push(AnswerTiming::Pause(time));
        self
    }

    pub fn early_hints(mut self, lines: &str) -> Self {
        let interim = format!("HTTP/1.1 103 Early Hints\r\n{lines}\r\n\r\n");
        self.before.push(AnswerTiming::Interim(interim.into_bytes()));
        self
    }

    /// Sends the head and half of the body, and waits for the release before the rest.
    pub fn hold_midway(self, hold: &Hold) -> Self {
        Self { midway: Some(hold.clone()), ..self }
    }

    /// Closes the connection after this many bytes of the body.
    pub fn cut_after(self, bytes: usize) -> Self {
        Self { cut_after: Some(bytes), outcome: Ending::Close, ..self }
    }

    /// Closes the connection afterwards, without having announced it.
    pub fn then_close(self) -> Self {
        Self { outcome: Ending::Close, ..self }
    }

    /// Keeps the connection open afterwards, whatever was announced.
    pub fn then_stay(self) -> Self {
        Self { outcome: Ending::KeepAlive, ..self }
    }

    /// Resets the connection afterwards.
    pub fn then_reset(self) -> Self {
        Self { outcome: Ending::Reset, ..self }
    }

    fn last_chunk(&self) -> Vec<u8> {
        let lines: String = self.trailers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        wire::bytes(&format!("0\r\n{lines}\r\n"))
    }

    /// The head, and the body in two halves.
    fn render(&self, number: usize, head_only: bool) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let (framing, mut halves) = match &self.content {
            Content::Raw(bytes) => return (bytes.clone(), Vec::new(), Vec::new()),
            Content::Effect => {
                let body = format!("{:.<1$}", format!("effect {number}"), self.padding).into_bytes();
                (format!("Content-Length: {}", body.len()), (body, Vec::new()))
            }
            Content::Whole(body) => {
                let (first, second) = body.split_at(body.len() / 2);
                (format!("Content-Length: {}", body.len()), (first.to_vec(), second.to_vec()))
            }
            Content::Chunks(chunks) => {
                let (first, second) = chunks.split_at(chunks.len() / 2);
                let halves = [first, second].map(|half| half.iter().flat_map(|data| chunk(data)).collect::<Vec<_>>());
                let [first, second] = halves;
                ("Transfer-Encoding: chunked".to_owned(), (first, [second, self.last_chunk()].concat()))
            }
            Content::Fed(_) => ("Transfer-Encoding: chunked".to_owned(), Default::default()),
        };
        let mut head = format!("HTTP/1.1 {} Whatever\r\n", self.status);
        for (name, value) in &self.fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if matches!(self.status, 204 | 304) {
            halves = Default::default();
        } else {
            head.push_str(&framing);
            head.push_str("\r\n");
        }
        if head_only {
            halves = Default::default();
        }
        head.push_str("\r\n");
        (wire::bytes(&head), halves.0, halves.1)
    }
}

/// Serves a connection to its end, one request after the other.
async fn serve(inner: Arc<Inner>, stream: TcpStream) {
    let mut wire = Wire::new(stream);
    while let Ok(Some(())) = exchange(&inner, &mut wire).await {}
    drop(wire);
    inner.seen.send_modify(|seen| seen.closed += 1);
}

/// Serves one request; `None` if the connection ends with it.
async fn exchange(inner: &Inner, wire: &mut Wire) -> std::io::Result<Option<()>> {
    if !wire.has_more().await? {
        return Ok(None);
    }
    let answer = {
        let mut script = inner.script.lock().unwrap();
        script.next.pop_front().unwrap_or_else(|| script.usual.clone())
    };
    inner.seen.send_modify(|seen| seen.begun += 1);
    if answer.before.iter().any(|moment| matches!(moment, AnswerTiming::EndUnread)) {
        return Ok(None);
    }
    let Some(head) = wire.head().await? else { return Ok(None) };
    let key = head.all("idempotency-key").next();
    let answer = key.and_then(|key| inner.script.lock().unwrap().by_key.get(key).cloned()).unwrap_or(answer);
    if head.all("expect").next().is_some() {
        wire.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    let mut words = head.start.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let mut framing = head.framing(Framing::Ended);
    let (mut body, mut trailers) = (Vec::new(), Fields::new());
    while let Some(piece) = wire.piece(&mut framing, &mut trailers).await? {
        inner.seen.send_modify(|seen| seen.body_bytes += piece.len());
        body.extend(piece);
    }
    let head_only = method == "HEAD";
    let mut number = 0;
    inner.seen.send_modify(|seen| {
        seen.executed.push(Call { method, target, fields: head.fields, body, trailers, at: Instant::now() });
        number = seen.executed.len();
    });
    for moment in &answer.before {
        match moment {
            AnswerTiming::EndUnread => {}
            AnswerTiming::Hold(hold) => hold.wait_for(wire).await?,
            AnswerTiming::Pause(time) => tokio::time::sleep(*time).await,
            AnswerTiming::Interim(bytes) => wire.write(bytes).await?,
        }
    }
    let (head, first, second) = answer.render(number, head_only);
    wire.write(&head).await?;
    if let Content::Fed(feed) = &answer.content {
        return feed.serve(wire, &answer.last_chunk()).await;
    }
    match (&answer.midway, answer.cut_after) {
        (Some(hold), _) => {
            wire.write(&first).await?;
            hold.wait_for(wire).await?;
            wire.write(&second).await?;
        }
        (None, Some(bytes)) => wire.write(&[first, second].concat()[..bytes]).await?,
        (None, None) => wire.write(&[first, second].concat()).await?,
    }
    match answer.outcome {
        Ending::KeepAlive => Ok(Some(())),
        Ending::Close => {
            wire.stream.shutdown().await?;
            // The other side reads until the end; closing at once could reset bytes still in transit.
            wire.rest().await;
            Ok(None)
        }
        Ending::Reset => {
            wire.stream.set_zero_linger()?;
            Ok(None)
        }
    }
}
