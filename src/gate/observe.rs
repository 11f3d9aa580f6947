//! A route that looks on: nothing is refused, delayed or altered, and what would have happened is counted.

use std::sync::Arc;

use http::header::RETRY_AFTER;
use http::{Request, Response, request};
use hyper::body::Incoming;
use tokio::sync::oneshot;

use super::admit::Seen;
use super::decide::{Decision, Rules, decide};
use super::fields::{self, Origin};
use super::pass::{self, Passing};
use super::refuse::Refusal;
use super::routing::Guard;
use super::status::Told;
use super::{Gate, Shared, replay, settle};
use crate::body::Body;
use crate::config::{Config, Route};
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
}

/// What is known of the response: all that a status table asks.
type Answered = (http::StatusCode, bool);

impl Gate {
    /// Sends the request on as it comes, and looks at a copy.
    pub(super) async fn observe(self: &Arc<Self>, observed: Observed) -> Result<Response<Body>, Refusal> {
        let Observed { head, body, origin, guard, config } = observed;
        let Guard { route, upstream, .. } = guard;
        let (body, copy) = Body::teed(body, route.max_request_body);
        let (answered, answer) = oneshot::channel();
        let upgrade = pass::upgrade(&head.headers, head.version);
        let trailers = fields::accepts_trailers(&head.headers);
        let mut sent = Request::new(body);
        *sent.method_mut() = head.method.clone();
        *sent.uri_mut() = head.uri.clone();
        *sent.headers_mut() = head.headers.clone();
        *sent.extensions_mut() = head.extensions.clone();
        fields::towards_service(sent.headers_mut(), &origin);
        let shared = Arc::clone(&self.shared);
        // Not tracked: a drain does not wait for those who only look on.
        tokio::spawn(async move {
            let Ok(body) = copy.await else { return tell(&route, "not compared: the body broke off or is too large") };
            let seen = Seen { head: &head, body: &body, origin: &origin, route: &route, secrets: &config.secrets };
            match look(&shared, &seen, answer).await {
                Ok(word) => tell(&route, word),
                Err(error) => {
                    tracing::debug!(route = %route.name, %error, "an observed request could not be looked up")
                }
            }
        });
        let mut response = pass::pass(Passing { request: sent, trailers, upgrade, upstream }).await?;
        let _ = answered.send((response.status(), response.headers().contains_key(RETRY_AFTER)));
        response.headers_mut().insert(fields::ONCEGATE_STATUS, Told::Observed.value());
        Ok(response)
    }
}

/// What would have happened, as `Oncegate-Status` or a problem's slug would have said.
async fn look(
    shared: &Arc<Shared>,
    seen: &Seen<'_>,
    answer: oneshot::Receiver<Answered>,
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
    let entry = shared.underway.enter(ask.token);
    let record = match shared.store.reserve(ask.clone()).await? {
        Reservation::Fresh(lease) => {
            let settlement = match answer.await {
                Ok((status, retry_after)) => match route.statuses.judge(status, retry_after) {
                    Verdict::Release => lease.release(route.ttl),
                    Verdict::Store => {
                        let (headers, trailers) = Default::default();
                        let response = StoredResponse { status, headers, body: None, trailers };
                        lease.complete(replay::to_keep(&response, route), route.ttl)
                    }
                    Verdict::Unknown => lease.unknown(),
                },
                Err(_) => lease.unknown(),
            };
            settle::file(shared, settlement, entry).await;
            return Ok(Told::Executed.name());
        }
        Reservation::Taken(record) => record,
    };
    let same = record.recipe == ask.recipe && record.fingerprint == ask.fingerprint;
    let rules = Rules { on_unknown: route.on_unknown, quiet_after: route.quiet_after, usual: Default::default() };
    Ok(match decide(record, same, &rules) {
        Decision::Join(_) => Told::InFlight.name(),
        Decision::Refuse(Refusal::ResponseNotKept) | Decision::Replay(_) => Told::Replayed.name(),
        Decision::Refuse(refusal) => refusal.slug(),
        Decision::TakeOver(_) => Told::Executed.name(),
    })
}

fn tell(route: &Route, would: &'static str) {
    tracing::info!(route = %route.name, would, "observed");
}
