//! Whether the database's files are still those that their paths name, with the contents that this process gave them.
//!
//! SQLite reads and writes through its file descriptors. It does not notice that somebody removes, replaces or
//! truncates a file: it would go on to acknowledge writes that no later process can read. A look costs 4 µs in a debug
//! build, where a transaction costs 2 ms.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use oncegate_machine::fill_random;

/// The size to which SQLite truncates a larger write-ahead log.
pub(super) const LOG_BYTES_KEPT: u64 = 64 * 1024 * 1024;

/// The place of `user_version` in the header of the file, see
/// <https://www.sqlite.org/fileformat2.html#the_database_header>.
const STAMP_OFFSET: u64 = 60;

/// The length of the log's header, and how it begins, see <https://www.sqlite.org/fileformat2.html#wal_file_format>.
const LOG_HEADER_BYTES: u64 = 32;
const LOG_MAGIC: [u8; 3] = [0x37, 0x7f, 0x06];

/// The looks at a truncated file, to see whether it gets other contents. `cp` writes the header first.
const REFILL_LOOKS: usize = 10;
const REFILL_PAUSE: Duration = Duration::from_millis(50);

/// The way in which the files have changed behind the process's back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FileChange {
    #[error("somebody has removed or moved the file, or a folder of its path")]
    Gone,
    #[error("somebody has put another file in its place")]
    Replaced,
    /// As after `cp backup.db oncegate.db`.
    #[error("somebody has written another file's contents into it")]
    Overwritten,
    #[error("somebody has truncated it")]
    Truncated,
    #[error("somebody has removed or replaced its write-ahead log")]
    LogGone,
    #[error("somebody has truncated its write-ahead log")]
    LogTruncated,
}

/// A number in the file's header that each opening draws anew: the contents then differ from those of every backup that
/// was made before.
pub(super) type Stamp = [u8; 4];

/// Draws a stamp, and writes it into the database.
pub(super) fn write_stamp(db: &Connection) -> rusqlite::Result<Stamp> {
    let mut stamp = Stamp::default();
    fill_random(&mut stamp).expect("the operating system has random numbers");
    db.pragma_update(None, "user_version", i32::from_be_bytes(stamp))?;
    Ok(stamp)
}

/// The files of an open database. To be used between two transactions only, on the thread that makes them.
///
/// It must outlive the connection: closing a descriptor of the file drops the locks that SQLite has on it, as POSIX has
/// it.
pub(super) struct FileWatch {
    file: File,
    path: PathBuf,
    seen: Metadata,
    log: File,
    log_path: PathBuf,
    seen_log: Metadata,
    stamp: Stamp,
}

/// Whether both are the same file. Its inode is not given to another one while SQLite has it open.
fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

impl FileWatch {
    /// Watches the files of a connection that holds the lock of its file. `file` was opened at the path before SQLite
    /// opened it, and `stamp` is in the file, and not in the log alone.
    ///
    /// # Errors
    /// The files cannot be read, or the path named two files meanwhile.
    pub fn new(file: File, path: &Path, stamp: Stamp) -> io::Result<Self> {
        let (path, log_path) = (std::path::absolute(path)?, log_path(&fs::canonicalize(path)?));
        let seen = fs::metadata(&path)?;
        // SQLite has no locks on the log.
        let log = File::open(&log_path)?;
        let seen_log = log.metadata()?;
        let watch = Self { file, path, seen, log, log_path, seen_log, stamp };
        // Also finds a file that was put in the place of the one that SQLite has opened.
        match is_same_file(&watch.seen, &watch.file.metadata()?) && watch.read_stamp()? == watch.stamp {
            true => Ok(watch),
            false => Err(io::Error::other("another file was put in its place while it was opened")),
        }
    }

