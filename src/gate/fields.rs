//! Header fields on their way through: what is hop-by-hop, what is ours, what is added.

use std::cell::RefCell;
use std::net::IpAddr;

use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, EXPECT, Entry, FORWARDED, HOST, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, Version};

/// On a replay, and on nothing else.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// What Oncegate did with the request.
pub const ONCEGATE_STATUS: HeaderName = HeaderName::from_static("oncegate-status");
/// Until when the response is replayed.
pub const KEY_EXPIRES: HeaderName = HeaderName::from_static("idempotency-key-expires");
/// The `Date` of the response that is replayed.
pub const ORIGINAL_DATE: HeaderName = HeaderName::from_static("oncegate-original-date");
/// By which the service overrules the status table for one response: `store`, `release` or `unknown`.
pub const DECISION: HeaderName = HeaderName::from_static("oncegate-decision");
/// By which the service sets the TTL of one response.
pub const TTL: HeaderName = HeaderName::from_static("oncegate-ttl");
/// The attempt's token, for the service behind.
pub const RESERVATION: HeaderName = HeaderName::from_static("oncegate-reservation");
/// The attempt's number, for the service behind.
pub const ATTEMPT: HeaderName = HeaderName::from_static("oncegate-attempt");
/// How far an attempt before this one has come, for the service behind.
pub const RECOVERY_POINT: HeaderName = HeaderName::from_static("oncegate-recovery-point");

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Fields that concern one connection only (RFC 9110 section 7.6.1), besides those that `Connection` names.
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
    // Answered here, when the body is read; the service gets the body without being asked.
    EXPECT,
];

/// Fields of ours that only Oncegate may set towards the service.
const TO_SERVICE: [HeaderName; 3] = [RESERVATION, ATTEMPT, RECOVERY_POINT];

/// Fields of ours that only Oncegate may set towards the client, and what the service tells Oncegate alone.
const TO_CLIENT: [HeaderName; 6] = [IDEMPOTENT_REPLAYED, ONCEGATE_STATUS, KEY_EXPIRES, ORIGINAL_DATE, DECISION, TTL];

/// Of a response that is kept the length is made anew, from the body that really follows.
const TO_KEEP: [HeaderName; 7] =
    [CONTENT_LENGTH, IDEMPOTENT_REPLAYED, ONCEGATE_STATUS, KEY_EXPIRES, ORIGINAL_DATE, DECISION, TTL];

/// The field names that `Connection` lists.
pub fn nominated(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|name| !name.is_empty())
}

/// Whether `Connection` lists a field that must not disappear on the way: who is asking, what for, where it ends.
pub fn nominates(headers: &HeaderMap, guarded: &[&HeaderName]) -> bool {
    let framing = [&HOST, &CONTENT_LENGTH, &TRANSFER_ENCODING, &http::header::AUTHORIZATION];
    nominated(headers)
        .any(|name| framing.iter().chain(guarded).any(|field| field.as_str().as_bytes().eq_ignore_ascii_case(name)))
}

/// Takes out what concerns the last hop only, and what `also` names.
fn strip_hop_by_hop(headers: &mut HeaderMap, also: &[HeaderName]) {
    let named: Vec<HeaderName> = nominated(headers).filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
    remove(headers, |name| HOP_BY_HOP.contains(name) || also.contains(name) || named.contains(name));
}

/// Takes fields out and leaves the others in their order. The map's own `remove` puts the last field in the place of the
/// one that goes.
pub fn remove(headers: &mut HeaderMap, goes: impl Fn(&HeaderName) -> bool) {
    if !headers.keys().any(&goes) {
        return;
    }
    let mut kept = HeaderMap::with_capacity(headers.len());
    let mut current = None;
    for (name, value) in headers.drain() {
        // Only the first value of a field comes with its name.
        current = name.or(current);
        if let Some(name) = current.as_ref().filter(|name| !goes(name)) {
            kept.append(name.clone(), value);
        }
    }
    *headers = kept;
}

/// Makes a request's fields ready for the upstream: hop-by-hop fields and forged ones of ours out, forwarding fields in.
/// Its length stays: how the body is framed is for the upstream to say.
pub fn towards_service(headers: &mut HeaderMap, origin: &Origin) {
    let trailers = accepts_trailers(headers);
    strip_hop_by_hop(headers, &TO_SERVICE);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(host) = &origin.host {
        headers.insert(HOST, host.clone());
    }
    forwarding(headers, origin);
}

/// Asks for a body that every later caller can read, whatever this one could.
pub fn ask_for_identity(headers: &mut HeaderMap) {
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// Makes a response's fields ready for the store and the client: hop-by-hop fields and forged ones of ours out.
pub fn towards_client(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers, &TO_KEEP);
}

/// The same for a response that passes as it comes, with its length.
pub fn past_us(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers, &TO_CLIENT);
}

/// Whether a field is about the moment of an answer and would be a lie on its replay.
pub fn is_of_the_moment(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(name, "age" | "alt-svc" | "server-timing" | "traceparent") || name.starts_with("ratelimit")
}

/// Whether the client says that it understands trailers (RFC 9110 section 6.5.1).
pub fn accepts_trailers(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TE).iter().flat_map(|te| te.as_bytes().split(|byte| *byte == b','));
    codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// Where a request comes origin.
#[derive(Debug)]
pub struct Origin {
    /// The peer of the connection.
    pub peer: IpAddr,
    /// Whether the peer is a proxy whose word about earlier hops is taken.
    pub trusted: bool,
    /// What the request was addressed to.
    pub host: Option<HeaderValue>,
    /// The protocol version it came in.
    pub version: Version,
    /// Whether it came over TLS.
    pub secure: bool,
}

