//! The writer: the one thread that uses the database.
//!
//! A failing COMMIT is not tried again. After a failed fsync the kernel may have dropped the data that it could not
//! write and report the next fsync as a success; a database reopened then would read data from the page cache that the
//! disk never got, and build on it. So an I/O error ends the store: every later job is refused, the process ends, and
//! the next one's opening writes the whole log to the disk before it answers anything. A full disk is different: SQLite
//! rolls the transaction back, and the next one may find room.
//!
//! Files that somebody else has removed, replaced or truncated end the store like an I/O error. The writer looks after
//! each transaction and before it answers: no write is acknowledged that the next process cannot read. A heartbeat is a
//! transaction, so an idle process notices it too.

use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Clock;
use super::file::Database;
use super::file_watch::FileWatch;
use super::transaction::{SqliteFailure, SqliteResult, SqliteTransaction};
use crate::StoreError;
use crate::queue::{Job, JobQueue};
use crate::reply::{self, ReplySender};

pub(super) type WriterQueue = JobQueue<Box<dyn WriterJob>>;

/// Starts the writer. It ends when the queue is closed and empty, and closes the database. It cancels `failed` after an
/// error that ends the store.
pub(super) fn start(
    mut database: Database,
    clock: Clock,
    failed: CancellationToken,
) -> std::io::Result<(Arc<WriterQueue>, JoinHandle<()>)> {
    let queue = Arc::new(WriterQueue::new());
    let served = AbandonOnDrop(queue.clone());
    let writer = thread::Builder::new().name("oncegate-store".to_owned());
    let writer = writer.spawn(move || {
        let queue = served;
        serve(&queue.0, &mut database, clock, &failed);
    })?;
    Ok((queue, writer))
}

/// Executes the work in the next transaction, and waits for its answer. Urgent work goes first. `bytes` are those of a
/// body: what a transaction writes is bounded.
pub(super) async fn call<T: Send + 'static>(
    queue: &WriterQueue,
    is_urgent: bool,
    bytes: usize,
    work: impl FnOnce(SqliteTransaction<'_>) -> SqliteResult<T> + Send + 'static,
    deadline: Instant,
) -> Result<T, StoreError> {
    let stopped = || StoreError::Unavailable("the store's writer has stopped".into());
    let (reply, answer) = reply::channel();
    if !queue.push(Box::new(WriterCall { work: Some(work), answer: None, reply }), bytes, is_urgent) {
        return Err(stopped());
    }
    let answered = timeout_at(deadline, answer).await.map_err(|_| StoreError::TimedOut)?;
    answered.unwrap_or_else(|_| Err(stopped()))
}

/// Abandons the queue however the writer ends, by a panic too, so that no caller waits for ever.
struct AbandonOnDrop(Arc<WriterQueue>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

fn serve(queue: &WriterQueue, database: &mut Database, clock: Clock, failed: &CancellationToken) {
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
        for job in batch {
            job.send_answer(committed.clone());
        }
    }
}

/// Executes the batch, and looks for a change of the files before anything of it is answered, whatever became of it.
// See docs/decisions/0009-end-after-an-io-error.md.
fn transact_and_look(database: &mut Database, batch: &mut [Box<dyn WriterJob>], clock: Clock) -> SqliteResult<()> {
    let committed = transact(database, batch, clock);
    match database.watch.as_mut().map(FileWatch::check) {
        Some(Err(change)) => Err(SqliteFailure::FileChanged(change)),
        Some(Ok(())) | None => committed,
    }
}

/// Executes the batch in one transaction. A failing job gets its own failure and does not affect the others, unless the
/// whole transaction is lost: SQLite rolls a failing statement back alone, and writes that belong together are in one
/// savepoint.
fn transact(Database { db, .. }: &Database, batch: &mut [Box<dyn WriterJob>], clock: Clock) -> SqliteResult<()> {
    let transaction = db.unchecked_transaction()?; // rolled back when dropped
    let now = clock();
    for job in batch {
        if let Some(failure @ SqliteFailure::Sqlite(_)) = job.run(SqliteTransaction { db, now })
            && (db.is_autocommit() || failure.fatal_error().is_some())
        {
            return Err(failure);
        }
    }
    Ok(transaction.commit()?)
}

