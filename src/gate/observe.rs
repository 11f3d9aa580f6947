//! Observes a request: neither refuses nor delays it because of its key, and counts what `mode = "enforce"` would have done.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, request};
use tokio::sync::oneshot;

use super::admit::ObservedRequest;
use super::admit::fingerprinting::{FingerprintSource, Fingerprinting};
use super::admit::observed::{ForetoldResult, ObservedHead, RequestClues};
use super::admit::origin::client_address;
use super::decide::{Decision, DecisionRules, decide};
use super::new_key::{NewKey, accept_caller};
use super::pass::{self, PassThroughRequest};
use super::routing::ActiveRoute;
use super::{Gate, LiveConfig, TAKE_OVERS_MAX, deliver, enqueue, settle};
use crate::body::{Body, CopyResult};
use crate::config::{Config, InFlightPolicy, Route, StoreDownPolicy};
use crate::domain::attempt::{AttemptLease, ReserveRequest, ReserveResult, Settlement};
use crate::domain::key::Key;
use crate::domain::response::StoredResponse;
use crate::domain::response_policy::{ResponseVerdict, ServiceStatus};
use crate::domain::unknown_cause::UnknownCause;
use crate::instance::Instance;
use crate::instance::metrics::{ReservationResult, RouteMetrics};
use crate::instance::token_verifier::TokenVerifier;
use crate::protocol::directives::ServiceDirectives;
use crate::protocol::fields::RequestOrigin;
use crate::protocol::grpc::CallProtocol;
use crate::protocol::refusal::{Refusal, RetryAfter};
use crate::protocol::status::OncegateStatus;
use crate::protocol::{fields, grpc};
use crate::store::{StoreError, TakeOverParams};

/// The meaning of a response for its attempt: the verdict, the TTL and the status.
type ObservedVerdict = (ResponseVerdict, Duration, ServiceStatus);

impl Gate {
    /// Streams the request to the service, and compares a copy of it in the background.
    pub(super) async fn observe(self: &Arc<Self>, observed: ObservedRequest) -> Result<Response<Body>, Refusal> {
        let ObservedRequest { head, mut body, origin, active, config, tie, is_foretold } = observed;
        let ActiveRoute { route, upstream, token_verifier, metrics, renewable, .. } = active;
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
        let (instance, policy) = (Arc::clone(&self.instance), Arc::clone(&route));
        let fingerprinting = self.fingerprinting.clone();
        if !is_foretold {
            // Not tracked: a drain does not wait for a comparison.
            tokio::spawn(async move {
                let observation = Observation {
                    instance: &instance,
                    fingerprinting: &fingerprinting,
                    head,
                    origin,
                    route: &route,
                    config: &config,
                    metrics: &metrics,
                };
                observation.log_comparison(token_verifier.as_deref(), copy, verdict).await;
            });
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
        &self,
        head: &request::Parts,
        origin: &RequestOrigin,
        observing: &ActiveRoute,
        live: &LiveConfig,
        refusal: Refusal,
    ) {
        let (instance, config, active) = (Arc::clone(&self.instance), Arc::clone(&live.config), observing.clone());
        let (head, origin, fingerprinting) = (head.clone(), origin.clone(), self.fingerprinting.clone());
        // The token that names the caller may take time to verify.
        tokio::spawn(async move {
            let ActiveRoute { route, token_verifier, metrics, .. } = &active;
            let (instance, config) = (&instance, &config);
            let observation =
                Observation { instance, fingerprinting: &fingerprinting, head, origin, route, config, metrics };
            observation.log_refusal(token_verifier.as_deref(), refusal).await;
        });
    }
}

/// An observed request that passes on its way, and all that its comparison needs.
struct Observation<'a> {
    instance: &'a Arc<Instance>,
    fingerprinting: &'a Fingerprinting,
    head: request::Parts,
    origin: RequestOrigin,
    route: &'a Route,
    config: &'a Config,
    metrics: &'a RouteMetrics,
}

