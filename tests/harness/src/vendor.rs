//! Another's API that honours keys as its documents say: a vendor. It executes a key once within its window, and
//! replays what it has answered. It loses answers, refuses and is slow as a test tells it.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::wire::{Fields, Framing, Head, Wire};

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VendorFault {
    /// Nothing: it executes and answers.
    Nothing,
    /// The connection ends before anything is executed.
    Refuses,
    /// It executes, and the connection ends without an answer.
    LosesAnswer,
    /// It executes, and its gateway answers 502.
    LosesAnswerAtGateway,
    /// 429, before anything is executed.
    Limits,
    /// 503 with a `Retry-After` of an hour, before anything is executed.
    AsksForAnHour,
    /// It executes after this time.
    Delays(Duration),
    /// It executes, and answers after this time.
    Hangs(Duration),
}

/// The field of the key, and the time for which it is kept.
#[derive(Clone, Copy, Debug)]
pub struct VendorRules {
    pub field: &'static str,
    pub window: Duration,
}

pub struct VendorDouble {
    pub address: SocketAddr,
    inner: Arc<Inner>,
}

struct Inner {
    rules: VendorRules,
    keys: Mutex<HashMap<String, KeptKey>>,
    charges: Mutex<Vec<String>>,
    heads: Mutex<Vec<Head>>,
    faults: Mutex<VecDeque<VendorFault>>,
}

struct KeptKey {
    body: Vec<u8>,
    /// `None` while it runs.
    answer: Option<String>,
    since: Instant,
}

/// The state of a key.
enum KeyState {
    New,
    Running,
    Answered(String),
    OfAnother,
}

impl VendorDouble {
    pub async fn start(rules: VendorRules) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (keys, charges, heads, faults) = (Mutex::default(), Mutex::default(), Mutex::default(), Mutex::default());
        let inner = Arc::new(Inner { rules, keys, charges, heads, faults });
        let vendor = Self { address: listener.local_addr().unwrap(), inner: Arc::clone(&inner) };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(Arc::clone(&inner), stream));
            }
        });
        vendor
    }

    /// Sets what goes wrong with the next requests, one after the other.
    pub fn then(&self, faults: impl IntoIterator<Item = VendorFault>) {
        self.inner.faults.lock().unwrap().extend(faults);
    }

    /// The bodies that were executed, in order.
    pub fn charges(&self) -> Vec<String> {
        self.inner.charges.lock().unwrap().clone()
    }

    /// The heads of all requests, in order.
    pub fn heads(&self) -> Vec<Head> {
        self.inner.heads.lock().unwrap().clone()
    }
}

async fn serve(inner: Arc<Inner>, stream: TcpStream) {
    let mut wire = Wire::new(stream);
    while let Ok(Some(())) = exchange(&inner, &mut wire).await {}
}

/// Serves one request; `None` if the connection ends with it.
async fn exchange(inner: &Inner, wire: &mut Wire) -> std::io::Result<Option<()>> {
    let Some(head) = wire.head().await? else { return Ok(None) };
    let (mut framing, mut body) = (head.framing(Framing::Ended), Vec::new());
    while let Some(piece) = wire.piece(&mut framing, &mut Fields::new()).await? {
        body.extend(piece);
    }
    inner.heads.lock().unwrap().push(head.clone());
    let fault = inner.faults.lock().unwrap().pop_front();
    if head.start.starts_with("GET ") {
        return wire.write(&inner.search(&head)).await.map(Some);
    }
    match fault {
        Some(VendorFault::Refuses) => return Ok(None),
        Some(VendorFault::AsksForAnHour) => {
            return wire.write(&answer("503 Service Unavailable", "Retry-After: 3600\r\n", "{}")).await.map(Some);
        }
        Some(VendorFault::Limits) => return wire.write(&answer("429 Too Many Requests", "", "{}")).await.map(Some),
        _ => {}
    }
    let key = head.all(inner.rules.field).next().map(str::to_owned);
    let answered = match key.as_deref().map_or(KeyState::New, |key| inner.look_up(key, &body)) {
        KeyState::New => {
            if let Some(VendorFault::Delays(time)) = fault {
                sleep(time).await;
            }
            inner.charge(key, &body)
        }
        KeyState::Running => answer("409 Conflict", "", r#"{"error":{"code":"idempotency_key_in_use"}}"#),
        KeyState::Answered(body) => answer("201 Created", "Idempotent-Replayed: true\r\n", &body),
        KeyState::OfAnother => answer("400 Bad Request", "", r#"{"error":{"type":"idempotency_error"}}"#),
    };
    match fault {
        Some(VendorFault::LosesAnswer) => Ok(None),
        Some(VendorFault::Hangs(time)) => {
            sleep(time).await;
            wire.write(&answered).await.map(Some)
        }
        Some(VendorFault::LosesAnswerAtGateway) => wire.write(&answer("502 Bad Gateway", "", "{}")).await.map(Some),
        _ => wire.write(&answered).await.map(Some),
    }
}

impl Inner {
    /// The key's state before this request. A new key runs from now on.
    fn look_up(&self, key: &str, body: &[u8]) -> KeyState {
        let mut keys = self.keys.lock().unwrap();
        match keys.get(key).filter(|kept| kept.since.elapsed() < self.rules.window) {
            Some(kept) if kept.body != body => KeyState::OfAnother,
            Some(KeptKey { answer: Some(answer), .. }) => KeyState::Answered(answer.clone()),
            Some(_) => KeyState::Running,
            None => {
                keys.insert(key.to_owned(), KeptKey { body: body.to_vec(), answer: None, since: Instant::now() });
                KeyState::New
            }
        }
    }

    fn charge(&self, key: Option<String>, body: &[u8]) -> Vec<u8> {
        let number = {
            let mut charges = self.charges.lock().unwrap();
            charges.push(String::from_utf8(body.to_vec()).unwrap());
            charges.len()
        };
        let text = format!("{{\"id\":\"ch_{number}\"}}");
        if let Some(key) = key {
            self.keys.lock().unwrap().get_mut(&key).expect("it runs").answer = Some(text.clone());
        }
        answer("201 Created", "", &text)
    }

    /// The answer to `GET /…?order=…`: the charge of that order.
    fn search(&self, head: &Head) -> Vec<u8> {
        let wanted =
            head.start.split(' ').nth(1).and_then(|target| target.split_once("order=")).map(|(_, order)| order);
        let charges = self.charges.lock().unwrap();
        let found =
            charges.iter().position(|charge| wanted.is_some_and(|order| charge.contains(&format!("\"{order}\""))));
        match found {
            Some(index) => answer("200 OK", "", &format!("{{\"id\":\"ch_{}\"}}", index + 1)),
            None => answer("404 Not Found", "", "{}"),
        }
    }
}

fn answer(status: &str, fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{fields}Content-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}
