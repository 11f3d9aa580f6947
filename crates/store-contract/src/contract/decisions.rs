//! Operators' decisions about keys.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::execution_risk::{ActionRisk, FourEyesAction};
use oncegate_domain::ids::{InstanceId, RecordId};
use oncegate_domain::state::{KeyState, StateKind};
use oncegate_store::admin::{
    AuditEntry, Cursor, DecisionResult, DecisionResults, IdRange, KeyEntry, KeyFilter, OperatorAction,
    OperatorDecision, Target, proposal_mark,
};
use oncegate_store::{
    ApplyOperatorDecisionParams, CountInstancesBehindParams, LeaseRenewal, ListAuditEntriesParams, ListKeysParams,
    SettleResult,
};

use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, completion, new_reserve_request, next_attempt_request, renewal, response, settlement,
    token, unwrap_lease,
};

pub(super) const SHOP: &str = "shop";

pub(super) fn filter(state: StateKind) -> KeyFilter {
    KeyFilter { state: Some(state), ..KeyFilter::default() }
}

pub(super) async fn list(world: &StoreFixture, service: &str, filter: &KeyFilter, limit: u32) -> Vec<KeyEntry> {
    let (mut entries, mut place): (Vec<KeyEntry>, Option<Cursor>) = (Vec::new(), None);
    loop {
        let page = world
            .store()
            .list_keys(ListKeysParams { service: service.into(), filter: filter.clone(), after: place, limit })
            .await
            .unwrap();
        assert!(page.entries.len() <= limit as usize);
        entries.extend(page.entries);
        place = page.next;
        if place.is_none() {
            return entries;
        }
    }
}

pub(super) async fn entry(world: &StoreFixture, id: RecordId) -> KeyEntry {
    let ids = IdRange::from_hex_prefix(&id.to_string()).unwrap();
    list(world, SHOP, &KeyFilter { ids, ..KeyFilter::default() }, 2).await.pop().unwrap()
}

pub(super) fn target(entry: &KeyEntry) -> Target {
    let hour = Duration::from_secs(3600);
    Target {
        id: entry.id,
        token: entry.token,
        new_token: token(),
        state: entry.state,
        route: entry.route.as_str().into(),
        settled_at: entry.settled_at,
        is_by_hand: entry.is_by_hand,
        // As the judge finds it where the attempt may still be running.
        risk: matches!(entry.state, StateKind::Dead | StateKind::Unknown).then_some(ActionRisk::AttemptRunning),
        ttl: DAY,
        remember: Some(hour),
        quiet_after: hour,
        sealed_response: None,
    }
}

pub(super) fn decision(change: OperatorAction) -> Arc<OperatorDecision> {
    Arc::new(OperatorDecision { note: Some("ticket 7".into()), accept_risk: false, ..(*at_risk(change)).clone() })
}

pub(super) fn at_risk(change: OperatorAction) -> Arc<OperatorDecision> {
    let (actor, note) = ("alice".into(), None);
    Arc::new(OperatorDecision { change, actor, note, accept_risk: true, means_empty_body: false })
}

pub(super) async fn decide(
    world: &StoreFixture,
    decision: &Arc<OperatorDecision>,
    targets: Vec<Target>,
) -> DecisionResults {
    world
        .store()
        .apply_operator_decision(ApplyOperatorDecisionParams {
            service: SHOP.into(),
            decision: Arc::clone(decision),
            targets,
            as_of: None,
        })
        .await
        .unwrap()
}

pub(super) async fn verdict(world: &StoreFixture, decision: &Arc<OperatorDecision>, id: RecordId) -> DecisionResult {
    let mut target = target(&entry(world, id).await);
    // An attempt that is running contradicts nothing else.
    target.risk = target.risk.filter(|_| matches!(decision.change, OperatorAction::NotExecuted));
    decide(world, decision, vec![target]).await.verdicts[0]
}

pub(super) async fn audit_entries(world: &StoreFixture, of: Option<RecordId>) -> Vec<AuditEntry> {
    world
        .store()
        .list_audit_entries(ListAuditEntriesParams { service: SHOP.into(), id: of, before: None, limit: 100 })
        .await
        .unwrap()
}

/// Makes a key unknown.
pub(super) async fn unknown(world: &StoreFixture, key: &str) -> ReserveRequest {
    let reserve_request = new_reserve_request(key);
    world.reserve(&reserve_request).await;
    world.settle(settlement(&reserve_request, UNKNOWN)).await;
    reserve_request
}

