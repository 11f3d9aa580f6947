//! The form of Oncegate's own answers: the document and the status of a refusal, and the fields of a dialect.
//!
//! Each form but the default has one table of its errors. A refusal that a table does not name keeps its status, and
//! its slug is the code.

use std::collections::BTreeMap;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;

use super::refusal::{ClientAction, Refusal, RetryAfter};
use super::status::OncegateStatus;
use crate::body::Body;
use oncegate_domain::jsonrpc::RpcId;
use oncegate_settings::Dialect;

/// Tells Stripe's SDKs whether to send the request again, whatever its status.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");
/// Whether a repeatable request was taken as one (OASIS Repeatable Requests 1.0).
const REPEATABILITY_RESULT: HeaderName = HeaderName::from_static("repeatability-result");

/// The form of Oncegate's own answers to a request: that of its route's dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::From)]
pub struct AnswerShape(Dialect);

/// Problem documents (RFC 9457).
impl Default for AnswerShape {
    fn default() -> Self {
        Self(Dialect::Ietf)
    }
}

struct DialectError {
    status: u16,
    /// The `type`; empty in a dialect that has none.
    kind: &'static str,
    code: String,
}

impl DialectError {
    fn new(status: u16, kind: &'static str, code: impl Into<String>) -> Self {
        Self { status, kind, code: code.into() }
    }
}

#[rustfmt::skip]
fn acp_error(refusal: &Refusal) -> DialectError {
    match refusal {
        Refusal::KeyMissing(_) => DialectError::new(400, "invalid_request", "idempotency_key_required"),
        Refusal::KeyReused(_) => DialectError::new(422, "invalid_request", "idempotency_conflict"),
        Refusal::InFlight(_) => DialectError::new(409, "invalid_request", "idempotency_in_flight"),
        Refusal::OutcomeUnknown(_) | Refusal::ResponseNotKept => DialectError::new(409, "processing_error", in_words(refusal)),
        other => match other.status().as_u16() {
            status @ 503 => DialectError::new(status, "service_unavailable", in_words(other)),
            status @ 500.. => DialectError::new(status, "processing_error", in_words(other)),
            status => DialectError::new(status, "invalid_request", in_words(other)),
        },
    }
}

/// The errors of OASIS Repeatable Requests 1.0, section 2: 412 outside of the window, 400 for any other fault.
#[rustfmt::skip]
fn repeatability_error(refusal: &Refusal) -> DialectError {
    let status = match refusal {
        Refusal::KeyReused(_) => 400,
        Refusal::KeyExpired | Refusal::RequestFromFuture | Refusal::RequestTooOld => 412,
        other => other.status().as_u16(),
    };
    DialectError::new(status, "", refusal.slug())
}

/// The errors of Stripe's API. The SDKs choose a class by the status (Python) or by the type (Node). A 400, 401, 403 or
/// 429 has the same class in both; other faults of a request are therefore 400.
#[rustfmt::skip]
fn stripe_error(refusal: &Refusal) -> DialectError {
    match refusal {
        Refusal::KeyExpired | Refusal::KeyReused(_) => DialectError::new(400, "idempotency_error", in_words(refusal)),
        Refusal::InFlight(_) => DialectError::new(409, "invalid_request_error", "idempotency_key_in_use"),
        Refusal::OutcomeUnknown(_) | Refusal::ResponseNotKept => DialectError::new(409, "api_error", in_words(refusal)),
        Refusal::TooManyKeys(_) => DialectError::new(429, "rate_limit_error", in_words(refusal)),
        other => match other.status().as_u16() {
            status @ 500.. => DialectError::new(status, "api_error", in_words(other)),
            status @ (401 | 403) => DialectError::new(status, "invalid_request_error", in_words(other)),
            _ => DialectError::new(400, "invalid_request_error", in_words(other)),
        },
    }
}

/// The errors of the Universal Commerce Protocol and of x402, in which a 409 says that the key was used for another
/// request: a client that reads one takes a new key. What a later retry may answer is 503.
#[rustfmt::skip]
fn commerce_error(refusal: &Refusal) -> DialectError {
    let status = match refusal {
        Refusal::KeyReused(_) => 409,
        Refusal::DuplicateSuspected(_) => 400,
        Refusal::InFlight(_) | Refusal::OutcomeUnknown(_) => 503,
        Refusal::ResponseNotKept => 500,
        other => other.status().as_u16(),
    };
    DialectError::new(status, "", in_words(refusal))
}

