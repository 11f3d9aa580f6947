//! First attempts into a table that has millions of rows, against an empty one.

use crate::contestants::oncegate;
use crate::postgres::Database;
use crate::process::Process;
use crate::sheet::Column;
use crate::sheet::Sheet;
use crate::sheet::Target::AtLeast;
use crate::stage::{Stage, migrated};

const CONNECTIONS: usize = 256;
const EMPTY: &str = "first attempts, empty table";

/// What a row takes on disk with its indexes and the log that is kept of it, generously.
const BYTES_PER_ROW: u64 = 2000;

/// A table of some size and the proxy before it.
struct Table {
    name: String,
    database: Database,
    proxy: Process,
}

pub async fn run(stage: &Stage, sheet: &mut Sheet) -> Result<(), String> {
    let empty = table(stage, EMPTY.to_owned(), 0).await;
    let mut tables = vec![empty];
    for (rows, words) in stage.options.rows() {
        let needed = rows.unsigned_abs() * BYTES_PER_ROW;
        if crate::machine::free_space(&std::env::temp_dir()) < needed {
            sheet.missing.push(format!("{words}: there is not enough room on the disk for them"));
            continue;
        }
        eprintln!("growth: filling in {words}");
        tables.push(table(stage, format!("first attempts, {words}"), *rows).await);
    }
    // Unmeasured: a page that is written for the first time after a checkpoint goes into the log as a whole.
    for table in &tables {
        crate::load::closed(&table.proxy.addresses, crate::request::Load::First, CONNECTIONS, stage.options.length())?;
    }
    for round in 0..stage.options.rounds() {
        eprintln!("growth: round {} of {}", round + 1, stage.options.rounds());
        tables[0].database.client().await.batch_execute("truncate oncegate.keys").await.unwrap();
        for table in &tables {
            stage.first_attempts(&table.proxy.addresses, CONNECTIONS, sheet, &table.name)?;
        }
    }
    for table in &tables[1..] {
        sheet.compare((&table.name, EMPTY), CONNECTIONS, Column::Rate, AtLeast(0.9));
    }
    Ok(())
}

async fn table(stage: &Stage, name: String, rows: i64) -> Table {
    let database = migrated(&stage.cluster).await;
    if rows > 0 {
        fill(&database, rows).await;
    }
    let proxy = oncegate(stage.upstream, |_| database.url.clone());
    Table { name, database, proxy }
}

/// Without its larger indexes while rows come in, which takes a tenth of the time. The primary key is then as full as
/// random insertions leave it, not as full as it can be.
async fn fill(database: &Database, rows: i64) {
    let client = database.client().await;
    let expiring: String =
        client.query_one("select pg_get_indexdef('oncegate.keys_expiring'::regclass)", &[]).await.unwrap().get(0);
    let before = "set synchronous_commit = off; set maintenance_work_mem = '512MB'; drop index oncegate.keys_expiring;
                  alter table oncegate.keys drop constraint keys_pkey";
    client.batch_execute(before).await.unwrap();
    client.execute(include_str!("fill.sql"), &[&rows]).await.unwrap();
    let after = "alter table oncegate.keys add constraint keys_pkey primary key (id) with (fillfactor = 70)";
    client.batch_execute(&format!("{after}; {expiring}")).await.unwrap();
    for statement in ["vacuum (analyze) oncegate.keys", "checkpoint"] {
        client.batch_execute(statement).await.unwrap();
    }
}
