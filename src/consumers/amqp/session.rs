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
use super::broker_error::broker_message;
use super::connector::connect;
use super::dead_letter::DeadLetterExchange;
use super::places::MessagePlaces;
use super::publish::open_confirming_channel;
use crate::consumers::session_error::SessionError;
use crate::gate::Gate;
use crate::instance::consumer_states::ConsumerState;
use oncegate_settings::{AmqpSource, Consumer};
use oncegate_trust::tls::Trust;

/// The time from the DNS lookup to a channel that delivers. A broker that is starting needs about as long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
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
    let not_started = |cause: String| SessionError { cause, was_consuming: false };
    // However the session ends, its connection is closed.
    let cut = CancellationToken::new();
    let _cut_at_end = cut.clone().drop_guard();
    let ready = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        ready = timeout(CONNECT_TIMEOUT, OpenConsumer::open(source, consumer.prefetch, trust, &cut)) => ready,
    };
    let OpenConsumer { connection, channel, mut deliveries, exchange, broker } = match ready {
        Err(_) => return Err(not_started(format!("no answer in {} s", CONNECT_TIMEOUT.as_secs()))),
        Ok(ready) => ready.map_err(not_started)?,
    };
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
        lost: CancellationToken::new(),
    });
    let places = Arc::downgrade(&session.places);
    state.count_messages_by(move || Some(places.upgrade()?.message_counts()));
    let work = TaskTracker::new();
    // The broker's prefetch count, and the limits of what is set aside, bound the number of these tasks.
    let start = |delivery: Delivery| {
        let place = session.places.take(delivery.data.len());
        drop(work.spawn(acknowledge::handle(Arc::clone(&session), delivery, place)));
    };
    let mut crowded = Box::pin(session.places.crowded());
    let ended = loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break Ok(()),
            () = session.lost.cancelled() => break Err("the channel for dead letters failed".to_owned()),
            () = &mut crowded => {
                match timeout(CONNECT_TIMEOUT, begin_window(&session, &channel, &mut deliveries, start)).await {
                    Err(_) => break Err(format!("no answer in {} s", CONNECT_TIMEOUT.as_secs())),
                    Ok(Err(error)) => break Err(broker_message(&error)),
                    Ok(Ok(())) => crowded.set(session.places.crowded()),
                }
            }
            next = deliveries.next() => match next {
                Some(Ok(delivery)) => start(delivery),
                Some(Err(error)) => break Err(broker_message(&error)),
                None => break Err("the broker has cancelled the consumer: is the queue gone?".to_owned()),
            }
        }
    };
    work.close();
    if ended.is_ok() {
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
    }
    // The broker requeues held messages. Running ones run to their end, and their next delivery finds the stored outcome.
    session.lost.cancel();
    let _ = timeout(CLOSE_TIMEOUT, connection.close(200, "reconnecting".into())).await;
    if stop.is_cancelled() {
        work.wait().await;
    }
    ended.map_err(|cause| SessionError { cause, was_consuming: true })
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
                let channel =
                    channel.map_err(|error| format!("dead_letter_exchange `{name}`: {}", broker_message(&error)))?;
                Some(DeadLetterExchange { channel, name: (&**name).into() })
            }
        };
        let channel = connection.create_channel().await.map_err(|error| broker_message(&error))?;
        let consumed = consume(&channel, &source.queue, prefetch).await;
        let deliveries = consumed.map_err(|error| broker_message(&error))?;
        Ok(Self { connection, channel, deliveries, exchange, broker })
    }
}

/// Registers a consumer that gets at most so many messages at once.
async fn consume(channel: &Channel, queue: &str, prefetch: u16) -> Result<lapin::Consumer, lapin::Error> {
    // For each consumer that is registered from now on.
    channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    // An empty tag: the broker chooses it.
    channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await
}

/// Replaces the consumer by one whose window has room. Messages that the broker had sent before are started; all that are
/// not settled remain with the channel.
async fn begin_window(
    session: &SessionContext,
    channel: &Channel,
    deliveries: &mut lapin::Consumer,
    start: impl Fn(Delivery),
) -> Result<(), lapin::Error> {
    channel.basic_cancel(deliveries.tag(), BasicCancelOptions::default()).await?;
    while let Ok(Some(Ok(delivery))) = timeout(Duration::ZERO, deliveries.next()).await {
        start(delivery);
    }
    let (prefetch, set_aside) = session.places.begin_window();
    *deliveries = consume(channel, &session.source.queue, prefetch).await?;
    tracing::info!(queue = %session.source.queue, route = %session.consumer.route, set_aside, prefetch,
        "messages of unknown outcome are set aside, and others take their places");
    Ok(())
}
