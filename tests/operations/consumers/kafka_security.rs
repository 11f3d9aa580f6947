//! Logins at Kafka's brokers, and TLS towards them.

use serde_json::json;

use super::route;
use harness::kafka::{KafkaBroker, consumer};
use harness::postgres::restartable_port;
use harness::tls::{Authority, FrontMode, TlsFront};
use harness::{Store, World};

/// Executes a record of this broker, with these keys of `kafka`.
async fn executes(broker: &KafkaBroker, lines: &str) {
    let topic = broker.topic(1).await;
    let lines = consumer(broker, &topic, lines);
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("")).consumer(&lines)).await;
    broker.write(&topic, &[(Some("k"), "{}", &[])]).await;
    broker.has_committed(&topic, 1).await;
    assert_eq!((world.proxy.stop().await, world.upstream.calls()), (Some(0), 1), "{lines}");
}

/// The log's line about a consumer that is refused.
async fn refused(broker: &KafkaBroker, lines: &str) -> String {
    let lines = consumer(broker, "none", lines);
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("")).consumer(&lines)).await;
    let line = world.proxy.wait_for_log("not consumed at the moment").await;
    assert_eq!(world.pay("by-http").send().await.oncegate_status(), Some("executed"), "it serves meanwhile");
    assert!(!world.proxy.output().contains("hunter2") && !world.proxy.output().contains("wrong"));
    line["cause"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn each_mechanism_logs_in_and_a_wrong_password_is_refused() {
    let Some(broker) = KafkaBroker::sasl().await else { return };
    for mechanism in ["plain", "scram-sha-256", "scram-sha-512"] {
        let login = format!("kafka.sasl = \"{mechanism}\"\nkafka.user = \"oncegate\"");
        executes(&broker, &format!("{login}\nkafka.password = \"hunter2\"")).await;
        let cause = refused(&broker, &format!("{login}\nkafka.password = \"wrong\"")).await;
        assert!(cause.to_lowercase().contains("auth"), "{mechanism}: {cause}");
    }
}

#[tokio::test]
async fn a_broker_with_tls_is_verified_and_gets_the_certificate() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let port = restartable_port();
    let server = authority.issue(&["localhost"]).server_requiring(&clients, "http/1.1", &rustls::version::TLS13);
    let front = TlsFront::before(([127, 0, 0, 1], port).into(), FrontMode::Tls(server)).await;
    let Some(broker) = KafkaBroker::tansu_behind(port, front.address.port()).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = clients.issue_to_client("oncegate").write(folder.path());
    let settings = json!({
        "security.protocol": "ssl",
        "ssl.ca.location": authority.file(),
        "ssl.certificate.location": certificate,
        "ssl.key.location": key,
    });
    broker.ask(json!(["settings", settings])).await;
    let identity = format!("kafka.certificate = {certificate:?}\nkafka.key = {key:?}");
    let ca = |authority: &Authority| format!("kafka.tls = true\nkafka.ca = {:?}", authority.file());
    executes(&broker, &format!("{}\n{identity}", ca(&authority))).await;
    for lines in [ca(&authority), format!("{}\n{identity}", ca(&clients)), "kafka.tls = true".to_owned()] {
        let cause = refused(&broker, &lines).await;
        assert!(!cause.is_empty(), "{lines}");
    }
}
