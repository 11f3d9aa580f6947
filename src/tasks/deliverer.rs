//! Delivers accepted requests when they are due.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, DeliveryMode, Route};
use crate::domain::delivery::{DeliveryPolicy, PickUpRequest};
use crate::domain::ids::{RecordId, Token};
use crate::gate::Gate;
use crate::gate::deliver::DeliveryProgress;
use crate::instance::Instance;
use crate::instance::boot_time::BootInstant;
use crate::store::StoreError;
use crate::telemetry::logs::error_causes;

/// The deliveries that one instance runs at once. A queue protects a service from bursts: with 64, ten thousand accepted
/// requests reach it over as many connections as the clients of a busy hour hold, and 64 bodies of the usual largest size
/// are 64 MiB.
const DELIVERIES_MAX: usize = 64;

/// The deliveries that one statement picks up. Other instances cannot take them meanwhile.
const BATCH: usize = 32;

/// The interval of passes for requests that another instance has accepted and for retries. A request that this instance
/// accepts wakes the deliverer at once.
const PERIOD: Duration = Duration::from_secs(1);

/// The interval of passes over synchronous routes: one may have been asynchronous before a reload or a restart.
const SYNCHRONOUS_ROUTES_PERIOD: Duration = Duration::from_secs(10);

/// The deliveries of one route that run at once where there are several routes.
const ROUTE_DELIVERIES_MAX: usize = DELIVERIES_MAX / 2;

/// The number of running deliveries by route.
#[derive(Default)]
struct RunningDeliveries(Mutex<HashMap<Arc<str>, usize>>);

impl RunningDeliveries {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the routes that are at their limit. Returns how many deliveries each of the others may still begin.
    fn remove_full_routes(&self, policies: &mut Vec<DeliveryPolicy>) -> usize {
        let running = self.lock();
        let left = |policy: &DeliveryPolicy| {
            ROUTE_DELIVERIES_MAX.saturating_sub(running.get(&policy.route).copied().unwrap_or(0))
        };
        policies.retain(|policy| left(policy) > 0);
        policies.iter().map(left).min().unwrap_or(0)
    }
}

/// Counts one running delivery of its route until it is dropped.
struct DeliverySlot {
    instance: Arc<Instance>,
    running: Arc<RunningDeliveries>,
    route: Arc<str>,
}

impl DeliverySlot {
    fn new(instance: &Arc<Instance>, running: &Arc<RunningDeliveries>, route: &Arc<str>) -> Self {
        *running.lock().entry(Arc::clone(route)).or_default() += 1;
        Self { instance: Arc::clone(instance), running: Arc::clone(running), route: Arc::clone(route) }
    }
}

impl Drop for DeliverySlot {
    fn drop(&mut self) {
        let mut running = self.running.lock();
        let Some(count) = running.get_mut(&self.route) else { return };
        *count -= 1;
        let was_full = *count + 1 >= ROUTE_DELIVERIES_MAX;
        if *count == 0 {
            running.remove(&self.route);
        }
        drop(running);
        if was_full {
            // Passes left this route out; it may have more that is due.
            self.instance.delivery_due.notify_one();
        }
    }
}

/// The routes that a pass asks the store about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassRoutes {
    /// Those that accept requests now.
    Asynchronous,
    /// Those too that may have accepted requests earlier.
    All,
}

/// The loop that delivers; there is one for each instance.
pub struct Deliverer {
    instance: Arc<Instance>,
    gate: Arc<Gate>,
    /// The configuration as of the last reload.
    live: watch::Receiver<Arc<Config>>,
    slots: Arc<Semaphore>,
    /// The records that were delivered since the last pass; the next one reports them to the store.
    delivered: Arc<Mutex<Vec<RecordId>>>,
    running: Arc<RunningDeliveries>,
}

impl Deliverer {
    /// Creates a deliverer with a gate of its own, which must have been made on the runtime that runs it.
    pub fn new(instance: Arc<Instance>, gate: Arc<Gate>, live: watch::Receiver<Arc<Config>>) -> Self {
        Self {
            instance,
            gate,
            live,
            slots: Arc::new(Semaphore::new(DELIVERIES_MAX)),
            delivered: Arc::default(),
            running: Arc::default(),
        }
    }

