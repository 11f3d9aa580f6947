//! Probes a service: asks it for the outcome of an attempt.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT_ENCODING, HOST, HeaderValue, USER_AGENT};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use rustls::pki_types::ServerName;
use tokio::time::{Instant, timeout_at};

use super::connection_slots::UpstreamSlots;
use super::{CallError, UpstreamClient};
use crate::body::Body;
use crate::body::pooled::PooledBody;
use crate::protocol::fields;
use crate::protocol::stored_response;
use oncegate_domain::probe::{ProbeAnswer, ProbeSubject};
use oncegate_domain::response::StoredResponse;
use oncegate_settings::{self as settings, ReconcileConfig, ReconcileUrl, Route};
use oncegate_telemetry::logs::error_causes;

/// The time limit of one probe where the route's own times are longer. A probe reads one record; a service that needs more
/// than 10 s for it is not healthy. It is asked again, and other keys are waiting for their turn.
const TIME_MAX: Duration = Duration::from_secs(10);

/// A service's reply to a probe.
#[derive(Debug)]
pub struct ProbeReply {
    /// The meaning of the reply.
    pub answer: ProbeAnswer,
    /// The response's status; `None` without a response.
    pub status: Option<StatusCode>,
    /// A short description, for logs and the audit: the status, or why there is none.
    pub summary: String,
}

impl ProbeReply {
    fn no_answer(summary: impl Into<String>) -> Self {
        Self { answer: ProbeAnswer::Nothing, status: None, summary: summary.into() }
    }
}

/// The values by which connections for probes differ: target, TLS and the time limit for connecting.
type ProbePoolKey = (Arc<settings::UpstreamTarget>, ([u8; 32], Option<ServerName<'static>>), Duration);

/// The connections for probes, by target. Only hosts that the configuration names are among them.
#[derive(Default)]
pub struct ProbePools(HashMap<ProbePoolKey, UpstreamClient>);

impl ProbePools {
    /// Returns the connections for a route's probes.
    pub fn client_for(&mut self, route: &Route, lookup: &ReconcileUrl, slots: &UpstreamSlots) -> UpstreamClient {
        let (target, connect) = (&lookup.upstream, route.options.connect_timeout);
        let tls = route.tls_towards(target);
        let pool = self.0.entry((Arc::clone(target), tls.pool_key(), connect));
        pool.or_insert_with(|| UpstreamClient::new(target, connect, route.options.upstream_idle_timeout, &tls, slots))
            .clone()
    }
}

/// Sends one probe and waits for the whole response. Redirections are not followed: they may lead to a host that the
/// configuration does not name.
pub async fn send_probe(
    upstream: &UpstreamClient,
    route: &Route,
    reconcile: &ReconcileConfig,
    subject: &ProbeSubject,
) -> ProbeReply {
    let lookup = &reconcile.lookup;
    let Some(target) = lookup.target_for(subject) else {
        return ProbeReply::no_answer("cannot be asked about: its path was not kept, or would lead elsewhere");
    };
    let mut request = Request::new(Body::whole(Bytes::new()));
    *request.uri_mut() = target.into();
    let headers = request.headers_mut();
    if let Some(host) = host(lookup) {
        headers.insert(HOST, host);
    }
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("oncegate/", env!("CARGO_PKG_VERSION"))));
    // A probe ends before the next one is due, so that there is one probe of a key at a time.
    let deadline = Instant::now() + route.options.upstream_timeout.min(reconcile.every).min(TIME_MAX);
    match timeout_at(deadline, receive_reply(upstream, request, route)).await {
        Ok(reply) => reply,
        Err(_) => ProbeReply::no_answer("no answer in time"),
    }
}

fn host(lookup: &ReconcileUrl) -> Option<HeaderValue> {
    match &*lookup.upstream {
        settings::UpstreamTarget::Http(authority)
        | settings::UpstreamTarget::Https(authority, _)
        | settings::UpstreamTarget::H2c(authority) => authority.as_str().parse().ok(),
        settings::UpstreamTarget::Unix(_) => None,
    }
}

async fn receive_reply(upstream: &UpstreamClient, mut request: Request<Body>, route: &Route) -> ProbeReply {
    let response = match upstream.call(&mut request).await {
        Ok(response) => response,
        Err(error) => {
            let cause = error_causes(&error);
            tracing::debug!(route = %route.name, cause, "a probe for an attempt's outcome failed: {error}");
            return ProbeReply::no_answer(match error {
                CallError::NeverSent(_) | CallError::Overloaded | CallError::TooLate => "no connection",
                CallError::Unprocessed(_) => "refused",
                CallError::Broken(_) | CallError::Garbage(_) => "no usable answer",
            });
        }
    };
    let status = response.status();
    let answer = match status {
        StatusCode::NOT_FOUND => ProbeAnswer::Absent,
        status if status.is_success() => match read_response(response, route).await {
            Some(response) => ProbeAnswer::Executed(response),
            None => {
                return ProbeReply {
                    status: Some(status),
                    ..ProbeReply::no_answer(format!("{}, broken off", status.as_u16()))
                };
            }
        },
        _ => ProbeAnswer::Nothing,
    };
    ProbeReply { answer, status: Some(status), summary: status.as_str().to_owned() }
}

/// Reads the response as an attempt's would be stored: without its body if that is too large. `None` if it breaks off.
async fn read_response(response: Response<PooledBody>, route: &Route) -> Option<StoredResponse> {
    let (mut head, mut body) = response.into_parts();
    fields::prepare_for_client(&mut head.headers);
    let (mut buffer, mut trailers) = (BytesMut::new(), HeaderMap::new());
    let mut fits = true;
    // The rest of a body that is too large is not read.
    while fits {
        let Some(frame) = body.frame().await else { break };
        match frame.ok()?.into_data() {
            Ok(data) => {
                fits = buffer.len() + data.len() <= route.options.max_response_body;
                buffer.extend_from_slice(&data);
            }
            Err(frame) => trailers.extend(frame.into_trailers().unwrap_or_default()),
        }
    }
    fields::prepare_for_client(&mut trailers);
    let body = fits.then(|| buffer.freeze());
    let response = StoredResponse { status: head.status, headers: head.headers, body, trailers };
    Some(stored_response::to_storable(&response, route))
}
