//! TLS towards PostgreSQL: the TLS parameters of its URL, with libpq's meaning and stricter defaults.
//!
//! The driver knows three of the modes and none of the files, so these parameters are removed before it gets the URL.

use std::borrow::Cow;
use std::net::IpAddr;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

/// The verification of the server, before anything else is sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SslMode {
    /// Cleartext.
    Disable,
    /// TLS without verification, or cleartext where the server has no TLS.
    Prefer,
    /// TLS without verification.
    Require,
    /// A certificate by one of the authorities, for any name.
    VerifyCa,
    /// A certificate by one of the authorities, for the host's name as the URL has it.
    VerifyFull,
}

/// The authorities that the server is verified with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// The authorities in this PEM file.
    File(PathBuf),
    /// The system's.
    System,
}

/// The certificate that is presented to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A PEM file: the certificate and its chain.
    pub certificate: PathBuf,
    /// A PEM file: its key.
    pub key: PathBuf,
}

/// The TLS parameters of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresTls {
    /// The effective mode, by the defaults and `sslrootcert`.
    pub mode: SslMode,
    /// Whether the URL has an `sslmode` itself.
    pub is_written: bool,
    /// The authorities, for the modes that verify.
    pub roots: Roots,
    /// A client's certificate, where there is one.
    pub identity: Option<Identity>,
}

const MODES: &str = "write `disable`, `prefer`, `require`, `verify-ca` or `verify-full`";

impl PostgresTls {
    /// Splits a `postgres://` URL into the URL without its TLS parameters, and these.
    ///
    /// Without an `sslmode`, a server on this machine (loopback or a socket) has `prefer`, and any other `verify-full`.
    ///
    /// # Errors
    /// The problem, beginning with a verb. Never has the URL, which may hold a password.
    pub fn extract(url: &str) -> Result<(String, Self), String> {
        let url = Url::split(url);
        let (mut mode, mut roots, mut certificate, mut key) = (None, None, None, None);
        let mut others: Vec<&str> = Vec::new();
        for parameter in &url.parameters {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let slot = match name {
                "sslmode" => &mut mode,
                "sslrootcert" => &mut roots,
                "sslcert" => &mut certificate,
                "sslkey" => &mut key,
                _ => {
                    others.push(parameter);
                    continue;
                }
            };
            let value = percent_decode(value).filter(|value| !value.is_empty());
            *slot = Some(value.ok_or_else(|| format!("has an empty `{name}`"))?);
        }
        let identity = match (certificate, key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(Identity { certificate: certificate.into(), key: key.into() }),
            (None, Some(_)) => return Err("has an `sslkey` without an `sslcert`".into()),
            (Some(_), None) => return Err("has an `sslcert` without an `sslkey`".into()),
        };
        let roots = roots.map(|roots| if roots == "system" { Roots::System } else { Roots::File(roots.into()) });
        let is_written = mode.is_some();
        let mode = mode.map(|word| parse_mode(&word)).transpose()?;
        let mode = match effective_mode(mode, roots.as_ref(), url.is_on_this_machine())? {
            // As in libpq: nobody can be in between.
            _ if url.is_socket() => SslMode::Disable,
            mode => mode,
        };
        let mut rest = url.before.to_owned();
        if !others.is_empty() {
            rest.push('?');
            rest.push_str(&others.join("&"));
        }
        Ok((rest, Self { mode, is_written, roots: roots.unwrap_or(Roots::System), identity }))
    }
}

/// The warning about a URL that is allowed and dangerous, where it is.
pub(super) fn warning(url: &str) -> Option<String> {
    let (_, tls) = PostgresTls::extract(url).ok()?;
    if Url::split(url).is_on_this_machine() {
        return None;
    }
    let danger = match tls.mode {
        SslMode::Disable => "anybody on the network in between can read and change all that is stored",
        SslMode::Require => "the server is not verified, and could be anybody on the network in between",
        SslMode::Prefer | SslMode::VerifyCa | SslMode::VerifyFull => return None,
    };
    let word = if tls.mode == SslMode::Disable { "disable" } else { "require" };
    Some(format!("store.url has `sslmode={word}` for a host that is not this machine: {danger}; see `verify-full`"))
}

