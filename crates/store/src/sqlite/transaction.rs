//! A transaction of the store, as its calls see it: running statements, and reading their rows.

use std::error::Error;
use std::sync::Arc;
use std::time::SystemTime;

use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, ErrorCode, Row};

use super::file_watch::FileChange;
use crate::StoreError;
use crate::columns::{Columns, columns};
use crate::row::{RowReader, StoredValue, since_1970_ms};
use crate::statement::Statement;
use oncegate_domain::ids::RecordId;
use oncegate_domain::response::CorruptRow;

#[derive(Clone, Debug)]
pub(crate) enum SqliteFailure {
    Corrupt(CorruptRow),
    FileChanged(FileChange),
    /// SQLite's error. Shared, because a transaction fails as one.
    Sqlite(Arc<rusqlite::Error>),
}

pub(crate) type SqliteResult<T> = Result<T, SqliteFailure>;

impl SqliteFailure {
    /// The error, if it ends the store.
    pub fn fatal_error(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        match self {
            Self::FileChanged(change) => Some(change),
            Self::Sqlite(error) => match error.sqlite_error_code() {
                Some(ErrorCode::SystemIoFailure | ErrorCode::NotADatabase | ErrorCode::CannotOpen) => Some(&**error),
                _ => None,
            },
            Self::Corrupt(_) => None,
        }
    }
}

impl From<CorruptRow> for SqliteFailure {
    fn from(corrupt: CorruptRow) -> Self {
        Self::Corrupt(corrupt)
    }
}

impl From<rusqlite::Error> for SqliteFailure {
    fn from(error: rusqlite::Error) -> Self {
        match error {
            // A value that does not have its column's type: the row exists and is corrupt.
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..) => Self::Corrupt(CorruptRow("a column's type")),
            error => Self::Sqlite(Arc::new(error)),
        }
    }
}

impl From<SqliteFailure> for StoreError {
    fn from(failure: SqliteFailure) -> Self {
        let is_fatal = failure.fatal_error().is_some();
        match failure {
            SqliteFailure::Corrupt(corrupt) => Self::Corrupt(corrupt),
            SqliteFailure::FileChanged(change) => Self::Failed(Box::new(change)),
            SqliteFailure::Sqlite(error) if is_fatal => Self::Failed(Box::new(error)),
            SqliteFailure::Sqlite(error) => Self::Unavailable(Box::new(error)),
        }
    }
}

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

/// The statement of the file of this name in the folder `sql`.
macro_rules! sql {
    ($name:literal) => {{
        use $crate::statement::Statement;
        static STATEMENT: Statement = Statement::new(include_str!(concat!("sql/", $name, ".sql")));
        &STATEMENT
    }};
}
pub(super) use sql;

/// An open transaction. Its methods in the other files are the store's calls.
#[derive(Clone, Copy)]
pub(crate) struct SqliteTransaction<'db> {
    pub db: &'db Connection,
    /// The store's time in the whole transaction, in milliseconds since 1970: `:now` in its statements.
    pub now: i64,
}

impl<'db> SqliteTransaction<'db> {
    /// Binds the columns to the statement's parameters of the same names.
    ///
    /// # Panics
    /// Panics where a column is missing: as null it would change what the statement does.
    fn bind(&self, statement: &Statement, columns: &Columns<'_>) -> SqliteResult<CachedStatement<'db>> {
        let mut prepared = self.db.prepare_cached(statement.for_sqlite())?;
        for place in 1..=prepared.parameter_count() {
            let name = prepared.parameter_name(place).unwrap_or_default();
            if name == ":now" {
                prepared.raw_bind_parameter(place, self.now)?;
                continue;
            }
            let value = columns.iter().find(|(column, _)| name.strip_prefix(':') == Some(*column));
            let (_, value) = value.unwrap_or_else(|| panic!("no column {name}"));
            prepared.raw_bind_parameter(place, value)?;
        }
        Ok(prepared)
    }

    /// Runs a statement that returns no rows. Returns the number of rows that it has changed.
    pub fn execute(&self, statement: &Statement, columns: &Columns<'_>) -> SqliteResult<usize> {
        Ok(self.bind(statement, columns)?.raw_execute()?)
    }

    pub fn query<T>(
        &self,
        statement: &Statement,
        columns: &Columns<'_>,
        mut read: impl FnMut(&Row<'_>) -> Result<T, CorruptRow>,
    ) -> SqliteResult<Vec<T>> {
        let mut prepared = self.bind(statement, columns)?;
        let mut rows = prepared.raw_query();
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(read(row)?);
        }
        Ok(found)
    }

    pub fn query_one<T>(
        &self,
        statement: &Statement,
        columns: &Columns<'_>,
        read: impl FnMut(&Row<'_>) -> Result<T, CorruptRow>,
    ) -> SqliteResult<Option<T>> {
        Ok(self.query(statement, columns, read)?.pop())
    }

    /// Executes several writing statements, of which either all or none take effect. The transaction's other calls are
    /// not affected.
    pub fn in_savepoint<T>(&self, work: impl FnOnce() -> SqliteResult<T>) -> SqliteResult<T> {
        self.db.execute_batch("savepoint job")?;
        let done = work();
        let ended = match &done {
            Ok(_) => self.db.execute_batch("release job"),
            // SQLite has rolled back the whole transaction, and the savepoint with it.
            Err(_) if self.db.is_autocommit() => Ok(()),
            Err(_) => self.db.execute_batch("rollback to job; release job"),
        };
        // The first failure is the one to return.
        let done = done?;
        ended?;
        Ok(done)
    }

    /// The store's time, limited by the caller's estimate of it: a clock that was set forward ends nothing early.
    pub fn no_later_than(&self, estimate: SystemTime) -> i64 {
        self.now.min(since_1970_ms(estimate))
    }

    pub fn audit(&self, columns: &Columns<'_>) -> SqliteResult<()> {
        self.execute(sql!("insert_audit_entry"), columns).map(drop)
    }

    /// Deletes a key's request if the key is completed or gone.
    pub fn delete_request(&self, id: &RecordId) -> SqliteResult<()> {
        self.execute(sql!("delete_request"), &columns! { id: id }).map(drop)
    }
}