/// The code of a refusal in JSON-RPC. MCP and A2A keep -32099 to -32000 for errors of their own, and clients act on
/// some of them: there the same endings stand outside of JSON-RPC's reserved range.
#[rustfmt::skip]
fn rpc_code(dialect: Dialect, refusal: &Refusal) -> i32 {
    let own = match dialect { Dialect::A2a | Dialect::Mcp => -31_000, _ => -32_000 };
    match refusal {
        Refusal::BadRequest(..) | Refusal::PathAmbiguous(_) => -32_600,
        Refusal::KeyInvalid(_) | Refusal::KeyMissing(_) => -32_602,
        Refusal::ResponseCorrupt => -32_603,
        // One code for all of the server's own errors; the status has the rest.
        _ if dialect == Dialect::Ucp => -32_000,
        Refusal::InFlight(_) => own - 9,
        Refusal::KeyReused(_) => own - 22,
        _ if refusal.row().action == ClientAction::Reconcile => own - 50,
        _ => own,
    }
}

/// The status of a JSON-RPC error to a call that was read. Clients of JSON-RPC, MCP and A2A take another status than
/// 200 for a failure of the connection, and do not read the error: so what is said about the call's key is 200. What
/// the connection, the caller or the moment is to blame for keeps its status, by which gateways and clients act. In UCP
/// the status is the signal.
#[rustfmt::skip]
fn rpc_status(dialect: Dialect, refusal: &Refusal) -> u16 {
    match refusal {
        _ if dialect == Dialect::Ucp => commerce_error(refusal).status,
        Refusal::DuplicateSuspected(_) | Refusal::InFlight(_) | Refusal::KeyExpired | Refusal::KeyInvalid(_) | Refusal::KeyMissing(_) | Refusal::KeyReused(_) => 200,
        _ if refusal.row().action == ClientAction::Reconcile => 200,
        other => other.status().as_u16(),
    }
}

/// The slug as the codes of these APIs are spelled.
fn in_words(refusal: &Refusal) -> String {
    refusal.slug().replace('-', "_")
}

/// A problem document, with its members in reading order.
#[derive(Serialize)]
struct ProblemDocument<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    retry: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    differs: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorObject<'a>>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    #[serde(rename = "type", skip_serializing_if = "str::is_empty")]
    kind: &'a str,
    code: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    differs: &'a [String],
}

/// An element of `errors` in a GraphQL response to a request that was not executed (GraphQL, section 7.1).
#[derive(Serialize)]
struct GraphqlError<'a> {
    message: &'a str,
    extensions: GraphqlErrorExtensions<'a>,
}

#[derive(Serialize)]
struct GraphqlErrorExtensions<'a> {
    code: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    differs: &'a [String],
    retry: &'a str,
}

/// An error response of JSON-RPC 2.0.
#[derive(Serialize)]
struct RpcResponse<'a> {
    jsonrpc: &'a str,
    /// Null for a request that was not read; MCP has no null.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a RawValue>,
    error: RpcError<'a>,
}

#[derive(Serialize)]
struct RpcError<'a> {
    code: i32,
    message: &'a str,
    data: RpcErrorData<'a>,
}

/// The part of a JSON-RPC error that is the same in all dialects.
#[derive(Serialize)]
struct RpcErrorData<'a> {
    code: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    differs: &'a [String],
    retry: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(rename = "type")]
    kind: &'a str,
}

/// The error of a REST request in the Universal Commerce Protocol.
#[derive(Serialize)]
struct CommerceError<'a> {
    code: &'a str,
    content: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    differs: &'a [String],
}

impl AnswerShape {
    fn error(self, refusal: &Refusal) -> DialectError {
        let status = refusal.row().status;
        match self.0 {
            Dialect::Acp => acp_error(refusal),
            Dialect::Graphql => DialectError::new(status, "", in_words(refusal).to_ascii_uppercase()),
            Dialect::Ucp | Dialect::X402 => commerce_error(refusal),
            Dialect::A2a | Dialect::Ietf | Dialect::Jsonrpc | Dialect::Mcp => {
                DialectError::new(status, "", refusal.slug())
            }
            Dialect::Repeatability => repeatability_error(refusal),
            Dialect::Stripe => stripe_error(refusal),
        }
    }

    pub fn status(self, refusal: &Refusal) -> StatusCode {
        StatusCode::from_u16(self.error(refusal).status).expect("the tables have valid statuses only")
    }

