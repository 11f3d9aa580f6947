//! A scrape's two spellings.

use std::borrow::Cow;
use std::collections::HashSet;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// In which a scrape can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus' own text format, 0.0.4, which everybody reads.
    Text,
}

impl Format {
    /// By what a scraper accepts: Prometheus names OpenMetrics first, everybody else gets what `curl` should show.
    pub fn accepted(accept: &[u8]) -> Self {
        match memchr::memmem::find(accept, b"application/openmetrics-text") {
            Some(_) => Self::OpenMetrics,
            None => Self::Text,
        }
    }

    /// The answer's `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// All that is registered.
pub fn write(registry: &Registry, format: Format) -> String {
    let mut text = String::with_capacity(64 * 1024);
    encode(&mut text, registry).expect("a string takes all that is written to it");
    match format {
        Format::OpenMetrics => text,
        Format::Text => classic(&text),
    }
}

/// OpenMetrics names a counter without its `_total` where it describes it, and ends with a line of its own. The older format
/// does neither; the rest is the same in both.
fn classic(text: &str) -> String {
    let described = |line: &str| line.strip_prefix("# TYPE ")?.strip_suffix(" counter").map(str::to_owned);
    let counters: HashSet<_> = text.lines().filter_map(described).collect();
    let mut classic = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        let line = match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(kind @ ("HELP" | "TYPE")), Some(name), Some(rest)) if counters.contains(name) => {
                Cow::Owned(format!("# {kind} {name}_total {rest}"))
            }
            _ => Cow::Borrowed(line),
        };
        classic.push_str(&line);
        classic.push('\n');
    }
    classic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_openmetrics_gets_it_and_everybody_else_gets_text() {
        let prometheus = b"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        for other in [&b""[..], b"*/*", b"text/plain"] {
            assert_eq!(Format::accepted(other), Format::Text);
        }
    }

    #[test]
    fn the_older_format_describes_counters_by_the_name_of_their_series() {
        let text = "# HELP a Help a b.\n# TYPE a counter\na_total{x=\"# TYPE a counter\"} 1\n\
                    # HELP b Help.\n# TYPE b gauge\nb 2\n# EOF\n";
        let expected = "# HELP a_total Help a b.\n# TYPE a_total counter\na_total{x=\"# TYPE a counter\"} 1\n\
                        # HELP b Help.\n# TYPE b gauge\nb 2\n";
        assert_eq!(classic(text), expected);
    }
}
