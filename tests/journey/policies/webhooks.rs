//! Webhooks of other people's APIs: verified, answered in the sender's time, and handled once.

use std::time::{SystemTime, UNIX_EPOCH};

use harness::operator::Operator;
use harness::{Answer, Request, Store, World, on_both_stores, route};
use hmac::{Hmac, KeyInit, Mac};

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
    world.post("/pay").anonymous().field("X-GitHub-Delivery", id).field("X-Hub-Signature-256", &signature).json(body)
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
    assert_eq!((world.upstream.calls(), Operator::of(&world.proxy).keys("").await.len()), (0, 0), "nothing is stored");
    // What the service refuses, the sender delivers again.
    world.upstream.then(Answer::status(404));
    assert_eq!(github(&world, "a shared secret", "d-1", "{}").send().await.oncegate_status(), Some("released"));
    let first = github(&world, "a shared secret", "d-1", "{}").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(github(&world, "the next secret", "d-1", "{}").send().await.comparable(), first.replayed());
    refused(github(&world, "another secret", "d-1", "{}")).await;
    refused(github(&world, "a shared secret", "d-1", "{}").json("{ }")).await;
    let other = github(&world, "a shared secret", "d-1", r#"{"other":1}"#).send().await;
    assert_eq!(other.outcome(), (422, "key-reused".to_owned()));
    let no_id = github(&world, "a shared secret", "", "{}").send().await;
    assert_eq!(no_id.outcome(), (400, "key-invalid".to_owned()));
    assert_eq!(world.upstream.calls(), 2);
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
    let lines = "delivery = \"async\"\naccepted = 204";
    let world = World::with(Store::sqlite(), |setup| {
        setup.top("secret = \"a secret of some length\"").route(&route("pay", lines))
    })
    .await;
    assert_eq!(world.pay("k-1").send().await.status, 204);
    world.upstream.wait_for_executed(1).await;
}
