//! What is accepted now and sent later.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use oncegate::domain::attempt::{Ending, InstanceId, Settlement, Token};
use oncegate::domain::job::{Enqueued, Job, PickUp, PickedUp, Retry, Terms};
use oncegate::domain::phase::Phase;
use oncegate::domain::policy::OnUnknown;
use oncegate::domain::record::{Ask, Record, RecordId};
use oncegate::domain::recovery::RecoveryPoint;
use oncegate::domain::testimony::{Heard, Reservation, What, Word};
use oncegate::store::books::{COUNTED_MAX, Case, Change, Decision, Verdict};
use oncegate::store::{Seen, Settled};

use crate::harness::world::{
    DAY, World, again, ask, completion, order, pick_up, response, settlement, taken, token, us,
};

const RETRY: Retry = Retry {
    max_attempts: 3,
    base: Duration::from_millis(1),
    cap: Duration::from_millis(1),
    give_up_after: Duration::from_secs(3_600),
};

fn terms() -> Terms {
    Terms {
        route: "pay".into(),
        on_unknown: OnUnknown::Hold,
        quiet_after: Duration::ZERO,
        time_limit: Duration::from_secs(30),
        retry: RETRY,
    }
}

fn pick(terms: Terms, count: usize) -> PickUp {
    pick_up((0..count).map(|_| token()).collect(), terms)
}

impl World {
    async fn accept(&self, ask: &Ask) {
        assert!(matches!(self.store().enqueue(order(ask), None).await.unwrap(), Enqueued::Accepted));
    }

    async fn pick_up(&self, order: PickUp) -> PickedUp {
        self.store().pick_up(order).await.unwrap()
    }

    async fn pick_one(&self, terms: Terms) -> Job {
        let mut picked = self.pick_up(pick(terms, 1)).await;
        picked.jobs.pop().expect("it is due")
    }

    async fn stands(&self, ask: &Ask) -> &'static str {
        self.find(ask).await.state.name()
    }

    async fn ends(&self, settlement: Settlement) -> Settled {
        self.store().settle(settlement).await.unwrap()
    }

    /// What its service says of a delivery.
    async fn says(&self, job: &Job, what: What) -> Heard {
        let of = Reservation { id: job.lease.ask.id, token: job.lease.ask.token };
        self.store().testimony().hear(Word { service: "shop".into(), of, what }).await.unwrap()
    }

    /// Decides about one key, as it stands.
    async fn decides(&self, ask: &Ask, change: Change) -> (Verdict, bool) {
        let record = self.find(ask).await;
        let state = Phase::parse(record.state.name()).unwrap();
        let (id, token, quiet_after) = (record.id, record.token, Duration::ZERO);
        let case = Case { id, token, state, ttl: DAY, remember: None, quiet_after };
        let decision = Decision { change, actor: "alice".into(), note: None, accept_risk: true };
        let decided = self.store().books().decide("shop".into(), Arc::new(decision), vec![case]).await.unwrap();
        (decided.verdicts[0], decided.queued == [id])
    }
}

fn ids(picked: &PickedUp) -> Vec<RecordId> {
    picked.jobs.iter().map(|job| job.lease.ask.id).collect()
}

/// How an attempt under this token ended.
fn ended(job: &Job, ending: Ending, again: Option<Duration>) -> Settlement {
    let ask = Ask::clone(&job.lease.ask);
    settlement(&ask, ending).due_in(again)
}

