//! Requests go out. Every way a call can fail is sorted here: never sent, or nobody knows.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::uri::{self, Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper::body::{Body as _, Incoming};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_rustls::TlsConnector;

use crate::body::Body;
use crate::body::flow::Flow;
use crate::config::Upstream as Target;
use crate::tls::Trust;
use connector::{BoxError, Connector};
use pool::Pool;

mod connector;
mod pool;

/// An upstream whose machine is gone says nothing about it, and what streams or is tunnelled has no time limit: the kernel
/// asks after it first after this long, then so often, and after so many questions it is gone.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;

/// Connections to one upstream. Cheap to clone; the clones share them.
#[derive(Clone)]
pub struct Upstream(Arc<Way>);

enum Way {
    /// One request at a time on each connection.
    Http1(Arc<Pool>),
    /// HTTP/2 with prior knowledge: one connection to this authority for all, moved by a task of its own.
    Http2(Client<Connector, Body>, Authority),
}

/// A call that brought no usable response.
#[derive(Debug)]
pub enum CallError {
    /// Not one byte of the request left this process: trying again is safe.
    NeverSent(BoxError),
    /// Bytes may have left. The upstream may have read, acted and died, which looks the same from here as an upstream
    /// that never saw it: both are `IncompleteMessage` to hyper.
    Broken(BoxError),
    /// The upstream answered with something that is no response to this request.
    Garbage(&'static str),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverSent(_) => f.write_str("the upstream cannot be reached"),
            Self::Broken(_) => f.write_str("the upstream broke off after the request was sent"),
            Self::Garbage(what) => write!(f, "the upstream's response is unusable: {what}"),
        }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NeverSent(source) | Self::Broken(source) => Some(&**source),
            Self::Garbage(_) => None,
        }
    }
}

impl Upstream {
    /// A pool for one upstream. `idle` must be below the upstream's own keep-alive: a connection that it has just closed
    /// looks open from here, and a request written to it is one nobody can judge.
    pub fn new(target: &Target, connect: Duration, idle: Duration, trust: &Trust) -> Self {
        let (connector, scheme, authority) = match target {
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
        if matches!(target, Target::H2c(_)) {
            return Self(Arc::new(Way::Http2(http2(connector, idle), authority)));
        }
        let mut target = uri::Parts::default();
        (target.scheme, target.authority) = (Some(scheme), Some(authority));
        target.path_and_query = Some(PathAndQuery::from_static("/"));
        let target = Uri::from_parts(target).expect("scheme, authority and path are all there");
        Self(Arc::new(Way::Http1(Pool::new(connector, target, idle))))
    }

    /// Sends one request, of which nothing is left then, and waits for the response's head.
    ///
    /// Its target is taken for the path and query alone; where it goes is this upstream's affair.
    ///
    /// # Errors
    /// [`CallError`], which tells what may have happened.
    pub async fn call(&self, request: &mut Request<Body>) -> Result<Response<Flow>, CallError> {
        match &*self.0 {
            Way::Http1(pool) => {
                if request.uri().authority().is_some() {
                    *request.uri_mut() = Uri::from(path_of(request));
                }
                frame(request);
                pool.call(request).await
            }
            Way::Http2(client, authority) => {
                let mut target = uri::Parts::default();
                (target.scheme, target.authority) = (Some(Scheme::HTTP), Some(authority.clone()));
                target.path_and_query = Some(path_of(request));
                *request.uri_mut() = Uri::from_parts(target).expect("scheme, authority and path are all there");
                // There the authority says it, and a second word that differs would be malformed (RFC 9113 section 8.3.1).
                request.headers_mut().remove(HOST);
                // Made anew from the body.
                request.headers_mut().remove(CONTENT_LENGTH);
                let response = Box::pin(client.request(take(request))).await.map_err(sort)?;
                check(&response, false).map_err(CallError::Garbage)?;
                Ok(response.map(Flow::from))
            }
        }
    }
}

/// The length that is said of a body, once and as everybody reads it: no second field, no list, no leading zero.
pub fn announced(headers: &HeaderMap) -> Option<u64> {
    let mut said = headers.get_all(CONTENT_LENGTH).iter();
    let (Some(said), None) = (said.next(), said.next()) else { return None };
    let digits = said.to_str().ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))?;
    digits.parse().ok().filter(|_| digits == "0" || !digits.starts_with('0'))
}

fn take(request: &mut Request<Body>) -> Request<Body> {
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
        // A request that a pooled connection is proved to have taken no byte of goes to another one. hyper proves it
        // by handing the request back unwritten, so that this is no second sending.
        .retry_canceled_requests(true)
        .set_host(false)
        .build(connector)
}

fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    // The scheme says which port is meant where none is written; what is spoken on it is not this connector's affair.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(PROBE_AFTER));
    connector.set_keepalive_interval(Some(PROBE_EVERY));
    connector.set_keepalive_retries(Some(PROBES));
    connector
}

/// Says how the body is framed, whatever was said before. hyper would by itself, but for methods whose requests mostly have
/// none: there it sends only what is announced.
fn frame(request: &mut Request<Body>) {
    let length = if request.body().is_end_stream() { Some(0) } else { request.body().size_hint().exact() };
    let switches = request.headers().contains_key(UPGRADE);
    let headers = request.headers_mut();
    match length {
        // Most say so themselves.
        Some(_) if announced(headers) == length => {}
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

/// Over HTTP/2 two errors alone prove that nothing was sent: the connection was never made, or hyper hands the request back.
fn sort(error: Error) -> CallError {
    let handed_back =
        error.source().and_then(|source| source.downcast_ref::<hyper::Error>()).is_some_and(hyper::Error::is_canceled);
    if error.is_connect() || handed_back { CallError::NeverSent(error.into()) } else { CallError::Broken(error.into()) }
}

/// What hyper's client lets pass and no client of ours may see.
fn check(response: &Response<Incoming>, asked_to_switch: bool) -> Result<(), &'static str> {
    let status = response.status();
    let switched = status == StatusCode::SWITCHING_PROTOCOLS && asked_to_switch;
    if !(200..600).contains(&status.as_u16()) && !switched {
        return Err("a status that is no final one");
    }
    // Which of the two counts is what smuggled responses are made of (RFC 9112 section 6.3).
    if response.headers().contains_key(TRANSFER_ENCODING) && response.headers().contains_key(CONTENT_LENGTH) {
        return Err("both a length and a transfer coding");
    }
    let mut codings = response.headers().get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        (Some(_), _) => Err("a transfer coding other than chunked"),
    }
}
