//! An upgrade from another revision and back, under load: its program and the current one serve one store.
//!
//! Clients, service and checker are those of `tests/faults`. The other program is a real build of its revision, so it
//! is not part of `make test`: `make upgrade FROM=v0.1.0` builds it, runs this and prints
//! what each step cost the clients.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod rollout;
mod versions;

#[allow(dead_code, reason = "tests/faults needs more of it")]
#[path = "../faults/checker.rs"]
mod checker;
#[allow(dead_code, reason = "tests/faults needs more of it")]
#[path = "../faults/clients.rs"]
mod clients;
#[allow(dead_code, reason = "tests/faults needs more of it")]
#[path = "../faults/history.rs"]
mod history;
#[allow(dead_code, reason = "tests/faults needs more of it")]
#[path = "../faults/seeded_random.rs"]
mod seeded_random;
#[path = "../faults/service.rs"]
mod service;

use serde_json::json;

use harness::operator::{Operator, not_executed};
use harness::{
    Answer, Client, Hold, Proxy, Request, Response, Store, TEST_TIMEOUT, Upstream, eventually, postgres, route,
};
use rollout::Rollout;
use versions::Version;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it needs the program of another revision: make upgrade"]
async fn a_rolling_upgrade_on_postgres_and_its_rollback_execute_nothing_twice() {
    let store = Store::Postgres(postgres::empty_database().await);
    let mut rollout = Rollout::start("two instances of the old version serve", store, Version::Old, 2).await;
    rollout.step("the new version starts beside them and migrates");
    let third = rollout.add(Version::New).await;
    rollout.load().await;
    rollout.step("the new version goes, the old ones stay");
    rollout.remove(third).await;
    rollout.load().await;
    rollout.step("one old instance is replaced");
    rollout.replace_one(Version::Old, Version::New).await;
    rollout.load().await;
    rollout.step("the other old instance is replaced");
    rollout.replace_one(Version::Old, Version::New).await;
    rollout.load().await;
    if rollout.starts(Version::Old).await {
        rollout.step("one new instance is replaced by the old version");
        rollout.replace_one(Version::New, Version::Old).await;
        rollout.load().await;
        rollout.step("the old version alone serves again");
        rollout.replace_one(Version::New, Version::Old).await;
        rollout.load().await;
    }
    let report = rollout.finish().await;
    println!("\n{}", report.table);
    assert_eq!(report.cost.refused, 0, "a request was refused by an instance");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes half a minute: make upgrade"]
async fn restarted_instances_serve_on_the_schema_of_the_next_version_and_not_on_one_that_has_contracted() {
    let store = Store::Postgres(postgres::empty_database().await);
    let mut rollout = Rollout::start("two instances serve", store, Version::New, 2).await;
    rollout.step("the next version adds a column");
    rollout.migrate_further(false).await;
    rollout.load().await;
    rollout.step("both instances are restarted");
    for _ in 0..2 {
        rollout.replace_one(Version::New, Version::New).await;
    }
    rollout.load().await;
    rollout.step("a version after it contracts");
    rollout.migrate_further(true).await;
    assert!(!rollout.starts(Version::New).await, "it starts on a schema that lacks what it needs");
    rollout.load().await;
    let report = rollout.finish().await;
    println!("\n{}", report.table);
    assert_eq!(report.cost.refused, 0, "a request was refused by an instance");
    assert!(report.table.contains("the store's schema is newer than this program"), "no start has warned");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it needs the program of another revision: make upgrade"]
async fn an_upgrade_on_sqlite_and_its_rollback_execute_nothing_twice() {
    let mut rollout = Rollout::start("the old version serves", Store::sqlite(), Version::Old, 1).await;
    rollout.step("the old version ends, and the new one starts on its file");
    rollout.exchange_all(Version::New).await;
    rollout.load().await;
    rollout.step("the new version ends, and the old one starts on its file");
    if rollout.try_exchange_all(Version::Old).await {
        rollout.load().await;
        rollout.step("the new version once more");
        rollout.exchange_all(Version::New).await;
    }
    rollout.load().await;
    println!("\n{}", rollout.finish().await.table);
}

/// An instance of each version on one PostgreSQL, before one service.
struct BothVersions {
    upstream: Upstream,
    old: Proxy,
    new: Proxy,
}

impl BothVersions {
    async fn start() -> Self {
        let store = Store::Postgres(postgres::empty_database().await);
        let upstream = Upstream::start().await;
        let setup = Proxy::on(&store.url())
            .upstream(upstream.address)
            .top("secret = \"a secret of some length\"")
            .short_leases()
            .route(&route("pay", "release_statuses = [\"503\"]\nupstream_timeout = \"2s\""))
            .route(&route("later", "delivery = \"async\"\nretry = { base = \"100ms\", cap = \"100ms\" }"));
        let old = Version::Old.run(setup.clone()).start().await;
        let new = Version::New.run(setup).start().await;
        Self { upstream, old, new }
    }
}

fn pay(proxy: &Proxy, key: &str) -> Request {
    proxy.post("/pay").key(key).json(r#"{"amount":10}"#)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it needs the program of another revision: make upgrade"]
async fn each_version_answers_the_keys_of_the_other_one_as_its_own() {
    let both = BothVersions::start().await;
    for (name, here, there) in [("old", &both.old, &both.new), ("new", &both.new, &both.old)] {
        let key = |state: &str| format!("{state}-{name}");
        let outcome = async |request: Request| request.send().await.outcome();

        let (hold, completed) = (Hold::new(), key("completed"));
        let calls = both.upstream.calls();
        both.upstream.then(Answer::status(201).field("X-A", "1").field("X-A", "2").body("paid").hold(&hold));
        let first = pay(here, &completed).spawn();
        both.upstream.wait_for_executed(calls + 1).await;
        assert_eq!(outcome(pay(there, &completed)).await, (409, "in-flight".to_owned()));
        hold.release();
        let first = first.await.unwrap().unwrap();
        for proxy in [there, here] {
            assert_eq!(pay(proxy, &completed).send().await.comparable(), first.replayed());
            let other = proxy.post("/pay").key(&completed).json("{}");
            assert_eq!(outcome(other).await, (422, "key-reused".to_owned()));
        }

        let unknown = key("unknown");
        both.upstream.then(Answer::close());
        assert_eq!(pay(here, &unknown).send().await.status, 502);
        assert_eq!(outcome(pay(there, &unknown)).await, (409, "outcome-unknown".to_owned()));
        let operator = Operator::of(there);
        let id = operator.id_when(&unknown, "unknown").await;
        assert_eq!(operator.resolve(&id, not_executed(true)).await.0, 200);
        assert_eq!(pay(here, &unknown).send().await.oncegate_status(), Some("executed"));

        let released = key("released");
        both.upstream.then(Answer::status(503));
        assert_eq!(pay(here, &released).send().await.oncegate_status(), Some("released"));
        assert_eq!(pay(there, &released).send().await.oncegate_status(), Some("executed"));
        assert_eq!(both.upstream.last().field("oncegate-attempt"), Some("2"));

        // Whichever instance delivers it, the other one knows the answer.
        let accepted = here.post("/later").key(&key("accepted")).json("{}");
        assert_eq!(accepted.send().await.oncegate_status(), Some("queued"));
        let again = || there.post("/later").key(&key("accepted")).json("{}");
        let replay = async || Some(again().send().await).filter(|answer| answer.oncegate_status() == Some("replayed"));
        assert_eq!(eventually(TEST_TIMEOUT, replay).await.status, 201);
    }
    assert_eq!(both.upstream.calls(), 2 * (1 + 2 + 2 + 1), "an attempt is missing, or was made twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it needs the program of another revision: make upgrade"]
async fn the_key_of_a_killed_version_is_unknown_to_the_other_one_and_its_service_can_still_report() {
    for (killed, stays) in [(Version::Old, Version::New), (Version::New, Version::Old)] {
        let BothVersions { upstream, old, new } = BothVersions::start().await;
        let (killed, stays, name) = match (killed, stays) {
            (Version::Old, _) => (old, new, "old"),
            _ => (new, old, "new"),
        };
        upstream.then(Answer::never());
        let _lost = pay(&killed, name).spawn();
        upstream.wait_for_executed(1).await;
        let reservation = upstream.last().field("oncegate-reservation").unwrap().to_owned();
        killed.kill9().await;
        Operator::of(&stays).id_when(name, "unknown").await;
        assert_eq!(pay(&stays, name).send().await.outcome(), (409, "outcome-unknown".to_owned()));
        let admin = Client { address: stays.admin };
        let report = admin.request("POST", &format!("/app/v1/reservations/{reservation}/complete"));
        let paid = json!({ "status": 201, "headers": [["X-A", "1"]], "body": "paid" });
        let reported = report.host(&stays.admin.to_string()).json(&paid.to_string()).send().await;
        assert_eq!(reported.status, 200, "{}", reported.text());
        let replay: Response = pay(&stays, name).send().await;
        assert_eq!((replay.status, replay.text()), (201, "paid".to_owned()));
        assert_eq!(upstream.calls(), 1);
    }
}
