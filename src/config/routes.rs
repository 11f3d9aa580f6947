//! Reads and checks `[[routes]]` and `[defaults]`.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::uri::Authority;
use toml::de::DeTable;

use super::key_docs;
use super::nearest::nearest;
use super::reader::{Located, Section};
use super::route::{InFlightPolicy, KeySpace, Route, RouteMode, StoreDownPolicy};
use super::route_context::RouteContext;
use super::upstream::UpstreamTarget;
use super::value_origins::{ValueOrigin, ValueOrigins};
use super::value_parsers::{header_name, upstream_target};
use super::{
    PassThroughConfig, authorize, challenge, cors, delivery, dialect, fingerprint, key, limits, outcome, reconcile,
    scope, statuses, units, upstream_tls,
};
use crate::domain::fingerprint::PathForm;
use crate::domain::path_pattern::PathPattern;
use crate::domain::response_policy::OnUnknown;
use crate::domain::route_table::Spelling;

/// The route of a file without routes, as TOML.
pub(super) const BUILT_IN: &str = "name = 'default'\npath = '/{*rest}'";

/// Many bodies are in memory at once, and each is written to a database.
pub const BODY_BYTES_MAX: usize = 64 << 20;

/// The keys at the top that routes fall back to; `limits` there is another table than a route's.
const TOP_FALLBACKS: [&str; 3] = ["cors", "upstream", "upstream_tls"];

/// With a shorter one, a retry would find its key forgotten.
const TTL_MIN: Duration = Duration::from_secs(1);

/// A year and its leap day: a longer one only makes the store larger.
const TTL_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Reads the settings of unguarded requests, and all routes but those that have problems. `built_in` is [`BUILT_IN`],
/// parsed, and `flags` are the defaults of the command line.
pub(super) fn read<'a>(
    top: &Section<'a>,
    built_in: &'a DeTable<'a>,
    flags: &'a DeTable<'a>,
    context: &RouteContext<'_>,
) -> (Option<PassThroughConfig>, Vec<Route>) {
    let defaults = top.table("defaults").into_defaults().with_flags(flags);
    let fallbacks =
        TopTables { cors: top.table("cors").into_defaults(), upstream_tls: top.table("upstream_tls").into_defaults() };
    // Read once without a route, for problems in a field that every route overrides.
    let pass =
        read_fields(&defaults, None, &fallbacks, context).zip(context.upstream.clone()).map(|(fields, upstream)| {
            PassThroughConfig {
                upstream,
                tls: fields.upstream_tls,
                connect_timeout: fields.connect_timeout,
                upstream_idle_timeout: fields.upstream_idle_timeout,
                give_up_after: fields.retry.give_up_after,
            }
        });
    let mut sections = top.tables("routes", &defaults);
    if sections.is_empty() {
        sections.push(defaults.with_built_in(key_docs::ROUTE, "routes[0]", built_in));
    }
    let sections: Vec<_> = sections.into_iter().map(dialect::with_preset).collect();
    let mut top_origins = ValueOrigins::default();
    top.note_origins(ValueOrigin::Top, &mut top_origins);
    let mut signatures = RouteSignatures::default();
    let mut routes = Vec::new();
    for section in &sections {
        let signature = read_signature(section);
        let fields = read_fields(section, signature.path.as_ref(), &fallbacks, context);
        if let (Some(name), Some(_), Some(path), Some(methods), Some(fields)) =
            (&signature.name, &signature.was, &signature.path, &signature.methods, fields)
        {
            let (name, path) = (name.value.clone(), path.value.clone());
            let was = signature.was.iter().flatten().map(|was| Arc::clone(&was.value)).collect();
            let mut origins = ValueOrigins::default();
            section.note_origins(ValueOrigin::Route, &mut origins);
            if section.text("upstream").is_some_and(|text| text.value.is_empty()) {
                // It stands for the one at the top.
                origins.forget("upstream");
            }
            origins.add_fallbacks(&top_origins, &TOP_FALLBACKS);
            routes.push(Route { name, was, path, methods: methods.clone(), origins, ..fields });
        }
        signatures.add(section, signature);
    }
    (pass, routes)
}

/// The tables at the top that a route's tables of the same names fall back to.
struct TopTables<'a> {
    cors: Section<'a>,
    upstream_tls: Section<'a>,
}

