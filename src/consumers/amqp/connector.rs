//! Opens connections to a broker, with TLS or without. It uses our own TLS and trust store; lapin would bring its own.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use async_rs::Tokio;
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use futures_util::Stream;
use futures_util::io::{AsyncRead, AsyncWrite};
use rustix::net::Shutdown;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

use oncegate_trust::tls::HandshakeError;

/// The runtime for lapin: tokio's, with connections opened here.
pub(super) type Runtime = async_rs::Runtime<RuntimeParts<Tokio, AmqpConnector>>;

/// Opens connections to one broker.
#[derive(Clone)]
pub(super) struct AmqpConnector {
    tokio: Tokio,
    handle: Handle,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    cut: CancellationToken,
}

/// Returns a runtime for lapin on the current tokio runtime. With `tls`, the broker must show a certificate for this name.
/// Once `cut` is cancelled, the connection is shut down: lapin keeps a thread for each connection that it believes is intact.
pub(super) fn create_runtime(tls: Option<(TlsConnector, ServerName<'static>)>, cut: CancellationToken) -> Runtime {
    let (tokio, handle) = (Tokio::current(), Handle::current());
    Runtime::new(RuntimeParts::new(tokio.clone(), AmqpConnector { tokio, handle, tls, cut }))
}

impl Reactor for AmqpConnector {
    type TcpStream = Compat<Either<TcpStream, TlsStream<TcpStream>>>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.tokio.register(socket)
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.tokio.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.tokio.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let (connecting, this) = (self.tokio.tcp_connect_addr(address), self.clone());
        async move {
            let stream = connecting.await?.into_inner();
            let socket = stream.as_fd().try_clone_to_owned()?;
            // Awaited by nobody: `cut` is cancelled when the session ends.
            this.handle.spawn(async move {
                this.cut.cancelled().await;
                rustix::net::shutdown(socket, Shutdown::Both)
            });
            let stream = match this.tls {
                None => Either::Left(stream),
                Some((tls, name)) => {
                    let connected = tls.connect(name, stream).await;
                    Either::Right(connected.map_err(|error| io::Error::other(HandshakeError::from(error)))?)
                }
            };
            Ok(stream.compat())
        }
    }
}

impl fmt::Debug for AmqpConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AmqpConnector")
    }
}
