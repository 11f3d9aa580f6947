//! The calls of the store: the table.
//!
//! A row is a method. It says what the call promises, states its properties in the order of [`CallSpec::new`], and
//! names its two bodies: the method of [`PgTry`](super::postgres::PgTry), and that of
//! [`SqliteTransaction`](super::sqlite::SqliteTransaction); or the one statement of both databases. Calls whose
//! parameters or answer have a response encrypt or decrypt it here.
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
    // First attempts and the attempts after them.

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

    /// Moves the deadline of an attempt in flight to the time limit from now by the store's clock, unless it is later
    /// already. Returns whether the attempt is in flight; nothing has changed otherwise.
    pub fn extend_deadline(&self, params: ExtendDeadlineParams) -> StoreFuture<'_, bool> {
        let spec = CallSpec::new(Always(Op::ExtendDeadline), Settle, AnyFailure, Urgent, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.extend_deadline(p), |db, p| db.extend_deadline(p))
    }

    /// Counts a holder's live keys, those past their TTL that are not deleted yet included, up to the limit. Ends
    /// within 250 ms: a limit of keys is not worth more of a request's time. A failure leaves the breaker closed: the
    /// request goes on without the count.
    pub fn count_live_keys(&self, params: CountLiveKeysParams) -> StoreFuture<'_, u32> {
        let spec = CallSpec::new(Unjudged(Op::CountLiveKeys), Begin, Never, Ordinary, Short, NO_BODY);
        self.call(spec, params, |pg, p| pg.count_live_keys(p), |db, p| db.count_live_keys(p))
    }

    /// Lets a key count for the holder, with all other live keys of its caller that count for the same holder as it.
    /// Leaves out keys that another transaction has locked. Returns the number of keys that count for another holder
    /// than before. Ends within 250 ms. A failure leaves the breaker closed.
    pub fn move_live_keys(&self, params: MoveLiveKeysParams) -> StoreFuture<'_, u32> {
        let spec = CallSpec::new(Unjudged(Op::MoveLiveKeys), Begin, Never, Ordinary, Short, NO_BODY);
        self.call(spec, params, |pg, p| pg.move_live_keys(p), |db, p| db.move_live_keys(p))
    }

    // Asynchronous deliveries.

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

    /// Starts attempts for deliveries that are due, under the tokens of the request, and marks keys dead that are past
    /// their limits. Several callers get different keys; the attempts of a caller that dies are swept like any other.
    pub fn pick_up(&self, request: PickUpRequest) -> StoreFuture<'_, PickUpResult> {
        // Attempts whose answer was lost are released as orphans, and are due again.
        let spec = CallSpec::new(Begins(Op::PickUp), Begin, Never, Ordinary, Full, NO_BODY);
        self.call(spec, request, |pg, p| pg.pick_up(p), |db, p| db.pick_up(p))
    }

    /// Marks an accepted key dead, with the reason in the audit log, if the attempt is still its newest and the key is
    /// in one of the states. Returns whether it did.
    pub fn give_up(&self, params: GiveUpParams) -> StoreFuture<'_, bool> {
        let spec = CallSpec::new(Always(Op::GiveUp), Upkeep, InDoubt, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.give_up(p), |db, p| db.give_up(p))
    }

    // Leases, and the keys of instances that have died.

    /// Renews an instance's lease from now; the first call takes it. Returns the store's time, the purge count, and the
    /// time until which the ends of TTLs are held.
    pub fn renew_lease(&self, renewal: LeaseRenewal) -> StoreFuture<'_, RenewResult> {
        let spec = CallSpec::new(Always(Op::RenewLease), Lease, AnyFailure, Urgent, Full, NO_BODY);
        self.call(spec, renewal, |pg, p| pg.renew_lease(p), |db, p| db.renew_lease(p))
    }

    /// Gives the instance's lease back, so that nobody has to wait until it expires.
    pub fn release_lease(&self, instance: InstanceId) -> StoreFuture<'_, ()> {
        let spec = CallSpec::new(Always(Op::ReleaseLease), Lease, AnyFailure, Urgent, Full, NO_BODY);
        self.call(spec, instance, |pg, p| pg.release_lease(p), |db, p| db.release_lease(p))
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

    /// Returns the keys in flight under this instance's name that were reserved at least `older_than` ago, or before
    /// the clock was set back. The caller compares them with its running attempts.
    pub fn list_in_flight(&self, params: ListInFlightParams) -> StoreFuture<'_, Vec<ReservedAttempt>> {
        let spec = CallSpec::new(Always(Op::ListInFlight), Sweep, InDoubt, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.list_in_flight(p), |db, p| db.list_in_flight(p))
    }

    /// Deletes completed and retryable records past their TTL, oldest first; of those that are remembered to refuse
    /// late retries, it drops the response only. It handles at least `limit` records where so many are past their TTL,
    /// and at most twice as many; of these, it leaves those that the scope leaves out.
    pub fn reap(&self, params: ReapParams) -> StoreFuture<'_, ReapedRows> {
        let spec = CallSpec::new(Always(Op::Reap), Upkeep, InDoubt, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.reap(p), |db, p| db.reap(p))
    }

    /// Checks that the store answers and accepts writes.
    pub fn ping(&self) -> StoreFuture<'_, ()> {
        let spec = CallSpec::new(Always(Op::Ping), Lease, InDoubt, Ordinary, Full, NO_BODY);
        self.call(spec, (), |pg, _| pg.ping(), |db, _| db.ping())
    }

    // Inquiries of the service about keys.

    /// Claims unknown keys of this service that are quiet and due for an inquiry: counts the inquiry, sets the time
    /// of the next one, and returns the keys. Several callers get different keys; a caller that dies costs one
    /// inquiry.
    pub fn claim_inquiries(&self, params: ClaimInquiriesParams) -> StoreFuture<'_, Vec<Inquiry>> {
        // An inquiry counted twice would be an inquiry that nobody sends.
        let spec = CallSpec::new(Always(Op::ClaimInquiries), Upkeep, Never, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.claim_inquiries(p), |db, p| db.claim_inquiries(p))
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

    /// Returns a page of the keys of these routes that were settled within `since` and have not lapsed, in the order of
    /// their ids. Changes nothing.
    pub fn list_settled_keys(&self, params: ListSettledKeysParams) -> StoreFuture<'_, SettledKeyPage> {
        let spec = CallSpec::new(Always(Op::ListSettledKeys), AdminReads, InDoubt, Ordinary, Bounded, NO_BODY);
        self.call(spec, params, |pg, p| pg.list_settled_keys(p), |db, p| db.list_settled_keys(p))
    }

    // The routes and the salt of a service.

    /// Returns how the routes of each service find their keys, as it was stored last.
    pub fn list_route_identities(&self) -> StoreFuture<'_, Vec<RouteIdentities>> {
        let spec = CallSpec::new(Direct, Upkeep, InDoubt, Ordinary, Full, NO_BODY);
        self.rows(spec, &shared::LIST_ROUTE_IDENTITIES, Vec::new())
    }

    /// Stores how a service's routes find their keys, if the stored generation is still the one that was read. Returns
    /// the generation of what is stored then, which no other text has ever had; `None` if it stored nothing.
    pub fn remember_route_identities(&self, params: RememberRouteIdentitiesParams) -> StoreFuture<'_, Option<i64>> {
        let spec = CallSpec::new(Always(Op::RememberRouteIdentities), Upkeep, AnyFailure, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.remember_route_identities(p), |db, p| db.remember_route_identities(p))
    }

    /// Stores the retention rules of a service's routes, for services that complete their keys in the database itself.
    /// A store that only the proxy writes to ignores it.
    pub fn store_route_retention(&self, params: StoreRouteRetentionParams) -> StoreFuture<'_, ()> {
        let spec = CallSpec::new(Direct, Upkeep, AnyFailure, Ordinary, Full, NO_BODY);
        // Nobody but the proxy writes to SQLite's file.
        self.call(spec, params, |pg, p| pg.store_route_retention(p), |_, _| Ok(()))
    }

    /// Returns the service's salt in its stored form, if it has one.
    pub fn find_salt(&self, service: Arc<str>) -> StoreFuture<'_, Option<Vec<u8>>> {
        // With the heartbeat, behind nothing else.
        let spec = CallSpec::new(Direct, Lease, InDoubt, Urgent, Full, NO_BODY);
        self.call(spec, service, |pg, p| pg.find_salt(p), |db, p| db.find_salt(p))
    }

    /// Stores the service's salt, if the stored one is still the one that was read. Returns whether it did.
    pub fn replace_salt(&self, params: ReplaceSaltParams) -> StoreFuture<'_, bool> {
        // A second try after one that may have been executed stores nothing: the caller then finds the salt of the
        // first.
        let spec = CallSpec::new(Direct, Upkeep, InDoubt, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.replace_salt(p), |db, p| db.replace_salt(p))
    }

    // The counts of each week, for the owner of an API. Nothing else rests on them.

    /// Adds a batch of an instance's counts to the week that has begun. The same batch again adds nothing.
    pub fn add_weekly_counts(&self, params: AddWeeklyCountsParams) -> StoreFuture<'_, ()> {
        let spec = CallSpec::new(Direct, Upkeep, Never, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.add_weekly_counts(p), |db, p| db.add_weekly_counts(p))
    }

    /// Deletes the counts of weeks that ended a year ago. Of the callers of a route in this week and the last one, it
    /// keeps those with the highest counts, and adds the counts of all others together.
    pub fn tend_weekly_counts(&self, params: TendWeeklyCountsParams) -> StoreFuture<'_, ()> {
        let spec = CallSpec::new(Direct, Upkeep, Never, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.tend_weekly_counts(p), |db, p| db.tend_weekly_counts(p))
    }

    /// Takes a caller's name from the counts of all weeks.
    pub fn forget_caller(&self, params: ForgetCallerParams) -> StoreFuture<'_, ()> {
        let spec = CallSpec::new(Direct, Upkeep, AnyFailure, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.forget_caller(p), |db, p| db.forget_caller(p))
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

    // Events about settled keys.

    /// Stores which routes of a service tell which sinks about their keys, in place of or beside what was stored. From
    /// then on a change of their keys has its events, or is not made.
    pub fn store_event_routes(&self, params: StoreEventRoutesParams) -> StoreFuture<'_, ()> {
        let spec = CallSpec::new(Direct, Upkeep, AnyFailure, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.store_event_routes(p), |db, p| db.store_event_routes(p))
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

    /// Deletes events that were published, and postpones or makes dead those that were not.
    pub fn end_events(&self, params: EndEventsParams) -> StoreFuture<'_, ()> {
        let spec = CallSpec::new(Direct, Upkeep, AnyFailure, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.end_events(p), |db, p| db.end_events(p))
    }

    /// Counts the events of a sink that are not published.
    pub fn count_events(&self, params: EventSinkParams) -> StoreFuture<'_, EventCounts> {
        let spec = CallSpec::new(Direct, AdminReads, InDoubt, Ordinary, Full, NO_BODY);
        let columns = columns! { service: params.service.to_string(), sink: params.sink.to_string() };
        let rows = self.rows(spec, &shared::COUNT_EVENTS, columns);
        Box::pin(async move { Ok(rows.await?.pop().unwrap_or_default()) })
    }

    /// Lets the dead events of a sink be tried again, the oldest 10,000. Returns their number.
    pub fn requeue_events(&self, params: EventSinkParams) -> StoreFuture<'_, u64> {
        let spec = CallSpec::new(Direct, Upkeep, AnyFailure, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.requeue_events(p), |db, p| db.requeue_events(p))
    }

    /// Deletes the dead events of a sink, the oldest 10,000, each with an entry in the audit log. Returns their number.
    pub fn discard_events(&self, params: DiscardEventsParams) -> StoreFuture<'_, u64> {
        let spec = CallSpec::new(Direct, Upkeep, AnyFailure, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.discard_events(p), |db, p| db.discard_events(p))
    }

    // Reports of services about their own attempts. A response that a service gives outside of its answer is a
    // settlement.

    /// Returns the key of a reservation, if the reservation is its newest attempt's.
    pub fn find_reservation(&self, params: FindReservationParams) -> StoreFuture<'_, Option<ReservedKey>> {
        let spec = CallSpec::new(Direct, Settle, InDoubt, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.find_reservation(p), |db, p| db.find_reservation(p))
    }

    /// Records a service's report about its own attempt, as long as no later attempt has begun and the key is not
    /// completed.
    ///
    /// "Not executed" is applied at once where nobody waits for the attempt any more. While the attempt is in flight
    /// the report is stored, and applies once the attempt has ended without a response, see
    /// [`Self::apply_deferred_reports`]: a proxy still waits for the answer to that attempt, perhaps on another
    /// instance, and two attempts of a key never run at the same time.
    pub fn record_report(&self, report: ServiceReport) -> StoreFuture<'_, ReportResult> {
        // A report is idempotent.
        let spec = CallSpec::new(Direct, Settle, InDoubt, Ordinary, Full, NO_BODY);
        self.call(spec, report, |pg, p| pg.record_report(p), |db, p| db.record_report(p))
    }

    /// Makes keys retryable whose service reported "not executed" while the attempt ran, and whose attempt has ended
    /// since without a response; at most `limit` keys. Returns their ids.
    pub fn apply_deferred_reports(&self, limit: u32) -> StoreFuture<'_, Vec<RecordId>> {
        let spec = CallSpec::new(Direct, Upkeep, InDoubt, Ordinary, Full, NO_BODY);
        self.call(spec, limit, |pg, p| pg.apply_deferred_reports(p), |db, p| db.apply_deferred_reports(p))
    }

    // The operators' side.

    /// Lists a service's keys that fit the filter, without bodies and fields: from one scan of at most
    /// [`SCAN_ROWS_MAX`](super::admin::SCAN_ROWS_MAX) rows. A page may be empty and not the last.
    pub fn list_keys(&self, params: ListKeysParams) -> StoreFuture<'_, KeyPage> {
        let spec = CallSpec::new(Direct, AdminReads, InDoubt, Ordinary, Bounded, NO_BODY);
        self.call(spec, params, |pg, p| pg.list_keys(p), |db, p| db.list_keys(p))
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

    /// Counts the service's keys by route and state.
    pub fn count_keys(&self, service: Arc<str>) -> StoreFuture<'_, KeyCounts> {
        let spec = CallSpec::new(Direct, AdminReads, InDoubt, Ordinary, Bounded, NO_BODY);
        self.call(spec, service, |pg, p| pg.count_keys(p), |db, p| db.count_keys(p))
    }

    /// Counts the living instances of the service that may still cache a response purged by that count.
    pub fn count_instances_behind(&self, params: CountInstancesBehindParams) -> StoreFuture<'_, u64> {
        let spec = CallSpec::new(Direct, Upkeep, InDoubt, Ordinary, Full, NO_BODY);
        self.call(spec, params, |pg, p| pg.count_instances_behind(p), |db, p| db.count_instances_behind(p))
    }

    /// Lists the instances of the service, the one that has renewed its lease last before the others. Those whose lease
    /// ran out within the last day may be among them.
    pub fn list_instances(&self, params: ListInstancesParams) -> StoreFuture<'_, Vec<InstanceEntry>> {
        let spec = CallSpec::new(Direct, AdminReads, InDoubt, Ordinary, Bounded, NO_BODY);
        let columns = columns! { service: params.service.to_string(), limit: i64::from(params.limit) };
        self.rows(spec, &shared::LIST_INSTANCES, columns)
    }
}

fn taken(result: &mut ReserveResult) -> Option<&mut Record> {
    match result {
        ReserveResult::Taken(record) => Some(record),
        ReserveResult::Fresh(_) => None,
    }
}
