//! Faults between the store and its server, and rows that somebody else holds.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use oncegate::domain::attempt::{Ending, Settlement};
use oncegate::domain::record::{Ask, Reservation, State};
use oncegate::store::{self, Seen, Settings, Settled, Store, StoreError};
use tokio_postgres::Client;

use crate::harness::link::Link;
use crate::harness::postgres::{self, Cluster, Database};
use crate::harness::relay::Relay;
use crate::harness::world::{DAY, World, again, ask, completion, fresh, renewal, settlement, us};
use crate::store_postgres::{CONNECTIONS, eventually, number};

#[tokio::test]
async fn connections_that_are_killed_cost_nobody_their_answer() {
    let world = World::postgres().await;
    let attempts = join_all((0..300).map(|i| {
        let world = &world;
        async move {
            tokio::time::sleep(Duration::from_millis(i * 3)).await;
            let ask = ask(&format!("k-{i}"));
            let lease = fresh(world.store().reserve(ask.clone()).await.unwrap());
            assert_eq!((lease.ask.token, lease.attempt), (ask.token, 1));
            world.settle(completion(&ask, b"paid")).await;
        }
    }));
    let killer = async {
        let client = world.database().client().await;
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(45)).await;
            client.batch_execute(KILL).await.unwrap();
        }
    };
    join(attempts, killer).await;
}

pub const KILL: &str = "select pg_terminate_backend(pid) from pg_stat_activity
  where datname = current_database() and application_name = 'oncegate'";

#[tokio::test]
async fn a_reservation_whose_session_is_killed_is_made_all_the_same() {
    let world = World::postgres().await;
    let client = world.database().client().await;
    // The statement waits, its session is killed, and another carries it on when the way is free.
    client.batch_execute("begin; lock table oncegate.keys in access exclusive mode").await.unwrap();
    let ask = ask("k");
    let reservation = world.store().reserve(ask.clone());
    let meddler = async {
        waiting(world.database()).await;
        let killer = world.database().client().await;
        killer.batch_execute(KILL).await.unwrap();
        waiting(world.database()).await;
        client.batch_execute("rollback").await.unwrap();
    };
    let (reservation, ()) = join(reservation, meddler).await;
    assert_eq!(fresh(reservation.unwrap()).ask.token, ask.token);
}

#[tokio::test]
async fn what_was_done_while_its_answer_was_lost_is_known_by_its_token() {
    let world = World::postgres().await;
    let link = Link::to(world.database()).await;
    let store = store::open(&postgres::settings(&link.url)).await.unwrap();
    let first = ask("k");
    let mut seen = None;
    for losses in [0, 1, 2] {
        // Without losses at first, so that there is a connection to lose.
        let reserved = ask(&format!("k-{losses}"));
        link.lose_answers(losses);
        assert_eq!(fresh(store.reserve(reserved.clone()).await.unwrap()).ask.token, reserved.token);

        link.lose_answers(losses);
        let Settled::Done { expires_at } = store.settle(completion(&reserved, b"")).await.unwrap() else { panic!() };
        assert!(expires_at.is_some());

        let next = again(&first);
        let lease = match seen {
            None => fresh(store.reserve(next.clone()).await.unwrap()),
            Some(seen) => {
                link.lose_answers(losses);
                fresh(store.take_over(next.clone(), seen).await.unwrap())
            }
        };
        assert_eq!((lease.ask.token, lease.attempt), (next.token, losses + 1));
        link.lose_answers(losses);
        assert!(matches!(store.settle(lease.unknown()).await.unwrap(), Settled::Done { expires_at: None }));
        seen = store.find(first.id).await.unwrap().as_ref().map(Seen::from);

        link.lose_answers(losses);
        store.renew(renewal(us(), DAY)).await.unwrap();
        link.lose_answers(losses);
        store.ping().await.unwrap();
        assert_eq!(link.to_be_lost(), 0);
    }
}

/// Waits until a statement of the store waits for a lock.
pub async fn waiting(database: &Database) {
    let client = database.client().await;
    eventually(async || {
        let blocked = "select count(*) from pg_stat_activity
          where datname = current_database() and application_name = 'oncegate' and wait_event_type = 'Lock'";
        number(&client, blocked).await > 0
    })
    .await;
}

