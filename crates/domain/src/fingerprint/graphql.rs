//! The canonical form of a GraphQL request: the document by its hash, so that both steps of a handshake for a persisted
//! query are the same request.
//!
//! Such a client first sends the hash alone, as `extensions.persistedQuery`, and the document with it after
//! `PersistedQueryNotFound` (Automatic Persisted Queries of Apollo). A client that gives up on them sends the document
//! alone.
//!
//! The argument of a directive that holds the key does not count: the document is hashed without it. The hash alone has
//! no document to read the key from, so that such a request is none of the steps.

use canonical_json::{Pointer, Selection, canonicalize_selected};
use data_encoding::HEXLOWER;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::graphql::GraphqlParameters;
use crate::place::Directive;
use crate::place::graphql::cut;

/// The values that the selection keeps, without the document and its handshake, and then the hash of the document. The
/// arguments of the directives do not count. `None` for a body whose document and hash are not the same, or that is no
/// single request: it is compared as JSON.
pub(super) fn canonical(body: &[u8], selection: &Selection, directives: &[Directive]) -> Option<Vec<u8>> {
    let parameters: GraphqlParameters = serde_json::from_slice(body).ok()?;
    let extensions = match &parameters.extensions {
        None => None,
        Some(Value::Object(members)) => Some(members),
        Some(_) => return None,
    };
    let named = match extensions.and_then(|members| members.get("persistedQuery")) {
        None => None,
        Some(handshake) => Some(hash_in(handshake)?),
    };
    let document = parameters.query.as_deref();
    let cut = document.and_then(|document| cut(document, parameters.operation_name.as_deref(), directives));
    let made = document.map(|document| HEXLOWER.encode(&Sha256::digest(document)));
    let hash = match (made, named) {
        (Some(made), Some(named)) if made != named => return None,
        (Some(hash), _) | (None, Some(hash)) => hash,
        (None, None) => return None,
    };
    let is_handshake_alone = extensions.is_none_or(|members| members.keys().all(|name| name == "persistedQuery"));
    let extensions = if is_handshake_alone { "/extensions" } else { "/extensions/persistedQuery" };
    let mut selection = selection.clone();
    let pointer = |text| Pointer::parse(text).expect("it starts with a slash");
    selection.exclude.extend(["/query", extensions].map(pointer));
    let hash = match cut {
        None => hash,
        Some(cut) => {
            selection.exclude.extend(cut.variables);
            HEXLOWER.encode(&Sha256::digest(cut.document))
        }
    };
    let mut canonical = canonicalize_selected(body, &selection).ok()?.into_owned();
    canonical.push(b'\n');
    canonical.extend_from_slice(hash.as_bytes());
    Some(canonical)
}

