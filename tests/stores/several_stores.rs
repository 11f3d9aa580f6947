//! Several stores behind HAProxy, which chooses the store by a hash of the key: each key has
//! one store, and is executed once.
//!
//! Each store has two proxies. Each proxy has a service of its own, so that an execution
//! tells which proxy forwarded it.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use sha2::{Digest, Sha256};
use tokio_postgres::Client;

use crate::store_trouble::is_unavailable;
use harness::haproxy::ShardingHaproxy;
use harness::postgres::{self, Cluster, TestDatabase};
use harness::{Answer, Hold, Proxy, Request, Response, Setup, TEST_TIMEOUT, Upstream, eventually, route};

const SPLIT: &str = include_str!("../../deploy/postgres/split.sql");

const SHARDS: usize = 2;

/// Two proxies on one store.
struct Shard {
    database: TestDatabase,
    proxies: [Proxy; 2],
    services: [Upstream; 2],
}

impl Shard {
    async fn start(database: TestDatabase, more: &impl Fn(Setup) -> Setup) -> Self {
        let services = [Upstream::start().await, Upstream::start().await];
        let start = async |service: &Upstream| {
            let setup = Proxy::on(&database.url).upstream(service.address).route(&route("pay", ""));
            more(setup).start().await
        };
        let proxies = [start(&services[0]).await, start(&services[1]).await];
        Self { database, proxies, services }
    }

    /// The number of requests that its proxies have forwarded.
    fn calls(&self) -> usize {
        self.services.iter().map(Upstream::calls).sum()
    }

    /// The keys in its store.
    async fn keys(&self) -> BTreeSet<String> {
        stored_keys(&self.database.client().await).await
    }
}

