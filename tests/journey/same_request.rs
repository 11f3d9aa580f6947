//! Equality of requests and of keys.

use harness::{Request, Store, World, on_both_stores};

async fn oncegate_status(request: Request) -> String {
    request.send().await.oncegate_status().unwrap().to_owned()
}

on_both_stores!(json_is_compared_canonically);
async fn json_is_compared_canonically(store: Store) {
    let world = World::start(store).await;
    let send = |body: &str| oncegate_status(world.post("/pay").key("k-1").json(body));
    assert_eq!(send(r#"{"amount":1,"currency":"EUR","to":["a","b"]}"#).await, "executed");
    assert_eq!(send(r#" { "to" : ["a", "b"], "currency" : "\u0045UR", "amount" : 1.0 } "#).await, "replayed");
    assert_eq!(send(r#"{"to":["a","b"],"amount":1e0,"currency":"EUR"}"#).await, "replayed");
    assert_eq!(send(r#"{"amount":1,"currency":"EUR","to":["b","a"]}"#).await, "key-reused");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn numbers_beyond_double_precision_are_distinguished() {
    let world = World::start(Store::sqlite()).await;
    let send = |body: &str| oncegate_status(world.post("/pay").key("k-1").json(body));
    assert_eq!(send(r#"{"amount":9007199254740993}"#).await, "executed");
    assert_eq!(send(r#"{"amount":9007199254740992}"#).await, "key-reused");
    assert_eq!(send(r#"{"amount":9007199254740993.0}"#).await, "replayed");
}

#[tokio::test]
async fn a_body_of_no_known_type_is_compared_byte_by_byte() {
    let world = World::start(Store::sqlite()).await;
    let send =
        |body: &str| oncegate_status(world.post("/pay").key("k-1").field("Content-Type", "text/plain").body(body));
    assert_eq!(send(r#"{"amount":1}"#).await, "executed");
    assert_eq!(send(r#"{"amount": 1}"#).await, "key-reused");
    assert_eq!(send(r#"{"amount":1}"#).await, "replayed");
}

#[tokio::test]
async fn a_form_is_compared_by_its_decoded_fields() {
    let world = World::start(Store::sqlite()).await;
    let form = |body: &str| {
        oncegate_status(
            world.post("/pay").key("k-1").field("Content-Type", "application/x-www-form-urlencoded").body(body),
        )
    };
    assert_eq!(form("a=x+y&b=%41").await, "executed");
    assert_eq!(form("a=x%20y&b=A").await, "replayed");
    assert_eq!(form("b=A&a=x+y").await, "replayed");
    assert_eq!(form("b=A&a=x+z").await, "key-reused");
}

#[tokio::test]
async fn a_multipart_boundary_does_not_count() {
    let world = World::start(Store::sqlite()).await;
    let form = |boundary: &str, value: &str| {
        let body =
            format!("--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{value}\r\n--{boundary}--\r\n");
        let kind = format!("multipart/form-data; boundary={boundary}");
        oncegate_status(world.post("/pay").key("k-1").field("Content-Type", &kind).body(body))
    };
    assert_eq!(form("one", "1").await, "executed");
    assert_eq!(form("two", "1").await, "replayed");
    assert_eq!(form("one", "2").await, "key-reused");
}

#[tokio::test]
async fn the_query_is_part_of_the_request_and_not_of_the_key() {
    let world = World::start(Store::sqlite()).await;
    let send = |path: &str| oncegate_status(world.post(path).key("k-1").body("x"));
    assert_eq!(send("/pay?a=1").await, "executed");
    assert_eq!(send("/pay?a=2").await, "key-reused");
    assert_eq!(send("/pay").await, "key-reused");
    assert_eq!(send("/pay?a=1").await, "replayed");
}

#[tokio::test]
async fn a_chunked_body_equals_one_with_a_content_length() {
    let world = World::start(Store::sqlite()).await;
    assert_eq!(oncegate_status(world.pay("k-1")).await, "executed");
    assert_eq!(oncegate_status(world.pay("k-1").chunked()).await, "replayed");
    assert_eq!(oncegate_status(world.pay("k-2").chunked()).await, "executed");
    assert_eq!(world.upstream.last().body, world.upstream.executed()[0].body);
}

on_both_stores!(callers_do_not_share_keys);
async fn callers_do_not_share_keys(store: Store) {
    let world = World::start(store).await;
    let callers = [
        world.pay("k-1").field("Authorization", "Bearer a"),
        world.pay("k-1").field("Authorization", "Bearer b"),
        world.pay("k-1").field("X-Api-Key", "Bearer a"),
        world.pay("k-1").field("Authorization", "Bearer a").field("X-Api-Key", "c"),
        world.pay("k-1"),
    ];
    let mut bodies = Vec::new();
    for caller in &callers {
        let first = caller.send().await;
        assert_eq!(first.oncegate_status(), Some("executed"));
        bodies.push(first.body);
    }
    for (caller, body) in callers.iter().zip(bodies) {
        let again = caller.send().await;
        assert_eq!((again.oncegate_status(), &again.body), (Some("replayed"), &body), "each gets its own answer again");
    }
    assert_eq!(world.upstream.calls(), callers.len());
}

#[tokio::test]
async fn another_caller_may_use_the_key_for_another_request() {
    let world = World::start(Store::sqlite()).await;
    let send = |who: &str, body: &str| oncegate_status(world.pay("k-1").field("Authorization", who).body(body));
    assert_eq!(send("Bearer a", "1").await, "executed");
    assert_eq!(send("Bearer b", "2").await, "executed");
    assert_eq!(send("Bearer b", "1").await, "key-reused");
}

on_both_stores!(a_key_on_another_path_or_method_is_another_key);
async fn a_key_on_another_path_or_method_is_another_key(store: Store) {
    let world = World::start(store).await;
    assert_eq!(oncegate_status(world.post("/a").key("k-1").body("x")).await, "executed");
    assert_eq!(oncegate_status(world.post("/b").key("k-1").body("y")).await, "executed");
    assert_eq!(oncegate_status(world.proxy.client().request("PATCH", "/a").key("k-1").body("z")).await, "executed");
    assert_eq!(oncegate_status(world.post("/a").key("k-1").body("x")).await, "replayed");
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn with_key_space_service_a_key_is_shared_by_all_paths() {
    let world = World::with(Store::sqlite(), |setup| setup.defaults("space = \"service\"")).await;
    assert_eq!(oncegate_status(world.post("/a").key("k-1").body("x")).await, "executed");
    assert_eq!(oncegate_status(world.post("/b").key("k-1").body("x")).await, "key-reused");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn with_key_space_route_a_key_is_shared_by_the_routes_paths() {
    let route = "name = \"pay\"\npath = \"/pay/{to}\"\nmethods = [\"POST\"]\nspace = \"route\"";
    let other = "name = \"other\"\npath = \"/other\"\nmethods = [\"POST\"]\nspace = \"route\"";
    let world = World::with(Store::sqlite(), |setup| setup.route(route).route(other)).await;
    assert_eq!(oncegate_status(world.post("/pay/a").key("k-1").body("x")).await, "executed");
    assert_eq!(oncegate_status(world.post("/pay/b").key("k-1").body("x")).await, "key-reused");
    assert_eq!(oncegate_status(world.post("/other").key("k-1").body("x")).await, "executed");
}

on_both_stores!(services_on_one_store_do_not_share_keys);
async fn services_on_one_store_do_not_share_keys(store: Store) {
    let mut world = World::start(store).await;
    assert_eq!(oncegate_status(world.pay("k-1")).await, "executed");
    world.setup = world.setup.top("service = \"other\"");
    world.crash_and_restart().await;
    assert_eq!(oncegate_status(world.pay("k-1")).await, "executed");
    assert_eq!(world.upstream.calls(), 2);
}
