//! Access to the page and its forms.

use super::{Html, Visitor};
use harness::operator::unknown;
use harness::operator::{Operator, completed};
use harness::{Proxy, Store, World};

const TOKEN: &str = "c29tZXRoaW5nIHNlY3JldA==";

/// Every page, and every form.
fn paths(id: &str) -> (Vec<String>, Vec<String>) {
    let steps = ["completed", "not-executed", "release", "requeue", "purge"].map(|step| format!("/keys/{id}/{step}"));
    let mut read: Vec<_> = ["/", "/keys", "/keys?state=unknown", "/audit", "/messages"].map(str::to_owned).into();
    read.push(format!("/keys/{id}"));
    read.push("/keys/several?step=purge&state=unknown".to_owned());
    read.push(format!("/keys/changed?done=purge&changed=1&refused=0&behind=0&key={id}"));
    read.extend(steps.clone());
    let mut forms: Vec<_> = ["/keys/find", "/keys/several", "/messages/requeue", "/sign-out"].map(str::to_owned).into();
    forms.extend(steps);
    (read, forms)
}

/// Form fields that change something if they are accepted.
const ALL_FIELDS: [(&str, &str); 7] = [
    ("step", "purge"),
    ("state", "unknown"),
    ("expect", "9"),
    ("name", "mallory"),
    ("accept_risk", "true"),
    ("status", "200"),
    ("key", "k-1"),
];

async fn signed_in(world: &World, name: &str) -> (Visitor, String) {
    let stranger = Visitor::of(world);
    let signed = stranger.submit("/sign-in", &[("name", name), ("token", TOKEN)]).await;
    assert_eq!((signed.status, signed.field("location")), (303, Some("/")), "{}", signed.html());
    let cookie = signed.field("set-cookie").unwrap().to_owned();
    (Visitor { cookie: Some(cookie.split(';').next().unwrap().to_owned()), ..stranger }, cookie)
}

async fn with_token() -> World {
    let token = format!("token = \"{TOKEN}\"");
    World::with(Store::sqlite(), |setup| setup.admin(&token)).await
}

#[tokio::test]
async fn a_form_without_its_csrf_token_changes_nothing() {
    let world = World::start(Store::sqlite()).await;
    let id = unknown(&world, "k-1").await;
    let visitor = Visitor::of(&world);
    let token = visitor.token().await;
    for path in paths(&id).1 {
        for wrong in [None, Some(""), Some(&token[1..]), Some(&*format!("{token}A")), Some("undefined")] {
            let fields: Vec<_> = wrong.map(|wrong| ("form", wrong)).into_iter().chain(ALL_FIELDS).collect();
            let refused = visitor.form(&path, &fields).send().await;
            assert_eq!(refused.status, 403, "{path} {wrong:?}");
            assert!(refused.html().contains("Nothing was changed") && !refused.html().contains(&token));
        }
        let as_query = visitor.form(&format!("{path}?form={token}"), &ALL_FIELDS).send().await;
        assert_eq!(as_query.status, 403, "a secret in an address is none: {path}");
        let as_json = visitor.request("POST", &path).json(&format!("{{\"form\":\"{token}\"}}")).send().await;
        assert_eq!(as_json.status, 415, "{path}");
    }
    let large = "x".repeat(3 * 64 * 1024);
    let refused = visitor.form("/keys/find", &[("form", &token), ("key", &large)]).send().await;
    assert_eq!(refused.status, 413);
    let operator = Operator::of(&world.proxy);
    assert_eq!((operator.keys("state=unknown").await.len(), operator.audit().await.len()), (1, 0));
    // With the CSRF token, the same fields are accepted.
    assert_eq!(visitor.submit(&format!("/keys/{id}/purge"), &ALL_FIELDS).await.status, 303);
    assert_eq!(operator.audit().await.len(), 1);
}