pub async fn what_was_accepted_is_picked_up_as_an_attempt_with_its_request(world: World) {
    let ask = Ask { path: Some(Bytes::from_static(b"/pay?a=\0\xff")), ..ask("k") };
    world.accept(&ask).await;
    let record = world.find(&ask).await;
    assert_eq!((record.state.name(), record.attempt, record.accepted_at.is_some()), ("queued", 0, true));
    assert!(!record.past_ttl && !record.late);
    let order = pick(terms(), 5);
    let mut picked = world.pick_up(order.clone()).await;
    assert_eq!((picked.jobs.len(), picked.dead.len()), (1, 0));
    let Job { lease, sealed } = picked.jobs.pop().unwrap();
    let got = &lease.ask;
    assert_eq!((got.id, &got.service, got.scope, &got.space), (ask.id, &ask.service, ask.scope, &ask.space));
    assert_eq!((&got.key, &got.path, &got.route, &got.recipe), (&ask.key, &ask.path, &ask.route, &ask.recipe));
    assert_eq!((got.fingerprint, got.instance, lease.attempt), (ask.fingerprint, us(), 1));
    assert!(order.tokens.contains(&got.token));
    let delivery = lease.delivery.unwrap();
    assert_eq!((Some(delivery.accepted_at), delivery.number), (record.accepted_at, 1));
    assert!(delivery.give_up_in <= RETRY.give_up_after && delivery.give_up_in > Duration::from_secs(3_000));
    assert_eq!(sealed, self::order(&ask).sealed);
    assert_eq!(world.stands(&ask).await, "in_flight");
    assert_eq!(ids(&world.pick_up(pick(terms(), 5)).await), []);
    // It stands under its instance as any attempt.
    let standing = world.store().standing(us(), Duration::ZERO).await.unwrap();
    assert_eq!(standing, [(ask.id, got.token)]);
}

pub async fn of_many_who_accept_or_reserve_a_key_at_once_one_has_it(world: World) {
    let first = ask("k");
    let accepts = (0..20).map(|_| async {
        matches!(world.store().enqueue(order(&again(&first)), None).await.unwrap(), Enqueued::Accepted)
    });
    let reserves = (0..20).map(|_| async {
        let reservation = world.store().reserve(again(&first)).await.unwrap();
        matches!(reservation, oncegate::domain::record::Reservation::Fresh(_))
    });
    let (accepted, reserved) = tokio::join!(join_all(accepts), join_all(reserves));
    assert_eq!(accepted.into_iter().chain(reserved).filter(|has_it| *has_it).count(), 1);
}

pub async fn many_are_accepted_at_once_and_of_many_who_pick_up_each_gets_others(world: World) {
    let asks: Vec<Ask> = (0..200).map(|number| ask(&format!("k-{number}"))).collect();
    join_all(asks.iter().map(|ask| world.accept(ask))).await;
    let mut seen = HashSet::new();
    while seen.len() < asks.len() {
        let rounds = (0..8).map(|_| world.pick_up(pick(terms(), 10)));
        let picked = join_all(rounds).await;
        for id in picked.iter().flat_map(ids) {
            assert!(seen.insert(id), "{id} was picked up twice");
        }
        assert!(picked.iter().all(|picked| picked.jobs.len() <= 10));
    }
}

pub async fn who_comes_second_finds_what_was_accepted_and_takes_nothing(world: World) {
    let first = ask("k");
    world.accept(&first).await;
    let Enqueued::Taken(record) = world.store().enqueue(order(&again(&first)), None).await.unwrap() else {
        panic!("accepted twice")
    };
    assert_eq!((record.token, record.state.name()), (first.token, "queued"));
    assert_eq!(taken(world.store().reserve(again(&first)).await.unwrap()).state.name(), "queued");
    let seen = Seen::from(&record);
    assert_eq!(taken(world.store().take_over(again(&first), seen).await.unwrap()).token, first.token);
    assert!(matches!(world.store().enqueue(order(&again(&first)), Some(seen)).await.unwrap(), Enqueued::Taken(_)));
}

pub async fn a_record_that_the_next_request_may_have_is_accepted_over(world: World) {
    let first = ask("k");
    world.reserve(&first).await;
    world.settle(settlement(&first, Ending::Retryable { ttl: DAY })).await;
    let record: Record = world.find(&first).await;
    let stale = Seen { token: token(), ..Seen::from(&record) };
    assert!(matches!(world.store().enqueue(order(&again(&first)), Some(stale)).await.unwrap(), Enqueued::Taken(_)));
    let next = again(&first);
    let accepted = world.store().enqueue(order(&next), Some(Seen::from(&record))).await.unwrap();
    assert!(matches!(accepted, Enqueued::Accepted));
    let job = world.pick_one(terms()).await;
    assert_eq!(
        (job.lease.attempt, job.lease.delivery.unwrap().number),
        (2, 1),
        "tries are counted from the acceptance"
    );
    // And over one that is gone.
    let gone = ask("gone");
    let seen = Seen { token: gone.token, state: "retryable", past_ttl: false };
    assert!(matches!(world.store().enqueue(order(&gone), Some(seen)).await.unwrap(), Enqueued::Accepted));
}

