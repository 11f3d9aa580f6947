//! gRPC over HTTP/2: the status of a call in its response, and refusals without a message ("Trailers-Only").
//!
//! `doc/PROTOCOL-HTTP2.md` in the repository of gRPC has the protocol, and proposal A6 the retries.

use std::borrow::Cow;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::refusal::Refusal;
use super::{fields, grpc_web};
use crate::body::Body;
use oncegate_domain::grpc_status::GrpcStatus;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::response_policy::ServiceStatus;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// The beginning of the media types of all protocols of calls.
const GRPC: &[u8] = b"application/grpc";
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The characters that `grpc-message` has only encoded.
const NOT_IN_MESSAGES: &AsciiSet = &CONTROLS.add(b'%');

/// Requests uncompressed messages: every later caller must be able to read them, whatever this one accepts.
pub fn request_identity_encoding(headers: &mut HeaderMap) {
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// The protocol of a message, by its media type. It says where the status of a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallProtocol {
    /// gRPC: in the trailers.
    Grpc,
    /// gRPC-Web: in the last frame of the body.
    GrpcWeb,
    /// Anything else: the message is of no call.
    Http,
}

impl CallProtocol {
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let begins = |value: &HeaderValue| {
            value.as_bytes().get(..GRPC.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(GRPC))
        };
        if !headers.get(CONTENT_TYPE).is_some_and(begins) {
            Self::Http
        } else if fields::is_grpc(headers) {
            Self::Grpc
        } else if grpc_web::is_grpc_web(headers) {
            Self::GrpcWeb
        } else {
            Self::Http
        }
    }
}

/// The status of a whole response to a request of this protocol. It is clear only where all that the response says
/// about it agrees: the status of HTTP, and each `grpc-status` in its head and at its end.
pub fn service_status(protocol: CallProtocol, response: &StoredResponse) -> ServiceStatus {
    let StoredResponse { status, headers, body, trailers } = response;
    let by_http = ServiceStatus::Http(*status);
    let at_end = match (protocol, body) {
        (CallProtocol::Http, _) => return by_http,
        (CallProtocol::Grpc, _) => Cow::Borrowed(trailers),
        (CallProtocol::GrpcWeb, body) => {
            let in_body = body.as_ref().and_then(|body| grpc_web::trailers(headers, body));
            Cow::Owned(in_body.unwrap_or_default())
        }
    };
    let mut statuses = headers.get_all(STATUS).iter().chain(at_end.get_all(STATUS)).map(read_status);
    let first = statuses.next();
    let is_agreed = statuses.all(|other| Some(other) == first);
    let has_message = has_message(headers, body.as_deref());
    match first {
        None if *status != StatusCode::OK && !(has_message && is_call(headers)) => by_http,
        // A status in front of a message says nothing about its end.
        Some(Some(status_of_call)) if is_agreed && (!has_message || at_end.contains_key(STATUS)) => match *status {
            StatusCode::OK => ServiceStatus::Grpc(status_of_call),
            other if !has_message && mapped(other) == status_of_call => by_http,
            _ => ServiceStatus::GrpcUnclear,
        },
        _ => ServiceStatus::GrpcUnclear,
    }
}

/// Whether a response to a call has a message, or a part of one: the service has begun to answer, so that clients of
/// gRPC do not send the call again by themselves. `body` is `None` if it is too large to keep.
pub(super) fn has_message(headers: &HeaderMap, body: Option<&[u8]>) -> bool {
    body.is_none_or(|body| match CallProtocol::from_headers(headers) {
        CallProtocol::GrpcWeb => grpc_web::has_message(headers, body),
        CallProtocol::Grpc | CallProtocol::Http => !body.is_empty(),
    })
}

fn is_call(headers: &HeaderMap) -> bool {
    CallProtocol::from_headers(headers) != CallProtocol::Http
}

