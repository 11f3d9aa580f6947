//! `cors`: pages of other origins read Oncegate's own answers and its replays.

use serde_json::json;

use harness::browser::{Browser, Scripts};
use harness::{Answer, Hold, Request, Response, Store, Upstream, World, route};

const SHOP: &str = "https://shop.example";
const ADMIN: &str = "https://admin.example";
const CORS: &str = "cors = { origins = [\"https://shop.example\", \"https://Admin.example\"], credentials = true }";

/// The origin and the credentials that a response grants.
fn grant(response: &Response) -> (Option<&str>, Option<&str>) {
    (response.field("access-control-allow-origin"), response.field("access-control-allow-credentials"))
}

fn exposes(response: &Response, name: &str) -> bool {
    let names = response.all("access-control-expose-headers").join(",");
    names.split(',').any(|exposed| exposed.trim().eq_ignore_ascii_case(name))
}

fn assert_readable(response: &Response, origin: &str) {
    assert_eq!(grant(response), (Some(origin), Some("true")), "{response:?}");
    assert!(response.all("vary").contains(&"Origin"), "{response:?}");
    for name in
        ["Idempotent-Replayed", "Oncegate-Status", "Idempotency-Key-Expires", "Oncegate-Original-Date", "Retry-After"]
    {
        assert!(exposes(response, name), "{name}: {response:?}");
    }
}

fn from(request: &Request, origin: &str) -> Request {
    request.clone().field("Origin", origin)
}

async fn world() -> World {
    let pay = route("pay", &format!("key = {{ required = true }}\n{CORS}"));
    World::with(Store::sqlite(), |setup| setup.route(&pay).route(&route("plain", "key = { required = true }"))).await
}

#[tokio::test]
async fn refusals_and_replays_are_readable_by_allowed_origins() {
    let world = world().await;
    world.upstream.answer_all(Answer::status(201).field("X-Sum", "1"));
    let first = from(&world.pay("k-1"), SHOP).send().await;
    assert_eq!((first.oncegate_status(), grant(&first)), (Some("executed"), (None, None)), "the service's own");
    for origin in [SHOP, ADMIN] {
        let replay = from(&world.pay("k-1"), origin).send().await;
        assert!(replay.is_replay());
        assert_readable(&replay, origin);
        assert!(exposes(&replay, "Idempotency-Key"));
        let refused = from(&world.post("/pay").body("x"), origin).send().await;
        assert_eq!(refused.outcome().1, "key-missing");
        assert_readable(&refused, origin);
        assert_readable(&from(&world.pay("k-1").body("another"), origin).send().await, origin);
    }
    for other in ["https://evil.example", "null", "http://shop.example"] {
        let replay = from(&world.pay("k-1"), other).send().await;
        assert_eq!((grant(&replay), replay.field("vary")), ((None, None), Some("Origin")), "{other}");
    }
    let twice = from(&from(&world.pay("k-1"), SHOP), ADMIN).send().await;
    assert_eq!((grant(&twice), twice.is_replay()), ((None, None), true));
    let plain = from(&world.post("/plain").body("x"), SHOP).send().await;
    assert_eq!((plain.outcome().1.as_str(), grant(&plain), plain.field("vary")), ("key-missing", (None, None), None));
}

#[tokio::test]
async fn a_stored_grant_is_never_replayed_to_another_origin() {
    let world = world().await;
    let answer = Answer::status(201)
        .field("Access-Control-Allow-Origin", "https://partner.example")
        .field("Access-Control-Allow-Credentials", "true")
        .field("Access-Control-Expose-Headers", "X-Sum")
        .field("Vary", "Accept, origin");
    world.upstream.answer_all(answer);
    let partner = "https://partner.example";
    for path in ["/pay", "/plain"] {
        let pay = world.post(path).key("k-1").body("x");
        let first = from(&pay, partner).send().await;
        assert_eq!((first.oncegate_status(), grant(&first)), (Some("executed"), (Some(partner), Some("true"))));
        let replay = from(&pay, partner).send().await;
        assert_eq!((replay.is_replay(), grant(&replay)), (true, (Some(partner), Some("true"))), "{path}");
        assert!(exposes(&replay, "x-sum") && replay.field("vary") == Some("Accept, origin"), "{replay:?}");
        for other in [from(&pay, "https://evil.example"), pay.clone()] {
            let replay = other.send().await;
            assert_eq!((replay.is_replay(), grant(&replay), exposes(&replay, "x-sum")), (true, (None, None), false));
        }
        let shop = from(&pay, SHOP).send().await;
        let expected = if path == "/pay" { (Some(SHOP), Some("true")) } else { (None, None) };
        assert_eq!((shop.is_replay(), grant(&shop)), (true, expected));
    }
}

