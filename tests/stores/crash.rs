//! Proxies that are killed, paused or duplicated: at most one execution for each key, and stored responses are
//! replayed.

use std::time::Duration;

use rustix::process::Signal;
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use harness::full_listener::FullListener;
use harness::metrics::more_store_calls;
use harness::relay::Relay;
use harness::{Answer, Hold, Proxy, Request, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores};

/// Waits until the lease has expired and the key is unknown.
pub async fn becomes_unknown(request: &Request) {
    let known = eventually(TEST_TIMEOUT, async || {
        let (status, slug) = request.send().await.outcome();
        assert_eq!(status, 409, "{slug}");
        (slug != "in-flight").then_some(slug)
    });
    assert_eq!(known.await, "outcome-unknown");
}

on_both_stores!(a_proxy_killed_while_the_service_works_leaves_an_unknown_outcome);
async fn a_proxy_killed_while_the_service_works_leaves_an_unknown_outcome(store: Store) {
    let mut world = World::with(store, |setup| setup.short_leases()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    world.crash_and_restart().await;
    first.await.unwrap().expect_err("its connection went with the proxy");
    becomes_unknown(&world.pay("k-1")).await;
    hold.release();
    assert_eq!(world.pay("k-1").body("else").send().await.outcome(), (422, "key-reused".to_owned()));
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(world.upstream.calls(), 1);
    assert_eq!(world.pay("k-2").send().await.oncegate_status(), Some("executed"), "other keys go on");
}

on_both_stores!(the_sweep_of_a_dead_proxys_key_is_logged);
async fn the_sweep_of_a_dead_proxys_key_is_logged(store: Store) {
    let mut world = World::with(store, |setup| setup.short_leases()).await;
    world.upstream.then(Answer::never());
    let _first = world.pay("secret-key-of-a-client").spawn();
    world.upstream.wait_for_executed(1).await;
    world.crash_and_restart().await;
    becomes_unknown(&world.pay("secret-key-of-a-client")).await;
    let line = world.proxy.wait_for_log("unknown").await;
    assert_eq!((&line["level"], &line["route"]), (&"WARN".into(), &"default".into()));
    assert!(world.proxy.logged().iter().all(|line| !line.to_string().contains("secret-key")));
}

on_both_stores!(with_on_unknown_retry_a_dead_proxys_attempt_is_followed_by_the_next);
async fn with_on_unknown_retry_a_dead_proxys_attempt_is_followed_by_the_next(store: Store) {
    let mut world = World::with(store, |setup| setup.short_leases().defaults("on_unknown = \"retry\"")).await;
    world.upstream.then(Answer::never());
    let _first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    world.crash_and_restart().await;
    let second =
        eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|answer| answer.status != 409))
            .await;
    assert_eq!(second.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.last().field("oncegate-attempt"), Some("2"));
    assert_eq!(world.pay("k-1").send().await.comparable(), second.replayed());
}

on_both_stores!(an_answer_from_before_a_crash_is_replayed_after_it);
async fn an_answer_from_before_a_crash_is_replayed_after_it(store: Store) {
    let mut world = World::start(store).await;
    let mut firsts = Vec::new();
    for number in 0..10 {
        firsts.push(world.pay(&format!("k-{number}")).send().await);
        if number % 3 == 0 {
            world.crash_and_restart().await;
        }
    }
    world.crash_and_restart().await;
    for (number, first) in firsts.iter().enumerate() {
        assert_eq!(world.pay(&format!("k-{number}")).send().await.comparable(), first.replayed());
    }
    assert_eq!(world.upstream.calls(), 10);
}

on_both_stores!(killed_at_any_moment_a_proxy_executes_nothing_twice);
async fn killed_at_any_moment_a_proxy_executes_nothing_twice(store: Store) {
    const KEYS: usize = 40;
    let mut world = World::with(store, |setup| setup.short_leases()).await;
    let mut clients = JoinSet::new();
    for number in 0..KEYS {
        let request = world.pay(&format!("k-{number}"));
        clients.spawn(async move { (number, request.try_send().await) });
    }
    // In the middle of the load: some attempts are stored, some run, some have not begun.
    world.upstream.wait_for_executed(KEYS / 4).await;
    world.crash_and_restart().await;
    let mut firsts = vec![None; KEYS];
    while let Some(ended) = clients.join_next().await {
        let (number, answer) = ended.unwrap();
        firsts[number] = answer.ok();
    }
    for (number, first) in firsts.iter().enumerate() {
        let key = format!("k-{number}");
        let settled = eventually(TEST_TIMEOUT, async || {
            Some(world.pay(&key).send().await).filter(|answer| answer.oncegate_status() != Some("in-flight"))
        });
        let settled = settled.await;
        match first {
            Some(first) => assert_eq!(settled.comparable(), first.replayed(), "{key} had been answered"),
            None => assert!(
                ["executed", "replayed", "unknown"].contains(&settled.oncegate_status().unwrap()),
                "{settled:?}"
            ),
        }
    }
    let mut keys: Vec<_> =
        world.upstream.executed().iter().map(|call| call.field("idempotency-key").unwrap().to_owned()).collect();
    let executions = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), executions, "each key once at most");
}

