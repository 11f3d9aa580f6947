//! What a client prefers of its answer: `Prefer` (RFC 7240), as far as it is heard here.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

/// What the client asks for.
pub const PREFER: HeaderName = HeaderName::from_static("prefer");
/// What of it was done.
pub const APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// It will come back for the answer (section 4.1).
pub const RESPOND_ASYNC: &str = "respond-async";

/// The preferences, each with its name and its value.
fn preferences(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str, &str)> {
    let values = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|whole| {
        let first = whole.split(';').next().unwrap_or_default();
        let (name, value) = first.split_once('=').unwrap_or((first, ""));
        (whole.trim(), name.trim(), value.trim().trim_matches('"'))
    })
}

/// The `wait` in whole seconds (section 4.3); the first one counts.
pub fn wait(headers: &HeaderMap) -> Option<Duration> {
    let of = |(_, name, value): (&str, &str, &str)| {
        name.eq_ignore_ascii_case("wait").then(|| value.parse().ok().map(Duration::from_secs)).flatten()
    };
    preferences(headers).find_map(of)
}

/// Whether the client prefers to come back for the answer.
pub fn respond_async(headers: &HeaderMap) -> bool {
    preferences(headers).any(|(_, name, _)| name.eq_ignore_ascii_case(RESPOND_ASYNC))
}

/// The fields without the two preferences above: who has heard them answers for them.
pub fn taken_out(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    if !headers.contains_key(PREFER) {
        return headers;
    }
    let heard = |name: &str| ["wait", RESPOND_ASYNC].iter().any(|heard| name.eq_ignore_ascii_case(heard));
    let left: Vec<_> =
        preferences(&headers).filter(|(_, name, _)| !heard(name)).map(|(whole, ..)| whole.to_owned()).collect();
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
    fn preferences_are_heard_wherever_they_stand() {
        for (lines, waits, later) in [
            (&[][..], None, false),
            (&["respond-async"], None, true),
            (&["return=minimal", "Respond-Async; x=1, wait=\"7\""], Some(7), true),
            (&["wait=3, wait=9"], Some(3), false),
            (&["wait=soon, respond-asynchronously"], None, false),
        ] {
            let headers = fields(lines);
            assert_eq!((wait(&headers), respond_async(&headers)), (waits.map(Duration::from_secs), later), "{lines:?}");
        }
    }

    #[test]
    fn what_was_heard_goes_no_further_and_the_rest_does() {
        let left = taken_out(&fields(&["respond-async, return=minimal", "wait=5; x, handling=lenient"]));
        assert_eq!(left.get_all(PREFER).iter().collect::<Vec<_>>(), ["return=minimal, handling=lenient"]);
        assert!(taken_out(&fields(&["respond-async"])).is_empty());
    }
}
