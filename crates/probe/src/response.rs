//! The responses that the probe gets, and what two of them have in common.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::header::{CONTENT_LOCATION, LINK, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::Value;

use super::finding::{Difference, Differences};

/// The fields that name the result of an execution. All others may differ between two copies of one response.
const COMPARED_FIELDS: [(HeaderName, &str); 2] = [(LOCATION, "Location"), (CONTENT_LOCATION, "Content-Location")];

const MARKER_CHARS_MAX: usize = 60;

/// A response of the probed server, read to its end.
#[derive(Clone, Debug)]
pub(crate) struct ProbedResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// The end of a request of the probe: the response, or the reason why there is none.
pub(crate) type ProbedResult = Result<ProbedResponse, String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusMeaning {
    /// The operation was executed, now or by the request whose response this is.
    Executed,
    /// The request was refused for what it is.
    Refused,
    /// The request was refused for its sender or its time, which says nothing about its key.
    TurnedAway,
    /// Nobody can tell whether the operation was executed.
    Unclear,
}

impl ProbedResponse {
    pub(crate) fn meaning(&self) -> StatusMeaning {
        match self.status.as_u16() {
            // A form's answer is a redirection to its result; 301, 307 and 308 only name another URL for the request.
            200..=299 | 302 | 303 => StatusMeaning::Executed,
            401 | 403 | 425 | 429 => StatusMeaning::TurnedAway,
            408 => StatusMeaning::Unclear,
            400..=499 => StatusMeaning::Refused,
            _ => StatusMeaning::Unclear,
        }
    }

    /// Returns the field by which the server calls this response a replay, unless the first response has it too.
    pub(crate) fn replay_marker(&self, first: &Self) -> Option<String> {
        let field = self.headers.iter().find(|(name, value)| {
            is_replay_marker(name, value) && !first.headers.get_all(*name).iter().any(|other| other == *value)
        });
        field.map(|(name, value)| format!("{name}: {:.MARKER_CHARS_MAX$}", value.to_str().unwrap_or_default()))
    }

    /// Whether the operation was executed for this very response: it is not marked as a replay.
    pub(crate) fn is_execution(&self) -> bool {
        self.meaning() == StatusMeaning::Executed
            && !self.headers.iter().any(|(name, value)| is_replay_marker(name, value))
    }

    /// Returns the URLs that a refusal names as its documentation: the `type` of its problem document, and links.
    pub(crate) fn documentation(&self) -> BTreeSet<String> {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let kind = body["type"].as_str().filter(|kind| kind.contains('/')).map(str::to_owned);
        let links = self.headers.get_all(LINK).iter().filter_map(|link| link.to_str().ok());
        let described = links.filter(|link| link.contains("describedby") || link.contains("help"));
        let targets = described.filter_map(|link| Some(link.split_once('<')?.1.split_once('>')?.0.to_owned()));
        kind.into_iter().chain(targets).collect()
    }
}

/// Whether servers mark replays with such a field: `Idempotent-Replayed: true`, `Oncegate-Status: replayed`.
fn is_replay_marker(name: &HeaderName, value: &HeaderValue) -> bool {
    let value = value.to_str().unwrap_or_default().to_ascii_lowercase();
    let name = name.as_str();
    let is_about_keys = name.contains("idempoten") || name == "oncegate-status";
    // `Replay-Nonce` (RFC 8555) and the like mark nothing.
    let is_marked = name.contains("replayed") && !["", "0", "false", "no"].contains(&&*value);
    is_marked || is_about_keys && (value.contains("replay") || value == "hit")
}

/// Returns the parts in which two responses differ. `ignored` are JSON Pointers of values that do not count, with all
/// below them.
pub(crate) fn compare(first: &ProbedResponse, second: &ProbedResponse, ignored: &[String]) -> Differences {
    let mut found = BTreeSet::new();
    if first.status != second.status {
        found.insert(Difference::Status);
    }
    let has_changed = |name: &HeaderName| first.headers.get_all(name) != second.headers.get_all(name);
    let changed = COMPARED_FIELDS.into_iter().filter(|(name, _)| has_changed(name));
    found.extend(changed.map(|(_, shown)| Difference::Field(shown)));
    if first.body != second.body {
        found.extend(compare_bodies(&first.body, &second.body, ignored));
    }
    found
}

fn compare_bodies(first: &[u8], second: &[u8], ignored: &[String]) -> Differences {
    let parse = |body: &[u8]| serde_json::from_slice::<Value>(body).ok();
    let (Some(first_value), Some(second_value)) = (parse(first), parse(second)) else {
        return BTreeSet::from([Difference::Body]);
    };
    let mut pointers = BTreeSet::new();
    compare_values(&first_value, &second_value, String::new(), &mut pointers);
    // A value of JSON keeps not all digits of a long number; the canonical form does.
    if pointers.is_empty() && canonical_json::canonicalize(first).ok() != canonical_json::canonicalize(second).ok() {
        return BTreeSet::from([Difference::Body]);
    }
    pointers.retain(|pointer| !ignored.iter().any(|ignored| is_below(pointer, ignored)));
    let name = |pointer: String| if pointer.is_empty() { Difference::Body } else { Difference::Json(pointer) };
    pointers.into_iter().map(name).collect()
}

