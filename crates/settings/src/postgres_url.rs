//! The URL of a PostgreSQL store: libpq's form, read strictly.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use tokio_postgres::config::Host;

use super::postgres_parameters::PostgresParameters;
use super::server_url::{HostAndPort, UrlParts, check_percents, decode_part, parse_port};
use super::{ParseResult, PostgresTls, UNESCAPED, is_local};

/// The port of PostgreSQL where the URL names none.
const DEFAULT_PORT: u16 = 5432;

/// A checked URL: its hosts with the settings of a connection to each, and the files that belong to it.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("{self}")]
pub struct PostgresUrl {
    hosts: Vec<tokio_postgres::Config>,
    tls: PostgresTls,
    is_on_this_machine: bool,
    /// The text of the configuration where it has a `${file:…}`: the file is read again for new connections.
    written: Option<UrlText>,
    /// The folder that relative paths of the files of TLS belong to; `None` where there are none, or they belong to the
    /// working directory.
    folder: Option<Arc<Path>>,
}

/// The text of a URL in the configuration, and its reading.
#[derive(Clone)]
pub struct UrlText {
    /// The text, with its placeholders.
    pub text: Arc<str>,
    /// Fills in the files as they are now; `None` where one of them can be read only once. Blocks while it reads them.
    pub fill_in: fn(&str) -> ParseResult<Option<String>>,
}

impl PartialEq for UrlText {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for UrlText {}

impl PostgresUrl {
    /// Reads `postgres://user:password@host:port,…/database?parameters`; every part but the scheme and a host may be
    /// missing. A problem has nothing of the text but names of known parameters.
    pub fn parse(text: &str) -> ParseResult<Self> {
        let Some((_, rest)) = text.split_once("://") else {
            return Err("names no server: write `postgres://user@host/database`".into());
        };
        if text.contains(|character: char| character.is_whitespace() || character.is_control()) {
            return Err(
                "has white space in it: percent-encode it (a blank is `%20`), and leave it out at the ends".into()
            );
        }
        let UrlParts { credentials, hosts, path, query } = UrlParts::split(rest)?;
        let mut parameters = PostgresParameters::default();
        if let Some((user, password)) = credentials {
            check_percents(password)?;
            if let Some(user) = decode_part(user)? {
                parameters.settings.user(user);
            }
            if !password.is_empty() {
                parameters.settings.password(percent_decode_str(password).collect::<Vec<u8>>());
            }
        }
        for host in hosts.split(',').filter(|_| !hosts.is_empty()) {
            let (host, port) = split_port(host).map_err(|message| match credentials {
                // Without an `@` in it, it may be a user and the beginning of a password.
                None => format!("{message}{UNESCAPED}"),
                Some(_) => message.into(),
            })?;
            parameters.add_host(&decode_part(host)?.unwrap_or_default())?;
            parameters.ports.push(port.unwrap_or(DEFAULT_PORT));
        }
        if let Some(database) = decode_part(path)? {
            parameters.settings.dbname(database);
        }
        for parameter in query.unwrap_or_default().split('&').filter(|parameter| !parameter.is_empty()) {
            parameters.set(parameter)?;
        }
        Self::from_parameters(parameters)
    }

    fn from_parameters(mut parameters: PostgresParameters) -> Result<Self, String> {
        let tls = std::mem::take(&mut parameters.tls);
        let hosts = parameters.into_hosts()?;
        let is_on_this_machine = hosts.iter().all(is_on_this_machine);
        let is_socket = hosts.iter().all(|host| matches!(host.get_hosts(), [Host::Unix(_)]));
        let tls = PostgresTls::from_parameters(tls, is_on_this_machine, is_socket)?;
        Ok(Self { hosts, tls, is_on_this_machine, written: None, folder: None })
    }

    /// Places the files of TLS in this folder, those with whole paths excepted.
    pub fn with_files_in(mut self, folder: &Path) -> Self {
        let written = self.tls.clone();
        self.tls.place_files(folder);
        self.folder = (self.tls != written).then(|| folder.into());
        self
    }

