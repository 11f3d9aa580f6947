//! The parameters of a PostgreSQL URL: libpq's, each with a verdict, and those of other programs, each with advice.

use std::net::IpAddr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host, LoadBalanceHosts, SslNegotiation};

use super::postgres_tls::TlsParameters;
use super::server_url::{decode_part, parse_port};

/// The decision about one of libpq's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterRule {
    /// Its value is used, with libpq's meaning.
    Taken,
    /// Each of these values is accepted and changes nothing, for this reason; all values if there are none. Any other value is
    /// refused: Oncegate would not do what it asks for.
    Ignored(&'static [&'static str], &'static str),
    /// It is refused, with this advice.
    Refused(&'static str),
}

const NO_GSS: &str = "Oncegate has no GSSAPI";
const NO: &[&str] = &["0", "false", "off", "no"];

/// libpq's parameters up to PostgreSQL 18 (its documentation, section 32.1.2), in alphabetical order.
pub const LIBPQ_PARAMETERS: &[(&str, ParameterRule)] = {
    use ParameterRule::{Ignored, Refused, Taken};
    &[
        ("application_name", Taken),
        ("channel_binding", Taken),
        ("client_encoding", Ignored(&[], "Oncegate always speaks UTF-8")),
        ("connect_timeout", Taken),
        ("dbname", Taken),
        ("fallback_application_name", Taken),
        ("gssdelegation", Ignored(NO, NO_GSS)),
        ("gssencmode", Ignored(&["disable", "prefer"], NO_GSS)),
        ("gsslib", Ignored(&[], NO_GSS)),
        ("host", Taken),
        ("hostaddr", Taken),
        ("keepalives", Taken),
        ("keepalives_count", Taken),
        ("keepalives_idle", Taken),
        ("keepalives_interval", Taken),
        ("krbsrvname", Ignored(&[], NO_GSS)),
        ("load_balance_hosts", Taken),
        ("max_protocol_version", Ignored(&[], "Oncegate speaks version 3.0, the lowest")),
        ("min_protocol_version", Ignored(&["3.0"], "Oncegate speaks version 3.0")),
        ("oauth_client_id", Refused("Oncegate has no OAuth: write the token as the password, `${file:…}`")),
        ("oauth_client_secret", Refused("Oncegate has no OAuth: write the token as the password, `${file:…}`")),
        ("oauth_issuer", Refused("Oncegate has no OAuth: write the token as the password, `${file:…}`")),
        ("oauth_scope", Refused("Oncegate has no OAuth: write the token as the password, `${file:…}`")),
        ("options", Taken),
        ("passfile", Refused("write the password as `${file:…}`")),
        ("password", Taken),
        ("port", Taken),
        ("replication", Ignored(NO, "Oncegate opens no replication connection")),
        ("require_auth", Refused("Oncegate cannot promise it: write `channel_binding=require`, which only SCRAM has")),
        ("requirepeer", Refused("Oncegate does not check the owner of a socket: leave it out")),
        ("requiressl", Ignored(&["0"], "`sslmode` decides")),
        ("scram_client_key", Refused("write the password as `${file:…}`")),
        ("scram_server_key", Refused("write the password as `${file:…}`")),
        ("service", Refused("Oncegate reads no service file: write host, user and database into the URL")),
        ("servicefile", Refused("Oncegate reads no service file: write host, user and database into the URL")),
        ("ssl_max_protocol_version", Ignored(&["TLSv1.3"], "Oncegate speaks TLS 1.2 and 1.3")),
        ("ssl_min_protocol_version", Ignored(&["TLSv1", "TLSv1.1", "TLSv1.2"], "Oncegate speaks TLS 1.2 and 1.3")),
        ("sslcert", Taken),
        ("sslcertmode", Ignored(&["allow"], "a certificate is shown if the server asks for one")),
        ("sslcompression", Ignored(&[], "no TLS library that is in use compresses")),
        (
            "sslcrl",
            Refused("Oncegate reads no revocation lists: leave it out, or have the server's certificate renewed often"),
        ),
        (
            "sslcrldir",
            Refused("Oncegate reads no revocation lists: leave it out, or have the server's certificate renewed often"),
        ),
        ("sslkey", Taken),
        ("sslkeylogfile", Refused("Oncegate writes no secrets of TLS to a file: leave it out")),
        ("sslmode", Taken),
        ("sslnegotiation", Taken),
        ("sslpassword", Refused("write an `sslkey` whose file is not encrypted, and that only Oncegate can read")),
        ("sslrootcert", Taken),
        ("sslsni", Ignored(&["1"], "the host's name is in the handshake")),
        (
            "target_session_attrs",
            Ignored(&["any", "primary", "read-write"], "Oncegate always uses the host that takes writes"),
        ),
        ("tcp_user_timeout", Taken),
        ("user", Taken),
    ]
};

