//! Indexes on the table of keys are built during traffic, and the next start repairs an interrupted build.

use futures_util::future::join_all;
use oncegate::store::{self, OpenError, StoreSettings};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::{fill, names};
use crate::harness::pgbouncer::Bouncer;
use crate::harness::postgres::{self, Database};
use crate::harness::store_fixture::{new_reserve_request, unwrap_lease};
use crate::harness::{TEST_TIMEOUT, eventually};

const UNSETTLED: &str = "0002_operators.keys_unsettled";
const DUE: &str = "0002_operators.keys_due";

/// A database with the first version's schema and 50,000 keys.
pub(super) async fn first_version_database() -> (Database, StoreSettings) {
    let database = postgres::empty_database().await;
    let settings = postgres::settings(&database.url);
    let pending = store::pending(&settings).await.unwrap();
    database.client().await.batch_execute(&pending[0].sql).await.unwrap();
    fill(&database).await;
    (database, settings)
}

/// A transaction with a snapshot that stays open, like a dump's. No concurrent build ends before it.
async fn old_snapshot(database: &Database) -> Client {
    let client = database.client().await;
    client.batch_execute("set idle_in_transaction_session_timeout = 0").await.unwrap();
    client.batch_execute("begin isolation level repeatable read; select from pg_class limit 1").await.unwrap();
    client
}

/// Opens the store in a task of its own.
pub(super) fn opening(settings: &StoreSettings) -> JoinHandle<Result<(), OpenError>> {
    let settings = settings.clone();
    tokio::spawn(async move { store::open(&settings).await.map(drop) })
}

/// The first column of the rows found.
async fn column(client: &Client, sql: &str) -> Vec<String> {
    let answers = client.simple_query(sql).await.unwrap();
    let first = |answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    answers.into_iter().filter_map(first).collect()
}

/// Waits until the query finds rows.
pub(super) async fn seen(client: &Client, sql: &str) -> Vec<String> {
    eventually(TEST_TIMEOUT, async || Some(column(client, sql).await).filter(|rows| !rows.is_empty())).await
}

/// The server process that builds an index and waits for older transactions.
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

/// The migration's indexes, and whether they are valid.
async fn built(client: &Client) -> Vec<String> {
    let indexes = "select indexrelid::regclass || ' ' || indisvalid from pg_index
                    where indexrelid::regclass::text in ('oncegate.keys_due', 'oncegate.keys_unsettled') order by 1";
    column(client, indexes).await
}

const BOTH: [&str; 2] = ["oncegate.keys_due true", "oncegate.keys_unsettled true"];

/// A query for exclusive locks on a table, held or waited for.
pub(super) fn exclusive(table: &str) -> String {
    format!(
        "select granted from pg_locks where database = (select oid from pg_database where datname = current_database())
            and relation = 'oncegate.{table}'::regclass and mode = 'AccessExclusiveLock'"
    )
}

