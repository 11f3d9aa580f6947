//! The operators' side: looking at keys, and deciding about them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use oncegate::domain::attempt::{Ending, InstanceId};
use oncegate::domain::phase::Phase;
use oncegate::domain::record::{Ask, RecordId, State};
use oncegate::domain::scope::Scope;
use oncegate::store::books::{
    Bookmark, Case, Change, Decided, Decision, Entry, Filter, IdRange, Note, Verdict, forgotten,
};
use oncegate::store::{Renewal, Settled};

use crate::harness::world::{DAY, World, again, ask, ask_of, completion, fresh, renewal, response, settlement};

const SHOP: &str = "shop";

fn filter(state: Phase) -> Filter {
    Filter { state: Some(state), ..Filter::default() }
}

async fn list(world: &World, service: &str, filter: &Filter, limit: u32) -> Vec<Entry> {
    let (mut entries, mut place): (Vec<Entry>, Option<Bookmark>) = (Vec::new(), None);
    loop {
        let page = world.store().books().page(service.into(), filter.clone(), place, limit).await.unwrap();
        assert!(page.entries.len() <= limit as usize);
        entries.extend(page.entries);
        place = page.next;
        if place.is_none() {
            return entries;
        }
    }
}

async fn entry(world: &World, id: RecordId) -> Entry {
    let ids = IdRange::one(id);
    list(world, SHOP, &Filter { ids, ..Filter::default() }, 2).await.pop().unwrap()
}

fn case(entry: &Entry) -> Case {
    let hour = Duration::from_secs(3600);
    Case { id: entry.id, token: entry.token, state: entry.state, ttl: DAY, remember: Some(hour), quiet_after: hour }
}

fn decision(change: Change) -> Arc<Decision> {
    Arc::new(Decision { change, actor: "alice".into(), note: Some("ticket 7".into()), accept_risk: false })
}

fn at_risk(change: Change) -> Arc<Decision> {
    Arc::new(Decision { change, actor: "alice".into(), note: None, accept_risk: true })
}

async fn decide(world: &World, decision: &Arc<Decision>, cases: Vec<Case>) -> Decided {
    world.store().books().decide(SHOP.into(), Arc::clone(decision), cases).await.unwrap()
}

async fn verdict(world: &World, decision: &Arc<Decision>, id: RecordId) -> Verdict {
    let case = case(&entry(world, id).await);
    decide(world, decision, vec![case]).await.verdicts[0]
}

async fn notes(world: &World, of: Option<RecordId>) -> Vec<Note> {
    world.store().books().audit(SHOP.into(), of, None, 100).await.unwrap()
}

/// A key that is unknown.
async fn unknown(world: &World, key: &str) -> Ask {
    let ask = ask(key);
    world.reserve(&ask).await;
    world.settle(settlement(&ask, Ending::Unknown)).await;
    ask
}

pub async fn what_is_listed_fits_the_filter_and_its_pages_meet_each_key_once(world: World) {
    for i in 0..7 {
        unknown(&world, &format!("unknown-{i}")).await;
    }
    for i in 0..5 {
        let ask = Ask { route: "refund".into(), ..ask_of(SHOP, [8; 32], b"POST /refund", &format!("done-{i}")) };
        world.reserve(&ask).await;
        world.settle(completion(&ask, b"body")).await;
    }
    let running = ask("running");
    world.reserve(&running).await;
    for (filter, count) in [
        (Filter::default(), 13),
        (filter(Phase::Unknown), 7),
        (filter(Phase::Completed), 5),
        (filter(Phase::InFlight), 1),
        (filter(Phase::Dead), 0),
        (Filter { route: Some("refund".into()), ..Filter::default() }, 5),
        (Filter { scope: IdRange::of_hex("0808"), ..Filter::default() }, 5),
        (Filter { scope: IdRange::of_hex("09"), ..Filter::default() }, 0),
        (Filter { scope: IdRange::of_hex("07"), ..filter(Phase::Unknown) }, 7),
        (Filter { key: Some(b"done-3".to_vec()), ..Filter::default() }, 1),
        (Filter { key: Some(b"unknown-3".to_vec()), ..filter(Phase::Unknown) }, 1),
        (Filter { key: Some(b"done".to_vec()), ..Filter::default() }, 0),
        (Filter { older_than: Some(DAY), ..Filter::default() }, 0),
        (Filter { older_than: Some(Duration::ZERO), ..filter(Phase::Unknown) }, 7),
    ] {
        for limit in [1, 2, 100] {
            let entries = list(&world, SHOP, &filter, limit).await;
            let ids: BTreeSet<_> = entries.iter().map(|entry| entry.id).collect();
            assert_eq!((entries.len(), ids.len()), (count, count), "{filter:?} {limit}");
        }
    }
    let oldest: Vec<_> = list(&world, SHOP, &filter(Phase::Unknown), 3).await;
    assert!(oldest.windows(2).all(|pair| pair[0].settled_at <= pair[1].settled_at), "the oldest first");

    let done = list(&world, SHOP, &Filter { key: Some(b"done-3".to_vec()), ..Filter::default() }, 5).await;
    let Entry { state, attempts, status, body_bytes, space, route, scope, expires_at, .. } = &done[0];
    assert_eq!((*state, *attempts, *status, *body_bytes), (Phase::Completed, 1, Some(201), Some(4)));
    assert_eq!((&space[..], &**route, *scope), (&b"POST /refund"[..], "refund", Scope::from_stored(&[8; 32]).unwrap()));
    assert!(expires_at.unwrap() > done[0].now && !done[0].lapsed());
}

