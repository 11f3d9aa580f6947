//! The states of this process's publishers of events, for the page, for `/readyz` and for scrapes.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use parking_lot::Mutex;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;

use oncegate_settings::EventSink;
use oncegate_store::EventCounts;
use oncegate_telemetry::metrics::Collector;

/// The publishers that run now.
#[derive(Debug, Default)]
pub struct EventStates(Mutex<Vec<Weak<EventSinkState>>>);

/// The state of one publisher, which keeps it current.
#[derive(Debug)]
pub struct EventSinkState(Mutex<EventSinkView>);

/// The state of one publisher at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EventSinkView {
    /// The sink's name.
    pub sink: String,
    /// The place that events go to. It names hosts, and needs a token.
    #[serde(skip)]
    pub target: String,
    /// Whether the last try has found the place.
    pub reachable: bool,
    /// Since when it has, or has not.
    #[serde(skip)]
    pub since: SystemTime,
    /// Why the last try that has not found it failed, and when, if one did. It may name hosts, and needs a token.
    #[serde(skip)]
    pub failure: Option<(SystemTime, String)>,
    /// Events of this instance that were published.
    pub published: u64,
    /// Events of all instances that wait, up to 10,000.
    pub waiting: u64,
    /// Those that are dead, up to 10,000.
    pub dead: u64,
    /// The time of the oldest that waits.
    #[serde(skip)]
    pub oldest_at: Option<SystemTime>,
    /// The time for which it waits.
    pub oldest_seconds: u64,
    /// Why the last try of one of those that wait has failed.
    #[serde(skip)]
    pub waiting_note: Option<String>,
    /// Why the newest dead one is dead.
    #[serde(skip)]
    pub note: Option<String>,
}

impl EventStates {
    /// Adds a publisher in place of an earlier one of its sink, until its state is dropped.
    pub fn add(&self, sink: &EventSink) -> Arc<EventSinkState> {
        let view = EventSinkView {
            sink: sink.name.to_string(),
            target: sink.target.to_string(),
            reachable: true,
            since: SystemTime::now(),
            failure: None,
            published: 0,
            waiting: 0,
            dead: 0,
            oldest_at: None,
            oldest_seconds: 0,
            waiting_note: None,
            note: None,
        };
        let state = Arc::new(EventSinkState(Mutex::new(view)));
        let mut states = self.0.lock();
        // An earlier publisher of the sink may be ending its last batch: a scrape has one series for each sink.
        states.retain(|state| state.upgrade().is_some_and(|state| *state.0.lock().sink != *sink.name));
        states.push(Arc::downgrade(&state));
        state
    }

    /// All states, in the order in which the publishers were started.
    pub fn list(&self) -> Vec<EventSinkView> {
        self.0.lock().iter().filter_map(Weak::upgrade).map(|state| state.view()).collect()
    }
}

impl EventSinkState {
    fn view(&self) -> EventSinkView {
        let view = self.0.lock().clone();
        let waits = view.oldest_at.and_then(|at| SystemTime::now().duration_since(at).ok());
        EventSinkView { oldest_seconds: waits.unwrap_or_default().as_secs(), ..view }
    }

    /// Notes whether the place was found, and why not.
    pub fn set_failure(&self, cause: Option<String>) {
        let mut view = self.0.lock();
        let now = SystemTime::now();
        if view.reachable != cause.is_none() {
            view.since = now;
        }
        view.reachable = cause.is_none();
        view.failure = cause.map(|cause| (now, cause)).or(view.failure.take());
    }

    /// Adds to the published events.
    pub fn add_published(&self, events: usize) {
        self.0.lock().published += events as u64;
    }

    /// Sets the events that are not published.
    pub fn set_counts(&self, counts: EventCounts) {
        let mut view = self.0.lock();
        (view.waiting, view.dead, view.note) = (counts.waiting, counts.dead, counts.note);
        (view.oldest_at, view.waiting_note) = (counts.oldest_at, counts.waiting_note);
    }
}

/// The metrics of the publishers, by sink.
#[derive(Debug)]
pub struct EventCollector(pub Arc<EventStates>);

impl Collector for EventCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        type Value = fn(&EventSinkView) -> u64;
        let views = self.0.list();
        let published = "Events that this instance has published.";
        let kind = ConstCounter::new(0u64).metric_type();
        let mut family = encoder.encode_descriptor("oncegate_events_published", published, None, kind)?;
        for view in &views {
            ConstCounter::new(view.published).encode(family.encode_family(&[("sink", &*view.sink)])?)?;
        }
        for (name, help, value) in [
            (
                "reachable",
                "1 while the last try has found the place that events go to.",
                (|v| u64::from(v.reachable)) as Value,
            ),
            ("waiting", "Events of all instances that wait, up to 10,000.", |v| v.waiting),
            ("dead", "Events that were given up and need an operator, up to 10,000.", |v| v.dead),
            ("oldest_seconds", "Time for which the oldest event waits.", |v| v.oldest_seconds),
        ] {
            let kind = ConstGauge::new(0u64).metric_type();
            let name = format!("oncegate_events_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, kind)?;
            for view in &views {
                ConstGauge::new(value(view)).encode(family.encode_family(&[("sink", &*view.sink)])?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oncegate_settings::{EventKey, EventTarget, EventType, UpstreamTarget};

    use super::*;

    #[test]
    fn a_scrape_has_one_series_for_each_sink_while_a_publisher_takes_the_place_of_another() {
        let sink = |name: &str| EventSink {
            service: "pay".into(),
            name: name.into(),
            routes: vec!["pay".into()],
            types: vec![EventType::Completed],
            key: EventKey::Plain,
            body: false,
            give_up_after: Duration::from_secs(1),
            target: EventTarget::Http {
                upstream: Arc::new(UpstreamTarget::Http("127.0.0.1:9".parse().unwrap())),
                target: "/".parse().unwrap(),
                secret: None,
            },
        };
        let states = EventStates::default();
        let (before, other) = (states.add(&sink("bus")), states.add(&sink("audit")));
        before.add_published(7);
        let after = states.add(&sink("bus"));
        // The earlier one ends its last batch.
        before.add_published(1);
        let listed = || states.list().into_iter().map(|view| (view.sink, view.published)).collect::<Vec<_>>();
        assert_eq!(listed(), [("audit".to_owned(), 0), ("bus".to_owned(), 0)]);
        drop((before, other));
        assert_eq!(listed(), [("bus".to_owned(), 0)]);
        drop(after);
        assert!(listed().is_empty());
    }
}
