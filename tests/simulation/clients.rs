//! The simulated clients: they use keys correctly, give up, come back, retry at another proxy, and sometimes send a
//! different request under a used key.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::history::{Answer, AnswerKind, Op, ScopedKey, TargetRoute};
use crate::hosts::elapsed;
use crate::network::{Caller, Network, Place};
use crate::seeded_random::SeededRandom;
use crate::trace;

/// The number of recent keys that clients reuse.
const RECENT: usize = 6;
/// The number of consecutive tries of one operation.
const TRIES: usize = 6;
/// The number of tries at the end, where each proxy may have to find its store again.
const TRIES_AT_THE_END: usize = 3;
/// Longer than any answer takes unless a request is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Per mille of clients that give up after an unknown outcome.
const GIVE_UP_PER_MILLE: usize = 600;
const CALLERS: [&str; 2] = ["ann", "bob"];
/// The routes of new keys, each as often as it is chosen.
const ROUTES: [TargetRoute; 4] = [TargetRoute::Pay, TargetRoute::Pay, TargetRoute::Pay, TargetRoute::Batched];

/// The clients. Cheap to clone.
#[derive(Clone)]
pub struct Clients(Arc<ClientsState>);

struct ClientsState {
    network: Network,
    proxies: usize,
    ops: Mutex<Vec<Op>>,
    number: AtomicU64,
    stopped: AtomicBool,
    running: AtomicUsize,
    recent: Mutex<VecDeque<RememberedKey>>,
    streams: Mutex<BTreeMap<StreamEnd, usize>>,
}

/// What became of a response that streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamEnd {
    /// The first client read it to its end.
    Whole,
    /// So did another one, which had joined it.
    Joined,
    /// It broke off.
    Cut,
    /// The client left.
    Left,
}

impl StreamEnd {
    pub const ALL: [Self; 4] = [Self::Whole, Self::Joined, Self::Cut, Self::Left];
}

/// A key that a client remembers.
#[derive(Clone)]
struct RememberedKey {
    name: ScopedKey,
    route: TargetRoute,
    acknowledged: bool,
}

impl Clients {
    pub fn new(network: &Network, proxies: usize) -> Self {
        Self(Arc::new(ClientsState {
            network: network.clone(),
            proxies,
            ops: Mutex::default(),
            number: AtomicU64::new(1),
            stopped: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            recent: Mutex::default(),
            streams: Mutex::default(),
        }))
    }

    /// The task of one client, which runs until [`Self::stop`].
    pub fn run(&self, mut random: SeededRandom) -> impl Future<Output = ()> + Send + use<> {
        let clients = Arc::clone(&self.0);
        clients.running.fetch_add(1, Ordering::SeqCst);
        async move {
            while !clients.stopped.load(Ordering::SeqCst) {
                let known = clients.choose_key(&mut random);
                if known.acknowledged && random.chance(60) {
                    clients.send(&known, wrong_body(&known.name), false, ANSWER_TIMEOUT, &mut random).await;
                    continue;
                }
                clients.run_operation(&known, &mut random).await;
                sleep(random.millis(10, 150)).await;
            }
            clients.running.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Stops each client after its current request.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::SeqCst);
    }

    /// Whether all tasks have ended.
    pub fn have_ended(&self) -> bool {
        self.0.running.load(Ordering::SeqCst) == 0
    }

    pub fn ops(&self) -> Vec<Op> {
        self.0.ops.lock().unwrap().clone()
    }

    /// The number of streams by their end.
    pub fn streams(&self) -> BTreeMap<String, usize> {
        self.0.streams.lock().unwrap().iter().map(|(end, count)| (format!("{end:?}Stream"), *count)).collect()
    }

