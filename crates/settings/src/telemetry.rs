//! Logs and traces of the proxy itself.

use http::uri::PathAndQuery;

use super::{ParseResult, UpstreamTarget, parse_service};
use crate::words;

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

/// Logs and traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// The events that are logged: a filter of `tracing`.
    pub log: String,
    /// The format of log lines.
    pub format: LogFormat,
    /// The collector of traces.
    pub otlp: Option<OtlpCollector>,
}

/// An OpenTelemetry collector. Its path may have a secret.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("{upstream}/…")]
pub struct OtlpCollector {
    /// [`UpstreamTarget::Http`] or [`UpstreamTarget::Https`].
    pub upstream: UpstreamTarget,
    /// The path for OTLP over HTTP; `None` for OTLP over gRPC.
    pub path: Option<PathAndQuery>,
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
