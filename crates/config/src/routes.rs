//! Reads and checks `[[routes]]` and `[defaults]`.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::Method;
use toml::Spanned;
use toml::de::DeTable;

use super::presets::with_presets;
use super::reader::{Located, Section};
use super::route_options::{RouteKeys, parse_host, parse_name};
use super::scope::ProofSources;
use super::value_parsers::{OwnListener, read_upstream};
use super::{challenge, cors, fingerprint, key, methods, reconcile, scope, statuses, upstream_tls, vendor, webhook};
use oncegate_domain::batch::BatchPlace;
use oncegate_domain::fingerprint::{PathForm, Secrets};
use oncegate_domain::path_pattern::PathPattern;
use oncegate_domain::place::Place;
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::route_table::Spelling;
use oncegate_settings::{
    DeliveryMode, Dialect, KeyPlace, PassThroughConfig, Route, RouteKind, RouteOptions, StoreDownPolicy,
    UpstreamTarget, UpstreamTlsConfig, ValueOrigin, ValueOrigins, WebhookSender,
};

/// The route of a file without routes.
static BUILT_IN: LazyLock<Spanned<DeTable<'static>>> =
    LazyLock::new(|| DeTable::parse("name = 'default'\npath = '/{*rest}'").expect("it is TOML"));

/// The keys at the top that routes fall back to; `limits` there is another table than a route's.
const TOP_FALLBACKS: [&str; 3] = ["cors", "upstream", "upstream_tls"];

/// The settings from elsewhere in the file; `None` where one of them has a problem.
pub(super) struct RouteContext {
    pub upstream: Option<Arc<UpstreamTarget>>,
    /// Empty where they have problems.
    pub listeners: Vec<OwnListener>,
    pub secrets: Option<Secrets>,
    /// Whether responses are stored encrypted.
    pub encrypts: bool,
    pub lease_expiry: Duration,
    pub proofs: ProofSources,
}

/// Reads the settings of unguarded requests, and the routes that have a name, a path and a service.
pub(super) fn read<'a>(top: &Section<'a>, context: &RouteContext) -> (Option<PassThroughConfig>, Vec<Route>) {
    let defaults = top.table("defaults").into_defaults().with_flags();
    let fallbacks = TopTables::read(top);
    let built_in = defaults.with_built_in(RouteKeys::KEYS, "routes[0]", BUILT_IN.get_ref());
    // Read in any case, for problems in a field that every route overrides.
    let pass = read_route(&built_in, &read_signature(&built_in), &fallbacks, context).zip(context.upstream.clone());
    let pass = pass.map(|(route, upstream)| PassThroughConfig {
        upstream,
        connect_timeout: route.options.connect_timeout,
        upstream_idle_timeout: route.options.upstream_idle_timeout,
        give_up_after: route.options.retry.give_up_after,
        tls: route.upstream_tls,
    });
    let mut sections: Vec<_> = top.tables("routes").into_iter().map(|route| route.with_fallback(&defaults)).collect();
    if sections.is_empty() {
        sections.push(built_in);
    }
    let mut signatures = RouteSignatures::default();
    let mut routes = Vec::new();
    for section in sections.into_iter().map(with_presets) {
        let signature = read_signature(&section);
        routes.extend(read_route(&section, &signature, &fallbacks, context));
        signatures.add(&section, signature);
    }
    (pass, routes)
}

/// The tables at the top that a route's tables of the same names fall back to, and the places of the values there.
struct TopTables<'a> {
    cors: Section<'a>,
    upstream_tls: Section<'a>,
    origins: ValueOrigins,
}

impl<'a> TopTables<'a> {
    fn read(top: &Section<'a>) -> Self {
        let mut origins = ValueOrigins::default();
        top.note_origins(ValueOrigin::Top, &mut origins);
        let [cors, upstream_tls] = ["cors", "upstream_tls"].map(|name| top.table(name).into_defaults());
        Self { cors, upstream_tls, origins }
    }
}

/// The part of a route that may conflict with other routes, whatever problems the rest of it has.
struct RouteSignature {
    host: Option<Box<str>>,
    name: Option<Located<Arc<str>>>,
    was: Vec<Located<Arc<str>>>,
    path: Option<PathPattern>,
    /// Empty where they have a problem.
    methods: Vec<Method>,
}

fn read_signature(section: &Section<'_>) -> RouteSignature {
    let name = section.required("name", parse_name);
    let methods = methods::read(section);
    RouteSignature {
        // It is read again with the other fields: its problem is reported once.
        host: section.optional("host", parse_host),
        name: name.map(|value| Located { value, position: section.position("name") }),
        was: section.list("was", parse_name),
        path: section.required("path", PathPattern::parse),
        methods: if section.is_right(&["methods"]) { methods } else { Vec::new() },
    }
}

