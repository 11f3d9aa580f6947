//! Sends a request to the service under a lease, and judges the response. The attempt continues if the client disconnects.
//!
//! `attempt_end` makes the settlement, `settle` stores it, and `oversize` hands on a response that is too large to store.

use std::panic;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HeaderValue, TRAILER};
use http::{HeaderMap, Request, request};
use http_body_util::BodyExt;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::admit::GuardedRequest;
use super::incoming_response::IncomingBody;
use super::new_key::accept_caller;
use super::outcome::Outcome;
use super::oversize::OversizeResponse;
use super::response_context::ResponseContext;
use super::routing::ActiveRoute;
use super::settle::{RunningAttempt, SettleOutcome, persist};
use super::worker::Gate;
use super::{attempt_end, forwarded_key, oversize};
use crate::instance::boot_time::BootInstant;
use crate::instance::in_flight::{InFlightEntry, ReserveStatus};
use crate::instance::request_trace::TraceStage;
use oncegate_config::Route;
use oncegate_domain::attempt::{AttemptLease, ReserveRequest, Settlement};
use oncegate_domain::record::Record;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::response_policy::{ResponseVerdict, ServiceStatus};
use oncegate_domain::service_report::ReservationHandle;
use oncegate_domain::state::{CompletedResponse, KeyState};
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_http::body::Body;
use oncegate_http::body::body_budget::{BodyBudget, BudgetShare};
use oncegate_http::body::client_body::UNWATCHED_MAX;
use oncegate_http::protocol::directives::{ResponseJudgement, ServiceDirectives};
use oncegate_http::protocol::fields::{self, RequestOrigin};
use oncegate_http::protocol::grpc::CallProtocol;
use oncegate_http::protocol::refusal::{ReachedLimit, Refusal};
use oncegate_http::protocol::{grpc, grpc_web, stored_response};
use oncegate_http::upstream::{CallError, SendCheck, UpstreamClient};
use oncegate_telemetry::logs::error_causes;

/// The result of a call to the service.
enum UpstreamOutcome {
    /// A whole response.
    Answered(ServiceAnswer),
    /// The service got nothing of the request, or processed nothing of it, so trying again is safe. The text says why.
    NeverSent(String),
    /// Bytes of the request may have left this process, and no whole response came back.
    NoResponse(Refusal, UnknownCause),
    /// Not one byte of the request left this process: the lease or the time for the first byte was over, or all connections to the
    /// upstream were in use.
    NotSent(Refusal),
    /// The response is larger than the route stores. Its beginning is here; the rest is still coming.
    Oversize(OversizeResponse),
}

impl UpstreamOutcome {
    /// The fields of the response, if there is one.
    fn response_fields(&self) -> Option<&HeaderMap> {
        match self {
            Self::Answered(answer) => Some(&answer.response.headers),
            Self::Oversize(oversize) => Some(&oversize.head.headers),
            Self::NeverSent(_) | Self::NoResponse(..) | Self::NotSent(_) => None,
        }
    }
}

/// A whole response of the service.
struct ServiceAnswer {
    response: StoredResponse,
    /// The part of the memory for responses that its body takes.
    share: BudgetShare,
    status: ServiceStatus,
    directives: ServiceDirectives,
}

impl Gate {
    /// Sends a reserved request, judges the response, stores the outcome, and only then returns it.
    pub(super) async fn forward(
        &self,
        guarded: Box<GuardedRequest>,
        lease: AttemptLease,
        entry: InFlightEntry,
        reserving_since: BootInstant,
        context: &ResponseContext,
    ) -> Outcome {
        // The reservation or the connection may have taken long, and the machine may have slept. A valid lease is not enough:
        // it may have lapsed and been renewed since the reservation, or the store may have lost the reservation in a
        // failover, and the key may be another instance's by now.
        let instance = Arc::clone(&self.instance);
        // See docs/decisions/0003-act-within-the-deadline.md.
        let may_send = move || {
            // The heartbeat suspends the lease after a change of the primary; until then the store itself says so.
            instance.instance_lease.has_held_since(reserving_since)
                && !instance.store.has_changed_primary()
                && reserving_since.elapsed() <= instance.first_byte_within()
        };
        self.send(guarded, lease, entry, context, &may_send).await
    }

