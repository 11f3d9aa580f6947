//! What was broken leaves nothing behind: a proxy's files and connections are as many as before.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::checker::Policy;
use crate::clients::Crowd;
use crate::dice::Dice;
use crate::fault::Fault;
use crate::harness::{PATIENCE, Store, eventually};
use crate::service::Service;
use crate::site::{On, Site, UPSTREAM_IDLE};

/// As it is where nothing is said about it.
const CONNECTIONS_MAX: usize = 8;

/// What a proxy has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    /// Beside the connections to the store.
    files: usize,
    store: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_everything_that_can_break_a_connection_a_proxy_has_as_many_open_as_before() {
    let (mut dice, begun) = (Dice::new(7), Instant::now());
    let service = Service::start(dice.split(), begun).await;
    let site = Site::start(On::Postgres, 1, Policy::Hold, service.address).await;
    load(&site, begun, &mut dice, &[]).await;
    let before = at_rest(&site).await;
    let faults = [Fault::CutStore, Fault::MuteStore, Fault::CutService, Fault::MuteService];
    load(&site, begun, &mut dice, &faults).await;
    let after = at_rest(&site).await;
    assert!(after.files <= before.files, "{before:?}, and then {after:?}");
    assert!((1..=CONNECTIONS_MAX).contains(&after.store), "{before:?}, and then {after:?}");
    site.close().await;
}

/// Clients come and go while these faults strike, one after the other.
async fn load(site: &Site, begun: Instant, dice: &mut Dice, faults: &[Fault]) {
    let crowd = Crowd::new(Arc::clone(&site.addresses), begun);
    let mut clients = crowd.start(24, dice);
    sleep(Duration::from_secs(1)).await;
    for fault in faults {
        fault.strike(site, dice).await;
    }
    crowd.stop();
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
}

/// What is open once nothing is opened or closed for longer than an idle connection is kept.
async fn at_rest(site: &Site) -> Open {
    let mut last = None;
    let mut since = Instant::now();
    eventually(2 * PATIENCE, async || {
        let now = open(site).await;
        if last != Some(now) {
            (last, since) = (Some(now), Instant::now());
        }
        (since.elapsed() > 3 * UPSTREAM_IDLE).then_some(now)
    })
    .await
}

async fn open(site: &Site) -> Open {
    let Store::Postgres(database) = &site.store else { panic!("the connections are counted by PostgreSQL") };
    let ours = "select count(*) from pg_stat_activity where application_name = 'oncegate' and datname = $1";
    let client = database.client().await;
    let store: i64 = client.query_one(ours, &[&database.name]).await.unwrap().get(0);
    let process = site.seats[0].proxy.lock().await.pid().as_raw_nonzero();
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let store = usize::try_from(store).unwrap();
    Open { files: files - store, store }
}
