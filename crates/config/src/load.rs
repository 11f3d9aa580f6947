//! Reads and checks the file, and all of its tables but the routes and the consumers.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::environment::{Environment, ProcessEnvironment};
use super::file_options::{TABLES, TopOptions};
use super::policy::UnguardedPolicy;
use super::presets::with_presets;
use super::problem::ConfigProblems;
use super::reader::{ConfigReader, ExternalValue, Section};
use super::route_options::RouteKeys;
use super::routes::{self, RouteContext};
use super::scope::ProofSources;
use super::services;
use super::source_texts::SourceTexts;
use super::value_parsers::socket_address;
use super::warnings::Lint;
use super::{
    Overrides, admin, consumers, cors, events, file_access, jwt, policy, refusals, secrets, store, telemetry, tls,
    warnings, written_options,
};
use oncegate_settings::{
    AdminConfig, AdminToken, CacheConfig, Config, Consumer, Dialect, IssuerKeys, LoadedConfig, RefusalForms,
    StartConfig, StoreLocation, UpstreamTarget, Word,
};
use oncegate_trust::tls::{Authorities, Trust};

/// Reads and checks a configuration. A flag overrides an environment variable, a variable overrides the file, and the
/// file overrides a default; an empty variable counts as none. Without a file, the values come from flags, variables
/// and defaults.
pub fn load(
    file: Option<&Path>,
    overrides: &Overrides,
    environment: &dyn Environment,
) -> Result<LoadedConfig, ConfigProblems> {
    let source = SourceTexts::read(file, environment)?;
    let table = source.parse()?;
    let reader = source.reader(overrides, environment);
    let ignored = RefCell::default();
    let mut config = read_config(&reader, &table, &ignored);
    if let Some(config) = &mut config {
        let readable = file_access::warnings(file, &table, &config.live.store_url, environment);
        let readable = readable.into_iter().map(|text| (Lint::ReadableFile, text));
        let authorities = reader.read_authorities().and_then(warn_of_no_authorities);
        let ignored = ignored.take().into_iter().map(|text| (Lint::OtelVariable, text));
        let outside = readable.chain(authorities.map(|text| (Lint::NoAuthorities, text))).chain(ignored);
        config.live.warnings = warnings::collect(config, outside);
        policy::check_warnings(&reader.top(&table), &config.live.warnings);
    }
    match (config, reader.into_problems()) {
        (_, Some(problems)) => Err(problems),
        (Some(config), None) => Ok(config),
        (None, None) => unreachable!("a missing value has its problem"),
    }
}

/// Reads the address of the operators' listener alone, from the same places as [`load()`]. The rest of the file need
/// only be TOML: a client of a running instance need not have its secrets or its upstream.
pub fn admin_listen(
    file: Option<&Path>,
    overrides: &Overrides,
    environment: &dyn Environment,
) -> Result<SocketAddr, ConfigProblems> {
    read_part(file, overrides, environment, |top| top.table("admin").parsed("listen", socket_address))
}

/// Reads the operators' token alone, in the same way.
pub fn admin_token(file: Option<&Path>, environment: &dyn Environment) -> Result<Option<AdminToken>, ConfigProblems> {
    read_part(file, &Overrides::default(), environment, |top| {
        admin::read_client_token(&top.table("admin"), store_location(top).as_ref())
    })
}

/// Reads the names of the services alone, in the same way.
pub fn service_names(file: &Path, environment: &dyn Environment) -> Result<Vec<Arc<str>>, ConfigProblems> {
    read_part(Some(file), &Overrides::default(), environment, services::names)
}

/// The forms of a dialect, as a route has them that says nothing else.
pub fn dialect_refusals(dialect: Dialect) -> Arc<RefusalForms> {
    let text = format!("dialect = '{}'", dialect.word());
    let (top, route) = (DeTable::new(), DeTable::parse(&text).expect("it is TOML"));
    let texts = SourceTexts::of_text("");
    let reader = ConfigReader::new(&texts, TABLES, &ProcessEnvironment, Vec::new(), DeTable::new());
    refusals::read(&with_presets(reader.top(&top).with_built_in(RouteKeys::KEYS, "routes[0]", route.get_ref())))
}

