//! The resolved configuration as text, for people.

use std::fmt::Write;

use http::StatusCode;

use super::exposure;
use super::units::{show_duration, show_size};
use super::{
    Config, Consumer, DeliveryMode, ForwardKey, InFlightPolicy, KeySource, ReconcileConfig, Route, ScopePart,
    ScopeRule, StoreDownPolicy, TlsConfig, UpstreamTlsConfig,
};
use crate::domain::fingerprint::Secrets;
use crate::domain::response_policy::{OnUnknown, ResponseVerdict, StatusTable};
use crate::domain::retry::RetryPolicy;
use crate::tls::ClientCertificates;

/// The output of `oncegate check`: the proxy's own settings and each resolved route. Never has a secret or a password;
/// the warnings are left to the caller.
pub fn describe(config: &Config) -> String {
    let mut lines = DescriptionTable::default();
    let tls = config.tls.as_ref().map(describe_tls).unwrap_or_default();
    let token = match (&config.admin.token, config.admin.open, &config.admin.token_file) {
        (Some(_), ..) => " with a token".to_owned(),
        (None, true, _) => ", open to everybody on this machine".to_owned(),
        (None, false, Some(file)) => format!(" with the token in {}", file.display()),
        (None, false, None) => ", without a place for its token".to_owned(),
    };
    lines.row("listen", &format!("{}{tls}, admin on {}{token}", config.listen, config.admin.listen));
    lines.row("upstream", &config.pass.upstream.to_string());
    let encrypted = if config.store.encrypt { ", responses encrypted" } else { "" };
    lines.row("store", &format!("{}{encrypted}", config.store.location));
    lines.row("cache", &format!("{} of memory", show_size(config.cache_memory)));
    lines.row("service", &config.service);
    lines.row("secret", &secrets(&config.secrets));
    for (label, value) in exposure::describe(config) {
        lines.row(label, &value);
    }
    if let Some(jwt) = &config.jwt {
        let rules = &jwt.rules;
        let algorithms: Vec<_> = rules.algorithms.iter().map(|algorithm| format!("{algorithm:?}")).collect();
        let (audience, algorithms) = (rules.audience.join(", "), algorithms.join(", "));
        lines.row("tokens", &format!("of {} for {audience}, keys at {}, {algorithms}", rules.issuer, jwt.keys));
    }
    for route in &config.routes {
        describe_route(&mut lines, route);
    }
    for consumer in &config.consumers {
        describe_consumer(&mut lines, consumer);
    }
    lines.text
}

/// The secrets by their names, which reveal nothing of them.
fn secrets(secrets: &Secrets) -> String {
    match &*secrets.names() {
        [] => "none".into(),
        [current] => format!("set, named {current}"),
        [current, previous @ ..] => format!("set, named {current}; previous ones {}", previous.join(", ")),
    }
}

fn describe_tls(tls: &TlsConfig) -> String {
    let clients = match &tls.clients {
        None => String::new(),
        Some((authorities, ClientCertificates::Optional)) => {
            format!(", client certificates of {}, optional", authorities.display())
        }
        Some((authorities, ClientCertificates::Required)) => {
            format!(", client certificates of {}, required", authorities.display())
        }
    };
    format!(" with TLS ({}{clients})", tls.certificate.display())
}

