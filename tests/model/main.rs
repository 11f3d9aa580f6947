//! The protocol by which it is decided who executes, as a model whose every reachable state is looked at.
//!
//! One key, two or three proxies, a client that retries. Everything that can happen to them may happen in any order; the
//! store's statements, `decide` and the end of an attempt are written as the code has them. What is bounded is how many
//! requests come and how often each fault strikes ([`Left`]); within the bounds nothing is left out but what can make no
//! difference. Each test prints how much it has seen: `cargo test --test model -- --nocapture`.
//!
//! Three of the weaknesses were the code's own until the model found them: `Weakness::LeaseAloneBeforeSending`,
//! `Weakness::DoubtTrustsState` and `Weakness::TokenTwice`.
//!
//! Time is not counted: a lease may run out at any moment, a commit may come late, bytes may go out after a pause. One
//! thing is assumed of it: once an attempt's deadline, a lease and `reconcile.after` have passed, no pause before the
//! first byte that began in time still lasts, and the upstream begins nothing of that attempt any more. And what the
//! store is asked is done, or never done, within a TTL.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Instant;

use stateright::{Checker, Model};

use breach::{Breach, Weakness};
use protocol::{Action, OnUnknown, Oncegate, Told, What};
use state::Left;

mod act;
mod breach;
mod protocol;
mod state;
mod store;

const NO_FAULTS: Left = Left { crashes: 0, lapses: 0, doubts: 0, ttls: 0, risks: 0, losses: 0, lost_ends: 0 };
const ONE_OF_EACH: Left = Left { crashes: 1, lapses: 1, doubts: 1, ttls: 1, risks: 0, losses: 0, lost_ends: 0 };

/// One fault is all that most of them need.
const LAPSE: Left = Left { lapses: 1, ..NO_FAULTS };
const DOUBT: Left = Left { doubts: 1, ..NO_FAULTS };
const LOSS: Left = Left { losses: 1, ..NO_FAULTS };

const LOST_END: Left = Left { lost_ends: 1, ..NO_FAULTS };

/// What a store allows that loses an end: what the service then says of it, in other words, is another answer.
const OF_LOST_END: [Breach; 1] = [Breach::Differing];
/// What a store allows that loses what it has acknowledged.
const OF_LOSS: [Breach; 2] = [Breach::SecondEffect, Breach::Superseded];
/// What is allowed by whoever lets an unknown attempt be followed by another.
const OF_RETRYING: [Breach; 1] = [Breach::SecondEffect];
/// What is allowed by whoever says "not executed" without knowing.
const OF_RISK: [Breach; 2] = [Breach::SecondEffect, Breach::Superseded];

fn hold(requests: u8, proxies: u8, bounds: Left) -> Oncegate {
    Oncegate {
        on_unknown: OnUnknown::Hold,
        proxies,
        requests,
        bounds,
        service_speaks: false,
        weakness: None,
        checked: Breach::ALL.to_vec(),
        done: 0.into(),
        told: 0.into(),
    }
}

fn retry_when_quiet(requests: u8, proxies: u8, bounds: Left) -> Oncegate {
    Oncegate { on_unknown: OnUnknown::RetryWhenQuiet, ..but(hold(requests, proxies, bounds), &OF_RETRYING) }
}

fn service_speaks(model: Oncegate) -> Oncegate {
    Oncegate { service_speaks: true, ..model }
}

fn but(model: Oncegate, allowed: &[Breach]) -> Oncegate {
    let checked = Breach::ALL.into_iter().filter(|breach| !allowed.contains(breach)).collect();
    Oncegate { checked, ..model }
}

/// Looks at every state that can be reached.
fn explore(model: Oncegate) -> impl Checker<Oncegate> {
    let Oncegate { on_unknown, requests, proxies, bounds, .. } = model;
    let begun = Instant::now();
    let checker = model.checker().threads(2).spawn_bfs().join();
    let (states, depth, time) = (checker.unique_state_count(), checker.max_depth(), begun.elapsed());
    println!(
        "{on_unknown:?}, {requests} requests, {proxies} proxies, {bounds:?}: {states} states, {depth} deep, {time:.1?}"
    );
    checker
}

#[track_caller]
fn assert_holds(model: Oncegate) -> impl Checker<Oncegate> {
    let checker = explore(model);
    if let Some((name, path)) = checker.discoveries().into_iter().next() {
        panic!("not so: {name}, after {:?}", path.into_actions());
    }
    assert!(checker.is_done());
    checker
}

/// The shortest way to the breach.
#[track_caller]
fn way_to(breach: Breach, model: Oncegate) -> Vec<Action> {
    let weakness = model.weakness;
    let checker = Oncegate { checked: vec![breach], ..model }.checker().threads(2).spawn_bfs().join();
    let (states, mut found) = (checker.unique_state_count(), checker.discoveries().into_values());
    let way = found.next().unwrap_or_else(|| panic!("{weakness:?} does no harm within {states} states"));
    let way = way.into_actions();
    println!("{weakness:?}: {breach:?} in {} steps, {states} states; {way:?}", way.len());
    way
}

