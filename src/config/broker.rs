//! Where messages come from.

use std::fmt;

use http::uri::Authority;

/// A RabbitMQ broker: where it is, as whom, and which of its virtual hosts.
#[derive(Clone, PartialEq, Eq)]
pub struct Broker {
    /// Whether TLS is spoken (`amqps://`).
    pub tls: bool,
    /// Its name or address, an IPv6 address without brackets.
    pub host: Box<str>,
    /// Its port.
    pub port: u16,
    /// As whom; `guest` where none is written.
    pub user: Box<str>,
    /// Never shown.
    pub password: Box<str>,
    /// `/` where none is written.
    pub vhost: Box<str>,
}

const RIGHT: &str = "write `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS";

/// A name that AMQP sends as a short string.
pub(super) const NAME_BYTES_MAX: usize = 255;

impl Broker {
    /// Reads `amqp://user:password@host:port/vhost` as RabbitMQ's URI specification has it: what is percent-encoded is
    /// decoded, and everything but the host may be missing. A slash with nothing behind it is no other virtual host.
    ///
    /// # Errors
    /// What would be right, beginning with a verb. Never has the text itself, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("is no URL of a broker: {RIGHT}"));
        };
        let (tls, usual) = match scheme.to_ascii_lowercase().as_str() {
            "amqp" => (false, 5672),
            "amqps" => (true, 5671),
            _ => return Err(format!("is of a kind that is not known: {RIGHT}")),
        };
        if rest.contains(['?', '#']) {
            return Err("has a query or a fragment, of which nothing is known here (`?` in a password is `%3F`)".into());
        }
        let (authority, vhost) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = user.split_once(':').unwrap_or((user, ""));
        let authority: Authority = host.parse().map_err(|_| format!("has no host that can be read: {RIGHT}"))?;
        let after_host = host.rsplit_once(']').map_or(host, |(_, after)| after);
        let port = match authority.port_u16() {
            None if !after_host.contains(':') => usual,
            Some(port) if port > 0 => port,
            _ => return Err("has a port that is not a number from 1 to 65535".into()),
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(format!("has no host: {RIGHT}"));
        }
        let part = |text: &str, default: &str| match text {
            "" => Ok(default.into()),
            text => decoded(text).map(String::into_boxed_str),
        };
        let vhost: Box<str> = part(vhost, "/")?;
        if vhost.len() > NAME_BYTES_MAX {
            return Err("has a virtual host with a name that is too long".into());
        }
        // The broker's own default, which it accepts from its own machine alone.
        let password = part(password, if user.is_empty() { "guest" } else { "" })?;
        Ok(Self { tls, host: host.into(), port, user: part(user, "guest")?, password, vhost })
    }
}

/// `%XX` anywhere, and UTF-8 in the end.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        let hex = after.get(..2).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.ok_or("has a `%` that is not followed by two hexadecimal digits (a `%` itself is `%25`)")?);
        rest = &after[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).map_err(|_| "has percent-encoded bytes that are no UTF-8".into())
}

/// As it would be written, but for the password.
impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "amqps" } else { "amqp" };
        let vhost = if &*self.vhost == "/" { String::new() } else { format!("/{}", self.vhost.replace('/', "%2F")) };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://{}@[{}]:{}{vhost}", self.user, self.host, self.port),
            false => write!(f, "{scheme}://{}@{}:{}{vhost}", self.user, self.host, self.port),
        }
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_a_host_and_what_is_not_written_is_usual() {
        for (text, shown, password) in [
            ("amqp://rabbit", "amqp://guest@rabbit:5672", "guest"),
            ("amqp://rabbit/", "amqp://guest@rabbit:5672", "guest"),
            ("amqp://rabbit/%2f", "amqp://guest@rabbit:5672", "guest"),
            ("AMQPS://u:p%40%3A%25@rabbit:1/shop", "amqps://u@rabbit:1/shop", "p@:%"),
            ("amqps://u:p@[::1]/a%2Fb", "amqps://u@[::1]:5671/a%2Fb", "p"),
            ("amqp://u@127.0.0.1:5673", "amqp://u@127.0.0.1:5673", ""),
            ("amqp://u:a:b@h", "amqp://u@h:5672", "a:b"),
        ] {
            let broker = Broker::parse(text).expect(text);
            assert_eq!((broker.to_string().as_str(), &*broker.password), (shown, password));
            assert!(!format!("{broker:?}").contains(":p"));
        }
    }

    #[test]
    fn what_is_wrong_with_a_broker_is_said_without_its_password() {
        for (text, why) in [
            ("", "no URL"),
            ("rabbit:5672", "no URL"),
            ("http://u:hunter2@h", "not known"),
            ("amqp://", "no host"),
            ("amqp://u:hunter2@", "no host"),
            ("amqp://u:hunter2@:5672", "no host"),
            ("amqp://u:hunter2@a b", "no host"),
            ("amqp://u:hunter2@h:", "port"),
            ("amqp://u:hunter2@h:0", "port"),
            ("amqp://u:hunter2@h:x", "port"),
            ("amqp://u:hunter2%@h", "two hexadecimal digits"),
            ("amqp://u:hunter2%ff@h", "UTF-8"),
            ("amqp://u:hunter2@h/v?heartbeat=5", "query"),
        ] {
            let message = Broker::parse(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
            assert!(!message.contains("hunter2"));
        }
    }
}
