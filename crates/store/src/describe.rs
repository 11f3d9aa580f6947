//! The store for a report: its settings and its sizes, and how the database finds the keys that are listed and reaped.
//! It reads no row of Oncegate's.

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::columns::{self, Columns, columns};
use super::statement::{Statement, shared};
use super::{ListKeysParams, OpenError, StoreLocation, StoreSettings, postgres, sqlite};

/// Opens the transaction of the report, which changes nothing and is rolled back.
const BEGIN: &str =
    "begin read only; set local statement_timeout = '5s'; set local plan_cache_mode = force_generic_plan";

/// The separator of the cells of a line.
const BETWEEN: &str = " | ";
const PLAN: &str = "The plan";

/// The most keys of a page, which changes no generic plan.
const PAGE: u16 = 100;

mod in_postgres {
    crate::statement::statements! { "postgres/sql/":
        EXPIRED_KEYS = "expired_keys";
        INDEX_STATISTICS = "index_statistics";
        LIST_KEYS_BY_LOOKUP = "list_keys_by_lookup";
        SERVER_SETTINGS = "server_settings";
        TABLE_STATISTICS = "table_statistics";
    }
}

mod in_sqlite {
    crate::statement::statements! { "sqlite/sql/":
        FILE_PROPERTIES = "file_properties";
        LIST_KEYS_BY_LOOKUP = "list_keys_by_lookup";
        REAP = "reap";
    }
}

/// Describes the store in Markdown. Changes nothing, and creates no file.
pub async fn describe(settings: &StoreSettings) -> Result<String, OpenError> {
    match &settings.location {
        StoreLocation::Memory => Ok("The store is in the memory of its instance.\n".into()),
        StoreLocation::Postgres(url) => {
            let client = postgres::connect_to(url, settings).await?;
            describe_postgres(&client).await.map_err(postgres::open_error)
        }
        StoreLocation::Sqlite(path) => {
            sqlite::look(path, |db, path| describe_sqlite(db).map_err(|error| sqlite::open_error(path, error))).await
        }
    }
}

pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}

/// The statements that list keys, and the one that finds those to reap.
fn statements_about_keys(by_lookup: &'static Statement, reap: &'static Statement) -> [&'static Statement; 5] {
    [&shared::LIST_KEYS, &shared::LIST_KEYS_BY_AGE, &shared::LIST_KEYS_IN_FLIGHT, by_lookup, reap]
}

async fn describe_postgres(client: &Client) -> Result<String, tokio_postgres::Error> {
    use in_postgres::{EXPIRED_KEYS, INDEX_STATISTICS, LIST_KEYS_BY_LOOKUP, SERVER_SETTINGS, TABLE_STATISTICS};
    client.batch_execute(BEGIN).await?;
    let mut text = String::new();
    for statement in [&SERVER_SETTINGS, &TABLE_STATISTICS, &INDEX_STATISTICS] {
        text.push_str(&part("The rows", statement, &ask(client, statement.for_postgres()).await?));
    }
    // For the types of the parameters alone.
    let params = ListKeysParams { service: "".into(), filter: Default::default(), after: None, limit: PAGE.into() };
    let columns = columns! { as_of: 0_i64, settled_since: 0_i64, ..columns::key_list(&params) };
    for statement in statements_about_keys(&LIST_KEYS_BY_LOOKUP, &EXPIRED_KEYS) {
        text.push_str(&part(PLAN, statement, &explain(client, statement, &columns).await?));
    }
    client.batch_execute("rollback").await?;
    Ok(text)
}

/// Returns the generic plan of a statement.
async fn explain(
    client: &Client,
    statement: &Statement,
    columns: &Columns<'_>,
) -> Result<Vec<String>, tokio_postgres::Error> {
    let parameters = statement.parameters(columns);
    let types: Vec<_> = parameters.iter().map(|value| value.postgres_type().name().to_owned()).collect();
    let (types, nulls) = (types.join(", "), vec!["null"; parameters.len()].join(", "));
    let sql = statement.for_postgres();
    let explain = format!("prepare oncegate_report ({types}) as {sql}; explain execute oncegate_report ({nulls})");
    let plan = ask(client, &explain).await?;
    // A rollback leaves the statement to the session, and a pooler the session to somebody else.
    ask(client, "deallocate oncegate_report").await?;
    Ok(plan)
}

/// Returns the lines of an answer, or of the reason why the server gives none: a table may be locked, or not be there.
async fn ask(client: &Client, sql: &str) -> Result<Vec<String>, tokio_postgres::Error> {
    let error = match client.simple_query(&format!("savepoint part; {sql}")).await {
        Ok(answer) => return Ok(lines(&answer)),
        Err(error) => error,
    };
    // The server's own words may quote a row.
    let Some(code) = error.code().map(|code| format!("no answer: SQLSTATE {}", code.code())) else { return Err(error) };
    client.batch_execute("rollback to part").await?;
    Ok(vec![code])
}

/// The names of the columns and the rows of an answer.
fn lines(answer: &[SimpleQueryMessage]) -> Vec<String> {
    let line = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::RowDescription(columns) => {
            Some(columns.iter().map(|column| column.name()).collect::<Vec<_>>().join(BETWEEN))
        }
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|at| row.get(at).unwrap_or_default()).collect::<Vec<_>>().join(BETWEEN))
        }
        _ => None,
    };
    answer.iter().filter_map(line).collect()
}

fn describe_sqlite(db: &Connection) -> rusqlite::Result<String> {
    use in_sqlite::{FILE_PROPERTIES, LIST_KEYS_BY_LOOKUP, REAP};
    let mut text = part("The rows", &FILE_PROPERTIES, &read_lines(db, FILE_PROPERTIES.for_sqlite())?);
    for statement in statements_about_keys(&LIST_KEYS_BY_LOOKUP, &REAP) {
        let plan = read_lines(db, &format!("explain query plan {}", statement.for_sqlite()));
        let plan = plan.unwrap_or_else(|_| vec!["no plan: the schema is not there".to_owned()]);
        text.push_str(&part(PLAN, statement, &plan));
    }
    Ok(text)
}

/// The same of a statement whose parameters are null.
fn read_lines(db: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = db.prepare(sql)?;
    let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let cell = |value: ValueRef<'_>| match value {
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Blob(_) | ValueRef::Null | ValueRef::Real(_) => String::new(),
    };
    let rows = statement.raw_query().mapped(|row| {
        let cells = (0..names.len()).map(|at| row.get_ref(at).map(cell)).collect::<rusqlite::Result<Vec<_>>>();
        Ok(cells?.join(BETWEEN))
    });
    std::iter::once(Ok(names.join(BETWEEN))).chain(rows).collect()
}

/// A part of the report, with the name with which the statement's file begins.
fn part(what: &str, statement: &Statement, lines: &[String]) -> String {
    let name = statement.for_sqlite().trim_start_matches("-- ").split(':').next().unwrap_or_default();
    format!("### {what} of {name}\n\n```text\n{}\n```\n\n", lines.join("\n"))
}
