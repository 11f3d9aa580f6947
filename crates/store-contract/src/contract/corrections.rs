//! Corrections of responses that operators have written.

use std::time::Duration;

use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest, ReserveResult, Settlement};
use oncegate_domain::inquiry::InquiryVerdict;
use oncegate_domain::kept_path;
use oncegate_domain::lookup::LookupHashes;
use oncegate_domain::state::{KeyState, StateKind};
use oncegate_store::admin::{AuditEntry, DecisionResult, KeyFilter, OperatorAction, Target};

use super::decisions::{SHOP, at_risk, audit_entries, decide, decision, entry, list, target, verdict};
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

pub async fn a_redacted_key_keeps_nothing_of_its_caller_and_no_retry_of_it_is_executed(mut world: StoreFixture) {
    let address = Some("192.0.2.7".parse().unwrap());
    let request = |key: &str| ReserveRequest {
        path: Some(kept_path::keep_path("/customers/42")),
        lookups: LookupHashes::join([[5; 16]]),
        client_address: address,
        trace_id: Some([9; 16]),
        ..new_reserve_request(key)
    };
    let [completed, retryable, open] = ["completed", "retryable", "unknown"].map(request);
    for (request, settled) in [
        (&completed, completion(&completed, b"alice")),
        (&retryable, settlement(&retryable, AttemptOutcome::Retryable { ttl: DAY })),
        (&open, settlement(&open, UNKNOWN)),
    ] {
        world.reserve(request).await;
        world.settle(settled).await;
    }
    let redact = decision(OperatorAction::Redact);
    for (request, verdict_of, state) in [
        (&completed, DecisionResult::Done, StateKind::Completed),
        (&retryable, DecisionResult::Done, StateKind::Expired),
        (&open, DecisionResult::Unfit, StateKind::Unknown),
    ] {
        let before = entry(&world, request.id).await;
        assert_eq!(verdict(&world, &redact, request.id).await, verdict_of, "{state}");
        let after = entry(&world, request.id).await;
        assert_eq!((after.state, after.expires_at, after.created_at), (state, before.expires_at, before.created_at));
        let is_redacted = verdict_of == DecisionResult::Done;
        assert_eq!(
            (after.key.is_empty(), after.path.is_none(), after.trace_id.is_none()),
            (is_redacted, is_redacted, is_redacted)
        );
        assert_eq!((after.client_address.is_none(), after.body_bytes), (is_redacted, None));
    }
    let filter = KeyFilter { lookup: Some([5; 16]), ..KeyFilter::default() };
    assert_eq!(list(&world, SHOP, &filter, 10).await.len(), 1, "the one that is open");
    // The response is not kept: its retries are told so.
    let KeyState::Completed(left) = world.find(&completed).await.state else { panic!("it is not completed") };
    assert_eq!((left.response.body.clone(), left.response.headers.len()), (None, 0));
    for request in [&completed, &retryable] {
        let record = world.find(request).await;
        let taken = world.take_over(next_attempt_request(request), (&record).into()).await;
        assert!(matches!(taken, ReserveResult::Taken(_)), "{taken:?}");
    }
    // A second time, and once more by the attempt itself: nothing comes back.
    assert_eq!(verdict(&world, &redact, completed.id).await, DecisionResult::Done);
    world.settle_late(completion(&completed, b"alice")).await.unwrap();
    assert_eq!(entry(&world, completed.id).await.body_bytes, None);
    let audited = audit_entries(&world, Some(retryable.id)).await;
    assert_eq!((&*audited[0].action, &*audited[0].before, &*audited[0].after), ("redact", "retryable", "expired"));
    // Past its TTL it is a new key, and its record whole again.
    world.execute_sql("update keys set expires_at = 1 where expires_at is not null").await.unwrap();
    let record = world.find(&completed).await;
    unwrap_lease(world.take_over(next_attempt_request(&completed), (&record).into()).await);
    assert_eq!(entry(&world, completed.id).await.key, b"completed");
}
