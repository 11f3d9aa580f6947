//! Hands a response on while it comes in: the first client, and duplicates that join it, read it before it is stored.
//!
//! A response that streams has a head which says `streaming`, and its end follows the settlement: all bytes may go
//! before it, and only the end tells a client that the response is stored. A response that is too large to store has
//! its status in the head. Its end follows the settlement too, and so do its last bytes where the client knows the
//! length. `forward` decides which responses come here, and `service_answer` judges and settles them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, response};
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::attempt_end;
use super::outcome::{StreamStatus, StreamedResponse, status_by_verdict};
use super::response_context::ResponseContext;
use super::service_answer::{ServiceAnswer, ServiceHead, SettledAnswer};
use super::settle::{RunningAttempt, Unsettled, persist};
use crate::instance::Instance;
use crate::instance::running_stream::RunningStream;
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::response::StoredResponse;
use oncegate_domain::state::{CompletedResponse, KeyState};
use oncegate_domain::unknown_cause::{BodyStop, UnknownCause};
use oncegate_http::body::body_budget::{BudgetShare, SMALL_BODY};
use oncegate_http::body::pooled::PooledBody;
use oncegate_http::body::stream::StreamWriter;
use oncegate_http::protocol::grpc::CallProtocol;
use oncegate_http::protocol::judged_body::JudgedBody;
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_http::protocol::stored_response::http_date;
use oncegate_http::protocol::{fields, grpc, stored_response};
use oncegate_settings::OnClientGone;
use oncegate_store::{ExtendDeadlineParams, SettleResult};
use oncegate_telemetry::logs::error_causes;

/// The time within which the slowest client must take some of a response that is not kept.
const STALL_MAX: Duration = Duration::from_secs(30);
/// The longest wait for room in the memory for responses, once a response is not small any more.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time before the stored deadline at which it moves: room for some tries while the store is slow.
const MOVE_AHEAD: Duration = Duration::from_secs(10);
/// The time by which the stored deadline is ahead after it has moved. A response that lasts costs one statement in
/// `MOVE_BY - MOVE_AHEAD`.
const MOVE_BY: Duration = Duration::from_secs(60);
/// The pause after a failed try to move the stored deadline.
const MOVE_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct BegunResponse {
    pub(super) head: ServiceHead,
    pub(super) announced_trailers: Option<HeaderValue>,
    pub(super) beginning: Bytes,
    /// The part of the memory for responses that the beginning takes.
    pub(super) share: BudgetShare,
    pub(super) rest: PooledBody,
    pub(super) length: Option<u64>,
    /// Whether it streams; else it is too large to store.
    pub(super) streams: bool,
    /// Whether its connection has no other responses, so that it may wait for room.
    pub(super) may_wait: bool,
}

struct HandOn {
    attempt: RunningAttempt,
    context: ResponseContext,
    status: StreamStatus,
    writer: StreamWriter,
    /// The length that the head names.
    length: Option<u64>,
    may_wait: bool,
}

/// Hands the response on in a task, which outlives its clients.
pub(super) fn hand_on(begun: BegunResponse, attempt: RunningAttempt, context: &ResponseContext) -> StreamedResponse {
    let BegunResponse { head, announced_trailers, beginning, share, rest, length, .. } = begun;
    let (route, parts, protocol) = (&attempt.route, &head.parts, head.protocol);
    let status = if begun.streams {
        StreamStatus::Open
    } else {
        let status = match protocol {
            // Its end is not read: it is somewhere within the last pieces of the body.
            CallProtocol::GrpcWeb => grpc::service_status(protocol, &without_body(parts)),
            CallProtocol::Grpc | CallProtocol::Http => grpc::status_in_head(protocol, parts.status, &parts.headers),
        };
        StreamStatus::InHead(head.directives.apply(route, status, &parts.headers, JudgedBody::TooLarge).verdict)
    };
    let writer = StreamWriter::new(share);
    let source = writer.source();
    let body = source.read_from(0, context.accepts_trailers).expect("a body that is kept has a beginning");
    if begun.streams {
        attempt.publish_stream(RunningStream {
            recipe: attempt.request().recipe.clone(),
            fingerprint: attempt.request().fingerprint,
            status: parts.status,
            headers: stored_response::to_storable(&without_body(parts), route).headers,
            announced_trailers: announced_trailers.clone(),
            body: source,
        });
    } else {
        writer.stop_keeping();
    }
    let response = StreamedResponse { head: parts.clone(), announced_trailers, length, status, body, tie: None };
    let (context, tracker) = (context.clone(), attempt.instance.tracker.clone());
    let length = length.filter(|_| !begun.streams);
    let work = HandOn { attempt, context, status, writer, length, may_wait: begun.may_wait };
    tracker.spawn(work.run(head, beginning, rest));
    response
}

