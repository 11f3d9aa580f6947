//! The encoding of a request that is stored until it is delivered: the request as received, and its origin.
//!
//! The first byte is the number of the format. The parts follow, each after its length in four bytes, big-endian. The
//! header fields are encoded like those of a stored response, and checked as strictly when they are read.

use std::net::IpAddr;

use bytes::Bytes;
use http::header::HeaderValue;
use http::{HeaderMap, Method, Request, StatusCode, Version, request};

use super::fields::RequestOrigin;
use super::prefer;
use oncegate_domain::response::StoredResponse;

const FORMAT: u8 = 1;

/// Encodes a request. Preferences that Oncegate has applied are left out: they are not for the service.
pub fn encode(head: &request::Parts, body: &[u8], origin: &RequestOrigin) -> Vec<u8> {
    let headers = prefer::without_applied(&head.headers);
    let fields = StoredResponse { status: StatusCode::OK, headers, body: None, trailers: HeaderMap::new() };
    let version = match origin.version {
        Version::HTTP_10 => b"1.0",
        Version::HTTP_2 => b"2.0",
        _ => b"1.1",
    };
    let mut flags = vec![u8::from(origin.trusted), u8::from(origin.secure), u8::from(origin.host.is_some())];
    flags.extend_from_slice(version);
    let host = origin.host.as_ref().map_or(&b""[..], HeaderValue::as_bytes);
    let (peer, target) = (origin.peer.to_string(), head.uri.to_string());
    let fields = fields.encode_fields();
    let parts = [head.method.as_str().as_bytes(), target.as_bytes(), peer.as_bytes(), &flags, host, &fields, body];
    let mut encoded = vec![FORMAT];
    for part in parts {
        encoded.extend_from_slice(&u32::try_from(part.len()).expect("bodies are below 64 MiB").to_be_bytes());
        encoded.extend_from_slice(part);
    }
    encoded
}

/// Decodes a request that [`encode`] has encoded; `None` for any other bytes.
pub fn decode(encoded: Vec<u8>) -> Option<(request::Parts, Bytes, RequestOrigin)> {
    let mut rest = Bytes::from(encoded);
    if rest.is_empty() || rest.split_to(1)[0] != FORMAT {
        return None;
    }
    let mut part = || {
        let (length, _) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let _ = rest.split_to(4);
        (length <= rest.len()).then(|| rest.split_to(length))
    };
    let (method, target, peer, flags, host, fields, body) =
        (part()?, part()?, part()?, part()?, part()?, part()?, part()?);
    let [trusted, secure, has_host, version @ ..] = &flags[..] else { return None };
    let origin = RequestOrigin {
        peer: str::from_utf8(&peer).ok()?.parse::<IpAddr>().ok()?,
        trusted: *trusted == 1,
        secure: *secure == 1,
        // Its caller is in the record already.
        certificate: None,
        host: if *has_host == 1 { Some(HeaderValue::from_bytes(&host).ok()?) } else { None },
        version: match version {
            b"1.0" => Version::HTTP_10,
            b"1.1" => Version::HTTP_11,
            b"2.0" => Version::HTTP_2,
            _ => return None,
        },
    };
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(&method).ok()?;
    *request.uri_mut() = str::from_utf8(&target).ok()?.parse().ok()?;
    *request.headers_mut() = StoredResponse::decode(200, &fields, None).ok()?.headers;
    let (head, ()) = request.into_parts();
    rest.is_empty().then_some((head, body, origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (request::Parts, RequestOrigin) {
        let request = Request::patch("/pay/1?a=%20b")
            .header("x-b", "2")
            .header("x-a", HeaderValue::from_bytes(b"caf\xe9").unwrap())
            .header("prefer", "respond-async, return=minimal")
            .header("x-b", "");
        let host = Some(HeaderValue::from_static("shop.example:8080"));
        let peer = "2001:db8::7".parse().unwrap();
        let origin =
            RequestOrigin { peer, trusted: true, host, version: Version::HTTP_2, secure: false, certificate: None };
        (request.body(()).unwrap().into_parts().0, origin)
    }

    #[test]
    fn a_decoded_request_equals_the_encoded_one() {
        let (head, origin) = sample();
        let (again, body, from) = decode(encode(&head, b"\0\xff{}", &origin)).unwrap();
        assert_eq!((&again.method, &again.uri, &body[..]), (&head.method, &head.uri, &b"\0\xff{}"[..]));
        let mut headers = head.headers.clone();
        headers.insert("prefer", HeaderValue::from_static("return=minimal"));
        let lines = |map: &HeaderMap| map.iter().map(|(n, v)| format!("{n} {v:?}")).collect::<Vec<_>>();
        assert_eq!(lines(&again.headers).len(), lines(&headers).len());
        assert!(lines(&headers).iter().all(|line| lines(&again.headers).contains(line)));
        assert_eq!(again.headers.get_all("x-b").iter().collect::<Vec<_>>(), ["2", ""]);
        assert_eq!((from.peer, from.trusted, from.secure, from.version), (origin.peer, true, false, Version::HTTP_2));
        assert_eq!(from.host, origin.host);
    }

    #[test]
    fn truncated_or_extended_bytes_are_no_request() {
        let (head, origin) = sample();
        let encoded = encode(&head, b"body", &origin);
        for length in 0..encoded.len() {
            assert!(decode(encoded[..length].to_vec()).is_none(), "{length}");
        }
        assert!(decode([&encoded[..], b"x"].concat()).is_none());
    }
}
