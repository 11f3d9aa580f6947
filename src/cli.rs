//! The command line.

use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};

use crate::app::StartError;
use oncegate_admin::openapi_document;
use oncegate_config::{self as config, Overrides, ProcessEnvironment, WithoutSecrets};
use oncegate_settings::{LoadedConfig, StoreLocation, show_whole_path};
use oncegate_store::OpenError;
use oncegate_telemetry::logs::format_chain;

mod audit;
mod check;
mod client;
mod completions;
mod conform;
mod demo;
mod diff;
mod drain;
mod endpoint_arguments;
mod events;
mod explain;
mod healthcheck;
mod init;
mod keys;
mod man;
mod migrate;
mod openapi;
mod probe;
mod reconcile;
mod report;
mod request_arguments;
mod run;

/// The exit code of a command that is done.
const DONE: u8 = 0;
/// The exit code of a command that failed while running.
const FAILED: u8 = 1;
/// The exit code of a wrong command line, the same as clap's.
const USAGE: u8 = 2;
/// The exit code where a dependency is missing (EX_UNAVAILABLE of sysexits.h).
const UNAVAILABLE: u8 = 69;
/// The exit code after an I/O error of the embedded store (EX_IOERR of sysexits.h).
const IO_ERROR: u8 = 74;
/// The exit code of a wrong configuration (EX_CONFIG of sysexits.h).
const CONFIG: u8 = 78;

/// A reverse proxy that makes an HTTP service's state-changing requests safe to retry.
#[derive(Parser)]
#[command(
    name = "oncegate",
    version,
    max_term_width = 100,
    after_help = "Begin with `oncegate init`, and with docs/first-steps.md, which the Debian package has in /usr/share/doc/oncegate.\n\n\
Exit codes: 0 done, 1 failed while running, \
2 usage, 3 and 4 as `diff` says, 69 a dependency is missing at start (no store, a schema not migrated, no server to probe), \
74 an I/O error of the embedded store, 78 configuration."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the proxy
    Run(run::RunArguments),
    /// Shows a tour on one terminal: its own upstream, the embedded store, real requests
    Demo(demo::DemoArguments),
    /// Writes a first configuration file from what you know about your service, and checks it
    Init(init::InitArguments),
    /// Validates the configuration and prints the routes as resolved
    Check(check::CheckArguments),
    /// Compares two configurations by the requests that they treat otherwise
    ///
    /// It says which requests lose their guard, which do not find their earlier keys, which services and routes are
    /// new, and which settings of a route differ. Secrets and variables may be absent. The exit code is 0 if no request
    /// is treated otherwise, 3 if some are and none loses its guard or its keys, and 4 if one does.
    Diff(diff::DiffArguments),
    /// Shows route, key, scope, canonical body and fingerprint of a request, as the proxy would see them
    Explain(explain::ExplainArguments),
    /// Applies the store schema's pending migrations
    Migrate(migrate::MigrateArguments),
    /// Asks the services about settled and unknown keys, and reports where store and service disagree; changes nothing
    Reconcile(reconcile::ReconcileArguments),
    /// Executes an operation several times on any HTTP server, and tells whether its idempotency keys hold
    ///
    /// The probe EXECUTES YOUR OPERATION: up to 10 times with 5 duplicates, if the server has no idempotency keys. Use
    /// a test account. It sends a first request, the same body with another key, the first request again, duplicates at
    /// once on connections that are open already, the first key with another body (if that is refused, also with a key
    /// of its own), and a request without a key. It prints a table for the API's owner: for each of them what
    /// draft-ietf-httpapi-idempotency-key-header-07 expects and what came back.
    ///
    /// A verdict is `holds`, `broken` or `cannot tell`: where two executions have equal responses, an equal retry
    /// proves nothing. Status, Location, Content-Location and body are compared. The exit code is 0 if all expectations
    /// hold, 1 if one is `broken` or `cannot tell`, and 69 if the server cannot be reached.
    Probe(probe::ProbeArguments),
    /// Puts a lossy link between a client and a service, and tells whether the client's retries hold
    ///
    /// The link forwards the client's requests to the service. By a seeded plan, each operation meets another of 8
    /// faults: its answer is lost, cut, late or the second of two, or the link refuses it as Oncegate does (409 in
    /// flight, 422 key reused, 409 outcome unknown). The report says whether the client keeps its key and its bytes,
    /// obeys Retry-After, and understands the refusals.
    ///
    /// With a COMMAND, each run of it is one operation, and its exit code says what the client believes:
    ///
    ///   oncegate conform http://127.0.0.1:3000 -- ./pay-once
    ///
    /// Without one, the link runs until Ctrl-C. The exit code is 0 if all expectations hold, 1 if one is `broken` or
    /// `cannot tell`, and 69 if the service cannot be reached.
    #[command(verbatim_doc_comment)]
    Conform(conform::ConformArguments),
    /// Lists and shows keys, and carries out decisions about them
    Keys(keys::KeysArguments),
    /// Lists who decided what about keys, the latest first
    Audit(audit::AuditArguments),
    /// Writes a report for an issue or a colleague: versions, configuration, instance and store
    ///
    /// The report is one document in Markdown: versions, the configuration, the running instance's readiness, metrics
    /// and counts of keys, the database's settings, sizes and plans, and with --log the last lines of a log. It has no
    /// secret, no key and no caller, and nothing of a request or a response. It has the addresses of services and the
    /// store, and the names and patterns of routes: read it before you publish it. A part that is missing says so.
    Report(report::ReportArguments),
    /// Lists the events about settled keys that wait or are dead, and publishes dead ones again
    Events(events::EventsArguments),
    /// Asks the running instance whether it is ready
    Healthcheck(client::InstanceArguments),
    /// Tells the running instance to drain, and waits until it has
    Drain(drain::DrainArguments),
    /// Prints the configuration's JSON Schema, for editors and validators, or the admin API's OpenAPI document
    Schema {
        /// Prints the OpenAPI document
        #[arg(long)]
        admin: bool,
    },
    /// Prints a shell's completions
    Completions(completions::CompletionsArguments),
    /// Prints the manual page
    Man,
}