fn describe_route(lines: &mut DescriptionTable, route: &Route) {
    let methods: Vec<_> = route.methods.iter().map(|method| method.as_str()).collect();
    lines.text.push('\n');
    lines.row("route", &route.name);
    if !route.was.is_empty() {
        lines.row("  was", &route.was.join(", "));
    }
    let host = route.host.as_deref().unwrap_or_default();
    lines.row("  matches", &format!("{} {host}{}", methods.join(" "), route.path));
    lines.row("  spelling", &format!("{:?}", route.spelling).to_lowercase());
    lines.row("  mode", route.mode.name());
    lines.row("  upstream", &route.upstream.to_string());
    if let Some(tls) = upstream_tls(&route.upstream_tls) {
        lines.row("  upstream tls", &tls);
    }
    let required = if route.key.required { "required" } else { "optional" };
    let limits = route.key.limits;
    let sources: Vec<_> = route.key.sources.iter().map(source).collect();
    lines.row(
        "  key",
        &format!("{}, {required}, {} to {} characters", sources.join(" or "), limits.length_min, limits.length_max),
    );
    lines.row("  forwarded as", &forwarded(&route.forward_key));
    lines.row("  scope", &scope(&route.scope));
    lines.row("  space", &format!("{:?}", route.space).to_lowercase());
    lines.row("  fingerprint", &format!("recipe {}", route.recipe));
    lines.row("  ttl", &ttl(route));
    lines.row("  in flight", &in_flight(route));
    lines.row(
        "  timeouts",
        &format!(
            "connect {}, upstream {}, idle {}",
            show_duration(route.connect_timeout),
            show_duration(route.upstream_timeout),
            show_duration(route.upstream_idle_timeout)
        ),
    );
    for (verdict, label) in [
        (ResponseVerdict::Store, "  stored"),
        (ResponseVerdict::Release, "  released"),
        (ResponseVerdict::Unknown, "  unknown"),
    ] {
        lines.row(label, &statuses(&route.statuses, verdict));
    }
    if route.store_down == StoreDownPolicy::Bypass {
        lines.row("  store down", "forwarded unguarded");
    }
    let on_unknown = match route.on_unknown {
        OnUnknown::Hold => "hold".into(),
        OnUnknown::Retry => "retry at once".into(),
        OnUnknown::RetryWhenQuiet => {
            format!("retry, {} past the attempt's deadline", show_duration(route.quiet_after))
        }
    };
    lines.row("  on unknown", &on_unknown);
    if let Some(delivered) = delivered(route) {
        lines.row("  delivered", &delivered);
    }
    if let Some(reconcile) = &route.reconcile {
        lines.row("  reconciled", &reconciled(reconcile));
    }
    let bodies = [route.max_request_body, route.max_response_body].map(|bytes| show_size(bytes as u64));
    lines.row("  bodies", &format!("request {}, response {}", bodies[0], bodies[1]));
    if !route.cors.is_empty() {
        lines.row("  cors", &route.cors.to_string());
    }
    if let Some(rate) = route.key_rate {
        lines.row("  new keys", &format!("{} a second for each caller, {} at once", rate.per_second(), rate.burst()));
    }
    if let Some(live_keys) = route.live_keys {
        lines.row("  live keys", &format!("{live_keys} of each caller"));
    }
    if let Some(authorize) = &route.authorize {
        lines.row("  authorized by", &format!("{}{}", authorize.upstream, authorize.target));
    }
    let drop: Vec<_> = route.drop_headers.iter().map(|name| name.as_str()).collect();
    lines.row("  not replayed", if drop.is_empty() { "-".into() } else { drop.join(", ") }.as_str());
}

