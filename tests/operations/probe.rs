//! `oncegate probe`: its verdicts about servers that hold, that do not, and of which nobody can tell.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::Value;
use tokio::task::spawn_blocking;

use harness::tls::{Authority, FrontMode, TlsFront};
use harness::{Answer, Hold, Store, TEST_TIMEOUT, Upstream, World, eventually};

const BODY: &str = r#"{"amount":10,"currency":"EUR"}"#;
const CALLER: [&str; 2] = ["-H", "Authorization: Bearer top-secret"];

/// A probe that has ended.
struct Probed {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Probed {
    /// Its report as JSON.
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("{} {}", self.out, self.err))
    }

    /// Each check with its verdict and its finding.
    fn findings(&self) -> Vec<(String, String, String)> {
        let text = |check: &Value, name: &str| check[name].as_str().unwrap().to_owned();
        let checks = self.json()["checks"].as_array().unwrap().clone();
        checks.iter().map(|check| (text(check, "check"), text(check, "verdict"), text(check, "finding"))).collect()
    }

    /// The finding of one check.
    fn finding(&self, check: &str) -> String {
        self.findings().into_iter().find(|(name, ..)| name == check).unwrap().2
    }
}

/// Probes `POST /pay` at this address.
async fn probe(address: SocketAddr, more: &[&str]) -> Probed {
    probe_url(&format!("http://{address}/pay"), more).await
}

