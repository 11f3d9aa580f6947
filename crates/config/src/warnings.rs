//! Lints: valid settings that may not be what their author wants. Each has a name, by which a file allows it.
//!
//! A lint asks what the resolved configuration does, and not what is written: a file that is right by another way stays
//! quiet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use ipnet::IpNet;

use super::dialect::Dialect;
use super::jwt::IssuerKeys;
use super::kind::RouteKind;
use super::lint::Lint;
use super::units::show_duration;
use super::words::Word;
use super::{EventTarget, LoadedConfig, Route, RouteMode, StoreLocation, UpstreamTarget, ValueOrigin};
use oncegate_domain::grpc_status::GrpcStatus;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::path_samples::sample_paths;
use oncegate_domain::response_policy::{OnUnknown, ResponseVerdict, ServiceStatus, default_verdict};
use oncegate_domain::route_table::{RouteMatch, RouteTable, Spelling};
use oncegate_trust::jwt::Algorithm;

/// Shorter TTLs end before the pause of a client's later tries.
const TTL_MIN: Duration = Duration::from_secs(60);

/// Few services keep an unused connection for longer: Node.js 5 s, nginx 75 s.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// The 5xx that may come after the work, although a route lists them by themselves: the service has failed in it, or a
/// gateway has lost the answer.
const AFTER_THE_WORK: [u16; 6] = [500, 502, 504, 520, 522, 524];

/// A lint of the file, and the finding of each place.
type FileLint = (Lint, fn(&LoadedConfig) -> Vec<String>);

const OF_THE_FILE: &[FileLint] = &[
    (Lint::ReadableFile, readable_keys),
    (Lint::StoreTransport, store_transport),
    (Lint::CacheUnsigned, cache_unsigned),
    (Lint::CleartextPassword, cleartext_passwords),
    (Lint::EventsUnsigned, events_unsigned),
    (Lint::MemoryStore, memory_store),
    (Lint::AnyProxy, any_proxy),
    (Lint::JwtUnused, jwt_unused),
    (Lint::JwtCleartext, jwt_cleartext),
    (Lint::JwtSharedSecret, jwt_shared_secret),
];

/// A lint of one route, which has no keys unless it enforces.
type RouteLint = (Lint, fn(&LoadedConfig, &Route) -> Option<String>);

const OF_A_ROUTE: &[RouteLint] = &[
    (Lint::BodyWithoutRoom, body_without_room),
    (Lint::ScopeNone, scope_none),
    (Lint::ReconcileByKey, reconcile_by_key),
    (Lint::Money2xx, money_2xx),
    (Lint::Money5xx, money_5xx),
    (Lint::MoneyKeyless, money_keyless),
    (Lint::MoneyBypass, money_bypass),
    (Lint::MoneyRetry, money_retry),
    (Lint::MoneyBody, money_body),
    (Lint::ShortTtl, short_ttl),
    (Lint::ShortDrain, short_drain),
    (Lint::LongIdle, long_idle),
];

struct LintFinding<'a> {
    lint: Lint,
    route: Option<&'a Route>,
    text: String,
}

/// The warnings that the file does not allow, each with the name of its lint. `outside` are the findings about the
/// machine.
pub(super) fn collect(config: &LoadedConfig, outside: impl Iterator<Item = (Lint, String)>) -> Vec<String> {
    let of_the_file = OF_THE_FILE.iter().flat_map(|(lint, find)| find(config).into_iter().map(|text| (*lint, text)));
    let of_the_file = of_the_file.chain(outside).map(|(lint, text)| LintFinding { lint, route: None, text });
    let enforcing = || config.routes.iter().map(|route| &**route).filter(|route| route.mode == RouteMode::Enforce);
    let of_routes = OF_A_ROUTE.iter().flat_map(|(lint, find)| {
        enforcing()
            .filter_map(|route| Some(LintFinding { lint: *lint, route: Some(route), text: find(config, route)? }))
    });
    let mut warnings = Vec::<(Lint, Vec<&str>, String)>::new();
    for LintFinding { lint, route, text } in
        of_the_file.chain(of_routes).chain(ambiguous_paths(config)).chain(split_hosts(config))
    {
        if config.allow.contains(&lint) || route.is_some_and(|route| route.allow.contains(&lint)) {
            continue;
        }
        let name = route.map(|route| &*route.name);
        match warnings.iter_mut().find(|(other, _, same)| *other == lint && *same == text) {
            Some((_, names, _)) => names.extend(name),
            None => warnings.push((lint, name.into_iter().collect(), text)),
        }
    }
    let warnings = warnings.into_iter().map(|(lint, names, text)| {
        let place = match &names[..] {
            [] => String::new(),
            [name] => format!("route `{name}`: "),
            names => format!("routes `{}`: ", names.join("`, `")),
        };
        format!("{place}{text} [{}]", lint.word())
    });
    warnings.collect()
}

