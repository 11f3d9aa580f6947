//! The schema: migrations on both stores, and the SQL files.

use std::fs;
use std::path::{Path, PathBuf};

use futures_util::future::join_all;
use oncegate::domain::scope::Salt;
use oncegate::domain::state::KeyState;
use oncegate::store::{self, OpenError, StoreError, StoreLocation, StoreSettings};

use crate::harness::postgres::{self, Database};
use crate::harness::store_fixture::{StoreFixture, new_reserve_request, salt, sqlite_settings, unwrap_lease};

mod earlier_releases;
mod indexes;
mod locks;
mod partitions;
mod rights;

fn sqlite_file() -> (tempfile::TempDir, StoreSettings) {
    let home = tempfile::tempdir().unwrap();
    let settings = sqlite_settings(&home);
    (home, settings)
}

/// The migrations of both stores, in order.
const ALL: [&str; 5] = ["0001_keys", "0002_operators", "0003_purges", "0004_outbox", "0005_service"];

/// The later migrations that only SQLite has.
const SQLITE: [&str; 5] = ["0006_unknown_deliveries", "0007_audit", "0008_causes", "0009_salts", "0010_live_keys"];

/// The later migrations that only PostgreSQL has.
const POSTGRES: [&str; 9] = [
    "0006_statements",
    "0007_unknown_deliveries",
    "0008_forget",
    "0009_audit",
    "0010_causes",
    "0011_salts",
    "0012_live_keys",
    "0013_single_rows",
    "0014_encrypted_routes",
];

/// Everything that each store applies, in order: the migrations, and in PostgreSQL the indexes that are built after
/// them.
fn all(settings: &StoreSettings) -> Vec<&'static str> {
    if !matches!(settings.location, StoreLocation::Postgres(_)) {
        return ALL.into_iter().chain(SQLITE).collect();
    }
    let with_indexes = |step| match step {
        "0002_operators" => vec![step, "0002_operators.keys_unsettled", "0002_operators.keys_due"],
        "0004_outbox" => vec![step, "0004_outbox.keys_queued"],
        "0007_unknown_deliveries" => vec![step, "0007_unknown_deliveries.keys_unknown_deliveries"],
        "0012_live_keys" => vec![step, "0012_live_keys.keys_holder"],
        _ => vec![step],
    };
    ALL.into_iter().chain(POSTGRES).flat_map(with_indexes).collect()
}

/// The migrations without the indexes.
fn steps(settings: &StoreSettings) -> Vec<&'static str> {
    all(settings).into_iter().filter(|name| !name.contains('.')).collect()
}

#[tokio::test]
async fn migrations_are_idempotent() {
    let (_home, sqlite) = sqlite_file();
    for settings in [sqlite, postgres::settings(&postgres::empty_database().await.url)] {
        assert_eq!(names(store::pending(&settings).await.unwrap()), all(&settings));
        assert_eq!(store::migrate(&settings).await.unwrap(), all(&settings));
        assert_eq!(store::migrate(&settings).await.unwrap(), [] as [&str; 0]);
        assert_eq!(store::pending(&settings).await.unwrap(), []);
        store::open(&StoreSettings { migrate: false, ..settings }).await.unwrap();
    }
}

fn migration(store: &str, step: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(store);
    fs::read_to_string(folder.join(format!("{step}.sql"))).unwrap()
}

