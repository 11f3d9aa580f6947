//! A model of the protocol that decides who executes; the checker explores every reachable state.
//!
//! The model has one key, two or three proxies, and a client that retries. Every possible event may happen in any
//! order; the store's statements, `decide` and the end of an attempt are written as in the code. The number of requests
//! and of each fault is bounded ([`Bounds`]); within the bounds, only steps that can make no difference are left out.
//! Each test prints the number of its states: `cargo test --package model -- --nocapture`.
//!
//! Three of the weaknesses were bugs of the code until the model found them: `Weakness::LeaseAloneBeforeSending`,
//! `Weakness::DoubtTrustsState` and `Weakness::TokenTwice`.
//!
//! The model does not count time: a lease may lapse at any moment, a commit may come late, bytes may be sent after a
//! pause. It assumes one thing about time: once an attempt's deadline, a lease and `reconcile.after` have passed, no
//! pause before the first byte that began in time still lasts, and the upstream starts no work on that attempt any
//! more. And the store executes a statement within a TTL, or never. A proxy that can renew its lease notices a jump of
//! the store's clock before another one has watched the clock for that long.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Instant;

use stateright::{Checker, Model};

use breaches::{Breach, Weakness};
use protocol::{Action, ActionKind, AnswerKind, OnUnknown, Oncegate};
use state::Bounds;

mod breaches;
mod protocol;
mod state;
mod store;
mod transitions;

const NO_FAULTS: Bounds = Bounds {
    clock_jumps: 0,
    crashes: 0,
    lapses: 0,
    doubts: 0,
    ttls: 0,
    risks: 0,
    losses: 0,
    lost_settlements: 0,
    lost_take_overs: 0,
};
const ONE_OF_EACH: Bounds = Bounds { crashes: 1, lapses: 1, doubts: 1, ttls: 1, ..NO_FAULTS };

const ONE_OF_EACH_BUT_TTLS: Bounds = Bounds { ttls: 0, ..ONE_OF_EACH };

/// One fault is enough for most of the tests.
const LAPSE: Bounds = Bounds { lapses: 1, ..NO_FAULTS };
const DOUBT: Bounds = Bounds { doubts: 1, ..NO_FAULTS };
const LOSS: Bounds = Bounds { losses: 1, ..NO_FAULTS };

const JUMP: Bounds = Bounds { clock_jumps: 1, ..NO_FAULTS };

const LOST_TAKE_OVER: Bounds = Bounds { lost_take_overs: 1, ..NO_FAULTS };

const LOST_END: Bounds = Bounds { lost_settlements: 1, ..NO_FAULTS };

/// Breaches allowed to a store that loses a settlement: the service's inquiry reply is then a different answer.
const OF_LOST_END: [Breach; 1] = [Breach::Differing];
/// Breaches allowed to a store that loses acknowledged writes.
const OF_LOSS: [Breach; 2] = [Breach::SecondEffect, Breach::Superseded];
/// Breaches allowed if another attempt may follow an unknown one.
const OF_RETRYING: [Breach; 1] = [Breach::SecondEffect];
/// Breaches allowed if an operator says "not executed" without knowing.
const OF_RISK: [Breach; 2] = [Breach::SecondEffect, Breach::Superseded];

fn hold(requests: u8, proxies: u8, bounds: Bounds) -> Oncegate {
    Oncegate {
        on_unknown: OnUnknown::Hold,
        proxies,
        requests,
        bounds,
        service_reports: false,
        weakness: None,
        checked: Breach::ALL.to_vec(),
        done: 0.into(),
        answered: 0.into(),
    }
}

fn retry_when_quiet(requests: u8, proxies: u8, bounds: Bounds) -> Oncegate {
    Oncegate { on_unknown: OnUnknown::RetryWhenQuiet, ..but(hold(requests, proxies, bounds), &OF_RETRYING) }
}

/// A vendor may execute an attempt that has a repetition already.
fn vendor(requests: u8, proxies: u8, bounds: Bounds) -> Oncegate {
    Oncegate { on_unknown: OnUnknown::Vendor, ..but(hold(requests, proxies, bounds), &[Breach::Superseded]) }
}

fn service_reports(model: Oncegate) -> Oncegate {
    Oncegate { service_reports: true, ..model }
}

