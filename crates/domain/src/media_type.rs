//! Media types, as `Content-Type` names them.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

/// The `Content-Type`; empty for none. Services differ about which one of several counts.
pub(crate) fn content_type(headers: &HeaderMap) -> &[u8] {
    let mut lines = headers.get_all(CONTENT_TYPE).iter();
    match (lines.next(), lines.next()) {
        (Some(only), None) => only.as_bytes(),
        _ => b"",
    }
}

/// Whether a `Content-Type` names a media type of JSON: `application/json` or `*/*+json` (RFC 6839 section 3.1).
pub fn is_json(content_type: &[u8]) -> bool {
    let essence = essence(content_type);
    let (kind, suffix) = essence.split_at(essence.len().saturating_sub(5));
    essence.eq_ignore_ascii_case(b"application/json") || suffix.eq_ignore_ascii_case(b"+json") && kind.contains(&b'/')
}

pub fn is_form(content_type: &[u8]) -> bool {
    essence(content_type).eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
}

pub(crate) fn essence(content_type: &[u8]) -> &[u8] {
    content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}