async fn probe_url(url: &str, more: &[&str]) -> Probed {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.arg("probe").arg(url).args(CALLER).args(more).stdin(Stdio::null()).env_remove("SSL_CERT_FILE");
    let output = spawn_blocking(move || command.output()).await.unwrap().unwrap();
    Probed {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The expected findings, of which the first is always the same.
fn findings(expected: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    let all = [&[("first", "holds", "executed")], expected].concat();
    all.iter()
        .map(|(check, verdict, finding)| [check, verdict, finding].map(|text| (*text).to_owned()).into())
        .collect()
}

#[tokio::test]
async fn a_route_of_oncegate_holds() {
    let world = World::guarding(Store::sqlite(), "key = { required = true }").await;
    let hold = Hold::new();
    // The first request, the other key, and the first of the duplicates.
    world.upstream.then(Answer::default()).then(Answer::default()).then(Answer::default().hold(&hold));
    let conflicts = async || {
        let is_conflict = |line: &Value| line["status"] == 409;
        (world.proxy.logged().iter().filter(|line| is_conflict(line)).count() == 4).then_some(())
    };
    let release = async {
        eventually(TEST_TIMEOUT, conflicts).await;
        hold.release();
    };
    let (probed, ()) = tokio::join!(probe(world.proxy.listen, &["-d", BODY, "--json"]), release);
    let expected = findings(&[
        ("other-key", "holds", "executed-anew"),
        ("retry", "holds", "replayed"),
        ("duplicates", "holds", "executed-once"),
        ("other-body", "holds", "reuse-refused"),
        ("no-key", "info", "key-required"),
        ("policy", "info", "documented"),
    ]);
    assert_eq!(probed.findings(), expected, "{}", probed.out);
    assert_eq!((probed.code, &*probed.err), (Some(0), ""));
    let report = probed.json();
    assert_eq!(report["checks"][3]["statuses"].as_array().unwrap().iter().filter(|status| **status == 409).count(), 4);
    assert_eq!(report["checks"][2]["marker"], "idempotent-replayed: true");
    assert_eq!(report["checks"][4]["statuses"], serde_json::json!([422]));
    // The first, the other key, one of the duplicates, and the other body with a key of its own.
    assert_eq!((world.upstream.executed().len(), &report["requests"]), (4, &11.into()));
    let other = world.upstream.last();
    assert_eq!(other.body, br#"{"amount":11,"currency":"EUR"}"#);
    assert_eq!(report["checks"][4]["own_key"].as_str(), other.field("idempotency-key"));
}

#[tokio::test]
async fn a_service_without_keys_is_broken_and_executes_all() {
    let service = Upstream::start().await;
    let probed = probe(service.address, &["-d", BODY, "--json", "--duplicates", "3"]).await;
    let expected = findings(&[
        ("other-key", "holds", "executed-anew"),
        ("retry", "broken", "executed-again"),
        ("duplicates", "broken", "executed-many-times"),
        ("other-body", "broken", "reuse-accepted"),
        ("no-key", "info", "key-optional"),
        ("policy", "info", "undocumented"),
    ]);
    assert_eq!(probed.findings(), expected, "{}", probed.out);
    assert_eq!((probed.code, &probed.json()["verdict"]), (Some(1), &"broken".into()));
    assert_eq!(service.executed().len(), 8);
    let keys: Vec<_> = service.executed().iter().map(|call| call.field("idempotency-key").map(str::to_owned)).collect();
    let duplicates = [&keys[3], &keys[4], &keys[5]];
    assert!(keys[0] == keys[2] && keys[0] == keys[6] && keys[0] != keys[1] && keys[7].is_none(), "{keys:?}");
    assert!(duplicates.iter().all(|key| *key == duplicates[0] && *key != &keys[0]), "{keys:?}");
}

#[tokio::test]
async fn nobody_can_tell_of_a_service_whose_responses_are_all_equal() {
    let service = Upstream::start().await;
    service.answer_all(Answer::status(200).body("ok"));
    let probed = probe(service.address, &["--json"]).await;
    let expected = findings(&[
        ("other-key", "cannot-tell", "looks-the-same"),
        ("retry", "cannot-tell", "replayed-or-executed"),
        ("duplicates", "cannot-tell", "executed-once-or-more"),
        ("other-body", "info", "no-body"),
        ("no-key", "info", "key-optional"),
        ("policy", "info", "undocumented"),
    ]);
    assert_eq!(probed.findings(), expected, "{}", probed.out);
    assert_eq!((probed.code, &probed.json()["verdict"]), (Some(1), &"cannot-tell".into()));
}

#[tokio::test]
async fn the_differing_members_of_a_json_body_are_named_and_can_be_left_out() {
    let service = Upstream::start().await;
    let at = |at: u32| Answer::status(201).body(format!(r#"{{"id":1,"meta":{{"at":{at}}}}}"#));
    service.then(at(1)).then(Answer::status(201).body(r#"{"id":2,"meta":{"at":2}}"#)).then(at(3)).answer_all(at(4));
    let probed = probe(service.address, &["--json"]).await;
    assert_eq!(probed.json()["checks"][1]["differences"], serde_json::json!(["/id", "/meta/at"]));
    assert_eq!(probed.finding("retry"), "changed");
    assert_eq!(probed.json()["checks"][2]["differences"], serde_json::json!(["/meta/at"]));

    service.then(at(5)).then(Answer::status(201).body(r#"{"id":2,"meta":{"at":6}}"#));
    let ignoring = probe(service.address, &["--json", "--ignore", "/meta"]).await;
    assert_eq!(
        (ignoring.finding("retry"), ignoring.finding("duplicates")),
        ("replayed".into(), "executed-once".into())
    );
    assert_eq!((ignoring.code, &ignoring.json()["ignored"]), (Some(0), &serde_json::json!(["/meta"])));
}

#[tokio::test]
async fn a_body_that_is_refused_under_any_key_says_nothing_about_reuse() {
    let service = Upstream::start().await;
    // All before the other body, in the order of the requests.
    for _ in 0..8 {
        service.then(Answer::default());
    }
    service.then(Answer::status(422)).then(Answer::status(422));
    let probed = probe(service.address, &["--json", "-d", BODY, "--other-body", r#"{"unknown":1}"#]).await;
    assert_eq!(probed.finding("other-body"), "body-refused");
    let executed = service.executed();
    assert_eq!((&*executed[8].body, &*executed[9].body), (&br#"{"unknown":1}"#[..], &br#"{"unknown":1}"#[..]));
    assert_ne!(executed[8].field("idempotency-key"), executed[9].field("idempotency-key"));
}

#[tokio::test]
async fn nothing_else_is_sent_after_a_first_request_that_is_refused() {
    let service = Upstream::start().await;
    service.answer_all(Answer::status(401));
    let probed = probe(service.address, &["--json", "-d", BODY]).await;
    assert_eq!(
        probed.findings(),
        [("first", "cannot-tell", "not-executed")].map(|(a, b, c)| (a.into(), b.into(), c.into()))
    );
    assert_eq!((probed.code, service.executed().len()), (Some(1), 1));
}

#[tokio::test]
async fn the_key_can_have_another_name_quotes_or_a_place_in_the_body() {
    let service = Upstream::start().await;
    probe(service.address, &["--key-header", "PayPal-Request-Id", "--quoted-key"]).await;
    let quoted = service.executed()[0].field("paypal-request-id").unwrap().to_owned();
    assert!(quoted.len() == 38 && quoted.starts_with('"') && quoted.ends_with('"'), "{quoted}");
    assert_eq!(service.executed()[0].field("idempotency-key"), None);

    let before = service.executed().len();
    probe(service.address, &["--key-body", "/idempotency_key", "-d", r#"{"source":"card"}"#]).await;
    let sent = service.executed().split_off(before);
    let bodies: Vec<Value> = sent.iter().map(|call| serde_json::from_slice(&call.body).unwrap()).collect();
    let keys: Vec<_> = bodies.iter().map(|body| body["idempotency_key"].as_str()).collect();
    assert!(keys[0].is_some() && keys[0] == keys[2] && keys[0] != keys[1] && keys[9].is_none(), "{keys:?}");
    assert_eq!((keys[8], &bodies[8]["source"]), (keys[0], &"card2".into()));
    assert!(sent.iter().all(|call| call.field("idempotency-key").is_none()));

    let wrong = probe(service.address, &["--key-body", "/a/key", "-d", r#"{"a":1}"#]).await;
    assert!(wrong.code == Some(2) && wrong.err.contains("no place for a key at /a/key"), "{}", wrong.err);
    let twice = probe(service.address, &["-H", "Idempotency-Key: mine"]).await;
    assert!(twice.code == Some(2) && twice.err.contains("makes its own keys"), "{}", twice.err);
    assert_eq!(probe(service.address, &["--ignore", "id"]).await.code, Some(2));
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_no_finding() {
    let closed = probe(Upstream::unused_address().await, &["--json"]).await;
    assert_eq!((closed.code, &*closed.out), (Some(69), ""), "{}", closed.err);
    assert!(closed.err.contains("refused"), "{}", closed.err);
}

#[tokio::test]
async fn a_server_that_does_not_answer_in_time_leaves_the_outcome_open() {
    let service = Upstream::start().await;
    service.answer_all(Answer::never());
    let probed = probe(service.address, &["--json", "--timeout", "100ms"]).await;
    assert_eq!((probed.code, probed.finding("first")), (Some(1), "no-response".into()), "{}", probed.out);
}

#[tokio::test]
async fn another_machine_is_probed_only_after_a_confirmation() {
    let service = Upstream::start().await;
    // This address is not on this machine by its name, but connections to it stay here.
    let url = format!("http://0.0.0.0:{}/pay", service.address.port());
    let asked = probe_url(&url, &["-d", BODY]).await;
    assert_eq!((asked.code, &*asked.out, service.calls()), (Some(2), "", 0));
    assert!(asked.err.contains("up to 11 requests to 0.0.0.0") && asked.err.contains("--yes"), "{}", asked.err);
    let confirmed = probe_url(&url, &["-d", BODY, "--yes", "--json"]).await;
    assert_eq!((confirmed.code, service.calls()), (Some(1), 10), "{}", confirmed.err);
}

#[tokio::test]
async fn a_server_with_tls_is_verified_with_the_named_authority() {
    let (authority, service) = (Authority::new(), Upstream::start().await);
    let server = authority.issue(&["localhost"]).server();
    let front = TlsFront::before(service.address, FrontMode::Tls(server)).await;
    let url = format!("https://localhost:{}/pay", front.address.port());
    let ca = authority.file();
    let probed = probe_url(&url, &["--json", "--cacert", ca.to_str().unwrap()]).await;
    assert_eq!(probed.finding("retry"), "executed-again", "{}", probed.err);
    let untrusted = probe_url(&url, &["--cacert", Authority::new().file().to_str().unwrap()]).await;
    assert!(untrusted.code == Some(69) && untrusted.err.contains("no trusted authority"), "{}", untrusted.err);
}

#[tokio::test]
async fn the_members_of_the_json_report_stay() {
    let service = Upstream::start().await;
    let report = probe(service.address, &["--json", "-d", BODY]).await.json();
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(names(&report), "at checks draft ignored key_place method requests url verdict");
    assert_eq!(
        names(&report["checks"][0]),
        "check detail differences expected finding key marker own_key statuses verdict"
    );
    assert_eq!(report["draft"], "draft-ietf-httpapi-idempotency-key-header-07");
    assert_eq!((&report["method"], &report["key_place"]), (&"POST".into(), &"the field idempotency-key".into()));
    assert_eq!(report["url"], format!("http://{}/pay", service.address));
}

#[tokio::test]
async fn the_table_names_fields_and_keys_and_no_secret() {
    let service = Upstream::start().await;
    let probed = probe_url(&format!("http://{}/pay?token=hidden", service.address), &["-d", BODY]).await;
    assert!(
        probed.out.starts_with(&format!("POST http://{}/pay?…: it does not hold\n", service.address)),
        "{}",
        probed.out
    );
    assert_eq!(probed.out.lines().filter(|line| line.starts_with("| ")).count(), 8, "{}", probed.out);
    let key = service.executed()[0].field("idempotency-key").unwrap().to_owned();
    assert!(probed.out.contains(&key) && probed.out.contains("authorization"), "{}", probed.out);
    assert!(!probed.out.contains("top-secret") && !probed.out.contains("hidden"), "{}", probed.out);
    assert!(probed.err.contains("expectations that do not hold: 3"), "{}", probed.err);
}
