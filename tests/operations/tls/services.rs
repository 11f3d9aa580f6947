//! Services behind TLS: the proxy verifies their certificate, and an unverified service gets nothing.

use harness::tls::{Authority, CertifiedKeyFiles, FrontMode, TlsClient, TlsFront};
use harness::{Answer, Proxy, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores, route};

/// A service behind TLS, and a proxy in front of it that trusts the authority.
async fn world(store: Store, authority: &Authority, mode: FrontMode) -> (World, TlsFront) {
    let upstream = Upstream::start().await;
    let front = TlsFront::before(upstream.address, mode).await;
    let setup = Proxy::on(&store.url())
        .environment("SSL_CERT_FILE", authority.file().to_str().unwrap())
        .top(&format!("upstream = \"https://localhost:{}\"", front.address.port()));
    let proxy = setup.start().await;
    (World { upstream, proxy, setup, store }, front)
}

fn good(authority: &Authority) -> FrontMode {
    FrontMode::Tls(authority.issue(&["localhost"]).server())
}

on_both_stores!(a_tls_service_is_called_once_and_its_connection_is_reused);
async fn a_tls_service_is_called_once_and_its_connection_is_reused(store: Store) {
    let authority = Authority::new();
    let (world, front) = world(store, &authority, good(&authority)).await;
    let first = world.pay("k-1").send().await;
    assert_eq!((first.status, first.oncegate_status()), (201, Some("executed")));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    let seen = world.upstream.last();
    assert_eq!((seen.field("host"), seen.field("x-forwarded-proto")), (Some("shop.example"), Some("http")));
    for number in 0..20 {
        assert_eq!(world.pay(&format!("n-{number}")).send().await.status, 201);
    }
    assert_eq!(world.upstream.calls(), 21);
    // One for each worker at most.
    assert!(front.opened() < 21, "{}", front.opened());
    assert_eq!(world.get("/list").send().await.text(), "effect 22");
}

on_both_stores!(an_unverified_service_gets_nothing_and_a_retry_is_the_next_attempt);
async fn an_unverified_service_gets_nothing_and_a_retry_is_the_next_attempt(store: Store) {
    let (authority, other) = (Authority::new(), Authority::new());
    let (world, front) = world(store, &authority, good(&authority)).await;
    let doors = [
        (
            "another-name",
            FrontMode::Tls(authority.issue(&["elsewhere.example"]).server()),
            "not valid for name \"localhost\"",
        ),
        ("expired", FrontMode::Tls(authority.issue_expired(&["localhost"]).server()), "certificate expired"),
        (
            "self-signed",
            FrontMode::Tls(CertifiedKeyFiles::self_signed(&["localhost"]).server()),
            "no trusted authority",
        ),
        ("another-authority", FrontMode::Tls(other.issue(&["localhost"]).server()), "no trusted authority"),
        ("cleartext", FrontMode::Cleartext, "does not speak TLS"),
        ("silent", FrontMode::Silent, "deadline has elapsed"),
    ];
    for (key, mode, cause) in doors {
        front.set(mode);
        let refusal = world.pay(key).send().await;
        assert_eq!(refusal.outcome(), (502, "upstream-unreachable".to_owned()), "{key}");
        assert_eq!(
            (refusal.oncegate_status(), refusal.problem()["retry"].as_str()),
            (Some("released"), Some("same_key")),
            "{key}"
        );
        let is_about = |line: &serde_json::Value| line["cause"].as_str().is_some_and(|found| found.contains(cause));
        eventually(TEST_TIMEOUT, async || world.proxy.logged().iter().any(is_about).then_some(())).await;
        assert_eq!(world.get("/list").send().await.outcome().1, "upstream-unreachable", "{key}");
    }
    assert_eq!(world.upstream.calls(), 0);
    front.set(good(&authority));
    for key in ["another-name", "expired", "self-signed", "another-authority", "cleartext", "silent"] {
        let retry = world.pay(key).send().await;
        assert_eq!(
            (retry.oncegate_status(), world.upstream.last().field("oncegate-attempt")),
            (Some("executed"), Some("2")),
            "{key}"
        );
    }
    assert_eq!(world.upstream.calls(), 6);
}

