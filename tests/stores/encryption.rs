//! `store.encrypt`: a reader of the database sees no response, and every instance with the secret replays it.

use serde_json::Value;

use harness::operator::{Operator, completed};
use harness::proxy::{Setup, fails};
use harness::{Answer, Request, Store, World, on_both_stores};

const CANARY: &str = "canary-4111111111111111";
const OLD: &str = "secret = \"the old secret of ours\"";
const ROTATED: &str = "secret = \"the new secret of ours\"\nprevious_secrets = [\"the old secret of ours\"]";
const NEW: &str = "secret = \"the new secret of ours\"";

fn encrypting(secrets: &'static str) -> impl FnOnce(Setup) -> Setup {
    move |setup| setup.top(secrets).store("encrypt = true")
}

fn pay(world: &World, key: &str) -> Request {
    world.pay(key).body("an order")
}

fn answer() -> Answer {
    Answer::status(201).field("X-Card", CANARY).body(CANARY)
}

on_both_stores!(a_stored_response_is_unreadable_without_the_secret_and_replayed_with_it);
async fn a_stored_response_is_unreadable_without_the_secret_and_replayed_with_it(store: Store) {
    let mut world = World::with(store, encrypting(OLD)).await;
    world.upstream.then(answer());
    let first = pay(&world, "k-1").send().await;
    assert_eq!(
        (first.oncegate_status(), &*first.text(), first.field("x-card")),
        (Some("executed"), CANARY, Some(CANARY))
    );
    assert_eq!(pay(&world, "k-1").send().await.comparable(), first.replayed(), "from memory");

    world.upstream.then(Answer::close());
    assert_eq!(pay(&world, "k-2").send().await.status, 502);
    let operator = Operator::of(&world.proxy);
    assert_eq!(operator.resolve(&operator.id("k-2").await, completed(200, CANARY)).await.0, 200);

    assert_eq!(world.proxy.stop().await, Some(0));
    let stored = world.store.responses().await;
    assert_eq!(stored.len(), 2);
    for row in stored {
        assert!(memchr::memmem::find(&row, b"canary").is_none(), "{}", String::from_utf8_lossy(&row));
    }
    world.proxy = world.setup.start().await;
    assert_eq!(pay(&world, "k-1").send().await.comparable(), first.replayed(), "from the store");
    assert_eq!(pay(&world, "k-2").send().await.text(), CANARY, "an operator's response");

    world.restart_as(encrypting(ROTATED)).await;
    assert_eq!(pay(&world, "k-1").send().await.comparable(), first.replayed(), "after a rotation");
    world.upstream.then(answer());
    assert_eq!(pay(&world, "k-3").send().await.oncegate_status(), Some("executed"));

    world.restart_as(encrypting(NEW)).await;
    assert_eq!(pay(&world, "k-3").send().await.text(), CANARY);
    let unreadable = pay(&world, "k-1").send().await;
    assert_eq!(unreadable.outcome(), (500, "response-corrupt".to_owned()), "its secret is gone");
    assert_eq!(world.upstream.calls(), 3);
}

on_both_stores!(a_response_that_is_copied_to_another_key_is_not_replayed);
async fn a_response_that_is_copied_to_another_key_is_not_replayed(store: Store) {
    let mut world = World::with(store, encrypting(OLD)).await;
    for key in ["k-1", "k-2"] {
        world.upstream.then(answer());
        assert_eq!(pay(&world, key).send().await.status, 201);
    }
    assert_eq!(world.proxy.stop().await, Some(0));
    world.store.tamper("update keys set body = (select body from keys order by id limit 1)").await;
    world.proxy = world.setup.start().await;
    let answers = [pay(&world, "k-1").send().await, pay(&world, "k-2").send().await];
    let mut statuses = answers.each_ref().map(|answer| answer.status);
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 500]);
    let refused = answers.iter().find(|answer| answer.status == 500).unwrap();
    assert_eq!(refused.outcome(), (500, "response-corrupt".to_owned()));
    assert_eq!(world.upstream.calls(), 2, "nothing is executed again");
}

on_both_stores!(one_response_for_several_keys_is_encrypted_for_each);
async fn one_response_for_several_keys_is_encrypted_for_each(store: Store) {
    let mut world = World::with(store, encrypting(OLD)).await;
    let operator = Operator::of(&world.proxy);
    let mut ids = Vec::new();
    for key in ["k-1", "k-2", "k-3"] {
        world.upstream.then(Answer::close());
        assert_eq!(pay(&world, key).send().await.status, 502);
        ids.push(operator.id(key).await);
    }
    let decision =
        [("action", "resolve".into()), ("ids", ids.into()), ("expect", 3.into()), ("accept_risk", true.into())];
    let mut body = completed(200, CANARY);
    body.as_object_mut().unwrap().extend(decision.map(|(name, value): (&str, Value)| (name.to_owned(), value)));
    let (status, reply) = operator.post("/api/v1/keys/actions", body).await;
    assert_eq!((status, &reply["changed"]), (200, &3.into()), "{reply}");

    assert_eq!(world.proxy.stop().await, Some(0));
    let stored = world.store.responses().await;
    assert!(stored.len() == 3 && stored[0] != stored[1] && stored[1] != stored[2] && stored[0] != stored[2]);
    world.proxy = world.setup.start().await;
    for key in ["k-1", "k-2", "k-3"] {
        assert_eq!(pay(&world, key).send().await.text(), CANARY);
    }
    assert_eq!(world.upstream.calls(), 3);
}

on_both_stores!(a_store_that_was_not_encrypted_stays_readable);
async fn a_store_that_was_not_encrypted_stays_readable(store: Store) {
    let mut world = World::with(store, |setup| setup.top(OLD)).await;
    world.upstream.then(answer());
    let first = pay(&world, "k-1").send().await;
    world.restart_as(encrypting(OLD)).await;
    assert_eq!(pay(&world, "k-1").send().await.comparable(), first.replayed());
    world.upstream.then(answer());
    let second = pay(&world, "k-2").send().await;
    world.restart_as(|setup| setup.top(OLD)).await;
    assert_eq!(pay(&world, "k-2").send().await.comparable(), second.replayed(), "encryption was switched off");
}

#[tokio::test]
async fn encryption_needs_a_secret() {
    let ended = fails("upstream = \"http://127.0.0.1:1\"\n[store]\nurl = \"memory:\"\nencrypt = true\n").await;
    assert!(ended.stderr.contains("needs a `secret` to encrypt with"), "{}", ended.stderr);
}
