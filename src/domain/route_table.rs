//! The rule by which a request has its route.

use std::collections::HashMap;

use http::Method;

use super::normal_path::normal_form;
use super::path_pattern::PathPattern;
use super::path_template::PathTemplate;

/// Routes by method, host and path; the most specific path wins.
///
/// By method first: a specific path that does not name a method must not shadow a general one that does, or a
/// state-changing request would slip through unguarded. A list for each method, not a tree: routes are few, and a
/// comparison of the first segments rules most of them out.
pub struct RouteTable<T>(HashMap<Method, Vec<RouteTableEntry<T>>>);

struct RouteTableEntry<T> {
    /// The host in lower case; `None` for every host.
    host: Option<Box<str>>,
    path: PathPattern,
    route: T,
}

impl<T> Default for RouteTable<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Clone> RouteTable<T> {
    /// Adds a route. Of two with the same method and path the first one counts; the configuration has no such two. A
    /// route for one host comes before one for all.
    pub fn insert(&mut self, methods: &[Method], host: Option<&str>, path: &PathPattern, route: &T) {
        for method in methods {
            let list = self.0.entry(method.clone()).or_default();
            let rank = (host.is_none(), path);
            let place = list.partition_point(|row| (row.host.is_none(), &row.path) <= rank);
            let host = host.map(|host| host.to_ascii_lowercase().into());
            list.insert(place, RouteTableEntry { host, path: path.clone(), route: route.clone() });
        }
    }
}

impl<T> RouteTable<T> {
    /// The route of a request, if it has one. The path is given as it was sent.
    pub fn find(&self, method: &Method, host: &str, path: &str) -> Option<&T> {
        let list = self.0.get(method)?;
        let path = normal_form(path);
        let is_match = |row: &&RouteTableEntry<T>| {
            row.host.as_deref().is_none_or(|only| only.eq_ignore_ascii_case(host)) && row.path.matches(&path)
        };
        list.iter().find(is_match).map(|row| &row.route)
    }

    /// The route that covers all paths of a template, if there is one. Requests to some of them may have a more
    /// specific route, and those to one host another.
    pub fn find_for_all(&self, method: &Method, template: &PathTemplate) -> Option<&T> {
        let list = self.0.get(method)?;
        let is_match = |row: &&RouteTableEntry<T>| row.host.is_none() && template.is_covered_by(&row.path);
        list.iter().find(is_match).map(|row| &row.route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(routes: &[(&[Method], &'static str)]) -> RouteTable<&'static str> {
        let mut table = RouteTable::default();
        for (methods, path) in routes {
            table.insert(methods, None, &PathPattern::parse(path).expect("it is one"), path);
        }
        table
    }

    #[test]
    fn the_most_specific_path_wins_whatever_the_order() {
        let mut routes: Vec<(&[Method], _)> = vec![
            (&[Method::POST], "/{*rest}"),
            (&[Method::POST], "/v1/{*rest}"),
            (&[Method::POST], "/v1/{id}"),
            (&[Method::POST], "/v1/pay"),
        ];
        for _ in 0..2 {
            let table = table(&routes);
            for (path, found) in
                [("/v1/pay", "/v1/pay"), ("/v1/p%61y", "/v1/pay"), ("/v1/7", "/v1/{id}"), ("/v1/7/x", "/v1/{*rest}")]
            {
                assert_eq!(table.find(&Method::POST, "", path), Some(&found), "{path}");
            }
            routes.reverse();
        }
    }

    #[test]
    fn a_specific_path_for_another_method_shadows_no_general_one() {
        let table = table(&[(&[Method::PATCH], "/v1/pay"), (&[Method::POST, Method::PUT], "/{*rest}")]);
        assert_eq!(table.find(&Method::POST, "", "/v1/pay"), Some(&"/{*rest}"));
        assert_eq!(table.find(&Method::PATCH, "", "/v1/pay"), Some(&"/v1/pay"));
        assert_eq!(table.find(&Method::DELETE, "", "/v1/pay"), None);
    }

    #[test]
    fn a_route_for_one_host_comes_before_one_for_all() {
        let mut table = RouteTable::default();
        for (host, path, name) in [(None, "/v1/pay", "all"), (Some("Api.example"), "/{*rest}", "one")] {
            table.insert(&[Method::POST], host, &PathPattern::parse(path).expect("it is one"), &name);
        }
        for (host, found) in [("api.EXAMPLE", "one"), ("other.example", "all"), ("", "all")] {
            assert_eq!(table.find(&Method::POST, host, "/v1/pay"), Some(&found), "{host}");
        }
        assert_eq!(table.find(&Method::POST, "other.example", "/v2"), None);
    }

    #[test]
    fn a_template_needs_a_route_for_all_its_paths() {
        let routes = table(&[(&[Method::POST], "/v1/{id}/pay"), (&[Method::POST], "/v1/special")]);
        for (template, found) in [
            ("/v1/{payment}/pay", Some("/v1/{id}/pay")),
            ("/v1/7/pay", Some("/v1/{id}/pay")),
            ("/v1/special", Some("/v1/special")),
            ("/v1/{id}", None),
            ("/v1/{id}/{verb}", None),
        ] {
            let template_read = PathTemplate::parse(template).expect("it is one");
            assert_eq!(routes.find_for_all(&Method::POST, &template_read).copied(), found, "{template}");
        }
    }
}
