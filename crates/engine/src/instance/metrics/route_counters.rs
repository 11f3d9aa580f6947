//! Counters by route and a second label, which has no closed list of values.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Display};
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use schemars::JsonSchema;
use serde::Serialize;

use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_telemetry::metrics::{Counter, ServiceRoute};

/// A counter for each pair of a route and a label that was asked for.
#[derive(Clone, Debug)]
pub struct RouteCountersBy<L>(Arc<RwLock<CountersByPair<L>>>);

type CountersByPair<L> = BTreeMap<(ServiceRoute, L), Counter>;

/// The number of keys that became unknown, by route and cause without a number of bytes. A cause may have the service's
/// status; there are as many series as statuses that services have sent.
pub type UnknownKeys = RouteCountersBy<UnknownCause>;

/// Responses with another value of a part of a route's scope than their request had, by route and part. Both are names
/// of the configuration.
pub type ScopeRenewals = RouteCountersBy<Box<str>>;

/// A label of [`RouteCountersBy`].
pub trait OpenLabel: Display + Debug + Ord + Send + Sync + 'static {
    /// Its name in a scrape.
    const NAME: &'static str;
}

impl OpenLabel for UnknownCause {
    const NAME: &'static str = "cause";
}

impl OpenLabel for Box<str> {
    const NAME: &'static str = "part";
}

/// A part of a route's scope that the service has renewed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RenewedPart {
    /// The route.
    pub route: Arc<str>,
    /// The part, as `scope` has it.
    pub part: Box<str>,
    /// The number of responses since the start.
    pub responses: u64,
}

impl<L> Default for RouteCountersBy<L> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<L: OpenLabel> RouteCountersBy<L> {
    /// Counts one.
    pub fn count(&self, (service, route): (&str, &str), label: L) {
        self.counter((service, route), label).inc();
    }

    fn counter(&self, (service, route): (&str, &str), label: L) -> Counter {
        self.0.write().entry(((service.into(), route.into()), label)).or_default().clone()
    }
}

impl ScopeRenewals {
    /// The counter of a part, for the code that counts to hold.
    pub fn of(&self, service_route: (&str, &str), part: &str) -> Counter {
        self.counter(service_route, part.into())
    }

    /// The parts that were renewed.
    pub fn list(&self) -> Vec<RenewedPart> {
        let parts = self.0.read();
        let renewed = |(((_, route), part), counter): (&(ServiceRoute, Box<str>), &Counter)| RenewedPart {
            route: Arc::clone(route),
            part: part.clone(),
            responses: counter.get(),
        };
        parts.iter().map(renewed).filter(|part| part.responses > 0).collect()
    }
}

impl<L: OpenLabel> EncodeMetric for RouteCountersBy<L> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (((service, route), label), counter) in self.0.read().iter() {
            let labels = [("service", &**service), ("route", &**route), (L::NAME, &*label.to_string())];
            encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&counter.get(), None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}
