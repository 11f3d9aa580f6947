//! Sends a request to the service under a lease, and judges the response. The attempt continues if the client
//! disconnects.
//!
//! `attempt_end` makes the settlement of an attempt without a response, `service_answer` that of a whole response, and
//! `hand_on` passes on a response that streams or is too large to store.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderValue, TRAILER};
use http::{HeaderMap, Request, Response, StatusCode, request};
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::admit::GuardedRequest;
use super::hand_on::{BegunResponse, hand_on};
use super::incoming_response::IncomingBody;
use super::outcome::Outcome;
use super::response_context::ResponseContext;
use super::service_answer::{ServiceAnswer, ServiceHead, SettledAnswer};
use super::settle::{RunningAttempt, Unsettled, persist};
use super::state::Gate;
use super::{attempt_end, egress, forwarded_key};
use crate::instance::boot_time::BootInstant;
use crate::instance::in_flight::{InFlightEntry, ReserveStatus};
use crate::instance::request_trace::TraceStage;
use oncegate_domain::attempt::{AttemptLease, ReserveRequest};
use oncegate_domain::execution_risk::RetryRule;
use oncegate_domain::ids::RecordId;
use oncegate_domain::record::Record;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::service_report::ReservationHandle;
use oncegate_domain::state::{CompletedResponse, KeyState};
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_http::body::Body;
use oncegate_http::body::body_budget::BudgetShare;
use oncegate_http::body::client_body::UNWATCHED_MAX;
use oncegate_http::body::pooled::PooledBody;
use oncegate_http::protocol::directives::ServiceDirectives;
use oncegate_http::protocol::fields::{self, RequestOrigin};
use oncegate_http::protocol::grpc::CallProtocol;
use oncegate_http::protocol::refusal::{ReachedLimit, Refusal};
use oncegate_http::protocol::{event_stream, grpc};
use oncegate_http::upstream::{CallError, SendCheck, UpstreamClient};
use oncegate_settings::{Route, StreamMode};
use oncegate_store::SettleResult;
use oncegate_telemetry::logs::error_causes;

/// The result of a call to the service.
enum UpstreamOutcome {
    /// A whole response, and the part of the memory for responses that its body takes.
    Answered(ServiceAnswer, BudgetShare),
    /// The service got nothing of the request, or processed nothing of it, so trying again is safe. The text says why.
    NeverSent(String),
    /// Bytes of the request may have left this process, and no whole response came back.
    NoResponse(Refusal, UnknownCause),
    /// Not one byte of the request left this process: the lease or the time for the first byte was over, or all
    /// connections to the upstream were in use.
    NotSent(Refusal),
    Begun(BegunResponse),
}

impl UpstreamOutcome {
    /// The service's status, or the slug of the problem.
    fn result(&self) -> Result<StatusCode, &'static str> {
        match self {
            Self::Answered(answer, _) => Ok(answer.response.status),
            Self::Begun(begun) => Ok(begun.head.parts.status),
            Self::NeverSent(_) => Err(Refusal::UpstreamUnreachable("".into()).slug()),
            Self::NoResponse(refusal, _) | Self::NotSent(refusal) => Err(refusal.slug()),
        }
    }

    fn response_fields(&self) -> Option<&HeaderMap> {
        match self {
            Self::Answered(answer, _) => Some(&answer.response.headers),
            Self::Begun(begun) => Some(&begun.head.parts.headers),
            Self::NeverSent(_) | Self::NoResponse(..) | Self::NotSent(_) => None,
        }
    }
}

