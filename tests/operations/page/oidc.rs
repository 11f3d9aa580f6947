//! Signing in to the page with an OpenID Connect issuer.

use jsonwebtoken::Algorithm;
use serde_json::{Value, json};

use super::{Html, Visitor, escaped};
use harness::client::Client;
use harness::metrics::Metrics;
use harness::oidc_issuer::{Breach, CLIENT, OidcIssuer, SECRET};
use harness::operator::Operator;
use harness::{Answer, Hold, Response, Store, TEST_TIMEOUT, Upstream, World, eventually};

pub(super) const TOKEN: &str = "c29tZXRoaW5nIHNlY3JldA==";

/// A proxy whose page is at this address for browsers.
async fn world(issuer: &str, url: &str, more: &str) -> World {
    at(Store::sqlite(), issuer, url, more, "").await
}

/// A proxy on this store with further lines in `[admin]`.
pub(super) async fn world_with(store: Store, issuer: &str, more: &str, lines: &str) -> World {
    at(store, issuer, HTTPS, more, lines).await
}

async fn at(store: Store, issuer: &str, url: &str, more: &str, admin: &str) -> World {
    World::with(store, |setup| setup.admin(&lines(issuer, url, more)).admin(admin)).await
}

/// The lines in `[admin]` for the page at this address.
pub(super) fn lines(issuer: &str, url: &str, more: &str) -> String {
    format!(
        "token = {TOKEN:?}\noidc.issuer = {issuer:?}\noidc.client_id = {CLIENT:?}\noidc.client_secret = {SECRET:?}\n\
         oidc.url = {url:?}\noidc.operate = [\"payments-ops\"]\noidc.read = [\"support\", \"audit\"]\n{more}"
    )
}

/// The same for the page at its usual address.
pub(super) fn usual_lines(issuer: &str) -> String {
    lines(issuer, HTTPS, "")
}

const HTTPS: &str = "https://oncegate.ops.example";

/// The beginning of the name of the session's cookie there.
const SESSION: &str = "__Host-oncegate-";

/// A visitor by the page's own address.
fn stranger(world: &World) -> Visitor {
    Visitor { origin: HTTPS.to_owned(), ..Visitor::of(world) }
}

/// A sign-in that has come back from the issuer's page: the address in the page, and the browser's cookie.
struct Returned {
    callback: String,
    cookie: String,
}

fn cookie_of(response: &Response, name: &str) -> Option<String> {
    let cookies = response.fields.iter().filter(|(field, _)| field == "set-cookie").map(|(_, value)| value);
    cookies.into_iter().find(|cookie| cookie.starts_with(name) && !cookie.contains("Max-Age=0")).cloned()
}

fn pair(cookie: &str) -> String {
    cookie.split(';').next().unwrap().to_owned()
}

