//! The calls of the store: the table.
//!
//! A row is a method. It says what the call promises, and states its properties in the order of [`CallSpec::new`]. Its
//! two bodies are the methods of its name of [`PgTry`](super::postgres::PgTry) and
//! [`SqliteTransaction`](super::sqlite::SqliteTransaction). Calls that do more are written out: those that are one
//! statement of both databases, and those whose parameters or answer have a response, which is encrypted or decrypted
//! here.
//!
//! Each call ends within the store's `timeout`, with [`StoreError::TimedOut`](super::StoreError::TimedOut) if need be.
//! A write whose call failed may have happened all the same: a caller that needs to know reads again by the attempt's
//! token. What a look-up returns is as durable as a write that was acknowledged, except for the record of a running
//! attempt, which no answer rests on.
//!
//! The operators' calls are about one service each, and never see another service's keys in the same database. Each
//! statement's work is bounded, whatever the table's size, so that operators do not slow requests down. Only a list of
//! the keys with one value reads all of them.

use std::sync::Arc;
use std::time::SystemTime;

use super::admin::{AuditEntry, DecisionResults, InstanceEntry, KeyCounts, KeyPage};
use super::breaker::CallKind::{Always, Begins, Direct, Unjudged};
use super::call_spec::Pool::{AdminReads, Begin, Lease, Settle, Sweep, Upkeep};
use super::call_spec::RetryWhen::{AnyFailure, InDoubt, Never};
use super::call_spec::TimeLimit::{Bounded, Full, Short};
use super::call_spec::Urgency::{Ordinary, Urgent};
use super::call_spec::{CallSpec, NO_BODY};
use super::columns::columns;
use super::events::{EventCounts, KeyEvent};
use super::metrics::Op;
use super::params::*;
use super::results::*;
use super::row::verdict_bytes;
use super::statement::shared;
use super::{Store, StoreFuture};
use oncegate_domain::attempt::{ReserveRequest, ReserveResult, Settlement};
use oncegate_domain::delivery::{EnqueueResult, PickUpRequest, PickUpResult};
use oncegate_domain::fingerprint::Fingerprint;
use oncegate_domain::ids::{InstanceId, RecordId};
use oncegate_domain::inquiry::{Inquiry, InquiryFinding, SettledKeyPage};
use oncegate_domain::part_bits::PartBits;
use oncegate_domain::record::Record;
use oncegate_domain::service_report::{ReportResult, ReservedKey, ServiceReport};

