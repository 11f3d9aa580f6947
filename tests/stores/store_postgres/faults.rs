//! Faults between the store and its server, and rows that another transaction has locked.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::{join, join_all};
use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest, ReserveResult, Settlement};
use oncegate_domain::state::KeyState;
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_store::{
    self as store, ExpectedRecord, ListInFlightParams, ReapParams, ReapScope, SettleResult, Store, StoreError,
    StoreSettings, SweepParams, TakeOverParams,
};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::store_postgres::{CONNECTIONS, eventually, number};
use harness::TEST_TIMEOUT;
use harness::database_link::DatabaseLink;
use harness::postgres::{self, Cluster, NOW_MS, TestDatabase};
use harness::relay::Relay;
use harness::store_fixture::{
    DAY, StoreFixture, all_records, any_time, completion, new_reserve_request, next_attempt_request, own_instance,
    renewal, response, settlement, unwrap_lease,
};

#[tokio::test]
async fn killed_connections_lose_no_answer() {
    const ATTEMPTS: usize = 300;
    const ATTEMPT_EVERY: Duration = Duration::from_millis(3);
    /// Between two kills. A batch of settlements may be larger.
    const SETTLED: usize = 10;
    let world = StoreFixture::postgres().await;
    let settled = watch::Sender::new(0);
    let attempts = join_all((0..ATTEMPTS as u32).map(|i| {
        let (world, settled) = (&world, &settled);
        async move {
            // Time and not an event: the pace of the attempts.
            tokio::time::sleep(i * ATTEMPT_EVERY).await;
            let reserve_request = new_reserve_request(&format!("k-{i}"));
            let lease = unwrap_lease(world.store().reserve(reserve_request.clone()).await.unwrap());
            assert_eq!((lease.reserve_request.token, lease.attempt), (reserve_request.token, 1));
            world.settle(completion(&reserve_request, b"paid")).await;
            settled.send_modify(|settled| *settled += 1);
        }
    }));
    let killer = async {
        let client = world.database().client().await;
        let mut settled = settled.subscribe();
        // By progress and not by time, and only connections that have been used: a call gives up, as it should, if
        // three of them in a row are lost while they are made, which on a busy machine takes longer than any pause
        // between two kills.
        let used = format!("{KILL} and query <> ''");
        let mut killed_at = 0;
        while killed_at + SETTLED < ATTEMPTS {
            settled.wait_for(|settled| *settled >= killed_at + SETTLED).await.unwrap();
            client.batch_execute(&used).await.unwrap();
            killed_at = *settled.borrow();
        }
    };
    join(attempts, killer).await;
}

pub const KILL: &str = "select pg_terminate_backend(pid) from pg_stat_activity
  where datname = current_database() and application_name = 'oncegate'";

#[tokio::test]
async fn a_reservation_with_a_killed_session_still_succeeds() {
    let world = StoreFixture::postgres().await;
    let client = world.database().client().await;
    // The statement waits, its session is killed, and another session executes it when the lock is released.
    client.batch_execute("begin; lock table oncegate.keys in access exclusive mode").await.unwrap();
    let reserve_request = new_reserve_request("k");
    let reservation = world.store().reserve(reserve_request.clone());
    let meddler = async {
        waiting(world.database()).await;
        let killer = world.database().client().await;
        killer.batch_execute(KILL).await.unwrap();
        waiting(world.database()).await;
        client.batch_execute("rollback").await.unwrap();
    };
    let (reservation, ()) = join(reservation, meddler).await;
    assert_eq!(unwrap_lease(reservation.unwrap()).reserve_request.token, reserve_request.token);
}

