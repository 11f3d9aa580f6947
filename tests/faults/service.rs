//! The service behind the proxies: it writes each effect down, on the disk, before it answers, and is no better than
//! services are. It lets people wait, refuses, breaks off, and answers too late.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::dice::Dice;
use crate::harness::wire::{self, Fields, Framing, Head, Wire};
use crate::history::{Attempt, Effect, Name};

/// Longer than any route here waits.
const TOO_LONG: Duration = Duration::from_secs(4);

pub struct Service {
    pub address: SocketAddr,
    inner: Arc<Inner>,
    folder: TempDir,
}

struct Inner {
    log: Mutex<Log>,
    dice: Mutex<Dice>,
    /// Nothing goes wrong here any more.
    calm: watch::Sender<bool>,
    begun: Instant,
}

struct Log {
    file: File,
    effects: u64,
}

/// How a request is dealt with.
enum Mood {
    /// 503, and nothing was done.
    Refuses,
    /// Executes, and takes so long to say so.
    Answers(Duration),
    /// Executes, and closes the connection instead of an answer.
    SaysNothing,
    /// Executes, and closes the connection within the answer.
    BreaksOff,
}

impl Service {
    /// All times in its log are since `begun`.
    pub async fn start(dice: Dice, begun: Instant) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = File::options().create_new(true).append(true).open(folder.path().join("effects")).unwrap();
        let log = Mutex::new(Log { file, effects: 0 });
        let inner = Arc::new(Inner { log, dice: Mutex::new(dice), calm: watch::Sender::new(false), begun });
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

    /// From now on it does what it should, at once, also for those who wait already.
    pub fn calm_down(&self) {
        self.inner.calm.send_replace(true);
    }

    /// What it has done, as it stands on the disk.
    pub fn effects(&self) -> Vec<Effect> {
        let text = std::fs::read_to_string(self.folder.path().join("effects")).unwrap();
        text.lines().map(parse).collect()
    }
}

impl Inner {
    fn mood(&self) -> Mood {
        let mut dice = self.dice.lock().unwrap();
        if *self.calm.borrow() {
            return Mood::Answers(Duration::ZERO);
        }
        match dice.below(1_000) {
            0..15 => Mood::Refuses,
            15..20 => Mood::SaysNothing,
            20..25 => Mood::BreaksOff,
            25..27 => Mood::Answers(TOO_LONG),
            // Long enough for everything to happen meanwhile.
            27..120 => Mood::Answers(dice.millis(150, 1_300)),
            _ => Mood::Answers(dice.millis(0, 20)),
        }
    }

    /// On the disk when this returns.
    fn execute(&self, head: &Head, body: &str) -> u64 {
        let field = |name| head.all(name).next().unwrap_or_else(|| panic!("{name} is missing: {head:?}")).to_owned();
        let reservation = field("oncegate-reservation");
        let mut log = self.log.lock().unwrap();
        log.effects += 1;
        let id = log.effects;
        let at = self.begun.elapsed().as_micros();
        let (op, caller, key) = (field("x-op"), field("authorization"), field("idempotency-key"));
        let (record, number) = (&reservation[..64], field("oncegate-attempt"));
        let line = format!("{id} {op} {caller} {key} {body} {at} {record} {number}\n");
        log.file.write_all(line.as_bytes()).unwrap();
        log.file.sync_data().unwrap();
        id
    }
}

fn parse(line: &str) -> Effect {
    let words: Vec<_> = line.split(' ').collect();
    let [id, op, caller, key, body, at, record, number] = words[..] else { panic!("half a line: {line:?}") };
    Effect {
        id: id.parse().unwrap(),
        op: op.parse().unwrap(),
        name: Name { caller: caller.to_owned(), key: key.to_owned() },
        body: body.to_owned(),
        at: Duration::from_micros(at.parse().unwrap()),
        attempt: Attempt { record: record.to_owned(), number: number.parse().unwrap() },
    }
}

async fn serve(inner: Arc<Inner>, stream: TcpStream) {
    let mut wire = Wire::new(stream);
    while let Ok(Some(())) = exchange(&inner, &mut wire).await {}
}

/// One request and its answer; `None` where the connection ends with it.
async fn exchange(inner: &Arc<Inner>, wire: &mut Wire) -> std::io::Result<Option<()>> {
    let Some(head) = wire.head().await? else { return Ok(None) };
    let (mut framing, mut body) = (head.framing(Framing::Ended), Vec::new());
    while let Some(piece) = wire.piece(&mut framing, &mut Fields::new()).await? {
        body.extend(piece);
    }
    let mood = inner.mood();
    if matches!(mood, Mood::Refuses) {
        wire.write(b"HTTP/1.1 503 Not now\r\nContent-Length: 7\r\n\r\nnot now").await?;
        return Ok(Some(()));
    }
    let (writing, body) = (Arc::clone(inner), wire::text(&body));
    let id = tokio::task::spawn_blocking(move || writing.execute(&head, &body)).await.unwrap();
    let body = format!("effect {id}\n");
    let answer = format!(
        "HTTP/1.1 201 Created\r\nContent-Type: text/plain\r\nX-Effect: {id}\r\nX-Twice: a\r\nX-Twice: {id}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    match mood {
        Mood::SaysNothing => Ok(None),
        Mood::BreaksOff => {
            wire.write(&answer.as_bytes()[..answer.len() - 3]).await?;
            Ok(None)
        }
        Mood::Answers(after) => {
            // Or until it is calm.
            drop(timeout(after, inner.calm.subscribe().wait_for(|calm| *calm)).await);
            wire.write(answer.as_bytes()).await?;
            Ok(Some(()))
        }
        Mood::Refuses => unreachable!("it was refused before it was executed"),
    }
}
