//! Reads `[policy]`, and holds the routes of all files to it: what a company decides, no team can weaken.

use std::time::Duration;

use http::Method;

use super::options::options;
use super::reader::Section;
use super::route_options::{parse_name, read_lints};
use super::scope::parse_name_of_part;
use super::services::ServiceTable;
use super::warnings::{released_failure, released_success};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::path_pattern::PathPattern;
use oncegate_domain::path_samples::sample_paths;
use oncegate_domain::response_policy::OnUnknown;
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
        /// the shortest `ttl`, or `replay.until`, that a route may have
        ttl_min: Duration = "0s" => Duration, parsed(parse_duration);
        /// requests that each service must guard, as `METHOD /path`; of one service alone as `NAME METHOD /path`
        guarded: Texts = [] => Vec<GuardedRequests>, values(GuardedRequests::parse);
        /// such requests, whose routes must have `kind = "money"`
        money: Texts = [] => Vec<GuardedRequests>, values(GuardedRequests::parse);
        /// the warnings that no `allow` may name
        not_allowed: Texts = [] => Vec<&'static str>, made(|section| read_lints(section, "not_allowed"));
        /// the parts that no scope may have, such as `none`
        forbidden_scopes: Texts = [] => Vec<String>, values(parse_name_of_part);
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
                            let hint = "; a rule for one service begins with its name";
                            let (rule, hint) = (rule(name), if wanted.service.is_none() { hint } else { "" });
                            let message = format!("leaves `{}` unguarded, which {rule} forbids{hint}", wanted.text);
                            service.section.missing("routes", message);
                        }
                        Some((read, route)) if route.options.mode != RouteMode::Enforce => {
                            let (mode, rule) = (route.options.mode.word(), rule(name));
                            read.blame("mode", format!("is `{mode}`, and {rule} has `{}` guarded", wanted.text));
                        }
                        Some((read, route)) if name == "money" && route.options.kind != RouteKind::Money => {
                            let (kind, rule) = (route.options.kind.word(), rule(name));
                            read.blame("kind", format!("is `{kind}`, and {rule} has `{}` as `money`", wanted.text));
                        }
                        Some((read, route)) => {
                            if let Some((key, how)) = hole(route, name == "money") {
                                let message = format!("{how}, and {} has all of `{}` guarded", rule(name), wanted.text);
                                read.blame(key, message);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Reports the warnings that the policy does not allow, whether a file allows them or not: at their route, if they are
/// about one.
pub(super) fn check_warnings(top: &Section<'_>, warnings: &[String]) {
    let (section, routes) = (top.table("policy"), top.tables("routes"));
    let rule = section.reader().show(&section.position("not_allowed"));
    for lint in read_lints(&section, "not_allowed") {
        for warning in warnings.iter().filter(|warning| warning.ends_with(&format!("[{lint}]"))) {
            let about = warning.strip_prefix("route `").or_else(|| warning.strip_prefix("routes `"));
            let named = about.and_then(|rest| Some(rest.split_once("`: ")?.0));
            let is_named = |route: &&Section<'_>| {
                let name = route.optional("name", parse_name);
                name.zip(named).is_some_and(|(name, named)| named.split("`, `").any(|named| *named == *name))
            };
            let mut blamed = routes.iter().filter(is_named).peekable();
            if blamed.peek().is_none() {
                section.problem("not_allowed", format!("forbids: {warning}"));
            }
            blamed.for_each(|route| route.blame("name", format!("`policy.not_allowed` ({rule}) forbids: {warning}")));
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
    if let Some((_, option)) = released_success(route) {
        return Some((option, "has a retry executed again after a success"));
    }
    // The service decides about a token that is used again.
    if options.on_unknown == OnUnknown::Retry || (is_money && options.on_unknown == OnUnknown::RetryWhenQuiet) {
        return Some(("on_unknown", "has executed again what may have been executed"));
    }
    if is_money && released_failure(route).is_some() {
        return Some(("release_statuses", "has a retry executed again after a failure that may come after the charge"));
    }
    (is_money && !options.key.required).then_some(("key", "lets requests without a key pass"))
}

impl Policy {
    fn check_route(&self, rule: &dyn Fn(&str) -> String, section: &Section<'_>, route: &Route) {
        let ttl = route.options.ttl;
        if ttl < self.ttl_min {
            let (ttl, least) = (show_duration(ttl), show_duration(self.ttl_min));
            let message = format!("is {ttl}, and {} has {least} at least", rule("ttl_min"));
            match route.options.replay.until {
                Some(_) => section.table("replay").blame("until", message),
                None => section.blame("ttl", message),
            }
        }
        for part in &self.forbidden_scopes {
            let has = match &**part {
                "none" => !route.scope.keeps_callers_apart() && route.signature.is_none(),
                part => route.scope.parts.iter().any(|own| *own.name == *part),
            };
            if has {
                section.blame("scope", format!("has `{part}`, which {} forbids", rule("forbidden_scopes")));
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
