//! Who is calling: the same key from two callers is two keys.

use crate::harness::{Proxy, Request, Store, World, on_both_stores, route};

async fn told(request: Request) -> String {
    request.send().await.told().unwrap().to_owned()
}

async fn scoped(store: Store, scope: &str) -> World {
    World::guarding(store, &format!("scope = [{scope}]")).await
}

async fn is_invalid(request: Request) {
    let refusal = request.send().await;
    assert_eq!((refusal.outcome(), refusal.told()), ((400, "key-invalid".to_owned()), Some("rejected")));
}

on_both_stores!(a_cookie_may_say_who_is_calling);
async fn a_cookie_may_say_who_is_calling(store: Store) {
    let world = scoped(store, "\"cookie:sid\"").await;
    let with = |cookies: &str| world.pay("k-1").field("Cookie", cookies);
    assert_eq!(told(with("sid=a")).await, "executed");
    assert_eq!(told(with("theme=dark; sid=a ;x=y")).await, "replayed");
    assert_eq!(told(world.pay("k-1").field("Cookie", "theme=dark").field("Cookie", "sid=a")).await, "replayed");
    assert_eq!(told(with("sid=b")).await, "executed");
    assert_eq!(told(with("sid=a").field("Authorization", "Bearer x")).await, "replayed", "only the cookie counts");
    is_invalid(with("SID=a")).await;
    is_invalid(with("sid=a; sid=b")).await;
    is_invalid(world.pay("k-1").field("Cookie", "sid=a").field("Cookie", "sid=a")).await;
    is_invalid(world.pay("k-1")).await;
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(the_query_may_say_who_is_calling);
async fn the_query_may_say_who_is_calling(store: Store) {
    let world = scoped(store, "\"query:tenant\"").await;
    let with = |query: &str| world.post(&format!("/pay?{query}")).key("k-1").body("x");
    assert_eq!(told(with("tenant=a")).await, "executed");
    assert_eq!(told(with("tenant=a")).await, "replayed");
    assert_eq!(told(with("tenant=b")).await, "executed");
    assert_eq!(told(with("tenant=a&x=1")).await, "mismatch", "the same caller, and another request");
    is_invalid(with("x=1")).await;
    is_invalid(with("tenant=a&tenant=b")).await;
}

on_both_stores!(a_field_may_say_who_is_calling_if_whoever_sent_it_is_trusted);
async fn a_field_may_say_who_is_calling_if_whoever_sent_it_is_trusted(store: Store) {
    let mut world = scoped(store, "\"header:X-Tenant?\"").await;
    let with = |world: &World, tenant: &str| world.pay("k-1").field("x-tenant", tenant);
    assert_eq!(told(with(&world, "a")).await, "executed");
    assert_eq!(told(with(&world, "a")).await, "replayed");
    assert_eq!(told(with(&world, "b")).await, "executed");
    assert_eq!(told(world.pay("k-1")).await, "executed");
    is_invalid(with(&world, "a").field("X-Tenant", "b")).await;
    let lines = route("pay", "scope = [\"header:X-Tenant?\"]");
    world.restart_as(|setup| setup.top("trusted_proxies = [\"10.0.0.0/8\", \"::1\"]").route(&lines)).await;
    is_invalid(with(&world, "a")).await;
    assert_eq!(told(world.pay("k-1")).await, "replayed", "who names no tenant is nobody's impostor");
    world.restart_as(|setup| setup.top("trusted_proxies = [\"127.0.0.1\"]").route(&lines)).await;
    assert_eq!(told(with(&world, "a")).await, "replayed");
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn an_untrusted_peers_default_api_key_is_not_believed_either() {
    let world = World::with(Store::sqlite(), |setup| setup.top("trusted_proxies = []")).await;
    is_invalid(world.pay("k-1").field("X-Api-Key", "a")).await;
    assert_eq!(told(world.pay("k-1").field("Authorization", "Bearer a")).await, "executed");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn where_nothing_tells_callers_apart_they_share_their_keys() {
    let world = scoped(Store::sqlite(), "\"none\"").await;
    world.proxy.logs("scope is `none`").await;
    assert_eq!(told(world.pay("k-1").field("Authorization", "Bearer a")).await, "executed");
    assert_eq!(told(world.pay("k-1").field("Authorization", "Bearer b")).await, "replayed");
    assert_eq!(told(world.pay("k-1").field("Cookie", "sid=a")).await, "replayed");
    assert_eq!(told(world.pay("k-1")).await, "replayed");
}

#[tokio::test]
async fn what_may_be_missing_is_a_caller_of_its_own_and_what_must_be_there_is_asked_for() {
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .route(&route("pay", "scope = [\"authorization\", \"query:tenant?\"]"))
            .route(&route("ask", "scope = [\"authorization?\", \"query:tenant?\"]"))
    })
    .await;
    is_invalid(world.pay("k-1")).await;
    let with = |target: &str| world.post(target).key("k-1").field("Authorization", "Bearer a").body("x");
    assert_eq!(told(with("/pay")).await, "executed");
    assert_eq!(told(with("/pay?tenant=")).await, "executed", "an empty one is not none");
    assert_eq!(told(with("/pay?tenant=a")).await, "executed");
    assert_eq!(told(with("/pay")).await, "replayed");
    assert_eq!(told(world.post("/ask").key("k-1").body("x")).await, "executed");
    assert_eq!(told(world.post("/ask").key("k-1").body("x").field("Cookie", "a=b")).await, "replayed");
}

#[tokio::test]
async fn two_callers_in_one_request_are_none() {
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
async fn services_beside_each_other_on_one_database_do_not_share_keys() {
    let world = World::with(Store::postgres().await, |setup| setup.top("service = \"shop\"")).await;
    let named =
        |name: &str| Proxy::on(&world.store.url()).upstream(world.upstream.address).top(&format!("service = {name:?}"));
    let (bank, again) = (named("bank").start().await, named("shop").start().await);
    let pay = |proxy: &Proxy, body: &str| told(proxy.post("/pay").key("k-1").json(body));
    assert_eq!(pay(&world.proxy, "1").await, "executed");
    assert_eq!(pay(&bank, "2").await, "executed", "neither its answer nor its fingerprint is the shop's");
    assert_eq!(pay(&bank, "2").await, "replayed");
    assert_eq!(pay(&again, "1").await, "replayed");
    assert_eq!(pay(&again, "2").await, "mismatch");
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(a_key_is_unique_within_what_the_route_says);
async fn a_key_is_unique_within_what_the_route_says(store: Store) {
    let pattern = |name: &str, space: &str| {
        format!("name = \"{name}\"\npath = \"/{name}/{{id}}\"\nmethods = [\"POST\", \"PUT\"]\nspace = \"{space}\"")
    };
    let world = World::with(store, |setup| {
        let setup = setup.route(&pattern("path", "path")).route(&pattern("route", "route"));
        setup.route(&pattern("one", "service")).route(&pattern("two", "service"))
    })
    .await;
    let send = |method: &str, target: &str| told(world.proxy.client().request(method, target).key("k-1").body("x"));
    for (space, other) in [("path", "executed"), ("route", "mismatch"), ("one", "mismatch")] {
        assert_eq!(send("POST", &format!("/{space}/1")).await, "executed");
        assert_eq!(send("POST", &format!("/{space}/1")).await, "replayed");
        assert_eq!(send("POST", &format!("/{space}/2")).await, other, "{space}");
        assert_eq!(send("PUT", &format!("/{space}/1")).await, other, "{space}");
    }
    assert_eq!(send("POST", "/two/1").await, "mismatch", "the service's other route");
}

#[tokio::test]
async fn a_cookie_that_says_who_is_calling_cannot_be_lost_on_the_way() {
    let world = scoped(Store::sqlite(), "\"cookie:sid\"").await;
    let refusal = world.pay("k-1").field("Cookie", "sid=a").field("Connection", "close, cookie").send().await;
    assert_eq!(refusal.outcome(), (400, "bad-request".to_owned()));
    assert_eq!(world.upstream.calls(), 0);
}
