//! The store. Its reservations decide which attempt may run.
//!
//! [`Store`] is the contract; `sqlite` and `postgres` implement it, and one contract suite tests both. Every method is
//! one statement or one short transaction, and a write that it acknowledges is durable. Only the store's clock decides.
//! The store knows nothing of HTTP, and no transaction stays open while the upstream works.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::config;
use crate::domain::attempt::{ReplacedRecord, ReserveRequest, ReserveResult, Settlement};
use crate::domain::delivery::{EnqueueRequest, EnqueueResult, PickUpRequest, PickUpResult};
use crate::domain::ids::{InstanceId, RecordId, Token};
use crate::domain::key_holder::KeyHolder;
use crate::domain::probe::{Probe, ProbeFinding, ProbeSchedule, SettledKeyPage};
use crate::domain::record::Record;
use crate::domain::scope::Scope;
use crate::domain::state::StateKind;

pub use crate::config::StoreLocation;
pub use admin::AdminStore;
pub use breaker::Breaker;
pub use error::{OpenError, RelocateError, StoreError};
pub use migrate::Migration;
pub use salts::SaltStore;
pub use service_reports::ServiceReports;
pub use sqlite::{InlineDatabase, open_inline};

pub mod admin;
mod batch;
pub mod breaker;
mod deliveries;
pub mod encrypted;
pub mod error;
pub mod metrics;
mod migrate;
mod postgres;
pub mod reply;
pub mod row;
pub mod salts;
mod service_reports;
mod sqlite;

/// The future of a store's answer. Boxed, so that the store can be chosen at start; the box costs nothing beside a
/// commit.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The future of [`Store::relocate`].
pub type RelocateFuture<'a> = Pin<Box<dyn Future<Output = Result<(), RelocateError>> + Send + 'a>>;

/// The time limit of [`Store::count_live_keys`] and [`Store::move_live_keys`].
const COUNT_TIME_MAX: Duration = Duration::from_millis(250);