    /// Compares the files with those that the process has opened. What cannot be looked at counts as unchanged.
    ///
    /// # Errors
    /// The change. The log counts only where the file has not changed.
    pub fn check(&mut self) -> Result<(), FileChange> {
        let Some(found) = look(&self.path, FileChange::Gone)? else { return Ok(()) };
        if !is_same_file(&self.seen, &found) {
            return Err(FileChange::Replaced);
        }
        // Oncegate never runs VACUUM: the file only grows.
        if found.len() < self.seen.len() {
            return Err(FileChange::Truncated);
        }
        if self.read_stamp().is_ok_and(|stamp| stamp != self.stamp) {
            return Err(FileChange::Overwritten);
        }
        self.seen = found;
        let Some(found) = look(&self.log_path, FileChange::LogGone)? else { return Ok(()) };
        if !is_same_file(&self.seen_log, &found) {
            return Err(FileChange::LogGone);
        }
        // SQLite itself truncates a log that has grown past this, and to no less.
        if found.len() < self.seen_log.len().min(LOG_BYTES_KEPT) || !self.has_log_header(found.len()) {
            return Err(FileChange::LogTruncated);
        }
        self.seen_log = found;
        Ok(())
    }

    /// Saves what the change has left, for the next process. Nothing is written through the connection after this.
    pub fn salvage(&self, change: FileChange, db: &Connection) {
        let path = self.path.display();
        match change {
            // The file is whole, and so is the log behind its open descriptor.
            FileChange::LogGone => match db.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(())) {
                Ok(()) => {
                    tracing::warn!(%path, "wrote the records of the lost log into the file; none is lost");
                    self.set_log_aside();
                }
                Err(error) => {
                    tracing::error!(%path, %error, "the records of the lost log could not be written into the file")
                }
            },
            FileChange::Replaced | FileChange::Overwritten => {
                // A log that came with the new file stays.
                let log = look(&self.log_path, change).ok().flatten();
                if log.is_some_and(|log| is_same_file(&self.seen_log, &log)) {
                    self.set_log_aside();
                }
            }
            FileChange::Truncated if self.is_refilled() => self.set_log_aside(),
            // The log stays beside the path: the next start refuses a log without its file.
            FileChange::Gone | FileChange::Truncated | FileChange::LogTruncated => {}
        }
        // Nor may closing write into a file that is another one by now.
        if let Err(error) = db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true) {
            tracing::error!(%path, %error, "the log cannot be kept out of the file");
        }
    }

    /// Whether the log has its header, if it is long enough for one: SQLite writes on behind a hole where the log was
    /// emptied.
    fn has_log_header(&self, length: u64) -> bool {
        let mut begins = [0; LOG_MAGIC.len()];
        length < LOG_HEADER_BYTES || self.log.read_exact_at(&mut begins, 0).is_err() || begins == LOG_MAGIC
    }

    /// Whether the truncated file gets other contents: `cp` truncates the file that it overwrites, and then fills it.
    #[expect(clippy::disallowed_methods, reason = "no event tells that somebody fills a file")]
    fn is_refilled(&self) -> bool {
        (0..REFILL_LOOKS).any(|_| {
            thread::sleep(REFILL_PAUSE);
            self.read_stamp().is_ok_and(|stamp| stamp != self.stamp)
        })
    }

    /// Renames the log at the path, if there is one. The next start would apply it to a file that it does not belong
    /// to.
    fn set_log_aside(&self) {
        let mut aside = self.log_path.clone().into_os_string();
        aside.push(format!(".former-{}", std::process::id()));
        if fs::rename(&self.log_path, &aside).is_ok() {
            tracing::warn!(path = %self.path.display(), log = %aside.display(), "set a log aside that does not belong to the file");
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn read_stamp(&self) -> io::Result<Stamp> {
        let mut stamp = Stamp::default();
        self.file.read_exact_at(&mut stamp, STAMP_OFFSET)?;
        Ok(stamp)
    }
}

/// Returns the file at the path; `None` where it cannot be looked at, as without permission for its folder.
fn look(path: &Path, absent: FileChange) -> Result<Option<Metadata>, FileChange> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Err(absent),
        Err(_) => Ok(None),
    }
}

/// The path of a database's write-ahead log.
pub(super) fn log_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}
