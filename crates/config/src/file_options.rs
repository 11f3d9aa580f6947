//! The options at the top of the file, and all tables of the file.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::admin::AdminOptions;
use super::consumers::ConsumerOptions;
use super::cors::CorsOptions;
use super::events::{EventKafkaOptions, EventOptions};
use super::jwt::JwtOptions;
use super::kafka::KafkaOptions;
use super::key_doc::KeyDoc;
use super::limits::{CallerLimitOptions, LimitsOptions};
use super::oidc::OidcOptions;
use super::options::options;
use super::policy::{Policy, UnguardedPolicy};
use super::reader::DeclaredTable;
use super::replay::ReplayOptions;
use super::retry::RetryOptions;
use super::route_options::{DEFAULTS, RouteKeys, read_allowed};
use super::services::{ServiceOptions, parse_service};
use super::store::{LeaseOptions, StoreOptions};
use super::telemetry::TelemetryOptions;
use super::tls::TlsOptions;
use super::upstream_tls::UpstreamTlsOptions;
use super::value_parsers::socket_address;
use super::{fingerprint, key, outcome, reconcile};
use oncegate_settings::{LimitsConfig, RedisServer, TelemetryConfig, Word, parse_size};

options! {
    /// The options at the top of the file.
    struct TopOptions {
        /// address and port for clients
        listen: Text = "127.0.0.1:8080" => SocketAddr, parsed(socket_address);
        /// the service of all hosts that no `[[services]]` has, as `http://host:port` or `https://host:port` (or
        /// `--upstream`, or ONCEGATE_UPSTREAM)
        upstream: Concealed;
        /// its name, which keeps services that share a database apart; part of every key
        service: Text = "default" => Arc<str>, parsed(parse_service);
        /// keys the fingerprints' HMAC and encrypts the salt of the scopes; empty for neither
        secret: Concealed = "${ONCEGATE_SECRET:-}";
        /// earlier secrets, still read while keys made under them live
        previous_secrets: Texts = [];
        /// networks whose forwarding fields and `header:` scope parts are believed
        trusted_proxies: Texts = ["127.0.0.0/8", "::1"] => Vec<IpNet>, values(parse_network);
        /// state-changing requests that no route guards: let them through, or answer 403
        unguarded: Choice(UnguardedPolicy::WORDS) = "pass" => UnguardedPolicy, choice();
        /// between failing /readyz and closing the listener
        drain_delay: Duration = "0s" => Duration, duration();
        /// how long running attempts may take to finish at shutdown
        drain_timeout: Duration = "40s" => Duration, duration_above_zero();
        /// the URI before the slug in a problem's `type`
        problem_base: Text = "/.oncegate/problems/" => Box<str>, parsed(parse_problem_base);
        /// the warnings that are meant, by their names, for the file and all routes
        allow: Texts = [] => Vec<&'static str>, made(read_allowed);
        /// further files: one by its name for what a company has in common, and those of teams by a pattern such as
        /// `routes/*.toml`, with services, routes, consumers and events alone
        include: TextOrTexts = [];
        /// the origins whose pages may read answers that no route owns
        cors: Table(CorsOptions::KEYS) = {};
        /// TLS towards clients; absent for cleartext
        tls: Table(TlsOptions::KEYS) = {};
        /// TLS towards `https://` services
        upstream_tls: Table(UpstreamTlsOptions::KEYS) = {};
        /// the issuer of callers' tokens, for `jwt:CLAIM` parts of scopes
        jwt: Table(JwtOptions::KEYS) = {};
        /// the bounds on what clients can hold
        limits: Table(LimitsOptions::KEYS) = {} => LimitsConfig, inner(LimitsOptions::read);
        /// the operators' listener
        admin: Table(AdminOptions::KEYS) = {};
        /// where keys are kept
        store: Table(StoreOptions::KEYS) = {};
        /// completed responses outside the store, for replays
        cache: Table(CacheOptions::KEYS) = {} => CacheOptions, inner(CacheOptions::read);
        /// logs and traces of the proxy itself
        telemetry: Table(TelemetryOptions::KEYS) = {} => TelemetryConfig, inner(TelemetryOptions::read);
        /// fields for each route that does not write them itself
        defaults: Table(DEFAULTS) = {};
        /// what the services and routes of all files must keep to
        policy: Table(Policy::KEYS) = {};
        /// services with hosts of their own
        services: Tables(ServiceOptions::KEYS) = [];
        /// which requests are guarded, and how
        routes: Tables(RouteKeys::KEYS) = [];
        /// queues and topics whose messages are requests of a route
        consumers: Tables(ConsumerOptions::KEYS) = [];
        /// events that say how keys of a route were settled, and the place that they go to
        events: Tables(EventOptions::KEYS) = [];
    }
}

