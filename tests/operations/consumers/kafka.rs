//! Records of Kafka, on two brokers, with a second client that writes them and reads what is committed.

use std::time::Duration;

use serde_json::{Value, json};

use super::route;
use harness::kafka::{KafkaBroker, WrittenRecord, consumer};
use harness::operator::{Operator, completed};
use harness::{Answer, Hold, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores};

/// A proxy that reads a new topic with three partitions (the mock cluster: four), and calls the service.
pub struct KafkaWorld {
    pub broker: KafkaBroker,
    pub topic: String,
    pub world: World,
}

/// Returns `None` where the broker is not installed.
pub async fn kafka_world(
    broker: Option<KafkaBroker>,
    store: Store,
    route_lines: &str,
    lines: &str,
) -> Option<KafkaWorld> {
    let broker = broker?;
    let topic = broker.topic(3).await;
    let lines = consumer(&broker, &topic, lines);
    let world = World::with(store, |setup| setup.route(&route(route_lines)).consumer(&lines)).await;
    Some(KafkaWorld { broker, topic, world })
}

impl KafkaWorld {
    pub async fn write(&self, records: &[WrittenRecord<'_>]) {
        self.broker.write(&self.topic, records).await;
    }

    /// Stops the proxy, and checks that so many records are committed.
    pub async fn ends_with(&self, committed: i64) {
        assert_eq!(self.world.proxy.stop().await, Some(0));
        let offsets = self.broker.committed(&self.topic).await;
        assert_eq!(offsets.iter().map(|offset| offset.max(&0)).sum::<i64>(), committed, "{offsets:?}");
    }

    /// Writes records to one partition, in one batch.
    pub async fn write_to(&self, partition: i32, records: &[WrittenRecord<'_>]) {
        self.broker.write_to(&self.topic, records, partition).await;
    }

    /// The state of the consumer in `/readyz`.
    pub async fn state(&self) -> Value {
        self.world.proxy.readyz().await.1["consumers"][0].clone()
    }
}

/// Records with seven keys.
pub fn records(count: usize) -> Vec<(String, String)> {
    (0..count).map(|number| (format!("k-{}", number % 7), format!("{{\"number\":{number}}}"))).collect()
}

pub fn borrowed(records: &[(String, String)]) -> Vec<WrittenRecord<'_>> {
    records.iter().map(|(key, value)| (Some(&**key), &**value, &[][..])).collect()
}

on_both_stores!(each_record_is_executed_once_in_the_order_of_its_key_and_committed);
async fn each_record_is_executed_once_in_the_order_of_its_key_and_committed(store: Store) {
    let Some(kafka) = kafka_world(KafkaBroker::tansu().await, store, "", "").await else { return };
    let records = records(40);
    kafka.write(&borrowed(&records)).await;
    kafka.broker.has_committed(&kafka.topic, 40).await;
    executed_in_order(&kafka.world.upstream, &records);
    let (key, topic) = (kafka.world.upstream.last().field("idempotency-key").unwrap().to_owned(), &kafka.topic);
    assert!(key.starts_with(&format!("{topic}/")) && key.split('/').count() == 4, "{key} has the topic's id");
    kafka.ends_with(40).await;
    // Another process reads nothing again.
    let again = kafka.world.setup.start().await;
    again.wait_for_log("partitions are assigned").await;
    kafka.write(&[(Some("k"), "{}", &[])]).await;
    kafka.broker.has_committed(&kafka.topic, 41).await;
    assert_eq!((again.stop().await, kafka.world.upstream.calls()), (Some(0), 41));
}

#[tokio::test]
async fn a_group_that_begins_at_the_end_loses_no_record_that_was_read_and_not_settled() {
    let Some(kafka) =
        kafka_world(KafkaBroker::mock().await, Store::sqlite(), "", "kafka.first_offset = \"latest\"").await
    else {
        return;
    };
    // Until the group has its place at the end, a record is behind nobody.
    kafka.world.upstream.answer_all(Answer::status(503));
    eventually(TEST_TIMEOUT, async || {
        kafka.write(&[(Some("k"), "{}", &[])]).await;
        (kafka.world.upstream.calls() > 0).then_some(())
    })
    .await;
    let key = kafka.world.upstream.last().field("idempotency-key").unwrap().to_owned();
    eventually(TEST_TIMEOUT, async || {
        let committed = kafka.broker.committed(&kafka.topic).await;
        committed.iter().any(|offset| *offset >= 0).then_some(())
    })
    .await;
    kafka.world.proxy.kill9().await;
    kafka.world.upstream.answer_all(Answer::status(201));
    let before = kafka.world.upstream.executed_for(&key);
    let _again = kafka.world.setup.start().await;
    eventually(TEST_TIMEOUT, async || (kafka.world.upstream.executed_for(&key) > before).then_some(())).await;
}

/// Checks that the service got each record once, and those of each key in their order.
pub fn executed_in_order(upstream: &Upstream, records: &[(String, String)]) {
    let executed = upstream.executed();
    let calls: Vec<_> = executed
        .iter()
        .map(|call| (call.field("kafka-key").unwrap().to_owned(), String::from_utf8(call.body.clone()).unwrap()))
        .collect();
    let of = |all: &[(String, String)], key: &str| -> Vec<String> {
        all.iter().filter(|(other, _)| other == key).map(|(_, value)| value.clone()).collect()
    };
    assert_eq!(calls.len(), records.len());
    for (key, _) in records {
        assert_eq!(of(&calls, key), of(records, key), "{key}");
    }
}

#[tokio::test]
async fn records_of_the_mock_cluster_are_executed_and_their_lag_is_shown() {
    let Some(kafka) = kafka_world(KafkaBroker::mock().await, Store::sqlite(), "", "prefetch = 2").await else { return };
    let hold = Hold::new();
    kafka.world.upstream.answer_all(Answer::status(201).hold(&hold));
    let records = records(40);
    kafka.write(&borrowed(&records)).await;
    kafka.world.upstream.wait_for_executed(2).await;
    eventually(TEST_TIMEOUT, async || (kafka.state().await["lag"] == 40).then_some(())).await;
    let state = kafka.state().await;
    assert_eq!((&state["connected"], &state["partitions"], &state["route"]), (&json!(true), &json!(4), &json!("pay")));
    assert_eq!(kafka.world.upstream.calls(), 2, "no more than `prefetch` at once");
    let committed = kafka.broker.committed(&kafka.topic).await;
    assert!(
        committed.iter().all(|offset| *offset <= 0),
        "nothing is settled, only the place to begin at: {committed:?}"
    );
    hold.release();
    kafka.broker.has_committed(&kafka.topic, 40).await;
    eventually(TEST_TIMEOUT, async || (kafka.state().await["lag"] == 0).then_some(())).await;
    executed_in_order(&kafka.world.upstream, &records);
    kafka.ends_with(40).await;
}

#[tokio::test]
async fn records_of_one_partition_run_one_at_a_time_where_the_order_is_the_partitions() {
    let lines = "kafka.order = \"partition\"\nprefetch = 8";
    let Some(kafka) = kafka_world(KafkaBroker::tansu().await, Store::sqlite(), "", lines).await else { return };
    let takes = Duration::from_millis(20);
    kafka.world.upstream.answer_all(Answer::status(201).takes(takes));
    let values: Vec<_> = (0..15).map(|number| number.to_string()).collect();
    for partition in 0..3 {
        // Records of one key, of others, and of none.
        let keys = [Some("a"), Some("b"), None];
        let records: Vec<_> =
            values.iter().zip(keys.iter().cycle()).map(|(value, key)| (*key, &**value, &[][..])).collect();
        kafka.write_to(partition, &records).await;
    }
    kafka.broker.has_committed(&kafka.topic, 45).await;
    let calls = kafka.world.upstream.executed();
    assert_eq!(calls.len(), 45);
    for partition in 0..3 {
        let prefix = format!("{}/{partition}/", kafka.topic);
        let of: Vec<_> =
            calls.iter().filter(|call| call.field("idempotency-key").unwrap().starts_with(&prefix)).collect();
        let bodies: Vec<_> = of.iter().map(|call| String::from_utf8(call.body.clone()).unwrap()).collect();
        assert_eq!(bodies, values, "{partition}");
        assert!(of.windows(2).all(|pair| pair[0].at + takes <= pair[1].at), "{partition}: two ran at once");
    }
    kafka.ends_with(45).await;
}

#[tokio::test]
async fn a_partition_whose_records_wait_for_each_other_stops_no_other_one() {
    let lines = "key = \"header:x-id\"\nprefetch = 4";
    let Some(kafka) = kafka_world(KafkaBroker::tansu().await, Store::sqlite(), "", lines).await else { return };
    let hold = Hold::new();
    kafka.world.upstream.answer_for("slow-0", Answer::status(201).hold(&hold));
    let ids = |name: &str, count: usize| (0..count).map(|number| format!("{name}-{number}")).collect::<Vec<_>>();
    let (slow, quick) = (ids("slow", 100), ids("quick", 100));
    let headers: Vec<_> = slow.iter().chain(&quick).map(|id| [("x-id", &**id)]).collect();
    let (slow, quick) = headers.split_at(slow.len());
    let slow: Vec<WrittenRecord<'_>> = slow.iter().map(|header| (Some("hot"), "{}", &header[..])).collect();
    kafka.write_to(0, &slow).await;
    kafka.world.upstream.wait_for_executed(1).await;
    let quick: Vec<WrittenRecord<'_>> = quick.iter().map(|header| (None, "{}", &header[..])).collect();
    kafka.write_to(1, &quick).await;
    kafka.world.upstream.wait_for_executed(101).await;
    hold.release();
    kafka.broker.has_committed(&kafka.topic, 200).await;
    kafka.ends_with(200).await;
}

on_both_stores!(an_unknown_outcome_parks_its_key_and_holds_back_the_committed_offset);
async fn an_unknown_outcome_parks_its_key_and_holds_back_the_committed_offset(store: Store) {
    let Some(kafka) = kafka_world(KafkaBroker::tansu().await, store, "", "prefetch = 1").await else { return };
    kafka.world.upstream.then(Answer::close());
    kafka.write(&[(Some("a"), "1", &[])]).await;
    let operator = Operator::of(&kafka.world.proxy);
    let id = eventually(TEST_TIMEOUT, async || {
        operator.keys("state=unknown").await.first().map(|key| key["id"].as_str().unwrap().to_owned())
    })
    .await;
    // Behind it its own key, and ten others of all partitions.
    let others: Vec<_> = (0..10).map(|number| format!("o-{number}")).collect();
    let mut written: Vec<WrittenRecord<'_>> = vec![(Some("a"), "2", &[])];
    written.extend(others.iter().map(|key| (Some(&**key), "3", &[][..])));
    kafka.write(&written).await;
    kafka.world.upstream.wait_for_executed(11).await;
    eventually(TEST_TIMEOUT, async || (kafka.state().await["parked"] == 2).then_some(())).await;
    let bodies: Vec<_> = kafka.world.upstream.executed().iter().map(|call| call.body.clone()).collect();
    assert!(!bodies.contains(&b"2".to_vec()), "it waits behind its key");
    // The partition of the unknown record is committed nowhere beyond it.
    assert!(kafka.broker.committed(&kafka.topic).await.iter().any(|offset| *offset <= 0));
    assert_eq!(operator.resolve(&id, completed(201, "paid")).await.0, 200);
    kafka.broker.has_committed(&kafka.topic, 12).await;
    assert_eq!(kafka.world.upstream.calls(), 12);
    kafka.ends_with(12).await;
}

#[tokio::test]
async fn a_record_that_fails_for_good_is_a_dead_letter_before_its_offset_counts() {
    for broker in [KafkaBroker::tansu().await, KafkaBroker::mock().await] {
        let lines = "key = \"header:x-id\"\nstep = \"process-payment\"\nkafka.give_up_after = \"1s\"";
        let Some(kafka) = kafka_world(broker, Store::sqlite(), "max_request_body = \"64B\"", lines).await else {
            return;
        };
        let big = "x".repeat(65);
        kafka.world.upstream.then(Answer::status(422)).then(Answer::status(503)).then(Answer::status(201));
        let expected = [
            ("status", Some("422"), "refused"),
            ("key-missing", None, "without a key"),
            ("request-too-large", None, &big),
        ];
        kafka.write(&[(Some("k"), "refused", &[("x-id", "order-1"), ("x-own", "kept")])]).await;
        kafka.broker.has_committed(&kafka.topic, 1).await;
        assert_eq!(kafka.world.upstream.last().field("idempotency-key"), Some("order-1:process-payment"));
        kafka.write(&[(Some("k"), "without a key", &[]), (Some("k"), &big, &[("x-id", "order-2")])]).await;
        kafka.broker.has_committed(&kafka.topic, 3).await;
        let letters = kafka.broker.read(&format!("{}.dead", kafka.topic), 3).await;
        for ((reason, status, value), letter) in expected.into_iter().zip(&letters) {
            assert_eq!(
                (letter.header("x-oncegate-reason"), letter.header("x-oncegate-status")),
                (Some(reason), status)
            );
            assert_eq!((&*letter.value, letter.key.as_deref()), (value, Some("k")));
            assert_eq!(letter.header("x-oncegate-topic"), Some(&*kafka.topic));
            assert_eq!(
                (letter.header("x-oncegate-route"), letter.header("x-oncegate-attempts")),
                (Some("pay"), Some("1"))
            );
            for name in ["group", "partition", "offset", "timestamp", "detail"] {
                assert!(letter.header(&format!("x-oncegate-{name}")).is_some_and(|value| !value.is_empty()), "{name}");
            }
        }
        assert_eq!(letters[0].header("x-own"), Some("kept"));
        // One that only was not executed is held, while nothing passes it.
        kafka.write(&[(Some("k"), "later", &[("x-id", "order-3")])]).await;
        kafka.broker.has_committed(&kafka.topic, 4).await;
        assert_eq!(kafka.world.upstream.executed_for("order-3:process-payment"), 2);
        kafka.ends_with(4).await;
    }
}

#[tokio::test]
async fn a_record_that_alone_fails_is_given_up_and_one_of_many_is_held() {
    let lines = "kafka.order = \"none\"\nkafka.give_up_after = \"1s\"\nkey = \"header:x-id\"";
    let Some(kafka) = kafka_world(KafkaBroker::tansu().await, Store::sqlite(), "", lines).await else { return };
    kafka.world.upstream.answer_all(Answer::status(503));
    kafka.write(&[(Some("k"), "bad", &[("x-id", "bad")])]).await;
    // The service is away for longer than that: nothing is given up.
    kafka.world.upstream.wait_for_executed(4).await;
    kafka.world.upstream.answer_all(Answer::status(201));
    kafka.broker.has_committed(&kafka.topic, 1).await;
    // The service refuses one record again and again, and takes those behind it.
    kafka.world.upstream.answer_all(Answer::status(503));
    kafka.write(&[(Some("k"), "bad", &[("x-id", "worse")])]).await;
    kafka.world.proxy.wait_for_logs("a record is held", 2).await;
    kafka.world.upstream.answer_for("worse", Answer::status(503));
    kafka.world.upstream.answer_all(Answer::status(201));
    kafka.write(&[(Some("k"), "good", &[("x-id", "good")])]).await;
    let letter = &kafka.broker.read(&format!("{}.dead", kafka.topic), 1).await[0];
    assert_eq!(
        (letter.header("x-oncegate-reason"), letter.header("x-oncegate-status")),
        (Some("released"), Some("503"))
    );
    assert!(letter.header("x-oncegate-attempts").unwrap().parse::<u32>().unwrap() > 2);
    kafka.broker.has_committed(&kafka.topic, 3).await;
    kafka.ends_with(3).await;
}

#[tokio::test]
async fn where_order_does_not_matter_a_record_is_accepted_and_committed_at_once() {
    let Some(broker) = KafkaBroker::tansu().await else { return };
    let topic = broker.topic(3).await;
    let lines = consumer(&broker, &topic, "kafka.order = \"none\"");
    let world = World::with(Store::postgres().await, |setup| {
        let setup = setup.top("secret = \"a secret of some length\"");
        setup.route(&route("delivery = \"async\"")).consumer(&lines)
    })
    .await;
    let hold = Hold::new();
    world.upstream.answer_all(Answer::status(201).hold(&hold));
    broker.write(&topic, &borrowed(&records(40))).await;
    broker.has_committed(&topic, 40).await;
    hold.release();
    world.upstream.wait_for_executed(40).await;
    assert_eq!(world.proxy.stop().await, Some(0));
}

#[tokio::test]
async fn a_topic_that_is_created_anew_has_other_keys() {
    let Some(mut kafka) = kafka_world(KafkaBroker::tansu().await, Store::sqlite(), "", "").await else { return };
    kafka.write(&[(Some("a"), "old", &[])]).await;
    kafka.broker.has_committed(&kafka.topic, 1).await;
    assert_eq!(kafka.world.proxy.stop().await, Some(0));
    kafka.broker.ask(json!(["delete", kafka.topic])).await;
    kafka.broker.ask(json!(["create", kafka.topic, 3])).await;
    kafka.write(&[(Some("a"), "new", &[])]).await;
    // Another group, since the old one has committed offsets.
    let lines = consumer(&kafka.broker, &kafka.topic, "").replace("group-of-", "new-group-of-");
    kafka.world.restart_as(|setup| setup.route(&route("")).consumer(&lines)).await;
    kafka.world.upstream.wait_for_executed(2).await;
    assert_eq!(kafka.world.upstream.last().body, b"new");
    assert_eq!(kafka.world.proxy.stop().await, Some(0));
}

#[tokio::test]
async fn a_topic_that_is_created_anew_while_it_is_read_has_other_keys() {
    let Some(kafka) = kafka_world(KafkaBroker::tansu().await, Store::sqlite(), "", "").await else { return };
    for body in ["old", "new"] {
        kafka.write_to(0, &[(Some("a"), body, &[])]).await;
        kafka.world.upstream.wait_for_executed(if body == "old" { 1 } else { 2 }).await;
        assert_eq!(kafka.world.upstream.last().body, body.as_bytes());
        kafka.broker.has_committed(&kafka.topic, 1).await;
        kafka.broker.ask(json!(["delete", kafka.topic])).await;
        kafka.broker.ask(json!(["create", kafka.topic, 3])).await;
    }
    let [old, new] =
        [0, 1].map(|call| kafka.world.upstream.executed()[call].field("idempotency-key").unwrap().to_owned());
    assert_eq!((old.rsplit_once('/').unwrap().0, old == new), (new.rsplit_once('/').unwrap().0, false));
}
