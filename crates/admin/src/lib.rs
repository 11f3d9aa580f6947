//! The operators' listener.
//!
//! To add an endpoint: a variant of `Endpoint`, its line in `TABLE`, its arm in `AdminListener::call`, and its arm in
//! `openapi::describe`. The pages for browsers have paths of their own, in `page`.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::{Mutex, MutexGuard};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use Endpoint::{Events, Keys, Service};
use auth::{Access, AccessDenied, Grant, OwnNames};
use events::EventMethod;
use guesses::TokenGuesses;
use key_admin::problem::{ApiProblem, ProblemCode};
use key_admin::{BODY_BYTES_MAX, KeyAdmin, actors};
use metrics::KeyCountCache;
use oidc::OidcClient;
use oncegate_domain::ids::InstanceId;
use oncegate_engine::instance::Instance;
use oncegate_http::body::Body;
use oncegate_http::body::early_response::{can_keep_connection, split_unread};
use oncegate_http::body::request_body::RequestBody;
use oncegate_settings::{Config, OidcConfig};
use oncegate_telemetry::log_limiter::LogLimiter;
use services::ServiceMethod;
use tokens::AdminTokens;

pub use key_admin::explain::render as render_explanation;
pub use key_admin::{AdminMethod, AdminRequest, answer_on_store, terminal_actor};
pub use openapi::document as openapi_document;

mod auth;
mod events;
mod guesses;
mod key_admin;
mod metrics;
mod oidc;
mod openapi;
mod page;
mod readiness;
mod services;
pub mod tokens;

/// The addresses that have a log line about denied requests within a period, and the period.
const DENIALS_LOGGED: usize = 100;
const DENIALS_PERIOD: Duration = Duration::from_secs(60);
/// The time for a request's head. A probe's head comes in one packet.
const HEAD_MAX: Duration = Duration::from_secs(10);
const BODY_MAX: Duration = Duration::from_secs(10);
/// The time for a response that is being written when the listener closes.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// The value of `WWW-Authenticate`, which every 401 has (RFC 9110 section 11.6.1).
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"oncegate\"");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Document,
    Health,
    Drain,
    DrainState,
    Events(EventMethod),
    Keys(AdminMethod),
    Metrics,
    Readiness,
    Service(ServiceMethod),
}

type ApiAnswer = Result<(StatusCode, Value), ApiProblem>;

/// The path, method and access of each endpoint. `GET` answers `HEAD` too. `{id}` is one segment.
const TABLE: [(&str, Method, Access, Endpoint); 25] = [
    ("/healthz", Method::GET, Access::Anybody, Endpoint::Health),
    ("/readyz", Method::GET, Access::Anybody, Endpoint::Readiness),
    ("/metrics", Method::GET, Access::Anybody, Endpoint::Metrics),
    ("/api/v1/drain", Method::GET, Access::Operators, Endpoint::DrainState),
    ("/api/v1/drain", Method::POST, Access::Operators, Endpoint::Drain),
    ("/api/v1/audit", Method::GET, Access::Operators, Keys(AdminMethod::Audit)),
    ("/api/v1/events", Method::GET, Access::Operators, Events(EventMethod::List)),
    ("/api/v1/events/{id}/discard", Method::POST, Access::Operators, Events(EventMethod::Discard)),
    ("/api/v1/events/{id}/requeue", Method::POST, Access::Operators, Events(EventMethod::Requeue)),
    ("/api/v1/explain", Method::POST, Access::Readers, Keys(AdminMethod::Explain)),
    ("/api/v1/keys", Method::GET, Access::Operators, Keys(AdminMethod::List)),
    ("/api/v1/keys/actions", Method::POST, Access::Operators, Keys(AdminMethod::BulkChange)),
    ("/api/v1/keys/{id}", Method::DELETE, Access::Operators, Keys(AdminMethod::Purge)),
    ("/api/v1/keys/{id}", Method::GET, Access::Operators, Keys(AdminMethod::Show)),
    // Not for readers: who may ask often would guess a part of a body.
    ("/api/v1/keys/{id}/compare", Method::POST, Access::Operators, Keys(AdminMethod::Compare)),
    ("/api/v1/keys/{id}/redact", Method::POST, Access::Operators, Keys(AdminMethod::Redact)),
    ("/api/v1/keys/{id}/release", Method::POST, Access::Operators, Keys(AdminMethod::Release)),
    ("/api/v1/keys/{id}/requeue", Method::POST, Access::Operators, Keys(AdminMethod::Requeue)),
    ("/api/v1/keys/{id}/resolve", Method::POST, Access::Operators, Keys(AdminMethod::Resolve)),
    // Clients are generated before there is a token. It has nothing that the program's source does not have.
    ("/api/v1/openapi.json", Method::GET, Access::Anybody, Endpoint::Document),
    ("/api/v1/saved", Method::GET, Access::Operators, Keys(AdminMethod::Saved)),
    ("/api/v1/stats", Method::GET, Access::Operators, Keys(AdminMethod::Stats)),
    ("/app/v1/reservations/{id}/complete", Method::POST, Access::Services, Service(ServiceMethod::Complete)),
    ("/app/v1/reservations/{id}/not-executed", Method::POST, Access::Services, Service(ServiceMethod::NotExecuted)),
    ("/app/v1/reservations/{id}/recovery-point", Method::PUT, Access::Services, Service(ServiceMethod::RecoveryPoint)),
];

