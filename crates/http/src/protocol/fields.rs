//! Header fields of forwarded messages: removes hop-by-hop and forged Oncegate fields, and adds forwarding fields.

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, FORWARDED, HOST, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, Version};

use super::forwarded_for::{self, X_FORWARDED_FOR};
use super::via;
use oncegate_trust::tls::CertificateName;

/// The field that marks a replay; no other answer has it.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// The field with Oncegate's part in the answer; see [`OncegateStatus`](super::status::OncegateStatus).
pub const ONCEGATE_STATUS: HeaderName = HeaderName::from_static("oncegate-status");
/// The time until which the response is replayed.
pub const KEY_EXPIRES: HeaderName = HeaderName::from_static("idempotency-key-expires");
/// The `Date` of the response that is replayed.
pub const ORIGINAL_DATE: HeaderName = HeaderName::from_static("oncegate-original-date");
/// The service's directive that overrules the status table for one response: `store`, `release` or `unknown`.
pub const DECISION: HeaderName = HeaderName::from_static("oncegate-decision");
/// The service's directive that sets the TTL of one response.
pub const TTL: HeaderName = HeaderName::from_static("oncegate-ttl");
/// The attempt's token, for the service behind.
pub const RESERVATION: HeaderName = HeaderName::from_static("oncegate-reservation");
/// The attempt's number, for the service behind.
pub const ATTEMPT: HeaderName = HeaderName::from_static("oncegate-attempt");
/// The recovery point that an earlier attempt has reached, for the service behind.
pub const RECOVERY_POINT: HeaderName = HeaderName::from_static("oncegate-recovery-point");

/// The digest of the content of one message (RFC 9530 section 2).
pub const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");
/// A client's confirmation that a request is not a retry of the one with this record.
pub const CONFIRM: HeaderName = HeaderName::from_static("oncegate-confirm");
/// The record of an equal request, in the refusal of a request that may be a retry of it.
pub const DUPLICATE_OF: HeaderName = HeaderName::from_static("oncegate-duplicate-of");

/// The host that the client has sent its request to.
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// The hop-by-hop fields (RFC 9110 section 7.6.1), besides those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 11] = [
    CONNECTION,
    HTTP2_SETTINGS,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    // Oncegate answers it when it reads the body; the service gets the body without it.
    EXPECT,
];

/// Fields by which gateways tell a service another target than the request's own. Only a trusted peer is a gateway.
const REWRITTEN_TARGET: [HeaderName; 2] =
    [HeaderName::from_static("x-original-url"), HeaderName::from_static("x-rewrite-url")];

/// Fields by which some services take another method than the request's own.
pub static METHOD_OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
];

/// The beginnings of fields that only Oncegate sets.
const OWN_PREFIXES: [&str; 2] = [OWN_PREFIX, "x-forwarded-"];

/// Other fields with a hyphen that Oncegate sets or reads on every route.
const OWN_NAMES: [&str; 8] = [
    "accept-encoding",
    "content-encoding",
    "content-length",
    "content-type",
    "idempotency-key",
    "repeatability-first-sent",
    "x-api-key",
    "x-idempotency-key",
];

/// Other fields that no trailer may have (RFC 9110 section 6.5.1): those for routing, authentication and conditions,
/// and those that say how the message is handled. A recipient that merges trailers into the header fields would take
/// them for the request's own.
const NOT_IN_TRAILERS: [&str; 16] = [
    "authorization",
    "cache-control",
    "content-range",
    "cookie",
    "forwarded",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "max-forwards",
    "pragma",
    "range",
    "set-cookie",
    "via",
];

/// The fields that only Oncegate may send to the service, and one that a client sends to Oncegate alone.
const TO_SERVICE: [HeaderName; 4] = [RESERVATION, ATTEMPT, CONFIRM, RECOVERY_POINT];

/// The beginning of the fields of Oncegate. From a service they are forged, its directives, which are for Oncegate
/// alone, or the echo of a request's.
const OWN_PREFIX: &str = "oncegate-";

/// The other fields that only Oncegate sends to a client.
const TO_CLIENT: [HeaderName; 2] = [IDEMPOTENT_REPLAYED, KEY_EXPIRES];

