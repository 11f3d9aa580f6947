//! Several servers of the URL that take writes at the same time: a standby was promoted,
//! and its former primary lives on.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::{join, join_all};
use oncegate_store::{self as store, ListInFlightParams, OpenError, PrimaryCheck, StoreError};
use tokio::io::AsyncReadExt;
use tokio::task::{block_in_place, spawn_blocking};
use tokio_postgres::Client;

use super::failover::Pair;
use crate::store_postgres::{CONNECTIONS, number};
use harness::database_link::DatabaseLink;
use harness::full_listener::FullListener;
use harness::metrics::Metrics;
use harness::postgres::{self, Cluster, TestDatabase};
use harness::store_fixture::{new_reserve_request, own_instance, unwrap_lease};
use harness::{Answer, Hold, Proxy, Setup, Store, TEST_TIMEOUT, World, eventually};

const CLIENTS: usize = 4;

const BOTH_WRITE: &str = "several servers of the store take writes";

/// The connections to the two servers of a pair.
async fn sides(pair: &Pair) -> (Client, Client) {
    let (former, newest) = (pair.primary.same(&pair.database), pair.standby.same(&pair.database));
    (former.client().await, newest.client().await)
}

/// The value of `oncegate_store_primaries`.
async fn primaries(proxy: &Proxy) -> u32 {
    Metrics::of(proxy).await.get("oncegate_store_primaries") as u32
}

