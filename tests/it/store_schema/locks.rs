//! A migration beside open transactions.

use std::time::{Duration, Instant};

use oncegate::store;
use tokio::time::timeout;

use super::indexes::{exclusive, first_version_database, opening, seen};
use crate::harness::store_fixture::{StoreFixture, salt};
use crate::harness::{TEST_TIMEOUT, eventually};

#[tokio::test]
async fn a_migration_behind_an_open_transaction_delays_others_briefly_and_succeeds_at_its_end() {
    let (database, settings) = first_version_database().await;
    let (client, reader, holder) = (database.client().await, database.client().await, database.client().await);
    holder.batch_execute("begin; select from oncegate.keys limit 1").await.unwrap();
    let opening = opening(&settings);
    // More than one try: the first does not end the start.
    for _ in 0..2 {
        assert_eq!(seen(&client, &exclusive("keys")).await, ["f"]);
        let asked = Instant::now();
        reader.batch_execute("select from oncegate.keys limit 1").await.unwrap();
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
        eventually(TEST_TIMEOUT, async || {
            client.simple_query(&exclusive("keys")).await.unwrap().iter().all(|message| !is_row(message)).then_some(())
        })
        .await;
        assert!(!opening.is_finished());
    }
    holder.batch_execute("commit").await.unwrap();
    opening.await.unwrap().unwrap();
}

fn is_row(message: &tokio_postgres::SimpleQueryMessage) -> bool {
    matches!(message, tokio_postgres::SimpleQueryMessage::Row(_))
}

#[tokio::test]
async fn a_start_with_a_current_schema_takes_no_lock() {
    let mut world = StoreFixture::postgres().await;
    let drawn = salt(world.store().as_ref()).await;
    world.close();
    let client = world.database().client().await;
    let lock = "begin;
                lock table oncegate.keys, oncegate.instances in access exclusive mode;
                lock table oncegate.salts, oncegate.migrations in exclusive mode";
    client.batch_execute(lock).await.unwrap();
    let start = async { salt(store::open(&world.settings).await.unwrap().as_ref()).await };
    assert_eq!(timeout(TEST_TIMEOUT, start).await.expect("it waits for a lock"), drawn);
}
