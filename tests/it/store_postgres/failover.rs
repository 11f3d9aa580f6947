//! A primary with a standby, both in the URL: the one is killed, the other promoted.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::{join, join_all};
use oncegate::store::{self, OpenError, Settled};
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::harness::postgres::{self, Cluster, Database};
use crate::harness::world::{DAY, ask, completion, fresh, renewal, us};
use crate::harness::{Answer, Hold, PATIENCE, Setup, Store, World, eventually};
use crate::store_postgres::{CONNECTIONS, number};

/// A primary and its standby, and a database by a list of both, the primary first.
struct Pair {
    primary: Cluster,
    standby: Cluster,
    database: Database,
}

impl Pair {
    /// The standby gets what the primary has committed, some time.
    async fn asynchronous() -> Self {
        let primary = block_in_place(|| Cluster::start(""));
        let database = primary.empty_database().await;
        let standby = block_in_place(|| primary.standby());
        let hosts = format!("{},{}", database.address(), standby.same(&database).address());
        let mut database = database.at(&hosts);
        database.url.push_str("?target_session_attrs=read-write");
        Self { primary, standby, database }
    }

    /// A commit is acknowledged once the standby has it.
    async fn synchronous() -> Self {
        let pair = Self::asynchronous().await;
        pair.primary.configure("synchronous_standby_names = '*'").await;
        let client = pair.primary.same(&pair.database).client().await;
        let synchronous = "select count(*) from pg_stat_replication where sync_state = 'sync'";
        eventually(PATIENCE, async || (number(&client, synchronous).await == 1).then_some(())).await;
        pair
    }

    /// Waits until the standby shows so many rows of ours that look so.
    async fn standby_has(&self, rows: i64, looking: &str) {
        let client = self.standby.same(&self.database).client().await;
        let sql = format!("select count(*) from oncegate.keys where {looking}");
        // The table may be one of those things that it has not got yet.
        let has = async || client.query_one(&sql, &[]).await.ok().filter(|row| row.get::<_, i64>(0) == rows);
        eventually(PATIENCE, has).await;
    }

    /// From here on the standby gets nothing any more.
    async fn is_left_behind(&self) {
        self.standby.configure("primary_conninfo = ''").await;
        let client = self.standby.same(&self.database).client().await;
        let receivers = "select count(*) from pg_stat_wal_receiver";
        eventually(PATIENCE, async || (number(&client, receivers).await == 0).then_some(())).await;
    }

    fn fail_over(&self) {
        block_in_place(|| {
            self.primary.kill9();
            self.standby.promote();
        });
    }
}

fn impatient(setup: Setup) -> Setup {
    // What came too late is released soon, and the test is not about that.
    setup.store("timeout = \"1s\"\nsweep_every = \"200ms\"")
}