pub async fn past_its_ttl_a_delivered_key_is_accepted_anew(world: World) {
    let first = ask("k");
    world.accept(&first).await;
    let job = world.pick_one(terms()).await;
    let ttl = Duration::from_millis(1);
    world.settle(ended(&job, Ending::Completed { response: response(b""), ttl, remember: None }, None)).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let record = world.find(&first).await;
    assert!(record.past_ttl);
    let accepted = world.store().enqueue(order(&again(&first)), Some(Seen::from(&record))).await.unwrap();
    assert!(matches!(accepted, Enqueued::Accepted));
    assert_eq!(world.pick_one(terms()).await.lease.attempt, 1);
}

pub async fn what_was_released_is_queued_again_and_due_when_it_was_said(world: World) {
    let ask = ask("k");
    world.accept(&ask).await;
    let job = world.pick_one(terms()).await;
    let later = Duration::from_millis(400);
    let begun = tokio::time::Instant::now();
    let released = ended(&job, Ending::Retryable { ttl: DAY }, Some(later));
    assert!(matches!(world.ends(released.clone()).await, Settled::Done { expires_at: None }));
    assert_eq!(world.stands(&ask).await, "queued");
    assert!(matches!(world.ends(released).await, Settled::Fenced(Some(_))), "the same again changes nothing");
    let next = loop {
        match world.pick_up(pick(terms(), 1)).await.jobs.pop() {
            Some(job) => break job,
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    assert!(begun.elapsed() >= later);
    assert_eq!((next.lease.attempt, next.lease.delivery.unwrap().number), (2, 2));
    assert_ne!(next.lease.ask.token, job.lease.ask.token);
    // What nobody waited for is queued again, too, and at once.
    let stray = Settlement::of_stray(ask.id, next.lease.ask.token, DAY);
    assert!(matches!(world.ends(stray).await, Settled::Done { expires_at: None }));
    assert_eq!(world.pick_one(terms()).await.lease.attempt, 3);
}

pub async fn a_late_completion_is_taken_while_it_waits_and_dropped_once_the_next_attempt_runs(world: World) {
    for (key, is_picked_up) in [("waits", false), ("runs", true)] {
        let ask = ask(key);
        world.accept(&ask).await;
        let job = world.pick_one(terms()).await;
        world.settle(ended(&job, Ending::Retryable { ttl: DAY }, None)).await;
        if is_picked_up {
            world.pick_one(terms()).await;
        }
        let late = world.ends(completion(&job.lease.ask, b"late")).await;
        assert_eq!(matches!(late, Settled::Done { .. }), !is_picked_up, "{key}");
        assert_eq!(ids(&world.pick_up(pick(terms(), 5)).await), [], "{key}");
    }
}

pub async fn an_unknown_outcome_is_picked_up_only_where_the_route_says_so_and_once_it_is_quiet(world: World) {
    let ask = ask("k");
    world.accept(&ask).await;
    let brief = Terms { time_limit: Duration::from_millis(300), ..terms() };
    let job = world.pick_one(brief.clone()).await;
    world.settle(ended(&job, Ending::Unknown, Some(Duration::ZERO))).await;
    assert_eq!(ids(&world.pick_up(pick(brief.clone(), 1)).await), [], "it is held");
    let quiet_after = Duration::from_millis(300);
    let quiet = Terms { on_unknown: OnUnknown::RetryWhenQuiet, quiet_after, ..brief.clone() };
    assert_eq!(ids(&world.pick_up(pick(quiet.clone(), 1)).await), [], "it may be running");
    tokio::time::sleep(Duration::from_millis(650)).await;
    let job = world.pick_one(quiet).await;
    assert_eq!(job.lease.attempt, 2);
    // What nobody knows of because its instance has died is the same.
    let settled = Settlement::of_lost(ask.id, job.lease.ask.token);
    world.settle(settled).await;
    assert_eq!(world.pick_one(Terms { on_unknown: OnUnknown::Retry, ..brief }).await.lease.attempt, 3);
    // What was not accepted is nobody's to deliver.
    let other = self::ask("sync");
    world.reserve(&other).await;
    world.settle(settlement(&other, Ending::Unknown)).await;
    let at_once = Terms { on_unknown: OnUnknown::Retry, ..terms() };
    assert_eq!(ids(&world.pick_up(pick(at_once, 5)).await), []);
}

pub async fn what_was_tried_often_or_long_enough_is_dead_with_its_reason(mut world: World) {
    let [often, long, said] = ["often", "long", "said"].map(ask);
    world.accept(&often).await;
    for number in 1..=3 {
        let job = world.pick_one(terms()).await;
        assert_eq!(job.lease.delivery.unwrap().number, number);
        world.settle(ended(&job, Ending::Retryable { ttl: DAY }, None)).await;
    }
    let picked = world.pick_up(pick(terms(), 5)).await;
    assert_eq!((ids(&picked), picked.dead.len(), picked.dead[0].id), (vec![], 1, often.id));
    world.accept(&long).await;
    let impatient = Retry { give_up_after: Duration::from_millis(1), ..RETRY };
    tokio::time::sleep(Duration::from_millis(20)).await;
    let picked = world.pick_up(pick(Terms { retry: impatient, ..terms() }, 5)).await;
    assert_eq!((ids(&picked), picked.dead.len()), (vec![], 1));
    world.accept(&said).await;
    let job = world.pick_one(terms()).await;
    let store = Arc::clone(world.store());
    let bury = |token: Token, states| store.bury(said.id, token, states, "because".to_owned());
    assert!(!bury(token(), &["in_flight"]).await.unwrap() && !bury(job.lease.ask.token, &["queued"]).await.unwrap());
    assert!(bury(job.lease.ask.token, &["queued", "in_flight"]).await.unwrap());
    for ask in [&often, &long, &said] {
        assert_eq!(world.stands(ask).await, "dead");
    }
    assert_eq!(ids(&world.pick_up(pick(terms(), 5)).await), []);
    assert_eq!(store.reap(100).await.unwrap(), 0);
    drop(store);
    let line = |ask: &Ask, before: &str, note: &str| format!("shop delivery give_up {} {before} dead {note}", ask.id);
    assert_eq!(
        world.audit().await,
        [
            line(&often, "queued", "tried 3 times"),
            line(&long, "queued", "not delivered in time, after 0 attempts"),
            line(&said, "in_flight", "because"),
        ]
    );
}

pub async fn what_is_queued_anew_has_all_its_tries_again(world: World) {
    let ask = ask("k");
    world.accept(&ask).await;
    let once = Terms { retry: Retry { max_attempts: 1, ..RETRY }, ..terms() };
    let job = world.pick_one(once.clone()).await;
    world.settle(ended(&job, Ending::Retryable { ttl: DAY }, None)).await;
    assert_eq!(world.pick_up(pick(once.clone(), 1)).await.dead.len(), 1);
    assert_eq!(world.decides(&ask, Change::Requeue).await, (Verdict::Done, true));
    let job = world.pick_one(once.clone()).await;
    assert_eq!((job.lease.attempt, job.lease.delivery.unwrap().number), (2, 1));
    // What nobody knew of when it was given up, nobody knows of then.
    world.settle(ended(&job, Ending::Unknown, None)).await;
    assert!(world.store().bury(ask.id, job.lease.ask.token, &["unknown"], "because".to_owned()).await.unwrap());
    assert_eq!(world.decides(&ask, Change::Requeue).await, (Verdict::Done, false));
    assert_eq!(world.stands(&ask).await, "unknown");
    // And what did not execute is delivered again.
    assert_eq!(world.decides(&ask, Change::NotExecuted).await, (Verdict::Done, true));
    assert_eq!(world.pick_one(once).await.lease.attempt, 3);
}

pub async fn an_attempt_that_was_not_sent_does_not_count(world: World) {
    let ask = ask("k");
    world.accept(&ask).await;
    let once = Terms { retry: Retry { max_attempts: 1, ..RETRY }, ..terms() };
    for attempt in 1..=3 {
        let job = world.pick_one(once.clone()).await;
        assert_eq!((job.lease.attempt, job.lease.delivery.unwrap().number), (attempt, 1));
        world.settle(ended(&job, Ending::Retryable { ttl: DAY }, Some(Duration::ZERO))).await;
        world.pick_up(PickUp { unsent: vec![ask.id], ..pick(terms(), 0) }).await;
    }
    // Told more often than there were any, it is not less than none.
    world.pick_up(PickUp { unsent: vec![ask.id], ..pick(terms(), 0) }).await;
    let job = world.pick_one(once.clone()).await;
    assert_eq!((job.lease.attempt, job.lease.delivery.unwrap().number), (4, 1));
    world.settle(ended(&job, Ending::Retryable { ttl: DAY }, Some(Duration::ZERO))).await;
    assert_eq!(world.pick_up(pick(once, 1)).await.dead.len(), 1, "this one counts");
}

pub async fn what_is_busy_is_left_out_and_the_others_are_picked_up(world: World) {
    let asks = ["open", "queued", "free"].map(ask);
    let retry = Terms { on_unknown: OnUnknown::Retry, ..terms() };
    world.accept(&asks[0]).await;
    let job = world.pick_one(retry.clone()).await;
    world.settle(ended(&job, Ending::Unknown, Some(Duration::ZERO))).await;
    world.accept(&asks[1]).await;
    world.accept(&asks[2]).await;
    let busy = vec![asks[0].id, asks[1].id];
    let picked = world.pick_up(PickUp { busy, ..pick(retry.clone(), 1) }).await;
    assert_eq!(ids(&picked), [asks[2].id]);
    // Its end counts: nobody else has its token.
    world.settle(completion(&job.lease.ask, b"")).await;
    assert_eq!(ids(&world.pick_up(pick(retry, 5)).await), [asks[1].id]);
}

pub async fn a_request_goes_with_its_keys_end(mut world: World) {
    let asks = ["told", "completed", "purged", "reaped", "stays"].map(ask);
    let [told, completed, purged, reaped, _] = &asks;
    join_all(asks.iter().map(|ask| world.accept(ask))).await;
    let jobs = world.pick_up(pick(terms(), 5)).await.jobs;
    let job = |ask: &Ask| jobs.iter().find(|job| job.lease.ask.id == ask.id).unwrap();
    world.settle(completion(&job(told).lease.ask, b"")).await;
    let delivered = PickUp { delivered: asks.iter().map(|ask| ask.id).collect(), ..pick(terms(), 0) };
    assert_eq!(ids(&world.pick_up(delivered).await), []);
    world.settle(ended(job(completed), Ending::Unknown, None)).await;
    assert_eq!(world.decides(completed, Change::Complete(response(b""))).await, (Verdict::Done, false));
    world.settle(ended(job(purged), Ending::Retryable { ttl: DAY }, None)).await;
    assert_eq!(world.decides(purged, Change::Purge).await, (Verdict::Done, false));
    let ttl = Duration::from_millis(1);
    world.settle(ended(job(reaped), Ending::Completed { response: response(b""), ttl, remember: None }, None)).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(world.store().reap(10).await.unwrap(), 1);
    assert_eq!(world.rows_of("outbox").await, 1);
}

pub async fn a_released_delivery_is_the_next_requests(world: World) {
    let ask = ask("k");
    world.accept(&ask).await;
    let job = world.pick_one(terms()).await;
    let point = What::Reached(RecoveryPoint::parse("charge_created").unwrap());
    assert_eq!(world.says(&job, point).await, Heard::Taken);
    world.settle(completion(&job.lease.ask, b"")).await;
    assert_eq!(world.decides(&ask, Change::Release).await, (Verdict::Done, false));
    let record = world.find(&ask).await;
    assert_eq!((record.state.name(), record.accepted_at), ("retryable", None));
    assert_eq!(ids(&world.pick_up(pick(terms(), 5)).await), []);
    let next = crate::harness::world::fresh(world.store().take_over(again(&ask), Seen::from(&record)).await.unwrap());
    assert_eq!((next.attempt, next.recovery_point), (2, None), "all of it is executed again");
}

pub async fn the_sweeper_judges_a_delivery_as_any_attempt(world: World) {
    let ask = ask("k");
    world.accept(&ask).await;
    let gone = PickUp { instance: InstanceId::from_stored(77), ..pick(terms(), 1) };
    assert_eq!(ids(&world.pick_up(gone).await), [ask.id]);
    let swept = world.store().sweep(DAY, 10).await.unwrap();
    assert_eq!((swept.len(), swept[0].id, swept[0].attempt), (1, ask.id, 1));
    assert_eq!(world.stands(&ask).await, "unknown");
}

pub async fn a_late_doubt_or_release_undoes_nothing_that_was_decided_about_a_delivery(world: World) {
    let [queued, dead] = ["queued", "dead"].map(ask);
    for ask in [&queued, &dead] {
        world.accept(ask).await;
        let job = world.pick_one(terms()).await;
        if ask.id == dead.id {
            assert!(
                world.store().bury(ask.id, job.lease.ask.token, &["in_flight"], "because".to_owned()).await.unwrap()
            );
        } else {
            world.settle(ended(&job, Ending::Unknown, None)).await;
            assert_eq!(world.decides(ask, Change::NotExecuted).await, (Verdict::Done, true));
        }
        let stands = world.stands(ask).await;
        for ending in [Ending::Unknown, Ending::Retryable { ttl: DAY }] {
            let Settled::Fenced(Some(record)) = world.ends(ended(&job, ending, None)).await else {
                panic!("{stands} is undone")
            };
            assert_eq!(record.state.name(), stands);
        }
        world.settle(completion(&job.lease.ask, b"late")).await;
        assert_eq!(world.stands(ask).await, "completed");
    }
}

pub async fn what_is_queued_does_not_starve_what_is_unknown_for_longer(world: World) {
    let open = ask("open");
    world.accept(&open).await;
    let job = world.pick_one(terms()).await;
    world.settle(ended(&job, Ending::Unknown, Some(Duration::ZERO))).await;
    for number in 0..5 {
        world.accept(&ask(&format!("queued-{number}"))).await;
    }
    let picked = world.pick_up(pick(Terms { on_unknown: OnUnknown::Retry, ..terms() }, 2)).await;
    assert_eq!(picked.jobs.len(), 2);
    assert!(ids(&picked).contains(&open.id));
}

pub async fn a_delivery_whose_row_was_lost_is_stored_anew_as_accepted(mut world: World) {
    let ask = ask("k");
    world.accept(&ask).await;
    let accepted_at = world.find(&ask).await.accepted_at;
    let job = world.pick_one(terms()).await;
    world.by_hand("delete from keys").await.unwrap();
    world.settle(job.lease.complete(response(b"paid"), DAY)).await;
    let record = world.find(&ask).await;
    assert_eq!((record.state.name(), record.accepted_at), ("completed", accepted_at));
}

pub async fn a_request_without_a_key_goes_with_the_reaper(mut world: World) {
    let [gone, stays] = ["gone", "stays"].map(ask);
    world.accept(&gone).await;
    world.by_hand("delete from keys").await.unwrap();
    world.accept(&stays).await;
    assert_eq!(world.rows_of("outbox").await, 2);
    assert_eq!(world.store().reap(10).await.unwrap(), 0);
    assert_eq!(world.rows_of("outbox").await, 1);
    assert_eq!(ids(&world.pick_up(pick(terms(), 5)).await), [stays.id]);
}

pub async fn what_its_service_denies_of_a_delivery_is_noted_as_queued(mut world: World) {
    let ask = ask("k");
    world.accept(&ask).await;
    let job = world.pick_one(terms()).await;
    world.settle(ended(&job, Ending::Unknown, None)).await;
    assert_eq!(world.says(&job, What::NotExecuted(DAY)).await, Heard::Taken);
    assert_eq!(world.stands(&ask).await, "queued");
    let line = format!("shop service not_executed {} unknown queued", ask.id);
    assert_eq!(world.audit_without_notes().await, [line]);
}

pub async fn a_backlog_hides_nothing_of_what_stands_in_another_state(mut world: World) {
    let (waits, open) = (ask("waits"), ask("open"));
    world.reserve(&open).await;
    world.settle(settlement(&open, Ending::Unknown)).await;
    world.accept(&waits).await;
    let columns = "token, state, attempt, instance, created_at, reserved_at, deadline, settled_at, accepted_at, due_at, \
                   fingerprint, recipe, service, route, scope, space, key";
    let backlog = format!(
        "with recursive n (i) as (select 1 union all select i + 1 from n where i < {COUNTED_MAX}) \
         insert into keys (id, {columns}) select {}, {columns} from keys cross join n where state = 'queued'",
        world.new_id()
    );
    world.by_hand(&backlog).await.unwrap();
    let tally = world.store().books().tally("shop".into()).await.unwrap();
    let count = |state| tally.counts.iter().find(|count| count.state == state).map(|count| (count.keys, count.exact));
    assert_eq!(count(Phase::Unknown), Some((1, true)));
    assert_eq!(count(Phase::Queued), Some((COUNTED_MAX.into(), false)));
}
