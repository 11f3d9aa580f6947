//! Shows the state of an operation to the caller whose request was accepted, and to nobody else.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode, request};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::admit::caller_token::{CallerToken, verify_token};
use super::admit::incoming::{Incoming, Realm, request_origin};
use super::authorize::ReplayQuestion;
use super::state::{Gate, LiveConfig, log_and_refuse};
use oncegate_domain::decision::{DecisionRules, until_known};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::operation::OperationId;
use oncegate_domain::record::Record;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::rfc3339;
use oncegate_domain::state::{CompletedResponse, KeyState};
use oncegate_http::body::Body;
use oncegate_http::body::request_body::RequestBody;
use oncegate_http::downstream::client::ClientConnection;
use oncegate_http::protocol::fields::RequestOrigin;
use oncegate_http::protocol::refusal::{OPERATIONS, Refusal, RetryAfter};
use oncegate_http::protocol::{cors, prefer};
use oncegate_settings::{DeliveryMode, Route};
use oncegate_trust::jwt::TokenFault;

/// The `Retry-After` of an operation that waits or runs.
const RETRY_SOON: Duration = Duration::from_secs(1);

/// The operation's name, which follows [`OPERATIONS`] in a path in its normal form; `None` if the path is another one.
pub fn requested_operation(path: &str) -> Option<String> {
    path.strip_prefix(OPERATIONS).map(str::to_owned)
}

impl Gate {
    /// Responds with the operation's state.
    pub(super) async fn show_operation(
        &self,
        name: &str,
        request: Request<RequestBody>,
        client: &ClientConnection,
        live: &LiveConfig,
    ) -> Result<Response<Body>, Refusal> {
        let (head, _) = request.into_parts();
        if let Some(preflight) = cors::answer_preflight(&head.method, &head.headers) {
            return Ok(preflight);
        }
        if !matches!(head.method, Method::GET | Method::HEAD) {
            let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, "An operation can only be read.");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return Ok(response);
        }
        if !self.instance.joined.is_cancelled() {
            return Err(Refusal::StoreUnavailable);
        }
        // Verified once, for all routes whose scope reads it. The operation may be one of a route that does not.
        let reads_token = live.config.routes.iter().any(|route| route.scope.reads_token());
        let token = match live.token_verifier.as_ref().filter(|_| reads_token) {
            Some(verifier) => Box::pin(verify_token(verifier, &head.headers)).await,
            None => Ok(CallerToken::Absent),
        };
        let origin = request_origin(&head, client, &live.config);
        let found = OperationId::parse(name).map(|id| {
            let token = token.as_ref().unwrap_or(&CallerToken::Unread);
            (id, self.find_callers_routes(id, &head, &origin, live, token))
        });
        let Some((id, routes)) = found.filter(|(_, routes)| !routes.is_empty()) else {
            // A caller whose token has just expired must not take the operation for lost. A text that is no token at
            // all may be the credentials of another route.
            if let Err(refusal) = token
                && refusal != Refusal::TokenInvalid(TokenFault::Malformed)
            {
                return Err(refusal);
            }
            return Ok(problem(StatusCode::NOT_FOUND, "There is no such operation, or it belongs to another caller."));
        };
        // The operation's name does not say which of these routes accepted it, so all of their services have to agree.
        for route in &routes {
            let authorizer = live.router.named(&route.name).and_then(|active| active.authorizer.as_ref());
            if let Some(authorizer) = authorizer
                && let Some(denied) = Box::pin(authorizer.ask(ReplayQuestion::new(&head, route, &origin))).await?
            {
                return Ok(denied);
            }
        }
        let wait = prefer::wait_preference(&head.headers).unwrap_or(Duration::ZERO).min(routes[0].options.wait_timeout);
        self.show_state(id, &routes, wait).await
    }

    /// Responds with the state in which the operation is settled, or has when the wait is over.
    async fn show_state(
        &self,
        id: OperationId,
        routes: &[&Arc<Route>],
        wait: Duration,
    ) -> Result<Response<Body>, Refusal> {
        tokio::select! {
            biased;
            _ = self.instance.wait_groups.wait(&self.instance, id.record, Instant::now() + wait) => {}
            () = self.instance.draining.cancelled() => {}
        }
        let found = self.instance.find_record(id.record).await.map_err(log_and_refuse)?;
        // The name proves that this caller got it from us, so a missing record has expired.
        let certain = |record| self.instance.store_clock.certain(record, Duration::ZERO);
        let record = found.map(certain).filter(is_there).ok_or(Refusal::KeyExpired)?;
        // The record does not say which of the caller's routes is its own.
        let until_known = routes.iter().filter_map(|route| {
            let (retry, reconciles) = (route.retry_rule(), route.reconcile.is_some());
            let rules = DecisionRules { retry, average_latency: Duration::ZERO, reconciles };
            until_known(&record, &rules)
        });
        let until_known = until_known.min();
        let response = show_record(id, record, until_known);
        let length = http_body::Body::size_hint(response.body()).exact().unwrap_or(0);
        Ok(match self.hold_response(usize::try_from(length).unwrap_or(usize::MAX), false)? {
            Some(share) => response.map(|body| body.counted_in(share)),
            None => response,
        })
    }

    /// The routes whose scope the operation's caller has; none if this request is another caller's. Tries the scope of
    /// every route that may have accepted the operation, the asynchronous ones first.
    fn find_callers_routes<'a>(
        &self,
        id: OperationId,
        head: &request::Parts,
        origin: &RequestOrigin,
        live: &'a LiveConfig,
        token: &CallerToken,
    ) -> Vec<&'a Arc<Route>> {
        let path = RequestPath::new(head.uri.path());
        let is_callers = |route: &&Arc<Route>| {
            let salt = self.instance.salts.of(&route.service.name);
            let Some(salt) = salt.stored() else { return false };
            let realm = Realm { service: &route.service.name, salt };
            let incoming = Incoming::new((head, &path), origin, route, realm);
            let scope = incoming.compute_scope(token, incoming.read_scope_places(None));
            scope.is_ok_and(|scope| id.is_valid_for(&scope, salt))
        };
        // A route that is synchronous now may have been asynchronous.
        let (asynchronous, others): (Vec<_>, Vec<_>) =
            live.config.routes.iter().partition(|route| route.options.delivery != DeliveryMode::Sync);
        asynchronous.into_iter().chain(others).filter(is_callers).collect()
    }
}

