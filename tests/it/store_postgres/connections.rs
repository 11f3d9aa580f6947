//! Slow statements of one kind do not delay statements of another: each kind has its connections.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use oncegate::domain::attempt::{AttemptOutcome, ReserveRequest};
use oncegate::domain::recovery::RecoveryPoint;
use oncegate::domain::service_report::{ReportKind, ReportResult, ReservationHandle, ServiceReport};
use oncegate::store::{self, StoreSettings};
use tokio_postgres::Client;

use crate::harness::eventually;
use crate::harness::postgres::Database;
use crate::harness::store_fixture::{
    DAY, StoreFixture, completion, new_reserve_request, own_instance, renewal, settlement,
};
use crate::store_postgres::faults::waiting;
use crate::store_postgres::number;

/// Far longer than a statement takes that waits for nothing, and far shorter than the store's time limit in these tests.
const SOON: Duration = Duration::from_secs(2);

async fn lock_audit_log(database: &Database) -> Client {
    let holder = database.client().await;
    holder.batch_execute("begin; lock table oncegate.audit in access exclusive mode").await.unwrap();
    holder
}

fn report(reserve_request: &ReserveRequest, kind: ReportKind) -> ServiceReport {
    let handle = ReservationHandle { id: reserve_request.id, token: reserve_request.token };
    ServiceReport { service: reserve_request.service.clone(), handle, kind }
}

#[tokio::test]
async fn reports_of_many_keys_take_few_commits_beside_a_held_row() {
    let world = StoreFixture::postgres().await;
    let client = world.database().client().await;
    let keys: Vec<_> = (0..500).map(|n| new_reserve_request(&format!("k-{n}"))).collect();
    join_all(keys.iter().map(async |key| {
        world.reserve(key).await;
        world.settle(settlement(key, AttemptOutcome::Unknown)).await;
    }))
    .await;
    let holder = world.database().client().await;
    holder.batch_execute("begin; select from oncegate.keys where key = 'k-250' for update").await.unwrap();
    let reached = || ReportKind::Reached(RecoveryPoint::parse("charged").unwrap());
    for (kind, reported) in [
        (&reached as &dyn Fn() -> ReportKind, "recovery_point = 'charged'"),
        (&|| ReportKind::NotExecuted(DAY), "state = 'retryable'"),
    ] {
        let reports = keys.iter().map(|key| world.store().service_reports().record_report(report(key, kind())));
        let results: Vec<_> = join_all(reports).await.into_iter().map(Result::unwrap).collect();
        let held: Vec<_> = (0..).zip(&results).filter(|(_, result)| **result != ReportResult::Taken).collect();
        assert_eq!(held, [(250, &ReportResult::Held)]);
        let reported = format!("from oncegate.keys where {reported}");
        assert_eq!(number(&client, &format!("select count(*) {reported}")).await, 499);
        let commits = number(&client, &format!("select count(distinct xmin::text) {reported}")).await;
        assert!(commits <= 20, "{commits} commits");
    }
    holder.batch_execute("rollback").await.unwrap();
    let late = world.store().service_reports().record_report(report(&keys[250], ReportKind::NotExecuted(DAY)));
    assert_eq!(late.await.unwrap(), ReportResult::Taken);
}

#[tokio::test]
async fn reports_that_wait_for_the_audit_log_delay_no_settlement() {
    let world = StoreFixture::postgres().await;
    let settings = StoreSettings { timeout: Duration::from_secs(3), ..world.settings.clone() };
    let store = store::open(&settings).await.unwrap();
    let (lost, running) = (new_reserve_request("lost"), new_reserve_request("running"));
    world.reserve(&lost).await;
    world.reserve(&running).await;
    world.settle(settlement(&lost, AttemptOutcome::Unknown)).await;
    let holder = lock_audit_log(world.database()).await;
    // Its caller gives up in the first round, and the connection must be free in the second one.
    for _ in 0..2 {
        let reported = store.service_reports().record_report(report(&lost, ReportKind::NotExecuted(DAY)));
        let others = async {
            waiting(world.database()).await;
            let begun = Instant::now();
            store.settle(completion(&running, b"paid")).await.unwrap();
            store.renew_lease(renewal(own_instance(), DAY)).await.unwrap();
            assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        };
        let (refused, ()) = join(reported, others).await;
        refused.unwrap_err();
    }
    holder.batch_execute("rollback").await.unwrap();
    // The last statement may hold the row until the server has ended it.
    eventually(SOON, async || {
        let late = store.service_reports().record_report(report(&lost, ReportKind::NotExecuted(DAY)));
        (late.await.unwrap() == ReportResult::Taken).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_deadline_of_a_held_row_moves_later_and_delays_no_other() {
    let world = StoreFixture::postgres().await;
    let keys = ["held", "free"].map(new_reserve_request);
    for key in &keys {
        world.reserve(key).await;
    }
    let holder = world.database().client().await;
    holder.batch_execute("begin; select from oncegate.keys where key = 'held' for update").await.unwrap();
    let extend = |key: &ReserveRequest| world.store().extend_deadline(key.id, key.token, DAY);
    let others = async {
        let begun = Instant::now();
        assert!(extend(&keys[1]).await.unwrap());
        world.settle(completion(&keys[1], b"paid")).await;
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        holder.batch_execute("rollback").await.unwrap();
    };
    let (held, ()) = join(extend(&keys[0]), others).await;
    assert!(held.unwrap());
}