on_both_stores!(an_answer_lost_over_tls_leaves_the_outcome_unknown);
async fn an_answer_lost_over_tls_leaves_the_outcome_unknown(store: Store) {
    let authority = Authority::new();
    let (world, _front) = world(store, &authority, good(&authority)).await;
    for (key, answer) in [("closed", Answer::close()), ("half", Answer::status(200).body("some body").cut_after(4))] {
        world.upstream.then(answer);
        assert_eq!(world.pay(key).send().await.outcome(), (502, "upstream-broken".to_owned()), "{key}");
        let calls = world.upstream.calls();
        assert_eq!(world.pay(key).send().await.outcome(), (409, "outcome-unknown".to_owned()), "{key}");
        assert_eq!(world.upstream.calls(), calls, "{key}");
    }
}

#[tokio::test]
async fn a_tls_connection_closed_by_the_service_is_not_reused() {
    let authority = Authority::new();
    let (world, _front) = world(Store::sqlite(), &authority, good(&authority)).await;
    for number in 1..=10 {
        world.upstream.then(Answer::default().then_close());
        let response = world.pay(&format!("k-{number}")).send().await;
        assert_eq!((response.oncegate_status(), response.text()), (Some("executed"), format!("effect {number}")));
        world.upstream.wait_until(|seen| seen.closed == number).await;
    }
}

#[tokio::test]
async fn large_bodies_pass_complete_with_tls_on_both_sides() {
    let authority = Authority::new();
    let (store, upstream, folder) = (Store::sqlite(), Upstream::start().await, tempfile::tempdir().unwrap());
    let front = TlsFront::before(upstream.address, good(&authority)).await;
    let files = authority.issue(&["localhost"]).write(folder.path());
    let proxy = Proxy::on(&store.url())
        .environment("SSL_CERT_FILE", authority.file().to_str().unwrap())
        .top(&format!("upstream = \"https://localhost:{}\"", front.address.port()))
        .top(&super::clients::tls(&files))
        .start()
        .await;
    let body: Vec<u8> = (0..5 * 1024 * 1024_u32).map(|number| (number % 251) as u8).collect();
    upstream.answer_all(Answer::status(200).body(body.clone()));
    let client = TlsClient::new(proxy.listen, &authority).tunnel().await;
    for request in
        [client.request("PUT", "/file").body(body.clone()), client.request("PUT", "/file").body(body.clone()).chunked()]
    {
        let response = request.send().await;
        assert!(response.body == body && upstream.last().body == body);
    }
    // Larger than the route's limit: streamed to the first client, and not replayed to the next.
    let pay = client.post("/pay").key("k-1").body("x");
    let first = pay.send().await;
    assert!(first.body == body && first.oncegate_status() == Some("executed"), "{:?}", first.oncegate_status());
    assert_eq!(pay.send().await.outcome(), (409, "response-not-kept".to_owned()));
}

#[tokio::test]
async fn ip_addresses_and_services_with_hosts_are_verified_alike() {
    let authority = Authority::new();
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    let by_address = TlsFront::before(one.address, FrontMode::Tls(authority.issue(&["127.0.0.1"]).server())).await;
    let by_name = TlsFront::before(two.address, FrontMode::Tls(authority.issue(&["localhost"]).server())).await;
    let store = Store::sqlite();
    let port = by_name.address.port();
    let proxy = Proxy::on(&store.url())
        .environment("SSL_CERT_FILE", authority.file().to_str().unwrap())
        .top(&format!("upstream = \"https://{}\"", by_address.address))
        .service(&format!("name = \"named\"\nhost = \"named.example\"\nupstream = \"https://localhost:{port}\""))
        .service(&format!("name = \"other\"\nhost = \"other.example\"\nupstream = \"https://127.0.0.1:{port}\""))
        .route(&route("pay", "service = \"named\""))
        .route(&route("charge", "service = \"other\""))
        .start()
        .await;
    assert_eq!(
        proxy.post("/pay").host("named.example").key("k-1").body("x").send().await.oncegate_status(),
        Some("executed")
    );
    let elsewhere = proxy.post("/charge").host("other.example").key("k-1").body("x").send().await;
    assert_eq!(elsewhere.outcome(), (502, "upstream-unreachable".to_owned()));
    assert_eq!(proxy.client().get("/").send().await.status, 201);
    assert_eq!((one.calls(), two.calls()), (1, 1));
}

#[tokio::test]
async fn a_missing_authority_gives_a_warning_that_no_service_can_be_verified() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let setup = Proxy::on("memory:").environment("SSL_CERT_FILE", empty.to_str().unwrap());
    let proxy = setup.top("upstream = \"https://localhost:1\"").start().await;
    proxy.wait_for_log("no certificate authority was found").await;
}
