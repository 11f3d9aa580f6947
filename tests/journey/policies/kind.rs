//! Routes of money: a preset that a written key overrules.

use harness::{Answer, Store, World, on_both_stores};

on_both_stores!(a_route_of_money_needs_keys_and_takes_no_5xx_for_not_executed);
async fn a_route_of_money_needs_keys_and_takes_no_5xx_for_not_executed(store: Store) {
    let world = World::guarding(store, "kind = \"money\"").await;
    assert_eq!(world.post("/pay").body("x").send().await.outcome(), (400, "key-missing".to_owned()));
    for (status, told) in [(201, "executed"), (402, "executed"), (429, "released"), (500, "unknown"), (503, "unknown")]
    {
        world.upstream.then(Answer::status(status));
        let answer = world.pay(&format!("k-{status}")).send().await;
        assert_eq!((answer.status, answer.oncegate_status()), (status, Some(told)));
    }
    assert_eq!(world.upstream.calls(), 5);
}

#[tokio::test]
async fn a_list_beside_the_kind_overrules_it() {
    let world = World::guarding(Store::sqlite(), "kind = \"money\"\nrelease_statuses = [\"503\"]").await;
    world.upstream.then(Answer::status(503));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("released"));
    world.upstream.then(Answer::status(500));
    assert_eq!(world.pay("k-2").send().await.oncegate_status(), Some("unknown"));
}
