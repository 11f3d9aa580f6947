//! A migration beside open transactions.

use oncegate_store as store;
use tokio::time::timeout;
use tokio_postgres::Client;

use harness::postgres;
use harness::store_fixture::{StoreFixture, salt};
use harness::{TEST_TIMEOUT, eventually};

/// A table that the migration locks, as one that changes a table in use would.
const LOCKS_A_TABLE: &str = "
    create table public.in_use (n integer);
    create function public.lock_in_use() returns event_trigger language plpgsql as
    'begin lock table public.in_use in access exclusive mode; end';
    create event trigger locks on ddl_command_start when tag in ('CREATE TABLE') execute function public.lock_in_use()";

/// Whether a session waits for a lock on the table.
async fn is_awaited(client: &Client) -> bool {
    let locks = "select from pg_locks where relation = 'public.in_use'::regclass and not granted";
    !client.query(locks, &[]).await.unwrap().is_empty()
}

#[tokio::test]
async fn a_migration_behind_an_open_transaction_delays_others_briefly_and_succeeds_at_its_end() {
    let database = postgres::empty_database().await;
    let settings = postgres::settings(&database.url);
    let (client, reader, holder) = (database.client().await, database.client().await, database.client().await);
    client.batch_execute(LOCKS_A_TABLE).await.unwrap();
    holder.batch_execute("begin; select from public.in_use").await.unwrap();
    let opening = tokio::spawn(async move { store::open(&settings).await.map(drop) });
    // More than one try: the first does not end the start.
    for _ in 0..2 {
        eventually(TEST_TIMEOUT, async || is_awaited(&client).await.then_some(())).await;
        // The migration gives up its place in the queue: the transaction before it ends only after this.
        timeout(TEST_TIMEOUT, reader.batch_execute("select from public.in_use")).await.unwrap().unwrap();
        eventually(TEST_TIMEOUT, async || (!is_awaited(&client).await).then_some(())).await;
        assert!(!opening.is_finished());
    }
    holder.batch_execute("commit").await.unwrap();
    opening.await.unwrap().unwrap();
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
