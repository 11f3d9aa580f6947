//! The service behind the proxies: it writes each effect to the disk before it answers, and fails as real services do:
//! it is slow, refuses, closes the connection, and answers too late.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::history::{Attempt, Effect, ScopedKey, ServiceCall};
use crate::seeded_random::SeededRandom;
use harness::wire::{self, Fields, Framing, Head, Wire};

/// Longer than any route's timeout here.
const TOO_LONG: Duration = Duration::from_secs(4);

/// One response in so many is large: more than the 64 KiB up to which a response waits for no room, with bytes that are
/// no text.
const LARGE_EVERY: u64 = 64;
const LARGE: usize = 100_000;

/// One response in so many streams: it comes in pieces, with pauses, and names no length.
const STREAM_EVERY: u64 = 8;
const STREAM_PIECES: usize = 5;
/// The longest pause between two pieces, in milliseconds.
const STREAM_PAUSE: u64 = 60;

pub struct Service {
    pub address: SocketAddr,
    inner: Arc<Inner>,
    folder: TempDir,
}

struct Inner {
    log: Mutex<Log>,
    calls: Mutex<Vec<ServiceCall>>,
    events: Mutex<Vec<KeyEvent>>,
    random: Mutex<SeededRandom>,
    /// True once the service no longer fails.
    is_reliable: watch::Sender<bool>,
    begun: Instant,
}

struct Log {
    file: File,
    effects: u64,
}

/// The service's reaction to a request.
enum Behavior {
    /// Answers 503 and does nothing.
    Refuses,
    /// Executes, and answers after this time.
    Answers(Duration),
    /// Executes, and a gateway answers that it has lost the answer.
    LosesAnswerAtGateway,
    /// Executes, and closes the connection without an answer.
    ClosesWithoutAnswer,
    /// Executes, and closes the connection in the middle of the answer.
    ClosesMidAnswer,
}

impl Service {
    /// All times in its log are since `begun`.
    pub async fn start(random: SeededRandom, begun: Instant) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = File::options().create_new(true).append(true).open(folder.path().join("effects")).unwrap();
        let log = Mutex::new(Log { file, effects: 0 });
        let (calls, events, random) = (Mutex::default(), Mutex::default(), Mutex::new(random));
        let is_reliable = watch::Sender::new(false);
        let inner = Arc::new(Inner { log, calls, events, random, is_reliable, begun });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let service = Self { address: listener.local_addr().unwrap(), inner: Arc::clone(&inner), folder };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(Arc::clone(&inner), stream));
            }
        });
        service
    }

    /// From now on the service works correctly and at once, also for requests that already wait.
    pub fn stop_misbehaving(&self) {
        self.inner.is_reliable.send_replace(true);
    }

    /// All requests that it has received and answered, or whose connection it has closed.
    pub fn calls(&self) -> Vec<ServiceCall> {
        self.inner.calls.lock().unwrap().clone()
    }

    /// The events, in the order in which they came.
    #[allow(dead_code, reason = "tests/cluster has none")]
    pub fn events(&self) -> Vec<KeyEvent> {
        self.inner.events.lock().unwrap().clone()
    }

    /// The effects, read from the disk.
    pub fn effects(&self) -> Vec<Effect> {
        let text = std::fs::read_to_string(self.folder.path().join("effects")).unwrap();
        text.lines().map(parse).collect()
    }
}

impl Inner {
    fn choose_behavior(&self) -> Behavior {
        let mut random = self.random.lock().unwrap();
        if *self.is_reliable.borrow() {
            return Behavior::Answers(Duration::ZERO);
        }
        match random.below(1_000) {
            0..15 => Behavior::Refuses,
            15..20 => Behavior::ClosesWithoutAnswer,
            20..25 => Behavior::ClosesMidAnswer,
            25..31 => Behavior::Answers(TOO_LONG),
            // Long enough for faults to happen meanwhile.
            31..37 => Behavior::LosesAnswerAtGateway,
            37..130 => Behavior::Answers(random.millis(150, 1_300)),
            _ => Behavior::Answers(random.millis(0, 20)),
        }
    }