    /// The task that sends every key once more, with the key's own request.
    pub fn repeat_every_key(&self, mut random: SeededRandom) -> impl Future<Output = ()> + Send + use<> {
        let clients = Arc::clone(&self.0);
        clients.running.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut names: Vec<_> = clients.ops.lock().unwrap().iter().map(|op| (op.name.clone(), op.route)).collect();
            names.sort();
            names.dedup();
            for (name, route) in names {
                let known = RememberedKey { name, route, acknowledged: false };
                for _ in 0..TRIES_AT_THE_END {
                    let kind = clients.send(&known, right_body(&known.name), true, ANSWER_TIMEOUT, &mut random).await;
                    if kind != Some(AnswerKind::Rejected) {
                        break;
                    }
                }
            }
            clients.running.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl ClientsState {
    /// Returns a key in use or a new one.
    fn choose_key(&self, random: &mut SeededRandom) -> RememberedKey {
        let mut recent = self.recent.lock().unwrap();
        if !recent.is_empty() && random.chance(450) {
            return recent[random.below(recent.len())].clone();
        }
        let key = format!("k-{}", self.number.fetch_add(1, Ordering::SeqCst));
        // The same key of another caller is another key.
        let of_pay = recent.back().filter(|known| known.route == TargetRoute::Pay);
        let reused = of_pay.filter(|_| random.chance(150)).map(|known| (known.name.key.clone(), known.route));
        let (key, route) = reused.unwrap_or_else(|| (key, *random.one_of(&ROUTES)));
        let name = ScopedKey { caller: (*random.one_of(&CALLERS)).to_owned(), key };
        let known = RememberedKey { name, route, acknowledged: false };
        recent.push_back(known.clone());
        if recent.len() > RECENT {
            recent.pop_front();
        }
        known
    }

    /// Retries until the outcome is known, as a client library does.
    async fn run_operation(&self, known: &RememberedKey, random: &mut SeededRandom) {
        for attempt in 1..=TRIES {
            // Some clients do not wait for the answer, and ask again at another proxy.
            let limit = match random.below(1_000) {
                0..80 => random.millis(5, 200),
                80..500 => random.millis(400, 1_200),
                _ => ANSWER_TIMEOUT,
            };
            match self.send(known, right_body(&known.name), false, limit, random).await {
                Some(AnswerKind::First | AnswerKind::Replay | AnswerKind::Accepted) => {
                    let mut recent = self.recent.lock().unwrap();
                    recent
                        .iter_mut()
                        .filter(|other| other.name == known.name)
                        .for_each(|other| other.acknowledged = true);
                    return;
                }
                Some(AnswerKind::Broken | AnswerKind::Unknown) if random.chance(GIVE_UP_PER_MILLE) => return,
                _ if self.stopped.load(Ordering::SeqCst) => return,
                _ => sleep(random.millis(50, 200) * u32::try_from(attempt).unwrap()).await,
            }
        }
    }

    /// Sends one request to a random proxy. A batch mostly has other keys of the caller too, as a retry groups them
    /// anew, and a refusal of several says nothing of any.
    async fn send(
        &self,
        known: &RememberedKey,
        body: String,
        last: bool,
        limit: Duration,
        random: &mut SeededRandom,
    ) -> Option<AnswerKind> {
        let RememberedKey { name: ScopedKey { caller, key }, route, .. } = known.clone();
        let mut requests = vec![(known.name.clone(), body)];
        if route == TargetRoute::Batched && !last && requests[0].1 == right_body(&known.name) {
            let recent = self.recent.lock().unwrap();
            let is_beside = |other: &&RememberedKey| {
                other.route == route && other.name.caller == caller && other.name.key != key && random.chance(700)
            };
            let beside = recent.iter().filter(is_beside).map(|other| (other.name.clone(), right_body(&other.name)));
            requests.extend(beside.take(2));
        }
        let id = self.number.fetch_add(requests.len() as u64, Ordering::SeqCst);
        let proxy = random.below(self.proxies);
        let invoked = elapsed();
        let requests: Vec<_> = (id..).zip(requests).collect();
        for (id, (name, body)) in &requests {
            trace::record(format_args!("op {id} to proxy {proxy}: {name} {body}"));
        }
        let request = Request::post(route.path()).header("host", "shop.example").header("authorization", caller);
        let (request, body) = match route {
            TargetRoute::Batched => {
                let element = |(id, (name, body)): &(u64, (ScopedKey, String))| json!({ "op": id.to_string(), "key": name.key, "body": body });
                let batch = Value::from_iter(requests.iter().map(element)).to_string();
                (request.header("content-type", "application/json"), batch)
            }
            _ => (request.header("idempotency-key", key).header("x-op", id), requests[0].1.1.clone()),
        };
        let request = request.header("te", "trailers").body(Full::<Bytes>::from(body)).unwrap();
        let answer = timeout(limit, self.exchange(id, proxy, request)).await.ok().flatten();
        let is_of_each = |answer: &Answer| requests.len() == 1 || answer.kind() == AnswerKind::Accepted;
        let answer = answer.filter(is_of_each);
        let kind = answer.as_ref().map(Answer::kind);
        for (id, (name, body)) in requests {
            let op = Op { id, name, route, body, proxy, invoked, returned: elapsed(), last, answer: answer.clone() };
            trace::record(format_args!("op {id}: {kind:?}, effect {:?}", op.effect()));
            self.ops.lock().unwrap().push(op);
        }
        kind
    }

    /// Returns the whole answer; `None` without one.
    async fn exchange(&self, id: u64, proxy: usize, request: Request<Full<Bytes>>) -> Option<Answer> {
        let stream = self.network.connect(Caller::Client(id), Place::Proxy(proxy)).await.ok()?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.ok()?;
        let exchange = async {
            let (mut head, body) = sender.send_request(request).await.ok()?.into_parts();
            let status = head.headers.get("oncegate-status").cloned().unwrap_or_else(|| HeaderValue::from_static(""));
            let mut stream = ["streaming", "attached"]
                .contains(&status.to_str().unwrap())
                .then(|| OpenStream { streams: &self.streams, end: StreamEnd::Left });
            let read = body.collect().await;
            if let Some(stream) = &mut stream {
                stream.end = match (&read, status == "attached") {
                    (Err(_), _) => StreamEnd::Cut,
                    (Ok(_), true) => StreamEnd::Joined,
                    (Ok(_), false) => StreamEnd::Whole,
                };
            }
            let read = read.ok()?;
            let trailers = read.trailers().cloned().unwrap_or_default();
            let body = String::from_utf8(read.to_bytes().to_vec()).unwrap();
            if stream.is_some() {
                complete_head(&mut head.headers, trailers, body.len());
            }
            Some(read_answer(head.status.as_u16(), &head.headers, body))
        };
        // The client's connection ends with the exchange.
        tokio::select! {
            biased;
            answer = exchange => answer,
            _ = async { drop(connection.await); std::future::pending::<()>().await } => None,
        }
    }
}

/// Counts a stream when it is dropped.
struct OpenStream<'a> {
    streams: &'a Mutex<BTreeMap<StreamEnd, usize>>,
    end: StreamEnd,
}

impl Drop for OpenStream<'_> {
    fn drop(&mut self) {
        *self.streams.lock().unwrap().entry(self.end).or_default() += 1;
    }
}

