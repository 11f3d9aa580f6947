//! Declares all metrics.
//!
//! Labels are enums and route names. A key, a scope, a token, a path or any other value that a client chooses is never a
//! label.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::Method;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

use super::recent_outcomes::{RecentOutcomes, RouteOutcomes};
use crate::cache::shared::SharedCacheMetrics;
use crate::domain::decision::{AcceptedProgress, KeyAnswer, KeyRefusal};
use crate::domain::state::StateKind;
use crate::jwt::TokenFault;
use crate::protocol::refusal::ReachedLimit;
use crate::protocol::status::OncegateStatus;
use crate::store::metrics::StoreMetrics;
use crate::telemetry::logs;
use crate::telemetry::metrics::{
    BuildInfo, ByRoute, Collector, Counter, Counters, Gauge, Gauges, Histogram, Label, Registry, RouteCounters,
    ScrapeFormat, label, text,
};
use crate::telemetry::process::ProcessCollector;
use crate::telemetry::traces;

pub use scope_renewals::{RenewedPart, ScopeRenewals};
pub use unknown_keys::UnknownKeys;

mod scope_renewals;
mod unknown_keys;

/// All metrics of this process. Each field is a metric, and is counted where the event happens.
pub struct Metrics {
    registry: Registry,
    requests: ByRoute<OncegateStatus>,
    /// The same of the last hour, which no scrape has.
    recent: RouteOutcomes,
    reservations: ByRoute<ReservationResult>,
    rate_limited: RouteCounters,
    /// The time from a guarded request's head to the head of its response.
    pub request_duration: Histogram,
    /// The time that services took for attempts.
    pub upstream_duration: Histogram,
    /// State-changing requests that were forwarded unguarded.
    pub unguarded: Counters<MethodLabel>,
    /// Those of them that carried a key.
    pub unguarded_keys: Counters<MethodLabel>,
    /// Responses that have given parts of scopes another value.
    pub scope_renewals: ScopeRenewals,
    /// Records that were found without the store.
    pub cache_hits: Counters<CacheTier>,
    /// The shared cache.
    pub shared_cache: SharedCacheMetrics,
    /// Requests and connections that were refused because a limit was reached.
    pub overloaded: Counters<ReachedLimit>,
    /// Tokens of callers that were refused.
    pub tokens_refused: Counters<TokenFault>,
    /// Requests that the admin listener denied.
    pub admin_denied: Counter,
    /// Keys that this instance made unknown, by cause.
    pub unknown: UnknownKeys,
    /// Keys that this instance's sweeper made unknown.
    pub zombies: Counter,
    /// Keys that this instance's reaper deleted.
    pub reaped: Counter,
    /// Jumps of the store's clock that this instance has seen.
    pub clock_jumps: Counters<JumpDirection>,
    /// Probes of services about unknown outcomes.
    pub reconcile: Counters<ReconcileResult>,
    /// Outcomes that came late.
    pub late_completions: Counters<LateCompletion>,
    /// Attempts that are registered here.
    pub in_flight: Gauge,
    /// Open connections of clients.
    pub connections: Gauge,
    /// Bytes of bodies in memory.
    pub held_body_bytes: Gauge,
    /// 1 while the breaker is open.
    pub breaker_open: Gauge,
    /// Keys in the store, by state.
    pub keys: Gauges<StateKind>,
    /// 1 if the newest configuration is in use.
    pub reload_successful: Gauge,
    /// The time of the last successful reload, in seconds since 1970.
    pub reloaded_at: Gauge,
    /// Configurations that were refused.
    pub reload_failures: Counter,
    /// Spans that were exported and dropped.
    pub spans: Arc<traces::SpanCounts>,
}

/// The counters of one route.
#[derive(Clone, Debug)]
pub struct RouteMetrics {
    /// The route's name.
    pub name: Arc<str>,
    /// The route's `path`, with its placeholders.
    pub path: Arc<str>,
    /// Responses by `Oncegate-Status`.
    pub requests: Counters<OncegateStatus>,
    /// The same of the last hour, by minute.
    pub recent: Arc<RecentOutcomes>,
    /// Results of reservations.
    pub reservations: Counters<ReservationResult>,
    /// Requests that were refused because of the route's limits on new keys.
    pub rate_limited: Counter,
}

