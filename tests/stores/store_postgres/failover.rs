//! A primary with a standby, both in the URL: the primary is killed, and the standby promoted.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::{join, join_all};
use oncegate_store::{self as store, ListInFlightParams, OpenError, SettleResult, SweepParams};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::store_postgres::{CONNECTIONS, number};
use harness::postgres::{self, Cluster, NOW_MS, TestDatabase};
use harness::store_fixture::{DAY, any_time, completion, new_reserve_request, own_instance, renewal, unwrap_lease};
use harness::{Answer, Hold, Setup, Store, TEST_TIMEOUT, World, eventually};

/// A primary and its standby, and a database whose URL lists both, the primary first.
pub(super) struct Pair {
    pub primary: Cluster,
    pub standby: Cluster,
    pub database: TestDatabase,
}

impl Pair {
    /// With asynchronous replication.
    pub async fn asynchronous() -> Self {
        let primary = block_in_place(|| Cluster::start(""));
        let database = primary.empty_database().await;
        let standby = block_in_place(|| primary.standby());
        let hosts = format!("{},{}", database.address(), standby.same(&database).address());
        let mut database = database.at(&hosts);
        database.url.push_str("?target_session_attrs=read-write");
        Self { primary, standby, database }
    }

    /// With synchronous replication: a commit is acknowledged once the standby has it.
    pub async fn synchronous() -> Self {
        let pair = Self::asynchronous().await;
        pair.primary.configure("synchronous_standby_names = '*'").await;
        let client = pair.primary.same(&pair.database).client().await;
        let synchronous = "select count(*) from pg_stat_replication where sync_state = 'sync'";
        eventually(TEST_TIMEOUT, async || (number(&client, synchronous).await == 1).then_some(())).await;
        pair
    }

    /// Waits until the standby has this many keys that meet the condition.
    pub async fn standby_has(&self, rows: i64, condition: &str) {
        let client = self.standby.same(&self.database).client().await;
        let sql = format!("select count(*) from oncegate.keys where {condition}");
        // The standby may not even have the table yet.
        let has = async || client.query_one(&sql, &[]).await.ok().filter(|row| row.get::<_, i64>(0) == rows);
        eventually(TEST_TIMEOUT, has).await;
    }

    /// Disconnects the standby from the primary.
    pub async fn is_left_behind(&self) {
        self.standby.configure("primary_conninfo = ''").await;
        let client = self.standby.same(&self.database).client().await;
        let receivers = "select count(*) from pg_stat_wal_receiver";
        eventually(TEST_TIMEOUT, async || (number(&client, receivers).await == 0).then_some(())).await;
    }

    /// Stops the process that sends the log to the standby: commits wait for it from now on.
    pub async fn replication_stands_still(&self) -> StoppedSender {
        let client = self.primary.same(&self.database).client().await;
        let sender = number(&client, "select pid::bigint from pg_stat_replication").await;
        let sender = Pid::from_raw(sender.try_into().unwrap()).unwrap();
        kill_process(sender, Signal::STOP).unwrap();
        StoppedSender(sender)
    }

    pub fn fail_over(&self) {
        block_in_place(|| {
            self.primary.kill9();
            self.standby.promote();
        });
    }
}

fn impatient(setup: Setup) -> Setup {
    // Late reservations are released soon; they are not this test's subject.
    setup.store("timeout = \"1s\"\nsweep_every = \"200ms\"")
}

/// A stopped process of a primary. It goes on when this is dropped: a primary waits for it when it is stopped, as by a
/// test that fails.
pub(super) struct StoppedSender(pub Pid);

