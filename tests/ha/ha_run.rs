//! A run: load, one event, load again, a quiet time, every key sent once more, and the checker's result.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::checker::{Policy, Rules, check};
use crate::clients::ClientPool;
use crate::history::{History, TargetRoute};
use crate::result_row::ResultRow;
use crate::seeded_random::SeededRandom;
use crate::service::Service;
use harness::failover::FailoverEvent;
use harness::patroni::{PatroniCluster, Replication, eventually};
use harness::{Proxy, TEST_TIMEOUT};

const CLIENTS: usize = 12;

/// The load before the event, and after it.
const LOAD: Duration = Duration::from_secs(5);

/// The default `store.lease.expiry`, and two passes of the sweeper, after which no key is in flight.
const QUIET: Duration = Duration::from_secs(10 + 3);

/// Runs one event. Returns the figures, and the breaches that this replication does not allow.
pub async fn run(event: FailoverEvent, replication: Replication) -> (ResultRow, Option<String>) {
    let (mut random, begun) = (SeededRandom::new(getrandom::u64().unwrap()), Instant::now());
    let cluster = PatroniCluster::start(replication).await;
    let urls = cluster.create_database().await;
    let service = Service::start(random.split(), begun).await;
    let mut proxies = Vec::new();
    for url in &urls {
        proxies.push(start_proxy(url, &service).await);
    }
    let addresses = proxies.iter().map(|proxy| proxy.listen).collect();
    let clients_pool = ClientPool::new(Arc::new(RwLock::new(addresses)), &[TargetRoute::Pay], begun);
    let mut clients = clients_pool.start(CLIENTS, &mut random);
    sleep(LOAD).await;
    let struck = begun.elapsed();
    let elected = event.strike(&cluster).await;
    for proxy in &proxies {
        eventually("the instance serves again", async || (proxy.readyz().await.0 == 200).then_some(())).await;
    }
    sleep(LOAD).await;
    let over = begun.elapsed();
    service.stop_misbehaving();
    clients_pool.stop();
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    sleep(QUIET).await;
    clients_pool.repeat_every_key(&mut random).await;
    for proxy in &proxies {
        assert_eq!(proxy.stop().await, Some(0), "an instance that has been through a failover ends as it should");
    }
    let faults = BTreeMap::from([(event.name().to_owned(), 1)]);
    let history = History {
        ops: clients_pool.take_ops(),
        effects: service.effects(),
        service_calls: service.calls(),
        faults,
        ..History::default()
    };
    let rules = Rules { policy: Policy::Hold, quotas: vec![(event.name().to_owned(), 1)] };
    let breaches = check(&history, &rules);
    let row = ResultRow::new(event, replication, elected, &history, &breaches, struck..over);
    (row, crate::result_row::forbidden(replication, &history, &breaches))
}

async fn start_proxy(url: &str, service: &Service) -> Proxy {
    // The store's settings are the defaults, but for the sweeper, so that the run is shorter.
    let setup = Proxy::on(url)
        .upstream(service.address)
        .store("sweep_every = \"1s\"")
        .defaults("upstream_timeout = \"2500ms\"\nin_flight = \"wait\"\nwait_timeout = \"300ms\"")
        .defaults("on_unknown = \"hold\"");
    let proxy = tokio::time::timeout(TEST_TIMEOUT, setup.start()).await.expect("the instance starts");
    assert!(proxy.is_alive());
    proxy
}
