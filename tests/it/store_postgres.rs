//! What the PostgreSQL store promises beyond the contract: many proxies on one database, and faults between them.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use oncegate::domain::attempt::Ending;
use oncegate::domain::record::{Ask, Reservation};
use oncegate::store::{self, OpenError, Seen, Settings, Settled, Store, StoreError};
use tokio_postgres::Client;

use crate::harness::link::Link;
use crate::harness::postgres::{self, Cluster};
use crate::harness::world::{DAY, World, again, ask, completion, fresh, settlement, taken, us};

#[tokio::test]
async fn two_proxies_on_one_database_give_each_key_away_once() {
    let world = World::postgres().await;
    let other = store::open(&world.settings).await.unwrap();
    let asks: Vec<Ask> = (0..400).map(|i| ask(&format!("k-{}", i % 100))).collect();
    let stores = [world.store(), &other];
    let reservations = asks.iter().enumerate().map(|(i, ask)| stores[i % 2].reserve(ask.clone()));
    let fresh = join_all(reservations).await.iter().filter(|r| matches!(r, Ok(Reservation::Fresh(_)))).count();
    assert_eq!(fresh, 100);
    use oncegate::domain::scope::Scope;
    let of_nobody = |store: &dyn Store| Scope::of(&store.salt(), []);
    assert_eq!(of_nobody(world.store().as_ref()), of_nobody(other.as_ref()));
}

#[tokio::test]
async fn batches_that_meet_on_the_same_keys_do_not_wait_for_each_other_for_ever() {
    let world = World::postgres().await;
    let other = store::open(&world.settings).await.unwrap();
    let client = world.database().client().await;
    // Slow enough for two batches to be at it together.
    let slow = "create function slow() returns trigger language plpgsql as
                  $$ begin perform pg_sleep(0.002); return new; end $$;
                create trigger slow before insert or update on oncegate.keys for each row execute function slow()";
    client.batch_execute(slow).await.unwrap();
    let firsts: Vec<Ask> = (0..100).map(|i| ask(&format!("k-{i}"))).collect();
    let attempt = async |store: &dyn Store, first: &Ask| {
        let mine = again(first);
        let last = match store.reserve(mine.clone()).await.unwrap() {
            Reservation::Fresh(_) => mine,
            Reservation::Taken(record) => {
                drop(store.take_over(mine.clone(), Seen::from(&record)).await.unwrap());
                Ask { token: record.token, ..mine }
            }
        };
        drop(store.settle(settlement(&last, Ending::Unknown)).await.unwrap());
    };
    for _ in 0..3 {
        let forwards = join_all(firsts.iter().map(|first| attempt(world.store().as_ref(), first)));
        let backwards = join_all(firsts.iter().rev().map(|first| attempt(other.as_ref(), first)));
        join(forwards, backwards).await;
    }
    // The sessions report when they end.
    drop((world, other));
    eventually(async || number(&client, CONNECTIONS).await == 0).await;
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(number(&client, deadlocks).await, 0);
}

const CONNECTIONS: &str = "select count(*) from pg_stat_activity
  where datname = current_database() and application_name = 'oncegate'";