fn without_body(head: &response::Parts) -> StoredResponse {
    StoredResponse { status: head.status, headers: head.headers.clone(), body: None, trailers: HeaderMap::new() }
}

impl HandOn {
    async fn run(self, head: ServiceHead, beginning: Bytes, rest: PooledBody) {
        let mut pieces = BodyPieces::new(&self, beginning);
        let read = self.read(&mut pieces, rest).await;
        let (attempt, received, last) = (&self.attempt, pieces.received, pieces.last.take());
        attempt.latency.record(attempt.began.elapsed());
        let trailers = match read {
            Ok(trailers) => trailers,
            Err(stop) => {
                let cause = UnknownCause::Stopped(stop, received);
                self.context.note(|state| state.cause = Some(cause));
                self.context.note_status(OncegateStatus::Unknown);
                let (instance, route) = (Arc::clone(&attempt.instance), Arc::clone(&attempt.route));
                let (lease, entry) = self.attempt.into_parts();
                attempt_end::log_unknown(
                    &lease,
                    &route,
                    cause,
                    "a response stopped within its body; the outcome is unknown",
                );
                // The writer is dropped after that, and its clients are cut.
                let _ = persist(&instance, attempt_end::unknown(lease, &route, cause, None), entry).await;
                return;
            }
        };
        let (status_in_head, protocol) = (head.parts.status, head.protocol);
        let answer = ServiceAnswer::new(head, self.writer.whole(), trailers);
        let fails_at_end = protocol == CallProtocol::Grpc && !answer.status.is_success();
        let answer = answer.settle(self.attempt, &self.context, |_| ()).await;
        let cut =
            |why: &str| tracing::warn!(record = %answer.own.id, status = %status_in_head, "a response is cut: {why}");
        let trailers = match self.status {
            StreamStatus::InHead(verdict) if verdict != answer.verdict || fails_at_end => {
                return cut("its end has another status than its head");
            }
            StreamStatus::InHead(_) => match &answer.settled {
                Ok(SettleResult::Done { .. }) | Err(Unsettled::Bypassed) => answer.response.trailers,
                Ok(SettleResult::Fenced(Some(record))) if answer.own.is_outcome_of(record) => answer.response.trailers,
                Ok(SettleResult::Fenced(_)) => return cut("its key was settled otherwise before its end"),
                Err(Unsettled::StoreFailed) => return cut("its outcome could not be stored before its end"),
            },
            StreamStatus::Attached | StreamStatus::Open => match trailers_of_stream(&answer) {
                Some((status, trailers)) => {
                    self.context.note_status(status);
                    if status == OncegateStatus::Unstored {
                        // An end alone says that the response is stored.
                        return self.writer.end_if_told(trailers);
                    }
                    trailers
                }
                None => return cut("its key was completed with another response before its end"),
            },
        };
        last.into_iter().for_each(|last| self.writer.push(last));
        self.writer.end(trailers);
    }

    /// Reads the response to its end, and returns its trailers.
    ///
    /// # Errors
    /// The reason why it stopped before.
    async fn read(&self, pieces: &mut BodyPieces<'_>, mut rest: PooledBody) -> Result<HeaderMap, BodyStop> {
        let RunningAttempt { instance, route, began, .. } = &self.attempt;
        let reservation = self.attempt.reservation();
        let end = *began + route.options.stream_timeout;
        // Without a row there is no stored deadline.
        let mut deadline = if reservation.is_some() { self.attempt.deadline } else { end };
        let cancels = route.options.on_client_gone == OnClientGone::Cancel;
        let mut moving = pin!(move_deadline(instance, reservation, deadline));
        let mut trailers = HeaderMap::new();
        loop {
            let mut next = pin!(self.next_frame(pieces.received, &mut rest));
            let frame = loop {
                tokio::select! {
                    biased;
                    // See docs/decisions/0003-act-within-the-deadline.md.
                    () = sleep_until(deadline.min(end)) => return Err(BodyStop::Timeout),
                    moved = &mut moving => {
                        deadline = moved;
                        moving.set(move_deadline(instance, reservation, deadline));
                    }
                    frame = &mut next => break frame?,
                    () = self.is_abandoned(), if cancels => return Err(BodyStop::Cancelled),
                }
            };
            match frame.map(http_body::Frame::into_data) {
                None => return Ok(trailers),
                Some(Ok(data)) => pieces.push(data),
                Some(Err(frame)) => trailers.extend(frame.into_trailers().unwrap_or_default()),
            }
        }
    }

