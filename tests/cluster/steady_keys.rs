//! Keys that come at a fixed rate, whatever became of those before: clients that retry would all wait for a killed node
//! in the end, and show nothing of the others. Each key is sent once during the load, and once more at the end.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use harness::citus::{CitusCluster, CitusNode};
use harness::{Client, Proxy, Response, Upstream, eventually};

/// The route of these keys. Its service answers all requests.
pub const ROUTE: &str = "steady";

/// The time between two keys.
const PAUSE: Duration = Duration::from_millis(50);

/// Longer than any answer takes unless a request is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The keys that were sent.
pub struct SteadyKeys {
    sent: Mutex<Vec<SteadyKey>>,
    is_over: AtomicBool,
}

struct SteadyKey {
    name: String,
    at: Duration,
    /// The answer during the load.
    answer: Option<Response>,
}

/// The keys of some nodes that were sent while nodes were away.
#[derive(Clone, Copy, Default)]
pub struct NodeShare {
    pub sent: usize,
    pub executed: usize,
}

#[derive(Default)]
pub struct SteadyCounts {
    pub of_killed_nodes: NodeShare,
    pub of_other_nodes: NodeShare,
    pub twice: usize,
    /// Answered as executed and stored, and not replayed with the same response at the end.
    pub lost: usize,
}

impl SteadyKeys {
    /// Sends keys to the instances in turn until [`Self::stop`].
    pub fn start(proxies: &[Proxy], begun: Instant) -> (Arc<Self>, JoinSet<()>) {
        let steady_keys = Arc::new(Self { sent: Mutex::default(), is_over: AtomicBool::new(false) });
        let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.listen).collect();
        let (sender, mut sending) = (Arc::clone(&steady_keys), JoinSet::new());
        sending.spawn(async move {
            let mut running = JoinSet::new();
            for (number, address) in addresses.into_iter().cycle().enumerate() {
                if sender.is_over.load(Ordering::SeqCst) {
                    break;
                }
                let sender = Arc::clone(&sender);
                running.spawn(async move {
                    let (name, at) = (format!("s-{number}"), begun.elapsed());
                    let request = request(Client { address }, &name);
                    let answer = timeout(ANSWER_TIMEOUT, request.try_send()).await.ok().and_then(Result::ok);
                    sender.sent.lock().unwrap().push(SteadyKey { name, at, answer });
                });
                sleep(PAUSE).await;
            }
            while let Some(ended) = running.join_next().await {
                ended.unwrap();
            }
        });
        (steady_keys, sending)
    }

    pub fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Sends each key once more, and compares.
    pub async fn count(
        &self,
        cluster: &CitusCluster,
        proxy: &Proxy,
        service: &Upstream,
        away: Range<Duration>,
        killed: &[CitusNode],
    ) -> SteadyCounts {
        let sent = std::mem::take(&mut *self.sent.lock().unwrap());
        let mut counts = SteadyCounts::default();
        for SteadyKey { name, answer, .. } in &sent {
            let again = eventually(ANSWER_TIMEOUT, async || {
                let answer = request(proxy.client(), name).try_send().await.ok()?;
                (answer.status != 503).then_some(answer)
            });
            let again = again.await;
            let first = answer.as_ref().filter(|answer| answer.oncegate_status() == Some("executed"));
            counts.lost += usize::from(first.is_some_and(|first| again.comparable() != first.replayed()));
            counts.twice += usize::from(service.executed_for(name) > 1);
        }
        let nodes: BTreeMap<String, CitusNode> = cluster.nodes_of_keys(ROUTE).await;
        for SteadyKey { name, answer, .. } in sent.iter().filter(|key| away.contains(&key.at)) {
            // A key that was executed and is not stored is unknown to the store only where it is lost.
            let Some(node) = nodes.get(name) else { continue };
            let share = match killed.contains(node) {
                true => &mut counts.of_killed_nodes,
                false => &mut counts.of_other_nodes,
            };
            share.sent += 1;
            share.executed += usize::from(answer.as_ref().is_some_and(|answer| answer.status == 201));
        }
        counts
    }
}

fn request(client: Client, name: &str) -> harness::Request {
    client.post(&format!("/{ROUTE}")).host(&format!("{ROUTE}.example")).key(name).body("a request")
}
