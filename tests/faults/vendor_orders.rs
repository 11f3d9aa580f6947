//! Orders that workers pay at a vendor through Oncegate, while workers, proxies, the vendor's answers and PostgreSQL
//! fail: each is charged once, and none stays unknown that the vendor's promise, or its search, could end.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use serde_json::Value;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep, timeout};

use crate::fault_run;
use crate::seeded_random::SeededRandom;
use harness::client::Client;
use harness::operator::Operator;
use harness::postgres::Cluster;
use harness::vendor::{VendorDouble, VendorFault, VendorRules};
use harness::{Proxy, Setup, Store, route};

const WORKERS: usize = 24;
/// Beside the clients of other routes, so many workers pay, with pauses of up to so many milliseconds.
const WORKERS_BESIDE: usize = 6;
const PAUSE_BESIDE: u64 = 400;
/// The orders of an ordinary run; `ONCEGATE_ORDERS` has another number.
const ORDERS: usize = 250;
/// More requests than any run sends: after these, the vendor does not fail.
const FAULTS: usize = 1_000_000;
/// Longer than the faults' last effects take to end, for each thousand orders.
const PATIENCE: Duration = Duration::from_secs(60);

const STRIPE: VendorRules = VendorRules { field: "idempotency-key", window: Duration::from_secs(86_400) };

/// The host of the vendor, where the proxies have other services too.
const HOST: &str = "vendor.test";
pub const ROUTE_LINES: &str = "name = \"orders\"\npath = \"/orders\"\nservice = \"vendor\"\nvendor = \"stripe\"\n\
    retry = { base = \"100ms\", cap = \"1s\" }";