/// The method and path of a request about keys.
pub fn endpoint_of(method: AdminMethod, id: &str) -> (Method, String) {
    let found = TABLE.iter().find(|(.., endpoint)| *endpoint == Keys(method));
    let (path, method, ..) = found.expect("each method has an endpoint");
    (method.clone(), path.replace("{id}", id))
}

/// The request header with the operator's name, for the audit log: claimed, and written down as that.
pub const ACTOR: &str = "x-oncegate-actor";

/// The request header with the service that the client means: an address alone does not say.
pub const SERVICE: &str = "x-oncegate-service";

/// The code of the problem that a response has no body, although others of its route have one.
pub const EMPTY_BODY: &str = ProblemCode::EmptyBody.name();

/// The answer to questions about keys until the schema of the store is known.
const NOT_JOINED: &str = "the store was away when this instance started, and has not been reached since";

/// The name in the response of `/healthz`. Clients check it before they send a token: another program may listen there.
pub const NAME: &str = "oncegate";

#[derive(Serialize, JsonSchema)]
struct Health {
    /// Always `alive`.
    status: &'static str,
    /// Always `oncegate`: another program may listen there.
    name: &'static str,
}

#[derive(Serialize, JsonSchema)]
struct DrainState {
    instance: InstanceId,
    /// `serving` or `draining`. No state says that it has drained: then the process is gone.
    state: &'static str,
    /// The number of attempts that are running.
    attempts: usize,
}

/// The operators' listener: the state behind its endpoints and pages.
pub struct AdminListener {
    instance: Arc<Instance>,
    config: watch::Receiver<Arc<Config>>,
    sessions: page::Sessions,
    pending_sign_ins: page::PendingSignIns,
    oidc: OidcClient,
    /// The tokens and the issuer at the last request.
    sign_in_rules: Mutex<(AdminTokens, Option<Arc<OidcConfig>>)>,
    guesses: TokenGuesses,
    denials: LogLimiter,
    refused_sign_ins: LogLimiter,
    leaving: CancellationToken,
    key_counts: KeyCountCache,
}

impl AdminListener {
    /// `leaving` is cancelled first by everything that begins a drain; this listener may cancel it too.
    pub fn new(
        instance: Arc<Instance>,
        tokens: AdminTokens,
        config: watch::Receiver<Arc<Config>>,
        leaving: CancellationToken,
    ) -> Self {
        let oidc = config.borrow().admin.oidc.clone();
        Self {
            instance,
            sessions: page::Sessions::new(),
            pending_sign_ins: page::PendingSignIns::default(),
            oidc: OidcClient::new(),
            sign_in_rules: Mutex::new((tokens, oidc)),
            config,
            guesses: TokenGuesses::default(),
            denials: LogLimiter::new(DENIALS_LOGGED, DENIALS_PERIOD),
            refused_sign_ins: LogLimiter::new(DENIALS_LOGGED, DENIALS_PERIOD),
            leaving,
            key_counts: KeyCountCache::default(),
        }
    }

