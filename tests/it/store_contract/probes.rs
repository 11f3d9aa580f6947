//! Asking what became of unknown attempts, as far as the store has a part in it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use oncegate::domain::attempt::{Ending, Settlement};
use oncegate::domain::probe::{Finding, Kept, Probe, Schedule, Verdict};
use oncegate::domain::record::{Ask, RecordId, Reservation, State};
use oncegate::store::Seen;

use crate::harness::world::{DAY, World, again, ask, ask_of, completion, fresh, response, settlement};

const ZERO: Duration = Duration::ZERO;

/// For the route of all these asks: quiet at once, and asked about as often as one looks.
fn at_once() -> Schedule {
    Schedule { route: "pay".into(), quiet_after: ZERO, pause_first: ZERO, pause_cap: ZERO }
}

/// An attempt whose own time is over.
fn over(key: &str) -> Ask {
    Ask { time_limit: ZERO, ..ask(key) }
}

impl World {
    async fn unknown(&self, ask: &Ask) {
        self.reserve(ask).await;
        self.settle(settlement(ask, Ending::Unknown)).await;
    }

    async fn claim(&self, schedule: Schedule, limit: u32) -> Vec<Probe> {
        self.store().claim(&"shop".into(), vec![schedule], limit).await.unwrap()
    }

    /// Claims the only one there is.
    async fn probe(&self) -> Probe {
        let mut probes = self.claim(at_once(), 10).await;
        assert_eq!(probes.len(), 1);
        probes.remove(0)
    }

    async fn resolve(&self, probe: &Probe, verdict: Verdict) -> bool {
        let (id, token) = (probe.subject.id, probe.subject.token);
        let finding = Finding { id, token, probe: probe.number, verdict, note: "because".into() };
        self.store().resolve(finding).await.unwrap()
    }

    async fn state(&self, ask: &Ask) -> &'static str {
        self.find(ask).await.state.name()
    }

    async fn pages(&self, service: &str, routes: &[&str], since: Duration, limit: u32) -> Vec<Kept> {
        let routes: Vec<Arc<str>> = routes.iter().map(|route| (*route).into()).collect();
        let (mut keys, mut after) = (Vec::new(), None);
        loop {
            let page = self.store().page(&service.into(), routes.clone(), since, after, limit).await.unwrap();
            assert!(page.keys.len() <= limit as usize);
            keys.extend(page.keys);
            after = page.next;
            if after.is_none() {
                return keys;
            }
        }
    }
}

fn completed(body: &[u8]) -> Verdict {
    Verdict::Completed { response: response(body), ttl: DAY, remember: None }
}

fn ids(probes: &[Probe]) -> Vec<RecordId> {
    probes.iter().map(|probe| probe.subject.id).collect()
}

pub async fn what_is_unknown_quiet_and_due_is_claimed_and_nothing_else(world: World) {
    let due = over("due");
    world.unknown(&due).await;
    let other_service = Ask { time_limit: ZERO, ..ask_of("shop2", [7; 32], b"", "k") };
    for other in [other_service, Ask { route: "other".into(), ..over("other") }, ask("not-over-yet")] {
        world.unknown(&other).await;
    }
    world.reserve(&over("in-flight")).await;
    for (key, ending) in [
        ("completed", Ending::Completed { response: response(b""), ttl: DAY, remember: None }),
        ("retryable", Ending::Retryable { ttl: DAY }),
    ] {
        let ask = over(key);
        world.reserve(&ask).await;
        world.settle(settlement(&ask, ending)).await;
    }
    assert_eq!(world.claim(Schedule { quiet_after: DAY, ..at_once() }, 10).await, [], "it may still be running");
    assert_eq!(ids(&world.claim(at_once(), 10).await), [due.id]);
}

