//! An outcome as an HTTP response.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderValue, LOCATION, RETRY_AFTER, TRAILER};
use http::{Response, StatusCode};

use super::admit::fingerprinting::Fingerprinting;
use super::outcome::{Outcome, StreamStatus, StreamedResponse};
use super::response_context::ResponseContext;
use oncegate_domain::decision::AcceptedProgress;
use oncegate_domain::jsonrpc::RpcId;
use oncegate_domain::operation::OperationId;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::response_policy::ResponseVerdict;
use oncegate_domain::state::CompletedResponse;
use oncegate_http::body::Body;
use oncegate_http::protocol::refusal::{OPERATIONS, Refusal, RetryAfter};
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_http::protocol::stored_response::http_date;
use oncegate_http::protocol::{fields, grpc, jsonrpc, prefer};

/// The size from which a body is large: short events take up to 0.05 µs for each byte.
const LARGE_BODY: usize = 8 * 1024;

impl Outcome {
    /// Gives a response from the store the id of the JSON-RPC call that it answers now: a large one on another thread.
    pub(super) async fn with_rpc_id(mut self, id: RpcId, fingerprinting: &Fingerprinting) -> Self {
        let (Self::ExecutedElsewhere(completed) | Self::Replayed(completed)) = &mut self else { return self };
        let mut response = Arc::clone(&completed.response);
        let replace = move || {
            jsonrpc::set_id(Arc::make_mut(&mut response), &id);
            response
        };
        let length = completed.response.body.as_ref().map_or(0, Bytes::len);
        completed.response = if length < LARGE_BODY { replace() } else { fingerprinting.run_on_thread(replace).await };
        self
    }

    /// Renders the outcome for the request that `context` belongs to.
    pub(super) fn render(self, context: &ResponseContext, problem_base: &str) -> Response<Body> {
        let status = self.oncegate_status();
        self.render_as(status, context, problem_base)
    }

    fn render_as(self, status: OncegateStatus, context: &ResponseContext, problem_base: &str) -> Response<Body> {
        let (is_own, is_replay) = match &self {
            Self::Accepted { .. } | Self::InFlight(_) | Self::Refused(_) => (true, false),
            // The store's, which another page may have got before.
            Self::ExecutedElsewhere(_) | Self::Replayed(_) => (true, true),
            Self::Streamed(streamed) if streamed.status == StreamStatus::Attached => (true, true),
            Self::Answered { .. } | Self::Bypassed(_) | Self::Streamed(_) => (false, false),
        };
        let mut response = match self {
            // Whatever the attempt came to: it was unguarded, and no more is promised than that it was forwarded.
            Self::Bypassed(outcome) => return outcome.render_as(status, context, problem_base),
            // A gRPC client has no other way to ask again than the same call, and one of JSON-RPC reads no 202.
            Self::InFlight(retry_after) if context.is_call || context.rpc_id.is_some() => {
                context.refuse(&Refusal::InFlight(retry_after), problem_base)
            }
            Self::Accepted { progress, .. } if context.is_call || context.rpc_id.is_some() => {
                context.refuse(&accepted_refusal(progress), problem_base)
            }
            Self::Accepted { operation, progress } => {
                accepted(operation, progress.retry_after().map(RetryAfter::new), context)
            }
            Self::ExecutedElsewhere(completed) => stored(completed, context),
            Self::Answered { response, verdict, expires_at, .. } => {
                let mut response = live(response, context);
                if let Some(expires_at) = expires_at.filter(|_| verdict == ResponseVerdict::Store) {
                    response.headers_mut().insert(fields::KEY_EXPIRES, http_date(expires_at));
                }
                response
            }
            Self::InFlight(retry_after) => pending("{\"state\":\"in_flight\"}".to_owned(), Some(retry_after)),
            Self::Refused(refusal) => context.refuse(&refusal, problem_base),
            Self::Replayed(completed) => {
                let mut response = stored(completed, context);
                response.headers_mut().insert(fields::IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
                response
            }
            Self::Streamed(response) => streamed(response, context),
        };
        context.add_fields(&mut response, status);
        if is_own {
            context.echo_fields(response.headers_mut(), is_replay);
            context.add_cors_fields(response.headers_mut());
        }
        response
    }
}

/// The refusal that a client gets which has no other way to ask for an accepted operation than the same call.
fn accepted_refusal(progress: AcceptedProgress) -> Refusal {
    match progress {
        AcceptedProgress::Pending(wait) => Refusal::InFlight(RetryAfter::new(wait)),
        AcceptedProgress::Unknown(wait) => Refusal::OutcomeUnknown(wait.map(RetryAfter::new)),
        AcceptedProgress::Dead => Refusal::OutcomeUnknown(None),
    }
}

/// The response to the request whose attempt brought it.
fn live(response: StoredResponse, context: &ResponseContext) -> Response<Body> {
    let StoredResponse { status, mut headers, body, trailers } = response;
    let body = context.body(body.unwrap_or_default(), trailers, &mut headers);
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// A response from the store: the status, fields, body and trailers of the attempt that was completed.
fn stored(completed: CompletedResponse, context: &ResponseContext) -> Response<Body> {
    let CompletedResponse { response: stored, expires_at } = completed;
    let mut stored = Arc::unwrap_or_clone(stored);
    if let Some(body) = &mut stored.body {
        let unread = context.unread_events(&stored.headers, body);
        if unread > 0 {
            *body = body.slice(unread..);
            fields::remove(&mut stored.headers, |name| *name == fields::CONTENT_DIGEST);
        }
    }
    if context.is_call {
        grpc::move_status_behind_message(&mut stored);
    }
    let mut response = live(stored, context);
    let headers = response.headers_mut();
    if let Some(date) = headers.get(DATE).cloned() {
        fields::remove(headers, |name| *name == DATE);
        headers.insert(fields::ORIGINAL_DATE, date);
    }
    if let Some(expires_at) = expires_at {
        headers.insert(fields::KEY_EXPIRES, http_date(expires_at));
    }
    response
}

fn streamed(streamed: StreamedResponse, context: &ResponseContext) -> Response<Body> {
    let tells_at_end = !matches!(streamed.status, StreamStatus::InHead(_));
    let mut response = Response::new(Body::Shared(streamed.body, streamed.tie));
    *response.status_mut() = streamed.head.status;
    let headers = response.headers_mut();
    *headers = streamed.head.headers;
    // With a length, a client would take the last byte for the end.
    if let Some(length) = streamed.length.filter(|_| !tells_at_end) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    if context.accepts_trailers {
        headers.extend(streamed.announced_trailers.map(|announced| (TRAILER, announced)));
        if tells_at_end {
            for name in [fields::ONCEGATE_STATUS, fields::KEY_EXPIRES] {
                headers.append(TRAILER, HeaderValue::from(name));
            }
        }
    }
    response
}

/// The route's status, mostly 202, and where to ask for the operation's state.
fn accepted(operation: OperationId, retry_after: Option<RetryAfter>, context: &ResponseContext) -> Response<Body> {
    let mut response = pending(serde_json::json!({ "id": operation.to_string() }).to_string(), retry_after);
    *response.status_mut() = context.accepted;
    let headers = response.headers_mut();
    let location = format!("{OPERATIONS}{operation}");
    headers.insert(LOCATION, HeaderValue::from_str(&location).expect("an operation's path is plain ASCII"));
    if context.prefers_async {
        headers.insert(prefer::APPLIED, HeaderValue::from_static(prefer::RESPOND_ASYNC));
    }
    response
}

/// The answer to a batch, of which each part is accepted.
pub(super) fn accepted_batch(parts: usize, context: &ResponseContext) -> Response<Body> {
    let mut response = pending(serde_json::json!({ "accepted": parts }).to_string(), None);
    *response.status_mut() = context.accepted;
    context.add_fields(&mut response, OncegateStatus::Queued);
    context.add_cors_fields(response.headers_mut());
    response
}

fn pending(document: String, retry_after: Option<RetryAfter>) -> Response<Body> {
    let mut response = Response::new(Body::whole(document));
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(wait) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(wait.seconds()));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Poll, Waker};

