//! The one thread that has the database.
//!
//! A failing COMMIT is not tried again. After a failed fsync the kernel may have dropped what it could not write and
//! call the next fsync a success; a database reopened then would read from the cache what the disk never got, and build
//! on it. So an I/O error ends the store: everything after it is refused until the process is started anew, and opening
//! writes the whole log out before anything is answered. A full disk is another matter: SQLite takes the transaction
//! back, and the next one may find room.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rusqlite::{Connection, ErrorCode};
use tokio::time::{Instant, timeout_at};

use super::{Clock, Urgency};
use crate::domain::response::Corrupt;
use crate::store::StoreError;
use crate::store::back::{self, Back};
use crate::store::batch::{NoAnswer, Queue, Waiting};

/// Work on the database failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// A row does not decode.
    Corrupt(Corrupt),
    /// SQLite refused. Shared, because a transaction fails as one.
    Sqlite(Arc<rusqlite::Error>),
}

impl From<Corrupt> for Failure {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        match error {
            // A value that is not of its column's type: the row is there and is wrong.
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..) => Self::Corrupt(Corrupt("a column's type")),
            error => Self::Sqlite(Arc::new(error)),
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Corrupt(corrupt) => Self::Corrupt(corrupt),
            Failure::Sqlite(error) => Self::Unavailable(Box::new(error)),
        }
    }
}

/// Where work for the thread is handed in.
pub(super) struct Inbox(Arc<Queue<Box<dyn Operation>>>);

/// Starts the thread. It ends when the inbox is closed and empty, and closes the database.
pub(super) fn start(db: Connection, clock: Clock) -> std::io::Result<(Inbox, JoinHandle<()>)> {
    let queue = Arc::new(Queue::new());
    let inbox = Inbox(queue.clone());
    let writer = thread::Builder::new().name("oncegate-store".to_owned()).spawn(move || {
        let queue = Served(queue);
        serve(&queue.0, &db, clock);
    })?;
    Ok((inbox, writer))
}

impl Inbox {
    /// Has the work done in the next transaction, and waits for its answer.
    pub async fn ask<T: Send + 'static>(
        &self,
        urgency: Urgency,
        bytes: usize,
        work: impl FnOnce(&Connection, i64) -> Result<T, Failure> + Send + 'static,
        deadline: Instant,
    ) -> Result<Result<T, StoreError>, NoAnswer> {
        let (back, answer) = back::way();
        if !self.0.push(Box::new(Call { urgency, bytes, work: Some(work), answer: None, back })) {
            return Err(NoAnswer::Closed);
        }
        timeout_at(deadline, answer).await.map_err(|_| NoAnswer::TimedOut)?.map_err(|_| NoAnswer::Dropped)
    }

    /// Nothing is taken in any more.
    pub fn close(&self) {
        self.0.close();
    }
}

/// However the thread ends, by a panic too, nobody is left waiting for it.
struct Served(Arc<Queue<Box<dyn Operation>>>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

fn serve(queue: &Queue<Box<dyn Operation>>, db: &Connection, clock: Clock) {
    let mut ended: Option<Failure> = None;
    while let Some(mut batch) = queue.blocking_batch() {
        let committed = match &ended {
            Some(failure) => Err(failure.clone()),
            None => transact(db, &mut batch, clock),
        };
        if let (Err(Failure::Sqlite(error)), None) = (&committed, &ended)
            && is_the_end(error)
        {
            tracing::error!(%error, "the store's file failed; nothing is stored until this process is started anew");
            ended = committed.as_ref().err().cloned();
        }
        for operation in batch {
            operation.tell(committed.clone());
        }
    }
}

/// Does the batch in one transaction. What fails is told its own failure and takes nobody with it, unless the whole
/// transaction is lost: an operation has one writing statement, and SQLite takes that back by itself.
fn transact(db: &Connection, batch: &mut [Box<dyn Operation>], clock: Clock) -> Result<(), Failure> {
    let transaction = db.unchecked_transaction()?; // taken back when dropped
    let now = clock();
    for operation in batch {
        if let Some(Failure::Sqlite(error)) = operation.run(db, now)
            && (db.is_autocommit() || is_the_end(&error))
        {
            return Err(Failure::Sqlite(error));
        }
    }
    Ok(transaction.commit()?)
}

fn is_the_end(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::SystemIoFailure | ErrorCode::NotADatabase | ErrorCode::CannotOpen)
    )
}

/// A piece of work with the way back to who wants it.
pub(super) trait Operation: Send {
    /// Does the work, and keeps the answer until it is committed. Returns what went wrong.
    fn run(&mut self, db: &Connection, now: i64) -> Option<Failure>;

    /// Answers, now that it is known what became of the transaction.
    fn tell(self: Box<Self>, committed: Result<(), Failure>);

    fn abandoned(&self) -> bool;
    fn bytes(&self) -> usize;
    fn urgency(&self) -> Urgency;
}

