//! Asynchronous deliveries: how keys are accepted, and how deliveries end.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest, Settlement};
use oncegate_domain::delivery::{DeliveryJob, DeliveryPolicy, EnqueueResult, PickUpRequest, PickUpResult};
use oncegate_domain::ids::{InstanceId, RecordId};
use oncegate_domain::inquiry::{InquiryFinding, InquirySchedule, InquiryVerdict};
use oncegate_domain::record::Record;
use oncegate_domain::recovery::RecoveryPoint;
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::retry::RetryPolicy;
use oncegate_domain::service_report::{ReportKind, ReportResult, ReservationHandle, ServiceReport};
use oncegate_domain::state::StateKind;
use oncegate_store::admin::{COUNTED_MAX, DecisionResult, OperatorAction, Target};
use oncegate_store::{ApplyOperatorDecisionParams, ClaimInquiriesParams, ExpectedRecord, GiveUpParams, SettleResult};

use super::decisions::{at_risk, entry, target};
use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, any_time, completion, new_enqueue_request, new_pick_up_request, new_reserve_request,
    next_attempt_request, response, settlement, token, unwrap_taken,
};

pub(super) const RETRY: RetryPolicy = RetryPolicy {
    max_attempts: 3,
    base: Duration::from_millis(1),
    cap: Duration::from_millis(1),
    give_up_after: Duration::from_secs(3_600),
};

pub(super) fn terms() -> DeliveryPolicy {
    DeliveryPolicy {
        repeat_within: None,
        route: "pay".into(),
        on_unknown: OnUnknown::Hold,
        quiet_after: Duration::ZERO,
        time_limit: Duration::from_secs(30),
        retry: RETRY,
        slots: usize::MAX / 2,
    }
}

pub(super) fn pick(terms: DeliveryPolicy, count: usize) -> PickUpRequest {
    new_pick_up_request((0..count).map(|_| token()).collect(), terms)
}

impl StoreFixture {
    pub(super) async fn accept(&self, reserve_request: &ReserveRequest) {
        assert!(matches!(self.enqueue(new_enqueue_request(reserve_request), None).await, EnqueueResult::Accepted));
    }

    pub(super) async fn pick_up(&self, pick_up_request: PickUpRequest) -> PickUpResult {
        self.store().pick_up(pick_up_request).await.unwrap()
    }

    pub(super) async fn pick_one(&self, terms: DeliveryPolicy) -> DeliveryJob {
        let mut picked = self.pick_up(pick(terms, 1)).await;
        picked.jobs.pop().expect("it is due")
    }

    pub(super) async fn current_state(&self, reserve_request: &ReserveRequest) -> &'static str {
        self.find(reserve_request).await.state.name()
    }

    pub(super) async fn settle_any(&self, settlement: Settlement) -> SettleResult {
        self.store().settle(settlement).await.unwrap()
    }

    /// Records a service's report about a delivery.
    pub(super) async fn report(&self, job: &DeliveryJob, what: ReportKind) -> ReportResult {
        let of = ReservationHandle { id: job.lease.reserve_request.id, token: job.lease.reserve_request.token };
        self.store().record_report(ServiceReport { service: "shop".into(), handle: of, kind: what }).await.unwrap()
    }

    /// Applies a decision to one key in its current state.
    pub(super) async fn decide(
        &self,
        reserve_request: &ReserveRequest,
        change: OperatorAction,
    ) -> (DecisionResult, bool) {
        let id = reserve_request.id;
        let case = Target { risk: None, remember: None, quiet_after: Duration::ZERO, ..target(&entry(self, id).await) };
        let decided = self
            .store()
            .apply_operator_decision(ApplyOperatorDecisionParams {
                service: "shop".into(),
                decision: at_risk(change),
                targets: vec![case],
                as_of: None,
            })
            .await
            .unwrap();
        (decided.verdicts[0], decided.queued == [id])
    }
}

pub(super) fn ids(picked: &PickUpResult) -> Vec<RecordId> {
    picked.jobs.iter().map(|job| job.lease.reserve_request.id).collect()
}

