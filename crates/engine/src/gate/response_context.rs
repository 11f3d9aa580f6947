//! The part of a request that its response needs.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::TRAILER;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version, request};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::outcome::Outcome;
use crate::instance::metrics::RouteMetrics;
use crate::instance::observability::Observability;
use crate::instance::request_trace::{RequestTrace, StageError, TraceStage, TraceState};
use oncegate_domain::ids::RecordId;
use oncegate_domain::jsonrpc::RpcId;
use oncegate_domain::key::{Key, KeyPrefix};
use oncegate_http::body::Body;
use oncegate_http::protocol::answer_shape::{AnswerShape, RefusedRequest, RequestFormat};
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_http::protocol::{cors, event_stream, fields, grpc, prefer};
use oncegate_settings::{CorsPolicy, Route, RouteMode};
use oncegate_telemetry::traces::TraceId;

/// The fields that Oncegate adds to a response, whether the client takes trailers, and the request's trace.
#[derive(Clone, Default)]
pub struct ResponseContext {
    /// The mode of the route that guards or observes the request; `None` if no route does.
    mode: Option<RouteMode>,
    /// Whether the request is a gRPC call, to which Oncegate's own answers have a gRPC status.
    pub(super) is_call: bool,
    pub(super) accepts_trailers: bool,
    /// Whether a client waits that can tell the end of a response from a cut: over HTTP/1.0 both are the end of the
    /// connection.
    pub(super) takes_streams: bool,
    /// The id of the last event that the client has received.
    pub(super) last_event_id: Option<HeaderValue>,
    /// Cancelled when the client has left, where the route stops the service then.
    pub(super) client_gone: Option<CancellationToken>,
    pub(super) prefers_async: bool,
    /// The status of the answer to a request that its route accepts for later.
    pub(super) accepted: StatusCode,
    /// The origin of the page that sent the request.
    page: Option<HeaderValue>,
    /// The policy for pages of other origins; `None` where it allows none.
    cors: Option<Arc<CorsPolicy>>,
    key_field: Option<(HeaderName, HeaderValue)>,
    /// The request's fields that its answer echoes.
    echoed: Vec<(HeaderName, HeaderValue)>,
    pub(super) answer_shape: AnswerShape,
    /// The key and its record, where the route's own refusals may have them.
    key: Option<Key>,
    record: Option<RecordId>,
    /// The id of a JSON-RPC call, which its answer has to have.
    pub(super) rpc_id: Option<RpcId>,
    began: Option<Instant>,
    pub(super) trace: Option<Arc<RequestTrace>>,
}

impl ResponseContext {
    /// The context of a request. No route owns it yet, so `cors` is the policy at the top.
    pub fn new(request: &Request<impl Sized>, cors: &Arc<CorsPolicy>) -> Self {
        let headers = request.headers();
        let is_call = fields::is_grpc(headers);
        Self {
            is_call,
            // A call's status is in its trailers, so its client reads them whatever it says.
            accepts_trailers: is_call || fields::accepts_trailers(headers),
            takes_streams: request.version() > Version::HTTP_10,
            last_event_id: headers.get(event_stream::LAST_EVENT_ID).cloned(),
            prefers_async: prefer::prefers_async(headers),
            page: cors::request_origin(headers),
            cors: unless_empty(cors),
            answer_shape: AnswerShape::of_no_route(RequestFormat::of(headers)),
            began: Some(Instant::now()),
            ..Self::default()
        }
    }

    pub(super) fn note_route(&mut self, route: &Route, metrics: &Arc<RouteMetrics>, headers: &HeaderMap) {
        self.with_trace(|trace| trace.note_route(metrics, false));
        let key = &route.options.key;
        // A key that is a secret is not sent back.
        let is_secret = |name: &HeaderName| key.hash && key.fields().any(|field| field == name);
        let echo = route.options.replay.echo.iter().filter(|name| !is_secret(name));
        self.echoed = echo.filter_map(|name| Some((name.clone(), headers.get(name)?.clone()))).collect();
        self.cors = unless_empty(&route.cors);
        self.accepted = route.options.accepted;
        self.answer_shape = AnswerShape::of_route(route, self.answer_shape.format());
    }