impl Observation<'_> {
    /// Compares the request, and logs the result that it would have got.
    async fn log_comparison(
        &self,
        verifier: Option<&TokenVerifier>,
        copy: oneshot::Receiver<CopyResult>,
        verdict: oneshot::Receiver<ObservedVerdict>,
    ) {
        let service = self.observed_service();
        let observed = self.observed_head(verifier, &service);
        // Before the admission: what it finds by a provisional salt must not be reserved.
        let is_joined = self.instance.salt.stored().is_some();
        match self.instance.admit_observed(&observed, copy).await {
            Ok((request, body, _share)) => {
                let clues = RequestClues::from(&request);
                if !is_joined {
                    return self.log(&self.without_store(), &clues);
                }
                let foretold = self.compare(request, &body, verdict).await;
                self.log(&foretold, &clues);
            }
            Err(foretold) => self.log(&foretold, &self.instance.find_clues(&observed).await),
        }
    }

    async fn log_refusal(&self, verifier: Option<&TokenVerifier>, refusal: Refusal) {
        let service = self.observed_service();
        let clues = self.instance.find_clues(&self.observed_head(verifier, &service)).await;
        self.log(&refusal.into(), &clues);
    }

    /// Observed keys have records of their own: a route that is enforced later starts with none.
    fn observed_service(&self) -> Arc<str> {
        format!("{} (observed)", self.instance.config.service).into()
    }

    fn observed_head<'a>(&'a self, verifier: Option<&'a TokenVerifier>, service: &'a Arc<str>) -> ObservedHead<'a> {
        let Self { head, origin, route, config, fingerprinting, .. } = self;
        ObservedHead { head, origin, route, verifier, service, secrets: &config.secrets, fingerprinting }
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
        let client = refusal.map(|_| client_address(&self.head, &self.origin, self.config));
        tracing::info!(
            route = %self.route.name,
            would,
            refusal,
            key = key.as_ref().map(Key::prefix).map(display),
            record = record.as_ref().map(display),
            scope = scope.as_ref().map(display),
            client = client.map(display),
            "observed"
        );
    }

    /// Does with a copy of the request what `mode = "enforce"` would do, but for sending it.
    async fn compare(
        &self,
        request: ReserveRequest,
        body: &Bytes,
        verdict: oneshot::Receiver<ObservedVerdict>,
    ) -> ForetoldResult {
        if !self.instance.instance_lease.may_start() {
            return self.without_store();
        }
        self.reserve(request, body, verdict).await.unwrap_or_else(|error| match error {
            StoreError::Corrupt(_) => Refusal::ResponseCorrupt.into(),
            StoreError::Failed(_) | StoreError::Taken(_) | StoreError::TimedOut | StoreError::Unavailable(_) => {
                tracing::debug!(route = %self.route.name, %error, "the key of an observed request could not be reserved");
                self.without_store()
            }
        })
    }

    /// The result where the store reserves no key.
    fn without_store(&self) -> ForetoldResult {
        match self.route.store_down {
            StoreDownPolicy::Bypass => ForetoldResult::Status(OncegateStatus::Bypassed),
            StoreDownPolicy::Reject => Refusal::StoreUnavailable.into(),
        }
    }

    async fn reserve(
        &self,
        request: ReserveRequest,
        body: &Bytes,
        verdict: oneshot::Receiver<ObservedVerdict>,
    ) -> Result<ForetoldResult, StoreError> {
        let Self { instance, fingerprinting, head, origin, route, config, metrics } = self;
        let source = FingerprintSource { head, body, secrets: &config.secrets };
        let rules = DecisionRules {
            on_unknown: route.on_unknown,
            quiet_after: route.quiet_after,
            average_latency: Duration::default(),
        };
        let is_for_later = enqueue::is_for_later(route, &head.headers);
        let entry = instance.in_flight.register(request.token);
        let client_address = route.limits_new_keys().then(|| client_address(head, origin, config));
        let new_key = NewKey { route, reserve_request: &request, client_address };
        let mut result = match new_key.use_limits(instance).await {
            Ok(permit) => {
                let reserved = instance.store.reserve(permit.mark(&request)).await?;
                if let ReserveResult::Taken(_) = &reserved {
                    permit.give_back();
                }
                reserved
            }
            Err(wait) => match instance.store.find(request.id).await? {
                Some(record) => ReserveResult::Taken(record),
                None => {
                    metrics.rate_limited.inc();
                    return Ok(Refusal::TooManyKeys(wait).into());
                }
            },
        };
        for round in 0..=TAKE_OVERS_MAX {
            let record = match result {
                ReserveResult::Fresh(lease) => {
                    let is_first = lease.attempt == 1;
                    let result = if is_first { ReservationResult::Created } else { ReservationResult::FailedRetry };
                    instance.observability.count_reservation(metrics, &request.scope, result);
                    let verdict = verdict.await.ok();
                    let is_success = verdict.is_some_and(|(_, _, status)| status.is_success());
                    let accepted = (route.limits_new_keys() && is_success).then(|| Arc::clone(&lease.reserve_request));
                    let settled = settle::persist(instance, settlement(lease, verdict, route), entry).await;
                    if let Some(request) = accepted {
                        accept_caller(instance, route, &request, settled.is_stored()).await;
                    }
                    let status = if is_for_later { OncegateStatus::Queued } else { OncegateStatus::Executed };
                    return Ok(ForetoldResult::Status(status));
                }
                ReserveResult::Taken(record) => record,
            };
            let comparison = fingerprinting.compare(&request, source, &record).await;
            let record = instance.store_clock.certain(record, request.time_limit);
            let decision = decide(record, comparison, &rules);
            if let Some(result) = decision.counted_as() {
                instance.observability.count_reservation(metrics, &request.scope, result);
            }
            match decision {
                Decision::TakeOver(_) if round == TAKE_OVERS_MAX => break,
                Decision::TakeOver(from) => {
                    result = instance.store.take_over(TakeOverParams { request: request.clone(), from }).await?;
                }
                decision => return Ok(foretell(decision, route.in_flight, is_for_later)),
            }
        }
        Ok(Refusal::InFlight(RetryAfter::new(Duration::ZERO)).into())
    }
}

/// The result that follows from a decision. Enforcement would have accepted a request that is for later, and an accepted key answers
/// 202 until it is completed.
fn foretell(decision: Decision, in_flight: InFlightPolicy, is_for_later: bool) -> ForetoldResult {
    match decision {
        Decision::Accepted(progress) => ForetoldResult::Status(progress.oncegate_status()),
        Decision::Join(_) if is_for_later => ForetoldResult::Status(OncegateStatus::Queued),
        Decision::Join(retry_after) => match in_flight {
            InFlightPolicy::Accepted | InFlightPolicy::Wait => ForetoldResult::Status(OncegateStatus::InFlight),
            InFlightPolicy::Conflict => Refusal::InFlight(retry_after).into(),
        },
        // Of the response only the status is stored.
        Decision::Refuse(Refusal::ResponseNotKept) | Decision::Replay(_) => {
            ForetoldResult::Status(OncegateStatus::Replayed)
        }
        Decision::Refuse(Refusal::OutcomeUnknown(_)) if is_for_later => ForetoldResult::Status(OncegateStatus::Unknown),
        Decision::Refuse(refusal) => refusal.into(),
        Decision::TakeOver(_) => ForetoldResult::Status(OncegateStatus::Executed),
    }
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