impl Gate {
    /// Sends a request under its lease, judges the response, stores the outcome, and only then returns it. The lease
    /// was taken after `reserving_since`; `None` for a request without a reservation, of which nothing could lapse.
    pub(super) async fn forward(
        &self,
        guarded: Box<GuardedRequest>,
        lease: AttemptLease,
        entry: InFlightEntry,
        reserving_since: Option<BootInstant>,
        context: &ResponseContext,
    ) -> Outcome {
        let GuardedRequest { reserve_request, head, body, share: _share, origin, active, .. } = *guarded;
        let (instance, record, number) = (&self.instance, reserve_request.id, lease.attempt);
        let renewable = active.renewable.clone();
        let sent = renewable.as_deref().and_then(|parts| parts.keep(&head.uri, &head.headers));
        let reserved = (entry.reserve_status() == ReserveStatus::Reserved).then_some(&lease);
        let protocol = CallProtocol::from_headers(&head.headers);
        let mut request = upstream_request(head, body, &origin, reserved, &active.route);
        if protocol != CallProtocol::Http {
            grpc::request_identity_encoding(request.headers_mut());
        }
        // A kept request has the key that the vendor has got before, whatever the route says now.
        let is_kept = lease.delivery.is_some() && forwarded_key::has_vendor_field(request.headers(), &active.route);
        if !is_kept {
            let named = (&reserve_request.key, record);
            forwarded_key::set_key_field(request.headers_mut(), &active.route, named);
        }
        if active.route.vendor.is_none() {
            context.continue_trace(request.headers_mut());
        }
        context.note(|state| state.attempt = Some(number));
        // The reservation or the connection may have taken long, and the machine may have slept. A valid lease is not
        // enough: it may have lapsed and been renewed since the reservation, or the store may have lost the reservation
        // in a failover, and the key may be another instance's by now.
        // See docs/decisions/0003-act-within-the-deadline.md.
        let is_held = |reserving_since: BootInstant| {
            // The heartbeat suspends the lease after a change of the primary; until then the store itself says so.
            instance.instance_lease.has_held_since(reserving_since)
                && !instance.store.has_changed_primary()
                && reserving_since.elapsed() <= instance.first_byte_within()
        };
        let may_send = || reserving_since.is_none_or(is_held);
        let upstream = active.upstream.clone();
        let attempt = RunningAttempt::new(instance, active, lease, entry);
        let call = Call { upstream: &upstream, protocol, attempt: &attempt, takes_streams: context.takes_streams };
        let outcome = match self.unless_cancelled(call.send(&mut request, &may_send), record, context).await {
            Some(outcome) => outcome,
            // Its client has left.
            None => UpstreamOutcome::NoResponse(Refusal::OutcomeUnknown(None), UnknownCause::Cancelled),
        };
        let took = attempt.began.elapsed();
        if !matches!(outcome, UpstreamOutcome::Begun(_)) {
            attempt.latency.record(took);
        }
        let traced = context.trace.as_ref().and_then(|trace| trace.recorded_id());
        instance.observability.metrics.upstream_duration.observe(took, traced);
        context.with_trace(|trace| trace.note_call(&upstream, (attempt.began, took), outcome.result()));
        if let (Some(sent), Some(response)) = (sent, outcome.response_fields()) {
            sent.note_renewals(response);
        }
        self.settle_outcome(outcome, attempt, context).await
    }

    /// Awaits the call. `None` if the client leaves meanwhile, the route stops the service then, and nobody else waits
    /// for the key.
    async fn unless_cancelled(
        &self,
        calling: impl Future<Output = UpstreamOutcome>,
        record: RecordId,
        context: &ResponseContext,
    ) -> Option<UpstreamOutcome> {
        let Some(client_gone) = &context.client_gone else { return Some(calling.await) };
        let abandoned = async {
            client_gone.cancelled().await;
            self.instance.wait_groups.unawaited(record).await;
        };
        tokio::select! {
            biased;
            outcome = calling => Some(outcome),
            () = abandoned => None,
        }
    }

    /// Stores what became of a call. If the service itself has completed the key meanwhile, that response is the
    /// outcome.
    async fn settle_outcome(
        &self,
        outcome: UpstreamOutcome,
        attempt: RunningAttempt,
        context: &ResponseContext,
    ) -> Outcome {
        let (instance, route, request) = (&self.instance, Arc::clone(&attempt.route), Arc::clone(attempt.request()));
        let (refusal, settlement, entry) = match outcome {
            UpstreamOutcome::Answered(answer, share) => return settle_answer(answer, share, attempt, context).await,
            UpstreamOutcome::Begun(begun) => return Outcome::Streamed(hand_on(begun, attempt, context)),
            UpstreamOutcome::NeverSent(reason) => {
                let (lease, entry) = attempt.into_parts();
                let settlement = attempt_end::release(lease, &route, route.options.ttl, None);
                (Refusal::UpstreamUnreachable(reason.into()), settlement, entry)
            }
            UpstreamOutcome::NotSent(refusal) => {
                if let Refusal::Overloaded(limit) = refusal {
                    instance.observability.metrics.overloaded.count(limit);
                }
                let (lease, entry) = attempt.into_parts();
                (refusal, attempt_end::not_sent(instance, lease, &route.options.retry, route.options.ttl), entry)
            }
            UpstreamOutcome::NoResponse(refusal, cause) => {
                context.note(|state| state.cause = Some(cause));
                let (lease, entry) = attempt.into_parts();
                attempt_end::log_unknown(&lease, &route, cause, "the outcome is unknown");
                (refusal, attempt_end::unknown(lease, &route, cause, None), entry)
            }
        };
        let settled = context.timed(TraceStage::Settle, pin!(persist(instance, settlement, entry))).await;
        let stored = match settled {
            Ok(SettleResult::Fenced(Some(record))) => stored_outcome(record, &request, &route.retry_rule()),
            Ok(SettleResult::Done { .. } | SettleResult::Fenced(None)) | Err(_) => None,
        };
        stored.unwrap_or(Outcome::Refused(refusal))
    }
}