/// What became of a key.
struct Told {
    key: String,
    body: Vec<u8>,
    begun: Instant,
    /// When it got something else than its answer for the last time.
    trouble: Option<Instant>,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_under_load_loses_nothing_that_was_told_and_executes_nothing_twice() {
    let pair = Pair::synchronous().await;
    let world = World::with(Store::Postgres(pair.database.clone()), impatient).await;
    let (stop, all) = (Cell::new(false), RefCell::new(Vec::new()));
    let one = async |key: String| {
        let (begun, mut trouble, mut unstored) = (Instant::now(), None, None);
        let answer = eventually(PATIENCE, async || {
            let answer = world.pay(&key).send().await;
            match (answer.status, answer.told()) {
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
        all.borrow_mut().push(Told { key, body: answer.body.to_vec(), begun, trouble });
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
        eventually(PATIENCE, async || (all.borrow().len() > before + 50).then_some(())).await;
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
    for told in &all {
        assert_eq!(executed[&told.key], 1, "{} is executed more than once", told.key);
        let replay = world.pay(&told.key).send().await;
        assert_eq!((replay.told(), &replay.body[..]), (Some("replayed"), &told.body[..]), "{}", told.key);
        if let Some(trouble) = told.trouble {
            assert!(told.begun < recovered && trouble > killed, "{} had no reason for trouble", told.key);
        }
    }
    let troubled = all.iter().filter(|told| told.trouble.is_some()).count();
    println!("{} keys, {troubled} of them in trouble; {:?} to recover", all.len(), recovered - killed);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_after_a_failover_has_lost_its_reservation_is_stored_all_the_same() {
    let pair = Pair::asynchronous().await;
    let world = World::with(Store::Postgres(pair.database.clone()), impatient).await;
    let before = world.pay("before").send().await;
    pair.standby_has(1, "state = 'completed'").await;
    pair.is_left_behind().await;

    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let completed = world.pay("completed").spawn();
    world.upstream.has_executed(2).await;
    world.upstream.then(Answer::close().hold(&hold));
    let unknown = world.pay("unknown").spawn();
    world.upstream.has_executed(3).await;
    pair.fail_over();
    pair.standby_has(1, "true").await;
    hold.release();

    let completed = completed.await.unwrap().unwrap();
    assert_eq!((completed.status, &*completed.text()), (201, "effect 2"));
    assert_eq!(unknown.await.unwrap().unwrap().outcome().1, "upstream-broken");
    pair.standby_has(2, "state = 'completed'").await;
    pair.standby_has(1, "state = 'unknown'").await;
    world.proxy.logs_times("the store has no record of this key", 2).await;
    let replay =
        eventually(PATIENCE, async || Some(world.pay("completed").send().await).filter(|answer| answer.status != 503))
            .await;
    assert_eq!((replay.told(), &replay.body), (Some("replayed"), &completed.body));
    assert_eq!(world.pay("unknown").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(world.pay("before").send().await.comparable(), before.replayed());
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_failover_has_lost_the_end_of_is_unknown_and_not_tried_again() {
    let pair = Pair::asynchronous().await;
    let world = World::with(Store::Postgres(pair.database.clone()), |setup| {
        impatient(setup).top("cache = { memory = \"0B\" }")
    })
    .await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.has_executed(1).await;
    pair.standby_has(1, "state = 'in_flight'").await;
    pair.is_left_behind().await;
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().told(), Some("executed"));
    pair.fail_over();
    // Its instance lives, and runs no such attempt any more.
    pair.standby_has(1, "state <> 'in_flight'").await;
    let retry = eventually(PATIENCE, async || Some(world.pay("k-1").send().await).filter(|retry| retry.status != 503));
    assert_eq!(retry.await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_takes_no_writes_any_more_is_left_for_the_one_that_does() {
    let pair = Pair::asynchronous().await;
    let store = store::open(&postgres::settings(&pair.database.url)).await.unwrap();
    let (first, second) = (ask("first"), ask("second"));
    // Every kind of connection is there.
    for ask in [&first, &second] {
        fresh(store.reserve(ask.clone()).await.unwrap());
    }
    store.settle(completion(&first, b"")).await.unwrap();
    store.renew(renewal(us(), DAY)).await.unwrap();
    store.ping().await.unwrap();
    pair.standby_has(1, "state = 'in_flight'").await;
    let old = pair.primary.same(&pair.database).client().await;
    pair.primary.configure("default_transaction_read_only = on").await;
    let read_only = "select count(*) from pg_settings where name = 'transaction_read_only' and setting = 'on'";
    eventually(PATIENCE, async || (number(&old, read_only).await == 1).then_some(())).await;
    block_in_place(|| pair.standby.promote());
    // What the new one alone knows.
    let new = pair.standby.same(&pair.database).client().await;
    new.batch_execute("delete from oncegate.keys where state = 'completed'").await.unwrap();

    // Nobody is told what the old one still shows, and nobody gets an error.
    assert!(store.find(first.id).await.unwrap().is_none());
    store.ping().await.unwrap();
    assert_eq!(store.standing(us(), Duration::ZERO).await.unwrap().len(), 1);
    assert!(matches!(store.settle(completion(&second, b"")).await.unwrap(), Settled::Done { .. }));
    assert!(store.standing(us(), Duration::ZERO).await.unwrap().is_empty());
    store.renew(renewal(us(), DAY)).await.unwrap();
    assert_eq!(store.sweep(DAY, 10).await.unwrap(), []);
    join_all((0..20).map(|i| store.reserve(ask(&format!("k-{i}"))))).await.into_iter().for_each(|reservation| {
        fresh(reservation.unwrap());
    });
    assert_eq!(number(&new, "select count(*) from oncegate.keys").await, 21);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_never_worked_with() {
    let pair = Pair::asynchronous().await;
    let standby = pair.standby.same(&pair.database);
    let error = store::open(&postgres::settings(&standby.url)).await.map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
    // The standby first, whether or not the URL says what is wanted.
    let primary = pair.primary.same(&pair.database);
    let store =
        store::open(&postgres::settings(&standby.at(&format!("{},{}", standby.address(), primary.address())).url))
            .await
            .unwrap();
    join_all((0..50).map(|i| store.reserve(ask(&format!("k-{i}"))))).await.into_iter().for_each(|reservation| {
        fresh(reservation.unwrap());
    });
    store.ping().await.unwrap();
    let (ours, theirs) = (primary.client().await, standby.client().await);
    assert!(number(&ours, CONNECTIONS).await > 0);
    eventually(PATIENCE, async || (number(&theirs, CONNECTIONS).await == 0).then_some(())).await;
    drop(store);
}
