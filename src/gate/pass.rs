//! What no route guards streams through, both ways, unbuffered.

use std::error::Error as _;
use std::io;
use std::iter::successors;

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, TRAILER, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::admit::whole::BROKE_OFF;
use super::fields;
use super::refuse::Refusal;
use crate::body::flow::Flow;
use crate::body::{Body, Tie};
use crate::telemetry::logs::causes;
use crate::upstream::{CallError, Upstream, announced};

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
pub async fn pass(passing: Box<Passing>) -> Result<Response<Body>, Refusal> {
    hear(passing, |_, _| ()).await
}

/// The same, with an ear for what the service says: its status and its fields, all of them.
pub async fn hear(passing: Box<Passing>, ear: impl FnOnce(StatusCode, &HeaderMap)) -> Result<Response<Body>, Refusal> {
    let Passing { mut request, trailers, upgrade, upstream, tie } = *passing;
    let client = upgrade.then(|| hyper::upgrade::on(&mut request));
    if upgrade {
        announce(request.headers_mut());
    }
    let mut response = upstream.call(&mut request).await.map_err(|error| {
        if let Some(refusal) = body_broke(&error) {
            return refusal;
        }
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
    let trailer = response.headers().get(TRAILER).filter(|_| trailers).cloned();
    fields::past_us(response.headers_mut());
    if let Some(trailer) = trailer {
        response.headers_mut().insert(TRAILER, trailer);
    }
    sound_length(&mut response);
    Ok(response.map(|body| Body::Tied(body, tie)))
}

/// The refusal of a request whose own body broke off or stalled while it was sent on; `None` where it was not that.
fn body_broke(error: &CallError) -> Option<Refusal> {
    let chain = || successors(error.source(), |&error| error.source());
    // hyper's client says that it got no more of the body, hyper's server why.
    if !chain().filter_map(|error| error.downcast_ref::<hyper::Error>()).any(hyper::Error::is_user) {
        return None;
    }
    let timed_out = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    let stalled = chain().filter_map(|error| error.downcast_ref()).any(timed_out);
    Some(if stalled { Refusal::RequestTimeout } else { BROKE_OFF })
}

/// A length goes on as it came where everybody reads it alike. Else it is made anew from the body that follows; that of one
/// which does not follow (RFC 9110 section 8.6: after HEAD, and with 304) is the first that was said. With 204 there is none.
fn sound_length(response: &mut Response<Flow>) {
    let has_none = response.status() == StatusCode::NO_CONTENT;
    if !has_none && announced(response.headers()).is_some() {
        return;
    }
    let follows = !response.body().is_end_stream();
    let Some(said) = response.headers_mut().remove(CONTENT_LENGTH) else { return };
    let said = said.to_str().ok().filter(|said| said.bytes().all(|digit| digit.is_ascii_digit()));
    let length = said.and_then(|said| said.parse::<u64>().ok()).filter(|_| !follows && !has_none);
    if let Some(length) = length {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// Both sides have agreed on another protocol: from here on bytes are handed on as they come, until both are done.
fn switch(client: OnUpgrade, mut response: Response<Flow>) -> Response<Body> {
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
