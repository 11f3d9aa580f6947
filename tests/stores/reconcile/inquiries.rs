//! One proxy's inquiries and their results.

use std::time::Instant;

use super::{QUESTION, QUIET, ReconcileWorld, hasty, reconcile};
use harness::{Answer, Hold, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores, route};

on_both_stores!(a_response_found_by_an_inquiry_is_replayed);
async fn a_response_found_by_an_inquiry_is_replayed(store: Store) {
    let reconciled = ReconcileWorld::open(store, "max_attempts = 10").await;
    let answer = Answer::status(200).field("X-A", "1").field("Set-Cookie", "a=1").field("Keep-Alive", "timeout=5");
    reconciled.lookup.answer_all(answer.field("Oncegate-Status", "forged").field("X-A", "2").body("looked up"));
    reconciled.lose("k+1/&?", Answer::close()).await;
    let replay = reconciled.clears_up("k+1/&?").await;
    assert_eq!((replay.status, replay.oncegate_status(), &*replay.text()), (200, Some("replayed"), "looked up"));
    assert_eq!((replay.is_replay(), replay.all("x-a")), (true, vec!["1", "2"]));
    assert!(replay.all("set-cookie").is_empty() && replay.all("keep-alive").is_empty());
    assert!(replay.field("idempotency-key-expires").is_some());
    assert_eq!(reconciled.world.pay("k+1/&?").send().await.comparable(), replay.comparable());
    let asked = reconciled.lookup.executed();
    assert_eq!(asked.len(), 1, "an answer is enough");
    assert_eq!((&*asked[0].method, &asked[0].body[..]), ("GET", &b""[..]));
    assert_eq!(asked[0].target, "/lookup?key=k%2B1%2F%26%3F&route=pay&path=%2Fpay");
    assert_eq!(asked[0].field("host"), Some(&*reconciled.lookup.address.to_string()));
    assert_eq!((asked[0].field("idempotency-key"), asked[0].field("authorization")), (None, None));
    assert_eq!(reconciled.world.upstream.calls(), 1);
    let line = reconciled.world.proxy.wait_for_log("the service says that it was executed").await;
    assert_eq!((&line["level"], &line["route"], &line["result"]), (&"INFO".into(), &"pay".into(), &"200".into()));
}

on_both_stores!(two_404s_after_the_quiet_time_release_a_key_for_another_attempt);
async fn two_404s_after_the_quiet_time_release_a_key_for_another_attempt(store: Store) {
    let reconciled = ReconcileWorld::open(store, "confirmations = 2").await;
    reconciled.lookup.answer_all(Answer::status(404));
    let begun = Instant::now();
    // The service has not read the request, and so has done nothing.
    reconciled.lose("k-1", Answer::end_unread()).await;
    reconciled.lookup.wait_for_executed(1).await;
    assert!(begun.elapsed() >= QUIET, "asked after {:?}", begun.elapsed());
    assert_eq!(
        reconciled.world.pay("k-1").send().await.outcome(),
        (409, "outcome-unknown".to_owned()),
        "one 404 is none"
    );
    let second = reconciled.clears_up("k-1").await;
    assert_eq!((second.status, second.oncegate_status()), (201, Some("executed")));
    let executed = reconciled.world.upstream.executed();
    assert_eq!(executed.len(), 1, "one effect in all");
    assert_eq!(executed[0].field("oncegate-attempt"), Some("2"));
    assert_eq!(reconciled.lookup.calls(), 2);
    assert_eq!(reconciled.world.proxy.wait_for_log("the next request is the next attempt").await["result"], "404 x 2");
    assert_eq!(reconciled.world.pay("k-1").send().await.comparable(), second.replayed());
}

