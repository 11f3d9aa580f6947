//! Reads and checks the file, and all of its tables but the routes and the consumers.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::environment::Environment;
use super::problem::{ConfigProblem, ConfigProblems, line_and_column};
use super::reader::{ConfigReader, ExternalValue, Section, Text};
use super::route_context::RouteContext;
use super::routes;
use super::scope::ProofSources;
use super::units;
use super::upstream_tls::SystemAuthorities;
use super::value_parsers::{socket_address, upstream_target};
use super::wording::syntax_hint;
use super::{
    AdminToken, Config, LogConfig, LogFormat, Overrides, RedisServer, STORE_CONNECTIONS_MIN, StoreConfig,
    StoreLocation, UpstreamTarget, admin, consumers, cors, file_access, jwt, limits, otlp, postgres_client_tls, tls,
    warnings,
};
use crate::domain::fingerprint::{Secret, Secrets};
use crate::tls::{Authorities, Trust};

/// 128 bits, if they are random. With a shorter secret, somebody could find a short body by trying all secrets.
const SECRET_BYTES_MIN: usize = 16;

/// A PostgreSQL server allows 100 by default; no instance needs more than this.
const CONNECTIONS_MAX: usize = 1000;

pub(super) fn load(
    file: Option<&Path>,
    overrides: &Overrides,
    environment: &dyn Environment,
) -> Result<Config, ConfigProblems> {
    let name = file.map(|file| file.display().to_string());
    let text = read_text(file, &name, environment)?;
    let table = parse_toml(&text, &name)?;
    let built_in = DeTable::parse(routes::BUILT_IN).expect("the built-in route is TOML");
    let reader = ConfigReader::new(name.as_deref(), &text, environment);
    let flags = flag_defaults(overrides);
    let external_values = ExternalValues { overrides, environment };
    let config = read_config(&reader, table.get_ref(), built_in.get_ref(), &flags, &external_values);
    match (config, reader.into_problems()) {
        (_, Some(problems)) => Err(problems),
        (Some(mut config), None) => {
            config.warnings.extend(file_access::warnings(file, table.get_ref(), &config.store.location, environment));
            Ok(config)
        }
        (None, None) => unreachable!("a missing value has its problem"),
    }
}

pub(super) fn admin_listen(
    file: Option<&Path>,
    overrides: &Overrides,
    environment: &dyn Environment,
) -> Result<SocketAddr, ConfigProblems> {
    read_part(file, environment, |top| {
        let section = top.table("admin");
        let external_values = ExternalValues { overrides, environment };
        let external = external_values.flag("listen", "--admin", &overrides.admin, "ONCEGATE_ADMIN_LISTEN");
        admin::read_address(&section.with_external(external)).map(|found| found.value)
    })
}

pub(super) fn admin_token(
    file: Option<&Path>,
    environment: &dyn Environment,
) -> Result<Option<AdminToken>, ConfigProblems> {
    read_part(file, environment, |top| {
        let external_values = ExternalValues { overrides: &Overrides::default(), environment };
        let section = top.table("admin").with_external(external_values.variable("token", "ONCEGATE_ADMIN_TOKEN"));
        let store = top.table("store").with_external(external_values.variable("url", "ONCEGATE_STORE_URL"));
        let store = store.text("url").and_then(|url| StoreLocation::parse(&url.value).ok());
        admin::read_client_token(&section, store.as_ref(), environment)
    })
}

pub(super) fn service_name(file: &Path, environment: &dyn Environment) -> Result<Arc<str>, ConfigProblems> {
    read_part(Some(file), environment, |top| top.parsed("service", parse_service).map(|found| found.value))
}

