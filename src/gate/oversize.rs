//! Streams a response that is too large to store to the first client, and stores that it was executed. `forward` handles all other
//! responses.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, response};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, timeout, timeout_at};

use super::attempt_end;
use super::outcome::StreamedResponse;
use super::settle::{RunningAttempt, SettleOutcome, persist};
use crate::instance::Instance;
use oncegate_config::Route;
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::response::StoredResponse;
use oncegate_domain::response_policy::ResponseVerdict;
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_http::body::BodyPiece;
use oncegate_http::body::pooled::PooledBody;
use oncegate_http::protocol::directives::{ResponseJudgement, ServiceDirectives};
use oncegate_http::protocol::grpc::CallProtocol;
use oncegate_http::protocol::{grpc, stored_response};
use oncegate_store::ExtendDeadlineParams;
use oncegate_telemetry::logs::error_causes;

/// The number of frames between the service's pace and the client's: neither waits for each single frame.
const FRAMES_AHEAD: usize = 8;
/// The time after which a client that takes no frame counts as gone.
const STALL_MAX: Duration = Duration::from_secs(30);

/// The beginning of a response that is too large to store.
pub(super) struct OversizeResponse {
    pub(super) head: response::Parts,
    /// The protocol of its request: the status of a call comes at the end.
    pub(super) protocol: CallProtocol,
    pub(super) directives: ServiceDirectives,
    /// The service's `Trailer` field.
    pub(super) announced_trailers: Option<HeaderValue>,
    pub(super) beginning: Bytes,
    pub(super) rest: PooledBody,
    pub(super) length: Option<u64>,
}

/// Hands the response on as it comes in. Holds its last frame back until the attempt is settled: a client that has the whole
/// response can rely on its key.
pub(super) fn stream(
    instance: Arc<Instance>,
    oversize: OversizeResponse,
    attempt: RunningAttempt,
    route: &Arc<Route>,
    deadline: Instant,
) -> StreamedResponse {
    let OversizeResponse { head, protocol, directives, announced_trailers, length, .. } = &oversize;
    let status = match protocol {
        // Its end is not read: it is somewhere within the last pieces of the body.
        CallProtocol::GrpcWeb => grpc::status_at_end(*protocol, head.status, None),
        CallProtocol::Grpc | CallProtocol::Http => grpc::status_in_head(*protocol, head.status, &head.headers),
    };
    let verdict = directives.apply(route, status, &head.headers, None).verdict;
    let (frames, body) = mpsc::channel(FRAMES_AHEAD);
    let (announced_trailers, length) = (announced_trailers.clone(), *length);
    let response = StreamedResponse { head: head.clone(), announced_trailers, length, verdict, body };
    let route = Arc::clone(route);
    let tracker = instance.tracker.clone();
    tracker.spawn(async move { hand_on(&instance, oversize, attempt, verdict, &route, deadline, frames).await });
    response
}

