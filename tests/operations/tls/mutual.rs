//! Mutual TLS with services, and services with authorities and names of their own.

use std::path::Path;

use rustix::process::Signal;
use rustls::version;
use serde_json::Value;

use harness::h2::H2Upstream;
use harness::tls::{Authority, CertifiedKeyFiles, FrontMode, TlsFront};
use harness::{Proxy, Setup, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores, route};

const RELOADED: &str = "the configuration was reloaded";

fn before(store: &Store, front: &TlsFront) -> Setup {
    Proxy::on(&store.url()).top(&format!("upstream = \"https://localhost:{}\"", front.address.port()))
}

async fn started(store: Store, setup: Setup, upstream: Upstream) -> World {
    let proxy = setup.start().await;
    World { upstream, proxy, setup, store }
}

/// The lines for these files.
fn identity(authority: &Authority, files: &CertifiedKeyFiles, folder: &Path) -> String {
    let (certificate, key) = files.write(folder);
    format!("upstream_tls = {{ ca = {:?}, certificate = {certificate:?}, key = {key:?} }}", authority.file())
}

/// Waits until the proxy has logged this cause.
async fn wait_for_cause(proxy: &Proxy, cause: &str) {
    let is_about = |line: &Value| line["cause"].as_str().is_some_and(|found| found.contains(cause));
    eventually(TEST_TIMEOUT, async || proxy.logged().iter().any(is_about).then_some(())).await;
}

on_both_stores!(a_service_that_requires_a_certificate_executes_nothing_without_one);
async fn a_service_that_requires_a_certificate_executes_nothing_without_one(store: Store) {
    let (authority, clients, folder) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let files = authority.issue(&["localhost"]);
    let upstream = Upstream::start().await;
    let front = TlsFront::before(upstream.address, FrontMode::Silent).await;
    let ca_alone = format!("upstream_tls = {{ ca = {:?} }}", authority.file());
    let setup = before(&store, &front).route(&route("pay", ""));
    let world = started(store, setup.clone().top(&ca_alone), upstream).await;
    let modes = [
        ("tls-1.3", files.server_requiring(&clients, "http/1.1", &version::TLS13)),
        ("tls-1.2", files.server_requiring(&clients, "http/1.1", &version::TLS12)),
    ];
    for (key, mode) in &modes {
        front.set(FrontMode::Tls(mode.clone()));
        let refusal = world.pay(key).send().await;
        assert_eq!(
            (refusal.outcome(), refusal.oncegate_status()),
            ((502, "upstream-unreachable".to_owned()), Some("released")),
            "{key}"
        );
        let detail = refusal.problem()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("certificate"), "{key}: {detail}");
    }
    wait_for_cause(&world.proxy, "requires a client certificate and got none").await;
    assert_eq!(world.upstream.calls(), 0);
    // A reload gives it one.
    let identified = setup.top(&identity(&authority, &clients.issue_to_client("oncegate"), folder.path()));
    std::fs::write(world.proxy.file(), identified.text()).unwrap();
    world.proxy.signal(Signal::HUP);
    world.proxy.wait_for_log(RELOADED).await;
    for (key, mode) in &modes {
        front.set(FrontMode::Tls(mode.clone()));
        // Each worker applies it independently.
        let executed = eventually(TEST_TIMEOUT, async || {
            let answer = world.pay(key).send().await;
            (answer.status == 201).then_some(answer)
        });
        assert_eq!(executed.await.oncegate_status(), Some("executed"), "{key}");
        assert_eq!(world.pay(key).send().await.oncegate_status(), Some("replayed"), "{key}");
    }
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_certificate_that_the_service_refuses_is_named_as_the_cause_and_a_renewed_one_is_read() {
    let (authority, clients, folder) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let (store, service) = (Store::sqlite(), H2Upstream::start().await);
    let mode = authority.issue(&["localhost"]).server_requiring(&clients, "h2", &version::TLS13);
    let front = TlsFront::before(service.address, FrontMode::Tls(mode)).await;
    let expired = clients.issue_expired(&["oncegate"]);
    let lines = identity(&authority, &expired, folder.path());
    let setup = before(&store, &front).top(&lines).route(&route("pay", ""));
    let world = started(store, setup, Upstream::start().await).await;
    let refusal = world.pay("k-1").send().await;
    assert_eq!(refusal.outcome(), (502, "upstream-unreachable".to_owned()));
    wait_for_cause(&world.proxy, "refused the client certificate").await;
    // Half of a renewal is a problem, and the running pair stays.
    let next = clients.issue_to_client("oncegate");
    std::fs::write(folder.path().join("tls.key"), &next.key).unwrap();
    let kept = world.proxy.wait_for_log("the running one stays").await;
    assert!(kept["problem"].as_str().unwrap().contains("tls.key"), "{kept}");
    assert!(!world.proxy.output().contains("PRIVATE KEY"));
    assert_eq!(world.pay("k-1").send().await.outcome(), (502, "upstream-unreachable".to_owned()));
    assert!(service.seen().is_empty());
    // The whole renewal is read without a signal.
    next.write(folder.path());
    world.proxy.wait_for_log(RELOADED).await;
    eventually(TEST_TIMEOUT, async || (world.pay("k-1").send().await.status == 201).then_some(())).await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("replayed"));
    assert_eq!(service.seen().len(), 1);
}

#[tokio::test]
async fn a_route_has_authorities_and_a_name_of_its_own_and_takes_the_rest_from_the_top() {
    let (system, own, clients) = (Authority::new(), Authority::new(), Authority::new());
    let (store, folder, upstream) = (Store::sqlite(), tempfile::tempdir().unwrap(), Upstream::start().await);
    let requiring = own.issue(&["payments.internal"]).server_requiring(&clients, "http/1.1", &version::TLS13);
    let front = TlsFront::before(upstream.address, FrontMode::Tls(requiring)).await;
    let (certificate, key) = clients.issue_to_client("oncegate").write(folder.path());
    let top = format!("upstream_tls = {{ ca = {:?}, certificate = {certificate:?}, key = {key:?} }}", system.file());
    let lines = |table: &str| format!("upstream_tls = {{ {table} }}");
    let ca = format!("ca = {:?}", own.file());
    let setup = before(&store, &front)
        .top(&top)
        .route(&route("top", ""))
        .route(&route("ca", &lines(&ca)))
        .route(&route("name", "upstream_tls = { server_name = \"payments.internal\" }"))
        .route(&route("both", &lines(&format!("{ca}, server_name = \"payments.internal\""))))
        .route(&route(
            "anonymous",
            &lines(&format!("{ca}, server_name = \"payments.internal\", certificate = \"\", key = \"\"")),
        ));
    let world = started(store, setup, upstream).await;
    for (path, cause) in [
        ("/top", "no trusted authority"),
        ("/name", "no trusted authority"),
        ("/ca", "is for another name"),
        ("/anonymous", "requires a client certificate"),
    ] {
        let refusal = world.post(path).key("k-1").body("x").send().await;
        assert_eq!(refusal.outcome(), (502, "upstream-unreachable".to_owned()), "{path}");
        let detail = refusal.problem()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(cause), "{path}: {detail}");
        assert!(!detail.contains("payments"), "{path}: {detail}");
    }
    assert_eq!(world.upstream.calls(), 0);
    assert_eq!(world.post("/both").key("k-1").body("x").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 1);
}