/// The part of a route that may conflict with other routes, whatever problems the rest of it has.
struct RouteSignature {
    host: Option<Box<str>>,
    name: Option<Located<Arc<str>>>,
    was: Option<Vec<Located<Arc<str>>>>,
    path: Option<Located<PathPattern>>,
    methods: Option<Vec<Method>>,
}

fn read_signature(section: &Section<'_>) -> RouteSignature {
    RouteSignature {
        // It is read again with the other fields: its problem is reported once.
        host: section.parsed("host", parse_host).and_then(|host| host.value),
        name: section.parsed("name", parse_name),
        was: section.list("was", parse_name).map(|list| list.value),
        path: section.parsed("path", PathPattern::parse),
        methods: read_methods(section),
    }
}

impl RouteSignature {
    /// Its name and its earlier ones.
    fn names(&self) -> impl Iterator<Item = &Located<Arc<str>>> {
        self.name.iter().chain(self.was.iter().flatten())
    }

    fn quoted_name(&self) -> String {
        self.name.as_ref().map_or("another route".into(), |name| format!("`{}`", name.value))
    }
}

/// The signatures of the routes so far.
#[derive(Default)]
struct RouteSignatures(Vec<RouteSignature>);

impl RouteSignatures {
    /// Adds a signature, and reports its conflicts with those before it.
    fn add(&mut self, section: &Section<'_>, signature: RouteSignature) {
        self.report_shared_names(section, &signature);
        for other in &self.0 {
            if other.host == signature.host
                && let (Some(one), Some(theirs), Some(path), Some(methods)) =
                    (&other.path, &other.methods, &signature.path, &signature.methods)
                && let Some(method) = methods.iter().find(|method| theirs.contains(method))
                && one.value.is_same_as(&path.value)
            {
                let message =
                    format!("{} and {} both match {method} at this path", other.quoted_name(), signature.quoted_name());
                section.reader().problem(&path.position, message);
            }
        }
        self.0.push(signature);
    }

    /// Reports each name that the signature shares with one before it, and each that it has twice: every stored key
    /// must have one route at most.
    fn report_shared_names(&self, section: &Section<'_>, signature: &RouteSignature) {
        let theirs: Vec<_> = self.0.iter().flat_map(RouteSignature::names).collect();
        let own: Vec<_> = signature.names().collect();
        for (index, name) in own.iter().enumerate() {
            let is_same = |other: &&Located<Arc<str>>| other.value == name.value;
            if theirs.iter().copied().any(|other| is_same(&other)) {
                section.reader().problem(&name.position, format!("is another route's name too: `{}`", name.value));
            } else if own[..index].iter().any(is_same) {
                section.reader().problem(&name.position, format!("is this route's name already: `{}`", name.value));
            }
        }
    }
}

