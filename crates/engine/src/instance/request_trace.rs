//! The trace of a request: its metrics, its log line and its spans.
//!
//! The trace goes with the request, and with its work if that outlives the client. The drop of its last reference
//! reports: each request is reported once, whatever became of it and of its client.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, request};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::boot_time::BootInstant;
use super::metrics::{MethodLabel, RouteMetrics};
use super::observability::Observability;
use oncegate_domain::ids::RecordId;
use oncegate_domain::key::{Key, KeyPrefix};
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_telemetry::logs::{REQUESTS, RequestLine, millis};
use oncegate_telemetry::metrics::Label;
use oncegate_telemetry::traces::{Span, SpanKind, SpanValue, TRACEPARENT, TraceContext, TraceId, TraceParent, Tracer};

/// A stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceStage {
    /// The store reserves the key.
    Reserve,
    /// The service has the request.
    Upstream,
    /// The store takes the outcome.
    Settle,
}

/// The trace of one request.
pub struct RequestTrace {
    observability: Arc<Observability>,
    began: Instant,
    method: MethodLabel,
    parent: Option<TraceParent>,
    context: Option<TraceContext>,
    state: Mutex<TraceState>,
}

#[derive(Default)]
struct TraceState {
    /// The route that guards or observes the request.
    route: Option<Arc<RouteMetrics>>,
    oncegate_status: Option<OncegateStatus>,
    /// The slug of the problem for which the request was refused.
    refusal: Option<&'static str>,
    /// The parts in which the request differs from the one that its key belongs to.
    differs: Option<Arc<str>>,
    attempt: Option<u32>,
    /// The record of the request's key.
    record: Option<RecordId>,
    /// The cause for which the attempt's outcome is unknown.
    cause: Option<UnknownCause>,
    /// Whether no client waits for a response: a delivery or a message.
    has_no_client: bool,
    /// The first bytes of the key, and their number.
    key: KeyPrefix,
    answered: Option<(StatusCode, Duration)>,
    /// The start and the total duration of each stage.
    stages: [Option<(Instant, Duration)>; 3],
}

impl Observability {
    /// Whether unguarded requests are reported too. Usually they are not, and then they cost nothing.
    fn wants_all(&self) -> bool {
        self.tracer.is_some() || tracing::enabled!(target: REQUESTS, tracing::Level::DEBUG)
    }

    /// A trace for a request whose route is not known yet.
    pub fn start_trace(
        self: &Arc<Self>,
        request: &http::Request<impl Sized>,
        began: Instant,
    ) -> Option<Arc<RequestTrace>> {
        self.wants_all().then(|| RequestTrace::new(self, request.method(), request.headers(), began))
    }
}

impl RequestTrace {
    fn new(
        observability: &Arc<Observability>,
        method: &http::Method,
        headers: &HeaderMap,
        began: Instant,
    ) -> Arc<Self> {
        let parent = TraceParent::from_headers(headers);
        let context = observability.tracer.as_ref().and_then(|_| TraceContext::continue_or_begin(parent));
        let (observability, method, state) =
            (Arc::clone(observability), MethodLabel::from_method(method), Mutex::default());
        Arc::new(Self { observability, began, method, parent, context, state })
    }

    /// A trace for a request that a route guards.
    pub fn for_guarded(observability: &Arc<Observability>, head: &request::Parts, began: Instant) -> Arc<Self> {
        Self::new(observability, &head.method, &head.headers, began)
    }

    /// Notes the route that guards the request, or that none does.
    pub fn note_route(&self, route: Option<&Arc<RouteMetrics>>) {
        self.state.lock().route = route.map(Arc::clone);
    }

    /// Notes the value of `Oncegate-Status`.
    pub fn note_oncegate_status(&self, oncegate_status: OncegateStatus) {
        self.state.lock().oncegate_status = Some(oncegate_status);
    }

    /// Notes the problem for which the request is refused.
    pub fn note_refusal(&self, refusal: &Refusal) {
        let mut state = self.state.lock();
        state.refusal = Some(refusal.slug());
        state.differs = Some(refusal.differs()).filter(|names| !names.is_empty()).map(|names| names.join(", ").into());
    }

    /// Notes the attempt's number.
    pub fn note_attempt(&self, number: u32) {
        self.state.lock().attempt = Some(number);
    }

    /// Notes that no client waits for a response.
    pub fn note_no_client(&self) {
        self.state.lock().has_no_client = true;
    }

    /// Notes the record of the request's key.
    pub fn note_record(&self, id: RecordId) {
        self.state.lock().record = Some(id);
    }

    /// Notes that the outcome of the request's attempt is unknown.
    pub fn note_unknown(&self, cause: UnknownCause) {
        self.state.lock().cause = Some(cause);
    }

    /// Notes the beginning of the key.
    pub fn note_key(&self, key: &Key) {
        self.state.lock().key = key.prefix();
    }

    /// The id of the trace, also of one that the caller does not record.
    pub fn trace_id(&self) -> Option<TraceId> {
        self.context.map(|context| context.trace).or(self.parent.map(|parent| parent.trace))
    }