#[track_caller]
fn assert_found(weakness: Weakness, breach: Breach, model: Oncegate) {
    way_to(breach, Oncegate { weakness: Some(weakness), ..model });
}

#[test]
fn a_held_key_has_one_effect_and_one_answer_whatever_fails_once() {
    assert_holds(service_speaks(hold(2, 2, Left { doubts: 2, ..ONE_OF_EACH })));
}

#[test]
fn a_held_key_has_one_effect_and_one_answer_at_three_proxies() {
    assert_holds(hold(3, 3, Left { crashes: 1, ..NO_FAULTS }));
    assert_holds(hold(3, 3, Left { lapses: 1, ..NO_FAULTS }));
    assert_holds(hold(3, 3, Left { doubts: 1, ..NO_FAULTS }));
    assert_holds(hold(3, 3, Left { ttls: 1, ..NO_FAULTS }));
    assert_holds(service_speaks(hold(3, 3, NO_FAULTS)));
}

#[test]
fn an_unknown_attempt_that_is_retried_when_quiet_is_over_before_the_next_begins() {
    assert_holds(retry_when_quiet(2, 2, ONE_OF_EACH));
    assert_holds(retry_when_quiet(3, 2, Left { crashes: 1, lapses: 1, ..NO_FAULTS }));
}

#[test]
fn only_who_takes_the_risk_of_it_has_two_effects_and_never_two_answers() {
    let risky = || hold(3, 2, Left { lapses: 1, risks: 1, ..NO_FAULTS });
    assert_holds(but(risky(), &OF_RISK));
    let way = way_to(Breach::SecondEffect, risky());
    assert!(way.iter().any(|Action(what, _)| *what == What::Risk), "{way:?}");
}

/// A reservation that the store has lost is nobody's: who comes before its attempt ends becomes the next one.
#[test]
fn after_a_loss_there_may_be_two_effects_but_what_is_settled_is_never_forgotten() {
    let bounds = Left { ttls: 0, losses: 1, ..ONE_OF_EACH };
    assert_holds(but(hold(2, 2, bounds), &OF_LOSS));
    assert_holds(but(service_speaks(hold(2, 2, LOSS)), &OF_LOSS));
    assert_holds(but(hold(3, 3, LOSS), &OF_LOSS));
    way_to(Breach::SecondEffect, hold(2, 2, LOSS));
    assert_found(Weakness::LostIsLost, Breach::Forgotten, hold(2, 2, LOSS));
}

/// The reservation stands as if nothing had come of it; who remembers that it may have acted says so.
#[test]
fn after_the_loss_of_an_end_nothing_that_may_have_acted_is_tried_again() {
    assert_holds(but(hold(2, 2, Left { lapses: 1, crashes: 1, doubts: 1, ..LOST_END }), &OF_LOST_END));
    assert_holds(but(service_speaks(hold(2, 2, LOST_END)), &OF_LOST_END));
    assert_holds(but(hold(3, 3, LOST_END), &OF_LOST_END));
    assert_found(Weakness::LostEndIsStray, Breach::SecondEffect, hold(2, 2, LOST_END));
}

#[test]
fn everything_that_can_happen_does_and_every_answer_is_given() {
    let bounds = Left { risks: 1, ttls: 0, ..ONE_OF_EACH };
    let models = [
        hold(2, 2, LOSS),
        hold(2, 2, LOST_END),
        hold(3, 3, NO_FAULTS),
        service_speaks(hold(2, 2, bounds)),
        hold(2, 1, ONE_OF_EACH),
    ];
    let (mut done, mut told) = (0, 0);
    for model in models {
        let checker = explore(but(model, &OF_RISK));
        done |= checker.model().done.load(Ordering::Relaxed);
        told |= checker.model().told.load(Ordering::Relaxed);
    }
    let never_done: Vec<_> = What::ALL.iter().filter(|what| done & 1 << **what as u64 == 0).collect();
    let never_told: Vec<_> = Told::ALL.iter().filter(|what| told & 1 << **what as u64 == 0).collect();
    assert!(never_done.is_empty() && never_told.is_empty(), "{never_done:?} {never_told:?}");
}