pub fn service_lines(vendor: SocketAddr) -> String {
    format!("name = \"vendor\"\nhost = \"{HOST}\"\nupstream = \"http://{vendor}\"")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_at_a_vendor_with_keys_are_charged_once_and_none_stays_unknown() {
    run("vendor = \"stripe\"\nretry = { base = \"100ms\", cap = \"1s\" }", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_at_a_vendor_without_keys_are_charged_once_and_its_search_ends_what_is_unknown() {
    let reconcile = "reconcile = { url = \"http://ADDRESS/charges?order={key}\", after = \"1s\", every = \"1s\" }";
    run("vendor = \"none\"\nupstream_timeout = \"2s\"", reconcile).await;
}

/// A vendor, and the workers that pay orders there.
pub struct VendorOrders {
    vendor: VendorDouble,
    orders: Arc<Orders>,
    workers: JoinSet<()>,
}

/// The orders that are not paid yet, and the charges of those that are.
struct Orders {
    /// The number of orders, and how many of them there will be.
    made: AtomicUsize,
    wanted: AtomicUsize,
    open: Mutex<VecDeque<String>>,
    paid: Mutex<BTreeMap<String, String>>,
}

impl Orders {
    /// The next order to pay: one that was tried before, or a new one. If there is none of that kind, one of the other.
    fn take(&self, prefers_tried: bool) -> Option<String> {
        let opened = || self.open.lock().unwrap().pop_front();
        let number = || {
            let wanted = self.wanted.load(Ordering::Relaxed);
            self.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |made| (made < wanted).then_some(made + 1))
        };
        let another = || number().ok().map(|number| format!("o-{number}"));
        if prefers_tried { opened().or_else(another) } else { another().or_else(opened) }
    }
}

impl VendorOrders {
    /// So many orders; without a number, until they are [stopped](Self::stop).
    pub async fn start(wanted: Option<usize>, random: &mut SeededRandom) -> Self {
        let vendor = VendorDouble::start(STRIPE).await;
        vendor.then((0..FAULTS).map(|_| draw_fault(random)));
        let wanted = AtomicUsize::new(wanted.unwrap_or(usize::MAX));
        let orders = Orders { made: AtomicUsize::new(0), wanted, open: Mutex::default(), paid: Mutex::default() };
        Self { vendor, orders: Arc::new(orders), workers: JoinSet::new() }
    }

    pub fn address(&self) -> SocketAddr {
        self.vendor.address
    }

    /// Has some workers pay through these proxies, beside other clients.
    pub fn pay_beside(&mut self, addresses: &Arc<RwLock<Vec<SocketAddr>>>, random: &mut SeededRandom) {
        self.pay(WORKERS_BESIDE, PAUSE_BESIDE, addresses, random);
    }

    fn pay(&mut self, workers: usize, pause: u64, addresses: &Arc<RwLock<Vec<SocketAddr>>>, random: &mut SeededRandom) {
        for _ in 0..workers {
            let (orders, addresses) = (Arc::clone(&self.orders), Arc::clone(addresses));
            self.workers.spawn(work(orders, addresses, pause, random.split()));
        }
    }

    /// Makes no further order.
    pub fn stop(&self) {
        self.orders.wanted.store(0, Ordering::Relaxed);
    }

    /// Waits until each order is paid, and returns their number. Panics if one is not, is charged twice or unknown, or
    /// has another's charge.
    pub async fn end(mut self, operator: Operator) -> usize {
        let ended = timeout(patience(self.orders.made.load(Ordering::Relaxed)), async {
            while self.workers.join_next().await.is_some() {}
        });
        let all_paid = ended.await.is_ok();
        let count = self.orders.made.load(Ordering::Relaxed);
        let unknown = operator.keys("state=unknown&route=orders").await;
        let (charges, requests) = (self.vendor.charges(), self.vendor.heads().len());
        eprintln!("{count} orders, {requests} requests at the vendor, {} charges", charges.len());
        let mut times = BTreeMap::<String, usize>::new();
        for charge in &charges {
            let order: Value = serde_json::from_str(charge).unwrap();
            *times.entry(order["order"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        let repeated: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
        assert!(repeated.is_empty(), "charged twice: {repeated:?}");
        assert!(all_paid, "still open: {:?}, unknown: {unknown:?}", self.orders.open.lock().unwrap());
        assert!(unknown.is_empty(), "{unknown:?}");
        let paid = self.orders.paid.lock().unwrap();
        assert_eq!((paid.len(), charges.len()), (count, count));
        for (order, id) in paid.iter() {
            let number: usize = id.strip_prefix("ch_").unwrap().parse().unwrap();
            assert!(charges[number - 1].contains(&format!("\"{order}\"")), "{order} got another's answer: {id}");
        }
        assert!(requests > count, "nothing went wrong");
        count
    }
}

fn patience(orders: usize) -> Duration {
    PATIENCE * u32::try_from(orders / 1_000 + 2).unwrap()
}

async fn run(lines: &str, reconcile: &str) {
    let seed = fault_run::seed();
    eprintln!("seed {seed:#x}");
    let mut random = SeededRandom::new(seed);
    let count = std::env::var("ONCEGATE_ORDERS").map_or(ORDERS, |count| count.parse().unwrap());
    let mut orders = VendorOrders::start(Some(count), &mut random).await;
    let cluster = block_in_place(|| Cluster::start("-c max_connections=60"));
    let store = Store::Postgres(cluster.empty_database().await);
    let lines = format!("{lines}\n{reconcile}").replace("ADDRESS", &orders.address().to_string());
    let setup = Proxy::on(&store.url()).upstream(orders.address()).short_leases();
    let setup =
        setup.top("secret = \"a secret of some length\"").store("timeout = \"500ms\"").route(&route("orders", &lines));
    let mut proxies = [setup.start().await, setup.start().await];
    let addresses = Arc::new(RwLock::new(proxies.iter().map(|proxy| proxy.listen).collect()));
    orders.pay(WORKERS, 0, &addresses, &mut random);
    let begun = Instant::now();
    let (mut kills, mut restarts) = (0, 0);
    // Most orders are paid under faults, the last ones without.
    while orders.orders.paid.lock().unwrap().len() * 10 < count * 8 {
        sleep(random.millis(300, 900)).await;
        // Each run needs a kill, and a fast one has two faults: so the first fault is a kill.
        if kills > 0 && random.chance(200) {
            block_in_place(|| cluster.crash());
            sleep(random.millis(100, 700)).await;
            block_in_place(|| cluster.restart());
            restarts += 1;
        } else {
            let number = random.below(proxies.len());
            proxies[number].kill9().await;
            proxies[number] = restart(&setup).await;
            addresses.write().unwrap()[number] = proxies[number].listen;
            kills += 1;
        }
        assert!(begun.elapsed() < patience(count), "it does not go on");
    }
    let paid = orders.end(Operator::of(&proxies[0])).await;
    eprintln!("{kills} kills of proxies, {restarts} crashes of PostgreSQL, {:.0?}", begun.elapsed());
    assert!(kills > 0 && paid == count);
}

fn draw_fault(random: &mut SeededRandom) -> VendorFault {
    match random.below(1_000) {
        0..30 => VendorFault::Refuses,
        30..90 => VendorFault::LosesAnswer,
        90..120 => VendorFault::LosesAnswerAtGateway,
        120..150 => VendorFault::Limits,
        150..300 => VendorFault::Delays(random.millis(50, 700)),
        _ => VendorFault::Delays(random.millis(1, 20)),
    }
}

async fn restart(setup: &Setup) -> Proxy {
    loop {
        match setup.try_start().await {
            Ok(next) => return next,
            Err(code) => assert_eq!(code, Some(69), "only its store can keep it from starting"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// A worker pays order after order. It may die in between: then another one takes the order up again, with its key.
async fn work(orders: Arc<Orders>, addresses: Arc<RwLock<Vec<SocketAddr>>>, pause: u64, mut random: SeededRandom) {
    while let Some(order) = orders.take(random.chance(300)) {
        let limit = if random.chance(150) { random.millis(20, 400) } else { Duration::from_secs(5) };
        let address = *random.one_of(&addresses.read().unwrap());
        let body = format!("{{\"order\":\"{order}\",\"amount\":10}}");
        let request = Client { address }.post("/orders").host(HOST).key(&order).json(&body);
        let answer = timeout(limit, request.try_send()).await.ok().and_then(Result::ok);
        // A search has its own status.
        match answer.filter(|answer| [200, 201].contains(&answer.status)) {
            Some(answer) => {
                let charge: Value = serde_json::from_slice(&answer.body).unwrap();
                orders.paid.lock().unwrap().insert(order, charge["id"].as_str().unwrap().to_owned());
                sleep(random.millis(0, pause + 1)).await;
            }
            None => {
                orders.open.lock().unwrap().push_back(order);
                sleep(random.millis(20, 200)).await;
            }
        }
    }
}
