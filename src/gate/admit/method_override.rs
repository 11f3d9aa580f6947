//! Finds methods that a service may take a request's method for.

use std::collections::HashSet;

use http::{Method, request};

use crate::gate::routing::{ActiveRoute, Router};
use oncegate_domain::fingerprint::form;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::route_table::RouteMatch;
use oncegate_http::protocol::fields;
use oncegate_settings::RouteMode;

/// The query's parameter for the method, in Rails, Laravel, Express and others.
const PARAMETER: &[u8] = b"_method";

/// The route whose guard the request would leave: a service that takes the method from a field or the query would do what the
/// route guards, while the request would be judged by its own method. A route that observes is found only where none guards.
pub(super) fn find_evaded_route<'a>(
    head: &request::Parts,
    path: &RequestPath<'_>,
    host: &str,
    router: &'a Router,
) -> Option<&'a ActiveRoute> {
    // Each method once: a lookup reads the whole path.
    let named: HashSet<Method> = values(head)
        .filter_map(|value| Method::from_bytes(&value.trim_ascii().to_ascii_uppercase()).ok())
        .filter(|method| *method != head.method && router.has_routes_for(method))
        .collect();
    let evaded = |found: RouteMatch<'a, ActiveRoute>, mode| match found {
        RouteMatch::Ambiguous(active) | RouteMatch::Route(active) => {
            Some(active).filter(|active| active.route.options.mode == mode)
        }
        RouteMatch::NoRoute => None,
    };
    let guarding = |method| evaded(router.find(method, host, path), RouteMode::Enforce);
    let observing = |method| evaded(router.foretell(method, host, path), RouteMode::Observe);
    named.iter().find_map(guarding).or_else(|| named.iter().find_map(observing))
}

/// The values of the fields and the parameter, one for each member of a list: Express takes the first.
fn values(head: &request::Parts) -> impl Iterator<Item = Vec<u8>> {
    let lines = fields::METHOD_OVERRIDES.iter().flat_map(|name| head.headers.get_all(name));
    let in_fields = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::to_vec);
    // Most queries have neither, and are not decoded.
    let may_name = |query: &&str| memchr::memmem::find(query.as_bytes(), b"ethod").is_some() || query.contains('%');
    let query = head.uri.query().filter(may_name).unwrap_or_default().as_bytes();
    // Some services separate parameters by `;` too.
    let in_query = query.split(|byte| *byte == b';').flat_map(form::pairs);
    in_fields.chain(in_query.filter(|(name, _)| is_parameter(name)).map(|(_, value)| value))
}

/// Whether a service takes a parameter's name for the method's: PHP reads `.` and a space as `_`.
fn is_parameter(name: &[u8]) -> bool {
    let read = |byte: &u8| if matches!(byte, b'.' | b' ') { b'_' } else { *byte };
    name.len() == PARAMETER.len() && name.iter().map(read).eq(PARAMETER.iter().copied())
}
