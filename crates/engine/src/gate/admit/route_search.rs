//! Finds the route of a request: the first step of its admission. The table of routes is in `domain/route_table`.
//!
//! A service may take the request for one of another method or path, and a route may guard that one.

use std::collections::HashSet;

use http::{Method, StatusCode, request};

use crate::gate::routing::{ActiveRoute, Router, ServiceRouter};
use oncegate_domain::normal_path::{RequestPath, has_unsafe_character};
use oncegate_domain::route_table::RouteMatch;
use oncegate_domain::urlencoded;
use oncegate_http::protocol::fields;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::{Route, RouteMode};

/// The result of looking for a request's route.
pub(super) struct RouteSearch<'a> {
    /// The route, or the refusal of a request that would go around the guard of a route.
    pub(super) found: Result<Option<&'a ActiveRoute>, EvadedRoute<'a>>,
    /// The refusal that a route which only observes would give if it enforced.
    pub(super) foretold: Option<EvadedRoute<'a>>,
}

/// A route that a request would go around, with the refusal.
pub(super) type EvadedRoute<'a> = (&'a ActiveRoute, Refusal);

/// Finds the route of a request to a service.
pub(super) fn find_route<'a>(
    head: &request::Parts,
    path: &RequestPath<'_>,
    (service, router): (&'a ServiceRouter, &'a Router),
) -> RouteSearch<'a> {
    let mut foretold = None;
    if let Some(evaded) = find_evaded_route(head, path, service) {
        if evaded.route.options.mode == RouteMode::Enforce {
            return RouteSearch { found: Err((evaded, OVERRIDDEN_METHOD)), foretold };
        }
        foretold = Some((evaded, OVERRIDDEN_METHOD));
    }
    let mut found = service.foretold.find(&head.method, path);
    if let Some(other) = router.find_behind_authority(service, &head.method, path) {
        found = RouteMatch::Ambiguous(other);
    }
    if let RouteMatch::Ambiguous(active) = found
        && active.route.options.mode == RouteMode::Observe
    {
        foretold.get_or_insert_with(|| (active, path_ambiguous(&active.route)));
        found = service.table.find(&head.method, path);
    }
    let found = match found {
        RouteMatch::Route(active) => Ok(Some(active)),
        RouteMatch::Ambiguous(active) => Err((active, path_ambiguous(&active.route))),
        RouteMatch::NoRoute => Ok(None),
    };
    RouteSearch { found, foretold }
}

/// The refusal of a path that a lenient service may take for one of the route's.
fn path_ambiguous(route: &Route) -> Refusal {
    let detail = format!(
        "The service may take this path for `{}`, which is guarded, and it is spelled otherwise: a doubled or encoded slash, one \
         at the end, a parameter, dots, or another case. Send it as the service documents it. This request was not executed.",
        route.path
    );
    Refusal::PathAmbiguous(detail.into())
}

pub(super) const OVERRIDDEN_METHOD: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The request asks the service to take another method than its own, and a route guards that method at this path. Send the \
     method itself.",
);

pub(in crate::gate) const NO_SERVICE: Refusal = Refusal::BadRequest(
    StatusCode::MISDIRECTED_REQUEST,
    "No service here has the host that the request names. It was not executed.",
);

/// Refuses a path with a character that services read in different ways.
pub(in crate::gate) fn check_path(path: &str) -> Result<(), Refusal> {
    if has_unsafe_character(path) { Err(UNSAFE_CHARACTER) } else { Ok(()) }
}

const UNSAFE_CHARACTER: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The path has a backslash or a control character, which programs read in different ways.",
);

/// The query's parameter for the method, in Rails, Laravel, Express and others.
const PARAMETER: &[u8] = b"_method";

/// The route whose guard the request would leave: a service that takes the method from a field or the query would do
/// what the route guards, while the request would be judged by its own method. A route that observes is found only
/// where none guards.
pub(super) fn find_evaded_route<'a>(
    head: &request::Parts,
    path: &RequestPath<'_>,
    service: &'a ServiceRouter,
) -> Option<&'a ActiveRoute> {
    // Each method once: a lookup reads the whole path.
    let named: HashSet<Method> = named_methods(head)
        .filter_map(|value| Method::from_bytes(&value.trim_ascii().to_ascii_uppercase()).ok())
        .filter(|method| *method != head.method && service.table.has_routes_for(method))
        .collect();
    let evaded = |found: RouteMatch<'a, ActiveRoute>, mode| match found {
        RouteMatch::Ambiguous(active) | RouteMatch::Route(active) => {
            Some(active).filter(|active| active.route.options.mode == mode)
        }
        RouteMatch::NoRoute => None,
    };
    let guarding = |method| evaded(service.table.find(method, path), RouteMode::Enforce);
    let observing = |method| evaded(service.foretold.find(method, path), RouteMode::Observe);
    named.iter().find_map(guarding).or_else(|| named.iter().find_map(observing))
}

/// The values of the fields and the parameter, one for each member of a list: Express takes the first.
fn named_methods(head: &request::Parts) -> impl Iterator<Item = Vec<u8>> {
    let lines = fields::METHOD_OVERRIDES.iter().flat_map(|name| head.headers.get_all(name));
    let in_fields = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::to_vec);
    // Most queries have neither, and are not decoded.
    let may_name = |query: &&str| memchr::memmem::find(query.as_bytes(), b"ethod").is_some() || query.contains('%');
    let query = head.uri.query().filter(may_name).unwrap_or_default().as_bytes();
    // Some services separate parameters by `;` too.
    let in_query = query.split(|byte| *byte == b';').flat_map(urlencoded::pairs);
    in_fields.chain(in_query.filter(|(name, _)| is_parameter(name)).map(|(_, value)| value))
}

/// Whether a service takes a parameter's name for the method's: PHP reads `.` and a space as `_`.
fn is_parameter(name: &[u8]) -> bool {
    let read = |byte: &u8| if matches!(byte, b'.' | b' ') { b'_' } else { *byte };
    name.len() == PARAMETER.len() && name.iter().map(read).eq(PARAMETER.iter().copied())
}