fn but(model: Oncegate, allowed: &[Breach]) -> Oncegate {
    let checked = Breach::ALL.into_iter().filter(|breach| !allowed.contains(breach)).collect();
    Oncegate { checked, ..model }
}

/// Explores every reachable state.
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

/// Finds the shortest path to the breach.
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
fn a_held_key_has_one_effect_and_one_answer_under_any_single_fault() {
    assert_holds(service_reports(hold(2, 2, Bounds { doubts: 2, ..ONE_OF_EACH })));
}

#[test]
fn a_held_key_has_one_effect_and_one_answer_at_three_proxies() {
    assert_holds(hold(3, 3, Bounds { crashes: 1, ..NO_FAULTS }));
    assert_holds(hold(3, 3, Bounds { lapses: 1, ..NO_FAULTS }));
    assert_holds(hold(3, 3, Bounds { doubts: 1, ..NO_FAULTS }));
    assert_holds(hold(3, 3, Bounds { ttls: 1, ..NO_FAULTS }));
    assert_holds(service_reports(hold(3, 3, NO_FAULTS)));
}

#[test]
fn with_retry_when_quiet_an_unknown_attempt_is_over_before_the_next_begins() {
    assert_holds(retry_when_quiet(2, 2, ONE_OF_EACH));
    assert_holds(retry_when_quiet(3, 2, Bounds { crashes: 1, lapses: 1, ..NO_FAULTS }));
}

/// The vendor's word: while it remembers a key, it executes it once. The rest of its window is longer than a request
/// takes.
#[test]
fn a_request_that_is_repeated_at_a_vendor_within_its_window_has_one_effect() {
    assert_holds(vendor(2, 2, ONE_OF_EACH_BUT_TTLS));
    assert_holds(vendor(3, 2, Bounds { crashes: 1, lapses: 1, ..NO_FAULTS }));
    assert_found(Weakness::WindowUnchecked, Breach::SecondEffect, vendor(2, 2, NO_FAULTS));
    assert_found(Weakness::RepeatFrees, Breach::SecondEffect, vendor(3, 2, NO_FAULTS));
}

#[test]
fn only_accepted_risks_give_two_effects_and_never_two_answers() {
    let risky = || hold(3, 2, Bounds { lapses: 1, risks: 1, ..NO_FAULTS });
    assert_holds(but(risky(), &OF_RISK));
    let way = way_to(Breach::SecondEffect, risky());
    assert!(way.iter().any(|Action(what, _)| *what == ActionKind::Risk), "{way:?}");
}

/// A reservation that the store has lost leaves the key free: a request that comes before its attempt ends becomes the
/// next attempt.
#[test]
fn a_lost_reservation_may_give_two_effects_but_no_settlement_is_forgotten() {
    let bounds = Bounds { ttls: 0, losses: 1, ..ONE_OF_EACH };
    assert_holds(but(hold(2, 2, bounds), &OF_LOSS));
    assert_holds(but(service_reports(hold(2, 2, LOSS)), &OF_LOSS));
    assert_holds(but(hold(3, 3, LOSS), &OF_LOSS));
    way_to(Breach::SecondEffect, hold(2, 2, LOSS));
    assert_found(Weakness::LostIsLost, Breach::Forgotten, hold(2, 2, LOSS));
}

/// The record before the takeover is back: until the lost attempt ends, a request may become the next attempt.
#[test]
fn a_lost_takeover_may_give_two_effects_but_no_settlement_is_forgotten() {
    assert_holds(but(hold(3, 2, LOST_TAKE_OVER), &OF_LOSS));
    assert_holds(but(hold(2, 2, Bounds { lapses: 1, doubts: 1, ..LOST_TAKE_OVER }), &OF_LOSS));
    assert_holds(but(retry_when_quiet(3, 2, LOST_TAKE_OVER), &OF_LOSS));
    assert_found(Weakness::LostTakeOverIsLost, Breach::Forgotten, hold(3, 2, LOST_TAKE_OVER));
    assert_found(Weakness::RepairUnchecked, Breach::IllegalStep, hold(3, 2, LOST_TAKE_OVER));
}