fn readable_keys(config: &LoadedConfig) -> Vec<String> {
    let own = config.tls.iter().filter(|tls| tls.readable_by_all).map(|tls| ("tls.key", &tls.key));
    let towards: BTreeSet<_> = config.upstream_tls().filter_map(|tls| tls.exposed_key.as_ref()).collect();
    let keys = own.chain(towards.into_iter().map(|key| ("upstream_tls.key", key)));
    keys.map(|(name, key)| format!("{name}: everybody on this machine can read `{0}`: `chmod o-r` it", key.display()))
        .collect()
}

fn store_transport(config: &LoadedConfig) -> Vec<String> {
    match &config.store_url {
        StoreLocation::Postgres(url) => url.warning().into_iter().collect(),
        StoreLocation::Memory | StoreLocation::Sqlite(_) => Vec::new(),
    }
}

fn cache_unsigned(config: &LoadedConfig) -> Vec<String> {
    let is_unsigned = config.redis.is_some() && config.secrets.is_empty();
    let text = "cache.redis without a `secret`: everybody who can write to the Redis server can forge replays, and everybody who \
                can read there sees the stored responses";
    is_unsigned.then(|| text.into()).into_iter().collect()
}

fn cleartext_passwords(config: &LoadedConfig) -> Vec<String> {
    const DANGER: &str = "its password crosses the network in cleartext, and anybody in between can read it: write";
    let redis = config.redis.iter().filter(|server| server.exposes_password());
    let redis = redis.map(|_| format!("cache.redis: {DANGER} `rediss://`"));
    let kafka = config.consumers.iter().filter_map(|consumer| consumer.source.kafka());
    let kafka = kafka.filter(|source| source.cluster.exposes_password());
    let kafka =
        kafka.map(|source| format!("kafka of group `{}`: {DANGER} `tls = true`, or a `sasl` of scram", source.group));
    redis.chain(kafka).collect()
}

fn events_unsigned(config: &LoadedConfig) -> Vec<String> {
    let unsigned = config.events.iter().filter_map(|sink| match &sink.target {
        EventTarget::Http { upstream, secret: None, .. } => Some((&sink.name, upstream)),
        _ => None,
    });
    unsigned
        .map(|(name, upstream)| {
            format!("events `{name}`: no `secret` signs what {upstream} gets, so whoever reaches it can make up events")
        })
        .collect()
}

fn memory_store(config: &LoadedConfig) -> Vec<String> {
    let is_memory = config.store_url == StoreLocation::Memory;
    is_memory
        .then(|| "store.url is `memory:`: after a restart every retry is executed again".into())
        .into_iter()
        .collect()
}

/// Networks that are wider than one operator's: together, two halves are the whole.
fn any_proxy(config: &LoadedConfig) -> Vec<String> {
    let is_wide = |network: &IpNet| match network {
        IpNet::V4(network) => network.prefix_len() < 8,
        IpNet::V6(network) => network.prefix_len() < 7,
    };
    let wide = IpNet::aggregate(&config.trusted_proxies).into_iter().filter(is_wide);
    wide.map(|network| {
        format!(
            "trusted_proxies has {network}, in which anybody may be: each sender there can claim to be any caller, by default with \
             `X-Api-Key`; write the gateway's own addresses"
        )
    })
    .collect()
}

fn jwt_unused(config: &LoadedConfig) -> Vec<String> {
    let unused = config.jwt.iter().filter(|jwt| jwt.rules.claims.is_empty());
    unused.map(|_| "jwt: no route's `scope` has a `jwt:` part, so no token is verified".into()).collect()
}

fn jwt_cleartext(config: &LoadedConfig) -> Vec<String> {
    let services = config.jwt.iter().filter_map(|jwt| match &jwt.keys {
        IssuerKeys::Url { upstream, .. } => Some(upstream),
        IssuerKeys::Described { .. } | IssuerKeys::File { .. } => None,
    });
    let open = services.filter(|service| matches!(***service, UpstreamTarget::Http(_)) && !service.is_loopback());
    open.map(|service| {
        format!(
            "jwt.jwks is read without TLS from {service}: whoever can change the answer on its way can make any token"
        )
    })
    .collect()
}

fn jwt_shared_secret(config: &LoadedConfig) -> Vec<String> {
    let is_secret =
        |algorithm: &&Algorithm| matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512);
    let shared = config.jwt.iter().filter_map(|jwt| jwt.rules.algorithms.iter().find(is_secret));
    shared
        .map(|algorithm| {
            format!(
                "jwt.algorithms has {algorithm:?}: its key is a secret that makes tokens too, so whoever can read jwks can be any \
                 caller"
            )
        })
        .collect()
}

