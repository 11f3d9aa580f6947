//! `replay.authorize`: a stored response is replayed only to a caller whom the authorizing service lets through.

use harness::metrics::Metrics;
use harness::reload::{RELOADED, reload, settles};
use harness::{Answer, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores, route};

async fn world_with(store: Store, cache: &str) -> (World, Upstream) {
    let authority = Upstream::start().await;
    let url = format!("http://{}/check?by=oncegate", authority.address);
    let lines =
        format!("replay = {{ authorize = \"{url}\", authorize_cache = \"{cache}\" }}\nscope = [\"authorization\"]");
    (World::with(store, |setup| setup.top("trusted_proxies = []").route(&route("pay", &lines))).await, authority)
}

on_both_stores!(a_replay_goes_to_a_caller_whom_the_service_lets_through_and_to_no_other);
async fn a_replay_goes_to_a_caller_whom_the_service_lets_through_and_to_no_other(store: Store) {
    let (world, authority) = world_with(store, "0s").await;
    let pay = || world.post("/pay?x=1").key("k-1").field("Cookie", "sid=a").body("x");
    let first = pay().send().await;
    assert_eq!((first.oncegate_status(), authority.calls()), (Some("executed"), 0), "an attempt is not asked about");
    authority.then(Answer::status(204));
    assert_eq!(pay().send().await.comparable(), first.replayed());
    let asked = authority.last();
    assert_eq!((&*asked.method, &*asked.target), ("GET", "/check?by=oncegate"));
    for (name, value) in [
        ("authorization", "Bearer test"),
        ("cookie", "sid=a"),
        ("x-forwarded-host", "shop.example"),
        ("x-forwarded-method", "POST"),
        ("x-forwarded-uri", "/pay?x=1"),
    ] {
        assert_eq!(asked.field(name), Some(value), "{name}");
    }
    assert_eq!(asked.field("idempotency-key"), None);
    for status in [401, 403, 404] {
        authority.then(Answer::status(status).field("WWW-Authenticate", "Bearer").body("no"));
        let denied = pay().send().await;
        assert_eq!((denied.status, &*denied.text(), denied.oncegate_status()), (status, "no", Some("rejected")));
        assert_eq!((denied.field("www-authenticate"), denied.is_replay()), (Some("Bearer"), false));
    }
    for answer in [Answer::status(500), Answer::status(302).field("Location", "/"), Answer::close()] {
        authority.then(answer);
        let refusal = pay().send().await;
        assert_eq!(refusal.outcome(), (503, "authorize-unavailable".to_owned()));
        assert_eq!(refusal.field("retry-after"), Some("1"));
    }
    assert_eq!(world.upstream.calls(), 1, "nothing is executed again");
}

#[tokio::test]
async fn a_permission_counts_for_its_time_its_caller_and_its_request_alone() {
    let (world, authority) = world_with(Store::sqlite(), "1h").await;
    let pay = |token: &str, path: &str| world.post(path).anonymous().key("k-1").field("Authorization", token).body("x");
    for (token, path) in [("Bearer a", "/pay"), ("Bearer b", "/pay")] {
        assert_eq!(pay(token, path).send().await.oncegate_status(), Some("executed"));
    }
    authority.then(Answer::status(200));
    for _ in 0..3 {
        assert!(pay("Bearer a", "/pay").send().await.is_replay());
    }
    assert_eq!(authority.calls(), 1);
    authority.then(Answer::status(403));
    assert_eq!(pay("Bearer b", "/pay").send().await.status, 403, "another caller");
    assert_eq!(authority.calls(), 2);
    let elsewhere = pay("Bearer a", "/pay").host("other.example").field("X-Forwarded-Host", "shop.example");
    authority.then(Answer::status(403));
    assert_eq!(elsewhere.send().await.status, 403, "another host");
    assert_eq!(authority.last().field("x-forwarded-host"), Some("other.example"), "not what a stranger writes");
    assert_eq!(authority.calls(), 3);
}

