//! Route matching: the guarded requests, their route, and their service.

use harness::proxy::Setup;
use harness::{Answer, Request, Store, Upstream, World, route, service};

async fn oncegate_status(request: Request) -> String {
    request.send().await.oncegate_status().unwrap_or("nothing").to_owned()
}

/// A world with these routes; a key is shared by all the paths of its route. `api` is another service at `API.example`,
/// and has the routes that name it.
async fn routed(api: &Upstream, routes: &[(&str, &str)]) -> World {
    let api = service("api", api.address).replace("api.example", "API.example");
    World::with(Store::sqlite(), |setup| {
        routes.iter().fold(setup.defaults("space = \"route\"").service(&api), |setup, (name, lines)| {
            let of_top = if lines.contains("service =") { "" } else { "service = \"default\"\n" };
            setup.route(&format!("name = \"{name}\"\n{of_top}{lines}"))
        })
    })
    .await
}

#[tokio::test]
async fn the_most_specific_route_wins_in_any_order() {
    let api = Upstream::start().await;
    let routes = [
        ("rest", "path = \"/{*rest}\"\nforward_key = \"derive:rest\""),
        ("one", "path = \"/v1/{id}\"\nforward_key = \"derive:one\""),
        ("below", "path = \"/v1/{id}/{*rest}\"\nforward_key = \"derive:below\""),
        ("literal", "path = \"/v1/pay\"\nforward_key = \"derive:literal\""),
        ("capture", "path = \"/v1/{id}/capture\"\nforward_key = \"derive:capture\""),
        ("host", "path = \"/{*rest}\"\nservice = \"api\"\nforward_key = \"derive:host\""),
        ("put", "path = \"/v1/pay\"\nmethods = [\"PUT\"]\nforward_key = \"derive:put\""),
    ];
    let world = routed(&api, &routes).await;
    for (number, (method, host, target, route)) in [
        ("POST", "shop.example", "/", "rest"),
        ("POST", "shop.example", "/v1", "rest"),
        ("POST", "shop.example", "/v1/", "rest"),
        ("POST", "shop.example", "/v1/pay", "literal"),
        ("PATCH", "shop.example", "/v1/pay?x=/v1/17", "literal"),
        ("POST", "shop.example", "/v1/17", "one"),
        ("POST", "shop.example", "/v1/17/capture", "capture"),
        ("POST", "shop.example", "/v1/pay/capture", "capture"),
        ("POST", "shop.example", "/v1/17/refund/1", "below"),
        ("POST", "api.example", "/v1/pay", "host"),
        ("POST", "api.EXAMPLE:8080", "/v1/pay", "host"),
        ("PUT", "shop.example", "/v1/pay", "put"),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("k-{number}");
        let request = world.proxy.client().request(method, target).host(host).key(&key).body("x");
        assert_eq!(oncegate_status(request).await, "executed", "{method} {host} {target}");
        let expected = format!("{key}:{route}");
        let upstream = if route == "host" { &api } else { &world.upstream };
        assert_eq!(upstream.last().field("idempotency-key"), Some(&*expected), "{method} {host} {target}");
    }
    for (method, host, target) in [
        ("DELETE", "shop.example", "/v1/17"),
        ("GET", "shop.example", "/v1/17"),
        ("PUT", "shop.example", "/v1/17"),
        // Another service's route has it.
        ("PUT", "api.example", "/v1/pay"),
    ] {
        let request = world.proxy.client().request(method, target).host(host).key("k");
        assert_eq!(oncegate_status(request).await, "nothing", "{method} {host}");
    }
}

#[tokio::test]
async fn an_equivalent_path_is_guarded_and_forwarded_as_it_was_sent() {
    let world = World::with(Store::sqlite(), |setup| setup.route("name = \"pay\"\npath = \"/v1/pay\"")).await;
    for (number, target) in
        ["/v1/p%61y", "/v1/%70%61%79", "/v1/x/../pay", "/v1/./pay", "/v1/%2e%2E/v1/pay", "//../v1/pay"]
            .into_iter()
            .enumerate()
    {
        let request = world.post(target).key(&format!("k-{number}")).body("x");
        assert_eq!(oncegate_status(request.clone()).await, "executed", "{target}");
        assert_eq!(world.upstream.last().target, target, "the service gets it as it was sent");
        assert_eq!(oncegate_status(request).await, "replayed", "{target}");
    }
}