#[tokio::test]
async fn a_migration_keeps_the_rows_of_an_earlier_version() {
    let (_home, sqlite) = sqlite_file();
    let database = postgres::empty_database().await;
    for (settings, store) in [(sqlite, "sqlite"), (postgres::settings(&database.url), "postgres")] {
        let pending = store::pending(&settings).await.unwrap();
        // The first two migrations are the schema of a version that remembers how each route finds its keys. A service that shares
        // the store did so; the one whose keys are kept did not yet.
        let earlier = [&pending[0], &pending[1]].map(|migration| migration.sql.as_str()).join("\n");
        let neighbour = "insert into rules (service, route, finds) values ('office', 'pay', 'by the header')";
        let row = "(id, token, state, attempt, instance, created_at, reserved_at, deadline, settled_at, expires_at, \
                   status, fingerprint, recipe, service, route, scope, space, key, fields, body)";
        let id = new_reserve_request("k").id;
        let completed = |hex: fn(&str) -> String, at: &str, until: &str| {
            let [token, scope, fingerprint, text] =
                ["07".repeat(16), "01".repeat(32), "02".repeat(32), "6b".into()].map(|bytes: String| hex(&bytes));
            let id = hex(&id.to_string());
            format!(
                "insert into keys {row} values ({id}, {token}, 'completed', 1, 5, {at}, {at}, {at}, {at}, {until}, 201, \
                 {fingerprint}, '1', 'shop', 'pay', {scope}, {text}, {text}, {fields}, {text})",
                fields = hex("0d0a")
            )
        };
        let drawn = |hex: fn(&str) -> String| {
            format!("insert into meta (name, value) values ('salt', {})", hex(&"5a".repeat(32)))
        };
        match &settings.location {
            StoreLocation::Sqlite(path) => {
                let db = rusqlite::Connection::open(path).unwrap();
                db.execute_batch(&earlier).unwrap();
                db.execute_batch(neighbour).unwrap();
                db.execute_batch(&drawn(|bytes| format!("x'{bytes}'"))).unwrap();
                let later = "(unixepoch() + 1000) * 1000";
                db.execute_batch(&completed(|bytes| format!("x'{bytes}'"), "1000", later)).unwrap();
            }
            _ => {
                let client = database.client().await;
                client.batch_execute(&earlier).await.unwrap();
                client.batch_execute(&format!("set search_path = oncegate; {neighbour}")).await.unwrap();
                let salt = drawn(|bytes| format!("'\\x{bytes}'"));
                client.batch_execute(&format!("set search_path = oncegate; {salt}")).await.unwrap();
                let later = "clock_timestamp() + interval '1 hour'";
                let row = completed(|bytes| format!("'\\x{bytes}'"), "clock_timestamp()", later);
                client.batch_execute(&format!("set search_path = oncegate; {row}")).await.unwrap();
            }
        }
        assert_eq!(store::migrate(&settings).await.unwrap(), all(&settings)[2..], "{store}");
        let opened = store::open(&settings).await.unwrap();
        assert_eq!(salt(opened.as_ref()).await, Salt::new([0x5a; 32]), "{store}");
        let record = opened.find(id).await.unwrap().unwrap();
        assert!(matches!(record.state, KeyState::Completed(stored) if stored.response.status == 201), "{store}");
    }
}

fn names(migrations: Vec<store::Migration>) -> Vec<String> {
    migrations.into_iter().map(|migration| migration.name).collect()
}

#[tokio::test]
async fn proxies_that_start_together_make_one_schema_and_one_salt() {
    let settings = postgres::settings(&postgres::empty_database().await.url);
    let stores = join_all((0..10).map(|_| store::open(&settings))).await;
    let mut salts = join_all(stores.iter().map(|store| salt(store.as_ref().unwrap().as_ref()))).await;
    salts.dedup();
    assert_eq!(salts.len(), 1);
}

#[tokio::test]
async fn an_old_schema_is_refused_with_migrations_disabled() {
    let (_home, sqlite) = sqlite_file();
    for settings in [sqlite, postgres::settings(&postgres::empty_database().await.url)] {
        let settings = StoreSettings { migrate: false, ..settings };
        match store::open(&settings).await.map(drop).unwrap_err() {
            OpenError::SchemaOld { pending } => assert_eq!(pending, steps(&settings)),
            error => panic!("{error:?}"),
        }
        // The refusal has changed nothing.
        assert_eq!(names(store::pending(&settings).await.unwrap()), all(&settings));
    }
}

#[tokio::test]
async fn a_newer_or_changed_schema_is_refused() {
    for kind in ["postgres", "sqlite"] {
        for (change, why) in [
            (
                "insert into migrations (version, name, sha256) select 99, '0099_more', sha256 from migrations where version = 1",
                "newer",
            ),
            (
                "update migrations set sha256 = (select sha256 from migrations where version = 2) where version = 1",
                "changed after it was applied",
            ),
            ("update migrations set name = '0001_other' where version = 1", "is in the place of"),
        ] {
            let mut world =
                if kind == "sqlite" { StoreFixture::sqlite().await } else { StoreFixture::postgres().await };
            world.close();
            world.execute_sql_closed(change).await;
            for migrate in [true, false] {
                let settings = StoreSettings { migrate, ..world.settings.clone() };
                match store::open(&settings).await.map(drop).unwrap_err() {
                    OpenError::SchemaForeign(reported) => assert!(reported.contains(why), "{reported}"),
                    error => panic!("{error:?}"),
                }
            }
            assert!(matches!(store::migrate(&world.settings).await, Err(OpenError::SchemaForeign(_))));
        }
    }
}