const FINDS_POOLERS: &str = "leave it out: Oncegate finds out by itself where it may prepare statements";
const OWN_SCHEMA: &str = "leave it out: Oncegate's tables are in a schema of their own, `oncegate`";
const CONNECTIONS: &str = "write `max_connections` beside `store.url`";
const TIMEOUT: &str = "write `timeout` beside `store.url`";
const VERIFY: &str = "write `sslmode=verify-full`";

/// Parameters of other programs: the name, the program, and what is right here.
const FOREIGN_PARAMETERS: &[(&str, &str, &str)] = &[
    ("connection_limit", "Prisma", CONNECTIONS),
    ("pgbouncer", "Prisma", FINDS_POOLERS),
    ("pool_timeout", "Prisma", TIMEOUT),
    ("schema", "Prisma", OWN_SCHEMA),
    ("socket_timeout", "Prisma", TIMEOUT),
    ("sslaccept", "Prisma", "write `sslmode=verify-full` for `strict`, `sslmode=require` for `accept_invalid_certs`"),
    ("sslidentity", "Prisma", "write `sslcert` and `sslkey`, two PEM files"),
    ("statement_cache_size", "Prisma and asyncpg", FINDS_POOLERS),
    ("ssl", "JDBC and node-postgres", VERIFY),
    ("uselibpqcompat", "node-postgres", "leave it out: `sslmode` has libpq's meaning here"),
    ("query_timeout", "node-postgres", TIMEOUT),
    ("statement_timeout", "node-postgres", TIMEOUT),
    ("ApplicationName", "JDBC", "write `application_name`"),
    ("connectTimeout", "JDBC", "write `connect_timeout`"),
    ("currentSchema", "JDBC", OWN_SCHEMA),
    ("loadBalanceHosts", "JDBC", "write `load_balance_hosts=random`"),
    ("loginTimeout", "JDBC", "write `connect_timeout`"),
    ("preparedStatementCacheQueries", "JDBC", FINDS_POOLERS),
    ("prepareThreshold", "JDBC", FINDS_POOLERS),
    ("reWriteBatchedInserts", "JDBC", "leave it out: Oncegate batches its statements by itself"),
    ("socketTimeout", "JDBC", TIMEOUT),
    ("sslfactory", "JDBC", VERIFY),
    ("sslhostnameverifier", "JDBC", VERIFY),
    ("targetServerType", "JDBC", "leave it out: Oncegate always uses the host that takes writes"),
    ("tcpKeepAlive", "JDBC", "write `keepalives=1`"),
    ("prepared_statement_cache_size", "SQLAlchemy", FINDS_POOLERS),
    ("command_timeout", "asyncpg", TIMEOUT),
    ("server_settings", "asyncpg", "write `options`"),
    ("binary_parameters", "lib/pq", FINDS_POOLERS),
    ("default_query_exec_mode", "pgx", FINDS_POOLERS),
    ("pool_max_conns", "pgx", CONNECTIONS),
    ("pool_min_conns", "pgx", "leave it out: Oncegate connects as it needs"),
    ("statement_cache_capacity", "pgx", FINDS_POOLERS),
    ("pool", "Rails", CONNECTIONS),
    ("prepared_statements", "Rails", FINDS_POOLERS),
    ("keepalives_retries", "rust-postgres", "write `keepalives_count`"),
];

/// The parts of a URL, decoded.
#[derive(Default)]
pub(super) struct PostgresParameters {
    pub user: Option<String>,
    pub password: Option<Vec<u8>>,
    pub database: Option<String>,
    pub ports: Vec<u16>,
    pub tls: TlsParameters,
    hosts: Vec<Host>,
    addresses: Vec<IpAddr>,
    application_name: Option<String>,
    fallback_application_name: Option<String>,
    /// All that the driver takes as it is.
    settings: Config,
}

impl PostgresParameters {
    /// Adds a host by its name, its address or the folder of its socket.
    pub fn add_host(&mut self, host: &str) -> Result<(), String> {
        if host.is_empty() {
            return Err("has an empty host".into());
        }
        self.hosts.push(if host.starts_with('/') { Host::Unix(host.into()) } else { Host::Tcp(host.into()) });
        Ok(())
    }

