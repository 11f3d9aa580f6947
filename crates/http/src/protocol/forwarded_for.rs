//! The client's address, as the gateways before Oncegate tell it: `X-Forwarded-For`, and `Forwarded` (RFC 7239).

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};

/// The list of addresses that most gateways append to.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address that a request comes from, as a trusted `peer` tells it.
///
/// Gateways write into one of the two fields, and may let a client's other field pass. Where the fields tell different
/// addresses, one of them may be forged, and the peer's address counts.
pub fn client_address(peer: IpAddr, headers: &HeaderMap, is_trusted: impl Fn(&IpAddr) -> bool) -> IpAddr {
    let lines = |name| headers.get_all(name).iter().rev().map(|line| line.as_bytes());
    let listed = headers.contains_key(X_FORWARDED_FOR).then(|| {
        let members = lines(X_FORWARDED_FOR).flat_map(|line| line.rsplit(|byte| *byte == b','));
        farthest_known(peer, members.map(parse_node), &is_trusted)
    });
    let forwarded = headers.contains_key(FORWARDED).then(|| {
        let elements = lines(FORWARDED).flat_map(|line| rsplit_unquoted(line, b','));
        farthest_known(peer, elements.map(forwarded_for), &is_trusted)
    });
    match (listed, forwarded) {
        (Some(one), Some(other)) if one != other => peer,
        (found, other) => found.or(other).unwrap_or(peer),
    }
}

/// The first address that is not trusted, else the farthest that is known. `hops` begins with the nearest. A hop that
/// names no address ends what is known: a gateway hides its client, or a stranger wrote it and all before it.
fn farthest_known(
    peer: IpAddr,
    hops: impl Iterator<Item = Option<IpAddr>>,
    is_trusted: impl Fn(&IpAddr) -> bool,
) -> IpAddr {
    let mut known = peer;
    for hop in hops {
        let Some(address) = hop else { break };
        known = address;
        if !is_trusted(&address) {
            break;
        }
    }
    known
}

/// The address of a node (RFC 7239 section 6), with or without a port. Also an IPv6 address without brackets, as
/// `X-Forwarded-For` has it. `None` for `unknown`, for an obfuscated name (`_hidden`) and for anything else.
fn parse_node(text: &[u8]) -> Option<IpAddr> {
    let text = unquote(text.trim_ascii());
    let text = str::from_utf8(&text).ok()?;
    let address = if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
            return None;
        }
        // A zone has a meaning on the gateway alone (RFC 4007 section 11).
        address.split('%').next()?.parse::<Ipv6Addr>().ok()?.into()
    } else if let Ok(address) = text.split('%').next()?.parse::<IpAddr>() {
        address
    } else {
        let (address, port) = text.split_once(':')?;
        is_port(port).then_some(())?;
        address.parse::<Ipv4Addr>().ok()?.into()
    };
    Some(address.to_canonical())
}

/// Whether a text is a node's port (RFC 7239 section 6): up to 5 digits, or an obfuscated one.
fn is_port(text: &str) -> bool {
    let is_number = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_hidden = text.strip_prefix('_').is_some_and(|name| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    });
    is_number || is_hidden
}

/// The address in an element of `Forwarded` (RFC 7239 section 4): that of its only `for`.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut nodes = rsplit_unquoted(element, b';').filter_map(|pair| {
        let at = memchr::memchr(b'=', pair)?;
        pair[..at].trim_ascii().eq_ignore_ascii_case(b"for").then_some(&pair[at + 1..])
    });
    match (nodes.next(), nodes.next()) {
        (Some(node), None) => parse_node(node),
        _ => None,
    }
}

/// Splits at a separator that is not in quotes, from the right: the left part may be a stranger's, with an open quote.
fn rsplit_unquoted(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let mut quoted = false;
        for at in (0..text.len()).rev() {
            match text[at] {
                b'"' if !is_escaped(text, at) => quoted = !quoted,
                byte if byte == separator && !quoted => {
                    rest = Some(&text[..at]);
                    return Some(&text[at + 1..]);
                }
                _ => {}
            }
        }
        rest = None;
        Some(text)
    })
}

