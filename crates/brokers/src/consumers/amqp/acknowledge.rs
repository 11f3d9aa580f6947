//! Handles one delivery of RabbitMQ: holds it, and settles it with the broker at the end.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicNackOptions, BasicRejectOptions};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::dead_letter::DeadLetterExchange;
use super::places::{MessagePlace, MessagePlaces};
use crate::amqp::broker_message;
use crate::consumers::decode::decode_message;
use crate::consumers::disposition::{HoldPolicy, Overdue};
use crate::consumers::hold::{self, HoldEnd, Holder};
use crate::publish_error::PublishError;
use oncegate_engine::gate::Gate;
use oncegate_engine::gate::message::{MessageOutcome, OutcomeReason};
use oncegate_engine::instance::consumer_states::ConsumerState;
use oncegate_settings::{AmqpSource, Consumer};

/// The longest time that a delivery is held. RabbitMQ closes a channel on which a delivery was unacknowledged for half
/// an hour.
// See docs/decisions/0028-hold-messages.md.
const HOLD_MAX: Duration = Duration::from_secs(10 * 60);

pub(super) struct SessionContext {
    pub(super) consumer: Arc<Consumer>,
    pub(super) source: AmqpSource,
    pub(super) gate: Arc<Gate>,
    pub(super) exchange: Option<DeadLetterExchange>,
    pub(super) state: Arc<ConsumerState>,
    pub(super) places: Arc<MessagePlaces>,
    /// The broker's address.
    pub(super) broker: IpAddr,
    /// Cancelled by a drain: held deliveries return to their queue.
    pub(super) stop: CancellationToken,
    /// Cancelled by a drain, and when the session has ended: nothing is tried again.
    pub(super) leaving: CancellationToken,
}

/// A delivery, with what it takes until it is settled.
struct HeldDelivery<'a> {
    session: &'a SessionContext,
    delivery: Delivery,
    body: Bytes,
    place: MessagePlace,
}

/// Handles a delivery until it is settled with the broker, or the session has ended. `place` is its own.
pub(super) async fn handle(session: Arc<SessionContext>, mut delivery: Delivery, place: MessagePlace) {
    let body = Bytes::from(std::mem::take(&mut delivery.data));
    let message = decode_message(&session.consumer, &delivery.properties, body.clone(), session.broker);
    let message = message.map_err(MessageOutcome::from);
    let mut held = HeldDelivery { session: &session, delivery, body, place };
    let holder = Holder { gate: &session.gate, turns: &session.places.turns, leaving: &session.leaving };
    match holder.hold(&mut held, message, Instant::now()).await {
        HoldEnd::Done { .. } => session.acknowledge(&held.delivery).await,
        HoldEnd::DeadLetter => {}
        HoldEnd::Overdue(reason) => session.requeue(&held.delivery, &reason).await,
        HoldEnd::Left(reason) if session.stop.is_cancelled() => {
            let draining = || OutcomeReason::new("draining", "This instance is stopping and starts nothing new.");
            session.requeue(&held.delivery, &reason.unwrap_or_else(draining)).await;
        }
        // The session has ended, and the broker delivers the message again.
        HoldEnd::Left(_) => {}
    }
}

impl hold::Delivery for HeldDelivery<'_> {
    fn policy(&self) -> HoldPolicy {
        let unknown = if self.session.exchange.is_some() { Overdue::DeadLetter } else { Overdue::Requeue };
        HoldPolicy { limit: HOLD_MAX, unknown, again: Overdue::Requeue, unwritten_pause: None }
    }

    fn note_outcome(&self, outcome: &MessageOutcome) {
        self.session.places.note_outcome(outcome);
    }

    /// Publishes the message to the exchange for dead letters. Where none is configured, rejects it: the queue's own
    /// exchange for dead letters takes it if the broker has one, otherwise the message is lost.
    async fn dead_letter(&self, reason: &OutcomeReason, _tries: u32) -> bool {
        let SessionContext { source, consumer, state, exchange, leaving, .. } = self.session;
        let (queue, route, status) = (&source.queue, &consumer.route, reason.status.map(|status| status.as_u16()));
        let Some(exchange) = exchange else {
            tracing::warn!(%queue, %route, reason = reason.slug, status, "{} The message is rejected", reason.detail);
            state.count_dead_letter();
            let rejected = self.delivery.acker.reject(BasicRejectOptions { requeue: false }).await;
            self.session.log_unsent(rejected);
            return true;
        };
        match exchange.publish((&**queue, &**route), &self.delivery, &self.body, reason).await {
            Ok(()) => {
                tracing::warn!(%queue, %route, reason = reason.slug, status, exchange = %exchange.name,
                    "{} The message is now a dead letter", reason.detail);
                state.count_dead_letter();
                self.session.acknowledge(&self.delivery).await;
                true
            }
            Err(error) => {
                tracing::warn!(%queue, %route, reason = reason.slug, exchange = %exchange.name, cause = %error,
                    "a message could not be published as a dead letter; it is held and tried again");
                if let PublishError::Away(_) = error {
                    leaving.cancel();
                }
                false
            }
        }
    }

    fn set_aside(&mut self) {
        if self.place.set_aside() {
            tracing::warn!(queue = %self.session.source.queue, route = %self.session.consumer.route,
                "the consumer may set no more messages of unknown outcome aside. Until the outcome of some is known, such \
                 messages keep their places, and the queue stands still when they take all");
        }
    }

    fn log_held(&self, reason: &OutcomeReason) {
        tracing::info!(queue = %self.session.source.queue, route = %self.session.consumer.route, reason = reason.slug,
            redelivered = self.delivery.redelivered, "a message is held, and tried again");
    }
}

impl SessionContext {
    /// Acknowledges the message. A broker that does not receive this delivers the message again, and that delivery
    /// finds the stored outcome.
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

    fn log_unsent(&self, sent: Result<bool, lapin::Error>) {
        let cause = match sent {
            Ok(true) => return,
            Ok(false) => "the channel is closed".to_owned(),
            Err(error) => broker_message(error),
        };
        tracing::debug!(queue = %self.source.queue, cause,
            "the broker was not told what became of a message; it delivers the message again");
    }
}
