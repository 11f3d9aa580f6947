//! A connection for one request over HTTP/1.1. Its users limit the time.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;

use oncegate_trust::tls::HandshakeError;

/// The length of a response's body, at most. A page of 500 keys is shorter.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

pub type HttpError = Box<dyn Error + Send + Sync>;

pub struct HttpConnection(SendRequest<Full<Bytes>>);

impl HttpConnection {
    /// Opens a connection, with `tls` to a server that must show a certificate for this name.
    pub async fn open(
        address: impl ToSocketAddrs,
        tls: Option<&(Arc<ClientConfig>, ServerName<'static>)>,
    ) -> Result<Self, HttpError> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let stream = match tls {
            None => Either::Left(stream),
            Some((config, name)) => {
                let connecting = TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream);
                Either::Right(connecting.await.map_err(HandshakeError::from)?)
            }
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // The exchange gets the errors of its connection.
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// Sends the request, whose target is a path, and reads its response to the end.
    /// An error: there is no whole response, or it is longer than 4 MiB.
    pub async fn send(mut self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = self.0.send_request(request).await?.into_parts();
        Ok(Response::from_parts(head, Limited::new(body, BODY_BYTES_MAX).collect().await?.to_bytes()))
    }
}
