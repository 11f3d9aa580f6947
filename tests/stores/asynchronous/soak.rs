//! Thousands of requests at two instances that are killed again and again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::*;
use harness::postgres::TestDatabase;

/// The number in every test run, some seconds' work. `make soak` sets more.
const REQUESTS: usize = 4_000;

/// The number of concurrent clients.
const CLIENTS: usize = 16;

/// The interval between two kills, of one instance and then the other.
const KILL_EVERY: Duration = Duration::from_millis(1_500);

/// The interval between two counts of the keys.
const COUNT_EVERY: Duration = Duration::from_millis(100);

/// The pause of a client that nobody has accepted.
const CLIENT_PAUSE: Duration = Duration::from_millis(20);

/// Sends a request until somebody has accepted it, to whoever lives.
async fn until_accepted(
    one: &watch::Receiver<std::net::SocketAddr>,
    other: &watch::Receiver<std::net::SocketAddr>,
    key: &str,
) {
    for turn in 0.. {
        let address = *if turn % 2 == 0 { one.borrow() } else { other.borrow() };
        let client = harness::Client { address };
        let sent = client.post("/pay").key(key).json("{\"amount\":10}").try_send().await;
        match sent {
            // A client that gets 201 was accepted earlier, by an instance that died before its answer.
            Ok(response) if [201, 202].contains(&response.status) => return,
            Ok(response) => assert_eq!(response.status, 503, "{}", response.text()),
            Err(_) => {}
        }
        assert!(turn < 2_000, "{key} is never accepted");
        // Time and not an event: the pace of the load.
        sleep(CLIENT_PAUSE).await;
    }
}

async fn states(database: &TestDatabase) -> HashMap<String, i64> {
    let rows = database.client().await.query("select state, count(*) from oncegate.keys group by state", &[]).await;
    rows.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_requests_killed_at_random_are_delivered_once_or_held_as_unknown() {
    let requests = std::env::var("ONCEGATE_QUEUE_REQUESTS").map_or(REQUESTS, |number| number.parse().unwrap());
    let world = hasty(Store::postgres().await, "retry = { base = \"100ms\", cap = \"1s\" }").await;
    let Store::Postgres(database) = &world.store else { unreachable!("this test is about PostgreSQL") };
    let World { upstream, proxy, setup, .. } = &world;
    let mut instances = [None, Some(setup.start().await)];
    let first = watch::Sender::new(proxy.listen);
    let second = watch::Sender::new(instances[1].as_ref().unwrap().listen);
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (one, other, next) = (first.subscribe(), second.subscribe(), Arc::clone(&next));
        clients.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return;
                }
                until_accepted(&one, &other, &format!("k-{number:05}")).await;
            }
        });
    }
    let (mut kills, mut killed_at) = (0, Instant::now());
    loop {
        let settled = {
            let states = states(database).await;
            let left = ["queued", "in_flight"].map(|state| states.get(state).copied().unwrap_or_default());
            left == [0, 0] && states.values().sum::<i64>() == requests as i64
        };
        if settled {
            break;
        }
        if killed_at.elapsed() >= KILL_EVERY {
            let victim = kills % 2;
            match &instances[victim] {
                Some(instance) => instance.kill9().await,
                None => proxy.kill9().await,
            }
            let started = setup.start().await;
            [&first, &second][victim].send_replace(started.listen);
            instances[victim] = Some(started);
            (kills, killed_at) = (kills + 1, Instant::now());
        }
        // Time and not an event: the load lasts until all is delivered, and each count costs some of it.
        sleep(COUNT_EVERY).await;
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let mut executed: HashMap<String, Vec<usize>> = HashMap::new();
    for (operation_path, call) in upstream.executed().iter().enumerate() {
        executed.entry(call.field("idempotency-key").unwrap().to_owned()).or_default().push(operation_path + 1);
    }
    let rows = database.client().await.query("select key, state, body from oncegate.keys", &[]).await.unwrap();
    let (mut completed, mut unknown) = (0, 0);
    for row in &rows {
        let key = String::from_utf8(row.get(0)).unwrap();
        let effects = executed.remove(&key).unwrap_or_default();
        assert!(effects.len() <= 1, "{key} was executed {} times", effects.len());
        match row.get(1) {
            "completed" => {
                let told = String::from_utf8(row.get(2)).unwrap();
                assert_eq!(told, format!("effect {}", effects[0]), "{key}");
                completed += 1;
            }
            "unknown" => unknown += 1,
            state => panic!("{key} is {state}"),
        }
    }
    println!("{requests} requests, {kills} kills: {completed} delivered, {unknown} held as unknown");
    assert!(executed.is_empty(), "executed and not accepted: {executed:?}");
    assert_eq!((rows.len(), completed + unknown), (requests, requests));
    assert!(completed * 10 >= requests * 9 && kills >= 1, "{kills} kills, {completed} delivered");
}
