//! Logs on standard error. Standard output is for the results of commands.

use std::error::Error;
use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

use super::log_writer::LogWriter;
pub use super::log_writer::{dropped, flush};
use super::terminal::wants_colours;
pub use excerpt::LogExcerpt;
use oncegate_settings::{LogFormat, TelemetryConfig};
pub use request_line::{RequestLine, millis};

mod excerpt;
mod request_line;

/// The highest log levels of libraries, whatever the configured one: below `warn` they log single bytes and frames.
///
/// lapin is off: we log its errors ourselves, and its warnings contain whole messages. Of krafka's parts, one warns of
/// each try to connect, and one of what we log ourselves.
const LIBRARY_LEVELS: &str = "hyper=warn,hyper_util=warn,tokio_postgres=warn,h2=warn,lapin=off,krafka=warn,\
                              krafka::consumer::group::classic=error,krafka::network::pool=error";

/// The log target of request lines, for filters such as `info,oncegate::requests=warn`.
pub const REQUESTS: &str = "oncegate::requests";

/// The writer for lines that are JSON already; set if the log format is JSON.
static JSON_WRITER: OnceLock<LogWriter> = OnceLock::new();

/// Starts logging. A second call changes nothing.
pub fn start(telemetry: &TelemetryConfig) -> std::io::Result<()> {
    // The configured filter comes last, so that it wins where it names one of the libraries.
    let filter =
        EnvFilter::try_new(format!("{LIBRARY_LEVELS},{}", telemetry.log)).unwrap_or_else(|_| EnvFilter::new("info"));
    let terminal = std::io::stderr().is_terminal();
    let writer = LogWriter::new()?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_target(false);
    let json = match telemetry.format {
        LogFormat::Auto => !terminal,
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    let _ = if json {
        let _ = JSON_WRITER.set(writer);
        logs.json().flatten_event(true).with_current_span(false).try_init()
    } else {
        logs.with_ansi(wants_colours(&std::io::stderr())).try_init()
    };
    Ok(())
}

/// Returns the chain of an error's causes in one line; `None` if it has none.
pub fn error_causes(error: &dyn Error) -> Option<String> {
    let mut line = String::new();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !line.ends_with(&text) {
            line.push_str(if line.is_empty() { "" } else { ": " });
            line.push_str(&text);
        }
        source = cause.source();
    }
    (!line.is_empty()).then_some(line)
}

/// Returns an error with all its causes, in one line.
pub fn format_chain(error: &dyn Error) -> String {
    error_causes(error).map_or_else(|| error.to_string(), |causes| format!("{error}: {causes}"))
}
