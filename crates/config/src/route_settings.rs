//! The resolved policy of a route, as people read it.

use http::StatusCode;

use super::key_doc::{KeyDoc, ValueKind};
use super::kind::RouteKind;
use super::route_options::{OnClientGone, RouteOptions};
use super::units::{show_duration, show_size};
use super::value_origins::ValueOrigin;
use super::words::Word;
use super::{
    DeliveryMode, ForwardKey, InFlightPolicy, KeyRule, KeySource, ReconcileConfig, Route, SameBodyPolicy, ScopePart,
    ScopeRule, StoreDownPolicy, UpstreamTlsConfig,
};
use oncegate_domain::grpc_status::GrpcStatus;
use oncegate_domain::key::KeySyntax;
use oncegate_domain::outcome_rules::OutcomeRule;
use oncegate_domain::quantity::quantity;
use oncegate_domain::response_policy::{OnUnknown, ResponseVerdict, ServiceStatus, StatusTable, default_verdict};
use oncegate_domain::retry::RetryPolicy;

/// A setting's label, and its value; `None` where it is off.
type LabelledSetting = (&'static str, fn(&Route) -> Option<String>);

/// The settings in order. The options that are part of one are declared with its label.
const SETTINGS: &[LabelledSetting] = &[
    ("was", |route| (!route.was.is_empty()).then(|| route.was.join(", "))),
    ("matches", |route| Some(matches(route))),
    ("spelling", |route| Some(route.spelling.word().into())),
    ("mode", |route| Some(route.mode.name().into())),
    ("upstream", |route| Some(route.upstream.to_string())),
    ("upstream tls", |route| upstream_tls(&route.upstream_tls)),
    ("kind", |route| (route.kind == RouteKind::Money).then(|| route.kind.word().into())),
    ("dialect", |route| Some(route.dialect.word().into())),
    ("operations", |route| (!route.operations.is_empty()).then(|| route.operations.join(", "))),
    ("key", |route| Some(key(&route.key))),
    ("forwarded as", |route| Some(forwarded(&route.forward_key))),
    ("scope", |route| Some(scope(&route.scope))),
    ("challenge", |route| Some(format!("401 with {}", route.challenge.as_ref()?.to_str().unwrap_or_default()))),
    ("space", |route| Some(route.space.word().into())),
    ("fingerprint", |route| Some(format!("recipe {}", route.recipe))),
    ("ttl", |route| Some(ttl(route))),
    ("in flight", |route| Some(in_flight(route))),
    ("same body", |route| Some(same_body(route))),
    ("timeouts", |route| Some(timeouts(route))),
    ("stream", |route| Some(stream(route))),
    ("stored", |route| Some(statuses(&route.statuses, ResponseVerdict::Store))),
    ("released", |route| Some(statuses(&route.statuses, ResponseVerdict::Release))),
    ("unknown", |route| Some(statuses(&route.statuses, ResponseVerdict::Unknown))),
    ("outcome", |route| {
        (!route.outcome.is_empty()).then(|| route.outcome.iter().map(rule).collect::<Vec<_>>().join("; "))
    }),
    ("store down", |route| (route.store_down == StoreDownPolicy::Bypass).then(|| "forwarded unguarded".into())),
    ("on unknown", |route| Some(on_unknown(route))),
    ("delivered", delivered),
    ("reconciled", |route| route.reconcile.as_ref().map(reconciled)),
    ("bodies", |route| Some(bodies(route))),
    ("cors", |route| (!route.cors.is_empty()).then(|| route.cors.to_string())),
    ("new keys", |route| route.limits.new_keys_per_second.map(|rate| rate.to_string())),
    ("live keys", |route| Some(format!("{} of each caller", route.limits.live_keys?))),
    ("authorized by", |route| route.replay.authorize.as_ref().map(|service| format!("{}/…", service.upstream))),
    ("not replayed", |route| Some(not_replayed(route))),
    ("allowed", |route| {
        (!route.allow.is_empty()).then(|| route.allow.iter().map(|lint| lint.word()).collect::<Vec<_>>().join(", "))
    }),
];

/// A setting of a route: what its keys amount to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSetting<'a> {
    /// The setting's name.
    pub label: &'static str,
    /// Its value. Never has a secret or a password.
    pub value: String,
    /// The places that the value comes from, each with the keys that are written there.
    pub origins: Vec<(ValueOrigin, Vec<&'a str>)>,
}

impl Route {
    /// Its settings, in order; without those that are off.
    pub fn settings(&self) -> Vec<RouteSetting<'_>> {
        let setting = |(label, describe): &LabelledSetting| {
            let keys = keys_of(label);
            let keys: Vec<_> = keys.iter().map(|key| &**key).collect();
            Some(RouteSetting { label, value: describe(self)?, origins: self.origins.find(&keys) })
        };
        SETTINGS.iter().filter_map(setting).collect()
    }
}

