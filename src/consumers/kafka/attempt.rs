//! Executes one record: holds it as long as that takes, and reports how it ends.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{Semaphore, mpsc};

use super::assignment::{RecordPlace, StartedRecord};
use super::client::{KafkaClient, KafkaRecord};
use crate::consumers::decode::decode_message;
use crate::consumers::disposition::{Disposition, HoldPolicy, Overdue, decide, doubled_pause};
use crate::gate::Gate;
use crate::gate::message::{MessageOutcome, OutcomeReason};
use crate::instance::consumer_states::ConsumerState;
use oncegate_machine::jitter::jittered;
use oncegate_settings::{Consumer, KafkaSource};

/// The values that all records of a session share.
pub(super) struct RecordContext {
    pub(super) consumer: Arc<Consumer>,
    pub(super) source: KafkaSource,
    /// The state of the consumer, for operators.
    pub(super) state: Arc<ConsumerState>,
    pub(super) gate: Arc<Gate>,
    pub(super) client: Arc<dyn KafkaClient>,
    /// Limits the records that are tried at once. Without it, all that are parked could be executed at once when a person has resolved
    /// them.
    pub(super) turns: Semaphore,
    pub(super) reports: mpsc::UnboundedSender<(RecordPlace, RecordReport)>,
}

/// What a record's task tells the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordReport {
    /// Its outcome is unknown: it waits beside the others.
    Parked,
    /// Its outcome is stored, or it is a dead letter: its offset counts.
    Settled,
    /// Its partition was taken before it was settled.
    GivenBack,
}

/// Settles a record again and again until that ends without a panic. A panic is a bug, and a record of which nothing is reported
/// would hold back the committed offset for ever.
async fn until_it_ends<F: Future<Output = RecordReport>>(
    started: &StartedRecord,
    settle: impl Fn() -> F,
) -> RecordReport {
    let mut panics = 0;
    loop {
        // What a panic leaves behind is dropped with the future; the gate's own state is that of a client that went away.
        if let Ok(report) = AssertUnwindSafe(settle()).catch_unwind().await {
            return report;
        }
        panics += 1;
        tracing::error!(partition = %started.id.partition, offset = started.id.offset, panics,
            "the task of a record panicked; the record is tried again");
        tokio::select! {
            () = started.leaving.cancelled() => return RecordReport::GivenBack,
            () = tokio::time::sleep(jittered(doubled_pause(panics))) => {}
        }
    }
}

const RECORD_TOO_LARGE: &str =
    "The record or its batch is too large to be held in memory. It was not executed, and is still in its topic.";

/// The pause before a dead letter that could not be written is written again.
const DEAD_LETTER_PAUSE: Duration = Duration::from_secs(1);

impl RecordContext {
    /// Executes a record until it is settled or its partition is taken. An attempt that runs when the partition is taken runs to its end.
    pub(super) async fn handle(self: Arc<Self>, started: StartedRecord) {
        let report = until_it_ends(&started, || self.settle(&started)).await;
        let _ = self.reports.send((started.id, report));
    }

    async fn settle(&self, started: &StartedRecord) -> RecordReport {
        let StartedRecord { record, read_at, id, leaving, settled_up_to } = started;
        let message = match record.is_unread {
            true => Err(MessageOutcome::Refused(OutcomeReason::new("record-too-large", RECORD_TOO_LARGE))),
            false => decode_message(&self.consumer, record, record.value.clone(), self.client.broker())
                .map_err(MessageOutcome::from),
        };
        let (mut tries, mut is_parked) = (0, false);
        loop {
            let outcome = match &message {
                Ok(message) => {
                    let turn = tokio::select! {
                        biased;
                        () = leaving.cancelled() => return RecordReport::GivenBack,
                        turn = self.turns.acquire() => turn,
                    };
                    let _turn = turn.expect("the semaphore is never closed");
                    self.gate.execute_message(message.clone()).await
                }
                Err(outcome) => outcome.clone(),
            };
            tries += 1;
            // A record that alone fails must not hold back the committed offset until the keys behind it have expired. While all fail, the
            // service is away, and nothing is given up.
            let is_passed = settled_up_to.load(Ordering::Relaxed) > record.offset;
            let again = if is_passed { Overdue::DeadLetter } else { Overdue::Hold };
            let policy = HoldPolicy { limit: self.source.give_up_after, unknown: Overdue::DeadLetter, again };
            let step = // The records behind it wait as long as it does, so the time counts from when each was read.
            match decide(outcome, tries, read_at.elapsed(), policy) {
                Disposition::DeadLetter(reason) => match self.dead_letter(record, &reason, tries).await {
                    true => return RecordReport::Settled,
                    false => Disposition::Hold(DEAD_LETTER_PAUSE, reason),
                },
                step => step,
            };
            let (pause, reason) = match step {
                Disposition::Acknowledge => {
                    tracing::debug!(partition = %id.partition, offset = id.offset, route = %self.consumer.route, tries,
                        "a record is settled");
                    return RecordReport::Settled;
                }
                Disposition::SetAside(pause, reason) => {
                    if !std::mem::replace(&mut is_parked, true) {
                        let _ = self.reports.send((id.clone(), RecordReport::Parked));
                    }
                    (pause, reason)
                }
                Disposition::Hold(pause, reason) => (pause, reason),
                Disposition::DeadLetter(_) | Disposition::Requeue(_) => unreachable!("it was written, or is held"),
            };
            if tries == 1 {
                tracing::info!(partition = %id.partition, offset = id.offset, route = %self.consumer.route,
                    reason = reason.slug, "a record is held, and tried again");
            }
            tokio::select! {
                () = leaving.cancelled() => return RecordReport::GivenBack,
                () = tokio::time::sleep(jittered(pause)) => {}
            }
        }
    }

    /// Writes the record to the dead-letter topic. Returns whether that has it.
    async fn dead_letter(&self, record: &KafkaRecord, reason: &OutcomeReason, tries: u32) -> bool {
        let (partition, offset, route) = (&record.partition, record.offset, &self.consumer.route);
        let (topic, status) = (&self.source.dead_letter_topic, reason.status.map(|status| status.as_u16()));
        let letter = record.dead_letter(&self.consumer, &self.source, reason, tries);
        match self.client.produce(letter).await {
            Ok(()) => {
                tracing::warn!(%partition, offset, %route, reason = reason.slug, status, %topic,
                    "{} The record is now a dead letter", reason.detail);
                self.state.count_dead_letter();
                true
            }
            Err(error) => {
                tracing::warn!(%partition, offset, %route, reason = reason.slug, %topic, cause = %error,
                    "a record could not be written as a dead letter; it is held and tried again");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::consumers::kafka::assignment::started_record;

    #[tokio::test(start_paused = true)]
    async fn a_record_whose_task_panics_is_tried_again_until_its_partition_leaves() {
        let started = started_record();
        let tries = Cell::new(0);
        let settle = |panics: u32| {
            let tries = &tries;
            async move {
                tries.set(tries.get() + 1);
                assert!(tries.get() > panics, "as it should");
                RecordReport::Settled
            }
        };
        assert_eq!(until_it_ends(&started, || settle(3)).await, RecordReport::Settled);
        assert_eq!(tries.take(), 4);
        started.leaving.cancel();
        assert_eq!(until_it_ends(&started, || settle(u32::MAX)).await, RecordReport::GivenBack);
        assert_eq!(tries.get(), 1);
    }
}