/// Reads one value of a file, whatever problems the rest of it has.
fn read_part<T>(
    file: Option<&Path>,
    overrides: &Overrides,
    environment: &dyn Environment,
    read: impl FnOnce(&Section<'_>) -> T,
) -> Result<T, ConfigProblems> {
    let source = SourceTexts::read(file, environment)?;
    let table = source.parse()?;
    let reader = source.reader(overrides, environment);
    let found = read(&reader.top(&table));
    match reader.is_unreadable() {
        false => Ok(found),
        true => Err(reader.into_problems().expect("an unreadable value has its problem")),
    }
}

impl SourceTexts {
    fn reader<'a>(&'a self, overrides: &'a Overrides, environment: &'a dyn Environment) -> ConfigReader<'a> {
        let variable = |name| environment.variable(name).filter(|value| !value.is_empty());
        let value = |path, from, value: Option<String>| value.map(|value| ExternalValue { path, from, value });
        let external = [
            value("listen", "--listen", overrides.listen.clone()),
            value("upstream", "--upstream", overrides.upstream.clone()),
            value("admin.listen", "--admin", overrides.admin.clone()),
            value("store.url", "--store", overrides.store.clone()),
            value("store.accept_route_changes", "--accept-route-changes", overrides.accept_route_changes.clone()),
        ];
        let variables = [
            ("listen", "ONCEGATE_LISTEN"),
            ("upstream", "ONCEGATE_UPSTREAM"),
            ("admin.listen", "ONCEGATE_ADMIN_LISTEN"),
            ("admin.token", "ONCEGATE_ADMIN_TOKEN"),
            ("store.url", "ONCEGATE_STORE_URL"),
            ("telemetry.log", "ONCEGATE_LOG"),
        ];
        let variables = variables.map(|(path, name)| value(path, name, variable(name)));
        let external = external.into_iter().chain(variables).flatten().collect();
        let mut defaults = DeTable::new();
        if let Some(scope) = &overrides.scope {
            let part = |part: &'a str| Spanned::new(0..0, DeValue::String(part.trim().into()));
            let parts: DeArray<'_> = scope.split(',').map(part).collect();
            defaults.insert(Spanned::new(0..0, "scope".into()), Spanned::new(0..0, DeValue::Array(parts)));
        }
        ConfigReader::new(self, TABLES, environment, external, defaults)
    }
}

/// The place of the store, where its URL can be read; its problems are reported with the rest of its table.
fn store_location(top: &Section<'_>) -> Option<StoreLocation> {
    let section = top.table("store");
    store::parse_location(&section, &section.text("url")?).ok()
}

