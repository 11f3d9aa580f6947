//! The file itself and its tables but the routes, read and checked.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use toml::de::DeTable;
use tracing_subscriber::EnvFilter;

use super::problem::{Problem, Problems, position};
use super::reader::{Outside, Reader, Section, Text};
use super::routes::{self, Context};
use super::surroundings::Surroundings;
use super::units;
use super::{
    AdminToken, Config, Location, Log, LogFormat, Overrides, Store, Upstream, admin, consumers, otlp, postgres_tls, tls,
};
use crate::domain::fingerprint::{Secret, Secrets};
use crate::tls::{Authorities, Trust};

/// 128 bits, if they are random; a body with little in it could be found by trying all shorter ones.
const SECRET_BYTES_MIN: usize = 16;

/// A PostgreSQL server allows 100 unless told otherwise; nobody needs more than this from one instance.
const CONNECTIONS_MAX: usize = 1000;

pub(super) fn load(
    file: Option<&Path>,
    overrides: &Overrides,
    surroundings: &dyn Surroundings,
) -> Result<Config, Problems> {
    let name = file.map(|file| file.display().to_string());
    let text = text_of(file, &name, surroundings)?;
    let table = parse(&text, &name)?;
    let built_in = DeTable::parse(routes::BUILT_IN).expect("the built-in route is TOML");
    let reader = Reader::new(name.as_deref(), &text, surroundings);
    let config = read(&reader, table.get_ref(), built_in.get_ref(), &Say { overrides, surroundings });
    match (config, reader.into_problems()) {
        (_, Some(problems)) => Err(problems),
        (Some(config), None) => Ok(config),
        (None, None) => unreachable!("whatever is missing was said to be a problem"),
    }
}

pub(super) fn admin_listen(
    file: Option<&Path>,
    overrides: &Overrides,
    surroundings: &dyn Surroundings,
) -> Result<SocketAddr, Problems> {
    part_of(file, surroundings, |top| {
        let section = top.table("admin");
        let say = Say { overrides, surroundings };
        let outside = say.flag("listen", "--admin", &overrides.admin, "ONCEGATE_ADMIN_LISTEN");
        admin::address(&section.with_outside(outside)).map(|found| found.value)
    })
}

pub(super) fn admin_token(
    file: Option<&Path>,
    surroundings: &dyn Surroundings,
) -> Result<Option<AdminToken>, Problems> {
    part_of(file, surroundings, |top| {
        let section = top.table("admin");
        let say = Say { overrides: &Overrides::default(), surroundings };
        admin::token(&section.with_outside(say.variable("token", "ONCEGATE_ADMIN_TOKEN")))
    })
}

pub(super) fn service_name(file: &Path, surroundings: &dyn Surroundings) -> Result<Arc<str>, Problems> {
    part_of(Some(file), surroundings, |top| top.parsed("service", service).map(|found| found.value))
}

/// One thing of a file, whatever the rest of it is.
fn part_of<T>(
    file: Option<&Path>,
    surroundings: &dyn Surroundings,
    read: impl FnOnce(Section<'_>) -> Option<T>,
) -> Result<T, Problems> {
    let name = file.map(|file| file.display().to_string());
    let text = text_of(file, &name, surroundings)?;
    let table = parse(&text, &name)?;
    let reader = Reader::new(name.as_deref(), &text, surroundings);
    match read(reader.top(table.get_ref())) {
        Some(found) => Ok(found),
        None => Err(reader.into_problems().expect("whatever is missing was said to be a problem")),
    }
}

fn text_of(file: Option<&Path>, name: &Option<String>, surroundings: &dyn Surroundings) -> Result<String, Problems> {
    let Some(path) = file else { return Ok(String::new()) };
    surroundings.read(path).map_err(|error| whole(name, None, format!("cannot be read: {error}")))
}

fn parse<'a>(text: &'a str, name: &Option<String>) -> Result<toml::Spanned<DeTable<'a>>, Problems> {
    DeTable::parse(text).map_err(|error| {
        // Not the error's own `Display`, which prints the line: there may be a password in it.
        let position = error.span().map(|span| position(text, span.start));
        whole(name, position, error.message().replace('\n', ", "))
    })
}

/// A problem of the file as a whole.
fn whole(file: &Option<String>, position: Option<(usize, usize)>, message: String) -> Problems {
    Problems(vec![Problem { file: file.as_deref().map(Into::into), position, path: String::new(), message }])
}

/// What is said outside of the file.
struct Say<'a> {
    overrides: &'a Overrides,
    surroundings: &'a dyn Surroundings,
}