pub async fn other_services_keys_are_not_there(world: World) {
    let ours = unknown(&world, "k").await;
    for state in [None, Some(Phase::Unknown)] {
        let filter = Filter { state, ..Filter::default() };
        assert_eq!(list(&world, SHOP, &filter, 10).await.len(), 1);
        assert_eq!(list(&world, "bank", &filter, 10).await.len(), 0);
    }
    let seen = case(&entry(&world, ours.id).await);
    for change in [Change::Complete(response(b"")), Change::NotExecuted, Change::Purge] {
        let books = world.store().books();
        let decided = books.decide("bank".into(), at_risk(change), vec![seen.clone()]).await.unwrap();
        assert_eq!((&decided.verdicts[..], decided.purges), (&[Verdict::Gone][..], None));
    }
    assert_eq!(entry(&world, ours.id).await.state, Phase::Unknown);
    assert_eq!(verdict(&world, &at_risk(Change::NotExecuted), ours.id).await, Verdict::Done);
    let books = world.store().books();
    assert_eq!(books.audit("bank".into(), None, None, 10).await.unwrap(), []);
    assert_eq!(books.audit("bank".into(), Some(ours.id), None, 10).await.unwrap(), []);
    assert_eq!(books.tally("bank".into()).await.unwrap().counts, []);
}

pub async fn each_change_leads_where_it_says_and_is_noted(mut world: World) {
    let key = unknown(&world, "k").await;
    let mut expected = Vec::new();
    for (change, before, after) in [
        (Change::NotExecuted, "unknown", "retryable"),
        (Change::Purge, "retryable", "none"),
        (Change::Complete(response(b"by hand")), "unknown", "completed"),
        (Change::Release, "completed", "retryable"),
        (Change::Purge, "retryable", "none"),
        (Change::Requeue, "dead", "unknown"),
        (Change::Purge, "unknown", "none"),
    ] {
        if before == "unknown" && world.store().find(key.id).await.unwrap().is_none() {
            unknown(&world, "k").await;
        }
        if before == "dead" {
            unknown(&world, "k").await;
            world
                .by_hand("update keys set state = 'dead', probes = 9, absences = 1, probe_at = settled_at")
                .await
                .unwrap();
        }
        let decision = at_risk(change);
        assert_eq!(verdict(&world, &decision, key.id).await, Verdict::Done, "{before} -> {after}");
        let now = world.store().find(key.id).await.unwrap();
        assert_eq!(now.as_ref().map_or("none", |record| record.state.name()), after);
        expected.push((decision.change.action().to_owned(), before.to_owned(), after.to_owned()));
        if before == "dead" {
            let entry = entry(&world, key.id).await;
            assert_eq!(
                (entry.probes, entry.absences, entry.probe_at),
                (0, 0, None),
                "it is asked about from the start"
            );
        }
    }
    let mut noted = notes(&world, Some(key.id)).await;
    noted.reverse();
    assert!(noted.iter().all(|note| note.actor == "alice" && note.note.as_deref() == Some("accept_risk")));
    let noted: Vec<_> = noted.into_iter().map(|note| (note.action, note.before, note.after)).collect();
    assert_eq!(noted, expected);
}

