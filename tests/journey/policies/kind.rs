//! Routes of money and of tokens: presets that a written key overrules.

use harness::{Answer, Hold, Request, Store, TEST_TIMEOUT, World, eventually, on_both_stores, route};

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

/// A world with a route of tokens at `/pay`, and these lines in it.
async fn refreshing(store: Store, lines: &str) -> World {
    World::with(store, |setup| {
        let setup = setup.top("secret = \"a secret of some length\"").store("encrypt = true\ntimeout = \"1s\"");
        setup.short_leases().route(&route("pay", &format!("kind = \"token\"\n{lines}")))
    })
    .await
}

/// A refresh by a client that has no credentials but the token.
fn refresh(world: &World, token: &str) -> Request {
    let form = "application/x-www-form-urlencoded";
    let body = format!("grant_type=refresh_token&refresh_token={token}&client_id=app");
    world.post("/pay").anonymous().field("Content-Type", form).body(body)
}

on_both_stores!(two_tabs_and_a_lost_answer_get_one_rotation_with_its_cookies);
async fn two_tabs_and_a_lost_answer_get_one_rotation_with_its_cookies(store: Store) {
    let mut world = refreshing(store, "").await;
    let hold = Hold::new();
    let rotated = Answer::status(200).field("Set-Cookie", "session=next; HttpOnly").body("the next token");
    world.upstream.then(rotated.hold(&hold));
    drop(refresh(&world, "t-1").open().await.unwrap());
    world.upstream.wait_for_executed(1).await;
    let tabs = [(); 2].map(|()| refresh(&world, "t-1").field("Authorization", "Bearer of-a-page").spawn());
    hold.release();
    for tab in tabs {
        let answer = tab.await.unwrap().unwrap();
        assert_eq!((answer.status, &*answer.text(), answer.is_replay()), (200, "the next token", true));
        assert_eq!(answer.field("set-cookie"), Some("session=next; HttpOnly"));
    }
    world.crash_and_restart().await;
    let after_the_kill = refresh(&world, "t-1").send().await;
    assert_eq!(after_the_kill.field("set-cookie"), Some("session=next; HttpOnly"));
    assert_eq!(world.upstream.calls(), 1);
    // Other sessions' bodies are equal but for the token, and are no suspicion.
    assert_eq!(refresh(&world, "t-2").send().await.oncegate_status(), Some("executed"));
    assert!(!world.proxy.output().contains("same_body"), "{}", world.proxy.output());
}

on_both_stores!(a_token_that_is_used_after_its_ttl_reaches_the_service);
async fn a_token_that_is_used_after_its_ttl_reaches_the_service(store: Store) {
    let world = refreshing(store, "ttl = \"1s\"").await;
    assert_eq!(refresh(&world, "t-1").send().await.oncegate_status(), Some("executed"));
    world.upstream.answer_all(Answer::status(400).body("invalid_grant"));
    let late =
        eventually(TEST_TIMEOUT, async || Some(refresh(&world, "t-1").send().await).filter(|late| !late.is_replay()))
            .await;
    assert_eq!((late.status, &*late.text(), late.oncegate_status()), (400, "invalid_grant", Some("released")));
}

on_both_stores!(a_rotation_that_a_kill_interrupted_is_tried_again_when_it_must_be_over);
async fn a_rotation_that_a_kill_interrupted_is_tried_again_when_it_must_be_over(store: Store) {
    let mut world = refreshing(store, "reconcile = { after = \"0s\" }\nupstream_timeout = \"500ms\"").await;
    world.upstream.then(Answer::never());
    let lost = refresh(&world, "t-1").open().await.unwrap();
    world.upstream.wait_for_executed(1).await;
    world.crash_and_restart().await;
    drop(lost);
    let next =
        eventually(TEST_TIMEOUT, async || Some(refresh(&world, "t-1").send().await).filter(|next| next.status == 201))
            .await;
    assert_eq!((next.oncegate_status(), world.upstream.calls()), (Some("executed"), 2));
}

#[tokio::test]
async fn what_the_service_refuses_is_asked_again_and_what_has_no_token_passes() {
    let world = refreshing(Store::sqlite(), "").await;
    // The retry has what the service asked for, in a field that does not count (RFC 9449, section 8).
    world.upstream.then(Answer::status(400).field("DPoP-Nonce", "n").body("use_dpop_nonce"));
    assert_eq!(refresh(&world, "t-1").send().await.status, 400);
    let with_nonce = refresh(&world, "t-1").field("DPoP", "a proof").send().await;
    assert_eq!(with_nonce.oncegate_status(), Some("executed"));
    let assertion = |proof: &str| {
        let form = "application/x-www-form-urlencoded";
        let body = format!("refresh_token=t-2&client_assertion={proof}");
        world.post("/pay").anonymous().field("Content-Type", form).body(body)
    };
    assert_eq!(assertion("one").send().await.oncegate_status(), Some("executed"));
    assert!(assertion("another").send().await.is_replay(), "another proof of the same client");
    let json = || world.post("/pay").anonymous().json(r#"{"refresh_token":"t-3"}"#);
    assert_eq!(json().send().await.oncegate_status(), Some("executed"));
    assert!(json().send().await.is_replay());
    let other_grant = world.post("/pay").anonymous().field("Content-Type", "application/x-www-form-urlencoded");
    assert_eq!(other_grant.body("grant_type=password").send().await.oncegate_status(), None);
    let cookie = refreshing(Store::sqlite(), "key = { from = \"cookie:refresh\" }").await;
    let by_cookie = || cookie.post("/pay").anonymous().field("Cookie", "refresh=t-4; theme=dark");
    assert_eq!(by_cookie().send().await.oncegate_status(), Some("executed"));
    assert!(by_cookie().send().await.is_replay());
    let keys = harness::operator::Operator::of(&cookie.proxy).keys("state=completed").await;
    assert!(keys[0]["key"].as_str().is_some_and(|key| key.len() == 64), "its hash alone is kept: {keys:?}");
}
