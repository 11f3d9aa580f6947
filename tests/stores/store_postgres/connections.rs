//! Slow statements of one kind do not delay statements of another: each kind has its connections.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::recovery::RecoveryPoint;
use oncegate_domain::service_report::{ReportKind, ReportResult, ReservationHandle, ServiceReport};
use oncegate_store::{self as store, ExtendDeadlineParams, ListAuditEntriesParams, StoreSettings};
use serde_json::json;
use tokio_postgres::Client;

use crate::store_postgres::faults::{KILL, waiting};
use crate::store_postgres::number;
use harness::operator::Operator;
use harness::pgbouncer;
use harness::postgres::{self, NOW_MS, TestDatabase};
use harness::store_fixture::UNKNOWN;
use harness::store_fixture::{DAY, StoreFixture, completion, new_reserve_request, own_instance, renewal, settlement};
use harness::{Answer, Client as HttpClient, Hold, Store, TEST_TIMEOUT, World, eventually, route};

/// Far longer than a statement takes that waits for nothing, and far shorter than the
/// store's time limit in these tests.
const SOON: Duration = Duration::from_secs(2);

/// Inserts so many keys in this state, in flight under an instance that has no lease.
async fn insert_keys(client: &Client, state: &str, count: u32) {
    let settled = if state == "in_flight" { "null" } else { "now - 3600000" };
    let keys = format!(
        "insert into oncegate.keys (id, service, scope, space, key, route, recipe, fingerprint, token, instance, attempt,
                                    state, created_at, reserved_at, deadline, settled_at)
         select sha256(('{state}' || n)::bytea), 'default', sha256('s'), 'p', n::text::bytea, 'pay', '1', sha256('f'),
                substr(sha256(n::text::bytea), 1, 16), 77, 1, '{state}', now - 7200000, now - 7200000, now - 3600000,
                {settled}
           from generate_series(1, {count}) as n, (select {NOW_MS} as now) as t"
    );
    client.batch_execute(&keys).await.unwrap();
}

async fn lock_audit_log(database: &TestDatabase) -> Client {
    let holder = database.client().await;
    holder.batch_execute("begin; lock table oncegate.audit in access exclusive mode").await.unwrap();
    holder
}