/// The reservation is in flight again as if its settlement had never come; the proxy remembers that the attempt may
/// have executed, and reports it unknown.
#[test]
fn after_a_lost_settlement_no_attempt_that_may_have_executed_is_retried() {
    assert_holds(but(hold(2, 2, Bounds { lapses: 1, crashes: 1, doubts: 1, ..LOST_END }), &OF_LOST_END));
    assert_holds(but(service_reports(hold(2, 2, LOST_END)), &OF_LOST_END));
    assert_holds(but(hold(3, 3, LOST_END), &OF_LOST_END));
    assert_found(Weakness::LostSettlementIsOrphan, Breach::SecondEffect, hold(2, 2, LOST_END));
}

/// A jump backward ends everything later, which a clock of the model cannot show; a jump
/// forward ends everything at once.
#[test]
fn a_jump_of_the_stores_clock_executes_nothing_twice() {
    assert_holds(service_reports(hold(2, 2, Bounds { crashes: 1, doubts: 1, ttls: 1, ..JUMP })));
    assert_holds(hold(2, 2, Bounds { lapses: 1, ttls: 1, clock_jumps: 2, ..NO_FAULTS }));
    assert_holds(hold(3, 3, JUMP));
    assert_holds(retry_when_quiet(2, 2, Bounds { crashes: 1, ttls: 1, ..JUMP }));
    assert_holds(retry_when_quiet(2, 2, Bounds { lapses: 1, doubts: 1, ..JUMP }));
}

/// The only instance dies before its next heartbeat: its successor cannot know, and ends TTLs by the new time.
#[test]
fn a_jump_that_no_instance_lives_to_see_may_end_ttls_and_overlaps_no_attempts() {
    let unseen = || hold(3, 1, Bounds { crashes: 1, ..JUMP });
    way_to(Breach::Forgotten, unseen());
    let of_an_early_end = [Breach::SecondEffect, Breach::Forgotten, Breach::IllegalStep, Breach::CompletedChanged];
    let of_an_early_end = [&of_an_early_end[..], &[Breach::Differing, Breach::TwoFirsts]].concat();
    assert_holds(but(unseen(), &of_an_early_end));
}

#[test]
fn every_action_and_every_answer_is_reachable() {
    let bounds = Bounds { risks: 1, ttls: 0, ..ONE_OF_EACH };
    let models = [
        hold(2, 2, LOSS),
        hold(2, 2, LOST_END),
        hold(2, 2, LOST_TAKE_OVER),
        hold(3, 3, NO_FAULTS),
        service_reports(hold(2, 2, bounds)),
        hold(2, 1, ONE_OF_EACH),
        hold(2, 2, Bounds { ttls: 1, ..JUMP }),
        vendor(2, 2, NO_FAULTS),
    ];
    let (mut done, mut answered) = (0, 0);
    for model in models {
        let checker = explore(but(model, &OF_RISK));
        done |= checker.model().done.load(Ordering::Relaxed);
        answered |= checker.model().answered.load(Ordering::Relaxed);
    }
    let never_done: Vec<_> = ActionKind::ALL.iter().filter(|what| done & 1 << **what as u64 == 0).collect();
    let never_given: Vec<_> = AnswerKind::ALL.iter().filter(|what| answered & 1 << **what as u64 == 0).collect();
    assert!(never_done.is_empty() && never_given.is_empty(), "{never_done:?} {never_given:?}");
}

