//! Observes a request: neither refuses nor delays it because of its key, and counts what `mode = "enforce"` would have done.
//!
//! `admit/observed` admits the copy of the request. The copy claims its key and is settled as any other request.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode, request};
use tokio::sync::oneshot;

use super::admit::identity::Incoming;
use super::admit::observed::{ForetoldResult, RequestClues};
use super::admit::origin::client_address;
use super::admit::{GuardedRequest, ObservedRequest};
use super::claim::{Claim, ClaimFailure};
use super::new_key::accept_caller;
use super::pass::{self, PassThroughRequest};
use super::response_context::ResponseContext;
use super::routing::ActiveRoute;
use super::start::AttemptTaker;
use super::worker::{Gate, LiveConfig};
use super::{attempt_end, settle};
use crate::body::{Body, CopyResult};
use crate::config::{Config, InFlightPolicy, Route, StoreDownPolicy};
use crate::domain::attempt::{AttemptLease, Settlement};
use crate::domain::decision::{KeyAnswer, KeyRefusal};
use crate::domain::key::Key;
use crate::domain::response::StoredResponse;
use crate::domain::response_policy::{ResponseVerdict, ServiceStatus};
use crate::domain::unknown_cause::UnknownCause;
use crate::protocol::directives::ServiceDirectives;
use crate::protocol::fields::RequestOrigin;
use crate::protocol::grpc::CallProtocol;
use crate::protocol::refusal::{Refusal, RetryAfter};
use crate::protocol::status::OncegateStatus;
use crate::protocol::{fields, grpc};
use crate::store::StoreError;

/// The meaning of a response for its attempt: the verdict, the TTL and the status.
type ObservedVerdict = (ResponseVerdict, Duration, ServiceStatus);

impl Gate {
    /// Streams the request to the service, and compares a copy of it in the background.
    pub(super) async fn observe(self: &Arc<Self>, observed: ObservedRequest) -> Result<Response<Body>, Refusal> {
        let ObservedRequest { head, mut body, origin, active, config, tie, is_foretold } = observed;
        let ActiveRoute { route, upstream, renewable, .. } = active.clone();
        let sent = renewable.as_deref().and_then(|parts| parts.keep(&head.uri, &head.headers));
        let mut headers = head.headers.clone();
        pass::prepare_streaming(&mut headers, &mut body, &origin, Some(&route));
        let (body, copy) = Body::teed(body, route.max_request_body, self.instance.bodies.share());
        let (verdict_sender, verdict) = oneshot::channel();
        let upgrade = pass::asks_for_websocket(&head.headers, head.version);
        let trailers = fields::accepts_trailers(&head.headers);
        let protocol = CallProtocol::from_headers(&head.headers);
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = head.uri.clone();
        *request.headers_mut() = headers;
        *request.extensions_mut() = head.extensions.clone();
        let policy = Arc::clone(&route);
        if !is_foretold {
            let observation = Observation { gate: Arc::clone(self), head, origin, active, config };
            // Not tracked: a drain does not wait for a comparison.
            tokio::spawn(observation.log_comparison(copy, verdict));
        }
        let mut verdict_sender = Some(verdict_sender);
        let mut send_verdict = |verdict: ObservedVerdict| verdict_sender.take().map(|sender| sender.send(verdict));
        let passing = Box::new(PassThroughRequest {
            request,
            trailers,
            upgrade,
            only_reads: false,
            misspelled_key: None,
            upstream,
            tie,
        });
        let passed = pass::pass(passing, |status, headers| {
            // The trailers of a call, and bodies, pass on without being read.
            let status = grpc::status_in_head(protocol, status, headers);
            let judgement = ServiceDirectives::parse(headers).apply(&policy, status, headers, None);
            send_verdict((judgement.verdict, judgement.ttl, status));
            if let Some(sent) = &sent {
                sent.note_renewals(headers);
            }
        });
        passed.await.inspect_err(|refusal| {
            if matches!(refusal, Refusal::Overloaded(_) | Refusal::UpstreamUnreachable(_)) {
                send_verdict((ResponseVerdict::Release, policy.ttl, StatusCode::BAD_GATEWAY.into()));
            }
        })
    }

