//! Warnings about files that everybody on the machine may read.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::environment::Environment;
use oncegate_settings::StoreLocation;

/// The keys of the file whose value is a secret.
const SECRETS: [&[&str]; 12] = [
    &["secret"],
    &["previous_secrets"],
    &["admin", "token"],
    &["admin", "read_token"],
    &["admin", "oidc", "client_secret"],
    &["consumers", "kafka", "password"],
    &["events", "kafka", "password"],
    &["events", "secret"],
    &["routes", "set_headers"],
    &["defaults", "set_headers"],
    &["routes", "signature", "secrets"],
    &["defaults", "signature", "secrets"],
];

/// The keys of the file whose value is a URL that may have a password.
const URLS: [&[&str]; 5] =
    [&["store", "url"], &["cache", "redis"], &["consumers", "amqp"], &["events", "amqp"], &["events", "url"]];

/// Warns of a configuration file with secrets in it, and of a database file.
pub(super) fn warnings(
    file: Option<&Path>,
    table: &DeTable<'_>,
    location: &StoreLocation,
    environment: &dyn Environment,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if let (Some(file), Some(path)) = (file, written_secret(table))
        && environment.is_readable_by_all(file)
    {
        warnings.push(format!(
            "{}: everybody on this machine can read `{}`, which has it: `chmod o-r` it, or write `${{file:…}}` or `${{NAME}}`",
            path.join("."),
            file.display()
        ));
    }
    // Another program's file is refused when it is opened. Its mode is none of our business.
    if let StoreLocation::Sqlite(path) = location
        && environment.is_readable_by_all(path)
        && environment.is_database(path)
    {
        warnings.push(format!(
            "store.url: everybody on this machine can read `{path}`: `chmod o-r` it, and `{path}-wal` if it is there",
            path = path.display()
        ));
    }
    warnings
}

/// The key of a secret or a password that the file has itself.
fn written_secret(table: &DeTable<'_>) -> Option<&'static [&'static str]> {
    let secret = SECRETS.iter().find(|path| has_text(table, path, &is_written));
    secret.or_else(|| URLS.iter().find(|path| has_text(table, path, &has_written_password))).copied()
}

/// Whether the text of a configuration has a secret or a password itself, so that only its reader may read the file.
pub fn has_written_secret(text: &str) -> bool {
    DeTable::parse(text).is_ok_and(|table| written_secret(table.get_ref()).is_some())
}

/// Whether a key has a text like this; in lists and lists of tables, whether one of them has.
fn has_text(table: &DeTable<'_>, path: &[&str], is_wanted: &dyn Fn(&str) -> bool) -> bool {
    let Some((key, rest)) = path.split_first() else { return false };
    table.get(*key).is_some_and(|value| value_has_text(value.get_ref(), rest, is_wanted))
}

fn value_has_text(value: &DeValue<'_>, rest: &[&str], is_wanted: &dyn Fn(&str) -> bool) -> bool {
    match value {
        DeValue::String(text) => rest.is_empty() && is_wanted(text),
        DeValue::Array(values) => values.iter().any(|value| value_has_text(value.get_ref(), rest, is_wanted)),
        DeValue::Table(table) if rest.is_empty() => {
            table.values().any(|value| value_has_text(value.get_ref(), rest, is_wanted))
        }
        DeValue::Table(table) => has_text(table, rest, is_wanted),
        _ => false,
    }
}

/// Whether a text has its value in itself, and not in a variable or another file.
fn is_written(text: &str) -> bool {
    !text.is_empty() && !text.contains("${")
}

fn has_written_password(url: &str) -> bool {
    let (url, parameters) = url.split_once('?').unwrap_or((url, ""));
    let authority = url.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
    // A placeholder may have slashes: its password is not written here.
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    user.split_once(':').is_some_and(|(_, password)| is_written(password))
        || parameters.split('&').filter_map(|parameter| parameter.strip_prefix("password=")).any(is_written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_counts_where_it_is_written_itself() {
        for (text, found) in [
            ("secret = 'a'", Some("secret")),
            ("secret = '${A}'", None),
            ("secret = ''", None),
            ("previous_secrets = ['${A}', 'b']", Some("previous_secrets")),
            ("[admin]\nread_token = 'a'", Some("admin.read_token")),
            ("[admin]\ntoken = '${file:/a}'", None),
            ("[store]\nurl = 'postgres://u:p@h/d'", Some("store.url")),
            ("[store]\nurl = 'postgres://u:${P}@h/d'", None),
            ("[store]\nurl = 'postgres://u:${file:/run/p}@h/d'", None),
            ("[store]\nurl = 'postgres://u@h/d'", None),
            ("[store]\nurl = 'postgres://u@h/d?sslmode=require&password=p'", Some("store.url")),
            ("[store]\nurl = 'postgres://u@h/d?password=${P}'", None),
            ("[store]\nurl = 'sqlite:a'", None),
            ("[[routes]]\nset_headers = { Authorization = 'Bearer a' }", Some("routes.set_headers")),
            ("[[routes]]\nset_headers = { Authorization = '${file:/a}' }", None),
            ("[cache]\nredis = 'redis://:p@h'", Some("cache.redis")),
            ("[[consumers]]\namqp = 'amqp://h'\n[[consumers]]\namqp = 'amqps://u:p@h'", Some("consumers.amqp")),
        ] {
            let table = DeTable::parse(text).unwrap();
            for (readable_by_all, found) in [(true, found), (false, None)] {
                let environment = super::super::environment::FakeEnvironment { readable_by_all, ..Default::default() };
                let file = Some(Path::new("oncegate.toml"));
                let warnings = warnings(file, table.get_ref(), &StoreLocation::Memory, &environment);
                assert_eq!(warnings.len(), usize::from(found.is_some()), "{text}: {warnings:?}");
                assert!(warnings.iter().all(|warning| warning.starts_with(&format!("{}: ", found.unwrap()))), "{text}");
            }
        }
    }

    #[test]
    fn a_database_file_that_everybody_can_read_is_warned_about() {
        let environment = super::super::environment::FakeEnvironment { readable_by_all: true, ..Default::default() };
        let location = StoreLocation::Sqlite("a.db".into());
        let found = warnings(None, DeTable::parse("").unwrap().get_ref(), &location, &environment);
        assert_eq!(
            found,
            ["store.url: everybody on this machine can read `a.db`: `chmod o-r` it, and `a.db-wal` if it is there"]
        );
    }
}
