//! Notices a service that renews a part of a route's scope: a cookie that each response signs anew, or a token in a
//! field.
//!
//! A retry after such a response is another caller, and is executed again. The response may be that of any request,
//! such as a page that polls; so all responses are looked at that could change a part which their own request had.

use std::cell::LazyCell;
use std::sync::Arc;

use http::header::{AUTHORIZATION, COOKIE, HOST, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use crate::instance::metrics::ScopeRenewals;
use oncegate_domain::place::Place;
use oncegate_settings::{Config, Route, RouteMode, ScopeSource};
use oncegate_telemetry::metrics::Counter;

/// The parts of all routes' scopes that a service can renew.
pub struct RenewableParts {
    parts: Vec<RenewablePart>,
    /// The request fields that they are in, each once.
    fields: Vec<HeaderName>,
}

struct RenewablePart {
    route: Arc<Route>,
    name: Box<str>,
    field: HeaderName,
    /// The name of the cookie, if the part is one.
    cookie: Option<Box<str>>,
    renewals: Counter,
}

/// The parts that one request has.
pub(super) struct SentParts<'a> {
    renewable: &'a RenewableParts,
    fields: Vec<(&'a HeaderName, HeaderValue)>,
    /// Where the request went, for cookies.
    target: Option<(Uri, Option<HeaderValue>)>,
}

impl RenewableParts {
    /// `None` where no scope reads a cookie or a field.
    pub(super) fn of(config: &Config, renewals: &ScopeRenewals) -> Option<Arc<Self>> {
        let mut parts = Vec::new();
        let mut fields = Vec::new();
        for route in config.routes.iter().filter(|route| route.options.mode != RouteMode::Off) {
            for part in &route.scope.parts {
                let (field, cookie) = match &part.source {
                    ScopeSource::Authorization => (AUTHORIZATION, None),
                    ScopeSource::Place(Place::Header(name, _)) => (name.clone(), None),
                    ScopeSource::Place(Place::Cookie(name)) => (COOKIE, Some(name.clone())),
                    // A new token of the same caller has the same claim. A response sets no other place.
                    ScopeSource::ClientCertificate | ScopeSource::Jwt { .. } | ScopeSource::Place(_) => continue,
                };
                if !fields.contains(&field) {
                    fields.push(field.clone());
                }
                let (name, renewals) = (part.name.clone(), renewals.of((&route.service.name, &route.name), &part.name));
                parts.push(RenewablePart { route: Arc::clone(route), name, field, cookie, renewals });
            }
        }
        (!parts.is_empty()).then(|| Arc::new(Self { parts, fields }))
    }

    /// Keeps what a request has of the parts; `None` if it has nothing.
    pub(super) fn keep(&self, uri: &Uri, headers: &HeaderMap) -> Option<SentParts<'_>> {
        let mut fields = Vec::new();
        for name in &self.fields {
            fields.extend(headers.get_all(name).iter().map(|value| (name, value.clone())));
        }
        if fields.is_empty() {
            return None;
        }
        let has_cookie = fields.iter().any(|(name, _)| **name == COOKIE);
        let target = has_cookie.then(|| (uri.clone(), headers.get(HOST).cloned()));
        Some(SentParts { renewable: self, fields, target })
    }
}

