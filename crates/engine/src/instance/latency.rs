//! The recent latency of each route's attempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncegate_telemetry::metrics::PerRoute;

/// An exponentially weighted moving average (EWMA). Each new attempt counts one eighth, so some ten attempts after a
/// change of latency the old value is gone.
#[derive(Debug, Default)]
pub struct LatencyEwma(AtomicU64);

impl LatencyEwma {
    /// Adds an attempt's duration.
    pub fn record(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        // Two threads at once may lose one sample, which an average can bear.
        let mean = self.0.load(Ordering::Relaxed);
        let next = if mean == 0 { took } else { (mean.saturating_mul(7).saturating_add(took)) / 8 };
        self.0.store(next, Ordering::Relaxed);
    }

    /// The average; zero before the first attempt.
    pub fn average(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// The latency of each route.
pub type RouteLatencies = PerRoute<Arc<LatencyEwma>>;
