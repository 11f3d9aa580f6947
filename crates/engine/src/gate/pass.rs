//! Passes an unguarded or observed request through: both bodies stream, unbuffered. `forward` sends guarded requests.

use std::error::Error as _;
use std::io;
use std::iter::successors;
use std::sync::Arc;

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode, Version, request};
use http_body::Body as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::egress;
use super::state::LiveConfig;
use crate::instance::weekly_counts::RouteCounts;
use oncegate_domain::scope::Scope;
use oncegate_http::body::pooled::PooledBody;
use oncegate_http::body::request_body::RequestBodyError;
use oncegate_http::body::{Body, ConnectionGuard};
use oncegate_http::downstream::client::{ClientConnection, ServiceCloses};
use oncegate_http::lingering_stream::LingeringStream;
use oncegate_http::protocol::early_hints;
use oncegate_http::protocol::fields::{self, RequestOrigin};
use oncegate_http::protocol::refusal::{ReachedLimit, Refusal};
use oncegate_http::upstream::{CallError, UpstreamClient, announced_length};
use oncegate_settings::{Route, RouteMode};
use oncegate_telemetry::logs::error_causes;

pub(super) const BODY_BROKE_OFF: Refusal =
    Refusal::BadRequest(StatusCode::BAD_REQUEST, "The request's body is not framed as it says, or broke off.");

/// An unguarded or observed request, ready for the upstream.
pub struct PassThroughRequest {
    pub request: Request<Body>,
    pub trailers: bool,
    pub upgrade: bool,
    /// Whether the service learns of the trace. A vendor does not.
    pub takes_trace: bool,
    /// Whether it changes nothing, whatever its method says.
    pub only_reads: bool,
    /// The counts of its route, or of requests without one.
    pub weekly: Arc<RouteCounts>,
    /// The caller, as far as the head names one and a route says how.
    pub caller: Option<Scope>,
    /// A field with a value that would be a field for keys if it had `-` for `_`, as the client sent it.
    pub misspelled_key: Option<HeaderName>,
    pub upstream: UpstreamClient,
    /// Ends the request when its client is gone: nobody else needs the response.
    pub tie: ConnectionGuard,
}

impl PassThroughRequest {
    /// A request with the fields for the service, on a route if it has one.
    pub(super) fn new(
        (mut head, mut body): (request::Parts, Body),
        origin: &RequestOrigin,
        (upstream, weekly): (&UpstreamClient, &Arc<RouteCounts>),
        client: &ClientConnection,
        live: &LiveConfig,
        route: Option<&Arc<Route>>,
    ) -> Self {
        // A gRPC client may keep a stream open without sending anything for hours.
        if let (Body::Streaming(stream), true) =
            (&mut body, upstream.shares_connections() && fields::is_grpc(&head.headers))
        {
            stream.limit_rate(None);
        }
        // Before the service's fields are prepared: it may be removed from them.
        let misspelled_key = live.misspelled_key_field(&head.headers).cloned();
        let trailers = fields::accepts_trailers(&head.headers);
        let upgrade = asks_for_websocket(&head.headers, head.version);
        // HTTP/1.0 has no interim responses, and hyper sends none over HTTP/2. A client that asks for an upgrade waits
        // for 101. A route that observes answers as one that enforces.
        let takes_hints = route.is_none_or(|route| route.options.mode != RouteMode::Observe)
            && head.version == Version::HTTP_11
            && !upgrade
            && !early_hints::is_taken_for_final(&head.headers);
        match &mut body {
            Body::Streaming(stream) => {
                if fields::may_have_trailers(&head.headers, origin) {
                    let route = route.cloned();
                    stream.pass_trailers(move |trailers| {
                        fields::prepare_trailers(trailers, |name| is_read(route.as_ref(), name));
                    });
                }
                fields::prepare_streaming(&mut head.headers, origin, |name| is_read(route, name));
            }
            _ => fields::prepare_for_service(&mut head.headers, origin, |name| is_read(route, name)),
        }
        if let Some(route) = route {
            egress::set_fields(&mut head.headers, route);
        }
        let takes_trace = route.is_none_or(|route| route.vendor.is_none());
        head.version = Version::HTTP_11;
        let mut request = Request::from_parts(head, body);
        if takes_hints {
            client.early_hints.collect(&mut request);
        }
        let (upstream, weekly, tie) = (upstream.clone(), Arc::clone(weekly), client.ties.attach());
        Self {
            request,
            trailers,
            upgrade,
            takes_trace,
            only_reads: false,
            weekly,
            caller: None,
            misspelled_key,
            upstream,
            tie,
        }
    }
}

fn is_read(route: Option<&Arc<Route>>, name: &str) -> bool {
    route.is_some_and(|route| route.reads_field(name))
}

