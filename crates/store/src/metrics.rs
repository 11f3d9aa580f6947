//! Durations and failures of calls of the store.

use oncegate_telemetry::metrics::{Counters, Gauge, Histograms, label};

label!(
    /// A call of the store that is counted, by the name of its method. `docs/metrics.md` has the labels.
    Op, "op", {
        Reserve => "reserve",
        TakeOver => "take_over",
        Settle => "settle",
        Find => "find",
        FindParts => "find_parts",
        ExtendDeadline => "extend_deadline",
        CountLiveKeys => "count_live_keys",
        MoveLiveKeys => "move_live_keys",
        Enqueue => "enqueue",
        PickUp => "pick_up",
        GiveUp => "give_up",
        RenewLease => "renew",
        ReleaseLease => "release_lease",
        Sweep => "sweep",
        ListInFlight => "list_in_flight",
        Reap => "reap",
        Ping => "ping",
        ClaimInquiries => "claim_inquiries",
        ApplyInquiryFinding => "resolve",
        ListSettledKeys => "list_settled_keys",
        RememberRouteIdentities => "route_identities",
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
