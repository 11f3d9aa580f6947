//! Reads `[policy]`, and holds the routes of all files to it: what a company decides, no team can weaken.

use std::time::Duration;

use http::Method;

use super::options::options;
use super::reader::Section;
use super::route_options::read_lints;
use super::services::ServiceTable;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::path_pattern::PathPattern;
use oncegate_domain::path_samples::sample_paths;
use oncegate_domain::route_table::{RouteMatch, RouteTable, Spelling};
use oncegate_settings::{Route, RouteKind, RouteMode, Word, parse_duration, show_duration, words};

words! {
    /// The handling of a state-changing request that no route guards.
    pub enum UnguardedPolicy {
        /// It passes.
        Pass = "pass",
        /// 403.
        Refuse = "refuse",
    }
}

options! {
    /// The options of `[policy]`.
    struct Policy {
        /// the shortest `ttl` that a route may have
        ttl_min: Duration = "0s" => Duration, parsed(parse_duration);
        /// requests that each service must guard, as `METHOD /path`; of one service alone as `NAME METHOD /path`
        guarded: Texts = [] => Vec<GuardedRequests>, values(GuardedRequests::parse);
        /// such requests, whose routes must have `kind = "money"`
        money: Texts = [] => Vec<GuardedRequests>, values(GuardedRequests::parse);
        /// the warnings that no `allow` may name
        not_allowed: Texts = [] => Vec<&'static str>, made(|section| read_lints(section, "not_allowed"));
        /// the parts that no scope may have, such as `none`
        forbidden_scopes: Texts = [] => Vec<String>, values(|part| Ok(part.to_owned()));
    }
}

/// Requests that must be guarded.
pub(super) struct GuardedRequests {
    text: String,
    /// `None` for every service.
    service: Option<String>,
    method: Method,
    path: PathPattern,
}

impl GuardedRequests {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            "is no method and path: write `POST /v1/payments`, or `orders POST /v1/{*rest}` for a service".to_owned()
        };
        let (before, path) = text.rsplit_once(' ').ok_or_else(wrong)?;
        let (service, method) =
            before.split_once(' ').map_or((None, before), |(service, method)| (Some(service), method));
        Ok(Self {
            text: text.to_owned(),
            service: service.map(str::to_owned),
            method: method.parse().map_err(|_| wrong())?,
            path: PathPattern::parse(path)?,
        })
    }
}

/// Reports each route and each service that breaks the policy, where it is written, with the rule.
pub(super) fn check(top: &Section<'_>, services: &[ServiceTable<'_>], routes: &[(Section<'_>, Route)]) {
    let refuses_unguarded = top.choice::<UnguardedPolicy>("unguarded") == UnguardedPolicy::Refuse;
    let section = top.table("policy");
    let policy = Policy::read(&section);
    for (name, requests) in [("guarded", &policy.guarded), ("money", &policy.money)] {
        for wanted in requests {
            let Some(named) = &wanted.service else { continue };
            if !services.iter().any(|service| *service.name == **named) {
                section.problem(name, format!("has `{}`, and there is no service `{named}`", wanted.text));
            }
        }
    }
    let rule = |name: &str| format!("`policy.{name}` ({})", section.reader().show(&section.position(name)));
    for (read, route) in routes {
        policy.check_route(&rule, read, route);
    }
    policy.check_allowed(&rule, top);
    for service in services {
        let own: Vec<_> = routes.iter().filter(|(_, route)| route.service.name == service.name).collect();
        let mut table = RouteTable::default();
        for (at, (_, route)) in own.iter().enumerate() {
            table.insert(&route.options.methods, &route.path, Spelling::Pass, &at);
        }
        for (name, requests) in [("guarded", &policy.guarded), ("money", &policy.money)] {
            let of_service =
                |rule: &&GuardedRequests| rule.service.as_deref().is_none_or(|only| only == &*service.name);
            for wanted in requests.iter().filter(of_service) {
                let patterns = own.iter().map(|(_, route)| &route.path).chain([&wanted.path]).collect::<Vec<_>>();
                for path in sample_paths(&patterns).iter().filter(|path| wanted.path.matches(path)) {
                    let found = match table.find(&wanted.method, &RequestPath::new(path)) {
                        RouteMatch::Route(at) | RouteMatch::Ambiguous(at) => Some(own[*at]),
                        RouteMatch::NoRoute => None,
                    };
                    match found {
                        None if refuses_unguarded && wanted.method != Method::GET => {}
                        None => {
                            let message = format!("leaves `{}` unguarded, which {} forbids", wanted.text, rule(name));
                            service.section.missing("routes", message);
                        }
                        Some((read, route)) if route.options.mode != RouteMode::Enforce => {
                            let (mode, rule) = (route.options.mode.word(), rule(name));
                            read.problem("mode", format!("is `{mode}`, and {rule} has `{}` guarded", wanted.text));
                        }
                        Some((read, route)) if name == "money" && route.options.kind != RouteKind::Money => {
                            let (kind, rule) = (route.options.kind.word(), rule(name));
                            read.problem("kind", format!("is `{kind}`, and {rule} has `{}` as `money`", wanted.text));
                        }
                        Some((read, route)) => {
                            if let Some((key, how)) = hole(route, name == "money") {
                                let message = format!("{how}, and {} has all of `{}` guarded", rule(name), wanted.text);
                                read.problem(key, message);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Reports the warnings that the policy does not allow, whether a file allows them or not.
pub(super) fn check_warnings(top: &Section<'_>, warnings: &[String]) {
    let section = top.table("policy");
    for lint in read_lints(&section, "not_allowed") {
        for warning in warnings.iter().filter(|warning| warning.ends_with(&format!("[{lint}]"))) {
            section.problem("not_allowed", format!("forbids: {warning}"));
        }
    }
}

/// The option by which a route that enforces leaves some of its requests unguarded.
fn hole(route: &Route, is_money: bool) -> Option<(&'static str, &'static str)> {
    let options = &route.options;
    if options.spelling == Spelling::Pass {
        return Some(("spelling", "lets other spellings pass"));
    }
    if route.bypasses() {
        return Some(("store_down", "lets requests pass while the store is away"));
    }
    if !options.operations.is_empty() {
        return Some(("operations", "guards some operations alone"));
    }
    (is_money && !options.key.required).then_some(("key", "lets requests without a key pass"))
}

impl Policy {
    fn check_route(&self, rule: &dyn Fn(&str) -> String, section: &Section<'_>, route: &Route) {
        let ttl = route.options.ttl
            + route.options.remember.filter(|_| route.options.replay.until.is_some()).unwrap_or_default();
        if ttl < self.ttl_min {
            let (ttl, least) = (show_duration(ttl), show_duration(self.ttl_min));
            section.problem("ttl", format!("is {ttl}, and {} has {least} at least", rule("ttl_min")));
        }
        for part in &self.forbidden_scopes {
            let wanted = part.trim_end_matches('?');
            let has = match wanted {
                "none" => route.scope.parts.is_empty(),
                wanted => route.scope.parts.iter().any(|own| own.name.eq_ignore_ascii_case(wanted)),
            };
            if has {
                section.problem("scope", format!("has `{part}`, which {} forbids", rule("forbidden_scopes")));
            }
        }
        self.check_allowed(rule, section);
    }

    fn check_allowed(&self, rule: &dyn Fn(&str) -> String, section: &Section<'_>) {
        for lint in read_lints(section, "allow").into_iter().filter(|lint| self.not_allowed.contains(lint)) {
            section.problem("allow", format!("has `{lint}`, which {} forbids", rule("not_allowed")));
        }
    }
}
