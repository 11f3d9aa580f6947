//! The parts of a request that count in its fingerprint, each with its place: by them, a refused request is told
//! where it differs.

use std::borrow::Cow;

use canonical_json::canonical_children;
use http::HeaderName;

use super::{FingerprintInput, IncludedBody, IncludedContent, Recipe, field_values};
use crate::acting_for;
use crate::request_part::{BODY, PARTS_MAX, QUERY, RequestPart};
use crate::urlencoded;

impl Recipe {
    /// The parts that count of a request with this body, in an order that is the same for the same parts.
    pub fn parts<'a>(
        &self,
        input: &'a FingerprintInput<'_>,
        body: &'a IncludedBody<'_>,
    ) -> impl Iterator<Item = RequestPart<'a>> {
        let path = match self.included_path(input) {
            Cow::Borrowed(path) => Cow::Borrowed(path.as_bytes()),
            Cow::Owned(path) => Cow::Owned(path.into_bytes()),
        };
        let head = [RequestPart::whole("method", input.method.as_bytes()), RequestPart::whole("path", path)];
        let query = self.included_query(input).map(|query| query_parts(&query)).unwrap_or_default();
        let mut names: Vec<&HeaderName> = self.0.rules.headers.iter().collect();
        let acting_for = acting_for::fields_in(input.headers).filter(|name| !self.0.rules.headers.contains(name));
        acting_for.for_each(|name| names.push(name));
        let fields = names.into_iter().filter_map(|name| {
            let values = field_values(name, input);
            let name = Cow::Owned(name.as_str().as_bytes().to_vec());
            (!values.is_empty()).then(|| RequestPart { kind: "header:", name, value: join(values) })
        });
        let fields: Vec<_> = fields.collect();
        head.into_iter().chain(query).chain(fields).chain(body_parts(body))
    }
}

/// The parameters of a query, each name with its values in their order.
fn query_parts(query: &str) -> Vec<RequestPart<'static>> {
    let mut pairs: Vec<_> = urlencoded::pairs(query.as_bytes()).take(PARTS_MAX + 1).collect();
    if pairs.len() > PARTS_MAX {
        return vec![RequestPart::whole(QUERY, query.as_bytes().to_vec())];
    }
    // Stable: the values of one name keep their order.
    pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
    let same_name = pairs.chunk_by(|(one, _), (other, _)| one == other);
    let part = |pairs: &[(Vec<u8>, Vec<u8>)]| {
        let values = pairs.iter().map(|(_, value)| value.clone().into()).collect();
        RequestPart { kind: "query:", name: pairs[0].0.clone().into(), value: join(values) }
    };
    same_name.map(part).collect()
}

/// One value as it is, and several behind their lengths.
fn join(mut values: Vec<Cow<'_, [u8]>>) -> Cow<'_, [u8]> {
    match values.len() {
        1 => values.remove(0),
        _ => values.iter().flat_map(|value| [&(value.len() as u64).to_be_bytes()[..], value].concat()).collect(),
    }
}

fn body_parts<'a>(body: &'a IncludedBody<'_>) -> Box<dyn Iterator<Item = RequestPart<'a>> + 'a> {
    let bytes: &'a [u8] = match &body.content {
        IncludedContent::Bytes(bytes) => bytes,
        IncludedContent::Parts(parts) => {
            return Box::new(parts.iter().map(|part| RequestPart {
                kind: "",
                name: Cow::Borrowed(part.place.as_bytes()),
                value: Cow::Borrowed(&part.value),
            }));
        }
    };
    let members = match body.form {
        "json" => json_parts(bytes, None),
        "jsonrpc" => json_parts(bytes, Some((b"\"params\"", "json:/params/"))),
        // The hash of the document stands behind the last line end.
        "graphql" => memchr::memrchr(b'\n', bytes).map(|end| {
            let document = RequestPart { name: Cow::Borrowed(b"\"query\""), ..RequestPart::whole(JSON, &bytes[end..]) };
            let members = json_parts(&bytes[..end], Some((b"\"variables\"", "json:/variables/")));
            Box::new(members.into_iter().flatten().chain([document])) as Box<_>
        }),
        _ => None,
    };
    members.unwrap_or_else(|| Box::new((!bytes.is_empty()).then(|| RequestPart::whole(BODY, bytes)).into_iter()))
}

const JSON: &str = "json:/";

/// The members of an object, and for the one member `nested` its own; `None` for any other value.
fn json_parts<'a>(
    canonical: &'a [u8],
    nested: Option<(&'static [u8], &'static str)>,
) -> Option<Box<dyn Iterator<Item = RequestPart<'a>> + 'a>> {
    let part = |kind, (name, value)| RequestPart { kind, name: Cow::Borrowed(name), value: Cow::Borrowed(value) };
    Some(Box::new(members(canonical)?.flat_map(move |(name, value)| {
        let inner = nested.filter(|(outer, _)| *outer == name).and_then(|(_, kind)| {
            let members = members(value)?;
            Some(members.map(move |member| part(kind, member)))
        });
        let itself = inner.is_none().then(|| part(JSON, (name, value)));
        itself.into_iter().chain(inner.into_iter().flatten())
    })))
}

