//! The endpoint that is probed, and connections to it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::uri::{Authority, PathAndQuery};
use http_body_util::Full;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::time::timeout;

use super::response::{ProbedResponse, ProbedResult};
use oncegate_http::http_connection::{HttpConnection, HttpError};
use oncegate_settings::{self as settings, UpstreamTarget};
use oncegate_telemetry::logs::format_chain;
use oncegate_trust::tls::{Authorities, Trust};

pub struct ProbedEndpoint {
    /// The host and the port of its URL.
    pub authority: Authority,
    pub(crate) path: PathAndQuery,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// The longest wait for a connection, and for a response.
    limit: Duration,
}

impl ProbedEndpoint {
    /// Reads an `http://` or `https://` URL. `authorities` are asked for only if it needs TLS.
    /// An error is the problem, beginning with a verb.
    pub fn parse(
        url: &str,
        authorities: impl FnOnce() -> Result<Authorities, String>,
        limit: Duration,
    ) -> Result<Self, String> {
        let (target, path) = settings::parse_service_url(url, "write `http://host:port/path`, or `https://` for TLS")?;
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
    pub fn is_loopback(&self) -> bool {
        let host = self.host();
        host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }

    /// Whether the URL names no path.
    pub fn is_whole_service(&self) -> bool {
        self.path == "/"
    }

    fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    /// Returns the URL without its query, which may have secrets.
    pub(crate) fn public_url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let query = if self.path.query().is_some() { "?…" } else { "" };
        format!("{scheme}://{}{}{query}", self.authority, self.path.path())
    }

    pub(crate) async fn connect(&self) -> Result<HttpConnection, String> {
        let default_port = if self.tls.is_some() { 443 } else { 80 };
        let address = (self.host(), self.authority.port_u16().unwrap_or(default_port));
        let opened = timeout(self.limit, HttpConnection::open(address, self.tls.as_ref())).await;
        opened.unwrap_or_else(|_| Err("no connection in time".into())).map_err(describe)
    }

    /// Sends the request, and reads its response to the end.
    pub(crate) async fn send(&self, connection: HttpConnection, request: Request<Full<Bytes>>) -> ProbedResult {
        let response = timeout(self.limit, connection.send(request)).await;
        let response = response.unwrap_or_else(|_| Err("no response in time".into())).map_err(describe)?;
        let (head, body) = response.into_parts();
        Ok(ProbedResponse { status: head.status, headers: head.headers, body })
    }
}

fn describe(error: HttpError) -> String {
    format_chain(error.as_ref())
}
