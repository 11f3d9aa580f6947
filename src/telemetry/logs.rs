//! Logs, on standard error: standard output belongs to what a command was asked to print.

use std::error::Error;
use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use super::stderr::{self, Pen};
use crate::config::{Log, LogFormat};
pub use line::{Line, millis};

mod line;

/// What may be logged of a library at most, whatever the filter's own level is: below that they tell of bytes.
///
/// lapin says nothing: what matters of it we say ourselves, and it shows whole messages in its warnings.
const QUIET: &str = "hyper=warn,hyper_util=warn,tokio_postgres=warn,h2=warn,lapin=off";

/// Under which name requests are logged, a line each: for filters, such as `info,oncegate::requests=warn`.
pub const REQUESTS: &str = "oncegate::requests";

/// Set where lines are JSON.
static PLAIN: OnceLock<Pen> = OnceLock::new();

/// Where a line that is JSON already is put; `None` where lines are text.
fn plain() -> Option<Pen> {
    PLAIN.get().copied()
}

/// Starts logging. A second call changes nothing.
///
/// # Errors
/// The system refuses a thread.
pub fn start(log: &Log) -> std::io::Result<()> {
    // Our own words come after, so that a filter which names one of the libraries wins.
    let filter = EnvFilter::try_new(format!("{QUIET},{}", log.filter)).unwrap_or_else(|_| EnvFilter::new("info"));
    let terminal = std::io::stderr().is_terminal();
    let pen = Pen::new()?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(pen).with_target(false);
    let json = match log.format {
        LogFormat::Auto => !terminal,
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    let _ = if json {
        let _ = PLAIN.set(pen);
        logs.json().flatten_event(true).with_current_span(false).try_init()
    } else {
        logs.with_ansi(terminal).try_init()
    };
    Ok(())
}

/// How many lines were dropped because standard error took them too slowly.
pub fn dropped() -> u64 {
    stderr::dropped()
}

/// Waits until what was logged is written, for so long at most: before the process ends.
pub fn flush(at_most: Duration) {
    stderr::flush(at_most);
}

/// Why an error came about: its causes in one line, or nothing if it says all itself.
pub fn causes(error: &dyn Error) -> Option<String> {
    let mut line = String::new();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !line.ends_with(&said) {
            line.push_str(if line.is_empty() { "" } else { ": " });
            line.push_str(&said);
        }
        source = cause.source();
    }
    (!line.is_empty()).then_some(line)
}
