//! Events about settled keys.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};

use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest};
use oncegate_domain::delivery::EnqueueResult;
use oncegate_domain::fingerprint::Secret;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::sealed_response::seal;
use oncegate_domain::state::StateKind;
use oncegate_store::admin::{AuditEntry, DecisionResult, OperatorAction, Target};
use oncegate_store::{
    ClaimEventsParams, DiscardEventsParams, EndEventsParams, EventRoute, EventSinkParams, ExpectedRecord, GiveUpParams,
    KeyEvent, PostponedEvent, StoreEventRoutesParams,
};

use super::decisions::{at_risk, audit_entries, decide, entry, target};
use super::losses::{copy_keys, fall_back};
use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, completion, new_enqueue_request, new_reserve_request, next_attempt_request, response,
    settlement, unwrap_lease,
};

const ALL: [&str; 5] = ["completed", "refused", "unknown", "resolved", "given-up"];

/// Lets the route of the requests tell these sinks. `None` on a cluster, which refuses events.
async fn tell(mut world: StoreFixture, sinks: &[(&str, &[&'static str], bool)]) -> Option<StoreFixture> {
    if world.settings.distribute {
        return None;
    }
    world.settings.events = true;
    world.reopen().await;
    store_routes(&world, sinks, false).await;
    Some(world)
}

async fn store_routes(world: &StoreFixture, sinks: &[(&str, &[&'static str], bool)], keeps_stored: bool) {
    let route = |(sink, types, body): &(&str, &[&'static str], bool)| EventRoute {
        route: "pay".into(),
        sink: (*sink).into(),
        types: types.to_vec(),
        body: *body,
    };
    let routes = sinks.iter().map(route).collect();
    let params = StoreEventRoutesParams { service: "shop".into(), routes, keeps_stored };
    world.store().store_event_routes(params).await.unwrap();
}

async fn claim_for(world: &StoreFixture, sink: &str, lease: Duration) -> Vec<KeyEvent> {
    let params = ClaimEventsParams { service: "shop".into(), sink: sink.into(), limit: 10, lease };
    world.store().claim_events(params).await.unwrap()
}

async fn claim(world: &StoreFixture) -> Vec<KeyEvent> {
    claim_for(world, "bus", DAY).await
}

fn kind(event: &KeyEvent) -> &'static str {
    event.kind().unwrap()
}

async fn publish(world: &StoreFixture, events: &[KeyEvent]) {
    let published = events.iter().map(KeyEvent::handle).collect();
    world.store().end_events(EndEventsParams { published, postponed: Vec::new() }).await.unwrap();
}

async fn postpone(world: &StoreFixture, event: &KeyEvent, retry_in: Option<Duration>) {
    let postponed =
        vec![PostponedEvent { event: event.handle(), tries: event.tries, retry_in, note: "no route".into() }];
    world.store().end_events(EndEventsParams { published: Vec::new(), postponed }).await.unwrap();
}

/// Publishes all events there are. Returns them, each as its type, the state of the key and the attempt.
async fn drain(world: &StoreFixture) -> Vec<String> {
    let mut told = Vec::new();
    loop {
        let events = claim(world).await;
        if events.is_empty() {
            return told;
        }
        publish(world, &events).await;
        let line = |event: &KeyEvent| {
            let state = event.state.map_or("gone", StateKind::name);
            format!("{} {state} {}", kind(event), event.attempt)
        };
        told.extend(events.iter().map(line));
    }
}

async fn reserved(world: &StoreFixture, key: &str) -> ReserveRequest {
    let request = new_reserve_request(key);
    world.reserve(&request).await;
    request
}

pub async fn each_end_of_an_attempt_tells_what_became_of_the_key(world: StoreFixture) {
    let Some(world) = tell(world, &[("bus", &ALL, false)]).await else { return };
    let first = reserved(&world, "completed").await;
    assert!(drain(&world).await.is_empty(), "an attempt that runs is none");
    world.settle(completion(&first, b"paid")).await;
    assert_eq!(drain(&world).await, ["completed completed 1"]);
    world.settle_late(completion(&first, b"paid")).await;
    assert!(drain(&world).await.is_empty(), "nothing has changed");

    let late = reserved(&world, "late").await;
    world.settle(settlement(&late, UNKNOWN)).await;
    world.settle(completion(&late, b"paid")).await;
    assert_eq!(drain(&world).await, ["unknown unknown 1", "completed completed 1"]);

    let released = reserved(&world, "released").await;
    world.settle(settlement(&released, AttemptOutcome::Retryable { ttl: DAY })).await;
    assert!(drain(&world).await.is_empty(), "the next request is executed");
    let next = next_attempt_request(&released);
    let seen = ExpectedRecord::from(&world.find(&released).await);
    unwrap_lease(world.take_over(next.clone(), seen).await);
    world.settle(completion(&next, b"paid")).await;
    assert_eq!(drain(&world).await, ["completed completed 2"]);
}

pub async fn a_response_that_an_operator_corrects_is_told_again(world: StoreFixture) {
    let Some(world) = tell(world, &[("bus", &ALL, true)]).await else { return };
    let key = reserved(&world, "k").await;
    world.settle(settlement(&key, UNKNOWN)).await;
    for (change, told) in [
        (OperatorAction::Complete(response(b"chrage 7")), "unknown unknown 1, completed completed 1"),
        (OperatorAction::Replace(response(b"charge 7")), "completed completed 1"),
    ] {
        let seen = Target { risk: None, ..target(&entry(&world, key.id).await) };
        assert_eq!(decide(&world, &at_risk(change), vec![seen]).await.verdicts, [DecisionResult::Done]);
        assert_eq!(drain(&world).await.join(", "), told);
    }
}

pub async fn a_stored_refusal_is_told_as_one(world: StoreFixture) {
    let Some(world) = tell(world, &[("bus", &ALL, false), ("next-step", &["completed"], false)]).await else { return };
    let fields = |line: Option<(&'static str, &'static str)>| {
        line.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).into_iter().collect()
    };
    let mut number = 0;
    for (status, header, trailer, kind) in [
        (200, None, None, "completed"),
        (303, None, None, "completed"),
        (400, None, None, "refused"),
        (402, None, None, "refused"),
        (422, None, None, "refused"),
        (500, None, None, "refused"),
        (200, None, Some(("grpc-status", "0")), "completed"),
        (200, None, Some(("grpc-status", "9")), "refused"),
        (200, None, Some(("grpc-status", "10")), "refused"),
        (200, Some(("grpc-status", "3")), None, "refused"),
        (200, Some(("grpc-status", "0")), None, "completed"),
        (200, Some(("grpc-message", "grpc-status: 3")), Some(("grpc-status", "0")), "completed"),
        (200, Some(("x-grpc-status", "3")), None, "completed"),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let plain =
            StoredResponse { status, headers: fields(header), body: Some("no".into()), trailers: fields(trailer) };
        for is_sealed in [false, true] {
            number += 1;
            let request = reserved(&world, &format!("k-{number}")).await;
            let secret = Secret::new("the only secret of ours");
            let stored =
                if is_sealed { seal(&secret, &request.id, &request.token, [7; 32], &plain) } else { plain.clone() };
            let outcome = AttemptOutcome::Completed { response: Arc::new(stored), ttl: DAY, remember: None };
            world.settle(settlement(&request, outcome)).await;
            assert_eq!(drain(&world).await, [format!("{kind} completed 1")], "{plain:?}, sealed: {is_sealed}");
            let next = claim_for(&world, "next-step", Duration::ZERO).await;
            assert_eq!(next.len(), usize::from(kind == "completed"), "{plain:?}, sealed: {is_sealed}");
            publish(&world, &next).await;
        }
    }
}

pub async fn decisions_and_given_up_deliveries_are_told(world: StoreFixture) {
    let Some(world) = tell(world, &[("bus", &ALL, false)]).await else { return };
    let request = reserved(&world, "not-executed").await;
    world.settle(settlement(&request, UNKNOWN)).await;
    let seen = target(&entry(&world, request.id).await);
    decide(&world, &at_risk(OperatorAction::NotExecuted), vec![seen]).await;
    assert_eq!(drain(&world).await, ["unknown unknown 1", "resolved retryable 1"]);

    let delivery = new_reserve_request("given-up");
    world.enqueue(new_enqueue_request(&delivery), None).await;
    let states = &[StateKind::Queued, StateKind::Unknown];
    let given_up = GiveUpParams { id: delivery.id, token: delivery.token, states, note: "too late".into() };
    assert!(world.store().give_up(given_up).await.unwrap());
    assert_eq!(drain(&world).await, ["given-up dead 0"]);
    let seen = target(&entry(&world, delivery.id).await);
    decide(&world, &at_risk(OperatorAction::Requeue), vec![seen]).await;
    assert_eq!(drain(&world).await, ["resolved queued 0"]);
}

pub async fn a_request_accepted_over_an_unknown_key_tells_nothing_of_the_attempt_before(world: StoreFixture) {
    let Some(world) = tell(world, &[("bus", &ALL, false)]).await else { return };
    let request = reserved(&world, "k").await;
    world.settle(settlement(&request, UNKNOWN)).await;
    let seen = ExpectedRecord::from(&world.find(&request).await);
    let next = next_attempt_request(&request);
    assert!(matches!(world.enqueue(new_enqueue_request(&next), Some(seen)).await, EnqueueResult::Accepted));
    assert_eq!(drain(&world).await, ["unknown unknown 1"]);
}

pub async fn an_outcome_stored_over_another_attempts_is_told(mut world: StoreFixture) {
    // As a failover leaves it that has lost the takeover.
    let Some(told) = tell(world, &[("bus", &ALL, false)]).await else { return };
    world = told;
    let first = reserved(&world, "k").await;
    let outcome = AttemptOutcome::Completed { response: response(b"one"), ttl: Duration::ZERO, remember: None };
    world.settle(settlement(&first, outcome)).await;
    assert_eq!(drain(&world).await, ["completed completed 1"]);
    let seen = ExpectedRecord::from(&world.find(&first).await);
    copy_keys(&mut world).await;
    let later = unwrap_lease(world.take_over(next_attempt_request(&first), seen).await);
    fall_back(&mut world).await;
    drain(&world).await;
    world.settle(later.complete(response(b"two"), DAY)).await;
    assert_eq!(drain(&world).await, ["completed completed 1"]);
}

pub async fn an_event_has_what_its_sink_asks_for(world: StoreFixture) {
    let sinks: [(&str, &[&'static str], bool); 3] =
        [("bus", &ALL, true), ("quiet", &["unknown"], true), ("brief", &["completed"], false)];
    let Some(world) = tell(world, &sinks).await else { return };
    let request = reserved(&world, "k").await;
    world.settle(completion(&request, b"paid")).await;
    let [event] = &claim(&world).await[..] else { panic!("one event") };
    assert_eq!(
        (event.id, event.key.as_ref().unwrap().as_bytes(), &*event.route),
        (request.id, request.key.as_bytes(), "pay")
    );
    assert_eq!((event.status, event.tries), (Some(201), 1));
    assert_eq!(event.response.as_ref().unwrap().as_ref().unwrap().body.as_deref(), Some(&b"paid"[..]));
    let [brief] = &claim_for(&world, "brief", DAY).await[..] else { panic!("one event") };
    assert!(brief.status == Some(201) && matches!(brief.response, Ok(None)), "{brief:?}");
    assert!(claim_for(&world, "quiet", DAY).await.is_empty());
    store_routes(&world, &[], false).await;
    let request = reserved(&world, "told-to-nobody").await;
    world.settle(completion(&request, b"paid")).await;
    publish(&world, std::slice::from_ref(event)).await;
    assert!(claim(&world).await.is_empty());
}

pub async fn routes_that_are_stored_beside_others_change_none_of_them(world: StoreFixture) {
    let Some(world) = tell(world, &[("newer", &["completed"], false)]).await else { return };
    store_routes(&world, &[("newer", &["unknown"], false), ("lost", &["completed"], false)], true).await;
    let request = reserved(&world, "told-to-both").await;
    world.settle(completion(&request, b"paid")).await;
    for sink in ["newer", "lost"] {
        assert_eq!(claim_for(&world, sink, DAY).await.len(), 1, "{sink}");
    }
}

pub async fn of_each_key_only_the_oldest_event_that_waits_is_claimed(world: StoreFixture) {
    let Some(world) = tell(world, &[("bus", &ALL, false)]).await else { return };
    let (one, other) = (reserved(&world, "one").await, reserved(&world, "other").await);
    world.settle(settlement(&one, UNKNOWN)).await;
    world.settle(completion(&one, b"paid")).await;
    world.settle(completion(&other, b"paid")).await;
    let first = claim(&world).await;
    let names = |events: &[KeyEvent]| events.iter().map(|event| (event.id, kind(event).to_owned())).collect::<Vec<_>>();
    assert_eq!(names(&first), [(one.id, "unknown".to_owned()), (other.id, "completed".to_owned())]);
    assert!(claim(&world).await.is_empty(), "they are claimed");
    postpone(&world, &first[0], Some(Duration::ZERO)).await;
    let again = claim(&world).await;
    assert_eq!((names(&again), again[0].tries), (names(&first[..1]), 2));
    publish(&world, &again).await;
    assert_eq!(names(&claim(&world).await), [(one.id, "completed".to_owned())]);
}

/// A failover that loses commits gives their numbers to other events.
pub async fn an_event_of_another_time_under_the_same_number_is_not_ended(world: StoreFixture) {
    let Some(world) = tell(world, &[("bus", &ALL, false)]).await else { return };
    world.settle(completion(&reserved(&world, "k").await, b"paid")).await;
    let claimed = claim_for(&world, "bus", Duration::ZERO).await;
    let lost = KeyEvent { at: claimed[0].at - Duration::from_millis(1), ..claimed[0].clone() };
    publish(&world, std::slice::from_ref(&lost)).await;
    postpone(&world, &lost, None).await;
    let again = claim(&world).await;
    assert_eq!((again.len(), again[0].id), (1, claimed[0].id), "it waits as before");
    publish(&world, &again).await;
    assert!(drain(&world).await.is_empty());
}

pub async fn a_claim_ends_with_its_lease_and_a_dead_event_with_a_requeue(world: StoreFixture) {
    let Some(world) = tell(world, &[("bus", &ALL, false)]).await else { return };
    let request = reserved(&world, "k").await;
    world.settle(settlement(&request, UNKNOWN)).await;
    world.settle(completion(&request, b"paid")).await;
    assert_eq!(claim_for(&world, "bus", Duration::ZERO).await[0].tries, 1);
    let claimed = claim(&world).await;
    assert_eq!((claimed.len(), claimed[0].tries), (1, 2), "the publisher has died");
    postpone(&world, &KeyEvent { tries: 1, ..claimed[0].clone() }, Some(Duration::ZERO)).await;
    assert!(claim(&world).await.is_empty(), "a try that has ended late ends no later claim");
    postpone(&world, &claimed[0], None).await;
    let later = claim(&world).await;
    assert_eq!(kind(&later[0]), "completed", "a dead event holds nothing back");
    let sink = EventSinkParams { service: "shop".into(), sink: "bus".into() };
    let counts = world.store().count_events(sink.clone()).await.unwrap();
    assert_eq!((counts.waiting, counts.dead, counts.note.as_deref()), (1, 1, Some("no route")));
    assert!(counts.oldest_at.is_some());
    assert_eq!(world.store().requeue_events(sink.clone()).await.unwrap(), 1);
    assert_eq!(kind(&claim(&world).await[0]), "unknown");
    let other = EventSinkParams { service: "bank".into(), ..sink };
    assert_eq!(world.store().count_events(other).await.unwrap(), Default::default());
}

pub async fn dead_events_are_discarded_with_an_entry_in_the_audit_log_each(world: StoreFixture) {
    let sinks: [(&str, &[&'static str], bool); 2] = [("bus", &ALL, false), ("other", &ALL, false)];
    let Some(world) = tell(world, &sinks).await else { return };
    let (dead, waiting) = (reserved(&world, "dead").await, reserved(&world, "waiting").await);
    for request in [&dead, &waiting] {
        world.settle(completion(request, b"paid")).await;
    }
    let [first, second] = &claim(&world).await[..] else { panic!("each has an event") };
    postpone(&world, first, None).await;
    postpone(&world, second, Some(Duration::ZERO)).await;
    let sink = EventSinkParams { service: "shop".into(), sink: "bus".into() };
    let counts = world.store().count_events(sink.clone()).await.unwrap();
    assert_eq!((counts.waiting, counts.waiting_note.as_deref(), counts.dead), (1, Some("no route"), 1));
    let discard = async |service: &str, sink: &str| {
        let params = DiscardEventsParams { service: service.into(), sink: sink.into(), actor: "alice".into() };
        world.store().discard_events(params).await.unwrap()
    };
    assert_eq!((discard("shop", "other").await, discard("bank", "bus").await), (0, 0));
    assert!(audit_entries(&world, None).await.is_empty());
    assert_eq!((discard("shop", "bus").await, discard("shop", "bus").await), (1, 0));
    let counts = world.store().count_events(sink).await.unwrap();
    assert_eq!((counts.waiting, counts.dead), (1, 0));
    let entries = audit_entries(&world, None).await;
    let AuditEntry { actor, action, id, before, after, note, .. } = &entries[0];
    assert_eq!((entries.len(), *id), (1, dead.id));
    assert_eq!([&**actor, action, before, after], ["alice", "discard event", "completed", "completed"]);
    assert_eq!(note.as_deref(), Some(&*format!("completed {} for bus: no route", first.seq)));
    assert_eq!(claim(&world).await.iter().map(|event| event.id).collect::<Vec<_>>(), [waiting.id]);
}

pub async fn an_event_of_a_purged_key_keeps_neither_the_key_nor_the_response(world: StoreFixture) {
    let Some(world) = tell(world, &[("bus", &ALL, true)]).await else { return };
    let [dead, waiting, kept] = ["dead", "waiting", "kept"];
    for key in [dead, waiting, kept] {
        let request = reserved(&world, key).await;
        world.settle(completion(&request, b"paid")).await;
    }
    // Its purge is told too.
    let unknown = reserved(&world, "unknown").await;
    world.settle(settlement(&unknown, UNKNOWN)).await;
    for event in claim(&world).await {
        let is_dead = event.key.as_ref().unwrap().as_bytes() == dead.as_bytes();
        postpone(&world, &event, (!is_dead).then_some(Duration::ZERO)).await;
    }
    for key in [dead, waiting, "unknown"] {
        let id = new_reserve_request(key).id;
        let seen = target(&entry(&world, id).await);
        assert_eq!(decide(&world, &at_risk(OperatorAction::Purge), vec![seen]).await.verdicts, [DecisionResult::Done]);
    }
    let sink = EventSinkParams { service: "shop".into(), sink: "bus".into() };
    assert_eq!(world.store().requeue_events(sink).await.unwrap(), 1);
    let mut left = Vec::new();
    loop {
        let events = claim(&world).await;
        if events.is_empty() {
            break;
        }
        publish(&world, &events).await;
        left.extend(events);
    }
    let mut shown: Vec<_> = left
        .iter()
        .map(|event| {
            let key = event.key.as_ref().map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
            (kind(event), key, event.response.as_ref().unwrap().is_some())
        })
        .collect();
    shown.sort();
    let erased = |kind| (kind, None, false);
    let mine = ("completed", Some(kept.to_owned()), true);
    assert_eq!(shown, [erased("completed"), erased("completed"), mine, erased("resolved"), erased("unknown")]);
}

pub async fn concurrent_claims_get_disjoint_events(world: StoreFixture) {
    let Some(world) = tell(world, &[("bus", &ALL, false)]).await else { return };
    for number in 0..40 {
        let request = reserved(&world, &format!("k-{number}")).await;
        world.settle(completion(&request, b"paid")).await;
    }
    let claims = futures_util::future::join_all((0..8).map(|_| claim(&world))).await;
    let mut seqs: Vec<i64> = claims.iter().flatten().map(|event| event.seq).collect();
    let all = seqs.len();
    seqs.sort_unstable();
    seqs.dedup();
    assert_eq!(seqs.len(), all);
    assert!(all >= 10, "{all}");
}
