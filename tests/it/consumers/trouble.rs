//! The service, the store and the proxy itself in trouble: a message waits, and is executed once in the end.

use serde_json::json;

use super::{SOME_TRIES, acknowledged, consumer, office, office_with, route};
use crate::harness::operator::{Operator, completed};
use crate::harness::rabbitmq::{self, message};
use crate::harness::relay::{Relay, remote};
use crate::harness::{Answer, Hold, PATIENCE, Proxy, Store, Upstream, eventually, on_both_stores};

on_both_stores!(what_the_service_does_not_take_is_tried_again_until_it_does);
async fn what_the_service_does_not_take_is_tried_again_until_it_does(store: Store) {
    let Some(office) = office(store, "", "").await else { return };
    office.world.upstream.then(Answer::status(503)).then(Answer::status(429).field("Retry-After", "1"));
    office.queue.publish([message("k-1")]).await;
    acknowledged(&office.world.proxy, 1).await;
    let executed = office.world.upstream.executed();
    let attempts: Vec<_> = executed.iter().map(|call| call.field("oncegate-attempt").unwrap()).collect();
    assert_eq!(attempts, ["1", "2", "3"]);
    assert!(executed[2].at - executed[1].at >= std::time::Duration::from_millis(500), "as the service has asked for");
    let line = office.world.proxy.logs("a message is held").await;
    assert_eq!(line["reason"], "released");
    assert_eq!(office.left_after_drain().await, 0);
    assert_eq!(office.world.upstream.calls(), 3);
}

#[tokio::test]
async fn a_service_that_is_away_is_waited_for() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let (queue, address) = (broker.queue().await, Upstream::nowhere().await);
    let store = Store::sqlite();
    let setup =
        Proxy::on(&store.url()).upstream(address).route(&route("")).consumer(&consumer(&broker.url(), &queue, ""));
    let proxy = setup.start().await;
    queue.publish([message("k-1")]).await;
    assert_eq!(proxy.logs("a message is held").await["reason"], "upstream-unreachable");
    let upstream = Upstream::start_at(address).await;
    acknowledged(&proxy, 1).await;
    assert_eq!(proxy.stop().await, Some(0));
    assert_eq!((queue.waiting().await, upstream.calls()), (0, 1));
}

on_both_stores!(a_message_whose_outcome_is_unknown_is_held_and_not_executed_again_until_somebody_knows);
async fn a_message_whose_outcome_is_unknown_is_held_and_not_executed_again_until_somebody_knows(store: Store) {
    let Some(office) = office(store, "", "prefetch = 2").await else { return };
    office.world.upstream.then(Answer::close()).then(Answer::end_unread());
    office.queue.publish([message("k-1"), message("k-2")]).await;
    let operator = Operator::of(&office.world.proxy);
    let (first, second) = (operator.id_when("k-1", "unknown").await, operator.id_when("k-2", "unknown").await);
    office.world.proxy.logs_times("a message is held", 2).await;
    tokio::time::sleep(SOME_TRIES).await;
    assert_eq!(office.world.upstream.calls(), 2, "nobody knows");
    assert_eq!(office.queue.waiting().await, 0, "they are held, and not dealt out again and again");
    assert_eq!(operator.resolve(&first, completed(201, "paid")).await.0, 200);
    let not_executed = json!({ "outcome": "not_executed", "accept_risk": true });
    assert_eq!(operator.resolve(&second, not_executed).await.0, 200);
    office.world.upstream.saw(|seen| seen.begun == 3).await;
    assert_eq!(office.world.upstream.last().field("oncegate-attempt"), Some("2"));
    // The first one as well is asked about again, and acknowledged: there is room for two more.
    eventually(PATIENCE, async || (operator.keys("state=completed").await.len() == 2).then_some(())).await;
    let hold = Hold::new();
    office.world.upstream.answers(Answer::status(201).hold(&hold));
    office.queue.publish([message("k-3"), message("k-4")]).await;
    office.world.upstream.saw(|seen| seen.begun == 5).await;
    hold.release();
    acknowledged(&office.world.proxy, 4).await;
    assert_eq!(office.left_after_drain().await, 0);
}

#[tokio::test]
async fn without_a_store_nothing_is_executed_whatever_the_route_says_of_requests() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let (world, wire) =
        remote(|setup| setup.route(&route("store_down = \"bypass\"")).consumer(&consumer(&broker.url(), &queue, "")))
            .await;
    world.proxy.logs("messages are consumed").await;
    wire.cut();
    queue.publish([message("k-1")]).await;
    assert_eq!(world.proxy.logs("a message is held").await["reason"], "store-unavailable");
    assert_eq!(world.upstream.calls(), 0);
    assert_eq!(world.pay("k-2").send().await.told(), Some("bypassed"), "requests are forwarded");
    wire.mend();
    acknowledged(&world.proxy, 1).await;
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!((queue.waiting().await, world.upstream.executed_for("k-1")), (0, 1));
}

#[tokio::test]
async fn what_is_stored_and_not_acknowledged_is_not_executed_by_the_next_delivery() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let wire = Relay::to(broker.address()).await;
    let url = format!("amqp://{}", wire.address);
    let store = Store::postgres().await;
    let upstream = Upstream::start().await;
    let setup = Proxy::on(&store.url()).upstream(upstream.address).short_leases().route(&route(""));
    let first = setup.clone().consumer(&consumer(&url, &queue, "")).start().await;
    let hold = Hold::new();
    upstream.then(Answer::status(201).hold(&hold));
    queue.publish([message("k-1")]).await;
    upstream.has_executed(1).await;
    // Whatever the proxy says to the broker from now on is not heard.
    wire.forget();
    hold.release();
    eventually(PATIENCE, async || (store.states().await == ["completed"]).then_some(())).await;
    first.kill9().await;
    wire.cut();
    queue.has_waiting(1).await;
    let second = setup.consumer(&consumer(&broker.url(), &queue, "")).start().await;
    queue.has_waiting(0).await;
    assert_eq!(second.stop().await, Some(0));
    assert_eq!((queue.waiting().await, upstream.calls()), (0, 1));
}

#[tokio::test]
async fn a_copy_that_comes_while_the_first_one_runs_is_held_until_it_has_ended() {
    let Some(office) = office_with(Store::sqlite(), "", "", |setup| setup).await else { return };
    let hold = Hold::new();
    office.world.upstream.then(Answer::status(201).hold(&hold));
    office.queue.publish([message("k-1"), message("k-1")]).await;
    assert_eq!(office.world.proxy.logs("a message is held").await["reason"], "in-flight");
    hold.release();
    acknowledged(&office.world.proxy, 2).await;
    assert_eq!(office.left_after_drain().await, 0);
    assert_eq!(office.world.upstream.calls(), 1);
}
