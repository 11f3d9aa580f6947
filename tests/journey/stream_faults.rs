//! Streams under faults: kills in their middle, a reader that stops reading, a shared cache, and a reload.

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::streams::{cause_of, status, trailer};
use crate::shared_cache;
use harness::metrics::Metrics;
use harness::operator::Operator;
use harness::redis::RedisFixture;
use harness::relay::remote;
use harness::reload::{RELOADED, reload, requires_a_key, settles, with};
use harness::streams::{EVENTS, feed, open, pay};
use harness::wire::Head;
use harness::{Exchange, Feed, Response, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores, route};
use seeded_random::SeededRandom;

#[allow(dead_code, reason = "tests/faults needs more of it")]
#[path = "../faults/seeded_random.rs"]
mod seeded_random;

/// A stream, the part that the service has sent, and its client.
struct Course {
    key: String,
    feed: Feed,
    sent: String,
    has_ended: bool,
    client: JoinHandle<(Vec<u8>, Option<Response>)>,
    /// The number of bytes that the client has.
    came: watch::Receiver<usize>,
}

impl Course {
    async fn begin(world: &World, key: String) -> Self {
        let feed = feed(world, EVENTS);
        let (exchange, head) = open(pay(world, &key)).await;
        let (progress, came) = watch::channel(0);
        let client = tokio::spawn(read_with(exchange, head, progress));
        Self { key, feed, sent: String::new(), has_ended: false, client, came }
    }

    /// Sends the next event or the end, and often waits until the client has it.
    async fn go_on(&mut self, random: &mut SeededRandom) {
        if self.has_ended {
            return;
        }
        self.has_ended = random.chance(100);
        if self.has_ended {
            self.feed.end();
        } else {
            let event = format!("data: {}\n\n", random.next_u64());
            self.feed.send(&*event);
            self.sent.push_str(&event);
        }
        if random.chance(600) {
            let wanted = if self.has_ended { usize::MAX } else { self.sent.len() };
            // The sender is dropped at the end.
            let _ = self.came.wait_for(|came| *came >= wanted).await;
        }
    }

    /// Ends it, and waits until the client has the end.
    async fn end(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.feed.end();
        }
        // The sender is dropped at the end.
        let _ = self.came.wait_for(|_| false).await;
    }
}

/// Reads to the end or to a cut: the bytes that came, and the response if it is whole.
async fn read(exchange: Exchange, head: Head) -> (Vec<u8>, Option<Response>) {
    read_with(exchange, head, watch::Sender::new(0)).await
}

async fn read_with(mut exchange: Exchange, head: Head, progress: watch::Sender<usize>) -> (Vec<u8>, Option<Response>) {
    let mut came = Vec::new();
    loop {
        match exchange.piece().await {
            Ok(Some(piece)) => {
                came.extend(piece);
                progress.send_replace(came.len());
            }
            Ok(None) => return (came.clone(), exchange.rest(head, came).await.ok()),
            Err(_) => return (came, None),
        }
    }
}

