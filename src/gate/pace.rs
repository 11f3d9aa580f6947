//! How long a route's attempts have taken of late.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// An exponentially weighted mean, each new attempt with the weight of one in eight: a handful of attempts after a change
/// of pace it is forgotten what was before.
#[derive(Debug, Default)]
pub struct Pace(AtomicU64);

impl Pace {
    /// An attempt took this long.
    pub fn record(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        // Two at once may lose one sample; a mean can bear that.
        let mean = self.0.load(Ordering::Relaxed);
        let next = if mean == 0 { took } else { (mean.saturating_mul(7).saturating_add(took)) / 8 };
        self.0.store(next, Ordering::Relaxed);
    }

    /// The mean; zero before the first attempt.
    pub fn usual(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// The pace of every route, by its name: it outlives reloads, and all workers share it.
#[derive(Debug, Default)]
pub struct Paces(Mutex<HashMap<Arc<str>, Arc<Pace>>>);

impl Paces {
    /// The pace of one route.
    pub fn of(&self, route: &Arc<str>) -> Arc<Pace> {
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(paces.entry(Arc::clone(route)).or_default())
    }
}
