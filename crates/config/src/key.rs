//! Reads and checks a route's `key` and `forward_key`.

use http::HeaderName;

use super::options::options;
use super::reader::Section;
use super::value_parsers::{header_name, is_of_connection, is_of_name, json_pointer, name};
use canonical_json::Pointer;
use oncegate_domain::key::{KeyLimits, KeySyntax};
use oncegate_settings::{ForwardKey, KeyRule, KeySource, Word};

/// The store has an index of keys, and index entries have an upper bound: 1024 leaves room for the other columns.
const KEY_LENGTH_MAX: usize = KeyLimits::WIDEST.length_max;

/// Fields about the caller or the content, which cannot carry a key as well.
const UNUSABLE_FIELDS: [&str; 5] = ["authorization", "content-type", "cookie", "host", "proxy-authorization"];

/// The longest step of `derive:STEP`: it is appended to every key of its route.
const STEP_LENGTH_MAX: usize = 64;

const NO_FIELD: &str = "is empty: name a field, or another place of the key alone";

/// The reason for the bounds of a key's length.
const LENGTH_WHY: &str = "an empty key names nothing, and the store has an index of keys";

options! {
    struct KeyOptions {
        /// the request field that carries the key; of several, the first that is present
        header: TextOrTexts = "Idempotency-Key" => Vec<HeaderName>, distinct_values(NO_FIELD, parse_key_field);
        /// the query parameter that carries the key
        query: Text = "" => Option<KeySource>, optional(|name| Ok(KeySource::Query(name.into())));
        /// the field of a form body that carries the key
        form: Text = "" => Option<KeySource>, optional(|name| Ok(KeySource::Form(name.into())));
        /// the JSON Pointer to the key in a JSON body; of several, the first that leads to a value
        body: TextOrTexts = [] => Vec<KeySource>, values(|text| parse_key_pointer(text).map(KeySource::Body));
        /// a field with the base64 of a JSON document, `#`, and the JSON Pointer to the key in it; of several, the
        /// first that is present
        payload: TextOrTexts = [] => Vec<KeySource>, values(parse_payload);
        /// refuse a request without a key, rather than pass it unguarded
        required: Boolean = false => bool, boolean();
        /// the shortest key, in characters
        min_length: Integer = 1 => usize, integer(1..=KEY_LENGTH_MAX, LENGTH_WHY);
        /// the longest key, in characters
        max_length: Integer = 255 => usize, integer(1..=KEY_LENGTH_MAX, LENGTH_WHY);
        /// the syntax of a key: quoted or bare, quoted, any text, or a UUID
        syntax: Choice(KeySyntax::WORDS) = "ietf" => KeySyntax, choice();
    }
}

pub(super) fn read(section: &Section<'_>) -> KeyRule {
    let KeyOptions { header, query, form, body, payload, required, min_length, max_length, syntax } =
        KeyOptions::read(section);
    if min_length > max_length {
        let message =
            format!("`min_length` ({min_length}) must not be over `max_length` ({max_length}): no key would do");
        section.conflict(&["min_length", "max_length"], message);
    }
    let others: Vec<_> = query.into_iter().chain(payload).chain(form).chain(body).collect();
    // Built-in headers give way to another source.
    let counts = !section.position("header").is_built_in() || others.is_empty();
    let headers = header.into_iter().filter(|_| counts).map(KeySource::Header);
    let limits = KeyLimits { length_min: min_length, length_max: max_length };
    KeyRule { sources: headers.chain(others).collect(), required, syntax, limits }
}

fn parse_key_field(text: &str) -> Result<HeaderName, String> {
    match header_name(text)? {
        field if is_of_connection(&field) || UNUSABLE_FIELDS.contains(&field.as_str()) => {
            Err("carries something else and cannot carry a key".into())
        }
        field => Ok(field),
    }
}

pub(super) fn parse_key_pointer(text: &str) -> Result<Pointer, String> {
    let pointer = json_pointer(text)?;
    if pointer.is_pattern() {
        return Err("has a `*`: a key is one value, in one place".into());
    }
    if text.is_empty() {
        return Err("is the whole document: write a JSON Pointer like `/order/id`".into());
    }
    Ok(pointer)
}

fn parse_payload(text: &str) -> Result<KeySource, String> {
    let Some((name, pointer)) = text.split_once('#') else {
        return Err("has no `#` between the field and the JSON Pointer: write one like `PAYMENT-SIGNATURE#/id`".into());
    };
    Ok(KeySource::Payload(parse_key_field(name)?, parse_key_pointer(pointer)?))
}

/// Parses `same`, `none` or `derive:STEP`.
pub(super) fn parse_forward_key(text: &str) -> Result<ForwardKey, String> {
    match (text, text.strip_prefix("derive:")) {
        ("same", _) => Ok(ForwardKey::Same),
        ("none", _) => Ok(ForwardKey::None),
        (_, Some(step)) => {
            let wrong = "has no proper step: write 1 to 64 letters, digits, `_`, `.` and `-` behind it";
            name(step, STEP_LENGTH_MAX, is_of_name, wrong).map(ForwardKey::Derive)
        }
        _ => Err("is not known: write `same`, `none` or `derive:STEP`".into()),
    }
}