    /// Executes a request; the effect is on the disk when this returns.
    fn execute(&self, received: &Received, body: &str) -> u64 {
        let Received { op, name: ScopedKey { caller, key }, attempt: Attempt { record, number }, .. } = received;
        let mut log = self.log.lock().unwrap();
        log.effects += 1;
        let id = log.effects;
        let at = self.begun.elapsed().as_micros();
        let line = format!("{id} {op} {caller} {key} {body} {at} {record} {number}\n");
        log.file.write_all(line.as_bytes()).unwrap();
        log.file.sync_data().unwrap();
        id
    }
}

/// An event about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "tests/cluster has none")]
pub struct KeyEvent {
    pub record: String,
    pub sequence: i64,
    /// The state of the key then; empty where its record was deleted.
    pub state: String,
}

impl KeyEvent {
    /// Reads the body of a POST.
    pub fn parse(body: &[u8]) -> Self {
        let event: serde_json::Value = serde_json::from_slice(body).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let (record, state) = (text(&event["subject"]), text(&event["data"]["state"]));
        Self { record, sequence: text(&event["sequence"]).parse().unwrap(), state }
    }
}

/// A request of which all has arrived.
struct Received {
    op: u64,
    name: ScopedKey,
    attempt: Attempt,
    at: Duration,
}

impl Received {
    /// The request, and its body for the log. Where the body has the key, it may also have the caller and the number.
    fn new(head: &Head, body: &[u8], at: Duration) -> (Self, String) {
        let placed = placed(head, body);
        let field = |name| head.all(name).next().unwrap_or_else(|| panic!("{name} is missing: {head:?}")).to_owned();
        let value = |name, of_field| placed.get(name).cloned().unwrap_or_else(|| field(of_field));
        let name = ScopedKey { caller: value("caller", "authorization"), key: value("key", "idempotency-key") };
        let record = field("oncegate-reservation")[..64].to_owned();
        let attempt = Attempt { record, number: field("oncegate-attempt").parse().unwrap() };
        let op = value("op", "x-op").parse().unwrap();
        (Self { op, name, attempt, at }, placed.get("body").cloned().unwrap_or_else(|| wire::text(body)))
    }

    fn ended(&self, ended: Duration, was_refused: bool) -> ServiceCall {
        let Self { op, name, attempt, at } = self;
        ServiceCall { op: *op, name: name.clone(), attempt: attempt.clone(), began: *at, ended, was_refused }
    }
}

/// What the body says of the request, by names. A batch arrives as one of one.
fn placed(head: &Head, body: &[u8]) -> BTreeMap<String, String> {
    match head.start.split(' ').nth(1).unwrap() {
        "/batched" => {
            let [element] = serde_json::from_slice(body).unwrap();
            element
        }
        "/placed" => serde_json::from_slice(body).unwrap(),
        "/refreshed" => {
            let form = wire::text(body);
            let (token, body) = form.strip_prefix("refresh_token=").unwrap().split_once("&body=").unwrap();
            let (caller, key) = token.split_once('.').unwrap();
            [("caller", caller), ("key", key), ("body", body)]
                .map(|(name, text)| (name.to_owned(), text.to_owned()))
                .into()
        }
        _ => BTreeMap::new(),
    }
}

fn parse(line: &str) -> Effect {
    let words: Vec<_> = line.split(' ').collect();
    let [id, op, caller, key, body, at, record, number] = words[..] else { panic!("half a line: {line:?}") };
    Effect {
        id: id.parse().unwrap(),
        op: op.parse().unwrap(),
        name: ScopedKey { caller: caller.to_owned(), key: key.to_owned() },
        body: body.to_owned(),
        at: Duration::from_micros(at.parse().unwrap()),
        attempt: Attempt { record: record.to_owned(), number: number.parse().unwrap() },
    }
}

async fn serve(inner: Arc<Inner>, stream: TcpStream) {
    let mut wire = Wire::new(stream);
    while let Ok(Some(())) = exchange(&inner, &mut wire).await {}
}

/// Takes an event; sometimes it refuses it for now, is slow, or does not say that it has it.
async fn receive_event(inner: &Inner, wire: &mut Wire, behavior: Behavior, body: &[u8]) -> std::io::Result<Option<()>> {
    if matches!(behavior, Behavior::Refuses) {
        wire.write(b"HTTP/1.1 503 Not now\r\nContent-Length: 0\r\n\r\n").await?;
        return Ok(Some(()));
    }
    inner.events.lock().unwrap().push(KeyEvent::parse(body));
    match behavior {
        Behavior::Answers(after) => {
            drop(timeout(after, inner.is_reliable.subscribe().wait_for(|is_reliable| *is_reliable)).await);
        }
        _ => return Ok(None),
    }
    wire.write(b"HTTP/1.1 204 Taken\r\n\r\n").await?;
    Ok(Some(()))
}

