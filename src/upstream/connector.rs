//! Opens connections to the upstream: over TCP, with TLS or without, or through a Unix socket.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use crate::tls::HandshakeError;
use crate::write_coalesced;

/// Opens connections to one upstream.
#[derive(Clone)]
pub(super) enum Connector {
    /// To a host and port, within this time.
    Tcp(HttpConnector, Duration),
    /// To a host and port with TLS, where the certificate must be for this name, all within this time.
    Tls(HttpConnector, TlsConnector, ServerName<'static>, Duration),
    /// To this Unix socket, whatever the URI says.
    Unix(Arc<Path>, Duration),
}

/// An open connection to the upstream.
pub(super) enum UpstreamStream {
    Tcp(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
    Unix(TokioIo<UnixStream>),
}

/// The reason why a connection could not be made or broke.
pub(super) type ConnectionFailure = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for Connector {
    type Response = UpstreamStream;
    type Error = ConnectionFailure;
    type Future = Pin<Box<dyn Future<Output = Result<UpstreamStream, ConnectionFailure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionFailure>> {
        match self {
            Self::Tcp(connector, _) | Self::Tls(connector, ..) => connector.poll_ready(cx).map_err(Into::into),
            Self::Unix(..) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        match self {
            Self::Tcp(connector, limit) => {
                let connecting = tokio::time::timeout(*limit, connector.call(uri));
                // The limit includes the DNS lookup, which the connector's own limit leaves out.
                Box::pin(async move { Ok(UpstreamStream::Tcp(connecting.await??)) })
            }
            Self::Tls(connector, tls, name, limit) => {
                let (connecting, tls, name, limit) = (connector.call(uri), tls.clone(), name.clone(), *limit);
                Box::pin(async move {
                    let handshake = async {
                        let stream = connecting.await?.into_inner();
                        let stream = tls.connect(name, stream).await.map_err(HandshakeError::from)?;
                        Ok::<_, ConnectionFailure>(UpstreamStream::Tls(Box::new(TokioIo::new(stream))))
                    };
                    tokio::time::timeout(limit, handshake).await?
                })
            }
            Self::Unix(path, limit) => {
                let (path, limit) = (Arc::clone(path), *limit);
                Box::pin(async move {
                    let stream = tokio::time::timeout(limit, UnixStream::connect(&*path)).await??;
                    Ok(UpstreamStream::Unix(TokioIo::new(stream)))
                })
            }
        }
    }
}

impl Connection for UpstreamStream {
    fn connected(&self) -> Connected {
        match self {
            Self::Tcp(stream) => stream.connected(),
            Self::Tls(_) | Self::Unix(_) => Connected::new(),
        }
    }
}

/// Forwards a call to the stream of any variant.
macro_rules! on_stream {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self {
            UpstreamStream::Tcp($stream) => $call,
            UpstreamStream::Tls($stream) => $call,
            UpstreamStream::Unix($stream) => $call,
        }
    };
}

impl Read for UpstreamStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        on_stream!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl Write for UpstreamStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        on_stream!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn is_write_vectored(&self) -> bool {
        on_stream!(self, stream => stream.is_write_vectored())
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self.get_mut(), stream => write_coalesced::poll_write(Pin::new(stream.inner_mut()), cx, bufs))
    }
}
