//! Finds a request's key at the places that its route names.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, request};

use super::incoming::Incoming;
use oncegate_domain::key::{Key, KeyError, KeyLimits, trim_blanks};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::place::{Place, PlaceError, PlaceValue, RequestPlaces, read_body_place};
use oncegate_domain::scope::Salt;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::protocol::{charset, fields};
use oncegate_settings::{KeyPlace, KeyRule, Route};

/// A key that was found, and the length of what the client sent for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundKey {
    pub(super) key: Key,
    /// In characters, without quotes.
    pub(super) length: usize,
}

/// Finds the key in the head, and in the body once that is there. The first place that has one counts, and each other
/// one must have the same: nobody could tell which key the service takes.
///
/// # Errors
/// The refusal of a request whose keys differ, or whose place of the key cannot be read. Such a place is never taken
/// for one without a key.
pub(super) fn find(
    route: &Route,
    reader: &RequestPlaces<'_>,
    body: Option<&[u8]>,
    salt: &Salt,
) -> Result<Option<FoundKey>, Refusal> {
    let rule = &route.options.key;
    if let Some(body) = body
        && rule.may_be_in_body()
    {
        check_readable(rule.places(), reader.headers, body)?;
    }
    let (mut found, mut unreadable, mut is_readable) = (None, None, false);
    for place in rule.from.iter().filter(|place| body.is_some() || !place.is_in_body()) {
        match read(rule, place, reader, body.unwrap_or_default(), salt) {
            Ok(None) => is_readable |= place.is_in_body() && is_of_its_format(place, reader.headers),
            Ok(Some(key)) => {
                let key = key?;
                match &found {
                    None => found = Some(key),
                    Some(first) if *first == key => {}
                    Some(_) => return Err(Refusal::KeyInvalid("The request has different keys in two places.")),
                }
            }
            Err(PlaceError::Several) => return Err(KeyError::Several.into()),
            Err(PlaceError::NotScalar) => {
                return Err(Refusal::KeyInvalid("The value at the place of the key is neither a text nor a number."));
            }
            // A place of the head never counts in the fingerprint: unread, it could be another operation's.
            Err(PlaceError::Unreadable(reason)) if !place.is_in_body() => return Err(Refusal::KeyInvalid(reason)),
            Err(PlaceError::Unreadable(reason)) => unreadable = unreadable.or(Some(reason)),
        }
    }
    // Without one of these, the key in the head is enough. In JSON-RPC, each body has to be read for its operation
    // anyhow.
    let must_be_readable = found.is_none() || route.options.dialect.is_jsonrpc() || route.recipe.reads_any_body();
    match unreadable {
        // It may be in another format that the route names too.
        Some(reason) if must_be_readable && !is_readable => Err(Refusal::KeyInvalid(reason)),
        _ => Ok(found),
    }
}

/// Whether a body in which this place has no value is of its format, and not of another one that the route names. A
/// composite may lack its part in the head. Where no `Content-Type` says so, any body passes for a form.
fn is_of_its_format(place: &KeyPlace, headers: &HeaderMap) -> bool {
    match &place.parts[..] {
        [Place::Form(..)] => headers.contains_key(CONTENT_TYPE),
        parts => parts.len() == 1,
    }
}

/// The key at a place; `None` if one of its values is missing.
fn read(
    rule: &KeyRule,
    place: &KeyPlace,
    reader: &RequestPlaces<'_>,
    body: &[u8],
    salt: &Salt,
) -> Result<Option<Result<FoundKey, KeyError>>, PlaceError> {
    // The usual place, without a copy.
    if let Some(name) = place.key_field() {
        let mut values = reader.headers.get_all(name).iter();
        return match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => Ok(Some(make_key(rule, true, &[trim_blanks(value.as_bytes())], salt))),
            (Some(_), Some(_)) => Err(PlaceError::Several),
        };
    }
    let mut values = Vec::with_capacity(place.parts.len());
    for part in &place.parts {
        let Some(value) = read_place(part, reader, body)? else { return Ok(None) };
        // Space and tab around a field's value are not part of it (RFC 9110, section 5.5).
        values.push(if matches!(part, Place::Header(_, None)) { trim_blanks(&value).to_vec() } else { value });
    }
    let values: Vec<_> = values.iter().map(Vec::as_slice).collect();
    Ok(Some(make_key(rule, false, &values, salt)))
}

/// Reads a place of the head or of the body.
pub(super) fn read_place(place: &Place, reader: &RequestPlaces<'_>, body: &[u8]) -> PlaceValue {
    if place.is_in_body() { read_body_place(reader.headers, body, place) } else { reader.read_head(place) }
}

