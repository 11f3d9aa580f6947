//! Realistic clients: they use keys correctly, give up, come back, retry at another proxy, and sometimes send a
//! different request under a used key.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::history::{Answer, AnswerKind, Op, ScopedKey, TargetRoute};
use crate::seeded_random::SeededRandom;
use harness::Response;
use harness::client::Client;
use harness::rabbitmq::{Queue, message};

/// The number of recent keys that clients reuse.
const RECENT: usize = 40;
/// The number of consecutive tries of one operation, and of the request for each key at the
/// end. The store may be slow then.
const TRIES: usize = 8;
/// Longer than any answer takes unless a request is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);
/// Per mille of operations that another request with the key accompanies while they run.
const ACCOMPANIED_PER_MILLE: usize = 250;
/// Per mille of clients that give up after an unknown outcome; the others ask again.
const GIVE_UP_PER_MILLE: usize = 750;
/// Longer than the deliveries take that are waiting when the faults are over.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(15);
/// The maximum number of keys of messages. Killed proxies leave up to one in five unknown, with two copies each on
/// average, and the queue stands still once 1,000 messages are.
const MESSAGES_MAX: usize = 1_500;
/// The maximum number of copies of a message.
const COPIES_MAX: usize = 3;
/// A longer body is remembered as its digest.
const DIGESTED: usize = 1_000;
/// The field that names the caller of a message.
pub const TENANT: &str = "X-Tenant";
const CALLERS: [&str; 3] = ["ann", "bob", "cem"];

/// The state that all clients share.
pub struct ClientPool {
    /// Each proxy's current address.
    pub proxies: Arc<RwLock<Vec<SocketAddr>>>,
    /// The routes of new keys, each as often as it is chosen.
    routes: Vec<TargetRoute>,
    begun: Instant,
    ops: Mutex<Vec<Op>>,
    number: AtomicU64,
    stopped: AtomicBool,
    recent: Mutex<VecDeque<RememberedKey>>,
}

/// A key that a client remembers.
#[derive(Clone)]
struct RememberedKey {
    name: ScopedKey,
    route: TargetRoute,
    acknowledged: bool,
}

impl ClientPool {
    pub fn new(proxies: Arc<RwLock<Vec<SocketAddr>>>, routes: &[TargetRoute], begun: Instant) -> Arc<Self> {
        Arc::new(Self {
            proxies,
            routes: routes.to_vec(),
            begun,
            ops: Mutex::default(),
            number: AtomicU64::new(1),
            stopped: AtomicBool::new(false),
            recent: Mutex::default(),
        })
    }

    /// Starts this many clients, which run until [`Self::stop`].
    pub fn start(self: &Arc<Self>, clients: usize, random: &mut SeededRandom) -> JoinSet<()> {
        let mut running = JoinSet::new();
        for _ in 0..clients {
            let (clients_pool, random) = (Arc::clone(self), random.split());
            running.spawn(async move { clients_pool.run_client(random).await });
        }
        running
    }

    /// Starts a publisher of messages, which runs until [`Self::stop`] at the latest.
    #[allow(dead_code, reason = "tests/faults needs it")]
    pub fn publish(self: &Arc<Self>, queue: Arc<Queue>, mut random: SeededRandom, running: &mut JoinSet<()>) {
        let clients_pool = Arc::clone(self);
        running.spawn(async move {
            for _ in 0..MESSAGES_MAX {
                if clients_pool.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let key = format!("m-{}", clients_pool.number.fetch_add(1, Ordering::Relaxed));
                let name = ScopedKey { caller: (*random.one_of(&CALLERS)).to_owned(), key };
                for _ in 0..=random.below(COPIES_MAX) {
                    clients_pool.publish_one(&queue, name.clone()).await;
                }
                sleep(random.millis(600, 1_400)).await;
            }
        });
    }

    /// The keys of all messages, and of all batches that were accepted.
    #[allow(dead_code, reason = "tests/faults needs it")]
    pub fn owed(&self) -> BTreeSet<ScopedKey> {
        let is_owed = |op: &&Op| match op.route {
            TargetRoute::Batched => op.kind() == Some(AnswerKind::Accepted),
            route => route == TargetRoute::Messages,
        };
        self.ops.lock().unwrap().iter().filter(is_owed).map(|op| op.name.clone()).collect()
    }

