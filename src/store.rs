//! The store: the one place that decides who executes.
//!
//! [`Store`] is the promise; `sqlite` and `postgres` keep it, and one contract suite holds both to it. Every method is
//! one statement or one short transaction, and whatever it acknowledges is durable. All clocks that decide are the
//! store's. Nothing of HTTP is known here, and no transaction stays open while the upstream works.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::config;
use crate::domain::attempt::{InstanceId, Settlement, Token};
use crate::domain::job::{Enqueued, Order, PickUp, PickedUp};
use crate::domain::probe::{Finding, Page, Probe, Schedule};
use crate::domain::record::{Ask, Record, RecordId, Reservation};
use crate::domain::scope::Salt;

pub use crate::config::Location;
pub use books::Books;
pub use breaker::Breaker;
pub use error::{OpenError, StoreError};
pub use migrate::Migration;
pub use testimony::Testimony;

pub mod back;
mod batch;
pub mod books;
pub mod breaker;
mod deliveries;
pub mod error;
pub mod meters;
mod migrate;
mod postgres;
mod row;
mod sqlite;
mod testimony;

/// An answer of the store that is on its way. Boxed, so that the store can be chosen at start; what that costs is
/// nothing beside a commit.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// What Oncegate asks of a store.
///
/// Each call ends within the store's `timeout`, with [`StoreError::TimedOut`] if need be. A write whose call failed may
/// have happened all the same: whoever needs to know reads again by the attempt's token.
pub trait Store: Send + Sync + 'static {
    /// Reserves the key for a first attempt, or tells who has it.
    ///
    /// At most one caller, ever, gets [`Reservation::Fresh`] for a key without a record.
    fn reserve(&self, ask: Ask) -> Pending<'_, Reservation>;

    /// Starts the next attempt of a key that was found as `from`, unless the record has changed since.
    ///
    /// Whether it may be taken over is the caller's decision; that only one of several callers does is the store's
    /// promise. From a record past its TTL a new life begins, with attempt 1.
    fn take_over(&self, ask: Ask, from: Seen) -> Pending<'_, Reservation>;

    /// Ends an attempt, as long as it is the newest and nothing is completed. A response is taken whatever the key has
    /// become meanwhile. A release or an unknown outcome undoes nothing that was decided since: the first is taken from
    /// `in_flight`, `unknown` and, unless the key was accepted for delivery, `dead`; the other from `in_flight` alone. The
    /// same settlement again changes nothing and is [`Settled::Fenced`] by itself.
    ///
    /// Where the key has no record, and the end is one that must not be forgotten ([`Settlement::to_restore`]), the record
    /// is written whole: a failover may have lost the reservation. Its times count from then.
    fn settle(&self, settlement: Settlement) -> Pending<'_, Settled>;

    /// The key's record, if it has one.
    fn find(&self, id: RecordId) -> Pending<'_, Option<Record>>;

    /// The salt of this store's scopes, drawn when the store was made.
    fn salt(&self) -> Salt;

    /// Renews an instance's lease from now; the first call takes it. Tells the store's time and how often keys were
    /// purged.
    fn renew(&self, renewal: Renewal) -> Pending<'_, Renewed>;

    /// Gives the instance's lease back, so that nobody has to wait for it to run out.
    fn retire(&self, instance: InstanceId) -> Pending<'_, ()>;

    /// Turns keys into unknown whose attempt nobody can be running any more: in flight under an instance whose lease has
    /// run out or is missing, or past their own deadline by `expiry`. At most `limit` of them; those that a transaction
    /// holds are left for the next pass.
    fn sweep(&self, expiry: Duration, limit: u32) -> Pending<'_, Vec<Swept>>;

    /// What is in flight under this instance's name and was reserved at least `older_than` ago. The caller compares it
    /// with what it is running.
    fn standing(&self, instance: InstanceId, older_than: Duration) -> Pending<'_, Vec<(RecordId, Token)>>;

    /// Deletes completed and retryable records past their TTL, oldest first, at most `limit`; returns how many.
    fn reap(&self, limit: u32) -> Pending<'_, u64>;

    /// Counts a question about each of at most `limit` unknown keys of this service that are quiet and due, sets the time
    /// of the next one, and returns what to ask about. Of several callers each gets others; one that dies costs a question.
    fn claim(&self, service: &Arc<str>, schedules: Vec<Schedule>, limit: u32) -> Pending<'_, Vec<Probe>>;

    /// Writes down what came of a question, and says whether it was taken: not if the key is not unknown any more, or has
    /// a newer attempt or, but for a response, a newer question. What changes the state stands in the audit with it.
    fn resolve(&self, finding: Finding) -> Pending<'_, bool>;

    /// The keys of these routes of this service that were settled in the last `since` and are not over: a page of them, in
    /// the order of their ids, after this one. It looks at so many rows at most, and changes nothing.
    fn page(
        &self,
        service: &Arc<str>,
        routes: Vec<Arc<str>>,
        since: Duration,
        after: Option<RecordId>,
        limit: u32,
    ) -> Pending<'_, Page>;

    /// Accepts a key for asynchronous delivery, with its request: both are durable, or neither. A key that was found is
    /// accepted over its record `from`, unless that has changed since.
    ///
    /// At most one caller gets [`Enqueued::Accepted`] for a key without a record, and none where somebody reserves it.
    fn enqueue(&self, order: Order, from: Option<Seen>) -> Pending<'_, Enqueued>;

    /// Reserves what is due to be delivered, as attempts under the tokens of the order, and gives up what was tried often
    /// or long enough. Of several callers each gets others; one that dies leaves attempts as any other.
    fn pick_up(&self, order: PickUp) -> Pending<'_, PickedUp>;

    /// Gives an accepted key up, with the reason in the audit: if the attempt is still its newest, and it is in one of these
    /// states. Says whether it was.
    fn bury(&self, id: RecordId, token: Token, states: &'static [&'static str], note: String) -> Pending<'_, bool>;

    /// Whether the store answers, and takes writes.
    fn ping(&self) -> Pending<'_, ()>;

    /// Remembers how a service's routes find their keys; each route stands there once. Tells how those last did that did
    /// it in another way.
    fn rules(&self, service: Arc<str>, rules: Vec<Rule>) -> Pending<'_, Vec<Rule>>;

    /// The same store, for services that speak of their attempts.
    fn testimony(&self) -> &dyn Testimony;

    /// The same store, for operators.
    fn books(&self) -> &dyn Books;
}

