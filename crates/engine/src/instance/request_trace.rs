//! The trace of a request: its metrics, its log line and its spans.
//!
//! The trace goes with the request, and with its work if that outlives the client. The drop of its last reference
//! reports: each request is reported once, whatever became of it and of its client.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::HOST;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Request, StatusCode, Version, request};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::boot_time::BootInstant;
use super::metrics::{MethodLabel, RouteMetrics};
use super::observability::{Observability, push_template};
use oncegate_domain::ids::RecordId;
use oncegate_domain::key::KeyPrefix;
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_http::upstream::UpstreamClient;
use oncegate_settings::bare_host;
use oncegate_store::StoreError;
use oncegate_telemetry::logs::{REQUESTS, RequestLine, millis};
use oncegate_telemetry::metrics::Label;
use oncegate_telemetry::traces::{
    Span, SpanKind, SpanValue, TRACEPARENT, TRACESTATE, TraceContext, TraceId, TraceParent, Tracer,
};

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

/// An error with which a stage ends.
pub trait StageError {
    /// Its name as an `error.type`; `None` if nothing has failed.
    fn error_type(&self) -> Option<&'static str>;
}

impl StageError for StoreError {
    fn error_type(&self) -> Option<&'static str> {
        Some(match self {
            Self::TimedOut => "timeout",
            Self::Unavailable(_) => "unavailable",
            Self::Corrupt(_) | Self::Failed(_) | Self::Taken(_) => "_OTHER",
        })
    }
}

/// The trace of one request.
pub struct RequestTrace {
    observability: Arc<Observability>,
    began: Instant,
    method: MethodLabel,
    parent: Option<TraceParent>,
    context: Option<TraceContext>,
    /// The attributes of a client's request, and its path as far as it may be shown; where the trace is recorded.
    head: Option<(Vec<Attribute>, Arc<str>)>,
    state: Mutex<TraceState>,
}