/// Reads one value of a file, whatever problems the rest of it has.
fn read_part<T>(
    file: Option<&Path>,
    environment: &dyn Environment,
    read: impl FnOnce(Section<'_>) -> Option<T>,
) -> Result<T, ConfigProblems> {
    let name = file.map(|file| file.display().to_string());
    let text = read_text(file, &name, environment)?;
    let table = parse_toml(&text, &name)?;
    let reader = ConfigReader::new(name.as_deref(), &text, environment);
    match read(reader.top(table.get_ref())) {
        Some(found) => Ok(found),
        None => Err(reader.into_problems().expect("a missing value has its problem")),
    }
}

fn read_text(
    file: Option<&Path>,
    name: &Option<String>,
    environment: &dyn Environment,
) -> Result<String, ConfigProblems> {
    let Some(path) = file else { return Ok(String::new()) };
    environment.read(path).map_err(|error| file_problem(name, None, format!("cannot be read: {error}")))
}

fn parse_toml<'a>(text: &'a str, name: &Option<String>) -> Result<Spanned<DeTable<'a>>, ConfigProblems> {
    DeTable::parse(text).map_err(|error| {
        // Not the error's own `Display`, which prints the line: there may be a password in it.
        let position = error.span().map(|span| line_and_column(text, span.start));
        let message = error.message().replace('\n', ", ");
        let hint = error.span().and_then(|span| syntax_hint(text, span.start));
        file_problem(name, position, hint.map_or(message.clone(), |hint| format!("{message} ({hint})")))
    })
}

/// The values for `[defaults]` that flags give.
fn flag_defaults(overrides: &Overrides) -> DeTable<'_> {
    let mut defaults = DeTable::new();
    if let Some(scope) = &overrides.scope {
        let mut parts = DeArray::new();
        scope.split(',').for_each(|part| parts.push(Spanned::new(0..0, DeValue::String(part.trim().into()))));
        defaults.insert(Spanned::new(0..0, "scope".into()), Spanned::new(0..0, DeValue::Array(parts)));
    }
    defaults
}

/// A problem of the file as a whole.
fn file_problem(file: &Option<String>, position: Option<(usize, usize)>, message: String) -> ConfigProblems {
    ConfigProblems(vec![ConfigProblem {
        file: file.as_deref().map(Into::into),
        position,
        path: String::new(),
        message,
    }])
}

/// The values from outside of the file: flags and variables.
struct ExternalValues<'a> {
    overrides: &'a Overrides,
    environment: &'a dyn Environment,
}

impl ExternalValues<'_> {
    fn flag(
        &self,
        key: &'static str,
        flag: &'static str,
        value: &Option<String>,
        variable: &'static str,
    ) -> Vec<ExternalValue> {
        let from_flag = value.clone().map(|value| ExternalValue { key, from: flag, value });
        from_flag.into_iter().chain(self.variable(key, variable)).collect()
    }

    fn variable(&self, key: &'static str, variable: &'static str) -> Vec<ExternalValue> {
        let value = self.environment.variable(variable).filter(|value| !value.is_empty());
        value.map(|value| ExternalValue { key, from: variable, value }).into_iter().collect()
    }
}

