//! What is told of a request when it is over: its metrics, its line in the log, and its spans.
//!
//! The trail goes with the request, and with its work where that outlives the client. Whoever lets go of it last tells:
//! each request is told once, whatever became of it and of its client.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, request};
use tokio::time::Instant;

use super::Stamp;
use super::meters::{RouteMeters, Verb};
use super::status::Told;
use super::watch::Watch;
use crate::domain::key::Key;
use crate::telemetry::logs::{Line, REQUESTS, millis};
use crate::telemetry::metrics::Label;
use crate::telemetry::traces::{Context, Kind, Parent, Span, TRACEPARENT, Tracer, Value};

/// A part of a request's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The store was asked for the key.
    Reserve,
    /// The service had the request.
    Upstream,
    /// The store was told how it ended.
    Settle,
}

/// A request, as far as it has come.
pub struct Trail {
    watch: Arc<Watch>,
    began: Instant,
    verb: Verb,
    parent: Option<Parent>,
    context: Option<Context>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The route that guards it or looks on.
    route: Option<Arc<RouteMeters>>,
    told: Option<Told>,
    attempt: Option<u32>,
    /// The beginning of its key, and how much of it that is.
    key: ([u8; 8], usize),
    answered: Option<(StatusCode, Duration)>,
    /// When each stage began, and how long it took in all.
    stages: [Option<(Instant, Duration)>; 3],
}

impl Watch {
    /// Whether requests that nothing guards are told of, too. Mostly they are not, and cost nothing.
    fn wants_all(&self) -> bool {
        self.tracer.is_some() || tracing::enabled!(target: REQUESTS, tracing::Level::DEBUG)
    }

    /// A trail for a request of which it is not known yet whether anything guards it.
    pub(super) fn follow(self: &Arc<Self>, request: &http::Request<impl Sized>, began: Instant) -> Option<Arc<Trail>> {
        self.wants_all().then(|| Trail::new(self, request.method(), request.headers(), began))
    }
}

impl Trail {
    fn new(watch: &Arc<Watch>, method: &http::Method, headers: &HeaderMap, began: Instant) -> Arc<Self> {
        let parent = Parent::of(headers);
        let context = watch.tracer.as_ref().and_then(|_| Context::of(parent));
        let (watch, verb, state) = (Arc::clone(watch), Verb::of(method), Mutex::default());
        Arc::new(Self { watch, began, verb, parent, context, state })
    }

    /// A trail for a request that a route guards.
    pub(super) fn of(watch: &Arc<Watch>, head: &request::Parts, began: Instant) -> Arc<Self> {
        Self::new(watch, &head.method, &head.headers, began)
    }

    /// The route that guards it, or none any more.
    pub(super) fn guarded_by(&self, route: Option<&Arc<RouteMeters>>) {
        self.lock().route = route.map(Arc::clone);
    }

    /// What Oncegate says of its part.
    pub(super) fn told(&self, told: Told) {
        self.lock().told = Some(told);
    }

    /// It became this attempt.
    pub(super) fn attempt(&self, number: u32) {
        self.lock().attempt = Some(number);
    }

    /// It has this key, of which no more than eight characters are kept.
    pub(super) fn key(&self, key: &Key) {
        let prefix = key.prefix().as_bytes();
        let mut kept = [0; 8];
        kept[..prefix.len()].copy_from_slice(prefix);
        self.lock().key = (kept, prefix.len());
    }

    /// It took so long since then.
    pub(super) fn took(&self, stage: Stage, began: Instant, took: Duration) {
        let mut state = self.lock();
        let before = state.stages[stage as usize].get_or_insert((began, Duration::ZERO));
        before.1 += took;
    }

    /// The client gets an answer.
    pub(super) fn answered(&self, status: StatusCode) {
        self.lock().answered = Some((status, self.began.elapsed()));
    }

