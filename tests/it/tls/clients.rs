//! Clients that speak TLS are served as those in cleartext are, and looked at as strictly.

use std::process::{Command, Output};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::version;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use crate::harness::proxy::{self, Setup};
use crate::harness::tls::{Authority, Dial, Pair};
use crate::harness::{Answer, Client, Hold, PATIENCE, Proxy, Store, World, on_both_stores};

/// A proxy that clients speak TLS with, and what they need to know of it.
pub struct Secure {
    pub world: World,
    pub authority: Authority,
    pub folder: TempDir,
}

impl Secure {
    pub async fn start(store: Store) -> Self {
        let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
        let files = authority.issues(&["localhost"]).write(folder.path());
        let world = World::with(store, |setup| setup.top(&tls(&files))).await;
        Self { world, authority, folder }
    }

    pub fn dial(&self) -> Dial<'_> {
        Dial::new(self.world.proxy.listen, &self.authority)
    }

    /// HTTP/1.1 with TLS around it.
    pub async fn client(&self) -> Client {
        self.dial().tunnel().await
    }
}

/// The lines about these files.
pub fn tls((certificate, key): &(std::path::PathBuf, std::path::PathBuf)) -> String {
    format!("tls = {{ certificate = {certificate:?}, key = {key:?} }}")
}

on_both_stores!(a_keyed_request_over_tls_is_executed_once_and_replayed);
async fn a_keyed_request_over_tls_is_executed_once_and_replayed(store: Store) {
    let secure = Secure::start(store).await;
    let pay = |client: Client| client.post("/pay").key("k-1").json(r#"{"amount":10}"#);
    let first = pay(secure.client().await).send().await;
    assert_eq!((first.status, first.told()), (201, Some("executed")));
    let older = Dial { version: &version::TLS12, ..secure.dial() };
    assert_eq!(pay(older.tunnel().await).send().await.comparable(), first.replayed());
    assert_eq!(secure.world.upstream.calls(), 1);
}

#[tokio::test]
async fn the_service_hears_that_its_client_spoke_tls() {
    let secure = Secure::start(Store::sqlite()).await;
    let client = secure.client().await;
    client.post("/pay").key("k-1").body("x").send().await;
    let guarded = secure.world.upstream.last();
    client.get("/list").send().await;
    for seen in [guarded, secure.world.upstream.last()] {
        assert_eq!(seen.field("x-forwarded-proto"), Some("https"));
        assert!(seen.field("forwarded").unwrap().ends_with(";proto=https"), "{:?}", seen.field("forwarded"));
    }
}

#[tokio::test]
async fn http_2_is_chosen_by_alpn() {
    let secure = Secure::start(Store::sqlite()).await;
    let dial = Dial { protocols: &["h2", "http/1.1"], ..secure.dial() };
    let stream = dial.connect().await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for told in ["executed", "replayed"] {
        let request = http::Request::post("https://localhost/pay").header("idempotency-key", "k-1");
        let response = sender.send_request(request.body(Full::new(Bytes::from("x"))).unwrap()).await.unwrap();
        assert_eq!(response.headers()["oncegate-status"], told);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "effect 1");
    }
    assert_eq!(secure.world.upstream.last().field("x-forwarded-proto"), Some("https"));
    let neither = Dial { protocols: &["smtp"], ..secure.dial() };
    assert!(neither.connect().await.unwrap_err().to_string().contains("NoApplicationProtocol"));
}

/// Runs a program if it is installed.
async fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    if !found.status.success() {
        eprintln!("skipped: {program} is not installed");
        return None;
    }
    let mut command = Command::new(program);
    command.args(arguments);
    Some(tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap())
}

#[tokio::test]
async fn curl_gets_the_same_answer_again_over_tls_in_either_protocol() {
    let secure = Secure::start(Store::sqlite()).await;
    let (url, authority) =
        (format!("https://localhost:{}/pay", secure.world.proxy.listen.port()), secure.authority.file());
    let usual = ["--silent", "--include", "--cacert", authority.to_str().unwrap(), "--resolve"];
    let address = format!("localhost:{}:127.0.0.1", secure.world.proxy.listen.port());
    for (protocol, begins, expected) in [
        ("--http2", "HTTP/2 201", "executed"),
        ("--http1.1", "HTTP/1.1 201", "replayed"),
        ("--http2", "HTTP/2", "replayed"),
    ] {
        let words =
            [&usual[..], &[&address, protocol, "-H", "Idempotency-Key: k-1", "--json", "{\"a\":1}", &url]].concat();
        let Some(output) = run("curl", &words).await else { return };
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.starts_with(begins), "{protocol}: {said}");
        assert!(said.to_ascii_lowercase().contains(&format!("oncegate-status: {expected}")), "{protocol}: {said}");
        assert!(said.ends_with("effect 1"), "{protocol}: {said}");
    }
    assert_eq!(secure.world.upstream.calls(), 1);
}

