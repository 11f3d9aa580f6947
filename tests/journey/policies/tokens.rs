//! `jwt:` scopes: a caller is who the verified token says, whichever token it is.

use std::fs;

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
use rustix::process::Signal;
use serde_json::{Value, json};

use harness::issuer::{AUDIENCE, ISSUER, KeyServer, SigningKey, claims, jwt, key_set};
use harness::metrics::Metrics;
use harness::operator::{Operator, oncegate};
use harness::proxy::{self, Setup};
use harness::reload::{REFUSED, RELOADED, reload, settles};
use harness::{
    Answer, Client, Proxy, Request, Response, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores, route,
};

const BY_SUBJECT: &str = "scope = [\"jwt:sub\"]";

/// A proxy that knows the keys of this server, with these lines for `POST /pay`.
async fn world(store: Store, server: &KeyServer, lines: &str) -> World {
    World::with(store, |setup| setup.top(&jwt(&server.url(), "")).route(&route("pay", lines))).await
}

fn pay(client: Client, token: &str) -> Request {
    client.post("/pay").key("k-1").field("Authorization", &format!("Bearer {token}")).body("x")
}

async fn pays(world: &World, token: &str) -> Response {
    pay(world.proxy.client(), token).send().await
}

/// A refused token: 401, and neither the service nor the store has heard of it.
async fn is_refused(world: &World, token: &str, what: &str) {
    let calls = world.upstream.calls();
    let refusal = pays(world, token).await;
    assert_eq!(refusal.outcome(), (401, "token-invalid".to_owned()), "{what}");
    assert_eq!(refusal.field("www-authenticate"), Some("Bearer error=\"invalid_token\""));
    assert_eq!((refusal.oncegate_status(), world.upstream.calls()), (Some("rejected"), calls), "{what}");
    assert_eq!(Operator::of(&world.proxy).keys("").await, Vec::<Value>::new(), "{what}");
}

on_both_stores!(a_new_token_of_the_same_caller_gets_the_replay_and_another_caller_does_not);
async fn a_new_token_of_the_same_caller_gets_the_replay_and_another_caller_does_not(store: Store) {
    let keys = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA].map(|algorithm| {
        let id = format!("{algorithm:?}");
        SigningKey::new(&id, algorithm)
    });
    let server = KeyServer::start(&keys.each_ref().map(SigningKey::jwk)).await;
    let world = world(store, &server, BY_SUBJECT).await;
    for (number, key) in keys.iter().enumerate() {
        let (alice, bob) = (format!("alice {number}"), format!("bob {number}"));
        let first = pays(&world, &key.token(&alice)).await;
        assert_eq!((first.status, first.oncegate_status()), (201, Some("executed")), "{}", key.id);
        let token = key.token(&alice);
        for _ in 0..2 {
            assert_eq!(pays(&world, &token).await.comparable(), first.replayed(), "{}", key.id);
        }
        assert_eq!(pays(&world, &key.sign_under(None, &claims(&alice))).await.comparable(), first.replayed());
        assert_eq!(pays(&world, &key.token(&bob)).await.oncegate_status(), Some("executed"), "{}", key.id);
    }
    assert_eq!((world.upstream.calls(), server.reads()), (6, 1));
    // The key of one algorithm or another: the caller is the same.
    assert!(pays(&world, &keys[1].token("alice 0")).await.is_replay());
}

