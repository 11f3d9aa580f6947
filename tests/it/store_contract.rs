//! What every store promises. Each sentence is held against each store.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::join_all;
use http::StatusCode;
use oncegate::domain::attempt::{Ending, InstanceId, Settlement};
use oncegate::domain::fingerprint::{BodyRule, Fingerprint, Plan, Recipe};
use oncegate::domain::record::{Ask, Reservation, State};
use oncegate::domain::response::StoredResponse;
use oncegate::store::{Seen, Settled, StoreError};

use crate::harness::world::{
    DAY, World, again, ask, ask_of, completion, fresh, response, settlement, taken, token, us,
};

/// Each sentence becomes a test for each store. One that is left out here is never used, which the compiler tells.
macro_rules! on_both {
    ($($sentence:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test] async fn $sentence() { super::$sentence(super::World::postgres().await).await })*
        }
        mod sqlite {
            $(#[tokio::test] async fn $sentence() { super::$sentence(super::World::sqlite().await).await })*
        }
    };
}

on_both! {
    a_key_without_a_record_is_reserved_for_its_first_attempt,
    of_a_hundred_who_reserve_a_key_at_once_one_gets_it,
    of_many_keys_reserved_twice_at_once_each_has_one_attempt,
    who_comes_second_finds_what_was_reserved,
    services_scopes_spaces_and_keys_do_not_see_each_other,
    a_key_that_was_never_used_has_no_record,
    a_completed_key_keeps_its_response_byte_for_byte,
    a_large_body_survives,
    a_response_too_large_to_keep_is_completed_without_its_body,
    what_is_completed_does_not_change,
    the_same_settlement_again_changes_nothing,
    two_settlements_at_once_leave_one_of_them,
    a_superseded_attempt_settles_nothing,
    settling_what_is_not_there_says_so,
    a_late_completion_is_taken_from_unknown_and_from_retryable,
    of_many_who_take_a_key_over_at_once_one_gets_it,
    the_next_attempt_counts_on_and_brings_its_own_terms,
    past_its_ttl_a_key_begins_a_new_life,
    what_is_in_flight_and_a_response_within_its_ttl_cannot_be_taken_over,
    what_has_changed_since_it_was_seen_is_not_taken_over,
    taking_over_what_is_gone_reserves_it,
    a_ttl_of_any_length_is_kept,
    the_sweeper_takes_what_nobody_can_be_running,
    the_sweeper_takes_what_is_past_its_deadline_whoever_runs_it,
    the_sweeper_stops_at_its_limit,
    a_lease_given_back_is_over_at_once,
    what_stands_under_an_instance_is_listed_once_it_is_old_enough,
    the_reaper_takes_the_oldest_of_what_is_past_its_ttl_and_nothing_else,
    a_remembered_key_outlives_its_response,
    a_remembered_key_is_forgotten_in_the_end,
    a_row_that_does_not_decode_is_told_and_not_taken_for_a_free_key,
    no_impossible_row_can_be_written,
    a_bad_row_fails_alone,
    a_thousand_attempts_at_once_all_end,
    what_was_acknowledged_is_there_after_reopening,
    the_salt_stays_what_it_was,
    a_store_that_works_answers_a_ping,
}

async fn a_key_without_a_record_is_reserved_for_its_first_attempt(world: World) {
    let ask = ask("k");
    let lease = world.reserve(&ask).await;
    assert_eq!((lease.id, lease.token, lease.attempt), (ask.id, ask.token, 1));
}

