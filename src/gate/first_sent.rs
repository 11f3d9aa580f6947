//! The time at which a request was first sent, as the client says.

use std::time::{Duration, SystemTime};

use http::header::DATE;
use http::{HeaderMap, HeaderValue, StatusCode};

use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::{Dialect, FIRST_SENT, Route};

/// Whether the request has a time of a repeatable request, and no key that it belongs to.
pub(super) fn lacks_key(headers: &HeaderMap, route: &Route) -> bool {
    route.options.dialect == Dialect::Repeatability && headers.contains_key(FIRST_SENT)
}

/// Checks the time of a request that has a key.
///
/// # Errors
/// The refusal of a request without a time that its route's dialect needs, or outside of the route's window.
pub(super) fn check(headers: &HeaderMap, route: &Route, now: impl FnOnce() -> SystemTime) -> Result<(), Refusal> {
    match (route.options.dialect, route.age_limit()) {
        (_, None) => Ok(()),
        (Dialect::Repeatability, Some(limit)) => check_repeatable(headers, limit, route.ahead_limit(), now()),
        (_, Some(limit)) => check_age(headers, limit, now()),
    }
}

fn check_repeatable(
    headers: &HeaderMap,
    limit: Duration,
    ahead_limit: Duration,
    now: SystemTime,
) -> Result<(), Refusal> {
    let mut values = headers.get_all(FIRST_SENT).iter();
    let sent = match (values.next(), values.next()) {
        (Some(value), None) => fixdate(value).ok_or(NO_FIXDATE)?,
        (None, _) => return Err(NO_FIRST_SENT),
        (Some(_), Some(_)) => return Err(NO_FIXDATE),
    };
    if sent.duration_since(now).is_ok_and(|ahead| ahead > ahead_limit) {
        return Err(Refusal::RequestFromFuture);
    }
    check_time(sent, limit, now)
}

/// Refuses a request that was first sent more than `limit` ago: its key may be forgotten, and it must not pass for a new request.
pub(super) fn check_age(headers: &HeaderMap, limit: Duration, now: SystemTime) -> Result<(), Refusal> {
    let Some(said) = headers.get(FIRST_SENT).or_else(|| headers.get(DATE)) else { return Ok(()) };
    let sent = said.to_str().ok().and_then(|said| httpdate::parse_http_date(said).ok());
    check_time(sent.ok_or(NO_DATE)?, limit, now)
}

fn check_time(sent: SystemTime, limit: Duration, now: SystemTime) -> Result<(), Refusal> {
    if now.duration_since(sent).unwrap_or_default() > limit { Err(Refusal::RequestTooOld) } else { Ok(()) }
}

/// A time in the one form that RFC 9110, section 5.6.7, has senders write.
fn fixdate(value: &HeaderValue) -> Option<SystemTime> {
    let text = value.to_str().ok()?;
    let time = httpdate::parse_http_date(text).ok()?;
    (httpdate::fmt_http_date(time) == text).then_some(time)
}

const NO_DATE: Refusal =
    Refusal::BadRequest(StatusCode::BAD_REQUEST, "The time at which the request was sent is no date.");

const NO_FIXDATE: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "Repeatability-First-Sent is not one date such as `Sun, 06 Nov 1994 08:49:37 GMT`.",
);

const NO_FIRST_SENT: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "A repeatable request needs Repeatability-First-Sent too: the time of the first try, the same in each retry.",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_repeatable_request_is_one_fixdate_within_the_window() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let limit = Duration::from_secs(3_600);
        for (sent, slug) in [
            (&["Sun, 06 Nov 1994 08:49:37 GMT"][..], ""),
            (&["Sun, 06 Nov 1994 07:49:37 GMT"], ""),
            (&["Sun, 06 Nov 1994 07:49:36 GMT"], "request-too-old"),
            (&["Sun, 06 Nov 1994 08:54:37 GMT"], ""),
            (&["Sun, 06 Nov 1994 08:54:38 GMT"], "request-from-future"),
            (&["Sunday, 06-Nov-94 08:49:37 GMT"], "bad-request"),
            (&["Sun Nov  6 08:49:37 1994"], "bad-request"),
            (&["1994-11-06T08:49:37Z"], "bad-request"),
            (&[""], "bad-request"),
            (&[], "bad-request"),
            (&["Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 GMT"], "bad-request"),
        ] {
            let mut headers = HeaderMap::new();
            for value in sent {
                headers.append(FIRST_SENT, HeaderValue::from_static(value));
            }
            let refused = check_repeatable(&headers, limit, Duration::from_secs(300), now).err();
            assert_eq!(refused.as_ref().map_or("", Refusal::slug), slug, "{sent:?}");
        }
    }
}
