//! `oncegate explain`: the proxy's view of a request, without sending it.

use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use harness::proxy::Setup;
use harness::{Store, World, on_both_stores, route};

/// Runs `oncegate explain` with this configuration.
fn explain(setup: &Setup, arguments: &[&str]) -> String {
    let folder: TempDir = tempfile::tempdir().unwrap();
    let file = folder.path().join("oncegate.toml");
    std::fs::write(&file, setup.text()).unwrap();
    std::fs::write(folder.path().join("body"), BODY).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    let output = command.arg("explain").arg("-c").arg(&file).args(arguments).current_dir(&folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

pub fn json(setup: &Setup, arguments: &[&str]) -> Value {
    serde_json::from_str(&explain(setup, &[arguments, &["--json"]].concat())).unwrap()
}

const BODY: &str = r#"{ "b": 1.0, "a": "\u0041", "at": 7 }"#;
const ROUTE: &str = "fingerprint = { exclude = [\"json:/at\"], headers = [\"X-Tenant\"] }\nkey = { required = true }";
const CALLER: [&str; 2] = ["-H", "Authorization: Bearer a"];
const ASKED: [&str; 8] = [
    "-H",
    "Idempotency-Key: \"k-1\"",
    "-H",
    "content-type: application/json",
    "-H",
    "X-Tenant: a",
    "-H",
    "Authorization: Bearer top-secret",
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The fingerprints in the store, in the order of their keys.
async fn stored(world: World) -> Vec<String> {
    assert_eq!(world.proxy.stop().await, Some(0));
    match &world.store {
        Store::Sqlite(_) => {
            let store = rusqlite::Connection::open(world.store.sqlite_file()).unwrap();
            let mut rows = store.prepare("select fingerprint from keys order by key").unwrap();
            rows.query_map([], |row| Ok(hex(&row.get::<_, Vec<u8>>(0)?))).unwrap().map(Result::unwrap).collect()
        }
        Store::Postgres(database) => {
            let client = database.client().await;
            let rows = client.query("select fingerprint from oncegate.keys order by key", &[]).await.unwrap();
            rows.iter().map(|row| hex(row.get::<_, &[u8]>(0))).collect()
        }
    }
}

on_both_stores!(explain_prints_the_fingerprint_that_the_store_has);
async fn explain_prints_the_fingerprint_that_the_store_has(store: Store) {
    let secret = "secret = \"a secret of some length\"";
    let world =
        World::with(store, |setup| setup.top(secret).route(&route("pay", ROUTE)).route(&route("plain", ""))).await;
    let explained = [
        json(&world.setup, &[&["POST", "/pay?x=%31", "-d", "@body"], &ASKED[..]].concat()),
        json(&world.setup, &[&["POST", "/plain", "-H", "Idempotency-Key: k-2", "-d", "x"], &CALLER[..]].concat()),
        json(&world.setup, &[&["POST", "/plain", "-H", "Idempotency-Key: k-3"], &CALLER[..]].concat()),
    ];
    let pay = world.post("/pay?x=%31").key("k-1").field("x-tenant", "a").json(BODY);
    assert_eq!(pay.field("Authorization", "Bearer top-secret").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.post("/plain").key("k-2").body("x").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.post("/plain").key("k-3").send().await.oncegate_status(), Some("executed"));
    let explained_request: Vec<_> =
        explained.iter().map(|one| one["fingerprint"].as_str().unwrap().to_owned()).collect();
    assert_eq!(explained_request, stored(world).await);
}

fn setup() -> Setup {
    let off = route("off", "mode = \"off\"");
    harness::Proxy::on("memory:").top("upstream = \"http://localhost:1\"").route(&route("pay", ROUTE)).route(&off)
}

#[test]
fn explain_prints_the_route_key_scope_and_fingerprint() {
    let explained_request = json(&setup(), &[&["POST", "/pay?x=1", "-d", BODY], &ASKED[..]].concat());
    assert_eq!(
        (&explained_request["route"], &explained_request["key"], &explained_request["space"]),
        (&"pay".into(), &"k-1".into(), &"POST /pay".into())
    );
    assert_eq!(explained_request["canonical_body"], r#"{"a":"A","b":1}"#);
    assert_eq!(
        explained_request["parts"],
        serde_json::json!(["method", "path", "query:x", "header:x-tenant", "json:/a", "json:/b"])
    );
    assert_eq!(explained_request["fingerprint"].as_str().unwrap().len(), 64);
    let scope = explained_request["scope"].as_str().unwrap();
    assert!(scope.contains("authorization") && scope.contains("header:x-api-key"), "{scope}");
    assert!(!explained_request.to_string().contains("top-secret"), "a credential is never printed");
}

#[test]
fn explain_foretells_what_another_request_under_the_key_is_told() {
    let asked = [&["POST", "/pay", "-d", r#"{"amount":10,"ts":1,"at":1}"#], &ASKED[..]].concat();
    for (retry, code, advice, differs) in [
        (&["--retry", r#"{"at":2,"ts":1.0,"amount":10}"#][..], "same", None, None),
        (&["--retry", r#"{"amount":11,"ts":2}"#], "key-reused", Some("new_key"), Some("json:/amount, json:/ts")),
        (&["--retry", r#"{"amount":10,"ts":2}"#], "key-reused", Some("fix"), Some("json:/ts")),
        (&["--retry", r#"{"ts":1}"#], "key-reused", Some("fix"), Some("missing")),
        (
            &["--retry", r#"{"amount":10,"ts":1}"#, "--retry-header", "X-Tenant: b"],
            "key-reused",
            Some("new_key"),
            Some("header:x-tenant"),
        ),
        (&["--retry", "{}", "--retry-header", "Idempotency-Key: k-2"], "another-key", None, None),
        (&["--retry", "{}", "--retry-header", "Authorization: Bearer b"], "another-key", None, None),
    ] {
        let told = &json(&setup(), &[&asked[..], retry].concat())["retry"];
        let names = told["differs"].as_array();
        let names = names.map(|names| names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "));
        assert_eq!((told["code"].as_str(), told["retry"].as_str()), (Some(code), advice), "{retry:?}");
        assert_eq!(names.as_deref(), differs, "{retry:?}");
        let words = explain(&setup(), &[&asked[..], retry].concat());
        assert!(differs.is_none_or(|differs| words.contains(&format!("differs: {differs}. "))), "{words}");
    }
}

#[test]
fn explain_prints_the_same_as_text() {
    let arguments = [&["POST", "/pay?x=1", "--data", BODY], &ASKED[..]].concat();
    let (words, explained_request) = (explain(&setup(), &arguments), json(&setup(), &arguments));
    for (label, value) in [("route", "pay"), ("mode", "enforce"), ("key", "k-1"), ("space", "POST /pay")] {
        let line = words.lines().find(|line| line.split_whitespace().next() == Some(label)).unwrap();
        assert_eq!(line[label.len()..].trim(), value);
    }
    assert!(
        words.contains(explained_request["fingerprint"].as_str().unwrap()) && words.contains(r#"{"a":"A","b":1}"#),
        "{words}"
    );
    assert!(!words.contains("top-secret"), "{words}");
}

#[test]
fn explain_shows_the_form_in_which_a_body_counts() {
    // As `printf '{"a":1}' | gzip` has it, with a time in its header.
    let mut gzip = flate2::GzBuilder::new().mtime(7).write(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut gzip, br#"{ "a": 1 }"#).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("body.gz");
    std::fs::write(&file, gzip.finish().unwrap()).unwrap();
    let file = format!("@{}", file.display());
    let with = |coding: &'static str, data: &str| {
        let coding = ["-H", coding];
        let arguments = [&["POST", "/pay", "-d", data], &coding[..], &ASKED[..]].concat();
        (explain(&setup(), &arguments), json(&setup(), &arguments))
    };
    let [(words, decoded), (_, plain), (_, unknown)] = [
        with("content-encoding: gzip", &file),
        with("content-encoding: identity", r#"{"a":1}"#),
        with("content-encoding: br", r#"{"a":1}"#),
    ];
    assert!(words.contains("as json, decoded: {\"a\":1}"), "{words}");
    let form = |one: &Value| (one["body_form"].as_str().unwrap().to_owned(), one["body_decoded"].as_bool().unwrap());
    assert_eq!(form(&decoded), ("json".to_owned(), true));
    assert_eq!(form(&plain), ("json".to_owned(), false));
    assert_eq!(form(&unknown), ("encoded".to_owned(), false));
    assert_eq!(decoded["fingerprint"], plain["fingerprint"]);
    assert_ne!(decoded["fingerprint"], unknown["fingerprint"]);
}

#[test]
fn explain_shows_the_control_characters_of_a_body_escaped() {
    let multipart = "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\u{1b}[2J\u{202e}\r\n--b--\r\n";
    for (media_type, data, shown) in [
        ("multipart/form-data; boundary=b", multipart, "\\u{0}"),
        ("text/plain", "a\u{7f}\u{1b}]0;x\u{7}\r\nkey             forged", "a\\u{7f}\\u{1b}]0;x\\u{7}\\r\\nkey"),
    ] {
        let media_type = format!("Content-Type: {media_type}");
        let fields = ["-H", &media_type, "-H", "Idempotency-Key: k"];
        let words = explain(&setup(), &[&["POST", "/pay", "-d", data], &fields[..], &CALLER[..]].concat());
        assert!(words.contains(shown), "{words:?}");
        let is_shown = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
        assert!(words.chars().all(is_shown), "{words:?}");
        assert_eq!(words.lines().filter(|line| line.starts_with("key ")).count(), 1, "{words:?}");
    }
}

#[test]
fn explain_reads_a_body_from_a_file() {
    let arguments = |data: &'static str| [&["POST", "/pay", "-d", data], &ASKED[..]].concat();
    assert_eq!(json(&setup(), &arguments(BODY)), json(&setup(), &arguments("@body")));
}

#[test]
fn explain_names_unguarded_and_refused_requests() {
    let none = json(&setup(), &["GET", "/pay"]);
    assert_eq!((&none["route"], &none["fingerprint"]), (&Value::Null, &Value::Null));
    assert!(explain(&setup(), &["GET", "/pay"]).contains("unguarded"));
    let off = explain(&setup(), &["POST", "/off"]);
    assert!(off.lines().any(|line| line.starts_with("mode") && line.ends_with("off")), "{off}");
    let missing = explain(&setup(), &["POST", "/pay"]);
    assert!(missing.contains("400 key-missing"), "{missing}");
    let refused = json(&setup(), &["POST", "/pay", "-H", "Idempotency-Key: \"k"]);
    assert_eq!((&refused["status"], &refused["code"]), (&400.into(), &"key-invalid".into()));
}

#[test]
fn explain_prints_the_status_that_a_routes_dialect_gives_a_refusal() {
    let setup = harness::Proxy::on("memory:")
        .top("upstream = \"http://localhost:1\"")
        .route(&route("stripe", "dialect = \"stripe\"\nmax_request_body = \"8B\""))
        .route(&route("pay", "max_request_body = \"8B\""));
    let status = |path: &str| {
        let arguments = [&["POST", path, "-H", "Idempotency-Key: k", "-d", "123456789"], &CALLER[..]].concat();
        json(&setup, &arguments)["status"].clone()
    };
    assert_eq!((status("/stripe"), status("/pay")), (400.into(), 413.into()));
}

#[test]
fn explain_compares_equivalent_requests_as_equal() {
    let of = |target: &str, body: &str| {
        let arguments = [&["POST", target, "-d", body], &ASKED[..]].concat();
        json(&setup(), &arguments)["fingerprint"].as_str().unwrap().to_owned()
    };
    let first = of("/pay", BODY);
    assert_eq!(of("/pay", r#"{"a":"A","b":1}"#), first);
    assert_ne!(of("/pay", r#"{"a":"B","b":1}"#), first);
    assert_ne!(of("/pay?x=1", BODY), first);
}

#[test]
fn explain_refuses_exactly_the_requests_that_the_proxy_refuses() {
    let lines = "max_age = \"1h\"\nmax_request_body = \"8B\"";
    let setup = harness::Proxy::on("memory:")
        .top("upstream = \"http://localhost:1\"")
        .route(&route("pay", lines))
        .route(&route("mine", "scope = [\"authorization\"]"))
        .route(&route("off", "mode = \"off\"\nkey = { required = true }"));
    let asked =
        |more: &[&str]| json(&setup, &[&["POST", "/pay", "-H", "Idempotency-Key: k"], &CALLER[..], more].concat());
    assert_eq!(asked(&["-H", "Date: Sun, 06 Nov 1994 08:49:37 GMT"])["code"], "request-too-old");
    assert_eq!(asked(&["-d", "123456789"])["code"], "request-too-large");
    assert_eq!(asked(&["-d", "12345678"])["key"], "k");
    let keyless = json(&setup, &["POST", "/mine"]);
    assert_eq!((&keyless["key"], &keyless["code"]), (&Value::Null, &Value::Null), "it streams through");
    assert_eq!(json(&setup, &["POST", "/mine", "-H", "Idempotency-Key: k"])["code"], "scope-missing");
    assert_eq!(json(&setup, &["POST", "//pay/"])["code"], "path-ambiguous");
    let off = json(&setup, &["POST", "/off", "-d", "123456789"]);
    assert_eq!((&off["route"], &off["mode"], &off["code"]), (&"off".into(), &"off".into(), &Value::Null));
}
