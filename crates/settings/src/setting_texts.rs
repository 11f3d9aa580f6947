//! The texts of settings, as people read them.

use http::StatusCode;

use super::{KeyPlace, KeyRule, ReconcileConfig, ScopePart, ScopeRule, UpstreamTlsConfig, show_duration};
use oncegate_domain::grpc_status::GrpcStatus;
use oncegate_domain::key::KeySyntax;
use oncegate_domain::outcome_rules::OutcomeRule;
use oncegate_domain::quantity::quantity;
use oncegate_domain::response_policy::{ResponseVerdict, ServiceStatus, StatusTable, default_verdict};

pub(super) fn key(rule: &KeyRule) -> String {
    let required = if rule.required { "required" } else { "optional" };
    let sources: Vec<_> = rule.from.iter().map(KeyPlace::to_string).collect();
    let syntax = match rule.syntax {
        KeySyntax::Ietf => "",
        KeySyntax::Opaque => ", opaque",
        KeySyntax::SfString => ", quoted",
        KeySyntax::Uuid => ", a UUID",
    };
    let (sources, limits) = (sources.join(" or "), rule.limits);
    let hash = if rule.hash { ", kept as its hash" } else { "" };
    format!("{sources}{syntax}{hash}, {required}, {} to {} characters", limits.length_min, limits.length_max)
}

pub(super) fn rule(rule: &OutcomeRule) -> String {
    let equals = rule.equals.as_ref().map_or(String::new(), |value| format!(" = {value}"));
    let without = rule.without.as_ref().map_or(String::new(), |pointer| format!(" without {pointer}"));
    let verdict = match rule.verdict {
        ResponseVerdict::Release => "released",
        ResponseVerdict::Store => "stored",
        ResponseVerdict::Unknown => "unknown",
    };
    format!("{}{equals}{without}: {verdict}", rule.pointer)
}

/// The written parts of TLS towards the service; `None` if none is.
pub(super) fn upstream_tls(tls: &UpstreamTlsConfig) -> Option<String> {
    let ca = tls.authorities.as_ref().map(|ca| format!("authorities of {}", ca.display()));
    let certificate = tls.certificate.as_ref().map(|certificate| format!("shows {}", certificate.display()));
    let name = tls.server_name.as_ref().map(|name| format!("expects {}", name.to_str()));
    let parts: Vec<_> = [ca, certificate, name].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The parts of a scope as they are written.
pub fn describe_scope(rule: &ScopeRule) -> String {
    let part = |part: &ScopePart| format!("{}{}", part.name, if part.optional { "?" } else { "" });
    let parts: Vec<_> = rule.parts.iter().map(part).collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

pub(super) fn reconciled(reconcile: &ReconcileConfig) -> String {
    let ReconcileConfig { lookup, every, max_attempts, confirmations } = reconcile;
    format!(
        "by {lookup} every {}; dead after {}, not executed after {}",
        show_duration(*every),
        quantity((*max_attempts).into(), "lookup", "lookups"),
        quantity((*confirmations).into(), "404", "consecutive 404s")
    )
}

/// The statuses of a verdict in short: whole classes, with the codes that differ, and the gRPC statuses that differ
/// from their default.
pub(super) fn statuses(table: &StatusTable, verdict: ResponseVerdict) -> String {
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
