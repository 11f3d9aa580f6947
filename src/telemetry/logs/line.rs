//! The line of a request.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use super::{REQUESTS, plain};
use crate::domain::rfc3339;
use crate::telemetry::stderr::Pen;

/// What is told of a request that a route guards, or looks on.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The route's name.
    pub route: &'a str,
    /// Out of a closed list.
    pub method: &'a str,
    /// What Oncegate did.
    pub oncegate_status: Option<&'a str>,
    /// What the client got; `None` where it had left.
    pub status: Option<u16>,
    /// The number of the attempt that it became.
    pub attempt: Option<u32>,
    /// From its head to its answer's.
    pub total: Duration,
    /// Of that, with the store.
    pub store: Option<Duration>,
    /// Of that, with the service.
    pub upstream: Option<Duration>,
    /// The beginning of its key, eight characters at most.
    pub key: Option<&'a str>,
    /// The trace that it belongs to.
    pub trace_id: Option<&'a str>,
}

impl Line<'_> {
    /// Whether anybody wants it.
    pub fn is_wanted() -> bool {
        tracing::enabled!(target: REQUESTS, tracing::Level::INFO)
    }

    /// Logs it at info. As JSON, which is what is written where there is traffic, it is written by hand: `tracing`'s own
    /// way, through a tree of values, takes some microseconds, and there is one of these for each request.
    pub fn tell(&self) {
        if !Self::is_wanted() {
            return;
        }
        if let Some(mut pen) = plain() {
            return self.write(&mut pen, SystemTime::now());
        }
        let Self { route, method, oncegate_status, status, attempt, key, trace_id, .. } = *self;
        tracing::info!(
            target: REQUESTS,
            route,
            method,
            oncegate_status,
            status,
            attempt,
            total_ms = millis(self.total),
            store_ms = self.store.map(millis),
            upstream_ms = self.upstream.map(millis),
            key,
            trace_id,
            client_gone = status.is_none().then_some(true),
            "request"
        );
    }

    fn write(&self, pen: &mut Pen, now: SystemTime) {
        thread_local!(static TEXT: RefCell<String> = const { RefCell::new(String::new()) });
        TEXT.with_borrow_mut(|text| {
            text.clear();
            self.json(text, now);
            // A pen takes everything, or counts it as dropped.
            let _ = pen.write_all(text.as_bytes());
        });
    }

    /// In the order in which `tracing_subscriber` writes its own lines.
    fn json(&self, text: &mut String, now: SystemTime) {
        let micros = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_micros() % 1_000;
        let seconds = rfc3339::show(now);
        let _ = write!(
            text,
            "{{\"timestamp\":\"{}{micros:03}Z\",\"level\":\"INFO\",\"message\":\"request\"",
            seconds.trim_end_matches('Z')
        );
        let words = [
            ("route", Some(self.route)),
            ("method", Some(self.method)),
            ("oncegate_status", self.oncegate_status),
            ("key", self.key),
            ("trace_id", self.trace_id),
        ];
        for (name, word) in words {
            let Some(word) = word else { continue };
            let _ = write!(text, ",\"{name}\":");
            quote(text, word);
        }
        let numbers = [("status", self.status.map(u32::from)), ("attempt", self.attempt)];
        for (name, number) in numbers {
            let _ = number.map_or(Ok(()), |number| write!(text, ",\"{name}\":{number}"));
        }
        let times = [("total_ms", Some(self.total)), ("store_ms", self.store), ("upstream_ms", self.upstream)];
        for (name, time) in times {
            let Some(us) = time.map(|time| time.as_micros()) else { continue };
            let _ = write!(text, ",\"{name}\":{}.{:03}", us / 1_000, us % 1_000);
        }
        text.push_str(if self.status.is_none() { ",\"client_gone\":true}\n" } else { "}\n" });
    }
}

/// As JSON has it (RFC 8259 section 7). Nearly always there is nothing to escape.
fn quote(text: &mut String, word: &str) {
    text.push('"');
    for character in word.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            '\0'..='\x1f' => {
                let _ = write!(text, "\\u{:04x}", u32::from(character));
            }
            _ => text.push(character),
        }
    }
    text.push('"');
}

/// In milliseconds, to a microsecond.
pub fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const LINE: Line<'_> = Line {
        route: "pay",
        method: "POST",
        oncegate_status: Some("executed"),
        status: Some(201),
        attempt: Some(2),
        total: Duration::from_micros(12_034),
        store: Some(Duration::from_micros(7)),
        upstream: None,
        key: Some("a\"b\\c"),
        trace_id: None,
    };

    fn written(line: &Line<'_>) -> Value {
        let mut text = String::new();
        line.json(&mut text, SystemTime::UNIX_EPOCH + Duration::from_micros(1_042_007));
        assert!(text.ends_with("}\n"));
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_line_is_json_with_what_there_is() {
        let expected = json!({
            "timestamp": "1970-01-01T00:00:01.042007Z",
            "level": "INFO",
            "message": "request",
            "route": "pay",
            "method": "POST",
            "oncegate_status": "executed",
            "status": 201,
            "attempt": 2,
            "total_ms": 12.034,
            "store_ms": 0.007,
            "key": "a\"b\\c",
        });
        assert_eq!(written(&LINE), expected);
        let gone = written(&Line { status: None, key: Some("\u{1}\n"), ..LINE });
        assert_eq!((&gone["client_gone"], &gone["status"]), (&json!(true), &Value::Null));
        assert_eq!(gone["key"], "\u{1}\n");
    }
}
