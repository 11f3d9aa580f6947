//! The content of the page.

use std::collections::BTreeSet;

use oncegate_domain::space::SpaceHash;
use serde_json::json;

use super::{Html, Visitor};
use harness::dump::dump;
use harness::operator::{Operator, keys, not_executed};
use harness::operator::{dead, unknown};
use harness::relay::remote;
use harness::{Answer, Store, TEST_TIMEOUT, World, eventually, on_both_stores};

on_both_stores!(keys_that_need_a_decision_are_shown_first_with_their_age_and_route);
async fn keys_that_need_a_decision_are_shown_first_with_their_age_and_route(store: Store) {
    let mut world = World::guarding(store, "").await;
    let page = Visitor::of(&world).page("/").await;
    for words in ["Nothing: no key is dead or unknown.", "Ready", "There are none yet.", "No decisions yet"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("Coverage"), "there is nothing to tell of it: {page}");
    let given_up = dead(&mut world, "dead-key-1").await;
    let lost = unknown(&world, "lost-key-1").await;
    assert_eq!(world.pay("done-key-1").send().await.status, 201);
    let visitor = Visitor::of(&world);
    let page = visitor.page("/").await;
    let place = |words: &str| page.find(words).unwrap_or_else(|| panic!("{words}: {page}"));
    assert!(place("dead-key") < place("lost-key") && place("lost-key") < place("Find a key"));
    for words in [&given_up[..16], &lost[..16], "seconds ago", " UTC</span>", "<b class=\"completed\">"] {
        place(words);
    }
    assert!(!page.contains("done-key"), "{page}");

    let shown = visitor.page(&format!("/keys/{lost}")).await;
    let space = SpaceHash::from_text("POST /pay").to_string();
    for words in [
        "lost-key-1",
        "until the outcome is known",
        "Cause <code>broken</code>",
        "Attempt 1",
        &space,
        "Fingerprint",
        "Not yet: its newest attempt",
        &lost,
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let operator = Operator::of(&world.proxy);
    let hash = operator.get(&format!("/api/v1/keys/{lost}")).await.1["fingerprint"]["hash"].clone();
    assert!(hash.as_str().unwrap().len() == 12 && shown.contains(hash.as_str().unwrap()), "{shown}");
    assert_eq!(operator.resolve(&lost, not_executed(true)).await.0, 200);
    for path in ["/", "/audit", &format!("/keys/{lost}")] {
        let page = visitor.page(path).await;
        assert!(
            page.contains("alice (claimed) at 127.0.0.1") && page.contains("unknown → retryable"),
            "{path}: {page}"
        );
    }
}

on_both_stores!(the_page_of_a_key_names_the_parts_in_which_its_last_mismatch_differs);
async fn the_page_of_a_key_names_the_parts_in_which_its_last_mismatch_differs(store: Store) {
    let world = World::guarding(store, "").await;
    let pay = async |body: &str| world.post("/pay").key("key-of-somebody").json(body).send().await.status;
    assert_eq!(pay(r#"{"amount":10,"nonce":1}"#).await, 201);
    let (visitor, id) = (Visitor::of(&world), Operator::of(&world.proxy).id("key-of-somebody").await);
    let page = async || visitor.page(&format!("/keys/{id}")).await;
    assert!(!page().await.contains("Last mismatch"));
    for (body, differs, told) in [
        (r#"{"amount":11,"nonce":1}"#, "differs in `json:/amount`", "Another operation"),
        (r#"{"amount":10,"nonce":"<b>"}"#, "differs in `json:/nonce`", "fingerprint.exclude"),
        (r#"{"amount":10,"nonce":1,"<i>":1}"#, "differs in `json`", "Perhaps a retry"),
    ] {
        assert_eq!(pay(body).await, 422);
        let page = page().await;
        assert!(page.contains("Last mismatch") && page.contains(differs) && page.contains(told), "{body}: {page}");
        assert!(!page.contains("<b>"), "{page}");
    }
}

on_both_stores!(a_key_is_found_by_its_whole_name_and_by_the_beginning_of_its_record);
async fn a_key_is_found_by_its_whole_name_and_by_the_beginning_of_its_record(store: Store) {
    let world = World::start(store).await;
    let visitor = Visitor::of(&world);
    for caller in ["alice", "bob"] {
        let paid = world.pay("shared-key-1").field("Authorization", &format!("Bearer {caller}")).send().await;
        assert_eq!(paid.status, 201);
    }
    assert_eq!(world.pay("single-key-of-somebody").send().await.status, 201);
    let id = Operator::of(&world.proxy).id("single-key-of-somebody").await;
    let find = async |key: &str| {
        let token = visitor.token().await;
        visitor.form("/keys/find", &[("form", &token), ("key", key)]).send().await
    };
    let one = find("single-key-of-somebody").await;
    assert_eq!((one.status, one.field("location")), (303, Some(&*format!("/keys/{id}"))));
    let two = find("shared-key-1").await;
    assert_eq!((two.status, two.html().matches("role=\"cell\" class=\"key\"").count()), (200, 2));
    assert!(two.html().contains("shared-key-1"), "a short key is shown whole");
    let none = find("shared-key").await;
    assert!(none.status == 200 && none.html().contains("No key fits."), "{}", none.html());
    assert_eq!(find(" ").await.status, 400);
    let by_id = visitor.get(&format!("/keys?id={}", &id[..8])).await;
    assert_eq!((by_id.status, by_id.field("location")), (303, Some(&*format!("/keys/{}", &id[..8]))));
    assert!(visitor.page(&format!("/keys/{}", &id[..8])).await.contains(&id));
    for (path, status) in [("/keys/abcdefab", 404), ("/keys/abc", 400), ("/keys/..%2f", 400), ("/keys/", 400)] {
        assert_eq!(visitor.get(path).await.status, status, "{path}");
    }
}

on_both_stores!(a_key_is_found_by_its_caller_and_by_a_value_of_its_request);
async fn a_key_is_found_by_its_caller_and_by_a_value_of_its_request(store: Store) {
    let world = World::guarding(store, "index = [\"json:/order_id\"]").await;
    let visitor = Visitor::of(&world);
    for (caller, order) in [("alice", "o-8"), ("bob", "o-9")] {
        let request = world.post("/pay").key(&format!("key-of-{caller}")).field("Authorization", caller);
        assert_eq!(request.json(&format!(r#"{{"order_id":"{order}"}}"#)).send().await.status, 201);
    }
    let find = async |field: &str, text: &str| {
        let token = visitor.token().await;
        let found = visitor.form("/keys/find", &[("form", &token), (field, text)]).send().await;
        assert_eq!(found.status, 303, "{}", found.html());
        visitor.page(found.field("location").unwrap()).await
    };
    let by_value = find("where", "json:/order_id=o-9").await;
    assert!(by_value.contains("key-of-b") && !by_value.contains("key-of-a"), "{by_value}");
    let by_caller = find("caller", "authorization=alice").await;
    assert!(by_caller.contains("key-of-a") && !by_caller.contains("key-of-b"), "{by_caller}");
    for filter in ["path=/pay&created_from=1h", "path=/refund", "created_until=2020-01-01"] {
        let listed = visitor.page(&format!("/keys?{filter}")).await;
        assert_eq!(listed.contains("key-of-a"), filter.starts_with("path=/pay"), "{filter}");
    }
}

on_both_stores!(lists_have_pages_and_begin_with_the_oldest_unknown_keys);
async fn lists_have_pages_and_begin_with_the_oldest_unknown_keys(store: Store) {
    let world = World::start(store).await;
    const KEYS: usize = 57;
    for number in 0..KEYS {
        world.upstream.then(Answer::close());
        assert_eq!(world.pay(&format!("{number:03}")).send().await.status, 502);
    }
    let operator = Operator::of(&world.proxy);
    eventually(TEST_TIMEOUT, async || (operator.keys("state=unknown&limit=500").await.len() == KEYS).then_some(()))
        .await;
    let visitor = Visitor::of(&world);
    let overview = visitor.page("/").await;
    assert!(overview.contains("57 <b class=\"unknown\">") && overview.contains("/keys?state=unknown"), "{overview}");
    for filter in ["state=unknown", "route=default", "older_than=0s&state=unknown"] {
        let (mut seen, mut path) = (Vec::new(), Some(format!("/keys?{filter}")));
        while let Some(asked) = path {
            let page = visitor.page(&asked).await;
            let keys = page.split("class=\"key\"><code>").skip(1).map(|rest| rest[..3].to_owned());
            seen.extend(keys);
            let next =
                page.split_once("rel=\"next\" href=\"").map(|(_, rest)| rest[..rest.find('"').unwrap()].to_owned());
            path = next.map(|next| next.replace("&amp;", "&").replace("&#38;", "&"));
        }
        if filter == "state=unknown" {
            assert!(seen.is_sorted(), "{seen:?}");
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), KEYS, "{filter}");
    }
    for (wrong, why) in [
        ("/keys?state=lost", "is not a state"),
        ("/keys?older_than=5", "has no unit"),
        ("/keys?scope=xyz", "is not the beginning of a hash"),
        ("/keys?cursor=zz", "is not from a listing"),
        ("/audit?cursor=zz", "is not from the audit log"),
    ] {
        let refused = visitor.get(wrong).await;
        assert!(refused.status == 400 && refused.html().contains(why), "{wrong}: {}", refused.html());
    }
}

#[tokio::test]
async fn the_page_reports_a_store_that_is_down() {
    let (world, wire) = remote(|setup| setup).await;
    wire.cut();
    let visitor = Visitor::of(&world);
    let page = eventually(TEST_TIMEOUT, async || {
        let page = visitor.page("/").await;
        (page.contains("Not ready") && page.contains("Not everything can be shown")).then_some(page)
    })
    .await;
    assert!(page.contains("<li>store: "), "{page}");
    let list = visitor.get("/keys?state=unknown").await;
    assert!(list.status == 503 && list.html().contains("The store does not answer"), "{}", list.html());
    wire.restore();
    eventually(TEST_TIMEOUT, async || visitor.page("/").await.contains("<strong>Ready").then_some(())).await;
}

on_both_stores!(untrusted_text_is_escaped_on_the_page);
async fn untrusted_text_is_escaped_on_the_page(store: Store) {
    const EVIL: &str = "<script>alert(1)</script>";
    const SHORT: &str = "<b>'&";
    let world = World::start(store).await;
    let evil_path = "/%3Cimg%20src=x%20onerror=alert(1)%3E";
    world.upstream.then(Answer::close());
    assert_eq!(world.post(evil_path).key(SHORT).body("x").send().await.status, 502);
    world.upstream.then(Answer::close());
    assert_eq!(world.post("/pay'").key(EVIL).body("x").send().await.status, 502);
    let operator = Operator::of(&world.proxy);
    eventually(TEST_TIMEOUT, async || (operator.keys("state=unknown").await.len() == 2).then_some(())).await;
    let visitor = Visitor::of(&world);
    let ids: Vec<_> =
        operator.keys("state=unknown").await.iter().map(|key| key["id"].as_str().unwrap().to_owned()).collect();
    let name = format!("{EVIL}\u{202e}");
    for id in &ids {
        let typed = [("name", &*name), ("note", EVIL), ("accept_risk", "true")];
        let done = visitor.submit(&format!("/keys/{id}/not-executed"), &typed).await;
        assert_eq!(done.status, 303, "{}", done.html());
    }
    let wrong = [("name", EVIL), ("status", EVIL), ("headers", EVIL), ("body", "</textarea><script>x")];
    unknown(&world, "other").await;
    let other = operator.id("other").await;
    let mut pages = vec![visitor.submit(&format!("/keys/{other}/completed"), &wrong).await.html()];
    let query = escaped_query(EVIL);
    for path in [
        "/".to_owned(),
        "/audit".to_owned(),
        "/keys".to_owned(),
        format!("/keys?route={query}"),
        format!("/keys?state={query}"),
        format!("/keys?scope={query}&older_than={query}"),
        format!("/?done={query}&why={query}"),
        format!("/keys/{}?done=purge&changed=1&refused=1&why={query}", ids[0]),
        format!("/keys/{}", ids[1]),
        format!("/keys/{query}"),
        format!("/keys/several?step=purge&route={query}"),
        format!("/keys/several?step={query}"),
    ] {
        pages.push(visitor.get(&path).await.html());
    }
    let escaped_pages = pages.iter().filter(|page| page.contains("&#60;script&#62;")).count();
    assert!(escaped_pages >= 6, "their text is shown, as text: {escaped_pages}");
    for page in pages {
        let lower = page.to_lowercase();
        for part in ["<script", "<img", "<svg", "</textarea><s", "<b>'", "\u{202e}"] {
            assert!(!lower.contains(part), "{part}: {page}");
        }
    }
}

fn escaped_query(text: &str) -> String {
    super::escaped(text)
}

on_both_stores!(no_page_shows_a_body_a_credential_or_a_token);
async fn no_page_shows_a_body_a_credential_or_a_token(store: Store) {
    const CANARY: &str = "canary-4111111111111111";
    let world = World::start(store).await;
    let pay = |key: &str| world.pay(key).field("Authorization", &format!("Bearer {CANARY}")).body(CANARY);
    world.upstream.then(Answer::status(201).field("Set-Cookie", CANARY).field("X-Card", CANARY).body(CANARY));
    assert_eq!(pay("k-1-canary-key").send().await.status, 201);
    let token = world.upstream.last().field("oncegate-reservation").unwrap().to_owned();
    world.upstream.then(Answer::close());
    assert_eq!(pay("k-2-canary-key").send().await.status, 502);
    let operator = Operator::of(&world.proxy);
    let (done, unknown) = (operator.id("k-1-canary-key").await, operator.id_when("k-2-canary-key", "unknown").await);
    let visitor = Visitor::of(&world);
    let typed =
        [("name", "alice"), ("status", "200"), ("headers", "X-Card: canary-4111111111111111"), ("body", CANARY)];
    let resolved = visitor.submit(&format!("/keys/{unknown}/completed"), &typed).await;
    assert_eq!(resolved.status, 303, "{}", resolved.html());
    let mut pages = Vec::new();
    for path in ["/", "/keys", "/audit"] {
        pages.push(visitor.page(path).await);
    }
    for id in [&done, &unknown] {
        for step in ["", "/release", "/purge", "/completed", "/not-executed", "/requeue"] {
            pages.push(visitor.page(&format!("/keys/{id}{step}")).await);
        }
    }
    pages.extend(world.proxy.logged().iter().map(ToString::to_string));
    let secret = &token[token.len() - 32..];
    for page in pages {
        for part in [CANARY, secret] {
            assert!(!page.contains(part), "{part}: {page}");
        }
    }
}

#[tokio::test]
async fn a_list_shows_the_ends_of_a_long_key_and_its_page_the_whole_key() {
    const LONG: &str = "stripe-node-retry-0b9c7f7e-1f1a-4b8e-9d5e-3c1f0a7b2d44";
    let world = World::start(Store::sqlite()).await;
    let id = unknown(&world, LONG).await;
    let visitor = Visitor::of(&world);
    for path in ["/", "/keys?state=unknown"] {
        let page = visitor.page(path).await;
        assert!(page.contains("stripe-node-…3c1f0a7b2d44") && !page.contains(LONG), "{path}: {page}");
    }
    for path in ["", "/completed", "/purge"] {
        assert!(visitor.page(&format!("/keys/{id}{path}")).await.contains(LONG), "{path}");
    }
    let runbook = visitor.page("/runbooks/unknown-keys").await;
    assert!(runbook.contains("Keys with an unknown outcome") && runbook.contains("oncegate keys resolve"), "{runbook}");
    assert_eq!(visitor.get("/runbooks/other").await.status, 404);
    let alerts = include_str!("../../../deploy/prometheus/alerts.yml");
    let names = alerts.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: ")?.rsplit_once("/runbooks/"));
    let names: BTreeSet<_> = names.map(|(_, name)| name.trim_end_matches('\'')).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let text = std::fs::read_to_string(format!("docs/runbooks/{name}.md")).unwrap();
        let title = text.lines().next().unwrap().trim_start_matches("# ").to_owned();
        assert!(
            visitor.page(&format!("/runbooks/{name}")).await.contains(&title.replace('\'', "&#39;")),
            "{name}: {title}"
        );
    }
}

on_both_stores!(a_key_shows_the_path_of_its_newest_request_without_the_query);
async fn a_key_shows_the_path_of_its_newest_request_without_the_query(store: Store) {
    let lookup = "http://127.0.0.1:9/of/{path}";
    let world = World::with(store, |setup| {
        setup
            .route("name = \"pay\"\npath = \"/pay/{*rest}\"")
            .route(&format!("name = \"asked\"\npath = \"/asked/{{id}}\"\nreconcile = {{ url = \"{lookup}\" }}"))
    })
    .await;
    let long = format!("/pay/{}", "a".repeat(300));
    let cut = format!("{}…", &long[..256]);
    for (key, target, path) in [
        ("k-1", "/pay/7%20a/refund?access_token=query-canary", "/pay/7%20a/refund"),
        ("k-2", &*long, &*cut),
        ("k-3", "/asked/7?by=alice", "/asked/7"),
    ] {
        world.upstream.then(Answer::close());
        assert_eq!(world.post(target).key(key).body("x").send().await.status, 502);
        let operator = Operator::of(&world.proxy);
        let id = operator.id_when(key, "unknown").await;
        let (_, shown) = operator.get(&format!("/api/v1/keys/{id}")).await;
        assert_eq!(shown["path"], json!(path));
        let admin = world.proxy.admin.to_string();
        let printed = keys(&world.proxy.file(), &["show", &id, "--admin", &admin]).await;
        assert!(printed.out.lines().any(|line| line == format!("{:<14}  {path}", "path")), "{printed:?}");
        let visitor = Visitor::of(&world);
        for page in [format!("/keys/{id}"), format!("/keys/{id}/completed")] {
            let html = visitor.page(&page).await;
            assert!(html.contains(&format!("<code>{path}</code>")), "{html}");
        }
    }
    assert_eq!(world.proxy.stop().await, Some(0));
    let canary = b"query-canary";
    let holds_canary = |part: &Vec<u8>| part.windows(canary.len()).any(|window| window == canary);
    assert!(!dump(&world.store).iter().any(holds_canary), "a query may have credentials");
}
