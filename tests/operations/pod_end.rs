//! The end of a pod: readiness goes off, kept connections are closed, the listener closes, and running attempts are
//! stored. All of it under load, as in a rolling update.

use std::collections::BTreeMap;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use rustix::process::Signal;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use harness::h2;
use harness::{Answer, Client, Exchange, Hold, Response, Store, TEST_TIMEOUT, World, eventually, on_both_stores};

const CLIENTS: usize = 16;
/// The number of requests before the signal: enough that each client has reused its connection.
const REQUESTS: usize = 10 * CLIENTS;

/// Each key's answer; `None` if its connection ended without one.
type AnswersByKey = BTreeMap<String, Option<Response>>;

/// Clients that keep their connections and send one request after another, each under a key of its own.
struct Load {
    clients: JoinSet<AnswersByKey>,
    /// The total number of answers so far.
    answers: Arc<AtomicUsize>,
    /// Set when the clients must stop: a balancer has taken the proxy out.
    taken_out: Arc<AtomicBool>,
}

impl Load {
    fn on(client: Client) -> Self {
        let (mut clients, answers, taken_out) = (JoinSet::new(), Arc::default(), Arc::default());
        for number in 0..CLIENTS {
            clients.spawn(drive(client, number, Arc::clone(&answers), Arc::clone(&taken_out)));
        }
        Self { clients, answers, taken_out }
    }

    async fn is_running(&self) {
        eventually(TEST_TIMEOUT, async || (self.answers.load(Ordering::Relaxed) >= REQUESTS).then_some(())).await;
    }

    /// The answers of all clients, once the last was refused a connection.
    async fn answered(self) -> AnswersByKey {
        self.clients.join_all().await.into_iter().flatten().collect()
    }
}

/// Runs one client until it is refused a connection or told to stop.
async fn drive(client: Client, number: usize, answers: Arc<AtomicUsize>, taken_out: Arc<AtomicBool>) -> AnswersByKey {
    let mut answered = AnswersByKey::new();
    let mut kept: Option<Exchange> = None;
    for count in 0.. {
        if taken_out.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("client-{number}-request-{count}");
        let request = client.post("/pay").key(&key).body("10 EUR");
        let exchange = match kept.take() {
            Some(mut exchange) => {
                exchange.write(&request.bytes()).await;
                Ok(exchange)
            }
            None => request.open().await,
        };
        let Ok(mut exchange) = exchange else { break };
        let answer = exchange.try_response().await.ok();
        answers.fetch_add(1, Ordering::Relaxed);
        // A client whose connection was closed, announced or not, connects again.
        kept = answer.as_ref().filter(|answer| answer.field("connection") != Some("close")).map(|_| exchange);
        answered.insert(key, answer);
    }
    answered
}

/// A preStop hook: the real command, as the kubelet runs it.
fn hook(world: &World) -> JoinHandle<ExitStatus> {
    let mut hook = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    hook.arg("drain").args(["--wait", "20s", "--admin", &world.proxy.admin.to_string()]);
    hook.env_remove("ONCEGATE_CONFIG").env_remove("ONCEGATE_ADMIN_TOKEN");
    tokio::task::spawn_blocking(move || hook.status().unwrap())
}

/// Checks that each answer is replayed, each request without an answer gets one, and the service has executed each
/// once.
async fn nothing_is_lost(world: &mut World, answered: &AnswersByKey) {
    world.crash_and_restart().await;
    for (key, first) in answered {
        let again = world.post("/pay").key(key).body("10 EUR").send().await;
        match first {
            Some(first) if first.oncegate_status() == Some("executed") => {
                assert_eq!(again.comparable(), first.replayed(), "{key}")
            }
            Some(_) | None => assert_eq!(again.status, 201, "{key}: {again:?}"),
        }
        assert_eq!(world.upstream.executed_for(key), 1, "{key}");
    }
}

/// Checks that every answer is the service's own or, if the service got nothing, a refusal for draining.
fn assert_no_errors(world: &World, answered: &AnswersByKey) {
    for (key, answer) in answered.iter().filter_map(|(key, answer)| Some((key, answer.as_ref()?))) {
        match answer.oncegate_status() {
            Some("executed") => assert_eq!(answer.status, 201, "{key}"),
            _ => {
                assert_eq!(answer.outcome(), (503, "draining".to_owned()), "{key}");
                assert_eq!(world.upstream.executed_for(key), 0, "{key}");
            }
        }
    }
}

on_both_stores!(a_signal_under_load_loses_no_request_and_fails_no_accepted_one);
async fn a_signal_under_load_loses_no_request_and_fails_no_accepted_one(store: Store) {
    // Without a delay, the listener closes in the middle of the load.
    let mut world = World::start(store).await;
    let load = Load::on(world.proxy.client());
    load.is_running().await;
    world.proxy.signal(Signal::TERM);
    assert_eq!(world.proxy.ended().await, Some(0));
    let answered = load.answered().await;
    assert_no_errors(&world, &answered);
    nothing_is_lost(&mut world, &answered).await;
}

