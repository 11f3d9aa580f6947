//! Requests that are kept with their keys, and repeated while their outcome is unknown.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use oncegate_domain::attempt::{AttemptLease, AttemptOutcome, ReserveRequest, ReserveResult};
use oncegate_domain::delivery::{DeliveryJob, DeliveryPolicy, PickUpRequest};
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::state::StateKind;
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_store::{EnqueueParams, ExpectedRecord};

use super::deliveries::{pick, settlement_of, terms};
use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, completion, new_enqueue_request, new_reserve_request, next_attempt_request, response,
    settlement, token, unwrap_lease,
};

const WINDOW: Option<Duration> = Some(DAY);

impl StoreFixture {
    async fn keep(&self, request: &ReserveRequest, from: Option<ExpectedRecord>) -> ReserveResult {
        self.store().reserve_kept(EnqueueParams { request: new_enqueue_request(request), from }).await.unwrap()
    }

    /// Picks up what may be repeated within the window.
    async fn repeat(&self, repeat_within: Option<Duration>) -> Option<DeliveryJob> {
        let policy = DeliveryPolicy { on_unknown: OnUnknown::Vendor, repeat_within, ..terms() };
        let now: SystemTime = self.an_hour_ago().await + Duration::from_secs(3_600);
        let request = PickUpRequest { as_of: now, ..pick(policy, 2) };
        let mut picked = self.pick_up(request).await;
        assert!(picked.jobs.len() <= 1 && picked.given_up.is_empty());
        picked.jobs.pop()
    }

    async fn keep_unknown(&self, key: &str) -> ReserveRequest {
        let request = new_reserve_request(key);
        let lease = unwrap_lease(self.keep(&request, None).await);
        assert_eq!((lease.attempt, lease.delivery), (1, None), "its client waits");
        self.settle(settlement(&request, UNKNOWN)).await;
        request
    }
}

pub async fn a_kept_request_is_repeated_while_its_outcome_is_unknown(world: StoreFixture) {
    let request = new_reserve_request("k");
    let lease: AttemptLease = unwrap_lease(world.keep(&request, None).await);
    let record = world.find(&request).await;
    assert_eq!((record.state.kind(), record.attempt, record.accepted_at), (StateKind::InFlight, 1, None));
    assert!(world.repeat(WINDOW).await.is_none(), "it is running");
    let other = ReserveRequest { token: token(), ..request.clone() };
    assert!(matches!(world.keep(&other, None).await, ReserveResult::Taken(_)));
    world.settle(lease.unknown(UnknownCause::Broken)).await;
    for attempt in 2..5 {
        let job = world.repeat(WINDOW).await.expect("it is due");
        assert_eq!((job.lease.attempt, job.lease.delivery.unwrap().accepted_at), (attempt, None));
        assert_eq!(job.sealed, new_enqueue_request(&request).sealed);
        assert!(world.repeat(WINDOW).await.is_none(), "one at a time");
        // Not executed now: the attempt before may have been.
        let outcome = if attempt == 3 { AttemptOutcome::Retryable { ttl: Duration::ZERO } } else { UNKNOWN };
        world.settle_any(settlement_of(&job, outcome, Some(Duration::ZERO))).await;
        assert_eq!(world.current_state(&request).await, "unknown", "after attempt {attempt}");
    }
    let job = world.repeat(WINDOW).await.expect("it is due");
    world.settle_any(completion(&job.lease.reserve_request, b"charged")).await;
    assert_eq!(world.current_state(&request).await, "completed");
    assert!(world.repeat(WINDOW).await.is_none());
}

pub async fn a_kept_request_is_not_repeated_after_its_window_or_without_one(world: StoreFixture) {
    for (key, window) in [("closed", Some(Duration::ZERO)), ("none", None)] {
        let request = world.keep_unknown(key).await;
        assert!(world.repeat(window).await.is_none(), "{key}");
        assert!(world.repeat(WINDOW).await.is_none(), "{key}: it has ended");
        assert_eq!(world.current_state(&request).await, "unknown", "for a person");
    }
}

pub async fn a_kept_request_of_a_crashed_instance_is_repeated(world: StoreFixture) {
    let request = new_reserve_request("k");
    world.keep(&request, None).await;
    assert_eq!(world.sweep(10).await.len(), 1);
    let job = world.repeat(WINDOW).await.expect("it is due");
    assert_eq!(job.lease.reserve_request.id, request.id);
    // Its instance crashes too.
    assert_eq!(world.sweep(10).await.len(), 1);
    assert_eq!(world.repeat(WINDOW).await.expect("it is due").lease.attempt, 3);
}

pub async fn a_kept_request_that_was_not_executed_is_free_for_the_next(world: StoreFixture) {
    let first = new_reserve_request("k");
    world.keep(&first, None).await;
    world.settle(settlement(&first, AttemptOutcome::Retryable { ttl: DAY })).await;
    let record = world.find(&first).await;
    assert_eq!(record.state.name(), "retryable");
    assert!(world.repeat(WINDOW).await.is_none());
    let next = next_attempt_request(&first);
    let lease = unwrap_lease(world.keep(&next, Some(ExpectedRecord::from(&record))).await);
    assert_eq!((lease.attempt, lease.taken_from.map(|from| from.token)), (2, Some(first.token)));
    world.settle(settlement(&next, UNKNOWN)).await;
    assert_eq!(world.repeat(WINDOW).await.expect("it is due").lease.attempt, 3);
}

pub async fn a_kept_request_goes_with_its_settlement(mut world: StoreFixture) {
    // Refused to its caller, and forgotten at once, alone and with others.
    let refused = || AttemptOutcome::Retryable { ttl: Duration::ZERO };
    let requests: Vec<_> = (0..20).map(|number| new_reserve_request(&format!("k-{number}"))).collect();
    join_all(requests.iter().map(|request| world.keep(request, None))).await;
    assert_eq!(world.rows_of("outbox").await, 20);
    world.settle(settlement(&requests[0], refused())).await;
    let others = requests[1..].iter().map(|request| world.settle(settlement(request, refused())));
    join_all(others).await;
    let ended = PickUpRequest { delivered: requests.iter().map(|request| request.id).collect(), ..pick(terms(), 0) };
    world.pick_up(ended).await;
    assert_eq!((world.rows_of("keys").await, world.rows_of("outbox").await), (0, 0));
    let completed = new_reserve_request("done");
    world.keep(&completed, None).await;
    world
        .settle(settlement(
            &completed,
            AttemptOutcome::Completed { response: response(b"done"), ttl: DAY, remember: None },
        ))
        .await;
    world.pick_up(PickUpRequest { delivered: vec![completed.id], ..pick(terms(), 0) }).await;
    assert_eq!(world.rows_of("outbox").await, 0);
}
