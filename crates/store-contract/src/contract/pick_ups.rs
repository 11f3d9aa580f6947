//! Which deliveries are picked up, and when.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest, Settlement};
use oncegate_domain::delivery::{DeliveryJob, DeliveryPolicy, PickUpRequest};
use oncegate_domain::ids::Token;
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::retry::RetryPolicy;
use oncegate_domain::state::StateKind;
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_store::{GiveUpParams, ReapParams};

use super::deliveries::{RETRY, ids, pick, settlement_of, terms};
use super::losses::{copy_keys, fall_back};
use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, all_records, completion, new_enqueue_request, new_reserve_request, own_instance,
    response, settlement, token,
};

pub async fn an_accepted_delivery_is_picked_up_as_an_attempt_with_its_request(world: StoreFixture) {
    let reserve_request =
        ReserveRequest { path: Some(Bytes::from_static(b"/pay?a=\0\xff")), ..new_reserve_request("k") };
    world.accept(&reserve_request).await;
    let record = world.find(&reserve_request).await;
    assert_eq!((record.state.name(), record.attempt, record.accepted_at.is_some()), ("queued", 0, true));
    assert!(!record.past_ttl && !record.late);
    let pick_up_request = pick(terms(), 5);
    let mut picked = world.pick_up(pick_up_request.clone()).await;
    assert_eq!((picked.jobs.len(), picked.given_up.len()), (1, 0));
    let DeliveryJob { lease, sealed } = picked.jobs.pop().unwrap();
    let got = &lease.reserve_request;
    assert_eq!(
        (got.id, &got.service, got.scope, &got.space),
        (reserve_request.id, &reserve_request.service, reserve_request.scope, &reserve_request.space)
    );
    assert_eq!(
        (&got.key, &got.path, &got.route, &got.recipe),
        (&reserve_request.key, &reserve_request.path, &reserve_request.route, &reserve_request.recipe)
    );
    assert_eq!((got.fingerprint, got.instance, lease.attempt), (reserve_request.fingerprint, own_instance(), 1));
    assert_eq!(got.parts, reserve_request.parts);
    assert!(pick_up_request.tokens.contains(&got.token));
    let delivery = lease.delivery.unwrap();
    assert_eq!((delivery.accepted_at, delivery.number), (record.accepted_at, 1));
    assert!(delivery.give_up_in <= RETRY.give_up_after && delivery.give_up_in > Duration::from_secs(3_000));
    assert_eq!(sealed, new_enqueue_request(&reserve_request).sealed);
    assert_eq!(world.current_state(&reserve_request).await, "in_flight");
    assert_eq!(ids(&world.pick_up(pick(terms(), 5)).await), []);
    // It is listed under its instance like any attempt.
    let in_flight = world.list_in_flight(Duration::ZERO).await;
    assert_eq!(
        in_flight.iter().map(|attempt| (attempt.id, attempt.token)).collect::<Vec<_>>(),
        [(reserve_request.id, got.token)]
    );
}

pub async fn concurrent_pick_ups_get_disjoint_deliveries(world: StoreFixture) {
    let reserve_requests: Vec<ReserveRequest> =
        (0..200).map(|number| new_reserve_request(&format!("k-{number}"))).collect();
    join_all(reserve_requests.iter().map(|reserve_request| world.accept(reserve_request))).await;
    let mut seen = HashSet::new();
    while seen.len() < reserve_requests.len() {
        let rounds = (0..8).map(|_| world.pick_up(pick(terms(), 10)));
        let picked = join_all(rounds).await;
        for id in picked.iter().flat_map(ids) {
            assert!(seen.insert(id), "{id} was picked up twice");
        }
        assert!(picked.iter().all(|picked| picked.jobs.len() <= 10));
    }
}

