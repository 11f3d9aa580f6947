//! The brokers that messages come from.

use super::ParseResult;
use super::server_url::{HostAndPort, ServerUrl, ServerUrlForm, decode_part};

/// A RabbitMQ broker: its address, the user, and the virtual host. It is shown without the user and the password.
#[derive(Clone, PartialEq, Eq, derive_more::Debug, derive_more::Display)]
#[debug("{self}")]
#[display("{}://{}{}", if *tls { "amqps" } else { "amqp" }, HostAndPort(host, *port), self.shown_vhost())]
pub struct Broker {
    /// Whether TLS is spoken (`amqps://`).
    pub tls: bool,
    /// Its name or address, an IPv6 address without brackets.
    pub host: Box<str>,
    /// Its port.
    pub port: u16,
    /// The user; `guest` where none is written.
    pub user: Box<str>,
    /// The password; never shown.
    pub password: Box<str>,
    /// The virtual host; `/` where none is written.
    pub vhost: Box<str>,
}

const FORM: ServerUrlForm = ServerUrlForm {
    server: "a broker",
    cleartext: ("amqp", 5672),
    tls: ("amqps", 5671),
    example: "write `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS",
};

/// The longest name: AMQP sends names as short strings.
pub const BROKER_NAME_BYTES_MAX: usize = 255;

impl Broker {
    /// Reads `amqp://user:password@host:port/vhost` by RabbitMQ's URI specification: percent-encoding is decoded, and
    /// every part but the host may be missing. A slash at the end means the default virtual host.
    pub fn parse(text: &str) -> ParseResult<Self> {
        let ServerUrl { tls, host, port, user, password, path } = ServerUrl::parse(text, &FORM)?;
        let vhost = decode_part(path)?.unwrap_or_else(|| "/".into());
        if vhost.len() > BROKER_NAME_BYTES_MAX {
            return Err("has a virtual host with a name that is too long".into());
        }
        // The broker's own default, which it accepts only from its own machine.
        let password = password.unwrap_or_else(|| if user.is_none() { "guest" } else { "" }.into());
        Ok(Self { tls, host, port, user: user.unwrap_or_else(|| "guest".into()), password, vhost })
    }

    fn shown_vhost(&self) -> String {
        if &*self.vhost == "/" { String::new() } else { format!("/{}", self.vhost.replace('/', "%2F")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_parts_of_a_broker_have_their_defaults() {
        for (text, shown, password) in [
            ("amqp://rabbit", "amqp://rabbit:5672", "guest"),
            ("amqp://rabbit/", "amqp://rabbit:5672", "guest"),
            ("amqp://rabbit/%2f", "amqp://rabbit:5672", "guest"),
            ("AMQPS://u:p%40%3A%25@rabbit:1/shop", "amqps://rabbit:1/shop", "p@:%"),
            ("amqps://u:p@[::1]/a%2Fb", "amqps://[::1]:5671/a%2Fb", "p"),
            ("amqp://u@127.0.0.1:5673", "amqp://127.0.0.1:5673", ""),
            ("amqp://u:a:b@h", "amqp://h:5672", "a:b"),
        ] {
            let broker = Broker::parse(text).expect(text);
            assert_eq!((broker.to_string().as_str(), &*broker.password), (shown, password));
            assert!(!format!("{broker:?}").contains(":p"));
        }
    }

    #[test]
    fn problems_of_a_broker_do_not_show_its_password() {
        for (text, why) in [
            ("", "no URL"),
            ("rabbit:5672", "no URL"),
            ("http://u:hunter2@h", "unknown scheme"),
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
            ("amqp://u:hun@hunter2@h/v", "%40"),
            ("amqp://u:1/hunter2@h/v", "%40"),
            ("amqp://u:1/hunter2/v", "%2F"),
            ("amqp://u:hunter2/v", "%3A"),
        ] {
            let message = Broker::parse(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
            assert!(!message.contains("hunter2"));
        }
    }
}
