//! Requests in GraphQL over HTTP that only read, and need no guard.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, request};

use super::charset;
use oncegate_domain::graphql::{only_reads, operation_only_reads};
use oncegate_domain::urlencoded;

#[derive(Clone, Copy, Debug)]
pub enum GraphqlBodyForm {
    Document,
    /// The parameters in JSON, or a batch of them.
    Json,
}

impl GraphqlBodyForm {
    /// The form by the request's head; `None` where the body alone does not tell what the request does.
    pub fn find(head: &request::Parts) -> Option<Self> {
        let is_plain = !head.headers.contains_key(CONTENT_ENCODING) && charset::is_plain(&head.headers);
        if head.method != Method::POST || !is_plain || has_parameter(head.uri.query()) {
            return None;
        }
        match media_type(&head.headers)? {
            b"application/json" => Some(Self::Json),
            b"application/graphql" => Some(Self::Document),
            _ => None,
        }
    }

    /// Whether the operation in a body, or each of a batch, is surely a query or a subscription.
    pub fn only_reads(self, body: &[u8]) -> bool {
        match self {
            Self::Document => str::from_utf8(body).is_ok_and(|document| operation_only_reads(document, None)),
            Self::Json => only_reads(body),
        }
    }
}

/// The media type, without its parameters. `None` if there is not exactly one.
fn media_type(headers: &HeaderMap) -> Option<&[u8]> {
    let mut types = headers.get_all(CONTENT_TYPE).iter().map(HeaderValue::as_bytes);
    let only = types.next().filter(|_| types.next().is_none())?;
    only.split(|byte| *byte == b';').next().map(<[u8]>::trim_ascii)
}

/// Whether the query of a URL has a parameter of GraphQL: some servers prefer it to the one in the body.
fn has_parameter(query: Option<&str>) -> bool {
    const NAMES: [&[u8]; 6] = [b"documentid", b"extensions", b"id", b"operationname", b"query", b"variables"];
    let mut pairs = query.into_iter().flat_map(|query| urlencoded::pairs(query.as_bytes()));
    pairs.any(|(name, _)| NAMES.contains(&&*name.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn only_a_post_whose_operation_is_plain_to_see_only_reads() {
        const JSON: &str = r#"{"query":"{ a }"}"#;
        let one = [("content-type", "application/json")];
        for (method, target, fields, body, reads) in [
            ("POST", "/graphql", &one[..], JSON, true),
            ("POST", "/graphql?op=Pay", &one, JSON, true),
            ("POST", "/graphql?query=mutation%7Bpay%7D", &one, JSON, false),
            ("POST", "/graphql?%71uery=mutation%7Bpay%7D", &one, JSON, false),
            ("POST", "/graphql?a=1&operationName=B", &one, JSON, false),
            ("PUT", "/graphql", &one, JSON, false),
            ("POST", "/graphql", &[("content-type", "application/json; charset=utf-8")], JSON, true),
            ("POST", "/graphql", &[("content-type", "application/json;charset=\"UTF-8\"; profile=a")], JSON, true),
            ("POST", "/graphql", &[("content-type", "application/json; charset=utf-16")], JSON, false),
            ("POST", "/graphql", &[("content-type", "application/graphql; charset=utf-7")], "query { a }", false),
            ("POST", "/graphql", &[], JSON, false),
            ("POST", "/graphql", &[("content-type", "text/plain")], JSON, false),
            ("POST", "/graphql", &[("content-type", "application/json"), ("content-type", "text/plain")], JSON, false),
            ("POST", "/graphql", &[("content-type", "application/json"), ("content-encoding", "gzip")], JSON, false),
            ("POST", "/graphql", &[("content-type", "application/graphql")], "query { a }", true),
            ("POST", "/graphql", &[("content-type", "application/graphql")], "mutation { a }", false),
            ("POST", "/graphql", &[("content-type", "multipart/form-data")], JSON, false),
        ] {
            let mut request = Request::builder().method(method).uri(target);
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            let head = request.body(()).unwrap().into_parts().0;
            let found = GraphqlBodyForm::find(&head).is_some_and(|form| form.only_reads(body.as_bytes()));
            assert_eq!(found, reads, "{method} {target} {fields:?}");
        }
    }
}
