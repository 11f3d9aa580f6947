//! The journey of a request, from its arrival to its response.
//!
//! Read `handle` and `journey` here, and then `execute`: they show every way in which a request can end. The folder has
//! the steps:
//!
//! - `state` has the [`Gate`]: the state of one worker that all its requests share.
//! - `admit` finds the route, the identity, the body and the fingerprint.
//! - `execute` executes a guarded request, at most once for its key. Its `progress` is an outcome or a `wait`.
//! - `claim` takes the key, or finds the answer of its record by [`decide`](oncegate_domain::decision::decide).
//! - `forward` and `enqueue` are the two ways to execute, and `batch` is for many requests at once. `hand_on` streams a
//!   response, and `settle` stores the outcome of an attempt.
//! - `outcome` is the result of a request, and `render` makes an HTTP response of it.
//!
//! Whether a response is stored is decided by
//! [`ServiceDirectives::apply`](oncegate_http::protocol::directives::ServiceDirectives::apply) with the route's status
//! table.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use tokio::time::Instant;

use crate::instance::metrics::MethodLabel;
use crate::instance::observability::UnguardedKey;
use crate::instance::weekly_counts::WeeklyKind;
use admit::Admission;
use admit::observed::Observation;
use observe::Observer;
use oncegate_domain::normal_path::RequestPath;
use oncegate_http::body::Body;
use oncegate_http::body::client_body::ResponseWatch;
use oncegate_http::body::request_body::RequestBody;
use oncegate_http::downstream::client::{ClientConnection, RequestHandler};
use oncegate_http::protocol::problem_pages;
use oncegate_http::protocol::refusal::{ReachedLimit, Refusal};
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_http::protocol::via;
use outcome::Outcome;
use pass::PassThroughRequest;
use response_context::ResponseContext;
use rustls::ServerConfig;

pub use state::{Gate, LiveConfig};

pub mod admit;
mod attempt_end;
mod authorize;
mod batch;
mod bypass;
mod claim;
pub mod deliver;
mod egress;
mod enqueue;
mod execute;
mod forward;
mod forwarded_key;
mod hand_on;
mod incoming_response;
pub mod message;
mod new_key;
mod newest_record;
mod observe;
mod operations;
mod outcome;
mod pass;
mod progress;
mod render;
mod renewed_scope;
mod response_context;
mod routing;
mod same_body;
mod service_answer;
mod settle;
mod state;
mod wait;

impl RequestHandler for Gate {
    async fn handle(
        self: &Arc<Self>,
        mut request: Box<Request<RequestBody>>,
        client: &ClientConnection,
    ) -> Response<Body> {
        let live = self.live();
        request.body_mut().limit_rate(Some(self.instance.config.limits.body_rate));
        let mut context = ResponseContext::new(&request, &live.config.cors);
        context.trace = self.instance.observability.start_trace(&request, client.secure, context.began());
        let response = match self.journey(request, client, &live, &mut context).await {
            Ok(response) => response,
            Err(refusal) => {
                let metrics = &self.instance.observability.metrics;
                match refusal {
                    Refusal::Overloaded(limit) => self.count_overload(limit),
                    Refusal::SignatureInvalid(fault) => metrics.signatures_refused.count(fault),
                    Refusal::TokenInvalid(fault) => metrics.tokens_refused.count(fault),
                    _ => {}
                }
                Outcome::Refused(refusal).render(&context, &live.config.problem_base)
            }
        };
        context.with_trace(|trace| trace.note_response(response.status()));
        response
    }

    fn refuse(&self, refusal: Refusal) -> Response<Body> {
        Outcome::Refused(refusal).render(&ResponseContext::default(), &self.live().config.problem_base)
    }

    fn count_overload(&self, limit: ReachedLimit) {
        self.instance.observability.metrics.overloaded.count(limit);
    }

    fn response_watch(&self) -> ResponseWatch {
        ResponseWatch::new(Arc::clone(&self.instance.response_bodies))
    }

    fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.live().config.tls.as_ref().map(|tls| Arc::clone(&tls.server))
    }
}

