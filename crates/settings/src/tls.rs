//! TLS towards clients and towards services.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::ServerName;

use oncegate_trust::tls::{ClientCertificates, Trust};

/// TLS towards clients.
#[derive(Clone, derive_more::Debug)]
pub struct TlsConfig {
    /// The file of the certificate and its chain.
    pub certificate: PathBuf,
    /// The file of its key.
    pub key: PathBuf,
    /// The file of the authorities of clients' certificates, and whether clients need one.
    pub clients: Option<(PathBuf, ClientCertificates)>,
    /// The rustls configuration made of them.
    #[debug(skip)]
    pub server: Arc<ServerConfig>,
    /// Whether everybody on the machine may read the key's file.
    pub readable_by_all: bool,
}

/// The values by which connections under one TLS differ from others.
pub type PoolKey = ([u8; 32], Option<ServerName<'static>>, bool);

/// TLS towards services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTlsConfig {
    /// The authorities that a service's certificate must be by, and the certificate that is shown to it.
    pub trust: Trust,
    /// The name that a service's certificate must be for; `None` for the host in its URL.
    pub server_name: Option<ServerName<'static>>,
    /// The file of the authorities; `None` for those of the system.
    pub authorities: Option<PathBuf>,
    /// The file of the certificate that is shown.
    pub certificate: Option<PathBuf>,
    /// The file of its key, if everybody on the machine may read it.
    pub exposed_key: Option<PathBuf>,
    /// Whether the service is on the Internet: nothing is sent to a private address that its name leads to.
    pub is_public: bool,
}

impl UpstreamTlsConfig {
    /// TLS towards a service that no `upstream_tls` is for: it shows no certificate.
    pub fn with_trust(trust: Trust) -> Self {
        Self { trust, server_name: None, authorities: None, certificate: None, exposed_key: None, is_public: false }
    }

    /// The values by which connections under it differ from others.
    pub fn pool_key(&self) -> PoolKey {
        (self.trust.digest(), self.server_name.clone(), self.is_public)
    }
}
