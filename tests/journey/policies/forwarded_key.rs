//! The key that the service gets.

use oncegate_domain::key::{Key, KeyLimits, KeySyntax};

use harness::{Store, World};

async fn forwarding(forward_key: &str, more: &str) -> World {
    World::guarding(Store::sqlite(), &format!("forward_key = \"{forward_key}\"\n{more}")).await
}

/// The key's field in the service's request and in the client's answer.
async fn seen(world: &World, key: &str) -> (Option<String>, Option<String>) {
    let answer = world.pay(key).send().await;
    assert_eq!(answer.oncegate_status(), Some("executed"));
    let again = world.pay(key).send().await;
    assert_eq!(again.comparable(), answer.replayed());
    let seen = world.upstream.last().field("idempotency-key").map(str::to_owned);
    (seen, answer.field("idempotency-key").map(str::to_owned))
}

fn both(seen: &str, echoed: &str) -> (Option<String>, Option<String>) {
    (Some(seen.to_owned()), Some(echoed.to_owned()))
}

#[tokio::test]
async fn the_forwarded_key_is_the_clients_by_default() {
    for world in [World::guarding(Store::sqlite(), "").await, forwarding("same", "").await] {
        for key in ["k-1", "\"k-2\"; v=1", r#""a\"b\\c""#] {
            assert_eq!(seen(&world, key).await, both(key, key));
        }
    }
}

#[tokio::test]
async fn the_forwarded_key_may_be_omitted() {
    let world = forwarding("none", "").await;
    assert_eq!(seen(&world, "k-1").await, (None, Some("k-1".to_owned())));
    let world = forwarding("none", "key = { from = \"header:X-Key\" }").await;
    let answer = world.pay("other").field("X-Key", "k-1").send().await;
    assert_eq!((answer.oncegate_status(), answer.field("x-key")), (Some("executed"), Some("k-1")));
    let call = world.upstream.last();
    assert_eq!((call.field("x-key"), call.field("idempotency-key")), (None, Some("other")));
}

#[tokio::test]
async fn the_forwarded_key_may_be_derived_in_the_clients_syntax() {
    let world = forwarding("derive:charge", "").await;
    assert_eq!(seen(&world, "k-1").await, both("k-1:charge", "k-1"));
    assert_eq!(seen(&world, "\"k-2\"").await, both("\"k-2:charge\"", "\"k-2\""));
    assert_eq!(seen(&world, r#""a\"b\\c";v=1"#).await, both(r#""a\"b\\c:charge""#, r#""a\"b\\c";v=1"#));
    let world = forwarding("derive:charge", "key = { syntax = \"opaque\" }").await;
    assert_eq!(seen(&world, "\"k-1\"").await, both("\"k-1\":charge", "\"k-1\""));
}

#[tokio::test]
async fn a_key_from_a_query_or_body_is_derived_into_the_header() {
    let world = forwarding("derive:charge", "key = { from = \"json:/id\" }").await;
    let answer = world.post("/pay").json(r#"{"id":"k-1"}"#).send().await;
    assert_eq!((answer.oncegate_status(), answer.field("idempotency-key")), (Some("executed"), None));
    let call = world.upstream.last();
    assert_eq!((call.field("idempotency-key"), &*call.body), (Some("k-1:charge"), &br#"{"id":"k-1"}"#[..]));
}

#[tokio::test]
async fn each_attempt_carries_the_same_derived_key() {
    let world = forwarding("derive:charge", "").await;
    world.upstream.then(harness::Answer::status(500));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("released"));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    let keys: Vec<_> =
        world.upstream.executed().iter().map(|call| call.field("idempotency-key").unwrap().to_owned()).collect();
    assert_eq!(keys, ["k-1:charge", "k-1:charge"]);
}

#[tokio::test]
async fn the_longest_derived_key_is_complete_and_well_formed() {
    let step = "x".repeat(64);
    let world = forwarding(&format!("derive:{step}"), "key = { max_length = 1024 }").await;
    let bare = "k".repeat(1_024);
    assert_eq!(seen(&world, &bare).await, both(&format!("{bare}:{step}"), &bare));
    // Each of its characters is escaped, and counts once.
    let (quotes, escaped) = ("\"".repeat(1_024), "\\\"".repeat(1_024));
    let quoted = format!("\"{escaped}\"");
    let (derived, _) = seen(&world, &quoted).await;
    let derived = derived.unwrap();
    assert_eq!(derived, format!("\"{escaped}:{step}\""));
    // The service's proxy accepts as a key what the service does.
    let limits = KeyLimits { length_min: 1, length_max: 2_048 };
    let key = Key::parse(derived.as_bytes(), KeySyntax::SfString, limits).unwrap();
    assert_eq!(key.as_bytes(), format!("{quotes}:{step}").as_bytes());
}

#[tokio::test]
async fn of_several_fields_for_the_key_the_service_sees_what_the_route_says() {
    let names = r#"key = { from = ["header:Idempotency-Key", "header:X-Idempotency-Key"] }"#;
    for (forward_key, sent, expected) in [
        ("same", &["x-idempotency-key"][..], (None, Some("k-1"))),
        ("none", &["x-idempotency-key"], (None, None)),
        ("none", &["idempotency-key", "x-idempotency-key"], (None, None)),
        ("derive:charge", &["x-idempotency-key"], (None, Some("k-1:charge"))),
        ("derive:charge", &["idempotency-key", "x-idempotency-key"], (Some("k-1:charge"), None)),
    ] {
        let world = forwarding(forward_key, names).await;
        let request = sent.iter().fold(world.post("/pay").body("x"), |request, name| request.field(name, "k-1"));
        assert_eq!(request.send().await.oncegate_status(), Some("executed"));
        let seen = world.upstream.last();
        let seen = (seen.field("idempotency-key"), seen.field("x-idempotency-key"));
        assert_eq!(seen, expected, "{forward_key} {sent:?}");
    }
}
