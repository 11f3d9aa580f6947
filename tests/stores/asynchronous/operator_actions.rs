//! Operators' actions on queued and dead deliveries.

use serde_json::{Value, json};

use super::*;
use harness::on_both_stores;
use harness::operator::{self, Operator};

/// An operator who claims this name.
const ALICE: &str = "alice (claimed) at 127.0.0.1";

on_both_stores!(purging_a_queued_delivery_needs_the_accepted_risk);
async fn purging_a_queued_delivery_needs_the_accepted_risk(store: Store) {
    let world = world(store, "retry = { base = \"1h\", cap = \"1h\" }").await;
    world.upstream.then(trouble());
    let operation_path = world.accepts("k-1").await;
    let operator = Operator::of(&world.proxy);
    world.upstream.wait_for_executed(1).await;
    let id = operator.id_when("k-1", "queued").await;
    for (method, path, body) in [
        ("DELETE", format!("/api/v1/keys/{id}"), json!({})),
        ("POST", format!("/api/v1/keys/{id}/release"), json!({})),
        ("POST", format!("/api/v1/keys/{id}/requeue"), json!({})),
        ("POST", format!("/api/v1/keys/{id}/resolve"), operator::completed(200, "by hand")),
    ] {
        let refused = operator.request(method, &path).json(&body.to_string()).send().await;
        assert_eq!((refused.status, &refused.problem()["code"]), (409, &json!("wrong-state")), "{method} {path}");
    }
    let purge = operator.request("DELETE", &format!("/api/v1/keys/{id}")).json("{\"accept_risk\":true}");
    assert_eq!(purge.send().await.status, 200);
    assert_eq!(world.get(&operation_path).send().await.status, 410, "it was there, and its caller may know");
    assert_eq!(operator.audit().await, [[ALICE, "purge", "queued", "none"]]);
    // The key is free again.
    assert_eq!(world.accepts("k-1").await, operation_path);
    world.operation_when(&operation_path, "completed").await;
}

on_both_stores!(the_command_line_requeues_dead_deliveries);
async fn the_command_line_requeues_dead_deliveries(store: Store) {
    let world = world(store, "").await;
    world.upstream.then(Answer::status(403)).then(Answer::status(403));
    let operation_paths = [world.accepts("k-1").await, world.accepts("k-2").await];
    for operation_path in &operation_paths {
        world.operation_when(operation_path, "dead").await;
    }
    let admin = world.proxy.admin.to_string();
    let shell = async |arguments: &[&str]| {
        operator::keys(&world.proxy.file(), &[arguments, &["--admin", &admin]].concat()).await
    };
    let output = shell(&["requeue", "--state", "dead", "--yes"]).await;
    assert_eq!(output.code, 0, "{} {}", output.out, output.err);
    for operation_path in &operation_paths {
        assert_eq!(world.operation_when(operation_path, "completed").await["attempts"], 2);
    }
    let queued = shell(&["list", "--state", "queued", "--json"]).await;
    assert_eq!((queued.code, queued.out.trim()), (0, "[]"));
}

on_both_stores!(an_operator_completes_or_releases_a_dead_delivery);
async fn an_operator_completes_or_releases_a_dead_delivery(store: Store) {
    let world = world(store, "").await;
    world.upstream.then(Answer::status(403));
    let operation_path = world.accepts("k-1").await;
    world.operation_when(&operation_path, "dead").await;
    let operator = Operator::of(&world.proxy);
    let id = operator.id_when("k-1", "dead").await;
    let (status, _) = operator.resolve(&id, operator::completed(200, "by hand")).await;
    assert_eq!(status, 200);
    assert_eq!(world.operation_when(&operation_path, "completed").await["response"]["body"], "by hand");
    assert_eq!(world.pay("k-1").send().await.text(), "by hand");
    let risk = json!({ "accept_risk": true });
    let (status, reply) = operator.post(&format!("/api/v1/keys/{id}/release"), risk).await;
    assert_eq!((status, &reply["after"]), (200, &json!("retryable")));
    let released = world.get(&operation_path).send().await;
    let operation: Value = serde_json::from_slice(&released.body).unwrap();
    assert_eq!((released.status, &operation["state"]), (200, &json!("retryable")), "the key is not over");
    assert_eq!(operation["created_at"], Value::Null);
    assert_eq!(world.accepts("k-1").await, operation_path);
    assert_eq!(world.operation_when(&operation_path, "completed").await["attempts"], 2);
}
