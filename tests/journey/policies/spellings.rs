//! Spellings of a guarded path: none leaves the guard, and all of them share their keys.

use harness::{Request, Store, World, on_both_stores};

async fn oncegate_status(request: Request) -> String {
    request.send().await.oncegate_status().unwrap_or("nothing").to_owned()
}

async fn is_refused(request: Request, slug: &str) {
    let refusal = request.send().await;
    assert_eq!(refusal.outcome(), (400, slug.to_owned()), "{refusal:?}");
}

/// A world that guards `POST /v1/payments` with these lines, and lets all else pass.
async fn world(store: Store, lines: &str) -> World {
    let route = format!("name = \"pay\"\npath = \"/v1/payments\"\nmethods = [\"POST\"]\n{lines}");
    World::with(store, |setup| setup.route(&route)).await
}

fn pay(world: &World, target: &str) -> Request {
    world.post(target).key("k-1").json(r#"{"amount":1}"#)
}

/// Paths that lenient services take for `/v1/payments`.
const LENIENT: [&str; 13] = [
    "//v1/payments",
    "/v1//payments",
    "/v1/payments/",
    "/v1/payments;x=1",
    "/v1;a/payments",
    "/v1/x/..;/payments",
    "/V1/Payments",
    "/v1%2Fpayments",
    "/v1%2fpayments",
    "/v1%5Cpayments",
    "/v1/x/..%2fpayments",
    "/v1/x/%2e%2e%2Fpayments",
    "/v1/./payments//",
];

/// Paths that are `/v1/payments` by RFC 3986.
const EQUIVALENT: [&str; 5] =
    ["/v1/p%61yments", "/v1/./payments", "/x/../v1/payments", "/v1/%70ayments", "/v1/x/%2E%2e/payments"];

on_both_stores!(equivalent_paths_share_their_keys);
async fn equivalent_paths_share_their_keys(store: Store) {
    let world = world(store, "").await;
    assert_eq!(oncegate_status(pay(&world, "/v1/payments")).await, "executed");
    for target in EQUIVALENT {
        assert_eq!(oncegate_status(pay(&world, target)).await, "replayed", "{target}");
        let other = world.post(target).key(target).body("x");
        assert_eq!(oncegate_status(other).await, "executed", "{target}");
        assert_eq!(world.upstream.last().target, target, "it is forwarded as it was sent");
    }
    assert_eq!(world.upstream.calls(), 1 + EQUIVALENT.len());
}

#[tokio::test]
async fn another_spelling_of_a_guarded_path_is_refused() {
    let world = world(Store::sqlite(), "").await;
    for target in LENIENT {
        is_refused(pay(&world, target), "path-ambiguous").await;
        is_refused(world.post(target).body("no key"), "path-ambiguous").await;
    }
    // A service that parses its target as a URL reference takes the first segment for an authority.
    for target in ["//x/v1/payments", "//x:1/v1/payments", "///x//v1/payments/", "//x/v1%2Fpayments"] {
        is_refused(pay(&world, target), "path-ambiguous").await;
    }
    for target in
        ["/v1\\payments", "/v1/payments%00", "/v1/payments%0a", "/v1/%1fpayments", "/elsewhere\\x", "/elsewhere%7F"]
    {
        is_refused(pay(&world, target), "bad-request").await;
        is_refused(world.get(target), "bad-request").await;
    }
    assert_eq!(world.upstream.calls(), 0);
    assert_eq!(oncegate_status(pay(&world, "/v1/payments")).await, "executed");
    for target in ["//v1/payments", "/V1/payments/", "/v1%2Fpayments"] {
        assert_eq!(world.get(target).send().await.status, 201, "a method that the route does not guard");
        assert_eq!(world.upstream.last().target, target);
    }
    for target in ["/v1/payments/7/", "/v1/paymentss/", "//elsewhere;a=1/b%2Fc/", "/v2//payments"] {
        assert_eq!(pay(&world, target).send().await.oncegate_status(), None, "{target}");
        assert_eq!(world.upstream.last().target, target, "no route concerns it");
    }
}

on_both_stores!(with_the_same_spelling_all_spellings_are_the_routes_path);
async fn with_the_same_spelling_all_spellings_are_the_routes_path(store: Store) {
    let world = world(store, "spelling = \"same\"").await;
    assert_eq!(oncegate_status(pay(&world, LENIENT[0])).await, "executed");
    assert_eq!(world.upstream.last().target, LENIENT[0], "it is forwarded as it was sent");
    for target in LENIENT.into_iter().chain(EQUIVALENT).chain(["/v1/payments"]) {
        assert_eq!(oncegate_status(pay(&world, target)).await, "replayed", "{target}");
    }
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_route_may_let_other_spellings_pass() {
    let world = world(Store::sqlite(), "spelling = \"pass\"").await;
    assert_eq!(oncegate_status(pay(&world, "/v1/payments")).await, "executed");
    for target in LENIENT {
        assert_eq!(oncegate_status(pay(&world, target)).await, "nothing", "{target}");
    }
    assert_eq!(world.upstream.calls(), 1 + LENIENT.len());
}

#[tokio::test]
async fn one_key_is_executed_once_by_all_spellings_under_a_route_for_everything() {
    let world = World::start(Store::sqlite()).await;
    let send = |target: &str| oncegate_status(world.post(target).key("k-1").body("x"));
    assert_eq!(send("/posts").await, "executed");
    for target in ["/posts/", "/Posts", "/POSTS/", "/posts;x=1", "/posts%2F", "/x/..;/posts"] {
        assert_eq!(send(target).await, "key-reused", "{target}");
    }
    // A service that parses its target as a URL reference takes it for `/`.
    is_refused(world.post("//posts").key("k-1").body("x"), "path-ambiguous").await;
    for target in ["/p%6Fsts", "/./posts", "/x/../posts"] {
        assert_eq!(send(target).await, "replayed", "{target}");
    }
    assert_eq!(world.upstream.calls(), 1);
    assert_eq!(send("/posts/7/").await, "executed", "another path");
    assert_eq!(world.upstream.last().target, "/posts/7/");
}

#[tokio::test]
async fn a_method_override_does_not_lead_to_a_guarded_method() {
    let world = world(Store::sqlite(), "").await;
    let overridden = |method: &str, target: &str, field: &str| {
        let request = world.proxy.client().request(method, target).key("k-1").body("x");
        if field.is_empty() { request } else { request.field(field, "post, x") }
    };
    for (method, target, field) in [
        ("GET", "/v1/payments", "X-HTTP-Method-Override"),
        ("PUT", "/v1/payments", "X-HTTP-Method"),
        ("PUT", "//v1/payments", "X-Method-Override"),
        ("PUT", "/v1/payments?a=b&_method=POST", ""),
        ("GET", "/v1/payments/?_method=%50ost", ""),
        ("PUT", "/v1/payments?%5Fmeth%6Fd=POST", ""),
        ("PUT", "/v1/payments?.method=POST", ""),
        ("PUT", "/v1/payments?a=1;_method=POST", ""),
    ] {
        let answer = overridden(method, target, field).send().await;
        assert_eq!(answer.outcome(), (400, "bad-request".to_owned()), "{method} {target}");
        assert_eq!((answer.oncegate_status(), answer.field("idempotency-key")), (Some("rejected"), Some("k-1")));
    }
    assert_eq!(world.upstream.calls(), 0);
    // Each lookup reads the whole path, so that there is one for each method.
    let many = format!("/z/{}?{}", "a%2f".repeat(900), "_method=POST&".repeat(250));
    assert_eq!(world.proxy.client().request("PUT", &many).body("x").send().await.status, 201);
    for (method, target, field) in [
        ("POST", "/v1/payments", "X-HTTP-Method-Override"),
        ("PUT", "/elsewhere", "X-HTTP-Method-Override"),
        ("GET", "/v1/payments?method=POST", ""),
        ("GET", "/v1/payments?_method=DELETE", ""),
    ] {
        assert_eq!(overridden(method, target, field).send().await.status, 201, "{method} {target}");
    }
    assert_eq!(world.upstream.calls(), 5);
}

#[tokio::test]
async fn a_path_that_services_read_in_several_ways_is_refused_where_a_route_guards() {
    for route in ["name = \"pay\"\npath = \"/v1/payments\"", "name = \"all\"\npath = \"/{*rest}\"\nspelling = \"same\""]
    {
        let world = World::with(Store::sqlite(), |setup| setup.route(route)).await;
        for target in [
            "/v1/a%2Fb/../payments",
            "/v1/a%5Cb/../payments",
            "/v1/..;x/../payments",
            "/v1/a%5Cb/..%2fpayments",
            "/v1/payments/..;x/..",
            "/v1;x%5Ca%2fpayments",
            "/v1//../payments",
        ] {
            is_refused(pay(&world, target), "path-ambiguous").await;
        }
        assert_eq!(world.get("/v1/a%2Fb/../payments").send().await.status, 201);
        assert_eq!(world.upstream.calls(), 1);
    }
}