    /// Does the same for a request with or without a reservation.
    pub(super) async fn send(
        &self,
        guarded: Box<GuardedRequest>,
        lease: AttemptLease,
        entry: InFlightEntry,
        context: &ResponseContext,
        may_send: SendCheck<'_>,
    ) -> Outcome {
        let GuardedRequest { reserve_request, head, body, share: _share, origin, active, .. } = *guarded;
        let ActiveRoute { route, upstream, latency, renewable, .. } = active;
        let sent = renewable.as_deref().and_then(|parts| parts.keep(&head.uri, &head.headers));
        let (record, number) = (reserve_request.id, lease.attempt);
        let reserved = (entry.reserve_status() == ReserveStatus::Reserved).then_some(&lease);
        let protocol = CallProtocol::from_headers(&head.headers);
        let mut request = upstream_request(head, body, &origin, reserved, &route);
        if protocol != CallProtocol::Http {
            grpc::request_identity_encoding(request.headers_mut());
        }
        forwarded_key::set_key_field(request.headers_mut(), &route, &reserve_request.key);
        context.continue_trace(request.headers_mut());
        context.with_trace(|trace| trace.note_attempt(number));
        let attempt = RunningAttempt::new(&self.instance, lease, entry);
        let began = Instant::now();
        // A reload since the reservation may have given the route more time than the store waits for the attempt.
        let reserved_time = reserve_request.time_limit.saturating_sub(self.instance.first_byte_within());
        let deadline = began + route.upstream_timeout.min(reserved_time);
        let outcome =
            call(&upstream, (&mut request, protocol), deadline, &route, may_send, &self.instance.response_bodies).await;
        let took = began.elapsed();
        latency.record(took);
        self.instance.observability.metrics.upstream_duration.observe(took);
        context.with_trace(|trace| trace.note_stage(TraceStage::Upstream, began, took));
        if let (Some(sent), Some(response)) = (sent, outcome.response_fields()) {
            sent.note_renewals(response);
        }
        let (refusal, settlement, entry) = match outcome {
            UpstreamOutcome::Answered(answer) => {
                return self.settle_answer(answer, attempt, &route, &reserve_request, context).await;
            }
            UpstreamOutcome::Oversize(oversize) => {
                let instance = Arc::clone(&self.instance);
                return Outcome::Streamed(oversize::stream(instance, oversize, attempt, &route, deadline));
            }
            UpstreamOutcome::NeverSent(reason) => {
                let (lease, entry) = attempt.into_parts();
                let settlement = attempt_end::release(lease, &route, route.ttl, None);
                (Refusal::UpstreamUnreachable(reason.into()), settlement, entry)
            }
            UpstreamOutcome::NotSent(refusal) => {
                if let Refusal::Overloaded(limit) = refusal {
                    self.count_overload(limit);
                }
                let (lease, entry) = attempt.into_parts();
                (refusal, attempt_end::not_sent(&self.instance, lease, &route.retry, route.ttl), entry)
            }
            UpstreamOutcome::NoResponse(refusal, cause) => {
                context.with_trace(|trace| trace.note_unknown(cause));
                tracing::warn!(%record, route = %route.name, attempt = number, %cause, "the outcome is unknown");
                let (lease, entry) = attempt.into_parts();
                (refusal, attempt_end::unknown(lease, &route, cause), entry)
            }
        };
        self.settle_without_response(settlement, entry, &reserve_request, context, refusal).await
    }

    /// Judges a whole response, stores the outcome, and only then returns it.
    async fn settle_answer(
        &self,
        answer: ServiceAnswer,
        attempt: RunningAttempt,
        route: &Arc<Route>,
        reserve_request: &ReserveRequest,
        context: &ResponseContext,
    ) -> Outcome {
        let (answer, judgement) = judge(answer, route).await;
        let ServiceAnswer { mut response, share, status, .. } = answer;
        let ResponseJudgement { verdict, ttl, unknown_cause } = judgement;
        // Anything that may panic comes before the lease leaves the attempt's care.
        let storable = (verdict == ResponseVerdict::Store).then(|| stored_response::to_storable(&response, route));
        // The client's copy counts, and not the one that is stored and cached.
        response.body = response.body.map(|body| if body.len() > UNWATCHED_MAX { share.attach_to(body) } else { body });
        let (lease, entry) = attempt.into_parts();
        let accepted = (route.limits_new_keys() && status.is_success()).then(|| Arc::clone(&lease.reserve_request));
        let settlement = match (verdict, storable) {
            (ResponseVerdict::Store, Some(storable)) => attempt_end::complete(lease, route, ttl, storable),
            (ResponseVerdict::Release, _) => attempt_end::release(lease, route, ttl, Some((status, &response.headers))),
            (ResponseVerdict::Unknown | ResponseVerdict::Store, _) => {
                let cause = unknown_cause;
                context.with_trace(|trace| trace.note_unknown(cause));
                tracing::warn!(record = %reserve_request.id, route = %route.name, attempt = lease.attempt, %cause,
                    "the service's response leaves the outcome unknown");
                attempt_end::unknown(lease, route, cause)
            }
        };
        let settled = context.timed(TraceStage::Settle, pin!(persist(&self.instance, settlement, entry))).await;
        if let Some(request) = accepted {
            Box::pin(accept_caller(&self.instance, route, &request, settled.is_stored())).await;
        }
        let expires_at = match settled {
            SettleOutcome::Done { expires_at } => expires_at,
            SettleOutcome::Bypassed => None,
            SettleOutcome::Fenced(record) => {
                return stored_outcome(record, reserve_request).unwrap_or(Outcome::Unstored { response, verdict });
            }
            SettleOutcome::Unstored => return Outcome::Unstored { response, verdict },
        };
        match verdict {
            ResponseVerdict::Release => Outcome::Released(response),
            ResponseVerdict::Store => Outcome::Executed { response, expires_at },
            ResponseVerdict::Unknown => Outcome::Unknown(response),
        }
    }

