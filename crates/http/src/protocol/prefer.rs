//! A client's preferences for its answer: the parts of `Prefer` (RFC 7240) that Oncegate supports.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

pub const PREFER: HeaderName = HeaderName::from_static("prefer");
pub const APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// The preference of a client that will come back for the answer (section 4.1).
pub const RESPOND_ASYNC: &str = "respond-async";

/// Returns the preferences, each as its whole text, its name and its value.
fn preferences(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str, &str)> {
    let values = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|whole| {
        let first = whole.split(';').next().unwrap_or_default();
        let (name, value) = first.split_once('=').unwrap_or((first, ""));
        (whole.trim(), name.trim(), value.trim().trim_matches('"'))
    })
}

/// Returns the preference `wait` in whole seconds (section 4.3); the first one counts.
pub fn wait_preference(headers: &HeaderMap) -> Option<Duration> {
    let seconds = |(_, name, value): (&str, &str, &str)| {
        name.eq_ignore_ascii_case("wait").then(|| value.parse().ok().map(Duration::from_secs)).flatten()
    };
    preferences(headers).find_map(seconds)
}

pub fn prefers_async(headers: &HeaderMap) -> bool {
    preferences(headers).any(|(_, name, _)| name.eq_ignore_ascii_case(RESPOND_ASYNC))
}

/// Returns the fields without `wait` and `respond-async`: Oncegate applies them, so the service must not.
pub fn without_applied(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    if !headers.contains_key(PREFER) {
        return headers;
    }
    let is_applied = |name: &str| ["wait", RESPOND_ASYNC].iter().any(|applied| name.eq_ignore_ascii_case(applied));
    let left: Vec<_> =
        preferences(&headers).filter(|(_, name, _)| !is_applied(name)).map(|(whole, ..)| whole.to_owned()).collect();
    super::fields::remove(&mut headers, |name| *name == PREFER);
    if let Ok(left) = HeaderValue::from_str(&left.join(", "))
        && !left.is_empty()
    {
        headers.insert(PREFER, left);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[&'static str]) -> HeaderMap {
        lines.iter().map(|line| (PREFER, HeaderValue::from_static(line))).collect()
    }

    #[test]
    fn preferences_are_found_in_any_field_and_place() {
        for (lines, waits, later) in [
            (&[][..], None, false),
            (&["respond-async"], None, true),
            (&["return=minimal", "Respond-Async; x=1, wait=\"7\""], Some(7), true),
            (&["wait=3, wait=9"], Some(3), false),
            (&["wait=soon, respond-asynchronously"], None, false),
        ] {
            let headers = fields(lines);
            assert_eq!(
                (wait_preference(&headers), prefers_async(&headers)),
                (waits.map(Duration::from_secs), later),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn applied_preferences_are_removed_and_the_others_are_kept() {
        let left = without_applied(&fields(&["respond-async, return=minimal", "wait=5; x, handling=lenient"]));
        assert_eq!(left.get_all(PREFER).iter().collect::<Vec<_>>(), ["return=minimal, handling=lenient"]);
        assert!(without_applied(&fields(&["respond-async"])).is_empty());
    }
}
