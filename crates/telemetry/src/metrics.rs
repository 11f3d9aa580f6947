//! The types of metrics: counters, gauges and histograms by label, and the text of a scrape.
//!
//! The code that counts holds its counter: on a request's path no name is looked up and nothing is allocated. Labels
//! are enums and the names of routes; data from a client cannot become a label. The metrics themselves are in
//! `instance::metrics`.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use oncegate_domain::state::StateKind;
use oncegate_trust::jwt::TokenFault;
use oncegate_trust::webhook::SignatureFault;
use parking_lot::{Mutex, RwLock};
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::traces::TraceId;

pub use prometheus_client::collector::Collector;
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::registry::Registry;
pub use text::ScrapeFormat;

pub mod text;

/// A label whose values are all known at compile time.
pub trait Label: Copy + PartialEq + fmt::Debug + Send + Sync + 'static {
    const NAME: &'static str;
    /// All values, each once. A value that is missing here is not counted.
    const ALL: &'static [Self];
    /// The value as it is written in a scrape.
    fn name(self) -> &'static str;

    fn index(self) -> Option<usize> {
        Self::ALL.iter().position(|label| *label == self)
    }
}

/// Defines an enum whose variants are the values of a label; without variants, takes an enum that has names for one.
#[macro_export]
macro_rules! label {
    ($(#[$about:meta])* $type:ident, $label:literal, { $($(#[$doc:meta])* $variant:ident => $name:literal),+ $(,)? }) => {
        $crate::named! {
            $(#[$about])*
            pub enum $type { $($(#[$doc])* $variant => $name),+ }
        }

        $crate::label!($type, $label);
    };
    ($type:ident, $label:literal) => {
        impl $crate::metrics::Label for $type {
            const NAME: &'static str = $label;
            const ALL: &'static [Self] = &Self::ALL;

            fn name(self) -> &'static str {
                self.name()
            }
        }
    };
}
pub use label;

label!(TokenFault, "reason");
label!(SignatureFault, "fault");
label!(StateKind, "state");

/// A metric for each value of a label. All series exist from the start, so that the rate of one that has not moved is
/// zero and not absent.
#[derive(Clone, Debug)]
pub struct ByLabel<L, M>(Arc<[M]>, PhantomData<L>);

pub type Counters<L> = ByLabel<L, Counter>;

/// A gauge of 1 or 0 for each value of a label.
pub type Flags<L> = ByLabel<L, Gauge>;

pub type Histograms<L> = ByLabel<L, Histogram>;

impl<L: Label, M: Default> Default for ByLabel<L, M> {
    fn default() -> Self {
        Self(L::ALL.iter().map(|_| M::default()).collect(), PhantomData)
    }
}

impl<L: Label, M> ByLabel<L, M> {
    fn of(&self, label: L) -> Option<&M> {
        self.0.get(label.index()?)
    }

    fn iter(&self) -> impl Iterator<Item = (L, &M)> {
        L::ALL.iter().copied().zip(self.0.iter())
    }
}

impl<L: Label> Counters<L> {
    pub fn count(&self, label: L) {
        if let Some(counter) = self.of(label) {
            counter.inc();
        }
    }

    pub fn get(&self, label: L) -> u64 {
        self.of(label).map_or(0, Counter::get)
    }
}

impl<L: Label> Flags<L> {
    pub fn set(&self, label: L, is_set: bool) {
        if let Some(flag) = self.of(label) {
            flag.set(i64::from(is_set));
        }
    }

    pub fn list_set(&self) -> impl Iterator<Item = L> {
        self.iter().filter(|(_, flag)| flag.get() != 0).map(|(label, _)| label)
    }
}

impl<L: Label> Histograms<L> {
    pub fn observe(&self, label: L, took: Duration) {
        if let Some(histogram) = self.of(label) {
            histogram.observe(took, None);
        }
    }
}

impl<L: Label, M: EncodeMetric + TypedMetric> EncodeMetric for ByLabel<L, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        self.iter().try_for_each(|(label, metric)| metric.encode(encoder.encode_family(&[(L::NAME, label.name())])?))
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

/// A gauge for each service and each value of a label. Nothing is written while the values are not known.
#[derive(Clone, Debug)]
pub struct Gauges<L>(Arc<RwLock<BTreeMap<Arc<str>, Vec<u64>>>>, PhantomData<L>);

impl<L> Default for Gauges<L> {
    fn default() -> Self {
        Self(Arc::default(), PhantomData)
    }
}

impl<L: Label> Gauges<L> {
    /// Sets the values of all services. Those of no service: they are no longer known.
    pub fn set<F: Fn(L) -> u64>(&self, values: impl Iterator<Item = (Arc<str>, F)>) {
        let of = |value: F| L::ALL.iter().map(|label| value(*label)).collect();
        *self.0.write() = values.map(|(service, value)| (service, of(value))).collect();
    }

    /// Returns the gauges of one label value, as a metric of its own without that label.
    pub fn of(&self, label: L) -> OneGauge<L> {
        OneGauge(self.clone(), label)
    }
}

/// The gauge of one label value; see [`Gauges::of`].
#[derive(Clone, Debug)]
pub struct OneGauge<L>(Gauges<L>, L);

impl<L: Label> EncodeMetric for OneGauge<L> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let values = self.0.0.read();
        values.iter().try_for_each(|(service, values)| {
            let value = self.1.index().and_then(|index| values.get(index)).copied().unwrap_or_default();
            encoder.encode_family(&[("service", &**service)])?.encode_gauge(&value)
        })
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<L: Label> EncodeMetric for Gauges<L> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (service, values) in self.0.read().iter() {
            for (label, value) in L::ALL.iter().zip(values) {
                let labels = [("service", &**service), (L::NAME, label.name())];
                encoder.encode_family(&labels)?.encode_gauge(value)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }
}

/// A value of each route, such as its counters. All workers share it. It survives the reload that removes the route: a
/// series that ends at a reload would look like a restart.
#[derive(Clone, Debug)]
pub struct PerRoute<M>(Arc<RwLock<BTreeMap<ServiceRoute, M>>>);

pub type ServiceRoute = (Arc<str>, Arc<str>);

pub type ByRoute<L> = PerRoute<Counters<L>>;

pub type RouteCounters = PerRoute<Counter>;

impl<M> Default for PerRoute<M> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<M: Clone + Default> PerRoute<M> {
    /// Returns the value of a route, for its user to hold.
    pub fn of(&self, route: &ServiceRoute) -> M {
        self.0.write().entry(route.clone()).or_default().clone()
    }

    /// Returns the values of all routes that were asked for.
    pub fn list(&self) -> Vec<(ServiceRoute, M)> {
        self.0.read().iter().map(|(route, value)| (route.clone(), value.clone())).collect()
    }

    /// Returns the service of a route of this name, if one was asked for.
    pub fn service_of(&self, route: &str) -> Option<Arc<str>> {
        let routes = self.0.read();
        routes.keys().find(|(_, known)| **known == *route).map(|(service, _)| Arc::clone(service))
    }
}

impl<L: Label> EncodeMetric for ByRoute<L> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for ((service, route), counters) in self.0.read().iter() {
            for (label, counter) in counters.iter() {
                let labels = [("service", &**service), ("route", &**route), (L::NAME, label.name())];
                counter.encode(encoder.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

impl EncodeMetric for RouteCounters {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let routes = self.0.read();
        routes.iter().try_for_each(|((service, route), counter)| {
            counter.encode(encoder.encode_family(&[("service", &**service), ("route", &**route)])?)
        })
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

/// The upper bounds of a histogram's buckets, in microseconds.
///
/// There are fifteen, from 1 ms (a durable reservation on a good disk) to 60 s (few clients wait longer): three in each
/// factor of ten up to 10 s, then 30 s and 60 s. Among them are the usual objectives (100 ms, 250 ms, 500 ms, 1 s) and
/// the default time limits (2.5 s is near the store's 2 s; 10 s of waiting; 30 s of the upstream).
const BOUNDS_US: [u64; 15] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000, 60_000_000,
];

/// The bounds of a histogram of what people and reconcilers wait for: from a second to a week.
const LONG_BOUNDS_US: [u64; BOUNDS_US.len()] = [
    1_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    900_000_000,
    1_800_000_000,
    3_600_000_000,
    10_800_000_000,
    21_600_000_000,
    43_200_000_000,
    86_400_000_000,
    172_800_000_000,
    345_600_000_000,
    604_800_000_000,
];

/// A histogram of durations, up to a minute or, where it is `LONG`, up to a week. An observation is two additions
/// without a lock; a scrape in between may see one and not the other. One of a recorded trace is the exemplar of its
/// bucket, unless another one becomes that at the same time.
#[derive(Clone, Debug, Default)]
// prometheus-client's own is behind a mutex that all workers would meet at.
// See docs/decisions/0030-choose-dependencies.md.
pub struct Histogram<const LONG: bool = false>(Arc<HistogramBuckets>);

#[derive(Debug, Default)]
struct HistogramBuckets {
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
    /// The newest recorded trace of each bucket. Nobody waits for the lock.
    exemplars: [Mutex<Option<Exemplar>>; BOUNDS_US.len() + 1],
}

/// An observation with its trace.
#[derive(Clone, Copy, Debug)]
struct Exemplar {
    trace: TraceId,
    took_us: u64,
    /// In seconds of Unix time.
    at: f64,
}

impl<const LONG: bool> Histogram<LONG> {
    const BOUNDS: [u64; BOUNDS_US.len()] = if LONG { LONG_BOUNDS_US } else { BOUNDS_US };

    pub fn observe(&self, took: Duration, trace: Option<TraceId>) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = Self::BOUNDS.partition_point(|bound| *bound < took_us);
        self.0.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.0.sum_us.fetch_add(took_us, Ordering::Relaxed);
        if let Some(trace) = trace
            && let Some(mut exemplar) = self.0.exemplars[bucket].try_lock()
        {
            let at = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
            *exemplar = Some(Exemplar { trace, took_us, at });
        }
    }

    /// The exemplars of the buckets, in their order.
    fn exemplars(&self) -> impl Iterator<Item = Option<Exemplar>> {
        self.0.exemplars.iter().map(|exemplar| *exemplar.lock())
    }
}

impl<const LONG: bool> TypedMetric for Histogram<LONG> {
    const TYPE: MetricType = MetricType::Histogram;
}

impl<const LONG: bool> EncodeMetric for Histogram<LONG> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = Self::BOUNDS.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(self.0.counts.iter().map(|count| count.load(Ordering::Relaxed))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.0.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// A gauge with the value 1, and this program's version, for each service.
#[derive(Clone, Debug, Default)]
pub struct BuildInfo(Family<[(&'static str, String); 2], Gauge>);

impl BuildInfo {
    pub fn set<'a>(&self, services: impl Iterator<Item = &'a Arc<str>>) {
        self.0.clear();
        for service in services {
            let labels = [("service", service.to_string()), ("version", env!("CARGO_PKG_VERSION").to_owned())];
            self.0.get_or_create(&labels).set(1);
        }
    }
}

impl EncodeMetric for BuildInfo {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Side {
        Left,
        Right,
    }

    impl Label for Side {
        const NAME: &'static str = "side";
        const ALL: &'static [Self] = &[Self::Left, Self::Right];
        fn name(self) -> &'static str {
            match self {
                Self::Left => "left",
                Self::Right => "right",
            }
        }
    }

    fn written(metric: impl prometheus_client::registry::Metric) -> String {
        let mut registry = Registry::default();
        registry.register("it", "Help", metric);
        text::write(&[&registry], &[], ScrapeFormat::OpenMetrics)
    }

    #[test]
    fn each_value_of_a_label_has_a_series_from_the_start() {
        let counters = Counters::default();
        counters.count(Side::Right);
        assert_eq!(
            written(counters),
            "# HELP it Help.\n# TYPE it counter\nit_total{side=\"left\"} 0\nit_total{side=\"right\"} 1\n# EOF\n"
        );
        let gauges = Gauges::<Side>::default();
        assert_eq!(written(gauges.clone()), "# EOF\n", "unknown values are not written");
        gauges.set(std::iter::once(("pay".into(), |_| 7)));
        let expected = "it{service=\"pay\",side=\"left\"} 7\nit{service=\"pay\",side=\"right\"} 7\n";
        assert!(written(gauges).contains(expected));
    }

    #[test]
    fn a_route_keeps_its_counters_and_its_name_is_escaped() {
        let routes = ByRoute::default();
        routes.of(&("pay".into(), "a\"b".into())).count(Side::Left);
        routes.of(&("pay".into(), "a\"b".into())).count(Side::Left);
        assert!(written(routes).contains("it_total{service=\"pay\",route=\"a\\\"b\",side=\"left\"} 2\n"));
    }

    #[test]
    fn a_duration_equal_to_a_bound_is_within_its_bucket() {
        let histogram: Histogram = Histogram::default();
        for millis in [0, 1, 60_000, 60_001] {
            histogram.observe(Duration::from_millis(millis), None);
        }
        let written = written(histogram);
        for line in ["it_sum 120.002", "it_count 4", "it_bucket{le=\"0.001\"} 2", "it_bucket{le=\"60.0\"} 3"] {
            assert!(written.contains(&format!("{line}\n")), "{line}: {written}");
        }
        assert!(written.contains("it_bucket{le=\"+Inf\"} 4\n"));
        assert!(BOUNDS_US.is_sorted() && LONG_BOUNDS_US.is_sorted());
    }

    #[test]
    fn a_bucket_shows_its_newest_recorded_trace_to_scrapers_of_openmetrics_alone() {
        let histogram = Histogram::default();
        for (micros, trace) in [(1_500, Some(1)), (2_500, Some(2)), (2_400, None), (70_000_000, Some(3))] {
            histogram.observe(Duration::from_micros(micros), trace.map(|byte| TraceId([byte; 16])));
        }
        let mut registry = Registry::default();
        registry.register("it", "Help", histogram.clone());
        let written = |format| text::write(&[&registry], &[("it", &histogram)], format);
        let modern = written(ScrapeFormat::OpenMetrics);
        let exemplars: Vec<_> = modern.lines().filter_map(|line| line.split_once(" # ")).collect();
        let [(second, newest), (last, largest)] = exemplars[..] else { panic!("{modern}") };
        assert_eq!((second, last), ("it_bucket{le=\"0.0025\"} 3", "it_bucket{le=\"+Inf\"} 4"));
        assert!(newest.starts_with(&format!("{{trace_id=\"{}\"}} 0.0025 1", "02".repeat(16))), "{newest}");
        assert!(largest.starts_with(&format!("{{trace_id=\"{}\"}} 70 1", "03".repeat(16))), "{largest}");
        assert!(!written(ScrapeFormat::Text).contains(" # "));
    }
}
