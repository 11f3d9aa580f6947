//! The schema in SQLite: its migrations, and applying them.

use std::error::Error;
use std::path::Path;

use rusqlite::{Connection, ErrorCode, OptionalExtension, named_params};

use crate::OpenError;
use crate::migrate::{
    AppliedMigration, Migration, MigrationStep, SQLITE_STEPS as STEPS, check_none_missing, missing_steps, newer_warning,
};

const APPLIED_MIGRATIONS: &str = include_str!("sql/applied_migrations.sql");

/// Migrates the schema, or refuses it.
pub(super) fn prepare(db: &Connection, path: &Path, migrate: bool) -> Result<(), OpenError> {
    match migrate {
        true => apply(db, path).map(drop),
        false => check_none_missing(&pending(db, path)?),
    }?;
    for warning in warnings(db, path)? {
        tracing::warn!("{warning}");
    }
    Ok(())
}

pub(super) fn apply(db: &Connection, path: &Path) -> Result<Vec<String>, OpenError> {
    let mut taken = Vec::new();
    for step in missing(db, path)? {
        apply_step(db, step)
            .map_err(|source| OpenError::Migration { name: step.name.to_owned(), source: Box::new(source) })?;
        taken.push(step.name.to_owned());
    }
    Ok(taken)
}

fn apply_step(db: &Connection, step: &MigrationStep) -> rusqlite::Result<()> {
    let transaction = db.unchecked_transaction()?;
    transaction.execute_batch(step.sql)?;
    transaction.execute(
        "insert into migrations (version, name, oldest_program, sha256) values (:version, :name, :oldest_program, :sha256)",
        named_params! {
            ":version": step.version,
            ":name": step.name,
            ":oldest_program": step.oldest_program,
            ":sha256": step.sha256(),
        },
    )?;
    transaction.commit()
}

pub(crate) fn pending(db: &Connection, path: &Path) -> Result<Vec<Migration>, OpenError> {
    let script = |step: &MigrationStep| {
        let (version, name, oldest_program, sha256) = (step.version, step.name, step.oldest_program, step.sha256_hex());
        let values = format!("({version}, '{name}', {oldest_program}, x'{sha256}')");
        step.script(&format!("insert into migrations (version, name, oldest_program, sha256) values {values};"))
    };
    Ok(missing(db, path)?.iter().map(script).collect())
}

/// Whether the database has no step of the schema yet.
pub(super) fn is_missing(db: &Connection, path: &Path) -> Result<bool, OpenError> {
    Ok(missing(db, path)?.len() == STEPS.len())
}

fn missing(db: &Connection, path: &Path) -> Result<&'static [MigrationStep], OpenError> {
    missing_steps(STEPS, &applied(db, path)?)
}

pub(crate) fn warnings(db: &Connection, path: &Path) -> Result<Vec<String>, OpenError> {
    Ok(newer_warning(STEPS, &applied(db, path)?).into_iter().collect())
}

fn applied(db: &Connection, path: &Path) -> Result<Vec<AppliedMigration>, OpenError> {
    let applied = || {
        let there = "select 1 from sqlite_schema where name = 'migrations'";
        if db.query_row(there, [], |_| Ok(())).optional()?.is_none() {
            return Ok(Vec::new());
        }
        let step = |row: &rusqlite::Row<'_>| {
            let (version, name) = (row.get("version")?, row.get("name")?);
            let (sha256, oldest_program) = (row.get("sha256")?, row.get("oldest_program")?);
            Ok(AppliedMigration { version, name, sha256, oldest_program })
        };
        db.prepare(APPLIED_MIGRATIONS)?.query_map([], step)?.collect::<rusqlite::Result<_>>()
    };
    applied().map_err(|source| open_error(path, source))
}

/// The meaning of SQLite's error at opening.
pub(crate) fn open_error(path: &Path, source: rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::InUse { path },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            OpenError::Damaged { path, source: source.into() }
        }
        _ => unusable(source),
    }
}

/// The error of a store that cannot be used for this reason.
pub(super) fn unusable(source: impl Into<Box<dyn Error + Send + Sync>>) -> OpenError {
    OpenError::Missing(source.into())
}
