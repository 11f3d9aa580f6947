//! The rules of HTTP/1.x for the heads of HTTP/2 requests.
//!
//! HTTP/2 frames its messages without ambiguity, and h2 refuses requests that RFC 9113 section 8 calls malformed. But a
//! proxy routes an HTTP/2 request by the same rules, and mostly sends it on to a service that speaks HTTP/1.1. So its
//! method, target, `Host` and number of fields have the same limits, and names that resemble `content-length` or
//! `transfer-encoding` are refused.
//!
//! The guard does not apply these rules itself, as it reads nothing of HTTP/2: the service calls [`check_request`].
//!
//! A fragment in `:path` cannot be refused here: `http` cuts it off before the request is complete. Routes and services
//! see the same path without it.

use http::header::{COOKIE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};

use super::head::{FIELDS_MAX, TARGET_BYTES_MAX};
use super::head::{is_authority, is_method, is_or_resembles, is_target_text};
use super::verdict::FramingError;

/// Joins several `cookie` fields into one, as a recipient must before it passes them on to anything but HTTP/2 (RFC
/// 9113 section 8.2.3). Compression makes clients split them, into any number of fields. Without several such fields,
/// nothing changes.
///
/// Call this before [`check_request`], so that split cookies do not count as many fields.
pub fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let fields: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&fields.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Checks the head of a request that came over HTTP/2, before the service looks at it. A request needs a host in its
/// URI or a `Host` field.
///
/// # Errors
/// The first rule that the request breaks: [`FramingError::BadHeader`], [`BadHost`](FramingError::BadHost),
/// [`BadRequestLine`](FramingError::BadRequestLine), [`NoHost`](FramingError::NoHost),
/// [`TargetTooLong`](FramingError::TargetTooLong) or [`TooManyFields`](FramingError::TooManyFields).
pub fn check_request<B>(request: &Request<B>) -> Result<(), FramingError> {
    check_method_and_target(request.method(), request.uri())?;
    check_fields(request.headers())?;
    let host = match request.uri().authority() {
        Some(authority) => authority.as_str().as_bytes(),
        None => request.headers().get(HOST).ok_or(FramingError::NoHost)?.as_bytes(),
    };
    if is_authority(host) { Ok(()) } else { Err(FramingError::BadHost) }
}

fn check_method_and_target(method: &Method, uri: &Uri) -> Result<(), FramingError> {
    let target = uri.path_and_query().map_or("/", |target| target.as_str()).as_bytes();
    if target.len() > TARGET_BYTES_MAX {
        return Err(FramingError::TargetTooLong);
    }
    let has_form = target.starts_with(b"/") || (target == b"*" && *method == Method::OPTIONS);
    match is_method(method.as_str().as_bytes()) && has_form && is_target_text(target) {
        true => Ok(()),
        false => Err(FramingError::BadRequestLine),
    }
}

fn check_fields(headers: &HeaderMap) -> Result<(), FramingError> {
    if headers.len() > FIELDS_MAX {
        return Err(FramingError::TooManyFields);
    }
    let resembles = |name: &[u8], start: &[u8], end: &[u8]| {
        name.len() == start.len() + end.len() + 1 && name[start.len()] != b'-' && is_or_resembles(name, start, end)
    };
    let misleads = |name: &[u8]| resembles(name, b"content", b"length") || resembles(name, b"transfer", b"encoding");
    match headers.keys().any(|name| misleads(name.as_str().as_bytes())) {
        true => Err(FramingError::BadHeader),
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
            (request("post", "http://h/pay", &[]), FramingError::BadRequestLine),
            (request("CONNECT", "http://h/pay", &[]), FramingError::BadRequestLine),
            (request("POST", "http://u@h/pay", &[]), FramingError::BadHost),
            (request("POST", "/pay", &[]), FramingError::NoHost),
            (request("POST", "http://h/pay", &[("content_length", "5")]), FramingError::BadHeader),
            (request("POST", "http://h/pay", &[("transfer_encoding", "chunked")]), FramingError::BadHeader),
            (request("POST", &format!("http://h/{}", "x".repeat(9_000)), &[]), FramingError::TargetTooLong),
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
        assert_eq!((with(100), with(101)), (Ok(()), Err(FramingError::TooManyFields)));
    }
}
