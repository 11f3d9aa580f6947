//! Test certificates, and TLS termination in front of a cleartext service or client.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use oncegate_trust::tls;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType, date_time_ymd};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::TEST_TIMEOUT;
use super::client::Client;

/// A certificate authority for one test alone.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct CertifiedKeyFiles {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = format!("authority {}", NUMBER.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    /// Its certificate's file.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Issues a certificate for these names or addresses.
    pub fn issue(&self, names: &[&str]) -> CertifiedKeyFiles {
        self.sign(names, |_| ())
    }

    /// Issues an expired one.
    pub fn issue_expired(&self, names: &[&str]) -> CertifiedKeyFiles {
        self.sign(names, |params| params.not_after = date_time_ymd(2020, 1, 1))
    }

    /// Issues one for a client with these URIs, hosts and common name.
    pub fn issue_named(&self, uris: &[&str], hosts: &[&str], name: &str) -> CertifiedKeyFiles {
        self.sign(hosts, |params| {
            params.subject_alt_names.extend(uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())));
            params.distinguished_name.push(DnType::CommonName, name);
        })
    }

    /// Issues one for a client of this name.
    pub fn issue_to_client(&self, name: &str) -> CertifiedKeyFiles {
        self.sign(&[], |params| params.distinguished_name.push(DnType::CommonName, name))
    }

    fn sign(&self, names: &[&str], more: impl FnOnce(&mut CertificateParams)) -> CertifiedKeyFiles {
        let mut params = certificate_params(names);
        more(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        CertifiedKeyFiles { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    fn der(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }
}

fn certificate_params(names: &[&str]) -> CertificateParams {
    CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
}

impl CertifiedKeyFiles {
    /// A self-signed certificate.
    pub fn self_signed(names: &[&str]) -> Self {
        let key = KeyPair::generate().unwrap();
        Self { certificate: certificate_params(names).self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
    }

    /// Writes both into a folder, as a renewal does. Only the owner may read the key.
    pub fn write(&self, folder: &Path) -> (PathBuf, PathBuf) {
        let put = |name: &str, text: &str| {
            let (file, new) = (folder.join(name), folder.join(format!("{name}.new")));
            std::fs::write(&new, text).unwrap();
            std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
            std::fs::rename(new, &file).unwrap();
            file
        };
        (put("tls.crt", &self.certificate), put("tls.key", &self.key))
    }

    /// The configuration of a service that speaks HTTP/1.1.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.server_speaking(&["http/1.1"])
    }

    /// The configuration of a service that speaks these protocols, the first the best.
    pub fn server_speaking(&self, protocols: &[&str]) -> Arc<ServerConfig> {
        let server = tls::server_config(self.certificate.as_bytes(), self.key.as_bytes(), None).unwrap();
        let mut server = ServerConfig::clone(&server);
        server.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(server)
    }

    /// The configuration of one that requires a certificate by an authority of its clients.
    pub fn server_requiring(
        &self,
        clients: &Authority,
        protocol: &str,
        version: &'static SupportedProtocolVersion,
    ) -> Arc<ServerConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(clients.der()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), tls::provider()).build().unwrap();
        let builder = ServerConfig::builder_with_provider(tls::provider()).with_protocol_versions(&[version]).unwrap();
        let chain = tls::parse_certificates(self.certificate.as_bytes()).unwrap();
        let key = tls::parse_private_key(self.key.as_bytes()).unwrap();
        let mut server = builder.with_client_cert_verifier(verifier).with_single_cert(chain, key).unwrap();
        server.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        Arc::new(server)
    }
}

/// A TLS client's settings.
pub struct TlsClient<'a> {
    pub address: SocketAddr,
    pub authority: &'a Authority,
    pub name: &'static str,
    pub protocols: &'static [&'static str],
    pub version: &'static SupportedProtocolVersion,
    /// The client's own certificate.
    pub certificate: Option<&'a CertifiedKeyFiles>,
}

impl<'a> TlsClient<'a> {
    /// With TLS 1.3 and HTTP/1.1, to `localhost`.
    pub fn new(address: SocketAddr, authority: &'a Authority) -> Self {
        Self {
            address,
            authority,
            name: "localhost",
            protocols: &["http/1.1"],
            version: &version::TLS13,
            certificate: None,
        }
    }

    /// The client with its memory of sessions: connections by the same connector are resumed.
    pub fn connector(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der()).unwrap();
        let builder = ClientConfig::builder_with_provider(tls::provider()).with_protocol_versions(&[self.version]);
        let builder = builder.unwrap().with_root_certificates(roots);
        let mut client = match self.certificate {
            None => builder.with_no_client_auth(),
            Some(CertifiedKeyFiles { certificate, key }) => {
                let chain = tls::parse_certificates(certificate.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, tls::parse_private_key(key.as_bytes()).unwrap()).unwrap()
            }
        };
        client.alpn_protocols = self.protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(client))
    }

    pub async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from(self.name).unwrap();
        timeout(TEST_TIMEOUT, self.connector().connect(name, stream)).await.expect("the handshake takes too long")
    }

    /// A cleartext client: each of its connections is forwarded over a TLS connection.
    pub async fn tunnel(&self) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client { address: listener.local_addr().unwrap() };
        let (connector, address) = (self.connector(), self.address);
        let name = ServerName::try_from(self.name).unwrap();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (connector, name) = (connector.clone(), name.clone());
                tokio::spawn(async move {
                    let far = TcpStream::connect(address).await.unwrap();
                    // A refused client sees its connection end.
                    let Ok(mut far) = connector.connect(name, far).await else { return };
                    drop(copy_bidirectional(&mut near, &mut far).await);
                });
            }
        });
        client
    }
}

/// The service's behavior towards new connections.
#[derive(Clone)]
pub enum FrontMode {
    /// Terminates TLS and forwards to the service.
    Tls(Arc<ServerConfig>),
    /// Sends nothing, ever.
    Silent,
    /// Answers in cleartext, whatever it receives.
    Cleartext,
}

/// A TLS front of a service.
pub struct TlsFront {
    pub address: SocketAddr,
    mode: Arc<Mutex<FrontMode>>,
    opened: Arc<AtomicU32>,
}

impl TlsFront {
    pub async fn before(service: SocketAddr, mode: FrontMode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let front =
            Self { address: listener.local_addr().unwrap(), mode: Arc::new(Mutex::new(mode)), opened: Arc::default() };
        let (mode, opened) = (Arc::clone(&front.mode), Arc::clone(&front.opened));
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (mode, opened) = (mode.lock().unwrap().clone(), Arc::clone(&opened));
                tokio::spawn(async move {
                    match mode {
                        FrontMode::Tls(server) => {
                            let Ok(mut near) = TlsAcceptor::from(server).accept(near).await else { return };
                            opened.fetch_add(1, Ordering::Relaxed);
                            let mut far = TcpStream::connect(service).await.unwrap();
                            drop(copy_bidirectional(&mut near, &mut far).await);
                        }
                        FrontMode::Silent => std::future::pending().await,
                        FrontMode::Cleartext => {
                            drop(near.read(&mut [0; 1024]).await);
                            drop(near.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await);
                        }
                    }
                });
            }
        });
        front
    }

    /// Applies to new connections from now on.
    pub fn set(&self, mode: FrontMode) {
        *self.mode.lock().unwrap() = mode;
    }

    /// The number of completed handshakes.
    pub fn opened(&self) -> u32 {
        self.opened.load(Ordering::Relaxed)
    }
}