type Attribute = (&'static str, SpanValue);

/// The kind of a broker, and the queue or topic there.
pub type MessageBroker = (&'static str, Arc<str>);

/// The start, the total duration and the error of a stage.
type StageTimes = (Instant, Duration, Option<&'static str>);

/// The facts that are noted of a request.
#[derive(Default)]
pub struct TraceState {
    /// The route that has the request's path.
    route: Option<Arc<RouteMetrics>>,
    /// Whether that guards or observes the request.
    pub is_guarded: bool,
    /// The client's address, where its route keeps it.
    pub client_address: Option<IpAddr>,
    /// The value of `Oncegate-Status`.
    pub oncegate_status: Option<OncegateStatus>,
    /// The slug of the problem for which the request was refused.
    refusal: Option<&'static str>,
    /// Why its signature or token is not valid.
    fault: Option<&'static str>,
    /// Whether Oncegate or its store was the cause.
    has_failed: bool,
    /// The parts in which the request differs from the one that its key belongs to.
    differs: Option<Arc<str>>,
    /// The attempt's number.
    pub attempt: Option<u32>,
    /// The record of the request's key.
    pub record: Option<RecordId>,
    /// The cause for which the attempt's outcome is unknown.
    pub cause: Option<UnknownCause>,
    /// Whether no client waits for a response: a delivery or a message.
    pub has_no_client: bool,
    /// Whether it repeats an attempt of unknown outcome at a vendor: it is nobody's request, and answers none.
    pub is_repetition: bool,
    /// The broker of a message.
    pub broker: Option<MessageBroker>,
    /// The first bytes of the key, and their number.
    pub key: KeyPrefix,
    answered: Option<(StatusCode, Duration)>,
    stages: [Option<StageTimes>; 3],
    /// The attributes of the call of the service, and the status that is its error.
    call: (Vec<Attribute>, Option<SpanValue>),
}

impl TraceState {
    fn guarding_route(&self) -> Option<&Arc<RouteMetrics>> {
        self.route.as_ref().filter(|_| self.is_guarded)
    }
}

impl Observability {
    /// Whether unguarded requests are reported too. Usually they are not, and then they cost nothing.
    fn wants_all(&self) -> bool {
        self.tracer.is_some() || tracing::enabled!(target: REQUESTS, tracing::Level::DEBUG)
    }

    /// A trace for a client's request, whose route is not known yet.
    pub fn start_trace(
        self: &Arc<Self>,
        request: &Request<impl Sized>,
        is_secure: bool,
        began: Instant,
    ) -> Option<Arc<RequestTrace>> {
        self.wants_all().then(|| {
            let mut trace = RequestTrace::new(self, request.method(), request.headers(), began);
            trace.head = trace.recorded().map(|_| describe_head(request, is_secure));
            Arc::new(trace)
        })
    }
}

/// The attributes of a client's request, and its path without identifiers.
fn describe_head(request: &Request<impl Sized>, is_secure: bool) -> (Vec<Attribute>, Arc<str>) {
    let version = match request.version() {
        Version::HTTP_2 => "2",
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    };
    let (scheme, port) = if is_secure { ("https", 443) } else { ("http", 80) };
    let mut attributes =
        vec![("url.scheme", SpanValue::Word(scheme)), ("network.protocol.version", SpanValue::Word(version))];
    let named = || request.headers().get(HOST)?.to_str().ok()?.parse().ok();
    if let Some(host) = request.uri().authority().cloned().or_else(named) {
        add_server(&mut attributes, &host, port);
    }
    let mut path = String::new();
    push_template(&mut path, request.uri().path());
    (attributes, path.into())
}

fn add_server(attributes: &mut Vec<Attribute>, host: &Authority, default_port: u16) {
    let port = host.port_u16().unwrap_or(default_port);
    attributes.push(("server.address", SpanValue::Text(bare_host(host).into())));
    attributes.push(("server.port", SpanValue::Number(port.into())));
}

impl RequestTrace {
    fn new(observability: &Arc<Observability>, method: &http::Method, headers: &HeaderMap, began: Instant) -> Self {
        let parent = TraceParent::from_headers(headers);
        let tracer = observability.tracer.as_ref();
        let context = tracer.and_then(|tracer| TraceContext::continue_or_begin(parent, tracer.sampler));
        let (observability, method, state) =
            (Arc::clone(observability), MethodLabel::from_method(method), Mutex::default());
        Self { observability, began, method, parent, context, head: None, state }
    }

    /// A trace for a request that a route guards.
    pub fn for_guarded(observability: &Arc<Observability>, head: &request::Parts, began: Instant) -> Arc<Self> {
        Arc::new(Self::new(observability, &head.method, &head.headers, began))
    }

    /// The context of a trace that is recorded.
    fn recorded(&self) -> Option<&TraceContext> {
        self.context.as_ref().filter(|context| context.sampled)
    }

    /// The id of a trace that is recorded.
    pub fn recorded_id(&self) -> Option<TraceId> {
        self.recorded().map(|context| context.trace)
    }

    /// Notes facts.
    pub fn note(&self, note: impl FnOnce(&mut TraceState)) {
        note(&mut self.state.lock());
    }

    /// Notes the route that has the request's path, and whether it guards or observes the request. One that does wins.
    pub fn note_route(&self, route: &Arc<RouteMetrics>, is_guarded: bool) {
        let mut state = self.state.lock();
        if is_guarded || !state.is_guarded {
            (state.route, state.is_guarded) = (Some(Arc::clone(route)), is_guarded);
        }
    }

    /// Notes the problem for which the request is refused.
    pub fn note_refusal(&self, refusal: &Refusal) {
        let mut state = self.state.lock();
        (state.refusal, state.fault) = (Some(refusal.slug()), refusal.fault());
        state.has_failed = refusal.is_own_failure();
        state.differs = Some(refusal.differs()).filter(|names| !names.is_empty()).map(|names| names.join(", ").into());
    }

    /// The id of the trace, also of one that the caller does not record.
    pub fn trace_id(&self) -> Option<TraceId> {
        self.context.map(|context| context.trace).or(self.parent.map(|parent| parent.trace))
    }

    /// Notes that a stage took this long, and the error with which it has ended.
    pub fn note_stage(&self, stage: TraceStage, began: Instant, took: Duration, error: Option<&'static str>) {
        let mut state = self.state.lock();
        let stage = state.stages[stage as usize].get_or_insert((began, Duration::ZERO, None));
        (stage.1, stage.2) = (stage.1 + took, error);
    }

    /// Notes a call of the service, and its status or the slug of the problem with which it has ended.
    pub fn note_call(
        &self,
        upstream: &UpstreamClient,
        (began, took): (Instant, Duration),
        result: Result<StatusCode, &'static str>,
    ) {
        self.note_stage(TraceStage::Upstream, began, took, result.err());
        if self.recorded().is_none() {
            return;
        }
        let version = if upstream.shares_connections() { "2" } else { "1.1" };
        let mut attributes = vec![
            ("http.request.method", SpanValue::Word(self.span_method().0)),
            ("network.protocol.version", SpanValue::Word(version)),
        ];
        let mut state = self.state.lock();
        let (target, path) = (upstream.target(), self.shown_path(&state).unwrap_or_default());
        if let (Some(host), Some(scheme)) = (target.authority(), target.scheme()) {
            add_server(&mut attributes, host, if *scheme == Scheme::HTTPS { 443 } else { 80 });
            attributes.push(("url.full", SpanValue::Text(format!("{scheme}://{host}{path}").into())));
        }
        if let Some(again) = state.attempt.filter(|attempt| *attempt > 1) {
            attributes.push(("http.request.resend_count", SpanValue::Number(i64::from(again) - 1)));
        }
        let mut error = None;
        if let Ok(status) = result {
            attributes.push(("http.response.status_code", SpanValue::Number(status.as_u16().into())));
            error = (status.as_u16() >= 400).then(|| SpanValue::Text(status.as_str().into()));
        }
        state.call = (attributes, error);
    }

    /// The path as far as it may be shown: the route's, else the request's without identifiers.
    fn shown_path(&self, state: &TraceState) -> Option<Arc<str>> {
        let route = state.route.as_ref().map(|route| &route.path);
        route.or(self.head.as_ref().map(|(_, path)| path)).map(Arc::clone)
    }

    /// Notes the status of the response.
    pub fn note_response(&self, status: StatusCode) {
        self.state.lock().answered = Some((status, self.began.elapsed()));
    }

    /// Sets `traceparent` for the request to the service. A `tracestate` goes on with the trace that it is of.
    pub fn add_traceparent(&self, headers: &mut HeaderMap) {
        if let Some(context) = &self.context {
            headers.insert(TRACEPARENT, context.traceparent());
            if context.parent.is_none() {
                headers.remove(TRACESTATE);
            }
        }
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut());
        let total = state.answered.map_or_else(|| self.began.elapsed(), |(_, total)| total);
        if let (Some(route), Some(oncegate_status), false) =
            (state.guarding_route(), state.oncegate_status, state.is_repetition)
        {
            route.requests.count(oncegate_status);
            route.failed.inc_by(u64::from(state.has_failed));
            route.recent.count(oncegate_status, BootInstant::now());
            self.observability.metrics.request_duration.observe(total, self.recorded_id());
        }
        self.log(&state, total);
        if let (Some(tracer), Some(context)) = (&self.observability.tracer, self.recorded()) {
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
        let Some(route) = state.guarding_route() else {
            tracing::debug!(target: REQUESTS, method, status, total_ms = millis(total), trace_id = trace_id(),
                client_gone = status.is_none().then_some(true), "request");
            return;
        };
        if !RequestLine::is_wanted() {
            return;
        }
        let took = |stage: TraceStage| state.stages[stage as usize].map(|(_, took, _)| took);
        let key = Some(state.key.as_str()).filter(|key| !key.is_empty());
        let (record, cause) = (state.record.map(|id| id.to_string()), state.cause.map(|cause| cause.to_string()));
        RequestLine {
            route: &route.name,
            path: &route.path,
            method,
            oncegate_status: state.oncegate_status.map(OncegateStatus::name),
            refusal: state.refusal,
            fault: state.fault,
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

    /// Reports a span for the request, and one for each of its stages, by OpenTelemetry's semantic conventions.
    fn trace(&self, state: &TraceState, total: Duration, tracer: &Tracer, context: &TraceContext) {
        let (trace, parent, kind) = (context.trace, Some(context.span), SpanKind::Client);
        let mut spans = vec![self.request_span(state, total, context)];
        for stage in [TraceStage::Reserve, TraceStage::Upstream, TraceStage::Settle] {
            let Some((began, took, error)) = state.stages[stage as usize] else { continue };
            let began: SystemTime = context.began + began.saturating_duration_since(self.began);
            let error = error.map(SpanValue::Word);
            let (id, name, attributes, refused) = match stage {
                TraceStage::Reserve | TraceStage::Settle => {
                    let operation = if stage == TraceStage::Reserve { "reserve" } else { "settle" };
                    let attributes = vec![
                        ("db.system.name", SpanValue::Word(self.observability.database)),
                        ("db.operation.name", SpanValue::Word(operation)),
                        ("db.collection.name", SpanValue::Word("keys")),
                    ];
                    (context.new_span_id(), format!("{operation} keys"), attributes, None)
                }
                TraceStage::Upstream => {
                    let (attributes, refused) = state.call.clone();
                    (context.onward, self.span_method().1.to_owned(), attributes, refused)
                }
            };
            spans.push(Span { trace, id, parent, kind, name, began, took, attributes, error: error.or(refused) });
        }
        tracer.send(spans);
    }

    /// The method as an attribute has it, and as the name of a span has it. Others than these are a client's words.
    fn span_method(&self) -> (&'static str, &'static str) {
        match self.method {
            MethodLabel::Other | MethodLabel::OtherSafe => ("_OTHER", "HTTP"),
            method => (method.name(), method.name()),
        }
    }

    /// The span of the request itself.
    fn request_span(&self, state: &TraceState, total: Duration, context: &TraceContext) -> Span {
        let (method, name) = self.span_method();
        let route = state.route.as_ref();
        let status = state.answered.map(|(status, _)| status);
        let word = |name, value: Option<&'static str>| Some((name, SpanValue::Word(value?)));
        let number = |name, value: Option<i64>| Some((name, SpanValue::Number(value?)));
        let text = |name, value: Option<Arc<str>>| Some((name, SpanValue::Text(value?)));
        let template = || route.map(|route| Arc::clone(&route.path));
        let mut attributes = vec![
            word("oncegate.status", state.oncegate_status.map(OncegateStatus::name)),
            word("oncegate.refusal", state.refusal),
            text("oncegate.differs", state.differs.clone()),
            number("oncegate.attempt", state.attempt.map(i64::from)),
            text("oncegate.record", state.record.map(|id| id.to_string().into())),
            text("oncegate.cause", state.cause.map(|cause| cause.to_string().into())),
            text("oncegate.route", route.map(|route| Arc::clone(&route.name))),
        ];
        let (kind, name, failing) = if let Some((system, destination)) = &state.broker {
            attributes.extend([
                word("messaging.system", Some(system)),
                word("messaging.operation.name", Some("process")),
                word("messaging.operation.type", Some("process")),
                text("messaging.destination.name", Some(Arc::clone(destination))),
            ]);
            (SpanKind::Consumer, format!("process {destination}"), 400)
        } else {
            attributes.extend([
                word("http.request.method", Some(method)),
                number("http.response.status_code", status.map(|status| status.as_u16().into())),
                text("http.route", template()),
                text("url.path", self.shown_path(state)),
                text("client.address", state.client_address.map(|address| address.to_string().into())),
            ]);
            attributes.extend(self.head.iter().flat_map(|(head, _)| head.iter().cloned().map(Some)));
            let kind = if state.has_no_client { SpanKind::Internal } else { SpanKind::Server };
            (kind, template().map_or(name.to_owned(), |path| format!("{name} {path}")), 500)
        };
        let code = status.filter(|status| status.as_u16() >= failing).map(|status| status.as_str().into());
        let error = match (state.refusal, code) {
            (Some(refusal), code) if code.is_some() || state.has_no_client => Some(SpanValue::Word(refusal)),
            (_, code) => code.map(SpanValue::Text),
        };
        let attributes = attributes.into_iter().flatten().collect();
        let TraceContext { trace, span: id, parent, began, .. } = *context;
        Span { trace, id, parent, kind, name, began, took: total, attributes, error }
    }
}
