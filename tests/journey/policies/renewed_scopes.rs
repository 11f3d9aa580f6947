//! Scopes whose parts the service renews: they are counted, logged once and shown.

use harness::metrics::Metrics;
use harness::operator::Operator;
use harness::{Answer, Store, World, route};

async fn renewals(world: &World, route: &str, part: &str) -> Option<u64> {
    let name = format!("oncegate_scope_renewals_total{{route=\"{route}\",part=\"{part}\"}}");
    Metrics::of(&world.proxy).await.find(&name).map(|count| count as u64)
}

#[tokio::test]
async fn a_part_that_any_response_renews_is_counted_logged_once_and_shown() {
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .route(&route("pay", "scope = [\"cookie:session\"]"))
            .route(&route("by-token", "scope = [\"header:x-token\"]"))
            .route(&route("seen", "scope = [\"cookie:seen\"]\nmode = \"observe\""))
            .route(&route("by-query", "scope = [\"query:tenant\"]"))
    })
    .await;
    assert_eq!(renewals(&world, "pay", "cookie:session").await, Some(0));
    assert_eq!(renewals(&world, "by-query", "query:tenant").await, None);
    // Responses to a page that polls, as Flask signs its permanent sessions.
    for number in 1..=2 {
        world.upstream.then(Answer::status(200).field("Set-Cookie", &format!("session=s{number}; HttpOnly; Path=/")));
        let poll = world.get("/poll").field("Cookie", "theme=dark; session=s0").send().await;
        assert_eq!(poll.status, 200);
    }
    assert_eq!(renewals(&world, "pay", "cookie:session").await, Some(2));
    // Guarded responses, and an observed one.
    let pay = |key: &str| world.post("/pay").key(key).field("Cookie", "session=s2").body("x");
    world.upstream.then(Answer::status(201).field("Set-Cookie", "session=s3; Path=/"));
    assert_eq!(pay("k-1").send().await.oncegate_status(), Some("executed"));
    assert_eq!(pay("k-1").send().await.oncegate_status(), Some("replayed"), "a replay is not of the service");
    assert_eq!(renewals(&world, "pay", "cookie:session").await, Some(3));
    world.upstream.then(Answer::status(201).field("X-Token", "t2"));
    let by_token = world.post("/by-token").key("k-1").field("X-Token", "t1").body("x").send().await;
    assert_eq!(by_token.oncegate_status(), Some("executed"));
    assert_eq!(renewals(&world, "by-token", "header:x-token").await, Some(1));
    world.upstream.then(Answer::status(201).field("Set-Cookie", "seen=2; Path=/"));
    assert_eq!(world.post("/seen").key("k-1").field("Cookie", "seen=1").body("x").send().await.status, 201);
    assert_eq!(renewals(&world, "seen", "cookie:seen").await, Some(1));
    // The same value, and a caller who had none.
    for cookies in ["session=s4", "theme=dark"] {
        world.upstream.then(Answer::status(200).field("Set-Cookie", "session=s4; Path=/"));
        world.get("/poll").field("Cookie", cookies).send().await;
    }
    assert_eq!(renewals(&world, "pay", "cookie:session").await, Some(3));
    world.proxy.wait_for_logs("another value: a retry with it is another caller", 3).await;
    let logged = world.proxy.logged();
    let parts: Vec<_> = logged.iter().filter(|line| line["part"].is_string()).map(|line| &line["part"]).collect();
    assert_eq!(parts, ["cookie:session", "header:x-token", "cookie:seen"], "each once");
    let (_, stats) = Operator::of(&world.proxy).get("/api/v1/stats").await;
    let expected = serde_json::json!([
        { "route": "by-token", "part": "header:x-token", "responses": 1 },
        { "route": "pay", "part": "cookie:session", "responses": 3 },
        { "route": "seen", "part": "cookie:seen", "responses": 1 },
    ]);
    assert_eq!(stats["renewed_scope_parts"], expected);
}
