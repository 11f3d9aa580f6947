//! The log line of a request.

use std::cell::RefCell;
use std::io::Write;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::{JSON_WRITER, REQUESTS};
use oncegate_domain::rfc3339::display_micros;

/// The log line of a request on a route that guards or observes. Fields without a value are left out.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RequestLine<'a> {
    pub route: &'a str,
    /// The route's `path`, with its placeholders.
    pub path: &'a str,
    /// The method, from a closed list.
    pub method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oncegate_status: Option<&'a str>,
    /// The slug of the problem for which Oncegate refused the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<&'a str>,
    /// Why the request's signature or token is not valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<&'a str>,
    /// The parts in which the request differs from the one that its key belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differs: Option<&'a str>,
    /// The beginning of the key, at most eight characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'a str>,
    /// The id of the key's record, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<&'a str>,
    /// The cause for which the attempt's outcome is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<&'a str>,
    /// The status that the client got; `None` if it had disconnected, or if there is no client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The number of the attempt that the request became.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The milliseconds from the request's head to the answer's.
    pub total_ms: f64,
    /// The part of them in calls of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_ms: Option<f64>,
    /// The part of them in the call of the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_ms: Option<f64>,
    /// Whether the client had disconnected; `false` for a delivery or a message, which has no client.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub client_gone: bool,
}

/// The line in the JSON format, with the fields of `tracing_subscriber` and in its order.
#[derive(Serialize)]
struct JsonLine<'a> {
    timestamp: String,
    level: &'static str,
    message: &'static str,
    #[serde(flatten)]
    line: &'a RequestLine<'a>,
}

impl RequestLine<'_> {
    /// Whether the log filter lets request lines through.
    pub fn is_wanted() -> bool {
        tracing::enabled!(target: REQUESTS, tracing::Level::INFO)
    }

    /// Logs the line at info. In the JSON format, which production uses, this code writes the line itself: `tracing`
    /// builds a tree of values, which takes some microseconds for each request.
    pub fn log(&self) {
        if !Self::is_wanted() {
            return;
        }
        if let Some(mut writer) = JSON_WRITER.get().copied() {
            thread_local!(static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
            return BUFFER.with_borrow_mut(|text| {
                self.format_json(text, SystemTime::now());
                // The writer never fails: it takes the line or counts it as dropped.
                let _ = writer.write_all(text);
            });
        }
        tracing::info!(
            target: REQUESTS,
            route = self.route,
            path = self.path,
            method = self.method,
            oncegate_status = self.oncegate_status,
            refusal = self.refusal,
            fault = self.fault,
            differs = self.differs,
            status = self.status,
            attempt = self.attempt,
            total_ms = self.total_ms,
            store_ms = self.store_ms,
            upstream_ms = self.upstream_ms,
            key = self.key,
            record = self.record,
            cause = self.cause,
            trace_id = self.trace_id,
            client_gone = self.client_gone.then_some(true),
            "request"
        );
    }

    fn format_json(&self, text: &mut Vec<u8>, now: SystemTime) {
        text.clear();
        let timestamp = display_micros(now).to_string();
        let line = JsonLine { timestamp, level: "INFO", message: "request", line: self };
        serde_json::to_writer(&mut *text, &line).expect("a line in memory can be written");
        text.push(b'\n');
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
        refusal: None,
        fault: None,
        differs: None,
        status: Some(201),
        attempt: Some(2),
        total_ms: 12.034,
        store_ms: Some(0.007),
        upstream_ms: None,
        key: Some("a\"b\\c"),
        record: Some("0a"),
        cause: None,
        trace_id: None,
        client_gone: false,
    };

    fn written(line: &RequestLine<'_>) -> Value {
        let mut text = Vec::new();
        line.format_json(&mut text, SystemTime::UNIX_EPOCH + Duration::from_micros(1_042_007));
        assert!(text.ends_with(b"}\n"));
        serde_json::from_slice(&text).unwrap()
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
