//! Errors of SQLite while a database is being opened.

use std::error::Error;
use std::path::Path;

use rusqlite::ErrorCode;

use crate::store::OpenError;

/// The meaning of SQLite's error at opening.
pub(super) fn open_error(path: &Path, source: rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::InUse { path },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            OpenError::Damaged { path, source: Box::new(source) as Box<dyn Error + Send + Sync> }
        }
        _ => OpenError::Missing(Box::new(source)),
    }
}