fn parse_mode(word: &str) -> Result<SslMode, String> {
    match word {
        "disable" => Ok(SslMode::Disable),
        "prefer" => Ok(SslMode::Prefer),
        "require" => Ok(SslMode::Require),
        "verify-ca" => Ok(SslMode::VerifyCa),
        "verify-full" => Ok(SslMode::VerifyFull),
        _ => Err(format!("has an unknown `sslmode`: {MODES}")),
    }
}

fn effective_mode(mode: Option<SslMode>, roots: Option<&Roots>, on_this_machine: bool) -> Result<SslMode, String> {
    match (mode, roots) {
        (None, None) if on_this_machine => Ok(SslMode::Prefer),
        // A URL that names authorities wants the server verified.
        (None, _) => Ok(SslMode::VerifyFull),
        (Some(SslMode::Prefer), _) if !on_this_machine => {
            Err("has `sslmode=prefer` for a host that is not this machine, where anybody in between could switch TLS \
                 off: write `sslmode=verify-full`, or `sslmode=disable` if you trust the network"
                .into())
        }
        // As in libpq: anybody can get a certificate from one of the public authorities.
        (Some(SslMode::Require | SslMode::VerifyCa), Some(Roots::System)) => {
            Err("has `sslrootcert=system` with an `sslmode` that does not verify names: write `sslmode=verify-full`"
                .into())
        }
        (Some(SslMode::VerifyCa), None) => {
            Err("has `sslmode=verify-ca` without an `sslrootcert`: write one, or `sslmode=verify-full`".into())
        }
        // As in libpq.
        (Some(SslMode::Require), Some(Roots::File(_))) => Ok(SslMode::VerifyCa),
        (Some(mode), _) => Ok(mode),
    }
}

/// A URL as the driver splits it.
struct Url<'a> {
    before: &'a str,
    hosts: &'a str,
    parameters: Vec<&'a str>,
}

impl<'a> Url<'a> {
    fn split(url: &'a str) -> Self {
        let scheme = url.find("://").map_or(0, |at| at + 3);
        // A password may have any character in it, up to the first `@`.
        let begin = url[scheme..].find('@').map_or(scheme, |at| scheme + at + 1);
        let end = url[begin..].find('?').map_or(url.len(), |at| begin + at);
        let hosts = url[begin..end].split('/').next().unwrap_or_default();
        let parameters = url[end..].trim_start_matches('?').split('&').filter(|text| !text.is_empty()).collect();
        Self { before: &url[..end], hosts, parameters }
    }

    /// Whether all its hosts are Unix sockets.
    fn is_socket(&self) -> bool {
        let hosts = self.hosts.split(',').filter(|host| !host.is_empty());
        let named = self.parameters.iter().filter_map(|parameter| parameter.strip_prefix("host="));
        let mut hosts = hosts.chain(named.flat_map(|hosts| hosts.split(','))).peekable();
        hosts.peek().is_some() && hosts.all(|host| percent_decode(host).is_some_and(|host| host.starts_with('/')))
    }

    /// Whether all its hosts are on this machine; also where it has none.
    fn is_on_this_machine(&self) -> bool {
        let values = |wanted: &'static str| {
            let parameters = self.parameters.iter().filter_map(|parameter| parameter.split_once('='));
            parameters.filter(move |(name, _)| *name == wanted).flat_map(|(_, value)| value.split(','))
        };
        // With a `hostaddr`, the driver connects to that, and `host` is only the name to verify.
        if values("hostaddr").next().is_some() {
            return values("hostaddr").all(is_local);
        }
        let hosts = self.hosts.split(',').filter(|host| !host.is_empty());
        hosts.map(without_port).chain(values("host")).all(is_local)
    }
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(host) => host.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

/// Whether a host is this machine: a loopback address or name, or the path of a socket.
pub(super) fn is_local(host: &str) -> bool {
    let host = percent_decode(host).unwrap_or_default();
    let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    host.starts_with('/') || host.eq_ignore_ascii_case("localhost") || is_loopback
}

