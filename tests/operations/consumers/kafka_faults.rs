//! Records of Kafka while brokers fail: a broker that is killed, a batch that cannot be decoded, a topic that refuses
//! dead letters.

use std::time::Duration;

use serde_json::json;

use super::kafka::{borrowed, executed_in_order, kafka_world, records};
use harness::kafka::{KafkaBroker, ReadRecord, WrittenRecord};
use harness::metrics::Metrics;
use harness::metrics::peak_memory;
use harness::{Answer, Hold, Store, TEST_TIMEOUT, eventually, on_both_stores};

/// The number of the request that commits offsets.
const COMMIT: i16 = 8;

on_both_stores!(a_broker_that_is_killed_during_attempts_and_comes_back_executes_no_record_twice);
async fn a_broker_that_is_killed_during_attempts_and_comes_back_executes_no_record_twice(store: Store) {
    let Some(kafka) = kafka_world(KafkaBroker::durable().await, store, "", "prefetch = 8").await else { return };
    let hold = Hold::new();
    kafka.world.upstream.answer_all(Answer::status(201).hold(&hold));
    let records = records(200);
    kafka.write(&borrowed(&records)).await;
    // Killed while attempts run, which end while it is away, and again while their offsets are committed.
    for kill in 0..3 {
        kafka.world.upstream.wait_for_executed(1 + 30 * kill).await;
        kafka.broker.ask(json!(["kill"])).await;
        if kill == 0 {
            kafka.world.proxy.wait_for_log("records cannot be read at the moment").await;
            eventually(TEST_TIMEOUT, async || (kafka.state().await["connected"] == false).then_some(())).await;
            hold.release();
            kafka.world.upstream.answer_all(Answer::status(201).takes(Duration::from_millis(20)));
        }
        kafka.broker.ask(json!(["start"])).await;
    }
    kafka.broker.has_committed_within(&kafka.topic, 200, 3 * TEST_TIMEOUT).await;
    eventually(TEST_TIMEOUT, async || (kafka.state().await["connected"] == true).then_some(())).await;
    executed_in_order(&kafka.world.upstream, &records);
    kafka.ends_with(200).await;
}

#[tokio::test]
async fn a_batch_that_cannot_be_decoded_stops_its_partition_alone_and_is_not_skipped() {
    let Some(kafka) = kafka_world(KafkaBroker::faulty().await, Store::sqlite(), "", "").await else { return };
    kafka.broker.ask(json!(["garble", "poison"])).await;
    kafka.write_to(0, &[(Some("a"), "poison", &[])]).await;
    kafka.write_to(0, &[(Some("b"), "behind it", &[])]).await;
    let line = kafka.world.proxy.wait_for_log("a partition stands still").await;
    assert_eq!(
        (line["level"].as_str(), line["partition"].as_str()),
        (Some("ERROR"), Some(&*format!("{}/0", kafka.topic)))
    );
    let cause = line["cause"].as_str().unwrap();
    assert!(cause.contains("offset 0") && cause.contains("CrcMismatch"), "{cause}");
    // The other partitions go on.
    let others: Vec<WrittenRecord<'_>> = vec![(None, "{}", &[]); 50];
    kafka.write_to(1, &others).await;
    kafka.broker.has_committed(&kafka.topic, 50).await;
    assert_eq!(kafka.world.upstream.calls(), 50, "none of the partition is executed");
    eventually(TEST_TIMEOUT, async || (kafka.state().await["stuck_partitions"] == 1).then_some(())).await;
    assert_eq!(kafka.state().await["connected"], true);
    let metrics = Metrics::of(&kafka.world.proxy).await;
    assert_eq!(metrics.get("oncegate_consumer_stuck_partitions{route=\"pay\"}"), 1.0);
    // It is read again by itself: it may have been garbled on its way.
    kafka.broker.ask(json!(["garble", null])).await;
    kafka.broker.has_committed(&kafka.topic, 52).await;
    let last: Vec<_> = kafka.world.upstream.executed()[50..].iter().map(|call| call.body.clone()).collect();
    assert_eq!(last, [b"poison".to_vec(), b"behind it".to_vec()]);
    eventually(TEST_TIMEOUT, async || (kafka.state().await["stuck_partitions"] == 0).then_some(())).await;
    kafka.ends_with(52).await;
}

