//! The condition of a settlement, tried for every outcome in every state.

use std::time::Duration;

use oncegate_domain::attempt::AttemptOutcome;
use oncegate_domain::state::StateKind;
use oncegate_store::{ExpectedRecord, SettleResult};

use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, completion, new_reserve_request, next_attempt_request, response, settlement,
    unwrap_lease,
};

/// The SQL that brings a settled key into a state. `None` if no key can be in that state, or SQL cannot bring it there.
fn transition(state: StateKind, is_accepted: bool) -> Option<&'static str> {
    Some(match (state, is_accepted) {
        (StateKind::Completed | StateKind::InFlight | StateKind::Retryable | StateKind::Unknown, false) => "",
        (StateKind::Completed | StateKind::Unknown, true) => "accepted_at = created_at",
        (StateKind::Dead, false) => "state = 'dead'",
        (StateKind::Dead, true) => "state = 'dead', accepted_at = created_at",
        (StateKind::Expired, false) => {
            "state = 'expired', status = null, fields = null, body = null, remember_ms = null"
        }
        (StateKind::Queued, true) => {
            "state = 'queued', accepted_at = created_at, due_at = created_at, expires_at = null"
        }
        // SQL by hand restarts the embedded store, and a start makes unknown what is in flight.
        (StateKind::InFlight, true) => return None,
        (StateKind::Expired | StateKind::Retryable, true) | (StateKind::Queued, false) => return None,
    })
}

pub async fn a_settlement_is_taken_by_the_table_of_outcomes_and_states(mut world: StoreFixture) {
    let outcomes = [
        AttemptOutcome::Completed { response: response(b"late"), ttl: DAY, remember: None },
        AttemptOutcome::Retryable { ttl: DAY },
        AttemptOutcome::Retryable { ttl: Duration::ZERO },
        UNKNOWN,
    ];
    for (number, outcome) in outcomes.iter().enumerate() {
        for (state, is_accepted) in StateKind::ALL.into_iter().flat_map(|state| [(state, false), (state, true)]) {
            let Some(transition) = transition(state, is_accepted) else { continue };
            let request = new_reserve_request(&format!("{number}-{state}-{is_accepted}"));
            world.reserve(&request).await;
            match state {
                StateKind::Completed | StateKind::Expired => world.settle(completion(&request, b"first")).await,
                StateKind::Queued | StateKind::Retryable => {
                    world.settle(settlement(&request, AttemptOutcome::Retryable { ttl: DAY })).await;
                }
                StateKind::Dead | StateKind::Unknown => {
                    world.settle(settlement(&request, UNKNOWN)).await;
                }
                StateKind::InFlight => {}
            }
            if !transition.is_empty() {
                let id = world.bytes(&request.id.to_string());
                world.execute_sql(&format!("update keys set {transition} where id = {id}")).await.unwrap();
            }
            assert_eq!(world.find(&request).await.state.kind(), state);
            let result = world.store().settle(settlement(&request, outcome.clone())).await.unwrap();
            let expected = outcome.may_settle(state, is_accepted);
            let is_done = matches!(result, SettleResult::Done { .. });
            assert_eq!(is_done, expected, "{outcome:?} for a key that is {state}, accepted: {is_accepted}");
            let found = world.store().find(request.id).await.unwrap().map(|record| record.state.kind());
            match expected {
                true if outcome.forgets_key() && !is_accepted => assert_eq!(found, None, "from {state}"),
                true => assert_ne!(found, None, "{outcome:?} from {state}"),
                false => assert_eq!(found, Some(state), "{outcome:?}"),
            }
        }
    }
}

pub async fn a_key_with_earlier_attempts_or_a_recovery_point_is_not_forgotten(mut world: StoreFixture) {
    let forgotten = AttemptOutcome::Retryable { ttl: Duration::ZERO };
    let second_attempt = new_reserve_request("second");
    world.reserve(&second_attempt).await;
    world.settle(settlement(&second_attempt, UNKNOWN)).await;
    let next = next_attempt_request(&second_attempt);
    let found = ExpectedRecord::from(&world.find(&second_attempt).await);
    unwrap_lease(world.take_over(next.clone(), found).await);
    world.settle(settlement(&next, forgotten.clone())).await;
    let record = world.find(&next).await;
    assert_eq!((record.state.kind(), record.attempt, record.past_ttl), (StateKind::Retryable, 2, false));

    let with_point = new_reserve_request("point");
    world.reserve(&with_point).await;
    world.settle(settlement(&with_point, UNKNOWN)).await;
    let id = world.bytes(&with_point.id.to_string());
    world.execute_sql(&format!("update keys set recovery_point = 'charged' where id = {id}")).await.unwrap();
    world.settle(settlement(&with_point, forgotten)).await;
    let record = world.find(&with_point).await;
    assert_eq!((record.state.kind(), record.past_ttl), (StateKind::Retryable, false));
    assert_eq!(record.recovery_point.unwrap().as_str(), "charged");
}
