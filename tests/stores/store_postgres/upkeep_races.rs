//! Upkeep beside a request or a decision that commits at the same moment.

use futures_util::future::join;
use oncegate_domain::service_report::{ReportKind, ReportResult, ReservationHandle, ServiceReport};

use harness::store_fixture::{
    DAY, StoreFixture, UNKNOWN, completion, new_enqueue_request, new_reserve_request, settlement,
};
use harness::{TEST_TIMEOUT, eventually};

/// Lets a write wait for a lock for as long as it is held, so that a test can decide who commits first.
const WAIT_FOR_LOCKS: &str = "
    create or replace function oncegate.begin_write(lock_limit text default null) returns bigint language sql volatile
    as 'select floor(date_part(''epoch'', clock_timestamp()) * 1000)::bigint'";

/// Runs this in a transaction, commits it once a write of Oncegate waits for it, and returns what that write answers.
async fn beside<T>(world: &StoreFixture, sql: &str, write: impl Future<Output = T>) -> T {
    let client = world.database().client().await;
    client.batch_execute(WAIT_FOR_LOCKS).await.unwrap();
    client.batch_execute(&format!("begin; {sql}")).await.unwrap();
    let committing = async {
        // Another session: within a transaction the view does not change.
        let onlooker = world.database().client().await;
        let waits = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        eventually(TEST_TIMEOUT, async || onlooker.query_opt(waits, &[]).await.unwrap()).await;
        client.batch_execute("commit").await.unwrap();
    };
    join(write, committing).await.0
}

#[tokio::test]
async fn the_reaper_spares_the_request_of_a_key_that_is_accepted_anew_at_that_moment() {
    let mut world = StoreFixture::postgres().await;
    let key = new_reserve_request("k");
    world.enqueue(new_enqueue_request(&key), None).await;
    // Its instance died before it deleted the request, and the TTL is over.
    let completed = "update oncegate.keys set state = 'completed', status = 200, fields = '', due_at = null,
                            settled_at = created_at + 1, expires_at = created_at + 2";
    world.execute_sql(completed).await.unwrap();
    let accepted = "update oncegate.outbox set since = since + 1000;
                    update oncegate.keys set state = 'queued', status = null, fields = null, settled_at = created_at + 1000,
                           expires_at = null, due_at = created_at + 1000";
    let reaped = beside(&world, accepted, world.reap(10)).await;
    assert_eq!((reaped.deleted, world.rows_of("outbox").await), (0, 1));
    assert_eq!(world.find(&key).await.state.name(), "queued");
}

#[tokio::test]
async fn a_report_of_not_executed_counts_for_a_key_that_is_given_up_at_that_moment() {
    let mut world = StoreFixture::postgres().await;
    let key = new_reserve_request("k");
    world.reserve(&key).await;
    let handle = ReservationHandle { id: key.id, token: key.token };
    let kind = ReportKind::NotExecuted(DAY);
    let report = ServiceReport { service: "shop".into(), handle, kind };
    assert_eq!(world.store().record_report(report).await.unwrap(), ReportResult::Noted);
    world.settle(settlement(&key, UNKNOWN)).await;
    let given_up = "update oncegate.keys set state = 'dead'";
    let released = beside(&world, given_up, world.store().apply_deferred_reports(10)).await;
    assert_eq!(released.unwrap(), [key.id]);
    assert_eq!((world.find(&key).await.state.name(), world.deferred_reports().await), ("retryable", 0));
}

#[tokio::test]
async fn a_locked_row_keeps_the_reaper_from_no_other() {
    let world = StoreFixture::postgres().await;
    for key in ["locked", "free-1", "free-2"] {
        let request = new_reserve_request(key);
        world.reserve(&request).await;
        world.settle(completion(&request, b"paid")).await;
    }
    let client = world.database().client().await;
    client.batch_execute("update oncegate.keys set settled_at = created_at, expires_at = created_at").await.unwrap();
    client.batch_execute("begin; select from oncegate.keys where key = 'locked'::bytea for update").await.unwrap();
    assert_eq!(world.reap(10).await.deleted, 2);
    client.batch_execute("rollback").await.unwrap();
    assert_eq!(world.reap(10).await.deleted, 1);
    assert_eq!(world.reap(10).await.deleted, 0);
}