#[tokio::test]
async fn connections_that_are_killed_cost_nobody_their_answer() {
    let world = World::postgres().await;
    let attempts = join_all((0..300).map(|i| {
        let world = &world;
        async move {
            tokio::time::sleep(Duration::from_millis(i * 3)).await;
            let ask = ask(&format!("k-{i}"));
            let lease = fresh(world.store().reserve(ask.clone()).await.unwrap());
            assert_eq!((lease.token, lease.attempt), (ask.token, 1));
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

const KILL: &str = "select pg_terminate_backend(pid) from pg_stat_activity
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
        waiting(&world).await;
        let killer = world.database().client().await;
        killer.batch_execute(KILL).await.unwrap();
        waiting(&world).await;
        client.batch_execute("rollback").await.unwrap();
    };
    let (reservation, ()) = join(reservation, meddler).await;
    assert_eq!(fresh(reservation.unwrap()).token, ask.token);
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
        assert_eq!(fresh(store.reserve(reserved.clone()).await.unwrap()).token, reserved.token);

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
        assert_eq!((lease.token, lease.attempt), (next.token, losses + 1));
        link.lose_answers(losses);
        assert!(matches!(store.settle(lease.unknown()).await.unwrap(), Settled::Done { expires_at: None }));
        seen = store.find(first.id).await.unwrap().as_ref().map(Seen::from);

        link.lose_answers(losses);
        store.renew(us(), DAY).await.unwrap();
        link.lose_answers(losses);
        store.ping().await.unwrap();
        assert_eq!(link.to_be_lost(), 0);
    }
}

/// Waits until a statement of the store waits for a lock.
async fn waiting(world: &World) {
    let client = world.database().client().await;
    eventually(async || {
        let blocked = "select count(*) from pg_stat_activity
          where datname = current_database() and application_name = 'oncegate' and wait_event_type = 'Lock'";
        number(&client, blocked).await > 0
    })
    .await;
}

async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds().await {
        assert!(Instant::now() < deadline, "it never came to that");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn while_a_table_is_locked_calls_end_in_time_and_afterwards_all_is_well() {
    let world = World::postgres().await;
    let settings = Settings { timeout: Duration::from_millis(300), ..world.settings.clone() };
    let store = store::open(&settings).await.unwrap();
    let before = ask("before");
    fresh(store.reserve(before.clone()).await.unwrap());

    let client = world.database().client().await;
    client.batch_execute("begin; lock table oncegate.keys in access exclusive mode").await.unwrap();
    let start = Instant::now();
    let asks: Vec<Ask> = (0..20).map(|i| ask(&format!("k-{i}"))).collect();
    let (reserved, (settled, renewed)) = join(
        join_all(asks.iter().map(|ask| store.reserve(ask.clone()))),
        join(store.settle(completion(&before, b"")), store.renew(us(), DAY)),
    )
    .await;
    assert!(start.elapsed() < Duration::from_millis(600), "{:?}", start.elapsed());
    for reserved in reserved {
        assert!(matches!(reserved, Err(StoreError::TimedOut)), "{reserved:?}");
    }
    assert!(matches!(settled, Err(StoreError::TimedOut)), "{settled:?}");
    // The lease has a table and a connection of its own.
    renewed.unwrap();
    // What was given up is not left waiting in the server.
    eventually(async || {
        let waits =
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        number(&client, waits).await == 0
    })
    .await;
    client.batch_execute("rollback").await.unwrap();

    for ask in &asks {
        // Given up, and cancelled: nobody has reserved it.
        fresh(store.reserve(again(ask)).await.unwrap());
    }
    assert!(matches!(store.settle(completion(&before, b"")).await.unwrap(), Settled::Done { .. }));
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
    assert_eq!(fresh(taken_over.unwrap()).token, next.token);
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
    let oncegate::domain::record::State::Completed(completed) = record.unwrap().state else { panic!() };
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
async fn what_the_server_quotes_of_a_row_is_not_passed_on() {
    let world = World::postgres().await;
    let secret = ask("secret-key");
    world.reserve(&secret).await;
    let response = oncegate::domain::response::StoredResponse {
        status: http::StatusCode::from_u16(600).unwrap(),
        ..crate::harness::world::response(b"secret-body")
    };
    let error = world
        .store()
        .settle(settlement(&secret, Ending::Completed { response, ttl: DAY, remember: None }))
        .await
        .unwrap_err();
    let mut said = format!("{error:?} {error}");
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        said += &format!(" {cause:?} {cause}");
        source = cause.source();
    }
    assert!(said.contains("keys_status_final"), "{said}");
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert!(!said.contains(&hex("secret")) && !said.contains("Failing row"), "{said}");
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
        world.store().renew(us(), DAY).await.unwrap();
        world.store().ping().await.unwrap();
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    };
    join(reservations, others).await;
}

#[tokio::test]
async fn no_more_connections_are_made_than_were_allowed() {
    for (allowed, made_max) in [(0, 4), (4, 4), (8, 8), (20, 20)] {
        let world = World::postgres().await;
        let settings = Settings { max_connections: allowed, ..world.settings.clone() };
        let store = store::open(&settings).await.unwrap();
        let asks: Vec<Ask> = (0..500).map(|i| ask(&format!("k-{i}"))).collect();
        join_all(asks.iter().map(|ask| async {
            drop(store.reserve(ask.clone()).await.unwrap());
            drop(store.find(ask.id).await.unwrap());
            drop(store.settle(completion(ask, b"")).await.unwrap());
            store.ping().await.unwrap();
            store.renew(us(), DAY).await.unwrap();
        }))
        .await;
        let client = world.database().client().await;
        assert!(number(&client, CONNECTIONS).await <= made_max, "{allowed}");
        // The connections go with the store.
        drop(store);
        eventually(async || number(&client, CONNECTIONS).await == 0).await;
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_crash_even_where_the_database_would_not_wait_for_its_log() {
    let cluster = Cluster::start("-c synchronous_commit=off -c wal_writer_delay=10s");
    let database = cluster.empty_database().await;
    let settings = postgres::settings(&database.url);
    let store = store::open(&settings).await.unwrap();
    let asks: Vec<Ask> = (0..4).map(|i| ask(&format!("k-{i}"))).collect();
    store.renew(us(), DAY).await.unwrap();
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
async fn a_server_that_takes_no_writes_is_refused() {
    let database = postgres::database().await;
    let client = database.client().await;
    let alter = format!("alter database {} set default_transaction_read_only = on", database.name);
    client.batch_execute(&alter).await.unwrap();
    let error = store::open(&postgres::settings(&database.url)).await.map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
    let alter = format!(
        "alter database {0} reset default_transaction_read_only;
         alter database {0} set default_transaction_isolation = serializable",
        database.name
    );
    client.batch_execute(&format!("set transaction_read_only = off; {alter}")).await.unwrap();
    let error = store::open(&postgres::settings(&database.url)).await.map(drop).unwrap_err();
    assert!(format!("{error:?}").contains("serializable"), "{error:?}");
}

#[tokio::test]
async fn tls_that_cannot_be_had_is_refused_and_not_ignored() {
    let database = postgres::database().await;
    for mode in ["require", "verify-ca", "verify-full"] {
        let settings = postgres::settings(&format!("{}?sslmode={mode}", database.url));
        let OpenError::Missing(source) = store::open(&settings).await.map(drop).unwrap_err() else { panic!("{mode}") };
        assert!(source.to_string().contains(&format!("TLS to the store is not supported yet: sslmode={mode}")));
    }
    for mode in ["disable", "prefer"] {
        let settings = postgres::settings(&format!("{}?sslmode={mode}", database.url));
        store::open(&settings).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_missing() {
    for url in ["postgres://postgres@127.0.0.1:1/oncegate", "postgres://", "postgres://h/d?colour=red"] {
        let error = store::open(&postgres::settings(url)).await.map(drop).unwrap_err();
        assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
    }
}

#[tokio::test]
async fn whoever_asks_twice_with_one_token_gets_one_attempt() {
    let world = World::postgres().await;
    let ask = ask("k");
    let reservations = join_all((0..10).map(|_| world.store().reserve(ask.clone()))).await;
    let fresh = reservations.into_iter().filter(|r| matches!(r, Ok(Reservation::Fresh(_)))).count();
    assert_eq!(fresh, 1);
    assert_eq!(taken(world.store().reserve(ask.clone()).await.unwrap()).token, ask.token);
}
