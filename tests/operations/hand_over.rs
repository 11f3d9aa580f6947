//! Restarts of a single instance under load that refuse and cut no connection: by a supervisor that holds the socket,
//! and by a hand-over.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tokio::task::JoinSet;

use harness::{Answer, Client, Exchange, Hold, Store, TEST_TIMEOUT, World, eventually, on_both_stores};

/// The restarts of each test: the last process has been through all that one hands over to the next.
const RESTARTS: usize = 4;
/// The clients that keep their connections, and as many that open one for each request.
const CLIENTS: usize = 6;
/// The answers between two restarts: enough that each client has been through its loop.
const ANSWERS: usize = 10 * CLIENTS;

/// Clients that send one request after another, each under a key of its own, and stop at the first failure.
struct Load {
    clients: JoinSet<Result<usize, String>>,
    answers: Arc<AtomicUsize>,
    enough: Arc<AtomicBool>,
}

impl Load {
    fn on(client: Client) -> Self {
        let (mut clients, answers, enough) = (JoinSet::new(), Arc::default(), Arc::default());
        for number in 0..2 * CLIENTS {
            clients.spawn(pay_on(client, number, Arc::clone(&answers), Arc::clone(&enough)));
        }
        Self { clients, answers, enough }
    }

    async fn goes_on(&self) {
        let begin = self.answers.load(Ordering::Relaxed);
        let more = || (self.answers.load(Ordering::Relaxed) >= begin + ANSWERS).then_some(());
        eventually(TEST_TIMEOUT, async || more()).await;
    }

    /// Ends the load, and checks that each request was executed once and answered with that.
    async fn ends_well(self, world: &World) {
        self.enough.store(true, Ordering::Relaxed);
        let (sent, failed): (Vec<_>, Vec<_>) = self.clients.join_all().await.into_iter().partition(Result::is_ok);
        assert!(failed.is_empty(), "{failed:#?}");
        let sent: usize = sent.into_iter().map(Result::unwrap).sum();
        assert_eq!((world.upstream.calls(), world.upstream.executed().len()), (sent, sent));
    }
}

/// Returns the number of requests, each of which was executed, or what happened to the first other one.
async fn pay_on(
    client: Client,
    number: usize,
    answers: Arc<AtomicUsize>,
    enough: Arc<AtomicBool>,
) -> Result<usize, String> {
    let keeps = number < CLIENTS;
    let (mut kept, mut count): (Option<Exchange>, usize) = (None, 0);
    while !enough.load(Ordering::Relaxed) {
        let request = client.post("/pay").key(&format!("client-{number}-request-{count}")).body("10 EUR");
        let failed = |error| format!("client {number}, request {count}, keeps its connection: {keeps}: {error}");
        let mut exchange = match kept.take() {
            Some(mut exchange) => {
                exchange.write(&request.bytes()).await;
                exchange
            }
            None => request.open().await.map_err(|error| failed(error.to_string()))?,
        };
        let answer = exchange.try_response().await.map_err(|error| failed(error.to_string()))?;
        if (answer.status, answer.oncegate_status()) != (201, Some("executed")) {
            return Err(failed(format!("{answer:?}")));
        }
        count += 1;
        answers.fetch_add(1, Ordering::Relaxed);
        kept = Some(exchange).filter(|_| keeps && answer.field("connection") != Some("close"));
    }
    Ok(count)
}

on_both_stores!(a_restart_under_a_supervisor_that_holds_the_socket_refuses_nothing);
async fn a_restart_under_a_supervisor_that_holds_the_socket_refuses_nothing(store: Store) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut world = World::with(store, |setup| setup.handed("proxy", socket)).await;
    let load = Load::on(world.proxy.client());
    for _ in 0..RESTARTS {
        load.goes_on().await;
        // From another thread: on this one, each client has just sent its request, and none is about to.
        let pid = world.proxy.pid();
        tokio::task::spawn_blocking(move || kill_process(pid, Signal::TERM)).await.unwrap().unwrap();
        assert_eq!(world.proxy.ended().await, Some(0));
        world.proxy = world.setup.start().await;
    }
    load.goes_on().await;
    load.ends_well(&world).await;
}

