//! The properties of a call. Each call of [`Store`](super::Store) states all of them, in `calls`.

use std::time::Duration;

use super::breaker::CallKind;

/// The properties of a call, besides its parameters and its answer.
#[derive(Clone, Copy, Debug)]
pub struct CallSpec {
    /// The way through the breaker and the metrics, with the label.
    pub kind: CallKind,
    /// The connections to PostgreSQL.
    pub pool: Pool,
    /// When PostgreSQL is asked again.
    pub retry: RetryWhen,
    /// The place among the jobs of SQLite's writer.
    pub urgency: Urgency,
    pub limit: TimeLimit,
    /// The bytes of a request or response in the parameters, about: what one transaction of SQLite writes is bounded.
    pub bytes: usize,
}

impl CallSpec {
    /// A call with these properties. None has a default, so that no call lacks one.
    pub fn new(kind: CallKind, pool: Pool, retry: RetryWhen, urgency: Urgency, limit: TimeLimit, bytes: usize) -> Self {
        Self { kind, pool, retry, urgency, limit, bytes }
    }
}

/// The [bytes](CallSpec::bytes) of a call without a request or a response.
pub const NO_BODY: usize = 0;

/// The connections for a kind of work; `postgres::pools` says what each is for.
#[derive(Clone, Copy, Debug)]
pub enum Pool {
    AdminReads,
    Begin,
    Lease,
    Settle,
    Sweep,
    Upkeep,
}

/// When a failed call is made again before its deadline.
#[derive(Clone, Copy, Debug)]
pub enum RetryWhen {
    /// After any failure: executing the call twice does no harm, and not executing it does.
    AnyFailure,
    /// Only where it may have been executed, as a caller cannot act on "perhaps"; and a few times where a connection
    /// failed while it was being made, or led to a server that takes no writes any more.
    InDoubt,
    /// Its caller goes on without it.
    Never,
}

/// The place of a call among those that wait for SQLite's writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// In the order of arrival.
    Ordinary,
    /// Before ordinary ones: it ends an attempt or keeps a lease, or each heartbeat waits for it.
    Urgent,
}

/// The time limit of a call. At its end the caller gets [`StoreError::TimedOut`](super::StoreError::TimedOut).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// The store's timeout.
    Full,
    /// The same. PostgreSQL ends the statement too, see `PgTry::bounded`.
    Bounded,
    /// 250 ms at most, and PostgreSQL ends the statement too.
    Short,
}

impl TimeLimit {
    /// The limit, in a store with this timeout.
    pub fn of(self, timeout: Duration) -> Duration {
        match self {
            Self::Full | Self::Bounded => timeout,
            Self::Short => timeout.min(Duration::from_millis(250)),
        }
    }
}
