//! Scopes: the same key of two callers is two keys.

use harness::{Proxy, Request, Store, World, on_both_stores, route};

async fn oncegate_status(request: Request) -> String {
    request.send().await.oncegate_status().unwrap().to_owned()
}

async fn scoped(store: Store, scope: &str) -> World {
    World::guarding(store, &format!("scope = [{scope}]")).await
}

async fn is_refused(request: Request) {
    let refusal = request.send().await;
    assert_eq!((refusal.outcome(), refusal.oncegate_status()), ((400, "scope-missing".to_owned()), Some("rejected")));
    assert!(refusal.field("idempotency-key").is_some(), "its key is echoed");
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
    is_refused(with("SID=a")).await;
    is_refused(with("sid=a; sid=b")).await;
    is_refused(world.pay("k-1").field("Cookie", "sid=a").field("Cookie", "sid=a")).await;
    is_refused(world.pay("k-1")).await;
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
    is_refused(with("x=1")).await;
    is_refused(with("tenant=a&tenant=b")).await;
}

on_both_stores!(a_header_field_of_a_trusted_peer_may_be_the_scope);
async fn a_header_field_of_a_trusted_peer_may_be_the_scope(store: Store) {
    let mut world = scoped(store, "\"header:X-Tenant?\"").await;
    let with = |world: &World, tenant: &str| world.pay("k-1").field("x-tenant", tenant);
    assert_eq!(oncegate_status(with(&world, "a")).await, "executed");
    assert_eq!(oncegate_status(with(&world, "a")).await, "replayed");
    assert_eq!(oncegate_status(with(&world, "b")).await, "executed");
    is_refused(world.pay("k-1")).await;
    is_refused(with(&world, "a").field("X-Tenant", "b")).await;
    let lines = route("pay", "scope = [\"header:X-Tenant?\"]");
    world.restart_as(|setup| setup.top("trusted_proxies = [\"10.0.0.0/8\", \"::1\"]").route(&lines)).await;
    is_refused(with(&world, "a")).await;
    world.restart_as(|setup| setup.top("trusted_proxies = [\"127.0.0.1\"]").route(&lines)).await;
    assert_eq!(oncegate_status(with(&world, "a")).await, "replayed");
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn callers_who_name_themselves_otherwise_get_nobody_elses_answer() {
    let world = World::start(Store::sqlite()).await;
    for fields in [
        &[("X-Auth-Token", "A")][..],
        &[("X-Auth-Token", "B")],
        &[("X-Api-Key", "pk_live"), ("Cookie", "session=a")],
        &[("X-Api-Key", "pk_live"), ("Cookie", "session=b")],
        &[("Authorization", ""), ("Cookie", "session=a")],
        &[("Authorization", "Bearer ")],
        &[],
    ] {
        is_refused(fields.iter().fold(world.pay("k-1").anonymous(), |pay, (name, value)| pay.field(name, value))).await;
    }
    assert_eq!(world.upstream.calls(), 0);
    let refusal = world.pay("k-1").anonymous().send().await;
    let detail = refusal.problem()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("`authorization` and `header:x-api-key`"), "{detail}");
    let unkeyed = world.post("/pay").anonymous().body("x").send().await;
    assert_eq!((unkeyed.status, unkeyed.oncegate_status()), (201, None), "without a key no caller is needed");
}

#[tokio::test]
async fn one_credential_in_several_spellings_is_one_caller() {
    let world = World::start(Store::sqlite()).await;
    let pay = |credentials: &str| oncegate_status(world.pay("k-1").field("Authorization", credentials));
    assert_eq!(pay("Bearer t").await, "executed");
    for same in ["bearer t", "BEARER t", "Bearer  t", "Bearer \t t"] {
        assert_eq!(pay(same).await, "replayed", "{same:?}");
    }
    for other in ["Bearer T", "Basic t", "t"] {
        assert_eq!(pay(other).await, "executed", "{other:?}");
    }
}

#[tokio::test]
async fn credentials_that_differ_with_each_try_never_execute() {
    let world = World::with(Store::sqlite(), |setup| {
        setup.route(&route("pay", "")).route(&route("by-cookie", "scope = [\"cookie:sid\"]"))
    })
    .await;
    // A try and its retry, as clients send them.
    for [first, retry] in [
        ["Digest username=\"a\", nonce=\"n\", nc=00000001", "Digest username=\"a\", nonce=\"n\", nc=00000002"],
        ["OAuth oauth_nonce=\"1\", oauth_signature=\"a\"", "OAuth oauth_nonce=\"2\", oauth_signature=\"b\""],
        ["AWS4-HMAC-SHA256 Credential=a, Signature=a", "AWS4-HMAC-SHA256 Credential=a, Signature=b"],
        ["DPoP eyJ.a.b", "DPoP eyJ.a.b"],
        ["Acme id=\"a\", ts=\"1\"", "Acme id=\"a\", ts=\"2\""],
    ] {
        for credentials in [first, retry] {
            is_refused(world.pay("k-1").field("Authorization", credentials)).await;
            is_refused(world.pay("k-1").field("Authorization", credentials).field("X-Api-Key", "a")).await;
            let scheme = credentials.split(' ').next().unwrap();
            let refusal = world.pay("k-1").field("Authorization", credentials).send().await;
            let detail = refusal.problem()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains(&format!("`{scheme}`")), "{detail}");
        }
    }
    assert_eq!(world.upstream.calls(), 0);
    let by_cookie = |count: u32| {
        let credentials = format!("Digest username=\"a\", nonce=\"n\", nc={count:08}");
        let request = world.post("/by-cookie").key("k-1").field("Cookie", "sid=a").body("x");
        oncegate_status(request.field("Authorization", &credentials))
    };
    assert_eq!(by_cookie(1).await, "executed");
    assert_eq!(by_cookie(2).await, "replayed");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn an_untrusted_peers_api_key_names_no_caller() {
    let world = World::with(Store::sqlite(), |setup| setup.top("trusted_proxies = []")).await;
    is_refused(world.pay("k-1").anonymous().field("X-Api-Key", "a")).await;
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
async fn an_optional_part_may_be_missing_but_not_all_of_them() {
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .route(&route("pay", "scope = [\"authorization\", \"query:tenant?\"]"))
            .route(&route("ask", "scope = [\"authorization?\", \"query:tenant?\"]"))
    })
    .await;
    is_refused(world.pay("k-1").anonymous()).await;
    let with = |target: &str| world.post(target).key("k-1").field("Authorization", "Bearer a").body("x");
    assert_eq!(oncegate_status(with("/pay")).await, "executed");
    assert_eq!(oncegate_status(with("/pay?tenant=")).await, "key-reused", "an empty one is none: another query");
    assert_eq!(oncegate_status(with("/pay?tenant=a")).await, "executed");
    assert_eq!(oncegate_status(with("/pay")).await, "replayed");
    let ask = |target: &str| world.post(target).key("k-1").anonymous().body("x");
    is_refused(ask("/ask")).await;
    is_refused(ask("/ask").field("Cookie", "a=b")).await;
    assert_eq!(oncegate_status(ask("/ask?tenant=a")).await, "executed");
    assert_eq!(oncegate_status(ask("/ask?tenant=a").field("Cookie", "a=b")).await, "replayed");
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
    assert_eq!(refusal.outcome(), (400, "scope-missing".to_owned()));
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