#[tokio::test]
async fn what_is_too_large_becomes_a_dead_letter_and_takes_little_memory() {
    let Some(kafka) = kafka_world(KafkaBroker::mock().await, Store::sqlite(), "", "").await else { return };
    let before = peak_memory(&kafka.world.proxy);
    // The batches are too large to be unpacked, and then the records are too large for the route.
    for (offset, size) in [(0, 100_000_000), (1, 8_000_000)] {
        for (partition, codec) in ["zstd", "gzip", "lz4", "snappy"].iter().enumerate() {
            kafka.broker.ask(json!(["produce_zeros", kafka.topic, codec, size, partition])).await;
        }
        kafka.broker.has_committed(&kafka.topic, 4 * (offset + 1)).await;
    }
    for partition in 0..4 {
        kafka.write_to(partition, &[(Some("a"), "behind it", &[])]).await;
    }
    kafka.broker.has_committed(&kafka.topic, 12).await;
    let bodies: Vec<_> = kafka.world.upstream.executed().into_iter().map(|call| call.body).collect();
    assert_eq!(bodies, [b"behind it"; 4]);
    let dead = kafka.broker.read(&format!("{}.dead", kafka.topic), 8).await;
    let header = |letter: &ReadRecord, name: &str| letter.header(&format!("x-oncegate-{name}")).unwrap().to_owned();
    let mut places: Vec<_> =
        dead.iter().map(|letter| ["partition", "offset"].map(|name| header(letter, name))).collect();
    places.sort_unstable();
    let expected =
        (0..4).flat_map(|partition| (0..2).map(move |offset| [partition, offset].map(|part| part.to_string())));
    assert_eq!(places, expected.collect::<Vec<_>>());
    assert!(dead.iter().all(|letter| header(letter, "reason") == "record-too-large" && letter.value.is_empty()));
    let grown = (peak_memory(&kafka.world.proxy) - before) >> 20;
    println!("the peak of memory has grown by {grown} MiB");
    assert!(grown < 96, "{grown} MiB");
    kafka.ends_with(12).await;
}

#[tokio::test]
async fn a_dead_letter_that_its_topic_refuses_holds_back_the_offset_until_it_is_written_once() {
    // KAFKA_STORAGE_ERROR is what a full disk becomes, and POLICY_VIOLATION is refused at once.
    for code in [56, 44] {
        let Some(kafka) = kafka_world(KafkaBroker::faulty().await, Store::sqlite(), "", "key = \"header:x-id\"").await
        else {
            return;
        };
        let dead = format!("{}.dead", kafka.topic);
        kafka.broker.ask(json!(["refuse", dead, code])).await;
        kafka.write_to(0, &[(Some("a"), "without a key", &[])]).await;
        kafka.write_to(0, &[(Some("b"), "{}", &[("x-id", "behind-it")])]).await;
        let refusals = async || (kafka.broker.ask(json!(["count_refusals"])).await.as_u64() >= Some(3)).then_some(());
        eventually(TEST_TIMEOUT, refusals).await;
        kafka.world.upstream.wait_for_executed(1).await;
        assert!(kafka.broker.committed(&kafka.topic).await.iter().all(|offset| *offset <= 0), "{code}");
        kafka.broker.ask(json!(["refuse", null, 0])).await;
        kafka.broker.has_committed(&kafka.topic, 2).await;
        assert_eq!(kafka.broker.read(&dead, 1).await[0].value, "without a key");
        kafka.ends_with(2).await;
        let left = kafka.broker.ask(json!(["count", dead])).await;
        assert_eq!((left.as_u64(), kafka.world.upstream.calls()), (Some(1), 1), "{code}");
    }
}

on_both_stores!(records_whose_outcome_is_stored_and_whose_offset_is_not_committed_are_replayed_after_a_kill);
async fn records_whose_outcome_is_stored_and_whose_offset_is_not_committed_are_replayed_after_a_kill(store: Store) {
    let Some(kafka) = kafka_world(KafkaBroker::faulty().await, store, "", "").await else { return };
    kafka.broker.ask(json!(["drop", COMMIT])).await;
    let records = records(40);
    kafka.write(&borrowed(&records)).await;
    kafka.world.upstream.wait_for_executed(40).await;
    kafka.world.proxy.wait_for_logs("a record is settled", 40).await;
    kafka.world.proxy.kill9().await;
    kafka.broker.ask(json!(["drop", null])).await;
    assert!(kafka.broker.committed(&kafka.topic).await.iter().all(|offset| *offset <= 0));
    let again = kafka.world.setup.start().await;
    kafka.broker.has_committed(&kafka.topic, 40).await;
    executed_in_order(&kafka.world.upstream, &records);
    assert_eq!(again.stop().await, Some(0));
}
