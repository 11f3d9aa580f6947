//! The journey of a request, from its arrival to its response.
//!
//! Read [`Gate::handle`], `Gate::journey`, `Gate::execute` and `Gate::reserve_and_forward` in this order: they show every
//! way in which a request can end. The folder has the steps:
//!
//! - `admit` finds the route, the key, the scope and the fingerprint.
//! - `claim` takes the key, or finds the answer of its record by [`decide`](crate::domain::decision::decide).
//! - `forward` and `enqueue` are the two ways to execute, and `settle` stores the outcome of an attempt.
//! - `outcome` is the result of a request, and `render` makes an HTTP response of it.
//!
//! Whether a response is stored is decided by
//! [`ServiceDirectives::apply`](crate::protocol::directives::ServiceDirectives::apply) with the route's status table.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};

use crate::body::body_budget::{BudgetExhausted, BudgetShare};
use crate::body::client_body::{ResponseWatch, UNWATCHED_MAX};
use crate::body::request_body::RequestBody;
use crate::body::{Body, ConnectionGuards};
use crate::domain::decision::{self, Decision};
use crate::domain::normal_path::normal_form;
use crate::instance::metrics::MethodLabel;
use crate::instance::observability::UnguardedKey;
use crate::instance::request_trace::TraceStage;
use crate::protocol::problem_pages;
use crate::protocol::refusal::{ReachedLimit, Refusal, RetryAfter};
use crate::protocol::status::OncegateStatus;
use crate::protocol::via;
use admit::{Admission, GuardedRequest};
use claim::Claim;
use client::ClientConnection;
use outcome::Outcome;
use response_context::ResponseContext;
use start::AttemptTaker;
use work::WorkResult;

pub use worker::{Gate, LiveConfig};

pub mod admit;
mod attempt_end;
mod authorize;
mod bypass;
mod claim;
pub mod client;
pub mod deliver;
mod enqueue;
mod first_sent;
pub mod forward;
mod forwarded_key;
mod incoming_response;
mod known;
pub mod message;
mod new_key;
pub mod observe;
mod operations;
pub mod outcome;
mod oversize;
pub mod pass;
mod render;
pub mod renewed_scope;
mod response_context;
pub mod routing;
pub mod settle;
mod start;
mod wait;
mod work;
mod worker;

impl Gate {
    /// Responds to a request, whatever happens.
    pub async fn handle(
        self: &Arc<Self>,
        mut request: Request<RequestBody>,
        client: &ClientConnection,
    ) -> Response<Body> {
        let live = self.live();
        request.body_mut().limit_rate(Some(self.instance.config.limits.body_rate));
        let mut context = ResponseContext::new(request.headers(), &live.config.cors);
        context.trace = self.instance.observability.start_trace(&request, context.began());
        let response = match self.journey(request, client, &live, &mut context).await {
            Ok(response) => response,
            Err(refusal) => {
                match refusal {
                    Refusal::Overloaded(limit) => self.count_overload(limit),
                    Refusal::TokenInvalid(fault) => self.instance.observability.metrics.tokens_refused.count(fault),
                    _ => {}
                }
                render::refusal(refusal, &context, &live.config.problem_base)
            }
        };
        context.with_trace(|trace| trace.note_response(response.status()));
        response
    }

    /// A watch over the responses of a new client connection.
    pub fn response_watch(&self) -> ResponseWatch {
        ResponseWatch::new(Arc::clone(&self.instance.response_bodies))
    }

    /// Counts a connection or request that was refused because a limit was reached.
    pub fn count_overload(&self, limit: ReachedLimit) {
        self.instance.observability.metrics.overloaded.count(limit);
    }

    /// Refuses bytes that never became a request, or a request whose body is not framed as it says.
    pub fn refuse(&self, refusal: Refusal) -> Response<Body> {
        render::refusal(refusal, &ResponseContext::default(), &self.live().config.problem_base)
    }

    async fn journey(
        self: &Arc<Self>,
        request: Request<RequestBody>,
        client: &ClientConnection,
        live: &LiveConfig,
        context: &mut ResponseContext,
    ) -> Result<Response<Body>, Refusal> {
        admit::check_path(request.uri().path())?;
        if via::has_been_here(request.headers()) {
            return Err(Refusal::LoopDetected);
        }
        let path = normal_form(request.uri().path());
        if let Some(name) = operations::requested_operation(&path) {
            let mut response = Box::pin(self.show_operation(&name, request, client, live)).await?;
            context.add_cors_fields(response.headers_mut());
            return Ok(response);
        }
        if let Some(page) = problem_pages::answer_request(request.method(), &path, &live.config.problem_base) {
            return Ok(page);
        }
        match self.admit(request, client, live, context).await? {
            Admission::Guarded(guarded) => {
                let question = guarded.replay_question();
                let outcome = self.execute(guarded, context, Some(&client.ties)).await;
                if let (Outcome::Replayed(_), Some((authorizer, question))) = (&outcome, question)
                    && let Err(denied) = Box::pin(authorizer.ask(question)).await
                {
                    let mut response = denied.into_response()?;
                    context.add_fields(&mut response, OncegateStatus::Rejected);
                    context.add_cors_fields(response.headers_mut());
                    return Ok(response);
                }
                let share = self.hold_response(&outcome)?;
                let response = outcome.render(context, &live.config.problem_base);
                Ok(match share {
                    Some(share) => response.map(|body| body.counted_in(share)),
                    None => response,
                })
            }
            Admission::Observed(mut observed) => {
                context.continue_trace(&mut observed.head.headers);
                let observing = Box::pin(self.observe(*observed));
                let mut response = context.timed(TraceStage::Upstream, pin!(observing)).await?;
                context.mark_observed(response.headers_mut());
                Ok(response)
            }
            Admission::Unguarded(mut passing) => {
                let method = MethodLabel::from_method(passing.request.method());
                if method.changes_state() && !passing.only_reads {
                    let key = match (live.key_field(passing.request.headers()), &passing.misspelled_key) {
                        (Some(field), _) => Some(UnguardedKey::In(field)),
                        (None, misspelled) => misspelled.as_ref().map(UnguardedKey::Misspelled),
                    };
                    self.instance.observability.count_unguarded(method, passing.request.uri().path(), key);
                }
                context.continue_trace(passing.request.headers_mut());
                let (uri, headers) = (passing.request.uri(), passing.request.headers());
                let sent = live.router.renewable().and_then(|parts| parts.keep(uri, headers));
                let passed = pass::pass(passing, |_, response| {
                    if let Some(sent) = sent {
                        sent.note_renewals(response);
                    }
                });
                let mut response = context.timed(TraceStage::Upstream, pin!(passed)).await?;
                context.mark_observed(response.headers_mut());
                Ok(response)
            }
        }
    }

