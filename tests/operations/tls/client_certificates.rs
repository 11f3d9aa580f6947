//! `client-cert` scopes: a caller is who the verified certificate of the connection says.

use std::fs;
use std::io;
use std::path::PathBuf;

use rustix::process::Signal;
use rustls::{HandshakeKind, version};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use harness::operator::oncegate;
use harness::proxy::{self, Setup};
use harness::tls::{Authority, CertifiedKeyFiles, TlsClient};
use harness::{Answer, Proxy, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores, route};

/// A proxy whose clients have certificates of one authority.
struct Mutual {
    world: World,
    server: Authority,
    clients: Authority,
    folder: TempDir,
}

/// The `[tls]` line of these files, with more keys.
fn tls((certificate, key): &(PathBuf, PathBuf), client_ca: &PathBuf, more: &str) -> String {
    format!("tls = {{ certificate = {certificate:?}, key = {key:?}, client_ca = {client_ca:?}{more} }}")
}

impl Mutual {
    async fn start(store: Store, more: &str) -> Self {
        let (server, clients, folder) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
        let client_ca = folder.path().join("clients.pem");
        fs::write(&client_ca, clients.pem()).unwrap();
        let top = tls(&server.issue(&["localhost"]).write(folder.path()), &client_ca, more);
        let pay = route("pay", "scope = [\"client-cert\"]");
        let world = World::with(store, |setup| setup.top(&top).route(&pay).route(&route("free", ""))).await;
        Self { world, server, clients, folder }
    }

    fn client<'a>(&'a self, certificate: Option<&'a CertifiedKeyFiles>) -> TlsClient<'a> {
        TlsClient { certificate, ..TlsClient::new(self.world.proxy.listen, &self.server) }
    }

    /// Sends a request on a connection of its own. Returns how the handshake went, the status and `Oncegate-Status`.
    async fn send(&self, connector: &TlsConnector, path: &str) -> io::Result<(HandshakeKind, u16, String)> {
        let stream = TcpStream::connect(self.world.proxy.listen).await?;
        let name = "localhost".try_into().unwrap();
        let mut stream = timeout(TEST_TIMEOUT, connector.connect(name, stream)).await.unwrap()?;
        let request = self.world.post(path).key("k-1").field("Connection", "close").body("x");
        stream.write_all(&request.bytes()).await?;
        let mut response = Vec::new();
        timeout(TEST_TIMEOUT, stream.read_to_end(&mut response)).await.unwrap()?;
        let text = String::from_utf8_lossy(&response).to_lowercase();
        let status = text.split(' ').nth(1).ok_or(io::ErrorKind::UnexpectedEof)?.parse().unwrap();
        let oncegate_status = text.lines().find_map(|line| line.strip_prefix("oncegate-status: "));
        let kind = stream.get_ref().1.handshake_kind().unwrap();
        Ok((kind, status, oncegate_status.unwrap_or_default().to_owned()))
    }

    async fn pays(&self, certificate: &CertifiedKeyFiles) -> (u16, String) {
        let (_, status, oncegate_status) =
            self.send(&self.client(Some(certificate)).connector(), "/pay").await.unwrap();
        (status, oncegate_status)
    }
}

fn executed() -> (u16, String) {
    (201, "executed".to_owned())
}

fn replayed() -> (u16, String) {
    (201, "replayed".to_owned())
}

on_both_stores!(a_renewed_certificate_is_the_same_caller_and_another_name_is_not);
async fn a_renewed_certificate_is_the_same_caller_and_another_name_is_not(store: Store) {
    let mutual = Mutual::start(store, "").await;
    let callers: [(&[&str], &[&str], &str); 6] = [
        (&["spiffe://shop/till"], &["till"], "till"),
        (&["till"], &[], "till"),
        (&[], &["till"], "till"),
        (&[], &[], "till"),
        (&[], &[], "desk"),
        (&["till", "desk"], &[], "till"),
    ];
    for (uris, hosts, name) in callers {
        let issue = || mutual.clients.issue_named(uris, hosts, name);
        assert_eq!(mutual.pays(&issue()).await, executed(), "{uris:?} {hosts:?} {name}");
        assert_eq!(mutual.pays(&issue()).await, replayed(), "{uris:?} {hosts:?} {name}");
    }
    // The most specific kind of name counts alone.
    let other = mutual.clients.issue_named(&["spiffe://shop/till"], &["desk"], "desk");
    assert_eq!(mutual.pays(&other).await, replayed());
    assert_eq!(mutual.world.upstream.calls(), callers.len());
}

