//! Looks after the keys of routes that are not configured any more: reports them, and gives up what is queued too long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{PassResult, Task};
use crate::instance::Instance;
use oncegate_domain::delivery::{DeliveryPolicy, GIVE_UP_ROWS_MAX, PickUpRequest};
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::retry::RetryPolicy;
use oncegate_domain::state::StateKind;
use oncegate_settings::{Config, Service};
use oncegate_store::StoreError;
use oncegate_store::admin::KeysWithoutRoute;

/// The task. Nothing is delivered without a route; but a key that was accepted must not stay queued for ever.
pub struct GoneRoutes {
    instance: Arc<Instance>,
    /// The configuration as of the last reload.
    live: watch::Receiver<Arc<Config>>,
}

impl GoneRoutes {
    /// Creates the task; each pass uses the newest configuration of `live`.
    pub fn new(instance: Arc<Instance>, live: watch::Receiver<Arc<Config>>) -> Self {
        Self { instance, live }
    }

    /// Logs the keys that wait for something, for each route that is not configured.
    pub async fn warn(&self) -> Result<(), StoreError> {
        for (_, KeysWithoutRoute { route, keys }) in self.count().await? {
            let count = |state| keys.get(&state).copied().unwrap_or_default();
            tracing::warn!(
                route,
                queued = count(StateKind::Queued),
                unknown = count(StateKind::Unknown),
                in_flight = count(StateKind::InFlight),
                dead = count(StateKind::Dead),
                "there are keys of a route that is not configured: nothing delivers or reconciles them. If the route was \
                 renamed, write its earlier name into `was` of the new one"
            );
        }
        Ok(())
    }

    async fn count(&self) -> Result<Vec<(Arc<Service>, KeysWithoutRoute)>, StoreError> {
        let config = Arc::clone(&self.live.borrow());
        let mut gone = Vec::new();
        for service in &config.services {
            let counts = self.instance.store.count_keys(Arc::clone(&service.name)).await?;
            let without = counts.list_without_route(|name| config.is_of_service(name, &service.name));
            gone.extend(without.into_iter().map(|keys| (Arc::clone(service), keys)));
        }
        Ok(gone)
    }
}

impl Task for GoneRoutes {
    const NAME: &'static str = "gone routes";

    async fn run_once(&mut self) -> Result<PassResult, StoreError> {
        let Instance { store, instance_lease, store_clock, in_flight, wait_groups, .. } = &*self.instance;
        let clock = store_clock.view();
        let mut policies: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (service, gone) in self.count().await? {
            if gone.keys.contains_key(&StateKind::Queued) {
                let of_service = policies.entry(Arc::clone(&service.name)).or_default();
                of_service.push(policy(gone.route, service.give_up_after));
            }
        }
        if !instance_lease.may_start() || clock.has_skipped_time() {
            return Ok(PassResult::Idle);
        }
        for (service, policies) in policies {
            let request = PickUpRequest {
                service,
                instance: instance_lease.id(),
                // No attempt begins.
                tokens: Vec::new(),
                policies,
                delivered: Vec::new(),
                busy: in_flight.running_deliveries(),
                unsent: Vec::new(),
                as_of: clock.as_of,
            };
            for dead in store.pick_up(request).await?.given_up {
                tracing::warn!(record = %dead.id, route = %dead.route, reason = dead.note,
                    "the request's route is not configured any more; the delivery was given up, and its key is dead until an \
                     operator decides");
                wait_groups.wake(dead.id);
            }
        }
        Ok(PassResult::Idle)
    }
}

/// Gives up by age alone: the route's own limits are not known any more.
fn policy(route: String, give_up_after: Duration) -> DeliveryPolicy {
    DeliveryPolicy {
        route: route.into(),
        on_unknown: OnUnknown::Hold,
        quiet_after: Duration::ZERO,
        time_limit: Duration::ZERO,
        retry: RetryPolicy {
            max_attempts: i32::MAX.cast_unsigned(),
            base: Duration::ZERO,
            cap: Duration::ZERO,
            give_up_after,
        },
        repeat_within: None,
        slots: GIVE_UP_ROWS_MAX,
    }
}