#[tokio::test]
async fn printed_migrations_can_be_applied_by_hand() {
    let (_home, sqlite) = sqlite_file();
    let database = postgres::empty_database().await;
    for settings in [sqlite, postgres::settings(&database.url)] {
        let pending = store::pending(&settings).await.unwrap();
        if let StoreLocation::Sqlite(path) = &settings.location {
            assert!(!path.exists(), "looking has made a file");
        }
        for migration in pending {
            match &settings.location {
                StoreLocation::Sqlite(path) => {
                    rusqlite::Connection::open(path).unwrap().execute_batch(&migration.sql).unwrap();
                }
                _ => database.client().await.batch_execute(&migration.sql).await.unwrap(),
            }
        }
        assert_eq!(store::pending(&settings).await.unwrap(), []);
        let store = store::open(&StoreSettings { migrate: false, ..settings }).await.unwrap();
        unwrap_lease(store.reserve(new_reserve_request("k")).await.unwrap());
    }
}

#[tokio::test]
async fn a_migration_that_fails_leaves_nothing_behind() {
    let database = postgres::empty_database().await;
    let client = database.client().await;
    // Conflicts with the last statement but one.
    client.batch_execute("create schema oncegate; create table oncegate.keys_in_flight (n int)").await.unwrap();
    let settings = postgres::settings(&database.url);
    match store::open(&settings).await.map(drop).unwrap_err() {
        OpenError::Migration { name, source } => {
            assert_eq!(name, "0001_keys");
            assert!(source.to_string().contains("already exists"), "{source}");
        }
        error => panic!("{error:?}"),
    }
    client.batch_execute("drop table oncegate.keys_in_flight").await.unwrap();
    store::open(&settings).await.unwrap();
}

