//! Several hosts in the URL, of which one accepts connections and says nothing, as a frozen server does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use oncegate_store as store;
use tokio::net::TcpListener;
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::store_postgres::number;
use harness::postgres::{self, Cluster};
use harness::store_fixture::{new_reserve_request, unwrap_lease};
use harness::{TEST_TIMEOUT, eventually};

/// A host that accepts every connection and never sends a byte.
struct SilentHost {
    address: String,
    accepted: Arc<AtomicUsize>,
}

impl SilentHost {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepted = Arc::new(AtomicUsize::new(0));
        let counter = accepted.clone();
        tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Ok((connection, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                kept.push(connection);
            }
        });
        Self { address, accepted }
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn a_silent_host_is_passed_over_at_start_and_not_tried_again() {
    let (silent, database) = (SilentHost::start().await, postgres::database().await);
    let hosts = format!("{},{}", silent.address, database.address());
    let store = store::open(&postgres::settings(&database.at(&hosts).url)).await.unwrap();
    let tries = silent.accepted();
    assert!(tries >= 2, "the first host is looked at, and tried first");
    join_all((0..50).map(|i| store.reserve(new_reserve_request(&format!("k-{i}"))))).await.into_iter().for_each(
        |reservation| {
            unwrap_lease(reservation.unwrap());
        },
    );
    assert_eq!(silent.accepted(), tries, "no later connection waits for the silent host");
}

#[tokio::test]
async fn connect_timeout_limits_the_wait_for_each_silent_host() {
    let (silent, database) = (SilentHost::start().await, postgres::database().await);
    let hosts = format!("{0},{0},{1}", silent.address, database.address());
    let url = format!("{}?connect_timeout=1", database.at(&hosts).url);
    let begun = Instant::now();
    let store = store::open(&postgres::settings(&url)).await.unwrap();
    let passed = begun.elapsed();
    assert!(passed >= Duration::from_secs(2) && passed < Duration::from_secs(15), "{passed:?}");
    unwrap_lease(store.reserve(new_reserve_request("k")).await.unwrap());
    assert_eq!(silent.accepted(), 4, "each was looked at and tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_passes_over_a_silent_host() {
    let primary = block_in_place(|| Cluster::start(""));
    let database = primary.empty_database().await;
    let standby = block_in_place(|| primary.standby());
    let (silent, new) = (SilentHost::start().await, standby.same(&database));
    let hosts = format!("{},{},{}", database.address(), silent.address, new.address());
    let store = store::open(&postgres::settings(&database.at(&hosts).url)).await.unwrap();
    unwrap_lease(store.reserve(new_reserve_request("before")).await.unwrap());
    let client = new.client().await;
    let arrived = "select count(*) from oncegate.keys";
    eventually(TEST_TIMEOUT, async || {
        let rows = client.query_one(arrived, &[]).await.ok()?;
        (rows.get::<_, i64>(0) == 1).then_some(())
    })
    .await;
    block_in_place(|| {
        primary.kill9();
        standby.promote();
    });
    eventually(TEST_TIMEOUT, async || store.reserve(new_reserve_request("after")).await.ok()).await;
    let tries = silent.accepted();
    assert!(tries >= 1);
    join_all((0..50).map(|i| store.reserve(new_reserve_request(&format!("k-{i}"))))).await.into_iter().for_each(
        |reservation| {
            unwrap_lease(reservation.unwrap());
        },
    );
    store.ping().await.unwrap();
    assert_eq!(silent.accepted(), tries, "no later connection waits for the silent host");
    assert!(number(&client, arrived).await >= 52);
}