async fn reached(upstream: &Upstream, request: &Request) -> bool {
    let calls = upstream.calls();
    request.send().await;
    upstream.calls() > calls
}

#[tokio::test]
async fn all_methods_and_paths_of_a_host_go_to_its_service() {
    let own = Upstream::start().await;
    let lines = |mode: &str| format!("service = \"own\"\nmode = \"{mode}\"");
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .service(&service("own", own.address))
            .route(&route("pay", &lines("enforce")))
            .route(&route("off", &lines("off")))
            .route(&route("look", &lines("observe")))
    })
    .await;
    for path in ["/pay", "/off", "/look"] {
        for request in [world.post(path).key("k-1").body("x"), world.post(path).body("keyless")] {
            assert!(reached(&own, &request.host("own.example")).await, "{path}");
        }
    }
    let others = ["GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "PURGE"].map(|method| (method, "/pay"));
    for (method, path) in others.into_iter().chain([("POST", "/pay/7"), ("DELETE", "/else"), ("OPTIONS", "*")]) {
        let request = world.proxy.client().request(method, path).key("k-1");
        assert!(reached(&own, &request.clone().host("own.example")).await, "{method} {path}");
        let calls = own.calls();
        assert!(reached(&world.upstream, &request).await, "{method} {path}");
        assert_eq!(own.calls(), calls, "{method} {path} of another host");
    }
    let replay = world.post("/pay").key("k-1").body("x").host("own.example");
    assert_eq!(oncegate_status(replay).await, "replayed");
}

#[tokio::test]
async fn defaults_apply_where_a_route_sets_nothing() {
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .defaults("key = { from = \"header:X-Key\", required = true }\nstore_statuses = [\"2xx\", \"503\"]\nmethods = [\"PUT\"]")
            .route("name = \"pay\"\npath = \"/pay\"")
            .route("name = \"lax\"\npath = \"/lax\"\nkey = { required = false }\nmethods = [\"POST\"]")
    })
    .await;
    let put = world.proxy.client().request("PUT", "/pay").body("x");
    assert_eq!(put.send().await.outcome(), (400, "key-missing".to_owned()));
    world.upstream.then(Answer::status(503));
    for expected in ["executed", "replayed"] {
        let response = put.clone().field("X-Key", "k-1").send().await;
        assert_eq!((response.status, response.oncegate_status()), (503, Some(expected)));
    }
    assert_eq!(oncegate_status(world.post("/lax").body("x")).await, "nothing");
    assert_eq!(
        oncegate_status(world.post("/lax").field("X-Key", "k-1").body("x")).await,
        "executed",
        "the header stays"
    );
    assert_eq!(oncegate_status(world.post("/pay").field("X-Key", "k-1").body("x")).await, "nothing");
}

#[tokio::test]
async fn a_route_that_is_off_passes_everything() {
    let world = World::guarding(Store::sqlite(), "mode = \"off\"\nkey = { required = true }").await;
    for _ in 0..2 {
        let response = world.pay("k-1").send().await;
        assert_eq!((response.status, response.oncegate_status(), response.field("idempotency-key")), (201, None, None));
        assert_eq!(oncegate_status(world.post("/pay").body("x")).await, "nothing");
    }
    assert_eq!(world.upstream.calls(), 4);
    assert_eq!(world.upstream.last().field("oncegate-attempt"), None);
}

fn refusing(setup: Setup) -> Setup {
    let off = route("off", "mode = \"off\"");
    setup.top("unguarded = \"refuse\"").route(&route("pay", "")).route(&off).route(&route("look", "mode = \"observe\""))
}