impl Metrics {
    /// All metrics at zero. The store has counters of its own.
    pub fn new(store: &StoreMetrics) -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            requests: ByRoute::default(),
            recent: RouteOutcomes::default(),
            reservations: ByRoute::default(),
            rate_limited: RouteCounters::default(),
            request_duration: Histogram::default(),
            upstream_duration: Histogram::default(),
            unguarded: Counters::default(),
            unguarded_keys: Counters::default(),
            scope_renewals: ScopeRenewals::default(),
            cache_hits: Counters::default(),
            shared_cache: SharedCacheMetrics::default(),
            overloaded: Counters::default(),
            tokens_refused: Counters::default(),
            admin_denied: Counter::default(),
            unknown: UnknownKeys::default(),
            zombies: Counter::default(),
            reaped: Counter::default(),
            clock_jumps: Counters::default(),
            reconcile: Counters::default(),
            late_completions: Counters::default(),
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            held_body_bytes: Gauge::default(),
            breaker_open: Gauge::default(),
            keys: Gauges::default(),
            reload_successful: Gauge::default(),
            reloaded_at: Gauge::default(),
            reload_failures: Counter::default(),
            spans: Arc::default(),
        };
        metrics.register(store);
        metrics
    }

    /// Registers each metric. The encoder appends `_total` to the names of counters.
    #[rustfmt::skip]
    fn register(&mut self, store: &StoreMetrics) {
        let m = &mut self.registry;
        let name = |name: &str| format!("oncegate_{name}");
        m.register(name("requests"), "Responses to guarded requests, by Oncegate-Status", self.requests.clone());
        m.register(name("reservations"), "Results of reservations of keyed requests", self.reservations.clone());
        m.register(name("rate_limited"), "Requests that were refused because of their route's limits on new keys", self.rate_limited.clone());
        m.register(name("request_duration_seconds"), "Time from a guarded request's head to the head of its response", self.request_duration.clone());
        m.register(name("upstream_duration_seconds"), "Time that services took for attempts", self.upstream_duration.clone());
        m.register(name("store_duration_seconds"), "Time that calls of the store took", store.durations.clone());
        m.register(name("store_errors"), "Calls of the store that failed", store.errors.clone());
        m.register(name("store_breaker_open"), "1 while the store is not called because it failed repeatedly", self.breaker_open.clone());
        m.register(name("store_primaries"), "Servers of store.url that take writes; 0 where it names one host", store.primaries.clone());
        m.register(name("store_clock_jumps"), "Jumps of the store's clock against this machine's, which the tasks wait after", self.clock_jumps.clone());
        m.register(name("in_flight"), "Attempts that this instance runs, or whose outcome it has still to store", self.in_flight.clone());
        m.register(name("unknown"), "Keys that this instance made unknown, by cause", self.unknown.clone());
        m.register(name("zombie_keys"), "Keys that this instance made unknown because their attempt's lease ran out", self.zombies.clone());
        m.register(name("keys_reaped"), "Keys past their TTL that this instance deleted", self.reaped.clone());
        m.register(name("keys"), "Keys of this service in the store; settled keys are estimated from a sample", self.keys.clone());
        m.register(name("jobs_dead"), "Keys that were given up and need an operator", self.keys.of(StateKind::Dead));
        m.register(name("reconcile"), "Probes of services about unknown outcomes", self.reconcile.clone());
        m.register(name("late_completions"), "Outcomes that came after the lease, or that the store could not take at once", self.late_completions.clone());
        m.register(name("cache_hits"), "Records that were found without the store", self.cache_hits.clone());
        m.register(name("shared_cache_reads"), "Reads of the shared cache, by result", self.shared_cache.reads.clone());
        m.register(name("shared_cache_writes"), "Completed records for the shared cache, by result", self.shared_cache.writes.clone());
        m.register(name("shared_cache_connected"), "1 while the server of the shared cache is connected", self.shared_cache.connected.clone());
        m.register(name("unguarded"), "State-changing requests that were forwarded unguarded", self.unguarded.clone());
        m.register(name("unguarded_keys"), "State-changing requests with a key that were forwarded unguarded", self.unguarded_keys.clone());
        m.register(name("scope_renewals"), "Responses that have given a part of a route's scope another value than their request had", self.scope_renewals.clone());
        m.register(name("connections"), "Open connections of clients", self.connections.clone());
        m.register(name("held_body_bytes"), "Bytes of request and response bodies in memory", self.held_body_bytes.clone());
        m.register(name("overloaded"), "Requests and connections that were refused because a limit was reached", self.overloaded.clone());
        m.register(name("tokens_refused"), "Callers' tokens that did not verify", self.tokens_refused.clone());
        m.register(name("admin_denied"), "Requests that the admin listener denied", self.admin_denied.clone());
        m.register(name("config_last_reload_successful"), "1 if the newest configuration is in use", self.reload_successful.clone());
        m.register(name("config_last_reload_success_timestamp_seconds"), "Time of the last successful reload", self.reloaded_at.clone());
        m.register(name("config_reload_failures"), "Configurations that were refused", self.reload_failures.clone());
        m.register(name("build_info"), "1, with the version of this program", BuildInfo);
        m.register_collector(Box::new(TelemetryCollector(Arc::clone(&self.spans))));
        m.register_collector(Box::new(ProcessCollector));
    }

    /// The counters of a route. The same name has the same counters after a reload.
    pub fn route_metrics(&self, route: &Arc<str>, path: Arc<str>) -> Arc<RouteMetrics> {
        let (requests, reservations) = (self.requests.of(route), self.reservations.of(route));
        let (recent, rate_limited) = (self.recent.route(route), self.rate_limited.of(route));
        Arc::new(RouteMetrics { name: Arc::clone(route), path, requests, recent, reservations, rate_limited })
    }

    /// All metrics in the format of a scrape.
    pub fn text(&self, format: ScrapeFormat) -> String {
        text::write(&self.registry, format)
    }
}