pub async fn each_decision_has_its_effect_and_is_audited(mut world: StoreFixture) {
    let key = unknown(&world, "k").await;
    let mut expected = Vec::new();
    for (change, before, after) in [
        (OperatorAction::NotExecuted, "unknown", "retryable"),
        (OperatorAction::Purge, "retryable", "none"),
        (OperatorAction::Complete(response(b"by hand")), "unknown", "completed"),
        (OperatorAction::Release, "completed", "retryable"),
        (OperatorAction::Purge, "retryable", "none"),
        (OperatorAction::Requeue, "dead", "unknown"),
        (OperatorAction::Purge, "unknown", "none"),
    ] {
        if before == "unknown" && world.store().find(key.id).await.unwrap().is_none() {
            unknown(&world, "k").await;
        }
        if before == "dead" {
            unknown(&world, "k").await;
            world
                .execute_sql("update keys set state = 'dead', inquiries = 9, absences = 1, inquire_at = settled_at")
                .await
                .unwrap();
        }
        let decision = at_risk(change);
        assert_eq!(verdict(&world, &decision, key.id).await, DecisionResult::Done, "{before} -> {after}");
        let now = world.store().find(key.id).await.unwrap();
        assert_eq!(now.as_ref().map_or("none", |record| record.state.name()), after);
        expected.push((decision.change.action().to_owned(), before.to_owned(), after.to_owned()));
        if before == "dead" {
            let entry = entry(&world, key.id).await;
            assert_eq!(
                (entry.inquiries, entry.absences, entry.inquire_at),
                (0, 0, None),
                "it is asked about from the start"
            );
        }
    }
    let mut noted = audit_entries(&world, Some(key.id)).await;
    noted.reverse();
    assert!(noted.iter().all(|note| note.actor == "alice" && note.note.as_deref() == Some("accept_risk")));
    let noted: Vec<_> = noted.into_iter().map(|note| (note.action, note.before, note.after)).collect();
    assert_eq!(noted, expected);
}

pub async fn a_response_entered_by_an_operator_is_replayed_for_the_routes_ttl(world: StoreFixture) {
    let key = unknown(&world, "k").await;
    assert_eq!(
        verdict(&world, &decision(OperatorAction::Complete(response(b"by hand"))), key.id).await,
        DecisionResult::Done
    );
    let KeyState::Completed(completed) = world.find(&key).await.state else { panic!("it is not completed") };
    assert_eq!(completed.response, response(b"by hand"));
    let entry = entry(&world, key.id).await;
    let lives = completed.expires_at.unwrap().duration_since(entry.now).unwrap();
    assert!(lives.abs_diff(DAY) < Duration::from_secs(10), "{lives:?}");
    assert_eq!(audit_entries(&world, None).await[0].note.as_deref(), Some("ticket 7"));
    // A released key keeps nothing of the response.
    assert_eq!(verdict(&world, &decision(OperatorAction::Release), key.id).await, DecisionResult::Done);
    let record = world.find(&key).await;
    let next = next_attempt_request(&key);
    assert_eq!(unwrap_lease(world.take_over(next, (&record).into()).await).attempt, 2);
}

