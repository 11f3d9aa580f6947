//! What services say of their own attempts.

use std::time::Duration;

use oncegate::domain::attempt::{Ending, Settlement, Token};
use oncegate::domain::record::{Ask, State};
use oncegate::domain::recovery::RecoveryPoint;
use oncegate::domain::testimony::{Heard, Reservation, What, Word};
use oncegate::store::Seen;

use crate::harness::world::{DAY, World, again, ask, completion, fresh, response, settlement, token};

fn word(ask: &Ask, what: What) -> Word {
    Word { service: ask.service.clone(), of: Reservation { id: ask.id, token: ask.token }, what }
}

fn reached(name: &str) -> What {
    What::Reached(RecoveryPoint::parse(name).unwrap())
}

fn denied() -> What {
    What::NotExecuted(DAY)
}

async fn hear(world: &World, word: Word) -> Heard {
    world.store().testimony().hear(word).await.unwrap()
}

async fn heed(world: &World) -> usize {
    world.store().testimony().heed(100).await.unwrap().len()
}

async fn state(world: &World, ask: &Ask) -> &'static str {
    world.find(ask).await.state.name()
}

/// The next attempt, and how far it hears that those before it have come.
async fn next(world: &World, before: &Ask) -> (Ask, Option<String>) {
    let next = again(before);
    let seen = Seen::from(&world.find(before).await);
    let lease = fresh(world.store().take_over(next.clone(), seen).await.unwrap());
    (next, lease.recovery_point.map(|point| point.to_string()))
}

pub async fn how_far_an_attempt_has_come_goes_to_the_next_one(world: World) {
    let first = ask("k");
    assert_eq!(world.reserve(&first).await.recovery_point, None);
    for name in ["begun", "charge_created", "charge_created"] {
        assert_eq!(hear(&world, word(&first, reached(name))).await, Heard::Taken);
    }
    let record = world.find(&first).await;
    assert_eq!((record.state.name(), record.recovery_point.unwrap().as_str()), ("in_flight", "charge_created"));
    world.settle(settlement(&first, Ending::Unknown)).await;
    let (second, point) = next(&world, &first).await;
    assert_eq!(point.as_deref(), Some("charge_created"));
    // Late, too, and it stays for the attempt after the next.
    world.settle(settlement(&second, Ending::Unknown)).await;
    let (third, point) = next(&world, &second).await;
    assert_eq!(point.as_deref(), Some("charge_created"));
    world.settle(settlement(&third, Ending::Retryable { ttl: DAY })).await;
    assert_eq!(hear(&world, word(&third, reached("mailed"))).await, Heard::Taken);
    assert_eq!(next(&world, &third).await.1.as_deref(), Some("mailed"));
}

pub async fn how_far_it_has_come_is_for_the_newest_attempt_of_a_key_that_is_not_completed_to_say(world: World) {
    let first = ask("k");
    assert_eq!(hear(&world, word(&first, reached("a"))).await, Heard::Gone, "there is no such key");
    world.reserve(&first).await;
    world.settle(settlement(&first, Ending::Unknown)).await;
    let (second, _) = next(&world, &first).await;
    assert_eq!(hear(&world, word(&first, reached("late"))).await, Heard::Gone);
    assert_eq!(world.find(&first).await.recovery_point, None);
    world.settle(completion(&second, b"paid")).await;
    for ask in [&first, &second] {
        let heard = if ask.token == second.token { Heard::Completed } else { Heard::Gone };
        assert_eq!(hear(&world, word(ask, reached("late"))).await, heard);
    }
    assert_eq!(world.find(&first).await.recovery_point, None);
}

pub async fn a_new_life_begins_where_nobody_has_come_yet(world: World) {
    let first = ask("k");
    world.reserve(&first).await;
    hear(&world, word(&first, reached("charge_created"))).await;
    let ending = Ending::Completed { response: response(b""), ttl: Duration::ZERO, remember: None };
    world.settle(settlement(&first, ending)).await;
    assert!(world.find(&first).await.past_ttl);
    assert_eq!(next(&world, &first).await.1, None);
}

pub async fn what_has_ended_is_free_as_soon_as_its_service_says_that_it_was_not_executed(mut world: World) {
    let asks = ["unknown", "dead", "retryable"].map(ask);
    for ask in &asks {
        world.reserve(ask).await;
        world.settle(settlement(ask, Ending::Unknown)).await;
    }
    let [_, dead, free] = &asks;
    world
        .by_hand(&format!("update keys set state = 'dead' where id = {}", world.bytes(&dead.id.to_string())))
        .await
        .unwrap();
    world.settle(settlement(free, Ending::Retryable { ttl: DAY })).await;
    for ask in &asks {
        assert_eq!(hear(&world, word(ask, denied())).await, Heard::Taken);
        assert_eq!(state(&world, ask).await, "retryable");
        assert!(!world.find(ask).await.past_ttl);
    }
    let mut lines = world.audit_without_notes().await;
    lines.sort();
    let line = |ask: &Ask, before: &str| format!("shop service not_executed {} {before} retryable", ask.id);
    let mut expected = [line(&asks[0], "unknown"), line(dead, "dead")];
    expected.sort();
    assert_eq!(lines, expected, "what was free already has changed in nothing");
}

