//! Declares all metrics.
//!
//! Labels are enums, names of routes and services, and digests of routes. A key, a scope, a token, a path or any other
//! value that a client chooses is never a label.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

use super::consumer_states::{ConsumerCollector, ConsumerStates};
use super::event_states::{EventCollector, EventStates};
use super::recent_outcomes::RecentOutcomes;
use super::weekly_counts::{RouteCounts, WeeklyCounts, WeeklyKind};
use oncegate_cache::shared::SharedCacheMetrics;
use oncegate_domain::decision::{AcceptedProgress, KeyAnswer, KeyRefusal};
use oncegate_domain::state::StateKind;
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_http::protocol::refusal::ReachedLimit;
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_settings::Route;
use oncegate_store::metrics::StoreMetrics;
use oncegate_telemetry::logs;
use oncegate_telemetry::metrics::{
    BuildInfo, ByRoute, Collector, Counter, Counters, Family, Flags, Gauge, Gauges, Histogram, Label, PerRoute,
    Registry, RouteCounters, ScrapeFormat, label, text,
};
use oncegate_telemetry::process::ProcessCollector;
use oncegate_telemetry::traces;
use oncegate_trust::jwt::TokenFault;
use oncegate_trust::webhook::SignatureFault;

pub use route_counters::{RenewedPart, ScopeRenewals, UnknownKeys};

mod route_counters;