#[tokio::test]
async fn openssl_finds_both_versions_of_tls_and_no_older_one() {
    let secure = Secure::start(Store::sqlite()).await;
    let (address, authority) = (secure.world.proxy.listen.to_string(), secure.authority.file());
    for (version, spoken) in [("-tls1_3", true), ("-tls1_2", true), ("-tls1_1", false)] {
        let words =
            ["s_client", "-connect", &address, version, "-CAfile", authority.to_str().unwrap(), "-verify_return_error"];
        let Some(output) = run("openssl", &words).await else { return };
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.contains("Verify return code: 0 (ok)") && output.status.success(), spoken, "{version}: {said}");
    }
}

#[tokio::test]
async fn ambiguous_framing_is_refused_behind_tls_too() {
    let secure = Secure::start(Store::sqlite()).await;
    let client = secure.client().await;
    for (request, status) in [
        ("POST /pay HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG", 400),
        (
            "POST /pay HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        ("POST /pay HTTP/1.1\r\nHost: h\r\nHost: i\r\nContent-Length: 0\r\n\r\n", 400),
        ("POST /pay HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400),
        ("POST /pay HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    ] {
        let mut exchange = client.raw(request.as_bytes()).await;
        let response = exchange.response().await;
        assert_eq!((response.status, response.outcome().1), (status, "bad-request".to_owned()), "{request:?}");
        exchange.closed().await;
    }
    assert_eq!(secure.world.upstream.calls(), 0);
}

#[tokio::test]
async fn a_head_in_many_records_and_two_requests_in_one_are_what_they_are() {
    let secure = Secure::start(Store::sqlite()).await;
    let mut stream = secure.dial().connect().await.unwrap();
    let request = secure.world.pay("k-1").bytes();
    for byte in &request {
        stream.write_all(&[*byte]).await.unwrap();
        stream.flush().await.unwrap();
    }
    let mut last = request.clone();
    last.splice(0..0, request);
    let end = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    stream.write_all(&[&last[..], end].concat()).await.unwrap();
    let mut heard = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut heard)).await.expect("an end").unwrap();
    let heard = String::from_utf8(heard).unwrap();
    assert_eq!((heard.matches("effect 1").count(), heard.matches("effect 2").count()), (3, 1), "{heard}");
}

#[tokio::test]
async fn a_client_that_leaves_ends_what_nothing_guards_behind_tls_too() {
    let secure = Secure::start(Store::sqlite()).await;
    let client = secure.client().await;
    for number in 1..=2 {
        secure.world.upstream.then(Answer::default().hold(&Hold::new()));
        let exchange = client.get("/silent").open().await.unwrap();
        secure.world.upstream.has_executed(number).await;
        drop(exchange);
        secure.world.upstream.saw(|seen| seen.closed == number).await;
    }
    // Without the word that ends TLS, as a client does that was killed.
    secure.world.upstream.then(Answer::default().hold(&Hold::new()));
    let mut stream = secure.dial().connect().await.unwrap();
    stream.write_all(&client.get("/silent").bytes()).await.unwrap();
    stream.flush().await.unwrap();
    secure.world.upstream.has_executed(3).await;
    drop(stream);
    secure.world.upstream.saw(|seen| seen.closed == 3).await;
}

on_both_stores!(a_client_that_leaves_over_tls_changes_nothing_for_its_attempt);
async fn a_client_that_leaves_over_tls_changes_nothing_for_its_attempt(store: Store) {
    let secure = Secure::start(store).await;
    let hold = Hold::new();
    secure.world.upstream.then(Answer::default().hold(&hold));
    let client = secure.client().await;
    let pay = client.post("/pay").key("k-1").body("x");
    let exchange = pay.open().await.unwrap();
    secure.world.upstream.has_executed(1).await;
    drop(exchange);
    hold.release();
    let replay = crate::harness::eventually(PATIENCE, async || {
        let retry = pay.send().await;
        (retry.status != 409).then_some(retry)
    });
    let replay = replay.await;
    assert_eq!((replay.told(), replay.text()), (Some("replayed"), "effect 1".to_owned()));
}

#[tokio::test]
async fn a_client_that_speaks_cleartext_to_it_gets_nowhere() {
    let secure = Secure::start(Store::sqlite()).await;
    let mut stream = secure.world.proxy.client().connect().await;
    stream.write_all(&secure.world.pay("k-1").bytes()).await.unwrap();
    let mut heard = Vec::new();
    drop(timeout(PATIENCE, stream.read_to_end(&mut heard)).await.expect("the connection stays open"));
    assert!(!heard.starts_with(b"HTTP/"), "{}", heard.escape_ascii());
    assert_eq!(secure.world.upstream.calls(), 0);
}

#[tokio::test]
async fn a_handshake_that_does_not_come_to_its_end_is_given_up_and_holds_nobody_up() {
    let secure = Secure::start(Store::sqlite()).await;
    let begun = Instant::now();
    let mut idle = Vec::new();
    for bytes in [&b""[..], &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..]] {
        let mut stream = secure.world.proxy.client().connect().await;
        stream.write_all(bytes).await.unwrap();
        idle.push(stream);
    }
    let client = secure.client().await;
    assert_eq!(client.post("/pay").key("k-1").body("x").send().await.status, 201);
    for mut stream in idle {
        let mut heard = Vec::new();
        drop(timeout(PATIENCE, stream.read_to_end(&mut heard)).await.expect("it is held for ever"));
    }
    assert!(begun.elapsed().as_secs() >= 9, "it was given up after {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_drain_waits_for_no_handshake_and_for_every_answer() {
    let secure = Secure::start(Store::sqlite()).await;
    let hold = Hold::new();
    secure.world.upstream.then(Answer::default().hold(&hold));
    let client = secure.client().await;
    let running = client.post("/pay").key("k-1").body("x").spawn();
    secure.world.upstream.has_executed(1).await;
    let mut idle = secure.world.proxy.client().connect().await;
    // Accepted by now: the one after it was served.
    client.get("/").send().await;
    let proxy = &secure.world.proxy;
    let (stopped, ()) = tokio::join!(proxy.stop(), async {
        drop(timeout(PATIENCE, idle.read_to_end(&mut Vec::new())).await.expect("it is held for ever"));
        hold.release();
    });
    assert_eq!(stopped, Some(0));
    assert_eq!(running.await.unwrap().unwrap().text(), "effect 1");
}

async fn refused(setup: Setup, words: &[&str]) {
    let ended = setup.fails().await;
    assert_eq!(ended.code, 78, "{}", ended.said);
    for word in words {
        assert!(ended.said.contains(word), "{word}: {}", ended.said);
    }
    assert!(!ended.said.contains("PRIVATE KEY-----\n"), "{}", ended.said);
}

#[tokio::test]
async fn files_that_do_not_make_a_certificate_are_named() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    std::fs::create_dir(&one).unwrap();
    std::fs::create_dir(&other).unwrap();
    let (certificate, key) = authority.issues(&["localhost"]).write(&one);
    let (_, other_key) = authority.issues(&["localhost"]).write(&other);
    let rubbish = folder.path().join("rubbish");
    std::fs::write(&rubbish, "-----BEGIN CERTIFICATE-----\nrubbish\n").unwrap();
    let none = folder.path().join("none");
    let with = |certificate: &std::path::Path, key: &std::path::Path| {
        let setup = Proxy::on("memory:").top("upstream = \"http://127.0.0.1:1\"");
        setup.top(&tls(&(certificate.to_owned(), key.to_owned())))
    };
    let shown = |path: &std::path::Path| format!("`{}`", path.display());
    refused(with(&none, &key), &["tls.certificate", &shown(&none), "cannot be read"]).await;
    refused(with(&certificate, &none), &["tls.key", &shown(&none), "cannot be read"]).await;
    refused(with(&rubbish, &key), &["tls.certificate", &shown(&rubbish), "no PEM"]).await;
    refused(with(&key, &key), &["tls.certificate", &shown(&key), "has no certificate"]).await;
    refused(with(&certificate, &certificate), &["tls.key", &shown(&certificate), "has no private key"]).await;
    refused(with(&certificate, &other_key), &["tls.key", &shown(&other_key), "does not belong"]).await;
    let alone = format!("upstream = \"http://127.0.0.1:1\"\n[tls]\ncertificate = {certificate:?}\n");
    let ended = proxy::fails(&alone).await;
    assert!(ended.code == 78 && ended.said.contains("needs a `key`"), "{}", ended.said);
}

#[tokio::test]
async fn a_key_that_everybody_can_read_is_warned_about() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let files = Pair::of_nobody(&["localhost"]).write(folder.path());
    let world = World::with(Store::sqlite(), |setup| setup.top(&tls(&files))).await;
    let said = |world: &World| world.proxy.logged().iter().any(|line| line.to_string().contains("chmod o-r"));
    assert!(!said(&world));
    std::fs::set_permissions(&files.1, PermissionsExt::from_mode(0o644)).unwrap();
    let world = World::with(Store::sqlite(), |setup| setup.top(&tls(&files))).await;
    assert!(said(&world));
}
