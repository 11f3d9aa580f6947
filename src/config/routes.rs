//! `[[routes]]` and `[defaults]`, read and checked.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method};
use toml::de::DeTable;

use super::keys;
use super::reader::{Found, Section};
use super::route::{KeyRule, Route, Space};
use super::upstream::Upstream;
use super::{Pass, scope, statuses, units};
use crate::domain::fingerprint::{BodyRule, Plan, Recipe, Secrets};
use crate::domain::key;
use crate::domain::pattern::Pattern;
use crate::domain::policy::OnUnknown;

/// What routes take from the rest of the file; `None` where that was wrong.
pub(super) struct Context {
    pub upstream: Option<Arc<Upstream>>,
    pub secrets: Option<Secrets>,
    pub lease_expiry: Option<Duration>,
}

/// The route of a file that has none, as it would be written.
pub(super) const BUILT_IN: &str = "name = 'default'\npath = '/{*rest}'";

/// A key stands in an index of the store, whose entries have an upper bound: 1024 leaves room for all else in it.
const KEY_LENGTH_MAX: usize = 1024;

/// Bodies are held in memory, several of them at a time, and written to a database.
const BODY_BYTES_MAX: u64 = 64 << 20;

/// Shorter, and a retry would meet a forgotten key.
const TTL_MIN: Duration = Duration::from_secs(1);

/// A year and its leap day: a store only grows with it.
const TTL_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Fields that say something about the connection, the message's length or the caller, and cannot carry a key as well.
const NOT_FOR_KEYS: [&str; 13] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What holds without a route, and all routes; those in which something is wrong are missing. `built_in` is
/// [`BUILT_IN`], parsed.
pub(super) fn read<'a>(top: &Section<'a>, built_in: &'a DeTable<'a>, context: &Context) -> (Option<Pass>, Vec<Route>) {
    let defaults = top.table("defaults").into_defaults();
    // By themselves too, for what is wrong in a field that every route writes anew.
    let pass = fields(&defaults, context).zip(context.upstream.clone()).map(|(fields, upstream)| Pass {
        upstream,
        connect_timeout: fields.connect_timeout,
        upstream_idle_timeout: fields.upstream_idle_timeout,
    });
    let mut sections = top.tables("routes", &defaults);
    if sections.is_empty() {
        sections.push(defaults.behind_built_in(keys::ROUTE, "routes[0]", built_in));
    }
    let mut known = Known::default();
    let mut routes = Vec::new();
    for section in &sections {
        let head = head(section);
        let fields = fields(section, context);
        if let (Some(name), Some(path), Some(methods), Some(fields)) = (&head.name, &head.path, &head.methods, fields) {
            let (name, path) = (name.value.clone(), path.value.clone());
            routes.push(Route { name, path, methods: methods.clone(), ..fields });
        }
        known.add(section, head);
    }
    (pass, routes)
}

/// What makes a route and may clash with others, whether the rest of it is right or wrong.
struct Head {
    name: Option<Found<Arc<str>>>,
    path: Option<Found<Pattern>>,
    methods: Option<Vec<Method>>,
}

fn head(section: &Section<'_>) -> Head {
    Head {
        name: section.parsed("name", parse_name),
        path: section.parsed("path", Pattern::parse),
        methods: methods(section),
    }
}

impl Head {
    fn named(&self) -> String {
        self.name.as_ref().map_or("another route".into(), |name| format!("`{}`", name.value))
    }
}

/// The heads of the routes so far.
#[derive(Default)]
struct Known(Vec<Head>);

impl Known {
    /// Adds a head, if it can stand beside those before it.
    fn add(&mut self, section: &Section<'_>, head: Head) {
        for other in &self.0 {
            if let (Some(one), Some(name)) = (&other.name, &head.name)
                && one.value == name.value
            {
                section.reader().problem(&name.place, format!("is another route's name too: `{}`", name.value));
            }
            if let (Some(one), Some(theirs), Some(path), Some(methods)) =
                (&other.path, &other.methods, &head.path, &head.methods)
                && let Some(method) = methods.iter().find(|method| theirs.contains(method))
                && one.value.is_same_as(&path.value)
            {
                let message = format!("{} and {} both match {method} at this path", other.named(), head.named());
                section.reader().problem(&path.place, message);
            }
        }
        self.0.push(head);
    }
}