/// The keys that a setting's value is made of. A table's name stands for all its keys.
fn keys_of(label: &str) -> Vec<String> {
    let is_part = |key: &&KeyDoc| key.label == Some(label);
    let keys = RouteOptions::KEYS.iter().flat_map(|key| match key.kind {
        ValueKind::Table(keys) if key.label.is_none() => {
            keys.iter().filter(is_part).map(|part| format!("{}.{}", key.name, part.name)).collect()
        }
        _ => Some(key).filter(is_part).map(|key| vec![key.name.to_owned()]).unwrap_or_default(),
    });
    keys.collect()
}

fn matches(route: &Route) -> String {
    let methods: Vec<_> = route.methods.iter().map(|method| method.as_str()).collect();
    format!("{} {}{}", methods.join(" "), route.host.as_deref().unwrap_or_default(), route.path)
}

fn bodies(route: &Route) -> String {
    let bodies = [route.max_request_body, route.max_response_body].map(|bytes| show_size(bytes as u64));
    format!("request {}, response {}", bodies[0], bodies[1])
}

fn not_replayed(route: &Route) -> String {
    let names: Vec<_> = route.replay.drop_headers.iter().map(|name| name.as_str()).collect();
    if names.is_empty() { "-".into() } else { names.join(", ") }
}

fn key(rule: &KeyRule) -> String {
    let required = if rule.required { "required" } else { "optional" };
    let sources: Vec<_> = rule.sources.iter().map(source).collect();
    let syntax = match rule.syntax {
        KeySyntax::Ietf => "",
        KeySyntax::Opaque => ", opaque",
        KeySyntax::SfString => ", quoted",
        KeySyntax::Uuid => ", a UUID",
    };
    let (sources, limits) = (sources.join(" or "), rule.limits);
    format!("{sources}{syntax}, {required}, {} to {} characters", limits.length_min, limits.length_max)
}

fn rule(rule: &OutcomeRule) -> String {
    let equals = rule.equals.as_ref().map_or(String::new(), |value| format!(" = {value}"));
    let without = rule.without.as_ref().map_or(String::new(), |pointer| format!(" without {pointer}"));
    let verdict = match rule.verdict {
        ResponseVerdict::Release => "released",
        ResponseVerdict::Store => "stored",
        ResponseVerdict::Unknown => "unknown",
    };
    format!("{}{equals}{without}: {verdict}", rule.pointer)
}

fn timeouts(route: &Route) -> String {
    let [connect, upstream, idle] =
        [route.connect_timeout, route.upstream_timeout, route.upstream_idle_timeout].map(show_duration);
    format!("connect {connect}, upstream {upstream}, idle {idle}")
}

fn stream(route: &Route) -> String {
    let [idle, whole] = [route.stream_idle_timeout, route.stream_timeout].map(show_duration);
    let gone = match route.on_client_gone {
        OnClientGone::Cancel => "cancelled",
        OnClientGone::Continue => "continued",
    };
    format!("{}, idle {idle}, whole {whole}, {gone} without its client", route.stream.word())
}

