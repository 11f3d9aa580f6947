//! Reserving a key, and ending its attempt.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::join_all;
use oncegate::domain::attempt::Ending;
use oncegate::domain::fingerprint::{BodyRule, Fingerprint, Plan, Recipe};
use oncegate::domain::record::{Ask, Reservation, State};
use oncegate::domain::response::StoredResponse;
use oncegate::store::{Seen, Settled};

use crate::harness::world::{DAY, World, again, ask, ask_of, completion, fresh, response, settlement};

pub async fn a_key_without_a_record_is_reserved_for_its_first_attempt(world: World) {
    let ask = ask("k");
    let lease = world.reserve(&ask).await;
    assert_eq!((lease.ask.id, lease.ask.token, lease.attempt), (ask.id, ask.token, 1));
}

pub async fn of_a_hundred_who_reserve_a_key_at_once_one_gets_it(world: World) {
    let asks: Vec<Ask> = (0..100).map(|_| ask("k")).collect();
    let reservations = join_all(asks.iter().map(|ask| world.store().reserve(ask.clone()))).await;
    let (mut winners, mut seen) = (Vec::new(), Vec::new());
    for reservation in reservations {
        match reservation.unwrap() {
            Reservation::Fresh(lease) => winners.push(lease.ask.token),
            Reservation::Taken(record) => seen.push(record.token),
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(seen, [winners[0]; 99]);
}

pub async fn of_many_keys_reserved_twice_at_once_each_has_one_attempt(world: World) {
    let asks: Vec<Ask> = (0..400).map(|i| ask(&format!("k-{}", i % 200))).collect();
    let reservations = join_all(asks.iter().map(|ask| world.store().reserve(ask.clone()))).await;
    let fresh = reservations.iter().filter(|r| matches!(r, Ok(Reservation::Fresh(_)))).count();
    let taken = reservations.iter().filter(|r| matches!(r, Ok(Reservation::Taken(_)))).count();
    assert_eq!((fresh, taken), (200, 200));
}

pub async fn who_comes_second_finds_what_was_reserved(world: World) {
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

pub async fn services_scopes_spaces_and_keys_do_not_see_each_other(world: World) {
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

pub async fn a_key_that_was_never_used_has_no_record(world: World) {
    assert!(world.store().find(ask("k").id).await.unwrap().is_none());
}

pub async fn a_completed_key_keeps_its_response_byte_for_byte(world: World) {
    for body in [&b""[..], b"paid", b"\0\0", b"\xff\xfe\xed\xa0\x80", b"{\"a\":\"\\u0000\\ud800\"}", &[0x5c; 300]] {
        let ask = ask(&format!("k-{}", body.len()));
        world.reserve(&ask).await;
        let before = SystemTime::now();
        let Settled::Done { expires_at } = world.store().settle(completion(&ask, body)).await.unwrap() else {
            panic!("somebody else has settled it")
        };
        let State::Completed(completed) = world.lose(&again(&ask)).await.state else { panic!("it is not completed") };
        assert_eq!(completed.response, response(body));
        assert_eq!(completed.expires_at, expires_at);
        let lives = completed.expires_at.unwrap().duration_since(before).unwrap();
        assert!(lives.abs_diff(DAY) < Duration::from_secs(10), "{lives:?}");
    }
}

pub async fn a_large_body_survives(world: World) {
    let body: Vec<u8> = (0..3 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let asks: Vec<Ask> = (0..8).map(|i| ask(&format!("k-{i}"))).collect();
    join_all(asks.iter().map(|ask| world.reserve(ask))).await;
    join_all(asks.iter().map(|ask| world.settle(completion(ask, &body)))).await;
    for record in join_all(asks.iter().map(|ask| world.find(ask))).await {
        let State::Completed(completed) = record.state else { panic!("it is not completed") };
        assert!(completed.response.body.unwrap() == body);
    }
}

pub async fn a_response_too_large_to_keep_is_completed_without_its_body(world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    let response = StoredResponse { body: None, ..response(b"") };
    world.settle(settlement(&ask, Ending::Completed { response: response.clone(), ttl: DAY, remember: None })).await;
    let State::Completed(completed) = world.find(&ask).await.state else { panic!("it is not completed") };
    assert_eq!(completed.response, response);
}

pub async fn what_is_completed_does_not_change(world: World) {
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

pub async fn the_same_settlement_again_changes_nothing(world: World) {
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

pub async fn two_settlements_at_once_leave_one_of_them(world: World) {
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

pub async fn a_superseded_attempt_settles_nothing(world: World) {
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

pub async fn a_late_completion_is_taken_from_unknown_and_from_retryable(world: World) {
    for (key, belief) in [("unknown", Ending::Unknown), ("retryable", Ending::Retryable { ttl: DAY })] {
        let ask = ask(key);
        world.reserve(&ask).await;
        world.settle(settlement(&ask, belief)).await;
        assert_eq!(world.find(&ask).await.state.name(), key);
        world.settle(completion(&ask, b"late")).await;
        assert_eq!(world.find(&ask).await.state.name(), "completed");
    }
}

pub async fn a_late_doubt_undoes_nothing_that_was_decided(mut world: World) {
    let asks = ["released", "dead"].map(ask);
    for ask in &asks {
        world.reserve(ask).await;
        world.settle(settlement(ask, Ending::Unknown)).await;
    }
    world.settle(settlement(&asks[0], Ending::Retryable { ttl: DAY })).await;
    world.by_hand("update keys set state = 'dead' where state = 'unknown'").await.unwrap();
    for (ask, stands) in asks.iter().zip(["retryable", "dead"]) {
        let record = world.settle_late(settlement(ask, Ending::Unknown)).await.unwrap();
        assert_eq!((record.state.name(), record.token), (stands, ask.token));
    }
    // Of what nobody has accepted, an attempt that is known not to have executed frees a key that was given up.
    world.settle(settlement(&asks[1], Ending::Retryable { ttl: DAY })).await;
    assert_eq!(world.find(&asks[1]).await.state.name(), "retryable");
}

pub async fn a_thousand_attempts_at_once_all_end(world: World) {
    let attempt = async |i: usize| {
        let ask = ask(&format!("k-{i}"));
        world.reserve(&ask).await;
        world.settle(completion(&ask, &[0; 100])).await;
        let State::Completed(completed) = world.find(&ask).await.state else { panic!("it is not completed") };
        assert_eq!(completed.response.body, Some(Bytes::from_static(&[0; 100])));
    };
    join_all((0..1000).map(attempt)).await;
}

pub async fn what_was_acknowledged_is_there_after_reopening(mut world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    world.settle(completion(&ask, b"paid")).await;
    world.reopen().await;
    assert_eq!(world.find(&ask).await.state.name(), "completed");
}
