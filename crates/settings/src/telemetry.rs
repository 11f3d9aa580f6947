//! Logs and traces of the proxy itself.

use http::HeaderMap;
use http::uri::PathAndQuery;

use super::server_url::decode_part;
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

/// An OpenTelemetry collector, and what it gets. Its path may have a secret, and so may the values of its fields.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("{upstream}/…")]
pub struct OtlpCollector {
    /// [`UpstreamTarget::Http`] or [`UpstreamTarget::Https`].
    pub upstream: UpstreamTarget,
    /// The path for OTLP over HTTP; `None` for OTLP over gRPC.
    pub path: Option<PathAndQuery>,
    /// The header fields that each export has besides its own.
    pub fields: HeaderMap,
    /// The attributes of the resource that Oncegate does not set, or sets otherwise.
    pub resource: Vec<(Box<str>, Box<str>)>,
    /// The traces that are recorded.
    pub sampler: TraceSampler,
}

const OTLP_EXAMPLES: &str = "write `http://collector:4317` (gRPC) or `http://collector:4318/v1/traces` (HTTP)";

impl OtlpCollector {
    /// Reads `http://host:port` or `https://host:port`, with a path or without.
    pub fn parse(text: &str) -> ParseResult<Self> {
        Self::parse_endpoint(text, None, "")
    }

    /// Reads a URL whose path does not say whether it `is_grpc`. Over HTTP, `appended` follows the path.
    pub fn parse_endpoint(text: &str, is_grpc: Option<bool>, appended: &str) -> ParseResult<Self> {
        let (upstream, path) = parse_service(text, OTLP_EXAMPLES)?;
        let base = path.strip_suffix('/').unwrap_or(path);
        let path = match is_grpc.unwrap_or(base.is_empty()) {
            true if base.is_empty() => None,
            true => return Err("has a path, and OTLP over gRPC has none: leave it out".into()),
            false if path.contains('?') => return Err(format!("has a query: {OTLP_EXAMPLES}")),
            false if appended.is_empty() && !base.is_empty() => Some(path.to_owned()),
            false => Some(format!("{base}/{appended}")),
        };
        let path = path.map(|path| path.parse()).transpose();
        let path = path.map_err(|_| format!("has a path that cannot be read: {OTLP_EXAMPLES}"))?;
        let (fields, resource, sampler) = (HeaderMap::new(), Vec::new(), TraceSampler::default());
        Ok(Self { upstream, path, fields, resource, sampler })
    }

    /// The name of the protocol.
    pub fn protocol(&self) -> &'static str {
        if self.path.is_some() { "http/protobuf" } else { "grpc" }
    }
}

/// The traces that are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSampler {
    /// Whether the caller decides, if it has begun the trace.
    pub follows_caller: bool,
    /// The bound of the last 64 bits of a recorded trace's id.
    pub bound: u128,
}

impl Default for TraceSampler {
    fn default() -> Self {
        Self { follows_caller: true, bound: 1 << 64 }
    }
}

impl TraceSampler {
    /// Reads a name of OpenTelemetry's, and the argument of those that have one.
    pub fn parse(name: &str, ratio: f64) -> ParseResult<Self> {
        let after = name.strip_prefix("parentbased_");
        let ratio = match after.unwrap_or(name) {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => ratio,
            _ => return Err("is no sampler that is known here: write one such as `parentbased_traceidratio`".into()),
        };
        Ok(Self { follows_caller: after.is_some(), bound: (ratio * 2_f64.powi(64)) as u128 })
    }
}

/// Reads `name=value,name=value`, with `%XX` for what could be mistaken, as OpenTelemetry's variables have it.
pub fn parse_pairs(text: &str) -> ParseResult<Vec<(Box<str>, Box<str>)>> {
    let decode = |part: &str| decode_part(part.trim()).map(Option::unwrap_or_default);
    let pairs = text.split(',').filter(|pair| !pair.trim().is_empty()).map(|pair| match pair.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((decode(name)?, decode(value)?)),
        _ => Err("has a part that is no `name=value`: write `name=value,name=value`, and `%2C` for a `,`".into()),
    });
    pairs.collect()
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
