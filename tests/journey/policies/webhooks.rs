//! Webhooks of other people's APIs: verified, answered in the sender's time, and handled once.

use std::time::{SystemTime, UNIX_EPOCH};

use harness::issuer::{KeyServer, SigningKey, claims, jwt};
use harness::metrics::Metrics;
use harness::operator::Operator;
use harness::{Answer, Request, Store, TEST_TIMEOUT, World, eventually, on_both_stores, route};
use hmac::{Hmac, KeyInit, Mac};
use jsonwebtoken::Algorithm;

const SECRETS: &str = "signature.secrets = [\"the next secret\", \"a shared secret\"]";

/// A world with a route of this sender's webhooks at `/pay`.
async fn receiving(store: Store, sender: &str, lines: &str) -> World {
    World::with(store, |setup| {
        let lines = format!("kind = \"webhook\"\nsender = \"{sender}\"\n{lines}");
        setup.top("secret = \"a secret of some length\"").route(&route("pay", &lines))
    })
    .await
}

fn sign(secret: &str, text: &str) -> String {
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A delivery of GitHub, signed with this secret.
fn github(world: &World, secret: &str, id: &str, body: &str) -> Request {
    let signature = format!("sha256={}", sign(secret, body));
    let request = world.post("/pay").anonymous().field("X-GitHub-Hook-ID", "7").field("X-GitHub-Delivery", id);
    request.field("X-Hub-Signature-256", &signature).json(body)
}

/// A delivery of Slack, signed so many seconds ago.
fn slack(world: &World, age: u64, body: &str) -> Request {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - age;
    let signature = format!("v0={}", sign("a shared secret", &format!("v0:{now}:{body}")));
    let request = world.post("/pay").anonymous().field("X-Slack-Request-Timestamp", &now.to_string());
    request.field("X-Slack-Signature", &signature).json(body)
}

on_both_stores!(a_webhook_is_verified_before_it_is_kept_replayed_or_answered);
async fn a_webhook_is_verified_before_it_is_kept_replayed_or_answered(store: Store) {
    let world = receiving(store, "github", SECRETS).await;
    let refused = |wrong: Request| async move {
        let refused = wrong.send().await;
        assert_eq!(refused.outcome(), (401, "signature-invalid".to_owned()));
        assert_eq!(refused.field("www-authenticate"), Some("Signature"));
    };
    refused(github(&world, "another secret", "d-1", "{}")).await;
    refused(world.post("/pay").anonymous().field("X-GitHub-Delivery", "d-1").json("{}")).await;
    refused(world.post("/pay").anonymous().json("{}")).await;
    let metrics = Metrics::of(&world.proxy).await;
    let count = |fault: &str| metrics.get(&format!("oncegate_signatures_refused_total{{fault=\"{fault}\"}}"));
    assert_eq!((count("wrong"), count("missing")), (1.0, 2.0));
    world.proxy.wait_for_logs("request", 3).await;
    let logged: Vec<_> =
        world.proxy.logged().into_iter().filter(|line| line["refusal"] == "signature-invalid").collect();
    let faults: Vec<_> = logged.iter().map(|line| (&line["route"], &line["fault"])).collect();
    assert_eq!(
        faults,
        [(&"pay".into(), &"wrong".into()), (&"pay".into(), &"missing".into()), (&"pay".into(), &"missing".into())]
    );
    // What no route takes changes nothing on the path of a verified sender either, if that enforces.
    let observing = receiving(Store::sqlite(), "github", &format!("{SECRETS}\nmode = \"observe\"")).await;
    assert_eq!(observing.proxy.client().request("PUT", "/pay").anonymous().send().await.oncegate_status(), None);
    for method in ["PUT", "PATCH", "DELETE"] {
        let forged = world.proxy.client().request(method, "/pay").anonymous().json("{}").send().await;
        assert_eq!(forged.outcome(), (403, "unguarded".to_owned()), "{method}");
    }
    assert_eq!((world.upstream.calls(), Operator::of(&world.proxy).keys("").await.len()), (0, 0), "nothing is stored");
    // What the service refuses, or leads elsewhere, the sender delivers again.
    for status in [404, 302] {
        world.upstream.then(Answer::status(status));
        assert_eq!(github(&world, "a shared secret", "d-1", "{}").send().await.oncegate_status(), Some("released"));
    }
    let first = github(&world, "a shared secret", "d-1", "{}").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(github(&world, "the next secret", "d-1", "{}").send().await.comparable(), first.replayed());
    refused(github(&world, "another secret", "d-1", "{}")).await;
    refused(github(&world, "a shared secret", "d-1", "{}").json("{ }")).await;
    let other = github(&world, "a shared secret", "d-1", r#"{"other":1}"#).send().await;
    assert_eq!(other.outcome(), (422, "key-reused".to_owned()));
    let no_id = github(&world, "a shared secret", "", "{}").send().await;
    assert_eq!(no_id.outcome(), (400, "key-invalid".to_owned()));
    let hop = github(&world, "a shared secret", "d-2", "{}").field("Connection", "x-hub-signature-256").send().await;
    assert_eq!(hop.outcome(), (400, "bad-request".to_owned()), "the service needs the signature too");
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn the_largest_event_of_github_which_repeats_none_is_not_too_large() {
    let world = receiving(Store::sqlite(), "github", SECRETS).await;
    let largest = format!("\"{}\"", "a".repeat(25_000_000 - 2));
    let answer = github(&world, "a shared secret", "d-1", &largest).send().await;
    assert_eq!(answer.oncegate_status(), Some("executed"));
}

on_both_stores!(a_redelivery_by_a_person_is_handled_anew_once);
async fn a_redelivery_by_a_person_is_handled_anew_once(store: Store) {
    let world = receiving(store, "github", &format!("{SECRETS}\nreplay.until = \"1s\"")).await;
    let send = async |body: &str| github(&world, "a shared secret", "d-1", body).send().await;
    let first = send("{}").await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    let id = Operator::of(&world.proxy).id("7%2Bd-1").await;
    // Two persons press the button at the same time.
    let redelivered = eventually(TEST_TIMEOUT, async || {
        let both = tokio::join!(send("{}"), send("{}"));
        (both.0.comparable() != first.replayed() || both.1.comparable() != first.replayed()).then_some(both)
    })
    .await;
    let mut answers = [&redelivered.0, &redelivered.1].map(|answer| answer.oncegate_status().unwrap());
    answers.sort_unstable();
    assert_eq!((answers, world.upstream.calls()), (["executed", "replayed"], 2));
    assert_eq!(world.upstream.last().field("oncegate-attempt"), Some("1"), "a new life begins");
    assert_eq!(send(r#"{"other":1}"#).await.outcome(), (422, "key-reused".to_owned()));
    let count = "oncegate_reservations_total{route=\"pay\",result=\"redelivery\"}";
    assert_eq!(Metrics::of(&world.proxy).await.get(count), 1.0);
    let lines =
        world.proxy.logged().into_iter().filter(|line| line["message"].as_str().unwrap().contains("redelivery"));
    assert_eq!(lines.map(|line| line["record"].as_str().unwrap().to_owned()).collect::<Vec<_>>(), [id]);
}

on_both_stores!(an_event_of_slack_is_answered_at_once_and_delivered_once);
async fn an_event_of_slack_is_answered_at_once_and_delivered_once(store: Store) {
    let world = receiving(store, "slack", &format!("{SECRETS}\nsignature.tolerance = \"2m\"")).await;
    let event = r#"{"type":"event_callback","event_id":"Ev1"}"#;
    // The service answers the challenge itself, and each event after that slowly.
    world.upstream.then(Answer::status(200).body("3eZbrw1a"));
    let challenge = slack(&world, 0, r#"{"type":"url_verification","challenge":"3eZbrw1a"}"#).send().await;
    assert_eq!((challenge.status, &*challenge.text(), challenge.oncegate_status()), (200, "3eZbrw1a", None));
    let hold = harness::Hold::new();
    world.upstream.then(Answer::status(200).hold(&hold));
    let accepted = slack(&world, 0, event).send().await;
    assert_eq!((accepted.status, accepted.oncegate_status()), (200, Some("queued")));
    world.upstream.wait_for_executed(2).await;
    assert_eq!(slack(&world, 60, event).send().await.status, 200, "a retry while it is delivered");
    hold.release();
    Operator::of(&world.proxy).id_when("Ev1", "completed").await;
    assert_eq!(slack(&world, 119, event).send().await.status, 200, "a retry after it");
    let stale = slack(&world, 121, event).send().await;
    assert_eq!(stale.outcome(), (401, "signature-invalid".to_owned()));
    assert!(stale.problem()["detail"].as_str().unwrap().contains("too long ago"));
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_sender_that_signs_its_url_gets_the_services_own_answer() {
    // The vector of twilio-python's tests.
    let lines = "name = \"calls\"\npath = \"/myapp.php\"\nkind = \"webhook\"\nsender = \"twilio\"\n\
                 signature.secrets = [\"12345\"]\nsignature.url = \"https://mycompany.com\"";
    let world = World::with(Store::sqlite(), |setup| setup.route(lines)).await;
    world.upstream.answer_all(Answer::status(200).body("<Response/>"));
    let form = "CallSid=CA1234567890ABCDE&Digits=1234&From=%2B14158675309&To=%2B18005551212&Caller=%2B14158675309";
    let call = |path: &str| {
        let request = world.post(path).anonymous().field("Content-Type", "application/x-www-form-urlencoded");
        let request = request.field("X-Twilio-Signature", "RSOYDt4T1cUTdK1PDd93/VVr8B8=");
        request.field("I-Twilio-Idempotency-Token", "t-1").body(form)
    };
    let first = call("/myapp.php?foo=1&bar=2").send().await;
    assert_eq!((first.oncegate_status(), &*first.text()), (Some("executed"), "<Response/>"));
    assert_eq!(call("/myapp.php?foo=1&bar=2").send().await.comparable(), first.replayed());
    assert_eq!(call("/myapp.php?foo=1&bar=3").send().await.status, 401, "another URL");
}

#[tokio::test]
async fn an_accepted_request_gets_the_status_that_its_route_names() {
    let lines = "delivery = \"async\"\naccepted = 201";
    let world = World::with(Store::sqlite(), |setup| {
        setup.top("secret = \"a secret of some length\"").route(&route("pay", lines))
    })
    .await;
    assert_eq!(world.pay("k-1").send().await.status, 201);
    world.upstream.wait_for_executed(1).await;
}

/// A batch of events with these ids.
fn batch(world: &World, ids: &[&str]) -> Request {
    let events: Vec<_> = ids.iter().map(|id| format!("{{\"id\":\"{id}\",\"of\":\"é\"}}")).collect();
    world.post("/pay").json(&format!("{{\"events\":[{}],\"sent\":1}}", events.join(", ")))
}

/// A world with a route that splits batches, and these lines in it.
async fn splitting(store: Store, lines: &str) -> World {
    World::with(store, |setup| {
        let lines = format!(
            "delivery = \"async\"\naccepted = 200\nsplit = \"json:/events/*\"\n\
             key = {{ from = \"json:/events/0/id\", required = true }}\n{lines}"
        );
        setup.top("secret = \"a secret of some length\"").short_leases().route(&route("pay", &lines))
    })
    .await
}

/// The id in each body that the service got, in the order of the ids.
fn handled(world: &World) -> Vec<String> {
    let id = |body: &[u8]| serde_json::from_slice::<serde_json::Value>(body).unwrap()["events"][0]["id"].to_string();
    let mut ids: Vec<_> = world.upstream.executed().iter().map(|call| id(&call.body)).collect();
    ids.sort();
    ids
}

on_both_stores!(regrouped_batches_are_handled_once_for_each_event);
async fn regrouped_batches_are_handled_once_for_each_event(store: Store) {
    let world = splitting(store, "").await;
    for (sent, ids) in [["e1", "e2"], ["e1", "e3"], ["e3", "e2"]].into_iter().enumerate() {
        let body = String::from_utf8(batch(&world, &ids).bytes()).unwrap();
        let body = body.rsplit("\r\n\r\n").next().unwrap().replace("\"sent\":1", &format!("\"sent\":{sent}"));
        let answer = world.post("/pay").json(&body).send().await;
        assert_eq!(
            (answer.status, answer.oncegate_status(), &*answer.text()),
            (200, Some("queued"), "{\"accepted\":2}")
        );
    }
    world.upstream.wait_for_executed(3).await;
    assert_eq!(handled(&world), ["\"e1\"", "\"e2\"", "\"e3\""]);
    let body = String::from_utf8(world.upstream.last().body).unwrap();
    assert!(body.starts_with("{\"events\":[{\"id\":\"e") && body.contains("\",\"of\":\"é\"}],\"sent\":"), "{body}");
}

on_both_stores!(a_batch_is_accepted_as_a_whole_or_refused);
async fn a_batch_is_accepted_as_a_whole_or_refused(store: Store) {
    let world = splitting(store, "").await;
    let send = |body: &str| world.post("/pay").json(body);
    for (body, outcome) in [
        (r#"{"events":[{"id":"e1"},{"name":"without an id"}]}"#, (400, "key-missing")),
        (r#"{"events":[{"id":"e1"},{"id":{}}]}"#, (400, "key-invalid")),
        (r#"{"events":{"id":"e1"}}"#, (400, "bad-request")),
        (r#"{"events":[{"id":"e1"}],"events":[]}"#, (400, "bad-request")),
        (&format!("{{\"events\":[{}]}}", vec![r#"{"id":"e1"}"#; 1_001].join(",")), (413, "bad-request")),
    ] {
        let refused = send(body).send().await.outcome();
        assert_eq!(refused, (outcome.0, outcome.1.to_owned()), "{}", &body[..40]);
    }
    assert_eq!(Operator::of(&world.proxy).keys("").await.len(), 0, "nothing is accepted");
    // An event that is another one under a known id is refused, and the events beside it are accepted.
    assert_eq!(batch(&world, &["e1"]).send().await.status, 200);
    let mixed = send(r#"{"events":[{"id":"e1","of":"another"},{"id":"e2"}]}"#).send().await;
    assert_eq!(mixed.outcome(), (422, "key-reused".to_owned()));
    world.upstream.wait_for_executed(2).await;
    // The event that is refused has its line, and the batch's line names no event.
    for (refusal, expected) in [("key-missing", vec![None]), ("key-reused", vec![None, Some("e1".to_owned())])] {
        let keys = async || {
            let lines = world.proxy.logged().into_iter().filter(|line| line["refusal"] == refusal);
            let mut keys: Vec<_> = lines.map(|line| line["key"].as_str().map(str::to_owned)).collect();
            keys.sort();
            Some(keys).filter(|keys| keys.len() == expected.len())
        };
        assert_eq!(eventually(TEST_TIMEOUT, keys).await, expected, "{refusal}");
    }
    // An empty batch is for the service.
    assert_eq!(send(r#"{"events":[]}"#).send().await.oncegate_status(), None);
}

#[tokio::test]
async fn a_batch_that_the_store_does_not_take_is_not_accepted() {
    let world = splitting(Store::postgres().await, "").await;
    world.store.tamper("alter table outbox add check (false)").await;
    assert_eq!(batch(&world, &["e1", "e2"]).send().await.outcome(), (503, "store-unavailable".to_owned()));
}

on_both_stores!(no_event_of_a_batch_is_lost_or_handled_twice_by_kills_and_regrouped_retries);
async fn no_event_of_a_batch_is_lost_or_handled_twice_by_kills_and_regrouped_retries(store: Store) {
    let mut world = splitting(store, "").await;
    let ids: Vec<String> = (0..60).map(|number| format!("e{number:02}")).collect();
    for (round, start) in (0..50).step_by(10).enumerate() {
        let these: Vec<&str> = ids[start..start + 20].iter().map(String::as_str).collect();
        let before = world.upstream.calls();
        let sent = batch(&world, &these).open().await.unwrap();
        // At another moment of the acceptance and of the deliveries in each round.
        world.upstream.wait_until(|seen| seen.executed.len() >= before + round).await;
        world.crash_and_restart().await;
        drop(sent);
        let regrouped: Vec<&str> =
            ids[start + 5..start + 20].iter().chain(&ids[start..start + 5]).map(|id| &**id).collect();
        for group in [&regrouped[..7], &regrouped[7..]] {
            eventually(TEST_TIMEOUT, async || (batch(&world, group).send().await.status == 200).then_some(())).await;
        }
    }
    let operator = Operator::of(&world.proxy);
    let settled = async || {
        let keys = operator.keys("limit=100").await;
        let is_settled = |key: &serde_json::Value| matches!(key["state"].as_str(), Some("completed" | "unknown"));
        (keys.len() == 60 && keys.iter().all(is_settled)).then_some(keys)
    };
    eventually(TEST_TIMEOUT, settled).await;
    let handled = handled(&world);
    let mut once = handled.clone();
    once.dedup();
    assert_eq!(handled, once, "no event was handled twice");
}

#[tokio::test]
async fn a_push_of_pubsub_is_of_the_account_that_the_configuration_names() {
    let key = SigningKey::new("a", Algorithm::ES256);
    let server = KeyServer::start(&[key.jwk()]).await;
    let lines = "kind = \"webhook\"\nsender = \"pubsub\"";
    let world = World::with(Store::sqlite(), |setup| {
        let required = ", require = [\"email=push@ours.example\", \"email_verified=true\"]";
        setup.top(&jwt(&server.url(), required)).route(&route("pay", lines))
    })
    .await;
    let push = |email: &str, is_verified: bool| {
        let mut claims = claims("1");
        (claims["email"], claims["email_verified"]) = (email.into(), is_verified.into());
        let body = r#"{"subscription":"s","message":{"messageId":"1"}}"#;
        world.post("/pay").field("Authorization", &format!("Bearer {}", key.sign(&claims))).json(body)
    };
    for (email, is_verified) in [("push@theirs.example", true), ("push@ours.example", false)] {
        assert_eq!(push(email, is_verified).send().await.outcome(), (401, "token-invalid".to_owned()), "{email}");
    }
    assert_eq!(push("push@ours.example", true).send().await.oncegate_status(), Some("executed"));
    assert!(push("push@ours.example", true).send().await.is_replay());
    let unsigned = world.post("/pay").anonymous().json(r#"{"subscription":"s","message":{"messageId":"1"}}"#);
    assert_eq!(unsigned.send().await.status, 400);
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_batch_is_accepted_although_the_response_to_one_of_its_events_was_too_large() {
    let world = splitting(Store::sqlite(), "max_response_body = \"1KiB\"").await;
    world.upstream.then(Answer::status(200).padded(2_000));
    assert_eq!(batch(&world, &["e1"]).send().await.status, 200);
    Operator::of(&world.proxy).id_when("e1", "completed").await;
    // A large batch is split on another thread.
    let padded =
        format!("{{\"pad\":\"{}\",\"events\":[{{\"id\":\"e1\",\"of\":\"é\"}},{{\"id\":\"e2\"}}]}}", "x".repeat(70_000));
    let again = world.post("/pay").json(&padded).send().await;
    assert_eq!((again.status, &*again.text()), (200, "{\"accepted\":2}"));
    world.upstream.wait_for_executed(2).await;
    assert_eq!(handled(&world), ["\"e1\"", "\"e2\""]);
}
