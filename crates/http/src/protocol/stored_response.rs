//! The part of a response that is stored, and HTTP dates.

use std::time::SystemTime;

use http::HeaderValue;

use super::fields;
use oncegate_domain::response::StoredResponse;
use oncegate_settings::Route;

/// Returns the response as it is stored: without fields about the moment of the answer, and without the route's
/// `drop_headers`.
pub fn to_storable(response: &StoredResponse, route: &Route) -> StoredResponse {
    let mut kept = response.clone();
    for fields in [&mut kept.headers, &mut kept.trailers] {
        fields::remove(fields, |name| fields::is_momentary(name) || route.options.replay.drop_headers.contains(name));
    }
    kept
}

/// Formats a time as an HTTP date (RFC 9110 section 5.6.7).
pub fn http_date(time: SystemTime) -> HeaderValue {
    HeaderValue::from_str(&httpdate::fmt_http_date(time)).expect("a date is plain ASCII")
}
