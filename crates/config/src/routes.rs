//! Reads and checks `[[routes]]` and `[defaults]`.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::Method;
use toml::Spanned;
use toml::de::DeTable;

use super::presets::with_presets;
use super::reader::{Located, Section};
use super::route_options::{RouteKeys, parse_name};
use super::scope::ProofSources;
use super::services::{self, ServiceTable, parse_service};
use super::value_parsers::OwnListener;
use super::{
    challenge, cors, fingerprint, key, methods, policy, reconcile, scope, statuses, upstream_tls, vendor, webhook,
};
use oncegate_domain::batch::BatchPlace;
use oncegate_domain::fingerprint::{PathForm, Secrets};
use oncegate_domain::path_pattern::PathPattern;
use oncegate_domain::place::Place;
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::route_table::Spelling;
use oncegate_settings::{
    AdminToken, DeliveryMode, Dialect, KeyPlace, Route, RouteKind, RouteOptions, Service, StoreDownPolicy,
    UpstreamTarget, UpstreamTlsConfig, ValueOrigin, ValueOrigins, WebhookSender,
};
use oncegate_trust::tls::{Authorities, Trust};

/// The route of a file without routes.
static BUILT_IN: LazyLock<Spanned<DeTable<'static>>> =
    LazyLock::new(|| DeTable::parse("name = 'default'\npath = '/{*rest}'").expect("it is TOML"));

/// The tables at the top that routes fall back to; `limits` there is another table than a route's.
const TOP_FALLBACKS: [&str; 2] = ["cors", "upstream_tls"];

/// The settings from elsewhere in the file; `None` where one of them has a problem.
pub(super) struct RouteContext {
    /// Empty where they have problems.
    pub listeners: Vec<OwnListener>,
    pub secrets: Option<Secrets>,
    /// Whether responses are stored encrypted.
    pub encrypts: bool,
    pub lease_expiry: Duration,
    pub proofs: ProofSources,
}

/// The services with their routes.
pub(super) struct Services {
    /// None where one has a problem.
    pub services: Vec<Arc<Service>>,
    /// The tokens of operators of one service.
    pub tokens: Vec<(Arc<str>, AdminToken)>,
    pub routes: Vec<Route>,
}

/// Reads the services, and the routes that have a name, a path and a service.
pub(super) fn read<'a>(top: &Section<'a>, context: &RouteContext) -> Services {
    let defaults = top.table("defaults").into_defaults().with_flags();
    let fallbacks = TopTables::read(top);
    let tables = services::read(top, &defaults, &context.listeners);
    let built_in =
        |table: &ServiceTable<'a>| table.defaults.with_built_in(RouteKeys::KEYS, "routes[0]", BUILT_IN.get_ref());
    // Read in any case, for problems in a field that every route overrides.
    let read_service = |table: &ServiceTable<'a>| {
        let defaults = built_in(table);
        let shell = Arc::new(Service {
            name: Arc::clone(&table.name),
            hosts: table.hosts.clone(),
            upstream: table.upstream.clone()?,
            tls: UpstreamTlsConfig::with_trust(Trust::new(&Authorities::empty())),
            connect_timeout: Duration::ZERO,
            upstream_idle_timeout: Duration::ZERO,
            give_up_after: Duration::ZERO,
        });
        let route = read_route(&defaults, &read_signature(&defaults), &fallbacks, Some(&shell), context)?;
        Some(Arc::new(Service {
            tls: route.upstream_tls,
            connect_timeout: route.options.connect_timeout,
            upstream_idle_timeout: route.options.upstream_idle_timeout,
            give_up_after: route.options.retry.give_up_after,
            ..Service::clone(&shell)
        }))
    };
    let services: Vec<_> = tables.iter().map(|table| (table, read_service(table))).collect();
    let mut sections = Vec::new();
    for section in top.tables("routes") {
        let found = find_service(&section, &services);
        let defaults = found.map_or(&defaults, |(table, _)| &table.defaults);
        sections.push((section.with_fallback(defaults), found.map(|(table, service)| (&table.name, service.as_ref()))));
    }
    if top.count("routes") == 0 {
        if let [_, other, ..] = &tables[..] {
            other
                .section
                .missing("routes", "has none, as the others: write the routes that are guarded, or `mode = \"off\"`");
        }
        let whole = services.iter().map(|(table, service)| (built_in(table), Some((&table.name, service.as_ref()))));
        sections.extend(whole.take(1));
    }
    let mut signatures = RouteSignatures::default();
    let mut routes = Vec::new();
    for (section, found) in sections {
        let (section, (name, service)) = (with_presets(section), found.unzip());
        let signature = RouteSignature { service: name.cloned(), ..read_signature(&section) };
        let route = read_route(&section, &signature, &fallbacks, service.flatten(), context);
        signatures.add(&section, signature);
        routes.extend(route.map(|route| (section, route)));
    }
    policy::check(top, &tables, &routes);
    let all_known = services.iter().all(|(_, service)| service.is_some());
    let services = services.into_iter().filter_map(|(_, service)| service).filter(|_| all_known).collect();
    let tokens = tables.iter().filter_map(|table| Some((Arc::clone(&table.name), table.token.clone()?))).collect();
    Services { services, tokens, routes: routes.into_iter().map(|(_, route)| route).collect() }
}