/// The argument for the configuration file.
#[derive(Args)]
struct ConfigFile {
    /// The configuration file [env: ONCEGATE_CONFIG] [default: oncegate.toml in the working directory, else
    /// /etc/oncegate/oncegate.toml, if it is there]
    #[arg(short, long, value_name = "FILE", value_parser = OsStringValueParser::new().try_map(parse_file_name))]
    config: Option<PathBuf>,
}

/// Refuses an empty argument, which is a shell's unset variable and must not stand for the default.
fn parse_file_name(name: OsString) -> Result<PathBuf, &'static str> {
    match name.is_empty() {
        true => Err("the name of the file is empty: is the variable in it set? Without --config, \
                     oncegate.toml in the working directory is read, else /etc/oncegate/oncegate.toml"),
        false => Ok(name.into()),
    }
}

/// The file that is read where neither the command line nor a variable names one.
const DEFAULT_FILE: &str = "oncegate.toml";
/// The file of the packaged unit, which is read where the working directory has none.
const UNIT_FILE: &str = "/etc/oncegate/oncegate.toml";

impl ConfigFile {
    /// The file to read; `None` where flags, variables and defaults are all there is.
    fn path(&self) -> Option<PathBuf> {
        self.path_or(&[DEFAULT_FILE, UNIT_FILE])
    }

    /// The file that is named, else the first of these that is there.
    fn path_or(&self, defaults: &[&str]) -> Option<PathBuf> {
        // `ONCEGATE_CONFIG=` in an env file means that it is not set.
        let variable = || std::env::var_os("ONCEGATE_CONFIG").filter(|name| !name.is_empty()).map(PathBuf::from);
        let named = self.config.clone().or_else(variable);
        named.or_else(|| defaults.iter().map(PathBuf::from).find(|path| !is_absent(path)))
    }
}

/// Names the file that was read, for the error of a command that may have read another than its user meant.
fn describe_file(file: Option<&Path>) -> String {
    let nowhere = || "no configuration was found: name it with -c".to_owned();
    file.map_or_else(nowhere, |file| format!("the configuration is {}", show_whole_path(file)))
}

