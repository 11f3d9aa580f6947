//! Reads the value at a place of a request.

use canonical_json::Pointer;
use data_encoding::{BASE64, BASE64_NOPAD, BASE64URL, BASE64URL_NOPAD};
use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::value::{PlaceError, PlaceValue, json_value, only, without_mark};
use super::{Place, cbor, form, graphql, protobuf, xml};
use crate::media_type::content_type;
use crate::normal_path::RequestPath;
use crate::path_pattern::PathPattern;
use crate::urlencoded::pairs as pairs_of;

/// The parts of a request's head that places are in.
#[derive(Clone, Copy, Debug)]
pub struct RequestPlaces<'a> {
    /// The route's path, whose segments have names.
    pub pattern: Option<&'a PathPattern>,
    pub path: &'a RequestPath<'a>,
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
}

impl RequestPlaces<'_> {
    /// Reads a place of the head. A place of the body has no value here.
    pub fn read_head(&self, place: &Place) -> PlaceValue {
        match place {
            Place::Header(name, None) => only(self.headers.get_all(name).iter().map(|value| value.as_bytes().to_vec())),
            Place::Header(name, Some(pointer)) => self.read_payload(name, pointer),
            Place::Query(name) => only(named(self.query.unwrap_or_default().as_bytes(), name)),
            Place::Cookie(name) => only(cookies(self.headers, name)),
            Place::Path(name) => {
                let Some(segment) = self.pattern.and_then(|pattern| pattern.segment_of(name, self.path)) else {
                    return Ok(None);
                };
                // A lenient service would take `A;x` for `A`: two keys would be one operation.
                let alone = ["/", segment].concat();
                if RequestPath::new(&alone).lenient() != Some(&alone) {
                    return Err(RESPELLED);
                }
                Ok(Some(percent_encoding::percent_decode_str(segment).collect()))
            }
            Place::Cbor(_)
            | Place::Form(..)
            | Place::Graphql(_)
            | Place::Json(_)
            | Place::Protobuf(_)
            | Place::Xml(_) => Ok(None),
        }
    }

    /// Reads the JSON document whose base64 is a field.
    fn read_payload(&self, name: &HeaderName, pointer: &Pointer) -> PlaceValue {
        let values = self.headers.get_all(name).iter().map(HeaderValue::as_bytes);
        let Some(value) = only(values)? else { return Ok(None) };
        let codings = [&BASE64, &BASE64URL, &BASE64_NOPAD, &BASE64URL_NOPAD];
        let document = codings.iter().find_map(|coding| coding.decode(value.trim_ascii()).ok()).ok_or(NO_PAYLOAD)?;
        json_value(&document, pointer, NO_PAYLOAD)
    }
}

/// Reads a place of a body, which has no content coding. An empty body has no values.
pub fn read_body_place(headers: &HeaderMap, body: &[u8], place: &Place) -> PlaceValue {
    let content_type = content_type(headers);
    if body.is_empty() {
        return Ok(None);
    }
    match place {
        Place::Json(pointer) => json_value(without_mark(body), pointer, NOT_CANONICAL),
        Place::Form(name, pointer) => form::value_at(content_type, body, &(name.clone(), pointer.clone())),
        Place::Cbor(pointer) => cbor::value_at(body, pointer),
        Place::Xml(path) => xml::value_at(body, path),
        Place::Protobuf(path) => protobuf::value_at(content_type, body, path),
        Place::Graphql(directive) => graphql::value_at(without_mark(body), directive),
        Place::Cookie(_) | Place::Header(..) | Place::Path(_) | Place::Query(_) => Ok(None),
    }
}

fn named(pairs: &[u8], name: &str) -> impl Iterator<Item = Vec<u8>> {
    pairs_of(pairs).filter(move |(key, _)| key == name.as_bytes()).map(|(_, value)| value)
}

fn cookies(headers: &HeaderMap, name: &str) -> impl Iterator<Item = Vec<u8>> {
    let pairs = headers.get_all(COOKIE).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let at = memchr::memchr(b'=', pair)?;
        (pair[..at].trim_ascii() == name.as_bytes()).then(|| pair[at + 1..].trim_ascii().to_vec())
    })
}

const NOT_CANONICAL: PlaceError = PlaceError::Unreadable(
    "The body is not JSON that all programs read alike: UTF-8, each name once in an object, no lone surrogates, nesting of at most \
     128.",
);

const RESPELLED: PlaceError = PlaceError::Unreadable(
    "A segment of the path has a value that programs read in different ways: it has `;`, a `/` or a letter that is percent-encoded.",
);

const NO_PAYLOAD: PlaceError = PlaceError::Unreadable(
    "A field should have the base64 of a JSON document, and has something else, or JSON that programs read in different ways.",
);
