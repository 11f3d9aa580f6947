//! Cross-origin reads: the CORS fields of Oncegate's own answers and of replays (Fetch standard, section 3.3).
//!
//! The service's live responses keep the fields that the service gave them.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY,
};
use http::{Method, Response, StatusCode};

use super::fields;
use crate::body::Body;
use oncegate_settings::CorsPolicy;

/// The fields of a response that give it to a particular origin.
const GRANTS: [HeaderName; 3] =
    [ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS];

/// The fields that a script may read besides the few that every response shows.
const EXPOSED: &str = "Idempotent-Replayed, Oncegate-Status, Idempotency-Key-Expires, Oncegate-Original-Date, \
    Location, Preference-Applied, Retry-After, Repeatability-Result, Stripe-Should-Retry";

/// The time for which a browser may keep the answer to a preflight for an operation: seconds.
const PREFLIGHT_MAX_AGE: &str = "600";

/// Returns the origin of the page that sent the request; `None` for a request without exactly one.
pub fn request_origin(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut origins = headers.get_all(ORIGIN).iter();
    origins.next().filter(|_| origins.next().is_none()).cloned()
}

/// Adds the fields that let a page of `origin` read this answer, if `policy` allows it. Removes grants to any other
/// origin, which a replayed response may have. `key` is the field of the echoed key, which the page may read too.
pub fn add_fields(
    headers: &mut HeaderMap,
    origin: Option<&HeaderValue>,
    policy: Option<&CorsPolicy>,
    key: Option<&HeaderName>,
) {
    let granted_to = headers.get(ACCESS_CONTROL_ALLOW_ORIGIN);
    // `*` was given to everybody, with credentials to nobody.
    let is_for_this_page = granted_to.is_none_or(|granted| granted == "*" || Some(granted) == origin);
    if !is_for_this_page {
        fields::remove(headers, |name| GRANTS.contains(name));
    }
    let Some(policy) = policy else { return };
    // Also on answers to other pages: a cache must not give theirs to this one.
    add_vary(headers);
    let Some(origin) = origin.filter(|origin| policy.allows(origin.as_bytes())) else { return };
    if headers.get(ACCESS_CONTROL_ALLOW_ORIGIN) != Some(origin) {
        fields::remove(headers, |name| *name == ACCESS_CONTROL_ALLOW_CREDENTIALS);
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    }
    if policy.credentials {
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
    headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    if let Some(key) = key {
        headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_name(key.clone()));
    }
}

fn add_vary(headers: &mut HeaderMap) {
    let values = headers.get_all(VARY).iter().filter_map(|value| value.to_str().ok());
    let mut names = values.flat_map(|value| value.split(',')).map(str::trim);
    if !names.any(|name| name == "*" || name.eq_ignore_ascii_case("origin")) {
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
}

/// Returns the answer to a preflight for a path of Oncegate's own, which can only be read; `None` for any other
/// request. [`add_fields`] decides whether the browser goes on.
pub fn answer_preflight(method: &Method, headers: &HeaderMap) -> Option<Response<Body>> {
    if *method != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    answer.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD"));
    // Whatever names the caller: which fields these are depends on the operation's route.
    if let Some(names) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(PREFLIGHT_MAX_AGE));
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_settings::CorsPolicy;

    const SHOP: &str = "https://shop.example";

    fn policy(credentials: bool) -> CorsPolicy {
        CorsPolicy { origins: vec![SHOP.into()], is_any: false, credentials }
    }

    /// The CORS fields of a replay of a response with these fields, to a page of this origin.
    fn replayed(
        stored: &[(HeaderName, &'static str)],
        origin: Option<&'static str>,
        policy: Option<&CorsPolicy>,
    ) -> String {
        let mut headers: HeaderMap =
            stored.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        add_fields(&mut headers, origin.map(HeaderValue::from_static).as_ref(), policy, None);
        let text = |name| headers.get(name).map_or("-", |value| value.to_str().unwrap());
        [ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_ALLOW_CREDENTIALS, VARY].map(text).join(" ")
    }

    #[test]
    fn a_grant_is_given_to_allowed_origins_and_kept_only_for_the_origin_that_it_names() {
        let (origin, credentials) = (ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_ALLOW_CREDENTIALS);
        let none: &[_] = &[];
        let shop: &[_] = &[(origin.clone(), SHOP), (credentials.clone(), "true")];
        let admin: &[_] = &[(origin.clone(), "https://admin.example"), (credentials.clone(), "true")];
        let any: &[_] = &[(origin, "*"), (VARY, "accept, origin")];
        let (open, closed) = (policy(true), policy(false));
        for (stored, page, policy, expected) in [
            (none, Some(SHOP), None, "- - -"),
            (none, Some(SHOP), Some(&closed), "https://shop.example - Origin"),
            (none, Some(SHOP), Some(&open), "https://shop.example true Origin"),
            (none, Some("https://evil.example"), Some(&open), "- - Origin"),
            (none, None, Some(&open), "- - Origin"),
            (shop, Some(SHOP), None, "https://shop.example true -"),
            (shop, Some("https://evil.example"), None, "- - -"),
            (shop, None, None, "- - -"),
            (admin, Some(SHOP), Some(&closed), "https://shop.example - Origin"),
            (admin, Some(SHOP), Some(&open), "https://shop.example true Origin"),
            (any, Some("https://evil.example"), Some(&closed), "* - accept, origin"),
            (any, Some(SHOP), Some(&open), "https://shop.example true accept, origin"),
        ] {
            assert_eq!(replayed(stored, page, policy), expected, "{stored:?} to {page:?}");
        }
    }

    #[test]
    fn a_request_with_two_origins_has_none() {
        let mut headers = HeaderMap::new();
        headers.append(ORIGIN, HeaderValue::from_static(SHOP));
        assert_eq!(request_origin(&headers).unwrap(), SHOP);
        headers.append(ORIGIN, HeaderValue::from_static("https://evil.example"));
        assert_eq!(request_origin(&headers), None);
    }
}