#[tokio::test]
async fn a_resumed_session_has_the_callers_certificate() {
    let mutual = Mutual::start(Store::sqlite(), "").await;
    for (version, name) in [(&version::TLS13, "new"), (&version::TLS12, "old")] {
        let certificate = mutual.clients.issue_named(&[], &[], name);
        let connector = TlsClient { version, ..mutual.client(Some(&certificate)) }.connector();
        let first = mutual.send(&connector, "/pay").await.unwrap();
        assert_eq!(first, (HandshakeKind::Full, 201, "executed".to_owned()));
        let second = mutual.send(&connector, "/pay").await.unwrap();
        assert_eq!(second, (HandshakeKind::Resumed, 201, "replayed".to_owned()));
    }
    assert_eq!(mutual.world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_permission_to_replay_counts_for_one_certificate_alone() {
    let authority = Upstream::start().await;
    authority.answer_all(Answer::status(403));
    let mutual = Mutual::start(Store::sqlite(), "").await;
    let authorize = format!("replay = {{ authorize = \"http://{}/\", authorize_cache = \"1h\" }}", authority.address);
    let text = mutual.world.setup.text().replace("scope = [", &format!("{authorize}\nscope = ["));
    fs::write(mutual.world.proxy.file(), text).unwrap();
    mutual.world.proxy.wait_for_log("the configuration was reloaded").await;
    let callers = ["till", "desk"].map(|name| mutual.clients.issue_named(&[], &[], name));
    for caller in &callers {
        assert_eq!(mutual.pays(caller).await, executed());
    }
    eventually(TEST_TIMEOUT, async || (mutual.pays(&callers[0]).await.0 == 403).then_some(())).await;
    authority.then(Answer::status(200));
    assert_eq!(mutual.pays(&callers[0]).await, replayed());
    assert_eq!(mutual.pays(&callers[0]).await, replayed());
    assert_eq!(mutual.pays(&callers[1]).await.0, 403);
}

#[tokio::test]
async fn a_client_without_a_certificate_of_the_authority_is_not_served() {
    let mutual = Mutual::start(Store::sqlite(), "").await;
    let stranger = Authority::new().issue_named(&[], &[], "till");
    let expired = mutual.clients.issue_expired(&["till"]);
    for certificate in [None, Some(&stranger), Some(&expired)] {
        for version in [&version::TLS13, &version::TLS12] {
            let connector = TlsClient { version, ..mutual.client(certificate) }.connector();
            assert!(mutual.send(&connector, "/free").await.is_err());
        }
    }
    assert_eq!(mutual.world.upstream.calls(), 0);
}

#[tokio::test]
async fn an_optional_certificate_is_needed_only_where_the_scope_reads_it() {
    let mutual = Mutual::start(Store::sqlite(), ", client = \"optional\"").await;
    let nobody = mutual.client(None).connector();
    let (_, status, _) = mutual.send(&nobody, "/pay").await.unwrap();
    assert_eq!((status, mutual.world.upstream.calls()), (400, 0));
    let (_, status, oncegate_status) = mutual.send(&nobody, "/free").await.unwrap();
    assert_eq!((status, oncegate_status), executed());
    let stranger = Authority::new().issue_named(&[], &[], "till");
    assert!(mutual.send(&mutual.client(Some(&stranger)).connector(), "/free").await.is_err());
    assert_eq!(mutual.pays(&mutual.clients.issue_named(&[], &[], "till")).await, executed());
}

#[tokio::test]
async fn no_session_of_an_earlier_authority_is_resumed_after_a_reload() {
    let mutual = Mutual::start(Store::sqlite(), "").await;
    let before = mutual.clients.issue_named(&[], &[], "till");
    let connectors: Vec<_> = (0..20).map(|_| mutual.client(Some(&before)).connector()).collect();
    for connector in &connectors {
        assert_eq!(mutual.send(connector, "/pay").await.unwrap().1, 201);
    }
    let next = Authority::new();
    fs::write(mutual.folder.path().join("clients.pem"), next.pem()).unwrap();
    // The changed file is noticed without a signal.
    mutual.world.proxy.wait_for_log("the configuration was reloaded").await;
    let after = next.issue_named(&[], &[], "till");
    let mut in_a_row = 0;
    eventually(TEST_TIMEOUT, async || {
        let served = mutual.send(&mutual.client(Some(&after)).connector(), "/pay").await;
        in_a_row = if served.is_ok() { in_a_row + 1 } else { 0 };
        (in_a_row == 20).then_some(())
    })
    .await;
    for connector in &connectors {
        assert!(mutual.send(connector, "/pay").await.is_err());
    }
    // The name is the same, so the caller is.
    assert_eq!(mutual.pays(&after).await, replayed());
    fs::write(mutual.folder.path().join("clients.pem"), "no certificate").unwrap();
    mutual.world.proxy.signal(Signal::HUP);
    mutual.world.proxy.wait_for_log("the running one stays").await;
    assert_eq!(mutual.pays(&after).await, replayed());
}

#[tokio::test]
async fn check_and_explain_know_client_certificates() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let files = authority.issue(&["localhost"]).write(folder.path());
    let setup = |top: &str, lines: &str| {
        let setup: Setup = Proxy::on("memory:").top("upstream = \"http://127.0.0.1:1\"").top(top);
        setup.route(&route("pay", lines)).text()
    };
    let by_certificate = "scope = [\"client-cert\"]";
    let whole = tls(&files, &authority.file(), "");
    let alone = format!("tls = {{ client_ca = {:?} }}", authority.file());
    for (top, lines, words) in [
        ("tls = { client = \"optional\" }", by_certificate, "needs the authorities of clients' certificates"),
        (&*alone, "", "needs `certificate` and `key` beside it"),
        (&tls(&files, &files.1, ""), "", "has no certificate"),
    ] {
        let ended = proxy::fails(&setup(top, lines)).await;
        assert!(ended.stderr.contains(words), "{top}: {}", ended.stderr);
    }
    let file = folder.path().join("oncegate.toml");
    fs::write(&file, setup(&whole, by_certificate)).unwrap();
    let checked = oncegate("check", &file, &[]).await.out;
    assert!(checked.contains("client certificates of ") && checked.contains(", required"), "{checked}");
    let certificate = folder.path().join("client.pem");
    fs::write(&certificate, authority.issue_named(&["spiffe://a"], &[], "").certificate).unwrap();
    let request = ["POST", "/pay", "-H", "Idempotency-Key: k"];
    assert!(oncegate("explain", &file, &request).await.out.contains("400 scope-missing"));
    let with = [&request[..], &["--client-cert", certificate.to_str().unwrap()]].concat();
    let explained = oncegate("explain", &file, &with).await.out;
    assert!(explained.contains("client-cert (sha256 "), "{explained}");
}