#[tokio::test]
async fn a_write_with_a_lost_reply_is_recognized_by_its_token() {
    let world = StoreFixture::postgres().await;
    let link = DatabaseLink::to(world.database()).await;
    let store = store::open(&postgres::settings(&link.url)).await.unwrap();
    let first = new_reserve_request("k");
    let mut seen = None;
    for losses in [0, 1, 2] {
        // The first round loses nothing, so that a connection is open in the next.
        let reserved = new_reserve_request(&format!("k-{losses}"));
        link.lose_replies(losses);
        assert_eq!(unwrap_lease(store.reserve(reserved.clone()).await.unwrap()).reserve_request.token, reserved.token);

        link.lose_replies(losses);
        let SettleResult::Done { expires_at } = store.settle(completion(&reserved, b"")).await.unwrap() else {
            panic!()
        };
        assert!(expires_at.is_some());

        let next = next_attempt_request(&first);
        let lease = match seen {
            None => unwrap_lease(store.reserve(next.clone()).await.unwrap()),
            Some(seen) => {
                link.lose_replies(losses);
                unwrap_lease(store.take_over(TakeOverParams { request: next.clone(), from: seen }).await.unwrap())
            }
        };
        assert_eq!((lease.reserve_request.token, lease.attempt), (next.token, losses + 1));
        link.lose_replies(losses);
        assert!(matches!(
            store.settle(lease.unknown(UnknownCause::Broken)).await.unwrap(),
            SettleResult::Done { expires_at: None }
        ));
        seen = store.find(first.id).await.unwrap().as_ref().map(ExpectedRecord::from);

        link.lose_replies(losses);
        store.renew_lease(renewal(own_instance(), DAY)).await.unwrap();
        link.lose_replies(losses);
        store.ping().await.unwrap();
        assert_eq!(link.replies_to_lose(), 0);
    }
}

#[tokio::test]
async fn a_write_is_recognized_after_an_error_that_ended_its_session() {
    let world = StoreFixture::postgres().await;
    let link = DatabaseLink::to(world.database()).await;
    let store = store::open(&postgres::settings(&link.url)).await.unwrap();
    unwrap_lease(store.reserve(new_reserve_request("first")).await.unwrap());
    // The code alone, "out of memory", would mean that nothing was executed. A pooler may leave out the second field.
    for (number, fields) in
        ["SFATAL\0VFATAL\0C53200\0", "SPANIQUE\0VPANIC\0C53200\0", "SFATAL\0C53200\0", "SPANIC\0C53200\0"]
            .into_iter()
            .enumerate()
    {
        let key = new_reserve_request(&format!("k-{number}"));
        link.replace_replies(1, error_response(fields));
        let lease = unwrap_lease(store.reserve(key.clone()).await.unwrap());
        assert_eq!((lease.reserve_request.token, link.replies_to_lose()), (key.token, 0), "{fields:?}");
    }
    let refused = new_reserve_request("refused");
    link.replace_replies(1, error_response("SERROR\0VERROR\0C53200\0"));
    store.reserve(refused).await.unwrap_err();
}

/// The server's message that a statement has failed, with these fields (PostgreSQL, "Message Formats", ErrorResponse).
fn error_response(fields: &str) -> Vec<u8> {
    let body = format!("{fields}Mout of memory\0\0");
    [b"E".as_slice(), &(body.len() as u32 + 4).to_be_bytes(), body.as_bytes()].concat()
}

#[tokio::test]
async fn a_key_that_was_found_taken_stays_taken_when_no_later_try_comes_through() {
    let world = StoreFixture::postgres().await;
    let link = DatabaseLink::to(world.database()).await;
    let settings = StoreSettings { timeout: Duration::from_secs(3), ..postgres::settings(&link.url) };
    let store = store::open(&settings).await.unwrap();
    let others = new_reserve_request("k");
    world.reserve(&others).await;
    // The server says that the key has a record, and the record itself is lost on its way.
    link.hold_statements("-- find: ");
    let own = next_attempt_request(&others);
    let fault = async {
        link.statement_held().await;
        link.hold_connections();
        link.lose_replies(u32::MAX);
        link.release_statements();
    };
    let (reserved, ()) = timeout(TEST_TIMEOUT, join(store.reserve(own), fault)).await.unwrap();
    let error = reserved.unwrap_err();
    assert!(matches!(error, StoreError::Taken(_)), "{error:?}");
}

