//! The server of the shared cache.

use super::ParseResult;
use super::server_url::{HostAndPort, ServerUrl, ServerUrlForm, is_local};

/// A Redis or Valkey server: its address, the user, and the database. It is shown without the user and the password.
#[derive(Clone, PartialEq, Eq, derive_more::Debug, derive_more::Display)]
#[debug("{self}")]
#[display("{}://{}/{database}", if *tls { "rediss" } else { "redis" }, HostAndPort(host, *port))]
pub struct RedisServer {
    /// Whether TLS is spoken (`rediss://`).
    pub tls: bool,
    /// Its name or address, an IPv6 address without brackets.
    pub host: Box<str>,
    /// Its port.
    pub port: u16,
    /// The user; `None` for the server's default one.
    pub user: Option<Box<str>>,
    /// The password; never shown.
    pub password: Option<Box<str>>,
    /// The number of the database.
    pub database: u16,
}

const FORM: ServerUrlForm = ServerUrlForm {
    server: "a Redis server",
    cleartext: ("redis", 6379),
    tls: ("rediss", 6379),
    example: "write `redis://user:password@host:6379/0`, or `rediss://` for TLS",
};

impl RedisServer {
    /// Reads `redis://user:password@host:port/database`: percent-encoding is decoded, and every part but the host may
    /// be missing.
    pub fn parse(text: &str) -> ParseResult<Self> {
        let ServerUrl { tls, host, port, user, password, path } = ServerUrl::parse(text, &FORM)?;
        if user.is_some() && password.is_none() {
            return Err(format!("has a user without a password: {}", FORM.example));
        }
        let database = match path {
            "" => 0,
            number => number.parse().map_err(|_| format!("has a database that is no number: {}", FORM.example))?,
        };
        Ok(Self { tls, host, port, user, password, database })
    }

    /// Whether its password crosses a network in cleartext.
    pub fn exposes_password(&self) -> bool {
        self.password.is_some() && !self.tls && !is_local(&self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_parts_of_a_redis_server_have_their_defaults() {
        for (text, shown, password) in [
            ("redis://cache", "redis://cache:6379/0", None),
            ("redis://cache/", "redis://cache:6379/0", None),
            ("REDISS://:p%40%3A%25@cache:1/15", "rediss://cache:1/15", Some("p@:%")),
            ("redis://u:a:b@[::1]", "redis://[::1]:6379/0", Some("a:b")),
        ] {
            let server = RedisServer::parse(text).expect(text);
            assert_eq!((server.to_string().as_str(), server.password.as_deref()), (shown, password));
            assert_eq!(format!("{server:?}"), shown);
        }
    }

    #[test]
    fn problems_of_a_redis_server_do_not_show_its_password() {
        for (text, why) in [
            ("cache:6379", "no URL"),
            ("http://u:hunter2@h", "unknown scheme"),
            ("redis://", "no host"),
            ("redis://u:hunter2@", "no host"),
            ("redis://u:hunter2@a b", "no host"),
            ("redis://u:hunter2@h:", "port"),
            ("redis://u:hunter2@h:0", "port"),
            ("redis://u:hunter2%@h", "two hexadecimal digits"),
            ("redis://u@h", "without a password"),
            ("redis://u:hunter2@h/x", "database"),
            ("redis://u:hunter2@h/-1", "database"),
            ("redis://u:hunter2@h/0?protocol=3", "query"),
            ("redis://u:hun@hunter2@h/0", "%40"),
            ("redis://u:1/hunter2@h/0", "%40"),
            ("redis://u:1/hunter2/0", "%2F"),
            ("redis://u:hunter2/0", "%3A"),
            ("redis://u:1?hunter2@h/0", "%3F"),
            ("redis://u:1#hunter2@h/0", "%23"),
        ] {
            let message = RedisServer::parse(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
            assert!(!message.contains("hunter2"));
        }
    }

    #[test]
    fn a_password_is_exposed_only_in_cleartext_to_another_machine() {
        for (text, is_exposed) in [
            ("redis://:p@cache", true),
            ("rediss://:p@cache", false),
            ("redis://:p@127.0.0.1", false),
            ("redis://:p@[::1]", false),
            ("redis://cache", false),
        ] {
            assert_eq!(RedisServer::parse(text).unwrap().exposes_password(), is_exposed, "{text}");
        }
    }
}
