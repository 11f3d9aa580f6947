//! How a connection to the upstream is made: over TCP, with TLS on it or not, or through a socket in the file system.

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

use crate::gather;
use crate::tls::HandshakeError;

/// Makes connections to one upstream.
#[derive(Clone)]
pub(super) enum Connector {
    /// To a host and port, within this time.
    Tcp(HttpConnector, Duration),
    /// To a host and port, with a TLS handshake in which the service shows that it has this name, all within this time.
    Tls(HttpConnector, TlsConnector, ServerName<'static>, Duration),
    /// To this socket, whatever the URI says.
    Unix(Arc<Path>, Duration),
}

/// A connection's bytes.
pub(super) enum Stream {
    Tcp(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
    Unix(TokioIo<UnixStream>),
}

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Tcp(connector, _) | Self::Tls(connector, ..) => connector.poll_ready(cx).map_err(Into::into),
            Self::Unix(..) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        match self {
            Self::Tcp(connector, limit) => {
                let connecting = tokio::time::timeout(*limit, connector.call(uri));
                // Around the look-up of the name as well, which the connector's own limit leaves out.
                Box::pin(async move { Ok(Stream::Tcp(connecting.await??)) })
            }
            Self::Tls(connector, tls, name, limit) => {
                let (connecting, tls, name, limit) = (connector.call(uri), tls.clone(), name.clone(), *limit);
                Box::pin(async move {
                    let shaking = async {
                        let stream = connecting.await?.into_inner();
                        let stream = tls.connect(name, stream).await.map_err(HandshakeError::from)?;
                        Ok::<_, BoxError>(Stream::Tls(Box::new(TokioIo::new(stream))))
                    };
                    tokio::time::timeout(limit, shaking).await?
                })
            }
            Self::Unix(path, limit) => {
                let (path, limit) = (Arc::clone(path), *limit);
                Box::pin(async move {
                    let stream = tokio::time::timeout(limit, UnixStream::connect(&*path)).await??;
                    Ok(Stream::Unix(TokioIo::new(stream)))
                })
            }
        }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Self::Tcp(stream) => stream.connected(),
            Self::Tls(_) | Self::Unix(_) => Connected::new(),
        }
    }
}

/// Passes a call on to whichever stream it is.
macro_rules! on_stream {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self {
            Stream::Tcp($stream) => $call,
            Stream::Tls($stream) => $call,
            Stream::Unix($stream) => $call,
        }
    };
}

impl Read for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        on_stream!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl Write for Stream {
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
        on_stream!(self.get_mut(), stream => gather::poll_write(Pin::new(stream.inner_mut()), cx, bufs))
    }
}