/// Waits until a statement of the store waits for a lock.
pub async fn waiting(database: &TestDatabase) {
    have_waiting(database, 1).await;
}

/// Waits until so many connections of the store have a statement that waits for a lock.
async fn have_waiting(database: &TestDatabase, connections: i64) {
    let client = database.client().await;
    eventually(async || {
        let blocked = "select count(*) from pg_stat_activity
          where datname = current_database() and application_name = 'oncegate' and wait_event_type = 'Lock'";
        number(&client, blocked).await >= connections
    })
    .await;
}

#[tokio::test]
async fn calls_to_a_locked_table_end_in_time_and_succeed_afterwards() {
    let world = StoreFixture::postgres().await;
    let settings = StoreSettings { timeout: Duration::from_millis(200), ..world.settings.clone() };
    let store = store::open(&settings).await.unwrap();
    let before = new_reserve_request("before");
    unwrap_lease(store.reserve(before.clone()).await.unwrap());

    let client = world.database().client().await;
    client.batch_execute("begin; lock table oncegate.keys in access exclusive mode").await.unwrap();
    for round in 0..5 {
        let start = Instant::now();
        let reserve_requests: Vec<ReserveRequest> =
            (0..20).map(|i| new_reserve_request(&format!("k-{round}-{i}"))).collect();
        let (reserved, (settled, renewed)) = join(
            join_all(reserve_requests.iter().map(|reserve_request| store.reserve(reserve_request.clone()))),
            join(store.settle(completion(&before, b"")), store.renew_lease(renewal(own_instance(), DAY))),
        )
        .await;
        // One after the other, they would take four seconds.
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        for result in reserved.iter().map(Result::as_ref).map(Result::err) {
            assert!(result.is_some(), "{reserved:?}");
        }
        assert!(settled.is_err(), "{settled:?}");
        // The lease has a table and a connection of its own.
        renewed.unwrap();
    }
    // However many callers gave up, the server has no more sessions than allowed.
    assert!(number(&client, CONNECTIONS).await <= 8);
    client.batch_execute("rollback").await.unwrap();

    // Some reservations were executed after their callers had given up. They can be listed and released.
    assert!(matches!(
        settle_again(store.as_ref(), &before).await,
        SettleResult::Done { .. } | SettleResult::Fenced(Some(_))
    ));
    eventually(async || {
        let in_flight = store
            .list_in_flight(ListInFlightParams { instance: own_instance(), older_than: Duration::ZERO })
            .await
            .unwrap();
        for attempt in &in_flight {
            drop(store.settle(Settlement::for_orphan(attempt.id, attempt.token, DAY)).await.unwrap());
        }
        in_flight.is_empty()
    })
    .await;
    for i in 0..20 {
        match store.reserve(new_reserve_request(&format!("k-0-{i}"))).await.unwrap() {
            ReserveResult::Fresh(_) => {}
            ReserveResult::Taken(record) => assert_eq!(record.state.name(), "retryable"),
        }
    }
}

async fn settle_again(store: &Store, reserve_request: &ReserveRequest) -> SettleResult {
    loop {
        if let Ok(settled) = store.settle(completion(reserve_request, b"")).await {
            return settled;
        }
    }
}

