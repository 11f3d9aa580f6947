//! Stored responses that can be read only with the secret.
//!
//! A sealed response is a [`StoredResponse`] with the same status, also that of a gRPC call, one field that names the
//! secret, and the sealed fields and body as its body. So a store keeps it like any other, and rows that were written
//! before stay readable.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::fingerprint::{Secret, Secrets};
use super::ids::{RecordId, Token};
use super::response::{CorruptRow, StoredResponse};
use super::sealed::{SealedBytes, UnsealError};

/// The field of a sealed response: its value is the secret's name. Responses of services never have it.
pub const SEALED: HeaderName = HeaderName::from_static("oncegate-sealed");

/// The status of a gRPC call. It stays readable as the HTTP status does: events tell a refusal by it.
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Seals a response to its record and attempt, with 32 bytes from the operating system's generator.
pub fn seal(
    secret: &Secret,
    id: &RecordId,
    token: &Token,
    salt: [u8; 32],
    response: &StoredResponse,
) -> StoredResponse {
    let fields = response.encode_fields();
    let body = response.body.as_deref();
    let length = u32::try_from(fields.len()).expect("fields are far smaller than 4 GiB");
    let mut text = Vec::with_capacity(5 + fields.len() + body.map_or(0, <[u8]>::len));
    // A body that was not kept is not an empty one.
    text.push(u8::from(body.is_some()));
    text.extend_from_slice(&length.to_be_bytes());
    text.extend_from_slice(&fields);
    text.extend_from_slice(body.unwrap_or_default());
    let sealed = SealedBytes::seal(secret, &binding(id, token), salt, &text);
    let name = HeaderValue::from_str(&sealed.secret).expect("a secret's name is hexadecimal");
    let grpc_status = response.trailers.get(GRPC_STATUS).or_else(|| response.headers.get(GRPC_STATUS));
    StoredResponse {
        status: response.status,
        headers: HeaderMap::from_iter([(SEALED, name)]),
        body: Some(sealed.bytes),
        trailers: grpc_status.map(|status| (GRPC_STATUS, status.clone())).into_iter().collect(),
    }
}

/// Opens a response of this record and attempt. Returns `None` for one that is not sealed.
/// An error: the secret is not configured, or the response was changed or belongs to another key or attempt.
pub fn open(
    secrets: &Secrets,
    id: &RecordId,
    token: &Token,
    response: &StoredResponse,
) -> Result<Option<StoredResponse>, CorruptRow> {
    let Some(secret) = response.headers.get(SEALED) else { return Ok(None) };
    let secret = secret.to_str().map_err(|_| CorruptRow("the name of a secret"))?.to_owned();
    let sealed = SealedBytes { secret, bytes: response.body.clone().unwrap_or_default() };
    let text = sealed.open(secrets, &binding(id, token)).map_err(|error| match error {
        UnsealError::SecretGone => CorruptRow("it is encrypted with a secret that is not configured any more"),
        UnsealError::Broken => CorruptRow("it is encrypted, and was changed or belongs to another key"),
    })?;
    let text = Bytes::from(text);
    let (head, _) = text.split_first_chunk::<5>().ok_or(CorruptRow("an encrypted response is cut"))?;
    let [kept, length @ ..] = *head;
    let end = usize::try_from(u32::from_be_bytes(length)).ok().and_then(|length| length.checked_add(head.len()));
    let end = end.filter(|end| *end <= text.len()).ok_or(CorruptRow("an encrypted response is cut"))?;
    let body = (kept == 1).then(|| text.slice(end..));
    StoredResponse::decode(response.status.as_u16().cast_signed(), &text.slice(head.len()..end), body).map(Some)
}

/// The data that a sealed response is bound to: one that is copied to another row does not open there.
fn binding(id: &RecordId, token: &Token) -> Vec<u8> {
    [b"response", &id.as_bytes()[..], &token.as_bytes()[..]].concat()
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use http::header::{CONTENT_TYPE, SET_COOKIE};

    use super::*;

    const SALT: [u8; 32] = [7; 32];

    fn response(body: Option<&'static [u8]>) -> StoredResponse {
        let mut headers = HeaderMap::new();
        headers.append(SET_COOKIE, HeaderValue::from_static("a=canary"));
        headers.append(SET_COOKIE, HeaderValue::from_static("b"));
        headers.append(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        let trailers = HeaderMap::from_iter([(HeaderName::from_static("x-sum"), HeaderValue::from_static("canary"))]);
        StoredResponse { status: StatusCode::CREATED, headers, body: body.map(Bytes::from_static), trailers }
    }

    fn names() -> (RecordId, Token) {
        (RecordId::from_stored(&[1; 32]).unwrap(), Token::from_random([2; 16]))
    }

    #[test]
    fn a_sealed_response_shows_its_status_alone_and_opens_whole() {
        let secret = Secret::new("the only secret of ours");
        let (id, token) = names();
        for plain in [response(Some(b"canary")), response(Some(b"")), response(None)] {
            let sealed = seal(&secret, &id, &token, SALT, &plain);
            let stored = [sealed.encode_fields(), sealed.body.clone().unwrap().to_vec()].concat();
            assert_eq!((sealed.status, memchr::memmem::find(&stored, b"canary")), (plain.status, None));
            let opened = open(&Secrets::new([secret.clone()]), &id, &token, &sealed).unwrap().unwrap();
            assert_eq!(opened, plain);
        }
    }

    #[test]
    fn a_response_opens_under_its_key_attempt_and_secret_alone() {
        let [old, new] = ["the old secret of ours", "the new secret of ours"].map(Secret::new);
        let (id, token) = names();
        let sealed = || seal(&old, &id, &token, SALT, &response(Some(b"canary")));
        let secrets = Secrets::new([new.clone(), old.clone()]);
        assert!(open(&secrets, &id, &token, &sealed()).is_ok());
        let other_id = RecordId::from_stored(&[3; 32]).unwrap();
        assert!(open(&secrets, &other_id, &token, &sealed()).is_err());
        assert!(open(&secrets, &id, &Token::from_random([3; 16]), &sealed()).is_err());
        assert!(open(&Secrets::new([new]), &id, &token, &sealed()).is_err());
        assert!(open(&Secrets::default(), &id, &token, &sealed()).is_err());
        let cut = StoredResponse { body: None, ..sealed() };
        assert!(open(&secrets, &id, &token, &cut).is_err());
    }

    #[test]
    fn the_status_of_a_grpc_call_stays_readable() {
        let status = || HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("9"))]);
        let (id, token) = names();
        let secret = Secret::new("the only secret of ours");
        for (headers, trailers) in [(status(), HeaderMap::new()), (HeaderMap::new(), status())] {
            let plain = StoredResponse { headers, trailers, ..response(Some(b"")) };
            let sealed = seal(&secret, &id, &token, SALT, &plain);
            assert_eq!(sealed.trailers, status());
            assert_eq!(open(&Secrets::new([secret.clone()]), &id, &token, &sealed).unwrap().unwrap(), plain);
        }
    }

    #[test]
    fn a_response_that_is_not_sealed_stays_as_it_is() {
        let (id, token) = names();
        assert_eq!(open(&Secrets::default(), &id, &token, &response(None)).unwrap(), None);
    }
}
