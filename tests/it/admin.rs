//! The operators' listener and its token.

use crate::harness::client::Client;
use crate::harness::{Proxy, Response, Store, Upstream, World};

const TOKEN: &str = "c29tZXRoaW5nIHNlY3JldA==";

async fn ask(world: &World, method: &str, path: &str, authorization: &[&str]) -> Response {
    let admin = world.proxy.admin;
    let mut request = Client { address: admin }.request(method, path).host(&admin.to_string());
    for value in authorization {
        request = request.field("Authorization", value);
    }
    request.send().await
}

#[tokio::test]
async fn with_a_token_configured_all_requests_but_probes_need_it() {
    let token = format!("token = \"{TOKEN}\"");
    let world = World::with(Store::sqlite(), |setup| setup.admin(&token)).await;
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
        for (method, path) in [("GET", "/api/v1/drain"), ("POST", "/api/v1/drain"), ("GET", "/nowhere")] {
            let refusal = ask(&world, method, path, &wrong).await;
            assert_eq!(refusal.status, 401, "{method} {path} {wrong:?}");
            assert!(refusal.field("www-authenticate").unwrap().starts_with("Bearer "));
            assert_eq!(refusal.field("content-type"), Some("application/problem+json"));
            assert_eq!(refusal.problem()["status"], 401);
            assert!(!refusal.text().contains(TOKEN));
        }
    }
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
    let ended = crate::harness::proxy::fails(&text).await;
    assert_eq!(ended.code, 78, "{ended:?}");
    for reported in ["admin.listen", "ONCEGATE_ADMIN_TOKEN", "openssl rand"] {
        assert!(ended.stderr.contains(reported), "{reported}: {ended:?}");
    }
}