/// The written parts of TLS towards the service; `None` if none is.
fn upstream_tls(tls: &UpstreamTlsConfig) -> Option<String> {
    let ca = tls.authorities.as_ref().map(|ca| format!("authorities of {}", ca.display()));
    let certificate = tls.certificate.as_ref().map(|certificate| format!("shows {}", certificate.display()));
    let name = tls.server_name.as_ref().map(|name| format!("expects {}", name.to_str()));
    let parts: Vec<_> = [ca, certificate, name].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn describe_consumer(lines: &mut DescriptionTable, consumer: &Consumer) {
    lines.text.push('\n');
    lines.row("consumer", &format!("{} of {}", consumer.queue, consumer.broker));
    lines.row("  as", &format!("POST {} ({})", consumer.path, consumer.route));
    lines.row("  key", &consumer.key.to_text());
    lines.row("  scope", &scope(&consumer.scope));
    lines.row("  at once", &consumer.prefetch.to_string());
    let dead = consumer.dead_letter_exchange.as_ref().map(|exchange| format!("to the exchange {exchange}"));
    lines.row("  dead letters", &dead.unwrap_or_else(|| "rejected".into()));
}

fn scope(rule: &ScopeRule) -> String {
    let part = |part: &ScopePart| format!("{}{}", part.name, if part.optional { "?" } else { "" });
    let parts: Vec<_> = rule.parts.iter().map(part).collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

/// The delivery policy; `None` where each request is answered at once.
fn delivered(route: &Route) -> Option<String> {
    let who = match route.delivery {
        DeliveryMode::Async => "later",
        DeliveryMode::Prefer => "later, if the client prefers that",
        DeliveryMode::Sync => return None,
    };
    let RetryPolicy { max_attempts, base, cap, give_up_after } = route.retry;
    let [base, cap, give_up_after] = [base, cap, give_up_after].map(show_duration);
    Some(format!("{who}; pauses from {base} to {cap}, given up after {max_attempts} attempts or {give_up_after}"))
}

fn reconciled(reconcile: &ReconcileConfig) -> String {
    let ReconcileConfig { lookup, every, max_attempts, confirmations } = reconcile;
    format!(
        "by {lookup} every {}, given up after {max_attempts}, 404 believed after {confirmations} in a row",
        show_duration(*every)
    )
}

fn source(source: &KeySource) -> String {
    match source {
        KeySource::Body(pointer) => format!("{pointer} of a JSON body"),
        KeySource::Form(name) => format!("field {name} of a form"),
        KeySource::Header(name) => name.to_string(),
        KeySource::Query(name) => format!("query parameter {name}"),
    }
}

fn forwarded(key: &ForwardKey) -> String {
    match key {
        ForwardKey::Derive(step) => format!("KEY:{step}"),
        ForwardKey::None => "nothing".into(),
        ForwardKey::Same => "it came".into(),
    }
}

fn ttl(route: &Route) -> String {
    let late = match route.remember {
        Some(time) => format!("then refused for {}", show_duration(time)),
        None => "then forgotten".into(),
    };
    let age =
        route.max_age.map_or(String::new(), |age| format!(", requests older than {} refused", show_duration(age)));
    format!("{}, {late}{age}", show_duration(route.ttl))
}

fn in_flight(route: &Route) -> String {
    let wait = show_duration(route.wait_timeout);
    match route.in_flight {
        InFlightPolicy::Accepted => "202".into(),
        InFlightPolicy::Conflict => format!("409, or wait up to {wait} if the client prefers to"),
        InFlightPolicy::Wait => format!("wait up to {wait}"),
    }
}

/// The statuses of a verdict in short: whole classes, with the codes that differ.
fn statuses(table: &StatusTable, verdict: ResponseVerdict) -> String {
    let mut parts = Vec::new();
    for class in 2..=5 {
        let codes = class * 100..class * 100 + 100;
        let has = |code: &u16| StatusCode::from_u16(*code).is_ok_and(|code| table.verdict_on(code, false) == verdict);
        let (with, without): (Vec<u16>, Vec<u16>) = codes.partition(has);
        let row = |codes: &[u16]| codes.iter().map(u16::to_string).collect::<Vec<_>>().join(" ");
        match (with.len(), without.len()) {
            (0, _) => {}
            (_, 0) => parts.push(format!("{class}xx")),
            (most, few) if most > few => parts.push(format!("{class}xx but {}", row(&without))),
            _ => parts.push(row(&with)),
        }
    }
    if parts.is_empty() { "-".into() } else { parts.join(", ") }
}

/// Labels and values in two columns.
#[derive(Default)]
struct DescriptionTable {
    text: String,
}

impl DescriptionTable {
    fn row(&mut self, label: &str, value: &str) {
        writeln!(self.text, "{label:<16}{value}").expect("writing to a String does not fail");
    }
}
