//! Attempts whose acknowledged row the store has lost, as after a failover that lost a commit.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use oncegate_domain::attempt::{
    AttemptLease, AttemptOutcome, ReplacedRecord, ReserveRequest, ReserveResult, Settlement,
};
use oncegate_domain::state::KeyState;
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_store::{self as store, ExpectedRecord, SettleResult, StoreSettings};

use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, completion, new_reserve_request, next_attempt_request, response, settlement,
    unwrap_lease,
};
use crate::waiting::{TEST_TIMEOUT, eventually};

const LOSE_IT: &str = "delete from keys";

pub async fn a_record_that_a_standby_may_lack_answers_no_look_up(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    world.settle(completion(&reserve_request, b"paid")).await;
    let settings = StoreSettings { timeout: Duration::from_secs(1), ..world.settings.clone() };
    if !world.commits_wait_for_a_standby(true).await {
        return;
    }
    let other = store::open_unprepared(&settings).await.unwrap().0;
    // The server's processes read the setting one after the other.
    eventually(TEST_TIMEOUT, async || other.find(reserve_request.id).await.is_err().then_some(())).await;
    assert!(world.commits_wait_for_a_standby(false).await);
    let found = eventually(TEST_TIMEOUT, async || other.find(reserve_request.id).await.ok().flatten());
    assert_eq!(found.await.state.name(), "completed");
}

pub async fn a_completion_with_a_lost_row_is_stored_as_a_new_row(mut world: StoreFixture) {
    for attempt in [1, 2] {
        let first = new_reserve_request(&format!("k-{attempt}"));
        let mut lease = world.reserve(&first).await;
        if attempt == 2 {
            world.settle(lease.unknown(UnknownCause::Broken)).await;
            let seen = ExpectedRecord::from(&world.find(&first).await);
            lease = unwrap_lease(world.take_over(next_attempt_request(&first), seen).await);
        }
        let (token, before) = (lease.reserve_request.token, SystemTime::now());
        world.execute_sql(LOSE_IT).await.unwrap();
        let remember = Some(DAY);
        let settlement = lease.complete(response(b"paid"), DAY).with_remember(remember);
        let SettleResult::Done { expires_at } = world.store().settle(settlement.clone()).await.unwrap() else {
            panic!("it is not stored")
        };
        let record = world.reserve_taken(&next_attempt_request(&first)).await;
        assert_eq!((record.id, record.token, record.attempt), (first.id, token, attempt));
        assert_eq!((record.recipe, record.fingerprint), (first.recipe.clone(), first.fingerprint));
        let KeyState::Completed(completed) = record.state else { panic!("it is not completed") };
        assert_eq!(completed.response, response(b"paid"));
        assert_eq!(completed.expires_at, expires_at);
        let lives = completed.expires_at.unwrap().duration_since(before).unwrap();
        assert!(lives.abs_diff(DAY) < Duration::from_secs(10), "{lives:?}");
        // It is a settlement like any other: a repeated one changes nothing.
        assert_eq!(world.settle_late(settlement).await.unwrap().token, token);
    }
}

pub async fn an_unknown_outcome_with_a_lost_row_stays_unknown(mut world: StoreFixture) {
    let first = new_reserve_request("k");
    let lease = world.reserve(&first).await;
    world.execute_sql(LOSE_IT).await.unwrap();
    let settled = world.store().settle(lease.unknown(UnknownCause::Broken)).await.unwrap();
    assert!(matches!(settled, SettleResult::Done { expires_at: None }), "{settled:?}");
    let record = world.reserve_taken(&next_attempt_request(&first)).await;
    assert_eq!((record.state.name(), record.token, record.past_ttl), ("unknown", first.token, false));
    // Its time limit does not end earlier than before.
    assert!((20_000..=30_000).contains(&record.deadline_in_ms), "{}", record.deadline_in_ms);
    // A later completion counts.
    world.settle(completion(&first, b"late")).await;
    assert_eq!(world.find(&first).await.state.name(), "completed");
}

pub async fn a_retryable_outcome_with_a_lost_row_is_not_stored(mut world: StoreFixture) {
    let first = new_reserve_request("k");
    let lease = world.reserve(&first).await;
    world.execute_sql(LOSE_IT).await.unwrap();
    assert!(world.settle_late(lease.release(DAY)).await.is_none());
    assert!(world.settle_late(Settlement::for_orphan(first.id, first.token, DAY)).await.is_none());
    assert!(world.store().find(first.id).await.unwrap().is_none());
}