    /// A body with its trailers, if the client understands them (RFC 9110 section 6.5.1). Announces them in `headers`,
    /// because HTTP/1.1 sends no trailer that is not announced.
    pub fn body(&self, data: Bytes, trailers: HeaderMap, headers: &mut HeaderMap) -> Body {
        if trailers.is_empty() || !self.accepts_trailers {
            return Body::whole(data);
        }
        for name in trailers.keys() {
            headers.append(TRAILER, HeaderValue::from_name(name.clone()));
        }
        Body::with_trailers(data, trailers)
    }

    /// The part of a stream of events that the client has not received; all of it if the last event that it names is
    /// not there.
    pub(super) fn unread_events(&self, headers: &HeaderMap, body: &[u8]) -> usize {
        match &self.last_event_id {
            Some(id) if event_stream::is_event_stream(headers) => {
                event_stream::end_of_event(body, id.as_bytes()).unwrap_or_default()
            }
            Some(_) | None => 0,
        }
    }

    /// Notes the key: its beginning in the trace, and the whole for the route's own refusals, unless it is a secret.
    pub(super) fn note_key(&mut self, key: &Key, route: &Route) {
        self.note(|state| state.key = key.prefix());
        self.key = (!route.options.key.hash && !route.options.refusals.is_empty()).then(|| key.clone());
    }

    /// Forgets the key of a batch's part: the batch has none, and each part has a trace of its own.
    pub(super) fn forget_key(&mut self) {
        self.note(|state| state.key = KeyPrefix::default());
        self.key = None;
    }

    /// Notes the record of the key.
    pub(super) fn note_record(&mut self, id: RecordId) {
        self.note(|state| state.record = Some(id));
        self.record = Some(id);
    }

    /// The answer to a refused request: a gRPC status, or the form of its route.
    pub(super) fn refuse(&self, refusal: &Refusal, problem_base: &str) -> Response<Body> {
        self.with_trace(|trace| trace.note_refusal(refusal));
        if self.is_call {
            return grpc::refusal_response(refusal);
        }
        let record = self.record.map(|id| id.to_string());
        let key = self.key.as_ref().map(|key| String::from_utf8_lossy(key.as_bytes()));
        let (rpc_id, key, record) = (self.rpc_id.as_ref(), key.as_deref(), record.as_deref());
        self.answer_shape.render(refusal, problem_base, RefusedRequest { rpc_id, key, record })
    }

    /// Echoes the key's field, which is well-formed, as it was received.
    pub fn echo_key(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.key_field = Some((name.clone(), value.clone()));
    }

    /// Adds `Oncegate-Status` and the fields of the dialect, if a route guards the request, and the echoed key. Notes
    /// the status in the trace. The status of an observed request is that it is observed, whatever became of it.
    pub fn add_fields(&self, response: &mut Response<Body>, status: OncegateStatus) {
        let code = response.status();
        let headers = response.headers_mut();
        match self.mode {
            Some(RouteMode::Enforce) => {
                self.note(|state| state.oncegate_status = Some(status));
                headers.insert(fields::ONCEGATE_STATUS, status.value());
                self.answer_shape.add_fields((code, headers), status);
            }
            Some(RouteMode::Observe) => self.mark_observed(headers),
            Some(RouteMode::Off) | None => {}
        }
        if let Some((name, value)) = &self.key_field {
            headers.insert(name, value.clone());
        }
    }

    /// Gives an answer of Oncegate's own the request's fields, and a replay those of them that its response has.
    pub(super) fn echo_fields(&self, headers: &mut HeaderMap, is_replay: bool) {
        for (name, value) in &self.echoed {
            if !is_replay || headers.contains_key(name) {
                headers.insert(name, value.clone());
            }
        }
    }

