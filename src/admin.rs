//! The operators' listener.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;

use crate::body::Body;
use health::Probes;

pub mod health;

/// A probe's head comes in one packet; who takes longer is no probe.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// Answers operators and probes until `stop`.
pub async fn serve(listener: std::net::TcpListener, probes: Probes, stop: CancellationToken) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the admin listener cannot be used"),
    };
    let probes = Arc::new(probes);
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (probes, stop) = (Arc::clone(&probes), stop.clone());
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let probes = Arc::clone(&probes);
                async move { Ok::<_, Infallible>(answer(&request, &probes).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_MAX)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                _ = connection => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

async fn answer(request: &Request<Incoming>, probes: &Probes) -> Response<Body> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/healthz") => (StatusCode::OK, serde_json::json!({ "status": "alive" })),
        (&Method::GET | &Method::HEAD, "/readyz") => probes.ready().await,
        (_, "/healthz" | "/readyz") => (StatusCode::METHOD_NOT_ALLOWED, serde_json::json!({ "allow": "GET" })),
        _ => (StatusCode::NOT_FOUND, serde_json::json!({ "paths": ["/healthz", "/readyz"] })),
    };
    let mut response = Response::new(Body::whole(format!("{body}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
