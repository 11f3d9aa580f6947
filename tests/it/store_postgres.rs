//! What the PostgreSQL store promises beyond the contract: many proxies on one database.

mod books;
mod deliveries;
mod failover;
mod faults;
mod functions;
mod pooler;

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use oncegate::domain::attempt::Ending;
use oncegate::domain::record::{Ask, Reservation};
use oncegate::domain::response::StoredResponse;
use oncegate::domain::scope::Scope;
use oncegate::store::{self, OpenError, Seen, Settings, Store};
use tokio_postgres::Client;

use crate::harness::postgres;
use crate::harness::world::{DAY, World, again, ask, completion, renewal, response, settlement, taken, us};

#[tokio::test]
async fn two_proxies_on_one_database_give_each_key_away_once() {
    let world = World::postgres().await;
    let other = store::open(&world.settings).await.unwrap();
    let asks: Vec<Ask> = (0..400).map(|i| ask(&format!("k-{}", i % 100))).collect();
    let stores = [world.store(), &other];
    let reservations = asks.iter().enumerate().map(|(i, ask)| stores[i % 2].reserve(ask.clone()));
    let fresh = join_all(reservations).await.iter().filter(|r| matches!(r, Ok(Reservation::Fresh(_)))).count();
    assert_eq!(fresh, 100);
    let of_nobody = |store: &dyn Store| Scope::of(&store.salt(), []);
    assert_eq!(of_nobody(world.store().as_ref()), of_nobody(other.as_ref()));
}

#[tokio::test]
async fn batches_that_meet_on_the_same_keys_do_not_wait_for_each_other_for_ever() {
    let world = World::postgres().await;
    let other = store::open(&world.settings).await.unwrap();
    let client = world.database().client().await;
    // Slow enough for two batches to be at it together.
    let slow = "create function slow() returns trigger language plpgsql as
                  $$ begin perform pg_sleep(0.002); return new; end $$;
                create trigger slow before insert or update on oncegate.keys for each row execute function slow()";
    client.batch_execute(slow).await.unwrap();
    let firsts: Vec<Ask> = (0..100).map(|i| ask(&format!("k-{i}"))).collect();
    let attempt = async |store: &dyn Store, first: &Ask| {
        let mine = again(first);
        let last = match store.reserve(mine.clone()).await.unwrap() {
            Reservation::Fresh(_) => mine,
            Reservation::Taken(record) => {
                drop(store.take_over(mine.clone(), Seen::from(&record)).await.unwrap());
                Ask { token: record.token, ..mine }
            }
        };
        drop(store.settle(settlement(&last, Ending::Unknown)).await.unwrap());
    };
    for _ in 0..3 {
        let forwards = join_all(firsts.iter().map(|first| attempt(world.store().as_ref(), first)));
        let backwards = join_all(firsts.iter().rev().map(|first| attempt(other.as_ref(), first)));
        join(forwards, backwards).await;
    }
    // The sessions report when they end.
    drop((world, other));
    eventually(async || number(&client, CONNECTIONS).await == 0).await;
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(number(&client, deadlocks).await, 0);
}

#[tokio::test]
async fn what_the_server_quotes_of_a_row_is_not_passed_on() {
    let world = World::postgres().await;
    let secret = ask("secret-key");
    world.reserve(&secret).await;
    let response = StoredResponse { status: http::StatusCode::from_u16(600).unwrap(), ..response(b"secret-body") };
    let error = world
        .store()
        .settle(settlement(&secret, Ending::Completed { response, ttl: DAY, remember: None }))
        .await
        .unwrap_err();
    let mut said = format!("{error:?} {error}");
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        said += &format!(" {cause:?} {cause}");
        source = cause.source();
    }
    assert!(said.contains("keys_are_possible"), "{said}");
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert!(!said.contains(&hex("secret")) && !said.contains("Failing row"), "{said}");
}

#[tokio::test]
async fn no_more_connections_are_made_than_were_allowed() {
    for (allowed, made_max) in [(0, 4), (4, 4), (8, 8), (20, 20)] {
        let world = World::postgres().await;
        let settings = Settings { max_connections: allowed, ..world.settings.clone() };
        let store = store::open(&settings).await.unwrap();
        let asks: Vec<Ask> = (0..500).map(|i| ask(&format!("k-{i}"))).collect();
        join_all(asks.iter().map(|ask| async {
            drop(store.reserve(ask.clone()).await.unwrap());
            drop(store.find(ask.id).await.unwrap());
            drop(store.settle(completion(ask, b"")).await.unwrap());
            store.ping().await.unwrap();
            store.renew(renewal(us(), DAY)).await.unwrap();
        }))
        .await;
        let client = world.database().client().await;
        assert!(number(&client, CONNECTIONS).await <= made_max, "{allowed}");
        // The connections go with the store.
        drop(store);
        eventually(async || number(&client, CONNECTIONS).await == 0).await;
    }
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_refused() {
    let database = postgres::database().await;
    let client = database.client().await;
    let alter = format!("alter database {} set default_transaction_read_only = on", database.name);
    client.batch_execute(&alter).await.unwrap();
    let error = store::open(&postgres::settings(&database.url)).await.map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
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
async fn a_server_that_is_not_there_is_missing() {
    for url in ["postgres://postgres@127.0.0.1:1/oncegate", "postgres://", "postgres://h/d?colour=red"] {
        let error = store::open(&postgres::settings(url)).await.map(drop).unwrap_err();
        assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
    }
}

#[tokio::test]
async fn whoever_asks_twice_with_one_token_gets_one_attempt() {
    let world = World::postgres().await;
    let ask = ask("k");
    let reservations = join_all((0..10).map(|_| world.store().reserve(ask.clone()))).await;
    let fresh = reservations.into_iter().filter(|r| matches!(r, Ok(Reservation::Fresh(_)))).count();
    assert_eq!(fresh, 1);
    assert_eq!(taken(world.store().reserve(ask.clone()).await.unwrap()).token, ask.token);
}
pub const CONNECTIONS: &str = "select count(*) from pg_stat_activity
  where datname = current_database() and application_name = 'oncegate'";

pub async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds().await {
        assert!(Instant::now() < deadline, "it never came to that");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}