/// Whether the byte at this place follows an odd number of backslashes.
fn is_escaped(text: &[u8], at: usize) -> bool {
    text[..at].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The value of a quoted string (RFC 9110 section 5.6.4), or the text itself.
fn unquote(text: &[u8]) -> Cow<'_, [u8]> {
    let Some(inner) = text.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) else { return text.into() };
    let mut value = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(byte) = bytes.next() {
        value.extend(if *byte == b'\\' { bytes.next() } else { Some(byte) });
    }
    value.into()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// RFC 7239 section 6, and the spellings of gateways.
    #[test]
    fn a_node_is_an_address_with_or_without_a_port() {
        for (node, expected) in [
            ("203.0.113.7", Some("203.0.113.7")),
            (" 203.0.113.7\t", Some("203.0.113.7")),
            ("203.0.113.7:4711", Some("203.0.113.7")),
            ("203.0.113.7:_http", Some("203.0.113.7")),
            ("\"203.0.113.7:4711\"", Some("203.0.113.7")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("[2001:db8::1]:4711", Some("2001:db8::1")),
            ("[2001:db8::1]:_http", Some("2001:db8::1")),
            ("\"[2001:db8::1]:4711\"", Some("2001:db8::1")),
            ("\"[2001:db8::\\1]\"", Some("2001:db8::1")),
            ("fe80::1%eth0", Some("fe80::1")),
            ("[fe80::1%25eth0]:1", Some("fe80::1")),
            ("::ffff:203.0.113.7", Some("203.0.113.7")),
            ("[::ffff:203.0.113.7]:4711", Some("203.0.113.7")),
            ("unknown", None),
            ("unknown:4711", None),
            ("_hidden", None),
            ("_SEVKISEK:4711", None),
            ("203.0.113.7:", None),
            ("203.0.113.7:http", None),
            ("203.0.113.7:123456", None),
            ("203.0.113.7:1:2", None),
            ("203.0.113", None),
            ("[203.0.113.7]", None),
            ("[2001:db8::1", None),
            ("[2001:db8::1]4711", None),
            ("[2001:db8::1]:", None),
            ("localhost", None),
            ("\"", None),
            ("", None),
        ] {
            assert_eq!(parse_node(node.as_bytes()), expected.map(address), "{node:?}");
        }
    }

    #[test]
    fn the_nearest_hop_that_is_not_trusted_is_the_client() {
        let (listed, forwarded) = ("x-forwarded-for", "forwarded");
        for (fields, expected) in [
            (&[][..], "10.0.0.1"),
            (&[(listed, "203.0.113.7")], "203.0.113.7"),
            (&[(listed, "203.0.113.7:4711")], "203.0.113.7"),
            (&[(listed, "[2001:db8::1]:4711")], "2001:db8::1"),
            (&[(listed, "198.51.100.1, 203.0.113.7:1, 10.0.0.2:2")], "203.0.113.7"),
            (&[(listed, "198.51.100.1"), (listed, "203.0.113.7"), (listed, "10.0.0.2")], "203.0.113.7"),
            // A hop that names no address: its writer is the last one that is known.
            (&[(listed, "unknown")], "10.0.0.1"),
            (&[(listed, "203.0.113.7, unknown, 10.0.0.2")], "10.0.0.2"),
            (&[(listed, "203.0.113.7, _hidden")], "10.0.0.1"),
            (&[(listed, "10.0.0.3, 10.0.0.2")], "10.0.0.3"),
            (&[(listed, "")], "10.0.0.1"),
            (&[(forwarded, "for=203.0.113.7")], "203.0.113.7"),
            (&[(forwarded, "For=\"[2001:db8::1]:4711\";proto=https;by=10.0.0.1")], "2001:db8::1"),
            (&[(forwarded, "for=198.51.100.1, for=203.0.113.7;host=\"a,b;for=1.2.3.4\", for=10.0.0.2")], "203.0.113.7"),
            (&[(forwarded, "for=198.51.100.1"), (forwarded, "proto=http; for=\"203.0.113.7:_p\"")], "203.0.113.7"),
            // What a stranger wrote does not spoil what follows it.
            (&[(forwarded, "for=\"x, for=203.0.113.7")], "203.0.113.7"),
            (&[(forwarded, "for=\"a\\\", for=203.0.113.7;host=\"a\\\"b\"")], "203.0.113.7"),
            (&[(forwarded, "for=unknown")], "10.0.0.1"),
            (&[(forwarded, "for=_SEVKISEK, for=10.0.0.2")], "10.0.0.2"),
            (&[(forwarded, "proto=https")], "10.0.0.1"),
            (&[(forwarded, "for=203.0.113.7;for=203.0.113.8")], "10.0.0.1"),
            (&[(listed, "203.0.113.7"), (forwarded, "for=\"203.0.113.7:1\"")], "203.0.113.7"),
            // One of them is the client's own.
            (&[(listed, "203.0.113.7"), (forwarded, "for=198.51.100.1")], "10.0.0.1"),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, HeaderValue::from_static(value));
            }
            let is_trusted = |address: &IpAddr| address.to_string().starts_with("10.");
            assert_eq!(client_address(address("10.0.0.1"), &headers, is_trusted), address(expected), "{fields:?}");
        }
    }
}
