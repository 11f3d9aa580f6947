//! Connections to the Redis server. TLS and the trust store are our own; the driver would bring others.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, RedisError};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use oncegate_settings::RedisServer;
use oncegate_trust::tls::{HandshakeError, Trust};

/// Opens connections to one server.
pub(super) struct RedisConnector {
    server: RedisServer,
    tls: TlsConnector,
}

/// Writes and reads the bytes of one connection; it ends with the connection.
pub(super) type ConnectionDriver = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Debug, thiserror::Error)]
pub(super) enum RedisFailure {
    #[error("its connection broke, or it has not answered a command in time")]
    Broken,
    #[error("its host name is none that a certificate can have")]
    Name,
    #[error("it cannot be connected to")]
    Connect(#[source] io::Error),
    #[error("the TLS handshake failed")]
    Handshake(#[source] HandshakeError),
    /// The server has refused the session, or speaks another protocol.
    #[error("it refuses the session: {0}")]
    Session(RedisError),
    #[error("it does not answer")]
    Silent,
}

impl RedisConnector {
    /// Connects to this server, which is verified as `trust` says where its URL asks for TLS.
    pub(super) fn new(server: RedisServer, trust: &Trust) -> Self {
        let mut config = ClientConfig::clone(&trust.config());
        // Redis has no protocol name.
        config.alpn_protocols.clear();
        Self { server, tls: TlsConnector::from(Arc::new(config)) }
    }

    /// Whether its connections lead to the same database of the same server, whoever logs in there.
    pub(super) fn is_same_place(&self, other: &RedisServer) -> bool {
        let place = |server: &RedisServer| (server.tls, server.host.clone(), server.port, server.database);
        place(&self.server) == place(other)
    }

    /// Opens a connection, and logs in where the URL has a password.
    pub(super) async fn connect(&self) -> Result<(MultiplexedConnection, ConnectionDriver), RedisFailure> {
        let server = &self.server;
        let stream = TcpStream::connect((&*server.host, server.port)).await.map_err(RedisFailure::Connect)?;
        stream.set_nodelay(true).map_err(RedisFailure::Connect)?;
        if !server.tls {
            return self.log_in(stream).await;
        }
        let name = ServerName::try_from(server.host.to_string()).map_err(|_| RedisFailure::Name)?;
        let connected = self.tls.connect(name, stream).await;
        let stream = connected.map_err(|error| RedisFailure::Handshake(HandshakeError::from(error)))?;
        self.log_in(stream).await
    }

    async fn log_in(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(MultiplexedConnection, ConnectionDriver), RedisFailure> {
        let server = &self.server;
        // Every version of Redis and Valkey speaks the second version of the protocol.
        let mut session = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP2)
            .set_db(server.database.into())
            .set_skip_set_lib_name();
        if let Some(user) = &server.user {
            session = session.set_username(user);
        }
        if let Some(password) = &server.password {
            session = session.set_password(password);
        }
        // The callers have limits of their own.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let opened = MultiplexedConnection::new_with_config(&session, stream, config).await;
        let (connection, driver) = opened.map_err(RedisFailure::Session)?;
        Ok((connection, Box::pin(driver)))
    }
}
