//! Accepts a batch: its parts are accepted for delivery one by one, and its sender gets one answer.

use std::sync::Arc;

use futures_util::future::join_all;

use super::admit::GuardedRequest;
use super::outcome::Outcome;
use super::state::Gate;
use oncegate_http::protocol::refusal::Refusal;

impl Gate {
    /// Accepts the parts of a batch, at the same time, so that the store takes them together. A part that was accepted
    /// before is not accepted again. Returns their number once each is durable.
    ///
    /// # Errors
    /// The refusal of a part: one after which the sender sends the batch again, if there is such a one.
    pub(super) async fn accept_batch(self: &Arc<Self>, parts: Vec<GuardedRequest>) -> Result<usize, Refusal> {
        let accepted = parts.into_iter().map(async |part| {
            let context = part.context_without_client(None, &self.instance.observability);
            let outcome = self.execute(Box::new(part), &context, None).await;
            let refusal = match outcome {
                // It was executed, and the sender reads no response.
                Outcome::Refused(Refusal::ResponseNotKept) => None,
                Outcome::Refused(refusal) => Some(refusal),
                // An attempt from before the route split batches, which may end without an execution.
                Outcome::InFlight(retry_after) => Some(Refusal::InFlight(retry_after)),
                _ => None,
            };
            refusal.inspect(|refusal| context.with_trace(|trace| trace.note_refusal(refusal)))
        });
        let refusals = join_all(accepted).await;
        let accepted = refusals.len();
        refusals.into_iter().flatten().max_by_key(Refusal::invites_retry).map_or(Ok(accepted), Err)
    }
}