    /// Keeps the text of the configuration, so that its files can be read again.
    pub fn with_written(self, written: Option<UrlText>) -> Self {
        Self { written, ..self }
    }

    /// The URL as the files of its text are now. Blocks while it reads them.
    /// A problem has nothing of the files.
    pub fn read_again(&self) -> ParseResult<Self> {
        let Some(written) = &self.written else { return Ok(self.clone()) };
        let Some(text) = (written.fill_in)(&written.text)? else { return Ok(self.clone()) };
        let read = Self::parse(&text)?.with_written(self.written.clone());
        Ok(match &self.folder {
            Some(folder) => read.with_files_in(folder),
            None => read,
        })
    }

    /// Whether both come from the same text, whatever its files have now.
    pub fn is_of_same_text(&self, other: &Self) -> bool {
        self == other || self.written.is_some() && self.written == other.written
    }

    /// Whether both lead to the same place as the same user, with the same settings: nothing but the password may
    /// differ.
    pub fn differs_in_password_alone(&self, other: &Self) -> bool {
        let without_password = |host: &tokio_postgres::Config| {
            let mut host = host.clone();
            host.password("");
            host
        };
        self.tls == other.tls && self.hosts.iter().map(without_password).eq(other.hosts.iter().map(without_password))
    }

    /// Whether a part of it comes from a file, or belongs to TLS and is in a file.
    pub fn has_files(&self) -> bool {
        self.written.is_some() || self.tls.files().next().is_some()
    }

    /// The driver's settings for each host, with that host alone.
    pub fn hosts(&self) -> &[tokio_postgres::Config] {
        &self.hosts
    }

    /// TLS towards the hosts.
    pub fn tls(&self) -> &PostgresTls {
        &self.tls
    }

    /// Whether all hosts are this machine, by their addresses.
    pub fn is_on_this_machine(&self) -> bool {
        self.is_on_this_machine
    }
}

/// The hosts, the ports and the database. Nothing else of a URL is ever shown.
impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        for (place, host) in self.hosts.iter().enumerate() {
            if place > 0 {
                f.write_str(",")?;
            }
            let port = host.get_ports().first().copied().unwrap_or(DEFAULT_PORT);
            match (host.get_hosts(), host.get_hostaddrs()) {
                ([Host::Tcp(name)], _) => write!(f, "{}", HostAndPort(name, port))?,
                ([Host::Unix(path)], _) => write!(f, "{}:{port}", path.display().to_string().replace('/', "%2F"))?,
                (_, addresses) => {
                    let address = addresses.first().map(IpAddr::to_string).unwrap_or_default();
                    write!(f, "{}", HostAndPort(&address, port))?;
                }
            }
        }
        match self.hosts.first().and_then(tokio_postgres::Config::get_dbname) {
            Some(database) => write!(f, "/{database}"),
            None => Ok(()),
        }
    }
}

/// Splits `host:port`. An empty port is none.
fn split_port(text: &str) -> Result<(&str, Option<u16>), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, after)) if after.is_empty() || after.starts_with(':') => (host, after.strip_prefix(':')),
            _ => return Err("has an address with a `[` and no `]` behind it"),
        },
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    match port.filter(|port| !port.is_empty()).map(parse_port) {
        None => Ok((host, None)),
        Some(Some(port)) => Ok((host, Some(port))),
        Some(None) => Err("has a port that is not a number from 1 to 65535"),
    }
}

fn is_on_this_machine(host: &tokio_postgres::Config) -> bool {
    // With a `hostaddr`, the driver connects to that, and `host` is only the name to verify.
    match (host.get_hosts(), host.get_hostaddrs()) {
        (_, [address, ..]) => address.is_loopback(),
        ([Host::Tcp(name)], []) => is_local(name),
        (hosts, []) => matches!(hosts, [Host::Unix(_)]),
    }
}

#[cfg(test)]
mod tests;
