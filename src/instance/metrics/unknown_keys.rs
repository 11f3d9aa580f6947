//! Counts keys of unknown outcome by route and cause.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::domain::unknown_cause::UnknownCause;

/// The number of keys that became unknown, by route and cause. Unlike a label from a closed list, a cause may have the service's
/// status; there are as many series as statuses that services have sent.
#[derive(Clone, Debug, Default)]
pub struct UnknownKeys(Arc<Mutex<CountsByCause>>);

type CountsByCause = BTreeMap<(Arc<str>, UnknownCause), u64>;

impl UnknownKeys {
    /// Counts a key.
    pub fn count(&self, route: &str, cause: UnknownCause) {
        let mut counts = self.0.lock();
        *counts.entry((route.into(), cause)).or_default() += 1;
    }
}

impl EncodeMetric for UnknownKeys {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for ((route, cause), count) in self.0.lock().iter() {
            let labels = [("route", &**route), ("cause", &*cause.to_string())];
            encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(count, None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}
