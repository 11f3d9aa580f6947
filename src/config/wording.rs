//! The texts of problems that any key can have.

use toml::de::DeValue;

use super::key_docs::{self, KeyDoc, ValueKind};
use super::nearest::nearest;

/// The problem of a value of another kind than its key's.
pub(super) fn wrong_kind(kind: ValueKind, value: &DeValue<'_>) -> String {
    let number = matches!(value, DeValue::Integer(_) | DeValue::Float(_));
    let right = match kind {
        ValueKind::Boolean => "`true` or `false`, without quotes",
        ValueKind::Choice(words) => &format!("{} (in quotes)", one_of(words)),
        ValueKind::Duration if number => "in quotes and have a unit, like \"30s\"",
        ValueKind::Duration => "a duration, like \"30s\"",
        ValueKind::Integer => "a whole number, without quotes",
        ValueKind::Size if number => "in quotes and have a unit, like \"64KiB\"",
        ValueKind::Size => "a size, like \"64KiB\"",
        ValueKind::Table(_) => "a table",
        ValueKind::Tables(_) => "written as `[[…]]`, with two brackets on each side",
        ValueKind::Text => "a text in quotes",
        ValueKind::Texts => "a list of texts, like [\"a\", \"b\"]",
    };
    format!("must be {right}; this is {}", with_article(value))
}

/// The problem of a key that its table does not have: names the nearest key, or all keys and the table that has it.
pub(super) fn unknown_key(name: &str, keys: &[KeyDoc]) -> String {
    let names = || keys.iter().map(|key| key.name);
    if let Some(near) = nearest(name, names()) {
        return format!("unknown key; did you mean `{near}`?");
    }
    let table = key_docs::table_with(name).map_or(String::new(), |table| format!(" (`{name}` is written {table})"));
    format!("unknown key; known here are {}{table}", names().collect::<Vec<_>>().join(", "))
}

/// Joins words to "`a`, `b` or `c`".
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
