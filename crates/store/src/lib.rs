//! The store. Its reservations decide which attempt may run.
//!
//! [`Backend`] is the contract; `sqlite` and `postgres` implement it, and one contract suite tests both. [`Store`] passes each
//! call to one of them, through the [`breaker`], the [`metrics`] and the [`encryption`]. A call is one or a few
//! short transactions, each complete by itself, and a write that it acknowledges is durable. Only the store's clock decides. The store knows nothing
//! of HTTP, and no transaction stays open while the upstream works.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use admin::{AuditEntry, DecisionResults, InstanceEntry, KeyCounts, KeyPage};
use breaker::{Breaker, BreakerPeriod, CallKind, StoreHealth};
use encryption::{Encryption, SealResponses};
use metrics::{Op, StoreMetrics};
use oncegate_domain::attempt::{ReserveRequest, ReserveResult, Settlement};
use oncegate_domain::delivery::{EnqueueResult, PickUpRequest, PickUpResult};
use oncegate_domain::ids::{InstanceId, RecordId};
use oncegate_domain::probe::{Probe, ProbeFinding, SettledKeyPage};
use oncegate_domain::record::Record;
use oncegate_domain::service_report::{ReportResult, ReservedKey, ServiceReport};
use oncegate_settings as settings;

pub use error::{OpenError, RelocateError, StoreError};
pub use events::{EventCounts, EventHandle, EventRoute, KeyEvent, PostponedEvent};
pub use migrate::Migration;
pub use oncegate_domain::record::ExpectedRecord;
pub use oncegate_settings::StoreLocation;
pub use open::{
    StorePreparation, distribution, migrate, open, open_unprepared, pending, remembered_route_identities, schema,
    warnings,
};
pub use params::{
    ApplyOperatorDecisionParams, ClaimEventsParams, ClaimProbesParams, CountInstancesBehindParams, CountLiveKeysParams,
    DiscardEventsParams, EndEventsParams, EnqueueParams, EventSinkParams, ExtendDeadlineParams, FindReservationParams,
    GiveUpParams, LeaseRenewal, ListAuditEntriesParams, ListInFlightParams, ListInstancesParams, ListKeysParams,
    ListSettledKeysParams, MoveLiveKeysParams, ReapParams, ReapScope, RememberRouteIdentitiesParams, ReplaceSaltParams,
    StoreEventRoutesParams, StoreRouteRetentionParams, SweepParams, TakeOverParams,
};
pub use postgres::Distribution;
pub use results::{PrimaryCheck, ReapedRows, RenewResult, ReservedAttempt, RouteIdentities, SettleResult, SweptKey};
pub use sqlite::{InlineDatabase, open_inline};

pub mod admin;
mod batch;
pub mod breaker;
mod columns;
mod deliveries;
pub mod encryption;
pub mod error;
mod events;
pub mod metrics;
mod migrate;
mod open;
mod params;
mod postgres;
pub mod reply;
mod results;
pub mod row;
pub mod salts;
mod sqlite;
pub mod statement;

/// The future of a store's answer. Boxed, so that the store can be chosen at start; the box costs nothing beside a
/// commit.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// The time limit of a call: the store's timeout, and 250 ms at most for the counts of live keys.
fn time_limit(name: &str, timeout: Duration) -> Duration {
    match name {
        "count_live_keys" | "move_live_keys" => timeout.min(Duration::from_millis(250)),
        _ => timeout,
    }
}

