//! The check of a response that an operator has typed in: is it what retries should get for the rest of the TTL?

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde::de::IgnoredAny;

use super::problem::{ApiProblem, ProblemCode};
use oncegate_domain::fingerprint::is_json;
use oncegate_domain::response::StoredResponse;
use oncegate_store::admin::{OperatorAction, OperatorDecision};

/// Refuses a decision with a response that nobody may mean, unless its risk is accepted: one rule for the page, the API and the
/// command line.
///
/// # Errors
/// [`ApiProblem`] with the reason, and nothing was changed.
pub fn check_response(decision: &OperatorDecision) -> Result<(), ApiProblem> {
    if let OperatorAction::Complete(response) = &decision.change
        && !decision.accept_risk
        && let Some(doubt) = find_doubt(response)
    {
        let detail = format!("the response {doubt}: correct it, or use accept_risk if retries are to get exactly this");
        return Err(ApiProblem::new(ProblemCode::DoubtfulResponse, detail));
    }
    Ok(())
}

/// The reason to doubt that retries should get this response, as the rest of a sentence about it; `None` for any other response.
pub fn find_doubt(response: &StoredResponse) -> Option<String> {
    let StoredResponse { status, headers, body, .. } = response;
    let body = body.as_deref().unwrap_or_default();
    if status.is_server_error() {
        return Some(format!("has the status {}, and every retry would get this failure", status.as_u16()));
    }
    // Nothing of an encoded body can be read, and a response with one of these statuses has none.
    if headers.contains_key(CONTENT_ENCODING) || matches!(status.as_u16(), 204 | 205 | 304) {
        return None;
    }
    let is_labelled_json = headers.get(CONTENT_TYPE).is_some_and(|value| is_json(value.as_bytes()));
    if !is_labelled_json || serde_json::from_slice::<IgnoredAny>(body).is_ok() {
        return None;
    }
    let what = if body.is_empty() { "an empty body" } else { "a body that is no JSON" };
    Some(format!("has a JSON type and {what}"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue, StatusCode};

    use super::*;

    #[test]
    fn a_failure_and_a_body_that_is_not_of_its_type_are_doubtful() {
        for (status, kind, body, doubt) in [
            (200, "application/json", "", "has a JSON type and an empty body"),
            (201, "Application/JSON; charset=utf-8", " ", "has a JSON type and a body that is no JSON"),
            (404, "application/problem+json", "{", "has a JSON type and a body that is no JSON"),
            (200, "application/json", "{} {}", "has a JSON type and a body that is no JSON"),
            (500, "text/plain", "failed", "has the status 500, and every retry would get this failure"),
            (599, "application/json", "{}", "has the status 599, and every retry would get this failure"),
            (200, "application/json", "{\"id\":7}", ""),
            (201, "application/json", "null", ""),
            (422, "application/problem+json", "{}", ""),
            (204, "application/json", "", ""),
            (200, "text/plain", "", ""),
            (200, "", "", ""),
            (200, "", "{", ""),
        ] {
            let kind = (!kind.is_empty()).then(|| (CONTENT_TYPE, HeaderValue::from_static(kind)));
            let response = StoredResponse {
                status: StatusCode::from_u16(status).unwrap(),
                headers: kind.into_iter().collect(),
                body: Some(Bytes::from_static(body.as_bytes())),
                trailers: HeaderMap::new(),
            };
            assert_eq!(find_doubt(&response).unwrap_or_default(), doubt, "{response:?}");
        }
    }
}
