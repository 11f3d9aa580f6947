//! A service's response at its end: what it means for the key, and the settlement that follows.
//!
//! `forward` has it whole before the client gets any of it, and `hand_on` after the client has read it. `settle` stores
//! settlements.

use std::panic;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, response};
use tokio::task::spawn_blocking;

use super::attempt_end;
use super::new_key::accept_caller;
use super::response_context::ResponseContext;
use super::settle::{RunningAttempt, Unsettled, persist};
use crate::instance::request_trace::TraceStage;
use oncegate_domain::attempt::Settlement;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::response_policy::{ResponseVerdict, ServiceStatus};
use oncegate_http::protocol::directives::{ResponseJudgement, ServiceDirectives};
use oncegate_http::protocol::grpc::CallProtocol;
use oncegate_http::protocol::judged_body::JudgedBody;
use oncegate_http::protocol::{fields, grpc, grpc_web, stored_response};
use oncegate_settings::Route;
use oncegate_store::SettleResult;

/// The size from which a body is parsed on another thread, as it is for a fingerprint.
const LARGE_BODY: usize = 64 * 1024;

/// The head of a service's response, with the fields that a client may have.
pub(super) struct ServiceHead {
    pub(super) parts: response::Parts,
    /// The protocol of its request: the status of a call comes at the end.
    pub(super) protocol: CallProtocol,
    pub(super) directives: ServiceDirectives,
}

pub(super) struct ServiceAnswer {
    /// The response. It has no body if that is too large to keep.
    pub(super) response: StoredResponse,
    pub(super) status: ServiceStatus,
    directives: ServiceDirectives,
}

/// What became of a response.
pub(super) struct SettledAnswer {
    pub(super) response: StoredResponse,
    pub(super) verdict: ResponseVerdict,
    /// The settlement that the store was asked for.
    pub(super) own: Settlement,
    pub(super) settled: Result<SettleResult, Unsettled>,
}

impl ServiceAnswer {
    /// The response with this head, this body, and trailers as they came.
    pub(super) fn new(head: ServiceHead, body: Option<Bytes>, mut trailers: HeaderMap) -> Self {
        let ServiceHead { parts: head, protocol, mut directives } = head;
        // The handler of a call often knows only at its end what it has done, and then it can set trailers alone.
        let at_end = match (protocol, &body) {
            (CallProtocol::Grpc, _) => Some(ServiceDirectives::parse(&trailers)),
            (CallProtocol::GrpcWeb, Some(body)) => {
                grpc_web::trailers(&head.headers, body).map(|trailers| ServiceDirectives::parse(&trailers))
            }
            (CallProtocol::GrpcWeb, None) | (CallProtocol::Http, _) => None,
        };
        if let Some(at_end) = at_end {
            directives = directives.or(at_end);
        }
        fields::prepare_for_client(&mut trailers);
        let response = StoredResponse { status: head.status, headers: head.headers, body, trailers };
        let status = grpc::service_status(protocol, &response);
        Self { response, status, directives }
    }

    /// Judges the response and stores the outcome. `finish` changes the response for its client; the store gets it as
    /// it was.
    pub(super) async fn settle(
        self,
        attempt: RunningAttempt,
        context: &ResponseContext,
        finish: impl FnOnce(&mut StoredResponse),
    ) -> SettledAnswer {
        let (instance, route) = (&Arc::clone(&attempt.instance), &Arc::clone(&attempt.route));
        let (Self { mut response, status, .. }, judgement) = self.judge(route).await;
        let ResponseJudgement { verdict, ttl, unknown_cause } = judgement;
        // Anything that may panic comes before the lease leaves the attempt's care.
        let storable = (verdict == ResponseVerdict::Store).then(|| stored_response::to_storable(&response, route));
        finish(&mut response);
        let (lease, entry) = attempt.into_parts();
        let accepted = (route.limits_new_keys() && status.is_success()).then(|| Arc::clone(&lease.reserve_request));
        let settlement = match (verdict, storable) {
            (ResponseVerdict::Store, Some(storable)) => attempt_end::complete(lease, route, ttl, storable),
            (ResponseVerdict::Release, _) => attempt_end::release(lease, route, ttl, Some((status, &response.headers))),
            (ResponseVerdict::Unknown | ResponseVerdict::Store, _) => {
                context.note(|state| state.cause = Some(unknown_cause));
                attempt_end::log_unknown(
                    &lease,
                    route,
                    unknown_cause,
                    "the service's response leaves the outcome unknown",
                );
                attempt_end::unknown(lease, route, unknown_cause, Some(&response.headers))
            }
        };
        let own = settlement.clone();
        let settled = context.timed(TraceStage::Settle, pin!(persist(instance, settlement, entry))).await;
        if let Some(request) = accepted {
            let is_stored = matches!(settled, Ok(SettleResult::Done { .. }));
            Box::pin(accept_caller(instance, route, &request, is_stored)).await;
        }
        SettledAnswer { response, verdict, own, settled }
    }

    async fn judge(self, route: &Arc<Route>) -> (Self, ResponseJudgement) {
        let judged = |answer: Self, route: &Route| {
            let Self { response, status, directives } = &answer;
            let body = response.body.as_deref().map_or(JudgedBody::TooLarge, JudgedBody::Whole);
            let judgement = directives.apply(route, *status, &response.headers, body);
            (answer, judgement)
        };
        if route.options.outcome.is_empty() || self.response.body.as_ref().is_none_or(|body| body.len() < LARGE_BODY) {
            return judged(self, route);
        }
        let route = Arc::clone(route);
        let judging = spawn_blocking(move || judged(self, &route));
        judging.await.unwrap_or_else(|stopped| panic::resume_unwind(stopped.into_panic()))
    }
}
