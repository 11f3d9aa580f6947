//! Reads and checks `[telemetry]`.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::options::options;
use oncegate_settings::{LogFormat, OtlpCollector, TelemetryConfig, Word};

options! {
    struct TelemetryOptions for TelemetryConfig {
        /// the events that are logged: a level, or `info,oncegate=debug`
        log: Text = "info" => parsed(parse_filter);
        /// `auto` is text on a terminal, else json
        format: Choice(LogFormat::WORDS) = "auto" => choice();
        /// an OpenTelemetry collector: `http://host:4317`, or a path behind it for HTTP
        otlp: Concealed = "" => optional(OtlpCollector::parse);
    }
}

fn parse_filter(text: &str) -> Result<String, String> {
    // Any other word would be a target, also a level with a blank before it, and everything else would be silent.
    let is_level = |word: &str| word.is_empty() || word.contains(['=', '[']) || word.parse::<LevelFilter>().is_ok();
    match EnvFilter::try_new(text) {
        Ok(_) if text.split(',').all(is_level) => Ok(text.to_owned()),
        Ok(_) | Err(_) => {
            Err("is no filter: write `error`, `warn`, `info`, `debug` or `trace`, or `info,oncegate=debug`".into())
        }
    }
}