#[tokio::test]
async fn a_dropped_schema_is_an_error_and_no_free_key() {
    let world = StoreFixture::postgres().await;
    world.reserve(&new_reserve_request("k")).await;
    let client = world.database().client().await;
    client.batch_execute("alter table oncegate.keys rename to elsewhere").await.unwrap();
    let error = world.store().reserve(new_reserve_request("k2")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    client.batch_execute("alter table oncegate.elsewhere rename to keys").await.unwrap();
    world.reserve(&new_reserve_request("k2")).await;
}

fn sql_folder(store: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store").join(store).join("sql")
}

fn sql_files(store: &str) -> Vec<(PathBuf, String)> {
    let files = fs::read_dir(sql_folder(store)).unwrap().map(|file| file.unwrap().path());
    files.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// A statement of PostgreSQL as the store sends it: files that read `durable` are preceded by `durable.sql`.
fn postgres_statement(path: &Path, sql: &str) -> String {
    let durable = fs::read_to_string(sql_folder("postgres").join("durable.sql")).unwrap();
    if path.ends_with("durable.sql") {
        return format!("{sql}select from durable");
    }
    if sql.contains("durable.setting is not null") { durable + sql } else { sql.to_owned() }
}

#[tokio::test]
async fn every_sql_file_starts_with_its_name_and_prepares() {
    let world = StoreFixture::postgres().await;
    let client = world.database().client().await;
    let sqlite = rusqlite::Connection::open_in_memory().unwrap();
    for step in ALL.into_iter().chain(SQLITE) {
        sqlite.execute_batch(&migration("sqlite", step)).unwrap();
    }
    for (store, files_min) in [("postgres", 10), ("sqlite", 10)] {
        let files = sql_files(store);
        assert!(files.len() >= files_min);
        for (path, sql) in files {
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(sql.starts_with(&format!("-- {name}: ")), "{}", path.display());
            let understood = match store {
                "postgres" => client
                    .prepare(&postgres_statement(&path, &sql))
                    .await
                    .map(drop)
                    .map_err(|error| format!("{error:?}")),
                _ => sqlite.prepare(&sql).map(drop).map_err(|error| error.to_string()),
            };
            assert_eq!(understood, Ok(()), "{}", path.display());
        }
    }
}

/// Inserts 50,000 keys, nearly all of them completed, as in a typical table.
async fn fill(database: &Database) {
    let rows = "
      insert into oncegate.keys (id, service, scope, space, key, route, recipe, fingerprint, token, instance, attempt,
                                 state, created_at, reserved_at, deadline, settled_at, expires_at, status, fields, body)
      select sha256(n::text::bytea), 'shop', sha256('s'), 'p', n::text::bytea, 'pay', '1', sha256('f'),
             substr(sha256(n::text::bytea), 1, 16), 1, 1,
             case when n % 1000 = 0 then 'in_flight' else 'completed' end,
             now(), now(), now(), case when n % 1000 > 0 then now() end,
             case when n % 1000 > 0 then now() + n * interval '1 minute' end,
             case when n % 1000 > 0 then 200 end, case when n % 1000 > 0 then '\\x0d0a'::bytea end, null
        from generate_series(1, 50000) as n;
      analyze oncegate.keys";
    database.client().await.batch_execute(rows).await.unwrap();
}

#[tokio::test]
async fn no_statement_scans_the_whole_table() {
    let world = StoreFixture::postgres().await;
    fill(world.database()).await;
    let client = world.database().client().await;
    client.batch_execute("set plan_cache_mode = force_custom_plan").await.unwrap();
    let id = "array[sha256('5'::bytea)]";
    let one = "array[null::bytea]";
    // A caller's estimate of the time, in 2100.
    let as_of = "4102444800000";
    let settle = format!(
        "({id}, {one}, array['completed'], array[1], array[200], {one}, {one}, array[null::bigint], array[null::bigint], \
         array[null::text])"
    );
    let pick_up = format!(
        "('shop', array['pay'], array['retry'], array[1], array[1], array[3], array[1000], 8, {one}, 1, {one}, {one}, {one}, {one}, \
         array[8], {as_of})"
    );
    let enqueue_over = "(sha256('5'), null, 'r', '1', 'f', 1, 't', 't', 'retryable', null, 's', 'b')".to_owned();
    let give_up = "(sha256('5'), 't', array['queued'], 'n')".to_owned();
    let take_over = format!(
        "({id}, array['r'], array['1'], {one}, array[1], {one}, array[1], {one}, array['retryable'], \
         array[null::bigint], {one})"
    );
    let schedules = format!("('shop', array['pay'], array[1], array[1], array[1], 8, {as_of})");
    let verdict = "(sha256('5'), 't', 1, 'dead', null, null, null, null, null, null, 'give_up', 'n')".to_owned();
    let page = "('shop', array['pay'], 1000, sha256('5'), 500)".to_owned();
    let apply_decision = format!(
        "({id}, {one}, array['unknown'], array[1], array[1], array[1], 'shop', 'retryable', null, null, null, 'a', 'r', \
         null, {as_of})"
    );
    let listed = "'shop', '', '', decode(repeat('ff', 32), 'hex')";
    let filter = "null, null, null, null, null";
    for (name, values, index) in [
        ("find", format!("({id}, 1000)"), "keys_pkey"),
        ("settle_skip_locked", settle, "keys_pkey"),
        ("take_over", take_over, "keys_pkey"),
        ("sweep", format!("(1000, 100, {as_of})"), "keys_in_flight"),
        ("list_in_flight", "(1, 1000)".to_owned(), "keys_in_flight"),
        ("extend_deadline", format!("({id}, {one}, array[1000])"), "keys_pkey"),
        ("reap", format!("(100, {as_of}, 0)"), "keys_expiring"),
        ("claim_probes", schedules, "keys_due"),
        ("apply_probe_finding", verdict, "keys_pkey"),
        ("pick_up", pick_up, "keys_queued"),
        ("enqueue_over", enqueue_over, "keys_pkey"),
        ("give_up", give_up, "keys_pkey"),
        ("list_settled_keys", page, "keys_pkey"),
        ("apply_operator_decision", apply_decision, "keys_pkey"),
        ("report_not_executed", format!("({id}, {one}, array['shop'], array[1000])"), "keys_pkey"),
        ("apply_deferred_reports", "(100)".to_owned(), "keys_pkey"),
        ("report_recovery_point", format!("({id}, {one}, array['shop'], array['n'])"), "keys_pkey"),
        ("find_reservation", format!("({id})"), "keys_pkey"),
        ("purge", format!("({id}, {one}, array['completed'], 'shop', 'a', 'purge', null)"), "keys_pkey"),
        ("current_rows", format!("({id}, 'shop')"), "keys_pkey"),
        ("list_keys", format!("({listed}, null, {filter}, 1000, 10)"), "keys_pkey"),
        ("list_keys_by_age", format!("({listed}, 'dead', {filter}, 0, 10)"), "keys_unsettled"),
        ("list_keys_in_flight", format!("({listed}, 'in_flight', {filter}, 10)"), "keys_in_flight"),
        ("count_settled_keys", "('shop', 1000)".to_owned(), "keys_pkey"),
    ] {
        let path = sql_folder("postgres").join(format!("{name}.sql"));
        let sql = postgres_statement(&path, &fs::read_to_string(&path).unwrap());
        client.batch_execute(&format!("prepare {name} as {sql}")).await.unwrap();
        let explained = client.simple_query(&format!("explain execute {name} {values}")).await.unwrap();
        let plan: Vec<String> = explained
            .iter()
            .filter_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            })
            .collect();
        let plan = plan.join("\n");
        assert!(plan.contains(&format!("{index} on keys")), "{name}:\n{plan}");
        assert!(!plan.contains("Seq Scan on keys"), "{name}:\n{plan}");
    }
}