#[tokio::test]
async fn unguarded_unsafe_requests_may_be_refused() {
    let world = World::with(Store::sqlite(), refusing).await;
    for request in [
        world.post("/else").key("k-1").body("x"),
        world.proxy.client().request("DELETE", "/pay").key("k-1"),
        world.proxy.client().request("PURGE", "/pay").key("k-1"),
    ] {
        let refusal = request.send().await;
        assert_eq!((refusal.outcome(), refusal.oncegate_status()), ((403, "unguarded".to_owned()), None));
        assert_eq!(refusal.problem()["retry"], "fix");
    }
    assert_eq!(world.upstream.calls(), 0);
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert_eq!(world.proxy.client().request(method, "/else").send().await.status, 201, "{method}");
    }
    assert_eq!(oncegate_status(world.pay("k-1")).await, "executed");
    // A route guards it, and requires no key.
    let keyless = world.post("/pay").body("x").send().await;
    assert_eq!((keyless.status, keyless.oncegate_status()), (201, None));
    assert_eq!(world.post("/off").body("x").send().await.status, 201);
    assert_eq!(oncegate_status(world.post("/look").body("x")).await, "observed");
}

#[tokio::test]
async fn a_service_with_a_host_leaves_other_hosts_to_the_one_at_the_top() {
    let own = Upstream::start().await;
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .service(&service("api", own.address))
            .route("name = \"api\"\npath = \"/pay\"\nservice = \"api\"")
            .route("name = \"all\"\npath = \"/pay\"\nservice = \"default\"")
    })
    .await;
    let pay = |host: &str| world.pay("k-1").host(host);
    assert!(reached(&own, &pay("api.example")).await);
    assert!(reached(&world.upstream, &world.pay("k-2").host("www.api.example")).await);
    assert_eq!(own.last().field("host"), Some("api.example"));
    assert_eq!(oncegate_status(pay("api.example:80")).await, "replayed");
}

#[tokio::test]
async fn a_start_warns_of_a_dangerous_setting_unless_the_file_or_its_route_allows_it() {
    let allow = "allow = [\"scope-none\"]";
    for (top, own, warns) in [("", "", true), (allow, "", false), ("", allow, false)] {
        let lines = route("pay", &format!("scope = [\"none\"]\n{own}"));
        let world = World::with(Store::sqlite(), |setup| setup.top(top).route(&lines)).await;
        let warned = world.proxy.logged().iter().any(|line| line.to_string().contains("[scope-none]"));
        assert_eq!(warned, warns, "{top}{own}");
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_before_the_service_closes_it() {
    let kept = Upstream::start().await;
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .service(&service("kept", kept.address))
            .route(&route("pay", "service = \"default\"\nupstream_idle_timeout = \"100ms\""))
            .route(&route("kept", "service = \"kept\"\nupstream_idle_timeout = \"60s\""))
    })
    .await;
    // With one time for both, the connection that was used first would be closed first.
    assert_eq!(oncegate_status(world.post("/kept").host("kept.example").key("k").body("x")).await, "executed");
    assert_eq!(oncegate_status(world.pay("k-1")).await, "executed");
    world.upstream.wait_until(|seen| seen.closed == 1).await;
    kept.wait_until(|seen| seen.closed == 0).await;
    assert_eq!(oncegate_status(world.pay("k-2")).await, "executed");
}

#[tokio::test]
async fn scope_fields_cannot_be_removed_on_a_route_that_is_off() {
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("off", "mode = \"off\""))).await;
    for path in ["/off", "/else"] {
        let request = world.post(path).field("Authorization", "Bearer a").field("Connection", "Authorization");
        assert_eq!(request.send().await.outcome(), (400, "bad-request".to_owned()), "{path}");
    }
    assert_eq!(world.upstream.calls(), 0);
}

#[tokio::test]
async fn another_spelling_of_a_guarded_host_is_guarded() {
    let api = Upstream::start().await;
    let world = routed(&api, &[("api", "path = \"/pay\"\nservice = \"api\"")]).await;
    let request = |host: &str| world.post("/pay").key("k-1").host(host).body("x");
    assert_eq!(oncegate_status(request("api.example")).await, "executed");
    for host in ["API.Example", "api.example:443", "api.example:", "api.example.", "api.example.:80"] {
        assert_eq!(oncegate_status(request(host)).await, "replayed", "{host}");
    }
    let absolute = world.post("http://api.example/pay").key("k-1").body("x");
    assert_eq!(oncegate_status(absolute).await, "replayed", "where a target names its host, that is the host");
    for host in ["x@api.example", "api.example/", "api.example,shop.example", "api.example other"] {
        let refusal = request(host).send().await;
        assert_eq!(refusal.status, 400, "{host}: {refusal:?}");
    }
    assert_eq!((api.calls(), world.upstream.calls()), (1, 0));
}