fn read_config<'a>(
    reader: &'a ConfigReader<'a>,
    table: &'a DeTable<'a>,
    built_in: &'a DeTable<'a>,
    flag_defaults: &'a DeTable<'a>,
    external_values: &ExternalValues<'_>,
) -> Option<Config> {
    let flags = external_values.overrides;
    let mut external = external_values.flag("listen", "--listen", &flags.listen, "ONCEGATE_LISTEN");
    external.extend(external_values.flag("upstream", "--upstream", &flags.upstream, "ONCEGATE_UPSTREAM"));
    let top = reader.top(table).with_external(external);
    let listen = top.parsed("listen", socket_address);
    let mut external = external_values.flag("listen", "--admin", &flags.admin, "ONCEGATE_ADMIN_LISTEN");
    external.extend(external_values.variable("token", "ONCEGATE_ADMIN_TOKEN"));
    let admin_section = top.table("admin").with_external(external);
    let external = external_values.flag("url", "--store", &flags.store, "ONCEGATE_STORE_URL");
    let store_section = top.table("store").with_external(external);
    let location = store_section.text("url").and_then(|url| StoreLocation::parse(&url.value).ok());
    let admin = admin::read(&admin_section, &listen, location.as_ref(), external_values.environment);
    let addresses = [
        ("listen", listen.as_ref().map(|found| found.value)),
        ("admin.listen", admin.as_ref().map(|admin| admin.listen)),
    ];
    let listeners: Vec<_> = addresses.into_iter().filter_map(|(key, address)| Some((key, address?))).collect();
    let upstream = top.text("upstream").and_then(|text| upstream_target(&top, text, &listeners));
    let service = top.parsed("service", parse_service);
    let secrets = read_secrets(&top);
    let trusted_proxies = top.list("trusted_proxies", parse_network);
    let refuse_unguarded = top.choice("unguarded", |word| match word {
        "pass" => Some(false),
        "refuse" => Some(true),
        _ => None,
    });
    let drain_delay = top.duration("drain_delay");
    let drain_timeout = top.duration_above_zero("drain_timeout");
    let cors = cors::read(&top.table("cors"));
    let problem_base = top.parsed("problem_base", parse_problem_base);
    let tls = tls::read(&top.table("tls"));
    let jwt = jwt::read(&top.table("jwt"));
    let limits = limits::read(&top.table("limits"));
    let system_authorities = SystemAuthorities::new(external_values.environment);
    let store = read_store(&store_section, &secrets, &system_authorities);
    let cache = top.table("cache");
    let cache_memory = cache.parsed("memory", units::parse_size);
    let cache_redis = cache.text("redis").and_then(|url| match RedisServer::parse(&url.value) {
        Ok(server) => Some(server),
        // The problem does not show the text, which may hold a password.
        Err(message) => {
            reader.problem(&url.position, message);
            None
        }
    });
    let telemetry = top.table("telemetry").with_external(external_values.variable("log", "ONCEGATE_LOG"));
    let (log, otlp) = (read_log(&telemetry), otlp::read(&telemetry));
    let lease_expiry = store.as_ref().map(|store| store.expiry);
    // A table with a problem of its own is there: the scopes that need it have none.
    let issuer = match &jwt {
        None => Some("".into()),
        Some(jwt) => jwt.as_ref().map(|jwt| jwt.rules.issuer.clone().into()),
    };
    let has_client_certificates = tls.as_ref().is_none_or(|tls| tls.as_ref().is_some_and(|tls| tls.clients.is_some()));
    let proofs = ProofSources { issuer, has_client_certificates };
    let context =
        RouteContext { upstream, listeners, secrets, lease_expiry, system_authorities: &system_authorities, proofs };
    let (pass, routes) = routes::read(&top, built_in, flag_defaults, &context);
    let consumers = consumers::read(&top, &routes, top.count("routes").max(1) == routes.len());
    let collector = otlp.iter().flatten().map(|collector| &collector.upstream);
    let issuer = jwt.iter().flatten().filter_map(|jwt| jwt.upstream());
    let needs_tls = collector.chain(issuer).any(|upstream| matches!(upstream, UpstreamTarget::Https(..)));
    let needs_tls = needs_tls || cache_redis.iter().flatten().any(|server| server.tls);
    let trust = match needs_tls || consumers.iter().any(|consumer| consumer.broker.tls) {
        true => Trust::new(system_authorities.get()),
        false => Trust::new(&Authorities::empty()),
    };
    let mut config = Config {
        listen: listen?.value,
        pass: pass?,
        service: service?.value,
        secrets: context.secrets?,
        trusted_proxies: trusted_proxies?.value.into_iter().map(|network| network.value).collect(),
        refuse_unguarded: refuse_unguarded?.value,
        drain_delay: drain_delay?.value,
        drain_timeout: drain_timeout?.value,
        cors: Arc::new(cors?),
        problem_base: problem_base?.value,
        tls: tls?,
        files: reader.files(),
        trust,
        jwt: jwt?.map(|jwt| Arc::new(jwt.with_claims_of(&routes))),
        limits: limits?,
        admin: admin?,
        store: store?,
        cache_memory: cache_memory?.value,
        cache_redis: cache_redis?,
        log: log?,
        otlp: otlp?,
        routes: routes.into_iter().map(Arc::new).collect(),
        consumers: consumers.into_iter().map(Arc::new).collect(),
        warnings: Vec::new(),
    };
    config.warnings = warnings::collect(&config);
    config.warnings.extend(system_authorities.if_read().and_then(warn_of_no_authorities));
    Some(config)
}