    pub(super) fn mark_observed(&self, headers: &mut HeaderMap) {
        if self.mode == Some(RouteMode::Observe) {
            headers.insert(fields::ONCEGATE_STATUS, OncegateStatus::Observed.value());
        }
    }

    /// Adds the CORS fields of an answer of Oncegate's own, or of a replay.
    pub fn add_cors_fields(&self, headers: &mut HeaderMap) {
        let key = self.key_field.as_ref().map(|(name, _)| name);
        cors::add_fields(headers, self.page.as_ref(), self.cors.as_deref(), key);
    }

    /// Notes the status of a request whose outcome is not there yet, in the trace.
    pub(super) fn note_status(&self, status: OncegateStatus) {
        if self.mode == Some(RouteMode::Enforce) {
            self.note(|state| state.oncegate_status = Some(status));
        }
    }

    /// Notes the status of an outcome in the trace. A refusal is noted where it is rendered: a client that has left
    /// gets none.
    pub(super) fn note_outcome(&self, outcome: &Outcome) {
        if !matches!(outcome, Outcome::Refused(_)) {
            self.note_status(outcome.oncegate_status());
        }
    }

    pub(super) fn began(&self) -> Instant {
        self.began.unwrap_or_else(Instant::now)
    }

    pub(super) fn guard(
        &mut self,
        observability: &Arc<Observability>,
        head: &request::Parts,
        route: &Arc<RouteMetrics>,
    ) {
        self.mode = Some(RouteMode::Enforce);
        let began = self.began();
        self.trace.get_or_insert_with(|| RequestTrace::for_guarded(observability, head, began)).note_route(route, true);
    }

    pub(super) fn observe(
        &mut self,
        observability: &Arc<Observability>,
        head: &request::Parts,
        route: &Arc<RouteMetrics>,
    ) {
        self.guard(observability, head, route);
        self.mode = Some(RouteMode::Observe);
        self.note(|state| state.oncegate_status = Some(OncegateStatus::Observed));
    }

    /// Notes that the request has no key and its route requires none.
    pub(super) fn unguard(&mut self) {
        self.mode = None;
        self.note(|state| state.is_guarded = false);
    }

    /// The id of the request's trace, of one that began here too.
    pub(super) fn trace_id(&self) -> Option<TraceId> {
        self.trace.as_ref()?.trace_id()
    }

    /// Calls `note` with the trace, if the request has one.
    pub(super) fn with_trace(&self, note: impl FnOnce(&RequestTrace)) {
        if let Some(trace) = &self.trace {
            note(trace);
        }
    }

    /// Notes facts in the trace, if the request has one.
    pub(super) fn note(&self, note: impl FnOnce(&mut TraceState)) {
        self.with_trace(|trace| trace.note(note));
    }

    /// Awaits the work and notes its duration and its error in the trace. The caller pins the work: a future that is
    /// passed by value would take its space twice in the request's future, which is copied as a whole when the request
    /// starts.
    pub(super) async fn timed<T, E: StageError>(
        &self,
        stage: TraceStage,
        work: Pin<&mut impl Future<Output = Result<T, E>>>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let done = work.await;
        let error = done.as_ref().err().and_then(E::error_type);
        self.with_trace(|trace| trace.note_stage(stage, began, began.elapsed(), error));
        done
    }

    /// Makes the request to the service a part of this request's trace.
    pub(super) fn continue_trace(&self, headers: &mut HeaderMap) {
        self.with_trace(|trace| trace.add_traceparent(headers));
    }
}

/// All workers share the policy: its reference count is left alone where nothing needs it.
fn unless_empty(cors: &Arc<CorsPolicy>) -> Option<Arc<CorsPolicy>> {
    (!cors.is_empty()).then(|| Arc::clone(cors))
}
