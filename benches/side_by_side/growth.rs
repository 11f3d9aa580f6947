//! First attempts into a table with millions of rows, compared with an empty one.

use std::time::{Duration, Instant};

use tokio_postgres::Client;

use crate::process::Process;
use crate::programs::start_oncegate;
use crate::report::BenchmarkReport;
use crate::report::Column;
use crate::report::Target::AtLeast;
use crate::testbed::{Testbed, create_database};
use store_contract::postgres::TestDatabase;

const CONNECTIONS: usize = 256;
const EMPTY: &str = "first attempts, empty table";

/// The disk space of a row with its indexes and its part of the write-ahead log, a generous estimate.
const BYTES_PER_ROW: u64 = 2000;

/// The time limit for inserting the rows of a table, so that the whole benchmark ends within an hour.
const INSERT_TIMEOUT: Duration = Duration::from_mins(20);

/// A table of some size, and a proxy that uses it.
struct Table {
    name: String,
    database: TestDatabase,
    proxy: Process,
}

pub async fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let empty = create_table(testbed, EMPTY.to_owned(), 0).await.map_err(|failure| failure.to_string())?;
    let mut tables = vec![empty];
    for (rows, label) in testbed.options.rows() {
        let needed = rows.unsigned_abs() * BYTES_PER_ROW;
        if crate::machine::free_space(&std::env::temp_dir()) < needed {
            report.missing.push(format!("{label}: there is not enough room on the disk for them"));
            continue;
        }
        eprintln!("growth: inserting {label}");
        let started = Instant::now();
        match create_table(testbed, format!("first attempts, {label}"), *rows).await {
            Ok(table) => tables.push(table),
            Err(failure) => {
                let reason = failure.as_db_error().map_or_else(|| failure.to_string(), ToString::to_string);
                report.missing.push(format!("{label}: {reason}"));
            }
        }
        eprintln!("growth: inserting {label} took {} s", started.elapsed().as_secs());
    }
    // Not measured: the first write to a page after a checkpoint puts the whole page into the write-ahead log.
    for table in &tables {
        crate::load::run_closed(
            &table.proxy.addresses,
            crate::request::Load::First,
            CONNECTIONS,
            testbed.options.length(),
        )?;
    }
    for round in 0..testbed.options.rounds() {
        eprintln!("growth: round {} of {}", round + 1, testbed.options.rounds());
        tables[0].database.client().await.batch_execute("truncate oncegate.keys").await.unwrap();
        for table in &tables {
            testbed.run_first_attempts(&[table.proxy.endpoint(0)], CONNECTIONS, report, &table.name)?;
        }
    }
    for table in &tables[1..] {
        let meaning = "First attempts a second into a table that is full already.";
        report.compare((&table.name, EMPTY), CONNECTIONS, Column::Rate, AtLeast(0.9), meaning);
    }
    Ok(())
}

async fn create_table(testbed: &Testbed, name: String, rows: i64) -> Result<Table, tokio_postgres::Error> {
    let database = create_database(&testbed.cluster).await;
    if rows > 0 {
        insert_rows(&database, rows).await?;
    }
    let proxy = start_oncegate(testbed.upstream, |_| database.url.clone());
    Ok(Table { name, database, proxy })
}

/// Inserts the rows while the larger indexes are dropped, which takes a tenth of the time. The primary key is then created
/// as full as random insertions leave it, not as full as possible.
async fn insert_rows(database: &TestDatabase, rows: i64) -> Result<(), tokio_postgres::Error> {
    let client = database.client().await;
    let expiring: String =
        client.query_one("select pg_get_indexdef('oncegate.keys_expiring'::regclass)", &[]).await?.get(0);
    let before = "set synchronous_commit = off; set maintenance_work_mem = '512MB'; drop index oncegate.keys_expiring;
                  alter table oncegate.keys drop constraint keys_pkey";
    client.batch_execute(before).await?;
    let deadline = Instant::now() + INSERT_TIMEOUT;
    limit_next_statement(&client, deadline).await?;
    client.execute(include_str!("fill.sql"), &[&rows]).await?;
    let after = "alter table oncegate.keys add constraint keys_pkey primary key (id) with (fillfactor = 70)";
    for statement in [after, &expiring, "vacuum (analyze) oncegate.keys", "checkpoint"] {
        limit_next_statement(&client, deadline).await?;
        client.batch_execute(statement).await?;
    }
    Ok(())
}

/// Ends the session's next statement at the deadline.
async fn limit_next_statement(client: &Client, deadline: Instant) -> Result<(), tokio_postgres::Error> {
    // 0 would mean no limit.
    let milliseconds = deadline.saturating_duration_since(Instant::now()).as_millis().max(1);
    client.batch_execute(&format!("set statement_timeout = {milliseconds}")).await
}
