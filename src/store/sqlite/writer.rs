//! The writer: the one thread that uses the database.
//!
//! A failing COMMIT is not tried again. After a failed fsync the kernel may have dropped the data that it could not
//! write and report the next fsync as a success; a database reopened then would read data from the page cache that the
//! disk never got, and build on it. So an I/O error ends the store: every later job is refused, the process ends, and the
//! next one's opening writes the whole log to the disk before it answers anything. A full disk is different: SQLite
//! rolls the transaction back, and the next one may find room.
//!
//! Files that somebody else has removed, replaced or truncated end the store like an I/O error. The writer looks after each
//! transaction and before it answers: no write is acknowledged that the next process cannot read. A heartbeat is a
//! transaction, so an idle process notices it too.

use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rusqlite::{Connection, ErrorCode};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::file::Database;
use super::file_watch::{FileChange, FileWatch};
use super::{Clock, Urgency};
use crate::domain::response::CorruptRow;
use crate::store::StoreError;
use crate::store::batch::{BatchCallError, BatchQueue, Batchable};
use crate::store::reply::{self, ReplySender};

/// The failure of a job.
#[derive(Clone, Debug)]
pub(super) enum SqliteFailure {
    /// A row does not decode.
    Corrupt(CorruptRow),
    /// Somebody else has changed the files.
    FileChanged(FileChange),
    /// SQLite's error. Shared, because a transaction fails as one.
    Sqlite(Arc<rusqlite::Error>),
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
        match failure {
            SqliteFailure::Corrupt(corrupt) => Self::Corrupt(corrupt),
            SqliteFailure::FileChanged(change) => Self::Failed(Box::new(change)),
            SqliteFailure::Sqlite(error) if is_fatal(&error) => Self::Failed(Box::new(error)),
            SqliteFailure::Sqlite(error) => Self::Unavailable(Box::new(error)),
        }
    }
}

/// The queue of jobs for the writer.
pub(super) struct WriterInbox(Arc<BatchQueue<Box<dyn WriterJob>>>);

/// Starts the writer. It ends when the inbox is closed and empty, and closes the database. It cancels `failed` after an error
/// that ends the store.
pub(super) fn start(
    mut database: Database,
    clock: Clock,
    failed: CancellationToken,
) -> std::io::Result<(WriterInbox, JoinHandle<()>)> {
    let queue = Arc::new(BatchQueue::new());
    let inbox = WriterInbox(queue.clone());
    let writer = thread::Builder::new().name("oncegate-store".to_owned()).spawn(move || {
        let queue = AbandonOnDrop(queue);
        serve(&queue.0, &mut database, clock, &failed);
    })?;
    Ok((inbox, writer))
}

impl WriterInbox {
    /// Executes the work in the next transaction, and waits for its answer.
    pub async fn call<T: Send + 'static>(
        &self,
        urgency: Urgency,
        bytes: usize,
        work: impl FnOnce(&Connection, i64) -> Result<T, SqliteFailure> + Send + 'static,
        deadline: Instant,
    ) -> Result<Result<T, StoreError>, BatchCallError> {
        let (reply, answer) = reply::channel();
        if !self.0.push(Box::new(WriterCall { urgency, bytes, work: Some(work), answer: None, reply })) {
            return Err(BatchCallError::Closed);
        }
        timeout_at(deadline, answer).await.map_err(|_| BatchCallError::TimedOut)?.map_err(|_| BatchCallError::Dropped)
    }

    /// Closes the inbox to new jobs.
    pub fn close(&self) {
        self.0.close();
    }
}

