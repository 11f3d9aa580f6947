//! A request or message on its route, as it came: the value that each step of its admission reads.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::HOST;
use http::{HeaderValue, request};

use super::caller_token::TokenSource;
use oncegate_domain::jsonrpc::RpcOperation;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::peer_network::peer_network;
use oncegate_domain::scope::Salt;
use oncegate_http::downstream::client::ClientConnection;
use oncegate_http::protocol::fields::RequestOrigin;
use oncegate_settings::{Config, Route, ScopeRule};

/// A request or message on its route, with all that its identity depends on but its body.
#[derive(Clone, Copy)]
pub(in crate::gate) struct Incoming<'a> {
    pub(in crate::gate) head: &'a request::Parts,
    pub(in crate::gate) path: &'a RequestPath<'a>,
    pub(in crate::gate) origin: &'a RequestOrigin,
    pub(in crate::gate) route: &'a Arc<Route>,
    /// The rule that identifies the caller: the route's, or that of the consumer which has the message.
    pub(in crate::gate) scope: &'a ScopeRule,
    /// The key of a message, which its consumer has found. The key of a request is looked for.
    pub(in crate::gate) given_key: Option<&'a [u8]>,
    pub(in crate::gate) token: TokenSource<'a>,
    /// The operation that the body names, where it is a part of the key's space.
    pub(in crate::gate) operation: Option<&'a RpcOperation>,
    pub(in crate::gate) realm: Realm<'a>,
}

/// The realm of a key: within it, the scope, the space and the key name one record.
#[derive(Clone, Copy)]
pub(in crate::gate) struct Realm<'a> {
    pub(in crate::gate) service: &'a Arc<str>,
    pub(in crate::gate) salt: &'a Salt,
}

impl<'a> Incoming<'a> {
    /// A request on a route whose scope reads no token.
    pub(in crate::gate) fn new(
        (head, path): (&'a request::Parts, &'a RequestPath<'a>),
        origin: &'a RequestOrigin,
        route: &'a Arc<Route>,
        realm: Realm<'a>,
    ) -> Self {
        let (scope, given_key, token, operation) = (&route.scope, None, TokenSource::Unread, None);
        Self { head, path, origin, route, scope, given_key, token, operation, realm }
    }
}

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

/// The host that the request is addressed to: the target's authority if it has one (RFC 9112 section 3.2.2), else
/// `Host`. A user before the host is not part of it (RFC 9110 section 4.2.4), and would lead past the host's own
/// routes.
pub(super) fn named_host(head: &request::Parts) -> Option<&[u8]> {
    let named = match head.uri.authority() {
        Some(authority) => authority.as_str().as_bytes(),
        None => head.headers.get(HOST)?.as_bytes(),
    };
    named.rsplit(|byte| *byte == b'@').next()
}