impl SentParts<'_> {
    /// Counts each part to which a response gives another value than the request had, and logs it the first time.
    pub(super) fn note_renewals(&self, response: &HeaderMap) {
        for part in &self.renewable.parts {
            if self.is_renewed(part, response) && part.renewals.inc() == 0 {
                tracing::warn!(route = %part.route.name, part = &*part.name,
                    "the service gives a part of the route's scope another value: a retry with it is another caller, and is \
                     executed again");
            }
        }
    }

    fn is_renewed(&self, part: &RenewablePart, response: &HeaderMap) -> bool {
        let Some(name) = &part.cookie else {
            let is_other = |new: &HeaderValue| {
                let mut sent = self.values(&part.field).peekable();
                let new = new.as_bytes().trim_ascii();
                !new.is_empty() && sent.peek().is_some() && sent.all(|value| value.trim_ascii() != new)
            };
            return response.get(&part.field).is_some_and(is_other);
        };
        let lines = response.get_all(SET_COOKIE).iter();
        // Looked for once, and only for a response that sets it.
        let sent = LazyCell::new(|| self.sent_cookie(name));
        lines.filter_map(|line| SetCookie::parse(line.as_bytes())).any(|cookie| {
            cookie.name == name.as_bytes()
                && sent.is_some_and(|sent| sent != cookie.value)
                && self.reaches(&cookie, &part.route)
        })
    }

    fn values<'a>(&'a self, name: &'a HeaderName) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().filter(move |(field, _)| *field == name).map(|(_, value)| value.as_bytes())
    }

    fn sent_cookie(&self, name: &str) -> Option<&[u8]> {
        self.values(&COOKIE).flat_map(|line| line.split(|byte| *byte == b';')).find_map(|pair| {
            let (found, value) = split_pair(pair)?;
            (found == name.as_bytes()).then_some(value)
        })
    }

    /// Whether a client sends the cookie to a route (RFC 6265 sections 5.1.3 and 5.1.4).
    fn reaches(&self, cookie: &SetCookie<'_>, route: &Route) -> bool {
        let Some((uri, host_field)) = &self.target else { return false };
        let own_path = uri.path();
        let directory = own_path.rfind('/').map_or("/", |end| &own_path[..end.max(1)]).as_bytes();
        let path = cookie.path.filter(|path| path.starts_with(b"/")).unwrap_or(directory);
        let pattern = route.path.to_string();
        // The fixed beginning of the route's paths: any path may follow it.
        let fixed = pattern.split('{').next().unwrap_or_default().as_bytes();
        let covers_path = match fixed.strip_prefix(path) {
            Some(rest) => path.ends_with(b"/") || rest.is_empty() || rest.starts_with(b"/"),
            None => fixed.len() < pattern.len() && path.starts_with(fixed),
        };
        let hosts = &route.service.hosts;
        let covers = |host: &str| match cookie.domain {
            Some(domain) => {
                let before = host.len().checked_sub(domain.len());
                before.is_some_and(|before| {
                    let (beginning, end) = host.as_bytes().split_at(before);
                    end.eq_ignore_ascii_case(domain) && (beginning.is_empty() || beginning.ends_with(b"."))
                })
            }
            None => named_host(uri, host_field.as_ref()).is_none_or(|own| own.eq_ignore_ascii_case(host)),
        };
        covers_path && (hosts.is_empty() || hosts.iter().any(|host| covers(host)))
    }
}

/// The host that a request names, without a port.
fn named_host<'a>(uri: &'a Uri, field: Option<&'a HeaderValue>) -> Option<&'a str> {
    let named = uri.host().or_else(|| field?.to_str().ok())?;
    Some(named.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map_or(named, |(host, _)| host))
}

/// A cookie that a response sets (RFC 6265 section 5.2).
struct SetCookie<'a> {
    name: &'a [u8],
    value: &'a [u8],
    path: Option<&'a [u8]>,
    domain: Option<&'a [u8]>,
}

impl<'a> SetCookie<'a> {
    /// `None` for a cookie that the response deletes: the caller has signed off.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut parts = line.split(|byte| *byte == b';');
        let (name, value) = split_pair(parts.next()?)?;
        let mut cookie = Self { name, value, path: None, domain: None };
        for (name, value) in parts.filter_map(split_pair) {
            if name.eq_ignore_ascii_case(b"path") {
                cookie.path = Some(value);
            } else if name.eq_ignore_ascii_case(b"domain") {
                let domain = value.strip_prefix(b".").unwrap_or(value);
                cookie.domain = Some(domain).filter(|domain| !domain.is_empty());
            } else if name.eq_ignore_ascii_case(b"max-age") && (value == b"0" || value.starts_with(b"-")) {
                return None;
            }
        }
        (!value.is_empty()).then_some(cookie)
    }
}