/// Inserts 40,000 unknown keys. Half of them were accepted for delivery: of those, 15 are due and quiet, and 5,000 are due and
/// not quiet.
async fn fill_with_unknown(database: &Database) {
    let rows = "
      insert into oncegate.keys (id, service, scope, space, key, route, recipe, fingerprint, token, instance, attempt,
                                 state, created_at, reserved_at, deadline, settled_at, accepted_at, due_at)
      select sha256(n::text::bytea), 'shop', sha256('s'), 'p', n::text::bytea, 'pay', '1', sha256('f'),
             substr(sha256(n::text::bytea), 1, 16), 1, 1, 'unknown', now(), now(),
             case when n % 8 = 1 then now() + interval '1 hour' else now() end, now(),
             case when n % 2 = 1 then now() end,
             case when n % 8 in (3, 5, 7) and n > 100040 then now() + interval '1 hour' end
        from generate_series(100001, 140000) as n;
      analyze oncegate.keys";
    database.client().await.batch_execute(rows).await.unwrap();
}

#[tokio::test]
async fn a_pick_up_reads_no_unknown_key_that_is_not_due() {
    let world = StoreFixture::postgres().await;
    fill(world.database()).await;
    fill_with_unknown(world.database()).await;
    let client = world.database().client().await;
    client.batch_execute("set plan_cache_mode = force_custom_plan").await.unwrap();
    let path = sql_folder("postgres").join("pick_up.sql");
    let sql = postgres_statement(&path, &fs::read_to_string(&path).unwrap());
    client.batch_execute(&format!("prepare pick_up as {sql}")).await.unwrap();
    for (policy, due) in [("retry-when-quiet", 15), ("retry", 5015), ("hold", 0)] {
        let none = "array[]::bytea[]";
        let values = format!(
            "('shop', array['pay'], array['{policy}'], array[1], array[1], array[3], array[1000], 32, {none}, 1, {none}, \
             {none}, {none}, {none}, array[32], 4102444800000)"
        );
        client.batch_execute("begin").await.unwrap();
        let explain = format!("explain (analyze, costs off, timing off, format json) execute pick_up {values}");
        let explained = client.simple_query(&explain).await.unwrap();
        let json = explained.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        let plan: serde_json::Value = serde_json::from_str(json.unwrap()).unwrap();
        client.batch_execute("rollback").await.unwrap();
        let mut read = 0.0;
        rows_read(&plan, "keys", &mut read);
        let picked = f64::from(due.min(32));
        // The rows found, and each of them once more when it is updated.
        assert!(read <= 3.0 * picked, "{policy}: {read} rows were read\n{plan:#}");
    }
}

