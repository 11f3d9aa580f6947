//! An operator's action needs the accepted risk exactly if after it a retry could execute what may have been executed.

use std::time::Duration;

use serde_json::{Value, json};

use harness::fake_clock::{ClockedStore, on_both_clocks};
use harness::operator::{self, Operator};
use harness::proxy::Setup;
use harness::{Answer, Hold, Store, TEST_TIMEOUT, World, eventually, on_both_stores, route};

const ACTIONS: [&str; 4] = ["not-executed", "purge", "release", "requeue"];

/// Carried out without `accept_risk`.
const DONE: &str = "done";
/// Refused without `accept_risk`.
const RISK: &str = "risk";
/// Not possible in the state.
const NO: &str = "not possible";
/// Refused while the attempt may be running.
const RUNS: &str = "not quiet";

/// One situation of a key, and what becomes of each of the [`ACTIONS`] on it.
struct Situation {
    route: &'static str,
    lines: &'static str,
    /// The assignments that bring the route's keys into a state that takes long otherwise.
    made_by: Option<&'static str>,
    /// Without a jump of the clock, and after a jump that ends all TTLs.
    expected: [[&'static str; 4]; 2],
    /// A part of the explanation where a purge needs the accepted risk, as long as the clock has not jumped.
    says: &'static str,
}

const SITUATIONS: [Situation; 12] = [
    Situation {
        route: "live",
        lines: "",
        made_by: None,
        expected: [[NO, RISK, RISK, NO]; 2],
        says: "its retries get the stored response",
    },
    Situation {
        route: "forgotten",
        lines: "ttl = \"1s\"",
        made_by: None,
        // The jump takes from the instance what it has watched.
        expected: [[NO, DONE, DONE, NO], [NO, RISK, RISK, NO]],
        says: "",
    },
    Situation {
        route: "remembered",
        lines: "ttl = \"1s\"\nafter_ttl = \"refuse\"",
        made_by: None,
        expected: [[NO, RISK, RISK, NO]; 2],
        says: "late retries are refused",
    },
    Situation {
        route: "expired",
        lines: "after_ttl = \"refuse\"",
        made_by: Some("state = 'expired', remember_ms = null, status = null, fields = null, body = null"),
        expected: [[NO, RISK, NO, NO]; 2],
        says: "late retries are refused",
    },
    Situation { route: "retryable", lines: "", made_by: None, expected: [[NO, DONE, NO, NO]; 2], says: "" },
    Situation {
        route: "unknown",
        lines: "",
        made_by: None,
        expected: [[RUNS, RISK, NO, NO]; 2],
        says: "perhaps a second time",
    },
    Situation {
        route: "retried",
        lines: "on_unknown = \"retry\"",
        made_by: None,
        expected: [[DONE, DONE, NO, NO]; 2],
        says: "",
    },
    Situation {
        route: "dead",
        lines: "",
        made_by: Some("state = 'dead'"),
        expected: [[RUNS, RISK, NO, DONE]; 2],
        says: "perhaps a second time",
    },
    Situation {
        route: "dead-retried",
        lines: "on_unknown = \"retry\"",
        made_by: Some("state = 'dead'"),
        expected: [[RUNS, RISK, NO, RISK]; 2],
        says: "perhaps a second time",
    },
    Situation {
        route: "queued",
        lines: "delivery = \"async\"\nretry = { base = \"1000h\", cap = \"1000h\", give_up_after = \"2000h\" }",
        made_by: None,
        expected: [[NO, RISK, NO, NO]; 2],
        says: "never delivered",
    },
    Situation {
        route: "delivered",
        lines: "delivery = \"async\"\non_unknown = \"retry-when-quiet\"\nreconcile = { after = \"0s\" }\n\
                retry = { base = \"1000h\", cap = \"1000h\", give_up_after = \"2000h\" }",
        made_by: None,
        // The store has a time for the next delivery, and the last one may still be running.
        expected: [[RUNS, RISK, NO, NO]; 2],
        says: "perhaps a second time",
    },
    Situation { route: "running", lines: "", made_by: None, expected: [[NO; 4]; 2], says: "" },
];

/// No reaper and no sweeper comes during the test, and no attempt's time runs out.
fn setup(setup: Setup) -> Setup {
    let setup = setup.top("secret = \"a secret of some length\"").store("reap_every = \"10m\"");
    let setup = setup.defaults("upstream_timeout = \"10m\"");
    SITUATIONS.iter().fold(setup, |setup, situation| setup.route(&route(situation.route, situation.lines)))
}

/// The key on which an action is tried.
fn key(situation: &Situation, action: &str) -> String {
    format!("{}-{action}", situation.route)
}

async fn pay(world: &World, situation: &Situation, action: &str) -> harness::Response {
    world.proxy.post(&format!("/{}", situation.route)).key(&key(situation, action)).body("x").send().await
}

/// Brings a key into each situation for each action.
async fn arrange(world: &mut World, hold: &Hold) {
    for situation in
        SITUATIONS.iter().filter(|situation| !["forgotten", "remembered", "running"].contains(&situation.route))
    {
        for action in ACTIONS {
            let expected = match situation.route {
                "retryable" | "queued" => (Answer::status(503).field("Oncegate-Decision", "release"), [503, 202]),
                "unknown" | "retried" | "dead" | "dead-retried" => (Answer::close(), [502, 502]),
                "delivered" => (Answer::close(), [202, 202]),
                _ => (Answer::status(201), [201, 201]),
            };
            let calls = world.upstream.calls();
            world.upstream.then(expected.0);
            let status = pay(world, situation, action).await.status;
            assert!(expected.1.contains(&status), "{}: {status}", situation.route);
            world.upstream.wait_for_executed(calls + 1).await;
        }
    }
    assert_eq!(world.proxy.stop().await, Some(0));
    for situation in &SITUATIONS {
        if let Some(made_by) = situation.made_by {
            world.store.tamper(&format!("update keys set {made_by} where route = '{}'", situation.route)).await;
        }
    }
    world.proxy = world.setup.start().await;
    for situation in &SITUATIONS {
        for action in ACTIONS {
            match situation.route {
                "forgotten" | "remembered" => assert_eq!(pay(world, situation, action).await.status, 201),
                "running" => {
                    let calls = world.upstream.calls();
                    world.upstream.then(Answer::status(201).hold(hold));
                    let request = world.proxy.post("/running").key(&key(situation, action)).body("x");
                    tokio::spawn(async move { request.send().await });
                    world.upstream.wait_for_executed(calls + 1).await;
                }
                _ => {}
            }
        }
    }
}

/// Tries each action in each situation, and sends a retry after each that was refused.
async fn try_all(world: &World, has_jumped: bool) {
    let operator = Operator::of(&world.proxy);
    for situation in &SITUATIONS {
        for (action, expected) in ACTIONS.into_iter().zip(situation.expected[usize::from(has_jumped)]) {
            let named = format!("{action} of {}, jumped: {has_jumped}", situation.route);
            let id = operator.id(&key(situation, action)).await;
            let (status, reply) = match action {
                "not-executed" => operator.resolve(&id, json!({ "outcome": "not_executed" })).await,
                "purge" => operator.delete(&format!("/api/v1/keys/{id}")).await,
                action => operator.post(&format!("/api/v1/keys/{id}/{action}"), json!({})).await,
            };
            let detail = reply["detail"].as_str().unwrap_or_default();
            let found = match (status, reply["code"].as_str()) {
                (200, None) => DONE,
                (409, Some("not-quiet")) => RUNS,
                (409, Some("wrong-state")) if detail.contains("use accept_risk") => RISK,
                (409, Some("wrong-state")) => NO,
                _ => "",
            };
            assert_eq!(found, expected, "{named}: {reply}");
            if found == RISK && action == "purge" && !has_jumped {
                assert!(detail.contains(situation.says), "{named}: {reply}");
            }
            let executes_anyway =
                ["retryable", "retried"].contains(&situation.route) || (situation.route == "forgotten" && !has_jumped);
            if found != DONE && !executes_anyway {
                let calls = world.upstream.calls();
                // A retry of a running key waits for it.
                if situation.route != "running" {
                    pay(world, situation, action).await;
                }
                assert_eq!(world.upstream.calls(), calls, "{named}: a retry is not executed");
            }
        }
    }
}

on_both_stores!(an_action_needs_the_accepted_risk_where_only_after_it_a_retry_is_executed);
async fn an_action_needs_the_accepted_risk_where_only_after_it_a_retry_is_executed(store: Store) {
    let (mut world, hold) = (World::with(store, setup).await, Hold::new());
    arrange(&mut world, &hold).await;
    let remembered = &SITUATIONS[2];
    eventually(TEST_TIMEOUT, async || {
        let refused = pay(&world, remembered, "purge").await;
        (refused.status == 410).then_some(())
    })
    .await;
    let operator = Operator::of(&world.proxy);
    eventually(TEST_TIMEOUT, async || {
        let keys = operator.keys("route=forgotten").await;
        keys.iter().all(|key| key["lapsed"] == true).then_some(())
    })
    .await;
    // What a bulk change leaves, it names.
    let body = json!({ "action": "purge", "filter": { "route": "expired" }, "expect": 4 });
    let (status, reply) = operator.post("/api/v1/keys/actions", body).await;
    assert_eq!((status, &reply["changed"], &reply["refused_count"]), (200, &json!(0), &json!(4)), "{reply}");
    try_all(&world, false).await;
    hold.release();
}

on_both_clocks!(after_a_jump_an_action_needs_the_accepted_risk_as_long_as_the_retry_is_not_executed);
async fn after_a_jump_an_action_needs_the_accepted_risk_as_long_as_the_retry_is_not_executed(store: ClockedStore) {
    let hold = Hold::new();
    // No heartbeat notices the jump: the reading itself shows it.
    let slow =
        |world: Setup| setup(world).store("lease = { heartbeat = \"10m\", expiry = \"20m\" }\nsweep_every = \"10m\"");
    let mut clocked = store.world(slow).await;
    arrange(&mut clocked.world, &hold).await;
    clocked.clock.set_forward(Duration::from_secs(25 * 60 * 60));
    try_all(&clocked.world, true).await;
    hold.release();
}

on_both_stores!(straight_on_the_store_no_end_of_a_ttl_is_believed);
async fn straight_on_the_store_no_end_of_a_ttl_is_believed(store: Store) {
    let world = World::with(store, setup).await;
    for situation in &SITUATIONS[1..=2] {
        assert_eq!(pay(&world, situation, "purge").await.status, 201);
    }
    let operator = Operator::of(&world.proxy);
    eventually(TEST_TIMEOUT, async || {
        let keys = operator.keys("").await;
        keys.iter().all(|key| key["lapsed"] == true).then_some(())
    })
    .await;
    let file = world.proxy.file();
    assert_eq!(world.proxy.stop().await, Some(0));
    for (verb, route, says) in [
        ("purge", "forgotten", "by the store's clock alone"),
        ("release", "forgotten", "by the store's clock alone"),
        ("purge", "remembered", "its retries get the stored response"),
    ] {
        let listed: Vec<Value> =
            serde_json::from_str(&operator::keys(&file, &["list", "--route", route, "--json"]).await.out).unwrap();
        let id = listed[0]["id"].as_str().unwrap();
        let refused = operator::keys(&file, &[verb, id]).await;
        assert!(refused.code == 1 && refused.err.contains(says), "{verb} {route}: {refused:?}");
        assert!(refused.err.contains("use --accept-risk"), "{refused:?}");
    }
    let purged = operator::keys(&file, &["purge", "--all", "--yes"]).await;
    assert!(purged.code == 1 && purged.err.contains("2 keys were not changed"), "{purged:?}");
    let purged = operator::keys(&file, &["purge", "--all", "--yes", "--accept-risk"]).await;
    assert!(purged.code == 0 && purged.out.contains("changed 2 of 2"), "{purged:?}");
}