#[tokio::test]
async fn while_a_table_is_locked_calls_end_in_time_and_afterwards_all_is_well() {
    let world = World::postgres().await;
    let settings = Settings { timeout: Duration::from_millis(200), ..world.settings.clone() };
    let store = store::open(&settings).await.unwrap();
    let before = ask("before");
    fresh(store.reserve(before.clone()).await.unwrap());

    let client = world.database().client().await;
    client.batch_execute("begin; lock table oncegate.keys in access exclusive mode").await.unwrap();
    for round in 0..5 {
        let start = Instant::now();
        let asks: Vec<Ask> = (0..20).map(|i| ask(&format!("k-{round}-{i}"))).collect();
        let (reserved, (settled, renewed)) = join(
            join_all(asks.iter().map(|ask| store.reserve(ask.clone()))),
            join(store.settle(completion(&before, b"")), store.renew(renewal(us(), DAY))),
        )
        .await;
        assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
        for result in reserved.iter().map(Result::as_ref).map(Result::err) {
            assert!(result.is_some(), "{reserved:?}");
        }
        assert!(settled.is_err(), "{settled:?}");
        // The lease has a table and a connection of its own.
        renewed.unwrap();
    }
    // However often they gave up, the server has no more to do than it was meant to have.
    assert!(number(&client, CONNECTIONS).await <= 8);
    client.batch_execute("rollback").await.unwrap();

    // Some reservations were made when nobody waited for them any more. They can be found, and given up for certain.
    assert!(matches!(settle_again(store.as_ref(), &before).await, Settled::Done { .. } | Settled::Fenced(Some(_))));
    eventually(async || {
        let standing = store.standing(us(), Duration::ZERO).await.unwrap();
        for (id, token) in &standing {
            drop(store.settle(Settlement::of_stray(*id, *token, DAY)).await.unwrap());
        }
        standing.is_empty()
    })
    .await;
    for i in 0..20 {
        match store.reserve(ask(&format!("k-0-{i}"))).await.unwrap() {
            Reservation::Fresh(_) => {}
            Reservation::Taken(record) => assert_eq!(record.state.name(), "retryable"),
        }
    }
}

async fn settle_again(store: &dyn Store, ask: &Ask) -> Settled {
    loop {
        if let Ok(settled) = store.settle(completion(ask, b"")).await {
            return settled;
        }
    }
}

#[tokio::test]
async fn a_row_that_somebody_holds_holds_up_nobody_else() {
    let world = World::postgres().await;
    let asks: Vec<Ask> = (0..50).map(|i| ask(&format!("k-{i}"))).collect();
    join_all(asks.iter().map(|ask| world.reserve(ask))).await;
    let (held, retried) = (&asks[7], ask("retried"));
    world.reserve(&retried).await;
    world.settle(settlement(&retried, Ending::Retryable { ttl: DAY })).await;

    let client = world.database().client().await;
    client.batch_execute("begin").await.unwrap();
    let hold = "select 1 from oncegate.keys where id in ($1, $2) for update";
    client.query(hold, &[&held.id.as_bytes().as_slice(), &retried.id.as_bytes().as_slice()]).await.unwrap();

    let seen = Seen::from(&world.find(&retried).await);
    let next = again(&retried);
    let (held_ends, taken_over) = (world.settle(completion(held, b"")), world.store().take_over(next.clone(), seen));
    let others = async {
        let start = Instant::now();
        join_all(asks.iter().filter(|ask| ask.id != held.id).map(|ask| world.settle(completion(ask, b"")))).await;
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        assert_eq!(world.find(held).await.state.name(), "in_flight");
        client.batch_execute("rollback").await.unwrap();
    };
    let (((), taken_over), ()) = join(join(held_ends, taken_over), others).await;
    assert_eq!(fresh(taken_over.unwrap()).ask.token, next.token);
    assert_eq!(world.find(held).await.state.name(), "completed");
}

#[tokio::test]
async fn who_settles_a_held_row_late_gets_what_the_holder_made_of_it() {
    let world = World::postgres().await;
    let ask = ask("k");
    world.reserve(&ask).await;
    let client = world.database().client().await;
    client.batch_execute("begin").await.unwrap();
    let complete = "update oncegate.keys set state = 'completed', status = 299, fields = '\\x0d0a', body = null,
      settled_at = now(), expires_at = now() + interval '1 day'";
    client.batch_execute(complete).await.unwrap();
    let commit = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.batch_execute("commit").await.unwrap();
    };
    let (record, ()) = join(world.settle_late(completion(&ask, b"")), commit).await;
    let State::Completed(completed) = record.unwrap().state else { panic!() };
    assert_eq!(completed.response.status, 299);
}