/// The hash in a handshake, in lower case. `None` for a handshake of another form.
fn hash_in(handshake: &Value) -> Option<String> {
    let members: &Map<String, Value> = handshake.as_object()?;
    let is_known = members.keys().all(|name| matches!(name.as_str(), "sha256Hash" | "version"));
    let hash = members.get("sha256Hash")?.as_str()?.to_ascii_lowercase();
    let is_version_1 = members.get("version").is_none_or(|version| *version == 1);
    (is_known && is_version_1 && HEXLOWER.decode(hash.as_bytes()).is_ok_and(|bytes| bytes.len() == 32)).then_some(hash)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DOCUMENT: &str = "mutation Pay($amount: Int!) { pay(amount: $amount) { id } }";

    fn of(request: &Value) -> Option<Vec<u8>> {
        canonical(request.to_string().as_bytes(), &Selection::default(), &[])
    }

    fn handshake(hash: &str) -> Value {
        json!({ "persistedQuery": { "version": 1, "sha256Hash": hash } })
    }

    #[test]
    fn all_steps_of_a_handshake_are_the_same_request() {
        let hash = HEXLOWER.encode(&Sha256::digest(DOCUMENT));
        let variables = json!({ "amount": 5 });
        let first = json!({ "operationName": "Pay", "variables": variables, "extensions": handshake(&hash) });
        let expected = of(&first);
        assert!(expected.is_some());
        for same in [
            json!({ "operationName": "Pay", "variables": variables, "extensions": handshake(&hash), "query": DOCUMENT }),
            json!({ "operationName": "Pay", "variables": variables, "query": DOCUMENT }),
            json!({ "operationName": "Pay", "variables": variables, "query": DOCUMENT, "extensions": {} }),
            json!({ "operationName": "Pay", "variables": variables, "query": DOCUMENT, "extensions": null }),
            json!({ "operationName": "Pay", "variables": variables, "query": null, "extensions": handshake(&hash.to_uppercase()) }),
        ] {
            assert_eq!(of(&same), expected, "{same}");
        }
        let other_hash = HEXLOWER.encode(&Sha256::digest("mutation { other }"));
        let mut with_extension = handshake(&hash);
        with_extension["tenant"] = json!(7);
        for other in [
            json!({ "operationName": "Pay", "variables": { "amount": 6 }, "query": DOCUMENT }),
            json!({ "operationName": "Other", "variables": variables, "query": DOCUMENT }),
            json!({ "operationName": "Pay", "variables": variables, "query": "mutation { other }" }),
            json!({ "operationName": "Pay", "variables": variables, "extensions": handshake(&other_hash) }),
            json!({ "operationName": "Pay", "variables": variables, "extensions": with_extension }),
            json!({ "operationName": "Pay", "variables": variables, "query": DOCUMENT, "id": 1 }),
        ] {
            let found = of(&other);
            assert!(found.is_some() && found != expected, "{other}");
        }
    }

    #[test]
    fn a_document_that_is_not_the_hashed_one_is_compared_with_its_hash() {
        let hash = HEXLOWER.encode(&Sha256::digest(DOCUMENT));
        for request in [
            json!({ "query": "mutation { other }", "extensions": handshake(&hash) }),
            json!({ "query": DOCUMENT, "extensions": handshake("ab") }),
            json!({ "query": DOCUMENT, "extensions": { "persistedQuery": { "version": 2, "sha256Hash": hash } } }),
            json!({ "query": DOCUMENT, "extensions": { "persistedQuery": { "sha256Hash": hash, "x": 1 } } }),
            json!({ "query": DOCUMENT, "extensions": { "persistedQuery": null } }),
            json!({ "query": DOCUMENT, "extensions": [] }),
            json!({ "query": 1, "extensions": handshake(&hash) }),
            json!({ "documentId": "ab" }),
            json!([{ "query": DOCUMENT }]),
        ] {
            assert_eq!(of(&request), None, "{request}");
        }
    }

    #[test]
    fn the_argument_of_a_directive_does_not_count() {
        let directives = [Directive::parse("@idempotent(key)").unwrap()];
        let of = |request: Value, directives: &[Directive]| {
            canonical(request.to_string().as_bytes(), &Selection::default(), directives).unwrap()
        };
        let literal = |key: &str| json!({ "query": format!("mutation {{ pay @idempotent(key: \"{key}\") }}") });
        assert_eq!(of(literal("a"), &directives), of(literal("b"), &directives));
        assert_ne!(of(literal("a"), &[]), of(literal("b"), &[]));
        let with = |query: &str, key: &str, amount: i32| json!({ "query": query, "variables": { "k": key, "amount": amount } });
        let variable = "mutation($k: ID, $amount: Int) { pay(amount: $amount) @idempotent(key: $k) }";
        assert_eq!(of(with(variable, "a", 5), &directives), of(with(variable, "b", 5), &directives));
        assert_ne!(of(with(variable, "a", 5), &directives), of(with(variable, "a", 6), &directives));
        assert_ne!(of(with(variable, "a", 5), &[]), of(with(variable, "b", 5), &[]));
        let used_twice = "mutation($k: ID, $amount: Int) { pay(amount: $amount, id: $k) @idempotent(key: $k) }";
        assert_ne!(of(with(used_twice, "a", 5), &directives), of(with(used_twice, "b", 5), &directives));

        // The client's hash is that of the document as sent.
        let document = "mutation { pay @idempotent(key: \"a\") }";
        let named = |hashed: &str| {
            let hash = HEXLOWER.encode(&Sha256::digest(hashed));
            let request = json!({ "query": document, "extensions": handshake(&hash) });
            canonical(request.to_string().as_bytes(), &Selection::default(), &directives)
        };
        assert_eq!(named(document), Some(of(literal("b"), &directives)));
        assert_eq!(named("mutation { pay @idempotent(key: \"\") }"), None);
    }
}