#[tokio::test]
async fn inconclusive_inquiries_are_repeated_and_given_up_under_every_policy() {
    let (lookup, elsewhere) = (Upstream::start().await, Upstream::start().await);
    let terms = reconcile(&lookup, "max_attempts = 3");
    let policies = ["hold", "retry", "retry-when-quiet"];
    let world = World::with(Store::sqlite(), |setup| {
        policies.into_iter().fold(hasty(setup), |setup, policy| {
            setup.route(&route(policy, &format!("{terms}\non_unknown = \"{policy}\"")))
        })
    })
    .await;
    let redirect = || Answer::status(302).field("Location", &format!("http://{}/", elsewhere.address));
    let truncated = Answer::status(200).body("a long body").cut_after(3);
    for answer in [redirect(), truncated, Answer::close(), Answer::never(), Answer::raw("nonsense\r\n\r\n")] {
        lookup.then(answer);
    }
    lookup.answer_all(Answer::status(500));
    world.upstream.answer_all(Answer::close());
    let pay = |policy: &str| world.post(&format!("/{policy}")).key("k-1").body("x");
    for policy in policies {
        assert_eq!(pay(policy).send().await.status, 502);
    }
    world.proxy.wait_for_logs("the reconciliation was given up", 3).await;
    assert_eq!(lookup.calls(), 9);
    for policy in policies {
        let refusal = pay(policy).send().await;
        assert_eq!(refusal.outcome(), (409, "outcome-unknown".to_owned()), "{policy}");
        assert_eq!(refusal.problem()["retry"], "reconcile");
        assert_eq!(pay(policy).body("else").send().await.status, 422, "{policy}");
    }
    assert_eq!((world.upstream.calls(), elsewhere.calls(), lookup.calls()), (3, 0, 9));
    let line = world.proxy.wait_for_log("given up").await;
    assert_eq!(line["level"], "WARN");
    assert!(line["result"].as_str().unwrap().starts_with("asked 3 times, at last: "), "{line}");
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(world.store.states().await, ["dead", "dead", "dead"]);
}

#[tokio::test]
async fn a_404_is_forgotten_after_a_different_inquiry_reply() {
    let reconciled = ReconcileWorld::open(Store::sqlite(), "max_attempts = 3").await;
    reconciled.lookup.then(Answer::status(404)).then(Answer::status(503)).then(Answer::status(404));
    reconciled.lose("k-1", Answer::close()).await;
    reconciled.world.proxy.wait_for_log("the reconciliation was given up").await;
    assert_eq!(reconciled.world.pay("k-1").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!((reconciled.lookup.calls(), reconciled.world.upstream.calls()), (3, 1));
}

#[tokio::test]
async fn an_oversized_inquiry_reply_completes_its_key() {
    let reconciled = ReconcileWorld::with(Store::sqlite(), "max_attempts = 10", "max_response_body = \"16B\"").await;
    // The rest of the reply never comes, and the proxy does not wait for it.
    reconciled
        .lookup
        .answer_all(Answer::status(200).body("more than sixteen bytes, twice over").hold_midway(&Hold::new()));
    reconciled.lose("k-1", Answer::close()).await;
    assert_eq!(reconciled.clears_up("k-1").await.outcome(), (409, "response-not-kept".to_owned()));
    assert_eq!((reconciled.lookup.calls(), reconciled.world.upstream.calls()), (1, 1));
}

on_both_stores!(a_proxy_killed_during_an_inquiry_loses_only_that_inquiry);
async fn a_proxy_killed_during_an_inquiry_loses_only_that_inquiry(store: Store) {
    let mut reconciled = ReconcileWorld::open(store, "max_attempts = 10").await;
    reconciled.lookup.then(Answer::status(404).hold(&Hold::new())).then(Answer::status(200).body("looked up"));
    reconciled.lose("k-1", Answer::close()).await;
    reconciled.lookup.wait_for_executed(1).await;
    reconciled.world.crash_and_restart().await;
    assert_eq!(reconciled.clears_up("k-1").await.text(), "looked up");
    assert_eq!((reconciled.lookup.calls(), reconciled.world.upstream.calls()), (2, 1));
}

#[tokio::test]
async fn a_proxy_killed_during_the_last_inquiry_leaves_a_key_that_is_given_up() {
    let mut reconciled = ReconcileWorld::open(Store::sqlite(), "max_attempts = 1, confirmations = 1").await;
    reconciled.lookup.then(Answer::status(404).hold(&Hold::new()));
    reconciled.lose("k-1", Answer::close()).await;
    reconciled.lookup.wait_for_executed(1).await;
    reconciled.world.crash_and_restart().await;
    reconciled.world.proxy.wait_for_log("the reconciliation was given up").await;
    assert_eq!(reconciled.world.pay("k-1").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!((reconciled.lookup.calls(), reconciled.world.upstream.calls()), (1, 1));
}

#[tokio::test]
async fn a_reload_changes_the_reconcile_url() {
    let world = World::with(Store::sqlite(), |setup| hasty(setup).route(&route("pay", ""))).await;
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("k-1").send().await.status, 502);
    let lookup = Upstream::start().await;
    lookup.answer_all(Answer::status(200).body("looked up"));
    // The URL needs the path, which the route's earlier keys did not store.
    let url = format!("http://{}/?key={{key}}", lookup.address);
    let now = format!(
        "reconcile = {{ url = \"{url}\", after = \"0s\", every = \"500ms\", max_attempts = 3, confirmations = 1 }}"
    );
    let text = std::fs::read_to_string(world.proxy.file())
        .unwrap()
        .replace("name = \"pay\"", &format!("name = \"pay\"\n{now}"));
    std::fs::write(world.proxy.file(), text).unwrap();
    let replay =
        eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|answer| answer.status != 409));
    assert_eq!(replay.await.text(), "looked up");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_query_is_stored_only_for_a_reconcile_url_that_contains_the_path() {
    let lookup = Upstream::start().await;
    let with = reconcile(&lookup, "max_attempts = 10");
    let without = with.replace("{path}", "none");
    let world = World::with(Store::sqlite(), |setup| {
        setup.route(&route("with", &with)).route(&route("without", &without)).route(&route("nobody", ""))
    })
    .await;
    for path in ["/with?a=%2F1&b", "/without?secret=1", "/nobody?secret=1"] {
        assert_eq!(world.post(path).key(path.get(1..5).unwrap()).body("x").send().await.status, 201);
    }
    assert_eq!(world.proxy.stop().await, Some(0));
    let db = rusqlite::Connection::open(world.store.sqlite_file()).unwrap();
    let kept = |route: &str| -> Option<Vec<u8>> {
        db.query_row("select path from keys where route = ?1", [route], |row| row.get(0)).unwrap()
    };
    assert_eq!(kept("with").as_deref(), Some(&b"/with?a=%2F1&b"[..]));
    // The path for people, with its mark.
    assert_eq!(kept("without").as_deref(), Some(&b" /without"[..]));
    assert_eq!(kept("nobody").as_deref(), Some(&b" /nobody"[..]));
}

