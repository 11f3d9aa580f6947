//! 103 Early Hints (RFC 8297) of a service, on their way to the client of an HTTP/1.1 connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{
    CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY_REPORT_ONLY, HeaderName, HeaderValue, LINK, REFERRER_POLICY,
    USER_AGENT,
};
use http::{HeaderMap, Request, StatusCode};
use parking_lot::Mutex;

use super::fields;
use oncegate_domain::response::write_field;

/// The fields that pass: those that a browser reads from a 103 response. All others describe the final response, or the
/// connection that they came on.
const PASSED: [HeaderName; 6] = [
    CONTENT_SECURITY_POLICY,
    CONTENT_SECURITY_POLICY_REPORT_ONLY,
    HeaderName::from_static("cross-origin-embedder-policy"),
    HeaderName::from_static("cross-origin-embedder-policy-report-only"),
    LINK,
    REFERRER_POLICY,
];

/// The beginning of the `User-Agent` of Python's libraries.
const PYTHON: &[u8] = b"python";

/// The 103 responses of one request that pass, and their bytes together. The client may not be reading.
const RESPONSES_MAX: usize = 8;
const BYTES_MAX: usize = 16 * 1024;

/// The 103 responses to a connection's current request that are not on their way to the client yet.
///
/// The service's connection and the client's are polled by one task, so nobody needs a wake-up.
#[derive(Debug, Default)]
pub struct EarlyHints {
    /// Whether bytes wait: most requests have none, and take no lock for that.
    any: AtomicBool,
    pending: Mutex<PendingHints>,
}

#[derive(Debug, Default)]
struct PendingHints {
    waiting: Vec<u8>,
    responses: usize,
    bytes: usize,
}

impl EarlyHints {
    /// Collects the 103 responses to a request from here on; what an earlier request has left is discarded.
    pub fn collect<B>(self: &Arc<Self>, request: &mut Request<B>) {
        *self.pending.lock() = PendingHints::default();
        self.any.store(false, Ordering::Relaxed);
        let hints = Arc::clone(self);
        hyper::ext::on_informational(request, move |response| {
            if response.status() == StatusCode::EARLY_HINTS {
                hints.push(response.headers());
            }
        });
    }

    /// Whether bytes wait for [`Self::take`].
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Takes the bytes that wait: complete responses.
    pub fn take(&self) -> Vec<u8> {
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.pending.lock().waiting)
    }

    fn push(&self, headers: &HeaderMap) {
        let mut pending = self.pending.lock();
        let Some(response) = encode(headers) else { return };
        if pending.responses == RESPONSES_MAX || pending.bytes + response.len() > BYTES_MAX {
            return;
        }
        pending.responses += 1;
        pending.bytes += response.len();
        pending.waiting.extend_from_slice(&response);
        self.any.store(true, Ordering::Relaxed);
    }
}

/// Whether the client is known to take a 103 for the final response, and then the final one for that to its next
/// request (RFC 8297 section 3). Python's http.client does, on which requests, urllib3 and urllib are built.
pub fn is_taken_for_final(headers: &HeaderMap) -> bool {
    let agent = headers.get(USER_AGENT).map_or(&[][..], HeaderValue::as_bytes);
    agent.get(..PYTHON.len()).is_some_and(|name| name.eq_ignore_ascii_case(PYTHON))
}

/// Returns a 103 response with the fields that pass; `None` if there are none.
fn encode(headers: &HeaderMap) -> Option<Vec<u8>> {
    let mut response = b"HTTP/1.1 103 Early Hints\r\n".to_vec();
    let empty = response.len();
    let named = fields::connection_names(headers);
    for (name, value) in headers {
        if PASSED.contains(name) && is_one_line(value) && !named.contains(name) {
            write_field(&mut response, name, value);
        }
    }
    let has_fields = response.len() > empty;
    response.extend_from_slice(b"\r\n");
    has_fields.then_some(response)
}

/// Whether a value cannot end its line. hyper's parser lets no other value through, and builds values without a check.
fn is_one_line(value: &HeaderValue) -> bool {
    !value.as_bytes().iter().any(|byte| matches!(byte, b'\r' | b'\n' | b'\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(lines: &[(&'static str, &'static str)]) -> Option<String> {
        let field = |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        encode(&lines.iter().map(field).collect()).map(|bytes| String::from_utf8(bytes).expect("ASCII"))
    }

    #[test]
    fn only_the_fields_of_early_hints_pass() {
        let fields = [
            ("set-cookie", "a=1"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("connection", "referrer-policy, close"),
            ("oncegate-status", "replayed"),
            ("referrer-policy", "no-referrer"),
            ("link", "</a.css>; rel=preload"),
            ("link", "</b.css>; rel=preload"),
        ];
        let response = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\nlink: </b.css>; rel=preload\r\n\r\n";
        assert_eq!(encoded(&fields).as_deref(), Some(response));
        assert_eq!(encoded(&fields[..6]), None);
    }

    #[test]
    fn hints_are_bounded_by_number_and_size() {
        let link = |length: usize| {
            let value = HeaderValue::from_str(&"x".repeat(length)).expect("visible ASCII");
            HeaderMap::from_iter([(LINK, value)])
        };
        let hints = EarlyHints::default();
        for _ in 0..100 {
            hints.push(&link(5));
        }
        let passed = hints.take();
        assert_eq!(passed.len(), RESPONSES_MAX * encode(&link(5)).expect("it has a field").len());
        let hints = EarlyHints::default();
        for _ in 0..RESPONSES_MAX {
            hints.push(&link(5000));
        }
        assert!(hints.any() && (10_000..=BYTES_MAX).contains(&hints.take().len()) && !hints.any());
    }
}
