//! A run: load, one failure, load again, the recovery of the cluster, a quiet time, every key sent once more, and the
//! checker's result.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::checker::{Policy, Rules, check};
use crate::clients::ClientPool;
use crate::decisions::{self, Decisions};
use crate::history::{History, TargetRoute};
use crate::node_failure::NodeFailure;
use crate::result_row::ResultRow;
use crate::seeded_random::SeededRandom;
use crate::service::Service;
use crate::steady_keys::{self, SteadyKeys};
use harness::citus::CitusCluster;
use harness::{Answer, Proxy, TEST_TIMEOUT, Upstream, eventually, route};

const INSTANCES: usize = 2;

const CLIENTS: usize = 24;

/// One key in four is delivered by Oncegate.
const ROUTES: [TargetRoute; 4] = [TargetRoute::Pay, TargetRoute::Pay, TargetRoute::Pay, TargetRoute::Later];

/// The load before the failure, and after it.
const LOAD: Duration = Duration::from_secs(6);

/// The default `store.lease.expiry`, and two passes of the sweeper, after which no key is in flight.
const QUIET: Duration = Duration::from_secs(10 + 3);

/// Runs one failure. Returns the figures and the breaches.
pub async fn run(failure: NodeFailure) -> (ResultRow, Option<String>) {
    let cluster = CitusCluster::start().await;
    let (mut random, begun) = (SeededRandom::new(getrandom::u64().unwrap()), Instant::now());
    let service = Service::start(random.split(), begun).await;
    let (gateway, reliable) = (Upstream::start().await, Upstream::start().await);
    gateway.answer_all(Answer::status(502));
    let mut proxies = Vec::new();
    for _ in 0..INSTANCES {
        proxies.push(start_proxy(&cluster, &service, &gateway, &reliable).await);
    }
    let addresses = proxies.iter().map(|proxy| proxy.listen).collect();
    let clients_pool = ClientPool::new(Arc::new(RwLock::new(addresses)), &ROUTES, begun);
    let mut clients = clients_pool.start(CLIENTS, &mut random);
    let (decisions, mut operators) = Decisions::start(&proxies, gateway);
    let (steady_keys, mut sending) = SteadyKeys::start(&proxies, begun);
    let prepared = cluster.watch_prepared();
    decisions.prepare_purge(&proxies[0], LOAD).await;
    decisions.begin_purge(&proxies[0], &cluster.database, &mut operators).await;
    let struck = begun.elapsed();
    failure.strike(&cluster).await;
    let back = begun.elapsed();
    for proxy in &proxies {
        eventually(TEST_TIMEOUT, async || (proxy.readyz().await.0 == 200).then_some(())).await;
    }
    sleep(LOAD).await;
    let over = begun.elapsed();
    service.stop_misbehaving();
    clients_pool.stop();
    decisions.stop();
    steady_keys.stop();
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    while let Some(ended) = operators.join_next().await {
        ended.unwrap();
    }
    while let Some(ended) = sending.join_next().await {
        ended.unwrap();
    }
    let left_prepared = prepared.wait_for_none().await;
    sleep(QUIET).await;
    clients_pool.repeat_every_key(&mut random).await;
    let decided = decisions.count(&cluster.database).await;
    let steady = steady_keys.count(&cluster, &proxies[0], &reliable, struck..back, failure.nodes()).await;
    eprintln!("the run took {:.0?}", begun.elapsed());
    for proxy in &proxies {
        assert_eq!(proxy.stop().await, Some(0), "an instance that has been through a failure ends as it should");
    }
    let history = History {
        ops: clients_pool.take_ops(),
        effects: service.effects(),
        service_calls: service.calls(),
        ..History::default()
    };
    let breaches = check(&history, &Rules { policy: Policy::Hold, quotas: Vec::new() });
    let row = ResultRow::new(failure, &history, &breaches, left_prepared, decided, steady, &(struck..over));
    let told = row.breaches(&history, &breaches);
    (row, told)
}

/// Starts an instance. The first one distributes the keys.
async fn start_proxy(cluster: &CitusCluster, service: &Service, gateway: &Upstream, reliable: &Upstream) -> Proxy {
    let retry = "retry = { max_attempts = 10000, base = \"100ms\", cap = \"500ms\", give_up_after = \"24h\" }";
    // The sweeper is faster than by default, so that the run is shorter.
    let setup = Proxy::on(&cluster.database.url)
        .upstream(service.address)
        .top("secret = \"a secret of some length\"")
        .store("distribute = true\nmax_connections = 24\nsweep_every = \"1s\"")
        .defaults("upstream_timeout = \"2500ms\"\nin_flight = \"wait\"\nwait_timeout = \"300ms\"")
        .defaults("on_unknown = \"hold\"")
        .service(&harness::service(steady_keys::ROUTE, reliable.address))
        .service(&harness::service(decisions::SERVICE, gateway.address))
        .route(&route("pay", ""))
        .route(&route("later", &format!("delivery = \"async\"\n{retry}")))
        .route(&route(steady_keys::ROUTE, &format!("service = \"{}\"", steady_keys::ROUTE)));
    let of_gateway = format!("service = \"{}\"", decisions::SERVICE);
    let setup = decisions::ROUTES.iter().fold(setup, |setup, name| setup.route(&route(name, &of_gateway)));
    tokio::time::timeout(TEST_TIMEOUT, setup.start()).await.expect("the instance starts")
}
