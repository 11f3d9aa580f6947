//! Orders that workers pay at a vendor through Oncegate, while workers, proxies, the vendor's answers and PostgreSQL
//! fail: each is charged once, and none stays unknown that the vendor's promise, or its search, could end.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
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
/// The orders of an ordinary run; `ONCEGATE_ORDERS` has another number.
const ORDERS: usize = 250;
/// Longer than the faults' last effects take to end, for each thousand orders.
const PATIENCE: Duration = Duration::from_secs(60);

const STRIPE: VendorRules = VendorRules { field: "idempotency-key", window: Duration::from_secs(86_400) };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_at_a_vendor_with_keys_are_charged_once_and_none_stays_unknown() {
    run("vendor = \"stripe\"\nretry = { base = \"100ms\", cap = \"1s\" }", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_at_a_vendor_without_keys_are_charged_once_and_its_search_ends_what_is_unknown() {
    let reconcile = "reconcile = { url = \"http://ADDRESS/charges?order={key}\", after = \"1s\", every = \"1s\" }";
    run("vendor = \"none\"\nupstream_timeout = \"2s\"", reconcile).await;
}

/// The orders that are not paid yet, and the charges of those that are.
#[derive(Default)]
struct Orders {
    open: Mutex<VecDeque<String>>,
    paid: Mutex<BTreeMap<String, String>>,
}

async fn run(lines: &str, reconcile: &str) {
    let seed = fault_run::seed();
    eprintln!("seed {seed:#x}");
    let mut random = SeededRandom::new(seed);
    let count = std::env::var("ONCEGATE_ORDERS").map_or(ORDERS, |count| count.parse().unwrap());
    let vendor = VendorDouble::start(STRIPE).await;
    vendor.then((0..10 * count).map(|_| draw_fault(&mut random)));
    let cluster = block_in_place(|| Cluster::start("-c max_connections=60"));
    let store = Store::Postgres(cluster.empty_database().await);
    let lines = format!("{lines}\n{reconcile}").replace("ADDRESS", &vendor.address.to_string());
    let setup = Proxy::on(&store.url()).upstream(vendor.address).short_leases();
    let setup =
        setup.top("secret = \"a secret of some length\"").store("timeout = \"500ms\"").route(&route("pay", &lines));
    let mut proxies = [setup.start().await, setup.start().await];
    let addresses = Arc::new(RwLock::new(proxies.each_ref().map(|proxy| proxy.listen)));
    let orders = Arc::new(Orders::default());
    orders.open.lock().unwrap().extend((0..count).map(|number| format!("o-{number}")));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(work(Arc::clone(&orders), Arc::clone(&addresses), random.split()));
    }
    let begun = Instant::now();
    let (mut kills, mut restarts) = (0, 0);
    // Most orders are paid under faults, the last ones without.
    while orders.paid.lock().unwrap().len() * 10 < count * 8 {
        sleep(random.millis(300, 900)).await;
        if random.chance(200) {
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
        assert!(begun.elapsed() < PATIENCE * u32::try_from(count / 1_000 + 2).unwrap(), "it does not go on");
    }
    let ended = timeout(PATIENCE * u32::try_from(count / 1_000 + 1).unwrap(), async {
        while workers.join_next().await.is_some() {}
    });
    let all_paid = ended.await.is_ok();
    let unknown = Operator::of(&proxies[0]).keys("state=unknown").await;
    let (charges, requests) = (vendor.charges(), vendor.heads().len());
    eprintln!(
        "{count} orders, {requests} requests at the vendor, {} charges, {kills} kills of proxies, {restarts} crashes of \
         PostgreSQL, {:.0?}",
        charges.len(),
        begun.elapsed()
    );
    let mut times = BTreeMap::<String, usize>::new();
    for charge in &charges {
        let order: Value = serde_json::from_str(charge).unwrap();
        *times.entry(order["order"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    let repeated: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(repeated.is_empty(), "charged twice: {repeated:?}");
    assert!(all_paid, "still open: {:?}, unknown: {unknown:?}", orders.open.lock().unwrap());
    assert!(unknown.is_empty(), "{unknown:?}");
    let paid = orders.paid.lock().unwrap();
    assert_eq!((paid.len(), charges.len()), (count, count));
    for (order, id) in paid.iter() {
        let number: usize = id.strip_prefix("ch_").unwrap().parse().unwrap();
        assert!(charges[number - 1].contains(&format!("\"{order}\"")), "{order} got another's answer: {id}");
    }
    assert!(kills > 0 && requests > count, "nothing went wrong");
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
async fn work(orders: Arc<Orders>, addresses: Arc<RwLock<[SocketAddr; 2]>>, mut random: SeededRandom) {
    loop {
        let order = orders.open.lock().unwrap().pop_front();
        let Some(order) = order else { return };
        let limit = if random.chance(150) { random.millis(20, 400) } else { Duration::from_secs(5) };
        let address = addresses.read().unwrap()[random.below(2)];
        let body = format!("{{\"order\":\"{order}\",\"amount\":10}}");
        let request = Client { address }.post("/pay").key(&order).json(&body);
        let answer = timeout(limit, request.try_send()).await.ok().and_then(Result::ok);
        // A search has its own status.
        match answer.filter(|answer| [200, 201].contains(&answer.status)) {
            Some(answer) => {
                let charge: Value = serde_json::from_slice(&answer.body).unwrap();
                orders.paid.lock().unwrap().insert(order, charge["id"].as_str().unwrap().to_owned());
            }
            None => {
                orders.open.lock().unwrap().push_back(order);
                sleep(random.millis(20, 200)).await;
            }
        }
    }
}
