//! Hundreds of duplicates that wait at once. `ONCEGATE_WAITERS` sets their number, for measurements.

use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use tokio::task::JoinSet;

use harness::metrics::{Metrics, peak_memory};
use harness::{Answer, Client, Exchange, Hold, Proxy, Store, TEST_TIMEOUT, World, eventually, h2, route};

/// The body of all requests.
const BODY: &str = r#"{"amount":10,"currency":"EUR"}"#;
/// The streams that one connection carries.
const STREAMS: usize = 100;

/// The number of waiting duplicates, on two instances together.
fn waiters() -> usize {
    std::env::var("ONCEGATE_WAITERS").map_or(500, |count| count.parse().unwrap())
}

/// The duplicates that come at once: the memory of their looks at the store, which ends before they wait, is not that
/// of waiting.
const ARRIVING: usize = 25;

/// Waits long enough for any number of duplicates on any machine.
const PATIENT: &str = "in_flight = \"wait\"\nwait_timeout = \"100s\"\nupstream_timeout = \"110s\"";

/// A world that waits for as long. Its store is busy, not away.
async fn patient(store: Store) -> World {
    let lines = "timeout = \"60s\"\nlease = { heartbeat = \"2s\", expiry = \"60s\" }";
    World::with(store, |setup| setup.store(lines).route(&route("pay", PATIENT))).await
}

/// Holds the first attempt of this key. Its response is read after the release.
async fn hold(world: &World, key: &str, hold: &Hold) -> Exchange {
    world.upstream.then(Answer::status(201).hold(hold));
    let before = world.upstream.executed().len();
    let first = world.pay(key).open().await.unwrap();
    world.upstream.wait_for_executed(before + 1).await;
    first
}

/// A duplicate over HTTP/2.
async fn pay(mut sender: SendRequest<Full<Bytes>>, key: String) -> (u16, String, Bytes) {
    let request = http::Request::post("http://shop.example/pay")
        .header("authorization", "Bearer test")
        .header("content-type", "application/json")
        .header("idempotency-key", key)
        .body(Full::from(BODY))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.headers().get("oncegate-status").map_or("", |status| status.to_str().unwrap()).to_owned();
    (response.status().as_u16(), status, response.into_body().collect().await.unwrap().to_bytes())
}

/// Duplicates that wait at one proxy.
#[derive(Default)]
struct Waiters {
    answers: JoinSet<(u16, String, Bytes)>,
    /// Those over HTTP/1.1. Their responses are read after the release.
    open: Vec<Exchange>,
}

impl Waiters {
    /// Sends a duplicate of each key, and returns when the proxy has looked up all of them.
    async fn send(&mut self, proxy: &Proxy, keys: &[String]) {
        for keys in keys.chunks(STREAMS) {
            let sender = h2::connect_to(proxy.client()).await;
            for keys in keys.chunks(ARRIVING) {
                let before = in_flight(proxy).await;
                for key in keys {
                    self.answers.spawn(pay(sender.clone(), key.clone()));
                }
                looked_up(proxy, before + keys.len() as f64).await;
            }
        }
    }

    /// Like [`Self::send`] over HTTP/1.1, where each duplicate has a connection of its own.
    async fn send_alone(&mut self, proxy: &Proxy, keys: &[String]) {
        for keys in keys.chunks(ARRIVING) {
            let before = in_flight(proxy).await;
            for key in keys {
                self.open.push(proxy.post("/pay").key(key).json(BODY).open().await.unwrap());
            }
            looked_up(proxy, before + keys.len() as f64).await;
        }
    }

    /// Waits for the answers, which all are replays of this body.
    async fn get(mut self, body: &str) {
        for mut exchange in self.open {
            self.answers.spawn(async move {
                let response = exchange.response().await;
                (response.status, response.oncegate_status().unwrap_or_default().to_owned(), response.body.into())
            });
        }
        while let Some(answer) = self.answers.join_next().await {
            assert_eq!(answer.unwrap(), (201, "replayed".to_owned(), Bytes::from(body.to_owned())));
        }
    }
}

