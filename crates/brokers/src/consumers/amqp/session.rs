//! One consumer's connection to its broker. A lost connection is opened again.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::acknowledge::{self, SessionContext};
use super::dead_letter::DeadLetterExchange;
use super::places::MessagePlaces;
use crate::amqp::{broker_message, connect, open_confirming_channel};
use crate::consumers::session_start::{SessionError, in_time, open_session};
use oncegate_engine::gate::Gate;
use oncegate_engine::instance::consumer_states::ConsumerState;
use oncegate_settings::{AmqpSource, Consumer};
use oncegate_trust::tls::Trust;

/// The time limit for cancelling and closing, which the broker need not receive.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs one session: from opening its connection to losing it, or to the end of the drain.
pub(in crate::consumers) async fn run_session(
    consumer: &Arc<Consumer>,
    source: &AmqpSource,
    gate: &Arc<Gate>,
    trust: &Trust,
    state: &Arc<ConsumerState>,
    stop: &CancellationToken,
) -> Result<(), SessionError> {
    // However the session ends, its connection is closed.
    let cut = CancellationToken::new();
    let _cut_at_end = cut.clone().drop_guard();
    let opened = open_session(stop, OpenConsumer::open(source, consumer.prefetch, trust, &cut)).await.transpose()?;
    let Some(OpenConsumer { connection, channel, mut deliveries, exchange, broker }) = opened else { return Ok(()) };
    tracing::info!(broker = %source.broker, queue = %source.queue, route = %consumer.route,
        prefetch = consumer.prefetch, "messages are consumed");
    state.set_connected();
    let session = Arc::new(SessionContext {
        consumer: Arc::clone(consumer),
        source: source.clone(),
        gate: Arc::clone(gate),
        exchange,
        places: Arc::new(MessagePlaces::new(consumer.prefetch)),
        state: Arc::clone(state),
        broker,
        stop: stop.clone(),
        leaving: stop.child_token(),
    });
    let places = Arc::downgrade(&session.places);
    state.count_messages_by(move || Some(places.upgrade()?.message_counts()));
    let work = TaskTracker::new();
    let ended = receive(&session, &channel, &mut deliveries, &work).await;
    work.close();
    let Err(cause) = ended else {
        let cancelled = channel.basic_cancel(deliveries.tag(), BasicCancelOptions::default());
        let _ = timeout(CLOSE_TIMEOUT, cancelled).await;
        // Messages that arrived before the broker cancelled the consumer, and that no task has taken yet.
        while let Ok(Some(Ok(delivery))) = timeout(Duration::ZERO, deliveries.next()).await {
            let _ = delivery.acker.nack(BasicNackOptions { requeue: true, ..Default::default() }).await;
        }
        work.wait().await;
        // The broker requeues unsettled messages by itself.
        let _ = timeout(CLOSE_TIMEOUT, connection.close(200, "draining".into())).await;
        tracing::info!(broker = %source.broker, queue = %source.queue, "messages are no longer consumed");
        return Ok(());
    };
    // The broker requeues held messages. Running ones run to their end, and their next delivery finds the stored
    // outcome.
    session.leaving.cancel();
    let _ = timeout(CLOSE_TIMEOUT, connection.close(200, "reconnecting".into())).await;
    if stop.is_cancelled() {
        work.wait().await;
    }
    Err(SessionError { cause, was_consuming: true })
}

/// Starts a task for each delivery, until the drain or the loss of the session.
async fn receive(
    session: &Arc<SessionContext>,
    channel: &Channel,
    deliveries: &mut lapin::Consumer,
    work: &TaskTracker,
) -> Result<(), String> {
    // The broker's prefetch count, and the limits of what is set aside, bound the number of these tasks.
    let start = |delivery: Delivery| {
        let place = session.places.take(delivery.data.len());
        drop(work.spawn(acknowledge::handle(Arc::clone(session), delivery, place)));
    };
    let mut crowded = Box::pin(session.places.crowded());
    loop {
        tokio::select! {
            biased;
            () = session.stop.cancelled() => return Ok(()),
            () = session.leaving.cancelled() => return Err("the channel for dead letters failed".to_owned()),
            () = &mut crowded => {
                in_time(begin_window(session, channel, deliveries, start)).await?;
                crowded.set(session.places.crowded());
            }
            next = deliveries.next() => match next {
                Some(Ok(delivery)) => start(delivery),
                Some(Err(error)) => return Err(broker_message(error)),
                None => return Err("the broker has cancelled the consumer: is the queue gone?".to_owned()),
            }
        }
    }
}

/// An open connection on which a consumer is registered.
struct OpenConsumer {
    connection: Connection,
    channel: Channel,
    deliveries: lapin::Consumer,
    exchange: Option<DeadLetterExchange>,
    broker: IpAddr,
}

impl OpenConsumer {
    async fn open(source: &AmqpSource, prefetch: u16, trust: &Trust, cut: &CancellationToken) -> Result<Self, String> {
        let (connection, broker) = connect(&source.broker, trust, cut).await?;
        let exchange = match &source.dead_letter_exchange {
            None => None,
            Some(name) => {
                let channel = open_confirming_channel(&connection, name).await;
                let channel = channel.map_err(|cause| format!("dead_letter_exchange `{name}`: {cause}"))?;
                Some(DeadLetterExchange { channel, name: (&**name).into() })
            }
        };
        let channel = connection.create_channel().await.map_err(broker_message)?;
        let deliveries = consume(&channel, &source.queue, prefetch).await?;
        Ok(Self { connection, channel, deliveries, exchange, broker })
    }
}

/// Registers a consumer that gets at most so many messages at once.
async fn consume(channel: &Channel, queue: &str, prefetch: u16) -> Result<lapin::Consumer, String> {
    // For each consumer that is registered from now on.
    channel.basic_qos(prefetch, BasicQosOptions::default()).await.map_err(broker_message)?;
    let options = BasicConsumeOptions::default();
    // An empty tag: the broker chooses it.
    let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await;
    consumer.map_err(broker_message)
}

/// Replaces the consumer by one whose window has room. Messages that the broker had sent before are started; all that
/// are not settled remain with the channel.
async fn begin_window(
    session: &SessionContext,
    channel: &Channel,
    deliveries: &mut lapin::Consumer,
    start: impl Fn(Delivery),
) -> Result<(), String> {
    let cancelled = channel.basic_cancel(deliveries.tag(), BasicCancelOptions::default()).await;
    cancelled.map_err(broker_message)?;
    while let Ok(Some(Ok(delivery))) = timeout(Duration::ZERO, deliveries.next()).await {
        start(delivery);
    }
    let (prefetch, set_aside) = session.places.begin_window();
    *deliveries = consume(channel, &session.source.queue, prefetch).await?;
    tracing::info!(queue = %session.source.queue, route = %session.consumer.route, set_aside, prefetch,
        "messages of unknown outcome are set aside, and others take their places");
    Ok(())
}