/// The status of a call for one of HTTP (`doc/http-grpc-status-mapping.md`).
fn mapped(status: StatusCode) -> GrpcStatus {
    match status.as_u16() {
        400 => GrpcStatus::Internal,
        401 => GrpcStatus::Unauthenticated,
        403 => GrpcStatus::PermissionDenied,
        404 => GrpcStatus::Unimplemented,
        429 | 502..=504 => GrpcStatus::Unavailable,
        _ => GrpcStatus::Unknown,
    }
}

/// The status of a response by its own media type, where its request is not at hand.
pub fn answered_status(response: &StoredResponse) -> ServiceStatus {
    service_status(CallProtocol::from_headers(&response.headers), response)
}

/// The status of a response whose end is still to come, as far as its head shows it: a call with a message counts as
/// `OK` until its trailers.
pub fn status_in_head(protocol: CallProtocol, status: StatusCode, headers: &HeaderMap) -> ServiceStatus {
    if protocol == CallProtocol::Http || status != StatusCode::OK {
        return ServiceStatus::Http(status);
    }
    ServiceStatus::Grpc(headers.get(STATUS).and_then(read_status).unwrap_or(GrpcStatus::Ok))
}

/// Moves the status of a stored response behind its message, where a client looks for it: people and services report a
/// response without trailers.
pub fn move_status_behind_message(response: &mut StoredResponse) {
    let has_message = response.body.as_ref().is_some_and(|body| !body.is_empty());
    if !has_message || !response.trailers.is_empty() || !response.headers.contains_key(STATUS) {
        return;
    }
    let of_status = [STATUS, MESSAGE, STATUS_DETAILS];
    let found = of_status.iter().filter_map(|name| Some((name.clone(), response.headers.get(name)?.clone())));
    response.trailers = found.collect();
    fields::remove(&mut response.headers, |name| of_status.contains(name));
}

fn read_status(value: &HeaderValue) -> Option<GrpcStatus> {
    GrpcStatus::from_code(value.as_bytes())
}

/// Builds the refusal of a gRPC call: a response without a message, so that a client's retry policy acts on it.
pub fn refusal_response(refusal: &Refusal) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(STATUS, HeaderValue::from(u16::from(refusal.row().grpc.code())));
    headers.insert(MESSAGE, encode_message(&format!("{}: {}", refusal.slug(), refusal.detail())));
    refusal.add_fields(headers);
    if let Some(pushback) = retry_pushback(refusal) {
        headers.insert(RETRY_PUSHBACK, pushback);
    }
    response
}

/// The pause before a retry, or `-1` where the call must not be sent again. Without it, the client's policy decides.
fn retry_pushback(refusal: &Refusal) -> Option<HeaderValue> {
    if !refusal.invites_retry() {
        return Some(HeaderValue::from_static("-1"));
    }
    refusal.row().retry_after.map(|wait| HeaderValue::from(wait.seconds() * 1_000))
}