on_both_stores!(a_hand_over_refuses_nothing);
async fn a_hand_over_refuses_nothing(store: Store) {
    let world = World::start(store).await;
    let load = Load::on(world.proxy.client());
    for restart in 1..=RESTARTS {
        load.goes_on().await;
        world.proxy.signal(Signal::USR2);
        world.proxy.wait_for_logs("ready", 1 + restart).await;
    }
    load.goes_on().await;
    load.ends_well(&world).await;
    assert_eq!(world.proxy.readyz().await.0, 200, "the operators' socket is handed over too");
    assert_eq!(world.proxy.stop().await, Some(0));
}

#[tokio::test]
async fn a_successor_with_a_wrong_configuration_is_refused() {
    let world = World::start(Store::sqlite()).await;
    let right = std::fs::read_to_string(world.proxy.file()).unwrap();
    std::fs::write(world.proxy.file(), format!("drain_dely = \"1s\"\n{right}")).unwrap();
    world.proxy.signal(Signal::USR2);
    let refused = world.proxy.wait_for_log("the hand-over is refused").await;
    assert!(refused["cause"].as_str().unwrap().contains("drain_delay"), "{refused}");
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    // Nor would a successor start that finds keys elsewhere.
    let elsewhere = format!("{right}\n[[routes]]\nname = \"default\"\npath = \"/{{*rest}}\"\nspace = \"service\"\n");
    std::fs::write(world.proxy.file(), elsewhere).unwrap();
    world.proxy.signal(Signal::USR2);
    world.proxy.wait_for_logs("the hand-over is refused", 2).await;
    assert!(world.proxy.output().contains("--accept-route-changes"));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("replayed"));
    // Nor one that has another store.
    std::fs::write(world.proxy.file(), right.replace(&world.store.url(), "sqlite:other.db")).unwrap();
    world.proxy.signal(Signal::USR2);
    world.proxy.wait_for_logs("the hand-over is refused", 3).await;
    assert!(world.proxy.output().contains("store.url has changed: it leads to another store"));
    // The next request is not refused for the one before, and the successor reads the file anew.
    std::fs::write(world.proxy.file(), format!("drain_delay = \"1ms\"\nunguarded = \"refuse\"\n{right}")).unwrap();
    world.proxy.signal(Signal::USR2);
    world.proxy.wait_for_logs("ready", 2).await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("replayed"));
}

#[tokio::test]
async fn a_hand_over_that_is_stopped_has_no_successor() {
    stop_during_a_hand_over(async |world| world.proxy.signal(Signal::TERM)).await;
    stop_during_a_hand_over(async |world| {
        let (client, host) = (Client { address: world.proxy.admin }, world.proxy.admin.to_string());
        let asked = client.post("/api/v1/drain").host(&host).anonymous().send().await;
        assert_eq!(asked.status, 202, "{asked:?}");
    })
    .await;
}

async fn stop_during_a_hand_over(stop: impl AsyncFnOnce(&World)) {
    let world = World::start(Store::sqlite()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    world.proxy.signal(Signal::USR2);
    world.proxy.wait_for_log("draining").await;
    assert_eq!(world.proxy.readyz().await.0, 200, "its connections wait for the successor");
    stop(&world).await;
    eventually(TEST_TIMEOUT, async || (world.proxy.readyz().await.0 == 503).then_some(())).await;
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    assert_eq!(world.proxy.ended().await, Some(0));
    assert!(world.proxy.client().try_connect().await.is_err(), "nobody holds the socket");
}

#[tokio::test]
async fn a_hand_over_survives_the_requests_for_a_reload_or_another_one_that_come_during_it() {
    for signal in [Signal::HUP, Signal::USR2] {
        let world = World::start(Store::sqlite()).await;
        let first = world.pay("k-1").send().await;
        let (pid, (end, ended)) = (world.proxy.pid(), channel::<()>());
        world.proxy.signal(Signal::USR2);
        world.proxy.wait_for_log("stopped").await;
        let hail = std::thread::spawn(move || {
            // 10 s at most. Time and not an event: the moments without handlers say nothing. They take about a
            // millisecond each.
            for _ in 0..100_000 {
                let is_over = ended.recv_timeout(Duration::from_micros(100)) != Err(RecvTimeoutError::Timeout);
                if is_over || kill_process(pid, signal).is_err() {
                    break;
                }
            }
        });
        world.proxy.wait_for_logs("ready", 2).await;
        drop(end);
        hail.join().unwrap();
        assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
        assert!(world.proxy.is_alive(), "{signal:?}");
    }
}
