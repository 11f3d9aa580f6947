//! Checks the head of an HTTP/2 request by the rules for HTTP/1.x.
//!
//! HTTP/2 frames its messages without ambiguity, and h2 refuses requests that RFC 9113 section 8 calls malformed. But an
//! HTTP/2 request passes the same routes and mostly goes on to a service that speaks HTTP/1.1. So its method, target,
//! `Host` and number of fields have the same limits, and names that resemble `content-length` or `transfer-encoding` are
//! refused.
//!
//! A fragment in `:path` cannot be refused here: `http` cuts it off before the request is complete. Routes and services see
//! the same path without it.

use http::header::{COOKIE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};

use super::head::{FIELDS_MAX, TARGET_BYTES_MAX};
use super::head::{is_authority, is_method, is_or_resembles, is_target_text};
use super::verdict::Malformed;

/// Joins several `cookie` fields into one, as a recipient must before it passes them on to anything but HTTP/2 (RFC 9113
/// section 8.2.3). Compression makes clients split them, into any number of fields.
pub fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let fields: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&fields.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Checks the head of a request that came over HTTP/2.
///
/// # Errors
/// [`Malformed`] names the first rule that the request breaks.
pub fn check_request<B>(request: &Request<B>) -> Result<(), Malformed> {
    check_method_and_target(request.method(), request.uri())?;
    check_fields(request.headers())?;
    let host = match request.uri().authority() {
        Some(authority) => authority.as_str().as_bytes(),
        None => request.headers().get(HOST).ok_or(Malformed::NoHost)?.as_bytes(),
    };
    if is_authority(host) { Ok(()) } else { Err(Malformed::BadHost) }
}

fn check_method_and_target(method: &Method, uri: &Uri) -> Result<(), Malformed> {
    let target = uri.path_and_query().map_or("/", |target| target.as_str()).as_bytes();
    if target.len() > TARGET_BYTES_MAX {
        return Err(Malformed::TargetTooLong);
    }
    let has_form = target.starts_with(b"/") || (target == b"*" && *method == Method::OPTIONS);
    match is_method(method.as_str().as_bytes()) && has_form && is_target_text(target) {
        true => Ok(()),
        false => Err(Malformed::BadRequestLine),
    }
}

fn check_fields(headers: &HeaderMap) -> Result<(), Malformed> {
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
    fn http_2_requests_meet_the_rules_of_http_1() {
        assert_eq!(check_request(&request("POST", "http://shop.example/v1/pay?a=1", &[("x-a", "1")])), Ok(()));
        assert_eq!(check_request(&request("OPTIONS", "http://shop.example/", &[])), Ok(()));
        for (request, why) in [
            (request("post", "http://h/pay", &[]), Malformed::BadRequestLine),
            (request("CONNECT", "http://h/pay", &[]), Malformed::BadRequestLine),
            (request("POST", "http://u@h/pay", &[]), Malformed::BadHost),
            (request("POST", "/pay", &[]), Malformed::NoHost),
            (request("POST", "http://h/pay", &[("content_length", "5")]), Malformed::BadHeader),
            (request("POST", "http://h/pay", &[("transfer_encoding", "chunked")]), Malformed::BadHeader),
            (request("POST", &format!("http://h/{}", "x".repeat(9_000)), &[]), Malformed::TargetTooLong),
        ] {
            assert_eq!(check_request(&request), Err(why), "{request:?}");
        }
    }

    #[test]
    fn more_than_a_hundred_fields_are_refused() {
        let with = |count: usize| {
            let mut request = request("POST", "http://h/pay", &[]);
            for number in 0..count {
                let name: http::HeaderName = format!("x-{number}").parse().unwrap();
                request.headers_mut().insert(name, HeaderValue::from_static("1"));
            }
            check_request(&request)
        };
        assert_eq!((with(100), with(101)), (Ok(()), Err(Malformed::TooManyFields)));
    }
}