on_both_stores!(ten_kills_in_the_middle_of_streams_execute_nothing_twice_and_leave_each_key_definite_or_unknown);
async fn ten_kills_in_the_middle_of_streams_execute_nothing_twice_and_leave_each_key_definite_or_unknown(store: Store) {
    let mut random = SeededRandom::new(1);
    let mut world = World::with(store, |setup| setup.short_leases()).await;
    let mut found = Vec::new();
    for kill in 0..10 {
        let mut courses = Vec::new();
        for number in 0..4 {
            courses.push(Course::begin(&world, format!("k-{kill}-{number}")).await);
        }
        for _ in 0..random.below(40) {
            let place = random.below(courses.len());
            courses[place].go_on(&mut random).await;
        }
        if kill == 1 {
            // So that a proxy dies behind at least one stored response, however the machine is loaded.
            courses[0].end().await;
        }
        let of_service = kill % 2 == 0;
        match of_service {
            true => courses.iter().for_each(|course| course.feed.cut()),
            false => world.crash_and_restart().await,
        }
        for Course { key, sent, has_ended, client, .. } in courses {
            let (came, whole) = client.await.unwrap();
            assert!(sent.as_bytes().starts_with(&came), "{key}: other bytes came than were sent");
            let retry = eventually(TEST_TIMEOUT, async || {
                Some(world.pay(&key).send().await).filter(|retry| retry.oncegate_status() != Some("in-flight"))
            });
            let retry = retry.await;
            match retry.oncegate_status().unwrap() {
                "replayed" => {
                    assert!(has_ended && retry.text() == sent, "{key}: a part counts as the whole");
                    if let Some(whole) = whole {
                        assert_eq!(retry.comparable(), whole.seen_as_whole().replayed());
                    }
                }
                "unknown" => {
                    assert_eq!(whole, None, "{key}: an end came, and nothing is stored");
                    let cause = if of_service { format!("broken:{}", sent.len()) } else { "crashed".to_owned() };
                    assert!(!(of_service && has_ended) && cause_of(&world, &key).await == cause, "{key}");
                }
                told => panic!("{key}: {told}"),
            }
            assert_eq!(world.upstream.executed_for(&key), 1, "{key}");
            found.push((of_service, retry.oncegate_status().unwrap() == "replayed"));
        }
    }
    for case in [(true, true), (true, false), (false, true), (false, false)] {
        assert!(found.contains(&case), "no kill met {case:?}");
    }
}

