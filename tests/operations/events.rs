//! Events: each end of a key's attempt is told at least once, in the key's order, whatever dies.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::Sha256;

use harness::kafka::KafkaBroker;
use harness::operator::{Operator, not_executed, oncegate};
use harness::upstream::{Answer, Call, Hold, Upstream};
use harness::{Proxy, Setup, Store, TEST_TIMEOUT, World, eventually, on_both_stores, rabbitmq, route};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A sink of the route `pay` with these lines.
fn sink(lines: &str) -> String {
    format!("name = \"bus\"\nroutes = [\"pay\"]\n{lines}")
}

/// A sink that posts to this receiver, with these lines.
fn to(receiver: &Upstream, lines: &str) -> String {
    sink(&format!("url = \"http://{}/hook?a=1\"\nsecret = {SECRET:?}\n{lines}", receiver.address))
}

async fn world(store: Store, events: &str) -> World {
    World::with(store, |setup| setup.route(&route("pay", "")).events(events)).await
}

fn paid() -> Answer {
    Answer::status(201).field("Content-Type", "application/json").body(r#"{"id":7}"#)
}

/// The event in a request, whose signature is right.
fn event(call: &Call) -> Value {
    let (id, timestamp) = (call.field("webhook-id").unwrap(), call.field("webhook-timestamp").unwrap());
    let secret = STANDARD.decode(SECRET.strip_prefix("whsec_").unwrap()).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret).unwrap();
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(&call.body);
    let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    assert_eq!(call.field("webhook-signature"), Some(&*signature));
    let event: Value = serde_json::from_slice(&call.body).unwrap();
    assert_eq!((&call.method[..], &event["id"]), ("POST", &json!(id)));
    event
}

/// The type of an event, without its beginning, and the key.
fn summary(event: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&event["type"]).replace("oncegate.key.", ""), text(&event["data"]["key"]))
}

fn told(receiver: &Upstream) -> Vec<(String, String)> {
    receiver.executed().iter().map(|call| summary(&event(call))).collect()
}

fn pair(kind: &str, key: &str) -> (String, String) {
    (kind.to_owned(), key.to_owned())
}

