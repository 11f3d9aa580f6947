//! `oncegate check`

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use http::Method;

use super::openapi::{self, OpenApiOperation};
use super::{CommandError, ConfigFile, block_on, failed, load, print};
use crate::app::StartError;
use crate::app::key_changes::KeyChanges;
use crate::app::route_identities::{RememberedChanges, compare_with_remembered};
use oncegate_config::{self as config, Overrides};
use oncegate_domain::path_template::PathTemplate;
use oncegate_domain::quantity::quantity;
use oncegate_domain::route_table::RouteTable;
use oncegate_settings::{Config, LoadedConfig, Route, RouteMode, show_whole_path};
use oncegate_store::{self as store, Distribution, OpenError, StoreSettings};

#[derive(Args)]
pub(super) struct CheckArguments {
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    overrides: Overrides,
    /// Connects to the store too, and says what its schema lacks and whether its keys are distributed; exits with 1 if
    /// the routes would not find stored keys any more; changes nothing
    #[arg(long)]
    connect: bool,
    /// An OpenAPI document (3.0 or 3.1, JSON or YAML): lists its state-changing operations, and exits with 1 if no
    /// route decides about one of them
    #[arg(long, value_name = "SPEC")]
    openapi: Option<PathBuf>,
    /// The methods of the operations that --openapi expects routes for
    #[arg(long, value_name = "METHODS", value_delimiter = ',', default_value = "POST,PATCH", requires = "openapi",
          value_parser = parse_method)]
    methods: Vec<Method>,
    /// An operation that needs no route, as its method and path in the document; may be repeated
    #[arg(long, value_name = "METHOD PATH", requires = "openapi", value_parser = parse_allowed)]
    allow: Vec<(Method, PathTemplate)>,
}

/// Parses one of the methods that an OpenAPI document describes and that may change state.
fn parse_method(text: &str) -> Result<Method, String> {
    let found = openapi::STATE_CHANGING.iter().find(|(field, _)| text.eq_ignore_ascii_case(field));
    found.map(|(_, method)| method.clone()).ok_or_else(|| "the methods are DELETE, PATCH, POST and PUT".into())
}

fn parse_allowed(text: &str) -> Result<(Method, PathTemplate), String> {
    let (method, path) = text.split_once(' ').ok_or("write a method and a path, as in \"POST /v1/search\"")?;
    let path = PathTemplate::parse(path.trim()).map_err(|error| format!("the path {error}"))?;
    Ok((parse_method(method)?, path))
}

pub(super) fn run(arguments: &CheckArguments) -> Result<(), CommandError> {
    let config = load(&arguments.file, &arguments.overrides)?;
    for warning in &config.live.warnings {
        eprintln!("warning: {warning}");
    }
    let file = arguments.file.path().map_or_else(|| config::NO_FILE.to_owned(), |file| show_whole_path(&file));
    print(&format!("{:<16}{file}\n{}", "file", config::describe(&config)))?;
    if arguments.connect {
        print(&describe_store(&config)?)?;
        compare_with_store(&config)?;
    }
    match &arguments.openapi {
        None => Ok(()),
        Some(spec) => check_openapi(&config.live, spec, arguments),
    }
}

fn describe_store(config: &LoadedConfig) -> Result<String, CommandError> {
    let settings = StoreSettings::from(config);
    let (pending, distribution) = block_on(async {
        let found = async {
            for warning in store::warnings(&settings).await? {
                eprintln!("warning: {warning}");
            }
            Ok::<_, OpenError>((store::pending(&settings).await?, store::distribution(&settings).await?))
        };
        found.await.map_err(failed)
    })?;
    let lacks = match pending.is_empty() {
        true => "nothing".to_owned(),
        false => pending.into_iter().map(|migration| migration.name).collect::<Vec<_>>().join(", "),
    };
    let keys = match distribution {
        Distribution::None => "in one database".to_owned(),
        Distribution::Nodes(nodes) => format!("distributed over {}", quantity(nodes, "node", "nodes")),
    };
    Ok(format!("\n{:<16}{lacks}\n{:<16}{keys}\n", "schema lacks", "keys"))
}