#[tokio::test]
async fn a_reader_that_stops_holds_its_stream_and_no_more_and_slows_neither_the_service_nor_the_outcome() {
    const PIECE: usize = 64 << 10;
    const PIECES: usize = 256;
    let world = World::with(Store::sqlite(), |setup| {
        setup.top("limits = { held_bodies = \"64MiB\" }").route(&route("pay", "max_response_body = \"32MiB\""))
    })
    .await;
    let held = async || Metrics::of(&world.proxy).await.get("oncegate_held_body_bytes") as usize;
    let feed = feed(&world, EVENTS);
    let (first, _) = open(pay(&world, "k-1")).await;
    for _ in 0..PIECES {
        feed.send(vec![b'x'; PIECE]);
    }
    feed.end();
    let completed = async || (!Operator::of(&world.proxy).keys("state=completed").await.is_empty()).then_some(());
    eventually(TEST_TIMEOUT, completed).await;
    // The sockets have some of it.
    let bytes = held().await;
    assert!((PIECE..=PIECES * PIECE).contains(&bytes), "{bytes} bytes are held");
    drop(first);
    eventually(TEST_TIMEOUT, async || (held().await == 0).then_some(())).await;
    let replay = pay(&world, "k-1").send().await;
    assert_eq!((replay.oncegate_status(), replay.body.len()), (Some("replayed"), PIECES * PIECE));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_stream_whose_outcome_waits_for_the_store_says_so_at_its_end_and_holds_nothing_meanwhile() {
    let long_lease = "lease = { heartbeat = \"20s\", expiry = \"60s\" }";
    let (world, wire) = remote(|setup| setup.store(long_lease).route(&route("pay", ""))).await;
    let feed = feed(&world, EVENTS);
    let (first, head) = open(pay(&world, "k-1")).await;
    // The same response for a client that takes no trailers.
    let other = world.pay("k-1").field("Prefer", "wait=5");
    let (other, other_head) = open(other).await;
    let body = "x".repeat(64 << 10);
    feed.send(&*body);
    wire.cut();
    feed.end();
    let (came, whole) = read(other, other_head).await;
    assert_eq!((came.len(), whole), (body.len(), None), "an end alone would say that it is stored");
    let first = read(first, head).await.1.unwrap();
    assert_eq!((&*first.text(), trailer(&first.trailers, "oncegate-status")), (&*body, Some("unstored")));
    let held = async || Metrics::of(&world.proxy).await.get("oncegate_held_body_bytes");
    eventually(TEST_TIMEOUT, async || (held().await == 0.0).then_some(())).await;
    let again = pay(&world, "k-1").send().await;
    assert_eq!((&*again.text(), again.oncegate_status()), (&*body, Some("unstored")));
    wire.restore();
    let replay =
        async || Some(pay(&world, "k-1").send().await).filter(|again| again.oncegate_status() == Some("replayed"));
    assert_eq!(eventually(TEST_TIMEOUT, replay).await.text(), body);
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn with_a_shared_cache_a_request_joins_the_stream_and_another_instance_gets_its_end_from_the_cache() {
    let Some(redis) = RedisFixture::start().await else { return };
    let world = World::with(Store::postgres().await, |setup| {
        shared_cache::sharing(&redis.url())(setup).route(&route("pay", "in_flight = \"wait\""))
    })
    .await;
    let other = world.setup.start().await;
    for proxy in [&world.proxy, &other] {
        shared_cache::wait_until_connected(proxy).await;
    }
    let feed = feed(&world, EVENTS);
    let (first, head) = open(pay(&world, "k-1")).await;
    feed.send("data: 1\n\n");
    let first = tokio::spawn(read(first, head));
    let (joined, head) = open(pay(&world, "k-1")).await;
    assert_eq!(status(&head), Some("attached"));
    let joined = tokio::spawn(read(joined, head));
    let elsewhere = shared_cache::pay(&other, "k-1").field("Prefer", "wait=0").send().await;
    assert_eq!(elsewhere.outcome(), (409, "in-flight".to_owned()), "the cache has nothing of it");
    feed.send("data: 2\n\n");
    feed.end();
    let [first, joined] = [first.await, joined.await].map(|read| read.unwrap().1.unwrap().seen_as_whole());
    assert_eq!((&*first.text(), first.oncegate_status()), ("data: 1\n\ndata: 2\n\n", Some("executed")));
    assert_eq!(joined.comparable(), first.replayed());
    redis.wait_for_entries(1).await;
    assert_eq!(shared_cache::replay(&other, "k-1").await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(a_stream_ends_as_it_began_whatever_a_reload_changes);
async fn a_stream_ends_as_it_began_whatever_a_reload_changes(store: Store) {
    let world = World::guarding(store, "in_flight = \"wait\"").await;
    let feed = feed(&world, EVENTS);
    let (mut first, _) = open(pay(&world, "k-1")).await;
    feed.send("data: 1\n\n");
    assert_eq!(first.piece().await.unwrap().unwrap(), b"data: 1\n\n");
    let own = Upstream::start().await;
    let lines = "in_flight = \"wait\"\nkey = { required = true }\nstream = \"never\"\nmax_response_body = \"1KiB\"";
    let changed = with(&world, "", lines).upstream(own.address);
    reload(&world, &changed.text(), RELOADED, 1).await;
    settles(async || requires_a_key(&world).await).await;
    let (joined, head) = open(pay(&world, "k-1")).await;
    assert_eq!(status(&head), Some("attached"), "the stream is still there");
    let last = format!("data: {}\n\n", "2".repeat(2_000));
    feed.send(&*last);
    feed.end();
    let mut rest = Vec::new();
    while let Some(piece) = first.piece().await.unwrap() {
        rest.extend(piece);
    }
    assert_eq!((rest, trailer(&first.trailers(), "oncegate-status")), (last.clone().into(), Some("executed")));
    let joined = read(joined, head).await.1.unwrap();
    assert_eq!(joined.text(), format!("data: 1\n\n{last}"));
    let replay = pay(&world, "k-1").send().await;
    assert_eq!((replay.oncegate_status(), &replay.body), (Some("replayed"), &joined.body));
    assert_eq!((world.upstream.executed_for("k-1"), own.executed_for("k-1")), (1, 0));
}