/// Waits until this many requests have found their key's attempt running.
async fn looked_up(proxy: &Proxy, expected: f64) {
    eventually(6 * TEST_TIMEOUT, async || (in_flight(proxy).await >= expected).then_some(())).await;
}

/// The requests that have found their key's attempt running.
async fn in_flight(proxy: &Proxy) -> f64 {
    Metrics::of(proxy).await.get("oncegate_reservations_total{route=\"pay\",result=\"in_flight\"}")
}

/// The proxy's looks at keys in the store.
async fn looks(proxy: &Proxy) -> f64 {
    Metrics::of(proxy).await.get("oncegate_store_duration_seconds_count{op=\"find\"}")
}

/// The protocol of the waiting duplicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

#[tokio::test]
async fn waiters_of_one_key_on_two_instances_cost_one_look_a_second_and_leave_together() {
    wait_on_two_instances(Protocol::Http2).await;
}

#[tokio::test]
async fn waiters_over_http_1_1_do_so_too() {
    wait_on_two_instances(Protocol::Http1).await;
}

async fn wait_on_two_instances(protocol: Protocol) {
    let world = patient(Store::postgres().await).await;
    let other = world.setup.start().await;
    for proxy in [&world.proxy, &other] {
        assert_eq!(proxy.post("/pay").key("before").json(BODY).send().await.status, 201);
    }
    let (released, keys) = (Hold::new(), vec!["k-1".to_owned(); waiters() / 2]);
    let mut first = hold(&world, "k-1", &released).await;
    let memory = [peak_memory(&world.proxy), peak_memory(&other)];
    let (mut here, mut there) = (Waiters::default(), Waiters::default());
    let (before, began) = (looks(&other).await, Instant::now());
    for (waiters, proxy) in [(&mut here, &world.proxy), (&mut there, &other)] {
        match protocol {
            Protocol::Http1 => waiters.send_alone(proxy, &keys).await,
            Protocol::Http2 => waiters.send(proxy, &keys).await,
        }
    }
    eprintln!("{protocol:?}: {} waiters wait after {:?}", 2 * keys.len(), began.elapsed());

    // After five looks in the first two seconds the pauses are one second long.
    eventually(TEST_TIMEOUT, async || (looks(&other).await >= before + 6.0).then_some(())).await;
    // The time begins before the count, so that a scrape that takes long does not shorten it.
    let began = Instant::now();
    let (before, local) = (looks(&other).await, looks(&world.proxy).await);
    eventually(TEST_TIMEOUT, async || (looks(&other).await >= before + 3.0).then_some(())).await;
    let seconds = began.elapsed().as_secs_f64();
    eprintln!("three looks in {seconds:.1} s");
    assert!(seconds > 1.9, "three looks in {seconds:.1} s");
    assert_eq!(looks(&world.proxy).await, local, "the attempt's own instance asks nobody");

    released.release();
    let began = Instant::now();
    let body = first.response().await.text();
    here.get(&body).await;
    let here = began.elapsed();
    there.get(&body).await;
    eprintln!("all have left after {here:?} at the attempt's instance, after {:?} at the other", began.elapsed());
    assert!(began.elapsed() < TEST_TIMEOUT);
    let grown = [peak_memory(&world.proxy) - memory[0], peak_memory(&other) - memory[1]];
    eprintln!("they took {} and {} KiB", grown[0] / 1024, grown[1] / 1024);
    // A connection over HTTP/1.1 has two buffers of 8 KiB. Some memory does not depend on the number of waiters, and
    // hosts differ.
    let most = match protocol {
        Protocol::Http1 => (12 << 20) + waiters() as u64 * (28 << 10),
        Protocol::Http2 => (waiters() as u64 * (64 << 20) / 5000).max(16 << 20),
    };
    assert!(grown.iter().sum::<u64>() < most, "{grown:?}");
    assert_eq!(world.upstream.executed_for("k-1"), 1);
}