impl Gate {
    async fn journey(
        self: &Arc<Self>,
        request: Box<Request<RequestBody>>,
        client: &ClientConnection,
        live: &LiveConfig,
        context: &mut ResponseContext,
    ) -> Result<Response<Body>, Refusal> {
        admit::check_path(request.uri().path())?;
        if via::has_been_here(request.headers()) {
            return Err(Refusal::LoopDetected);
        }
        let target = request.uri().clone();
        let path = RequestPath::new(target.path());
        if let Some(name) = operations::requested_operation(path.normal()) {
            let mut response = Box::pin(self.show_operation(&name, *request, client, live)).await?;
            context.add_cors_fields(response.headers_mut());
            return Ok(response);
        }
        if let Some(page) = problem_pages::answer_request(request.method(), path.normal(), &live.config.problem_base) {
            return Ok(page);
        }
        match self.admit(request, &path, client, live, context).await? {
            Admission::Guarded(guarded) => {
                let question = guarded.replay_question();
                let outcome = self.execute(guarded, context, Some(&client.ties)).await;
                // One check for replays from memory, from the store and after a wait, and for streams that the request
                // has joined.
                if let (true, Some((authorizer, question))) = (outcome.is_of_earlier_request(), question)
                    && let Some(mut response) = Box::pin(authorizer.ask(question)).await?
                {
                    context.add_fields(&mut response, OncegateStatus::Rejected);
                    context.add_cors_fields(response.headers_mut());
                    return Ok(response);
                }
                // That of an attempt counts since it came in.
                let length = outcome.stored_body().map_or(0, Bytes::len);
                let share = self.hold_response(length, !matches!(outcome, Outcome::Replayed(_)))?;
                let outcome = match &context.rpc_id {
                    Some(id) => Box::pin(outcome.with_rpc_id(id.clone(), &self.fingerprinting)).await,
                    None => outcome,
                };
                let response = outcome.render(context, &live.config.problem_base);
                Ok(match share {
                    Some(share) => response.map(|body| body.counted_in(share)),
                    None => response,
                })
            }
            Admission::Batch(parts, share) => {
                let accepted = self.accept_batch(parts).await?;
                drop(share);
                Ok(render::accepted_batch(accepted, context))
            }
            Admission::Observed(passing, observation) => self.pass_on(passing, observation, live, context).await,
            Admission::Unguarded(passing) => {
                self.count_unguarded(&passing, live);
                self.pass_on(passing, None, live, context).await
            }
        }
    }

    fn count_unguarded(&self, passing: &PassThroughRequest, live: &LiveConfig) {
        let method = MethodLabel::from_method(passing.request.method());
        if method.changes_state() && !passing.only_reads {
            let field = live.key_field(passing.request.headers()).map(UnguardedKey::In);
            let key = field.or(passing.misspelled_key.as_ref().map(UnguardedKey::Misspelled));
            self.instance.observability.count_unguarded(method, passing.request.uri().path(), key);
            if key.is_none() {
                passing.weekly.count(passing.caller.as_ref(), WeeklyKind::Unkeyed);
            }
        }
    }

    /// Streams a request that nothing guards to its service, and compares a copy of one that is observed.
    async fn pass_on(
        &self,
        mut passing: Box<PassThroughRequest>,
        observation: Option<Box<Observation>>,
        live: &LiveConfig,
        context: &ResponseContext,
    ) -> Result<Response<Body>, Refusal> {
        let mut observer = observation.map(|observation| Observer::begin(*observation, &mut passing.request));
        if passing.takes_trace {
            context.continue_trace(passing.request.headers_mut());
        }
        let (uri, headers) = (passing.request.uri(), passing.request.headers());
        let sent = live.router.renewable.as_ref().and_then(|parts| parts.keep(uri, headers));
        let (began, upstream) = (Instant::now(), context.trace.is_some().then(|| passing.upstream.clone()));
        let passed = {
            let passed = pass::pass(passing, |status, headers| {
                if let Some(sent) = sent {
                    sent.note_renewals(headers);
                }
                if let Some(observer) = observer.take() {
                    observer.note_response(status, headers);
                }
            });
            pin!(passed).await
        };
        if let Some(upstream) = upstream {
            let result = passed.as_ref().map(Response::status).map_err(Refusal::slug);
            context.with_trace(|trace| trace.note_call(&upstream, (began, began.elapsed()), result));
        }
        if let (Err(refusal), Some(observer)) = (&passed, observer) {
            observer.note_refusal(refusal);
        }
        let mut response = passed?;
        context.mark_observed(response.headers_mut());
        Ok(response)
    }
}