/// The table of the calls. An entry has the specification, the signature, and the [`CallKind`] with the call's [`Op`] and
/// its label. `calls!(name)` passes the table to the macro `name!`: `declare_calls!` makes the methods of [`Backend`] from
/// it, `define_calls!` those of [`Store`], and `define_ops!` the variants of [`Op`].
macro_rules! calls {
    ($make:ident) => { $make! {
        // First attempts and the attempts after them.

        /// Reserves the key for a first attempt, or returns the record that it has.
        ///
        /// At most one caller, ever, gets [`ReserveResult::Fresh`] for a key without a record.
        reserve(request: ReserveRequest) -> ReserveResult: Begins(Reserve, "reserve");

        /// Starts the next attempt of a key, unless its record has changed since it was read.
        ///
        /// The caller decides whether the key may be taken over; the store guarantees that only one of several callers
        /// takes it over. A key past its TTL counts as a new key: its attempts start again at 1.
        take_over(params: TakeOverParams) -> ReserveResult: Begins(TakeOver, "take_over");

        /// Stores the outcome of an attempt, if the attempt is the key's newest and its outcome may settle a key in that
        /// state: [`AttemptOutcome::may_settle`](oncegate_domain::attempt::AttemptOutcome::may_settle) is the table. The same
        /// settlement again changes nothing and returns [`SettleResult::Fenced`].
        ///
        /// Where the key has no record, and the outcome must not be lost ([`Settlement::lease_to_restore`]), the whole record
        /// is written: a failover may have lost the reservation. Its times count from then.
        settle(settlement: Settlement) -> SettleResult: Always(Settle, "settle");

        /// Returns the key's record, if it has one.
        find(id: RecordId) -> Option<Record>: Begins(Find, "find");

        /// Moves the deadline of an attempt in flight to the time limit from now by the store's clock, unless it is later
        /// already. Returns whether the attempt is in flight; nothing has changed otherwise.
        extend_deadline(params: ExtendDeadlineParams) -> bool: Always(ExtendDeadline, "extend_deadline");

        /// Counts a holder's live keys, those past their TTL that are not deleted yet included, up to the limit. Ends within
        /// 250 ms: a limit of keys is not worth more of a request's time. A failure leaves the breaker closed: the request
        /// goes on without the count.
        count_live_keys(params: CountLiveKeysParams) -> u32: Unjudged(CountLiveKeys, "count_live_keys");

        /// Lets a key count for the holder, with all other live keys of its caller that count for the same holder as it.
        /// Leaves out keys that another transaction has locked. Returns the number of keys that count for another holder than
        /// before. Ends within 250 ms. A failure leaves the breaker closed.
        move_live_keys(params: MoveLiveKeysParams) -> u32: Unjudged(MoveLiveKeys, "move_live_keys");

        // Asynchronous deliveries.

        /// Accepts a key for asynchronous delivery, with its request: both are durable, or neither.
        ///
        /// At most one caller gets [`EnqueueResult::Accepted`] for a key without a record, and none where somebody reserves
        /// it.
        enqueue(params: EnqueueParams) -> EnqueueResult: Begins(Enqueue, "enqueue");

        /// Starts attempts for deliveries that are due, under the tokens of the request, and marks keys dead that are past
        /// their limits. Several callers get different keys; the attempts of a caller that dies are swept like any other.
        pick_up(request: PickUpRequest) -> PickUpResult: Begins(PickUp, "pick_up");

        /// Marks an accepted key dead, with the reason in the audit log, if the attempt is still its newest and the key is
        /// in one of the states. Returns whether it did.
        give_up(params: GiveUpParams) -> bool: Always(GiveUp, "give_up");

        // Leases, and the keys of instances that have died.

        /// Renews an instance's lease from now; the first call takes it. Returns the store's time, the purge count, and the
        /// time until which the ends of TTLs are held.
        renew_lease(renewal: LeaseRenewal) -> RenewResult: Always(RenewLease, "renew");

        /// Gives the instance's lease back, so that nobody has to wait until it expires.
        release_lease(instance: InstanceId) -> (): Always(ReleaseLease, "release_lease");

        /// Makes keys unknown whose attempt nobody can be running any more: keys in flight under an instance whose lease
        /// has expired or is missing, or past their own deadline by `expiry`. At most `limit` keys; rows that another
        /// transaction has locked are left for the next pass.
        ///
        /// Opening the embedded store makes the attempts of its last process unknown. The first call returns these too,
        /// however many.
        sweep(params: SweepParams) -> Vec<SweptKey>: Always(Sweep, "sweep");

        /// Returns the keys in flight under this instance's name that were reserved at least `older_than` ago, or before the
        /// clock was set back. The caller compares them with its running attempts.
        list_in_flight(params: ListInFlightParams) -> Vec<ReservedAttempt>: Always(ListInFlight, "list_in_flight");

        /// Deletes completed and retryable records past their TTL, oldest first; of those that are remembered to refuse late
        /// retries, it drops the response only. It handles at least `limit` records where so many are past their TTL, and at
        /// most twice as many; of these, it leaves those that the scope leaves out.
        reap(params: ReapParams) -> ReapedRows: Always(Reap, "reap");

        /// Checks that the store answers and accepts writes.
        ping() -> (): Always(Ping, "ping");

        // Probes of the service about keys.

        /// Claims unknown keys of this service that are quiet and due for a probe: counts the probe, sets the time of the
        /// next one, and returns the keys. Several callers get different keys; a caller that dies costs one probe.
        claim_probes(params: ClaimProbesParams) -> Vec<Probe>: Always(ClaimProbes, "claim_probes");

        /// Applies the verdict of a probe, and returns whether it was applied: not if the key is no longer unknown, has a
        /// newer attempt or, except for a response, a newer probe. A change of state is written together with its audit
        /// entry.
        apply_probe_finding(finding: ProbeFinding) -> bool: Always(Resolve, "resolve");

        /// Returns a page of the keys of these routes that were settled within `since` and have not lapsed, in the order of
        /// their ids. Changes nothing.
        list_settled_keys(params: ListSettledKeysParams) -> SettledKeyPage: Always(ListSettledKeys, "list_settled_keys");

        // The routes and the salt of a service.

        /// Returns how a service's routes find their keys, as it was stored last.
        find_route_identities(service: Arc<str>) -> Option<RouteIdentities>: Direct;

        /// Stores how a service's routes find their keys, if the stored generation is still the one that was read. Returns the
        /// generation of what is stored then, which no other text has ever had; `None` if it stored nothing.
        remember_route_identities(params: RememberRouteIdentitiesParams) -> Option<i64>:
            Always(RememberRouteIdentities, "route_identities");

        /// Stores the retention rules of a service's routes, for services that complete their keys in the database itself.
        /// A store that only the proxy writes to ignores it.
        store_route_retention(params: StoreRouteRetentionParams) -> (): Direct;

        /// Returns the service's salt in its stored form, if it has one.
        find_salt(service: Arc<str>) -> Option<Vec<u8>>: Direct;

        /// Stores the service's salt, if the stored one is still the one that was read. Returns whether it did.
        replace_salt(params: ReplaceSaltParams) -> bool: Direct;

        // Events about settled keys.

        /// Stores which routes of a service tell which sinks about their keys, in place of or beside what was stored. From then on
        /// a change of their keys has its events, or is not made.
        store_event_routes(params: StoreEventRoutesParams) -> (): Direct;

        /// Claims events of a sink that are due, in their order, for the lease; of each key only the oldest that is neither published
        /// nor dead. Several callers get different events, until a lease is over.
        claim_events(params: ClaimEventsParams) -> Vec<KeyEvent>: Direct;

        /// Deletes events that were published, and postpones or makes dead those that were not.
        end_events(params: EndEventsParams) -> (): Direct;

        /// Counts the events of a sink that are not published.
        count_events(params: EventSinkParams) -> EventCounts: Direct;

        /// Lets the dead events of a sink be tried again, the oldest 10,000. Returns their number.
        requeue_events(params: EventSinkParams) -> u64: Direct;

        /// Deletes the dead events of a sink, the oldest 10,000, each with an entry in the audit log. Returns their number.
        discard_events(params: DiscardEventsParams) -> u64: Direct;

        // Reports of services about their own attempts. A response that a service gives outside of its answer is a settlement.

        /// Returns the key of a reservation, if the reservation is its newest attempt's.
        find_reservation(params: FindReservationParams) -> Option<ReservedKey>: Direct;

        /// Records a service's report about its own attempt, as long as no later attempt has begun and the key is not
        /// completed.
        ///
        /// "Not executed" is applied at once where nobody waits for the attempt any more. While the attempt is in flight
        /// the report is stored, and applies once the attempt has ended without a response, see
        /// [`Self::apply_deferred_reports`]: a proxy still waits for the answer to that attempt, perhaps on another instance,
        /// and two attempts of a key never run at the same time.
        record_report(report: ServiceReport) -> ReportResult: Direct;

        /// Makes keys retryable whose service reported "not executed" while the attempt ran, and whose attempt has ended
        /// since without a response; at most `limit` keys. Returns their ids.
        apply_deferred_reports(limit: u32) -> Vec<RecordId>: Direct;

        // The operators' side.

        /// Lists a service's keys that fit the filter, without bodies and fields: from one scan of at most
        /// [`SCAN_ROWS_MAX`](admin::SCAN_ROWS_MAX) rows. A page may be empty and not the last.
        list_keys(params: ListKeysParams) -> KeyPage: Direct;

        /// Applies a decision to those of the keys that are still as they were seen, at most
        /// [`DECISIONS_MAX`](admin::DECISIONS_MAX). The verdicts come in the order of the targets.
        apply_operator_decision(params: ApplyOperatorDecisionParams) -> DecisionResults: Direct;

        /// Lists audit entries, the latest first: of one key or of all, with a number below `before`.
        list_audit_entries(params: ListAuditEntriesParams) -> Vec<AuditEntry>: Direct;

        /// Counts the service's keys by route and state.
        count_keys(service: Arc<str>) -> KeyCounts: Direct;

        /// Counts the living instances of the service that may still cache a response purged by that count.
        count_instances_behind(params: CountInstancesBehindParams) -> u64: Direct;

        /// Lists the instances of the service, the one that has renewed its lease last before the others. Those whose lease
        /// ran out within the last day may be among them.
        list_instances(params: ListInstancesParams) -> Vec<InstanceEntry>: Direct;
    } };
}
pub(crate) use calls;

