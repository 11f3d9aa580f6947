//! `limits.live_keys`: the live keys of each caller, and of each address while its callers are unknown to the service.

use futures_util::future::join_all;

use harness::{Answer, Response, Store, TEST_TIMEOUT, World, eventually, on_both_stores, route};

const LIMIT: &str = "limits = { live_keys = 3 }";

/// Without a cache, a replay has to find its key in the store.
const NO_CACHE: &str = "cache = { memory = \"0B\" }";

fn is_limited(response: &Response) -> bool {
    // The interval of the reaper, which makes room.
    response.outcome() == (429, "too-many-keys".to_owned()) && response.field("retry-after") == Some("60")
}

on_both_stores!(a_caller_with_too_many_live_keys_gets_no_new_one_and_its_earlier_keys_work);
async fn a_caller_with_too_many_live_keys_gets_no_new_one_and_its_earlier_keys_work(store: Store) {
    let world = World::with(store, |setup| setup.top(NO_CACHE).route(&route("pay", LIMIT))).await;
    let first = world.pay("first").send().await;
    world.pay("k-1").send().await;
    world.upstream.then(Answer::status(503));
    assert_eq!(world.pay("k-2").send().await.oncegate_status(), Some("released"));
    let refusals = join_all((0..10).map(async |number| world.pay(&format!("new-{number}")).send().await)).await;
    assert!(refusals.iter().all(is_limited));
    assert_eq!(world.upstream.calls(), 3);
    assert_eq!(world.pay("first").send().await.comparable(), first.replayed());
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("replayed"));
    assert_eq!(world.pay("k-2").send().await.oncegate_status(), Some("executed"), "a retry is no new key");
    let other = world.pay("k-1").anonymous().field("Authorization", "Bearer other").send().await;
    assert_eq!(other.oncegate_status(), Some("executed"), "another caller");
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(world.store.states().await.len(), 4, "a refusal reserves nothing");
}

on_both_stores!(one_caller_s_keys_at_once_do_not_exceed_the_limit);
async fn one_caller_s_keys_at_once_do_not_exceed_the_limit(store: Store) {
    let lines = "limits = { live_keys = 10 }";
    let world = World::with(store, |setup| setup.route(&route("pay", lines))).await;
    assert_eq!(world.pay("first").send().await.status, 201);
    let answers = join_all((0..40).map(async |number| world.pay(&format!("k-{number}")).send().await)).await;
    let executed = answers.iter().filter(|answer| answer.status == 201).count();
    assert!((1..10).contains(&executed), "{executed}");
    assert!(answers.iter().filter(|answer| answer.status != 201).all(is_limited));
}

on_both_stores!(invented_credentials_share_the_limit_of_their_address_and_known_callers_do_not);
async fn invented_credentials_share_the_limit_of_their_address_and_known_callers_do_not(store: Store) {
    let mut world = World::with(store, |setup| setup.route(&route("pay", LIMIT))).await;
    async fn pay(world: &World, token: &str, key: &str) -> Response {
        world.pay(key).anonymous().field("Authorization", &format!("Bearer {token}")).send().await
    }
    assert_eq!(pay(&world, "known", "k-1").await.status, 201);
    // The service looks at the body before the credentials.
    world.upstream.answer_all(Answer::status(422));
    for number in 0..3 {
        assert_eq!(pay(&world, &format!("invented-{number}"), "k-1").await.status, 422);
    }
    for number in 3..8 {
        assert!(is_limited(&pay(&world, &format!("invented-{number}"), "k-1").await));
    }
    world.upstream.answer_all(Answer::status(201));
    assert_eq!(pay(&world, "known", "k-2").await.oncegate_status(), Some("executed"));
    // A new instance finds out who is known.
    world.crash_and_restart().await;
    assert!(is_limited(&pay(&world, "invented-9", "k-1").await));
    assert_eq!(pay(&world, "known", "k-3").await.oncegate_status(), Some("executed"));
    assert!(is_limited(&pay(&world, "known", "k-4").await));
}

