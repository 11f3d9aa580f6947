//! The operators' listener.
//!
//! To add an endpoint: a variant of `Endpoint`, its line in `TABLE`, its arm in `Admin::call`. What people look at in a
//! browser is for `page`, which has paths of its own.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::body::Body;
use crate::config::Config;
use crate::gate::Shared;
use auth::{Access, Denied};
use desk::problem::Problem;
use desk::{BODY_BYTES_MAX, Desk, Question, Verb};
use metrics::Census;
use services::{Saying, Services};

pub mod auth;
pub mod desk;
mod drain;
mod health;
mod metrics;
mod page;
mod services;

/// A probe's head comes in one packet; who takes longer is no probe.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// For a question's body.
const BODY_MAX: Duration = Duration::from_secs(10);
/// For an answer that is being written when the listener closes.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Alive,
    Drain,
    DrainState,
    Keys(Verb),
    Metrics,
    Ready,
    Says(Saying),
}

/// Where it is asked for, and by whom. `GET` answers `HEAD` too. `{id}` is one segment.
const TABLE: [(&str, Method, Access, Endpoint); 17] = [
    ("/healthz", Method::GET, Access::Anybody, Endpoint::Alive),
    ("/readyz", Method::GET, Access::Anybody, Endpoint::Ready),
    ("/metrics", Method::GET, Access::Anybody, Endpoint::Metrics),
    ("/api/v1/drain", Method::GET, Access::Operators, Endpoint::DrainState),
    ("/api/v1/drain", Method::POST, Access::Operators, Endpoint::Drain),
    ("/api/v1/audit", Method::GET, Access::Operators, Endpoint::Keys(Verb::Audit)),
    ("/api/v1/keys", Method::GET, Access::Operators, Endpoint::Keys(Verb::List)),
    ("/api/v1/keys/actions", Method::POST, Access::Operators, Endpoint::Keys(Verb::Act)),
    ("/api/v1/keys/{id}", Method::DELETE, Access::Operators, Endpoint::Keys(Verb::Purge)),
    ("/api/v1/keys/{id}", Method::GET, Access::Operators, Endpoint::Keys(Verb::Show)),
    ("/api/v1/keys/{id}/release", Method::POST, Access::Operators, Endpoint::Keys(Verb::Release)),
    ("/api/v1/keys/{id}/requeue", Method::POST, Access::Operators, Endpoint::Keys(Verb::Requeue)),
    ("/api/v1/keys/{id}/resolve", Method::POST, Access::Operators, Endpoint::Keys(Verb::Resolve)),
    ("/api/v1/stats", Method::GET, Access::Operators, Endpoint::Keys(Verb::Stats)),
    ("/app/v1/reservations/{id}/complete", Method::POST, Access::Services, Endpoint::Says(Saying::Completed)),
    ("/app/v1/reservations/{id}/not-executed", Method::POST, Access::Services, Endpoint::Says(Saying::NotExecuted)),
    ("/app/v1/reservations/{id}/recovery-point", Method::PUT, Access::Services, Endpoint::Says(Saying::Reached)),
];

/// In which a client says who acts, for the audit log: claimed, and written down as that.
const ACTOR: &str = "x-oncegate-actor";

/// In which a client says which service it means: an address alone does not tell.
pub const SERVICE: &str = "x-oncegate-service";

/// What `/healthz` calls itself, so that nobody shows a token to whoever else listens at an address.
pub const NAME: &str = "oncegate";

/// What the endpoints look at, and what they can do.
pub struct Admin {
    shared: Arc<Shared>,
    desk: Desk,
    services: Services,
    sessions: page::Sessions,
    leaving: CancellationToken,
    census: Census,
}

impl Admin {
    /// `leaving` is cancelled by whatever begins the drain, before anything else happens; also from here.
    pub fn new(shared: Arc<Shared>, config: watch::Receiver<Arc<Config>>, leaving: CancellationToken) -> Self {
        let services = Services::new(Arc::clone(&shared), config.clone());
        let desk = Desk::new(Arc::clone(&shared.store), config);
        Self { shared, desk, services, sessions: page::Sessions::new(), leaving, census: Census::default() }
    }

