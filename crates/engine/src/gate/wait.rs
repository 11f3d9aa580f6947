//! The wait of a duplicate for the attempt that is running, and the duplicate's outcome if the wait is over first.
//!
//! A request's own work is a task that runs on when the client leaves; a wait is not. It ends with its client, and
//! frees the client's connection and the request's share of the memory for bodies.

use std::time::Duration;

use http::{HeaderMap, Response};
use tokio::time::{Instant, sleep};

use super::admit::GuardedRequest;
use super::outcome::{Outcome, StreamStatus, StreamedResponse};
use super::progress::AwaitedEnd;
use super::response_context::ResponseContext;
use super::state::Gate;
use oncegate_domain::decision::{AcceptedProgress, Decision, INQUIRY_PERIOD_MAX, KeyAnswer, KeyRefusal};
use oncegate_domain::operation::OperationId;
use oncegate_domain::state::CompletedResponse;
use oncegate_http::protocol::refusal::{Refusal, RetryAfter};
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_http::protocol::{event_stream, prefer};
use oncegate_settings::{InFlightPolicy, Route};

/// The pauses between two looks at a key that is repeated: a client waits for it.
const REPETITION_PAUSE: Duration = Duration::from_millis(100);
const REPETITION_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The end of a duplicate's wait, by its route and its client: `Prefer: wait=N` (RFC 7240 section 4.3) counts in every
/// `in_flight` mode, up to the route's `wait_timeout`. A request for a stream of events waits until there is one to
/// join.
fn wait_deadline(route: &Route, headers: &HeaderMap) -> Instant {
    let default = match route.options.in_flight {
        InFlightPolicy::Wait => route.options.wait_timeout,
        InFlightPolicy::Accepted if event_stream::is_accepted(headers) => route.options.wait_timeout,
        InFlightPolicy::Accepted | InFlightPolicy::Conflict => Duration::ZERO,
    };
    Instant::now() + prefer::wait_preference(headers).map_or(default, |wait| wait.min(route.options.wait_timeout))
}

/// The outcome while the attempt is still running: 202 where the route says so, else a refusal.
fn still_running(route: &Route, retry_after: Duration) -> Outcome {
    let retry_after = RetryAfter::new(retry_after);
    match route.options.in_flight {
        InFlightPolicy::Accepted => Outcome::InFlight(retry_after),
        InFlightPolicy::Conflict | InFlightPolicy::Wait => Outcome::Refused(Refusal::InFlight(retry_after)),
    }
}

impl Gate {
    /// Waits as long as the route and the client say, and not at all if they say so.
    pub(super) async fn wait(&self, guarded: &GuardedRequest, end: AwaitedEnd, context: &ResponseContext) -> Outcome {
        match end {
            AwaitedEnd::Attempt(retry_after) => {
                // Counted if the client leaves before the wait is over.
                context.note_status(OncegateStatus::InFlight);
                self.join(guarded, retry_after, context).await
            }
            AwaitedEnd::Delivery(progress) => {
                context.note_status(progress.into());
                self.accepted(guarded, progress).await
            }
            AwaitedEnd::Repetition { is_own } => {
                context.note_status(OncegateStatus::Unknown);
                match self.repeated(guarded).await {
                    Ok(completed) if is_own => Outcome::ExecutedElsewhere(completed),
                    Ok(completed) => Outcome::Replayed(completed),
                    Err(refusal) => Outcome::Refused(refusal),
                }
            }
            AwaitedEnd::OwnDelivery(retry_after) => {
                context.note_status(OncegateStatus::Queued);
                match self.accepted(guarded, AcceptedProgress::Pending(retry_after)).await {
                    // The first answer to this request, whoever has executed it.
                    Outcome::Replayed(completed) => Outcome::ExecutedElsewhere(completed),
                    outcome => outcome,
                }
            }
        }
    }

    /// Waits as long as the client may, until the repetitions at the vendor have told the outcome.
    async fn repeated(&self, guarded: &GuardedRequest) -> Result<CompletedResponse, Refusal> {
        let timeout = guarded.route().options.wait_timeout;
        let wait = prefer::wait_preference(&guarded.head.headers).map_or(timeout, |wait| wait.min(timeout));
        let (deadline, mut pause) = (Instant::now() + wait, REPETITION_PAUSE);
        loop {
            let refusal = match self.decide_by_end(guarded, deadline).await {
                Ok(Some(Decision::Answer(KeyAnswer::Replay(completed)))) => return Ok(completed),
                Ok(Some(Decision::Answer(KeyAnswer::Refuse(refusal)))) => refusal.into(),
                Ok(_) => Refusal::OutcomeUnknown(Some(RetryAfter::new(INQUIRY_PERIOD_MAX))),
                Err(refusal) => refusal,
            };
            let is_open = matches!(refusal, Refusal::OutcomeUnknown(_)) && !self.instance.draining.is_cancelled();
            if !is_open || Instant::now() + pause >= deadline {
                return Err(refusal);
            }
            sleep(pause).await;
            pause = (2 * pause).min(REPETITION_PAUSE_MAX);
        }
    }

