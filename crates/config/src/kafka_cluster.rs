//! Reads and checks how Kafka's brokers are reached: the same keys in each table that names a cluster.

use std::fmt;
use std::sync::Arc;

use super::reader::Section;
use super::server_url::{bare_host, is_local, parse_authority};
use super::tls::read_pair;
use super::words::words;
use oncegate_trust::tls;

words! {
    /// The way to log in at the brokers (SASL).
    pub enum SaslMechanism {
        /// No login.
        None = "none",
        /// RFC 4616: the password as it is.
        Plain = "plain",
        /// RFC 7677.
        ScramSha256 = "scram-sha-256",
        /// The same with SHA-512.
        ScramSha512 = "scram-sha-512",
    }
}

/// The longest name of a topic; Kafka's own limit.
const TOPIC_BYTES_MAX: usize = 249;

/// The brokers of a cluster, and how they are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaCluster {
    /// The brokers that are asked for the others, as `host:port`; at least one.
    pub brokers: Vec<Box<str>>,
    /// The login; `None` for no login.
    pub login: Option<KafkaLogin>,
    /// TLS; `None` for cleartext.
    pub tls: Option<KafkaTls>,
}

/// A login at the brokers.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaLogin {
    /// The mechanism; not [`SaslMechanism::None`].
    pub mechanism: SaslMechanism,
    /// The user.
    pub user: Box<str>,
    /// The password; never shown.
    pub password: Box<str>,
}

impl fmt::Debug for KafkaLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KafkaLogin")
    }
}

/// TLS towards brokers, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaTls {
    /// The authorities of the brokers' certificates; `None` for those of the system.
    pub authorities: Option<Arc<str>>,
    /// The certificate that is shown to brokers, and its key.
    pub identity: Option<[Arc<str>; 2]>,
}

impl fmt::Debug for KafkaTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KafkaTls")
    }
}

impl KafkaCluster {
    /// Reads the keys `brokers`, `sasl`, `user`, `password`, `tls`, `ca`, `certificate` and `key` of a table, which declares them.
    pub(super) fn read(section: &Section<'_>) -> Option<Self> {
        if !cfg!(feature = "kafka") {
            section.problem("brokers", "needs a program that was built with the feature `kafka`");
            return None;
        }
        let brokers = section.values("brokers", parse_broker);
        if brokers.is_empty() && section.is_right(&["brokers"]) {
            section.missing("brokers", "is missing: write one broker or more, as `host:9092`");
        }
        let login = read_login(section)?;
        let tls = read_tls(section)?;
        (!brokers.is_empty()).then_some(Self { brokers, login, tls })
    }

    /// Whether its password crosses a network in cleartext.
    pub(super) fn exposes_password(&self) -> bool {
        let is_plain = self.login.as_ref().is_some_and(|login| login.mechanism == SaslMechanism::Plain);
        let is_far = |broker: &str| broker.parse().is_ok_and(|authority| !is_local(bare_host(&authority)));
        is_plain && self.tls.is_none() && self.brokers.iter().any(|broker| is_far(broker))
    }

    /// Whether the brokers' certificates are verified with the authorities of the system.
    pub(super) fn needs_authorities(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.authorities.is_none())
    }
}

/// Reads the login: `Some(None)` for none.
fn read_login(section: &Section<'_>) -> Option<Option<KafkaLogin>> {
    let (mechanism, user) = (section.choice("sasl"), section.string("user"));
    let password = section.concealed("password", |text| Ok(text.to_owned()));
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
        for (name, path) in [("ca", &ca), ("certificate", &certificate), ("key", &key)] {
            if !path.is_empty() {
                section.problem(name, "needs `tls = true` beside it");
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

/// Reads the name of a topic.
pub(super) fn parse_topic(text: &str) -> Result<Box<str>, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match (1..=TOPIC_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_part) && !matches!(text, "." | "..") {
        true => Ok(text.into()),
        false => Err("is no name of a topic: 1 to 249 letters, digits, `.`, `_` and `-`".into()),
    }
}
