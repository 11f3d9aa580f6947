//! Fields with `_` for `-`, which services with a CGI-like interface take for the same field.

use harness::{Store, World, route};

const MISSPELLED: [(&str, &str); 9] = [
    ("Oncegate_Reservation", "forged"),
    ("Oncegate_Attempt", "7"),
    ("Oncegate-Recovery_Point", "charge_created"),
    ("X_Forwarded_For", "1.2.3.4"),
    ("X_Api_Key", "victim"),
    ("Idempotency_Key", "other"),
    ("X_HTTP_Method_Override", "DELETE"),
    ("X_Original_URL", "/admin"),
    ("X_Tenant", "victim"),
];

fn with_misspelled(request: harness::Request) -> harness::Request {
    MISSPELLED.iter().fold(request, |request, (name, value)| request.field(name, value))
}

#[tokio::test]
async fn a_field_that_is_spelled_like_one_of_ours_does_not_reach_the_service() {
    let world = World::guarding(Store::sqlite(), "scope = [\"authorization\", \"header:x-tenant?\"]").await;
    for request in [world.pay("k-1"), world.post("/pay").body("no key"), world.post("/elsewhere").body("x")] {
        let calls = world.upstream.calls();
        assert_eq!(with_misspelled(request).field("X_Own", "kept").send().await.status, 201);
        assert_eq!(world.upstream.calls(), calls + 1);
        let call = world.upstream.last();
        for (name, _) in &MISSPELLED[..8] {
            assert_eq!(call.field(&name.to_ascii_lowercase()), None, "{name} at {}", call.target);
        }
        assert_eq!(call.field("x_own"), Some("kept"));
        // A route's own scope is read on that route alone.
        assert_eq!(call.field("x_tenant").is_none(), call.target == "/pay");
    }
    let replay = with_misspelled(world.pay("k-1")).field("X_Own", "kept").send().await;
    assert_eq!(replay.oncegate_status(), Some("replayed"));
}

#[tokio::test]
async fn the_refusal_of_a_request_whose_key_is_in_a_field_with_underscores_names_that_field() {
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .route(&route("pay", "key = { required = true }"))
            .route(&route("order", "key = { from = [\"header:X-Order\", \"header:X_Order_Id\"], required = true }"))
            .route(&route("document", "key = { from = [\"header:X-Order\", \"json:/id\"], required = true }"))
    })
    .await;
    for (path, field, named) in [
        ("/pay", "Idempotency_Key", Some(("idempotency_key", "idempotency-key"))),
        ("/pay", "X_Api_Key", None),
        ("/order", "X_Order", Some(("x_order", "x-order"))),
        ("/document", "X_Order", Some(("x_order", "x-order"))),
    ] {
        let refusal = world.post(path).field(field, "k-1").json("{}").send().await;
        assert_eq!(refusal.outcome(), (400, "key-missing".to_owned()), "{path} {field}");
        let detail = refusal.problem()["detail"].as_str().unwrap().to_owned();
        let said = named.map(|(sent, right)| {
            format!("The field `{sent}` does not count, because it has `_` for `-`: send `{right}`.")
        });
        assert_eq!(detail.contains("does not count"), named.is_some(), "{path} {field}: {detail}");
        assert!(said.is_none_or(|said| detail.ends_with(&said)), "{path} {field}: {detail}");
    }
    assert_eq!(world.upstream.calls(), 0);
    let named = world.post("/order").field("X_Order_Id", "k-1").body("x").send().await;
    assert_eq!(named.oncegate_status(), Some("executed"), "the route names this spelling");
}

#[tokio::test]
async fn only_a_trusted_peer_may_name_the_target_that_the_client_asked_for() {
    for (trusted, reaches) in [("127.0.0.1", true), ("10.0.0.0/8", false)] {
        let world =
            World::with(Store::sqlite(), |setup| setup.top(&format!("trusted_proxies = [\"{trusted}\"]"))).await;
        for request in [world.pay("k-1"), world.get("/elsewhere")] {
            let request = request.field("X-Original-URL", "/a").field("X-Rewrite-URL", "/b");
            assert!(request.send().await.status < 300);
            let call = world.upstream.last();
            assert_eq!(
                (call.field("x-original-url").is_some(), call.field("x-rewrite-url").is_some()),
                (reaches, reaches)
            );
        }
    }
}
