//! `oncegate check`

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::openapi::{self, Operation};
use super::{ConfigFile, Ended, load, print};
use crate::config::{self, Config, Mode, Overrides, Route};
use crate::domain::route_table::RouteTable;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
    /// An OpenAPI document (3.0 or 3.1, JSON or YAML): lists its state-changing operations, and exits with 1 if there is
    /// one that no route guards
    #[arg(long, value_name = "SPEC")]
    openapi: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Ended> {
    let config = load(&arguments.file, &Overrides::default())?;
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    print(&config::describe(&config))?;
    match &arguments.openapi {
        None => Ok(()),
        Some(spec) => compare(&config, spec),
    }
}

fn compare(config: &Config, spec: &Path) -> Result<(), Ended> {
    let operations = openapi::read(spec).map_err(|error| Ended::Other(error.into()))?;
    let mut table = RouteTable::default();
    // A route that only looks on, or is off, keeps nobody from executing twice.
    let enforced = config.routes.iter().filter(|route| route.mode == Mode::Enforce);
    enforced.for_each(|route| table.insert(&route.methods, route.host.as_deref(), &route.path, route));
    let (guarded, unguarded): (Vec<_>, Vec<_>) = operations
        .iter()
        .map(|operation| (operation, table.find_for_all(&operation.method, &operation.template)))
        .partition(|(_, route)| route.is_some());
    let mut text = format!("\n{:<16}{}, {} state-changing operations\n", "openapi", spec.display(), operations.len());
    let width = operations.iter().map(|operation| operation.template.to_string().chars().count()).max().unwrap_or(0);
    for (operation, route) in unguarded.iter().chain(&guarded) {
        let (word, note) = match route {
            None => ("UNGUARDED", why_not(config, operation)),
            Some(route) => ("guarded", by(route)),
        };
        let Operation { method, template } = operation;
        let line = format!("  {word:<11} {:<7} {:<width$}  {note}", method.as_str(), template.to_string());
        writeln!(text, "{}", line.trim_end()).expect("a String takes everything");
    }
    print(&text)?;
    match unguarded.len() {
        0 => Ok(()),
        count => {
            let message = format!("no route guards {count} of {} state-changing operations", operations.len());
            Err(Ended::Other(message.into()))
        }
    }
}

fn by(route: &Arc<Route>) -> String {
    let key = if route.key.required { "key required" } else { "key optional: without one it passes unguarded" };
    format!("{}, {key}", route.name)
}

/// A route that would do but for its methods is the likely mistake.
fn why_not(config: &Config, operation: &Operation) -> String {
    let covering = config.routes.iter().filter(|route| operation.template.is_covered_by(&route.path));
    let nearest = covering.min_by(|one, other| one.path.cmp(&other.path));
    let but = |route: &Arc<Route>| match &route.host {
        _ if route.mode != Mode::Enforce => format!("its mode is {}", route.mode.name()),
        _ if !route.methods.contains(&operation.method) => format!("not {}", operation.method),
        Some(host) => format!("for {host} only"),
        None => "a more specific one has not".into(),
    };
    nearest.map_or(String::new(), |route| format!("{} has the path, but {}", route.name, but(route)))
}
