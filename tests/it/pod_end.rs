//! How a pod ends: readiness goes off, those who keep connections are shown out, the door closes, what runs is stored. All
//! of it under load, as a rolling update does it.

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

use crate::harness::h2;
use crate::harness::{Answer, Client, Exchange, Hold, PATIENCE, Response, Store, World, eventually, on_both_stores};

const CLIENTS: usize = 16;
/// Before the proxy is told to leave: enough that each client has reused its connection.
const REQUESTS: usize = 10 * CLIENTS;

/// What a client heard: the answer, or nothing at all.
type Heard = BTreeMap<String, Option<Response>>;

/// Clients that keep their connections and send one request after another, each under a key of its own.
struct Load {
    clients: JoinSet<Heard>,
    /// How many answers they have heard together.
    answers: Arc<AtomicUsize>,
    /// Whether they are to send no more: a balancer has taken the proxy out.
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
        eventually(PATIENCE, async || (self.answers.load(Ordering::Relaxed) >= REQUESTS).then_some(())).await;
    }

    /// What all of them heard, once the last has met a closed door.
    async fn heard(self) -> Heard {
        self.clients.join_all().await.into_iter().flatten().collect()
    }
}

/// One client, until nobody lets it in or it is told to stop.
async fn drive(client: Client, number: usize, answers: Arc<AtomicUsize>, taken_out: Arc<AtomicBool>) -> Heard {
    let mut heard = Heard::new();
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
        // Who is told to close connects anew, and so does who was cut off.
        kept = answer.as_ref().filter(|answer| answer.field("connection") != Some("close")).map(|_| exchange);
        heard.insert(key, answer);
    }
    heard
}

/// A preStop hook: the real command, as the kubelet runs it.
fn hook(world: &World) -> JoinHandle<ExitStatus> {
    let mut hook = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    hook.arg("drain").args(["--wait", "20s", "--admin", &world.proxy.admin.to_string()]);
    hook.env_remove("ONCEGATE_CONFIG").env_remove("ONCEGATE_ADMIN_TOKEN");
    tokio::task::spawn_blocking(move || hook.status().unwrap())
}

/// Whoever got an answer gets the same again, whoever got none gets one, and the service has done each once.
async fn nothing_is_lost(world: &mut World, heard: &Heard) {
    world.crash_and_restart().await;
    for (key, first) in heard {
        let again = world.post("/pay").key(key).body("10 EUR").send().await;
        match first {
            Some(first) if first.told() == Some("executed") => {
                assert_eq!(again.comparable(), first.replayed(), "{key}")
            }
            Some(_) | None => assert_eq!(again.status, 201, "{key}: {again:?}"),
        }
        assert_eq!(world.upstream.executed_for(key), 1, "{key}");
    }
}

/// No answer but the service's own and, for what the service never got, "not here".
fn nobody_hears_of_trouble(world: &World, heard: &Heard) {
    for (key, answer) in heard.iter().filter_map(|(key, answer)| Some((key, answer.as_ref()?))) {
        match answer.told() {
            Some("executed") => assert_eq!(answer.status, 201, "{key}"),
            _ => {
                assert_eq!(answer.outcome(), (503, "draining".to_owned()), "{key}");
                assert_eq!(world.upstream.executed_for(key), 0, "{key}");
            }
        }
    }
}

on_both_stores!(a_signal_under_load_loses_no_request_and_fails_none_that_was_taken);
async fn a_signal_under_load_loses_no_request_and_fails_none_that_was_taken(store: Store) {
    // No delay: the door closes in the middle of everything.
    let mut world = World::start(store).await;
    let load = Load::on(world.proxy.client());
    load.is_running().await;
    world.proxy.signal(Signal::TERM);
    assert_eq!(world.proxy.ended().await, Some(0));
    let heard = load.heard().await;
    nobody_hears_of_trouble(&world, &heard);
    nothing_is_lost(&mut world, &heard).await;
}