on_both_stores!(a_token_that_does_not_verify_is_refused_before_anything_happens);
async fn a_token_that_does_not_verify_is_refused_before_anything_happens(store: Store) {
    let (rsa, curve) = (SigningKey::new("rsa", Algorithm::RS256), SigningKey::new("curve", Algorithm::ES256));
    let encrypting = SigningKey::new("enc", Algorithm::ES256);
    let stranger = SigningKey::new("curve", Algorithm::ES256);
    let mut for_encryption = encrypting.jwk();
    for_encryption["use"] = json!("enc");
    let mut any_rsa = rsa.jwk();
    any_rsa.as_object_mut().unwrap().remove("alg");
    let server = KeyServer::start(&[any_rsa, curve.jwk(), for_encryption]).await;
    let world = world(store, &server, BY_SUBJECT).await;
    let now = get_current_timestamp();
    let with = |name: &str, value: Value| {
        let mut claims = claims("alice");
        claims[name] = value;
        curve.sign(&claims)
    };
    let secret = |secret: &[u8], header: Header| encode(&header, &claims("alice"), &EncodingKey::from_secret(secret));
    let confused = Header { kid: Some("rsa".into()), ..Header::new(Algorithm::HS256) };
    let good = curve.token("alice");
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let (head, payload) = signed.split_once('.').unwrap();
    let other = curve.token("mallory");
    let other_payload = other.split('.').nth(1).unwrap();
    let encode64 = |text: &str| base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, text);
    let none = encode64(r#"{"alg":"none","typ":"JWT"}"#);
    let mut embedded = serde_json::to_value(stranger.jwk()).unwrap();
    embedded["kid"] = json!("mine");
    let embedded = Header {
        jwk: Some(serde_json::from_value(embedded).unwrap()),
        jku: Some(server.url()),
        ..Header::new(Algorithm::HS256)
    };
    for (what, token) in [
        ("expired", with("exp", json!(now - 60))),
        ("no expiry", with("exp", Value::Null)),
        ("not yet valid", with("nbf", json!(now + 120))),
        ("another audience", with("aud", json!("another shop"))),
        ("another issuer", with("iss", json!("https://mallory.example"))),
        ("a list of issuers", with("iss", json!([ISSUER, "https://mallory.example"]))),
        ("a claim that is a list", with("sub", json!(["alice"]))),
        ("a claim that is an object", with("sub", json!({ "name": "alice" }))),
        ("a claim that is a fraction", with("sub", json!(1.5))),
        ("another payload", format!("{head}.{other_payload}.{signature}")),
        ("no signature", format!("{head}.{payload}.")),
        ("the algorithm none", format!("{none}.{payload}.")),
        ("the algorithm none with a signature", format!("{none}.{payload}.{signature}")),
        ("the public key as a secret", secret(rsa.public_pem().as_bytes(), confused.clone()).unwrap()),
        ("a modulus as a secret", secret(rsa.jwk()["n"].as_str().unwrap().as_bytes(), confused).unwrap()),
        ("a key that it brings along", secret(&[7; 32], embedded).unwrap()),
        ("a key for encryption", encrypting.token("alice")),
        ("a stranger's key", stranger.token("alice")),
        ("a stranger's key without a name", stranger.sign_under(None, &claims("alice"))),
        ("a key of another type", curve.sign_under(Some("rsa"), &claims("alice"))),
        ("an unknown key", curve.sign_under(Some("unknown"), &claims("alice"))),
        ("no token", "a secret that is no token".to_owned()),
    ] {
        is_refused(&world, &token, what).await;
    }
    let metrics = Metrics::of(&world.proxy).await;
    for (reason, count) in [("expired", 2.0), ("issuer", 2.0), ("audience", 1.0), ("unknown_key", 2.0)] {
        assert_eq!(metrics.get(&format!("oncegate_tokens_refused_total{{reason=\"{reason}\"}}")), count, "{reason}");
    }
    assert_eq!(pays(&world, &good).await.oncegate_status(), Some("executed"));
}

/// Where a test's issuer may have its description.
const DESCRIPTIONS: [&str; 2] = ["/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"];

#[tokio::test]
async fn the_keys_of_an_issuer_are_where_its_description_says() {
    let key = SigningKey::new("a", Algorithm::ES256);
    let [openid, oauth] = DESCRIPTIONS;
    let below = format!("/realms/shop{openid}");
    let behind = format!("{oauth}/realms/shop");
    for (path, places) in [
        ("", vec![openid]),
        ("/", vec![openid]),
        ("/realms/shop", vec![&*below]),
        ("/realms/shop", vec![&*below, &*behind]),
        ("", vec![openid, oauth]),
    ] {
        let server = Upstream::start().await;
        let issuer = format!("http://{}{path}", server.address);
        for _ in &places[1..] {
            server.then(Answer::status(404));
        }
        let description = json!({ "issuer": issuer, "jwks_uri": format!("http://{}/keys?of=shop", server.address) });
        server.then(Answer::status(200).body(description.to_string()));
        server.then(Answer::status(200).body(key_set(&[key.jwk()])));
        let top = format!("jwt = {{ issuer = {issuer:?}, audience = {AUDIENCE:?} }}");
        let world = World::with(Store::sqlite(), |setup| setup.top(&top).route(&route("pay", BY_SUBJECT))).await;
        let token = || {
            let mut claims = claims("alice");
            claims["iss"] = json!(issuer);
            key.sign(&claims)
        };
        let first = pays(&world, &token()).await;
        assert_eq!((first.status, first.oncegate_status()), (201, Some("executed")), "{issuer} {places:?}");
        assert_eq!(pays(&world, &token()).await.comparable(), first.replayed());
        assert_eq!(
            pays(&world, &key.token("alice")).await.outcome(),
            (401, "token-invalid".to_owned()),
            "another `iss`"
        );
        let asked: Vec<_> = server.executed().into_iter().map(|call| call.target).collect();
        assert_eq!(asked, [&places[..], &["/keys?of=shop"]].concat(), "{issuer}");
    }
}