    /// Logs the refusal of a request that would not come as far as a route that observes, because of its path or the method that it
    /// names.
    pub(super) fn foretell_refusal(
        self: &Arc<Self>,
        head: &request::Parts,
        origin: &RequestOrigin,
        observing: &ActiveRoute,
        live: &LiveConfig,
        refusal: Refusal,
    ) {
        let (head, origin, active, config) =
            (head.clone(), origin.clone(), observing.clone(), Arc::clone(&live.config));
        let observation = Observation { gate: Arc::clone(self), head, origin, active, config };
        // The token that names the caller may take time to verify.
        tokio::spawn(async move {
            let service = observation.observed_service();
            let clues = observation.incoming(&service).find_clues().await;
            observation.log(&refusal.into(), &clues);
        });
    }

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
        let lease = match self.claim(&mut taker, guarded, Ok(())).await {
            Ok(Claim::Mine(lease)) => lease,
            Ok(Claim::Answered(answer)) => {
                guarded.count((&answer).into(), instance);
                return foretell(answer, guarded.route().in_flight, is_for_later);
            }
            Err(ClaimFailure::Refused(refusal)) => return refusal.into(),
            Err(ClaimFailure::Reserving(StoreError::Corrupt(_)) | ClaimFailure::TakingOver(StoreError::Corrupt(_))) => {
                return Refusal::ResponseCorrupt.into();
            }
            Err(ClaimFailure::Reserving(error) | ClaimFailure::TakingOver(error)) => {
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
            accept_caller(instance, route, &request, settled.is_stored()).await;
        }
        ForetoldResult::Status(if is_for_later { OncegateStatus::Queued } else { OncegateStatus::Executed })
    }
}

/// An observed request that passes on its way, and all that its comparison needs.
struct Observation {
    gate: Arc<Gate>,
    head: request::Parts,
    origin: RequestOrigin,
    active: ActiveRoute,
    config: Arc<Config>,
}

impl Observation {
    /// Compares the request, and logs the result that it would have got.
    async fn log_comparison(self, copy: oneshot::Receiver<CopyResult>, verdict: oneshot::Receiver<ObservedVerdict>) {
        let service = self.observed_service();
        // Before the admission: what it finds by a provisional salt must not be reserved.
        let is_provisional = self.gate.instance.salt.stored().is_none();
        let incoming = self.incoming(&service);
        let (reserve_request, body, share) = match self.gate.admit_observed(&incoming, copy).await {
            Ok(admitted) => admitted,
            Err(foretold) => {
                let clues = incoming.find_clues().await;
                return self.log(&foretold, &clues);
            }
        };
        let clues = RequestClues::from(&reserve_request);
        let Self { gate, head, origin, active, config } = self;
        let client_address = active.route.limits_new_keys().then(|| client_address(&head, &origin, &config));
        let mut guarded = GuardedRequest {
            reserve_request,
            head,
            body,
            share,
            origin,
            client_address,
            active,
            secrets: config.secrets.clone(),
            can_wait_for_store: false,
            broken_rule: None,
            is_provisional,
            store_clock: Arc::clone(&gate.instance.store_clock),
        };
        let foretold = gate.compare(&mut guarded, verdict).await;
        let GuardedRequest { head, origin, active, .. } = guarded;
        Self { gate, head, origin, active, config }.log(&foretold, &clues);
    }

    /// Observed keys have records of their own: a route that is enforced later starts with none.
    fn observed_service(&self) -> Arc<str> {
        format!("{} (observed)", self.gate.instance.config.service).into()
    }

    fn incoming<'a>(&'a self, service: &'a Arc<str>) -> Incoming<'a> {
        let Self { gate, head, origin, active, config } = self;
        Incoming {
            head,
            origin,
            route: &active.route,
            verifier: active.token_verifier.as_deref(),
            key_limits: active.route.key.limits,
            service,
            salt: gate.instance.salt.current().salt,
            secrets: &config.secrets,
        }
    }

    fn log(&self, foretold: &ForetoldResult, clues: &RequestClues) {
        let (would, refusal) = match foretold {
            ForetoldResult::NotCompared(reason) => (*reason, None),
            ForetoldResult::Refused(refusal) => (refusal.slug(), Some(refusal.slug())),
            ForetoldResult::Status(status) => (status.name(), None),
            ForetoldResult::Unguarded => ("passed without a key", None),
        };
        let RequestClues { key, record, scope } = clues;
        // Needed to find a client that has to change; the others are not to be found.
        let client = refusal.map(|_| client_address(&self.head, &self.origin, &self.config));
        tracing::info!(
            route = %self.active.route.name,
            would,
            refusal,
            key = key.as_ref().map(Key::prefix).map(display),
            record = record.as_ref().map(display),
            scope = scope.as_ref().map(display),
            client = client.map(display),
            "observed"
        );
    }
}

/// The result where the store reserves no key.
fn without_store(route: &Route) -> ForetoldResult {
    match route.store_down {
        StoreDownPolicy::Bypass => ForetoldResult::Status(OncegateStatus::Bypassed),
        StoreDownPolicy::Reject => Refusal::StoreUnavailable.into(),
    }
}

/// The result that follows from the answer of a key's record. Enforcement would have accepted a request that is for later, and an
/// accepted key answers 202 until it is completed.
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
                ServiceStatus::Grpc(_) | ServiceStatus::GrpcMissing => StatusCode::OK,
            };
            let (headers, trailers) = Default::default();
            let response = StoredResponse { status, headers, body: None, trailers };
            attempt_end::complete(lease, route, ttl, response)
        }
        Some((ResponseVerdict::Unknown, _, status)) => lease.unknown(status.into()),
        None => lease.unknown(UnknownCause::Broken),
    }
}