/// The operations that Oncegate needs of a store.
///
/// Each call ends within the store's `timeout`, with [`StoreError::TimedOut`] if need be. A write whose call failed may
/// have happened all the same: a caller that needs to know reads again by the attempt's token.
pub trait Store: Send + Sync + 'static {
    /// Reserves the key for a first attempt, or returns the record that it has.
    ///
    /// At most one caller, ever, gets [`ReserveResult::Fresh`] for a key without a record.
    fn reserve(&self, reserve_request: ReserveRequest) -> StoreFuture<'_, ReserveResult>;

    /// Starts the next attempt of a key that was found as `from`, unless the record has changed since.
    ///
    /// The caller decides whether the key may be taken over; the store guarantees that only one of several callers
    /// takes it over. A key past its TTL counts as a new key: its attempts start again at 1.
    fn take_over(&self, reserve_request: ReserveRequest, from: ExpectedRecord) -> StoreFuture<'_, ReserveResult>;

    /// Stores the outcome of an attempt, if the attempt is the key's newest and its outcome may settle a key in that state:
    /// [`AttemptOutcome::may_settle`](crate::domain::attempt::AttemptOutcome::may_settle) is the table. The same settlement
    /// again changes nothing and returns [`SettleResult::Fenced`].
    ///
    /// Where the key has no record, and the outcome must not be lost ([`Settlement::lease_to_restore`]), the whole record is
    /// written: a failover may have lost the reservation. Its times count from then.
    fn settle(&self, settlement: Settlement) -> StoreFuture<'_, SettleResult>;

    /// Returns the key's record, if it has one.
    fn find(&self, id: RecordId) -> StoreFuture<'_, Option<Record>>;

    /// Counts a holder's live keys, those past their TTL that are not deleted yet included, up to `limit`. Ends within 250 ms: a
    /// limit of keys is not worth more of a request's time.
    fn count_live_keys(&self, holder: KeyHolder, limit: u32) -> StoreFuture<'_, u32>;

    /// Lets a key count for `holder`, with all other live keys of its caller that count for the same holder as it. Leaves out keys
    /// that another transaction has locked. Returns the number of keys that count for another holder than before. Ends within
    /// 250 ms.
    fn move_live_keys(&self, id: RecordId, scope: Scope, holder: KeyHolder) -> StoreFuture<'_, u32>;

    /// Renews an instance's lease from now; the first call takes it. Returns the store's time, the purge count, and the time
    /// until which the ends of TTLs are held.
    fn renew_lease(&self, renewal: LeaseRenewal) -> StoreFuture<'_, RenewResult>;

    /// Looks at all servers of the store, to leave a former primary that still takes writes. Called at each heartbeat.
    fn check_primaries(&self) -> Pin<Box<dyn Future<Output = PrimaryCheck> + Send + '_>>;

    /// Whether the store has moved to another primary since the last [`Self::check_primaries`]: it may have neither the lease nor
    /// what was reserved under it.
    fn has_changed_primary(&self) -> bool;

    /// Uses another location of the same store from now on: other hosts, another user or password, other certificates. Changes
    /// nothing where the location is not usable, or leads to another store.
    fn relocate<'a>(&'a self, _location: &'a StoreLocation) -> RelocateFuture<'a> {
        Box::pin(std::future::ready(Err(RelocateError::NeedsRestart)))
    }

    /// Gives the instance's lease back, so that nobody has to wait until it expires.
    fn release_lease(&self, instance: InstanceId) -> StoreFuture<'_, ()>;

    /// Makes keys unknown whose attempt nobody can be running any more: keys in flight under an instance whose lease
    /// has expired or is missing, or past their own deadline by `expiry`. At most `limit` keys; rows that another
    /// transaction has locked are left for the next pass.
    ///
    /// `as_of` is the store's time by the caller's own clock. A time after it has not come, whatever the store's clock says;
    /// and a lease that was renewed later than both by more than `expiry` has expired: the store's clock was set back since.
    ///
    /// Opening the embedded store makes the attempts of its last process unknown. The first call returns these too, however many.
    fn sweep(&self, expiry: Duration, limit: u32, as_of: SystemTime) -> StoreFuture<'_, Vec<SweptKey>>;

    /// Returns the keys in flight under this instance's name that were reserved at least `older_than` ago, or before the clock
    /// was set back. The caller compares them with its running attempts.
    fn list_in_flight(&self, instance: InstanceId, older_than: Duration) -> StoreFuture<'_, Vec<ReservedAttempt>>;

    /// Moves the deadline of an attempt in flight to `time_limit` from now by the store's clock, unless it is later already.
    /// Returns whether the attempt is in flight; nothing has changed otherwise.
    fn extend_deadline(&self, id: RecordId, token: Token, time_limit: Duration) -> StoreFuture<'_, bool>;

    /// Deletes completed and retryable records past their TTL, oldest first; of those that are remembered to refuse late
    /// retries, it drops the response only. It handles at least `limit` records where so many are past their TTL, and at
    /// most twice as many; of these, it leaves those that `scope` leaves out.
    fn reap(&self, limit: u32, scope: ReapScope) -> StoreFuture<'_, ReapedRows>;

    /// Claims at most `limit` unknown keys of this service that are quiet and due for a probe: counts the probe, sets
    /// the time of the next one, and returns the keys. Several callers get different keys; a caller that dies costs one
    /// probe. For `as_of` see [`Self::sweep`].
    fn claim_probes(
        &self,
        service: &Arc<str>,
        schedules: Vec<ProbeSchedule>,
        limit: u32,
        as_of: SystemTime,
    ) -> StoreFuture<'_, Vec<Probe>>;

    /// Applies the verdict of a probe, and returns whether it was applied: not if the key is no longer unknown, has a
    /// newer attempt or, except for a response, a newer probe. A change of state is written together with its audit
    /// entry.
    fn apply_probe_finding(&self, finding: ProbeFinding) -> StoreFuture<'_, bool>;

    /// Returns a page of the keys of these routes that were settled in the last `since` and have not lapsed, in the
    /// order of their ids, from after `after` on. Reads at most `limit` rows, and changes nothing.
    fn list_settled_keys(
        &self,
        service: &Arc<str>,
        routes: Vec<Arc<str>>,
        since: Duration,
        after: Option<RecordId>,
        limit: u32,
    ) -> StoreFuture<'_, SettledKeyPage>;

    /// Accepts a key for asynchronous delivery, with its request: both are durable, or neither. A key with a record is
    /// accepted over its record `from`, unless that has changed since.
    ///
    /// At most one caller gets [`EnqueueResult::Accepted`] for a key without a record, and none where somebody reserves
    /// it.
    fn enqueue(&self, order: EnqueueRequest, from: Option<ExpectedRecord>) -> StoreFuture<'_, EnqueueResult>;

    /// Starts attempts for deliveries that are due, under the tokens of the order, and marks keys dead that are past
    /// their limits. Several callers get different keys; the attempts of a caller that dies are swept like any other.
    fn pick_up(&self, order: PickUpRequest) -> StoreFuture<'_, PickUpResult>;

    /// Marks an accepted key dead, with the reason in the audit log, if the attempt is still its newest and the key is
    /// in one of these states. Returns whether it did.
    fn give_up(&self, id: RecordId, token: Token, states: &'static [StateKind], note: String) -> StoreFuture<'_, bool>;

    /// Waits until the store has failed for good: only a new process can open it again. For ever, for a store that can come
    /// back.
    fn failed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Checks that the store answers and accepts writes.
    fn ping(&self) -> StoreFuture<'_, ()>;

    /// Stores how a service's routes find their keys, in place of all that it has stored before, and returns that, in
    /// the order of the names. Each route has one entry.
    fn remember_route_identities(
        &self,
        service: Arc<str>,
        rules: Vec<RouteIdentity>,
    ) -> StoreFuture<'_, Vec<RouteIdentity>>;

    /// Returns the interface for the salts of services.
    fn salts(&self) -> &dyn SaltStore;

    /// Returns the interface for reports of services about their attempts.
    fn service_reports(&self) -> &dyn ServiceReports;

    /// Returns the interface for operators.
    fn admin(&self) -> &dyn AdminStore;
}

