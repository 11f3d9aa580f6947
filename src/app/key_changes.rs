//! Compares two configurations: the requests whose keys the new one finds in another way, or guards no more.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use http::Method;

use super::keyed_route::{KeyedRoute, RouteRequests, keyed_routes, keyed_routes_of};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::path_pattern::PathPattern;
use oncegate_domain::path_samples::sample_paths;
use oncegate_domain::route_table::{RouteMatch, RouteTable, Spelling};
use oncegate_settings::Config;

/// The differences between two configurations that matter to keys made under the earlier one.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KeyChanges {
    /// Requests whose keys are found in another way: retries would not find their records.
    pub lookups: Vec<LookupChange>,
    /// Requests that are not guarded any more as they were: retries are executed again.
    pub unguarded: Vec<UnguardedRequests>,
}

/// Requests whose keys are found in another way than before.
#[derive(Debug, PartialEq, Eq)]
pub struct LookupChange {
    /// The method and the path, as in `POST /v1/pay`.
    pub requests: String,
    /// The route that guarded them.
    pub before: Arc<str>,
    /// The route that guards them now.
    pub now: Arc<str>,
    /// The change, as `space: path -> service`.
    pub changed: String,
}

/// Requests that are not guarded any more as they were.
#[derive(Debug, PartialEq, Eq)]
pub struct UnguardedRequests {
    /// The method and the path, as in `POST /v1/pay`: all or some of these requests.
    pub requests: String,
    /// The route that guarded them.
    pub before: Arc<str>,
    /// The change, as `guarded by: pay -> no route` or `key: required -> optional`.
    pub changed: String,
}

impl fmt::Display for LookupChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, before, now, changed } = self;
        write!(
            f,
            "route `{before}`: {requests} would not find their earlier keys any more ({changed}, now by route `{now}`), and their \
             retries would be executed again. A renamed route needs its earlier name in `was`; any other change needs \
             store.accept_route_changes at a restart"
        )
    }
}

impl fmt::Display for UnguardedRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, before, changed } = self;
        write!(
            f,
            "route `{before}`: {requests} are not guarded any more as they were ({changed}): retries of earlier ones are executed \
             again"
        )
    }
}

/// Compares the routes of two configurations, service by service.
pub fn compare_services(before: &Config, now: &Config) -> KeyChanges {
    let (mut changes, now) = (KeyChanges::default(), HostedRoutes::of(now));
    let known: Vec<&str> = before.services.iter().flat_map(|service| &service.hosts).map(|host| &**host).collect();
    for service in before.service_names() {
        changes.extend(compare_routes(&keyed_routes_of(before, service), &known, &now));
    }
    changes
}

/// The routes of a configuration, and which service has which hosts: one may have no routes.
pub(super) struct HostedRoutes<'a> {
    services: Vec<(&'a str, &'a [Box<str>])>,
    routes: Vec<KeyedRoute<'a>>,
}

impl<'a> HostedRoutes<'a> {
    pub(super) fn of(config: &'a Config) -> Self {
        let services = config.services.iter().map(|service| (&*service.name, &*service.hosts)).collect();
        Self { services, routes: keyed_routes(config) }
    }

    /// The routes of the service that gets the requests of a host; `None` where they are refused. The empty host stands
    /// for all that no service names.
    fn of_host(&self, host: &str) -> Option<impl Iterator<Item = &KeyedRoute<'a>>> {
        let own = self.services.iter().find(|(_, hosts)| hosts.iter().any(|own| **own == *host));
        let (name, _) = own.or_else(|| self.services.iter().find(|(_, hosts)| hosts.is_empty()))?;
        Some(self.routes.iter().filter(move |route| route.is_of_service(name)))
    }
}

impl KeyChanges {
    pub(super) fn extend(&mut self, more: Self) {
        self.lookups.extend(more.lookups);
        self.unguarded.extend(more.unguarded);
    }
}

