//! Deliveries over a faulty connection, and beside another open transaction.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use oncegate_domain::attempt::{AttemptOutcome, ReserveResult, Settlement};
use oncegate_domain::delivery::{DeliveryJob, DeliveryPolicy, EnqueueResult, PickUpRequest};
use oncegate_domain::ids::Token;
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::retry::RetryPolicy;
use oncegate_domain::state::{KeyState, StateKind};
use oncegate_store::{self as store, EnqueueParams, ExpectedRecord, GiveUpParams, SettleResult, Store};

use harness::database_link::DatabaseLink;
use harness::postgres;
use harness::store_fixture::{
    DAY, StoreFixture, new_enqueue_request, new_pick_up_request, new_reserve_request, next_attempt_request, settlement,
    token, unwrap_lease,
};

fn pick(tokens: Vec<Token>) -> PickUpRequest {
    let retry = RetryPolicy {
        max_attempts: 100,
        base: Duration::from_millis(1),
        cap: Duration::from_millis(1),
        give_up_after: DAY,
    };
    let time_limit = Duration::from_secs(30);
    let on_unknown = OnUnknown::Hold;
    let slots = tokens.len();
    let quiet_after = Duration::ZERO;
    let terms =
        DeliveryPolicy { route: "pay".into(), on_unknown, quiet_after, time_limit, retry, repeat_within: None, slots };
    new_pick_up_request(tokens, terms)
}

async fn pick_one(store: &Arc<Store>) -> DeliveryJob {
    store.pick_up(pick(vec![token()])).await.unwrap().jobs.pop().expect("it is due")
}

fn released(job: &DeliveryJob) -> Settlement {
    settlement(&job.lease.reserve_request, AttemptOutcome::Retryable { ttl: DAY })
}

#[tokio::test]
async fn an_enqueue_or_requeue_with_a_lost_reply_is_recognized() {
    let world = StoreFixture::postgres().await;
    let link = DatabaseLink::to(world.database()).await;
    let store = store::open(&postgres::settings(&link.url)).await.unwrap();
    for losses in [0, 1, 2] {
        // The first round loses nothing, so that a connection is open in the next.
        let reserve_request = new_reserve_request(&format!("k-{losses}"));
        link.lose_replies(losses);
        assert!(
            matches!(
                store
                    .enqueue(EnqueueParams { request: new_enqueue_request(&reserve_request), from: None })
                    .await
                    .unwrap(),
                EnqueueResult::Accepted
            ),
            "{losses}"
        );
        let job = pick_one(&store).await;
        link.lose_replies(losses);
        assert!(
            matches!(store.settle(released(&job)).await.unwrap(), SettleResult::Done { expires_at: None }),
            "{losses}"
        );
        assert!(matches!(store.find(reserve_request.id).await.unwrap().unwrap().state, KeyState::Queued));
        let job = pick_one(&store).await;
        assert_eq!((job.lease.attempt, job.lease.reserve_request.id), (2, reserve_request.id));
        let (id, token) = (reserve_request.id, job.lease.reserve_request.token);
        assert!(
            store
                .give_up(GiveUpParams { id, token, states: &[StateKind::InFlight], note: "because".to_owned() })
                .await
                .unwrap()
        );
        // Over a record that the next request may take over.
        let free = new_reserve_request(&format!("free-{losses}"));
        world.reserve(&free).await;
        world.settle(settlement(&free, AttemptOutcome::Retryable { ttl: DAY })).await;
        let from = ExpectedRecord::from(&world.find(&free).await);
        link.lose_replies(losses);
        assert!(matches!(
            store
                .enqueue(EnqueueParams { request: new_enqueue_request(&next_attempt_request(&free)), from: Some(from) })
                .await
                .unwrap(),
            EnqueueResult::Accepted
        ));
        let job = pick_one(&store).await;
        assert!(
            store
                .give_up(GiveUpParams {
                    id: free.id,
                    token: job.lease.reserve_request.token,
                    states: &[StateKind::InFlight],
                    note: "because".to_owned()
                })
                .await
                .unwrap()
        );
        assert_eq!(link.replies_to_lose(), 0);
    }
}

