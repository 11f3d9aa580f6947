//! The state of this process that all its requests and tasks share.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use in_flight::InFlightRegistry;
use instance_salt::InstanceSalts;
use key_limits::NewKeyLimits;
use last_seen::LastSeenRecords;
use latency::RouteLatencies;
use lease::InstanceLease;
use live_keys::LiveKeyLimits;
use metrics::CacheTier;
use observability::Observability;
use oncegate_cache::shared::SharedCache;
use oncegate_cache::{Cache, CacheEpoch};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::record::Record;
use oncegate_http::body::body_budget::BodyBudget;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_settings::{Route, StartConfig, StoreConfig};
use oncegate_store::{Store, StoreError};
use recent_parts::RecentParts;
use reload_state::ReloadState;
use replay_permissions::ReplayPermissions;
use store_clock::{ClockLimits, StoreClock};
use token_verifier::TokenVerifiers;
use wait_groups::WaitGroups;

pub mod boot_time;
pub mod consumer_states;
pub mod event_routes;
pub mod event_states;
pub mod in_flight;
pub mod instance_salt;
pub mod key_limits;
pub mod key_mismatches;
pub mod last_seen;
pub mod latency;
pub mod lease;
pub mod live_keys;
pub mod metrics;
pub mod observability;
pub mod recent_outcomes;
pub mod recent_parts;
pub mod reload_state;
pub mod replay_permissions;
pub mod request_trace;
pub mod running_stream;
pub mod same_bodies;
pub mod store_clock;
pub mod token_verifier;
pub mod wait_groups;
pub mod weekly_counts;

/// The state of this process: one value, shared by the gates of all workers, the tasks and the admin listener.
pub struct Instance {
    /// The settings that need a restart. Each gate has those that a reload replaces.
    pub config: Arc<StartConfig>,
    /// The recent latency of each route's attempts.
    pub latencies: RouteLatencies,
    /// The store. Its reservations decide which attempt may run.
    pub store: Arc<Store>,
    /// The number of requests that were forwarded unguarded because the store could not reserve.
    pub bypassed: AtomicU64,
    /// Metrics, request traces and counts for operators.
    pub observability: Arc<Observability>,
    /// Whether the last reload of the configuration was refused.
    pub reload_state: ReloadState,
    /// The salts of the services' scopes.
    pub salts: InstanceSalts,
    /// Cancelled when this process knows the store's salt and has had a lease: from then on it uses the store.
    pub joined: CancellationToken,
    /// Cancelled when the store has another salt: this process may start nothing any more, and ends.
    pub salt_replaced: CancellationToken,
    /// Whether the store had lost the salt and has one now that this process cannot read: nothing may start until it
    /// can.
    pub is_salt_doubtful: AtomicBool,
    /// This instance's right to start attempts.
    pub instance_lease: InstanceLease,
    /// The store's clock, as far as this instance believes it.
    pub store_clock: Arc<StoreClock>,
    /// The attempts of this process.
    pub in_flight: Arc<InFlightRegistry>,
    /// The duplicates that wait for an attempt, here or on another instance.
    pub wait_groups: Arc<WaitGroups>,
    /// Wakes the deliverer: a request was accepted here and is due.
    pub delivery_due: Notify,
    /// Deliveries whose attempt was started and not sent. They do not count as tries.
    pub unsent_deliveries: Mutex<Vec<(RecordId, Token)>>,
    /// The records whose kept requests are not needed any more; the deliverer's next pass tells the store.
    pub delivered: Mutex<Vec<RecordId>>,
    /// Completed responses in memory.
    pub cache: Cache,
    /// The records of other keys, as this instance has last seen them: for the time without a store.
    pub last_seen: LastSeenRecords,
    /// The bits of the parts of requests, where the store has none.
    pub recent_parts: RecentParts,
    /// Completed responses that instances share; none where no server is configured, or before this
    /// process has [joined](Self::joined) its store.
    pub shared_cache: OnceLock<Arc<SharedCache>>,
    /// The bytes of requests' bodies in memory, and of the responses to them until they are stored.
    pub bodies: Arc<BodyBudget>,
    /// The bytes of responses that clients have not taken yet. They have a budget of their own: clients that do not
    /// read must not keep others from getting their replays, for which a request's body is needed.
    pub response_bodies: Arc<BodyBudget>,
    /// The new keys of callers and addresses, for routes that limit them.
    pub key_limits: NewKeyLimits,
    /// The live keys of callers and addresses.
    pub live_keys: LiveKeyLimits,
    /// The permissions of authorizing services that still count.
    pub replay_permissions: Arc<ReplayPermissions>,
    /// The verifiers of callers' tokens.
    pub token_verifiers: TokenVerifiers,
    /// The connections to each upstream.
    pub upstream_slots: UpstreamSlots,
    /// The work that must end before the process does: attempts and their settlements.
    pub tracker: TaskTracker,
    /// Cancelled when the drain begins: no new attempt starts.
    pub draining: CancellationToken,
    /// Cancelled when the drain's time is over: outcomes that are not stored by now stay unstored.
    pub drain_expired: CancellationToken,
}

impl Instance {
    /// The bytes of all bodies in memory.
    pub fn held_bytes(&self) -> u64 {
        self.bodies.held() + self.response_bodies.held()
    }

    /// The key's record, as far as this instance knows it without the store.
    pub fn known_record(&self, id: &RecordId) -> Option<Record> {
        self.cached_record(id).or_else(|| self.in_flight.find(id))
    }

