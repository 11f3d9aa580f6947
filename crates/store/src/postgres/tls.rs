//! TLS to the server, as the URL configures it.

use std::error::Error;
use std::pin::Pin;

use rustls::ClientConfig;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, Socket, config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::failure::without_user;
use oncegate_settings::{PostgresTls, SslMode};
use oncegate_trust::tls::HandshakeError;

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

#[derive(Clone)]
pub(super) struct PgTls {
    mode: SslMode,
    /// Whether the URL has an `sslmode` itself.
    is_written: bool,
    client: Option<MakeRustlsConnect>,
}

impl PgTls {
    pub fn new(settings: &PostgresTls, client: Option<&ClientConfig>) -> Self {
        let client = client.map(|client| MakeRustlsConnect::new(client.clone()));
        Self { mode: settings.mode, is_written: settings.is_written, client }
    }

    pub fn mode(&self) -> config::SslMode {
        match self.mode {
            SslMode::Disable => config::SslMode::Disable,
            SslMode::Prefer => config::SslMode::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => config::SslMode::Require,
        }
    }

    /// The driver's error while it connected to this target, for people, with advice where the server has no TLS and
    /// the URL does not mention it.
    pub fn explain(&self, error: tokio_postgres::Error, target: &Config) -> BoxError {
        let no_tls = error.source().is_some_and(|cause| cause.to_string() == "server does not support TLS");
        if no_tls && !self.is_written && self.mode == SslMode::VerifyFull {
            return "the server has no TLS, which is needed for a host that is not this machine: write `sslmode=disable` into \
                    store.url if you trust the network between"
                .into();
        }
        match error.as_db_error() {
            Some(refusal) => without_user(refusal, target.get_user()),
            None => Box::new(error),
        }
    }
}

impl MakeTlsConnect<Socket> for PgTls {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = OptionalHandshake;
    type Error = BoxError;

    fn make_tls_connect(&mut self, host: &str) -> Result<OptionalHandshake, BoxError> {
        let make = |client| MakeTlsConnect::<Socket>::make_tls_connect(client, host);
        Ok(OptionalHandshake(self.client.as_mut().map(make).transpose()?))
    }
}

/// One TLS handshake; `None` where TLS is switched off.
pub(super) struct OptionalHandshake(Option<<MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect>);

impl TlsConnect<Socket> for OptionalHandshake {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type Error = HandshakeError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Stream, HandshakeError>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let handshake = self.0.ok_or_else(|| std::io::Error::other("TLS is switched off"))?;
            Ok(handshake.connect(socket).await?)
        })
    }
}
