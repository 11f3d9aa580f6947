//! Clients as they are: they use keys as they should, give up, come back, ask elsewhere, and now and then mistake a key.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::dice::Dice;
use crate::harness::Response;
use crate::harness::client::Client;
use crate::history::{Answer, Meaning, Name, Op};

/// How many keys clients come back to.
const RECENT: usize = 40;
/// How often one operation is tried in a row.
const TRIES: usize = 8;
/// How often at the end, where the store is slow; each time counts.
const TRIES_AT_THE_END: usize = 3;
/// Longer than anything here takes but what is stuck.
const PATIENCE: Duration = Duration::from_secs(6);
/// How many of a thousand who are told that nobody knows go and find out elsewhere; the others ask again.
const GIVES_UP: usize = 750;
const CALLERS: [&str; 3] = ["ann", "bob", "cem"];

/// What all clients share.
pub struct Crowd {
    /// Where each proxy listens at the moment.
    pub proxies: Arc<RwLock<Vec<SocketAddr>>>,
    begun: Instant,
    ops: Mutex<Vec<Op>>,
    number: AtomicU64,
    stopped: AtomicBool,
    recent: Mutex<VecDeque<Known>>,
}

/// A key that a client remembers.
#[derive(Clone)]
struct Known {
    name: Name,
    acknowledged: bool,
}

impl Crowd {
    pub fn new(proxies: Arc<RwLock<Vec<SocketAddr>>>, begun: Instant) -> Arc<Self> {
        Arc::new(Self {
            proxies,
            begun,
            ops: Mutex::default(),
            number: AtomicU64::new(1),
            stopped: AtomicBool::new(false),
            recent: Mutex::default(),
        })
    }

    /// So many clients at once, until they are stopped.
    pub fn start(self: &Arc<Self>, clients: usize, dice: &mut Dice) -> JoinSet<()> {
        let mut running = JoinSet::new();
        for _ in 0..clients {
            let (crowd, dice) = (Arc::clone(self), dice.split());
            running.spawn(async move { crowd.client(dice).await });
        }
        running
    }

    /// Each client ends with the request that it is at.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    pub fn ops(&self) -> Vec<Op> {
        self.ops.lock().unwrap().clone()
    }

    /// Asks for every key once more, with the request that it was made for.
    pub async fn ask_all_again(self: &Arc<Self>, dice: &mut Dice) {
        let mut names: Vec<_> = self.ops.lock().unwrap().iter().map(|op| op.name.clone()).collect();
        names.sort();
        names.dedup();
        let names = Arc::new(Mutex::new(names));
        let mut running = JoinSet::new();
        for _ in 0..8 {
            let (crowd, names, mut dice) = (Arc::clone(self), Arc::clone(&names), dice.split());
            running.spawn(async move {
                loop {
                    let Some(name) = names.lock().unwrap().pop() else { return };
                    for _ in 0..TRIES_AT_THE_END {
                        let told = crowd.ask(name.clone(), right(&name), true, PATIENCE, &mut dice).await;
                        if told != Some(Meaning::Rejected) {
                            break;
                        }
                    }
                }
            });
        }
        while let Some(ended) = running.join_next().await {
            ended.unwrap();
        }
    }

    async fn client(&self, mut dice: Dice) {
        while !self.stopped.load(Ordering::SeqCst) {
            let known = self.choose(&mut dice);
            if known.acknowledged && dice.chance(60) {
                self.ask(known.name.clone(), wrong(&known.name), false, PATIENCE, &mut dice).await;
                continue;
            }
            self.operate(known.name, &mut dice).await;
            sleep(dice.millis(1, 30)).await;
        }
    }

    /// A key that somebody has used, or a new one.
    fn choose(&self, dice: &mut Dice) -> Known {
        let mut recent = self.recent.lock().unwrap();
        if !recent.is_empty() && dice.chance(400) {
            return recent[dice.below(recent.len())].clone();
        }
        let key = format!("k-{}", self.number.fetch_add(1, Ordering::Relaxed));
        // The same key of another caller is another key.
        let reused = recent.back().filter(|_| dice.chance(100)).map(|known| known.name.key.clone());
        let name = Name { caller: (*dice.one_of(&CALLERS)).to_owned(), key: reused.unwrap_or(key) };
        let known = Known { name, acknowledged: false };
        recent.push_back(known.clone());
        if recent.len() > RECENT {
            recent.pop_front();
        }
        known
    }

    /// Tries until it is known what came of it, as a client library does.
    async fn operate(&self, name: Name, dice: &mut Dice) {
        for attempt in 1..=TRIES {
            // Some do not wait for the answer, and ask again elsewhere.
            let patience = match dice.below(1_000) {
                0..20 => dice.millis(5, 200),
                20..500 => dice.millis(800, 1_500),
                _ => PATIENCE,
            };
            let meaning = self.ask(name.clone(), right(&name), false, patience, dice).await;
            match meaning {
                Some(Meaning::First | Meaning::Replay) => {
                    let mut recent = self.recent.lock().unwrap();
                    recent.iter_mut().filter(|known| known.name == name).for_each(|known| known.acknowledged = true);
                    return;
                }
                Some(Meaning::Broken | Meaning::Unknown) if dice.chance(GIVES_UP) => {
                    self.recent.lock().unwrap().retain(|known| known.name != name || known.acknowledged);
                    return;
                }
                // Others are at it.
                Some(Meaning::InFlight) if dice.chance(500) => return,
                _ if self.stopped.load(Ordering::SeqCst) => return,
                // With `Retry-After: 1`.
                Some(Meaning::Rejected) => sleep(dice.millis(1_000, 1_500)).await,
                _ => sleep(dice.millis(100, 300) * u32::try_from(attempt).unwrap()).await,
            }
        }
    }

    /// One request at any proxy.
    async fn ask(&self, name: Name, body: String, last: bool, patience: Duration, dice: &mut Dice) -> Option<Meaning> {
        let id = self.number.fetch_add(1, Ordering::Relaxed);
        let (proxy, address) = {
            let proxies = self.proxies.read().unwrap();
            let proxy = dice.below(proxies.len());
            (proxy, proxies[proxy])
        };
        let request = Client { address }.post("/pay").key(&name.key).field("Authorization", &name.caller);
        let request = request.field("X-Op", &id.to_string()).body(body.clone());
        let invoked = self.begun.elapsed();
        let answer = timeout(patience, request.try_send()).await.ok().and_then(Result::ok).map(answer);
        let returned = self.begun.elapsed();
        let op = Op { id, name, body, proxy, invoked, returned, last, answer };
        let meaning = op.meaning();
        self.ops.lock().unwrap().push(op);
        meaning
    }
}

/// What this key stands for. It has no space in it, for the service's log.
fn right(name: &Name) -> String {
    format!("amount-of-{}", name.key)
}

/// Something else.
fn wrong(name: &Name) -> String {
    format!("twice-{}", right(name))
}

fn answer(response: Response) -> Answer {
    let (status, slug) = response.outcome();
    let text = response.text();
    let own = ["oncegate-status", "idempotent-replayed"];
    let fields = response.comparable().fields.into_iter().filter(|(name, _)| !own.contains(&&**name)).collect();
    Answer {
        status,
        slug,
        told: response.told().unwrap_or_default().to_owned(),
        replayed: response.is_replay(),
        effect: text.strip_prefix("effect ").and_then(|id| id.trim().parse().ok()),
        body: text,
        fields,
    }
}
