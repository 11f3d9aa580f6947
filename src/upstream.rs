//! The client towards the service. It sorts every failure of a call: the request was never sent, or may have been.

use std::error::Error as _;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::uri::{self, Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper::body::{Body as _, Incoming};
use hyper_util::client::legacy::connect::{HttpConnector, capture_connection};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_rustls::TlsConnector;

use crate::body::Body;
use crate::body::pooled::PooledBody;
use crate::config::UpstreamTarget as Target;
use crate::tls::Trust;
use connection_slots::UpstreamSlots;
use connector::{ConnectionFailure, Connector};
use pool::UpstreamPool;

pub mod connection_slots;
mod connector;
mod pool;
pub mod probe;

/// TCP keep-alive finds an upstream whose machine is gone: streams and tunnels have no time limit. The kernel sends the
/// first probe after 60 s of silence and the next ones every 15 s. Four unanswered probes end the connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// The pooled connections to one upstream. Cheap to clone; the clones share the pool.
#[derive(Clone)]
pub struct UpstreamClient(Arc<UpstreamTransport>);

enum UpstreamTransport {
    /// One request at a time on each connection.
    Http1(Arc<UpstreamPool>),
    /// HTTP/2 with prior knowledge: one connection to this authority for all requests, driven by a task of its own.
    Http2(Client<Connector, Body>, Authority),
}

/// A call that brought no usable response.
#[derive(Debug)]
pub enum CallError {
    /// Not one byte of the request left this process: trying again is safe.
    NeverSent(ConnectionFailure),
    /// Bytes may have left. An upstream that read the request, acted and died looks the same from here as one that never
    /// saw it: both are `IncompleteMessage` to hyper.
    Broken(ConnectionFailure),
    /// Not one byte of the request left this process: all connections to the upstream are in use.
    Overloaded,
    /// The upstream answered with something that is no valid response to this request.
    Garbage(&'static str),
    /// Not one byte of the request left this process: the caller's [`SendCheck`] forbade it once a connection was there.
    TooLate,
}

/// Whether the request may still be sent. It is asked right before each try to send the first byte: DNS, TCP and TLS may have
/// taken long, or the process was stopped meanwhile.
pub type SendCheck<'a> = &'a (dyn Fn() -> bool + Send + Sync);

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverSent(_) => f.write_str("the upstream cannot be reached"),
            Self::Broken(_) => f.write_str("the upstream closed the connection after the request was sent"),
            Self::Overloaded => f.write_str("all connections to the upstream are in use"),
            Self::Garbage(reason) => write!(f, "the upstream's response is invalid: {reason}"),
            Self::TooLate => f.write_str("the attempt's lease or its time to connect is over; nothing is sent"),
        }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NeverSent(source) | Self::Broken(source) => Some(&**source),
            Self::Garbage(_) | Self::Overloaded | Self::TooLate => None,
        }
    }
}

impl UpstreamClient {
    /// Creates a pool for one upstream. `idle` must be below the upstream's own keep-alive time: a connection that it has
    /// just closed looks open from here, and of a request written to it nobody can tell whether it was executed.
    pub fn new(target: &Arc<Target>, connect: Duration, idle: Duration, trust: &Trust, slots: &UpstreamSlots) -> Self {
        let slots = slots.of(target);
        let (connector, scheme, authority) = match &**target {
            Target::H2c(authority) | Target::Http(authority) => {
                (Connector::Tcp(tcp(), connect), Scheme::HTTP, authority.clone())
            }
            Target::Https(authority, name) => {
                let tls = TlsConnector::from(trust.config());
                (Connector::Tls(tcp(), tls, name.clone(), connect), Scheme::HTTPS, authority.clone())
            }
            Target::Unix(path) => {
                let authority = Authority::from_static("localhost");
                (Connector::Unix(Arc::clone(path), connect), Scheme::HTTP, authority)
            }
        };
        if matches!(**target, Target::H2c(_)) {
            return Self(Arc::new(UpstreamTransport::Http2(http2(connector, idle), authority)));
        }
        let mut target = uri::Parts::default();
        (target.scheme, target.authority) = (Some(scheme), Some(authority));
        target.path_and_query = Some(PathAndQuery::from_static("/"));
        let target = Uri::from_parts(target).expect("scheme, authority and path are all there");
        Self(Arc::new(UpstreamTransport::Http1(UpstreamPool::new(connector, target, idle, slots, connect))))
    }

    /// Whether requests share a connection, so that one that lasts long takes none from the others.
    pub fn shares_connections(&self) -> bool {
        matches!(*self.0, UpstreamTransport::Http2(..))
    }

    /// Sends one request at any time, see [`Self::call_while`].
    ///
    /// # Errors
    /// [`CallError`] says whether the request may have reached the upstream.
    pub async fn call(&self, request: &mut Request<Body>) -> Result<Response<PooledBody>, CallError> {
        self.call_while(request, &|| true).await
    }

