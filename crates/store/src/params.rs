//! The parameters of the store's calls: a struct for each call that has more than one.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::admin::{Cursor, KeyFilter, OperatorDecision, Target};
use super::events::{EventHandle, EventRoute, PostponedEvent};
use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::delivery::EnqueueRequest;
use oncegate_domain::ids::{InstanceId, RecordId, Token};
use oncegate_domain::inquiry::InquirySchedule;
use oncegate_domain::key_holder::KeyHolder;
use oncegate_domain::record::ExpectedRecord;
use oncegate_domain::scope::Scope;
use oncegate_domain::service_report::{ReservationHandle, RouteRetention};
use oncegate_domain::state::StateKind;

/// Defines structs of parameters. A field without a comment is what its name and type say.
macro_rules! params {
    ($($name:ident for $call:ident { $($(#[$about:meta])* $field:ident: $type:ty,)+ })+) => { $(
        #[doc = concat!("The parameters of [`Store::", stringify!($call), "`](super::Store::", stringify!($call), ").")]
        #[derive(Clone, Debug)]
        pub struct $name { $($(#[$about])* pub $field: $type,)+ }
    )+ };
}

params! {
    TakeOverParams for take_over {
        request: ReserveRequest,
        from: ExpectedRecord,
    }
    ExtendDeadlineParams for extend_deadline {
        id: RecordId,
        token: Token,
        time_limit: Duration,
    }
    CountLiveKeysParams for count_live_keys {
        holder: KeyHolder,
        limit: u32,
    }
    MoveLiveKeysParams for move_live_keys {
        id: RecordId,
        /// The scope of the key's caller.
        scope: Scope,
        holder: KeyHolder,
    }
    EnqueueParams for enqueue {
        request: EnqueueRequest,
        /// The record over which the key is accepted, unless it has changed since; `None` for a key without a record.
        from: Option<ExpectedRecord>,
    }
    GiveUpParams for give_up {
        id: RecordId,
        token: Token,
        states: &'static [StateKind],
        note: String,
    }
    LeaseRenewal for renew_lease {
        instance: InstanceId,
        /// The names of the services that the instance stands before, with blanks between.
        services: Arc<str>,
        /// The lease's length from now.
        expiry: Duration,
        /// The purge count up to which the instance has emptied its cache. `None` where it has just started and has
        /// cached nothing: that applies only where the instance has no row yet.
        purges_seen: Option<u64>,
        /// The time until which no instance shall take a record for past its TTL, where this one has seen the store's
        /// clock jump.
        hold_ttls_until: Option<SystemTime>,
    }
    SweepParams for sweep {
        expiry: Duration,
        limit: u32,
        /// The store's time by the caller's own clock. A time after it has not come, whatever the store's clock says;
        /// and a lease that was renewed later than both by more than `expiry` has expired: the store's clock was set
        /// back since.
        as_of: SystemTime,
    }
    ListInFlightParams for list_in_flight {
        instance: InstanceId,
        older_than: Duration,
    }
    ReapParams for reap {
        limit: u32,
        scope: ReapScope,
    }
    ClaimInquiriesParams for claim_inquiries {
        service: Arc<str>,
        /// The schedules of the routes that are asked.
        schedules: Vec<InquirySchedule>,
        limit: u32,
        /// The store's time by the caller's own clock, as in [`SweepParams`].
        as_of: SystemTime,
    }
    ListSettledKeysParams for list_settled_keys {
        service: Arc<str>,
        routes: Vec<Arc<str>>,
        /// The longest time since the key was settled.
        since: Duration,
        /// The id after which the page begins.
        after: Option<RecordId>,
        /// The most rows that are read.
        limit: u32,
    }
    RememberRouteIdentitiesParams for remember_route_identities {
        service: Arc<str>,
        /// The generation that was read; `None` where there was none.
        from: Option<i64>,
        finds: String,
    }
    AddWeeklyCountsParams for add_weekly_counts {
        instance: InstanceId,
        /// The number of the batch among the instance's, from 1.
        batch: i64,
        counts: Vec<AddedCount>,
    }
    TendWeeklyCountsParams for tend_weekly_counts {
        service: Arc<str>,
        route: Arc<str>,
        /// The callers that are kept apart.
        callers_max: usize,
    }
    ForgetCallerParams for forget_caller {
        service: Arc<str>,
        caller: String,
        /// A name that nobody has.
        replacement: String,
    }
    StoreRouteRetentionParams for store_route_retention {
        service: Arc<str>,
        /// One entry for each name of a route.
        retention: Vec<RouteRetention>,
    }
    StoreEventRoutesParams for store_event_routes {
        service: Arc<str>,
        routes: Vec<EventRoute>,
        /// Whether all that is stored already stays as it is.
        keeps_stored: bool,
    }
    ClaimEventsParams for claim_events {
        service: Arc<str>,
        sink: Arc<str>,
        limit: u32,
        /// The time after which another caller may claim them.
        lease: Duration,
    }
    EndEventsParams for end_events {
        published: Vec<EventHandle>,
        postponed: Vec<PostponedEvent>,
    }
    EventSinkParams for count_events {
        service: Arc<str>,
        sink: Arc<str>,
    }
    DiscardEventsParams for discard_events {
        service: Arc<str>,
        sink: Arc<str>,
        /// The person or program that discards them, for the audit log.
        actor: String,
    }
    ReplaceSaltParams for replace_salt {
        service: Arc<str>,
        /// The stored form that was read; `None` where there was none.
        from: Option<Vec<u8>>,
        to: Vec<u8>,
    }
    FindReservationParams for find_reservation {
        /// Those that are asked for.
        services: Vec<Arc<str>>,
        handle: ReservationHandle,
    }
    ListKeysParams for list_keys {
        service: Arc<str>,
        filter: KeyFilter,
        /// The last key of the page before.
        after: Option<Cursor>,
        limit: u32,
    }
    ApplyOperatorDecisionParams for apply_operator_decision {
        service: Arc<str>,
        decision: Arc<OperatorDecision>,
        targets: Vec<Target>,
        /// The store's time by the caller's own clock, where it has watched the store's: no attempt is quiet by a later
        /// time.
        as_of: Option<SystemTime>,
    }
    ListAuditEntriesParams for list_audit_entries {
        service: Arc<str>,
        /// The key; `None` for all.
        id: Option<RecordId>,
        /// The number before which the entries end; `None` for the latest.
        before: Option<i64>,
        limit: u32,
    }
    CountInstancesBehindParams for count_instances_behind {
        service: Arc<str>,
        purges: u64,
    }
    ListInstancesParams for list_instances {
        service: Arc<str>,
        limit: u32,
    }
}

/// A count of requests, or of keys, since an instance's last batch.
#[derive(Clone, Debug, Serialize)]
pub struct AddedCount {
    pub service: Arc<str>,
    /// Empty where no route matches.
    pub route: Arc<str>,
    pub caller: String,
    pub kind: &'static str,
    pub count: u64,
}

/// The records that [`Store::reap`](super::Store::reap) may take for past their TTL, as far as its caller believes the
/// store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReapScope {
    /// The store's time by the caller's own clock, as for [`Store::sweep`](super::Store::sweep).
    pub as_of: SystemTime,
    /// Records that were settled before this time are left.
    pub settled_since: SystemTime,
}
