//! The service's directives about a response, and the status lists that apply without them.

use std::time::{Duration, SystemTime};

use harness::{Answer, Response, Store, TEST_TIMEOUT, World, eventually, on_both_stores, route};

fn removes_directives(response: &Response) {
    assert_eq!((response.field("oncegate-decision"), response.field("oncegate-ttl")), (None, None));
}

on_both_stores!(the_services_directive_overrides_the_status_table);
async fn the_services_directive_overrides_the_status_table(store: Store) {
    let world = World::start(store).await;
    for (status, decision, oncegate_status, again) in [
        (201, "release", "released", "executed"),
        (503, "store", "executed", "replayed"),
        (502, "store", "executed", "replayed"),
        (201, "unknown", "unknown", "unknown"),
        (500, "unknown", "unknown", "unknown"),
        (504, "release", "released", "executed"),
        (429, "store", "executed", "replayed"),
    ] {
        let key = format!("{status}-{decision}");
        world.upstream.then(Answer::status(status).field("Oncegate-Decision", decision).field("Retry-After", "1"));
        let first = world.pay(&key).send().await;
        assert_eq!((first.status, first.oncegate_status()), (status, Some(oncegate_status)), "{key}");
        removes_directives(&first);
        let second = world.pay(&key).send().await;
        assert_eq!(second.oncegate_status(), Some(again), "{key}");
        removes_directives(&second);
        match again {
            "replayed" => assert_eq!(second.comparable(), first.replayed()),
            "unknown" => assert_eq!(second.outcome(), (409, "outcome-unknown".to_owned())),
            _ => assert_eq!(second.status, 201),
        }
    }
}

fn lives_for(response: &Response) -> Duration {
    let expires = httpdate::parse_http_date(response.field("idempotency-key-expires").unwrap()).unwrap();
    expires.duration_since(SystemTime::now()).unwrap_or_default()
}

on_both_stores!(the_service_sets_its_responses_ttl);
async fn the_service_sets_its_responses_ttl(store: Store) {
    let world = World::with(store, |setup| setup.store("reap_every = \"1h\"")).await;
    world.upstream.then(Answer::status(201).field("Oncegate-TTL", "1s"));
    world.upstream.then(Answer::status(201).field("Oncegate-TTL", "48h"));
    let short = world.pay("short").send().await;
    let long = world.pay("long").send().await;
    removes_directives(&long);
    assert!(lives_for(&short) <= Duration::from_secs(2));
    assert!(lives_for(&long) > Duration::from_secs(47 * 3600));
    let again =
        eventually(TEST_TIMEOUT, async || Some(world.pay("short").send().await).filter(|one| !one.is_replay())).await;
    assert_eq!(again.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("long").send().await.comparable(), long.replayed());
}

#[tokio::test]
async fn invalid_directives_are_logged_and_ignored() {
    let world = World::start(Store::sqlite()).await;
    for (number, (name, value)) in [
        ("Oncegate-Decision", "Store"),
        ("Oncegate-Decision", ""),
        ("Oncegate-TTL", "soon"),
        ("Oncegate-TTL", "0s"),
        ("Oncegate-TTL", "9999d"),
        ("Oncegate-TTL", "\u{e9}"),
    ]
    .into_iter()
    .enumerate()
    {
        world.upstream.then(Answer::status(201).field(name, value));
        let key = format!("k-{number}");
        let first = world.pay(&key).send().await;
        removes_directives(&first);
        assert_eq!(first.oncegate_status(), Some("executed"), "{name}: {value}");
        let day = lives_for(&first);
        assert!(day > Duration::from_secs(23 * 3600) && day <= Duration::from_secs(24 * 3600), "{name}: {value}");
        assert_eq!(world.pay(&key).send().await.comparable(), first.replayed());
        world.proxy.wait_for_logs("invalid directive", number + 1).await;
    }
}