impl Store {
    /// Reserves the key for a first attempt, or returns the record that it has.
    ///
    /// At most one caller, ever, gets [`ReserveResult::Fresh`] for a key without a record.
    pub fn reserve(&self, request: ReserveRequest) -> StoreFuture<'_, ReserveResult> {
        let spec = CallSpec::new(Begins(Op::Reserve), Begin, InDoubt, Ordinary, Full, NO_BODY);
        let call = self.backend.call(spec, request, |pg, p| pg.reserve(p), |db, p| db.reserve(p));
        self.judged(spec.kind, async move { self.opened(call.await?, taken) })
    }

    /// Starts the next attempt of a key, unless its record has changed since it was read.
    ///
    /// The caller decides whether the key may be taken over; the store guarantees that only one of several callers
    /// takes it over. A key past its TTL counts as a new key: its attempts start again at 1.
    pub fn take_over(&self, params: TakeOverParams) -> StoreFuture<'_, ReserveResult> {
        let spec = CallSpec::new(Begins(Op::TakeOver), Begin, InDoubt, Ordinary, Full, NO_BODY);
        let call = self.backend.call(spec, params, |pg, p| pg.take_over(p), |db, p| db.take_over(p));
        self.judged(spec.kind, async move { self.opened(call.await?, taken) })
    }

    /// Stores the outcome of an attempt, if the attempt is the key's newest and its outcome may settle a key in that
    /// state: [`AttemptOutcome::may_settle`](oncegate_domain::attempt::AttemptOutcome::may_settle) is the table. The
    /// same settlement again changes nothing and returns [`SettleResult::Fenced`].
    ///
    /// Where the key has no record, and the outcome must not be lost ([`Settlement::lease_to_restore`]), the whole
    /// record is written: a failover may have lost the reservation. Its times count from then.
    pub fn settle(&self, mut settlement: Settlement) -> StoreFuture<'_, SettleResult> {
        let bytes = settlement.outcome.response_bytes();
        let spec = CallSpec::new(Always(Op::Settle), Settle, AnyFailure, Urgent, Full, bytes);
        self.encryption().seal_settlement(&mut settlement);
        let call = self.backend.call(spec, settlement, |pg, p| pg.settle(p), |db, p| db.settle(p));
        self.judged(spec.kind, async move {
            self.opened(call.await?, |result| match result {
                SettleResult::Fenced(record) => record.as_mut(),
                SettleResult::Done { .. } => None,
            })
        })
    }

    /// Returns the key's record, if it has one.
    pub fn find(&self, id: RecordId) -> StoreFuture<'_, Option<Record>> {
        let spec = CallSpec::new(Begins(Op::Find), Begin, InDoubt, Ordinary, Full, NO_BODY);
        let call = self.backend.call(spec, id, |pg, p| pg.find(p), |db, p| db.find(p));
        self.judged(spec.kind, async move { self.opened(call.await?, Option::as_mut) })
    }

    /// Returns the bits of the parts of the request that made the fingerprint, if the key's record has that one and
    /// bits. Ends within 250 ms, and a failure leaves the breaker closed: a refusal is not worth more.
    pub fn find_parts(&self, id: &RecordId, fingerprint: &Fingerprint) -> StoreFuture<'_, Option<PartBits>> {
        let spec = CallSpec::new(Unjudged(Op::FindParts), Begin, Never, Ordinary, Short, NO_BODY);
        let columns = columns! { id: id.as_bytes().to_vec(), fingerprint: fingerprint.as_bytes().to_vec() };
        let rows = self.rows(spec, &shared::FIND_PARTS, columns);
        Box::pin(async move { Ok(rows.await?.pop()) })
    }

    /// Accepts a key for asynchronous delivery, with its request: both are durable, or neither.
    ///
    /// At most one caller gets [`EnqueueResult::Accepted`] for a key without a record, and none where somebody reserves
    /// it.
    pub fn enqueue(&self, params: EnqueueParams) -> StoreFuture<'_, EnqueueResult> {
        let spec =
            CallSpec::new(Begins(Op::Enqueue), Begin, InDoubt, Ordinary, Full, params.request.sealed.bytes.len());
        let call = self.backend.call(spec, params, |pg, p| pg.enqueue(p), |db, p| db.enqueue(p));
        self.judged(spec.kind, async move {
            self.opened(call.await?, |result| match result {
                EnqueueResult::Taken(record) => Some(record),
                EnqueueResult::Accepted => None,
            })
        })
    }

    /// Reserves a key as [`Self::reserve`] and [`Self::take_over`] do, and keeps its request with it: both are durable,
    /// or neither. While the outcome of its attempts is unknown, [`Self::pick_up`] repeats it.
    pub fn reserve_kept(&self, params: EnqueueParams) -> StoreFuture<'_, ReserveResult> {
        let bytes = params.request.sealed.bytes.len();
        let spec = CallSpec::new(Begins(Op::Reserve), Begin, InDoubt, Ordinary, Full, bytes);
        let call = self.backend.call(spec, params, |pg, p| pg.reserve_kept(p), |db, p| db.reserve_kept(p));
        self.judged(spec.kind, async move { self.opened(call.await?, taken) })
    }

    /// Makes keys unknown whose attempt nobody can be running any more: keys in flight under an instance whose lease
    /// has expired or is missing, or past their own deadline by `expiry`. At most `limit` keys; rows that another
    /// transaction has locked are left for the next pass.
    ///
    /// Opening the embedded store makes the attempts of its last process unknown. The first call returns these too,
    /// however many.
    pub fn sweep(&self, params: SweepParams) -> StoreFuture<'_, Vec<SweptKey>> {
        let spec = CallSpec::new(Always(Op::Sweep), Sweep, InDoubt, Ordinary, Full, NO_BODY);
        let call = self.backend.call(spec, params, |pg, p| pg.sweep(p), |db, p| db.sweep(p));
        self.judged(spec.kind, async move {
            let mut swept = call.await?;
            swept.append(&mut self.backend.take_interrupted());
            Ok(swept)
        })
    }

    /// Checks that the store answers and accepts writes.
    pub fn ping(&self) -> StoreFuture<'_, ()> {
        let spec = CallSpec::new(Always(Op::Ping), Lease, InDoubt, Ordinary, Full, NO_BODY);
        self.call(spec, (), |pg, _| pg.ping(), |db, _| db.ping())
    }

    /// Applies the verdict of an inquiry, and returns whether it was applied: not if the key is no longer unknown,
    /// has a newer attempt or, except for a response, a newer inquiry. A change of state is written together with its
    /// audit entry.
    pub fn apply_inquiry_finding(&self, mut finding: InquiryFinding) -> StoreFuture<'_, bool> {
        let bytes = verdict_bytes(&finding.verdict);
        let spec = CallSpec::new(Always(Op::ApplyInquiryFinding), Upkeep, InDoubt, Ordinary, Full, bytes);
        self.encryption().seal_finding(&mut finding);
        self.call(spec, finding, |pg, p| pg.apply_inquiry_finding(p), |db, p| db.apply_inquiry_finding(p))
    }

    /// Returns how the routes of each service find their keys, as it was stored last.
    pub fn list_route_identities(&self) -> StoreFuture<'_, Vec<RouteIdentities>> {
        let spec = CallSpec::new(Direct, Upkeep, InDoubt, Ordinary, Full, NO_BODY);
        self.rows(spec, &shared::LIST_ROUTE_IDENTITIES, Vec::new())
    }

    /// Stores the retention rules of a service's routes, for services that complete their keys in the database itself.
    /// A store that only the proxy writes to ignores it.
    pub fn store_route_retention(&self, params: StoreRouteRetentionParams) -> StoreFuture<'_, ()> {
        let spec = CallSpec::new(Direct, Upkeep, AnyFailure, Ordinary, Full, NO_BODY);
        // Nobody but the proxy writes to SQLite's file.
        self.call(spec, params, |pg, p| pg.store_route_retention(p), |_, _| Ok(()))
    }

    /// Lists the counts of the service's last 13 weeks, the latest first.
    pub fn list_weeks(&self, service: &str) -> StoreFuture<'_, Vec<WeekCount>> {
        let spec = CallSpec::new(Direct, AdminReads, InDoubt, Ordinary, Bounded, NO_BODY);
        self.rows(spec, &shared::LIST_WEEKS, columns! { service: service.to_owned() })
    }

    /// Lists the counts of the service's callers in the week that begins then; without one, in the week that has begun.
    pub fn list_callers_of_week(&self, service: &str, week: Option<SystemTime>) -> StoreFuture<'_, Vec<CallerCount>> {
        let spec = CallSpec::new(Direct, AdminReads, InDoubt, Ordinary, Bounded, NO_BODY);
        let columns = columns! { service: service.to_owned(), week: week };
        self.rows(spec, &shared::LIST_CALLERS_OF_WEEK, columns)
    }

    /// Claims events of a sink that are due, in their order, for the lease; of each key only the oldest that is neither
    /// published nor dead. Several callers get different events, until a lease is over.
    pub fn claim_events(&self, params: ClaimEventsParams) -> StoreFuture<'_, Vec<KeyEvent>> {
        // What was claimed in doubt is claimed again once its lease is over.
        let spec = CallSpec::new(Direct, Upkeep, Never, Ordinary, Full, NO_BODY);
        let call = self.backend.call(spec, params, |pg, p| pg.claim_events(p), |db, p| db.claim_events(p));
        self.judged(spec.kind, async move {
            let mut events = call.await?;
            self.encryption().open_events(&mut events);
            Ok(events)
        })
    }

    /// Counts the events of a sink that are not published.
    pub fn count_events(&self, params: EventSinkParams) -> StoreFuture<'_, EventCounts> {
        let spec = CallSpec::new(Direct, AdminReads, InDoubt, Ordinary, Full, NO_BODY);
        let columns = columns! { service: params.service.to_string(), sink: params.sink.to_string() };
        let rows = self.rows(spec, &shared::COUNT_EVENTS, columns);
        Box::pin(async move { Ok(rows.await?.pop().unwrap_or_default()) })
    }

    /// Applies a decision to those of the keys that are still as they were seen, at most
    /// [`DECISIONS_MAX`](super::admin::DECISIONS_MAX). The verdicts come in the order of the targets.
    pub fn apply_operator_decision(&self, mut params: ApplyOperatorDecisionParams) -> StoreFuture<'_, DecisionResults> {
        let spec = CallSpec::new(Direct, Upkeep, InDoubt, Ordinary, Full, NO_BODY);
        self.encryption().seal_decision(&mut params);
        self.call(spec, params, |pg, p| pg.apply_operator_decision(p), |db, p| db.apply_operator_decision(p))
    }

    /// Lists audit entries, the latest first: of one key or of all, with a number below `before`.
    pub fn list_audit_entries(&self, params: ListAuditEntriesParams) -> StoreFuture<'_, Vec<AuditEntry>> {
        let spec = CallSpec::new(Direct, AdminReads, InDoubt, Ordinary, Bounded, NO_BODY);
        let columns = columns! {
            service: params.service.to_string(),
            id: params.id.map(|id| id.as_bytes().to_vec()),
            before: params.before,
            limit: i64::from(params.limit),
        };
        self.rows(spec, &shared::LIST_AUDIT_ENTRIES, columns)
    }

    /// Lists the instances of the service, the one that has renewed its lease last before the others. Those whose lease
    /// ran out within the last day may be among them.
    pub fn list_instances(&self, params: ListInstancesParams) -> StoreFuture<'_, Vec<InstanceEntry>> {
        let spec = CallSpec::new(Direct, AdminReads, InDoubt, Ordinary, Bounded, NO_BODY);
        let columns = columns! { service: params.service.to_string(), limit: i64::from(params.limit) };
        self.rows(spec, &shared::LIST_INSTANCES, columns)
    }
}

