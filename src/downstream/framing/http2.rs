//! The head of an HTTP/2 request, held to what is asked of one in HTTP/1.x.
//!
//! HTTP/2 frames its messages without ambiguity, and h2 refuses what RFC 9113 section 8 calls malformed. But what comes in
//! that way goes on to a service that mostly speaks HTTP/1.1, past the same routes.

use http::header::HOST;
use http::{HeaderMap, Method, Request, Uri};

use super::head::{FIELDS_MAX, TARGET_BYTES_MAX};
use super::head::{is_authority, is_method, is_or_resembles, is_target_text};
use super::verdict::Malformed;

/// Judges a request that came over HTTP/2.
///
/// # Errors
/// What is wrong with it.
pub fn judge<B>(request: &Request<B>) -> Result<(), Malformed> {
    method_and_target(request.method(), request.uri())?;
    fields(request.headers())?;
    let host = match request.uri().authority() {
        Some(authority) => authority.as_str().as_bytes(),
        None => request.headers().get(HOST).ok_or(Malformed::NoHost)?.as_bytes(),
    };
    if is_authority(host) { Ok(()) } else { Err(Malformed::BadHost) }
}

fn method_and_target(method: &Method, uri: &Uri) -> Result<(), Malformed> {
    let target = uri.path_and_query().map_or("/", |target| target.as_str()).as_bytes();
    if target.len() > TARGET_BYTES_MAX {
        return Err(Malformed::TargetTooLong);
    }
    let whole = target.starts_with(b"/") || (target == b"*" && *method == Method::OPTIONS);
    match is_method(method.as_str().as_bytes()) && whole && is_target_text(target) {
        true => Ok(()),
        false => Err(Malformed::BadRequestLine),
    }
}

fn fields(headers: &HeaderMap) -> Result<(), Malformed> {
    if headers.len() > FIELDS_MAX {
        return Err(Malformed::TooManyFields);
    }
    let resembles = |name: &[u8], start: &[u8], end: &[u8]| {
        name.len() == start.len() + end.len() + 1 && name[start.len()] != b'-' && is_or_resembles(name, start, end)
    };
    let misleads = |name: &[u8]| resembles(name, b"content", b"length") || resembles(name, b"transfer", b"encoding");
    match headers.keys().any(|name| misleads(name.as_str().as_bytes())) {
        true => Err(Malformed::BadHeader),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, uri: &str, fields: &[(&'static str, &str)]) -> Request<()> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn what_would_slip_past_a_route_in_http_1_does_not_in_http_2() {
        assert_eq!(judge(&request("POST", "http://shop.example/v1/pay?a=1", &[("x-a", "1")])), Ok(()));
        assert_eq!(judge(&request("OPTIONS", "http://shop.example/", &[])), Ok(()));
        for (request, why) in [
            (request("post", "http://h/pay", &[]), Malformed::BadRequestLine),
            (request("CONNECT", "http://h/pay", &[]), Malformed::BadRequestLine),
            (request("POST", "http://u@h/pay", &[]), Malformed::BadHost),
            (request("POST", "/pay", &[]), Malformed::NoHost),
            (request("POST", "http://h/pay", &[("content_length", "5")]), Malformed::BadHeader),
            (request("POST", "http://h/pay", &[("transfer_encoding", "chunked")]), Malformed::BadHeader),
            (request("POST", &format!("http://h/{}", "x".repeat(9_000)), &[]), Malformed::TargetTooLong),
        ] {
            assert_eq!(judge(&request), Err(why), "{request:?}");
        }
    }

    #[test]
    fn a_hundred_fields_are_enough() {
        let with = |count: usize| {
            let mut request = request("POST", "http://h/pay", &[]);
            for number in 0..count {
                let name: http::HeaderName = format!("x-{number}").parse().unwrap();
                request.headers_mut().insert(name, http::HeaderValue::from_static("1"));
            }
            judge(&request)
        };
        assert_eq!((with(100), with(101)), (Ok(()), Err(Malformed::TooManyFields)));
    }
}