/// Whether a request asks for an upgrade to WebSocket (RFC 6455 section 4.1), the only protocol that may pass. It must
/// be the only one in the field: with `h2c` in a list, all that follows would go past every route. HTTP/2 has another
/// way.
fn asks_for_websocket(request: &HeaderMap, version: Version) -> bool {
    let wanted = fields::connection_options(request).any(|name| name.eq_ignore_ascii_case(b"upgrade"));
    wanted && version == Version::HTTP_11 && is_websocket(request)
}

fn is_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(UPGRADE).iter();
    matches!((protocols.next(), protocols.next()), (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(WEBSOCKET))
}

const WEBSOCKET: &[u8] = b"websocket";

fn closes_connection(response: &Response<PooledBody>) -> bool {
    let lists =
        |option: &[u8]| fields::connection_options(response.headers()).any(|one| one.eq_ignore_ascii_case(option));
    lists(b"close") || (response.version() == Version::HTTP_10 && !lists(b"keep-alive"))
}

/// Streams a request to the service and the response back, and calls `inspect` with the status and all fields of the
/// response. The work ends with its client: the connection drops this future when the client is gone.
pub async fn pass(
    passing: Box<PassThroughRequest>,
    inspect: impl FnOnce(StatusCode, &HeaderMap),
) -> Result<Response<Body>, Refusal> {
    let PassThroughRequest { mut request, trailers, upgrade, upstream, tie, .. } = *passing;
    let client = upgrade.then(|| hyper::upgrade::on(&mut request));
    if upgrade {
        add_upgrade_fields(request.headers_mut());
    }
    let mut response = upstream.call_unguarded(&mut request).await.map_err(|error| {
        if let Some(refusal) = request_body_refusal(&error) {
            return refusal;
        }
        tracing::warn!(cause = error_causes(&error), "{error}");
        match error {
            CallError::NeverSent(_) | CallError::Unprocessed(_) | CallError::TooLate => {
                Refusal::UpstreamUnreachable(error.unreachable_reason().into())
            }
            CallError::Overloaded => Refusal::Overloaded(ReachedLimit::UpstreamConnections),
            CallError::Broken(_) | CallError::Garbage(_) => Refusal::UpstreamBroken,
        }
    })?;
    inspect(response.status(), response.headers());
    if let (Some(client), StatusCode::SWITCHING_PROTOCOLS) = (client, response.status()) {
        if !is_websocket(response.headers()) {
            tracing::warn!("the service switched to a protocol that the client did not ask for");
            return Err(Refusal::UpstreamBroken);
        }
        return Ok(switch_protocol(client, response));
    }
    if closes_connection(&response) {
        response.extensions_mut().insert(ServiceCloses);
    }
    fields::prepare_pass_through(response.headers_mut(), trailers);
    repair_content_length(&mut response);
    Ok(response.map(|body| Body::Tied(body, fields::prepare_passing_trailers, tie)))
}

/// The refusal of a request whose own body broke off or stalled on its way to the service; `None` for any other error.
fn request_body_refusal(error: &CallError) -> Option<Refusal> {
    let chain = || successors(error.source(), |&error| error.source());
    let too_slow = |error: &RequestBodyError| matches!(error, RequestBodyError::TooSlow);
    // hyper's client reports that the body ended, hyper's server reports why.
    if !chain().filter_map(|error| error.downcast_ref::<hyper::Error>()).any(hyper::Error::is_user) {
        return None;
    }
    let timed_out = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    let stalled = chain().filter_map(|error| error.downcast_ref()).any(timed_out)
        || chain().filter_map(|error| error.downcast_ref()).any(too_slow);
    Some(if stalled { Refusal::RequestTimeout } else { BODY_BROKE_OFF })
}

/// Leaves a `Content-Length` in place if every reader understands it alike. Else hyper computes it from the body; where
/// no body follows (RFC 9110 section 8.6: after HEAD, and with 304) the first value stays. A 204 response has none.
fn repair_content_length(response: &mut Response<PooledBody>) {
    let has_none = response.status() == StatusCode::NO_CONTENT;
    if !has_none && announced_length(response.headers()).is_some() {
        return;
    }
    let follows = !response.body().is_end_stream();
    let Some(value) = response.headers_mut().remove(CONTENT_LENGTH) else { return };
    let digits = value.to_str().ok().filter(|value| value.bytes().all(|digit| digit.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse::<u64>().ok()).filter(|_| !follows && !has_none);
    if let Some(length) = length {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// Copies bytes in both directions until both sides are done. Client and service have agreed on another protocol. What
/// a side has sent before it reset its connection still goes to the other one.
fn switch_protocol(client: OnUpgrade, mut response: Response<PooledBody>) -> Response<Body> {
    let service = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        let (Ok(client), Ok(service)) = tokio::join!(client, service) else { return };
        // The service's stream lingers by itself.
        let (mut client, mut service) = (LingeringStream::new(TokioIo::new(client)), TokioIo::new(service));
        if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut service).await {
            tracing::debug!(%error, "an upgraded connection broke");
        }
    });
    fields::prepare_for_client(response.headers_mut());
    add_upgrade_fields(response.headers_mut());
    response.map(|_| Body::empty())
}

fn add_upgrade_fields(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}
