//! Two members of a group before a slow service, with forced rebalances and kills: each record is executed once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::kafka::executed_in_order;
use super::route;
use harness::kafka::{KafkaBroker, consumer, group};
use harness::{Answer, Hold, Proxy, Store, Upstream, World};

/// The default numbers of rebalances, of kills and of records; `ONCEGATE_KAFKA_REBALANCES=20`,
/// `ONCEGATE_KAFKA_KILLS=10` and `ONCEGATE_KAFKA_RECORDS=3000` are for a long run.
const REBALANCES: usize = 3;
const KILLS: usize = 2;
const RECORDS: usize = 400;

/// The time of one attempt.
const ATTEMPT: Duration = Duration::from_millis(50);

fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().expect(name))
}

/// The records by key, each with its number.
fn records(count: usize) -> Vec<(String, String)> {
    (0..count).map(|number| (format!("k-{}", number % 37), number.to_string())).collect()
}

#[tokio::test]
async fn rebalances_and_kills_execute_no_record_twice_and_lose_none() {
    let Some(broker) = KafkaBroker::tansu().await else { return };
    let (rebalances, kills) = (number("ONCEGATE_KAFKA_REBALANCES", REBALANCES), number("ONCEGATE_KAFKA_KILLS", KILLS));
    let records = records(number("ONCEGATE_KAFKA_RECORDS", RECORDS));
    let (topic, store) = (broker.topic(6).await, Store::postgres().await);
    let upstream = Arc::new(Upstream::start().await);
    upstream.answer_all(Answer::status(201).takes(ATTEMPT));
    let lines = super::soak::reconciled_soon(Arc::clone(&upstream)).await;
    let setup = Proxy::on(&store.url()).upstream(upstream.address).short_leases().top("drain_timeout = \"5s\"");
    let setup = setup.route(&route(&lines)).consumer(&consumer(&broker, &topic, "prefetch = 8"));
    let mut members = vec![setup.start().await, setup.start().await];
    for member in &members {
        member.wait_for_log("partitions are assigned").await;
    }
    let written: Vec<_> = records.iter().map(|(key, value)| (Some(&**key), &**value, &[][..])).collect();
    broker.write(&topic, &written).await;
    let (mut joined, mut killed) = (0, 0);
    while joined < rebalances || killed < kills {
        // Between two of them the members execute something.
        let before = upstream.calls();
        upstream.wait_for_executed((before + 5).min(records.len())).await;
        if joined < rebalances {
            // A third member, of another implementation, takes partitions and gives them back.
            broker.ask(json!(["join", group(&topic), topic])).await;
            no_offset_is_committed_beyond_an_unsettled_record(&broker, &topic, &upstream).await;
            broker.ask(json!(["leave"])).await;
            joined += 1;
        }
        if killed < kills {
            let member = &mut members[killed % 2];
            member.kill9().await;
            *member = setup.start().await;
            killed += 1;
        }
    }
    broker
        .has_committed_within(&topic, records.len() as i64, Duration::from_secs(60 + records.len() as u64 / 20))
        .await;
    for member in &members {
        assert_eq!(member.stop().await, Some(0));
    }
    let mut executions: BTreeMap<String, usize> = BTreeMap::new();
    for call in upstream.executed() {
        *executions.entry(call.field("idempotency-key").unwrap().to_owned()).or_default() += 1;
    }
    let twice: Vec<_> = executions.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "executed more than once: {twice:?}");
    assert_eq!(executions.len(), records.len(), "some were lost");
    executed_in_order(&upstream, &records);
    println!("{} records, {joined} rebalances, {killed} kills", records.len());
}

#[tokio::test]
async fn a_partition_is_given_up_once_its_attempt_is_settled_or_the_drain_is_over() {
    for (drain, is_settled_before) in [("30s", true), ("1s", false)] {
        let Some(broker) = KafkaBroker::tansu().await else { return };
        let topic = broker.topic(2).await;
        let lines = consumer(&broker, &topic, "");
        let world = World::with(Store::sqlite(), |setup| {
            setup.top(&format!("drain_timeout = {drain:?}")).route(&route("")).consumer(&lines)
        })
        .await;
        let hold = Hold::new();
        world.upstream.answer_all(Answer::status(201).hold(&hold));
        for partition in [0, 1] {
            broker.write_to(&topic, &[(Some("k"), "{}", &[])], partition).await;
        }
        world.upstream.wait_for_executed(2).await;
        // Another member gets one of both partitions. The second client answers nothing else until then.
        let joining = broker.ask(json!(["join", group(&topic), topic]));
        let release = async {
            world.proxy.wait_for_log("partitions are taken by the group").await;
            if is_settled_before {
                hold.release();
            } else {
                world.proxy.wait_for_log("although attempts of their records still run").await;
            }
        };
        assert_eq!(tokio::join!(joining, release).0, 1);
        let line = world.proxy.wait_for_log("partitions are taken by the group").await;
        let taken: usize = line["partitions"].as_str().unwrap().rsplit('/').next().unwrap().parse().unwrap();
        assert_eq!(broker.committed(&topic).await[taken].max(0), i64::from(is_settled_before), "{drain}");
        hold.release();
        broker.ask(json!(["leave"])).await;
        // What was not committed is read again, and executed once.
        broker.has_committed(&topic, 2).await;
        assert_eq!((world.proxy.stop().await, world.upstream.calls()), (Some(0), 2), "{drain}");
    }
}

/// Checks that the service has ended the attempt of each record below the committed offsets.
async fn no_offset_is_committed_beyond_an_unsettled_record(broker: &KafkaBroker, topic: &str, upstream: &Upstream) {
    let committed = broker.committed(topic).await;
    let now = Instant::now();
    let ended: Vec<_> = upstream.executed().into_iter().filter(|call| call.at + ATTEMPT <= now).collect();
    for (partition, offset) in committed.into_iter().enumerate() {
        for offset in 0..offset.max(0) {
            let id = format!("{topic}/{partition}/{offset}/");
            let is_of = |key: Option<&str>| key.is_some_and(|key| key.starts_with(&id));
            assert!(ended.iter().any(|call| is_of(call.field("idempotency-key"))), "{id} is committed and not settled");
        }
    }
}
