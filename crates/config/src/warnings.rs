//! Lints: valid settings that may not be what their author wants. Each has a name, by which a file allows it.
//!
//! A lint asks what the resolved configuration does, and not what is written: a file that is right by another way stays
//! quiet.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use ipnet::IpNet;

use oncegate_domain::grpc_status::GrpcStatus;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::outcome_rules::OutcomeRule;
use oncegate_domain::path_samples::sample_paths;
use oncegate_domain::place::Place;
use oncegate_domain::response_policy::{OnUnknown, ResponseVerdict, ServiceStatus, default_verdict};
use oncegate_domain::route_table::{RouteMatch, RouteTable, Spelling};
use oncegate_settings::{
    Dialect, EventTarget, IssuerKeys, LoadedConfig, PostgresUrl, RedisServer, Route, RouteKind, RouteMode, SslMode,
    StoreLocation, UpstreamTarget, ValueOrigin, WebhookSender, Word, show_duration, words,
};
use oncegate_trust::jwt::Algorithm;

/// Shorter TTLs end before the pause of a client's later tries.
const TTL_MIN: Duration = Duration::from_secs(60);

/// Few services keep an unused connection for longer: Node.js 5 s, nginx 75 s.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// The 5xx that may come after the work, although a route lists them by themselves: the service has failed in it, or a
/// gateway has lost the answer.
const AFTER_THE_WORK: [u16; 6] = [500, 502, 504, 520, 522, 524];

words! {
    /// A valid setting that may not be what its author wants.
    pub enum Lint {
        /// Everybody on this machine can read a secret, a private key or the database.
        ReadableFile = "readable-file",
        /// The store is reached without TLS, or is not verified.
        StoreTransport = "store-transport",
        /// Nothing proves that an entry of the shared cache is Oncegate's own.
        CacheUnsigned = "cache-unsigned",
        /// A password crosses the network in cleartext.
        CleartextPassword = "cleartext-password",
        /// Nothing proves to a receiver that an event is Oncegate's own.
        EventsUnsigned = "events-unsigned",
        /// The keys are lost with the process.
        MemoryStore = "memory-store",
        /// Anybody may be a trusted proxy.
        AnyProxy = "any-proxy",
        /// No scope reads the tokens that could be verified.
        JwtUnused = "jwt-unused",
        /// The keys of the tokens' issuer are read without TLS.
        JwtCleartext = "jwt-cleartext",
        /// The key that verifies tokens makes tokens too.
        JwtSharedSecret = "jwt-shared-secret",
        /// No certificate can be verified.
        NoAuthorities = "no-authorities",
        /// A variable of OpenTelemetry has a value that is not known here.
        OtelVariable = "otel-variable",
        /// A body that the route allows never finds room.
        BodyWithoutRoom = "body-without-room",
        /// Any caller who knows a key gets its response.
        ScopeNone = "scope-none",
        /// The service is asked for a key that two callers may share.
        ReconcileByKey = "reconcile-by-key",
        /// Another route's spelling refuses a path of the route.
        AmbiguousPath = "ambiguous-path",
        /// Money is executed again after an answer that says that it was done.
        Money2xx = "money-2xx",
        /// Money is executed again after a failure that may come after the charge.
        Money5xx = "money-5xx",
        /// Money without a key is unguarded.
        MoneyKeyless = "money-keyless",
        /// Money is unguarded while the store is away.
        MoneyBypass = "money-bypass",
        /// Money of an unknown outcome is executed again.
        MoneyRetry = "money-retry",
        /// Money with another body counts as the same request.
        MoneyBody = "money-body",
        /// A key is forgotten before a client's retry.
        ShortTtl = "short-ttl",
        /// A restart ends attempts within their time limit.
        ShortDrain = "short-drain",
        /// A connection may be closed by the service under a request.
        LongIdle = "long-idle",
    }
}

/// A lint, and what it has found.
type LintFinding = (Lint, String);

/// A finding, and the route that it is about.
type PlacedFinding<'a> = (LintFinding, Option<&'a Route>);