pub async fn an_unknown_delivery_is_picked_up_only_under_a_retry_policy_and_after_its_quiet_time(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.accept(&reserve_request).await;
    let brief = DeliveryPolicy { time_limit: Duration::from_millis(300), ..terms() };
    let job = world.pick_one(brief.clone()).await;
    world.settle(settlement_of(&job, UNKNOWN, Some(Duration::ZERO))).await;
    assert_eq!(ids(&world.pick_up(pick(brief.clone(), 1)).await), [], "it is held");
    let quiet_after = Duration::from_millis(300);
    let quiet = DeliveryPolicy { on_unknown: OnUnknown::RetryWhenQuiet, quiet_after, ..brief.clone() };
    assert_eq!(ids(&world.pick_up(pick(quiet.clone(), 1)).await), [], "it may be running");
    tokio::time::sleep(Duration::from_millis(650)).await;
    let job = world.pick_one(quiet).await;
    assert_eq!(job.lease.attempt, 2);
    // An attempt whose instance has died is treated the same.
    let settled = Settlement::for_lost_outcome(reserve_request.id, job.lease.reserve_request.token);
    world.settle(settled).await;
    assert_eq!(world.pick_one(DeliveryPolicy { on_unknown: OnUnknown::Retry, ..brief }).await.lease.attempt, 3);
    // A key that was not accepted is never delivered.
    let other = new_reserve_request("sync");
    world.reserve(&other).await;
    world.settle(settlement(&other, UNKNOWN)).await;
    let at_once = DeliveryPolicy { on_unknown: OnUnknown::Retry, ..terms() };
    assert_eq!(ids(&world.pick_up(pick(at_once, 5)).await), []);
}

pub async fn a_clock_ahead_of_the_caller_makes_no_delivery_due(world: StoreFixture) {
    let [queued, unknown, old] = ["queued", "unknown", "old"].map(new_reserve_request);
    let quiet = DeliveryPolicy { on_unknown: OnUnknown::RetryWhenQuiet, time_limit: Duration::ZERO, ..terms() };
    world.accept(&unknown).await;
    let job = world.pick_one(quiet.clone()).await;
    world.settle(settlement_of(&job, UNKNOWN, Some(Duration::ZERO))).await;
    world.accept(&queued).await;
    let behind = world.an_hour_ago().await;
    let picked = world.pick_up(PickUpRequest { as_of: behind, ..pick(quiet.clone(), 5) }).await;
    assert_eq!((ids(&picked), picked.given_up.len()), (vec![], 0));
    assert_eq!(ids(&world.pick_up(pick(quiet.clone(), 5)).await).len(), 2);
    // Nor too old, by a caller that sees it as due.
    world.accept(&old).await;
    let give_up_after = Duration::from_secs(30 * 60);
    let impatient = DeliveryPolicy { retry: RetryPolicy { give_up_after, ..RETRY }, ..quiet };
    let as_of = behind + Duration::from_secs(61 * 60);
    assert_eq!(ids(&world.pick_up(PickUpRequest { as_of, ..pick(impatient, 5) }).await), [old.id]);
}