    /// Publishes a copy of the key's message, and waits for the broker's confirmation.
    async fn publish_one(&self, queue: &Queue, name: ScopedKey) {
        let (id, body) = (self.number.fetch_add(1, Ordering::Relaxed), message_body(&name));
        let message = message(&name.key).header("Authorization", &name.caller).header(TENANT, &name.caller);
        let message = message.header("X-Op", &id.to_string()).body(body.clone());
        let invoked = self.begun.elapsed();
        queue.publish([message]).await;
        let returned = self.begun.elapsed();
        let (answer, route) = (Some(Answer::accepted()), TargetRoute::Messages);
        let op = Op { id, name, route, body, proxy: 0, invoked, returned, last: false, answer };
        self.ops.lock().unwrap().push(op);
    }

    /// Stops each client after its current request.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// All requests, which the pool keeps no longer.
    pub fn take_ops(&self) -> Vec<Op> {
        std::mem::take(&mut *self.ops.lock().unwrap())
    }

    /// Sends every key once more, with the key's own request.
    pub async fn repeat_every_key(self: &Arc<Self>, random: &mut SeededRandom) {
        let mut names: Vec<_> = self.ops.lock().unwrap().iter().map(|op| (op.name.clone(), op.route)).collect();
        names.sort();
        names.dedup();
        let names = Arc::new(Mutex::new(names));
        let mut running = JoinSet::new();
        for _ in 0..8 {
            let (clients_pool, names, mut random) = (Arc::clone(self), Arc::clone(&names), random.split());
            running.spawn(async move {
                loop {
                    let Some((name, route)) = names.lock().unwrap().pop() else { return };
                    let known = RememberedKey { name, route, acknowledged: false };
                    for _ in 0..TRIES {
                        let body = match route {
                            TargetRoute::Messages => message_body(&known.name),
                            _ => right_body(&known.name),
                        };
                        let kind = clients_pool.send(&known, body, true, ANSWER_TIMEOUT, &mut random).await;
                        match kind {
                            // With `Retry-After: 1`.
                            Some(AnswerKind::Rejected) => sleep(random.millis(1_000, 1_500)).await,
                            Some(AnswerKind::Accepted) => {}
                            _ => break,
                        }
                    }
                }
            });
        }
        while let Some(ended) = running.join_next().await {
            ended.unwrap();
        }
    }

    async fn run_client(&self, mut random: SeededRandom) {
        while !self.stopped.load(Ordering::SeqCst) {
            let known = self.choose_key(&mut random);
            if known.acknowledged && random.chance(60) {
                self.send(&known, wrong_body(&known.name), false, ANSWER_TIMEOUT, &mut random).await;
                continue;
            }
            match random.chance(ACCOMPANIED_PER_MILLE) {
                true => self.run_accompanied(&known, &mut random).await,
                false => self.run_operation(&known, &mut random).await,
            }
            sleep(random.millis(1, 30)).await;
        }
    }

    /// Returns a key in use or a new one.
    fn choose_key(&self, random: &mut SeededRandom) -> RememberedKey {
        let mut recent = self.recent.lock().unwrap();
        if !recent.is_empty() && random.chance(400) {
            return recent[random.below(recent.len())].clone();
        }
        let key = format!("k-{}", self.number.fetch_add(1, Ordering::Relaxed));
        // The same key of another caller is another key.
        let reused = recent.back().filter(|_| random.chance(100)).map(|known| (known.name.key.clone(), known.route));
        let (key, route) = reused.unwrap_or_else(|| (key, *random.one_of(&self.routes)));
        let name = ScopedKey { caller: (*random.one_of(&CALLERS)).to_owned(), key };
        let known = RememberedKey { name, route, acknowledged: false };
        recent.push_back(known.clone());
        if recent.len() > RECENT {
            recent.pop_front();
        }
        known
    }

    /// Runs the operation, and meanwhile sends its request once more, or a different one under its key.
    async fn run_accompanied(&self, known: &RememberedKey, random: &mut SeededRandom) {
        let mut beside = random.split();
        let body = if beside.chance(100) { wrong_body(&known.name) } else { right_body(&known.name) };
        let accompany = async {
            sleep(beside.millis(3, 60)).await;
            self.send(known, body, false, ANSWER_TIMEOUT, &mut beside).await
        };
        tokio::join!(self.run_operation(known, random), accompany);
    }

