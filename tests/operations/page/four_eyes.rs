//! Changes that one person proposes and another one confirms.

use jsonwebtoken::Algorithm;
use serde_json::{Value, json};

use super::oidc::{TOKEN, sign_in, usual_lines, world_with};
use super::{Html, Visitor, hidden};
use harness::oidc_issuer::OidcIssuer;
use harness::operator::Operator;
use harness::reload::{RELOADED, reload};
use harness::{Answer, Store, TEST_TIMEOUT, World, eventually, on_both_stores};

async fn person(world: &World, issuer: &OidcIssuer, name: &str, subject: &str) -> Visitor {
    sign_in(world, issuer, json!({ "sub": subject, "preferred_username": name, "groups": ["payments-ops"] })).await
}

async fn request(world: &World, method: &str, path: &str, body: &str) -> (u16, Value) {
    let request = Operator::of(&world.proxy).request(method, path).field("Authorization", &format!("Bearer {TOKEN}"));
    let response = request.json(body).send().await;
    (response.status, serde_json::from_slice(&response.body).unwrap())
}

/// A proxy whose purges need two persons, with these defaults of its routes.
async fn four_eyes_world(issuer: &OidcIssuer, defaults: &str) -> World {
    let lines = format!("{}\nfour_eyes = [\"purge\"]", usual_lines(&issuer.url()));
    World::with(Store::sqlite(), |setup| setup.store("reap_every = \"1s\"").admin(&lines).defaults(defaults)).await
}

/// The actions about a key in the audit log, the latest first, each with its actor and its note.
pub(super) async fn audit(world: &World, id: &str) -> Vec<(String, String, String)> {
    let (_, audit) = request(world, "GET", &format!("/api/v1/audit?id={id}"), "").await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entries = audit["entries"].as_array().unwrap().iter();
    entries.map(|entry| (text(&entry["action"]), text(&entry["actor"]), text(&entry["note"]))).collect()
}

pub(super) async fn states(world: &World) -> Vec<String> {
    let (_, keys) = request(world, "GET", "/api/v1/keys", "").await;
    keys["keys"].as_array().unwrap().iter().map(|key| key["state"].as_str().unwrap().to_owned()).collect()
}

pub(super) async fn id_of(world: &World, key: &str) -> String {
    let (_, keys) = request(world, "GET", &format!("/api/v1/keys?key={key}"), "").await;
    keys["keys"][0]["id"].as_str().unwrap().to_owned()
}

