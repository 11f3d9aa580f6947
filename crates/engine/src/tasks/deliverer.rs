//! Delivers accepted requests when they are due.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::delivery_slots::{DeliverySlot, DeliverySlots};
use crate::gate::Gate;
use crate::gate::admit::fresh_token;
use crate::gate::deliver::DeliveryProgress;
use crate::instance::Instance;
use crate::instance::boot_time::BootInstant;
use crate::instance::store_clock::ClockView;
use oncegate_domain::delivery::{DeliveryPolicy, PickUpRequest};
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::retry::RetryPolicy;
use oncegate_machine::random_u32;
use oncegate_settings::{Config, DeliveryMode, Route};
use oncegate_store::StoreError;
use oncegate_store::breaker::is_refused_by_breaker;
use oncegate_telemetry::logs::error_causes;

/// The deliveries that one call picks up.
const BATCH: usize = 32;

/// The interval of passes for requests that another instance has accepted and for retries. A request that this instance
/// accepts wakes the deliverer at once.
const PERIOD: Duration = Duration::from_secs(1);

/// The interval of passes over synchronous routes: one may have been asynchronous before a reload or a restart.
const SYNCHRONOUS_ROUTES_PERIOD: Duration = Duration::from_secs(10);

/// The routes that a pass asks the store about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassRoutes {
    /// Those that accept requests now.
    Asynchronous,
    /// Those that may have accepted requests earlier.
    Synchronous,
}

/// The loop that delivers; there is one for each instance.
pub struct Deliverer {
    instance: Arc<Instance>,
    gate: Arc<Gate>,
    /// The configuration as of the last reload.
    live: watch::Receiver<Arc<Config>>,
    slots: Arc<DeliverySlots>,
    /// The running deliveries.
    running: TaskTracker,
}

impl Deliverer {
    /// Creates a deliverer with a gate of its own, which must have been made on the runtime that runs it.
    pub fn new(instance: Arc<Instance>, gate: Arc<Gate>, live: watch::Receiver<Arc<Config>>) -> Self {
        Self { instance, gate, live, slots: Arc::default(), running: TaskTracker::new() }
    }