/// Fields that describe the moment of an answer, so that they would be wrong on a replay.
const MOMENTARY: [&str; 4] = ["age", "alt-svc", "server-timing", "traceparent"];
const MOMENTARY_PREFIX: &str = "ratelimit";

/// Returns the field names that `Connection` lists.
pub fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|name| !name.is_empty())
}

/// Returns the names that `Connection` lists, to look up each field of a message: a client can list 30,000.
pub fn connection_names(headers: &HeaderMap) -> HashSet<HeaderName> {
    connection_options(headers).filter_map(|name| HeaderName::from_bytes(name).ok()).collect()
}

/// Whether `Connection` lists a field that must not be removed: one of `guarded`, or one for the host, the caller or
/// the end of the body.
pub fn connection_lists_any(headers: &HeaderMap, guarded: &[&HeaderName]) -> bool {
    let framing = [&HOST, &CONTENT_LENGTH, &TRANSFER_ENCODING, &http::header::AUTHORIZATION];
    connection_options(headers)
        .any(|name| framing.iter().chain(guarded).any(|field| field.as_str().as_bytes().eq_ignore_ascii_case(name)))
}

/// Removes the hop-by-hop fields, and those that `is_ours` names.
fn strip_hop_by_hop(headers: &mut HeaderMap, is_ours: impl Fn(&HeaderName) -> bool) {
    let named = connection_names(headers);
    remove(headers, |name| HOP_BY_HOP.contains(name) || named.contains(name) || is_ours(name));
}

/// Whether a field is spelled with `_` where a field of ours has `-`. Services with a CGI-like interface (WSGI, Rack,
/// PHP) read both as the same field, and would take the client's word for Oncegate's. `is_read` tells which other
/// fields Oncegate reads for this request.
pub fn is_misspelled(name: &str, is_read: impl Fn(&str) -> bool) -> bool {
    hyphenated(name).is_some_and(|hyphenated| !is_read(name) && (is_ours(&hyphenated) || is_read(&hyphenated)))
}

/// The name with `-` for `_`; `None` for a name without `_`.
fn hyphenated(name: &str) -> Option<String> {
    memchr::memchr(b'_', name.as_bytes()).map(|_| name.replace('_', "-"))
}

/// Whether Oncegate sets, reads on every route or removes the field of this name.
fn is_ours(name: &str) -> bool {
    let is_one_of = |names: &[HeaderName]| names.iter().any(|field| *field == *name);
    OWN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || OWN_NAMES.contains(&name)
        || is_one_of(&HOP_BY_HOP)
        || is_one_of(&METHOD_OVERRIDES)
        || is_one_of(&REWRITTEN_TARGET)
}

/// Returns the first field with a value whose name has `_` where a field that `is_wanted` names has `-`.
pub fn find_misspelled(headers: &HeaderMap, is_wanted: impl Fn(&str) -> bool) -> Option<&HeaderName> {
    let is_misspelled = |name: &str| hyphenated(name).is_some_and(|right| !is_wanted(name) && is_wanted(&right));
    let found = headers.iter().find(|(name, value)| !value.is_empty() && is_misspelled(name.as_str()));
    found.map(|(name, _)| name)
}

/// Whether only Oncegate sends a field of this name to a client, also with `_` for `-`.
fn is_only_ours(name: &HeaderName) -> bool {
    is_named(name, |name| name.starts_with(OWN_PREFIX) || TO_CLIENT.iter().any(|own| *own == *name))
}

fn is_named(name: &HeaderName, is_wanted: impl Fn(&str) -> bool) -> bool {
    is_wanted(name.as_str()) || hyphenated(name.as_str()).is_some_and(|name| is_wanted(&name))
}

/// Removes fields and keeps the order of the others. The map's own `remove` moves the last field to the place of the
/// removed one.
pub fn remove(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    if !headers.keys().any(&is_removed) {
        return;
    }
    let mut kept = HeaderMap::with_capacity(headers.keys_len());
    let mut current = None;
    for (name, value) in headers.drain() {
        // Only the first value of a field comes with its name.
        current = name.or(current);
        if let Some(name) = current.as_ref().filter(|name| !is_removed(name)) {
            kept.append(name.clone(), value);
        }
    }
    *headers = kept;
}

