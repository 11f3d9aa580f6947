//! Executes one record of Kafka: holds it, and reports how it ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};

use super::assignment::{RecordPlace, StartedRecord};
use super::group_member::GroupMember;
use crate::consumers::decode::decode_message;
use crate::consumers::disposition::{HoldPolicy, Overdue, doubled_pause};
use crate::consumers::hold::{Delivery, HoldEnd, Holder};
use crate::retry::again_after_panics;
use oncegate_engine::gate::Gate;
use oncegate_engine::gate::message::{MessageOutcome, OutcomeReason};
use oncegate_engine::instance::consumer_states::ConsumerState;
use oncegate_settings::{Consumer, KafkaSource};

const RECORD_TOO_LARGE: &str =
    "The record or its batch is too large to be held in memory. It was not executed, and is still in its topic.";

/// The pause before a dead letter that could not be written is written again.
const DEAD_LETTER_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct RecordContext {
    pub(super) consumer: Arc<Consumer>,
    pub(super) source: KafkaSource,
    pub(super) state: Arc<ConsumerState>,
    pub(super) gate: Arc<Gate>,
    pub(super) member: GroupMember,
    /// Limits the records that are tried at once.
    pub(super) turns: Semaphore,
    pub(super) reports: mpsc::UnboundedSender<(RecordPlace, RecordReport)>,
}

/// The report of a record's task to the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordReport {
    /// Its outcome is unknown: it waits beside the others.
    Parked,
    /// Its outcome is stored, or it is a dead letter: its offset counts.
    Settled,
    /// Its partition was taken before it was settled.
    GivenBack,
}

impl RecordContext {
    /// Executes a record until it is settled or its partition is taken. An attempt that runs when the partition is
    /// taken runs to its end.
    pub(super) async fn handle(self: Arc<Self>, started: StartedRecord) {
        // Of a record about which nothing is reported, the offset could never be committed.
        let log = |panics| {
            tracing::error!(partition = %started.id.partition, offset = started.id.offset, panics,
                "the task of a record panicked; the record is tried again");
        };
        let report = again_after_panics(&started.leaving, doubled_pause, log, || self.settle(&started)).await;
        let _ = self.reports.send((started.id, report.unwrap_or(RecordReport::GivenBack)));
    }

    async fn settle(&self, started: &StartedRecord) -> RecordReport {
        let StartedRecord { record, read_at, id, leaving, .. } = started;
        let message = match record.is_unread {
            true => Err(MessageOutcome::Refused(OutcomeReason::new("record-too-large", RECORD_TOO_LARGE))),
            false => decode_message(&self.consumer, record, record.value.clone(), self.member.broker)
                .map_err(MessageOutcome::from),
        };
        let mut held = HeldRecord { context: self, started, is_parked: false };
        let holder = Holder { gate: &self.gate, turns: &self.turns, leaving };
        // The records behind it wait as long as it does, so the time counts from when each was read.
        match holder.hold(&mut held, message, *read_at).await {
            HoldEnd::Done { tries } => {
                tracing::debug!(partition = %id.partition, offset = id.offset, route = %self.consumer.route, tries,
                    "a record is settled");
                RecordReport::Settled
            }
            HoldEnd::DeadLetter => RecordReport::Settled,
            HoldEnd::Left(_) => RecordReport::GivenBack,
            HoldEnd::Overdue(_) => unreachable!("it is a dead letter, or is held"),
        }
    }
}

struct HeldRecord<'a> {
    context: &'a RecordContext,
    started: &'a StartedRecord,
    is_parked: bool,
}

impl Delivery for HeldRecord<'_> {
    fn policy(&self) -> HoldPolicy {
        // A record that alone fails must not hold back the committed offset until the keys behind it have expired.
        // While all fail, the service is away, and nothing is given up.
        let is_passed = self.started.settled_up_to.load(Ordering::Relaxed) > self.started.record.offset;
        HoldPolicy {
            limit: self.context.source.give_up_after,
            unknown: Overdue::DeadLetter,
            again: if is_passed { Overdue::DeadLetter } else { Overdue::Hold },
            unwritten_pause: Some(DEAD_LETTER_PAUSE),
        }
    }

    async fn dead_letter(&self, reason: &OutcomeReason, tries: u32) -> bool {
        let RecordContext { consumer, source, state, member, .. } = self.context;
        let record = &self.started.record;
        let (partition, offset, route) = (&record.partition, record.offset, &consumer.route);
        let (topic, status) = (&source.dead_letter_topic, reason.status.map(|status| status.as_u16()));
        match member.producer.produce(record.dead_letter(consumer, source, reason, tries)).await {
            Ok(()) => {
                tracing::warn!(%partition, offset, %route, reason = reason.slug, status, %topic,
                    "{} The record is now a dead letter", reason.detail);
                state.count_dead_letter();
                true
            }
            Err(error) => {
                tracing::warn!(%partition, offset, %route, reason = reason.slug, %topic, cause = %error,
                    "a record could not be written as a dead letter; it is held and tried again");
                false
            }
        }
    }

    fn set_aside(&mut self) {
        if !std::mem::replace(&mut self.is_parked, true) {
            let _ = self.context.reports.send((self.started.id.clone(), RecordReport::Parked));
        }
    }

    fn log_held(&self, reason: &OutcomeReason) {
        tracing::info!(partition = %self.started.id.partition, offset = self.started.id.offset,
            route = %self.context.consumer.route, reason = reason.slug, "a record is held, and tried again");
    }
}
