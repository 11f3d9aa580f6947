//! Reads and checks how Kafka's brokers are reached: the same keys in each table that names a cluster.

use super::reader::Section;
use super::tls::read_pair;
use super::value_parsers::{is_of_name, name};
use oncegate_settings::{KafkaCluster, KafkaLogin, KafkaTls, SaslMechanism, parse_authority};
use oncegate_trust::tls;

/// The longest name of a topic; Kafka's own limit.
const TOPIC_BYTES_MAX: usize = 249;

/// Reads the keys `brokers`, `sasl`, `user`, `password`, `tls`, `ca`, `certificate` and `key` of a table, which
/// declares them.
pub(super) fn read_cluster(section: &Section<'_>) -> Option<KafkaCluster> {
    if !cfg!(feature = "kafka") {
        section.problem("brokers", "needs a program that was built with the feature `kafka`");
        return None;
    }
    let brokers = section.values("brokers", parse_broker);
    let has_brokers = section.need("brokers", brokers.is_empty(), "write one broker or more, as `host:9092`");
    let login = read_login(section)?;
    let tls = read_tls(section)?;
    has_brokers.map(|()| KafkaCluster { brokers, login, tls })
}

/// Reads the login: `Some(None)` for none.
fn read_login(section: &Section<'_>) -> Option<Option<KafkaLogin>> {
    let (mechanism, user) = (section.choice("sasl"), section.string("user"));
    let password = section.string("password");
    match (mechanism, user.is_empty() || password.is_empty()) {
        (SaslMechanism::None, _) if user.is_empty() && password.is_empty() => Some(None),
        (SaslMechanism::None, _) => {
            section.problem("sasl", "must be written beside `user` and `password`");
            None
        }
        (_, true) => {
            section.problem("sasl", "needs `user` and `password` beside it");
            None
        }
        (mechanism, false) => Some(Some(KafkaLogin { mechanism, user: user.into(), password: password.into() })),
    }
}

/// Reads the files of TLS: `Some(None)` for cleartext.
fn read_tls(section: &Section<'_>) -> Option<Option<KafkaTls>> {
    let [ca, certificate, key] = ["ca", "certificate", "key"].map(|name| section.string(name));
    if !section.boolean("tls") {
        for (option, path) in [("ca", &ca), ("certificate", &certificate), ("key", &key)] {
            if !path.is_empty() {
                section.problem(option, "needs `tls = true` beside it");
                return None;
            }
        }
        return Some(None);
    }
    let check = |name: &str, path: &str, checked: Result<(), String>| {
        checked.map_err(|message| section.file_problem(name, path, &message)).ok()
    };
    let authorities = match &*ca {
        "" => None,
        path => {
            let text = section.file("ca", path)?;
            check("ca", path, tls::parse_certificates(text.as_bytes()).map(drop))?;
            Some(text.into())
        }
    };
    let identity = match read_pair(section, &certificate, &key)? {
        None => None,
        Some([chain, secret]) => {
            check("certificate", &certificate, tls::parse_certificates(chain.as_bytes()).map(drop))?;
            check("key", &key, tls::parse_private_key(secret.as_bytes()).map(drop))?;
            Some([chain.into(), secret.into()])
        }
    };
    Some(Some(KafkaTls { authorities, identity }))
}

fn parse_broker(text: &str) -> Result<Box<str>, String> {
    const EXAMPLE: &str = "write `host:9092`";
    let authority = parse_authority(text, EXAMPLE, "")?;
    if text.contains('@') {
        return Err(format!("has a user, whose place is `user`: {EXAMPLE}"));
    }
    match authority.port_u16() {
        Some(_) => Ok(text.to_ascii_lowercase().into()),
        None => Ok(format!("{}:9092", text.to_ascii_lowercase()).into()),
    }
}

pub(super) fn parse_topic(text: &str) -> Result<Box<str>, String> {
    const WRONG: &str = "is no name of a topic: 1 to 249 letters, digits, `.`, `_` and `-`";
    if matches!(text, "." | "..") { Err(WRONG.into()) } else { name(text, TOPIC_BYTES_MAX, is_of_name, WRONG) }
}