/// The counters of the log and trace queues.
#[derive(Debug)]
struct TelemetryCollector(Arc<traces::SpanCounts>);

impl Collector for TelemetryCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (exported, dropped) = (&self.0.exported, &self.0.dropped);
        for (name, help, value) in [
            ("log_lines_dropped", "Log lines that standard error took too slowly.", logs::dropped()),
            ("spans_exported", "Spans that the collector has taken.", exported.load(Ordering::Relaxed)),
            ("spans_dropped", "Spans that the collector has not taken.", dropped.load(Ordering::Relaxed)),
        ] {
            let counter = ConstCounter::new(value);
            let name = format!("oncegate_{name}");
            counter.encode(encoder.encode_descriptor(&name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}

impl Label for TokenFault {
    const NAME: &'static str = "reason";
    const ALL: &'static [Self] = &TokenFault::ALL;

    fn name(self) -> &'static str {
        self.name()
    }
}

impl Label for StateKind {
    const NAME: &'static str = "state";
    const ALL: &'static [Self] = &StateKind::ALL;

    fn name(self) -> &'static str {
        self.name()
    }
}

label!(
    /// The result of a keyed request's reservation.
    ReservationResult, "result", {
        /// The key was free: the request became the first attempt.
        Created => "created",
        /// The key is past its TTL, and remembered.
        Expired => "expired",
        /// The last attempt was released, or the route retries: the request became the next attempt.
        FailedRetry => "failed_retry",
        /// An attempt of the key is running.
        InFlight => "in_flight",
        /// The key belongs to another request.
        KeyMisuse => "key_misuse",
        /// The response is stored.
        Replay => "replay",
        /// The outcome of the key's attempt is unknown.
        Unknown => "unknown",
    }
);

impl From<&KeyAnswer> for ReservationResult {
    fn from(answer: &KeyAnswer) -> Self {
        match answer {
            // An accepted request runs on its own, and its duplicates join it.
            KeyAnswer::Accepted(AcceptedProgress::Pending(_)) | KeyAnswer::Join(_) => Self::InFlight,
            KeyAnswer::Accepted(AcceptedProgress::Dead | AcceptedProgress::Unknown(_)) => Self::Unknown,
            KeyAnswer::Replay(_) => Self::Replay,
            KeyAnswer::Refuse(refusal) => match refusal {
                KeyRefusal::Expired => Self::Expired,
                KeyRefusal::InFlight(_) => Self::InFlight,
                KeyRefusal::OtherRequest | KeyRefusal::WithoutBody => Self::KeyMisuse,
                KeyRefusal::OutcomeUnknown(_) => Self::Unknown,
                KeyRefusal::ResponseNotKept => Self::Replay,
            },
        }
    }
}

