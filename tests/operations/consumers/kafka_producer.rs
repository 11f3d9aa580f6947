//! The producer of dead letters, without a consumer.

use bytes::Bytes;
use oncegate_brokers::kafka::{KafkaProducer, NewRecord};
use oncegate_brokers::publish_error::PublishError;
use oncegate_settings::KafkaCluster;
use serde_json::json;

use harness::kafka::KafkaBroker;

fn cluster(broker: &KafkaBroker) -> KafkaCluster {
    let brokers = broker.addresses().into_iter().map(Into::into).collect();
    KafkaCluster { brokers, login: None, tls: None }
}

fn record(topic: &str, key: &str, value: impl Into<Bytes>) -> NewRecord {
    NewRecord { topic: topic.into(), key: Some(key.to_owned().into()), value: value.into(), headers: Vec::new() }
}

#[tokio::test]
async fn records_in_flight_at_once_keep_the_order_of_their_key_and_one_too_large_fails_alone() {
    for broker in [KafkaBroker::tansu().await, KafkaBroker::mock().await] {
        let Some(broker) = broker else { return };
        let topic = broker.topic(3).await;
        let producer = KafkaProducer::connect(&cluster(&broker)).await.expect("it connects");
        let records: Vec<_> = (0..200).map(|number| (format!("k-{}", number % 7), number.to_string())).collect();
        let written = records.iter().map(|(key, value)| producer.produce(record(&topic, key, value.clone())));
        // Larger than the memory of the client, which is larger than any broker's limit.
        let too_large = producer.produce(record(&topic, "k-0", vec![0; 40 * 1024 * 1024]));
        let (written, too_large) = tokio::join!(futures_util::future::join_all(written), too_large);
        assert!(written.iter().all(Result::is_ok), "{written:?}");
        assert!(matches!(too_large, Err(PublishError::Refused(_))), "{too_large:?}");
        let read = broker.read(&topic, records.len()).await;
        for key in 0..7 {
            let key = format!("k-{key}");
            let of_key: Vec<_> =
                read.iter().filter(|one| one.key.as_ref() == Some(&key)).map(|one| &one.value).collect();
            let expected: Vec<_> = records.iter().filter(|(other, _)| *other == key).map(|(_, value)| value).collect();
            assert_eq!(of_key, expected, "{key}");
        }
        producer.close().await;
        let after = producer.produce(record(&topic, "k-0", "after")).await;
        assert_eq!(after, Ok(()), "a closed producer opens a client again");
        producer.close().await;
    }
}

#[tokio::test]
async fn a_record_is_written_once_although_its_broker_is_killed_meanwhile() {
    let Some(broker) = KafkaBroker::durable().await else { return };
    let topic = broker.topic(1).await;
    let producer = KafkaProducer::connect(&cluster(&broker)).await.expect("it connects");
    assert_eq!(producer.produce(record(&topic, "k", "0")).await, Ok(()));
    broker.ask(json!(["kill"])).await;
    let written =
        futures_util::future::join_all((1..50).map(|number| producer.produce(record(&topic, "k", number.to_string()))));
    let restart = async {
        broker.ask(json!(["start"])).await;
    };
    let (written, ()) = tokio::join!(written, restart);
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    let values: Vec<_> = broker.read(&topic, 50).await.into_iter().map(|read| read.value).collect();
    assert_eq!(values, (0..50).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(broker.ask(json!(["count", topic])).await, 50);
    broker.ask(json!(["kill"])).await;
    let lost = producer.produce(record(&topic, "k", "lost")).await;
    assert!(matches!(lost, Err(PublishError::Away(_))), "{lost:?}");
}