/// Judges a whole response, stores the outcome, and only then returns it.
async fn settle_answer(
    answer: ServiceAnswer,
    share: BudgetShare,
    attempt: RunningAttempt,
    context: &ResponseContext,
) -> Outcome {
    // The client's copy counts, and not the one that is stored and cached.
    let count = |response: &mut StoredResponse| {
        if let Some(body) = response.body.take_if(|body| body.len() > UNWATCHED_MAX) {
            response.body = Some(share.attach_to(body));
        }
    };
    let (request, rule) = (Arc::clone(attempt.request()), attempt.route.retry_rule());
    let SettledAnswer { response, verdict, settled, .. } = answer.settle(attempt, context, count).await;
    let (is_stored, expires_at) = match settled {
        Ok(SettleResult::Done { expires_at }) => (true, expires_at),
        // A bypassed request is promised no more than that it was forwarded.
        Err(Unsettled::Bypassed) => (true, None),
        Ok(SettleResult::Fenced(record)) => match record.and_then(|record| stored_outcome(record, &request, &rule)) {
            Some(stored) => return stored,
            None => (false, None),
        },
        Err(Unsettled::StoreFailed) => (false, None),
    };
    Outcome::Answered { response, verdict, is_stored, expires_at }
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
    egress::set_fields(&mut headers, route);
    if let Some(lease) = lease.filter(|_| route.vendor.is_none()) {
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

/// The age of the first byte of a response without a length at which the response streams. A shorter response arrives
/// whole, with its status in the head.
const SLOW_RESPONSE: Duration = Duration::from_millis(200);
/// The time from the head of a call's response to its end, up to which the response does not stream: most calls have
/// one message, which comes with its status in one go.
const WHOLE_CALL: Duration = Duration::from_millis(3);

struct Call<'a> {
    upstream: &'a UpstreamClient,
    protocol: CallProtocol,
    attempt: &'a RunningAttempt,
    takes_streams: bool,
}

impl Call<'_> {
    async fn send(&self, request: &mut Request<Body>, may_send: SendCheck<'_>) -> UpstreamOutcome {
        let Self { upstream, protocol, attempt: RunningAttempt { deadline, route, .. }, .. } = self;
        // HTTP/1.1 to a gRPC service brings an error that says nothing to somebody who does not know HTTP/2.
        let needs_http2 = *protocol == CallProtocol::Grpc && !upstream.shares_connections();
        let response = match timeout_at(*deadline, upstream.call_while(request, may_send)).await {
            Err(_) => return TIMED_OUT,
            Ok(Err(error)) => {
                if needs_http2 {
                    tracing::warn!(route = %route.name, "gRPC needs HTTP/2: write the upstream as h2c://host:port");
                }
                let cause = error_causes(&error);
                tracing::warn!(route = %route.name, upstream = %route.service.upstream, cause, "{error}");
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
        self.receive(response).await
    }

    /// Receives the whole response, or its beginning if the client gets it from there on.
    async fn receive(&self, response: Response<PooledBody>) -> UpstreamOutcome {
        let Self { upstream, protocol, attempt: RunningAttempt { instance, deadline, route, .. }, .. } = self;
        let (mut parts, mut rest) = response.into_parts();
        let length = http_body::Body::size_hint(&rest).exact();
        let directives = ServiceDirectives::parse(&parts.headers);
        let announced_trailers = parts.headers.get(TRAILER).cloned();
        fields::prepare_for_client(&mut parts.headers);
        let may_wait = !upstream.shares_connections();
        let mut incoming =
            IncomingBody::new(&instance.response_bodies, length, route.options.max_response_body, may_wait);
        let mut trailers = HeaderMap::new();
        let start = self.stream_start(&parts.headers, length);
        let head = ServiceHead { parts, protocol: *protocol, directives };
        let mut streams_from = match start {
            StreamStart::WithHead(wait) => Some(Instant::now() + wait),
            StreamStart::AfterFirstByte(_) | StreamStart::Never => None,
        };
        let streams = loop {
            incoming.make_room(*deadline).await;
            let frame = tokio::select! {
                biased;
                frame = timeout_at(*deadline, rest.frame()) => match frame {
                    Err(_) => return TIMED_OUT,
                    Ok(None) => {
                        let (body, share) = incoming.into_whole();
                        return UpstreamOutcome::Answered(ServiceAnswer::new(head, Some(body), trailers), share);
                    }
                    // A response that breaks off must never pass for a whole one.
                    Ok(Some(Err(_))) => return BROKEN,
                    Ok(Some(Ok(frame))) => frame,
                },
                () = sleep_until(streams_from.unwrap_or(*deadline)), if streams_from.is_some() && trailers.is_empty() => {
                    break true;
                }
            };
            match frame.into_data() {
                Ok(data) => incoming.push(data),
                Err(frame) => trailers.extend(frame.into_trailers().unwrap_or_default()),
            }
            if let (StreamStart::AfterFirstByte(wait), None) = (start, streams_from) {
                streams_from = Some(Instant::now() + wait);
            }
            if incoming.is_too_long() {
                break false;
            }
        };
        let (beginning, share) = incoming.into_whole();
        let begun = BegunResponse { head, announced_trailers, beginning, share, rest, length, streams, may_wait };
        UpstreamOutcome::Begun(begun)
    }

    fn stream_start(&self, headers: &HeaderMap, length: Option<u64>) -> StreamStart {
        if !self.takes_streams || length == Some(0) {
            return StreamStart::Never;
        }
        match self.attempt.route.options.stream {
            StreamMode::Always => StreamStart::WithHead(Duration::ZERO),
            StreamMode::Never => StreamStart::Never,
            StreamMode::Auto if length.is_some() => StreamStart::Never,
            StreamMode::Auto => match self.protocol {
                CallProtocol::Grpc => StreamStart::WithHead(WHOLE_CALL),
                // The status of the call is in the last bytes of the body.
                CallProtocol::GrpcWeb => StreamStart::Never,
                CallProtocol::Http if event_stream::is_streamed(headers) => StreamStart::WithHead(Duration::ZERO),
                CallProtocol::Http => StreamStart::AfterFirstByte(SLOW_RESPONSE),
            },
        }
    }
}

/// The time at which a response begins to stream, unless it is whole by then.
#[derive(Clone, Copy)]
enum StreamStart {
    AfterFirstByte(Duration),
    Never,
    WithHead(Duration),
}

/// The outcome that the store has, if that is a response: every retry will get it, so this request gets it too.
fn stored_outcome(record: Record, reserve_request: &ReserveRequest, rule: &RetryRule) -> Option<Outcome> {
    // An operator may have purged the key meanwhile, and another request have used it: that response is not for this
    // client.
    if record.recipe != reserve_request.recipe || record.fingerprint != reserve_request.fingerprint {
        tracing::warn!(record = %record.id, "the key was used for another request meanwhile; this response is not stored");
        return None;
    }
    let is_replaced = rule.counts_as_none(&record);
    match record.state {
        KeyState::Completed(CompletedResponse { response, .. }) if response.body.is_none() => None,
        KeyState::Completed(completed) if record.token == reserve_request.token => {
            Some(Outcome::ExecutedElsewhere(completed))
        }
        // A failover has lost the takeover of the expired key. The earlier operation's response is back, and no retry
        // gets it.
        KeyState::Completed(_) if is_replaced => None,
        KeyState::Completed(completed) => Some(Outcome::Replayed(completed)),
        KeyState::Dead
        | KeyState::Expired
        | KeyState::InFlight
        | KeyState::Queued
        | KeyState::Retryable
        | KeyState::Unknown => None,
    }
}
