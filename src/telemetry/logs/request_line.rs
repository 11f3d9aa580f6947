//! The log line of a request.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use itoa::Buffer;

use super::{REQUESTS, json_writer};
use crate::domain::rfc3339::display_micros;
use crate::telemetry::log_writer::LogWriter;

/// The log line of a request on a route that guards or observes.
#[derive(Clone, Copy, Debug)]
pub struct RequestLine<'a> {
    /// The route's name.
    pub route: &'a str,
    /// The route's `path`, with its placeholders.
    pub path: &'a str,
    /// The method, from a closed list.
    pub method: &'a str,
    /// The value of `Oncegate-Status`.
    pub oncegate_status: Option<&'a str>,
    /// The status that the client got; `None` if it had disconnected, or if there is no client.
    pub status: Option<u16>,
    /// The number of the attempt that the request became.
    pub attempt: Option<u32>,
    /// The time from the request's head to the answer's.
    pub total: Duration,
    /// The part of it in calls of the store.
    pub store: Option<Duration>,
    /// The part of it in the call of the service.
    pub upstream: Option<Duration>,
    /// The beginning of the key, at most eight characters.
    pub key: Option<&'a str>,
    /// The id of the key's record, in hexadecimal digits.
    pub record: Option<&'a str>,
    /// The cause for which the attempt's outcome is unknown.
    pub cause: Option<&'a str>,
    /// The ID of the request's trace.
    pub trace_id: Option<&'a str>,
    /// Whether the client had disconnected; `false` for a delivery or a message, which has no client.
    pub client_gone: bool,
}

impl RequestLine<'_> {
    /// Whether the log filter lets request lines through.
    pub fn is_wanted() -> bool {
        tracing::enabled!(target: REQUESTS, tracing::Level::INFO)
    }

    /// Logs the line at info. In the JSON format, which production uses, this code writes the line itself: `tracing` builds a
    /// tree of values, which takes some microseconds for each request.
    pub fn log(&self) {
        if !Self::is_wanted() {
            return;
        }
        if let Some(mut writer) = json_writer() {
            return self.write_json(&mut writer, SystemTime::now());
        }
        let Self { route, path, method, oncegate_status, status, attempt, key, record, cause, trace_id, .. } = *self;
        tracing::info!(
            target: REQUESTS,
            route,
            path,
            method,
            oncegate_status,
            status,
            attempt,
            total_ms = millis(self.total),
            store_ms = self.store.map(millis),
            upstream_ms = self.upstream.map(millis),
            key,
            record,
            cause,
            trace_id,
            client_gone = self.client_gone.then_some(true),
            "request"
        );
    }

    fn write_json(&self, writer: &mut LogWriter, now: SystemTime) {
        thread_local!(static BUFFER: RefCell<String> = const { RefCell::new(String::new()) });
        BUFFER.with_borrow_mut(|text| {
            text.clear();
            self.format_json(text, now);
            // The writer never fails: it takes the line or counts it as dropped.
            let _ = writer.write_all(text.as_bytes());
        });
    }

    /// Appends the line as JSON, with the fields in the order of `tracing_subscriber`.
    fn format_json(&self, text: &mut String, now: SystemTime) {
        let _ = write!(text, "{{\"timestamp\":\"{}\",\"level\":\"INFO\",\"message\":\"request\"", display_micros(now));
        let texts = [
            ("route", Some(self.route)),
            ("path", Some(self.path)),
            ("method", Some(self.method)),
            ("oncegate_status", self.oncegate_status),
            ("key", self.key),
            ("record", self.record),
            ("cause", self.cause),
            ("trace_id", self.trace_id),
        ];
        for (name, value) in texts {
            let Some(value) = value else { continue };
            append_name(text, name);
            append_quoted(text, value);
        }
        let numbers = [("status", self.status.map(u32::from)), ("attempt", self.attempt)];
        for (name, number) in numbers {
            let Some(number) = number else { continue };
            append_name(text, name);
            text.push_str(Buffer::new().format(number));
        }
        let times = [("total_ms", Some(self.total)), ("store_ms", self.store), ("upstream_ms", self.upstream)];
        for (name, time) in times {
            let Some(time) = time else { continue };
            append_name(text, name);
            append_millis(text, time);
        }
        text.push_str(if self.client_gone { ",\"client_gone\":true}\n" } else { "}\n" });
    }
}

fn append_name(text: &mut String, name: &str) {
    text.push_str(",\"");
    text.push_str(name);
    text.push_str("\":");
}

/// Appends a time in milliseconds, with microsecond precision.
fn append_millis(text: &mut String, time: Duration) {
    let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let (whole, fraction) = (us / 1_000, (us % 1_000) as u16);
    text.push_str(Buffer::new().format(whole));
    text.push('.');
    let digit = |value: u16| char::from(b'0' + (value % 10) as u8);
    text.extend([digit(fraction / 100), digit(fraction / 10), digit(fraction)]);
}

/// Appends `value` as a JSON string (RFC 8259 section 7). Nearly always there is nothing to escape.
fn append_quoted(text: &mut String, value: &str) {
    text.push('"');
    if value.bytes().any(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)) {
        append_escaped(text, value);
    } else {
        text.push_str(value);
    }
    text.push('"');
}

fn append_escaped(text: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            '\0'..='\x1f' => {
                let _ = write!(text, "\\u{:04x}", u32::from(character));
            }
            _ => text.push(character),
        }
    }
}

/// Returns a time in milliseconds, with microsecond precision.
pub fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const LINE: RequestLine<'_> = RequestLine {
        route: "pay",
        path: "/payments/{id}",
        method: "POST",
        oncegate_status: Some("executed"),
        status: Some(201),
        attempt: Some(2),
        total: Duration::from_micros(12_034),
        store: Some(Duration::from_micros(7)),
        upstream: None,
        key: Some("a\"b\\c"),
        record: Some("0a"),
        cause: None,
        trace_id: None,
        client_gone: false,
    };

    fn written(line: &RequestLine<'_>) -> Value {
        let mut text = String::new();
        line.format_json(&mut text, SystemTime::UNIX_EPOCH + Duration::from_micros(1_042_007));
        assert!(text.ends_with("}\n"));
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_line_is_json_with_the_fields_that_have_values() {
        let expected = json!({
            "timestamp": "1970-01-01T00:00:01.042007Z",
            "level": "INFO",
            "message": "request",
            "route": "pay",
            "path": "/payments/{id}",
            "record": "0a",
            "method": "POST",
            "oncegate_status": "executed",
            "status": 201,
            "attempt": 2,
            "total_ms": 12.034,
            "store_ms": 0.007,
            "key": "a\"b\\c",
        });
        assert_eq!(written(&LINE), expected);
        let gone = written(&RequestLine { status: None, client_gone: true, key: Some("\u{1}\n"), ..LINE });
        assert_eq!((&gone["client_gone"], &gone["status"]), (&json!(true), &Value::Null));
        assert_eq!(gone["key"], "\u{1}\n");
    }
}
