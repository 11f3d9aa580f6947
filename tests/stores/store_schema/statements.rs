//! The SQL files: each is named, and each database takes its statements.

use std::fs;
use std::path::Path;

use oncegate_store::statement::Statement;
use tokio_postgres::types::Type;

use super::{functions, sqlite_in_memory};
use harness::store_fixture::StoreFixture;

/// The SQL files of a folder of `crates/store/src` that are statements, by their names.
pub(super) fn sql_files(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/store/src").join(folder);
    let mut files: Vec<(String, String)> = fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap()))
        .collect();
    files.sort();
    assert!(files.len() > 9, "{} has the SQL files", folder.display());
    files
}

/// A statement as the store makes it of its file.
pub(super) fn statement(sql: String) -> Statement {
    Statement::new(sql.leak())
}

/// The type of a parameter.
pub(super) fn parameter_type(name: &str) -> Type {
    match name {
        "after" | "fingerprint" | "from" | "high" | "holder" | "id" | "key" | "lookup" | "low" | "path"
        | "people_path" | "scope" | "scope_high" | "scope_low" | "to" => Type::BYTEA,
        "path_length" => Type::INT4,
        "body" | "encrypted" | "keeps_stored" | "redelivered" => Type::BOOL,
        "actor" | "caller" | "counts" | "events" | "finds" | "replacement" | "note" | "route" | "sink" | "types"
        | "routes" | "service" | "state" => Type::TEXT,
        _ => Type::INT8,
    }
}

#[tokio::test]
async fn every_sql_file_starts_with_its_name_and_prepares() {
    let world = StoreFixture::postgres().await;
    let client = world.database().client().await;
    let sqlite = sqlite_in_memory();
    for (folder, to_postgres, to_sqlite) in
        [("sql", true, true), ("postgres/sql", true, false), ("sqlite/sql", false, true)]
    {
        for (name, sql) in sql_files(folder) {
            assert!(sql.starts_with(&format!("-- {name}: ")), "{folder}/{name}");
            let statement = statement(sql);
            // What only a cluster knows, `make cluster` runs.
            if to_postgres && !["nodes", "nodes_not_durable"].contains(&&*name) {
                let types: Vec<_> = statement.parameter_names().iter().map(|name| parameter_type(name)).collect();
                let prepared = client.prepare_typed(statement.for_postgres(), &types).await;
                prepared.map(drop).unwrap_or_else(|error| panic!("{folder}/{name}: {error:?}"));
            }
            if to_sqlite {
                let prepared = sqlite.prepare(statement.for_sqlite());
                prepared.map(drop).unwrap_or_else(|error| panic!("{folder}/{name}: {error}"));
            }
        }
    }
}

