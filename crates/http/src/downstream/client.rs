//! The two sides that meet in a connection: the client, and what answers its requests.

use std::net::IpAddr;
use std::sync::Arc;

use http::{Request, Response};
use rustls::ServerConfig;

use crate::body::client_body::ResponseWatch;
use crate::body::request_body::RequestBody;
use crate::body::{Body, ConnectionGuards};
use crate::protocol::early_hints::EarlyHints;
use crate::protocol::refusal::{ReachedLimit, Refusal};
use oncegate_trust::tls::CertificateName;

#[derive(Debug)]
pub struct ClientConnection {
    /// The peer's address: the client's, or that of a proxy before Oncegate.
    pub peer: IpAddr,
    /// Whether the connection uses TLS.
    pub secure: bool,
    /// The name in the client's verified certificate, if it has one.
    pub certificate: Option<Arc<CertificateName>>,
    /// The requests on the connection that end with it.
    pub ties: ConnectionGuards,
    /// The 103 responses to its current unguarded request, over HTTP/1.1.
    pub early_hints: Arc<EarlyHints>,
}

impl ClientConnection {
    pub fn new(peer: IpAddr, secure: bool) -> Self {
        Self { peer, secure, certificate: None, ties: ConnectionGuards::default(), early_hints: Arc::default() }
    }
}

/// The part of the program that answers the requests of clients.
pub trait RequestHandler: Send + Sync + 'static {
    /// Responds to a request, whatever happens. It is in a box, because each future that it passes through has room for
    /// it twice.
    fn handle(
        self: &Arc<Self>,
        request: Box<Request<RequestBody>>,
        client: &ClientConnection,
    ) -> impl Future<Output = Response<Body>> + Send;

    /// The answer to bytes that never became a request, or to a request whose body is not framed as it says.
    fn refuse(&self, refusal: Refusal) -> Response<Body>;

    /// Counts a connection or request that was refused because a limit was reached.
    fn count_overload(&self, limit: ReachedLimit);

    /// A watch over the responses of a new connection.
    fn response_watch(&self) -> ResponseWatch;

    /// The TLS configuration for new connections; `None` for cleartext.
    fn tls(&self) -> Option<Arc<ServerConfig>>;
}

/// A mark on a response: the service closes its connection after it, and may not read the rest of the request's body.
#[derive(Clone, Copy, Debug)]
pub struct ServiceCloses;
