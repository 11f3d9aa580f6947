//! `oncegate check`

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use super::openapi::{self, OpenApiOperation};
use super::{CommandError, ConfigFile, block_on, failed, print};
use crate::app::StartError;
use crate::app::key_changes::KeyChanges;
use crate::app::route_identities::{RememberedChanges, compare_with_remembered, select_remembered};
use oncegate_config::{self as config, Environment, Overrides, ProcessEnvironment, WithoutSecrets};
use oncegate_domain::path_template::PathTemplate;
use oncegate_domain::quantity::quantity;
use oncegate_domain::route_table::RouteTable;
use oncegate_settings::{Config, LoadedConfig, Route, RouteMode, RouteSetting, show_whole_path};
use oncegate_store::{self as store, Distribution, OpenError, StoreSettings};

#[derive(Args)]
pub(super) struct CheckArguments {
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    overrides: Overrides,
    /// Further configurations: each is checked by itself
    #[arg(value_name = "FILE", conflicts_with_all = ["config", "connect", "openapi"])]
    files: Vec<PathBuf>,
    /// Checks where secrets, files and variables that the configuration names are absent: they count as right
    #[arg(long, conflicts_with = "connect")]
    no_secrets: bool,
    /// Prints a line for each route alone
    #[arg(long, conflicts_with = "json")]
    short: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    /// The service of the operations, where there are several
    #[arg(long, value_name = "NAME", requires = "openapi")]
    service: Option<String>,
    /// A file of the operations that are known to have no route, as METHOD PATH, one a line: a further one fails, and
    /// so does one that has a route now or is gone
    #[arg(long, value_name = "FILE", requires = "openapi")]
    baseline: Option<PathBuf>,
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
    if !arguments.files.is_empty() {
        return check_files(arguments);
    }
    let config = check_file(arguments.file.path().as_deref(), arguments)?;
    if arguments.connect {
        print(&describe_store(&config)?)?;
        compare_with_store(&config)?;
    }
    match &arguments.openapi {
        None => Ok(()),
        Some(spec) => check_openapi(&config.live, spec, arguments),
    }
}

/// Checks each file, whatever the others are like, and returns the problems of all.
fn check_files(arguments: &CheckArguments) -> Result<(), CommandError> {
    let mut first = None;
    for file in &arguments.files {
        match check_file(Some(file), arguments) {
            Ok(_) => {}
            Err(error) if first.is_none() => first = Some(error),
            Err(error) => error.print(),
        }
    }
    first.map_or(Ok(()), Err)
}

fn check_file(file: Option<&Path>, arguments: &CheckArguments) -> Result<LoadedConfig, CommandError> {
    let environment: &dyn Environment = if arguments.no_secrets { &WithoutSecrets } else { &ProcessEnvironment };
    let config = config::load(file, &arguments.overrides, environment).map_err(CommandError::Config)?;
    let shown = file.map_or_else(|| config::NO_FILE.to_owned(), show_whole_path);
    if arguments.json {
        print(&format!("{:#}\n", to_json(&shown, &config)))?;
        return Ok(config);
    }
    for warning in &config.live.warnings {
        eprintln!("warning: {warning}");
    }
    match arguments.short {
        true => print(&config::describe_in_short(&config))?,
        false => print(&format!("{:<16}{shown}\n{}", "file", config::describe(&config)))?,
    }
    Ok(config)
}

fn to_json(file: &str, config: &LoadedConfig) -> Value {
    let services = config.live.services.iter().map(
        |service| json!({ "name": &*service.name, "hosts": service.hosts, "upstream": service.upstream.to_string() }),
    );
    let routes = config.live.routes.iter().map(|route| {
        let setting = |setting: RouteSetting<'_>| (setting.label.to_owned(), Value::from(setting.value));
        let settings: serde_json::Map<_, _> = route.settings().into_iter().map(setting).collect();
        json!({ "name": &*route.name, "service": &*route.service.name, "settings": settings })
    });
    json!({
        "file": file,
        "services": services.collect::<Vec<_>>(),
        "routes": routes.collect::<Vec<_>>(),
        "warnings": config.live.warnings,
    })
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
    let (is_remembered, compared) = remembered_changes(config)?;
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
        false if !is_remembered => print(&format!("{:<16}the store remembers none\n", "routes")),
        false => print(&format!("{:<16}find their stored keys\n", "routes")),
    }
}

/// Whether the store remembers anything, and how the routes differ from that.
pub(super) fn remembered_changes(config: &LoadedConfig) -> Result<(bool, RememberedChanges), CommandError> {
    let settings = StoreSettings::from(config);
    let finding = async { store::remembered_route_identities(&settings).await.map_err(failed) };
    let remembered = select_remembered(block_on(finding)?, &config.live);
    Ok((!remembered.is_empty(), compare_with_remembered(&remembered, &config.live)))
}

