//! The attempts after the first.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate::domain::attempt::Ending;
use oncegate::domain::fingerprint::{BodyRule, Fingerprint, Plan, Recipe};
use oncegate::domain::record::{Ask, Reservation};
use oncegate::store::Seen;

use crate::harness::world::{DAY, World, again, ask, completion, fresh, response, settlement, taken, token};

pub async fn of_many_who_take_a_key_over_at_once_one_gets_it(world: World) {
    let first = ask("k");
    world.reserve(&first).await;
    world.settle(settlement(&first, Ending::Unknown)).await;
    let seen = Seen::from(&world.find(&first).await);
    let asks: Vec<Ask> = (0..50).map(|_| again(&first)).collect();
    let reservations = join_all(asks.iter().map(|ask| world.store().take_over(ask.clone(), seen))).await;
    let (mut winners, mut found) = (Vec::new(), Vec::new());
    for reservation in reservations {
        match reservation.unwrap() {
            Reservation::Fresh(lease) => winners.push((lease.ask.token, lease.attempt)),
            Reservation::Taken(record) => found.push((record.token, record.attempt)),
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(found, [winners[0]; 49]);
}

pub async fn the_next_attempt_counts_on_and_brings_its_own_terms(world: World) {
    let first = ask("k");
    world.reserve(&first).await;
    for (number, belief) in [(2, Ending::Unknown), (3, Ending::Retryable { ttl: DAY })] {
        let last = world.find(&first).await;
        world.settle(settlement(&Ask { token: last.token, ..first.clone() }, belief)).await;
        let next = Ask {
            recipe: Recipe::new(Plan { body: BodyRule::None, query: true, ..Plan::default() }, None),
            fingerprint: Fingerprint::from_stored(&[number; 32]).unwrap(),
            time_limit: Duration::from_secs(3600),
            ..again(&first)
        };
        let seen = Seen::from(&world.find(&first).await);
        let lease = fresh(world.store().take_over(next.clone(), seen).await.unwrap());
        assert_eq!((lease.ask.token, lease.attempt), (next.token, number.into()));
        let record = world.find(&first).await;
        assert_eq!((record.token, record.attempt, record.state.name()), (next.token, number.into(), "in_flight"));
        assert_eq!((record.recipe, record.fingerprint), (next.recipe, next.fingerprint));
        assert!(record.deadline_in_ms > 3_000_000);
        assert!(!record.past_ttl);
    }
}

pub async fn past_its_ttl_a_key_begins_a_new_life(world: World) {
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

pub async fn what_is_in_flight_and_a_response_within_its_ttl_cannot_be_taken_over(world: World) {
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

pub async fn what_has_changed_since_it_was_seen_is_not_taken_over(world: World) {
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

pub async fn taking_over_what_is_gone_reserves_it(world: World) {
    let ask = ask("k");
    let seen = Seen { token: token(), state: "retryable", past_ttl: true };
    let lease = fresh(world.store().take_over(ask.clone(), seen).await.unwrap());
    assert_eq!((lease.ask.token, lease.attempt), (ask.token, 1));
}
