//! The client of a connection.

use std::net::IpAddr;
use std::sync::Arc;

use crate::body::ConnectionGuards;
use crate::protocol::early_hints::EarlyHints;
use crate::tls::CertificateName;

/// The client at the other end of a connection.
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
    /// A new connection.
    pub fn new(peer: IpAddr, secure: bool) -> Self {
        Self { peer, secure, certificate: None, ties: ConnectionGuards::default(), early_hints: Arc::default() }
    }
}
