//! Arm: how what was accepted stands, for the caller who was told 202 and for nobody else.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode, request};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::admit::{caller, origin};
use super::client::Client;
use super::decide::ASK_AGAIN;
use super::refuse::{Refusal, RetryAfter};
use super::{Gate, Live, prefer, refusal_of};
use crate::body::Body;
use crate::config::Delivery;
use crate::domain::operation::OperationId;
use crate::domain::path::normal_form;
use crate::domain::record::{Completed, Record, State};
use crate::domain::response::StoredResponse;
use crate::domain::rfc3339;

/// Before an operation's name, on the clients' listener.
pub const HOME: &str = "/.oncegate/operations/";

/// Asked again while it waits or runs.
const SOON: Duration = Duration::from_secs(1);

/// The name after [`HOME`]; `None` where the request asks for something else.
pub fn asked(request: &Request<Incoming>) -> Option<String> {
    let path = normal_form(request.uri().path());
    path.strip_prefix(HOME).map(str::to_owned)
}

impl Gate {
    /// Tells how an operation stands.
    pub(super) async fn operation(
        &self,
        name: &str,
        request: Request<Incoming>,
        client: &Client,
        live: &Live,
    ) -> Result<Response<Body>, Refusal> {
        let (head, _) = request.into_parts();
        if !matches!(head.method, Method::GET | Method::HEAD) {
            let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, "It can be asked after, and nothing else.");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return Ok(response);
        }
        let Some((id, patience)) =
            OperationId::parse(name).and_then(|id| Some((id, self.whose(id, &head, client, live)?)))
        else {
            return Ok(problem(StatusCode::NOT_FOUND, "There is no such operation, or it is another caller's."));
        };
        let patience = prefer::wait(&head.headers).unwrap_or(Duration::ZERO).min(patience);
        // Until it is settled, or the time is up; and then as it stands.
        tokio::select! {
            _ = self.shared.waiters.wait(&self.shared, id.record, Instant::now() + patience) => {}
            () = self.shared.draining.cancelled() => {}
        }
        let found = self.shared.look_up(id.record).await.map_err(refusal_of)?;
        // It proves that it was given to this caller: what is not there any more was there.
        found.filter(is_there).map(|record| tell(id, record)).ok_or(Refusal::KeyExpired)
    }

    /// How long its caller may wait, where this request is its caller's: by the scope of any route that may have accepted it.
    fn whose(&self, id: OperationId, head: &request::Parts, client: &Client, live: &Live) -> Option<Duration> {
        let origin = origin(head, client, &live.config);
        let is_of = |rule| {
            let scope = caller::scope(&self.shared.salt, rule, head, origin.trusted);
            scope.is_ok_and(|scope| id.is_of(&scope, &self.shared.salt))
        };
        // A route may have been asynchronous once.
        let (later, now): (Vec<_>, Vec<_>) =
            live.config.routes.iter().partition(|route| route.delivery != Delivery::Sync);
        later.into_iter().chain(now).find(|route| is_of(&route.scope)).map(|route| route.wait_timeout)
    }
}

fn is_there(record: &Record) -> bool {
    record.accepted_at.is_some() && !record.past_ttl && !record.late && !matches!(record.state, State::Expired)
}

fn tell(id: OperationId, record: Record) -> Response<Body> {
    let mut told = json!({
        "id": id.to_string(),
        "state": record.state.name(),
        "attempts": record.attempt,
        "created_at": record.accepted_at.map(rfc3339::show),
    });
    let wait = match record.state {
        State::Completed(Completed { response, expires_at }) => {
            told["expires_at"] = expires_at.map(rfc3339::show).into();
            told["response"] = shown(&response);
            None
        }
        State::InFlight | State::Queued => Some(SOON),
        State::Dead | State::Expired | State::Retryable | State::Unknown => Some(ASK_AGAIN),
    };
    let mut response = json_response(StatusCode::OK, "application/json", &told);
    if let Some(wait) = wait {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RetryAfter::new(wait).seconds()));
    }
    response
}

/// The stored response. A body that was too large to keep is null.
fn shown(response: &StoredResponse) -> Value {
    let mut shown = json!({ "status": response.status.as_u16(), "headers": pairs(&response.headers) });
    match response.body.as_deref().map(|body| (body, str::from_utf8(body))) {
        Some((_, Ok(text))) => shown["body"] = text.into(),
        Some((body, Err(_))) => shown["body_base64"] = BASE64_STANDARD.encode(body).into(),
        None => shown["body"] = Value::Null,
    }
    if !response.trailers.is_empty() {
        shown["trailers"] = pairs(&response.trailers);
    }
    shown
}

/// Names and values in their order; bytes that are no UTF-8 are shown as U+FFFD.
fn pairs(fields: &HeaderMap) -> Value {
    let pair = |(name, value): (&http::HeaderName, &HeaderValue)| {
        json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())])
    };
    fields.iter().map(pair).collect()
}

/// What no problem of ours stands for (RFC 9457 section 4.2.1).
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
