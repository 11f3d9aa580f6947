//! The page of a gate with several services: it is about one of them, and leads to the others that a visitor may see.

use super::{Html, Visitor};
use harness::operator::Operator;
use harness::{Answer, Proxy, Store, TEST_TIMEOUT, Upstream, eventually, on_both_stores, service};

const GATE: &str = "the-token-of-the-gates-operators";
const OF_A: &str = "the-token-of-the-first-service";

async fn sign_in(proxy: &Proxy, token: &str) -> Visitor {
    let stranger = Visitor { address: proxy.admin, cookie: None, origin: format!("http://{}", proxy.admin) };
    let signed = stranger.submit("/sign-in", &[("name", "alice"), ("token", token)]).await;
    assert_eq!(signed.status, 303, "{}", signed.html());
    with_cookie(stranger, signed.field("set-cookie").unwrap())
}

/// The same visitor with one more cookie.
fn with_cookie(visitor: Visitor, set: &str) -> Visitor {
    let cookies = visitor.cookie.iter().map(String::as_str).chain(set.split(';').take(1));
    Visitor { cookie: Some(cookies.collect::<Vec<_>>().join("; ")), ..visitor }
}

on_both_stores!(an_operator_of_one_service_sees_its_keys_alone_and_that_of_the_gate_chooses);
async fn an_operator_of_one_service_sees_its_keys_alone_and_that_of_the_gate_chooses(store: Store) {
    let upstream = Upstream::start().await;
    let route = |name: &str| format!("name = \"pay-{name}\"\nservice = \"{name}\"\npath = \"/pay\"");
    let setup = Proxy::on(&store.url())
        .admin(&format!("token = \"{GATE}\""))
        .service(&format!("{}\ntoken = \"{OF_A}\"", service("a", upstream.address)))
        .service(&service("b", upstream.address));
    let proxy = setup.route(&route("a")).route(&route("b")).start().await;
    let mut ids = Vec::new();
    for name in ["a", "b"] {
        upstream.then(Answer::close());
        let request = proxy.post("/pay").host(&format!("{name}.example")).key(&format!("key-of-{name}")).body("x");
        assert_eq!(request.send().await.status, 502);
        let list =
            || Operator::of(&proxy).request("GET", "/api/v1/keys?state=unknown").field("X-Oncegate-Service", name);
        let list = || list().field("Authorization", &format!("Bearer {GATE}"));
        let found = async || {
            serde_json::from_slice::<serde_json::Value>(&list().send().await.body).ok()?["keys"][0]["id"]
                .as_str()
                .map(str::to_owned)
        };
        ids.push(eventually(TEST_TIMEOUT, found).await);
    }
    let all = ["/", "/keys?state=unknown", "/audit", "/messages", "/routes", "/instances", "/saved"];
    let own = sign_in(&proxy, OF_A).await;
    let stays = own.get("/services/b").await;
    assert_eq!((stays.status, stays.field("location")), (303, Some("/")));
    let chosen = format!("oncegate-service-{}=b", proxy.admin.port());
    for own in [own.clone(), with_cookie(own, stays.field("set-cookie").unwrap_or(&chosen))] {
        for path in all {
            let page = own.page(path).await;
            assert!(
                !page.contains("key-of-b") && !page.contains("pay-b") && !page.contains("/services/b"),
                "{path}: {page}"
            );
        }
        assert!(own.page("/keys?state=unknown").await.contains("key-of-a"));
        assert_eq!(own.get(&format!("/keys/{}", ids[1])).await.status, 404);
        let purge = format!("/keys/{}/purge", ids[1]);
        let token = own.token().await;
        let refused = own.form(&purge, &[("form", &token), ("accept_risk", "true")]).send().await;
        assert_eq!(refused.status, 404, "{}", refused.html());
    }

    let gate = sign_in(&proxy, GATE).await;
    assert!(
        gate.page("/keys?state=unknown").await.contains("key-of-a"),
        "the first one is there until another is chosen"
    );
    assert!(gate.page("/").await.contains("/services/b"));
    let chosen = gate.get("/services/b").await;
    assert_eq!((chosen.status, chosen.field("location")), (303, Some("/")));
    let gate = with_cookie(gate, chosen.field("set-cookie").unwrap());
    let page = gate.page("/keys?state=unknown").await;
    assert!(page.contains("key-of-b") && !page.contains("key-of-a"), "{page}");
    let saved = gate.page("/saved").await;
    assert!(saved.contains("pay-b") && saved.contains("The oldest"), "{saved}");
    let decided = gate.submit(&format!("/keys/{}/purge", ids[1]), &[("name", "alice"), ("accept_risk", "true")]).await;
    assert_eq!(decided.status, 303, "{}", decided.html());
    assert!(!gate.page("/keys?state=unknown").await.contains("key-of-b"));
}
