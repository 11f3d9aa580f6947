//! Counts of live keys, by their holders.

use std::time::Duration;

use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest};
use oncegate_domain::key_holder::KeyHolder;
use oncegate_store::{CountLiveKeysParams, ExpectedRecord, MoveLiveKeysParams};

use crate::store_fixture::{
    DAY, StoreFixture, completion, new_enqueue_request, new_reserve_request, new_reserve_request_in,
    next_attempt_request, response, settlement, unwrap_lease,
};

const HOLDER: KeyHolder = KeyHolder::from_bytes([1; 16]);

fn held(key: &str) -> ReserveRequest {
    ReserveRequest { holder: Some(HOLDER), ..new_reserve_request(key) }
}

async fn count(world: &StoreFixture, limit: u32) -> u32 {
    world.store().count_live_keys(CountLiveKeysParams { holder: HOLDER, limit }).await.unwrap()
}

pub async fn live_keys_of_a_holder_are_counted_up_to_a_limit(world: StoreFixture) {
    assert_eq!(count(&world, 10).await, 0);
    let keys: Vec<_> = (0..5).map(|number| held(&format!("k-{number}"))).collect();
    for key in &keys {
        world.reserve(key).await;
    }
    let other = ReserveRequest { holder: Some(KeyHolder::from_bytes([2; 16])), ..new_reserve_request("other") };
    world.reserve(&other).await;
    world.reserve(&new_reserve_request("none")).await;
    assert_eq!((count(&world, 10).await, count(&world, 5).await, count(&world, 3).await), (5, 5, 3));
    // A second reservation changes nothing, and neither does a settlement.
    world.reserve_taken(&ReserveRequest { holder: None, ..next_attempt_request(&keys[0]) }).await;
    world.settle(completion(&keys[1], b"")).await;
    assert_eq!(count(&world, 10).await, 5);
}

pub async fn a_key_counts_for_its_first_holder_until_it_is_deleted(world: StoreFixture) {
    let [reaped, forgotten, taken] = ["reaped", "forgotten", "taken"].map(held);
    for reserve_request in [&reaped, &forgotten, &taken] {
        world.reserve(reserve_request).await;
    }
    let end = |ttl| AttemptOutcome::Completed { response: response(b""), ttl, remember: None };
    world.settle(settlement(&reaped, end(Duration::ZERO))).await;
    assert_eq!(count(&world, 10).await, 3, "it is past its ttl and not deleted yet");
    assert_eq!(world.reap(10).await.deleted, 1);
    world.settle(settlement(&forgotten, AttemptOutcome::Retryable { ttl: Duration::ZERO })).await;
    assert_eq!(count(&world, 10).await, 1);
    world.settle(settlement(&taken, AttemptOutcome::Retryable { ttl: DAY })).await;
    let next = ReserveRequest { holder: None, ..next_attempt_request(&taken) };
    let seen = ExpectedRecord::from(&world.find(&taken).await);
    unwrap_lease(world.take_over(next, seen).await);
    assert_eq!(count(&world, 10).await, 1, "a takeover does not change it");
}

pub async fn accepted_keys_and_restored_rows_count_for_their_holder(mut world: StoreFixture) {
    world.enqueue(new_enqueue_request(&held("queued")), None).await;
    assert_eq!(count(&world, 10).await, 1);
    let lease = world.reserve(&held("lost")).await;
    world.execute_sql("delete from keys").await.unwrap();
    assert_eq!(count(&world, 10).await, 0);
    world.settle(lease.complete(response(b""), DAY)).await;
    assert_eq!(count(&world, 10).await, 1);
}

pub async fn a_key_and_its_caller_s_other_keys_of_one_holder_count_for_another(world: StoreFixture) {
    let [first, second, elsewhere] = ["first", "second", "elsewhere"].map(held);
    let elsewhere = ReserveRequest { holder: Some(KeyHolder::from_bytes([3; 16])), ..elsewhere };
    let stranger = new_reserve_request_in("shop", [8; 32], "POST /pay", "first");
    let stranger = ReserveRequest { holder: Some(HOLDER), ..stranger };
    for reserve_request in [&first, &second, &elsewhere, &stranger, &new_reserve_request("none")] {
        world.reserve(reserve_request).await;
    }
    let caller = KeyHolder::from_bytes([2; 16]);
    let move_by = async |key: &ReserveRequest| {
        world.store().move_live_keys(MoveLiveKeysParams { id: key.id, scope: key.scope, holder: caller }).await.unwrap()
    };
    assert_eq!(move_by(&new_reserve_request("none")).await, 0, "it counts for nobody");
    assert_eq!(move_by(&second).await, 2);
    assert_eq!(
        (
            count(&world, 10).await,
            world.store().count_live_keys(CountLiveKeysParams { holder: caller, limit: 10 }).await.unwrap()
        ),
        (1, 2)
    );
    assert_eq!(move_by(&first).await, 0, "it counts for the caller already");
    // They are as before in all else.
    world.settle(completion(&first, b"")).await;
    world.reserve_taken(&next_attempt_request(&second)).await;
}