/// The word for an operation of the baseline.
const KNOWN: &str = "known";

/// The word for an operation that nothing guards, and nobody has decided so.
const UNGUARDED: &str = "UNGUARDED";

fn check_openapi(config: &Config, spec: &Path, arguments: &CheckArguments) -> Result<(), CommandError> {
    let mut operations = openapi::read(spec).map_err(failed)?;
    let all = operations.len();
    operations.retain(|operation| arguments.methods.contains(&operation.method));
    let mut table = RouteTable::default();
    let service = match (&arguments.service, &config.services[..]) {
        (Some(name), _) => config.service(name),
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    let Some(service) = service else {
        let names = config.service_names().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        return Err(CommandError::Usage(format!("the file has the services {names}: name one with --service")));
    };
    // A route that only observes does not prevent a second execution.
    for route in config.routes_of(&service.name).filter(|route| route.options.mode != RouteMode::Observe) {
        table.insert(&route.options.methods, &route.path, route.options.spelling, route);
    }
    let is_allowed = |operation: &OpenApiOperation| {
        let OpenApiOperation { method, template, is_ignored } = operation;
        *is_ignored || arguments.allow.iter().any(|(allowed, path)| allowed == method && path == template)
    };
    let known = arguments.baseline.as_deref().map(read_baseline).transpose()?.unwrap_or_default();
    let is_known = |operation: &OpenApiOperation| {
        known.iter().any(|(method, path)| *method == operation.method && *path == operation.template)
    };
    let judge = |operation: &OpenApiOperation| match table.find_for_all(&operation.method, &operation.template) {
        Some(route) if route.options.mode == RouteMode::Enforce => ("guarded", describe_route(route)),
        // Somebody has decided.
        Some(route) => ("off", format!("{} has mode = \"off\"", route.name)),
        None if is_allowed(operation) => ("allowed", String::new()),
        None if is_known(operation) => (KNOWN, String::new()),
        None => (UNGUARDED, explain_unguarded(config.routes_of(&service.name), operation)),
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
    let is_still = |(method, path): &&(Method, PathTemplate)| {
        let is_it = |operation: &OpenApiOperation| operation.method == *method && operation.template == *path;
        decided.iter().any(|(operation, (verdict, _))| *verdict == KNOWN && is_it(operation))
    };
    let (_, mended): (Vec<_>, Vec<_>) = known.iter().partition(is_still);
    for (method, path) in &mended {
        text.push_str(&format!(
            "  {:<11} {:<7} {path}  remove it from the baseline, which may only shrink\n",
            "MENDED",
            method.as_str()
        ));
    }
    print(&text)?;
    if !mended.is_empty() {
        let counted = quantity(mended.len() as u64, "operation of the baseline is", "operations of the baseline are");
        return Err(failed(format!("{counted} guarded or gone: remove the lines")));
    }
    match unguarded.len() {
        0 => Ok(()),
        count => Err(failed(format!("no route guards {count} of {counted}"))),
    }
}

/// Reads the operations of a baseline: `METHOD PATH` a line, with comments behind `#`.
fn read_baseline(file: &Path) -> Result<Vec<(Method, PathTemplate)>, CommandError> {
    let text = std::fs::read_to_string(file).map_err(|error| failed(format!("{}: {error}", file.display())))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let written = lines.enumerate().filter(|(_, line)| !line.is_empty());
    let parsed = written.map(|(at, line)| {
        parse_allowed(line).map_err(|why| failed(format!("{}:{}: `{line}`: {why}", file.display(), at + 1)))
    });
    parsed.collect()
}

fn describe_route(route: &Arc<Route>) -> String {
    let key = if route.options.key.required { "key required" } else { "key optional: without one it passes unguarded" };
    format!("{}, {key}", route.name)
}

/// Names the route that nearly guards an operation, and what keeps it from doing so: wrong methods are the likely
/// mistake.
fn explain_unguarded<'a>(routes: impl Iterator<Item = &'a Arc<Route>>, operation: &OpenApiOperation) -> String {
    let covering = routes.filter(|route| operation.template.is_covered_by(&route.path));
    let nearest = covering.min_by(|one, other| one.path.cmp(&other.path));
    let obstacle = |route: &Arc<Route>| match route.options.mode {
        RouteMode::Enforce if !route.options.methods.contains(&operation.method) => format!("not {}", operation.method),
        RouteMode::Enforce => "a more specific route does not".into(),
        mode => format!("its mode is {}", mode.name()),
    };
    nearest.map_or(String::new(), |route| format!("{} has the path, but {}", route.name, obstacle(route)))
}
