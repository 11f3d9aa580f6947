//! One consumer's connection to its broker, made again whenever it is lost.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, ConfirmSelectOptions,
    ExchangeDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties, ErrorKind, ExchangeKind};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::lookup_host;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::bury::Exchange;
use super::delivery::{self, Hands};
use super::patience::{jittered, reconnect};
use super::wire;
use crate::config::{Broker, Consumer};
use crate::gate::Gate;
use crate::tls::Trust;

/// From the name's lookup to a channel that delivers. A broker that is starting lets one wait about as long.
const CONNECT_MAX: Duration = Duration::from_secs(15);
/// A broker that says nothing for twice as long is gone (AMQP 0-9-1 section 4.2.7).
const HEARTBEAT_SECONDS: u16 = 15;
/// For the last words to a broker, which need not hear them.
const FAREWELL_MAX: Duration = Duration::from_secs(2);

/// Why a session came to its end, or did not begin.
struct Lost {
    why: String,
    /// Whether messages were being delivered.
    has_worked: bool,
}

/// Consumes until `stop`, over as many connections as it takes.
pub(super) async fn run(consumer: Arc<Consumer>, gate: Arc<Gate>, trust: Trust, stop: CancellationToken) {
    let mut failures: u32 = 0;
    loop {
        let Err(Lost { why, has_worked }) = session(&consumer, &gate, &trust, &stop).await else { return };
        failures = if has_worked { 1 } else { failures.saturating_add(1) };
        let pause = jittered(reconnect(failures));
        let (broker, queue) = (&consumer.broker, &consumer.queue);
        tracing::warn!(%broker, %queue, failures, again_in_ms = pause.as_millis(), cause = why,
            "messages are not consumed at the moment; the broker is tried again");
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// One connection, from its making to its loss, or to the drain's end.
async fn session(
    consumer: &Arc<Consumer>,
    gate: &Arc<Gate>,
    trust: &Trust,
    stop: &CancellationToken,
) -> Result<(), Lost> {
    let begin = |why: String| Lost { why, has_worked: false };
    // Whatever this comes to, nothing of its connection is left behind.
    let cut = CancellationToken::new();
    let _cut_at_last = cut.clone().drop_guard();
    let ready = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        ready = timeout(CONNECT_MAX, Ready::make(consumer, trust, &cut)) => ready,
    };
    let Ready { connection, channel, mut deliveries, exchange, broker } = match ready {
        Err(_) => return Err(begin(format!("no answer in {} s", CONNECT_MAX.as_secs()))),
        Ok(ready) => ready.map_err(begin)?,
    };
    tracing::info!(broker = %consumer.broker, queue = %consumer.queue, route = %consumer.route,
        prefetch = consumer.prefetch, "messages are consumed");
    let hands = Arc::new(Hands {
        consumer: Arc::clone(consumer),
        gate: Arc::clone(gate),
        exchange,
        broker,
        stop: stop.clone(),
        lost: CancellationToken::new(),
    });
    let work = TaskTracker::new();
    let ended = loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break Ok(()),
            () = hands.lost.cancelled() => break Err("the channel for dead letters broke".to_owned()),
            next = deliveries.next() => match next {
                // As many as there are at once by the broker's count: no more are delivered.
                Some(Ok(delivery)) => drop(work.spawn(delivery::settle(Arc::clone(&hands), delivery))),
                Some(Err(error)) => break Err(told(&error)),
                None => break Err("the broker has ended the delivery: is the queue gone?".to_owned()),
            }
        }
    };
    work.close();
    if ended.is_ok() {
        let cancelled = channel.basic_cancel(deliveries.tag(), BasicCancelOptions::default());
        let _ = timeout(FAREWELL_MAX, cancelled).await;
        // What was delivered before the broker heard of it, and nobody has in hand yet.
        while let Ok(Some(Ok(delivery))) = timeout(Duration::ZERO, deliveries.next()).await {
            let _ = delivery.acker.nack(BasicNackOptions { requeue: true, ..Default::default() }).await;
        }
        work.wait().await;
        // The broker takes back by itself whatever it has not heard of.
        let _ = timeout(FAREWELL_MAX, connection.close(200, "draining".into())).await;
        tracing::info!(broker = %consumer.broker, queue = %consumer.queue, "messages are no longer consumed");
        return Ok(());
    }
    // Held messages are the broker's again. Running ones come to their end, which their next delivery finds stored.
    hands.lost.cancel();
    let _ = timeout(FAREWELL_MAX, connection.close(200, "starting anew".into())).await;
    if stop.is_cancelled() {
        work.wait().await;
    }
    ended.map_err(|why| Lost { why, has_worked: true })
}