/// The settlement of a delivery's attempt.
pub(super) fn settlement_of(
    job: &DeliveryJob,
    outcome: AttemptOutcome,
    next_attempt_request: Option<Duration>,
) -> Settlement {
    let reserve_request = ReserveRequest::clone(&job.lease.reserve_request);
    settlement(&reserve_request, outcome).with_retry_in(next_attempt_request)
}

pub async fn one_of_many_simultaneous_enqueues_or_reservations_gets_the_key(world: StoreFixture) {
    let first = new_reserve_request("k");
    let accepts = (0..20).map(|_| async {
        matches!(world.enqueue(new_enqueue_request(&next_attempt_request(&first)), None).await, EnqueueResult::Accepted)
    });
    let reserves = (0..20).map(|_| async {
        let reservation = world.store().reserve(next_attempt_request(&first)).await.unwrap();
        matches!(reservation, oncegate_domain::attempt::ReserveResult::Fresh(_))
    });
    let (accepted, reserved) = tokio::join!(join_all(accepts), join_all(reserves));
    assert_eq!(accepted.into_iter().chain(reserved).filter(|has_it| *has_it).count(), 1);
}

pub async fn a_second_enqueue_finds_the_first_record_and_changes_nothing(world: StoreFixture) {
    let first = new_reserve_request("k");
    world.accept(&first).await;
    let EnqueueResult::Taken(record) = world.enqueue(new_enqueue_request(&next_attempt_request(&first)), None).await
    else {
        panic!("accepted twice")
    };
    assert_eq!((record.token, record.state.name()), (first.token, "queued"));
    assert_eq!(unwrap_taken(world.store().reserve(next_attempt_request(&first)).await.unwrap()).state.name(), "queued");
    let seen = ExpectedRecord::from(&record);
    assert_eq!(unwrap_taken(world.take_over(next_attempt_request(&first), seen).await).token, first.token);
    assert!(matches!(
        world.enqueue(new_enqueue_request(&next_attempt_request(&first)), Some(seen)).await,
        EnqueueResult::Taken(_)
    ));
}

pub async fn an_enqueue_replaces_a_released_record(world: StoreFixture) {
    let first = new_reserve_request("k");
    world.reserve(&first).await;
    world.settle(settlement(&first, AttemptOutcome::Retryable { ttl: DAY })).await;
    let record: Record = world.find(&first).await;
    let stale = ExpectedRecord { token: token(), ..ExpectedRecord::from(&record) };
    assert!(matches!(
        world.enqueue(new_enqueue_request(&next_attempt_request(&first)), Some(stale)).await,
        EnqueueResult::Taken(_)
    ));
    let next = next_attempt_request(&first);
    let accepted = world.enqueue(new_enqueue_request(&next), Some(ExpectedRecord::from(&record))).await;
    assert!(matches!(accepted, EnqueueResult::Accepted));
    let job = world.pick_one(terms()).await;
    assert_eq!(
        (job.lease.attempt, job.lease.delivery.unwrap().number),
        (2, 1),
        "tries are counted from the acceptance"
    );
    // An enqueue also replaces a deleted record.
    let gone = new_reserve_request("gone");
    let seen =
        ExpectedRecord { token: gone.token, state: StateKind::Retryable, past_ttl_at: None, is_redelivered: false };
    assert!(matches!(world.enqueue(new_enqueue_request(&gone), Some(seen)).await, EnqueueResult::Accepted));
}

pub async fn a_delivered_key_past_its_ttl_is_accepted_again(world: StoreFixture) {
    let first = new_reserve_request("k");
    world.accept(&first).await;
    let job = world.pick_one(terms()).await;
    let ttl = Duration::from_millis(1);
    world
        .settle(settlement_of(&job, AttemptOutcome::Completed { response: response(b""), ttl, remember: None }, None))
        .await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let record = world.find(&first).await;
    assert!(record.past_ttl);
    let accepted =
        world.enqueue(new_enqueue_request(&next_attempt_request(&first)), Some(ExpectedRecord::from(&record))).await;
    assert!(matches!(accepted, EnqueueResult::Accepted));
    assert_eq!(world.pick_one(terms()).await.lease.attempt, 1);
}

