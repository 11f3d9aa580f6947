//! Reads and checks the file, and all of its tables but the routes and the consumers.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::environment::Environment;
use super::file_options::{CacheOptions, TABLES, TopOptions, UnguardedPolicy, parse_service};
use super::problem::{ConfigProblem, ConfigProblems, line_and_column};
use super::reader::{ConfigReader, ExternalValue, Section};
use super::route_context::RouteContext;
use super::routes;
use super::scope::ProofSources;
use super::upstream_tls::SystemAuthorities;
use super::value_parsers::upstream_target;
use super::wording::syntax_hint;
use super::{
    AdminToken, Config, Overrides, StoreLocation, UpstreamTarget, admin, consumers, cors, file_access, jwt, limits,
    otlp, secrets, store, telemetry, tls, warnings,
};
use crate::tls::{Authorities, Trust};

/// Reads and checks a configuration. A flag overrides an environment variable, a variable overrides the file, and the
/// file overrides a default; an empty variable counts as none. Without a file, the values come from flags, variables
/// and defaults.
///
/// # Errors
/// All problems.
pub fn load(
    file: Option<&Path>,
    overrides: &Overrides,
    environment: &dyn Environment,
) -> Result<Config, ConfigProblems> {
    let name = file.map(|file| file.display().to_string());
    let text = read_text(file, &name, environment)?;
    let table = parse_toml(&text, &name)?;
    let built_in = DeTable::parse(routes::BUILT_IN).expect("the built-in route is TOML");
    let reader = ConfigReader::new(name.as_deref(), &text, TABLES, environment);
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

/// Reads the address of the operators' listener alone, from the same places as [`load()`]. The rest of the file need only
/// be TOML: a client of a running instance need not have its secrets or its upstream.
///
/// # Errors
/// The problems of the address, or of the file.
pub fn admin_listen(
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

/// Reads the operators' token alone, in the same way.
///
/// # Errors
/// The problems of the token, or of the file.
pub fn admin_token(file: Option<&Path>, environment: &dyn Environment) -> Result<Option<AdminToken>, ConfigProblems> {
    read_part(file, environment, |top| {
        let external_values = ExternalValues { overrides: &Overrides::default(), environment };
        let section = top.table("admin").with_external(external_values.variable("token", "ONCEGATE_ADMIN_TOKEN"));
        let store = top.table("store").with_external(external_values.variable("url", "ONCEGATE_STORE_URL"));
        let store = store.text("url").and_then(|url| StoreLocation::parse(&url.value).ok());
        admin::read_client_token(&section, store.as_ref(), environment)
    })
}

/// Reads the name of the service alone, in the same way.
///
/// # Errors
/// The problems of the name, or of the file.
pub fn service_name(file: &Path, environment: &dyn Environment) -> Result<Arc<str>, ConfigProblems> {
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
    let reader = ConfigReader::new(name.as_deref(), &text, TABLES, environment);
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
    let options = TopOptions::read(&top);
    let listen = options.listen;
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
    let secrets = secrets::read(&top);
    let cors = cors::read(&top.table("cors"));
    let tls = tls::read(&top.table("tls"));
    let jwt = jwt::read(&top.table("jwt"));
    let limits = limits::read(&top.table("limits"));
    let system_authorities = SystemAuthorities::new(external_values.environment);
    let store = store::read(&store_section, &secrets, &system_authorities);
    let cache = CacheOptions::read(&top.table("cache"));
    let cache_redis = cache.redis.map(|server| server.value);
    let telemetry_section = top.table("telemetry").with_external(external_values.variable("log", "ONCEGATE_LOG"));
    let (log, otlp) = (telemetry::read_log(&telemetry_section), otlp::read(&telemetry_section));
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
        service: options.service?.value,
        secrets: context.secrets?,
        trusted_proxies: options.trusted_proxies?.value,
        refuse_unguarded: options.unguarded?.value == UnguardedPolicy::Refuse,
        drain_delay: options.drain_delay?.value,
        drain_timeout: options.drain_timeout?.value,
        cors: Arc::new(cors?),
        problem_base: options.problem_base?.value,
        tls: tls?,
        files: reader.files(),
        trust,
        jwt: jwt?.map(|jwt| Arc::new(jwt.with_claims_of(&routes))),
        limits: limits?,
        admin: admin?,
        store: store?,
        cache_memory: cache.memory?.value,
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