#[tokio::test]
async fn the_description_of_another_issuer_brings_no_keys() {
    let key = SigningKey::new("a", Algorithm::ES256);
    for (described, problem) in [
        (
            json!({ "issuer": ISSUER, "jwks_uri": "http://127.0.0.1:9/keys" }),
            "which is not the one of the configuration",
        ),
        (json!({ "jwks_uri": "http://127.0.0.1:9/keys" }), "the answer cannot be read"),
        (json!({ "issuer": "SELF", "jwks_uri": "http://login.example/keys" }), "its `jwks_uri` has no TLS"),
        (json!({ "issuer": "SELF", "jwks_uri": "keys" }), "its `jwks_uri` is no URL"),
    ] {
        let server = Upstream::start().await;
        let issuer = format!("http://{}", server.address);
        server.answer_all(Answer::status(200).body(described.to_string().replace("SELF", &issuer)));
        let top = format!("jwt = {{ issuer = {issuer:?}, audience = {AUDIENCE:?} }}");
        let world = World::with(Store::sqlite(), |setup| setup.top(&top).route(&route("pay", BY_SUBJECT))).await;
        world.proxy.wait_for_log("the issuer's keys cannot be read").await;
        assert!(world.proxy.output().contains(problem), "{problem}");
        let refusal = pays(&world, &key.token("alice")).await;
        assert_eq!(refusal.outcome(), (503, "issuer-unavailable".to_owned()), "{problem}");
    }
}

#[tokio::test]
async fn a_request_without_a_token_names_no_caller() {
    let key = SigningKey::new("a", Algorithm::EdDSA);
    let server = KeyServer::start(&[key.jwk()]).await;
    let lines = "scope = [\"jwt:tenant?\", \"jwt:sub?\"]";
    let world = world(Store::sqlite(), &server, lines).await;
    for value in ["", "Bearer", "Bearer ", "Basic YWxpY2U6eA==", "DPoP x"] {
        let request = world.post("/pay").key("k-1").field("Authorization", value).body("x");
        assert_eq!(request.send().await.outcome(), (400, "scope-missing".to_owned()), "{value}");
    }
    let twice =
        pay(world.proxy.client(), &key.token("a")).field("Authorization", &format!("Bearer {}", key.token("b")));
    assert_eq!(twice.send().await.outcome(), (400, "scope-missing".to_owned()));
    let mut nobody = claims("");
    assert_eq!(pays(&world, &key.sign(&nobody)).await.outcome(), (400, "scope-missing".to_owned()));
    assert_eq!(world.upstream.calls(), 0);
    // The text and the number are two callers, and so are two claims with one value.
    for (name, value) in [("sub", json!("1")), ("sub", json!(1)), ("tenant", json!("1")), ("tenant", json!(true))] {
        nobody["tenant"] = json!("");
        nobody["sub"] = json!(null);
        nobody[name] = value.clone();
        let token = key.sign(&nobody);
        assert_eq!(pays(&world, &token).await.oncegate_status(), Some("executed"), "{name} {value}");
        assert!(pays(&world, &token).await.is_replay());
    }
    // Without a key nobody has to be known.
    let unkeyed = world.post("/pay").field("Authorization", "Bearer x").body("x").send().await;
    assert_eq!((unkeyed.status, unkeyed.oncegate_status()), (201, None));
}

