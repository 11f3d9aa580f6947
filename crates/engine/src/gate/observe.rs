//! Observes a request: neither refuses nor delays it because of its key, and counts what `mode = "enforce"` would have
//! done.
//!
//! `admit/observed` admits the copy of the request. The copy claims its key and is settled as any other request.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, StatusCode};
use tokio::sync::oneshot;

use super::admit::GuardedRequest;
use super::admit::observed::{ForetoldResult, Observation, RequestClues};
use super::claim::{AttemptTaker, Unclaimed};
use super::new_key::accept_caller;
use super::response_context::ResponseContext;
use super::state::Gate;
use super::{attempt_end, settle};
use oncegate_domain::attempt::{AttemptLease, Settlement};
use oncegate_domain::decision::{KeyAnswer, KeyRefusal};
use oncegate_domain::response::StoredResponse;
use oncegate_domain::response_policy::{ResponseVerdict, ServiceStatus};
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_http::body::Body;
use oncegate_http::protocol::directives::ServiceDirectives;
use oncegate_http::protocol::grpc::{self, CallProtocol};
use oncegate_http::protocol::judged_body::JudgedBody;
use oncegate_http::protocol::refusal::{Refusal, RetryAfter};
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_settings::{InFlightPolicy, Route, StoreDownPolicy};
use oncegate_store::{SettleResult, StoreError};

/// The time after which a proxy or a client that hedges has sent the request again, at most: it waits as long as most
/// answers take.
const HEDGE_DELAY_MAX: Duration = Duration::from_secs(2);

/// The meaning of a response for its attempt: the verdict, the TTL and the status.
type ObservedVerdict = (ResponseVerdict, Duration, ServiceStatus);

/// Tells the comparison of an observed request what became of the request.
pub(super) struct Observer {
    route: Arc<Route>,
    protocol: CallProtocol,
    verdict: oneshot::Sender<ObservedVerdict>,
}

impl Observer {
    /// Begins to compare a copy of a request that passes to the service.
    pub(super) fn begin(observation: Observation, request: &mut Request<Body>) -> Self {
        let route = Arc::clone(&observation.active.route);
        let protocol = CallProtocol::from_headers(&observation.head.headers);
        let share = observation.gate.instance.bodies.share();
        let copy = request.body_mut().tee(route.options.max_request_body, share);
        let (verdict, receiver) = oneshot::channel();
        // Not tracked: a drain does not wait for a comparison.
        tokio::spawn(async move {
            let (foretold, clues) = match observation.admit(copy).await {
                Ok(mut guarded) => {
                    let clues = RequestClues::from(&guarded.reserve_request);
                    (observation.gate.compare(&mut guarded, receiver).await, clues)
                }
                Err(foretold) => (foretold, observation.find_clues().await),
            };
            observation.log(&foretold, &clues);
        });
        Self { route, protocol, verdict }
    }

    /// Notes the head of the response. The trailers of a call, and bodies, pass on without being read.
    pub(super) fn note_response(self, status: StatusCode, headers: &HeaderMap) {
        let status = grpc::status_in_head(self.protocol, status, headers);
        let judgement = ServiceDirectives::parse(headers).apply(&self.route, status, headers, JudgedBody::Unobserved);
        let _ = self.verdict.send((judgement.verdict, judgement.ttl, status));
    }

    pub(super) fn note_refusal(self, refusal: &Refusal) {
        if matches!(refusal, Refusal::Overloaded(_) | Refusal::UpstreamUnreachable(_)) {
            let _ =
                self.verdict.send((ResponseVerdict::Release, self.route.options.ttl, StatusCode::BAD_GATEWAY.into()));
        }
    }
}