on_both_stores!(keys_from_before_a_caller_is_accepted_count_for_the_caller_afterwards);
async fn keys_from_before_a_caller_is_accepted_count_for_the_caller_afterwards(store: Store) {
    // The key that brings the 2xx: a first attempt, a retry of a released one, or a delivery.
    let lines = "secret = \"a secret of some length\"";
    let later = format!("{LIMIT}\ndelivery = \"async\"\nretry.base = \"100ms\"");
    let routes = [("pay", LIMIT), ("again", LIMIT), ("later", &*later)];
    let world = World::with(store, |setup| {
        routes.iter().fold(setup.top(lines), |setup, (name, lines)| setup.route(&route(name, lines)))
    })
    .await;
    for (name, accepts) in [("pay", 201), ("again", 201), ("later", 202)] {
        let pay = async |token: &str, key: &str| {
            let request = world.post(&format!("/{name}")).key(key).anonymous();
            request.field("Authorization", &format!("Bearer {token}")).body("x").send().await
        };
        if name == "later" {
            assert_eq!(pay("a", "k-1").await.status, accepts);
            eventually(TEST_TIMEOUT, async || (pay("a", "k-1").await.status == 201).then_some(())).await;
        } else {
            world.upstream.then(Answer::status(422));
            assert_eq!(pay("a", "k-1").await.status, 422);
        }
        if name == "again" {
            world.upstream.then(Answer::status(503));
            assert_eq!(pay("a", "k-2").await.oncegate_status(), Some("released"));
        }
        assert_eq!(pay("a", "k-2").await.status, accepts, "{name}");
        assert_eq!(pay("a", "k-3").await.status, accepts, "{name}");
        eventually(TEST_TIMEOUT, async || is_limited(&pay("a", "k-4").await).then_some(())).await;
        // Their address has its room again.
        let mut others = Vec::new();
        for token in ["b", "c", "d"] {
            others.push(pay(token, "k-1").await.status);
        }
        assert_eq!(others, [accepts; 3], "{name}");
    }
}

on_both_stores!(reaped_keys_make_room);
async fn reaped_keys_make_room(store: Store) {
    let lines = format!("{LIMIT}\nttl = \"1s\"");
    let world = World::with(store, |setup| setup.store("reap_every = \"100ms\"").route(&route("pay", &lines))).await;
    let mut number = 0;
    // Until the limit is reached.
    eventually(TEST_TIMEOUT, async || {
        number += 1;
        (world.pay(&format!("k-{number}")).send().await.status == 429).then_some(())
    })
    .await;
    let calls = world.upstream.calls();
    eventually(TEST_TIMEOUT, async || (world.pay("later").send().await.status == 201).then_some(())).await;
    assert_eq!(world.upstream.calls(), calls + 1);
}

#[tokio::test]
async fn instances_share_the_limit() {
    let world = World::with(Store::postgres().await, |setup| setup.route(&route("pay", LIMIT))).await;
    let second = world.setup.start().await;
    let on_second = |key: &str| second.post("/pay").key(key).json(r#"{"amount":10,"currency":"EUR"}"#);
    for key in ["first", "k-1"] {
        assert_eq!(world.pay(key).send().await.status, 201);
    }
    assert_eq!(on_second("k-2").send().await.status, 201);
    assert!(is_limited(&on_second("k-3").send().await));
    // Each count of the first instance has shown room for less than eight keys, and so has served one.
    assert!(is_limited(&world.pay("k-4").send().await));
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn keys_that_the_store_cannot_count_are_allowed() {
    let store = Store::postgres().await;
    let Store::Postgres(database) = &store else { unreachable!() };
    let role = format!("uncounted_{}", database.name);
    let make = format!(
        "create role {role} login; grant usage on schema oncegate to {role};
         grant all on all tables in schema oncegate to {role}; grant all on all sequences in schema oncegate to {role};
         revoke select on oncegate.keys from {role}"
    );
    let client = database.client().await;
    client.batch_execute(&make).await.unwrap();
    let columns = "select string_agg(attname, ', ') from pg_attribute where attrelid = 'oncegate.keys'::regclass
                    and attnum > 0 and not attisdropped and attname <> 'holder'";
    let columns: String = client.query_one(columns, &[]).await.unwrap().get(0);
    client.batch_execute(&format!("grant select ({columns}) on oncegate.keys to {role}")).await.unwrap();
    let (_, server) = database.url.split_once('@').unwrap();
    let url = format!("postgres://{role}@{server}");
    let world = World::with(store, |setup| setup.through(&url).route(&route("pay", LIMIT))).await;
    for number in 0..10 {
        let answer = world.pay(&format!("k-{number}")).send().await;
        assert_eq!(answer.oncegate_status(), Some("executed"));
    }
    world.proxy.wait_for_log("could not be counted; its new key is allowed").await;
}

on_both_stores!(queued_requests_count_as_live_keys);
async fn queued_requests_count_as_live_keys(store: Store) {
    let lines = format!("{LIMIT}\ndelivery = \"async\"");
    let world =
        World::with(store, |setup| setup.top("secret = \"a secret of some length\"").route(&route("pay", &lines)))
            .await;
    world.upstream.answer_all(Answer::never());
    let mut answers = Vec::new();
    for number in 0..6 {
        answers.push(world.pay(&format!("k-{number}")).send().await);
    }
    assert!(answers.iter().take(3).all(|answer| answer.status == 202));
    assert!(answers.iter().skip(3).all(is_limited));
    assert_ne!(world.pay("k-0").send().await.status, 429, "an accepted key is known");
}