options! {
    /// The options of `[cache]`.
    struct CacheOptions {
        /// how much of them is kept, so that a replay need not read the store; `0B` keeps none
        memory: Size = "64MiB" => u64, parsed(parse_size);
        /// a Redis or Valkey server that shares them between instances, as `redis://user:password@host:6379/0`, or
        /// `rediss://` for TLS; empty for none
        redis: Concealed = "" => Option<RedisServer>, optional(RedisServer::parse);
    }
}

/// The options at the top of the file, with all others in its tables.
pub const TOP: &[KeyDoc] = TopOptions::KEYS;

/// The tables, each with its place in words, in the order in which an unknown key is looked for.
pub(super) const TABLES: &[DeclaredTable] = &[
    ("at the top of the file, before the first table", TOP),
    ("in `[[routes]]` or `[defaults]`", DEFAULTS),
    ("in `[[routes]]`", RouteKeys::KEYS),
    ("in `[policy]`", Policy::KEYS),
    ("in `[[services]]`", ServiceOptions::KEYS),
    ("in `[limits]`", LimitsOptions::KEYS),
    ("in `[admin]`", AdminOptions::KEYS),
    ("in `[admin.oidc]`", OidcOptions::KEYS),
    ("in `[store]`", StoreOptions::KEYS),
    ("in `lease` of `[store]`", LeaseOptions::KEYS),
    ("in `[cache]`", CacheOptions::KEYS),
    ("in `[telemetry]`", TelemetryOptions::KEYS),
    ("in `cors`", CorsOptions::KEYS),
    ("in `upstream_tls`", UpstreamTlsOptions::KEYS),
    ("in a route's `key`", key::KeyOptions::KEYS),
    ("in a route's `fingerprint`", fingerprint::FingerprintOptions::KEYS),
    ("in a rule of a route's `outcome`", outcome::OutcomeOptions::KEYS),
    ("in a route's `replay`", ReplayOptions::KEYS),
    ("in a route's `reconcile`", reconcile::ReconcileOptions::KEYS),
    ("in `[[consumers]]`", ConsumerOptions::KEYS),
    ("in `kafka` of `[[consumers]]`", KafkaOptions::KEYS),
    ("in `[[events]]`", EventOptions::KEYS),
    ("in `kafka` of `[[events]]`", EventKafkaOptions::KEYS),
    ("in a route's `retry`", RetryOptions::KEYS),
    ("in a route's `limits`", CallerLimitOptions::KEYS),
];

fn parse_network(text: &str) -> Result<IpNet, String> {
    let network: IpNet = match text.parse::<IpAddr>() {
        Ok(address) => address.into(),
        Err(_) => text.parse().map_err(|_| "is no network: write `10.0.0.0/8` or an address like `::1`".to_owned())?,
    };
    if network.trunc() != network {
        return Err("has bits set beyond its prefix: write the network's first address".into());
    }
    Ok(network)
}

