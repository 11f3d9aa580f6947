//! Parsers of values that several tables have. The error of each is the problem, beginning with a verb.

use std::net::SocketAddr;
use std::sync::Arc;

use canonical_json::Pointer;
use http::HeaderName;

use super::reader::Section;
use oncegate_settings::UpstreamTarget;

/// Parses an address and port.
pub(super) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "is no address and port: write `127.0.0.1:8080`, `[::1]:8080`, or `0.0.0.0:8080` for every interface".into()
    })
}

/// Parses the name of a header field.
pub(super) fn header_name(text: &str) -> Result<HeaderName, String> {
    text.parse().map_err(|_| "is no name of a field: write one like `X-Request-Id`".into())
}

/// Parses a name of 1 to `longest` of these characters. `wrong` is the problem.
pub(super) fn name<T: for<'a> From<&'a str>>(
    text: &str,
    longest: usize,
    is_allowed: fn(u8) -> bool,
    wrong: &str,
) -> Result<T, String> {
    match (1..=longest).contains(&text.len()) && text.bytes().all(is_allowed) {
        true => Ok(text.into()),
        false => Err(wrong.into()),
    }
}

/// Whether a character is a letter, a digit, `_`, `.` or `-`.
pub(super) fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)
}

/// Whether it is one of these, and no capital letter.
pub(super) fn is_of_lower_name(byte: u8) -> bool {
    is_of_name(byte) && !byte.is_ascii_uppercase()
}

/// Takes any text but an empty one, whose problem is `empty`.
pub(super) fn not_empty<T: for<'a> From<&'a str>>(text: &str, empty: &str) -> Result<T, String> {
    if text.is_empty() { Err(empty.into()) } else { Ok(text.into()) }
}

/// Whether a field is of the connection or of a message's framing.
pub(super) fn is_of_connection(name: &HeaderName) -> bool {
    let fields =
        ["connection", "content-length", "expect", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];
    fields.contains(&name.as_str())
}

/// Parses a JSON Pointer (RFC 6901).
pub(super) fn json_pointer(text: &str) -> Result<Pointer, String> {
    Pointer::parse(text).map_err(|_| "is no JSON Pointer: write one like `/order/id`, `~1` for a `/` in a name".into())
}

/// A listener of the proxy itself: its key, and its address.
pub(super) type OwnListener = (&'static str, SocketAddr);

/// Reads `upstream`, the URL of a service. A problem never shows the text, which may hold a password. No service is one
/// of the proxy's own listeners.
pub(super) fn read_upstream(section: &Section<'_>, listeners: &[OwnListener]) -> Option<Arc<UpstreamTarget>> {
    section.required("upstream", |text| {
        let upstream = UpstreamTarget::parse(text)?;
        match listeners.iter().find(|(_, address)| upstream.leads_to(*address)) {
            Some((key, address)) => {
                Err(format!("leads back to this proxy's own `{key}`, {address}: write the address of the service"))
            }
            None => Ok(Arc::new(upstream)),
        }
    })
}