/// Adds up the rows of a table that a plan's nodes have read, those that a filter has dropped included.
fn rows_read(plan: &serde_json::Value, table: &str, sum: &mut f64) {
    if plan["Relation Name"] == table {
        let number = |name: &str| plan[name].as_f64().unwrap_or(0.0);
        let rows = number("Actual Rows") + number("Rows Removed by Filter") + number("Rows Removed by Index Recheck");
        *sum += rows * number("Actual Loops");
    }
    let children = plan.as_array().into_iter().flatten().chain(plan["Plans"].as_array().into_iter().flatten());
    for child in children.chain(plan.get("Plan")) {
        rows_read(child, table, sum);
    }
}

#[test]
fn sqlite_searches_unknown_deliveries_by_their_own_index() {
    let sqlite = rusqlite::Connection::open_in_memory().unwrap();
    for step in ALL.into_iter().chain(SQLITE) {
        sqlite.execute_batch(&migration("sqlite", step)).unwrap();
    }
    let sql = fs::read_to_string(sql_folder("sqlite").join("list_due_deliveries.sql")).unwrap();
    let mut explained = sqlite.prepare(&format!("explain query plan {sql}")).unwrap();
    let plan: Vec<String> = explained.raw_query().mapped(|row| row.get("detail")).map(Result::unwrap).collect();
    let plan = plan.join("\n");
    for index in [
        "keys_queued (service=? AND route=? AND due_at<?)",
        "keys_unknown_deliveries (service=? AND route=? AND <expr><?)",
    ] {
        assert!(plan.contains(index), "{plan}");
    }
}

