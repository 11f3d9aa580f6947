//! Salts in SQLite.

use std::sync::Arc;

use rusqlite::Connection;

use super::run::{execute, query_one};
use super::writer::SqliteFailure;
use crate::store::ReplaceSaltParams;
use crate::store::columns::{Columns, columns};
use crate::store::row::RowReader;
use crate::store::statement::{shared, statements};

statements! { "sql/":
    INSERT_SALT = "insert_salt";
    REPLACE_SALT = "replace_salt";
}

pub(super) fn find_salt(db: &Connection, _: i64, service: &Arc<str>) -> Result<Option<Vec<u8>>, SqliteFailure> {
    query_one(db, &shared::FIND_SALT, &columns! { service: &**service }, |row| row.read("value"))
}

pub(super) fn replace_salt(db: &Connection, _: i64, params: &ReplaceSaltParams) -> Result<bool, SqliteFailure> {
    let ReplaceSaltParams { service, from, to } = params;
    match from {
        None => Ok(execute(db, &INSERT_SALT, &columns! { service: &**service, value: &to[..] })? > 0),
        Some(from) => overwrite(db, &columns! { service: &**service, from: &from[..], to: &to[..] }),
    }
}

/// Replaces a salt, and overwrites its earlier form in the file: no free space may show a salt that was in clear. The file
/// itself changes with the next checkpoint, when the store is closed at the latest.
fn overwrite(db: &Connection, columns: &Columns<'_>) -> Result<bool, SqliteFailure> {
    let secure_delete = |setting| db.query_row(&format!("pragma secure_delete = {setting}"), [], |_| Ok(()));
    secure_delete("on")?;
    let replaced = execute(db, &REPLACE_SALT, columns);
    secure_delete("off")?;
    Ok(replaced? > 0)
}
