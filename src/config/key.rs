//! Where a request's key is, what it may look like, and what the service sees of it.

use http::HeaderName;

use super::reader::{Found, Section};
use super::route::{ForwardKey, KeyRule, KeySource};
use crate::domain::canonical_json::Pointer;
use crate::domain::key;

/// A key stands in an index of the store, whose entries have an upper bound: 1024 leaves room for all else in it.
const KEY_LENGTH_MAX: usize = 1024;

/// Fields that say something about the connection, the message's length or the caller, and cannot carry a key as well.
const NOT_FOR_KEYS: [&str; 13] = [
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

/// The longest step of `derive:STEP`: it stands behind every key of its route.
const STEP_LENGTH_MAX: usize = 64;

pub(super) fn read(section: &Section<'_>) -> Option<KeyRule> {
    let header = section.parsed("header", |text| match super::routes::header_name(text)? {
        name if NOT_FOR_KEYS.contains(&name.as_str()) => Err("carries something else and cannot carry a key".into()),
        name => Ok(name),
    });
    let query = section.parsed("query", |text| Ok::<_, String>(named(text).map(KeySource::Query)));
    let form = section.parsed("form", |text| Ok::<_, String>(named(text).map(KeySource::Form)));
    let body = section.parsed("body", |text| match text {
        "" => Ok(None),
        text => pointer(text).map(|pointer| Some(KeySource::Body(pointer))),
    });
    let required = section.boolean("required");
    let why = "an empty key names nothing, and every key stands in an index of the store";
    let min = section.integer("min_length", 1..=KEY_LENGTH_MAX, why);
    let max = section.integer("max_length", 1..=KEY_LENGTH_MAX, why);
    if let (Some(min), Some(max)) = (&min, &max)
        && min.value > max.value
    {
        let message =
            format!("`min_length` ({}) must not be over `max_length` ({}): no key would do", min.value, max.value);
        section.reader().problem((&min.place).max(&max.place), message);
    }
    let syntax = section.choice("syntax", |word| match word {
        "ietf" => Some(key::Syntax::Ietf),
        "opaque" => Some(key::Syntax::Opaque),
        "sf-string" => Some(key::Syntax::SfString),
        "uuid" => Some(key::Syntax::Uuid),
        _ => None,
    });
    let limits = key::Limits { length_min: min?.value, length_max: max?.value };
    let sources = sources(header?, [query?.value, form?.value, body?.value]);
    Some(KeyRule { sources, required: required?.value, syntax: syntax?.value, limits })
}

/// The header that nobody wrote gives way to another place that somebody did.
fn sources(header: Found<HeaderName>, others: [Option<KeySource>; 3]) -> Vec<KeySource> {
    let others: Vec<_> = others.into_iter().flatten().collect();
    let header = (header.place.is_written() || others.is_empty()).then_some(KeySource::Header(header.value));
    header.into_iter().chain(others).collect()
}

fn named(text: &str) -> Option<Box<str>> {
    (!text.is_empty()).then(|| text.into())
}

fn pointer(text: &str) -> Result<Pointer, String> {
    let pointer = super::fingerprint::pointer(text)?;
    if pointer.is_pattern() {
        return Err("has a `*`: a key is one value, and its place has no choice".into());
    }
    Ok(pointer)
}

/// `same`, `none` or `derive:STEP`.
pub(super) fn forwarded(text: &str) -> Result<ForwardKey, String> {
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
