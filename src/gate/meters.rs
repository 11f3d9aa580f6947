//! Every metric there is, by its name.
//!
//! Labels are enums and the names of routes. A key, a scope, a token, a path or anything else that a client chooses is
//! never one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::Method;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

use super::decide::Decision;
use super::refuse::Refusal;
use super::status::Told;
use crate::domain::phase::Phase;
use crate::store::meters::StoreMeters;
use crate::telemetry::logs;
use crate::telemetry::metrics::{
    Build, ByRoute, Collector, Counter, Counters, Format, Gauge, Gauges, Histogram, Label, Registry, label, text,
};
use crate::telemetry::process::Process;
use crate::telemetry::traces;

/// What is counted. Each field is a metric, and each is counted where it happens.
pub struct Meters {
    registry: Registry,
    requests: ByRoute<Told>,
    reservations: ByRoute<Found>,
    /// From a guarded request's head to its answer's.
    pub request_duration: Histogram,
    /// How long services took for attempts.
    pub upstream_duration: Histogram,
    /// What changes something and was forwarded with nothing to guard it.
    pub unguarded: Counters<Verb>,
    /// Records that were told without the store.
    pub cache_hits: Counters<Tier>,
    /// Attempts whose lease has run out.
    pub zombies: Counter,
    /// Keys past their TTL that were deleted.
    pub reaped: Counter,
    /// Questions to services.
    pub reconcile: Counters<Reconciled>,
    /// Ends of attempts that came late.
    pub late_completions: Counters<Late>,
    /// Attempts that are running here.
    pub in_flight: Gauge,
    /// 1 while the store is not asked.
    pub breaker_open: Gauge,
    /// Keys in the store.
    pub keys: Gauges<Phase>,
    /// 1 if the newest configuration is the running one.
    pub reload_successful: Gauge,
    /// When the running configuration was taken over, in seconds since 1970.
    pub reloaded_at: Gauge,
    /// Configurations that were not taken over.
    pub reload_failures: Counter,
    /// Spans that were sent and dropped.
    pub spans: Arc<traces::Tally>,
}

/// What one route counts with.
#[derive(Clone, Debug)]
pub struct RouteMeters {
    /// The route's name.
    pub name: Arc<str>,
    /// Its answers.
    pub requests: Counters<Told>,
    /// What its requests found.
    pub reservations: Counters<Found>,
}

impl Meters {
    /// All at zero. The store counts by itself.
    pub fn new(store: &StoreMeters) -> Self {
        let mut meters = Self {
            registry: Registry::default(),
            requests: ByRoute::default(),
            reservations: ByRoute::default(),
            request_duration: Histogram::default(),
            upstream_duration: Histogram::default(),
            unguarded: Counters::default(),
            cache_hits: Counters::default(),
            zombies: Counter::default(),
            reaped: Counter::default(),
            reconcile: Counters::default(),
            late_completions: Counters::default(),
            in_flight: Gauge::default(),
            breaker_open: Gauge::default(),
            keys: Gauges::default(),
            reload_successful: Gauge::default(),
            reloaded_at: Gauge::default(),
            reload_failures: Counter::default(),
            spans: Arc::default(),
        };
        meters.register(store);
        meters
    }

    /// Counters go without their `_total` here, which is written for them.
    #[rustfmt::skip]
    fn register(&mut self, store: &StoreMeters) {
        let m = &mut self.registry;
        let name = |name: &str| format!("oncegate_{name}");
        m.register(name("requests"), "Answers to requests that a route guards, by their Oncegate-Status", self.requests.clone());
        m.register(name("reservations"), "What keyed requests found when their key was looked up", self.reservations.clone());
        m.register(name("request_duration_seconds"), "From a guarded request's head to its answer's", self.request_duration.clone());
        m.register(name("upstream_duration_seconds"), "How long services took for attempts", self.upstream_duration.clone());
        m.register(name("store_duration_seconds"), "How long calls of the store took", store.durations.clone());
        m.register(name("store_errors"), "Calls of the store that failed", store.errors.clone());
        m.register(name("store_breaker_open"), "1 while the store is not asked because it has failed repeatedly", self.breaker_open.clone());
        m.register(name("in_flight"), "Attempts that this instance runs, or whose end it has yet to store", self.in_flight.clone());
        m.register(name("zombie_keys"), "Keys whose attempt's lease ran out, made unknown by this instance", self.zombies.clone());
        m.register(name("keys_reaped"), "Keys past their TTL that this instance has deleted", self.reaped.clone());
        m.register(name("keys"), "Keys of this service in the store; what is settled is estimated from a sample", self.keys.clone());
        m.register(name("jobs_dead"), "Keys that were given up and wait for an operator", self.keys.of(Phase::Dead));
        m.register(name("reconcile"), "Questions to services about unknown outcomes", self.reconcile.clone());
        m.register(name("late_completions"), "Ends of attempts that came after their lease, or that the store could not take at once", self.late_completions.clone());
        m.register(name("cache_hits"), "Records that were told without asking the store", self.cache_hits.clone());
        m.register(name("unguarded"), "State-changing requests that were forwarded with nothing to guard them", self.unguarded.clone());
        m.register(name("config_last_reload_successful"), "1 if the newest configuration is the running one", self.reload_successful.clone());
        m.register(name("config_last_reload_success_timestamp_seconds"), "When the running configuration was taken over", self.reloaded_at.clone());
        m.register(name("config_reload_failures"), "Configurations that were refused", self.reload_failures.clone());
        m.register(name("build_info"), "1, with the version of this program", Build);
        m.register_collector(Box::new(Telling(Arc::clone(&self.spans))));
        m.register_collector(Box::new(Process));
    }

