//! A client of a running instance's admin listener.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Method, Request, Response, StatusCode, request};
use http_body_util::Full;
use serde_json::Value;
use tokio::time::timeout;

use super::{CommandError, ConfigFile, DEFAULT_FILE, UNIT_FILE, describe_file, failed, is_absent};
use oncegate_admin as admin;
use oncegate_config::{self as config, Overrides, ProcessEnvironment};
use oncegate_http::http_connection::{HttpConnection, HttpError};
use oncegate_settings::AdminToken;

/// The time for the first response, which an instance gives from memory.
const CONNECT_MAX: Duration = Duration::from_secs(5);

const NOT_ONCEGATE: &str =
    "the program that answers there is not an instance of oncegate; say with --admin where one is";

/// The arguments that say where a running instance is.
#[derive(Args)]
pub(super) struct InstanceArguments {
    #[command(flatten)]
    pub(super) file: ConfigFile,
    /// The instance's admin listener [env: ONCEGATE_ADMIN_LISTEN] [default: that of the configuration]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// The service, where there are several [default: the only one of the configuration]
    #[arg(long, value_name = "NAME")]
    service: Option<Arc<str>>,
}

impl InstanceArguments {
    /// Whether the command line names the instance: a file, a variable or a default only say where one would be.
    pub(super) fn is_named(&self) -> bool {
        self.admin.is_some()
    }

    /// The file with the token and the services. The unit's is not for another instance that the command line names.
    fn file(&self) -> Option<PathBuf> {
        let Some(address) = &self.admin else { return self.file.path() };
        let is_of_unit = |file: &PathBuf| {
            let named = listens_at(None, Some(address.clone()));
            matches!((listens_at(Some(file), None), named), (Ok(own), Ok(named)) if own == named)
        };
        let of_unit = || Some(PathBuf::from(UNIT_FILE)).filter(|file| !is_absent(file)).filter(is_of_unit);
        self.file.path_or(&[DEFAULT_FILE]).or_else(of_unit)
    }

    /// Returns the address to connect to. It needs nothing else of the configuration: secrets may be missing.
    pub(super) fn address(&self) -> Result<SocketAddr, CommandError> {
        listens_at(self.file.path().filter(|_| self.admin.is_none()).as_deref(), self.admin.clone())
    }

    /// Returns the address at which an instance of Oncegate answers; `None` where nobody listens.
    pub(super) async fn find(&self) -> Result<Option<SocketAddr>, CommandError> {
        let address = self.address()?;
        match request_public(address, "/healthz", CONNECT_MAX).await {
            Ok((_, body)) if body["name"] == admin::NAME => Ok(Some(address)),
            Ok(_) => Err(failed(format!("{address}: {NOT_ONCEGATE}"))),
            Err(error) if is_refused(&error) => Ok(None),
            Err(error) => Err(failed(format!("{address}: {error}"))),
        }
    }

    /// Checks that an instance of Oncegate listens there, before it is sent a token; `None` where nobody listens. Each
    /// later response says whether it serves the service of the configuration file.
    pub(super) async fn connect(&self) -> Result<Option<Connected>, CommandError> {
        let Some(address) = self.find().await? else { return Ok(None) };
        let service = self.service();
        // A variable with the token comes before the file, which is then not read.
        let is_in_environment = std::env::var_os("ONCEGATE_ADMIN_TOKEN").is_some_and(|token| !token.is_empty());
        let file = self.file().filter(|_| !is_in_environment);
        Ok(Some(Connected {
            address,
            service: service?,
            token_source: match is_in_environment {
                true => "the token is that of ONCEGATE_ADMIN_TOKEN".to_owned(),
                false => describe_file(file.as_deref()),
            },
            token: config::admin_token(file.as_deref(), &ProcessEnvironment).map_err(CommandError::Config)?,
        }))
    }

    /// Returns the service that is named, or the only one of the file; `None` where neither says.
    pub(super) fn service(&self) -> Result<Option<Arc<str>>, CommandError> {
        if self.service.is_some() {
            return Ok(self.service.clone());
        }
        let names = self.file().map(|file| config::service_names(&file, &ProcessEnvironment)).transpose();
        let names = names.map_err(CommandError::Config)?.unwrap_or_default();
        Ok(names.first().filter(|_| names.len() == 1).map(Arc::clone))
    }

