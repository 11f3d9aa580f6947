//! Indexes on the table of keys are built beside the traffic, and whatever cut a build off, the next start mends it.

use futures_util::future::join_all;
use oncegate::store::{self, OpenError, Settings};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::{fill, names};
use crate::harness::pgbouncer::Bouncer;
use crate::harness::postgres::{self, Database};
use crate::harness::world::{ask, fresh};
use crate::harness::{PATIENCE, eventually};

const UNSETTLED: &str = "0002_operators.keys_unsettled";
const DUE: &str = "0002_operators.keys_due";
const QUEUED: &str = "0004_outbox.keys_queued";

/// A database as the first version left it, with fifty thousand keys.
async fn of_the_first_version() -> (Database, Settings) {
    let database = postgres::empty_database().await;
    let settings = postgres::settings(&database.url);
    let pending = store::pending(&settings).await.unwrap();
    database.client().await.batch_execute(&pending[0].sql).await.unwrap();
    fill(&database).await;
    (database, settings)
}

/// A transaction that has seen the database and stays open, as a dump's. No concurrent build ends before it does.
async fn old_snapshot(database: &Database) -> Client {
    let client = database.client().await;
    client.batch_execute("set idle_in_transaction_session_timeout = 0").await.unwrap();
    client.batch_execute("begin isolation level repeatable read; select from pg_class limit 1").await.unwrap();
    client
}

/// Opens the store beside the test. What is waited for is whether that works.
fn opening(settings: &Settings) -> JoinHandle<Result<(), OpenError>> {
    let settings = settings.clone();
    tokio::spawn(async move { store::open(&settings).await.map(drop) })
}

/// The first column of what is found.
async fn column(client: &Client, sql: &str) -> Vec<String> {
    let answers = client.simple_query(sql).await.unwrap();
    let first = |answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    answers.into_iter().filter_map(first).collect()
}

/// Waits until something is found.
async fn seen(client: &Client, sql: &str) -> Vec<String> {
    eventually(PATIENCE, async || Some(column(client, sql).await).filter(|rows| !rows.is_empty())).await
}

/// The process that builds an index here, and waits for older transactions.
async fn builder(client: &Client) -> String {
    let waiting = "select a.pid from pg_stat_activity as a join pg_locks as l on l.pid = a.pid
                    where a.datname = current_database() and l.locktype = 'virtualxid' and not l.granted
                      and a.query ~ 'create index concurrently'";
    seen(client, waiting).await.remove(0)
}

async fn cut_off_builder(client: &Client) {
    let builder = builder(client).await;
    client.batch_execute(&format!("select pg_terminate_backend({builder})")).await.unwrap();
}

/// The indexes of the step, and whether they are valid.
async fn built(client: &Client) -> Vec<String> {
    let indexes = "select indexrelid::regclass || ' ' || indisvalid from pg_index
                    where indexrelid::regclass::text in ('oncegate.keys_due', 'oncegate.keys_unsettled') order by 1";
    column(client, indexes).await
}

const BOTH: [&str; 2] = ["oncegate.keys_due true", "oncegate.keys_unsettled true"];

/// Locks on a table that let nobody in, or would like to.
fn exclusive(table: &str) -> String {
    format!(
        "select granted from pg_locks where database = (select oid from pg_database where datname = current_database())
            and relation = 'oncegate.{table}'::regclass and mode = 'AccessExclusiveLock'"
    )
}