#[tokio::test]
async fn a_locked_row_delays_no_other_key() {
    let world = StoreFixture::postgres().await;
    let reserve_requests: Vec<ReserveRequest> = (0..50).map(|i| new_reserve_request(&format!("k-{i}"))).collect();
    join_all(reserve_requests.iter().map(|reserve_request| world.reserve(reserve_request))).await;
    let (held, retried) = (&reserve_requests[7], new_reserve_request("retried"));
    world.reserve(&retried).await;
    world.settle(settlement(&retried, AttemptOutcome::Retryable { ttl: DAY })).await;

    let client = world.database().client().await;
    client.batch_execute("begin").await.unwrap();
    let hold = "select 1 from oncegate.keys where id in ($1, $2) for update";
    client.query(hold, &[&held.id.as_bytes().as_slice(), &retried.id.as_bytes().as_slice()]).await.unwrap();

    let seen = ExpectedRecord::from(&world.find(&retried).await);
    let next = next_attempt_request(&retried);
    let (held_ends, taken_over) = (
        world.settle(completion(held, b"")),
        world.store().take_over(TakeOverParams { request: next.clone(), from: seen }),
    );
    let others = async {
        let start = Instant::now();
        join_all(
            reserve_requests
                .iter()
                .filter(|reserve_request| reserve_request.id != held.id)
                .map(|reserve_request| world.settle(completion(reserve_request, b""))),
        )
        .await;
        assert!(start.elapsed() < world.settings.timeout / 2, "{:?}", start.elapsed());
        assert_eq!(world.find(held).await.state.name(), "in_flight");
        client.batch_execute("rollback").await.unwrap();
    };
    let (((), taken_over), ()) = join(join(held_ends, taken_over), others).await;
    assert_eq!(unwrap_lease(taken_over.unwrap()).reserve_request.token, next.token);
    assert_eq!(world.find(held).await.state.name(), "completed");
}

#[tokio::test]
async fn a_locked_row_delays_no_lost_outcome_of_another_key() {
    let world = StoreFixture::postgres().await;
    let client = world.database().client().await;
    let mut lost = Vec::new();
    for key in ["held", "free"] {
        let first = new_reserve_request(key);
        world.reserve(&first).await;
        world.settle(settlement(&first, AttemptOutcome::Retryable { ttl: DAY })).await;
        let seen = ExpectedRecord::from(&world.find(&first).await);
        let taking_over = world.take_over(next_attempt_request(&first), seen).await;
        // As a failover leaves it that has lost the takeover.
        let back = "update oncegate.keys set token = $2, attempt = 1, state = 'retryable', settled_at = reserved_at,
          expires_at = reserved_at + 86400000 where id = $1";
        let (id, token) = (first.id.as_bytes().as_slice(), first.token.as_bytes().as_slice());
        client.execute(back, &[&id, &token]).await.unwrap();
        lost.push((first, unwrap_lease(taking_over)));
    }
    let [(held, held_lease), (free, free_lease)] = lost.try_into().unwrap();
    client.batch_execute("begin").await.unwrap();
    let lock = "select from oncegate.keys where id = $1 for no key update";
    client.query(lock, &[&held.id.as_bytes().as_slice()]).await.unwrap();
    let other = async {
        world.settle(free_lease.complete(response(b"paid"), DAY)).await;
        assert_eq!(world.find(&free).await.state.name(), "completed");
        assert_eq!(world.find(&held).await.state.name(), "retryable");
        client.batch_execute("rollback").await.unwrap();
    };
    join(world.settle(held_lease.complete(response(b"paid"), DAY)), other).await;
    assert_eq!(world.find(&held).await.state.name(), "completed");
}

#[tokio::test]
async fn a_settlement_of_a_locked_row_returns_the_lock_holders_result() {
    let world = StoreFixture::postgres().await;
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    let client = world.database().client().await;
    client.batch_execute("begin").await.unwrap();
    let complete = format!(
        "update oncegate.keys set state = 'completed', status = 299, fields = '\\x0d0a', body = null,
           settled_at = {NOW_MS}, expires_at = {NOW_MS} + 86400000"
    );
    client.batch_execute(&complete).await.unwrap();
    let commit = async {
        waiting(world.database()).await;
        client.batch_execute("commit").await.unwrap();
    };
    let (record, ()) = join(world.settle_late(completion(&reserve_request, b"")), commit).await;
    let KeyState::Completed(completed) = record.unwrap().state else { panic!() };
    assert_eq!(completed.response.status, 299);
}

