//! Reads and checks `[telemetry]`.

use std::fmt;

use http::uri::PathAndQuery;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::options::options;
use super::problem::ParseResult;
use super::service_url::parse_service;
use super::upstream::UpstreamTarget;
use super::words::{Word, words};

words! {
    /// The format of log lines.
    pub enum LogFormat {
        /// Text on a terminal, else JSON.
        Auto = "auto",
        /// Text for people.
        Text = "text",
        /// One JSON object for each line.
        Json = "json",
    }
}

options! {
    /// The options of `[telemetry]`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TelemetryConfig {
        /// the events that are logged: a level, or `info,oncegate=debug`
        log: Text = "info" => String, parsed(parse_filter);
        /// `auto` is text on a terminal, else json
        format: Choice(LogFormat::WORDS) = "auto" => LogFormat, choice();
        /// an OpenTelemetry collector: `http://host:4317`, or a path behind it for HTTP
        otlp: Text = "" => Option<OtlpCollector>, optional_concealed(OtlpCollector::parse);
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

/// An OpenTelemetry collector.
#[derive(Clone, PartialEq, Eq)]
pub struct OtlpCollector {
    /// [`UpstreamTarget::Http`] or [`UpstreamTarget::Https`].
    pub upstream: UpstreamTarget,
    /// The path for OTLP over HTTP; `None` for OTLP over gRPC.
    pub path: Option<PathAndQuery>,
}

/// Without the path, which may have a secret.
impl fmt::Debug for OtlpCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/…", self.upstream)
    }
}

impl OtlpCollector {
    /// Reads `http://host:port` or `https://host:port`, with a path or without.
    pub fn parse(text: &str) -> ParseResult<Self> {
        let right = "write `http://collector:4317` (gRPC) or `http://collector:4318/v1/traces` (HTTP)";
        let (upstream, path) = parse_service(text, right)?;
        let path = match path {
            "" | "/" => None,
            path if path.contains('?') => return Err(format!("has a query: {right}")),
            path => Some(path.parse().map_err(|_| format!("has a path that cannot be read: {right}"))?),
        };
        Ok(Self { upstream, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_makes_it_http_and_none_makes_it_grpc() {
        for text in ["http://collector:4317", "https://collector", "http://[::1]:4317/"] {
            assert_eq!(OtlpCollector::parse(text).unwrap().path, None, "{text}");
        }
        let http = OtlpCollector::parse("https://collector:4318/v1/traces").unwrap();
        assert_eq!(http.path.unwrap(), "/v1/traces");
        for text in ["collector:4317", "unix:/run/c.sock", "h2c://c", "http://", "http://c/a?b"] {
            let error = OtlpCollector::parse(text).unwrap_err();
            assert!(error.contains("write `http://collector:4317`"), "{text}: {error}");
        }
        for text in ["http://u:hunter2@c", "http://u:1/hunter2@c"] {
            let error = OtlpCollector::parse(text).unwrap_err();
            assert!(error.contains("%40") && !error.contains("hunter2"), "{text}: {error}");
        }
    }
}