/// A value without its percent-encoding; `None` if it is no UTF-8.
fn percent_decode(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(url: &str) -> SslMode {
        PostgresTls::extract(url).unwrap_or_else(|message| panic!("{url}: {message}")).1.mode
    }

    #[test]
    fn a_server_that_is_not_this_machine_is_verified_unless_the_url_says_otherwise() {
        use SslMode::{Disable, Prefer, Require, VerifyCa, VerifyFull};
        for (url, expected) in [
            ("postgres://u@127.0.0.1/d", Prefer),
            ("postgres://u@localhost:5433/d", Prefer),
            ("postgres://u:p%40@[::1]:5432/d", Prefer),
            ("postgres:///d?host=/run/postgresql", Disable),
            ("postgres://%2Frun%2Fpostgresql/d?sslmode=verify-full", Disable),
            ("postgres://%2Frun%2Fpostgresql,localhost/d", Prefer),
            ("postgres://u@db.example/d?hostaddr=127.0.0.1", Prefer),
            ("postgres://u@db.example/d", VerifyFull),
            ("postgres://u@localhost,db.example/d", VerifyFull),
            ("postgres://u@localhost/d?host=db.example", VerifyFull),
            ("postgres://u@localhost/d?hostaddr=10.0.0.1", VerifyFull),
            ("postgres://u@127.0.0.1.example/d", VerifyFull),
            ("postgres://u@localhost/d?sslrootcert=system", VerifyFull),
            ("postgres://u@localhost/d?sslrootcert=ca.pem", VerifyFull),
            ("postgres://u@db/d?sslmode=disable", Disable),
            ("postgres://u@db/d?sslmode=require", Require),
            ("postgres://u@db/d?sslmode=require&sslrootcert=ca.pem", VerifyCa),
            ("postgres://u@db/d?sslmode=verify-ca&sslrootcert=ca.pem", VerifyCa),
            ("postgres://u@db/d?sslmode=verify-full", VerifyFull),
            ("postgres://u:a?sslmode=disable@db/d", VerifyFull),
        ] {
            assert_eq!(mode(url), expected, "{url}");
        }
    }

    #[test]
    fn tls_parameters_are_removed_and_no_others() {
        let (rest, tls) = PostgresTls::extract(
            "postgres://u:p@a,b/d?sslmode=verify-full&target_session_attrs=read-write&sslrootcert=%2Fetc%2Fca.pem\
             &sslcert=c.pem&connect_timeout=3&sslkey=k.pem",
        )
        .expect("it is right");
        assert_eq!(rest, "postgres://u:p@a,b/d?target_session_attrs=read-write&connect_timeout=3");
        assert_eq!(tls.roots, Roots::File("/etc/ca.pem".into()));
        assert_eq!(tls.identity, Some(Identity { certificate: "c.pem".into(), key: "k.pem".into() }));
        assert!(tls.is_written);
        let (rest, tls) = PostgresTls::extract("postgres://u@h/d?sslmode=disable").expect("it is right");
        assert_eq!((&*rest, tls.roots, tls.identity), ("postgres://u@h/d", Roots::System, None));
    }

    #[test]
    fn a_contradictory_url_is_refused_with_a_remedy() {
        for (url, why) in [
            ("postgres://u:hunter2@db/d?sslmode=prefer", "write `sslmode=verify-full`"),
            ("postgres://u:hunter2@db/d?sslmode=allow", "`verify-ca` or `verify-full`"),
            ("postgres://u:hunter2@db/d?sslmode=verify-ca", "without an `sslrootcert`"),
            ("postgres://u:hunter2@db/d?sslmode=require&sslrootcert=system", "does not verify names"),
            ("postgres://u:hunter2@db/d?sslcert=c.pem", "without an `sslkey`"),
            ("postgres://u:hunter2@db/d?sslkey=k.pem", "without an `sslcert`"),
            ("postgres://u:hunter2@db/d?sslmode=", "an empty `sslmode`"),
        ] {
            let message = PostgresTls::extract(url).expect_err(url);
            assert!(message.contains(why) && !message.contains("hunter2"), "{url}: {message}");
        }
    }

    #[test]
    fn a_network_that_is_only_trusted_is_warned_about() {
        for (url, warned) in [
            ("postgres://u@db/d?sslmode=disable", true),
            ("postgres://u@db/d?sslmode=require", true),
            ("postgres://u@db/d?sslmode=require&sslrootcert=ca.pem", false),
            ("postgres://u@db/d", false),
            ("postgres://u@127.0.0.1/d?sslmode=disable", false),
        ] {
            assert_eq!(warning(url).is_some(), warned, "{url}");
        }
    }
}