impl RouteSignature {
    /// Its name and its earlier ones.
    fn names(&self) -> impl Iterator<Item = &Located<Arc<str>>> {
        self.name.iter().chain(&self.was)
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
                && let (Some(one), Some(path)) = (&other.path, &signature.path)
                && let Some(method) = signature.methods.iter().find(|method| other.methods.contains(method))
                && one.is_same_as(path)
            {
                let message =
                    format!("{} and {} both match {method} at this path", other.quoted_name(), signature.quoted_name());
                section.problem("path", message);
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

/// Reads a route. `None` without a name, a path or a service, or where the route has a problem.
fn read_route<'a>(
    section: &Section<'a>,
    signature: &RouteSignature,
    tops: &TopTables<'a>,
    context: &RouteContext,
) -> Option<Route> {
    let options = RouteKeys::read(section);
    let upstream = match section.text("upstream") {
        Some(text) if text.value.is_empty() => context.upstream.clone(),
        Some(_) => read_upstream(section, &context.listeners),
        None => None,
    };
    let scope = scope::read(section, Some(&context.proofs));
    let challenge = challenge::read(section, scope.as_ref());
    let sender_signature = webhook::read(section);
    let path_form = match &signature.path {
        Some(path) if options.spelling == Spelling::Same => PathForm::lenient(path),
        _ => PathForm::Normal,
    };
    let vendor = vendor::read(section, &options.key, upstream.as_deref());
    key::check(section, &options, scope.as_ref(), signature.path.as_ref(), vendor.as_deref());
    let key = (options.dialect, &options.key, options.split.as_ref());
    let recipe = fingerprint::read(&section.table("fingerprint"), key, path_form, context.secrets.as_ref());
    let statuses = statuses::read(section);
    let cors = cors::read(&section.table("cors").with_fallback(&tops.cors));
    let (quiet_after, reconcile) =
        reconcile::read(&section.table("reconcile"), options.store_down == StoreDownPolicy::Bypass);
    // A service that does not know the hash would say that there is no such operation.
    let asks_by_secret = reconcile.as_ref().is_some_and(|reconcile| {
        let is_kept = |place: &Place| !matches!(place, Place::Path(_) | Place::Query(_));
        reconcile.lookup.names_key() || (reconcile.lookup.names_path() && !options.key.places().all(is_kept))
    });
    if options.key.hash && asks_by_secret {
        let message = "asks by the key, which is a secret: its hash alone is kept; ask by `{id}`";
        section.table("reconcile").problem("url", message);
    }
    let is_without_secret = context.secrets.as_ref().is_some_and(|secrets| secrets.current().is_none());
    let keeps =
        [("delivery", options.delivery != DeliveryMode::Sync), ("on_unknown", options.on_unknown == OnUnknown::Vendor)];
    for (name, _) in keeps.into_iter().filter(|(_, keeps)| *keeps && is_without_secret) {
        let message =
            "needs a `secret` at the top of the file: a request that is kept is stored encrypted, and never without";
        section.problem(name, message);
    }
    check_kind(section, &options, context);
    if let Some(batch) = &options.split {
        check_batch(section, batch, &options);
    }
    let called = [
        upstream.as_ref(),
        reconcile.as_ref().map(|reconcile| &reconcile.lookup.upstream),
        options.replay.authorize.as_ref().map(|authorize| &authorize.upstream),
    ];
    let needs_tls = called.into_iter().flatten().any(|target| matches!(**target, UpstreamTarget::Https(..)));
    let upstream_tls = upstream_tls::read(&section.table("upstream_tls").with_fallback(&tops.upstream_tls), needs_tls);
    let mut origins = ValueOrigins::default();
    section.note_origins(ValueOrigin::Route, &mut origins);
    if section.text("upstream").is_some_and(|text| text.value.is_empty()) {
        // It stands for the one at the top.
        origins.forget("upstream");
    }
    origins.add_fallbacks(&tops.origins, &TOP_FALLBACKS);
    let is_public = vendor::is_public(vendor.as_deref(), upstream.as_deref());
    Some(Route {
        options,
        name: Arc::clone(&signature.name.as_ref()?.value),
        was: signature.was.iter().map(|was| Arc::clone(&was.value)).collect(),
        path: signature.path.clone()?,
        upstream: upstream?,
        upstream_tls: UpstreamTlsConfig { is_public, ..upstream_tls? },
        scope: scope?,
        signature: sender_signature,
        challenge,
        recipe,
        statuses: statuses?,
        quiet_after: context.lease_expiry + quiet_after,
        vendor,
        reconcile,
        cors: Arc::new(cors),
        origins,
    })
}

/// Checks what a kind and its sender need of the rest of the file.
fn check_kind(section: &Section<'_>, options: &RouteOptions, context: &RouteContext) {
    if options.sender == WebhookSender::Pubsub && !context.proofs.requires_email {
        let message = "needs `email=…` in `jwt.require`: any account at Google gets tokens for any audience";
        section.problem("sender", message);
    }
    if options.kind == RouteKind::Token && !context.encrypts {
        let message = "needs `encrypt = true` in `[store]`, and a `secret` at the top: the stored responses are tokens";
        section.problem("kind", message);
    }
}

/// Checks what the parts of a batch need: a delivery each, and a key of their own.
fn check_batch(section: &Section<'_>, batch: &BatchPlace, options: &RouteOptions) {
    if options.delivery != DeliveryMode::Async {
        let message = "`split` needs `delivery = \"async\"`: a batch has one answer for all";
        section.conflict(&["split", "delivery"], message);
    }
    if matches!(options.dialect, Dialect::Graphql) || options.dialect.is_jsonrpc() {
        section.conflict(&["split", "dialect"], "`split` is of no use here: the dialect has batches of its own");
    }
    let is_inside = |place: &KeyPlace| place.parts.iter().any(|part| batch.holds(part));
    if !options.key.from.iter().all(is_inside) {
        let example = batch.to_string().replace('*', "0/id");
        section.table("key").problem("from", format!("is not in an element of `split`: write it like `{example}`"));
    }
}
