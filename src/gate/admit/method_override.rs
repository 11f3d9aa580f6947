//! Finds methods that a service may take a request's method for.

use http::{Method, request};

use crate::config::RouteMode;
use crate::domain::fingerprint::form;
use crate::domain::route_table::RouteMatch;
use crate::gate::routing::Router;
use crate::protocol::fields;

/// The query's parameter for the method, in Rails, Laravel, Express and others.
const PARAMETER: &str = "_method";

/// Whether a service that takes the method from a field or the query would do what a route guards, while the request's own
/// method is another one: the request would be judged by that other method.
pub(super) fn leads_to_guarded_route(head: &request::Parts, host: &str, router: &Router) -> bool {
    let in_fields = fields::METHOD_OVERRIDES
        .iter()
        .flat_map(|name| head.headers.get_all(name))
        .map(|value| value.as_bytes().to_vec());
    let query = head.uri.query().filter(|query| query.contains(PARAMETER)).unwrap_or_default();
    let in_query =
        form::pairs(query.as_bytes()).filter(|(name, _)| name == PARAMETER.as_bytes()).map(|(_, value)| value);
    in_fields.chain(in_query).any(|value| {
        let named = Method::from_bytes(&value.trim_ascii().to_ascii_uppercase());
        named.is_ok_and(|method| method != head.method && is_guarded(&method, head, host, router))
    })
}

fn is_guarded(method: &Method, head: &request::Parts, host: &str, router: &Router) -> bool {
    match router.find(method, host, head.uri.path()) {
        RouteMatch::Ambiguous(active) | RouteMatch::Route(active) => active.route.mode == RouteMode::Enforce,
        RouteMatch::NoRoute => false,
    }
}
