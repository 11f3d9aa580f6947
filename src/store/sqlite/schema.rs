//! The schema in SQLite: what it lacks, and taking the steps.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, named_params};

use super::file::refusal;
use crate::domain::scope::Salt;
use crate::store::OpenError;
use crate::store::migrate::{Applied, Migration, Step, none_missing, outstanding};

const APPLIED: &str = include_str!("sql/applied.sql");
const SALT: &str = include_str!("sql/salt.sql");
const SALTED: &str = include_str!("sql/salted.sql");

const STEPS: &[Step] = &[
    Step::new(1, "0001_keys", include_str!("../../../migrations/sqlite/0001_keys.sql")),
    Step::new(2, "0002_operators", include_str!("../../../migrations/sqlite/0002_operators.sql")),
    Step::new(3, "0003_purges", include_str!("../../../migrations/sqlite/0003_purges.sql")),
    Step::new(4, "0004_outbox", include_str!("../../../migrations/sqlite/0004_outbox.sql")),
    Step::new(5, "0005_service", include_str!("../../../migrations/sqlite/0005_service.sql")),
];

/// See [`crate::store::schema()`].
pub(crate) fn newest_step() -> &'static str {
    STEPS.last().expect("there is a first step").name
}

/// Brings the schema up to date, or refuses it, and reads the salt. A database in memory has no path, and always begins
/// with nothing.
pub(super) fn prepare(db: &mut Connection, path: Option<&Path>, migrate: bool) -> Result<Salt, OpenError> {
    if migrate || path.is_none() {
        apply(db, path)?;
    } else {
        none_missing(outstanding(STEPS, &applied(db, path)?)?)?;
    }
    salt(db, path)
}

/// Takes the steps that are missing, each in a transaction of its own. Returns their names.
pub(super) fn apply(db: &mut Connection, path: Option<&Path>) -> Result<Vec<String>, OpenError> {
    let mut taken = Vec::new();
    for step in outstanding(STEPS, &applied(db, path)?)? {
        take(db, step)
            .map_err(|source| OpenError::Migration { name: step.name.to_owned(), source: Box::new(source) })?;
        taken.push(step.name.to_owned());
    }
    Ok(taken)
}

fn take(db: &mut Connection, step: &Step) -> rusqlite::Result<()> {
    let transaction = db.transaction()?;
    transaction.execute_batch(step.sql)?;
    transaction.execute(
        "insert into migrations (version, name, sha256) values (:version, :name, :sha256)",
        named_params! { ":version": step.version, ":name": step.name, ":sha256": step.sha256() },
    )?;
    transaction.commit()
}

/// The steps that the file lacks.
pub(super) fn pending(db: &Connection, path: &Path) -> Result<Vec<Migration>, OpenError> {
    Ok(outstanding(STEPS, &applied(db, Some(path))?)?.iter().map(script).collect())
}

/// The steps that a file lacks that is not there.
pub(super) fn all() -> Vec<Migration> {
    STEPS.iter().map(script).collect()
}

fn script(step: &Step) -> Migration {
    step.script(&format!(
        "insert into migrations (version, name, sha256) values ({}, '{}', x'{}');",
        step.version,
        step.name,
        step.sha256_hex()
    ))
}

fn applied(db: &Connection, path: Option<&Path>) -> Result<Vec<Applied>, OpenError> {
    let read = || {
        let there = "select 1 from sqlite_schema where name = 'migrations'";
        if db.query_row(there, [], |_| Ok(())).optional()?.is_none() {
            return Ok(Vec::new());
        }
        let step =
            |row: &rusqlite::Row<'_>| Ok(Applied { version: row.get(0)?, name: row.get(1)?, sha256: row.get(2)? });
        db.prepare(APPLIED)?.query_map([], step)?.collect()
    };
    read().map_err(|source| refused(path, source))
}

/// The salt, drawn when the file was made.
fn salt(db: &Connection, path: Option<&Path>) -> Result<Salt, OpenError> {
    let mut drawn = [0; 32];
    getrandom::fill(&mut drawn).map_err(|source| OpenError::Missing(Box::new(source)))?;
    let read = || {
        db.execute(SALT, named_params! { ":salt": drawn })?;
        db.query_row(SALTED, [], |row| row.get::<_, Vec<u8>>(0))
    };
    let stored = read().map_err(|source| refused(path, source))?;
    let salt: [u8; 32] =
        stored.try_into().map_err(|_| OpenError::SchemaForeign("the salt is not 32 bytes long".to_owned()))?;
    Ok(Salt::new(salt))
}

fn refused(path: Option<&Path>, source: rusqlite::Error) -> OpenError {
    match path {
        Some(path) => refusal(path, source),
        None => OpenError::Missing(Box::new(source)),
    }
}