label!(
    /// The direction of a jump of the store's clock.
    JumpDirection, "direction", {
        /// To an earlier time: everything ends later.
        Backward => "backward",
        /// To a later time: everything ends at once.
        Forward => "forward",
    }
);

label!(
    /// The place of a record that was found without the store.
    CacheTier, "tier", {
        /// This process's memory.
        Memory => "memory",
        /// The shared cache.
        Shared => "shared",
    }
);

label!(
    /// The result of a probe.
    ReconcileResult, "result", {
        /// There was no usable answer of the service.
        Failed => "failed",
        /// A key was due. The service was asked, unless an instance had died during the last question.
        Scheduled => "scheduled",
        /// The service's answer settled the key.
        Resolved => "resolved",
    }
);

label!(
    /// The result of an outcome that came late.
    LateCompletion, "result", {
        /// The key was settled otherwise before.
        Dropped => "dropped",
        /// The store took it.
        Taken => "taken",
    }
);

/// A request's method as a label. All methods that a client invents are [`Self::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodLabel {
    /// RFC 9110 section 9.3.5.
    Delete,
    /// Safe: it changes nothing.
    Get,
    /// Safe.
    Head,
    /// Safe.
    Options,
    /// Any other method, which may change state.
    Other,
    /// RFC 5789.
    Patch,
    /// RFC 9110 section 9.3.3.
    Post,
    /// RFC 9110 section 9.3.4.
    Put,
    /// Safe.
    Trace,
}

impl MethodLabel {
    /// The label of a method.
    pub fn from_method(method: &Method) -> Self {
        match *method {
            Method::DELETE => Self::Delete,
            Method::GET => Self::Get,
            Method::HEAD => Self::Head,
            Method::OPTIONS => Self::Options,
            Method::PATCH => Self::Patch,
            Method::POST => Self::Post,
            Method::PUT => Self::Put,
            Method::TRACE => Self::Trace,
            _ => Self::Other,
        }
    }

    /// Whether the method may change state. RFC 9110 section 9.2.1 calls the others safe.
    pub fn changes_state(self) -> bool {
        !matches!(self, Self::Get | Self::Head | Self::Options | Self::Trace)
    }
}

/// The state-changing methods. Safe methods are never counted by method.
impl Label for MethodLabel {
    const NAME: &'static str = "method";
    const ALL: &'static [Self] = &[Self::Delete, Self::Other, Self::Patch, Self::Post, Self::Put];

    fn name(self) -> &'static str {
        match self {
            Self::Delete => "DELETE",
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Options => "OPTIONS",
            Self::Other => "other",
            Self::Patch => "PATCH",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Trace => "TRACE",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_of_a_record_are_counted_by_what_became_of_its_attempt() {
        let wait = std::time::Duration::from_secs(1);
        let accepted = |progress| KeyAnswer::Accepted(progress);
        for (answer, counted) in [
            (accepted(AcceptedProgress::Pending(wait)), ReservationResult::InFlight),
            (accepted(AcceptedProgress::Unknown(wait)), ReservationResult::Unknown),
            (accepted(AcceptedProgress::Dead), ReservationResult::Unknown),
            (KeyAnswer::Join(wait), ReservationResult::InFlight),
            (KeyAnswer::Refuse(KeyRefusal::Expired), ReservationResult::Expired),
            (KeyAnswer::Refuse(KeyRefusal::InFlight(wait)), ReservationResult::InFlight),
            (KeyAnswer::Refuse(KeyRefusal::OtherRequest), ReservationResult::KeyMisuse),
            (KeyAnswer::Refuse(KeyRefusal::OutcomeUnknown(wait)), ReservationResult::Unknown),
            (KeyAnswer::Refuse(KeyRefusal::ResponseNotKept), ReservationResult::Replay),
            (KeyAnswer::Refuse(KeyRefusal::WithoutBody), ReservationResult::KeyMisuse),
        ] {
            assert_eq!(ReservationResult::from(&answer), counted, "{answer:?}");
        }
    }
}