/// Reads all of a route but its signature, whose fields are left empty.
fn read_fields<'a>(
    section: &Section<'a>,
    path: Option<&Located<PathPattern>>,
    tops: &TopTables<'a>,
    context: &RouteContext<'_>,
) -> Option<Route> {
    let upstream = read_upstream(section, context);
    let dialect = dialect::read(section);
    let key = key::read(&section.table("key"));
    let scope = scope::read(section, Some(&context.proofs));
    let challenge = challenge::read(section, scope.as_ref());
    let space = section.choice("space", |word| match word {
        "path" => Some(KeySpace::Path),
        "route" => Some(KeySpace::Route),
        "service" => Some(KeySpace::Service),
        _ => None,
    });
    let host = section.parsed("host", parse_host);
    let spelling = section.choice("spelling", |word| match word {
        "pass" => Some(Spelling::Pass),
        "refuse" => Some(Spelling::Refuse),
        "same" => Some(Spelling::Same),
        _ => None,
    });
    let path_form = match (&spelling, path) {
        (Some(spelling), Some(path)) if spelling.value == Spelling::Same => PathForm::lenient(&path.value),
        _ => PathForm::Normal,
    };
    let recipe = fingerprint::read(&section.table("fingerprint"), dialect, path_form, context);
    let mode = section.choice("mode", |word| match word {
        "enforce" => Some(RouteMode::Enforce),
        "observe" => Some(RouteMode::Observe),
        "off" => Some(RouteMode::Off),
        _ => None,
    });
    let in_flight = section.choice("in_flight", |word| match word {
        "accepted" => Some(InFlightPolicy::Accepted),
        "conflict" => Some(InFlightPolicy::Conflict),
        "wait" => Some(InFlightPolicy::Wait),
        _ => None,
    });
    let wait_timeout = section.duration_above_zero("wait_timeout");
    let after_ttl = section.choice("after_ttl", |word| match word {
        "forget" => Some(false),
        "refuse" => Some(true),
        _ => None,
    });
    let remember = section.duration_above_zero("remember");
    let store_down = section.choice("store_down", |word| match word {
        "bypass" => Some(StoreDownPolicy::Bypass),
        "reject" => Some(StoreDownPolicy::Reject),
        _ => None,
    });
    let max_age = section.parsed("max_age", |text| match text {
        "" => Ok(None),
        text => units::parse_duration(text).map(Some),
    });
    let forward_key = section.parsed("forward_key", key::parse_forward_key);
    let connect_timeout = section.duration_above_zero("connect_timeout");
    let upstream_timeout = section.duration_above_zero("upstream_timeout");
    let upstream_idle_timeout = section.duration_above_zero("upstream_idle_timeout");
    if let (Some(connect), Some(whole)) = (&connect_timeout, &upstream_timeout)
        && connect.value >= whole.value
        && connect.position.is_written()
    {
        let (connect_shown, whole_shown) = (units::show_duration(connect.value), units::show_duration(whole.value));
        let message = format!(
            "`connect_timeout` ({connect_shown}) must be shorter than `upstream_timeout` ({whole_shown}): if both ran \
             out at once, it would not be known whether the request was sent"
        );
        section.reader().problem((&connect.position).max(&whole.position), message);
    }
    let statuses = statuses::read(section);
    let outcome = outcome::read(section);
    let on_unknown = section.choice("on_unknown", |word| match word {
        "hold" => Some(OnUnknown::Hold),
        "retry" => Some(OnUnknown::Retry),
        "retry-when-quiet" => Some(OnUnknown::RetryWhenQuiet),
        _ => None,
    });
    let ttl = section.parsed("ttl", parse_ttl);
    let key_rate = limits::read_key_rate(&section.table("limits"));
    let live_keys = limits::read_live_keys(&section.table("limits"));
    let max_request_body = section.parsed("max_request_body", parse_body_size);
    let max_response_body = section.parsed("max_response_body", parse_body_size);
    let cors = cors::read(&section.table("cors").with_fallback(&tops.cors));
    let authorize = authorize::read(&section.table("replay"));
    let drop_headers = section.table("replay").list("drop_headers", header_name);
    let bypasses = store_down.as_ref().is_some_and(|policy| policy.value == StoreDownPolicy::Bypass);
    let reconcile = reconcile::read(&section.table("reconcile"), bypasses);
    let delivery = delivery::read(section, context);
    let called = [
        upstream.as_ref(),
        reconcile.as_ref().and_then(|(_, reconcile)| Some(&reconcile.as_ref()?.lookup.upstream)),
        authorize.as_ref().and_then(|authorize| Some(&authorize.as_ref()?.upstream)),
    ];
    let needs_tls = called.into_iter().flatten().any(|target| matches!(**target, UpstreamTarget::Https(..)));
    let upstream_tls = section.table("upstream_tls").with_fallback(&tops.upstream_tls);
    let upstream_tls = upstream_tls::read(&upstream_tls, context.system_authorities, needs_tls);
    let (quiet_after, reconcile) = reconcile?;
    let (delivery, retry) = delivery?;
    Some(Route {
        name: "".into(),
        was: Vec::new(),
        path: PathPattern::default(),
        methods: Vec::new(),
        spelling: spelling?.value,
        host: host?.value,
        mode: mode?.value,
        upstream: upstream?,
        upstream_tls: upstream_tls?,
        dialect: dialect?,
        key: key?,
        scope: scope?,
        challenge: challenge?,
        space: space?.value,
        recipe: recipe?,
        in_flight: in_flight?.value,
        wait_timeout: wait_timeout?.value,
        // A default gives way to a written value.
        connect_timeout: connect_timeout?.value.min(upstream_timeout.as_ref()?.value.mul_f64(0.9)),
        upstream_timeout: upstream_timeout?.value,
        upstream_idle_timeout: upstream_idle_timeout?.value,
        statuses: statuses?,
        outcome: Arc::new(outcome?),
        on_unknown: on_unknown?.value,
        quiet_after: context.lease_expiry? + quiet_after,
        reconcile,
        ttl: ttl?.value,
        remember: remember.filter(|_| after_ttl.as_ref().is_some_and(|refuse| refuse.value)).map(|time| time.value),
        store_down: store_down?.value,
        max_age: max_age?.value,
        delivery,
        retry,
        forward_key: forward_key?.value,
        key_rate: key_rate?,
        live_keys: live_keys?,
        max_request_body: max_request_body?.value,
        max_response_body: max_response_body?.value,
        cors: Arc::new(cors?),
        authorize: authorize?,
        drop_headers: drop_headers?.value.into_iter().map(|name| name.value).collect(),
        origins: ValueOrigins::default(),
    })
}

