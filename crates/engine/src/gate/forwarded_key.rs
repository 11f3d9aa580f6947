//! Sets the key's field for the service, by the route's `forward_key`.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use oncegate_domain::ids::RecordId;
use oncegate_domain::key::{Key, KeySyntax};
use oncegate_settings::{ForwardKey, KeyRule, Route};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Sets, removes or keeps the key's fields as the route says. A key in the query or in the body stays there. A vendor
/// gets the key in the field that it reads, and in no other.
pub(super) fn set_key_field(headers: &mut HeaderMap, route: &Route, (key, id): (&Key, RecordId)) {
    if route.vendor.is_some() {
        let own = route.vendor_key(key.as_bytes(), &id);
        // As it was spelt, where the route reads it there. Elsewhere an SDK may have put a key of its own there, which
        // differs with each call.
        let is_read = |field: &HeaderName| route.options.key.headers().any(|name| name == field);
        let is_kept = own
            .as_ref()
            .is_some_and(|(field, value)| is_read(field) && headers.contains_key(*field) && value == key.as_bytes());
        let field = own.as_ref().map(|(field, _)| *field);
        remove_key_fields(headers, &route.options.key, |name| is_kept && Some(name) == field);
        if let (Some((field, value)), false) = (own, is_kept) {
            headers.insert(field, value);
        }
        return;
    }
    match &route.options.forward_key {
        ForwardKey::Derive(step) => {
            let name = derived_key_field(headers, &route.options.key);
            let quoted = headers.get(&name).is_some_and(|value| value.as_bytes().starts_with(b"\""));
            let derived = derive(key, step, quoted && route.options.key.syntax != KeySyntax::Opaque);
            remove_key_fields(headers, &route.options.key, |_| false);
            headers.insert(name, derived);
        }
        ForwardKey::None => remove_key_fields(headers, &route.options.key, |_| false),
        ForwardKey::Same => {}
    }
}

/// Whether the key that the vendor reads is there.
pub(super) fn has_vendor_field(headers: &HeaderMap, route: &Route) -> bool {
    let field = route.vendor.as_ref().and_then(|vendor| vendor.key.as_ref()?.field());
    field.is_some_and(|field| headers.contains_key(field))
}

/// The field of a derived key: the one that the client's key came in, else the route's first.
fn derived_key_field(headers: &HeaderMap, rule: &KeyRule) -> HeaderName {
    let sent = rule.headers().find(|name| headers.contains_key(*name));
    sent.or(rule.headers().next()).cloned().unwrap_or(IDEMPOTENCY_KEY)
}

/// Removes the fields of the key, and the common one where the route names none; but those that are kept.
fn remove_key_fields(headers: &mut HeaderMap, rule: &KeyRule, keeps: impl Fn(&HeaderName) -> bool) {
    let (common, is_without) = (IDEMPOTENCY_KEY, rule.headers().next().is_none());
    for name in rule.headers().chain(is_without.then_some(&common)).filter(|name| !keeps(name)) {
        headers.remove(name);
    }
}

/// `KEY:STEP`, quoted as a structured-field String (RFC 9651 section 3.3.3) where the client's was.
fn derive(key: &Key, step: &str, quoted: bool) -> HeaderValue {
    let mut value = Vec::with_capacity(key.as_bytes().len() + step.len() + 3);
    let escaped = |byte: &u8| quoted && matches!(byte, b'"' | b'\\');
    value.extend_from_slice(if quoted { b"\"" } else { b"" });
    for byte in key.as_bytes() {
        value.extend(escaped(byte).then_some(b'\\'));
        value.push(*byte);
    }
    value.push(b':');
    value.extend_from_slice(step.as_bytes());
    value.extend_from_slice(if quoted { b"\"" } else { b"" });
    HeaderValue::from_bytes(&value).expect("a key and a step are printable ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_domain::key::KeyLimits;

    #[test]
    fn a_derived_key_is_spelt_like_the_clients() {
        let limits = KeyLimits { length_min: 1, length_max: 255 };
        for (sent, quoted, derived) in [
            ("order-1", false, "order-1:charge"),
            ("\"order-1\"", true, "\"order-1:charge\""),
            (r#""a\"b\\c""#, true, r#""a\"b\\c:charge""#),
        ] {
            let key = Key::parse(sent.as_bytes(), KeySyntax::Ietf, limits).unwrap();
            assert_eq!(derive(&key, "charge", quoted), derived);
        }
    }
}
