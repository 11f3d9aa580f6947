//! PgBouncer in transaction mode between Oncegate and its server. The whole contract is held through it, too.

use std::time::Duration;

use futures_util::future::{join, join_all};
use oncegate::store::{self, Settings, Settled, StoreError};

use crate::harness::pgbouncer::{self, Bouncer};
use crate::harness::postgres::{self, Cluster};
use crate::harness::world::{ask, completion, fresh};
use crate::harness::{PATIENCE, Store, World, eventually};
use crate::store_postgres::faults::{KILL, waiting};

/// What can happen to a statement that is under way.
#[derive(Clone, Copy, Debug)]
enum Fault {
    ConnectionsDropped,
    PoolerKilled,
    SessionKilled,
}

#[tokio::test]
async fn what_was_under_way_when_the_pooler_lost_it_is_done_again_or_found() {
    let database = postgres::database().await;
    let Some(mut bouncer) = Bouncer::before(&database).await else { return };
    let store = store::open(&postgres::settings(&bouncer.to(&database).url)).await.unwrap();
    let client = database.client().await;
    for fault in [Fault::ConnectionsDropped, Fault::PoolerKilled, Fault::SessionKilled] {
        let ask = ask(&format!("{fault:?}"));
        for settles in [false, true] {
            // What PgBouncer has left goes on waiting in its session, and is carried out with what was sent again.
            client.batch_execute("begin; lock table oncegate.keys in access exclusive mode").await.unwrap();
            let meddler = async {
                waiting(&database).await;
                match fault {
                    Fault::ConnectionsDropped => bouncer.drop_connections(&database).await,
                    Fault::PoolerKilled => bouncer.restart().await,
                    Fault::SessionKilled => database.client().await.batch_execute(KILL).await.unwrap(),
                }
                client.batch_execute("rollback").await.unwrap();
            };
            if settles {
                let (settled, ()) = join(store.settle(completion(&ask, b"paid")), meddler).await;
                let settled = settled.unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
                assert!(matches!(settled, Settled::Done { expires_at: Some(_) }), "{fault:?}: {settled:?}");
            } else {
                let (reservation, ()) = join(store.reserve(ask.clone()), meddler).await;
                let lease = fresh(reservation.unwrap_or_else(|error| panic!("{fault:?}: {error:?}")));
                assert_eq!((lease.ask.token, lease.attempt), (ask.token, 1), "{fault:?}");
            }
        }
        assert_eq!(store.find(ask.id).await.unwrap().unwrap().state.name(), "completed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_without_its_server_fails_calls_in_time_and_works_when_it_is_back() {
    let cluster = tokio::task::block_in_place(|| Cluster::start(""));
    let database = cluster.empty_database().await;
    let Some(bouncer) = Bouncer::before(&database).await else { return };
    let settings = Settings { timeout: Duration::from_millis(500), ..postgres::settings(&bouncer.to(&database).url) };
    let store = store::open(&settings).await.unwrap();
    fresh(store.reserve(ask("before")).await.unwrap());
    tokio::task::block_in_place(|| cluster.crash());
    let begun = tokio::time::Instant::now();
    let error = store.reserve(ask("during")).await.unwrap_err();
    assert!(matches!(error, StoreError::TimedOut | StoreError::Unavailable(_)), "{error:?}");
    store.ping().await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    tokio::task::block_in_place(|| cluster.restart());
    eventually(PATIENCE, async || store.ping().await.ok()).await;
    fresh(store.reserve(ask("after")).await.unwrap());
}

#[tokio::test]
async fn of_duplicates_at_two_proxies_behind_it_one_is_executed() {
    let database = postgres::database().await;
    let Some(bouncer) = pgbouncer::shared(&database).await else { return };
    let through = bouncer.to(&database).url;
    let world = World::with(Store::Postgres(database), |setup| setup.through(&through)).await;
    let other = world.setup.start().await;
    let client = async |number: usize| {
        let key = format!("k-{}", number % 40);
        let proxy = if number.is_multiple_of(3) { &other } else { &world.proxy };
        let request = proxy.post("/pay").key(&key).json(r#"{"amount":10,"currency":"EUR"}"#);
        let done = async || Some(request.send().await).filter(|answer| answer.status != 409);
        let answer = eventually(PATIENCE, done).await;
        (key, answer)
    };
    let answers = join_all((0..200).map(client)).await;
    assert_eq!(world.upstream.calls(), 40);
    for (key, answer) in &answers {
        assert_eq!(answer.status, 201, "{key}: {}", answer.text());
        let replay = other.post("/pay").key(key).json(r#"{"amount":10,"currency":"EUR"}"#).send().await;
        assert_eq!((replay.told(), &replay.body), (Some("replayed"), &answer.body), "{key}");
    }
    let executed = answers.iter().filter(|(_, answer)| answer.told() == Some("executed")).count();
    assert_eq!((executed, world.upstream.calls()), (40, 40));
}
