//! The endpoint that is probed, and connections to it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::super::format_chain;
use super::response::{NoResponse, ProbedResponse, ProbedResult};
use crate::config::{self, UpstreamTarget};
use crate::tls::{Authorities, HandshakeError, Trust};

/// The length of a response's body, at most.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The endpoint that is probed.
pub(super) struct ProbedEndpoint {
    pub(super) authority: Authority,
    pub(super) path: PathAndQuery,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// The longest wait for a connection, and for a response.
    limit: Duration,
}

impl ProbedEndpoint {
    /// Reads an `http://` or `https://` URL. `authorities` are asked for only if it needs TLS.
    ///
    /// # Errors
    /// The problem, beginning with a verb.
    pub(super) fn parse(
        url: &str,
        authorities: impl FnOnce() -> Result<Authorities, String>,
        limit: Duration,
    ) -> Result<Self, String> {
        let (target, path) = config::parse_service_url(url, "write `http://host:port/path`, or `https://` for TLS")?;
        match target {
            UpstreamTarget::Http(authority) => Ok(Self { authority, path, tls: None, limit }),
            UpstreamTarget::Https(authority, name) => {
                let tls = Some((Trust::new(&authorities()?).config(), name));
                Ok(Self { authority, path, tls, limit })
            }
            UpstreamTarget::H2c(_) | UpstreamTarget::Unix(_) => Err("is not `http://` or `https://`".into()),
        }
    }

    /// Whether the endpoint is on this machine, by its name.
    pub(super) fn is_loopback(&self) -> bool {
        let host = self.host();
        host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }

    fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    /// Returns the URL without its query, which may have secrets.
    pub(super) fn public_url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let query = if self.path.query().is_some() { "?…" } else { "" };
        format!("{scheme}://{}{}{query}", self.authority, self.path.path())
    }

    /// Opens a connection.
    pub(super) async fn connect(&self) -> Result<ProbeConnection, NoResponse> {
        let connected = timeout(self.limit, self.open_connection()).await;
        let connected = connected.unwrap_or_else(|_| Err("no connection in time".into()));
        let sender = connected.map_err(|error| NoResponse(format_chain(error.as_ref())))?;
        Ok(ProbeConnection { sender, limit: self.limit })
    }

    async fn open_connection(&self) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error>> {
        let default_port = if self.tls.is_some() { 443 } else { 80 };
        let stream = TcpStream::connect((self.host(), self.authority.port_u16().unwrap_or(default_port))).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => start_http(stream).await,
            Some((config, name)) => {
                let connecting = TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream);
                start_http(connecting.await.map_err(HandshakeError::from)?).await
            }
        }
    }
}

async fn start_http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The exchange gets the errors of its connection.
    tokio::spawn(connection);
    Ok(sender)
}

/// An open connection for one request.
pub(super) struct ProbeConnection {
    sender: SendRequest<Full<Bytes>>,
    limit: Duration,
}

impl ProbeConnection {
    /// Sends the request, and reads its response to the end.
    pub(super) async fn send(mut self, mut request: Request<Full<Bytes>>) -> ProbedResult {
        let path = request.uri().path_and_query().cloned().map(Uri::from);
        *request.uri_mut() = path.unwrap_or_default();
        let exchange = async {
            let (head, body) = self.sender.send_request(request).await.map_err(explain)?.into_parts();
            let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
            let body = body.map_err(|error| NoResponse(format_chain(error.as_ref())))?.to_bytes();
            Ok(ProbedResponse { status: head.status, headers: head.headers, body })
        };
        timeout(self.limit, exchange).await.unwrap_or_else(|_| Err(NoResponse("no response in time".into())))
    }
}

fn explain(error: hyper::Error) -> NoResponse {
    NoResponse(format_chain(&error))
}