/// The warnings that the file does not allow, each with the name of its lint. `outside` are the findings about the
/// machine.
pub(super) fn collect(config: &LoadedConfig, outside: impl Iterator<Item = LintFinding>) -> Vec<String> {
    let mut of_the_file = Vec::new();
    find_what_others_read_or_forge(config, &mut of_the_file);
    find_lost_or_claimed_identities(config, &mut of_the_file);
    // A route has no keys unless it enforces.
    let enforcing = config.live.routes.iter().filter(|route| route.options.mode == RouteMode::Enforce);
    let mut of_routes: Vec<PlacedFinding<'_>> = Vec::new();
    for route in enforcing {
        let mut found = Vec::new();
        find_in_route(config, route, &mut found);
        if route.options.kind == RouteKind::Money {
            find_in_money(route, &mut found);
        }
        of_routes.extend(found.into_iter().map(|finding| (finding, Some(&**route))));
    }
    // By lint, so that equal findings of several routes become one warning.
    of_routes.sort_by_key(|((lint, _), _)| *lint as usize);
    let placed = of_the_file.into_iter().chain(outside).map(|finding| (finding, None)).chain(of_routes);
    let mut warnings = Vec::<(LintFinding, Vec<&str>)>::new();
    for (finding, route) in placed.chain(ambiguous_paths(config)) {
        let name = finding.0.word();
        if config.live.allow.contains(&name) || route.is_some_and(|route| route.options.allow.contains(&name)) {
            continue;
        }
        let names = route.map(|route| &*route.name);
        match warnings.iter_mut().find(|(other, _)| *other == finding) {
            Some((_, others)) => others.extend(names),
            None => warnings.push((finding, names.into_iter().collect())),
        }
    }
    let warnings = warnings.into_iter().map(|((lint, text), names)| {
        let place = match &names[..] {
            [] => String::new(),
            [name] => format!("route `{name}`: "),
            names => format!("routes `{}`: ", names.join("`, `")),
        };
        format!("{place}{text} [{}]", lint.word())
    });
    warnings.collect()
}

/// Secrets and data that others can read, and data that they can make up.
fn find_what_others_read_or_forge(config: &LoadedConfig, found: &mut Vec<LintFinding>) {
    const DANGER: &str = "its password crosses the network in cleartext, and anybody in between can read it: write";
    let live = &config.live;
    let own = live.tls.iter().filter(|tls| tls.readable_by_all).map(|tls| ("tls.key", &tls.key));
    let towards =
        live.services.iter().map(|service| &service.tls).chain(live.routes.iter().map(|route| &route.upstream_tls));
    let towards: BTreeSet<_> = towards.filter_map(|tls| tls.exposed_key.as_ref()).collect();
    for (name, key) in own.chain(towards.into_iter().map(|key| ("upstream_tls.key", key))) {
        let text = format!("{name}: everybody on this machine can read `{0}`: `chmod o-r` it", key.display());
        found.push((Lint::ReadableFile, text));
    }
    if let StoreLocation::Postgres(url) = &live.store_url {
        found.extend(unverified_server(url).map(|text| (Lint::StoreTransport, text)));
    }
    if live.redis.is_some() && live.secrets.is_empty() {
        let text = "cache.redis without a `secret`: everybody who can write to the Redis server can forge replays, and \
                    everybody who can read there sees the stored responses";
        found.push((Lint::CacheUnsigned, text.into()));
    }
    if live.redis.as_ref().is_some_and(RedisServer::exposes_password) {
        found.push((Lint::CleartextPassword, format!("cache.redis: {DANGER} `rediss://`")));
    }
    let kafka = live.consumers.iter().filter_map(|consumer| consumer.source.kafka());
    for source in kafka.filter(|source| source.cluster.exposes_password()) {
        let text = format!("kafka of group `{}`: {DANGER} `tls = true`, or a `sasl` of scram", source.group);
        found.push((Lint::CleartextPassword, text));
    }
    for sink in &live.events {
        if let EventTarget::Http { upstream, secret: None, .. } = &sink.target {
            let text = format!(
                "events `{}`: no `secret` signs what {upstream} gets, so whoever reaches it can make up events",
                sink.name
            );
            found.push((Lint::EventsUnsigned, text));
        }
    }
}

