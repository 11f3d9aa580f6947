//! Rows that decode, and rows that do not decode.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest};
use oncegate_domain::response::StoredResponse;
use oncegate_store::{SettleResult, StoreError};

use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, completion, new_reserve_request, next_attempt_request, own_instance, renewal, response,
    settlement,
};

pub async fn an_undecodable_row_is_an_error_and_no_free_key(mut world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    world.settle(completion(&reserve_request, b"")).await;
    let bytes = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    for change in [
        format!("fields = {}", world.bytes(&bytes("a: b\nc: d\r\n\r\n"))),
        format!("fields = {}", world.bytes(&bytes("nothing"))),
        "recipe = '999'".to_owned(),
    ] {
        world.execute_sql(&format!("update keys set {change}")).await.unwrap();
        for error in [
            world.store().find(reserve_request.id).await.map(drop).unwrap_err(),
            world.store().reserve(next_attempt_request(&reserve_request)).await.map(drop).unwrap_err(),
            world.store().settle(completion(&next_attempt_request(&reserve_request), b"")).await.map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::Corrupt(_)), "{change}: {error:?}");
        }
    }
}

pub async fn no_impossible_row_can_be_written(mut world: StoreFixture) {
    let [completed, retryable, unknown] = ["completed", "retryable", "unknown"].map(new_reserve_request);
    let in_flight = new_reserve_request("in-flight");
    for (reserve_request, outcome) in [
        (&completed, AttemptOutcome::Completed { response: response(b""), ttl: DAY, remember: None }),
        (&retryable, AttemptOutcome::Retryable { ttl: DAY }),
        (&unknown, UNKNOWN),
    ] {
        world.reserve(reserve_request).await;
        world.settle(settlement(reserve_request, outcome)).await;
    }
    let short = world.bytes("00");
    let mut impossible: Vec<(String, &str)> = Vec::new();
    for (change, states) in [
        ("status = null", "completed"),
        ("fields = null", "completed"),
        ("expires_at = null", "completed retryable"),
        ("status = 199", "completed"),
        ("status = 600", "completed"),
        ("status = 200", "retryable unknown"),
        ("settled_at = null", "completed retryable unknown"),
        ("state = 'in_flight'", "completed retryable unknown"),
        ("state = 'completed'", "retryable unknown"),
        ("state = 'unknown'", "completed retryable"),
        ("state = 'done'", "completed retryable unknown"),
        ("attempt = 0", "completed"),
        ("due_at = settled_at", "completed retryable"),
        ("accepted_at = settled_at", "retryable"),
        ("state = 'queued'", "unknown"),
        ("state = 'queued', accepted_at = settled_at", "unknown"),
    ] {
        impossible.extend(states.split(' ').map(|state| (change.to_owned(), state)));
    }
    for column in ["id", "token", "scope", "fingerprint"] {
        if column == "id" && world.settings.distribute {
            // A cluster moves no row to another node.
            continue;
        }
        impossible.push((format!("{column} = {short}"), "completed"));
    }
    for column in ["fields", "body"] {
        impossible.push((format!("{column} = {short}"), "unknown"));
    }
    for (change, state) in impossible {
        let done = world.execute_sql(&format!("update keys set {change} where state = '{state}'")).await;
        let why = done.expect_err(&change).to_lowercase();
        assert!(why.contains("check constraint"), "{change}: {why}");
    }
    world.reserve(&in_flight).await;
}

pub async fn a_row_that_violates_a_constraint_fails_alone(world: StoreFixture) {
    let bad = 13;
    let reserve_requests: Vec<ReserveRequest> = (0..40).map(|i| new_reserve_request(&format!("k-{i}"))).collect();
    join_all(reserve_requests.iter().map(|reserve_request| world.reserve(reserve_request))).await;
    let settlements = reserve_requests.iter().enumerate().map(|(i, reserve_request)| {
        // Not a final status; the gate lets none through.
        let status = if i == bad { StatusCode::from_u16(600).unwrap() } else { StatusCode::OK };
        let response = Arc::new(StoredResponse { status, ..(*response(b"")).clone() });
        world
            .store()
            .settle(settlement(reserve_request, AttemptOutcome::Completed { response, ttl: DAY, remember: None }))
    });
    for (i, settled) in join_all(settlements).await.into_iter().enumerate() {
        match settled {
            Ok(SettleResult::Done { .. }) => assert_ne!(i, bad),
            Err(StoreError::Unavailable(_)) => assert_eq!(i, bad),
            other => panic!("{i}: {other:?}"),
        }
    }
    assert_eq!(world.find(&reserve_requests[bad]).await.state.name(), "in_flight");
}

pub async fn a_ttl_of_any_length_is_kept(world: StoreFixture) {
    let reserve_request = ReserveRequest { time_limit: Duration::MAX, ..new_reserve_request("k") };
    world.reserve(&reserve_request).await;
    let outcome = AttemptOutcome::Completed { response: response(b""), ttl: Duration::MAX, remember: None };
    world.settle(settlement(&reserve_request, outcome)).await;
    assert!(!world.find(&reserve_request).await.past_ttl);
    world.store().renew_lease(renewal(own_instance(), Duration::MAX)).await.unwrap();
}