/// The service of a route, and its table: the one that it names, or the only one of its file. In the file itself, the
/// one at the top comes before that.
fn find_service<'s, 'a, S>(
    section: &Section<'a>,
    services: &'s [(&'s ServiceTable<'a>, S)],
) -> Option<&'s (&'s ServiceTable<'a>, S)> {
    let at_top = services.iter().find(|(table, _)| table.hosts.is_empty());
    let is_of_file = |(table, _): &&(&ServiceTable<'a>, S)| {
        !table.hosts.is_empty() && table.section.source_file() == section.source_file()
    };
    if let Some(name) = section.optional("service", parse_service) {
        let found = services.iter().find(|(table, _)| table.name == name);
        if found.is_none() {
            section.problem("service", format!("is no service of the file: `{name}`"));
        } else if section.is_of_team() && !found.is_some_and(|found| is_of_file(&found)) {
            section.problem("service", format!("is another team's service: `{name}` is not in this file"));
        }
        return found;
    }
    let mut of_file = services.iter().filter(is_of_file);
    let found = match (at_top, of_file.next(), of_file.next()) {
        (Some(top), ..) if section.source_file() == 0 => Some(top),
        (_, Some(only), None) => Some(only),
        (top, None, _) => top,
        (_, Some(_), Some(_)) => None,
    };
    if found.is_none() && section.is_right(&["service"]) {
        section.missing("service", "names none of the services of the file: write the one that it belongs to");
    }
    found
}

/// Reports a table of a team's file that is about a route of another one: it would get what is another team's.
pub(super) fn check_team(top: &Section<'_>, section: &Section<'_>, key: &str, names: &[Arc<str>]) {
    if !section.is_of_team() {
        return;
    }
    let own = top.tables("routes").into_iter().filter(|route| route.source_file() == section.source_file());
    let own: Vec<_> = own
        .flat_map(|route| route.values("was", parse_name).into_iter().chain(route.required("name", parse_name)))
        .collect();
    if let Some(other) = names.iter().find(|name| !own.contains(name)) {
        section.problem(key, format!("has `{other}`, which is another team's route: write this table into that file"));
    }
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
    /// `None` where it has none.
    service: Option<Arc<str>>,
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
        service: None,
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
            if other.service == signature.service
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
            if let Some(other) = theirs.iter().copied().find(is_same) {
                let (name_of_both, place) = (&name.value, section.reader().show(&other.position));
                let message = format!("is another route's name too: `{name_of_both}` ({place})");
                section.reader().problem(&name.position, message);
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
    service: Option<&Arc<Service>>,
    context: &RouteContext,
) -> Option<Route> {
    let options = RouteKeys::read(section);
    let upstream = service.map(|service| &service.upstream);
    let scope = scope::read(section, Some(&context.proofs));
    let challenge = challenge::read(section, scope.as_ref());
    let sender_signature = webhook::read(section, options.ttl + options.remember.unwrap_or_default());
    let path_form = match &signature.path {
        Some(path) if options.spelling == Spelling::Same => PathForm::lenient(path),
        _ => PathForm::Normal,
    };
    let vendor = vendor::read(section, &options.key, upstream.map(|upstream| &**upstream));
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
        upstream,
        reconcile.as_ref().map(|reconcile| &reconcile.lookup.upstream),
        options.replay.authorize.as_ref().map(|authorize| &authorize.upstream),
    ];
    let needs_tls = called.into_iter().flatten().any(|target| matches!(**target, UpstreamTarget::Https(..)));
    let upstream_tls = upstream_tls::read(&section.table("upstream_tls").with_fallback(&tops.upstream_tls), needs_tls);
    let mut origins = ValueOrigins::default();
    section.note_origins(ValueOrigin::Route, &mut origins);
    match service.is_some_and(|service| service.hosts.is_empty()) {
        true => origins.add_fallbacks(&tops.origins, &["upstream"]),
        false => origins.note("upstream".into(), ValueOrigin::Service),
    }
    origins.add_fallbacks(&tops.origins, &TOP_FALLBACKS);
    let is_public = vendor::is_public(vendor.as_deref(), upstream.map(|upstream| &**upstream));
    Some(Route {
        options,
        name: Arc::clone(&signature.name.as_ref()?.value),
        was: signature.was.iter().map(|was| Arc::clone(&was.value)).collect(),
        path: signature.path.clone()?,
        service: Arc::clone(service?),
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