#[tokio::test]
async fn two_callers_with_one_key_are_each_reconciled_from_their_own_record() {
    const KEY: &str = "invoice-1001";
    let lookup = Upstream::start().await;
    let terms = reconcile(&lookup, "max_attempts = 10").replace(QUESTION, "payments/{id}?key={key}");
    let world = World::with(Store::sqlite(), |setup| hasty(setup).route(&route("pay", &terms))).await;
    let pay = |caller: &str| world.post("/pay").key(KEY).field("Authorization", &format!("Bearer {caller}")).body("x");
    for (number, caller) in ["alice", "bob"].into_iter().enumerate() {
        world.upstream.then(Answer::close());
        assert_eq!(pay(caller).send().await.outcome(), (502, "upstream-broken".to_owned()), "{caller}");
        lookup.then(Answer::status(200).body(format!("{caller} has paid")));
        let replay = eventually(TEST_TIMEOUT, async || {
            Some(pay(caller).send().await).filter(|answer| answer.oncegate_status() == Some("replayed"))
        });
        assert_eq!(replay.await.text(), format!("{caller} has paid"));
        // The service has the id of its own attempt, and is asked by it.
        let reservation = world.upstream.executed()[number].field("oncegate-reservation").unwrap().to_owned();
        assert_eq!(lookup.last().target, format!("/payments/{}?key={KEY}", &reservation[..64]));
    }
    assert_eq!(pay("alice").send().await.text(), "alice has paid");
    assert_eq!(pay("bob").send().await.text(), "bob has paid");
    assert_eq!((lookup.calls(), world.upstream.calls()), (2, 2));
    assert_ne!(lookup.executed()[0].target, lookup.executed()[1].target);
}

on_both_stores!(an_unknown_key_of_a_route_that_was_renamed_is_still_reconciled);
async fn an_unknown_key_of_a_route_that_was_renamed_is_still_reconciled(store: Store) {
    let mut reconciled = ReconcileWorld::open(store, "max_attempts = 10").await;
    reconciled.lose("k-1", Answer::close()).await;
    let terms = reconcile(&reconciled.lookup, "max_attempts = 10");
    let renamed = format!("name = \"new\"\nwas = [\"pay\"]\npath = \"/pay\"\nmethods = [\"POST\"]\n{terms}");
    reconciled.lookup.answer_all(Answer::status(200).body("looked up"));
    reconciled.world.restart_as(|setup| hasty(setup).route(&renamed)).await;
    let replay = reconciled.clears_up("k-1").await;
    assert_eq!((replay.oncegate_status(), &*replay.text()), (Some("replayed"), "looked up"));
    let asked = reconciled.lookup.executed();
    assert!(
        asked[0].target.contains("route=pay"),
        "the service knows the key under its earlier name: {}",
        asked[0].target
    );
}
