//! The kind and the address of the store.

use std::path::PathBuf;

use super::{ParseResult, PostgresUrl};
use oncegate_domain::macros::debug_as_display;

/// The kind and the address of the store. It is shown without user, password and parameters.
#[derive(Clone, PartialEq, Eq, derive_more::Display)]
pub enum StoreLocation {
    /// In this process: lost with it.
    #[display("memory:")]
    Memory,
    /// A PostgreSQL server.
    #[display("{_0}")]
    Postgres(Box<PostgresUrl>),
    /// A file.
    #[display("sqlite:{}", _0.display())]
    Sqlite(PathBuf),
}

debug_as_display!(StoreLocation);

impl StoreLocation {
    /// Reads `sqlite:PATH`, `memory:`, `postgres://…` or `postgresql://…`.
    pub fn parse(text: &str) -> ParseResult<Self> {
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(explain_scheme(text));
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
                PostgresUrl::parse(text).map(|url| Self::Postgres(Box::new(url)))
            }
            ("postgres" | "postgresql", _) => Err("names no server: write `postgres://user@host/database`".into()),
            (scheme, _) => Err(explain_scheme(scheme)),
        }
    }

    /// The kind and the whole path of a file: another working directory is another store.
    pub fn show_whole(&self) -> String {
        match self {
            Self::Sqlite(path) => format!("sqlite:{}", super::show_whole_path(path)),
            Self::Memory | Self::Postgres(_) => self.to_string(),
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

/// The problem of a text that begins with no known scheme: URLs as other programs write them have advice.
fn explain_scheme(scheme: &str) -> String {
    let right = "write `sqlite:PATH`, `postgres://user@host/database` or `memory:`";
    let lower = scheme.to_ascii_lowercase();
    if lower == "jdbc" {
        "is a URL of JDBC: write `postgres://user:password@host:port/database`, without `jdbc:`".into()
    } else if lower.starts_with("postgresql+") || lower.starts_with("postgres+") {
        "is a URL of SQLAlchemy, which names its driver: write `postgresql://`, without the `+` and the driver".into()
    } else if lower.starts_with("psql ") {
        "is a command: write the URL in it alone, without `psql` and without quotes".into()
    } else if lower.starts_with(['\'', '"']) {
        "begins with a quote: write the URL without quotes".into()
    } else if ["pgsql", "postgis", "pg"].contains(&&*lower) {
        "has a scheme of another program: write `postgres://`".into()
    } else if lower.contains('=') {
        format!("is no URL, but may be libpq's list of keywords: {right}")
    } else if lower == scheme && !lower.contains("postgres") {
        format!("has an unknown scheme: {right}")
    } else {
        format!("has an unknown scheme, which is case-sensitive: {right}")
    }
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
    fn urls_of_other_programs_get_advice() {
        for (text, advice) in [
            ("jdbc:postgresql://hunter2/d?user=hunter2&password=hunter2", "JDBC"),
            ("postgresql+asyncpg://u:hunter2@h/d", "SQLAlchemy"),
            ("postgres+psycopg://u:hunter2@h/d", "SQLAlchemy"),
            ("postgresql+psycopg2cffi://u:hunter2@h/d", "SQLAlchemy"),
            ("psql 'postgresql://u:hunter2@h/d'", "without `psql`"),
            ("'postgresql://u:hunter2@h/d'", "without quotes"),
            ("\"postgresql://u:hunter2@h/d\"", "without quotes"),
            ("pgsql://u:hunter2@h/d", "another program"),
            ("postgis://u:hunter2@h/d", "another program"),
            ("host=h user=u password=hunter2", "list of keywords"),
            ("host=h password=hunter2:x", "list of keywords"),
            ("Postgres://u:hunter2@h/d", "case-sensitive"),
            ("hunter2", "unknown scheme"),
            ("u:hunter2@h/d", "unknown scheme"),
        ] {
            let message = StoreLocation::parse(text).expect_err(text);
            assert!(message.contains(advice) && !message.contains("hunter2"), "{text}: {message}");
        }
    }
}