/// With no fault, no new request and no late commit from there on.
#[test]
fn from_everywhere_a_way_leads_to_a_settled_key() {
    for model in [hold(2, 2, Left { ttls: 0, ..ONE_OF_EACH }), retry_when_quiet(2, 2, Left { ttls: 0, ..ONE_OF_EACH })]
    {
        let first = model.init_states().remove(0);
        let (mut numbers, mut waiting) = (HashMap::from([(first, 0)]), VecDeque::from([first]));
        let mut helped_by: Vec<Vec<usize>> = vec![Vec::new()];
        let mut settled = Vec::new();
        while let Some(world) = waiting.pop_front() {
            let number = numbers[&world];
            if world.is_settled() {
                settled.push(number);
            }
            let mut actions = Vec::new();
            model.actions(&world, &mut actions);
            for action in actions {
                let next = model.next_state(&world, action).unwrap();
                let next = *numbers.entry(next).or_insert_with(|| {
                    waiting.push_back(next);
                    helped_by.push(Vec::new());
                    helped_by.len() - 1
                });
                if action.0.helps() {
                    helped_by[next].push(number);
                }
            }
        }
        let mut leads = vec![false; numbers.len()];
        while let Some(number) = settled.pop() {
            if !std::mem::replace(&mut leads[number], true) {
                settled.append(&mut helped_by[number]);
            }
        }
        println!("{:?}: {} states lead to a settled key", model.on_unknown, leads.len());
        let stuck = numbers.iter().find(|(_, number)| !leads[**number]);
        assert!(stuck.is_none(), "nothing leads on from {stuck:?}");
    }
}

#[test]
fn a_settlement_needs_the_newest_attempts_token_and_an_open_key() {
    assert_found(Weakness::SettleWithoutToken, Breach::SecondEffect, hold(3, 2, LAPSE));
    assert_found(Weakness::SettleOverCompleted, Breach::Differing, hold(2, 2, LAPSE));
}

#[test]
fn an_attempt_is_taken_over_only_as_it_was_seen_and_never_in_flight() {
    assert_found(Weakness::TakeOverUnseen, Breach::SecondEffect, hold(3, 2, NO_FAULTS));
    let twice = retry_when_quiet(2, 2, Left { crashes: 0, ..ONE_OF_EACH });
    assert_found(Weakness::TokenTwice, Breach::IllegalStep, twice);
    assert_found(Weakness::TakeOverLapsed, Breach::SecondEffect, hold(2, 2, LAPSE));
    assert_found(Weakness::SweepFrees, Breach::SecondEffect, hold(2, 2, LAPSE));
    assert_found(Weakness::TtlOnOpen, Breach::Superseded, hold(2, 2, Left { ttls: 1, ..NO_FAULTS }));
}

#[test]
fn nothing_is_sent_before_its_reservation_is_durable_and_known_for_its_own() {
    assert_found(Weakness::SendBeforeReserved, Breach::SecondEffect, hold(2, 2, NO_FAULTS));
    assert_found(Weakness::DoubtTakesAny, Breach::SecondEffect, hold(2, 2, DOUBT));
}

#[test]
fn an_answer_is_what_the_store_has() {
    let crash = Left { crashes: 1, ..NO_FAULTS };
    assert_found(Weakness::AnswerBeforeStored, Breach::NotStored, hold(2, 2, NO_FAULTS));
    assert_found(Weakness::AnswerBeforeStored, Breach::Differing, hold(2, 2, crash));
    assert_found(Weakness::LoserTellsItsOwn, Breach::Differing, hold(2, 2, LAPSE));
    assert_found(Weakness::DoubtTrustsState, Breach::Differing, service_speaks(hold(2, 2, DOUBT)));
}

#[test]
fn nothing_counts_as_not_executed_that_may_have_been_sent() {
    assert_found(Weakness::BrokenIsReleased, Breach::SecondEffect, hold(2, 2, NO_FAULTS));
    assert_found(Weakness::BrokenIsReleased, Breach::FalseDenial, hold(2, 2, NO_FAULTS));
    assert_found(Weakness::StraysStoreFirst, Breach::SecondEffect, hold(2, 2, NO_FAULTS));
    assert_found(Weakness::StraysWithoutAge, Breach::SecondEffect, hold(3, 2, NO_FAULTS));
    assert_found(Weakness::ForgottenBeforeStored, Breach::SecondEffect, hold(2, 2, DOUBT));
}

#[test]
fn nobody_goes_by_not_executed_before_it_can_be_known() {
    assert_found(Weakness::NotExecutedTooSoon, Breach::SecondEffect, hold(2, 2, LAPSE));
    assert_found(Weakness::RetryBeforeQuiet, Breach::Superseded, retry_when_quiet(2, 2, LAPSE));
}

#[test]
fn what_the_service_says_counts_for_the_attempt_it_was_asked_about_and_while_nobody_else_has_decided() {
    assert_found(Weakness::VerdictWithoutToken, Breach::Superseded, retry_when_quiet(3, 2, NO_FAULTS));
    assert_found(Weakness::VerdictWithoutToken, Breach::ForeignToken, retry_when_quiet(2, 2, NO_FAULTS));
    assert_found(Weakness::VerdictOverSettled, Breach::CompletedChanged, hold(2, 2, LAPSE));
}

#[test]
fn the_lease_and_the_attempts_own_time_are_looked_at_right_before_the_first_byte() {
    for weakness in [Weakness::NoSecondLook, Weakness::LeaseAloneBeforeSending, Weakness::PauseOutlastsQuiet] {
        assert_found(weakness, Breach::SecondEffect, hold(2, 2, LAPSE));
        assert_found(weakness, Breach::Superseded, retry_when_quiet(2, 2, LAPSE));
    }
}
