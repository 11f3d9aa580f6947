//! The rule by which a request has its route.

use std::collections::HashMap;

use http::Method;

use super::normal_path::{RequestPath, path_behind_authority};
use super::path_pattern::PathPattern;
use super::path_template::PathTemplate;
use super::path_tree::PathTree;

/// The methods that a path without a route may be asked with. CONNECT and TRACE have no path of a service.
pub const METHODS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// The routes of a service by method and path; the most specific path wins.
///
/// By method first: a specific path that does not name a method must not shadow a general one that does, or a
/// state-changing request would slip through unguarded.
pub struct RouteTable<T>(HashMap<Method, MethodRoutes<T>>);

struct MethodRoutes<T> {
    rows: Vec<RouteTableEntry<T>>,
    /// The places of the rows.
    tree: PathTree,
}

/// The handling of a path that a lenient service may take for a route's, and that is not spelled as that route's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// It passes, as if the route were not there.
    Pass,
    Refuse,
    /// It is the route's.
    Same,
}

/// The result of a look into the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteMatch<'a, T> {
    /// A lenient service may take the path for this route's.
    Ambiguous(&'a T),
    Route(&'a T),
    NoRoute,
}

struct RouteTableEntry<T> {
    path: PathPattern,
    spelling: Spelling,
    route: T,
}

impl<T> Default for RouteTable<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Clone> RouteTable<T> {
    /// Adds a route. Of two with the same method and path the first one counts; the configuration has no such two.
    pub fn insert(&mut self, methods: &[Method], path: &PathPattern, spelling: Spelling, route: &T) {
        for method in methods {
            let MethodRoutes { rows, tree } = self.0.entry(method.clone()).or_default();
            tree.insert(path.segments(), rows.len());
            rows.push(RouteTableEntry { path: path.clone(), spelling, route: route.clone() });
        }
    }
}

impl<T> RouteTable<T> {
    /// The route of a request. The path is read in two ways: in its normal form, and as lenient services do. Where the
    /// readings lead to two routes, the one that a lenient service takes the path for decides, by its `spelling`. A
    /// path that services read in several ways is ambiguous wherever a route refuses spellings. So is one that begins
    /// with `//` and leads to a route behind the authority that some services read there: its key would not be that
    /// route's.
    // See docs/decisions/0018-read-paths-as-services-do.md.
    pub fn find(&self, method: &Method, path: &RequestPath<'_>) -> RouteMatch<'_, T> {
        let Some(routes) = self.0.get(method) else { return RouteMatch::NoRoute };
        let found = routes.find(path);
        // Dots may be removed on the way, and leave `//` at the beginning.
        for read in [path.sent(), path.normal()] {
            let Some(rest) = path_behind_authority(read) else { continue };
            let rest = RequestPath::new(rest);
            match (routes.find(&rest), &found) {
                // Both readings have the same keys, as of `//../v1/pay`.
                (RouteMatch::Route(one), RouteMatch::Route(other))
                    if std::ptr::eq(one, *other) && rest.key_path() == path.key_path() => {}
                (RouteMatch::Ambiguous(row) | RouteMatch::Route(row), _) if row.spelling != Spelling::Pass => {
                    return RouteMatch::Ambiguous(&row.route);
                }
                _ => {}
            }
        }
        match found {
            RouteMatch::Ambiguous(row) => RouteMatch::Ambiguous(&row.route),
            RouteMatch::Route(row) => RouteMatch::Route(&row.route),
            RouteMatch::NoRoute => RouteMatch::NoRoute,
        }
    }

    pub fn has_routes_for(&self, method: &Method) -> bool {
        self.0.contains_key(method)
    }

    /// The route that covers all paths of a template, if there is one. Requests to some of them may have a more
    /// specific route.
    pub fn find_for_all(&self, method: &Method, template: &PathTemplate) -> Option<&T> {
        let rows = self.0.get(method)?.rows.iter().filter(|row| template.is_covered_by(&row.path));
        rows.min_by_key(|row| &row.path).map(|row| &row.route)
    }
}

impl<T> Default for MethodRoutes<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), tree: PathTree::default() }
    }
}

