//! The rules of a route about the bodies of responses.

use harness::operator::Operator;
use harness::{Answer, Store, World, on_both_stores, route};

/// The rules of a service that speaks JSON-RPC.
const RULES: &str = "outcome = [\n\
     { pointer = \"/error/code\", equals = -32000, is = \"release\" },\n\
     { pointer = \"/error/code\", equals = -32602, is = \"store\" },\n\
     { pointer = \"/error\", without = \"/result\", is = \"unknown\" },\n]";

const RESULT: &str = r#"{"jsonrpc":"2.0","result":1,"error":null}"#;
const BUSY: &str = r#"{"jsonrpc":"2.0","error":{"code":-32000}}"#;
const REFUSED: &str = r#"{"jsonrpc":"2.0","error":{"code":-32602}}"#;
const WARNED: &str = r#"{"jsonrpc":"2.0","result":1,"error":{"code":-32603}}"#;
const LOST: &str = r#"{"jsonrpc":"2.0","error":{"code":-32603}}"#;

/// The `Oncegate-Status` of a request and of its retry. The service gives this answer, and then a result.
async fn twice(world: &World, key: &str, answer: Answer) -> [String; 2] {
    let key = key.replace(' ', "-");
    world.upstream.then(answer);
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(world.pay(&key).send().await.oncegate_status().unwrap().to_owned());
    }
    seen.try_into().unwrap()
}

on_both_stores!(a_rule_about_the_body_beats_the_status_and_gives_way_to_the_services_decision);
async fn a_rule_about_the_body_beats_the_status_and_gives_way_to_the_services_decision(store: Store) {
    let world = World::guarding(store, RULES).await;
    world.upstream.answer_all(Answer::status(201).body(RESULT));
    let json = |status, body: &str| Answer::status(status).field("Content-Type", "application/json").body(body);
    let stored = ["executed", "replayed"];
    let released = ["released", "executed"];
    let unknown = ["unknown", "unknown"];
    for (name, answer, seen) in [
        ("result", json(200, RESULT), stored),
        ("busy", json(200, BUSY), released),
        ("refused", json(200, REFUSED), stored),
        ("lost", json(200, LOST), unknown),
        ("a warning beside a result", json(200, WARNED), stored),
        // A class of statuses gives way, and so does a code.
        ("lost by 500", json(500, LOST), unknown),
        ("refused by 500", json(500, REFUSED), stored),
        ("busy by 404", json(404, BUSY), released),
        ("lost with 401", json(401, LOST), unknown),
        ("lost with Retry-After", json(409, LOST).field("Retry-After", "1"), unknown),
        // A gateway that has lost an answer may send the same.
        ("busy by 504", json(504, BUSY), unknown),
        ("refused by 504", json(504, REFUSED), stored),
        // JSON has a rule, whatever it is called.
        ("no type", Answer::status(200).body(LOST), unknown),
        ("nothing", Answer::status(204), stored),
        ("batch", json(200, &format!("[{RESULT},{LOST}]")), unknown),
        ("batch of refusals", json(200, &format!("[{BUSY},{BUSY}]")), released),
        ("a part of a batch", json(200, &format!("[{BUSY},{RESULT}]")), stored),
        ("decision to store", json(200, LOST).field("Oncegate-Decision", "store"), stored),
        ("decision to release", json(200, RESULT).field("Oncegate-Decision", "release"), released),
        // It may have meant that the request was executed.
        ("unclear decision", json(200, BUSY).field("Oncegate-Decision", "maybe"), unknown),
    ] {
        assert_eq!(twice(&world, name, answer).await, seen, "{name}");
    }
    let of_key = Operator::of(&world.proxy).keys("state=unknown").await;
    let cause = |name: &str| of_key.iter().find(|key| key["key"] == name.replace(' ', "-")).unwrap()["cause"].clone();
    assert_eq!(cause("lost"), "body");
    assert_eq!(cause("busy by 504"), "status:504");
    assert_eq!(cause("unclear decision"), "service");
}

#[tokio::test]
async fn a_long_body_is_judged_like_a_short_one() {
    let world = World::guarding(Store::sqlite(), RULES).await;
    world.upstream.answer_all(Answer::status(201).body(RESULT));
    let long = format!(r#"{{"padding":"{}","error":{{"code":-32000}}}}"#, "x".repeat(200_000));
    assert_eq!(twice(&world, "k-1", Answer::status(200).body(long)).await, ["released", "executed"]);
}

on_both_stores!(a_delivery_is_tried_again_or_held_by_its_responses_body);
async fn a_delivery_is_tried_again_or_held_by_its_responses_body(store: Store) {
    let lines = format!(
        "{RULES}\ndelivery = \"async\"\nretry = {{ max_attempts = 5, base = \"50ms\", cap = \"200ms\", give_up_after = \"1h\" }}"
    );
    let world =
        World::with(store, |setup| setup.top("secret = \"a secret of some length\"").route(&route("pay", &lines)))
            .await;
    let operator = Operator::of(&world.proxy);
    world.upstream.answer_all(Answer::status(201).body(RESULT));
    world.upstream.then(Answer::status(200).body(BUSY)).then(Answer::status(200).body(BUSY));
    assert_eq!(world.pay("busy").send().await.status, 202);
    operator.id_when("busy", "completed").await;
    assert_eq!(world.upstream.executed_for("busy"), 3);
    world.upstream.then(Answer::status(200).body(LOST));
    assert_eq!(world.pay("lost").send().await.status, 202);
    operator.id_when("lost", "unknown").await;
    world.upstream.then(Answer::status(200).body(REFUSED));
    assert_eq!(world.pay("refused").send().await.status, 202);
    operator.id_when("refused", "completed").await;
    assert_eq!((world.upstream.executed_for("lost"), world.upstream.executed_for("refused")), (1, 1));
}

#[tokio::test]
async fn a_message_comes_again_or_is_held_by_its_responses_body() {
    use harness::consumer_world::{acknowledged, consumer_world};
    use harness::rabbitmq::message;
    let Some(world) = consumer_world(Store::sqlite(), RULES, "").await else { return };
    let (queue, world) = (&world.queue, &world.world);
    world.upstream.answer_all(Answer::status(201).body(RESULT));
    world.upstream.then(Answer::status(200).body(BUSY));
    queue.publish([message("busy")]).await;
    acknowledged(&world.proxy, 1).await;
    assert_eq!(world.upstream.executed_for("busy"), 2);
    world.upstream.then(Answer::status(200).body(LOST));
    queue.publish([message("lost")]).await;
    Operator::of(&world.proxy).id_when("lost", "unknown").await;
    assert_eq!(world.upstream.executed_for("lost"), 1);
    world.upstream.answer_for("unread", Answer::status(500).body(LOST.replace('}', ",NaN}")));
    queue.publish([message("unread")]).await;
    Operator::of(&world.proxy).id_when("unread", "unknown").await;
    assert_eq!(world.upstream.executed_for("unread"), 1);
}
