//! The operators' listener and its token.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use harness::client::Client;
use harness::metrics::Metrics;
use harness::{Proxy, Response, Store, Upstream, World};

const TOKEN: &str = "c29tZXRoaW5nIHNlY3JldA==";

async fn ask(world: &World, method: &str, path: &str, authorization: &[&str]) -> Response {
    let admin = world.proxy.admin;
    let mut request = Client { address: admin }.request(method, path).host(&admin.to_string()).anonymous();
    for value in authorization {
        request = request.field("Authorization", value);
    }
    request.send().await
}

#[tokio::test]
async fn with_a_token_configured_all_requests_but_probes_need_it() {
    let token = format!("token = \"{TOKEN}\"");
    let start = async || World::with(Store::sqlite(), |setup| setup.admin(&token)).await;
    let bearer = format!("Bearer {TOKEN}");
    for wrong in [
        vec![],
        vec!["Bearer "],
        vec!["Bearer c29tZXRoaW5nIHNlY3JldA"],
        vec!["Bearer c29tZXRoaW5nIHNlY3JldA==="],
        vec!["Basic c29tZXRoaW5nIHNlY3JldA=="],
        vec![TOKEN],
        vec![&*bearer, &*bearer],
    ] {
        // An address that has shown five wrong tokens has to wait.
        let world = start().await;
        for (method, path) in [("GET", "/api/v1/drain"), ("POST", "/api/v1/drain"), ("GET", "/nowhere")] {
            let refusal = ask(&world, method, path, &wrong).await;
            assert_eq!(refusal.status, 401, "{method} {path} {wrong:?}");
            assert!(refusal.field("www-authenticate").unwrap().starts_with("Bearer "));
            assert_eq!(refusal.field("content-type"), Some("application/problem+json"));
            assert_eq!(refusal.problem()["status"], 401);
            assert!(!refusal.text().contains(TOKEN));
        }
    }
    let world = start().await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(ask(&world, "GET", path, &[]).await.status, 200, "{path}");
    }
    for right in [&*bearer, &format!("bearer {TOKEN}")] {
        assert_eq!(ask(&world, "GET", "/api/v1/drain", &[right]).await.status, 200, "{right}");
        assert_eq!(ask(&world, "GET", "/nowhere", &[right]).await.status, 404);
    }
    let foreign = Client { address: world.proxy.admin }.get("/api/v1/drain").host("evil.example");
    assert_eq!(foreign.field("Authorization", &bearer).send().await.status, 403, "a token is no excuse");
    assert_eq!(ask(&world, "POST", "/api/v1/drain", &[&bearer]).await.status, 202);
    assert_eq!(world.proxy.ended().await, Some(0));
    assert!(world.proxy.logged().iter().all(|line| !line.to_string().contains(TOKEN)));
}

#[tokio::test]
async fn a_refusal_before_the_body_keeps_the_connection_or_announces_the_close() {
    let world = World::with(Store::sqlite(), |setup| setup.admin(&format!("token = \"{TOKEN}\""))).await;
    let admin = Client { address: world.proxy.admin };
    let actions = admin.post("/api/v1/keys/actions").host(&world.proxy.admin.to_string());
    for length in [100, 20_000, 60_000] {
        let mut exchange = actions.clone().body("x".repeat(length)).open().await.unwrap();
        let refusal = exchange.response().await;
        assert_eq!((refusal.status, refusal.field("connection")), (401, None), "{length}");
        exchange.write(&admin.get("/healthz").host(&world.proxy.admin.to_string()).bytes()).await;
        assert_eq!(exchange.response().await.status, 200, "{length}");
    }
    let refusal = actions.body("x".repeat(200_000)).open_head().await.response().await;
    assert_eq!((refusal.status, refusal.field("connection")), (401, Some("close")));
}

