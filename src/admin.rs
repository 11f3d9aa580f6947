//! The operators' listener.
//!
//! To add an endpoint: a variant of `Endpoint`, its line in `TABLE`, its arm in `Admin::call`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::body::Body;
use crate::gate::Shared;
use auth::{Access, Denied};

pub mod auth;
mod drain;
mod health;

/// A probe's head comes in one packet; who takes longer is no probe.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// For an answer that is being written when the listener closes.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Alive,
    Drain,
    DrainState,
    Ready,
}

/// Where it is asked for, and by whom. `GET` answers `HEAD` too.
const TABLE: [(&str, Method, Access, Endpoint); 4] = [
    ("/healthz", Method::GET, Access::Anybody, Endpoint::Alive),
    ("/readyz", Method::GET, Access::Anybody, Endpoint::Ready),
    ("/api/v1/drain", Method::GET, Access::Operators, Endpoint::DrainState),
    ("/api/v1/drain", Method::POST, Access::Operators, Endpoint::Drain),
];

/// What the endpoints look at, and what they can do.
pub struct Admin {
    shared: Arc<Shared>,
    leaving: CancellationToken,
}

impl Admin {
    /// `leaving` is cancelled by whatever begins the drain, before anything else happens; also from here.
    pub fn new(shared: Arc<Shared>, leaving: CancellationToken) -> Self {
        Self { shared, leaving }
    }

    async fn call(&self, endpoint: Endpoint) -> (StatusCode, Value) {
        match endpoint {
            Endpoint::Alive => (StatusCode::OK, json!({ "status": "alive" })),
            Endpoint::Drain => self.drain(),
            Endpoint::DrainState => self.drain_state(),
            Endpoint::Ready => self.ready().await,
        }
    }

    async fn answer(&self, request: &Request<Incoming>, listener: SocketAddr) -> Response<Body> {
        let (method, path) = (request.method(), request.uri().path());
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let here: Vec<_> = TABLE.iter().filter(|(known, ..)| *known == path).collect();
        let access = here.first().map_or(Access::Operators, |(_, _, access, _)| *access);
        match access.check(request, listener, self.shared.config.admin.token.as_ref()) {
            Ok(()) => {}
            Err(Denied::Token) => return unauthorized(),
            Err(denied) => return respond(StatusCode::FORBIDDEN, &json!({ "error": denied.to_string() })),
        }
        if let Some((.., endpoint)) = here.iter().find(|(_, known, ..)| known == method) {
            let (status, body) = self.call(*endpoint).await;
            return respond(status, &body);
        }
        if here.is_empty() {
            let mut paths: Vec<_> = TABLE.iter().map(|(path, ..)| *path).collect();
            paths.dedup();
            return respond(StatusCode::NOT_FOUND, &json!({ "error": "there is nothing here", "paths": paths }));
        }
        let allow = here.iter().map(|(_, method, ..)| method.as_str()).collect::<Vec<_>>().join(", ");
        let mut response =
            respond(StatusCode::METHOD_NOT_ALLOWED, &json!({ "error": "no such method", "allow": allow }));
        response.headers_mut().insert(ALLOW, HeaderValue::from_str(&allow).expect("methods are visible ASCII"));
        response
    }
}

fn respond(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::whole(format!("{body}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn unauthorized() -> Response<Body> {
    let status = StatusCode::UNAUTHORIZED;
    let problem = json!({
        "type": "about:blank",
        "title": "Unauthorized",
        "status": status.as_u16(),
        "detail": Denied::Token.to_string(),
    });
    let mut response = respond(status, &problem);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"oncegate\""));
    response
}

/// Answers operators and probes until `stop`. An answer that is being given then still goes out: it may be the one to
/// whoever has asked for the drain.
pub async fn serve(listener: std::net::TcpListener, admin: Admin, stop: CancellationToken) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the admin listener cannot be used"),
    };
    let admin = Arc::new(admin);
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        connections.spawn(connect(stream, Arc::clone(&admin), stop.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn connect(stream: TcpStream, admin: Arc<Admin>, stop: CancellationToken) {
    // Of the connection, not of the listener, which may listen on every interface.
    let Ok(own) = stream.local_addr() else { return };
    let service = service_fn(|request| {
        let admin = Arc::clone(&admin);
        async move { Ok::<_, Infallible>(admin.answer(&request, own).await) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_MAX)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        _ = connection.as_mut() => {}
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(GOODBYE_MAX, connection).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_probes_are_for_anybody_and_one_path_has_one_access() {
        for (path, _, access, _) in &TABLE {
            let is_probe = matches!(*path, "/healthz" | "/readyz");
            assert_eq!(*access == Access::Anybody, is_probe, "{path}");
        }
    }
}