impl Say<'_> {
    fn flag(
        &self,
        key: &'static str,
        flag: &'static str,
        value: &Option<String>,
        variable: &'static str,
    ) -> Vec<Outside> {
        let from_flag = value.clone().map(|value| Outside { key, from: flag, value });
        from_flag.into_iter().chain(self.variable(key, variable)).collect()
    }

    fn variable(&self, key: &'static str, variable: &'static str) -> Vec<Outside> {
        let value = self.surroundings.variable(variable).filter(|value| !value.is_empty());
        value.map(|value| Outside { key, from: variable, value }).into_iter().collect()
    }
}

fn read<'a>(
    reader: &'a Reader<'a>,
    table: &'a DeTable<'a>,
    built_in: &'a DeTable<'a>,
    say: &Say<'_>,
) -> Option<Config> {
    let flags = say.overrides;
    let mut outside = say.flag("listen", "--listen", &flags.listen, "ONCEGATE_LISTEN");
    outside.extend(say.flag("upstream", "--upstream", &flags.upstream, "ONCEGATE_UPSTREAM"));
    let top = reader.top(table).with_outside(outside);
    let listen = top.parsed("listen", socket);
    let upstream = top.text("upstream").and_then(|text| routes::parse_upstream(&top, text));
    let service = top.parsed("service", service);
    let secrets = secrets(&top);
    let trusted_proxies = top.list("trusted_proxies", network);
    let refuse_unguarded = top.choice("unguarded", |word| match word {
        "pass" => Some(false),
        "refuse" => Some(true),
        _ => None,
    });
    let drain_delay = top.duration("drain_delay");
    let drain_timeout = top.duration_above_zero("drain_timeout");
    let problem_base = top.parsed("problem_base", problem_base);
    let tls = tls::read(&top.table("tls"));
    let mut outside = say.flag("listen", "--admin", &flags.admin, "ONCEGATE_ADMIN_LISTEN");
    outside.extend(say.variable("token", "ONCEGATE_ADMIN_TOKEN"));
    let admin = admin::read(&top.table("admin").with_outside(outside), &listen);
    let outside = say.flag("url", "--store", &flags.store, "ONCEGATE_STORE_URL");
    let store = store(&top.table("store").with_outside(outside));
    let cache_memory = top.table("cache").parsed("memory", units::size);
    let telemetry = top.table("telemetry").with_outside(say.variable("log", "ONCEGATE_LOG"));
    let (log, otlp) = (log(&telemetry), otlp::read(&telemetry));
    let lease_expiry = store.as_ref().map(|store| store.expiry);
    let context = Context { upstream, secrets, lease_expiry };
    let (pass, routes) = routes::read(&top, built_in, &context);
    let consumers = consumers::read(&top, &routes, top.count("routes").max(1) == routes.len());
    let asked = routes.iter().filter_map(|route| route.reconcile.as_ref()).map(|reconcile| &reconcile.lookup.upstream);
    let upstreams =
        pass.iter().map(|pass| &pass.upstream).chain(routes.iter().map(|route| &route.upstream)).chain(asked);
    let collector = otlp.iter().flatten().map(|collector| &collector.upstream);
    let mut spoken_to = upstreams.map(|upstream| &**upstream).chain(collector);
    let by_tls = spoken_to.any(|upstream| matches!(upstream, Upstream::Https(..)));
    let authorities = match by_tls || consumers.iter().any(|consumer| consumer.broker.tls) {
        true => Some(say.surroundings.authorities()),
        false => None,
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
        problem_base: problem_base?.value,
        tls: tls?,
        trust: Trust::new(authorities.as_ref().unwrap_or(&Authorities::none())),
        admin: admin?,
        store: store?,
        cache_memory: cache_memory?.value,
        log: log?,
        otlp: otlp?,
        routes: routes.into_iter().map(Arc::new).collect(),
        consumers: consumers.into_iter().map(Arc::new).collect(),
        warnings: Vec::new(),
    };
    config.warnings = warnings(&config);
    config.warnings.extend(authorities.iter().flat_map(no_authorities));
    Some(config)
}

/// Said only where it matters: some file among many that cannot be read is no reason to worry.
fn no_authorities(authorities: &Authorities) -> Option<String> {
    let why = authorities.problems.first().map(|why| format!(" ({why})")).unwrap_or_default();
    authorities.roots.is_empty().then(|| {
        format!(
            "no certificate authority is known here{why}, and no `https://` service will be believed: install \
             ca-certificates, or name a file in SSL_CERT_FILE"
        )
    })
}

fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(tls) = config.tls.as_ref().filter(|tls| tls.readable_by_all) {
        warnings.push(format!("tls.key: everybody on this machine can read `{}`: `chmod o-r` it", tls.key.display()));
    }
    if let Location::Postgres(url) = &config.store.location {
        warnings.extend(postgres_tls::warning(url));
    }
    if config.store.location == Location::Memory {
        warnings.push("store.url is `memory:`: after a restart every retry is executed again".into());
    }
    for route in config.routes.iter().filter(|route| route.scope.parts.is_empty()) {
        let name = &route.name;
        warnings.push(format!("route `{name}`: scope is `none`: any caller who knows a key gets its stored response"));
    }
    warnings
}