    /// Retries until the outcome is known, as a client library does.
    async fn run_operation(&self, known: &RememberedKey, random: &mut SeededRandom) {
        let name = &known.name;
        for attempt in 1..=TRIES {
            // Some clients do not wait for the answer, and ask again at another proxy.
            let limit = match random.below(1_000) {
                0..20 => random.millis(5, 200),
                20..500 => random.millis(800, 1_500),
                _ => ANSWER_TIMEOUT,
            };
            let kind = self.send(known, right_body(name), false, limit, random).await;
            match kind {
                Some(AnswerKind::First | AnswerKind::Replay) => {
                    let mut recent = self.recent.lock().unwrap();
                    recent.iter_mut().filter(|known| known.name == *name).for_each(|known| known.acknowledged = true);
                    return;
                }
                Some(AnswerKind::Broken | AnswerKind::Unknown) if random.chance(GIVE_UP_PER_MILLE) => {
                    self.recent.lock().unwrap().retain(|known| known.name != *name || known.acknowledged);
                    return;
                }
                // The different request came first.
                Some(AnswerKind::Misuse) => return self.recent.lock().unwrap().retain(|known| known.name != *name),
                // Another client's request is running, or the delivery comes later.
                Some(AnswerKind::InFlight | AnswerKind::Accepted) if random.chance(500) => return,
                _ if self.stopped.load(Ordering::SeqCst) => return,
                // With `Retry-After: 1`.
                Some(AnswerKind::Rejected) => sleep(random.millis(1_000, 1_500)).await,
                _ => sleep(random.millis(100, 300) * u32::try_from(attempt).unwrap()).await,
            }
        }
    }

    /// Sends one request to a random proxy. At the end, it waits for the delivery of an accepted one.
    async fn send(
        &self,
        known: &RememberedKey,
        body: String,
        last: bool,
        limit: Duration,
        random: &mut SeededRandom,
    ) -> Option<AnswerKind> {
        if known.route == TargetRoute::Batched {
            return self.send_batch(known, body, last, limit, random).await;
        }
        let id = self.number.fetch_add(1, Ordering::Relaxed);
        let (proxy, address) = self.choose_proxy(random);
        let RememberedKey { name, route, .. } = known.clone();
        let bare = || Client { address }.post(route.path());
        let keyed = || bare().key(&name.key).field("Authorization", &name.caller).body(body.clone());
        let request = match route {
            TargetRoute::Preferred => keyed().field("Prefer", "respond-async"),
            // The fields and the type of the key's message.
            TargetRoute::Messages => keyed().field(TENANT, &name.caller).field("Content-Type", "application/json"),
            TargetRoute::Placed => {
                let body = json!({ "op": id.to_string(), "caller": name.caller, "key": name.key, "body": body });
                bare().anonymous().json(&body.to_string())
            }
            TargetRoute::Refreshed => {
                let form = format!("refresh_token={}.{}&body={body}", name.caller, name.key);
                bare().anonymous().field("Content-Type", "application/x-www-form-urlencoded").body(form)
            }
            _ => keyed(),
        };
        let request = request.field("X-Op", &id.to_string()).field("TE", "trailers");
        let invoked = self.begun.elapsed();
        let mut answer = timeout(limit, request.try_send()).await.ok().and_then(Result::ok).map(answer);
        let returned = self.begun.elapsed();
        if let Some(accepted) = answer.as_mut().filter(|answer| last && answer.kind() == AnswerKind::Accepted) {
            accepted.operation = delivered(address, &name.caller, accepted).await;
        }
        let op = Op { id, name, route, body, proxy, invoked, returned, last, answer };
        let kind = op.kind();
        self.ops.lock().unwrap().push(op);
        kind
    }