/// The fields that a request gets on its way to the service: four of forwarding, `Via`, `Host`, the coding, and three
/// of its attempt.
const ADDED_MAX: usize = 10;

/// Prepares a request's fields for the upstream: removes hop-by-hop fields and forged Oncegate fields, adds forwarding
/// fields. Also removes fields that are spelled like ours: see [`is_misspelled`]. `Content-Length` stays: the upstream
/// client sets the framing.
pub fn prepare_for_service(headers: &mut HeaderMap, origin: &RequestOrigin, is_read: impl Fn(&str) -> bool) {
    let trailers = accepts_trailers(headers);
    strip_hop_by_hop(headers, |name| {
        TO_SERVICE.contains(name)
            || (!origin.trusted && REWRITTEN_TARGET.contains(name))
            || is_misspelled(name.as_str(), &is_read)
    });
    // Once: a table that grows hashes each name anew.
    headers.reserve(ADDED_MAX);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(host) = &origin.host {
        headers.insert(HOST, host.clone());
    }
    add_forwarding(headers, origin);
}

/// Prepares the fields for another's host: it gets its own name, and learns nothing of who stands before it.
pub fn prepare_for_vendor(headers: &mut HeaderMap, host: &str) {
    remove(headers, |name| {
        let name = name.as_str();
        name.starts_with("x-forwarded-")
            || ["forwarded", "via", "x-real-ip", "traceparent", "tracestate", "baggage"].contains(&name)
    });
    headers.insert(HOST, HeaderValue::from_str(host).expect("a host is visible ASCII"));
}

/// Prepares the fields of a request whose body streams, like [`prepare_for_service`]. Keeps the announcement of
/// trailers, of those that [`prepare_trailers`] lets pass: HTTP/1.1 sends no others.
pub fn prepare_streaming(headers: &mut HeaderMap, origin: &RequestOrigin, is_read: impl Fn(&str) -> bool) {
    let may_pass = |name: &HeaderName| may_be_trailer(name.as_str(), &is_read);
    let announced = may_have_trailers(headers, origin).then(|| announced_trailers(headers, may_pass)).flatten();
    prepare_for_service(headers, origin, is_read);
    if let Some(announced) = announced {
        headers.insert(TRAILER, announced);
    }
}

/// Whether trailers can follow the body of a request with these fields, as its client has sent them.
pub fn may_have_trailers(headers: &HeaderMap, origin: &RequestOrigin) -> bool {
    origin.version == Version::HTTP_2 || headers.contains_key(TRANSFER_ENCODING)
}

fn announced_trailers(headers: &HeaderMap, may_pass: impl Fn(&HeaderName) -> bool) -> Option<HeaderValue> {
    let mut announced = String::new();
    for name in headers.get_all(TRAILER).iter().flat_map(|names| names.as_bytes().split(|byte| *byte == b',')) {
        let Ok(name) = HeaderName::from_bytes(name.trim_ascii()) else { continue };
        if may_pass(&name) {
            let separator = if announced.is_empty() { "" } else { ", " };
            announced.extend([separator, name.as_str()]);
        }
    }
    (!announced.is_empty()).then(|| HeaderValue::try_from(announced).expect("names are tokens"))
}

/// Prepares the trailers of a request for the service: removes those that a service must not take for header fields,
/// also with `_` for `-`. `is_read` tells which other fields Oncegate reads for this request.
pub fn prepare_trailers(trailers: &mut HeaderMap, is_read: impl Fn(&str) -> bool) {
    remove(trailers, |name| !may_be_trailer(name.as_str(), &is_read));
}

fn may_be_trailer(name: &str, is_read: impl Fn(&str) -> bool) -> bool {
    let hyphenated = hyphenated(name);
    let hyphenated = hyphenated.as_deref().unwrap_or(name);
    !(NOT_IN_TRAILERS.contains(&hyphenated) || is_ours(hyphenated) || is_read(name) || is_read(hyphenated))
}

/// Returns the host that the client has sent its request to, as the service gets it.
pub fn forwarded_host<'a>(headers: &'a HeaderMap, origin: &'a RequestOrigin) -> Option<&'a HeaderValue> {
    headers.get(X_FORWARDED_HOST).filter(|_| origin.trusted).or(origin.host.as_ref())
}

