//! `GET /metrics`: what is counted, and what is looked up when somebody asks.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, header};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::Admin;
use crate::body::Body;
use crate::domain::phase::Phase;
use crate::gate::Shared;
use crate::telemetry::metrics::Format;

/// How long a count of the keys is told again. It reads some ten thousand rows at most, whatever the table's size, and
/// nobody needs it fresher: several scrapers, or a fast one, are one look in this time.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// How long a scrape waits for it; scrapers give ten seconds, and want the rest whatever the store does.
const COUNT_MAX: Duration = Duration::from_secs(1);

/// How long the last count is told while there is no other. An alert on it should not end because the store is away, nor
/// should it be about what was an hour ago.
const COUNT_KEPT: Duration = Duration::from_secs(5 * 60);

/// As many callers and paths as one answer tells; more are remembered.
const SHOWN_MAX: usize = 100;

/// When keys were counted, and when that was last tried.
#[derive(Default)]
pub(super) struct Census(Mutex<Looks>);

#[derive(Default)]
struct Looks {
    tried: Option<Instant>,
    counted: Option<Instant>,
}

impl Census {
    /// Counts the keys, unless that was done a moment ago, or the store is not asked for the time being.
    async fn refresh(&self, shared: &Shared) {
        let keys = &shared.watch.meters.keys;
        let mut looks = self.0.lock().await;
        if looks.tried.is_none_or(|tried| tried.elapsed() >= COUNT_EVERY) {
            looks.tried = Some(Instant::now());
            let counting = shared.store.books().tally(shared.config.service.clone());
            if !shared.breaker.health().is_open
                && let Ok(Ok(tally)) = timeout(COUNT_MAX, counting).await
            {
                let of = |state: Phase| tally.counts.iter().filter(move |count| count.state == state);
                keys.set(Some(|state| of(state).map(|count| count.keys).sum()));
                looks.counted = Some(Instant::now());
            }
        }
        if looks.counted.is_some_and(|counted| counted.elapsed() > COUNT_KEPT) {
            looks.counted = None;
            keys.set(None::<fn(Phase) -> u64>);
        }
    }
}

impl Admin {
    /// All of them, in the format that the scraper wants.
    pub(super) async fn metrics(&self, headers: &http::HeaderMap) -> Response<Body> {
        let meters = &self.shared.watch.meters;
        self.census.refresh(&self.shared).await;
        meters.in_flight.set(i64::try_from(self.shared.underway.count()).unwrap_or(i64::MAX));
        meters.breaker_open.set(i64::from(self.shared.breaker.health().is_open));
        let format = Format::accepted(headers.get(header::ACCEPT).map_or(b"", HeaderValue::as_bytes));
        let mut response = Response::new(Body::whole(meters.text(format)));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// Adds to the store's counts what this instance has seen itself.
    pub(super) fn seen(&self, stats: &mut Value) {
        let watch = &self.shared.watch;
        let callers = watch.callers(SHOWN_MAX).into_iter().map(|caller| {
            json!({
                "scope": caller.scope.to_string(),
                "duplicates": caller.duplicates,
                "mismatches": caller.mismatches,
            })
        });
        stats["callers"] = callers.collect();
        let unguarded = watch.unguarded(usize::MAX).into_iter().map(|seen| {
            json!({
                "method": seen.method,
                "path": seen.path,
                "requests": seen.requests,
                "at_most_more": seen.at_most_more,
            })
        });
        stats["unguarded"] = unguarded.collect();
        stats["instance"] = self.shared.tenure.id().to_string().into();
    }
}
