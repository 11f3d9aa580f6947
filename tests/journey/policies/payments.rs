//! Payments of machines: a 402 that says how to pay, proofs of payment as credentials, and methods that change nothing.

use harness::{Answer, Store, World, on_both_stores, route};

on_both_stores!(a_402_that_says_how_to_pay_is_released_and_any_other_is_stored);
async fn a_402_that_says_how_to_pay_is_released_and_any_other_is_stored(store: Store) {
    let world = World::with(store, |setup| {
        setup
            .route(&route("pay", ""))
            .route(&route("stripe", "dialect = \"stripe\""))
            .route(&route("listed", "store_statuses = [\"2xx\", \"402\"]"))
            .route(&route("all", "release_statuses = [\"402\"]"))
    })
    .await;
    let released = ["released", "executed", "replayed"];
    let stored = ["executed", "replayed", "replayed"];
    let x402 = ("PAYMENT-REQUIRED", "eyJ4NDAyVmVyc2lvbiI6Mn0=");
    let scheme = |challenge| ("WWW-Authenticate", challenge);
    for (number, (path, field, seen)) in [
        ("/pay", Some(x402), released),
        ("/pay", Some(("X-PAYMENT-REQUIRED", "e30=")), released),
        ("/pay", Some(scheme("Payment id=\"a\", method=\"tempo\", intent=\"charge\"")), released),
        ("/pay", Some(scheme("Bearer realm=\"a\", Payment id=\"a\"")), released),
        ("/pay", Some(scheme("L402 macaroon=\"a\", invoice=\"b\"")), released),
        ("/pay", Some(scheme("Bearer realm=\"Payment\"")), stored),
        // A declined card.
        ("/pay", None, stored),
        ("/stripe", None, stored),
        ("/stripe", Some(x402), released),
        // A list that names the code decides about all of them.
        ("/listed", Some(x402), stored),
        ("/all", None, released),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = field.map_or(Answer::status(402), |(name, value)| Answer::status(402).field(name, value));
        world.upstream.then(answer);
        for oncegate_status in seen {
            let response = world.post(path).key(&format!("k-{number}")).body("x").send().await;
            assert_eq!(response.oncegate_status(), Some(oncegate_status), "{path} {field:?}");
        }
    }
}

on_both_stores!(a_client_that_pays_for_each_try_is_one_caller_by_what_stands_beside_the_payment);
async fn a_client_that_pays_for_each_try_is_one_caller_by_what_stands_beside_the_payment(store: Store) {
    let world = World::start(store).await;
    let request = |key: &str| world.pay("k-1").anonymous().field("X-Api-Key", key);
    let paid = |key: &str, payment: &str| request(key).field("Authorization", &format!("Payment {payment}"));
    world.upstream.then(Answer::status(402).field("WWW-Authenticate", "Payment id=\"a\""));
    for (request, oncegate_status) in [
        (request("a"), "released"),
        (paid("a", "eyJpZCI6IjEifQ"), "executed"),
        (paid("a", "eyJpZCI6IjIifQ"), "replayed"),
        (request("a"), "replayed"),
        (paid("b", "eyJpZCI6IjIifQ"), "executed"),
    ] {
        assert_eq!(request.send().await.oncegate_status(), Some(oncegate_status));
    }
    // A payment alone names nobody, and a user's cookie beside it is not read.
    let alone = world.pay("k-1").field("Authorization", "payment eyJpZCI6IjMifQ");
    for nobody in [alone.clone(), alone.field("Cookie", "session=a"), paid("a", "x").field("Cookie", "session=a")] {
        let refusal = nobody.send().await;
        assert_eq!(refusal.outcome(), (400, "scope-missing".to_owned()));
        let detail = refusal.problem()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("`Payment` pay for one try") && detail.contains("`client-cert`"), "{detail}");
    }
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn a_method_that_changes_nothing_needs_no_guard() {
    let world =
        World::with(Store::sqlite(), |setup| setup.top("unguarded = \"refuse\"").route(&route("pay", ""))).await;
    for (method, status) in [
        ("GET", 201),
        ("QUERY", 201),
        ("PROPFIND", 201),
        ("REPORT", 201),
        ("SEARCH", 201),
        ("POST", 403),
        ("PROPPATCH", 403),
        ("MKCOL", 403),
        ("LOCK", 403),
        ("PAY", 403),
    ] {
        let response = world.proxy.client().request(method, "/elsewhere").send().await;
        assert_eq!(response.status, status, "{method}");
    }
}
