//! Who asks.

use std::net::IpAddr;

use crate::body::Ties;

/// The client at the other end of a connection.
#[derive(Debug)]
pub struct Client {
    /// Its address, or that of a proxy before us.
    pub peer: IpAddr,
    /// Whether it speaks TLS to us.
    pub secure: bool,
    /// The requests on the connection that nobody needs once the client is gone.
    pub ties: Ties,
}

impl Client {
    /// A client that has not asked for anything yet.
    pub fn new(peer: IpAddr, secure: bool) -> Self {
        Self { peer, secure, ties: Ties::default() }
    }
}
