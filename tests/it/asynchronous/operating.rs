//! What operators may do with what is queued.

use serde_json::json;

use super::*;
use crate::harness::on_both_stores;
use crate::harness::operator::{self, Operator};

/// An operator who says that this is her name.
const ALICE: &str = "alice (claimed) at 127.0.0.1";

on_both_stores!(what_is_queued_is_forgotten_at_an_operators_own_risk_alone);
async fn what_is_queued_is_forgotten_at_an_operators_own_risk_alone(store: Store) {
    let world = world(store, "retry = { base = \"1h\", cap = \"1h\" }").await;
    world.upstream.then(trouble());
    let place = world.accepts("k-1").await;
    let operator = Operator::of(&world.proxy);
    world.upstream.has_executed(1).await;
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
    assert_eq!(world.get(&place).send().await.status, 410, "it was there, and its caller may know");
    assert_eq!(operator.audit().await, [[ALICE, "purge", "queued", "none"]]);
    // The key is free again.
    assert_eq!(world.accepts("k-1").await, place);
    world.operation_when(&place, "completed").await;
}

on_both_stores!(from_a_shell_the_dead_are_queued_anew);
async fn from_a_shell_the_dead_are_queued_anew(store: Store) {
    let world = world(store, "").await;
    world.upstream.then(Answer::status(403)).then(Answer::status(403));
    let places = [world.accepts("k-1").await, world.accepts("k-2").await];
    for place in &places {
        world.operation_when(place, "dead").await;
    }
    let admin = world.proxy.admin.to_string();
    let shell = async |arguments: &[&str]| {
        operator::keys(&world.proxy.file(), &[arguments, &["--admin", &admin]].concat()).await
    };
    let said = shell(&["requeue", "--state", "dead", "--yes"]).await;
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    for place in &places {
        assert_eq!(world.operation_when(place, "completed").await["attempts"], 2);
    }
    let queued = shell(&["list", "--state", "queued", "--json"]).await;
    assert_eq!((queued.code, queued.out.trim()), (0, "[]"));
}

on_both_stores!(what_somebody_knows_completes_a_dead_delivery_and_a_release_frees_its_key);
async fn what_somebody_knows_completes_a_dead_delivery_and_a_release_frees_its_key(store: Store) {
    let world = world(store, "").await;
    world.upstream.then(Answer::status(403));
    let place = world.accepts("k-1").await;
    world.operation_when(&place, "dead").await;
    let operator = Operator::of(&world.proxy);
    let id = operator.id_when("k-1", "dead").await;
    let (status, _) = operator.resolve(&id, operator::completed(200, "by hand")).await;
    assert_eq!(status, 200);
    assert_eq!(world.operation_when(&place, "completed").await["response"]["body"], "by hand");
    assert_eq!(world.pay("k-1").send().await.text(), "by hand");
    let (status, told) = operator.post(&format!("/api/v1/keys/{id}/release"), json!({})).await;
    assert_eq!((status, &told["after"]), (200, &json!("retryable")));
    assert_eq!(world.get(&place).send().await.status, 410);
    assert_eq!(world.accepts("k-1").await, place);
    assert_eq!(world.operation_when(&place, "completed").await["attempts"], 2);
}