pub async fn a_question_is_counted_when_it_is_claimed_and_the_next_comes_later_each_time(world: World) {
    world.unknown(&over("k")).await;
    let [first, cap] = [200, 350].map(Duration::from_millis);
    let schedule = Schedule { pause_first: first, pause_cap: cap, ..at_once() };
    let mut at = Vec::new();
    for number in 1..=4 {
        let probe = loop {
            match world.claim(schedule.clone(), 10).await.pop() {
                Some(probe) => break probe,
                None => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        };
        at.push(tokio::time::Instant::now());
        assert_eq!((probe.number, probe.absences), (number, 0));
    }
    let pauses: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // By the store's clock, in milliseconds; ours is looked at a little later.
    let slack = Duration::from_millis(40);
    for (pause, least) in pauses.iter().zip([first, cap, cap]) {
        assert!(*pause + slack >= least, "{pauses:?}");
    }
}

pub async fn of_many_who_claim_at_once_each_gets_others(world: World) {
    join_all((0..40).map(|i| over(&format!("k-{i}"))).map(async |ask| world.unknown(&ask).await)).await;
    let later = Schedule { pause_first: DAY, pause_cap: DAY, ..at_once() };
    let claims = join_all((0..10).map(|_| world.claim(later.clone(), 3))).await;
    let mut claimed: Vec<_> = claims.iter().flat_map(|claim| ids(claim)).collect();
    loop {
        let more = world.claim(later.clone(), 3).await;
        if more.is_empty() {
            break;
        }
        claimed.extend(ids(&more));
    }
    assert_eq!(claimed.len(), 40);
    assert_eq!(claimed.into_iter().collect::<HashSet<_>>().len(), 40);
}

pub async fn no_more_are_claimed_than_wanted_and_the_oldest_come_first(world: World) {
    let asks = ["first", "second", "third"].map(over);
    for ask in &asks {
        world.unknown(ask).await;
        // The store's clock ticks in milliseconds, and the oldest is to be known.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let later = Schedule { pause_first: DAY, pause_cap: DAY, ..at_once() };
    let mut claimed = ids(&world.claim(later.clone(), 2).await);
    claimed.sort();
    let mut oldest = [asks[0].id, asks[1].id];
    oldest.sort();
    assert_eq!(claimed, oldest);
    let none = Schedule { route: "none".into(), ..later.clone() };
    let rest = world.store().claim(&"shop".into(), vec![none, later], 2).await.unwrap();
    assert_eq!(ids(&rest), [asks[2].id]);
}

pub async fn what_is_asked_about_is_what_was_reserved(world: World) {
    let first = Ask { path: Some(Bytes::from_static(b"/pay?a=\0\xff")), ..over("it's-a-key") };
    world.unknown(&first).await;
    let probe = world.probe().await;
    let subject = &probe.subject;
    assert_eq!((subject.id, subject.token, subject.scope), (first.id, first.token, first.scope));
    assert_eq!((&subject.key[..], &*subject.route, &subject.path), (&b"it's-a-key"[..], "pay", &first.path));
    let second = Ask { path: Some(Bytes::from_static(b"/pay?b")), ..again(&first) };
    for next in [second, Ask { path: None, ..again(&first) }] {
        let seen = Seen::from(&world.find(&first).await);
        fresh(world.store().take_over(next.clone(), seen).await.unwrap());
        world.settle(settlement(&next, Ending::Unknown)).await;
        assert_eq!(world.probe().await.subject.path, next.path);
    }
}

pub async fn a_response_completes_what_is_unknown(world: World) {
    let ask = over("k");
    world.unknown(&ask).await;
    let [old, _new] = [world.probe().await, world.probe().await];
    let remember = Some(DAY);
    let verdict = Verdict::Completed { response: response(b"\0\xff"), ttl: ZERO, remember };
    assert!(world.resolve(&old, verdict).await, "proof is proof, whenever it comes");
    let record = world.find(&ask).await;
    let State::Completed(completed) = record.state else { panic!("{:?}", record.state) };
    assert_eq!((completed.response, record.late), (response(b"\0\xff"), true));
}

pub async fn what_was_not_executed_is_taken_over_as_any_released_key(world: World) {
    let ask = over("k");
    world.unknown(&ask).await;
    let probe = world.probe().await;
    assert!(world.resolve(&probe, Verdict::Open { absences: 1 }).await);
    let probe = world.probe().await;
    assert_eq!((probe.number, probe.absences), (2, 1));
    assert!(world.resolve(&probe, Verdict::Retryable { ttl: DAY }).await);
    assert_eq!(world.state(&ask).await, "retryable");
    let seen = Seen::from(&world.find(&ask).await);
    assert_eq!(fresh(world.store().take_over(again(&ask), seen).await.unwrap()).attempt, 2);
}

pub async fn a_key_given_up_is_nobodys_to_take_and_still_takes_its_late_completion(world: World) {
    let ask = over("k");
    world.unknown(&ask).await;
    let probe = world.probe().await;
    assert!(world.resolve(&probe, Verdict::Dead).await);
    assert_eq!(world.state(&ask).await, "dead");
    assert_eq!(world.claim(at_once(), 10).await, []);
    assert_eq!(world.store().reap(10).await.unwrap(), 0, "it is kept until somebody decides");
    let seen = Seen::from(&world.find(&ask).await);
    assert!(matches!(world.store().take_over(again(&ask), seen).await.unwrap(), Reservation::Taken(_)));
    world.settle(completion(&ask, b"late")).await;
    assert_eq!(world.state(&ask).await, "completed");
}

pub async fn a_denial_counts_only_as_the_answer_to_the_last_question(world: World) {
    let ask = over("k");
    world.unknown(&ask).await;
    let [old, new] = [world.probe().await, world.probe().await];
    for verdict in [Verdict::Open { absences: 1 }, Verdict::Dead, Verdict::Retryable { ttl: DAY }] {
        assert!(!world.resolve(&old, verdict).await);
    }
    assert_eq!(world.state(&ask).await, "unknown");
    assert!(world.resolve(&new, Verdict::Retryable { ttl: DAY }).await);
    assert_eq!(world.state(&ask).await, "retryable");
}

pub async fn nothing_that_others_have_decided_is_changed(world: World) {
    let endings: [fn(&Ask) -> Settlement; 2] =
        [|ask| completion(ask, b"theirs"), |ask| settlement(ask, Ending::Retryable { ttl: DAY })];
    for (number, ending) in endings.into_iter().enumerate() {
        let ask = over(&format!("k-{number}"));
        world.unknown(&ask).await;
        let probe = world.probe().await;
        world.settle(ending(&ask)).await;
        let before = world.state(&ask).await;
        for verdict in
            [completed(b"ours"), Verdict::Dead, Verdict::Open { absences: 1 }, Verdict::Retryable { ttl: ZERO }]
        {
            assert!(!world.resolve(&probe, verdict).await);
        }
        let record = world.find(&ask).await;
        assert_eq!((record.state.name(), record.past_ttl), (before, false));
        if let State::Completed(completed) = record.state {
            assert_eq!(completed.response, response(b"theirs"));
        }
    }
}

pub async fn what_is_said_of_an_attempt_counts_for_no_other(world: World) {
    let first = over("k");
    world.unknown(&first).await;
    let probe = world.probe().await;
    let second = again(&first);
    let seen = Seen::from(&world.find(&first).await);
    fresh(world.store().take_over(second.clone(), seen).await.unwrap());
    world.settle(settlement(&second, Ending::Unknown)).await;
    assert_eq!(world.probe().await.number, probe.number, "the numbers are the same, the attempts are not");
    for verdict in [completed(b"first"), Verdict::Dead, Verdict::Retryable { ttl: DAY }] {
        assert!(!world.resolve(&probe, verdict).await);
    }
    assert_eq!(world.state(&second).await, "unknown");
}

pub async fn each_decision_stands_in_the_audit_with_its_reason(mut world: World) {
    for (key, verdict) in [
        ("a", completed(b"")),
        ("b", Verdict::Dead),
        ("c", Verdict::Retryable { ttl: DAY }),
        ("d", Verdict::Open { absences: 0 }),
    ] {
        world.unknown(&over(key)).await;
        let probe = world.probe().await;
        assert!(world.resolve(&probe, verdict.clone()).await);
        assert_eq!(world.resolve(&probe, verdict).await, key == "d", "once more is once");
        if key == "d" {
            break;
        }
    }
    let told: HashSet<_> = world.audit().await.into_iter().collect();
    let line = |key: &str, action: &str, after: &str| {
        let id = over(key).id.to_string();
        ["shop", "reconciler", action, &id, "unknown", after, "because"].join(" ")
    };
    let expected = [line("a", "resolve", "completed"), line("b", "give_up", "dead"), line("c", "resolve", "retryable")];
    assert_eq!(told, expected.into());
}

pub async fn the_next_attempt_is_asked_about_anew(world: World) {
    let first = over("k");
    world.unknown(&first).await;
    let later = Schedule { pause_first: DAY, pause_cap: DAY, ..at_once() };
    let probe = world.claim(later, 1).await.remove(0);
    assert!(world.resolve(&probe, Verdict::Open { absences: 1 }).await);
    let second = again(&first);
    let seen = Seen::from(&world.find(&first).await);
    fresh(world.store().take_over(second.clone(), seen).await.unwrap());
    world.settle(settlement(&second, Ending::Unknown)).await;
    let probe = world.probe().await;
    assert_eq!((probe.subject.token, probe.number, probe.absences), (second.token, 1, 0));
}

pub async fn pages_hold_what_was_settled_of_late_each_once(world: World) {
    let asks: Vec<Ask> = (0..11).map(|i| over(&format!("k-{i}"))).collect();
    for (number, ask) in asks.iter().enumerate() {
        world.reserve(ask).await;
        let ending = match number % 3 {
            0 => Ending::Completed { response: response(b""), ttl: DAY, remember: None },
            1 => Ending::Retryable { ttl: DAY },
            _ => Ending::Unknown,
        };
        world.settle(settlement(ask, ending)).await;
    }
    world.reserve(&ask("in-flight")).await;
    world.unknown(&Ask { route: "other".into(), ..over("other") }).await;
    world.unknown(&ask_of("shop2", [7; 32], b"", "k")).await;
    for limit in [1, 3, 14, 100] {
        let keys = world.pages("shop", &["pay"], DAY, limit).await;
        assert!(keys.is_sorted_by_key(|kept| kept.subject.id));
        assert_eq!(keys.len(), 11);
        for (number, ask) in asks.iter().enumerate() {
            let kept = keys.iter().find(|kept| kept.subject.id == ask.id).unwrap();
            let expected = [("completed", Some(201)), ("retryable", None), ("unknown", None)][number % 3];
            assert_eq!((kept.state, kept.status), expected);
            assert_eq!((kept.subject.token, &kept.subject.key[..]), (ask.token, ask.key.as_bytes()));
        }
    }
    assert_eq!(world.pages("shop", &["pay", "other"], DAY, 5).await.len(), 12);
    assert_eq!(world.pages("shop", &[], DAY, 5).await, []);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(world.pages("shop", &["pay"], Duration::from_millis(1), 5).await, []);
}
