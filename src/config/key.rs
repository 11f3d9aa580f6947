//! Reads and checks a route's `key` and `forward_key`.

use http::HeaderName;

use super::reader::{Located, Section};
use super::route::{ForwardKey, KeyRule, KeySource};
use super::value_parsers::{header_name, json_pointer};
use crate::domain::key::{KeyLimits, KeySyntax};
use canonical_json::Pointer;

/// The store has an index of keys, and index entries have an upper bound: 1024 leaves room for the other columns.
const KEY_LENGTH_MAX: usize = KeyLimits::WIDEST.length_max;

/// Fields about the connection, the message's length or the caller, which cannot carry a key as well.
const UNUSABLE_FIELDS: [&str; 13] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The longest step of `derive:STEP`: it is appended to every key of its route.
const STEP_LENGTH_MAX: usize = 64;

pub(super) fn read(section: &Section<'_>) -> Option<KeyRule> {
    let headers = read_headers(section);
    let query = section.parsed("query", |text| Ok::<_, String>(parse_optional_name(text).map(KeySource::Query)));
    let form = section.parsed("form", |text| Ok::<_, String>(parse_optional_name(text).map(KeySource::Form)));
    let body = section.parsed("body", |text| match text {
        "" => Ok(None),
        text => parse_key_pointer(text).map(|pointer| Some(KeySource::Body(pointer))),
    });
    let required = section.boolean("required");
    let why = "an empty key names nothing, and the store has an index of keys";
    let min = section.integer("min_length", 1..=KEY_LENGTH_MAX, why);
    let max = section.integer("max_length", 1..=KEY_LENGTH_MAX, why);
    if let (Some(min), Some(max)) = (&min, &max)
        && min.value > max.value
    {
        let message =
            format!("`min_length` ({}) must not be over `max_length` ({}): no key would do", min.value, max.value);
        section.reader().problem((&min.position).max(&max.position), message);
    }
    let syntax = section.choice("syntax", |word| match word {
        "ietf" => Some(KeySyntax::Ietf),
        "opaque" => Some(KeySyntax::Opaque),
        "sf-string" => Some(KeySyntax::SfString),
        "uuid" => Some(KeySyntax::Uuid),
        _ => None,
    });
    let limits = KeyLimits { length_min: min?.value, length_max: max?.value };
    let sources = collect_sources(headers?, [query?.value, form?.value, body?.value]);
    Some(KeyRule { sources, required: required?.value, syntax: syntax?.value, limits })
}

/// Reads the fields that may carry the key; each once, at least one.
fn read_headers(section: &Section<'_>) -> Option<Located<Vec<HeaderName>>> {
    let Located { value: names, position } = section.list("header", |text| match header_name(text)? {
        name if UNUSABLE_FIELDS.contains(&name.as_str()) => Err("carries something else and cannot carry a key".into()),
        name => Ok(name),
    })?;
    if names.is_empty() {
        section.reader().problem(&position, "is empty: name a field, or another place of the key alone");
        return None;
    }
    for (index, name) in names.iter().enumerate() {
        if names[..index].iter().any(|other| other.value == name.value) {
            section.reader().problem(&name.position, "is listed a second time");
            return None;
        }
    }
    Some(Located { value: names.into_iter().map(|name| name.value).collect(), position })
}

/// Default headers give way to another source that is written.
fn collect_sources(headers: Located<Vec<HeaderName>>, others: [Option<KeySource>; 3]) -> Vec<KeySource> {
    let others: Vec<_> = others.into_iter().flatten().collect();
    let counts = headers.position.is_written() || others.is_empty();
    let headers = headers.value.into_iter().filter(|_| counts).map(KeySource::Header);
    headers.chain(others).collect()
}

fn parse_optional_name(text: &str) -> Option<Box<str>> {
    (!text.is_empty()).then(|| text.into())
}

fn parse_key_pointer(text: &str) -> Result<Pointer, String> {
    let pointer = json_pointer(text)?;
    if pointer.is_pattern() {
        return Err("has a `*`: a key is one value, in one place".into());
    }
    Ok(pointer)
}

/// Parses `same`, `none` or `derive:STEP`.
pub(super) fn parse_forward_key(text: &str) -> Result<ForwardKey, String> {
    match (text, text.strip_prefix("derive:")) {
        ("same", _) => Ok(ForwardKey::Same),
        ("none", _) => Ok(ForwardKey::None),
        (_, Some(step)) => {
            let word = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            match (1..=STEP_LENGTH_MAX).contains(&step.len()) && step.bytes().all(word) {
                true => Ok(ForwardKey::Derive(step.into())),
                false => Err("has no proper step: write 1 to 64 letters, digits, `_`, `.` and `-` behind it".into()),
            }
        }
        _ => Err("is not known: write `same`, `none` or `derive:STEP`".into()),
    }
}