fn unverified_server(url: &PostgresUrl) -> Option<String> {
    if url.is_on_this_machine() {
        return None;
    }
    let (word, danger) = match url.tls().mode {
        SslMode::Disable => ("disable", "anybody on the network in between can read and change all that is stored"),
        SslMode::Require => ("require", "the server is not verified, and could be anybody on the network in between"),
        SslMode::Prefer | SslMode::VerifyCa | SslMode::VerifyFull => return None,
    };
    Some(format!("store.url has `sslmode={word}` for a host that is not this machine: {danger}; see `verify-full`"))
}

/// Keys that are lost, and callers that anybody can claim to be.
fn find_lost_or_claimed_identities(config: &LoadedConfig, found: &mut Vec<LintFinding>) {
    if config.live.store_url == StoreLocation::Memory {
        let text = "store.url is `memory:`: after a restart every retry is executed again";
        found.push((Lint::MemoryStore, text.into()));
    }
    // Networks that are wider than one operator's: together, two halves are the whole.
    let is_wide = |network: &IpNet| match network {
        IpNet::V4(network) => network.prefix_len() < 8,
        IpNet::V6(network) => network.prefix_len() < 7,
    };
    for network in IpNet::aggregate(&config.live.trusted_proxies).into_iter().filter(is_wide) {
        let text = format!(
            "trusted_proxies has {network}, in which anybody may be: each sender there can claim to be any caller, by default \
             with `X-Api-Key`; write the gateway's own addresses"
        );
        found.push((Lint::AnyProxy, text));
    }
    let Some(jwt) = &config.live.jwt else { return };
    if jwt.rules.claims.is_empty() {
        let text = "jwt: no route's `scope` has a `jwt:` part, so no token is verified";
        found.push((Lint::JwtUnused, text.into()));
    }
    if let IssuerKeys::Url { upstream, .. } = &jwt.keys
        && matches!(**upstream, UpstreamTarget::Http(_))
        && !upstream.is_loopback()
    {
        let text = format!(
            "jwt.jwks is read without TLS from {upstream}: whoever can change the answer on its way can make any token"
        );
        found.push((Lint::JwtCleartext, text));
    }
    let is_secret =
        |algorithm: &&Algorithm| matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512);
    if let Some(algorithm) = jwt.rules.algorithms.iter().find(is_secret) {
        let text = format!(
            "jwt.algorithms has {algorithm:?}: its key is a secret that makes tokens too, so whoever can read jwks can be \
             any caller"
        );
        found.push((Lint::JwtSharedSecret, text));
    }
}

