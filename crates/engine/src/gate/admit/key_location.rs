//! Finds a request's key in its head or in its body.

use std::cell::LazyCell;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, request};

use canonical_json::{CanonicalizeError, Pointer, ReferencedValue, value_at};
use data_encoding::{BASE64, BASE64_NOPAD, BASE64URL, BASE64URL_NOPAD};
use oncegate_domain::fingerprint::{FingerprintInput, Recipe, form, is_form};
use oncegate_domain::key::{Key, KeyError, KeyLimits};
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::protocol::{charset, fields};
use oncegate_settings::{KeyRule, KeySource};

/// A key's value, unchecked; `None` if there is none.
type FoundKey = Result<Option<Vec<u8>>, Refusal>;

/// Finds the key in a field or in the query, whichever the rule names first.
pub(super) fn in_head(head: &request::Parts, rule: &KeyRule) -> FoundKey {
    for source in &rule.sources {
        let found = match source {
            KeySource::Body(_) | KeySource::Form(_) => None,
            KeySource::Header(name) => in_field(&head.headers, name)?,
            KeySource::Payload(name, pointer) => in_payload(&head.headers, name, pointer)?,
            KeySource::Query(name) => only(named(head.uri.query().unwrap_or_default().as_bytes(), name))?,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Refuses a request in which another field for the key, or the body, has another key than `key`, which came in the
/// first place that has one.
pub(super) fn check_other_places(
    head: &request::Parts,
    body: Option<&[u8]>,
    rule: &KeyRule,
    key: &Key,
) -> Result<(), Refusal> {
    let check = |other: Option<Vec<u8>>, refusal| match other {
        Some(other) if Key::parse(&other, rule.syntax, KeyLimits::WIDEST)? != *key => Err(refusal),
        Some(_) | None => Ok(()),
    };
    let two_fields = Refusal::KeyInvalid("The request has different keys in two fields.");
    for name in rule.headers().skip(1) {
        check(in_field(&head.headers, name)?, two_fields.clone())?;
    }
    for source in &rule.sources {
        if let KeySource::Payload(name, pointer) = source {
            check(in_payload(&head.headers, name, pointer)?, two_fields.clone())?;
        }
    }
    let in_body = body.map_or(Ok(None), |body| in_body(&head.headers, body, rule))?;
    check(in_body, Refusal::KeyInvalid("The request has different keys in a field and in its body."))
}

fn in_field(headers: &HeaderMap, name: &HeaderName) -> FoundKey {
    only(headers.get_all(name).iter().map(|value| value.as_bytes().to_vec()))
}

/// Finds the key in the JSON document whose base64 is a field.
///
/// # Errors
/// The refusal of a field that cannot be searched: it is never taken for one without a key.
fn in_payload(headers: &HeaderMap, name: &HeaderName, pointer: &Pointer) -> FoundKey {
    let Some(value) = only(headers.get_all(name).iter().map(HeaderValue::as_bytes))? else { return Ok(None) };
    let codings = [&BASE64, &BASE64URL, &BASE64_NOPAD, &BASE64URL_NOPAD];
    let document = codings.iter().find_map(|coding| coding.decode(value.trim_ascii()).ok()).ok_or(NO_PAYLOAD)?;
    key_at(&document, pointer).map_err(|_| NO_PAYLOAD)?
}

/// The refusal of a request without a key, which says where its key would have to be, and which field looks like it and
/// does not count.
pub(super) fn missing(rule: &KeyRule, headers: &HeaderMap) -> Refusal {
    let places: Vec<_> = rule
        .sources
        .iter()
        .map(|source| match source {
            KeySource::Body(pointer) => format!("at `{pointer}` in its JSON body"),
            KeySource::Form(name) => format!("in the form field `{name}`"),
            KeySource::Header(name) => format!("in the field `{name}`"),
            KeySource::Payload(name, pointer) => format!("at `{pointer}` in the JSON of the field `{name}`"),
            KeySource::Query(name) => format!("in the query parameter `{name}`"),
        })
        .collect();
    let places = places.join(" or ");
    let misspelled = fields::find_misspelled(headers, |name| rule.headers().any(|field| field == name));
    let misspelled = misspelled.map_or_else(String::new, |name| {
        let right = name.as_str().replace('_', "-");
        format!(" The field `{name}` does not count, because it has `_` for `-`: send `{right}`.")
    });
    Refusal::KeyMissing(
        format!(
            "This request needs an idempotency key {places}: a new value for each operation, and the same value for each \
             of its retries.{misspelled}"
        )
        .into(),
    )
}

pub(super) fn may_be_in_body(rule: &KeyRule) -> bool {
    rule.sources.iter().any(is_in_body)
}

/// Finds the key in a JSON or form body, whichever the rule names first. The media type decides only where the key may
/// be in both: services differ in what they take a mislabelled body for.
///
/// # Errors
/// The refusal of a body that cannot be searched: it is never taken for one without a key.
pub(super) fn in_body(headers: &HeaderMap, body: &[u8], rule: &KeyRule) -> FoundKey {
    let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    let (forms, documents): (Vec<_>, Vec<_>) = rule
        .sources
        .iter()
        .filter(|source| is_in_body(source))
        .partition(|source| matches!(source, KeySource::Form(_)));
    if body.is_empty() || (forms.is_empty() && documents.is_empty()) {
        return Ok(None);
    }
    if !headers.get_all(CONTENT_ENCODING).iter().all(is_identity) {
        return Err(Refusal::KeyInvalid(
            "The key may be in the body, and the body has a Content-Encoding. Send it without.",
        ));
    }
    // Text in UTF-16 or UTF-32 has zeros, and neither JSON nor a form has any.
    if !charset::is_plain(headers) || memchr::memchr(0, body).is_some() {
        return Err(Refusal::KeyInvalid("The key may be in the body, and the body is not in UTF-8. Send it in UTF-8."));
    }
    let label = headers.get(CONTENT_TYPE);
    let is_labelled_form = label.is_some_and(|label| is_form(label.as_bytes()));
    if documents.is_empty() && label.is_some() && !is_labelled_form {
        return Err(Refusal::KeyInvalid(
            "The key may be in a form field, and the body is not application/x-www-form-urlencoded.",
        ));
    }
    if documents.is_empty() || (is_labelled_form && !forms.is_empty()) {
        if let Some(key) = in_form(body, &forms)? {
            return Ok(Some(key));
        }
        // It may be a mislabelled document.
        return in_document(body, &documents).unwrap_or(Ok(None));
    }
    in_document(body, &documents).unwrap_or(Err(NOT_CANONICAL))
}

/// Whether the fingerprint of a request includes a place that has its key. Then another spelling of the same key alone
/// makes another fingerprint.
pub(super) fn is_compared(request: &FingerprintInput<'_>, recipe: &Recipe, rule: &KeyRule) -> bool {
    let has_field = |name: &HeaderName| recipe.reads_field(name.as_str()) && request.headers.contains_key(name);
    let compared = LazyCell::new(|| {
        let is_there = matches!(in_body(request.headers, request.body, rule), Ok(Some(_)));
        is_there.then(|| recipe.body(request))
    });
    rule.sources.iter().any(|source| match source {
        KeySource::Header(name) | KeySource::Payload(name, _) => has_field(name),
        KeySource::Query(name) => {
            recipe.reads_query() && request.query.is_some_and(|query| named(query.as_bytes(), name).next().is_some())
        }
        KeySource::Form(_) => compared.as_ref().is_some_and(|body| !body.bytes.is_empty()),
        // A body in another form is compared as a whole.
        KeySource::Body(pointer) => compared
            .as_ref()
            .is_some_and(|body| !body.bytes.is_empty() && !matches!(value_at(&body.bytes, pointer), Ok(None))),
    })
}

fn in_form(body: &[u8], names: &[&KeySource]) -> FoundKey {
    for source in names {
        if let KeySource::Form(name) = source
            && let Some(key) = only(named(body, name))?
        {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// Finds the key in a JSON document; `None` if the body is no document that all programs read alike.
fn in_document(body: &[u8], pointers: &[&KeySource]) -> Option<FoundKey> {
    for source in pointers {
        let KeySource::Body(pointer) = source else { continue };
        let found = key_at(body, pointer).ok()?;
        if !matches!(found, Ok(None)) {
            return Some(found);
        }
    }
    Some(Ok(None))
}

/// The key at a place in a JSON document.
///
/// # Errors
/// It is no document that all programs read alike.
fn key_at(document: &[u8], pointer: &Pointer) -> Result<FoundKey, CanonicalizeError> {
    Ok(match value_at(document, pointer)? {
        Some(ReferencedValue::String(text)) => Ok(Some(text.into_bytes())),
        Some(ReferencedValue::Number(digits)) => Ok(Some(digits.into_bytes())),
        Some(_) => Err(Refusal::KeyInvalid("The key in the document is neither a text nor a number.")),
        None => Ok(None),
    })
}

const NOT_CANONICAL: Refusal = Refusal::KeyInvalid(
    "The key may be in the body, and the body is not JSON that all programs read alike: UTF-8, each name once in an object, no lone \
     surrogates, nesting of at most 128.",
);

const NO_PAYLOAD: Refusal = Refusal::KeyInvalid(
    "The key is in a field that has the base64 of a JSON document, and the field has something else, or JSON that programs read in \
     different ways.",
);

/// The byte order mark of UTF-8: some programs write it before JSON, and many readers skip it (RFC 8259, section 8.1).
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

fn is_in_body(source: &KeySource) -> bool {
    matches!(source, KeySource::Body(_) | KeySource::Form(_))
}

fn is_identity(coding: &HeaderValue) -> bool {
    let coding = coding.as_bytes().trim_ascii();
    coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
}

fn named(pairs: &[u8], name: &str) -> impl Iterator<Item = Vec<u8>> {
    form::pairs(pairs).filter(move |(key, _)| key == name.as_bytes()).map(|(_, value)| value)
}

/// The only value. With two keys, nobody can tell which one counts.
fn only<T>(mut values: impl Iterator<Item = T>) -> Result<Option<T>, Refusal> {
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(KeyError::Several.into()),
    }
}
