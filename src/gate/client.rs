//! The client of a connection.

use std::net::IpAddr;

use crate::body::ConnectionGuards;

/// The client at the other end of a connection.
#[derive(Debug)]
pub struct ClientConnection {
    /// The peer's address: the client's, or that of a proxy before Oncegate.
    pub peer: IpAddr,
    /// Whether the connection uses TLS.
    pub secure: bool,
    /// The requests on the connection that end with it.
    pub ties: ConnectionGuards,
}

impl ClientConnection {
    /// A new connection.
    pub fn new(peer: IpAddr, secure: bool) -> Self {
        Self { peer, secure, ties: ConnectionGuards::default() }
    }
}
