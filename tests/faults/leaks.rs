//! After broken connections, a proxy has as many open files and sessions as before.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::checker::Policy;
use crate::clients::ClientPool;
use crate::deployment::{Deployment, StoreKind, UPSTREAM_IDLE};
use crate::fault::Fault;
use crate::history::TargetRoute;
use crate::seeded_random::SeededRandom;
use crate::service::Service;
use harness::{Store, TEST_TIMEOUT, eventually};

/// The default of `max_connections`.
const CONNECTIONS_MAX: usize = 10;

/// The connections of them that belong to workers. Only the next call of a request that is alone finds out that such a
/// one is dead, so that each may be open here, and not at the server.
const WORKERS_OWN: usize = 2;

/// The number of files and sessions that a proxy has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    /// Without the connections to the store.
    files: usize,
    store: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_connections_leak_no_files_and_no_sessions() {
    let (mut random, begun) = (SeededRandom::new(7), Instant::now());
    let service = Service::start(random.split(), begun).await;
    let deployment =
        Deployment::start(StoreKind::Postgres, 1, Policy::Hold, &[TargetRoute::Pay], None, None, service.address).await;
    load(&deployment, begun, &mut random, &[]).await;
    let before = at_rest(&deployment).await;
    let faults = [Fault::CutStore, Fault::SilenceStore, Fault::CutService, Fault::SilenceService];
    // Twice: what leaks each time is more than what is merely not noticed yet.
    load(&deployment, begun, &mut random, &faults.repeat(2)).await;
    let after = at_rest(&deployment).await;
    assert!(after.files <= before.files + WORKERS_OWN, "{before:?}, and then {after:?}");
    assert!((1..=CONNECTIONS_MAX).contains(&after.store), "{before:?}, and then {after:?}");
    deployment.close().await;
}

/// Runs clients while these faults are injected, one after the other.
async fn load(deployment: &Deployment, begun: Instant, random: &mut SeededRandom, faults: &[Fault]) {
    let clients_pool = ClientPool::new(Arc::clone(&deployment.addresses), &[TargetRoute::Pay], begun);
    let mut clients = clients_pool.start(24, random);
    sleep(Duration::from_secs(1)).await;
    for fault in faults {
        fault.inject(deployment, random).await;
    }
    clients_pool.stop();
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
}

/// The counts once nothing was opened or closed for longer than an idle connection is kept.
async fn at_rest(deployment: &Deployment) -> Open {
    let mut last = None;
    let mut since = Instant::now();
    eventually(2 * TEST_TIMEOUT, async || {
        let now = open(deployment).await;
        if last != Some(now) {
            (last, since) = (Some(now), Instant::now());
        }
        (since.elapsed() > 3 * UPSTREAM_IDLE).then_some(now)
    })
    .await
}

async fn open(deployment: &Deployment) -> Open {
    let Store::Postgres(database) = &deployment.store else { panic!("the connections are counted by PostgreSQL") };
    let ours = "select count(*) from pg_stat_activity where application_name = 'oncegate' and datname = $1";
    let client = database.client().await;
    let store: i64 = client.query_one(ours, &[&database.name]).await.unwrap().get(0);
    let process = deployment.slots[0].proxy.lock().await.pid().as_raw_nonzero();
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let store = usize::try_from(store).unwrap();
    Open { files: files - store, store }
}
