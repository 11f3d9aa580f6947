//! Requests on a connection over HTTP/2, which many share.

use std::error::Error;
use std::future::poll_fn;
use std::iter::successors;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, HOST};
use http::uri::Authority;
use http::{Request, Uri};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::connector::{ConnectionFailure, UpstreamStream};
use super::held_end::HeldEndStream;
use super::open_streams::OpenStreams;
use super::{CallError, path_of};
use crate::body::Body;

/// A connection that takes many requests at once, as many as its service allows. A task of its own drives it, until all
/// its handles are gone and its last response has been read.
#[derive(Clone)]
pub(super) struct SharedConnection {
    pub(super) sender: SendRequest<Body>,
    pub(super) streams: Arc<OpenStreams>,
}

impl SharedConnection {
    pub(super) async fn new(stream: UpstreamStream) -> Result<Self, ConnectionFailure> {
        // One stream until the service has said how many it takes.
        let streams = OpenStreams::new(1);
        let stream = TokioIo::new(HeldEndStream::new(stream, Arc::clone(&streams)));
        let (sender, connection) =
            Builder::new(TokioExecutor::new()).initial_max_send_streams(1).handshake(stream).await?;
        let seen = Arc::clone(&streams);
        let mut connection = Box::pin(connection);
        // Its requests get the error that it ends with.
        tokio::spawn(poll_fn(move |cx| {
            let end = connection.as_mut().poll(cx);
            // A connection that has ended returns the requests that it is given, and they take another one.
            seen.set_max(if end.is_ready() { usize::MAX } else { connection.current_max_send_streams() });
            end
        }));
        Ok(Self { sender, streams })
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.sender.is_closed() && !self.streams.is_lost()
    }
}

/// Gives a request the form that HTTP/2 has: the host, which is the upstream's where the request names none, is part of
/// the target.
pub(super) fn shape_request(request: &mut Request<Body>, upstream: &Uri) {
    let host = request.headers().get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut target = upstream.clone().into_parts();
    target.authority = host.or(target.authority);
    target.path_and_query = Some(path_of(request));
    *request.uri_mut() = Uri::from_parts(target).expect("scheme, authority and path are all there");
    // `:authority` replaces it; a `Host` that differs would make the request malformed (RFC 9113 section 8.3.1).
    request.headers_mut().remove(HOST);
    // hyper sets it from the body.
    request.headers_mut().remove(CONTENT_LENGTH);
}

/// Sorts the failure of a request of which something was written. Two of the service's frames prove that it processed
/// nothing of the request (RFC 9113 section 8.7): a reset with REFUSED_STREAM, and a GOAWAY whose last stream is an
/// earlier one. h2 fails the later streams alone with that GOAWAY: when a connection ends otherwise, its streams get
/// other errors.
pub(super) fn classify_failure(error: hyper::Error) -> CallError {
    let chain = || successors(Some(&error as &(dyn Error + 'static)), |&error| error.source());
    let is_unprocessed = |error: &h2::Error| {
        error.is_remote()
            && (error.is_go_away() || error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM))
    };
    match chain().filter_map(<dyn Error>::downcast_ref::<h2::Error>).any(is_unprocessed) {
        true => CallError::Unprocessed(error.into()),
        false => CallError::Broken(error.into()),
    }
}