fn store(section: &Section<'_>) -> Option<Store> {
    let url = section.text("url").and_then(|text| match Location::parse(&text.value) {
        Ok(location) => Some(location),
        // Without the text, which may hold a password.
        Err(message) => {
            section.reader().problem(&text.place, message);
            None
        }
    });
    let why = "one is needed, and a database has only so many";
    let max_connections = section.integer("max_connections", 1..=CONNECTIONS_MAX, why);
    let timeout = section.duration_above_zero("timeout");
    let migrate = section.boolean("migrate");
    let lease = section.table("lease");
    let heartbeat = lease.duration_above_zero("heartbeat");
    let expiry = lease.duration_above_zero("expiry");
    if let (Some(heartbeat), Some(expiry)) = (&heartbeat, &expiry)
        && heartbeat.value * 2 > expiry.value
    {
        let message = "`expiry` must be twice `heartbeat` at least: a lease must outlive one heartbeat that got lost";
        section.reader().problem((&heartbeat.place).max(&expiry.place), message);
    }
    let sweep_every = section.duration_above_zero("sweep_every");
    let reap_every = section.duration_above_zero("reap_every");
    Some(Store {
        location: url?,
        max_connections: max_connections?.value,
        timeout: timeout?.value,
        migrate: migrate?.value,
        heartbeat: heartbeat?.value,
        expiry: expiry?.value,
        sweep_every: sweep_every?.value,
        reap_every: reap_every?.value,
    })
}

fn log(section: &Section<'_>) -> Option<Log> {
    let filter = section.parsed("log", |text| match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => {
            Err("is no filter: write `error`, `warn`, `info`, `debug` or `trace`, or `info,oncegate=debug`".into())
        }
    });
    let format = section.choice("format", |word| match word {
        "auto" => Some(LogFormat::Auto),
        "json" => Some(LogFormat::Json),
        "text" => Some(LogFormat::Text),
        _ => None,
    });
    Some(Log { filter: filter?.value, format: format?.value })
}

fn secrets(section: &Section<'_>) -> Option<Secrets> {
    let current = section.text("secret").and_then(|text| secret(section, text));
    let previous = section.texts("previous_secrets");
    let place = previous.as_ref().map(|previous| previous.place.clone());
    let previous: Option<Vec<_>> =
        previous.and_then(|previous| previous.value.into_iter().map(|text| secret(section, text?)).collect());
    let (current, previous) = (current?, previous?);
    let previous: Vec<_> = previous.into_iter().flatten().collect();
    if let (None, false, Some(place)) = (&current, previous.is_empty(), place) {
        // Among secrets the first is the current one: without it an earlier one would be taken for it.
        section.reader().problem(&place, "needs a `secret` that comes after these");
    }
    Some(Secrets::new(current.into_iter().chain(previous)))
}

/// A secret; `Some(None)` for an empty text, which is what an unset variable leaves. Never shows the text.
fn secret(section: &Section<'_>, text: Text) -> Option<Option<Secret>> {
    match text.value.len() {
        0 => Some(None),
        SECRET_BYTES_MIN.. => Some(Some(Secret::new(&text.value))),
        _ => {
            let message = "is too short to be secret: 16 bytes at least, such as `openssl rand -base64 32` prints";
            section.reader().problem(&text.place, message);
            None
        }
    }
}

pub(super) fn socket(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "is no address and port: write `127.0.0.1:8080`, `[::1]:8080`, or `0.0.0.0:8080` for every interface".into()
    })
}

fn service(text: &str) -> Result<Arc<str>, String> {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte);
    if (1..=63).contains(&text.len()) && text.bytes().all(word) {
        return Ok(text.into());
    }
    Err("is no name of a service: write 1 to 63 small letters, digits, `_`, `.` and `-`".into())
}

fn network(text: &str) -> Result<IpNet, String> {
    let network: IpNet = match text.parse::<IpAddr>() {
        Ok(address) => address.into(),
        Err(_) => text.parse().map_err(|_| "is no network: write `10.0.0.0/8` or an address like `::1`".to_owned())?,
    };
    if network.trunc() != network {
        return Err("has bits set beyond its prefix: write the network's first address".into());
    }
    Ok(network)
}

/// A URI reference, as far as what follows it is one word: RFC 9457 wants one as the `type`.
fn problem_base(text: &str) -> Result<Box<str>, String> {
    let begins = ["/", "http://", "https://", "urn:", "tag:"].iter().any(|start| text.starts_with(start));
    if begins && text.bytes().all(|byte| matches!(byte, 0x21..=0x7e) && !b"\"<>\\^`{|}".contains(&byte)) {
        return Ok(text.into());
    }
    Err("is no beginning of a URI: write `/.oncegate/problems/` or `https://docs.example.com/errors#`".into())
}
