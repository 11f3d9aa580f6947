//! Where keys are kept.

use std::fmt;
use std::path::PathBuf;

use super::postgres_tls::PostgresTls;

/// Which store, and where it is.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// In this process: gone with it.
    Memory,
    /// A PostgreSQL server: the whole URL, password and all.
    Postgres(String),
    /// A file, relative to the working directory.
    Sqlite(PathBuf),
}

impl Location {
    /// Reads `sqlite:PATH`, `memory:`, `postgres://…` or `postgresql://…`.
    ///
    /// # Errors
    /// What would be right, beginning with a verb. Never has the text itself, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let right = "write `sqlite:PATH`, `postgres://user@host/database` or `memory:`";
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(format!("does not say which kind of store: {right}"));
        };
        match (scheme, rest) {
            ("memory", "") | ("sqlite", ":memory:") => Ok(Self::Memory),
            ("memory", _) => Err("has something after `memory:`, where nothing can be said".into()),
            ("sqlite", "") => Err("does not say which file: write `sqlite:oncegate.db`".into()),
            ("sqlite", path) if path.starts_with("//") || path.contains('?') => {
                Err("is no path: write `sqlite:oncegate.db` or `sqlite:/var/lib/oncegate/oncegate.db`, without options"
                    .into())
            }
            ("sqlite", path) => Ok(Self::Sqlite(path.into())),
            ("postgres" | "postgresql", rest) if rest.strip_prefix("//").is_some_and(|rest| !rest.is_empty()) => {
                PostgresTls::take_out(text)?;
                Ok(Self::Postgres(text.into()))
            }
            ("postgres" | "postgresql", _) => {
                Err("does not say which server: write `postgres://user@host/database`".into())
            }
            _ => Err(format!("is of a kind that is not known: {right}")),
        }
    }

    /// The kind of store, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Postgres(_) => "postgres",
            Self::Sqlite(_) => "sqlite",
        }
    }
}

/// As it would be written, but for the password.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Postgres(url) => f.write_str(&without_password(url)),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Shows what is known to be harmless, rather than hide what is known to be secret: an odd URL (a password with an
/// unescaped `/`, say) then shows too little, never too much.
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
            ("memory:", Location::Memory),
            ("sqlite::memory:", Location::Memory),
            ("sqlite:oncegate.db", Location::Sqlite("oncegate.db".into())),
            ("sqlite:/var/lib/o.db", Location::Sqlite("/var/lib/o.db".into())),
            ("postgres://u@h/d", Location::Postgres("postgres://u@h/d".into())),
            ("postgresql://h", Location::Postgres("postgresql://h".into())),
        ] {
            assert_eq!(Location::parse(text), Ok(location), "{text}");
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
            assert!(Location::parse(text).is_err(), "{text}");
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
            let location = Location::Postgres(url.into());
            assert_eq!(location.to_string(), shown);
            assert_eq!(format!("{location:?}"), shown);
        }
    }
}