#[tokio::test]
async fn a_row_that_the_server_refuses_fails_alone() {
    let world = World::postgres().await;
    let asks: Vec<Ask> = (0..40)
        .map(|i| Ask { route: if i == 13 { "p\0y".into() } else { "pay".into() }, ..ask(&format!("k-{i}")) })
        .collect();
    let reservations = join_all(asks.iter().map(|ask| world.store().reserve(ask.clone()))).await;
    for (i, reservation) in reservations.into_iter().enumerate() {
        assert_eq!(reservation.is_err(), i == 13, "{i}: {reservation:?}");
    }
}

#[tokio::test]
async fn reservations_cannot_take_the_connections_that_settle() {
    let world = World::postgres().await;
    let before = ask("before");
    world.reserve(&before).await;
    // Inserts wait; updates do not.
    let client = world.database().client().await;
    client
        .batch_execute(
            "create function wait() returns trigger language plpgsql as
               $$ begin perform pg_sleep(1); return new; end $$;
             create trigger wait before insert on oncegate.keys for each row execute function wait()",
        )
        .await
        .unwrap();
    let asks: Vec<Ask> = (0..3).map(|i| ask(&format!("k-{i}"))).collect();
    let reservations = join_all(asks.iter().map(|ask| world.reserve(ask)));
    let others = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let start = Instant::now();
        world.settle(completion(&before, b"")).await;
        world.store().renew(renewal(us(), DAY)).await.unwrap();
        world.store().ping().await.unwrap();
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    };
    join(reservations, others).await;
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_crash_even_where_the_database_would_not_wait_for_its_log() {
    let cluster = Cluster::start("-c synchronous_commit=off -c wal_writer_delay=10s");
    let database = cluster.empty_database().await;
    let settings = postgres::settings(&database.url);
    let store = store::open(&settings).await.unwrap();
    let asks: Vec<Ask> = (0..4).map(|i| ask(&format!("k-{i}"))).collect();
    store.renew(renewal(us(), DAY)).await.unwrap();
    for (i, ask) in asks.iter().enumerate() {
        fresh(store.reserve(ask.clone()).await.unwrap());
        if i > 0 {
            let ending = settlement(ask, Ending::Retryable { ttl: DAY });
            assert!(matches!(store.settle(ending).await.unwrap(), Settled::Done { .. }));
        }
        if i > 1 {
            let seen = Seen::from(&store.find(ask.id).await.unwrap().unwrap());
            fresh(store.take_over(again(ask), seen).await.unwrap());
        }
        // Each kind of write is once the last before the crash.
        cluster.crash();
        cluster.restart();
        let (state, attempt) = [("in_flight", 1), ("retryable", 1), ("in_flight", 2), ("in_flight", 2)][i];
        let record = store.find(ask.id).await.unwrap().unwrap();
        assert_eq!((record.state.name(), record.attempt), (state, attempt));
    }
    assert_eq!(store.sweep(DAY, 100).await.unwrap(), []);
}