/// A warning where no authority at all was found: one unreadable file among many is harmless.
fn warn_of_no_authorities(authorities: &Authorities) -> Option<String> {
    let why = authorities.problems.first().map(|why| format!(" ({why})")).unwrap_or_default();
    authorities.roots.is_empty().then(|| {
        format!(
            "no certificate authority was found{why}, so every `https://` service will be refused: install \
             ca-certificates, or name a file in SSL_CERT_FILE"
        )
    })
}

fn read_store(
    section: &Section<'_>,
    secrets: &Option<Secrets>,
    system_authorities: &SystemAuthorities<'_>,
) -> Option<StoreConfig> {
    let url = section.text("url").and_then(|text| match read_location(section, &text, system_authorities) {
        Ok(location) => Some(location),
        // The problem does not show the text, which may hold a password.
        Err(message) => {
            section.reader().problem(&text.position, message);
            None
        }
    });
    let why = "each kind of work needs its own, and a database has few";
    let max_connections = section.integer("max_connections", STORE_CONNECTIONS_MIN..=CONNECTIONS_MAX, why);
    let timeout = section.duration_above_zero("timeout");
    let migrate = section.boolean("migrate");
    let distribute = section.boolean("distribute");
    if let (Some(distribute), Some(StoreLocation::Memory | StoreLocation::Sqlite(_))) = (&distribute, &url)
        && distribute.value
    {
        section.reader().problem(&distribute.position, "needs a `url` of PostgreSQL: no other store has several nodes");
    }
    let encrypt = section.boolean("encrypt");
    if let (Some(encrypt), Some(secrets)) = (&encrypt, secrets)
        && encrypt.value
        && secrets.current().is_none()
    {
        section.reader().problem(&encrypt.position, "needs a `secret` to encrypt with");
    }
    let lease = section.table("lease");
    let heartbeat = lease.duration_above_zero("heartbeat");
    let expiry = lease.duration_above_zero("expiry");
    if let (Some(heartbeat), Some(expiry)) = (&heartbeat, &expiry)
        && heartbeat.value * 2 > expiry.value
    {
        let message = "`expiry` must be twice `heartbeat` at least: a lease must outlive one lost heartbeat";
        section.reader().problem((&heartbeat.position).max(&expiry.position), message);
    }
    let sweep_every = section.duration_above_zero("sweep_every");
    let reap_every = section.duration_above_zero("reap_every");
    Some(StoreConfig {
        location: url?,
        max_connections: max_connections?.value,
        timeout: timeout?.value,
        migrate: migrate?.value,
        distribute: distribute?.value,
        encrypt: encrypt?.value,
        heartbeat: heartbeat?.value,
        expiry: expiry?.value,
        sweep_every: sweep_every?.value,
        reap_every: reap_every?.value,
    })
}

/// Reads the store's URL as far as the start does before it connects, its files included.
fn read_location(
    section: &Section<'_>,
    text: &Text,
    system_authorities: &SystemAuthorities<'_>,
) -> Result<StoreLocation, String> {
    let url = match StoreLocation::parse(&text.value)? {
        StoreLocation::Postgres(url) => url,
        other => return Ok(other),
    };
    let system = match url.tls().needs_system_authorities() {
        true => Arc::clone(&system_authorities.get().roots),
        false => Arc::clone(&Authorities::empty().roots),
    };
    let mut read = |path: &Path| section.reader().read_file(path).map(String::into_bytes);
    postgres_client_tls(&url, &system, &mut read)?;
    // A flag or a variable is not interpolated.
    let written = if text.is_interpolated { &text.shown } else { "" };
    Ok(StoreLocation::Postgres(Box::new(url.with_written(written))))
}