async fn has(client: &Client, rows: i64, condition: &str) {
    let sql = format!("select count(*) from oncegate.keys where {condition}");
    eventually(TEST_TIMEOUT, async || (number(client, &sql).await == rows).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_reserved_at_a_former_primary_once_a_heartbeat_has_seen_both() {
    let pair = Pair::asynchronous().await;
    let world = World::with(Store::Postgres(pair.database.clone()), Setup::short_leases).await;
    let (done, stop) = (Cell::new(0), Cell::new(false));
    let client = async |client: usize| {
        for round in 0.. {
            if stop.get() {
                break;
            }
            let answer = world.pay(&format!("k-{client}-{round}")).send().await;
            match (answer.status, answer.oncegate_status()) {
                (201, Some("executed")) => done.set(done.get() + 1),
                (503, Some("rejected")) => {}
                // A settlement that was cut off is repeated at the other server.
                (201, Some("unstored")) => {}
                other => panic!("{other:?} {}", answer.text()),
            }
        }
    };
    let so_many_more = async |more: i64| {
        let before = done.get();
        eventually(TEST_TIMEOUT, async || (done.get() >= before + more).then_some(())).await;
    };
    let story = async {
        so_many_more(50).await;
        // The first heartbeat may come after the first requests.
        eventually(TEST_TIMEOUT, async || (primaries(&world.proxy).await == 1).then_some(())).await;
        block_in_place(|| pair.standby.promote());
        let seen = world.proxy.wait_for_log(BOTH_WRITE).await["timestamp"].as_str().unwrap().to_owned();
        so_many_more(50).await;
        stop.set(true);
        seen
    };
    let (_, seen) = join(join_all((0..CLIENTS).map(client)), story).await;

    let (former, newest) = sides(&pair).await;
    let after = format!(
        "select key from oncegate.keys
          where greatest(reserved_at, settled_at) > extract(epoch from '{seen}'::timestamptz) * 1000"
    );
    let last = former.query(&after, &[]).await.unwrap();
    assert!(last.len() <= CLIENTS, "a client's last statement may have been on its way: {last:?}");
    for row in last {
        let key = String::from_utf8(row.get(0)).unwrap();
        let known = newest.query("select state from oncegate.keys where key = $1", &[&key.as_bytes()]).await.unwrap();
        let states: Vec<&str> = known.iter().map(|row| row.get(0)).collect();
        let executed = world.upstream.executed_for(&key);
        // A reservation that was repeated at the newest one may have been released there: its
        // lease was suspended meanwhile.
        let is_released = executed == 0 && states == ["retryable"];
        assert!(is_released || executed == known.len(), "{key}: {executed} executions, at the newest {states:?}");
    }
    assert!(newest.query(&after, &[]).await.unwrap().len() >= 50);
    eventually(TEST_TIMEOUT, async || (number(&former, CONNECTIONS).await == 1).then_some(())).await;
    assert_eq!(primaries(&world.proxy).await, 2, "the look's own connection stays");
    block_in_place(|| pair.primary.crash());
    world.proxy.wait_for_log("at most one server of the store takes writes").await;
    assert_eq!(primaries(&world.proxy).await, 1);
    assert_eq!(world.pay("later").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_reserved_at_a_former_primary_and_not_sent_yet_is_not_sent() {
    let pair = Pair::asynchronous().await;
    let service = FullListener::start().await;
    let proxy = Proxy::on(&pair.database.url)
        .upstream(service.address)
        .defaults("connect_timeout = \"20s\"")
        // Longer than this test: the time for the first byte is not its subject.
        .store("timeout = \"60s\"")
        .short_leases()
        .start()
        .await;
    let first = proxy.post("/pay").key("k-1").body("x").spawn();
    service.client_is_connecting().await;
    block_in_place(|| pair.standby.promote());
    proxy.wait_for_log(BOTH_WRITE).await;
    eventually(TEST_TIMEOUT, async || (proxy.readyz().await.0 == 200).then_some(())).await;
    let mut connection = service.accept_client().await;
    assert_eq!(first.await.unwrap().unwrap().outcome(), (503, "store-unavailable".to_owned()));
    proxy.kill9().await;
    let mut sent = Vec::new();
    connection.read_to_end(&mut sent).await.unwrap();
    assert!(sent.is_empty(), "{}", String::from_utf8_lossy(&sent));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_that_waits_at_a_former_primary_is_stored_at_the_newest() {
    let pair = Pair::asynchronous().await;
    let timeout = "timeout = \"60s\"";
    let world = World::with(Store::Postgres(pair.database.clone()), |setup| setup.short_leases().store(timeout)).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let mut locker = pair.primary.same(&pair.database).client().await;
    let lock = locker.transaction().await.unwrap();
    lock.execute("select from oncegate.keys for update", &[]).await.unwrap();
    hold.release();
    let (former, newest) = sides(&pair).await;
    let waiting = "select count(*) from pg_stat_activity where query like '-- settle%'";
    eventually(TEST_TIMEOUT, async || (number(&former, waiting).await == 1).then_some(())).await;
    block_in_place(|| pair.standby.promote());
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.status, first.oncegate_status()), (201, Some("executed")));
    has(&newest, 1, "state = 'completed'").await;
    drop(lock);
    has(&former, 1, "state = 'in_flight'").await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_starts_beside_two_primaries_uses_the_newest() {
    let pair = Pair::asynchronous().await;
    drop(store::open(&postgres::settings(&pair.database.url)).await.unwrap());
    pair.standby_has(0, "true").await;
    block_in_place(|| pair.standby.promote());
    let store = store::open(&postgres::settings(&pair.database.url)).await.unwrap();
    unwrap_lease(store.reserve(new_reserve_request("k-1")).await.unwrap());
    let (former, newest) = sides(&pair).await;
    has(&newest, 1, "true").await;
    has(&former, 0, "true").await;
    assert_eq!(store.check_primaries().await, PrimaryCheck { primaries: 2, has_changed: false });
    // It stays with the newest timeline while that server is away.
    block_in_place(|| pair.standby.crash());
    assert!(refusal(&store).await.contains("a former primary: it writes timeline 1, and timeline 2 exists"));
    has(&former, 0, "true").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_has_reached_a_newer_primary_says_so_before_a_heartbeat_asks() {
    let pair = Pair::asynchronous().await;
    let store = store::open(&postgres::settings(&pair.database.url)).await.unwrap();
    let key = new_reserve_request("k-1");
    let id = key.id;
    unwrap_lease(store.reserve(key).await.unwrap());
    pair.standby_has(1, "true").await;
    assert!(!store.has_changed_primary());
    block_in_place(|| {
        pair.primary.crash();
        pair.standby.promote();
    });
    eventually(TEST_TIMEOUT, async || store.find(id).await.ok()).await.expect("the standby has the key");
    assert!(store.has_changed_primary());
    assert_eq!(store.check_primaries().await, PrimaryCheck { primaries: 1, has_changed: true });
    assert!(!store.has_changed_primary());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_primaries_on_one_timeline_are_both_refused() {
    let pair = Pair::asynchronous().await;
    let other = block_in_place(|| pair.primary.standby());
    let three = pair.database.at(&format!("{},{}", pair.database.address(), other.same(&pair.database).address()));
    let store = store::open(&postgres::settings(&three.url)).await.unwrap();
    unwrap_lease(store.reserve(new_reserve_request("k-1")).await.unwrap());
    pair.standby_has(1, "true").await;
    block_in_place(|| {
        pair.primary.crash();
        pair.standby.promote();
        other.promote();
    });
    eventually(TEST_TIMEOUT, async || (store.check_primaries().await.primaries == 2).then_some(())).await;
    let error = refusal(&store).await;
    assert!(error.contains("take writes on the same timeline 2"), "{error}");
    block_in_place(|| other.crash());
    assert_eq!(store.check_primaries().await.primaries, 1);
    unwrap_lease(store.reserve(new_reserve_request("k-2")).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn primaries_of_different_clusters_are_refused() {
    let one = postgres::database().await;
    let other = block_in_place(|| Cluster::start(""));
    let create = format!("create database {}", one.name);
    other.empty_database().await.client().await.batch_execute(&create).await.unwrap();
    let link = DatabaseLink::to(&other.same(&one)).await;
    let linked = TestDatabase { url: link.url.clone(), name: one.name.clone() };
    let both = one.at(&format!("{},{}", one.address(), linked.address()));
    let error = store::open(&postgres::settings(&both.url)).await.map(drop).unwrap_err();
    let OpenError::Away(why) = error else { panic!("{error:?}") };
    assert!(why.to_string().contains("different database clusters (system identifiers "), "{why}");

    // The other one appears later.
    link.hold_connections();
    let store = store::open(&postgres::settings(&both.url)).await.unwrap();
    unwrap_lease(store.reserve(new_reserve_request("k-1")).await.unwrap());
    link.release_connections();
    assert!(!store.has_changed_primary());
    assert_eq!(store.check_primaries().await, PrimaryCheck { primaries: 2, has_changed: true });
    let error = refusal(&store).await;
    assert!(error.contains("different database clusters"), "{error}");
    block_in_place(|| other.crash());
    assert_eq!(store.check_primaries().await.primaries, 1);
    unwrap_lease(store.reserve(new_reserve_request("k-2")).await.unwrap());
}

#[tokio::test]
async fn one_server_under_two_addresses_is_one_primary() {
    let database = postgres::database().await;
    let link = DatabaseLink::to(&database).await;
    let linked = TestDatabase { url: link.url.clone(), name: database.name.clone() };
    let both = database.at(&format!("{},{}", database.address(), linked.address()));
    let store = store::open(&postgres::settings(&both.url)).await.unwrap();
    assert_eq!(store.check_primaries().await, PrimaryCheck { primaries: 1, has_changed: false });
    let single = store::open(&postgres::settings(&database.url)).await.unwrap();
    assert_eq!(single.check_primaries().await.primaries, 0, "a single host is compared with none");
    // The looks keep their connections.
    let client = database.client().await;
    let before = number(&client, CONNECTIONS).await;
    for _ in 0..5 {
        store.check_primaries().await;
    }
    assert_eq!(number(&client, CONNECTIONS).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_special_rights_can_tell_the_primaries_apart() {
    let pair = Pair::asynchronous().await;
    let (former, _) = sides(&pair).await;
    let grant = format!("create role serving login; grant create on database {} to serving", pair.database.name);
    former.batch_execute(&grant).await.unwrap();
    let url = pair.database.url.replace("postgres@", "serving@");
    let store = store::open(&postgres::settings(&url)).await.unwrap();
    assert_eq!(store.check_primaries().await, PrimaryCheck { primaries: 1, has_changed: false });
    block_in_place(|| pair.standby.promote());
    assert_eq!(store.check_primaries().await, PrimaryCheck { primaries: 2, has_changed: true });
    unwrap_lease(store.reserve(new_reserve_request("k-1")).await.unwrap());
    assert!(
        store
            .list_in_flight(ListInFlightParams { instance: own_instance(), older_than: Duration::ZERO })
            .await
            .unwrap()
            .len()
            == 1
    );
}

#[tokio::test]
async fn a_server_that_does_not_say_which_one_it_is_serves_uncompared() {
    let cluster = spawn_blocking(|| Cluster::start("")).await.unwrap();
    let database = cluster.empty_database().await;
    let revoke = format!(
        "revoke execute on function pg_control_system() from public;
         create role serving login;
         grant create on database {} to serving",
        database.name
    );
    database.client().await.batch_execute(&revoke).await.unwrap();
    let both = database.at(&format!("{0},{0}", database.address()));
    let store = store::open(&postgres::settings(&both.url.replace("postgres@", "serving@"))).await.unwrap();
    assert_eq!(store.check_primaries().await, PrimaryCheck { primaries: 0, has_changed: false });
    unwrap_lease(store.reserve(new_reserve_request("k-1")).await.unwrap());
}

/// The causes for which the store reserves nothing. On a slow machine a call's time may be over before a server has
/// said why.
async fn refusal(store: &store::Store) -> String {
    let refused = async || match store.reserve(new_reserve_request("k-2")).await {
        Err(StoreError::TimedOut) => None,
        refused => Some(cause(refused.unwrap_err())),
    };
    eventually(TEST_TIMEOUT, refused).await
}

/// The error's causes.
fn cause(error: StoreError) -> String {
    let StoreError::Unavailable(cause) = error else { panic!("{error:?}") };
    cause.to_string()
}
