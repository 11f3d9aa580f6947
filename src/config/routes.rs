//! Reads and checks `[[routes]]` and `[defaults]`.

use std::sync::Arc;

use http::Method;
use toml::de::DeTable;

use super::authorize::ReplayOptions;
use super::reader::{Located, Section};
use super::route::{AfterTtl, Route, StoreDownPolicy};
use super::route_context::RouteContext;
use super::route_options::{RouteOptions, parse_host, parse_name};
use super::upstream::UpstreamTarget;
use super::value_origins::{ValueOrigin, ValueOrigins};
use super::value_parsers::upstream_target;
use super::{
    PassThroughConfig, challenge, cors, delivery, dialect, fingerprint, key, limits, methods, outcome, reconcile,
    scope, statuses, units, upstream_tls,
};
use crate::domain::fingerprint::PathForm;
use crate::domain::path_pattern::PathPattern;
use crate::domain::route_table::Spelling;

/// The route of a file without routes, as TOML.
pub(super) const BUILT_IN: &str = "name = 'default'\npath = '/{*rest}'";

/// The keys at the top that routes fall back to; `limits` there is another table than a route's.
const TOP_FALLBACKS: [&str; 3] = ["cors", "upstream", "upstream_tls"];

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
        sections.push(defaults.with_built_in(RouteOptions::KEYS, "routes[0]", built_in));
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
        host: section.optional("host", parse_host).and_then(|host| host.value),
        name: section.parsed("name", parse_name),
        was: section.list("was", parse_name).map(|list| list.value),
        path: section.parsed("path", PathPattern::parse),
        methods: methods::read(section),
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
    let options = RouteOptions::read(section);
    let upstream = read_upstream(section, context);
    let dialect = options.dialect.map(|dialect| dialect.value);
    let key = key::read(&section.table("key"));
    let scope = scope::read(section, Some(&context.proofs));
    let challenge = challenge::read(section, scope.as_ref());
    let path_form = match (&options.spelling, path) {
        (Some(spelling), Some(path)) if spelling.value == Spelling::Same => PathForm::lenient(&path.value),
        _ => PathForm::Normal,
    };
    let recipe = fingerprint::read(&section.table("fingerprint"), dialect, path_form, context);
    let (connect_timeout, upstream_timeout) = (&options.connect_timeout, &options.upstream_timeout);
    if let (Some(connect), Some(whole)) = (connect_timeout, upstream_timeout)
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
    let key_limits = limits::read_key_limits(&section.table("limits"));
    let cors = cors::read(&section.table("cors").with_fallback(&tops.cors));
    let mut replay = ReplayOptions::read(&section.table("replay"));
    let authorize = replay.authorize(section.reader());
    let bypasses = options.store_down.as_ref().is_some_and(|policy| policy.value == StoreDownPolicy::Bypass);
    let reconcile = reconcile::read(&section.table("reconcile"), bypasses);
    let delivery = delivery::read(section, options.delivery, context);
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
    let (key_rate, live_keys) = key_limits?;
    let (after_ttl, remember) = (options.after_ttl?.value, options.remember?.value);
    let upstream_timeout = options.upstream_timeout?.value;
    Some(Route {
        name: "".into(),
        was: Vec::new(),
        path: PathPattern::default(),
        methods: Vec::new(),
        spelling: options.spelling?.value,
        host: options.host?.value,
        mode: options.mode?.value,
        upstream: upstream?,
        upstream_tls: upstream_tls?,
        dialect: dialect?,
        key: key?,
        scope: scope?,
        challenge: challenge?,
        space: options.space?.value,
        recipe: recipe?,
        in_flight: options.in_flight?.value,
        wait_timeout: options.wait_timeout?.value,
        // A default gives way to a written value.
        connect_timeout: options.connect_timeout?.value.min(upstream_timeout.mul_f64(0.9)),
        upstream_timeout,
        upstream_idle_timeout: options.upstream_idle_timeout?.value,
        statuses: statuses?,
        outcome: Arc::new(outcome?),
        on_unknown: options.on_unknown?.value,
        quiet_after: context.lease_expiry? + quiet_after,
        reconcile,
        ttl: options.ttl?.value,
        remember: (after_ttl == AfterTtl::Refuse).then_some(remember),
        store_down: options.store_down?.value,
        max_age: options.max_age?.value,
        delivery,
        retry,
        forward_key: options.forward_key?.value,
        key_rate,
        live_keys,
        max_request_body: options.max_request_body?.value,
        max_response_body: options.max_response_body?.value,
        cors: Arc::new(cors?),
        authorize: authorize?,
        drop_headers: replay.drop_headers?.value,
        origins: ValueOrigins::default(),
    })
}

/// Reads the route's own upstream, or takes the one at the top.
fn read_upstream(section: &Section<'_>, context: &RouteContext<'_>) -> Option<Arc<UpstreamTarget>> {
    let text = section.text("upstream")?;
    if text.value.is_empty() {
        return context.upstream.clone();
    }
    upstream_target(section, text, &context.listeners)
}