#[tokio::test]
async fn index_builds_do_not_block_the_old_version_and_ignore_the_roles_timeouts() {
    let (database, settings) = first_version_database().await;
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
    // The usual statements of the first version.
    let old_version = "
      set statement_timeout = '500ms';
      insert into oncegate.keys (id, service, scope, space, key, route, recipe, fingerprint, token, instance,
                                 attempt, state, created_at, reserved_at, deadline)
      select sha256(random()::text::bytea), 'shop', scope, space, key, route, recipe, fingerprint, token, 1, 1,
             'in_flight', now(), now(), now() from oncegate.keys limit 1;
      update oncegate.keys set state = 'unknown', settled_at = now() where state = 'in_flight';
      insert into oncegate.instances (id, started_at, renewed_at, lease_until) values (1, now(), now(), now())
          on conflict (id) do update set renewed_at = now()";
    eventually(TEST_TIMEOUT, async || {
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
async fn an_interrupted_index_build_is_repeated() {
    let (database, settings) = first_version_database().await;
    let client = database.client().await;
    let old = old_snapshot(&database).await;
    let cut_off = opening(&settings);
    cut_off_builder(&client).await;
    match cut_off.await.unwrap().unwrap_err() {
        OpenError::Index { name, .. } => assert_eq!(name, UNSETTLED),
        error => panic!("{error:?}"),
    }
    assert_eq!(built(&client).await, ["oncegate.keys_unsettled false"]);
    // The migration itself has been applied.
    assert_eq!(column(&client, "select name from oncegate.migrations where version = 2").await, ["0002_operators"]);
    old.batch_execute("commit").await.unwrap();
    assert_eq!(store::migrate(&settings).await.unwrap(), with_the_rest(&settings, &[UNSETTLED, DUE]));
    assert_eq!(built(&client).await, BOTH);
}

#[tokio::test]
async fn an_interrupted_index_build_can_be_repaired_by_hand() {
    let (database, settings) = first_version_database().await;
    let client = database.client().await;
    let old = old_snapshot(&database).await;
    let cut_off = opening(&settings);
    cut_off_builder(&client).await;
    cut_off.await.unwrap().unwrap_err();
    old.batch_execute("commit").await.unwrap();
    let pending = store::pending(&settings).await.unwrap();
    assert_eq!(names(pending.clone()), with_the_rest(&settings, &[UNSETTLED, DUE]));
    for migration in pending {
        // As psql does it: one statement at a time, with transactions as one.
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
async fn a_start_after_a_crash_before_the_index_builds_does_them() {
    let (database, settings) = first_version_database().await;
    let client = database.client().await;
    for migration in store::pending(&settings).await.unwrap() {
        if migration.sql.starts_with("begin;") {
            client.batch_execute(&migration.sql).await.unwrap();
        }
    }
    assert_eq!(built(&client).await, [] as [&str; 0]);
    // With migrating switched off the store works, if slowly.
    let store = store::open(&StoreSettings { migrate: false, ..settings.clone() }).await.unwrap();
    unwrap_lease(store.reserve(new_reserve_request("k")).await.unwrap());
    assert_eq!(built(&client).await, [] as [&str; 0]);
    store::open(&settings).await.unwrap();
    assert_eq!(built(&client).await, BOTH);
    client.batch_execute("drop index oncegate.keys_due").await.unwrap();
    assert_eq!(store::migrate(&settings).await.unwrap(), [DUE]);
    assert_eq!(built(&client).await, BOTH);
}

#[tokio::test]
async fn ten_simultaneous_starts_build_each_index_once() {
    for pooled in [false, true] {
        let (database, settings) = first_version_database().await;
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
        // Most of them wait for the lock by now.
        let asked = "select from pg_stat_activity where datname = current_database() and query ~ 'pg_try_advisory'";
        if !pooled {
            let waiting = async || Some(client.simple_query(asked).await.unwrap().len()).filter(|rows| *rows > 5);
            eventually(TEST_TIMEOUT, waiting).await;
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
async fn a_start_waits_for_another_sessions_index_build() {
    let (database, settings) = first_version_database().await;
    let client = database.client().await;
    for migration in &store::pending(&settings).await.unwrap()[..1] {
        client.batch_execute(&migration.sql).await.unwrap();
    }
    let execute_sql = store::pending(&settings).await.unwrap().remove(0);
    assert_eq!(execute_sql.name, UNSETTLED);
    let old = old_snapshot(&database).await;
    let hand = database.client().await;
    let building = tokio::spawn(async move { hand.batch_execute(&execute_sql.sql).await });
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
async fn an_index_build_that_conflicts_with_another_is_repeated_up_to_five_times() {
    let database = postgres::database().await;
    let settings = postgres::settings(&database.url);
    let client = database.client().await;
    // A sequence counts the tries: it keeps what an aborted transaction took from it.
    let conflict = "create sequence public.tries; create sequence public.conflicts;
      create function public.conflict() returns event_trigger language plpgsql as $$ begin
        if nextval('public.tries') <= (select last_value from public.conflicts) then
          raise exception 'conflict' using errcode = 'deadlock_detected';
        end if;
      end $$;
      create event trigger conflict on ddl_command_start when tag in ('CREATE INDEX') execute function public.conflict()";
    client.batch_execute(conflict).await.unwrap();
    for (conflicts, succeeds) in [(5, true), (6, false), (100, false)] {
        let count = format!("select setval('public.tries', 1, false), setval('public.conflicts', {conflicts})");
        client.batch_execute(&format!("drop index if exists oncegate.keys_due; {count}")).await.unwrap();
        let migrated = store::migrate(&settings).await;
        assert_eq!(migrated.is_ok(), succeeds, "{conflicts}: {migrated:?}");
        assert_eq!(column(&client, "select last_value from public.tries").await, ["6"], "{conflicts}");
    }
}

#[tokio::test]
async fn a_non_index_with_an_indexs_name_is_reported() {
    let (database, settings) = first_version_database().await;
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
    assert_eq!(store::migrate(&settings).await.unwrap(), with_the_rest(&settings, &[DUE]));
}

#[tokio::test]
async fn heartbeats_continue_while_a_migration_waits_for_the_keys_table() {
    let (database, settings) = first_version_database().await;
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

/// These migrations and indexes, and all later ones.
fn with_the_rest(settings: &StoreSettings, these: &[&'static str]) -> Vec<&'static str> {
    let rest = super::all(settings).into_iter().skip_while(|name| *name != "0003_purges");
    these.iter().copied().chain(rest).collect()
}
