//! `oncegate check`

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::openapi::{self, OpenApiOperation};
use super::{CommandError, ConfigFile, load, print};
use crate::config::{self, Config, Overrides, Route, RouteMode};
use crate::domain::route_table::RouteTable;

#[derive(Args)]
pub(super) struct CheckArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// An OpenAPI document (3.0 or 3.1, JSON or YAML): lists its state-changing operations, and exits with 1 if no
    /// route guards one of them
    #[arg(long, value_name = "SPEC")]
    openapi: Option<PathBuf>,
}

pub(super) fn run(arguments: &CheckArguments) -> Result<(), CommandError> {
    let config = load(&arguments.file, &Overrides::default())?;
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    print(&config::describe(&config))?;
    match &arguments.openapi {
        None => Ok(()),
        Some(spec) => check_openapi(&config, spec),
    }
}

fn check_openapi(config: &Config, spec: &Path) -> Result<(), CommandError> {
    let operations = openapi::read(spec).map_err(|error| CommandError::Other(error.into()))?;
    let mut table = RouteTable::default();
    // A route that only observes, or is off, does not prevent a second execution.
    let enforced = config.routes.iter().filter(|route| route.mode == RouteMode::Enforce);
    enforced.for_each(|route| {
        table.insert(&route.methods, route.host.as_deref(), &route.path, route.spelling, route);
    });
    let (guarded, unguarded): (Vec<_>, Vec<_>) = operations
        .iter()
        .map(|operation| (operation, table.find_for_all(&operation.method, &operation.template)))
        .partition(|(_, route)| route.is_some());
    let mut text = format!("\n{:<16}{}, {} state-changing operations\n", "openapi", spec.display(), operations.len());
    let width = operations.iter().map(|operation| operation.template.to_string().chars().count()).max().unwrap_or(0);
    for (operation, route) in unguarded.iter().chain(&guarded) {
        let (verdict, note) = match route {
            None => ("UNGUARDED", explain_unguarded(config, operation)),
            Some(route) => ("guarded", describe_route(route)),
        };
        let OpenApiOperation { method, template } = operation;
        let line = format!("  {verdict:<11} {:<7} {:<width$}  {note}", method.as_str(), template.to_string());
        writeln!(text, "{}", line.trim_end()).expect("writing to a String does not fail");
    }
    print(&text)?;
    match unguarded.len() {
        0 => Ok(()),
        count => {
            let message = format!("no route guards {count} of {} state-changing operations", operations.len());
            Err(CommandError::Other(message.into()))
        }
    }
}

fn describe_route(route: &Arc<Route>) -> String {
    let key = if route.key.required { "key required" } else { "key optional: without one it passes unguarded" };
    format!("{}, {key}", route.name)
}

/// Names the route that nearly guards an operation, and what keeps it from doing so: wrong methods are the likely mistake.
fn explain_unguarded(config: &Config, operation: &OpenApiOperation) -> String {
    let covering = config.routes.iter().filter(|route| operation.template.is_covered_by(&route.path));
    let nearest = covering.min_by(|one, other| one.path.cmp(&other.path));
    let obstacle = |route: &Arc<Route>| match &route.host {
        _ if route.mode != RouteMode::Enforce => format!("its mode is {}", route.mode.name()),
        _ if !route.methods.contains(&operation.method) => format!("not {}", operation.method),
        Some(host) => format!("for {host} only"),
        None => "a more specific route does not".into(),
    };
    nearest.map_or(String::new(), |route| format!("{} has the path, but {}", route.name, obstacle(route)))
}