/// Serves one request; `None` if the connection ends with it.
async fn exchange(inner: &Arc<Inner>, wire: &mut Wire) -> std::io::Result<Option<()>> {
    let Some(head) = wire.head().await? else { return Ok(None) };
    let (mut framing, mut body) = (head.framing(Framing::Ended), Vec::new());
    while let Some(piece) = wire.piece(&mut framing, &mut Fields::new()).await? {
        body.extend(piece);
    }
    let behavior = inner.choose_behavior();
    if head.start.starts_with("POST /events ") {
        return receive_event(inner, wire, behavior, &body).await;
    }
    let (received, body) = Received::new(&head, &body, inner.begun.elapsed());
    let received = Arc::new(received);
    let end = |was_refused| {
        let call = received.ended(inner.begun.elapsed(), was_refused);
        inner.calls.lock().unwrap().push(call);
    };
    if matches!(behavior, Behavior::Refuses) {
        end(true);
        wire.write(b"HTTP/1.1 503 Not now\r\nContent-Length: 7\r\n\r\nnot now").await?;
        return Ok(Some(()));
    }
    let (writing, executed) = (Arc::clone(inner), Arc::clone(&received));
    let id = tokio::task::spawn_blocking(move || writing.execute(&executed, &body)).await.unwrap();
    if let Behavior::Answers(after) = behavior {
        // The wait ends early once the service is reliable.
        drop(timeout(after, inner.is_reliable.subscribe().wait_for(|is_reliable| *is_reliable)).await);
    }
    if id.is_multiple_of(STREAM_EVERY) && matches!(behavior, Behavior::Answers(_) | Behavior::ClosesMidAnswer) {
        let pieces = if matches!(behavior, Behavior::Answers(_)) { STREAM_PIECES } else { STREAM_PIECES / 2 };
        let streamed = stream(inner, wire, id, pieces).await;
        end(false);
        return streamed;
    }
    end(false);
    let answer = answer(id);
    match behavior {
        Behavior::LosesAnswerAtGateway => {
            wire.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\nlost").await?;
            Ok(Some(()))
        }
        Behavior::ClosesWithoutAnswer => Ok(None),
        Behavior::ClosesMidAnswer => {
            wire.write(&answer[..answer.len() - 3]).await?;
            Ok(None)
        }
        Behavior::Answers(_) => {
            wire.write(&answer).await?;
            Ok(Some(()))
        }
        Behavior::Refuses => unreachable!("it was refused before it was executed"),
    }
}

/// Sends so many pieces of the response; `None` if it breaks off there.
async fn stream(inner: &Inner, wire: &mut Wire, id: u64, pieces: usize) -> std::io::Result<Option<()>> {
    wire.write(&head(id, "text/event-stream", "Transfer-Encoding: chunked")).await?;
    let body = body(id);
    for piece in body.chunks(body.len().div_ceil(STREAM_PIECES)).take(pieces) {
        wire.write(&[format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()).await?;
        let pause = inner.random.lock().unwrap().millis(0, STREAM_PAUSE);
        drop(timeout(pause, inner.is_reliable.subscribe().wait_for(|is_reliable| *is_reliable)).await);
    }
    if pieces < STREAM_PIECES {
        return Ok(None);
    }
    wire.write(b"0\r\n\r\n").await.map(Some)
}

/// The answer that names an effect.
fn answer(id: u64) -> Vec<u8> {
    let body = body(id);
    [head(id, "text/plain", &format!("Content-Length: {}", body.len())), body].concat()
}

fn head(id: u64, media_type: &str, framing: &str) -> Vec<u8> {
    let own = format!("X-Effect: {id}\r\nX-Twice: a\r\nX-Twice: {id}");
    format!("HTTP/1.1 201 Created\r\nContent-Type: {media_type}\r\n{own}\r\n{framing}\r\n\r\n").into_bytes()
}

fn body(id: u64) -> Vec<u8> {
    let mut body = format!("effect {id}\n").into_bytes();
    if id.is_multiple_of(LARGE_EVERY) {
        body.extend((0..LARGE).map(|place| (place ^ (place >> 8)) as u8));
    }
    body
}