/// Two proxies in front of one service, on one PostgreSQL.
struct Pair {
    upstream: Upstream,
    one: Proxy,
    other: Proxy,
    store: Store,
}

impl Pair {
    async fn start() -> Self {
        let store = Store::postgres().await;
        let upstream = Upstream::start().await;
        let setup = Proxy::on(&store.url()).upstream(upstream.address).short_leases();
        let (one, other) = tokio::join!(setup.start(), setup.start());
        Self { upstream, one, other, store }
    }
}

fn pay(proxy: &Proxy, key: &str) -> Request {
    proxy.post("/pay").key(key).json(r#"{"amount":10}"#)
}

#[tokio::test]
async fn one_of_two_proxies_executes_and_both_replay() {
    let pair = Pair::start().await;
    let first = pay(&pair.one, "k-1").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    for proxy in [&pair.other, &pair.one, &pair.other] {
        assert_eq!(pay(proxy, "k-1").send().await.comparable(), first.replayed());
    }
    assert_eq!(pay(&pair.other, "k-1").body("else").send().await.outcome(), (422, "key-reused".to_owned()));
    assert_eq!(pair.upstream.calls(), 1);
}

#[tokio::test]
async fn concurrent_requests_at_two_proxies_execute_each_key_once() {
    const CLIENTS: usize = 30;
    let pair = Pair::start().await;
    let hold = Hold::new();
    pair.upstream.answer_all(Answer::status(201).hold(&hold));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let request = pay([&pair.one, &pair.other][number % 2], "k-1");
        clients.spawn(async move { request.send().await });
    }
    for _ in 1..CLIENTS {
        assert_eq!(clients.join_next().await.unwrap().unwrap().outcome(), (409, "in-flight".to_owned()));
    }
    hold.release();
    let first = clients.join_next().await.unwrap().unwrap();
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(pay(&pair.other, "k-1").send().await.comparable(), first.replayed());
    assert_eq!(pair.upstream.calls(), 1);
}

#[tokio::test]
async fn a_dead_proxys_attempt_becomes_unknown_when_its_lease_has_expired() {
    let pair = Pair::start().await;
    pair.upstream.then(Answer::never());
    let first = pay(&pair.one, "k-1").spawn();
    pair.upstream.wait_for_executed(1).await;
    pair.one.kill9().await;
    first.await.unwrap().expect_err("its connection went with the proxy");
    assert_eq!(pay(&pair.other, "k-1").send().await.outcome(), (409, "in-flight".to_owned()), "its lease still holds");
    becomes_unknown(&pay(&pair.other, "k-1")).await;
    assert_eq!(pair.upstream.calls(), 1);
}

#[tokio::test]
async fn an_attempt_longer_than_a_lease_stays_in_flight_while_its_proxy_lives() {
    let pair = Pair::start().await;
    let hold = Hold::new();
    pair.upstream.then(Answer::status(201).hold(&hold));
    let first = pay(&pair.one, "k-1").spawn();
    pair.upstream.wait_for_executed(1).await;
    let is_in_flight = async || {
        assert_eq!(pay(&pair.other, "k-1").send().await.outcome(), (409, "in-flight".to_owned()));
    };
    // Two leases, and the sweeps after them.
    eventually(TEST_TIMEOUT, async || {
        is_in_flight().await;
        pair.store.reserved_longer_ago_than(Duration::from_secs(2)).await.then_some(())
    })
    .await;
    more_store_calls(&pair.other, "sweep", 2).await;
    is_in_flight().await;
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(pay(&pair.other, "k-1").send().await.comparable(), first.replayed());
}

#[tokio::test]
async fn a_late_answer_to_a_paused_proxy_completes_its_key() {
    let pair = Pair::start().await;
    let hold = Hold::new();
    pair.upstream.then(Answer::status(201).hold(&hold));
    let first = pay(&pair.one, "k-1").spawn();
    pair.upstream.wait_for_executed(1).await;
    pair.one.signal(Signal::STOP);
    becomes_unknown(&pay(&pair.other, "k-1")).await;
    hold.release();
    pair.one.signal(Signal::CONT);
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.status, first.oncegate_status()), (201, Some("executed")));
    for proxy in [&pair.one, &pair.other] {
        // The paused proxy serves again once its lease is renewed.
        let replay = eventually(TEST_TIMEOUT, async || {
            Some(pay(proxy, "k-1").send().await).filter(|answer| answer.status != 503)
        });
        assert_eq!(replay.await.comparable(), first.replayed());
    }
    assert_eq!(pair.upstream.calls(), 1);
}