/// Compares the routes of a service with those of another configuration, of all its services. Each change is listed
/// once for a method and two routes. `known` are the hosts that some service had before: the others went to the service
/// that names none.
///
/// Routes are compared by the requests that they match, not by name: a new route may take a path over, and another name
/// may be the same route. One path stands for all that no pattern of either configuration tells apart
/// ([`sample_paths`]), and an empty host for all that no service has. Looking each of them up in both tables finds
/// exactly the requests whose route has changed, whatever the order and the overlaps of the patterns. What is refused
/// now is executed by nobody.
// See docs/decisions/0019-compare-by-requests.md.
pub(super) fn compare_routes(before: &[KeyedRoute<'_>], known: &[&str], now: &HostedRoutes<'_>) -> KeyChanges {
    let mut changes = KeyChanges::default();
    let of_now = || now.services.iter().flat_map(|(_, hosts)| hosts.iter()).map(|host| &**host);
    let own = before.first().map_or(&[][..], |route| &route.requests.hosts);
    let hosts: BTreeSet<&str> = match own.is_empty() {
        true => of_now().filter(|host| !known.contains(host)).chain([""]).collect(),
        false => own.iter().map(|host| &**host).collect(),
    };
    let both = || before.iter().chain(&now.routes).map(|route| &route.requests);
    let paths = sample_paths(&both().map(|requests| &requests.path).collect::<Vec<_>>());
    let guarded = before.iter().filter(|route| route.requests.guard.is_some());
    let methods: BTreeSet<&String> = guarded.flat_map(|route| &route.requests.methods).collect();
    let table_before = table(before.iter());
    let tables_now: Vec<_> = hosts.iter().filter_map(|host| Some((*host, table(now.of_host(host)?)))).collect();
    let methods: Vec<Method> = methods.into_iter().filter_map(|method| method.parse().ok()).collect();
    let mut seen = BTreeSet::new();
    for (host, table_now) in &tables_now {
        for (method, path) in methods.iter().flat_map(|method| paths.iter().map(move |path| (method, path))) {
            let Some(old) = find_guarded(&table_before, method, path) else { continue };
            let new = find_guarded(table_now, method, path);
            if !seen.insert((method.clone().to_string(), &old.name, new.map(|new| &new.name))) {
                continue;
            }
            let before = Arc::clone(&old.name);
            let Some(new) = new else {
                let requests = show_requests(method, host, &old.requests.path);
                let changed = format!("guarded by: {before} -> no route");
                changes.unguarded.push(UnguardedRequests { requests, before, changed });
                continue;
            };
            // The more specific pattern of the two.
            let requests = show_requests(method, host, (&old.requests.path).min(&new.requests.path));
            let mut guards = old.requests.guard.iter().zip(&new.requests.guard);
            if let Some(changed) = guards.find_map(|(old, new)| old.describe_narrowing(new)) {
                let (requests, before) = (requests.clone(), Arc::clone(&before));
                changes.unguarded.push(UnguardedRequests { requests, before, changed });
            }
            if let Some(changed) = old.describe_changes(new) {
                changes.lookups.push(LookupChange { requests, before, now: Arc::clone(&new.name), changed });
            }
        }
    }
    changes
}

fn table<'a>(routes: impl Iterator<Item = &'a KeyedRoute<'a>>) -> RouteTable<&'a KeyedRoute<'a>> {
    let mut table = RouteTable::default();
    for route in routes {
        let RouteRequests { path, methods, .. } = &route.requests;
        let methods: Vec<Method> = methods.iter().filter_map(|method| method.parse().ok()).collect();
        // All spellings of a path share their keys, so that the plain one stands for them.
        table.insert(&methods, path, Spelling::Pass, &route);
    }
    table
}

/// The route that guards these requests.
fn find_guarded<'a>(table: &RouteTable<&'a KeyedRoute<'a>>, method: &Method, path: &str) -> Option<&'a KeyedRoute<'a>> {
    match table.find(method, &RequestPath::new(path)) {
        RouteMatch::Route(route) => Some(*route).filter(|route| route.requests.guard.is_some()),
        RouteMatch::Ambiguous(_) | RouteMatch::NoRoute => None,
    }
}

fn show_requests(method: &Method, host: &str, path: &PathPattern) -> String {
    format!("{method} {host}{path}")
}

#[cfg(test)]
mod tests {
    use super::super::keyed_route::tests::keyed_route;
    use super::*;

    mod identities;

