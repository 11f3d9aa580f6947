//! What no route guards streams through, both ways, unbuffered.

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, TRAILER, UPGRADE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::fields;
use super::refuse::Refusal;
use crate::body::{Body, Tie};
use crate::telemetry::logs::causes;
use crate::upstream::{CallError, Upstream};

/// A request on its way through, ready for the upstream.
pub struct Passing {
    /// Its fields are those for the upstream.
    pub request: Request<Body>,
    /// Whether the client understands trailers.
    pub trailers: bool,
    /// Whether the client wants to go over to WebSocket.
    pub upgrade: bool,
    /// Where it goes.
    pub upstream: Upstream,
    /// Nobody else wants its response.
    pub tie: Tie,
}

/// Whether a request wants to go over to WebSocket (RFC 6455 section 4.1), the one protocol that is let through. Not one
/// of a list: with `h2c` in it, say, all that follows would go past every route. HTTP/2 has another way.
pub fn upgrade(request: &HeaderMap, version: http::Version) -> bool {
    let wanted = fields::nominated(request).any(|name| name.eq_ignore_ascii_case(b"upgrade"));
    wanted && version == http::Version::HTTP_11 && is_websocket(request)
}

fn is_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(UPGRADE).iter();
    matches!((protocols.next(), protocols.next()), (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(WEBSOCKET))
}

const WEBSOCKET: &[u8] = b"websocket";

/// Sends a request on as it comes and its response back as it comes. It lives and dies with its client: the connection
/// drops it, at whatever point it is, once the client is gone.
pub async fn pass(passing: Passing) -> Result<Response<Body>, Refusal> {
    hear(passing, |_, _| ()).await
}

/// The same, with an ear for what the service says: its status and its fields, all of them.
pub async fn hear(passing: Passing, ear: impl FnOnce(StatusCode, &HeaderMap)) -> Result<Response<Body>, Refusal> {
    let Passing { mut request, trailers, upgrade, upstream, tie } = passing;
    let head_only = request.method() == Method::HEAD;
    let client = upgrade.then(|| hyper::upgrade::on(&mut request));
    if upgrade {
        announce(request.headers_mut());
    }
    let mut response = upstream.call(request).await.map_err(|error| {
        tracing::warn!(cause = causes(&error), "{error}");
        match error {
            CallError::NeverSent(_) => Refusal::UpstreamUnreachable,
            CallError::Broken(_) | CallError::Garbage(_) => Refusal::UpstreamBroken,
        }
    })?;
    ear(response.status(), response.headers());
    if let (Some(client), StatusCode::SWITCHING_PROTOCOLS) = (client, response.status()) {
        if !is_websocket(response.headers()) {
            tracing::warn!("the service went over to another protocol than it was asked to");
            return Err(Refusal::UpstreamBroken);
        }
        return Ok(switch(client, response));
    }
    let length = response.headers().get(CONTENT_LENGTH).cloned();
    let announced = response.headers().get(TRAILER).filter(|_| trailers).cloned();
    fields::towards_client(response.headers_mut());
    if let Some(announced) = announced {
        response.headers_mut().insert(TRAILER, announced);
    }
    // Here the length is that of a body which does not follow, so that nobody can count it anew.
    if let (Some(length), true) = (length, head_only || response.status() == StatusCode::NOT_MODIFIED) {
        response.headers_mut().insert(CONTENT_LENGTH, length);
    }
    Ok(response.map(|body| Body::Tied(body, tie)))
}

/// Both sides have agreed on another protocol: from here on bytes are handed on as they come, until both are done.
fn switch(client: OnUpgrade, mut response: Response<Incoming>) -> Response<Body> {
    let service = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        let (Ok(client), Ok(service)) = tokio::join!(client, service) else { return };
        let (mut client, mut service) = (TokioIo::new(client), TokioIo::new(service));
        if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut service).await {
            tracing::debug!(%error, "an upgraded connection broke");
        }
    });
    fields::towards_client(response.headers_mut());
    announce(response.headers_mut());
    response.map(|_| Body::empty())
}

fn announce(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}
