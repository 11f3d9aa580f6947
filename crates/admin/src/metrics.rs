//! `GET /metrics`: counters, and the numbers that are looked up for each scrape. Also the traffic part of
//! `/api/v1/stats`.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, header};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::AdminListener;
use super::key_admin::dto::InstanceStats;
use oncegate_domain::state::StateKind;
use oncegate_engine::instance::Instance;
use oncegate_http::body::Body;
use oncegate_telemetry::metrics::ScrapeFormat;

/// The time in which keys are counted once, however many scrapes come. A count reads some ten thousand rows at most,
/// whatever the table's size, and nobody needs it fresher.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// The time that a scrape waits for the count. Scrapers give ten seconds, and need the rest whatever the store does.
const COUNT_MAX: Duration = Duration::from_secs(1);

/// The time that the last count is served while there is no newer one. An alert on it should not end because the store
/// is away, nor should it be about the state an hour ago.
const COUNT_KEPT: Duration = Duration::from_secs(5 * 60);

/// The times of the last count of the keys and of the last try. The counts themselves are in the metrics.
#[derive(Default)]
pub(super) struct KeyCountCache {
    tried: Mutex<Option<Instant>>,
    counted: Arc<parking_lot::Mutex<Option<Instant>>>,
}

impl KeyCountCache {
    /// Counts the keys, unless that was done a moment ago, or the breaker keeps calls from the store.
    async fn refresh(&self, instance: &Arc<Instance>, services: Vec<Arc<str>>) {
        let mut tried = self.tried.lock().await;
        if tried.is_none_or(|tried| tried.elapsed() >= COUNT_EVERY) && !instance.store.health().is_open {
            *tried = Some(Instant::now());
            // In a task: a count that takes longer than the scrape waits is there for the next one.
            let counting = tokio::spawn(count(Arc::clone(instance), services, Arc::clone(&self.counted)));
            let _ = timeout(COUNT_MAX, counting).await;
        }
        let mut counted = self.counted.lock();
        if counted.is_some_and(|counted| counted.elapsed() > COUNT_KEPT) {
            *counted = None;
            instance.observability.metrics.keys.set(std::iter::empty::<(_, fn(StateKind) -> u64)>());
        }
    }
}

/// Counts the keys; the store ends a count that takes too long.
async fn count(instance: Arc<Instance>, services: Vec<Arc<str>>, counted: Arc<parking_lot::Mutex<Option<Instant>>>) {
    let mut tallies = Vec::new();
    for service in services {
        let Ok(tally) = instance.store.count_keys(Arc::clone(&service)).await else { return };
        tallies.push((service, tally.counts));
    }
    let mut counted = counted.lock();
    instance.observability.metrics.keys.set(tallies.into_iter().map(|(service, counts)| {
        let of = move |state| counts.iter().filter(|count| count.state == state).map(|count| count.keys).sum();
        (service, of)
    }));
    *counted = Some(Instant::now());
}

impl AdminListener {
    /// Returns all metrics, in the format that the scraper accepts.
    pub(super) async fn metrics(&self, headers: &http::HeaderMap) -> Response<Body> {
        let metrics = &self.instance.observability.metrics;
        if self.instance.joined.is_cancelled() {
            let services = self.config.borrow().service_names().map(Arc::clone).collect();
            self.key_counts.refresh(&self.instance, services).await;
        }
        metrics.build.set(self.config.borrow().service_names());
        metrics.in_flight.set(i64::try_from(self.instance.in_flight.count()).unwrap_or(i64::MAX));
        metrics.held_body_bytes.set(i64::try_from(self.instance.held_bytes()).unwrap_or(i64::MAX));
        metrics.breaker_open.set(i64::from(self.instance.store.health().is_open));
        let format = ScrapeFormat::from_accept(headers.get(header::ACCEPT).map_or(b"", HeaderValue::as_bytes));
        let mut response = Response::new(Body::whole(metrics.text(format)));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// Returns the traffic that this instance has seen. It is that of all services: whoever `is_bound` to one sees
    /// none.
    pub(super) fn instance_stats(&self, is_bound: bool) -> InstanceStats {
        let observability = &self.instance.observability;
        let instance = self.instance.instance_lease.id();
        if is_bound {
            let (unguarded, renewed, same_bodies) = Default::default();
            return InstanceStats { instance, unguarded, renewed, same_bodies };
        }
        InstanceStats {
            instance,
            unguarded: observability.unguarded(usize::MAX),
            renewed: observability.metrics.scope_renewals.list(),
            same_bodies: observability.same_bodies.pairs(),
        }
    }
}
