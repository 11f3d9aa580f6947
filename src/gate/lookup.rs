//! Asks a service what became of an attempt.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT_ENCODING, HOST, HeaderValue, USER_AGENT};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::{fields, replay};
use crate::body::Body;
use crate::body::flow::Flow;
use crate::config::{self, Lookup, Reconcile, Route};
use crate::domain::probe::{Answer, Subject};
use crate::domain::response::StoredResponse;
use crate::telemetry::logs::causes;
use crate::tls::Trust;
use crate::upstream::{CallError, Upstream};

/// The longest that one question may take, where the route's own times are longer. It reads one record, and a service that
/// needs more is not well; it is asked again, and others are waiting for their turn.
const TIME_MAX: Duration = Duration::from_secs(10);

/// What a service said.
#[derive(Debug)]
pub struct Said {
    /// What it means.
    pub answer: Answer,
    /// Its status, where it gave one.
    pub status: Option<StatusCode>,
    /// What it was, in a word or two.
    pub words: String,
}

impl Said {
    fn nothing(words: impl Into<String>) -> Self {
        Self { answer: Answer::Nothing, status: None, words: words.into() }
    }
}

/// How long a question about this route's keys may take: over when the next may be asked, so that a key is asked about by
/// one at a time.
fn time_limit(route: &Route, reconcile: &Reconcile) -> Duration {
    route.upstream_timeout.min(reconcile.every).min(TIME_MAX)
}

/// Connections to those who are asked; only hosts that the configuration names are among them.
#[derive(Default)]
pub struct Pools(HashMap<(Arc<config::Upstream>, Duration), Upstream>);

impl Pools {
    /// The connections for a route's questions.
    pub fn of(&mut self, route: &Route, lookup: &Lookup, trust: &Trust) -> Upstream {
        let (target, connect) = (&lookup.upstream, route.connect_timeout);
        let pool = self.0.entry((Arc::clone(target), connect));
        pool.or_insert_with(|| Upstream::new(target, connect, route.upstream_idle_timeout, trust)).clone()
    }
}

/// Asks once, and waits for the whole answer. A redirection is not followed: it may lead to a host that nobody named.
pub async fn ask(upstream: &Upstream, route: &Route, reconcile: &Reconcile, subject: &Subject) -> Said {
    let lookup = &reconcile.lookup;
    let Some(target) = lookup.about(subject) else {
        return Said::nothing("cannot be asked about: its path was not kept, or would lead elsewhere");
    };
    let mut request = Request::new(Body::whole(Bytes::new()));
    *request.uri_mut() = target.into();
    let headers = request.headers_mut();
    if let Some(host) = host(lookup) {
        headers.insert(HOST, host);
    }
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("oncegate/", env!("CARGO_PKG_VERSION"))));
    let deadline = Instant::now() + time_limit(route, reconcile);
    match timeout_at(deadline, hear(upstream, request, route)).await {
        Ok(said) => said,
        Err(_) => Said::nothing("no answer in time"),
    }
}

fn host(lookup: &Lookup) -> Option<HeaderValue> {
    match &*lookup.upstream {
        config::Upstream::Http(authority)
        | config::Upstream::Https(authority, _)
        | config::Upstream::H2c(authority) => authority.as_str().parse().ok(),
        config::Upstream::Unix(_) => None,
    }
}

async fn hear(upstream: &Upstream, mut request: Request<Body>, route: &Route) -> Said {
    let response = match upstream.call(&mut request).await {
        Ok(response) => response,
        Err(error) => {
            let cause = causes(&error);
            tracing::debug!(route = %route.name, cause, "asked what became of an attempt: {error}");
            return Said::nothing(match error {
                CallError::NeverSent(_) => "no connection",
                CallError::Broken(_) | CallError::Garbage(_) => "no usable answer",
            });
        }
    };
    let status = response.status();
    let answer = match status {
        StatusCode::NOT_FOUND => Answer::Absent,
        status if status.is_success() => match read(response, route).await {
            Some(response) => Answer::Executed(response),
            None => return Said { status: Some(status), ..Said::nothing(format!("{}, broken off", status.as_u16())) },
        },
        _ => Answer::Nothing,
    };
    Said { answer, status: Some(status), words: status.as_str().to_owned() }
}

/// The response as one from an attempt would be kept: what is too large without its body. `None` where it breaks off.
async fn read(response: Response<Flow>, route: &Route) -> Option<StoredResponse> {
    let (mut head, mut body) = response.into_parts();
    fields::towards_client(&mut head.headers);
    let (mut whole, mut trailers) = (BytesMut::new(), HeaderMap::new());
    let mut fits = true;
    // Of what is too large the rest is not waited for.
    while fits {
        let Some(frame) = body.frame().await else { break };
        match frame.ok()?.into_data() {
            Ok(data) => {
                fits = whole.len() + data.len() <= route.max_response_body;
                whole.extend_from_slice(&data);
            }
            Err(frame) => trailers.extend(frame.into_trailers().unwrap_or_default()),
        }
    }
    fields::towards_client(&mut trailers);
    let body = fits.then(|| whole.freeze());
    let response = StoredResponse { status: head.status, headers: head.headers, body, trailers };
    Some(replay::to_keep(&response, route))
}