#[tokio::test]
async fn a_row_that_the_server_rejects_fails_alone() {
    let world = StoreFixture::postgres().await;
    let reserve_requests: Vec<ReserveRequest> = (0..40)
        .map(|i| ReserveRequest {
            route: if i == 13 { "p\0y".into() } else { "pay".into() },
            ..new_reserve_request(&format!("k-{i}"))
        })
        .collect();
    let reservations =
        join_all(reserve_requests.iter().map(|reserve_request| world.store().reserve(reserve_request.clone()))).await;
    for (i, reservation) in reservations.into_iter().enumerate() {
        assert_eq!(reservation.is_err(), i == 13, "{i}: {reservation:?}");
    }
}

#[tokio::test]
async fn a_batch_that_the_server_aborts_for_a_conflict_is_sent_again_up_to_three_times() {
    let world = StoreFixture::postgres().await;
    let client = world.database().client().await;
    // A sequence counts the tries: it keeps what an aborted transaction took from it.
    let conflict = "create sequence tries; create sequence conflicts;
      create function conflict() returns trigger language plpgsql as $$ begin
        if nextval('public.tries') <= (select last_value from public.conflicts) then
          raise exception 'conflict' using errcode = 'serialization_failure';
        end if;
        return new; end $$;
      create trigger conflict before insert on oncegate.keys for each row execute function conflict()";
    client.batch_execute(conflict).await.unwrap();
    for (conflicts, succeeds) in [(2, true), (3, true), (4, false), (100, false)] {
        let count = format!("select setval('tries', 1, false), setval('conflicts', {conflicts})");
        client.batch_execute(&count).await.unwrap();
        let reserved = world.store().reserve(new_reserve_request(&format!("k-{conflicts}"))).await;
        assert_eq!(reserved.is_ok(), succeeds, "{conflicts}: {reserved:?}");
        assert_eq!(number(&client, "select last_value from tries").await, (conflicts + 1).min(4), "{conflicts}");
    }
}

/// The connections for reservations, of the eight that a store has here.
const TO_BEGIN: i64 = 2;