fn on_unknown(route: &Route) -> String {
    match route.on_unknown {
        OnUnknown::Hold => "hold".into(),
        OnUnknown::Retry => "retry at once".into(),
        OnUnknown::RetryWhenQuiet => {
            format!("retry, {} past the attempt's deadline", show_duration(route.quiet_after))
        }
    }
}

/// The written parts of TLS towards the service; `None` if none is.
fn upstream_tls(tls: &UpstreamTlsConfig) -> Option<String> {
    let ca = tls.authorities.as_ref().map(|ca| format!("authorities of {}", ca.display()));
    let certificate = tls.certificate.as_ref().map(|certificate| format!("shows {}", certificate.display()));
    let name = tls.server_name.as_ref().map(|name| format!("expects {}", name.to_str()));
    let parts: Vec<_> = [ca, certificate, name].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

pub(super) fn scope(rule: &ScopeRule) -> String {
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
    Some(format!(
        "{who}; pauses from {base} to {cap}, dead after {} or {give_up_after}",
        quantity(max_attempts.into(), "attempt", "attempts")
    ))
}

fn reconciled(reconcile: &ReconcileConfig) -> String {
    let ReconcileConfig { lookup, every, max_attempts, confirmations } = reconcile;
    format!(
        "by {lookup} every {}; dead after {}, not executed after {}",
        show_duration(*every),
        quantity((*max_attempts).into(), "lookup", "lookups"),
        quantity((*confirmations).into(), "404", "consecutive 404s")
    )
}

fn source(source: &KeySource) -> String {
    match source {
        KeySource::Body(pointer) => format!("{pointer} of a JSON body"),
        KeySource::Form(name) => format!("field {name} of a form"),
        KeySource::Header(name) => name.to_string(),
        KeySource::Payload(name, pointer) => format!("{pointer} of the JSON in {name}"),
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
        route.age_limit().map_or(String::new(), |age| format!(", requests older than {} refused", show_duration(age)));
    format!("{}, {late}{age}", show_duration(route.ttl))
}

fn in_flight(route: &Route) -> String {
    let wait = show_duration(route.wait_timeout);
    match route.in_flight {
        InFlightPolicy::Accepted => "202".into(),
        InFlightPolicy::Conflict => format!("409, or with `Prefer: wait=N` wait up to {wait}"),
        InFlightPolicy::Wait => format!("wait up to {wait}"),
    }
}

fn same_body(route: &Route) -> String {
    let window = show_duration(route.same_body_window);
    match route.same_body {
        SameBodyPolicy::Allow => "allowed".into(),
        SameBodyPolicy::Refuse => format!("refused within {window}"),
        SameBodyPolicy::Warn => format!("logged within {window}"),
    }
}

/// The statuses of a verdict in short: whole classes, with the codes that differ, and the gRPC statuses that differ from their
/// default.
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
    let is_written = |status: &GrpcStatus| {
        default_verdict(*status) != verdict && table.verdict_on(ServiceStatus::Grpc(*status), false) == verdict
    };
    parts.extend(GrpcStatus::ALL.iter().filter(|status| is_written(status)).map(GrpcStatus::to_string));
    if parts.is_empty() { "-".into() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_of_a_route_is_part_of_a_setting() {
        for (label, _) in SETTINGS {
            assert!(!keys_of(label).is_empty(), "{label}");
        }
        let check = |key: &KeyDoc| {
            let label = key.label.unwrap_or_else(|| panic!("{} has no label", key.name));
            assert!(SETTINGS.iter().any(|(known, _)| *known == label), "{label}");
        };
        for key in RouteOptions::KEYS.iter().filter(|key| key.name != "name") {
            match key.kind {
                ValueKind::Table(keys) if key.label.is_none() => keys.iter().for_each(check),
                _ => check(key),
            }
        }
    }
}
