//! How problems that any key can have are put.

use toml::de::DeValue;

use super::keys::{self, KeyDoc, Kind};
use super::nearest::nearest;

/// For a value of another kind than its key's.
pub(super) fn wrong_kind(kind: Kind, value: &DeValue<'_>) -> String {
    let number = matches!(value, DeValue::Integer(_) | DeValue::Float(_));
    let right = match kind {
        Kind::Boolean => "`true` or `false`, without quotes",
        Kind::Choice(words) => &format!("{} (in quotes)", one_of(words)),
        Kind::Duration if number => "in quotes and have a unit, like \"30s\"",
        Kind::Duration => "a duration, like \"30s\"",
        Kind::Integer => "a whole number, without quotes",
        Kind::Size if number => "in quotes and have a unit, like \"64KiB\"",
        Kind::Size => "a size, like \"64KiB\"",
        Kind::Table(_) => "a table",
        Kind::Tables(_) => "written as `[[…]]`, with two brackets on each side",
        Kind::Text => "a text in quotes",
        Kind::Texts => "a list of texts, like [\"a\", \"b\"]",
    };
    format!("must be {right}; this is {}", with_article(value))
}

/// For a key that its table does not have: the one that was meant, or all there are and where it belongs.
pub(super) fn unknown_key(name: &str, keys: &[KeyDoc]) -> String {
    let names = || keys.iter().map(|key| key.name);
    if let Some(near) = nearest(name, names()) {
        return format!("unknown key; did you mean `{near}`?");
    }
    let home = keys::home(name).map_or(String::new(), |home| format!(" (`{name}` is written {home})"));
    format!("unknown key; known here are {}{home}", names().collect::<Vec<_>>().join(", "))
}

/// `a`, `b` or `c`.
pub(super) fn one_of(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        _ => quoted.concat(),
    }
}

fn with_article(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::Array(_) => "a list",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Float(_) => "a fraction",
        DeValue::Integer(_) => "a number",
        DeValue::String(_) => "a text",
        DeValue::Table(_) => "a table",
    }
}
