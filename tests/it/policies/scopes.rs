//! Scopes: the same key of two callers is two keys.

use crate::harness::{Proxy, Request, Store, World, on_both_stores, route};

async fn oncegate_status(request: Request) -> String {
    request.send().await.oncegate_status().unwrap().to_owned()
}

async fn scoped(store: Store, scope: &str) -> World {
    World::guarding(store, &format!("scope = [{scope}]")).await
}

async fn is_invalid(request: Request) {
    let refusal = request.send().await;
    assert_eq!((refusal.outcome(), refusal.oncegate_status()), ((400, "key-invalid".to_owned()), Some("rejected")));
}

on_both_stores!(a_cookie_may_be_the_scope);
async fn a_cookie_may_be_the_scope(store: Store) {
    let world = scoped(store, "\"cookie:sid\"").await;
    let with = |cookies: &str| world.pay("k-1").field("Cookie", cookies);
    assert_eq!(oncegate_status(with("sid=a")).await, "executed");
    assert_eq!(oncegate_status(with("theme=dark; sid=a ;x=y")).await, "replayed");
    assert_eq!(
        oncegate_status(world.pay("k-1").field("Cookie", "theme=dark").field("Cookie", "sid=a")).await,
        "replayed"
    );
    assert_eq!(oncegate_status(with("sid=b")).await, "executed");
    assert_eq!(
        oncegate_status(with("sid=a").field("Authorization", "Bearer x")).await,
        "replayed",
        "only the cookie counts"
    );
    is_invalid(with("SID=a")).await;
    is_invalid(with("sid=a; sid=b")).await;
    is_invalid(world.pay("k-1").field("Cookie", "sid=a").field("Cookie", "sid=a")).await;
    is_invalid(world.pay("k-1")).await;
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(a_query_parameter_may_be_the_scope);
async fn a_query_parameter_may_be_the_scope(store: Store) {
    let world = scoped(store, "\"query:tenant\"").await;
    let with = |query: &str| world.post(&format!("/pay?{query}")).key("k-1").body("x");
    assert_eq!(oncegate_status(with("tenant=a")).await, "executed");
    assert_eq!(oncegate_status(with("tenant=a")).await, "replayed");
    assert_eq!(oncegate_status(with("tenant=b")).await, "executed");
    assert_eq!(oncegate_status(with("tenant=a&x=1")).await, "key-reused", "the same caller, and another request");
    is_invalid(with("x=1")).await;
    is_invalid(with("tenant=a&tenant=b")).await;
}

on_both_stores!(a_header_field_of_a_trusted_peer_may_be_the_scope);
async fn a_header_field_of_a_trusted_peer_may_be_the_scope(store: Store) {
    let mut world = scoped(store, "\"header:X-Tenant?\"").await;
    let with = |world: &World, tenant: &str| world.pay("k-1").field("x-tenant", tenant);
    assert_eq!(oncegate_status(with(&world, "a")).await, "executed");
    assert_eq!(oncegate_status(with(&world, "a")).await, "replayed");
    assert_eq!(oncegate_status(with(&world, "b")).await, "executed");
    assert_eq!(oncegate_status(world.pay("k-1")).await, "executed");
    is_invalid(with(&world, "a").field("X-Tenant", "b")).await;
    let lines = route("pay", "scope = [\"header:X-Tenant?\"]");
    world.restart_as(|setup| setup.top("trusted_proxies = [\"10.0.0.0/8\", \"::1\"]").route(&lines)).await;
    is_invalid(with(&world, "a")).await;
    assert_eq!(
        oncegate_status(world.pay("k-1")).await,
        "replayed",
        "a request without a tenant is in no tenant's scope"
    );
    world.restart_as(|setup| setup.top("trusted_proxies = [\"127.0.0.1\"]").route(&lines)).await;
    assert_eq!(oncegate_status(with(&world, "a")).await, "replayed");
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn an_untrusted_peers_default_api_key_is_ignored() {
    let world = World::with(Store::sqlite(), |setup| setup.top("trusted_proxies = []")).await;
    is_invalid(world.pay("k-1").field("X-Api-Key", "a")).await;
    assert_eq!(oncegate_status(world.pay("k-1").field("Authorization", "Bearer a")).await, "executed");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn without_a_scope_all_callers_share_their_keys() {
    let world = scoped(Store::sqlite(), "\"none\"").await;
    world.proxy.wait_for_log("scope is `none`").await;
    assert_eq!(oncegate_status(world.pay("k-1").field("Authorization", "Bearer a")).await, "executed");
    assert_eq!(oncegate_status(world.pay("k-1").field("Authorization", "Bearer b")).await, "replayed");
    assert_eq!(oncegate_status(world.pay("k-1").field("Cookie", "sid=a")).await, "replayed");
    assert_eq!(oncegate_status(world.pay("k-1")).await, "replayed");
}

#[tokio::test]
async fn a_missing_optional_scope_is_a_scope_of_its_own_and_a_missing_required_one_is_refused() {
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .route(&route("pay", "scope = [\"authorization\", \"query:tenant?\"]"))
            .route(&route("ask", "scope = [\"authorization?\", \"query:tenant?\"]"))
    })
    .await;
    is_invalid(world.pay("k-1")).await;
    let with = |target: &str| world.post(target).key("k-1").field("Authorization", "Bearer a").body("x");
    assert_eq!(oncegate_status(with("/pay")).await, "executed");
    assert_eq!(oncegate_status(with("/pay?tenant=")).await, "executed", "an empty one is not none");
    assert_eq!(oncegate_status(with("/pay?tenant=a")).await, "executed");
    assert_eq!(oncegate_status(with("/pay")).await, "replayed");
    assert_eq!(oncegate_status(world.post("/ask").key("k-1").body("x")).await, "executed");
    assert_eq!(oncegate_status(world.post("/ask").key("k-1").body("x").field("Cookie", "a=b")).await, "replayed");
}

#[tokio::test]
async fn two_scope_values_in_one_request_are_refused() {
    let world = World::start(Store::sqlite()).await;
    let twice = |second: &str| world.pay("k-1").field("Authorization", "Bearer a").field("Authorization", second);
    for second in ["Bearer b", "Bearer a", ""] {
        let refusal = twice(second).send().await;
        assert_eq!(refusal.status, 400, "{refusal:?}");
    }
    let refusal = world.pay("k-1").field("X-Api-Key", "a").field("X-Api-Key", "b").send().await;
    assert_eq!(refusal.outcome(), (400, "key-invalid".to_owned()));
    assert_eq!(world.upstream.calls(), 0);
}

#[tokio::test]
async fn services_on_one_database_do_not_share_keys() {
    let world = World::with(Store::postgres().await, |setup| setup.top("service = \"shop\"")).await;
    let named =
        |name: &str| Proxy::on(&world.store.url()).upstream(world.upstream.address).top(&format!("service = {name:?}"));
    let (bank, again) = (named("bank").start().await, named("shop").start().await);
    let pay = |proxy: &Proxy, body: &str| oncegate_status(proxy.post("/pay").key("k-1").json(body));
    assert_eq!(pay(&world.proxy, "1").await, "executed");
    assert_eq!(pay(&bank, "2").await, "executed", "neither its answer nor its fingerprint is the shop's");
    assert_eq!(pay(&bank, "2").await, "replayed");
    assert_eq!(pay(&again, "1").await, "replayed");
    assert_eq!(pay(&again, "2").await, "key-reused");
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(a_key_is_unique_within_the_routes_key_space);
async fn a_key_is_unique_within_the_routes_key_space(store: Store) {
    let pattern = |name: &str, space: &str| {
        format!("name = \"{name}\"\npath = \"/{name}/{{id}}\"\nmethods = [\"POST\", \"PUT\"]\nspace = \"{space}\"")
    };
    let world = World::with(store, |setup| {
        let setup = setup.route(&pattern("path", "path")).route(&pattern("route", "route"));
        setup.route(&pattern("one", "service")).route(&pattern("two", "service"))
    })
    .await;
    let send =
        |method: &str, target: &str| oncegate_status(world.proxy.client().request(method, target).key("k-1").body("x"));
    for (space, other) in [("path", "executed"), ("route", "key-reused"), ("one", "key-reused")] {
        assert_eq!(send("POST", &format!("/{space}/1")).await, "executed");
        assert_eq!(send("POST", &format!("/{space}/1")).await, "replayed");
        assert_eq!(send("POST", &format!("/{space}/2")).await, other, "{space}");
        assert_eq!(send("PUT", &format!("/{space}/1")).await, other, "{space}");
    }
    assert_eq!(send("POST", "/two/1").await, "key-reused", "the service's other route");
}

#[tokio::test]
async fn a_scope_cookie_cannot_be_removed_in_transit() {
    let world = scoped(Store::sqlite(), "\"cookie:sid\"").await;
    let refusal = world.pay("k-1").field("Cookie", "sid=a").field("Connection", "close, cookie").send().await;
    assert_eq!(refusal.outcome(), (400, "bad-request".to_owned()));
    assert_eq!(world.upstream.calls(), 0);
}
