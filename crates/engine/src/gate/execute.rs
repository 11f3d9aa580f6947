//! Executes a guarded request: takes its key and forwards it, accepts it for later, or answers by the key's record.
//!
//! HTTP requests, queued requests and messages all come here. How the request got its key is in `admit`, and the wait
//! of a duplicate in `wait`.

use std::sync::Arc;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::admit::GuardedRequest;
use super::claim::{AttemptTaker, Unclaimed};
use super::outcome::Outcome;
use super::progress::{AwaitedEnd, RequestProgress};
use super::response_context::ResponseContext;
use super::settle;
use super::state::Gate;
use oncegate_domain::decision::Decision;
use oncegate_http::body::ConnectionGuards;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_settings::OnClientGone;

impl Gate {
    /// Executes a guarded request, or finds out what became of its key. A wait for another request's attempt ends with
    /// the client of `ties`, and so does an attempt whose route stops the service then.
    pub(super) async fn execute(
        self: &Arc<Self>,
        guarded: Box<GuardedRequest>,
        context: &ResponseContext,
        ties: Option<&ConnectionGuards>,
    ) -> Outcome {
        // This instance may know the answer: it has completed the key, is executing it, or has its outcome still to
        // store. Or another instance has shared it.
        let cancels = guarded.route().options.on_client_gone == OnClientGone::Cancel;
        let _tie = ties.filter(|_| cancels).map(ConnectionGuards::attach);
        let progress = match self.decide_by_known(&guarded).await {
            // Only the store can decide. The work is a task, because hyper drops the caller's future when the client
            // goes away, and an attempt must run on.
            Ok(Some(Decision::TakeOver(_)) | None) => {
                let (gate, mut context) = (Arc::clone(self), context.clone());
                // Dropped with the caller's future, unless the work is done by then.
                let while_client_waits =
                    cancels.then(|| context.client_gone.insert(CancellationToken::new()).clone().drop_guard());
                // Boxed because a task's future is moved several times until it runs, and its room again with its
                // result.
                let work = self.instance.tracker.spawn(Box::pin(async move {
                    let progress = match guarded.is_for_later() {
                        true => Box::pin(gate.enqueue(guarded)).await,
                        false => gate.reserve_and_forward(guarded, &context).await,
                    };
                    // Noted here and not only where the response is rendered: a request whose client has left counts
                    // too.
                    if let RequestProgress::Ended(outcome) = &progress {
                        context.note_outcome(outcome);
                    }
                    progress
                }));
                let progress = work.await;
                while_client_waits.map(DropGuard::disarm);
                progress.unwrap_or_else(|panic| {
                    tracing::error!(%panic, "a guarded request panicked; its key is settled by what is known of the attempt");
                    RequestProgress::refused(Refusal::OutcomeUnknown(None))
                })
            }
            Ok(Some(Decision::Answer(answer))) => RequestProgress::answered(guarded, answer, &self.instance),
            Err(refusal) => RequestProgress::refused(refusal),
        };
        let (mut outcome, ends_with_client) = match progress {
            RequestProgress::Ended(outcome) => (outcome, cancels),
            RequestProgress::Waits(guarded, end) => {
                let _tie = ties.map(ConnectionGuards::attach);
                let outcome = Box::pin(self.wait(&guarded, end, context)).await;
                context.note_outcome(&outcome);
                (outcome, true)
            }
        };
        if let Some(ties) = ties.filter(|_| ends_with_client) {
            outcome.tie_to(ties);
        }
        outcome
    }

    async fn reserve_and_forward(
        self: Arc<Self>,
        mut guarded: Box<GuardedRequest>,
        context: &ResponseContext,
    ) -> RequestProgress {
        if guarded.is_provisional && !guarded.may_bypass() {
            // Not logged for each request: the start has said it.
            return RequestProgress::refused(Refusal::StoreUnavailable);
        }
        let mut taker = AttemptTaker::new(&self.instance, &guarded, context);
        let may_start = self.may_start(&guarded);
        let claimed = self.claim(&mut taker, &mut guarded, may_start, context).await;
        let AttemptTaker { mut entry, reserving_since, .. } = taker;
        let lease = match claimed {
            Ok(lease) => lease,
            Err(Unclaimed::Answered(answer)) => return RequestProgress::answered(guarded, answer, &self.instance),
            Err(unclaimed) => return Box::pin(self.without_reservation(guarded, unclaimed, entry, context)).await,
        };
        match self.start_attempt(&guarded, &lease, &mut entry).await {
            Ok(()) => {
                guarded.count_start(lease.attempt == 1, &self.instance);
                let (id, kept) = (guarded.reserve_request.id, guarded.copy_if_kept(&self.instance));
                let outcome = self.forward(guarded, lease, entry, Some(reserving_since), context).await;
                match kept {
                    Some(kept) if outcome.oncegate_status() == OncegateStatus::Unknown => {
                        self.instance.delivery_due.notify_one();
                        RequestProgress::Waits(kept, AwaitedEnd::Repetition { is_own: true })
                    }
                    Some(_) => {
                        self.instance.delivered.lock().push(id);
                        RequestProgress::Ended(outcome)
                    }
                    None => RequestProgress::Ended(outcome),
                }
            }
            // Another attempt has started on this instance, and the store does not have it yet.
            Err(answer) => {
                let _ = settle::persist(&self.instance, lease.release(guarded.route().options.ttl), entry).await;
                RequestProgress::answered(guarded, answer, &self.instance)
            }
        }
    }
}
