//! TLS clients are served as cleartext ones are, and validated as strictly.

use std::process::{Command, Output};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::version;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use harness::proxy::{self, Setup};
use harness::tls::{Authority, CertifiedKeyFiles, TlsClient};
use harness::{Answer, Client, Hold, Proxy, Store, TEST_TIMEOUT, World, on_both_stores};

/// A proxy with a TLS listener, and the certificates that clients need.
pub struct Secure {
    pub world: World,
    pub authority: Authority,
    pub folder: TempDir,
}

impl Secure {
    pub async fn start(store: Store) -> Self {
        let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
        let files = authority.issue(&["localhost"]).write(folder.path());
        let world = World::with(store, |setup| setup.top(&tls(&files))).await;
        Self { world, authority, folder }
    }

    pub fn dial(&self) -> TlsClient<'_> {
        TlsClient::new(self.world.proxy.listen, &self.authority)
    }

    /// A cleartext HTTP/1.1 client behind a TLS tunnel.
    pub async fn client(&self) -> Client {
        self.dial().tunnel().await
    }
}

/// The configuration lines for these files.
pub fn tls((certificate, key): &(std::path::PathBuf, std::path::PathBuf)) -> String {
    format!("tls = {{ certificate = {certificate:?}, key = {key:?} }}")
}

on_both_stores!(a_keyed_request_over_tls_is_executed_once_and_replayed);
async fn a_keyed_request_over_tls_is_executed_once_and_replayed(store: Store) {
    let secure = Secure::start(store).await;
    let pay = |client: Client| client.post("/pay").key("k-1").json(r#"{"amount":10}"#);
    let first = pay(secure.client().await).send().await;
    assert_eq!((first.status, first.oncegate_status()), (201, Some("executed")));
    let older = TlsClient { version: &version::TLS12, ..secure.dial() };
    assert_eq!(pay(older.tunnel().await).send().await.comparable(), first.replayed());
    assert_eq!(secure.world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_103_response_passes_over_tls_and_the_final_one_after_it() {
    let secure = Secure::start(Store::sqlite()).await;
    let (hold, body) = (Hold::new(), "x".repeat(1_000_000));
    let answer = Answer::status(200).body(body.clone());
    secure.world.upstream.then(answer.early_hints("Link: </style.css>; rel=preload").hold(&hold));
    let mut exchange = secure.client().await.get("/page").open().await.unwrap();
    let hint = exchange.any_head().await.unwrap();
    let link = ("link".to_owned(), "</style.css>; rel=preload".to_owned());
    assert_eq!((&*hint.start, hint.fields), ("HTTP/1.1 103 Early Hints", vec![link]));
    hold.release();
    let response = exchange.response().await;
    assert!(response.status == 200 && response.text() == body);
}

#[tokio::test]
async fn the_service_gets_the_https_scheme_in_forwarded_fields() {
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
async fn http_2_is_negotiated_by_alpn() {
    let secure = Secure::start(Store::sqlite()).await;
    let dial = TlsClient { protocols: &["h2", "http/1.1"], ..secure.dial() };
    let stream = dial.connect().await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for oncegate_status in ["executed", "replayed"] {
        let request = http::Request::post("https://localhost/pay")
            .header("authorization", "Bearer a")
            .header("idempotency-key", "k-1");
        let response = sender.send_request(request.body(Full::new(Bytes::from("x"))).unwrap()).await.unwrap();
        assert_eq!(response.headers()["oncegate-status"], oncegate_status);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "effect 1");
    }
    assert_eq!(secure.world.upstream.last().field("x-forwarded-proto"), Some("https"));
    let neither = TlsClient { protocols: &["smtp"], ..secure.dial() };
    assert!(neither.connect().await.unwrap_err().to_string().contains("NoApplicationProtocol"));
}

/// Runs a program if it is installed.
async fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    if !found.status.success() {
        harness::skip(format_args!("{program} is not installed"));
        return None;
    }
    let mut command = Command::new(program);
    command.args(arguments);
    Some(tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap())
}

#[tokio::test]
async fn curl_gets_a_replay_over_tls_with_http_1_and_http_2() {
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
        let words = [
            &usual[..],
            &[
                &address,
                protocol,
                "-H",
                "Authorization: Bearer a",
                "-H",
                "Idempotency-Key: k-1",
                "--json",
                "{\"a\":1}",
                &url,
            ],
        ]
        .concat();
        let Some(output) = run("curl", &words).await else { return };
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.starts_with(begins), "{protocol}: {said}");
        assert!(said.to_ascii_lowercase().contains(&format!("oncegate-status: {expected}")), "{protocol}: {said}");
        assert!(said.ends_with("effect 1"), "{protocol}: {said}");
    }
    assert_eq!(secure.world.upstream.calls(), 1);
}

#[tokio::test]
async fn openssl_negotiates_tls_1_2_and_1_3_and_nothing_older() {
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
        exchange.wait_until_closed().await;
    }
    assert_eq!(secure.world.upstream.calls(), 0);
}

#[tokio::test]
async fn requests_split_or_combined_in_tls_records_are_parsed_correctly() {
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
    let mut received = Vec::new();
    timeout(TEST_TIMEOUT, stream.read_to_end(&mut received)).await.expect("an end").unwrap();
    let received = String::from_utf8(received).unwrap();
    assert_eq!((received.matches("effect 1").count(), received.matches("effect 2").count()), (3, 1), "{received}");
}