/// Whether there is nothing of this name. A link that leads nowhere is there, and so is what the system does not let us
/// look at: reading it is an error.
fn is_absent(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Writes a file that is not there yet.
fn create(file: &Path, mode: u32, text: &str) -> Result<(), CommandError> {
    let created = File::options().write(true).create_new(true).mode(mode).open(file);
    let written = created.and_then(|mut created| created.write_all(text.as_bytes()));
    written.map_err(|error| failed(format!("{}: {error}", file.display())))
}

/// The failure of a command: its exit code and its message.
enum CommandError {
    /// The configuration has these problems.
    Config(config::ConfigProblems),
    Failure(StartError),
    Store(StoreLocation, OpenError),
    /// The server that the command asks cannot be reached.
    Unreachable(String),
    /// The command line lacks something, or contradicts itself.
    Usage(String),
    Other(Box<dyn Error>),
}

impl CommandError {
    fn code(&self) -> u8 {
        match self {
            Self::Config(_) => CONFIG,
            Self::Store(..) | Self::Unreachable(_) => UNAVAILABLE,
            // A supervisor chooses by the code whether it tries again, so each new failure has to be given one.
            Self::Failure(failure) => match failure {
                // What the supervisor hands over, or the store remembers, does not fit the configuration: another try
                // finds the same.
                StartError::HandedSocket(_) | StartError::RouteChanges(_) => CONFIG,
                StartError::Store(..)
                | StartError::Events(_)
                | StartError::Lease(_)
                | StartError::RouteIdentities(_)
                | StartError::Salt(_) => UNAVAILABLE,
                StartError::StoreFailed => IO_ERROR,
                StartError::Listen(..)
                | StartError::Machine(_)
                | StartError::AdminToken(_)
                | StartError::HandOver(_) => FAILED,
            },
            Self::Usage(_) => USAGE,
            Self::Other(_) => FAILED,
        }
    }

    fn print(&self) {
        match self {
            Self::Config(problems) => eprintln!("{problems}"),
            Self::Failure(error) => eprintln!("oncegate: {}", format_chain(error)),
            Self::Store(location, error) => eprintln!("oncegate: {location}: {}", format_chain(error)),
            Self::Usage(what) | Self::Unreachable(what) => eprintln!("oncegate: {what}"),
            Self::Other(error) => eprintln!("oncegate: {}", format_chain(error.as_ref())),
        }
    }
}

/// Runs the command that the command line names, and returns its exit code.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Diff(arguments) => match diff::run(&arguments) {
            Ok(code) => return ExitCode::from(code),
            Err(error) => Err(error),
        },
        Command::Run(arguments) => run::run(arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Init(arguments) => init::run(arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Explain(arguments) => explain::run(arguments),
        Command::Migrate(arguments) => migrate::run(&arguments),
        Command::Reconcile(arguments) => reconcile::run(&arguments),
        Command::Probe(arguments) => probe::run(arguments),
        Command::Conform(arguments) => conform::run(arguments),
        Command::Audit(arguments) => audit::run(&arguments),
        Command::Events(arguments) => events::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Keys(arguments) => keys::run(arguments),
        Command::Healthcheck(instance) => healthcheck::run(&instance),
        Command::Drain(arguments) => drain::run(&arguments),
        Command::Schema { admin: false } => print(&format!("{:#}\n", config::schema())),
        Command::Schema { admin: true } => print(&format!("{:#}\n", openapi_document())),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man => man::run(),
    };
    match result {
        Ok(()) => ExitCode::from(DONE),
        // The reader has closed the pipe: `oncegate demo | head` is not a failure.
        Err(CommandError::Other(error)) if is_broken_pipe(error.as_ref()) => ExitCode::from(DONE),
        Err(error) => {
            error.print();
            ExitCode::from(error.code())
        }
    }
}

/// The failure of a command for any other reason than those with exit codes of their own.
fn failed(error: impl Into<Box<dyn Error>>) -> CommandError {
    CommandError::Other(error.into())
}

fn load(file: &ConfigFile, overrides: &Overrides) -> Result<LoadedConfig, CommandError> {
    config::load(file.path().as_deref(), overrides, &ProcessEnvironment).map_err(CommandError::Config)
}

/// Loads a configuration where its secrets and variables may be absent: nothing is done with it.
fn load_without_secrets(file: &Path) -> Result<LoadedConfig, CommandError> {
    config::load(Some(file), &Overrides::default(), &WithoutSecrets).map_err(CommandError::Config)
}

/// Loads the configuration for commands that send nothing to the service: without a file, they need no upstream.
fn load_without_service(file: &ConfigFile) -> Result<LoadedConfig, CommandError> {
    let unknown = file.path().is_none() && std::env::var_os("ONCEGATE_UPSTREAM").is_none();
    let upstream = unknown.then(|| "http://localhost".to_owned());
    load(file, &Overrides { upstream, ..Overrides::default() })
}

/// Refuses an embedded store without a file: a look must not create one.
fn require_file(location: &StoreLocation, file: &ConfigFile) -> Result<(), CommandError> {
    match location {
        StoreLocation::Sqlite(path) if !path.exists() => {
            let missing = format!("there is no such file; {}", describe_file(file.path().as_deref()));
            Err(CommandError::Store(location.clone(), OpenError::Missing(missing.into())))
        }
        StoreLocation::Sqlite(_) | StoreLocation::Postgres(_) | StoreLocation::Memory => Ok(()),
    }
}

/// Prints a command's result on standard output. Everything else goes to standard error.
fn print(text: &str) -> Result<(), CommandError> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(failed)
}

fn ask_to_confirm() -> Result<bool, CommandError> {
    let mut answers = std::io::stdin().lock();
    if !std::io::stdin().is_terminal() {
        return Err(CommandError::Usage("this is not a terminal, and cannot ask for confirmation: use --yes".into()));
    }
    eprint!("Go on? [y/N] ");
    let mut answer = String::new();
    let read = std::io::stderr().flush().and_then(|()| answers.read_line(&mut answer));
    read.map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Runs the work of a command on a runtime of its own.
fn block_on<T>(work: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(failed)?.block_on(work)
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use oncegate_store::{StoreError, salts::OpenSaltError};

    use super::*;

    #[test]
    fn a_store_that_is_away_has_one_exit_code_at_whatever_step_of_the_start_it_leaves() {
        let away = OpenError::Away("it is away".into());
        for failure in [
            StartError::Store(StoreLocation::Memory, away),
            StartError::Salt(OpenSaltError::Store(StoreError::TimedOut)),
            StartError::Events(StoreError::TimedOut),
            StartError::Lease(StoreError::TimedOut),
            StartError::RouteIdentities(StoreError::TimedOut),
        ] {
            let step = format!("{failure:?}");
            assert_eq!(CommandError::Failure(failure).code(), UNAVAILABLE, "{step}");
        }
    }
}