    /// Notes that a stage took this long.
    pub fn note_stage(&self, stage: TraceStage, began: Instant, took: Duration) {
        let mut state = self.state.lock();
        let before = state.stages[stage as usize].get_or_insert((began, Duration::ZERO));
        before.1 += took;
    }

    /// Notes the status of the response.
    pub fn note_response(&self, status: StatusCode) {
        self.state.lock().answered = Some((status, self.began.elapsed()));
    }

    /// Sets `traceparent` for the request to the service.
    pub fn add_traceparent(&self, headers: &mut HeaderMap) {
        if let Some(context) = &self.context {
            headers.insert(TRACEPARENT, context.traceparent());
        }
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut());
        let total = state.answered.map_or_else(|| self.began.elapsed(), |(_, total)| total);
        if let (Some(route), Some(oncegate_status)) = (&state.route, state.oncegate_status) {
            route.requests.count(oncegate_status);
            route.recent.count(oncegate_status, BootInstant::now());
            self.observability.metrics.request_duration.observe(total);
        }
        self.log(&state, total);
        if let (Some(tracer), Some(context)) = (&self.observability.tracer, &self.context) {
            self.trace(&state, total, tracer, context);
        }
    }
}

impl RequestTrace {
    /// Logs guarded requests at info, others at debug.
    fn log(&self, state: &TraceState, total: Duration) {
        let method = self.method.name();
        let status = state.answered.map(|(status, _)| status.as_u16());
        let trace_id = || self.trace_id().map(TraceId::hex);
        let Some(route) = &state.route else {
            tracing::debug!(target: REQUESTS, method, status, total_ms = millis(total), trace_id = trace_id(),
                client_gone = status.is_none().then_some(true), "request");
            return;
        };
        if !RequestLine::is_wanted() {
            return;
        }
        let took = |stage: TraceStage| state.stages[stage as usize].map(|(_, took)| took);
        let key = Some(state.key.as_str()).filter(|key| !key.is_empty());
        let (record, cause) = (state.record.map(|id| id.to_string()), state.cause.map(|cause| cause.to_string()));
        RequestLine {
            route: &route.name,
            path: &route.path,
            method,
            oncegate_status: state.oncegate_status.map(OncegateStatus::name),
            refusal: state.refusal,
            differs: state.differs.as_deref(),
            status,
            attempt: state.attempt,
            total_ms: millis(total),
            store_ms: took(TraceStage::Reserve)
                .map(|reserve| millis(reserve + took(TraceStage::Settle).unwrap_or_default())),
            upstream_ms: took(TraceStage::Upstream).map(millis),
            key,
            record: record.as_deref(),
            cause: cause.as_deref(),
            trace_id: trace_id().as_deref(),
            client_gone: status.is_none() && !state.has_no_client,
        }
        .log();
    }

    /// Reports a span for the request, and one for each of its stages.
    fn trace(&self, state: &TraceState, total: Duration, tracer: &Tracer, context: &TraceContext) {
        let method = self.method.name();
        let status = state.answered.map(|(status, _)| status);
        let mut attributes = vec![("http.request.method", SpanValue::Word(method))];
        if let Some(status) = status {
            attributes.push(("http.response.status_code", SpanValue::Number(i64::from(status.as_u16()))));
        }
        if let Some(oncegate_status) = state.oncegate_status {
            attributes.push(("oncegate.status", SpanValue::Word(oncegate_status.name())));
        }
        if let Some(differs) = &state.differs {
            attributes.push(("oncegate.differs", SpanValue::Name(Arc::clone(differs))));
        }
        if let Some(attempt) = state.attempt {
            attributes.push(("oncegate.attempt", SpanValue::Number(i64::from(attempt))));
        }
        let name = match &state.route {
            Some(route) => {
                attributes.push(("oncegate.route", SpanValue::Name(Arc::clone(&route.name))));
                format!("{method} {}", route.name)
            }
            None => method.to_owned(),
        };
        let failed = status.is_some_and(|status| status.is_server_error());
        let (trace, id, parent, began) = (context.trace, context.span, context.parent, context.began);
        let kind = SpanKind::Server;
        let mut spans = vec![Span { trace, id, parent, kind, name, began, took: total, attributes, failed }];
        for stage in [TraceStage::Reserve, TraceStage::Upstream, TraceStage::Settle] {
            let Some((began, took)) = state.stages[stage as usize] else { continue };
            let began: SystemTime = context.began + began.saturating_duration_since(self.began);
            let (id, name, attributes) = match stage {
                TraceStage::Reserve | TraceStage::Settle => {
                    let op = if stage == TraceStage::Reserve { "reserve" } else { "settle" };
                    (context.new_span_id(), format!("store {op}"), vec![("db.operation.name", SpanValue::Word(op))])
                }
                TraceStage::Upstream => {
                    (context.onward, method.to_owned(), vec![("http.request.method", SpanValue::Word(method))])
                }
            };
            let (parent, kind) = (Some(context.span), SpanKind::Client);
            spans.push(Span { trace, id, parent, kind, name, began, took, attributes, failed: false });
        }
        tracer.send(spans);
    }
}
