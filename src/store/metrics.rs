//! Durations and failures of calls of the store.

use super::StoreError;
use crate::telemetry::metrics::{Counters, Gauge, Histograms, label};

label!(
    /// A call of the store. `docs/metrics.md` has the labels.
    Op, "op", {
        /// [`super::Store::give_up`]
        GiveUp => "give_up",
        /// [`super::Store::claim_probes`]
        ClaimProbes => "claim_probes",
        /// [`super::Store::count_live_keys`]
        CountLiveKeys => "count_live_keys",
        /// [`super::Store::enqueue`]
        Enqueue => "enqueue",
        /// [`super::Store::extend_deadline`]
        ExtendDeadline => "extend_deadline",
        /// [`super::Store::find`]
        Find => "find",
        /// [`super::Store::list_settled_keys`]
        ListSettledKeys => "list_settled_keys",
        /// [`super::Store::move_live_keys`]
        MoveLiveKeys => "move_live_keys",
        /// [`super::Store::pick_up`]
        PickUp => "pick_up",
        /// [`super::Store::ping`]
        Ping => "ping",
        /// [`super::Store::reap`]
        Reap => "reap",
        /// [`super::Store::renew_lease`]
        RenewLease => "renew",
        /// [`super::Store::reserve`]
        Reserve => "reserve",
        /// [`super::Store::apply_probe_finding`]
        Resolve => "resolve",
        /// [`super::Store::release_lease`]
        ReleaseLease => "release_lease",
        /// [`super::Store::remember_route_identities`]
        RememberRouteIdentities => "route_identities",
        /// [`super::Store::settle`]
        Settle => "settle",
        /// [`super::Store::list_in_flight`]
        ListInFlight => "list_in_flight",
        /// [`super::Store::sweep`]
        Sweep => "sweep",
        /// [`super::Store::take_over`]
        TakeOver => "take_over",
    }
);

/// Metrics of calls that were made; a call that the breaker refuses is not counted.
#[derive(Clone, Debug, Default)]
pub struct StoreMetrics {
    /// The calls' durations, failed calls included.
    pub durations: Histograms<Op>,
    /// The failed calls.
    pub errors: Counters<Op>,
    /// The servers of the URL that take writes; 0 where the URL has one host.
    pub primaries: Gauge,
}

impl StoreMetrics {
    /// Counts a call that has ended.
    pub(super) fn count<T>(&self, op: Op, started: tokio::time::Instant, answer: &Result<T, StoreError>) {
        self.durations.observe(op, started.elapsed());
        if answer.is_err() {
            self.errors.count(op);
        }
    }
}
