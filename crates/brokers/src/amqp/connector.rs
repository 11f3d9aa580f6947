//! Opens connections to a broker, with TLS or without. It uses our own TLS and trust store; lapin would bring its own.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_rs::Tokio;
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use futures_util::Stream;
use futures_util::io::{AsyncRead, AsyncWrite};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};
use rustix::net::Shutdown;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

use super::broker_error::broker_message;
use oncegate_settings::Broker;
use oncegate_trust::tls::{HandshakeError, Trust};

/// The heartbeat interval. A broker that is silent for twice as long is gone (AMQP 0-9-1 section 4.2.7).
const HEARTBEAT_SECONDS: u16 = 15;
/// The runtime for lapin: tokio's, with connections opened here.
type Runtime = async_rs::Runtime<RuntimeParts<Tokio, AmqpConnector>>;

#[derive(Clone)]
struct AmqpConnector {
    tokio: Tokio,
    handle: Handle,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    cut: CancellationToken,
}

/// Returns a runtime for lapin on the current tokio runtime. With `tls`, the broker must show a certificate for this
/// name. Once `cut` is cancelled, the connection is shut down: lapin keeps a thread for each connection that it
/// believes is intact.
fn create_runtime(tls: Option<(TlsConnector, ServerName<'static>)>, cut: CancellationToken) -> Runtime {
    let (tokio, handle) = (Tokio::current(), Handle::current());
    Runtime::new(RuntimeParts::new(tokio.clone(), AmqpConnector { tokio, handle, tls, cut }))
}

impl Reactor for AmqpConnector {
    type TcpStream = Compat<Either<TcpStream, TlsStream<TcpStream>>>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.tokio.register(socket)
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.tokio.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.tokio.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let (connecting, this) = (self.tokio.tcp_connect_addr(address), self.clone());
        async move {
            let stream = connecting.await?.into_inner();
            let socket = stream.as_fd().try_clone_to_owned()?;
            // Awaited by nobody: `cut` is cancelled when the session ends.
            this.handle.spawn(async move {
                this.cut.cancelled().await;
                rustix::net::shutdown(socket, Shutdown::Both)
            });
            let stream = match this.tls {
                None => Either::Left(stream),
                Some((tls, name)) => {
                    let connected = tls.connect(name, stream).await;
                    Either::Right(connected.map_err(|error| io::Error::other(HandshakeError::from(error)))?)
                }
            };
            Ok(stream.compat())
        }
    }
}

impl fmt::Debug for AmqpConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AmqpConnector")
    }
}

/// Connects to the first of the name's addresses that answers. Returns that address with the connection.
pub async fn connect(broker: &Broker, trust: &Trust, cut: &CancellationToken) -> Result<(Connection, IpAddr), String> {
    let addresses = lookup_host((&*broker.host, broker.port)).await;
    let addresses: Vec<_> = addresses.map_err(|error| format!("its host name cannot be looked up: {error}"))?.collect();
    let mut last = "its host name has no address".to_owned();
    for address in addresses {
        match connect_to(broker, trust, address, cut).await {
            Ok(connection) => return Ok((connection, address.ip())),
            Err(cause) => last = cause,
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
    let name = broker
        .tls
        .then(name)
        .transpose()
        .map_err(|_| "its host name is none that a certificate can have".to_owned())?;
    let tls = name.map(|name| (TlsConnector::from(Arc::new(tls_config(trust))), name));
    let runtime = create_runtime(tls, cut.clone());
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
    let connect = async move |_, runtime: Runtime| Ok(AsyncTcpStream::connect(&runtime, address).await?);
    Connection::connector(uri, runtime, connect, properties).await.map_err(broker_message)
}

/// Returns the TLS configuration without ALPN: AMQP has no protocol name there.
fn tls_config(trust: &Trust) -> ClientConfig {
    let mut config = ClientConfig::clone(&trust.config());
    config.alpn_protocols.clear();
    config
}