/// Requests an uncompressed body: every later caller must be able to read it, whatever this one accepts.
pub fn request_identity_encoding(headers: &mut HeaderMap) {
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// Prepares a response's fields for the store and the client: removes hop-by-hop fields, forged Oncegate fields and the
/// length, which is set from the body that is sent.
pub fn prepare_for_client(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers, |name| is_only_ours(name) || is_named(name, |name| CONTENT_LENGTH == *name));
}

/// Prepares the fields of a response that passes through unchanged: like [`prepare_for_client`], but its length stays,
/// and the announcement of trailers that [`prepare_passing_trailers`] lets pass if the client accepts them.
pub fn prepare_pass_through(headers: &mut HeaderMap, accepts_trailers: bool) {
    let announced = accepts_trailers.then(|| announced_trailers(headers, |name| !is_only_ours(name))).flatten();
    strip_hop_by_hop(headers, is_only_ours);
    if let Some(announced) = announced {
        headers.insert(TRAILER, announced);
    }
}

pub fn prepare_passing_trailers(trailers: &mut HeaderMap) {
    strip_hop_by_hop(trailers, is_only_ours);
}

/// Whether a field describes the moment of an answer, so that it would be wrong on a replay.
pub fn is_momentary(name: &HeaderName) -> bool {
    let name = name.as_str();
    MOMENTARY.contains(&name) || name.starts_with(MOMENTARY_PREFIX)
}

/// Whether a message is of a gRPC call, by its media type: `application/grpc`, also with a format like `+proto`.
/// gRPC-Web is another protocol (`grpc_web.rs`).
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let format = media_type.and_then(|media_type| media_type.strip_prefix(b"application/grpc"));
    format.is_some_and(|format| matches!(format.trim_ascii_start().first(), None | Some(b'+' | b';')))
}

/// Whether the client accepts trailers (RFC 9110 section 6.5.1).
pub fn accepts_trailers(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TE).iter().flat_map(|te| te.as_bytes().split(|byte| *byte == b','));
    codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// The origin of a request: its connection, its protocol and the host that it was sent to.
#[derive(Clone, Debug)]
pub struct RequestOrigin {
    pub peer: IpAddr,
    /// Whether the peer is a trusted proxy, whose forwarding fields are kept.
    pub trusted: bool,
    pub host: Option<HeaderValue>,
    pub version: Version,
    pub secure: bool,
    /// The name in the client's verified certificate, if it has one.
    pub certificate: Option<Arc<CertificateName>>,
}

impl RequestOrigin {
    pub fn untrusted_peer(&self) -> Option<IpAddr> {
        (!self.trusted).then_some(self.peer)
    }

    /// The address that the request comes from: what the trusted gateways before Oncegate say, else the peer's.
    pub fn client_address(&self, headers: &HeaderMap, is_trusted: impl Fn(&IpAddr) -> bool) -> IpAddr {
        if self.trusted { forwarded_for::client_address(self.peer, headers, is_trusted) } else { self.peer }
    }

    fn scheme(&self) -> &'static str {
        if self.secure { "https" } else { "http" }
    }

    /// Returns the host's name without its port and without trailing dots.
    pub fn host_name(&self) -> &str {
        let host = self.host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
        // The colons of an IPv6 address in brackets do not separate a port.
        let name = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => name,
            _ => host,
        };
        name.trim_end_matches('.')
    }
}

/// Adds the forwarding fields for the service. Those of an untrusted peer are dropped: anybody can write them.
fn add_forwarding(headers: &mut HeaderMap, origin: &RequestOrigin) {
    let PreviousHop { address, element } = PreviousHop::from_origin(origin);
    let scheme = HeaderValue::from_static(origin.scheme());
    if origin.trusted {
        append_member(headers, X_FORWARDED_FOR, address);
        append_member(headers, FORWARDED, element);
        headers.entry(X_FORWARDED_PROTO).or_insert(scheme);
        if let Some(host) = &origin.host {
            headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
        }
    } else {
        headers.insert(X_FORWARDED_FOR, address);
        headers.insert(FORWARDED, element);
        headers.insert(X_FORWARDED_PROTO, scheme);
        match &origin.host {
            Some(host) => headers.insert(X_FORWARDED_HOST, host.clone()),
            None => headers.remove(X_FORWARDED_HOST),
        };
    }
    append_member(headers, VIA, via::own_member(origin.version));
}