    /// Joins the response of the attempt that is running if that streams, and waits for its end if not. A waiting
    /// request never becomes an attempt: if the first attempt is released, or the wait is over, the client has to send
    /// the request again.
    async fn join(&self, guarded: &GuardedRequest, retry_after: Duration, context: &ResponseContext) -> Outcome {
        let deadline = wait_deadline(guarded.route(), &guarded.head.headers);
        let decided = tokio::select! {
            biased;
            decided = self.decide_by_end(guarded, deadline) => decided,
            streamed = self.attach(guarded, context), if context.takes_streams => return Outcome::Streamed(streamed),
        };
        let decision = match decided {
            Ok(Some(decision)) => decision,
            Ok(None) => return still_running(guarded.route(), retry_after),
            Err(refusal) => return Outcome::Refused(refusal),
        };
        match decision.answer_without_take_over(&guarded.rules()) {
            KeyAnswer::Replay(completed) => Outcome::Replayed(completed),
            // The next repetition may tell.
            KeyAnswer::Refuse(KeyRefusal::OutcomeUnknown(Some(_))) if guarded.is_repeated() => {
                self.repeated(guarded).await.map_or_else(Outcome::Refused, Outcome::Replayed)
            }
            KeyAnswer::Refuse(refusal) => Outcome::Refused(refusal.into()),
            KeyAnswer::Accepted(progress) => self.accepted(guarded, progress).await,
            KeyAnswer::Join(retry_after) => still_running(guarded.route(), retry_after),
        }
    }

    /// Joins the response of the key's attempt on this instance, from its beginning or from the event that the client
    /// has not received. Never ends if the response does not stream, is not kept, or answers another request. A
    /// response of JSON-RPC carries the `id` of the first request: its duplicates wait for the replay, which has their
    /// own.
    async fn attach(&self, guarded: &GuardedRequest, context: &ResponseContext) -> StreamedResponse {
        if context.rpc_id.is_some() {
            return std::future::pending().await;
        }
        let stream = self.instance.wait_groups.stream(&self.instance, guarded.reserve_request.id).await;
        let begin = || {
            let unread = match &context.last_event_id {
                Some(_) => context.unread_events(&stream.headers, &stream.body.kept()?),
                None => 0,
            };
            let body = stream.body.read_from(unread, context.accepts_trailers)?;
            Some(body.without_trailers(guarded.route().options.replay.drop_headers.clone()))
        };
        let Some(body) = Some(()).filter(|()| stream.answers(&guarded.reserve_request)).and_then(|()| begin()) else {
            return std::future::pending().await;
        };
        let (mut head, ()) = Response::new(()).into_parts();
        (head.status, head.headers) = (stream.status, stream.headers.clone());
        let announced_trailers = stream.announced_trailers.clone();
        StreamedResponse { head, announced_trailers, length: None, status: StreamStatus::Attached, body, tie: None }
    }

    /// The outcome of an accepted request: its operation, or the response if it comes within the time that the client
    /// prefers to wait.
    async fn accepted(&self, guarded: &GuardedRequest, progress: AcceptedProgress) -> Outcome {
        let (id, route) = (guarded.reserve_request.id, guarded.route());
        let wait =
            prefer::wait_preference(&guarded.head.headers).unwrap_or(Duration::ZERO).min(route.options.wait_timeout);
        let operation = OperationId::derive(id, &guarded.reserve_request.scope, guarded.active.salt.current().salt);
        match self.decide_by_end(guarded, Instant::now() + wait).await {
            Err(refusal) => Outcome::Refused(refusal),
            Ok(Some(Decision::Answer(KeyAnswer::Replay(completed)))) => Outcome::Replayed(completed),
            Ok(Some(Decision::Answer(KeyAnswer::Refuse(refusal)))) => Outcome::Refused(refusal.into()),
            Ok(Some(Decision::Answer(KeyAnswer::Accepted(progress)))) => Outcome::Accepted { operation, progress },
            Ok(Some(Decision::Answer(KeyAnswer::Join(_)) | Decision::TakeOver(_)) | None) => {
                Outcome::Accepted { operation, progress }
            }
        }
    }

    /// Waits until the key's attempt is settled, and decides by what became of it. `None` if it is still running at the
    /// deadline, if a drain has begun, or if the record is gone.
    ///
    /// # Errors
    /// As for [`Self::decide_by_newest`].
    pub(super) async fn decide_by_end(
        &self,
        guarded: &GuardedRequest,
        deadline: Instant,
    ) -> Result<Option<Decision>, Refusal> {
        let settled = tokio::select! {
            biased;
            settled = self.instance.wait_groups.wait(&self.instance, guarded.reserve_request.id, deadline) => settled,
            () = self.instance.draining.cancelled() => None,
        };
        match settled {
            Some(settled) => self.decide_by_newest(settled, guarded).await.map(Some),
            None => Ok(None),
        }
    }
}