fn is_there(record: &Record) -> bool {
    // Whether it is still accepted does not matter. A key that an operator has released waits for a retry, which may be
    // executed at once.
    !record.past_ttl && !record.late && !matches!(record.state, KeyState::Expired)
}

fn show_record(id: OperationId, record: Record, until_known: Option<Duration>) -> Response<Body> {
    let mut document = json!({
        "id": id.to_string(),
        "state": record.state.name(),
        "attempts": record.attempt,
        "created_at": record.accepted_at.map(rfc3339::format),
    });
    let wait = match record.state {
        KeyState::Completed(CompletedResponse { response, expires_at }) => {
            document["expires_at"] = expires_at.map(rfc3339::format).into();
            document["response"] = response_document(&response);
            None
        }
        KeyState::InFlight | KeyState::Queued => Some(RETRY_SOON),
        KeyState::Unknown => until_known,
        // Nothing changes until an operator decides, or its client sends the request again.
        KeyState::Dead | KeyState::Expired | KeyState::Retryable => None,
    };
    let mut response = json_response(StatusCode::OK, "application/json", &document);
    if let Some(wait) = wait {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RetryAfter::new(wait).seconds()));
    }
    response
}

/// The stored response. A body that was too large to keep is null.
fn response_document(response: &StoredResponse) -> Value {
    let mut document = json!({ "status": response.status.as_u16(), "headers": pairs(&response.headers) });
    match response.body.as_deref().map(|body| (body, str::from_utf8(body))) {
        Some((_, Ok(text))) => document["body"] = text.into(),
        Some((body, Err(_))) => document["body_base64"] = BASE64_STANDARD.encode(body).into(),
        None => document["body"] = Value::Null,
    }
    if !response.trailers.is_empty() {
        document["trailers"] = pairs(&response.trailers);
    }
    document
}

/// Names and values in their order. Bytes that are not UTF-8 become U+FFFD.
fn pairs(fields: &HeaderMap) -> Value {
    let pair = |(name, value): (&http::HeaderName, &HeaderValue)| {
        json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())])
    };
    fields.iter().map(pair).collect()
}

/// A problem without a type of Oncegate's own (RFC 9457 section 4.2.1).
fn problem(status: StatusCode, detail: &str) -> Response<Body> {
    let title = status.canonical_reason().unwrap_or_default();
    let document = json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail });
    json_response(status, "application/problem+json", &document)
}

fn json_response(status: StatusCode, kind: &'static str, document: &Value) -> Response<Body> {
    let mut response = Response::new(Body::whole(document.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
