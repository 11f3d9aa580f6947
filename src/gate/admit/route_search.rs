//! Finds the route of a request: the first step of its admission. The table of routes is in `domain/route_table`.

use http::{StatusCode, request};

use super::method_override::find_evaded_route;
use crate::gate::routing::{ActiveRoute, Router};
use oncegate_domain::normal_path::{RequestPath, has_unsafe_character};
use oncegate_domain::route_table::RouteMatch;
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

/// Finds the route of a request for a host.
pub(super) fn find_route<'a>(
    head: &request::Parts,
    path: &RequestPath<'_>,
    host: &str,
    router: &'a Router,
) -> RouteSearch<'a> {
    let mut foretold = None;
    if let Some(evaded) = find_evaded_route(head, path, host, router) {
        if evaded.route.options.mode == RouteMode::Enforce {
            return RouteSearch { found: Err((evaded, OVERRIDDEN_METHOD)), foretold };
        }
        foretold = Some((evaded, OVERRIDDEN_METHOD));
    }
    let mut found = router.foretell(&head.method, host, path);
    if let RouteMatch::Ambiguous(active) = found
        && active.route.options.mode == RouteMode::Observe
    {
        foretold.get_or_insert_with(|| (active, path_ambiguous(&active.route)));
        found = router.find(&head.method, host, path);
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

/// Refuses a path with a character that services read in different ways.
pub(in crate::gate) fn check_path(path: &str) -> Result<(), Refusal> {
    if has_unsafe_character(path) { Err(UNSAFE_CHARACTER) } else { Ok(()) }
}

const UNSAFE_CHARACTER: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The path has a backslash or a control character, which programs read in different ways.",
);
