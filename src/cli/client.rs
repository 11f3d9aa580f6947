//! A client of a running instance's admin listener.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, HOST};
use http::{Method, Request, StatusCode, request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::{CommandError, ConfigFile};
use crate::admin;
use crate::config::{self, AdminToken, Overrides, ProcessEnvironment};

/// The time for the first response, which an instance gives from memory.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// The length of a response, at most. A page of 500 keys is shorter; only another program sends more.
const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The arguments that say where a running instance is.
#[derive(Args)]
pub(super) struct InstanceArguments {
    #[command(flatten)]
    pub(super) file: ConfigFile,
    /// The instance's admin listener [env: ONCEGATE_ADMIN_LISTEN] [default: that of the configuration]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
}

impl InstanceArguments {
    /// Whether the command line names the instance: a file, a variable or a default only say where one would be.
    pub(super) fn is_named(&self) -> bool {
        self.admin.is_some()
    }

    /// Returns the address to connect to. It needs nothing else of the configuration: secrets may be missing.
    pub(super) fn address(&self) -> Result<SocketAddr, CommandError> {
        let overrides = Overrides { admin: self.admin.clone(), ..Overrides::default() };
        let file = self.file.path().filter(|_| self.admin.is_none());
        let mut address = config::admin_listen(file, &overrides, &ProcessEnvironment).map_err(CommandError::Config)?;
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        Ok(address)
    }

    /// Checks that an instance of Oncegate listens there, before it is sent a token. Each later response says whether it
    /// serves the service of the configuration file.
    pub(super) async fn connect(&self) -> Result<Connected, ConnectError> {
        let address = self.address().map_err(ConnectError::Config)?;
        let response = request_public(address, Method::GET, "/healthz", CONNECT_MAX).await;
        let (_, body) = response.map_err(|error| ConnectError::NoResponse(address, error))?;
        if body["name"] != admin::NAME {
            return Err(ConnectError::NoResponse(address, RequestError::NotOncegate));
        }
        let service = self.file.path().map(|file| config::service_name(file, &ProcessEnvironment)).transpose();
        let service = service.map_err(|problems| ConnectError::Config(CommandError::Config(problems)))?;
        Ok(Connected { address, service, token: self.token().map_err(ConnectError::Config)? })
    }

    /// Returns the token for the instance. A variable with the token comes before the file, which is then not read.
    fn token(&self) -> Result<Option<AdminToken>, CommandError> {
        let is_in_environment = std::env::var_os("ONCEGATE_ADMIN_TOKEN").is_some_and(|token| !token.is_empty());
        let file = self.file.path().filter(|_| !is_in_environment);
        config::admin_token(file, &ProcessEnvironment).map_err(CommandError::Config)
    }
}

/// An instance of Oncegate that requests of operators can be sent to.
pub(super) struct Connected {
    /// Its admin listener.
    pub(super) address: SocketAddr,
    /// The service that it should serve; `None` where no file says.
    service: Option<Arc<str>>,
    token: Option<AdminToken>,
}

impl Connected {
    /// Sends a request of an operator, on a connection of its own.
    pub(super) async fn request(
        &self,
        mut request: request::Builder,
        body: Bytes,
        limit: Duration,
    ) -> Result<(StatusCode, Value), RequestError> {
        if let Some(service) = &self.service {
            request = request.header(admin::SERVICE, &**service);
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        exchange_within(limit, self.address, request, body).await
    }
}

/// The reason why no instance can be used.
pub(super) enum ConnectError {
    /// There is no response from that address, or it is another program's.
    NoResponse(SocketAddr, RequestError),
    /// The configuration is wrong.
    Config(CommandError),
}

impl From<ConnectError> for CommandError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::NoResponse(address, error) => CommandError::Other(format!("{address}: {error}").into()),
            ConnectError::Config(error) => error,
        }
    }
}

/// The reason why there is no response.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The connection was refused: nobody listens there.
    Refused,
    /// The connection broke, or the response was not HTTP.
    Broken(Box<dyn std::error::Error + Send + Sync>),
    /// Another program has answered.
    NotOncegate,
    /// The response took too long.
    TimedOut,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("nobody listens there"),
            Self::Broken(error) => error.fmt(f),
            Self::NotOncegate => f.write_str(
                "the program that answers there is not an instance of oncegate; say with --admin where one is",
            ),
            Self::TimedOut => f.write_str("no response in time"),
        }
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for RequestError {
    fn from(error: E) -> Self {
        Self::Broken(error.into())
    }
}

/// Sends a request that needs no token, on a connection of its own.
pub(super) async fn request_public(
    address: SocketAddr,
    method: Method,
    path: &str,
    limit: Duration,
) -> Result<(StatusCode, Value), RequestError> {
    exchange_within(limit, address, Request::builder().method(method).uri(path), Bytes::new()).await
}

async fn exchange_within(
    limit: Duration,
    address: SocketAddr,
    request: request::Builder,
    body: Bytes,
) -> Result<(StatusCode, Value), RequestError> {
    let response = tokio::time::timeout(limit, exchange(address, request, body)).await;
    response.unwrap_or(Err(RequestError::TimedOut))
}

async fn exchange(
    address: SocketAddr,
    request: request::Builder,
    body: Bytes,
) -> Result<(StatusCode, Value), RequestError> {
    let stream = TcpStream::connect(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => RequestError::Refused,
        _ => RequestError::Broken(error.into()),
    })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = request.header(HOST, address.to_string()).body(Full::new(body))?;
    let exchange = async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await.map_err(RequestError::Broken)?.to_bytes();
        Ok((head.status, serde_json::from_slice(&body).map_err(|_| RequestError::NotOncegate)?))
    };
    // The connection ends with the exchange, which gets its errors.
    let (response, _) = tokio::join!(exchange, connection);
    response
}
