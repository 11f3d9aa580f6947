//! The check of a response that an operator has typed in: is it what retries should get for the rest of the TTL? And
//! the form of the service's own responses, which it is compared with.

use std::fmt;

use http::StatusCode;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde::de::IgnoredAny;

use super::KeyAdmin;
use super::problem::{ApiProblem, ProblemCode};
use oncegate_domain::media_type::is_json;
use oncegate_domain::quantity::quantity;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::state::{KeyState, StateKind};
use oncegate_store::StoreError;
use oncegate_store::admin::{KeyFilter, OperatorDecision};

/// The number of keys among which an example of a response is looked for.
const EXAMPLES_MAX: u32 = 100;

/// Refuses a decision with a response that nobody may mean, unless its risk is accepted: one rule for the page, the API
/// and the command line.
pub fn check_response(decision: &OperatorDecision) -> Result<(), ApiProblem> {
    if let Some(response) = decision.change.response()
        && !decision.accept_risk
        && let Some(doubt) = find_doubt(response)
    {
        let detail = format!("the response {doubt}: correct it, or use accept_risk if retries are to get exactly this");
        return Err(ApiProblem::new(ProblemCode::DoubtfulResponse, detail));
    }
    Ok(())
}

/// The reason to doubt that retries should get this response, as the rest of a sentence about it; `None` for any other
/// response.
pub fn find_doubt(response: &StoredResponse) -> Option<String> {
    let StoredResponse { status, headers, body, .. } = response;
    let body = body.as_deref().unwrap_or_default();
    if status.is_server_error() {
        return Some(format!("has the status {}, and every retry would get this failure", status.as_u16()));
    }
    // Nothing of an encoded body can be read.
    if headers.contains_key(CONTENT_ENCODING) || has_no_body(*status) {
        return None;
    }
    let is_labelled_json = headers.get(CONTENT_TYPE).is_some_and(|value| is_json(value.as_bytes()));
    if !is_labelled_json || serde_json::from_slice::<IgnoredAny>(body).is_ok() {
        return None;
    }
    let what = if body.is_empty() { "an empty body" } else { "a body that is no JSON" };
    Some(format!("has a JSON type and {what}"))
}

fn has_no_body(status: StatusCode) -> bool {
    matches!(status.as_u16(), 204 | 205 | 304)
}

/// The form of a response that a service has given, without its values: they belong to its caller.
#[derive(Clone, Debug)]
pub struct ResponseExample {
    pub status: StatusCode,
    pub content_type: Option<String>,
    /// The names of its other fields.
    pub fields: Vec<String>,
    /// The length of its body; `None` where the body was too large to keep.
    pub body_bytes: Option<usize>,
}

impl ResponseExample {
    fn new(response: &StoredResponse) -> Self {
        let content_type = response.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let fields = response.headers.keys().filter(|name| **name != CONTENT_TYPE);
        Self {
            status: response.status,
            content_type: content_type.map(str::to_owned),
            fields: fields.map(|name| name.as_str().to_owned()).collect(),
            body_bytes: response.body.as_ref().map(bytes::Bytes::len),
        }
    }

    /// Whether a response without a body may be one whose body was forgotten.
    pub fn is_missed_by(&self, response: &StoredResponse) -> bool {
        let is_empty = response.body.as_ref().is_none_or(bytes::Bytes::is_empty);
        is_empty && self.body_bytes != Some(0) && !has_no_body(response.status)
    }
}

impl fmt::Display for ResponseExample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.body_bytes {
            Some(bytes) => write!(f, "{}", quantity(bytes as u64, "byte", "bytes"))?,
            None => f.write_str("a body that was not kept")?,
        }
        self.content_type.as_ref().map_or(Ok(()), |kind| write!(f, " of {kind}"))
    }
}

impl KeyAdmin<'_> {
    /// Refuses a response whose body was left out although the route's responses have one.
    pub(super) async fn check_empty_body(&self, decision: &OperatorDecision, route: &str) -> Result<(), ApiProblem> {
        let Some(response) = decision.change.response() else { return Ok(()) };
        let is_empty = response.body.as_ref().is_none_or(bytes::Bytes::is_empty);
        if !is_empty || decision.accept_risk || decision.means_empty_body {
            return Ok(());
        }
        match self.find_example(route).await? {
            Some(example) if example.is_missed_by(response) => {
                let detail = format!(
                    "the response has no body, and another one of the route `{route}` has {example}: write it, or use \
                     accept_risk or an explicit `\"body\": \"\"` if retries are to get none"
                );
                Err(ApiProblem::new(ProblemCode::EmptyBody, detail))
            }
            _ => Ok(()),
        }
    }

    /// The form of the latest success among some responses that the service has given on a route; of its latest
    /// response where none of them is a success.
    pub async fn find_example(&self, route: &str) -> Result<Option<ResponseExample>, ApiProblem> {
        let (state, route) = (Some(StateKind::Completed), Some(route.to_owned()));
        let keys = self.list_keys(KeyFilter { state, route, ..KeyFilter::default() }, "", EXAMPLES_MAX).await?.keys;
        let of_service = keys.iter().filter(|key| !key.is_by_hand);
        let is_success = |status: Option<u16>| status.is_some_and(|status| (200..300).contains(&status));
        let Some(latest) = of_service.max_by_key(|key| (is_success(key.status), key.settled_at)) else {
            return Ok(None);
        };
        Ok(match self.store.find(latest.id).await {
            Ok(Some(record)) => match record.state {
                KeyState::Completed(completed) => Some(ResponseExample::new(&completed.response)),
                _ => None,
            },
            Ok(None) | Err(StoreError::Corrupt(_)) => None,
            Err(error) => return Err(error.into()),
        })
    }
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