/// Abandons the queue however the writer ends, by a panic too, so that no caller waits for ever.
struct AbandonOnDrop(Arc<BatchQueue<Box<dyn WriterJob>>>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

fn serve(queue: &BatchQueue<Box<dyn WriterJob>>, database: &mut Database, clock: Clock, failed: &CancellationToken) {
    let mut fatal: Option<SqliteFailure> = None;
    while let Some(mut batch) = queue.blocking_batch() {
        let committed = match &fatal {
            Some(failure) => Err(failure.clone()),
            None => transact_and_look(database, &mut batch, clock),
        };
        if let (Err(failure), None) = (&committed, &fatal)
            && let Some(error) = failure.fatal_error()
        {
            let path = database.watch.as_ref().map_or(Path::new(""), FileWatch::path).display();
            tracing::error!(%path, %error, "the store's file failed; nothing is stored any more, and this process ends");
            // Before the process begins to end.
            if let (SqliteFailure::FileChanged(change), Some(watch)) = (failure, &database.watch) {
                watch.salvage(*change, &database.db);
            }
            failed.cancel();
            fatal = Some(failure.clone());
        }
        for operation in batch {
            operation.send_answer(committed.clone());
        }
    }
}

/// Executes the batch, and looks for a change of the files before anything of it is answered, whatever became of it.
fn transact_and_look(
    database: &mut Database,
    batch: &mut [Box<dyn WriterJob>],
    clock: Clock,
) -> Result<(), SqliteFailure> {
    let committed = transact(&database.db, batch, clock);
    match database.watch.as_mut().map(|watch| watch.check()) {
        Some(Err(change)) => Err(SqliteFailure::FileChanged(change)),
        Some(Ok(())) | None => committed,
    }
}

/// Executes the batch in one transaction. A failing job gets its own failure and does not affect the others, unless the
/// whole transaction is lost: SQLite rolls a failing statement back alone, and writes that belong together are in one
/// savepoint.
fn transact(db: &Connection, batch: &mut [Box<dyn WriterJob>], clock: Clock) -> Result<(), SqliteFailure> {
    let transaction = db.unchecked_transaction()?; // rolled back when dropped
    let now = clock();
    for operation in batch {
        if let Some(SqliteFailure::Sqlite(error)) = operation.run(db, now)
            && (db.is_autocommit() || is_fatal(&error))
        {
            return Err(SqliteFailure::Sqlite(error));
        }
    }
    Ok(transaction.commit()?)
}

impl SqliteFailure {
    /// The error, if it ends the store.
    fn fatal_error(&self) -> Option<&dyn std::error::Error> {
        match self {
            Self::FileChanged(change) => Some(change),
            Self::Sqlite(error) if is_fatal(error) => Some(&**error),
            Self::Corrupt(_) | Self::Sqlite(_) => None,
        }
    }
}

fn is_fatal(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::SystemIoFailure | ErrorCode::NotADatabase | ErrorCode::CannotOpen)
    )
}

/// A job with the channel for its answer.
pub(super) trait WriterJob: Send {
    /// Executes the job, and keeps its answer until the commit. Returns the failure, if any.
    fn run(&mut self, db: &Connection, now: i64) -> Option<SqliteFailure>;

    /// Sends the answer, now that the transaction's outcome is known.
    fn send_answer(self: Box<Self>, committed: Result<(), SqliteFailure>);

    fn abandoned(&self) -> bool;
    fn bytes(&self) -> usize;
    fn urgency(&self) -> Urgency;
}

impl Batchable for Box<dyn WriterJob> {
    fn abandoned(&self) -> bool {
        self.as_ref().abandoned()
    }

    fn bytes(&self) -> usize {
        self.as_ref().bytes()
    }

    fn urgent(&self) -> bool {
        self.urgency() == Urgency::First
    }
}

struct WriterCall<T, W> {
    urgency: Urgency,
    bytes: usize,
    work: Option<W>,
    answer: Option<Result<T, SqliteFailure>>,
    reply: ReplySender<Result<T, StoreError>>,
}