/// The findings about a route, whatever its executions cost.
fn find_in_route(config: &LoadedConfig, route: &Route, found: &mut Vec<LintFinding>) {
    let (options, start) = (&route.options, &config.start);
    if options.max_request_body as u64 > start.limits.held_bodies / 8 * 7 {
        let text = "a body of max_request_body never finds room in limits.held_bodies, seven eighths of which are for large \
                    bodies: its retries get 503 overloaded for ever";
        found.push((Lint::BodyWithoutRoom, text.into()));
    }
    // A key inside of a payment that is a part of the fingerprint is of no use without the payment.
    let is_payment =
        |place: &Place| matches!(place, Place::Header(name, Some(_)) if route.recipe.reads_field(name.as_str()));
    let has_proof = options.key.places().any(is_payment);
    let is_token = options.kind == RouteKind::Token;
    if !route.scope.keeps_callers_apart() && !has_proof && !is_token && route.signature.is_none() {
        let text = match route.scope.parts.is_empty() {
            true => "scope is `none`: any caller who knows a key gets its stored response",
            false => {
                "scope has only what stands in the path, the query or the body, which proves nothing: any caller who knows \
                 that and a key gets its stored response"
            }
        };
        found.push((Lint::ScopeNone, text.into()));
    }
    let is_confused = route.reconcile.as_ref().is_some_and(|reconcile| reconcile.lookup.confuses_callers());
    if is_confused && !route.scope.parts.is_empty() {
        let text = "reconcile.url has `{key}` but neither `{id}` nor `{scope}`: two callers may use one key, and one would be \
                    answered from the other's record; write `{id}`, which the service has as the first 64 digits of \
                    `Oncegate-Reservation`";
        found.push((Lint::ReconcileByKey, text.into()));
    }
    // A late retry of a repeatable request is refused by its own date, and a token that is used again by the service.
    // A redelivery of a sender is meant to be executed again.
    let is_refused = (options.remember.is_some() && options.replay.until.is_none())
        || options.sender != WebhookSender::None
        || options.dialect == Dialect::Repeatability
        || is_token;
    if options.ttl < TTL_MIN && !is_refused {
        let text = format!(
            "{} ({}) may end before a client's last try, which is executed again then: set it above that, or `after_ttl = \
             \"refuse\"`",
            if options.replay.until.is_some() { "replay.until" } else { "ttl" },
            show_duration(options.ttl)
        );
        found.push((Lint::ShortTtl, text));
    }
    if options.upstream_timeout > start.drain_timeout {
        let [drain, upstream] = [start.drain_timeout, options.upstream_timeout].map(show_duration);
        let text = format!(
            "drain_timeout ({drain}) is shorter than upstream_timeout ({upstream}): a restart makes the outcomes of running \
             attempts unknown"
        );
        found.push((Lint::ShortDrain, text));
    }
    // A service that closes a connection of HTTP/2 says which requests it has not processed.
    if options.upstream_idle_timeout > IDLE_MAX && !matches!(*route.service.upstream, UpstreamTarget::H2c(_)) {
        let text = format!(
            "upstream_idle_timeout ({}) is longer than most services keep an unused connection, and a request on one that is \
             being closed has an unknown outcome: set it below the service's own keep-alive",
            show_duration(options.upstream_idle_timeout)
        );
        found.push((Lint::LongIdle, text));
    }
}

/// The findings about a route whose kind is `money`.
fn find_in_money(route: &Route, found: &mut Vec<LintFinding>) {
    let options = &route.options;
    if let Some((released, _)) = released_success(route) {
        let text = format!(
            "kind is `money`, and after a {released}, by which the service says that it has charged, a retry is executed again: \
             take it, or its class, out of release_statuses; write `equals` in a rule of outcome that releases it"
        );
        found.push((Lint::Money2xx, text));
    }
    if let Some(released) = released_failure(route) {
        let text = format!(
            "kind is `money`, and after a {released}, although the service may have charged, a retry is executed again: take \
             it, or its class, out of release_statuses; a code that comes before any work, such as \"503\", is listed by itself"
        );
        found.push((Lint::Money5xx, text));
    }
    // A request of x402 that has not paid has no payment, and no key in it.
    if !options.key.required && options.dialect != Dialect::X402 {
        let text = "kind is `money`, and a request without a key passes unguarded: write `key = { required = true }`";
        found.push((Lint::MoneyKeyless, text.into()));
    }
    if route.bypasses() {
        let text = "kind is `money`, and store_down is `bypass`: while the store is away, a retry may be executed again; \
                    write `reject`";
        found.push((Lint::MoneyBypass, text.into()));
    }
    if !matches!(options.on_unknown, OnUnknown::Hold | OnUnknown::Vendor) {
        let text = format!(
            "kind is `money`, and on_unknown is `{}`: a request that may have been executed is executed again; write `hold`, \
             and a `reconcile.url`",
            options.on_unknown.word()
        );
        found.push((Lint::MoneyRetry, text));
    }
    let has_bodies = options.methods.iter().any(|method| ![Method::DELETE, Method::GET].contains(method));
    if has_bodies && !route.recipe.reads_body() {
        let text = "kind is `money`, and fingerprint.body is `none`: a request for another amount under the same key gets the \
                    first one's response";
        found.push((Lint::MoneyBody, text.into()));
    }
}

fn is_released(route: &Route, status: ServiceStatus) -> bool {
    route.statuses.verdict_on(status, false) == ResponseVerdict::Release
}

