//! Holds a message of any broker: executes it, and tries it again until the broker can be answered.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::disposition::{Disposition, HoldPolicy, decide, decide_unwritten};
use oncegate_engine::gate::Gate;
use oncegate_engine::gate::message::{Message, MessageOutcome, OutcomeReason};
use oncegate_machine::jitter::jittered;

/// A message that a broker has delivered.
pub(super) trait Delivery: Send + Sync {
    /// Returns how long it may be held now, and what becomes of it then.
    fn policy(&self) -> HoldPolicy;
    /// Notes how a try has ended.
    fn note_outcome(&self, _outcome: &MessageOutcome) {}
    /// Makes it a dead letter. Returns whether the broker has that.
    fn dead_letter(&self, reason: &OutcomeReason, tries: u32) -> impl Future<Output = bool> + Send;
    /// Leaves its place to others: its outcome may stay unknown for long.
    fn set_aside(&mut self);
    /// Logs that its first try has not settled it.
    fn log_held(&self, reason: &OutcomeReason);
}

/// The end of holding a message.
pub(super) enum HoldEnd {
    Done {
        tries: u32,
    },
    DeadLetter,
    /// It was held for as long as its broker allows.
    Overdue(OutcomeReason),
    /// It is left to another consumer, with the reason why its last try did not settle it.
    Left(Option<OutcomeReason>),
}

/// The means of a session to try messages.
pub(super) struct Holder<'a> {
    pub(super) gate: &'a Arc<Gate>,
    /// Limits the messages that are tried at once. Without it, all that are set aside could be executed at once when a
    /// person has resolved them.
    pub(super) turns: &'a Semaphore,
    /// Cancelled when nothing is tried again. A running attempt runs to its end.
    pub(super) leaving: &'a CancellationToken,
}

impl Holder<'_> {
    /// Tries a message until it is settled, overdue or left. `since` is the time from which it is held. A message that
    /// could not be decoded has its outcome.
    pub(super) async fn hold(
        &self,
        delivery: &mut impl Delivery,
        message: Result<Message, MessageOutcome>,
        since: Instant,
    ) -> HoldEnd {
        let mut tries = 0;
        loop {
            if self.leaving.is_cancelled() {
                return HoldEnd::Left(None);
            }
            let outcome = match &message {
                Ok(message) => {
                    let turn = tokio::select! {
                        biased;
                        () = self.leaving.cancelled() => return HoldEnd::Left(None),
                        turn = self.turns.acquire() => turn,
                    };
                    let _turn = turn.expect("the semaphore is never closed");
                    self.gate.execute_message(message.clone()).await
                }
                Err(outcome) => outcome.clone(),
            };
            delivery.note_outcome(&outcome);
            tries += 1;
            let policy = delivery.policy();
            let step = match decide(outcome, tries, since.elapsed(), policy) {
                Disposition::DeadLetter(reason) => match delivery.dead_letter(&reason, tries).await {
                    true => return HoldEnd::DeadLetter,
                    // The message is not lost: it is held until dead letters can be written again.
                    false => decide_unwritten(reason, tries, since.elapsed(), policy),
                },
                step => step,
            };
            let (pause, reason) = match step {
                Disposition::Acknowledge => return HoldEnd::Done { tries },
                Disposition::Requeue(reason) => return HoldEnd::Overdue(reason),
                Disposition::Hold(pause, reason) => (pause, reason),
                Disposition::SetAside(pause, reason) => {
                    delivery.set_aside();
                    (pause, reason)
                }
                Disposition::DeadLetter(_) => unreachable!("a message to be tried again is no dead letter"),
            };
            if tries == 1 {
                delivery.log_held(&reason);
            }
            tokio::select! {
                () = self.leaving.cancelled() => return HoldEnd::Left(Some(reason)),
                () = sleep(jittered(pause)) => {}
            }
        }
    }
}