    /// The routes of lines such as `pay POST shop@api.example/v1/pay path`, each with its name, methods, service, host
    /// with path, and space; `off` after it for a route that does not guard.
    fn routes(lines: &[&str]) -> Vec<KeyedRoute<'static>> {
        let read = |line: &&str| {
            let words: Vec<_> = line.split_whitespace().collect();
            let (host, path) = words[2].split_at(words[2].find('/').expect("it has a path"));
            let space = if words[3] == "route" { format!("route {}", words[0]) } else { words[3].to_owned() };
            let mut route = keyed_route(words[0], host, path, &words[1].replace(',', " "), &space);
            route.requests.guard = route.requests.guard.filter(|_| words.len() == 4);
            route
        };
        lines.iter().map(read).collect()
    }

    impl<'a> HostedRoutes<'a> {
        /// The services that these routes name, each with its hosts, and one for all others.
        fn of_routes(routes: &'a [KeyedRoute<'a>]) -> Self {
            let services = routes.iter().map(|route| (route.service(), &*route.requests.hosts)).chain([("", &[][..])]);
            Self { services: services.collect(), routes: routes.to_vec() }
        }
    }

    /// The changes as text: `POST /pay: a -> b, space: path -> service` or `POST /pay: a -> nothing`.
    fn compared(before: &[KeyedRoute<'_>], now: &[KeyedRoute<'_>]) -> Vec<String> {
        let now = HostedRoutes::of_routes(now);
        let KeyChanges { lookups, unguarded } = compare_routes(before, &[], &now);
        let lookup = |change: LookupChange| {
            format!("{}: {} -> {}, {}", change.requests, change.before, change.now, change.changed)
        };
        let unguarded = unguarded.into_iter().map(|lost| format!("{}: {} -> nothing", lost.requests, lost.before));
        lookups.into_iter().map(lookup).chain(unguarded).collect()
    }

    #[test]
    fn a_change_is_found_by_the_requests_that_two_routes_share() {
        let rest = "rest POST /{*rest} path";
        for (before, now, changes) in [
            (&[rest][..], &[rest][..], &[][..]),
            // The same route changes, or has another name.
            (&[rest], &["rest POST /{*rest} service"], &["POST /{*rest}: rest -> rest, space: path -> service"]),
            (&[rest], &["all POST /{*all} path"], &[]),
            (&["a POST /a route"], &["b POST /a route"], &["POST /a: a -> b, space: route a -> route b"]),
            // A more specific route takes a path over, or gives it back.
            (&[rest], &[rest, "pay POST /v1/pay path"], &[]),
            (&[rest], &[rest, "pay POST /v1/pay service"], &["POST /v1/pay: rest -> pay, space: path -> service"]),
            (&[rest], &[rest, "pay PUT /v1/pay service"], &[]),
            (&[rest, "pay POST /v1/pay service"], &[rest], &["POST /v1/pay: pay -> rest, space: service -> path"]),
            // Two patterns of which neither is the more general one.
            (
                &["a POST /{x}/pay path"],
                &["b POST /v1/{y} service", "a POST /{x}/pay path"],
                &["POST /v1/{y}: a -> b, space: path -> service"],
            ),
            // A route that no request reaches changes nothing.
            (&[rest], &[rest, "a POST /a path", "b POST /b/{*rest} path"], &[]),
            (
                &[rest],
                &["short POST /{a} path", "long POST /{a}/{*rest} path", "rest POST /{*rest} service"],
                &["POST /{*rest}: rest -> rest, space: path -> service"],
            ),
            // A service gets hosts of its own, loses one to another service, or to the one at the top, or ends.
            (&["a POST shop@/a path"], &["a POST shop@a.example/a path"], &["POST /a: a -> nothing"]),
            (
                &["a POST a@a.example/a path"],
                &["b POST b@a.example/a path"],
                &["POST a.example/a: a -> b, service: a -> b"],
            ),
            (&["a POST a.example/a path"], &["b POST /a path"], &["POST a.example/a: a -> b, service: a.example -> "]),
            (&["a POST a.example/a path"], &["b POST b.example/a path"], &["POST a.example/a: a -> nothing"]),
            // What is guarded no more.
            (
                &[rest, "pay POST /pay path"],
                &["rest POST /v1/{*rest} path"],
                &["POST /{*rest}: rest -> nothing", "POST /pay: pay -> nothing"],
            ),
            (&["a POST,PUT /a path"], &["a POST /a path"], &["PUT /a: a -> nothing"]),
            (&["a POST /a path"], &["a POST /a service off"], &["POST /a: a -> nothing"]),
            (&[rest], &[rest, "a POST /a path off"], &["POST /{*rest}: rest -> nothing"]),
            // What was not guarded had no keys.
            (&["a POST /a path off"], &["a POST /a service"], &[]),
            (&["a POST /a path off", rest], &["a POST /a service", rest], &[]),
            (&[], &[rest], &[]),
        ] {
            assert_eq!(compared(&routes(before), &routes(now)), changes, "{before:?} {now:?}");
        }
    }

    #[test]
    fn a_new_service_that_takes_a_host_from_the_one_at_the_top_finds_none_of_its_keys() {
        let rest = "rest POST /{*rest} path";
        for (before, now, changes) in [
            (
                &[rest][..],
                &["rest POST a.example/{*rest} path"][..],
                &["POST a.example/{*rest}: rest -> rest, service:  -> a.example", "POST /{*rest}: rest -> nothing"][..],
            ),
            (
                &[rest],
                &[rest, "one POST a.example/pay path"],
                &["POST a.example/pay: rest -> one, service:  -> a.example"],
            ),
            (
                &["a POST /a service"],
                &["a POST /a service", "b POST b.example/a service"],
                &["POST b.example/a: a -> b, service:  -> b.example"],
            ),
        ] {
            let found: BTreeSet<_> = compared(&routes(before), &routes(now)).into_iter().collect();
            assert!(changes.iter().all(|change| found.contains(*change)), "{before:?} {now:?}: {found:?}");
        }
    }

    #[test]
    fn a_route_that_takes_over_an_earlier_name_finds_its_keys() {
        let before = routes(&["pay POST /pay route"]);
        let now = [keyed_route("payments", "", "/pay", "POST", "route pay")];
        assert_eq!(compared(&before, &now), [""; 0]);
    }
}