/// A lease that is taken or prolonged.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// Whose.
    pub instance: InstanceId,
    /// The service that it stands before.
    pub service: Arc<str>,
    /// How long from now.
    pub expiry: Duration,
    /// The count of purges up to which it has dropped what it remembered; `None` where it has just been started and
    /// remembers nothing: that counts only where it has no row yet.
    pub purges_seen: Option<u64>,
}

/// What a renewal tells.
#[derive(Clone, Copy, Debug)]
pub struct Renewed {
    /// The store's time.
    pub now: SystemTime,
    /// How often keys were purged, by whoever shares the store.
    pub purges: u64,
}

/// A record as somebody saw it: what [`Store::take_over`] compares, so that of several takers one wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The newest attempt's token.
    pub token: Token,
    /// The state's name.
    pub state: &'static str,
    /// Whether it was past its TTL, so that a new life begins.
    pub past_ttl: bool,
}

impl From<&Record> for Seen {
    fn from(record: &Record) -> Self {
        Self { token: record.token, state: record.state.name(), past_ttl: record.past_ttl }
    }
}

/// The store's answer to a [`Settlement`].
#[derive(Debug)]
pub enum Settled {
    /// Written, and durable.
    Done {
        /// When the record will be forgotten, where it has a TTL.
        expires_at: Option<SystemTime>,
    },
    /// Nothing was changed: somebody else has decided (or this very settlement, earlier). Here is the record as it
    /// stands, `None` if it is gone and nothing is lost with it.
    Fenced(Option<Record>),
}

/// A key that [`Store::sweep`] made unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Which record.
    pub id: RecordId,
    /// Its route's name.
    pub route: String,
    /// Which attempt is unknown.
    pub attempt: u32,
    /// Under whose name it stood.
    pub instance: InstanceId,
}

/// How a route finds its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The route's name.
    pub route: Arc<str>,
    /// In words that are compared and nothing else.
    pub finds: String,
}

/// Which store, and how it is used.
#[derive(Clone)]
pub struct Settings {
    /// Where it is.
    pub location: Location,
    /// To PostgreSQL; at least four are needed, see there.
    pub max_connections: usize,
    /// For any one call.
    pub timeout: Duration,
    /// Whether [`open`] brings an old schema up to date, or refuses it.
    pub migrate: bool,
}

impl From<&config::Store> for Settings {
    fn from(store: &config::Store) -> Self {
        Self {
            location: store.location.clone(),
            max_connections: store.max_connections,
            timeout: store.timeout,
            migrate: store.migrate,
        }
    }
}

/// Opens the store, and brings its schema up to date where the settings say so.
///
/// # Errors
/// [`OpenError`]; nothing is left open then.
pub async fn open(settings: &Settings) -> Result<Arc<dyn Store>, OpenError> {
    Ok(match &settings.location {
        Location::Memory => Arc::new(sqlite::open(None, settings).await?),
        Location::Postgres(url) => Arc::new(postgres::open(url, settings).await?),
        Location::Sqlite(path) => Arc::new(sqlite::open(Some(path), settings).await?),
    })
}

/// The newest step of the schema that this program works with; [`open`] sees to it that the store has taken it.
pub fn schema(location: &Location) -> &'static str {
    match location {
        Location::Memory | Location::Sqlite(_) => sqlite::newest_step(),
        Location::Postgres(_) => postgres::newest_step(),
    }
}

/// Brings the schema up to date, whatever [`Settings::migrate`] says. Returns the names of the steps
/// taken, and of the indexes built.
///
/// # Errors
/// [`OpenError`]; the steps before the one that failed have been taken.
pub async fn migrate(settings: &Settings) -> Result<Vec<String>, OpenError> {
    match &settings.location {
        Location::Memory => Ok(Vec::new()),
        Location::Postgres(url) => postgres::migrate(url, settings).await,
        Location::Sqlite(path) => sqlite::migrate(path).await,
    }
}

/// The steps and indexes that the schema lacks, in their order. Changes nothing, and creates no file.
///
/// # Errors
/// [`OpenError`].
pub async fn pending(settings: &Settings) -> Result<Vec<Migration>, OpenError> {
    match &settings.location {
        Location::Memory => Ok(Vec::new()),
        Location::Postgres(url) => postgres::pending(url, settings).await,
        Location::Sqlite(path) => sqlite::pending(path).await,
    }
}
