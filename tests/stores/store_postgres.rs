//! Tests of the PostgreSQL store beyond the contract: many proxies on one database.

mod admin;
mod cancelled_waits;
mod connections;
mod credentials;
mod deliveries;
mod failover;
mod faults;
mod functions;
mod hosts;
mod lookups;
mod pooler;
mod two_primaries;
mod upkeep_races;

use std::sync::Arc;

use futures_util::future::{join, join_all};
use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest, ReserveResult};
use oncegate_domain::response::StoredResponse;
use oncegate_store::{
    self as store, ExpectedRecord, OpenError, ReapParams, Store, StoreSettings, SweepParams, TakeOverParams,
};
use tokio_postgres::Client;

use harness::store_fixture::UNKNOWN;
use harness::store_fixture::{
    DAY, StoreFixture, all_records, any_time, completion, new_reserve_request, next_attempt_request, own_instance,
    renewal, response, salt, settlement, unwrap_taken,
};
use harness::{self, TEST_TIMEOUT, postgres};

#[tokio::test]
async fn two_proxies_on_one_database_reserve_each_key_once() {
    let world = StoreFixture::postgres().await;
    let other = store::open(&world.settings).await.unwrap();
    let reserve_requests: Vec<ReserveRequest> =
        (0..400).map(|i| new_reserve_request(&format!("k-{}", i % 100))).collect();
    let stores = [world.store(), &other];
    let reservations =
        reserve_requests.iter().enumerate().map(|(i, reserve_request)| stores[i % 2].reserve(reserve_request.clone()));
    let fresh = join_all(reservations).await.iter().filter(|r| matches!(r, Ok(ReserveResult::Fresh(_)))).count();
    assert_eq!(fresh, 100);
    assert_eq!(salt(world.store().as_ref()).await, salt(other.as_ref()).await);
}

#[tokio::test]
async fn batches_with_common_keys_do_not_deadlock() {
    let world = StoreFixture::postgres().await;
    let other = store::open(&world.settings).await.unwrap();
    let client = world.database().client().await;
    // Time and not an event: each write is slow, so that two batches overlap.
    const PAUSE: &str = "pg_sleep(0.002)";
    let slow = format!(
        "create function slow() returns trigger language plpgsql as $$ begin perform {PAUSE}; return new; end $$;
         create trigger slow before insert or update on oncegate.keys for each row execute function slow()"
    );
    client.batch_execute(&slow).await.unwrap();
    let firsts: Vec<ReserveRequest> = (0..100).map(|i| new_reserve_request(&format!("k-{i}"))).collect();
    let attempt = async |store: &Store, first: &ReserveRequest| {
        let mine = next_attempt_request(first);
        let last = match store.reserve(mine.clone()).await.unwrap() {
            ReserveResult::Fresh(_) => mine,
            ReserveResult::Taken(record) => {
                drop(
                    store
                        .take_over(TakeOverParams { request: mine.clone(), from: ExpectedRecord::from(&record) })
                        .await
                        .unwrap(),
                );
                ReserveRequest { token: record.token, ..mine }
            }
        };
        drop(store.settle(settlement(&last, UNKNOWN)).await.unwrap());
    };
    for _ in 0..3 {
        let forwards = join_all(firsts.iter().map(|first| attempt(world.store().as_ref(), first)));
        let backwards = join_all(firsts.iter().rev().map(|first| attempt(other.as_ref(), first)));
        join(forwards, backwards).await;
    }
    // Sessions report their statistics when they end.
    drop((world, other));
    eventually(async || number(&client, CONNECTIONS).await == 0).await;
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(number(&client, deadlocks).await, 0);
}

#[tokio::test]
async fn row_contents_in_server_errors_are_not_passed_on() {
    let world = StoreFixture::postgres().await;
    let secret = new_reserve_request("secret-key");
    world.reserve(&secret).await;
    let status = http::StatusCode::from_u16(600).unwrap();
    let response = Arc::new(StoredResponse { status, ..(*response(b"secret-body")).clone() });
    let error = world
        .store()
        .settle(settlement(&secret, AttemptOutcome::Completed { response, ttl: DAY, remember: None }))
        .await
        .unwrap_err();
    let mut message = format!("{error:?} {error}");
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        message += &format!(" {cause:?} {cause}");
        source = cause.source();
    }
    assert!(message.contains("keys_are_possible"), "{message}");
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert!(!message.contains(&hex("secret")) && !message.contains("Failing row"), "{message}");
}