#[tokio::test]
async fn a_pick_up_with_a_lost_reply_is_an_orphan_and_is_queued_again() {
    let world = StoreFixture::postgres().await;
    let link = DatabaseLink::to(world.database()).await;
    let store = store::open(&postgres::settings(&link.url)).await.unwrap();
    let key = new_reserve_request("k");
    store.enqueue(EnqueueParams { request: new_enqueue_request(&key), from: None }).await.unwrap();
    let lost = token();
    link.hold_statements("commit");
    let committing = async {
        link.statement_held().await;
        link.lose_replies(1);
        link.release_statements();
    };
    let (answer, ()) = join(store.pick_up(pick(vec![lost])), committing).await;
    assert!(answer.is_err(), "{answer:?}");
    let in_flight = world.list_in_flight(Duration::ZERO).await;
    assert_eq!(in_flight.iter().map(|attempt| (attempt.id, attempt.token)).collect::<Vec<_>>(), [(key.id, lost)]);
    assert!(world.store().pick_up(pick(vec![token()])).await.unwrap().jobs.is_empty());
    world.settle(Settlement::for_orphan(key.id, lost, DAY)).await;
    assert_eq!(pick_one(world.store()).await.lease.attempt, 2);
}

#[tokio::test]
async fn a_delivery_with_a_locked_row_is_skipped_and_the_others_are_picked_up() {
    let world = StoreFixture::postgres().await;
    let reserve_requests = ["held", "free"].map(new_reserve_request);
    for reserve_request in &reserve_requests {
        world.enqueue(new_enqueue_request(reserve_request), None).await;
    }
    let client = world.database().client().await;
    client.batch_execute("begin; select from oncegate.keys where key = 'held'::bytea for update").await.unwrap();
    let picked = world.store().pick_up(pick(vec![token(), token()])).await.unwrap();
    assert_eq!(
        picked.jobs.iter().map(|job| job.lease.reserve_request.id).collect::<Vec<_>>(),
        [reserve_requests[1].id]
    );
    client.batch_execute("rollback").await.unwrap();
    assert_eq!(pick_one(world.store()).await.lease.reserve_request.id, reserve_requests[0].id);
}

#[tokio::test]
async fn a_write_with_a_lost_reply_does_not_take_anothers_record_for_its_own() {
    let world = StoreFixture::postgres().await;
    let link = DatabaseLink::to(world.database()).await;
    let store = store::open(&postgres::settings(&link.url)).await.unwrap();
    let others = new_reserve_request("k");
    world.reserve(&others).await;
    // Opens the connections whose replies are lost below.
    unwrap_lease(store.reserve(new_reserve_request("reserved")).await.unwrap());
    let accepted = store
        .enqueue(EnqueueParams { request: new_enqueue_request(&new_reserve_request("accepted")), from: None })
        .await
        .unwrap();
    assert!(matches!(accepted, EnqueueResult::Accepted));

    let own = next_attempt_request(&others);
    link.lose_replies(1);
    let ReserveResult::Taken(found) = store.reserve(own.clone()).await.unwrap() else { panic!() };
    assert_eq!((found.token, link.replies_to_lose()), (others.token, 0));
    link.lose_replies(1);
    let EnqueueResult::Taken(found) =
        store.enqueue(EnqueueParams { request: new_enqueue_request(&own), from: None }).await.unwrap()
    else {
        panic!()
    };
    assert_eq!((found.token, link.replies_to_lose()), (others.token, 0));
}

#[tokio::test]
async fn an_enqueue_over_a_locked_row_does_not_take_the_record_for_anothers() {
    let world = StoreFixture::postgres().await;
    let first = new_reserve_request("k");
    world.reserve(&first).await;
    world.settle(settlement(&first, AttemptOutcome::Retryable { ttl: DAY })).await;
    let seen = ExpectedRecord::from(&world.find(&first).await);
    let client = world.database().client().await;
    client.batch_execute("begin; select from oncegate.keys for update").await.unwrap();
    let next = new_enqueue_request(&next_attempt_request(&first));
    let locked = world.store().enqueue(EnqueueParams { request: next.clone(), from: Some(seen) }).await;
    assert!(locked.is_err(), "{locked:?}");
    client.batch_execute("rollback").await.unwrap();
    assert!(matches!(world.enqueue(next, Some(seen)).await, EnqueueResult::Accepted));
}