/// Compares the routes with those that the store remembers, and fails where stored keys would not be found any more.
fn compare_with_store(config: &LoadedConfig) -> Result<(), CommandError> {
    let settings = StoreSettings::from(config);
    let finding = async { store::remembered_route_identities(&settings, &config.start.service).await.map_err(failed) };
    let remembered = block_on(finding)?;
    let compared = compare_with_remembered(remembered.as_ref(), &config.live);
    let must_be_accepted = compared.must_be_accepted();
    let RememberedChanges { changes: KeyChanges { lookups, unguarded }, is_unreadable, digest } = compared;
    unguarded.iter().for_each(|lost| eprintln!("warning: {lost}"));
    let is_accepted = config.start.store.accept_route_changes.as_deref() == Some(&*digest);
    let mark = if is_accepted { "accepted: " } else { "" };
    if is_unreadable {
        eprintln!("{mark}another version of this program has remembered its routes, which cannot be compared");
    }
    lookups.iter().for_each(|change| eprintln!("{mark}{change}"));
    match must_be_accepted {
        true if !is_accepted => Err(failed(StartError::RouteChanges(digest))),
        true => print(&format!("{:<16}find keys elsewhere, which is accepted\n", "routes")),
        false if remembered.is_none() => print(&format!("{:<16}the store remembers none\n", "routes")),
        false => print(&format!("{:<16}find their stored keys\n", "routes")),
    }
}

/// The word for an operation that nothing guards, and nobody has decided so.
const UNGUARDED: &str = "UNGUARDED";

fn check_openapi(config: &Config, spec: &Path, arguments: &CheckArguments) -> Result<(), CommandError> {
    let mut operations = openapi::read(spec).map_err(failed)?;
    let all = operations.len();
    operations.retain(|operation| arguments.methods.contains(&operation.method));
    let mut table = RouteTable::default();
    // A route that only observes does not prevent a second execution.
    for route in config.routes.iter().filter(|route| route.options.mode != RouteMode::Observe) {
        table.insert(&route.options.methods, route.options.host.as_deref(), &route.path, route.options.spelling, route);
    }
    let is_allowed = |operation: &OpenApiOperation| {
        let OpenApiOperation { method, template, is_ignored } = operation;
        *is_ignored || arguments.allow.iter().any(|(allowed, path)| allowed == method && path == template)
    };
    let judge = |operation: &OpenApiOperation| match table.find_for_all(&operation.method, &operation.template) {
        Some(route) if route.options.mode == RouteMode::Enforce => ("guarded", describe_route(route)),
        // Somebody has decided.
        Some(route) => ("off", format!("{} has mode = \"off\"", route.name)),
        None if is_allowed(operation) => ("allowed", String::new()),
        None => (UNGUARDED, explain_unguarded(config, operation)),
    };
    let judged = operations.iter().map(|operation| (operation, judge(operation)));
    let (unguarded, decided): (Vec<_>, Vec<_>) = judged.partition(|(_, (verdict, _))| *verdict == UNGUARDED);
    let methods = arguments.methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
    let counted = quantity(operations.len() as u64, "operation", "operations");
    let mut text = format!("\n{:<16}{}, {} with {methods}\n", "openapi", spec.display(), counted);
    let width = operations.iter().map(|operation| operation.template.to_string().chars().count()).max().unwrap_or(0);
    for (operation, (verdict, note)) in unguarded.iter().chain(&decided) {
        let OpenApiOperation { method, template, .. } = operation;
        let line = format!("  {verdict:<11} {:<7} {:<width$}  {note}", method.as_str(), template.to_string());
        text.push_str(&format!("{}\n", line.trim_end()));
    }
    if all > operations.len() {
        let others = (all - operations.len()) as u64;
        let others = quantity(others, "state-changing operation", "state-changing operations");
        text.push_str(&format!("  not checked, as --methods does not list their methods: {others}\n"));
    }
    print(&text)?;
    match unguarded.len() {
        0 => Ok(()),
        count => Err(failed(format!("no route guards {count} of {counted}"))),
    }
}

fn describe_route(route: &Arc<Route>) -> String {
    let key = if route.options.key.required { "key required" } else { "key optional: without one it passes unguarded" };
    format!("{}, {key}", route.name)
}

/// Names the route that nearly guards an operation, and what keeps it from doing so: wrong methods are the likely
/// mistake.
fn explain_unguarded(config: &Config, operation: &OpenApiOperation) -> String {
    let covering = config.routes.iter().filter(|route| operation.template.is_covered_by(&route.path));
    let nearest = covering.min_by(|one, other| one.path.cmp(&other.path));
    let obstacle = |route: &Arc<Route>| match &route.options.host {
        _ if route.options.mode != RouteMode::Enforce => format!("its mode is {}", route.options.mode.name()),
        _ if !route.options.methods.contains(&operation.method) => format!("not {}", operation.method),
        Some(host) => format!("for {host} only"),
        None => "a more specific route does not".into(),
    };
    nearest.map_or(String::new(), |route| format!("{} has the path, but {}", route.name, obstacle(route)))
}
