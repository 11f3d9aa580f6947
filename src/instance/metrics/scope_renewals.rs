//! Counts the parts of scopes that services have renewed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use serde::Serialize;

use crate::telemetry::metrics::Counter;

/// Responses with another value of a part of a route's scope than their request had, by route and part. Both are names of the
/// configuration.
#[derive(Clone, Debug, Default)]
pub struct ScopeRenewals(Arc<RwLock<CountersByPart>>);

type CountersByPart = BTreeMap<(Arc<str>, Box<str>), Counter>;

/// A part of a route's scope that the service has renewed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RenewedPart {
    /// The route.
    pub route: Arc<str>,
    /// The part, as `scope` has it.
    pub part: Box<str>,
    /// The number of responses since the start.
    pub responses: u64,
}

impl ScopeRenewals {
    /// The counter of a part, for the code that counts to hold.
    pub fn of(&self, route: &Arc<str>, part: &str) -> Counter {
        let mut parts = self.0.write();
        parts.entry((Arc::clone(route), part.into())).or_default().clone()
    }

    /// The parts that were renewed.
    pub fn list(&self) -> Vec<RenewedPart> {
        let parts = self.0.read();
        let renewed = |((route, part), counter): (&(Arc<str>, Box<str>), &Counter)| RenewedPart {
            route: Arc::clone(route),
            part: part.clone(),
            responses: counter.get(),
        };
        parts.iter().map(renewed).filter(|part| part.responses > 0).collect()
    }
}

impl EncodeMetric for ScopeRenewals {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for ((route, part), counter) in self.0.read().iter() {
            let labels = [("route", &**route), ("part", &**part)];
            encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&counter.get(), None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}
