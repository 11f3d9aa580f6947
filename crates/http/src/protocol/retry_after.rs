//! `Retry-After` in a service's response.

use std::time::Duration;

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};

/// The pause that `Retry-After` asks for: seconds, or a date by the service's clock (RFC 9110 section 10.2.3).
pub fn requested_pause(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let date = |text: &str| httpdate::parse_http_date(text).ok();
    let value = text(RETRY_AFTER)?;
    let until = || date(value)?.duration_since(date(text(DATE)?)?).ok();
    value.parse().ok().map(Duration::from_secs).or_else(until)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn pause_of(fields: &[(HeaderName, &'static str)]) -> Option<u64> {
        let fields = fields.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        requested_pause(&fields.collect()).map(|pause| pause.as_secs())
    }

    #[test]
    fn a_retry_after_date_counts_by_the_service_s_clock() {
        const NOON: &str = "Sun, 06 Nov 1994 12:00:00 GMT";
        const LATER: &str = "Sun, 06 Nov 1994 12:00:09 GMT";
        assert_eq!(pause_of(&[(RETRY_AFTER, "7")]), Some(7));
        assert_eq!(pause_of(&[(RETRY_AFTER, LATER), (DATE, NOON)]), Some(9));
        for nothing in [
            &[][..],
            &[(RETRY_AFTER, LATER)],
            &[(RETRY_AFTER, NOON), (DATE, LATER)],
            &[(RETRY_AFTER, "soon")],
            &[(RETRY_AFTER, "-1")],
        ] {
            assert_eq!(pause_of(nothing), None);
        }
    }
}