#[tokio::test]
async fn connections_do_not_exceed_their_limit() {
    for (allowed, made_max) in [(0, 6), (6, 6), (7, 7), (8, 8), (9, 9), (20, 20)] {
        let world = StoreFixture::postgres().await;
        let settings = StoreSettings { max_connections: allowed, ..world.settings.clone() };
        let store = store::open(&settings).await.unwrap();
        let reserve_requests: Vec<ReserveRequest> = (0..100).map(|i| new_reserve_request(&format!("k-{i}"))).collect();
        join_all(reserve_requests.iter().map(|reserve_request| async {
            drop(store.reserve(reserve_request.clone()).await.unwrap());
            drop(store.find(reserve_request.id).await.unwrap());
            drop(store.settle(completion(reserve_request, b"")).await.unwrap());
            store.ping().await.unwrap();
            store.sweep(SweepParams { expiry: DAY, limit: 1, as_of: any_time() }).await.unwrap();
            store.reap(ReapParams { limit: 1, scope: all_records() }).await.unwrap();
            store.count_keys("shop".into()).await.unwrap();
            store.renew_lease(renewal(own_instance(), DAY)).await.unwrap();
        }))
        .await;
        let client = world.database().client().await;
        assert!(number(&client, CONNECTIONS).await <= made_max, "{allowed}");
        // The connections are closed with the store.
        drop(store);
        eventually(async || number(&client, CONNECTIONS).await == 0).await;
    }
}

#[tokio::test]
async fn a_read_only_server_is_refused() {
    let database = postgres::database().await;
    let client = database.client().await;
    let alter = format!("alter database {} set default_transaction_read_only = on", database.name);
    client.batch_execute(&alter).await.unwrap();
    let error = store::open(&postgres::settings(&database.url)).await.map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Away(_)), "{error:?}");
    let alter = format!(
        "alter database {0} reset default_transaction_read_only;
         alter database {0} set default_transaction_isolation = serializable",
        database.name
    );
    client.batch_execute(&format!("set transaction_read_only = off; {alter}")).await.unwrap();
    let error = store::open(&postgres::settings(&database.url)).await.map(drop).unwrap_err();
    assert!(format!("{error:?}").contains("serializable"), "{error:?}");
}

#[tokio::test]
async fn a_server_that_hides_warnings_is_refused() {
    let database = postgres::database().await;
    let alter = format!("alter database {} set client_min_messages = error", database.name);
    database.client().await.batch_execute(&alter).await.unwrap();
    let error = store::open(&postgres::settings(&database.url)).await.map(drop).unwrap_err();
    assert!(format!("{error:?}").contains("client_min_messages"), "{error:?}");
}

#[tokio::test]
async fn an_unreachable_server_is_an_error_at_opening() {
    let open = async |url: &str| store::open(&postgres::settings(url)).await.map(drop).unwrap_err();
    let away = open("postgres://postgres@127.0.0.1:1/oncegate").await;
    assert!(matches!(away, OpenError::Away(_)), "{away:?}");
    for url in ["postgres://localhost/d?sslrootcert=/nowhere.pem"] {
        let error = open(url).await;
        assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
    }
}

#[tokio::test]
async fn two_reservations_with_one_token_are_one_attempt() {
    let world = StoreFixture::postgres().await;
    let reserve_request = new_reserve_request("k");
    let reservations = join_all((0..10).map(|_| world.store().reserve(reserve_request.clone()))).await;
    let fresh = reservations.into_iter().filter(|r| matches!(r, Ok(ReserveResult::Fresh(_)))).count();
    assert_eq!(fresh, 1);
    assert_eq!(
        unwrap_taken(world.store().reserve(reserve_request.clone()).await.unwrap()).token,
        reserve_request.token
    );
}

#[tokio::test]
async fn an_attempt_from_before_the_clock_was_set_back_is_listed_whatever_its_age() {
    let mut world = StoreFixture::postgres().await;
    world.reserve(&new_reserve_request("k")).await;
    let count = async |world: &StoreFixture| world.list_in_flight(DAY).await.len();
    assert_eq!(count(&world).await, 0);
    world.execute_sql("update keys set reserved_at = reserved_at + 3600000").await.unwrap();
    assert_eq!(count(&world).await, 1);
}

pub const CONNECTIONS: &str = "select count(*) from pg_stat_activity
  where datname = current_database() and application_name = 'oncegate'";

pub async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    harness::eventually(TEST_TIMEOUT, async || holds().await.then_some(())).await;
}

pub async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}
