//! What becomes of an attempt whose acknowledged row the store has lost, as after a failover that lost a commit.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use oncegate::domain::attempt::{Ending, Settlement};
use oncegate::domain::record::{Ask, Reservation, State};
use oncegate::store::{Seen, Settled};

use crate::harness::world::{DAY, World, again, ask, completion, fresh, response, settlement};

const LOSE_IT: &str = "delete from keys";

pub async fn a_completion_whose_row_was_lost_is_stored_whole(mut world: World) {
    for attempt in [1, 2] {
        let first = ask(&format!("k-{attempt}"));
        let mut lease = world.reserve(&first).await;
        if attempt == 2 {
            world.settle(lease.unknown()).await;
            let seen = Seen::from(&world.find(&first).await);
            lease = fresh(world.store().take_over(again(&first), seen).await.unwrap());
        }
        let (token, before) = (lease.ask.token, SystemTime::now());
        world.by_hand(LOSE_IT).await.unwrap();
        let remember = Some(DAY);
        let settlement = lease.complete(response(b"paid"), DAY).remembered(remember);
        let Settled::Done { expires_at } = world.store().settle(settlement.clone()).await.unwrap() else {
            panic!("it is not stored")
        };
        let record = world.lose(&again(&first)).await;
        assert_eq!((record.id, record.token, record.attempt), (first.id, token, attempt));
        assert_eq!((record.recipe, record.fingerprint), (first.recipe.clone(), first.fingerprint));
        let State::Completed(completed) = record.state else { panic!("it is not completed") };
        assert_eq!(completed.response, response(b"paid"));
        assert_eq!(completed.expires_at, expires_at);
        let lives = completed.expires_at.unwrap().duration_since(before).unwrap();
        assert!(lives.abs_diff(DAY) < Duration::from_secs(10), "{lives:?}");
        // It is a settlement like any other: a second time it changes nothing.
        assert_eq!(world.settle_late(settlement).await.unwrap().token, token);
    }
}

pub async fn an_unknown_outcome_whose_row_was_lost_stays_unknown(mut world: World) {
    let first = ask("k");
    let lease = world.reserve(&first).await;
    world.by_hand(LOSE_IT).await.unwrap();
    let settled = world.store().settle(lease.unknown()).await.unwrap();
    assert!(matches!(settled, Settled::Done { expires_at: None }), "{settled:?}");
    let record = world.lose(&again(&first)).await;
    assert_eq!((record.state.name(), record.token, record.past_ttl), ("unknown", first.token, false));
    // Its time limit is not over sooner than it was.
    assert!((20_000..=30_000).contains(&record.deadline_in_ms), "{}", record.deadline_in_ms);
    // What it was told later counts.
    world.settle(completion(&first, b"late")).await;
    assert_eq!(world.find(&first).await.state.name(), "completed");
}

pub async fn what_may_be_tried_again_is_not_written_anew(mut world: World) {
    let first = ask("k");
    let lease = world.reserve(&first).await;
    world.by_hand(LOSE_IT).await.unwrap();
    assert!(world.settle_late(lease.release(DAY)).await.is_none());
    assert!(world.settle_late(Settlement::of_stray(first.id, first.token, DAY)).await.is_none());
    assert!(world.store().find(first.id).await.unwrap().is_none());
}

pub async fn whoever_came_after_the_loss_is_not_overwritten(mut world: World) {
    let (first, second) = (ask("k"), ask("k"));
    world.reserve(&first).await;
    world.by_hand(LOSE_IT).await.unwrap();
    world.reserve(&second).await;
    for ending in [Ending::Completed { response: response(b"first"), ttl: DAY, remember: None }, Ending::Unknown] {
        let record = world.settle_late(settlement(&first, ending)).await.unwrap();
        assert_eq!((record.token, record.state.name()), (second.token, "in_flight"));
    }
    world.settle(completion(&second, b"second")).await;
    let State::Completed(completed) = world.settle_late(completion(&first, b"first")).await.unwrap().state else {
        panic!("it is not completed")
    };
    assert_eq!(completed.response, response(b"second"));
}

pub async fn of_many_who_settle_or_reserve_a_lost_key_at_once_one_has_it(mut world: World) {
    let firsts: Vec<Ask> = (0..20).map(|i| ask(&format!("k-{i}"))).collect();
    join_all(firsts.iter().map(|first| world.reserve(first))).await;
    world.by_hand(LOSE_IT).await.unwrap();
    let store = world.store();
    let each = |first: &Ask| {
        let settlements: Vec<_> = (0..3).map(|i| store.settle(completion(first, &[i]))).collect();
        let second = store.reserve(again(first));
        async { (join_all(settlements).await, second.await) }
    };
    for (first, (settled, second)) in firsts.iter().zip(join_all(firsts.iter().map(each)).await) {
        let written = settled.iter().filter(|settled| matches!(settled, Ok(Settled::Done { .. }))).count();
        let reserved = match second.unwrap() {
            Reservation::Fresh(lease) => Some(lease),
            Reservation::Taken(record) => {
                assert_eq!((record.token, record.state.name()), (first.token, "completed"));
                None
            }
        };
        assert_eq!(written + usize::from(reserved.is_some()), 1);
        let token = reserved.map_or(first.token, |lease| lease.ask.token);
        for settled in settled.into_iter().map(Result::unwrap) {
            match settled {
                Settled::Done { .. } => {}
                Settled::Fenced(record) => assert_eq!(record.unwrap().token, token),
            }
        }
    }
}

pub async fn what_was_stored_anew_is_forgotten_like_the_rest(mut world: World) {
    let first = ask("k");
    world.reserve(&first).await;
    let short = Ending::Completed { response: response(b"paid"), ttl: Duration::ZERO, remember: None };
    for _ in 0..2 {
        world.by_hand(LOSE_IT).await.unwrap();
        world.settle(settlement(&first, short.clone())).await;
        assert!(world.find(&first).await.past_ttl);
        assert_eq!(world.store().reap(10).await.unwrap(), 1);
    }
}