/// Runs a command against the instance, and returns its exit code and standard error.
async fn command(world: &World, command: &str, token: Option<&str>, file: bool) -> (Option<i32>, String) {
    let mut run = std::process::Command::new(env!("CARGO_BIN_EXE_oncegate"));
    run.arg(command).arg("--admin").arg(world.proxy.admin.to_string());
    run.env_remove("ONCEGATE_CONFIG").env_remove("ONCEGATE_ADMIN_TOKEN");
    token.map(|token| run.env("ONCEGATE_ADMIN_TOKEN", token));
    if file {
        run.arg("--config").arg(world.proxy.file());
    }
    let output = tokio::task::spawn_blocking(move || run.output().unwrap()).await.unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn commands_send_the_token_from_the_environment_or_the_file() {
    for (token, file) in [(Some(TOKEN), false), (None, true)] {
        let line = format!("token = \"{TOKEN}\"");
        let world = World::with(Store::sqlite(), |setup| setup.admin(&line)).await;
        assert_eq!(command(&world, "healthcheck", None, false).await.0, Some(0), "probes need none");
        let (code, stderr) = command(&world, "drain", None, false).await;
        assert!(code == Some(1) && stderr.contains("401"), "{stderr}");
        let (code, stderr) = command(&world, "drain", Some("this is no token"), file).await;
        assert!(code == Some(78) && stderr.contains("ONCEGATE_ADMIN_TOKEN"), "{stderr}");
        let (code, stderr) = command(&world, "drain", Some("another-token-of-somebody"), file).await;
        assert!(code == Some(1) && stderr.contains("401") && !stderr.contains("another-token"), "{stderr}");
        assert_eq!(command(&world, "drain", token, file).await.0, Some(0));
        assert_eq!(world.proxy.ended().await, Some(0));
    }
}

#[tokio::test]
async fn a_listener_beyond_loopback_needs_a_token() {
    let setup = Proxy::on("memory:").upstream(Upstream::unused_address().await);
    let text = setup.text().replace("[admin]\nlisten = \"127.0.0.1:0\"", "[admin]\nlisten = \"0.0.0.0:0\"");
    let ended = harness::proxy::fails(&text).await;
    assert_eq!(ended.code, 78, "{ended:?}");
    for reported in ["admin.listen", "ONCEGATE_ADMIN_TOKEN", "openssl rand"] {
        assert!(ended.stderr.contains(reported), "{reported}: {ended:?}");
    }
}

#[tokio::test]
async fn on_loopback_too_a_token_is_needed_which_the_first_start_draws() {
    let mut world = World::with(Store::sqlite(), |setup| setup.admin("open = false")).await;
    let file = world.store.sqlite_file().with_extension("db.admin-token");
    let token = std::fs::read_to_string(&file).unwrap().trim_end().to_owned();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let named = world.proxy.wait_for_log("the admin listener's token is in this file").await;
    assert_eq!(named["file"], file.to_str().unwrap());
    let bearer = format!("Bearer {token}");
    for (method, path) in [("GET", "/api/v1/keys"), ("GET", "/api/v1/drain"), ("DELETE", "/api/v1/keys/00")] {
        assert_eq!(ask(&world, method, path, &[]).await.status, 401, "{method} {path}");
        assert_ne!(ask(&world, method, path, &[&bearer]).await.status, 401, "{method} {path}");
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(ask(&world, "GET", path, &[]).await.status, 200, "{path}");
    }
    let (code, stderr) = command(&world, "drain", None, false).await;
    assert!(code == Some(1) && stderr.contains("401"), "{stderr}");
    world.crash_and_restart().await;
    assert_eq!(ask(&world, "GET", "/api/v1/keys", &[&bearer]).await.status, 200, "the next start finds the token");
    assert_eq!(command(&world, "drain", None, true).await.0, Some(0), "the command reads the file");
    assert_eq!(world.proxy.ended().await, Some(0));
    assert!(world.proxy.logged().iter().all(|line| !line.to_string().contains(&token)));
}

#[tokio::test]
async fn the_token_s_file_may_be_anywhere_and_must_be_writable() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state/token");
    let lines = format!("token_file = {file:?}");
    let world = World::with(Store::sqlite(), |setup| setup.admin(&lines)).await;
    let bearer = format!("Bearer {}", std::fs::read_to_string(&file).unwrap().trim_end());
    assert_eq!(ask(&world, "GET", "/api/v1/keys", &[&bearer]).await.status, 200);
    assert_eq!(world.proxy.stop().await, Some(0));
    let nowhere = world.setup.text().replace("state/token", "state/token/below-a-file");
    let ended = harness::proxy::fails(&nowhere).await;
    assert!(ended.stderr.contains("admin token") && ended.stderr.contains("ONCEGATE_ADMIN_TOKEN"), "{}", ended.stderr);
}

