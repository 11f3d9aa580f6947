//! Deliveries over a bad wire, and beside somebody's open transaction.

use std::sync::Arc;
use std::time::Duration;

use oncegate::domain::attempt::{Ending, Settlement, Token};
use oncegate::domain::job::{Enqueued, Job, PickUp, Retry, Terms};
use oncegate::domain::policy::OnUnknown;
use oncegate::domain::record::State;
use oncegate::store::{self, Seen, Settled, Store};

use crate::harness::link::Link;
use crate::harness::postgres;
use crate::harness::world::{DAY, World, again, ask, order, pick_up, settlement, token, us};

fn pick(tokens: Vec<Token>) -> PickUp {
    let retry =
        Retry { max_attempts: 100, base: Duration::from_millis(1), cap: Duration::from_millis(1), give_up_after: DAY };
    let time_limit = Duration::from_secs(30);
    let on_unknown = OnUnknown::Hold;
    let terms = Terms { route: "pay".into(), on_unknown, quiet_after: Duration::ZERO, time_limit, retry };
    pick_up(tokens, terms)
}

async fn pick_one(store: &Arc<dyn Store>) -> Job {
    store.pick_up(pick(vec![token()])).await.unwrap().jobs.pop().expect("it is due")
}

fn released(job: &Job) -> Settlement {
    settlement(&job.lease.ask, Ending::Retryable { ttl: DAY })
}

#[tokio::test]
async fn what_was_accepted_or_queued_again_while_the_answer_was_lost_is_told_as_such() {
    let world = World::postgres().await;
    let link = Link::to(world.database()).await;
    let store = store::open(&postgres::settings(&link.url)).await.unwrap();
    for losses in [0, 1, 2] {
        // Without losses at first, so that there is a connection to lose.
        let ask = ask(&format!("k-{losses}"));
        link.lose_answers(losses);
        assert!(matches!(store.enqueue(order(&ask), None).await.unwrap(), Enqueued::Accepted), "{losses}");
        let job = pick_one(&store).await;
        link.lose_answers(losses);
        assert!(matches!(store.settle(released(&job)).await.unwrap(), Settled::Done { expires_at: None }), "{losses}");
        assert!(matches!(store.find(ask.id).await.unwrap().unwrap().state, State::Queued));
        let job = pick_one(&store).await;
        assert_eq!((job.lease.attempt, job.lease.ask.id), (2, ask.id));
        let (id, token) = (ask.id, job.lease.ask.token);
        assert!(store.bury(id, token, &["in_flight"], "because".to_owned()).await.unwrap());
        // Over a record that the next request may have.
        let free = crate::harness::world::ask(&format!("free-{losses}"));
        world.reserve(&free).await;
        world.settle(settlement(&free, Ending::Retryable { ttl: DAY })).await;
        let from = Seen::from(&world.find(&free).await);
        link.lose_answers(losses);
        assert!(matches!(store.enqueue(order(&again(&free)), Some(from)).await.unwrap(), Enqueued::Accepted));
        let job = pick_one(&store).await;
        assert!(store.bury(free.id, job.lease.ask.token, &["in_flight"], "because".to_owned()).await.unwrap());
        assert_eq!(link.to_be_lost(), 0);
    }
}

#[tokio::test]
async fn what_was_picked_up_while_the_answer_was_lost_stands_as_a_stray_and_is_due_again() {
    let world = World::postgres().await;
    let link = Link::to(world.database()).await;
    let store = store::open(&postgres::settings(&link.url)).await.unwrap();
    let key = ask("k");
    store.enqueue(order(&key), None).await.unwrap();
    // So that there is a connection to lose.
    assert!(store.pick_up(pick(Vec::new())).await.unwrap().jobs.is_empty());
    let lost = token();
    link.lose_answers(1);
    let answer = store.pick_up(pick(vec![lost])).await;
    assert!(answer.is_err(), "{answer:?}");
    let standing = world.store().standing(us(), Duration::ZERO).await.unwrap();
    assert_eq!(standing, [(key.id, lost)]);
    assert!(world.store().pick_up(pick(vec![token()])).await.unwrap().jobs.is_empty());
    world.settle(Settlement::of_stray(key.id, lost, DAY)).await;
    assert_eq!(pick_one(world.store()).await.lease.attempt, 2);
}

#[tokio::test]
async fn a_delivery_whose_row_somebody_holds_is_left_to_them_and_the_others_are_picked_up() {
    let world = World::postgres().await;
    let asks = ["held", "free"].map(ask);
    for ask in &asks {
        world.store().enqueue(order(ask), None).await.unwrap();
    }
    let client = world.database().client().await;
    client.batch_execute("begin; select from oncegate.keys where key = 'held'::bytea for update").await.unwrap();
    let picked = world.store().pick_up(pick(vec![token(), token()])).await.unwrap();
    assert_eq!(picked.jobs.iter().map(|job| job.lease.ask.id).collect::<Vec<_>>(), [asks[1].id]);
    client.batch_execute("rollback").await.unwrap();
    assert_eq!(pick_one(world.store()).await.lease.ask.id, asks[0].id);
}
