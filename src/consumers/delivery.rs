//! One delivery's way: executed, held as long as that takes, and settled with the broker last of all.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bury::{self, Exchange, NotTaken};
use super::patience::{Next, jittered, next};
use super::read;
use super::session::told;
use crate::config::Consumer;
use crate::gate::Gate;
use crate::gate::message::{Fate, Reason};

/// What all deliveries of a session have in common.
pub(super) struct Hands {
    pub(super) consumer: Arc<Consumer>,
    pub(super) gate: Arc<Gate>,
    pub(super) exchange: Option<Exchange>,
    /// Where the messages come from.
    pub(super) broker: IpAddr,
    /// Nothing is tried again: what is held is given back.
    pub(super) stop: CancellationToken,
    /// The session is over: what is held is the broker's again.
    pub(super) lost: CancellationToken,
}

/// Until the broker has been told what became of it, or will not hear it any more.
pub(super) async fn settle(hands: Arc<Hands>, mut delivery: Delivery) {
    let body = Bytes::from(std::mem::take(&mut delivery.data));
    let message = read::message(&hands.consumer, &delivery.properties, body.clone(), hands.broker);
    let (begun, mut tries) = (Instant::now(), 0);
    loop {
        if hands.stop.is_cancelled() {
            return hands.give_back(&delivery, &Reason::new("draining", "Nothing new is begun.")).await;
        }
        let fate = match &message {
            Ok(message) => hands.gate.execute(message.clone()).await,
            Err(refusal) => Fate::from(*refusal),
        };
        tries += 1;
        let step = match next(fate, tries, begun.elapsed(), hands.exchange.is_some()) {
            Next::Bury(why) => match hands.bury(&delivery, &body, &why).await {
                true => return,
                // It is not lost: whoever mends the exchange finds it here.
                false => next(Fate::Again(why), tries, begun.elapsed(), false),
            },
            step => step,
        };
        match step {
            Next::Acknowledge => return hands.acknowledge(&delivery).await,
            Next::GiveBack(why) => return hands.give_back(&delivery, &why).await,
            Next::Hold(pause, why) => {
                if tries == 1 {
                    hands.tell_held(&delivery, &why);
                }
                tokio::select! {
                    () = hands.lost.cancelled() => return,
                    () = hands.stop.cancelled() => return hands.give_back(&delivery, &why).await,
                    () = tokio::time::sleep(jittered(pause)) => {}
                }
            }
            Next::Bury(_) => unreachable!("what is to come again is not buried"),
        }
    }
}

impl Hands {
    /// A broker that does not hear it delivers the message again, and that delivery finds the stored outcome.
    async fn acknowledge(&self, delivery: &Delivery) {
        let said = delivery.acker.ack(BasicAckOptions::default()).await;
        if let Ok(true) = said {
            tracing::debug!(queue = %self.consumer.queue, route = %self.consumer.route,
                redelivered = delivery.redelivered, "a message is acknowledged");
        }
        self.tell_unheard(said);
    }

    async fn give_back(&self, delivery: &Delivery, why: &Reason) {
        tracing::info!(queue = %self.consumer.queue, route = %self.consumer.route, reason = why.slug,
            "a message is given back to its queue");
        let options = BasicNackOptions { requeue: true, ..Default::default() };
        self.tell_unheard(delivery.acker.nack(options).await);
    }

    /// Whether somebody has it now.
    async fn bury(&self, delivery: &Delivery, body: &[u8], why: &Reason) -> bool {
        let (queue, route, status) =
            (&self.consumer.queue, &self.consumer.route, why.status.map(|status| status.as_u16()));
        let Some(exchange) = &self.exchange else {
            tracing::warn!(%queue, %route, reason = why.slug, status, "{} The message is rejected",
                why.detail);
            self.tell_unheard(bury::reject(delivery).await);
            return true;
        };
        match exchange.take(&self.consumer, delivery, body, why).await {
            Ok(()) => {
                tracing::warn!(%queue, %route, reason = why.slug, status, exchange = %exchange.name,
                    "{} The message is now a dead letter", why.detail);
                self.acknowledge(delivery).await;
                true
            }
            Err(not_taken) => {
                let cause = match &not_taken {
                    NotTaken::Broken(cause) | NotTaken::Refused(cause) => cause,
                };
                tracing::warn!(%queue, %route, reason = why.slug, exchange = %exchange.name, cause,
                    "a message that will not do could not be put among the dead letters; it is held");
                if let NotTaken::Broken(_) = not_taken {
                    self.lost.cancel();
                }
                false
            }
        }
    }

    fn tell_held(&self, delivery: &Delivery, why: &Reason) {
        tracing::info!(queue = %self.consumer.queue, route = %self.consumer.route, reason = why.slug,
            redelivered = delivery.redelivered, "a message is held, and tried again");
    }

    fn tell_unheard(&self, said: Result<bool, lapin::Error>) {
        let cause = match said {
            Ok(true) => return,
            Ok(false) => "the channel is closed".to_owned(),
            Err(error) => told(&error),
        };
        tracing::debug!(queue = %self.consumer.queue, cause, "the broker has not heard what became of a message, and delivers it again");
    }
}
