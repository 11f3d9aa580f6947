//! How a PostgreSQL server is spoken to: what its URL says about TLS, with libpq's meaning and stricter defaults.
//!
//! The driver knows three of the modes and none of the files, so these parameters are taken out before it sees the URL.

use std::net::IpAddr;
use std::path::PathBuf;

/// How much is asked of the server before anything else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SslMode {
    /// Cleartext.
    Disable,
    /// TLS with whoever answers, or cleartext where the server has none.
    Prefer,
    /// TLS with whoever answers.
    Require,
    /// A certificate by one of the authorities, for whatever name.
    VerifyCa,
    /// A certificate by one of the authorities, for the host's name as the URL has it.
    VerifyFull,
}

/// Whose word counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// The authorities in this PEM file.
    File(PathBuf),
    /// The system's.
    System,
}

/// What the server is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A PEM file: the certificate and its chain.
    pub certificate: PathBuf,
    /// A PEM file: its key.
    pub key: PathBuf,
}

/// What a URL says about TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresTls {
    /// The mode, with the defaults and `sslrootcert` taken into account: what is to be done.
    pub mode: SslMode,
    /// Whether the URL says so itself.
    pub is_written: bool,
    /// For the modes that verify.
    pub roots: Roots,
    /// A client's certificate, where there is one.
    pub identity: Option<Identity>,
}

const MODES: &str = "write `disable`, `prefer`, `require`, `verify-ca` or `verify-full`";

