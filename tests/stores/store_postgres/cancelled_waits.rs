//! Commits whose wait for the synchronous standby is cancelled: PostgreSQL commits them locally, warns, and reports
//! success, and a failover forgets them.

use std::time::Duration;

use futures_util::future::{join, join_all, join4};
use oncegate_store::{self as store, SettleResult, StoreError, StoreSettings};
use rustix::process::{Signal, kill_process};
use tokio::task::{JoinHandle, block_in_place};
use tokio_postgres::Client;

use crate::store_postgres::failover::Pair;
use crate::store_postgres::faults::{COMMITTING, commits_wait_for};
use crate::store_postgres::number;
use harness::client::Request;
use harness::consumer_world::{acknowledged, consumer};
use harness::metrics::Metrics;
use harness::operator;
use harness::operator::{Operator, completed};
use harness::pgbouncer::Bouncer;
use harness::postgres::{self, Cluster, TestDatabase};
use harness::rabbitmq::{self, message};
use harness::store_fixture::{completion, new_reserve_request, unwrap_lease};
use harness::{Answer, Hold, Proxy, Store, TEST_TIMEOUT, World, eventually, route};

/// A server whose commits can be made to wait for a standby that does not exist.
struct Primary {
    cluster: Cluster,
    database: TestDatabase,
    client: Client,
}

/// The task that cancels the wait of each commit.
struct Canceller(JoinHandle<()>);

impl Primary {
    async fn start() -> Self {
        let cluster = block_in_place(|| Cluster::start(""));
        let database = cluster.empty_database().await;
        let client = database.client().await;
        Self { cluster, database, client }
    }

    /// Makes each commit wait for a standby, and cancels each such wait.
    async fn cancels_waits(&self) -> Canceller {
        commits_wait_for("nobody", &self.cluster, &self.client).await;
        // The server's processes read the setting one after the other.
        let commits = self.database.client().await;
        let probe = tokio::spawn(async move {
            while commits.batch_execute("select pg_logical_emit_message(true, 'test', '')").await.is_ok() {}
        });
        let is_waiting = async || (number(&self.client, COMMITTING).await > 0).then_some(());
        eventually(TEST_TIMEOUT, is_waiting).await;
        probe.abort();
        Canceller::start(self.database.client().await)
    }

    /// Lets commits wait for no standby any more.
    async fn waits_no_more(&self, canceller: Canceller) {
        canceller.0.abort();
        commits_wait_for("", &self.cluster, &self.client).await;
    }

    async fn has(&self, rows: i64, condition: &str) {
        has(&self.client, rows, condition).await;
    }
}

async fn has(client: &Client, rows: i64, condition: &str) {
    let sql = format!("select count(*) from oncegate.keys where {condition}");
    eventually(TEST_TIMEOUT, async || (number(client, &sql).await == rows).then_some(())).await;
}

const CANCEL_EVERY: Duration = Duration::from_millis(2);

impl Canceller {
    fn start(client: Client) -> Self {
        Self(tokio::spawn(async move {
            let cancel = "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'";
            // Until the test has ended, and with it the server.
            while client.batch_execute(cancel).await.is_ok() {
                // Time and not an event: the pace of the canceller.
                tokio::time::sleep(CANCEL_EVERY).await;
            }
        }))
    }
}