fn encode_message(message: &str) -> HeaderValue {
    let encoded = utf8_percent_encode(message, NOT_IN_MESSAGES).to_string();
    HeaderValue::try_from(encoded).expect("only visible ASCII and spaces are left")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn status(status: Option<&'static str>) -> HeaderMap {
        status.map(|status| (STATUS, HeaderValue::from_static(status))).into_iter().collect()
    }

    fn response(head: Option<&'static str>, body: &'static str, trailers: Option<&'static str>) -> StoredResponse {
        let body = Some(Bytes::from_static(body.as_bytes()));
        StoredResponse { status: StatusCode::OK, headers: status(head), body, trailers: status(trailers) }
    }

    #[test]
    fn the_status_of_a_call_is_clear_where_all_that_says_it_agrees() {
        let [ok, aborted] = [GrpcStatus::Ok, GrpcStatus::Aborted].map(ServiceStatus::Grpc);
        let unclear = ServiceStatus::GrpcUnclear;
        for (head, body, trailers, status) in [
            (None, "message", &["0"][..], ok),
            (None, "", &["10"], aborted),
            (Some("10"), "", &[], aborted),
            (Some("10"), "", &["10", "10"], aborted),
            (Some("10"), "message", &["10"], aborted),
            (Some("0"), "", &["10"], unclear),
            (Some("10"), "message", &["0"], unclear),
            (Some("0"), "message", &[], unclear),
            (None, "message", &["10", "0"], unclear),
            (None, "", &["0", "10"], unclear),
            (None, "", &["10", "x"], unclear),
            (None, "message", &[], unclear),
            (None, "", &[], unclear),
            (None, "", &["x"], unclear),
        ] {
            let mut response = response(head, body, None);
            for value in trailers {
                response.trailers.append(STATUS, HeaderValue::from_static(value));
            }
            assert_eq!(service_status(CallProtocol::Grpc, &response), status, "{head:?} {body} {trailers:?}");
        }
        assert_eq!(service_status(CallProtocol::Http, &response(Some("10"), "", None)), StatusCode::OK.into());
    }

    #[test]
    fn a_status_of_http_decides_alone_or_with_the_status_of_the_call_that_it_stands_for() {
        let call = "application/grpc";
        for (status, kind, head, body, trailers, expected) in [
            (503, "text/html", None, "<html>", None, Some(503)),
            (503, call, None, "", None, Some(503)),
            (503, call, Some("14"), "", None, Some(503)),
            (401, call, None, "", Some("16"), Some(401)),
            (502, call, Some("14"), "", None, Some(502)),
            (503, call, Some("0"), "", None, None),
            (503, call, Some("16"), "", None, None),
            (503, call, None, "message", None, None),
            (503, call, None, "message", Some("14"), None),
            (401, call, None, "message", Some("0"), None),
        ] {
            let mut response = response(head, body, trailers);
            response.status = StatusCode::from_u16(status).unwrap();
            response.headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            let expected =
                expected.map_or(ServiceStatus::GrpcUnclear, |code| StatusCode::from_u16(code).unwrap().into());
            let found = service_status(CallProtocol::Grpc, &response);
            assert_eq!(found, expected, "{status} {kind} {head:?} {body} {trailers:?}");
        }
    }

    #[test]
    fn only_a_status_in_front_of_a_message_moves_behind_it() {
        let moved = |mut response: StoredResponse| {
            move_status_behind_message(&mut response);
            response
        };
        assert_eq!(moved(response(Some("0"), "message", None)), response(None, "message", Some("0")));
        for stays in [
            response(Some("5"), "", None),
            response(None, "message", Some("0")),
            response(Some("0"), "message", Some("5")),
            response(None, "message", None),
        ] {
            assert_eq!(moved(stays.clone()), stays);
        }
    }

    #[test]
    fn the_documents_have_the_status_and_the_pushback_of_each_refusal() {
        let page = include_str!("../../../../docs/grpc.md");
        for refusal in Refusal::ALL {
            let pushback = match retry_pushback(&refusal) {
                None => "none",
                Some(value) if value == "-1" => "-1",
                Some(_) => "`Retry-After` in ms",
            };
            let (slug, end) = (refusal.slug(), format!("| `{}` | {pushback} |", refusal.row().grpc.name()));
            let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| ") && line.contains(slug)).collect();
            assert!(rows.len() == 1 && rows[0].ends_with(&end), "{slug} {end}: {rows:?}");
        }
    }

    #[test]
    fn only_a_refusal_that_invites_a_retry_is_unavailable() {
        for refusal in Refusal::ALL {
            let is_unavailable = refusal.row().grpc == GrpcStatus::Unavailable;
            let is_limit = matches!(refusal, Refusal::TooManyKeys(_));
            assert_eq!(is_unavailable || is_limit, refusal.invites_retry(), "{}", refusal.slug());
        }
    }

    #[test]
    fn a_message_is_percent_encoded_as_utf_8() {
        assert_eq!(encode_message("100 % of caf\u{e9}\r\n~"), "100 %25 of caf%C3%A9%0D%0A~");
    }
}