pub async fn what_is_running_is_free_once_it_has_ended_and_not_before(mut world: World) {
    let (running, other) = (ask("running"), ask("other"));
    for ask in [&running, &other] {
        world.reserve(ask).await;
    }
    assert_eq!(hear(&world, word(&running, denied())).await, Heard::Noted);
    assert_eq!(heed(&world).await, 0);
    assert_eq!(state(&world, &running).await, "in_flight");
    // Nobody else begins beside it.
    let from = Seen::from(&world.find(&running).await);
    let record = crate::harness::world::taken(world.store().take_over(again(&running), from).await.unwrap());
    assert_eq!(record.token, running.token);
    for ask in [&running, &other] {
        world.settle(settlement(ask, Ending::Unknown)).await;
    }
    world.reopen().await;
    assert_eq!((heed(&world).await, heed(&world).await), (1, 0));
    assert_eq!((state(&world, &running).await, state(&world, &other).await), ("retryable", "unknown"));
    let line = format!("shop service not_executed {} unknown retryable", running.id);
    assert_eq!(world.audit_without_notes().await, [line]);
    assert_eq!(world.denials().await, 0);
}

pub async fn a_response_counts_whatever_its_service_has_said_before(mut world: World) {
    let asks = ["running", "ended"].map(ask);
    for ask in &asks {
        world.reserve(ask).await;
    }
    world.settle(settlement(&asks[1], Ending::Unknown)).await;
    for ask in &asks {
        hear(&world, word(ask, denied())).await;
        world.settle(completion(ask, b"paid")).await;
        assert_eq!(hear(&world, word(ask, denied())).await, Heard::Completed);
    }
    assert_eq!(heed(&world).await, 0);
    for ask in &asks {
        assert_eq!(state(&world, ask).await, "completed");
    }
    assert_eq!(world.denials().await, 0);
}

pub async fn a_word_counts_for_its_own_attempt_and_no_other(mut world: World) {
    let first = ask("k");
    world.reserve(&first).await;
    assert_eq!(hear(&world, word(&first, denied())).await, Heard::Noted);
    world.settle(settlement(&first, Ending::Retryable { ttl: DAY })).await;
    let (second, _) = next(&world, &first).await;
    world.settle(settlement(&second, Ending::Unknown)).await;
    // What was noted of the first attempt says nothing of the second.
    assert_eq!(heed(&world).await, 0);
    assert_eq!((state(&world, &second).await, world.denials().await), ("unknown", 0));
    let stranger = Ask { token: token(), ..second.clone() };
    let wrong = Word { service: "other".into(), ..word(&second, denied()) };
    for word in [word(&first, denied()), word(&stranger, denied()), wrong] {
        assert_eq!(hear(&world, word).await, Heard::Gone);
    }
    assert_eq!(state(&world, &second).await, "unknown");
}

pub async fn who_is_heard_again_has_said_the_same(mut world: World) {
    let (running, ended) = (ask("running"), ask("ended"));
    for ask in [&running, &ended] {
        world.reserve(ask).await;
    }
    world.settle(settlement(&ended, Ending::Unknown)).await;
    for _ in 0..2 {
        assert_eq!(hear(&world, word(&running, denied())).await, Heard::Noted);
        assert_eq!(hear(&world, word(&ended, denied())).await, Heard::Taken);
    }
    assert_eq!((world.denials().await, world.audit_without_notes().await.len()), (1, 1));
}

pub async fn a_response_given_apart_completes_its_key_as_an_answer_would(world: World) {
    let ask = ask("k");
    let given = |token: Token, body: &[u8]| {
        let ending = Ending::Completed { response: response(body), ttl: DAY, remember: None };
        Settlement::of_service(ask.id, token, ending)
    };
    assert!(world.settle_late(given(ask.token, b"paid")).await.is_none(), "no row is made for it");
    world.reserve(&ask).await;
    world.settle_late(given(token(), b"stolen")).await.unwrap();
    assert_eq!(state(&world, &ask).await, "in_flight");
    world.settle(given(ask.token, b"paid")).await;
    for late in [given(ask.token, b"paid"), given(ask.token, b"else"), completion(&ask, b"answer")] {
        let State::Completed(completed) = world.settle_late(late).await.unwrap().state else { panic!() };
        assert_eq!(completed.response, response(b"paid"));
    }
}
