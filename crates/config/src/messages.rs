//! The texts of problems that any key can have.

use strsim::osa_distance;
use toml::de::{DeTable, DeValue};

use super::key_doc::{KeyDoc, ValueKind};
use oncegate_settings::one_of;

/// The end of the problem of a missing key where no file was read.
pub(super) const NO_DEFAULT_FILE: &str = "; neither ./oncegate.toml nor /etc/oncegate/oncegate.toml was found";

/// The problem of a value of another kind than its key's.
pub(super) fn wrong_kind(kind: ValueKind, value: &DeValue<'_>) -> String {
    let number = matches!(value, DeValue::Integer(_) | DeValue::Float(_));
    let right = match kind {
        ValueKind::Boolean => "`true` or `false`, without quotes",
        ValueKind::Choice(words) => &format!("{} (in quotes)", one_of(words)),
        ValueKind::Duration if number => "in quotes and have a unit, like \"30s\"",
        ValueKind::Duration => "a duration, like \"30s\"",
        ValueKind::Fields => "a table of texts, like `{ Authorization = \"…\" }`",
        ValueKind::Integer => "a whole number, without quotes",
        ValueKind::Named(keys) => &format!("a table of tables, like `{{ name = {} }}`", example(keys)),
        ValueKind::Scalar => "a text in quotes, a number, `true` or `false`",
        ValueKind::Size if number => "in quotes and have a unit, like \"64KiB\"",
        ValueKind::Size => "a size, like \"64KiB\"",
        ValueKind::Table(keys) => &format!("a table, like `{}`", example(keys)),
        ValueKind::Tables(_) => "written as `[[…]]`, with two brackets on each side",
        ValueKind::Concealed | ValueKind::Path | ValueKind::Place(_) | ValueKind::Text => "a text in quotes",
        ValueKind::PlaceOrPlaces | ValueKind::TextOrTexts => "a text in quotes, or a list of them",
        ValueKind::Places(_) | ValueKind::Texts => "a list of texts, like [\"a\", \"b\"]",
    };
    format!("must be {right}; this is {}", with_article(value))
}

/// A table with its first key that has a text: most tables begin with the key that matters.
fn example(keys: &[KeyDoc]) -> String {
    use ValueKind::{Concealed, Path, Place, PlaceOrPlaces, Places, Text, TextOrTexts, Texts};
    let is_text = |key: &&KeyDoc| {
        matches!(key.kind, Concealed | Path | Place(_) | PlaceOrPlaces | Places(_) | Text | TextOrTexts | Texts)
    };
    match keys.iter().find(is_text).or(keys.first()) {
        Some(key) => format!("{{ {} = {} }}", key.name, key.default.filter(|text| *text != "\"\"").unwrap_or("\"…\"")),
        None => "{ … }".into(),
    }
}

/// Names that other programs have for our keys: ours, and theirs.
const FOREIGN_NAMES: [(&str, &[&str]); 8] = [
    ("key", &["idempotency_key"]),
    ("listen", &["address", "bind", "port"]),
    ("methods", &["verb"]),
    ("path", &["location", "match", "prefix"]),
    ("retry", &["retries"]),
    ("ttl", &["expiry"]),
    ("upstream", &["backend", "proxy_pass", "target"]),
    ("upstream_timeout", &["proxy_read_timeout", "read_timeout", "request_timeout", "timeout"]),
];

/// The options of a key that `from` has replaced, each with the kind of its places, in the order in which they counted.
const EARLIER_PLACES: [(&str, &str); 5] =
    [("header", "header"), ("query", "query"), ("payload", "header"), ("form", "form"), ("body", "json")];

/// Names by which other programs read a second file.
const INCLUDES: [&str; 5] = ["extends", "import", "imports", "include", "includes"];

