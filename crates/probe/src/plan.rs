//! The requests of the probe: the operation, with one key or another, and with one body or another.

use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use http_body_util::Full;
use serde_json::Value;

use super::endpoint::ProbedEndpoint;
use super::finding::Finding;
use super::response::member_pointer;
use oncegate_domain::media_type::is_form;

pub struct ProbePlan {
    pub endpoint: ProbedEndpoint,
    pub method: Method,
    /// The fields of each request. A plan adds those that every request needs, and those of the body and of the key.
    pub fields: HeaderMap,
    pub key_place: ProbeKeyPlace,
    pub body: Bytes,
    /// A valid body that is sent with a key that had another one before; without it, one value of the body is changed.
    pub other_body: Option<Bytes>,
    /// The number of requests that are sent at once.
    pub duplicates: usize,
    /// JSON Pointers of values of a response that do not count.
    pub ignored: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub enum ProbeKeyPlace {
    /// This field, bare or as a structured-field String: `Idempotency-Key: "6f1d"`.
    #[display("the field {name}{}", if *is_quoted { ", quoted" } else { "" })]
    Field { name: HeaderName, is_quoted: bool },
    /// The member of the JSON body at this pointer.
    #[display("the body at {_0}")]
    Body(String),
}

/// The body that is sent with a key that had another one before, and the place where the probe has changed it; or the
/// finding without such a body.
type OtherBody = Result<(Bytes, Option<String>), Finding>;

impl ProbePlan {
    /// Returns the number of requests at most. Where another body is refused, it is sent with a key of its own too.
    pub fn requests_max(&self) -> usize {
        // The first request, another key, the retry, and no key.
        4 + if self.other_body().is_ok() { 2 } else { 0 } + self.duplicates
    }

    /// Returns the key's JSON Pointer if a body has no object there, so that the key has no place.
    pub fn missing_key_place(&self) -> Option<&str> {
        let ProbeKeyPlace::Body(pointer) = &self.key_place else { return None };
        let other_body = self.other_body().ok().map(|(body, _)| body);
        let mut bodies = other_body.iter().chain([&self.body]);
        bodies.any(|body| put_key(body, pointer, Some("key")).is_none()).then_some(pointer)
    }

    /// Returns the body that is sent with a key that had another one before.
    pub(crate) fn other_body(&self) -> OtherBody {
        match &self.other_body {
            Some(other) => Ok((other.clone(), None)),
            None => change_body(&self.body, &self.complete_fields(), &self.key_place),
        }
    }

