//! Finds a request's key in its head or in its body.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, request};

use crate::config::{KeyRule, KeySource, Route};
use crate::domain::fingerprint::form;
use crate::domain::key::KeyError;
use crate::protocol::refusal::Refusal;
use canonical_json::{Scalar, value_at};

/// A key's value, unchecked; `None` if there is none.
type FoundKey = Result<Option<Vec<u8>>, Refusal>;

/// Finds the key in a field or in the query, whichever the rule names first.
pub(super) fn in_head(head: &request::Parts, rule: &KeyRule) -> FoundKey {
    if rule.header().is_some_and(|name| head.headers.keys().any(|other| is_misspelt(other, name))) {
        return Err(Refusal::KeyInvalid(
            "The key's field is spelt with an underscore, which some services take for it.",
        ));
    }
    for source in &rule.sources {
        let found = match source {
            KeySource::Body(_) | KeySource::Form(_) => None,
            KeySource::Header(name) => only(head.headers.get_all(name).iter().map(|value| value.as_bytes().to_vec()))?,
            KeySource::Query(name) => only(named(head.uri.query().unwrap_or_default().as_bytes(), name))?,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Whether a field is the key's field spelt with underscores: CGI-like services read `Idempotency_Key` as `Idempotency-Key`.
fn is_misspelt(other: &HeaderName, name: &HeaderName) -> bool {
    let hyphen = |byte: u8| if byte == b'_' { b'-' } else { byte };
    other != name
        && other.as_str().len() == name.as_str().len()
        && other.as_str().bytes().map(hyphen).eq(name.as_str().bytes())
}

/// The refusal of a request without a key, which says where its key would have to be.
pub(super) fn missing(rule: &KeyRule) -> Refusal {
    let places: Vec<_> = rule
        .sources
        .iter()
        .map(|source| match source {
            KeySource::Body(pointer) => format!("at `{pointer}` in its JSON body"),
            KeySource::Form(name) => format!("in the form field `{name}`"),
            KeySource::Header(name) => format!("in the field `{name}`"),
            KeySource::Query(name) => format!("in the query parameter `{name}`"),
        })
        .collect();
    let places = places.join(" or ");
    Refusal::KeyMissing(
        format!(
            "This request needs an idempotency key {places}: a new value for each operation, and the same value for each \
             of its retries."
        )
        .into(),
    )
}

/// Whether the body must be read to find the key.
pub(super) fn may_be_in_body(rule: &KeyRule) -> bool {
    rule.sources.iter().any(|source| matches!(source, KeySource::Body(_) | KeySource::Form(_)))
}

/// Finds the key in a JSON or form body, whichever the rule names first.
pub(super) fn in_body(headers: &HeaderMap, body: &[u8], route: &Route) -> FoundKey {
    if headers.contains_key(CONTENT_ENCODING) {
        return Ok(None);
    }
    let is_form = headers.get(CONTENT_TYPE).is_some_and(is_form);
    for source in &route.key.sources {
        let found = match source {
            KeySource::Header(_) | KeySource::Query(_) => None,
            KeySource::Form(name) if is_form => only(named(body, name))?,
            KeySource::Body(pointer) if !is_form => match value_at(body, pointer) {
                Ok(Some(Scalar::String(text))) => Some(text.into_bytes()),
                Ok(Some(Scalar::Number(digits))) => Some(digits.into_bytes()),
                Ok(Some(Scalar::Other)) => {
                    return Err(Refusal::KeyInvalid("The key in the body is neither a text nor a number."));
                }
                Ok(None) | Err(_) => None,
            },
            KeySource::Form(_) | KeySource::Body(_) => None,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn is_form(content_type: &HeaderValue) -> bool {
    let essence = content_type.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
}

fn named(pairs: &[u8], name: &str) -> impl Iterator<Item = Vec<u8>> {
    form::pairs(pairs).filter(move |(key, _)| key == name.as_bytes()).map(|(_, value)| value)
}

/// The only value. With two keys, nobody can tell which one counts.
fn only(mut values: impl Iterator<Item = Vec<u8>>) -> FoundKey {
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(KeyError::Several.into()),
    }
}
