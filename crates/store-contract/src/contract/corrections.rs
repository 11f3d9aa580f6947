//! Corrections of responses that operators have written.

use std::time::Duration;

use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest, Settlement};
use oncegate_domain::inquiry::InquiryVerdict;
use oncegate_domain::state::{KeyState, StateKind};
use oncegate_store::admin::{AuditEntry, DecisionResult, OperatorAction, Target};

use super::decisions::{at_risk, audit_entries, decide, decision, entry, target, verdict};
use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, completion, new_reserve_request, next_attempt_request, response, settlement,
    unwrap_lease,
};

/// The ways in which a key gets its response, the one that an operator has written last.
const COMPLETIONS: [&str; 6] =
    ["answered", "answered late", "reported", "found", "written and executed again", "written"];

/// Completes a key in one of these ways.
async fn complete(world: &StoreFixture, how: &str) -> ReserveRequest {
    let key = ReserveRequest { time_limit: Duration::ZERO, ..new_reserve_request(&how.replace(' ', "-")) };
    let by_hand = decision(OperatorAction::Complete(response(b"by hand")));
    world.reserve(&key).await;
    if !matches!(how, "answered" | "reported") {
        world.settle(settlement(&key, UNKNOWN)).await;
    }
    match how {
        "answered" | "answered late" => world.settle(completion(&key, b"paid")).await,
        "reported" => {
            let outcome = AttemptOutcome::Completed { response: response(b"paid"), ttl: DAY, remember: None };
            world.settle(Settlement::from_service(key.id, key.token, outcome)).await;
        }
        "found" => {
            let inquiry = world.inquire().await;
            let verdict = InquiryVerdict::Completed { response: response(b"paid"), ttl: DAY, remember: None };
            assert!(world.resolve(&inquiry, verdict).await);
        }
        _ => assert_eq!(verdict(world, &by_hand, key.id).await, DecisionResult::Done),
    }
    if how == "written and executed again" {
        assert_eq!(verdict(world, &at_risk(OperatorAction::Release), key.id).await, DecisionResult::Done);
        let next = next_attempt_request(&key);
        let seen = (&world.find(&key).await).into();
        unwrap_lease(world.take_over(next.clone(), seen).await);
        world.settle(completion(&next, b"paid")).await;
    }
    key
}

pub async fn only_a_response_that_an_operator_has_written_is_replaced(world: StoreFixture) {
    let correct = decision(OperatorAction::Replace(response(b"corrected")));
    for how in COMPLETIONS {
        let key = complete(&world, how).await;
        let (before, audited) = (world.find(&key).await, audit_entries(&world, Some(key.id)).await.len());
        let seen = target(&entry(&world, key.id).await);
        assert_eq!(seen.is_by_hand, how == "written", "{how}");
        if how != "written" {
            assert_eq!(verdict(&world, &correct, key.id).await, DecisionResult::Unfit, "{how}");
            // The store does not take a caller's word for it.
            let decided = decide(&world, &correct, vec![Target { is_by_hand: true, ..seen }]).await;
            assert!(decided.verdicts != [DecisionResult::Done] && decided.purges.is_none(), "{how}: {decided:?}");
            let KeyState::Completed(completed) = world.find(&key).await.state else { panic!("{how}") };
            assert_eq!(completed.response, response(b"paid"), "{how}");
            assert_eq!(audit_entries(&world, Some(key.id)).await.len(), audited, "{how}");
            continue;
        }
        let decided = decide(&world, &correct, vec![seen.clone()]).await;
        assert_eq!(decided.verdicts, [DecisionResult::Done]);
        assert!(decided.purges.is_some(), "no instance may replay the earlier response");
        let after = world.find(&key).await;
        let KeyState::Completed(completed) = after.state else { panic!("it is not completed") };
        assert_eq!((completed.response, after.token), (response(b"corrected"), seen.new_token));
        assert_ne!(after.token, before.token);
        let AuditEntry { action, before, after, actor, .. } = &audit_entries(&world, Some(key.id)).await[0];
        assert_eq!([&**actor, action, before, after], ["alice", "replace", "completed", "completed"]);
        // Nor does what was decided about the earlier one, or a late answer, undo it.
        let stale = decide(&world, &correct, vec![seen]).await;
        assert_eq!(stale.verdicts, [DecisionResult::Changed(StateKind::Completed)]);
        world.settle_late(completion(&key, b"late")).await;
        let again = decision(OperatorAction::Replace(response(b"corrected twice")));
        assert_eq!(verdict(&world, &again, key.id).await, DecisionResult::Done);
        let KeyState::Completed(completed) = world.find(&key).await.state else { panic!("it is not completed") };
        assert_eq!(completed.response, response(b"corrected twice"));
    }
}