pub async fn not_executed_is_believed_once_the_attempt_is_quiet(world: StoreFixture) {
    let key = ReserveRequest { time_limit: Duration::from_secs(60), ..new_reserve_request("k") };
    world.reserve(&key).await;
    world.settle(settlement(&key, UNKNOWN)).await;
    let plain = decision(OperatorAction::NotExecuted);
    // An hour past its deadline, which is a minute away.
    match verdict(&world, &plain, key.id).await {
        DecisionResult::NotQuiet(left) => {
            assert!(left.abs_diff(Duration::from_secs(3660)) < Duration::from_secs(30), "{left:?}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(entry(&world, key.id).await.state, StateKind::Unknown);
    assert_eq!(audit_entries(&world, None).await, []);
    assert_eq!(verdict(&world, &at_risk(OperatorAction::NotExecuted), key.id).await, DecisionResult::Done);

    let late = ReserveRequest { time_limit: Duration::ZERO, ..new_reserve_request("late") };
    world.reserve(&late).await;
    world.settle(settlement(&late, UNKNOWN)).await;
    let quiet = Target { quiet_after: Duration::ZERO, ..target(&entry(&world, late.id).await) };
    // Not by a clock that is ahead of the caller's.
    let behind = Some(world.an_hour_ago().await);
    let admin_store = world.store();
    let refused = admin_store
        .apply_operator_decision(ApplyOperatorDecisionParams {
            service: SHOP.into(),
            decision: Arc::clone(&plain),
            targets: vec![quiet.clone()],
            as_of: behind,
        })
        .await;
    assert_ne!(refused.unwrap().verdicts, [DecisionResult::Done]);
    assert_eq!(decide(&world, &plain, vec![quiet]).await.verdicts, [DecisionResult::Done]);
}

pub async fn no_decision_applies_to_a_key_in_flight(world: StoreFixture) {
    let key = new_reserve_request("k");
    world.reserve(&key).await;
    for change in [
        OperatorAction::Complete(response(b"")),
        OperatorAction::NotExecuted,
        OperatorAction::Purge,
        OperatorAction::Release,
        OperatorAction::Requeue,
    ] {
        assert_eq!(verdict(&world, &at_risk(change.clone()), key.id).await, DecisionResult::Unfit);
        // Not even where the operator saw the key unknown before it was in flight again.
        let stale = Target { state: StateKind::Unknown, ..target(&entry(&world, key.id).await) };
        let verdict = decide(&world, &at_risk(change), vec![stale]).await.verdicts[0];
        assert!(matches!(verdict, DecisionResult::Unfit | DecisionResult::Changed(StateKind::InFlight)), "{verdict:?}");
    }
    assert_eq!(world.find(&key).await.state.name(), "in_flight");
    assert_eq!(audit_entries(&world, None).await, []);
}

pub async fn a_decision_does_not_apply_to_a_changed_key(world: StoreFixture) {
    let key = unknown(&world, "k").await;
    let seen = target(&entry(&world, key.id).await);
    let (next, from) = (next_attempt_request(&key), world.find(&key).await);
    unwrap_lease(world.take_over(next.clone(), (&from).into()).await);
    world.settle(settlement(&next, UNKNOWN)).await;
    // Unknown as before, but by another attempt.
    for change in [OperatorAction::Complete(response(b"")), OperatorAction::NotExecuted, OperatorAction::Purge] {
        let decided = decide(&world, &at_risk(change), vec![seen.clone()]).await;
        assert_eq!(decided.verdicts, [DecisionResult::Changed(StateKind::Unknown)]);
    }
    assert_eq!(world.find(&key).await.token, next.token);
    let gone = Target { id: new_reserve_request("never").id, ..seen };
    assert_eq!(decide(&world, &at_risk(OperatorAction::Purge), vec![gone]).await.verdicts, [DecisionResult::Gone]);
    assert_eq!(audit_entries(&world, None).await, []);
}

pub async fn a_proposal_is_audited_once_for_the_key_as_it_was_seen_and_changes_nothing(world: StoreFixture) {
    let key = unknown(&world, "k").await;
    let seen = target(&entry(&world, key.id).await);
    let before = world.find(&key).await;
    let purge = at_risk(OperatorAction::Propose(FourEyesAction::Purge));
    let release = at_risk(OperatorAction::Propose(FourEyesAction::Release));
    // A release is for a completed key alone, and so is its proposal.
    assert_eq!(decide(&world, &release, vec![seen.clone()]).await.verdicts, [DecisionResult::Unfit]);
    let decided = decide(&world, &purge, vec![seen.clone()]).await;
    assert_eq!(
        (&decided.verdicts[..], decided.purges, &decided.queued[..]),
        (&[DecisionResult::Done][..], None, &[][..])
    );
    let after = world.find(&key).await;
    assert_eq!((after.token, after.state.name()), (before.token, "unknown"));
    let audited = audit_entries(&world, Some(key.id)).await;
    let AuditEntry { action, before, after, note, .. } = &audited[0];
    assert_eq!((&**action, &**before, &**after, audited.len()), ("propose purge", "unknown", "unknown", 1));
    assert_eq!(*note, Some(format!("accept_risk; {}", proposal_mark(&seen.token))));
    // Unknown again, by another attempt.
    let (next, from) = (next_attempt_request(&key), world.find(&key).await);
    unwrap_lease(world.take_over(next.clone(), (&from).into()).await);
    world.settle(settlement(&next, UNKNOWN)).await;
    let changed = [DecisionResult::Changed(StateKind::Unknown)];
    assert_eq!(decide(&world, &purge, vec![seen.clone()]).await.verdicts, changed);
    let gone = Target { id: new_reserve_request("never").id, ..seen };
    assert_eq!(decide(&world, &purge, vec![gone]).await.verdicts, [DecisionResult::Gone]);
    assert_eq!(audit_entries(&world, None).await.len(), 1);
}

pub async fn one_of_many_simultaneous_decisions_applies(world: StoreFixture) {
    let key = unknown(&world, "k").await;
    let seen = target(&entry(&world, key.id).await);
    let decisions: Vec<_> = (0..20)
        .map(|i| match i % 3 {
            0 => at_risk(OperatorAction::Complete(response(b"by hand"))),
            1 => at_risk(OperatorAction::NotExecuted),
            _ => at_risk(OperatorAction::Purge),
        })
        .collect();
    let decided = join_all(decisions.iter().map(|decision| decide(&world, decision, vec![seen.clone()]))).await;
    let verdicts: Vec<_> = decided.iter().map(|decided| decided.verdicts[0]).collect();
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == DecisionResult::Done).count(), 1, "{verdicts:?}");
    assert!(
        verdicts.iter().all(|v| matches!(
            v,
            DecisionResult::Done | DecisionResult::Gone | DecisionResult::Changed(_) | DecisionResult::Held
        )),
        "{verdicts:?}"
    );
    assert_eq!(audit_entries(&world, None).await.len(), 1);
}

pub async fn a_late_answer_overrides_a_decision_unless_a_response_is_stored(world: StoreFixture) {
    let key = unknown(&world, "k").await;
    assert_eq!(verdict(&world, &at_risk(OperatorAction::NotExecuted), key.id).await, DecisionResult::Done);
    world.settle(completion(&key, b"late")).await;
    assert_eq!(world.find(&key).await.state.name(), "completed");

    let key = unknown(&world, "stored").await;
    assert_eq!(
        verdict(&world, &decision(OperatorAction::Complete(response(b"by hand"))), key.id).await,
        DecisionResult::Done
    );
    let settled_record = world.settle_late(completion(&key, b"late")).await.unwrap();
    let KeyState::Completed(completed) = settled_record.state else { panic!("it is not completed") };
    assert_eq!(completed.response, response(b"by hand"));
}

pub async fn a_released_key_is_not_completed_again_by_the_same_attempt(world: StoreFixture) {
    let key = new_reserve_request("k");
    world.reserve(&key).await;
    world.settle(completion(&key, b"once")).await;
    let seen = entry(&world, key.id).await;
    assert_eq!(verdict(&world, &decision(OperatorAction::Release), key.id).await, DecisionResult::Done);
    let released = world.find(&key).await;
    assert!((released.state.name(), released.attempt) == ("retryable", 1) && released.token != key.token);
    // The same settlement, whose answer had been lost.
    for outcome in [completion(&key, b"once"), settlement(&key, UNKNOWN)] {
        let settled_record = world.settle_late(outcome).await.unwrap();
        assert_eq!((settled_record.state.name(), settled_record.token), ("retryable", released.token));
    }
    // Nor does a decision apply that was made when the key was completed.
    let decided = decide(&world, &decision(OperatorAction::Release), vec![target(&seen)]).await;
    assert_eq!(decided.verdicts, [DecisionResult::Changed(StateKind::Retryable)]);
    assert_eq!(audit_entries(&world, Some(key.id)).await.len(), 1);
    let next = next_attempt_request(&key);
    assert_eq!(unwrap_lease(world.take_over(next.clone(), (&released).into()).await).attempt, 2);
    world.settle(completion(&next, b"twice")).await;
    // Each released key gets a token of its own.
    let mut tokens = BTreeSet::new();
    for name in ["k-1", "k-2"] {
        let key = new_reserve_request(name);
        world.reserve(&key).await;
        world.settle(completion(&key, b"")).await;
    }
    let completed = list(&world, SHOP, &filter(StateKind::Completed), 5).await;
    decide(&world, &decision(OperatorAction::Release), completed.iter().map(target).collect()).await;
    for entry in list(&world, SHOP, &filter(StateKind::Retryable), 5).await {
        tokens.insert(*entry.token.as_bytes());
    }
    assert_eq!((completed.len(), tokens.len()), (3, 3));
}

pub async fn a_decision_that_cannot_be_audited_is_not_applied(mut world: StoreFixture) {
    let [first, keys @ ..] = [unknown(&world, "k-0").await, unknown(&world, "k-1").await, unknown(&world, "k-2").await];
    let first = target(&entry(&world, first.id).await);
    decide(&world, &at_risk(OperatorAction::NotExecuted), vec![first]).await;
    // Another audit entry of this operator is refused.
    world.execute_sql("create unique index once on audit (actor)").await.unwrap();
    let mut targets = Vec::new();
    for key in &keys {
        targets.push(target(&entry(&world, key.id).await));
    }
    let admin_store = world.store();
    for change in [OperatorAction::NotExecuted, OperatorAction::Complete(response(b"")), OperatorAction::Purge] {
        assert!(
            admin_store
                .apply_operator_decision(ApplyOperatorDecisionParams {
                    service: SHOP.into(),
                    decision: at_risk(change),
                    targets: targets.clone(),
                    as_of: None
                })
                .await
                .is_err()
        );
    }
    for key in &keys {
        assert_eq!(entry(&world, key.id).await.state, StateKind::Unknown);
    }
    assert_eq!(audit_entries(&world, None).await.len(), 1);
    assert!(world.store().renew_lease(renewal(InstanceId::from_stored(5), DAY)).await.unwrap().purges == 0);
}

pub async fn a_purge_counts_its_keys_and_waits_for_instances_with_a_cache(world: StoreFixture) {
    let store = world.store();
    let [one, other, lapsed, elsewhere] = [1, 2, 3, 4].map(InstanceId::from_stored);
    let now = |instance| renewal(instance, DAY);
    assert_eq!(store.renew_lease(now(one)).await.unwrap().purges, 0);
    store.renew_lease(now(other)).await.unwrap();
    store.renew_lease(LeaseRenewal { expiry: Duration::ZERO, ..now(lapsed) }).await.unwrap();
    store.renew_lease(LeaseRenewal { services: "bank".into(), ..now(elsewhere) }).await.unwrap();

    let keys = [unknown(&world, "k-0").await, unknown(&world, "k-1").await];
    let mut targets = Vec::new();
    for key in &keys {
        let risk = Some(ActionRisk::OutcomeUnknown);
        targets.push(Target { risk, ..target(&entry(&world, key.id).await) });
    }
    assert_eq!(
        decide(&world, &decision(OperatorAction::Purge), targets.clone()).await.verdicts,
        [DecisionResult::Unfit; 2]
    );
    let decided = decide(&world, &at_risk(OperatorAction::Purge), targets).await;
    assert_eq!(decided.verdicts, [DecisionResult::Done; 2]);
    let purges = decided.purges.unwrap();
    assert!(purges > 0);
    let waited = store.wait_until_forgotten(SHOP.into(), purges, Duration::ZERO).await.unwrap();
    assert_eq!(waited, 2, "whose lease has run out, and whoever serves another service, is not waited for");

    // A first renewal that is executed late says nothing about what was cached since.
    store.renew_lease(now(one)).await.unwrap();
    assert_eq!(
        store.count_instances_behind(CountInstancesBehindParams { service: SHOP.into(), purges }).await.unwrap(),
        2
    );
    // Reading the count does not empty the cache yet.
    let read = store.renew_lease(LeaseRenewal { purges_seen: Some(0), ..now(one) }).await.unwrap();
    assert_eq!(
        (
            read.purges,
            store.count_instances_behind(CountInstancesBehindParams { service: SHOP.into(), purges }).await.unwrap()
        ),
        (purges, 2)
    );
    store.renew_lease(LeaseRenewal { purges_seen: Some(purges), ..now(one) }).await.unwrap();
    let waits = store.wait_until_forgotten(SHOP.into(), purges, DAY);
    let sees = store.renew_lease(LeaseRenewal { purges_seen: Some(purges), ..now(other) });
    let (waited, seen) = futures_util::future::join(waits, sees).await;
    assert_eq!((waited.unwrap(), seen.unwrap().purges), (0, purges));
    // An instance that starts now has cached nothing.
    store.renew_lease(now(InstanceId::from_stored(6))).await.unwrap();
    assert_eq!(
        store.count_instances_behind(CountInstancesBehindParams { service: SHOP.into(), purges }).await.unwrap(),
        0
    );
}

pub async fn decisions_survive_reopening(mut world: StoreFixture) {
    let [kept, gone] = [unknown(&world, "kept").await, unknown(&world, "gone").await];
    verdict(&world, &decision(OperatorAction::Complete(response(b"by hand"))), kept.id).await;
    verdict(&world, &at_risk(OperatorAction::Purge), gone.id).await;
    world.reopen().await;
    let SettleResult::Fenced(Some(record)) = world.store().settle(completion(&kept, b"late")).await.unwrap() else {
        panic!("it is not there")
    };
    assert_eq!(record.state.name(), "completed");
    assert!(world.store().find(gone.id).await.unwrap().is_none());
    let noted: Vec<_> = audit_entries(&world, None).await.into_iter().map(|note| (note.action, note.after)).collect();
    assert_eq!(noted, [("purge", "none"), ("resolve", "completed")].map(|(a, b)| (a.to_owned(), b.to_owned())));
}