    /// Runs until `stop`, and then until the running deliveries have ended. The caller must track it: a drain waits for
    /// it.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(self.deliver(stop))
    }

    async fn deliver(self, stop: CancellationToken) {
        let mut synchronous_routes_at = Instant::now();
        while !stop.is_cancelled() {
            let mut found = 0;
            if Instant::now() >= synchronous_routes_at {
                found += self.run_logged_pass(PassRoutes::Synchronous).await;
                if found == 0 {
                    synchronous_routes_at = Instant::now() + SYNCHRONOUS_ROUTES_PERIOD;
                }
            }
            // Last, because a free slot wakes the deliverer by what this pass has left out.
            found += self.run_logged_pass(PassRoutes::Asynchronous).await;
            if found > 0 {
                continue;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.instance.delivery_due.notified() => {}
                () = tokio::time::sleep(self.period()) => {}
            }
        }
        self.running.close();
        tokio::select! {
            biased;
            () = self.running.wait() => {}
            () = self.instance.drain_expired.cancelled() => return,
        }
        if let Err(error) = self.report_delivered().await {
            tracing::info!(
                cause = error_causes(&error),
                "{error}; delivered requests stay in the store as long as their keys"
            );
        }
    }

    /// Runs a pass; a failed one is logged and found nothing.
    async fn run_logged_pass(&self, routes: PassRoutes) -> usize {
        self.run_pass(routes).await.unwrap_or_else(|error| {
            let cause = error_causes(&error);
            tracing::warn!(task = "deliverer", cause, "{error}; the next pass tries again");
            0
        })
    }

    /// Picks up due deliveries of these routes for the free slots and starts them. Returns the number of deliveries and
    /// given-up keys.
    async fn run_pass(&self, routes: PassRoutes) -> Result<usize, StoreError> {
        self.report_unsent().await?;
        let clock = self.instance.store_clock.view();
        let mut policies = self.policies(routes, &clock);
        // A service that hangs must not starve the others.
        self.slots.limit(&mut policies);
        let live = Arc::clone(&self.live.borrow());
        let mut found = 0;
        for service in live.service_names() {
            let is_own = |policy: &mut DeliveryPolicy| live.is_of_service(&policy.route, service);
            let own: Vec<_> = policies.extract_if(.., is_own).collect();
            found += self.pick_up(service, own, &clock).await?;
        }
        Ok(found)
    }

    /// Reports the delivered requests to the store after the last pass.
    async fn report_delivered(&self) -> Result<usize, StoreError> {
        self.report_unsent().await?;
        self.pick_up(&self.instance.config.service, Vec::new(), &self.instance.store_clock.view()).await
    }

    /// Picks up under policies that follow from this judgement of the store's clock.
    async fn pick_up(
        &self,
        service: &Arc<str>,
        policies: Vec<DeliveryPolicy>,
        clock: &ClockView,
    ) -> Result<usize, StoreError> {
        let Instance { store, instance_lease, in_flight, tracker, .. } = &*self.instance;
        let delivered = std::mem::take(&mut *self.instance.delivered.lock());
        let idle = delivered.is_empty() && policies.is_empty();
        if !instance_lease.may_start() || in_flight.is_full_of_unstored_outcomes() || idle {
            self.instance.delivered.lock().extend(delivered);
            return Ok(0);
        }
        let slots = policies.iter().map(|policy| policy.slots).sum::<usize>().min(BATCH);
        // In the registry before they are reserved, so that none is ever taken for an orphaned attempt.
        let mut entries: Vec<_> =
            std::iter::repeat_with(fresh_token).take(slots).map(|token| (token, in_flight.register(token))).collect();
        let started = BootInstant::now();
        let request = PickUpRequest {
            service: Arc::clone(service),
            instance: instance_lease.id(),
            tokens: entries.iter().map(|(token, _)| *token).collect(),
            policies,
            delivered: delivered.clone(),
            busy: in_flight.running_deliveries(),
            unsent: Vec::new(),
            as_of: clock.as_of,
        };
        let picked = store.pick_up(request).await.inspect_err(|_| self.instance.delivered.lock().extend(delivered))?;
        let found = picked.jobs.len() + picked.given_up.len();
        for dead in picked.given_up {
            tracing::warn!(record = %dead.id, route = %dead.route, reason = dead.note,
                "the delivery was given up; its key is dead until an operator decides");
            self.instance.wait_groups.wake(dead.id);
        }
        for job in picked.jobs {
            let (id, token) = (job.lease.reserve_request.id, job.lease.reserve_request.token);
            let Some(index) = entries.iter().position(|(entered, _)| *entered == token) else { continue };
            let (_, entry) = entries.swap_remove(index);
            let (gate, instance) = (Arc::clone(&self.gate), Arc::clone(&self.instance));
            let slot = DeliverySlot::take(&self.instance, &self.slots, &job.lease.reserve_request.route);
            tracker.spawn(self.running.track_future(async move {
                if gate.deliver(job, entry, started).await == DeliveryProgress::Completed {
                    instance.delivered.lock().push(id);
                }
                drop(slot);
            }));
        }
        Ok(found)
    }

    /// Reports the attempts that were not sent to the store, in a statement of its own: the next one decides by it what
    /// is due. Reports each at most once: a second report of one that the store has taken would leave a real try
    /// uncounted. If the answer is lost, the attempt may count although it was not sent.
    async fn report_unsent(&self) -> Result<(), StoreError> {
        let uncounted = std::mem::take(&mut *self.instance.unsent_deliveries.lock());
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
            as_of: self.instance.store_clock.now(),
        };
        self.instance.store.pick_up(request).await.map(drop).inspect_err(|error| {
            // The breaker's refusal proves that the store got nothing.
            if is_refused_by_breaker(error) {
                self.instance.unsent_deliveries.lock().extend(uncounted);
            }
        })
    }

    /// Returns the policies of these routes, by each of their names, in another order each time, so that no route
    /// always comes after one that fills every batch.
    fn policies(&self, routes: PassRoutes, clock: &ClockView) -> Vec<DeliveryPolicy> {
        let config = self.live.borrow();
        if config.secrets.current().is_none() {
            return Vec::new();
        }
        // While the store's clock is in doubt, no attempt is quiet, and no delivery is too old.
        let has_skipped_time = clock.has_skipped_time();
        let give_up_after = |retry: RetryPolicy| if has_skipped_time { Duration::MAX } else { retry.give_up_after };
        let policy = |(name, route): (&Arc<str>, &Arc<Route>)| DeliveryPolicy {
            route: Arc::clone(name),
            on_unknown: match route.options.on_unknown {
                OnUnknown::RetryWhenQuiet if !clock.is_watched_for(self.instance.quiet_time(route)) => OnUnknown::Hold,
                on_unknown => on_unknown,
            },
            quiet_after: route.quiet_after,
            time_limit: self.instance.attempt_time_limit(route),
            retry: RetryPolicy { give_up_after: give_up_after(route.options.retry), ..route.options.retry },
            repeat_within: route.repeat_within(),
            slots: 0,
        };
        let is_included = |route: &&Arc<Route>| match routes {
            PassRoutes::Asynchronous => is_asynchronous(route),
            PassRoutes::Synchronous => !is_asynchronous(route),
        };
        let included = config.routes.iter().filter(is_included);
        let mut policies: Vec<_> =
            included.flat_map(|route| route.names().map(move |name| (name, route))).map(policy).collect();
        if !policies.is_empty() {
            let first = random_u32().unwrap_or_default() as usize % policies.len();
            policies.rotate_left(first);
        }
        policies
    }

    fn period(&self) -> Duration {
        let any = self.live.borrow().routes.iter().any(|route| is_asynchronous(route));
        if any { PERIOD } else { SYNCHRONOUS_ROUTES_PERIOD }
    }
}

/// Whether the route's requests are kept for attempts that no client starts.
fn is_asynchronous(route: &Route) -> bool {
    route.options.delivery != DeliveryMode::Sync || route.options.on_unknown == OnUnknown::Vendor
}
