//! `[[routes]]` and `[defaults]`, read and checked.

use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderName, Method};
use toml::de::DeTable;

use super::keys;
use super::reader::{Found, Section};
use super::route::{InFlight, Mode, Route, Space, StoreDown};
use super::upstream::Upstream;
use super::{Pass, delivery, fingerprint, key, reconcile, scope, statuses, units};
use crate::domain::fingerprint::Secrets;
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

/// Bodies are held in memory, several of them at a time, and written to a database.
const BODY_BYTES_MAX: u64 = 64 << 20;

/// Shorter, and a retry would meet a forgotten key.
const TTL_MIN: Duration = Duration::from_secs(1);

/// A year and its leap day: a store only grows with it.
const TTL_MAX: Duration = Duration::from_secs(366 * 86_400);

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
    host: Option<Box<str>>,
    name: Option<Found<Arc<str>>>,
    path: Option<Found<Pattern>>,
    methods: Option<Vec<Method>>,
}

fn head(section: &Section<'_>) -> Head {
    Head {
        // Once more below: what is wrong with it is said once.
        host: section.parsed("host", host).and_then(|host| host.value),
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
            if other.host == head.host
                && let (Some(one), Some(theirs), Some(path), Some(methods)) =
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
    let key = key::read(&section.table("key"));
    let scope = scope::read(section);
    let space = section.choice("space", |word| match word {
        "path" => Some(Space::Path),
        "route" => Some(Space::Route),
        "service" => Some(Space::Service),
        _ => None,
    });
    let recipe = fingerprint::read(&section.table("fingerprint"), context);
    let host = section.parsed("host", host);
    let mode = section.choice("mode", |word| match word {
        "enforce" => Some(Mode::Enforce),
        "observe" => Some(Mode::Observe),
        "off" => Some(Mode::Off),
        _ => None,
    });
    let in_flight = section.choice("in_flight", |word| match word {
        "accepted" => Some(InFlight::Accepted),
        "conflict" => Some(InFlight::Conflict),
        "wait" => Some(InFlight::Wait),
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
        "bypass" => Some(StoreDown::Bypass),
        "reject" => Some(StoreDown::Reject),
        _ => None,
    });
    let max_age = section.parsed("max_age", |text| match text {
        "" => Ok(None),
        text => units::duration(text).map(Some),
    });
    let forward_key = section.parsed("forward_key", key::forwarded);
    let connect_timeout = section.duration_above_zero("connect_timeout");
    let upstream_timeout = section.duration_above_zero("upstream_timeout");
    let upstream_idle_timeout = section.duration_above_zero("upstream_idle_timeout");
    if let (Some(connect), Some(whole)) = (&connect_timeout, &upstream_timeout)
        && connect.value >= whole.value
        && connect.place.is_written()
    {
        let (connect_shown, whole_shown) = (units::show_duration(connect.value), units::show_duration(whole.value));
        let message = format!(
            "`connect_timeout` ({connect_shown}) must be shorter than `upstream_timeout` ({whole_shown}): where both \
             ran out at once, nobody could tell that nothing was sent"
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
    let ttl = section.parsed("ttl", parse_ttl);
    let max_request_body = section.parsed("max_request_body", body_size);
    let max_response_body = section.parsed("max_response_body", body_size);
    let drop_headers = section.table("replay").list("drop_headers", header_name);
    let reconcile = reconcile::read(&section.table("reconcile"));
    let delivery = delivery::read(section, context);
    let (quiet_after, reconcile) = reconcile?;
    let (delivery, retry) = delivery?;
    Some(Route {
        name: "".into(),
        path: Pattern::default(),
        methods: Vec::new(),
        host: host?.value,
        mode: mode?.value,
        upstream: upstream?,
        key: key?,
        scope: scope?,
        space: space?.value,
        recipe: recipe?,
        in_flight: in_flight?.value,
        wait_timeout: wait_timeout?.value,
        // A default gives way to what somebody wrote.
        connect_timeout: connect_timeout?.value.min(upstream_timeout.as_ref()?.value.mul_f64(0.9)),
        upstream_timeout: upstream_timeout?.value,
        upstream_idle_timeout: upstream_idle_timeout?.value,
        statuses: statuses?,
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
        max_request_body: max_request_body?.value,
        max_response_body: max_response_body?.value,
        drop_headers: drop_headers?.value.into_iter().map(|name| name.value).collect(),
    })
}

/// How long a key is remembered: from a second to a year.
///
/// # Errors
/// What is wrong with it, beginning with a verb.
pub fn parse_ttl(text: &str) -> Result<Duration, String> {
    match units::duration(text)? {
        ttl if ttl < TTL_MIN => Err("is too short: a retry would find its key forgotten; write `1s` at least".into()),
        ttl if ttl > TTL_MAX => Err("is too long: write `366d` at most".into()),
        ttl => Ok(ttl),
    }
}

/// A host, as requests name it, in lower case; a port makes no difference there, nor does a dot at the end.
fn host(text: &str) -> Result<Option<Box<str>>, String> {
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

pub(super) fn header_name(text: &str) -> Result<HeaderName, String> {
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