async fn stored_keys(client: &Client) -> BTreeSet<String> {
    let rows = client.query("select convert_from(key, 'UTF8') from oncegate.keys", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Two stores behind HAProxy.
struct ShardedWorld {
    shards: [Shard; SHARDS],
    haproxy: ShardingHaproxy,
}

impl ShardedWorld {
    /// On new databases; `None` with a message if HAProxy is not installed.
    async fn start() -> Option<Self> {
        Self::with(|setup| setup).await
    }

    /// With additional setup of each proxy.
    async fn with(more: impl Fn(Setup) -> Setup) -> Option<Self> {
        Self::on([postgres::database().await, postgres::database().await], more).await
    }

    async fn on(databases: [TestDatabase; SHARDS], more: impl Fn(Setup) -> Setup) -> Option<Self> {
        let [first, second] = databases;
        let shards = [Shard::start(first, &more).await, Shard::start(second, &more).await];
        let addresses = shards.each_ref().map(|shard| shard.proxies.each_ref().map(|proxy| proxy.listen));
        let haproxy = ShardingHaproxy::before(addresses).await?;
        Some(Self { shards, haproxy })
    }

    fn pay(&self) -> Request {
        self.haproxy.client.post("/pay").json(r#"{"amount":10,"currency":"EUR"}"#)
    }

    async fn send(&self, key: &str) -> Response {
        self.pay().key(key).send().await
    }

    /// The number of requests that all proxies have forwarded.
    fn calls(&self) -> usize {
        self.shards.iter().map(Shard::calls).sum()
    }
}

/// The store of a key, computed as the comments in `sharding.cfg` say.
fn shard_of(key: &str) -> usize {
    let hash = Sha256::digest(key.to_ascii_lowercase());
    let number = u64::from_be_bytes(hash[..8].try_into().unwrap()) >> 4;
    usize::try_from(number).unwrap() % SHARDS
}

/// Different keys of one store.
fn keys_of(shard: usize, word: &str, count: usize) -> Vec<String> {
    let keys = (0..).map(|number| format!("{word}-{number}")).filter(|key| shard_of(key) == shard);
    keys.take(count).collect()
}

fn status(response: &Response) -> (u16, Option<&str>) {
    (response.status, response.oncegate_status())
}

const EXECUTED: (u16, Option<&str>) = (201, Some("executed"));
const REPLAYED: (u16, Option<&str>) = (201, Some("replayed"));

#[tokio::test]
async fn all_spellings_of_a_key_reach_one_store_and_are_replayed() {
    let Some(world) = ShardedWorld::start().await else { return };
    let escaped = |key: &str| key.replace('\\', "\\\\").replace('"', "\\\"");
    // The last two have characters that a quoted spelling escapes.
    let keys: Vec<_> = (0..10).map(|number| format!("k-{number}")).chain([r#"a"b\c"#.into(), r"\\".into()]).collect();
    for key in &keys {
        let first = world.send(key).await;
        assert_eq!(status(&first), EXECUTED, "{key}");
        let quoted = format!("\"{}\"", escaped(key));
        let spellings = [
            format!("  {key} \t"),
            quoted.clone(),
            format!("\t {quoted}\t "),
            format!("{quoted};v=1"),
            format!("{quoted}; v=\"x\\\"y\""),
        ];
        for spelling in spellings {
            let answer = world.send(&spelling).await;
            assert_eq!((status(&answer), answer.text()), (REPLAYED, first.text()), "{spelling:?}");
        }
        assert!(world.shards[shard_of(key)].keys().await.contains(key), "{key}");
    }
    assert_eq!(world.calls(), keys.len());
}

#[tokio::test]
async fn both_cases_of_a_uuid_reach_one_store() {
    let uuids = |setup: Setup| setup.route(&route("uuid", "key = { syntax = \"uuid\" }"));
    let Some(world) = ShardedWorld::with(uuids).await else { return };
    for number in 0..10 {
        let uuid = format!("8e03978e-40d5-43e8-bc93-6894a57f93{number:02}");
        let send = async |key: &str| world.haproxy.client.post("/uuid").key(key).json("{}").send().await;
        assert_eq!(status(&send(&uuid).await), EXECUTED);
        assert_eq!(status(&send(&uuid.to_ascii_uppercase()).await), REPLAYED);
    }
    assert_eq!(world.calls(), 10);
}

#[tokio::test]
async fn several_fields_with_a_key_are_refused_whatever_store_they_reach() {
    let Some(world) = ShardedWorld::start().await else { return };
    for number in 0..10 {
        let several = world.pay().key(&format!("k-{number}")).key(&format!("other-{number}"));
        assert_eq!(several.send().await.outcome(), (400, "key-invalid".to_owned()));
    }
    assert_eq!(world.calls(), 0);
}

#[tokio::test]
async fn keys_spread_over_both_stores_and_each_is_in_one() {
    let Some(world) = ShardedWorld::start().await else { return };
    let keys: BTreeSet<_> = (0..64).map(|number| format!("k-{number}")).collect();
    for key in &keys {
        assert_eq!(status(&world.send(key).await), EXECUTED);
    }
    let [first, second] = [world.shards[0].keys().await, world.shards[1].keys().await];
    assert!(first.len() >= 20 && second.len() >= 20, "{} and {}", first.len(), second.len());
    assert!(first.is_disjoint(&second) && first.union(&second).eq(&keys));
}

#[tokio::test]
async fn requests_without_a_key_are_executed_at_the_first_store_and_read_at_any() {
    let Some(world) = ShardedWorld::start().await else { return };
    for _ in 0..8 {
        assert_eq!(world.pay().send().await.status, 201);
    }
    assert_eq!((world.shards[0].calls(), world.shards[1].calls()), (8, 0));
    for _ in 0..8 {
        assert_eq!(world.haproxy.client.get("/payments").send().await.status, 201);
    }
    assert_eq!((world.shards[0].calls(), world.shards[1].calls()), (12, 4));
}

#[tokio::test]
async fn an_operation_is_found_by_a_read_with_its_key() {
    let delivered_later =
        |setup: Setup| setup.top("secret = \"a secret of some length\"").route(&route("later", "delivery = \"async\""));
    let Some(world) = ShardedWorld::with(delivered_later).await else { return };
    for key in [keys_of(0, "k", 3), keys_of(1, "k", 3)].concat() {
        let accepted = world.haproxy.client.post("/later").key(&key).json("{}").send().await;
        let path = accepted.field("location").expect("it is accepted").to_owned();
        for _ in 0..4 {
            assert_eq!(world.haproxy.client.get(&path).key(&key).send().await.status, 200, "{key}");
        }
    }
}

#[tokio::test]
async fn a_proxy_that_is_down_is_passed_by_and_nothing_is_executed_twice() {
    let Some(world) = ShardedWorld::start().await else { return };
    let keys = |word: &str| [keys_of(0, word, 10), keys_of(1, word, 10)].concat();
    for key in keys("before") {
        assert_eq!(status(&world.send(&key).await), EXECUTED, "{key}");
    }
    for shard in &world.shards {
        shard.proxies[0].kill9().await;
    }
    // HAProxy's checks have not noticed it yet: its own connections are refused.
    for key in keys("after") {
        assert_eq!(status(&world.send(&key).await), EXECUTED, "{key}");
    }
    for key in [keys("before"), keys("after")].concat() {
        assert_eq!(status(&world.send(&key).await), REPLAYED, "{key}");
    }
    assert_eq!(world.calls(), 40);
    eventually(TEST_TIMEOUT, async || world.haproxy.has_redispatched().then_some(())).await;
}

#[tokio::test]
async fn a_request_whose_proxy_dies_is_not_sent_to_another_one() {
    // Without a key nobody would notice that it is executed twice.
    for key in [None, Some(keys_of(0, "k", 1).remove(0))] {
        let Some(world) = ShardedWorld::start().await else { return };
        let shard = &world.shards[0];
        let hold = Hold::new();
        for service in &shard.services {
            service.answer_all(Answer::status(201).hold(&hold));
        }
        let running = key.iter().fold(world.pay(), |request, key| request.key(key)).spawn();
        let executing = async || shard.services.iter().position(|service| !service.executed().is_empty());
        let executing = eventually(TEST_TIMEOUT, executing).await;
        shard.proxies[executing].kill9().await;
        assert_eq!(running.await.unwrap().unwrap().status, 502);
        assert_eq!(world.calls(), 1);
    }
}

#[tokio::test]
async fn a_store_that_is_down_refuses_its_keys_while_the_other_one_serves() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start("")).await.unwrap();
    let databases = [postgres::database().await, cluster.empty_database().await];
    let Some(world) = ShardedWorld::on(databases, |setup| setup).await else { return };
    cluster.crash();
    for key in keys_of(1, "during", 8) {
        is_unavailable(&world.send(&key).await);
    }
    for key in keys_of(0, "during", 8) {
        assert_eq!(status(&world.send(&key).await), EXECUTED);
        assert_eq!(status(&world.send(&key).await), REPLAYED);
    }
    assert_eq!((world.shards[0].calls(), world.shards[1].calls()), (8, 0));
    cluster.restart();
    for key in keys_of(1, "during", 8) {
        let back =
            eventually(TEST_TIMEOUT, async || Some(world.send(&key).await).filter(|answer| answer.status != 503));
        assert_eq!(status(&back.await), EXECUTED);
    }
    assert_eq!((world.shards[0].calls(), world.shards[1].calls()), (8, 8));
}

#[tokio::test]
async fn a_store_that_was_split_has_all_its_keys_on_the_side_that_haproxy_asks() {
    let whole = postgres::database().await;
    let mut before = Shard::start(whole.clone(), &|setup| setup).await;
    let pay = |proxy: &Proxy, key: &str| proxy.post("/pay").key(key).json(r#"{"amount":10,"currency":"EUR"}"#);
    let keys: Vec<_> = (0..40).map(|number| format!("Key-{number}")).chain(["\"a\\\"b\\\\c\"".into()]).collect();
    let unknown: Vec<_> = [keys_of(0, "lost", 3), keys_of(1, "lost", 3)].concat();
    for key in &keys {
        assert_eq!(status(&pay(&before.proxies[0], key).send().await), EXECUTED);
    }
    before.services[0].answer_all(Answer::close());
    for key in &unknown {
        assert_eq!(pay(&before.proxies[0], key).send().await.status, 502);
    }
    let script = |shard: usize| SPLIT.replace(":'shards'", "'2'").replace(":'shard'", &format!("'{shard}'"));
    let refused = whole.client().await.batch_execute(&script(0)).await.unwrap_err();
    assert!(refused.as_db_error().unwrap().message().contains("still has a lease"), "{refused:?}");
    let stored = before.keys().await;
    assert_eq!(stored.len(), keys.len() + unknown.len(), "nothing was deleted");
    for proxy in &mut before.proxies {
        assert_eq!(proxy.stop().await, Some(0));
    }

    let halves = [whole.copy().await, whole.copy().await];
    let mut kept = Vec::new();
    for (shard, half) in halves.iter().enumerate() {
        let client = half.client().await;
        client.batch_execute(&script(shard)).await.unwrap();
        kept.push(stored_keys(&client).await);
    }
    assert!(kept[0].is_disjoint(&kept[1]) && kept[0].union(&kept[1]).eq(&stored));
    assert!(kept.iter().enumerate().all(|(shard, kept)| kept.iter().all(|key| shard_of(key) == shard)));

    let Some(world) = ShardedWorld::on(halves, |setup| setup).await else { return };
    for answer in join_all(keys.iter().map(|key| world.send(key))).await {
        assert_eq!(status(&answer), REPLAYED);
    }
    for key in &unknown {
        assert_eq!(world.send(key).await.outcome(), (409, "outcome-unknown".to_owned()));
    }
    assert_eq!(world.calls(), 0);
}