/// Parses the beginning of a URI reference, which a slug completes: RFC 9457 wants a URI reference as the `type`.
fn parse_problem_base(text: &str) -> Result<Box<str>, String> {
    let begins = ["/", "http://", "https://", "urn:", "tag:"].iter().any(|start| text.starts_with(start));
    if begins && text.bytes().all(|byte| matches!(byte, 0x21..=0x7e) && !b"\"<>\\^`{|}".contains(&byte)) {
        return Ok(text.into());
    }
    Err("is no beginning of a URI: write `/.oncegate/problems/` or `https://docs.example.com/errors#`".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConfigProblems;
    use crate::environment::FakeEnvironment;
    use crate::key_doc::ValueKind::{Choice, Table, Tables};
    use crate::{Overrides, load};

    /// Every key that is no table, with a file that gives it this value.
    fn files_with(value: impl Fn(&KeyDoc) -> Vec<String>) -> Vec<(String, String)> {
        fn walk(before: &str, keys: &[KeyDoc], found: &mut dyn FnMut(String, &KeyDoc)) {
            for key in keys {
                let path = format!("{before}{}", key.name);
                match key.kind {
                    Table(keys) => walk(&format!("{path}."), keys, found),
                    Tables(keys) => walk(&format!("{path}[0]."), keys, found),
                    _ => found(path, key),
                }
            }
        }
        let mut files = Vec::new();
        walk("", TOP, &mut |path, key| {
            for value in value(key) {
                let consumer = "amqp = 'amqp://b'\nqueue = 'q'\nroute = 'r'";
                // A rule is a table in a list, with the keys that it must have.
                let rule = path.split_once("outcome[0].").map(|(before, field)| {
                    let others =
                        [("pointer", "'/a'"), ("is", "'store'")].into_iter().filter(|(name, _)| *name != field);
                    let others: String = others.map(|(name, value)| format!("{name} = {value}, ")).collect();
                    (format!("{before}outcome"), format!("[{{ {others}{field} = {value} }}]"))
                });
                let (of, value) = rule.unwrap_or_else(|| (path.clone(), value));
                let file = match of
                    .strip_prefix("routes[0].")
                    .or(of.strip_prefix("consumers[0]."))
                    .or(of.strip_prefix("events[0]."))
                    .or(of.strip_prefix("services[0]."))
                {
                    // The defaults of a service are those of the file.
                    Some(field) if field.starts_with("defaults.") => continue,
                    Some(field) if path.starts_with("services") => {
                        let others = ["name = 's'", "host = 'h'", "upstream = 'http://s'"].into_iter();
                        let others = others.filter(|line| line.split(' ').next() != Some(field));
                        let others: String = others.map(|line| format!("{line}\n")).collect();
                        let route = "[[routes]]\nname = 'r'\npath = '/'\nservice = 'default'";
                        format!("[[services]]\n{others}{field} = {value}\n{route}")
                    }
                    Some(field) if path.starts_with("events") => {
                        let kafka = ["kafka.brokers = ['b']", "kafka.topic = 't'"];
                        let of_target = match field.split('.').next() {
                            Some("kafka") => &kafka[..],
                            Some("exchange" | "routing_key") => &["amqp = 'amqp://b'", "exchange = 'e'"],
                            Some("url" | "amqp") => &["exchange = 'e'"][usize::from(field == "url")..],
                            _ => &["url = 'http://h/'"],
                        };
                        let needed = ["name = 'n'", "routes = ['r']"].iter().chain(of_target);
                        let others = needed.filter(|line| line.split(' ').next() != Some(field));
                        let others: String = others.map(|line| format!("{line}\n")).collect();
                        let login = match field == "kafka.sasl" && value != "\"none\"" {
                            true => "kafka.user = 'u'\nkafka.password = 'p'\n",
                            false => "",
                        };
                        let route = "[[routes]]\nname = 'r'\npath = '/'";
                        format!("{route}\n[[events]]\n{others}{login}{field} = {value}")
                    }
                    Some(field) if path.starts_with("consumers[0].kafka") => {
                        let others = ["brokers = ['b']", "topics = ['t']", "group = 'g'", "dead_letter_topic = 'd'"];
                        let others =
                            others.into_iter().filter(|line| !field.ends_with(line.split(' ').next().unwrap()));
                        let others: String = others.map(|line| format!("kafka.{line}\n")).collect();
                        // A mechanism needs a login.
                        let login = if field == "kafka.sasl" && value != "\"none\"" {
                            "kafka.user = 'u'\nkafka.password = 'p'\n"
                        } else {
                            ""
                        };
                        let route = "[[routes]]\nname = 'r'\npath = '/'";
                        format!("{route}\n[[consumers]]\nroute = 'r'\n{others}{login}{field} = {value}")
                    }
                    Some(field) if path.starts_with("consumers") => {
                        let others = consumer.lines().filter(|line| !line.starts_with(&format!("{field} =")));
                        let others: String = others.map(|line| format!("{line}\n")).collect();
                        let route = "[[routes]]\nname = 'r'\npath = '/'";
                        format!("{route}\n[[consumers]]\n{others}{field} = {value}")
                    }
                    // Each file that is included is there.
                    None if of == "include" && value != "[]" && !value.starts_with("1979") => continue,
                    None => format!("{of} = {value}"),
                    Some("name") => format!("[[routes]]\npath = '/'\nname = {value}"),
                    Some("path") => format!("[[routes]]\nname = 'r'\npath = {value}"),
                    Some(field) => format!("[[routes]]\nname = 'r'\npath = '/'\n{field} = {value}"),
                };
                let file = if path == "upstream" { file } else { format!("upstream = 'http://a'\n{file}") };
                // What is stored encrypted needs a secret.
                let secret = "secret = 'a secret of some length'\n";
                let file = match path.rsplit('.').next() {
                    Some("delivery" | "vendor") => format!("{secret}{file}"),
                    Some("kind") => format!("{secret}store.encrypt = true\n{file}"),
                    _ => file,
                };
                files.push((path.clone(), file));
            }
        });
        files
    }

    fn problems(file: &str) -> Option<ConfigProblems> {
        load(Some("f".as_ref()), &Overrides::default(), &FakeEnvironment::default().with_file("f", file)).err()
    }

    #[test]
    fn every_key_is_read_and_its_kind_is_checked() {
        for (path, file) in files_with(|_| vec!["1979-05-27".into()]) {
            let problems = problems(&file).expect(&file);
            assert!(
                problems.iter().any(|problem| problem.path == path && problem.message.starts_with("must be ")),
                "{path}: {problems}"
            );
        }
    }

    #[test]
    fn every_default_and_every_word_of_a_choice_is_accepted() {
        let values = |key: &KeyDoc| match key.kind {
            Choice(words) => words.iter().map(|word| format!("{word:?}")).collect(),
            _ => key.default.map(str::to_owned).into_iter().collect(),
        };
        // Their default is that the other broker is the consumer's.
        let needed = ["amqp", "queue", "brokers", "topics", "group", "dead_letter_topic"];
        let needed_of_events = ["routes", "url", "exchange", "amqp", "kafka.brokers", "kafka.topic"];
        let is_needed = |path: &str, file: &str| {
            let is_sender = path.ends_with(".sender") || file.contains("kind = \"webhook\"");
            // A sender's webhooks need its secrets: a test has each.
            // A promise needs the vendor whose it is.
            is_sender
                || file.contains("on_unknown = \"vendor\"")
                || path.starts_with("consumers") && needed.iter().any(|name| path.ends_with(name))
                || path == "services[0].host"
                || path.starts_with("events") && needed_of_events.iter().any(|name| path.ends_with(name))
        };
        for (path, file) in files_with(values).into_iter().filter(|(path, file)| !is_needed(path, file)) {
            assert_eq!(problems(&file), None, "{path}");
        }
    }

    #[test]
    fn defaults_has_every_key_of_a_route_but_its_names_and_path() {
        let routes = RouteKeys::KEYS;
        assert_eq!([0, 1, 2, 3].map(|at| routes[at].name), ["name", "was", "path", "service"]);
        assert!(routes[4..].iter().map(|key| key.name).eq(DEFAULTS.iter().map(|key| key.name)));
    }
}