#[tokio::test]
async fn a_new_key_of_the_issuer_is_read_at_once_and_an_unknown_one_seldom() {
    let (old, new) = (SigningKey::new("old", Algorithm::ES256), SigningKey::new("new", Algorithm::ES256));
    let server = KeyServer::start(&[old.jwk()]).await;
    let world = world(Store::sqlite(), &server, BY_SUBJECT).await;
    let first = pays(&world, &old.token("alice")).await;
    assert_eq!((first.oncegate_status(), server.reads()), (Some("executed"), 1));
    server.publish(&[new.jwk()]);
    // All of them wait for one read.
    let waiting: Vec<_> = (0..20).map(|_| pay(world.proxy.client(), &new.token("alice")).spawn()).collect();
    for response in waiting {
        assert_eq!(response.await.unwrap().unwrap().comparable(), first.replayed());
    }
    assert_eq!(server.reads(), 2);
    for number in 0..50 {
        let token = new.sign_under(Some(&format!("unknown {number}")), &claims("alice"));
        assert_eq!(pays(&world, &token).await.status, 401);
    }
    assert_eq!(server.reads(), 2, "once in 30 seconds");
    // Tokens that the withdrawn key has signed are not remembered.
    assert_eq!(pays(&world, &old.token("alice")).await.status, 401);
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_verified_token_is_refused_once_its_key_is_withdrawn() {
    let (old, new) = (SigningKey::new("old", Algorithm::ES256), SigningKey::new("new", Algorithm::ES256));
    let server = KeyServer::start(&[old.jwk()]).await;
    let world = world(Store::sqlite(), &server, BY_SUBJECT).await;
    let token = old.token("alice");
    assert_eq!(pays(&world, &token).await.oncegate_status(), Some("executed"));
    assert!(pays(&world, &token).await.is_replay());
    server.publish(&[new.jwk()]);
    assert!(pays(&world, &new.token("alice")).await.is_replay());
    assert_eq!(pays(&world, &token).await.outcome(), (401, "token-invalid".to_owned()));
}

#[tokio::test]
async fn a_verified_token_is_refused_once_it_has_expired() {
    let key = SigningKey::new("a", Algorithm::ES256);
    let server = KeyServer::start(&[key.jwk()]).await;
    let lines = route("pay", BY_SUBJECT);
    let top = jwt(&server.url(), ", leeway = \"0s\"");
    let world = World::with(Store::sqlite(), |setup| setup.top(&top).route(&lines)).await;
    let mut short = claims("alice");
    short["exp"] = json!(get_current_timestamp() + 2);
    let token = key.sign(&short);
    assert_eq!(pays(&world, &token).await.oncegate_status(), Some("executed"));
    let refused = eventually(TEST_TIMEOUT, async || {
        let answer = pays(&world, &token).await;
        assert!(answer.is_replay() || answer.status == 401, "{answer:?}");
        (answer.status == 401).then_some(answer)
    })
    .await;
    assert!(get_current_timestamp() >= short["exp"].as_u64().unwrap(), "not before its time");
    assert!(refused.problem()["detail"].as_str().unwrap().contains("expired"));
}

#[tokio::test]
async fn keys_that_cannot_be_read_again_stay_in_use() {
    let key = SigningKey::new("a", Algorithm::EdDSA);
    let server = KeyServer::start(&[key.jwk()]).await;
    let world = world(Store::sqlite(), &server, BY_SUBJECT).await;
    let large = Answer::status(200).body(vec![b' '; (1 << 20) + 1]);
    let text = |text: &str| Answer::status(200).body(text);
    let unusable = [
        Answer::status(500),
        Answer::status(302).field("Location", "/"),
        Answer::close(),
        large,
        text("{}"),
        text("{\"keys\":[]}"),
        text("<html>"),
        text(&key_set(&[json!({ "kty": "oct", "k": "A".repeat(43), "kid": "a" })])),
    ];
    let text = world.setup.text();
    for (number, answer) in unusable.into_iter().enumerate() {
        server.0.answer_all(answer);
        reload(&world, &format!("{text}\n# {number}"), RELOADED, number + 1).await;
        server.0.wait_until(|seen| seen.begun == number + 2).await;
        world.proxy.wait_for_logs("the issuer's keys cannot be read", 1).await;
        assert_eq!(pays(&world, &key.token(&format!("caller {number}"))).await.oncegate_status(), Some("executed"));
    }
    server.publish(&[key.jwk()]);
    world.proxy.signal(Signal::HUP);
    world.proxy.wait_for_log("the issuer's keys can be read again").await;
    let lines = world.proxy.logged();
    let failures = lines.iter().filter(|line| line["message"].as_str().unwrap().contains("keys cannot be read"));
    assert_eq!(failures.count(), 1, "it is logged once");
}

on_both_stores!(an_instance_without_keys_answers_503_until_it_has_some);
async fn an_instance_without_keys_answers_503_until_it_has_some(store: Store) {
    let key = SigningKey::new("a", Algorithm::RS256);
    let address = Upstream::unused_address().await;
    let url = format!("http://{address}/jwks.json");
    let lines = route("pay", BY_SUBJECT);
    let world = World::with(store, |setup| setup.top(&jwt(&url, "")).route(&lines).route(&route("free", ""))).await;
    let refusal = pays(&world, &key.token("alice")).await;
    assert_eq!(refusal.outcome(), (503, "issuer-unavailable".to_owned()));
    assert_eq!((shown(&world).await, lacks_keys(&world).await), (1.0, (200, true)), "one route reads no token");
    assert_eq!((refusal.field("retry-after"), world.upstream.calls()), (Some("1"), 0));
    assert_eq!(Operator::of(&world.proxy).keys("").await, Vec::<Value>::new());
    assert_eq!(world.post("/free").key("k-1").body("x").send().await.oncegate_status(), Some("executed"));
    let _server = KeyServer::start_at(address, &[key.jwk()]).await;
    world.proxy.wait_for_log("can be read again").await;
    assert_eq!(pays(&world, &key.token("alice")).await.oncegate_status(), Some("executed"));
    assert_eq!((shown(&world).await, lacks_keys(&world).await), (0.0, (200, false)));
}

/// The metric of the issuer of callers' tokens.
async fn shown(world: &World) -> f64 {
    Metrics::of(&world.proxy).await.get("oncegate_issuer_unreachable{issuer=\"jwt\"}")
}

/// The status of `/readyz`, and whether it says that there are no keys, as it does in both of its lists.
async fn lacks_keys(world: &World) -> (u16, bool) {
    let (status, reply) = world.proxy.readyz().await;
    let reasons = reply["reasons"].as_array().unwrap();
    let lacks = reasons.iter().any(|reason| reason.as_str().unwrap().starts_with("issuer: "));
    assert_eq!(reply["issuers_unreachable"], if lacks { json!(["jwt"]) } else { json!([]) });
    (status, lacks)
}

#[tokio::test]
async fn an_instance_that_refuses_all_routes_for_lack_of_keys_is_not_ready_and_says_so() {
    let key = SigningKey::new("a", Algorithm::RS256);
    // The address answers, as one with a wrong path does.
    let wrong = Upstream::start().await;
    wrong.answer_all(Answer::status(404));
    let top = jwt(&format!("http://{}/jwks.json", wrong.address), "");
    let world = World::with(Store::sqlite(), |setup| setup.top(&top).route(&route("pay", BY_SUBJECT))).await;
    assert_eq!(pays(&world, &key.token("alice")).await.outcome(), (503, "issuer-unavailable".to_owned()));
    assert_eq!((shown(&world).await, lacks_keys(&world).await), (1.0, (503, true)));
    let health = oncegate("healthcheck", &world.proxy.file(), &["--admin", &world.proxy.admin.to_string()]).await;
    assert!(health.code != 0 && health.err.contains("keys of [jwt]"), "{health:?}");
}

#[tokio::test]
async fn a_key_file_is_read_again_at_a_reload() {
    let (old, new) = (SigningKey::new("old", Algorithm::ES256), SigningKey::new("new", Algorithm::ES256));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    fs::write(&file, key_set(&[old.jwk()])).unwrap();
    let top = jwt(file.to_str().unwrap(), "");
    let world = World::with(Store::sqlite(), |setup| setup.top(&top).route(&route("pay", BY_SUBJECT))).await;
    assert_eq!(pays(&world, &old.token("alice")).await.oncegate_status(), Some("executed"));
    fs::write(&file, key_set(&[new.jwk()])).unwrap();
    world.proxy.signal(Signal::HUP);
    world.proxy.wait_for_log(RELOADED).await;
    settles(async || pays(&world, &new.token("alice")).await.is_replay()).await;
    assert_eq!(pays(&world, &old.token("alice")).await.status, 401);
    fs::write(&file, "{}").unwrap();
    world.proxy.signal(Signal::HUP);
    world.proxy.wait_for_log("the running one stays").await;
    assert!(pays(&world, &new.token("alice")).await.is_replay());
}

#[tokio::test]
async fn a_reload_may_change_the_rules_of_tokens_but_not_their_issuer() {
    let key = SigningKey::new("a", Algorithm::ES256);
    let server = KeyServer::start(&[key.jwk()]).await;
    let world = world(Store::sqlite(), &server, BY_SUBJECT).await;
    let token = key.token("alice");
    assert_eq!(pays(&world, &token).await.oncegate_status(), Some("executed"));
    let with = |top: &str, lines: &str| {
        Proxy::on(&world.store.url()).upstream(world.upstream.address).top(top).route(&route("pay", lines)).text()
    };
    let same = jwt(&server.url(), "");
    for (times, text) in [
        with(&same.replace(ISSUER, "https://other.example"), BY_SUBJECT),
        with(&same, "scope = [\"jwt:tenant\"]"),
        with(&same, "scope = [\"jwt:sub?\", \"authorization?\"]"),
        with(&same, ""),
    ]
    .iter()
    .enumerate()
    {
        reload(&world, text, REFUSED, times + 1).await;
        assert!(pays(&world, &token).await.is_replay());
    }
    // The keys are kept, although they cannot be read now; the tokens that were verified by other rules are not.
    server.0.answer_all(Answer::status(500));
    let other = with(&same.replace(AUDIENCE, "another shop"), BY_SUBJECT);
    reload(&world, &other, RELOADED, 1).await;
    settles(async || pays(&world, &token).await.outcome() == (401, "token-invalid".to_owned())).await;
    let mut claims = claims("alice");
    claims["aud"] = json!("another shop");
    assert!(pays(&world, &key.sign(&claims)).await.is_replay());
}

#[tokio::test]
async fn a_restart_with_another_issuer_mixes_no_callers() {
    let key = SigningKey::new("a", Algorithm::ES256);
    let server = KeyServer::start(&[key.jwk()]).await;
    let mut world = world(Store::sqlite(), &server, BY_SUBJECT).await;
    assert_eq!(pays(&world, &key.token("alice")).await.oncegate_status(), Some("executed"));
    let other = jwt(&server.url(), "").replace(ISSUER, "https://other.example");
    world.restart_accepting(|setup| setup.top(&other).route(&route("pay", BY_SUBJECT))).await;
    let mut theirs = claims("alice");
    theirs["iss"] = json!("https://other.example");
    assert_eq!(pays(&world, &key.sign(&theirs)).await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn an_operation_is_shown_to_a_new_token_of_its_caller() {
    let key = SigningKey::new("a", Algorithm::ES256);
    let server = KeyServer::start(&[key.jwk()]).await;
    let lines = format!("{BY_SUBJECT}\ndelivery = \"async\"");
    let world = World::with(Store::sqlite(), |setup| {
        setup.top("secret = \"a secret of some length\"").top(&jwt(&server.url(), "")).route(&route("pay", &lines))
    })
    .await;
    let accepted = pays(&world, &key.token("alice")).await;
    assert_eq!(accepted.status, 202);
    let operation = accepted.field("location").unwrap().to_owned();
    let show = |token: &str| world.get(&operation).field("Authorization", &format!("Bearer {token}"));
    assert_eq!(show(&key.token("alice")).send().await.status, 200);
    assert_eq!(show(&key.token("bob")).send().await.status, 404);
    let mut expired = claims("alice");
    expired["exp"] = json!(get_current_timestamp() - 60);
    assert_eq!(show(&key.sign(&expired)).send().await.outcome(), (401, "token-invalid".to_owned()));
    assert_eq!(world.get(&operation).anonymous().send().await.status, 404);
}

#[tokio::test]
async fn an_observed_route_counts_callers_by_their_tokens() {
    let key = SigningKey::new("a", Algorithm::ES256);
    let server = KeyServer::start(&[key.jwk()]).await;
    let world = world(Store::sqlite(), &server, &format!("{BY_SUBJECT}\nmode = \"observe\"")).await;
    for (token, would) in [
        (key.token("alice"), "executed"),
        (key.token("alice"), "replayed"),
        (key.token("bob"), "executed"),
        ("x.y.z".to_owned(), "token-invalid"),
    ] {
        let before = world.proxy.logged().iter().filter(|line| line["message"] == "observed").count();
        assert_eq!(pays(&world, &token).await.status, 201);
        world.proxy.wait_for_logs("observed", before + 1).await;
        let line = world.proxy.logged().into_iter().rfind(|line| line["message"] == "observed").unwrap();
        assert_eq!(line["would"], would);
    }
}

#[tokio::test]
async fn explain_verifies_a_token_and_check_names_what_is_missing_or_dangerous() {
    let key = SigningKey::new("a", Algorithm::ES256);
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("jwks.json");
    fs::write(&keys, key_set(&[key.jwk()])).unwrap();
    let file = folder.path().join("oncegate.toml");
    let setup = |top: &str, lines: &str| {
        let setup: Setup = Proxy::on("memory:").top("upstream = \"http://127.0.0.1:1\"").top(top);
        setup.route(&route("pay", lines)).text()
    };
    let top = jwt(keys.to_str().unwrap(), "");
    fs::write(&file, setup(&top, BY_SUBJECT)).unwrap();
    let explain = async |token: &str| {
        let field = format!("Authorization: Bearer {token}");
        let arguments = ["POST", "/pay", "-H", "Idempotency-Key: k", "-H", &field];
        oncegate("explain", &file, &arguments).await.out
    };
    let explained = explain(&key.token("alice")).await;
    assert!(explained.contains("jwt:sub (sha256 "), "{explained}");
    assert!(explain(&key.sign_under(Some("b"), &claims("alice"))).await.contains("401 token-invalid"));
    let checked = oncegate("check", &file, &[]).await;
    assert!(checked.out.contains("tokens          of https://login.example for shop"), "{}", checked.out);
    for (top, lines, words) in [
        ("", BY_SUBJECT, "needs the issuer of the tokens: add `[jwt]`"),
        ("jwt = { issuer = \"i\", audience = \"a\" }", "", "is no URL"),
        ("jwt = { issuer = \"http://i\", audience = \"a\" }", "", "has no TLS"),
        ("jwt = { issuer = \"https://i?a\", audience = \"a\" }", "", "has a query"),
        ("jwt = { issuer = \"https://i\" }", "", "needs `audience` beside it"),
        ("jwt = { audience = \"a\" }", "", "needs `issuer` beside it"),
        ("jwt = { jwks = \"x\" }", "", "needs `issuer` beside it"),
        ("jwt = { issuer = \"i\", audience = [\"\"], jwks = \"http://a/\" }", "", "is empty: write the `aud`"),
        ("jwt = { issuer = \"i\", audience = 7, jwks = \"http://a/\" }", "", "a text in quotes, or a list of them"),
        ("jwt = { issuer = \"i\", audience = \"a\", jwks = \"missing.json\" }", "", "cannot be read"),
        ("jwt = { issuer = \"i\", audience = \"a\", jwks = \"ftp://a/\" }", "", "has an unknown scheme"),
        (&jwt("http://a/", ", algorithms = []"), "", "is empty: no token would do"),
        (&jwt("http://a/", ", algorithms = [\"none\"]"), "", "is not known: write RS256"),
        (&jwt("http://a/", ", leeway = \"1h\""), "", "is too long"),
    ] {
        let ended = proxy::fails(&setup(top, lines)).await;
        assert!(ended.stderr.contains(words), "{top}: {}", ended.stderr);
    }
    for (top, lines, words) in [
        (jwt(keys.to_str().unwrap(), ""), "", "no route's `scope` has a `jwt:` part"),
        (jwt("http://login.example/keys", ""), BY_SUBJECT, "is read without TLS"),
        (jwt("https://login.example/", ", algorithms = [\"HS256\"]"), BY_SUBJECT, "jwt.algorithms has HS256"),
    ] {
        fs::write(&file, setup(&top, lines)).unwrap();
        let checked = oncegate("check", &file, &[]).await;
        assert!(format!("{}{}", checked.out, checked.err).contains(words), "{top}: {checked:?}");
    }
}