fn read_log(section: &Section<'_>) -> Option<LogConfig> {
    // Any other word would be a target, also a level with a blank before it, and everything else would be silent.
    let is_level = |word: &str| word.is_empty() || word.contains(['=', '[']) || word.parse::<LevelFilter>().is_ok();
    let filter = section.parsed("log", |text| match EnvFilter::try_new(text) {
        Ok(_) if text.split(',').all(is_level) => Ok(text.to_owned()),
        Ok(_) | Err(_) => {
            Err("is no filter: write `error`, `warn`, `info`, `debug` or `trace`, or `info,oncegate=debug`".into())
        }
    });
    let format = section.choice("format", |word| match word {
        "auto" => Some(LogFormat::Auto),
        "json" => Some(LogFormat::Json),
        "text" => Some(LogFormat::Text),
        _ => None,
    });
    Some(LogConfig { filter: filter?.value, format: format?.value })
}

fn read_secrets(section: &Section<'_>) -> Option<Secrets> {
    let current = section.text("secret").and_then(|text| read_secret(section, text));
    let previous = section.texts("previous_secrets");
    let position = previous.as_ref().map(|previous| previous.position.clone());
    let previous: Option<Vec<_>> =
        previous.and_then(|previous| previous.value.into_iter().map(|text| read_secret(section, text?)).collect());
    let (current, previous) = (current?, previous?);
    let previous: Vec<_> = previous.into_iter().flatten().collect();
    if let (None, false, Some(position)) = (&current, previous.is_empty(), position) {
        // The first of the secrets is the current one: without it, an earlier one would be used as the current one.
        section.reader().problem(&position, "needs a `secret` that comes after these");
    }
    Some(Secrets::new(current.into_iter().chain(previous)))
}

/// Reads a secret; `Some(None)` for an empty text, which an unset variable leaves. Problems never show the text.
fn read_secret(section: &Section<'_>, text: Text) -> Option<Option<Secret>> {
    match text.value.len() {
        0 => Some(None),
        SECRET_BYTES_MIN.. => Some(Some(Secret::new(&text.value))),
        _ => {
            let message = "is too short to be secret: 16 bytes at least, such as `openssl rand -base64 32` prints";
            section.reader().problem(&text.position, message);
            None
        }
    }
}

fn parse_service(text: &str) -> Result<Arc<str>, String> {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte);
    if (1..=63).contains(&text.len()) && text.bytes().all(word) {
        return Ok(text.into());
    }
    Err("is no name of a service: write 1 to 63 small letters, digits, `_`, `.` and `-`".into())
}

fn parse_network(text: &str) -> Result<IpNet, String> {
    let network: IpNet = match text.parse::<IpAddr>() {
        Ok(address) => address.into(),
        Err(_) => text.parse().map_err(|_| "is no network: write `10.0.0.0/8` or an address like `::1`".to_owned())?,
    };
    if network.trunc() != network {
        return Err("has bits set beyond its prefix: write the network's first address".into());
    }
    Ok(network)
}

/// Parses the beginning of a URI reference, which a slug completes: RFC 9457 wants a URI reference as the `type`.
fn parse_problem_base(text: &str) -> Result<Box<str>, String> {
    let begins = ["/", "http://", "https://", "urn:", "tag:"].iter().any(|start| text.starts_with(start));
    if begins && text.bytes().all(|byte| matches!(byte, 0x21..=0x7e) && !b"\"<>\\^`{|}".contains(&byte)) {
        return Ok(text.into());
    }
    Err("is no beginning of a URI: write `/.oncegate/problems/` or `https://docs.example.com/errors#`".into())
}