/// Without a fault, a new request or a late commit from there on.
#[test]
fn a_settled_key_is_reachable_from_every_state() {
    for model in [
        hold(2, 2, Bounds { ttls: 0, ..ONE_OF_EACH }),
        retry_when_quiet(2, 2, Bounds { ttls: 0, ..ONE_OF_EACH }),
        retry_when_quiet(2, 2, Bounds { crashes: 1, ..JUMP }),
        vendor(2, 2, ONE_OF_EACH_BUT_TTLS),
    ] {
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
                if action.0.makes_progress() {
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
fn a_takeover_needs_an_unchanged_record_that_is_not_in_flight() {
    assert_found(Weakness::TakeOverUnchecked, Breach::SecondEffect, hold(3, 2, NO_FAULTS));
    let twice = retry_when_quiet(2, 2, Bounds { crashes: 0, ..ONE_OF_EACH });
    assert_found(Weakness::TokenTwice, Breach::IllegalStep, twice);
    assert_found(Weakness::TakeOverUnknown, Breach::SecondEffect, hold(2, 2, LAPSE));
    assert_found(Weakness::TakeOverLapsed, Breach::SecondEffect, hold(2, 2, LAPSE));
    assert_found(Weakness::SweepFrees, Breach::SecondEffect, hold(2, 2, LAPSE));
    assert_found(Weakness::TtlOnOpen, Breach::Superseded, hold(2, 2, Bounds { ttls: 1, ..NO_FAULTS }));
}

#[test]
fn a_request_is_sent_only_after_its_own_reservation_is_durable() {
    assert_found(Weakness::SendBeforeReserved, Breach::SecondEffect, hold(2, 2, NO_FAULTS));
    assert_found(Weakness::DoubtTakesAny, Breach::SecondEffect, hold(2, 2, DOUBT));
}

#[test]
fn every_answer_equals_the_stored_one() {
    let crash = Bounds { crashes: 1, ..NO_FAULTS };
    assert_found(Weakness::AnswerBeforeStored, Breach::NotStored, hold(2, 2, NO_FAULTS));
    assert_found(Weakness::AnswerBeforeStored, Breach::Differing, hold(2, 2, crash));
    assert_found(Weakness::LoserAnswersItsOwn, Breach::Differing, hold(2, 2, LAPSE));
    assert_found(Weakness::DoubtTrustsState, Breach::Differing, service_reports(hold(2, 2, DOUBT)));
}

#[test]
fn a_request_that_may_have_been_sent_never_counts_as_not_executed() {
    assert_found(Weakness::BrokenIsReleased, Breach::SecondEffect, hold(2, 2, NO_FAULTS));
    assert_found(Weakness::BrokenIsReleased, Breach::FalseDenial, hold(2, 2, NO_FAULTS));
    assert_found(Weakness::OrphansStoreFirst, Breach::SecondEffect, hold(2, 2, NO_FAULTS));
    assert_found(Weakness::OrphansWithoutAge, Breach::SecondEffect, hold(3, 2, NO_FAULTS));
    assert_found(Weakness::ForgottenBeforeStored, Breach::SecondEffect, hold(2, 2, DOUBT));
}

#[test]
fn not_executed_applies_only_after_the_quiet_time() {
    assert_found(Weakness::NotExecutedTooSoon, Breach::SecondEffect, hold(2, 2, LAPSE));
    assert_found(Weakness::RetryBeforeQuiet, Breach::Superseded, retry_when_quiet(2, 2, LAPSE));
}

#[test]
fn the_stores_clock_is_believed_only_after_it_was_watched() {
    let jump = || Bounds { crashes: 1, ..JUMP };
    for weakness in [
        Weakness::JumpsIgnored,
        Weakness::JumpsSeenByHeartbeatsAlone,
        Weakness::StartTrustsClock,
        Weakness::WatchTooShort,
    ] {
        assert_found(weakness, Breach::SecondEffect, hold(2, 2, jump()));
        assert_found(weakness, Breach::Superseded, retry_when_quiet(2, 2, jump()));
    }
    assert_found(Weakness::TtlsNotHeld, Breach::Forgotten, hold(2, 2, JUMP));
    for weakness in [Weakness::JumpsIgnored, Weakness::JumpsSeenByHeartbeatsAlone] {
        assert_found(weakness, Breach::CompletedChanged, hold(2, 2, JUMP));
    }
}

#[test]
fn an_inquirys_result_applies_only_to_its_attempt_while_it_is_unsettled() {
    assert_found(Weakness::VerdictWithoutToken, Breach::Superseded, retry_when_quiet(3, 2, NO_FAULTS));
    assert_found(Weakness::VerdictWithoutToken, Breach::ForeignToken, retry_when_quiet(2, 2, NO_FAULTS));
    assert_found(Weakness::VerdictOverSettled, Breach::CompletedChanged, hold(2, 2, LAPSE));
}

#[test]
fn lease_and_deadline_are_checked_right_before_the_first_byte() {
    for weakness in [Weakness::NoLeaseCheck, Weakness::LeaseAloneBeforeSending, Weakness::PauseOutlastsQuiet] {
        assert_found(weakness, Breach::SecondEffect, hold(2, 2, LAPSE));
        assert_found(weakness, Breach::Superseded, retry_when_quiet(2, 2, LAPSE));
    }
}
