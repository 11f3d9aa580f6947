//! Services behind TLS: whom the proxy believes, and that whom it does not believe has got nothing.

use crate::harness::tls::{Authority, Dial, Door, Front, Pair};
use crate::harness::{Answer, Proxy, Store, Upstream, World, on_both_stores, route};

/// A service behind TLS, and the proxy before it, which trusts the authority.
async fn world(store: Store, authority: &Authority, door: Door) -> (World, Front) {
    let upstream = Upstream::start().await;
    let front = Front::before(upstream.address, door).await;
    let setup = Proxy::on(&store.url())
        .environment("SSL_CERT_FILE", authority.file().to_str().unwrap())
        .top(&format!("upstream = \"https://localhost:{}\"", front.address.port()));
    let proxy = setup.start().await;
    (World { upstream, proxy, setup, store }, front)
}

fn good(authority: &Authority) -> Door {
    Door::Tls(authority.issues(&["localhost"]).server())
}

on_both_stores!(a_service_behind_tls_is_asked_once_and_its_connection_used_again);
async fn a_service_behind_tls_is_asked_once_and_its_connection_used_again(store: Store) {
    let authority = Authority::new();
    let (world, front) = world(store, &authority, good(&authority)).await;
    let first = world.pay("k-1").send().await;
    assert_eq!((first.status, first.told()), (201, Some("executed")));
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

on_both_stores!(whoever_cannot_show_who_it_is_has_got_nothing_and_a_retry_is_the_next_attempt);
async fn whoever_cannot_show_who_it_is_has_got_nothing_and_a_retry_is_the_next_attempt(store: Store) {
    let (authority, other) = (Authority::new(), Authority::new());
    let (world, front) = world(store, &authority, good(&authority)).await;
    let doors = [
        (
            "another-name",
            Door::Tls(authority.issues(&["elsewhere.example"]).server()),
            "not valid for name \"localhost\"",
        ),
        ("expired", Door::Tls(authority.issued_long_ago(&["localhost"]).server()), "certificate expired"),
        ("self-signed", Door::Tls(Pair::of_nobody(&["localhost"]).server()), "nobody who is trusted here"),
        ("another-authority", Door::Tls(other.issues(&["localhost"]).server()), "nobody who is trusted here"),
        ("cleartext", Door::Cleartext, "is no TLS"),
        ("silent", Door::Silent, "deadline has elapsed"),
    ];
    for (key, door, cause) in doors {
        front.set(door);
        let refusal = world.pay(key).send().await;
        assert_eq!(refusal.outcome(), (502, "upstream-unreachable".to_owned()), "{key}");
        assert_eq!(
            (refusal.told(), refusal.problem()["retry"].as_str()),
            (Some("released"), Some("same_key")),
            "{key}"
        );
        let logged = world.proxy.logged().into_iter().rev().find(|line| line["cause"].is_string()).unwrap();
        assert!(logged["cause"].as_str().unwrap().contains(cause), "{key}: {logged}");
        assert_eq!(world.get("/list").send().await.outcome().1, "upstream-unreachable", "{key}");
    }
    assert_eq!(world.upstream.calls(), 0);
    front.set(good(&authority));
    for key in ["another-name", "expired", "self-signed", "another-authority", "cleartext", "silent"] {
        let retry = world.pay(key).send().await;
        assert_eq!(
            (retry.told(), world.upstream.last().field("oncegate-attempt")),
            (Some("executed"), Some("2")),
            "{key}"
        );
    }
    assert_eq!(world.upstream.calls(), 6);
}

on_both_stores!(an_answer_that_is_lost_behind_tls_leaves_the_outcome_unknown);
async fn an_answer_that_is_lost_behind_tls_leaves_the_outcome_unknown(store: Store) {
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
async fn a_connection_that_the_service_has_ended_takes_no_request() {
    let authority = Authority::new();
    let (world, _front) = world(Store::sqlite(), &authority, good(&authority)).await;
    for number in 1..=10 {
        world.upstream.then(Answer::default().then_close());
        let response = world.pay(&format!("k-{number}")).send().await;
        assert_eq!((response.told(), response.text()), (Some("executed"), format!("effect {number}")));
        world.upstream.saw(|seen| seen.closed == number).await;
    }
}

#[tokio::test]
async fn large_bodies_come_through_whole_with_tls_on_both_sides() {
    let authority = Authority::new();
    let (store, upstream, folder) = (Store::sqlite(), Upstream::start().await, tempfile::tempdir().unwrap());
    let front = Front::before(upstream.address, good(&authority)).await;
    let files = authority.issues(&["localhost"]).write(folder.path());
    let proxy = Proxy::on(&store.url())
        .environment("SSL_CERT_FILE", authority.file().to_str().unwrap())
        .top(&format!("upstream = \"https://localhost:{}\"", front.address.port()))
        .top(&super::clients::tls(&files))
        .start()
        .await;
    let body: Vec<u8> = (0..5 * 1024 * 1024_u32).map(|number| (number % 251) as u8).collect();
    upstream.answers(Answer::status(200).body(body.clone()));
    let client = Dial::new(proxy.listen, &authority).tunnel().await;
    for request in
        [client.request("PUT", "/file").body(body.clone()), client.request("PUT", "/file").body(body.clone()).chunked()]
    {
        let response = request.send().await;
        assert!(response.body == body && upstream.last().body == body);
    }
    // Larger than the route keeps: streamed to the first one, and told to the next.
    let pay = client.post("/pay").key("k-1").body("x");
    let first = pay.send().await;
    assert!(first.body == body && first.told() == Some("executed"), "{:?}", first.told());
    assert_eq!(pay.send().await.outcome(), (409, "response-not-kept".to_owned()));
}

#[tokio::test]
async fn an_address_and_a_route_of_its_own_are_verified_alike() {
    let authority = Authority::new();
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    let by_address = Front::before(one.address, Door::Tls(authority.issues(&["127.0.0.1"]).server())).await;
    let by_name = Front::before(two.address, Door::Tls(authority.issues(&["localhost"]).server())).await;
    let store = Store::sqlite();
    let proxy = Proxy::on(&store.url())
        .environment("SSL_CERT_FILE", authority.file().to_str().unwrap())
        .top(&format!("upstream = \"https://{}\"", by_address.address))
        .route(&route("pay", &format!("upstream = \"https://localhost:{}\"", by_name.address.port())))
        .route(&route("charge", &format!("upstream = \"https://{}\"", by_name.address)))
        .start()
        .await;
    assert_eq!(proxy.post("/pay").key("k-1").body("x").send().await.told(), Some("executed"));
    let elsewhere = proxy.post("/charge").key("k-1").body("x").send().await;
    assert_eq!(elsewhere.outcome(), (502, "upstream-unreachable".to_owned()));
    assert_eq!(proxy.client().get("/").send().await.status, 201);
    assert_eq!((one.calls(), two.calls()), (1, 1));
}

#[tokio::test]
async fn without_an_authority_a_warning_says_that_nobody_will_be_believed() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let setup = Proxy::on("memory:").environment("SSL_CERT_FILE", empty.to_str().unwrap());
    let proxy = setup.top("upstream = \"https://localhost:1\"").start().await;
    proxy.logs("no certificate authority is known here").await;
}
