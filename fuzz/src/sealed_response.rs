//! Encrypted responses.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use oncegate_domain::fingerprint::{Secret, Secrets};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::response::StoredResponse;
use oncegate_domain::sealed_response::{SEALED, open, seal};

use super::bytes_reader::BytesReader;

/// Checks that arbitrary bytes do not open, and that a sealed response opens as it was, but not with a flipped bit, not
/// cut, and not under another key, attempt or secret.
pub fn check(input: &[u8]) {
    let secret = Secret::new("the only secret of this target");
    let secrets = Secrets::new([secret.clone()]);
    let (id, token) = (RecordId::from_stored(&[1; 32]).expect("32 bytes"), Token::from_random([2; 16]));

    let named = |name: &[u8], body: &[u8]| StoredResponse {
        status: StatusCode::OK,
        headers: HeaderMap::from_iter(HeaderValue::from_bytes(name).ok().map(|name| (SEALED, name))),
        body: Some(Bytes::copy_from_slice(body)),
        trailers: HeaderMap::new(),
    };
    assert!(open(&secrets, &id, &token, &named(secret.name().as_bytes(), input)).is_err());

    let mut input = BytesReader::new(input);
    let (place, bit, salt) = (input.number().unsigned_abs(), input.byte() % 8, [input.byte(); 32]);
    let name = input.text();
    let _ = open(&secrets, &id, &token, &named(name, input.text()));
    let mut headers = HeaderMap::new();
    for _ in 0..input.byte() % 4 {
        let (name, value) = (HeaderName::from_bytes(input.text()), HeaderValue::from_bytes(input.text()));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let body = Bytes::copy_from_slice(input.rest());
    let is_kept = bit.is_multiple_of(2);
    let plain = StoredResponse {
        status: StatusCode::CREATED,
        headers,
        body: is_kept.then_some(body),
        trailers: HeaderMap::new(),
    };
    let sealed = seal(&secret, &id, &token, salt, &plain);
    assert_eq!(open(&secrets, &id, &token, &sealed), Ok(Some(plain)));

    let bytes = sealed.body.clone().expect("a sealed response has a body");
    let place = usize::try_from(place % bytes.len() as u64).expect("an index");
    let mut flipped = bytes.to_vec();
    flipped[place] ^= 1 << bit;
    for changed in [Bytes::from(flipped), bytes.slice(..place), bytes.slice(place + 1..)] {
        let changed = StoredResponse { body: Some(changed), ..sealed.clone() };
        assert!(open(&secrets, &id, &token, &changed).is_err());
    }
    assert!(open(&secrets, &RecordId::from_stored(&[3; 32]).expect("32 bytes"), &token, &sealed).is_err());
    assert!(open(&secrets, &id, &Token::from_random([3; 16]), &sealed).is_err());
    assert!(open(&Secrets::new([Secret::new("another secret of this target")]), &id, &token, &sealed).is_err());
}
