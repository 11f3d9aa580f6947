//! Reservations and settlements.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::join_all;
use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest, ReserveResult};
use oncegate_domain::fingerprint::{BodyRule, Fingerprint, FingerprintRules, Recipe};
use oncegate_domain::response::StoredResponse;
use oncegate_domain::state::KeyState;
use oncegate_store::{ExpectedRecord, SettleResult};

use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, completion, new_reserve_request, new_reserve_request_in, next_attempt_request,
    response, settlement, unwrap_lease,
};

pub async fn a_key_without_a_record_is_reserved_for_its_first_attempt(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    let lease = world.reserve(&reserve_request).await;
    assert_eq!(
        (lease.reserve_request.id, lease.reserve_request.token, lease.attempt),
        (reserve_request.id, reserve_request.token, 1)
    );
}

pub async fn one_of_a_hundred_simultaneous_reservations_gets_the_key(world: StoreFixture) {
    let reserve_requests: Vec<ReserveRequest> = (0..100).map(|_| new_reserve_request("k")).collect();
    let reservations =
        join_all(reserve_requests.iter().map(|reserve_request| world.store().reserve(reserve_request.clone()))).await;
    let (mut winners, mut seen) = (Vec::new(), Vec::new());
    for reservation in reservations {
        match reservation.unwrap() {
            ReserveResult::Fresh(lease) => winners.push(lease.reserve_request.token),
            ReserveResult::Taken(record) => seen.push(record.token),
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(seen, [winners[0]; 99]);
}

pub async fn many_keys_reserved_twice_at_once_have_one_attempt_each(world: StoreFixture) {
    let reserve_requests: Vec<ReserveRequest> =
        (0..400).map(|i| new_reserve_request(&format!("k-{}", i % 200))).collect();
    let reservations =
        join_all(reserve_requests.iter().map(|reserve_request| world.store().reserve(reserve_request.clone()))).await;
    let fresh = reservations.iter().filter(|r| matches!(r, Ok(ReserveResult::Fresh(_)))).count();
    let taken = reservations.iter().filter(|r| matches!(r, Ok(ReserveResult::Taken(_)))).count();
    assert_eq!((fresh, taken), (200, 200));
}

pub async fn a_second_reservation_finds_the_first_record(world: StoreFixture) {
    let first = new_reserve_request("k");
    world.reserve(&first).await;
    let second = ReserveRequest {
        route: "other".into(),
        recipe: Recipe::new(
            FingerprintRules { body: BodyRule::Raw, query: false, ..FingerprintRules::default() },
            None,
        ),
        fingerprint: Fingerprint::from_stored(&[1; 32]).unwrap(),
        ..next_attempt_request(&first)
    };
    let record = world.reserve_taken(&second).await;
    assert_eq!((record.id, record.token, record.attempt), (first.id, first.token, 1));
    assert_eq!((record.recipe, record.fingerprint), (first.recipe, first.fingerprint));
    assert!(matches!(record.state, KeyState::InFlight));
    assert!(!record.past_ttl);
    assert!(record.running_for < Duration::from_secs(10));
    assert!((20_000..=30_000).contains(&record.deadline_in_ms), "{}", record.deadline_in_ms);
}

pub async fn equal_keys_of_other_services_scopes_or_spaces_are_distinct(world: StoreFixture) {
    for reserve_request in [
        new_reserve_request_in("shop", [7; 32], "POST /pay", "k"),
        new_reserve_request_in("shop2", [7; 32], "POST /pay", "k"),
        new_reserve_request_in("shop", [8; 32], "POST /pay", "k"),
        new_reserve_request_in("shop", [7; 32], "POST /pa", "k"),
        new_reserve_request_in("shop", [7; 32], "POST /pay", "K"),
    ] {
        world.reserve(&reserve_request).await;
        assert_eq!(world.find(&reserve_request).await.token, reserve_request.token);
    }
}

pub async fn a_key_that_was_never_used_has_no_record(world: StoreFixture) {
    assert!(world.store().find(new_reserve_request("k").id).await.unwrap().is_none());
}

pub async fn a_completed_key_keeps_its_response_byte_for_byte(world: StoreFixture) {
    for body in [&b""[..], b"paid", b"\0\0", b"\xff\xfe\xed\xa0\x80", b"{\"a\":\"\\u0000\\ud800\"}", &[0x5c; 300]] {
        let reserve_request = new_reserve_request(&format!("k-{}", body.len()));
        world.reserve(&reserve_request).await;
        let before = SystemTime::now();
        let SettleResult::Done { expires_at } = world.store().settle(completion(&reserve_request, body)).await.unwrap()
        else {
            panic!("somebody else has settled it")
        };
        let KeyState::Completed(completed) = world.reserve_taken(&next_attempt_request(&reserve_request)).await.state
        else {
            panic!("it is not completed")
        };
        assert_eq!(completed.response, response(body));
        assert_eq!(completed.expires_at, expires_at);
        let lives = completed.expires_at.unwrap().duration_since(before).unwrap();
        assert!(lives.abs_diff(DAY) < Duration::from_secs(10), "{lives:?}");
    }
}

pub async fn a_large_body_survives(world: StoreFixture) {
    let body: Vec<u8> = (0..3 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let reserve_requests: Vec<ReserveRequest> = (0..8).map(|i| new_reserve_request(&format!("k-{i}"))).collect();
    join_all(reserve_requests.iter().map(|reserve_request| world.reserve(reserve_request))).await;
    join_all(reserve_requests.iter().map(|reserve_request| world.settle(completion(reserve_request, &body)))).await;
    for record in join_all(reserve_requests.iter().map(|reserve_request| world.find(reserve_request))).await {
        let KeyState::Completed(completed) = record.state else { panic!("it is not completed") };
        assert!(completed.response.body.as_deref().unwrap() == body);
    }
}

pub async fn a_response_too_large_to_keep_is_completed_without_its_body(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    let response = Arc::new(StoredResponse { body: None, ..(*response(b"")).clone() });
    world
        .settle(settlement(
            &reserve_request,
            AttemptOutcome::Completed { response: response.clone(), ttl: DAY, remember: None },
        ))
        .await;
    let KeyState::Completed(completed) = world.find(&reserve_request).await.state else {
        panic!("it is not completed")
    };
    assert_eq!(completed.response, response);
}

pub async fn a_completed_record_does_not_change(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    world.settle(completion(&reserve_request, b"first")).await;
    for outcome in [
        AttemptOutcome::Completed { response: response(b"second"), ttl: DAY, remember: None },
        AttemptOutcome::Retryable { ttl: Duration::ZERO },
        UNKNOWN,
    ] {
        let record = world.settle_late(settlement(&reserve_request, outcome)).await.unwrap();
        let KeyState::Completed(completed) = record.state else { panic!("it is not completed") };
        assert_eq!(completed.response, response(b"first"));
    }
}

pub async fn the_same_settlement_again_changes_nothing(world: StoreFixture) {
    for (key, outcome) in [
        ("completed", AttemptOutcome::Completed { response: response(b""), ttl: DAY, remember: None }),
        ("retryable", AttemptOutcome::Retryable { ttl: Duration::from_millis(1) }),
        ("unknown", UNKNOWN),
    ] {
        let reserve_request = new_reserve_request(key);
        world.reserve(&reserve_request).await;
        world.settle(settlement(&reserve_request, outcome.clone())).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        // A longer TTL would show.
        let longer = match outcome {
            AttemptOutcome::Retryable { .. } => AttemptOutcome::Retryable { ttl: DAY },
            same => same,
        };
        let record = world.settle_late(settlement(&reserve_request, longer)).await.unwrap();
        assert_eq!((record.state.name(), record.token), (key, reserve_request.token));
        assert_eq!(record.past_ttl, key == "retryable");
    }
}

pub async fn two_settlements_at_once_leave_one_of_them(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    let settlements = (0..20).map(|i| world.store().settle(completion(&reserve_request, &[i])));
    let settled = join_all(settlements).await;
    let mut bodies = Vec::new();
    for settled in &settled {
        match settled.as_ref().unwrap() {
            SettleResult::Done { .. } => {}
            SettleResult::Fenced(record) => match &record.as_ref().unwrap().state {
                KeyState::Completed(completed) => bodies.push(completed.response.body.clone()),
                state => panic!("{state:?}"),
            },
        }
    }
    assert_eq!(bodies.len(), 19);
    bodies.dedup();
    assert_eq!(bodies.len(), 1);
}

pub async fn a_superseded_attempt_settles_nothing(world: StoreFixture) {
    let first = new_reserve_request("k");
    world.reserve(&first).await;
    world.settle(settlement(&first, AttemptOutcome::Retryable { ttl: DAY })).await;
    let second = next_attempt_request(&first);
    let seen = ExpectedRecord::from(&world.find(&first).await);
    unwrap_lease(world.take_over(second.clone(), seen).await);
    for outcome in [
        AttemptOutcome::Completed { response: response(b"late"), ttl: DAY, remember: None },
        AttemptOutcome::Retryable { ttl: DAY },
        UNKNOWN,
    ] {
        let record = world.settle_late(settlement(&first, outcome)).await.unwrap();
        assert_eq!((record.state.name(), record.token, record.attempt), ("in_flight", second.token, 2));
    }
    world.settle(completion(&second, b"")).await;
}

pub async fn a_late_completion_is_taken_from_unknown_and_from_retryable(world: StoreFixture) {
    for (key, belief) in [("unknown", UNKNOWN), ("retryable", AttemptOutcome::Retryable { ttl: DAY })] {
        let reserve_request = new_reserve_request(key);
        world.reserve(&reserve_request).await;
        world.settle(settlement(&reserve_request, belief)).await;
        assert_eq!(world.find(&reserve_request).await.state.name(), key);
        world.settle(completion(&reserve_request, b"late")).await;
        assert_eq!(world.find(&reserve_request).await.state.name(), "completed");
    }
}

pub async fn a_late_unknown_settlement_overwrites_no_decision(mut world: StoreFixture) {
    let reserve_requests = ["released", "dead"].map(new_reserve_request);
    for reserve_request in &reserve_requests {
        world.reserve(reserve_request).await;
        world.settle(settlement(reserve_request, UNKNOWN)).await;
    }
    world.settle(settlement(&reserve_requests[0], AttemptOutcome::Retryable { ttl: DAY })).await;
    world.execute_sql("update keys set state = 'dead' where state = 'unknown'").await.unwrap();
    for (reserve_request, settled_record) in reserve_requests.iter().zip(["retryable", "dead"]) {
        let record = world.settle_late(settlement(reserve_request, UNKNOWN)).await.unwrap();
        assert_eq!((record.state.name(), record.token), (settled_record, reserve_request.token));
    }
    // An attempt that is known not to have executed frees a dead key that was not accepted for delivery.
    world.settle(settlement(&reserve_requests[1], AttemptOutcome::Retryable { ttl: DAY })).await;
    assert_eq!(world.find(&reserve_requests[1]).await.state.name(), "retryable");
}

pub async fn a_thousand_attempts_at_once_all_end(world: StoreFixture) {
    let attempt = async |i: usize| {
        let reserve_request = new_reserve_request(&format!("k-{i}"));
        world.reserve(&reserve_request).await;
        world.settle(completion(&reserve_request, &[0; 100])).await;
        let KeyState::Completed(completed) = world.find(&reserve_request).await.state else {
            panic!("it is not completed")
        };
        assert_eq!(completed.response.body, Some(Bytes::from_static(&[0; 100])));
    };
    join_all((0..1000).map(attempt)).await;
}

pub async fn acknowledged_writes_survive_reopening(mut world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    world.settle(completion(&reserve_request, b"paid")).await;
    world.reopen().await;
    assert_eq!(world.find(&reserve_request).await.state.name(), "completed");
}