    /// Settles an attempt that brought no response. If the service itself has completed the key meanwhile, that response is
    /// the outcome, else the refusal.
    async fn settle_without_response(
        &self,
        settlement: Settlement,
        entry: InFlightEntry,
        reserve_request: &ReserveRequest,
        context: &ResponseContext,
        refusal: Refusal,
    ) -> Outcome {
        let settled = context.timed(TraceStage::Settle, pin!(persist(&self.instance, settlement, entry))).await;
        let stored = match settled {
            SettleOutcome::Fenced(record) => stored_outcome(record, reserve_request),
            SettleOutcome::Bypassed | SettleOutcome::Done { .. } | SettleOutcome::Unstored => None,
        };
        stored.unwrap_or(Outcome::Refused(refusal))
    }
}

/// The size from which a body is parsed on another thread, as it is for a fingerprint.
const LARGE_BODY: usize = 64 * 1024;

/// Judges a whole response.
async fn judge(answer: ServiceAnswer, route: &Arc<Route>) -> (ServiceAnswer, ResponseJudgement) {
    let judged = |answer: ServiceAnswer, route: &Route| {
        let ServiceAnswer { response, status, directives, .. } = &answer;
        let judgement = directives.apply(route, *status, &response.headers, response.body.as_deref());
        (answer, judgement)
    };
    if route.outcome.is_empty() || answer.response.body.as_ref().is_none_or(|body| body.len() < LARGE_BODY) {
        return judged(answer, route);
    }
    let route = Arc::clone(route);
    let judging = spawn_blocking(move || judged(answer, &route));
    judging.await.unwrap_or_else(|stopped| panic::resume_unwind(stopped.into_panic()))
}

/// The request as the service gets it. Without a lease there is no reservation that the service could complete.
fn upstream_request(
    head: request::Parts,
    body: Bytes,
    origin: &RequestOrigin,
    lease: Option<&AttemptLease>,
    route: &Route,
) -> Request<Body> {
    let mut request = Request::new(Body::whole(body));
    *request.method_mut() = head.method;
    *request.uri_mut() = head.uri;
    let mut headers = head.headers;
    fields::prepare_for_service(&mut headers, origin, |name| route.reads_field(name));
    fields::request_identity_encoding(&mut headers);
    if let Some(lease) = lease {
        headers.insert(fields::RESERVATION, reservation_field(lease));
        headers.insert(fields::ATTEMPT, HeaderValue::from(lease.attempt));
        if let Some(reached) = &lease.recovery_point {
            let name = HeaderValue::from_str(reached.as_str()).expect("its name is plain ASCII");
            headers.insert(fields::RECOVERY_POINT, name);
        }
    }
    *request.headers_mut() = headers;
    request
}

/// The value of `Oncegate-Reservation`: the service names the attempt by it.
fn reservation_field(lease: &AttemptLease) -> HeaderValue {
    let reservation = ReservationHandle { id: lease.reserve_request.id, token: lease.reserve_request.token };
    HeaderValue::from_str(&reservation.to_hex()).expect("hex is plain ASCII")
}

const BROKEN: UpstreamOutcome = UpstreamOutcome::NoResponse(Refusal::UpstreamBroken, UnknownCause::Broken);
const TIMED_OUT: UpstreamOutcome = UpstreamOutcome::NoResponse(Refusal::UpstreamTimeout, UnknownCause::Timeout);

