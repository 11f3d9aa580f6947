//! Which route a request belongs to.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::Method;

use super::pace::{Pace, Paces};
use crate::config::{self, Config, Route};
use crate::upstream::Upstream;

/// A route with what one worker needs to serve it. Cheap to clone.
#[derive(Clone)]
pub struct Guard {
    /// The policy.
    pub route: Arc<Route>,
    /// Where its requests go.
    pub upstream: Upstream,
    /// How long its attempts take.
    pub pace: Arc<Pace>,
}

/// The routes by method and path; the most specific path wins.
///
/// By method first: a specific path that does not name a method must not shadow a general one that does, or a
/// state-changing request would slip through unguarded. A list for each method, not a tree: routes are few, and a
/// comparison of the first segments rules most of them out.
pub struct Router(HashMap<Method, Vec<Guard>>);

impl Router {
    /// The checked routes, of which the configuration has made sure that no two are the same, each with its pace.
    pub fn new(config: &Config, paces: &Paces) -> Self {
        let mut pools: HashMap<(Arc<config::Upstream>, Duration, Duration), Upstream> = HashMap::new();
        let mut lists: HashMap<Method, Vec<Guard>> = HashMap::new();
        for route in &config.routes {
            let pool = (Arc::clone(&route.upstream), route.connect_timeout, route.upstream_idle_timeout);
            let upstream = pools
                .entry(pool)
                .or_insert_with_key(|(target, connect, idle)| Upstream::new(target, *connect, *idle))
                .clone();
            let guard = Guard { route: Arc::clone(route), upstream, pace: paces.of(&route.name) };
            for method in &route.methods {
                lists.entry(method.clone()).or_default().push(guard.clone());
            }
        }
        for list in lists.values_mut() {
            // A route for one host comes before one for all.
            list.sort_by_key(|guard| (guard.route.host.is_none(), guard.route.path.clone()));
        }
        Self(lists)
    }

    /// The route of a request, if one guards it.
    pub fn find(&self, method: &Method, host: &str, path: &str) -> Option<&Guard> {
        let list = self.0.get(method)?;
        let path = matchable(path);
        list.iter().find(|guard| {
            let route = &guard.route;
            route.host.as_deref().is_none_or(|only| only.eq_ignore_ascii_case(host)) && route.path.matches(&path)
        })
    }
}

/// The path as routes are matched with it: what RFC 3986 section 6.2.2 calls equivalent is spelt alike, so that
/// `/v1/p%61y` and `/v1/x/../pay` are guarded like `/v1/pay`, which is what a service may well take them for.
fn matchable(path: &str) -> Cow<'_, str> {
    let plain = !path.contains('%') && !path.contains("/.");
    if plain {
        return Cow::Borrowed(path);
    }
    let decoded = decode_unreserved(path);
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_in_directory = false;
    for segment in decoded.split('/').skip(1) {
        ends_in_directory = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => {
                segments.pop();
            }
            other => segments.push(other),
        }
    }
    let mut resolved = String::with_capacity(decoded.len());
    for segment in &segments {
        resolved.push('/');
        resolved.push_str(segment);
    }
    if ends_in_directory || resolved.is_empty() {
        resolved.push('/');
    }
    Cow::Owned(resolved)
}

/// Decodes `%XX` of letters, digits, `-`, `.`, `_` and `~`, which mean the same either way. Others stay: `%2F` is no `/`.
fn decode_unreserved(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        decoded.push_str(&rest[..at]);
        let byte = rest.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                decoded.push(char::from(byte));
                rest = &rest[at + 3..];
            }
            _ => {
                decoded.push('%');
                rest = &rest[at + 1..];
            }
        }
    }
    decoded + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_paths_are_matched_alike() {
        for (sent, matched) in [
            ("/v1/pay", "/v1/pay"),
            ("/v1/p%61y", "/v1/pay"),
            ("/v1/%70%61%79", "/v1/pay"),
            ("/v1/x/../pay", "/v1/pay"),
            ("/v1/./pay", "/v1/pay"),
            ("/v1/%2e%2E/pay", "/pay"),
            ("/../../pay", "/pay"),
            ("/v1/pay/..", "/v1/"),
            ("/v1/pay/.", "/v1/pay/"),
            ("/v1%2Fpay", "/v1%2Fpay"),
            ("/v1/%", "/v1/%"),
            ("/v1/%6", "/v1/%6"),
            ("/v1/%+1", "/v1/%+1"),
            ("/.well-known/x", "/.well-known/x"),
            ("/..", "/"),
        ] {
            assert_eq!(matchable(sent), matched, "{sent}");
        }
    }
}