    /// What a route counts with; the same for the same name, whatever is reloaded in between.
    pub fn of(&self, route: &Arc<str>) -> Arc<RouteMeters> {
        let (requests, reservations) = (self.requests.of(route), self.reservations.of(route));
        Arc::new(RouteMeters { name: Arc::clone(route), requests, reservations })
    }

    /// All of it, as it is scraped.
    pub fn text(&self, format: Format) -> String {
        text::write(&self.registry, format)
    }
}

/// How the telling itself goes.
#[derive(Debug)]
struct Telling(Arc<traces::Tally>);

impl Collector for Telling {
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

impl Label for Told {
    const NAME: &'static str = "status";
    const ALL: &'static [Self] = &Told::ALL;

    fn name(self) -> &'static str {
        self.name()
    }
}

impl Label for Phase {
    const NAME: &'static str = "state";
    const ALL: &'static [Self] = &Phase::ALL;

    fn name(self) -> &'static str {
        self.name()
    }
}

label!(
    /// What a keyed request found.
    Found, "result", {
        /// Nothing: it became the first attempt.
        Created => "created",
        /// A key that is past its TTL, and remembered.
        Expired => "expired",
        /// The last attempt was released, or may be followed: it became the next one.
        FailedRetry => "failed_retry",
        /// An attempt that is running.
        InFlight => "in_flight",
        /// Another request's key.
        KeyMisuse => "key_misuse",
        /// A stored response.
        Replay => "replay",
        /// An attempt of which nobody knows how it ended.
        Unknown => "unknown",
    }
);

label!(
    /// Where a record was told from instead of the store.
    Tier, "tier", {
        /// This process's memory.
        Memory => "memory",
    }
);

label!(
    /// What came of asking a service how an attempt ended.
    Reconciled, "result", {
        /// It was asked, and its answer was no answer to that.
        Failed => "failed",
        /// It was asked: the key can be claimed again by others later.
        Scheduled => "scheduled",
        /// It has said how it ended, and that stands in the store.
        Resolved => "resolved",
    }
);

label!(
    /// What became of the end of an attempt that came late.
    Late, "result", {
        /// Somebody else had decided.
        Dropped => "dropped",
        /// It stands in the store.
        Taken => "taken",
    }
);

/// A request's method; whatever a client makes up is one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RFC 9110 section 9.3.5.
    Delete,
    /// Safe: it changes nothing.
    Get,
    /// Safe.
    Head,
    /// Safe.
    Options,
    /// Any other one, which may do anything.
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

impl Verb {
    /// Of a request.
    pub fn of(method: &Method) -> Self {
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

    /// RFC 9110 section 9.2.1: the other methods are safe.
    pub fn changes_state(self) -> bool {
        !matches!(self, Self::Get | Self::Head | Self::Options | Self::Trace)
    }
}

/// Those that change something: the others are never counted by their method.
impl Label for Verb {
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

impl Found {
    /// What a decision rests on; `None` for one that is about something else, or that is not made yet.
    pub fn of(decision: &Decision) -> Option<Self> {
        match decision {
            // What is accepted runs on its own, and whoever repeats it meets with it.
            Decision::Accepted(_) | Decision::Join(_) => Some(Self::InFlight),
            Decision::Replay(_) | Decision::Refuse(Refusal::ResponseNotKept) => Some(Self::Replay),
            Decision::Refuse(Refusal::KeyExpired) => Some(Self::Expired),
            Decision::Refuse(Refusal::KeyReused) => Some(Self::KeyMisuse),
            Decision::Refuse(Refusal::OutcomeUnknown(_)) => Some(Self::Unknown),
            Decision::Refuse(_) | Decision::TakeOver(_) => None,
        }
    }
}
