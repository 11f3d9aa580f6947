//! The resolved configuration as text, for people.

use std::fmt::Write;

use super::exposure;
use super::route_settings::scope;
use super::units::show_size;
use super::words::Word;
use super::{Consumer, LoadedConfig, MessageSource, Route, RouteMode, TlsConfig, ValueOrigin, show_whole_path};
use oncegate_domain::fingerprint::Secrets;

/// The output of `oncegate check`: the proxy's own settings and each resolved route. Never has a secret or a password;
/// the warnings are left to the caller.
pub fn describe(config: &LoadedConfig) -> String {
    let (mut lines, start) = (DescriptionTable::default(), &config.start);
    let tls = config.tls.as_ref().map(describe_tls).unwrap_or_default();
    let token = match (&config.admin.token, start.admin.open, &start.admin.token_file) {
        (Some(_), ..) => " with a token".to_owned(),
        (None, true, _) => ", open to everybody on this machine".to_owned(),
        (None, false, Some(file)) => format!(" with the token in {}", show_whole_path(file)),
        (None, false, None) => ", without a place for its token".to_owned(),
    };
    lines.row("listen", &format!("{}{tls}, admin on {}{token}", start.listen, start.admin.listen));
    lines.row("upstream", &config.pass.upstream.to_string());
    let encrypted = if start.store.encrypt { ", responses encrypted" } else { "" };
    lines.row("store", &format!("{}{encrypted}", start.store.url));
    let shared = match &config.redis {
        None => String::new(),
        Some(server) if config.secrets.is_empty() => format!(", shared through {server} without a secret"),
        Some(server) => format!(", shared through {server}, encrypted"),
    };
    lines.row("cache", &format!("{} of memory{shared}", show_size(start.cache.memory)));
    lines.row("service", &start.service);
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
    if config.routes.iter().any(|route| route.mode != RouteMode::Off && route.scope.reads_authorization()) {
        lines.row(
            "credentials",
            "400 scope-missing for those that differ with each try, such as Digest (docs/callers.md)",
        );
    }
    for route in &config.routes {
        describe_route(&mut lines, route);
    }
    for consumer in &config.consumers {
        describe_consumer(&mut lines, consumer);
    }
    for sink in &config.events {
        let types: Vec<_> = sink.types.iter().map(|kind| kind.word()).collect();
        let body = if sink.body { ", with the body" } else { "" };
        let (routes, types) = (sink.routes.join(", "), types.join(", "));
        lines.row(&format!("events {}", sink.name), &format!("{types} of {routes} to {}{body}", sink.target));
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
        Some((authorities, clients)) => {
            format!(", client certificates of {}, {}", authorities.display(), clients.word())
        }
    };
    format!(" with TLS ({}{clients})", tls.certificate.display())
}

fn describe_route(lines: &mut DescriptionTable, route: &Route) {
    lines.text.push('\n');
    lines.row("route", &route.name);
    for setting in route.settings() {
        let presets = setting.origins.iter().filter(|(origin, _)| matches!(origin, ValueOrigin::Preset(_)));
        let keys: String =
            presets.map(|(origin, keys)| format!("  ({}: {})", origin.name(), keys.join(", "))).collect();
        lines.row(&format!("  {}", setting.label), &format!("{}{keys}", setting.value));
    }
}

fn describe_consumer(lines: &mut DescriptionTable, consumer: &Consumer) {
    lines.text.push('\n');
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
    lines.row("consumer", &from);
    lines.row("  as", &format!("POST {} ({})", consumer.path, consumer.route));
    lines.row("  key", &consumer.key.to_text());
    lines.row("  scope", &scope(&consumer.scope));
    lines.row("  at once", &consumer.prefetch.to_string());
    lines.row("  dead letters", &dead);
}

/// Labels and values in two columns.
#[derive(Default)]
struct DescriptionTable {
    text: String,
}

impl DescriptionTable {
    fn row(&mut self, label: &str, value: &str) {
        writeln!(self.text, "{label:<15} {value}").expect("writing to a String does not fail");
    }
}
