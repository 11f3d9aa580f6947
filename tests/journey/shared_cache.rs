//! `cache.redis`: instances share completed responses, and whatever the Redis server does or holds, nobody gets a wrong
//! answer, and nothing is executed twice.

use std::net::SocketAddr;

use harness::metrics::Metrics;
use harness::operator::{Operator, keys};
use harness::proxy::Setup;
use harness::redis::RedisFixture;
use harness::relay::Relay;
use harness::tls::{Authority, FrontMode, TlsFront};
use harness::{Answer, Proxy, Request, Response, Store, TEST_TIMEOUT, World, eventually};

const CANARY: &str = "canary-4111111111111111";
const SECRET: &str = "secret = \"the only secret of ours\"";

/// No heartbeat happens during a test, so that a cut store is not noticed by it.
const RARE_HEARTBEATS: &str = "lease = { heartbeat = \"300s\", expiry = \"900s\" }\ntimeout = \"500ms\"";

/// Shares through this server, and keeps nothing in memory: each replay comes from the server or the store.
pub fn sharing(redis_url: &str) -> impl FnOnce(Setup) -> Setup {
    let line = format!("cache = {{ memory = \"0B\", redis = \"{redis_url}\" }}");
    move |setup| setup.top(&line)
}

pub fn pay(proxy: &Proxy, key: &str) -> Request {
    proxy.post("/pay").key(key).json(r#"{"amount":10,"currency":"EUR"}"#)
}

/// Two instances on one PostgreSQL behind a relay.
async fn pair_behind_relay(more: impl FnOnce(Setup) -> Setup) -> (World, Proxy, Relay) {
    let store = Store::postgres().await;
    let url = store.url();
    let (user, place) = url.split_once('@').unwrap();
    let (address, database) = place.split_once('/').unwrap();
    let relay = Relay::to(address.parse::<SocketAddr>().unwrap()).await;
    let through = format!("{user}@{}/{database}", relay.address);
    let world = World::with(store, |setup| more(setup.through(&through))).await;
    let other = world.setup.start().await;
    (world, other, relay)
}

async fn reads(proxy: &Proxy, result: &str) -> f64 {
    Metrics::of(proxy).await.get(&format!("oncegate_shared_cache_reads_total{{result=\"{result}\"}}"))
}

/// Waits until the proxy is connected to the shared cache.
pub async fn wait_until_connected(proxy: &Proxy) {
    let connected = async || Metrics::of(proxy).await.get("oncegate_shared_cache_connected") == 1.0;
    eventually(TEST_TIMEOUT, async || connected().await.then_some(())).await;
}

/// Retries until a read of the shared cache was in time, which a busy machine may miss, and found the response.
pub async fn replay(proxy: &Proxy, key: &str) -> Response {
    eventually(TEST_TIMEOUT, async || {
        wait_until_connected(proxy).await;
        let before = reads(proxy, "hit").await;
        let response = pay(proxy, key).send().await;
        (reads(proxy, "hit").await == before + 1.0).then_some(response)
    })
    .await
}

#[tokio::test]
async fn another_instance_replays_without_the_store_and_executes_nothing() {
    let Some(redis) = RedisFixture::start().await else { return };
    let (world, other, store) = pair_behind_relay(|setup| sharing(&redis.url())(setup).store(RARE_HEARTBEATS)).await;
    wait_until_connected(&world.proxy).await;
    world.upstream.then(Answer::status(201).field("X-Card", "1").body("paid"));
    let first = pay(&world.proxy, "k-1").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    redis.wait_for_entries(1).await;
    store.cut();
    assert_eq!(replay(&other, "k-1").await.comparable(), first.replayed());
    let reused = async || {
        let response = pay(&other, "k-1").json(r#"{"amount":11}"#).send().await;
        (response.outcome() == (422, "key-reused".to_owned())).then_some(())
    };
    eventually(TEST_TIMEOUT, reused).await;
    let unknown = pay(&other, "k-2").send().await;
    assert_eq!(unknown.status, 503, "only the store decides who executes: {}", unknown.text());
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_purge_voids_the_entries_of_all_instances_also_one_that_is_written_after_it() {
    let Some(redis) = RedisFixture::start().await else { return };
    let world = World::with(Store::postgres().await, |setup| sharing(&redis.url())(setup).short_leases()).await;
    let other = world.setup.start().await;
    wait_until_connected(&world.proxy).await;
    world.upstream.then(Answer::status(201).body("first"));
    assert_eq!(pay(&world.proxy, "k-1").send().await.text(), "first");
    let names = redis.wait_for_entries(1).await;
    let before = redis.entry(&names[0]).await;
    assert_eq!(replay(&other, "k-1").await.text(), "first");

    let operator = Operator::of(&other);
    let id = operator.id("k-1").await;
    let (status, reply) = operator.delete(&format!("/api/v1/keys/{id}?accept_risk=true")).await;
    assert_eq!((status, &reply["instances_behind"]), (200, &serde_json::json!(0)), "{reply}");
    world.upstream.then(Answer::status(201).body("second"));
    assert_eq!(pay(&world.proxy, "k-1").send().await.text(), "second");

    for proxy in [&other, &world.setup.start().await] {
        eventually(TEST_TIMEOUT, async || {
            wait_until_connected(proxy).await;
            let outdated = reads(proxy, "outdated").await;
            // A write of another instance that was under way when the key was purged.
            redis.write(&names[0], &before).await;
            assert_eq!(pay(proxy, "k-1").send().await.text(), "second");
            (reads(proxy, "outdated").await > outdated).then_some(())
        })
        .await;
    }
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_purge_by_the_command_line_while_no_instance_runs_voids_the_entries() {
    let Some(redis) = RedisFixture::start().await else { return };
    let mut world = World::with(Store::sqlite(), sharing(&redis.url())).await;
    wait_until_connected(&world.proxy).await;
    world.upstream.then(Answer::status(201).body("first"));
    assert_eq!(pay(&world.proxy, "k-1").send().await.text(), "first");
    redis.wait_for_entries(1).await;
    let id = Operator::of(&world.proxy).id("k-1").await;
    assert_eq!(world.proxy.stop().await, Some(0));
    let purged = keys(&world.proxy.file(), &["purge", &id, "--accept-risk"]).await;
    assert_eq!(purged.code, 0, "{purged:?}");
    world.proxy = world.setup.start().await;
    wait_until_connected(&world.proxy).await;
    world.upstream.then(Answer::status(201).body("second"));
    assert_eq!(pay(&world.proxy, "k-1").send().await.text(), "second");
    assert_eq!(redis.wait_for_entries(1).await.len(), 1);
}

#[tokio::test]
async fn a_restart_replays_from_the_shared_cache() {
    let Some(redis) = RedisFixture::start().await else { return };
    let mut world = World::with(Store::sqlite(), sharing(&redis.url())).await;
    wait_until_connected(&world.proxy).await;
    let first = pay(&world.proxy, "k-1").send().await;
    redis.wait_for_entries(1).await;
    world.crash_and_restart().await;
    assert_eq!(replay(&world.proxy, "k-1").await.comparable(), first.replayed());
}

#[tokio::test]
async fn an_entry_counts_until_its_ttl_ends_whatever_redis_believes() {
    let Some(redis) = RedisFixture::start().await else { return };
    let world =
        World::with(Store::postgres().await, |setup| sharing(&redis.url())(setup).defaults("ttl = \"3s\"")).await;
    wait_until_connected(&world.proxy).await;
    world.upstream.then(Answer::status(201).body("first"));
    assert_eq!(pay(&world.proxy, "k-1").send().await.text(), "first");
    let names = redis.wait_for_entries(1).await;
    let left = redis.expires_in_ms(&names[0]).await;
    assert!((1..=3_000).contains(&left), "{left}");
    let entry = redis.entry(&names[0]).await;
    redis.write(&names[0], &entry).await;
    assert_eq!(redis.expires_in_ms(&names[0]).await, -1, "it does not expire");
    world.upstream.answer_all(Answer::status(201).body("second"));
    let anew = async || Some(pay(&world.proxy, "k-1").send().await.text()).filter(|text| text == "second");
    eventually(TEST_TIMEOUT, anew).await;
    assert!(reads(&world.proxy, "outdated").await >= 1.0);
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn with_a_secret_the_entries_show_nothing_and_without_one_a_warning_says_so() {
    for (secret, is_readable) in [(SECRET, false), ("", true)] {
        let Some(redis) = RedisFixture::start().await else { return };
        let world = World::with(Store::sqlite(), |setup| sharing(&redis.url())(setup.top(secret))).await;
        wait_until_connected(&world.proxy).await;
        world.upstream.then(Answer::status(201).field("X-Card", CANARY).body(CANARY));
        let first = pay(&world.proxy, "k-1").send().await;
        let names = redis.wait_for_entries(1).await;
        let entry = redis.entry(&names[0]).await;
        assert_eq!(memchr::memmem::find(&entry, b"canary").is_some(), is_readable);
        assert_eq!(world.proxy.output().contains("forge replays"), is_readable);
        assert_eq!(replay(&world.proxy, "k-1").await.comparable(), first.replayed());
    }
}

#[tokio::test]
async fn a_server_that_is_killed_emptied_and_filled_with_garbage_under_load_gives_no_wrong_answer() {
    const KEYS: usize = 40;
    for secret in [SECRET, ""] {
        let Some(mut redis) = RedisFixture::start().await else { return };
        let world = World::with(Store::postgres().await, |setup| sharing(&redis.url())(setup.top(secret))).await;
        let other = world.setup.start().await;
        wait_until_connected(&world.proxy).await;
        let mut firsts = Vec::new();
        for key in 0..KEYS {
            world.upstream.then(Answer::status(201).body(format!("paid {key}")));
            firsts.push(pay(&world.proxy, &format!("k-{key}")).send().await);
        }
        let replay_all = async || {
            for (key, first) in firsts.iter().enumerate() {
                for proxy in [&world.proxy, &other] {
                    let again = pay(proxy, &format!("k-{key}")).send().await;
                    assert_eq!(again.comparable(), first.replayed(), "{key}");
                    assert_eq!(again.text(), format!("paid {key}"));
                }
            }
        };
        let names = redis.wait_for_entries(KEYS).await;
        let swap = async || {
            for (at, name) in names.iter().enumerate() {
                match at % 4 {
                    0 => redis.write(name, &redis.entry(&names[at + 1]).await).await,
                    1 => redis.write(name, b"garbage").await,
                    2 => {
                        let mut changed = redis.entry(name).await;
                        let last = changed.len() - 1;
                        changed[last] ^= 1;
                        redis.write(name, &changed).await;
                    }
                    _ => {
                        let mut connection = redis.connect().await;
                        redis::cmd("DEL").arg(name).exec_async(&mut connection).await.unwrap();
                        redis::cmd("LPUSH").arg(name).arg("x").exec_async(&mut connection).await.unwrap();
                    }
                }
            }
        };
        tokio::join!(replay_all(), swap());
        replay_all().await;
        assert!(reads(&other, "invalid").await + reads(&world.proxy, "invalid").await > 0.0);
        redis.kill9();
        replay_all().await;
        world.proxy.wait_for_log("the shared cache is away").await;
        redis.restart().await;
        world.proxy.wait_for_log("the shared cache answers again").await;
        replay_all().await;
        assert_eq!(world.upstream.calls(), KEYS);
    }
}

#[tokio::test]
async fn each_key_is_executed_once_while_the_server_comes_and_goes() {
    const ROUNDS: usize = 12;
    let Some(mut redis) = RedisFixture::start().await else { return };
    let with = |setup: Setup| sharing(&redis.url())(setup.top(SECRET)).defaults("in_flight = \"wait\"");
    let world = World::with(Store::postgres().await, with).await;
    let proxies = [&world.proxy, &world.setup.start().await];
    wait_until_connected(&world.proxy).await;
    for round in 0..ROUNDS {
        let send = async |key: String| {
            let requests = (0..6).map(|number| pay(proxies[number % 2], &key).spawn());
            let requests: Vec<_> = requests.collect();
            let mut texts = Vec::new();
            for request in requests {
                let response = request.await.unwrap().unwrap();
                assert_eq!(response.status, 201, "{}", response.text());
                texts.push(response.text());
            }
            texts.push(pay(proxies[round % 2], &key).send().await.text());
            assert_eq!(world.upstream.executed_for(&key), 1);
            assert_eq!(texts, vec![format!("effect {}", world.upstream.number_of(&key)); 7]);
        };
        let mut disturb = async || match round % 4 {
            0 => redis.kill9(),
            1 => redis.restart().await,
            2 => redis.freeze(),
            _ => redis.thaw(),
        };
        let key = |name: &str| format!("{name}-{round}");
        tokio::join!(send(key("a")), send(key("b")), send(key("c")), disturb());
    }
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_costs_a_few_reads_and_two_log_lines() {
    let Some(mut redis) = RedisFixture::start().await else { return };
    let world = World::with(Store::sqlite(), sharing(&redis.url())).await;
    wait_until_connected(&world.proxy).await;
    redis.freeze();
    for key in 0..30 {
        assert_eq!(pay(&world.proxy, &format!("k-{key}")).send().await.oncegate_status(), Some("executed"));
    }
    let (failed, unconnected) = (reads(&world.proxy, "failed").await, reads(&world.proxy, "unconnected").await);
    // The server may answer the first read before the signal stops it.
    assert!(failed == 1.0 && [28.0, 29.0].contains(&unconnected), "{failed} failed, {unconnected} unconnected");
    redis.thaw();
    world.proxy.wait_for_log("the shared cache answers again").await;
    wait_until_connected(&world.proxy).await;
    let count = |words: &str| world.proxy.output().matches(words).count();
    assert_eq!((count("the shared cache is away"), count("the shared cache answers again")), (1, 1));
    assert_eq!(pay(&world.proxy, "k-1").send().await.oncegate_status(), Some("replayed"));
    assert_eq!(world.proxy.readyz().await.0, 200);
}

#[tokio::test]
async fn a_server_that_refuses_writes_is_still_read_and_the_refusal_is_logged_once() {
    let Some(redis) = RedisFixture::start().await else { return };
    let world = World::with(Store::sqlite(), sharing(&redis.url())).await;
    wait_until_connected(&world.proxy).await;
    let first = pay(&world.proxy, "k-1").send().await;
    redis.wait_for_entries(1).await;
    redis.set_parameter("maxmemory", "1").await;
    let series = "oncegate_shared_cache_writes_total{result=\"failed\"}";
    for count in 1..=3 {
        assert_eq!(pay(&world.proxy, &format!("new-{count}")).send().await.status, 201);
        let refused = async || Metrics::of(&world.proxy).await.get(series) == f64::from(count);
        eventually(TEST_TIMEOUT, async || refused().await.then_some(())).await;
    }
    assert_eq!(replay(&world.proxy, "k-1").await.comparable(), first.replayed());
    assert_eq!(world.proxy.output().matches("the shared cache has refused a command").count(), 1);
    assert!(!world.proxy.output().contains("the shared cache is away"));
}

#[tokio::test]
async fn a_reload_rotates_the_secret_and_leaves_the_server() {
    const ROTATED: &str = "secret = \"the new secret of ours\"\nprevious_secrets = [\"the only secret of ours\"]";
    let Some(redis) = RedisFixture::start().await else { return };
    let world = World::with(Store::sqlite(), |setup| sharing(&redis.url())(setup.top(SECRET))).await;
    wait_until_connected(&world.proxy).await;
    let first = pay(&world.proxy, "k-1").send().await;
    let [old_name] = &redis.wait_for_entries(1).await[..] else { panic!("there is one") };
    let text = std::fs::read_to_string(world.proxy.file()).unwrap();
    let text = text.replace(SECRET, ROTATED).replace("memory = \"0B\"", "memory = \"1B\"");
    std::fs::write(world.proxy.file(), text).unwrap();
    world.proxy.wait_for_log("cache has changed, which takes effect with a restart").await;
    world.proxy.wait_for_log("the configuration was reloaded").await;
    assert_eq!(replay(&world.proxy, "k-1").await.comparable(), first.replayed());
    // An entry begins with its kind, and the length and the name of its secret.
    let secret_of = async |name: &str| redis.entry(name).await[2..10].to_vec();
    let mut key = 1;
    eventually(TEST_TIMEOUT, async || {
        key += 1;
        pay(&world.proxy, &format!("k-{key}")).send().await;
        let mut is_sealed_anew = false;
        for name in redis.names().await {
            is_sealed_anew |= secret_of(&name).await != secret_of(old_name).await;
        }
        is_sealed_anew.then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_instance_that_cannot_log_in_or_connect_works_without_the_shared_cache() {
    let Some(redis) = RedisFixture::start_with(Some("hunter2")).await else { return };
    let address = redis.address();
    for (url, why) in
        [(format!("redis://:not-it@{address}"), "authentication failed"), (format!("redis://{address}"), "NOAUTH")]
    {
        let world = World::with(Store::sqlite(), sharing(&url)).await;
        world.proxy.wait_for_log("the shared cache is away").await;
        assert_eq!(pay(&world.proxy, "k-1").send().await.oncegate_status(), Some("executed"));
        assert_eq!(pay(&world.proxy, "k-1").send().await.oncegate_status(), Some("replayed"));
        assert!(world.proxy.output().contains(why), "{}", world.proxy.output());
        assert!(!world.proxy.output().contains("not-it"));
        assert_eq!(redis.names().await.len(), 0);
        assert_eq!(world.proxy.readyz().await.0, 200);
    }
    let world = World::with(Store::sqlite(), sharing(&redis.url())).await;
    wait_until_connected(&world.proxy).await;
    pay(&world.proxy, "k-1").send().await;
    redis.wait_for_entries(1).await;
    assert!(!world.proxy.output().contains("hunter2"));
}

#[tokio::test]
async fn a_server_with_tls_is_verified() {
    let Some(redis) = RedisFixture::start().await else { return };
    let (authority, other) = (Authority::new(), Authority::new());
    let front = TlsFront::before(redis.address(), FrontMode::Tls(authority.issue(&["localhost"]).server())).await;
    let url = format!("rediss://localhost:{}", front.address.port());
    let with = |authority: &Authority| {
        let (file, share) = (authority.file().display().to_string(), sharing(&url));
        move |setup: Setup| share(setup.environment("SSL_CERT_FILE", &file))
    };
    let world = World::with(Store::sqlite(), with(&authority)).await;
    wait_until_connected(&world.proxy).await;
    pay(&world.proxy, "k-1").send().await;
    redis.wait_for_entries(1).await;
    let world = World::with(Store::sqlite(), with(&other)).await;
    let line = world.proxy.wait_for_log("the shared cache is away").await;
    assert!(line["message"].as_str().unwrap().contains("the TLS handshake failed"), "{line}");
    assert!(line["cause"].as_str().unwrap().contains("no trusted authority"), "{line}");
    assert_eq!(pay(&world.proxy, "k-1").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn a_route_that_bypasses_an_outage_asks_the_shared_cache_before_it_executes() {
    let Some(redis) = RedisFixture::start().await else { return };
    let lines = "store_down = \"bypass\"";
    let with = |setup: Setup| sharing(&redis.url())(setup).short_leases().store("timeout = \"500ms\"").defaults(lines);
    let (world, other, store) = pair_behind_relay(with).await;
    wait_until_connected(&world.proxy).await;
    wait_until_connected(&other).await;
    let first = pay(&world.proxy, "k-1").send().await;
    redis.wait_for_entries(1).await;
    store.cut();
    let missed = |line: &serde_json::Value| line["task"] == "heartbeat";
    eventually(TEST_TIMEOUT, async || other.logged().iter().any(missed).then_some(())).await;
    assert_eq!(pay(&other, "k-1").send().await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_rotated_password_and_another_server_are_used_without_a_restart() {
    let Some(redis) = RedisFixture::start_with(Some("first-password")).await else { return };
    let Some(other) = RedisFixture::start_with(Some("next-password")).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "wrong").unwrap();
    let url = |redis: &RedisFixture| format!("redis://:${{file:{}}}@{}", file.display(), redis.address());
    let world = World::with(Store::sqlite(), |setup| sharing(&url(&redis))(setup)).await;
    world.proxy.wait_for_log("the shared cache is away").await;
    std::fs::write(&file, "first-password").unwrap();
    wait_until_connected(&world.proxy).await;
    // Another server: the open session ends.
    std::fs::write(&file, "next-password").unwrap();
    let text = world.setup.text().replace(&redis.address().to_string(), &other.address().to_string());
    std::fs::write(world.proxy.file(), text).unwrap();
    let mut number = 0;
    eventually(TEST_TIMEOUT, async || {
        number += 1;
        pay(&world.proxy, &format!("k-{number}")).send().await;
        (!other.names().await.is_empty()).then_some(())
    })
    .await;
    let output = world.proxy.output();
    assert!(!output.contains("first-password") && !output.contains("next-password"), "{output}");
    assert!(!output.contains("which takes effect with a restart"), "{output}");
}
