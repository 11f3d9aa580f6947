//! The schema in SQLite: its migrations, and applying them.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, named_params};

use super::open_error::open_error;
use crate::store::OpenError;
use crate::store::migrate::{AppliedMigration, Migration, MigrationStep, check_none_missing, missing_steps};

const APPLIED_MIGRATIONS: &str = include_str!("sql/applied_migrations.sql");

const STEPS: &[MigrationStep] =
    &[MigrationStep::new(1, "0001_init", include_str!("../../../migrations/sqlite/0001_init.sql"))];

/// See [`crate::store::schema()`].
pub(crate) fn newest_step() -> &'static str {
    STEPS.last().expect("there is a first step").name
}

/// Migrates the schema, or refuses it. A database in memory has no path, and is always empty at first.
pub(super) fn prepare(db: &mut Connection, path: Option<&Path>, migrate: bool) -> Result<(), OpenError> {
    if migrate || path.is_none() {
        apply(db, path)?;
    } else {
        let pending: Vec<_> = missing_steps(STEPS, &applied(db, path)?)?.iter().map(script).collect();
        check_none_missing(&pending)?;
    }
    Ok(())
}

/// Applies the missing migrations, each in a transaction of its own. Returns their names.
pub(super) fn apply(db: &mut Connection, path: Option<&Path>) -> Result<Vec<String>, OpenError> {
    let mut taken = Vec::new();
    for step in missing_steps(STEPS, &applied(db, path)?)? {
        apply_step(db, step)
            .map_err(|source| OpenError::Migration { name: step.name.to_owned(), source: Box::new(source) })?;
        taken.push(step.name.to_owned());
    }
    Ok(taken)
}

fn apply_step(db: &mut Connection, step: &MigrationStep) -> rusqlite::Result<()> {
    let transaction = db.transaction()?;
    transaction.execute_batch(step.sql)?;
    transaction.execute(
        "insert into migrations (version, name, sha256) values (:version, :name, :sha256)",
        named_params! { ":version": step.version, ":name": step.name, ":sha256": step.sha256() },
    )?;
    transaction.commit()
}

/// Returns the migrations that the file lacks.
pub(super) fn pending(db: &Connection, path: &Path) -> Result<Vec<Migration>, OpenError> {
    Ok(missing_steps(STEPS, &applied(db, Some(path))?)?.iter().map(script).collect())
}

/// Returns the migrations that a new file needs.
pub(super) fn all_scripts() -> Vec<Migration> {
    STEPS.iter().map(script).collect()
}

fn script(step: &MigrationStep) -> Migration {
    step.script(&format!(
        "insert into migrations (version, name, sha256) values ({}, '{}', x'{}');",
        step.version,
        step.name,
        step.sha256_hex()
    ))
}

fn applied(db: &Connection, path: Option<&Path>) -> Result<Vec<AppliedMigration>, OpenError> {
    let read = || {
        let there = "select 1 from sqlite_schema where name = 'migrations'";
        if db.query_row(there, [], |_| Ok(())).optional()?.is_none() {
            return Ok(Vec::new());
        }
        let step = |row: &rusqlite::Row<'_>| {
            Ok(AppliedMigration { version: row.get(0)?, name: row.get(1)?, sha256: row.get(2)? })
        };
        db.prepare(APPLIED_MIGRATIONS)?.query_map([], step)?.collect()
    };
    read().map_err(|source| refused(path, source))
}

fn refused(path: Option<&Path>, source: rusqlite::Error) -> OpenError {
    match path {
        Some(path) => open_error(path, source),
        None => OpenError::Missing(Box::new(source)),
    }
}