/// All that it takes to consume.
struct Ready {
    connection: Connection,
    channel: Channel,
    deliveries: lapin::Consumer,
    exchange: Option<Exchange>,
    broker: IpAddr,
}

impl Ready {
    async fn make(consumer: &Consumer, trust: &Trust, cut: &CancellationToken) -> Result<Self, String> {
        let (connection, broker) = connect(&consumer.broker, trust, cut).await?;
        let exchange = match &consumer.dead_letter_exchange {
            None => None,
            Some(name) => {
                let channel = confirming(&connection, name).await;
                let channel = channel.map_err(|error| format!("dead_letter_exchange `{name}`: {}", told(&error)))?;
                Some(Exchange { channel, name: (&**name).into() })
            }
        };
        let channel = connection.create_channel().await.map_err(|error| told(&error))?;
        let qos = channel.basic_qos(consumer.prefetch, BasicQosOptions::default());
        qos.await.map_err(|error| told(&error))?;
        let queue = &*consumer.queue;
        let consumed = channel.basic_consume(
            queue.into(),
            // The broker makes one up.
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let deliveries = consumed.await.map_err(|error| told(&error))?;
        Ok(Self { connection, channel, deliveries, exchange, broker })
    }
}

/// A channel that says what it has taken, once it is sure that the exchange is there.
async fn confirming(connection: &Connection, exchange: &str) -> Result<Channel, lapin::Error> {
    let channel = connection.create_channel().await?;
    let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
    channel.exchange_declare(exchange.into(), ExchangeKind::Direct, options, FieldTable::default()).await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

/// Tries each of the name's addresses in turn; the one that was reached is where its messages come from.
async fn connect(broker: &Broker, trust: &Trust, cut: &CancellationToken) -> Result<(Connection, IpAddr), String> {
    let addresses = lookup_host((&*broker.host, broker.port)).await;
    let addresses: Vec<_> = addresses.map_err(|error| format!("its name cannot be looked up: {error}"))?.collect();
    let mut last = "its name has no address".to_owned();
    for address in addresses {
        match connect_to(broker, trust, address, cut).await {
            Ok(connection) => return Ok((connection, address.ip())),
            Err(why) => last = why,
        }
    }
    Err(last)
}

async fn connect_to(
    broker: &Broker,
    trust: &Trust,
    address: SocketAddr,
    cut: &CancellationToken,
) -> Result<Connection, String> {
    let name = || ServerName::try_from(broker.host.to_string());
    let name =
        broker.tls.then(name).transpose().map_err(|_| "its name is none that a certificate can have".to_owned())?;
    let tls = name.map(|name| (TlsConnector::from(Arc::new(for_amqp(trust))), name));
    let wire = wire::runtime(tls, cut.clone());
    let uri = AMQPUri {
        scheme: if broker.tls { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo { username: broker.user.to_string(), password: broker.password.to_string() },
            host: broker.host.to_string(),
            port: broker.port,
        },
        vhost: broker.vhost.to_string(),
        query: AMQPQueryString { heartbeat: Some(HEARTBEAT_SECONDS), ..Default::default() },
    };
    let properties = ConnectionProperties::default().with_connection_name("oncegate".into());
    let make = async move |_, wire: wire::Runtime| Ok(AsyncTcpStream::connect(&wire, address).await?);
    Connection::connector(uri, wire, make, properties).await.map_err(|error| told(&error))
}

/// AMQP has no name among the protocols that TLS can choose from.
fn for_amqp(trust: &Trust) -> ClientConfig {
    let mut config = ClientConfig::clone(&trust.config());
    config.alpn_protocols.clear();
    config
}

/// What the broker says, in its own words, without the library's around them.
pub(super) fn told(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}