/// Sends a request from another address of this machine, and returns the answer's status.
async fn ask_from_elsewhere(world: &World, path: &str, authorization: &str) -> u16 {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, 2), 0).into()).unwrap();
    let mut stream = socket.connect(world.proxy.admin).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: {authorization}\r\nConnection: close\r\n\r\n",
        world.proxy.admin
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn wrong_tokens_slow_their_address_down_and_are_counted_and_logged_without_the_guess() {
    let world = World::with(Store::sqlite(), |setup| setup.admin(&format!("token = \"{TOKEN}\""))).await;
    let mut statuses = Vec::new();
    for number in 0..50 {
        statuses.push(ask(&world, "GET", "/api/v1/keys", &[&format!("Bearer guessed-token-{number}")]).await.status);
    }
    assert_eq!((&statuses[..5], &statuses[5..]), (&[401; 5][..], &[429; 45][..]));
    let right = format!("Bearer {TOKEN}");
    let slowed = ask(&world, "GET", "/api/v1/keys", &[&right]).await;
    assert_eq!(slowed.status, 429, "no token of this address is looked at");
    assert!(slowed.field("retry-after").unwrap().parse::<u64>().unwrap() <= 61);
    assert_eq!(ask(&world, "GET", "/", &[&right]).await.status, 429, "nor for the page");
    assert_eq!(ask_from_elsewhere(&world, "/api/v1/keys", &right).await, 200);
    assert_eq!(Metrics::of(&world.proxy).await.get("oncegate_admin_denied_total"), 52.0);
    let denied: Vec<_> = world.proxy.logged().iter().map(ToString::to_string).collect();
    assert_eq!(denied.iter().filter(|line| line.contains("denied a request")).count(), 1, "{denied:?}");
    assert!(denied.iter().all(|line| !line.contains("guessed-token")));
}

#[tokio::test]
async fn the_read_token_may_look_and_not_change() {
    const READER: &str = "a-token-for-readers-only";
    let lines = format!("token = \"{TOKEN}\"\nread_token = \"{READER}\"");
    let world = World::with(Store::sqlite(), |setup| setup.admin(&lines)).await;
    assert_eq!(world.pay("k-1").send().await.status, 201);
    let bearer = format!("Bearer {READER}");
    let keys = ask(&world, "GET", "/api/v1/keys", &[&bearer]).await;
    assert_eq!(keys.status, 200);
    let keys: serde_json::Value = serde_json::from_str(&keys.text()).unwrap();
    let id = keys["keys"][0]["id"].as_str().unwrap();
    assert_eq!(ask(&world, "GET", &format!("/keys/{id}"), &[&bearer]).await.status, 200, "the page");
    for (method, path) in [
        ("DELETE", format!("/api/v1/keys/{id}")),
        ("POST", format!("/api/v1/keys/{id}/release")),
        ("POST", "/api/v1/keys/actions".to_owned()),
        ("POST", "/api/v1/drain".to_owned()),
    ] {
        assert_eq!(ask(&world, method, &path, &[&bearer]).await.status, 403, "{method} {path}");
    }
    let form = Client { address: world.proxy.admin }.post(&format!("/keys/{id}/purge")).field("Authorization", &bearer);
    let form = form.host(&world.proxy.admin.to_string()).field("Content-Type", "application/x-www-form-urlencoded");
    let refused = form.send().await;
    assert!(refused.status == 403 && refused.text().contains("may look and not change"), "{}", refused.text());
    let path = format!("/api/v1/keys/{id}?accept_risk=true");
    assert_eq!(ask(&world, "DELETE", &path, &[&format!("Bearer {TOKEN}")]).await.status, 200);
}