/// Parses how long a key is remembered: from a second to a year.
///
/// # Errors
/// The problem, beginning with a verb.
pub fn parse_ttl(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text)? {
        ttl if ttl < TTL_MIN => Err("is too short: a retry would find its key forgotten; write `1s` at least".into()),
        ttl if ttl > TTL_MAX => Err("is too long: write `366d` at most".into()),
        ttl => Ok(ttl),
    }
}

/// Parses a host, in lower case and without a dot at its end. Requests are matched without their port.
fn parse_host(text: &str) -> Result<Option<Box<str>>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    match text.parse::<Authority>() {
        Ok(authority) if authority.host() == text && !name.is_empty() => Ok(Some(name.to_ascii_lowercase().into())),
        _ => Err("is no host: write `api.example.com`, without a port".into()),
    }
}

fn parse_name(text: &str) -> Result<Arc<str>, String> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if (1..=64).contains(&text.len()) && text.bytes().all(word) {
        return Ok(text.into());
    }
    Err("is no name: write 1 to 64 letters, digits, `_`, `.` and `-`, as in `create-payment`".into())
}

/// The methods of IANA's registry (<https://www.iana.org/assignments/http-methods>).
const REGISTERED_METHODS: [&str; 39] = [
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PROPFIND",
    "PROPPATCH",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

fn read_methods(section: &Section<'_>) -> Option<Vec<Method>> {
    let methods = section.list("methods", |text| {
        if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
            return Err("is not in capitals: methods are case-sensitive".into());
        }
        if matches!(text, "*" | "ALL" | "ANY") {
            return Err("is no method, and would match no request: list the methods, \
                        as in `[\"POST\", \"PATCH\", \"PUT\", \"DELETE\"]`"
                .into());
        }
        match text.parse() {
            Ok(Method::CONNECT | Method::HEAD | Method::OPTIONS | Method::TRACE) => {
                Err("changes nothing that a retry could do twice; write methods like `POST`, `PATCH`, `PUT`, `DELETE`"
                    .into())
            }
            Ok(method) if REGISTERED_METHODS.contains(&text) => Ok(method),
            // Services have methods of their own, but a slip would leave the route's requests unguarded.
            Ok(method) => match nearest(text, REGISTERED_METHODS) {
                Some(meant) => Err(format!("is no registered method; did you mean `{meant}`?")),
                None => Ok(method),
            },
            Err(_) => Err("is no method: write one like `POST`".into()),
        }
    })?;
    let mut distinct = Vec::new();
    for method in &methods.value {
        if distinct.contains(&method.value) {
            section.reader().problem(&method.position, "is listed a second time");
            return None;
        }
        distinct.push(method.value.clone());
    }
    if distinct.is_empty() {
        section.reader().problem(&methods.position, "is empty: a route without methods guards nothing");
        return None;
    }
    Some(distinct)
}

/// Reads the route's own upstream, or takes the one at the top.
fn read_upstream(section: &Section<'_>, context: &RouteContext<'_>) -> Option<Arc<UpstreamTarget>> {
    let text = section.text("upstream")?;
    if text.value.is_empty() {
        return context.upstream.clone();
    }
    upstream_target(section, text, &context.listeners)
}

fn parse_body_size(text: &str) -> Result<usize, String> {
    match units::parse_size(text)? {
        0 => Err("leaves no room for any body".into()),
        bytes if bytes > BODY_BYTES_MAX as u64 => {
            Err("is too much: bodies are held in memory and stored whole; write `64MiB` at most".into())
        }
        bytes => usize::try_from(bytes).map_err(|_| "is more than this machine can address".into()),
    }
}
