//! PgBouncer in transaction mode between Oncegate and its server. The whole contract is tested through it, too.

use std::time::Duration;

use futures_util::future::{join, join_all};
use oncegate_store::{self as store, SettleResult, StoreError, StoreSettings};

use crate::store_postgres::faults::{KILL, waiting};
use crate::store_postgres::number;
use harness::pgbouncer::{self, Bouncer};
use harness::postgres::{self, Cluster};
use harness::store_fixture::{completion, new_reserve_request, unwrap_lease};
use harness::{Store, TEST_TIMEOUT, World, eventually};

/// A fault during a running statement.
#[derive(Clone, Copy, Debug)]
enum Fault {
    ConnectionsDropped,
    PoolerKilled,
    SessionKilled,
}

#[tokio::test]
async fn a_call_interrupted_at_the_pooler_is_repeated_or_found() {
    let database = postgres::database().await;
    let Some(mut bouncer) = Bouncer::before(&database).await else { return };
    let store = store::open(&postgres::settings(&bouncer.to(&database).url)).await.unwrap();
    let client = database.client().await;
    for fault in [Fault::ConnectionsDropped, Fault::PoolerKilled, Fault::SessionKilled] {
        let reserve_request = new_reserve_request(&format!("{fault:?}"));
        for settles in [false, true] {
            // The statement that PgBouncer left behind waits on in its session, and is executed beside the one that was
            // sent again.
            client.batch_execute("begin; lock table oncegate.keys in access exclusive mode").await.unwrap();
            let meddler = async {
                waiting(&database).await;
                match fault {
                    Fault::ConnectionsDropped => bouncer.drop_connections(&database).await,
                    Fault::PoolerKilled => bouncer.restart().await,
                    Fault::SessionKilled => database.client().await.batch_execute(KILL).await.unwrap(),
                }
                client.batch_execute("rollback").await.unwrap();
            };
            if settles {
                let (settled, ()) = join(store.settle(completion(&reserve_request, b"paid")), meddler).await;
                let settled = settled.unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
                assert!(matches!(settled, SettleResult::Done { expires_at: Some(_) }), "{fault:?}: {settled:?}");
            } else {
                let (reservation, ()) = join(store.reserve(reserve_request.clone()), meddler).await;
                let lease = unwrap_lease(reservation.unwrap_or_else(|error| panic!("{fault:?}: {error:?}")));
                assert_eq!((lease.reserve_request.token, lease.attempt), (reserve_request.token, 1), "{fault:?}");
            }
        }
        assert_eq!(store.find(reserve_request.id).await.unwrap().unwrap().state.name(), "completed");
    }
}

#[tokio::test]
async fn statements_are_prepared_where_no_pooler_shares_the_session() {
    for behind_pooler in [false, true] {
        let database = postgres::database().await;
        let url = if behind_pooler {
            let Some(bouncer) = pgbouncer::shared(&database).await else { continue };
            bouncer.to(&database).url
        } else {
            database.url.clone()
        };
        let store = store::open(&postgres::settings(&url)).await.unwrap();
        database.note_prepared_statements().await;
        let reserve_request = new_reserve_request("k-1");
        unwrap_lease(store.reserve(reserve_request.clone()).await.unwrap());
        store.settle(completion(&reserve_request, b"paid")).await.unwrap();
        let expected = if behind_pooler { [0, 0] } else { [1, 1] };
        assert_eq!(database.noted_prepared_statements().await, expected, "behind a pooler: {behind_pooler}");
    }
}

