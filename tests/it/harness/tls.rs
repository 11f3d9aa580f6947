//! Certificates of the tests' own, and TLS before a service and before a client that know nothing of it.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use oncegate::tls;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::PATIENCE;
use super::client::Client;

/// An authority that nobody else knows.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Pair {
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

    /// Its certificate, in a file.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for these names, be they addresses.
    pub fn issues(&self, names: &[&str]) -> Pair {
        self.signs(names, |_| ())
    }

    /// One that is no longer valid.
    pub fn issued_long_ago(&self, names: &[&str]) -> Pair {
        self.signs(names, |params| params.not_after = date_time_ymd(2020, 1, 1))
    }

    /// One for a client of this name.
    pub fn issues_to(&self, name: &str) -> Pair {
        self.signs(&[], |params| params.distinguished_name.push(DnType::CommonName, name))
    }

    fn signs(&self, names: &[&str], more: impl FnOnce(&mut CertificateParams)) -> Pair {
        let mut params = of_names(names);
        more(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    fn der(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }
}

fn of_names(names: &[&str]) -> CertificateParams {
    CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
}

impl Pair {
    /// Signed by itself.
    pub fn of_nobody(names: &[&str]) -> Self {
        let key = KeyPair::generate().unwrap();
        Self { certificate: of_names(names).self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
    }

    /// Writes both into a folder, as one who renews them does. The key is for its owner's eyes.
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

    pub fn server(&self) -> Arc<ServerConfig> {
        tls::server(self.certificate.as_bytes(), self.key.as_bytes()).unwrap()
    }
}

/// How a client speaks TLS.
pub struct Dial<'a> {
    pub address: SocketAddr,
    pub authority: &'a Authority,
    pub name: &'static str,
    pub protocols: &'static [&'static str],
    pub version: &'static SupportedProtocolVersion,
}

impl<'a> Dial<'a> {
    /// With TLS 1.3 and HTTP/1.1, to `localhost`.
    pub fn new(address: SocketAddr, authority: &'a Authority) -> Self {
        Self { address, authority, name: "localhost", protocols: &["http/1.1"], version: &version::TLS13 }
    }

    fn connector(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der()).unwrap();
        let builder = ClientConfig::builder_with_provider(tls::provider()).with_protocol_versions(&[self.version]);
        let mut client = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
        client.alpn_protocols = self.protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(client))
    }

    pub async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from(self.name).unwrap();
        timeout(PATIENCE, self.connector().connect(name, stream)).await.expect("the handshake takes too long")
    }

    /// A client that knows nothing of TLS: for each of its connections, one with TLS is made.
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
                    // Whoever is refused sees its connection end.
                    let Ok(mut far) = connector.connect(name, far).await else { return };
                    drop(copy_bidirectional(&mut near, &mut far).await);
                });
            }
        });
        client
    }
}

/// What a service does with who connects.
#[derive(Clone)]
pub enum Door {
    /// TLS, and behind it the service itself.
    Tls(Arc<ServerConfig>),
    /// Nothing, ever.
    Silent,
    /// An answer in cleartext, whatever was said.
    Cleartext,
}

/// TLS before a service.
pub struct Front {
    pub address: SocketAddr,
    door: Arc<Mutex<Door>>,
    opened: Arc<AtomicU32>,
}

impl Front {
    pub async fn before(service: SocketAddr, door: Door) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let front =
            Self { address: listener.local_addr().unwrap(), door: Arc::new(Mutex::new(door)), opened: Arc::default() };
        let (door, opened) = (Arc::clone(&front.door), Arc::clone(&front.opened));
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (door, opened) = (door.lock().unwrap().clone(), Arc::clone(&opened));
                tokio::spawn(async move {
                    match door {
                        Door::Tls(server) => {
                            let Ok(mut near) = TlsAcceptor::from(server).accept(near).await else { return };
                            opened.fetch_add(1, Ordering::Relaxed);
                            let mut far = TcpStream::connect(service).await.unwrap();
                            drop(copy_bidirectional(&mut near, &mut far).await);
                        }
                        Door::Silent => std::future::pending().await,
                        Door::Cleartext => {
                            drop(near.read(&mut [0; 1024]).await);
                            drop(near.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await);
                        }
                    }
                });
            }
        });
        front
    }

    /// For whoever comes from now on.
    pub fn set(&self, door: Door) {
        *self.door.lock().unwrap() = door;
    }

    /// How many handshakes came to a good end.
    pub fn opened(&self) -> u32 {
        self.opened.load(Ordering::Relaxed)
    }
}