pub async fn a_new_owner_after_a_lost_row_is_not_overwritten(mut world: StoreFixture) {
    let (first, second) = (new_reserve_request("k"), new_reserve_request("k"));
    world.reserve(&first).await;
    world.execute_sql(LOSE_IT).await.unwrap();
    world.reserve(&second).await;
    for outcome in [AttemptOutcome::Completed { response: response(b"first"), ttl: DAY, remember: None }, UNKNOWN] {
        let record = world.settle_late(settlement(&first, outcome)).await.unwrap();
        assert_eq!((record.token, record.state.name()), (second.token, "in_flight"));
    }
    world.settle(completion(&second, b"second")).await;
    let KeyState::Completed(completed) = world.settle_late(completion(&first, b"first")).await.unwrap().state else {
        panic!("it is not completed")
    };
    assert_eq!(completed.response, response(b"second"));
}

pub async fn one_of_many_simultaneous_settlements_and_reservations_gets_a_lost_key(mut world: StoreFixture) {
    let firsts: Vec<ReserveRequest> = (0..20).map(|i| new_reserve_request(&format!("k-{i}"))).collect();
    join_all(firsts.iter().map(|first| world.reserve(first))).await;
    world.execute_sql(LOSE_IT).await.unwrap();
    let store = world.store();
    let each = |first: &ReserveRequest| {
        let settlements: Vec<_> = (0..3).map(|i| store.settle(completion(first, &[i]))).collect();
        let second = store.reserve(next_attempt_request(first));
        async { (join_all(settlements).await, second.await) }
    };
    for (first, (settled, second)) in firsts.iter().zip(join_all(firsts.iter().map(each)).await) {
        let written = settled.iter().filter(|settled| matches!(settled, Ok(SettleResult::Done { .. }))).count();
        let reserved = match second.unwrap() {
            ReserveResult::Fresh(lease) => Some(lease),
            ReserveResult::Taken(record) => {
                assert_eq!((record.token, record.state.name()), (first.token, "completed"));
                None
            }
        };
        assert_eq!(written + usize::from(reserved.is_some()), 1);
        let token = reserved.map_or(first.token, |lease| lease.reserve_request.token);
        for settled in settled.into_iter().map(Result::unwrap) {
            match settled {
                SettleResult::Done { .. } => {}
                SettleResult::Fenced(record) => assert_eq!(record.unwrap().token, token),
            }
        }
    }
}

pub async fn a_restored_row_is_reaped_as_any_other(mut world: StoreFixture) {
    let first = new_reserve_request("k");
    world.reserve(&first).await;
    let short = AttemptOutcome::Completed { response: response(b"paid"), ttl: Duration::ZERO, remember: None };
    for _ in 0..2 {
        world.execute_sql(LOSE_IT).await.unwrap();
        world.settle(settlement(&first, short.clone())).await;
        assert!(world.find(&first).await.past_ttl);
        assert_eq!(world.reap(10).await.deleted, 1);
    }
}

/// Keeps a copy of the keys for [`fall_back`].
pub(super) async fn copy_keys(world: &mut StoreFixture) {
    world.execute_sql("create table copied_keys as select * from keys").await.unwrap();
}

/// Loses all changes of keys since [`copy_keys`].
pub(super) async fn fall_back(world: &mut StoreFixture) {
    let back = "delete from keys; insert into keys select * from copied_keys; drop table copied_keys";
    world.execute_sql(back).await.unwrap();
}

/// Takes a key over after its first attempt, and loses all since the first attempt was in a state.
async fn lost_takeover(world: &mut StoreFixture, key: &str, state: &str) -> (ReserveRequest, AttemptLease) {
    let first = new_reserve_request(key);
    let lease = world.reserve(&first).await;
    if state == "in_flight" {
        copy_keys(world).await;
    }
    let is_unknown = state == "unknown";
    world.settle(if is_unknown { lease.unknown(UnknownCause::Broken) } else { lease.release(DAY) }).await;
    if state != "in_flight" {
        copy_keys(world).await;
    }
    let seen = ExpectedRecord::from(&world.find(&first).await);
    let second = unwrap_lease(world.take_over(next_attempt_request(&first), seen).await);
    assert_eq!(
        (second.attempt, second.taken_from),
        (2, Some(ReplacedRecord { token: first.token, was_completed: false }))
    );
    fall_back(world).await;
    (first, second)
}

pub async fn an_outcome_with_a_lost_takeover_replaces_the_record_before_it(mut world: StoreFixture) {
    for state in ["in_flight", "retryable", "unknown"] {
        let (first, second) = lost_takeover(&mut world, &format!("{state}-completed"), state).await;
        let token = second.reserve_request.token;
        let settlement = second.complete(response(b"paid"), DAY);
        world.settle(settlement.clone()).await;
        let record = world.find(&first).await;
        assert_eq!((record.token, record.attempt, record.past_ttl), (token, 2, false));
        let KeyState::Completed(completed) = record.state else { panic!("it is not completed") };
        assert_eq!(completed.response, response(b"paid"));
        assert_eq!(world.settle_late(settlement).await.unwrap().token, token, "a repeated one changes nothing");

        let (first, second) = lost_takeover(&mut world, &format!("{state}-unknown"), state).await;
        let token = second.reserve_request.token;
        world.settle(second.unknown(UnknownCause::Broken)).await;
        let record = world.find(&first).await;
        assert_eq!((record.token, record.attempt, record.state.name()), (token, 2, "unknown"));

        let (first, second) = lost_takeover(&mut world, &format!("{state}-released"), state).await;
        // The embedded store calls an attempt unknown that was in flight when it was opened.
        let before = world.find(&first).await;
        assert_eq!(world.settle_late(second.release(DAY)).await.unwrap().token, first.token);
        assert_eq!(world.find(&first).await.state.name(), before.state.name());
    }
}