#[tokio::test]
async fn requests_from_other_sites_or_host_names_see_and_change_nothing() {
    let world = World::start(Store::sqlite()).await;
    let id = unknown(&world, "k-1").await;
    let visitor = Visitor::of(&world);
    let token = visitor.token().await;
    let fields: Vec<_> = [("form", &*token)].into_iter().chain(ALL_FIELDS).collect();
    let (read, forms) = paths(&id);
    for path in read.iter().chain(&["/page.css".to_owned(), "/sign-in".to_owned()]) {
        for refused in [
            visitor.request("GET", path).host("evil.example"),
            visitor.request("GET", path).field("Origin", "http://evil.example"),
        ] {
            let refused = refused.send().await;
            assert_eq!(refused.status, 403, "{path}");
            assert!(!refused.html().contains("k-1"));
        }
    }
    for path in &forms {
        let form = visitor.request("POST", path).field("Content-Type", "application/x-www-form-urlencoded");
        let body = fields.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&");
        let form = form.body(body);
        for refused in [
            form.clone().host("evil.example"),
            form.clone().field("Origin", "http://evil.example"),
            form.clone().field("Origin", "http://localhost:3000"),
            form.clone().field("Origin", "null"),
        ] {
            assert_eq!(refused.send().await.status, 403, "{path}");
        }
    }
    let operator = Operator::of(&world.proxy);
    assert_eq!((operator.keys("state=unknown").await.len(), operator.audit().await.len()), (1, 0));
}