/// Declares the calls, as [`Backend`] has them.
macro_rules! declare_calls {
    ($($(#[$about:meta])* $name:ident($($params:ident: $Params:ty)?) -> $Answer:ty:
        $kind:ident $(($op:ident, $label:literal))?;)+) => {
        $($(#[$about])* fn $name(&self $(, $params: $Params)?) -> StoreFuture<'_, $Answer>;)+
    };
}

/// An implementation of the store.
///
/// Each call ends within the store's `timeout`, with [`StoreError::TimedOut`] if need be. A write whose call failed may
/// have happened all the same: a caller that needs to know reads again by the attempt's token. What a look-up returns is as
/// durable as a write that was acknowledged, except for the record of a running attempt, which no answer rests on.
///
/// The operators' calls are about one service each, and never see another service's keys in the same database. Each
/// statement's work is bounded, whatever the table's size, so that operators do not slow requests down.
pub trait Backend: Send + Sync + 'static {
    calls!(declare_calls);

    /// Looks at all servers of the store, to leave a former primary that still takes writes. Called at each heartbeat.
    fn check_primaries(&self) -> BoxFuture<'_, PrimaryCheck> {
        Box::pin(std::future::ready(PrimaryCheck::default()))
    }

    /// Whether the store has moved to another primary since the last [`Self::check_primaries`]: it may have neither the lease nor
    /// what was reserved under it.
    fn has_changed_primary(&self) -> bool {
        false
    }

    /// Uses another location of the same store from now on: other hosts, another user or password, other certificates. Changes
    /// nothing where the location is not usable, or leads to another store.
    fn relocate<'a>(&'a self, _location: &'a StoreLocation) -> BoxFuture<'a, Result<(), RelocateError>> {
        Box::pin(std::future::ready(Err(RelocateError::NeedsRestart)))
    }

    /// Waits until the store has failed for good: only a new process can open it again. For ever, for a store that can come
    /// back.
    fn failed(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// The store of a process: a [`Backend`] behind a circuit breaker, with metrics and with encrypted responses.
pub struct Store {
    backend: Arc<dyn Backend>,
    encryption: RwLock<Arc<Encryption>>,
    breaker: Breaker,
    metrics: StoreMetrics,
    /// The runtime of the pings: a caller's own runtime may end earlier.
    runtime: Handle,
    me: Weak<Self>,
}

/// Defines the calls, as [`Store`] has them.
macro_rules! define_calls {
    ($($(#[$about:meta])* $name:ident($($params:ident: $Params:ty)?) -> $Answer:ty:
        $kind:ident $(($op:ident, $label:literal))?;)+) => {
        $($(#[$about])* pub fn $name(&self $(, $params: $Params)?) -> StoreFuture<'_, $Answer> {
            self.call(CallKind::$kind $((Op::$op))?, ($($params,)?), |backend, ($($params,)?)| backend.$name($($params)?))
        })+
    };
}

impl Store {
    calls!(define_calls);

    /// Makes the store of a backend. To be called on the runtime that is to ping it.
    pub fn new(backend: Arc<dyn Backend>, encryption: Encryption) -> Arc<Self> {
        let (encryption, runtime) = (RwLock::new(Arc::new(encryption)), Handle::current());
        Arc::new_cyclic(|me| Self {
            backend,
            encryption,
            breaker: Breaker::default(),
            metrics: StoreMetrics::default(),
            runtime,
            me: me.clone(),
        })
    }

    /// Makes a call: the way of all of them.
    fn call<'a, P: SealResponses + Send + 'a, T: SealResponses + 'a>(
        &'a self,
        kind: CallKind,
        mut params: P,
        call: impl FnOnce(&'a dyn Backend, P) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let began = self.breaker.admit(kind)?;
            let started = Instant::now();
            params.seal(&self.encryption());
            let answer = call(&*self.backend, params).await.and_then(|mut answer| {
                answer.open(&self.encryption())?;
                Ok(answer)
            });
            if let Some(op) = kind.op() {
                self.metrics.durations.observe(op, started.elapsed());
                if answer.is_err() {
                    self.metrics.errors.count(op);
                }
            }
            if let Some(period) = self.breaker.judge(kind, began, &answer) {
                self.runtime.spawn(ping_until_answered(self.me.clone(), period));
            }
            answer
        })
    }

    /// Returns the store's health.
    pub fn health(&self) -> StoreHealth {
        self.breaker.health()
    }

    /// Returns the metrics of the calls.
    pub fn metrics(&self) -> &StoreMetrics {
        &self.metrics
    }

    /// Uses other secrets from now on.
    pub fn reload_encryption(&self, encryption: Encryption) {
        *self.encryption.write() = Arc::new(encryption);
    }

    fn encryption(&self) -> Arc<Encryption> {
        Arc::clone(&self.encryption.read())
    }

    /// Waits at most `wait_max` until no living instance of the service caches a response purged by that count. Returns the
    /// number of instances that still may.
    pub async fn wait_until_forgotten(
        &self,
        service: Arc<str>,
        purges: u64,
        wait_max: Duration,
    ) -> Result<u64, StoreError> {
        let (params, deadline) = (CountInstancesBehindParams { service, purges }, Instant::now() + wait_max);
        loop {
            let behind = self.count_instances_behind(params.clone()).await?;
            if behind == 0 || Instant::now() >= deadline {
                return Ok(behind);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// See [`Backend::check_primaries`].
    pub async fn check_primaries(&self) -> PrimaryCheck {
        let check = self.backend.check_primaries().await;
        self.metrics.primaries.set(i64::try_from(check.primaries).unwrap_or(i64::MAX));
        check
    }

    /// See [`Backend::has_changed_primary`].
    pub fn has_changed_primary(&self) -> bool {
        self.backend.has_changed_primary()
    }

    /// See [`Backend::relocate`].
    pub async fn relocate(&self, location: &StoreLocation) -> Result<(), RelocateError> {
        self.backend.relocate(location).await
    }

    /// See [`Backend::failed`].
    pub async fn failed(&self) {
        self.backend.failed().await;
    }
}

/// Sends one ping after the other until the store has answered a call, or is dropped.
async fn ping_until_answered(store: Weak<Store>, period: BreakerPeriod) {
    loop {
        let Some(pause) = store.upgrade().map(|store| store.breaker.next_pause()) else { return };
        sleep(pause).await;
        let Some(store) = store.upgrade() else { return };
        if !store.breaker.is_open_since(period) {
            return;
        }
        // An answer closes the breaker.
        drop(store.ping().await);
    }
}

/// The store's location, limits and encryption.
#[derive(Clone)]
pub struct StoreSettings {
    /// The store's location.
    pub location: StoreLocation,
    /// The most connections to PostgreSQL, [`settings::STORE_CONNECTIONS_MIN`] at least; `postgres::pools` divides them.
    pub max_connections: usize,
    /// The time limit of one call.
    pub timeout: Duration,
    /// Whether [`open()`] migrates an old schema; otherwise it refuses it.
    pub migrate: bool,
    /// Whether migrating distributes the keys of a new store over the nodes of a cluster.
    pub distribute: bool,
    /// Whether changes of keys write events.
    pub events: bool,
    /// The encryption of responses.
    pub encryption: Encryption,
}

impl From<&settings::LoadedConfig> for StoreSettings {
    fn from(config: &settings::LoadedConfig) -> Self {
        let store = &config.start.store;
        Self {
            location: store.url.clone(),
            max_connections: store.max_connections,
            timeout: store.timeout,
            migrate: store.migrate,
            distribute: store.distribute,
            events: config.start.events,
            encryption: Encryption::new(store, &config.live.secrets),
        }
    }
}

#[cfg(test)]
mod tests;