pub async fn a_response_with_a_lost_takeover_settles_the_record_that_was_given_up_since(mut world: StoreFixture) {
    for key in ["completed", "unknown"] {
        let (first, second) = lost_takeover(&mut world, key, "unknown").await;
        let token = second.reserve_request.token;
        let id = world.bytes(&first.id.to_string());
        world.execute_sql(&format!("update keys set state = 'dead' where id = {id}")).await.unwrap();
        if key == "completed" {
            world.settle(second.complete(response(b"paid"), DAY)).await;
            assert_eq!(world.find(&first).await.token, token);
        } else {
            let left = world.settle_late(second.unknown(UnknownCause::Broken)).await.unwrap();
            assert_eq!((left.token, left.state.name()), (first.token, "dead"));
        }
    }
}

pub async fn a_response_stored_since_the_takeover_was_lost_is_kept(mut world: StoreFixture) {
    for past_ttl in [false, true] {
        let first = new_reserve_request(if past_ttl { "new-life" } else { "next-attempt" });
        let lease = world.reserve(&first).await;
        // One millisecond, because a key with a TTL of zero is forgotten.
        let ttl = if past_ttl { Duration::from_millis(1) } else { DAY };
        world.settle(lease.release(ttl)).await;
        eventually(TEST_TIMEOUT, async || (world.find(&first).await.past_ttl == past_ttl).then_some(())).await;
        copy_keys(&mut world).await;
        let seen = ExpectedRecord::from(&world.find(&first).await);
        let later = unwrap_lease(world.take_over(next_attempt_request(&first), seen).await);
        assert_eq!(later.attempt, if past_ttl { 1 } else { 2 });
        fall_back(&mut world).await;
        world.settle(completion(&first, b"reported late")).await;
        let kept = world.settle_late(later.complete(response(b"another"), DAY)).await.unwrap();
        let KeyState::Completed(completed) = kept.state else { panic!("it is not completed") };
        assert_eq!((kept.token, completed.response), (first.token, response(b"reported late")));
    }
}

pub async fn a_lost_takeover_replaces_no_later_attempt(mut world: StoreFixture) {
    for state in ["retryable", "unknown"] {
        let (first, second) = lost_takeover(&mut world, state, state).await;
        let late = second.complete(response(b"late"), DAY);
        let seen = ExpectedRecord::from(&world.find(&first).await);
        let third = unwrap_lease(world.take_over(next_attempt_request(&first), seen).await);
        let token = third.reserve_request.token;
        assert_eq!(world.settle_late(late.clone()).await.unwrap().token, token);
        world.settle(third.release(DAY)).await;
        assert_eq!(world.settle_late(late).await.unwrap().token, token);
        assert_eq!(world.find(&first).await.state.name(), "retryable");
    }
}

pub async fn an_outcome_with_a_lost_new_life_replaces_the_expired_record(mut world: StoreFixture) {
    for (key, attempt) in [("completed", 1), ("unknown", 1), ("never-tried", 0)] {
        let first = new_reserve_request(key);
        let lease = world.reserve(&first).await;
        world.settle(lease.complete(response(b"old"), Duration::ZERO)).await;
        if attempt == 0 {
            // A delivery that was given up before its first attempt, and for which an operator has stored a response.
            let id = world.bytes(&first.id.to_string());
            let sql = format!("update keys set attempt = 0, accepted_at = created_at where id = {id}");
            world.execute_sql(&sql).await.unwrap();
        }
        let seen = ExpectedRecord::from(&world.find(&first).await);
        copy_keys(&mut world).await;
        let later = unwrap_lease(world.take_over(next_attempt_request(&first), seen).await);
        assert_eq!(
            (later.attempt, later.taken_from),
            (1, Some(ReplacedRecord { token: first.token, was_completed: true }))
        );
        fall_back(&mut world).await;
        let token = later.reserve_request.token;
        let is_unknown = key == "unknown";
        world
            .settle(match is_unknown {
                true => later.unknown(UnknownCause::Broken),
                false => later.complete(response(b"new"), DAY),
            })
            .await;
        let record = world.find(&first).await;
        assert_eq!((record.token, record.attempt, record.past_ttl), (token, 1, false), "{key}");
        match record.state {
            KeyState::Completed(completed) => assert_eq!(completed.response, response(b"new")),
            state => assert!(is_unknown && matches!(state, KeyState::Unknown), "{key}: {state:?}"),
        }
    }
}