/// Defines calls that encrypt and decrypt nothing: the parameters, the answer, and the properties of [`CallSpec::new`].
macro_rules! calls {
    ($($(#[$about:meta])* $call:ident($params:ty) -> $answer:ty: $($property:expr),+;)+) => {
        impl Store { $(
            $(#[$about])*
            pub fn $call(&self, params: $params) -> StoreFuture<'_, $answer> {
                let spec = CallSpec::new($($property),+, NO_BODY);
                self.call(spec, params, |pg, p| pg.$call(p), |db, p| db.$call(p))
            }
        )+ }
    };
}

calls! {
    // First attempts and the attempts after them.

    /// Moves the deadline of an attempt in flight to the time limit from now by the store's clock, unless it is later
    /// already. Returns whether the attempt is in flight; nothing has changed otherwise.
    extend_deadline(ExtendDeadlineParams) -> bool: Always(Op::ExtendDeadline), Settle, AnyFailure, Urgent, Full;

    /// Counts a holder's live keys, those past their TTL that are not deleted yet included, up to the limit. Ends
    /// within 250 ms: a limit of keys is not worth more of a request's time. A failure leaves the breaker closed: the
    /// request goes on without the count.
    count_live_keys(CountLiveKeysParams) -> u32: Unjudged(Op::CountLiveKeys), Begin, Never, Ordinary, Short;

    /// Lets a key count for the holder, with all other live keys of its caller that count for the same holder as it.
    /// Leaves out keys that another transaction has locked. Returns the number of keys that count for another holder
    /// than before. Ends within 250 ms. A failure leaves the breaker closed.
    move_live_keys(MoveLiveKeysParams) -> u32: Unjudged(Op::MoveLiveKeys), Begin, Never, Ordinary, Short;

    // Asynchronous deliveries.

    /// Starts attempts for deliveries that are due, under the tokens of the request, and marks keys dead that are past
    /// their limits. Several callers get different keys; the attempts of a caller that dies are swept like any other.
    // Attempts whose answer was lost are released as orphans, and are due again.
    pick_up(PickUpRequest) -> PickUpResult: Begins(Op::PickUp), Begin, Never, Ordinary, Full;

    /// Marks an accepted key dead, with the reason in the audit log, if the attempt is still its newest and the key is
    /// in one of the states. Returns whether it did.
    give_up(GiveUpParams) -> bool: Always(Op::GiveUp), Upkeep, InDoubt, Ordinary, Full;

    // Leases, and the keys of instances that have died.

    /// Renews an instance's lease from now; the first call takes it. Returns the store's time, the purge count, and the
    /// time until which the ends of TTLs are held.
    renew_lease(LeaseRenewal) -> RenewResult: Always(Op::RenewLease), Lease, AnyFailure, Urgent, Full;

    /// Gives the instance's lease back, so that nobody has to wait until it expires.
    release_lease(InstanceId) -> (): Always(Op::ReleaseLease), Lease, AnyFailure, Urgent, Full;

    /// Returns the keys in flight under this instance's name that were reserved at least `older_than` ago, or before
    /// the clock was set back. The caller compares them with its running attempts.
    list_in_flight(ListInFlightParams) -> Vec<ReservedAttempt>:
        Always(Op::ListInFlight), Sweep, InDoubt, Ordinary, Full;

    /// Deletes completed and retryable records past their TTL, oldest first; of those that are remembered to refuse
    /// late retries, it drops the response only. It handles at least `limit` records where so many are past their TTL,
    /// and at most twice as many; of these, it leaves those that the scope leaves out.
    reap(ReapParams) -> ReapedRows: Always(Op::Reap), Upkeep, InDoubt, Ordinary, Full;

    // Inquiries of the service about keys.

    /// Claims unknown keys of this service that are quiet and due for an inquiry: counts the inquiry, sets the time
    /// of the next one, and returns the keys. Several callers get different keys; a caller that dies costs one
    /// inquiry.
    // An inquiry counted twice would be an inquiry that nobody sends.
    claim_inquiries(ClaimInquiriesParams) -> Vec<Inquiry>: Always(Op::ClaimInquiries), Upkeep, Never, Ordinary, Full;

    /// Returns a page of the keys of these routes that were settled within `since` and have not lapsed, in the order of
    /// their ids. Changes nothing.
    list_settled_keys(ListSettledKeysParams) -> SettledKeyPage:
        Always(Op::ListSettledKeys), AdminReads, InDoubt, Ordinary, Bounded;

    // The routes and the salt of a service.

    /// Stores how a service's routes find their keys, if the stored generation is still the one that was read. Returns
    /// the generation of what is stored then, which no other text has ever had; `None` if it stored nothing.
    remember_route_identities(RememberRouteIdentitiesParams) -> Option<i64>:
        Always(Op::RememberRouteIdentities), Upkeep, AnyFailure, Ordinary, Full;

    /// Returns the service's salt in its stored form, if it has one.
    // With the heartbeat, behind nothing else.
    find_salt(Arc<str>) -> Option<Vec<u8>>: Direct, Lease, InDoubt, Urgent, Full;

    /// Stores the service's salt, if the stored one is still the one that was read. Returns whether it did.
    // A second try after one that may have been executed stores nothing: the caller then finds the salt of the
    // first.
    replace_salt(ReplaceSaltParams) -> bool: Direct, Upkeep, InDoubt, Ordinary, Full;

    // The counts of each week, for the owner of an API. Nothing else rests on them.

    /// Adds a batch of an instance's counts to the week that has begun. The same batch again adds nothing.
    add_weekly_counts(AddWeeklyCountsParams) -> (): Direct, Upkeep, Never, Ordinary, Full;

    /// Deletes the counts of weeks that ended a year ago. Of the callers of a route in this week and the last one, it
    /// keeps those with the highest counts, and adds the counts of all others together.
    tend_weekly_counts(TendWeeklyCountsParams) -> (): Direct, Upkeep, Never, Ordinary, Full;

    /// Takes a caller's name from the counts of all weeks.
    forget_caller(ForgetCallerParams) -> (): Direct, Upkeep, AnyFailure, Ordinary, Full;

    // Events about settled keys.

    /// Stores which routes of a service tell which sinks about their keys, in place of or beside what was stored. From
    /// then on a change of their keys has its events, or is not made.
    store_event_routes(StoreEventRoutesParams) -> (): Direct, Upkeep, AnyFailure, Ordinary, Full;

    /// Deletes events that were published, and postpones or makes dead those that were not.
    end_events(EndEventsParams) -> (): Direct, Upkeep, AnyFailure, Ordinary, Full;

    /// Lets the dead events of a sink be tried again, the oldest 10,000. Returns their number.
    requeue_events(EventSinkParams) -> u64: Direct, Upkeep, AnyFailure, Ordinary, Full;

    /// Deletes the dead events of a sink, the oldest 10,000, each with an entry in the audit log. Returns their number.
    discard_events(DiscardEventsParams) -> u64: Direct, Upkeep, AnyFailure, Ordinary, Full;

    // Reports of services about their own attempts. A response that a service gives outside of its answer is a
    // settlement.

    /// Returns the key of a reservation, if the reservation is its newest attempt's.
    find_reservation(FindReservationParams) -> Option<ReservedKey>: Direct, Settle, InDoubt, Ordinary, Full;

    /// Records a service's report about its own attempt, as long as no later attempt has begun and the key is not
    /// completed.
    ///
    /// "Not executed" is applied at once where nobody waits for the attempt any more. While the attempt is in flight
    /// the report is stored, and applies once the attempt has ended without a response, see
    /// [`Self::apply_deferred_reports`]: a proxy still waits for the answer to that attempt, perhaps on another
    /// instance, and two attempts of a key never run at the same time.
    // A report is idempotent.
    record_report(ServiceReport) -> ReportResult: Direct, Settle, InDoubt, Ordinary, Full;

    /// Makes keys retryable whose service reported "not executed" while the attempt ran, and whose attempt has ended
    /// since without a response; at most `limit` keys. Returns their ids.
    apply_deferred_reports(u32) -> Vec<RecordId>: Direct, Upkeep, InDoubt, Ordinary, Full;

    // The operators' side.

    /// Lists a service's keys that fit the filter, without bodies and fields: from one scan of at most
    /// [`SCAN_ROWS_MAX`](super::admin::SCAN_ROWS_MAX) rows. A page may be empty and not the last.
    list_keys(ListKeysParams) -> KeyPage: Direct, AdminReads, InDoubt, Ordinary, Bounded;

    /// Counts the service's keys by route and state.
    count_keys(Arc<str>) -> KeyCounts: Direct, AdminReads, InDoubt, Ordinary, Bounded;

    /// Counts the living instances of the service that may still cache a response purged by that count.
    count_instances_behind(CountInstancesBehindParams) -> u64: Direct, Upkeep, InDoubt, Ordinary, Full;
}

fn taken(result: &mut ReserveResult) -> Option<&mut Record> {
    match result {
        ReserveResult::Taken(record) => Some(record),
        ReserveResult::Fresh(_) => None,
    }
}