/// Follows the browser to the issuer and back.
async fn go_to_issuer(visitor: &Visitor, next: &str) -> Returned {
    let begun = visitor.request("GET", &format!("/sign-in/oidc?next={}", escaped(next))).send().await;
    assert_eq!(begun.status, 303, "{}", begun.html());
    let cookie = cookie_of(&begun, "__Host-oncegate-sign-in-").unwrap();
    for part in ["; Secure", "; HttpOnly", "; SameSite=Lax", "; Path=/", "; Max-Age=600"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let page: http::Uri = begun.field("location").unwrap().parse().unwrap();
    let address = page.authority().unwrap().as_str().parse().unwrap();
    let answer = Client { address }.get(page.path_and_query().unwrap().as_str()).send().await;
    let callback = answer.field("location").unwrap().strip_prefix(HTTPS).unwrap().to_owned();
    Returned { callback, cookie: pair(&cookie) }
}

async fn come_back(visitor: &Visitor, returned: &Returned) -> Response {
    let request = visitor.request("GET", &returned.callback).field("Cookie", &returned.cookie);
    request.field("Sec-Fetch-Site", "cross-site").send().await
}

pub(super) async fn sign_in(world: &World, issuer: &OidcIssuer, person: Value) -> Visitor {
    issuer.sign_in_next(person, None);
    let stranger = stranger(world);
    let signed = come_back(&stranger, &go_to_issuer(&stranger, "/").await).await;
    assert_eq!(signed.status, 200, "{}", signed.html());
    Visitor { cookie: Some(pair(&cookie_of(&signed, SESSION).unwrap())), ..stranger }
}

#[tokio::test]
async fn a_person_signs_in_with_the_role_of_their_groups_and_the_audit_log_names_them() {
    for algorithm in [Algorithm::RS256, Algorithm::ES256] {
        let issuer = OidcIssuer::start(algorithm).await;
        let world = world(&issuer.url(), HTTPS, "").await;
        world.upstream.then(Answer::close());
        assert_eq!(world.pay("k-1").send().await.status, 502);
        let stranger = stranger(&world);
        let page = stranger.page("/sign-in?next=%2Fkeys").await;
        assert!(page.contains(&format!("href=\"{HTTPS}/sign-in/oidc?next=/keys\"")), "{page}");
        issuer.sign_in_next(json!({ "groups": ["x", "payments-ops"], "preferred_username": "ann <b>" }), None);
        let signed = come_back(&stranger, &go_to_issuer(&stranger, "/keys?state=unknown").await).await;
        let text = signed.html();
        assert!(signed.status == 200 && text.contains("Signed in as ann &#60;b&#62;"), "{text}");
        assert!(text.contains("http-equiv=\"refresh\" content=\"0;url=/keys?state=unknown\""), "{text}");
        let session = cookie_of(&signed, SESSION).unwrap();
        for part in ["; Secure", "; HttpOnly", "; SameSite=Strict", "; Max-Age=28800"] {
            assert!(session.contains(part), "{session}");
        }
        let ann = Visitor { cookie: Some(pair(&session)), ..stranger };
        // Another host can set the cookie without the prefix, and another address has no TLS.
        let without_prefix = pair(&session).strip_prefix("__Host-").map(str::to_owned);
        for other in [
            Visitor { cookie: without_prefix, ..ann.clone() },
            Visitor { cookie: ann.cookie.clone(), ..Visitor::of(&world) },
        ] {
            assert_eq!(other.get("/").await.status, 303, "{other:?}");
        }
        let keys = ann.page("/keys?state=unknown").await;
        let id = keys.split("href=\"/keys/").nth(1).unwrap().split('"').next().unwrap().to_owned();
        let form = ann.page(&format!("/keys/{id}/purge")).await;
        assert!(form.contains("The audit log will name you: <strong>ann &#60;b&#62;</strong>"), "{form}");
        let purge = format!("/keys/{id}/purge");
        let done = ann.submit(&purge, &[("name", "mallory"), ("accept_risk", "true")]).await;
        assert_eq!(done.status, 303, "{}", done.html());
        let bearer = format!("Bearer {TOKEN}");
        let audit =
            Operator::of(&world.proxy).request("GET", "/api/v1/audit").field("Authorization", &bearer).send().await;
        let audit: Value = serde_json::from_slice(&audit.body).unwrap();
        let named = format!("ann <b> (signed in as subject-7 by {}) at 127.0.0.1", issuer.digest());
        assert_eq!(audit["entries"][0]["actor"], named, "{audit}");
        // The other role looks, and the token's way in stays.
        let reader = sign_in(&world, &issuer, json!({ "groups": "audit", "email": "bob@ops.example" })).await;
        assert!(reader.page("/").await.contains("Sign out bob@ops.example"));
        let refused = reader.form(&purge, &[("form", &reader.token().await)]).send().await;
        assert!(refused.status == 403 && refused.html().contains("may look and not change"));
        let by_token = Visitor::of(&world).submit("/sign-in", &[("name", "carl"), ("token", TOKEN)]).await;
        assert_eq!(by_token.status, 303);
    }
}

#[tokio::test]
async fn an_answer_that_breaks_a_rule_signs_nobody_in_and_its_page_says_why() {
    let issuer = OidcIssuer::start(Algorithm::ES256).await;
    let world = world(&issuer.url(), HTTPS, "oidc.roles_claim = \"realm_access.roles\"").await;
    let person = json!({ "realm_access": { "roles": ["support"] }, "preferred_username": "ann" });
    let cases: [(Breach, u16, &str); 16] = [
        (|answers| answers.error = Some("access_denied"), 403, "has refused the sign-in: access_denied"),
        (|answers| answers.iss = Some("https://evil.example".into()), 400, "The answer is by another issuer"),
        (|answers| answers.iss = None, 400, "The answer is by another issuer"),
        (|answers| answers.refuses_code = true, 502, "the answer has status 400: invalid_grant"),
        (|answers| answers.signs_with_other_key = true, 502, "signature is not by a key of its issuer"),
        (|answers| answers.claims["exp"] = json!(1), 502, "The token has expired"),
        (|answers| answers.claims["iss"] = json!("https://evil.example"), 502, "from another issuer"),
        (|answers| answers.claims["aud"] = json!("other"), 502, "for another audience"),
        (|answers| answers.claims["aud"] = json!([CLIENT, "other"]), 502, "`azp` does not name this client"),
        (|answers| answers.claims["azp"] = json!("other"), 502, "`azp` does not name this client"),
        (|answers| answers.claims["nonce"] = json!("n"), 502, "its `nonce` is not the one that was sent"),
        (|answers| answers.claims["iat"] = json!(1), 502, "made during this sign-in"),
        (|answers| answers.claims["sub"] = json!(null), 502, "names no person"),
        (
            |answers| answers.claims["realm_access"] = json!({ "roles": ["x"] }),
            403,
            "No value of its claim `realm_access.roles`",
        ),
        (|answers| answers.claims["realm_access"] = json!({}), 403, "has no claim `realm_access.roles`"),
        (|answers| answers.claims["realm_access"] = json!(["support"]), 403, "has no claim `realm_access.roles`"),
    ];
    let visitor = stranger(&world);
    let refused = async |response: Response, status: u16, why: &str| {
        assert!(response.status == status && response.html().contains(why), "{why}: {}", response.html());
        assert_eq!(cookie_of(&response, SESSION), None, "{why}");
    };
    for (breach, status, why) in cases {
        issuer.sign_in_next(person.clone(), Some(breach));
        let returned = go_to_issuer(&visitor, "/").await;
        refused(come_back(&visitor, &returned).await, status, why).await;
        let again = come_back(&visitor, &returned).await;
        refused(again, 400, "an answer counts once").await;
    }
    // The same sign-in without a breach succeeds, and what others send for it does not use it up.
    issuer.sign_in_next(person, None);
    let returned = go_to_issuer(&visitor, "/").await;
    let other = go_to_issuer(&visitor, "/").await;
    let callback = |callback: &str, cookie: &str| Returned { callback: callback.into(), cookie: cookie.into() };
    for (sent, why) in [
        (callback(&returned.callback, &other.cookie), "of another browser"),
        (callback(&returned.callback, "a=b"), "of another browser"),
        (callback("/sign-in/oidc/callback?code=code-1&state=x", &returned.cookie), "is not known here"),
        (callback("/sign-in/oidc/callback", &returned.cookie), "is not known here"),
    ] {
        let response = come_back(&visitor, &sent).await;
        assert_eq!(response.field("set-cookie"), None, "a made-up answer ends no sign-in");
        refused(response, 400, why).await;
    }
    assert_eq!(come_back(&visitor, &returned).await.status, 200);
    refused(come_back(&visitor, &returned).await, 400, "an answer counts once").await;
    let code = returned.callback.split(['=', '&']).nth(1).unwrap();
    let log = world.proxy.output();
    assert!(log.contains("a sign-in with the issuer was refused"));
    for secret in [SECRET, &*escaped(SECRET), returned.cookie.split('=').nth(1).unwrap(), &format!("\"{code}\"")] {
        assert!(!log.contains(secret), "the log has {secret}");
    }
}

#[tokio::test]
async fn an_issuer_that_is_away_or_describes_another_one_is_named_and_the_token_still_counts() {
    let issuer = OidcIssuer::start(Algorithm::ES256).await;
    let away = format!("http://{}", Upstream::unused_address().await);
    let same = issuer.url().replace("127.0.0.1", "localhost");
    let html = Upstream::start().await;
    let html = format!("http://{}", html.address);
    for (url, why) in [
        (away, "cannot be reached"),
        (same, "which is not the one of the configuration"),
        (html, "the answer has status 201"),
    ] {
        let world = world(&url, "http://127.0.0.1:9", "").await;
        world.proxy.wait_for_log("the issuer of [admin.oidc] cannot be read").await;
        let unreachable = Metrics::of(&world.proxy).await.get("oncegate_issuer_unreachable{issuer=\"admin.oidc\"}");
        let (status, reply) = world.proxy.readyz().await;
        assert_eq!((unreachable, status, &reply["issuers_unreachable"]), (1.0, 200, &json!(["admin.oidc"])));
        let visitor = Visitor::of(&world);
        let refused = visitor.get("/sign-in/oidc").await;
        let text = refused.html();
        assert!(refused.status == 502 && text.contains(why) && text.contains(&url), "{text}");
        assert_eq!(visitor.submit("/sign-in", &[("name", "ann"), ("token", TOKEN)]).await.status, 303);
    }
}

#[tokio::test]
async fn a_reload_that_changes_who_may_sign_in_ends_the_sessions_and_the_sign_ins() {
    let issuer = OidcIssuer::start(Algorithm::ES256).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, SECRET).unwrap();
    let lines = format!(
        "token = {TOKEN:?}\noidc = {{ issuer = {:?}, client_id = {CLIENT:?}, client_secret = \"${{file:{}}}\", url = {HTTPS:?}, \
         operate = [\"payments-ops\"] }}",
        issuer.url(),
        file.display()
    );
    let world = World::with(Store::sqlite(), |setup| setup.admin(&lines)).await;
    let ann = sign_in(&world, &issuer, json!({ "groups": ["payments-ops"] })).await;
    assert!(ann.page("/").await.contains("Sign out subject-7"));
    std::fs::write(&file, "another secret").unwrap();
    world.proxy.wait_for_log("the configuration was reloaded").await;
    assert_eq!(ann.get("/").await.status, 303, "the session has ended");
    // So does a sign-in that waits for the issuer meanwhile, on its way there and back.
    let visitor = stranger(&world);
    for (at, secret, held) in [(2, SECRET, "/.well-known/openid-configuration"), (3, "another secret", "/keys")] {
        let returned = match held {
            "/keys" => Some(go_to_issuer(&visitor, "/").await),
            _ => None,
        };
        issuer.hold(held);
        let waiting = async {
            match &returned {
                Some(returned) => come_back(&visitor, returned).await,
                None => visitor.get("/sign-in/oidc").await,
            }
        };
        let reload = async {
            issuer.wait_until_asked().await;
            std::fs::write(&file, secret).unwrap();
            world.proxy.wait_for_logs("the configuration was reloaded", at).await;
            // Whoever comes next has the sessions ended.
            assert_eq!(ann.get("/").await.status, 303);
            issuer.hold("");
        };
        let (refused, ()) = tokio::join!(waiting, reload);
        assert!(refused.status == 400 && refused.html().contains("is not known here"), "{held}: {}", refused.html());
    }
    assert!(!world.proxy.output().contains("which takes effect with a restart"));
}

#[tokio::test]
async fn an_issuer_that_fails_is_asked_once_for_all_that_come_meanwhile() {
    let (failing, hold) = (Upstream::start().await, Hold::new());
    failing.answer_all(Answer::status(500).hold(&hold));
    let world = world(&format!("http://{}", failing.address), "http://127.0.0.1:9", "").await;
    let visitor = Visitor::of(&world);
    // Of those that come at once, some do not wait.
    let begin = || visitor.request("GET", "/sign-in/oidc");
    let left = begin().open().await.unwrap();
    eventually(TEST_TIMEOUT, async || (failing.calls() == 1).then_some(())).await;
    let waiting: Vec<_> = (0..10).map(|_| begin().spawn()).collect();
    drop(left);
    hold.release();
    for answer in waiting {
        assert_eq!(answer.await.unwrap().unwrap().status, 502);
    }
    for _ in 0..30 {
        assert_eq!(begin().send().await.status, 502);
    }
    assert_eq!(failing.calls(), 1);
}
