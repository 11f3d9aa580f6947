//! `limits`: the new keys of each caller, and of each address while its callers are unknown to the service.

use harness::metrics::Metrics;
use harness::{Answer, Response, Store, World, on_both_stores, route};

/// One new key in ten seconds would be too slow for a test; one a second is slow enough for a busy machine.
const SLOW: &str = "limits = { new_keys_per_second = 1, burst = 3 }";

fn is_limited(response: &Response) -> bool {
    let wait = response.field("retry-after").and_then(|wait| wait.parse::<u64>().ok());
    response.outcome() == (429, "too-many-keys".to_owned()) && wait == Some(1)
}

async fn limited(world: &World) -> u64 {
    Metrics::of(&world.proxy).await.get("oncegate_rate_limited_total{route=\"pay\"}") as u64
}

on_both_stores!(a_caller_with_too_many_new_keys_is_refused_and_its_earlier_keys_are_replayed);
async fn a_caller_with_too_many_new_keys_is_refused_and_its_earlier_keys_are_replayed(store: Store) {
    // Without a cache, a replay has to find its key in the store.
    let world = World::with(store, |setup| setup.top("cache = { memory = \"0B\" }").route(&route("pay", SLOW))).await;
    let mut first = None;
    let mut executed = 0;
    let refusal = loop {
        let answer = world.pay(&format!("k-{executed}")).send().await;
        if answer.status != 201 {
            break answer;
        }
        first.get_or_insert(answer);
        executed += 1;
    };
    assert!(executed >= 3 && is_limited(&refusal), "{executed} {refusal:?}");
    let replay = world.pay("k-0").send().await;
    assert_eq!(replay.comparable(), first.unwrap().replayed());
    let other = world.pay("k-0").anonymous().field("Authorization", "Bearer other").send().await;
    assert_eq!(other.oncegate_status(), Some("executed"), "another caller");
    assert_eq!((world.upstream.calls(), limited(&world).await), (executed + 1, 1));
}

#[tokio::test]
async fn invented_credentials_share_the_limit_of_their_address_and_known_callers_do_not() {
    let lines = "trusted_proxies = []";
    let world = World::with(Store::sqlite(), |setup| setup.top(lines).route(&route("pay", SLOW))).await;
    let by = |token: &str, key: &str| world.pay(key).anonymous().field("Authorization", &format!("Bearer {token}"));
    assert_eq!(by("known", "k-1").send().await.status, 201);
    world.upstream.answer_all(Answer::status(401));
    let mut refused = None;
    for number in 0..10 {
        let answer = by(&format!("invented-{number}"), "k-1").send().await;
        if answer.status != 401 {
            refused.get_or_insert(answer);
        }
    }
    assert!(is_limited(&refused.expect("an address has a limit")));
    world.upstream.answer_all(Answer::status(201));
    assert_eq!(by("known", "k-2").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn a_gateway_s_clients_have_limits_of_their_own() {
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("pay", SLOW))).await;
    world.upstream.answer_all(Answer::status(401));
    let from = |field: &str, hops: &str, number: usize| {
        let token = format!("Bearer {field}-{hops}-{number}");
        world.pay("k-1").anonymous().field("Authorization", &token).field(field, hops)
    };
    // Each client with another spelling of its address.
    for (field, client, again) in [
        ("X-Forwarded-For", "203.0.113.7, 192.0.2.1", "203.0.113.8, 192.0.2.1"),
        ("X-Forwarded-For", "192.0.2.2:4711", "203.0.113.7, 192.0.2.2:4712"),
        ("X-Forwarded-For", "[2001:db8:0:1::1]:4711", "2001:db8:0:1::2"),
        ("Forwarded", "for=192.0.2.3;proto=https", "for=1.2.3.4, FOR=\"192.0.2.3:4711\""),
        ("Forwarded", "for=\"[2001:db8:0:2::1]:4711\"", "for=\"[2001:db8:0:2::2]\""),
        ("X-Forwarded-For", "unknown", "_hidden"),
    ] {
        assert_eq!(from(field, client, 0).send().await.status, 401, "{client}: it has a limit of its own");
        let mut statuses = Vec::new();
        for number in 1..10 {
            statuses.push(from(field, client, number).send().await.status);
        }
        assert!(statuses.contains(&429), "{client}: {statuses:?}");
        assert_eq!(from(field, again, 10).send().await.status, 429, "{again} is the same client");
    }
}

on_both_stores!(queued_requests_count_as_new_keys);
async fn queued_requests_count_as_new_keys(store: Store) {
    let lines = format!("{SLOW}\ndelivery = \"async\"");
    let world =
        World::with(store, |setup| setup.top("secret = \"a secret of some length\"").route(&route("pay", &lines)))
            .await;
    let mut answers = Vec::new();
    for number in 0..10 {
        answers.push(world.pay(&format!("k-{number}")).send().await);
    }
    assert!(answers.iter().take(3).all(|answer| answer.status == 202));
    assert!(answers.iter().any(is_limited));
    assert_ne!(world.pay("k-0").send().await.status, 429, "an accepted key is known");
}
