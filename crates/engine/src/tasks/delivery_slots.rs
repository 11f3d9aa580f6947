//! Slots for running deliveries, shared fairly by the routes.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::instance::Instance;
use oncegate_domain::delivery::DeliveryPolicy;

/// The deliveries that one instance runs at once. A queue protects a service from bursts: with 64, ten thousand
/// accepted requests reach it over as many connections as the clients of a busy hour hold, and 64 bodies of the usual
/// largest size are 64 MiB.
///
/// Half of the slots are divided among the routes: a route can always run its share, at least one delivery, whatever
/// the others do. The other half is for those that come first. Routes that take the last common slots in the same pass,
/// and routes with a share of one, may exceed the maximum by the shares of others.
const DELIVERIES_MAX: usize = 64;

/// The running deliveries of an instance.
#[derive(Default)]
pub struct DeliverySlots(Mutex<SlotCounts>);

#[derive(Default)]
struct SlotCounts {
    running: HashMap<Arc<str>, usize>,
    /// Whether the last pass left out a route that had no free slot: it may have more that is due.
    has_left_out: bool,
}

impl SlotCounts {
    fn running(&self, route: &str) -> usize {
        self.running.get(route).copied().unwrap_or(0)
    }

    /// Returns how many deliveries each of these routes may begin.
    fn free(&self, routes: &[&str]) -> Vec<usize> {
        let share = (DELIVERIES_MAX / 2 / routes.len().max(1)).max(1);
        let unused: Vec<_> = routes.iter().map(|route| share.saturating_sub(self.running(route))).collect();
        let taken = self.running.values().sum::<usize>() + unused.iter().sum::<usize>();
        let common = DELIVERIES_MAX.saturating_sub(taken);
        unused.iter().map(|own| own + common).collect()
    }
}

impl DeliverySlots {
    /// Sets how many deliveries each route may begin, and removes the routes that may begin none.
    pub fn limit(&self, policies: &mut Vec<DeliveryPolicy>) {
        let mut counts = self.0.lock();
        let routes: Vec<_> = policies.iter().map(|policy| &*policy.route).collect();
        let free = counts.free(&routes);
        policies.iter_mut().zip(free).for_each(|(policy, free)| policy.slots = free);
        let asked = policies.len();
        policies.retain(|policy| policy.slots > 0);
        counts.has_left_out = policies.len() < asked;
    }
}

/// Counts one running delivery of its route until it is dropped.
pub struct DeliverySlot {
    instance: Arc<Instance>,
    slots: Arc<DeliverySlots>,
    route: Arc<str>,
}

impl DeliverySlot {
    /// Takes a slot that [`DeliverySlots::limit`] has offered.
    pub fn take(instance: &Arc<Instance>, slots: &Arc<DeliverySlots>, route: &Arc<str>) -> Self {
        *slots.0.lock().running.entry(Arc::clone(route)).or_default() += 1;
        Self { instance: Arc::clone(instance), slots: Arc::clone(slots), route: Arc::clone(route) }
    }
}

impl Drop for DeliverySlot {
    fn drop(&mut self) {
        let mut counts = self.slots.0.lock();
        let Some(count) = counts.running.get_mut(&self.route) else { return };
        *count -= 1;
        if *count == 0 {
            counts.running.remove(&self.route);
        }
        if counts.has_left_out {
            self.instance.delivery_due.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_route_can_run_its_share_and_the_common_slots_go_to_the_first() {
        for (running, free) in [
            (&[][..], &[64][..]),
            (&[60], &[4]),
            (&[64], &[0]),
            (&[0, 0], &[48, 48]),
            // A route that hangs leaves the other its share, and a full route does not limit the others.
            (&[48, 0], &[0, 16]),
            (&[47, 0], &[1, 17]),
            (&[48, 15], &[0, 1]),
            (&[48, 16], &[0, 0]),
            // Two that hang leave the third its share.
            (&[27, 27, 0], &[0, 0, 10]),
            (&[44, 10, 0], &[0, 0, 10]),
            (&[32, 32, 0], &[0, 0, 10]),
        ] {
            assert_eq!(free_of(running), free, "{running:?}");
        }
        let mut all_but_one_hang = vec![1; 100];
        all_but_one_hang[7] = 0;
        let mut free = vec![0; 100];
        free[7] = 1;
        assert_eq!(free_of(&all_but_one_hang), free);
    }

    fn free_of(running: &[usize]) -> Vec<usize> {
        let names: Vec<Arc<str>> = (0..running.len().max(1)).map(|number| number.to_string().into()).collect();
        let running = names.iter().cloned().zip(running.iter().copied()).collect();
        let routes: Vec<&str> = names.iter().map(|name| &**name).collect();
        SlotCounts { running, has_left_out: false }.free(&routes)
    }
}