fn members(canonical: &[u8]) -> Option<impl Iterator<Item = (&[u8], &[u8])>> {
    let children = canonical_children(canonical).filter(|_| canonical.starts_with(b"{"))?;
    Some(children.filter_map(|(name, value)| Some((name?, value))))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;
    use crate::fingerprint::{BodyRule, FingerprintRules};
    use crate::normal_path::RequestPath;

    /// The parts of a request by a recipe, each as its place and value.
    fn of(rules: FingerprintRules, query: Option<&str>, content_type: &'static str, body: &str) -> Vec<String> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static(content_type));
        headers.insert("x-tenant", HeaderValue::from_static("a"));
        headers.append("x-tenant", HeaderValue::from_static("b"));
        headers.insert("stripe-account", HeaderValue::from_static("acct_1"));
        let path = RequestPath::new("/p%61y");
        let (pattern, host) = (None, None);
        let body = body.as_bytes();
        let input = FingerprintInput { method: "POST", path: &path, pattern, host, query, headers: &headers, body };
        let recipe = Recipe::new(rules, None);
        let included = recipe.body(&input);
        let shown = |part: RequestPart<'_>| format!("{}={}", part.place(), String::from_utf8_lossy(&part.value));
        recipe.parts(&input, &included).map(shown).collect()
    }

    fn of_body(body_rule: BodyRule, content_type: &'static str, body: &str) -> Vec<String> {
        let mut parts =
            of(FingerprintRules { body: body_rule, ..FingerprintRules::default() }, None, content_type, body);
        assert_eq!(parts.drain(..3).collect::<Vec<_>>(), ["method=POST", "path=/pay", "header:stripe-account=acct_1"]);
        parts
    }

    #[test]
    fn a_body_has_the_parts_that_its_form_has() {
        use BodyRule::{Auto, Graphql, Jsonrpc, None, Raw};
        const JSON: &str = "application/json";
        for (rule, content_type, body, parts) in [
            (
                Auto,
                JSON,
                r#"{"b": {"c": [1, "}"]}, "a\"~/\n": 1.0}"#,
                &[r#"json:/a"~0~1"#, "json:/b={\"c\":[1,\"}\"]}"][..],
            ),
            (Auto, JSON, "{}", &[]),
            (Auto, JSON, "[1]", &["body=[1]"]),
            (Auto, JSON, "no JSON", &["body=no JSON"]),
            (Auto, JSON, "", &[]),
            (Auto, "application/x-www-form-urlencoded", "b=1&a=2&b=3", &["form:a=", "form:b="]),
            (Auto, "image/png", "\u{1}", &["body=\u{1}"]),
            (None, JSON, "{\"a\":1}", &[]),
            (Raw, JSON, "{\"a\":1}", &["body={\"a\":1}"]),
            (
                Jsonrpc,
                JSON,
                r#"{"jsonrpc":"2.0","id":1,"method":"pay","params":{"to":"a","amount":5}}"#,
                &["json:/method=\"pay\"", "json:/params/amount=5", "json:/params/to=\"a\""],
            ),
            (
                Jsonrpc,
                JSON,
                r#"{"jsonrpc":"2.0","id":1,"method":"pay","params":[5]}"#,
                &["json:/method=\"pay\"", "json:/params=[5]"],
            ),
            (
                Graphql,
                JSON,
                r#"{"operationName":"P","query":"mutation P { pay }","variables":{"amount":5}}"#,
                &["json:/operationName=\"P\"", "json:/variables/amount=5", "json:/query=\n"],
            ),
        ] {
            let found = of_body(rule, content_type, body);
            assert_eq!(found.len(), parts.len(), "{body}: {found:?}");
            for (found, part) in found.iter().zip(parts) {
                assert!(found.starts_with(part), "{body}: {found:?}, not {part:?}");
            }
        }
    }

    #[test]
    fn a_query_and_fields_have_a_part_for_each_name() {
        let headers = ["x-tenant", "x-none", "stripe-account"].map(HeaderName::from_static).to_vec();
        let rules = FingerprintRules { headers, ..FingerprintRules::default() };
        let found = of(rules.clone(), Some("b=2&a=x+y&b=3"), "text/plain", "");
        let several = |one: &str, other: &str| {
            [one, other].map(|value| format!("\0\0\0\0\0\0\0{}{value}", char::from(value.len() as u8))).concat()
        };
        let expected = [
            "method=POST".to_owned(),
            "path=/pay".into(),
            "query:a=x y".into(),
            format!("query:b={}", several("2", "3")),
            format!("header:x-tenant={}", several("a", "b")),
            "header:stripe-account=acct_1".into(),
        ];
        assert_eq!(found, expected);
        let long: String = (0..=PARTS_MAX).map(|number| format!("a{number}=1&")).collect();
        assert_eq!(of(rules, Some(&long), "text/plain", "")[2], format!("query={long}"));
    }
}
