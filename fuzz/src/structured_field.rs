//! Header fields with a structure: what Oncegate reads from them, and what it passes on.

use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, HeaderName, HeaderValue, Version};
use oncegate_domain::recovery::RecoveryPoint;
use oncegate_http::protocol::directives::ServiceDirectives;
use oncegate_http::protocol::fields::{self, RequestOrigin};
use oncegate_http::protocol::prefer;

use super::bytes_reader::BytesReader;

/// The fields that are read or removed. A line of the input begins with a letter for one of them, or is a whole field.
const NAMES: [&str; 20] = [
    "connection",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "oncegate-attempt",
    "oncegate-decision",
    "oncegate-sealed",
    "oncegate-status",
    "oncegate-ttl",
    "oncegate_attempt",
    "prefer",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-for",
    "x-forwarded-host",
    "x_forwarded_for",
];

/// Checks a list of fields, one in each line:
///
/// - a request that goes on to a service has no hop-by-hop field, none that `Connection` names and none of Oncegate's;
/// - a response that is stored has none either;
/// - the preferences that Oncegate applies are not passed on, and the others are;
/// - only a trusted peer names another address than its own;
/// - a recovery point is a field's value.
pub fn check(input: &[u8]) {
    let headers = read_fields(input);
    check_request(&headers);
    check_response(&headers);
    check_preferences(&headers);
    ServiceDirectives::parse(&headers);
    for value in headers.values() {
        if let Some(point) = std::str::from_utf8(value.as_bytes()).ok().and_then(RecoveryPoint::parse) {
            assert!(point.as_str().bytes().all(|byte| byte.is_ascii_graphic()));
        }
    }
}

fn read_fields(input: &[u8]) -> HeaderMap {
    let (mut input, mut headers) = (BytesReader::new(input), HeaderMap::new());
    while !input.is_empty() {
        let line = input.line();
        let (name, value) = match line {
            [letter @ b'a'..=b't', b' ', value @ ..] => (NAMES[usize::from(letter - b'a')].as_bytes(), value),
            line => {
                let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
                (&line[..colon], line.get(colon + 1..).unwrap_or_default())
            }
        };
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    headers
}

/// The names that `Connection` lists, in lower case.
fn named_by_connection(headers: &HeaderMap) -> Vec<Vec<u8>> {
    let lists = headers.get_all("connection");
    let members = lists.iter().flat_map(|list| list.as_bytes().split(|byte| *byte == b','));
    members.map(|name| name.trim_ascii().to_ascii_lowercase()).collect()
}

const HOP_BY_HOP: [&str; 6] =
    ["connection", "keep-alive", "proxy-connection", "trailer", "transfer-encoding", "upgrade"];

/// The fields that tell a service about its attempt.
const FROM_ONCEGATE: [&str; 3] = ["oncegate-attempt", "oncegate-recovery-point", "oncegate-reservation"];

fn check_request(headers: &HeaderMap) {
    let peer = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    for trusted in [false, true] {
        let origin =
            RequestOrigin { peer, trusted, host: None, version: Version::HTTP_11, secure: false, certificate: None };
        let mut passed = headers.clone();
        fields::prepare_for_service(&mut passed, &origin, |_| false);
        // The forwarding fields and `TE: trailers` are set anew.
        let named = named_by_connection(headers);
        for name in passed.keys().map(HeaderName::as_str) {
            let is_set = name == "te" || name == "via" || name == "forwarded" || name.starts_with("x-forwarded-");
            assert!(is_set || !named.contains(&name.as_bytes().to_vec()), "{name} is passed on");
            assert!(!HOP_BY_HOP.contains(&name), "{name} is passed on");
            assert!(!FROM_ONCEGATE.contains(&&*name.replace('_', "-")), "{name} is passed on");
            assert!(!name.contains('_') || !name.replace('_', "-").starts_with("x-forwarded-"), "{name} is passed on");
        }
        assert!(passed.get_all("te").iter().all(|te| te == "trailers"));
        let address = origin.client_address(headers, |_| false);
        assert!(trusted || (address == peer && origin.untrusted_peer() == Some(peer)));
    }
}

fn check_response(headers: &HeaderMap) {
    let mut stored = headers.clone();
    fields::prepare_for_client(&mut stored);
    let named = named_by_connection(headers);
    for name in stored.keys().map(HeaderName::as_str) {
        assert!(!HOP_BY_HOP.contains(&name) && name != "content-length", "{name} is stored");
        assert!(!named.contains(&name.as_bytes().to_vec()), "{name} is stored");
        assert!(!["oncegate-sealed", "oncegate-status", "oncegate-decision", "oncegate-ttl"].contains(&name));
    }
    let once = stored.clone();
    fields::prepare_for_client(&mut stored);
    assert_eq!(stored, once);
}

fn check_preferences(headers: &HeaderMap) {
    let left = prefer::without_applied(headers);
    assert_eq!(prefer::wait_preference(&left), None);
    assert!(!prefer::prefers_async(&left));
    assert_eq!(prefer::without_applied(&left), left);
    let without = |headers: &HeaderMap| {
        let mut headers = headers.clone();
        headers.remove("prefer");
        headers
    };
    assert_eq!(without(&left), without(headers));
}

/// Whether a text is the rest of an Item behind its value: parameters and spaces (RFC 9651, sections 4.2 and 4.2.3.2).
pub fn are_parameters(mut rest: &[u8]) -> bool {
    while let Some(parameter) = rest.strip_prefix(b";") {
        let parameter = skip(parameter, |byte| byte == b' ');
        let Some(b'a'..=b'z' | b'*') = parameter.first() else { return false };
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte);
        rest = skip(parameter, is_name);
        if let Some(value) = rest.strip_prefix(b"=") {
            let Some(after) = after_bare_item(value) else { return false };
            rest = after;
        }
    }
    skip(rest, |byte| byte == b' ').is_empty()
}

