//! What breaks, one kind of fault after the other, and then everything together.

use std::time::Duration;

use crate::checker::Policy;
use crate::fault::Fault;
use crate::site::{LEASE, On, UPSTREAM_TIMEOUT};
use crate::storm::Plan;

/// As it stands in `reconcile.after`.
const AFTER: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_proxies_on_postgres_killed_at_random_execute_nothing_twice_and_lose_nothing() {
    Plan::new(On::Postgres, 3).seconds_from("ONCEGATE_SOAK_SECONDS").strikes(Fault::Kill, 4).at_once(2).run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_on_sqlite_killed_at_random_executes_nothing_twice_and_loses_nothing() {
    Plan::new(On::Sqlite, 3).seconds_from("ONCEGATE_SOAK_SECONDS").strikes(Fault::Kill, 3).run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxies_that_stand_still_past_their_leases_execute_nothing_twice() {
    // How many late answers complete an unknown key is a matter of chance here; that they do is a test in `tests/it/crash.rs`.
    let report = Plan::new(On::Postgres, 4).strikes(Fault::Pause, 2).run().await;
    assert_eq!(report.repeated, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_route_retries_what_is_unknown_nothing_else_is_repeated() {
    let report = Plan::new(On::Postgres, 4).policy(Policy::Retry).strikes(Fault::Pause, 2).run().await;
    assert!(report.repeated > 0, "nothing was taken over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_route_retries_when_it_is_quiet_nothing_is_repeated_before() {
    let quiet = Policy::RetryWhenQuiet(UPSTREAM_TIMEOUT + LEASE + AFTER);
    Plan::new(On::Postgres, 7).policy(quiet).strikes(Fault::Pause, 2).run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_crashes_or_freezes_or_lets_nobody_in_costs_nothing_that_was_acknowledged() {
    let plan = Plan::new(On::OwnPostgres, 4).strikes(Fault::CrashStore, 1);
    let report = plan.strikes(Fault::FreezeStore, 1).strikes(Fault::CrowdStore, 1).run().await;
    assert!(report.troubled > 0, "nobody has felt it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_wire_to_postgres_costs_nothing_that_was_acknowledged() {
    let plan = Plan::new(On::Postgres, 4).strikes(Fault::CutStore, 1).strikes(Fault::MuteStore, 1);
    let report = plan.at_once(2).run().await;
    assert!(report.troubled > 0, "nobody has felt it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_wire_to_the_service_executes_nothing_twice() {
    let plan = Plan::new(On::Postgres, 4).strikes(Fault::CutService, 1).strikes(Fault::MuteService, 1);
    plan.at_once(2).run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_breaks_together_on_postgres_nothing_is_executed_twice_and_nothing_is_lost() {
    let all = [
        Fault::Kill,
        Fault::Pause,
        Fault::CrashStore,
        Fault::FreezeStore,
        Fault::CrowdStore,
        Fault::CutStore,
        Fault::MuteStore,
        Fault::CutService,
        Fault::MuteService,
    ];
    let plan = Plan::new(On::OwnPostgres, 5).seconds_from("ONCEGATE_TORTURE_SECONDS").at_once(2);
    all.into_iter().fold(plan, |plan, fault| plan.strikes(fault, 1)).run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_breaks_together_on_sqlite_nothing_is_executed_twice_and_nothing_is_lost() {
    let all = [Fault::Kill, Fault::Pause, Fault::CutService, Fault::MuteService];
    let plan = Plan::new(On::Sqlite, 4).seconds_from("ONCEGATE_TORTURE_SECONDS").at_once(2);
    all.into_iter().fold(plan, |plan, fault| plan.strikes(fault, 1)).run().await;
}