    /// Builds the answer to a refused request. The type of a problem document is `problem_base`, followed by the slug.
    /// `rpc_id` is the id of a JSON-RPC call that was read.
    pub fn render(self, refusal: &Refusal, problem_base: &str, rpc_id: Option<&RpcId>) -> Response<Body> {
        let (row, action, differs) = (refusal.row(), refusal.client_action(), refusal.differs());
        let DialectError { status, kind, code } = self.error(refusal);
        let status = rpc_id.map_or(status, |_| rpc_status(self.0, refusal));
        let error = ErrorObject { kind, code: &code, message: &row.detail, differs };
        let (media_type, document) = match self.0 {
            // Its schema has no other members. The message names the parts.
            Dialect::Acp => ("application/json", to_json(&ErrorObject { differs: &[], ..error })),
            // Not `application/graphql-response+json`: clients take an error with the older type for one of the
            // connection, and their policies of retries act on it.
            Dialect::Graphql => {
                let extensions = GraphqlErrorExtensions { code: &code, differs, retry: action };
                let errors = [GraphqlError { message: &row.detail, extensions }];
                ("application/json", to_json(&BTreeMap::from([("errors", errors)])))
            }
            Dialect::Ucp if rpc_id.is_none() => {
                ("application/json", to_json(&CommerceError { code: &code, content: &row.detail, differs }))
            }
            Dialect::A2a | Dialect::Jsonrpc | Dialect::Mcp | Dialect::Ucp => {
                let id = rpc_id.map_or((self.0 != Dialect::Mcp).then_some(RawValue::NULL), |id| Some(id.as_raw()));
                let kind = &*format!("{problem_base}{}", row.slug);
                let retry_after = row.retry_after.map(RetryAfter::seconds);
                let data = RpcErrorData { code: row.slug, differs, retry: action, retry_after, kind };
                let error = RpcError { code: rpc_code(self.0, refusal), message: &row.detail, data };
                ("application/json", to_json(&RpcResponse { jsonrpc: "2.0", id, error }))
            }
            Dialect::Ietf | Dialect::Repeatability | Dialect::Stripe | Dialect::X402 => {
                let document = ProblemDocument {
                    kind: &format!("{problem_base}{}", row.slug),
                    title: row.title,
                    status,
                    detail: &row.detail,
                    code: row.slug,
                    retry: action,
                    differs,
                    error: (!matches!(self.0, Dialect::Ietf | Dialect::X402)).then_some(error),
                };
                let is_stripe = self.0 == Dialect::Stripe;
                (if is_stripe { "application/json" } else { "application/problem+json" }, to_json(&document))
            }
        };
        let mut response = Response::new(Body::whole(document));
        *response.status_mut() = StatusCode::from_u16(status).expect("the tables have valid statuses only");
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        refusal.add_fields(headers);
        if self.0 == Dialect::Stripe {
            headers
                .insert(SHOULD_RETRY, HeaderValue::from_static(if refusal.invites_retry() { "true" } else { "false" }));
        }
        response
    }

    /// Adds the fields that the dialect has on answers to guarded requests.
    pub fn add_fields(self, (code, headers): (StatusCode, &mut HeaderMap), status: OncegateStatus) {
        let field = match (self.0, status) {
            (Dialect::Repeatability, _) => repeatability_result(status).map(|result| (REPEATABILITY_RESULT, result)),
            // A retry gets the same error again.
            (Dialect::Stripe, OncegateStatus::Replayed | OncegateStatus::Unstored) => {
                let is_error = code.is_client_error() || code.is_server_error();
                is_error.then_some((SHOULD_RETRY, "false"))
            }
            // A retry gets 409 until somebody knows the outcome.
            (Dialect::Stripe, OncegateStatus::Unknown) => Some((SHOULD_RETRY, "false")),
            (Dialect::Stripe | Dialect::A2a | Dialect::Acp | Dialect::Graphql | Dialect::Ietf, _) => None,
            (Dialect::Jsonrpc | Dialect::Mcp | Dialect::Ucp | Dialect::X402, _) => None,
        };
        if let Some((name, value)) = field {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
}

/// Whether the request was taken as a repeatable one; `None` where nothing is promised about its retries.
fn repeatability_result(status: OncegateStatus) -> Option<&'static str> {
    match status {
        OncegateStatus::Bypassed | OncegateStatus::Observed => None,
        OncegateStatus::KeyReused | OncegateStatus::Rejected => Some("rejected"),
        OncegateStatus::Attached
        | OncegateStatus::Executed
        | OncegateStatus::InFlight
        | OncegateStatus::Queued
        | OncegateStatus::Released
        | OncegateStatus::Replayed
        | OncegateStatus::Streaming
        | OncegateStatus::Unknown
        | OncegateStatus::Unstored => Some("accepted"),
    }
}

fn to_json(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("strings and a number can be written as JSON")
}

#[cfg(test)]
mod tests;