#[tokio::test]
async fn reservations_cannot_exhaust_the_connections_for_settlements() {
    let world = StoreFixture::postgres().await;
    let before = new_reserve_request("before");
    world.reserve(&before).await;
    // Inserts wait; updates do not.
    let client = world.database().client().await;
    client
        .batch_execute(
            "select pg_advisory_lock(1);
             create function wait() returns trigger language plpgsql as
               $$ begin perform pg_advisory_xact_lock_shared(1); return new; end $$;
             create trigger wait before insert on oncegate.keys for each row execute function wait()",
        )
        .await
        .unwrap();
    let mut reservations = Vec::new();
    for number in 1..=TO_BEGIN {
        let store = Arc::clone(world.store());
        reservations
            .push(tokio::spawn(async move { store.reserve(new_reserve_request(&format!("k-{number}"))).await }));
        have_waiting(world.database(), number).await;
    }
    let start = Instant::now();
    world.settle(completion(&before, b"")).await;
    world.store().renew_lease(renewal(own_instance(), DAY)).await.unwrap();
    world.store().ping().await.unwrap();
    assert!(start.elapsed() < world.settings.timeout / 2, "{:?}", start.elapsed());
    client.batch_execute("select pg_advisory_unlock(1)").await.unwrap();
    for reservation in reservations {
        unwrap_lease(reservation.await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn acknowledged_writes_survive_a_crash_even_with_synchronous_commit_off() {
    let cluster = Cluster::start("-c synchronous_commit=off -c wal_writer_delay=10s");
    let database = cluster.empty_database().await;
    let settings = postgres::settings(&database.url);
    let store = store::open(&settings).await.unwrap();
    let reserve_requests: Vec<ReserveRequest> = (0..4).map(|i| new_reserve_request(&format!("k-{i}"))).collect();
    store.renew_lease(renewal(own_instance(), DAY)).await.unwrap();
    for (i, reserve_request) in reserve_requests.iter().enumerate() {
        unwrap_lease(store.reserve(reserve_request.clone()).await.unwrap());
        if i > 0 {
            let outcome = settlement(reserve_request, AttemptOutcome::Retryable { ttl: DAY });
            assert!(matches!(store.settle(outcome).await.unwrap(), SettleResult::Done { .. }));
        }
        if i > 1 {
            let seen = ExpectedRecord::from(&store.find(reserve_request.id).await.unwrap().unwrap());
            unwrap_lease(
                store
                    .take_over(TakeOverParams { request: next_attempt_request(reserve_request), from: seen })
                    .await
                    .unwrap(),
            );
        }
        // Each kind of write is once the last one before a crash.
        cluster.crash();
        cluster.restart();
        let (state, attempt) = [("in_flight", 1), ("retryable", 1), ("in_flight", 2), ("in_flight", 2)][i];
        let record = store.find(reserve_request.id).await.unwrap().unwrap();
        assert_eq!((record.state.name(), record.attempt), (state, attempt));
    }
    assert_eq!(store.sweep(SweepParams { expiry: DAY, limit: 100, as_of: any_time() }).await.unwrap(), []);
}

#[tokio::test]
async fn a_reserved_key_is_distinguished_from_a_store_failure() {
    let world = StoreFixture::postgres().await;
    let (had, free) = (new_reserve_request("had"), new_reserve_request("free"));
    world.reserve(&had).await;
    let client = world.database().client().await;
    // A reservation does not read this column, and a lookup does.
    client.batch_execute("alter table oncegate.keys rename column body to body_away").await.unwrap();
    let error = world.store().reserve(next_attempt_request(&had)).await.unwrap_err();
    assert!(matches!(error, StoreError::Taken(_)), "{error:?}");
    world.reserve(&free).await;
    client.batch_execute("alter table oncegate.keys rename column body_away to body").await.unwrap();
    world.reserve_taken(&next_attempt_request(&had)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_restart_loses_no_settlement() {
    let cluster = Cluster::start("");
    let database = cluster.empty_database().await;
    let settings = StoreSettings { timeout: Duration::from_secs(20), ..postgres::settings(&database.url) };
    let store = store::open(&settings).await.unwrap();
    let before = new_reserve_request("before");
    unwrap_lease(store.reserve(before.clone()).await.unwrap());
    cluster.crash();
    // Nothing was sent, so the result is certain, and the error is returned at once.
    let start = Instant::now();
    let error = store.reserve(new_reserve_request("during")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(store.ping().await.is_err());
    assert!(start.elapsed() < settings.timeout / 2);
    let restart = async {
        // A call that began after the settlement has met the missing server.
        store.reserve(new_reserve_request("later")).await.unwrap_err();
        cluster.restart();
    };
    let (settled, ()) = join(store.settle(completion(&before, b"")), restart).await;
    assert!(matches!(settled.unwrap(), SettleResult::Done { .. }));
    unwrap_lease(store.reserve(new_reserve_request("after")).await.unwrap());
}

#[tokio::test]
async fn a_lease_is_renewed_soon_after_a_silently_dropped_connection() {
    let world = StoreFixture::postgres().await;
    let wire = Relay::to(world.database().address().parse().unwrap()).await;
    let url = world.database().at(&wire.address.to_string()).url;
    for max_connections in [6, 8] {
        let timeout = Duration::from_millis(500);
        let store = store::open(&StoreSettings { timeout, max_connections, ..postgres::settings(&url) }).await.unwrap();
        store.renew_lease(renewal(own_instance(), DAY)).await.unwrap();
        wire.drop_existing();
        let begun = Instant::now();
        assert!(store.renew_lease(renewal(own_instance(), DAY)).await.is_err());
        eventually(async || store.renew_lease(renewal(own_instance(), DAY)).await.is_ok()).await;
        // Twice a call's time limit, and slack for a busy machine.
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_cancelled_call_is_not_sent_when_its_connection_opens() {
    let world = StoreFixture::postgres().await;
    let mut link = DatabaseLink::to(world.database()).await;
    let store = store::open(&postgres::settings(&link.url)).await.unwrap();
    link.connection_attempted().await;
    link.hold_connections();
    let gone = new_reserve_request("gone");
    // The caller leaves while it waits for the connection, which then opens before the deadline.
    let leaving = tokio::spawn({
        let (store, gone) = (store.clone(), gone.clone());
        async move { store.reserve(gone).await }
    });
    link.connection_attempted().await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
    link.release_connections();
    // Later calls on the same connections are executed after it.
    for number in 0..50 {
        unwrap_lease(store.reserve(new_reserve_request(&format!("k-{number}"))).await.unwrap());
    }
    assert!(store.find(gone.id).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_commit_counts_once_it_is_durable() {
    let cluster = Cluster::start("");
    let database = cluster.empty_database().await;
    let settings = StoreSettings { timeout: Duration::from_secs(20), ..postgres::settings(&database.url) };
    let store = store::open(&settings).await.unwrap();
    let client = database.client().await;
    let reserve = |reserve_request: &ReserveRequest| {
        let (store, reserve_request) = (store.clone(), reserve_request.clone());
        tokio::spawn(async move { store.reserve(reserve_request).await })
    };
    let names = async |names: &str| commits_wait_for(names, &cluster, &client).await;
    let committing = COMMITTING;

    // The session is ended while its commit waits for a standby that does not exist: from then on the commit is
    // visible.
    names("nobody").await;
    let rows = "select count(*) from oncegate.keys";
    let waiting = async |key: &str| loop {
        // A session that has not read the new setting yet does not wait.
        let before = number(&client, rows).await;
        let reserve_request = new_reserve_request(&format!("{key}-{before}"));
        let reservation = reserve(&reserve_request);
        eventually(async || reservation.is_finished() || number(&client, committing).await == 1).await;
        if !reservation.is_finished() {
            return (reserve_request, reservation, before);
        }
    };
    let (cut_off, reservation, before) = waiting("cut-off").await;
    assert_eq!(number(&client, rows).await, before);
    client.batch_execute(KILL).await.unwrap();
    eventually(async || number(&client, rows).await == before + 1).await;
    // But the result is not returned until the standby must have it.
    eventually(async || number(&client, committing).await == 1).await;
    assert!(!reservation.is_finished());
    names("").await;
    let lease = unwrap_lease(reservation.await.unwrap().unwrap());
    assert_eq!((lease.reserve_request.token, lease.attempt), (cut_off.token, 1));

    // The server crashes during the commit.
    names("nobody").await;
    let (crashed, reservation, _) = waiting("crashed").await;
    client.batch_execute("alter system reset synchronous_standby_names").await.unwrap();
    tokio::task::block_in_place(|| {
        cluster.crash();
        cluster.restart();
    });
    assert_eq!(unwrap_lease(reservation.await.unwrap().unwrap()).reserve_request.token, crashed.token);
}

/// Makes commits wait for a standby of this name, which does not exist.
pub async fn commits_wait_for(name: &str, cluster: &Cluster, client: &Client) {
    cluster.configure(&format!("synchronous_standby_names = '{name}'")).await;
    let current = "select count(*) from pg_settings where name = 'synchronous_standby_names' and setting = ";
    eventually(async || number(client, &format!("{current}'{name}'")).await == 1).await;
}

pub const COMMITTING: &str = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";

#[tokio::test]
async fn a_reaper_keeps_the_leases_that_have_not_ended_by_its_own_clock() {
    let world = StoreFixture::postgres().await;
    let (store, client) = (world.store(), world.database().client().await);
    store.renew_lease(renewal(own_instance(), DAY)).await.unwrap();
    // As if the server's clock had been set forward by three days since.
    client.batch_execute("update oncegate.instances set lease_until = lease_until - 4 * 86400000").await.unwrap();
    let own_clock = ReapScope { as_of: SystemTime::now() - 3 * DAY, settled_since: SystemTime::UNIX_EPOCH };
    for (scope, left) in [(own_clock, 1), (all_records(), 0)] {
        store.reap(ReapParams { limit: 10, scope }).await.unwrap();
        assert_eq!(number(&client, "select count(*) from oncegate.instances").await, left);
    }
}
