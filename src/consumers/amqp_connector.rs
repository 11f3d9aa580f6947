//! Opens connections to a broker, with TLS or without. It uses our own TLS and trust store; lapin would bring its own.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_rs::Tokio;
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use futures_util::Stream;
use futures_util::io::{AsyncRead, AsyncWrite};
use rustls::pki_types::ServerName;
use tokio::io::ReadBuf;
use tokio_rustls::TlsConnector;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};
use tokio_util::sync::CancellationToken;

use crate::tls::HandshakeError;

/// The runtime for lapin: tokio's, with connections opened here.
pub(super) type Runtime = async_rs::Runtime<RuntimeParts<Tokio, AmqpConnector>>;

/// Opens connections to one broker.
#[derive(Clone)]
pub(super) struct AmqpConnector {
    tokio: Tokio,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    cut: CancellationToken,
}

/// Returns a runtime for lapin on the current tokio runtime. With `tls`, the broker must show a certificate for this name.
/// Once `cut` is cancelled, reads on the connection fail: lapin keeps a thread for each connection that it believes is
/// intact.
pub(super) fn create_runtime(tls: Option<(TlsConnector, ServerName<'static>)>, cut: CancellationToken) -> Runtime {
    let tokio = Tokio::current();
    Runtime::new(RuntimeParts::new(tokio.clone(), AmqpConnector { tokio, tls, cut }))
}

/// A connection whose reads fail once `cut` completes.
struct Severable<T> {
    stream: T,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<T: tokio::io::AsyncRead + Unpin> tokio::io::AsyncRead for Severable<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<T: tokio::io::AsyncWrite + Unpin> tokio::io::AsyncWrite for Severable<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A byte stream in both directions, in cleartext or with TLS.
pub(super) trait BrokerStream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> BrokerStream for T {}

impl Reactor for AmqpConnector {
    type TcpStream = Compat<Box<dyn BrokerStream>>;
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
        let (connecting, tls) = (self.tokio.tcp_connect_addr(address), self.tls.clone());
        let cut = self.cut.clone();
        async move {
            let stream = Severable { stream: connecting.await?.into_inner(), cut: Box::pin(cut.cancelled_owned()) };
            let stream: Box<dyn BrokerStream> = match tls {
                None => Box::new(stream),
                Some((tls, name)) => {
                    let connected = tls.connect(name, stream).await;
                    Box::new(connected.map_err(|error| io::Error::other(HandshakeError::from(error)))?)
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
