//! The same request again while its first attempt is running.

use tokio::task::JoinSet;

use crate::harness::{Answer, Hold, Response, Store, World, on_both_stores};

fn retry_after(response: &Response) -> u64 {
    let seconds = response.field("retry-after").expect("it says when to come back").parse().unwrap();
    assert!(seconds >= 1);
    seconds
}

on_both_stores!(a_duplicate_is_told_to_come_back_later);
async fn a_duplicate_is_told_to_come_back_later(store: Store) {
    let world = World::start(store).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.has_executed(1).await;
    let duplicate = world.pay("k-1").send().await;
    assert_eq!(duplicate.outcome(), (409, "in-flight".to_owned()));
    assert_eq!((duplicate.told(), duplicate.field("cache-control")), (Some("in-flight"), Some("no-store")));
    assert_eq!(duplicate.field("idempotency-key-expires"), None);
    assert!(!duplicate.is_replay());
    assert!(retry_after(&duplicate) <= 30, "never past the attempt's own deadline");
    let problem = duplicate.problem();
    assert_eq!(problem["type"], "/.oncegate/problems/in-flight");
    assert_eq!((&problem["status"], &problem["retry"]), (&409.into(), &"same_key".into()));
    assert!(problem["title"].is_string() && problem["detail"].is_string());
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.told(), Some("executed"));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(of_fifty_at_once_one_is_executed);
async fn of_fifty_at_once_one_is_executed(store: Store) {
    const CLIENTS: usize = 50;
    let world = World::start(store).await;
    let hold = Hold::new();
    world.upstream.answers(Answer::status(201).hold(&hold));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let request = world.pay("k-1");
        clients.spawn(async move { request.send().await });
    }
    for _ in 1..CLIENTS {
        let refused = clients.join_next().await.unwrap().unwrap();
        assert_eq!(refused.outcome(), (409, "in-flight".to_owned()));
        retry_after(&refused);
    }
    hold.release();
    let first = clients.join_next().await.unwrap().unwrap();
    assert_eq!((first.status, first.told()), (201, Some("executed")));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(of_fifty_at_once_each_gets_the_one_answer_or_is_told_to_wait);
async fn of_fifty_at_once_each_gets_the_one_answer_or_is_told_to_wait(store: Store) {
    let world = World::start(store).await;
    let mut clients = JoinSet::new();
    for _ in 0..50 {
        let request = world.pay("k-1");
        clients.spawn(async move { request.send().await });
    }
    let mut executed = 0;
    while let Some(answer) = clients.join_next().await {
        let answer = answer.unwrap();
        match answer.told().unwrap() {
            "executed" => executed += 1,
            "in-flight" => assert_eq!(answer.status, 409),
            told => assert_eq!((told, &*answer.text()), ("replayed", "effect 1")),
        }
    }
    assert_eq!((executed, world.upstream.calls()), (1, 1));
}

#[tokio::test]
async fn other_keys_do_not_wait_for_one_that_runs() {
    let world = World::start(Store::sqlite()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let slow = world.pay("slow").spawn();
    world.upstream.has_executed(1).await;
    for number in 0..10 {
        assert_eq!(world.pay(&format!("k-{number}")).send().await.told(), Some("executed"));
    }
    hold.release();
    assert_eq!(slow.await.unwrap().unwrap().told(), Some("executed"));
}