impl Waiting for Box<dyn Operation> {
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

struct Call<T, W> {
    urgency: Urgency,
    bytes: usize,
    work: Option<W>,
    answer: Option<Result<T, Failure>>,
    back: Back<Result<T, StoreError>>,
}

impl<T, W> Operation for Call<T, W>
where
    T: Send + 'static,
    W: FnOnce(&Connection, i64) -> Result<T, Failure> + Send,
{
    fn run(&mut self, db: &Connection, now: i64) -> Option<Failure> {
        let answer = self.work.take().map(|work| work(db, now))?;
        let failure = answer.as_ref().err().cloned();
        self.answer = Some(answer);
        failure
    }

    fn tell(self: Box<Self>, committed: Result<(), Failure>) {
        let answer = match (committed, self.answer) {
            (Ok(()), Some(answer)) => answer.map_err(StoreError::from),
            (Err(failure), _) => Err(failure.into()),
            (Ok(()), None) => return, // not run; dropping the way back says so
        };
        self.back.send(answer);
    }

    fn abandoned(&self) -> bool {
        self.back.is_closed()
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

    fn started() -> (Inbox, JoinHandle<()>) {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch("create table t (n integer check (n < 100), filling blob)").unwrap();
        start(db, || 0).unwrap()
    }

    async fn ask<T: Send + 'static>(
        inbox: &Inbox,
        work: impl FnOnce(&Connection, i64) -> Result<T, Failure> + Send + 'static,
    ) -> Result<Result<T, StoreError>, NoAnswer> {
        inbox.ask(Urgency::Ordinary, 0, work, Instant::now() + Duration::from_secs(10)).await
    }

    fn insert(n: i64) -> impl FnOnce(&Connection, i64) -> Result<(), Failure> + Send {
        move |db, _| Ok(db.execute("insert into t (n) values (?1)", [n]).map(drop)?)
    }

    async fn count(inbox: &Inbox) -> i64 {
        let count = |db: &Connection, _| Ok(db.query_row("select count(*) from t", [], |row| row.get(0))?);
        ask(inbox, count).await.unwrap().unwrap()
    }

    /// Asks both while the thread is kept busy, so that they go together.
    async fn together<A, B>(inbox: &Inbox, one: impl Future<Output = A>, two: impl Future<Output = B>) -> (A, B) {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let busy = ask(inbox, move |_, _| {
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

    #[tokio::test]
    async fn what_fails_in_a_transaction_fails_alone() {
        let (inbox, _writer) = started();
        let (bad, good) = together(&inbox, ask(&inbox, insert(100)), ask(&inbox, insert(1))).await;
        assert!(matches!(bad.unwrap(), Err(StoreError::Unavailable(_))));
        assert!(good.unwrap().is_ok());
        assert_eq!(count(&inbox).await, 1);
    }

    #[tokio::test]
    async fn a_full_disk_fails_the_transaction_and_passes() {
        let (inbox, _writer) = started();
        let pages = |pages: u32| {
            move |db: &Connection, _| Ok(db.query_row(&format!("pragma max_page_count = {pages}"), [], |_| Ok(()))?)
        };
        let fill =
            |db: &Connection, _| Ok(db.execute("insert into t (filling) values (zeroblob(1 << 20))", []).map(drop)?);
        ask(&inbox, pages(20)).await.unwrap().unwrap();
        let (one, full) = together(&inbox, ask(&inbox, insert(1)), ask(&inbox, fill)).await;
        assert!(matches!(full.unwrap(), Err(StoreError::Unavailable(_))));
        // Whether SQLite took all back or only what did not fit, it is what was told.
        assert_eq!(one.unwrap().is_ok(), count(&inbox).await == 1);
        ask(&inbox, pages(2000)).await.unwrap().unwrap();
        ask(&inbox, fill).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn after_an_io_error_nothing_is_taken_in_any_more() {
        let (inbox, _writer) = started();
        let broken = |_: &Connection, _| -> Result<(), Failure> {
            Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_FSYNC), None).into())
        };
        assert!(matches!(ask(&inbox, broken).await.unwrap(), Err(StoreError::Unavailable(_))));
        for _ in 0..2 {
            let error = ask(&inbox, insert(1)).await.unwrap().unwrap_err();
            assert!(matches!(&error, StoreError::Unavailable(cause) if cause.to_string().contains("I/O")), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_panic_leaves_nobody_waiting() {
        let (inbox, writer) = started();
        let panics = |_: &Connection, _| -> Result<(), Failure> { panic!("on purpose") };
        assert_eq!(ask(&inbox, panics).await.unwrap_err(), NoAnswer::Dropped);
        assert!(writer.join().is_err());
        assert_eq!(ask(&inbox, insert(1)).await.unwrap_err(), NoAnswer::Closed);
    }
}