#[tokio::test]
async fn directives_are_removed_from_unguarded_and_observed_responses() {
    let world = World::guarding(Store::sqlite(), "mode = \"observe\"").await;
    world.upstream.answer_all(Answer::status(200).field("Oncegate-Decision", "store").field("Oncegate-TTL", "1h"));
    for request in [world.pay("k-1"), world.get("/else"), world.post("/pay").body("x")] {
        removes_directives(&request.send().await);
    }
}

#[tokio::test]
async fn a_configured_list_overrides_the_default_and_a_code_overrides_its_class() {
    let lists = [
        ("store", "store_statuses = [\"500\", \"504\"]"),
        ("release", "release_statuses = [\"409\", \"2xx\", \"502\"]"),
        ("unknown", "unknown_statuses = [\"4xx\", \"503\"]"),
        ("mixed", "store_statuses = [\"422\", \"5xx\"]\nrelease_statuses = [\"4xx\"]\nunknown_statuses = [\"500\"]"),
        ("plain", ""),
    ];
    let world = World::with(Store::sqlite(), |setup| {
        lists.iter().fold(setup, |setup, (name, lines)| setup.route(&route(name, lines)))
    })
    .await;
    for (name, status, oncegate_status) in [
        ("store", 500, "executed"),
        ("store", 501, "released"),
        ("store", 504, "executed"),
        ("store", 502, "unknown"),
        ("store", 401, "released"),
        ("release", 201, "released"),
        ("release", 409, "released"),
        ("release", 502, "released"),
        ("release", 504, "unknown"),
        ("release", 422, "executed"),
        ("unknown", 422, "unknown"),
        ("unknown", 503, "unknown"),
        ("unknown", 500, "released"),
        ("unknown", 201, "executed"),
        ("mixed", 422, "executed"),
        ("mixed", 400, "released"),
        ("mixed", 503, "executed"),
        ("mixed", 500, "unknown"),
        ("plain", 308, "released"),
        ("plain", 303, "executed"),
        ("plain", 404, "executed"),
        ("plain", 500, "released"),
        ("plain", 504, "unknown"),
    ] {
        world.upstream.then(Answer::status(status));
        let answer = world.post(&format!("/{name}")).key(&format!("k-{status}")).body("x").send().await;
        assert_eq!((answer.status, answer.oncegate_status()), (status, Some(oncegate_status)), "{name} {status}");
    }
    for (name, status, oncegate_status) in [
        ("plain", 409, "released"),
        ("plain", 404, "released"),
        ("mixed", 422, "executed"),
        ("unknown", 418, "released"),
    ] {
        world.upstream.then(Answer::status(status).field("Retry-After", "1"));
        let answer = world.post(&format!("/{name}")).key(&format!("r-{status}")).body("x").send().await;
        assert_eq!(
            (answer.status, answer.oncegate_status()),
            (status, Some(oncegate_status)),
            "{name} {status} with Retry-After"
        );
    }
}

on_both_stores!(with_retry_when_quiet_an_unknown_outcome_is_retried_when_quiet);
async fn with_retry_when_quiet_an_unknown_outcome_is_retried_when_quiet(store: Store) {
    let lines = "on_unknown = \"retry-when-quiet\"\nreconcile = { after = \"0s\" }\nupstream_timeout = \"500ms\"";
    let world =
        World::with(store, |setup| setup.short_leases().store("timeout = \"1s\"").route(&route("pay", lines))).await;
    world.upstream.then(Answer::close());
    let begun = std::time::Instant::now();
    assert_eq!(world.pay("k-1").send().await.outcome(), (502, "upstream-broken".to_owned()));
    let early = world.pay("k-1").send().await;
    // The route's own 500 ms, the 2 s within which the request may be sent, and a lease.
    assert!(early.field("retry-after").unwrap().parse::<u64>().unwrap() <= 4, "until it is quiet, and no longer");

    let next =
        eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|one| one.status == 201)).await;
    assert!(begun.elapsed() >= Duration::from_millis(1_500), "its own deadline and a lease have passed");
    assert_eq!(
        (next.oncegate_status(), world.upstream.last().field("oncegate-attempt")),
        (Some("executed"), Some("2"))
    );
    assert_eq!(world.upstream.calls(), 2);
}