#[tokio::test]
async fn a_balancer_that_follows_readiness_sees_no_failure() {
    let mut world = World::with(Store::sqlite(), |setup| setup.top("drain_delay = \"3s\"")).await;
    let load = Load::on(world.proxy.client());
    load.is_running().await;
    world.proxy.signal(Signal::TERM);
    eventually(TEST_TIMEOUT, async || (world.proxy.readyz().await.0 == 503).then_some(())).await;
    load.taken_out.store(true, Ordering::Relaxed);
    let answered = load.answered().await;
    assert!(world.proxy.is_alive(), "they have stopped before the door closes");
    assert!(
        answered.values().flatten().all(|answer| answer.oncegate_status() == Some("executed")),
        "an answer is not the service's"
    );
    assert!(answered.values().all(Option::is_some), "a request has no answer");
    assert_eq!(world.proxy.ended().await, Some(0));
    nothing_is_lost(&mut world, &answered).await;
}

#[tokio::test]
async fn a_sidecars_pre_stop_hook_drains_before_its_service_ends() {
    let mut world = World::with(Store::sqlite(), |setup| setup.top("drain_delay = \"300ms\"")).await;
    let load = Load::on(world.proxy.client());
    load.is_running().await;
    // The service's own hook sleeps meanwhile. The sidecar's signal comes when the service has ended, which is too
    // late.
    assert!(hook(&world).await.unwrap().success());
    assert_eq!(world.proxy.ended().await, Some(0));
    let answered = load.answered().await;
    assert_no_errors(&world, &answered);
    nothing_is_lost(&mut world, &answered).await;
}

#[tokio::test]
async fn a_signal_during_the_pre_stop_hook_interrupts_nothing() {
    let mut world = World::with(Store::sqlite(), |setup| setup.top("drain_delay = \"300ms\"")).await;
    let load = Load::on(world.proxy.client());
    load.is_running().await;
    let hook = hook(&world);
    world.proxy.wait_for_log("draining").await;
    world.proxy.signal(Signal::TERM);
    assert!(hook.await.unwrap().success());
    assert_eq!(world.proxy.ended().await, Some(0));
    let answered = load.answered().await;
    assert_no_errors(&world, &answered);
    nothing_is_lost(&mut world, &answered).await;
}

#[tokio::test]
async fn kept_connections_are_told_to_close_before_the_listener_closes() {
    let world = World::with(Store::sqlite(), |setup| setup.top("drain_delay = \"3s\"")).await;
    let mut kept = world.pay("k-1").open().await.unwrap();
    assert_eq!(kept.response().await.field("connection"), None);
    world.proxy.signal(Signal::TERM);
    world.proxy.wait_for_log("draining").await;
    // Every kind of request: a first attempt, a replay, and an unguarded one.
    for request in [world.pay("k-2"), world.pay("k-1"), world.get("/")] {
        let mut exchange = world.get("/before").open().await.unwrap();
        assert_eq!(exchange.response().await.field("connection"), Some("close"), "a new connection is for one request");
        exchange.wait_until_closed().await;
        assert_eq!(request.send().await.field("connection"), Some("close"));
    }
    kept.write(&world.pay("k-3").bytes()).await;
    let last = kept.response().await;
    assert_eq!((last.oncegate_status(), last.field("connection")), (Some("executed"), Some("close")));
    kept.wait_until_closed().await;
    assert_eq!(world.proxy.ended().await, Some(0));
}

#[tokio::test]
async fn http_2_streams_are_answered_before_goaway_closes_the_connection() {
    let world = World::with(Store::sqlite(), |setup| setup.top("drain_delay = \"300ms\"")).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let mut client = h2::connect::<Full<Bytes>>(&world).await;
    let pay = Request::post("http://shop.example/pay")
        .header("authorization", "Bearer a")
        .header("idempotency-key", "k-1")
        .body(Full::from("10 EUR"))
        .unwrap();
    let running = tokio::spawn(client.send_request(pay));
    world.upstream.wait_for_executed(1).await;
    world.proxy.signal(Signal::TERM);
    // The listener is closed.
    eventually(TEST_TIMEOUT, async || world.proxy.client().try_connect().await.err()).await;
    hold.release();
    let answer = timeout(TEST_TIMEOUT, running).await.unwrap().unwrap().unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers().get("connection")), (201, None));
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "effect 1");
    // The connection accepts no further request.
    eventually(TEST_TIMEOUT, async || client.ready().await.err()).await;
    assert_eq!(world.proxy.ended().await, Some(0));
}
