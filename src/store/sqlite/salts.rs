//! Salts in SQLite.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, named_params};

use super::writer::SqliteFailure;
use crate::store::ReplaceSaltParams;

const FIND_SALT: &str = include_str!("sql/find_salt.sql");
const INSERT_SALT: &str = include_str!("sql/insert_salt.sql");
const REPLACE_SALT: &str = include_str!("sql/replace_salt.sql");

pub(super) fn find_salt(db: &Connection, _: i64, service: &Arc<str>) -> Result<Option<Vec<u8>>, SqliteFailure> {
    let parameters = named_params! { ":service": &**service };
    Ok(db.prepare_cached(FIND_SALT)?.query_row(parameters, |row| row.get("value")).optional()?)
}

pub(super) fn replace_salt(db: &Connection, _: i64, params: &ReplaceSaltParams) -> Result<bool, SqliteFailure> {
    let ReplaceSaltParams { service, from, to } = params;
    match from {
        None => {
            let parameters = named_params! { ":service": &**service, ":salt": to };
            Ok(db.prepare_cached(INSERT_SALT)?.execute(parameters)? > 0)
        }
        Some(from) => overwrite(db, service, from, to),
    }
}

/// Replaces a salt, and overwrites its earlier form in the file: no free space may show a salt that was in clear. The file
/// itself changes with the next checkpoint, when the store is closed at the latest.
fn overwrite(db: &Connection, service: &str, from: &[u8], to: &[u8]) -> Result<bool, SqliteFailure> {
    let secure_delete = |setting| db.query_row(&format!("pragma secure_delete = {setting}"), [], |_| Ok(()));
    secure_delete("on")?;
    let parameters = named_params! { ":service": service, ":from": from, ":to": to };
    let replaced = db.prepare_cached(REPLACE_SALT)?.execute(parameters);
    secure_delete("off")?;
    Ok(replaced? > 0)
}
