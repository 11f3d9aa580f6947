//! The origin of a request: its peer, the client behind trusted proxies, and the host that it is addressed to.

use std::net::IpAddr;

use http::header::HOST;
use http::{HeaderValue, request};

use oncegate_domain::peer_network::peer_network;
use oncegate_http::downstream::client::ClientConnection;
use oncegate_http::protocol::fields::RequestOrigin;
use oncegate_settings::Config;

/// The request's origin, and whether its peer is trusted to name earlier hops.
pub(in crate::gate) fn request_origin(
    head: &request::Parts,
    client: &ClientConnection,
    config: &Config,
) -> RequestOrigin {
    let peer = client.peer.to_canonical();
    RequestOrigin {
        peer,
        trusted: is_trusted(&peer, config),
        host: named_host(head).and_then(|host| HeaderValue::from_bytes(host).ok()),
        version: head.version,
        secure: client.secure,
        certificate: client.certificate.clone(),
    }
}

fn is_trusted(address: &IpAddr, config: &Config) -> bool {
    config.trusted_proxies.iter().any(|network| network.contains(address))
}

/// The address, or the IPv6 /64 network, that a request counts under in the limits for each address.
pub(in crate::gate) fn client_address(head: &request::Parts, origin: &RequestOrigin, config: &Config) -> IpAddr {
    peer_network(origin.client_address(&head.headers, |address| is_trusted(address, config)))
}

/// The host that the request is addressed to: the target's authority if it has one (RFC 9112 section 3.2.2), else `Host`.
/// A user before the host is not part of it (RFC 9110 section 4.2.4), and would lead past the host's own routes.
pub(super) fn named_host(head: &request::Parts) -> Option<&[u8]> {
    let named = match head.uri.authority() {
        Some(authority) => authority.as_str().as_bytes(),
        None => head.headers.get(HOST)?.as_bytes(),
    };
    named.rsplit(|byte| *byte == b'@').next()
}
