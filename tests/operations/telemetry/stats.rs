//! Unguarded requests: `GET /api/v1/stats`.

use serde_json::{Value, json};

use harness::operator::Operator;
use harness::{Store, World};

async fn stats(world: &World) -> Value {
    let (status, stats) = Operator::of(&world.proxy).get("/api/v1/stats").await;
    assert_eq!(status, 200);
    stats
}

#[tokio::test]
async fn stats_list_unguarded_requests_by_method_and_path_template() {
    let world = World::guarding(Store::sqlite(), "").await;
    let client = world.proxy.client();
    for (method, target) in [
        ("POST", "/v1/refunds/17?secret=1"),
        ("POST", "/v1/refunds/18"),
        ("DELETE", "/v1/customers/6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
        ("PURGE", "/cache"),
        ("GET", "/v1/refunds/17"),
    ] {
        client.request(method, target).send().await;
    }
    client.post("/v1/refunds/19").key("k-1").send().await;
    let row = |method: &str, path: &str, requests: u64, with_key: u64| json!({ "method": method, "path": path, "requests": requests, "with_key": with_key, "at_most_more": 0 });
    let expected = json!([
        row("POST", "/v1/refunds/{id}", 3, 1),
        row("DELETE", "/v1/customers/{id}", 1, 0),
        row("other", "/cache", 1, 0)
    ]);
    assert_eq!(stats(&world).await["unguarded"], expected);
}