fn body_without_room(config: &LoadedConfig, route: &Route) -> Option<String> {
    let room = config.start.limits.held_bodies / 8 * 7;
    (route.max_request_body as u64 > room).then(|| {
        "a body of max_request_body never finds room in limits.held_bodies, seven eighths of which are for large bodies: its \
         retries get 503 overloaded for ever"
            .into()
    })
}

fn scope_none(_: &LoadedConfig, route: &Route) -> Option<String> {
    // A key inside of a payment that is a part of the fingerprint is of no use without the payment.
    let has_proof = route.key.payload_headers().any(|name| route.recipe.reads_field(name.as_str()));
    (route.scope.parts.is_empty() && !has_proof)
        .then(|| "scope is `none`: any caller who knows a key gets its stored response".into())
}

fn reconcile_by_key(_: &LoadedConfig, route: &Route) -> Option<String> {
    let is_confused = route.reconcile.as_ref().is_some_and(|reconcile| reconcile.lookup.confuses_callers());
    (is_confused && !route.scope.parts.is_empty()).then(|| {
        "reconcile.url has `{key}` but neither `{id}` nor `{scope}`: two callers may use one key, and one would be answered from \
         the other's record; write `{id}`, which the service has as the first 64 digits of `Oncegate-Reservation`"
            .into()
    })
}

fn money_2xx(_: &LoadedConfig, route: &Route) -> Option<String> {
    let successes = (200..300).filter_map(|code| StatusCode::from_u16(code).ok()).map(ServiceStatus::Http);
    let mut successes = successes.chain([ServiceStatus::Grpc(GrpcStatus::Ok)]);
    let released = successes.find(|status| route.statuses.verdict_on(*status, false) == ResponseVerdict::Release)?;
    is_money(route).then(|| {
        format!(
            "kind is `money`, and after a {released}, by which the service says that it has charged, a retry is executed again: take it, \
             or its class, out of release_statuses"
        )
    })
}

/// A code that the route lists by itself is a decision about its service, if it can come before the work. A dialect's own
/// list is the convention of its API.
fn money_5xx(_: &LoadedConfig, route: &Route) -> Option<String> {
    let is_released = |status: ServiceStatus| route.statuses.verdict_on(status, false) == ResponseVerdict::Release;
    let is_meant = |status: StatusCode| route.statuses.names(status) && !AFTER_THE_WORK.contains(&status.as_u16());
    let http = (500..600).filter_map(|code| StatusCode::from_u16(code).ok()).filter(|status| !is_meant(*status));
    let calls = GrpcStatus::ALL.into_iter().filter(|status| default_verdict(*status) == ResponseVerdict::Unknown);
    let released =
        http.map(ServiceStatus::Http).chain(calls.map(ServiceStatus::Grpc)).find(|status| is_released(*status))?;
    let origins = route.origins.find(&["release_statuses"]);
    let is_convention = origins.iter().any(|(origin, _)| *origin == ValueOrigin::Preset("dialect"));
    (is_money(route) && !is_convention).then(|| {
        format!(
            "kind is `money`, and after a {released}, although the service may have charged, a retry is executed again: take it, or \
             its class, out of release_statuses; a code that comes before any work, such as \"503\", is listed by itself"
        )
    })
}

/// A request of x402 that has not paid has no payment, and no key in it.
fn money_keyless(_: &LoadedConfig, route: &Route) -> Option<String> {
    (is_money(route) && !route.key.required && route.dialect != Dialect::X402).then(|| {
        "kind is `money`, and a request without a key passes unguarded: write `key = { required = true }`".into()
    })
}

fn money_bypass(_: &LoadedConfig, route: &Route) -> Option<String> {
    (is_money(route) && route.bypasses()).then(|| {
        "kind is `money`, and store_down is `bypass`: while the store is away, a retry may be executed again; write `reject`".into()
    })
}

fn money_retry(_: &LoadedConfig, route: &Route) -> Option<String> {
    (is_money(route) && route.on_unknown != OnUnknown::Hold).then(|| {
        format!(
            "kind is `money`, and on_unknown is `{}`: a request that may have been executed is executed again; write `hold`, and a \
             `reconcile.url`",
            route.on_unknown.word()
        )
    })
}

fn money_body(_: &LoadedConfig, route: &Route) -> Option<String> {
    let has_bodies = route.methods.iter().any(|method| ![Method::DELETE, Method::GET].contains(method));
    (is_money(route) && has_bodies && !route.recipe.reads_body()).then(|| {
        "kind is `money`, and fingerprint.body is `none`: a request for another amount under the same key gets the first one's \
         response"
            .into()
    })
}