impl<T, W> WriterJob for WriterCall<T, W>
where
    T: Send + 'static,
    W: FnOnce(&Connection, i64) -> Result<T, SqliteFailure> + Send,
{
    fn run(&mut self, db: &Connection, now: i64) -> Option<SqliteFailure> {
        let answer = self.work.take().map(|work| work(db, now))?;
        let failure = answer.as_ref().err().cloned();
        self.answer = Some(answer);
        failure
    }

    fn send_answer(self: Box<Self>, committed: Result<(), SqliteFailure>) {
        let answer = match (committed, self.answer) {
            (Ok(()), Some(answer)) => answer.map_err(StoreError::from),
            (Err(failure), _) => Err(failure.into()),
            (Ok(()), None) => return, // not executed; dropping the channel tells the caller
        };
        self.reply.send(answer);
    }

    fn abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn urgency(&self) -> Urgency {
        self.urgency
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rusqlite::ffi;

    use super::*;

    fn started() -> (WriterInbox, JoinHandle<()>) {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch("create table t (n integer check (n < 100), filling blob)").unwrap();
        start(Database { db, watch: None }, || 0, CancellationToken::new()).unwrap()
    }

    async fn call<T: Send + 'static>(
        inbox: &WriterInbox,
        work: impl FnOnce(&Connection, i64) -> Result<T, SqliteFailure> + Send + 'static,
    ) -> Result<Result<T, StoreError>, BatchCallError> {
        inbox.call(Urgency::Ordinary, 0, work, Instant::now() + Duration::from_secs(10)).await
    }

    fn insert(n: i64) -> impl FnOnce(&Connection, i64) -> Result<(), SqliteFailure> + Send {
        move |db, _| Ok(db.execute("insert into t (n) values (?1)", [n]).map(drop)?)
    }

    async fn count(inbox: &WriterInbox) -> i64 {
        let count = |db: &Connection, _| Ok(db.query_row("select count(*) from t", [], |row| row.get(0))?);
        call(inbox, count).await.unwrap().unwrap()
    }

    /// Asks both while the thread is kept busy, so that they go together.
    async fn together<A, B>(inbox: &WriterInbox, one: impl Future<Output = A>, two: impl Future<Output = B>) -> (A, B) {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let busy = call(inbox, move |_, _| {
            let _ = held.recv();
            Ok(())
        });
        let let_go = async {
            tokio::task::yield_now().await;
            drop(hold);
        };
        let (_, one, two, ()) = tokio::join!(biased; busy, one, two, let_go);
        (one, two)
    }

    #[test]
    fn a_boxed_job_is_queued_like_the_call_in_it() {
        let job = |bytes, urgency| {
            let (reply, answer) = reply::channel();
            let work = |_: &Connection, _: i64| Ok(());
            let job: Box<dyn WriterJob> =
                Box::new(WriterCall { work: Some(work), answer: None, reply, bytes, urgency });
            (job, answer)
        };
        let (first, _answer) = job(7, Urgency::First);
        assert_eq!((first.bytes(), first.urgent(), Batchable::abandoned(&first)), (7, true, false));
        let (ordinary, answer) = job(0, Urgency::Ordinary);
        drop(answer);
        assert_eq!((ordinary.bytes(), ordinary.urgent(), Batchable::abandoned(&ordinary)), (0, false, true));
    }

    #[tokio::test]
    async fn a_failing_job_fails_alone() {
        let (inbox, _writer) = started();
        let (bad, good) = together(&inbox, call(&inbox, insert(100)), call(&inbox, insert(1))).await;
        assert!(matches!(bad.unwrap(), Err(StoreError::Unavailable(_))));
        assert!(good.unwrap().is_ok());
        assert_eq!(count(&inbox).await, 1);
    }

    #[tokio::test]
    async fn a_full_disk_fails_the_transaction_and_later_ones_succeed() {
        let (inbox, _writer) = started();
        let pages = |pages: u32| {
            move |db: &Connection, _| Ok(db.query_row(&format!("pragma max_page_count = {pages}"), [], |_| Ok(()))?)
        };
        let fill =
            |db: &Connection, _| Ok(db.execute("insert into t (filling) values (zeroblob(1 << 20))", []).map(drop)?);
        call(&inbox, pages(20)).await.unwrap().unwrap();
        let (one, full) = together(&inbox, call(&inbox, insert(1)), call(&inbox, fill)).await;
        assert!(matches!(full.unwrap(), Err(StoreError::Unavailable(_))));
        // Whether SQLite rolled back all or only the statement that did not fit, the answers agree.
        assert_eq!(one.unwrap().is_ok(), count(&inbox).await == 1);
        call(&inbox, pages(2000)).await.unwrap().unwrap();
        call(&inbox, fill).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn after_an_io_error_every_job_is_refused() {
        let (inbox, _writer) = started();
        let broken = |_: &Connection, _| -> Result<(), SqliteFailure> {
            Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_FSYNC), None).into())
        };
        assert!(matches!(call(&inbox, broken).await.unwrap(), Err(StoreError::Failed(_))));
        for _ in 0..2 {
            let error = call(&inbox, insert(1)).await.unwrap().unwrap_err();
            assert!(matches!(&error, StoreError::Failed(cause) if cause.to_string().contains("I/O")), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_panic_leaves_no_caller_waiting() {
        let (inbox, writer) = started();
        let panics = |_: &Connection, _| -> Result<(), SqliteFailure> { panic!("on purpose") };
        assert_eq!(call(&inbox, panics).await.unwrap_err(), BatchCallError::Dropped);
        assert!(writer.join().is_err());
        assert_eq!(call(&inbox, insert(1)).await.unwrap_err(), BatchCallError::Closed);
    }
}