/// The forwarding values for the hop before us: its address, and its element for `Forwarded` (RFC 7239 section 4).
#[derive(Clone)]
struct PreviousHop {
    address: HeaderValue,
    element: HeaderValue,
}

impl PreviousHop {
    fn from_origin(origin: &RequestOrigin) -> Self {
        type HopOrigin = (IpAddr, bool, Option<HeaderValue>);
        thread_local! {
            /// The values of the last request: the next one mostly has the same origin.
            static LAST: RefCell<Option<(HopOrigin, PreviousHop)>> = const { RefCell::new(None) };
        }
        let RequestOrigin { peer, secure, host, .. } = origin;
        LAST.with_borrow_mut(|last| match last {
            Some((known, hop)) if (&known.0, &known.1, &known.2) == (peer, secure, host) => hop.clone(),
            _ => last.insert(((*peer, *secure, host.clone()), Self::new(origin))).1.clone(),
        })
    }

    fn new(origin: &RequestOrigin) -> Self {
        // RFC 7239 section 6: an IPv6 address is in brackets, and quoted because of the brackets.
        let mut element = match origin.peer {
            IpAddr::V4(address) => format!("for={address}"),
            IpAddr::V6(address) => format!("for=\"[{address}]\""),
        };
        if let Some(host) = origin.host.as_ref().and_then(|host| host.to_str().ok()) {
            element.push_str(&format!(";host=\"{}\"", host.replace(['"', '\\'], "")));
        }
        element.push_str(";proto=");
        element.push_str(origin.scheme());
        let value =
            |text: String| HeaderValue::try_from(text).expect("an address and a field's visible part make a field");
        Self { address: value(origin.peer.to_string()), element: value(element) }
    }
}

