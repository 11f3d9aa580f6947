//! Handles one delivery: executes it, holds it as long as that takes, and settles it with the broker at the end.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::broker_error::broker_message;
use super::dead_letter::{self, DeadLetterExchange};
use super::places::{MessagePlace, MessagePlaces};
use super::publish::PublishError;
use crate::consumers::decode;
use crate::consumers::disposition::{Disposition, HoldPolicy, Overdue, decide};
use crate::gate::Gate;
use crate::gate::message::{MessageOutcome, OutcomeReason};
use crate::instance::consumer_states::ConsumerState;
use oncegate_machine::jitter::jittered;
use oncegate_settings::{AmqpSource, Consumer};

/// The longest time that a delivery is held. RabbitMQ closes a channel on which a delivery was unacknowledged for half an
/// hour.
// See docs/decisions/0028-hold-messages.md.
const HOLD_MAX: Duration = Duration::from_secs(10 * 60);

/// The values that all deliveries of a session share.
pub(super) struct SessionContext {
    pub(super) consumer: Arc<Consumer>,
    pub(super) source: AmqpSource,
    pub(super) gate: Arc<Gate>,
    pub(super) exchange: Option<DeadLetterExchange>,
    pub(super) state: Arc<ConsumerState>,
    pub(super) places: Arc<MessagePlaces>,
    /// The broker's address.
    pub(super) broker: IpAddr,
    /// Cancelled by a drain: nothing is tried again, and held deliveries return to their queue.
    pub(super) stop: CancellationToken,
    /// Cancelled when the session has ended: the broker delivers held messages again.
    pub(super) lost: CancellationToken,
}

/// Handles a delivery until it is settled with the broker, or the session has ended. `place` is its own.
pub(super) async fn handle(session: Arc<SessionContext>, mut delivery: Delivery, mut place: MessagePlace) {
    let body = Bytes::from(std::mem::take(&mut delivery.data));
    let message = decode::decode_message(&session.consumer, &delivery.properties, body.clone(), session.broker);
    let (started, mut tries) = (Instant::now(), 0);
    loop {
        if session.stop.is_cancelled() {
            let reason = OutcomeReason::new("draining", "This instance is stopping and starts nothing new.");
            return session.requeue(&delivery, &reason).await;
        }
        let outcome = match &message {
            Ok(message) => {
                let _turn = tokio::select! {
                    biased;
                    () = session.lost.cancelled() => return,
                    // The loop returns the delivery to its queue.
                    () = session.stop.cancelled() => continue,
                    turn = session.places.turn() => turn,
                };
                session.gate.execute_message(message.clone()).await
            }
            Err(refusal) => MessageOutcome::from(refusal.clone()),
        };
        session.places.note_outcome(&outcome);
        tries += 1;
        let unknown = if session.exchange.is_some() { Overdue::DeadLetter } else { Overdue::Requeue };
        let policy = HoldPolicy { limit: HOLD_MAX, unknown, again: Overdue::Requeue };
        let step = match decide(outcome, tries, started.elapsed(), policy) {
            Disposition::DeadLetter(reason) => match session.dead_letter(&delivery, &body, &reason).await {
                true => return,
                // The message is not lost: it is held until the exchange is repaired.
                false => decide(MessageOutcome::Again(reason), tries, started.elapsed(), policy),
            },
            step => step,
        };
        let (pause, reason) = match step {
            Disposition::Acknowledge => return session.acknowledge(&delivery).await,
            Disposition::Requeue(reason) => return session.requeue(&delivery, &reason).await,
            Disposition::Hold(pause, reason) => (pause, reason),
            Disposition::SetAside(pause, reason) => {
                if place.set_aside() {
                    tracing::warn!(queue = %session.source.queue, route = %session.consumer.route,
                        "the consumer may set no more messages of unknown outcome aside. Until the outcome of some is known, such \
                         messages keep their places, and the queue stands still when they take all");
                }
                (pause, reason)
            }
            Disposition::DeadLetter(_) => unreachable!("a message to be tried again is no dead letter"),
        };
        if tries == 1 {
            tracing::info!(queue = %session.source.queue, route = %session.consumer.route, reason = reason.slug,
                redelivered = delivery.redelivered, "a message is held, and tried again");
        }
        tokio::select! {
            () = session.lost.cancelled() => return,
            () = session.stop.cancelled() => return session.requeue(&delivery, &reason).await,
            () = tokio::time::sleep(jittered(pause)) => {}
        }
    }
}

impl SessionContext {
    /// Acknowledges the message. A broker that does not receive this delivers the message again, and that delivery finds the
    /// stored outcome.
    async fn acknowledge(&self, delivery: &Delivery) {
        let sent = delivery.acker.ack(BasicAckOptions::default()).await;
        if let Ok(true) = sent {
            tracing::debug!(queue = %self.source.queue, route = %self.consumer.route,
                redelivered = delivery.redelivered, "a message is acknowledged");
        }
        self.log_unsent(sent);
    }

    async fn requeue(&self, delivery: &Delivery, reason: &OutcomeReason) {
        tracing::info!(queue = %self.source.queue, route = %self.consumer.route, reason = reason.slug,
            "a message is returned to its queue");
        let options = BasicNackOptions { requeue: true, ..Default::default() };
        self.log_unsent(delivery.acker.nack(options).await);
    }

    /// Publishes the message as a dead letter, or rejects it where there is no exchange. Returns whether the delivery is
    /// settled.
    async fn dead_letter(&self, delivery: &Delivery, body: &[u8], reason: &OutcomeReason) -> bool {
        let (queue, route, status) =
            (&self.source.queue, &self.consumer.route, reason.status.map(|status| status.as_u16()));
        let Some(exchange) = &self.exchange else {
            tracing::warn!(%queue, %route, reason = reason.slug, status, "{} The message is rejected",
                reason.detail);
            self.state.count_dead_letter();
            self.log_unsent(dead_letter::reject(delivery).await);
            return true;
        };
        match exchange.publish((&**queue, &**route), delivery, body, reason).await {
            Ok(()) => {
                tracing::warn!(%queue, %route, reason = reason.slug, status, exchange = %exchange.name,
                    "{} The message is now a dead letter", reason.detail);
                self.state.count_dead_letter();
                self.acknowledge(delivery).await;
                true
            }
            Err(error) => {
                let cause = match &error {
                    PublishError::Broken(cause) | PublishError::Refused(cause) => cause,
                };
                tracing::warn!(%queue, %route, reason = reason.slug, exchange = %exchange.name, cause,
                    "a message could not be published as a dead letter; it is held and tried again");
                if let PublishError::Broken(_) = error {
                    self.lost.cancel();
                }
                false
            }
        }
    }

    fn log_unsent(&self, sent: Result<bool, lapin::Error>) {
        let cause = match sent {
            Ok(true) => return,
            Ok(false) => "the channel is closed".to_owned(),
            Err(error) => broker_message(&error),
        };
        tracing::debug!(queue = %self.source.queue, cause, "the broker was not told what became of a message; it delivers the message again");
    }
}