    /// The key's record from the cache, if it is completed. `None` while the lease is not current, because another
    /// instance may have purged the key meanwhile.
    pub fn cached_record(&self, id: &RecordId) -> Option<Record> {
        self.instance_lease.is_current().then(|| self.possibly_purged_record(id)).flatten()
    }

    /// The key's record from the cache, even if another instance may have purged it.
    pub fn possibly_purged_record(&self, id: &RecordId) -> Option<Record> {
        let found = self.cache.get(id, self.store_clock.now());
        found.inspect(|_| self.observability.metrics.cache_hits.count(CacheTier::Memory))
    }

    /// The key's record from the shared cache, if it is completed. `None` while the lease is not current, as for
    /// [`cached_record`](Self::cached_record).
    pub async fn shared_record(&self, id: &RecordId) -> Option<Record> {
        let is_current = || self.instance_lease.is_current();
        // Before and after: the lease may end while the shared cache is read.
        let found = if is_current() { self.possibly_purged_shared_record(id).await } else { None };
        found.filter(|_| is_current())
    }

    /// The key's record from the shared cache, even if another instance may have purged it.
    pub async fn possibly_purged_shared_record(&self, id: &RecordId) -> Option<Record> {
        let found = self.shared_cache.get()?.get(id, &self.cache, || self.store_clock.now()).await;
        found.inspect(|_| self.observability.metrics.cache_hits.count(CacheTier::Shared))
    }

    /// Remembers a record that the store has at this moment. A completed one is cached in memory and, where there is
    /// one, in the shared cache; any other, and one that finds no room, is kept for the time without a store. `epoch`
    /// is the cache's epoch when the read of the store began that the record comes from.
    pub fn remember(&self, record: &Record, epoch: CacheEpoch) {
        self.cache.insert_if_current(record, epoch);
        match self.cache.contains(&record.id) {
            true => self.last_seen.forget(&record.id),
            false => self.last_seen.note(record),
        }
        if let Some(shared_cache) = self.shared_cache.get() {
            shared_cache.offer(record, epoch, self.store_clock.now());
        }
    }

    /// The key's record from the cache or the store. What the store has is remembered.
    pub async fn find_record(&self, id: RecordId) -> Result<Option<Record>, StoreError> {
        if let Some(record) = self.cached_record(&id) {
            return Ok(Some(record));
        }
        let epoch = self.cache.current_epoch();
        let found = self.store.find(id).await?;
        found.iter().for_each(|record| self.remember(record, epoch));
        Ok(found)
    }

    /// The time from the start of a reservation within which its attempt may send the first byte: the store's timeout,
    /// and one second for a busy machine. After that, quiescence could be over before the attempt is.
    pub fn first_byte_within(&self) -> Duration {
        first_byte_within(&self.config.store)
    }

    /// The time limit of an attempt from its reservation: the wait for its first byte, and then the route's own
    /// timeout.
    pub fn attempt_time_limit(&self, route: &Route) -> Duration {
        attempt_time_limit(&self.config.store, route)
    }

    /// The time from a reservation of the route until its attempt is quiet.
    pub fn quiet_time(&self, route: &Route) -> Duration {
        quiet_time(&self.config.store, route)
    }

    /// Counts an unknown outcome that this instance has had resolved.
    pub fn count_resolved(&self, service_route: (&str, &str), unknown_since: SystemTime) {
        let unknown_for = self.store_clock.now().duration_since(unknown_since).unwrap_or_default();
        self.observability.metrics.count_resolved(service_route, unknown_for);
    }

    /// Adds to the store what was counted since the last time, see [`weekly_counts`].
    pub async fn write_weekly_counts(&self) -> Result<(), StoreError> {
        self.observability.metrics.weekly.write(&self.store, self.instance_lease.id()).await
    }

    /// Keeps the counts in the store few, see [`weekly_counts`].
    pub async fn tend_weekly_counts(&self) -> Result<(), StoreError> {
        self.observability.metrics.weekly.tend(&self.store).await
    }

    /// Notes that a delivery's attempt was not sent. The store learns it before the next pick-up.
    pub fn note_unsent_delivery(&self, id: RecordId, token: Token) {
        self.unsent_deliveries.lock().push((id, token));
    }
}

fn first_byte_within(store: &StoreConfig) -> Duration {
    store.timeout + Duration::from_secs(1)
}

fn attempt_time_limit(store: &StoreConfig, route: &Route) -> Duration {
    first_byte_within(store) + route.options.upstream_timeout
}

/// The time from a reservation of the route until its attempt is quiet: its time limit, and what no attempt outlasts it
/// by.
fn quiet_time(store: &StoreConfig, route: &Route) -> Duration {
    attempt_time_limit(store, route) + route.quiet_after
}

/// The times that the judgement of the store's clock depends on, with these routes.
pub fn clock_limits(store: &StoreConfig, routes: &[Arc<Route>]) -> ClockLimits {
    let longest = |time: &dyn Fn(&Route) -> Duration| routes.iter().map(|route| time(route)).max();
    ClockLimits {
        tolerance: lease::margin(store.lease.expiry),
        longest_quiet_time: longest(&|route| quiet_time(store, route)).unwrap_or_default(),
        longest_ttl: longest(&|route| route.options.ttl + route.options.remember.unwrap_or_default())
            .unwrap_or_default(),
    }
}