/// A request to take or renew a lease.
#[derive(Clone, Debug)]
pub struct LeaseRenewal {
    /// The instance whose lease it is.
    pub instance: InstanceId,
    /// The service that the instance protects.
    pub service: Arc<str>,
    /// The lease's length from now.
    pub expiry: Duration,
    /// The purge count up to which the instance has emptied its cache. `None` where it has just started and has cached
    /// nothing: that applies only where the instance has no row yet.
    pub purges_seen: Option<u64>,
    /// The time until which no instance shall take a record for past its TTL, where this one has seen the store's clock jump.
    pub hold_ttls_until: Option<SystemTime>,
}

/// The result of a lease renewal.
#[derive(Clone, Copy, Debug)]
pub struct RenewResult {
    /// The store's time.
    pub now: SystemTime,
    /// The number of purges by all instances that share the store.
    pub purges: u64,
    /// The latest [`LeaseRenewal::hold_ttls_until`] of all instances; 1970 where there is none.
    pub ttls_held_until: SystemTime,
}

/// The result of a look at all servers of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrimaryCheck {
    /// The number of servers that take writes; 0 for a store at one place, which is compared with none.
    pub primaries: usize,
    /// Whether a server that this instance used is refused since the last look: another one takes writes now, on a newer
    /// timeline, or none can be preferred. Then the store may have lost what this instance has reserved, and its lease.
    pub has_changed: bool,
}

/// A record as a caller has read it. [`Store::take_over`] compares it, so that one of several callers wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedRecord {
    /// The newest attempt's token.
    pub token: Token,
    /// The state.
    pub state: StateKind,
    /// The time at which it was past its TTL, so that it counts as a new key; `None` if it was not.
    pub past_ttl_at: Option<SystemTime>,
}

impl ExpectedRecord {
    /// The record, once it is taken over.
    fn replaced(&self) -> ReplacedRecord {
        let was_completed = matches!(self.state, StateKind::Completed | StateKind::Expired);
        ReplacedRecord { token: self.token, was_completed }
    }
}

impl From<&Record> for ExpectedRecord {
    fn from(record: &Record) -> Self {
        let past_ttl_at = record.reading.filter(|_| record.past_ttl).map(|reading| reading.at);
        Self { token: record.token, state: record.state.kind(), past_ttl_at }
    }
}

/// The store's answer to a [`Settlement`].
#[derive(Debug)]
pub enum SettleResult {
    /// Written, and durable.
    Done {
        /// When the record will be forgotten, where it has a TTL.
        expires_at: Option<SystemTime>,
    },
    /// Nothing was changed: a newer attempt, another decision or an earlier copy of this settlement has settled the key.
    /// Holds the current record; `None` if there is none and the outcome need not be stored.
    Fenced(Option<Record>),
}

/// A key that [`Store::sweep`] made unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweptKey {
    /// The record's id.
    pub id: RecordId,
    /// The route's name.
    pub route: String,
    /// The number of the attempt whose outcome is unknown.
    pub attempt: u32,
    /// The instance that had reserved the attempt.
    pub instance: InstanceId,
    /// Whether the start of the embedded store has made it unknown, and logged it, before the first sweep.
    pub is_logged: bool,
}

/// A reservation that [`Store::list_in_flight`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedAttempt {
    /// The record's id.
    pub id: RecordId,
    /// The attempt's token.
    pub token: Token,
    /// The route's name.
    pub route: String,
}

/// The records that [`Store::reap`] may take for past their TTL, as far as its caller believes the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReapScope {
    /// The store's time by the caller's own clock, as for [`Store::sweep`].
    pub as_of: SystemTime,
    /// Records that were settled before this time are left.
    pub settled_since: SystemTime,
}

