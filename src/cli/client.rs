//! Asks a running instance over its admin listener.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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

use super::{ConfigFile, Ended};
use crate::config::{self, AdminToken, Overrides, Process};

/// No answer is longer, a page of 500 keys neither; who sends more is no instance of ours.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Where the instance is.
#[derive(Args)]
pub(super) struct Instance {
    #[command(flatten)]
    pub(super) file: ConfigFile,
    /// The instance's admin listener [env: ONCEGATE_ADMIN_LISTEN] [default: that of the configuration]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
}

impl Instance {
    /// Whether somebody has said where it is, and not only a file or a default.
    pub(super) fn is_named(&self) -> bool {
        self.admin.is_some() || std::env::var_os("ONCEGATE_ADMIN_LISTEN").is_some_and(|address| !address.is_empty())
    }

    /// The address to connect to. Nothing else of the configuration is looked at: secrets need not be there.
    pub(super) fn address(&self) -> Result<SocketAddr, Ended> {
        let overrides = Overrides { admin: self.admin.clone(), ..Overrides::default() };
        let file = self.file.config.as_deref().filter(|_| self.admin.is_none());
        let mut address = config::admin_listen(file, &overrides, &Process).map_err(Ended::Config)?;
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        Ok(address)
    }

    /// What the instance wants to be shown. Where a variable says it, the file is not looked at.
    pub(super) fn token(&self) -> Result<Option<AdminToken>, Ended> {
        let is_said = std::env::var_os("ONCEGATE_ADMIN_TOKEN").is_some_and(|token| !token.is_empty());
        let file = self.file.config.as_deref().filter(|_| !is_said);
        config::admin_token(file, &Process).map_err(Ended::Config)
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// Nobody listens there: the connection was refused.
    Gone,
    /// The connection broke, or what came was no answer.
    Broken(Box<dyn std::error::Error + Send + Sync>),
    /// It took longer than it may.
    TimedOut,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("nobody listens there"),
            Self::Broken(error) => error.fmt(f),
            Self::TimedOut => f.write_str("no answer in time"),
        }
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Unanswered {
    fn from(error: E) -> Self {
        Self::Broken(error.into())
    }
}

/// Asks, on a connection of its own.
pub(super) async fn ask(
    address: SocketAddr,
    method: Method,
    path: &str,
    token: Option<&AdminToken>,
    limit: Duration,
) -> Result<(StatusCode, Value), Unanswered> {
    ask_with(address, Request::builder().method(method).uri(path), Bytes::new(), token, limit).await
}

/// The same, with fields and a body.
pub(super) async fn ask_with(
    address: SocketAddr,
    request: request::Builder,
    body: Bytes,
    token: Option<&AdminToken>,
    limit: Duration,
) -> Result<(StatusCode, Value), Unanswered> {
    let asked = tokio::time::timeout(limit, exchange(address, request, body, token)).await;
    asked.unwrap_or(Err(Unanswered::TimedOut))
}

async fn exchange(
    address: SocketAddr,
    request: request::Builder,
    body: Bytes,
    token: Option<&AdminToken>,
) -> Result<(StatusCode, Value), Unanswered> {
    let stream = TcpStream::connect(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => Unanswered::Gone,
        _ => Unanswered::Broken(error.into()),
    })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut request = request.header(HOST, address.to_string());
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
    }
    let request = request.body(Full::new(body))?;
    let exchange = async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(Unanswered::Broken)?.to_bytes();
        Ok((head.status, serde_json::from_slice(&body)?))
    };
    // The connection ends with the exchange; what goes wrong with it, the exchange is told.
    let (answer, _) = tokio::join!(exchange, connection);
    answer
}
