//! The parameters of a PostgreSQL URL: libpq's, each with a verdict, and those of other programs, each with advice.

use std::net::IpAddr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host, LoadBalanceHosts, SslNegotiation};

use super::ParseResult;
use super::postgres_tls::TlsParameters;
use super::server_url::{decode_part, parse_port};

/// The decision about one of libpq's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterRule {
    /// Its value is used, with libpq's meaning.
    Taken,
    /// Each of these values is accepted and changes nothing, for this reason; all values if there are none. Any other
    /// value is refused: Oncegate would not do what it asks for.
    Ignored(&'static [&'static str], &'static str),
    /// It is refused, with this advice.
    Refused(&'static str),
}

const NO: &[&str] = &["0", "false", "off", "no"];
const NO_GSS: &str = "Oncegate has no GSSAPI";
const TLS_VERSIONS: &str = "Oncegate speaks TLS 1.2 and 1.3";

/// libpq's parameters up to PostgreSQL 18 (its documentation, section 32.1.2): those with each rule.
pub(super) const LIBPQ_PARAMETERS: &[(&[&str], ParameterRule)] = {
    use ParameterRule::{Ignored, Refused, Taken};
    &[
        (&["application_name", "channel_binding", "connect_timeout", "dbname", "fallback_application_name"], Taken),
        (&["host", "hostaddr", "keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval"], Taken),
        (&["load_balance_hosts", "options", "password", "port", "sslcert", "sslkey", "sslmode"], Taken),
        (&["sslnegotiation", "sslrootcert", "tcp_user_timeout", "user"], Taken),
        (&["client_encoding"], Ignored(&[], "Oncegate always speaks UTF-8")),
        (&["gssdelegation"], Ignored(NO, NO_GSS)),
        (&["gssencmode"], Ignored(&["disable", "prefer"], NO_GSS)),
        (&["gsslib", "krbsrvname"], Ignored(&[], NO_GSS)),
        (&["max_protocol_version"], Ignored(&[], "Oncegate speaks version 3.0, the lowest")),
        (&["min_protocol_version"], Ignored(&["3.0"], "Oncegate speaks version 3.0")),
        (
            &["oauth_client_id", "oauth_client_secret", "oauth_issuer", "oauth_scope"],
            Refused("Oncegate has no OAuth: write the token as the password, `${file:…}`"),
        ),
        (&["passfile", "scram_client_key", "scram_server_key"], Refused("write the password as `${file:…}`")),
        (&["replication"], Ignored(NO, "Oncegate opens no replication connection")),
        (
            &["require_auth"],
            Refused("Oncegate cannot promise it: write `channel_binding=require`, which only SCRAM has"),
        ),
        (&["requirepeer"], Refused("Oncegate does not check the owner of a socket: leave it out")),
        (&["requiressl"], Ignored(&["0"], "`sslmode` decides")),
        (
            &["service", "servicefile"],
            Refused("Oncegate reads no service file: write host, user and database into the URL"),
        ),
        (&["ssl_max_protocol_version"], Ignored(&["TLSv1.3"], TLS_VERSIONS)),
        (&["ssl_min_protocol_version"], Ignored(&["TLSv1", "TLSv1.1", "TLSv1.2"], TLS_VERSIONS)),
        (&["sslcertmode"], Ignored(&["allow"], "a certificate is shown if the server asks for one")),
        (&["sslcompression"], Ignored(&[], "no TLS library that is in use compresses")),
        (
            &["sslcrl", "sslcrldir"],
            Refused("Oncegate reads no revocation lists: leave it out, or have the server's certificate renewed often"),
        ),
        (&["sslkeylogfile"], Refused("Oncegate writes no secrets of TLS to a file: leave it out")),
        (&["sslpassword"], Refused("write an `sslkey` whose file is not encrypted, and that only Oncegate can read")),
        (&["sslsni"], Ignored(&["1"], "the host's name is in the handshake")),
        (
            &["target_session_attrs"],
            Ignored(&["any", "primary", "read-write"], "Oncegate always uses the host that takes writes"),
        ),
    ]
};

const FINDS_POOLERS: &str = "leave it out: Oncegate finds out by itself where it may prepare statements";
const OWN_SCHEMA: &str = "leave it out: Oncegate's tables are in a schema of their own, `oncegate`";
const CONNECTIONS: &str = "write `max_connections` beside `store.url`";
const TIMEOUT: &str = "write `timeout` beside `store.url`";
const VERIFY: &str = "write `sslmode=verify-full`";