pub async fn what_an_operator_completed_is_replayed_for_its_routes_ttl(world: World) {
    let key = unknown(&world, "k").await;
    assert_eq!(verdict(&world, &decision(Change::Complete(response(b"by hand"))), key.id).await, Verdict::Done);
    let State::Completed(completed) = world.find(&key).await.state else { panic!("it is not completed") };
    assert_eq!(completed.response, response(b"by hand"));
    let entry = entry(&world, key.id).await;
    let lives = completed.expires_at.unwrap().duration_since(entry.now).unwrap();
    assert!(lives.abs_diff(DAY) < Duration::from_secs(10), "{lives:?}");
    assert_eq!(notes(&world, None).await[0].note.as_deref(), Some("ticket 7"));
    // Released, it keeps nothing of it.
    assert_eq!(verdict(&world, &decision(Change::Release), key.id).await, Verdict::Done);
    let record = world.find(&key).await;
    let next = again(&key);
    assert_eq!(fresh(world.store().take_over(next, (&record).into()).await.unwrap()).attempt, 2);
}

pub async fn not_executed_is_believed_once_the_attempt_is_quiet(world: World) {
    let key = Ask { time_limit: Duration::from_secs(60), ..ask("k") };
    world.reserve(&key).await;
    world.settle(settlement(&key, Ending::Unknown)).await;
    let plain = decision(Change::NotExecuted);
    // An hour past its deadline, which is a minute away.
    match verdict(&world, &plain, key.id).await {
        Verdict::NotQuiet(left) => {
            assert!(left.abs_diff(Duration::from_secs(3660)) < Duration::from_secs(30), "{left:?}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(entry(&world, key.id).await.state, Phase::Unknown);
    assert_eq!(notes(&world, None).await, []);
    assert_eq!(verdict(&world, &at_risk(Change::NotExecuted), key.id).await, Verdict::Done);

    let late = Ask { time_limit: Duration::ZERO, ..ask("late") };
    world.reserve(&late).await;
    world.settle(settlement(&late, Ending::Unknown)).await;
    let quiet = Case { quiet_after: Duration::ZERO, ..case(&entry(&world, late.id).await) };
    assert_eq!(decide(&world, &plain, vec![quiet]).await.verdicts, [Verdict::Done]);
}

pub async fn what_is_in_flight_is_decided_by_nobody(world: World) {
    let key = ask("k");
    world.reserve(&key).await;
    for change in
        [Change::Complete(response(b"")), Change::NotExecuted, Change::Purge, Change::Release, Change::Requeue]
    {
        assert_eq!(verdict(&world, &at_risk(change.clone()), key.id).await, Verdict::Unfit);
        // Seen unknown and in flight again by now: not even then.
        let stale = Case { state: Phase::Unknown, ..case(&entry(&world, key.id).await) };
        let verdict = decide(&world, &at_risk(change), vec![stale]).await.verdicts[0];
        assert!(matches!(verdict, Verdict::Unfit | Verdict::Changed(Phase::InFlight)), "{verdict:?}");
    }
    assert_eq!(world.find(&key).await.state.name(), "in_flight");
    assert_eq!(notes(&world, None).await, []);
}

pub async fn what_has_changed_since_it_was_seen_is_left_alone(world: World) {
    let key = unknown(&world, "k").await;
    let seen = case(&entry(&world, key.id).await);
    let (next, from) = (again(&key), world.find(&key).await);
    fresh(world.store().take_over(next.clone(), (&from).into()).await.unwrap());
    world.settle(settlement(&next, Ending::Unknown)).await;
    // Unknown as before, but of another attempt.
    for change in [Change::Complete(response(b"")), Change::NotExecuted, Change::Purge] {
        let decided = decide(&world, &at_risk(change), vec![seen.clone()]).await;
        assert_eq!(decided.verdicts, [Verdict::Changed(Phase::Unknown)]);
    }
    assert_eq!(world.find(&key).await.token, next.token);
    let gone = Case { id: ask("never").id, ..seen };
    assert_eq!(decide(&world, &at_risk(Change::Purge), vec![gone]).await.verdicts, [Verdict::Gone]);
    assert_eq!(notes(&world, None).await, []);
}

pub async fn of_many_who_decide_at_once_one_does(world: World) {
    let key = unknown(&world, "k").await;
    let seen = case(&entry(&world, key.id).await);
    let decisions: Vec<_> = (0..20)
        .map(|i| match i % 3 {
            0 => at_risk(Change::Complete(response(b"by hand"))),
            1 => at_risk(Change::NotExecuted),
            _ => at_risk(Change::Purge),
        })
        .collect();
    let decided = join_all(decisions.iter().map(|decision| decide(&world, decision, vec![seen.clone()]))).await;
    let verdicts: Vec<_> = decided.iter().map(|decided| decided.verdicts[0]).collect();
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Done).count(), 1, "{verdicts:?}");
    assert!(
        verdicts.iter().all(|v| matches!(v, Verdict::Done | Verdict::Gone | Verdict::Changed(_) | Verdict::Held)),
        "{verdicts:?}"
    );
    assert_eq!(notes(&world, None).await.len(), 1);
}

pub async fn a_late_answer_counts_whatever_was_decided_unless_it_is_stored(world: World) {
    let key = unknown(&world, "k").await;
    assert_eq!(verdict(&world, &at_risk(Change::NotExecuted), key.id).await, Verdict::Done);
    world.settle(completion(&key, b"late")).await;
    assert_eq!(world.find(&key).await.state.name(), "completed");

    let key = unknown(&world, "stored").await;
    assert_eq!(verdict(&world, &decision(Change::Complete(response(b"by hand"))), key.id).await, Verdict::Done);
    let stands = world.settle_late(completion(&key, b"late")).await.unwrap();
    let State::Completed(completed) = stands.state else { panic!("it is not completed") };
    assert_eq!(completed.response, response(b"by hand"));
}

pub async fn what_was_released_is_not_completed_again_by_the_same_attempt(world: World) {
    let key = ask("k");
    world.reserve(&key).await;
    world.settle(completion(&key, b"once")).await;
    let seen = entry(&world, key.id).await;
    assert_eq!(verdict(&world, &decision(Change::Release), key.id).await, Verdict::Done);
    let released = world.find(&key).await;
    assert!((released.state.name(), released.attempt) == ("retryable", 1) && released.token != key.token);
    // The same settlement, whose answer had been lost.
    for ending in [completion(&key, b"once"), settlement(&key, Ending::Unknown)] {
        let stands = world.settle_late(ending).await.unwrap();
        assert_eq!((stands.state.name(), stands.token), ("retryable", released.token));
    }
    // Nor does whoever saw it completed decide about it any more.
    let decided = decide(&world, &decision(Change::Release), vec![case(&seen)]).await;
    assert_eq!(decided.verdicts, [Verdict::Changed(Phase::Retryable)]);
    assert_eq!(notes(&world, Some(key.id)).await.len(), 1);
    let next = again(&key);
    assert_eq!(fresh(world.store().take_over(next.clone(), (&released).into()).await.unwrap()).attempt, 2);
    world.settle(completion(&next, b"twice")).await;
    // Each released key gets one of its own.
    let mut tokens = BTreeSet::new();
    for name in ["k-1", "k-2"] {
        let key = ask(name);
        world.reserve(&key).await;
        world.settle(completion(&key, b"")).await;
    }
    let completed = list(&world, SHOP, &filter(Phase::Completed), 5).await;
    decide(&world, &decision(Change::Release), completed.iter().map(case).collect()).await;
    for entry in list(&world, SHOP, &filter(Phase::Retryable), 5).await {
        tokens.insert(*entry.token.as_bytes());
    }
    assert_eq!((completed.len(), tokens.len()), (3, 3));
}

pub async fn a_decision_that_cannot_be_noted_is_not_taken(mut world: World) {
    let keys = [unknown(&world, "k-0").await, unknown(&world, "k-1").await];
    // The second line of the two is refused.
    world.by_hand("create unique index once on audit (actor)").await.unwrap();
    let mut cases = Vec::new();
    for key in &keys {
        cases.push(case(&entry(&world, key.id).await));
    }
    let books = world.store().books();
    for change in [Change::NotExecuted, Change::Complete(response(b"")), Change::Purge] {
        assert!(books.decide(SHOP.into(), at_risk(change), cases.clone()).await.is_err());
    }
    for key in &keys {
        assert_eq!(entry(&world, key.id).await.state, Phase::Unknown);
    }
    assert_eq!(notes(&world, None).await, []);
    assert!(world.store().renew(renewal(InstanceId::from_stored(5), DAY)).await.unwrap().purges == 0);
}

pub async fn a_purge_is_counted_and_those_who_remember_are_waited_for(world: World) {
    let store = world.store();
    let [one, other, lapsed, elsewhere] = [1, 2, 3, 4].map(InstanceId::from_stored);
    let now = |instance| renewal(instance, DAY);
    assert_eq!(store.renew(now(one)).await.unwrap().purges, 0);
    store.renew(now(other)).await.unwrap();
    store.renew(Renewal { expiry: Duration::ZERO, ..now(lapsed) }).await.unwrap();
    store.renew(Renewal { service: "bank".into(), ..now(elsewhere) }).await.unwrap();

    let keys = [unknown(&world, "k-0").await, unknown(&world, "k-1").await];
    let mut cases = Vec::new();
    for key in &keys {
        cases.push(case(&entry(&world, key.id).await));
    }
    assert_eq!(decide(&world, &decision(Change::Purge), cases.clone()).await.verdicts, [Verdict::Unfit; 2]);
    let decided = decide(&world, &at_risk(Change::Purge), cases).await;
    assert_eq!((&decided.verdicts[..], decided.purges), (&[Verdict::Done; 2][..], Some(1)));
    let waited = forgotten(store.books(), SHOP.into(), 1, Duration::ZERO).await.unwrap();
    assert_eq!(waited, 2, "whose lease has run out, and whoever serves another service, is not waited for");

    // A first renewal that is carried out late does not speak for what was remembered since.
    store.renew(now(one)).await.unwrap();
    assert_eq!(store.books().behind(SHOP.into(), 1).await.unwrap(), 2);
    // Reading the count is not yet having forgotten.
    let read = store.renew(Renewal { purges_seen: Some(0), ..now(one) }).await.unwrap();
    assert_eq!((read.purges, store.books().behind(SHOP.into(), 1).await.unwrap()), (1, 2));
    store.renew(Renewal { purges_seen: Some(1), ..now(one) }).await.unwrap();
    let waits = forgotten(store.books(), SHOP.into(), 1, DAY);
    let sees = store.renew(Renewal { purges_seen: Some(1), ..now(other) });
    let (waited, seen) = futures_util::future::join(waits, sees).await;
    assert_eq!((waited.unwrap(), seen.unwrap().purges), (0, 1));
    // Who starts now remembers nothing.
    store.renew(now(InstanceId::from_stored(6))).await.unwrap();
    assert_eq!(store.books().behind(SHOP.into(), 1).await.unwrap(), 0);
}

pub async fn keys_are_counted_by_route_and_state(world: World) {
    for i in 0..3 {
        unknown(&world, &format!("unknown-{i}")).await;
        let done = Ask { route: "refund".into(), ..ask(&format!("done-{i}")) };
        world.reserve(&done).await;
        world.settle(completion(&done, b"")).await;
    }
    world.reserve(&ask("running")).await;
    let tally = world.store().books().tally(SHOP.into()).await.unwrap();
    let counts: Vec<_> = tally.counts.iter().map(|c| (&*c.route, c.state, c.keys, c.exact)).collect();
    let expected =
        [("pay", Phase::InFlight, 1, true), ("pay", Phase::Unknown, 3, true), ("refund", Phase::Completed, 3, true)];
    assert_eq!(counts, expected);
    assert_eq!((tally.sampled, tally.share), (7, 1.0));
}

pub async fn the_audit_log_is_told_the_latest_first(world: World) {
    let mut keys = Vec::new();
    for i in 0..5 {
        let key = unknown(&world, &format!("k-{i}")).await;
        assert_eq!(verdict(&world, &at_risk(Change::NotExecuted), key.id).await, Verdict::Done);
        keys.push(key.id);
    }
    let (mut told, mut before) = (Vec::new(), None);
    loop {
        let notes = world.store().books().audit(SHOP.into(), None, before, 2).await.unwrap();
        let Some(last) = notes.last() else { break };
        before = Some(last.seq);
        told.extend(notes.iter().map(|note| note.id));
    }
    keys.reverse();
    assert_eq!(told, keys);
    assert_eq!(notes(&world, Some(keys[2])).await.len(), 1);
}

pub async fn what_was_decided_is_there_after_reopening(mut world: World) {
    let [kept, gone] = [unknown(&world, "kept").await, unknown(&world, "gone").await];
    verdict(&world, &decision(Change::Complete(response(b"by hand"))), kept.id).await;
    verdict(&world, &at_risk(Change::Purge), gone.id).await;
    world.reopen().await;
    let Settled::Fenced(Some(record)) = world.store().settle(completion(&kept, b"late")).await.unwrap() else {
        panic!("it is not there")
    };
    assert_eq!(record.state.name(), "completed");
    assert!(world.store().find(gone.id).await.unwrap().is_none());
    let noted: Vec<_> = notes(&world, None).await.into_iter().map(|note| (note.action, note.after)).collect();
    assert_eq!(noted, [("purge", "none"), ("resolve", "completed")].map(|(a, b)| (a.to_owned(), b.to_owned())));
}