impl Gate {
    /// Does with a copy of the request what `mode = "enforce"` would do, but for sending it.
    async fn compare(
        &self,
        guarded: &mut GuardedRequest,
        verdict: oneshot::Receiver<ObservedVerdict>,
    ) -> ForetoldResult {
        let instance = &self.instance;
        if !instance.instance_lease.may_start() {
            return without_store(guarded.route());
        }
        let is_for_later = guarded.is_for_later();
        let context = ResponseContext::default();
        let mut taker = AttemptTaker::new(instance, guarded, &context);
        let may_take = guarded.check_rules();
        let lease = match self.claim(&mut taker, guarded, may_take, &context).await {
            Ok(lease) => lease,
            Err(Unclaimed::Answered(answer)) => {
                guarded.count((&answer).into(), instance);
                let foretold = foretell(answer, guarded.route().options.in_flight, is_for_later);
                return match foretold {
                    ForetoldResult::Refused(refusal @ Refusal::InFlight(_))
                        if guarded.observed_beside.is_some_and(|ran| ran <= HEDGE_DELAY_MAX) =>
                    {
                        ForetoldResult::Hedged(refusal)
                    }
                    foretold => foretold,
                };
            }
            Err(Unclaimed::Refused(refusal)) => return refusal.into(),
            Err(Unclaimed::Reserving(StoreError::Corrupt(_)) | Unclaimed::TakingOver(StoreError::Corrupt(_))) => {
                return Refusal::ResponseCorrupt.into();
            }
            Err(Unclaimed::Reserving(error) | Unclaimed::TakingOver(error)) => {
                let route = guarded.route();
                tracing::debug!(route = %route.name, %error, "the key of an observed request could not be reserved");
                return without_store(route);
            }
        };
        guarded.count_start(lease.attempt == 1, instance);
        let route = guarded.route();
        let verdict = verdict.await.ok();
        let is_success = verdict.is_some_and(|(_, _, status)| status.is_success());
        let accepted = (route.limits_new_keys() && is_success).then(|| Arc::clone(&lease.reserve_request));
        let settled = settle::persist(instance, settlement(lease, verdict, route), taker.entry).await;
        if let Some(request) = accepted {
            let is_stored = matches!(settled, Ok(SettleResult::Done { .. }));
            accept_caller(instance, route, &request, is_stored).await;
        }
        ForetoldResult::Status(if is_for_later { OncegateStatus::Queued } else { OncegateStatus::Executed })
    }
}

/// The result where the store reserves no key.
fn without_store(route: &Route) -> ForetoldResult {
    match route.options.store_down {
        StoreDownPolicy::Bypass => ForetoldResult::Status(OncegateStatus::Bypassed),
        StoreDownPolicy::Reject => Refusal::StoreUnavailable.into(),
    }
}

/// The result that follows from the answer of a key's record. Enforcement would have accepted a request that is for
/// later, and an accepted key answers 202 until it is completed.
fn foretell(answer: KeyAnswer, in_flight: InFlightPolicy, is_for_later: bool) -> ForetoldResult {
    match answer {
        KeyAnswer::Accepted(progress) => ForetoldResult::Status(progress.into()),
        KeyAnswer::Join(_) if is_for_later => ForetoldResult::Status(OncegateStatus::Queued),
        KeyAnswer::Join(retry_after) => match in_flight {
            InFlightPolicy::Accepted | InFlightPolicy::Wait => ForetoldResult::Status(OncegateStatus::InFlight),
            InFlightPolicy::Conflict => Refusal::InFlight(RetryAfter::new(retry_after)).into(),
        },
        // Of the response only the status is stored.
        KeyAnswer::Refuse(KeyRefusal::ResponseNotKept) | KeyAnswer::Replay(_) => {
            ForetoldResult::Status(OncegateStatus::Replayed)
        }
        KeyAnswer::Refuse(KeyRefusal::OutcomeUnknown(_)) if is_for_later => {
            ForetoldResult::Status(OncegateStatus::Unknown)
        }
        KeyAnswer::Refuse(refusal) => Refusal::from(refusal).into(),
    }
}

/// The settlement that the response would have led to. Of the response only the HTTP status is stored.
fn settlement(lease: AttemptLease, verdict: Option<ObservedVerdict>, route: &Route) -> Settlement {
    match verdict {
        Some((ResponseVerdict::Release, ttl, status)) => {
            let ttl = attempt_end::released_ttl(status, ttl, &lease);
            lease.release(ttl)
        }
        Some((ResponseVerdict::Store, ttl, status)) => {
            let status = match status {
                ServiceStatus::Http(status) => status,
                ServiceStatus::Grpc(_) | ServiceStatus::GrpcUnclear => StatusCode::OK,
            };
            let (headers, trailers) = Default::default();
            let response = StoredResponse { status, headers, body: None, trailers };
            attempt_end::complete(lease, route, ttl, response)
        }
        Some((ResponseVerdict::Unknown, _, status)) => lease.unknown(status.into()),
        None => lease.unknown(UnknownCause::Broken),
    }
}