    /// Counts the body of a response from the store, until its client has taken it; `None` for a short one, and for the response of
    /// an attempt, which counts since it came in.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] if responses that their clients have not taken fill their memory. The first answer to a request is never
    /// refused.
    fn hold_response(&self, outcome: &Outcome) -> Result<Option<BudgetShare>, Refusal> {
        let length = outcome.stored_body().map_or(0, Bytes::len);
        if matches!(outcome, Outcome::Replayed(_)) {
            return self.hold_replay(length);
        }
        Ok((length > UNWATCHED_MAX).then(|| self.instance.response_bodies.share_of(length)))
    }

    /// Counts the body of a stored response that goes to a client; `None` for a short one.
    fn hold_replay(&self, length: usize) -> Result<Option<BudgetShare>, Refusal> {
        if length <= UNWATCHED_MAX {
            return Ok(None);
        }
        match self.instance.response_bodies.try_share_of(length) {
            Ok(share) => Ok(Some(share)),
            Err(BudgetExhausted) => Err(Refusal::Overloaded(ReachedLimit::HeldBodies)),
        }
    }

    /// Executes a guarded request, or finds out what became of its key. HTTP requests, queued requests and messages all come
    /// here. A wait for another request's attempt ends with the client of `ties`.
    async fn execute(
        self: &Arc<Self>,
        guarded: Box<GuardedRequest>,
        context: &ResponseContext,
        ties: Option<&ConnectionGuards>,
    ) -> Outcome {
        // This instance may know the answer: it has completed the key, is executing it, or has its outcome still to store. Or
        // another instance has shared it.
        let result = match self.decide_by_known(&guarded).await {
            // Only the store can decide.
            Ok(Some(Decision::TakeOver(_)) | None) => self.work(guarded, context).await,
            Ok(Some(Decision::Answer(answer))) => self.answer(guarded, answer),
            Err(refusal) => WorkResult::refused(refusal),
        };
        match result {
            WorkResult::Ended(outcome) => outcome,
            WorkResult::Waits(guarded, end) => {
                let _tie = ties.map(ConnectionGuards::attach);
                let outcome = Box::pin(self.wait(&guarded, end, context)).await;
                context.note_outcome(&outcome);
                outcome
            }
        }
    }

    /// Does the request's own work in a task: hyper drops the caller's future when the client goes away, and an attempt must run
    /// on.
    async fn work(self: &Arc<Self>, guarded: Box<GuardedRequest>, context: &ResponseContext) -> WorkResult {
        let (gate, context) = (Arc::clone(self), context.clone());
        // Boxed because a task's future is moved several times until it runs, and its room again with its result.
        let work = self.instance.tracker.spawn(Box::pin(async move {
            let result = if guarded.is_for_later() {
                Box::pin(gate.enqueue(guarded)).await
            } else {
                gate.reserve_and_forward(guarded, &context).await
            };
            // Noted here and not only where the response is rendered: a request whose client has left counts too.
            if let WorkResult::Ended(outcome) = &result {
                context.note_outcome(outcome);
            }
            result
        }));
        work.await.unwrap_or_else(|panic| {
            tracing::error!(%panic, "a guarded request panicked; its key is settled by what is known of the attempt");
            WorkResult::refused(Refusal::OutcomeUnknown(RetryAfter::new(decision::DEFAULT_RETRY_AFTER)))
        })
    }

    async fn reserve_and_forward(
        self: Arc<Self>,
        mut guarded: Box<GuardedRequest>,
        context: &ResponseContext,
    ) -> WorkResult {
        if guarded.is_provisional && !guarded.may_bypass() {
            // Not logged for each request: the start has said it.
            return WorkResult::refused(Refusal::StoreUnavailable);
        }
        let mut taker = AttemptTaker::new(&self.instance, &guarded, context);
        let may_start = self.may_start(&guarded);
        let claim = self.claim(&mut taker, &mut guarded, may_start).await;
        let AttemptTaker { mut entry, reserving_since, .. } = taker;
        let lease = match claim {
            Ok(Claim::Mine(lease)) => lease,
            Ok(Claim::Answered(answer)) => return self.answer(guarded, answer),
            Err(failure) => return Box::pin(self.without_reservation(guarded, failure, entry, context)).await,
        };
        match self.start_attempt(&guarded, &lease, &mut entry).await {
            Ok(()) => {
                guarded.count_start(lease.attempt == 1, &self.instance);
                WorkResult::Ended(self.forward(guarded, lease, entry, reserving_since, context).await)
            }
            // Another attempt has started on this instance, and the store does not have it yet.
            Err(answer) => {
                settle::persist(&self.instance, lease.release(guarded.route().ttl), entry).await;
                self.answer(guarded, answer)
            }
        }
    }
}
