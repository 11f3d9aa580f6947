//! The file: making it, having it alone, and refusing what is none of ours.

use std::error::Error;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{apart, schema};
use crate::store::{Migration, OpenError};

/// `application_id` of our files, see the first migration.
const APPLICATION_ID: i64 = 0x4f6e_6365;

/// Files up to this size are checked whole at opening: a third of a second, from the cache. Larger ones would make a restart long;
/// there, what SQLite stumbles over is told when it is stumbled over.
const CHECKED_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The write-ahead log is cut back to this after it was larger.
const LOG_BYTES_KEPT: i64 = 64 * 1024 * 1024;

/// Opens the file, and makes it if there is none. Nobody else can have it until the connection is closed.
pub(super) fn open(path: &Path) -> Result<Connection, OpenError> {
    let refused = |source| refusal(path, source);
    // Made here and not by SQLite: what is stored is nobody else's to read. Its log takes over the file's mode.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .and_then(|file| file.metadata())
        .map_err(|source| OpenError::Missing(Box::new(source)))?;
    let db = connect(path)?;
    db.pragma_update(None, "locking_mode", "exclusive").map_err(refused)?;
    // Refused at once where somebody else has the file. In this order, so that the log needs no shared memory.
    let mode: String = db.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0)).map_err(refused)?;
    if mode != "wal" {
        return Err(OpenError::Missing(format!("SQLite cannot keep a write-ahead log there, only {mode}").into()));
    }
    // From here on until the connection is closed the file is locked, whatever is done or not done.
    db.execute_batch("begin exclusive; commit").map_err(refused)?;
    if file.len() > 0 {
        recognise(&db, path)?;
        check(&db, path, file.len())?;
    }
    configure(&db).map_err(refused)?;
    // After a crash the log may hold what the disk has not got. Written out and synced, it is there for certain.
    db.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(())).map_err(refused)?;
    Ok(db)
}

/// A database in memory.
pub(super) fn memory() -> Result<Connection, OpenError> {
    let missing = |source| OpenError::Missing(Box::new(source));
    let db = Connection::open_in_memory().map_err(missing)?;
    configure(&db).map_err(missing)?;
    Ok(db)
}

/// See [`crate::store::migrate()`].
pub(crate) async fn migrate(path: &Path) -> Result<Vec<String>, OpenError> {
    let path = path.to_owned();
    apart(move || schema::apply(&mut open(&path)?, Some(&path))).await
}

/// See [`crate::store::pending()`].
pub(crate) async fn pending(path: &Path) -> Result<Vec<Migration>, OpenError> {
    let path = path.to_owned();
    apart(move || {
        match path.metadata() {
            Ok(file) if file.len() > 0 => {}
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(OpenError::Missing(Box::new(source)));
            }
            Ok(_) | Err(_) => return Ok(schema::all()),
        }
        let db = connect(&path)?;
        recognise(&db, &path)?;
        schema::pending(&db, &path)
    })
    .await
}

fn connect(path: &Path) -> Result<Connection, OpenError> {
    // Absolute: SQLite would take a relative `file:…` for a URL.
    let absolute = std::path::absolute(path).map_err(|source| OpenError::Missing(Box::new(source)))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(absolute, flags).map_err(|source| refusal(path, source))?;
    // Whoever else has the file keeps it: waiting would only make the start slow.
    db.busy_timeout(Duration::ZERO).map_err(|source| refusal(path, source))?;
    Ok(db)
}

fn configure(db: &Connection) -> rusqlite::Result<()> {
    // An answer means that it is on the disk.
    db.pragma_update(None, "synchronous", "full")?;
    db.query_row(&format!("pragma journal_size_limit = {LOG_BYTES_KEPT}"), [], |_| Ok(()))?;
    // Damage is to be found where it is read, not handed out.
    db.pragma_update(None, "cell_size_check", "on")?;
    db.pragma_update(None, "trusted_schema", "off")?;
    db.pragma_update(None, "temp_store", "memory")
}

/// Ours, or made and never used.
fn recognise(db: &Connection, path: &Path) -> Result<(), OpenError> {
    let refused = |source| refusal(path, source);
    let number = |sql| db.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(refused);
    if number("pragma application_id")? == APPLICATION_ID || number("select count(*) from sqlite_schema")? == 0 {
        return Ok(());
    }
    Err(OpenError::Damaged { path: path.to_owned(), source: "it is some other program's database".into() })
}

fn check(db: &Connection, path: &Path, bytes: u64) -> Result<(), OpenError> {
    if bytes > CHECKED_BYTES_MAX {
        tracing::info!(bytes, "the store's file is too large to be checked whole at start");
        return Ok(());
    }
    let verdict: String =
        db.query_row("pragma quick_check(1)", [], |row| row.get(0)).map_err(|source| refusal(path, source))?;
    match verdict.as_str() {
        "ok" => Ok(()),
        _ => Err(OpenError::Damaged { path: path.to_owned(), source: verdict.into() }),
    }
}

/// What it means that SQLite refuses, at opening.
pub(super) fn refusal(path: &Path, source: rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::InUse { path },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            OpenError::Damaged { path, source: Box::new(source) as Box<dyn Error + Send + Sync> }
        }
        _ => OpenError::Missing(Box::new(source)),
    }
}
