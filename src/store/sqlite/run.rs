//! Running statements, and reading their rows.

use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, Row};

use super::writer::SqliteFailure;
use crate::domain::response::CorruptRow;
use crate::store::columns::Columns;
use crate::store::row::{RowReader, StoredValue};
use crate::store::statement::Statement;

impl RowReader for Row<'_> {
    fn value(&self, column: &'static str) -> Result<Option<StoredValue<'_>>, CorruptRow> {
        match self.get_ref(column).map_err(|_| CorruptRow(column))? {
            ValueRef::Null => Ok(None),
            ValueRef::Integer(number) => Ok(Some(StoredValue::Number(number))),
            ValueRef::Text(text) => {
                std::str::from_utf8(text).map(|text| Some(StoredValue::Text(text))).map_err(|_| CorruptRow(column))
            }
            ValueRef::Blob(bytes) => Ok(Some(StoredValue::Bytes(bytes))),
            ValueRef::Real(_) => Err(CorruptRow(column)),
        }
    }
}

/// Binds the columns to the statement's parameters of the same names.
///
/// # Panics
/// Panics where a column is missing: as null it would change what the statement does.
fn bind<'db>(
    db: &'db Connection,
    statement: &Statement,
    columns: &Columns<'_>,
) -> Result<CachedStatement<'db>, SqliteFailure> {
    let mut prepared = db.prepare_cached(statement.for_sqlite())?;
    for place in 1..=prepared.parameter_count() {
        let name = prepared.parameter_name(place).unwrap_or_default();
        let value = columns.iter().find(|(column, _)| name.strip_prefix(':') == Some(*column));
        let (_, value) = value.unwrap_or_else(|| panic!("no column {name}"));
        prepared.raw_bind_parameter(place, value)?;
    }
    Ok(prepared)
}

/// Runs a statement that returns no rows. Returns the number of rows that it has changed.
pub(super) fn execute(db: &Connection, statement: &Statement, columns: &Columns<'_>) -> Result<usize, SqliteFailure> {
    Ok(bind(db, statement, columns)?.raw_execute()?)
}

/// Runs a statement, and reads all its rows.
pub(super) fn query<T>(
    db: &Connection,
    statement: &Statement,
    columns: &Columns<'_>,
    mut read: impl FnMut(&Row<'_>) -> Result<T, CorruptRow>,
) -> Result<Vec<T>, SqliteFailure> {
    let mut prepared = bind(db, statement, columns)?;
    let mut rows = prepared.raw_query();
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(read(row)?);
    }
    Ok(found)
}

/// Runs a statement, and reads its one row.
pub(super) fn query_one<T>(
    db: &Connection,
    statement: &Statement,
    columns: &Columns<'_>,
    read: impl FnMut(&Row<'_>) -> Result<T, CorruptRow>,
) -> Result<Option<T>, SqliteFailure> {
    Ok(query(db, statement, columns, read)?.pop())
}

/// Executes several writing statements, of which either all or none take effect. The transaction's other jobs are not
/// affected.
pub(super) fn in_savepoint<T>(
    db: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, SqliteFailure>,
) -> Result<T, SqliteFailure> {
    db.execute_batch("savepoint job")?;
    let done = work(db);
    let ended = match &done {
        Ok(_) => db.execute_batch("release job"),
        // SQLite has rolled back the whole transaction, and the savepoint with it.
        Err(_) if db.is_autocommit() => Ok(()),
        Err(_) => db.execute_batch("rollback to job; release job"),
    };
    // The first failure is the one to return.
    let done = done?;
    ended?;
    Ok(done)
}