impl Drop for StoppedSender {
    fn drop(&mut self) {
        // It is gone where the test has killed it.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// The result of a key.
struct KeyResult {
    key: String,
    body: Vec<u8>,
    begun: Instant,
    /// The last time of a response that was not the final answer.
    trouble: Option<Instant>,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_under_load_loses_no_answer_and_executes_nothing_twice() {
    let pair = Pair::synchronous().await;
    let world = World::with(Store::Postgres(pair.database.clone()), impatient).await;
    let (stop, all) = (Cell::new(false), RefCell::new(Vec::new()));
    let one = async |key: String| {
        let (begun, mut trouble, mut unstored) = (Instant::now(), None, None);
        let answer = eventually(TEST_TIMEOUT, async || {
            let answer = world.pay(&key).send().await;
            match (answer.status, answer.oncegate_status()) {
                (201, Some("executed" | "replayed")) => return Some(answer),
                (201, Some("unstored")) => unstored = Some(answer.body),
                (503 | 409, Some("rejected" | "in-flight")) => {}
                other => panic!("{key}: {other:?} {}", answer.text()),
            }
            trouble = Some(Instant::now());
            None
        })
        .await;
        assert!(unstored.is_none_or(|unstored| unstored == answer.body), "{key} has two answers");
        all.borrow_mut().push(KeyResult { key, body: answer.body.to_vec(), begun, trouble });
    };
    let client = async |client: usize| {
        for round in 0.. {
            if stop.get() {
                break;
            }
            one(format!("k-{client}-{round}")).await;
        }
    };
    let so_many_more = async || {
        let before = all.borrow().len();
        eventually(TEST_TIMEOUT, async || (all.borrow().len() > before + 50).then_some(())).await;
    };
    let story = async {
        so_many_more().await;
        let killed = Instant::now();
        pair.fail_over();
        one("after".to_owned()).await;
        let recovered = Instant::now();
        so_many_more().await;
        stop.set(true);
        (killed, recovered)
    };
    let (_, (killed, recovered)) = join(join_all((0..8).map(client)), story).await;

    let all = all.take();
    let mut executed: HashMap<String, usize> = HashMap::new();
    for call in world.upstream.executed() {
        *executed.entry(call.field("idempotency-key").unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(executed.len(), all.len());
    for result in &all {
        assert_eq!(executed[&result.key], 1, "{} is executed more than once", result.key);
        let replay = world.pay(&result.key).send().await;
        assert_eq!(
            (replay.oncegate_status(), &replay.body[..]),
            (Some("replayed"), &result.body[..]),
            "{}",
            result.key
        );
        if let Some(trouble) = result.trouble {
            assert!(result.begun < recovered && trouble > killed, "{} had no reason for trouble", result.key);
        }
    }
    let troubled = all.iter().filter(|result| result.trouble.is_some()).count();
    println!("{} keys, {troubled} of them in trouble; {:?} to recover", all.len(), recovered - killed);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_is_stored_after_a_failover_lost_its_reservation() {
    let pair = Pair::asynchronous().await;
    let world = World::with(Store::Postgres(pair.database.clone()), impatient).await;
    let before = world.pay("before").send().await;
    pair.standby_has(1, "state = 'completed'").await;
    pair.is_left_behind().await;

    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let completed = world.pay("completed").spawn();
    world.upstream.wait_for_executed(2).await;
    world.upstream.then(Answer::close().hold(&hold));
    let unknown = world.pay("unknown").spawn();
    world.upstream.wait_for_executed(3).await;
    pair.fail_over();
    pair.standby_has(1, "true").await;
    hold.release();

    let completed = completed.await.unwrap().unwrap();
    assert_eq!((completed.status, &*completed.text()), (201, "effect 2"));
    assert_eq!(unknown.await.unwrap().unwrap().outcome().1, "upstream-broken");
    pair.standby_has(2, "state = 'completed'").await;
    pair.standby_has(1, "state = 'unknown'").await;
    world.proxy.wait_for_logs("the store has lost this attempt", 2).await;
    let replay = eventually(TEST_TIMEOUT, async || {
        Some(world.pay("completed").send().await).filter(|answer| answer.status != 503)
    })
    .await;
    assert_eq!((replay.oncegate_status(), &replay.body), (Some("replayed"), &completed.body));
    assert_eq!(world.pay("unknown").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(world.pay("before").send().await.comparable(), before.replayed());
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_is_stored_although_a_failover_lost_its_takeover_of_an_expired_key() {
    let pair = Pair::asynchronous().await;
    let world = World::with(Store::Postgres(pair.database.clone()), |setup| {
        impatient(setup).top("cache = { memory = \"0B\" }").defaults("ttl = \"3s\"")
    })
    .await;
    assert_eq!(world.pay("k-1").send().await.text(), "effect 1");
    pair.standby_has(1, "state = 'completed'").await;
    pair.is_left_behind().await;
    pair.standby_has(1, &format!("expires_at <= {NOW_MS}")).await;

    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let later = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(2).await;
    pair.fail_over();
    pair.standby_has(1, "state = 'completed'").await;
    hold.release();
    let later = later.await.unwrap().unwrap();
    assert_eq!((later.oncegate_status(), &*later.text()), (Some("executed"), "effect 2"));
    let again = world.pay("k-1").send().await;
    assert_eq!((again.oncegate_status(), &*again.text()), (Some("replayed"), "effect 2"));
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_with_a_settlement_lost_in_a_failover_is_unknown_and_not_retried() {
    let pair = Pair::asynchronous().await;
    let world = World::with(Store::Postgres(pair.database.clone()), |setup| {
        impatient(setup).top("cache = { memory = \"0B\" }")
    })
    .await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    pair.standby_has(1, "state = 'in_flight'").await;
    pair.is_left_behind().await;
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    pair.fail_over();
    // The key's instance is alive, and does not run this attempt any more.
    pair.standby_has(1, "state <> 'in_flight'").await;
    let retry =
        eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|retry| retry.status != 503));
    assert_eq!(retry.await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_primary_is_left_for_the_new_one() {
    let pair = Pair::asynchronous().await;
    let store = store::open(&postgres::settings(&pair.database.url)).await.unwrap();
    let (first, second) = (new_reserve_request("first"), new_reserve_request("second"));
    // Opens every kind of connection.
    for reserve_request in [&first, &second] {
        unwrap_lease(store.reserve(reserve_request.clone()).await.unwrap());
    }
    store.settle(completion(&first, b"")).await.unwrap();
    store.renew_lease(renewal(own_instance(), DAY)).await.unwrap();
    store.ping().await.unwrap();
    pair.standby_has(1, "state = 'in_flight'").await;
    let old = pair.primary.same(&pair.database).client().await;
    pair.primary.configure("default_transaction_read_only = on").await;
    let read_only = "select count(*) from pg_settings where name = 'transaction_read_only' and setting = 'on'";
    eventually(TEST_TIMEOUT, async || (number(&old, read_only).await == 1).then_some(())).await;
    block_in_place(|| pair.standby.promote());
    // A change that only the new primary has.
    let new = pair.standby.same(&pair.database).client().await;
    new.batch_execute("delete from oncegate.keys where state = 'completed'").await.unwrap();

    // No caller gets the old primary's records, and none gets an error.
    assert!(store.find(first.id).await.unwrap().is_none());
    store.ping().await.unwrap();
    assert_eq!(
        store
            .list_in_flight(ListInFlightParams { instance: own_instance(), older_than: Duration::ZERO })
            .await
            .unwrap()
            .len(),
        1
    );
    assert!(matches!(store.settle(completion(&second, b"")).await.unwrap(), SettleResult::Done { .. }));
    assert!(
        store
            .list_in_flight(ListInFlightParams { instance: own_instance(), older_than: Duration::ZERO })
            .await
            .unwrap()
            .is_empty()
    );
    store.renew_lease(renewal(own_instance(), DAY)).await.unwrap();
    assert_eq!(store.sweep(SweepParams { expiry: DAY, limit: 10, as_of: any_time() }).await.unwrap(), []);
    join_all((0..20).map(|i| store.reserve(new_reserve_request(&format!("k-{i}"))))).await.into_iter().for_each(
        |reservation| {
            unwrap_lease(reservation.unwrap());
        },
    );
    assert_eq!(number(&new, "select count(*) from oncegate.keys").await, 21);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_never_used() {
    let pair = Pair::asynchronous().await;
    let standby = pair.standby.same(&pair.database);
    let error = store::open(&postgres::settings(&standby.url)).await.map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Away(_)), "{error:?}");
    // The standby first, whether or not the URL sets `target_session_attrs`.
    let primary = pair.primary.same(&pair.database);
    let store =
        store::open(&postgres::settings(&standby.at(&format!("{},{}", standby.address(), primary.address())).url))
            .await
            .unwrap();
    join_all((0..50).map(|i| store.reserve(new_reserve_request(&format!("k-{i}"))))).await.into_iter().for_each(
        |reservation| {
            unwrap_lease(reservation.unwrap());
        },
    );
    store.ping().await.unwrap();
    let (ours, theirs) = (primary.client().await, standby.client().await);
    assert!(number(&ours, CONNECTIONS).await > 0);
    // The connection of the look at all servers.
    eventually(TEST_TIMEOUT, async || (number(&theirs, CONNECTIONS).await == 1).then_some(())).await;
    drop(store);
}