/// The records that one call of [`Store::reap`] handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReapedRows {
    /// The deleted records.
    pub deleted: u64,
    /// The records that are still remembered and lost their response.
    pub responses_dropped: u64,
}

impl ReapedRows {
    /// Whether a call with this limit may have left records behind that are past their TTL.
    pub fn is_full_batch(self, limit: u32) -> bool {
        self.deleted + self.responses_dropped >= u64::from(limit)
    }
}

/// The requests of a route, and the way in which it finds their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteIdentity {
    /// The route's name.
    pub route: Arc<str>,
    /// An opaque description.
    pub finds: String,
}

/// The store's location and limits.
#[derive(Clone)]
pub struct StoreSettings {
    /// The store's location.
    pub location: StoreLocation,
    /// The most connections to PostgreSQL, [`config::STORE_CONNECTIONS_MIN`] at least; `postgres::pools` divides them.
    pub max_connections: usize,
    /// The time limit of one call.
    pub timeout: Duration,
    /// Whether [`open`] migrates an old schema; otherwise it refuses it.
    pub migrate: bool,
}

impl From<&config::StoreConfig> for StoreSettings {
    fn from(store: &config::StoreConfig) -> Self {
        Self {
            location: store.location.clone(),
            max_connections: store.max_connections,
            timeout: store.timeout,
            migrate: store.migrate,
        }
    }
}

/// Opens the store, and migrates its schema where the settings say so.
///
/// # Errors
/// [`OpenError`]; nothing is left open then.
pub async fn open(settings: &StoreSettings) -> Result<Arc<dyn Store>, OpenError> {
    let OpenedStore { store, preparation } = open_unprepared(settings).await?;
    preparation.run().await?;
    Ok(store)
}

/// An opened store. Before its preparation only [`Store::ping`] may be called.
pub struct OpenedStore {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The rest of its opening.
    pub preparation: StorePreparation,
}

/// The part of opening a store that needs its server.
pub struct StorePreparation {
    settings: StoreSettings,
    /// `None` where there is no server.
    server: Option<postgres::PgServer>,
}

impl StorePreparation {
    /// Checks the server, and migrates the schema where the settings say so.
    ///
    /// # Errors
    /// [`OpenError`]. After [`OpenError::Away`] it can be called again.
    pub async fn run(&self) -> Result<(), OpenError> {
        match &self.server {
            Some(server) => postgres::prepare(server, &self.settings).await,
            None => Ok(()),
        }
    }
}

/// Opens the store, and connects to no server yet.
///
/// # Errors
/// [`OpenError`]; nothing is left open then.
pub async fn open_unprepared(settings: &StoreSettings) -> Result<OpenedStore, OpenError> {
    let (store, server): (Arc<dyn Store>, _) = match &settings.location {
        StoreLocation::Memory => (Arc::new(sqlite::open(None, settings).await?), None),
        StoreLocation::Postgres(url) => {
            let store = postgres::open_unprepared(url, settings).await?;
            let server = store.server.clone();
            (Arc::new(store), Some(server))
        }
        StoreLocation::Sqlite(path) => (Arc::new(sqlite::open(Some(path), settings).await?), None),
    };
    Ok(OpenedStore { store, preparation: StorePreparation { settings: settings.clone(), server } })
}

/// Returns the newest migration that this program knows; [`open`] makes sure that the store has it.
pub fn schema(location: &StoreLocation) -> &'static str {
    match location {
        StoreLocation::Memory | StoreLocation::Sqlite(_) => sqlite::newest_step(),
        StoreLocation::Postgres(_) => postgres::newest_step(),
    }
}

/// Migrates the schema, whatever [`StoreSettings::migrate`] says. Returns the names of the migrations applied and of
/// the indexes built.
///
/// # Errors
/// [`OpenError`]; the migrations before the one that failed have been applied.
pub async fn migrate(settings: &StoreSettings) -> Result<Vec<String>, OpenError> {
    match &settings.location {
        StoreLocation::Memory => Ok(Vec::new()),
        StoreLocation::Postgres(url) => postgres::migrate(url, settings).await,
        StoreLocation::Sqlite(path) => sqlite::migrate(path).await,
    }
}

/// Returns the migrations and indexes that the schema lacks, in their order. Changes nothing, and creates no file.
///
/// # Errors
/// [`OpenError`].
pub async fn pending(settings: &StoreSettings) -> Result<Vec<Migration>, OpenError> {
    match &settings.location {
        StoreLocation::Memory => Ok(Vec::new()),
        StoreLocation::Postgres(url) => postgres::pending(url, settings).await,
        StoreLocation::Sqlite(path) => sqlite::pending(path).await,
    }
}
