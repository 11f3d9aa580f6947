//! What can stand in a row.

use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use oncegate::domain::attempt::Ending;
use oncegate::domain::record::Ask;
use oncegate::domain::response::StoredResponse;
use oncegate::store::{Settled, StoreError};

use crate::harness::world::{DAY, World, again, ask, completion, renewal, response, settlement, us};

pub async fn a_row_that_does_not_decode_is_told_and_not_taken_for_a_free_key(mut world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    world.settle(completion(&ask, b"")).await;
    let bytes = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    for change in [
        format!("fields = {}", world.bytes(&bytes("a: b\nc: d\r\n\r\n"))),
        format!("fields = {}", world.bytes(&bytes("nothing"))),
        "recipe = '999'".to_owned(),
    ] {
        world.by_hand(&format!("update keys set {change}")).await.unwrap();
        for error in [
            world.store().find(ask.id).await.map(drop).unwrap_err(),
            world.store().reserve(again(&ask)).await.map(drop).unwrap_err(),
            world.store().settle(completion(&again(&ask), b"")).await.map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::Corrupt(_)), "{change}: {error:?}");
        }
    }
}

pub async fn no_impossible_row_can_be_written(mut world: World) {
    let [completed, retryable, unknown] = ["completed", "retryable", "unknown"].map(ask);
    let in_flight = ask("in-flight");
    for (ask, ending) in [
        (&completed, Ending::Completed { response: response(b""), ttl: DAY, remember: None }),
        (&retryable, Ending::Retryable { ttl: DAY }),
        (&unknown, Ending::Unknown),
    ] {
        world.reserve(ask).await;
        world.settle(settlement(ask, ending)).await;
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
        ("due_at = settled_at", "completed retryable unknown"),
        ("accepted_at = settled_at", "retryable"),
        ("state = 'queued'", "unknown"),
        ("state = 'queued', accepted_at = settled_at", "unknown"),
    ] {
        impossible.extend(states.split(' ').map(|state| (change.to_owned(), state)));
    }
    for column in ["id", "token", "scope", "fingerprint"] {
        impossible.push((format!("{column} = {short}"), "completed"));
    }
    for column in ["fields", "body"] {
        impossible.push((format!("{column} = {short}"), "unknown"));
    }
    for (change, state) in impossible {
        let done = world.by_hand(&format!("update keys set {change} where state = '{state}'")).await;
        let why = done.expect_err(&change).to_lowercase();
        assert!(why.contains("check constraint"), "{change}: {why}");
    }
    world.reserve(&in_flight).await;
}

pub async fn a_bad_row_fails_alone(world: World) {
    let bad = 13;
    let asks: Vec<Ask> = (0..40).map(|i| ask(&format!("k-{i}"))).collect();
    join_all(asks.iter().map(|ask| world.reserve(ask))).await;
    let settlements = asks.iter().enumerate().map(|(i, ask)| {
        // No status to be stored; the gate lets none through.
        let status = if i == bad { StatusCode::from_u16(600).unwrap() } else { StatusCode::OK };
        let response = StoredResponse { status, ..response(b"") };
        world.store().settle(settlement(ask, Ending::Completed { response, ttl: DAY, remember: None }))
    });
    for (i, settled) in join_all(settlements).await.into_iter().enumerate() {
        match settled {
            Ok(Settled::Done { .. }) => assert_ne!(i, bad),
            Err(StoreError::Unavailable(_)) => assert_eq!(i, bad),
            other => panic!("{i}: {other:?}"),
        }
    }
    assert_eq!(world.find(&asks[bad]).await.state.name(), "in_flight");
}

pub async fn a_ttl_of_any_length_is_kept(world: World) {
    let ask = Ask { time_limit: Duration::MAX, ..ask("k") };
    world.reserve(&ask).await;
    let ending = Ending::Completed { response: response(b""), ttl: Duration::MAX, remember: None };
    world.settle(settlement(&ask, ending)).await;
    assert!(!world.find(&ask).await.past_ttl);
    world.store().renew(renewal(us(), Duration::MAX)).await.unwrap();
}