#[tokio::test]
async fn a_trusted_gateways_host_is_forwarded_and_a_denial_is_readable_by_allowed_origins() {
    const SHOP: &str = "https://shop.example";
    let authority = Upstream::start().await;
    let authorize = format!("replay = {{ authorize = \"http://{}/\" }}", authority.address);
    let lines = format!("{authorize}\ncors = {{ origins = [\"{SHOP}\"], credentials = true }}");
    let world = World::with(Store::sqlite(), |setup| {
        setup.top("trusted_proxies = [\"127.0.0.1\"]").route(&route("pay", &lines))
    });
    let world = world.await;
    let pay = || world.pay("k-1").field("Origin", SHOP).field("X-Forwarded-Host", "public.example");
    assert_eq!(pay().send().await.oncegate_status(), Some("executed"));
    for (status, granted) in [(401, "https://elsewhere.example"), (403, SHOP), (404, "*")] {
        authority.then(Answer::status(status).field("Access-Control-Allow-Origin", granted));
        let denied = pay().send().await;
        assert_eq!((denied.status, denied.oncegate_status()), (status, Some("rejected")));
        assert_eq!(denied.field("access-control-allow-origin"), Some(SHOP), "{status}");
        assert_eq!(denied.field("access-control-allow-credentials"), Some("true"));
        assert!(denied.all("access-control-expose-headers").join(",").contains("Oncegate-Status"));
        assert_eq!(authority.last().field("x-forwarded-host"), Some("public.example"));
    }
}

#[tokio::test]
async fn a_waiting_duplicate_and_an_operation_are_asked_about_too() {
    let authority = Upstream::start().await;
    authority.answer_all(Answer::status(403).body("no"));
    let authorize = format!("replay = {{ authorize = \"http://{}/\" }}", authority.address);
    let wait = format!("in_flight = \"wait\"\n{authorize}");
    let queued = format!("delivery = \"async\"\n{authorize}");
    // Another asynchronous route, whose operations nobody is asked about, has the same callers.
    let world = World::with(Store::sqlite(), |setup| {
        let setup = setup.top("secret = \"a secret of some length\"").route(&route("free", "delivery = \"async\""));
        setup.route(&route("pay", &wait)).route(&route("later", &queued))
    })
    .await;
    let hold = harness::Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let waiting = world.pay("k-1").spawn();
    let waits = "oncegate_reservations_total{route=\"pay\",result=\"in_flight\"}";
    eventually(TEST_TIMEOUT, async || (Metrics::of(&world.proxy).await.get(waits) == 1.0).then_some(())).await;
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    assert_eq!(waiting.await.unwrap().unwrap().status, 403);
    let accepted = world.post("/later").key("k-2").body("x").send().await;
    assert_eq!(accepted.status, 202);
    let operation = world.get(accepted.field("location").unwrap()).send().await;
    assert_eq!((operation.status, &*operation.text()), (403, "no"));
}

#[tokio::test]
async fn a_permission_ends_with_a_reload_that_changes_who_is_asked_or_for_how_long_it_counts() {
    let (world, authority) = world_with(Store::sqlite(), "1h").await;
    let other = Upstream::start().await;
    let pay = || world.post("/pay").key("k-1").body("x");
    assert_eq!(pay().send().await.oncegate_status(), Some("executed"));
    authority.answer_all(Answer::status(204));
    other.answer_all(Answer::status(403));
    assert!(pay().send().await.is_replay());
    let text = world.setup.text();
    let asked = |to: &Upstream| to.calls();
    for (times, (what, text, to)) in [
        ("another path", text.replace("/check?", "/check-anew?"), &authority),
        ("another time", text.replace("\"1h\"", "\"2h\""), &authority),
        ("no time", text.replace("\"1h\"", "\"0s\""), &authority),
        ("another service", text.replace(&authority.address.to_string(), &other.address.to_string()), &other),
    ]
    .into_iter()
    .enumerate()
    {
        reload(&world, &text, RELOADED, times + 1).await;
        let before = asked(to);
        // Each worker takes the new configuration by itself.
        eventually(TEST_TIMEOUT, async || {
            let answer = pay().send().await;
            assert!(answer.is_replay() || answer.status == 403, "{what}: {answer:?}");
            (asked(to) > before).then_some(())
        })
        .await;
    }
    settles(async || pay().send().await.status == 403).await;
}