/// A statement may read the whole index of the keys in flight, which are few, or a table in the order of an index up to a limit.
#[test]
fn no_sqlite_statement_reads_all_keys() {
    const TABLES: [&str; 3] = ["audit", "keys", "outbox"];
    const IN_ORDER_UP_TO_A_LIMIT: [&str; 3] =
        ["count_settled_keys.sql", "delete_orphaned_requests.sql", "list_audit_entries.sql"];
    let sqlite = rusqlite::Connection::open_in_memory().unwrap();
    for step in ALL.into_iter().chain(SQLITE) {
        sqlite.execute_batch(&migration("sqlite", step)).unwrap();
    }
    for file in fs::read_dir(sql_folder("sqlite")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let sql = fs::read_to_string(&path).unwrap();
        let words: Vec<&str> =
            sql.split(|it: char| !it.is_alphanumeric() && it != '_').filter(|it| !it.is_empty()).collect();
        let is_alias = |it: &&[&str]| TABLES.contains(&it[0]) && it[1] == "as";
        let names: Vec<&str> = words.windows(3).filter(is_alias).map(|it| it[2]).chain(TABLES).collect();
        let mut explained = sqlite.prepare(&format!("explain query plan {sql}")).unwrap();
        let plan: Vec<String> = explained.raw_query().mapped(|row| row.get("detail")).map(Result::unwrap).collect();
        for step in &plan {
            let table = step.strip_prefix("SCAN ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
            let is_whole = names.contains(&table) && !step.contains("keys_in_flight");
            assert!(!is_whole || IN_ORDER_UP_TO_A_LIMIT.contains(&name), "{name} reads all of {table}: {plan:#?}");
        }
    }
}

/// A key in every state before every outcome, with the newest token and with another one.
const SETTLEMENTS: &str = "
    create temporary table settlements on commit drop as
    select sha256(convert_to(row_number() over ()::text, 'UTF8')) as id, *
      from unnest(array['completed', 'dead', 'expired', 'in_flight', 'queued', 'retryable', 'unknown']) as s (state)
     cross join unnest(array[false, true]) as a (accepted)
     cross join unnest(array[1, 2]) as n (attempt)
     cross join unnest(array[null, 'charged']) as p (point)
     cross join (values ('completed', 60000), ('retryable', 60000), ('retryable', 0), ('unknown', null))
                as o (outcome, ttl)
     cross join unnest(array['newest', 'stale']) as t (token)
     where (state <> 'queued' or accepted) and (state <> 'retryable' or not accepted);
    insert into oncegate.keys (id, service, scope, space, key, route, recipe, fingerprint, instance, token, state, attempt,
                               created_at, reserved_at, deadline, settled_at, expires_at, status, fields, accepted_at, due_at,
                               recovery_point)
    select id, 's', sha256('a'), sha256('b'), 'k', 'r', 'v1', sha256('c'), 1, substr(sha256('newest'), 1, 16), state, attempt,
           '2026-01-01', '2026-01-01', '2026-01-01',
           case when state <> 'in_flight' then timestamptz '2026-01-01' end,
           case when state in ('completed', 'expired', 'retryable') then timestamptz '2036-01-01' end,
           case when state = 'completed' then 201 end, case when state = 'completed' then ''::bytea end,
           case when accepted then timestamptz '2026-01-01' end,
           case when state = 'queued' then timestamptz '2026-01-01' end, point
      from settlements";

#[tokio::test]
async fn a_settlement_alone_does_what_it_does_in_a_batch() {
    let world = StoreFixture::postgres().await;
    let client = world.database().client().await;
    let of_completed = |value: &str| format!("case when outcome = 'completed' then {value} end");
    let parameters = [
        "id".to_owned(),
        "substr(sha256(token::bytea), 1, 16)".to_owned(),
        "outcome".to_owned(),
        "ttl::bigint".to_owned(),
        of_completed("200::smallint"),
        of_completed("'f'::bytea"),
        of_completed("'b'::bytea"),
        "null::bigint".to_owned(),
        "5000::bigint".to_owned(),
        "case when outcome = 'unknown' then 'timeout' end".to_owned(),
    ];
    let in_arrays: Vec<String> = parameters.iter().map(|value| format!("array[{value}]")).collect();
    let in_a_batch =
        format!("select id, until_ms is null as forever from settlements, oncegate.settle_3({})", in_arrays.join(", "));
    let alone = format!(
        "select id, expires_at_ms is null as forever from settlements, oncegate.settle_one_1({}) where changed",
        parameters.join(", ")
    );
    let rows =
        "select id, state, status, fields, body, cause, remember_ms, attempt, settled_at > '2026-01-02' as settled,
                       expires_at is null as forever, round(extract(epoch from expires_at - settled_at)) as ttl,
                       round(extract(epoch from due_at - settled_at)) as due
                  from oncegate.keys";
    let mut results = Vec::new();
    for settle in [in_a_batch, alone] {
        client.batch_execute(&format!("begin; {SETTLEMENTS}")).await.unwrap();
        let text = async |sql: &str| {
            let aggregated = format!("select json_agg(r order by id)::text from ({sql}) as r");
            client.query_one(&aggregated, &[]).await.unwrap().get::<_, String>(0)
        };
        results.push((text(&settle).await, text(rows).await));
        client.batch_execute("rollback").await.unwrap();
    }
    assert!(results[0].0.matches("forever").count() > 50, "{}", results[0].0);
    assert_eq!(results[0], results[1]);
}

#[tokio::test]
async fn a_plan_made_on_an_empty_table_is_right_for_a_large_one() {
    let world = StoreFixture::postgres().await;
    let client = world.database().client().await;
    let settle = "select * from oncegate.settle_3(array[sha256('5')], array['\\x00'::bytea], array['unknown'],
                  array[null::bigint], array[null::smallint], array[null::bytea], array[null::bytea], array[null::bigint],
                  array[null::bigint], array[null::text]);
                  select * from oncegate.settle_one_1(sha256('5'), '\\x00', 'unknown', null, null, null, null, null, null, null)";
    // More often than a session needs before it may switch to a generic plan.
    for _ in 0..10 {
        client.batch_execute(settle).await.unwrap();
    }
    fill(world.database()).await;
    client.batch_execute("begin").await.unwrap();
    client.batch_execute(settle).await.unwrap();
    let scans = "select pg_stat_get_xact_numscans('oncegate.keys'::regclass),
                        pg_stat_get_xact_numscans('oncegate.keys_pkey'::regclass)";
    let row = client.query_one(scans, &[]).await.unwrap();
    let (whole, by_key): (i64, i64) = (row.get(0), row.get(1));
    assert!(whole == 0 && by_key > 0, "{whole} {by_key}");
}