    /// Returns the fields with those that every request needs.
    fn complete_fields(&self) -> HeaderMap {
        let mut fields = self.fields.clone();
        let mut default = |name: HeaderName, value: HeaderValue| {
            fields.entry(name).or_insert(value);
        };
        default(HOST, to_value(self.endpoint.authority.as_str()));
        default(ACCEPT, HeaderValue::from_static("*/*"));
        default(USER_AGENT, HeaderValue::from_static(concat!("oncegate-probe/", env!("CARGO_PKG_VERSION"))));
        let is_json = serde_json::from_slice::<Value>(&self.body).is_ok();
        match (self.body.is_empty(), is_json) {
            (true, _) => {}
            (false, true) => default(CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (false, false) => default(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded")),
        }
        fields
    }

    pub(crate) fn request(&self, key: Option<&str>, body: &Bytes) -> Request<Full<Bytes>> {
        let mut headers = self.complete_fields();
        let body = match (&self.key_place, key) {
            (ProbeKeyPlace::Body(pointer), _) => put_key(body, pointer, key).unwrap_or_else(|| body.clone()),
            (ProbeKeyPlace::Field { name, is_quoted }, Some(key)) => {
                headers.insert(name, to_value(&if *is_quoted { format!("\"{key}\"") } else { key.to_owned() }));
                body.clone()
            }
            (_, None) => body.clone(),
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.endpoint.path.clone().into();
        *request.headers_mut() = headers;
        request
    }
}

/// Draws a fresh key, a UUID of version 4, which every syntax of keys allows.
pub(crate) fn draw_key() -> String {
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the operating system gives random bytes");
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let hex = HEXLOWER.encode(&random);
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn to_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("keys and authorities are visible ASCII")
}

/// Puts a key into a JSON body, or removes it; `None` where the body has no such place.
fn put_key(body: &[u8], pointer: &str, key: Option<&str>) -> Option<Bytes> {
    let mut value: Value = serde_json::from_slice(body).ok()?;
    let (parent, name) = pointer.rsplit_once('/')?;
    let parent = value.pointer_mut(parent)?.as_object_mut()?;
    let name = name.replace("~1", "/").replace("~0", "~");
    match key {
        Some(key) => parent.insert(name, key.into()),
        None => parent.remove(&name),
    };
    Some(value.to_string().into())
}

/// Makes another body that the operation probably takes: one value is changed, preferably a number.
fn change_body(body: &Bytes, fields: &HeaderMap, key_place: &ProbeKeyPlace) -> OtherBody {
    if body.is_empty() {
        return Err(Finding::NO_BODY);
    }
    let key = match key_place {
        ProbeKeyPlace::Body(pointer) => Some(pointer.as_str()),
        ProbeKeyPlace::Field { .. } => None,
    };
    let is_form = fields.get(CONTENT_TYPE).is_some_and(|kind| is_form(kind.as_bytes()));
    let changed = match serde_json::from_slice(body) {
        Ok(value) => change_json(value, key),
        Err(_) if is_form => change_form(body),
        Err(_) => None,
    };
    changed.map(|(body, place)| (body, Some(place))).ok_or(Finding::NO_OTHER_BODY)
}

/// Changes a value other than the key.
fn change_json(mut value: Value, key: Option<&str>) -> Option<(Bytes, String)> {
    let mut leaves = Vec::new();
    collect_leaves(&value, String::new(), &mut leaves);
    leaves.retain(|pointer| key != Some(pointer));
    let is_number = |pointer: &&String| value.pointer(pointer).is_some_and(Value::is_number);
    let pointer = leaves.iter().find(is_number).or(leaves.first());
    let Some(pointer) = pointer.cloned() else {
        // An object or array without values, such as `{}`.
        value.as_object_mut()?.insert("probe".to_owned(), 1.into());
        return Some((value.to_string().into(), "/probe".to_owned()));
    };
    let leaf = value.pointer_mut(&pointer)?;
    let changed = match leaf.take() {
        Value::Number(number) => match (number.as_i64().and_then(|n| n.checked_add(1)), number.as_f64()) {
            (Some(next), _) => next.into(),
            (None, number) => (number? / 2.0).into(),
        },
        Value::String(text) => format!("{text}2").into(),
        _ => return None,
    };
    *leaf = changed;
    let place = if pointer.is_empty() { "the body".to_owned() } else { pointer };
    Some((value.to_string().into(), place))
}

/// Collects the pointers of all numbers and strings.
fn collect_leaves(value: &Value, pointer: String, found: &mut Vec<String>) {
    match value {
        Value::Number(_) | Value::String(_) => found.push(pointer),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(i, value)| collect_leaves(value, format!("{pointer}/{i}"), found));
        }
        Value::Object(members) => {
            for (name, value) in members {
                collect_leaves(value, member_pointer(&pointer, name), found);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn change_form(body: &Bytes) -> Option<(Bytes, String)> {
    let text = str::from_utf8(body).ok()?;
    let fields: Vec<_> = text.split('&').map(|field| field.split_once('=')).collect::<Option<_>>()?;
    let number = fields.iter().position(|(_, value)| value.parse::<u64>().is_ok_and(|number| number < u64::MAX));
    let changed = number.unwrap_or(0);
    let field = |(index, (name, value)): (usize, &(&str, &str))| match (index == changed, value.parse::<u64>()) {
        (true, Ok(number)) => format!("{name}={}", number.wrapping_add(1)),
        (true, Err(_)) => format!("{name}={value}2"),
        (false, _) => format!("{name}={value}"),
    };
    let body = fields.iter().enumerate().map(field).collect::<Vec<_>>().join("&");
    Some((body.into(), fields[changed].0.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_domain::key::{Key, KeyLimits, KeySyntax};

    fn other(body: &str, content_type: &'static str, key_place: &ProbeKeyPlace) -> OtherBody {
        let fields = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
        change_body(&Bytes::from(body.to_owned()), &fields, key_place)
    }

    #[test]
    fn another_body_has_one_value_changed_a_number_before_a_text() {
        let in_field = ProbeKeyPlace::Field { name: HeaderName::from_static("idempotency-key"), is_quoted: false };
        let in_body = ProbeKeyPlace::Body("/a/key".to_owned());
        for (body, content_type, key_place, expected) in [
            (
                r#"{"currency":"EUR","z":{"amount":10}}"#,
                "",
                &in_field,
                Some((r#"{"currency":"EUR","z":{"amount":11}}"#, "/z/amount")),
            ),
            (r#"{"amount":1.5}"#, "", &in_field, Some((r#"{"amount":0.75}"#, "/amount"))),
            (r#"["x",null]"#, "", &in_field, Some((r#"["x2",null]"#, "/0"))),
            ("7", "", &in_field, Some(("8", "the body"))),
            ("{}", "", &in_field, Some((r#"{"probe":1}"#, "/probe"))),
            (r#"{"a":{"key":"k","name":"n"}}"#, "", &in_body, Some((r#"{"a":{"key":"k","name":"n2"}}"#, "/a/name"))),
            (
                "name=a%20b&amount=9",
                "application/x-www-form-urlencoded",
                &in_field,
                Some(("name=a%20b&amount=10", "amount")),
            ),
            ("name=a", "application/x-www-form-urlencoded", &in_field, Some(("name=a2", "name"))),
            ("name=a", "Application/X-WWW-Form-Urlencoded; charset=utf-8", &in_field, Some(("name=a2", "name"))),
            ("<pay>1</pay>", "application/xml", &in_field, None),
            ("null", "", &in_field, None),
        ] {
            let expected =
                expected.map(|(body, place)| (body.into(), Some(place.into()))).ok_or(Finding::NO_OTHER_BODY);
            assert_eq!(other(body, content_type, key_place), expected, "{body}");
        }
        assert_eq!(other("", "", &in_field), Err(Finding::NO_BODY));
    }

    #[test]
    fn a_fresh_key_is_a_uuid_and_never_drawn_twice() {
        let limits = KeyLimits { length_min: 1, length_max: 255 };
        let keys = [draw_key(), draw_key()];
        assert_ne!(keys[0], keys[1]);
        assert!(keys.iter().all(|key| Key::parse(key.as_bytes(), KeySyntax::Uuid, limits).is_ok()), "{keys:?}");
        assert!(keys.iter().all(|key| &key[14..15] == "4"), "{keys:?}");
    }

    #[test]
    fn a_key_is_put_into_a_body_and_taken_out_of_it() {
        let put = |body: &str, pointer: &str, key| put_key(body.as_bytes(), pointer, key);
        assert_eq!(put(r#"{"a":{}}"#, "/a/b~1c", Some("k")).unwrap(), r#"{"a":{"b/c":"k"}}"#);
        assert_eq!(put(r#"{"key":"mine","n":1}"#, "/key", None).unwrap(), r#"{"n":1}"#);
        assert_eq!(put(r#"{"a":1}"#, "/a/b", Some("k")), None);
        assert_eq!(put("[]", "/0", Some("k")), None);
    }
}