pub async fn a_released_delivery_is_queued_again_with_its_due_time(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.accept(&reserve_request).await;
    let job = world.pick_one(terms()).await;
    let later = Duration::from_millis(400);
    let begun = tokio::time::Instant::now();
    let released = settlement_of(&job, AttemptOutcome::Retryable { ttl: DAY }, Some(later));
    assert!(matches!(world.settle_any(released.clone()).await, SettleResult::Done { expires_at: None }));
    assert_eq!(world.current_state(&reserve_request).await, "queued");
    assert!(
        matches!(world.settle_any(released).await, SettleResult::Fenced(Some(_))),
        "the same again changes nothing"
    );
    let next = loop {
        match world.pick_up(pick(terms(), 1)).await.jobs.pop() {
            Some(job) => break job,
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    // Stores count in whole milliseconds.
    assert!(begun.elapsed() + Duration::from_millis(2) >= later);
    assert_eq!((next.lease.attempt, next.lease.delivery.unwrap().number), (2, 2));
    assert_ne!(next.lease.reserve_request.token, job.lease.reserve_request.token);
    // An orphaned attempt is queued again, too, and at once.
    let orphan = Settlement::for_orphan(reserve_request.id, next.lease.reserve_request.token, DAY);
    assert!(matches!(world.settle_any(orphan).await, SettleResult::Done { expires_at: None }));
    assert_eq!(world.pick_one(terms()).await.lease.attempt, 3);
}

pub async fn a_late_completion_counts_while_a_delivery_waits_and_not_once_its_next_attempt_runs(world: StoreFixture) {
    for (key, is_picked_up) in [("waits", false), ("runs", true)] {
        let reserve_request = new_reserve_request(key);
        world.accept(&reserve_request).await;
        let job = world.pick_one(terms()).await;
        world.settle(settlement_of(&job, AttemptOutcome::Retryable { ttl: DAY }, None)).await;
        if is_picked_up {
            world.pick_one(terms()).await;
        }
        let late = world.settle_any(completion(&job.lease.reserve_request, b"late")).await;
        assert_eq!(matches!(late, SettleResult::Done { .. }), !is_picked_up, "{key}");
        assert_eq!(ids(&world.pick_up(pick(terms(), 5)).await), [], "{key}");
    }
}

pub async fn a_requeued_delivery_has_all_its_attempts_again(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.accept(&reserve_request).await;
    let once = DeliveryPolicy { retry: RetryPolicy { max_attempts: 1, ..RETRY }, ..terms() };
    let job = world.pick_one(once.clone()).await;
    world.settle(settlement_of(&job, AttemptOutcome::Retryable { ttl: DAY }, None)).await;
    assert_eq!(world.pick_up(pick(once.clone(), 1)).await.given_up.len(), 1);
    assert_eq!(world.decide(&reserve_request, OperatorAction::Requeue).await, (DecisionResult::Done, true));
    let job = world.pick_one(once.clone()).await;
    assert_eq!((job.lease.attempt, job.lease.delivery.unwrap().number), (2, 1));
    // An outcome that was unknown when the delivery was given up is unknown again.
    world.settle(settlement_of(&job, UNKNOWN, None)).await;
    assert!(
        world
            .store()
            .give_up(GiveUpParams {
                id: reserve_request.id,
                token: job.lease.reserve_request.token,
                states: &[StateKind::Unknown],
                note: "because".to_owned()
            })
            .await
            .unwrap()
    );
    assert_eq!(world.decide(&reserve_request, OperatorAction::Requeue).await, (DecisionResult::Done, false));
    assert_eq!(world.current_state(&reserve_request).await, "unknown");
    // A request that was not executed is delivered again.
    assert_eq!(world.decide(&reserve_request, OperatorAction::NotExecuted).await, (DecisionResult::Done, true));
    assert_eq!(world.pick_one(once).await.lease.attempt, 3);
}

pub async fn a_stored_request_is_deleted_when_its_key_ends(mut world: StoreFixture) {
    let reserve_requests = ["told", "completed", "purged", "reaped", "stays"].map(new_reserve_request);
    let [told, completed, purged, reaped, _] = &reserve_requests;
    join_all(reserve_requests.iter().map(|reserve_request| world.accept(reserve_request))).await;
    let jobs = world.pick_up(pick(terms(), 5)).await.jobs;
    let job = |reserve_request: &ReserveRequest| {
        jobs.iter().find(|job| job.lease.reserve_request.id == reserve_request.id).unwrap()
    };
    world.settle(completion(&job(told).lease.reserve_request, b"")).await;
    let delivered = PickUpRequest {
        delivered: reserve_requests.iter().map(|reserve_request| reserve_request.id).collect(),
        ..pick(terms(), 0)
    };
    assert_eq!(ids(&world.pick_up(delivered).await), []);
    world.settle(settlement_of(job(completed), UNKNOWN, None)).await;
    assert_eq!(world.decide(completed, OperatorAction::Complete(response(b""))).await, (DecisionResult::Done, false));
    world.settle(settlement_of(job(purged), AttemptOutcome::Retryable { ttl: DAY }, None)).await;
    assert_eq!(world.decide(purged, OperatorAction::Purge).await, (DecisionResult::Done, false));
    let ttl = Duration::from_millis(1);
    world
        .settle(settlement_of(
            job(reaped),
            AttemptOutcome::Completed { response: response(b""), ttl, remember: None },
            None,
        ))
        .await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(world.reap(10).await.deleted, 1);
    assert_eq!(world.rows_of("outbox").await, 1);
}

pub async fn an_inquiry_deletes_a_stored_request_where_it_completes_the_key_and_nowhere_else(mut world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.accept(&reserve_request).await;
    let over = DeliveryPolicy { time_limit: Duration::ZERO, ..terms() };
    let completed = || InquiryVerdict::Completed { response: response(b"paid"), ttl: DAY, remember: None };
    for (verdict, state, requests) in
        [(InquiryVerdict::Retryable { ttl: DAY }, "queued", 1), (completed(), "completed", 0)]
    {
        let job = world.pick_one(over.clone()).await;
        world.settle(settlement_of(&job, UNKNOWN, None)).await;
        let schedule = InquirySchedule {
            route: "pay".into(),
            quiet_after: Duration::ZERO,
            pause_first: Duration::ZERO,
            pause_cap: Duration::ZERO,
        };
        let inquiry = world
            .store()
            .claim_inquiries(ClaimInquiriesParams {
                service: "shop".into(),
                schedules: vec![schedule],
                limit: 10,
                as_of: any_time(),
            })
            .await
            .unwrap()
            .remove(0);
        let finding = InquiryFinding {
            id: reserve_request.id,
            token: job.lease.reserve_request.token,
            inquiry: inquiry.number,
            verdict,
            note: "because".into(),
        };
        // What is found about another attempt changes nothing.
        let other = InquiryFinding { token: token(), verdict: completed(), ..finding.clone() };
        assert!(!world.store().apply_inquiry_finding(other).await.unwrap());
        assert_eq!(world.rows_of("outbox").await, 1);
        assert!(world.store().apply_inquiry_finding(finding).await.unwrap());
        assert_eq!((world.find(&reserve_request).await.state.name(), world.rows_of("outbox").await), (state, requests));
    }
}

pub async fn a_released_delivery_is_free_for_the_next_request(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.accept(&reserve_request).await;
    let job = world.pick_one(terms()).await;
    let point = ReportKind::Reached(RecoveryPoint::parse("charge_created").unwrap());
    assert_eq!(world.report(&job, point).await, ReportResult::Taken);
    world.settle(completion(&job.lease.reserve_request, b"")).await;
    assert_eq!(world.decide(&reserve_request, OperatorAction::Release).await, (DecisionResult::Done, false));
    let record = world.find(&reserve_request).await;
    assert_eq!((record.state.name(), record.accepted_at), ("retryable", None));
    assert_eq!(ids(&world.pick_up(pick(terms(), 5)).await), []);
    let next = crate::store_fixture::unwrap_lease(
        world.take_over(next_attempt_request(&reserve_request), ExpectedRecord::from(&record)).await,
    );
    assert_eq!((next.attempt, next.recovery_point), (2, None), "all of it is executed again");
}

pub async fn the_sweeper_treats_a_delivery_as_any_attempt(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.accept(&reserve_request).await;
    let gone = PickUpRequest { instance: InstanceId::from_stored(77), ..pick(terms(), 1) };
    assert_eq!(ids(&world.pick_up(gone).await), [reserve_request.id]);
    let swept = world.sweep(10).await;
    assert_eq!((swept.len(), swept[0].id, swept[0].attempt), (1, reserve_request.id, 1));
    assert_eq!(world.current_state(&reserve_request).await, "unknown");
}

pub async fn a_late_unknown_or_released_settlement_overwrites_no_decision_on_a_delivery(world: StoreFixture) {
    let [queued, dead] = ["queued", "dead"].map(new_reserve_request);
    for reserve_request in [&queued, &dead] {
        world.accept(reserve_request).await;
        let job = world.pick_one(terms()).await;
        if reserve_request.id == dead.id {
            assert!(
                world
                    .store()
                    .give_up(GiveUpParams {
                        id: reserve_request.id,
                        token: job.lease.reserve_request.token,
                        states: &[StateKind::InFlight],
                        note: "because".to_owned()
                    })
                    .await
                    .unwrap()
            );
        } else {
            world.settle(settlement_of(&job, UNKNOWN, None)).await;
            assert_eq!(world.decide(reserve_request, OperatorAction::NotExecuted).await, (DecisionResult::Done, true));
        }
        let current_state = world.current_state(reserve_request).await;
        for outcome in [UNKNOWN, AttemptOutcome::Retryable { ttl: DAY }] {
            let SettleResult::Fenced(Some(record)) = world.settle_any(settlement_of(&job, outcome, None)).await else {
                panic!("{current_state} is undone")
            };
            assert_eq!(record.state.name(), current_state);
        }
        world.settle(completion(&job.lease.reserve_request, b"late")).await;
        assert_eq!(world.current_state(reserve_request).await, "completed");
    }
}

pub async fn a_delivery_with_a_lost_row_is_stored_again_as_accepted(mut world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.accept(&reserve_request).await;
    let accepted_at = world.find(&reserve_request).await.accepted_at;
    let job = world.pick_one(terms()).await;
    world.execute_sql("delete from keys").await.unwrap();
    world.settle(job.lease.complete(response(b"paid"), DAY)).await;
    let record = world.find(&reserve_request).await;
    assert_eq!((record.state.name(), record.accepted_at), ("completed", accepted_at));
}

pub async fn a_delivery_reported_as_not_executed_is_audited_as_queued(mut world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.accept(&reserve_request).await;
    let job = world.pick_one(terms()).await;
    world.settle(settlement_of(&job, UNKNOWN, None)).await;
    assert_eq!(world.report(&job, ReportKind::NotExecuted(DAY)).await, ReportResult::Taken);
    assert_eq!(world.current_state(&reserve_request).await, "queued");
    let line = format!("shop service not_executed {} unknown queued", reserve_request.id);
    assert_eq!(world.audit_without_notes().await, [line]);
}

pub async fn a_backlog_hides_no_delivery_in_another_state(mut world: StoreFixture) {
    let (waits, open) = (new_reserve_request("waits"), new_reserve_request("open"));
    world.reserve(&open).await;
    world.settle(settlement(&open, UNKNOWN)).await;
    world.accept(&waits).await;
    let columns = "token, state, attempt, instance, created_at, reserved_at, deadline, settled_at, accepted_at, due_at, \
                   fingerprint, recipe, service, route, scope, space, key";
    let backlog = format!(
        "with recursive n (i) as (select 1 union all select i + 1 from n where i < {COUNTED_MAX}) \
         insert into keys (id, {columns}) select {}, {columns} from keys cross join n where state = 'queued'",
        world.new_id()
    );
    if world.settings.distribute {
        eprintln!("skipped: a cluster plans no such insert of many rows");
        return;
    }
    world.execute_sql(&backlog).await.unwrap();
    let tally = world.store().count_keys("shop".into()).await.unwrap();
    let count = |state| tally.counts.iter().find(|count| count.state == state).map(|count| (count.keys, count.exact));
    assert_eq!(count(StateKind::Unknown), Some((1, true)));
    assert_eq!(count(StateKind::Queued), Some((COUNTED_MAX.into(), false)));
}