fn read_config<'a>(
    reader: &'a ConfigReader<'a>,
    table: &'a DeTable<'a>,
    ignored: &RefCell<Vec<String>>,
) -> Option<LoadedConfig> {
    let top = reader.top(table);
    let mut options = TopOptions::read(&top);
    options.telemetry.otlp = telemetry::read_collector(reader.environment(), options.telemetry.otlp, ignored);
    check_included_names(&top);
    let admin_section = top.table("admin");
    let (admin_listener, admin) = admin::read(&admin_section, &top, store_location(&top).as_ref());
    let listeners = [("listen", &top, options.listen), ("admin.listen", &admin_section, admin_listener.listen)];
    let listeners = listeners.into_iter().filter(|(_, section, _)| section.is_right(&["listen"]));
    let listeners: Vec<_> = listeners.map(|(name, _, address)| (name, address)).collect();
    let secrets = secrets::read(&top);
    let cors = cors::read(&top.table("cors"));
    let tls = tls::read(&top.table("tls"));
    let jwt = jwt::read(&top.table("jwt"));
    let store = store::read(&top.table("store"), &secrets);
    // A table with a problem of its own is there: the scopes that need it have none.
    let issuer = match &jwt {
        None => Some("".into()),
        Some(jwt) => jwt.as_ref().map(|jwt| jwt.rules.issuer.clone().into()),
    };
    let is_elsewhere = reader.environment().lacks_secrets() && top.table("tls").first_layer("client_ca").is_some();
    let has_client_certificates =
        is_elsewhere || tls.as_ref().is_none_or(|tls| tls.as_ref().is_some_and(|tls| tls.clients.is_some()));
    let required = jwt.iter().flatten().flat_map(|jwt| &jwt.rules.required);
    let requires_email = !matches!(jwt, Some(Some(_))) || required.into_iter().any(|(name, _)| **name == *"email");
    let proofs = ProofSources { issuer, requires_email, has_client_certificates };
    let (encrypts, lease_expiry) = (store.encrypt, store.lease.expiry);
    let context = RouteContext { listeners, secrets, encrypts, lease_expiry, proofs };
    let routes::Services { services, tokens, routes } = routes::read(&top, &context);
    let all_known = top.count("routes").max(1) == routes.len();
    let consumers = consumers::read(&top, &routes, all_known);
    let events = events::read(&top, &routes, all_known);
    let collector = options.telemetry.otlp.iter().map(|collector| &collector.upstream);
    let issuer = jwt.iter().flatten().filter_map(|jwt| jwt.upstream());
    let needs_authorities = collector.chain(issuer).any(|upstream| matches!(upstream, UpstreamTarget::Https(..)))
        || jwt.iter().flatten().any(|jwt| matches!(jwt.keys, IssuerKeys::Described { .. }))
        || admin.oidc.is_some()
        || options.cache.redis.iter().any(|server| server.tls)
        || events.iter().any(|sink| sink.target.needs_authorities())
        || consumers.iter().any(Consumer::needs_authorities);
    let trust = match needs_authorities {
        true => Trust::new(reader.system_authorities()),
        false => Trust::new(&Authorities::empty()),
    };
    let start = StartConfig {
        listen: options.listen,
        service: options.service,
        drain_delay: options.drain_delay,
        drain_timeout: options.drain_timeout,
        limits: options.limits,
        admin: admin_listener,
        cache: CacheConfig { memory: options.cache.memory, is_shared: options.cache.redis.is_some() },
        telemetry: options.telemetry,
        events: !events.is_empty(),
        store,
    };
    let live = Config {
        trusted_proxies: options.trusted_proxies,
        refuses_unguarded: options.unguarded == UnguardedPolicy::Refuse,
        problem_base: options.problem_base,
        allow: options.allow,
        services: Some(services).filter(|services| !services.is_empty())?,
        secrets: context.secrets?,
        cors: Arc::new(cors),
        tls: tls?,
        files: reader.files(),
        trust,
        jwt: jwt?.map(|mut jwt| {
            jwt.rules.claims = jwt::claims_of(&routes);
            Arc::new(jwt)
        }),
        admin: AdminConfig { service_tokens: tokens, ..admin },
        store_url: start.store.url.clone(),
        redis: options.cache.redis,
        routes: routes.into_iter().map(Arc::new).collect(),
        consumers: consumers.into_iter().map(Arc::new).collect(),
        events: events.into_iter().map(Arc::new).collect(),
        warnings: Vec::new(),
        written: written_options::read(table, reader.texts()),
    };
    Some(LoadedConfig { start, live })
}

/// Reports what is no name of a file; the files themselves were read before.
fn check_included_names(top: &Section<'_>) {
    let _: Vec<()> = top.values("include", |path| match path.rsplit('/').next() {
        Some("") | None => Err("names no file".into()),
        Some(name) if name.matches('*').count() > 1 => Err("has more than one `*`".into()),
        Some(name) if path.len() > name.len() && path[..path.len() - name.len()].contains('*') => {
            Err("has a `*` before the last `/`: the files of one folder are included".into())
        }
        Some(_) => Ok(()),
    });
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