    /// Sends one request if it may still be sent, leaving an empty one in its place, and waits for the response's head.
    ///
    /// Only the path and query of the request's target are used; the authority is this upstream's.
    ///
    /// # Errors
    /// [`CallError`] says whether the request may have reached the upstream.
    pub async fn call_while(
        &self,
        request: &mut Request<Body>,
        may_send: SendCheck<'_>,
    ) -> Result<Response<PooledBody>, CallError> {
        match &*self.0 {
            UpstreamTransport::Http1(pool) => {
                if request.uri().authority().is_some() {
                    *request.uri_mut() = Uri::from(path_of(request));
                }
                set_framing(request);
                pool.call(request, may_send).await
            }
            UpstreamTransport::Http2(client, authority) => {
                let mut target = uri::Parts::default();
                (target.scheme, target.authority) = (Some(Scheme::HTTP), Some(authority.clone()));
                target.path_and_query = Some(path_of(request));
                *request.uri_mut() = Uri::from_parts(target).expect("scheme, authority and path are all there");
                // `:authority` replaces it; a `Host` that differs would make the request malformed (RFC 9113 section 8.3.1).
                request.headers_mut().remove(HOST);
                // hyper sets it from the body.
                request.headers_mut().remove(CONTENT_LENGTH);
                let response = send_over_http2(client, take_request(request), may_send).await?;
                check_response(&response, false).map_err(CallError::Garbage)?;
                Ok(response.map(PooledBody::from))
            }
        }
    }
}

/// Returns the announced length of a body: one `Content-Length` in its plain form, with no second field, no list and no
/// leading zero.
pub fn announced_length(headers: &HeaderMap) -> Option<u64> {
    let mut fields = headers.get_all(CONTENT_LENGTH).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return None };
    let digits = field.to_str().ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))?;
    digits.parse().ok().filter(|_| digits == "0" || !digits.starts_with('0'))
}

fn take_request(request: &mut Request<Body>) -> Request<Body> {
    std::mem::replace(request, Request::new(Body::empty()))
}

fn path_of(request: &Request<Body>) -> PathAndQuery {
    request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"))
}

fn http2(connector: Connector, idle: Duration) -> Client<Connector, Body> {
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(idle)
        .http2_only(true)
        // A request of which a pooled connection has provably taken no byte goes to another connection. hyper proves it
        // by returning the request unwritten, so this is not a second sending.
        .retry_canceled_requests(true)
        .set_host(false)
        .build(connector)
}

fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    // The scheme only chooses the default port; this connector does not care about the protocol on it.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEPALIVE_IDLE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    connector
}

/// Sets the body's framing fields, whatever the request had. hyper does this by itself except for methods whose requests
/// mostly have no body: for those it sends only what the fields announce.
fn set_framing(request: &mut Request<Body>) {
    let length = if request.body().is_end_stream() { Some(0) } else { request.body().size_hint().exact() };
    let switches = request.headers().contains_key(UPGRADE);
    let headers = request.headers_mut();
    match length {
        // Most requests announce it already.
        Some(_) if announced_length(headers) == length => {}
        Some(length) if length > 0 => drop(headers.insert(CONTENT_LENGTH, HeaderValue::from(length))),
        Some(_) => drop(headers.remove(CONTENT_LENGTH)),
        None => {
            headers.remove(CONTENT_LENGTH);
            if !switches {
                headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
    }
}

/// hyper-util hides the moment between connecting and sending. It captures the connection when it chooses it, and hands the
/// request over in the same poll: until then each poll asks first. If it then tries another connection, because the chosen
/// one has provably taken no byte, it does not ask again.
async fn send_over_http2(
    client: &Client<Connector, Body>,
    mut request: Request<Body>,
    may_send: SendCheck<'_>,
) -> Result<Response<Incoming>, CallError> {
    let chosen = capture_connection(&mut request);
    let mut answer = Box::pin(client.request(request));
    poll_fn(|cx| {
        if chosen.connection_metadata().is_none() && !may_send() {
            return Poll::Ready(Err(CallError::TooLate));
        }
        answer.as_mut().poll(cx).map_err(classify_error)
    })
    .await
}

/// Over HTTP/2 only two errors prove that nothing was sent: the connection was never made, or hyper returns the request.
fn classify_error(error: Error) -> CallError {
    let returned =
        error.source().and_then(|source| source.downcast_ref::<hyper::Error>()).is_some_and(hyper::Error::is_canceled);
    if error.is_connect() || returned { CallError::NeverSent(error.into()) } else { CallError::Broken(error.into()) }
}

/// Refuses responses that hyper's client lets pass and that must not reach our clients.
fn check_response(response: &Response<Incoming>, requested_upgrade: bool) -> Result<(), &'static str> {
    let status = response.status();
    let switched = status == StatusCode::SWITCHING_PROTOCOLS && requested_upgrade;
    if !(200..600).contains(&status.as_u16()) && !switched {
        return Err("its status is not a final one");
    }
    // Response smuggling lives on recipients that disagree about which of the two counts (RFC 9112 section 6.3).
    if response.headers().contains_key(TRANSFER_ENCODING) && response.headers().contains_key(CONTENT_LENGTH) {
        return Err("it has both Content-Length and Transfer-Encoding");
    }
    let mut codings = response.headers().get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        (Some(_), _) => Err("it has a transfer coding other than chunked"),
    }
}
