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
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Clock, Urgency};
use crate::domain::response::Corrupt;
use crate::store::StoreError;
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
        let (back, answer) = oneshot::channel();
        self.0.push(Box::new(Call { urgency, bytes, work: Some(work), answer: None, back }));
        timeout_at(deadline, answer).await.map_err(|_| NoAnswer::TimedOut)?.map_err(|_| NoAnswer::Closed)
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
    back: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, W> Operation for Call<T, W>
where
    T: Send,
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
        // Whoever has gone meanwhile is none of ours.
        drop(self.back.send(answer));
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