impl PostgresTls {
    /// Takes TLS out of a `postgres://` URL: the URL without it, and what it said.
    ///
    /// Where it says nothing, a server on this machine (loopback or a socket) is `prefer`, and any other `verify-full`.
    ///
    /// # Errors
    /// What does not go together, beginning with a verb. Never has the URL, which may hold a password.
    pub fn take_out(url: &str) -> Result<(String, Self), String> {
        let url = Url::split(url);
        let (mut mode, mut roots, mut certificate, mut key) = (None, None, None, None);
        let mut left: Vec<&str> = Vec::new();
        for parameter in &url.parameters {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let place = match name {
                "sslmode" => &mut mode,
                "sslrootcert" => &mut roots,
                "sslcert" => &mut certificate,
                "sslkey" => &mut key,
                _ => {
                    left.push(parameter);
                    continue;
                }
            };
            let value = decoded(value).filter(|value| !value.is_empty());
            *place = Some(value.ok_or_else(|| format!("has a `{name}` that says nothing"))?);
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
        let mode = match judge(mode, roots.as_ref(), url.is_of_this_machine())? {
            // As in libpq: nobody stands between.
            _ if url.is_socket() => SslMode::Disable,
            mode => mode,
        };
        let mut rest = url.before.to_owned();
        if !left.is_empty() {
            rest.push('?');
            rest.push_str(&left.join("&"));
        }
        Ok((rest, Self { mode, is_written, roots: roots.unwrap_or(Roots::System), identity }))
    }
}

/// What may be said at start about a URL that is allowed and dangerous.
pub(super) fn warning(url: &str) -> Option<String> {
    let (_, tls) = PostgresTls::take_out(url).ok()?;
    if Url::split(url).is_of_this_machine() {
        return None;
    }
    let danger = match tls.mode {
        SslMode::Disable => "whoever is on the network between can read and change what is stored",
        SslMode::Require => "who answers is not looked at, and could be anybody on the network between",
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
        _ => Err(format!("has an `sslmode` that is not known: {MODES}")),
    }
}

fn judge(mode: Option<SslMode>, roots: Option<&Roots>, of_this_machine: bool) -> Result<SslMode, String> {
    match (mode, roots) {
        (None, None) if of_this_machine => Ok(SslMode::Prefer),
        // Who names authorities wants them asked.
        (None, _) => Ok(SslMode::VerifyFull),
        (Some(SslMode::Prefer), _) if !of_this_machine => Err(
            "has `sslmode=prefer` for a host that is not this machine, where whoever stands between could switch TLS \
                 off: write `sslmode=verify-full`, or `sslmode=disable` if you trust the network"
                .into(),
        ),
        // As in libpq: anybody can have a certificate by one of the public authorities.
        (Some(SslMode::Require | SslMode::VerifyCa), Some(Roots::System)) => {
            Err("has `sslrootcert=system` with an `sslmode` that does not look at names: write `sslmode=verify-full`"
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

/// A URL as the driver takes it apart.
struct Url<'a> {
    before: &'a str,
    hosts: &'a str,
    parameters: Vec<&'a str>,
}

impl<'a> Url<'a> {
    fn split(url: &'a str) -> Self {
        let scheme = url.find("://").map_or(0, |at| at + 3);
        // A password may have anything in it, up to the first `@`.
        let begin = url[scheme..].find('@').map_or(scheme, |at| scheme + at + 1);
        let end = url[begin..].find('?').map_or(url.len(), |at| begin + at);
        let hosts = url[begin..end].split('/').next().unwrap_or_default();
        let parameters = url[end..].trim_start_matches('?').split('&').filter(|text| !text.is_empty()).collect();
        Self { before: &url[..end], hosts, parameters }
    }

    /// Whether all its hosts are sockets in the file system.
    fn is_socket(&self) -> bool {
        let hosts = self.hosts.split(',').filter(|host| !host.is_empty());
        let said = self.parameters.iter().filter_map(|parameter| parameter.strip_prefix("host="));
        let mut hosts = hosts.chain(said.flat_map(|hosts| hosts.split(','))).peekable();
        hosts.peek().is_some() && hosts.all(|host| decoded(host).is_some_and(|host| host.starts_with('/')))
    }

    /// Whether all its hosts are on this machine. Without any there is none elsewhere.
    fn is_of_this_machine(&self) -> bool {
        let said = |wanted: &'static str| {
            let parameters = self.parameters.iter().filter_map(|parameter| parameter.split_once('='));
            parameters.filter(move |(name, _)| *name == wanted).flat_map(|(_, value)| value.split(','))
        };
        // Where there is one, it is what is connected to, and the host's name is only its name.
        if said("hostaddr").next().is_some() {
            return said("hostaddr").all(is_local);
        }
        let hosts = self.hosts.split(',').filter(|host| !host.is_empty());
        hosts.map(without_port).chain(said("host")).all(is_local)
    }
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(host) => host.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

fn is_local(host: &str) -> bool {
    let host = decoded(host).unwrap_or_default();
    let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    host.starts_with('/') || host.eq_ignore_ascii_case("localhost") || is_loopback
}

/// `None` for what is no text.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let number = after.get(..2).and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        match (first, number) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(url: &str) -> SslMode {
        PostgresTls::take_out(url).unwrap_or_else(|message| panic!("{url}: {message}")).1.mode
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
    fn what_the_driver_does_not_know_is_taken_out_and_nothing_else() {
        let (rest, tls) = PostgresTls::take_out(
            "postgres://u:p@a,b/d?sslmode=verify-full&target_session_attrs=read-write&sslrootcert=%2Fetc%2Fca.pem\
             &sslcert=c.pem&connect_timeout=3&sslkey=k.pem",
        )
        .expect("it is right");
        assert_eq!(rest, "postgres://u:p@a,b/d?target_session_attrs=read-write&connect_timeout=3");
        assert_eq!(tls.roots, Roots::File("/etc/ca.pem".into()));
        assert_eq!(tls.identity, Some(Identity { certificate: "c.pem".into(), key: "k.pem".into() }));
        assert!(tls.is_written);
        let (rest, tls) = PostgresTls::take_out("postgres://u@h/d?sslmode=disable").expect("it is right");
        assert_eq!((&*rest, tls.roots, tls.identity), ("postgres://u@h/d", Roots::System, None));
    }

    #[test]
    fn what_would_not_keep_its_word_is_refused_with_what_would() {
        for (url, why) in [
            ("postgres://u:hunter2@db/d?sslmode=prefer", "write `sslmode=verify-full`"),
            ("postgres://u:hunter2@db/d?sslmode=allow", "`verify-ca` or `verify-full`"),
            ("postgres://u:hunter2@db/d?sslmode=verify-ca", "without an `sslrootcert`"),
            ("postgres://u:hunter2@db/d?sslmode=require&sslrootcert=system", "does not look at names"),
            ("postgres://u:hunter2@db/d?sslcert=c.pem", "without an `sslkey`"),
            ("postgres://u:hunter2@db/d?sslkey=k.pem", "without an `sslcert`"),
            ("postgres://u:hunter2@db/d?sslmode=", "says nothing"),
        ] {
            let message = PostgresTls::take_out(url).expect_err(url);
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
