//! Consumers and their broker come, go, and come again.

use rustix::process::Signal;

use super::{acknowledged, consumer, office, route};
use crate::harness::rabbitmq::{self, Broker, Queue, message};
use crate::harness::{Answer, Hold, PATIENCE, Proxy, Store, Upstream, World, eventually};

#[tokio::test]
async fn a_broker_that_is_down_at_the_start_or_dies_in_the_middle_costs_no_message_and_doubles_none() {
    let Some(mut broker) = Broker::start().await else { return };
    let queue = broker.queue().await;
    queue.publish((0..4).map(|number| message(&format!("k-{number}")))).await;
    let (name, url, lines) = (queue.name.clone(), broker.url(), consumer(&broker.url(), &queue, "prefetch = 2"));
    broker.kill9();
    eventually(PATIENCE, async || tokio::net::TcpStream::connect(broker.address()).await.err()).await;

    let world = World::with(Store::sqlite(), |setup| setup.route(&route("")).consumer(&lines)).await;
    let line = world.proxy.logs("not consumed at the moment").await;
    assert_eq!(line["broker"], url.replace("guest:guest", "guest"));
    assert_eq!(world.pay("by-http").send().await.told(), Some("executed"), "it serves meanwhile");
    let hold = Hold::new();
    world.upstream.answers(Answer::status(201).hold(&hold));
    broker.restart().await;
    world.upstream.has_executed(1 + 2).await;

    // Two are running.
    broker.kill9();
    world.proxy.logs_times("not consumed at the moment", 2).await;
    hold.release();
    broker.restart().await;
    let queue = Queue::at(&broker, &name).await;
    world.upstream.has_executed(1 + 4).await;
    acknowledged(&world.proxy, 4).await;
    queue.has_waiting(0).await;
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!((queue.waiting().await, world.upstream.calls()), (0, 5));
}

#[tokio::test]
async fn a_queue_that_is_not_there_is_told_and_waited_for() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    queue.delete().await;
    let world =
        World::with(Store::sqlite(), |setup| setup.route(&route("")).consumer(&consumer(&broker.url(), &queue, "")))
            .await;
    let line = world.proxy.logs("not consumed at the moment").await;
    assert!(line["cause"].as_str().unwrap().contains("NOT_FOUND - no queue"), "{line}");
    queue.declare().await;
    queue.publish([message("k-1")]).await;
    acknowledged(&world.proxy, 1).await;

    let lost = |line: &serde_json::Value| line["message"].as_str().is_some_and(|said| said.contains("not consumed"));
    let before = world.proxy.logged().iter().filter(|line| lost(line)).count();
    queue.delete().await;
    world.proxy.logs_times("not consumed at the moment", before + 1).await;
    let line = world.proxy.logged().into_iter().filter(lost).nth(before).unwrap();
    assert!(line["cause"].as_str().unwrap().contains("is the queue gone?"), "{line}");
}

#[tokio::test]
async fn a_drain_finishes_and_acknowledges_what_runs_and_gives_the_rest_back() {
    let Some(office) = office(Store::sqlite(), "", "prefetch = 2").await else { return };
    let hold = Hold::new();
    office.world.upstream.then(Answer::status(503).field("Retry-After", "60"));
    office.world.upstream.answers(Answer::status(201).hold(&hold));
    office.queue.publish([message("held")]).await;
    office.world.proxy.logs("a message is held").await;
    office.queue.publish([message("running"), message("waiting")]).await;
    office
        .world
        .upstream
        .saw(|seen| seen.executed.iter().any(|call| call.field("idempotency-key") == Some("running")))
        .await;
    let executed = office.world.upstream.calls();
    office.world.proxy.signal(Signal::TERM);
    // What is held goes back at once, what has not come stays where it is, and the rest is waited for.
    office.queue.has_waiting(2).await;
    assert_eq!(office.queue.consumers().await, 0);
    hold.release();
    assert_eq!(office.world.proxy.ended().await, Some(0));
    assert_eq!(office.queue.waiting().await, 2, "the one that ran is acknowledged");
    assert_eq!(office.world.upstream.calls(), executed);
}

fn reload(world: &World, text: &str) {
    let new = world.proxy.file().with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, world.proxy.file()).unwrap();
    world.proxy.signal(Signal::HUP);
}

#[tokio::test]
async fn a_reload_starts_consumers_that_are_new_and_stops_those_that_are_gone() {
    let Some(office) = office(Store::sqlite(), "", "").await else { return };
    eventually(PATIENCE, async || (office.queue.consumers().await == 1).then_some(())).await;
    let other = office.broker.queue().await;
    let upstream = Upstream::start().await;
    let setup = || Proxy::on(&office.world.store.url()).upstream(office.world.upstream.address);
    let new = format!("name = \"new\"\npath = \"/new\"\nupstream = \"http://{}\"", upstream.address);
    let lines = consumer(&office.broker.url(), &other, "").replace("\"pay\"", "\"new\"");
    reload(&office.world, &setup().route(&route("")).route(&new).consumer(&lines).text());
    other.publish([message("k-1")]).await;
    acknowledged(&office.world.proxy, 1).await;
    assert_eq!(upstream.calls(), 1);
    eventually(PATIENCE, async || (office.queue.consumers().await == 0).then_some(())).await;
    office.queue.publish([message("k-2")]).await;

    let old = consumer(&office.broker.url(), &office.queue, "prefetch = 5");
    reload(&office.world, &setup().route(&route("")).route(&new).consumer(&old).consumer(&lines).text());
    acknowledged(&office.world.proxy, 2).await;
    let line = office.world.proxy.logs("messages are consumed").await;
    assert_eq!(line["prefetch"], 64);

    let otherwise = old.replace("prefetch = 5", "key = \"message-id\"");
    reload(&office.world, &setup().route(&route("")).route(&new).consumer(&otherwise).text());
    let line = office.world.proxy.logs("keys of this queue's messages unfindable").await;
    assert_eq!(line["queue"], office.queue.name);
    assert_eq!((office.queue.consumers().await, other.consumers().await), (1, 1), "the running configuration stays");
}
