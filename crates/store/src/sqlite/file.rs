//! The database file: creating it, locking it, and refusing files of other programs.

use std::fs::{self, OpenOptions};
use std::iter;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::file_watch::{FileWatch, LOG_BYTES_KEPT, log_path, write_stamp};
use super::schema::{self, open_error, unusable};
use super::{SqliteTransaction, run_blocking};
use crate::row::FromRow;
use crate::statement::shared;
use crate::{OpenError, RouteIdentities, StoreError};

/// `application_id` of our files, see the first migration.
const APPLICATION_ID: i64 = 0x4f6e_6365;

/// Files up to this size are checked completely at opening: a third of a second, from the page cache. Larger files
/// would make a restart slow; their damage is reported when SQLite reads it.
const CHECKED_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The longest chain of symbolic links that Linux follows, see path_resolution(7).
const LINKS_MAX: usize = 40;

/// An open database. The fields are dropped in this order.
pub(super) struct Database {
    pub db: Connection,
    /// `None` for a database in memory.
    pub watch: Option<FileWatch>,
}

/// Opens the file, and creates it if it does not exist. No other process can open it until the connection is closed.
pub(super) fn open(path: &Path) -> Result<Database, OpenError> {
    let refused = |source| open_error(path, source);
    refuse_log_without_file(path)?;
    // Created here and not by SQLite, with a mode that lets nobody else read it. The log inherits the file's mode.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(unusable)?;
    let length = file.metadata().map_err(unusable)?.len();
    let db = connect(path)?;
    db.pragma_update(None, "locking_mode", "exclusive").map_err(refused)?;
    // Fails at once where another process has the file. After `locking_mode`, so that the log needs no shared memory.
    let mode: String = db.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0)).map_err(refused)?;
    if mode != "wal" {
        return Err(unusable(format!("SQLite cannot keep a write-ahead log there, only {mode}")));
    }
    // From here on the file is locked until the connection is closed.
    db.execute_batch("begin exclusive; commit").map_err(refused)?;
    if length > 0 {
        recognise(&db, path)?;
        check(&db, path, length)?;
    }
    configure(&db).map_err(refused)?;
    let stamp = write_stamp(&db).map_err(refused)?;
    // After a crash the log may hold data that is not on the disk yet. The checkpoint writes and syncs it.
    db.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(())).map_err(refused)?;
    let watch = FileWatch::new(file, path, stamp).map_err(unusable)?;
    Ok(Database { db, watch: Some(watch) })
}

/// Refuses to begin a new file beside the log of one that is missing or empty: that log shows that the file went away
/// while a process had it open, and SQLite would delete it. It is beside the file that a symbolic link leads to.
fn refuse_log_without_file(path: &Path) -> Result<(), OpenError> {
    let length = |path: &Path| path.metadata().map_or(0, |file| file.len());
    if length(path) > 0 {
        return Ok(());
    }
    let targets = iter::successors(Some(path.to_owned()), |path| read_link(path)).take(LINKS_MAX);
    let Some(log) = targets.map(|target| log_path(&target)).find(|log| length(log) > 0) else { return Ok(()) };
    let source = format!(
        "it is missing or empty, and its log {} is there: somebody has removed, moved or emptied it while a process had it open. \
         Put the file back; or remove the log too, and retries of all earlier keys are executed again",
        log.display()
    );
    Err(OpenError::Damaged { path: path.to_owned(), source: source.into() })
}

/// The path that a symbolic link names, whether or not there is a file; `None` where the path is no link.
fn read_link(path: &Path) -> Option<PathBuf> {
    let named = fs::read_link(path).ok()?;
    Some(path.parent().unwrap_or(Path::new("")).join(named))
}

pub(super) fn memory() -> Result<Database, OpenError> {
    let db = Connection::open_in_memory().map_err(unusable)?;
    configure(&db).map_err(unusable)?;
    Ok(Database { db, watch: None })
}