#[tokio::test]
async fn a_routes_cors_comes_before_that_of_the_defaults_and_of_the_top() {
    let closed = route("closed", "key = { required = true }\ncors = { origins = [] }");
    let own =
        route("own", "key = { required = true }\ncors = { origins = [\"https://admin.example\"], credentials = true }");
    let inherits = route("inherits", "key = { required = true }");
    let world = World::with(Store::sqlite(), |setup| {
        setup.top(CORS).top("unguarded = \"refuse\"").route(&closed).route(&own).route(&inherits)
    })
    .await;
    for (path, origin, expected) in [
        ("/closed", SHOP, (None, None)),
        ("/own", SHOP, (None, None)),
        ("/own", ADMIN, (Some(ADMIN), Some("true"))),
        ("/inherits", SHOP, (Some(SHOP), Some("true"))),
        ("/elsewhere", SHOP, (Some(SHOP), Some("true"))),
        ("/.oncegate/operations/x", SHOP, (Some(SHOP), Some("true"))),
    ] {
        let refused = from(&world.post(path).body("x"), origin).send().await;
        assert!(refused.status >= 400, "{refused:?}");
        assert_eq!(grant(&refused), expected, "{path} {origin}");
    }
}

#[tokio::test]
async fn preflights_go_to_the_service_except_for_operations() {
    let world = World::with(Store::sqlite(), |setup| setup.top(CORS)).await;
    world.upstream.answer_all(Answer::status(204).field("Access-Control-Allow-Origin", "https://partner.example"));
    let preflight = |path| {
        let request = world.proxy.client().request("OPTIONS", path).field("Access-Control-Request-Method", "GET");
        from(&request, SHOP).field("Access-Control-Request-Headers", "authorization")
    };
    let answer = preflight("/pay").send().await;
    assert_eq!((answer.status, grant(&answer)), (204, (Some("https://partner.example"), None)));
    assert_eq!(world.upstream.last().method, "OPTIONS");
    let answer = preflight("/.oncegate/operations/x").send().await;
    assert_eq!((answer.status, grant(&answer)), (204, (Some(SHOP), Some("true"))));
    assert_eq!(answer.field("access-control-allow-headers"), Some("authorization"));
    assert_eq!(answer.field("access-control-allow-methods"), Some("GET, HEAD"));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn an_answer_while_the_first_attempt_runs_is_readable() {
    let world = World::guarding(Store::sqlite(), &format!("in_flight = \"accepted\"\n{CORS}")).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let running = from(&world.pay("k-1"), SHOP).send().await;
    assert_eq!(running.status, 202);
    assert_readable(&running, SHOP);
    hold.release();
    first.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_page_of_another_origin_reads_a_replay_and_a_refusal_in_a_real_browser() {
    let Some(browser) = Browser::start(Scripts::On).await else { return };
    let page = Upstream::start().await;
    page.answer_all(Answer::status(200).field("Content-Type", "text/html").body("<title>shop</title>a shop"));
    let origin = format!("http://{}", page.address);
    let shared = route("pay", &format!("cors = {{ origins = [\"{origin}\"] }}"));
    // Beside a browser that starts, the store is slow and not away.
    let world = World::with(Store::sqlite(), |setup| setup.store("timeout = \"20s\"").route(&shared)).await;
    world.upstream.answer_all(
        Answer::status(201)
            .field("Access-Control-Allow-Origin", &origin)
            .field("Access-Control-Allow-Methods", "POST")
            .field("Access-Control-Allow-Headers", "authorization, content-type, idempotency-key"),
    );
    browser.open(&origin).await;
    browser.wait_for_text("a shop").await;
    let url = format!("http://{}/pay", world.proxy.listen);
    let pay = |body: &str| {
        let request = json!({ "method": "POST", "body": body, "headers": {
            "Idempotency-Key": "k-1", "Content-Type": "application/json", "Authorization": "Bearer a" } });
        format!(
            "fetch('{url}', {request}).then(r => r.text().then(text => [r.status, text.includes('key-reused'), \
             r.headers.get('idempotent-replayed'), r.headers.get('oncegate-status')]))"
        )
    };
    // The service exposes nothing of the first answer. A retry with the same key is a replay.
    assert_eq!(browser.value(&pay("{}")).await, json!([201, false, null, null]));
    assert_eq!(browser.value(&pay("{}")).await, json!([201, false, "true", "replayed"]));
    assert_eq!(browser.value(&pay("[]")).await, json!([422, true, null, "key-reused"]));
}