#[tokio::test]
async fn a_call_whose_prepared_statement_is_gone_is_executed_unprepared() {
    let database = postgres::database().await;
    let settings = StoreSettings { max_connections: 6, ..postgres::settings(&database.url) };
    let store = store::open(&settings).await.unwrap();
    // As if the next statement met another session.
    let forget = "create function forget() returns trigger language plpgsql as
                  'begin execute ''deallocate all''; return null; end';
                  create trigger forget after insert or update on oncegate.keys for each row execute function forget()";
    database.client().await.batch_execute(forget).await.unwrap();
    for key in ["k-1", "k-2", "k-3"] {
        let reserve_request = new_reserve_request(key);
        unwrap_lease(store.reserve(reserve_request.clone()).await.unwrap());
        let settled = store.settle(completion(&reserve_request, b"paid")).await.unwrap();
        assert!(matches!(settled, SettleResult::Done { .. }), "{settled:?}");
    }
}

#[tokio::test]
async fn a_call_that_the_server_refuses_is_executed_once() {
    let database = postgres::database().await;
    let store = store::open(&postgres::settings(&database.url)).await.unwrap();
    // A sequence counts executions that are rolled back, too.
    let refuse = "create sequence public.executions;
                  create function refuse() returns trigger language plpgsql as
                  'begin perform nextval(''public.executions''); raise exception ''no''; end';
                  create trigger refuse before insert on oncegate.keys for each row execute function refuse()";
    let client = database.client().await;
    client.batch_execute(refuse).await.unwrap();
    store.reserve(new_reserve_request("k-1")).await.unwrap_err();
    assert_eq!(number(&client, "select last_value from public.executions").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_without_its_server_fails_calls_in_time_and_works_when_it_is_back() {
    let cluster = tokio::task::block_in_place(|| Cluster::start(""));
    let database = cluster.empty_database().await;
    let Some(bouncer) = Bouncer::before(&database).await else { return };
    let settings =
        StoreSettings { timeout: Duration::from_millis(500), ..postgres::settings(&bouncer.to(&database).url) };
    let store = store::open(&settings).await.unwrap();
    unwrap_lease(store.reserve(new_reserve_request("before")).await.unwrap());
    tokio::task::block_in_place(|| cluster.crash());
    let begun = tokio::time::Instant::now();
    let error = store.reserve(new_reserve_request("during")).await.unwrap_err();
    assert!(matches!(error, StoreError::TimedOut | StoreError::Unavailable(_)), "{error:?}");
    store.ping().await.unwrap_err();
    // The pooler itself waits for its server for longer.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    tokio::task::block_in_place(|| cluster.restart());
    eventually(TEST_TIMEOUT, async || store.ping().await.ok()).await;
    unwrap_lease(store.reserve(new_reserve_request("after")).await.unwrap());
}

#[tokio::test]
async fn one_of_two_duplicates_at_proxies_behind_the_pooler_is_executed() {
    let database = postgres::database().await;
    let Some(bouncer) = pgbouncer::shared(&database).await else { return };
    let through = bouncer.to(&database).url;
    let world = World::with(Store::Postgres(database), |setup| setup.through(&through)).await;
    let other = world.setup.start().await;
    let client = async |number: usize| {
        let key = format!("k-{}", number % 40);
        let proxy = if number.is_multiple_of(3) { &other } else { &world.proxy };
        let request = proxy.post("/pay").key(&key).json(r#"{"amount":10,"currency":"EUR"}"#);
        let done = async || Some(request.send().await).filter(|answer| answer.status != 409);
        let answer = eventually(TEST_TIMEOUT, done).await;
        (key, answer)
    };
    let answers = join_all((0..200).map(client)).await;
    assert_eq!(world.upstream.calls(), 40);
    for (key, answer) in &answers {
        assert_eq!(answer.status, 201, "{key}: {}", answer.text());
        let replay = other.post("/pay").key(key).json(r#"{"amount":10,"currency":"EUR"}"#).send().await;
        assert_eq!((replay.oncegate_status(), &replay.body), (Some("replayed"), &answer.body), "{key}");
    }
    let executed = answers.iter().filter(|(_, answer)| answer.oncegate_status() == Some("executed")).count();
    assert_eq!((executed, world.upstream.calls()), (40, 40));
}