pub(crate) async fn migrate(path: &Path) -> Result<Vec<String>, OpenError> {
    let path = path.to_owned();
    run_blocking(move || schema::apply(&open(&path)?.db, &path)).await
}

pub(crate) async fn remembered_route_identities(path: &Path) -> Result<Vec<RouteIdentities>, OpenError> {
    look(path, move |db, path| {
        if schema::is_missing(db, path)? {
            return Ok(Vec::new());
        }
        let found = SqliteTransaction { db, now: 0 }
            .query(&shared::LIST_ROUTE_IDENTITIES, &Vec::new(), |row| RouteIdentities::read(row));
        found.map_err(|failure| unusable(StoreError::from(failure)))
    })
    .await
}

/// Looks into the file, which stays as it is. In place of a missing or empty one there is an empty database.
pub(crate) async fn look<T: Send + 'static>(
    path: &Path,
    look: impl FnOnce(&Connection, &Path) -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    let path = path.to_owned();
    run_blocking(move || {
        let db = match path.metadata() {
            Ok(file) if file.len() > 0 => connect(&path)?,
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => return Err(unusable(source)),
            Ok(_) | Err(_) => memory()?.db,
        };
        recognise(&db, &path)?;
        look(&db, &path)
    })
    .await
}

fn connect(path: &Path) -> Result<Connection, OpenError> {
    // Absolute: SQLite would take a relative `file:…` for a URL.
    let absolute = std::path::absolute(path).map_err(unusable)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(absolute, flags).map_err(|source| open_error(path, source))?;
    // Another process that has the file keeps it: waiting would only make the start slow.
    db.busy_timeout(Duration::ZERO).map_err(|source| open_error(path, source))?;
    Ok(db)
}

fn configure(db: &Connection) -> rusqlite::Result<()> {
    // An answer means that the data is on the disk.
    db.pragma_update(None, "synchronous", "full")?;
    db.query_row(&format!("pragma journal_size_limit = {LOG_BYTES_KEPT}"), [], |_| Ok(()))?;
    // Detect damage when it is read, instead of returning it.
    db.pragma_update(None, "cell_size_check", "on")?;
    db.pragma_update(None, "trusted_schema", "off")?;
    db.pragma_update(None, "temp_store", "memory")
}

/// Accepts a file of Oncegate's, or an empty one.
fn recognise(db: &Connection, path: &Path) -> Result<(), OpenError> {
    let refused = |source| open_error(path, source);
    let number = |sql| db.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(refused);
    if number("pragma application_id")? == APPLICATION_ID || number("select count(*) from sqlite_schema")? == 0 {
        return Ok(());
    }
    Err(OpenError::Damaged { path: path.to_owned(), source: "it is some other program's database".into() })
}

fn check(db: &Connection, path: &Path, bytes: u64) -> Result<(), OpenError> {
    if bytes > CHECKED_BYTES_MAX {
        tracing::info!(bytes, "the store's file is too large to be checked completely at start");
        return Ok(());
    }
    let verdict: String =
        db.query_row("pragma quick_check(1)", [], |row| row.get(0)).map_err(|source| open_error(path, source))?;
    match verdict.as_str() {
        "ok" => Ok(()),
        _ => Err(OpenError::Damaged { path: path.to_owned(), source: verdict.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_writes_through_to_the_disk_and_notices_damage() {
        let folder = tempfile::tempdir().unwrap();
        let Database { db, .. } = &open(&folder.path().join("store.db")).unwrap();
        let setting = |name: &str| db.query_row(&format!("pragma {name}"), [], |row| row.get::<_, i64>(0)).unwrap();
        // 2 is `full` and `memory`.
        let expected = [
            ("synchronous", 2),
            ("journal_size_limit", 64 * 1024 * 1024),
            ("cell_size_check", 1),
            ("trusted_schema", 0),
            ("temp_store", 2),
        ];
        assert_eq!(expected.map(|(name, _)| (name, setting(name))), expected);
    }
}
