//! Observes a request: neither refuses nor delays it because of its key, and counts what `mode = "enforce"` would have done.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio::sync::oneshot;

use super::admit::{ObservedRequest, RequestView};
use super::decide::{Decision, DecisionRules, decide};
use super::pass::{self, PassThroughRequest};
use super::routing::ActiveRoute;
use super::{Gate, TAKE_OVERS_MAX, deliver, settle};
use crate::body::Body;
use crate::config::Route;
use crate::domain::attempt::{AttemptLease, ReserveResult, Settlement};
use crate::domain::response::StoredResponse;
use crate::domain::response_policy::{ResponseVerdict, ServiceStatus};
use crate::domain::unknown_cause::UnknownCause;
use crate::instance::Instance;
use crate::instance::metrics::{ReservationResult, RouteMetrics};
use crate::instance::token_verifier::TokenVerifier;
use crate::protocol::directives::ServiceDirectives;
use crate::protocol::refusal::Refusal;
use crate::protocol::status::OncegateStatus;
use crate::protocol::{fields, grpc};
use crate::store::StoreError;

/// The meaning of a response for its attempt: the verdict, the TTL and the status.
type ObservedVerdict = (ResponseVerdict, Duration, ServiceStatus);

impl Gate {
    /// Streams the request to the service, and compares a copy of it in the background.
    pub(super) async fn observe(self: &Arc<Self>, observed: ObservedRequest) -> Result<Response<Body>, Refusal> {
        let ObservedRequest { head, body, origin, active, config, tie } = observed;
        let ActiveRoute { route, upstream, token_verifier, metrics, .. } = active;
        let (body, copy) = Body::teed(body, route.max_request_body, self.instance.bodies.share());
        let (verdict_sender, verdict) = oneshot::channel();
        let upgrade = pass::asks_for_websocket(&head.headers, head.version);
        let trailers = fields::accepts_trailers(&head.headers);
        let is_call = fields::is_grpc(&head.headers);
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = head.uri.clone();
        *request.headers_mut() = head.headers.clone();
        *request.extensions_mut() = head.extensions.clone();
        fields::prepare_for_service(request.headers_mut(), &origin, |name| route.reads_field(name));
        let (instance, policy) = (Arc::clone(&self.instance), Arc::clone(&route));
        // Not tracked: a drain does not wait for a comparison.
        tokio::spawn(async move {
            let Ok((body, _share)) = copy.await else {
                return log_observed(&route, "not compared: the body did not pass whole, or is too large to hold");
            };
            let view =
                RequestView { head: &head, body: &body, origin: &origin, route: &route, secrets: &config.secrets };
            match compare(&instance, &view, token_verifier.as_deref(), &metrics, verdict).await {
                Ok(would) => log_observed(&route, would),
                Err(error) => {
                    tracing::debug!(route = %route.name, %error, "an observed request could not be compared")
                }
            }
        });
        let mut verdict_sender = Some(verdict_sender);
        let mut send_verdict = |verdict: ObservedVerdict| verdict_sender.take().map(|sender| sender.send(verdict));
        let passing = Box::new(PassThroughRequest { request, trailers, upgrade, upstream, tie });
        let passed = pass::pass_and_inspect(passing, |status, headers| {
            // The trailers of a call pass on without being read.
            let status = grpc::status_in_head(is_call, status, headers);
            let (verdict, ttl) = ServiceDirectives::parse(headers).apply(&policy, status, headers);
            send_verdict((verdict, ttl, status));
        });
        let mut response = passed.await.inspect_err(|refusal| {
            if matches!(refusal, Refusal::Overloaded(_) | Refusal::UpstreamUnreachable(_)) {
                send_verdict((ResponseVerdict::Release, policy.ttl, StatusCode::BAD_GATEWAY.into()));
            }
        })?;
        response.headers_mut().insert(fields::ONCEGATE_STATUS, OncegateStatus::Observed.value());
        Ok(response)
    }
}

/// Does with a copy of the request what `mode = "enforce"` would do, but for sending it. Returns the `Oncegate-Status` or the
/// problem's slug that the client would have got.
async fn compare(
    instance: &Arc<Instance>,
    view: &RequestView<'_>,
    verifier: Option<&TokenVerifier>,
    metrics: &RouteMetrics,
    verdict: oneshot::Receiver<ObservedVerdict>,
) -> Result<&'static str, StoreError> {
    // Observed keys have records of their own: a route that is enforced later starts with none.
    let service = format!("{} (observed)", instance.config.service).into();
    let route = view.route;
    let request = match instance.observed_reserve_request(view, &service, verifier).await {
        Ok(Some(request)) => request,
        Ok(None) => return Ok("passed without a key"),
        Err(refusal) => return Ok(refusal.slug()),
    };
    if !instance.instance_lease.may_start() {
        return Ok(Refusal::StoreUnavailable.slug());
    }
    let rules = DecisionRules {
        on_unknown: route.on_unknown,
        quiet_after: route.quiet_after,
        average_latency: Duration::default(),
    };
    let entry = instance.in_flight.register(request.token);
    let mut result = instance.store.reserve(request.clone()).await?;
    for round in 0..=TAKE_OVERS_MAX {
        let record = match result {
            ReserveResult::Fresh(lease) => {
                let is_first = lease.attempt == 1;
                let result = if is_first { ReservationResult::Created } else { ReservationResult::FailedRetry };
                instance.observability.count_reservation(metrics, &request.scope, result);
                settle::persist(instance, settlement(lease, verdict.await.ok(), route), entry).await;
                return Ok(OncegateStatus::Executed.name());
            }
            ReserveResult::Taken(record) => record,
        };
        let is_same = view.is_same_request(&request, &record);
        let record = instance.store_clock.certain(record, request.time_limit);
        let decision = decide(record, is_same, &rules);
        if let Some(result) = decision.counted_as() {
            instance.observability.count_reservation(metrics, &request.scope, result);
        }
        match decision {
            Decision::Accepted(progress) => return Ok(progress.oncegate_status().name()),
            Decision::Join(_) => return Ok(OncegateStatus::InFlight.name()),
            Decision::Refuse(Refusal::ResponseNotKept) | Decision::Replay(_) => {
                return Ok(OncegateStatus::Replayed.name());
            }
            Decision::Refuse(refusal) => return Ok(refusal.slug()),
            Decision::TakeOver(_) if round == TAKE_OVERS_MAX => break,
            Decision::TakeOver(expected) => result = instance.store.take_over(request.clone(), expected).await?,
        }
    }
    Ok(OncegateStatus::InFlight.name())
}

/// The settlement that the response would have led to. Of the response only the HTTP status is stored.
fn settlement(lease: AttemptLease, verdict: Option<ObservedVerdict>, route: &Route) -> Settlement {
    match verdict {
        Some((ResponseVerdict::Release, ttl, status)) => {
            let ttl = deliver::released_ttl(status, ttl, &lease);
            lease.release(ttl)
        }
        Some((ResponseVerdict::Store, ttl, status)) => {
            let status = match status {
                ServiceStatus::Http(status) => status,
                ServiceStatus::Grpc(_) | ServiceStatus::GrpcMissing => StatusCode::OK,
            };
            let (headers, trailers) = Default::default();
            let response = StoredResponse { status, headers, body: None, trailers };
            lease.complete(response, ttl).with_remember(route.remember)
        }
        Some((ResponseVerdict::Unknown, _, status)) => lease.unknown(status.into()),
        None => lease.unknown(UnknownCause::Broken),
    }
}

fn log_observed(route: &Route, would: &'static str) {
    tracing::info!(route = %route.name, would, "observed");
}