    /// Waits until no client reads the response or waits for the key.
    async fn is_abandoned(&self) {
        loop {
            self.writer.is_abandoned().await;
            self.attempt.instance.wait_groups.unawaited(self.attempt.request().id).await;
            // A duplicate that waited may read by now.
            if !self.writer.has_readers() {
                return;
            }
        }
    }

    /// The next frame, once there is room for it.
    async fn next_frame(
        &self,
        received: u64,
        rest: &mut PooledBody,
    ) -> Result<Option<http_body::Frame<Bytes>>, BodyStop> {
        let RunningAttempt { instance, route, .. } = &self.attempt;
        let budget = &instance.response_bodies;
        if self.may_wait && self.writer.held() as u64 >= SMALL_BODY && budget.is_pressed() {
            budget.share().reserve_in_turn(SMALL_BODY, PATIENCE).await;
        }
        if self.writer.make_room(STALL_MAX).await {
            tracing::warn!(route = %route.name, received, "a client that does not read a large response is cut");
        }
        match timeout(route.options.stream_idle_timeout, rest.frame()).await {
            Ok(Some(Ok(frame))) => Ok(Some(frame)),
            Ok(None) => Ok(None),
            Ok(Some(Err(_))) => Err(BodyStop::Broken),
            Err(_) => Err(BodyStop::Timeout),
        }
    }
}

/// The pieces of the body on their way to the clients.
struct BodyPieces<'a> {
    work: &'a HandOn,
    received: u64,
    /// The piece that completes a body whose client knows its length. It waits for the settlement.
    last: Option<Bytes>,
}

impl<'a> BodyPieces<'a> {
    fn new(work: &'a HandOn, beginning: Bytes) -> Self {
        let mut pieces = Self { work, received: 0, last: None };
        pieces.push(beginning);
        pieces
    }

    fn push(&mut self, piece: Bytes) {
        self.received += piece.len() as u64;
        let HandOn { writer, attempt, length, .. } = self.work;
        if *length == Some(self.received) {
            self.last = Some(piece);
            return;
        }
        writer.push(piece);
        if self.received > attempt.route.options.max_response_body as u64 && writer.is_kept() {
            writer.stop_keeping();
        }
    }
}

/// The status that the end of a stream has, and its trailers. `None` if retries get another response.
fn trailers_of_stream(answer: &SettledAnswer) -> Option<(OncegateStatus, HeaderMap)> {
    let by_verdict = status_by_verdict(answer.verdict);
    let unstored = if by_verdict == OncegateStatus::Executed { OncegateStatus::Unstored } else { by_verdict };
    let (status, expires_at) = match &answer.settled {
        Err(Unsettled::Bypassed) => (OncegateStatus::Bypassed, None),
        Ok(SettleResult::Done { expires_at }) => (by_verdict, *expires_at),
        Ok(SettleResult::Fenced(Some(record))) => match &record.state {
            KeyState::Completed(CompletedResponse { expires_at, .. }) if answer.own.is_outcome_of(record) => {
                (by_verdict, *expires_at)
            }
            KeyState::Completed(completed) if completed.response.body.is_some() => return None,
            _ => (unstored, None),
        },
        Ok(SettleResult::Fenced(None)) | Err(Unsettled::StoreFailed) => (unstored, None),
    };
    let mut trailers = answer.response.trailers.clone();
    trailers.insert(fields::ONCEGATE_STATUS, status.value());
    if let Some(expires_at) = expires_at.filter(|_| status == OncegateStatus::Executed) {
        trailers.insert(fields::KEY_EXPIRES, http_date(expires_at));
    }
    Some((status, trailers))
}

/// Waits until the stored deadline is near, and moves it. Returns the new one, which the stored one is not before.
async fn move_deadline(instance: &Instance, reservation: Option<(RecordId, Token)>, deadline: Instant) -> Instant {
    let Some((id, token)) = reservation else { return std::future::pending().await };
    sleep(deadline.saturating_duration_since(Instant::now()).saturating_sub(MOVE_AHEAD)).await;
    loop {
        let moved = Instant::now() + MOVE_BY;
        match instance.store.extend_deadline(ExtendDeadlineParams { id, token, time_limit: MOVE_BY }).await {
            Ok(true) => return moved,
            Ok(false) => {
                tracing::warn!(record = %id, "the deadline of a response that is handed on cannot move: its key is not in flight any more");
                return std::future::pending().await;
            }
            Err(error) => {
                let cause = error_causes(&error);
                tracing::warn!(record = %id, cause, "{error}; the deadline of a response that is handed on has not moved");
                sleep(MOVE_PAUSE).await;
            }
        }
    }
}