pub async fn a_pick_up_marks_a_delivery_past_its_limits_dead_with_the_reason(mut world: StoreFixture) {
    let [often, long, output] = ["often", "long", "said"].map(new_reserve_request);
    world.accept(&often).await;
    for number in 1..=3 {
        let job = world.pick_one(terms()).await;
        assert_eq!(job.lease.delivery.unwrap().number, number);
        world.settle(settlement_of(&job, AttemptOutcome::Retryable { ttl: DAY }, None)).await;
    }
    let picked = world.pick_up(pick(terms(), 5)).await;
    assert_eq!((ids(&picked), picked.given_up.len(), picked.given_up[0].id), (vec![], 1, often.id));
    world.accept(&long).await;
    let impatient = RetryPolicy { give_up_after: Duration::from_millis(1), ..RETRY };
    tokio::time::sleep(Duration::from_millis(20)).await;
    let picked = world.pick_up(pick(DeliveryPolicy { retry: impatient, ..terms() }, 5)).await;
    assert_eq!((ids(&picked), picked.given_up.len()), (vec![], 1));
    world.accept(&output).await;
    let job = world.pick_one(terms()).await;
    let store = Arc::clone(world.store());
    let bury =
        |token: Token, states| store.give_up(GiveUpParams { id: output.id, token, states, note: "because".to_owned() });
    assert!(
        !bury(token(), &[StateKind::InFlight]).await.unwrap()
            && !bury(job.lease.reserve_request.token, &[StateKind::Queued]).await.unwrap()
    );
    assert!(bury(job.lease.reserve_request.token, &[StateKind::Queued, StateKind::InFlight]).await.unwrap());
    for reserve_request in [&often, &long, &output] {
        assert_eq!(world.current_state(reserve_request).await, "dead");
    }
    assert_eq!(ids(&world.pick_up(pick(terms(), 5)).await), []);
    assert_eq!(store.reap(ReapParams { limit: 100, scope: all_records() }).await.unwrap().deleted, 0);
    drop(store);
    let line = |reserve_request: &ReserveRequest, before: &str, note: &str| {
        format!("shop delivery give_up {} {before} dead {note}", reserve_request.id)
    };
    assert_eq!(
        world.audit().await,
        [
            line(&often, "queued", "tried 3 times"),
            line(&long, "queued", "not delivered in time, after 0 attempts"),
            line(&output, "in_flight", "because"),
        ]
    );
}

pub async fn an_attempt_that_was_not_sent_does_not_count(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.accept(&reserve_request).await;
    let once = DeliveryPolicy { retry: RetryPolicy { max_attempts: 1, ..RETRY }, ..terms() };
    let mut earlier = None;
    for attempt in 1..=3 {
        let job = world.pick_one(once.clone()).await;
        assert_eq!((job.lease.attempt, job.lease.delivery.unwrap().number), (attempt, 1));
        world.settle(settlement_of(&job, AttemptOutcome::Retryable { ttl: DAY }, Some(Duration::ZERO))).await;
        let unsent = (reserve_request.id, job.lease.reserve_request.token);
        world.pick_up(PickUpRequest { unsent: vec![unsent], ..pick(terms(), 0) }).await;
        earlier = Some(unsent);
    }
    // More reports of unsent attempts than attempts do not make the count negative.
    world.pick_up(PickUpRequest { unsent: earlier.into_iter().collect(), ..pick(terms(), 0) }).await;
    let job = world.pick_one(once.clone()).await;
    assert_eq!((job.lease.attempt, job.lease.delivery.unwrap().number), (4, 1));
    world.settle(settlement_of(&job, AttemptOutcome::Retryable { ttl: DAY }, Some(Duration::ZERO))).await;
    // A late report of an earlier attempt does not discount this one.
    world.pick_up(PickUpRequest { unsent: earlier.into_iter().collect(), ..pick(terms(), 0) }).await;
    assert_eq!(world.pick_up(pick(once, 1)).await.given_up.len(), 1, "this one counts");
}

pub async fn a_pick_up_skips_locked_deliveries(world: StoreFixture) {
    let reserve_requests = ["open", "queued", "free"].map(new_reserve_request);
    let retry = DeliveryPolicy { on_unknown: OnUnknown::Retry, ..terms() };
    world.accept(&reserve_requests[0]).await;
    let job = world.pick_one(retry.clone()).await;
    world.settle(settlement_of(&job, UNKNOWN, Some(Duration::ZERO))).await;
    world.accept(&reserve_requests[1]).await;
    world.accept(&reserve_requests[2]).await;
    let busy = vec![reserve_requests[0].id, reserve_requests[1].id];
    let picked = world.pick_up(PickUpRequest { busy, ..pick(retry.clone(), 1) }).await;
    assert_eq!(ids(&picked), [reserve_requests[2].id]);
    // Its settlement counts: its token is still the newest.
    world.settle(completion(&job.lease.reserve_request, b"")).await;
    assert_eq!(ids(&world.pick_up(pick(retry, 5)).await), [reserve_requests[1].id]);
}

