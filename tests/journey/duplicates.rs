//! Duplicates while the first attempt is running.

use tokio::task::JoinSet;

use harness::{Answer, Hold, Response, Store, World, on_both_stores};

fn retry_after(response: &Response) -> u64 {
    let seconds = response.field("retry-after").expect("it says when to come back").parse().unwrap();
    assert!(seconds >= 1);
    seconds
}

on_both_stores!(a_duplicate_gets_409_with_retry_after);
async fn a_duplicate_gets_409_with_retry_after(store: Store) {
    let world = World::start(store).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let duplicate = world.pay("k-1").send().await;
    assert_eq!(duplicate.outcome(), (409, "in-flight".to_owned()));
    assert_eq!((duplicate.oncegate_status(), duplicate.field("cache-control")), (Some("in-flight"), Some("no-store")));
    assert_eq!(duplicate.field("idempotency-key-expires"), None);
    assert!(!duplicate.is_replay());
    assert!(retry_after(&duplicate) <= 30, "never past the attempt's own deadline");
    let problem = duplicate.problem();
    assert_eq!(problem["type"], "/.oncegate/problems/in-flight");
    assert_eq!((&problem["status"], &problem["retry"]), (&409.into(), &"same_key".into()));
    assert!(problem["title"].is_string() && problem["detail"].is_string());
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(one_of_fifty_simultaneous_requests_is_executed);
async fn one_of_fifty_simultaneous_requests_is_executed(store: Store) {
    const CLIENTS: usize = 50;
    let world = World::start(store).await;
    let hold = Hold::new();
    world.upstream.answer_all(Answer::status(201).hold(&hold));
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
    assert_eq!((first.status, first.oncegate_status()), (201, Some("executed")));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(fifty_simultaneous_requests_get_the_one_answer_or_409);
async fn fifty_simultaneous_requests_get_the_one_answer_or_409(store: Store) {
    let world = World::start(store).await;
    let mut clients = JoinSet::new();
    for _ in 0..50 {
        let request = world.pay("k-1");
        clients.spawn(async move { request.send().await });
    }
    let mut executed = 0;
    while let Some(answer) = clients.join_next().await {
        let answer = answer.unwrap();
        match answer.oncegate_status().unwrap() {
            "executed" => executed += 1,
            "in-flight" => assert_eq!(answer.status, 409),
            oncegate_status => assert_eq!((oncegate_status, &*answer.text()), ("replayed", "effect 1")),
        }
    }
    assert_eq!((executed, world.upstream.calls()), (1, 1));
}

#[tokio::test]
async fn a_running_key_does_not_delay_other_keys() {
    let world = World::start(Store::sqlite()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let slow = world.pay("slow").spawn();
    world.upstream.wait_for_executed(1).await;
    for number in 0..10 {
        assert_eq!(world.pay(&format!("k-{number}")).send().await.oncegate_status(), Some("executed"));
    }
    hold.release();
    assert_eq!(slow.await.unwrap().unwrap().oncegate_status(), Some("executed"));
}
