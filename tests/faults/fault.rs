//! The faults and their injection.

use std::slice::from_ref;
use std::time::Duration;

use rustix::process::Signal;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep};
use tokio_postgres::NoTls;

use crate::deployment::Deployment;
use crate::seeded_random::SeededRandom;
use harness::citus::CitusNode;
use harness::failover::FailoverEvent;
use harness::patroni::{Replication, STEP_MAX};
use harness::relay::Relay;
use harness::{Store, eventually};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// `kill -9` of a proxy; the next one is started at once.
    Kill,
    /// A proxy hands over to its successor under load.
    HandOver,
    /// A proxy is stopped until its lease has expired, and then continued.
    Pause,
    /// PostgreSQL is killed as by a power cut, and started again.
    CrashStore,
    /// All PostgreSQL processes are stopped for longer than the proxies wait, and then continued.
    FreezeStore,
    /// PostgreSQL ends the proxies' sessions, and other clients take all its connections.
    ExhaustStore,
    /// The primary under Patroni ends or is replaced. The fault lasts until the cluster is whole again.
    Failover(FailoverEvent),
    /// A node of the Citus cluster is killed with signal 9, and started again.
    KilledNode,
    /// The standbys under Patroni do not reach the primary.
    CutReplication,
    /// The network link between a proxy and PostgreSQL is cut.
    CutStore,
    /// That link carries nothing, and no side is notified. Bytes in transit arrive late or never.
    SilenceStore,
    /// Each connection between a proxy and PostgreSQL is late by a time of its own, so that
    /// statements overtake each other.
    DelayStore,
    /// The network link between a proxy and the service is cut.
    CutService,
    /// That link carries nothing, and no side is notified.
    SilenceService,
}

/// An injection of a fault. Its times are since the start of the run.
#[derive(Clone, Debug)]
pub struct Injection {
    pub fault: String,
    /// The proxy that it struck; `None` for the store.
    pub proxy: Option<usize>,
    pub began: Duration,
    pub ended: Duration,
}

impl Fault {
    /// Its name in histories and quotas.
    pub fn name(self) -> String {
        match self {
            Self::Failover(event) => format!("{event:?}"),
            fault => format!("{fault:?}"),
        }
    }

    /// Whether it strikes the store, and no proxy or link of one.
    pub fn is_of_store(self) -> bool {
        matches!(
            self,
            Self::CrashStore
                | Self::FreezeStore
                | Self::ExhaustStore
                | Self::Failover(_)
                | Self::CutReplication
                | Self::KilledNode
        )
    }

    /// Injects the fault and removes it. Returns the number of the proxy that it struck.
    pub async fn inject(self, deployment: &Deployment, random: &mut SeededRandom) -> Option<usize> {
        let number = random.below(deployment.slots.len());
        let slot = &deployment.slots[number];
        match self {
            Self::Kill => deployment.kill(number).await,
            Self::HandOver => deployment.hand_over(number).await,
            Self::Pause => {
                let proxy = slot.proxy.lock().await;
                proxy.signal(Signal::STOP);
                sleep(random.millis(1_400, 2_100)).await;
                proxy.signal(Signal::CONT);
            }
            Self::CrashStore => {
                let cluster = deployment.cluster.as_ref().unwrap().lock().await;
                block_in_place(|| cluster.crash());
                sleep(random.millis(0, 700)).await;
                block_in_place(|| cluster.restart());
            }
            Self::FreezeStore => {
                let cluster = deployment.cluster.as_ref().unwrap().lock().await;
                block_in_place(|| cluster.freeze());
                sleep(random.millis(600, 1_600)).await;
                block_in_place(|| cluster.thaw());
            }
            Self::ExhaustStore => {
                let _cluster = deployment.cluster.as_ref().unwrap().lock().await;
                exhaust_connections(&deployment.store, random.millis(600, 1_200)).await;
            }
            Self::Failover(event) => {
                let cluster = deployment.patroni.as_ref().unwrap().lock().await;
                cluster.wait_until_whole(Replication::Synchronous).await;
                event.strike(&cluster).await;
                cluster.wait_until_whole(Replication::Synchronous).await;
            }
            Self::KilledNode => {
                let cluster = deployment.citus.as_ref().unwrap().lock().await;
                let node = *random.one_of(&CitusNode::ALL);
                cluster.kill9(node);
                sleep(random.millis(0, 3_000)).await;
                cluster.restart(node).await;
            }
            Self::CutReplication => {
                let cluster = deployment.patroni.as_ref().unwrap().lock().await;
                let primary = eventually(STEP_MAX, async || cluster.primary(None).await).await;
                cluster.nodes[primary].cut_replication();
                sleep(random.millis(2_000, 12_000)).await;
                cluster.nodes[primary].restore();
                cluster.wait_until_whole(Replication::Synchronous).await;
            }
            Self::CutStore => cut_for_a_while(&slot.to_store.lock().await, random).await,
            Self::SilenceStore => silence_for_a_while(&slot.to_store.lock().await, random).await,
            Self::DelayStore => delay_for_a_while(&slot.to_store.lock().await, random).await,
            Self::CutService => cut_for_a_while(from_ref(&*slot.to_service.lock().await), random).await,
            Self::SilenceService => silence_for_a_while(from_ref(&*slot.to_service.lock().await), random).await,
        }
        (!self.is_of_store()).then_some(number)
    }
}

async fn cut_for_a_while(links: &[Relay], random: &mut SeededRandom) {
    links.iter().for_each(Relay::cut);
    sleep(random.millis(20, 1_200)).await;
    links.iter().for_each(Relay::restore);
}

async fn delay_for_a_while(links: &[Relay], random: &mut SeededRandom) {
    links.iter().for_each(Relay::make_uneven);
    sleep(random.millis(2_000, 4_000)).await;
    links.iter().for_each(Relay::restore);
}

async fn silence_for_a_while(links: &[Relay], random: &mut SeededRandom) {
    links.iter().for_each(Relay::silence);
    sleep(random.millis(600, 1_500)).await;
    if random.chance(500) {
        // Bytes in transit are lost with their connection.
        links.iter().for_each(Relay::cut);
        sleep(Duration::from_millis(20)).await;
    }
    links.iter().for_each(Relay::restore);
}

/// Takes every available connection, and ends the proxies' sessions to take theirs.
async fn exhaust_connections(store: &Store, lasts: Duration) {
    let Store::Postgres(database) = store else { panic!("only a server can be crowded") };
    let until = Instant::now() + lasts;
    // An existing session can end the others.
    let us = database.client().await;
    let mut others = JoinSet::new();
    for _ in 0..6 {
        let url = database.url.clone();
        others.spawn(async move {
            let mut taken = Vec::new();
            while Instant::now() < until {
                match tokio_postgres::connect(&url, NoTls).await {
                    Ok((client, connection)) => {
                        tokio::spawn(connection);
                        taken.push(client);
                    }
                    Err(_) => sleep(Duration::from_millis(2)).await,
                }
            }
        });
    }
    while Instant::now() < until {
        let out = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'oncegate'";
        us.batch_execute(out).await.unwrap();
        sleep(Duration::from_millis(25)).await;
    }
    while let Some(ended) = others.join_next().await {
        ended.unwrap();
    }
}