pub async fn queued_deliveries_do_not_starve_older_unknown_ones(world: StoreFixture) {
    let open = new_reserve_request("open");
    world.accept(&open).await;
    let job = world.pick_one(terms()).await;
    world.settle(settlement_of(&job, UNKNOWN, Some(Duration::ZERO))).await;
    // Stored times have milliseconds, and keys of one millisecond are equally old.
    tokio::time::sleep(Duration::from_millis(2)).await;
    for number in 0..5 {
        world.accept(&new_reserve_request(&format!("queued-{number}"))).await;
    }
    let picked = world.pick_up(pick(DeliveryPolicy { on_unknown: OnUnknown::Retry, ..terms() }, 2)).await;
    assert_eq!(picked.jobs.len(), 2);
    assert!(ids(&picked).contains(&open.id));
}

pub async fn a_pick_up_starts_no_more_of_a_route_than_its_slots(world: StoreFixture) {
    let of_route = |route: &str, number: usize| ReserveRequest {
        route: route.into(),
        ..new_reserve_request(&format!("{route}-{number}"))
    };
    // One of the full route's keys is unknown, the others are queued.
    world.accept(&of_route("full", 0)).await;
    let policy =
        |route: &str, slots| DeliveryPolicy { route: route.into(), on_unknown: OnUnknown::Retry, slots, ..terms() };
    let job = world.pick_one(policy("full", 1)).await;
    world.settle(settlement_of(&job, UNKNOWN, Some(Duration::ZERO))).await;
    for number in 1..8 {
        world.accept(&of_route("full", number)).await;
        world.accept(&of_route("other", number)).await;
    }
    for (tokens, slots, started) in [(8, [1, 3], [1, 3]), (8, [2, 8], [2, 4]), (8, [8, 8], [5, 0])] {
        let mut request = pick(policy("full", slots[0]), tokens);
        request.policies.push(policy("other", slots[1]));
        // More rows are read where some may have to be skipped.
        request.busy = (0..4).map(|number| of_route("busy", number).id).collect();
        let picked = world.pick_up(request).await;
        let count = |route: &str| picked.jobs.iter().filter(|job| &*job.lease.reserve_request.route == route).count();
        assert_eq!([count("full"), count("other")], started);
    }
}

pub async fn an_outcome_with_a_lost_pick_up_is_not_delivered_again(mut world: StoreFixture) {
    for state in ["queued", "unknown"] {
        let first = new_reserve_request(state);
        world.accept(&first).await;
        let repeats = || DeliveryPolicy { on_unknown: OnUnknown::Retry, ..terms() };
        if state == "unknown" {
            let job = world.pick_one(terms()).await;
            world.settle(job.lease.unknown(UnknownCause::Broken)).await;
        }
        copy_keys(&mut world).await;
        let DeliveryJob { lease, .. } = world.pick_one(repeats()).await;
        fall_back(&mut world).await;
        assert_eq!(world.current_state(&first).await, state);
        let (token, attempt) = (lease.reserve_request.token, lease.attempt);
        world.settle(lease.complete(response(b"done"), DAY)).await;
        let record = world.find(&first).await;
        assert_eq!((record.token, record.attempt, record.state.name()), (token, attempt, "completed"));
        assert!(record.accepted_at.is_some());
        assert!(world.pick_up(pick(repeats(), 5)).await.jobs.is_empty());
    }
}

pub async fn an_unknown_delivery_with_a_lost_pick_up_keeps_its_pause(mut world: StoreFixture) {
    let repeats = || DeliveryPolicy { on_unknown: OnUnknown::Retry, ..terms() };
    for (key, pause, is_due) in [("paused", DAY, false), ("due", Duration::ZERO, true)] {
        world.accept(&new_reserve_request(key)).await;
        copy_keys(&mut world).await;
        let lease = world.pick_one(repeats()).await.lease;
        fall_back(&mut world).await;
        world.settle(lease.unknown(UnknownCause::Broken).with_retry_in(Some(pause))).await;
        assert_eq!(world.pick_up(pick(repeats(), 1)).await.jobs.len(), usize::from(is_due), "{key}");
    }
}