/// The problem of a key that its table does not have: names the nearest key, or all keys and the table that has it.
pub(super) fn unknown_key(name: &str, keys: &[KeyDoc], tables: &[(&str, &[KeyDoc])]) -> String {
    let names = || keys.iter().map(|key| key.name);
    let foreign = FOREIGN_NAMES.iter().find(|(_, theirs)| theirs.contains(&name)).map(|(ours, _)| *ours);
    if let Some(near) = nearest(name, names()).or(foreign.filter(|ours| names().any(|known| known == *ours))) {
        return format!("unknown key; did you mean `{near}`?");
    }
    if INCLUDES.contains(&name) {
        return "unknown key; further files are named by `include` at the top of the file".into();
    }
    let with_it = tables.iter().find(|(_, keys)| keys.iter().any(|key| key.name == name));
    let table = with_it.map_or(String::new(), |(place, _)| format!(" (`{name}` is written {place})"));
    format!("unknown key; known here are {}{table}", names().collect::<Vec<_>>().join(", "))
}

/// The known word that was most likely meant, if one is near enough to be worth naming.
///
/// Near is one slip for every three characters: with more, a short word would be near to every other. A slip adds,
/// drops or changes a character, or swaps two neighbours (optimal string alignment).
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let word = normalize(word);
    let reach = (word.chars().count() / 3).max(1);
    let near = known.into_iter().map(|known| (osa_distance(&word, &normalize(known)), known));
    near.filter(|(distance, _)| *distance <= reach).min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// The word in lower case and with underscores: case and the kind of dash are no slips.
fn normalize(word: &str) -> String {
    word.to_ascii_lowercase().replace('-', "_")
}

/// The problem of an earlier option of a key, with `from` as it replaces all of them in this table; `None` for any
/// other key. The texts are shown before they are filled in.
pub(super) fn earlier_place(name: &str, table: &DeTable<'_>, keys: &[KeyDoc]) -> Option<String> {
    let is_route = keys.iter().any(|key| key.name == "spelling");
    if is_route && matches!(name, "host" | "upstream") {
        let now = "belongs to a service now: `[[services]]` with `name`, `host` and `upstream`, and `service` here";
        return Some(now.into());
    }
    if !keys.iter().any(|key| key.name == "from") || !EARLIER_PLACES.iter().any(|(earlier, _)| *earlier == name) {
        return None;
    }
    let mut places = Vec::new();
    for (earlier, kind) in EARLIER_PLACES {
        let value = table.get(earlier).map(|value| value.get_ref());
        let list = value.and_then(DeValue::as_array).into_iter().flatten().filter_map(|item| item.get_ref().as_str());
        let texts = value.and_then(DeValue::as_str).into_iter().chain(list);
        places.extend(texts.map(|text| format!("{:?}", format!("{kind}:{text}"))));
    }
    let from = match &*places {
        [place] => place.clone(),
        places => format!("[{}]", places.join(", ")),
    };
    Some(format!("is a place of `key.from` now: `{from}`"))
}

/// The likely mistake of a file that is not TOML; `None` if nothing shows it. `offset` is where the reader of TOML
/// gave up.
pub(super) fn syntax_hint(text: &str, offset: usize) -> Option<&'static str> {
    let begin = text.get(..offset)?.rfind('\n').map_or(0, |end| end + 1);
    let line = text.get(begin..)?.lines().next()?;
    let is_yaml = |line: &str| {
        let name = line.trim_start().trim_start_matches("- ");
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        line == "---" || (end > 0 && (name[end..] == *":" || name[end..].starts_with(": ")))
    };
    if line.contains(['\u{201c}', '\u{201d}', '\u{201e}', '\u{2018}', '\u{2019}']) {
        return Some("the line has typographic quotes; write \" instead");
    }
    if is_yaml(line) {
        return Some("this looks like YAML; the file is TOML, as in upstream = \"http://127.0.0.1:3000\"");
    }
    line.trim_start().starts_with('{').then_some("this looks like JSON; the file is TOML")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_the_word_that_was_meant() {
        let known = ["ttl", "path", "scope", "space", "upstream", "upstream_timeout", "max_request_body"];
        for (word, meant) in [
            ("tll", Some("ttl")),
            ("TTL", Some("ttl")),
            ("paht", Some("path")),
            ("scop", Some("scope")),
            ("up_stream", Some("upstream")),
            ("upstream-timeout", Some("upstream_timeout")),
            ("max_requests_body", Some("max_request_body")),
            ("dialect", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word:?}");
        }
    }
}
