//! Runs with one kind of fault each, and runs with all faults combined.

use std::time::Duration;

use crate::checker::Policy;
use crate::deployment::{LEASE, StoreKind, UPSTREAM_TIMEOUT};
use crate::fault::Fault;
use crate::fault_run::{FaultPlan, Quota};
use crate::history::TargetRoute;
use harness::citus::CitusCluster;
use harness::failover::FailoverEvent;
use harness::skip;

/// The setting of `reconcile.after`.
const AFTER: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_proxies_on_postgres_killed_at_random_execute_nothing_twice_and_lose_nothing() {
    FaultPlan::new(StoreKind::Postgres, 3)
        .seconds_from("ONCEGATE_SOAK_SECONDS")
        .with_fault(Fault::Kill, 4)
        .concurrent_faults(2)
        .run()
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_on_sqlite_killed_at_random_executes_nothing_twice_and_loses_nothing() {
    FaultPlan::new(StoreKind::Sqlite, 3).seconds_from("ONCEGATE_SOAK_SECONDS").with_fault(Fault::Kill, 3).run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxies_paused_past_their_leases_execute_nothing_twice() {
    // The number of late answers that complete an unknown key is random here; `tests/stores/crash.rs` tests that they
    // do.
    let report = FaultPlan::new(StoreKind::Postgres, 4).with_fault(Fault::Pause, 2).run().await;
    assert_eq!(report.repeated, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_on_unknown_retry_only_unknown_outcomes_are_repeated() {
    let report = FaultPlan::new(StoreKind::Postgres, 4).policy(Policy::Retry).with_fault(Fault::Pause, 2).run().await;
    assert!(report.repeated > 0, "nothing was taken over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_retry_when_quiet_nothing_is_repeated_before_the_quiet_time() {
    let quiet = Policy::RetryWhenQuiet(UPSTREAM_TIMEOUT + LEASE + AFTER);
    FaultPlan::new(StoreKind::Postgres, 7).policy(quiet).with_fault(Fault::Pause, 2).run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_frozen_or_full_postgres_loses_nothing_acknowledged() {
    let plan = FaultPlan::new(StoreKind::OwnPostgres, 4).with_fault(Fault::CrashStore, 1);
    let report = plan.with_fault(Fault::FreezeStore, 1).with_fault(Fault::ExhaustStore, 1).run().await;
    assert!(report.troubled > 0, "no request was affected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_faulty_network_to_postgres_loses_nothing_acknowledged() {
    let plan = FaultPlan::new(StoreKind::Postgres, 4).with_fault(Fault::CutStore, 1).with_fault(Fault::SilenceStore, 1);
    let report = plan.concurrent_faults(2).run().await;
    assert!(report.troubled > 0, "no request was affected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_overtake_each_other_execute_nothing_twice() {
    let plan = FaultPlan::new(StoreKind::Postgres, 8).with_fault(Fault::DelayStore, 3).concurrent_faults(6);
    plan.seconds_from("ONCEGATE_TORTURE_SECONDS").run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_faulty_network_to_the_service_executes_nothing_twice() {
    let plan =
        FaultPlan::new(StoreKind::Postgres, 4).with_fault(Fault::CutService, 1).with_fault(Fault::SilenceService, 1);
    plan.concurrent_faults(2).run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_faults_combined_on_postgres_execute_nothing_twice_and_lose_nothing() {
    torture(FaultPlan::new(StoreKind::OwnPostgres, 5), 40)
        .with_quota(Fault::CrashStore, Quota::per_ten_minutes(12))
        .with_quota(Fault::FreezeStore, Quota::per_ten_minutes(5))
        .with_quota(Fault::ExhaustStore, Quota::per_ten_minutes(5))
        .with_quota(Fault::CutStore, Quota::per_ten_minutes(20))
        .with_quota(Fault::SilenceStore, Quota::per_ten_minutes(20))
        .with_quota(Fault::DelayStore, Quota::per_ten_minutes(10))
        .run()
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_faults_combined_on_sqlite_execute_nothing_twice_and_lose_nothing() {
    torture(FaultPlan::new(StoreKind::Sqlite, 4), 60).run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes, and needs Patroni, etcd and HAProxy: make torture"]
async fn all_faults_combined_under_patroni_execute_nothing_twice_and_lose_nothing() {
    torture(FaultPlan::new(StoreKind::Patroni, 60), 30)
        .with_quota(Fault::Failover(FailoverEvent::Switchover), Quota::per_ten_minutes(5))
        .with_quota(Fault::Failover(FailoverEvent::KilledServer), Quota::per_ten_minutes(5))
        .with_quota(Fault::Failover(FailoverEvent::CutNode), Quota::per_ten_minutes(1))
        .with_quota(Fault::CutReplication, Quota::per_ten_minutes(3))
        .with_quota(Fault::CutStore, Quota::per_ten_minutes(20))
        .with_quota(Fault::SilenceStore, Quota::per_ten_minutes(20))
        .run()
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes, and needs the extension citus: make torture"]
async fn all_faults_combined_on_citus_execute_nothing_twice_and_lose_nothing() {
    if !CitusCluster::is_installed() {
        return skip("this machine's PostgreSQL lacks the extension citus");
    }
    torture(FaultPlan::new(StoreKind::Citus, 60), 30)
        .with_quota(Fault::KilledNode, Quota::per_ten_minutes(12))
        .with_quota(Fault::CutStore, Quota::per_ten_minutes(20))
        .with_quota(Fault::SilenceStore, Quota::per_ten_minutes(20))
        .with_quota(Fault::DelayStore, Quota::per_ten_minutes(10))
        .run()
        .await;
}

/// Each as often as it is chosen.
const ROUTES: [TargetRoute; 7] = [
    TargetRoute::Pay,
    TargetRoute::Pay,
    TargetRoute::Later,
    TargetRoute::Preferred,
    TargetRoute::Batched,
    TargetRoute::Placed,
    TargetRoute::Refreshed,
];

/// The plan with the faults that every store has, so many kills in ten minutes, and the quotas of a long run.
fn torture(plan: FaultPlan, kills: usize) -> FaultPlan {
    plan.seconds_from("ONCEGATE_TORTURE_SECONDS")
        .routes(&ROUTES)
        .messages_if_long()
        .orders()
        .concurrent_faults(2)
        .with_quota(Fault::Kill, Quota::per_ten_minutes(kills))
        .with_quota(Fault::Pause, Quota::per_ten_minutes(20))
        .with_quota(Fault::HandOver, Quota::per_ten_minutes(20))
        .with_quota(Fault::CutService, Quota::per_ten_minutes(20))
        .with_quota(Fault::SilenceService, Quota::per_ten_minutes(20))
        .connection_faults(Quota::per_ten_minutes(600))
        .operations(Quota::per_ten_minutes(6_000))
}