#[tokio::test]
async fn a_tls_client_that_disconnects_ends_its_unguarded_request() {
    let secure = Secure::start(Store::sqlite()).await;
    let client = secure.client().await;
    for number in 1..=2 {
        secure.world.upstream.then(Answer::default().hold(&Hold::new()));
        let exchange = client.get("/silent").open().await.unwrap();
        secure.world.upstream.wait_for_executed(number).await;
        drop(exchange);
        secure.world.upstream.wait_until(|seen| seen.closed == number).await;
    }
    // Closes the connection without TLS's close_notify, as a killed client does.
    secure.world.upstream.then(Answer::default().hold(&Hold::new()));
    let mut stream = secure.dial().connect().await.unwrap();
    stream.write_all(&client.get("/silent").bytes()).await.unwrap();
    stream.flush().await.unwrap();
    secure.world.upstream.wait_for_executed(3).await;
    drop(stream);
    secure.world.upstream.wait_until(|seen| seen.closed == 3).await;
}

on_both_stores!(a_client_that_leaves_over_tls_changes_nothing_for_its_attempt);
async fn a_client_that_leaves_over_tls_changes_nothing_for_its_attempt(store: Store) {
    let secure = Secure::start(store).await;
    let hold = Hold::new();
    secure.world.upstream.then(Answer::default().hold(&hold));
    let client = secure.client().await;
    let pay = client.post("/pay").key("k-1").body("x");
    let exchange = pay.open().await.unwrap();
    secure.world.upstream.wait_for_executed(1).await;
    drop(exchange);
    hold.release();
    let replay = harness::eventually(TEST_TIMEOUT, async || {
        let retry = pay.send().await;
        (retry.status != 409).then_some(retry)
    });
    let replay = replay.await;
    assert_eq!((replay.oncegate_status(), replay.text()), (Some("replayed"), "effect 1".to_owned()));
}

#[tokio::test]
async fn a_cleartext_client_on_a_tls_listener_is_refused() {
    let secure = Secure::start(Store::sqlite()).await;
    let mut stream = secure.world.proxy.client().connect().await;
    stream.write_all(&secure.world.pay("k-1").bytes()).await.unwrap();
    let mut received = Vec::new();
    drop(timeout(TEST_TIMEOUT, stream.read_to_end(&mut received)).await.expect("the connection stays open"));
    assert!(!received.starts_with(b"HTTP/"), "{}", received.escape_ascii());
    assert_eq!(secure.world.upstream.calls(), 0);
}

#[tokio::test]
async fn an_unfinished_handshake_times_out_and_delays_no_other_client() {
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
        let mut received = Vec::new();
        drop(timeout(TEST_TIMEOUT, stream.read_to_end(&mut received)).await.expect("it is held for ever"));
    }
    assert!(begun.elapsed().as_secs() >= 9, "it was given up after {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_drain_waits_for_answers_and_not_for_handshakes() {
    let secure = Secure::start(Store::sqlite()).await;
    let hold = Hold::new();
    secure.world.upstream.then(Answer::default().hold(&hold));
    let client = secure.client().await;
    let running = client.post("/pay").key("k-1").body("x").spawn();
    secure.world.upstream.wait_for_executed(1).await;
    let mut idle = secure.world.proxy.client().connect().await;
    // Its connection is accepted by now, since the later one was served.
    client.get("/").send().await;
    let proxy = &secure.world.proxy;
    let (stopped, ()) = tokio::join!(proxy.stop(), async {
        drop(timeout(TEST_TIMEOUT, idle.read_to_end(&mut Vec::new())).await.expect("it is held for ever"));
        hold.release();
    });
    assert_eq!(stopped, Some(0));
    assert_eq!(running.await.unwrap().unwrap().text(), "effect 1");
}

async fn refused(setup: Setup, words: &[&str]) {
    let ended = setup.fails().await;
    assert_eq!(ended.code, 78, "{}", ended.stderr);
    for word in words {
        assert!(ended.stderr.contains(word), "{word}: {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("PRIVATE KEY-----\n"), "{}", ended.stderr);
}

#[tokio::test]
async fn invalid_certificate_files_are_named() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    std::fs::create_dir(&one).unwrap();
    std::fs::create_dir(&other).unwrap();
    let (certificate, key) = authority.issue(&["localhost"]).write(&one);
    let (_, other_key) = authority.issue(&["localhost"]).write(&other);
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
    refused(with(&rubbish, &key), &["tls.certificate", &shown(&rubbish), "no valid PEM"]).await;
    refused(with(&key, &key), &["tls.certificate", &shown(&key), "has no certificate"]).await;
    refused(with(&certificate, &certificate), &["tls.key", &shown(&certificate), "has no private key"]).await;
    refused(with(&certificate, &other_key), &["tls.key", &shown(&other_key), "does not belong"]).await;
    let alone = format!("upstream = \"http://127.0.0.1:1\"\n[tls]\ncertificate = {certificate:?}\n");
    let ended = proxy::fails(&alone).await;
    assert!(ended.code == 78 && ended.stderr.contains("needs a `key`"), "{}", ended.stderr);
}

#[tokio::test]
async fn a_world_readable_private_key_gives_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let files = CertifiedKeyFiles::self_signed(&["localhost"]).write(folder.path());
    let world = World::with(Store::sqlite(), |setup| setup.top(&tls(&files))).await;
    let is_warned = |world: &World| world.proxy.logged().iter().any(|line| line.to_string().contains("chmod o-r"));
    assert!(!is_warned(&world));
    std::fs::set_permissions(&files.1, PermissionsExt::from_mode(0o644)).unwrap();
    let world = World::with(Store::sqlite(), |setup| setup.top(&tls(&files))).await;
    assert!(is_warned(&world));
}