/// Whether a pointer leads to the value that another one names, or below it. A `*` there stands for any name or index.
fn is_below(pointer: &str, ignored: &str) -> bool {
    let mut segments = pointer.split('/');
    ignored.split('/').all(|name| segments.next().is_some_and(|segment| name == "*" || name == segment))
}

/// The pointer of a member of the object at another one (RFC 6901 section 3).
pub(crate) fn member_pointer(object: &str, name: &str) -> String {
    format!("{object}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// Collects the pointers of the smallest values that differ.
fn compare_values(first: &Value, second: &Value, pointer: String, found: &mut BTreeSet<String>) {
    match (first, second) {
        (Value::Object(first), Value::Object(second)) => {
            let names: BTreeSet<_> = first.keys().chain(second.keys()).collect();
            for name in names {
                let pointer = member_pointer(&pointer, name);
                match (first.get(name), second.get(name)) {
                    (Some(first), Some(second)) => compare_values(first, second, pointer, found),
                    _ => drop(found.insert(pointer)),
                }
            }
        }
        (Value::Array(first), Value::Array(second)) if first.len() == second.len() => {
            for (index, (first, second)) in first.iter().zip(second).enumerate() {
                compare_values(first, second, format!("{pointer}/{index}"), found);
            }
        }
        _ if first == second => {}
        _ => drop(found.insert(pointer)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(fields: &[(&'static str, &'static str)], body: &str) -> ProbedResponse {
        let headers = fields.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
        ProbedResponse { status: StatusCode::CREATED, headers: headers.collect(), body: Bytes::from(body.to_owned()) }
    }

    fn differences(first: &str, second: &str, ignored: &[&str]) -> Vec<String> {
        let ignored: Vec<_> = ignored.iter().map(|&pointer| pointer.to_owned()).collect();
        compare(&response(&[], first), &response(&[], second), &ignored).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn bodies_are_compared_by_their_json_values_and_otherwise_by_their_bytes() {
        for (first, second, expected) in [
            (r#"{"a":1,"b":2}"#, r#"{ "b": 2, "a": 1 }"#, &[][..]),
            (r#"{"id":1,"a":[{"x":1},2]}"#, r#"{"id":2,"a":[{"x":3},2]}"#, &["/a/0/x", "/id"]),
            (r#"{"a/b":1,"c~":1}"#, r#"{"a/b":2}"#, &["/a~1b", "/c~0"]),
            (r#"{"a":[1]}"#, r#"{"a":[1,2]}"#, &["/a"]),
            (r#"{"id":100000000000000000001}"#, r#"{"id":100000000000000000002}"#, &["body"]),
            ("1", "2", &["body"]),
            ("paid 1", "paid 2", &["body"]),
            ("", "", &[]),
        ] {
            assert_eq!(differences(first, second, &[]), expected, "{first} {second}");
        }
        let (first, second) = (r#"{"id":1,"meta":{"at":1},"metal":1}"#, r#"{"id":1,"meta":{"at":2},"metal":2}"#);
        assert_eq!(differences(first, second, &["/meta"]), ["/metal"]);
        assert_eq!(differences(first, second, &["/*/at"]), ["/metal"]);
        assert_eq!(differences(first, second, &["/meta/at/x", "/metal/x"]), ["/meta/at", "/metal"]);
    }

    #[test]
    fn of_the_fields_only_those_that_name_the_result_count() {
        let first = response(&[("location", "/1"), ("date", "now"), ("x-request-id", "1")], "");
        let second = response(&[("location", "/2"), ("date", "then"), ("x-request-id", "2")], "");
        assert_eq!(compare(&first, &second, &[]), BTreeSet::from([Difference::Field("Location")]));
    }

    #[test]
    fn a_replay_is_marked_by_a_field_that_the_first_response_has_not() {
        let first = response(&[("idempotent-replayed", "false"), ("oncegate-status", "executed")], "");
        for (fields, marker) in [
            (&[("idempotent-replayed", "true")][..], Some("idempotent-replayed: true")),
            (&[("oncegate-status", "replayed")], Some("oncegate-status: replayed")),
            (&[("idempotent-replayed", "false"), ("oncegate-status", "executed")], None),
            (&[("x-cache", "hit"), ("replay-nonce", "x7Qm")], None),
        ] {
            assert_eq!(response(fields, "").replay_marker(&first).as_deref(), marker);
        }
        let always = response(&[("idempotent-replayed", "true")], "");
        assert_eq!(always.replay_marker(&always), None);
    }
}