impl<T> MethodRoutes<T> {
    /// The row of a path, read in its normal form and as lenient services do.
    fn find(&self, path: &RequestPath<'_>) -> RouteMatch<'_, RouteTableEntry<T>> {
        let least = |path: &str, is_match: &dyn Fn(&PathPattern) -> bool| {
            let mut least: Option<(&RouteTableEntry<T>, usize)> = None;
            self.tree.visit(path, &mut |place| {
                let row = &self.rows[place];
                let is_less = least.is_none_or(|(other, at)| (&row.path, place) < (&other.path, at));
                if is_less && is_match(&row.path) {
                    least = Some((row, place));
                }
            });
            least.map(|(row, _)| row)
        };
        let exact = least(path.normal(), &|pattern| pattern.matches(path.normal()));
        let lenient = match path.lenient() {
            Some(form) => least(form, &|pattern| pattern.matches_leniently(form)),
            None => {
                let refusing = self.rows.iter().filter(|row| row.spelling != Spelling::Pass);
                if let Some(row) = refusing.min_by_key(|row| &row.path) {
                    return RouteMatch::Ambiguous(row);
                }
                None
            }
        };
        match (exact, lenient.filter(|row| row.spelling != Spelling::Pass)) {
            (Some(exact), Some(lenient)) if std::ptr::eq(exact, lenient) => RouteMatch::Route(exact),
            (_, Some(row)) if row.spelling == Spelling::Same => RouteMatch::Route(row),
            (_, Some(row)) => RouteMatch::Ambiguous(row),
            (Some(exact), None) => RouteMatch::Route(exact),
            (None, None) => RouteMatch::NoRoute,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::normal_path::has_unsafe_character;

    fn table(routes: &[(&[Method], &'static str)]) -> RouteTable<&'static str> {
        let mut table = RouteTable::default();
        for (methods, path) in routes {
            table.insert(methods, &PathPattern::parse(path).expect("it is one"), Spelling::Refuse, path);
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
                assert_eq!(table.find(&Method::POST, &RequestPath::new(path)), RouteMatch::Route(&found), "{path}");
            }
            routes.reverse();
        }
    }

    #[test]
    fn a_specific_path_for_another_method_shadows_no_general_one() {
        let table = table(&[(&[Method::PATCH], "/v1/pay"), (&[Method::POST, Method::PUT], "/{*rest}")]);
        assert_eq!(table.find(&Method::POST, &RequestPath::new("/v1/pay")), RouteMatch::Route(&"/{*rest}"));
        assert_eq!(table.find(&Method::PATCH, &RequestPath::new("/v1/pay")), RouteMatch::Route(&"/v1/pay"));
        assert_eq!(table.find(&Method::DELETE, &RequestPath::new("/v1/pay")), RouteMatch::NoRoute);
    }

    #[test]
    fn a_shorter_route_does_not_hide_the_guard_of_a_longer_one() {
        let mut table = RouteTable::default();
        for (path, spelling) in [("/v1/orders/{id}", Spelling::Pass), ("/v1/orders/{id}/pay", Spelling::Refuse)] {
            let pattern = PathPattern::parse(path).expect("it is one");
            table.insert(&[Method::POST], &pattern, spelling, &path);
        }
        let find = |path| table.find(&Method::POST, &RequestPath::new(path));
        assert_eq!(find("/v1/orders/7%2Fpay"), RouteMatch::Ambiguous(&"/v1/orders/{id}/pay"));
        assert_eq!(find("/v1/orders/a%2Fb"), RouteMatch::Route(&"/v1/orders/{id}"));
        assert_eq!(find("/v1/orders/7/pay"), RouteMatch::Route(&"/v1/orders/{id}/pay"));
    }

    #[test]
    fn another_spelling_of_a_path_is_the_most_specific_routes_that_lenient_services_may_take_it_for() {
        for (spelling, found) in [
            (Spelling::Refuse, RouteMatch::Ambiguous(&"pay")),
            (Spelling::Same, RouteMatch::Route(&"pay")),
            (Spelling::Pass, RouteMatch::Route(&"all")),
        ] {
            let mut table = RouteTable::default();
            for (path, spelling, name) in [("/{*rest}", Spelling::Refuse, "all"), ("/v1/pay", spelling, "pay")] {
                let path = PathPattern::parse(path).expect("it is one");
                table.insert(&[Method::POST], &path, spelling, &name);
            }
            for path in ["/v1/pay/", "/V1/pay", "/v1/pay;x=1", "/v1%2fpay", "/v1/x/..%2fpay"] {
                assert_eq!(table.find(&Method::POST, &RequestPath::new(path)), found, "{path}");
            }
            assert_eq!(table.find(&Method::POST, &RequestPath::new("/v1/p%61y")), RouteMatch::Route(&"pay"));
            assert_eq!(table.find(&Method::POST, &RequestPath::new("/v1/pays/")), RouteMatch::Route(&"all"));
            // For a service that parses its target as a URL reference this is `/pay`, which the other route guards.
            assert_eq!(table.find(&Method::POST, &RequestPath::new("//v1/pay")), RouteMatch::Ambiguous(&"all"));
            assert_eq!(table.find(&Method::GET, &RequestPath::new("//v1/pay")), RouteMatch::NoRoute);
        }
    }

    #[test]
    fn a_path_behind_an_authority_is_refused_where_a_route_guards_it() {
        let routes = table(&[(&[Method::POST], "/v1/pay")]);
        for path in [
            "//x/v1/pay",
            "//x:1/v1/pay",
            "///x/v1/pay",
            "//x//v1/pay",
            "//x/v1%2fpay",
            "//x/a/../v1/pay",
            "//x/V1/pay/",
            // Dots may be removed on the way.
            "/.//x/v1/pay",
            "/a/..//x/v1/pay",
            "/%2e//x/v1/pay",
        ] {
            assert_eq!(
                routes.find(&Method::POST, &RequestPath::new(path)),
                RouteMatch::Ambiguous(&"/v1/pay"),
                "{path}"
            );
        }
        assert_eq!(
            routes.find(&Method::POST, &RequestPath::new("//../v1/pay")),
            RouteMatch::Route(&"/v1/pay"),
            "one key in both readings"
        );
        for path in ["//x/v1/other", "//", "//x", "/x//v1/pay", "/x/v1/pay"] {
            assert_eq!(routes.find(&Method::POST, &RequestPath::new(path)), RouteMatch::NoRoute, "{path}");
        }
        let pattern = PathPattern::parse("/v1/pay").expect("it is one");
        for (spelling, found) in
            [(Spelling::Same, RouteMatch::Ambiguous(&"pay")), (Spelling::Pass, RouteMatch::NoRoute)]
        {
            let mut routes = RouteTable::default();
            routes.insert(&[Method::POST], &pattern, spelling, &"pay");
            assert_eq!(routes.find(&Method::POST, &RequestPath::new("//x/v1/pay")), found, "{spelling:?}");
        }
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

    /// Rewrites of a path that some server undoes; `seed` varies where they apply.
    const REWRITES: [fn(&str, usize) -> String; 21] = [
        |path, _| format!("/{path}"),
        |path, _| format!("//x{path}"),
        |path, _| format!("///x:1{path}"),
        |path, seed| insert(path, seed, "/"),
        |path, _| format!("{path}/"),
        |path, _| format!("{path}//"),
        |path, _| format!("{path};x=1"),
        |path, seed| insert(path, seed, ";a"),
        |path, seed| insert(path, seed, "/."),
        |path, seed| insert(path, seed, "/x/.."),
        |path, seed| insert(path, seed, "/x/..;"),
        |path, seed| insert(path, seed, "/x/%2e%2E"),
        |path, seed| insert(path, seed, "/x/..%2f."),
        |path, seed| insert(path, seed, "/a%2Fb/.."),
        |path, seed| insert(path, seed, "/a%5Cb/.."),
        |path, seed| insert(path, seed, "/..;x/.."),
        |path, seed| replace_slash(path, seed, "%2F"),
        |path, seed| replace_slash(path, seed, "%5c"),
        |path, seed| replace_slash(path, seed, "\\"),
        |path, seed| at_letter(path, seed, |letter| letter.to_ascii_uppercase().to_string()),
        |path, seed| at_letter(path, seed, |letter| format!("%{:02x}", u32::from(letter))),
    ];

    /// Inserts a text before one of the slashes, or at the end.
    fn insert(path: &str, seed: usize, text: &str) -> String {
        let mut places: Vec<_> = path.match_indices('/').map(|(at, _)| at).skip(1).collect();
        places.push(path.len());
        let at = places[seed % places.len()];
        format!("{}{text}{}", &path[..at], &path[at..])
    }

    /// Replaces one of the slashes, but the first.
    fn replace_slash(path: &str, seed: usize, text: &str) -> String {
        let places: Vec<_> = path.match_indices('/').map(|(at, _)| at).skip(1).collect();
        let Some(at) = (!places.is_empty()).then(|| places[seed % places.len()]) else { return path.to_owned() };
        format!("{}{text}{}", &path[..at], &path[at + 1..])
    }

    /// Rewrites a letter of a fixed segment: the values of these tests are digits.
    fn at_letter(path: &str, seed: usize, rewrite: impl Fn(char) -> String) -> String {
        let places: Vec<_> = path
            .char_indices()
            .filter(|(at, letter)| letter.is_ascii_lowercase() && !path[at.saturating_sub(2)..*at].contains('%'))
            .collect();
        let Some((at, letter)) = (!places.is_empty()).then(|| places[seed % places.len()]) else {
            return path.to_owned();
        };
        format!("{}{}{}", &path[..at], rewrite(letter), &path[at + 1..])
    }

    type PathStep = fn(&str) -> String;

    /// Steps by which servers read a path; each list is one server. Escapes of letters and dots are decoded before.
    const SERVERS: [(&str, &[PathStep]); 14] = [
        ("RFC 3986", &[dots]),
        ("Node's URL", &[authority, dots]),
        ("Node's URL before a router", &[authority, dots, decode, merge]),
        ("a gateway that removes dots, before Node's URL", &[dots, authority, dots]),
        ("nginx", &[decode, merge, dots]),
        ("Go", &[decode, dots, merge]),
        ("WSGI", &[decode]),
        ("Tomcat", &[parameters, decode, backslashes, dots, merge]),
        ("Jetty", &[dots, parameters, decode, merge]),
        ("Spring", &[parameters, merge, dots, decode]),
        ("IIS", &[decode, backslashes, merge, dots]),
        ("RFC 1808", &[last_parameters, dots]),
        ("a normalizing gateway before nginx", &[dots, merge, decode, merge, dots]),
        ("a normalizing gateway before Tomcat", &[dots, parameters, decode, backslashes, dots, merge]),
    ];

    fn decode(path: &str) -> String {
        path.replace("%2F", "/").replace("%2f", "/")
    }

    fn authority(path: &str) -> String {
        let Some(rest) = path.strip_prefix("//") else { return path.to_owned() };
        let segments: Vec<_> = rest.split('/').skip_while(|segment| segment.is_empty()).skip(1).collect();
        format!("/{}", segments.join("/"))
    }

    fn backslashes(path: &str) -> String {
        path.replace("%5C", "/").replace("%5c", "/").replace('\\', "/")
    }

    fn merge(path: &str) -> String {
        let mut merged = path.to_owned();
        while merged.contains("//") {
            merged = merged.replace("//", "/");
        }
        merged
    }

    fn parameters(path: &str) -> String {
        path.split('/').map(|segment| segment.split(';').next().unwrap_or("")).collect::<Vec<_>>().join("/")
    }

    fn last_parameters(path: &str) -> String {
        let (folder, last) = path.rsplit_once('/').unwrap_or(("", path));
        format!("{folder}/{}", last.split(';').next().unwrap_or(""))
    }

    fn dots(path: &str) -> String {
        let mut kept: Vec<&str> = Vec::new();
        for segment in path.split('/').skip(1) {
            match segment {
                "." => {}
                ".." => drop(kept.pop()),
                other => kept.push(other),
            }
        }
        format!("/{}", kept.join("/"))
    }

    /// The servers that take `sent` for `path`. None tells letters by case, or paths by a `/` at the end.
    fn undone_by(sent: &str, path: &str) -> Vec<&'static str> {
        let same = |one: &str, other: &str| one.trim_end_matches('/').eq_ignore_ascii_case(other.trim_end_matches('/'));
        let decoded = crate::percent::normalize_escapes(sent);
        let read = |steps: &[PathStep]| steps.iter().fold(decoded.clone(), |path, step| step(&path));
        SERVERS.into_iter().filter(|(_, steps)| same(&read(steps), path)).map(|(name, _)| name).collect()
    }

    proptest::proptest! {
        #[test]
        fn no_spelling_that_a_server_undoes_leaves_the_guard(
            rewrites in proptest::collection::vec((0..REWRITES.len(), 0..8_usize), 1..5),
            (pattern, path) in proptest::sample::select(vec![
                ("/v1/payments", "/v1/payments"),
                ("/v1/payments/", "/v1/payments/"),
                ("/v1/orders/{id}/pay", "/v1/orders/77/pay"),
                ("/v1/orders/{id}", "/v1/orders/77"),
                ("/v2/{*rest}", "/v2/payments/77"),
                ("/v2/{*rest}", "/v2/"),
                ("/", "/"),
            ]),
            is_rest_guarded: bool,
        ) {
            let sent = rewrites.iter().fold(path.to_owned(), |path, (rewrite, seed)| REWRITES[*rewrite](&path, *seed));
            let servers = undone_by(&sent, path);
            let patterns = [pattern, "/v1/health"].into_iter().chain(is_rest_guarded.then_some("/{*rest}"));
            let mut table = RouteTable::default();
            for pattern in patterns {
                let pattern = PathPattern::parse(pattern).expect("it is one");
                table.insert(&[Method::POST], &pattern, Spelling::Refuse, &pattern);
            }
            match table.find(&Method::POST, &RequestPath::new(&sent)) {
                _ if servers.is_empty() || has_unsafe_character(&sent) => {}
                RouteMatch::Ambiguous(_) => {}
                RouteMatch::Route(_) => {
                    proptest::prop_assert_eq!(RequestPath::new(&sent).key_path(), RequestPath::new(path).key_path(), "{} gets another key: {:?}", sent, servers);
                }
                RouteMatch::NoRoute => proptest::prop_assert!(false, "{sent} is not guarded: {servers:?}"),
            }
        }
    }
}