#[tokio::test]
async fn every_function_is_installed_and_its_file_starts_with_its_name() {
    let world = StoreFixture::postgres().await;
    let installed = functions::installed(&world.database().client().await).await;
    let mut names: Vec<String> = installed.into_iter().map(|(name, _)| name).collect();
    names.sort();
    let files = sql_files("postgres/functions");
    for (name, sql) in &files {
        assert!(sql.starts_with(&format!("-- {name}: ")), "{name}");
        assert_eq!(sql.matches(&format!("\ncreate function oncegate.{name}(")).count(), 1, "{name}");
    }
    assert_eq!(names, files.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
}

/// The steps of SQLite's plan for a statement.
fn sqlite_plan(sqlite: &rusqlite::Connection, sql: &str) -> Vec<String> {
    let mut explained = sqlite.prepare(&format!("explain query plan {sql}")).unwrap();
    explained.raw_query().mapped(|row| row.get("detail")).map(Result::unwrap).collect()
}

#[test]
fn sqlite_searches_unknown_deliveries_by_their_own_index() {
    let (_, sql) = sql_files("sqlite/sql").into_iter().find(|(name, _)| name == "list_due_deliveries").unwrap();
    let plan = sqlite_plan(&sqlite_in_memory(), statement(sql).for_sqlite()).join("\n");
    for index in [
        "keys_queued (service=? AND route=? AND due_at<?)",
        "keys_unknown_deliveries (service=? AND route=? AND <expr><?)",
    ] {
        assert!(plan.contains(index), "{plan}");
    }
}

/// A statement may read the whole index of the keys in flight, which are few, or a table in the order of an index up to
/// a limit.
#[test]
fn no_sqlite_statement_reads_all_keys() {
    const TABLES: [&str; 4] = ["audit", "events", "keys", "outbox"];
    const IN_ORDER_UP_TO_A_LIMIT: [&str; 2] = ["count_settled_keys", "list_audit_entries"];
    let sqlite = sqlite_in_memory();
    for (name, sql) in sql_files("sqlite/sql").into_iter().chain(sql_files("sql")) {
        let statement = statement(sql);
        let sql = statement.for_sqlite();
        let words: Vec<&str> =
            sql.split(|it: char| !it.is_alphanumeric() && it != '_').filter(|it| !it.is_empty()).collect();
        let is_alias = |it: &&[&str]| TABLES.contains(&it[0]) && it[1] == "as";
        let names: Vec<&str> = words.windows(3).filter(is_alias).map(|it| it[2]).chain(TABLES).collect();
        let plan = sqlite_plan(&sqlite, sql);
        for step in &plan {
            let table = step.strip_prefix("SCAN ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
            let is_whole = names.contains(&table) && !step.contains("keys_in_flight");
            assert!(!is_whole || IN_ORDER_UP_TO_A_LIMIT.contains(&&*name), "{name} reads all of {table}: {plan:#?}");
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
           1000, 1000, 1000, case when state <> 'in_flight' then 1000 end,
           case when state in ('completed', 'expired', 'retryable') then 4102444800000 end,
           case when state = 'completed' then 201 end, case when state = 'completed' then ''::bytea end,
           case when accepted then 1000 end, case when state = 'queued' then 1000 end, point
      from settlements";

#[tokio::test]
async fn a_settlement_alone_does_what_it_does_in_a_batch() {
    let world = StoreFixture::postgres().await;
    let client = world.database().client().await;
    let of_completed = |value: &str| format!("case when outcome = 'completed' then {value} end");
    let parameters = [
        ("_id", "settlements.id".to_owned()),
        ("_token", "substr(sha256(token::bytea), 1, 16)".to_owned()),
        ("_state", "outcome".to_owned()),
        ("_ttl_ms", "ttl::bigint".to_owned()),
        ("_remember_ms", of_completed("7000::bigint")),
        ("_status", of_completed("200::smallint")),
        ("_fields", of_completed("'f'::bytea")),
        ("_body", of_completed("'b'::bytea")),
        ("_cause", "case when outcome = 'unknown' then 'timeout' end".to_owned()),
        ("_due_ms", "5000::bigint".to_owned()),
    ];
    let arguments = |argument: fn(&str) -> String| {
        parameters.iter().map(|(name, value)| format!("{name} => {}", argument(value))).collect::<Vec<_>>().join(", ")
    };
    let settle = functions::installed_name(&client, "settle").await;
    let settle_all = functions::installed_name(&client, "settle_all").await;
    let in_a_batch = format!(
        "select done.id, done.expires_at is null as forever from oncegate.{settle_all}({}) as done",
        arguments(|value| format!("(select array_agg({value} order by settlements.id) from settlements)"))
    );
    let alone = format!(
        "select settlements.id, done.expires_at is null as forever from settlements, oncegate.{settle}({}) as done
          where done.done",
        arguments(str::to_owned)
    );
    let rows = "select id, state, status, fields, body, cause, remember_ms, attempt, settled_at > 1000 as settled,
                       expires_at is null as forever, expires_at - settled_at as ttl, due_at - settled_at as due
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