fn split_pair(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(b'=', pair)?;
    Some((pair[..at].trim_ascii(), pair[at + 1..].trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_config::{self as config, Overrides, ProcessEnvironment};

    /// One route with these lines, of the service of `host` where the last line is that, and what a response to
    /// `/app/poll` with `Cookie: s=1; t=2`, and with credentials, counts for it.
    fn count(lines: &str, response: &[(&'static str, &'static str)]) -> u64 {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("oncegate.toml");
        let (lines, host) = lines.split_once("\nhost = ").unwrap_or((lines, ""));
        let service = match host {
            "" => "upstream = 'http://a'\n".to_owned(),
            host => format!("[[services]]\nname = 's'\nhost = {host}\nupstream = 'http://a'\n"),
        };
        let path = if lines.contains("path =") { "" } else { "path = '/app/pay'\n" };
        std::fs::write(&file, format!("{service}[[routes]]\nname = 'r'\n{path}{lines}")).unwrap();
        let config = config::load(Some(&file), &Overrides::default(), &ProcessEnvironment).expect(lines);
        let renewals = ScopeRenewals::default();
        let Some(parts) = RenewableParts::of(&config.live, &renewals) else { return 0 };
        let map = |fields: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in fields {
                map.append(*name, HeaderValue::from_static(value));
            }
            map
        };
        let request = map(&[
            ("host", "shop.example:8080"),
            ("cookie", "s=1; t=2"),
            ("authorization", "Bearer 1"),
            ("x-token", "1"),
        ]);
        let sent = parts.keep(&Uri::from_static("/app/poll"), &request).expect("it has some parts");
        sent.note_renewals(&map(response));
        renewals.list().iter().map(|part| part.responses).sum()
    }

    #[test]
    fn another_value_of_a_part_that_the_request_had_is_a_renewal() {
        let cookie = "scope = ['cookie:s']";
        let field = "scope = ['header:x-token']";
        let host = "scope = ['cookie:s']\nhost = 'shop.example'";
        let elsewhere = "scope = ['cookie:s']\nhost = 'pay.example'";
        for (lines, response, renewals) in [
            (cookie, &[("set-cookie", "s=2")][..], 1),
            (cookie, &[("set-cookie", "s=2; Path=/; HttpOnly")], 1),
            (cookie, &[("set-cookie", "x=y"), ("set-cookie", " s = 2 ;path=/app")], 1),
            (cookie, &[("set-cookie", "s=2; Path=app")], 1),
            (cookie, &[("set-cookie", "s=1; Path=/")], 0),
            (cookie, &[("set-cookie", "S=2; Path=/")], 0),
            (cookie, &[("set-cookie", "t=3; Path=/")], 0),
            // The caller signs off.
            (cookie, &[("set-cookie", "s=; Path=/")], 0),
            (cookie, &[("set-cookie", "s=deleted; Max-Age=0; Path=/")], 0),
            // It does not reach the route.
            (cookie, &[("set-cookie", "s=2; Path=/other")], 0),
            (cookie, &[("set-cookie", "s=2; Path=/ap")], 0),
            (cookie, &[("set-cookie", "s=2; Path=/app/pay/x")], 0),
            ("scope = ['cookie:s']\npath = '/app/{id}/pay'", &[("set-cookie", "s=2; Path=/app/7")], 1),
            ("scope = ['cookie:s']\npath = '/v1/pay'", &[("set-cookie", "s=2")], 0),
            (host, &[("set-cookie", "s=2; Path=/")], 1),
            (host, &[("set-cookie", "s=2; Domain=.Example; Path=/")], 1),
            (elsewhere, &[("set-cookie", "s=2; Path=/")], 0),
            (elsewhere, &[("set-cookie", "s=2; Domain=pay.example; Path=/")], 1),
            (elsewhere, &[("set-cookie", "s=2; Domain=ay.example; Path=/")], 0),
            // The request did not have it.
            ("scope = ['cookie:new']", &[("set-cookie", "new=2; Path=/")], 0),
            (field, &[("x-token", "2")], 1),
            (field, &[("x-token", " 1 ")], 0),
            (field, &[("x-token", "")], 0),
            ("", &[("authorization", "Bearer 2")], 1),
            ("", &[("x-api-key", "2")], 0),
            ("scope = ['query:tenant']", &[("authorization", "Bearer 2"), ("set-cookie", "s=2")], 0),
            ("scope = ['cookie:s']\nmode = 'off'", &[("set-cookie", "s=2")], 0),
            ("scope = ['cookie:s']\nmode = 'observe'", &[("set-cookie", "s=2")], 1),
        ] {
            assert_eq!(count(lines, response), renewals, "{lines} {response:?}");
        }
    }
}