async fn hand_on(
    instance: &Arc<Instance>,
    oversize: OversizeResponse,
    attempt: RunningAttempt,
    head_verdict: ResponseVerdict,
    route: &Route,
    deadline: Instant,
    client: mpsc::Sender<BodyPiece>,
) {
    let mut deadline = StreamDeadline {
        instance: Arc::clone(instance),
        reservation: attempt.reservation(),
        of_service: deadline,
        stored: deadline,
    };
    let OversizeResponse { head, protocol, directives, beginning, mut rest, .. } = oversize;
    let mut client = Some(client);
    let mut held = Frame::data(beginning);
    let broken_by = loop {
        match timeout_at(deadline.of_service, rest.frame()).await {
            Ok(Some(Ok(next))) => {
                let ready = std::mem::replace(&mut held, next);
                client = send(client, BodyPiece::Frame(ready), &mut deadline).await;
            }
            Ok(None) => break None,
            Ok(Some(Err(_))) => break Some(UnknownCause::Broken),
            Err(_) => break Some(UnknownCause::Timeout),
        }
    };
    let is_call = protocol == CallProtocol::Grpc;
    let status = grpc::status_at_end(protocol, head.status, held.trailers_ref());
    let directives = match held.trailers_ref() {
        Some(trailers) if is_call => directives.or(ServiceDirectives::parse(trailers)),
        Some(_) | None => directives,
    };
    let ResponseJudgement { verdict, ttl, unknown_cause } = directives.apply(route, status, &head.headers, None);
    // The head of a call counts as its success.
    let differs = verdict != head_verdict || is_call && !status.is_success();
    let response =
        StoredResponse { status: head.status, headers: head.headers, body: None, trailers: HeaderMap::new() };
    let storable = stored_response::to_storable(&response, route);
    let (lease, entry) = attempt.into_parts();
    if let Some(cause) = broken_by {
        tracing::warn!(route = %route.name, %cause, "the service broke off within a large response; the outcome is unknown");
        // The channel closes without an end, so the client's connection is cut.
        persist(instance, attempt_end::unknown(lease, route, cause), entry).await;
        return;
    }
    let settlement = match verdict {
        ResponseVerdict::Release => attempt_end::release(lease, route, ttl, Some((status, &response.headers))),
        ResponseVerdict::Store => attempt_end::complete(lease, route, ttl, storable),
        ResponseVerdict::Unknown => attempt_end::unknown(lease, route, unknown_cause),
    };
    let own = settlement.clone();
    // The response's head says that it is stored. A cut response is not taken for a whole one, and a retry gets the state of
    // that time.
    match persist(instance, settlement, entry).await {
        _ if differs => {
            tracing::warn!(record = %own.id, %status, "a large response is cut because its end has another status than its head");
            return;
        }
        SettleOutcome::Bypassed | SettleOutcome::Done { .. } => {}
        SettleOutcome::Fenced(Some(record)) if own.is_outcome_of(&record) => {}
        SettleOutcome::Fenced(_) => {
            tracing::warn!(record = %own.id, "a large response is cut because its key was settled otherwise before its end");
            return;
        }
        SettleOutcome::Unstored => {
            tracing::warn!(record = %own.id, "a large response is cut because its outcome could not be stored before its end");
            return;
        }
    }
    // The attempt has ended, so nothing expires while its client reads on.
    deadline.reservation = None;
    let client = send(client, BodyPiece::Frame(held), &mut deadline).await;
    send(client, BodyPiece::End, &mut deadline).await;
}

/// The deadline of an attempt whose response is handed on. The client's time is not the service's, so it moves while the
/// attempt waits for its client. The stored deadline moves first: past it, the store takes the attempt for ended.
struct StreamDeadline {
    instance: Arc<Instance>,
    /// `None` if the store may have no row of this attempt.
    reservation: Option<(RecordId, Token)>,
    /// The time by which the service must have sent the whole response.
    of_service: Instant,
    /// A time that the stored deadline is not before.
    stored: Instant,
}

impl StreamDeadline {
    /// The time for which the attempt may wait for its client now: at most [`STALL_MAX`], and zero if the store does not
    /// move its deadline.
    async fn extend(&mut self) -> Duration {
        let Some((id, token)) = self.reservation else { return STALL_MAX };
        if self.stored < self.of_service + STALL_MAX {
            // Twice as far as needed now, so that a slow client costs one statement each 30 seconds.
            let extended = self.of_service + 2 * STALL_MAX;
            let params = ExtendDeadlineParams { id, token, time_limit: extended - Instant::now() };
            // See docs/decisions/0003-act-within-the-deadline.md.
            match self.instance.store.extend_deadline(params).await {
                Ok(true) => self.stored = extended,
                Ok(false) => {
                    tracing::warn!(record = %id, "a large response is cut because its key is not in flight any more");
                }
                Err(error) => {
                    let cause = error_causes(&error);
                    tracing::warn!(record = %id, cause, "{error}; a large response is cut because its deadline cannot move");
                }
            }
        }
        STALL_MAX.min(self.stored - self.of_service)
    }

    fn add_client_time(&mut self, time: Duration) {
        let moved = self.of_service + time;
        self.of_service = if self.reservation.is_some() { moved.min(self.stored) } else { moved };
    }
}

/// Sends a piece to the client. `None` if the client is gone, has stalled or is cut: the attempt reads the rest of the
/// response all the same, to learn how it ends.
async fn send(
    client: Option<mpsc::Sender<BodyPiece>>,
    piece: BodyPiece,
    deadline: &mut StreamDeadline,
) -> Option<mpsc::Sender<BodyPiece>> {
    let client = client?;
    let piece = match client.try_send(piece) {
        Ok(()) => return Some(client),
        Err(TrySendError::Closed(_)) => return None,
        Err(TrySendError::Full(piece)) => piece,
    };
    let waiting_since = Instant::now();
    let client_time = deadline.extend().await;
    let sent = timeout(client_time, client.send(piece)).await;
    deadline.add_client_time(waiting_since.elapsed());
    matches!(sent, Ok(Ok(()))).then_some(client)
}
