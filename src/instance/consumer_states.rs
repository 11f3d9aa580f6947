//! The states of this process's consumers, for the page, for `/readyz` and for scrapes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;

use oncegate_config::{Consumer, MessageSource};
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
    view: Mutex<ConsumerView>,
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
    /// The reason why not, if there was one. It may name hosts, and needs a token.
    #[serde(skip)]
    pub cause: Option<String>,
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
        let mut view = self.view.lock();
        (view.connected, view.cause) = (true, None);
    }

    /// Notes that none are, and why. The number of rebalances stays.
    pub fn set_disconnected(&self, cause: String) {
        let mut view = self.view.lock();
        let rebalances = view.records.map_or(0, |records| records.rebalances);
        (view.connected, view.cause) = (false, Some(cause));
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
        ConsumerView { queue: self.queue.clone(), route: self.route.to_string(), records, ..view }
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
