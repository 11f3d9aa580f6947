//! Inquiries: ask a service for the outcome of an attempt.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT_ENCODING, HOST, HeaderValue, USER_AGENT};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::{Instant, timeout_at};

use super::connection_slots::UpstreamSlots;
use super::{CallError, UpstreamClient};
use crate::body::Body;
use crate::body::pooled::PooledBody;
use crate::protocol::fields;
use crate::protocol::stored_response;
use oncegate_domain::inquiry::{InquiryAnswer, InquirySubject};
use oncegate_domain::response::StoredResponse;
use oncegate_settings::{self as settings, PoolKey, ReconcileConfig, ReconcileUrl, Route};
use oncegate_telemetry::logs::error_causes;

/// The time limit of one inquiry where the route's own times are longer. An inquiry reads one record; a service that
/// needs more than 10 s for it is not healthy. It is asked again, and other keys are waiting for their turn.
const TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct InquiryReply {
    pub answer: InquiryAnswer,
    /// The response's status; `None` without a response.
    pub status: Option<StatusCode>,
    /// A short description, for logs and the audit: the status, or why there is none.
    pub summary: String,
}

impl InquiryReply {
    fn no_answer(summary: impl Into<String>) -> Self {
        Self { answer: InquiryAnswer::Nothing, status: None, summary: summary.into() }
    }
}

/// The values by which connections for inquiries differ: target, TLS and the time limit for connecting.
type InquiryPoolKey = (Arc<settings::UpstreamTarget>, PoolKey, Duration);

/// The connections for inquiries, by target. Only hosts that the configuration names are among them.
#[derive(Default)]
pub struct InquiryPools(HashMap<InquiryPoolKey, UpstreamClient>);

impl InquiryPools {
    /// Returns the connections for a route's inquiries.
    pub fn client_for(&mut self, route: &Route, lookup: &ReconcileUrl, slots: &UpstreamSlots) -> UpstreamClient {
        let (target, connect) = (&lookup.upstream, route.options.connect_timeout);
        let tls = route.tls_towards(target);
        let pool = self.0.entry((Arc::clone(target), tls.pool_key(), connect));
        pool.or_insert_with(|| UpstreamClient::new(target, connect, route.options.upstream_idle_timeout, &tls, slots))
            .clone()
    }
}

/// Sends one inquiry and waits for the whole response. Redirections are not followed: they may lead to a host that the
/// configuration does not name.
pub async fn send_inquiry(
    upstream: &UpstreamClient,
    route: &Route,
    reconcile: &ReconcileConfig,
    subject: &InquirySubject,
) -> InquiryReply {
    let lookup = &reconcile.lookup;
    let Some(target) = lookup.target_for(subject) else {
        return InquiryReply::no_answer("cannot be asked about: its path was not kept, or would lead elsewhere");
    };
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = target.into();
    let headers = request.headers_mut();
    if let Some(host) = host(lookup) {
        headers.insert(HOST, host);
    }
    // The service's own, and no other's: they may be its credential.
    if lookup.upstream == route.service.upstream {
        headers.extend(route.options.set_headers.iter().cloned());
    }
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("oncegate/", env!("CARGO_PKG_VERSION"))));
    // An inquiry ends before the next one is due, so that there is one inquiry of a key at a time.
    let deadline = Instant::now() + route.options.upstream_timeout.min(reconcile.every).min(TIME_MAX);
    let reply = timeout_at(deadline, receive_reply(upstream, request, route)).await;
    reply.unwrap_or_else(|_| InquiryReply::no_answer("no answer in time"))
}

fn host(lookup: &ReconcileUrl) -> Option<HeaderValue> {
    match &*lookup.upstream {
        settings::UpstreamTarget::Http(authority)
        | settings::UpstreamTarget::Https(authority, _)
        | settings::UpstreamTarget::H2c(authority) => authority.as_str().parse().ok(),
        settings::UpstreamTarget::Unix(_) => None,
    }
}

async fn receive_reply(upstream: &UpstreamClient, mut request: Request<Body>, route: &Route) -> InquiryReply {
    let response = match upstream.call(&mut request).await {
        Ok(response) => response,
        Err(error) => {
            let cause = error_causes(&error);
            tracing::debug!(route = %route.name, cause, "a probe for an attempt's outcome failed: {error}");
            return InquiryReply::no_answer(match error {
                CallError::NeverSent(_) | CallError::Overloaded | CallError::TooLate => "no connection",
                CallError::Unprocessed(_) => "refused",
                CallError::Broken(_) | CallError::Garbage(_) => "no usable answer",
            });
        }
    };
    let status = response.status();
    let answer = match status {
        StatusCode::NOT_FOUND => InquiryAnswer::Absent,
        status if status.is_success() => match read_response(response, route).await {
            Some(response) => InquiryAnswer::Executed(response),
            None => {
                return InquiryReply {
                    status: Some(status),
                    ..InquiryReply::no_answer(format!("{}, broken off", status.as_u16()))
                };
            }
        },
        _ => InquiryAnswer::Nothing,
    };
    InquiryReply { answer, status: Some(status), summary: status.as_str().to_owned() }
}

/// Reads the response as an attempt's would be stored: without its body if that is too large. `None` if it breaks off.
async fn read_response(response: Response<PooledBody>, route: &Route) -> Option<StoredResponse> {
    let (mut head, body) = response.into_parts();
    fields::prepare_for_client(&mut head.headers);
    let (body, mut trailers) = match Limited::new(body, route.options.max_response_body).collect().await {
        Ok(whole) => {
            let trailers = whole.trailers().cloned().unwrap_or_default();
            (Some(whole.to_bytes()), trailers)
        }
        // The rest of a body that is too large is not read.
        Err(error) if error.is::<LengthLimitError>() => (None, HeaderMap::new()),
        Err(_) => return None,
    };
    fields::prepare_for_client(&mut trailers);
    let response = StoredResponse { status: head.status, headers: head.headers, body, trailers };
    Some(stored_response::to_storable(&response, route))
}