#[tokio::test]
async fn while_indexes_are_built_the_old_version_goes_on_and_no_time_limit_of_the_role_ends_it() {
    let (database, settings) = of_the_first_version().await;
    let client = database.client().await;
    let limits = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"];
    for limit in limits {
        client.batch_execute(&format!("alter database {} set {limit} = '1s'", database.name)).await.unwrap();
    }
    let old = old_snapshot(&database).await;
    let opening = opening(&settings);
    let builder = builder(&client).await;
    let patient = format!(
        "select pid from pg_stat_activity where pid = {builder} and clock_timestamp() - query_start > interval '1.5 s'"
    );
    // What the first version does all the time.
    let old_version = "
      set statement_timeout = '500ms';
      insert into oncegate.keys (id, service, scope, space, key, route, recipe, fingerprint, token, instance,
                                 attempt, state, created_at, reserved_at, deadline)
      select sha256(random()::text::bytea), 'shop', scope, space, key, route, recipe, fingerprint, token, 1, 1,
             'in_flight', now(), now(), now() from oncegate.keys limit 1;
      update oncegate.keys set state = 'unknown', settled_at = now() where state = 'in_flight';
      insert into oncegate.instances (id, started_at, renewed_at, lease_until) values (1, now(), now(), now())
          on conflict (id) do update set renewed_at = now()";
    eventually(PATIENCE, async || {
        client.batch_execute(old_version).await.unwrap();
        assert_eq!(column(&client, &exclusive("keys")).await, [] as [&str; 0]);
        (column(&client, &patient).await == [builder.as_str()]).then_some(())
    })
    .await;
    assert!(!opening.is_finished());
    old.batch_execute("commit").await.unwrap();
    opening.await.unwrap().unwrap();
    assert_eq!(built(&client).await, BOTH);
    let unknown = "set enable_seqscan = off; select count(*) from oncegate.keys where state = 'unknown'";
    assert_ne!(column(&client, unknown).await, ["0"]);
}

#[tokio::test]
async fn an_index_whose_build_was_cut_off_is_built_anew() {
    let (database, settings) = of_the_first_version().await;
    let client = database.client().await;
    let old = old_snapshot(&database).await;
    let cut_off = opening(&settings);
    cut_off_builder(&client).await;
    match cut_off.await.unwrap().unwrap_err() {
        OpenError::Index { name, .. } => assert_eq!(name, UNSETTLED),
        error => panic!("{error:?}"),
    }
    assert_eq!(built(&client).await, ["oncegate.keys_unsettled false"]);
    // The step itself has been taken.
    assert_eq!(column(&client, "select name from oncegate.migrations where version = 2").await, ["0002_operators"]);
    old.batch_execute("commit").await.unwrap();
    assert_eq!(store::migrate(&settings).await.unwrap(), [UNSETTLED, DUE, "0003_purges", "0004_outbox", QUEUED]);
    assert_eq!(built(&client).await, BOTH);
}

#[tokio::test]
async fn an_index_whose_build_was_cut_off_can_be_mended_by_hand() {
    let (database, settings) = of_the_first_version().await;
    let client = database.client().await;
    let old = old_snapshot(&database).await;
    let cut_off = opening(&settings);
    cut_off_builder(&client).await;
    cut_off.await.unwrap().unwrap_err();
    old.batch_execute("commit").await.unwrap();
    let pending = store::pending(&settings).await.unwrap();
    assert_eq!(names(pending.clone()), [UNSETTLED, DUE, "0003_purges", "0004_outbox", QUEUED]);
    for migration in pending {
        // As psql does it: one statement at a time. A transaction is none to be cut apart.
        let statements: Vec<&str> = match migration.sql.starts_with("begin;") {
            true => vec![&migration.sql],
            false => migration.sql.split_inclusive(";\n").collect(),
        };
        for statement in statements {
            client.batch_execute(statement).await.unwrap();
        }
    }
    assert_eq!(built(&client).await, BOTH);
    assert_eq!(store::pending(&settings).await.unwrap(), []);
}

#[tokio::test]
async fn a_start_after_a_crash_between_a_step_and_its_indexes_builds_them() {
    let (database, settings) = of_the_first_version().await;
    let client = database.client().await;
    for migration in store::pending(&settings).await.unwrap() {
        if migration.sql.starts_with("begin;") {
            client.batch_execute(&migration.sql).await.unwrap();
        }
    }
    assert_eq!(built(&client).await, [] as [&str; 0]);
    // Without leave to migrate it works, if slowly.
    let store = store::open(&Settings { migrate: false, ..settings.clone() }).await.unwrap();
    fresh(store.reserve(ask("k")).await.unwrap());
    assert_eq!(built(&client).await, [] as [&str; 0]);
    store::open(&settings).await.unwrap();
    assert_eq!(built(&client).await, BOTH);
    client.batch_execute("drop index oncegate.keys_due").await.unwrap();
    assert_eq!(store::migrate(&settings).await.unwrap(), [DUE]);
    assert_eq!(built(&client).await, BOTH);
}

