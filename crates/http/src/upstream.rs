//! The client towards the service. It sorts every failure of a call: the request was never sent, or may have been.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, HeaderValue, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper::body::{Body as _, Incoming};
use hyper_util::client::legacy::connect::HttpConnector;

use crate::body::Body;
use crate::body::pooled::PooledBody;
use crate::transport::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};
use connection_slots::UpstreamSlots;
use connector::{ConnectionFailure, Connector, ConnectorKind};
use oncegate_settings::{UpstreamTarget as Target, UpstreamTlsConfig};
use oncegate_trust::tls::HandshakeError;
use pool::{PoolProtocol, UpstreamPool};

pub use connector::MemoryNetwork;

pub mod connection_slots;
mod connector;
mod held_end;
mod http2;
pub mod inquiry;
pub mod issuer;
mod open_streams;
mod pool;

/// The reason of most requests that the service did not get.
const NOTHING_SENT: &str = "Nothing of the request was sent.";

/// The pooled connections to one upstream. Cheap to clone; the clones share the pool.
#[derive(Clone)]
pub struct UpstreamClient(Arc<UpstreamPool>);

/// A call that brought no usable response.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Not one byte of the request left this process: trying again is safe.
    #[error("the upstream cannot be reached")]
    NeverSent(#[source] ConnectionFailure),
    /// The service has said, over HTTP/2, that it has processed nothing of the request: trying again is safe.
    #[error("the upstream refused the request before it processed anything of it")]
    Unprocessed(#[source] ConnectionFailure),
    /// Bytes may have left. An upstream that read the request, acted and died looks the same from here as one that
    /// never saw it: both are `IncompleteMessage` to hyper.
    #[error("the upstream closed the connection after the request was sent")]
    Broken(#[source] ConnectionFailure),
    /// Not one byte of the request left this process: all connections to the upstream are in use, or all streams of the
    /// one over HTTP/2.
    #[error("all connections or streams to the upstream are in use")]
    Overloaded,
    /// The upstream answered with something that is no valid response to this request.
    #[error("the upstream's response is invalid: {0}")]
    Garbage(&'static str),
    /// Not one byte of the request left this process: the caller's [`SendCheck`] forbade it.
    #[error("the attempt's lease or its time to connect is over; nothing is sent")]
    TooLate,
}

/// Whether the request may still be sent. It is asked right before each try to send the first byte: DNS, TCP and TLS
/// may have taken long, or the process was stopped meanwhile.
pub type SendCheck<'a> = &'a (dyn Fn() -> bool + Send + Sync);

impl CallError {
    /// The reason, as a client may know it, for which the service did not get the request. It names no host.
    pub fn unreachable_reason(&self) -> String {
        match self {
            Self::Unprocessed(_) => "The service refused the request before it processed anything of it.".to_owned(),
            Self::NeverSent(failure) => match failure.downcast_ref::<HandshakeError>() {
                Some(error) => format!(
                    "The TLS handshake with the service failed{}. Nothing of the request was sent.",
                    error.cause()
                ),
                None => NOTHING_SENT.to_owned(),
            },
            Self::Broken(_) | Self::Garbage(_) | Self::Overloaded | Self::TooLate => NOTHING_SENT.to_owned(),
        }
    }
}

impl UpstreamClient {
    /// Creates a pool for one upstream. `idle` must be below the upstream's own keep-alive time: a connection that it
    /// has just closed looks open from here, and of a request written to it nobody can tell whether it was executed.
    pub fn new(
        target: &Arc<Target>,
        connect: Duration,
        idle: Duration,
        tls: &UpstreamTlsConfig,
        slots: &UpstreamSlots,
    ) -> Self {
        let (kind, protocol, scheme) = match &**target {
            Target::H2c(_) => (ConnectorKind::Tcp(tcp()), PoolProtocol::Http2, Scheme::HTTP),
            Target::Http(authority) => {
                let kind = match slots.network() {
                    None => ConnectorKind::Tcp(tcp()),
                    Some(network) => ConnectorKind::Memory(network, authority.clone()),
                };
                (kind, PoolProtocol::Http1, Scheme::HTTP)
            }
            Target::Https(_, name) => {
                let name = tls.server_name.as_ref().unwrap_or(name).clone();
                (ConnectorKind::Tls(tcp(), tls.trust.for_service(), name), PoolProtocol::Negotiated, Scheme::HTTPS)
            }
            Target::Unix(path) => (ConnectorKind::Unix(Arc::clone(path)), PoolProtocol::Http1, Scheme::HTTP),
        };
        let uri = Uri::builder().scheme(scheme).authority(target.host()).path_and_query("/").build();
        let uri = uri.expect("scheme, authority and path are all there");
        let connector = Connector { kind, limit: connect, is_public: tls.is_public };
        Self(UpstreamPool::new(connector, protocol, uri, idle, slots.of(target)))
    }

    /// The scheme and the authority of the upstream; of a socket, those that its requests have.
    pub fn target(&self) -> &Uri {
        &self.0.target
    }

    /// Whether requests share a connection, or will as far as is known, so that one that lasts long takes none from the
    /// others.
    pub fn shares_connections(&self) -> bool {
        self.0.shares_connections()
    }

    /// Sends an unguarded request. It waits for a place first, which its connection keeps until it is free again,
    /// unless requests share connections.
    /// [`CallError::Overloaded`] also says that no place became free within the time for a connection.
    pub async fn call_unguarded(&self, request: &mut Request<Body>) -> Result<Response<PooledBody>, CallError> {
        let pool = &self.0;
        let place = match pool.shares_connections() {
            true => None,
            false => {
                let place = pool.slots.take_unguarded_place(pool.connector.limit).await;
                Some(place.ok_or(CallError::Overloaded)?)
            }
        };
        pool.call(request, &|| true, place).await
    }

    /// Sends one request at any time, see [`Self::call_while`].
    pub async fn call(&self, request: &mut Request<Body>) -> Result<Response<PooledBody>, CallError> {
        self.call_while(request, &|| true).await
    }

    /// Sends one request if it may still be sent, leaving an empty one in its place, and waits for the response's head.
    ///
    /// Only the path and query of the request's target are used.
    /// [`CallError`] says whether the request may have reached the upstream.
    pub async fn call_while(
        &self,
        request: &mut Request<Body>,
        may_send: SendCheck<'_>,
    ) -> Result<Response<PooledBody>, CallError> {
        self.0.call(request, may_send, None).await
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

/// Gives a request the form that HTTP/1.1 has: the target is its path and query.
fn shape_for_http1(request: &mut Request<Body>) {
    if let Some(authority) = request.uri().authority() {
        // A request that was shaped for HTTP/2 has its host there.
        if !request.headers().contains_key(HOST) {
            let host = HeaderValue::from_str(authority.as_str()).expect("an authority is visible ASCII");
            request.headers_mut().insert(HOST, host);
        }
        *request.uri_mut() = Uri::from(path_of(request));
    }
    set_framing(request);
}

/// Sets the body's framing fields, whatever the request had. hyper does this by itself except for methods whose
/// requests mostly have no body: for those it sends only what the fields announce. Only a chunked body can have the
/// trailers that `Trailer` announces.
fn set_framing(request: &mut Request<Body>) {
    let has_body = !request.body().is_end_stream();
    let length = match request.body().size_hint().exact() {
        _ if !has_body => Some(0),
        _ if request.headers().contains_key(TRAILER) => None,
        exact => exact,
    };
    let switches = request.headers().contains_key(UPGRADE);
    let headers = request.headers_mut();
    if !has_body {
        headers.remove(TRAILER);
    }
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
