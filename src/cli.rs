//! The command line.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::app::Failure;
use crate::config::{self, Config, Location, Overrides, Process};
use crate::store::OpenError;
use crate::telemetry::logs::causes;

mod check;
mod client;
mod completions;
mod demo;
mod drain;
mod explain;
mod healthcheck;
mod keys;
mod man;
mod migrate;
mod openapi;
mod reconcile;
mod run;
mod schema;

/// Done.
const DONE: u8 = 0;
/// Failed while running.
const FAILED: u8 = 1;
/// The command line is wrong, as clap has it.
const USAGE: u8 = 2;
/// Something it depends on is missing (EX_UNAVAILABLE of sysexits.h).
const UNAVAILABLE: u8 = 69;
/// The configuration is wrong (EX_CONFIG of sysexits.h).
const CONFIG: u8 = 78;

/// A reverse proxy that makes an HTTP service's state-changing requests safe to retry.
#[derive(Parser)]
#[command(
    name = "oncegate",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done, 1 failed while running, \
2 usage, 69 a dependency is missing at start (no store, a schema not migrated), 78 configuration."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the proxy
    Run(run::Arguments),
    /// A tour on one terminal: its own upstream, the embedded store, real requests
    Demo,
    /// Validates the configuration and prints the routes as resolved
    Check(check::Arguments),
    /// Shows route, key, scope, canonical body and fingerprint of a request, as the proxy would see them
    Explain(explain::Arguments),
    /// Applies the store schema's pending migrations
    Migrate(migrate::Arguments),
    /// Asks the services about settled and unknown keys, and reports where store and service disagree; changes nothing
    Reconcile(reconcile::Arguments),
    /// Looks at keys, and decides about them
    Keys(keys::Arguments),
    /// Asks the running instance whether it is ready
    Healthcheck(client::Instance),
    /// Tells the running instance to drain, and waits until it has
    Drain(drain::Arguments),
    /// Prints the configuration's JSON Schema, for editors and validators
    Schema,
    /// Prints a shell's completions
    Completions(completions::Arguments),
    /// Prints the manual page
    Man,
}

/// Where the configuration comes from.
#[derive(Args)]
struct ConfigFile {
    /// The configuration file
    #[arg(short, long, value_name = "FILE", env = "ONCEGATE_CONFIG")]
    config: Option<PathBuf>,
}

/// How a command ended badly, as an exit code and words.
enum Ended {
    /// The configuration has problems; each is named.
    Config(config::Problems),
    /// The proxy could not start.
    Failure(Failure),
    /// The store could not be opened.
    Store(Location, OpenError),
    /// The command line does not say enough, or too much.
    Usage(String),
    /// Anything else.
    Other(Box<dyn Error>),
}

impl Ended {
    fn code(&self) -> u8 {
        match self {
            Self::Config(_) => CONFIG,
            Self::Failure(Failure::Store(..) | Failure::Tenure(_)) | Self::Store(..) => UNAVAILABLE,
            Self::Usage(_) => USAGE,
            Self::Failure(_) | Self::Other(_) => FAILED,
        }
    }

    fn tell(&self) {
        match self {
            Self::Config(problems) => eprintln!("{problems}"),
            Self::Failure(error) => eprintln!("oncegate: {}", chain(error)),
            Self::Store(location, error) => eprintln!("oncegate: {location}: {}", chain(error)),
            Self::Usage(what) => eprintln!("oncegate: {what}"),
            Self::Other(error) => eprintln!("oncegate: {}", chain(error.as_ref())),
        }
    }
}

/// Reads the command line, does what it says, and says how that ended.
pub fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Run(arguments) => run::run(arguments),
        Command::Demo => demo::run(),
        Command::Check(arguments) => check::run(&arguments),
        Command::Explain(arguments) => explain::run(arguments),
        Command::Migrate(arguments) => migrate::run(&arguments),
        Command::Reconcile(arguments) => reconcile::run(&arguments),
        Command::Keys(arguments) => keys::run(arguments),
        Command::Healthcheck(instance) => healthcheck::run(&instance),
        Command::Drain(arguments) => drain::run(&arguments),
        Command::Schema => schema::run(),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man => man::run(),
    };
    match ended {
        Ok(()) => ExitCode::from(DONE),
        // Whoever reads has read enough: `oncegate demo | head` is no failure.
        Err(Ended::Other(error)) if is_broken_pipe(error.as_ref()) => ExitCode::from(DONE),
        Err(ended) => {
            ended.tell();
            ExitCode::from(ended.code())
        }
    }
}

fn load(file: &ConfigFile, overrides: &Overrides) -> Result<Config, Ended> {
    config::load(file.config.as_deref(), overrides, &Process).map_err(|problems| {
        hint_at_file(file);
        Ended::Config(problems)
    })
}

/// A file that lies here and was not named is not read: whoever meant it should know.
fn hint_at_file(file: &ConfigFile) {
    if file.config.is_none() && std::path::Path::new("oncegate.toml").exists() {
        eprintln!("oncegate: no file was named, and there is one here: write `-c oncegate.toml`");
    }
}

/// For commands that send nothing to the service: without a file they do not need to know where it is.
fn load_without_service(file: &ConfigFile) -> Result<Config, Ended> {
    let unknown = file.config.is_none() && std::env::var_os("ONCEGATE_UPSTREAM").is_none();
    let upstream = unknown.then(|| "http://localhost".to_owned());
    let overrides = Overrides { upstream, ..Overrides::default() };
    // What the defaults say looks like an answer.
    hint_at_file(file);
    config::load(file.config.as_deref(), &overrides, &Process).map_err(Ended::Config)
}

/// On standard output, which belongs to what a command was asked for.
fn print(text: &str) -> Result<(), Ended> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| Ended::Other(error.into()))
}

/// For commands that do something and end.
fn block_on<T>(work: impl Future<Output = Result<T, Ended>>) -> Result<T, Ended> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Ended::Other(error.into()))?.block_on(work)
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// An error with all its causes, in one line.
fn chain(error: &dyn Error) -> String {
    match causes(error) {
        Some(causes) => format!("{error}: {causes}"),
        None => error.to_string(),
    }
}