async fn purge_and_release_take_two_persons(store: Store) {
    let issuer = OidcIssuer::start(Algorithm::ES256).await;
    let world = world_with(store, &issuer.url(), "", "four_eyes = [\"purge\", \"release\"]").await;
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("k-unknown").send().await.status, 502);
    assert_eq!(world.pay("k-done").send().await.status, 201);
    let (ann, bob) = (person(&world, &issuer, "sam", "s-ann").await, person(&world, &issuer, "sam", "s-bob").await);
    // Two persons of one name are two, and one person in two sessions is one.
    let ann_again = person(&world, &issuer, "someone else", "s-ann").await;
    for (key, action) in [("k-unknown", "purge"), ("k-done", "release")] {
        let id = id_of(&world, key).await;
        let (path, before) = (format!("/keys/{id}/{action}"), states(&world).await);
        let typed = [("note", "ticket 7"), ("accept_risk", "true")];
        assert!(ann.page(&path).await.contains("Two persons decide this"));
        let proposed = ann.submit(&path, &typed).await;
        assert_eq!(
            (proposed.status, proposed.field("location")),
            (303, Some(&*format!("/keys/{id}?proposed={action}")))
        );
        assert!(
            bob.page(&format!("/keys/{id}?proposed={action}")).await.contains("Nothing changes until another person")
        );
        for same in [&ann, &ann_again] {
            let refused = same.submit(&path, &typed).await;
            assert!(
                refused.status == 409 && refused.html().contains("another person must confirm"),
                "{}",
                refused.html()
            );
        }
        // A token names nobody, with or without a claimed name, here or over the API.
        let by_token = Visitor::of(&world);
        let signed = by_token
            .submit("/sign-in", &[("name", "sam (signed in as s-bob by 00000000) at 1.2.3.4"), ("token", TOKEN)])
            .await;
        let cookie = signed.field("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        let by_token = Visitor { cookie: Some(cookie), ..by_token };
        let refused = by_token
            .submit(&path, &[("name", "sam (signed in as s-bob by 00000000) at 1.2.3.4"), ("accept_risk", "true")])
            .await;
        assert!(refused.status == 409 && refused.html().contains("a token names nobody"), "{}", refused.html());
        let (method, api) = match action {
            "purge" => ("DELETE", format!("/api/v1/keys/{id}")),
            _ => ("POST", format!("/api/v1/keys/{id}/release")),
        };
        let (status, problem) = request(&world, method, &api, r#"{"accept_risk":true}"#).await;
        assert_eq!((status, &problem["code"]), (409, &json!("four-eyes")), "{problem}");
        assert_eq!(states(&world).await, before, "nothing has changed");
        let (_, shown) = request(&world, "GET", &format!("/api/v1/keys/{id}"), "").await;
        assert_eq!((&shown["proposal"]["action"], shown["timeline"][0]["ended_at"].is_null()), (&json!(action), false));
        assert!(bob.page(&path).await.contains("has proposed this"));
        let confirmed = bob.submit(&path, &[("note", "seen"), ("accept_risk", "true")]).await;
        assert_eq!(confirmed.status, 303, "{}", confirmed.html());
        assert_ne!(states(&world).await, before);
        let entries = audit(&world, &id).await;
        let by = |subject: &str| format!("sam (signed in as {subject} by {}) at 127.0.0.1", issuer.digest());
        let (by_ann, by_bob) = (&*by("s-ann"), &*by("s-bob"));
        let did: Vec<_> = entries.iter().map(|(action, actor, _)| (&**action, &**actor)).collect();
        assert_eq!(did, [(action, by_bob), (&*format!("propose {action}"), by_ann)]);
        assert!(entries[0].2.ends_with(&format!("confirms the proposal of {by_ann}; seen")), "{entries:?}");
        assert!(entries[1].2.ends_with("; ticket 7"), "{entries:?}");
    }
    let bulk = r#"{"action":"purge","all":true}"#;
    let (status, problem) = request(&world, "POST", "/api/v1/keys/actions", bulk).await;
    assert_eq!((status, &problem["code"]), (409, &json!("four-eyes")), "{problem}");
    // One person decides the rest.
    let bulk = r#"{"action":"requeue","all":true}"#;
    assert_eq!(request(&world, "POST", "/api/v1/keys/actions", bulk).await.0, 200);
}

on_both_stores!(purge_and_release_take_two_persons);

#[tokio::test]
async fn a_proposal_ends_when_the_key_changes() {
    let issuer = OidcIssuer::start(Algorithm::ES256).await;
    let world = world_with(Store::sqlite(), &issuer.url(), "", "four_eyes = [\"purge\"]").await;
    assert_eq!(world.pay("k-1").send().await.status, 201);
    let (ann, bob) = (person(&world, &issuer, "ann", "s-ann").await, person(&world, &issuer, "bob", "s-bob").await);
    let id = id_of(&world, "k-1").await;
    let (purge, typed) = (format!("/keys/{id}/purge"), [("accept_risk", "true")]);
    assert_eq!(ann.submit(&purge, &typed).await.status, 303);
    // One person may release here, and the next request is another attempt.
    assert_eq!(ann.submit(&format!("/keys/{id}/release"), &typed).await.status, 303);
    assert_eq!(world.pay("k-1").send().await.status, 201);
    let proposed = bob.submit(&purge, &typed).await;
    assert_eq!(proposed.field("location"), Some(&*format!("/keys/{id}?proposed=purge")), "{}", proposed.html());
    assert_eq!(states(&world).await, ["completed"]);
    assert_eq!(ann.submit(&purge, &typed).await.status, 303);
    assert_eq!(states(&world).await, [] as [String; 0]);
}

#[tokio::test]
async fn a_proposal_ends_when_the_keys_ttl_ends() {
    let issuer = OidcIssuer::start(Algorithm::ES256).await;
    let world = four_eyes_world(&issuer, "ttl = \"5s\"\nafter_ttl = \"refuse\"\nremember = \"1h\"").await;
    let (ann, bob) = (person(&world, &issuer, "ann", "s-ann").await, person(&world, &issuer, "bob", "s-bob").await);
    assert_eq!(world.pay("k-1").send().await.status, 201);
    let purge = format!("/keys/{}/purge", id_of(&world, "k-1").await);
    assert_eq!(ann.submit(&purge, &[("accept_risk", "true")]).await.status, 303);
    eventually(TEST_TIMEOUT, async || (states(&world).await == ["expired"]).then_some(())).await;
    assert!(bob.page(&purge).await.contains("Two persons decide this"));
    assert_eq!(bob.submit(&purge, &[("accept_risk", "true")]).await.status, 303);
    assert_eq!(states(&world).await, ["expired"], "it is a new proposal");
}

#[tokio::test]
async fn a_form_that_says_that_nothing_changes_changes_nothing() {
    let issuer = OidcIssuer::start(Algorithm::ES256).await;
    let world = four_eyes_world(&issuer, "").await;
    assert_eq!(world.pay("k-1").send().await.status, 201);
    let (ann, bob) = (person(&world, &issuer, "ann", "s-ann").await, person(&world, &issuer, "bob", "s-bob").await);
    let purge = format!("/keys/{}/purge", id_of(&world, "k-1").await);
    let page = bob.page(&purge).await;
    assert!(page.contains("nothing changes until another person"));
    let fields = hidden(&page[page.rfind("<form method=\"post\"").unwrap()..]);
    let mut fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
    fields.push(("accept_risk", "true"));
    assert_eq!(ann.submit(&purge, &[("accept_risk", "true")]).await.status, 303);
    let refused = bob.form(&purge, &fields).send().await;
    assert!(
        refused.status == 409 && refused.html().contains("has proposed this since you looked"),
        "{}",
        refused.html()
    );
    assert_eq!(states(&world).await, ["completed"]);
    assert_eq!(bob.submit(&purge, &[("accept_risk", "true")]).await.status, 303);
    assert_eq!(states(&world).await, [] as [String; 0]);
}

#[tokio::test]
async fn one_person_is_not_two_after_a_change_of_the_issuer() {
    let (issuer, next) = (OidcIssuer::start(Algorithm::ES256).await, OidcIssuer::start(Algorithm::ES256).await);
    let world = four_eyes_world(&issuer, "").await;
    assert_eq!(world.pay("k-1").send().await.status, 201);
    let ann = person(&world, &issuer, "ann", "s-ann").await;
    let purge = format!("/keys/{}/purge", id_of(&world, "k-1").await);
    assert_eq!(ann.submit(&purge, &[("accept_risk", "true")]).await.status, 303);
    let text = std::fs::read_to_string(world.proxy.file()).unwrap().replace(&issuer.url(), &next.url());
    reload(&world, &text, RELOADED, 1).await;
    let ann = person(&world, &next, "ann", "another-name-of-ann").await;
    assert_eq!(ann.submit(&purge, &[("accept_risk", "true")]).await.status, 303);
    assert_eq!(states(&world).await, ["completed"], "it is a new proposal");
    let bob = person(&world, &next, "bob", "s-bob").await;
    assert_eq!(bob.submit(&purge, &[("accept_risk", "true")]).await.status, 303);
    assert_eq!(states(&world).await, [] as [String; 0]);
}