/// Appends a member to a list field, whose values become one. Not by `OccupiedEntry::insert_mult`, which panics where
/// there are three values or more (http 1.5).
fn append_member(headers: &mut HeaderMap, name: HeaderName, member: HeaderValue) {
    let mut list: Vec<u8> = Vec::new();
    for value in headers.get_all(&name) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    if list.is_empty() {
        headers.insert(name, member);
        return;
    }
    list.extend_from_slice(member.as_bytes());
    if let Ok(value) = HeaderValue::try_from(list) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn hop_by_hop_fields_are_removed() {
        let mut headers = map(&[
            ("connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("keep-alive", "5"),
            ("te", "gzip"),
            ("upgrade", "h2c"),
            ("content-length", "3"),
            ("x-kept", "1"),
        ]);
        strip_hop_by_hop(&mut headers, |_| false);
        assert_eq!(names(&headers), ["content-length", "x-kept"]);
        prepare_for_client(&mut headers);
        assert_eq!(names(&headers), ["x-kept"]);
    }

    #[test]
    fn the_other_fields_keep_their_order() {
        let mut headers =
            map(&[("x-c", "1"), ("connection", "x-d"), ("x-a", "2"), ("x-d", "0"), ("x-a", "3"), ("x-b", "4")]);
        strip_hop_by_hop(&mut headers, |_| false);
        let left: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(left, [("x-c", "1"), ("x-a", "2"), ("x-a", "3"), ("x-b", "4")]);
    }

    #[test]
    fn a_field_may_have_more_values_than_a_map_has_room_for_fields() {
        let mut headers = map(&[("connection", "close")]);
        for _ in 0..40_000 {
            headers.append("x-a", HeaderValue::from_static("1"));
        }
        strip_hop_by_hop(&mut headers, |_| false);
        assert_eq!((names(&headers), headers.len()), (vec!["x-a"], 40_000));
    }

    #[test]
    fn a_connection_field_cannot_remove_guarded_fields() {
        let key = HeaderName::from_static("idempotency-key");
        for (value, named) in
            [("Idempotency-Key", true), ("close, HOST", true), ("authorization", true), ("x-a", false)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(CONNECTION, HeaderValue::from_static(value));
            assert_eq!(connection_lists_any(&headers, &[&key]), named, "{value}");
        }
    }

    #[test]
    fn forwarding_fields_are_kept_only_from_trusted_peers() {
        let host = HeaderValue::from_static("shop.example");
        let forwarded = |trusted| {
            let mut headers = map(&[("x-forwarded-for", "1.2.3.4"), ("forwarded", "for=1.2.3.4")]);
            let origin = RequestOrigin {
                peer: LOCAL,
                trusted,
                host: Some(host.clone()),
                version: Version::HTTP_11,
                secure: false,
                certificate: None,
            };
            prepare_for_service(&mut headers, &origin, |_| false);
            ["x-forwarded-for", "forwarded", "x-forwarded-host", "via"]
                .map(|name| headers[name].to_str().unwrap().to_owned())
        };
        let ours = "for=127.0.0.1;host=\"shop.example\";proto=http";
        let member = via::own_member(Version::HTTP_11);
        let via = member.to_str().unwrap();
        assert_eq!(forwarded(false), ["127.0.0.1", ours, "shop.example", via]);
        assert_eq!(forwarded(true), ["1.2.3.4, 127.0.0.1", &format!("for=1.2.3.4, {ours}"), "shop.example", via]);
    }

    #[test]
    fn any_number_of_lines_of_a_list_field_become_one() {
        for count in 0..5 {
            let mut headers = HeaderMap::new();
            for name in ["via", "x-other", "x-forwarded-for"] {
                for _ in 0..count {
                    headers.append(name, HeaderValue::from_static("a"));
                }
            }
            append_member(&mut headers, VIA, HeaderValue::from_static("b"));
            let values: Vec<_> = headers.get_all(VIA).iter().collect();
            assert_eq!(values, [&*format!("{}b", "a, ".repeat(count))]);
            assert_eq!(headers.get_all("x-other").iter().count(), count);
        }
    }

    #[test]
    fn forged_oncegate_fields_are_removed() {
        let mut request = map(&[("oncegate-reservation", "x"), ("oncegate-attempt", "9"), ("x-a", "1")]);
        let origin = RequestOrigin {
            peer: LOCAL,
            trusted: false,
            host: None,
            version: Version::HTTP_11,
            secure: false,
            certificate: None,
        };
        prepare_for_service(&mut request, &origin, |_| false);
        assert!(!request.contains_key(RESERVATION) && !request.contains_key(ATTEMPT) && request.contains_key("x-a"));
        let mut response = map(&[("idempotent-replayed", "true"), ("oncegate-status", "executed"), ("x-a", "1")]);
        prepare_for_client(&mut response);
        assert_eq!(names(&response), ["x-a"]);
    }

    /// PostgreSQL stores the responses that services report in their own transactions.
    #[test]
    fn the_function_that_stores_a_reported_response_leaves_out_the_same_fields() {
        let sql = include_str!("../../../../migrations/postgres/0001_init.sql");
        let (_, rest) = sql.split_once("create function oncegate.response_fields").unwrap();
        let (function, _) = rest.split_once("$$;").unwrap();
        let quoted = |begin: &str, end: &str| {
            let (_, list) = function.split_once(begin).unwrap_or_else(|| panic!("{begin} is not there"));
            let names = list.split_once(end).unwrap().0.split('\'').skip(1).step_by(2);
            names.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let exact = HOP_BY_HOP.iter().map(HeaderName::as_str).chain(MOMENTARY).map(str::to_owned).collect();
        assert_eq!(quoted("f.name not in (", ")"), exact);
        let spelled = [CONTENT_LENGTH].iter().chain(&TO_CLIENT).map(HeaderName::to_string).collect();
        assert_eq!(quoted("replace(f.name, '_', '-') not in (", ")"), spelled);
        assert_eq!(quoted("f.name not like ", "\n"), BTreeSet::from([format!("{MOMENTARY_PREFIX}%")]));
        assert_eq!(quoted("replace(f.name, '_', '-') not like ", "\n"), BTreeSet::from([format!("{OWN_PREFIX}%")]));
    }
}