    /// The tokens of the running configuration. When a reload has changed them or the issuer, sessions and sign-ins
    /// that were opened with the earlier ones end.
    fn tokens(&self) -> AdminTokens {
        self.current_rules().0.clone()
    }

    /// The rules of the running configuration. Nothing ends sessions while they are held.
    fn current_rules(&self) -> MutexGuard<'_, (AdminTokens, Option<Arc<OidcConfig>>)> {
        let mut rules = self.sign_in_rules.lock();
        let admin = &self.config.borrow().admin;
        let current = (rules.0.after_reload(admin), admin.oidc.clone());
        if *rules != current {
            *rules = current;
            self.sessions.sign_out_all();
            self.pending_sign_ins.end_all();
        }
        rules
    }

    fn own_names(&self, listener: SocketAddr) -> OwnNames {
        let url = self.config.borrow().admin.oidc.as_ref().map(|oidc| oidc.url.clone());
        OwnNames { listener, url }
    }

    fn key_admin(&self, service: &Arc<str>) -> KeyAdmin<'_> {
        let Instance { store, config, .. } = &*self.instance;
        KeyAdmin::new(store, config, Arc::clone(&self.config.borrow()), Arc::clone(service), Some(&*self.instance))
    }

    async fn call(
        &self,
        endpoint: Endpoint,
        request: Request<RequestBody>,
        peer: IpAddr,
        grant: Option<Grant>,
    ) -> Response<Body> {
        let bound = grant.and_then(|grant| grant.service);
        if bound.is_some() && matches!(endpoint, Endpoint::Drain) {
            return deny(AccessDenied::OneService);
        }
        if matches!(endpoint, Events(_) | Keys(_) | Service(_)) && !self.instance.joined.is_cancelled() {
            return refuse(&ApiProblem::new(ProblemCode::StoreUnavailable, NOT_JOINED));
        }
        let answer = match endpoint {
            Endpoint::Document => Ok((StatusCode::OK, openapi::document())),
            Endpoint::Health => Ok((StatusCode::OK, json!(Health { status: "alive", name: NAME }))),
            Endpoint::Drain => {
                // As the first signal does. A second request changes nothing.
                self.leaving.cancel();
                Ok((StatusCode::ACCEPTED, json!(self.drain_state())))
            }
            Endpoint::DrainState => Ok((StatusCode::OK, json!(self.drain_state()))),
            Events(method) => match self.service_of(&request, bound) {
                Ok(service) => {
                    let actor = actor_of(request.headers(), peer);
                    self.answer_about_events(method, path_id(request.uri()), actor, &service).await
                }
                Err(problem) => Err(problem),
            },
            Keys(method) => match self.service_of(&request, bound.clone()) {
                Ok(service) => self.answer_about_keys(method, request, peer, (&service, bound.is_some())).await,
                Err(problem) => Err(problem),
            },
            Endpoint::Metrics => return self.metrics(request.headers()).await,
            Endpoint::Readiness => {
                let readiness = self.readiness().await;
                Ok((readiness.status, json!(readiness)))
            }
            Service(method) => self.answer_service(method, request).await,
        };
        answer.map_or_else(|problem| refuse(&problem), |(status, body)| respond(status, &body))
    }

    fn drain_state(&self) -> DrainState {
        DrainState {
            instance: self.instance.instance_lease.id(),
            state: if self.leaving.is_cancelled() { "draining" } else { "serving" },
            attempts: self.instance.in_flight.count(),
        }
    }

    async fn answer_about_keys(
        &self,
        method: AdminMethod,
        request: Request<RequestBody>,
        peer: IpAddr,
        (service, is_bound): (&Arc<str>, bool),
    ) -> ApiAnswer {
        let (head, body) = request.into_parts();
        let actor = actor_of(&head.headers, peer);
        let body = read_body(body, BODY_BYTES_MAX).await?;
        let (id, query) = (path_id(&head.uri), head.uri.query().unwrap_or_default());
        let mut key_admin = self.key_admin(service);
        key_admin.traffic = (method == AdminMethod::Stats).then(|| self.instance_stats(is_bound));
        Ok((StatusCode::OK, key_admin.answer(AdminRequest { method, id, query, body: &body, actor }).await?))
    }

    /// Returns the service that a request is about: the one that it names, else the only one. A token that is bound to
    /// one sees no other.
    fn service_of(&self, request: &Request<RequestBody>, bound: Option<Arc<str>>) -> Result<Arc<str>, ApiProblem> {
        let config = self.config.borrow();
        let served: Vec<_> =
            config.service_names().filter(|name| bound.as_ref().is_none_or(|only| only == *name)).collect();
        let shown = || served.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let mut named: Option<&Arc<str>> = None;
        for field in request.headers().get_all(SERVICE) {
            let found = served.iter().find(|name| name.as_bytes() == field.as_bytes());
            let other = || ApiProblem::another_service(&shown(), &String::from_utf8_lossy(field.as_bytes()));
            named = Some(
                *found.filter(|found| named.is_none_or(|before: &Arc<str>| *before == ***found)).ok_or_else(other)?,
            );
        }
        match (named, &served[..]) {
            (Some(named), _) => Ok(Arc::clone(named)),
            (None, [only]) => Ok(Arc::clone(only)),
            (None, _) => Err(ApiProblem::no_service(&shown())),
        }
    }

    /// Counts a denied request, and logs it: a line a minute for each address, without anything that the request has
    /// shown.
    fn note_denied(&self, peer: IpAddr, denied: AccessDenied) {
        self.instance.observability.metrics.admin_denied.inc();
        if let Some(requests) = self.denials.count(&peer.to_string()) {
            tracing::warn!(%peer, requests, "the admin listener has denied a request: {denied}");
        }
    }

    async fn answer(&self, request: Request<RequestBody>, listener: SocketAddr, peer: IpAddr) -> Response<Body> {
        if page::is_page(request.uri().path()) {
            return self.answer_page(request, listener, peer).await;
        }
        let (method, path) = (request.method(), request.uri().path());
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let here: Vec<_> = TABLE.iter().filter(|(pattern, ..)| is_path_of(path, pattern)).collect();
        let access = here.first().map_or(Access::Operators, |(_, _, access, _)| *access);
        let grant = match access.check(&request, &self.own_names(listener), peer, &self.tokens(), &self.guesses) {
            Ok(grant) => grant,
            Err(denied) => {
                self.note_denied(peer, denied);
                return deny(denied);
            }
        };
        // Whatever the endpoint: a client that names a service has meant an instance of that.
        if let Some(grant) = &grant
            && request.headers().contains_key(SERVICE)
            && let Err(problem) = self.service_of(&request, grant.service.clone())
        {
            return refuse(&problem);
        }
        if let Some((.., endpoint)) = here.iter().find(|(_, known, ..)| known == method) {
            return self.call(*endpoint, request, peer, grant).await;
        }
        if here.is_empty() {
            let mut paths: Vec<_> = TABLE.iter().map(|(path, ..)| *path).collect();
            paths.dedup();
            return refuse(&ApiProblem::new(ProblemCode::NoSuchPath, "there is nothing here").with("paths", paths));
        }
        let allow = here.iter().map(|(_, method, ..)| method.as_str()).collect::<Vec<_>>().join(", ");
        let problem = ApiProblem::new(ProblemCode::NoSuchMethod, "the path has no such method").with("allow", &*allow);
        with_allow(refuse(&problem), &allow)
    }
}

