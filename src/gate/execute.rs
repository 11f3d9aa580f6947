//! Executes a guarded request: takes its key and forwards it, accepts it for later, or answers by the key's record.
//!
//! HTTP requests, queued requests and messages all come here. How the request got its key is in `admit`, and the wait of a duplicate in
//! `wait`.

use std::sync::Arc;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::admit::GuardedRequest;
use super::claim::Claim;
use super::outcome::Outcome;
use super::response_context::ResponseContext;
use super::settle;
use super::start::AttemptTaker;
use super::work::WorkResult;
use super::worker::Gate;
use oncegate_domain::decision::Decision;
use oncegate_http::body::ConnectionGuards;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::OnClientGone;

impl Gate {
    /// Executes a guarded request, or finds out what became of its key. A wait for another request's attempt ends with the client of
    /// `ties`, and so does an attempt whose route stops the service then.
    pub(super) async fn execute(
        self: &Arc<Self>,
        guarded: Box<GuardedRequest>,
        context: &ResponseContext,
        ties: Option<&ConnectionGuards>,
    ) -> Outcome {
        // This instance may know the answer: it has completed the key, is executing it, or has its outcome still to store. Or
        // another instance has shared it.
        let cancels = guarded.route().options.on_client_gone == OnClientGone::Cancel;
        let _tie = ties.filter(|_| cancels).map(ConnectionGuards::attach);
        let result = match self.decide_by_known(&guarded).await {
            // Only the store can decide.
            Ok(Some(Decision::TakeOver(_)) | None) => self.work(guarded, context).await,
            Ok(Some(Decision::Answer(answer))) => self.answer(guarded, answer),
            Err(refusal) => WorkResult::refused(refusal),
        };
        let (mut outcome, ends_with_client) = match result {
            WorkResult::Ended(outcome) => (outcome, cancels),
            WorkResult::Waits(guarded, end) => {
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

    /// Does the request's own work in a task: hyper drops the caller's future when the client goes away, and an attempt must run
    /// on.
    async fn work(self: &Arc<Self>, guarded: Box<GuardedRequest>, context: &ResponseContext) -> WorkResult {
        let (gate, mut context) = (Arc::clone(self), context.clone());
        // Dropped with the caller's future, unless the work is done by then.
        let mut while_client_waits = None;
        if guarded.route().options.on_client_gone == OnClientGone::Cancel {
            let client_gone = context.client_gone.insert(CancellationToken::new());
            while_client_waits = Some(client_gone.clone().drop_guard());
        }
        // Boxed because a task's future is moved several times until it runs, and its room again with its result.
        let work = self.instance.tracker.spawn(Box::pin(async move {
            let result = if guarded.is_for_later() {
                Box::pin(gate.enqueue(guarded)).await
            } else {
                gate.reserve_and_forward(guarded, &context).await
            };
            // Noted here and not only where the response is rendered: a request whose client has left counts too.
            if let WorkResult::Ended(outcome) = &result {
                context.note_outcome(outcome);
            }
            result
        }));
        let result = work.await;
        while_client_waits.map(DropGuard::disarm);
        result.unwrap_or_else(|panic| {
            tracing::error!(%panic, "a guarded request panicked; its key is settled by what is known of the attempt");
            WorkResult::refused(Refusal::OutcomeUnknown(None))
        })
    }

    async fn reserve_and_forward(
        self: Arc<Self>,
        mut guarded: Box<GuardedRequest>,
        context: &ResponseContext,
    ) -> WorkResult {
        if guarded.is_provisional && !guarded.may_bypass() {
            // Not logged for each request: the start has said it.
            return WorkResult::refused(Refusal::StoreUnavailable);
        }
        let mut taker = AttemptTaker::new(&self.instance, &guarded, context);
        let checked = self.may_start(&guarded).and_then(|()| self.check_same_body(&guarded));
        let claim = self.claim(&mut taker, &mut guarded, checked.clone().map(drop)).await;
        let AttemptTaker { mut entry, reserving_since, .. } = taker;
        match (&claim, checked) {
            // A later attempt too: the first one was forgotten when it was released.
            (Ok(Claim::Mine(_)), _) => self.note_same_body(&guarded),
            (_, Ok(check)) => self.drop_same_body(&guarded, check),
            (_, Err(_)) => {}
        }
        let lease = match claim {
            Ok(Claim::Mine(lease)) => lease,
            Ok(Claim::Answered(answer)) => return self.answer(guarded, answer),
            Err(failure) => return Box::pin(self.without_reservation(guarded, failure, entry, context)).await,
        };
        match self.start_attempt(&guarded, &lease, &mut entry).await {
            Ok(()) => {
                guarded.count_start(lease.attempt == 1, &self.instance);
                WorkResult::Ended(self.forward(guarded, lease, entry, reserving_since, context).await)
            }
            // Another attempt has started on this instance, and the store does not have it yet.
            Err(answer) => {
                settle::persist(&self.instance, lease.release(guarded.route().options.ttl), entry).await;
                self.answer(guarded, answer)
            }
        }
    }
}
