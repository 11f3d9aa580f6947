//! The two text formats of a scrape.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

use super::{Exemplar, Histogram};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrapeFormat {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus' own text format, 0.0.4, which every scraper reads.
    Text,
}

impl ScrapeFormat {
    /// Chooses the format by the scraper's `Accept`: OpenMetrics if it names that, as Prometheus does, otherwise plain
    /// text, which suits `curl`.
    pub fn from_accept(accept: &[u8]) -> Self {
        match memchr::memmem::find(accept, b"application/openmetrics-text") {
            Some(_) => Self::OpenMetrics,
            None => Self::Text,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Writes the metrics. OpenMetrics has the exemplars of the histograms that are `traced`, with their names.
pub fn write(registries: &[&Registry], traced: &[(&str, &Histogram)], format: ScrapeFormat) -> String {
    let mut text = String::with_capacity(64 * 1024);
    let written = registries.iter().try_for_each(|registry| encode_registry(&mut text, registry));
    written.and_then(|()| encode_eof(&mut text)).expect("writing to a string cannot fail");
    match format {
        ScrapeFormat::OpenMetrics => with_exemplars(&text, traced),
        ScrapeFormat::Text => to_prometheus_text(&text),
    }
}

/// Adds each exemplar to its bucket: prometheus-client has no way to make one outside of its own histograms.
fn with_exemplars(text: &str, traced: &[(&str, &Histogram)]) -> String {
    let mut traced: Vec<_> =
        traced.iter().map(|(name, histogram)| (format!("{name}_bucket{{"), histogram.exemplars())).collect();
    let mut written = String::with_capacity(text.len());
    for line in text.lines() {
        written.push_str(line);
        let exemplars = traced.iter_mut().find(|(start, _)| line.starts_with(&**start));
        if let Some(Exemplar { trace, took_us, at }) = exemplars.and_then(|(_, exemplars)| exemplars.next().flatten()) {
            let (trace, took) = (trace.hex(), took_us as f64 / 1e6);
            write!(written, " # {{trace_id=\"{trace}\"}} {took} {at:.3}").expect("writing to a string cannot fail");
        }
        written.push('\n');
    }
    written
}

/// Converts OpenMetrics to the older text format. OpenMetrics describes a counter without its `_total`, and ends with a
/// line `# EOF`. The older format does neither; the rest is the same.
fn to_prometheus_text(text: &str) -> String {
    let counter_name = |line: &str| line.strip_prefix("# TYPE ")?.strip_suffix(" counter").map(str::to_owned);
    let counters: HashSet<_> = text.lines().filter_map(counter_name).collect();
    let mut converted = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut parts = line.splitn(4, ' ');
        let line = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("#"), Some(kind @ ("HELP" | "TYPE")), Some(name), Some(rest)) if counters.contains(name) => {
                Cow::Owned(format!("# {kind} {name}_total {rest}"))
            }
            _ => Cow::Borrowed(line),
        };
        converted.push_str(&line);
        converted.push('\n');
    }
    converted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_written_only_for_scrapers_that_accept_it() {
        let prometheus = b"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(ScrapeFormat::from_accept(prometheus), ScrapeFormat::OpenMetrics);
        for other in [&b""[..], b"*/*", b"text/plain"] {
            assert_eq!(ScrapeFormat::from_accept(other), ScrapeFormat::Text);
        }
    }

    #[test]
    fn the_older_format_describes_counters_by_the_name_of_their_series() {
        let text = "# HELP a Help a b.\n# TYPE a counter\na_total{x=\"# TYPE a counter\"} 1\n\
                    # HELP b Help.\n# TYPE b gauge\nb 2\n# EOF\n";
        let expected = "# HELP a_total Help a b.\n# TYPE a_total counter\na_total{x=\"# TYPE a counter\"} 1\n\
                        # HELP b Help.\n# TYPE b gauge\nb 2\n";
        assert_eq!(to_prometheus_text(text), expected);
    }
}
