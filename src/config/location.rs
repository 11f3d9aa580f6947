//! The kind and the address of the store.

use std::fmt;
use std::path::PathBuf;

use super::postgres_tls::PostgresTls;

/// The kind and the address of the store.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// In this process: lost with it.
    Memory,
    /// A PostgreSQL server: the whole URL, with the password.
    Postgres(String),
    /// A file, relative to the working directory.
    Sqlite(PathBuf),
}

impl StoreLocation {
    /// Reads `sqlite:PATH`, `memory:`, `postgres://…` or `postgresql://…`.
    ///
    /// # Errors
    /// The problem, beginning with a verb. Never has the text itself, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let right = "write `sqlite:PATH`, `postgres://user@host/database` or `memory:`";
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(format!("has no scheme: {right}"));
        };
        match (scheme, rest) {
            ("memory", "") | ("sqlite", ":memory:") => Ok(Self::Memory),
            ("memory", _) => Err("has something after `memory:`, which takes nothing".into()),
            ("sqlite", "") => Err("names no file: write `sqlite:oncegate.db`".into()),
            ("sqlite", path) if path.starts_with("//") || path.contains('?') => {
                Err("is no path: write `sqlite:oncegate.db` or `sqlite:/var/lib/oncegate/oncegate.db`, without options"
                    .into())
            }
            ("sqlite", path) => Ok(Self::Sqlite(path.into())),
            ("postgres" | "postgresql", rest) if rest.strip_prefix("//").is_some_and(|rest| !rest.is_empty()) => {
                PostgresTls::extract(text)?;
                Ok(Self::Postgres(text.into()))
            }
            ("postgres" | "postgresql", _) => Err("names no server: write `postgres://user@host/database`".into()),
            _ => Err(format!("has an unknown scheme: {right}")),
        }
    }

    /// The name of the kind of store.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Postgres(_) => "postgres",
            Self::Sqlite(_) => "sqlite",
        }
    }
}

/// The URL in the configuration without the password.
impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Postgres(url) => f.write_str(&without_password(url)),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
        }
    }
}

impl fmt::Debug for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The URL without its password. Only parts that are known to be harmless are shown, rather than known secrets hidden:
/// of a malformed URL, say with an unescaped `/` in the password, too little is shown, and never too much.
fn without_password(url: &str) -> String {
    const HARMLESS: [&str; 6] =
        ["application_name", "connect_timeout", "host", "sslmode", "sslrootcert", "target_session_attrs"];
    let hidden = "postgres://…".to_owned();
    let Some((scheme, rest)) = url.split_once("://") else { return hidden };
    let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = before.split_once('/').unwrap_or((before, ""));
    if query.contains(['@', '?']) || database.contains(['@', ':']) || authority.matches('@').count() > 1 {
        return hidden;
    }
    let mut shown = format!("{scheme}://");
    let hosts = match authority.split_once('@') {
        Some((user, hosts)) => {
            shown.push_str(user.split(':').next().unwrap_or_default());
            shown.push('@');
            hosts
        }
        None => authority,
    };
    shown.push_str(hosts);
    if before.contains('/') {
        shown.push('/');
        shown.push_str(database);
    }
    let parameters: Vec<_> = query
        .split('&')
        .filter(|parameter| parameter.split_once('=').is_some_and(|(name, _)| HARMLESS.contains(&name)))
        .collect();
    if !parameters.is_empty() {
        shown.push('?');
        shown.push_str(&parameters.join("&"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_store_has_its_spelling() {
        for (text, location) in [
            ("memory:", StoreLocation::Memory),
            ("sqlite::memory:", StoreLocation::Memory),
            ("sqlite:oncegate.db", StoreLocation::Sqlite("oncegate.db".into())),
            ("sqlite:/var/lib/o.db", StoreLocation::Sqlite("/var/lib/o.db".into())),
            ("postgres://u@h/d", StoreLocation::Postgres("postgres://u@h/d".into())),
            ("postgresql://h", StoreLocation::Postgres("postgresql://h".into())),
        ] {
            assert_eq!(StoreLocation::parse(text), Ok(location), "{text}");
        }
        for text in [
            "",
            "oncegate.db",
            "sqlite:",
            "sqlite:///o.db",
            "sqlite:o.db?mode=ro",
            "memory:x",
            "postgres:",
            "mysql://h",
        ] {
            assert!(StoreLocation::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("postgres://u:hunter2@h:5432/d?sslmode=verify-full", "postgres://u@h:5432/d?sslmode=verify-full"),
            ("postgres://u@h/d", "postgres://u@h/d"),
            (
                "postgres://u:hunter2@a,b/d?target_session_attrs=read-write",
                "postgres://u@a,b/d?target_session_attrs=read-write",
            ),
            ("postgres://h/d?user=u&password=hunter2", "postgres://h/d"),
            ("postgres://h?password=hun@ter2", "postgres://…"),
            ("postgres://u:hun/ter2@h/d", "postgres://…"),
            ("postgres://u:hun@ter2@h/d", "postgres://…"),
            ("postgres://u:hun?ter2@h/d", "postgres://…"),
            ("postgres://u:hun:ter2@h/d", "postgres://u@h/d"),
        ] {
            let location = StoreLocation::Postgres(url.into());
            assert_eq!(location.to_string(), shown);
            assert_eq!(format!("{location:?}"), shown);
        }
    }
}