/// Defines [`Metrics`]: each metric with its name in a scrape and its help, which documents its field as well.
macro_rules! metrics {
    ($($vis:vis $field:ident: $Type:ty => $name:literal $(in $registry:ident)?, $help:literal;)+) => {
        /// All metrics of this process. Each field is a metric, and is counted where the event happens.
        #[derive(Default)]
        pub struct Metrics {
            registry: Registry,
            /// Of those that have the name of a service themselves.
            by_service: Registry,
            /// The version of this program, for each service.
            pub build: BuildInfo,
            /// The requests of the last hour, which no scrape has.
            recent: PerRoute<Arc<RecentOutcomes>>,
            /// The counts of this week, which the store adds up.
            pub weekly: WeeklyCounts,
            /// The consumers, as they are now.
            pub consumers: Arc<ConsumerStates>,
            /// The publishers of events, as they are now.
            pub events: Arc<EventStates>,
            /// The shared cache.
            pub shared_cache: SharedCacheMetrics,
            /// Spans that were exported and dropped.
            pub spans: Arc<traces::SpanCounts>,
            $(#[doc = $help] $vis $field: $Type,)+
        }

        impl Metrics {
            /// Registers the metrics of the table. The encoder appends `_total` to the names of counters.
            fn register(&mut self) {
                $(metrics!(@ self $($registry)?).register(concat!("oncegate_", $name), $help, self.$field.clone());)+
            }
        }
    };
    (@ $self:ident) => { $self.registry };
    (@ $self:ident $registry:ident) => { $self.$registry };
}

metrics! {
    requests: ByRoute<OncegateStatus> => "requests" in by_service,
        "Responses to guarded requests, by Oncegate-Status";
    reservations: ByRoute<ReservationResult> => "reservations" in by_service,
        "Results of reservations of keyed requests";
    failed: RouteCounters => "failed" in by_service,
        "Requests that were refused because of Oncegate itself or its store";
    rate_limited: RouteCounters => "rate_limited" in by_service,
        "Requests that were refused because of their route's limits on new keys";
    same_body: RouteCounters => "same_body" in by_service,
        "New keys for a request that the same caller has sent under another key of late";
    // Without a route, which would multiply its series: a route's own times are in its log lines and spans.
    pub request_duration: Histogram => "request_duration_seconds",
        "Time from a guarded request's head to the head of its response";
    pub upstream_duration: Histogram => "upstream_duration_seconds",
        "Time that services took for attempts";
    pub breaker_open: Gauge => "store_breaker_open",
        "1 while the store is not called because it failed repeatedly";
    pub clock_jumps: Counters<JumpDirection> => "store_clock_jumps",
        "Jumps of the store's clock against this machine's, which the tasks wait after";
    pub in_flight: Gauge => "in_flight",
        "Attempts that this instance runs, or whose outcome it has still to store";
    unknown: UnknownKeys => "unknown" in by_service,
        "Keys that this instance made unknown, by cause";
    unknown_resolved: Histogram<true> => "unknown_resolved_seconds",
        "Time from an unknown outcome to its resolution, where this instance has had that";
    pub zombies: Counter => "zombie_keys",
        "Keys that this instance made unknown because their attempt's lease ran out";
    pub reaped: Counter => "keys_reaped",
        "Keys past their TTL that this instance deleted";
    pub keys: Gauges<StateKind> => "keys" in by_service,
        "Keys of the service in the store; settled keys are estimated from a sample";
    pub reconcile: Counters<ReconcileResult> => "reconcile",
        "Inquiries of services about unknown outcomes";
    pub late_completions: Counters<LateCompletion> => "late_completions",
        "Outcomes that came after the lease, or that the store could not take at once";
    pub cache_hits: Counters<CacheTier> => "cache_hits",
        "Records that were found without the store";
    pub unguarded: Counters<MethodLabel> => "unguarded",
        "State-changing requests that were forwarded unguarded";
    pub unguarded_keys: Counters<MethodLabel> => "unguarded_keys",
        "State-changing requests with a key that were forwarded unguarded";
    pub scope_renewals: ScopeRenewals => "scope_renewals" in by_service,
        "Responses that have given a part of a route's scope another value than their request had";
    pub connections: Gauge => "connections",
        "Open connections of clients";
    pub held_body_bytes: Gauge => "held_body_bytes",
        "Bytes of request and response bodies in memory";
    pub overloaded: Counters<ReachedLimit> => "overloaded",
        "Requests and connections that were refused because a limit was reached";
    pub issuer_unreachable: Flags<IssuerTable> => "issuer_unreachable",
        "1 while the issuer that a table of the configuration names cannot be read";
    pub tokens_refused: Counters<TokenFault> => "tokens_refused",
        "Callers' tokens that did not verify";
    pub signatures_refused: Counters<SignatureFault> => "signatures_refused",
        "Webhooks that were not known to be from their sender";
    pub admin_denied: Counter => "admin_denied",
        "Requests that the admin listener denied";
    pub reload_successful: Gauge => "config_last_reload_successful",
        "1 if the newest configuration is in use";
    pub reloaded_at: Gauge => "config_last_reload_success_timestamp_seconds",
        "Time of the last successful reload";
    pub reload_failures: Counter => "config_reload_failures",
        "Configurations that were refused";
    pub route_identities: Family<[(&'static str, String); 1], Gauge> => "route_identities_info",
        "1, with the service and a digest of the routes: which requests they guard, and how they find keys";
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
    /// Requests that were refused because of Oncegate itself or its store.
    pub failed: Counter,
    /// Requests that were refused because of the route's limits on new keys.
    pub rate_limited: Counter,
    /// New keys for a request that the same caller has sent under another key of late.
    pub same_body: Counter,
    /// The counts of this week.
    pub weekly: Arc<RouteCounts>,
}

impl Metrics {
    /// All metrics at zero. The store and the shared cache have counters of their own. Each series names the service,
    /// or the one at the top where it is of the whole process: instances of many services may be targets of one job,
    /// and a rule needs no join to say whose it is.
    pub fn new(store: &StoreMetrics, service: &str) -> Self {
        let labels = std::iter::once((Cow::Borrowed("service"), Cow::Owned(service.to_owned())));
        let mut metrics = Self { registry: Registry::with_labels(labels), ..Self::default() };
        metrics.register();
        let shared = metrics.shared_cache.clone();
        let m = &mut metrics.registry;
        m.register("oncegate_store_duration_seconds", "Time that calls of the store took", store.durations.clone());
        m.register("oncegate_store_errors", "Calls of the store that failed", store.errors.clone());
        m.register(
            "oncegate_store_primaries",
            "Servers of store.url that take writes; 0 where it names one host",
            store.primaries.clone(),
        );
        m.register("oncegate_shared_cache_reads", "Reads of the shared cache, by result", shared.reads);
        m.register("oncegate_shared_cache_writes", "Completed records for the shared cache, by result", shared.writes);
        m.register(
            "oncegate_shared_cache_connected",
            "1 while the server of the shared cache is connected",
            shared.connected,
        );
        m.register_collector(Box::new(TelemetryCollector(Arc::clone(&metrics.spans))));
        m.register_collector(Box::new(ConsumerCollector(Arc::clone(&metrics.consumers))));
        m.register_collector(Box::new(EventCollector(Arc::clone(&metrics.events))));
        m.register_collector(Box::new(ProcessCollector));
        let (dead, m) = (metrics.keys.of(StateKind::Dead), &mut metrics.by_service);
        m.register("oncegate_jobs_dead", "Keys that were given up and need an operator", dead);
        m.register("oncegate_build_info", "1, with the version of this program", metrics.build.clone());
        metrics
    }

    /// The counters of a route. The same name has the same counters after a reload.
    pub fn route_metrics(&self, route: &Route) -> Arc<RouteMetrics> {
        let path = route.path.to_string().into();
        let route = &route.full_name();
        let (requests, reservations) = (self.requests.of(route), self.reservations.of(route));
        let (recent, failed, rate_limited) =
            (self.recent.of(route), self.failed.of(route), self.rate_limited.of(route));
        let (same_body, weekly) = (self.same_body.of(route), self.weekly.of(route));
        Arc::new(RouteMetrics {
            name: Arc::clone(&route.1),
            path,
            requests,
            recent,
            reservations,
            failed,
            rate_limited,
            same_body,
            weekly,
        })
    }

    /// Counts a key that became unknown.
    pub fn count_unknown(&self, (service, route): (&str, &str), cause: UnknownCause) {
        self.unknown.count((service, route), cause.without_bytes());
        self.weekly.of(&(service.into(), route.into())).count(None, WeeklyKind::MadeUnknown);
    }

    /// Counts a key of another process, or of an earlier one, that became unknown. `top` is the service of a route that
    /// is not known here.
    pub fn count_found_unknown(&self, route: &str, cause: UnknownCause, top: &str) {
        let service = self.recent.service_of(route);
        self.count_unknown((service.as_deref().unwrap_or(top), route), cause);
    }

    /// Counts an unknown outcome that was resolved after this time.
    pub fn count_resolved(&self, (service, route): (&str, &str), unknown_for: Duration) {
        self.unknown_resolved.observe(unknown_for, None);
        self.weekly.of(&(service.into(), route.into())).count_resolved(unknown_for);
    }

    /// All metrics in the format of a scrape.
    pub fn text(&self, format: ScrapeFormat) -> String {
        let traced = [
            ("oncegate_request_duration_seconds", &self.request_duration),
            ("oncegate_upstream_duration_seconds", &self.upstream_duration),
        ];
        text::write(&[&self.registry, &self.by_service], &traced, format)
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
        KeyReused => "key_misuse",
        /// The same request came after `replay.until`: it began a new life of the key.
        Redelivery => "redelivery",
        /// The response is stored.
        Replay => "replay",
        /// The outcome of the key's attempt is unknown.
        Unknown => "unknown",
    }
);

impl ReservationResult {
    /// The kind that the result is counted as in its week; `None` where it began an attempt.
    pub fn weekly_kind(self, is_observed: bool) -> Option<WeeklyKind> {
        Some(match self {
            Self::Created | Self::FailedRetry | Self::Redelivery => return None,
            Self::KeyReused => WeeklyKind::KeyReused,
            _ if is_observed => WeeklyKind::Observed,
            Self::Expired => WeeklyKind::Expired,
            Self::InFlight => WeeklyKind::InFlight,
            Self::Replay => WeeklyKind::Replay,
            Self::Unknown => WeeklyKind::Unknown,
        })
    }
}

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
                KeyRefusal::KeyReused(_) => Self::KeyReused,
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
    /// The result of an inquiry.
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

label!(
    /// The table of the configuration that names an issuer of tokens.
    IssuerTable, "issuer", {
        /// `[admin.oidc]`: it signs operators in.
        AdminOidc => "admin.oidc",
        /// `[jwt]`: it signs callers' tokens.
        Jwt => "jwt",
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
    /// Another method that IANA's registry calls safe.
    OtherSafe,
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
            _ if OTHER_SAFE.contains(&method.as_str()) => Self::OtherSafe,
            _ => Self::Other,
        }
    }

    /// Whether the method may change state. RFC 9110 section 9.2.1 calls the others safe.
    pub fn changes_state(self) -> bool {
        !matches!(self, Self::Get | Self::Head | Self::Options | Self::OtherSafe | Self::Trace)
    }
}

/// The safe methods of IANA's registry (<https://www.iana.org/assignments/http-methods>) besides those of RFC 9110:
/// QUERY (RFC 10008), and those of WebDAV (RFC 4918, RFC 3253, RFC 5323). PRI, which is safe too, is the method of no
/// request.
const OTHER_SAFE: [&str; 4] = ["PROPFIND", "QUERY", "REPORT", "SEARCH"];

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
            Self::Other | Self::OtherSafe => "other",
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
    fn a_method_is_safe_if_the_registry_says_so() {
        for safe in ["GET", "HEAD", "OPTIONS", "PROPFIND", "QUERY", "REPORT", "SEARCH", "TRACE"] {
            assert!(!MethodLabel::from_method(&safe.parse().unwrap()).changes_state(), "{safe}");
        }
        for other in ["POST", "PUT", "PATCH", "DELETE", "COPY", "LOCK", "MKCOL", "PROPPATCH", "query", "X-PAY"] {
            assert!(MethodLabel::from_method(&other.parse().unwrap()).changes_state(), "{other}");
        }
    }

    #[test]
    fn the_answers_of_a_record_are_counted_by_what_became_of_its_attempt() {
        let wait = Duration::from_secs(1);
        let accepted = |progress| KeyAnswer::Accepted(progress);
        for (answer, counted) in [
            (accepted(AcceptedProgress::Pending(wait)), ReservationResult::InFlight),
            (accepted(AcceptedProgress::Unknown(Some(wait))), ReservationResult::Unknown),
            (accepted(AcceptedProgress::Dead), ReservationResult::Unknown),
            (KeyAnswer::Join(wait), ReservationResult::InFlight),
            (KeyAnswer::Refuse(KeyRefusal::Expired), ReservationResult::Expired),
            (KeyAnswer::Refuse(KeyRefusal::InFlight(wait)), ReservationResult::InFlight),
            (KeyAnswer::Refuse(KeyRefusal::KeyReused(Default::default())), ReservationResult::KeyReused),
            (KeyAnswer::Refuse(KeyRefusal::OutcomeUnknown(Some(wait))), ReservationResult::Unknown),
            (KeyAnswer::Refuse(KeyRefusal::ResponseNotKept), ReservationResult::Replay),
        ] {
            assert_eq!(ReservationResult::from(&answer), counted, "{answer:?}");
        }
    }
}
