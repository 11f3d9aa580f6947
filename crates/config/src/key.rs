//! Reads and checks a route's `key` and `forward_key`.

use super::options::options;
use super::reader::Section;
use super::value_parsers::{is_of_connection, is_of_name, name};
use oncegate_domain::key::{KeyLimits, KeySyntax};
use oncegate_domain::path_pattern::PathPattern;
use oncegate_domain::place::Place;
use oncegate_settings::{ForwardKey, KeyPlace, KeyRule, RouteOptions, ScopeRule, VendorRule, Word};

/// The store has an index of keys, and index entries have an upper bound: 1024 leaves room for the other columns.
const KEY_LENGTH_MAX: usize = KeyLimits::WIDEST.length_max;

/// Only a hash of a secret is stored.
const SECRET_LENGTH_MAX: usize = KeyLimits::WIDEST_SECRET.length_max;

/// Fields about the caller or the content, which cannot carry a key as well.
const UNUSABLE_FIELDS: [&str; 5] = ["authorization", "content-type", "cookie", "host", "proxy-authorization"];

/// The longest step: it is appended to every key of its route or consumer.
const STEP_LENGTH_MAX: usize = 64;

const NO_PLACE: &str = "is empty: name a place of the key";

/// The reason for the bounds of a key's length.
const LENGTH_WHY: &str = "an empty key names nothing, and the store has an index of keys; of a secret it has a hash";

options! {
    struct KeyOptions {
        /// the place of the key; of several, the first that is present; places joined by `+` are one key
        from: PlaceOrPlaces = "header:Idempotency-Key" => Vec<KeyPlace>, distinct_values(NO_PLACE, parse_key_place);
        /// the key is a secret, such as a token: only its keyed hash is kept
        hash: Boolean = false => bool, boolean();
        /// refuse a request without a key, rather than pass it unguarded
        required: Boolean = false => bool, boolean();
        /// the shortest key, in characters
        min_length: Integer = 1 => usize, integer(1..=SECRET_LENGTH_MAX, LENGTH_WHY);
        /// the longest key, in characters; up to 1024, and up to 16384 for `hash`
        max_length: Integer = 255 => usize, integer(1..=SECRET_LENGTH_MAX, LENGTH_WHY);
        /// the syntax of a key: quoted or bare, quoted, any text, or a UUID; a key with `hash` has none
        syntax: Choice(KeySyntax::WORDS) = "ietf" => KeySyntax, choice();
    }
}

pub(super) fn read(section: &Section<'_>) -> KeyRule {
    let KeyOptions { from, hash, required, min_length, mut max_length, syntax } = KeyOptions::read(section);
    if hash {
        if section.position("syntax").is_written() {
            section.conflict(&["hash", "syntax"], "has no use beside `hash`: a secret counts as it comes");
        }
        if section.position("max_length").is_built_in() {
            max_length = SECRET_LENGTH_MAX;
        }
    } else if max_length > KEY_LENGTH_MAX {
        let message = format!("is over {KEY_LENGTH_MAX}: a longer key needs `hash = true`, which keeps its hash alone");
        section.conflict(&["max_length", "hash"], message);
    }
    if min_length > max_length {
        let message =
            format!("`min_length` ({min_length}) must not be over `max_length` ({max_length}): no key would do");
        section.conflict(&["min_length", "max_length"], message);
    }
    let limits = KeyLimits { length_min: min_length, length_max: max_length };
    KeyRule { from, hash, required, syntax, limits }
}

/// Checks what the key's rule needs of the rest of its route, and that each segment that it, the scope or the index
/// names is one of the path: it would be absent from every request.
pub(super) fn check(
    section: &Section<'_>,
    options: &RouteOptions,
    scope: Option<&ScopeRule>,
    path: Option<&PathPattern>,
    vendor: Option<&VendorRule>,
) {
    let rule = &options.key;
    let vendor_field = vendor.and_then(|vendor| vendor.key.as_ref()?.field());
    if options.set_headers.iter().any(|(name, _)| rule.fields().chain(vendor_field).any(|field| field == name)) {
        section.problem("set_headers", "sets a field of the key: each request would have the same key upstream");
    }
    if rule.hash && matches!(options.forward_key, ForwardKey::Derive(_)) {
        section.problem("forward_key", "makes a key of the client's, which is a secret: its hash alone is kept");
    }
    let is_missing = |place: &&Place| match (place, path) {
        (Place::Path(name), Some(path)) => !path.has_segment(name),
        _ => false,
    };
    // The place is not shown: it may be filled in from the environment.
    let problem = "has a `path:NAME` that is no `{NAME}` segment of the route's `path`";
    if rule.places().any(|place| is_missing(&place)) {
        section.table("key").problem("from", problem);
    }
    if options.index.iter().any(|place| is_missing(&place)) {
        section.problem("index", problem);
    }
    if scope.is_some_and(|scope| scope.places().any(|place| is_missing(&place))) {
        section.problem("scope", problem);
    }
}

/// Parses a place, or several joined by `+`. A `+` counts only before another kind of place: a name may have one too.
fn parse_key_place(text: &str) -> Result<KeyPlace, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() || parts.is_empty() {
        let is_joint = |at: &usize| Place::has_kind(&rest[at + 1..]);
        let end = rest.match_indices('+').map(|(at, _)| at).find(is_joint).unwrap_or(rest.len());
        let part = check_key_place(Place::parse(&rest[..end])?)?;
        if parts.contains(&part) {
            return Err("has one place twice".into());
        }
        parts.push(part);
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    Ok(KeyPlace { parts })
}

fn check_key_place(place: Place) -> Result<Place, String> {
    match &place {
        Place::Header(field, _) if is_of_connection(field) || UNUSABLE_FIELDS.contains(&field.as_str()) => {
            Err("carries something else and cannot carry a key".into())
        }
        place if place.is_pattern() => Err("has a `*`: a key is one value, in one place".into()),
        _ => Ok(place),
    }
}

/// Parses `same`, `none` or `derive:STEP`.
pub(super) fn parse_forward_key(text: &str) -> Result<ForwardKey, String> {
    match (text, text.strip_prefix("derive:")) {
        ("same", _) => Ok(ForwardKey::Same),
        ("none", _) => Ok(ForwardKey::None),
        (_, Some(step)) => parse_step(step).map(ForwardKey::Derive),
        _ => Err("is not known: write `same`, `none` or `derive:STEP`".into()),
    }
}

/// Parses the step that is appended to a key.
pub(super) fn parse_step(text: &str) -> Result<Box<str>, String> {
    let wrong = "has no proper step: write 1 to 64 letters, digits, `_`, `.` and `-`";
    name(text, STEP_LENGTH_MAX, is_of_name, wrong)
}