    async fn call(&self, endpoint: Endpoint, request: Request<Incoming>, peer: IpAddr) -> Response<Body> {
        let (status, body) = match endpoint {
            Endpoint::Alive => (StatusCode::OK, json!({ "status": "alive", "name": NAME })),
            Endpoint::Drain => self.drain(),
            Endpoint::DrainState => self.drain_state(),
            Endpoint::Keys(verb) => {
                return match self.keys(verb, request, peer).await {
                    Ok(told) => respond(StatusCode::OK, &told),
                    Err(problem) => refuse(&problem),
                };
            }
            Endpoint::Metrics => return self.metrics(request.headers()).await,
            Endpoint::Ready => self.ready().await,
            Endpoint::Says(saying) => {
                return match self.services.hear(saying, request).await {
                    Ok((status, told)) => respond(status, &told),
                    Err(problem) => refuse(&problem),
                };
            }
        };
        respond(status, &body)
    }

    async fn keys(&self, verb: Verb, request: Request<Incoming>, peer: IpAddr) -> Result<Value, Problem> {
        let (head, body) = request.into_parts();
        let actor = desk::actor(peer, head.headers.get(ACTOR).map(HeaderValue::as_bytes));
        let body = read(body, BODY_BYTES_MAX).await?;
        let id = head.uri.path().split('/').nth(4).unwrap_or_default();
        let query = head.uri.query().unwrap_or_default();
        let mut told = self.desk.answer(Question { verb, id, query, body: &body, actor }).await?;
        if verb == Verb::Stats {
            self.seen(&mut told);
        }
        Ok(told)
    }

    /// The service that a client means, where it is not the one that is served here.
    fn another_service(&self, request: &Request<Incoming>) -> Option<String> {
        let mut meant = request.headers().get_all(SERVICE).iter();
        let other = meant.find(|meant| meant.as_bytes() != self.shared.config.service.as_bytes())?;
        Some(String::from_utf8_lossy(other.as_bytes()).into_owned())
    }

    async fn answer(&self, request: Request<Incoming>, listener: SocketAddr, peer: IpAddr) -> Response<Body> {
        if page::has(request.uri().path()) {
            return self.page(request, listener, peer).await;
        }
        let (method, path) = (request.method(), request.uri().path());
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let here: Vec<_> = TABLE.iter().filter(|(known, ..)| is_at(path, known)).collect();
        let access = here.first().map_or(Access::Operators, |(_, _, access, _)| *access);
        match access.check(&request, listener, self.shared.config.admin.token.as_ref()) {
            Ok(()) => {}
            Err(Denied::Token) => return unauthorized(),
            Err(denied) => return respond(StatusCode::FORBIDDEN, &json!({ "error": denied.to_string() })),
        }
        if access == Access::Operators
            && let Some(meant) = self.another_service(&request)
        {
            return refuse(&Problem::another_service(&self.shared.config.service, &meant));
        }
        if let Some((.., endpoint)) = here.iter().find(|(_, known, ..)| known == method) {
            return self.call(*endpoint, request, peer).await;
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

/// A question's body, whole.
async fn read(body: Incoming, bytes_max: usize) -> Result<Bytes, Problem> {
    let late = || Problem::new(StatusCode::REQUEST_TIMEOUT, "request-timeout", "the body does not come");
    let body = tokio::time::timeout(BODY_MAX, Limited::new(body, bytes_max).collect()).await;
    let body = body.map_err(|_| late())?.map_err(|error| match error.is::<LengthLimitError>() {
        true => desk::body_too_large(bytes_max),
        false => late(),
    })?;
    Ok(body.to_bytes())
}

/// Whether a path is the one of the table.
fn is_at(path: &str, known: &str) -> bool {
    let mut segments = path.split('/');
    known.split('/').all(|known| segments.next().is_some_and(|segment| known == segment || known == "{id}"))
        && segments.next().is_none()
}

fn refuse(problem: &Problem) -> Response<Body> {
    let mut response = respond(problem.status, &desk::document(problem));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
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
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        connections.spawn(connect(stream, peer.ip(), Arc::clone(&admin), stop.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn connect(stream: TcpStream, peer: IpAddr, admin: Arc<Admin>, stop: CancellationToken) {
    // Of the connection, not of the listener, which may listen on every interface.
    let Ok(own) = stream.local_addr() else { return };
    let service = service_fn(|request| {
        let admin = Arc::clone(&admin);
        async move { Ok::<_, Infallible>(admin.answer(request, own, peer).await) }
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
            let is_probe = matches!(*path, "/healthz" | "/metrics" | "/readyz");
            assert_eq!(*access == Access::Anybody, is_probe, "{path}");
        }
    }
}
