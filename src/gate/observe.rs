//! A route that looks on: nothing is refused, delayed or altered, and what would have happened is counted.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode, request};
use hyper::body::Incoming;
use tokio::sync::oneshot;

use super::admit::Seen;
use super::decide::{Decision, Rules, decide};
use super::fields::{self, Origin};
use super::meters::{Found, RouteMeters};
use super::pass::{self, Passing};
use super::refuse::Refusal;
use super::routing::Guard;
use super::said::Said;
use super::status::Told;
use super::{Gate, Shared, TAKE_OVERS_MAX, settle};
use crate::body::{Body, Tie};
use crate::config::{Config, Route};
use crate::domain::attempt::{Lease, Settlement};
use crate::domain::policy::Verdict;
use crate::domain::record::Reservation;
use crate::domain::response::StoredResponse;
use crate::store::StoreError;

/// A request on a route that looks on.
pub struct Observed {
    pub(super) head: request::Parts,
    pub(super) body: Incoming,
    pub(super) origin: Origin,
    pub(super) guard: Guard,
    pub(super) config: Arc<Config>,
    pub(super) tie: Tie,
}

/// What a response means for its attempt: the verdict, the TTL, and the status.
type Judged = (Verdict, Duration, StatusCode);

impl Gate {
    /// Sends the request on as it comes, and looks at a copy.
    pub(super) async fn observe(self: &Arc<Self>, observed: Observed) -> Result<Response<Body>, Refusal> {
        let Observed { head, body, origin, guard, config, tie } = observed;
        let Guard { route, upstream, meters, .. } = guard;
        let (body, copy) = Body::teed(body, route.max_request_body);
        let (judged, judgement) = oneshot::channel();
        let upgrade = pass::upgrade(&head.headers, head.version);
        let trailers = fields::accepts_trailers(&head.headers);
        let mut sent = Request::new(body);
        *sent.method_mut() = head.method.clone();
        *sent.uri_mut() = head.uri.clone();
        *sent.headers_mut() = head.headers.clone();
        *sent.extensions_mut() = head.extensions.clone();
        fields::towards_service(sent.headers_mut(), &origin);
        let (shared, policy) = (Arc::clone(&self.shared), Arc::clone(&route));
        // Not tracked: a drain does not wait for those who only look on.
        tokio::spawn(async move {
            let Ok(body) = copy.await else {
                return tell(&route, "not compared: the body did not pass whole, or is too large");
            };
            let seen = Seen { head: &head, body: &body, origin: &origin, route: &route, secrets: &config.secrets };
            match look(&shared, &seen, &meters, judgement).await {
                Ok(word) => tell(&route, word),
                Err(error) => {
                    tracing::debug!(route = %route.name, %error, "an observed request could not be looked up")
                }
            }
        });
        let mut judge = Some(judged);
        let mut judged = |judgement: Judged| judge.take().map(|judge| judge.send(judgement));
        let passed =
            pass::hear(Box::new(Passing { request: sent, trailers, upgrade, upstream, tie }), |status, headers| {
                let (verdict, ttl) = Said::take(headers).judge(&policy, status, headers);
                judged((verdict, ttl, status));
            });
        let mut response = passed.await.inspect_err(|refusal| {
            if *refusal == Refusal::UpstreamUnreachable {
                judged((Verdict::Release, policy.ttl, StatusCode::BAD_GATEWAY));
            }
        })?;
        response.headers_mut().insert(fields::ONCEGATE_STATUS, Told::Observed.value());
        Ok(response)
    }
}

/// What would have happened, as `Oncegate-Status` or a problem's slug would have said.
async fn look(
    shared: &Arc<Shared>,
    seen: &Seen<'_>,
    meters: &RouteMeters,
    judgement: oneshot::Receiver<Judged>,
) -> Result<&'static str, StoreError> {
    // Records of their own: a route that is enforced later begins with none.
    let service = format!("{} (observed)", shared.config.service).into();
    let route = seen.route;
    let ask = match shared.would_ask(seen, &service) {
        Ok(Some(ask)) => ask,
        Ok(None) => return Ok("passed without a key"),
        Err(refusal) => return Ok(refusal.slug()),
    };
    if !shared.tenure.may_start() {
        return Ok(Refusal::StoreUnavailable.slug());
    }
    let rules = Rules { on_unknown: route.on_unknown, quiet_after: route.quiet_after, usual: Default::default() };
    let entry = shared.underway.enter(ask.token);
    let mut reservation = shared.store.reserve(ask.clone()).await?;
    for _ in 0..=TAKE_OVERS_MAX {
        let record = match reservation {
            Reservation::Fresh(lease) => {
                let found = if lease.attempt == 1 { Found::Created } else { Found::FailedRetry };
                shared.watch.found(meters, &ask.scope, found);
                settle::file(shared, ended(lease, judgement.await.ok(), route), entry).await;
                return Ok(Told::Executed.name());
            }
            Reservation::Taken(record) => record,
        };
        let same = seen.is_what(&ask, &record);
        let decision = decide(record, same, &rules);
        if let Some(found) = Found::of(&decision) {
            shared.watch.found(meters, &ask.scope, found);
        }
        match decision {
            Decision::Accepted(_) => return Ok(Told::Queued.name()),
            Decision::Join(_) => return Ok(Told::InFlight.name()),
            Decision::Refuse(Refusal::ResponseNotKept) | Decision::Replay(_) => return Ok(Told::Replayed.name()),
            Decision::Refuse(refusal) => return Ok(refusal.slug()),
            Decision::TakeOver(seen) => reservation = shared.store.take_over(ask.clone(), seen).await?,
        }
    }
    Ok(Told::InFlight.name())
}

/// How the attempt would have ended. Nothing of the response but its status is kept.
fn ended(lease: Lease, judged: Option<Judged>, route: &Route) -> Settlement {
    match judged {
        Some((Verdict::Release, ttl, _)) => lease.release(ttl),
        Some((Verdict::Store, ttl, status)) => {
            let (headers, trailers) = Default::default();
            let response = StoredResponse { status, headers, body: None, trailers };
            lease.complete(response, ttl).remembered(route.remember)
        }
        Some((Verdict::Unknown, ..)) | None => lease.unknown(),
    }
}

fn tell(route: &Route, would: &'static str) {
    tracing::info!(route = %route.name, would, "observed");
}