    /// Runs until `stop`, and then until the running deliveries have ended. The caller must track it: a drain waits for it.
    pub async fn run(self, stop: CancellationToken) {
        let mut synchronous_routes_at = Instant::now();
        loop {
            let free = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                free = self.acquire_slots() => free,
            };
            let routes = match Instant::now() >= synchronous_routes_at {
                true => PassRoutes::All,
                false => PassRoutes::Asynchronous,
            };
            let found = match self.run_pass(free, routes).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(
                        task = "deliverer",
                        cause = error_causes(&error),
                        "{error}; the next pass tries again"
                    );
                    0
                }
            };
            if found > 0 {
                continue;
            }
            if routes == PassRoutes::All {
                synchronous_routes_at = Instant::now() + SYNCHRONOUS_ROUTES_PERIOD;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.instance.delivery_due.notified() => {}
                () = tokio::time::sleep(self.period()) => {}
            }
        }
        let all = u32::try_from(DELIVERIES_MAX).expect("the limit is small");
        tokio::select! {
            _ = self.slots.acquire_many(all) => {}
            () = self.instance.drain_expired.cancelled() => return,
        }
        if let Err(error) = self.run_pass(Vec::new(), PassRoutes::Asynchronous).await {
            tracing::info!(
                cause = error_causes(&error),
                "{error}; delivered requests stay in the store as long as their keys"
            );
        }
    }

    /// Waits for one slot, and takes up to a batch of free ones.
    async fn acquire_slots(&self) -> Vec<OwnedSemaphorePermit> {
        let first = Arc::clone(&self.slots).acquire_owned().await;
        let more = std::iter::repeat_with(|| Arc::clone(&self.slots).try_acquire_owned()).take(BATCH - 1);
        first.into_iter().chain(more.map_while(Result::ok)).collect()
    }

    /// Picks up due deliveries for the free slots and starts them. Returns the number of deliveries and given-up keys.
    async fn run_pass(&self, free: Vec<OwnedSemaphorePermit>, routes: PassRoutes) -> Result<usize, StoreError> {
        let Instance { store, instance_lease, in_flight, config, tracker, .. } = &*self.instance;
        self.report_unsent().await?;
        let mut policies = self.policies(routes);
        // Where there are several routes, none takes all slots: a service that hangs must not starve the others.
        let slots_max =
            if policies.len() > 1 { self.running.remove_full_routes(&mut policies) } else { DELIVERIES_MAX };
        let delivered = std::mem::take(&mut *self.lock());
        let idle = delivered.is_empty() && (policies.is_empty() || free.is_empty());
        if !instance_lease.may_start() || idle {
            self.lock().extend(delivered);
            return Ok(0);
        }
        // In the registry before they are reserved, so that none is ever taken for an orphaned attempt.
        let mut entries: Vec<_> = free
            .iter()
            .take(slots_max)
            .map(|_| fresh_token())
            .map(|token| (token, in_flight.register(token)))
            .collect();
        let started = BootInstant::now();
        let request = PickUpRequest {
            service: Arc::clone(&config.service),
            instance: instance_lease.id(),
            tokens: entries.iter().map(|(token, _)| *token).collect(),
            policies,
            delivered: delivered.clone(),
            busy: in_flight.running_deliveries(),
            unsent: Vec::new(),
        };
        let picked = store.pick_up(request).await.inspect_err(|_| self.lock().extend(delivered))?;
        let found = picked.jobs.len() + picked.given_up.len();
        for dead in picked.given_up {
            tracing::warn!(record = %dead.id, route = %dead.route, said = dead.note,
                "the request is not delivered: given up, an operator must decide");
            self.instance.wait_groups.wake(dead.id);
        }
        for (job, slot) in picked.jobs.into_iter().zip(free) {
            let (id, token) = (job.lease.reserve_request.id, job.lease.reserve_request.token);
            let Some(index) = entries.iter().position(|(entered, _)| *entered == token) else { continue };
            let (_, entry) = entries.swap_remove(index);
            let (gate, delivered) = (Arc::clone(&self.gate), Arc::clone(&self.delivered));
            let route_slot = DeliverySlot::new(&self.instance, &self.running, &job.lease.reserve_request.route);
            tracker.spawn(async move {
                if gate.deliver(job, entry, started).await == DeliveryProgress::Completed {
                    delivered.lock().unwrap_or_else(PoisonError::into_inner).push(id);
                }
                drop((slot, route_slot));
            });
        }
        Ok(found)
    }

    /// Reports the attempts that were not sent to the store, in a statement of its own: the next one decides by it what is
    /// due.
    async fn report_unsent(&self) -> Result<(), StoreError> {
        let lock = || self.instance.unsent_deliveries.lock().unwrap_or_else(PoisonError::into_inner);
        let uncounted = std::mem::take(&mut *lock());
        if uncounted.is_empty() {
            return Ok(());
        }
        let request = PickUpRequest {
            service: Arc::clone(&self.instance.config.service),
            instance: self.instance.instance_lease.id(),
            tokens: Vec::new(),
            policies: Vec::new(),
            delivered: Vec::new(),
            busy: Vec::new(),
            unsent: uncounted.clone(),
        };
        self.instance.store.pick_up(request).await.map(drop).inspect_err(|_| lock().extend(uncounted))
    }

    /// Returns the policies of these routes, by each of their names, in another order each time, so that no route always comes
    /// after one that fills every batch.
    fn policies(&self, routes: PassRoutes) -> Vec<DeliveryPolicy> {
        let config = self.live.borrow();
        if config.secrets.current().is_none() {
            return Vec::new();
        }
        let policy = |(name, route): (&Arc<str>, &Arc<Route>)| DeliveryPolicy {
            route: Arc::clone(name),
            on_unknown: route.on_unknown,
            quiet_after: route.quiet_after,
            time_limit: self.instance.attempt_time_limit(route),
            retry: route.retry,
        };
        let is_included = |route: &&Arc<Route>| match routes {
            PassRoutes::All => true,
            PassRoutes::Asynchronous => is_asynchronous(route),
        };
        let included = config.routes.iter().filter(is_included);
        let mut policies: Vec<_> =
            included.flat_map(|route| route.names().map(move |name| (name, route))).map(policy).collect();
        if !policies.is_empty() {
            let first = getrandom::u32().unwrap_or_default() as usize % policies.len();
            policies.rotate_left(first);
        }
        policies
    }

    fn period(&self) -> Duration {
        let any = self.live.borrow().routes.iter().any(|route| is_asynchronous(route));
        if any { PERIOD } else { SYNCHRONOUS_ROUTES_PERIOD }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<RecordId>> {
        // Consistent between any two statements, so a poisoned lock is usable.
        self.delivered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_asynchronous(route: &Route) -> bool {
    match route.delivery {
        DeliveryMode::Sync => false,
        DeliveryMode::Async | DeliveryMode::Prefer => true,
    }
}

fn fresh_token() -> Token {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    Token::from_random(bytes)
}
