//! Commits whose wait for the synchronous standby is cancelled: PostgreSQL commits them locally, warns, and reports
//! success, and a failover forgets them.

use std::time::Duration;

use oncegate::store::{self, SettleResult, StoreSettings};
use tokio::task::{JoinHandle, block_in_place};
use tokio_postgres::Client;

use crate::harness::pgbouncer::Bouncer;
use crate::harness::postgres::{self, Cluster, TestDatabase};
use crate::harness::store_fixture::{completion, new_reserve_request, unwrap_lease};
use crate::harness::{Answer, Hold, Store, TEST_TIMEOUT, World, eventually};
use crate::store_postgres::faults::{COMMITTING, commits_wait_for};
use crate::store_postgres::number;
use crate::telemetry::Metrics;

/// A server whose commits can be made to wait for a standby that does not exist.
struct Primary {
    cluster: Cluster,
    database: TestDatabase,
    client: Client,
}

/// The task that cancels the wait of each commit.
struct Canceller(JoinHandle<()>);

impl Primary {
    async fn start() -> Self {
        let cluster = block_in_place(|| Cluster::start(""));
        let database = cluster.empty_database().await;
        let client = database.client().await;
        Self { cluster, database, client }
    }

    /// Makes each commit wait for a standby, and cancels each such wait.
    async fn cancels_waits(&self) -> Canceller {
        commits_wait_for("nobody", &self.cluster, &self.client).await;
        // The server's processes read the setting one after the other.
        let commits = self.database.client().await;
        let probe = tokio::spawn(async move {
            while commits.batch_execute("select pg_logical_emit_message(true, 'test', '')").await.is_ok() {}
        });
        let is_waiting = async || (number(&self.client, COMMITTING).await > 0).then_some(());
        eventually(TEST_TIMEOUT, is_waiting).await;
        probe.abort();
        let client = self.database.client().await;
        Canceller(tokio::spawn(async move {
            let cancel = "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'";
            // Until the test has ended, and with it the server.
            while client.batch_execute(cancel).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }))
    }

    /// Lets commits wait for no standby any more.
    async fn waits_no_more(&self, canceller: Canceller) {
        canceller.0.abort();
        commits_wait_for("", &self.cluster, &self.client).await;
    }

    async fn has(&self, rows: i64, condition: &str) {
        let sql = format!("select count(*) from oncegate.keys where {condition}");
        eventually(TEST_TIMEOUT, async || (number(&self.client, &sql).await == rows).then_some(())).await;
    }
}

async fn world(primary: &Primary) -> World {
    let store = Store::Postgres(primary.database.clone());
    World::with(store, |setup| setup.store("timeout = \"1s\"\nsweep_every = \"200ms\"")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_whose_wait_for_the_standby_was_cancelled_is_not_executed() {
    let primary = Primary::start().await;
    let world = world(&primary).await;
    let canceller = primary.cancels_waits().await;
    let refused = world.pay("k-1").send().await;
    assert_eq!(refused.outcome(), (503, "store-unavailable".to_owned()));
    // The commit is visible all the same.
    primary.has(1, "state = 'in_flight'").await;
    assert_eq!(world.upstream.calls(), 0);
    primary.waits_no_more(canceller).await;
    let executed =
        eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|answer| answer.status == 201));
    assert_eq!(executed.await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_whose_wait_for_the_standby_was_cancelled_is_unstored_until_a_commit_is_durable() {
    let primary = Primary::start().await;
    let world = world(&primary).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let canceller = primary.cancels_waits().await;
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.status, first.oncegate_status()), (201, Some("unstored")));
    // The commit is visible all the same.
    primary.has(1, "state = 'completed'").await;
    primary.waits_no_more(canceller).await;
    world.proxy.wait_for_log("an attempt's outcome is stored after all").await;
    let late = async |result: &str| {
        Metrics::of(&world.proxy).await.get(&format!("oncegate_late_completions_total{{result=\"{result}\"}}"))
    };
    assert_eq!((late("taken").await, late("dropped").await), (1.0, 0.0));
    let replay = eventually(TEST_TIMEOUT, async || {
        Some(world.pay("k-1").send().await).filter(|answer| answer.oncegate_status() == Some("replayed"))
    });
    assert_eq!(replay.await.body, first.body);
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_succeeds_while_waits_for_the_standby_are_cancelled() {
    let primary = Primary::start().await;
    no_call_succeeds(&primary, "direct", &primary.database).await;
    let Some(bouncer) = Bouncer::before(&primary.database).await else { return };
    no_call_succeeds(&primary, "pooled", &bouncer.to(&primary.database)).await;
}

async fn no_call_succeeds(primary: &Primary, key: &str, database: &TestDatabase) {
    let timeout = Duration::from_secs(1);
    let store = store::open(&StoreSettings { timeout, ..postgres::settings(&database.url) }).await.unwrap();
    let (before, during) = (new_reserve_request(key), new_reserve_request(&format!("{key}-during")));
    unwrap_lease(store.reserve(before.clone()).await.unwrap());
    let canceller = primary.cancels_waits().await;
    assert!(store.reserve(during).await.is_err());
    // The second call finds the outcome, which only a commit of its own could confirm.
    for call in ["first", "second"] {
        assert!(store.settle(completion(&before, b"paid")).await.is_err(), "{key}: the {call} call");
    }
    primary.has(1, &format!("state = 'completed' and id = '\\x{}'", hex(before.id.as_bytes()))).await;
    primary.waits_no_more(canceller).await;
    match store.settle(completion(&before, b"paid")).await.unwrap() {
        SettleResult::Done { .. } => {}
        SettleResult::Fenced(record) => assert!(record.unwrap().token.is_same(&before.token)),
    }
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}
