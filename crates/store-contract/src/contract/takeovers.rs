//! Attempts after the first.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest, ReserveResult};
use oncegate_domain::delivery::EnqueueResult;
use oncegate_domain::fingerprint::{BodyRule, Fingerprint, FingerprintRules, Recipe};
use oncegate_domain::part_bits::PartBits;
use oncegate_domain::state::StateKind;
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_store::admin::{IdRange, KeyFilter};
use oncegate_store::{ExpectedRecord, ListKeysParams, TakeOverParams};

use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, any_time, completion, new_enqueue_request, new_reserve_request, next_attempt_request,
    response, settlement, token, unwrap_lease, unwrap_taken,
};

pub async fn one_of_many_simultaneous_takeovers_gets_the_key(world: StoreFixture) {
    let first = new_reserve_request("k");
    world.reserve(&first).await;
    world.settle(settlement(&first, UNKNOWN)).await;
    let seen = ExpectedRecord::from(&world.find(&first).await);
    let reserve_requests: Vec<ReserveRequest> = (0..50).map(|_| next_attempt_request(&first)).collect();
    let reservations = join_all(reserve_requests.iter().map(|reserve_request| {
        world.store().take_over(TakeOverParams { request: reserve_request.clone(), from: seen })
    }))
    .await;
    let (mut winners, mut found) = (Vec::new(), Vec::new());
    for reservation in reservations {
        match reservation.unwrap() {
            ReserveResult::Fresh(lease) => winners.push((lease.reserve_request.token, lease.attempt)),
            ReserveResult::Taken(record) => found.push((record.token, record.attempt)),
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(found, [winners[0]; 49]);
}

pub async fn the_next_attempt_increments_the_number_and_has_its_own_retention(world: StoreFixture) {
    let first = new_reserve_request("k");
    world.reserve(&first).await;
    for (number, belief) in [(2, UNKNOWN), (3, AttemptOutcome::Retryable { ttl: DAY })] {
        let last = world.find(&first).await;
        world.settle(settlement(&ReserveRequest { token: last.token, ..first.clone() }, belief)).await;
        let next = ReserveRequest {
            recipe: Recipe::new(
                FingerprintRules { body: BodyRule::None, query: true, ..FingerprintRules::default() },
                None,
            ),
            fingerprint: Fingerprint::from_stored(&[number; 32]).unwrap(),
            time_limit: Duration::from_secs(3600),
            ..next_attempt_request(&first)
        };
        let seen = ExpectedRecord::from(&world.find(&first).await);
        let lease = unwrap_lease(world.take_over(next.clone(), seen).await);
        assert_eq!((lease.reserve_request.token, lease.attempt), (next.token, number.into()));
        let record = world.find(&first).await;
        assert_eq!((record.token, record.attempt, record.state.name()), (next.token, number.into(), "in_flight"));
        assert_eq!((record.recipe, record.fingerprint), (next.recipe, next.fingerprint));
        assert!(record.deadline_in_ms > 3_000_000);
        assert!(!record.past_ttl);
    }
}

pub async fn the_parts_are_those_of_the_request_whose_fingerprint_the_record_has(mut world: StoreFixture) {
    let with = |request: &ReserveRequest, number: u8| ReserveRequest {
        fingerprint: Fingerprint::from_stored(&[number; 32]).unwrap(),
        parts: PartBits::from_stored(&[1, number, 0, number]),
        ..next_attempt_request(request)
    };
    async fn found(world: &StoreFixture, request: &ReserveRequest) -> Option<PartBits> {
        world.store().find_parts(&request.id, &request.fingerprint).await.unwrap()
    }
    let first = with(&new_reserve_request("k"), 1);
    assert_eq!(found(&world, &first).await, None);
    world.reserve(&first).await;
    let other = with(&first, 2);
    world.reserve_taken(&other).await;
    assert_eq!((found(&world, &first).await, found(&world, &other).await), (first.parts.clone(), None));
    world.settle(settlement(&first, UNKNOWN)).await;
    assert_eq!(found(&world, &first).await, first.parts);
    // The next attempt is the same request, perhaps by another recipe.
    let second = with(&first, 3);
    let lease = unwrap_lease(world.take_over(second.clone(), ExpectedRecord::from(&world.find(&first).await)).await);
    assert_eq!((found(&world, &first).await, found(&world, &second).await), (None, second.parts.clone()));
    // A row that was lost is written anew with them.
    world.execute_sql("delete from keys").await.unwrap();
    world.settle(lease.complete(response(b"old"), Duration::ZERO)).await;
    assert_eq!(found(&world, &second).await, second.parts);
    // A new life of the key, of a request without parts.
    let third = ReserveRequest { parts: None, ..with(&first, 4) };
    unwrap_lease(world.take_over(third.clone(), ExpectedRecord::from(&world.find(&first).await)).await);
    assert_eq!((found(&world, &second).await, found(&world, &third).await), (None, None));
}

pub async fn a_key_past_its_ttl_starts_over(world: StoreFixture) {
    for (key, outcome) in [
        ("completed", AttemptOutcome::Completed { response: response(b"old"), ttl: Duration::ZERO, remember: None }),
        ("retryable", AttemptOutcome::Retryable { ttl: Duration::from_millis(1) }),
    ] {
        let first = new_reserve_request(key);
        world.reserve(&first).await;
        world.settle(settlement(&first, UNKNOWN)).await;
        let second = next_attempt_request(&first);
        unwrap_lease(world.take_over(second.clone(), ExpectedRecord::from(&world.find(&first).await)).await);
        world.settle(settlement(&second, outcome)).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        let record = world.find(&first).await;
        assert!(record.past_ttl);
        assert_eq!((record.state.name(), record.attempt), (key, 2));
        let third = next_attempt_request(&first);
        let lease = unwrap_lease(world.take_over(third.clone(), ExpectedRecord::from(&record)).await);
        assert_eq!(lease.attempt, 1);
        let record = world.find(&first).await;
        assert_eq!((record.state.name(), record.attempt, record.past_ttl), ("in_flight", 1, false));
        // The key's old attempts can no longer settle it.
        world.settle_late(completion(&second, b"late")).await.unwrap();
    }
}

pub async fn an_attempt_in_flight_and_a_response_within_its_ttl_cannot_be_taken_over(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    for state in [StateKind::InFlight, StateKind::Completed] {
        for past_ttl_at in [None, Some(any_time())] {
            // Even if the caller expects another state.
            let seen = ExpectedRecord { token: reserve_request.token, state, past_ttl_at, is_redelivered: false };
            let record = unwrap_taken(world.take_over(next_attempt_request(&reserve_request), seen).await);
            assert_eq!((record.state.kind(), record.token), (state, reserve_request.token));
        }
        if state == StateKind::InFlight {
            world.settle(completion(&reserve_request, b"")).await;
        }
    }
}

pub async fn a_changed_record_is_not_taken_over(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    world.settle(settlement(&reserve_request, AttemptOutcome::Retryable { ttl: DAY })).await;
    let now = ExpectedRecord::from(&world.find(&reserve_request).await);
    for seen in [
        ExpectedRecord { token: token(), ..now },
        ExpectedRecord { state: StateKind::Unknown, ..now },
        ExpectedRecord { state: StateKind::Completed, ..now },
        ExpectedRecord { past_ttl_at: Some(any_time()), ..now },
    ] {
        let record = unwrap_taken(world.take_over(next_attempt_request(&reserve_request), seen).await);
        assert_eq!((record.state.name(), record.attempt), ("retryable", 1));
    }
    unwrap_lease(world.take_over(next_attempt_request(&reserve_request), now).await);
}

pub async fn a_record_settled_after_it_was_seen_past_its_ttl_is_not_taken_over(world: StoreFixture) {
    let ttl = Duration::ZERO;
    let completed = || AttemptOutcome::Completed { response: response(b""), ttl, remember: None };
    let first = new_reserve_request("k");
    let lease = world.reserve(&first).await;
    world.settle(settlement(&first, completed())).await;
    let seen = ExpectedRecord::from(&world.find(&first).await);
    assert!(seen.past_ttl_at.is_some());
    // Reaped meanwhile, and stored anew by a settlement whose answer was lost.
    assert_eq!(world.reap(1).await.deleted, 1);
    tokio::time::sleep(Duration::from_millis(2)).await;
    world.settle(lease.complete(response(b"late"), ttl)).await;
    let next = next_attempt_request(&first);
    let record = unwrap_taken(world.take_over(next.clone(), seen).await);
    assert!(record.past_ttl && record.token == first.token, "as before, and nobody has judged it");
    let accepted = world.enqueue(new_enqueue_request(&next), Some(seen)).await;
    assert!(matches!(accepted, EnqueueResult::Taken(_)));
    unwrap_lease(world.take_over(next, ExpectedRecord::from(&record)).await);
}

pub async fn a_redelivery_takes_over_a_remembered_key_past_its_ttl_and_no_other(world: StoreFixture) {
    for (state, ttl) in [("completed", Duration::ZERO), ("expired", Duration::ZERO), ("completed", DAY)] {
        let is_late = ttl.is_zero();
        for is_accepted in [false, true] {
            let first = new_reserve_request(&format!("{state}-{is_late}-{is_accepted}"));
            world.reserve(&first).await;
            let outcome = AttemptOutcome::Completed { response: response(b"done"), ttl, remember: Some(DAY) };
            world.settle(settlement(&first, outcome)).await;
            if state == "expired" {
                world.reap(10).await;
            }
            let record = world.find(&first).await;
            assert_eq!((record.state.name(), record.late), (state, is_late));
            let read_at = record.reading.unwrap().at;
            let redelivery =
                ExpectedRecord { past_ttl_at: Some(read_at), is_redelivered: true, ..ExpectedRecord::from(&record) };
            assert!(!is_late || redelivery == ExpectedRecord::redelivered(&record));
            let next = ReserveRequest { token: token(), ..first.clone() };
            let takes = async |next: ReserveRequest| match is_accepted {
                true => {
                    matches!(world.enqueue(new_enqueue_request(&next), Some(redelivery)).await, EnqueueResult::Accepted)
                }
                false => {
                    matches!(world.take_over(next, redelivery).await, ReserveResult::Fresh(lease) if lease.attempt == 1)
                }
            };
            assert_eq!(takes(next.clone()).await, is_late, "{state}");
            assert!(!takes(ReserveRequest { token: token(), ..next }).await, "it is running now, or within its TTL");
        }
    }
}

pub async fn a_takeover_of_a_deleted_record_reserves_the_key(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    let seen = ExpectedRecord {
        token: token(),
        state: StateKind::Retryable,
        past_ttl_at: Some(any_time()),
        is_redelivered: false,
    };
    let lease = unwrap_lease(world.take_over(reserve_request.clone(), seen).await);
    assert_eq!((lease.reserve_request.token, lease.attempt), (reserve_request.token, 1));
}

pub async fn the_attempts_before_the_newest_are_kept_up_to_twenty(world: StoreFixture) {
    let mut last = new_reserve_request("k");
    world.reserve(&last).await;
    let (id, service) = (last.id, last.service.clone());
    let list = async || {
        let filter = KeyFilter { ids: IdRange::from_hex_prefix(&id.to_string()).unwrap(), ..KeyFilter::default() };
        let page = world
            .store()
            .list_keys(ListKeysParams { service: service.clone(), filter, after: None, limit: 2 })
            .await
            .unwrap();
        page.entries.into_iter().next().unwrap()
    };
    assert_eq!((list().await.cause, list().await.earlier), (None, vec![]));
    for attempt in 1..=22 {
        let unknown = attempt % 2 == 1;
        let outcome = if unknown { UNKNOWN } else { AttemptOutcome::Retryable { ttl: DAY } };
        world.settle(settlement(&last, outcome)).await;
        assert_eq!(list().await.cause, unknown.then_some(UnknownCause::Broken));
        let next = next_attempt_request(&last);
        unwrap_lease(world.take_over(next.clone(), ExpectedRecord::from(&world.find(&last).await)).await);
        last = next;
    }
    let entry = list().await;
    let earlier: Vec<_> = entry.earlier.iter().map(|attempt| (attempt.number, attempt.state, attempt.cause)).collect();
    let expected: Vec<_> = (3..=22)
        .map(|number| match number % 2 {
            1 => (number, StateKind::Unknown, Some(UnknownCause::Broken)),
            _ => (number, StateKind::Retryable, None),
        })
        .collect();
    assert_eq!((entry.attempts, entry.cause, earlier), (23, None, expected));
    assert!(entry.earlier.iter().all(|attempt| attempt.settled_at >= Some(attempt.reserved_at)));
}
