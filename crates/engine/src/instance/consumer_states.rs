//! The states of this process's consumers, for the page, for `/readyz` and for scrapes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use parking_lot::Mutex;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;

use oncegate_settings::{Consumer, MessageSource};
use oncegate_telemetry::metrics::Collector;

/// The consumers that run now.
#[derive(Debug, Default)]
pub struct ConsumerStates(Mutex<Vec<Weak<ConsumerState>>>);

/// The state of one consumer, which keeps it current.
#[derive(Debug)]
pub struct ConsumerState {
    queue: String,
    route: Arc<str>,
    is_kafka: bool,
    dead_letters: AtomicU64,
    /// Counts the messages of the session that runs: its own table is the only one.
    messages: Mutex<Option<CountMessages>>,
    view: Mutex<ConsumerView>,
}

/// Counts the messages of a session; `None` once it is over.
struct CountMessages(Box<dyn Fn() -> Option<MessageCounts> + Send + Sync>);

impl fmt::Debug for CountMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CountMessages")
    }
}

/// The unacknowledged messages of a queue's consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MessageCounts {
    /// Those that are tried, or wait for another try.
    pub in_flight: usize,
    /// Those of unknown outcome, which others pass.
    pub set_aside: usize,
}

/// The state of one consumer at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConsumerView {
    /// The queue, or the topics.
    pub queue: String,
    /// The route.
    pub route: String,
    /// Whether messages are delivered.
    pub connected: bool,
    /// Since when they are, or are not; `None` before the first connection.
    #[serde(skip)]
    pub since: Option<SystemTime>,
    /// Why the last connection failed, and when, if one did. It may name hosts, and needs a token.
    #[serde(skip)]
    pub failure: Option<(SystemTime, String)>,
    /// The messages that this process has made dead letters, or rejected.
    pub dead_letters: u64,
    /// Of RabbitMQ: the messages that are not acknowledged.
    #[serde(flatten)]
    pub messages: Option<MessageCounts>,
    /// Of Kafka: what its records do.
    #[serde(flatten)]
    pub records: Option<RecordCounts>,
}

/// The records of the partitions that a consumer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordCounts {
    /// The partitions.
    pub partitions: usize,
    /// Those of them that stand still, because their next batch cannot be decoded.
    pub stuck_partitions: usize,
    /// The records that are not settled: read and unread.
    pub lag: u64,
    /// The time for which the oldest record that was read is not settled.
    pub oldest_seconds: u64,
    /// The records of unknown outcome, and those that wait behind them.
    pub parked: usize,
    /// The number of times that the group has given it partitions or taken some.
    pub rebalances: u64,
}

impl ConsumerStates {
    /// Adds a consumer, until its state is dropped.
    pub fn add(&self, consumer: &Consumer) -> Arc<ConsumerState> {
        let state = Arc::new(ConsumerState {
            queue: consumer.source.to_string(),
            route: Arc::clone(&consumer.route),
            is_kafka: matches!(consumer.source, MessageSource::Kafka(_)),
            dead_letters: AtomicU64::new(0),
            messages: Mutex::default(),
            view: Mutex::default(),
        });
        let mut states = self.0.lock();
        states.retain(|state| state.strong_count() > 0);
        states.push(Arc::downgrade(&state));
        state
    }

    /// All states, in the order in which the consumers were started.
    pub fn list(&self) -> Vec<ConsumerView> {
        let states = self.0.lock();
        states.iter().filter_map(Weak::upgrade).map(|state| state.view()).collect()
    }
}

impl ConsumerState {
    /// Notes that messages are delivered.
    pub fn set_connected(&self) {
        self.view.lock().set_connected(true, SystemTime::now());
    }

    /// Has the messages of a session counted by `count`, which returns `None` once the session is over.
    pub fn count_messages_by(&self, count: impl Fn() -> Option<MessageCounts> + Send + Sync + 'static) {
        *self.messages.lock() = Some(CountMessages(Box::new(count)));
    }

