//! Starts, stops and reconnects of consumers and their broker.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::{acknowledged, consumer, consumer_world, route};
use harness::rabbitmq::{self, Broker, Queue, message};
use harness::{Answer, Hold, Proxy, Store, TEST_TIMEOUT, Upstream, World, eventually, service};

/// Longer than the longest pause before a consumer connects again: a broker that starts slowly makes that pause long.
const RECONNECT_MAX: Duration = Duration::from_secs(90);

/// The number of log lines with these words.
fn times_logged(proxy: &Proxy, words: &str) -> usize {
    let has_words = |line: &Value| line["message"].as_str().is_some_and(|message| message.contains(words));
    proxy.logged().iter().filter(|line| has_words(line)).count()
}

/// Waits until the proxy's consumer has connected this many times.
async fn connected(proxy: &Proxy, times: usize) {
    let has_connected = async || (times_logged(proxy, "messages are consumed") >= times).then_some(());
    eventually(RECONNECT_MAX, has_connected).await;
}

#[tokio::test]
async fn a_broker_outage_loses_no_message_and_duplicates_none() {
    let Some(mut broker) = Broker::start().await else { return };
    let queue = broker.queue().await;
    queue.publish((0..4).map(|number| message(&format!("k-{number}")))).await;
    let (name, url, lines) = (queue.name.clone(), broker.url(), consumer(&broker.url(), &queue, "prefetch = 2"));
    // Not killed: the broker could lose the new queue.
    broker.stop().await;

    let world = World::with(Store::sqlite(), |setup| setup.route(&route("")).consumer(&lines)).await;
    let line = world.proxy.wait_for_log("not consumed at the moment").await;
    assert_eq!(line["broker"], url.replace("guest:guest@", ""));
    assert_eq!(world.pay("by-http").send().await.oncegate_status(), Some("executed"), "it serves meanwhile");
    let hold = Hold::new();
    world.upstream.answer_all(Answer::status(201).hold(&hold));
    broker.restart().await;
    connected(&world.proxy, 1).await;
    world.upstream.wait_for_executed(1 + 2).await;

    // Two messages are running.
    let failures = times_logged(&world.proxy, "not consumed at the moment");
    broker.kill9().await;
    world.proxy.wait_for_logs("not consumed at the moment", failures + 1).await;
    hold.release();
    broker.restart().await;
    connected(&world.proxy, 2).await;
    let queue = Queue::at(&broker, &name).await;
    world.upstream.wait_for_executed(1 + 4).await;
    acknowledged(&world.proxy, 4).await;
    queue.has_waiting(0).await;
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!((queue.waiting().await, world.upstream.calls()), (0, 5));
}

#[tokio::test]
async fn a_missing_queue_is_logged_and_waited_for() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    queue.delete().await;
    let world =
        World::with(Store::sqlite(), |setup| setup.route(&route("")).consumer(&consumer(&broker.url(), &queue, "")))
            .await;
    let line = world.proxy.wait_for_log("not consumed at the moment").await;
    assert!(line["cause"].as_str().unwrap().contains("NOT_FOUND - no queue"), "{line}");
    queue.declare().await;
    queue.publish([message("k-1")]).await;
    acknowledged(&world.proxy, 1).await;

    let lost = |line: &Value| line["message"].as_str().is_some_and(|message| message.contains("not consumed"));
    let before = world.proxy.logged().iter().filter(|line| lost(line)).count();
    queue.delete().await;
    world.proxy.wait_for_logs("not consumed at the moment", before + 1).await;
    let line = world.proxy.logged().into_iter().filter(lost).nth(before).unwrap();
    assert!(line["cause"].as_str().unwrap().contains("is the queue gone?"), "{line}");
}

#[tokio::test]
async fn a_drain_acknowledges_running_messages_and_returns_the_rest() {
    let Some(consumer_world) = consumer_world(Store::sqlite(), "", "prefetch = 2").await else { return };
    let hold = Hold::new();
    consumer_world.world.upstream.then(Answer::status(503).field("Retry-After", "60"));
    consumer_world.world.upstream.answer_all(Answer::status(201).hold(&hold));
    consumer_world.queue.publish([message("held")]).await;
    consumer_world.world.proxy.wait_for_log("a message is held").await;
    consumer_world.queue.publish([message("running"), message("waiting")]).await;
    consumer_world
        .world
        .upstream
        .wait_until(|seen| seen.executed.iter().any(|call| call.field("idempotency-key") == Some("running")))
        .await;
    let executed = consumer_world.world.upstream.calls();
    consumer_world.world.proxy.signal(Signal::TERM);
    // A held message is returned at once, an undelivered one stays in the queue, and running ones are waited for.
    consumer_world.queue.has_waiting(2).await;
    assert_eq!(consumer_world.queue.consumers().await, 0);
    hold.release();
    assert_eq!(consumer_world.world.proxy.ended().await, Some(0));
    assert_eq!(consumer_world.queue.waiting().await, 2, "the one that ran is acknowledged");
    assert_eq!(consumer_world.world.upstream.calls(), executed);
}

fn reload(world: &World, text: &str) {
    let new = world.proxy.file().with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, world.proxy.file()).unwrap();
    world.proxy.signal(Signal::HUP);
}

#[tokio::test]
async fn a_reload_starts_added_consumers_and_stops_removed_ones() {
    let Some(consumer_world) = consumer_world(Store::sqlite(), "", "").await else { return };
    eventually(TEST_TIMEOUT, async || (consumer_world.queue.consumers().await == 1).then_some(())).await;
    let other = consumer_world.broker.queue().await;
    let upstream = Upstream::start().await;
    let setup = || {
        let setup = Proxy::on(&consumer_world.world.store.url()).upstream(consumer_world.world.upstream.address);
        setup.service(&service("new", upstream.address))
    };
    let new = "name = \"new\"\npath = \"/new\"\nservice = \"new\"";
    let lines = consumer(&consumer_world.broker.url(), &other, "").replace("\"pay\"", "\"new\"");
    reload(&consumer_world.world, &setup().route(&route("service = \"default\"")).route(new).consumer(&lines).text());
    other.publish([message("k-1")]).await;
    acknowledged(&consumer_world.world.proxy, 1).await;
    assert_eq!(upstream.calls(), 1);
    eventually(TEST_TIMEOUT, async || (consumer_world.queue.consumers().await == 0).then_some(())).await;
    consumer_world.queue.publish([message("k-2")]).await;

    let old = consumer(&consumer_world.broker.url(), &consumer_world.queue, "prefetch = 5");
    reload(
        &consumer_world.world,
        &setup().route(&route("service = \"default\"")).route(new).consumer(&old).consumer(&lines).text(),
    );
    acknowledged(&consumer_world.world.proxy, 2).await;
    let line = consumer_world.world.proxy.wait_for_log("messages are consumed").await;
    assert_eq!(line["prefetch"], 64);

    let otherwise = old.replace("prefetch = 5", "key = \"message-id\"");
    reload(
        &consumer_world.world,
        &setup().route(&route("service = \"default\"")).route(new).consumer(&otherwise).text(),
    );
    let line = consumer_world.world.proxy.wait_for_log("keys of this queue's messages unfindable").await;
    assert_eq!(line["queue"], consumer_world.queue.name);
    assert_eq!(
        (consumer_world.queue.consumers().await, other.consumers().await),
        (1, 1),
        "the running configuration stays"
    );
}