async fn call(
    upstream: &UpstreamClient,
    (request, protocol): (&mut Request<Body>, CallProtocol),
    deadline: Instant,
    route: &Route,
    may_send: SendCheck<'_>,
    budget: &Arc<BodyBudget>,
) -> UpstreamOutcome {
    // HTTP/1.1 to a gRPC service brings an error that says nothing to somebody who does not know HTTP/2.
    let needs_http2 = protocol == CallProtocol::Grpc && !upstream.shares_connections();
    let response = match timeout_at(deadline, upstream.call_while(request, may_send)).await {
        Err(_) => return TIMED_OUT,
        Ok(Err(error)) => {
            if needs_http2 {
                tracing::warn!(route = %route.name, "gRPC needs HTTP/2: write the upstream as h2c://host:port");
            }
            let cause = error_causes(&error);
            tracing::warn!(route = %route.name, cause, "{error}");
            return match error {
                CallError::NeverSent(_) | CallError::Unprocessed(_) => {
                    UpstreamOutcome::NeverSent(error.unreachable_reason())
                }
                CallError::Broken(_) | CallError::Garbage(_) => BROKEN,
                CallError::Overloaded => {
                    UpstreamOutcome::NotSent(Refusal::Overloaded(ReachedLimit::UpstreamConnections))
                }
                CallError::TooLate => UpstreamOutcome::NotSent(Refusal::StoreUnavailable),
            };
        }
        Ok(Ok(response)) => response,
    };
    let (mut head, mut body) = response.into_parts();
    let length = http_body::Body::size_hint(&body).exact();
    let mut directives = ServiceDirectives::parse(&head.headers);
    let announced_trailers = head.headers.get(TRAILER).cloned();
    fields::prepare_for_client(&mut head.headers);
    let mut incoming = IncomingBody::new(budget, length, route.max_response_body, !upstream.shares_connections());
    let mut trailers = HeaderMap::new();
    loop {
        incoming.make_room(deadline).await;
        let frame = match timeout_at(deadline, body.frame()).await {
            Err(_) => return TIMED_OUT,
            Ok(None) => break,
            // A response that breaks off must never pass for a whole one.
            Ok(Some(Err(_))) => return BROKEN,
            Ok(Some(Ok(frame))) => frame,
        };
        match frame.into_data() {
            Ok(data) => incoming.push(data),
            Err(frame) => trailers.extend(frame.into_trailers().unwrap_or_default()),
        }
        if incoming.is_too_long() {
            let (beginning, share) = incoming.into_whole();
            return UpstreamOutcome::Oversize(OversizeResponse {
                head,
                protocol,
                directives,
                announced_trailers,
                beginning: share.attach_to(beginning),
                rest: body,
                length,
            });
        }
    }
    if protocol == CallProtocol::Grpc {
        // The handler of a call often knows only at its end what it has done, and then it can set trailers alone.
        directives = directives.or(ServiceDirectives::parse(&trailers));
    }
    fields::prepare_for_client(&mut trailers);
    let (body, share) = incoming.into_whole();
    let response = StoredResponse { status: head.status, headers: head.headers, body: Some(body), trailers };
    if let (CallProtocol::GrpcWeb, Some(body)) = (protocol, &response.body)
        && let Some(trailers) = grpc_web::trailers(&response.headers, body)
    {
        directives = directives.or(ServiceDirectives::parse(&trailers));
    }
    let status = grpc::service_status(protocol, &response);
    UpstreamOutcome::Answered(ServiceAnswer { response, share, status, directives })
}

/// The outcome that the store has, if that is a response: every retry will get it, so this request gets it too.
fn stored_outcome(record: Option<Box<Record>>, reserve_request: &ReserveRequest) -> Option<Outcome> {
    let record = record?;
    // An operator may have purged the key meanwhile, and another request have used it: that response is not for this client.
    if record.recipe != reserve_request.recipe || record.fingerprint != reserve_request.fingerprint {
        tracing::warn!(record = %record.id, "the key was used for another request meanwhile; this response is not stored");
        return None;
    }
    match record.state {
        KeyState::Completed(CompletedResponse { response, .. }) if response.body.is_none() => None,
        KeyState::Completed(completed) if record.token == reserve_request.token => {
            Some(Outcome::ExecutedElsewhere(completed))
        }
        // A failover has lost the takeover of the expired key. The earlier operation's response is back, and no retry gets it.
        KeyState::Completed(_) if record.past_ttl => None,
        KeyState::Completed(completed) => Some(Outcome::Replayed(completed)),
        KeyState::Dead
        | KeyState::Expired
        | KeyState::InFlight
        | KeyState::Queued
        | KeyState::Retryable
        | KeyState::Unknown => None,
    }
}