#[tokio::test]
async fn waiters_of_many_keys_are_looked_up_together() {
    const KEYS: usize = 100;
    let store = Store::postgres().await;
    let Store::Postgres(database) = &store else { panic!("this test is about PostgreSQL") };
    let client = database.client().await;
    let world = patient(store).await;
    let other = world.setup.start().await;
    let (released, keys) = (Hold::new(), (0..KEYS).map(|number| format!("k-{number}")).collect::<Vec<_>>());
    world.upstream.answer_all(Answer::status(201).hold(&released));
    let (mut firsts, mut waiters) = (JoinSet::new(), Waiters::default());
    let sender = h2::connect(&world).await;
    for key in &keys {
        firsts.spawn(pay(sender.clone(), key.clone()));
    }
    world.upstream.wait_for_executed(KEYS).await;
    // They come one after the other, so that each has its own rhythm unless the instance gives them one.
    for key in &keys {
        waiters.send(&other, std::slice::from_ref(key)).await;
    }
    let transactions = async || {
        let sql = "select xact_commit from pg_stat_database where datname = current_database()";
        client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0)
    };
    let (before, began) = (looks(&other).await, transactions().await);
    eventually(TEST_TIMEOUT, async || (looks(&other).await >= before + 5.0 * KEYS as f64).then_some(())).await;
    let used = transactions().await - began;
    eprintln!("{used} transactions for five looks at each of {KEYS} keys");
    // Each look alone would be one.
    assert!(used < 3 * KEYS as i64, "{used} transactions");
    released.release();
    for (expected, mut answers) in [("executed", firsts), ("replayed", waiters.answers)] {
        while let Some(answer) = answers.join_next().await {
            let (status, outcome, _) = answer.unwrap();
            assert_eq!((status, &*outcome), (201, expected));
        }
    }
    assert_eq!(world.upstream.executed().len(), KEYS);
}

/// The connections and the bytes of bodies that a proxy holds for clients.
async fn held(proxy: &Proxy) -> (f64, f64) {
    let metrics = Metrics::of(proxy).await;
    (metrics.get("oncegate_connections"), metrics.get("oncegate_held_body_bytes"))
}

#[tokio::test]
async fn waiters_that_leave_free_their_places_at_once_and_the_others_wait_on() {
    let world = patient(Store::sqlite()).await;
    let released = Hold::new();
    let mut first = hold(&world, "k-1", &released).await;
    let alone = held(&world.proxy).await;
    let mut staying = Waiters::default();
    staying.send(&world.proxy, &vec!["k-1".to_owned(); 20]).await;
    let with_staying = held(&world.proxy).await;
    assert!(with_staying.1 > alone.1);
    // Over HTTP/1.1 each has a connection, over HTTP/2 all share one.
    let mut leaving = Vec::new();
    for _ in 0..20 {
        leaving.push(world.pay("k-1").open().await.unwrap());
    }
    let mut resetting = Waiters::default();
    resetting.send(&world.proxy, &vec!["k-1".to_owned(); 20]).await;
    eventually(TEST_TIMEOUT, async || (in_flight(&world.proxy).await >= 60.0).then_some(())).await;
    let with_all = held(&world.proxy).await;
    assert_eq!(with_all.0, with_staying.0 + 21.0);
    drop(leaving);
    resetting.answers.shutdown().await;
    eventually(TEST_TIMEOUT, async || (held(&world.proxy).await == with_staying).then_some(())).await;
    released.release();
    staying.get(&first.response().await.text()).await;
    assert_eq!(world.upstream.calls(), 1);
    let counted = Metrics::of(&world.proxy).await.get("oncegate_requests_total{route=\"pay\",status=\"in-flight\"}");
    assert_eq!(counted, 40.0, "those that have left count");
}

#[tokio::test]
async fn a_waiter_that_closes_its_sending_side_counts_as_gone() {
    let world = patient(Store::sqlite()).await;
    let released = Hold::new();
    let mut first = hold(&world, "k-1", &released).await;
    let mut closing = world.pay("k-1").open().await.unwrap();
    eventually(TEST_TIMEOUT, async || (in_flight(&world.proxy).await >= 1.0).then_some(())).await;
    closing.finish().await;
    closing.wait_until_closed().await;
    released.release();
    assert_eq!(first.response().await.status, 201);
    let client: Client = world.proxy.client();
    assert_eq!(client.post("/pay").key("k-1").json(BODY).send().await.oncegate_status(), Some("replayed"));
}