/// Parameters of other programs: the program, its names, and what is right here.
const FOREIGN_PARAMETERS: &[(&str, &[&str], &str)] = &[
    ("Prisma", &["connection_limit"], CONNECTIONS),
    ("Prisma", &["pgbouncer"], FINDS_POOLERS),
    ("Prisma", &["pool_timeout", "socket_timeout"], TIMEOUT),
    ("Prisma", &["schema"], OWN_SCHEMA),
    (
        "Prisma",
        &["sslaccept"],
        "write `sslmode=verify-full` for `strict`, `sslmode=require` for `accept_invalid_certs`",
    ),
    ("Prisma", &["sslidentity"], "write `sslcert` and `sslkey`, two PEM files"),
    ("Prisma and asyncpg", &["statement_cache_size"], FINDS_POOLERS),
    ("JDBC and node-postgres", &["ssl"], VERIFY),
    ("node-postgres", &["uselibpqcompat"], "leave it out: `sslmode` has libpq's meaning here"),
    ("node-postgres", &["query_timeout", "statement_timeout"], TIMEOUT),
    ("JDBC", &["ApplicationName"], "write `application_name`"),
    ("JDBC", &["connectTimeout", "loginTimeout"], "write `connect_timeout`"),
    ("JDBC", &["currentSchema"], OWN_SCHEMA),
    ("JDBC", &["loadBalanceHosts"], "write `load_balance_hosts=random`"),
    ("JDBC", &["preparedStatementCacheQueries", "prepareThreshold"], FINDS_POOLERS),
    ("JDBC", &["reWriteBatchedInserts"], "leave it out: Oncegate batches its statements by itself"),
    ("JDBC", &["socketTimeout"], TIMEOUT),
    ("JDBC", &["sslfactory", "sslhostnameverifier"], VERIFY),
    ("JDBC", &["targetServerType"], "leave it out: Oncegate always uses the host that takes writes"),
    ("JDBC", &["tcpKeepAlive"], "write `keepalives=1`"),
    ("SQLAlchemy", &["prepared_statement_cache_size"], FINDS_POOLERS),
    ("asyncpg", &["command_timeout"], TIMEOUT),
    ("asyncpg", &["server_settings"], "write `options`"),
    ("lib/pq", &["binary_parameters"], FINDS_POOLERS),
    ("pgx", &["default_query_exec_mode", "statement_cache_capacity"], FINDS_POOLERS),
    ("pgx", &["pool_max_conns"], CONNECTIONS),
    ("pgx", &["pool_min_conns"], "leave it out: Oncegate connects as it needs"),
    ("Rails", &["pool"], CONNECTIONS),
    ("Rails", &["prepared_statements"], FINDS_POOLERS),
    ("rust-postgres", &["keepalives_retries"], "write `keepalives_count`"),
];

/// The parts of a URL, decoded.
#[derive(Default)]
pub(super) struct PostgresParameters {
    pub ports: Vec<u16>,
    pub tls: TlsParameters,
    /// All that the driver takes as it is, and the same for each host.
    pub settings: Config,
    hosts: Vec<Host>,
    addresses: Vec<IpAddr>,
    fallback_application_name: Option<String>,
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
    /// A name that is not known is not in a problem: it may be a piece of a password.
    pub fn set(&mut self, parameter: &str) -> ParseResult<()> {
        let (written, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let find = |names: &&'static [&str]| names.iter().find(|name| **name == written).copied();
        let Some((name, rule)) = LIBPQ_PARAMETERS.iter().find_map(|(names, rule)| Some((find(names)?, rule))) else {
            let find = |names: &[&'static str]| names.iter().find(|name| name.eq_ignore_ascii_case(written)).copied();
            let foreign =
                FOREIGN_PARAMETERS.iter().find_map(|(owner, names, instead)| Some((find(names)?, owner, instead)));
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
        let settings = &mut self.settings;
        match name {
            "application_name" => settings.application_name(value),
            "channel_binding" => settings.channel_binding(match &*value {
                "disable" => ChannelBinding::Disable,
                "prefer" => ChannelBinding::Prefer,
                "require" => ChannelBinding::Require,
                _ => return Err(wrong("`disable`, `prefer` or `require`")),
            }),
            // libpq's for no limit, which is the default here too.
            "connect_timeout" if number()? == 0 => settings,
            "connect_timeout" => settings.connect_timeout(seconds()?),
            "dbname" => settings.dbname(value),
            "keepalives" => settings.keepalives(number()? != 0),
            "keepalives_count" => settings.keepalives_retries(number()?),
            "keepalives_idle" => settings.keepalives_idle(seconds()?),
            "keepalives_interval" => settings.keepalives_interval(seconds()?),
            "load_balance_hosts" => settings.load_balance_hosts(match &*value {
                "disable" => LoadBalanceHosts::Disable,
                "random" => LoadBalanceHosts::Random,
                _ => return Err(wrong("`disable` or `random`")),
            }),
            "options" => settings.options(value),
            "password" => settings.password(value),
            "sslnegotiation" => settings.ssl_negotiation(match &*value {
                "direct" => SslNegotiation::Direct,
                "postgres" => SslNegotiation::Postgres,
                _ => return Err(wrong("`direct` or `postgres`")),
            }),
            "tcp_user_timeout" => settings.tcp_user_timeout(Duration::from_millis(number()?.into())),
            "user" => settings.user(value),
            "host" => return value.split(',').try_for_each(|host| self.add_host(host)),
            _ => {
                match name {
                    "fallback_application_name" => self.fallback_application_name = Some(value),
                    "hostaddr" => {
                        let addresses: Result<Vec<IpAddr>, _> = value.split(',').map(str::parse).collect();
                        self.addresses.extend(addresses.map_err(|_| wrong("an IP address"))?);
                    }
                    "port" => {
                        let ports: Option<Vec<_>> = value.split(',').map(parse_port).collect();
                        self.ports.extend(ports.ok_or_else(|| wrong("a number from 1 to 65535"))?);
                    }
                    "sslcert" => self.tls.certificate = Some(value),
                    "sslkey" => self.tls.key = Some(value),
                    "sslmode" => self.tls.mode = Some(value),
                    "sslrootcert" => self.tls.roots = Some(value),
                    _ => unreachable!("`{name}` is declared as taken and is not read"),
                }
                settings
            }
        };
        Ok(())
    }

    /// The settings for each host, with that host alone. `host`, `hostaddr` and `port` are lists of equal length, as in
    /// libpq; one port may stand for all.
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
        if let (None, Some(name)) = (settings.get_application_name(), &self.fallback_application_name) {
            settings.application_name(name);
        }
        let one = |place: usize| {
            let mut one = settings.clone();
            match hosts.get(place) {
                Some(Host::Tcp(name)) => one.host(name),
                Some(Host::Unix(path)) => one.host_path(path),
                None => &mut one,
            };
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