on_both_stores!(a_completed_key_is_told_with_its_response_and_a_signature);
async fn a_completed_key_is_told_with_its_response_and_a_signature(store: Store) {
    let receiver = Upstream::start().await;
    let world = world(store, &to(&receiver, "body = true")).await;
    // Reading it as a number would change it.
    world.upstream.answer_all(paid().body(r#"{"total":10.00,"id":12345678901234567890123}"#));
    world.pay("k-1").send().await;
    receiver.wait_for_executed(1).await;
    let call = receiver.last();
    assert!(String::from_utf8_lossy(&call.body).contains(r#""body":{"total":10.00,"id":12345678901234567890123}"#));
    assert_eq!((&call.target[..], call.field("content-type")), ("/hook?a=1", Some("application/cloudevents+json")));
    let event = event(&call);
    let record = Operator::of(&world.proxy).id_when("k-1", "completed").await;
    assert_eq!(event["specversion"], "1.0");
    assert_eq!(event["source"], "/oncegate/default");
    assert_eq!((&event["type"], &event["subject"]), (&json!("oncegate.key.completed"), &json!(record)));
    let data = &event["data"];
    assert_eq!((&data["key"], &data["state"], &data["status"]), (&json!("k-1"), &json!("completed"), &json!(201)));
    assert_eq!((&data["route"], &data["attempt"]), (&json!("pay"), &json!(1)));
    // A replay is no event.
    world.pay("k-1").send().await;
    world.pay("k-2").send().await;
    receiver.wait_for_executed(2).await;
    assert_eq!(told(&receiver), [pair("completed", "k-1"), pair("completed", "k-2")]);
    assert_eq!(world.proxy.readyz().await.1["events"][0]["published"], 2);
}

on_both_stores!(a_refusal_has_a_type_of_its_own_and_starts_no_next_step);
async fn a_refusal_has_a_type_of_its_own_and_starts_no_next_step(store: Store) {
    let (next, undo) = (Upstream::start().await, Upstream::start().await);
    let undo_lines = to(&undo, "types = [\"refused\"]").replace("\"bus\"", "\"undo\"");
    let next_lines = to(&next, "types = [\"completed\"]");
    let world =
        World::with(store, |setup| setup.route(&route("pay", "")).events(&next_lines).events(&undo_lines)).await;
    world.upstream.then(Answer::status(402)).then(Answer::status(422)).then(paid());
    for key in ["no-funds", "no-seat", "paid"] {
        world.pay(key).send().await;
    }
    undo.wait_for_executed(2).await;
    next.wait_for_executed(1).await;
    assert_eq!(told(&next), [pair("completed", "paid")]);
    let mut undone = told(&undo);
    undone.sort();
    assert_eq!(undone, [pair("refused", "no-funds"), pair("refused", "no-seat")]);
    let event = event(&undo.last());
    assert_eq!(event["data"]["state"], "completed", "a retry gets the refusal");
    assert!(event["data"]["status"].as_u64() >= Some(402), "{event}");
}

on_both_stores!(an_unknown_outcome_and_its_resolution_are_told_in_their_order);
async fn an_unknown_outcome_and_its_resolution_are_told_in_their_order(store: Store) {
    let receiver = Upstream::start().await;
    let world = world(store, &to(&receiver, "key = \"hash\"")).await;
    world.upstream.then(Answer::reset());
    assert_eq!(world.pay("k-1").send().await.status, 502);
    // The first event is not taken yet when the second one happens.
    let hold = Hold::new();
    receiver.then(Answer::status(503)).then(Answer::status(204).hold(&hold));
    let operator = Operator::of(&world.proxy);
    let id = operator.id_when("k-1", "unknown").await;
    assert_eq!(operator.resolve(&id, not_executed(true)).await.0, 200);
    hold.release();
    receiver
        .wait_until(|seen| {
            let kinds: Vec<_> = seen.executed.iter().map(|call| event(call)["type"].clone()).collect();
            kinds.last() == Some(&json!("oncegate.key.resolved"))
        })
        .await;
    let events: Vec<_> = receiver.executed().iter().map(event).collect();
    let (last, before) = events.split_last().unwrap();
    assert!(before.iter().all(|event| event["type"] == "oncegate.key.unknown"), "{events:?}");
    assert_eq!(before[0]["data"]["cause"], "broken");
    assert_eq!((&last["data"]["state"], &last["data"]["key"]), (&json!("retryable"), &Value::Null));
    assert_eq!(last["data"]["key_sha256"].as_str().unwrap().len(), 64);
    assert!(last["sequence"].as_str() > before[0]["sequence"].as_str());
}

on_both_stores!(an_event_of_a_proxy_that_dies_is_published_by_the_next_one);
async fn an_event_of_a_proxy_that_dies_is_published_by_the_next_one(store: Store) {
    let receiver = Upstream::start().await;
    let mut world = world(store, &to(&receiver, "")).await;
    // It has the event, and the proxy does not learn it.
    receiver.then(Answer::never());
    world.pay("k-1").send().await;
    receiver.wait_for_executed(1).await;
    let first = event(&receiver.last());
    world.proxy.kill9().await;
    // Its claim ends.
    world.store.tamper("update events set due_at = 0").await;
    world.proxy = world.setup.start().await;
    receiver.wait_for_executed(2).await;
    assert_eq!(event(&receiver.last()), first, "the same event again, by which a receiver knows it");
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(events_wait_for_a_receiver_that_is_away_and_none_is_lost);
async fn events_wait_for_a_receiver_that_is_away_and_none_is_lost(store: Store) {
    let address = Upstream::unused_address().await;
    let lines = sink(&format!("url = \"http://{address}/\"\nsecret = {SECRET:?}"));
    let world = world(store, &lines).await;
    for number in 0..20 {
        assert_eq!(world.pay(&format!("k-{number}")).send().await.status, 201);
    }
    world.proxy.wait_for_log("events cannot be published at the moment").await;
    let receiver = Upstream::start_at(address).await;
    receiver.wait_until(|seen| seen.executed.len() >= 20).await;
    let mut keys: Vec<_> = told(&receiver).into_iter().map(|(_, key)| key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 20);
    world.proxy.wait_for_log("events are published again").await;
}

on_both_stores!(an_event_that_its_receiver_cannot_take_slows_no_other_down);
async fn an_event_that_its_receiver_cannot_take_slows_no_other_down(store: Store) {
    let receiver = Upstream::start().await;
    let world = world(store, &to(&receiver, "")).await;
    let hold = Hold::new();
    receiver.then(Answer::status(204).hold(&hold)).then(Answer::status(500));
    world.pay("k-0").send().await;
    receiver.wait_for_executed(1).await;
    for number in 1..30 {
        assert_eq!(world.pay(&format!("k-{number}")).send().await.status, 201);
    }
    // The others come together, and one of them fails.
    hold.release();
    receiver.wait_for_executed(31).await;
    let mut keys: Vec<_> = told(&receiver).into_iter().map(|(_, key)| key).collect();
    assert_eq!(keys.last(), keys[1..30].iter().find(|key| keys.iter().filter(|other| other == key).count() == 2));
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 30);
    assert!(!world.proxy.output().contains("events cannot be published at the moment"));
}

on_both_stores!(a_refused_event_holds_no_other_key_back_and_is_dead_in_time_until_it_is_requeued);
async fn a_refused_event_holds_no_other_key_back_and_is_dead_in_time_until_it_is_requeued(store: Store) {
    let receiver = Upstream::start().await;
    let world = world(store, &to(&receiver, "give_up_after = \"1ms\"")).await;
    receiver.then(Answer::status(400)).then(Answer::status(400)).then(Answer::status(400));
    world.pay("k-1").send().await;
    let dead = world.proxy.wait_for_log("an event was not published in time").await;
    assert_eq!((&dead["sink"], &dead["cause"]), (&json!("bus"), &json!("the answer has status 400")));
    world.pay("k-2").send().await;
    receiver.wait_for_executed(4).await;
    let operator = Operator::of(&world.proxy);
    let (_, list) = operator.get("/api/v1/events").await;
    assert_eq!(
        (&list["sinks"][0]["dead"], &list["sinks"][0]["note"]),
        (&json!(1), &json!("the answer has status 400"))
    );
    let requeued = operator.post("/api/v1/events/bus/requeue", json!({})).await;
    assert_eq!(requeued, (200, json!({ "requeued": 1 })));
    receiver.wait_for_executed(5).await;
    assert_eq!(told(&receiver)[3..], [pair("completed", "k-2"), pair("completed", "k-1")]);
}

on_both_stores!(a_receiver_that_refuses_events_is_in_the_log_and_in_the_list_while_they_wait);
async fn a_receiver_that_refuses_events_is_in_the_log_and_in_the_list_while_they_wait(store: Store) {
    let receiver = Upstream::start().await;
    let world = world(store, &to(&receiver, "")).await;
    receiver.answer_all(Answer::status(400));
    world.pay("k-1").send().await;
    let line = world.proxy.wait_for_log("events were not taken").await;
    let seen = (&line["sink"], &line["cause"], &line["level"]);
    assert_eq!(seen, (&json!("bus"), &json!("the answer has status 400"), &json!("WARN")));
    let listed = async || {
        let admin = world.proxy.admin.to_string();
        let list = oncegate("events", &world.proxy.file(), &["list", "--admin", &admin]).await.out;
        list.contains(": 1 waiting since").then_some(list)
    };
    let list = eventually(TEST_TIMEOUT, listed).await;
    assert!(list.contains("(the answer has status 400), 0 dead\n"), "{list}");
    // Each further try has its line at most once in a minute.
    receiver.wait_for_executed(3).await;
    assert_eq!(world.proxy.output().matches("events were not taken").count(), 1);
}

on_both_stores!(dead_events_are_discarded_and_one_of_a_purged_key_says_nothing_of_its_caller);
async fn dead_events_are_discarded_and_one_of_a_purged_key_says_nothing_of_its_caller(store: Store) {
    let receiver = Upstream::start().await;
    let world = world(store, &to(&receiver, "give_up_after = \"1ms\"\nbody = true")).await;
    let (operator, file, admin) = (Operator::of(&world.proxy), world.proxy.file(), world.proxy.admin.to_string());
    world.upstream.answer_all(paid());
    let has_dead = async |count: u64| {
        let is_so = async || (operator.get("/api/v1/events").await.1["sinks"][0]["dead"] == count).then_some(());
        eventually(TEST_TIMEOUT, is_so).await;
    };
    for (purged, count) in [("k-jane", 1), ("k-2", 2)] {
        for _ in 0..3 {
            receiver.then(Answer::status(400));
        }
        world.pay(purged).send().await;
        has_dead(count).await;
    }
    let id = operator.id("k-jane").await;
    assert_eq!(operator.delete(&format!("/api/v1/keys/{id}?accept_risk=true")).await.0, 200);
    for verb in ["requeue", "discard"] {
        let asked = oncegate("events", &file, &[verb, "bus", "--admin", &admin]).await;
        assert_eq!(asked.code, 2, "{asked:?}");
        assert!(
            asked.err.contains(&format!("{verb}: 2 dead events of bus")) && asked.err.contains("--yes"),
            "{asked:?}"
        );
    }
    let requeued = oncegate("events", &file, &["requeue", "bus", "--yes", "--admin", &admin]).await;
    assert_eq!((requeued.code, &*requeued.out), (0, "2 events requeued\n"));
    receiver.wait_for_executed(8).await;
    let last: Vec<_> = receiver.executed()[6..].iter().map(event).collect();
    let of = |key: Value| last.iter().find(|event| event["data"]["key"] == key).unwrap_or_else(|| panic!("{last:?}"));
    assert_eq!(of(json!("k-2"))["data"]["body"], json!({ "id": 7 }));
    let erased = of(Value::Null);
    assert_eq!((&erased["subject"], &erased["data"]["body"]), (&json!(id), &Value::Null), "{erased}");
    for _ in 0..3 {
        receiver.then(Answer::status(400));
    }
    world.pay("k-3").send().await;
    has_dead(1).await;
    let discarded = oncegate("events", &file, &["discard", "bus", "--yes", "--admin", &admin]).await;
    assert_eq!((discarded.code, &*discarded.out), (0, "1 event discarded\n"));
    has_dead(0).await;
    let (status, reply) = operator.post("/api/v1/events/bus/discard", json!({})).await;
    assert_eq!((status, reply), (200, json!({ "discarded": 0 })));
    assert_eq!(operator.post("/api/v1/events/nosuch/discard", json!({})).await.1["code"], "no-such-events");
    let line = ["bob (claimed) at 127.0.0.1", "discard event", "completed", "completed"].map(str::to_owned);
    assert_eq!(operator.audit().await.last(), Some(&line));
    // The key is as it was, and so is what is shown of its attempt.
    let (_, shown) = operator.get(&format!("/api/v1/keys/{}", operator.id("k-3").await)).await;
    assert_eq!((&shown["state"], &shown["timeline"][0]["state"]), (&json!("completed"), &json!("completed")));
}

#[tokio::test]
async fn a_key_that_its_service_completes_in_its_own_transaction_is_told() {
    let receiver = Upstream::start().await;
    let world = world(Store::postgres().await, &to(&receiver, "body = true")).await;
    let hold = Hold::new();
    world.upstream.then(paid().hold(&hold));
    let running = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let reservation = world.upstream.last().field("oncegate-reservation").unwrap().to_owned();
    let complete = format!("select complete('{reservation}', 201, '[[\"content-type\", \"text/plain\"]]', 'in SQL')");
    world.store.tamper(&complete).await;
    receiver.wait_for_executed(1).await;
    let event = event(&receiver.last());
    assert_eq!((&event["type"], &event["data"]["body"]), (&json!("oncegate.key.completed"), &json!("in SQL")));
    hold.release();
    assert_eq!(running.await.unwrap().unwrap().text(), "in SQL");
}

#[tokio::test]
async fn events_go_to_a_queue_with_confirmation_and_wait_while_the_broker_is_away() {
    let Some(mut broker) = rabbitmq::Broker::start().await else { return };
    let queue = broker.queue().await;
    let events = sink(&format!("amqp = {:?}\nrouting_key = {:?}\nbody = true", broker.url(), queue.name));
    let world = world(Store::sqlite(), &events).await;
    world.upstream.answer_all(paid());
    world.pay("k-1").send().await;
    let message = queue.next().await;
    let event: Value = serde_json::from_slice(&message.data).unwrap();
    assert_eq!((summary(&event), &event["data"]["body"]), (pair("completed", "k-1"), &json!({ "id": 7 })));
    let properties = &message.properties;
    let (kind, id) = (properties.kind().as_ref().unwrap(), properties.message_id().as_ref().unwrap());
    assert_eq!((kind.as_str(), json!(id.as_str())), ("oncegate.key.completed", event["id"].clone()));
    assert_eq!(*properties.delivery_mode(), Some(2));
    broker.stop().await;
    world.pay("k-2").send().await;
    world.proxy.wait_for_log("events cannot be published at the moment").await;
    broker.restart().await;
    world.proxy.wait_for_log("events are published again").await;
    world.pay("k-3").send().await;
    let queue = rabbitmq::Queue::at(&broker, &queue.name).await;
    queue.has_waiting(2).await;
}

#[tokio::test]
async fn a_broker_that_comes_back_counts_as_reachable_while_no_event_waits() {
    let Some(mut broker) = rabbitmq::Broker::start().await else { return };
    let queue = broker.queue().await;
    let events = sink(&format!("amqp = {:?}\nrouting_key = {:?}", broker.url(), queue.name));
    broker.stop().await;
    let world = world(Store::sqlite(), &events).await;
    let is_reachable = async || world.proxy.readyz().await.1["events"][0]["reachable"].clone();
    world.proxy.wait_for_log("events cannot be published at the moment").await;
    assert_eq!(is_reachable().await, false);
    broker.restart().await;
    world.proxy.wait_for_log("events are published again").await;
    eventually(TEST_TIMEOUT, async || (is_reachable().await == true).then_some(())).await;
}

#[tokio::test]
async fn an_exchange_gets_the_types_that_are_wanted() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let (exchange, queue) = broker.exchange().await;
    let amqp = format!("amqp = {:?}\nexchange = {exchange:?}\ntypes = [\"unknown\"]", broker.url());
    let world = world(Store::sqlite(), &sink(&amqp)).await;
    world.pay("k-1").send().await;
    world.upstream.then(Answer::reset());
    world.pay("k-2").send().await;
    let message = queue.next().await;
    assert_eq!(message.routing_key.as_str(), "oncegate.key.unknown");
    let event: Value = serde_json::from_slice(&message.data).unwrap();
    assert_eq!(summary(&event), pair("unknown", "k-2"));
}

#[tokio::test]
async fn events_go_to_a_topic_with_the_record_as_their_key() {
    for broker in [KafkaBroker::tansu().await, KafkaBroker::mock().await] {
        let Some(broker) = broker else { return };
        let topic = broker.topic(3).await;
        let events = sink(&format!("kafka = {{ brokers = {:?}, topic = {topic:?} }}", broker.addresses()));
        let world = world(Store::sqlite(), &events).await;
        for number in 0..10 {
            world.pay(&format!("k-{number}")).send().await;
        }
        let records = broker.read(&topic, 10).await;
        let mut keys = Vec::new();
        for record in &records {
            let event: Value = serde_json::from_str(&record.value).unwrap();
            assert_eq!(record.key.as_deref(), event["subject"].as_str());
            assert_eq!(record.header("content-type"), Some("application/cloudevents+json"));
            keys.push(summary(&event).1);
        }
        keys.sort();
        assert_eq!(keys, (0..10).map(|number| format!("k-{number}")).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn two_instances_share_the_events_and_a_reload_changes_where_they_go() {
    let (receiver, other) = (Upstream::start().await, Upstream::start().await);
    let world = world(Store::postgres().await, &to(&receiver, "")).await;
    let second = world.setup.start().await;
    for number in 0..20 {
        let proxy: &Proxy = if number % 2 == 0 { &world.proxy } else { &second };
        let request = proxy.post("/pay").key(&format!("k-{number}")).json(r#"{"amount":10}"#);
        assert_eq!(request.send().await.status, 201);
    }
    receiver.wait_for_executed(20).await;
    assert_eq!(receiver.calls(), 20, "each is published once where nothing fails");
    drop(second);
    let setup: Setup = Proxy::on(&world.store.url()).upstream(world.upstream.address);
    let setup = setup.route(&route("pay", "")).events(&to(&other, ""));
    std::fs::write(world.proxy.file(), setup.text()).unwrap();
    world.proxy.signal(Signal::HUP);
    world.proxy.wait_for_log("the configuration was reloaded").await;
    world.pay("after").send().await;
    other.wait_for_executed(1).await;
    assert_eq!((receiver.calls(), told(&other)), (20, vec![pair("completed", "after")]));
}

#[tokio::test]
async fn the_first_events_of_a_running_program_need_a_restart() {
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("pay", ""))).await;
    let receiver = Upstream::start().await;
    let setup = Proxy::on(&world.store.url()).upstream(world.upstream.address);
    std::fs::write(world.proxy.file(), setup.route(&route("pay", "")).events(&to(&receiver, "")).text()).unwrap();
    world.proxy.signal(Signal::HUP);
    world.proxy.wait_for_log("events has changed, which takes effect with a restart").await;
}