/// A success after which a retry is executed again, and the option that says so: about its status or its body. A rule
/// about the body that names the value there is a decision about its service. Those of a dialect are the convention of
/// its API.
pub(super) fn released_success(route: &Route) -> Option<(ServiceStatus, &'static str)> {
    let successes = (200..300).filter_map(|code| StatusCode::from_u16(code).ok()).map(ServiceStatus::Http);
    let mut all = successes.chain([ServiceStatus::Grpc(GrpcStatus::Ok)]);
    if let Some(status) = all.find(|status| is_released(route, *status)) {
        return Some((status, "release_statuses"));
    }
    let releases = |rule: &OutcomeRule| rule.verdict == ResponseVerdict::Release && rule.equals.is_none();
    let by_body = route.options.outcome.iter().any(releases) && !is_convention(route, "outcome");
    by_body.then_some((ServiceStatus::Http(StatusCode::OK), "outcome"))
}

/// Whether an option of the route is that of its dialect.
fn is_convention(route: &Route, option: &str) -> bool {
    route.origins.find(&[option]).iter().any(|(origin, _)| *origin == ValueOrigin::Preset("dialect"))
}

/// A failure that may come after the work. A code that the route lists by itself is a decision about its service, if it
/// can come before the work. A dialect's own list is the convention of its API.
pub(super) fn released_failure(route: &Route) -> Option<ServiceStatus> {
    let is_meant = |status: StatusCode| route.statuses.names(status) && !AFTER_THE_WORK.contains(&status.as_u16());
    let http = (500..600).filter_map(|code| StatusCode::from_u16(code).ok()).filter(|status| !is_meant(*status));
    let calls = GrpcStatus::ALL.into_iter().filter(|status| default_verdict(*status) == ResponseVerdict::Unknown);
    let mut failures = http.map(ServiceStatus::Http).chain(calls.map(ServiceStatus::Grpc));
    failures.find(|status| is_released(route, *status)).filter(|_| !is_convention(route, "release_statuses"))
}

/// The paths of a route that are refused because a lenient service may take them for another route's.
fn ambiguous_paths(config: &LoadedConfig) -> Vec<PlacedFinding<'_>> {
    config.live.services.iter().flat_map(|service| ambiguous_paths_of(config.live.routes_of(&service.name))).collect()
}

fn ambiguous_paths_of<'a>(routes: impl Iterator<Item = &'a Arc<Route>>) -> Vec<PlacedFinding<'a>> {
    let routes: Vec<_> = routes.collect();
    let (mut table, mut exact) = (RouteTable::default(), RouteTable::default());
    // Each method is asked once for a path, and not for each route: with 1,000 routes that took 26 s.
    let mut targets = BTreeMap::new();
    for route in &routes {
        table.insert(&route.options.methods, &route.path, route.guarded_spelling(), &route.name);
        exact.insert(&route.options.methods, &route.path, Spelling::Pass, &route.name);
        for method in &route.options.methods {
            let (_, names) = targets.entry(method.as_str()).or_insert_with(|| (method, HashMap::new()));
            names.insert(&route.name, &***route);
        }
    }
    let mut findings = Vec::new();
    for path in sample_paths(&routes.iter().map(|route| &route.path).collect::<Vec<_>>()) {
        for (method, names) in targets.values() {
            if let RouteMatch::Ambiguous(other) = table.find(method, &RequestPath::new(&path))
                && let RouteMatch::Route(name) = exact.find(method, &RequestPath::new(&path))
                && let Some(route) = names.get(name)
            {
                let text = format!(
                    "{method} `{path}` is refused (path-ambiguous): some services take it for a path of route `{other}`, whose \
                     `spelling` decides"
                );
                findings.push(((Lint::AmbiguousPath, text), Some(*route)));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_is_only_trusted_is_warned_about() {
        for (text, warned) in [
            ("postgres://u@db/d?sslmode=disable", true),
            ("postgres://u@db/d?sslmode=require", true),
            ("postgres://u@db/d?sslmode=require&sslrootcert=ca.pem", false),
            ("postgres://u@db/d", false),
            ("postgres://u@127.0.0.1/d?sslmode=disable", false),
        ] {
            assert_eq!(unverified_server(&PostgresUrl::parse(text).unwrap()).is_some(), warned, "{text}");
        }
    }
}