pub(super) trait WriterJob: Job {
    /// Executes the job, and keeps its answer until the commit. Returns the failure, if any.
    fn run(&mut self, transaction: SqliteTransaction<'_>) -> Option<SqliteFailure>;

    /// Sends the answer, now that the transaction's outcome is known.
    fn send_answer(self: Box<Self>, committed: SqliteResult<()>);
}

impl Job for Box<dyn WriterJob> {
    fn abandoned(&self) -> bool {
        self.as_ref().abandoned()
    }
}

struct WriterCall<T, W> {
    work: Option<W>,
    answer: Option<SqliteResult<T>>,
    reply: ReplySender<Result<T, StoreError>>,
}

impl<T: Send + 'static, W: Send + 'static> Job for WriterCall<T, W> {
    fn abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

impl<T, W> WriterJob for WriterCall<T, W>
where
    T: Send + 'static,
    W: FnOnce(SqliteTransaction<'_>) -> SqliteResult<T> + Send + 'static,
{
    fn run(&mut self, transaction: SqliteTransaction<'_>) -> Option<SqliteFailure> {
        let answer = self.work.take().map(|work| work(transaction))?;
        self.answer.insert(answer).as_ref().err().cloned()
    }

    fn send_answer(self: Box<Self>, committed: SqliteResult<()>) {
        let answer = match (committed, self.answer) {
            (Ok(()), Some(answer)) => answer.map_err(StoreError::from),
            (Err(failure), _) => Err(failure.into()),
            (Ok(()), None) => return, // not executed; dropping the channel tells the caller
        };
        self.reply.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rusqlite::{Connection, ffi};

    use super::*;

    fn started() -> (Arc<WriterQueue>, JoinHandle<()>) {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch("create table t (n integer check (n < 100), filling blob)").unwrap();
        start(Database { db, watch: None }, || 0, CancellationToken::new()).unwrap()
    }

    async fn call<T: Send + 'static>(
        queue: &WriterQueue,
        work: impl FnOnce(&Connection) -> SqliteResult<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + Duration::from_secs(10);
        super::call(queue, false, 0, |transaction| work(transaction.db), deadline).await
    }

    fn insert(n: i64) -> impl FnOnce(&Connection) -> SqliteResult<()> + Send {
        move |db| Ok(db.execute("insert into t (n) values (?1)", [n]).map(drop)?)
    }

    async fn count(queue: &WriterQueue) -> i64 {
        call(queue, |db| Ok(db.query_row("select count(*) from t", [], |row| row.get(0))?)).await.unwrap()
    }

    /// Asks both while the thread is kept busy, so that they go together.
    async fn together<A, B>(queue: &WriterQueue, one: impl Future<Output = A>, two: impl Future<Output = B>) -> (A, B) {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let busy = call(queue, move |_| {
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
    fn a_boxed_job_is_abandoned_like_the_call_in_it() {
        let (reply, answer) = reply::channel();
        let work = Some(|_: SqliteTransaction<'_>| Ok(()));
        let job: Box<dyn WriterJob> = Box::new(WriterCall { work, answer: None, reply });
        assert!(!job.abandoned());
        drop(answer);
        assert!(job.abandoned());
    }

    #[tokio::test]
    async fn a_failing_job_fails_alone() {
        let (queue, _writer) = started();
        let (bad, good) = together(&queue, call(&queue, insert(100)), call(&queue, insert(1))).await;
        assert!(matches!(bad, Err(StoreError::Unavailable(_))));
        assert!(good.is_ok());
        assert_eq!(count(&queue).await, 1);
    }

    #[tokio::test]
    async fn a_full_disk_fails_the_transaction_and_later_ones_succeed() {
        let (queue, _writer) = started();
        let pages = |pages: u32| {
            move |db: &Connection| Ok(db.query_row(&format!("pragma max_page_count = {pages}"), [], |_| Ok(()))?)
        };
        let fill =
            |db: &Connection| Ok(db.execute("insert into t (filling) values (zeroblob(1 << 20))", []).map(drop)?);
        call(&queue, pages(20)).await.unwrap();
        let (one, full) = together(&queue, call(&queue, insert(1)), call(&queue, fill)).await;
        assert!(matches!(full, Err(StoreError::Unavailable(_))));
        // Whether SQLite rolled back all or only the statement that did not fit, the answers agree.
        assert_eq!(one.is_ok(), count(&queue).await == 1);
        call(&queue, pages(2000)).await.unwrap();
        call(&queue, fill).await.unwrap();
    }

    #[tokio::test]
    async fn after_an_io_error_every_job_is_refused() {
        let (queue, _writer) = started();
        let broken = |_: &Connection| -> SqliteResult<()> {
            Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_FSYNC), None).into())
        };
        assert!(matches!(call(&queue, broken).await, Err(StoreError::Failed(_))));
        for _ in 0..2 {
            let error = call(&queue, insert(1)).await.unwrap_err();
            assert!(matches!(&error, StoreError::Failed(cause) if cause.to_string().contains("I/O")), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_panic_leaves_no_caller_waiting() {
        let (queue, writer) = started();
        let stopped = |error| matches!(error, Err(StoreError::Unavailable(_)));
        assert!(stopped(call(&queue, |_| -> SqliteResult<()> { panic!("on purpose") }).await));
        assert!(writer.join().is_err());
        assert!(stopped(call(&queue, insert(1)).await));
    }
}