async fn of_a_hundred_who_reserve_a_key_at_once_one_gets_it(world: World) {
    let asks: Vec<Ask> = (0..100).map(|_| ask("k")).collect();
    let reservations = join_all(asks.iter().map(|ask| world.store().reserve(ask.clone()))).await;
    let (mut winners, mut seen) = (Vec::new(), Vec::new());
    for reservation in reservations {
        match reservation.unwrap() {
            Reservation::Fresh(lease) => winners.push(lease.token),
            Reservation::Taken(record) => seen.push(record.token),
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(seen, [winners[0]; 99]);
}

async fn of_many_keys_reserved_twice_at_once_each_has_one_attempt(world: World) {
    let asks: Vec<Ask> = (0..400).map(|i| ask(&format!("k-{}", i % 200))).collect();
    let reservations = join_all(asks.iter().map(|ask| world.store().reserve(ask.clone()))).await;
    let fresh = reservations.iter().filter(|r| matches!(r, Ok(Reservation::Fresh(_)))).count();
    let taken = reservations.iter().filter(|r| matches!(r, Ok(Reservation::Taken(_)))).count();
    assert_eq!((fresh, taken), (200, 200));
}

async fn who_comes_second_finds_what_was_reserved(world: World) {
    let first = ask("k");
    world.reserve(&first).await;
    let second = Ask {
        route: "other".into(),
        recipe: Recipe::new(Plan { body: BodyRule::Raw, query: false, ..Plan::default() }, None),
        fingerprint: Fingerprint::from_stored(&[1; 32]).unwrap(),
        ..again(&first)
    };
    let record = world.lose(&second).await;
    assert_eq!((record.id, record.token, record.attempt), (first.id, first.token, 1));
    assert_eq!((record.recipe, record.fingerprint), (first.recipe, first.fingerprint));
    assert!(matches!(record.state, State::InFlight));
    assert!(!record.past_ttl);
    assert!(record.running_for < Duration::from_secs(10));
    assert!((20_000..=30_000).contains(&record.deadline_in_ms), "{}", record.deadline_in_ms);
}

async fn services_scopes_spaces_and_keys_do_not_see_each_other(world: World) {
    for ask in [
        ask_of("shop", [7; 32], b"POST /pay", "k"),
        ask_of("shop2", [7; 32], b"POST /pay", "k"),
        ask_of("shop", [8; 32], b"POST /pay", "k"),
        ask_of("shop", [7; 32], b"POST /pa", "k"),
        ask_of("shop", [7; 32], b"POST /pay", "K"),
        ask_of("shop", [7; 32], b"\0\xff'; drop table keys --", "k"),
    ] {
        world.reserve(&ask).await;
        assert_eq!(world.find(&ask).await.token, ask.token);
    }
}

async fn a_key_that_was_never_used_has_no_record(world: World) {
    assert!(world.store().find(ask("k").id).await.unwrap().is_none());
}

async fn a_completed_key_keeps_its_response_byte_for_byte(world: World) {
    for body in [&b""[..], b"paid", b"\0\0", b"\xff\xfe\xed\xa0\x80", b"{\"a\":\"\\u0000\\ud800\"}", &[0x5c; 300]] {
        let ask = ask(&format!("k-{}", body.len()));
        world.reserve(&ask).await;
        let before = SystemTime::now();
        let Settled::Done { expires_at } = world.store().settle(completion(&ask, body)).await.unwrap() else {
            panic!("somebody else has settled it")
        };
        let State::Completed(completed) = world.lose(&again(&ask)).await.state else { panic!("it is not completed") };
        assert_eq!(completed.response, response(body));
        assert_eq!(Some(completed.expires_at), expires_at);
        let lives = completed.expires_at.duration_since(before).unwrap();
        assert!(lives.abs_diff(DAY) < Duration::from_secs(10), "{lives:?}");
    }
}

async fn a_large_body_survives(world: World) {
    let body: Vec<u8> = (0..3 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let asks: Vec<Ask> = (0..8).map(|i| ask(&format!("k-{i}"))).collect();
    join_all(asks.iter().map(|ask| world.reserve(ask))).await;
    join_all(asks.iter().map(|ask| world.settle(completion(ask, &body)))).await;
    for record in join_all(asks.iter().map(|ask| world.find(ask))).await {
        let State::Completed(completed) = record.state else { panic!("it is not completed") };
        assert!(completed.response.body.unwrap() == body);
    }
}

async fn a_response_too_large_to_keep_is_completed_without_its_body(world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    let response = StoredResponse { body: None, ..response(b"") };
    world.settle(settlement(&ask, Ending::Completed { response: response.clone(), ttl: DAY, remember: None })).await;
    let State::Completed(completed) = world.find(&ask).await.state else { panic!("it is not completed") };
    assert_eq!(completed.response, response);
}

async fn what_is_completed_does_not_change(world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    world.settle(completion(&ask, b"first")).await;
    for ending in [
        Ending::Completed { response: response(b"second"), ttl: DAY, remember: None },
        Ending::Retryable { ttl: Duration::ZERO },
        Ending::Unknown,
    ] {
        let record = world.settle_late(settlement(&ask, ending)).await.unwrap();
        let State::Completed(completed) = record.state else { panic!("it is not completed") };
        assert_eq!(completed.response, response(b"first"));
    }
}

async fn the_same_settlement_again_changes_nothing(world: World) {
    for (key, ending) in [
        ("completed", Ending::Completed { response: response(b""), ttl: DAY, remember: None }),
        ("retryable", Ending::Retryable { ttl: Duration::ZERO }),
        ("unknown", Ending::Unknown),
    ] {
        let ask = ask(key);
        world.reserve(&ask).await;
        world.settle(settlement(&ask, ending.clone())).await;
        // A longer TTL would show.
        let longer = match ending {
            Ending::Retryable { .. } => Ending::Retryable { ttl: DAY },
            same => same,
        };
        let record = world.settle_late(settlement(&ask, longer)).await.unwrap();
        assert_eq!((record.state.name(), record.token), (key, ask.token));
        assert_eq!(record.past_ttl, key == "retryable");
    }
}

async fn two_settlements_at_once_leave_one_of_them(world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    let settlements = (0..20).map(|i| world.store().settle(completion(&ask, &[i])));
    let settled = join_all(settlements).await;
    let mut bodies = Vec::new();
    for settled in &settled {
        match settled.as_ref().unwrap() {
            Settled::Done { .. } => {}
            Settled::Fenced(record) => match &record.as_ref().unwrap().state {
                State::Completed(completed) => bodies.push(completed.response.body.clone()),
                state => panic!("{state:?}"),
            },
        }
    }
    assert_eq!(bodies.len(), 19);
    bodies.dedup();
    assert_eq!(bodies.len(), 1);
}

async fn a_superseded_attempt_settles_nothing(world: World) {
    let first = ask("k");
    world.reserve(&first).await;
    world.settle(settlement(&first, Ending::Retryable { ttl: DAY })).await;
    let second = again(&first);
    let seen = Seen::from(&world.find(&first).await);
    fresh(world.store().take_over(second.clone(), seen).await.unwrap());
    for ending in [
        Ending::Completed { response: response(b"late"), ttl: DAY, remember: None },
        Ending::Retryable { ttl: DAY },
        Ending::Unknown,
    ] {
        let record = world.settle_late(settlement(&first, ending)).await.unwrap();
        assert_eq!((record.state.name(), record.token, record.attempt), ("in_flight", second.token, 2));
    }
    world.settle(completion(&second, b"")).await;
}

async fn settling_what_is_not_there_says_so(world: World) {
    assert!(world.settle_late(completion(&ask("k"), b"")).await.is_none());
}

async fn a_late_completion_is_taken_from_unknown_and_from_retryable(world: World) {
    for (key, belief) in [("unknown", Ending::Unknown), ("retryable", Ending::Retryable { ttl: DAY })] {
        let ask = ask(key);
        world.reserve(&ask).await;
        world.settle(settlement(&ask, belief)).await;
        assert_eq!(world.find(&ask).await.state.name(), key);
        world.settle(completion(&ask, b"late")).await;
        assert_eq!(world.find(&ask).await.state.name(), "completed");
    }
}

async fn of_many_who_take_a_key_over_at_once_one_gets_it(world: World) {
    let first = ask("k");
    world.reserve(&first).await;
    world.settle(settlement(&first, Ending::Unknown)).await;
    let seen = Seen::from(&world.find(&first).await);
    let asks: Vec<Ask> = (0..50).map(|_| again(&first)).collect();
    let reservations = join_all(asks.iter().map(|ask| world.store().take_over(ask.clone(), seen))).await;
    let (mut winners, mut found) = (Vec::new(), Vec::new());
    for reservation in reservations {
        match reservation.unwrap() {
            Reservation::Fresh(lease) => winners.push((lease.token, lease.attempt)),
            Reservation::Taken(record) => found.push((record.token, record.attempt)),
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(found, [winners[0]; 49]);
}

async fn the_next_attempt_counts_on_and_brings_its_own_terms(world: World) {
    let first = ask("k");
    world.reserve(&first).await;
    for (number, belief) in [(2, Ending::Unknown), (3, Ending::Retryable { ttl: DAY })] {
        let last = world.find(&first).await;
        world.settle(Settlement { id: first.id, token: last.token, ending: belief }).await;
        let next = Ask {
            recipe: Recipe::new(Plan { body: BodyRule::None, ..Plan::default() }, None),
            fingerprint: Fingerprint::from_stored(&[number; 32]).unwrap(),
            time_limit: Duration::from_secs(3600),
            ..again(&first)
        };
        let seen = Seen::from(&world.find(&first).await);
        let lease = fresh(world.store().take_over(next.clone(), seen).await.unwrap());
        assert_eq!((lease.token, lease.attempt), (next.token, number.into()));
        let record = world.find(&first).await;
        assert_eq!((record.token, record.attempt, record.state.name()), (next.token, number.into(), "in_flight"));
        assert_eq!((record.recipe, record.fingerprint), (next.recipe, next.fingerprint));
        assert!(record.deadline_in_ms > 3_000_000);
        assert!(!record.past_ttl);
    }
}

async fn past_its_ttl_a_key_begins_a_new_life(world: World) {
    for (key, ending) in [
        ("completed", Ending::Completed { response: response(b"old"), ttl: Duration::ZERO, remember: None }),
        ("retryable", Ending::Retryable { ttl: Duration::ZERO }),
    ] {
        let first = ask(key);
        world.reserve(&first).await;
        world.settle(settlement(&first, Ending::Unknown)).await;
        let second = again(&first);
        fresh(world.store().take_over(second.clone(), Seen::from(&world.find(&first).await)).await.unwrap());
        world.settle(settlement(&second, ending)).await;
        let record = world.find(&first).await;
        assert!(record.past_ttl);
        assert_eq!((record.state.name(), record.attempt), (key, 2));
        let third = again(&first);
        let lease = fresh(world.store().take_over(third.clone(), Seen::from(&record)).await.unwrap());
        assert_eq!(lease.attempt, 1);
        let record = world.find(&first).await;
        assert_eq!((record.state.name(), record.attempt, record.past_ttl), ("in_flight", 1, false));
        // The old life is over for good.
        world.settle_late(completion(&second, b"late")).await.unwrap();
    }
}

async fn what_is_in_flight_and_a_response_within_its_ttl_cannot_be_taken_over(world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    for state in ["in_flight", "completed"] {
        for past_ttl in [false, true] {
            // Even where the caller would like to see it otherwise.
            let seen = Seen { token: ask.token, state, past_ttl };
            let record = taken(world.store().take_over(again(&ask), seen).await.unwrap());
            assert_eq!((record.state.name(), record.token), (state, ask.token));
        }
        if state == "in_flight" {
            world.settle(completion(&ask, b"")).await;
        }
    }
}

async fn what_has_changed_since_it_was_seen_is_not_taken_over(world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    world.settle(settlement(&ask, Ending::Retryable { ttl: DAY })).await;
    let now = Seen::from(&world.find(&ask).await);
    for seen in [
        Seen { token: token(), ..now },
        Seen { state: "unknown", ..now },
        Seen { state: "completed", ..now },
        Seen { past_ttl: true, ..now },
    ] {
        let record = taken(world.store().take_over(again(&ask), seen).await.unwrap());
        assert_eq!((record.state.name(), record.attempt), ("retryable", 1));
    }
    fresh(world.store().take_over(again(&ask), now).await.unwrap());
}

async fn taking_over_what_is_gone_reserves_it(world: World) {
    let ask = ask("k");
    let seen = Seen { token: token(), state: "retryable", past_ttl: true };
    let lease = fresh(world.store().take_over(ask.clone(), seen).await.unwrap());
    assert_eq!((lease.token, lease.attempt), (ask.token, 1));
}

async fn a_ttl_of_any_length_is_kept(world: World) {
    let ask = Ask { time_limit: Duration::MAX, ..ask("k") };
    world.reserve(&ask).await;
    let ending = Ending::Completed { response: response(b""), ttl: Duration::MAX, remember: None };
    world.settle(settlement(&ask, ending)).await;
    assert!(!world.find(&ask).await.past_ttl);
    world.store().renew(us(), Duration::MAX).await.unwrap();
}

async fn the_sweeper_takes_what_nobody_can_be_running(world: World) {
    let [alive, lapsed, missing] = [10, 11, 12].map(InstanceId::from_stored);
    world.store().renew(alive, DAY).await.unwrap();
    world.store().renew(lapsed, DAY).await.unwrap();
    world.store().renew(lapsed, Duration::ZERO).await.unwrap();
    let asks = [alive, lapsed, missing].map(|instance| Ask { instance, ..ask(&instance.to_string()) });
    let settled = Ask { instance: missing, ..ask("settled") };
    join_all(asks.iter().chain([&settled]).map(|ask| world.reserve(ask))).await;
    world.settle(completion(&settled, b"")).await;

    let mut swept = world.store().sweep(DAY, 100).await.unwrap();
    swept.sort_by_key(|swept| swept.instance.get());
    let told: Vec<_> = swept.iter().map(|s| (s.id, &*s.route, s.attempt, s.instance)).collect();
    assert_eq!(told, [(asks[1].id, "pay", 1, lapsed), (asks[2].id, "pay", 1, missing)]);
    let states = join_all(asks.iter().map(|ask| world.find(ask))).await;
    assert_eq!(
        states.iter().map(|record| record.state.name()).collect::<Vec<_>>(),
        ["in_flight", "unknown", "unknown"]
    );
    assert_eq!(world.store().sweep(DAY, 100).await.unwrap(), []);
}

async fn the_sweeper_takes_what_is_past_its_deadline_whoever_runs_it(world: World) {
    world.store().renew(us(), DAY).await.unwrap();
    let late = Ask { time_limit: Duration::ZERO, ..ask("late") };
    let running = ask("running");
    world.reserve(&late).await;
    world.reserve(&running).await;
    assert_eq!(world.store().sweep(DAY, 100).await.unwrap(), []);
    let swept = world.store().sweep(Duration::ZERO, 100).await.unwrap();
    assert_eq!(swept.iter().map(|swept| swept.id).collect::<Vec<_>>(), [late.id]);
}

async fn the_sweeper_stops_at_its_limit(world: World) {
    let asks: Vec<Ask> = (0..5).map(|i| ask(&format!("k-{i}"))).collect();
    join_all(asks.iter().map(|ask| world.reserve(ask))).await;
    let mut counts = Vec::new();
    for _ in 0..4 {
        counts.push(world.store().sweep(DAY, 2).await.unwrap().len());
    }
    assert_eq!(counts, [2, 2, 1, 0]);
}

async fn a_lease_given_back_is_over_at_once(world: World) {
    world.store().renew(us(), DAY).await.unwrap();
    world.reserve(&ask("k")).await;
    assert_eq!(world.store().sweep(DAY, 100).await.unwrap(), []);
    world.store().retire(us()).await.unwrap();
    world.store().retire(us()).await.unwrap();
    assert_eq!(world.store().sweep(DAY, 100).await.unwrap().len(), 1);
}

async fn what_stands_under_an_instance_is_listed_once_it_is_old_enough(world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    world.reserve(&Ask { instance: InstanceId::from_stored(2), ..crate::harness::world::ask("other") }).await;
    let standing = async |older_than| world.store().standing(us(), older_than).await.unwrap();
    assert_eq!(standing(DAY).await, []);
    assert_eq!(standing(Duration::ZERO).await, [(ask.id, ask.token)]);
    world.settle(settlement(&ask, Ending::Unknown)).await;
    assert_eq!(standing(Duration::ZERO).await, []);
}

async fn the_reaper_takes_the_oldest_of_what_is_past_its_ttl_and_nothing_else(world: World) {
    let over = |key: &str, ending: fn() -> Ending| (ask(key), Some(ending()));
    let zero = Duration::ZERO;
    let stays = [
        (ask("in-flight"), None),
        over("unknown", || Ending::Unknown),
        over("completed", || Ending::Completed { response: response(b""), ttl: DAY, remember: None }),
        over("retryable", || Ending::Retryable { ttl: DAY }),
    ];
    let goes = [
        (ask("first"), Some(Ending::Retryable { ttl: zero })),
        (ask("second"), Some(Ending::Completed { response: response(b""), ttl: zero, remember: None })),
        (ask("third"), Some(Ending::Retryable { ttl: zero })),
    ];
    for (ask, ending) in stays.iter().chain(&goes) {
        world.reserve(ask).await;
        if let Some(ending) = ending {
            world.settle(settlement(ask, ending.clone())).await;
            // The store's clock ticks in milliseconds, and the oldest is to be known.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    assert_eq!(world.store().reap(2).await.unwrap(), 2);
    assert!(world.store().find(goes[2].0.id).await.unwrap().is_some());
    assert_eq!(world.store().reap(2).await.unwrap(), 1);
    assert_eq!(world.store().reap(2).await.unwrap(), 0);
    for (ask, _) in &goes {
        assert!(world.store().find(ask.id).await.unwrap().is_none());
    }
    for (ask, _) in &stays {
        world.find(ask).await;
    }
}

async fn a_remembered_key_outlives_its_response(world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    let ending = Ending::Completed { response: response(b"paid"), ttl: Duration::ZERO, remember: Some(DAY) };
    world.settle(settlement(&ask, ending)).await;
    for state in ["completed", "expired", "expired"] {
        let record = world.find(&ask).await;
        assert_eq!((record.state.name(), record.late, record.past_ttl), (state, true, false));
        for past_ttl in [false, true] {
            let seen = Seen { past_ttl, ..Seen::from(&record) };
            let again = Ask { token: token(), ..ask.clone() };
            assert!(matches!(world.store().take_over(again, seen).await.unwrap(), Reservation::Taken(_)));
        }
        // Its own late settlement changes nothing either.
        let late = world.store().settle(completion(&ask, b"late")).await.unwrap();
        assert!(matches!(late, Settled::Fenced(Some(_))));
        world.store().reap(10).await.unwrap();
    }
}

async fn a_remembered_key_is_forgotten_in_the_end(world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    let remember = Some(Duration::from_millis(1));
    world.settle(settlement(&ask, Ending::Completed { response: response(b""), ttl: Duration::ZERO, remember })).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let record = world.find(&ask).await;
    assert!(record.past_ttl);
    let again = Ask { token: token(), ..ask.clone() };
    let taken = world.store().take_over(again, Seen::from(&record)).await.unwrap();
    assert!(matches!(taken, Reservation::Fresh(lease) if lease.attempt == 1));
}

async fn a_row_that_does_not_decode_is_told_and_not_taken_for_a_free_key(mut world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    world.settle(completion(&ask, b"")).await;
    let bytes = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    for change in [
        format!("fields = {}", world.bytes(&bytes("a: b\nc: d\r\n\r\n"))),
        format!("fields = {}", world.bytes(&bytes("nothing"))),
        "recipe = '999'".to_owned(),
    ] {
        world.by_hand(&format!("update keys set {change}")).await.unwrap();
        for error in [
            world.store().find(ask.id).await.map(drop).unwrap_err(),
            world.store().reserve(again(&ask)).await.map(drop).unwrap_err(),
            world.store().settle(completion(&again(&ask), b"")).await.map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::Corrupt(_)), "{change}: {error:?}");
        }
    }
}

async fn no_impossible_row_can_be_written(mut world: World) {
    let [completed, retryable, unknown] = ["completed", "retryable", "unknown"].map(ask);
    let in_flight = ask("in-flight");
    for (ask, ending) in [
        (&completed, Ending::Completed { response: response(b""), ttl: DAY, remember: None }),
        (&retryable, Ending::Retryable { ttl: DAY }),
        (&unknown, Ending::Unknown),
    ] {
        world.reserve(ask).await;
        world.settle(settlement(ask, ending)).await;
    }
    let short = world.bytes("00");
    let mut impossible: Vec<(String, &str)> = Vec::new();
    for (change, states) in [
        ("status = null", "completed"),
        ("fields = null", "completed"),
        ("expires_at = null", "completed retryable"),
        ("status = 199", "completed"),
        ("status = 600", "completed"),
        ("status = 200", "retryable unknown"),
        ("settled_at = null", "completed retryable unknown"),
        ("state = 'in_flight'", "completed retryable unknown"),
        ("state = 'completed'", "retryable unknown"),
        ("state = 'unknown'", "completed retryable"),
        ("state = 'done'", "completed retryable unknown"),
        ("attempt = 0", "completed"),
    ] {
        impossible.extend(states.split(' ').map(|state| (change.to_owned(), state)));
    }
    for column in ["id", "token", "scope", "fingerprint"] {
        impossible.push((format!("{column} = {short}"), "completed"));
    }
    for column in ["fields", "body"] {
        impossible.push((format!("{column} = {short}"), "unknown"));
    }
    for (change, state) in impossible {
        let done = world.by_hand(&format!("update keys set {change} where state = '{state}'")).await;
        let why = done.expect_err(&change).to_lowercase();
        assert!(why.contains("check constraint"), "{change}: {why}");
    }
    world.reserve(&in_flight).await;
}

async fn a_bad_row_fails_alone(world: World) {
    let bad = 13;
    let asks: Vec<Ask> = (0..40).map(|i| ask(&format!("k-{i}"))).collect();
    join_all(asks.iter().map(|ask| world.reserve(ask))).await;
    let settlements = asks.iter().enumerate().map(|(i, ask)| {
        // No status to be stored; the gate lets none through.
        let status = if i == bad { StatusCode::from_u16(600).unwrap() } else { StatusCode::OK };
        let response = StoredResponse { status, ..response(b"") };
        world.store().settle(settlement(ask, Ending::Completed { response, ttl: DAY, remember: None }))
    });
    for (i, settled) in join_all(settlements).await.into_iter().enumerate() {
        match settled {
            Ok(Settled::Done { .. }) => assert_ne!(i, bad),
            Err(StoreError::Unavailable(_)) => assert_eq!(i, bad),
            other => panic!("{i}: {other:?}"),
        }
    }
    assert_eq!(world.find(&asks[bad]).await.state.name(), "in_flight");
}

async fn a_thousand_attempts_at_once_all_end(world: World) {
    let attempt = async |i: usize| {
        let ask = ask(&format!("k-{i}"));
        world.reserve(&ask).await;
        world.settle(completion(&ask, &[0; 100])).await;
        let State::Completed(completed) = world.find(&ask).await.state else { panic!("it is not completed") };
        assert_eq!(completed.response.body, Some(Bytes::from_static(&[0; 100])));
    };
    join_all((0..1000).map(attempt)).await;
}

async fn what_was_acknowledged_is_there_after_reopening(mut world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    world.settle(completion(&ask, b"paid")).await;
    world.reopen().await;
    assert_eq!(world.find(&ask).await.state.name(), "completed");
}

async fn the_salt_stays_what_it_was(mut world: World) {
    use oncegate::domain::scope::Scope;
    let scope = |world: &World| Scope::of(&world.store().salt(), [("authorization", None)]);
    let before = scope(&world);
    world.reopen().await;
    assert_eq!(scope(&world), before);
}

async fn a_store_that_works_answers_a_ping(world: World) {
    world.store().ping().await.unwrap();
}
