//! The report of `oncegate check`: the resolved configuration as text, for people.

use std::fmt::Write;

use super::readable_data;
use oncegate_domain::fingerprint::Secrets;
use oncegate_settings::{
    Consumer, LoadedConfig, MessageSource, OtlpCollector, Route, RouteMode, TlsConfig, ValueOrigin, Word,
    describe_scope, show_size, show_whole_path,
};

/// The output of `oncegate check`: the proxy's own settings and each resolved route. Never has a secret or a password;
/// the warnings are left to the caller.
pub fn describe(config: &LoadedConfig) -> String {
    let LoadedConfig { start, live } = config;
    let mut text = String::new();
    let tls = live.tls.as_ref().map(describe_tls).unwrap_or_default();
    let token = match (&live.admin.token, start.admin.open, &start.admin.token_file) {
        (Some(_), ..) => " with a token".to_owned(),
        (None, true, _) => ", open to everybody on this machine".to_owned(),
        (None, false, Some(file)) => format!(" with the token in {}", show_whole_path(file)),
        (None, false, None) => ", without a place for its token".to_owned(),
    };
    row(&mut text, "listen", &format!("{}{tls}, admin on {}{token}", start.listen, start.admin.listen));
    if let [only] = &live.services[..] {
        row(&mut text, "upstream", &only.upstream.to_string());
    }
    let encrypted = if start.store.encrypt { ", responses encrypted" } else { "" };
    row(&mut text, "store", &format!("{}{encrypted}", start.store.url));
    let shared = match &live.redis {
        None => String::new(),
        Some(server) if live.secrets.is_empty() => format!(", shared through {server} without a secret"),
        Some(server) => format!(", shared through {server}, encrypted"),
    };
    row(&mut text, "cache", &format!("{} of memory{shared}", show_size(start.cache.memory)));
    for service in &live.services {
        let hosts = if service.hosts.is_empty() { "all other hosts".into() } else { service.hosts.join(", ") };
        match live.services.len() {
            1 => row(&mut text, "service", &service.name),
            _ => row(&mut text, "service", &format!("{}: {hosts}, to {}", service.name, service.upstream)),
        }
    }
    row(&mut text, "secret", &secrets(&live.secrets));
    for (label, value) in readable_data::describe(config) {
        row(&mut text, label, &value);
    }
    if let Some(collector) = &start.telemetry.otlp {
        row(&mut text, "traces", &describe_collector(collector));
    }
    if let Some(jwt) = &live.jwt {
        let rules = &jwt.rules;
        let algorithms: Vec<_> = rules.algorithms.iter().map(|algorithm| format!("{algorithm:?}")).collect();
        let (audience, algorithms) = (rules.audience.join(", "), algorithms.join(", "));
        row(&mut text, "tokens", &format!("of {} for {audience}, keys at {}, {algorithms}", rules.issuer, jwt.keys));
    }
    if live.routes.iter().any(|route| route.options.mode != RouteMode::Off && route.scope.reads_authorization()) {
        row(
            &mut text,
            "credentials",
            "400 scope-missing for those that differ with each try, such as Digest (docs/callers.md)",
        );
    }
    for route in &live.routes {
        describe_route(&mut text, route);
    }
    for consumer in &live.consumers {
        describe_consumer(&mut text, consumer);
    }
    for sink in &live.events {
        let types: Vec<_> = sink.types.iter().map(|kind| kind.word()).collect();
        let body = if sink.body { ", with the body" } else { "" };
        let (routes, types) = (sink.routes.join(", "), types.join(", "));
        row(&mut text, &format!("events {}", sink.name), &format!("{types} of {routes} to {}{body}", sink.target));
    }
    text
}

/// The routes, a line each: the service, the name, the requests, the mode, the kind, and how long keys are remembered.
pub fn describe_in_short(config: &LoadedConfig) -> String {
    let mut text = String::new();
    for route in &config.live.routes {
        let settings = route.settings();
        let value =
            |label| settings.iter().find(|setting| setting.label == label).map_or("", |setting| &*setting.value);
        let service = &route.service.name;
        let (matches, mode, kind) = (value("matches"), value("mode"), route.options.kind.word());
        let _ = writeln!(text, "{service:<16} {:<24} {matches:<40} {mode:<8} {kind:<9} {}", route.name, value("ttl"));
    }
    text
}

/// The secrets by their names, which reveal nothing of them.
fn secrets(secrets: &Secrets) -> String {
    match &*secrets.names() {
        [] => "none".into(),
        [current] => format!("set, named {current}"),
        [current, previous @ ..] => format!("set, named {current}; previous ones {}", previous.join(", ")),
    }
}

/// The collector without its path and the values of its fields and of the resource, which may be secrets.
fn describe_collector(collector: &OtlpCollector) -> String {
    let OtlpCollector { fields, resource, sampler, .. } = collector;
    let (ratio, of) = (sampler.bound as f64 / 2_f64.powi(64), if sampler.follows_caller { "new" } else { "all" });
    let resource = resource.iter().map(|(name, _)| format!(", attribute {}", name.escape_default()));
    let more: String = fields.keys().map(|name| format!(", field {name}")).chain(resource).collect();
    format!("to {collector:?} by {}, ratio {ratio} of {of} traces{more}", collector.protocol())
}

fn describe_tls(tls: &TlsConfig) -> String {
    let clients = match &tls.clients {
        None => String::new(),
        Some((authorities, clients)) => {
            format!(", client certificates of {}, {}", authorities.display(), clients.word())
        }
    };
    format!(" with TLS ({}{clients})", tls.certificate.display())
}

fn describe_route(text: &mut String, route: &Route) {
    text.push('\n');
    row(text, "route", &route.name);
    for setting in route.settings() {
        let presets = setting.origins.iter().filter(|(origin, _)| matches!(origin, ValueOrigin::Preset(_)));
        let keys: String =
            presets.map(|(origin, keys)| format!("  ({}: {})", origin.name(), keys.join(", "))).collect();
        row(text, &format!("  {}", setting.label), &format!("{}{keys}", setting.value));
    }
}

fn describe_consumer(text: &mut String, consumer: &Consumer) {
    text.push('\n');
    let (from, dead) = match &consumer.source {
        MessageSource::Amqp(source) => {
            let dead = source.dead_letter_exchange.as_ref().map(|exchange| format!("to the exchange {exchange}"));
            (format!("{} of {}", source.queue, source.broker), dead.unwrap_or_else(|| "rejected".into()))
        }
        MessageSource::Kafka(source) => {
            let (topics, brokers) = (source.topics.join(", "), source.cluster.brokers.join(", "));
            let dead = format!("to the topic {}", source.dead_letter_topic);
            (format!("{topics} of {brokers}, group {}, order {}", source.group, source.order.word()), dead)
        }
    };
    row(text, "consumer", &from);
    row(text, "  as", &format!("POST {} ({})", consumer.path, consumer.route));
    row(text, "  key", &consumer.key.to_text());
    row(text, "  scope", &describe_scope(&consumer.scope));
    row(text, "  at once", &consumer.prefetch.to_string());
    row(text, "  dead letters", &dead);
}

/// Adds a label and a value, in two columns.
fn row(text: &mut String, label: &str, value: &str) {
    writeln!(text, "{label:<15} {value}").expect("writing to a String does not fail");
}
