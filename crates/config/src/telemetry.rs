//! Reads and checks `[telemetry]`.

use std::cell::RefCell;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::environment::Environment;
use super::options::options;
use super::value_parsers::is_of_connection;
use oncegate_settings::{LogFormat, OtlpCollector, TelemetryConfig, TraceSampler, Word, parse_pairs};

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

/// The collector by OpenTelemetry's own variables, which win over the file. One for traces wins over one for all
/// signals. Without a collector none of the others is read: they may be there for other programs. The fields may be
/// credentials of the variables' endpoint, and never go to that of the file. A variable with a wrong value is for
/// another program: it is noted in `ignored`, without its value, and counts as unset.
pub(super) fn read_collector(
    environment: &dyn Environment,
    written: Option<OtlpCollector>,
    ignored: &RefCell<Vec<String>>,
) -> Option<OtlpCollector> {
    let reader = Variables { environment, ignored };
    if reader.variable("OTEL_SDK_DISABLED", |text| Ok(text.eq_ignore_ascii_case("true"))) == Some(true) {
        return None;
    }
    if reader.variable("OTEL_TRACES_EXPORTER", |text| Ok(text == "none")) == Some(true) {
        return None;
    }
    let is_grpc = || {
        let names = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        names.iter().find_map(|name| reader.variable(name, parse_protocol)).or(Some(false))
    };
    let endpoint =
        |name, appended| reader.variable(name, |text| OtlpCollector::parse_endpoint(text, is_grpc(), appended));
    let found = endpoint("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "");
    let found = found.or_else(|| endpoint("OTEL_EXPORTER_OTLP_ENDPOINT", "v1/traces"));
    let fields: &[&str] = match &found {
        Some(_) => &["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"],
        None => &[],
    };
    let mut collector = found.or(written)?;
    collector.fields = fields.iter().find_map(|name| reader.variable(name, parse_fields)).unwrap_or_default();
    collector.resource = reader.variable("OTEL_RESOURCE_ATTRIBUTES", parse_pairs).unwrap_or_default();
    if let Some(name) = reader.variable("OTEL_SERVICE_NAME", |name| Ok(name.into())) {
        collector.resource.retain(|(key, _)| **key != *"service.name");
        collector.resource.push(("service.name".into(), name));
    }
    let ratio = || reader.variable("OTEL_TRACES_SAMPLER_ARG", parse_ratio).unwrap_or(1.0);
    let sampler = reader.variable("OTEL_TRACES_SAMPLER", |name| TraceSampler::parse(name, ratio()));
    Some(OtlpCollector { sampler: sampler.unwrap_or_default(), ..collector })
}

struct Variables<'a> {
    environment: &'a dyn Environment,
    ignored: &'a RefCell<Vec<String>>,
}

impl Variables<'_> {
    /// `None` where the variable is unset, empty or wrong.
    fn variable<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let value = self.environment.variable(name).filter(|value| !value.is_empty())?;
        let ignore = |message| self.ignored.borrow_mut().push(format!("{name} is ignored: it {message}"));
        parse(&value).map_err(ignore).ok()
    }
}

fn parse_protocol(text: &str) -> Result<bool, String> {
    match text {
        "grpc" => Ok(true),
        "http/protobuf" => Ok(false),
        _ => Err("is no protocol that is known here: write `http/protobuf` or `grpc`".into()),
    }
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "is no ratio: write a number from 0 to 1".into())
}

fn parse_fields(text: &str) -> Result<HeaderMap, String> {
    let mut fields = HeaderMap::new();
    for (name, value) in parse_pairs(text)? {
        let is_of_export =
            |name: &HeaderName| is_of_connection(name) || ["content-type", "host"].contains(&name.as_str());
        let name = HeaderName::from_bytes(name.as_bytes()).ok().filter(|name| !is_of_export(name));
        let name = name.ok_or("has a name that is none of a header field, or is of one that the export itself has")?;
        let value = HeaderValue::from_str(&value).map_err(|_| "has a value that cannot be in a header field")?;
        fields.insert(name, value);
    }
    Ok(fields)
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
