//! Asks a running instance over its admin listener.

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

use super::{ConfigFile, Ended};
use crate::admin;
use crate::config::{self, AdminToken, Overrides, Process};

/// Whether somebody is there, and who, is told at once.
const KNOCK_MAX: Duration = Duration::from_secs(5);
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
    /// Whether somebody has said that it is there: a file, a variable or a default only say where it would be.
    pub(super) fn is_named(&self) -> bool {
        self.admin.is_some()
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

    /// The instance, once it has said that it is one of ours, which is before it is shown anything. Whether it serves the
    /// service that a file is about, it says with each answer.
    pub(super) async fn meet(&self) -> Result<Met, NotMet> {
        let address = self.address().map_err(NotMet::Ended)?;
        let told = ask(address, Method::GET, "/healthz", KNOCK_MAX).await;
        let (_, told) = told.map_err(|why| NotMet::Unanswered(address, why))?;
        if told["name"] != admin::NAME {
            return Err(NotMet::Unanswered(address, Unanswered::Stranger));
        }
        let service = self.file.config.as_deref().map(|file| config::service_name(file, &Process)).transpose();
        let service = service.map_err(|problems| NotMet::Ended(Ended::Config(problems)))?;
        Ok(Met { address, service, token: self.token().map_err(NotMet::Ended)? })
    }

    /// What the instance wants to be shown. Where a variable says it, the file is not looked at.
    fn token(&self) -> Result<Option<AdminToken>, Ended> {
        let is_said = std::env::var_os("ONCEGATE_ADMIN_TOKEN").is_some_and(|token| !token.is_empty());
        let file = self.file.config.as_deref().filter(|_| !is_said);
        config::admin_token(file, &Process).map_err(Ended::Config)
    }
}

/// An instance that may be asked what is not for everybody.
pub(super) struct Met {
    /// Where it is.
    pub(super) address: SocketAddr,
    /// Whose instance it should be; `None` where no file says.
    service: Option<Arc<str>>,
    token: Option<AdminToken>,
}

impl Met {
    /// Asks as an operator, on a connection of its own.
    pub(super) async fn ask(
        &self,
        mut request: request::Builder,
        body: Bytes,
        limit: Duration,
    ) -> Result<(StatusCode, Value), Unanswered> {
        if let Some(service) = &self.service {
            request = request.header(admin::SERVICE, &**service);
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        exchange_within(limit, self.address, request, body).await
    }
}

/// Why an instance is not asked.
pub(super) enum NotMet {
    /// There is no answer from there, or a stranger's.
    Unanswered(SocketAddr, Unanswered),
    /// The configuration is wrong.
    Ended(Ended),
}

impl From<NotMet> for Ended {
    fn from(why: NotMet) -> Self {
        match why {
            NotMet::Unanswered(address, why) => Ended::Other(format!("{address}: {why}").into()),
            NotMet::Ended(ended) => ended,
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// Nobody listens there: the connection was refused.
    Gone,
    /// The connection broke, or what came was no answer.
    Broken(Box<dyn std::error::Error + Send + Sync>),
    /// Who answers does not speak as we do.
    Stranger,
    /// It took longer than it may.
    TimedOut,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("nobody listens there"),
            Self::Broken(error) => error.fmt(f),
            Self::Stranger => {
                f.write_str("who answers there is no instance of oncegate; say where one is with --admin")
            }
            Self::TimedOut => f.write_str("no answer in time"),
        }
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Unanswered {
    fn from(error: E) -> Self {
        Self::Broken(error.into())
    }
}

/// Asks what anybody may ask, on a connection of its own.
pub(super) async fn ask(
    address: SocketAddr,
    method: Method,
    path: &str,
    limit: Duration,
) -> Result<(StatusCode, Value), Unanswered> {
    exchange_within(limit, address, Request::builder().method(method).uri(path), Bytes::new()).await
}

async fn exchange_within(
    limit: Duration,
    address: SocketAddr,
    request: request::Builder,
    body: Bytes,
) -> Result<(StatusCode, Value), Unanswered> {
    let asked = tokio::time::timeout(limit, exchange(address, request, body)).await;
    asked.unwrap_or(Err(Unanswered::TimedOut))
}

async fn exchange(
    address: SocketAddr,
    request: request::Builder,
    body: Bytes,
) -> Result<(StatusCode, Value), Unanswered> {
    let stream = TcpStream::connect(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => Unanswered::Gone,
        _ => Unanswered::Broken(error.into()),
    })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = request.header(HOST, address.to_string()).body(Full::new(body))?;
    let exchange = async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(Unanswered::Broken)?.to_bytes();
        Ok((head.status, serde_json::from_slice(&body).map_err(|_| Unanswered::Stranger)?))
    };
    // The connection ends with the exchange; what goes wrong with it, the exchange is told.
    let (answer, _) = tokio::join!(exchange, connection);
    answer
}