#[tokio::test]
async fn a_proxy_paused_past_its_lease_starts_nothing_before_the_renewal() {
    let pair = Pair::start().await;
    pair.one.signal(Signal::STOP);
    let sleeping: Vec<_> = (0..4).map(|number| pay(&pair.one, &format!("k-{number}")).spawn()).collect();
    eventually(TEST_TIMEOUT, async || (pair.store.leases().await == 1).then_some(())).await;
    pair.one.signal(Signal::CONT);
    for (number, sleeping) in sleeping.into_iter().enumerate() {
        let answer = sleeping.await.unwrap().unwrap();
        let same = pay(&pair.other, &format!("k-{number}")).send().await;
        match answer.oncegate_status().unwrap() {
            "executed" => assert_eq!(same.comparable(), answer.replayed()),
            "rejected" => {
                assert_eq!(
                    (answer.outcome(), same.oncegate_status()),
                    ((503, "store-unavailable".to_owned()), Some("executed"))
                )
            }
            told => panic!("{told}"),
        }
    }
    assert_eq!(pair.upstream.calls(), 4);
}

#[tokio::test]
async fn after_an_outage_past_every_lease_each_proxy_gets_time_to_renew() {
    let store = Store::postgres().await;
    let url = store.url();
    let place = url.split(['@', '/']).nth(3).unwrap();
    let wire = Relay::to(place.parse().unwrap()).await;
    let upstream = Upstream::start().await;
    let far = url.replace(place, &wire.address.to_string());
    let setup = Proxy::on(&far).upstream(upstream.address).short_leases();
    let one = setup.start().await;
    let others = [setup.start().await, setup.start().await, setup.start().await];
    let hold = Hold::new();
    upstream.then(Answer::status(201).hold(&hold));
    let first = pay(&one, "k-1").spawn();
    upstream.wait_for_executed(1).await;
    wire.cut();
    eventually(TEST_TIMEOUT, async || (store.leases().await == 0).then_some(())).await;
    wire.restore();
    for other in &others {
        let retry = eventually(TEST_TIMEOUT, async || {
            Some(pay(other, "k-1").send().await).filter(|answer| answer.status != 503)
        });
        assert_eq!(retry.await.outcome(), (409, "in-flight".to_owned()), "no attempt was swept");
    }
    eventually(TEST_TIMEOUT, async || (one.readyz().await.0 == 200).then_some(())).await;
    assert_eq!(pay(&others[0], "k-1").send().await.outcome(), (409, "in-flight".to_owned()), "it has come back");
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(pay(&others[1], "k-1").send().await.comparable(), first.replayed());
    for line in one.logged().iter().chain(others.iter().flat_map(Proxy::logged).collect::<Vec<_>>().iter()) {
        assert!(!line["message"].as_str().unwrap().contains("its outcome is unknown"), "{line}");
    }
}

async fn a_proxy_paused_past_its_lease_while_it_connects_sends_nothing(scheme: &str) {
    let service = FullListener::start().await;
    let store = Store::postgres().await;
    let setup = Proxy::on(&store.url())
        .top(&format!("upstream = \"{scheme}://{}\"", service.address))
        .defaults("connect_timeout = \"20s\"")
        .store("timeout = \"500ms\"")
        .short_leases();
    let (one, other) = tokio::join!(setup.start(), setup.start());
    let first = pay(&one, "k-1").spawn();
    service.client_is_connecting().await;
    one.signal(Signal::STOP);
    becomes_unknown(&pay(&other, "k-1")).await;
    // The time for the first byte is 1.5 s: after it, a lease that is renewed first does not help either.
    let too_late = async || store.reserved_longer_ago_than(Duration::from_millis(1_500)).await.then_some(());
    eventually(TEST_TIMEOUT, too_late).await;
    let mut connection = service.accept_client().await;
    one.signal(Signal::CONT);
    assert_eq!(first.await.unwrap().unwrap().outcome(), (503, "store-unavailable".to_owned()));
    one.kill9().await;
    let mut sent = Vec::new();
    connection.read_to_end(&mut sent).await.unwrap();
    assert!(sent.is_empty(), "{}", String::from_utf8_lossy(&sent));
}

#[tokio::test]
async fn a_proxy_paused_past_its_lease_while_it_connects_sends_nothing_over_http1() {
    a_proxy_paused_past_its_lease_while_it_connects_sends_nothing("http").await;
}

#[tokio::test]
async fn a_proxy_paused_past_its_lease_while_it_connects_sends_nothing_over_http2() {
    a_proxy_paused_past_its_lease_while_it_connects_sends_nothing("h2c").await;
}