#[tokio::test]
async fn a_balancer_that_heeds_readiness_sees_no_failure_at_all() {
    let mut world = World::with(Store::sqlite(), |setup| setup.top("drain_delay = \"3s\"")).await;
    let load = Load::on(world.proxy.client());
    load.is_running().await;
    world.proxy.signal(Signal::TERM);
    eventually(PATIENCE, async || (world.proxy.readyz().await.0 == 503).then_some(())).await;
    load.taken_out.store(true, Ordering::Relaxed);
    let heard = load.heard().await;
    assert!(world.proxy.is_alive(), "they have stopped before the door closes");
    assert!(heard.values().flatten().all(|answer| answer.told() == Some("executed")), "an answer is not the service's");
    assert!(heard.values().all(Option::is_some), "a request has no answer");
    assert_eq!(world.proxy.ended().await, Some(0));
    nothing_is_lost(&mut world, &heard).await;
}

#[tokio::test]
async fn a_sidecar_has_drained_by_its_hook_while_its_service_is_still_up() {
    let mut world = World::with(Store::sqlite(), |setup| setup.top("drain_delay = \"300ms\"")).await;
    let load = Load::on(world.proxy.client());
    load.is_running().await;
    // The service's own hook sleeps meanwhile. The sidecar's signal comes when the service has ended, which is too late.
    assert!(hook(&world).await.unwrap().success());
    assert_eq!(world.proxy.ended().await, Some(0));
    let heard = load.heard().await;
    nobody_hears_of_trouble(&world, &heard);
    nothing_is_lost(&mut world, &heard).await;
}

#[tokio::test]
async fn a_signal_after_the_hook_has_begun_cuts_nothing_short() {
    let mut world = World::with(Store::sqlite(), |setup| setup.top("drain_delay = \"300ms\"")).await;
    let load = Load::on(world.proxy.client());
    load.is_running().await;
    let hook = hook(&world);
    world.proxy.logs("draining").await;
    world.proxy.signal(Signal::TERM);
    assert!(hook.await.unwrap().success());
    assert_eq!(world.proxy.ended().await, Some(0));
    let heard = load.heard().await;
    nobody_hears_of_trouble(&world, &heard);
    nothing_is_lost(&mut world, &heard).await;
}

#[tokio::test]
async fn who_keeps_a_connection_is_told_to_close_it_before_the_door_closes() {
    let world = World::with(Store::sqlite(), |setup| setup.top("drain_delay = \"3s\"")).await;
    let mut kept = world.pay("k-1").open().await.unwrap();
    assert_eq!(kept.response().await.field("connection"), None);
    world.proxy.signal(Signal::TERM);
    world.proxy.logs("draining").await;
    // Whatever it asks for: a first attempt, a replay, what nothing guards.
    for request in [world.pay("k-2"), world.pay("k-1"), world.get("/")] {
        let mut exchange = world.get("/before").open().await.unwrap();
        assert_eq!(exchange.response().await.field("connection"), Some("close"), "a new connection is for one request");
        exchange.closed().await;
        assert_eq!(request.send().await.field("connection"), Some("close"));
    }
    kept.write(&world.pay("k-3").bytes()).await;
    let last = kept.response().await;
    assert_eq!((last.told(), last.field("connection")), (Some("executed"), Some("close")));
    kept.closed().await;
    assert_eq!(world.proxy.ended().await, Some(0));
}

#[tokio::test]
async fn over_http2_what_runs_is_answered_and_the_connection_goes_away_after_it() {
    let world = World::with(Store::sqlite(), |setup| setup.top("drain_delay = \"300ms\"")).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let mut client = h2::connect::<Full<Bytes>>(&world).await;
    let pay =
        Request::post("http://shop.example/pay").header("idempotency-key", "k-1").body(Full::from("10 EUR")).unwrap();
    let running = tokio::spawn(client.send_request(pay));
    world.upstream.has_executed(1).await;
    world.proxy.signal(Signal::TERM);
    // The door is closed.
    eventually(PATIENCE, async || world.proxy.client().try_connect().await.err()).await;
    hold.release();
    let answer = timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers().get("connection")), (201, None));
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "effect 1");
    // No request is taken on it any more.
    eventually(PATIENCE, async || client.ready().await.err()).await;
    assert_eq!(world.proxy.ended().await, Some(0));
}