fn with_allow(mut response: Response<Body>, allow: &str) -> Response<Body> {
    response.headers_mut().insert(ALLOW, HeaderValue::from_str(allow).expect("methods are visible ASCII"));
    response
}

fn actor_of(headers: &HeaderMap, peer: IpAddr) -> String {
    actors::remote_actor(peer, headers.get(ACTOR).map(HeaderValue::as_bytes))
}

async fn read_body(body: RequestBody, bytes_max: usize) -> Result<Bytes, ApiProblem> {
    let late = || ApiProblem::new(ProblemCode::RequestTimeout, "the body did not arrive in time");
    let body = tokio::time::timeout(BODY_MAX, Limited::new(body, bytes_max).collect()).await;
    let body = body.map_err(|_| late())?.map_err(|error| match error.is::<LengthLimitError>() {
        true => ApiProblem::body_too_large(bytes_max),
        false => late(),
    })?;
    Ok(body.to_bytes())
}

/// The `{id}` in the path of a request.
fn path_id(uri: &Uri) -> &str {
    uri.path().split('/').nth(4).unwrap_or_default()
}

fn is_path_of(path: &str, pattern: &str) -> bool {
    let mut segments = path.split('/');
    pattern.split('/').all(|part| segments.next().is_some_and(|segment| part == segment || part == "{id}"))
        && segments.next().is_none()
}