    /// Reads `name=value` of the query.
    ///
    /// # Errors
    /// The problem, beginning with a verb. A name that is not known is not in it: it may be a piece of a password.
    pub fn set(&mut self, parameter: &str) -> Result<(), String> {
        let (written, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let Some((name, rule)) = LIBPQ_PARAMETERS.iter().find(|(name, _)| *name == written) else {
            let foreign = FOREIGN_PARAMETERS.iter().find(|(name, ..)| name.eq_ignore_ascii_case(written));
            return Err(match foreign {
                Some((name, owner, instead)) => format!("has `{name}`, a parameter of {owner}: {instead}"),
                None => "has a parameter that libpq does not have: compare the names after the `?` with those of its \
                         documentation"
                    .into(),
            });
        };
        let value = decode_part(value)?.unwrap_or_default();
        match rule {
            ParameterRule::Taken => self.take(name, value.into()),
            ParameterRule::Refused(advice) => Err(format!("has `{name}`: {advice}")),
            ParameterRule::Ignored(accepted, _) if accepted.is_empty() || accepted.contains(&&*value) => Ok(()),
            ParameterRule::Ignored(accepted, why) => {
                let accepted = accepted.iter().map(|value| format!("`{name}={value}`")).collect::<Vec<_>>().join(", ");
                Err(format!("has a `{name}` that Oncegate cannot follow, as {why}: leave it out, or write {accepted}"))
            }
        }
    }

    fn take(&mut self, name: &'static str, value: String) -> Result<(), String> {
        if value.is_empty() {
            return Err(format!("has an empty `{name}`"));
        }
        let wrong = |right: &str| format!("has a `{name}` that is not right: write {right}");
        let number = || value.parse::<u32>().map_err(|_| wrong("a whole number"));
        let seconds = || number().map(|seconds| Duration::from_secs(seconds.into()));
        match name {
            "application_name" => self.application_name = Some(value),
            "channel_binding" => {
                self.settings.channel_binding(match &*value {
                    "disable" => ChannelBinding::Disable,
                    "prefer" => ChannelBinding::Prefer,
                    "require" => ChannelBinding::Require,
                    _ => return Err(wrong("`disable`, `prefer` or `require`")),
                });
            }
            // 0 is libpq's for no limit, which is the default here too.
            "connect_timeout" => {
                let limit = seconds()?;
                if !limit.is_zero() {
                    self.settings.connect_timeout(limit);
                }
            }
            "dbname" => self.database = Some(value),
            "fallback_application_name" => self.fallback_application_name = Some(value),
            "host" => {
                for host in value.split(',') {
                    self.add_host(host)?;
                }
            }
            "hostaddr" => {
                for address in value.split(',') {
                    self.addresses.push(address.parse().map_err(|_| wrong("an IP address"))?);
                }
            }
            "keepalives" => {
                self.settings.keepalives(number()? != 0);
            }
            "keepalives_count" => {
                self.settings.keepalives_retries(number()?);
            }
            "keepalives_idle" => {
                self.settings.keepalives_idle(seconds()?);
            }
            "keepalives_interval" => {
                self.settings.keepalives_interval(seconds()?);
            }
            "load_balance_hosts" => {
                self.settings.load_balance_hosts(match &*value {
                    "disable" => LoadBalanceHosts::Disable,
                    "random" => LoadBalanceHosts::Random,
                    _ => return Err(wrong("`disable` or `random`")),
                });
            }
            "options" => {
                self.settings.options(value);
            }
            "password" => self.password = Some(value.into()),
            "port" => {
                for port in value.split(',') {
                    self.ports.push(parse_port(port).ok_or_else(|| wrong("a number from 1 to 65535"))?);
                }
            }
            "sslcert" => self.tls.certificate = Some(value),
            "sslkey" => self.tls.key = Some(value),
            "sslmode" => self.tls.mode = Some(value),
            "sslnegotiation" => {
                self.settings.ssl_negotiation(match &*value {
                    "direct" => SslNegotiation::Direct,
                    "postgres" => SslNegotiation::Postgres,
                    _ => return Err(wrong("`direct` or `postgres`")),
                });
            }
            "sslrootcert" => self.tls.roots = Some(value),
            "tcp_user_timeout" => {
                self.settings.tcp_user_timeout(Duration::from_millis(number()?.into()));
            }
            "user" => self.user = Some(value),
            _ => unreachable!("`{name}` is declared as taken and is not read"),
        }
        Ok(())
    }

    /// The settings for each host, with that host alone. `host`, `hostaddr` and `port` are lists of equal length, as in libpq;
    /// one port may stand for all.
    pub fn into_hosts(self) -> Result<Vec<Config>, String> {
        let Self { hosts, addresses, ports, .. } = &self;
        let count = hosts.len().max(addresses.len());
        if count == 0 {
            return Err("has neither a host nor a `hostaddr`: write `postgres://user@host/database`".into());
        }
        if !hosts.is_empty() && !addresses.is_empty() && hosts.len() != addresses.len() {
            return Err("has not as many hosts as `hostaddr`s".into());
        }
        if ports.len() > 1 && ports.len() != count {
            return Err("has not as many ports as hosts".into());
        }
        let mut settings = self.settings.clone();
        if let Some(user) = &self.user {
            settings.user(user);
        }
        if let Some(password) = &self.password {
            settings.password(password);
        }
        if let Some(database) = &self.database {
            settings.dbname(database);
        }
        if let Some(name) = self.application_name.as_ref().or(self.fallback_application_name.as_ref()) {
            settings.application_name(name);
        }
        let one = |place: usize| {
            let mut one = settings.clone();
            match hosts.get(place) {
                Some(Host::Tcp(name)) => {
                    one.host(name);
                }
                Some(Host::Unix(path)) => {
                    one.host_path(path);
                }
                None => {}
            }
            if let Some(address) = addresses.get(place) {
                one.hostaddr(*address);
            }
            if let Some(port) = ports.get(place).or(ports.first()) {
                one.port(*port);
            }
            one
        };
        Ok((0..count).map(one).collect())
    }
}