/// Makes the head of a stream that which the response would have if it had come as a whole. One that was joined is a
/// replay. A stream whose end does not tell its status keeps one that is no documented answer.
fn complete_head(headers: &mut HeaderMap, trailers: HeaderMap, length: usize) {
    let has_joined = headers["oncegate-status"] == "attached";
    for name in ["trailer", "transfer-encoding"] {
        headers.remove(name);
    }
    headers.insert("content-length", length.into());
    headers.extend(trailers);
    if has_joined && ["executed", "unstored"].contains(&headers["oncegate-status"].to_str().unwrap()) {
        headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
        if headers["oncegate-status"] == "executed" {
            headers.insert("oncegate-status", HeaderValue::from_static("replayed"));
        }
    }
}

/// The fields that differ between equal answers, or that the answer has as values of its own.
const OWN_FIELDS: [&str; 5] =
    ["connection", "date", "oncegate-original-date", "oncegate-status", "idempotent-replayed"];

fn read_answer(status: u16, headers: &HeaderMap, body: String) -> Answer {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let is_ours = text("content-type").as_deref() == Some("application/problem+json");
    let slug = match is_ours {
        true => serde_json::from_str::<Value>(&body).unwrap()["code"].as_str().unwrap().to_owned(),
        false => String::new(),
    };
    let fields = headers.iter().filter(|(name, _)| !OWN_FIELDS.contains(&name.as_str()));
    let mut fields: Vec<_> =
        fields.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    fields.sort_by(|(left, _), (right, _)| left.cmp(right));
    Answer {
        status,
        slug,
        oncegate_status: text("oncegate-status").unwrap_or_default(),
        replayed: headers.contains_key("idempotent-replayed"),
        effect: body.lines().next().and_then(|line| line.strip_prefix("effect ")?.parse().ok()),
        operation: None,
        body,
        fields,
    }
}

/// The key's own request body.
fn right_body(name: &ScopedKey) -> String {
    format!("amount-of-{}", name.key)
}

/// A different request body.
fn wrong_body(name: &ScopedKey) -> String {
    format!("twice-{}", right_body(name))
}