fn respond(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::whole(format!("{body}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Responds with a problem document (RFC 9457).
fn refuse(problem: &ApiProblem) -> Response<Body> {
    let mut response = respond(problem.status(), &json!(problem));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

fn deny(denied: AccessDenied) -> Response<Body> {
    let (code, field) = match denied {
        AccessDenied::NoToken | AccessDenied::WrongToken => {
            (ProblemCode::Unauthorized, Some((WWW_AUTHENTICATE, CHALLENGE)))
        }
        AccessDenied::Slowed(wait) => {
            (ProblemCode::TooManyWrongTokens, Some((RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1))))
        }
        AccessDenied::Host | AccessDenied::OneService | AccessDenied::Origin | AccessDenied::ReadOnly => {
            (ProblemCode::Forbidden, None)
        }
    };
    let mut response = refuse(&ApiProblem::new(code, denied.to_string()));
    response.headers_mut().extend(field);
    response
}

/// Answers operators and probes until `stop`. A response that is being sent then still goes out: it may be the one to
/// the operator who has asked for the drain.
pub fn serve(
    listener: std::net::TcpListener,
    admin: AdminListener,
    stop: CancellationToken,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(answer_all(listener, admin, stop))
}

async fn answer_all(listener: std::net::TcpListener, admin: AdminListener, stop: CancellationToken) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the admin listener cannot be used"),
    };
    let admin = Arc::new(admin);
    let connections = TaskTracker::new();
    let (watched, watch_stop) = (Arc::clone(&admin), stop.clone());
    connections.spawn(async move {
        let watching = watched.oidc.watch(watched.config.clone(), &watched.instance.observability.metrics);
        watch_stop.run_until_cancelled(watching).await
    });
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        connections.spawn(serve_connection(stream, peer.ip(), Arc::clone(&admin), stop.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn serve_connection(stream: TcpStream, peer: IpAddr, admin: Arc<AdminListener>, stop: CancellationToken) {
    // The connection's address, not the listener's, which may be every interface.
    let Ok(own) = stream.local_addr() else { return };
    let service = service_fn(|request| {
        let admin = Arc::clone(&admin);
        async move {
            let (request, unread) = split_unread(request);
            let mut response = admin.answer(request, own, peer).await;
            if let Some(unread) = unread
                && !can_keep_connection(unread, false).await
            {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
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
    fn only_probes_and_the_document_need_no_access_and_all_methods_of_a_path_need_the_same() {
        for (path, _, access, _) in &TABLE {
            let is_public = matches!(*path, "/api/v1/openapi.json" | "/healthz" | "/metrics" | "/readyz");
            assert_eq!(*access == Access::Anybody, is_public, "{path}");
        }
    }
}