    use http::HeaderMap;

    use super::*;
    use oncegate_domain::jsonrpc::RpcMessage;

    #[tokio::test]
    async fn a_large_response_gets_the_id_of_its_request_on_another_thread() {
        let fingerprinting = Fingerprinting::default();
        let RpcMessage::Call(call) = RpcMessage::read(br#"{"id":8,"method":"a"}"#, false, Vec::new) else { panic!() };
        for (media_type, blanks, is_small) in [
            ("application/json", 10, true),
            ("application/json", LARGE_BODY, false),
            ("text/event-stream", 10, true),
            ("text/event-stream", LARGE_BODY, false),
        ] {
            let body = |id: u32| {
                let document = format!("{}{{\"id\":{id},\"result\":1}}", " ".repeat(blanks));
                if media_type == "text/event-stream" { format!("data:{document}\n\n") } else { document }
            };
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(media_type))]);
            let (status, trailers) = (StatusCode::OK, HeaderMap::new());
            let response = StoredResponse { status, headers, body: Some(body(7).into()), trailers };
            let replayed = Outcome::Replayed(CompletedResponse { response: Arc::new(response), expires_at: None });
            // Until the thread is free, a replacement on it cannot be there at the first poll.
            let (free, freed) = mpsc::channel::<()>();
            let mut context = Context::from_waker(Waker::noop());
            let mut occupied = pin!(fingerprinting.run_on_thread(move || freed.recv()));
            assert!(occupied.as_mut().poll(&mut context).is_pending());
            let mut replacing = pin!(replayed.with_rpc_id(call.id.clone(), &fingerprinting));
            let first = replacing.as_mut().poll(&mut context);
            drop(free);
            occupied.await.unwrap_err();
            assert_eq!(first.is_ready(), is_small, "{media_type} {blanks}");
            let outcome = match first {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => replacing.await,
            };
            assert_eq!(outcome.stored_body().map(|body| &**body), Some(body(8).as_bytes()), "{media_type} {blanks}");
        }
    }
}