fn skip(text: &[u8], is_skipped: impl Fn(u8) -> bool) -> &[u8] {
    &text[text.iter().position(|byte| !is_skipped(*byte)).unwrap_or(text.len())..]
}

/// The text after a bare item (RFC 9651, section 4.2.3.1); `None` if there is none.
fn after_bare_item(text: &[u8]) -> Option<&[u8]> {
    match text {
        [b'-' | b'0'..=b'9', ..] => after_number(text),
        [b'"', rest @ ..] => after_string(rest),
        [b'*' | b'a'..=b'z' | b'A'..=b'Z', ..] => {
            Some(skip(text, |byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)))
        }
        [b':', rest @ ..] => after_bytes(rest),
        [b'?', b'0' | b'1', rest @ ..] => Some(rest),
        [b'@', rest @ ..] => after_number(rest).filter(|after| !rest[..rest.len() - after.len()].contains(&b'.')),
        [b'%', b'"', rest @ ..] => after_display_string(rest),
        _ => None,
    }
}

fn after_number(text: &[u8]) -> Option<&[u8]> {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let after_whole = skip(text, |byte| byte.is_ascii_digit());
    let whole = text.len() - after_whole.len();
    match after_whole.strip_prefix(b".") {
        None => (1..=15).contains(&whole).then_some(after_whole),
        Some(fraction) => {
            let after = skip(fraction, |byte| byte.is_ascii_digit());
            let digits = fraction.len() - after.len();
            ((1..=12).contains(&whole) && (1..=3).contains(&digits)).then_some(after)
        }
    }
}

fn after_string(mut text: &[u8]) -> Option<&[u8]> {
    loop {
        text = match text {
            [b'"', after @ ..] => return Some(after),
            [b'\\', b'"' | b'\\', after @ ..] => after,
            [byte, after @ ..] if (0x20..0x7f).contains(byte) && *byte != b'\\' => after,
            _ => return None,
        };
    }
}

/// Base64, whose padding may be shorter than it should be (RFC 9651, section 4.2.7).
fn after_bytes(text: &[u8]) -> Option<&[u8]> {
    let end = text.iter().position(|byte| *byte == b':')?;
    let data = skip(&text[..end], |byte| byte.is_ascii_alphanumeric() || b"+/".contains(&byte));
    let padding_max = [0, 0, 2, 1][(end - data.len()) % 4];
    let is_whole = (end - data.len()) % 4 != 1 && data.len() <= padding_max && data.iter().all(|byte| *byte == b'=');
    is_whole.then(|| &text[end + 1..])
}

fn after_display_string(mut text: &[u8]) -> Option<&[u8]> {
    let mut decoded = Vec::new();
    loop {
        let (byte, after) = match text {
            [b'"', after @ ..] => return std::str::from_utf8(&decoded).ok().map(|_| after),
            [b'%', digits @ ..] => {
                let (digits, after) = digits.split_at_checked(2)?;
                let is_lower = digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
                let digits = std::str::from_utf8(digits).ok().filter(|_| is_lower)?;
                (u8::from_str_radix(digits, 16).ok()?, after)
            }
            [byte @ 0x20..=0x7e, after @ ..] => (*byte, after),
            _ => return None,
        };
        decoded.push(byte);
        text = after;
    }
}