impl Origin {
    fn scheme(&self) -> &'static str {
        if self.secure { "https" } else { "http" }
    }

    /// The host's name, without a port, and without the dot that stands for the root of all names.
    pub fn host_name(&self) -> &str {
        let host = self.host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
        // In brackets an IPv6 address has colons of its own.
        let name = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => name,
            _ => host,
        };
        name.strip_suffix('.').unwrap_or(name)
    }
}

/// Tells the service who is asking. What an untrusted peer says about earlier hops is dropped: anybody can write it.
fn forwarding(headers: &mut HeaderMap, origin: &Origin) {
    let Hop { address, element, .. } = Hop::of(origin);
    let scheme = HeaderValue::from_static(origin.scheme());
    if origin.trusted {
        join(headers, X_FORWARDED_FOR, address);
        join(headers, FORWARDED, element);
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
    let via = match origin.version {
        Version::HTTP_10 => "1.0 oncegate",
        Version::HTTP_2 => "2.0 oncegate",
        _ => "1.1 oncegate",
    };
    join(headers, VIA, HeaderValue::from_static(via));
}

/// What a service is told of the hop before us.
#[derive(Clone)]
struct Hop {
    peer: IpAddr,
    secure: bool,
    host: Option<HeaderValue>,
    address: HeaderValue,
    /// In the form of RFC 7239 section 4.
    element: HeaderValue,
}

impl Hop {
    fn of(origin: &Origin) -> Self {
        thread_local! {
            /// The next request mostly comes from where the last one came.
            static LAST: RefCell<Option<Hop>> = const { RefCell::new(None) };
        }
        LAST.with_borrow_mut(|last| match last {
            Some(hop) if hop.peer == origin.peer && hop.secure == origin.secure && hop.host == origin.host => {
                hop.clone()
            }
            _ => last.insert(Self::new(origin)).clone(),
        })
    }

    fn new(origin: &Origin) -> Self {
        // RFC 7239 section 6: an IPv6 address is bracketed, and then quoted because of the brackets.
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
        let (peer, secure, host) = (origin.peer, origin.secure, origin.host.clone());
        Self { peer, secure, host, address: value(peer.to_string()), element: value(element) }
    }
}

/// Adds a member to a list field, behind those that are there.
fn join(headers: &mut HeaderMap, name: HeaderName, member: HeaderValue) {
    let mut there = match headers.entry(name) {
        Entry::Vacant(free) => {
            free.insert(member);
            return;
        }
        Entry::Occupied(there) => there,
    };
    let mut list: Vec<u8> = Vec::new();
    for value in there.iter() {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(member.as_bytes());
    if let Ok(value) = HeaderValue::try_from(list) {
        there.insert_mult(value);
    }
}

#[cfg(test)]
mod tests {
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
    fn what_concerns_one_hop_goes_no_further() {
        let mut headers = map(&[
            ("connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("keep-alive", "5"),
            ("te", "gzip"),
            ("upgrade", "h2c"),
            ("content-length", "3"),
            ("x-kept", "1"),
        ]);
        strip_hop_by_hop(&mut headers, &[]);
        assert_eq!(names(&headers), ["content-length", "x-kept"]);
        towards_client(&mut headers);
        assert_eq!(names(&headers), ["x-kept"]);
    }

    #[test]
    fn what_is_left_stays_in_its_order() {
        let mut headers =
            map(&[("x-c", "1"), ("connection", "x-d"), ("x-a", "2"), ("x-d", "0"), ("x-a", "3"), ("x-b", "4")]);
        strip_hop_by_hop(&mut headers, &[]);
        let left: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(left, [("x-c", "1"), ("x-a", "2"), ("x-a", "3"), ("x-b", "4")]);
    }

    #[test]
    fn a_connection_field_cannot_take_out_what_decides() {
        let key = HeaderName::from_static("idempotency-key");
        for (value, named) in
            [("Idempotency-Key", true), ("close, HOST", true), ("authorization", true), ("x-a", false)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(CONNECTION, HeaderValue::from_static(value));
            assert_eq!(nominates(&headers, &[&key]), named, "{value}");
        }
    }

    #[test]
    fn the_service_hears_of_earlier_hops_only_from_those_who_are_trusted() {
        let host = HeaderValue::from_static("shop.example");
        let told = |trusted| {
            let mut headers = map(&[("x-forwarded-for", "1.2.3.4"), ("forwarded", "for=1.2.3.4")]);
            let origin =
                Origin { peer: LOCAL, trusted, host: Some(host.clone()), version: Version::HTTP_11, secure: false };
            towards_service(&mut headers, &origin);
            ["x-forwarded-for", "forwarded", "x-forwarded-host", "via"]
                .map(|name| headers[name].to_str().unwrap().to_owned())
        };
        let ours = "for=127.0.0.1;host=\"shop.example\";proto=http";
        assert_eq!(told(false), ["127.0.0.1", ours, "shop.example", "1.1 oncegate"]);
        assert_eq!(told(true), ["1.2.3.4, 127.0.0.1", &format!("for=1.2.3.4, {ours}"), "shop.example", "1.1 oncegate"]);
    }

    #[test]
    fn nobody_but_oncegate_speaks_in_its_name() {
        let mut request = map(&[("oncegate-reservation", "x"), ("oncegate-attempt", "9"), ("x-a", "1")]);
        let origin = Origin { peer: LOCAL, trusted: false, host: None, version: Version::HTTP_11, secure: false };
        towards_service(&mut request, &origin);
        assert!(!request.contains_key(RESERVATION) && !request.contains_key(ATTEMPT) && request.contains_key("x-a"));
        let mut response = map(&[("idempotent-replayed", "true"), ("oncegate-status", "executed"), ("x-a", "1")]);
        towards_client(&mut response);
        assert_eq!(names(&response), ["x-a"]);
    }
}