#[tokio::test]
async fn ten_that_start_together_build_each_index_once() {
    for pooled in [false, true] {
        let (database, settings) = of_the_first_version().await;
        let bouncer = match pooled {
            true => Bouncer::before(&database).await,
            false => None,
        };
        let settings = match &bouncer {
            Some(bouncer) => postgres::settings(&bouncer.to(&database).url),
            None => settings,
        };
        let client = database.client().await;
        let old = old_snapshot(&database).await;
        let all: Vec<_> = (0..10).map(|_| opening(&settings)).collect();
        builder(&client).await;
        // All of them have come so far as to wait for their turn.
        let asked = "select from pg_stat_activity where datname = current_database() and query ~ 'pg_try_advisory'";
        if !pooled {
            let waiting = async || Some(client.simple_query(asked).await.unwrap().len()).filter(|rows| *rows > 5);
            eventually(PATIENCE, waiting).await;
        }
        let first = column(&client, "select indexrelid from pg_index where not indisvalid").await;
        old.batch_execute("commit").await.unwrap();
        for opened in join_all(all).await {
            opened.unwrap().unwrap();
        }
        assert_eq!(built(&client).await, BOTH);
        let unsettled = column(&client, "select 'oncegate.keys_unsettled'::regclass::oid").await;
        assert_eq!(first, unsettled, "it was thrown away and built again");
    }
}

#[tokio::test]
async fn what_somebody_else_is_building_is_waited_for() {
    let (database, settings) = of_the_first_version().await;
    let client = database.client().await;
    for migration in &store::pending(&settings).await.unwrap()[..1] {
        client.batch_execute(&migration.sql).await.unwrap();
    }
    let by_hand = store::pending(&settings).await.unwrap().remove(0);
    assert_eq!(by_hand.name, UNSETTLED);
    let old = old_snapshot(&database).await;
    let hand = database.client().await;
    let building = tokio::spawn(async move { hand.batch_execute(&by_hand.sql).await });
    builder(&client).await;
    let first = column(&client, "select indexrelid from pg_index where not indisvalid").await;
    assert_eq!(first.len(), 1);
    let opening = opening(&settings);
    seen(&client, "select pid from pg_locks where locktype = 'advisory' and granted").await;
    old.batch_execute("commit").await.unwrap();
    building.await.unwrap().unwrap();
    opening.await.unwrap().unwrap();
    assert_eq!(built(&client).await, BOTH);
    assert_eq!(column(&client, "select 'oncegate.keys_unsettled'::regclass::oid").await, first);
}

#[tokio::test]
async fn what_bears_the_name_of_an_index_and_is_none_is_told_of() {
    let (database, settings) = of_the_first_version().await;
    let client = database.client().await;
    client.batch_execute("create table oncegate.keys_due (n int)").await.unwrap();
    match store::migrate(&settings).await.unwrap_err() {
        OpenError::Index { name, source } => {
            assert_eq!(name, DUE);
            assert!(source.to_string().contains("something else is named oncegate.keys_due"), "{source}");
        }
        error => panic!("{error:?}"),
    }
    client.batch_execute("drop table oncegate.keys_due").await.unwrap();
    assert_eq!(store::migrate(&settings).await.unwrap(), [DUE, "0003_purges", "0004_outbox", QUEUED]);
}

#[tokio::test]
async fn heartbeats_are_not_held_up_while_a_step_waits_for_the_table_of_keys() {
    let (database, settings) = of_the_first_version().await;
    let client = database.client().await;
    let reader = database.client().await;
    reader.batch_execute("begin; select from oncegate.keys limit 1").await.unwrap();
    let opening = opening(&settings);
    assert_eq!(seen(&client, &exclusive("keys")).await, ["f"]);
    assert_eq!(column(&client, &exclusive("instances")).await, [] as [&str; 0]);
    let heartbeat = "set lock_timeout = '100ms';
                     insert into oncegate.instances (id, started_at, renewed_at, lease_until)
                     values (1, now(), now(), now())";
    client.batch_execute(heartbeat).await.unwrap();
    assert_eq!(column(&client, &exclusive("keys")).await, ["f"], "it waits still");
    reader.batch_execute("commit").await.unwrap();
    opening.await.unwrap().unwrap();
}