/// Makes the key. It is found whatever its length: it may be stored under other limits than the route's. Only in a
/// field, quotes are none of it.
pub(super) fn make_key(rule: &KeyRule, is_field: bool, values: &[&[u8]], salt: &Salt) -> Result<FoundKey, KeyError> {
    if let (true, [secret]) = (rule.hash, values) {
        KeyLimits::WIDEST_SECRET.check_length(secret.len()).map_err(|error| match secret.len() {
            0 => KeyError::Empty,
            _ => error,
        })?;
        return Ok(FoundKey { key: Key::of_secret(secret, salt), length: secret.len() });
    }
    let limits = if rule.hash { KeyLimits::WIDEST_SECRET } else { KeyLimits::WIDEST };
    let key = match values {
        [value] if is_field => Key::parse(value, rule.syntax, limits)?,
        [value] => Key::parse_exact(value, rule.syntax, limits)?,
        values => Key::join(values, limits)?,
    };
    let length = key.as_bytes().len();
    let key = if rule.hash { Key::of_secret(key.as_bytes(), salt) } else { key };
    Ok(FoundKey { key, length })
}

/// Refuses a body in which a key cannot be looked for.
pub(super) fn check_readable<'a>(
    places: impl Iterator<Item = &'a Place>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(), Refusal> {
    let places: Vec<_> = places.filter(|place| place.is_in_body()).collect();
    if body.is_empty() || places.is_empty() {
        return Ok(());
    }
    if !headers.get_all(CONTENT_ENCODING).iter().all(is_identity) {
        return Err(Refusal::KeyInvalid(
            "The key, or the name of the caller, may be in the body, and the body has a Content-Encoding. Send it without.",
        ));
    }
    let is_multipart = headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().get(..10).is_some_and(|start| start.eq_ignore_ascii_case(b"multipart/")));
    let is_text = |place: &Place| match place {
        Place::Form(..) => !is_multipart,
        Place::Graphql(_) | Place::Json(_) => true,
        // XML says itself in which encoding it is.
        Place::Cbor(_)
        | Place::Cookie(_)
        | Place::Header(..)
        | Place::Path(_)
        | Place::Protobuf(_)
        | Place::Query(_)
        | Place::Xml(_) => false,
    };
    // Text in UTF-16 or UTF-32 has zeros, and neither JSON nor a form has any.
    let is_other_text = || !charset::is_plain(headers) || memchr::memchr(0, body).is_some();
    if places.into_iter().all(is_text) && is_other_text() {
        return Err(Refusal::KeyInvalid(
            "The key, or the name of the caller, may be in the body, and the body is not in UTF-8. Send it in UTF-8.",
        ));
    }
    Ok(())
}

fn is_identity(coding: &HeaderValue) -> bool {
    let coding = coding.as_bytes().trim_ascii();
    coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
}

/// The refusal of a request without a key, which says where its key would have to be, and which field looks like it and
/// does not count.
pub(super) fn missing(rule: &KeyRule, headers: &HeaderMap) -> Refusal {
    let places: Vec<_> = rule.from.iter().map(describe).collect();
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

/// A place of the key, as a client reads it.
fn describe(place: &KeyPlace) -> String {
    let parts: Vec<_> = place.parts.iter().map(describe_part).collect();
    parts.join(" and ")
}

fn describe_part(place: &Place) -> String {
    match place {
        Place::Cbor(pointer) => format!("at `{pointer}` in its CBOR body"),
        Place::Cookie(name) => format!("in the cookie `{name}`"),
        Place::Form(name, None) => format!("in the form field `{name}`"),
        Place::Form(name, Some(pointer)) => format!("at `{pointer}` in the JSON of the form field `{name}`"),
        Place::Graphql(directive) => format!("in `{directive}` of its GraphQL document"),
        Place::Header(name, None) => format!("in the field `{name}`"),
        Place::Header(name, Some(pointer)) => format!("at `{pointer}` in the JSON of the field `{name}`"),
        Place::Json(pointer) => format!("at `{pointer}` in its JSON body"),
        Place::Path(name) => format!("in the segment `{{{name}}}` of its path"),
        Place::Protobuf(path) => format!("in the field {path} of its protobuf message"),
        Place::Query(name) => format!("in the query parameter `{name}`"),
        Place::Xml(path) => format!("at `{path}` in its XML body"),
    }
}

impl Incoming<'_> {
    /// The reader of the places of this request's head.
    pub(super) fn place_reader(&self) -> RequestPlaces<'_> {
        place_reader(self.route, self.path, self.head)
    }

    /// The key in the request's head, if it has one there.
    pub(super) fn key_in_head(&self) -> Result<Option<Key>, Refusal> {
        let found = find(self.route, &self.place_reader(), None, self.realm.salt)?;
        Ok(found.map(|found| found.key))
    }
}

/// The reader of the places of a request's head on its route.
pub(super) fn place_reader<'a>(
    route: &'a Route,
    path: &'a RequestPath<'_>,
    head: &'a request::Parts,
) -> RequestPlaces<'a> {
    RequestPlaces { pattern: Some(&route.path), path, query: head.uri.query(), headers: &head.headers }
}