/// All of a route but its head, whose fields are left empty.
fn fields(section: &Section<'_>, context: &Context) -> Option<Route> {
    let upstream = upstream(section, context);
    let key = key_rule(&section.table("key"));
    let scope = scope::read(section);
    let space = section.choice("space", |word| match word {
        "path" => Some(Space::Path),
        "route" => Some(Space::Route),
        "service" => Some(Space::Service),
        _ => None,
    });
    let recipe = recipe(&section.table("fingerprint"), context);
    let connect_timeout = section.duration_above_zero("connect_timeout");
    let upstream_timeout = section.duration_above_zero("upstream_timeout");
    let upstream_idle_timeout = section.duration_above_zero("upstream_idle_timeout");
    if let (Some(connect), Some(whole)) = (&connect_timeout, &upstream_timeout)
        && connect.value > whole.value
    {
        let (connect_shown, whole_shown) = (units::show_duration(connect.value), units::show_duration(whole.value));
        let message = format!(
            "`connect_timeout` ({connect_shown}) must not be longer than `upstream_timeout` ({whole_shown}), which it \
             is a part of"
        );
        section.reader().problem((&connect.place).max(&whole.place), message);
    }
    let statuses = statuses::read(section);
    let on_unknown = section.choice("on_unknown", |word| match word {
        "hold" => Some(OnUnknown::Hold),
        "retry" => Some(OnUnknown::Retry),
        "retry-when-quiet" => Some(OnUnknown::RetryWhenQuiet),
        _ => None,
    });
    let ttl = section.parsed("ttl", |text| match units::duration(text)? {
        ttl if ttl < TTL_MIN => Err("is too short: a retry would find its key forgotten; write `1s` at least".into()),
        ttl if ttl > TTL_MAX => Err("is too long: write `366d` at most".into()),
        ttl => Ok(ttl),
    });
    let max_request_body = section.parsed("max_request_body", body_size);
    let max_response_body = section.parsed("max_response_body", body_size);
    let drop_headers = section.table("replay").list("drop_headers", header_name);
    let reconcile_after = section.table("reconcile").duration("after");
    Some(Route {
        name: "".into(),
        path: Pattern::default(),
        methods: Vec::new(),
        upstream: upstream?,
        key: key?,
        scope: scope?,
        space: space?.value,
        recipe: recipe?,
        connect_timeout: connect_timeout?.value,
        upstream_timeout: upstream_timeout?.value,
        upstream_idle_timeout: upstream_idle_timeout?.value,
        statuses: statuses?,
        on_unknown: on_unknown?.value,
        quiet_after: context.lease_expiry? + reconcile_after?.value,
        ttl: ttl?.value,
        max_request_body: max_request_body?.value,
        max_response_body: max_response_body?.value,
        drop_headers: drop_headers?.value.into_iter().map(|name| name.value).collect(),
    })
}

fn parse_name(text: &str) -> Result<Arc<str>, String> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if (1..=64).contains(&text.len()) && text.bytes().all(word) {
        return Ok(text.into());
    }
    Err("is no name: write 1 to 64 letters, digits, `_`, `.` and `-`, as in `create-payment`".into())
}

fn methods(section: &Section<'_>) -> Option<Vec<Method>> {
    let methods = section.list("methods", |text| {
        if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
            return Err("is not in capitals: methods are case-sensitive".into());
        }
        match text.parse() {
            Ok(Method::CONNECT | Method::HEAD | Method::OPTIONS | Method::TRACE) => {
                Err("changes nothing that a retry could do twice; write methods like `POST`, `PATCH`, `PUT`, `DELETE`"
                    .into())
            }
            Ok(method) => Ok(method),
            Err(_) => Err("is no method: write one like `POST`".into()),
        }
    })?;
    let mut seen = Vec::new();
    for method in &methods.value {
        if seen.contains(&method.value) {
            section.reader().problem(&method.place, "stands here a second time");
            return None;
        }
        seen.push(method.value.clone());
    }
    if seen.is_empty() {
        section.reader().problem(&methods.place, "is empty: a route without methods guards nothing");
        return None;
    }
    Some(seen)
}

/// The route's own, else the one at the top.
fn upstream(section: &Section<'_>, context: &Context) -> Option<Arc<Upstream>> {
    let text = section.text("upstream")?;
    if text.value.is_empty() {
        return context.upstream.clone();
    }
    parse_upstream(section, text)
}

/// Never shows the text, which may hold a password.
pub(super) fn parse_upstream(section: &Section<'_>, text: super::reader::Text) -> Option<Arc<Upstream>> {
    match Upstream::parse(&text.value) {
        Ok(upstream) => Some(Arc::new(upstream)),
        Err(message) => {
            section.reader().problem(&text.place, message);
            None
        }
    }
}

fn key_rule(section: &Section<'_>) -> Option<KeyRule> {
    let header = section.parsed("header", |text| match header_name(text)? {
        name if NOT_FOR_KEYS.contains(&name.as_str()) => Err("carries something else and cannot carry a key".into()),
        name => Ok(name),
    });
    let required = section.boolean("required");
    let why = "an empty key names nothing, and every key stands in an index of the store";
    let min = section.integer("min_length", 1..=KEY_LENGTH_MAX, why);
    let max = section.integer("max_length", 1..=KEY_LENGTH_MAX, why);
    if let (Some(min), Some(max)) = (&min, &max)
        && min.value > max.value
    {
        let message =
            format!("`min_length` ({}) must not be over `max_length` ({}): no key would do", min.value, max.value);
        section.reader().problem((&min.place).max(&max.place), message);
    }
    let syntax = section.choice("syntax", |word| match word {
        "ietf" => Some(key::Syntax::Ietf),
        _ => None,
    });
    let limits = key::Limits { length_min: min?.value, length_max: max?.value };
    Some(KeyRule { header: header?.value, required: required?.value, syntax: syntax?.value, limits })
}

fn recipe(section: &Section<'_>, context: &Context) -> Option<Recipe> {
    let body = section.choice("body", |word| match word {
        "auto" => Some(BodyRule::Auto),
        "json" => Some(BodyRule::Json),
        "none" => Some(BodyRule::None),
        "raw" => Some(BodyRule::Raw),
        _ => None,
    });
    let query = section.boolean("query");
    let secrets = context.secrets.as_ref()?;
    let plan = Plan { body: body?.value, query: query?.value, ..Plan::default() };
    Some(Recipe::new(plan, secrets.current()))
}

fn header_name(text: &str) -> Result<HeaderName, String> {
    text.parse().map_err(|_| "is no name of a field: write one like `X-Request-Id`".into())
}

fn body_size(text: &str) -> Result<usize, String> {
    match units::size(text)? {
        0 => Err("leaves no room for any body".into()),
        bytes if bytes > BODY_BYTES_MAX => {
            Err("is too much: bodies are held in memory and stored whole; write `64MiB` at most".into())
        }
        bytes => usize::try_from(bytes).map_err(|_| "is more than this machine can address".into()),
    }
}