    /// Connects to the instance; it is an error if nobody listens there.
    pub(super) async fn require_instance(&self) -> Result<Connected, CommandError> {
        self.connect().await?.ok_or_else(|| self.nobody_listens())
    }

    pub(super) fn nobody_listens(&self) -> CommandError {
        self.address().map_or_else(|error| error, |address| failed(format!("{address}: {NOBODY_LISTENS}")))
    }
}

/// The address at which an instance with this file and this flag is reached.
fn listens_at(file: Option<&Path>, admin: Option<String>) -> Result<SocketAddr, CommandError> {
    let overrides = Overrides { admin, ..Overrides::default() };
    let mut address = config::admin_listen(file, &overrides, &ProcessEnvironment).map_err(CommandError::Config)?;
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Ok(address)
}

/// The name for the audit log; empty where no variable has one.
pub(super) fn user() -> OsString {
    ["ONCEGATE_ACTOR", "USER", "LOGNAME"].iter().find_map(std::env::var_os).unwrap_or_default()
}

/// An instance of Oncegate that requests of operators can be sent to.
pub(super) struct Connected {
    /// Its admin listener.
    pub(super) address: SocketAddr,
    /// The service that it should serve; `None` where no file says.
    service: Option<Arc<str>>,
    token: Option<AdminToken>,
    /// Says where the token is from, or would be.
    token_source: String,
}

impl Connected {
    /// Sends a request of an operator, on a connection of its own.
    pub(super) async fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<(StatusCode, Value), HttpError> {
        let mut request = Request::builder().method(method).uri(path);
        if let Ok(user) = HeaderValue::from_bytes(user().as_encoded_bytes()) {
            request = request.header(admin::ACTOR, user);
        }
        if let Some(service) = &self.service {
            request = request.header(admin::SERVICE, &**service);
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        let (status, mut answer) = exchange(limit, self.address, request, body).await?;
        if status == StatusCode::UNAUTHORIZED {
            answer["detail"] = format!("{}; {}", explain_refusal(status, &answer), self.token_source).into();
        }
        Ok((status, answer))
    }
}

/// The explanation of an answer that is a refusal.
pub(super) fn explain_refusal(status: StatusCode, answer: &Value) -> String {
    answer["detail"].as_str().map_or_else(|| format!("the instance answers {status}"), str::to_owned)
}

const NOBODY_LISTENS: &str = "nobody listens there: start the instance, or say with --admin where it is";

pub(super) fn is_refused(error: &HttpError) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Sends a request that needs no token, on a connection of its own.
pub(super) async fn request_public(
    address: SocketAddr,
    path: &str,
    limit: Duration,
) -> Result<(StatusCode, Value), HttpError> {
    exchange(limit, address, Request::get(path), Bytes::new()).await
}

async fn exchange(
    limit: Duration,
    address: SocketAddr,
    request: request::Builder,
    body: Bytes,
) -> Result<(StatusCode, Value), HttpError> {
    let response = send(limit, address, request, body).await?;
    Ok((response.status(), serde_json::from_slice(response.body()).map_err(|_| NOT_ONCEGATE)?))
}

/// Reads a text that needs no token.
pub(super) async fn read_public(address: SocketAddr, path: &str, limit: Duration) -> Result<String, HttpError> {
    let response = send(limit, address, Request::get(path), Bytes::new()).await?;
    Ok(String::from_utf8_lossy(response.body()).into_owned())
}

async fn send(
    limit: Duration,
    address: SocketAddr,
    request: request::Builder,
    body: Bytes,
) -> Result<Response<Bytes>, HttpError> {
    let request = request.header(HOST, address.to_string()).body(Full::new(body))?;
    let response = timeout(limit, async { HttpConnection::open(address, None).await?.send(request).await }).await;
    response.unwrap_or_else(|_| Err("no response in time".into())).map_err(|error| {
        if is_refused(&error) { io::Error::new(io::ErrorKind::ConnectionRefused, NOBODY_LISTENS).into() } else { error }
    })
}
