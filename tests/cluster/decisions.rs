//! Operators who decide keys with an unknown outcome during the load. Each decision changes the key on a worker and the
//! audit log on the coordinator, so it is a two-phase commit.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use harness::operator::{Operator, not_executed};
use harness::postgres::TestDatabase;
use harness::{Client, Proxy, Request, Response, Upstream};

/// The route of the keys that operators decide one by one, and the route of those that one purge takes. Their service
/// is a gateway that has lost the answer of each request.
pub const ROUTES: [&str; 2] = [DECIDED, PURGED];
const DECIDED: &str = "decided";
const PURGED: &str = "purged";

/// The name of this service.
pub const SERVICE: &str = "gateway";

const OPERATORS: usize = 4;

/// Longer than the purge takes to find its keys.
const PURGE_BEGINS_MAX: Duration = Duration::from_secs(3);

/// Longer than any answer takes unless a request is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The operators, and the decisions that they have taken.
pub struct Decisions {
    /// The service of the route.
    gateway: Upstream,
    /// Whether each decision was acknowledged, by the id of its key.
    acknowledged: Mutex<BTreeMap<String, bool>>,
    /// The keys that one purge is to take, by their ids.
    purged: Mutex<Vec<String>>,
    number: AtomicU64,
    is_over: AtomicBool,
}

/// The number of decisions, by what became of them.
#[derive(Default)]
pub struct DecisionCounts {
    pub acknowledged: usize,
    /// Without an answer, or refused.
    pub open: usize,
    /// The keys that the purge has taken, and those that it has left.
    pub purged: [usize; 2],
    /// The key is as it was and its audit entry is there, or the other way round.
    pub halves: usize,
    /// Acknowledged, and not found.
    pub lost: usize,
}

impl Decisions {
    /// Starts the operators, each at one of the instances, until [`Self::stop`].
    pub fn start(proxies: &[Proxy], gateway: Upstream) -> (Arc<Self>, JoinSet<()>) {
        let (number, is_over) = (AtomicU64::new(1), AtomicBool::new(false));
        let (acknowledged, purged) = (Mutex::default(), Mutex::default());
        let decisions = Arc::new(Self { gateway, acknowledged, purged, number, is_over });
        let mut running = JoinSet::new();
        for (_, proxy) in (0..OPERATORS).zip(proxies.iter().cycle()) {
            let (decisions, service, operator) = (Arc::clone(&decisions), proxy.listen, Operator::of(proxy));
            running.spawn(async move {
                while !decisions.is_over.load(Ordering::SeqCst) {
                    if decisions.decide(service, operator).await.is_none() {
                        sleep(Duration::from_millis(200)).await;
                    }
                }
            });
        }
        (decisions, running)
    }

    /// Leaves keys with an unknown outcome for the purge, one after the other.
    pub async fn prepare_purge(&self, proxy: &Proxy, lasting: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < lasting {
            let id = self.leave_unknown(proxy.listen, PURGED).await;
            self.purged.lock().unwrap().extend(id);
        }
    }

    /// Begins to purge these keys, and returns once the first one is: one two-phase commit follows the other.
    pub async fn begin_purge(&self, proxy: &Proxy, database: &TestDatabase, running: &mut JoinSet<()>) {
        let keys = self.purged.lock().unwrap().len();
        let purge =
            json!({ "action": "purge", "filter": { "route": PURGED }, "expect": keys + 1, "accept_risk": true });
        let request = admin(Operator::of(proxy), "/api/v1/keys/actions").json(&purge.to_string());
        running.spawn(async move { drop(send(request).await) });
        let client = database.client().await;
        let begun = Instant::now();
        // A busy store may refuse it.
        while begun.elapsed() < PURGE_BEGINS_MAX {
            let first = client.query_opt("select from oncegate.audit where action = 'purge' limit 1", &[]);
            if first.await.unwrap().is_some() {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Decides that a new key with an unknown outcome was not executed. `None` where the store was not there for it.
    async fn decide(&self, service: SocketAddr, operator: Operator) -> Option<()> {
        let id = self.leave_unknown(service, DECIDED).await?;
        let resolve = admin(operator, &format!("/api/v1/keys/{id}/resolve"));
        let answer = send(resolve.json(&not_executed(true).to_string())).await;
        let is_acknowledged = answer.is_some_and(|answer| answer.status == 200);
        self.acknowledged.lock().unwrap().insert(id, is_acknowledged);
        is_acknowledged.then_some(())
    }

    /// Leaves a new key with an unknown outcome. Returns its id.
    async fn leave_unknown(&self, service: SocketAddr, route: &str) -> Option<String> {
        let key = format!("d-{}", self.number.fetch_add(1, Ordering::Relaxed));
        let request = Client { address: service }.post(&format!("/{route}")).key(&key).body("a request");
        let request = request.host(&format!("{SERVICE}.example"));
        send(request).await.filter(|answer| answer.status == 502)?;
        self.gateway.seen(|seen| {
            let call = seen.executed.iter().rev().find(|call| call.field("idempotency-key") == Some(&key))?;
            Some(call.field("oncegate-reservation")?[..64].to_owned())
        })
    }

    /// Compares the decisions with the store, in which no transaction may be prepared.
    pub async fn count(&self, database: &TestDatabase) -> DecisionCounts {
        let client = database.client().await;
        // The cluster joins no distributed table with one that it does not distribute, in this form.
        let sql = "select encode(id, 'hex'), state from oncegate.keys where route = any ($1)";
        let keys = client.query(sql, &[&ROUTES.as_slice()]).await.unwrap();
        let states: BTreeMap<String, String> = keys.iter().map(|row| (row.get(0), row.get(1))).collect();
        let sql = "select encode(id, 'hex'), count(*) from oncegate.audit group by 1";
        let audit = client.query(sql, &[]).await.unwrap();
        let entries: BTreeMap<String, i64> = audit.iter().map(|row| (row.get(0), row.get(1))).collect();
        // Each key was decided once at most.
        let is_half = |id: &str, is_done: bool| entries.get(id).copied().unwrap_or(0) != i64::from(is_done);
        let mut counts = DecisionCounts::default();
        for (id, is_acknowledged) in &*self.acknowledged.lock().unwrap() {
            let is_done = states.get(id).is_some_and(|state| state == "retryable");
            counts.acknowledged += usize::from(*is_acknowledged);
            counts.open += usize::from(!*is_acknowledged);
            counts.halves += usize::from(is_half(id, is_done));
            counts.lost += usize::from(*is_acknowledged && !is_done);
        }
        for id in &*self.purged.lock().unwrap() {
            let is_done = !states.contains_key(id);
            counts.purged[usize::from(!is_done)] += 1;
            counts.halves += usize::from(is_half(id, is_done));
        }
        counts
    }
}

fn admin(operator: Operator, path: &str) -> Request {
    operator.request("POST", path).field("X-Oncegate-Service", SERVICE)
}

async fn send(request: Request) -> Option<Response> {
    timeout(ANSWER_TIMEOUT, request.try_send()).await.ok()?.ok()
}