async fn world(primary: &Primary) -> World {
    let store = Store::Postgres(primary.database.clone());
    World::with(store, |setup| setup.store("timeout = \"1s\"\nsweep_every = \"200ms\"")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_whose_wait_for_the_standby_was_cancelled_is_not_executed() {
    let primary = Primary::start().await;
    let world = world(&primary).await;
    let canceller = primary.cancels_waits().await;
    let refused = world.pay("k-1").send().await;
    assert_eq!(refused.outcome(), (503, "store-unavailable".to_owned()));
    // The commit is visible all the same.
    primary.has(1, "state = 'in_flight'").await;
    assert_eq!(world.upstream.calls(), 0);
    primary.waits_no_more(canceller).await;
    let executed =
        eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|answer| answer.status == 201));
    assert_eq!(executed.await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_whose_wait_for_the_standby_was_cancelled_is_unstored_until_a_commit_is_durable() {
    let primary = Primary::start().await;
    let world = world(&primary).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let canceller = primary.cancels_waits().await;
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.status, first.oncegate_status()), (201, Some("unstored")));
    // The commit is visible all the same.
    primary.has(1, "state = 'completed'").await;
    primary.waits_no_more(canceller).await;
    world.proxy.wait_for_log("an attempt's outcome is stored after all").await;
    let late = async |result: &str| {
        Metrics::of(&world.proxy).await.get(&format!("oncegate_late_completions_total{{result=\"{result}\"}}"))
    };
    assert_eq!((late("taken").await, late("dropped").await), (1.0, 0.0));
    let replay = eventually(TEST_TIMEOUT, async || {
        Some(world.pay("k-1").send().await).filter(|answer| answer.oncegate_status() == Some("replayed"))
    });
    assert_eq!(replay.await.body, first.body);
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_succeeds_while_waits_for_the_standby_are_cancelled() {
    let primary = Primary::start().await;
    no_call_succeeds(&primary, "direct", &primary.database).await;
    let Some(bouncer) = Bouncer::before(&primary.database).await else { return };
    no_call_succeeds(&primary, "pooled", &bouncer.to(&primary.database)).await;
}

async fn no_call_succeeds(primary: &Primary, key: &str, database: &TestDatabase) {
    let timeout = Duration::from_secs(1);
    let store = store::open(&StoreSettings { timeout, ..postgres::settings(&database.url) }).await.unwrap();
    let (before, during) = (new_reserve_request(key), new_reserve_request(&format!("{key}-during")));
    unwrap_lease(store.reserve(before.clone()).await.unwrap());
    let canceller = primary.cancels_waits().await;
    assert!(store.reserve(during).await.is_err());
    // The second call finds the outcome, which only a commit of its own could confirm.
    for call in ["first", "second"] {
        assert!(store.settle(completion(&before, b"paid")).await.is_err(), "{key}: the {call} call");
    }
    primary.has(1, &format!("state = 'completed' and id = '\\x{}'", hex(before.id.as_bytes()))).await;
    // Somebody has the key: a bypass must not take the store for one that has not answered.
    let other =
        store::open_unprepared(&StoreSettings { timeout, ..postgres::settings(&database.url) }).await.unwrap().0;
    let unproven = other.find(before.id).await.unwrap_err();
    assert!(matches!(unproven, StoreError::Taken(_)), "{key}: {unproven:?}");
    primary.waits_no_more(canceller).await;
    match store.settle(completion(&before, b"paid")).await.unwrap() {
        SettleResult::Done { .. } => {}
        SettleResult::Fenced(record) => assert!(record.unwrap().token.is_same(&before.token)),
    }
}

/// The fate of a primary whose replication stands still.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    ReplicationGoesOn,
    PrimaryIsLost,
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_instance_wrote_is_answered_once_replication_goes_on() {
    nothing_is_answered_before_it_is_durable(Next::ReplicationGoesOn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_primary_alone_had_was_answered_to_nobody() {
    nothing_is_answered_before_it_is_durable(Next::PrimaryIsLost).await;
}

/// One instance writes while replication stands still and each wait is cancelled, and dies.
/// The other is asked for the same.
async fn nothing_is_answered_before_it_is_durable(next: Next) {
    let pair = Pair::synchronous().await;
    let client = pair.primary.same(&pair.database).client().await;
    let broker = rabbitmq::shared().await;
    let queue = match broker {
        Some(broker) => Some((broker, broker.queue().await)),
        None => None,
    };
    let mut world = World::with(Store::Postgres(pair.database.clone()), |setup| {
        let setup = setup.top("secret = \"a secret of some length\"").short_leases().store("timeout = \"1s\"");
        let setup = setup.route(&route("pay", "")).route(&route("later", "delivery = \"async\""));
        match &queue {
            Some((broker, queue)) => setup.consumer(&consumer(&broker.url(), queue, "")),
            None => setup,
        }
    })
    .await;

    // Before, and durable: an unknown key, a retryable one, and two attempts that run.
    let unknown = operator::unknown(&world, "resolved").await;
    world.upstream.then(Answer::status(503));
    assert_eq!(world.pay("taken-over").send().await.status, 503);
    let hold = Hold::new();
    world.upstream.answer_all(Answer::status(201).hold(&hold));
    let running = world.pay("completed").spawn();
    if let Some((_, queue)) = &queue {
        queue.publish([message("message")]).await;
    }
    let held = 1 + i64::from(queue.is_some());
    world.upstream.wait_until(|seen| seen.begun as i64 == 2 + held).await;
    let other = world.setup.start().await;
    pair.standby_has(held, "state = 'in_flight'").await;

    let (sender, canceller) =
        (pair.replication_stands_still().await, Canceller::start(pair.primary.same(&pair.database).client().await));
    // Together, before the breaker opens.
    hold.release();
    let later = |proxy: &Proxy| proxy.post("/later").key("accepted").json("{}");
    let ((executed, accepted, resolved, taken_over), _) = join(
        join4(
            running,
            async { later(&world.proxy).send().await.status },
            async { Operator::of(&world.proxy).resolve(&unknown, completed(200, "paid")).await.0 },
            async { world.pay("taken-over").send().await.status },
        ),
        join(has(&client, held + 1, "state = 'completed'"), has(&client, 1, "state = 'queued'")),
    )
    .await;
    assert_eq!(executed.unwrap().unwrap().oncegate_status(), Some("unstored"));
    assert_eq!((accepted, resolved, taken_over), (503, 503, 503));
    world.proxy.kill9().await;
    world.proxy = other;

    // The other instance sees all of it.
    let asked = [world.pay("completed"), later(&world.proxy), world.pay("resolved"), world.pay("taken-over")];
    let others = join_all(asked.iter().map(Request::send)).await;
    let [durable @ .., taken_over] = &others[..] else { unreachable!() };
    for refused in durable {
        assert_eq!(refused.outcome(), (503, "store-unavailable".to_owned()));
    }
    assert!([409, 503].contains(&taken_over.status), "{}", taken_over.text());
    if queue.is_some() {
        assert_eq!(world.proxy.wait_for_log("a message is held").await["reason"], "store-unavailable");
        assert!(!world.proxy.output().contains("a message is acknowledged"));
    }

    let settled = async |request: &dyn Fn() -> Request| {
        eventually(TEST_TIMEOUT, async || {
            let answer = request().send().await;
            let is_settled = answer.status != 503 && answer.oncegate_status() != Some("in-flight");
            is_settled.then(|| (answer.status, answer.text()))
        })
        .await
    };
    world.upstream.answer_all(Answer::status(201));
    match next {
        Next::ReplicationGoesOn => {
            canceller.0.abort();
            drop(sender);
        }
        Next::PrimaryIsLost => {
            pair.fail_over();
            kill_process(sender.0, Signal::KILL).unwrap();
        }
    }
    let completed = settled(&|| world.pay("completed")).await;
    let resolved = settled(&|| world.pay("resolved")).await;
    let accepted = settled(&|| later(&world.proxy)).await;
    let taken_over = settled(&|| world.pay("taken-over")).await;
    match next {
        Next::ReplicationGoesOn => {
            assert_eq!((completed.0, resolved), (201, (200, "paid".to_owned())));
            assert!([201, 409].contains(&taken_over.0), "released by its instance, or swept: {}", taken_over.1);
            if let Some((_, queue)) = &queue {
                acknowledged(&world.proxy, 1).await;
                assert_eq!(world.proxy.stop().await, Some(0));
                assert_eq!(queue.waiting().await, 0);
            }
        }
        Next::PrimaryIsLost => {
            assert_eq!((completed.0, resolved.0), (409, 409), "their outcomes are unknown");
            assert_eq!(taken_over.0, 201);
        }
    }
    assert!([201, 202].contains(&accepted.0), "{}", accepted.1);
    let taken_over = ("taken-over", 1 + usize::from(taken_over.0 == 201));
    for (key, times) in [("completed", 1), ("resolved", 1), ("message", usize::from(queue.is_some())), taken_over] {
        assert_eq!(world.upstream.executed_for(key), times, "{key}");
    }
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}
