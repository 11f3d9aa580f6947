//! Arm: the stored answer again.

use std::time::SystemTime;

use http::header::DATE;
use http::{HeaderValue, Response};

use super::status::Told;
use super::{Stamp, fields};
use crate::body::Body;
use crate::config::Route;
use crate::domain::record::Completed;
use crate::domain::response::StoredResponse;

/// The response as it was, and word that it was: status, fields, body and trailers of the first attempt's.
pub fn replay(completed: Completed, stamp: &Stamp) -> Response<Body> {
    // One that is not written down yet is told without a promise: should this instance die now, nobody else knows it.
    let told = if completed.expires_at.is_some() { Told::Replayed } else { Told::Unstored };
    let mut response = answer(completed, told, stamp);
    response.headers_mut().insert(fields::IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    response
}

/// The stored response for the caller whose attempt it is the response of.
pub fn answer(completed: Completed, told: Told, stamp: &Stamp) -> Response<Body> {
    let Completed { response: stored, expires_at } = completed;
    let mut headers = stored.headers;
    let body = stamp.body(stored.body.unwrap_or_default(), stored.trailers, &mut headers);
    if let Some(date) = headers.get(DATE).cloned() {
        fields::remove(&mut headers, |name| *name == DATE);
        headers.insert(fields::ORIGINAL_DATE, date);
    }
    if let Some(expires_at) = expires_at {
        headers.insert(fields::KEY_EXPIRES, http_date(expires_at));
    }
    stamp.put(&mut headers, told);
    let mut response = Response::new(body);
    *response.status_mut() = stored.status;
    *response.headers_mut() = headers;
    response
}

/// What of a response is kept: not what concerned that moment or that caller alone.
pub fn to_keep(response: &StoredResponse, route: &Route) -> StoredResponse {
    let mut kept = response.clone();
    fields::remove(&mut kept.headers, |name| fields::is_of_the_moment(name) || route.drop_headers.contains(name));
    kept
}

/// RFC 9110 section 5.6.7.
pub fn http_date(time: SystemTime) -> HeaderValue {
    HeaderValue::from_str(&httpdate::fmt_http_date(time)).expect("a date is plain ASCII")
}