#[tokio::test]
async fn a_key_that_somebody_has_is_told_apart_from_a_store_that_cannot_tell_anything() {
    let world = World::postgres().await;
    let (had, free) = (ask("had"), ask("free"));
    world.reserve(&had).await;
    let client = world.database().client().await;
    // Reserving needs no look at this column, and looking does.
    client.batch_execute("alter table oncegate.keys rename column body to body_away").await.unwrap();
    let error = world.store().reserve(again(&had)).await.unwrap_err();
    assert!(matches!(error, StoreError::Taken(_)), "{error:?}");
    world.reserve(&free).await;
    client.batch_execute("alter table oncegate.keys rename column body_away to body").await.unwrap();
    world.lose(&again(&had)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_server_costs_no_settlement() {
    let cluster = Cluster::start("");
    let database = cluster.empty_database().await;
    let settings = Settings { timeout: Duration::from_secs(20), ..postgres::settings(&database.url) };
    let store = store::open(&settings).await.unwrap();
    let before = ask("before");
    fresh(store.reserve(before.clone()).await.unwrap());
    cluster.crash();
    // Nothing was sent, so nothing is in doubt: it is told at once.
    let start = Instant::now();
    let error = store.reserve(ask("during")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(store.ping().await.is_err());
    assert!(start.elapsed() < Duration::from_secs(2));
    let settled = {
        let store = store.clone();
        let ending = completion(&before, b"");
        tokio::spawn(async move { store.settle(ending).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    cluster.restart();
    assert!(matches!(settled.await.unwrap().unwrap(), Settled::Done { .. }));
    fresh(store.reserve(ask("after")).await.unwrap());
}

#[tokio::test]
async fn a_lease_is_renewed_soon_where_its_connection_was_forgotten_on_the_way() {
    let world = World::postgres().await;
    let wire = Relay::to(world.database().address().parse().unwrap()).await;
    let url = world.database().at(&wire.address.to_string()).url;
    for max_connections in [4, 8] {
        let timeout = Duration::from_millis(500);
        let store = store::open(&Settings { timeout, max_connections, ..postgres::settings(&url) }).await.unwrap();
        store.renew(renewal(us(), DAY)).await.unwrap();
        wire.forget();
        let begun = Instant::now();
        assert!(store.renew(renewal(us(), DAY)).await.is_err());
        eventually(async || store.renew(renewal(us(), DAY)).await.is_ok()).await;
        // A statement's time, as long again for its answer, and time for a busy machine.
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn what_nobody_waits_for_any_more_is_not_sent_when_the_connection_comes() {
    let world = World::postgres().await;
    let mut link = Link::to(world.database()).await;
    let store = store::open(&postgres::settings(&link.url)).await.unwrap();
    link.knocked().await;
    link.close_the_door();
    let gone = ask("gone");
    // It leaves while it waits for the connection, and with time left: the connection comes in time.
    let leaving = tokio::spawn({
        let (store, gone) = (store.clone(), gone.clone());
        async move { store.reserve(gone).await }
    });
    link.knocked().await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
    link.open_the_door();
    // What is asked after it, over the same connections, comes after it.
    for number in 0..50 {
        fresh(store.reserve(ask(&format!("k-{number}"))).await.unwrap());
    }
    assert!(store.find(gone.id).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_cut_off_counts_once_it_is_where_it_was_to_be() {
    let cluster = Cluster::start("");
    let database = cluster.empty_database().await;
    let settings = Settings { timeout: Duration::from_secs(20), ..postgres::settings(&database.url) };
    let store = store::open(&settings).await.unwrap();
    let client = database.client().await;
    let reserve = |ask: &Ask| {
        let (store, ask) = (store.clone(), ask.clone());
        tokio::spawn(async move { store.reserve(ask).await })
    };
    let names = async |names: &str| commits_wait_for(names, &cluster, &client).await;
    let committing = COMMITTING;

    // Its session is ended while the commit waits for a standby that does not come: from then on it can be seen.
    names("nobody").await;
    let rows = "select count(*) from oncegate.keys";
    let waiting = async |key: &str| loop {
        // A session that has not heard of the name yet does not wait for it.
        let before = number(&client, rows).await;
        let ask = ask(&format!("{key}-{before}"));
        let reservation = reserve(&ask);
        eventually(async || reservation.is_finished() || number(&client, committing).await == 1).await;
        if !reservation.is_finished() {
            return (ask, reservation, before);
        }
    };
    let (cut_off, reservation, before) = waiting("cut-off").await;
    assert_eq!(number(&client, rows).await, before);
    client.batch_execute(KILL).await.unwrap();
    eventually(async || number(&client, rows).await == before + 1).await;
    // But it is not told until the standby must have it.
    eventually(async || number(&client, committing).await == 1).await;
    assert!(!reservation.is_finished());
    names("").await;
    let lease = fresh(reservation.await.unwrap().unwrap());
    assert_eq!((lease.ask.token, lease.attempt), (cut_off.token, 1));

    // The server crashes in the middle of it.
    names("nobody").await;
    let (crashed, reservation, _) = waiting("crashed").await;
    client.batch_execute("alter system reset synchronous_standby_names").await.unwrap();
    tokio::task::block_in_place(|| {
        cluster.crash();
        cluster.restart();
    });
    assert_eq!(fresh(reservation.await.unwrap().unwrap()).ask.token, crashed.token);
}

/// Until the standby of that name has it, no commit is done; there is none.
pub async fn commits_wait_for(name: &str, cluster: &Cluster, client: &Client) {
    cluster.configure(&format!("synchronous_standby_names = '{name}'")).await;
    let current = "select count(*) from pg_settings where name = 'synchronous_standby_names' and setting = ";
    eventually(async || number(client, &format!("{current}'{name}'")).await == 1).await;
}

pub const COMMITTING: &str = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";