    /// Sends the key's request in a batch, mostly with other keys of the caller, as a retry groups them anew. A refusal
    /// of several says nothing of any.
    async fn send_batch(
        &self,
        known: &RememberedKey,
        body: String,
        last: bool,
        limit: Duration,
        random: &mut SeededRandom,
    ) -> Option<AnswerKind> {
        let mut requests = vec![(known.name.clone(), body)];
        if !last && requests[0].1 == right_body(&known.name) {
            let recent = self.recent.lock().unwrap();
            let is_beside = |other: &&RememberedKey| {
                other.route == known.route && other.name.caller == known.name.caller && other.name != known.name
            };
            let beside: Vec<_> = recent.iter().filter(is_beside).map(|other| other.name.clone()).collect();
            let begin = random.below(beside.len() + 1);
            requests.extend(beside.into_iter().skip(begin).take(2).map(|name| (name.clone(), right_body(&name))));
        }
        let (proxy, address) = self.choose_proxy(random);
        let first = self.number.fetch_add(requests.len() as u64, Ordering::Relaxed);
        let requests: Vec<_> = (first..).zip(requests).collect();
        let element = |(id, (name, body)): &(u64, (ScopedKey, String))| json!({ "op": id.to_string(), "key": name.key, "body": body });
        let batch = Value::from_iter(requests.iter().map(element)).to_string();
        let request =
            Client { address }.post(known.route.path()).field("Authorization", &known.name.caller).json(&batch);
        let invoked = self.begun.elapsed();
        let answer = timeout(limit, request.try_send()).await.ok().and_then(Result::ok).map(answer);
        let returned = self.begun.elapsed();
        let is_of_each = |answer: &Answer| requests.len() == 1 || answer.kind() == AnswerKind::Accepted;
        let answer = answer.filter(is_of_each);
        let kind = answer.as_ref().map(Answer::kind);
        let (route, answer) = (known.route, || answer.clone());
        self.ops.lock().unwrap().extend(requests.into_iter().map(|(id, (name, body))| {
            let answer = answer();
            Op { id, name, route, body, proxy, invoked, returned, last, answer }
        }));
        kind
    }

    fn choose_proxy(&self, random: &mut SeededRandom) -> (usize, SocketAddr) {
        let proxies = self.proxies.read().unwrap();
        let proxy = random.below(proxies.len());
        (proxy, proxies[proxy])
    }
}

/// The last state of an accepted request's operation, once its delivery has ended or [`DELIVERY_TIMEOUT`] is over.
async fn delivered(address: SocketAddr, caller: &str, accepted: &Answer) -> Option<String> {
    let (_, location) = accepted.fields.iter().find(|(name, _)| name == "location")?;
    let question = Client { address }.get(location).field("Authorization", caller);
    let asked = Instant::now();
    loop {
        let state = async {
            let answer = timeout(ANSWER_TIMEOUT, question.try_send()).await.ok()?.ok()?;
            let operation: Value = serde_json::from_slice(&answer.body).ok()?;
            Some(operation["state"].as_str()?.to_owned())
        };
        let state = state.await;
        let is_over = !matches!(state.as_deref(), None | Some("queued" | "in_flight"));
        if is_over || asked.elapsed() > DELIVERY_TIMEOUT {
            return state;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// The key's own request body. It has no space in it, for the service's log.
fn right_body(name: &ScopedKey) -> String {
    format!("amount-of-{}", name.key)
}

/// The body of the key's message, which is JSON.
fn message_body(name: &ScopedKey) -> String {
    format!("\"{}\"", right_body(name))
}

/// A different request body.
fn wrong_body(name: &ScopedKey) -> String {
    format!("twice-{}", right_body(name))
}

fn digest(body: &[u8]) -> String {
    format!("{} bytes, {}", body.len(), HEXLOWER.encode(&Sha256::digest(body)))
}

fn answer(response: Response) -> Answer {
    let response = response.seen_as_whole();
    let (status, slug) = response.outcome();
    let text = response.text();
    let own = ["oncegate-status", "idempotent-replayed"];
    let fields = response.comparable().fields.into_iter().filter(|(name, _)| !own.contains(&&**name)).collect();
    Answer {
        status,
        slug,
        oncegate_status: response.oncegate_status().unwrap_or_default().to_owned(),
        replayed: response.is_replay(),
        effect: text.lines().next().and_then(|line| line.strip_prefix("effect ")?.parse().ok()),
        operation: None,
        body: if text.len() > DIGESTED { digest(&response.body) } else { text },
        fields,
    }
}