    /// Names the part of the trace that the service behind belongs to.
    pub(super) fn go_on(&self, headers: &mut HeaderMap) {
        if let Some(context) = &self.context {
            headers.insert(TRACEPARENT, context.traceparent());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The trail goes wherever the stamp goes.
impl Stamp {
    pub(super) fn began(&self) -> Instant {
        self.began.unwrap_or_else(Instant::now)
    }

    /// A route guards the request.
    pub(super) fn guard(&mut self, watch: &Arc<Watch>, head: &request::Parts, route: &Arc<RouteMeters>) {
        self.guarded = true;
        let began = self.began();
        self.trail.get_or_insert_with(|| Trail::of(watch, head, began)).guarded_by(Some(route));
    }

    /// A route looks on.
    pub(super) fn observe(&mut self, watch: &Arc<Watch>, head: &request::Parts, route: &Arc<RouteMeters>) {
        self.guard(watch, head, route);
        self.guarded = false;
        self.with_trail(|trail| trail.told(Told::Observed));
    }

    /// It has no key, and the route does not require one.
    pub(super) fn unguard(&mut self) {
        self.guarded = false;
        self.with_trail(|trail| trail.guarded_by(None));
    }

    pub(super) fn with_trail(&self, tell: impl FnOnce(&Trail)) {
        if let Some(trail) = &self.trail {
            tell(trail);
        }
    }

    /// Does something, and notes how long it took. Pinned by whoever asks: work that is handed on would take its room twice
    /// in a request's future, which is copied as a whole when the request begins.
    pub(super) async fn timed<T>(&self, stage: Stage, work: Pin<&mut impl Future<Output = T>>) -> T {
        let began = Instant::now();
        let done = work.await;
        self.with_trail(|trail| trail.took(stage, began, began.elapsed()));
        done
    }

    /// What is sent to the service belongs to the request's trace.
    pub(super) fn go_on(&self, headers: &mut HeaderMap) {
        self.with_trail(|trail| trail.go_on(headers));
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        let total = state.answered.map_or_else(|| self.began.elapsed(), |(_, total)| total);
        if let (Some(route), Some(told)) = (&state.route, state.told) {
            route.requests.count(told);
            self.watch.meters.request_duration.observe(total);
        }
        self.log(&state, total);
        if let (Some(tracer), Some(context)) = (&self.watch.tracer, &self.context) {
            self.trace(&state, total, tracer, context);
        }
    }
}

impl Trail {
    /// At info what a route guards, at debug what passes.
    fn log(&self, state: &State, total: Duration) {
        let method = self.verb.name();
        let status = state.answered.map(|(status, _)| status.as_u16());
        let trace_id = || self.context.map(|it| it.trace).or(self.parent.map(|it| it.trace)).map(|trace| trace.hex());
        let Some(route) = &state.route else {
            tracing::debug!(target: REQUESTS, method, status, total_ms = millis(total), trace_id = trace_id(),
                client_gone = status.is_none().then_some(true), "request");
            return;
        };
        if !Line::is_wanted() {
            return;
        }
        let took = |stage: Stage| state.stages[stage as usize].map(|(_, took)| took);
        let key = std::str::from_utf8(&state.key.0[..state.key.1]).ok().filter(|key| !key.is_empty());
        Line {
            route: &route.name,
            method,
            oncegate_status: state.told.map(Told::name),
            status,
            attempt: state.attempt,
            total,
            store: took(Stage::Reserve).map(|reserve| reserve + took(Stage::Settle).unwrap_or_default()),
            upstream: took(Stage::Upstream),
            key,
            trace_id: trace_id().as_deref(),
        }
        .tell();
    }

    /// The request, and in it the parts that took time.
    fn trace(&self, state: &State, total: Duration, tracer: &Tracer, context: &Context) {
        let method = self.verb.name();
        let span = |id, parent, kind, name, began, took, attributes, failed| Span {
            trace: context.trace,
            id,
            parent,
            kind,
            name,
            began,
            took,
            attributes,
            failed,
        };
        let status = state.answered.map(|(status, _)| status);
        let mut attributes = vec![("http.request.method", Value::Word(method))];
        if let Some(status) = status {
            attributes.push(("http.response.status_code", Value::Number(i64::from(status.as_u16()))));
        }
        if let Some(told) = state.told {
            attributes.push(("oncegate.status", Value::Word(told.name())));
        }
        if let Some(attempt) = state.attempt {
            attributes.push(("oncegate.attempt", Value::Number(i64::from(attempt))));
        }
        let name = match &state.route {
            Some(route) => {
                attributes.push(("oncegate.route", Value::Name(Arc::clone(&route.name))));
                format!("{method} {}", route.name)
            }
            None => method.to_owned(),
        };
        let failed = status.is_some_and(|status| status.is_server_error());
        let mut spans =
            vec![span(context.span, context.parent, Kind::Server, name, context.began, total, attributes, failed)];
        let parent = Some(context.span);
        for stage in [Stage::Reserve, Stage::Upstream, Stage::Settle] {
            let Some((began, took)) = state.stages[stage as usize] else { continue };
            let began: SystemTime = context.began + began.saturating_duration_since(self.began);
            let (id, name, attributes) = match stage {
                Stage::Reserve | Stage::Settle => {
                    let op = if stage == Stage::Reserve { "reserve" } else { "settle" };
                    (context.another(), format!("store {op}"), vec![("db.operation.name", Value::Word(op))])
                }
                Stage::Upstream => {
                    (context.onward, method.to_owned(), vec![("http.request.method", Value::Word(method))])
                }
            };
            spans.push(span(id, parent, Kind::Client, name, began, took, attributes, false));
        }
        tracer.tell(spans);
    }
}
