//! The rules of admission on a route, the same for all that is admitted.
//!
//! Requests, copies of observed requests and `oncegate explain` come here from `arrival`, and messages from `message`.
//! A rule is checked as soon as the part that it judges is there:
//!
//! 1. The head: `Connection` names no field that the key or the scope is read from.
//! 2. The signature, where the route has one.
//! 3. The key: a required one is there, its length is within the limits, and its request is not too old.
//! 4. The length of the body.

use std::time::{Duration, SystemTime};

use http::header::{DATE, ORIGIN};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, StatusCode, request};

use super::identity::{KeySearch, RequestIdentity};
use super::incoming::Incoming;
use super::key_location;
use crate::instance::metrics::MethodLabel;
use oncegate_domain::batch::BatchError;
use oncegate_http::protocol::fields;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::{Config, Dialect, FIRST_SENT, Route};
use oncegate_trust::webhook::SignedRequest;

const NOMINATED_FIELD: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The Connection field names a field that must not disappear on the way.",
);

const FOREIGN_PAGE: Refusal = Refusal::BadRequest(
    StatusCode::FORBIDDEN,
    "A page of a browser sends this request, and the route sends a credential that pages do not have. It was not executed. The operator can \
     name the page's origin in `cors`.",
);

/// Checks a request that no route guards. The service needs the fields that name the caller all the same.
pub(super) fn check_unguarded(head: &request::Parts, is_on_route: bool, config: &Config) -> Result<(), Refusal> {
    if fields::connection_lists_any(&head.headers, &[]) {
        return Err(NOMINATED_FIELD);
    }
    let may_pass = is_on_route || !config.refuses_unguarded || !MethodLabel::from_method(&head.method).changes_state();
    if may_pass { Ok(()) } else { Err(Refusal::Unguarded) }
}

/// Checks a request at the path of a route, also one with another method.
pub(super) fn check_path_of(route: &Route, head: &request::Parts, is_on_route: bool) -> Result<(), Refusal> {
    // The service counts on a verified sender there.
    if !is_on_route && route.signature.is_some() && MethodLabel::from_method(&head.method).changes_state() {
        return Err(Refusal::Unguarded);
    }
    if route.vendor.is_some() && !route.options.set_headers.is_empty() && is_of_foreign_page(head, route) {
        return Err(FOREIGN_PAGE);
    }
    Ok(())
}

/// Whether a page of another site sends the request: a browser on this machine, or in its network, sends it as any
/// other. Programs send neither field (Fetch Metadata Request Headers, section 2.4).
fn is_of_foreign_page(head: &request::Parts, route: &Route) -> bool {
    let site = head.headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    match head.headers.get(ORIGIN) {
        Some(origin) => !route.cors.allows(origin.as_bytes()),
        None => site.is_some_and(|site| !matches!(site, b"same-origin" | b"none")),
    }
}

/// Checks the head of a request on a route that guards it.
pub(super) fn check_head(incoming: &Incoming<'_>) -> Result<(), Refusal> {
    let Incoming { head, route, .. } = incoming;
    let signed: Vec<_> = route.signature.iter().flat_map(|rule| rule.scheme.fields()).collect();
    let needed: Vec<_> = route.options.key.fields().chain(route.scope.header_names()).chain(&signed).collect();
    if fields::connection_lists_any(&head.headers, &needed) { Err(NOMINATED_FIELD) } else { Ok(()) }
}

/// A request as the sender of the route's webhooks signs it.
pub(super) fn signed_request<'a>(head: &'a request::Parts, body: &'a [u8]) -> SignedRequest<'a> {
    let path_and_query = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    SignedRequest { method: &head.method, path_and_query, headers: &head.headers, body }
}

/// Checks a request or message by what is known of its key.
pub(super) fn check_key(
    incoming: &Incoming<'_>,
    search: &KeySearch<RequestIdentity>,
    now: impl FnOnce() -> SystemTime,
) -> Result<(), Refusal> {
    let Incoming { head, route, .. } = incoming;
    match search {
        KeySearch::InBody => Ok(()),
        KeySearch::NoKey => {
            // The time of a repeatable request belongs to its key.
            let has_time = route.options.dialect == Dialect::Repeatability && head.headers.contains_key(FIRST_SENT);
            let needs_key = route.options.key.required || has_time;
            if needs_key { Err(key_location::missing(&route.options.key, &head.headers)) } else { Ok(()) }
        }
        KeySearch::Found(identity) => {
            route.options.key.limits.check_length(identity.key_length)?;
            // The time that a dialect needs is a client's. A message has none.
            let is_message = incoming.given_key.is_some();
            match (route.options.dialect, if is_message { route.options.max_age } else { route.age_limit() }) {
                (_, None) => Ok(()),
                (Dialect::Repeatability, Some(limit)) if !is_message => {
                    check_repeatable(&head.headers, limit, route.ahead_limit(), now())
                }
                (_, Some(limit)) => check_age(&head.headers, limit, now()),
            }
        }
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

/// Refuses a request that was first sent more than `limit` ago: its key may be forgotten, and it must not pass for a
/// new request.
fn check_age(headers: &HeaderMap, limit: Duration, now: SystemTime) -> Result<(), Refusal> {
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

/// Checks the length of a body that is there.
pub(super) fn check_body(route: &Route, length: usize) -> Result<(), Refusal> {
    if length > route.options.max_request_body { Err(too_large(route)) } else { Ok(()) }
}

/// The refusal of a body that cannot be split into the parts of a batch.
pub(super) fn no_batch(error: BatchError) -> Refusal {
    match error {
        BatchError::TooLarge => Refusal::BadRequest(
            StatusCode::PAYLOAD_TOO_LARGE,
            "The batch has more than 1000 elements, or its parts have more than twice the bytes that the route takes.",
        ),
        BatchError::NoList => {
            Refusal::BadRequest(StatusCode::BAD_REQUEST, "The body has no list where the batch should be.")
        }
    }
}

/// The refusal of a longer body than the route takes.
pub(super) fn too_large(route: &Route) -> Refusal {
    Refusal::RequestTooLarge(route.options.max_request_body)
}

/// Whether a key may have been made before the rule that this refusal comes from. A field that is missing or malformed
/// broke the earlier rules too: no retry of a stored key is spelled like this.
pub(super) fn may_be_newer_than_key(refusal: &Refusal) -> bool {
    !matches!(refusal, Refusal::BadRequest(..) | Refusal::RequestFromFuture)
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
