//! The resolved policy of a route, as people read it.

use http::StatusCode;

use super::units::{show_duration, show_size};
use super::value_origins::ValueOrigin;
use super::{
    DeliveryMode, ForwardKey, InFlightPolicy, KeyRule, KeySource, ReconcileConfig, Route, ScopePart, ScopeRule,
    StoreDownPolicy, UpstreamTlsConfig,
};
use crate::domain::grpc_status::GrpcStatus;
use crate::domain::key::KeySyntax;
use crate::domain::outcome_rules::OutcomeRule;
use crate::domain::quantity::quantity;
use crate::domain::response_policy::{OnUnknown, ResponseVerdict, ServiceStatus, StatusTable, default_verdict};
use crate::domain::retry::RetryPolicy;

/// The labels of the settings, in order, each with the keys that its value is made of. A table's name stands for all its keys.
const KEYS: [(&str, &[&str]); 30] = [
    ("was", &["was"]),
    ("matches", &["methods", "host", "path"]),
    ("spelling", &["spelling"]),
    ("mode", &["mode"]),
    ("upstream", &["upstream"]),
    ("upstream tls", &["upstream_tls"]),
    ("dialect", &["dialect"]),
    ("key", &["key"]),
    ("forwarded as", &["forward_key"]),
    ("scope", &["scope"]),
    ("challenge", &["challenge"]),
    ("space", &["space"]),
    ("fingerprint", &["fingerprint"]),
    ("ttl", &["ttl", "after_ttl", "remember", "max_age"]),
    ("in flight", &["in_flight", "wait_timeout"]),
    ("timeouts", &["connect_timeout", "upstream_timeout", "upstream_idle_timeout"]),
    ("stored", &["store_statuses"]),
    ("released", &["release_statuses"]),
    ("unknown", &["unknown_statuses"]),
    ("outcome", &["outcome"]),
    ("store down", &["store_down"]),
    ("on unknown", &["on_unknown", "reconcile.after"]),
    ("delivered", &["delivery", "retry"]),
    ("reconciled", &["reconcile.url", "reconcile.every", "reconcile.max_attempts", "reconcile.confirmations"]),
    ("bodies", &["max_request_body", "max_response_body"]),
    ("cors", &["cors"]),
    ("new keys", &["limits.new_keys_per_second", "limits.burst"]),
    ("live keys", &["limits.live_keys"]),
    ("authorized by", &["replay.authorize", "replay.authorize_cache"]),
    ("not replayed", &["replay.drop_headers"]),
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
    /// Its settings, in the order of `KEYS`; without those that are off.
    pub fn settings(&self) -> Vec<RouteSetting<'_>> {
        let setting = |(label, keys): &(&'static str, &[&str])| {
            let value = describe(self, label)?;
            Some(RouteSetting { label, value, origins: self.origins.find(keys) })
        };
        KEYS.iter().filter_map(setting).collect()
    }
}

/// The value of a setting; `None` where it is off.
fn describe(route: &Route, label: &str) -> Option<String> {
    Some(match label {
        "was" if route.was.is_empty() => return None,
        "was" => route.was.join(", "),
        "matches" => {
            let methods: Vec<_> = route.methods.iter().map(|method| method.as_str()).collect();
            format!("{} {}{}", methods.join(" "), route.host.as_deref().unwrap_or_default(), route.path)
        }
        "spelling" => format!("{:?}", route.spelling).to_lowercase(),
        "mode" => route.mode.name().to_owned(),
        "upstream" => route.upstream.to_string(),
        "upstream tls" => upstream_tls(&route.upstream_tls)?,
        "dialect" => route.dialect.name().to_owned(),
        "key" => key(&route.key),
        "forwarded as" => forwarded(&route.forward_key),
        "scope" => scope(&route.scope),
        "challenge" => format!("401 with {}", route.challenge.as_ref()?.to_str().unwrap_or_default()),
        "space" => format!("{:?}", route.space).to_lowercase(),
        "fingerprint" => format!("recipe {}", route.recipe),
        "ttl" => ttl(route),
        "in flight" => in_flight(route),
        "timeouts" => timeouts(route),
        "stored" => statuses(&route.statuses, ResponseVerdict::Store),
        "released" => statuses(&route.statuses, ResponseVerdict::Release),
        "unknown" => statuses(&route.statuses, ResponseVerdict::Unknown),
        "outcome" if route.outcome.is_empty() => return None,
        "outcome" => route.outcome.iter().map(rule).collect::<Vec<_>>().join("; "),
        "store down" if route.store_down == StoreDownPolicy::Reject => return None,
        "store down" => "forwarded unguarded".into(),
        "on unknown" => on_unknown(route),
        "delivered" => delivered(route)?,
        "reconciled" => reconciled(route.reconcile.as_ref()?),
        "bodies" => {
            let bodies = [route.max_request_body, route.max_response_body].map(|bytes| show_size(bytes as u64));
            format!("request {}, response {}", bodies[0], bodies[1])
        }
        "cors" if route.cors.is_empty() => return None,
        "cors" => route.cors.to_string(),
        "new keys" => {
            let rate = route.key_rate?;
            format!("{} a second for each caller, {} at once", rate.per_second(), rate.burst())
        }
        "live keys" => format!("{} of each caller", route.live_keys?),
        "authorized by" => route.authorize.as_ref().map(|service| format!("{}/…", service.upstream))?,
        "not replayed" if route.drop_headers.is_empty() => "-".into(),
        "not replayed" => route.drop_headers.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", "),
        label => unreachable!("`{label}` is listed and not described"),
    })
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
    use super::super::key_docs::{self, ValueKind};
    use super::*;

    #[test]
    fn each_key_of_a_route_is_part_of_a_setting() {
        let listed: Vec<_> = KEYS.iter().flat_map(|(_, keys)| *keys).copied().collect();
        for key in key_docs::ROUTE.iter().filter(|key| key.name != "name") {
            let whole = listed.contains(&key.name);
            match key.kind {
                ValueKind::Table(keys) if !whole => {
                    for part in keys {
                        let path = format!("{}.{}", key.name, part.name);
                        assert!(listed.contains(&&*path), "{path}");
                    }
                }
                _ => assert!(whole, "{}", key.name),
            }
        }
    }
}