/// A late retry of a repeatable request is refused by its own date.
fn short_ttl(_: &LoadedConfig, route: &Route) -> Option<String> {
    let is_refused = route.remember.is_some() || route.dialect == Dialect::Repeatability;
    (route.ttl < TTL_MIN && !is_refused).then(|| {
        format!(
            "ttl ({}) may end before a client's last try, which is executed again then: set it above that, or `after_ttl = \
             \"refuse\"`",
            show_duration(route.ttl)
        )
    })
}

fn short_drain(config: &LoadedConfig, route: &Route) -> Option<String> {
    (route.upstream_timeout > config.start.drain_timeout).then(|| {
        format!(
            "drain_timeout ({}) is shorter than upstream_timeout ({}): a restart makes the outcomes of running attempts unknown",
            show_duration(config.start.drain_timeout),
            show_duration(route.upstream_timeout)
        )
    })
}

/// A service that closes a connection of HTTP/2 says which requests it has not processed.
fn long_idle(_: &LoadedConfig, route: &Route) -> Option<String> {
    (route.upstream_idle_timeout > IDLE_MAX && !matches!(*route.upstream, UpstreamTarget::H2c(_))).then(|| {
        format!(
            "upstream_idle_timeout ({}) is longer than most services keep an unused connection, and a request on one that is being \
             closed has an unknown outcome: set it below the service's own keep-alive",
            show_duration(route.upstream_idle_timeout)
        )
    })
}

fn is_money(route: &Route) -> bool {
    route.kind == RouteKind::Money
}

/// The routes of a host that send their requests to a service of their own, while other requests of the host go
/// elsewhere.
fn split_hosts(config: &LoadedConfig) -> Vec<LintFinding<'_>> {
    const METHODS: [Method; 7] =
        [Method::GET, Method::HEAD, Method::OPTIONS, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let is_apart = |route: &&Arc<Route>| route.host.is_some() && route.upstream != config.pass.upstream;
    let apart: Vec<_> = config.routes.iter().filter(is_apart).collect();
    if apart.is_empty() {
        return Vec::new();
    }
    let mut table = RouteTable::default();
    for route in &config.routes {
        table.insert(
            &route.methods,
            route.host.as_deref(),
            &route.path,
            Spelling::Pass,
            &(&route.name, &route.upstream),
        );
    }
    let samples = sample_paths(&config.routes.iter().map(|route| &route.path).collect::<Vec<_>>());
    let mut findings = Vec::new();
    for route in apart {
        let host = route.host.as_deref().unwrap_or_default();
        let find = |method: &Method, path: &str| match table.find(method, host, &RequestPath::new(path)) {
            RouteMatch::Route(found) => *found,
            RouteMatch::Ambiguous(_) | RouteMatch::NoRoute => (&route.name, &config.pass.upstream),
        };
        let own = (&route.name, &route.upstream);
        let Some(path) = samples.iter().find(|path| find(&route.methods[0], path) == own) else { continue };
        let elsewhere = METHODS.map(|method| (find(&method, path).1, method));
        let elsewhere: Vec<_> = elsewhere.iter().filter(|(service, _)| **service != route.upstream).collect();
        let Some((other, _)) = elsewhere.first() else { continue };
        let methods: Vec<_> = elsewhere.iter().map(|(_, method)| method.as_str()).collect();
        let text = format!(
            "its `upstream` gets its methods alone: {} `{}` of {host}, and each path of this host without a route, go to another \
             service, such as {other}; run one Oncegate for each service",
            methods.join(", "),
            route.path
        );
        findings.push(LintFinding { lint: Lint::SplitHost, route: Some(route), text });
    }
    findings
}

/// The paths of a route that are refused because a lenient service may take them for another route's.
fn ambiguous_paths(config: &LoadedConfig) -> Vec<LintFinding<'_>> {
    let routes = &config.routes;
    let (mut table, mut exact) = (RouteTable::default(), RouteTable::default());
    for route in routes {
        table.insert(&route.methods, route.host.as_deref(), &route.path, route.guarded_spelling(), &route.name);
        exact.insert(&route.methods, route.host.as_deref(), &route.path, Spelling::Pass, &route.name);
    }
    let mut findings = Vec::new();
    for path in sample_paths(&routes.iter().map(|route| &route.path).collect::<Vec<_>>()) {
        for route in routes {
            let host = route.host.as_deref().unwrap_or_default();
            for method in &route.methods {
                if let RouteMatch::Ambiguous(other) = table.find(method, host, &RequestPath::new(&path))
                    && exact.find(method, host, &RequestPath::new(&path)) == RouteMatch::Route(&route.name)
                {
                    let text = format!(
                        "{method} `{path}` is refused (path-ambiguous): some services take it for a path of route `{other}`, whose \
                         `spelling` decides"
                    );
                    findings.push(LintFinding { lint: Lint::AmbiguousPath, route: Some(route), text });
                }
            }
        }
    }
    findings
}