    /// Counts a dead letter.
    pub fn count_dead_letter(&self) {
        self.dead_letters.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that none are, and why. The number of rebalances stays.
    pub fn set_disconnected(&self, cause: String) {
        let mut view = self.view.lock();
        let rebalances = view.records.map_or(0, |records| records.rebalances);
        let now = SystemTime::now();
        view.set_connected(false, now);
        view.failure = Some((now, cause));
        view.records = self.is_kafka.then(|| RecordCounts { rebalances, ..RecordCounts::default() });
    }

    /// Counts a rebalance.
    pub fn count_rebalance(&self) {
        self.view.lock().records.get_or_insert_default().rebalances += 1;
    }

    /// Sets what the records do. The number of rebalances stays.
    pub fn set_records(&self, counts: RecordCounts) {
        let mut view = self.view.lock();
        let rebalances = view.records.map_or(0, |records| records.rebalances);
        view.records = Some(RecordCounts { rebalances, ..counts });
    }

    fn view(&self) -> ConsumerView {
        let view = self.view.lock().clone();
        let records = view.records.or(self.is_kafka.then(RecordCounts::default));
        let messages = self.messages.lock().as_ref().and_then(|count| count.0());
        let messages = messages.or((!self.is_kafka).then(MessageCounts::default));
        let dead_letters = self.dead_letters.load(Ordering::Relaxed);
        ConsumerView {
            queue: self.queue.clone(),
            route: self.route.to_string(),
            records,
            messages,
            dead_letters,
            ..view
        }
    }
}

impl ConsumerView {
    fn set_connected(&mut self, connected: bool, now: SystemTime) {
        if self.connected != connected || self.since.is_none() {
            self.since = Some(now);
        }
        self.connected = connected;
    }
}

/// The metrics of the consumers: of each route, the sum or the maximum over its consumers.
#[derive(Debug)]
pub struct ConsumerCollector(pub Arc<ConsumerStates>);

impl Collector for ConsumerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (mut connected, mut records) = (BTreeMap::<String, bool>::new(), BTreeMap::<String, RecordCounts>::new());
        for view in self.0.list() {
            *connected.entry(view.route.clone()).or_insert(true) &= view.connected;
            if let Some(counts) = view.records {
                let all = records.entry(view.route).or_default();
                *all = RecordCounts {
                    partitions: all.partitions + counts.partitions,
                    stuck_partitions: all.stuck_partitions + counts.stuck_partitions,
                    lag: all.lag + counts.lag,
                    oldest_seconds: all.oldest_seconds.max(counts.oldest_seconds),
                    parked: all.parked + counts.parked,
                    rebalances: all.rebalances + counts.rebalances,
                };
            }
        }
        let mut write = |name: &str, help: &str, values: Vec<(&str, u64)>, is_counter: bool| -> fmt::Result {
            let name = format!("oncegate_consumer_{name}");
            let kind =
                if is_counter { ConstCounter::new(0u64).metric_type() } else { ConstGauge::new(0u64).metric_type() };
            let mut family = encoder.encode_descriptor(&name, help, None, kind)?;
            for (route, value) in values {
                let label = [("route", route)];
                let encoder = family.encode_family(&label)?;
                if is_counter {
                    ConstCounter::new(value).encode(encoder)?
                } else {
                    ConstGauge::new(value).encode(encoder)?
                }
            }
            Ok(())
        };
        type Value = fn(&RecordCounts) -> u64;
        let is_connected = connected.iter().map(|(route, value)| (&**route, u64::from(*value))).collect();
        write("connected", "1 while the consumers of a route are connected to their brokers.", is_connected, false)?;
        for (name, help, value, is_counter) in [
            (
                "lag",
                "Records of Kafka on this instance's partitions that are not settled.",
                (|c| c.lag) as Value,
                false,
            ),
            (
                "oldest_seconds",
                "Time for which the oldest record that was read is not settled.",
                |c| c.oldest_seconds,
                false,
            ),
            ("parked", "Records of unknown outcome, and those behind them.", |c| c.parked as u64, false),
            ("partitions", "Partitions that this instance has.", |c| c.partitions as u64, false),
            (
                "stuck_partitions",
                "Partitions that stand still: a batch cannot be decoded.",
                |c| c.stuck_partitions as u64,
                false,
            ),
            ("rebalances", "Rebalances that gave this instance partitions or took some.", |c| c.rebalances, true),
        ] {
            write(name, help, records.iter().map(|(route, counts)| (&**route, value(counts))).collect(), is_counter)?;
        }
        Ok(())
    }
}