#[tokio::test]
async fn each_page_forbids_scripts_frames_and_caching() {
    let world = World::start(Store::sqlite()).await;
    let id = unknown(&world, "k-1").await;
    let visitor = Visitor::of(&world);
    let (mut read, forms) = paths(&id);
    read.extend(["/page.css", "/sign-in", "/keys/abcdefab", "/keys/zz", "/keys?state=lost"].map(str::to_owned));
    let mut answers = Vec::new();
    for path in &read {
        answers.push((path, visitor.get(path).await));
        let head = visitor.request("HEAD", path).send().await;
        assert!(head.body.is_empty(), "{path}");
        assert_ne!(visitor.request("DELETE", path).send().await.status, 200, "{path}");
    }
    for path in &forms {
        answers.push((path, visitor.form(path, &[]).send().await));
    }
    let not_so = visitor.request("PUT", "/keys").send().await;
    assert_eq!((not_so.status, not_so.field("allow")), (405, Some("GET")));
    for (path, answer) in answers {
        let policy = answer.field("content-security-policy").unwrap_or_default();
        for part in [
            "default-src 'none'",
            "style-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}");
        assert_eq!(answer.field("cache-control"), Some("no-store"), "{path}");
        assert_eq!(answer.field("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.field("referrer-policy"), Some("same-origin"), "{path}");
    }
}

#[tokio::test]
async fn with_a_token_configured_nothing_is_seen_or_changed_before_sign_in() {
    let world = with_token().await;
    let bearer = format!("Bearer {TOKEN}");
    world.upstream.then(harness::Answer::close());
    assert_eq!(world.pay("k-1").send().await.status, 502);
    let stranger = Visitor::of(&world);
    let operator = Operator::of(&world.proxy);
    let keys = operator.request("GET", "/api/v1/keys").field("Authorization", &bearer).send().await;
    let keys: serde_json::Value = serde_json::from_slice(&keys.body).unwrap();
    let id = keys["keys"][0]["id"].as_str().unwrap();
    let (read, forms) = paths(id);
    let fake = Visitor { cookie: Some(format!("oncegate-{}=x", world.proxy.admin.port())), ..stranger.clone() };
    for visitor in [&stranger, &fake] {
        for path in &read {
            let sent = visitor.get(path).await;
            let to = format!("/sign-in?next={}", super::escaped(path).replace("%2F", "/").replace("%2D", "-"));
            assert_eq!((sent.status, sent.field("location")), (303, Some(&*to)), "{path}");
        }
        for path in &forms {
            let refused = visitor.form(path, &ALL_FIELDS).send().await;
            assert_eq!(refused.status, 401, "{path}");
            assert!(refused.field("www-authenticate").is_some() && refused.html().contains("Nothing was changed"));
        }
    }
    let (alice, cookie) = signed_in(&world, "alice").await;
    for part in ["; Path=/", "; HttpOnly", "; SameSite=Strict", "; Max-Age=28800"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let (bob, _) = signed_in(&world, "bob").await;
    let (token_of_alice, token_of_bob) = (alice.token().await, bob.token().await);
    assert_ne!(token_of_alice, token_of_bob);
    let purge = format!("/keys/{id}/purge");
    let forged: Vec<_> = [("form", &*token_of_bob)].into_iter().chain(ALL_FIELDS).collect();
    assert_eq!(alice.form(&purge, &forged).send().await.status, 403, "another session's secret is none");
    let page = alice.page(&format!("/keys/{id}/not-executed")).await;
    assert!(page.contains("name=\"name\" value=\"alice\"") && page.contains("Sign out alice"), "{page}");
    for (name, path) in [("read", "/"), ("read", "/keys")] {
        let shown = stranger.request("GET", path).field("Authorization", &bearer).send().await;
        assert_eq!(shown.status, 200, "who shows the token with each request may {name} it too");
    }
    let out = alice.form("/sign-out", &[("form", &token_of_alice)]).send().await;
    assert_eq!((out.status, out.field("location")), (303, Some("/sign-in")));
    assert!(out.field("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(alice.get("/").await.status, 303, "the cookie is worth nothing any more");
    assert_eq!(bob.get("/").await.status, 200);
    world.proxy.wait_for_logs("an operator has signed in", 2).await;
    let logged = world.proxy.logged();
    let secret = bob.cookie.as_deref().unwrap().split('=').nth(1).unwrap();
    assert!(logged.iter().all(|line| !line.to_string().contains(TOKEN) && !line.to_string().contains(secret)));
}

#[tokio::test]
async fn wrong_tokens_are_refused_logged_and_then_rate_limited() {
    let world = with_token().await;
    let stranger = Visitor::of(&world);
    let to = "/sign-in?next=%2Fkeys%3Fstate%3Dunknown";
    let signed = stranger.submit(to, &[("name", "alice"), ("token", TOKEN)]).await;
    assert_eq!((signed.status, signed.field("location")), (303, Some("/keys?state=unknown")));
    let elsewhere = stranger.submit("/sign-in?next=%2F%2Fevil.example", &[("name", "a"), ("token", TOKEN)]).await;
    assert_eq!(elsewhere.field("location"), Some("/"));
    let unasked = stranger.form("/sign-in", &[("name", "a"), ("token", TOKEN)]).send().await;
    assert!(
        unasked.status == 403 && unasked.field("set-cookie").is_none(),
        "a form without the page's secret signs nobody in"
    );
    for wrong in ["", "x", &TOKEN[1..], &format!("{TOKEN}="), "<script>"] {
        let refused = stranger.submit("/sign-in", &[("name", "mallory"), ("token", wrong)]).await;
        assert_eq!(refused.status, 401, "{wrong}");
        assert!(refused.html().contains("not the listener&#39;s token") && refused.field("set-cookie").is_none());
        assert!(wrong.len() < 2 || !refused.html().contains(wrong), "{}", refused.html());
    }
    let waits = stranger.submit("/sign-in", &[("name", "alice"), ("token", TOKEN)]).await;
    assert_eq!(waits.status, 429);
    assert!((1..=60).contains(&waits.field("retry-after").unwrap().parse::<u64>().unwrap()));
    world.proxy.wait_for_log("the admin listener has denied a request").await;
    let bearer = format!("Bearer {TOKEN}");
    let asked = Operator::of(&world.proxy).request("GET", "/api/v1/keys").field("Authorization", &bearer).send().await;
    assert_eq!(asked.status, 429, "programs at that address wait too");
}

#[tokio::test]
async fn without_a_token_configured_there_is_no_sign_in() {
    let world = World::start(Store::sqlite()).await;
    let visitor = Visitor::of(&world);
    assert!(!visitor.page("/").await.contains("Sign out"));
    assert_eq!(visitor.get("/sign-in").await.field("location"), Some("/"));
    let token = visitor.token().await;
    let out = visitor.form("/sign-out", &[("form", &token)]).send().await;
    assert_eq!(out.status, 303);
    // Decisions over the API are in the same log.
    let id = unknown(&world, "k-1").await;
    assert_eq!(Operator::of(&world.proxy).resolve(&id, completed(200, "x")).await.0, 200);
    assert!(visitor.page("/audit").await.contains("alice (claimed)"));
}

#[tokio::test]
async fn a_rotated_token_counts_without_a_restart_and_ends_the_sessions_of_the_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let line = format!("token = \"${{file:{}}}\"", file.display());
    let world = World::with(Store::sqlite(), |setup| setup.admin(&line)).await;
    let (visitor, _) = signed_in(&world, "ann").await;
    assert_eq!(visitor.request("GET", "/keys").send().await.status, 200);
    let next = "the next token of these tests";
    std::fs::write(&file, next.replace(' ', "-")).unwrap();
    world.proxy.wait_for_log("the configuration was reloaded").await;
    assert_ne!(visitor.request("GET", "/keys").send().await.status, 200, "the session has ended");
    let by_token = async |token: &str| {
        let request = Visitor::of(&world).request("GET", "/api/v1/keys");
        request.field("Authorization", &format!("Bearer {token}")).send().await.status
    };
    assert_eq!((by_token(TOKEN).await, by_token(&next.replace(' ', "-")).await), (401, 200));
    assert!(!world.proxy.output().contains("which takes effect with a restart"));
}

#[tokio::test]
async fn a_changed_or_removed_token_stops_counting_with_the_reload_whatever_the_other_one_is() {
    let [read, next_read, next] = ["the-token-of-readers", "the-next-token-of-readers", "the-next-token-of-operators"];
    let line = |name: &str, token: &str| if token.is_empty() { String::new() } else { format!("{name} = {token:?}\n") };
    // The tokens of operators and readers before and after; the empty one of operators is drawn.
    for (before, after) in [
        (("", read), ("", next_read)),
        (("", read), ("", "")),
        (("", ""), ("", read)),
        ((TOKEN, read), (TOKEN, next_read)),
        ((TOKEN, read), (TOKEN, "")),
        ((TOKEN, ""), (TOKEN, read)),
        ((TOKEN, read), (next, read)),
        ((TOKEN, read), (next, next_read)),
        // A first token of operators, and the last one's removal, need a restart. That of readers does not.
        (("", read), (next, next_read)),
        ((TOKEN, read), ("", next_read)),
    ] {
        let lines = |(operator, reader): (&str, &str)| {
            format!("open = false\n{}{}", line("token", operator), line("read_token", reader))
        };
        let world = World::with(Store::sqlite(), |setup| setup.admin(&lines(before))).await;
        let drawn = std::fs::read_to_string(world.store.sqlite_file().with_extension("db.admin-token"));
        let drawn = drawn.map(|token| token.trim_end().to_owned()).unwrap_or_default();
        let setup = Proxy::on(&world.store.url()).upstream(world.upstream.address).admin(&lines(after));
        std::fs::write(world.proxy.file(), setup.text()).unwrap();
        world.proxy.wait_for_log("the configuration was reloaded").await;
        let operator = match (before.0, after.0) {
            ("", _) => &*drawn,
            (before, "") => before,
            (_, after) => after,
        };
        // Fewer wrong ones than an address may show in a minute.
        for token in [TOKEN, next, &*drawn, read, next_read].into_iter().filter(|token| !token.is_empty()) {
            let ask = async |method: &str, path: &str| {
                let request = Visitor::of(&world).request(method, path);
                request.field("Authorization", &format!("Bearer {token}")).send().await.status
            };
            let case = format!("{token} with {before:?} and then {after:?}");
            if token == operator || token == after.1 {
                assert_eq!(ask("GET", "/api/v1/keys").await, 200, "{case}");
                let change = ask("DELETE", &format!("/api/v1/keys/{}", "00".repeat(32))).await;
                assert_eq!(change, if token == operator { 404 } else { 403 }, "{case}");
            } else {
                assert_eq!(ask("GET", "/api/v1/keys").await, 401, "{case}");
            }
        }
    }
}
