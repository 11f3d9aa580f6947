//! What no route guards streams through, both ways, unbuffered.

use http::header::{CONTENT_LENGTH, TRAILER};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::refuse::Refusal;
use super::{Gate, fields};
use crate::body::Body;
use crate::upstream::{CallError, Upstream};

impl Gate {
    /// Sends a request on as it comes and its response back as it comes. It lives and dies with its client.
    pub(super) async fn pass(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        stream(&self.pass, request).await
    }
}

async fn stream(upstream: &Upstream, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
    let head_only = request.method() == Method::HEAD;
    let trailers = fields::accepts_trailers(request.headers());
    let response = upstream.call(request.map(Body::Streaming)).await.map_err(|error| {
        tracing::warn!(cause = std::error::Error::source(&error).map(tracing::field::display), "{error}");
        match error {
            CallError::NeverSent(_) => Refusal::UpstreamUnreachable,
            CallError::Broken(_) | CallError::Garbage(_) => Refusal::UpstreamBroken,
        }
    })?;
    let mut response = response.map(Body::Streaming);
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
    Ok(response)
}
