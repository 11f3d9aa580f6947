//! Opens connections to the upstream: over TCP, with TLS or without, or through a Unix socket.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Uri;
use http::uri::Authority;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ProtocolVersion;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufRead, DuplexStream};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use crate::lingering_stream::LingeringStream;
use crate::transport::Transport;
use oncegate_trust::tls::{HandshakeError, ServiceTls};

/// The longest wait for a service's verdict on the proxy's certificate, see [`wait_for_verdict`]: more than the round
/// trip to any place on Earth. Services that send no session tickets cost this much for each new connection.
const VERDICT_MAX: Duration = Duration::from_millis(300);

/// Opens connections to one upstream, each within a time limit.
pub(super) struct Connector {
    pub(super) kind: ConnectorKind,
    pub(super) limit: Duration,
    /// Whether nothing is sent to a private address, whatever the host's name leads to.
    pub(super) is_public: bool,
}

/// The way to an upstream.
pub(super) enum ConnectorKind {
    /// To a host and port.
    Tcp(HttpConnector),
    /// To a host and port with TLS, where the certificate must be for this name.
    Tls(HttpConnector, ServiceTls, ServerName<'static>),
    /// To this Unix socket, whatever the URI says.
    Unix(Arc<Path>),
    /// To a host and port of a simulated network.
    Memory(Arc<dyn MemoryNetwork>, Authority),
}

/// A network within this process, for simulations.
pub trait MemoryNetwork: fmt::Debug + Send + Sync {
    /// Opens a connection to a host and port.
    fn connect(&self, authority: &Authority) -> Pin<Box<dyn Future<Output = io::Result<DuplexStream>> + Send>>;
}

/// The protocols that a TLS connection offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AlpnOffer {
    Both,
    /// HTTP/1.1 alone: for requests that ask for another protocol by `Upgrade`, which HTTP/2 does not have.
    Http1,
}

/// An open connection to the upstream. An answer that came before a write failed is read.
pub(super) type UpstreamStream = LingeringStream<Transport>;

/// The reason why a connection could not be made or broke.
pub(super) type ConnectionFailure = Box<dyn std::error::Error + Send + Sync>;

impl Connector {
    /// Opens a connection. The limit includes the DNS lookup, which the TCP connector's own limit leaves out, and the
    /// TLS handshake.
    pub(super) async fn connect(&self, uri: Uri, offer: AlpnOffer) -> Result<UpstreamStream, ConnectionFailure> {
        timeout(self.limit, self.connect_at_any_time(uri, offer)).await?.map(LingeringStream::new)
    }

    async fn connect_at_any_time(&self, uri: Uri, offer: AlpnOffer) -> Result<Transport, ConnectionFailure> {
        match &self.kind {
            ConnectorKind::Tcp(connector) => Ok(Transport::Tcp(connect_tcp(connector, uri).await?)),
            ConnectorKind::Tls(connector, service, name) => {
                let config = match offer {
                    AlpnOffer::Both => &service.negotiated,
                    AlpnOffer::Http1 => &service.http1,
                };
                let stream = connect_tcp(connector, uri).await?;
                if self.is_public && !is_public(stream.peer_addr()?.ip()) {
                    return Err(PRIVATE.into());
                }
                let connecting = TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream);
                let mut stream = connecting.await.map_err(HandshakeError::from)?;
                if service.asks_for_certificate() {
                    wait_for_verdict(&mut stream).await.map_err(HandshakeError::from)?;
                }
                Ok(Transport::Tls(Box::new(stream.into())))
            }
            ConnectorKind::Unix(path) => Ok(Transport::Unix(UnixStream::connect(path).await?)),
            ConnectorKind::Memory(network, authority) => Ok(Transport::Memory(network.connect(authority).await?)),
        }
    }
}

/// The failure of a connection to a vendor whose name leads into a private network: somebody's DNS has been changed.
const PRIVATE: &str = "the host's name leads to a private address, and the configuration does not name that";

/// Whether an address is one of the Internet: not of this machine, of a private network or of a link (RFC 6890).
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            let is_shared = first == 100 && (64..128).contains(&second);
            !(v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_broadcast() || v4.is_multicast())
                && !(first == 0 || first >= 240 || is_shared || (first == 198 && (18..20).contains(&second)))
        }
        IpAddr::V6(v6) => {
            // Those of IPv4 in it, by a translator (RFC 6052) or 6to4 (RFC 3056), may be any.
            let [first, second, ..] = v6.segments();
            let is_translated = first == 0x2002 || (first == 0x64 && second == 0xff9b);
            let is_local = is_translated || v6.is_loopback() || v6.is_unspecified() || v6.is_unique_local();
            !(is_local || v6.is_unicast_link_local() || v6.is_multicast())
        }
    }
}

async fn connect_tcp(connector: &HttpConnector, uri: Uri) -> Result<TcpStream, ConnectionFailure> {
    let mut connector = connector.clone();
    poll_fn(|cx| connector.poll_ready(cx)).await?;
    Ok(connector.call(uri).await?.into_inner())
}

/// Waits for a service's verdict on the proxy's certificate, or on its absence.
///
/// In TLS 1.3 the client's handshake ends before the service has looked at the certificate. A refusal that comes after
/// the request was written would leave its outcome unknown, although nothing was executed. Most services send session
/// tickets once the handshake has ended on their side too.
async fn wait_for_verdict(stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
    if stream.get_ref().1.protocol_version() != Some(ProtocolVersion::TLSv1_3) {
        return Ok(());
    }
    let verdict = poll_fn(|cx| {
        // Bytes stay in the buffer for their reader.
        match Pin::new(&mut *stream).poll_fill_buf(cx).map_ok(<[u8]>::is_empty) {
            Poll::Ready(Ok(true)) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Poll::Ready(result) => Poll::Ready(result.map(drop)),
            Poll::Pending if stream.get_ref().1.tls13_tickets_received() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    });
    timeout(VERDICT_MAX, verdict).await.unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_not_of_the_internet() {
        for address in
            ["1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "2606:4700::1", "::ffff:8.8.8.8"]
        {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.168.1.1",
            "224.0.0.1",
            "198.18.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::1",
            "fc00::1",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }
}