#[tokio::test]
async fn a_slow_page_delays_no_sweep_heartbeat_settlement_or_report() {
    for max_connections in [6, 8, 10, 12] {
        let store = Store::postgres().await;
        let Store::Postgres(database) = &store else { unreachable!("it is PostgreSQL") };
        let (database, client) = (database.clone(), database.client().await);
        let world = World::with(store, |setup| {
            let settings = format!("max_connections = {max_connections}\ntimeout = \"10s\"");
            setup.short_leases().store(&settings).route(&route("pay", ""))
        })
        .await;
        let hold = Hold::new();
        world.upstream.then(Answer::status(201).hold(&hold));
        let first = world.pay("k-1").spawn();
        world.upstream.wait_for_executed(1).await;
        let reservation = world.upstream.last().field("oncegate-reservation").unwrap().to_owned();

        let holder = lock_audit_log(&database).await;
        let page = Operator::of(&world.proxy).request("GET", "/api/v1/audit").spawn();
        waiting(&database).await;
        let begun = Instant::now();
        insert_keys(&client, "in_flight", 10).await;
        let swept = "select count(*) from oncegate.keys where state = 'unknown'";
        eventually(SOON, async || (number(&client, swept).await == 10).then_some(())).await;
        let path = format!("/app/v1/reservations/{reservation}/recovery-point");
        let report = HttpClient { address: world.proxy.admin }.request("PUT", &path);
        let report = report.host(&world.proxy.admin.to_string()).json(&json!({ "name": "charged" }).to_string());
        assert_eq!(report.send().await.status, 200);
        let renewals = format!("select count(*) from oncegate.instances where renewed_at > {NOW_MS} - 600");
        eventually(SOON, async || (number(&client, &renewals).await == 1).then_some(())).await;
        assert_eq!(world.proxy.readyz().await.0, 200);
        hold.release();
        assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("executed"));
        assert!(begun.elapsed() < SOON, "{max_connections} connections: {:?}", begun.elapsed());
        assert!(!page.is_finished(), "the page waits all the time");
        holder.batch_execute("rollback").await.unwrap();
        assert_eq!(page.await.unwrap().unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_request_that_is_alone_is_reserved_and_settled_on_its_workers_own_connection() {
    for (max_connections, has_own) in [(8, false), (10, true)] {
        let (world, client) = world_with_connections(max_connections).await;
        // Whether the newest payment was reserved and settled on one connection: its
        // newest statement is the settlement.
        let mut paid = 0;
        let mut pay_on_one = async || {
            let now = "select extract(epoch from clock_timestamp())::float8";
            let since: f64 = client.query_one(now, &[]).await.unwrap().get(0);
            pay(&world, &format!("k-{paid}")).await;
            paid += 1;
            let sessions = format!(
                "select count(*) from pg_stat_activity where datname = current_database() and query like '%.reserve\\_%'
                                                         and extract(epoch from query_start) > {since}"
            );
            number(&client, &sessions).await == 0
        };
        for _ in 0..2 {
            if has_own {
                eventually(TEST_TIMEOUT, async || pay_on_one().await.then_some(())).await;
            } else {
                for _ in 0..12 {
                    assert!(!pay_on_one().await);
                }
            }
            // What ends the connection delays no request, and the next one is made meanwhile.
            let end = format!("{KILL} and query like '%.settle\\_%'");
            client.query(&end, &[]).await.unwrap();
        }
        assert_eq!(world.upstream.executed().len(), paid);
    }
}

#[tokio::test]
async fn a_request_that_is_alone_goes_through_a_lane_where_its_worker_gets_no_connection() {
    let (world, client) = world_with_connections(10).await;
    let Store::Postgres(other) = Store::postgres().await else { unreachable!("it is PostgreSQL") };
    let outside = other.client().await;
    let name: String = client.query_one("select current_database()::text", &[]).await.unwrap().get(0);
    let allow_connections = async |allowed: bool| {
        outside.batch_execute(&format!("alter database \"{name}\" allow_connections {allowed}")).await.unwrap();
    };
    for n in 0..4 {
        pay(&world, &format!("before-{n}")).await;
    }
    allow_connections(false).await;
    for n in 0..20 {
        pay(&world, &format!("k-{n}")).await;
    }
    allow_connections(true).await;
    assert_eq!(number(&client, "select count(*) from oncegate.keys where state = 'completed'").await, 24);
}

async fn world_with_connections(max_connections: u32) -> (World, Client) {
    let store = Store::postgres().await;
    let Store::Postgres(database) = &store else { unreachable!("it is PostgreSQL") };
    let client = database.client().await;
    let settings = format!("max_connections = {max_connections}");
    (World::with(store, |setup| setup.store(&settings).route(&route("pay", ""))).await, client)
}

async fn pay(world: &World, key: &str) {
    assert_eq!(world.pay(key).send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn dead_instances_keys_are_swept_while_pages_of_many_unknown_keys_are_read() {
    let store = Store::postgres().await;
    let Store::Postgres(database) = &store else { unreachable!("it is PostgreSQL") };
    let client = database.client().await;
    insert_keys(&client, "unknown", 20_000).await;
    client.batch_execute("analyze oncegate.keys").await.unwrap();
    let world = World::with(store, |setup| setup.short_leases().route(&route("pay", ""))).await;
    let operator = Operator::of(&world.proxy);
    // Each reads 10,000 rows and finds nothing.
    let pages = (0..200).map(move |_| async move {
        loop {
            operator.request("GET", "/api/v1/keys?key=absent").send().await;
        }
    });
    let incident = tokio::spawn(async { join_all(pages).await });
    let reading = "select count(*) from pg_stat_activity where query like '-- list_keys%' and state = 'active'";
    eventually(TEST_TIMEOUT, async || (number(&client, reading).await > 0).then_some(())).await;
    let begun = Instant::now();
    insert_keys(&client, "in_flight", 2_000).await;
    let left = "select count(*) from oncegate.keys where state = 'in_flight'";
    eventually(TEST_TIMEOUT, async || (number(&client, left).await == 0).then_some(())).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(!incident.is_finished());
    incident.abort();
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
        world.settle(settlement(key, UNKNOWN)).await;
    }))
    .await;
    let holder = world.database().client().await;
    holder.batch_execute("begin; select from oncegate.keys where key = 'k-250' for update").await.unwrap();
    let reached = || ReportKind::Reached(RecoveryPoint::parse("charged").unwrap());
    for (kind, reported) in [
        (&reached as &dyn Fn() -> ReportKind, "recovery_point = 'charged'"),
        (&|| ReportKind::NotExecuted(DAY), "state = 'retryable'"),
    ] {
        let reports = keys.iter().map(|key| world.store().record_report(report(key, kind())));
        let results: Vec<_> = join_all(reports).await.into_iter().map(Result::unwrap).collect();
        let held: Vec<_> = (0..).zip(&results).filter(|(_, result)| **result != ReportResult::Taken).collect();
        assert_eq!(held, [(250, &ReportResult::Held)]);
        let reported = format!("from oncegate.keys where {reported}");
        assert_eq!(number(&client, &format!("select count(*) {reported}")).await, 499);
        let commits = number(&client, &format!("select count(distinct xmin::text) {reported}")).await;
        assert!(commits <= 20, "{commits} commits");
    }
    holder.batch_execute("rollback").await.unwrap();
    let late = world.store().record_report(report(&keys[250], ReportKind::NotExecuted(DAY)));
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
    world.settle(settlement(&lost, UNKNOWN)).await;
    let holder = lock_audit_log(world.database()).await;
    // Its connection must be free in the second round.
    for _ in 0..2 {
        let reported = store.record_report(report(&lost, ReportKind::NotExecuted(DAY)));
        let others = async {
            let begun = Instant::now();
            store.settle(completion(&running, b"paid")).await.unwrap();
            store.renew_lease(renewal(own_instance(), DAY)).await.unwrap();
            assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        };
        let (refused, ()) = join(reported, others).await;
        assert_eq!(refused.unwrap(), ReportResult::Held);
    }
    holder.batch_execute("rollback").await.unwrap();
    let late = store.record_report(report(&lost, ReportKind::NotExecuted(DAY)));
    assert_eq!(late.await.unwrap(), ReportResult::Taken);
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
    let extend = |key: &ReserveRequest| {
        world.store().extend_deadline(ExtendDeadlineParams { id: key.id, token: key.token, time_limit: DAY })
    };
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

#[tokio::test]
async fn a_page_whose_reader_has_gone_leaves_no_statement_at_the_server() {
    let database = postgres::database().await;
    let pooled = pgbouncer::shared(&database).await.map(|bouncer| bouncer.to(&database).url);
    for url in [Some(database.url.clone()), pooled].into_iter().flatten() {
        let settings = StoreSettings { timeout: Duration::from_secs(1), ..postgres::settings(&url) };
        let store = store::open(&settings).await.unwrap();
        let client = database.client().await;
        let holder = lock_audit_log(&database).await;
        store
            .list_audit_entries(ListAuditEntriesParams { service: "shop".into(), id: None, before: None, limit: 10 })
            .await
            .unwrap_err();
        let blocked = "select count(*) from pg_stat_activity
          where datname = current_database() and query like '%list_audit_entries%' and wait_event_type = 'Lock'";
        eventually(SOON, async || (number(&client, blocked).await == 0).then_some(())).await;
        holder.batch_execute("rollback").await.unwrap();
        // Nothing of the limit stays in the session.
        for _ in 0..3 {
            store
                .list_audit_entries(ListAuditEntriesParams {
                    service: "shop".into(),
                    id: None,
                    before: None,
                    limit: 10,
                })
                .await
                .unwrap();
        }
        drop(store);
    }
}
